"""One apply: walk the plan's actions, then take back gangs of which a part could not start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from declarative.apply.backends import Backends
from declarative.apply.execute import Tools, execute
from declarative.apply.settle import release_ended, stop_rank
from declarative.apply.walk import ActionResult, Outcome, walk
from declarative.plan import Action, Op, Plan
from declarative.provider import TransientError
from declarative.retry import Policy
from declarative.state import RankState, RankStatus
from declarative.store import Writer


class Listener(Protocol):
    """Hears how an apply goes on; called from many threads."""

    def begin(self, id: str) -> None:
        """An action begins."""

    def retry(self, id: str, error: str, wait: float) -> None:
        """A call of the action is tried again after `wait` seconds."""

    def end(self, result: ActionResult) -> None:
        """An action has ended."""

    def rank(self, address: str, state: str, cause: str | None) -> None:
        """A rank's state changed."""


def apply(
    plan: Plan,
    writer: Writer,
    backends: Backends,
    listener: Listener,
    *,
    environ: Mapping[str, str],
    now: Callable[[], float],
    stopping: threading.Event,
    parallelism: int = 8,
    policy: Policy | None = None,
) -> tuple[ActionResult, ...]:
    """Carry out every action of `plan`; the results in the plan's order."""
    writer.ensure_lineage()

    def on_retry(action: str, error: TransientError, wait: float) -> None:
        listener.retry(action, error.summary, wait)

    tools = Tools(
        writer=writer,
        backends=backends,
        environ=environ,
        now=now,
        stopping=stopping,
        on_retry=on_retry,
        policy=policy or Policy(),
    )
    results = walk(
        plan.actions,
        lambda action: execute(action, tools),
        parallelism=parallelism,
        stopping=stopping,
        began=lambda action: listener.begin(action.id),
        ended=listener.end,
    )
    if not stopping.is_set():
        _take_back(plan.actions, results, tools, listener)
    return results


def _take_back(
    actions: Sequence[Action], results: Sequence[ActionResult], tools: Tools, listener: Listener
) -> None:
    """A gang of which one rank could not start is stopped: a task never runs with fewer ranks than declared.

    Not after an interruption: then the next apply starts the ranks that are missing.
    """
    outcome = {r.id: r for r in results}
    gangs: dict[str, list[Action]] = {}
    for action in actions:
        if action.op is Op.CREATE and action.address.kind == "rank" and action.after:
            gangs.setdefault(str(action.after["task"]), []).append(action)
    state = tools.writer.state()
    for task, starts in gangs.items():
        broken = next((outcome[a.id] for a in starts if outcome[a.id].outcome is Outcome.FAILED), None)
        if broken is None:
            continue
        cause = f"{broken.address} did not start: {broken.error}"
        for record in state.of("rank"):
            status = state.ranks.get(record.address.name)
            if record.inputs["task"] != task or (status and status.state.ended):
                continue
            ended = stop_rank(state, tools.backends, record.address.name, cause)
            ended = ended or RankStatus(state=RankState.STOPPED, cause=cause)
            tools.writer.observe_rank(record.address.name, ended)
            listener.rank(str(record.address), ended.state.value, ended.cause)
    release_ended(tools.writer, tools.backends, tools.now)
