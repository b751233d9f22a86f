"""What a command writes down before it plans: the results of calls that were cut off, and what ended.

`test_crash_requests` and `test_faults` in `tests/end_to_end` have the same with commands that are killed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from declarative.apply import settle as settling
from declarative.apply.backend_look import Observation
from declarative.apply.open_intents import Resolution, read_back
from declarative.apply.orphans import Orphan
from declarative.apply.settle import (
    LONGEST_CALL,
    VanishedError,
    _bury,
    _detach_returned,
    _forget,
    _is_over,
    _stop_lost,
    check_vanished,
    free,
    note_lost,
    recover,
    release_ended,
)
from declarative.model.state import GONE_SINCE, NOTICED, Address, Intent, Record, State
from declarative.model.status import NodeState, RankState, RankStatus, Readiness
from declarative.planner.inventory import Inventory
from declarative.provider import PermanentError, PermanentKind, Thing, TransientError, TransientKind
from declarative.retry import Policy
from declarative.store import Writer, open_store
from tests.support.model import of_attachment, of_node, of_reservation, of_volume

NODE, DISK = Address("node", "gpu-0"), Address("volume", "data")
PLACE, HELD, RANK = (
    Address("reservation", "train-0"),
    Address("attachment", "train-0.data"),
    Address("rank", "train-0"),
)
OF_RANK = {"task": "train", "rank": 0, "commands": []}
NOW = 10_000.0
LOST = TransientError(TransientKind.BUSY, "no answer")
NOT_THERE = PermanentError(PermanentKind.NOT_FOUND, "not there")
REFUSED = PermanentError(PermanentKind.AUTH, "not allowed")


class Cloud:
    """Every backend, and what is asked of it. `fails` has what calls raise, by their names."""

    def __init__(self, *things: Thing, fails: Mapping[str, Exception] | None = None) -> None:
        self.things, self.fails = things, fails or {}
        self.asked: list[tuple[str, str]] = []
        self.statuses: dict[str, RankStatus | None] = {}

    def get(self, name: str | None) -> Cloud:
        assert name is not None
        return self

    def _ask(self, verb: str, what: object) -> None:
        self.asked.append((verb, str(what)))
        if verb in self.fails:
            raise self.fails[verb]

    def delete(self, record: Record) -> None:
        self._ask("delete", record.address)

    def bury(self, record: Record) -> None:
        self._ask("bury", record.address)

    def stop(self, node: Record, attempt: str, grace: float) -> RankStatus | None:
        self._ask("stop", attempt.partition(".")[0])
        return RankStatus(state=RankState.STOPPED)

    def find(self, address: Address, token: str) -> Thing | None:
        self._ask("find", address)
        return next((t for t in self.things if (t.address, t.token) == (address, token)), None)

    def poll(self, node: Record, attempts: Sequence[str]) -> Mapping[str, RankStatus | None]:
        self._ask("poll", node.address)
        return {a: self.statuses.get(a.partition(".")[0]) for a in attempts}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is asked twice."""
    real = settling.call  # type: ignore[attr-defined]
    once = Policy(deadline=0.0, longest=0.0)
    monkeypatch.setattr(settling, "call", lambda ask, policy=once: real(ask, policy=once))


@pytest.fixture
def writer(tmp_path: Any) -> Iterator[Writer]:
    opened = open_store(f"sqlite:///{tmp_path}/state.db", clock=lambda: NOW)
    with opened as store, store.lock("test", 0) as made:
        yield made


def record(address: Address, inputs: Mapping[str, Any], *needs: Address, **outputs: Any) -> Record:
    return Record(
        address=address, backend="local", inputs=inputs, outputs=outputs, needs=frozenset(needs), generation=1
    )


def lived(writer: Writer, *, rank: RankState | None = RankState.RUNNING) -> None:
    """A rank with a volume on a node; without its record if it has no state."""
    writer.adopt(record(NODE, of_node(), id="i-1"))
    writer.adopt(record(DISK, of_volume(), id="v-1"))
    writer.reserve(record(PLACE, of_reservation("train-0", "gpu-0", 0, total=1), NODE), "gpu-0", (0,))
    writer.adopt(record(HELD, of_attachment("train-0", "gpu-0", "data"), NODE, DISK, PLACE))
    if rank is not None:
        writer.adopt(record(RANK, OF_RANK, PLACE, HELD))
        writer.observe_ranks({"train-0": RankStatus(state=rank)})


