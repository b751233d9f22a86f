"""A plan as text, to be read from top to bottom: changes by others, actions, the block map, places of ranks,
tasks that cannot be placed, cost, and a summary line.

The plan's diagnostics are not included: `diagnostics_text` writes them to stderr.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime

from declarative.model.inputs import OfferInputs
from declarative.model.spec.project import HOURS_A_MONTH
from declarative.model.state import ADOPTED, PROTECTABLE, rank_name
from declarative.model.text import and_more, clean, host_lists, ranges, show_mib
from declarative.placement.problem import SUCH_AS, Refusal, Rejection, Verdict
from declarative.planner.fallbacks import hourly_at_most, stand_ins
from declarative.planner.plan import (
    Cost,
    NodePreview,
    Op,
    Origin,
    Plan,
    Reservation,
    ReservationStatus,
    fleet_shares,
)
from declarative.render.actions import (
    actions_lines,
    adoption_text,
    counts,
    difference_lines,
    differing_count,
    differing_text,
    fields,
    unplaced_count,
    unstarted_lines,
)
from declarative.render.diagnostics import count_text, diagnostics_text
from declarative.render.output_json import iso
from declarative.render.status import CHANGED, Row, drift_rows, health_lines, map_lines, nothing_text, unwell
from declarative.render.text import (
    PLAIN,
    Cell,
    Paint,
    cells,
    columns,
    folded,
    money,
    plural,
    seal,
    sentence,
    titled,
    wrapped,
)

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
BY_HAND = "Possible by hand (nothing that runs is moved by a plan)"
MOST_SHARES = 10
"""At most so many fleets, and tasks of a fleet, are listed with their cost."""
MOST_ENDED = 5
"""At most so many tasks that ended without success are named."""
SAME_PRICE = 5e-5
"""USD an hour; less is not shown."""
MOST_APART = 3
"""So many neighbouring zones become `us-east-1b…d`."""
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
    lines = drift_lines(plan, paint)
    lines += titled("Renamed by `moved`; running ranks go on", moved_lines(plan, paint))
    lines += part_lines(plan, paint, width)
    lines += [*wrapped(text, width), ""] if (text := adoption_text(plan)) else []
    lines += actions_lines(plan, paint, width)
    if plan.actions or plan.unplaced.refusals:
        lines += titled("Blocks after apply", block_lines(plan, paint, width))
        lines += titled("Ranks", rank_lines(plan, paint, width))
        lines += titled("Fallbacks (USD/h)", fallback_lines(plan, paint, width))
        queued = "Queued (they start when others free their nodes)"
        lines += titled(queued, queue_lines(plan, paint, width))
    waiting = plan.unplaced.tried_again
    refused = unplaced_lines(plan.unplaced.refusals, paint, waiting=waiting, whole=width is None)
    lines += titled("Cannot be placed", refused)
    unstarted = "Not done by this plan, since there is no place for it"
    lines += titled(unstarted, unstarted_lines(plan, paint, width))
    lines += titled(BY_HAND, suggestion_lines(plan, paint))
    differing = "Declared by now, and not what nodes were made with"
    lines += titled(differing, difference_lines(plan, paint, width))
    lines += titled("Backends, as declared", backend_lines(plan, width))
    lines += health_lines(plan.health, paint, width)
    lines += titled("What costs most, USD an hour and a month", share_lines(plan, paint))
    top = [*wrapped(text, width), ""] if (text := origin_text(plan.origin)) else []
    top += [*summary, ""] if len(lines) > LONG else []
    return seal([*top, *lines, *note_lines(plan, paint), *summary], color=color)


def report_parts(plan: Plan) -> dict[str, tuple[str, list[str]]]:
    """The parts that reports of all forms have: name → title and lines, without colour and at any width."""
    waiting = plan.unplaced.tried_again
    return {
        "findings": ("Errors and warnings", diagnostics_text(plan.diagnostics, color=False).splitlines()),
        "shares": ("What costs most, USD an hour and a month", share_lines(plan, PLAIN)),
        "unplaced": (
            "Cannot be placed",
            unplaced_lines(plan.unplaced.refusals, PLAIN, waiting=waiting, whole=True),
        ),
        "fallbacks": ("If offers are sold out", fallback_lines(plan, PLAIN, None)),
        "queued": ("Queued", queue_lines(plan, PLAIN, None)),
        "moved": ("Renamed", moved_lines(plan, PLAIN)),
        "part": ("Only a part of the plan", part_lines(plan, PLAIN, None)),
        "drift": (CHANGED, drift_lines(plan, PLAIN)),
        "health": ("Not well", health_lines(plan.health, PLAIN, None)),
        "unstarted": ("Not started, since there is no place", unstarted_lines(plan, PLAIN, None)),
        "by-hand": ("Possible by hand", suggestion_lines(plan, PLAIN)),
        "differences": (
            "Made with other values than are declared by now",
            difference_lines(plan, PLAIN, None),
        ),
        "backends": ("Backends, as declared", backend_lines(plan, None)),
        "notes": ("How old the facts are", note_lines(plan, PLAIN)),
    }


def origin_text(origin: Origin) -> str:
    """`Project lab-prod, state postgresql://…, commit 1a2b3c4d5e6f + changes`; empty if nothing is known."""
    changes = " + changes" if origin.changed else ""
    commit = origin.commit and origin.commit[:COMMIT_DIGITS] + changes
    named = {"project": origin.project, "state": origin.state, "commit": commit}
    text = ", ".join(f"{what} {clean(value)}" for what, value in named.items() if value)
    return text[:1].upper() + text[1:]


def note_lines(plan: Plan, paint: Paint) -> list[str]:
    """What failed before, and the age of the facts on which the plan is based."""
    lines = []
    if ended := plan.observed.ended:  # without success, and the plan does not run them again
        named = and_more((f"{clean(f'task/{name}')} {ENDS[end]}" for name, end in ended), MOST_ENDED)
        command = f"`fleetform apply --replace {clean(f'task/{ended[0][0]}')}`"
        runs = "runs it again" if len(ended) == 1 else "runs one again"
        lines.append(paint("yellow", f"Ended: {named}; {command} {runs}."))
    if (plan.actions or plan.unplaced.refusals) and plan.basis.observed_at is not None:
        looked_at = (
            f"{'as recorded at' if plan.basis.offline else 'observed at'} {iso(plan.basis.observed_at)}"
        )
        lines.append(paint("dim", f"Nodes: {looked_at}; apply looks at each again before it uses it."))
    return lines


def summary_lines(plan: Plan, paint: Paint) -> list[str]:
    """The cost and the summary line. People and scripts look for the summary line, so it stands alone."""
    if plan.scope.refresh_only and plan.result != "error":
        drift = f"No drift, but {unwell(plan.health)}." if plan.health else "No drift: all is as recorded."
        if count := len(plan.observed.drift):
            drift = f"{plural(count, 'difference')} from what is recorded."
        waiting = differing_text(plan)
        return [paint("bold", drift), *([paint("yellow", f"{waiting}.")] if waiting else [])]
    lines, cost = [], plan.preview.cost
    if plan.actions or cost.before != cost.after:
        lines.append(cost_line(cost) + at_most_text(plan))
        if cost.priced_on:
            lines.append(paint("dim", prices_line(cost.priced_on)))
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
    if plan.unplaced.refusals:
        lines.append(paint("red", f"{'' if plan.actions else 'No changes. '}{unplaced_count(plan)}."))
    elif plan.result in ("none", "unhealthy"):
        lines.append(paint("bold", _nothing_to_do(plan)))
    if plan.result not in ("none", "error") and (waiting := differing_text(plan)):
        lines.append(paint("yellow", f"{waiting}."))
    if plan.result == "error":
        errors = [d for d in plan.diagnostics if d.severity.value == "error"]
        lines.append(paint("red", f"The plan cannot be applied: {count_text(errors)}."))
    return lines


def _nothing_to_do(plan: Plan) -> str:
    """The summary of a plan without changes: what is not well, what waits, or what was only observed."""
    if plan.result == "none" and not plan.observed.drift and (waiting := differing_text(plan)):
        return f"No changes now. {waiting}."
    if plan.health:
        return f"Nothing is changed, but {unwell(plan.health)}."
    codes = {d.code for d in plan.diagnostics}
    if plan.scope.part:
        rest = "Nothing is to be done in this part."
    elif plan.observed.drift:
        verb = "is" if plan.observed.ended else "has to be"
        rest = f"Nothing {verb} done about what changed outside of fleetform."
    elif "outside-schedule" in codes:
        rest = "What differs waits for the next start of a `schedule`."
    elif codes & LATER:
        rest = "What differs waits until nodes are idle."
    else:
        rest = f"{'Everything else' if plan.observed.ended else 'Everything'} is as declared."
    return f"No changes. {rest}"


def plan_title(plan: Plan) -> str:
    """`2 to create, 1 task cannot be placed`: what a plan comes to, for the title of a report."""
    if plan.scope.refresh_only:
        differences = len(plan.observed.drift)
        return f"{plural(differences, 'difference')} from what is recorded" if differences else "no drift"
    summary = {**plan.summary(), "rename": renames(plan)}
    texts = [f"{count} to {change}" for change, count in summary.items() if count]
    if refused := len(plan.unplaced.refusals):
        texts.append(f"{plural(refused, 'task')} cannot be placed")
    differ = differing_count(plan)
    return ", ".join([*(texts or [nothing_text(plan)]), *([differ] if differ else [])])


def renames(plan: Plan) -> int:
    """The number of records that get another address by `moved`."""
    return sum(len(move.addresses) for move in plan.scope.moved)


def queue_lines(plan: Plan, paint: Paint, width: int | None) -> list[str]:
    """Tasks that wait in their cluster's queue: for whom, and until when."""
    lines = []
    for waiting in plan.preview.queued:
        when = "when it starts is not known"
        if waiting.expected is not None:
            when = f"the cluster expects it to start at {iso(waiting.expected)}"
        elif waiting.until is not None:
            when = f"the last of them has to end by {iso(waiting.until)}"
        holders = clean(and_more(waiting.holders, 3))
        lines += wrapped(
            f"  {paint('yellow', f'task/{clean(waiting.task)}')} waits for {holders}; {when}", width
        )
    return lines


