"""SQL statements by table and column, and their rows.

Values are always parameters. Columns of JSON are written and read as Python values.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from declarative.store.faults import FROM_BACKUP, StateError
from declarative.store.tables import COLUMNS, JSON, later_than, loads, text_of

MOST = 1e11
"""No time or sum is as large: the year 5138."""

ADD_EVENT = (
    "INSERT INTO events (id, at, type, address, detail)"
    " VALUES ((SELECT coalesce(max(id), 0) + 1 FROM events), :at, :type, :address, :detail)"
)
COUNT_UP = "UPDATE meta SET serial = serial + 1"
"""What most steps do: see `merged`."""

Row = Any
"""A named tuple of the columns that a query names."""


class Result:
    """The rows of a statement."""

    def __init__(self, cursor: Any, sql: str) -> None:
        self._cursor = cursor
        self._sql = sql
        self.rowcount: int = cursor.rowcount

    def __iter__(self) -> Iterator[Row]:
        read = self._reader()
        try:
            yield from map(read, self._cursor)
        finally:
            self._close()

    def _reader(self) -> Callable[[Sequence[Any]], Row]:
        """What makes a row of a driver's: the same for each run of a statement that names its columns."""
        found = _READERS.get(self._sql)
        if found is None or "*" in self._sql:  # of all columns there may be others by now
            found = _READERS[self._sql] = _reader(tuple(column[0] for column in self._cursor.description))
        return found

    def _close(self) -> None:
        # While a statement is unfinished, a closed connection keeps its files open. Whoever stops in the
        # middle may have given the connection up before.
        with suppress(Exception):
            self._cursor.close()

    def all(self) -> list[Row]:
        """All rows."""
        return list(map(self._reader(), self._cursor.fetchall()))

    def first(self) -> Row | None:
        """The first row; None if there is none."""
        values = self._cursor.fetchone()
        if values is None:
            return None
        row = self._reader()(values)
        self._close()
        return row

    def one(self) -> Row:
        """The only row; `StateError` if there is none, or more."""
        rows = self.all()
        if len(rows) != 1:
            raise StateError("damaged", "the state has lost its own description", FROM_BACKUP)
        return rows[0]

    def scalars(self) -> list[Any]:
        """The first column."""
        return [row[0] for row in self]

    def scalar(self) -> Any:
        """The first column of the first row; None if there is none."""
        row = self.first()
        return None if row is None else row[0]


_READERS: dict[str, Callable[[Sequence[Any]], Row]] = {}
"""By statement: there are as many as are written in this package."""


@functools.lru_cache(maxsize=64)
def _reader(names: tuple[str, ...]) -> Callable[[Sequence[Any]], Row]:
    """A function that makes rows with these columns."""
    # The columns are known when they come.
    kind: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]  # noqa: PYI024
    make: Callable[[Sequence[Any]], Row] = kind._make
    packed = tuple(i for i, name in enumerate(names) if name in JSON)

    def unpacked(values: Sequence[Any]) -> Row:
        row = list(values)
        for index in packed:
            if row[index] is not None:
                row[index] = loads(row[index])
        return make(row)

    return unpacked if packed else make


def number(found: object) -> float:
    """A sum or a time as it is recorded; `StateError` for what cannot be one."""
    if isinstance(found, int | float) and 0 <= found < MOST:
        return float(found)
    raise StateError("damaged", "the state holds a sum or a time that is none", FROM_BACKUP)


@functools.lru_cache(maxsize=64)
def insert(table: str, columns: tuple[str, ...]) -> str:
    """A statement that adds one row."""
    values = ", ".join(f":{name}" for name in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"


@functools.lru_cache(maxsize=64)
def update(table: str, columns: tuple[str, ...], where: str) -> str:
    """A statement that changes columns of some rows."""
    new = ", ".join(f"{name} = :{name}" for name in columns)
    return f"UPDATE {table} SET {new}" + (f" WHERE {where}" if where else "")


@functools.lru_cache(maxsize=64)
def select(table: str, found: int, but: tuple[str, ...]) -> str:
    """The beginning of one that reads a table, as it is in the format `found`."""
    late = later_than(found)
    names = [name for name in COLUMNS[table] if name not in but]
    wanted = (f"NULL AS {name}" if f"{table}.{name}" in late else name for name in names)
    return f"SELECT {', '.join(wanted)} FROM {table} "


def stored(row: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they are written."""
    return {name: text_of(value) if name in JSON else value for name, value in row.items()}


def listed(sql: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A parameter for each value of a list."""
    for name, some in [item for item in values.items() if isinstance(item[1], (list, tuple))]:
        names = [f"{name}_{i}" for i in range(len(some))]
        sql = sql.replace(f"(:{name})", f"({', '.join(f':{n}' for n in names) or 'NULL'})")
        values = {**values, **dict(zip(names, some, strict=True))}
        del values[name]
    return sql, values


# ------------------------------------------------------------------------------- what was written


class Write(NamedTuple):
    """A statement that wrote."""

    sql: str
    values: list[dict[str, Any]]
    """The statement ran once with each of these."""
    rowcount: int
    """The number of rows that it changed, in all."""


_ADD_EVENTS = """
    INSERT INTO events (id, at, type, address, detail)
    SELECT (SELECT coalesce(max(id), 0) FROM events) + number, at, type, address, detail::json
    FROM (VALUES {rows}) AS new (number, at, type, address, detail)
"""


def merged(writes: Sequence[Write]) -> list[Write]:
    """The same writes with one statement for all events, and one for the serial: nothing in the same
    transaction depends on them, and the server plans each statement anew.
    """
    found = [write for write in writes if write.sql not in (ADD_EVENT, COUNT_UP)]
    told = [values for write in writes if write.sql == ADD_EVENT for values in write.values]
    if told:
        rows = ", ".join(f"({i}, :at{i}, :type{i}, :address{i}, :detail{i})" for i in range(1, len(told) + 1))
        values = {f"{name}{i}": value for i, its in enumerate(told, 1) for name, value in its.items()}
        found.append(Write(_ADD_EVENTS.format(rows=rows), [values], len(told)))
    if count := sum(write.sql == COUNT_UP for write in writes):
        found.append(Write("UPDATE meta SET serial = serial + :its_count", [{"its_count": count}], 1))
    return found
