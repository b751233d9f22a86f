"""`fleetform plan`, `drift`, `show` and `explain`: what apply would do, what changed, what a saved plan would
do, and why something is where the plan puts it. Also plans in files: `--format`, `--report`, `--max-chars`.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from declarative.cli import completion
from declarative.cli.options import (
    all_of,
    allowed_work,
    check_refresh,
    effort_option,
    examples,
    json_option,
    new_state_option,
    no_pager_option,
    offline_option,
    planning_options,
    project_command,
    replace_option,
    reuse_option,
    state_errors,
    unplaced_option,
    work_option,
)
from declarative.cli.output import check_writable, emit, out_style, say, show_paged, write_whole
from declarative.converge.planning import part_of
from declarative.converge.project import ProjectSession
from declarative.language.source import no_collections
from declarative.model.diagnostic import InvalidError, failed, has_errors
from declarative.model.record import struct

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from declarative.planner.explain import Answer, Explainer
    from declarative.planner.plan import Plan

F = TypeVar("F", bound=Callable[..., Any])
FORMATS = ("text", "markdown", "html", "json")
SUFFIXES = {
    ".txt": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".json": "json",
}
BEGINS = {
    "text": "# fleetform plan",
    "markdown": "<!-- fleetform plan -->",
    "html": "<!DOCTYPE html>\n<!-- fleetform plan -->",
    "json": '{\n  "format_version"',
}
"""The begin of the files of each format: other files are not overwritten."""
MAX_CHARS = 65_536
LEAST_CHARS = 4_000


@struct(slots=True)
class Reports:
    """The output for stdout, and for files."""

    printed: str
    files: tuple[str, ...]
    max_chars: int

    @property
    def requested(self) -> bool:
        """Whether anything but the usual text was asked for."""
        return bool(self.files) or self.printed != "text"

    def check(self, *, as_json: bool) -> None:
        """`InvalidError` if a file could not be written: checked before the plan is made."""
        if as_json:
            if self.printed not in {"text", "json"}:
                raise failed("usage", f"`--json` and `--format {self.printed}` are two formats", "give one")
            self.printed = "json"
        for name in self.files:
            begin = re.compile(re.escape(BEGINS[self._format(name)].encode()))
            check_writable(str(Path(name)), "report of fleetform", begin)

    def write(self, plan: Plan) -> None:
        """Put the plan into the files, each written whole or not at all."""
        for name in self.files:
            form = self._format(name)
            head = f"{BEGINS[form]}\n\n" if form == "text" else ""
            text = head + self._render(plan, form)
            # With the user's umask: reports are there to be read by others.
            write_whole(Path(name), text.encode(errors="replace"), 0o666)

    def print(self, plan: Plan) -> None:
        sys.stdout.write(self._render(plan, self.printed))

    def _format(self, name: str) -> str:
        form = SUFFIXES.get(Path(name).suffix, self.printed if self.printed != "text" else None)
        if form is None:
            hint = f"end its name in one of {', '.join(SUFFIXES)}, or say it: `--format markdown`"
            raise failed("usage", f"`--report {name}` does not tell its format", hint)
        return form

    def _render(self, plan: Plan, form: str) -> str:
        if form == "json":
            from declarative.render.output_json import to_json
            from declarative.render.plan_document import plan_json

            return to_json(plan_json(plan))
        if form == "markdown":
            from declarative.render.markdown import plan_markdown

            return plan_markdown(plan, self.max_chars)
        if form == "html":
            from declarative.render.html import plan_html

            return plan_html(plan)
        from declarative.render.diagnostics import diagnostics_text
        from declarative.render.plan import plan_text

        findings = diagnostics_text(plan.diagnostics, color=False)
        return findings + plan_text(plan, color=False, width=None)


def report_options(command: F) -> F:
    """The options; the command gets `reports`."""

    @functools.wraps(command)
    def run(*args: Any, printed: str, report_files: tuple[str, ...], max_chars: int, **options: Any) -> Any:
        return command(*args, reports=Reports(printed, report_files, max_chars), **options)

    options = all_of(
        click.option(
            "--format",
            "printed",
            type=click.Choice(FORMATS),
            default="text",
            show_default=True,
            help="What to print.",
        ),
        click.option(
            "--report",
            "report_files",
            metavar="FILE",
            multiple=True,
            type=click.Path(),
            help="Write the plan into this file too, in the format that its name ends in: .md, .html, .json "
            "or .txt.",
        ),
        click.option(
            "--max-chars",
            type=click.IntRange(min=LEAST_CHARS),
            default=MAX_CHARS,
            show_default=True,
            help="With Markdown: fold the report until it has no more characters than a comment may have.",
        ),
    )
    return options(cast("F", run))


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
@planning_options
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


# --------------------------------------------------------------------------------------------- explain


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
    from declarative.model.text import suggest

    if name not in known:
        address = f"{kind}/{name}"
        hint = suggest(address, [f"{kind}/{n}" for n in near]) or "`fleetform plan` shows what there is"
        raise failed("unknown-address", f"the project and its plan have no `{address}`", hint)
