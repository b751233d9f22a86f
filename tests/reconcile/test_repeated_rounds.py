"""Rounds in which nothing has changed are repeated; all others plan as a cold command does."""

import functools
import gc
import json
import math
import os
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from declarative.apply import backend_look
from declarative.apply.ranks import poll
from declarative.converge import run as converge_run
from declarative.model.resource import Desired
from declarative.model.state import State
from declarative.planner.make import make_plan
from declarative.reconcile.repeatable import Moment
from declarative.render.output_json import to_json
from declarative.render.plan_document import plan_json
from declarative.store.records import SEEN_ANEW
from providers.local import folders
from tests.laws.test_planner import LAW, SEEDS, declared, lived
from tests.support.cli import Project, fleet, kill_ranks, task, until, volume
from tests.support.examples import examples
from tests.support.model import set_limits
from tests.support.rounds import Clock, Here
from tests.support.strategies import pairs

DAY = 86400.0


# ------------------------------------------------------------------------------------------ the time


@pytest.mark.parametrize(
    ("use", "seconds"),
    [
        (lambda now: now >= 1060, 60),
        (lambda now: now < 1060, 60),
        (lambda now: now - 900 < 150, 50),
        (lambda now: now + 10 == 1060, 50),
        (lambda now: max(now, 1030), 30),
        (lambda now: (now < 1030, now < 1060), 30),
        (lambda now: (now < 1060, now < 1030), 30),
        (lambda now: now > 900, math.inf),
        (lambda now: sorted([now - 3, now - 5]), math.inf),
        (lambda now: now != 1000, 0),
        (lambda now: 1060 - now, 0),
        (lambda now: now - now, 0),
        (lambda now: now // 60, 0),
        (float, 0),
        (round, 0),
        (int, 0),
        (math.floor, 0),
        (lambda now: f"{now:.0f}", 0),
        (str, 0),
        (lambda now: {now: 1}, 0),
        (bool, 0),
    ],
)
def test_a_time_knows_how_long_its_uses_have_the_same_result(use, seconds):
    now = Moment(1000.0)
    result = use(now)
    assert seconds == now.seconds
    assert use(1000.0) == result


@pytest.mark.slow
@LAW
@given(pairs(), SEEDS, st.sampled_from((0.0, 0.3, 0.999)))
def test_a_plan_is_the_same_for_as_long_as_its_time_says(found, seed, part):
    world = lived(found[0], random.Random(seed))
    desired = declared(found[1])
    set_limits(world, desired)
    planned = functools.partial(make_plan, desired, world.state(), world.inventory(desired))
    now = Moment(world.now)
    plan = planned(now)
    assert planned(world.now) == plan
    if plan.result == "none":
        assert to_json(plan_json(plan)) == to_json(plan_json(planned(world.now)))
    event(f"holds: {now.seconds and 'for ever' if now.seconds == math.inf else bool(now.seconds)}")
    assert plan == planned(world.now + part * min(now.seconds, 10 * DAY))


# ------------------------------------------------------------------------------------------ the loop


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folders, "SETTLED", 0.05)
    made = Project(tmp_path)
    yield made
    made.clean_up()


class Loop(Here):
    """A loop that counts how often it looks at backends."""

    looks = 0

    def calm(self) -> None:
        """Make rounds until one looks at nothing."""

        def quiet() -> bool:
            before = self.looks
            assert self.step().errors == ()
            return self.looks == before

        until(quiet, "no round is calm")


@pytest.fixture
def loop(project: Project, monkeypatch: pytest.MonkeyPatch):
    project.declare(
        {"type": "project", "name": "lab", "reconcile": {"allow": ["create", "delete", "replace-lost"]}}
    )
    project.declare(fleet(nodes=3), volume("data"), file="things.yaml")
    made = Loop(project.path, Clock())
    look = backend_look.look

    def counted(*args, **options):
        made.looks += 1
        return look(*args, **options)

    monkeypatch.setattr(converge_run, "look", counted)
    yield made
    made.close()


def node(project: Project, name: str = "gpu-0") -> Path:
    return project.path / ".fleetform/local/nodes" / name


def damage(project: Project) -> None:
    """Change a file in place: neither its name nor its size."""
    file = node(project) / "fleetform.json"
    file.write_bytes(file.read_bytes()[::-1])


def renamed(project: Project) -> None:
    """Let the file say something else."""
    file = node(project) / "fleetform.json"
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, "token": data["token"][::-1]}))


