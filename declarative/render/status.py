"""The status as text: fleets, nodes with their blocks, volumes, tasks with their ranks, and what
is not well.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from declarative.model.record import struct
from declarative.model.status import NodeState
from declarative.model.text import and_more, clean, numberless
from declarative.planner.inventory import GONE, LEFT_OUT, UNREADABLE, Drift, Health
from declarative.planner.plan import Plan, largest_shares
from declarative.render.output_json import iso
from declarative.render.status_view import HostView, NodeView, RankView, StatusView, TaskView, VolumeView
from declarative.render.text import (
    Cell,
    Paint,
    cells,
    columns,
    folded,
    money,
    plural,
    seal,
    sentence,
    wrapped,
)

MOST = 5
"""At most so many names with the same trouble are shown on a terminal; without a width, all."""


def health_lines(items: Sequence[Health], paint: Paint, width: int | None) -> list[str]:
    """One entry for all that have the same trouble: names, since when, and details."""
    groups: dict[tuple[str, str], list[Health]] = {}
    for thing in items:
        groups.setdefault((thing.state, numberless(thing.detail)), []).append(thing)
    lines: list[str] = []
    for (state, _), alike in groups.items():
        names = [clean(f"host {i.host}" if i.host else i.address) for i in alike]
        named = and_more(names, len(names) if width is None else MOST)
        since = min((i.since for i in alike if i.since is not None), default=None)
        when = "" if since is None else f", since {iso(since)}"
        first = wrapped(f"  {named}: {clean(state.replace('_', ' '))}{when}", width)
        lines += [paint("yellow", line) for line in first]
        lines += wrapped(f"      {sentence(alike[0].detail)}", width)
    return ["Not well:", "", *lines, ""] if lines else []


def unwell(items: Sequence[Health]) -> str:
    """`2 nodes take no work, 1 host is left out and 1 backend could not be read`."""
    counts = Counter(i.state if i.state in (GONE, LEFT_OUT, UNREADABLE) else "node" for i in items)
    words = []
    for state, what, one, many in (
        ("node", "node", "takes no work", "take no work"),
        (GONE, "volume", "is gone", "are gone"),
        (LEFT_OUT, "host", "is left out", "are left out"),
        (UNREADABLE, "backend", "could not be read", "could not be read"),
    ):
        if count := counts[state]:
            words.append(f"{plural(count, what)} {one if count == 1 else many}")
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def nothing_text(plan: Plan) -> str:
    """The heading of a plan that changes nothing, with what waits for somebody all the same."""
    return f"nothing is changed, but {unwell(plan.health)}" if plan.health else "no changes"


CELLS = 4
"""Nodes with up to so many blocks show each block; larger ones show ranges with the same holder."""
IDLE = "idle"


@struct(frozen=True, slots=True, kw_only=True)
class Row:
    """One node. `holders` maps busy blocks to holders; None if its blocks do not matter any more."""

    node: str
    total: int
    holders: Mapping[int, str] | None
    note: str
    style: str | None = None
    kind: str | None = None
    """Compared in place of `note`, if the note is specific to this node."""


def map_lines(rows: Sequence[Row], paint: Paint, width: int | None, *, indent: str = "  ") -> list[str]:
    """Aligned columns: node, blocks, number of busy blocks, what happens to it. Without a width, nothing is
    cut.
    """
    if not rows:
        return []
    other = max(cells(r.node) + cells(r.note) for r in rows) + 26
    room = math.inf if width is None else max(24, width - other)
    # The width of the longest holder's name, if the blocks may be shown one by one.
    small = [row for row in rows if row.total <= CELLS and row.holders is not None]
    each = max((cells(_holder(row, block)) for row in small for block in range(row.total)), default=0)
    table = [
        [
            Cell(f"node/{clean(row.node)}", "bold" if row.style else None),
            Cell(_blocks(row, each, room)),
            Cell("" if row.holders is None else f"{len(row.holders)}/{row.total} busy", right=True),
            Cell(clean(row.note), row.style),
        ]
        for row in rows
    ]
    loosely: Sequence[str] = ()
    if any(row.kind is not None for row in rows):
        loosely = [clean(row.note if row.kind is None else row.kind) for row in rows]
    return columns(folded(table, loosely), paint, indent=indent)


def _holder(row: Row, block: int) -> str:
    return clean((row.holders or {}).get(block, IDLE)).removeprefix("rank/")


def _blocks(row: Row, each: int, room: float) -> str:
    if row.holders is None:
        return "[]"
    if row.total <= CELLS and (each + 1) * row.total + 1 <= room:
        holders = [_holder(row, block) for block in range(row.total)]
        return "[" + " ".join(h + " " * (each - cells(h)) for h in holders).rstrip() + "]"
    texts = [
        f"{first if first == last else f'{first}-{last}'} {holder}" for first, last, holder in stretches(row)
    ]
    whole = "[" + " | ".join(texts) + "]"
    if cells(whole) <= room:
        return whole
    # As many as fit, at least one, and the number of the rest.
    ends = itertools.accumulate(cells(text) + 3 for text in texts)
    count = max(1, sum(end <= room - 12 for end in ends))
    more = [f"… {len(texts) - count} more"] if count < len(texts) else []
    return "[" + " | ".join([*texts[:count], *more]) + "]"


def stretches(row: Row) -> list[tuple[int, int, str]]:
    """First block, last block, and holder. Idle blocks are not visited: there may be thousands."""
    out: list[tuple[int, int, str]] = []
    free = 0
    for block in sorted(b for b in row.holders or () if 0 <= b < row.total):
        if block > free:
            out.append((free, block - 1, IDLE))
        holder = _holder(row, block)
        if out and out[-1][1:] == (block - 1, holder):
            out[-1] = (out[-1][0], block, holder)
        else:
            out.append((block, block, holder))
        free = block + 1
    if free < row.total:
        out.append((free, row.total - 1, IDLE))
    return out


STYLES = {
    "ready": "green",
    "running": "green",
    "succeeded": "green",
    "attached": "green",
    "failed": "red",
    "lost": "red",
    "unreachable": "red",
    "gone": "red",
    "not_ready": "yellow",
    "unknown": "yellow",
    "draining": "yellow",
    "stopped": "yellow",
    "starting": "yellow",
}

LIMITED = ("starting", "running")
"""States of ranks for which it matters how they are held to their blocks."""
SILENT = ("unreachable", "unknown")
"""States of nodes in which the state of their ranks is unknown."""


CHANGED = "Changed outside of fleetform"


def drift_rows(differences: Sequence[Drift], paint: Paint) -> list[str]:
    """What differs from what is recorded, a row each."""
    rows = [
        [Cell(clean(d.address), "bold"), Cell(clean(d.change), "yellow"), Cell(sentence(d.detail))]
        for d in differences
    ]
    return columns(folded(rows), paint)


def status_text(view: StatusView, *, color: bool, width: int | None) -> str:
    """Everything that is recorded, as last observed."""
    paint = Paint(color=color)
    lines: list[str] = []
    for title, body in (
        ("Fleets", _fleets(view, paint)),
        ("Nodes", _nodes(view.nodes, paint, width)),
        ("Hosts that are not nodes yet", _hosts(view.hosts, paint)),
        ("Volumes", _volumes(view.volumes, paint)),
        ("Tasks", _tasks(view, paint)),
        (CHANGED, drift_rows(view.drift, paint)),
    ):
        if body:
            lines += [*([""] if lines else []), f"{title}:", "", *body]
    if not lines:
        lines = ["Nothing is recorded yet: `fleetform plan` shows what `fleetform apply` would make."]
    for outage in view.left_alone:
        what = clean(f"backend/{outage.backend}" + (f" ({outage.part})" if outage.part else ""))
        when = f"since {iso(outage.since)}, until {iso(outage.until)}"
        lines += ["", *wrapped(f"The loop leaves {what} alone {when}: {sentence(outage.why)}", width)]
    over = [
        f"{limit.now:,g} {limit.limit}, the limit is {limit.most:,g}"
        for limit in view.limits
        if limit.exceeded
    ]
    if over:
        most = f"; USD/h: {clean(most)}" if (most := largest_shares(view.nodes)) else ""
        lines += ["", *wrapped(f"Beyond the project's `limits`: {'; '.join(over)}{most}", width)]
    if view.spent is not None and view.spent.dollars:
        lines += ["", f"Spent in {view.spent.month}: {money(view.spent.dollars)} USD"]
    return seal(lines, color=color)


def _state(state: str) -> Cell:
    return Cell(clean(state), STYLES.get(state))


def _fleets(view: StatusView, paint: Paint) -> list[str]:
    rows = [
        [
            Cell(clean(f"fleet/{fleet.name}"), "bold"),
            Cell(f"{fleet.nodes} {'node' if fleet.nodes == 1 else 'nodes'}", right=True),
            Cell(f"{fleet.busy}/{fleet.total} busy", right=True),
            Cell(f"{fleet.total - fleet.busy} idle", right=True),
            Cell("" if fleet.hourly == 0 else f"{money(fleet.hourly)} USD/h", right=True),
        ]
        for fleet in view.fleets
    ]
    return columns(rows, paint)


def _nodes(nodes: Sequence[NodeView], paint: Paint, width: int | None) -> list[str]:
    rows = [
        Row(
            node=n.name,
            total=n.total,
            holders=n.holders,
            note=node_note(n),
            style=STYLES.get(n.state),
            kind=_note(n, numberless(n.reason or "")),  # reasons quote the node's address
        )
        for n in nodes
    ]
    return map_lines(rows, paint, width)


def node_note(node: NodeView) -> str:
    """A node's state, the reasons, since when it does not answer and what follows, and the price if known."""
    reasons = [node.reason] if node.reason else []
    if silence := node.silence:
        if silence.given_up or silence.kept:
            when = f" before {iso(silence.until)}" if silence.until is not None else ""
            then = "given up" if silence.given_up else f"not given up{when}: {silence.kept}"
        else:
            then = f"given up at {iso(silence.until)}" if silence.until is not None else "never given up"
        reasons.append(f"no answer since {iso(silence.since)}, {then}")
    return _note(node, "; ".join(reasons))