def suggestion_lines(plan: Plan, paint: Paint) -> list[str]:
    """Moves that would save money. People decide on them: a plan moves nothing that runs."""
    lines = []
    for suggestion in plan.preview.suggestions:
        moves = ", ".join(f"{clean(rank)} to {clean(to)}" for rank, _, to in suggestion.moves)
        lines.append(f"  {clean(suggestion.text)}  {paint('dim', moves)}")
    return lines


def backend_lines(plan: Plan, width: int | None) -> list[str]:
    """How clouds are reached. The lines are the same in every plan, so that another endpoint is visible."""
    lines = []
    for name, inputs in plan.preview.backends.items():
        lines.append(f"  {clean(name)}")
        lines += [piece for line in fields(inputs) for piece in wrapped(f"      {line}", width)]
    return lines


def cost_line(cost: Cost) -> str:
    """`Cost: 0.00 → 9.84 USD/h`, of whole nodes; it also names what is unknown, and if the cost rises, by how
    much it exceeds the least possible.
    """
    before, after = money(cost.before), money(cost.after)
    without = f"; {' and '.join(map(clean, cost.excludes))} not included" if cost.excludes else ""
    if None in (cost.before, cost.after):
        known = [f"{money(c)} USD/h" if c is not None else "unknown" for c in (cost.before, cost.after)]
        return f"Cost: {' → '.join(dict.fromkeys(known))} (some nodes have no known price){without}"
    change = f"{after} USD/h (unchanged)" if before == after else f"{before} → {after} USD/h"
    if cost.after is None or cost.before is None or cost.after <= cost.before:
        above = ""
    elif not cost.bound:
        above = " (not compared with the least possible)"
    else:
        percent = math.ceil(1000 * (cost.after / cost.bound - 1 - SAME)) / 10
        least = f"the least possible{' at known prices' if cost.unpriced else ''}"
        above = f" (at most {percent:,.1f} % above {least})" if percent > 0 else f" ({least})"
    return f"Cost: {change}{above}{without}"


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
    return columns(rows, paint)


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
    rows = []
    for move in plan.scope.moved:
        count = f" ({plural(len(move.addresses), 'record')})" if len(move.addresses) > 1 else ""
        rows.append([Cell(clean(move.target), "bold"), Cell(f"# moved from {clean(move.source)}{count}")])
    return columns(rows, paint)


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
    for what, addresses in (
        (f"With it, as it {'depends on this' if deletes else 'is needed'}", part.needed),
        ("Not done, because of what is excluded", part.held_up),
        ("Left for another time", rest),
    ):
        if addresses:
            lines += wrapped(f"  {what}: {', '.join(host_lists(map(clean, addresses)))}", width)
    return [paint("yellow", lines[0]), *lines[1:], ""]


