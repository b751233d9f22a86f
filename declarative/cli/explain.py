"""`fleetform explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from declarative.cli import complete, pager
from declarative.cli.failure import failed
from declarative.cli.options import allowed_work, check_requested, replace_option, reuse_option, work_option
from declarative.cli.session import (
    Session,
    emit,
    has_errors,
    json_option,
    now,
    out_style,
    project_command,
    state_errors,
)

if TYPE_CHECKING:
    from declarative.diagnostic import Diagnostic
    from declarative.plan.explain import Explainer
    from declarative.plan.explanation import Answer

KINDS = ("task", "rank", "node")


@click.command("explain")
@click.argument("target", metavar="ADDRESS", shell_complete=complete.explained)
@json_option
@click.option("--offline", is_flag=True, help="Contact nothing: safe on a stranger's YAML.")
@click.option("--no-pager", is_flag=True, help="Print a long answer as it is, also on a terminal.")
@replace_option
@reuse_option
@work_option
@project_command
def command(
    session: Session,
    *,
    target: str,
    as_json: bool,
    no_pager: bool,
    **asked: Any,
) -> int:
    """Plan, and explain one address of the plan: `task/NAME`, `rank/NAME-0` or `node/NAME`.

    Says why a rank goes where it goes, which other nodes and offers would have done and at what price, and
    what turned all others down; of a task that cannot be placed, the whole refusal. Changes nothing. Exits 0,
    1 on errors, 3 if the task that was asked about cannot be placed.

    With --json: format_version, address, kind (task, rank or node), status and diagnostics always. Of a task
    or rank: reason, because, ranks_count, ranks (place, why, instead; instead_of_rank names the rank whose
    `instead` holds as well), refusal, places (what would hold one rank of a task without a place), elsewhere.
    Of a node: state, state_reason, observed_at, closed, resources, blocks, holders, price, idle_price, why,
    changed, instead, looked. An `instead` has nodes and offers with their counts, offers_cheaper, and
    turned_down by code; plan_hourly_change is what the plan would cost more, USD an hour. Lists are cut at
    20, their counts are not.
    """
    from declarative.render.explain import explain_text
    from declarative.render.explain_data import explain_json

    answer, diagnostics = ask(session, target, **asked)
    if as_json:
        emit(explain_json(answer, diagnostics))
    else:
        session.say(diagnostics)
        pager.show(explain_text(answer, **out_style()), paged=not no_pager)
    if has_errors(diagnostics):
        return 1
    return 3 if answer.status == "unplaced" else 0


@state_errors
def ask(
    session: Session,
    target: str,
    *,
    offline: bool,
    requested: tuple[str, ...],
    reuse: bool = False,
    max_work: int | None = None,
) -> tuple[Answer, tuple[Diagnostic, ...]]:
    """The answer, and what there is to say about the plan."""
    from declarative.apply.inventory import look
    from declarative.cli.failure import Failed
    from declarative.diagnostic import in_order
    from declarative.plan.explain import Explainer
    from declarative.plan.hosts import hosts_of
    from declarative.plan.rehearsal import may_rehearse

    kind, name = parse(target)
    loaded = session.load(look="contents")
    assert loaded is not None
    state = session.state.open(loaded.desired, offline=offline).read()
    check_requested(requested, loaded.desired, state)
    session.state.check_moved(loaded.desired)
    hosts = hosts_of(loaded.desired, state)
    gpus = may_rehearse(loaded.desired, state)
    seen = look(state, session.backends(loaded.desired, state), hosts=hosts, offline=offline, gpus=gpus)
    explainer = Explainer(
        loaded.desired,
        state,
        seen.inventory,
        now(),
        requested=frozenset(requested),
        reuse=reuse,
        max_work=allowed_work(max_work, offline=offline),
    )
    diagnostics = in_order((*session.warnings, *explainer.plan.diagnostics))
    if not explainer.feasible:
        raise Failed(diagnostics)
    return _answer(explainer, kind, name), diagnostics


def parse(target: str) -> tuple[str, str]:
    """The kind and the name; a task's name alone will do, and so will `train/0` for a rank."""
    kind, slash, name = target.partition("/")
    if slash and kind in KINDS and name:
        return kind, name
    if target and not slash:
        return "task", target
    if slash and kind and name.isdecimal():
        return "rank", f"{kind}-{name}"
    raise failed(
        "usage", f"`{target}` cannot be explained", "write `task/NAME`, `rank/NAME-0` or `node/NAME`"
    )


def _answer(explainer: Explainer, kind: str, name: str) -> Answer:
    tasks = explainer.tasks()
    if kind == "node" and name in (nodes := explainer.nodes()):
        return explainer.of_node(name)
    if kind == "node":
        raise _unknown(f"node/{name}", [f"node/{n}" for n in nodes])
    if kind == "task":
        if name not in tasks:
            raise _unknown(f"task/{name}", [f"task/{t}" for t in tasks])
        return explainer.of_task(name)
    task, _, number = name.rpartition("-")
    if task not in tasks or not (number.isascii() and number.isdecimal()):
        raise _unknown(f"rank/{name}", [f"rank/{t}-0" for t in tasks])
    if int(number) >= tasks[task]:
        raise failed(
            "unknown-rank", f"task/{task} has no rank {number}", f"its ranks are 0 to {tasks[task] - 1}"
        )
    return explainer.of_task(task, int(number))


def _unknown(address: str, known: list[str]) -> Exception:
    from declarative.diagnostic import suggest

    hint = suggest(address, known) or "`fleetform plan` shows what there is"
    return failed("unknown-address", f"nothing in the project or its plan is `{address}`", hint)
