"""States in SQLite: one file, made whole, written through to the disk, read while it is written.

Everything that is SQLite's own.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from declarative.store.backup import make_folder, put, sync_folder
from declarative.store.errors import FROM_BACKUP, WRITABLE, StateError, as_state_error
from declarative.store.migrations import agree, create
from declarative.store.sql import Connection, Database, OpenOptions

BUSY_SECONDS = 30.0
"""Seconds that a statement waits for another's transaction; those are all short."""


_URL = re.compile(r"sqlite(?:\+\w+)?://(?P<host>[^/?]*)(?:/(?P<path>[^?]*))?(?P<query>\?.*)?", re.DOTALL)


def path_of(url: str, root: Path | None = None) -> Path:
    """The file that a `sqlite:///` URL names."""
    parsed = _URL.fullmatch(url)
    if parsed is None:
        raise StateError("bad-url", "the state's URL cannot be read", "write sqlite:///path/to/state.db")
    if not parsed["path"] or parsed["path"] == ":memory:" or parsed["host"] or parsed["query"]:
        raise StateError(
            "bad-url",
            "the state's URL takes no options" if parsed["query"] else "the state's URL names no file",
            "write sqlite:///relative/path or sqlite:////absolute/path",
        )
    return (root or Path()) / parsed["path"]


class Sqlite(Database):
    """An existing file."""

    def __init__(self, path: Path, *, mode: str, clock: Callable[[], float]) -> None:
        """`mode` is SQLite's: `rw`, or `ro`, which writes nothing.

        `clock` is that of this host, which all who share the file are on.
        """
        super().__init__(str(path))
        self._path = path
        self._clock = clock
        self._uri = f"{path.absolute().as_uri()}?mode={'ro' if mode == 'ro' else 'rw'}"
        if mode == "ro" and not Path(f"{path}-wal").exists():
            # In a folder where we may not write, SQLite cannot make the shared memory that WAL wants; without
            # a -wal there is nobody to share it with.
            self._uri += "&immutable=1"

    def connect(self) -> sqlite3.Connection:
        # `isolation_level=None`: the module begins no transactions of its own, `begin` does.
        connection = sqlite3.connect(
            self._uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA foreign_keys=ON")
            connection.execute("PRAGMA synchronous=FULL")  # a commit has reached the disk, in WAL as well
        except BaseException:
            connection.close()
            raise
        return connection

    def begin(self, raw: sqlite3.Connection, *, writes: bool) -> None:
        # A write takes its turn at once: one that began as a read could be refused half-way.
        raw.execute("BEGIN IMMEDIATE" if writes else "BEGIN")

    def text(self, sql: str) -> str:
        return sql

    def now(self, connection: Connection) -> float:  # noqa: ARG002 (a server is asked)
        return self._clock()

    def backup(self, connection: Connection, which: str) -> Path:  # noqa: ARG002 (a server is asked)
        """Write a copy beside the file, by SQLite's own means."""
        path = self._path

        def fill(aside: Path) -> None:
            # It reads what is committed, even while another process writes.
            source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS)
            with closing(source), closing(sqlite3.connect(aside)) as copy:
                source.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a -wal

        return put(path.absolute().parent, f"{path.name}.backup-{which}", fill)

    def columns(self, connection: Connection, table: str) -> list[str]:
        return connection.execute("SELECT name FROM pragma_table_info(:its_table)", its_table=table).scalars()

    def json_text(self, column: str, *keys: str) -> str:
        return f"json_extract({column}, '$.{'.'.join(keys)}')"

    def damage(self, connection: Connection) -> list[str]:
        lines = connection.execute("PRAGMA integrity_check").scalars()
        faults = [str(line) for line in lines if line != "ok"]
        broken = connection.execute("PRAGMA foreign_key_check").all()
        return faults + [f"a row of {row[0]} refers to a row of {row[2]} that is not there" for row in broken]

    def pragma(self, text: str) -> str:
        """Run a pragma outside of any transaction, where some of them only work."""
        raw = self._idle.pop() if self._idle else self.connect()
        try:
            return str((raw.execute(f"PRAGMA {text}").fetchone() or ("",))[0])
        finally:
            self._put_back(raw)

    def use_wal(self) -> None:
        """Let readers go on while a process writes. The file keeps this setting."""
        until = time.monotonic() + BUSY_SECONDS
        while self.pragma("journal_mode") != "wal":
            try:
                self.pragma("journal_mode=WAL")
            except sqlite3.OperationalError as error:
                # For this alone SQLite does not wait by itself for others that have the file open.
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
                time.sleep(0.02)