# ------------------------------------------------------ what is launched where planned offers are sold out


def fallback_lines(plan: Plan, paint: Paint, width: int | None) -> list[str]:
    """A line for all nodes with the same fallbacks: `us-east-1b…f, at most 36.05`."""
    alike: dict[str, list[str]] = {}
    for stand_in in stand_ins(plan):
        kinds: dict[tuple[str, str, bool], list[OfferInputs]] = {}
        for offer in stand_in.offers:
            kinds.setdefault((offer.backend, offer.instance_type, offer.spot), []).append(offer)
        texts = [_offers_text(stand_in.planned, offers) for offers in kinds.values()]
        price = "at an unknown price" if stand_in.at_most is None else f"at most {money(stand_in.at_most)}"
        alike.setdefault(f"{'; '.join(texts)}, {price}", []).extend(stand_in.names)
    lines = []
    for text, names in alike.items():
        nodes = ", ".join(host_lists(clean(f"node/{name}") for name in names))
        each = " each" if len(names) > 1 else ""
        lines += wrapped(f"  {paint('bold', nodes)}  if sold out: {text}{each}", width)
    return lines


def at_most_text(plan: Plan) -> str:
    """What follows the cost if fallbacks may make it higher: `; at most 36.05 if offers are sold out`."""
    after, most = plan.preview.cost.after, hourly_at_most(plan)
    if after is None or (most is not None and most <= after + SAME_PRICE):
        return ""
    amount = f"at most {money(most)}" if most is not None else "an unknown price"
    return f"; {amount} if offers are sold out"


