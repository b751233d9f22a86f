"""The writer: only it changes a state. It holds the lock, and writes each step whole or not at all.

Many threads may call it; their steps are committed together, see `commit_queue`. For a state on a server it
reads and writes a copy in memory, see `server.mirror`. `record_changes` has what several steps share.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from declarative.model.state import DRAINED, Address, Intent, Record, State, by_address
from declarative.model.status import Drain, Outage, RankStatus, Readiness
from declarative.store import events, journal, lock, loop_state, record_changes, records, seal
from declarative.store.commit_queue import CommitQueue, PendingCommit
from declarative.store.consistency import HeldBlocks
from declarative.store.errors import ConstraintError, RetryWhileAway, StateError, once
from declarative.store.lease import LockInfo, boottime
from declarative.store.records import NODE, RESERVATION
from declarative.store.rename import RenameMap, renamed
from declarative.store.schema import columns, stored
from declarative.store.snapshot import OPS
from declarative.store.sql import Connection, Database

T = TypeVar("T")
P = ParamSpec("P")

MARGIN = 1 / 3
"""Seconds of a lease that have to be left when a backend is called: the longest time of a call."""

_DIGITS = re.compile(r"\d+")

LATEST = 1 << 42
"""Upper bound of epochs: milliseconds until the year 2109."""


def step(method: Callable[Concatenate[Writer, Connection, P], T]) -> Callable[Concatenate[Writer, P], T]:
    """A method that is one step: it gets the transaction, and returns once that is committed.

    It is done again when the database was away, or another thread's step failed: only for what may be done
    twice, see `errors.RetryWhileAway`.
    """

    @functools.wraps(method)
    def call(self: Writer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._do(lambda connection: method(self, connection, *args, **kwargs))

    return call


def single_step(
    method: Callable[Concatenate[Writer, Connection, P], T],
) -> Callable[Concatenate[Writer, P], T]:
    """Like `step`, for what must not be done twice: it is not repeated when the database was away."""

    @functools.wraps(method)
    def call(self: Writer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._write(lambda connection: method(self, connection, *args, **kwargs))

    return call


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
        self.lease = lease
        self._retry = retry
        self._seconds = seconds
        self._ends = lease.ends or 0.0
        self._database = database
        self._at = database.for_writer(lease)
        """The database that steps work on: a mirror, for a server."""
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

    def _write(self, work: Callable[[Connection], T]) -> T:
        """Return the result of a step once it is committed, alone or with others."""
        try:
            return self._commits.do(work)
        finally:
            self._version += 1

    def _do(self, work: Callable[[Connection], T]) -> T:
        """Like `_write`, and once more when the database was away: only for what may be done twice."""
        return self._retry(lambda: self._write(work))

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
        """A step that concerns more than a mirror holds."""
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

    # ------------------------------------------------------------------------------------ reading

    def _read(self, query: Callable[[Connection], T], database: Database | None = None) -> T:
        def read() -> T:
            with (database or self._at).reading() as connection:
                return query(connection)

        return self._retry(read)

    def _read_last(self) -> State | None:
        """The last state that was read, if nothing was written since."""
        known = self._known
        return known[1] if known is not None and known[0] == self._version else None

    def state(self) -> State:
        """The whole state. Nobody else changes it, so it is read anew only after a write."""
        version, state = self._version, self._read_last()
        if state is None:
            state = self._read(seal.load)
            self._known = version, state
        return state

    def part(self, addresses: Iterable[Address]) -> State:
        """These records and all that they need, with their ranks' statuses: cheap at any size."""
        members = set(addresses)
        return self._read(lambda connection: records.part(connection, members))

    def record(self, address: Address) -> Record | None:
        """One record, or None."""
        return self._read(lambda connection: records.record(connection, address))

    # ------------------------------------------------------------------------------------ the lock

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

    # ------------------------------------------------------------------------------------ the project

    def ensure_lineage(self) -> str:
        """The id of this state: made at random once, before its first write."""
        state = self._read_last()
        self._lineage = self._lineage or (state and state.lineage) or self._do(journal.lineage)
        return self._lineage

    def project(self) -> str | None:
        """The project whose state this is; None if unknown."""
        return self._read(lambda connection: records.named(connection, "project"))

    def claim(self, project: str) -> None:
        """Write down the project whose state this is."""

        def work(connection: Connection) -> str:
            connection.update("meta", {"project": project})
            return journal.lineage(connection)

        self._lineage = self._do(work)

    # ------------------------------------------------------------------------------------ the loop

    @step
    def permit(self, connection: Connection, causes: Mapping[str, str]) -> None:
        """Write into the journal what a loop is about to do, and why. Its budgets count these."""
        now = self._clock()
        for address, cause in causes.items():
            journal.note(connection, journal.PERMIT, Address.parse(address), now, {"cause": cause})

    def note_waiting(self, why: Mapping[str, str]) -> None:
        """Write down why tasks have no place, if that is news: numbers alone, such as of nodes, are none."""
        known = self._read(events.waiting, self._database)  # a mirror has no events
        before = {task: _DIGITS.sub("#", waiting.why) for task, waiting in known.items()}
        news = {task: text for task, text in why.items() if before.get(task) != _DIGITS.sub("#", text)}
        if news:
            self._do(lambda connection: events.note_waiting(connection, self._clock(), news))

    @step
    def wait_for_approval(self, connection: Connection, waiting: Mapping[str, Sequence[str]]) -> None:
        """Replace what waits for a person, by digest. Anything else is forgotten, with its approval."""
        known = {approval.digest for approval in loop_state.read_approvals(connection)}
        gone = sorted(known - waiting.keys())
        if gone:
            connection.execute("DELETE FROM approvals WHERE digest IN (:its_digests)", its_digests=gone)
        now = self._clock()
        new = [
            {"digest": digest, "steps": list(steps), "since": now}
            for digest, steps in waiting.items()
            if digest not in known
        ]
        connection.insert("approvals", *new)

    @step
    def leave_alone(self, connection: Connection, outages: Sequence[Outage]) -> None:
        """Replace the backends that the loop leaves alone."""
        connection.execute("DELETE FROM left_alone")
        connection.insert("left_alone", *map(asdict, outages))

    # ------------------------------------------------------------------------------------ the journal

    @step
    def begin(
        self,
        connection: Connection,
        op: str,
        address: Address,
        backend: str | None,
        inputs: Mapping[str, Any],
        needs: Collection[Address] = (),
    ) -> Intent:
        """Commit an intent. Call it before every call to a backend that changes something.

        If there is an open intent for the same, its generation and token are used again. So the backend finds
        what the earlier call made, and does not make it twice.
        """
        op, needs, self._changed = str(op), frozenset(needs), True
        if op not in OPS:
            raise ValueError(op)
        values: dict[str, Any] = {
            "backend": backend,
            "inputs": stored(inputs),
            "needs": sorted(map(str, needs)),
            "begun_at": self._clock(),
            "place": self.lease.place,
            "tick": boottime(),
        }
        earlier = records.open_intents(connection, address)
        if op == "delete":
            records.unneeded(connection, address)
        else:
            records.require(connection, address, needs)
        if op in earlier:
            return journal.take_up(connection, earlier[op], values)
        if op == "create" and earlier:
            raise journal.left_open(address, earlier)
        generation, its_token = journal.identify(connection, op, address, values["inputs"])
        if op == "create":
            journal.name_is_free(connection, address, generation)
            record_changes.raise_generation(connection, address, generation, generation - 1)
            record_changes.forget_status(connection, address)
        return journal.begin(connection, op, address, (generation, its_token), values)

    @step
    def finish(
        self,
        connection: Connection,
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
        if record_changes.finish(connection, intent, outputs, idle_since, self._clock()) and not observed:
            record_changes.raise_serial(connection)

    def finish_soon(
        self, intent: Intent, outputs: Mapping[str, Any] | None = None, *, idle_since: float | None = None
    ) -> PendingCommit:
        """Like `finish`, but committed with the next step, or when it is settled."""
        now = self._clock()

        def finish(connection: Connection) -> None:
            if record_changes.finish(connection, intent, outputs, idle_since, now):
                record_changes.raise_serial(connection)

        retry = functools.partial(self.finish, intent, outputs, idle_since=idle_since)
        return PendingCommit(self._commits, finish, retry)

    def fail(self, intent: Intent, error: str) -> None:
        """Close it without a change of the record: it is certain that nothing was made or changed.

        An intent whose outcome is not certain stays open: do nothing, the next run reads it back.
        """
        self.close_intent(intent, "failed", error)

    @step
    def close_intent(
        self, connection: Connection, intent: Intent, result: str, error: str | None = None
    ) -> None:
        """End an open intent without a change of the record."""
        record_changes.close(connection, intent, self._clock(), result, error)

    # ------------------------------------------------------------------------------------ blocks

    @step
    def reserve(self, connection: Connection, record: Record, node: str, blocks: Collection[int]) -> None:
        """Record a reservation and its blocks; `StateError` double-booking if one of them is held.

        No backend takes part, so there is no intent. Doing it again is harmless.
        """
        numbers = sorted(set(blocks))
        text = str(Address(NODE, node))
        record = replace(record, needs=record.needs | {Address(NODE, node)})
        _check_fit(connection, record.address, node, numbers)
        if records.record(connection, record.address):
            if records.held_by(connection, record.address) == {(node, block) for block in numbers}:
                return
            raise StateError("exists", f"{record.address} holds other blocks; it has to be released first")
        taken = records.holders(connection, node, numbers)
        if taken:
            raise _double_booking(record.address, node, taken)
        record_changes.put_record(connection, record)
        record_changes.raise_generation(connection, record.address, record.generation)
        try:
            rows = [{"node": text, "block": b, "reservation": str(record.address)} for b in numbers]
            connection.insert("reserved_blocks", *rows)
        except ConstraintError as error:
            raise _double_booking(record.address, node, {}) from error
        record_changes.put_node(connection, node, {"idle_since": None})
        record_changes.raise_serial(connection)

    @step
    def release(
        self, connection: Connection, reservation: Address, now: float, *, observed: bool = False
    ) -> None:
        """Give a reservation's blocks back; a node whose last block it was is idle from `now`.

        `observed`: its rank ended by itself, so the serial stays. A missing reservation is harmless.
        """
        if record_changes.release(connection, reservation, now) and not observed:
            record_changes.raise_serial(connection)

    # ------------------------------------------------------------------------------------ recovery

    @step
    def adopt(
        self,
        connection: Connection,
        record: Record,
        intent: Intent | None = None,
        *,
        idle_since: float | None = None,
    ) -> None:
        """Record what was found at the backend, and end its intent.

        A node that was made is idle from `idle_since` on.
        """
        now = self._clock()
        if intent is not None and not record_changes.close(connection, intent, now, "adopted"):
            return
        if intent is None:
            if records.record(connection, record.address) == record:
                return  # adopted before
            record_changes.raise_generation(connection, record.address, record.generation)
        record_changes.put_made(connection, record, idle_since, now, intent.begun_at if intent else None)
        record_changes.raise_serial(connection)

    @step
    def forget(self, connection: Connection, address: Address, *, observed: bool = False) -> None:
        """Remove a record without a backend call: its absence was confirmed. A missing record is harmless."""
        if record_changes.remove(connection, address, self._clock()) and not observed:
            record_changes.raise_serial(connection)

    # ------------------------------------------------------------------------------------ by hand

    @single_step
    def log(self, connection: Connection, op: str, address: Address) -> None:
        """Write into the journal that a user did something to that; the serial stays."""
        journal.note(connection, op, address, self._clock())

    @single_step
    def drop(self, connection: Connection, addresses: Collection[Address]) -> None:
        """Forget records without a backend call: the real things stay. Forgets all of them, or none."""
        now = self._clock()
        for address in sorted(set(addresses), key=by_address, reverse=True):  # users first
            record = records.recorded(connection, address)
            open_intents = records.open_intents(connection, address)
            if open_intents:
                raise journal.left_open(address, open_intents)
            journal.note(connection, "forget", record, now)
            if address.kind == RESERVATION:
                record_changes.release(connection, address, now)
            else:
                record_changes.remove(connection, address, now)
        record_changes.raise_serial(connection)

    @single_step
    def drain(
        self, connection: Connection, node: Address, drain: Drain | None, reason: str | None = None
    ) -> None:
        """Record that a node takes no new work or, with None, that it takes work."""
        record = records.recorded(connection, node)
        outputs = {key: value for key, value in record.outputs.items() if key != DRAINED}
        if drain:
            outputs[DRAINED] = asdict(drain)
        record_changes.put_record(connection, replace(record, outputs=outputs))
        record_changes.raise_serial(connection)
        op, inputs = ("drain" if drain else "undrain"), {"reason": reason} if reason else {}
        journal.note(connection, op, record, self._clock(), inputs)

    def move(self, names: RenameMap) -> dict[Address, Address]:
        """Rename records without a backend call; the old and new addresses."""
        with self._write_whole() as connection:
            now = self._clock()
            state, held, moves = renamed(records.load(connection), records.blocks(connection), names)
            record_changes.replace_state(connection, state, held, now)
            for old, new in moves.items():
                journal.note(connection, "move", state.records[new], now, {"from": str(old)})
            return moves

    def push(self, pushed: State, held: HeldBlocks, *, force: bool = False) -> bool:
        """Replace this state by one that was pulled; False if it is this one already."""

        def replace_all() -> bool:
            with self._write_whole() as connection:
                present = records.load(connection)
                if (pushed, held) == (present, records.blocks(connection)):
                    return False
                now, state = self._clock(), record_changes.may_push(present, pushed, held, force=force)
                record_changes.replace_state(connection, state, held, now)
                its = Address("state", str(state.lineage))
                journal.note(connection, "push", its, now, {"serial": state.serial})
                return True

        return self._retry(replace_all)

    # ------------------------------------------------------------------------------------ observations

    @step
    def observe_ranks(self, connection: Connection, statuses: Mapping[str, RankStatus]) -> None:
        """Write how ranks are doing; the serial stays."""
        events.ranks_changed(connection, self._clock(), statuses)
        for name, status in statuses.items():
            record_changes.put_rank(connection, name, status)

    def observe_nodes(self, readiness: Mapping[str, Readiness]) -> None:
        """Write whether nodes may take work, if it is news (`records.is_news`); the serial stays."""
        before = self.state().readiness
        news = {name: node for name, node in readiness.items() if records.is_news(before.get(name), node)}

        def work(connection: Connection) -> None:
            events.nodes_changed(connection, self._clock(), news)
            for name, node in news.items():
                record_changes.put_node(connection, name, columns("node_status", node))

        if news:
            self._do(work)

    def observe_again(self, at: float, known: State) -> State:
        """Write that all nodes are still as `known` has them; the new state. The serial stays."""
        readiness = {name: replace(node, observed_at=at) for name, node in known.readiness.items()}
        seen_at = {"observed_at": at}
        dated = self._do(lambda connection: connection.update("node_status", seen_at, "state IS NOT NULL"))
        if dated == len(readiness):
            self._known = self._version, replace(known, readiness=readiness)
        return self.state()

    @step
    def set_idle(self, connection: Connection, node: str, since: float | None) -> None:
        """Write when a node became idle, None for busy; the serial stays."""
        record_changes.put_node(connection, node, {"idle_since": since})

    @step
    def note_detached(self, connection: Connection) -> None:
        """Count volumes without a detach time as detached from now on; the serial stays."""
        record_changes.note_detached(connection, self._clock())

    @step
    def set_needs(self, connection: Connection, address: Address, needs: Collection[Address]) -> None:
        """Write the needs of a record: an ended rank has none; the serial stays."""
        records.recorded(connection, address)
        records.require(connection, address, needs)
        record_changes.replace_needs(connection, address, needs)

    @step
    def note(self, connection: Connection, notes: Mapping[Address, Mapping[str, Any]]) -> None:
        """Add to the outputs of records; the serial stays. A missing record is harmless."""
        for address, more in notes.items():
            record = records.record(connection, address)
            if record is not None:
                record_changes.put_record(connection, replace(record, outputs={**record.outputs, **more}))


def _check_fit(connection: Connection, address: Address, node: str, blocks: Sequence[int]) -> None:
    record = records.record(connection, Address(NODE, node))
    if record is None:
        raise StateError("missing-need", f"{address} needs node/{node}, which is not recorded")
    total = record.node.blocks
    wrong = [block for block in blocks if not 0 <= block < total]
    if wrong or not blocks:
        what = f"block {wrong[0]}" if wrong else "no block"
        raise StateError("no-such-block", f"{address} asks for {what} of node/{node}, which has {total}")


def _double_booking(address: Address, node: str, taken: Mapping[int, str]) -> StateError:
    held = ", ".join(f"block {block} is held by {who}" for block, who in sorted(taken.items()))
    return StateError(
        "double-booking",
        f"{address} cannot have what it wants of node/{node}: {held or 'a block of it is held'}",
        "run it again: the plan was made of what was there before",
    )