def aged(intent: Intent, seconds: float | None) -> Intent:
    """The intent as it was begun elsewhere, so long ago; None if nobody knows."""
    return replace(intent, place="elsewhere", begun_at=None if seconds is None else NOW - seconds)


def seen(*resolutions: Resolution, orphans: Sequence[Orphan] = (), **more: Any) -> Observation:
    return Observation(inventory=Inventory(**more), resolutions=[*resolutions], orphans=[*orphans])


# --------------------------------------------------------------------------------- calls that were cut off


def test_what_was_found_is_recorded_and_ends_its_intent(writer: Writer) -> None:
    """A node is idle since its call began, and a rank is as it was seen."""
    intent = writer.begin("create", NODE, "local", of_node())
    made = record(NODE, of_node(), id="i-1")
    recover(writer, seen(Resolution(intent=aged(intent, 60.0), record=made)), NOW)
    state = writer.state()
    assert (state.intents, state.records[NODE].outputs) == ((), {"id": "i-1"})
    assert state.idle_since == {"gpu-0": NOW - 60.0}
    disk = writer.begin("create", DISK, "local", of_volume())
    status = RankStatus(state=RankState.RUNNING, started_at=1.0)
    recover(writer, seen(Resolution(intent=aged(disk, 60.0), record=record(DISK, of_volume()))), NOW)
    place = record(PLACE, of_reservation("train-0", "gpu-0", 0, total=1), NODE)
    writer.reserve(place, "gpu-0", (0,))
    started = writer.begin("create", RANK, "local", OF_RANK, (PLACE,))
    recover(writer, seen(Resolution(intent=started, record=record(RANK, OF_RANK, PLACE), status=status)), NOW)
    state = writer.state()
    assert (state.intents, state.ranks, {*state.records}) == (
        (),
        {"train-0": status},
        {NODE, DISK, PLACE, RANK},
    )
    assert state.idle_since == {}


def test_what_is_gone_is_forgotten_and_what_was_not_done_is_as_before(writer: Writer) -> None:
    writer.adopt(record(NODE, of_node()))
    for gone in (False, True):
        intent = writer.begin("delete", NODE, "local", of_node())
        recover(writer, seen(Resolution(intent=intent, gone=gone)), NOW)
        state = writer.state()
        assert (state.intents, NODE in state.records) == ((), not gone)


@pytest.mark.parametrize(
    ("seconds", "open_"), [(0.0, True), (LONGEST_CALL, True), (LONGEST_CALL + 1.0, False), (None, True)]
)
def test_a_create_that_may_still_come_stays_open(writer: Writer, seconds: float | None, open_: bool) -> None:
    """Its token is used again. Only a node's needs to be cleared up once it is over."""
    for address, inputs in ((NODE, of_node()), (DISK, of_volume())):
        intent = writer.begin("create", address, "local", inputs)
        resolution = Resolution(intent=aged(intent, seconds))
        assert _is_over(resolution, NOW) is (address == NODE and not open_)
        recover(writer, seen(resolution), NOW)
        assert (address in {i.address for i in writer.state().intents}) is open_
    found = Resolution(intent=aged(intent, LONGEST_CALL + 1.0), record=record(NODE, of_node()))
    assert not _is_over(replace(found, intent=replace(found.intent, address=NODE)), NOW)
    assert not _is_over(Resolution(intent=replace(found.intent, address=NODE), gone=True), NOW)
    deleting = replace(found.intent, address=NODE, op="delete")
    assert not _is_over(Resolution(intent=deleting), NOW)


def test_a_change_that_was_not_made_will_not_come(writer: Writer) -> None:
    writer.adopt(record(NODE, of_node()))
    intent = writer.begin("update", NODE, "local", of_node(tags={"a": "b"}))
    recover(writer, seen(Resolution(intent=intent)), NOW)
    assert writer.state().intents == ()


@pytest.mark.parametrize("held", [True, False])
def test_a_start_may_come_as_long_as_its_blocks_are_held(writer: Writer, held: bool) -> None:
    lived(writer, rank=None)
    intent = writer.begin("create", RANK, "local", OF_RANK, (PLACE, HELD))
    if not held:
        intent = replace(intent, address=Address("rank", "other-0"))
    recover(writer, seen(Resolution(intent=intent)), NOW)
    assert (len(writer.state().intents) == 1) is held


# ----------------------------------------------------------------------------------- what is read back


