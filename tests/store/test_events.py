"""Events: written in the same transaction as what they report, in order, and read from a cursor on."""

from __future__ import annotations

import json
import re
import signal
import threading

import pytest

from declarative.model.spec.project import EVENT_TYPES
from declarative.model.state import Address, Record
from declarative.model.status import NodeState, RankState, RankStatus, Readiness
from declarative.store import StateError, open_store
from declarative.store import events as told
from tests.support.cli import fleet, task

DATA = Address("volume", "data")


@pytest.fixture
def store(new_state):
    with open_store(new_state()) as opened:
        yield opened


def types(store, cursor=0):
    return [(e.type, e.address) for e in store.events.after(cursor)]


def finished(writer, op="create", address=DATA):
    intent = writer.begin(op, address, "local", {"size": "1GB"})
    writer.finish(intent, {"id": f"{address}"})
    return intent


def test_what_a_backend_was_asked_for_is_told_once_it_ended(store):
    with store.lock("apply") as writer:
        finished(writer)
        failing = writer.begin("update", DATA, "local", {"size": "2GB"})
        assert types(store) == [("volume.created", "volume/data")], "what is open has not happened"
        writer.fail(failing, "quota exceeded")
        intent = finished(writer, "delete")
        writer.finish(intent)
    made, failed, gone = store.events.after(0)
    assert [made.id, failed.id, gone.id] == [1, 2, 3]
    assert (made.type, failed.type, gone.type) == ("volume.created", "volume.update_failed", "volume.deleted")
    assert failed.detail["error"] == "quota exceeded"
    assert made.detail["doing"] == "apply"
    assert store.events.after(2) == (gone,)
    assert store.events.bounds() == (1, 3)


def test_states_are_told_when_they_change_and_only_then(store):
    ready = {"gpu-0": Readiness(state=NodeState.READY)}
    lost = {"gpu-0": Readiness(state=NodeState.UNREACHABLE, reason="no route")}
    failed = RankStatus(state=RankState.FAILED, exit_code=3, cause="exit code 3")
    with store.lock("apply") as writer:
        for seen in (ready, ready, lost, lost, ready):
            writer.observe_nodes(seen)
        for status in (RankStatus(state=RankState.RUNNING), failed, failed):
            writer.observe_ranks({"train-0": status})
    assert types(store) == [
        ("node.ready", "node/gpu-0"),
        ("node.unreachable", "node/gpu-0"),
        ("node.ready", "node/gpu-0"),
        ("rank.running", "rank/train-0"),
        ("rank.failed", "rank/train-0"),
    ]
    assert store.events.after(1)[0].detail == {"reason": "no route"}
    assert store.events.after(4)[0].detail == {"exit_code": 3, "cause": "exit code 3"}


@pytest.mark.parametrize(
    ("criteria", "ends", "told_of"),
    [
        (None, [(0, "succeeded"), (1, "succeeded")], [2]),
        (None, [(0, "failed"), (1, "stopped")], [1]),
        ("master-done", [(1, "succeeded"), (0, "succeeded")], [2]),
    ],
)
def test_a_task_has_one_end(store, criteria, ends, told_of):
    """One event for the gang, not one for each rank; a failure is reported at once."""
    inputs = {"task": "train", "nodes": 2, "stop_criteria": criteria}
    with store.lock("apply") as writer:
        for rank in range(2):
            address = Address("rank", f"train-{rank}")
            writer.adopt(Record(address=address, backend="local", inputs=inputs | {"rank": rank}, outputs={}))
        writer.observe_ranks({f"train-{r}": RankStatus(state=RankState.RUNNING) for r in range(2)})
        seen: list[int] = []
        for count, (rank, state) in enumerate(ends, 1):
            writer.observe_ranks({f"train-{rank}": RankStatus(state=RankState(state), cause="why")})
            if any(e.type.startswith("task.") for e in store.events.after(0)) and not seen:
                seen.append(count)
    assert seen == told_of
    ended = [e for e in store.events.after(0) if e.type.startswith("task.")]
    assert [e.type for e in ended] == [f"task.{'failed' if ends[0][1] == 'failed' else 'succeeded'}"]
    assert ended[0].detail == {"cause": "why"}


def test_a_step_that_is_undone_is_not_told_of(store):
    with store.lock("apply") as writer:
        finished(writer)
        with pytest.raises(StateError):
            writer.begin("create", Address("attachment", "x.data"), "local", {}, [Address("node", "none")])
    assert types(store) == [("volume.created", "volume/data")]


def test_what_users_do_is_told(store):
    with store.lock("stop") as writer:
        writer.log("stop", Address("task", "train"))
    store.journal.note("exec", Address("rank", "train-0"), "exec")
    store.events.write("reconcile.failed", "project/lab", {"summary": "410 of 400 USD/h", "none": None})
    assert types(store) == [
        ("task.stop_requested", "task/train"),
        ("rank.exec", "rank/train-0"),
        ("reconcile.failed", "project/lab"),
    ]
    assert store.events.after(2)[0].detail == {"summary": "410 of 400 USD/h"}