def _note(node: NodeView, why: str | None) -> str:
    """The state, its reason, and the price if known."""
    price = "" if node.price is None else f", {money(node.price)} USD/h"
    reason = f": {sentence(why)}" if why else ""
    if node.state == NodeState.DRAINING and why:
        reason = sentence(why.removeprefix("drained"))  # ` since …`
    age = "" if node.age is None else f", seen {ago(node.age)}"
    rehearsal = ", its GPUs are a rehearsal" if node.rehearsal else ""
    return f"{node.state}{reason}{price}{age}{rehearsal}"


def ago(seconds: float) -> str:
    """How long ago, in the largest unit."""
    if seconds < 10:
        return "just now"
    return f"{lasted(seconds)} ago"


def _hosts(hosts: Sequence[HostView], paint: Paint) -> list[str]:
    rows = [
        [
            Cell(clean(h.host), "bold"),
            Cell(clean(f"fleet/{h.fleet}")),
            Cell(sentence(h.reason), "green" if h.fit else "red"),
        ]
        for h in hosts
    ]
    return columns(rows, paint)


def _volumes(volumes: Sequence[VolumeView], paint: Paint) -> list[str]:
    rows = []
    for volume in volumes:
        where = f"on {clean(f'node/{volume.node}')}" if volume.node else ""
        reason = sentence(volume.reason or "")
        name = Cell(clean(f"volume/{volume.name}"), "bold")
        size = Cell(clean(volume.size or ""), right=True)
        rows.append([name, size, _state(volume.state), Cell(where), Cell(reason)])
    return columns(folded(rows), paint)


