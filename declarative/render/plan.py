"""A plan as text, to be read from top to bottom: changes by others, actions, places of ranks, tasks that
cannot be placed, cost, and a summary line.

The plan's diagnostics are not included: `diagnostics_text` writes them to stderr.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime

from declarative.model.diagnostic import and_more
from declarative.model.spec.reconcile import HOURS_A_MONTH
from declarative.model.state import ADOPTED, PROTECTABLE, Renamed
from declarative.model.text import clean, host_lists
from declarative.planner.plan import Cost, Op, Origin, Plan
from declarative.planner.shares import fleet_shares
from declarative.render.actions import (
    actions_lines,
    adoption_text,
    counts,
    difference_lines,
    differing_text,
    unplaced_count,
    unstarted_lines,
)
from declarative.render.diagnostics import count_text
from declarative.render.fallbacks import at_most_text, fallback_lines
from declarative.render.output_json import iso
from declarative.render.plan_tables import (
    block_lines,
    headline,
    rank_lines,
    restart_text,
    stop_text,
    together_alike,
    unplaced_lines,
)
from declarative.render.status import CHANGED, drift_rows, health_lines, unwell
from declarative.render.text import Cell, Paint, columns, money, plural, seal, wrapped
from declarative.render.values import fields

COMMIT_DIGITS = 12
"""Of a commit that people read."""
SAME = 1e-4
"""Costs that differ by less than this part are shown as equal."""
LONG = 60
"""A plan of more lines has its summary at both ends."""
OLD = 90
"""Prices older than so many days are shown with their age."""
LATER = {"node-mismatch", "blocks-wait"}
"""Warnings of changes that are made later."""
MOST_SHARES = 10
"""At most so many fleets, and tasks of a fleet, are listed with their cost."""
MOST_ENDED = 5
"""At most so many tasks that ended without success are named."""
ENDS = {"failed": "failed", "lost": "was lost", "stopped": "was stopped"}


def plan_text(plan: Plan, *, color: bool, width: int | None, summary_only: bool = False) -> str:
    """The whole plan, or with `summary_only` the tasks that cannot be placed, the cost and the summary line.

    `width` is the terminal's width in columns; with None nothing is cut or wrapped. Changes are never cut. A
    long plan has its summary at the top as well, since its end may be far away.
    """
    paint = Paint(color=color)
    summary = summary_lines(plan, paint)
    if summary_only:
        headlines = [headline(alike, paint) for alike in together_alike(plan.unplaced.refusals)]
        return seal([*headlines, *note_lines(plan, paint), *summary], color=color)
    lines = drift_lines(plan, paint) + moved_lines(plan, paint) + part_lines(plan, paint, width)
    lines += [*wrapped(text, width), ""] if (text := adoption_text(plan)) else []
    lines += actions_lines(plan, paint, width)
    if plan.actions or plan.unplaced.refusals:
        lines += block_lines(plan, paint, width)
        lines += rank_lines(plan, paint, width)
        lines += fallback_lines(plan, paint, width)
        lines += queue_lines(plan, paint, width)
    waiting = plan.unplaced.tried_again
    lines += unplaced_lines(plan.unplaced.refusals, paint, waiting=waiting, whole=width is None)
    lines += unstarted_lines(plan, paint, width)
    lines += suggestion_lines(plan, paint)
    lines += difference_lines(plan, paint, width)
    lines += backend_lines(plan, width)
    lines += health_lines(plan.health, paint, width)
    lines += share_lines(plan, paint)
    top = [*wrapped(text, width), ""] if (text := origin_text(plan.origin)) else []
    top += [*summary, ""] if len(lines) > LONG else []
    return seal([*top, *lines, *note_lines(plan, paint), *summary], color=color)


def origin_text(origin: Origin) -> str:
    """`Project lab-prod, state postgresql://…, commit 1a2b3c4d5e6f + changes`; empty if nothing is known."""
    changes = " + changes" if origin.changed else ""
    commit = origin.commit and origin.commit[:COMMIT_DIGITS] + changes
    named = {"project": origin.project, "state": origin.state, "commit": commit}
    text = ", ".join(f"{what} {clean(value)}" for what, value in named.items() if value)
    return text[:1].upper() + text[1:]


def note_lines(plan: Plan, paint: Paint) -> list[str]:
    """What failed before, and the age of the facts on which the plan is based."""
    lines = _ended(plan, paint)
    if (plan.actions or plan.unplaced.refusals) and plan.basis.observed_at is not None:
        lines.append(paint("dim", _observed(plan)))
    return lines


def summary_lines(plan: Plan, paint: Paint) -> list[str]:
    """The cost and the summary line. People and scripts look for the summary line, so it stands alone."""
    if plan.scope.refresh_only and plan.result != "error":
        waiting = differing_text(plan)
        return [paint("bold", _drift_summary(plan)), *([paint("yellow", f"{waiting}.")] if waiting else [])]
    lines = _cost_lines(plan, paint)
    if plan.changes:
        renamed = f", {renames(plan)} to rename" if renames(plan) else ""
        lines.append(paint("bold", f"Plan: {counts(plan)}{renamed}."))
    if plan.restarts:
        lines.append(
            paint("yellow", f"{restart_text(plan.restarts)}: running now, stopped and started again.")
        )
    if plan.stops:
        lines.append(
            paint("yellow", f"{stop_text(plan.stops)}: running now, stopped at once by what is declared now.")
        )
    lines += _nothing_to_do(plan, paint)
    if plan.result not in ("none", "error") and (waiting := differing_text(plan)):
        lines.append(paint("yellow", f"{waiting}."))
    if plan.result == "error":
        errors = [d for d in plan.diagnostics if d.severity.value == "error"]
        lines.append(paint("red", f"The plan cannot be applied: {count_text(errors)}."))
    return lines


def _nothing_to_do(plan: Plan, paint: Paint) -> list[str]:
    """Why there is nothing to do: tasks without a place, or everything is as declared."""
    if plan.unplaced.refusals:
        return [paint("red", f"{'' if plan.actions else 'No changes. '}{unplaced_count(plan)}.")]
    if plan.result not in ("none", "unhealthy"):
        return []
    unhealthy = f"Nothing is changed, but {unwell(plan.health)}." if plan.health else ""
    waiting = "" if plan.result != "none" or plan.observed.drift else differing_text(plan)
    if waiting:
        return [paint("bold", f"No changes now. {waiting}.")]
    return [paint("bold", unhealthy or f"No changes. {_rest(plan)}")]


def renames(plan: Plan) -> int:
    """The number of records that get another address by `moved`."""
    return sum(len(move.addresses) for move in plan.scope.moved)


def _cost_lines(plan: Plan, paint: Paint) -> list[str]:
    cost = plan.preview.cost
    if not plan.actions and cost.before == cost.after:
        return []
    return [
        cost_line(cost) + at_most_text(plan),
        *([paint("dim", prices_line(cost.priced_on))] if cost.priced_on else []),
    ]


def _drift_summary(plan: Plan) -> str:
    if found := len(plan.observed.drift):
        return f"{plural(found, 'difference')} from what is recorded."
    return f"No drift, but {unwell(plan.health)}." if plan.health else "No drift: all is as recorded."


def _rest(plan: Plan) -> str:
    """What remains to be said if there is nothing to do: only what was observed."""
    if plan.scope.part:
        return "Nothing is to be done in this part."
    if plan.observed.drift:
        verb = "is" if plan.observed.ended else "has to be"
        return f"Nothing {verb} done about what changed outside of fleetform."
    if any(d.code == "outside-schedule" for d in plan.diagnostics):
        return "What differs waits for the next start of a `schedule`."
    if any(d.code in LATER for d in plan.diagnostics):
        return "What differs waits until nodes are idle."
    return f"{'Everything else' if plan.observed.ended else 'Everything'} is as declared."


def _ended(plan: Plan, paint: Paint) -> list[str]:
    """Tasks that ended without success and that the plan does not run again."""
    ended = plan.observed.ended
    if not ended:
        return []
    named = and_more((f"{clean(f'task/{name}')} {ENDS[end]}" for name, end in ended), MOST_ENDED)
    again = "runs it again" if len(ended) == 1 else "runs one again"
    command = f"`fleetform apply --replace {clean(f'task/{ended[0][0]}')}`"
    return [paint("yellow", f"Ended: {named}; {command} {again}.")]


def queue_lines(plan: Plan, paint: Paint, width: int | None) -> list[str]:
    """Tasks that wait in their cluster's queue: for whom, and until when."""
    if not plan.preview.queued:
        return []
    lines = ["Queued (they start when others free their nodes):", ""]
    for item in plan.preview.queued:
        when = "when it starts is not known"
        if item.expected is not None:
            when = f"the cluster expects it to start at {iso(item.expected)}"
        elif item.until is not None:
            when = f"the last of them has to end by {iso(item.until)}"
        holders = clean(and_more(item.holders, 3))
        lines += wrapped(
            f"  {paint('yellow', f'task/{clean(item.task)}')} waits for {holders}; {when}", width
        )
    return [*lines, ""]


