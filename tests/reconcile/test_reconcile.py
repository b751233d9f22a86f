"""`fleetform reconcile`: does without a person what a person would do with `apply`, within its limits."""

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from declarative.apply import execute, ranks
from declarative.model.status import NodeState, RankState, Readiness
from declarative.store import open_store
from tests.support.cli import (
    Process,
    Project,
    ended,
    events_of,
    fleet,
    hold,
    kill_ranks,
    lines,
    release,
    task,
    until,
    volume,
)
from tests.support.rounds import Clock, Here

FAST = {"interval": "1s"}


def project_document(**reconcile: Any) -> dict[str, Any]:
    return {"type": "project", "name": "lab", "reconcile": {**FAST, **reconcile}}


@pytest.fixture
def project(tmp_path: Path):
    made = Project(tmp_path)
    yield made
    made.clean_up()


class Log:
    """The output of a loop so far."""

    def __init__(self, project: Project, *args: str) -> None:
        self.file = project.path.parent / f"{project.path.name}.log"
        with self.file.open("w") as out:
            self.process: Process = project.start("reconcile", "--json", *args, stdout=out, stderr=out)

    def text(self) -> str:
        return self.file.read_text()

    def says(self, text: str) -> None:
        until(lambda: text in self.text(), f"{text!r} in\n{self.text()}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        os.kill(self.process.pid, number)
        return self.process.wait(60)


def waiting(project: Project) -> dict[str, dict[str, Any]]:
    """What waits for approval, by its first action."""
    found = project.run("approve", "--json").json["waiting"]
    return {item["actions"][0]: item for item in found}


# ------------------------------------------------------------------------------------------ one round


def test_a_round_does_what_apply_does(project: Project):
    project.declare(fleet(nodes=2), task("hello", "true"))
    project.run("reconcile", "--once")
    assert project.ranks("hello")[0]["attempt"] == 1
    assert project.ids() == []


def test_a_gang_that_fails_while_a_node_starts_is_stopped_at_once(project: Project, monkeypatch):
    """The round waits for the node. What fails elsewhere meanwhile does not."""
    monkeypatch.setattr(ranks, "FIRST_LOOK", 0.05)
    fails, up = project.path / "fails", threading.Event()
    wait = (
        f"[ $FLEETFORM_NODE_RANK = 1 ] || exec sleep 1000; until [ -e {fails} ]; do sleep 0.05; done; exit 3"
    )
    pair = (fleet(nodes=2), task("pair", wait, nodes=2, fleets=["gpu"]))
    project.declare(project_document(), *pair)
    real = execute.observe

    def readiness(record, tools):
        found = real(record, tools)
        return (
            found if up.is_set() else Readiness(state=NodeState.PROVISIONING, observed_at=found.observed_at)
        )

    def meanwhile() -> bool:
        try:
            fails.touch()
            with open_store("sqlite:///.fleetform/state.db", root=project.path) as store:
                until(lambda: (s := store.read().ranks["pair-0"]).state is RankState.STOPPED and s.cause)
                return not store.read().ranks.get("late-0")
        finally:
            up.set()

    here = Here(project.path, Clock())
    try:
        assert all(result.outcome == "done" for result in here.step().results)
        monkeypatch.setattr(execute, "observe", readiness)
        project.declare(
            project_document(), *pair, fleet("more", nodes=1), task("late", "true", fleets=["more"])
        )
        with ThreadPoolExecutor(1) as pool:
            before = pool.submit(meanwhile)
            done = here.step(1)
        assert before.result()
        assert "create:rank/late-0" in {result.id for result in done.results if result.outcome == "done"}
    finally:
        here.close()


def test_a_round_with_nothing_to_do_says_nothing(project: Project):
    project.declare(fleet(nodes=1))
    project.run("reconcile", "--once")
    done = project.run("reconcile", "--once")
    assert (done.out, done.err) == ("", "")


def test_a_broken_file_is_an_error_of_a_single_round(project: Project):
    project.declare(fleet(nodes="many"))
    done = project.run("reconcile", "--once", code=1)
    assert "main.yaml:" in done.err


def test_what_is_not_allowed_waits_until_it_is_approved(project: Project):
    """A volume that is declared no more is not deleted by a loop; once approved it is, and once only."""
    project.declare(fleet(nodes=1), volume())
    project.run("reconcile", "--once")
    project.declare(fleet(nodes=1))
    said = project.run("reconcile", "--once").err
    assert project.data("data").exists()
    digest = waiting(project)["delete:volume/data"]["digest"]
    assert f"fleetform approve {digest}" in said
    project.run("approve", digest)
    assert waiting(project)["delete:volume/data"]["approved_at"] is not None
    project.run("reconcile", "--once")
    assert not project.data("data").exists()
    assert waiting(project) == {}


def test_what_nobody_approved_waits_in_every_round(project: Project):
    """That its digest is written down, so that somebody may approve it, is no approval."""
    project.declare(fleet(nodes=1), volume())
    project.run("reconcile", "--once")
    project.declare(fleet(nodes=1))
    for _ in range(3):
        project.run("reconcile", "--once")
        assert project.data("data").exists()
        assert waiting(project)["delete:volume/data"]["approved_at"] is None


def test_an_approval_is_of_these_actions_alone(project: Project):
    """What is added after it waits for an approval of its own, and holds the approved back in nothing."""
    project.declare(fleet(nodes=1), volume("one"), volume("two"))
    project.run("reconcile", "--once")
    project.declare(fleet(nodes=1), volume("two"))
    project.run("reconcile", "--once")
    project.run("approve", waiting(project)["delete:volume/one"]["digest"])
    project.declare(fleet(nodes=1))
    project.run("reconcile", "--once")
    assert not project.data("one").exists()
    assert project.data("two").exists()
    assert list(waiting(project)) == ["delete:volume/two"]


def test_a_digest_of_which_nothing_waits_is_refused(project: Project):
    project.declare(fleet(nodes=1))
    project.run("reconcile", "--once")
    assert "unknown-digest" in project.run("approve", "sha256:00", code=1).err


def test_a_running_task_is_replaced_only_once_approved(project: Project):
    ran = project.path / "ran"
    project.declare(fleet(nodes=1), task("train", hold(ran)))
    project.run("reconcile", "--once")
    project.declare(fleet(nodes=1), task("train", hold(ran), env={"A": "1"}))
    project.run("reconcile", "--once")
    assert project.ranks("train")[0]["attempt"] == 1
    (found,) = waiting(project).values()
    assert {"delete:rank/train-0", "create:rank/train-0"} <= set(found["actions"])
    project.run("approve", found["digest"].removeprefix("sha256:")[:12])
    project.run("reconcile", "--once")
    assert project.ranks("train")[0]["attempt"] == 2


def test_what_neither_list_names_is_only_shown(project: Project):
    project.declare(project_document(allow=["idle"], approve=["delete"]), fleet(nodes=1))
    said = project.run("reconcile", "--once").err
    assert "node/gpu-0 (create) is left to people" in said
    assert waiting(project) == {}
    assert project.status()["nodes"] == []


def test_what_is_allowed_takes_along_what_it_needs(project: Project):
    """A retry gets the node that it needs, although nothing else may be made."""
    rules = project_document(allow=["retry"], approve=[])
    project.declare(fleet(nodes="0..2", idle_duration=0), task("job", "exit 1", retry=True))
    project.apply()
    until(lambda: project.ranks("job")[0]["state"] == "failed")
    project.declare(rules, fleet(nodes="0..2"), task("job", "exit 1", retry=True), task("new", "true"))

    def again() -> bool:
        project.run("reconcile", "--once")
        return bool(project.ranks("job")[0]["attempt"] > 1)

    until(again)
    assert project.ranks("new")[0]["attempt"] == 0


def test_a_protected_thing_holds_nothing_else_up(project: Project):
    project.declare(fleet(nodes=1), volume(prevent_destroy=True))
    project.apply()
    project.declare(fleet(nodes=2))
    said = project.run("reconcile", "--once").err
    assert "volume/data (delete) is protected" in said
    assert project.data("data").exists()
    assert len(project.status()["nodes"]) == 2


def test_a_budget_counts_across_restarts(project: Project):
    """Two nodes in an hour: a new process does not begin to count anew."""
    rules = project_document(budgets=[{"nodes": 2, "per": "1h", "reasons": ["idle"]}])
    project.declare(rules, fleet(nodes=5))
    project.run("reconcile", "--once")
    project.declare(rules, fleet(nodes="0..5", idle_duration=0))
    for _ in range(3):
        said = project.run("reconcile", "--once").err
    assert len(project.status()["nodes"]) == 3
    assert "waits for a budget: 2 nodes in 1h" in said
    assert waiting(project) == {}


def test_a_budget_without_a_time_is_of_each_round(project: Project):
    rules = project_document(budgets=[{"nodes": 2}, {"nodes": 1, "reasons": ["create"]}])
    project.declare(rules, fleet(nodes=3))
    counts = []
    for _ in range(3):
        project.run("reconcile", "--once")
        counts.append(len(project.status()["nodes"]))
    assert counts == [1, 2, 3]


def test_a_missing_variable_holds_its_task_and_no_other(project: Project):
    project.declare(fleet(nodes=1), task("one", "true", env=["FLEETFORM_TEST_X"]), task("two", "true"))
    said = project.run("reconcile", "--once").err
    assert "task/one (create) lacks the environment variable `FLEETFORM_TEST_X`" in said
    assert project.ranks("two")[0]["attempt"] == 1


# ------------------------------------------------------------------------------------------- the loop


def test_the_loop_runs_until_it_is_told_to_stop(project: Project):
    project.declare(project_document(), fleet(nodes=1), task("hello", "true"))
    log = Log(project)
    until(lambda: project.ranks("hello")[0]["state"] == "succeeded")
    assert log.stop() == 0
    project.no_changes()


def test_a_gang_stops_at_its_first_failure_long_before_the_next_round(project: Project):
    fails, ran = project.path / "fails", project.path / "ran"
    commands = f"if [ $FLEETFORM_NODE_RANK = 0 ]; then {release(fails)}; exit 3; fi\n{hold(ran)}"
    project.declare(project_document(interval="1h"), fleet(nodes=2), task("gang", commands, nodes=2))
    log = Log(project)
    until(lambda: lines(ran))
    fails.touch()
    until(lambda: [r["state"] for r in project.ranks("gang").values()] == ["failed", "stopped"])
    assert log.stop() == 0


def test_a_task_that_failed_runs_again_when_it_is_time_and_not_at_the_next_round(project: Project):
    ran = project.path / "ran"
    again = task("job", f"echo >> {ran}; [ $(wc -l < {ran}) = 2 ]", retry=True)
    project.declare(project_document(interval="1h"), fleet(nodes=1), again)
    log = Log(project)
    until(lambda: project.ranks("job")[0]["state"] == "succeeded")
    assert len(lines(ran)) == 2
    assert log.stop() == 0


def test_a_file_that_changes_is_taken_up_and_a_broken_one_is_told_once(project: Project):
    project.declare(project_document(), fleet(nodes=1))
    log = Log(project)
    until(lambda: len(project.status()["nodes"]) == 1)
    project.declare(project_document(), fleet(nodes="many"))
    log.says("what they declared before holds")
    kill_ranks(project.path)
    project.declare(project_document(), fleet(nodes=1), task("hello", "true"), file="more.yaml")
    until(lambda: log.text().count("main.yaml:") >= 1)
    project.declare(project_document(), fleet(nodes=2))
    (project.path / "more.yaml").unlink()
    until(lambda: len(project.status()["nodes"]) == 2)
    log.says("have no errors any more")
    assert log.stop() == 0


def test_a_task_that_fails_runs_again_later_and_later(project: Project):
    ran = project.path / "ran"
    project.declare(project_document(), fleet(nodes=1), task("job", f"echo >> {ran}; exit 1", retry=True))
    log = Log(project)
    until(lambda: len(lines(ran)) == 2)
    log.says("runs again later")
    assert log.stop() == 0


def test_no_node_is_made_for_a_task_that_runs_again_later(project: Project):
    """The place of `job` is taken while it waits: a node that was made at once would be idle until then."""
    job = {**gang("job"), "commands": ["exit 1"], "retry": True}
    project.declare(project_document(), fleet(nodes="0..2"), job)
    here = Here(project.path, Clock())
    try:
        here.step()
        until(lambda: project.ranks("job")[0]["state"] == "failed")
        first = {**gang("first"), "commands": ["sleep 600"], "priority": 9}
        project.declare(project_document(), fleet(nodes="0..2"), job, first)
        done = here.step()
        assert [str(a.address) for a in done.actions if a.op == "create"] == [
            "reservation/first-0",
            "rank/first-0",
        ]
        assert {w.address for w in done.waits} == {"task/job", "node/gpu-1"}
        assert "node/gpu-1" in {str(a.address) for a in here.step(after=60.0).actions}
    finally:
        here.close()


def test_people_apply_and_stop_beside_it(project: Project):
    """Neither waits long, and the loop takes back nothing of what they did."""
    ran = project.path / "ran"
    project.declare(project_document(), fleet(nodes=1), task("train", hold(ran)))
    log = Log(project)
    until(lambda: project.ranks("train")[0]["state"] == "running")
    project.run("stop", "train")
    project.apply()
    project.run("stop", "train")
    assert project.ranks("train")[0]["state"] == "stopped"
    assert log.stop() == 0
    assert project.ranks("train")[0]["attempt"] == 1


def test_of_two_loops_one_acts_and_the_other_takes_over(project: Project):
    project.declare(project_document(), fleet(nodes=1))
    first = Log(project)
    until(lambda: len(project.status()["nodes"]) == 1)
    second = project.start("reconcile", "--json")
    project.declare(project_document(), fleet(nodes=2))
    until(lambda: len(project.status()["nodes"]) == 2)
    first.process.kill()
    project.declare(project_document(), fleet(nodes=3))
    until(lambda: len(project.status()["nodes"]) == 3)
    os.kill(second.pid, signal.SIGTERM)
    done = ended(second)
    made = [e["address"] for e in events_of(done.out) if e["event"] == "action" and e.get("state") == "done"]
    assert made in ([], ["node/gpu-2"])
    assert json.loads(done.out.splitlines()[0])["event"] == "plan"


# ------------------------------------------------------------------------------------------ limits


def test_what_goes_beyond_a_limit_waits_and_the_rest_goes_on(project: Project):
    """The second task needs a third node, and two are allowed."""
    limited = {**project_document(), "limits": {"nodes": 2}}
    project.declare(
        limited, fleet(nodes="0..4"), volume(name="data"), *(gang(name) for name in ("one", "three", "two"))
    )
    found = project.run("reconcile", "--once", "--json")
    assert len(project.status()["nodes"]) == 2
    assert [v["name"] for v in project.status()["volumes"]] == ["data"]
    waits = [e for e in events_of(found.out) if e["event"] == "wait"]
    assert any("there would be 3 nodes; the limit is 2: fleet/gpu 3" in e["why"] for e in waits)
    assert {e["address"] for e in waits} == {"node/gpu-2", "task/two"}


def gang(name: str) -> dict[str, Any]:
    """A task that takes a whole node."""
    return {**task(name, "true"), "exclusive": True}
