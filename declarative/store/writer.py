"""The writer: only it changes a state. It holds the lock, and writes each step whole or not at all.

Many threads may call it; their steps are committed together, see `commit_queue`. `record_changes` has
what a step writes. For a state on a server it reads and writes a mirror, see `server.mirror`. A `retried`
method may be done twice, because the first time may have succeeded: see `errors.retried`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from declarative.model.state import Address, Intent, Record, State
from declarative.model.status import Drain, Outage, RankStatus, Readiness
from declarative.store import events, journal, lock, loop_state, manual_edits, record_changes, records, seal
from declarative.store.commit_queue import CommitQueue, PendingCommit
from declarative.store.consistency import HeldBlocks
from declarative.store.errors import RetryWhileAway, StateError, once, retried
from declarative.store.journal import Permit
from declarative.store.lease import LockInfo, boottime
from declarative.store.rename import RenameMap
from declarative.store.schema import stored
from declarative.store.snapshot import OPS
from declarative.store.sql import Connection, Database

T = TypeVar("T")

LET = "reconcile"
"""The journal's word for what a loop permits."""

MARGIN = 1 / 3
"""Seconds of a lease that have to be left when a backend is called: the longest time of a call."""

_DIGITS = re.compile(r"\d+")

LATEST = 1 << 42
"""No real epoch is as high (milliseconds until the year 2109)."""


