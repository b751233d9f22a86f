"""What counts as gone: several things at once are a fault rather than the truth, and the records that result.

`providers/ec2/test_drift.py` has the same with a cloud, `test_gone_volumes` what becomes of a volume.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from declarative.model.state import GIVEN_UP, GONE_SINCE, Address, Intent, Record, State
from declarative.model.status import RankState, RankStatus, Silence
from declarative.planner.inventory import Inventory, lost_with, observed_state, unstarted, vanished
from declarative.planner.plan import Action, Op, Reason
from tests.support.model import of_attachment, of_kind, of_reservation

A, B, DISK = Address("node", "gpu-0"), Address("node", "gpu-1"), Address("volume", "data")
PLACE, HELD, RANK = (
    Address("reservation", "train-0"),
    Address("attachment", "train-0.data"),
    Address("rank", "train-0"),
)


def record(
    address: Address,
    backend: str = "aws",
    needs: Iterable[Address] = (),
    outputs: Mapping[str, Any] | None = None,
) -> Record:
    inputs = {
        "reservation": of_reservation("train-0", "gpu-0", 0, total=1),
        "attachment": of_attachment("train-0", "gpu-0", "data"),
        "rank": {"task": "train", "rank": 0, "commands": []},
    }.get(address.kind) or of_kind(address.kind)
    return Record(
        address=address, backend=backend, inputs=inputs, outputs=outputs or {}, needs=frozenset(needs)
    )


def state(*records: Record, **more: Any) -> State:
    return State(lineage="l", records={r.address: r for r in records}, **more)


def gone(*addresses: Address, **more: Any) -> Inventory:
    return Inventory(gone=frozenset(addresses), **more)


def intent(op: str, address: Address = A) -> Intent:
    return Intent(id=1, op=op, address=address, backend="aws", generation=1, token="t", inputs={})


PAIR = (record(A), record(B))


def test_several_of_one_backend_at_once_are_in_doubt() -> None:
    assert vanished(state(*PAIR, record(DISK)), gone(A, B)) == (A, B)
    assert vanished(state(*PAIR, record(DISK)), gone(A, DISK)) == (A, DISK)
    assert vanished(state(*PAIR), gone(A)) == ()


def test_volumes_alone_are_in_doubt_where_they_would_be_forgotten() -> None:
    """None of them is made anew by itself."""
    other = Address("volume", "other")
    known, seen = state(record(DISK), record(other)), gone(DISK, other)
    deletes = Action(op=Op.DELETE, address=DISK, reason=Reason.REMOVED)
    assert (deletes.believes, replace(deletes, forget=True).believes) == (True, False)
    assert vanished(known, seen) == ()
    assert vanished(known, seen, [DISK]) == (DISK, other)


def test_one_of_each_backend_is_in_no_doubt() -> None:
    """A backend that is not named is the local one."""
    other = record(B, "gcp")
    assert vanished(state(record(A), other), gone(A, B)) == ()
    assert vanished(state(record(A, "local"), replace(record(B), backend=None)), gone(A, B)) == (A, B)
    assert vanished(state(record(A), replace(record(B), backend=None)), gone(A, B)) == ()


def test_one_is_in_doubt_where_nothing_shows_that_the_place_is_right() -> None:
    assert vanished(state(*PAIR), gone(A, unsure=frozenset({A}))) == (A,)
    assert vanished(state(*PAIR), gone(A, unsure=frozenset({B}))) == ()


@pytest.mark.parametrize(
    ("one", "more", "open_intents"),
    [
        (record(A, outputs={GIVEN_UP: ["x"]}), {}, ()),
        (record(DISK, outputs={GONE_SINCE: 1.0}), {}, ()),
        (record(A), {"ended": {A: "spot"}}, ()),
        (record(A), {}, (intent("delete"),)),
        (record(HELD), {}, ()),
        (None, {}, ()),
    ],
    ids=["given up", "known", "ended", "deleting", "attachment", "unrecorded"],
)
def test_what_was_to_go_counts_for_nothing(
    one: Record | None, more: dict[str, Any], open_intents: tuple[Intent, ...]
) -> None:
    """With another thing of the backend they are not several."""
    address = one.address if one else A
    known = state(*([one] if one else []), record(B), intents=open_intents)
    assert vanished(known, gone(address, B, **more)) == ()


def test_what_was_to_be_made_or_changed_counts() -> None:
    for op in ("create", "update"):
        assert vanished(state(*PAIR, intents=(intent(op),)), gone(A, B)) == (A, B)


def test_a_host_that_was_given_up_counts() -> None:
    """It is a machine of its own, which nobody ends."""
    host = {"hostname": "h"}
    given_up = replace(record(A, outputs={GIVEN_UP: ["x"]}), inputs={**of_kind("node"), "host": host})
    assert vanished(state(given_up, record(B)), gone(A, B)) == (A, B)


# ----------------------------------------------------------------------------------- what results

RUNS = {"train-0": RankStatus(state=RankState.RUNNING)}
TRAIN = (
    record(A),
    record(DISK),
    record(PLACE, needs=[A]),
    record(HELD, needs=[A, DISK, PLACE]),
    record(RANK, needs=[PLACE, HELD]),
)
WORLD = state(*TRAIN, ranks=RUNS)


def test_a_rank_is_lost_with_its_node_and_the_reason_is_named() -> None:
    """What it held is free, and what it was stays recorded."""
    for more, cause in (({}, "node/gpu-0 is gone"), ({"ended": {A: "spot"}}, "node/gpu-0 is gone: spot")):
        known = observed_state(WORLD, gone(A, **more))
        assert known.ranks == {"train-0": RankStatus(state=RankState.LOST, cause=cause)}
        assert {*known.records} == {DISK, RANK}
        assert known.records[RANK].needs == frozenset()


def test_a_rank_that_has_ended_is_not_lost() -> None:
    """Neither one that was recorded so, nor one that is seen so now; nor one that is not recorded."""
    for ended in (RankState.SUCCEEDED, RankState.FAILED):
        status = RankStatus(state=ended)
        assert observed_state(replace(WORLD, ranks={"train-0": status}), gone(A)).ranks == {"train-0": status}
        assert observed_state(WORLD, gone(A, ranks={"train-0": status})).ranks == {"train-0": status}
    unrecorded = {a: r for a, r in WORLD.records.items() if a != RANK}
    assert observed_state(replace(WORLD, records=unrecorded, ranks={}), gone(A)).ranks == {}


@pytest.mark.parametrize("given_up", [True, False])
def test_a_rank_is_lost_with_a_node_that_was_given_up(given_up: bool) -> None:
    silence = Silence(since=0.0, until=1.0, given_up=given_up)
    known = observed_state(WORLD, Inventory(silent={"gpu-0": silence}))
    assert (known.ranks["train-0"].state is RankState.LOST) is given_up
    assert known.ranks["train-0"].cause == (lost_with("gpu-0", silence) if given_up else None)
    assert ({*known.records} == {A, DISK, RANK}) is given_up
    assert (known.silent, A in known.records) == ({"gpu-0": silence}, True)


def test_a_rank_goes_on_while_its_volume_is_gone_unless_that_was_deleted() -> None:
    """What a cut-off command deleted is gone as asked."""
    assert observed_state(WORLD, gone(DISK)) == WORLD
    known = observed_state(WORLD, gone(DISK, deleting=frozenset({DISK})))
    assert (known.ranks["train-0"].cause, {*known.records}) == ("volume/data is gone", {A, RANK})


def test_what_an_ended_rank_held_is_free() -> None:
    """As long as it is recorded: one that is to be started holds its place, though its name had an end."""
    done = {"train-0": RankStatus(state=RankState.SUCCEEDED)}
    assert {*observed_state(replace(WORLD, ranks=done), Inventory()).records} == {A, DISK, RANK}
    assert {*observed_state(WORLD, Inventory(ranks=done)).records} == {A, DISK, RANK}
    waiting = {a: r for a, r in WORLD.records.items() if a != RANK}
    assert observed_state(replace(WORLD, records=waiting, ranks=done), Inventory()).records == waiting
    assert observed_state(WORLD, Inventory()) == WORLD


def test_of_a_lost_volume_only_what_was_not_started_is_taken_off() -> None:
    """A start that was cut off may have succeeded."""
    waiting = {a: r for a, r in WORLD.records.items() if a != RANK}
    lost = gone(DISK)
    assert unstarted(waiting, WORLD, lost) == {HELD}
    assert unstarted(WORLD.records, WORLD, lost) == set()
    begun = replace(WORLD, intents=(intent("create", RANK),))
    assert unstarted(waiting, begun, lost) == set()
    assert unstarted(waiting, WORLD, gone(A)) == set()
    other = record(Address("volume", "other"))
    assert unstarted({**waiting, other.address: other}, WORLD, gone(other.address)) == set()
    assert {*observed_state(replace(WORLD, records=waiting, ranks={}), lost).records} == {A, DISK, PLACE}


def test_what_was_made_unseen_is_there() -> None:
    assert {*observed_state(state(record(A)), Inventory(recovered={B: record(B)})).records} == {A, B}