def suggestion_lines(plan: Plan, paint: Paint) -> list[str]:
    """Moves that would save money. People decide on them: a plan moves nothing that runs."""
    if not plan.preview.suggestions:
        return []
    lines = ["Possible by hand (nothing that runs is moved by a plan):", ""]
    for item in plan.preview.suggestions:
        moves = ", ".join(f"{clean(rank)} to {clean(to)}" for rank, _, to in item.moves)
        lines.append(f"  {clean(item.text)}  {paint('dim', moves)}")
    return [*lines, ""]


def backend_lines(plan: Plan, width: int | None) -> list[str]:
    """How clouds are reached. The lines are the same in every plan, so that another endpoint is visible."""
    if not plan.preview.backends:
        return []
    lines = ["Backends, as declared:", ""]
    for name, inputs in plan.preview.backends.items():
        lines.append(f"  {clean(name)}")
        lines += [piece for line in fields(inputs) for piece in wrapped(f"      {line}", width)]
    return [*lines, ""]


def _observed(plan: Plan) -> str:
    """The age of the facts on which the plan is based."""
    how = "as recorded at" if plan.basis.offline else "observed at"
    return f"Nodes: {how} {iso(plan.basis.observed_at)}; apply looks at each again before it uses it."


def cost_line(cost: Cost) -> str:
    """`Cost: 0.00 → 9.84 USD/h`, of whole nodes; it also names what is unknown."""
    before, after = money(cost.before), money(cost.after)
    without = f"; {' and '.join(map(clean, cost.excludes))} not included" if cost.excludes else ""
    if None in (cost.before, cost.after):
        known = [f"{money(c)} USD/h" if c is not None else "unknown" for c in (cost.before, cost.after)]
        return f"Cost: {' → '.join(dict.fromkeys(known))} (some nodes have no known price){without}"
    change = f"{after} USD/h (unchanged)" if before == after else f"{before} → {after} USD/h"
    return f"Cost: {change}{_above(cost)}{without}"


