"""`fleetform reconcile`: refresh, plan and apply, again and again, with nobody watching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from declarative.cli.errors import Failed, failed
from declarative.cli.options import apply_options, examples, json_option
from declarative.cli.run import Run
from declarative.cli.session import Session, now, project_command
from declarative.cli.signals import stopping

if TYPE_CHECKING:
    import threading

    from declarative.apply.graph_walk import ActionResult
    from declarative.planner.types import Plan
    from declarative.reconcile.round import Observer, Round
    from declarative.store import Writer

STOPPING = "stopping: no new actions, the running ones end (again to stop now)"


class RoundRun(Run):
    """One round: an apply that asks nobody."""

    results: tuple[ActionResult, ...] = ()
    epoch: int | None = None

    def ask(self) -> None:
        """Nobody is asked: what may be done is declared."""

    def _show(self, plan: Plan) -> None:
        if plan.changes or plan.result == "error":
            super()._show(plan)

    def perform(
        self, plan: Plan, writer: Writer, stop: threading.Event
    ) -> tuple[tuple[ActionResult, ...], dict[str, str]]:
        """As every apply, and what came of it is kept."""
        self.epoch = writer.lease.epoch
        self.results, held = super().perform(plan, writer, stop)
        return self.results, held


@click.command("reconcile", epilog=examples("fleetform reconcile --once"))
@click.option("--once", is_flag=True, help="One round, for timers.")
@apply_options
@json_option
@project_command
def reconcile_command(session: Session, *, once: bool, **options: Any) -> int:
    """Keep everything as declared: look, plan and apply, again and again, and ask nobody.

    Exits 0 when it was told to stop. With --once it exits as `apply` does.
    """
    if not once:
        raise failed("usage", "`fleetform reconcile` needs `--once`", "a timer runs it again")
    return reconcile(session, options, ())


def reconcile(session: Session, options: Mapping[str, Any], observers: Sequence[Observer]) -> int:
    """Rounds, of each of which `observers` are told; the exit code."""
    from declarative.reconcile.loop import Loop

    given = {**options, "auto_approve": True, "allow_unplaced": True, "lock_timeout": None}
    code = 0

    def step() -> Round:
        nonlocal code
        code, found = _round(session, given)
        return found

    with stopping(STOPPING) as stop:
        Loop(step, observers, clock=now, stopping=stop).once()
    return code


def _round(session: Session, options: Mapping[str, Any]) -> tuple[int, Round]:
    """One round; its exit code, and what is told of it."""
    from declarative.reconcile.round import Round
    from declarative.render.views import status_view

    try:
        desired = session.load(look="contents").desired
    except Failed as error:
        session.say(error.diagnostics)
        return 1, Round(number=0, at=0.0, duration=0.0, held=False, errors=error.diagnostics)
    with RoundRun(session, desired, "reconcile", options) as run:
        code = run.converge(destroy=False)
        plan = run.plan
        found = Round(
            number=0,
            at=0.0,
            duration=0.0,
            held=True,
            epoch=run.epoch,
            status=status_view(desired, run.store.read()),
            plan=plan,
            actions=plan.actions if plan else (),
            results=run.results,
            errors=tuple(d for d in plan.diagnostics if d.severity == "error") if plan else (),
        )
        return code, found
