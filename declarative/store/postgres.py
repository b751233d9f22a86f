"""States in PostgreSQL: one for a team, with the guarantees of the file.

The home of psycopg, which is loaded when such a state is opened.

- A read is one REPEATABLE READ transaction, read only: a snapshot, which waits for no writer.
- A write is READ COMMITTED and begins by locking the one row of `writer_lock` (see `lock.check`), so writes
  take turns, and each statement after that sees all that was committed before. SERIALIZABLE would refuse, and
  have us repeat, what this merely lets wait: its snapshot is older than the row that it waited for.
- Leases go by the server's clock: those of its clients may differ.
- Nothing is kept in a session (time limits are each transaction's own, no prepared statements, no session
  locks), so it may be reached through a pooler that gives each transaction another connection.
"""

from __future__ import annotations

import functools
import os
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from declarative.model.record import struct
from declarative.model.spec.policy import OperatorPolicy
from declarative.store import journal, lock, schema
from declarative.store.backup import FOLDER, put, write_rows
from declarative.store.errors import StateError, as_state_error, busy
from declarative.store.lease import LockInfo
from declarative.store.migrations import agree, create, is_there
from declarative.store.sql import ADD_EVENT, RAISE_SERIAL, Connection, Database, OpenOptions, Write, refused
from declarative.store.sqlite import Sqlite

OPTIONS = frozenset(
    {
        "channel_binding",
        "connect_timeout",
        "gssencmode",
        "host",
        "krbsrvname",
        "load_balance_hosts",
        "port",
        "require_auth",
        "service",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcrl",
        "sslcrldir",
        "sslkey",
        "sslmode",
        "sslnegotiation",
        "sslrootcert",
        "sslsni",
        "target_session_attrs",
    }
)
"""The options of libpq that a URL may have: where the server is, and how the connection is secured."""

NO_HANGING: Mapping[str, str | int] = {
    "connect_timeout": 10,
    # A server that has vanished without a word is given up after half a minute.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}

TIME_LIMITS = {
    "lock_timeout": "30s",
    "statement_timeout": "120s",
    "idle_in_transaction_session_timeout": "60s",
}
WRITING_LIMITS = {
    **TIME_LIMITS,
    # A holder that was stopped in the middle of a write, or of renewing its lease, keeps the row of the lock.
    # Nobody can take the lock before the server lets go of it, so this is no longer than the shortest lease.
    "idle_in_transaction_session_timeout": "10s",
}

MAKING = 0x666C656574666F72
"""The number of the advisory lock under which the tables are made."""

WHERE_FROM = (
    "leave them out: they come from the environment (PGUSER, PGPASSWORD, PGSERVICE) "
    "or from libpq's own files (~/.pgpass, ~/.pg_service.conf)"
)
FORM = "write postgresql://host/database or postgresql://host:port/database?sslmode=verify-full"


@struct(frozen=True, slots=True, kw_only=True)
class Target:
    """A database, its server, and how to connect."""

    name: str
    parameters: Mapping[str, str]


def target_of(url: str) -> Target:
    """The place that a `postgresql://` URL names. Errors do not repeat its parts: one may be a password."""
    # Anywhere: a password may hold `/`, `?` or `#`, and the URL is then taken apart in the wrong places.
    if "@" in url:
        raise StateError("bad-url", "the state's URL names a user or a password", WHERE_FROM)
    parts = urlsplit(url)
    options, hosts = _options(parts.query), _hosts(parts.netloc)
    database = unquote(parts.path.removeprefix("/"))
    if parts.fragment or "/" in database or not (database or "service" in options):
        raise StateError("bad-url", "the state's URL names no database", FORM)
    if options.keys() & hosts.keys():
        raise StateError("bad-url", "the state's URL names its host twice", FORM)
    parameters = {**options, **hosts}
    if database:
        parameters["dbname"] = database
    name = f"`{database or options['service']}`"
    if where := ", ".join(f"{host}:{port}".removesuffix(":") for host, port in _pairs(parameters)):
        name = f"{name} on {where}"
    return Target(name=name, parameters=parameters)


def _options(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise StateError("bad-url", "the options of the state's URL cannot be read", FORM) from None
    for name, _ in pairs:
        if name in ("user", "password", "passfile", "sslpassword"):
            raise StateError("bad-url", "the state's URL names a user or a password", WHERE_FROM)
        if name not in OPTIONS:
            what = f"`{name}`" if re.fullmatch(r"[a-z_]{1,40}", name) else "an unknown one"
            raise StateError(
                "bad-url",
                f"the state's URL has an option that it may not have: {what}",
                f"it may have {', '.join(sorted(OPTIONS))}",
            )
    return dict(pairs)


def _hosts(netloc: str) -> dict[str, str]:
    """`host`, `host:port`, `[::1]:port`, or several of them with commas, as libpq takes them."""
    if not netloc:
        return {}
    hosts, ports = [], []
    for text in netloc.split(","):
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]]*)(?::([0-9]{1,5}))?", text)
        if match is None or int(match[2] or 1) not in range(1, 65536):
            raise StateError("bad-url", "the state's URL names no host that can be read", FORM)
        hosts.append(unquote(match[1].strip("[]")))
        ports.append(match[2] or "")
    return {"host": ",".join(hosts), **({"port": ",".join(ports)} if any(ports) else {})}