def _above(cost: Cost) -> str:
    """By how much, at most, the cost exceeds the least possible; empty unless the cost rises."""
    if cost.after is None or cost.before is None or cost.after <= cost.before:
        return ""
    if not cost.bound:
        return " (not compared with the least possible)"
    above = math.ceil(1000 * (cost.after / cost.bound - 1 - SAME)) / 10
    least = f"the least possible{' at known prices' if cost.unpriced else ''}"
    return f" (at most {above:,.1f} % above {least})" if above > 0 else f" ({least})"


def share_lines(plan: Plan, paint: Paint) -> list[str]:
    """What each fleet and task costs, if a limit is exceeded; what costs most comes first."""
    if all(d.code != "over-limit" for d in plan.diagnostics):
        return []
    rows: list[list[Cell]] = []
    fleets = fleet_shares(node for node in plan.preview.nodes if node.stays)
    for fleet in fleets[:MOST_SHARES]:
        rows.append(_share(f"fleet/{clean(fleet.fleet)}", fleet.hourly, plural(fleet.nodes, "node")))
        rows += [_share(f"  task/{clean(t.task)}", t.hourly, "") for t in fleet.tasks[:MOST_SHARES]]
        if rest := len(fleet.tasks[MOST_SHARES:]):
            rows.append([Cell(f"  {plural(rest, 'more task', 'more tasks')}")])
        if fleet.tasks and fleet.idle:
            rows.append(_share("  idle", fleet.idle, ""))
    if rest := len(fleets[MOST_SHARES:]):
        rows.append([Cell(plural(rest, "more fleet", "more fleets"))])
    return ["What costs most, USD an hour and a month:", "", *columns(rows, paint), ""]