def _tasks(view: StatusView, paint: Paint) -> list[str]:
    rows: list[list[Cell]] = []
    silent = {node.name: node.state for node in view.nodes if node.state in SILENT}
    for task in view.tasks:
        cause = "; ".join(_about(task))
        rows.append([Cell(clean(f"task/{task.name}"), "bold"), _state(task.state), Cell(""), Cell(cause)])
        for rank in task.ranks:
            notes = ", ".join(_notes(rank, silent.get(rank.node or "")))
            where = clean(f"node/{rank.node}") if rank.node else "-"
            name = clean(f"rank/{task.name}-{rank.rank}")
            rows.append([Cell(f"  {name}"), _state(rank.state), Cell(where), Cell(notes)])
    return columns(folded(rows), paint)


def _about(task: TaskView) -> Iterator[str]:
    """Since when a task runs and for how long, when it ended, why it waits, and what `retry` does next."""
    if task.ended_at is not None:
        after = f" after {lasted(task.seconds)}" if task.seconds is not None else ""
        yield f"ended {iso(task.ended_at)}{after}"
    elif task.seconds is not None:
        yield f"since {iso(task.started_at)}, for {lasted(task.seconds)}"
    if task.cause:
        since = f"since {iso(task.waiting_since)}: " if task.waiting_since is not None else ""
        yield f"{since}{sentence(task.cause)}"
    retry = task.retry
    if retry and retry.runs_again:
        most = f" of {retry.max_attempts}" if retry.max_attempts else ""
        until = f", at the latest {iso(retry.until)}" if retry.until is not None else ""
        yield f"runs again (attempt {retry.attempt}{most}) after {iso(retry.after)}{until}"
    elif retry:
        yield f"is not run again: {sentence(retry.why)}"
    elif task.stopped and task.state != "stopped":
        yield "stopped by the user: does not start by itself"


def lasted(seconds: float) -> str:
    """A time that something took, in its largest unit: `12 s`, `90 min`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def _notes(rank: RankView, silence: str | None) -> Iterator[str]:
    """Notes about a rank. `silence` is the state of its node if that does not answer."""
    code, cause = f"exit code {rank.exit_code}", rank.cause or ""
    if rank.exit_code is not None and code not in cause:
        yield code
    if rank.attempt > 1:
        yield f"attempt {rank.attempt}"
    if cause:
        yield sentence(cause)
    if rank.state not in LIMITED:
        return
    if rank.confinement:
        yield f"limits {clean(rank.confinement)}"
    if silence:
        yield f"as last seen: its node is {silence}"
