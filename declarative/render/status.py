"""The status as text: fleets, nodes with their blocks, volumes, tasks with their ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from declarative.model.state import Silence
from declarative.render.blocks import Row, map_lines
from declarative.render.data import iso
from declarative.render.text import Cell, Paint, clean, columns, folded, money, numberless, seal, sentence
from declarative.render.views import HostView, NodeView, RankView, StatusView, TaskView, VolumeView

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
"""States in which it matters how a rank is held to its blocks."""
SILENT = ("unreachable", "unknown")
"""States of a node in which the state of its ranks is unknown."""


def status_text(view: StatusView, *, color: bool, width: int | None) -> str:
    """Everything that is recorded, as it was observed."""
    paint = Paint(color=color)
    lines: list[str] = []
    for title, body in (
        ("Fleets", _fleets(view, paint)),
        ("Nodes", _nodes(view.nodes, paint, width)),
        ("Hosts that are no nodes yet", _hosts(view.hosts, paint)),
        ("Volumes", _volumes(view.volumes, paint)),
        ("Tasks", _tasks(view, paint)),
    ):
        if body:
            lines += [*([""] if lines else []), f"{title}:", "", *body]
    if not lines:
        lines = ["Nothing is recorded yet: `fleetform plan` shows what `fleetform apply` would make."]
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
    """The state of a node, why it is so, since when it does not answer, and the price where it is known."""
    return _note(node, "; ".join(filter(None, (node.reason, _silence(node.silence)))))


def _note(node: NodeView, why: str | None) -> str:
    """The state, why it is so, and the price where it is known."""
    price = "" if node.price is None else f", {money(node.price)} USD/h"
    reason = f": {sentence(why)}" if why else ""
    seen = "" if node.age is None else f", seen {ago(node.age)}"
    rehearsal = ", its GPUs are a rehearsal" if node.rehearsal else ""
    return f"{node.state}{reason}{price}{seen}{rehearsal}"


def _silence(silence: Silence | None) -> str | None:
    """Since when a node does not answer, and what comes of it."""
    if silence is None:
        return None
    if silence.given_up or silence.kept:
        when = f" before {iso(silence.until)}" if silence.until is not None else ""
        then = "given up" if silence.given_up else f"not given up{when}: {silence.kept}"
    else:
        then = f"given up at {iso(silence.until)}" if silence.until is not None else "never given up"
    return f"no answer since {iso(silence.since)}, {then}"


def ago(seconds: float) -> str:
    """How long something is past, in its largest unit."""
    if seconds < 10:
        return "just now"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds)} s ago"


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
        rows.append(
            [
                name,
                Cell(clean(volume.size or ""), right=True),
                _state(volume.state),
                Cell(where),
                Cell(reason),
            ]
        )
    return columns(folded(rows), paint)


def _tasks(view: StatusView, paint: Paint) -> list[str]:
    rows: list[list[Cell]] = []
    silent = {node.name: node.state for node in view.nodes if node.state in SILENT}
    for task in view.tasks:
        cause = sentence(task.cause or "")
        rows.append([Cell(clean(f"task/{task.name}"), "bold"), _state(task.state), Cell(""), Cell(cause)])
        rows += [_rank(task, rank, silent) for rank in task.ranks]
    return columns(folded(rows), paint)


def _rank(task: TaskView, rank: RankView, silent: Mapping[str, str]) -> list[Cell]:
    where = clean(f"node/{rank.node}") if rank.node else "-"
    name = clean(f"rank/{task.name}-{rank.rank}")
    notes = ", ".join(_notes(rank, silent.get(rank.node or "")))
    return [Cell(f"  {name}"), _state(rank.state), Cell(where), Cell(notes)]


def _notes(rank: RankView, silence: str | None) -> Iterator[str]:
    """What there is to say about a rank; `silence` is the state of a node that does not answer."""
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
