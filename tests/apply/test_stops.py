"""Ranks that have to stop: which, why, and how they end. The backends are scripted; `test_gangs` and
`end_to_end/test_stop.py` have real ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from declarative.apply.ranks import START_LIMIT, gang_stops, half_started, stop_rank, user_stops
from declarative.apply.watch import stop_task
from declarative.cli import cli
from declarative.cli.nodes import _report_stop
from declarative.converge.project import ProjectSession
from declarative.model.resource import TaskWant
from declarative.model.spec import Task
from declarative.model.state import SILENT, STARTED, STOPPED, Address, Intent, Record, State
from declarative.model.status import NodeState, RankState, RankStatus, Readiness
from declarative.store import Writer, open_store
from tests.apply.test_settle import NODE, NOW, PLACE, RANK, REFUSED, Cloud, lived, record
from tests.support.market import Market, Site
from tests.support.model import spec
from tests.support.planned import declared

RUNS, DONE, FAILED, LOST, STOPS = (
    RankState.RUNNING,
    RankState.SUCCEEDED,
    RankState.FAILED,
    RankState.LOST,
    RankState.STOPPED,
)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    opened = open_store(f"sqlite:///{tmp_path}/state.db", clock=lambda: NOW)
    with opened as store, store.lock("test", 0) as made:
        yield made


def member(rank: int, nodes: int, task: str = "job", **more: Any) -> Record:
    """A recorded rank."""
    outputs = more.pop("outputs", {})
    inputs = {"task": task, "rank": rank, "nodes": nodes, "commands": ["true"], **more}
    return record(Address("rank", f"{task}-{rank}"), inputs, **outputs)


def gang(*states: RankState | None, **more: Any) -> State:
    """A task by what is known of its ranks; None for one of which nothing is known yet."""
    ranks = [member(i, len(states), **more) for i in range(len(states))]
    ended = {f"job-{i}": RankStatus(state=s, cause="x") for i, s in enumerate(states) if s}
    return State(records={r.address: r for r in ranks}, ranks=ended)


def asked(op: str, address: str) -> Intent:
    """A call whose result is not known."""
    return Intent(
        id=1, op=op, address=Address.parse(address), backend="sky", generation=1, token="t", inputs={}
    )


# ------------------------------------------------------------------------------------ which, and why


def test_what_the_user_stopped_stops_but_for_what_has_ended() -> None:
    """Every rank of the task, if one of them says so; no rank of another one."""
    state = gang(RUNS, FAILED, RUNS)
    assert user_stops(state) == {}
    more = [member(0, 3, outputs={STOPPED: True}), member(0, 1, "other")]
    state = replace(state, records={**state.records, **{r.address: r for r in more}})
    assert user_stops(state) == dict.fromkeys(
        ("job-0", "job-2"), RankStatus(state=STOPS, cause="stopped by the user")
    )


@pytest.mark.parametrize(
    ("criteria", "states", "cause"),
    [
        (None, (RUNS, FAILED, RUNS, DONE, None), "rank/job-1 failed: x"),
        (None, (RUNS, LOST, RUNS), "rank/job-1 lost: x"),
        (None, (DONE, RUNS, RUNS), None),
        ("all-done", (DONE, RUNS, RUNS), None),
        ("master-done", (DONE, RUNS, RUNS, FAILED), "rank/job-3 failed: x"),
        ("master-done", (DONE, RUNS, DONE, None), "rank/job-0 is done"),
        ("master-done", (RUNS, DONE, RUNS), None),
        ("master-done", (STOPS, DONE, RUNS), None),
        ("master-done", (None, DONE, RUNS), None),
    ],
)
def test_a_gang_stops_when_one_has_failed_or_when_rank_0_is_done_and_that_is_enough(
    criteria: str | None, states: Sequence[RankState | None], cause: str | None
) -> None:
    """Those that are known to go on. What nobody has seen yet is left to who started it."""
    stopped = {f"job-{i}" for i, s in enumerate(states) if s is RUNS}
    expected = dict.fromkeys(stopped, RankStatus(state=STOPS, cause=cause)) if cause else {}
    assert gang_stops(gang(*states, stop_criteria=criteria)) == expected


@pytest.mark.parametrize(
    ("intent", "why"),
    [
        (asked("create", "rank/job-2"), "whether it did is not known"),
        (asked("delete", "rank/job-2"), "the apply that began it was cut short"),
        (asked("create", "rank/job-3"), "the apply that began it was cut short"),
        (None, "the apply that began it was cut short"),
    ],
)
@pytest.mark.parametrize(
    ("nodes", "starts", "late"),
    [
        (4, (0.0, START_LIMIT), True),
        (4, (0.0, None), True),
        (4, (1.0, 1.0), False),
        (4, (None, None), False),
        (2, (0.0, 0.0), False),
    ],
)
def test_who_has_waited_too_long_for_siblings_stops(
    intent: Intent | None, why: str, nodes: int, starts: Sequence[float | None], late: bool
) -> None:
    """The time counts from the start of the first. A whole gang waits for nobody, and what has ended stays
    as it ended.
    """
    ranks = [member(i, nodes, outputs={} if at is None else {STARTED: at}) for i, at in enumerate(starts)]
    state = State(
        records={r.address: r for r in ranks},
        ranks={"job-1": RankStatus(state=DONE)},
        intents=(intent,) if intent else (),
    )
    cause = f"rank/job-2 did not start within 10 minutes: {why}"
    expected = {"job-0": RankStatus(state=STOPS, cause=cause)} if late else {}
    assert half_started(state, START_LIMIT + 1.0) == expected
    assert half_started(state, START_LIMIT) == {}


# ------------------------------------------------------------------------------------ how they end


class Ending(Cloud):
    """A backend that says of each rank that it ended so."""

    ended: RankStatus | None

    def stop(self, node: Record, attempt: str, grace: float) -> RankStatus | None:
        super().stop(node, attempt, grace)
        return self.ended


@pytest.mark.parametrize(
    ("ended", "cause", "expected"),
    [
        (RankStatus(state=DONE), "why", RankStatus(state=DONE)),
        (RankStatus(state=STOPS, confinement="x"), "why", RankStatus(state=STOPS, cause="why")),
        (RankStatus(state=STOPS), None, RankStatus(state=STOPS, cause="stopped")),
        (None, "why", RankStatus(state=LOST, cause="node/gpu-0 knows nothing of it")),
    ],
)
def test_a_rank_that_is_stopped_ends_as_its_node_says(
    writer: Writer, ended: RankStatus | None, cause: str | None, expected: RankStatus
) -> None:
    lived(writer)
    cloud: Any = Ending()
    cloud.ended = ended
    assert stop_rank(writer.state(), cloud, "train-0", cause) == expected
    assert cloud.asked == [("stop", "train-0")]


def test_nothing_is_known_of_a_rank_that_cannot_be_asked(writer: Writer) -> None:
    lived(writer)
    state = writer.state()
    refusing: Any = Cloud(fails={"stop": REFUSED})
    assert stop_rank(state, refusing, "train-0", "why") is None
    assert refusing.asked == [("stop", "train-0")]
    for gone in (RANK, NODE, PLACE):
        nobody: Any = Cloud()
        assert stop_rank(state.without([gone]), nobody, "train-0", "why") is None
        assert nobody.asked == []


@pytest.mark.parametrize(
    ("before", "silent", "after"), [(RUNS, (), STOPS), (RUNS, ("gpu-0",), RUNS), (DONE, (), DONE)]
)
def test_a_stop_asks_the_nodes_that_answer_and_is_noted_for_all(
    writer: Writer, before: RankState, silent: Sequence[str], after: RankState
) -> None:
    """What runs is asked to end, and gives back what it held. A silent node is not waited for: who finds
    that it answers again stops what runs there.
    """
    lived(writer, rank=before)
    cloud: Any = Cloud()
    heard: dict[str, RankStatus] = {}
    stop_task(writer, cloud, "train", lambda: NOW, heard.__setitem__, silent=silent)
    state = writer.state()
    stopped = after is STOPS
    assert state.ranks["train-0"].state is after
    assert state.records[RANK].outputs[STOPPED]
    assert [ask for ask in cloud.asked if ask[0] == "stop"] == [("stop", "train-0")] * stopped
    assert heard == ({"train-0": RankStatus(state=STOPS, cause="stopped by the user")} if stopped else {})
    assert (PLACE in state.records) is (after is RUNS)


@pytest.mark.parametrize(
    ("recorded", "started", "stopped"),
    [
        ((), (), {0, 1, 2}),
        ((member(0, 3),), (), {1, 2}),
        ((member(0, 2), member(1, 2)), (), set()),
        ((member(0, 1, "other"),), (2,), {0, 1}),
    ],
)
def test_a_rank_that_never_started_is_recorded_as_stopped(
    writer: Writer, recorded: Sequence[Record], started: Sequence[int], stopped: set[int]
) -> None:
    """So that it does not start later. One whose start may have come to pass is not, nor one that the gang
    that is recorded does not have.
    """
    for rank in recorded:
        writer.adopt(rank)
        writer.observe_ranks({rank.address.name: RankStatus(state=DONE)})
    for number in started:
        writer.begin("create", Address("rank", f"job-{number}"), "local", {})
    want = TaskWant(spec=spec(Task, {"name": "job", "commands": ["true"], "nodes": 3}))
    cloud: Any = Cloud()
    heard: dict[str, RankStatus] = {}
    stop_task(writer, cloud, "job", lambda: NOW, heard.__setitem__, want=want)
    state = writer.state()
    before = {rank.address for rank in recorded}
    made = {address.name for address in state.records if address not in before}
    assert made == heard.keys() == {f"job-{number}" for number in stopped}
    assert all(state.ranks[name].state is STOPS for name in made)
    assert all(state.records[Address("rank", name)].outputs == {STOPPED: True} for name in made)


def test_a_stop_that_is_cut_short_is_one_for_what_it_has_recorded(writer: Writer) -> None:
    """Else the next command would take the rank for one that may run again."""

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    want = TaskWant(spec=spec(Task, {"name": "job", "commands": ["true"], "nodes": 3}))
    cloud: Any = Cloud()
    with pytest.raises(KeyboardInterrupt):
        stop_task(writer, cloud, "job", lambda: NOW, cut, want=want)
    (rank,) = writer.state().of("rank")
    assert rank.outputs == {STOPPED: True}


# ------------------------------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("states", "words", "printed", "going"),
    [
        ((), {"retry": True}, "", []),
        ((STOPS, STOPS), {"retry": True}, "task/job is stopped.\n", []),
        ((FAILED,), {}, "task/job has failed.\n", []),
        ((FAILED,), {"retry": True}, "task/job has failed, and does not start again by itself.\n", []),
        ((RUNS, DONE), None, "task/job is running.\n", ["job-0"]),
    ],
)
@pytest.mark.parametrize("unknown", [False, True])
def test_a_stop_says_what_became_of_the_task_and_what_may_go_on(
    capsys: pytest.CaptureFixture[str],
    states: Sequence[RankState],
    words: Mapping[str, Any] | None,
    printed: str,
    going: list[str],
    unknown: bool,
) -> None:
    """What could not be stopped, and each start whose result is not known, with what to type next."""
    want = None
    if words is not None:
        want = TaskWant(spec=spec(Task, {"name": "job", "commands": ["true"], **words}))
    others = (asked("update", "rank/job-0"), asked("create", "rank/jobs-0"))
    start = (asked("create", "rank/job-7"),) if unknown else ()
    state = replace(gang(*states), intents=(*others, *start))
    assert _report_stop(state, "job", {}, want, 0.0) == [*going, *(str(i.address) for i in start)]
    screen = capsys.readouterr()
    assert screen.out == printed
    assert [line for line in screen.err.splitlines() if "fleetform st" in line] == screen.err.splitlines()
    assert len(screen.err.splitlines()) == len(going) + unknown


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site(Market())
    yield made
    made.close()


def test_a_stop_has_the_cloud_end_a_node_that_is_given_up(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what runs there would go on for as long as nobody applies."""
    desired = declared(tasks=[{"name": "job", "resources": {"gpu": 8}}])
    assert site.apply(desired)
    with site.store.lock("test") as writer:
        writer.note({NODE: {SILENT: 0.0}})
    site.market.states = {"gpu-0": Readiness(state=NodeState.UNREACHABLE, observed_at=site.time)}
    (tmp_path / "main.yaml").write_text(json.dumps({"type": "task", "name": "job", "commands": ["true"]}))
    monkeypatch.setattr(ProjectSession, "backends", lambda *_: site.backends(desired))
    monkeypatch.setattr(site.market, "offers", lambda: pytest.fail("a stop needs no offers"))
    done = CliRunner().invoke(cli, ["-C", str(tmp_path), "stop", "job", "--state", site.url])
    assert (done.exit_code, done.stdout) == (0, "task/job is lost.\n"), done.output
    assert list(site.market.nodes()) == ["gpu-1"]