AGAIN = {"on_events": ["error"], "duration": "1d"}
SLEEPER = "echo $$ > sleeper; while [ ! -e end ]; do sleep 0.05; done"


def folder(project: Project) -> Path:
    """Of the only rank that runs."""
    (pid,) = project.path.glob(".fleetform/local/nodes/*/work/hello-0.*/sleeper")
    return pid.parent


def killed(project: Project) -> None:
    """Kill the command of the only rank that runs, and wait until its runner has noted that it ended."""
    work = folder(project)
    os.kill(int((work / "sleeper").read_text()), signal.SIGKILL)
    until((work.parents[1] / "ranks" / work.name / "exit").exists, "it runs on")


CHANGES: dict[str, Callable[[Project], Any]] = {
    "nothing": lambda _: None,
    "more nodes": lambda p: p.declare(fleet(nodes=4), volume("data"), file="things.yaml"),
    "fewer nodes": lambda p: p.declare(fleet(nodes=2), volume("data"), file="things.yaml"),
    "another field": lambda p: p.declare(fleet(nodes=3, blocks=1), volume("data"), file="things.yaml"),
    "another thing": lambda p: p.declare(fleet(nodes=3), volume("data"), volume("more"), file="things.yaml"),
    "a task": lambda p: p.declare(fleet(nodes=3), volume("data"), task("hello", "true"), file="things.yaml"),
    "a task that runs": lambda p: p.declare(
        fleet(nodes=3), volume("data"), task("hello", SLEEPER, retry=AGAIN), file="things.yaml"
    ),
    "a rank that was killed": killed,
    "a file": lambda p: p.declare(fleet("other", nodes=1), file="other.yaml"),
    "no files": lambda p: (p.path / "things.yaml").write_text(""),
    "a drained node": lambda p: p.run("drain", "gpu-1"),
    "a forgotten record": lambda p: p.run("state", "rm", "--auto-approve", "node/gpu-2"),
    "a folder that is gone": lambda p: shutil.rmtree(node(p)),
    "a file that is gone": lambda p: (node(p) / "fleetform.json").unlink(),
    "a damaged file": damage,
    "another token": renamed,
    "a folder that cannot be used": lambda p: node(p).chmod(0o500),
    "a node that others made": lambda p: shutil.copytree(node(p), node(p, "gpu-7")),
    "an attempt that others started": lambda p: (node(p) / "ranks/hello-0.1").mkdir(),
    "a volume that is gone": lambda p: shutil.rmtree(p.path / ".fleetform/local/volumes/data"),
    "an apply": lambda p: (CHANGES["more nodes"](p), p.apply()),
}


def actions_of(plan) -> list[str]:
    return [action.id for action in plan.actions]


@pytest.mark.parametrize("change", [change for change in CHANGES if change != "a rank that was killed"])
def test_after_any_change_a_loop_plans_as_a_cold_command(project: Project, loop: Loop, change: str):
    loop.calm()
    CHANGES[change](project)
    cold = project.run("plan", "--json", code=None).json
    looks = loop.looks
    done = loop.step()
    if done.plan is None:  # an error: as the cold plan
        assert cold["result"] == "error" or done.errors
        return
    assert [action["id"] for action in cold["actions"]] == actions_of(done.plan)
    assert [d["code"] for d in cold["diagnostics"]] == [d.code for d in done.plan.diagnostics]
    assert (loop.looks > looks) == (change != "nothing")


@pytest.mark.slow
@settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=examples(8),
)
@given(st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), st.booleans()), min_size=1, max_size=6))
@example([("fewer nodes", False), ("more nodes", True), ("fewer nodes", True)])
@example([("a task that runs", True), ("a rank that was killed", True)])
def test_after_any_changes_a_loop_plans_as_a_cold_command(tmp_path_factory, changes):
    """Also where a change comes before the loop has become calm again, or is undone."""
    made = Project(tmp_path_factory.mktemp("calm"))
    made.declare(
        {"type": "project", "name": "lab", "reconcile": {"allow": ["create", "delete", "replace-lost"]}}
    )
    made.declare(fleet(nodes=3), volume("data"), file="things.yaml")
    loop, patch = Loop(made.path, Clock()), pytest.MonkeyPatch()
    patch.setattr(folders, "SETTLED", 0.05)
    try:
        loop.step()
        for change, at_rest in changes:
            for _ in range(20 if at_rest else 0):
                loop.step(5)
                if loop.rounds._repeatable:
                    break
            event(f"before {change}: {'calm' if loop.rounds._repeatable else 'not calm'}")
            try:
                CHANGES[change](made)
            except (OSError, ValueError, AssertionError):
                continue  # what it changes is not there any more
            cold = made.run("plan", "--json", code=None).json
            done = loop.step(5)
            if done.plan is not None and "actions" in cold:
                assert [action["id"] for action in cold["actions"]] == actions_of(done.plan)
    finally:
        patch.undo()
        loop.close()
        made.clean_up()


