"""SQL for both databases: snapshots to read, transactions to write, and statements by table and column.

The SQL of the store is what SQLite and PostgreSQL share. It runs through their own drivers, so that a command
which reads a file loads nothing but `sqlite3`. `sqlite` and `server.postgres` have what each database does in
its own way. Values are always parameters. Columns of JSON are written and read as Python values.
"""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from declarative.model.record import struct
from declarative.model.spec.policy import OperatorPolicy
from declarative.store.errors import (
    FROM_BACKUP,
    ConstraintError,
    StateError,
    as_state_error,
    busy,
    is_integrity,
    primary,
)
from declarative.store.lease import Actor, LockInfo
from declarative.store.schema import COLUMNS, FORMAT_VERSION, JSON, later_columns, loads, text_of

MOST_CONNECTIONS = 12
WAIT_SECONDS = 30.0
"""How long a thread waits for one of the connections."""


@struct(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """How a state is opened."""

    root: Path
    """The project's directory: relative paths, and backups, are below it."""
    create: bool
    read_only: bool
    clock: Callable[[], float]
    """This host's."""
    notify: Callable[[str], None] | None = None
    """Gets a text about a migration that was done."""
    policy: OperatorPolicy | None = None
    """The places that a project may name; None if the user named the state."""


class Database(ABC):
    """The database of one state. Threads may share it: each transaction has its own connection."""

    for_update = ""
    """Behind a query in a transaction that writes: others' writes wait for the rows that it finds."""
    mutex: AbstractContextManager[object] = nullcontext()
    """Held while a step is done, where all threads share one connection."""

    commit_patience = 0.0
    """Seconds that a commit waits at most for more writes to go with it."""

    def __init__(self, name: str) -> None:
        """`name` is what messages call the place; without secrets."""
        self.name = name
        self.format = FORMAT_VERSION
        """The format that the tables have: an older one can be read as it is."""
        self.typed = False
        """Whether values of a wrong type are refused when they are read."""
        self.actor: Actor | None = None
        self.whole: tuple[str | None] | None = None
        """The seal with which the state was last found to be whole."""
        self._idle: list[Any] = []
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._closed = False

    @abstractmethod
    def connect(self) -> Any:
        """A new connection of the driver's, which begins no transactions by itself."""

    @abstractmethod
    def begin(self, raw: Any, *, writes: bool) -> None:
        """Begin a transaction: one snapshot that no writer blocks, or one that `writes`."""

    @abstractmethod
    def text(self, sql: str) -> str:
        """SQL with `:name` for each value, as the driver takes it."""

    @abstractmethod
    def now(self, connection: Connection) -> float:
        """Seconds since the epoch, by the clock that all who share the state go by."""

    @abstractmethod
    def backup(self, connection: Connection, which: str) -> Path:
        """Keep what the transaction sees under a name that says `which` it is; where."""

    @abstractmethod
    def columns(self, connection: Connection, table: str) -> list[str]:
        """The names of a table's columns; none if there is no such table."""

    @abstractmethod
    def json_text(self, column: str, *keys: str) -> str:
        """SQL for a text within a column of JSON."""

    def run(self, connection: Connection, statements: Iterable[str]) -> None:
        """Run statements that have no values and find nothing."""
        for sql in statements:
            connection.execute(sql)

    def defer(self, raw: Any, sql: str, values: Mapping[str, Any]) -> None:
        """Run a statement whose result nobody needs, at the latest when the transaction is committed."""
        raw.execute(self.text(sql), values)

    def for_writer(self, lease: LockInfo) -> Database:  # noqa: ARG002 (a file needs no mirror)
        """The database that the holder of the lock works on: for a server, a mirror in memory."""
        return self

    def forget(self) -> None:  # noqa: B027 (only a mirror has something to give up)
        """Give up what is known of a server: the next step reads it anew."""

    def damage(self, connection: Connection) -> list[str]:  # noqa: ARG002 (one database alone can tell)
        """The faults that the database finds in itself."""
        return []

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One consistent snapshot, which no writer blocks."""
        with as_state_error(self.name), self._transaction(writes=False) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction: all of it, or nothing."""
        with as_state_error(self.name), self._transaction(writes=True) as connection:
            yield connection

    @contextmanager
    def whole_journal(self, connection: Connection) -> Iterator[Connection]:
        """A transaction with the ended entries of the journal, which a mirror does not have."""
        yield connection

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[Connection]:
        with self._connected(functools.partial(self.begin, writes=writes)) as raw:
            yield Connection(self, raw)
            self.commit(raw)

    @contextmanager
    def _connected(self, begin: Callable[[Any], None]) -> Iterator[Any]:
        """A connection in a transaction that `begin` began; a fault rolls it back."""
        if not self._room.acquire(timeout=WAIT_SECONDS):
            raise busy()
        raw = None
        try:
            raw = self._in_transaction(begin)
            yield raw
        except BaseException:
            if raw is not None:
                raw = self._rolled_back(raw)
            raise
        finally:
            if raw is not None:
                self._put_back(raw)
            self._room.release()

    def _in_transaction(self, begin: Callable[[Any], None]) -> Any:
        """A connection in a new transaction; one that was lost while idle is replaced in silence."""
        while self._idle:
            try:
                raw = self._idle.pop()
            except IndexError:  # another thread took it
                break
            try:
                begin(raw)
            except Exception as error:
                with suppress(Exception):
                    raw.close()
                if not self.lost(error):
                    raise
            else:
                return raw
        raw = self.connect()
        try:
            begin(raw)
        except BaseException:
            with suppress(Exception):
                raw.close()
            raise
        return raw

    def commit(self, raw: Any) -> Any:
        """End a transaction: from then on it is there for all."""
        raw.execute("COMMIT")

    def lost(self, error: Exception) -> bool:  # noqa: ARG002 (a file is never lost)
        """Whether a connection is of no use any more."""
        return False

    def _rolled_back(self, raw: Any) -> Any:
        """The connection, if it can be used again."""
        try:
            raw.execute("ROLLBACK")
        except Exception:  # noqa: BLE001  # whatever it is: the connection goes, and the first fault counts
            with suppress(Exception):
                raw.close()
            return None
        return raw

    def _put_back(self, raw: Any) -> None:
        if self._closed:
            with suppress(Exception):
                raw.close()
        else:
            self._idle.append(raw)

    def close(self) -> None:
        """Give up all connections; those in use go when their transactions end."""
        self._closed = True
        while self._idle:
            with suppress(Exception):
                self._idle.pop().close()


# ---------------------------------------------------------------------------------------- transactions


class Connection:
    """One transaction."""

    def __init__(self, database: Database, raw: Any) -> None:
        self.database = database
        self.raw = raw
        """The driver's."""
        self.writes: list[Write] | None = None
        """The statements so far, if they are to be sent elsewhere as well."""
        self.format = database.format
        self.holder: Mapping[str, str | None] = {}
        """The holder of the lock, as columns of the journal's entries."""
        self.lineage: str | None = None
        self.last_id: int | None = None
        """The state's id and the last entry's id, once a step has read them: nobody else changes them."""

    def execute(self, sql: str, **values: Any) -> Result:
        """Run one statement. `:name` stands for a value, `(:name)` for a list of them."""
        return Result(self._run(self.raw.execute, sql, values), sql)

    def insert(self, table: str, *rows: Mapping[str, Any]) -> None:
        """Add rows, which all have the same columns."""
        if len(rows) == 1:
            self._run(self.raw.execute, insert_sql(table, tuple(rows[0])), stored_row(rows[0]))
        elif rows:
            values = [stored_row(row) for row in rows]
            self._run(self.raw.cursor().executemany, insert_sql(table, tuple(rows[0])), values)

    def insert_new(self, table: str, key: str, row: Mapping[str, Any]) -> bool:
        """Add a row; False if there is one with its `key`, which stays as it is."""
        sql = f"{insert_sql(table, tuple(row))} ON CONFLICT ({key}) DO NOTHING"
        return bool(self._run(self.raw.execute, sql, stored_row(row)).rowcount)

    def update(self, table: str, values: Mapping[str, Any], where: str = "", **its: Any) -> int:
        """Change columns of the rows that match `where`; their number. No parameter is named as a column."""
        sql = update_sql(table, tuple(values), where)
        count: int = self._run(self.raw.execute, sql, {**stored_row(values), **its}).rowcount
        return count

    def update_unasked(self, table: str, values: Mapping[str, Any], where: str = "", **its: Any) -> None:
        """Like `update`, where nobody asks for the number: it costs no round trip to a server.

        A mirror does not use it: its writes count what they change.
        """
        sql = update_sql(table, tuple(values), where)
        self.database.defer(self.raw, sql, {**stored_row(values), **its})

    def select(self, table: str, where: str = "", **its: Any) -> Result:
        """All columns of a table, NULL for those that an older format has not got yet."""
        return self.execute(select_sql(table, self.format) + where, **its)

    def _run(self, run: Callable[..., Any], sql: str, values: Any) -> Any:
        if " IN (:" in sql:
            sql, values = list_parameters(sql, values)
        try:
            cursor = run(self.database.text(sql), values)
        except Exception as error:
            if not is_integrity(error):
                raise
            raise refused(error) from None
        if self.writes is not None and not sql.startswith("SELECT"):
            each = values if isinstance(values, list) else [values]
            self.writes.append(Write(sql, each, cursor.rowcount if cursor else len(each)))
        return cursor


def refused(error: Exception) -> ConstraintError:
    """The error instead of a driver's own: PostgreSQL's shows values of the row that it refuses."""
    return ConstraintError("constraint", f"the state refuses what contradicts it: {primary(error)}")


# ------------------------------------------------------------------------------------------ statements

MOST = 1e11
"""Upper bound for times and sums: the year 5138."""

ADD_EVENT = (
    "INSERT INTO events (id, at, type, address, detail)"
    " VALUES ((SELECT coalesce(max(id), 0) + 1 FROM events), :at, :type, :address, :detail)"
)
RAISE_SERIAL = "UPDATE meta SET serial = serial + 1"
"""The statement of most steps; `postgres.merged` joins several."""

Row = Any
"""A named tuple of the columns that a query names."""


class Result:
    """The rows of a statement."""

    def __init__(self, cursor: Any, sql: str) -> None:
        self._cursor = cursor
        self._sql = sql
        self.rowcount: int = cursor.rowcount

    def __iter__(self) -> Iterator[Row]:
        read = self._row_maker()
        try:
            yield from map(read, self._cursor)
        finally:
            self._close()

    def _row_maker(self) -> Callable[[Sequence[Any]], Row]:
        """The function that makes rows, one for all runs of a statement that names its columns."""
        maker = _ROW_MAKERS.get(self._sql)
        if maker is None or "*" in self._sql:  # of all columns there may be others by now
            maker = _ROW_MAKERS[self._sql] = _row_maker(
                tuple(column[0] for column in self._cursor.description)
            )
        return maker

    def _close(self) -> None:
        # While a statement is unfinished, a closed connection keeps its files open. Whoever stops in the
        # middle may have given the connection up before.
        with suppress(Exception):
            self._cursor.close()

    def all(self) -> list[Row]:
        """All rows."""
        return list(map(self._row_maker(), self._cursor.fetchall()))

    def first(self) -> Row | None:
        """The first row; None if there is none."""
        values = self._cursor.fetchone()
        if values is None:
            return None
        row = self._row_maker()(values)
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


_ROW_MAKERS: dict[str, Callable[[Sequence[Any]], Row]] = {}
"""Statement → its function; the statements are those of this package."""


@functools.lru_cache(maxsize=64)
def _row_maker(names: tuple[str, ...]) -> Callable[[Sequence[Any]], Row]:
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


def number(amount: object) -> float:
    """A sum or a time as it is recorded; `StateError` for what cannot be one."""
    if isinstance(amount, int | float) and 0 <= amount < MOST:
        return float(amount)
    raise StateError("damaged", "the state holds a sum or a time that is none", FROM_BACKUP)


@functools.lru_cache(maxsize=64)
def insert_sql(table: str, columns: tuple[str, ...]) -> str:
    """A statement that adds one row."""
    values = ", ".join(f":{name}" for name in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"


@functools.lru_cache(maxsize=64)
def update_sql(table: str, columns: tuple[str, ...], where: str) -> str:
    """A statement that changes columns of some rows."""
    new = ", ".join(f"{name} = :{name}" for name in columns)
    return f"UPDATE {table} SET {new}" + (f" WHERE {where}" if where else "")


@functools.lru_cache(maxsize=64)
def select_sql(table: str, format: int) -> str:
    """The beginning of one that reads a table, as it is in that format."""
    late = later_columns(table, format)
    columns = (f"NULL AS {name}" if name in late else name for name in COLUMNS[table])
    return f"SELECT {', '.join(columns)} FROM {table} "


def stored_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they are written."""
    return {name: text_of(value) if name in JSON else value for name, value in row.items()}


def list_parameters(sql: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A parameter for each value of a list."""
    for name, some in [item for item in values.items() if isinstance(item[1], (list, tuple))]:
        names = [f"{name}_{i}" for i in range(len(some))]
        sql = sql.replace(f"(:{name})", f"({', '.join(f':{n}' for n in names) or 'NULL'})")
        values = {**values, **dict(zip(names, some, strict=True))}
        del values[name]
    return sql, values


class Write(NamedTuple):
    """A statement that wrote."""

    sql: str
    values: list[dict[str, Any]]
    """The statement ran once with each of these."""
    rowcount: int
    """The number of rows that it changed, in all."""