def asked(state: State, intent: Intent, *things: Thing, **statuses: RankStatus) -> Resolution:
    cloud: Any = Cloud(*things)
    cloud.statuses = {name.replace("_", "-"): status for name, status in statuses.items()}
    return read_back(state, intent, cloud)


def intent_of(op: str, address: Address, inputs: Mapping[str, Any], **more: Any) -> Intent:
    return Intent(
        id=1, op=op, address=address, backend="local", generation=2, token="t", inputs=inputs, **more
    )


def thing(address: Address, inputs: Mapping[str, Any], token: str = "t", **more: Any) -> Thing:
    return Thing(address=address, token=token, inputs=inputs, outputs={"id": "i-1"}, **more)


def test_a_thing_is_found_by_the_token_of_its_call() -> None:
    state = State(lineage="l")
    create = intent_of("create", NODE, of_node())
    assert asked(state, create) == Resolution(intent=create)
    assert asked(state, create, thing(NODE, of_node(), "another")) == Resolution(intent=create)
    made = asked(state, create, thing(NODE, of_node())).record
    assert made is not None
    assert (made.inputs, made.outputs, made.generation) == (of_node(), {"id": "i-1"}, 2)
    tagged = asked(state, create, thing(NODE, of_node(price=2.0))).record
    assert tagged is not None
    assert tagged.inputs == of_node(price=2.0)
    former = State(lineage="l", records={NODE: record(NODE, of_node(), DISK)})
    anew = asked(former, create, thing(NODE, of_node())).record
    assert anew is not None
    assert anew.needs == frozenset()
    unknown = asked(state, create, thing(NODE, {}, known=False)).record
    assert unknown is not None
    assert unknown.inputs == of_node()
    damaged = asked(state, create, thing(NODE, {**of_node(), "blocks": "many"})).record
    assert damaged is not None
    assert damaged.inputs == of_node()


def test_an_attachment_of_what_was_renamed_keeps_the_names_that_it_was_made_with() -> None:
    """Its cloud knows it by these, now and when it is taken off."""
    old = {"address": "volume/old", "token": "v", "inputs": {}}
    state = State(lineage="l", records={DISK: record(DISK, of_volume(), made_as=old)})
    held = Address("attachment", "train-0.data")
    create = intent_of("create", held, of_attachment("train-0", "gpu-0", "data"), needs=(DISK,))
    own = Address("attachment", "train-0.old")
    made = asked(state, create, thing(own, of_attachment("train-0", "gpu-0", "old"))).record
    assert made is not None
    assert (made.address, made.inputs["volume"]) == (held, "data")
    assert made.outputs["made_as"] == {"address": str(own), "token": "t", "inputs": {"volume": "old"}}
    assert asked(state, create, thing(held, create.inputs)).record is None


def test_a_delete_is_done_if_nothing_is_found() -> None:
    state = State(lineage="l", records={NODE: record(NODE, of_node())})
    delete = intent_of("delete", NODE, of_node())
    assert asked(state, delete) == Resolution(intent=delete, gone=True)
    assert asked(state, delete, thing(NODE, of_node())) == Resolution(intent=delete)


def test_a_change_is_done_if_the_thing_has_it() -> None:
    """Else the record stays as it is. What it needs and was told stays as well."""
    before = record(NODE, of_node(), DISK, kept="x")
    state = State(lineage="l", records={NODE: before})
    update = intent_of("update", NODE, of_node(tags={"a": "b"}))
    assert asked(state, update, thing(NODE, of_node())) == Resolution(intent=update)
    done = asked(state, update, thing(NODE, of_node(tags={"a": "b"}))).record
    assert done is not None
    assert (done.inputs["tags"], done.needs) == ({"a": "b"}, frozenset({DISK}))


def test_a_start_is_done_if_its_node_knows_of_it() -> None:
    """A stop is asked for again, and a start on a node that is gone came to nothing."""
    place = record(PLACE, of_reservation("train-0", "gpu-0", 0, total=1), NODE)
    state = State(lineage="l", records={NODE: record(NODE, of_node()), PLACE: place})
    create = intent_of("create", RANK, OF_RANK, needs=frozenset({PLACE}))
    runs = RankStatus(state=RankState.RUNNING)
    found = asked(state, create, train_0=runs)
    assert found.record is not None
    assert (found.status, found.record.address, found.record.needs) == (runs, RANK, frozenset({PLACE}))
    assert asked(state, create) == Resolution(intent=create)
    delete = replace(create, op="delete")
    assert asked(state, delete, train_0=runs) == Resolution(intent=delete)
    assert asked(State(lineage="l"), create, train_0=runs) == Resolution(intent=create)


