"""A state: read by anyone at any time, written by one at a time.

Its URL names a file or a server. Each of the two is imported when a state is in one.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from declarative.model.spec.policy import OperatorPolicy
from declarative.model.state import Address, Spent, State
from declarative.model.status import Outage
from declarative.store import events, journal, loop_state, records, seal, snapshot, spending
from declarative.store.consistency import HeldBlocks
from declarative.store.consistency import check as contradictions
from declarative.store.errors import RetryWhileAway, StateError, once, retried
from declarative.store.events import Event, Waiting
from declarative.store.journal import EarlierAttempt, Operation
from declarative.store.lease import Actor, LockInfo
from declarative.store.lock import (
    LEASE_SECONDS,
    Renewal,
    acquire,
    asked,
    current,
    holder,
    release,
    unlock,
)
from declarative.store.loop_state import Approval, Hook, Leader
from declarative.store.sql import Connection, Database, OpenOptions
from declarative.store.writer import Writer

T = TypeVar("T")

PROJECT_SINCE = 7
"""The format that knows whose state it is."""
LOOP_SINCE = 8
"""The format that knows of loops."""
SPENT_SINCE = 10
"""The first format with the spending."""
LEFT_ALONE_SINCE = 11
"""The first format with the backends that are left alone."""
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


class Store:
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
        self.url = url
        self._pulled = pulled or (State(), {})
        """The state without a database."""
        self._database = database
        self._read_only = read_only
        self._clock = clock
        self._wait = wait
        self._retry = retry
        self._holding: Writer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up all connections."""
        if self._database:
            self._database.close()

    def _ask(self, ask: Callable[[Connection], T], otherwise: T, *, since: int = 0) -> T:
        """What `ask` finds in one snapshot; `otherwise` without a database, or in a format before `since`."""
        if self._database is None or self._database.format < since:
            return otherwise
        with self._database.reading() as connection:
            return ask(connection)

    @retried
    def read(self) -> State:
        """Everything that is known, as one consistent snapshot; never waits for a writer."""
        return self._ask(seal.load, self._pulled[0])

    @retried
    def lineage(self) -> str | None:
        """The id of this state; None before its first write."""
        return self._ask(lambda c: records.named(c, "lineage"), self._pulled[0].lineage)

    @retried
    def project(self) -> str | None:
        """The name of the project whose state this is; None if unknown."""
        return self._ask(lambda c: records.named(c, "project"), None, since=PROJECT_SINCE)

    @retried
    def damage(self) -> list[str]:
        """The faults that the database finds in itself."""
        return self._ask(lambda c: c.database.damage(c), [])

    @retried
    def seal(self) -> str | None:
        """The digest of all records: as long as it is the same, `read` returns the same. None while somebody
        writes, and after a writer that was killed.
        """
        return self._ask(seal.seal_of, None)

    @property
    def exists(self) -> bool:
        """Whether there is a state: read-only, one that is not there is an empty one."""
        return self._database is not None or self._pulled[0].lineage is not None

    @retried
    def check(self) -> list[str]:
        """Contradictions in the records, as sentences; empty if all is well."""
        if self._database is None:
            return contradictions(*self._pulled)
        with self._database.reading() as connection:
            if found := self._database.damage(connection):
                return found
            state, held = records.load(connection), records.blocks(connection)
            return [*contradictions(state, held), *seal.broken(connection, state, held)]

    @retried
    def pull(self) -> dict[str, Any]:
        """The whole state as JSON-able data."""
        return self._ask(
            lambda c: snapshot.dump(records.load(c), records.blocks(c)), snapshot.dump(*self._pulled)
        )

    @retried
    def history(self, addresses: Collection[str] = (), limit: int | None = None) -> list[Operation]:
        """The entries of the journal, newest first; with `addresses`, only theirs."""
        return self._ask(lambda c: journal.read(c, addresses, limit), [])

    @retried
    def earlier_attempts(self, task: str) -> list[EarlierAttempt]:
        """The attempts of a task's ranks that are not recorded any more, oldest first."""
        return self._ask(lambda c: journal.earlier_attempts(c, task), [])

    @retried
    def note(self, op: str, address: Address, doing: str) -> None:
        """Write an entry into the journal for something that changes no record.

        This does not need the lock: its holder goes on writing afterwards.
        """
        with self._writable().writing() as connection:
            holder(connection, to_write=True)  # one entry after the other
            by = {"host": socket.gethostname(), "doing": doing}
            journal.note(connection, op, address, self._clock(), by=by)

    @retried
    def approvals(self) -> tuple[Approval, ...]:
        """What waits for approval, and what was approved and is not done yet."""
        return self._ask(loop_state.read_approvals, (), since=LOOP_SINCE)

    @retried
    def left_alone(self) -> tuple[Outage, ...]:
        """The backends that the leading loop leaves alone."""
        return self._ask(loop_state.read_left_alone, (), since=LEFT_ALONE_SINCE)

    @retried
    def spent(self) -> Spent | None:
        """The cost of nodes in this month until now; None if it is not counted."""
        return self._ask(lambda c: spending.read(c, self._clock()), None, since=SPENT_SINCE)

    @retried
    def approve(self, digest: str) -> bool:
        """Let a loop do what it waits with; False if nothing of that digest waits. Needs no lock."""
        with self._writable().writing() as connection:
            return loop_state.approve(connection, digest, self._clock())

    def leader(self) -> Leader:
        """This process's part in which loop of several acts."""
        return Leader(self._writable())

    # ------------------------------------------------------------------------------ events and hooks

    @retried
    def events(self, cursor: int, limit: int = events.MOST) -> tuple[Event, ...]:
        """What happened after a cursor, oldest first."""
        return self._ask(lambda c: events.after(c, cursor, limit), (), since=events.SINCE)

    @retried
    def waiting(self) -> dict[str, Waiting]:
        """The tasks that wait for a place; see `events.waiting`."""
        return self._ask(events.waiting, {}, since=events.SINCE)

    @retried
    def event_bounds(self) -> tuple[int, int]:
        """The numbers of the first event that is kept and of the last one; 0 and 0 before the first."""
        return self._ask(events.bounds, (0, 0), since=events.SINCE)

    @retried
    def write_event(self, type: str, address: str, detail: Mapping[str, Any]) -> None:
        """Write an event. This does not need the lock."""
        with self._writable().writing() as connection:
            holder(connection, to_write=True)  # one number after the other
            events.write(connection, self._clock(), type, address, detail)

    @contextmanager
    def _hooks(self) -> Iterator[tuple[Connection, float]]:
        """A transaction about webhooks, and its time by the clock that all share."""
        database = self._writable()
        with database.writing() as connection:
            holder(connection, to_write=True)
            yield connection, database.now(connection)

    @retried
    def hooks(self) -> tuple[Hook, ...]:
        """The last event that each webhook got."""
        return self._ask(loop_state.read_hooks, (), since=events.SINCE)

    @retried
    def claim_hook(self, name: str, seconds: float, *, at_once: bool = False) -> Hook | None:
        """See `loop_state.claim_hook`. A new webhook gets the events from now on."""
        with self._hooks() as (connection, now):
            start = events.bounds(connection)[1]
            return loop_state.claim_hook(
                connection, name, start=start, seconds=seconds, now=now, at_once=at_once
            )

    @retried
    def advance_hook(self, name: str, cursor: int, *, more: float | None = None) -> None:
        """Events up to `cursor` were taken; `more` keeps the claim for so many seconds."""
        with self._hooks() as (connection, now):
            loop_state.advance_hook(connection, name, cursor, until=None if more is None else now + more)

    @retried
    def fail_hook(self, name: str, error: str, wait: float) -> None:
        """An event was not taken; it is tried again after `wait` seconds."""
        with self._hooks() as (connection, now):
            loop_state.fail_hook(connection, name, error, now + wait)

    @retried
    def keep_hooks(self, names: Iterable[str]) -> None:
        """Forget the hooks that are not among `names` any more."""
        with self._hooks() as (connection, _):
            loop_state.keep_hooks(connection, list(names))

    def _writable(self) -> Database:
        if self._database is None or self._read_only:
            raise StateError("read-only", "the state was opened for reading only")
        return self._database

    # ------------------------------------------------------------------------------------ the lock

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
        database = self._writable()
        lease = acquire(
            database,
            doing,
            timeout,
            wait=self._wait,
            seconds=lease_seconds,
            on_wait=on_wait,
            retry=self._retry,
        )
        writer = self._holding = Writer(database, lease, self._clock, self._retry, lease_seconds)
        try:
            every = lease_seconds / 3 if on_asked is None else min(1.0, lease_seconds / 3)
            with Renewal(lambda: _renew(database, writer, lease_seconds, on_asked), every):
                yield writer
        finally:
            self._holding = None
            with suppress(StateError):
                writer.close()
            # What was done is committed; a lock that cannot be given back lapses by itself.
            with suppress(StateError):
                self._retry(lambda: release(database, lease))
            with suppress(StateError):
                _prune(database)

    def fence(self) -> int | None:
        """See `Writer.fence`; None while this process does not hold the lock, and so only reads."""
        holding = self._holding  # another thread may end it meanwhile
        return holding.fence() if holding else None

    def changing(self) -> int | None:
        """See `Writer.changing`; None as of `fence`."""
        holding = self._holding
        return holding.changing() if holding else None

    def learn(self, newest: int) -> bool:
        """See `Writer.learn`; who only reads is refused nothing."""
        holding = self._holding
        return holding.learn(newest) if holding else False

    def sign_as(self, actor: Actor) -> None:
        """From now on the journal names this user."""
        if self._database is not None:
            self._database.actor = actor

    @retried
    def lock_info(self) -> LockInfo | None:
        """The holder of the lock; None if there is none, or it is gone."""
        return None if self._database is None else current(self._database)

    def unlock(self, owner: str | None = None) -> LockInfo | None:
        """Take the lock away, only from `owner` if given, and return its holder. That writes nothing more."""
        return unlock(self._writable(), owner)


def _prune(database: Database) -> None:
    with database.reading() as connection:
        if not journal.may_prune(connection, KEPT_OPERATIONS):
            return
    with database.writing() as connection:
        journal.prune(connection, KEPT_OPERATIONS)
        events.prune(connection)


def _renew(
    database: Database, writer: Writer, lease_seconds: float, on_asked: Callable[[], None] | None
) -> None:
    writer.renew(lease_seconds)
    if on_asked:
        with database.reading() as connection:
            wanted = asked(connection, writer.lease)
        if wanted:
            on_asked()


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
        from declarative.store.server.postgres import open_server, target_of, trusted

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
