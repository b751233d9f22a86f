"""What `apply`, `destroy` and the loop print: the plan, the progress and the result, as text or as a line of
JSON for each event. A loop prints only news: its log shows changes, not rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from declarative.cli.options import name_tasks
from declarative.cli.output import PipeSafeStream, emit_event, out_style, say, say_line
from declarative.model.state import natural
from declarative.render.text import is_terminal, plural

if TYPE_CHECKING:
    from declarative.apply.graph_walk import ActionResult
    from declarative.apply.retry_schedule import Due
    from declarative.converge.ports import RunOutcome
    from declarative.converge.project import ProjectSession
    from declarative.model.diagnostic import Diagnostic
    from declarative.model.state import State
    from declarative.model.status import RankState, RankStatus
    from declarative.planner.inventory import Inventory
    from declarative.planner.plan import Origin, Plan
    from declarative.reconcile.loop import Wait
    from declarative.render.progress import Mode, Progress
    from declarative.store import Store

PENDING = "pending (no capacity now)"
AS_IT_WAS = "as it was (no capacity now for what changed)"
ENDED = "ended (no capacity now to run again)"
"""The text about tasks without a place."""


class RunOutput:
    """The output of one run. An `Observer` (`converge.ports`)."""

    def __init__(self, doing: str, *, as_json: bool) -> None:
        self.doing = doing
        self.as_json = as_json
        self.out = PipeSafeStream(sys.stdout)
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.__exit__(None, None, None)

    def planned(self, plan: Plan, inventory: Inventory) -> None:  # noqa: ARG002
        from declarative.render.plan import plan_text
        from declarative.render.plan_document import plan_json

        if self.as_json:
            emit_event({"event": "plan", "plan": plan_json(plan)})
            return
        say(plan.diagnostics)
        if not plan.shown:
            return
        if self.doing == "destroy" and not plan.changes:
            self.out.write("Nothing to destroy.\n")
        else:
            self.out.write(plan_text(plan, **out_style()))

    def pending(self, plan: Plan, state: State) -> None:
        """Print the tasks for which there is no place: they stay pending, or run on as they were."""
        from declarative.converge.run import unfinished_tasks

        if self.as_json:
            self._say_lacking(plan.unplaced.pending, follows=False)
            return
        unfinished, recorded = unfinished_tasks(state), {r.rank.task for r in state.of("rank")}
        groups: dict[tuple[str, bool], list[str]] = {}
        for task in plan.unplaced.pending:
            what = AS_IT_WAS if task in unfinished else ENDED if task in recorded else PENDING
            groups.setdefault((what, task in plan.unplaced.once), []).append(task)
        for (what, once), tasks in groups.items():
            verb = "stays" if len(tasks) == 1 else "stay"
            then = "the next `fleetform apply` tries again"
            if once:
                asked = " ".join(f"--replace task/{task}" for task in tasks)
                then = f"once there is room, `fleetform apply {asked}` again"
            sys.stderr.write(f"{name_tasks(tasks)} {verb} {what}: {then}\n")

    def renamed(self, plan: Plan, count: int) -> None:
        for move in plan.scope.moved if self.as_json else ():
            emit_event({"event": "moved", "from": move.source, "to": move.target})
        if not self.as_json:
            self.out.write(f"Renamed {plural(count, 'record')}.\n")

    def warn(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        say(diagnostics)

    def progress(self) -> Progress:
        """The progress of actions, which is shown from the first use to the end of the run."""
        from declarative.render.progress import Progress

        if self._progress is None:
            mode: Mode = "json" if self.as_json else "live" if is_terminal(sys.stderr) else "plain"
            plain = PipeSafeStream(sys.stdout if self.as_json else sys.stderr)
            self._progress = Progress(sys.stderr if mode == "live" else plain, mode, 0)  # type: ignore[arg-type]
            self._progress.__enter__()
        return self._progress

    def rank(self, name: str, status: RankStatus) -> None:
        self.progress().rank(f"rank/{name}", status.state.value, status.cause)

    def say(self, text: str) -> None:
        """Print something that is about no single action."""
        self.progress().note(text)

    # -------------------------------------------------------------------------------------- the end

    def summary(
        self,
        results: tuple[ActionResult, ...],
        result: str,
        origin: Origin,
        plan: Plan | None = None,
        *,
        cut_short: bool = False,
    ) -> None:
        """Print the results of actions, and the result of the command. For `cut_short` see `report_text`."""
        from declarative.render.plan import origin_text
        from declarative.render.progress import notes_json, report_text
        from declarative.render.status_view import health_json

        if self.as_json:
            counts = {o: sum(r.outcome == o for r in results) for o in ("done", "failed", "skipped")}
            notes = notes_json(results)
            health = health_json(plan.health if plan else ())
            more = {"elsewhere": notes} if notes else {}
            emit_event({"event": "summary", "result": result, **counts, "health": health, **more})
        elif results:
            text = report_text(
                results,
                color=out_style()["color"],
                title=self.doing.capitalize(),
                forgotten={action.id for action in plan.actions if action.forgets} if plan else (),
                origin=origin_text(origin),
                cut_short=cut_short,
            )
            self.out.write(text)

    def finished(self, outcome: RunOutcome, *, follows: bool = False) -> None:
        """Print how the run ended. If the command `follows` the tasks, it tries them again by itself."""
        self._summarize(outcome)
        say(outcome.faults)
        for task, why in outcome.prepared.items():
            self.say(f"task/{task} is prepared and waits: {why}; the next `fleetform apply` lets it run")
        if outcome.is_interrupted:
            return
        self._say_lacking(outcome.lacking, follows=follows)
        unreadable = outcome.plan.unreadable_backends
        if unreadable and not self.as_json:
            command = "destroy" if self.doing == "destroy" else "apply"
            then = f"what is there was not compared with what is declared. Fix that, and {command} again"
            sys.stderr.write(f"{', '.join(unreadable)} could not be read: {then}\n")

    def _summarize(self, outcome: RunOutcome) -> None:
        plan = outcome.plan
        self.summary(outcome.results, outcome.result, plan.origin, plan, cut_short=bool(outcome.faults))

    def _say_lacking(self, tasks: Sequence[str], *, follows: bool) -> None:
        """The hint for tasks that found no capacity, unless they are tried again anyway."""
        if self.as_json:
            for task in tasks:
                emit_event({"event": "pending", "address": f"task/{task}"})
        elif tasks and not follows:
            verb = "stays" if len(tasks) == 1 else "stay"
            then = "`fleetform apply --wait` tries again until there is some"
            sys.stderr.write(f"{name_tasks(tasks)} {verb} {PENDING}: {then}\n")

    def say_protected(self, names: Sequence[str], hint: str, guarded: Sequence[str] = ()) -> None:
        """Print which things stay, or are `guarded` by `limits.protected`, and how to delete them."""
        if self.as_json:
            emit_event({"event": "kept", "addresses": [*names, *guarded]})
            return
        if names:
            self.out.write(f"Kept, because of `prevent_destroy`: {', '.join(names)}.\n{hint}\n")
        if guarded:
            self.out.write(f"Kept, because of the project's `limits.protected`: {', '.join(guarded)}.\n")
            self.out.write("To delete them too: take them out of it, and destroy again.\n")

    # ------------------------------------------------------------------------- `apply --wait` follows

    def say_retries(self, waits: Mapping[str, Due]) -> None:
        """Print when tasks that were not started are tried again, and why they were not."""
        by_time: dict[int, list[str]] = {}
        for task, due in waits.items():
            by_time.setdefault(round(due.delay), []).append(task)
        for seconds, tasks in sorted(by_time.items()):
            causes = {waits[task].cause for task in tasks}
            why = causes.pop() if len(causes) == 1 else "no capacity"
            verb = "is" if len(tasks) == 1 else "are"
            self.say(f"{name_tasks(tasks)} {verb} tried again in {seconds} s: {why}")

    def say_ended(self, store: Store, states: Mapping[str, RankState], causes: Mapping[str, str]) -> None:
        """Print how each task ended; `causes` are of those that never began."""
        from declarative.apply.watch import cause_of

        state = store.read()
        for task, ended in states.items():
            cause = None if ended == "succeeded" else cause_of(state, task)
            if ended == "pending" and task in causes:
                cause = causes[task]
            if self.as_json:
                emit_event({"event": "task", "address": f"task/{task}", "state": ended.value, "cause": cause})
            else:
                self.out.write(f"task/{task}: {ended.value}" + (f": {cause}" if cause else "") + "\n")


class LoopOutput:
    """The messages of a loop about its rounds: it prints what is new, and remembers what was printed."""

    def __init__(self, session: ProjectSession, *, as_json: bool) -> None:
        self.session = session
        self.as_json = as_json
        self._last: dict[str, frozenset[object]] = {}
        self._was_away: set[str] = set()
        self._silent: dict[str, tuple[bool, bool]] = {}

    def round(self) -> RoundOutput:
        return RoundOutput(self)

    def new(self, what: str, items: Iterable[object]) -> frozenset[object]:
        """The items that are new since the last call about that kind."""
        now = frozenset(items)
        before, self._last[what] = self._last.get(what, frozenset()), now
        return now - before

    def git(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        if self.new("git", diagnostics):
            say(diagnostics)

    def locked(self, holder: str) -> None:
        if self.new("lock", (holder,)):
            say_line(f"the state is locked by {holder}: this goes on after it")

    def wrong(self, diagnostics: tuple[Diagnostic, ...], *, held: bool) -> None:
        """Print errors of the project's files; `held`: the earlier declaration still holds."""
        had, new = self._last.get("files"), self.new("files", diagnostics)
        if new:
            say(tuple(d for d in diagnostics if d in new))
            if held:
                say_line(
                    "the project's files have errors: what they declared before holds until they have none"
                )
        elif had and not diagnostics:
            say_line("the project's files have no errors any more: what they declare now holds")
        elif self.new("warnings", self.session.warnings):
            say(self.session.warnings)

    def errors(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        new = self.new("errors", diagnostics)
        say(tuple(d for d in diagnostics if d in new))

    def waits(self, waits: Collection[Wait]) -> None:
        """Print what a round did not do, and why."""
        plain = {replace(wait, until=None): wait for wait in waits}
        new = self.new("waits", plain)
        for key, wait in sorted(plain.items(), key=lambda item: item[1].address):
            if key not in new:
                continue
            if self.as_json:
                data = {"event": "wait", "address": wait.address, "action": wait.action, "why": wait.why}
                more = {"digest": wait.digest, "hint": wait.hint}
                emit_event({**data, **{key: value for key, value in more.items() if value}})
            elif not wait.address.startswith("backend/"):  # the plan has a warning about it
                steps = f"; {wait.steps}" if wait.steps else ""
                say_line(f"{wait.address} ({wait.action}) {wait.why}{steps}")

    def silences(self, inventory: Inventory, now: float) -> None:
        """Print which nodes fell silent, are given up, and answer again: a line for each, and not one a round
        for as long as that lasts.
        """
        from declarative.planner.inventory import ANSWERS, silence_text

        here = {name: (s.given_up, bool(s.kept)) for name, s in inventory.silent.items()}
        for name in sorted(here, key=natural):
            if self._silent.get(name) != here[name]:
                say_line(f"node/{name} {silence_text(inventory.silent[name], now)}")
        unsure: dict[str, tuple[bool, bool]] = {}
        for name in sorted(self._silent.keys() - here.keys(), key=natural):
            readiness = inventory.readiness.get(name)
            if readiness and readiness.state in ANSWERS:
                say_line(f"node/{name} answers again")
            elif readiness:
                unsure[name] = self._silent[name]
        self._silent = {**unsure, **here}

    def returned(self, away: set[str]) -> None:
        """Print which backends can be read again; `away` are those that cannot be read now."""
        for name in sorted(self._was_away - away):
            if self.as_json:
                emit_event({"event": "returned", "address": f"backend/{name}"})
            else:
                say_line(f"backend/{name} can be read again")
        self._was_away = away


class RoundOutput(RunOutput):
    """The output of one round of a loop. Tasks without a place are among what waits."""

    def __init__(self, loop: LoopOutput) -> None:
        super().__init__("reconcile", as_json=loop.as_json)
        self._loop = loop

    def planned(self, plan: Plan, inventory: Inventory) -> None:
        """Print the plan if it does something, and what is new of its diagnostics."""
        from declarative.planner.inventory import SILENT_HINT

        new = self._loop.new("plan", plan.diagnostics)
        # What it says of silent nodes has the time that is left, which differs each round.
        fresh = tuple(d for d in plan.diagnostics if d in new and d.hint != SILENT_HINT)
        if not self.as_json:
            self._loop.silences(inventory, self._loop.session.clock())
        if plan.actions or plan.scope.moved:
            super().planned(replace(plan, diagnostics=fresh), inventory)
        elif fresh and not self.as_json:
            say(fresh)

    def pending(self, plan: Plan, state: State) -> None:
        pass

    def _summarize(self, outcome: RunOutcome) -> None:
        if outcome.results or outcome.plan.scope.moved:
            super()._summarize(outcome)

    def _say_lacking(self, tasks: Sequence[str], *, follows: bool) -> None:
        pass
