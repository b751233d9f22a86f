"""`fleetform plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from declarative.cli import pager
from declarative.cli.failure import Failed, failed
from declarative.cli.options import allowed_work, check_requested, replace_option, reuse_option, work_option
from declarative.cli.session import Session, emit, json_option, now, out_style, project_command, state_errors

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from declarative.plan.types import Plan

EXIT = {"none": 0, "unhealthy": 0, "changes": 0, "waiting": 3, "unplaced": 3, "error": 1}


@click.command("plan")
@json_option
@click.option(
    "--detailed-exitcode",
    is_flag=True,
    help="Exit 2 when there are changes, or something is not well.",
)
@click.option("--offline", is_flag=True, help="Contact nothing: safe on a stranger's YAML.")
@click.option(
    "--assume-empty",
    is_flag=True,
    help="With --offline: read no state, and plan as if nothing was there yet.",
)
@click.option("--summary", "summary_only", is_flag=True, help="Print the last lines only.")
@click.option("--no-pager", is_flag=True, help="Print a long plan as it is, also on a terminal.")
@replace_option
@reuse_option
@work_option
@click.option("--out", metavar="FILE", type=click.Path(), help="Save the plan, for `fleetform apply FILE`.")
@click.option(
    "--sign",
    metavar="KEYFILE",
    type=click.Path(),
    help="With --out: sign it with this private Ed25519 key, into FILE.sig.",
)
@project_command
def command(
    session: Session,
    *,
    as_json: bool,
    detailed_exitcode: bool,
    summary_only: bool,
    no_pager: bool,
    out: str | None,
    sign: str | None,
    **asked: Any,
) -> int:
    """Show every node to launch, every volume to create and every block to reserve.

    Reads the backends and keeps nothing. Exits 0, 1 on errors, 3 if a task cannot be placed, and with
    --detailed-exitcode 2 if there are changes, or something is not well: a node takes no work, a declared
    host is left out, a backend could not be read. With --reuse, fleets still get the nodes that they declare.
    """
    from declarative.render.data import plan_json
    from declarative.render.plan import plan_text

    try:
        plan = compute(session, out=out, sign=sign, **asked)
    except Failed as error:
        if as_json:
            emit(plan_json(_erroneous(error)))
            return 1
        raise
    if as_json:
        emit(plan_json(plan))
    else:
        session.say(plan.diagnostics)
        if plan.result != "error":
            style = out_style()
            text = plan_text(plan, summary_only=summary_only, **style)
            summary = plan_text(plan, summary_only=True, **style)
            pager.show(text, paged=not no_pager, summary=summary)
    if out is not None:
        from declarative.cli.saved import say_kept

        say_kept(session, out, plan.result)
    return 2 if detailed_exitcode and plan.result in ("changes", "unhealthy") else EXIT[plan.result]


@state_errors
def compute(  # noqa: PLR0913 (keywords, each an option)
    session: Session,
    *,
    offline: bool,
    requested: tuple[str, ...],
    reuse: bool = False,
    assume_empty: bool = False,
    max_work: int | None = None,
    out: str | None = None,
    sign: str | None = None,
) -> Plan:
    """The plan of the project as it is now, saved in the file `out` if it has no errors, signed by a key."""
    from dataclasses import replace

    from declarative.apply.inventory import look
    from declarative.apply.preflight import foresee
    from declarative.diagnostic import in_order
    from declarative.plan.hosts import hosts_of
    from declarative.plan.make import make
    from declarative.plan.rehearsal import may_rehearse
    from declarative.state import State

    key = _check_out(out, sign, offline=offline)
    if assume_empty and not offline:
        raise failed("usage", "`--assume-empty` reads no state, and a plan needs it", "add `--offline`")
    loaded = session.load(look="contents")
    assert loaded is not None
    state = State() if assume_empty else session.state.open(loaded.desired, offline=offline).read()
    check_requested(requested, loaded.desired, state)
    if not assume_empty:
        session.state.check_moved(loaded.desired)
    backends = session.backends(loaded.desired, state)
    hosts, gpus = hosts_of(loaded.desired, state), may_rehearse(loaded.desired, state)
    seen = look(state, backends, hosts=hosts, offline=offline, gpus=gpus)
    plan = make(
        loaded.desired,
        state,
        seen.inventory,
        now(),
        requested=frozenset(requested),
        reuse=reuse,
        max_work=allowed_work(max_work, offline=offline),
    )
    if not offline:
        plan = foresee(plan, backends, loaded.desired.places)
    diagnostics = in_order((*session.warnings, *plan.diagnostics))
    plan = replace(plan, diagnostics=diagnostics, offline=offline)
    if out is not None and plan.result != "error":
        from declarative.cli.saved import keep

        keep(session, out, (plan, loaded.desired, state, seen.inventory), key)
    return plan


def _check_out(name: str | None, sign: str | None, *, offline: bool) -> Ed25519PrivateKey | None:
    """The key to sign with; `Failed` if the plan could not be saved or signed: said before it is made."""
    from declarative.cli.planfile import check_target

    if name is None:
        if sign is None:
            return None
        raise failed("usage", "`--sign` is about a saved plan", "save it: `--out FILE`")
    if offline:
        summary = "a plan that was made offline cannot be applied: no backend was looked at"
        raise failed("usage", summary, "leave `--offline` or `--out` out")
    check_target(name)
    if sign is None:
        return None
    from declarative.cli.signature import check_place, signer_of

    check_place(name)
    return signer_of(sign)


def _erroneous(error: Failed) -> Plan:
    from declarative.plan.types import Plan

    return Plan(lineage=None, serial=0, diagnostics=error.diagnostics)