def open_file(path: Path, opening: OpenOptions) -> Database | None:
    """The database of the state in `path`; None if there is none and it must not be made."""
    read_only = opening.read_only
    if not _is_made(path, opening):
        return None
    if path.is_dir():
        hint = "move it away, or name another place: `--state sqlite:///path/to/state.db`"
        raise StateError("unreadable", f"the state {path} is a directory", hint)
    if path.stat().st_size == 0:
        # We never leave an empty one (see `_make`): to take it for a new state would make everything anew.
        raise StateError("damaged", f"the state {path} is empty", FROM_BACKUP)
    _check_beside(Path(os.path.realpath(path)))
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    if not writable and not read_only:
        raise StateError("read-only", f"the state {path} cannot be written by this user", WRITABLE)
    # A reader opens for writing too where it may: only such a connection clears up after itself.
    database = Sqlite(path, mode="rw" if writable else "ro", clock=opening.clock)
    try:
        with as_state_error(path):
            _check_plain(database, path)
            if not agree(database, read_only=read_only, notify=opening.notify):
                summary = f"{path} is a database but no fleetform state; it was left as it is"
                raise StateError("not-a-state", summary)  # noqa: TRY301  # it is closed below
            # A copy made by VACUUM INTO, or by hand, has no WAL.
            if not read_only:
                database.use_wal()
    except BaseException:
        database.close()
        raise
    return database


def _is_made(path: Path, opening: OpenOptions) -> bool:
    """Whether the state is there now; it is made where it may be, and a writer is refused otherwise."""
    with as_state_error(path):
        if _is_there(path) or opening.read_only:
            return _is_there(path)
    if not opening.create:
        raise StateError("no-state", f"there is no state in {path}", "`fleetform apply` makes one")
    with as_state_error(path):
        _make(path, opening.clock)
    return True


_NAMES_ANOTHER = bytes.fromhex("d9d505f920a163d7")
"""How a journal ends that is part of a change of several files."""


def _is_there(path: Path) -> bool:
    """Whether there is a file; `OSError` if that cannot be seen: a link to itself is not an empty state."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _check_beside(path: Path) -> None:
    """`StateError` for files beside the state that SQLite would take for its own, and that are not ours.

    A journal can name another file, which SQLite then removes on rollback; we change only one file.
    """
    for suffix in ("-journal", "-wal", "-shm"):
        beside = Path(f"{path}{suffix}")
        try:
            kind = beside.lstat().st_mode
        except OSError:
            continue
        bad = not stat.S_ISREG(kind)
        if not bad and suffix == "-journal" and os.access(beside, os.R_OK):
            with beside.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - len(_NAMES_ANOTHER)))
                bad = file.read() == _NAMES_ANOTHER
        if bad:
            summary = f"{beside} is none of a state's own files"
            raise StateError("not-a-state", summary, "look where it came from, and remove it")


_COMPUTED = """
    SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'
    UNION ALL
    SELECT m.name FROM sqlite_master m JOIN pragma_table_xinfo(m.name) x
        WHERE m.type = 'table' AND x.hidden <> 0
    LIMIT 1
"""
"""Finds views, triggers and computed columns: to read one may take for ever."""


def _check_plain(database: Database, path: Path) -> None:
    """`StateError` for a file that is more than rows: a stranger's project may bring one along."""
    with database.reading() as connection:
        computed = connection.execute(_COMPUTED).first()
    if computed:
        summary = f"{path} is no state: it has views, triggers or computed columns"
        raise StateError("not-a-state", summary, FROM_BACKUP)


def _make(path: Path, clock: Callable[[], float]) -> None:
    """Make a new state aside and put it in its place whole, so that a crash never leaves half of one."""
    folder = path.absolute().parent
    make_folder(folder)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
    aside = Path(name)
    try:
        os.fchmod(handle, 0o600)  # SQLite gives -wal and -shm the same mode
        os.close(handle)
        made = Sqlite(aside, mode="rw", clock=clock)
        try:
            # Before WAL: a commit is in the file itself then, and fails if the disk is full. With a -wal,
            # closing moves it into the file, and reports no error if there is no room.
            with made.writing() as connection:
                create(connection)
            made.use_wal()
        finally:
            made.close()
        with suppress(FileExistsError):  # someone else was first: theirs it is
            os.link(aside, path)
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{aside}{suffix}").unlink(missing_ok=True)
    sync_folder(folder)
