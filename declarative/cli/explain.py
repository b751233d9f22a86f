"""`fleetform explain`: why something is where the plan puts it, and where else it could be."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import click

from declarative.cli import completion
from declarative.cli.options import (
    allowed_work,
    effort_option,
    examples,
    json_option,
    no_pager_option,
    offline_option,
    project_command,
    replace_option,
    reuse_option,
    work_option,
)
from declarative.cli.output import emit, out_style, say, show_paged
from declarative.converge.planning import part_of
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import InvalidError, failed, has_errors

if TYPE_CHECKING:
    from declarative.planner.explain import Answer, Explainer


@click.command(
    "explain", epilog=examples("fleetform explain task/train", "fleetform explain node/gpu-0 --json")
)
@click.argument("target", metavar="ADDRESS", shell_complete=completion.explained)
@json_option
@offline_option
@no_pager_option("answer")
@replace_option
@reuse_option
@effort_option
@work_option
@project_command
def explain_command(
    session: ProjectSession,
    *,
    target: str,
    as_json: bool,
    no_pager: bool,
    offline: bool,
    requested: tuple[str, ...],
    reuse: bool,
    effort: int,
    max_work: int | None,
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
    from declarative.converge.planning import observe
    from declarative.model.diagnostic import in_order
    from declarative.planner.decisions import PlanRequest
    from declarative.planner.explain import Explainer
    from declarative.render.explain import explain_json, explain_text

    kind, name = _parse(target)
    source = observe(session, requested, offline=offline)
    desired, recorded, inventory = source.desired, source.recorded, source.inventory
    request = PlanRequest(
        desired=desired,
        recorded=recorded,
        inventory=inventory,
        now=session.clock(),
        requested=frozenset(requested),
        reuse=reuse,
        effort=effort,
        explained_task=name if kind == "task" else name.rpartition("-")[0] if kind == "rank" else None,
    )
    explainer = Explainer(request, allowed_work(max_work, offline=offline))
    spent = session.state.open(desired, offline=offline).spent()
    plan = part_of(lambda **_: explainer.plan, desired, recorded, inventory, ((), ()), spent=spent)
    diagnostics = in_order((*session.warnings, *source.renames.diagnostics, *plan.diagnostics))
    if not explainer.feasible:
        raise InvalidError(diagnostics)
    answer = _answer(explainer, kind, name)
    if as_json:
        emit(explain_json(answer, diagnostics))
    else:
        say(diagnostics)
        show_paged(explain_text(answer, **out_style()), paged=not no_pager)
    if has_errors(diagnostics):
        return 1
    refusal = getattr(answer, "refusal", None)
    return 3 if refusal and refusal.starts is None else 0


def _parse(target: str) -> tuple[str, str]:
    """The kind and the name. A task's bare name is enough, and so is `train/0` for a rank."""
    kind, slash, name = target.partition("/")
    if slash and kind in ("task", "rank", "node") and name:
        return kind, name
    if target and not slash:
        return "task", target
    if slash and kind and name.isdecimal():
        return "rank", f"{kind}-{name}"
    hint = "write `task/NAME`, `rank/NAME-0` or `node/NAME`"
    raise failed("usage", f"`{target}` cannot be explained", hint)


def _answer(explainer: Explainer, kind: str, name: str) -> Answer:
    if kind == "node":
        nodes = explainer.nodes()
        _check_known(kind, name, nodes, nodes)
        return explainer.of_node(name)
    tasks = explainer.tasks()
    if kind == "task":
        _check_known(kind, name, tasks, tasks)
        return explainer.of_task(name)
    task, _, number = name.rpartition("-")
    ranks = tasks.get(task, 0) if number.isascii() and number.isdecimal() else 0
    _check_known(kind, name, [name] if ranks else [], [f"{t}-0" for t in tasks])
    if int(number) >= ranks:
        hint = f"its ranks are 0 to {ranks - 1}"
        raise failed("unknown-rank", f"task/{task} has no rank {number}", hint)
    return explainer.of_task(task, int(number))


def _check_known(kind: str, name: str, known: Collection[str], near: Iterable[str]) -> None:
    """`InvalidError` unless the name is known, with one that is near it."""
    from declarative.model.diagnostic import suggest

    if name not in known:
        address = f"{kind}/{name}"
        hint = suggest(address, [f"{kind}/{n}" for n in near]) or "`fleetform plan` shows what there is"
        raise failed("unknown-address", f"the project and its plan have no `{address}`", hint)