def _share(name: str, hourly: float | None, note: str) -> list[Cell]:
    month = "unknown" if hourly is None else f"{hourly * HOURS_A_MONTH:,.2f}"
    return [Cell(name), Cell(money(hourly), right=True), Cell(month, right=True), Cell(note)]


def prices_line(priced_on: Mapping[str, str], today: date | None = None) -> str:
    """`Prices of aws as of 2025-03-02`, and their age if old: nothing renews a shipped catalog."""
    today = today or datetime.now(UTC).date()
    ages = {day: (today - date.fromisoformat(day)).days for day in priced_on.values()}
    days = ", ".join(
        f"of {clean(name)} as of {clean(day)}" + (f" ({ages[day]:,} days ago)" if ages[day] > OLD else "")
        for name, day in priced_on.items()
    )
    old = any(age > OLD for age in ages.values())
    rest = "a newer fleetform may have newer ones, and" if old else "and"
    return f"Prices {days}; what is billed may differ, {rest} `catalog` takes prices of your own."


def drift_lines(plan: Plan, paint: Paint) -> list[str]:
    """What others changed outside of fleetform."""
    out: list[str] = []
    if plan.observed.drift:
        out += [f"{CHANGED}:", "", *drift_rows(plan.observed.drift, paint), ""]
    if kinds := {d.address.partition("/")[0] for d in plan.observed.drift if d.change == "orphan"}:
        adopt = "" if kinds.isdisjoint(ADOPTED) else "`fleetform state adopt ADDRESS` records one, "
        most = "all" if kinds.isdisjoint(PROTECTABLE) else "all that have no `prevent_destroy`"
        out += [f"Orphans: {adopt}`fleetform destroy --orphans` deletes {most}.", ""]
    if vanished := plan.observed.vanished:
        backend = paint("yellow", f"{plural(len(vanished), 'thing')} of one backend vanished at once:")
        out += [f"{backend} {', '.join(map(clean, vanished))}"]
        out += ["That may be the backend's fault: check it before they are made anew or forgotten.", ""]
    return out


def moved_lines(plan: Plan, paint: Paint) -> list[str]:
    """Renamed records; a rename makes and restarts nothing."""
    if not plan.scope.moved:
        return []
    rows = [
        [Cell(clean(move.target), "bold"), Cell(f"# moved from {clean(move.source)}{_how_many(move)}")]
        for move in plan.scope.moved
    ]
    return ["Renamed by `moved`; running ranks go on:", "", *columns(rows, paint), ""]


def part_lines(plan: Plan, paint: Paint, width: int | None) -> list[str]:
    """How `--target` and `--exclude` limit the plan."""
    part = plan.scope.part
    if part is None:
        return []
    given = [f"--target {t}" for t in part.targets] + [f"--exclude {t}" for t in part.excludes]
    lines = [f"Only a part of the plan: {clean(' '.join(given))}"]
    rest = [address for address in part.left_out if address not in part.held_up]
    # What only deletes needs the deletes of what depends on it.
    deletes = all(action.op is Op.DELETE for action in plan.actions)
    for what, found in (
        (f"With it, as it {'depends on this' if deletes else 'is needed'}", part.needed),
        ("Not done, because of what is excluded", part.held_up),
        ("Left for another time", rest),
    ):
        if found:
            lines += wrapped(f"  {what}: {', '.join(host_lists(map(clean, found)))}", width)
    return [paint("yellow", lines[0]), *lines[1:], ""]


def _how_many(move: Renamed) -> str:
    return f" ({plural(len(move.addresses), 'record')})" if len(move.addresses) > 1 else ""
