"""`fleetform apply`."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import click

from declarative.cli.plan import check_requested, replace_option
from declarative.cli.session import (
    Session,
    approve_option,
    emit_text,
    failed,
    json_option,
    lock_option,
    now,
    out_style,
    project_command,
    state_errors,
)
from declarative.cli.signals import INTERRUPTED, stopping

if TYPE_CHECKING:
    from declarative.apply import ActionResult, Backends
    from declarative.plan import Plan
    from declarative.render import Mode, Progress
    from declarative.resource import Desired
    from declarative.state import State
    from declarative.store import Store, Writer

parallelism_option = click.option(
    "--parallelism",
    type=click.IntRange(1, 256),
    default=8,
    show_default=True,
    help="How many actions at once.",
)
vanished_option = click.option(
    "--accept-vanished", is_flag=True, help="Go on although several things of one backend are gone at once."
)
STOPPING = "stopping: no new actions, the running ones end (again to stop now)"


@click.command("apply", short_help="do it")
@approve_option
@click.option("--wait", is_flag=True, help="Follow the tasks to their end, and fail if they fail.")
@click.option("--allow-unplaced", is_flag=True, help="Do the rest although some task cannot be placed.")
@parallelism_option
@vanished_option
@replace_option
@json_option
@lock_option
@project_command
@state_errors
def command(session: Session, **options: Any) -> int:
    """Converge: create, change and delete until everything is as declared.

    Shows the plan and asks first. Exits 0, 1 on errors, 3 if a task cannot be placed (and does nothing
    then), 4 if an action failed or, with --wait, a task; 130 when interrupted.
    """
    loaded = session.load()
    assert loaded is not None
    session.warn()
    check_requested(options["requested"], loaded.desired.tasks)
    with Run(session, loaded.desired, "apply", options) as run:
        return run.apply()


class Run:
    """One apply or destroy, from looking to the last line."""

    def __init__(self, session: Session, desired: Desired, doing: str, options: dict[str, Any]) -> None:
        self.session = session
        self.desired = desired
        self.doing = doing
        self.options = options
        self.store: Store = session.store(desired, write=True)
        self.progress: Progress | None = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self.progress:
            self.progress.__exit__(None, None, None)

    # The steps

    def apply(self) -> int:
        """Look, settle, plan, ask, do, and follow if asked to."""
        with stopping(STOPPING) as stop:
            with self.lock() as writer:
                outcome = self.locked(writer, stop, destroy=False)
            if isinstance(outcome, int):
                return outcome
            results, tasks = outcome
            if stop.is_set():
                return INTERRUPTED
            code = 4 if any(r.outcome != "done" for r in results) else 0
            if self.options["wait"]:
                return self._follow(tasks, stop) or code
            return code

    def lock(self) -> Any:
        """The state's lock; says whom it waits for."""

        def on_wait(info: object) -> None:
            sys.stderr.write(f"waiting for {info}\n")

        return self.store.lock(self.doing, self.options["lock_timeout"], on_wait=on_wait)

    def locked(
        self, writer: Writer, stop: threading.Event, *, destroy: bool
    ) -> int | tuple[tuple[ActionResult, ...], tuple[str, ...]]:
        """Everything that happens under the lock: an exit code, or results and the tasks to follow."""
        from declarative.apply import Backends, apply

        plan = self.make_plan(writer, destroy=destroy)
        self._show(plan)
        if plan.result == "error":
            return 1
        if plan.unplaced and not self.options.get("allow_unplaced"):
            sys.stderr.write("nothing was done: a task cannot be placed (`--allow-unplaced` does the rest)\n")
            return 3
        if plan.actions:
            self._ask(plan)
            backends = Backends(self.desired.backends, self._project_dir(), writer.ensure_lineage())
            progress = self._progress(len(plan.actions))
            results = apply(
                plan,
                writer,
                backends,
                progress,
                environ=os.environ,
                now=now,
                stopping=stop,
                parallelism=self.options["parallelism"],
            )
            self._report(results)
        else:
            results = ()
        return results, self._tasks(plan, writer.state())

    def make_plan(self, writer: Writer, *, destroy: bool) -> Plan:
        """Look at what is there, record what happened by itself, and plan on that."""
        from declarative.apply import look, settle
        from declarative.plan import make

        state = writer.state()
        backends = self._backends(state)
        seen = look(state, backends)
        requested = frozenset(self.options.get("requested", ()))
        plan = make(self.desired, state, seen.inventory, now(), requested=requested, destroy=destroy)
        if plan.vanished and not self.options["accept_vanished"]:
            self._accept_vanished(plan)
        settled = settle(writer, backends, seen, now, self._note)
        plan = make(self.desired, settled, seen.inventory, now(), requested=requested, destroy=destroy)
        return plan

    def _backends(self, state: State) -> Backends:
        return self.session.backends(self.desired, state)

    def _project_dir(self) -> Any:
        return self.session.directory.resolve()

    def _tasks(self, plan: Plan, state: State) -> tuple[str, ...]:
        """Tasks to follow: those that this plan started, and those that run."""
        started = {str(a.after["task"]) for a in plan.actions if a.address.kind == "rank" and a.after}
        going = {
            str(r.inputs["task"])
            for r in state.of("rank")
            if not ((s := state.ranks.get(r.address.name)) and s.state.ended)
        }
        return tuple(sorted(t for t in started | going if t in self.desired.tasks))

    def _follow(self, tasks: tuple[str, ...], stop: threading.Event) -> int:
        from declarative.apply import follow
        from declarative.state import RankState

        if not tasks:
            return 0
        states = follow(
            self.store,
            self._backends(self.store.read()),
            tasks,
            stopping=stop,
            now=now,
            lock_timeout=max(60.0, self.options["lock_timeout"]),
            note=self._note,
        )
        if stop.is_set():
            return INTERRUPTED
        return 0 if all(s is RankState.SUCCEEDED for s in states.values()) else 4

    # What the user sees

    def _show(self, plan: Plan) -> None:
        from declarative.render import plan_json, plan_text

        if self.options["as_json"]:
            self._line({"event": "plan", "plan": plan_json(plan)})
            return
        self.session.say(plan.diagnostics)
        if plan.result != "error":
            emit_text(plan_text(plan, **out_style()))

    def _line(self, data: dict[str, Any]) -> None:
        import json

        sys.stdout.write(json.dumps(data, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def _ask(self, plan: Plan) -> None:
        """Consent: by `--auto-approve`, or at the prompt of a terminal."""
        if self.options["auto_approve"]:
            return
        if not sys.stdin.isatty() or self.options["as_json"]:
            raise failed(
                "not-approved",
                "nobody can be asked: this is no terminal",
                "look at the plan, then add `--auto-approve`",
            )
        sys.stdout.flush()
        answer = click.prompt(
            f"{self.doing.capitalize()} this plan? Only `yes` is accepted", default="", show_default=False
        )
        if answer.strip() != "yes":
            raise failed("declined", f"{self.doing} was declined: nothing was done")

    def _accept_vanished(self, plan: Plan) -> None:
        """Several things gone at once are more likely a fault than the truth: the user decides."""
        listing = ", ".join(plan.vanished[:5]) + (" …" if len(plan.vanished) > 5 else "")
        summary = f"{len(plan.vanished)} things are gone at once: {listing}"
        hint = "if they really are gone, add `--accept-vanished`; nothing was changed"
        raise failed("vanished", summary, hint)

    def _progress(self, total: int) -> Progress:
        from declarative.render import Progress

        if self.progress is None:
            live = sys.stderr.isatty()
            as_json = self.options["as_json"]
            stream = sys.stdout if as_json else sys.stderr
            mode: Mode = "json" if as_json else "live" if live else "plain"
            self.progress = Progress(stream, mode, total)
            self.progress.__enter__()
        return self.progress

    def _note(self, rank: str, status: Any) -> None:
        self._progress(0).rank(f"rank/{rank}", status.state.value, status.cause)

    def _report(self, results: tuple[ActionResult, ...]) -> None:
        from declarative.render import report_text

        if self.options["as_json"]:
            counts = {o: sum(r.outcome == o for r in results) for o in ("done", "failed", "skipped")}
            self._line({"event": "summary", **counts})
            return
        emit_text(report_text(results, color=out_style()["color"]))
        sys.stdout.flush()
