"""Writes of many threads in few transactions: writes that wait at the same time are committed together.

Threads queue here and not at the database, whose waiting polls and is not fair. The thread that waits first
commits what is in the queue, its own write included, and what comes while it does that; the other threads
sleep until their writes are done.

The threads that a commit wakes come back one after the other. If the first of them began a commit at once,
the others would wait for all of it. Where a commit takes long, on a server, the thread that commits waits a
moment for as many writes as came the last time.

A write may be left to the next commit: its thread goes on, and settles the write later. What depends on the
write waits until it is committed. So the end of one action and the begin of the next share a commit.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, takewhile
from typing import TypeVar, cast

from declarative.store.errors import StateError, as_state_error
from declarative.store.sql import Connection, Database

T = TypeVar("T")

MOST_WRITES = 64
"""The most writes that are committed together: the first of them waits for the last."""


class QueuedWrite:
    """The write of one thread, and its result."""

    def __init__(self, work: Callable[[Connection], object] | None) -> None:
        """`work` gets the transaction. None takes a turn of its own, and joins no transaction."""
        self.work = work
        self.outcome: object = None
        self.error: BaseException | None = None
        self.is_done = False
        """Whether it is committed, or has failed."""
        self.is_awaited = work is None
        """Whether a thread waits for it."""
        self.progressed: threading.Condition | None = None
        """Signals to the thread that waits that it may commit, or that the write is done."""
        self.then: Callable[[], object] | None = None
        """Called once it is committed."""


class CommitQueue:
    """The writes that wait for one database. No thread goes on before its write is committed."""

    def __init__(
        self, database: Database, begin: Callable[[Connection], None], committed: Callable[[], None]
    ) -> None:
        """`begin` is done first in each transaction; `committed` is called after each."""
        self._database = database
        self._begin = begin
        self._committed = committed
        self._mutex = threading.Lock()
        self._arrived = threading.Condition(self._mutex)
        """Signals to the thread that commits that as many writes have come as it waits for."""
        self._queue: deque[QueuedWrite] = deque()
        self._is_busy = False
        self._expected = 0
        """How many writes a commit waits for: those of the last one, and those that came meanwhile."""
        self._patience = 0.0
        """Seconds that a commit waits for them: as long as the last one took, at most `commit_patience`."""

    def do(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns once it is committed; or raise what it raises."""
        write = self._enqueue(QueuedWrite(work))
        self.settle(write)
        return cast("T", write.outcome)

    def leave(self, work: Callable[[Connection], object]) -> QueuedWrite:
        """A write that is committed with the next one for which a thread waits, or once it is settled."""
        return self._enqueue(QueuedWrite(work))

    def _enqueue(self, write: QueuedWrite) -> QueuedWrite:
        with self._arrived:
            self._queue.append(write)
            if self._has_expected():
                self._arrived.notify()
        return write

    def settle(self, write: QueuedWrite) -> None:
        """Return once a write is committed, or raise what it failed with."""
        if self._await_turn(write):
            try:
                while not write.is_done:
                    self._commit()
            finally:
                self._free()
        if write.error:
            raise write.error

    def on_commit(self, write: QueuedWrite, then: Callable[[], object]) -> None:
        """Do that once a write that was left is committed; never if it fails."""
        with self._mutex:
            write.then = then
            if not write.is_done or write.error:
                return
        then()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Between two commits: the writes that came before are in an earlier one, the others in a later."""
        mark = self._enqueue(QueuedWrite(None))
        self._await_turn(mark)
        with self._mutex:
            self._queue.remove(mark)
        try:
            yield
        finally:
            self._free()

    def _await_turn(self, write: QueuedWrite) -> bool:
        """Wait until the write is done or it is this thread's turn, first come, first served; which."""

        def is_due() -> bool:
            return not self._is_busy and write is next(w for w in self._queue if w.is_awaited)

        with self._mutex:
            write.is_awaited = True
            try:
                if not (write.is_done or is_due()):
                    write.progressed = threading.Condition(self._mutex)
                    write.progressed.wait_for(lambda: write.is_done or is_due())
            except BaseException:  # an interrupt: no other thread waits for this write
                if write in self._queue:
                    self._queue.remove(write)
                self._wake_next()
                raise
            if not write.is_done:
                self._is_busy = True
            return not write.is_done

    def _free(self) -> None:
        with self._mutex:
            self._is_busy = False
            self._wake_next()

    def _wake_next(self) -> None:
        """Only the thread whose turn is next: each that wakes in vain costs time."""
        for write in self._queue:
            if write.is_awaited:
                if write.progressed:
                    write.progressed.notify()
                return

    def _commit(self) -> None:
        """Commit the first writes of the queue, after a moment in which as many come as the last time."""
        with self._arrived:
            if self._patience:
                self._arrived.wait_for(self._has_expected, self._patience)
        writes: list[QueuedWrite] = []
        self._take(writes)  # they get the error if no transaction can begin
        error: BaseException | None = None
        started = time.monotonic()
        try:
            # Each write would pay for a savepoint. Instead, after a fault, the other writes are done again.
            while not self._write(writes):
                pass
        except BaseException as fault:
            error = fault
            if not isinstance(fault, Exception):
                raise
        finally:
            self._patience = min(time.monotonic() - started, self._database.commit_patience)
            self._finish(writes, error)

    def _has_expected(self) -> bool:
        return len(self._queue) >= self._expected or any(write.work is None for write in self._queue)

    def _write(self, writes: list[QueuedWrite]) -> bool:
        """Commit `writes` that have not failed, and what is added to them: the writes that come until all
        are done. False if one failed: then nothing is committed.
        """
        write = None
        try:
            with self._database.writing() as connection:
                with self._database.mutex:
                    self._begin(connection)
                number = 0
                while number < len(writes) or self._take(writes):
                    write = writes[number]
                    number += 1
                    if write.error is None:
                        assert write.work is not None
                        with as_state_error(self._database.name), self._database.mutex:
                            write.outcome = write.work(connection)
                write = None
        except Exception as error:
            if write is None:
                raise
            write.error = error
            return False
        self._committed()
        return True

    def _take(self, writes: list[QueuedWrite]) -> bool:
        """Move the first writes of the queue to `writes`; whether there were any."""
        with self._mutex:
            ready = islice(takewhile(lambda write: write.work, self._queue), MOST_WRITES - len(writes))
            taken = [*ready]
            for _ in taken:
                self._queue.popleft()
        writes += taken
        return bool(taken)

    def _finish(self, writes: list[QueuedWrite], error: BaseException | None) -> None:
        with self._mutex:
            self._expected = min(len(writes) + len(self._queue), MOST_WRITES)
            for write in writes:
                write.error, write.is_done = write.error or error, True
                if write.progressed:
                    write.progressed.notify()
            # From now on, `on_commit` calls at once.
            callbacks = [write.then for write in writes if write.then and not write.error]
        for then in callbacks:
            then()


class PendingCommit:
    """The end of an action that is not committed yet."""

    def __init__(
        self, queue: CommitQueue, work: Callable[[Connection], object], retry: Callable[[], None]
    ) -> None:
        """`retry` does the same and waits for it, as often as the database is due."""
        self._queue = queue
        self._write = queue.leave(work)
        self._retry = retry

    def on_commit(self, then: Callable[[], object]) -> None:
        """Do that once it is committed."""
        self._queue.on_commit(self._write, then)

    def settle(self) -> None:
        """Return once it is committed; `StateError` if that cannot be."""
        try:
            self._queue.settle(self._write)
        except StateError:
            self._retry()
            if self._write.then:
                self._write.then()
