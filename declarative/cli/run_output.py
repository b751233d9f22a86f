"""What a run of `apply` or `destroy` prints, as text or JSON lines: plan, progress and result."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from declarative.cli.output import Unbroken, out_style
from declarative.cli.session import Session
from declarative.cli.targets import going_tasks, name_tasks
from declarative.render.text import is_terminal, plural

if TYPE_CHECKING:
    from declarative.apply.graph_walk import ActionResult
    from declarative.apply.retry_schedule import Due
    from declarative.model.state import RankStatus, State
    from declarative.planner.types import Plan
    from declarative.render.progress import Mode, Progress

PENDING = "pending (no capacity now)"
AS_IT_WAS = "as it was (no capacity now for what changed)"
ENDED = "ended (no capacity now to run again)"
"""What becomes of tasks for which there is no place."""


class RunOutput:
    """The output of one run."""

    def __init__(self, session: Session, doing: str, *, as_json: bool) -> None:
        self.session = session
        self.doing = doing
        self.as_json = as_json
        self.out = Unbroken(sys.stdout)
        self.plan: Plan | None = None
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.__exit__(None, None, None)

    def _show(self, plan: Plan) -> None:
        from declarative.render.data import plan_json
        from declarative.render.plan import plan_text

        if self.as_json:
            self.event({"event": "plan", "plan": plan_json(plan)})
            return
        self.session.say(plan.diagnostics)
        if plan.result == "error":
            return
        if self.doing == "destroy" and not plan.changes:
            self.out.write("Nothing to destroy.\n")
        else:
            self.out.write(plan_text(plan, **out_style()))

    def _say_waiting(self, plan: Plan, state: State) -> None:
        """Tasks for which there is no place: they stay pending, or run on as they were."""
        if self.as_json:
            self._pending_events(plan.unplaced.waiting)
            return
        going, recorded = going_tasks(state), {r.rank.task for r in state.of("rank")}
        groups: dict[str, list[str]] = {PENDING: [], AS_IT_WAS: [], ENDED: []}
        for task in plan.unplaced.waiting:
            groups[AS_IT_WAS if task in going else ENDED if task in recorded else PENDING].append(task)
        for what, tasks in groups.items():
            if tasks:
                verb = "stays" if len(tasks) == 1 else "stay"
                sys.stderr.write(
                    f"{name_tasks(tasks)} {verb} {what}: the next `fleetform apply` tries again\n"
                )

    def _pending_events(self, tasks: Iterable[str]) -> None:
        for task in tasks:
            self.event({"event": "pending", "address": f"task/{task}"})

    def _say_moved(self, plan: Plan, count: int) -> None:
        for move in plan.scope.moved if self.as_json else ():
            self.event({"event": "moved", "from": move.source, "to": move.target})
        if not self.as_json:
            self.out.write(f"Renamed {plural(count, 'record')}.\n")

    def say_protected(self, names: Sequence[str], hint: str, guarded: Sequence[str] = ()) -> None:
        """What stays since it is protected, or `guarded` by `limits.protected`; and how it can be deleted."""
        if self.as_json:
            self.event({"event": "kept", "addresses": [*names, *guarded]})
            return
        if names:
            self.out.write(f"Kept, because of `prevent_destroy`: {', '.join(names)}.\n{hint}\n")
        if guarded:
            self.out.write(f"Kept, because of the project's `limits.protected`: {', '.join(guarded)}.\n")
            self.out.write("To delete them too: take them out of it, and destroy again.\n")

    def event(self, data: Mapping[str, Any]) -> None:
        """One event as a line of JSON."""
        from declarative.render.data import to_event

        self.out.write(to_event(data) + "\n")
        self.out.flush()

    def listener(self, total: int = 0) -> Progress:
        from declarative.render.progress import Progress

        if self._progress is None:
            mode: Mode = "json" if self.as_json else "live" if is_terminal(sys.stderr) else "plain"
            stream = sys.stderr if mode == "live" else Unbroken(sys.stdout if self.as_json else sys.stderr)
            self._progress = Progress(stream, mode, 0)  # type: ignore[arg-type]
            self._progress.__enter__()
        if total:
            self._progress.expect(total)
        return self._progress

    def note(self, rank: str, status: RankStatus) -> None:
        """A rank changed its state."""
        self.listener().rank(f"rank/{rank}", status.state.value, status.cause)

    def report(self, results: tuple[ActionResult, ...], result: str) -> None:
        """What was done, and what came of it (`_result`)."""
        from declarative.render.data import health_json
        from declarative.render.progress import notes_json, report_text

        if self.as_json:
            counts = {o: sum(r.outcome == o for r in results) for o in ("done", "failed", "skipped")}
            notes = notes_json(results)
            health = health_json(self.plan.health if self.plan else ())
            more = {"elsewhere": notes} if notes else {}
            self.event({"event": "summary", "result": result, **counts, "health": health, **more})
        elif results:
            title = self.doing.capitalize()
            self.out.write(report_text(results, color=out_style()["color"], title=title))
            self.out.flush()

    def say(self, text: str) -> None:
        """Something worth saying that is about no single action."""
        self.listener().note(text)

    def say_waits(self, waits: Mapping[str, Due]) -> None:
        """When tasks that were not started are tried again, and why they were not."""
        by_time: dict[int, list[str]] = {}
        for task, due in waits.items():
            by_time.setdefault(round(due.delay), []).append(task)
        for seconds, tasks in sorted(by_time.items()):
            causes = {waits[task].cause for task in tasks}
            why = causes.pop() if len(causes) == 1 else "no capacity"
            verb = "is" if len(tasks) == 1 else "are"
            self.say(f"{name_tasks(tasks)} {verb} tried again in {seconds} s: {why}")
