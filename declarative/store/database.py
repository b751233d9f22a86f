"""Where a state is: from its URL to an engine with the guarantees that the rest relies on.

Everything that is SQLite's own stands here; another database gets a module of its own beside this one,
and nothing else changes.
"""

from __future__ import annotations

import functools
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event, exc, make_url, select

from declarative.store import tables

if TYPE_CHECKING:
    from declarative.store.lock import LockInfo

BUSY_SECONDS = 30.0
"""How long a statement waits for another one's transaction; those are all short."""


class StateError(Exception):
    """The state cannot be used, or refuses what was asked of it. `code` is stable."""

    def __init__(
        self, code: str, summary: str, hint: str | None = None, *, lock: LockInfo | None = None
    ) -> None:
        super().__init__(summary)
        self.code = code
        self.summary = summary
        self.hint = hint
        self.lock = lock
        """Who holds the lock, where that is what is wrong."""


def path_of(url: str, root: Path | None = None) -> Path:
    """The file that a `sqlite:///` URL names. Messages do not repeat the URL: it may hold a secret."""
    try:
        parsed = make_url(url)
    except exc.ArgumentError:
        raise StateError(
            "bad-url", "the state's URL cannot be read", "write sqlite:///path/to/state.db"
        ) from None
    if parsed.password is not None:
        raise StateError(
            "bad-url",
            "the state's URL has a password in it",
            "leave it out: passwords come from the environment or from libpq's own files",
        )
    scheme = parsed.drivername.partition("+")[0]
    if scheme in ("postgresql", "postgres"):
        raise StateError(
            "not-supported-yet", "states in PostgreSQL come later", "use sqlite:///path/to/state.db"
        )
    if parsed.drivername != "sqlite":
        raise StateError(
            "bad-url", f"states cannot be kept in `{scheme}`", "write sqlite:///path/to/state.db"
        )
    if not parsed.database or parsed.database == ":memory:" or parsed.host or parsed.query:
        raise StateError(
            "bad-url",
            "the state's URL names no file" if not parsed.query else "the state's URL takes no options",
            "write sqlite:///relative/path or sqlite:////absolute/path",
        )
    return (root or Path()) / parsed.database


def dumps(value: Any) -> str:
    """JSON as it is stored: the same value, the same text."""
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_mapping
    )


@functools.lru_cache(maxsize=256)
def loads(text: str) -> Any:
    """What is stored, as a value that is only looked at: the things of one document share their inputs."""
    return json.loads(text)


def plain(value: Any) -> Any:
    """`value` as it will be read back: dicts, lists and scalars."""
    return json.loads(dumps(value))


def _mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be stored")