def _offers_text(planned: OfferInputs | None, offers: Sequence[OfferInputs]) -> str:
    """The places of offers of one type, and whatever else differs from the planned offer."""
    first = offers[0]
    places = ", ".join(_places([clean(offer.zone or offer.region) for offer in offers]))
    type_ = "" if planned and planned.instance_type == first.instance_type else clean(first.instance_type)
    backend = "" if planned and planned.backend == first.backend else f"of {clean(first.backend)}"
    spot = "" if planned and planned.spot == first.spot else "as spot" if first.spot else "on demand"
    kind = " ".join(text for text in (type_, backend, spot) if text)
    return f"{kind} in {places}" if kind else places


def _places(names: Sequence[str]) -> Iterator[str]:
    """The places, neighbours in the alphabet together: `us-east-1b…f`."""
    runs: list[list[str]] = []
    for name in sorted(dict.fromkeys(names)):
        last = runs[-1][-1] if runs else ""
        follows = (
            last[:-1] == name[:-1] and last[-1:].isalpha() and ord(name[-1:] or "\0") == ord(last[-1]) + 1
        )
        if follows:
            runs[-1].append(name)
        else:
            runs.append([name])
    for run in runs:
        if len(run) >= MOST_APART:
            yield f"{run[0]}…{run[-1][-1]}"
        else:
            yield from run


