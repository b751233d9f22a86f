"""Between rows and the values of `declarative.state`: each function is a part of one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row, delete, select

from declarative.plan.inputs import faults
from declarative.state import (
    KINDS,
    Address,
    Intent,
    NodeState,
    RankState,
    RankStatus,
    Readiness,
    Record,
    State,
    natural,
)
from declarative.store import statements as sql
from declarative.store import tables as t
from declarative.store.database import plain
from declarative.store.faults import FROM_BACKUP, StateError

RESERVATION, NODE, RANK, VOLUME, ATTACHMENT = "reservation", "node", "rank", "volume", "attachment"

MOST_BOUND = 500
"""How many values one query names; databases have a limit."""


def by_address(address: Address) -> tuple[int, object]:
    """A sort key: kinds in the order in which they are made, then names as people count."""
    return (KINDS.index(address.kind) if address.kind in KINDS else len(KINDS), natural(address.name))


# ------------------------------------------------------------------------------------------ reading


def load(connection: Connection) -> State:
    """Everything that is known, from one snapshot; where the state was opened so, with its types checked."""
    state = _load(connection)
    if connection.get_execution_options().get("typed"):
        wrong = list(islice(faults(state), MOST_NAMED))
        if wrong:
            raise StateError(
                "damaged",
                f"the state holds what was never recorded: {'; '.join(wrong)}",
                f"`fleetform state check` shows all of it; {FROM_BACKUP}",
            )
    return state


MOST_NAMED = 5


def _load(connection: Connection) -> State:
    try:
        meta = connection.execute(sql.META).one()
        readiness, idle_since = _nodes(connection)
        records, detached_since = _records(connection)
        return State(
            lineage=meta.lineage,
            serial=meta.serial,
            records=records,
            ranks=_ranks(connection),
            readiness=readiness,
            idle_since=idle_since,
            detached_since=detached_since,
            generations=_generations(connection),
            intents=tuple(
                intent_of(row)
                for row in connection.execute(
                    t.every(t.operations, connection)
                    .where(t.operations.c.ended_at.is_(None))
                    .order_by(t.operations.c.id)
                )
            ),
        )
    except UNREADABLE as error:
        where = _unreadable(connection)
        raise StateError("damaged", f"the state cannot be read: {where}{error}", FROM_BACKUP) from error


UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError, ArithmeticError)
"""JSON that is none, a state of a rank that there is not, a list where there should be a mapping."""


def _unreadable(connection: Connection) -> str:
    """The row that cannot be read, as the beginning of a sentence."""
    for table in (t.resources, t.rank_status, t.node_status, t.operations):
        (key,) = table.primary_key.columns
        for (found,) in connection.execute(select(key)).all():
            try:
                row = connection.execute(t.every(table, connection).where(key == found)).one()
                _READ.get(table.name, tuple)(row)
            except UNREADABLE:
                return f"the row {str(found)!r} of its table `{table.name}`: "
    return ""


def _sorted(values: Mapping[Any, Any], key: Callable[[Any], Any]) -> dict[Any, Any]:
    # Sorted here, not by the database: its collation is its own affair.
    return {k: values[k] for k in sorted(values, key=key)}


def _records(connection: Connection) -> tuple[dict[Address, Record], dict[str, float]]:
    """All records, and since when volumes are attached to nothing."""
    needs: dict[str, set[Address]] = {}
    for row in connection.execute(select(t.needs)):
        needs.setdefault(row.address, set()).add(Address.parse(row.needed))
    found: dict[Address, Record] = {}
    detached: dict[str, float] = {}
    wanted = t.every(t.resources, connection, but=("external_id",))
    for text, kind, name, backend, inputs, outputs, number, since in connection.execute(wanted).all():
        address = Address(kind, name)
        if since is not None:
            detached[name] = since
        found[address] = Record(
            address=address,
            backend=backend,
            inputs=inputs,
            outputs=outputs,
            needs=frozenset(needs.get(text, ())),
            generation=number,
        )
    return _sorted(found, by_address), _sorted(detached, natural)


def _generations(connection: Connection) -> dict[Address, int]:
    columns = t.generations.c
    rows = connection.execute(select(columns.address, columns.generation)).all()
    return _sorted({Address.parse(text): number for text, number in rows}, by_address)


def _ranks(connection: Connection, names: Sequence[str] | None = None) -> dict[str, RankStatus]:
    query = t.every(t.rank_status, connection)
    if names is not None:
        some = [names[i : i + MOST_BOUND] for i in range(0, len(names), MOST_BOUND)]
        rows = [r for part in some for r in connection.execute(query.where(t.rank_status.c.name.in_(part)))]
    else:
        rows = list(connection.execute(query))
    return _sorted({row.name: _rank(row) for row in rows}, natural)


def _rank(row: Row[Any]) -> RankStatus:
    return RankStatus(
        state=RankState(row.state),
        exit_code=row.exit_code,
        cause=row.cause,
        started_at=row.started_at,
        ended_at=row.ended_at,
        mounted=tuple(row.mounted),
        confinement=row.confinement,
    )


def _nodes(connection: Connection) -> tuple[dict[str, Readiness], dict[str, float]]:
    rows = connection.execute(t.every(t.node_status, connection)).all()
    readiness = {row.name: _node(row) for row in rows if row.state is not None}
    idle = {row.name: row.idle_since for row in rows if row.idle_since is not None}
    return _sorted(readiness, natural), _sorted(idle, natural)


def _node(row: Row[Any]) -> Readiness:
    return Readiness(
        state=NodeState(row.state),
        reason=row.reason,
        observed_at=row.observed_at,
        can=None if row.can is None else frozenset(row.can),
    )


def intent_of(row: Row[Any]) -> Intent:
    """A row of the journal as an intent."""
    return Intent(
        id=row.id,
        op=row.op,
        address=Address.parse(row.address),
        backend=row.backend,
        generation=row.generation,
        token=row.token,
        inputs=row.inputs,
        needs=frozenset(Address.parse(text) for text in row.needs),
        begun_at=row.begun_at,
        place=row.place,
        tick=row.tick,
    )


_READ: Mapping[str, Callable[[Row[Any]], object]] = {
    t.rank_status.name: _rank,
    t.node_status.name: lambda row: row.state is None or _node(row),
    t.operations.name: lambda row: row.ended_at is not None or intent_of(row),
}


def blocks(connection: Connection) -> dict[tuple[str, int], str]:
    """Who holds which block: (node, block) → reservation, by name: the rows, not what records say."""
    found = {
        (Address.parse(row.node).name, row.block): Address.parse(row.reservation).name
        for row in connection.execute(select(t.reserved_blocks))
    }
    return _sorted(found, lambda key: (natural(key[0]), key[1]))


def record(connection: Connection, address: Address) -> Record | None:
    """One record, or None."""
    its = {"its_address": str(address)}
    row = connection.execute(sql.RECORD, its).one_or_none()
    if row is None:
        return None
    return Record(
        address=address,
        backend=row.backend,
        inputs=row.inputs,
        outputs=row.outputs,
        needs=needed(connection, address),
        generation=row.generation,
    )


def needed(connection: Connection, address: Address) -> frozenset[Address]:
    """What a record holds on to."""
    held = connection.execute(sql.NEEDED, {"its_address": str(address)}).scalars()
    return frozenset(map(Address.parse, held))


def part(connection: Connection, wanted: Iterable[Address]) -> State:
    """The records of `wanted` and of all that they need, directly or not, with their ranks' statuses.

    A few queries whatever the size of the state: one action of an apply looks at little of it.
    """
    found: dict[Address, Record] = {}
    asked: set[Address] = set()
    front = set(wanted)
    while front:
        asked |= front
        made = _some(connection, front)
        found.update(made)
        front = {need for record in made.values() for need in record.needs} - asked
    meta = connection.execute(sql.META).one()
    names = [a.name for a in asked if a.kind == RANK]
    return State(lineage=meta.lineage, serial=meta.serial, records=found, ranks=_ranks(connection, names))


def _some(connection: Connection, wanted: Iterable[Address]) -> dict[Address, Record]:
    needs: dict[str, set[Address]] = {}
    texts = sorted(map(str, wanted))
    out: dict[Address, Record] = {}
    for start in range(0, len(texts), MOST_BOUND):
        some = {"its_addresses": texts[start : start + MOST_BOUND]}
        for row in connection.execute(sql.NEEDS, some):
            needs.setdefault(row.address, set()).add(Address.parse(row.needed))
        for row in connection.execute(sql.RECORDS, some):
            address = Address(row.kind, row.name)
            out[address] = Record(
                address=address,
                backend=row.backend,
                inputs=row.inputs,
                outputs=row.outputs,
                needs=frozenset(needs.get(row.address, ())),
                generation=row.generation,
            )
    return out


def open_intents(connection: Connection, address: Address) -> dict[str, Intent]:
    """The open intents of an address, by op."""
    rows = connection.execute(sql.OPEN_OPERATIONS, {"its_address": str(address)})
    return {row.op: intent_of(row) for row in rows}


def begun(connection: Connection, its_token: str) -> Intent | None:
    """The create that was last begun with a token, ended or not."""
    journal = t.operations.c
    wanted = select(t.operations).where(journal.token == its_token, journal.op == "create")
    row = connection.execute(wanted.order_by(journal.id.desc()).limit(1)).first()
    return None if row is None else intent_of(row)


# ------------------------------------------------------------------------------------------ guards


def require(connection: Connection, address: Address, wanted: Iterable[Address]) -> None:
    """Refuse needs that are not recorded, before anything is made that would hold on to them."""
    texts = {str(need) for need in wanted}
    if not texts:
        return
    found = connection.execute(sql.RECORDED, {"its_addresses": list(texts)}).scalars()
    missing = sorted(texts - set(found))
    if missing:
        raise StateError("missing-need", f"{address} needs {', '.join(missing)}, which is not recorded")


def unneeded(connection: Connection, address: Address) -> None:
    """Refuse to let go of what something recorded still needs."""
    text = str(address)
    users = set(connection.execute(sql.NEEDED_BY, {"its_address": text}).scalars())
    users |= set(connection.execute(sql.RESERVATIONS_ON, {"its_node": text}).scalars())
    if users:
        raise StateError("still-needed", f"{address} is still needed by {', '.join(sorted(users))}")


# ------------------------------------------------------------------------------------------ writing


def put(connection: Connection, made: Record) -> None:
    """Write a record and its needs, over an older one of the same address."""
    require(connection, made.address, made.needs)
    text, outputs = str(made.address), plain(made.outputs)
    external = external_id(outputs)
    if external is not None and made.backend is not None:
        thing = {"its_backend": made.backend, "its_kind": made.address.kind, "its_external_id": external}
        other = connection.execute(sql.OWNER, {**thing, "its_address": text}).scalar()
        if other:
            raise StateError(
                "already-owned",
                f"{made.address.kind} {external} of {made.backend} is recorded as {other}, not {text}",
            )
    values = {
        "backend": made.backend,
        "external_id": external,
        "inputs": plain(made.inputs),
        "outputs": outputs,
        "generation": made.generation,
    }
    changed = connection.execute(sql.CHANGE_RECORD, {"its_address": text, **values})
    if not changed.rowcount:
        connection.execute(sql.ADD_RECORD, {"address": text, **made.address._asdict(), **values})
    if changed.rowcount or made.needs:
        replace_needs(connection, made.address, made.needs)
    raise_generation(connection, made.address, made.generation)


def external_id(outputs: Mapping[str, Any]) -> str | None:
    """What a backend calls the thing."""
    found = outputs.get("id")
    return None if found is None else str(found)


def replace_needs(connection: Connection, address: Address, wanted: Iterable[Address]) -> None:
    """Write what a record holds on to."""
    connection.execute(sql.DROP_NEEDS, {"its_address": str(address)})
    rows = [{"address": str(address), "needed": text} for text in sorted(map(str, set(wanted)))]
    if rows:
        connection.execute(sql.ADD_NEEDS, rows)


def remove(connection: Connection, address: Address) -> bool:
    """Forget a record with its observations; whether there was one."""
    unneeded(connection, address)
    gone = connection.execute(sql.DROP_RECORD, {"its_address": str(address)})
    forget_status(connection, address)
    return bool(gone.rowcount)


def forget_status(connection: Connection, address: Address) -> None:
    """Drop what was observed of an address: its next life starts unknown."""
    drop = {RANK: sql.DROP_RANK_STATUS, NODE: sql.DROP_NODE_STATUS}.get(address.kind)
    if drop is not None:
        connection.execute(drop, {"its_name": address.name})


def raise_generation(connection: Connection, address: Address, to: int, used: int | None = None) -> None:
    """Note that a generation was used; it never goes down. `used` is the last one, if that is known."""
    used = generation(connection, address) if used is None else used
    if used == 0:
        connection.execute(sql.ADD_GENERATION, {"address": str(address), "generation": to})
    elif used < to:
        connection.execute(sql.CHANGE_GENERATION, {"its_address": str(address), "generation": to})


def generation(connection: Connection, address: Address) -> int:
    """The last generation that was used of an address; 0 before the first."""
    return connection.execute(sql.GENERATION, {"its_address": str(address)}).scalar() or 0


def count_up(connection: Connection) -> None:
    """What is recorded has changed: the serial moves."""
    connection.execute(sql.COUNT_UP)


def put_rank(connection: Connection, name: str, status: RankStatus) -> None:
    """Write how a rank is doing."""
    values = {
        "state": status.state.value,
        "exit_code": status.exit_code,
        "cause": status.cause,
        "started_at": status.started_at,
        "ended_at": status.ended_at,
        "mounted": list(status.mounted),
        "confinement": status.confinement,
    }
    changed = connection.execute(sql.CHANGE_RANK_STATUS, {"its_name": name, **values})
    if not changed.rowcount:
        connection.execute(sql.ADD_RANK_STATUS, {"name": name, **values})


def seen_values(seen: Readiness) -> dict[str, Any]:
    """What was observed of a node, as columns."""
    return {
        "state": seen.state.value,
        "reason": seen.reason,
        "observed_at": seen.observed_at,
        "can": None if seen.can is None else sorted(seen.can),
    }


def put_node(connection: Connection, name: str, values: Mapping[str, Any]) -> None:
    """Write columns of what is known of a node; the others keep their values."""
    changed = connection.execute(sql.CHANGE_NODE_STATUS, {"its_name": name, **values})
    if not changed.rowcount:
        connection.execute(sql.ADD_NODE_STATUS, {"name": name, **values})


def note_attached(connection: Connection, volumes: Iterable[Address]) -> None:
    """Note that something has them attached."""
    for address in volumes:
        connection.execute(sql.CHANGE_RECORD, {"its_address": str(address), "detached_since": None})


def note_detached(connection: Connection, now: float, volumes: Iterable[Address] | None = None) -> None:
    """Note of `volumes`, or of all, what nothing has attached: from `now` on, if not from before."""
    if volumes is None:
        connection.execute(sql.DETACHED, {"detached_since": now})
    for address in volumes or ():
        connection.execute(sql.DETACHED_ONE, {"its_address": str(address), "detached_since": now})


def prune(connection: Connection, keep: int) -> None:
    """Drop the oldest ended operations beyond the last `keep`."""
    journal = t.operations.c
    oldest = connection.execute(select(journal.id).order_by(journal.id.desc()).offset(keep).limit(1)).scalar()
    if oldest is not None:
        connection.execute(delete(t.operations).where(journal.id <= oldest, journal.ended_at.is_not(None)))


def holders(connection: Connection, node: str, wanted: Iterable[int]) -> dict[int, str]:
    """Who holds which of `wanted`."""
    asked = {"its_node": str(Address(NODE, node)), "its_blocks": list(wanted)}
    rows = connection.execute(sql.BLOCK_HOLDERS, asked)
    return {row.block: row.reservation for row in rows}


def held_by(connection: Connection, reservation: Address) -> set[tuple[str, int]]:
    """What a reservation holds: (node, block)."""
    rows = connection.execute(sql.HELD_BLOCKS, {"its_address": str(reservation)})
    return {(Address.parse(row.node).name, row.block) for row in rows}