# ------------------------------------------------------------------------------------- what has ended


@pytest.mark.parametrize("state", RankState)
def test_what_an_ended_rank_held_is_given_back(writer: Writer, state: RankState) -> None:
    """And the time at which a failure was noticed is kept, once. It was seen, and changes no plan."""
    lived(writer, rank=state)
    cloud: Any = Cloud()
    serial = writer.state().serial
    for at in (NOW, NOW + 60):
        release_ended(writer, cloud, lambda at=at: at)  # type: ignore[misc]
        known = writer.state()
        assert ({*known.records} == {NODE, DISK, RANK}) is state.ended
        bad = state in (RankState.FAILED, RankState.LOST)
        assert known.records[RANK].outputs.get(NOTICED) == (NOW if bad else None)
    assert cloud.asked == ([("delete", str(HELD))] if state.ended else [])
    assert writer.state().serial == serial


def test_what_a_command_frees_is_a_change(writer: Writer) -> None:
    lived(writer, rank=RankState.SUCCEEDED)
    state = writer.state()
    place = state.records[PLACE]
    writer.set_needs(RANK, ())
    free(writer, Cloud(), state, place, lambda: NOW)  # type: ignore[arg-type]
    assert PLACE not in writer.state().records
    assert writer.state().serial > state.serial


@pytest.mark.parametrize(
    ("fault", "off", "intents"), [(NOT_THERE, True, 0), (REFUSED, False, 0), (LOST, False, 1)]
)
def test_blocks_are_held_until_each_volume_is_off(
    writer: Writer, fault: Exception, off: bool, intents: int
) -> None:
    """A volume that is detached already is off; what nobody answered is looked for by the next command."""
    lived(writer, rank=RankState.SUCCEEDED)
    cloud: Any = Cloud(fails={"delete": fault})
    release_ended(writer, cloud, lambda: NOW)
    known = writer.state()
    assert (PLACE not in known.records, HELD not in known.records) == (off, off)
    assert len(known.intents) == intents


def test_other_ranks_keep_their_volumes(writer: Writer) -> None:
    lived(writer, rank=RankState.SUCCEEDED)
    other, disk = Address("attachment", "work-0.more"), Address("volume", "more")
    writer.adopt(record(disk, of_volume(), id="v-2"))
    writer.adopt(record(other, of_attachment("work-0", "gpu-0", "more"), NODE, disk))
    release_ended(writer, Cloud(), lambda: NOW)  # type: ignore[arg-type]
    assert other in writer.state().records


def test_a_place_that_waits_for_its_start_is_kept(writer: Writer) -> None:
    """Its rank is not recorded, though one of its name has ended."""
    lived(writer, rank=None)
    writer.observe_ranks({"train-0": RankStatus(state=RankState.FAILED)})
    release_ended(writer, Cloud(), lambda: NOW)  # type: ignore[arg-type]
    assert PLACE in writer.state().records


@pytest.mark.parametrize("now", [RankState.RUNNING, RankState.SUCCEEDED, None])
def test_a_lost_rank_that_still_runs_is_stopped(writer: Writer, now: RankState | None) -> None:
    lived(writer)
    cloud: Any = Cloud()
    lost = {"train-0": RankStatus(state=RankState.LOST, cause="x")}
    observed = {"train-0": RankStatus(state=now)} if now else {}
    _stop_lost(cloud, writer.state(), lost, observed)
    assert cloud.asked == ([("stop", "train-0")] if now is RankState.RUNNING else [])
    failed = {"train-0": RankStatus(state=RankState.FAILED)}
    _stop_lost(Cloud(fails={"stop": REFUSED}), writer.state(), failed, observed)  # type: ignore[arg-type]


def test_what_a_gone_node_left_here_is_removed(writer: Writer) -> None:
    lived(writer)
    for fails in ({}, {"bury": REFUSED}):
        cloud: Any = Cloud(fails=fails)
        _bury(cloud, writer.state(), {NODE, DISK})
        assert cloud.asked == [("bury", "node/gpu-0")]
        _bury(cloud, writer.state(), {DISK})
        assert len(cloud.asked) == 1


def test_what_is_gone_is_forgotten_with_what_needs_it(writer: Writer) -> None:
    lived(writer)
    _forget(writer, seen(gone=frozenset({NODE, Address("node", "gpu-9")})), writer.state(), lambda: NOW)
    assert {*writer.state().records} == {DISK, RANK}


