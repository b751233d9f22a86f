"""What the loop does not do says what a person can do: an entry to write, or the command that goes on."""

import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.cli.run_output import LoopOutput
from declarative.model.spec.project import Budget, Cause, Limits, Reconcile
from declarative.model.state import Address
from declarative.model.status import NodeState, RankState
from declarative.reconcile.loop import Wait
from declarative.reconcile.permission import Backoff
from declarative.store.journal import Permit
from tests.support.cli import Project, fleet, task
from tests.support.model import World
from tests.support.model import project as declared
from tests.support.rounds import chosen

PAIR = {"name": "pair", "nodes": 2, "resources": {"cpu": 2}}
TRAIN = {"name": "train", "resources": {"cpu": "1.."}, "retry": True}
NO_LIMITS = Limits()
DATA = {"name": "data", "size": "2GB", "prevent_destroy": False}


def wanted(fleets=(PAIR,), volumes=(DATA,), tasks=(TRAIN,), limits=NO_LIMITS, **rules):
    found = declared(fleets=fleets, volumes=volumes, tasks=tasks)
    return replace(found, project=replace(found.project, limits=limits, reconcile=Reconcile(**rules)))


def brought():
    world = World()
    world.apply(world.plan(wanted()))
    return world


def steps(found, address):
    (wait,) = [w for w in found.waits if w.address == address]
    return wait.steps


def test_each_reason_has_its_step():
    world = brought()
    less = wanted((PAIR,), ())
    digest = next(w.digest for w in chosen(world, less).waits)
    assert steps(chosen(world, less), "volume/data") == f"`fleetform approve {digest}`"
    only = wanted((PAIR,), (), allow=(Cause.CREATE,), approve=(Cause.RETRY,))
    by_hand = "to do it now: `fleetform apply --target {}`"
    assert steps(chosen(world, only), "volume/data") == by_hand.format("volume/data")
    budgets = (Budget(nodes=0, reasons=(Cause.CREATE,)),)
    more = wanted(({**PAIR, "nodes": 3},), budgets=budgets)
    assert steps(chosen(world, more), "node/pair-2") == by_hand.format("node/pair-2")
    beyond = wanted(({**PAIR, "nodes": 3},), limits=Limits(nodes=2))
    assert steps(chosen(world, beyond), "node/pair-2") == "declare less, or raise `limits.nodes`"
    lacking = {"task/more": "lacks the environment variable `X`"}
    two = wanted(tasks=(TRAIN, {**TRAIN, "name": "more"}))
    assert "start the loop again" in steps(chosen(world, two, lacking=lacking), "task/more")
    backoff = Backoff()
    backoff.failed("node/pair-2", "no such image", world.now)
    more = wanted(({**PAIR, "nodes": 3},))
    assert steps(chosen(world, more, backoff=backoff), "node/pair-2") == by_hand.format("node/pair-2")


def test_a_node_that_may_be_busy_and_one_that_was_replaced_too_often():
    world = World()
    world.apply(world.plan(wanted(tasks=())))
    world.sick["pair-1"] = NodeState.UNKNOWN
    fewer = wanted((), tasks=(), allow=tuple(Cause))
    assert steps(chosen(world, fewer), "node/pair-1").startswith(
        "it is deleted once it answers; to do it now"
    )
    del world.sick["pair-1"]
    world.gone.add(Address("node", "pair-1"))
    again = [Permit(address="node/pair-1", cause="replace-lost", at=world.now - n) for n in range(3)]
    found = chosen(world, wanted(tasks=()), before=again)
    assert steps(found, "node/pair-1").startswith("raise `replacements_per_day`; to do it now")


def test_a_volume_that_is_gone():
    world = brought()
    world.gone.add(Address("volume", "data"))
    assert "`fleetform apply --replace volume/data`" in steps(chosen(world, wanted()), "volume/data")


CAUSES = st.lists(st.sampled_from(Cause), unique=True).map(tuple)
SIZES = st.integers(0, 3)


@given(
    allow=CAUSES,
    approve=CAUSES,
    nodes=SIZES,
    kept=st.booleans(),
    budget=st.none() | SIZES,
    most=st.none() | SIZES,
    sick=st.sets(st.sampled_from(["pair-0", "pair-1"])),
    gone=st.sets(st.sampled_from(["node/pair-0", "node/pair-1", "volume/data"])),
    changed=st.booleans(),
    failed=st.booleans(),
)
def test_whatever_waits_says_what_a_person_can_do(
    allow, approve, nodes, kept, budget, most, sick, gone, changed, failed
):
    """Each step is an entry or a command in backticks, or a thing to set."""
    world = brought()
    if failed:
        world.end("train-0", RankState.FAILED)
    world.settle()
    world.sick |= dict.fromkeys(sick, NodeState.UNKNOWN)
    world.gone |= {Address.parse(address) for address in gone}
    budgets = () if budget is None else (Budget(nodes=budget),)
    desired = wanted(
        ({**PAIR, "nodes": nodes},),
        (DATA,) if kept else (),
        ({**TRAIN, "commands": ["false"]} if changed else TRAIN,),
        limits=Limits(nodes=most),
        allow=allow,
        approve=tuple(c for c in approve if c not in allow),
        budgets=budgets,
    )
    for wait in chosen(world, desired).waits:
        assert re.search(r"`fleetform |`limits\.|`removed:|`moved:", wait.steps), wait


def test_the_output_has_the_steps(capsys):
    wait = Wait(address="node/pair-0", action="idle", why="waits for a budget", hint="to do it now: `x`")
    both = replace(wait, address="node/pair-1", digest="sha256:00")
    LoopOutput(Mock(), as_json=False).waits((wait, both))
    first, second = capsys.readouterr().err.splitlines()
    assert first == "node/pair-0 (idle) waits for a budget; to do it now: `x`"
    assert second.endswith("now: `x`; to do it all the same: `fleetform approve sha256:00`")


# ------------------------------------------------------------------------------- a start that failed


@pytest.mark.parametrize(
    ("command", "again"),
    [
        (("apply", "--auto-approve"), "the next `fleetform apply` tries again"),
        (("reconcile", "--once"), "the loop tries again by itself"),
    ],
)
def test_status_says_what_failed_of_a_first_start(tmp_path: Path, command, again):
    project = Project(tmp_path)
    try:
        project.declare(fleet(nodes=1), task("train", "true"))
        nodes = project.local / "nodes"
        nodes.parent.mkdir(parents=True, exist_ok=True)
        nodes.write_text("in the way")
        project.run(*command, code=4)
        (found,) = project.status()["tasks"]
        assert found["cause"].startswith("its start failed: create node/gpu-0: ")
        assert found["cause"].endswith(f"; {again}")
        assert found["waiting_since"]
        assert again in project.run("status").out
        nodes.unlink()
        project.run("apply", "--auto-approve")
        (found,) = project.status()["tasks"]
        assert (found["waiting_since"], "its start failed" in str(found["cause"])) == (None, False)
    finally:
        project.clean_up()
