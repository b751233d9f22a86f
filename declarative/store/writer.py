"""The only one that changes a state: holds its lock, and writes each step whole or not at all.

Safe to call from many threads: their steps take turns, and those that wait for one another are committed
together. Of a state on a server it reads and writes a copy, see `working_copy`. What is `resumed` may be done
twice, because it may be that it was: see `reconnect`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from declarative.model.state import Address, Drain, Intent, RankStatus, Readiness, Record, State
from declarative.store import approvals, checksum, events, history, intents, lock, manual_edits, rows
from declarative.store.check import Held
from declarative.store.database import Connection, Database, plain
from declarative.store.export import OPS
from declarative.store.faults import ConstraintError, StateError
from declarative.store.history import Let
from declarative.store.reconnect import Resume, once, resumed
from declarative.store.rename import Names

LET = "reconcile"
"""The journal's word for what a loop lets through."""

MARGIN = 1 / 3
"""How much of a lease has to be left when a backend is called: what a call may take."""

LATEST = 1 << 42
"""No epoch is as high (milliseconds until the year 2109): whoever says so made it up."""

ERROR_LENGTH = 2000
"""How much of a backend's message the journal keeps."""

MOST_STEPS = 64
"""How many steps are committed together: the first of them waits for the last."""


class _Group:
    """A transaction of several steps. Nobody returns from his step before all of them are committed."""

    def __init__(self, database: Database) -> None:
        self._transaction = database.writing()
        self.connection = self._transaction.__enter__()
        self.steps = 0
        self.ended = threading.Event()
        self.error: BaseException | None = None

    def end(self, error: BaseException | None = None) -> None:
        """Commit it, or after an `error` roll all of it back; the fault is then that of every step."""
        try:
            self._transaction.__exit__(type(error) if error else None, error, None)
        except BaseException as fault:  # noqa: BLE001  # raised in each thread that waits
            self.error = fault
        self.ended.set()


