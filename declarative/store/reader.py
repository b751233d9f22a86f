"""A state: read by anyone at any time, written by one at a time.

Its URL names a file or a server. Each of the two is imported when a state is in one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from declarative.model.spec.policy import OperatorPolicy
from declarative.model.state import Spent, State
from declarative.store import events, journal, records, seal, snapshot, spending
from declarative.store.consistency import HeldBlocks, contradictions
from declarative.store.errors import RetryWhileAway, StateError, once
from declarative.store.events import EventLog
from declarative.store.journal import Journal
from declarative.store.lease import Actor, LockInfo
from declarative.store.lock import LEASE_SECONDS, Access, Renewal, acquire, asked, current, release, unlock
from declarative.store.loop_state import Hooks, LoopRecords
from declarative.store.sql import Connection, Database, OpenOptions
from declarative.store.writer import Writer

T = TypeVar("T")

PROJECT_SINCE = 7
"""The format that knows whose state it is."""
SPENT_SINCE = 10
"""The first format with the spending."""
KEPT_OPERATIONS = 5000
"""How many ended entries the journal keeps."""


def open_store(
    url: str,
    *,
    create: bool = True,
    read_only: bool = False,
    typed: bool = False,
    actor: Actor | None = None,
    root: Path | None = None,
    clock: Callable[[], float] = time.time,
    wait: Callable[[float], None] = time.sleep,
    retry: RetryWhileAway = once,
    notify: Callable[[str], None] | None = None,
    policy: OperatorPolicy | None = None,
) -> Store:
    """Open the state at `url` (a relative path is one of `root`, else of the current folder).

    `url` may also be a file that `state pull` printed: to read from. Read-only, a state that is not there is
    an empty one, and nothing is made. `notify` gets a text about a migration; `retry` decides how long
    each later step is repeated while the database is away. `typed` refuses a state whose records are not of
    their types (`declarative.model.inputs`). `actor` is what the journal says of this user. `policy` is for a
    `url` that the project names, and not the user.
    """
    if "://" not in url and Path(url).is_file():
        if not read_only:
            raise StateError(
                "read-only",
                "a file that `state pull` printed is to look into; nothing can be recorded in it",
                "`fleetform state push FILE` puts it into a state",
            )
        return Store(url, None, read_only=True, pulled=snapshot.of_file(Path(url), typed=typed))
    opening = OpenOptions(
        root=root or Path(), create=create, read_only=read_only, clock=clock, notify=notify, policy=policy
    )
    database = open_database(url, opening)
    if database is not None:
        database.typed, database.actor = typed, actor
    return Store(url, database, read_only=read_only, clock=clock, wait=wait, retry=retry)


class Store(Access):
    """One state. Its threads may share it; forked children may not."""

    def __init__(
        self,
        url: str,
        database: Database | None,
        *,
        read_only: bool = False,
        clock: Callable[[], float] = time.time,
        wait: Callable[[float], None] = time.sleep,
        retry: RetryWhileAway = once,
        pulled: tuple[State, HeldBlocks] | None = None,
    ) -> None:
        super().__init__(database, read_only=read_only, clock=clock, retry=retry)
        self.url = url
        self._pulled = pulled or (State(), {})
        """The state without a database."""
        self._wait = wait
        self.writer: Writer | None = None
        """The writer, while this process holds the lock."""
        self.journal = Journal(self)
        self.events = EventLog(self)
        self.loop = LoopRecords(self)
        self.hooks = Hooks(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up all connections."""
        if self._database:
            self._database.close()

    @property
    def exists(self) -> bool:
        """Whether there is a state: read-only, one that is not there is an empty one."""
        return self._database is not None or self._pulled[0].lineage is not None

    # ------------------------------------------------------------------------------ the records

    def read(self) -> State:
        """Everything that is known, as one consistent snapshot; never waits for a writer."""
        return self.query(seal.load, self._pulled[0])

    def lineage(self) -> str | None:
        """The id of this state; None before its first write."""
        return self.query(lambda connection: records.named(connection, "lineage"), self._pulled[0].lineage)

    def project(self) -> str | None:
        """The name of the project whose state this is; None if unknown."""
        return self.query(lambda connection: records.named(connection, "project"), None, since=PROJECT_SINCE)

    def seal(self) -> str | None:
        """The digest of all records: as long as it is the same, `read` returns the same. None while somebody
        writes, and after a writer that was killed.
        """
        return self.query(seal.seal_of, None)

    def damage(self) -> list[str]:
        """The faults that the database finds in itself."""
        return self.query(lambda connection: connection.database.damage(connection), [])

    def check(self) -> list[str]:
        """Contradictions in the records, as sentences; empty if all is well."""

        def read(connection: Connection) -> list[str]:
            if damage := connection.database.damage(connection):
                return damage
            state, held = records.load(connection), records.blocks(connection)
            return [*contradictions(state, held), *seal.broken(connection, state, held)]

        return self.query(read, []) if self._database else contradictions(*self._pulled)

    def pull(self) -> dict[str, Any]:
        """The whole state as JSON-able data."""
        state, held = self.query(lambda c: (records.load(c), records.blocks(c)), self._pulled)
        return snapshot.dump(state, held)

    def spent(self) -> Spent | None:
        """The cost of nodes in this month until now; None if it is not counted."""
        return self.query(lambda c: spending.read(c, self.clock()), None, since=SPENT_SINCE)

    # ------------------------------------------------------------------------------ the lock

    @contextmanager
    def lock(
        self,
        doing: str,
        timeout: float = 0.0,
        *,
        on_wait: Callable[[LockInfo], None] | None = None,
        lease_seconds: float = LEASE_SECONDS,
        on_asked: Callable[[], None] | None = None,
    ) -> Iterator[Writer]:
        """Be the one writer. Waits up to `timeout` seconds for another one; `on_wait` hears of each once.

        `on_asked` is called whenever it is seen that somebody asks for the lock (`lock.ask`).
        """
        database = self.writable()
        lease = acquire(
            database,
            doing,
            timeout,
            wait=self._wait,
            seconds=lease_seconds,
            on_wait=on_wait,
            retry=self._retry,
        )
        writer = self.writer = Writer(database, lease, self.clock, self._retry, lease_seconds)

        def renew() -> None:
            writer.renew(lease_seconds)
            if on_asked:
                with database.reading() as connection:
                    is_asked = asked(connection, writer.lease)
                if is_asked:
                    on_asked()

        try:
            every = lease_seconds / 3 if on_asked is None else min(1.0, lease_seconds / 3)
            with Renewal(renew, every):
                yield writer
        finally:
            self.writer = None
            with suppress(StateError):
                writer.close()
            # What was done is committed; a lock that cannot be given back lapses by itself.
            with suppress(StateError):
                self._retry(lambda: release(database, lease))
            with suppress(StateError):
                _prune(database)

    def sign_as(self, actor: Actor) -> None:
        """From now on the journal names this user."""
        if self._database is not None:
            self._database.actor = actor

    def lock_info(self) -> LockInfo | None:
        """The holder of the lock; None if there is none, or it is gone."""
        return self.query(current, None)

    def unlock(self, owner: str | None = None) -> LockInfo | None:
        """Take the lock away, only from `owner` if given, and return its holder. That writes nothing more."""
        return unlock(self.writable(), owner)