# ---------------------------------------------------------------------- why tasks cannot be placed


LISTED = 7
"""Up to so many rejections are shown one by one; more are grouped by code."""
NAMES = ("gpu_model", "gpu_vendor")
"""Missing properties that are names, not numbers."""
NAMED = 3
DETAILED = 20
"""The first so many refusals are shown in full, further ones by their first line."""
VERDICT_WORDS = {Verdict.CAUSE: "cause", Verdict.FITS: "fits", Verdict.NOT_TRIED: "not tried"}
WAITS = "`retry`: it stays pending, and every `fleetform apply` tries again"
SLEEPS = "`schedule`: it stays pending until then, and holds up nothing else"


def unplaced_lines(
    refusals: Sequence[Refusal],
    paint: Paint,
    *,
    waiting: Collection[str] = frozenset(),
    whole: bool = False,
) -> list[str]:
    """All refusals, similar ones together (waiting tasks apart), with empty lines between them.

    Of many, the later ones have only their first line, unless `whole`.
    """
    groups = [
        group
        for alike in together_alike(refusals)
        for waits in (False, True)
        if (group := [r for r in alike if (r.task in waiting) == waits])
    ]
    most = len(groups) if whole else DETAILED
    out: list[str] = []
    for alike in groups[:most]:
        out += [*([""] if out else []), *_refusal(alike, paint, waits=alike[0].task in waiting)]
    if len(groups) > most:
        out += ["", "More, without their reasons (`fleetform plan --json` has them):", ""]
        out += [headline(alike, paint) for alike in groups[most:]]
    return out


def together_alike(refusals: Sequence[Refusal]) -> list[list[Refusal]]:
    """Refusals with the same text for different tasks, in the order of their first tasks."""
    by_text: dict[tuple[object, ...], list[list[Refusal]]] = {}
    out: list[list[Refusal]] = []
    for refusal in refusals:
        key = (refusal.code, refusal.summary, refusal.hint, len(refusal.ranks))
        same = by_text.setdefault(key, [])
        group = next((g for g in same if g[0].ranks == refusal.ranks), None)
        if group is None:
            group = []
            same.append(group)
            out.append(group)
        group.append(refusal)
    return out


def headline(alike: Sequence[Refusal], paint: Paint) -> str:
    """`task/big[never-fits]: …`; for many similar ones `task/big-[0-199][never-fits]: 200 alike, each …`."""
    first = alike[0]
    tasks = host_lists([r.task for r in alike])  # names that differ only in numbers become one
    name = paint("bold", and_more((f"task/{names}" for names in tasks), NAMED))
    count = f"{len(alike)} tasks alike, each " if len(alike) > 1 else ""
    return f"  {name}{paint('red', f'[{clean(first.code)}]')}: {count}{sentence(first.summary)}"