class Writer:
    """Writes to one state while it holds its lock. Every call either happens whole or raises `StateError`."""

    def __init__(
        self,
        database: Database,
        lease: lock.LockInfo,
        clock: Callable[[], float],
        resume: Resume = once,
        seconds: float = lock.LEASE_SECONDS,
    ) -> None:
        """`seconds` is how long a lease lasts."""
        self._seconds = seconds
        self._ends = lease.ends or 0.0
        self._database = database
        self._copy = database.working_copy(lease)
        self._at = self._copy or database
        """Where steps are done."""
        self._resume = resume
        self._clock = clock
        self._turn = threading.Lock()
        self._queue = threading.Lock()
        self._waiting = 0
        self._group: _Group | None = None
        """What those who wait for their turn go on with."""
        self._changed = False
        self._sealed = True  # as far as we know; what we write takes it off
        self.lease = lease

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        """One step, alone or in a group. Threads queue here and not at the database, whose waiting is a poll
        and not fair.
        """
        with self._queue:
            self._waiting += 1
        with self._turn:
            with self._queue:
                self._waiting -= 1
            group, self._group = self._group or self._open(), None
            try:
                with group.connection.step(alone=not group.steps):
                    yield group.connection
                group.steps += 1
            except BaseException as error:
                if not group.steps:  # nobody waits for it yet
                    group.end(error)
                if group.error:
                    raise group.error from error
                raise
            finally:
                if self._waiting and 0 < group.steps < MOST_STEPS:
                    self._group = group
                elif group.steps:
                    self._end(group)
        group.ended.wait()
        if group.error:
            raise group.error

    def _open(self) -> _Group:
        """A transaction in which the lock is ours: nobody takes it before the end."""
        group = _Group(self._at)
        try:
            with self._at.mutex:
                self._begin(group.connection)
        except BaseException as error:
            group.end(error)
            raise
        return group

    def _begin(self, connection: Connection) -> None:
        lock.check(connection, self.lease)
        if self._sealed:
            checksum.remove(connection)

    def _end(self, group: _Group) -> None:
        group.end()
        self._sealed = self._sealed and group.error is not None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Between two groups: those who wait for their turn begin another one."""
        with self._turn:
            group, self._group = self._group, None
            if group:
                self._end(group)
            yield

    @contextmanager
    def _write_whole(self) -> Iterator[Connection]:
        """A step that concerns more than a copy holds."""
        with self._alone():
            try:
                with self._database.writing() as connection:
                    self._begin(connection)
                    yield connection
                self._sealed = False
            finally:
                if self._copy:
                    self._copy.forget()

    def close(self) -> None:
        """Seal what was written; nothing is written after that."""
        try:
            self.seal()
        finally:
            if self._copy:
                self._copy.forget()

    def seal(self) -> None:
        """Note that this is all that was written, if anything was."""
        if not self._sealed:
            with self._write() as connection:
                checksum.put(connection)
            self._sealed = True

    @resumed
    def state(self) -> State:
        """Everything that is known now."""
        with self._at.reading() as connection:
            return checksum.load(connection)

    @resumed
    def begun(self, its_token: str) -> Intent | None:
        """The create that was begun with a token, ended or not; None where the journal knows of none."""
        with self._database.reading() as connection:
            return rows.begun(connection, its_token)

    @resumed
    def part(self, wanted: Iterable[Address]) -> State:
        """The records of `wanted` and all that they need, with their ranks' statuses: cheap at any size."""
        with self._at.reading() as connection:
            return rows.part(connection, wanted)

    def renew(self, seconds: float) -> None:
        """Move the end of the lease; `StateError` stale-lease if it is another one's by now."""
        with self._alone():
            try:
                self._ends = lock.renew(self._database, self.lease, seconds)
            except StateError as error:
                if error.code == "stale-lease":
                    self._ends = 0.0
                raise

    def fence(self) -> int:
        """The epoch of this writer, once it is certain that the lock is its own for long enough to call a
        backend. To be asked before each call, and before it is tried again: whoever slept meanwhile, or was
        cut off from the database, has perhaps lost it to another one, and then it is a `StateError`.
        """
        if self._ends - lock.boottime() < self._seconds * MARGIN:
            self._resume(lambda: self.renew(self._seconds))
        return self.lease.epoch

    def changing(self) -> int:
        """As `fence`, before a call that changes something: see `learn`."""
        self._changed = True
        return self.fence()

    def learn(self, newest: int) -> bool:
        """Count this writer above `newest`, which something was told of: the state was brought back from a
        backup, and the clock was set back. False where that would be wrong.

        Only whoever holds the lock and has changed nothing yet: what it does from now on comes of a look at
        what the later one left. Whoever slept since its own look, and was overtaken, has to stay refused.
        """
        if self._changed or newest >= LATEST:
            return False
        with self._write() as connection:
            self.lease = lock.count_above(connection, self.lease, newest)
        return True

    @resumed
    def ensure_lineage(self) -> str:
        """The id of this state: made at random once, before its first write."""
        with self._write() as connection:
            return intents.lineage(connection)

    @resumed
    def claim(self, project: str) -> None:
        """Write down whose state this is."""
        with self._write() as connection:
            connection.update("meta", {"project": project})

    @resumed
    def let(self, causes: Mapping[str, str]) -> None:
        """Write into the journal what a loop is about to do, and why: what its budgets count."""
        with self._write() as connection:
            for address, cause in causes.items():
                history.note(connection, LET, Address.parse(address), self._clock(), inputs={"cause": cause})

    @resumed
    def was_let(self, since: float) -> tuple[Let, ...]:
        """What a loop has let through from then on."""
        with self._database.reading() as connection:
            return history.let_since(connection, LET, since)

    @resumed
    def wait_for_approval(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Write down what waits for a person, by digest; see `approvals.write`."""
        with self._write() as connection:
            approvals.write(connection, wanted, self._clock())

    # ------------------------------------------------------------------------------------ the journal

    @resumed
    def begin(
        self,
        op: str,
        address: Address,
        backend: str | None,
        inputs: Mapping[str, Any],
        needs: Iterable[Address] = (),
    ) -> Intent:
        """Commit what is about to be asked of a backend. Call it before every such call.

        An intent for the same that is still open is taken up again with its generation and token: what
        the backend made of the earlier call is then found and not made twice.
        """
        op, needs, self._changed = str(op), frozenset(needs), True
        if op not in OPS:
            raise ValueError(op)
        with self._write() as connection:
            earlier = rows.open_intents(connection, address)
            if op == "delete":
                rows.unneeded(connection, address)
            else:
                rows.require(connection, address, needs)
            values = {
                "backend": backend,
                "inputs": plain(inputs),
                "needs": sorted(map(str, needs)),
                "begun_at": self._clock(),
                "place": lock.place(),
                "tick": lock.boottime(),
            }
            if op in earlier:
                return intents.take_up(connection, earlier[op], values)
            if op == "create" and earlier:
                raise intents.left_open(address, earlier)
            generation, its_token = intents.identify(connection, op, address, inputs)
            if op == "create":
                intents.name_is_free(connection, address, generation)
                rows.raise_generation(connection, address, generation, generation - 1)
                rows.forget_status(connection, address)
            return intents.begin(connection, op, address, (generation, its_token), values)

    @resumed
    def finish(
        self,
        intent: Intent,
        outputs: Mapping[str, Any] | None = None,
        *,
        observed: bool = False,
        idle_since: float | None = None,
    ) -> None:
        """Record what came of it, together with the record's change; again is no harm.

        `observed`: it only settles what ended by itself, so the serial stays. A node that was made is idle
        from `idle_since` on.
        """
        with self._write() as connection:
            if not self._close(connection, intent, "done"):
                return
            if intent.op == "delete":
                self._remove(connection, intent.address)
                self._supersede(connection, intent.address)
            else:
                self._put(connection, intents.made_of(connection, intent, outputs))
                if idle_since is not None:
                    rows.put_node(connection, intent.address.name, {"idle_since": idle_since})
            _count(connection, observed=observed)

    def fail(self, intent: Intent, error: str) -> None:
        """Close it without a change of the record: it is certain that nothing was made or changed.

        An intent whose outcome is not certain stays open: do nothing, the next run reads it back.
        """
        self.close_intent(intent, "failed", error)

    @resumed
    def close_intent(self, intent: Intent, result: str, error: str | None = None) -> None:
        """End an open intent without a change of the record."""
        with self._write() as connection:
            self._close(connection, intent, result, error)

    def _close(self, connection: Connection, intent: Intent, result: str, error: str | None = None) -> bool:
        """Whether it was open until now; False if it had ended in the same way."""
        its = {"its_id": intent.id}
        error = error and error[:ERROR_LENGTH]
        end = {"ended_at": self._clock(), "result": result, "error": error}
        if connection.update("operations", end, "id = :its_id AND ended_at IS NULL", **its):
            more = {"error": error, **history.actor_of(connection)}
            events.ended(connection, self._clock(), intent, result, more)
            return True
        with connection.database.whole_journal(connection) as journal:
            before = journal.execute("SELECT result FROM operations WHERE id = :its_id", **its).scalar()
        if before == result:
            return False
        raise StateError(
            "closed-intent", f"{intent.op}:{intent.address} was ended before, as {before or 'unknown'}"
        )

    def _supersede(self, connection: Connection, address: Address) -> None:
        # What is gone has no other outcome any more.
        end = {"ended_at": self._clock(), "result": "superseded"}
        still_open = "address = :its_address AND ended_at IS NULL"
        connection.update("operations", end, still_open, its_address=str(address))

    def _put(self, connection: Connection, made: Record) -> None:
        rows.put(connection, made)
        if made.address.kind == rows.VOLUME:
            rows.note_detached(connection, self._clock(), [made.address])
        elif made.address.kind == rows.ATTACHMENT:
            rows.note_attached(connection, _volumes(made.needs))

    def _remove(self, connection: Connection, address: Address) -> bool:
        """Whether it was recorded."""
        held = rows.needed(connection, address) if address.kind == rows.ATTACHMENT else ()
        gone = rows.remove(connection, address)
        rows.note_detached(connection, self._clock(), _volumes(held))
        return gone

    # ------------------------------------------------------------------------------------ blocks

    @resumed
    def reserve(self, record: Record, node: str, blocks: Iterable[int]) -> None:
        """Record a reservation and its blocks; `StateError` double-booking if one of them is held.

        No backend takes part, so there is no intent. The same one again is no harm.
        """
        wanted = tuple(sorted(set(blocks)))
        record = replace(record, needs=record.needs | {Address(rows.NODE, node)})
        with self._write() as connection:
            _fits(connection, record.address, node, wanted)
            if rows.record(connection, record.address):
                if rows.held_by(connection, record.address) == {(node, block) for block in wanted}:
                    return
                raise StateError(
                    "exists", f"{record.address} holds other blocks; it has to be released first"
                )
            taken = rows.holders(connection, node, wanted)
            if taken:
                raise _double_booking(record.address, node, taken)
            rows.put(connection, record)
            try:
                text = str(Address(rows.NODE, node))
                held = [{"node": text, "block": b, "reservation": str(record.address)} for b in wanted]
                connection.insert("reserved_blocks", *held)
            except ConstraintError as error:
                raise _double_booking(record.address, node, {}) from error
            rows.put_node(connection, node, {"idle_since": None})
            rows.count_up(connection)

    @resumed
    def release(self, reservation: Address, now: float, *, observed: bool = False) -> None:
        """Give a reservation's blocks back; a node whose last block it was is idle from `now`.

        `observed`: its rank ended by itself, so the serial stays. One that is not there is no harm.
        """
        with self._write() as connection:
            if self._release(connection, reservation, now):
                _count(connection, observed=observed)

    def _release(self, connection: Connection, reservation: Address, now: float) -> bool:
        nodes = {node for node, _ in rows.held_by(connection, reservation)}
        if not rows.remove(connection, reservation):
            return False
        for node in nodes:
            its = {"its_node": str(Address(rows.NODE, node))}
            if connection.select("reserved_blocks", "WHERE node = :its_node LIMIT 1", **its).first() is None:
                rows.put_node(connection, node, {"idle_since": now})
        return True

    # ------------------------------------------------------------------------------------ recovery

    @resumed
    def adopt(self, record: Record, intent: Intent | None = None, *, idle_since: float | None = None) -> None:
        """Record what was found at the backend, and end the intent that it came of.

        A node that was made is idle from `idle_since` on.
        """
        with self._write() as connection:
            if intent is not None and not self._close(connection, intent, "adopted"):
                return
            if intent is None:
                if rows.record(connection, record.address) == record:
                    return  # adopted before
                rows.raise_generation(connection, record.address, record.generation)
            self._put(connection, record)
            if idle_since is not None:
                rows.put_node(connection, record.address.name, {"idle_since": idle_since})
            rows.count_up(connection)

    @resumed
    def forget(self, address: Address, *, observed: bool = False) -> None:
        """Remove a record without a backend call: its absence was confirmed. None there is no harm."""
        with self._write() as connection:
            if self._remove(connection, address):
                _count(connection, observed=observed)

    # ------------------------------------------------------------------------------------ by hand

    def log(self, op: str, address: Address) -> None:
        """Write into the journal that a user did something to that; the serial stays."""
        with self._write() as connection:
            history.note(connection, op, address, self._clock())

    def drop(self, addresses: Iterable[Address]) -> None:
        """Forget records, without a backend call: what they stand for stays. All of them, or none."""
        with self._write() as connection:
            now = self._clock()
            for address in manual_edits.to_drop(connection, addresses, now):
                if address.kind == rows.RESERVATION:
                    self._release(connection, address, now)
                else:
                    self._remove(connection, address)
            rows.count_up(connection)

    def drain(self, node: Address, drain: Drain | None, reason: str | None = None) -> None:
        """Record that a node takes no new work or, with None, that it takes some again."""
        with self._write() as connection:
            manual_edits.drain(connection, node, drain, reason, self._clock())
            rows.count_up(connection)

    def move(self, names: Names) -> dict[Address, Address]:
        """Rename what is recorded, without a backend call; which addresses became which."""
        with self._write_whole() as connection:
            return manual_edits.move(connection, names, self._clock())

    @resumed
    def push(self, pushed: State, held: Held, *, force: bool = False) -> bool:
        """Put a state that was pulled in the place of this one; False if it is this one already."""
        with self._write_whole() as connection:
            return manual_edits.push(connection, pushed, held, self._clock(), force=force)

    # ------------------------------------------------------------------------------------ observations

    def observe_rank(self, name: str, status: RankStatus) -> None:
        """Write how one rank is doing."""
        self.observe_ranks({name: status})

    @resumed
    def observe_ranks(self, statuses: Mapping[str, RankStatus]) -> None:
        """Write how ranks are doing; the serial stays."""
        with self._write() as connection:
            events.ranks_seen(connection, self._clock(), statuses)
            for name, status in statuses.items():
                rows.put_rank(connection, name, status)

    @resumed
    def observe_nodes(self, readiness: Mapping[str, Readiness]) -> None:
        """Write whether nodes may take work; the serial stays."""
        states = {name: (seen.state.value, seen.reason) for name, seen in readiness.items()}
        with self._write() as connection:
            events.nodes_seen(connection, self._clock(), states)
            for name, seen in readiness.items():
                rows.put_node(connection, name, rows.seen_values(seen))

    @resumed
    def set_idle(self, node: str, since: float | None) -> None:
        """Write since when a node is idle, None for busy; the serial stays."""
        with self._write() as connection:
            rows.put_node(connection, node, {"idle_since": since})

    @resumed
    def note_detached(self) -> None:
        """Volumes of which it is not known since when they are attached to nothing are so from now on; the
        serial stays.
        """
        with self._write() as connection:
            rows.note_detached(connection, self._clock())

    @resumed
    def set_needs(self, address: Address, needs: Iterable[Address]) -> None:
        """Write what a record holds on to: an ended rank lets go of all; the serial stays."""
        needs = frozenset(needs)
        with self._write() as connection:
            if rows.record(connection, address) is None:
                raise StateError("not-recorded", f"{address} is not recorded")
            rows.require(connection, address, needs)
            rows.replace_needs(connection, address, needs)

    @resumed
    def note(self, notes: Mapping[Address, Mapping[str, Any]]) -> None:
        """Add to the outputs of records; the serial stays. One that is not there (any more) is no harm."""
        with self._write() as connection:
            for address, more in notes.items():
                have = rows.record(connection, address)
                if have is not None:
                    rows.put(connection, replace(have, outputs={**have.outputs, **more}))


def _count(connection: Connection, *, observed: bool) -> None:
    if not observed:
        rows.count_up(connection)


def _volumes(addresses: Iterable[Address]) -> list[Address]:
    return [address for address in addresses if address.kind == rows.VOLUME]


def _fits(connection: Connection, address: Address, node: str, wanted: tuple[int, ...]) -> None:
    where = rows.record(connection, Address(rows.NODE, node))
    if where is None:
        raise StateError("missing-need", f"{address} needs node/{node}, which is not recorded")
    total = where.node.blocks
    wrong = [block for block in wanted if not 0 <= block < total]
    if wrong or not wanted:
        what = f"block {wrong[0]}" if wrong else "no block"
        raise StateError("no-such-block", f"{address} asks for {what} of node/{node}, which has {total}")


def _double_booking(address: Address, node: str, taken: Mapping[int, str]) -> StateError:
    held = ", ".join(f"block {block} is held by {who}" for block, who in sorted(taken.items()))
    return StateError(
        "double-booking",
        f"{address} cannot have what it wants of node/{node}: {held or 'a block of it is held'}",
        "run it again: the plan was made of what was there before",
    )
