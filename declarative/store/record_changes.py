"""Changes of records, intents and blocks that several steps of a writer share, and of a state as a whole.

`now` is the writer's time, in seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from declarative.model.inputs import COUNTED
from declarative.model.state import COUNTED_SINCE, Address, Intent, Record, State
from declarative.model.status import RankStatus
from declarative.model.text import and_more
from declarative.store import events, journal, records, spending
from declarative.store.consistency import HeldBlocks, contradictions
from declarative.store.errors import ConstraintError, StateError
from declarative.store.schema import columns
from declarative.store.sql import RAISE_SERIAL, Connection

ERROR_LENGTH = 2000
"""Characters of a backend's message that the journal keeps."""

DETACHED = (
    "kind = 'volume' AND detached_since IS NULL"
    " AND NOT EXISTS (SELECT 1 FROM needs WHERE needed = resources.address)"
)
"""Volumes that are not attached, and have no time of their detach."""


# ---------------------------------------------------------------------------------------- the journal


def close(connection: Connection, intent: Intent, now: float, result: str, error: str | None = None) -> bool:
    """End an intent; False if it had ended in the same way before."""
    its = {"its_id": intent.id}
    error = error and error[:ERROR_LENGTH]
    end = {"ended_at": now, "result": result, "error": error}
    if connection.update("operations", end, "id = :its_id AND ended_at IS NULL", **its):
        events.ended(connection, now, intent, result, {"error": error, **journal.actor_of(connection)})
        return True
    with connection.database.whole_journal(connection) as entries:
        before = entries.execute("SELECT result FROM operations WHERE id = :its_id", **its).scalar()
    if before == result:
        return False
    raise StateError(
        "closed-intent", f"{intent.op}:{intent.address} was ended before, as {before or 'unknown'}"
    )


def finish(
    connection: Connection,
    intent: Intent,
    outputs: Mapping[str, Any] | None,
    idle_since: float | None,
    now: float,
) -> bool:
    """Record the result of an intent; False if it had ended before."""
    if not close(connection, intent, now, "done"):
        return False
    if intent.op == "delete":
        remove(connection, intent.address, now)
        # What is gone has no other outcome any more.
        end = {"ended_at": now, "result": "superseded"}
        still_open = "address = :its_address AND ended_at IS NULL"
        connection.update("operations", end, still_open, its_address=str(intent.address))
    else:
        put_made(connection, journal.made_of(connection, intent, outputs), idle_since, now, intent.begun_at)
    return True


# ---------------------------------------------------------------------------------------- records


def put_made(
    connection: Connection, record: Record, idle_since: float | None, now: float, started: float | None
) -> None:
    """Record what a call made or changed, that was `started` then, with all that follows from it."""
    if record.address.kind in COUNTED:
        record = _dated(connection, record, now)
    is_new = put_record(
        connection, record, {"detached_since": now} if record.address.kind == records.VOLUME else {}
    )
    if record.address.kind == records.NODE:
        since = now if started is None else min(started, now)
        spending.count(connection, str(record.address), spending.price_of(record), since, now)
    if record.address.kind == records.VOLUME and not is_new:
        note_detached(connection, now, [record.address])
    elif record.address.kind == records.ATTACHMENT:
        note_attached(connection, _volumes(record.needs))
    if idle_since is not None:
        put_node(connection, record.address.name, {"idle_since": idle_since})


def _dated(connection: Connection, record: Record, now: float) -> Record:
    """The volume or node, with the time from which a changed duration counts."""
    before, key = records.record(connection, record.address), COUNTED[record.address.kind]
    if before is None or before.inputs.get(key) == record.inputs.get(key):
        return record
    return replace(record, outputs={**record.outputs, COUNTED_SINCE: now})


def remove(connection: Connection, address: Address, now: float) -> bool:
    """Forget a record; whether there was one."""
    held = records.needed(connection, address) if address.kind == records.ATTACHMENT else ()
    gone = remove_record(connection, address)
    if address.kind == records.NODE:
        spending.count(connection, str(address), None, now, now)
    note_detached(connection, now, _volumes(held))
    return gone


def _volumes(addresses: Iterable[Address]) -> list[Address]:
    return [address for address in addresses if address.kind == records.VOLUME]


# ---------------------------------------------------------------------------------------- blocks


def release(connection: Connection, reservation: Address, now: float) -> bool:
    """Give a reservation's blocks back; whether it was there. A node without busy blocks is idle then."""
    nodes = {node for node, _ in records.held_by(connection, reservation)}
    if not remove_record(connection, reservation):
        return False
    for node in nodes:
        its = {"its_node": str(Address(records.NODE, node))}
        if connection.select("reserved_blocks", "WHERE node = :its_node LIMIT 1", **its).first() is None:
            put_node(connection, node, {"idle_since": now})
    return True


