"""A database as the store uses it: snapshots to read, transactions to write, a clock, a backup.

The SQL of the store is what SQLite and PostgreSQL share; it runs through their own drivers, so that a command
which reads a file loads nothing but `sqlite3`. What each database does in its own way stands in a module of
its own, `sqlite` and `postgres`, which is loaded when a state is kept there.
"""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from declarative.model.record import struct
from declarative.model.spec.policy import OperatorPolicy
from declarative.store import statements
from declarative.store.faults import (
    ConstraintError,
    busy,
    is_integrity,
    primary,
    translated,
)
from declarative.store.statements import Result, Write
from declarative.store.tables import FORMAT_VERSION

if TYPE_CHECKING:
    from declarative.store.journal import Who
    from declarative.store.lock import LockInfo
    from declarative.store.working_copy import WorkingCopy


MOST_CONNECTIONS = 12
WAIT_SECONDS = 30.0
"""How long a thread waits for one of the connections."""


@struct(frozen=True, slots=True, kw_only=True)
class Opening:
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
    """Where one state is kept. Its threads may share it: each transaction has a connection of its own."""

    for_update = ""
    """Behind a query in a transaction that writes: others' writes wait for the rows that it finds."""
    mutex: AbstractContextManager[object] = nullcontext()
    """Held while a step is done, where all threads share one connection."""

    def __init__(self, name: str) -> None:
        """`name` is what messages call the place; without secrets."""
        self.name = name
        self.format = FORMAT_VERSION
        """The format that the tables have: an older one can be read as it is."""
        self.typed = False
        """Whether values of a wrong type are refused when they are read."""
        self.who: Who | None = None
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

    def working_copy(self, lease: LockInfo) -> WorkingCopy | None:  # noqa: ARG002
        """What the holder of the lock works on where each statement would be a round trip to a server."""
        return None

    def damage(self, connection: Connection) -> list[str]:  # noqa: ARG002 (one database alone can tell)
        """The faults that the database finds in itself."""
        return []

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One consistent snapshot, which no writer blocks."""
        with translated(self.name), self._transaction(writes=False) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction: all of it, or nothing."""
        with translated(self.name), self._transaction(writes=True) as connection:
            yield connection

    @contextmanager
    def whole_journal(self, connection: Connection) -> Iterator[Connection]:
        """Where the journal of what ended is, for a transaction of this database."""
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
        """What earlier steps have read and nobody else changes: the state's id, the last entry's id."""

    def execute(self, sql: str, **values: Any) -> Result:
        """Run one statement. `:name` stands for a value, `(:name)` for a list of them."""
        return Result(self._run(self.raw.execute, sql, values), sql)

    def insert(self, table: str, *rows: Mapping[str, Any]) -> None:
        """Add rows, which all have the same columns."""
        if len(rows) == 1:
            self._run(self.raw.execute, statements.insert(table, tuple(rows[0])), statements.stored(rows[0]))
        elif rows:
            given = [statements.stored(row) for row in rows]
            self._run(self.raw.cursor().executemany, statements.insert(table, tuple(rows[0])), given)

    def insert_new(self, table: str, key: str, row: Mapping[str, Any]) -> bool:
        """Add a row; False if there is one with its `key`, which stays as it is."""
        sql = f"{statements.insert(table, tuple(row))} ON CONFLICT ({key}) DO NOTHING"
        return bool(self._run(self.raw.execute, sql, statements.stored(row)).rowcount)

    def update(self, table: str, values: Mapping[str, Any], where: str = "", **its: Any) -> int:
        """Change columns of the rows that match `where`, and return their number. Parameters of `where` must
        not be names of columns.
        """
        sql = statements.update(table, tuple(values), where)
        found: int = self._run(self.raw.execute, sql, {**statements.stored(values), **its}).rowcount
        return found

    def update_unasked(self, table: str, values: Mapping[str, Any], where: str = "", **its: Any) -> None:
        """Like `update`, where nobody asks for the number: it costs no round trip to a server.

        Not for steps of a working copy, which count what they change.
        """
        sql = statements.update(table, tuple(values), where)
        self.database.defer(self.raw, sql, {**statements.stored(values), **its})

    def select(self, table: str, where: str = "", *, but: Sequence[str] = (), **its: Any) -> Result:
        """All columns of a table, NULL for those that an older format has not got yet."""
        return self.execute(statements.select(table, self.format, tuple(but)) + where, **its)

    def _run(self, run: Callable[..., Any], sql: str, values: Any) -> Any:
        if " IN (:" in sql:
            sql, values = statements.listed(sql, values)
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
