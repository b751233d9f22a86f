"""Reads rows as the values of `declarative.model.state`; each function is part of one transaction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from declarative.model.state import Address, Intent, Record, State, by_address, natural
from declarative.model.status import RankStatus, Readiness
from declarative.store.consistency import wrong_values
from declarative.store.errors import FROM_BACKUP, StateError
from declarative.store.schema import value_of
from declarative.store.sql import Connection, Row

T = TypeVar("T")

RESERVATION, NODE, RANK, VOLUME, ATTACHMENT = "reservation", "node", "rank", "volume", "attachment"

STATUS = {RANK: "rank_status", NODE: "node_status"}
"""The tables of observations, by kind."""
MOST_BOUND = 500
"""How many values one query names; databases have a limit."""

BY_ADDRESS = "WHERE address = :its_address"
BY_ADDRESSES = "WHERE address IN (:its_addresses)"


# ------------------------------------------------------------------------------------------ reading


def load(connection: Connection, *, checked: bool = False) -> State:
    """Everything that is known, from one snapshot; where the state was opened so, with its types checked,
    unless they were `checked` before.
    """
    try:
        meta = connection.execute("SELECT lineage, serial FROM meta").one()
        nodes = connection.select("node_status").all()
        records, detached_since = _records(connection)
        state = State(
            lineage=meta.lineage,
            serial=meta.serial,
            records=_sorted(records, by_address),
            ranks=_sorted(
                {row.name: value_of(RankStatus, row) for row in connection.select("rank_status")}, natural
            ),
            readiness=_sorted(
                {row.name: value_of(Readiness, row) for row in nodes if row.state is not None}, natural
            ),
            idle_since=_sorted(
                {row.name: row.idle_since for row in nodes if row.idle_since is not None}, natural
            ),
            detached_since=_sorted(detached_since, natural),
            generations=_sorted(
                {Address.parse(text): number for text, number in connection.select("generations")}, by_address
            ),
            intents=tuple(
                value_of(Intent, row)
                for row in connection.select("operations", "WHERE ended_at IS NULL ORDER BY id")
            ),
        )
    except UNREADABLE as error:
        where = _unreadable(connection)
        raise StateError("damaged", f"the state cannot be read: {where}{error}", FROM_BACKUP) from error
    if connection.database.typed and not checked:
        wrong = list(islice(wrong_values(state), MOST_NAMED))
        if wrong:
            raise StateError(
                "damaged",
                f"the state holds what was never recorded: {'; '.join(wrong)}",
                f"`fleetform state check` shows all of it; {FROM_BACKUP}",
            )
    return state


MOST_NAMED = 5


def named(connection: Connection, what: str) -> str | None:
    """The `lineage` or the `project` of the state; None if it has none yet."""
    text: str | None = connection.execute(f"SELECT {what} FROM meta").one()[0]
    return text


UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError, ArithmeticError)
"""Errors of stored values: invalid JSON, an unknown state of a rank, a list instead of a mapping."""


def _unreadable(connection: Connection) -> str:
    """The row that cannot be read, as the beginning of a sentence."""
    for table, key in (
        ("resources", "address"),
        ("rank_status", "name"),
        ("node_status", "name"),
        ("operations", "id"),
    ):
        for value in connection.execute(f"SELECT {key} FROM {table}").scalars():
            try:
                row = connection.select(table, f"WHERE {key} = :its_key", its_key=value).one()
                _READ.get(table, tuple)(row)
            except UNREADABLE:
                return f"the row {str(value)!r} of its table `{table}`: "
    return ""


def _sorted(values: Mapping[Any, Any], key: Callable[[Any], Any]) -> dict[Any, Any]:
    # Sorted here, not by the database: its collation is its own affair.
    return {k: values[k] for k in sorted(values, key=key)}


def _records(
    connection: Connection, where: str = "", **its: Any
) -> tuple[dict[Address, Record], dict[str, float]]:
    """The records of all rows or of those that match, and since when volumes are attached to nothing."""
    needs: dict[str, set[Address]] = {}
    for row in connection.select("needs", where, **its):
        needs.setdefault(row.address, set()).add(Address.parse(row.needed))
    records: dict[Address, Record] = {}
    detached: dict[str, float] = {}
    for row in connection.select("resources", where, **its):
        record = value_of(Record, row, needs=frozenset(needs.get(row.address, ())))
        records[record.address] = record
        if row.detached_since is not None:
            detached[row.name] = row.detached_since
    return records, detached


def batches(values: Sequence[T]) -> Iterator[list[T]]:
    """As many of them at a time as one query may name."""
    return (list(values[start : start + MOST_BOUND]) for start in range(0, len(values), MOST_BOUND))


def statuses(connection: Connection, names: Sequence[str]) -> dict[str, RankStatus]:
    """The last observed statuses of these ranks."""
    ranks: dict[str, RankStatus] = {}
    for some in batches(names):
        rows = connection.select("rank_status", "WHERE name IN (:its_names)", its_names=some)
        ranks.update((row.name, value_of(RankStatus, row)) for row in rows)
    return _sorted(ranks, natural)


def states(connection: Connection, kind: str, names: Sequence[str]) -> dict[str, str]:
    """The states in which these ranks or nodes were last seen."""
    sql = f"SELECT name, state FROM {STATUS[kind]} WHERE name IN (:its_names)"
    last: dict[str, str] = {}
    for some in batches(names):
        last.update((row.name, row.state) for row in connection.execute(sql, its_names=some))
    return last


_READ: Mapping[str, Callable[[Row], object]] = {
    "rank_status": functools.partial(value_of, RankStatus),
    "node_status": lambda row: row.state is None or value_of(Readiness, row),
    "operations": lambda row: row.ended_at is not None or value_of(Intent, row),
}


def blocks(connection: Connection) -> dict[tuple[str, int], str]:
    """(node, block) → the name of the reservation that holds it: from the rows, not from records."""
    held = {
        (Address.parse(row.node).name, row.block): Address.parse(row.reservation).name
        for row in connection.select("reserved_blocks")
    }
    return _sorted(held, lambda key: (natural(key[0]), key[1]))


def record(connection: Connection, address: Address) -> Record | None:
    """One record, or None."""
    return _records(connection, BY_ADDRESS, its_address=str(address))[0].get(address)


def recorded(connection: Connection, address: Address) -> Record:
    """One record; `StateError` not-recorded if there is none."""
    known = record(connection, address)
    if known is None:
        raise StateError("not-recorded", f"{address} is not recorded")
    return known


def needed(connection: Connection, address: Address) -> frozenset[Address]:
    """The addresses that a record needs."""
    rows = connection.execute(f"SELECT needed FROM needs {BY_ADDRESS}", its_address=str(address))
    return frozenset(map(Address.parse, rows.scalars()))


def part(connection: Connection, addresses: Iterable[Address]) -> State:
    """These records and all that they need, directly or not, with their ranks' statuses.

    A few queries whatever the size of the state: one action of an apply looks at little of it.
    """
    records: dict[Address, Record] = {}
    asked: set[Address] = set()
    front = set(addresses)
    while front:
        asked |= front
        next_front = set[Address]()
        for texts in batches(sorted(map(str, front))):
            some, _ = _records(connection, BY_ADDRESSES, its_addresses=texts)
            records.update(some)
            next_front.update(need for record in some.values() for need in record.needs)
        front = next_front - asked
    meta = connection.execute("SELECT lineage, serial FROM meta").one()
    names = [a.name for a in asked if a.kind == RANK]
    ranks = statuses(connection, names) if names else {}
    return State(lineage=meta.lineage, serial=meta.serial, records=records, ranks=ranks)


def open_intents(connection: Connection, address: Address) -> dict[str, Intent]:
    """The open intents of an address, by op."""
    still_open = f"{BY_ADDRESS} AND ended_at IS NULL"
    rows = connection.select("operations", still_open, its_address=str(address))
    return {row.op: value_of(Intent, row) for row in rows}


def generation(connection: Connection, address: Address) -> int:
    """The last generation that was used of an address; 0 before the first."""
    used = f"SELECT generation FROM generations {BY_ADDRESS}"
    return connection.execute(used, its_address=str(address)).scalar() or 0


def holders(connection: Connection, node: str, blocks: Iterable[int]) -> dict[int, str]:
    """The holders of these blocks of a node."""
    there = "WHERE node = :its_node AND block IN (:its_blocks)"
    at = str(Address(NODE, node))
    rows = connection.select("reserved_blocks", there, its_node=at, its_blocks=list(blocks))
    return {row.block: row.reservation for row in rows}


def held_by(connection: Connection, reservation: Address) -> set[tuple[str, int]]:
    """The blocks of a reservation: (node, block)."""
    rows = connection.select("reserved_blocks", "WHERE reservation = :its_name", its_name=str(reservation))
    return {(Address.parse(row.node).name, row.block) for row in rows}


# ------------------------------------------------------------------------------------------ guards


def require(connection: Connection, address: Address, needs: Iterable[Address]) -> None:
    """Refuse needs that are not recorded, before anything is made that would hold on to them."""
    texts = {str(need) for need in needs}
    if not texts:
        return
    rows = connection.execute(f"SELECT address FROM resources {BY_ADDRESSES}", its_addresses=list(texts))
    missing = sorted(texts - set(rows.scalars()))
    if missing:
        raise StateError("missing-need", f"{address} needs {', '.join(missing)}, which is not recorded")


def unneeded(connection: Connection, address: Address) -> None:
    """Refuse to let go of what something recorded still needs."""
    text = str(address)
    using = "SELECT address FROM needs WHERE needed = :its_text"
    users = set(connection.execute(using, its_text=text).scalars())
    if address.kind == NODE:
        on_it = "SELECT reservation FROM reserved_blocks WHERE node = :its_text"
        users |= set(connection.execute(on_it, its_text=text).scalars())
    if users:
        raise StateError("still-needed", f"{address} is still needed by {', '.join(sorted(users))}")


SEEN_ANEW = 120.0
"""Seconds after which an unchanged readiness is written again: a loop looks more often than that."""


def is_news(before: Readiness | None, now: Readiness) -> bool:
    """Whether a node's readiness differs from the recorded one, or was last recorded some time ago."""
    if before is None or replace(now, observed_at=before.observed_at, down=before.down) != before:
        return True
    if now.observed_at is None or before.observed_at is None:
        return now.observed_at != before.observed_at
    return not 0 <= now.observed_at - before.observed_at < SEEN_ANEW