# ---------------------------------------------------------------------------------------- rows


def put_record(connection: Connection, record: Record, more: Mapping[str, Any] | None = None) -> bool:
    """Write a record and its needs, over an older one; whether it is new, and then with `more` columns."""
    records.require(connection, record.address, record.needs)
    address = str(record.address)
    row = resource_row(record)
    try:
        is_new = connection.insert_new("resources", "address", {**row, **(more or {})})
        if not is_new:
            values = {name: row[name] for name in row if name not in ("address", "kind", "name")}
            connection.update("resources", values, "address = :its_address", its_address=address)
    except ConstraintError:
        _check_owner(connection, record)
        raise
    if record.needs or not is_new:
        replace_needs(connection, record.address, record.needs)
    return is_new


def resource_row(record: Record) -> dict[str, Any]:
    """The row of a record, without what is observed of it."""
    more = {**record.address._asdict(), "external_id": record.external_id}
    return {**columns("resources", record), **more}


def _check_owner(connection: Connection, record: Record) -> None:
    """Refuse a thing that is recorded under another address."""
    other = connection.execute(
        "SELECT address FROM resources WHERE backend = :its_backend AND kind = :its_kind"
        " AND external_id = :its_external_id AND address <> :its_address",
        its_backend=record.backend,
        its_kind=record.address.kind,
        its_external_id=record.external_id,
        its_address=str(record.address),
    ).scalar()
    if other:
        raise StateError(
            "already-owned",
            f"{record.address.kind} {record.external_id} of {record.backend} is recorded as {other}, "
            f"not {record.address}",
        )


def replace_needs(connection: Connection, address: Address, needs: Iterable[Address]) -> None:
    """Write what a record holds on to."""
    connection.execute(f"DELETE FROM needs {records.BY_ADDRESS}", its_address=str(address))
    texts = sorted(map(str, set(needs)))
    connection.insert("needs", *({"address": str(address), "needed": text} for text in texts))


def remove_record(connection: Connection, address: Address) -> bool:
    """Forget a record with its observations; whether there was one."""
    try:
        gone = connection.execute(f"DELETE FROM resources {records.BY_ADDRESS}", its_address=str(address))
    except ConstraintError:
        records.unneeded(connection, address)
        raise
    forget_status(connection, address)
    return bool(gone.rowcount)


def forget_status(connection: Connection, address: Address) -> None:
    """Drop the observations of an address: its next thing starts as unknown."""
    table = records.STATUS.get(address.kind)
    if table is not None:
        connection.execute(f"DELETE FROM {table} WHERE name = :its_name", its_name=address.name)


def raise_generation(connection: Connection, address: Address, to: int, used: int | None = None) -> None:
    """Note that a generation was used; it never goes down. `used` is the last one, if that is known."""
    used = records.generation(connection, address) if used is None else used
    if used == 0:
        connection.insert("generations", {"address": str(address), "generation": to})
    elif used < to:
        its = {"its_address": str(address)}
        connection.update("generations", {"generation": to}, "address = :its_address", **its)


def raise_serial(connection: Connection) -> None:
    """Raise the serial: records have changed."""
    connection.execute(RAISE_SERIAL)


def put_rank(connection: Connection, name: str, status: RankStatus) -> None:
    """Write how a rank is doing."""
    _put_status(connection, "rank_status", name, columns("rank_status", status))


def put_node(connection: Connection, name: str, values: Mapping[str, Any]) -> None:
    """Write these columns of a node's observations; the others keep their values."""
    _put_status(connection, "node_status", name, values)


def _put_status(connection: Connection, table: str, name: str, values: Mapping[str, Any]) -> None:
    if not connection.update(table, values, "name = :its_name", its_name=name):
        connection.insert(table, {"name": name, **values})


def note_attached(connection: Connection, volumes: Iterable[Address]) -> None:
    """Note that something has them attached."""
    for address in volumes:
        its = {"its_address": str(address)}
        connection.update("resources", {"detached_since": None}, "address = :its_address", **its)


def note_detached(connection: Connection, now: float, volumes: Iterable[Address] | None = None) -> None:
    """Note which of `volumes`, or of all, are not attached: from `now` on, unless noted before."""
    since = {"detached_since": now}
    if volumes is None:
        connection.update("resources", since, DETACHED)
    for address in volumes or ():
        connection.update(
            "resources", since, f"{DETACHED} AND address = :its_address", its_address=str(address)
        )


