"""When a loop may repeat its last round: each condition by itself.

`test_repeated_rounds` has the loop, and all changes that end its calm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from declarative.apply.backend_look import Observation
from declarative.model.diagnostic import Diagnostic
from declarative.model.state import Address, Intent, Record, Spent, State
from declarative.model.status import NodeState, RankState, RankStatus, Readiness, Silence
from declarative.planner.inventory import Inventory
from declarative.provider import TransientError, TransientKind
from declarative.reconcile.loop import Round
from declarative.reconcile.repeatable import Moment, RepeatableRound, lasts, marks_of, settled
from declarative.store.records import SEEN_ANEW
from tests.planner.test_permit import PAIR, wanted
from tests.support.model import World

NODE = Address("node", "pair-0")
READY = Readiness(state=NodeState.READY, observed_at=10.0)
OPEN = Intent(id=1, op="create", address=NODE, backend="local", generation=1, token="t", inputs={})


class Places:
    """Backends with these marks; one that fails cannot be asked."""

    def __init__(self, **marks: Any) -> None:
        self.marks = marks

    def get(self, name: str) -> Any:
        mark = self.marks[name]

        def ask() -> Any:
            if isinstance(mark, Exception):
                raise mark
            return mark

        return SimpleNamespace(mark=ask)


def test_marks_are_of_all_backends_or_of_none() -> None:
    """One that cannot tell may have changed."""
    lost = TransientError(TransientKind.BUSY, "no answer")
    places: Any = Places(a=1, b=0, c=None, d=lost)
    assert marks_of(places, ["b", "a"]) == {"a": 1, "b": 0}
    assert marks_of(places, []) == {}
    for odd in ("c", "d"):
        assert marks_of(places, ["a", odd, "b"]) is None


def calm(**more: Any) -> Any:
    desired, places = wanted(), Places(local=1)
    store = SimpleNamespace(sealed="s", costs=Spent(month="2026-03", dollars=1.0, hours=2.0))
    store.seal = lambda: store.sealed
    store.spent = lambda: store.costs
    base: dict[str, Any] = {
        "desired": desired,
        "policy": "policy",
        "store": store,
        "seal": "s",
        "backends": places,
        "marks": {"local": 1},
        "state": State(lineage="l"),
        "since": 100.0,
        "until": 200.0,
        "due": 150.0,
        "round": None,
    }
    return RepeatableRound(**{**base, **more})


def test_it_holds_while_each_of_its_conditions_does() -> None:
    one = calm()
    assert one.holds(one.desired, "policy", 100.0)
    assert one.holds(wanted(), "policy", 199.0)
    assert not one.holds(one.desired, "policy", 200.0)
    assert not one.holds(one.desired, "policy", 99.0)  # the clock was set
    assert not one.holds(wanted([{**PAIR, "nodes": 3}]), "policy", 150.0)
    assert not one.holds(one.desired, "another", 150.0)
    assert calm(until=math.inf).holds(one.desired, "policy", 10.0**9)
    one.store.sealed = "another"
    assert not one.holds(one.desired, "policy", 150.0)
    for mark in (2, None):
        changed = calm()
        changed.backends.marks["local"] = mark
        assert not changed.holds(changed.desired, "policy", 150.0)


@pytest.mark.parametrize("fault", [False, True])
def test_it_ends_when_a_rank_cannot_be_asked(monkeypatch, fault: bool) -> None:
    """A rank may have ended on what does not answer."""

    def poll(*_: Any) -> dict[str, Any]:
        if fault:
            raise TransientError(TransientKind.BUSY, "no answer")
        return {}

    monkeypatch.setattr("declarative.reconcile.repeatable.poll", poll)
    monkeypatch.setattr("declarative.reconcile.repeatable.running", lambda _: {"local": [NODE]})
    one = calm()
    assert one.holds(one.desired, "policy", 150.0) is not fault


def test_a_repeated_round_is_the_same_with_what_was_spent_since() -> None:
    plan = World().plan(wanted())
    done = Round(number=1, at=0.0, duration=0.0, held=True, plan=plan)
    one = calm(round=done)
    again = one.repeated()
    assert again.plan is not None
    assert plan.preview.cost.spent != one.store.costs
    assert again.plan.preview.cost.spent == one.store.costs
    before = replace(plan, preview=replace(plan.preview, cost=again.plan.preview.cost))
    assert again == replace(done, plan=before)


# -------------------------------------------------------------------------- whether nothing is left to do


def test_a_round_is_settled_if_nothing_but_times_differs() -> None:
    world = World()
    world.apply(world.plan(wanted()))
    one = replace(world.state(), readiness={"pair-0": READY})
    assert settled(one, one)
    later = replace(READY, observed_at=99.0)
    assert settled(one, replace(one, readiness={"pair-0": later}))
    assert settled(one, replace(one, readiness={"pair-0": later, "pair-1": later}))
    silence = {"pair-0": Silence(since=1.0, until=None)}
    assert settled(one, replace(one, silent=silence))
    sick = replace(READY, state=NodeState.NOT_READY)
    assert not settled(one, replace(one, readiness={"pair-0": sick}))
    assert not settled(one, replace(one, readiness={"pair-1": READY}))
    assert not settled(one, replace(one, records={NODE: one.records[NODE]}))
    assert not settled(one, replace(one, serial=one.serial + 1))


def test_a_round_is_not_settled_with_an_open_call_or_a_rank_that_starts_or_is_sampled() -> None:
    """Though before it was the same."""
    one = State(lineage="l")
    assert settled(one, one)
    called = replace(one, intents=(OPEN,))
    assert not settled(called, called)
    for state in RankState:
        ranks = {"a-0": RankStatus(state=RankState.FAILED), "b-0": RankStatus(state=state)}
        for sampled in (False, True):
            policy = {"min_gpu_utilization": 10, "time_window": "5m"} if sampled else None
            ran = replace(one, ranks=ranks, records=dict(map(rank_of, ranks, (None, policy))))
            same = state.ended or (state is RankState.RUNNING and not sampled)
            assert settled(ran, ran) is same
            assert settled(ran, replace(ran)) is same


def rank_of(name: str, policy: Mapping[str, Any] | None) -> tuple[Address, Record]:
    """A recorded rank, whose GPUs are sampled if it has a policy."""
    address = Address("rank", name)
    task, number = name.rsplit("-", 1)
    more = {"utilization_policy": policy} if policy else {}
    inputs = {"task": task, "rank": int(number), "resources": {}, "commands": ["true"], **more}
    return address, Record(address=address, backend="local", inputs=inputs)


def seen(age: float = 0.0, **more: Any) -> tuple[Observation, State]:
    """A look, and what was recorded that many seconds before."""
    recorded = State(lineage="l", readiness={"pair-0": READY})
    now = replace(READY, observed_at=10.0 + age)
    return Observation(inventory=Inventory(readiness={"pair-0": now}, **more)), recorded


def test_observations_last_until_they_are_recorded_anew() -> None:
    assert lasts(*seen()) == SEEN_ANEW
    assert lasts(*seen(30.0)) == SEEN_ANEW - 30.0
    assert lasts(Observation(inventory=Inventory()), State(lineage="l")) == SEEN_ANEW
    found, recorded = seen(30.0)
    two = replace(found.inventory, readiness={**found.inventory.readiness, "pair-1": READY})
    both = replace(recorded, readiness={**recorded.readiness, "pair-1": READY})
    assert lasts(replace(found, inventory=two), both) == SEEN_ANEW - 30.0
    never = replace(READY, observed_at=None)
    unknown = replace(recorded, readiness={"pair-0": never})
    assert lasts(Observation(inventory=Inventory(readiness={"pair-0": never})), unknown) == SEEN_ANEW
    assert lasts(found, unknown) == SEEN_ANEW - 40.0
    assert (
        lasts(replace(found, inventory=Inventory(readiness={"pair-0": never})), recorded) == SEEN_ANEW + 10.0
    )


@pytest.mark.parametrize(
    "more",
    [
        {"gone": frozenset({NODE})},
        {"unsure": frozenset({NODE})},
        {"silent": {"pair-0": Silence(since=1.0, until=None)}},
        {"strays": {"pair-0": {0: "x"}}},
        {"taken": {"pair-0": ("x",)}},
        {"recovered": {NODE: "x"}},
        {"existing": {"pair": ("x",)}},
        {"diagnostics": (Diagnostic(code="x", summary="y", hint="z"),)},
        {"left_out": ("x",)},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_is_odd_may_change_by_itself(more: dict[str, Any]) -> None:
    assert lasts(*seen(**more)) is None


def test_what_a_look_has_found_of_calls_and_attempts_is_odd_as_well() -> None:
    found, recorded = seen()
    assert lasts(replace(found, resolutions=["x"]), recorded) is None  # type: ignore[list-item]
    assert lasts(replace(found, past={"pair-0": {"a": None}}), recorded) is None


@pytest.mark.parametrize("state", NodeState)
def test_only_ready_nodes_that_are_recorded_stay_as_they_are(state: NodeState) -> None:
    sick = replace(READY, state=state)
    found = Observation(inventory=Inventory(readiness={"pair-0": READY, "pair-1": sick}))
    recorded = State(lineage="l", readiness={"pair-0": READY, "pair-1": sick})
    assert (lasts(found, recorded) == SEEN_ANEW) is (state is NodeState.READY)
    assert lasts(found, replace(recorded, readiness={"pair-0": READY})) is None
    assert lasts(found, replace(recorded, readiness={**recorded.readiness, "pair-2": READY})) is None


# ------------------------------------------------------------------------------------------ the time


def test_two_times_that_grow_alike_are_compared_for_ever() -> None:
    now = Moment(1000.0)
    assert now > now - 10
    assert now.seconds == math.inf
    assert now > Moment(990.0)
    assert now.seconds == math.inf  # that lies behind


@pytest.mark.parametrize(
    ("use", "seconds"),
    [
        (lambda now: now - Moment(900.0), 0.0),
        (lambda now: now + Moment(1.0), 0.0),
        (lambda now: now == "x", 0.0),
        (lambda now: now != None, 0.0),  # noqa: E711 (what is compared with what)
        (lambda now: now < Moment(1060.0), 60.0),
        (lambda now: 10 + now < 1060, 50.0),
        (lambda now: now >= 1000, 0.0),
        (lambda now: now > 999, math.inf),
        (lambda now: 1060 - now, 0.0),
        (lambda now: now * 2, 0.0),
        (round, 0.0),
        (lambda now: f"{now}", 0.0),
        (lambda now: now.is_integer(), 0.0),
    ],
)
def test_what_is_asked_of_a_time_says_how_long_its_answer_holds(use: Any, seconds: float) -> None:
    now = Moment(1000.0)
    assert now.seconds == math.inf
    result = use(now)
    assert now.seconds == seconds
    assert result == use(1000.0)
