"""The tables of a plan: the block map, the places of ranks, and why tasks cannot be placed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from declarative.model.diagnostic import and_more
from declarative.model.spec.values import show_mib
from declarative.model.state import rank_name
from declarative.model.text import clean, host_lists, ranges
from declarative.placement.problem import SUCH_AS, RankVerdict, Refusal, Rejection, Verdict
from declarative.planner.plan import NodePreview, Op, Plan, Reservation, ReservationStatus
from declarative.render.status import Row, map_lines
from declarative.render.text import Cell, Paint, cells, columns, folded, money, plural, sentence

LISTED = 7
"""Up to so many rejections are shown one by one; more are grouped by code."""
NAMES = ("gpu_model", "gpu_vendor")
"""Missing properties that are names, not numbers."""
NAMED = 3
DETAILED = 20
"""The first so many refusals are shown in full, further ones by their first line."""
WORDS = {Verdict.FITS: "fits", Verdict.NOT_TRIED: "not tried"}
WAITS = "`retry`: it stays pending, and every `fleetform apply` tries again"
SLEEPS = "`schedule`: it stays pending until then, and holds up nothing else"


def unplaced_lines(
    refusals: Sequence[Refusal],
    paint: Paint,
    *,
    waiting: Collection[str] = frozenset(),
    whole: bool = False,
) -> list[str]:
    """All refusals, similar ones together (waiting tasks apart), each followed by an empty line.

    Of many, the later ones have only their first line, unless `whole`.
    """
    if not refusals:
        return []
    out = ["Cannot be placed:", ""]
    groups = [
        group
        for alike in together_alike(refusals)
        for waits in (False, True)
        if (group := [r for r in alike if (r.task in waiting) == waits])
    ]
    most = len(groups) if whole else DETAILED
    for alike in groups[:most]:
        out += [*_refusal(alike, paint, waits=alike[0].task in waiting), ""]
    if len(groups) > most:
        out += ["More, without their reasons (`fleetform plan --json` has them):", ""]
        out += [*(headline(alike, paint) for alike in groups[most:]), ""]
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
    for verdict in _together(refusal.ranks) if reasons else ():
        if isinstance(verdict, RankVerdict):
            yield f"    rank {verdict.rank}: {paint('red', 'cause')}"
            yield from _rejections(verdict.rejections, paint)
        else:
            words, ranks_alike = verdict
            yield f"    {'rank' if len(ranks_alike) == 1 else 'ranks'} {ranges(ranks_alike)}: {words}"
    if refusal.hint:
        yield f"    {paint('cyan', '=')} hint: {sentence(refusal.hint)}"
    if waits:
        yield f"    {paint('cyan', '=')} {WAITS}"
    elif refusal.starts is not None:
        yield f"    {paint('cyan', '=')} {SLEEPS}"


def _together(ranks: Sequence[RankVerdict]) -> Iterator[RankVerdict | tuple[str, list[int]]]:
    """Causes one by one; neighbours with the same other verdict become one item."""
    words = ""
    numbers: list[int] = []
    for item in ranks:
        verdict = WORDS.get(item.verdict, "")
        if numbers and verdict != words:
            yield words, numbers
            numbers = []
        words = verdict
        if item.verdict is Verdict.CAUSE:
            yield item
        else:
            numbers.append(item.rank)
    if numbers:
        yield words, numbers


def _rejections(rejections: Sequence[Rejection], paint: Paint) -> list[str]:
    if len(rejections) <= LISTED and all(r.count == 1 for r in rejections):
        rows = [
            [Cell(clean(r.target)), Cell(clean(r.code)), Cell(sentence(r.detail) + _missing([r]))]
            for r in rejections
        ]
    else:
        groups: dict[str, list[Rejection]] = {}
        for item in rejections:
            groups.setdefault(item.code, []).append(item)
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
    return f"{names}: {sentence(detail)}{_missing(bounds)}"


def _missing(alike: Sequence[Rejection]) -> str:
    """`; short by blocks 2-6`, `; over by memory 2GB`: bounds over all of them."""
    bounds: dict[str, tuple[float, float]] = {}
    for item in alike:
        for key, number in item.short.items():
            if key in NAMES:
                continue
            low, high = bounds.get(key, (number, number))
            bounds[key] = (min(low, number), max(high, number))
    texts = [_bound(key, *bounds[key]) for key in sorted(bounds)]
    return f"; {', '.join(texts)}" if texts else ""


def _bound(key: str, low: float, high: float) -> str:
    if key == "price":
        return f"over by {_span('', low, high)} USD/h"
    word = "over by" if high < 0 else "short by"
    low, high = sorted((abs(low), abs(high))) if high < 0 else (low, high)
    noun = clean(key).removesuffix("_mib").replace("_", " ")
    if (low, high) == (1, 1) and key in ("blocks", "nodes"):
        noun = noun.removesuffix("s")
    return f"{word} {_span(key, low, high)} {noun}"


def _span(key: str, low: float, high: float) -> str:
    ends = dict.fromkeys(show_mib(int(n)) if key.endswith("_mib") else f"{n:g}" for n in (low, high))
    return " to ".join(ends)


MOST_UNCHANGED = 20
"""Up to so many unchanged nodes or ranks get a line each; more are only counted."""
STATUS = {
    ReservationStatus.NEW: "green",
    ReservationStatus.KEPT: None,
    ReservationStatus.RELEASED: "red",
}


def block_lines(plan: Plan, paint: Paint, width: int | None) -> list[str]:
    """The block map after the plan. Many unchanged nodes are shown only as a sum."""
    ops = ops_of(plan, "node")
    notes = notes_of_nodes(plan)
    hidden = _unchanged_nodes(plan, ops.keys())
    names = {node.name for node in hidden}
    shown = [node for node in plan.preview.nodes if node.name not in names]
    lines = map_lines(
        [node_row(n, ops.get(n.name, set()), notes.get(n.name, "")) for n in shown], paint, width
    )
    if hidden:
        busy, total = blocks_in_use(hidden)
        lines.append(f"  … {len(hidden)} more nodes, unchanged, {busy}/{total} busy")
    return lines


def _unchanged_nodes(plan: Plan, acted_on: Collection[str]) -> list[NodePreview]:
    """Nodes without an action on them or on their ranks; empty if they are few."""
    kept = [node for node in plan.preview.nodes if node.status == "kept" and node.state == "ready"]
    if len(kept) <= MOST_UNCHANGED:
        return []
    outcomes = outcome_of_ranks(plan)
    changing = {r.node for r in plan.reservations if outcomes[_name(r)] != "kept"} | set(acted_on)
    unchanged = [node for node in kept if node.name not in changing]
    return unchanged if len(unchanged) > MOST_UNCHANGED else []


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
    again = {name: f", {restart_text(count)}" for name, count in restarts.items()}
    return again | {name: f"{again.get(name, '')}, {stop_text(count)}" for name, count in stops.items()}


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


def _name(item: Reservation) -> str:
    return rank_name(item.task, item.rank)


def outcome_of_ranks(plan: Plan) -> dict[str, str]:
    """What happens to each rank that holds or will hold blocks, by its name."""
    ops, stopped = ops_of(plan, "rank"), stopped_ranks(plan)
    queued = {item.task for item in plan.preview.queued}
    out: dict[str, str] = {}
    for item in plan.reservations:
        what = _outcome(item, ops.get(_name(item), set()), queued)
        if _name(item) in stopped and item.status is not ReservationStatus.RELEASED:
            what = "stops"
        out[_name(item)] = f"{item.status.value}, {what}" if what else item.status.value
    return out


def _outcome(item: Reservation, ops: set[Op], queued: Collection[str]) -> str:
    """What happens to a rank, if its blocks do not show it."""
    if item.task in queued:
        return "queued"
    if item.restart:
        return "restarts"
    if Op.UPDATE in ops:
        return "changes"
    if not ops or item.status is not ReservationStatus.KEPT:
        return ""
    return "starts" if Op.CREATE in ops else "stops"


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
            for item, mounts in ranks:
                rows += _rank_rows(item, mounts if one_each else [", ".join(mounts)], outcomes[_name(item)])
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
    for item in reservations:
        if item.status is not ReservationStatus.RELEASED:
            prices.setdefault(item.task, []).append(item.price)
    return {
        task: share(None if None in of_task else sum(p for p in of_task if p is not None))
        for task, of_task in prices.items()
        if len(of_task) > 1 and any(p != 0 for p in of_task)
    }


def share(price: float | None) -> str:
    """A price in a table; `?` if it is unknown."""
    return "?" if price is None else money(price)


def _rank_rows(item: Reservation, volumes: Sequence[str], outcome: str) -> list[list[Cell]]:
    """The row of a rank with its first volume, and a row for each further volume."""
    first = [
        Cell(clean(item.task)),
        Cell(str(item.rank), right=True),
        Cell(clean(item.node)),
        Cell(f"{ranges(item.blocks)} of {item.total_blocks}"),
        Cell(volumes[0] if volumes else ""),
        Cell(share(item.price), right=True),
        Cell(outcome, "yellow" if outcome in ("kept, restarts", "kept, stops") else STATUS[item.status]),
    ]
    none = Cell("")
    return [first, *([none, none, none, none, Cell(text), none, none] for text in volumes[1:])]


def restart_text(count: int) -> str:
    """`2 ranks restart`."""
    return f"{plural(count, 'rank')} {'restarts' if count == 1 else 'restart'}"


def stop_text(count: int) -> str:
    """`2 ranks stop`."""
    return f"{plural(count, 'rank')} {'stops' if count == 1 else 'stop'}"
