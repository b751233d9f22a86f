"""Steps of many threads in few transactions: those that wait for one another are committed together.

Threads queue here and not at the database, whose waiting is a poll and not fair. A thread that finds no other
one at work leads: it does its own step and those that wait behind it, commits them, and wakes their threads.
So a step costs its thread one wait, and the threads do not pass a connection on from one to the next.

The threads that a commit wakes come back one after the other. If the first of them began a commit at once,
the others would wait for all of it. So a group waits a moment for as many steps as came the last time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

from declarative.store.database import Connection, Database

T = TypeVar("T")

MOST_STEPS = 64
"""How many steps are committed together: the first of them waits for the last."""

MOST_PATIENCE = 0.025
"""Seconds that a group waits for more steps, however long commits take: longer is no way back from one."""


class Step:
    """What one thread wants written, and what came of it."""

    def __init__(self, work: Callable[[Connection], object] | None) -> None:
        """`work` gets the transaction. None takes a turn of its own, and joins no group."""
        self.work = work
        self.found: object = None
        self.error: BaseException | None = None
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


class WriteGroup:
    """One transaction and its steps. No thread goes on before all of them are committed."""

    def __init__(self, database: Database, patience: float) -> None:
        """`patience`: how many seconds it may wait, once, for more steps."""
        self._transaction = database.writing()
        self.connection = self._transaction.__enter__()
        self.taken: list[Step] = []
        self.steps = 0
        """How many of them are to be committed: one that failed is not."""
        self.error: BaseException | None = None
        self.patience = patience

    def do(self, step: Step) -> None:
        """Do a step. One that fails leaves those before it as they are. The first one's fault is raised."""
        assert step.work is not None
        try:
            with self.connection.step(alone=not self.steps):
                step.found = step.work(self.connection)
        except Exception as error:
            if not self.steps:
                raise
            step.error = error
        else:
            self.steps += 1

    def end(self, error: BaseException | None = None) -> None:
        """Commit it, or after an `error` roll all of it back; the fault is then that of every step."""
        self.error = error
        try:
            self._transaction.__exit__(type(error) if error else None, error, None)
        except BaseException as fault:  # noqa: BLE001  # raised in each thread that waits
            self.error = fault

    def tell(self) -> None:
        """Wake the threads whose steps it had, but the first: that one leads, and is awake."""
        for step in self.taken:
            step.error = step.error or self.error
        for step in self.taken[1:]:
            step.wake()


class Groups:
    """The steps that wait for one database."""

    def __init__(
        self, database: Database, begin: Callable[[Connection], None], committed: Callable[[], None]
    ) -> None:
        """`begin` is done first in each transaction; `committed` hears of each that was."""
        self._database = database
        self._begin = begin
        self._committed = committed
        self._queue = threading.Condition()
        self._steps: deque[Step] = deque()
        """Those that wait; the first is that of the thread which leads, until that one has begun it."""
        self._busy = False
        self._expected = 0
        """How many steps a group waits for: those of the last one, and those that had come since it began."""
        self._awaited = 0
        """How many of them have not come yet."""
        self._patience = 0.0
        """How many seconds the last commit took."""

    def do(self, work: Callable[[Connection], T]) -> T:
        """What `work` returns, once it is committed, alone or in a group; or what it raises."""
        step = Step(work)
        self._line_up(step)
        if step.leads:
            try:
                self._lead()
            finally:
                self._hand_on()
        if step.error:
            raise step.error
        return cast("T", step.found)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Between two groups: those that wait begin another one."""
        self._line_up(Step(None))
        with self._queue:
            self._steps.popleft()
        try:
            yield
        finally:
            self._hand_on()

    def _line_up(self, step: Step) -> None:
        """Wait until another thread has done the step, or this one leads."""
        with self._queue:
            self._steps.append(step)
            if step.work is None or len(self._steps) >= self._awaited:
                self._queue.notify()
            step.leads, self._busy = not self._busy, True
        if step.leads:
            return
        try:
            step.wait()
        except BaseException:  # an interrupt
            self._withdraw(step)
            raise

    def _withdraw(self, step: Step) -> None:
        """Leave nobody waiting for a thread that is interrupted while it waits."""
        with self._queue:
            if step in self._steps:
                self._steps.remove(step)
        if step.leads:
            self._hand_on()

    def _hand_on(self) -> None:
        """Let the thread lead whose step waits first."""
        with self._queue:
            self._busy = bool(self._steps)
            if self._busy:
                self._steps[0].leads = True
                self._steps[0].wake()

    def _lead(self) -> None:
        """Do the first step, and those behind it in the same transaction, until none waits or is expected."""
        group = self._open()
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
            begun = time.monotonic()
            group.end()
            self._patience = min(time.monotonic() - begun, MOST_PATIENCE)
            if group.error is None:
                self._committed()
        finally:
            self._expected = min(len(group.taken) + len(self._steps), MOST_STEPS)
            group.tell()

    def _open(self) -> WriteGroup | None:
        """A transaction that has begun; None if it cannot, which is the first step's fault."""
        group = None
        try:
            group = WriteGroup(self._database, self._patience)
            with self._database.mutex:
                self._begin(group.connection)
        except BaseException as error:
            if group:
                group.end(error)
            with self._queue:
                first = self._steps.popleft()
            first.error = group.error if group else error
            if not isinstance(error, Exception):
                raise
            return None
        return group

    def _next(self, group: WriteGroup) -> Step | None:
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