class Writer:
    """Writes to one state while it holds its lock. Every call either happens whole or raises `StateError`."""

    def __init__(
        self,
        database: Database,
        lease: LockInfo,
        clock: Callable[[], float],
        retry: RetryWhileAway = once,
        seconds: float = lock.LEASE_SECONDS,
    ) -> None:
        """`seconds` is how long a lease lasts."""
        self._seconds = seconds
        self._ends = lease.ends or 0.0
        self._database = database
        self._at = database.for_writer(lease)
        """Where steps are done."""
        self._retry = retry
        self._clock = clock
        self._commits = CommitQueue(self._at, self._begin, self._written)
        self._changed = False
        self._sealed = True  # our next write takes it off
        self._version = 0
        """Counts up with each write, also a failed one."""
        self._known: tuple[int, State] | None = None
        """The last state that was read, and its version."""
        self._lineage: str | None = None
        """The state's id, once it is known."""
        self.lease = lease

    def _write(self, step: Callable[[Connection], T]) -> T:
        """Return the result of a step once it is committed, alone or with others."""
        try:
            return self._commits.do(step)
        finally:
            self._version += 1

    def _begin(self, connection: Connection) -> None:
        """Check that the lock is ours: nobody takes it before the transaction ends."""
        lock.check(connection, self.lease)
        if self._sealed:
            seal.remove(connection)

    def _written(self) -> None:
        self._sealed = False
        self._version += 1  # steps may be left that no thread waits for

    @contextmanager
    def _write_whole(self) -> Iterator[Connection]:
        """A step that concerns more than a copy holds."""
        with self._commits.alone():
            try:
                with self._database.writing() as connection:
                    self._begin(connection)
                    yield connection
                self._written()
            finally:
                self._version, self._lineage = self._version + 1, None
                self._at.forget()

    def close(self) -> None:
        """Seal what was written; nothing is written after that."""
        try:
            self.seal()
        finally:
            self._known = None  # a cycle keeps the writer until the next collection, and a loop makes many
            self._at.forget()

    def seal(self) -> None:
        """Seal what was written, if anything was."""
        if not self._sealed:
            state = self._read_last()
            self._write(lambda connection: seal.put(connection, state))
            self._sealed = True

    def _read_last(self) -> State | None:
        """The last state that was read, if nothing was written since."""
        known = self._known
        return known[1] if known is not None and known[0] == self._version else None

    @retried
    def state(self) -> State:
        """The whole state. Nobody else changes it, so it is read anew only after a write."""
        version, state = self._version, self._read_last()
        if state is None:
            with self._at.reading() as connection:
                state = seal.load(connection)
            self._known = version, state
        return state

    @retried
    def create_with(self, its_token: str) -> Intent | None:
        """The create that was started with a token, ended or not; None if the journal has none."""
        with self._database.reading() as connection:
            return records.create_with(connection, its_token)

    @retried
    def part(self, wanted: Iterable[Address]) -> State:
        """The records of `wanted` and all that they need, with their ranks' statuses: cheap at any size."""
        with self._at.reading() as connection:
            return records.part(connection, wanted)

    @retried
    def record(self, address: Address) -> Record | None:
        """One record, or None."""
        with self._at.reading() as connection:
            return records.record(connection, address)

    def renew(self, seconds: float) -> None:
        """Move the end of the lease; `StateError` stale-lease if it is another one's by now."""
        with self._commits.alone():
            try:
                self._ends = lock.renew(self._database, self.lease, seconds)
            except StateError as error:
                if error.code == "stale-lease":
                    self._ends = 0.0
                raise

    def fence(self) -> int:
        """The epoch of this writer, after a check that it holds the lock for long enough to call a backend.
        Call it before each call and each retry: a process that slept, or was cut off from the database, may
        have lost the lock, and then it is a `StateError`.
        """
        if self._ends - boottime() < self._seconds * MARGIN:
            self._retry(lambda: self.renew(self._seconds))
        return self.lease.epoch

    def changing(self) -> int:
        """Like `fence`, before a call that changes something: see `learn`."""
        self._changed = True
        return self.fence()

    def learn(self, newest: int) -> bool:
        """Count this writer above `newest`, which something knows of: the state was brought back from a
        backup, and the clock was set back. False where that would be wrong.

        Only a holder of the lock that has changed nothing yet may do it: it goes on from a look at what the
        later writer left. A writer that slept since its own look, and was overtaken, stays refused.
        """
        if self._changed or newest >= LATEST:
            return False
        self.lease = self._write(lambda connection: lock.count_above(connection, self.lease, newest))
        return True

    @retried
    def ensure_lineage(self) -> str:
        """The id of this state: made at random once, before its first write."""
        state = self._read_last()
        self._lineage = self._lineage or (state and state.lineage) or self._write(journal.lineage)
        return self._lineage

    @retried
    def project(self) -> str | None:
        """The project whose state this is; None if unknown."""
        with self._at.reading() as connection:
            return records.named(connection, "project")

    @retried
    def claim(self, project: str) -> None:
        """Write down the project whose state this is."""

        def step(connection: Connection) -> str:
            connection.update("meta", {"project": project})
            return journal.lineage(connection)

        self._lineage = self._write(step)

    @retried
    def permit(self, causes: Mapping[str, str]) -> None:
        """Write into the journal what a loop is about to do, and why. Its budgets count these."""
        now = self._clock()

        def step(connection: Connection) -> None:
            for address, cause in causes.items():
                journal.note(connection, LET, Address.parse(address), now, inputs={"cause": cause})

        self._write(step)

    @retried
    def permits_since(self, since: float) -> tuple[Permit, ...]:
        """What loops have permitted since then."""
        with self._database.reading() as connection:
            return journal.permits_since(connection, LET, since)

    @retried
    def note_waiting(self, why: Mapping[str, str]) -> None:
        """Write down why tasks have no place, if that is news: numbers alone, such as of nodes, are none."""
        with self._database.reading() as connection:
            known = events.waiting(connection)
        before = {task: _DIGITS.sub("#", found.why) for task, found in known.items()}
        fresh = {task: text for task, text in why.items() if before.get(task) != _DIGITS.sub("#", text)}
        if fresh:
            self._write(lambda connection: events.note_waiting(connection, self._clock(), fresh))

    @retried
    def wait_for_approval(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Write down what waits for a person, by digest; see `loop_state.await_approval`."""
        self._write(lambda connection: loop_state.await_approval(connection, wanted, self._clock()))

    @retried
    def leave_alone(self, found: Sequence[Outage]) -> None:
        """Write down which backends are left alone; see `loop_state.leave_alone`."""
        self._write(lambda connection: loop_state.leave_alone(connection, found))

    # ------------------------------------------------------------------------------------ the journal

    @retried
    def begin(
        self,
        op: str,
        address: Address,
        backend: str | None,
        inputs: Mapping[str, Any],
        needs: Iterable[Address] = (),
    ) -> Intent:
        """Commit an intent. Call it before every call to a backend that changes something.

        If there is an open intent for the same, its generation and token are used again. So the backend finds
        what the earlier call made, and does not make it twice.
        """
        op, needs, self._changed = str(op), frozenset(needs), True
        if op not in OPS:
            raise ValueError(op)
        values = {
            "backend": backend,
            "inputs": stored(inputs),
            "needs": sorted(map(str, needs)),
            "begun_at": self._clock(),
            "place": self.lease.place,
            "tick": boottime(),
        }
        return self._write(lambda connection: record_changes.begin(connection, op, address, needs, values))

    @retried
    def finish(
        self,
        intent: Intent,
        outputs: Mapping[str, Any] | None = None,
        *,
        observed: bool = False,
        idle_since: float | None = None,
    ) -> None:
        """Record the result together with the record's change. Doing it again is harmless.

        `observed`: it only settles what ended by itself, so the serial stays. A node that was made is idle
        from `idle_since` on.
        """
        self._write(record_changes.finishing(intent, outputs, idle_since, self._clock(), observed=observed))

    def finish_soon(
        self, intent: Intent, outputs: Mapping[str, Any] | None = None, *, idle_since: float | None = None
    ) -> PendingCommit:
        """Like `finish`, but committed with the next step, or when it is settled."""
        again = partial(self.finish, intent, outputs, idle_since=idle_since)
        return PendingCommit(
            self._commits, record_changes.finishing(intent, outputs, idle_since, self._clock()), again
        )

    def fail(self, intent: Intent, error: str) -> None:
        """Close it without a change of the record: it is certain that nothing was made or changed.

        An intent whose outcome is not certain stays open: do nothing, the next run reads it back.
        """
        self.close_intent(intent, "failed", error)

    @retried
    def close_intent(self, intent: Intent, result: str, error: str | None = None) -> None:
        """End an open intent without a change of the record."""
        self._write(lambda c: record_changes.close(c, intent, self._clock(), result, error))

    # ------------------------------------------------------------------------------------ blocks

    @retried
    def reserve(self, record: Record, node: str, blocks: Iterable[int]) -> None:
        """Record a reservation and its blocks; `StateError` double-booking if one of them is held.

        No backend takes part, so there is no intent. Doing it again is harmless.
        """
        wanted = tuple(sorted(set(blocks)))
        self._write(lambda connection: record_changes.reserve(connection, record, node, wanted))

    @retried
    def release(self, reservation: Address, now: float, *, observed: bool = False) -> None:
        """Give a reservation's blocks back; a node whose last block it was is idle from `now`.

        `observed`: its rank ended by itself, so the serial stays. A missing reservation is harmless.
        """
        self._write(
            record_changes.counted(lambda c: record_changes.release(c, reservation, now), observed=observed)
        )

    # ------------------------------------------------------------------------------------ recovery

    @retried
    def adopt(self, record: Record, intent: Intent | None = None, *, idle_since: float | None = None) -> None:
        """Record what was found at the backend, and end its intent.

        A node that was made is idle from `idle_since` on.
        """
        self._write(lambda c: record_changes.adopt(c, record, intent, idle_since, self._clock()))

    @retried
    def forget(self, address: Address, *, observed: bool = False) -> None:
        """Remove a record without a backend call: its absence was confirmed. A missing record is harmless."""
        self._write(
            record_changes.counted(
                lambda c: record_changes.remove(c, address, self._clock()), observed=observed
            )
        )

    # ------------------------------------------------------------------------------------ by hand

    def log(self, op: str, address: Address) -> None:
        """Write into the journal that a user did something to that; the serial stays."""
        self._write(lambda connection: journal.note(connection, op, address, self._clock()))

    def drop(self, addresses: Iterable[Address]) -> None:
        """Forget records without a backend call: the real things stay. Forgets all of them, or none."""
        self._write(lambda connection: manual_edits.drop(connection, addresses, self._clock()))

    def drain(self, node: Address, drain: Drain | None, reason: str | None = None) -> None:
        """Record that a node takes no new work or, with None, that it takes some again."""
        self._write(lambda connection: manual_edits.drain(connection, node, drain, reason, self._clock()))

    def move(self, names: RenameMap) -> dict[Address, Address]:
        """Rename records without a backend call; the old and new addresses."""
        with self._write_whole() as connection:
            return manual_edits.move(connection, names, self._clock())

    @retried
    def push(self, pushed: State, held: HeldBlocks, *, force: bool = False) -> bool:
        """Replace this state by one that was pulled; False if it is this one already."""
        with self._write_whole() as connection:
            return manual_edits.push(connection, pushed, held, self._clock(), force=force)

    # ------------------------------------------------------------------------------------ observations

    def observe_rank(self, name: str, status: RankStatus) -> None:
        """Write how one rank is doing."""
        self.observe_ranks({name: status})

    @retried
    def observe_ranks(self, statuses: Mapping[str, RankStatus]) -> None:
        """Write how ranks are doing; the serial stays."""

        def step(connection: Connection) -> None:
            events.ranks_seen(connection, self._clock(), statuses)
            for name, status in statuses.items():
                record_changes.put_rank(connection, name, status)

        self._write(step)

    @retried
    def observe_nodes(self, readiness: Mapping[str, Readiness]) -> None:
        """Write whether nodes may take work; the serial stays. What is as it was is not written again for
        `records.SEEN_ANEW` seconds.
        """
        before = self.state().readiness
        readiness = {
            name: seen for name, seen in readiness.items() if records.is_news(before.get(name), seen)
        }
        if not readiness:
            return
        states = {name: (seen.state.value, seen.reason) for name, seen in readiness.items()}

        def step(connection: Connection) -> None:
            events.nodes_seen(connection, self._clock(), states)
            for name, seen in readiness.items():
                record_changes.put_node(connection, name, records.seen_values(seen))

        self._write(step)

    @retried
    def observe_again(self, at: float, known: State) -> State:
        """Write that all nodes were seen once more as they are recorded, and return the new state; the serial
        stays. `known` is what is recorded: it need not be read.
        """
        seen = {name: replace(found, observed_at=at) for name, found in known.readiness.items()}
        count = self._write(lambda c: c.update("node_status", {"observed_at": at}, "state IS NOT NULL"))
        if count == len(seen):
            self._known = self._version, replace(known, readiness=seen)
        return self.state()

    @retried
    def set_idle(self, node: str, since: float | None) -> None:
        """Write when a node became idle, None for busy; the serial stays."""
        self._write(lambda connection: record_changes.put_node(connection, node, {"idle_since": since}))

    @retried
    def note_detached(self) -> None:
        """Count volumes without a detach time as detached from now on; the serial stays."""
        self._write(lambda connection: record_changes.note_detached(connection, self._clock()))

    @retried
    def set_needs(self, address: Address, needs: Iterable[Address]) -> None:
        """Write the needs of a record: an ended rank has none; the serial stays."""
        wanted = frozenset(needs)
        self._write(lambda connection: record_changes.set_needs(connection, address, wanted))

    @retried
    def note(self, notes: Mapping[Address, Mapping[str, Any]]) -> None:
        """Add to the outputs of records; the serial stays. A missing record is harmless."""
        self._write(lambda connection: record_changes.note(connection, notes))
