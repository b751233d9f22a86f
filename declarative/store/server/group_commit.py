"""Steps of many threads in few transactions: steps that wait at the same time are committed together.

Threads queue here and not at the database, whose waiting polls and is not fair. If no other thread is at
work, a thread leads: it does its own step and those that wait behind it, commits them, and wakes their
threads. So a step costs its thread one wait, and no connection is passed from thread to thread.

The threads that a commit wakes come back one after the other. If the first of them began a commit at once,
the others would wait for all of it. So a group waits a moment for as many steps as came the last time.

A step may be left to the next leader: its thread goes on, and settles the step later. What depends on the
step waits until it is committed. So the end of one action and the begin of the next share a commit.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

from declarative.store.errors import StateError, as_state_error
from declarative.store.sql import Connection, Database

T = TypeVar("T")

MOST_STEPS = 64
"""The most steps that are committed together: the first of them waits for the last."""

MOST_PATIENCE = 0.025
"""Seconds that a group waits for more steps, however long commits take: longer is no way back from one."""


class QueuedWrite:
    """The write of one thread, and its result."""

    def __init__(self, work: Callable[[Connection], object] | None) -> None:
        """`work` gets the transaction. None takes a turn of its own, and joins no group."""
        self.work = work
        self.found: object = None
        self.error: BaseException | None = None
        self.is_done = False
        """Whether it is committed, or has failed."""
        self.awaited = False
        """Whether a thread waits for it."""
        self.then: Callable[[], object] | None = None
        """What to do once it is committed."""
        self.leads = False
        """Whether its thread is the one that does the steps which wait."""
        self._woken = threading.Lock()
        self._woken.acquire()

    def wait(self) -> None:
        """Return when the step is done, or leads."""
        self._woken.acquire()

    def wake(self) -> None:
        """End its `wait`."""
        self._woken.release()


class _UndoneError(Exception):
    """Rolls a transaction back."""


class WriteGroup:
    """One transaction and its steps. No thread goes on before all of them are committed."""

    def __init__(self, database: Database, begin: Callable[[Connection], None], patience: float) -> None:
        """`begin` is done first in it; `patience`: how many seconds it may wait, once, for more steps."""
        self._database = database
        self._begin = begin
        self._open()
        self.taken: list[QueuedWrite] = []
        self.done: list[QueuedWrite] = []
        """The steps to commit: those that have not failed."""
        self.error: BaseException | None = None
        self.patience = patience

    def _open(self) -> None:
        self._transaction = self._database.writing()
        connection = self._transaction.__enter__()
        try:
            with self._database.mutex:
                self._begin(connection)
        except BaseException as error:
            self._transaction.__exit__(type(error), error, None)
            raise
        self._connection = connection

    def do(self, step: QueuedWrite) -> None:
        """Do a step. One that fails leaves those before it as they are. The first one's fault is raised.

        Each step would pay for a savepoint. Instead, after a fault, the steps before it are done again.
        """
        assert step.work is not None
        try:
            with as_state_error(self._database.name), self._database.mutex:
                step.found = step.work(self._connection)
        except Exception as error:
            if not self.done:
                raise
            step.error = error
            before, self.done = self.done, []
            self._transaction.__exit__(_UndoneError, _UndoneError(), None)
            self._open()
            for earlier in before:
                self.do(earlier)
        else:
            self.done.append(step)

    def end(self, error: BaseException | None = None) -> None:
        """Commit it, or after an `error` roll all of it back; the fault is then that of every step."""
        self.error = error
        try:
            self._transaction.__exit__(type(error) if error else None, error, None)
        except BaseException as fault:  # noqa: BLE001  # raised in each thread that waits
            self.error = fault

    def wake_threads(self, turn: threading.Condition, own: QueuedWrite) -> None:
        """Wake the threads whose steps it had, but the one that leads, whose `own` is among them. `turn` is
        of who has steps awaited or done.
        """
        with turn:
            for step in self.taken:
                step.error, step.is_done = step.error or self.error, True
                if step.awaited and step is not own:
                    step.wake()
            # From then on, who has something done once it is committed does it at once.
            callbacks = [step.then for step in self.taken if step.then and not step.error]
        for then in callbacks:
            then()


class CommitQueue:
    """The steps that wait for one database."""

    def __init__(
        self, database: Database, begin: Callable[[Connection], None], committed: Callable[[], None]
    ) -> None:
        """`begin` is done first in each transaction; `committed` hears of each that was."""
        self._database = database
        self._begin = begin
        self._committed = committed
        self._queue = threading.Condition()
        self._steps: deque[QueuedWrite] = deque()
        """The waiting steps, in the order in which they are done."""
        self._busy = False
        self._expected = 0
        """How many steps a group waits for: those of the last one, and those that had come since it began."""
        self._awaited = 0
        """The number of those that have not come yet."""
        self._patience = 0.0
        """How many seconds the last commit took."""

    def do(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` returns once it is committed, alone or in a group; or raise what it raises."""
        step = QueuedWrite(work)
        self._line_up(step)
        self._see_to(step)
        return cast("T", step.found)

    def leave(self, work: Callable[[Connection], object]) -> QueuedWrite:
        """A step that is done with the next one for which a thread waits, or once it is settled."""
        step = QueuedWrite(work)
        with self._queue:
            self._append(step)
        return step

    def settle(self, step: QueuedWrite) -> None:
        """Return once a step that was left is committed, or raise what it failed with."""
        with self._queue:
            waits = not step.is_done
            if waits:
                self._await(step)
        if waits:
            self._until_woken(step)
            self._see_to(step)
        elif step.error:
            raise step.error

    def on_commit(self, step: QueuedWrite, then: Callable[[], object]) -> None:
        """Do that once a step that was left is committed; never if it fails."""
        with self._queue:
            step.then = then
            if not step.is_done or step.error:
                return
        then()

    def _see_to(self, step: QueuedWrite) -> None:
        """Do a step if it leads, and raise its error."""
        if step.leads:
            try:
                while not step.is_done:
                    self._lead(step)
            finally:
                self._hand_on()
        if step.error:
            raise step.error

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Between two groups: those that wait begin another one."""
        step = QueuedWrite(None)
        self._line_up(step)
        with self._queue:
            self._steps.remove(step)
        try:
            yield
        finally:
            self._hand_on()

    def _line_up(self, step: QueuedWrite) -> None:
        """Wait until another thread has done the step, or this one leads."""
        with self._queue:
            self._append(step)
            self._await(step)
        self._until_woken(step)

    def _append(self, step: QueuedWrite) -> None:
        self._steps.append(step)
        if step.work is None or len(self._steps) >= self._awaited:
            self._queue.notify()

    def _await(self, step: QueuedWrite) -> None:
        step.awaited = True
        step.leads, self._busy = not self._busy, True

    def _until_woken(self, step: QueuedWrite) -> None:
        if step.leads:
            return
        try:
            step.wait()
        except BaseException:  # an interrupt
            self._withdraw(step)
            raise

    def _withdraw(self, step: QueuedWrite) -> None:
        """Let no other thread wait for one that was interrupted while it waited."""
        with self._queue:
            if step in self._steps:
                self._steps.remove(step)
        if step.leads:
            self._hand_on()

    def _hand_on(self) -> None:
        """Let the thread lead that waits first."""
        with self._queue:
            first = next((step for step in self._steps if step.awaited), None)
            self._busy = first is not None
            if first:
                first.leads = True
                first.wake()

    def _lead(self, own: QueuedWrite) -> None:
        """Do the first steps in one transaction, until none waits or is expected. The thread's `own` is one
        of them, unless many were left before it.
        """
        group = self._open(own)
        if group is None:
            return
        try:
            while step := self._next(group):
                group.do(step)
        except BaseException as error:
            group.end(error)
            if not isinstance(error, Exception):
                raise
        else:
            started = time.monotonic()
            group.end()
            self._patience = min(time.monotonic() - started, MOST_PATIENCE)
            if group.error is None:
                self._committed()
        finally:
            self._expected = min(len(group.taken) + len(self._steps), MOST_STEPS)
            group.wake_threads(self._queue, own)

    def _open(self, own: QueuedWrite) -> WriteGroup | None:
        """An open transaction; None if it cannot be opened, which is the fault of the thread's own step."""
        try:
            return WriteGroup(self._database, self._begin, self._patience)
        except BaseException as error:
            with self._queue:
                self._steps.remove(own)
            own.error, own.is_done = error, True
            if not isinstance(error, Exception):
                raise
            return None

    def _next(self, group: WriteGroup) -> QueuedWrite | None:
        """The step that the group goes on with, if there is one or one comes in time."""
        with self._queue:
            self._awaited = self._expected - len(group.taken)
            if not self._steps and self._awaited > 0 and group.patience:
                self._queue.wait(group.patience)  # for all of them: to be woken by each would take longer
                group.patience = 0
            if not self._steps or self._steps[0].work is None or len(group.taken) == MOST_STEPS:
                return None
            group.taken.append(self._steps[0])
            return self._steps.popleft()


class PendingCommit:
    """The end of an action that is not committed yet."""

    def __init__(
        self, groups: CommitQueue, work: Callable[[Connection], object], again: Callable[[], None]
    ) -> None:
        """`again` does the same and waits for it, with the patience that the database is due."""
        self._groups = groups
        self._step = groups.leave(work)
        self._again = again

    def on_commit(self, then: Callable[[], object]) -> None:
        """Do that once it is committed."""
        self._groups.on_commit(self._step, then)

    def settle(self) -> None:
        """Return once it is committed; `StateError` if that cannot be."""
        try:
            self._groups.settle(self._step)
        except StateError:
            self._again()
            if self._step.then:
                self._step.then()