def _prune(database: Database) -> None:
    with database.reading() as connection:
        if not journal.may_prune(connection, KEPT_OPERATIONS):
            return
    with database.writing() as connection:
        journal.prune(connection, KEPT_OPERATIONS)
        events.prune(connection)


def open_database(url: str, opening: OpenOptions) -> Database | None:
    """The database of the state at `url`; None if there is none and it must not be made.

    Messages do not repeat the URL: it may hold a secret.
    """
    try:
        parts = urlsplit(url)
        secret = parts.password is not None
    except ValueError:
        raise StateError("bad-url", "the state's URL cannot be read", FORMS) from None
    scheme = parts.scheme.partition("+")[0]
    if scheme in ("postgresql", "postgres"):
        from declarative.store.postgres import open_server, target_of, trusted

        return open_server(trusted(target_of(url), opening.policy), opening)
    if secret:
        raise StateError("bad-url", "the state's URL has a password in it", "leave it out")
    if parts.scheme == "sqlite":
        from declarative.store.sqlite import open_file, path_of

        return open_file(path_of(url, opening.root), opening)
    if parts.scheme:
        raise StateError("bad-url", f"states cannot be kept in `{scheme}`", FORMS)
    hint = f"{FORMS}, or name a file that `fleetform state pull` printed"
    raise StateError("bad-url", "the state's URL cannot be read, and there is no such file", hint)


FORMS = "write sqlite:///path/to/state.db or postgresql://host/database"


def file_of(url: str, root: Path) -> Path | None:
    """The file that a state is kept in; None if it is on a server. `StateError` bad-url if it is neither."""
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if scheme in ("postgresql", "postgres"):
        return None
    from declarative.store.sqlite import path_of

    return path_of(url, root)