def test_a_lost_volume_stays_with_what_was_started_on_it(writer: Writer) -> None:
    """Since when it is gone is noted once, and no more once it is back."""
    lived(writer)
    lost = seen(gone=frozenset({DISK}))
    for at in (NOW, NOW + 60):
        _forget(writer, lost, writer.state(), lambda at=at: at)  # type: ignore[misc]
        note_lost(writer, writer.state(), lost.inventory.lost, lambda at=at: at)  # type: ignore[misc]
        known = writer.state()
        assert {*known.records} == {NODE, DISK, PLACE, HELD, RANK}
        assert known.records[DISK].outputs.get(GONE_SINCE) == NOW
    note_lost(writer, writer.state(), frozenset(), lambda: NOW)
    assert writer.state().records[DISK].outputs.get(GONE_SINCE) is None


def test_a_lost_volume_is_taken_off_what_was_not_started(writer: Writer) -> None:
    """That was only seen, and changes no plan."""
    lived(writer, rank=None)
    serial = writer.state().serial
    _forget(writer, seen(gone=frozenset({DISK})), writer.state(), lambda: NOW)
    assert {*writer.state().records} == {NODE, DISK, PLACE}
    assert writer.state().serial == serial


def returned(rank: str = "train-0") -> Orphan:
    inputs = of_attachment(rank, "gpu-0", "data")
    return Orphan(backend="local", thing=Thing(address=HELD, token="t", inputs=inputs, outputs={"id": "a"}))


READY = {"gpu-0": Readiness(state=NodeState.READY)}
ALIKE = Orphan(
    backend="local",
    thing=Thing(address=Address("volume", "train-0"), token="t", inputs={}, outputs={}, known=False),
)
RUNS = Orphan(backend="local", thing=Thing(address=RANK, token="t", inputs={}, outputs={}, known=False))


@pytest.mark.parametrize(
    ("ended", "orphans", "readiness", "off"),
    [
        (True, [returned()], READY, True),
        (False, [returned()], READY, False),
        (True, [returned("other-0")], READY, False),
        (True, [returned(), RUNS], READY, False),
        (True, [returned()], {}, False),
        (True, [returned()], {"gpu-0": Readiness(state=NodeState.UNREACHABLE)}, False),
        (True, [ALIKE, returned()], READY, True),
        (True, [RUNS], READY, False),
        (True, [], READY, False),
    ],
    ids=[
        "ended",
        "runs",
        "unrecorded",
        "runs unrecorded",
        "unseen",
        "silent",
        "alike",
        "no attachment",
        "nothing",
    ],
)
def test_a_volume_that_comes_back_is_taken_off_a_rank_that_has_ended(
    writer: Writer, ended: bool, orphans: list[Orphan], readiness: dict[str, Readiness], off: bool
) -> None:
    """Nobody else could have it, and nothing writes to it."""
    lived(writer, rank=RankState.SUCCEEDED if ended else RankState.RUNNING)
    for fails in ({}, {"delete": REFUSED}):
        cloud: Any = Cloud(fails=fails)
        _detach_returned(writer, cloud, seen(orphans=orphans, readiness=readiness))
        assert cloud.asked == ([("delete", str(HELD))] if off else [])


def test_several_gone_things_stop_a_command_and_are_named() -> None:
    """The first five of them."""
    nodes = {Address("node", f"gpu-{i}"): record(Address("node", f"gpu-{i}"), of_node()) for i in range(6)}
    state = State(lineage="l", records=nodes)
    check_vanished(state, Inventory(gone=frozenset([*nodes][:1])))
    for count, said in (
        (2, "2 things are gone at once: node/gpu-0, node/gpu-1"),
        (5, "5 things are gone at once: node/gpu-0, node/gpu-1, node/gpu-2, node/gpu-3, node/gpu-4"),
        (6, f"6 things are gone at once: {', '.join(f'node/gpu-{i}' for i in range(5))} and 1 more"),
    ):
        with pytest.raises(VanishedError) as caught:
            check_vanished(state, Inventory(gone=frozenset([*nodes][:count])))
        assert caught.value.summary == said
    with pytest.raises(VanishedError) as caught:
        check_vanished(state, Inventory(gone=frozenset([NODE]), unsure=frozenset([NODE])))
    assert caught.value.summary.startswith("node/gpu-0 is gone, and so is everything else")
