"""Which state may be put in the place of another one (`state push`), and what records hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from declarative.model.state import Address, Intent, Record, State
from declarative.store import StateError, Store, open_store, record_changes, records
from declarative.store.errors import ConstraintError
from declarative.store.record_changes import may_push
from tests.support.model import of_node, of_reservation

NODE = Record(address=Address("node", "gpu-0"), backend="local", inputs=of_node(), outputs={"id": "i-1"})
MINE = State(lineage="mine", serial=5, records={NODE.address: NODE}, generations={NODE.address: 2})
OPEN = Intent(
    id=1,
    op="create",
    address=Address("node", "gpu-1"),
    backend="local",
    generation=1,
    token="t",
    inputs=of_node(),
)


def refused(code: str, call: Callable[[], object]) -> StateError:
    with pytest.raises(StateError) as caught:
        call()
    assert caught.value.code == code
    return caught.value


@pytest.mark.parametrize("force", [True, False])
def test_a_state_of_nothing_or_one_that_contradicts_itself_is_no_state(force: bool) -> None:
    refused("bad-state", lambda: may_push(MINE, State(lineage=None), {}, force=force))
    refused("bad-state", lambda: may_push(State(), State(lineage=None), {}, force=force))
    wrong = {("gpu-7", 0): "train-0"}
    error = refused("contradiction", lambda: may_push(State(), MINE, wrong, force=force))
    assert "contradicts itself" in error.summary


def test_where_nothing_was_ever_applied_any_state_may_be() -> None:
    assert may_push(State(), MINE, {}, force=False) == MINE


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize(
    "known", [{"records": {NODE.address: NODE}}, {"intents": (OPEN,)}], ids=["made", "begun"]
)
def test_another_states_things_are_never_lost(known: dict[str, Any], force: bool) -> None:
    """Neither what is recorded nor what may come."""
    other = State(lineage="other", serial=1, **known)
    error = refused("other-lineage", lambda: may_push(other, MINE, {}, force=force))
    assert "its lineage is other, that of the one to push mine" in error.summary


def test_another_state_that_is_empty_goes_by_force_alone() -> None:
    empty = State(lineage="other", serial=9)
    refused("other-lineage", lambda: may_push(empty, MINE, {}, force=False))
    assert may_push(empty, MINE, {}, force=True) == MINE


def test_a_later_one_is_taken_and_no_generation_is_used_again() -> None:
    """Its tokens would come back."""
    later = replace(MINE, serial=6, generations={NODE.address: 1, OPEN.address: 3})
    assert may_push(MINE, later, {}, force=False) == replace(
        later, generations={NODE.address: 2, OPEN.address: 3}
    )


@pytest.mark.parametrize("serial", [4, 5])
def test_an_older_one_is_taken_by_force_alone_under_a_new_number(serial: int) -> None:
    """A plan that was saved meanwhile must not hold."""
    older = replace(MINE, serial=serial, generations={NODE.address: 1})
    error = refused("older-state", lambda: may_push(MINE, older, {}, force=False))
    assert f"has serial {serial}, the one that is there 5" in error.summary
    assert may_push(MINE, older, {}, force=True) == replace(older, serial=6, generations=MINE.generations)


# ------------------------------------------------------------------------------------------- records


@pytest.fixture
def store(tmp_path: Any) -> Any:
    with open_store(f"sqlite:///{tmp_path}/state.db", clock=lambda: 1000.0) as opened:
        yield opened


def of_train(*blocks: int) -> Record:
    held = of_reservation("train-0", "gpu-0", *blocks, total=1)
    return Record(address=Address("reservation", "train-0"), backend=None, inputs=held)


def test_a_rank_holds_at_least_one_block_of_a_node_that_is_there(store: Store) -> None:
    with store.lock("test", 0) as writer:
        refused("missing-need", lambda: writer.reserve(of_train(0), "gpu-0", (0,)))
        writer.adopt(NODE)
        none = refused("no-such-block", lambda: writer.reserve(of_train(), "gpu-0", ()))
        assert none.summary == "reservation/train-0 asks for no block of node/gpu-0, which has 1"
        for odd in (1, -1):
            one = refused("no-such-block", partial(writer.reserve, of_train(odd), "gpu-0", (odd,)))
            assert f"asks for block {odd} of node/gpu-0" in one.summary


def test_two_at_once_hold_no_block_twice(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another transaction held meanwhile was not seen when this one looked."""
    with store.lock("test", 0) as writer:
        writer.adopt(NODE)
        writer.reserve(of_train(0), "gpu-0", (0,))
        monkeypatch.setattr(records, "holders", lambda *_: {})
        other = replace(of_train(0), address=Address("reservation", "work-0"))
        error = refused("double-booking", lambda: writer.reserve(other, "gpu-0", (0,)))
        assert "a block of it is held" in error.summary


def test_another_fault_of_a_database_is_no_second_owner() -> None:
    """The words for that name a record."""

    class Odd:
        def select(self, *_: Any, **__: Any) -> Any:
            return self

        def execute(self, *_: Any, **__: Any) -> Any:
            return self

        def scalar(self) -> None:
            return None

        def insert_new(self, *_: Any) -> bool:
            raise ConstraintError("bad-state", "odd")

    odd: Any = Odd()
    with pytest.raises(ConstraintError):
        record_changes.put_record(odd, NODE)


def test_what_is_given_back_is_a_change_unless_it_was_only_seen(store: Store) -> None:
    """Plans that were saved before hold no more."""
    with store.lock("test", 0) as writer:
        writer.adopt(NODE)
        for observed in (True, False):
            writer.reserve(of_train(0), "gpu-0", (0,))
            before = writer.state().serial
            writer.release(of_train(0).address, 1000.0, observed=observed)
            assert (writer.state().serial > before) is not observed
            writer.release(of_train(0).address, 1000.0)  # it is not there any more
            assert writer.state().serial == before + (not observed)


def test_a_node_costs_from_when_its_call_began(tmp_path: Any) -> None:
    """Though it was found much later."""
    now = [1000.0]
    inputs = {**of_node(), "price": 2.0}
    with (
        open_store(f"sqlite:///{tmp_path}/state.db", clock=lambda: now[0]) as store,
        store.lock("t", 0) as writer,
    ):
        intent = writer.begin("create", NODE.address, "local", inputs)
        now[0] += 3600.0
        writer.adopt(replace(NODE, inputs=inputs), intent)
        spent = store.spent()
        assert spent is not None
        assert spent.dollars == pytest.approx(2.0)


def test_what_is_found_again_is_recorded_once(store: Store) -> None:
    with store.lock("test", 0) as writer:
        writer.adopt(NODE)
        before = writer.state()
        writer.adopt(NODE)
        assert writer.state() == before
        writer.adopt(replace(NODE, generation=4))
        assert writer.state().generations[NODE.address] == 4
