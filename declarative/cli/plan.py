"""`fleetform plan`, `drift` and `show`: what apply would do, what changed, and what a saved plan would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from declarative.cli.options import (
    allowed_work,
    check_refresh,
    effort_option,
    examples,
    json_option,
    new_state_option,
    no_pager_option,
    offline_option,
    part_options,
    project_command,
    refresh_option,
    replace_option,
    reuse_option,
    state_errors,
    unplaced_option,
    work_option,
)
from declarative.cli.output import out_style, say, show_paged
from declarative.cli.reports import Reports, report_options
from declarative.converge.project import ProjectSession
from declarative.language.source import no_collections
from declarative.model.diagnostic import InvalidError, failed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from declarative.planner.plan import Plan

EXIT = {"none": 0, "unhealthy": 0, "changes": 0, "waiting": 3, "unplaced": 3, "error": 1}


@click.command(
    "plan",
    epilog=examples(
        "fleetform plan --json",
        "fleetform plan --offline --detailed-exitcode",
        "fleetform plan --replace task/train",
        "fleetform plan --replace node/gpu-3",
        "fleetform plan --reuse",
        "fleetform plan --target task/train",
        "fleetform plan --exclude 'fleet/prod-*'",
        "fleetform plan --out next.plan",
        "fleetform plan --format markdown",
        "fleetform plan --report plan.html --report plan.md",
    ),
)
@json_option
@click.option(
    "--detailed-exitcode",
    is_flag=True,
    help="Exit 2 when there are changes, or something is not well.",
)
@offline_option
@click.option(
    "--assume-empty",
    is_flag=True,
    help="With --offline: read no state, and plan as if nothing was there yet.",
)
@click.option("--summary", "summary_only", is_flag=True, help="Print the last lines only.")
@report_options
@no_pager_option("plan")
@part_options
@refresh_option
@replace_option
@reuse_option
@effort_option
@unplaced_option
@new_state_option
@work_option
@click.option("--out", metavar="FILE", type=click.Path(), help="Save the plan, for `fleetform apply FILE`.")
@click.option(
    "--sign",
    metavar="KEYFILE",
    type=click.Path(),
    help="With --out: sign it with this private Ed25519 key, into FILE.sig.",
)
@project_command
@no_collections()
def plan_command(
    session: ProjectSession,
    *,
    as_json: bool,
    detailed_exitcode: bool,
    summary_only: bool,
    no_pager: bool,
    reports: Reports,
    out: str | None,
    sign: str | None,
    **asked: Any,
) -> int:
    """Show every node to launch, every volume to create and every block to reserve.

    Reads the backends and keeps nothing. Exits 0, 1 on errors, 3 if a task cannot be placed (not if it waits
    for a `schedule`, or the project says `allow_unplaced`), and with --detailed-exitcode 2 if there are
    changes, or something is not well: a node takes no work, a declared host is left out, a backend could not
    be read. With --reuse, fleets still get the nodes that they declare.

    With --target it shows what that needs as well, with --exclude what depends on it is left out too; it says
    which. Both may be given together.
    """
    reports.check(as_json=as_json)
    try:
        plan = compute(session, out=out, sign=sign, **asked)
    except InvalidError as error:
        from declarative.planner.plan import Basis, Plan

        if not reports.requested and not as_json:
            raise
        basis = Basis(lineage=None, serial=0)
        plan = Plan(basis=basis, origin=session.origin(None), diagnostics=error.diagnostics)
        reports.write(plan)
        if reports.printed == "text":
            raise
        reports.print(plan)
        return 1
    reports.write(plan)
    if reports.printed == "text":
        say(plan.diagnostics)
        if plan.shown:
            _print(plan, paged=not no_pager, summary_only=summary_only)
    else:
        reports.print(plan)
    if out is not None:
        from declarative.cli.plan_files import say_saved

        say_saved(session, out, plan.result)
    return 2 if detailed_exitcode and plan.result in ("changes", "unhealthy") else EXIT[plan.result]


@click.command("drift", epilog=examples("fleetform drift", "fleetform drift --report drift.md"))
@json_option
@report_options
@no_pager_option("answer")
@project_command
def drift_command(session: ProjectSession, *, as_json: bool, reports: Reports, no_pager: bool) -> int:
    """Show differences from the records: things that are gone or were changed, and things without a record.

    It is `plan --refresh-only --detailed-exitcode`: exits 0, 1 on errors, 2 if there is something or
    something is not well. A rank that has succeeded is no drift. `fleetform plan` shows what apply would
    do about it.
    """
    reports.check(as_json=as_json)
    plan = compute(session, offline=False, refresh_only=True)
    reports.write(plan)
    if reports.printed == "text":
        say(plan.diagnostics)
        _print(plan, paged=not no_pager)
    else:
        reports.print(plan)
    return 2 if plan.result in ("changes", "unhealthy") else EXIT[plan.result]


def _print(plan: Plan, *, paged: bool, summary_only: bool = False, before: str = "") -> None:
    from declarative.render.plan import plan_text

    style = out_style()
    text = plan_text(plan, summary_only=summary_only, **style)
    show_paged(before + text, paged=paged, after=lambda: plan_text(plan, summary_only=True, **style))


@state_errors
def compute(
    session: ProjectSession,
    *,
    offline: bool,
    requested: tuple[str, ...] = (),
    assume_empty: bool = False,
    max_work: int | None = None,
    out: str | None = None,
    sign: str | None = None,
    **options: Any,
) -> Plan:
    """The plan of the project as it is now, saved in the file `out` if it has no errors, signed by a key.
    `options` are further ones of `RunOptions`.
    """
    from declarative.converge.planning import RunOptions, preview

    key = _check_out(out, sign, offline=offline)
    if assume_empty and not offline:
        raise failed("usage", "`--assume-empty` reads no state, and a plan needs it", "add `--offline`")
    run_options = RunOptions(requested=frozenset(requested), **options)
    changing = (requested, run_options.targets, run_options.excludes, run_options.reuse, out, offline)
    check_refresh(run_options.refresh_only, changing)
    max_work = allowed_work(max_work, offline=offline)
    plan, source = preview(
        session, run_options, offline=offline, assume_empty=assume_empty, max_work=max_work
    )
    if out is not None and plan.result != "error":
        from declarative.cli.plan_files import save

        save(session, out, plan, source, key)
    return plan


def _check_out(name: str | None, sign: str | None, *, offline: bool) -> Ed25519PrivateKey | None:
    """The key to sign with; `InvalidError` if the plan could not be saved or signed: checked before it is
    made.
    """
    if name is None:
        if sign is None:
            return None
        raise failed("usage", "`--sign` is about a saved plan", "save it: `--out FILE`")
    if offline:
        summary = "a plan that was made offline cannot be applied: no backend was looked at"
        raise failed("usage", summary, "leave `--offline` or `--out` out")
    from declarative.cli.plan_files import check_place, check_target, signer_of

    check_target(name)
    if sign is None:
        return None
    check_place(name)
    return signer_of(sign)


@click.command(
    "show",
    epilog=examples(
        "fleetform show next.plan",
        "fleetform show next.plan --json",
        "fleetform show next.plan --report plan.html",
    ),
)
@click.argument("file", type=click.Path())
@json_option
@report_options
@no_pager_option("plan")
def show_command(file: str, *, as_json: bool, reports: Reports, no_pager: bool) -> int:
    """Show the plan that `fleetform plan --out FILE` saved, as it was then.

    Reads nothing but the file. With --json it prints what `plan --json` printed.
    """
    from declarative.cli.plan_files import origin, read
    from declarative.render.diagnostics import diagnostics_text

    reports.check(as_json=as_json)
    try:
        saved = read(file)
    except InvalidError as error:
        if reports.printed == "json":
            from declarative.cli.errors import Failed

            raise Failed(error, "show") from None
        raise
    reports.write(saved.plan)
    if reports.printed != "text":
        reports.print(saved.plan)
    else:
        diagnostics = diagnostics_text(saved.plan.diagnostics, color=out_style()["color"])
        _print(saved.plan, paged=not no_pager, before=f"{origin(saved)}\n{diagnostics}")
    return 0