def test_numbers_grow_whoever_writes(store):
    """A command that holds the lock, and others that do not, at once."""
    with store.lock("apply") as writer:
        begin = threading.Barrier(3)

        def write_event(name):
            begin.wait()
            for i in range(10):
                store.events.write("node.ready", f"{name}/{i}", {})

        threads = [threading.Thread(target=write_event, args=(name,)) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        begin.wait()
        for i in range(10):
            writer.observe_nodes({"n": Readiness(state=NodeState.READY if i % 2 else NodeState.FAILED)})
        for thread in threads:
            thread.join()
    assert [e.id for e in store.events.after(0)] == list(range(1, 31))


def test_old_events_are_dropped_unless_somebody_waits_for_them(store, monkeypatch):
    monkeypatch.setattr(told, "KEPT", 3)

    def more(count):
        for _ in range(count):
            store.events.write("node.ready", "a/b", {})
        with store.lock("apply"):
            pass
        return store.events.bounds()

    assert more(5) == (3, 5)
    assert store.hooks.claim("ops", 10.0) is not None
    assert more(5) == (6, 10), "the hook has the fifth, and waits for the sixth"
    store.hooks.advance("ops", 10)
    assert more(1) == (9, 11)
    assert more(100)[0] == 82, "nobody is waited for without an end"
    store.hooks.keep([])
    assert more(0) == (109, 111)


# ------------------------------------------------------------------------------------------ the command


@pytest.mark.slow
def test_events_of_an_apply_and_what_comes_after_a_cursor(project):
    project.declare(fleet(nodes=1), task("hello", "exit 3"))
    project.apply("--wait", code=4)
    lines = [json.loads(line) for line in project.run("events", "--since", "0", "--json").out.splitlines()]
    found = [line["type"] for line in lines]
    for earlier, later in (("node.created", "node.ready"), ("rank.running", "rank.failed")):
        assert found.index(earlier) < found.index(later)
    assert found.count("task.failed") == 1
    last = next(line for line in lines if line["type"] == "rank.failed")
    assert last["detail"]["exit_code"] == 3
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", last["time"])
    assert len({line["id"] for line in lines}) == len(lines)
    after = project.run("events", "--since", last["cursor"], "--json").out.splitlines()
    assert [json.loads(line) for line in after] == lines[lines.index(last) + 1 :]
    only = project.run("events", "--type", "task.*").out
    assert [line.split()[1] for line in only.splitlines()] == ["task.failed"]
    assert project.run("events", "--type", "rank.failed").out.endswith("  exit code 3\n"), "said once"


@pytest.mark.slow
def test_follow_ends_with_its_reader(project):
    """`events -f | head -1`, where nothing more happens."""
    project.declare(fleet(nodes=1))
    project.apply()
    follower = project.start("events", "-f")
    assert "node.created" in follower.stdout.readline()
    follower.stdout.close()
    assert follower.wait(20) == 0


@pytest.mark.slow
def test_follow_prints_what_comes(project):
    project.declare(fleet(nodes=1))
    project.apply()
    follower = project.start("events", "--since", "0", "--json", "-f")
    assert json.loads(follower.stdout.readline())["type"] == "node.created"
    project.run("drain", "gpu-0", "--reason", "disk")
    while True:
        event = json.loads(follower.stdout.readline())
        if event["type"] == "node.drained":
            break
    assert event["detail"]["reason"] == "disk"
    follower.send_signal(signal.SIGINT)
    assert follower.wait() == 130


def test_a_cursor_that_there_is_not(project):
    project.declare(fleet(nodes=1))
    assert project.run("events").out == ""
    assert "is not a cursor" in project.run("events", "--since", "x", code=1).err
    assert "begin with `--since 0`" in project.run("events", "--since", "7", code=1).err


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("zebra", "write one of `attachment.*`, `backend.*`, `fleet.*`, `node.*`, `rank.*`"),
        ("rank", "the types of `rank` are `rank.adopted`, `rank.create_failed`"),
        ("task.fail", "`task.failed`, `task.lost`"),
        ("nodes.*", "did you mean `node.*`?"),
        ("Rank Failed", "write `rank.failed`, `node.*` or `*`"),
    ],
)
def test_a_type_that_there_is_not(project, pattern, hint):
    """Its reader would wait for ever."""
    project.declare(fleet(nodes=1))
    for more in ([], ["-f"]):
        done = project.run("events", "--type", "*.failed", "--type", pattern, *more, code=1)
        assert f"error[usage]: `--type {pattern}`" in done.err
        assert hint in done.err


def test_every_type_that_is_written_is_known():
    words = {known.partition(".")[2] for known in EVENT_TYPES}
    assert words >= {*told.DONE.values(), *told.NOTED.values(), *NodeState, *RankState}
    assert {f"{kind}.{op}_failed" for kind in ("node", "volume", "rank") for op in told.DONE} <= EVENT_TYPES