def _pairs(parameters: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    hosts = parameters.get("host", "").split(",")
    ports = parameters.get("port", "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return ((host, port) for host, port in zip(hosts, ports, strict=False) if host)


OUTRANKED = {
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
    "sslcrl": "PGSSLCRL",
    "sslcrldir": "PGSSLCRLDIR",
    "ssl_min_protocol_version": "PGSSLMINPROTOCOLVERSION",
    "ssl_max_protocol_version": "PGSSLMAXPROTOCOLVERSION",
    "channel_binding": "PGCHANNELBINDING",
    "require_auth": "PGREQUIREAUTH",
    "gssencmode": "PGGSSENCMODE",
}
"""Options that secure the connection, and the user's variables for them, which outrank the URL."""
NO_CLEAR_TEXT = "scram-sha-256,gss,sspi,none"
"""Logins that show a server neither the password nor anything equivalent."""


def trusted(target: Target, policy: OperatorPolicy | None) -> Target:
    """A target as the user's environment and the policy allow it; `StateError` if they do not.

    A server that the YAML names may be anybody's: without a policy that names it, it gets no password, in
    clear or as MD5, but only the proof of one. Servers have asked for no more by default since PostgreSQL 14.
    """
    parameters = {k: v for k, v in target.parameters.items() if not os.environ.get(OUTRANKED.get(k, ""))}
    if policy is None:
        return replace(target, parameters=parameters)
    hosts = [host for host, _ in _pairs(parameters)] or [""]
    if "hostaddr" in parameters:
        hosts.append(parameters["hostaddr"])
    if why := next(filter(None, map(policy.refused_state, hosts)), None):
        hint = "name it yourself (`--state URL` or FLEETFORM_STATE), or see docs/security.md (`state_hosts`)"
        raise StateError("not-allowed", why, hint)
    if policy.state_hosts is None and not os.environ.get("PGREQUIREAUTH"):
        parameters["require_auth"] = NO_CLEAR_TEXT
    return replace(target, parameters=parameters)


_VALUE = re.compile(r"(?<![:\w]):(\w+)")


class Postgres(Database):
    """A database of a server; it connects when it is first used."""

    for_update = " FOR UPDATE"

    def __init__(self, target: Target, root: Path) -> None:
        """`root` is the project's folder, where backups go. `StateError` without psycopg."""
        super().__init__(target.name)
        self._target = target
        self._root = root
        try:
            import psycopg
        except ImportError as error:
            raise StateError(
                "no-driver",
                f"a state in PostgreSQL needs psycopg, which cannot be loaded: {error}",
                "in a clone: pipx install --force '.[postgresql]'; "
                "in an environment: pip install 'psycopg[binary]'",
            ) from None
        self._psycopg = psycopg

    def connect(self) -> Any:
        from psycopg.types.string import TextLoader

        from declarative.store.postgres_connection import ServerConnection

        connection = ServerConnection.connect(
            **{**NO_HANGING, "application_name": "fleetform", **self._target.parameters},  # type: ignore[arg-type]
            autocommit=True,  # `begin` begins the transactions
            # No prepared statements: they live in a session, which is not ours behind a pooler.
            prepare_threshold=None,
        )
        connection.adapters.register_loader("json", TextLoader)  # `schema.loads` reads it for both databases
        connection.settle()  # it was used just now
        return connection

    def begin(self, raw: Any, *, writes: bool) -> None:
        """READ WRITE is not set: a server that is configured to refuse writes is obeyed."""
        raw.begin(*(_WRITE if writes else _READ), snapshot=not writes)

    def run(self, connection: Connection, statements: Iterable[str]) -> None:
        """Run them in the round trip of the next statement."""
        for sql in statements:
            connection.raw.defer(sql)

    def for_writer(self, lease: LockInfo) -> Mirror:
        return Mirror(self, lease)

    def send(self, writes: Sequence[Write], lease: LockInfo, last_id: int) -> bool:
        """Commit what was written in a mirror: one transaction, one round trip. False if the lock is not that
        lease's any more, or the journal's last entry not `last_id`: then nothing was done.
        """
        guard = {"fence": lease.fence, "owner": lease.owner, "last_id": last_id}
        with as_state_error(self.name):
            try:
                with self._connected(lambda _: None) as raw:
                    text = self._psycopg.ClientCursor(raw).mogrify
                    writes = merged(writes)
                    statements = [text(_text(w.sql), values) for w in writes for values in w.values]
                    cursor = self.commit(raw, [*_WRITE, _LOCK, text(_GUARD, guard), *statements])
                    counts = [cursor.rowcount]
                    while cursor.nextset():
                        counts.append(cursor.rowcount)
            except self._psycopg.errors.DivisionByZero:
                return False
            except self._psycopg.IntegrityError as error:
                raise refused(error) from None
        written = iter(counts[len(counts) - 1 - len(statements) : -1])
        if any(sum(islice(written, len(write.values))) != write.rowcount for write in writes):
            raise StateError(
                "damaged",
                "the state's tables were changed by others while this command held the lock",
                "`fleetform state check` shows whether they contradict themselves",
            )
        return True

    def commit(self, raw: Any, before: Sequence[str] = ()) -> Any:
        """Commit, with the statements `before` it in the same message.

        The server does none of them before it has all. If a message came in parts, the server would hold
        locks until the rest comes, without a time limit: a client that stopped in between would stop all
        others.
        """
        if not before and (raw.snapshot or (raw.opening and not raw.deferred)):
            return raw.end()
        cursor = self._psycopg.ClientCursor(raw)
        raw.settle()
        before = (*raw.taken(), *before)
        cursor.execute("; ".join((*before, "COMMIT")).encode(raw.info.encoding))
        return cursor

    def _rolled_back(self, raw: Any) -> Any:
        raw.deferred = ()
        return super()._rolled_back(raw)

    def defer(self, raw: Any, sql: str, values: Mapping[str, Any]) -> None:
        raw.defer(_text(sql), values)

    def lost(self, error: Exception) -> bool:
        return isinstance(error, self._psycopg.OperationalError)

    def text(self, sql: str) -> str:
        return _text(sql)

    def now(self, connection: Connection) -> float:
        # Not now(): that is when the transaction began, before it waited for its turn.
        return float(connection.execute("SELECT extract(epoch FROM clock_timestamp())").scalar())

    def backup(self, connection: Connection, which: str) -> Path:
        """Write all rows as JSON into the project: it outlives the server."""
        fill = functools.partial(write_rows, connection)
        return put(self._root.absolute() / FOLDER, f"state-format-{which}.json", fill)

    def columns(self, connection: Connection, table: str) -> list[str]:
        return connection.execute(
            "SELECT attname FROM pg_attribute"
            " WHERE attrelid = to_regclass(:its_table) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            its_table=table,
        ).scalars()

    def json_text(self, column: str, *keys: str) -> str:
        return f"{column} #>> '{{{','.join(keys)}}}'"


def _set(limits: Mapping[str, str]) -> list[str]:
    return [f"SET LOCAL {name} = '{value}'" for name, value in limits.items()]


_READ = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", *_set(TIME_LIMITS))
_WRITE = ("BEGIN ISOLATION LEVEL READ COMMITTED", *_set(WRITING_LIMITS))
_LOCK = "SELECT id FROM writer_lock FOR UPDATE"
_GUARD = """
    SELECT 1 / count(*) FROM writer_lock
    WHERE fence = %(fence)s AND owner = %(owner)s
    AND (SELECT coalesce(max(id), 0) FROM operations) = %(last_id)s
"""
"""An error where there is no such row: nothing after it is done."""


@functools.lru_cache(maxsize=256)
def _text(sql: str) -> str:
    return _VALUE.sub(r"%(\1)s", sql.replace("%", "%%"))


_ADD_EVENTS = """
    INSERT INTO events (id, at, type, address, detail)
    SELECT (SELECT coalesce(max(id), 0) FROM events) + number, at, type, address, detail::json
    FROM (VALUES {rows}) AS new (number, at, type, address, detail)
"""


def merged(writes: Sequence[Write]) -> list[Write]:
    """The same writes with one statement for all events, and one for the serial: nothing in the same
    transaction depends on them, and the server plans each statement anew.
    """
    others = [write for write in writes if write.sql not in (ADD_EVENT, RAISE_SERIAL)]
    new_events = [values for write in writes if write.sql == ADD_EVENT for values in write.values]
    if new_events:
        numbers = range(1, len(new_events) + 1)
        rows = ", ".join(f"({i}, :at{i}, :type{i}, :address{i}, :detail{i})" for i in numbers)
        values = {f"{name}{i}": value for i, its in enumerate(new_events, 1) for name, value in its.items()}
        others.append(Write(_ADD_EVENTS.format(rows=rows), [values], len(new_events)))
    if count := sum(write.sql == RAISE_SERIAL for write in writes):
        others.append(Write("UPDATE meta SET serial = serial + :its_count", [{"its_count": count}], 1))
    return others


COPIED = {table: f"SELECT {', '.join(columns)} FROM {table}" for table, columns in schema.COLUMNS.items()}
COPIED["operations"] += " WHERE ended_at IS NULL"
COPIED["events"] += " WHERE id IS NULL"  # none: they are only added to


class Mirror(Sqlite):
    """The writer's copy of a state on a server: it reads from the copy, and all writes of one commit are
    sent to the server in one round trip. It is in memory, made when it is first used, and anew after a
    fault. Threads share its connection.

    Only the holder of the lock changes a state. So a copy that was made under the lock stays true until the
    lock is given back or lost, and with each commit the server checks that it is not lost. Ended journal
    entries are not in the copy. A command without the lock may add some; then the copy is made anew.

    A reader may see what is not committed yet. To act on it, it begins a step, and steps are committed in
    order.
    """

    commit_patience = 0.025  # longer is no way back from a commit

    def __init__(self, server: Postgres, lease: LockInfo) -> None:
        """`lease` is that of the lock under which it is used."""
        super().__init__(Path(":memory:"), mode="rw", clock=lambda: lease.since)
        self.name, self.typed, self.actor = server.name, server.typed, server.actor
        self.mutex = threading.RLock()
        self._server, self._lease = server, lease
        self._raw: sqlite3.Connection | None = None
        self._last_id = 0

    def connect(self) -> sqlite3.Connection:
        """All that the server has now."""
        with self._server.reading() as there:
            rows = there.raw.execute("; ".join((*COPIED.values(), journal.LAST_ID)))  # one round trip
        copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        create(Connection(self, copy))
        for table in COPIED:
            copy.execute(f"DELETE FROM {table}")
            marks = ", ".join("?" * len(schema.COLUMNS[table]))
            copy.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            rows.nextset()
        self._last_id = rows.fetchone()[0] or 0
        copy.execute("PRAGMA foreign_keys=ON")
        return copy

    def damage(self, connection: Connection) -> list[str]:  # noqa: ARG002 (a copy of this moment has none)
        return []

    @contextmanager
    def whole_journal(self, connection: Connection) -> Iterator[Connection]:  # noqa: ARG002 (it is not here)
        with self._server.reading() as there:
            yield there

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction of the copy; every write in it is complete."""
        with self.mutex, as_state_error(self.name):
            self._raw = self._raw or self.connect()
            yield Connection(self, self._raw)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is committed on the server, or nowhere."""
        with self.reading() as here:
            here.raw.execute("BEGIN")
            here.last_id, here.writes = self._last_id, []
        try:
            yield here
        except BaseException as error:
            with self.mutex:
                here.raw.execute("ROLLBACK")
            if isinstance(error, StateError) and error.code == "stale-lease":
                self.forget()  # it does not know who takes the lock from now on
            raise
        try:
            sent = self._server.send(here.writes or (), self._lease, self._last_id)
        except BaseException:
            self.forget()  # it is perhaps not what the server has
            raise
        if not sent:
            self.forget()
            with self._server.writing() as there:
                lock.check(there, self._lease)
            raise busy()  # somebody without the lock has written into the journal
        with self.mutex:
            here.raw.execute("COMMIT")
            self._last_id = here.last_id or 0

    def forget(self) -> None:
        """Give the copy up: the next step makes a new one."""
        with self.mutex:
            if self._raw:
                self._raw.close()
            self._raw = None


def open_server(target: Target, opening: OpenOptions) -> Database | None:
    """The state's database; None if there is none and it must not be made."""
    database = Postgres(target, opening.root)
    try:
        with as_state_error(target.name):
            is_made = agree(database, read_only=opening.read_only, notify=opening.notify)
            if not is_made and not opening.read_only:
                # While this one waited, another first `apply` may have made it, perhaps of another version.
                is_made = _make(database, target, opening) or agree(
                    database, read_only=False, notify=opening.notify
                )
            if is_made:
                return database
    except BaseException:
        database.close()
        raise
    database.close()
    return None


def _make(database: Database, target: Target, opening: OpenOptions) -> bool:
    """Make the tables; False if they are there by now."""
    if not opening.create:
        raise StateError("no-state", f"there is no state in {target.name}", "`fleetform apply` makes one")
    with database.writing() as connection:
        database.run(connection, [f"SELECT pg_advisory_xact_lock({MAKING})"])
        if is_there(connection):
            return False
        create(connection)
    return True