def test_a_calm_round_is_like_the_one_before(loop: Loop):
    loop.calm()
    first, looks = loop.step(5), loop.looks
    second = loop.step(5)
    assert looks == loop.looks
    assert first.status == second.status
    assert actions_of(first.plan) == actions_of(second.plan) == []
    assert (second.held, second.waits, second.errors) == (True, (), ())


ENDS: dict[str, Callable[[Project], Any]] = {
    "by itself": lambda p: (folder(p) / "end").touch(),
    "its command killed": killed,
    "all of it killed": lambda p: kill_ranks(p.path),
    "by a person": lambda p: p.run("stop", "hello"),
}


@pytest.mark.parametrize("end", [None, *ENDS])
def test_a_round_is_repeated_while_ranks_run_and_no_longer(project: Project, loop: Loop, end: str | None):
    """It may end at any time, and no mark shows that."""
    project.declare(fleet(nodes=3), volume("data"), task("hello", SLEEPER), file="things.yaml")
    until(lambda: loop.step().plan and [*project.path.rglob("sleeper")], "no rank")
    loop.calm()
    first, looks = loop.step(5), loop.looks
    if end is None:
        done = loop.step(5)
        assert (loop.looks, done.status, actions_of(done.plan)) == (looks, first.status, [])
        return
    state = loop.session.state.read_anew(None).read()
    backend = loop.session.backends(Desired(), state).get("local")
    ENDS[end](project)
    until(lambda: all(s.state.ended for s in poll(state, backend, state.of("node")).values()), "it runs on")
    assert [t.state for t in loop.seen(5).tasks] != ["running"]
    assert loop.looks > looks
    assert [t["state"] for t in project.status()["tasks"]] != ["running"]


def test_that_nodes_were_seen_is_recorded_without_a_look(project: Project, loop: Loop):
    loop.calm()
    looks = loop.looks
    store = loop.session.state.read_anew(None)
    before = store.read().readiness
    done = loop.step(SEEN_ANEW + 1)
    after = store.read().readiness
    assert looks == loop.looks
    assert all((before[name].observed_at or 0) < (seen.observed_at or 0) for name, seen in after.items())
    assert before == {n: replace(s, observed_at=before[n].observed_at) for n, s in after.items()}
    assert done.status == loop.step(5).status
    assert "sound" in project.run("state", "check").out


def test_a_node_is_deleted_as_idle_when_its_time_has_come(project: Project, loop: Loop):
    """The time is a change as well."""
    project.declare({"type": "project", "name": "lab"})
    project.declare(fleet(nodes="0..2", idle_duration="1h"), task("hello", "true"), file="things.yaml")
    until(lambda: loop.seen().nodes and project.ranks("hello")[0]["state"] == "succeeded", "no rank")
    loop.calm()
    assert actions_of(loop.step(600).plan) == []
    assert actions_of(loop.step(3600).plan) == ["delete:node/gpu-0"]


def test_what_was_made_outside_the_loop_is_seen_while_it_is_made(project: Project, loop: Loop):
    """A writer that was killed leaves no seal: nothing is taken for unchanged then."""
    loop.calm()
    with loop.session.store(write=True).lock("test", 0.0) as writer:
        writer.set_idle("gpu-0", 1.0)
        looks = loop.looks
        assert loop.rounds.session.store().seal() is None
    loop.step()
    assert looks < loop.looks


def test_a_round_leaves_no_state_behind(project: Project, loop: Loop):
    """A state of thousands of records that waits for Python's collector makes the process grow."""

    def states() -> int:
        return sum(isinstance(found, State) for found in gc.get_objects())

    loop.step()
    gc.collect()
    gc.disable()
    try:
        counts = []
        for number in range(4):
            (node(project) / f"touched-{number}").touch()
            loop.step(5)
            counts.append(states())
    finally:
        gc.enable()
    assert counts[1:] == counts[1:2] * 3