def _refusal(alike: Sequence[Refusal], paint: Paint, *, waits: bool) -> Iterator[str]:
    refusal = alike[0]
    yield headline(alike, paint)
    reasons = any(verdict.rejections for verdict in refusal.ranks)
    # A cause stands alone; neighbours with the same other verdict share a line.
    runs = itertools.groupby(refusal.ranks if reasons else (), key=lambda rank: rank.verdict)
    for verdict, neighbours in runs:
        ranks = list(neighbours)
        if verdict is Verdict.CAUSE:
            for rank in ranks:
                yield f"    rank {rank.rank}: {paint('red', 'cause')}"
                yield from _rejections(rank.rejections, paint)
        else:
            numbers = ranges(rank.rank for rank in ranks)
            yield f"    {'rank' if len(ranks) == 1 else 'ranks'} {numbers}: {VERDICT_WORDS[verdict]}"
    if refusal.hint:
        yield f"    {paint('cyan', '=')} hint: {sentence(refusal.hint)}"
    if waits:
        yield f"    {paint('cyan', '=')} {WAITS}"
    elif refusal.starts is not None:
        yield f"    {paint('cyan', '=')} {SLEEPS}"


def _rejections(rejections: Sequence[Rejection], paint: Paint) -> list[str]:
    if len(rejections) <= LISTED and all(r.count == 1 for r in rejections):
        rows = [
            [Cell(clean(r.target)), Cell(clean(r.code)), Cell(sentence(r.detail) + missing_text([r.short]))]
            for r in rejections
        ]
    else:
        groups: dict[str, list[Rejection]] = {}
        for rejection in rejections:
            groups.setdefault(rejection.code, []).append(rejection)
        rows = [
            [Cell(str(sum(r.count for r in alike)), right=True), Cell(clean(code)), Cell(_group(alike))]
            for code, alike in groups.items()
        ]
    return columns(rows, paint, indent=" " * 6)


def _group(alike: Sequence[Rejection]) -> str:
    """Some of the targets, the detail of the nearest one, and the bounds of what is missing.

    If some targets are only counted, their bounds are unknown; then only the nearest one's shortage is shown.
    """
    single = [r for r in alike if r.count == 1]
    named = [clean(r.target) for r in single[:NAMED]]
    names, rest = ", ".join(named), sum(r.count for r in alike) - len(named)
    if rest:
        names = f"{names} and {rest} more" if names else f"{rest} of them"
    nearest = min(alike, key=lambda r: (sum(map(abs, r.short.values())), r.count == 1))
    detail = nearest.detail.partition(SUCH_AS)[2] if nearest.count > 1 else nearest.detail
    if any(r.detail != nearest.detail for r in alike):
        detail = f"{'the nearest: ' if nearest.short else 'e.g. '}{detail}"
    bounds = alike if len(single) == len(alike) else [nearest]
    return f"{names}: {sentence(detail)}{missing_text(r.short for r in bounds)}"


def missing_text(shorts: Iterable[Mapping[str, float]]) -> str:
    """`; short by 2 to 6 blocks`, `; over by 2GB memory`: the bounds over all of them."""
    numbers: dict[str, list[float]] = {}
    for short in shorts:
        for key in short.keys() - set(NAMES):
            numbers.setdefault(key, []).append(short[key])
    texts = []
    for key, of_key in sorted(numbers.items()):
        low, high = min(of_key), max(of_key)
        over = high < 0 or key == "price"
        ends = sorted((abs(low), abs(high))) if high < 0 else (low, high)
        sizes = [show_mib(int(n)) if key.endswith("_mib") else f"{n:g}" for n in ends]
        noun = "USD/h" if key == "price" else clean(key).removesuffix("_mib").replace("_", " ")
        noun = noun.removesuffix("s") if sizes == ["1", "1"] else noun
        texts.append(f"{'over' if over else 'short'} by {' to '.join(dict.fromkeys(sizes))} {noun}")
    return f"; {', '.join(texts)}" if texts else ""


# ------------------------------------------------------------------------- the block map, and the ranks

MOST_UNCHANGED = 20
"""Up to so many unchanged nodes or ranks get a line each; more are only counted."""
STATUS = {
    ReservationStatus.NEW: "green",
    ReservationStatus.KEPT: None,
    ReservationStatus.RELEASED: "red",
}


