"""Walking the graph of actions: each starts as soon as what it needs is done. And the tools for carrying them
out.

A failure skips only what needs it, directly or not; everything else goes on.
"""

from __future__ import annotations

import bisect
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from contextvars import copy_context
from dataclasses import field
from enum import StrEnum
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Protocol

from declarative.apply.backends import Backends
from declarative.apply.failover import Failover, FailoverVerdict, Move, is_scarce
from declarative.model.inputs import ReservationInputs
from declarative.model.outputs import TEXT_ONLY
from declarative.model.record import struct
from declarative.model.state import Address
from declarative.planner.plan import Action, Op
from declarative.provider import QUOTAS, PermanentError, PermanentKind, TransientError
from declarative.retry import Policy
from declarative.store.commit_queue import PendingCommit
from declarative.store.errors import StateError

if TYPE_CHECKING:
    from declarative.store import Writer

INTERRUPTED = "interrupted"
POINTLESS = "what needs it cannot be done"
UNDONE = "its cluster cannot be completed: nothing of it is kept"
PLACES = ("reservation", "attachment")


class InterruptedApplyError(Exception):
    """The user asked to stop while an action waited: it is not done, and did not fail."""


class Outcome(StrEnum):
    """The outcome of an action."""

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


@struct(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """The result of one action, and why it is not done."""

    id: str
    address: str
    op: str
    outcome: Outcome
    error: str | None = None
    hint: str | None = None
    note: str | None = None
    """A remark about it, although it is done."""
    scarce: Annotated[bool, TEXT_ONLY] = False
    """It is not done because capacity or quota is lacking, for it or for its cluster."""
    code: str | None = None
    """The code of the failure, as in docs/errors.md."""

    @classmethod
    def of(
        cls,
        op: Op,
        address: Address,
        outcome: Outcome,
        error: BaseException | str | None = None,
        *,
        note: str | None = None,
        scarce: bool = False,
    ) -> ActionResult:
        """The result of the action that does `op` to an address, with the words and the code of its error."""
        summary: str | None
        hint, code = None, None
        if error is None or isinstance(error, str):
            summary = error
        else:
            summary = getattr(error, "summary", None) or str(error) or type(error).__name__
            hint, code = getattr(error, "hint", None), code_of(error)
        return cls(
            id=f"{op.value}:{address}",
            address=str(address),
            op=op.value,
            outcome=outcome,
            error=summary,
            hint=hint,
            note=note,
            scarce=scarce,
            code=code,
        )


def code_of(error: BaseException) -> str:
    """The code of a failed action: the error's own, else by the kind of the backend's fault."""
    own = getattr(error, "code", None)
    if isinstance(own, str):
        return own
    if isinstance(error, TransientError):
        return "backend-busy"
    if not isinstance(error, PermanentError):
        return "action-failed"
    if error.kind in QUOTAS:
        return "backend-quota"
    codes = {PermanentKind.NO_CAPACITY: "backend-no-capacity", PermanentKind.AUTH: "backend-auth"}
    return codes.get(error.kind, "backend-refused")


Perform = Callable[[Action], PendingCommit | None]
Started = tuple[str, Action]
"""The id under which an action was started, and the action as it is carried out."""
Uncommitted = tuple[Started, PendingCommit]
"""An action that is done, and its end, which is not committed yet."""
Ended = tuple[Started, BaseException | None, bool]
"""An action, its error, and whether its worker is free then."""


class Listener(Protocol):
    """Hears how an apply goes on; called from many threads."""

    def together(self) -> AbstractContextManager[object]:
        """Events until the end of this context may be shown together."""

    def begin(self, id: str) -> None:
        """An action begins."""

    def retry(self, id: str, error: str, wait: float) -> None:
        """A call of the action is tried again after `wait` seconds."""

    def wait(self, id: str, what: str, why: str) -> None:
        """The action waits for `what`, because of `why`."""

    def end(self, result: ActionResult) -> None:
        """An action has ended."""

    def move(self, move: Move, more: int) -> None:
        """An offer was refused. `more` actions are to be done beside those that were."""

    def rank(self, address: str, state: str, cause: str | None) -> None:
        """A rank's state changed."""


def walk(
    actions: Sequence[Action],
    perform: Perform,
    follows: Callable[[Action], bool],
    *,
    parallelism: int,
    stopping: threading.Event,
    listener: Listener,
    failover: Failover,
) -> tuple[ActionResult, ...]:
    """Perform all actions in the order of their needs; the results in the order of `actions`.

    Once `stopping` is set no further action is started; those that run are waited for. `failover` may have
    some done again, as other ones than they were, and add others; the results of those come last. If an
    action's end is not committed yet, its worker goes on with one that `follows`, which commits it.
    """
    run = _Walk(actions, listener, failover)

    def follow() -> Started | None:
        with run.turn:
            may = parallelism > 1 and run.ready and not stopping.is_set()
            return run.next() if may and follows(run.actions[run.ready[0]]) else None

    with closing(_Workers(perform, follow, parallelism)) as workers:
        while run.ready or run.running:
            with run.turn, listener.together():
                while (ended := workers.next_ended()) is not None:
                    run.finish(*ended[0], ended[1])
                while run.ready and workers.busy < parallelism and not stopping.is_set():
                    workers.do(run.next())
            if not run.running:
                break
            workers.wait(0.2)  # a signal's handler gets its turn
    return run.results()


class _Workers:
    """Threads that perform actions. Each begins when there is more to do than the others can take."""

    def __init__(self, perform: Perform, follow: Callable[[], Started | None], most: int) -> None:
        """`follow`: what a worker goes on with whose last action is not committed, if there is anything."""
        self._perform = perform
        self._follow = follow
        self._most, self._over = most, False
        self._threads: list[threading.Thread] = []
        self.busy = 0
        """The number of busy threads."""
        self._started: SimpleQueue[Started | None] = SimpleQueue()
        self._ended: SimpleQueue[Ended] = SimpleQueue()
        self._first: Ended | None = None
        """The one that `wait` has found."""

    def close(self) -> None:
        """Let the started actions end, and start no more."""
        self._over = True
        for _ in self._threads:
            self._started.put(None)
        for thread in self._threads:
            thread.join()

    def do(self, started: Started) -> None:
        """Perform an action that was started."""
        self.busy += 1
        self._started.put(started)
        if len(self._threads) < min(self.busy, self._most):
            name = f"apply_{len(self._threads)}"
            self._threads.append(threading.Thread(target=copy_context().run, args=(self._work,), name=name))
            self._threads[-1].start()

    def _work(self) -> None:
        while started := self._started.get():
            uncommitted: Uncommitted | None = None
            while started:
                started, uncommitted = self._do(started, uncommitted)

    def _do(
        self, started: Started, uncommitted: Uncommitted | None
    ) -> tuple[Started | None, Uncommitted | None]:
        """Perform an action. The result is the action that the worker goes on with, and the one that it
        leaves uncommitted. The one that was `uncommitted` before is committed with this one's intent, if it
        has one.
        """
        end, following, error = None, None, None
        try:
            end = self._perform(started[1])
            following = self._follow() if end and not self._over else None
        except BaseException as fault:  # noqa: BLE001  # the walk judges it
            error = fault
        if uncommitted and (late := _fault_of(uncommitted[1])):
            self._ended.put((uncommitted[0], late, False))
        if end and following:
            end.on_commit(partial(self._ended.put, (started, None, False)))
            return following, (started, end)
        late = _fault_of(end) if end else None
        self._ended.put((started, error or late, True))
        return None, None

    def next_ended(self) -> Ended | None:
        """An action that has ended, and its error; None if there is none yet."""
        ended, self._first = self._first, None
        try:
            ended = ended or self._ended.get_nowait()
        except Empty:
            return None
        self.busy -= ended[2]
        return ended

    def wait(self, seconds: float) -> None:
        """Return when an action has ended, or after `seconds`."""
        with suppress(Empty):
            self._first = self._ended.get(timeout=seconds)


def _fault_of(end: PendingCommit) -> BaseException | None:
    """The error that keeps it from being committed, if any."""
    try:
        end.settle()
    except BaseException as fault:  # noqa: BLE001  # the walk judges it
        return fault
    return None


class _Walk:
    def __init__(self, actions: Sequence[Action], listener: Listener, failover: Failover) -> None:
        self.actions = {a.id: a for a in actions}
        self.order = {a.id: i for i, a in enumerate(actions)}
        self.waiting = {a.id: {n for n in a.needs if n in self.actions} for a in actions}
        self.follow: dict[str, list[str]] = defaultdict(list)
        for key, needs in self.waiting.items():
            for need in needs:
                self.follow[need].append(key)
        self.ready: list[str] = []
        self.held_back: list[str] = []
        """Actions that `failover` lets wait, although all that they need is done."""
        self.results_by_id: dict[str, ActionResult] = {}
        self.listener = listener
        self.failover = failover
        self.turn = threading.Lock()
        """Held by the thread that starts or ends actions: the walk, or a worker that goes on with another."""
        self.running = 0
        """The number of actions that were started and have not ended."""
        self._free(a.id for a in actions if not self.waiting[a.id])

    def next(self) -> Started:
        """Start the first action that is ready; it may be another one than planned (`failover`)."""
        key = self.ready.pop(0)
        action = self.failover.now(self.actions[key])
        if action.id == key:
            self.listener.begin(key)
        self.running += 1
        return key, action

    def finish(self, key: str, action: Action, error: BaseException | None) -> None:
        """Note the result, and free or skip what needs it; or do it again, and others with it."""
        self.running -= 1
        verdict = None if isinstance(error, InterruptedApplyError) else self.failover.ended(action, error)
        if verdict:
            self._change(verdict)
            error = verdict.error or error
        if not verdict or key not in (*verdict.redo, *verdict.undone):
            self._end(self.actions[key], error, verdict.note if verdict else None)
        held, self.held_back = self.held_back, []
        self._free(held)

    def _free(self, keys: Iterable[str]) -> None:
        """Make these actions ready, unless they have been skipped meanwhile."""
        for key in keys:
            if key in self.results_by_id:
                continue
            if self._is_pointless(key):
                self._leave_out(key)
                continue
            if self.failover.waits(self.actions[key]):
                self.held_back.append(key)
            else:
                bisect.insort(self.ready, key, key=self.order.__getitem__)

    def _is_pointless(self, key: str) -> bool:
        """Whether a place is useless, as nothing can be put there. Its node may take minutes to be ready."""
        action, then = self.actions[key], self.follow[key]
        if action.op is not Op.CREATE or action.address.kind not in PLACES or not then:
            return False
        results = self.results_by_id
        needed_by = (k for k in then if k not in results or results[k].outcome is Outcome.DONE)
        return all(self._is_pointless(k) for k in needed_by)

    def _leave_out(self, key: str) -> None:
        """Skip a pointless action, and others that were to be done in its place."""
        self._note(self.actions[key], Outcome.SKIPPED, POINTLESS)
        for other in self.follow[key]:
            if other not in self.results_by_id:
                self._leave_out(other)

    def _change(self, verdict: FailoverVerdict) -> None:
        # Those that have ended will do so again; one that is done again instead of ending will do so once.
        ended = sum(key in self.results_by_id for key in (*verdict.redo, *verdict.undone))
        for action in verdict.more:
            self.actions[action.id] = action
            self.order.setdefault(action.id, len(self.order))
            self.waiting[action.id] = set()
            # It was there when the plan was made: what is to be on it does not say that it needs it.
            self.follow[action.id] += [
                key
                for key, other in self.actions.items()
                if action.op is Op.CREATE is other.op
                if isinstance(place := other.typed, ReservationInputs) and place.node == action.address.name
            ]
        if verdict.move:
            self.listener.move(verdict.move, ended + len(verdict.more))
        keys = [*verdict.redo, *(a.id for a in verdict.more)]
        for key in keys:
            self.results_by_id.pop(key, None)
        for key in verdict.undone:
            self._note(self.actions[key], Outcome.SKIPPED, UNDONE, scarce=True)
            self._skip(self.actions[key])
        ready, self.ready = self.ready, []
        self._free([*ready, *keys])

    def _end(self, action: Action, error: BaseException | None, note: str | None) -> None:
        if error is None:
            self._note(action, Outcome.DONE, note=note)
            freed: list[str] = []
            for key in self.follow[action.id]:
                self.waiting[key].discard(action.id)
                if not self.waiting[key] and key not in self.held_back:
                    freed.append(key)
            self._free(freed)
            return
        if isinstance(error, InterruptedApplyError):
            self._note(action, Outcome.SKIPPED, INTERRUPTED)
            return
        self._note(action, Outcome.FAILED, error, scarce=is_scarce(action, error))
        self._skip(action)

    def _skip(self, failed: Action) -> None:
        stack = list(self.follow[failed.id])
        while stack:
            key = stack.pop()
            if key in self.results_by_id:
                continue
            self._note(self.actions[key], Outcome.SKIPPED, f"needs {failed.id}, which failed")
            stack += self.follow[key]

    def _note(
        self,
        action: Action,
        outcome: Outcome,
        error: BaseException | str | None = None,
        *,
        note: str | None = None,
        scarce: bool = False,
    ) -> None:
        self.failover.noted(action, done=outcome is Outcome.DONE)
        result = ActionResult.of(action.op, action.address, outcome, error, note=note, scarce=scarce)
        self.results_by_id[action.id] = result
        self.listener.end(result)

    def results(self) -> tuple[ActionResult, ...]:
        """One result for each action; those that were not reached were interrupted."""
        for action in self.actions.values():
            if action.id not in self.results_by_id:
                self._note(action, Outcome.SKIPPED, INTERRUPTED)
        return tuple(self.results_by_id[key] for key in self.actions)


KnownPaths = MutableMapping[tuple[str, str], str | None]
"""(node, address) → why the address cannot be reached from there; None if nothing is against it."""


@struct(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools for carrying out actions."""

    writer: Writer
    backends: Backends
    environ: Mapping[str, str]
    now: Callable[[], float]
    stopping: threading.Event
    listener: Listener
    policy: Policy = Policy()
    reached: KnownPaths = field(default_factory=dict)
    """The paths between nodes that were tried."""
    late: set[Address] = field(default_factory=set)
    """Nodes that did not come up in time, or have failed: `run` deletes them."""
    faults: list[StateError] = field(default_factory=list)
    """What kept the command from ending its work after the plan's actions."""

    @contextmanager
    def noting_faults(self) -> Iterator[None]:
        """Note that the state is lost, as with its lock, and go on without the rest."""
        try:
            yield
        except StateError as error:
            self.faults.append(error)