def engine(path: Path, *, mode: str) -> Engine:
    """An engine on an existing file. `mode` is SQLite's: `rw`, or `ro`, which writes nothing."""
    uri = f"{path.absolute().as_uri()}?mode={'ro' if mode == 'ro' else 'rw'}"
    if mode == "ro" and not Path(f"{path}-wal").exists():
        # In a folder where we may not write, SQLite cannot make the shared memory that WAL wants; without
        # a -wal there is nobody to share it with.
        uri += "&immutable=1"

    def connect() -> sqlite3.Connection:
        # `isolation_level=None`: the module begins no transactions of its own, `begin` below does.
        return sqlite3.connect(
            uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )

    made = create_engine(
        "sqlite://",
        creator=connect,
        poolclass=QueuePool,
        json_serializer=dumps,
        json_deserializer=loads,
        hide_parameters=True,  # what is stored has no place in messages and tracebacks
    )

    @event.listens_for(made, "connect")
    def set_up(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=FULL")  # a commit has reached the disk, in WAL as well

    @event.listens_for(made, "begin")
    def begin(connection: Connection) -> None:
        # A write takes its turn at once: one that began as a read could be refused half-way.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return made


@contextmanager
def reading(database: Engine) -> Iterator[Connection]:
    """One consistent snapshot, which no writer blocks."""
    with translated(), database.connect() as connection, connection.begin():
        yield connection


@contextmanager
def writing(database: Engine) -> Iterator[Connection]:
    """One transaction: all of it, or nothing."""
    with translated(), database.connect().execution_options(writes=True) as connection, connection.begin():
        yield connection


def open_file(path: Path, *, create: bool, read_only: bool) -> Engine | None:
    """The engine of the state in `path`; None when there is none and it must not be made."""
    if not path.exists():
        if read_only:
            return None
        if not create:
            raise StateError("no-state", f"there is no state in {path}", "`fleetform apply` makes one")
        with translated(path):
            _make(path)
    if path.stat().st_size == 0:
        # We never leave an empty one (see `_make`): to take it for a new state would make everything anew.
        raise StateError("damaged", f"the state {path} is empty", "bring it back from a backup")
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    if not writable and not read_only:
        raise StateError("read-only", f"the state {path} cannot be written by this user")
    # A reader opens for writing too where it may: only such a connection clears up after itself.
    made = engine(path, mode="rw" if writable else "ro")
    try:
        with translated(path):
            _agree(made, path, read_only=read_only)
    except BaseException:
        made.dispose()
        raise
    return made


def _agree(database: Engine, path: Path, *, read_only: bool) -> None:
    """Refuse what is no state of ours, check the format, and bring an older one up to date.

    SQLite itself looks at the file: to open and close it besides would drop the locks that another
    connection of this process holds on it.
    """
    with database.connect() as connection, connection.begin():
        if not database.dialect.has_table(connection, tables.meta.name):
            raise StateError(
                "not-a-state", f"{path} is a database but no fleetform state; it was left as it is"
            )
        found, tool = _format(connection)
    if found > tables.FORMAT_VERSION:
        raise StateError(
            "newer-format",
            f"the state {path} has format {found}, this fleetform knows up to {tables.FORMAT_VERSION}",
            f"install fleetform {tool} or newer",
        )
    if read_only and found < tables.FORMAT_VERSION:
        raise StateError(
            "older-format", f"the state {path} has the older format {found}", "`fleetform apply` renews it"
        )
    if read_only:
        return
    if _pragma(database, "journal_mode") != "wal":  # a copy made by VACUUM INTO, or by hand
        _pragma(database, "journal_mode=WAL")
    if found < tables.FORMAT_VERSION:
        with writing(database) as connection:
            tables.migrate(
                connection, _format(connection)[0]
            )  # read again: another process may have been first


def _format(connection: Connection) -> tuple[int, str]:
    # These two columns stay as they are in all formats, or a newer one could not be named.
    row = connection.execute(select(tables.meta.c.format_version, tables.meta.c.tool)).one_or_none()
    if row is None:
        raise StateError("damaged", "the state has lost its own description", "bring it back from a backup")
    return row.format_version, row.tool


def _pragma(database: Engine, text: str) -> str:
    """Run a pragma outside of any transaction, where some of them only work."""
    raw = database.raw_connection()
    try:
        cursor = raw.cursor()
        cursor.execute(f"PRAGMA {text}")
        return str((cursor.fetchone() or ("",))[0])
    finally:
        raw.close()


def _make(path: Path) -> None:
    """Make a new state aside and put it in its place whole, so that a crash never leaves half of one."""
    folder = path.absolute().parent
    _make_folder(folder)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
    aside = Path(name)
    try:
        os.fchmod(handle, 0o600)  # SQLite gives -wal and -shm the same mode
        os.close(handle)
        made = engine(aside, mode="rw")
        try:
            _pragma(made, "journal_mode=WAL")  # kept in the file
            with writing(made) as connection:
                tables.create(connection)
        finally:
            made.dispose()
        with suppress(FileExistsError):  # someone else was first: theirs it is
            os.link(aside, path)
    finally:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{aside}{suffix}").unlink(missing_ok=True)
    _sync_folder(folder)


def _make_folder(folder: Path) -> None:
    for part in (*reversed(folder.parents), folder):
        if not part.exists():
            with suppress(FileExistsError):
                part.mkdir(mode=0o700)
                part.chmod(0o700)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def damage(connection: Connection) -> list[str]:
    """What the database finds wrong with itself."""
    if connection.dialect.name != "sqlite":
        return []
    found = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check") if row[0] != "ok"]
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    return found + [f"a row of {row[0]} refers to a row of {row[2]} that is not there" for row in broken]


_FAULTS = {
    "SQLITE_BUSY": ("busy", "the state's database is busy with another process", "try again"),
    "SQLITE_LOCKED": ("busy", "the state's database is busy with another process", "try again"),
    "SQLITE_NOTADB": ("not-a-state", "the state's file is no database; it was left as it is", None),
    "SQLITE_CORRUPT": ("damaged", "the state's database is damaged", "bring it back from a backup"),
    "SQLITE_FULL": (
        "disk-full",
        "the state could not be written: its disk is full",
        "make room and run it again",
    ),
    "SQLITE_READONLY": ("read-only", "the state cannot be written by this user", None),
    "SQLITE_CANTOPEN": ("unreadable", "the state's database cannot be opened", None),
    "SQLITE_IOERR": (
        "disk",
        "the state's disk failed",
        "nothing of the last step was recorded; run it again",
    ),
}


@contextmanager
def translated(path: Path | None = None) -> Iterator[None]:
    """Faults of the database and of its files as `StateError`."""
    try:
        yield
    except exc.IntegrityError as error:
        raise StateError("constraint", f"the state refuses what contradicts it: {error.orig}") from error
    except (exc.DBAPIError, sqlite3.Error) as error:
        raise _fault(error, path) from error
    except exc.SQLAlchemyError as error:
        raise StateError("damaged", f"the state cannot be read: {error}") from error
    except OSError as error:
        where = path or error.filename or "the state"
        raise StateError("unreadable", f"{where}: {error.strerror}") from error


def _fault(error: exc.DBAPIError | sqlite3.Error, path: Path | None) -> StateError:
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    name = str(getattr(cause, "sqlite_errorname", ""))
    for prefix, (code, summary, hint) in _FAULTS.items():
        if name.startswith(prefix):
            return StateError(code, f"{summary} ({path})" if path else summary, hint)
    return StateError("database", f"the state's database failed: {cause}")