def block_lines(plan: Plan, paint: Paint, width: int | None) -> list[str]:
    """The block map after the plan. Many nodes to which nothing happens are shown only as a sum."""
    ops = ops_of(plan, "node")
    notes = notes_of_nodes(plan)
    hidden = [node for node in plan.preview.nodes if node.status == "kept" and node.state == "ready"]
    if len(hidden) > MOST_UNCHANGED:
        outcomes = outcome_of_ranks(plan)
        changing = {r.node for r in plan.reservations if outcomes[_name(r)] != "kept"} | ops.keys()
        hidden = [node for node in hidden if node.name not in changing]
    if len(hidden) <= MOST_UNCHANGED:
        hidden = []
    names = {node.name for node in hidden}
    shown = [node for node in plan.preview.nodes if node.name not in names]
    lines = map_lines(
        [node_row(n, ops.get(n.name, set()), notes.get(n.name, "")) for n in shown], paint, width
    )
    if hidden:
        busy, total = blocks_in_use(hidden)
        lines.append(f"  … {len(hidden)} more nodes, unchanged, {busy}/{total} busy")
    return lines


def blocks_in_use(nodes: Sequence[NodePreview]) -> tuple[int, int]:
    """How many blocks of the nodes are reserved, and how many they have."""
    return sum(len(node.holders) for node in nodes), sum(node.total for node in nodes)


def ops_of(plan: Plan, kind: str) -> dict[str, set[Op]]:
    """The operation on each thing of a kind, by its name."""
    ops: dict[str, set[Op]] = {}
    for action in plan.actions:
        if action.address.kind == kind:
            ops.setdefault(action.address.name, set()).add(action.op)
    return ops


def notes_of_nodes(plan: Plan) -> dict[str, str]:
    """`, 2 ranks restart, 1 rank stops`, by node: ranks that run there, and do not run on."""
    restarts = Counter(r.node for r in plan.reservations if r.restart)
    stopped = stopped_ranks(plan)
    stops = Counter(
        r.node
        for r in plan.reservations
        if r.status is not ReservationStatus.RELEASED and _name(r) in stopped
    )
    notes = {name: f", {restart_text(count)}" for name, count in restarts.items()}
    return notes | {name: f"{notes.get(name, '')}, {stop_text(count)}" for name, count in stops.items()}


def stopped_ranks(plan: Plan) -> frozenset[str]:
    """The running ranks that a changed limit or schedule stops, by name."""
    return frozenset(action.address.name for action in plan.actions if action.stops)


def node_row(node: NodePreview, ops: set[Op], ranks: str = "") -> Row:
    """A line of the block map: what happens to the node, and to `ranks` on it (`notes_of_nodes`)."""
    if node.status == "deleted":
        return Row(node=node.name, total=node.total, holders=None, note="deleted", style="red")
    if node.status == "new":
        note, style = ("replaced", "red") if Op.DELETE in ops else ("new", "green")
        price = "price unknown" if node.price is None else f"{money(node.price)} USD/h" if node.price else ""
        note += "".join(f", {text}" for text in (price, "spot" if node.spot else "") if text) + ranks
        return Row(node=node.name, total=node.total, holders=node.holders, note=note, style=style)
    changed = "changed" if Op.UPDATE in ops else "kept"
    note = (changed if node.state == "ready" else f"{changed}, {node.state}") + ranks
    warn = None if note == "kept" else "yellow"
    return Row(node=node.name, total=node.total, holders=node.holders, note=note, style=warn)


def _name(reservation: Reservation) -> str:
    return rank_name(reservation.task, reservation.rank)