# ---------------------------------------------------------------------------------------- whole states


def may_push(present: State, pushed: State, held: HeldBlocks, *, force: bool) -> State:
    """The state to write in place of `present`, or `StateError`: nothing that is known is lost unasked."""
    if pushed.lineage is None:
        raise StateError(
            "bad-state",
            "the state to push has no lineage: nothing was ever applied to it",
            "push another one",
        )
    wrong = contradictions(pushed, held)
    if wrong:
        raise StateError(
            "contradiction",
            f"the state to push contradicts itself: {and_more(wrong, records.MOST_NAMED, '; ')}",
            "nothing was changed; `fleetform state check` where it comes from",
        )
    if present.lineage is None:
        return pushed
    if present.lineage != pushed.lineage:
        if present.records or present.intents:
            raise StateError(
                "other-lineage",
                f"another state is there: its lineage is {present.lineage}, that of the one to push "
                f"{pushed.lineage}",
                "nothing of it would be found again: name an empty state with `--state`",
            )
        if not force:
            raise StateError(
                "other-lineage",
                f"another state is there, though an empty one: its lineage is {present.lineage}, that of the "
                f"one to push {pushed.lineage}",
                "`--force` puts it in its place",
            )
        return pushed
    if pushed.serial > present.serial:
        return _with_generations(present, pushed)
    if not force:
        raise StateError(
            "older-state",
            f"the state to push has serial {pushed.serial}, the one that is there {present.serial}",
            "what was recorded since would be lost: compare with `fleetform state pull`; `--force` pushes it "
            "all the same",
        )
    # Its own serial was used for something else meanwhile: a plan that was saved then must not hold now.
    return replace(_with_generations(present, pushed), serial=present.serial + 1)


def _with_generations(present: State, pushed: State) -> State:
    """A generation that was used is not used again, whatever is pushed: its token would come back."""
    used = dict(pushed.generations)
    for address, number in present.generations.items():
        used[address] = max(number, used.get(address, 0))
    return replace(pushed, generations=used)


def replace_state(connection: Connection, state: State, held: HeldBlocks, now: float) -> None:
    """Replace the whole state, except the lock and the journal's ended entries."""
    for table in ("reserved_blocks", "needs", "resources", "rank_status", "node_status", "generations"):
        connection.execute(f"DELETE FROM {table}")
    connection.update("meta", {"lineage": state.lineage, "serial": state.serial})
    connection.lineage = connection.last_id = None
    detached = {Address(records.VOLUME, name): since for name, since in state.detached_since.items()}
    rows = ({**resource_row(r), "detached_since": detached.get(a)} for a, r in state.records.items())
    connection.insert("resources", *rows)
    needs = ((a, need) for a, record in state.records.items() for need in sorted(record.needs))
    connection.insert("needs", *({"address": str(a), "needed": str(need)} for a, need in needs))
    blocks = (
        {"node": f"node/{node}", "block": block, "reservation": f"reservation/{name}"}
        for (node, block), name in held.items()
    )
    connection.insert("reserved_blocks", *blocks)
    used = state.generations.items()
    connection.insert("generations", *({"address": str(a), "generation": number} for a, number in used))
    for name, status in state.ranks.items():
        put_rank(connection, name, status)
    for name, readiness in state.readiness.items():
        put_node(connection, name, columns("node_status", readiness))
    for name, since in state.idle_since.items():
        put_node(connection, name, {"idle_since": since})
    spending.count_all(connection, state.of("node"), now)
    _replace_open_intents(connection, state.intents, now)


def _replace_open_intents(connection: Connection, intents: tuple[Intent, ...], now: float) -> None:
    """The open ones are those of the state, under their ids; what ended stays, but for ids that are taken."""
    kept = ("begun_at", "place", "tick", "host", "doing", "actor", "revision")
    known = {
        row.id: {name: getattr(row, name) for name in kept}
        for row in connection.execute(f"SELECT id, {', '.join(kept)} FROM operations WHERE ended_at IS NULL")
    }
    nowhere = {"host": None, "doing": None, "place": None, "tick": None}
    unknown = {"begun_at": now, **nowhere, **journal.signature(connection)}
    connection.execute("DELETE FROM operations WHERE ended_at IS NULL")
    for some in records.batches([intent.id for intent in intents]):
        connection.execute("DELETE FROM operations WHERE id IN (:its_ids)", its_ids=some)
    connection.insert(
        "operations",
        *({**columns("operations", intent), **known.get(intent.id, unknown)} for intent in intents),
    )
