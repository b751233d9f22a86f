"""How workers go through the actions of a plan."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast
from unittest.mock import Mock

import pytest

from declarative.apply.failover import Failover
from declarative.apply.graph_walk import ActionResult, Outcome, _Workers, walk
from declarative.model.inputs import inputs_of
from declarative.model.state import Address, State
from declarative.planner.plan import Action, Basis, Op, Plan, Reason
from declarative.store.commit_queue import PendingCommit
from tests.support.cli import until
from tests.support.market import Heard
from tests.support.model import of_volume


class Later:
    """An end that is not committed yet, as `PendingCommit` is."""

    def __init__(self, done: Callable[[], object] = bool) -> None:
        self._done = done
        self.then: Callable[[], object] | None = None
        self.settled = 0

    def on_commit(self, then: Callable[[], object]) -> None:
        self.then = then

    def settle(self) -> None:
        self.settled += 1
        self._done()
        self.commit()

    def commit(self) -> None:
        then, self.then = self.then, None
        if then:
            then()


def volume(name: str, *needs: str) -> Action:
    return Action(
        op=Op.CREATE,
        address=Address("volume", name),
        reason=Reason.NEW,
        after=inputs_of("volume", of_volume()),
        needs=tuple(f"create:volume/{need}" for need in needs),
    )


def walked(
    actions: list[Action],
    perform: Callable[[str], Later | None],
    *,
    parallelism: int = 2,
    follows: bool = True,
) -> dict[str, ActionResult]:
    plan = Plan(basis=Basis(lineage="", serial=0), actions=tuple(actions))
    found = walk(
        actions,
        lambda action: cast("PendingCommit | None", perform(action.address.name)),
        lambda _action: follows,
        parallelism=parallelism,
        stopping=threading.Event(),
        listener=Heard(),
        failover=Failover(plan, State()),
    )
    return {result.address.removeprefix("volume/"): result for result in found}


def test_a_worker_goes_on_before_its_last_end_is_committed() -> None:
    """What needs that action waits until it is."""
    order: list[str] = []
    later, go_on = Later(), threading.Event()

    def perform(name: str) -> Later | None:
        order.append(name)
        if name == "a":
            return later
        if name == "b":
            assert go_on.wait(60)
        if name == "c":
            assert later.settled == 0
            order.append("committed")
            later.commit()
            go_on.set()
        return None

    found = walked([volume("a"), volume("b"), volume("c"), volume("d", "a")], perform)
    assert {result.outcome for result in found.values()} == {Outcome.DONE}
    assert order.index("a") < order.index("c") < order.index("committed") < order.index("d")


@pytest.mark.parametrize(
    ("actions", "parallelism", "follows"),
    [
        ([volume("a"), volume("b", "a")], 2, True),
        ([volume("a"), volume("b")], 1, True),
        ([volume("a"), volume("b"), volume("c")], 2, False),
    ],
    ids=["nothing is ready", "one at a time", "what is ready does not begin at once"],
)
def test_an_end_is_committed_at_once_where_its_worker_goes_on_with_nothing(
    actions: list[Action], parallelism: int, follows: bool
) -> None:
    ends: list[Later] = []

    def perform(_name: str) -> Later:
        ends.append(Later())
        return ends[-1]

    found = walked(actions, perform, parallelism=parallelism, follows=follows)
    assert {result.outcome for result in found.values()} == {Outcome.DONE}
    assert [end.settled for end in ends] == [1] * len(actions)


def test_an_end_that_the_next_action_does_not_commit_is_settled_after_it() -> None:
    """It failed before its intent, or had none."""
    later, b_may_end = Later(), threading.Event()

    def perform(name: str) -> Later | None:
        if name == "a":
            return later
        if name == "b":
            assert b_may_end.wait(60)
        if name == "c":
            b_may_end.set()
            raise ValueError("no such thing")
        return None

    found = walked([volume("a"), volume("b"), volume("c"), volume("d", "a")], perform)
    assert {name: result.outcome for name, result in found.items()} == {
        "a": Outcome.DONE,
        "b": Outcome.DONE,
        "c": Outcome.FAILED,
        "d": Outcome.DONE,
    }
    assert later.settled == 1


@pytest.mark.parametrize("follows", [True, False])
def test_an_action_whose_end_cannot_be_committed_has_failed(follows: bool) -> None:
    """Whether its worker has gone on or not."""
    b_may_end = threading.Event()

    def fails() -> None:
        raise ValueError("the disk is full")

    def perform(name: str) -> Later | None:
        if name == "b" and follows:
            assert b_may_end.wait(60)
        if name == "c":
            b_may_end.set()
        return Later(fails) if name == "a" else None

    found = walked([volume("a"), volume("b"), volume("c"), volume("d", "a")], perform, follows=follows)
    outcomes = [found[name].outcome for name in "abcd"]
    assert outcomes == [Outcome.FAILED, Outcome.DONE, Outcome.DONE, Outcome.SKIPPED]
    assert found["a"].error == "the disk is full"


def test_nothing_follows_once_the_walk_has_failed(monkeypatch) -> None:
    """It fails here because the end of an action cannot be reported. Started actions end first."""
    begun: list[str] = []
    left: list[_Workers] = []
    monkeypatch.setattr(Heard, "end", Mock(side_effect=BrokenPipeError))
    real = _Workers.close

    def leaves(workers: _Workers) -> None:
        left.append(workers)
        real(workers)

    def perform(name: str) -> Later | None:
        begun.append(name)
        if name == "b":
            return None
        until(lambda: left and not left[0]._started.empty())  # it is leaving
        return Later()

    monkeypatch.setattr(_Workers, "close", leaves)
    with pytest.raises(BrokenPipeError):
        walked([volume("a"), volume("b"), volume("c"), volume("d")], perform)
    assert sorted(begun) == ["a", "b"]