def outcome_of_ranks(plan: Plan) -> dict[str, str]:
    """What happens to each rank that holds or will hold blocks, by its name."""
    ops, stopped = ops_of(plan, "rank"), stopped_ranks(plan)
    queued = {entry.task for entry in plan.preview.queued}
    out: dict[str, str] = {}
    for reservation in plan.reservations:
        name, what = _name(reservation), ""
        of_rank = ops.get(name, set())
        if name in stopped and reservation.status is not ReservationStatus.RELEASED:
            what = "stops"
        elif reservation.task in queued:
            what = "queued"
        elif reservation.restart:
            what = "restarts"
        elif Op.UPDATE in of_rank:
            what = "changes"
        elif of_rank and reservation.status is ReservationStatus.KEPT:  # else its blocks show it
            what = "starts" if Op.CREATE in of_rank else "stops"
        out[name] = f"{reservation.status.value}, {what}" if what else reservation.status.value
    return out


def rank_lines(plan: Plan, paint: Paint, width: int | None) -> list[str]:
    """The table of ranks: task, rank → node → blocks → volumes → price → status."""
    outcomes = outcome_of_ranks(plan)
    kept = [r for r in plan.reservations if outcomes[_name(r)] == "kept"]
    hide = len(kept) > MOST_UNCHANGED
    shown = [r for r in plan.reservations if not (hide and outcomes[_name(r)] == "kept")]
    lines: list[str] = []
    sums = _sums(plan.reservations)
    if shown:
        volumes = [
            [f"{clean(path)}={clean(name)}" for path, name in sorted(r.volumes.items())] for r in shown
        ]
        names = max(cells(r.task) + cells(r.node) for r in shown)
        on_one_line = names + 44 + max(cells(", ".join(mounts)) for mounts in volumes)
        one_each = width is not None and on_one_line > width
        head = ["task", "rank", "node", "blocks", "volumes" if any(volumes) else "", "USD/h", "status"]
        rows = [[Cell(text, "dim", right=text in {"rank", "USD/h"}) for text in head]]
        none = Cell("")
        for task, ranks in itertools.groupby(zip(shown, volumes, strict=True), key=lambda pair: pair[0].task):
            for reservation, mounts in ranks:
                outcome = outcomes[_name(reservation)]
                first, *more = mounts if one_each and mounts else [", ".join(mounts)]
                warn = outcome in ("kept, restarts", "kept, stops")
                rows.append(
                    [
                        Cell(clean(reservation.task)),
                        Cell(str(reservation.rank), right=True),
                        Cell(clean(reservation.node)),
                        Cell(f"{ranges(reservation.blocks)} of {reservation.total_blocks}"),
                        Cell(first),
                        Cell(share(reservation.price), right=True),
                        Cell(outcome, "yellow" if warn else STATUS[reservation.status]),
                    ]
                )
                rows += [[none, none, none, none, Cell(text), none, none] for text in more]
            if task in sums:
                every = Cell("all", right=True)
                rows.append([Cell(clean(task)), every, none, none, none, Cell(sums[task], right=True), none])
        lines = columns(folded(rows), paint)
    if hide:
        lines.append(f"  … {len(kept)} more ranks, unchanged")
    return lines


def _sums(reservations: Sequence[Reservation]) -> dict[str, str]:
    """What each task of several ranks pays for all of them. Unknown if one price is unknown, left out if
    zero.
    """
    prices: dict[str, list[float | None]] = {}
    for reservation in reservations:
        if reservation.status is not ReservationStatus.RELEASED:
            prices.setdefault(reservation.task, []).append(reservation.price)
    return {
        task: share(None if None in of_task else sum(p for p in of_task if p is not None))
        for task, of_task in prices.items()
        if len(of_task) > 1 and any(p != 0 for p in of_task)
    }


def share(price: float | None) -> str:
    """A price in a table; `?` if it is unknown."""
    return "?" if price is None else money(price)


def restart_text(count: int) -> str:
    """`2 ranks restart`."""
    return f"{plural(count, 'rank')} {'restarts' if count == 1 else 'restart'}"


def stop_text(count: int) -> str:
    """`2 ranks stop`."""
    return f"{plural(count, 'rank')} {'stops' if count == 1 else 'stop'}"
