"""A plan as one HTML file that loads nothing from the network and is readable without JavaScript, and what it
shares with the live page.

The templates escape all text from outside. A policy in each page forbids all scripts but its own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from declarative.model.state import rank_name
from declarative.model.text import clean, host_lists, numberless, ranges
from declarative.planner.approval import REFUSED, approval_of
from declarative.planner.plan import Plan
from declarative.render.actions import entries_of, group_lines, grouped
from declarative.render.plan import (
    node_row,
    notes_of_nodes,
    ops_of,
    origin_text,
    outcome_of_ranks,
    plan_title,
    report_parts,
    share,
    summary_lines,
)
from declarative.render.status import Row, stretches
from declarative.render.text import PLAIN

if TYPE_CHECKING:
    from jinja2 import Environment

COLORS = (
    "#b6e3ff",
    "#aceebb",
    "#fae17d",
    "#ffcfb0",
    "#e9d0ff",
    "#ffc9e3",
    "#b9e6e1",
    "#d6dfb2",
    "#c8ccff",
    "#f3d3c9",
)
"""Backgrounds for dark text, light enough also on a dark page."""


def rendered(template: str, *, script: str, **values: Any) -> str:
    """A page from a template. The same values give the same bytes."""
    from markupsafe import Markup

    made: str = (
        _environment()
        .get_template(template)
        .render(
            **values,
            colors=COLORS,
            script=Markup(script),  # noqa: S704 (ours, and a constant)
            script_hash=hash_of(script),
        )
    )
    return made + "\n"


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = PackageLoader("declarative", "render")
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, loader=templates)


def hash_of(script: str) -> str:
    """The hash of a script, for the page's policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def lines_part(
    name: str, title: str, lines: Iterable[str], style: Callable[[str], str] = lambda _: ""
) -> Iterator[dict[str, Any]]:
    """A part of lines, each with its style; nothing without content."""
    shown = [clean(line) for line in lines]
    while shown and not shown[-1]:
        shown.pop()
    if shown:
        styled = [(style(line), line) for line in shown]
        yield {"id": name, "title": title, "kind": "lines", "lines": styled}


def node_data(row: Row, colors: dict[str, int], *, warn: bool) -> dict[str, Any]:
    """A node of the block map. `colors` numbers the tasks' colours and is shared by all rows."""
    pieces = []
    for first, last, holder in stretches(row) if row.holders is not None else ():
        task = holder.rpartition("-")[0]
        color = colors.setdefault(task, len(colors)) if holder != "idle" else -1
        pieces.append(
            {
                "style": "idle" if color < 0 else f"c{color % len(COLORS)}",
                "size": last - first + 1,
                "holder": holder,
                "label": f"block {ranges(range(first, last + 1))}: {holder}",
            }
        )
    label = "; ".join(str(piece["label"]) for piece in pieces) or "no blocks"
    note, style = clean(row.note), "warn" if warn else "faint"
    return {"name": clean(row.node), "pieces": pieces, "label": label, "note": note, "style": style}


# ------------------------------------------------------------------------------------------ a plan

MOST_UNCHANGED = 1000
"""How many unchanged nodes are shown; more are only counted."""
MOST_BOXES = 60
MOST_LISTED = 200
"""The label of a box names so many of its actions."""
HEAD = ("task", "rank", "node", "fleet", "where", "blocks", "volumes", "USD/h", "status")
SCRIPT = """
const rows = [...document.querySelectorAll("#ranks tbody tr")];
const input = document.getElementById("search");
if (input) {
  input.closest(".search").hidden = false;
  const texts = rows.map((row) => row.textContent.toLowerCase());
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\\s+/);
    let count = 0;
    rows.forEach((row, i) => {
      row.hidden = !words.every((word) => texts[i].includes(word));
      count += row.hidden ? 0 : 1;
    });
    document.getElementById("found").textContent = count + " of " + rows.length;
  });
}
"""
_STYLES = {"+": "create", "~": "update", "-": "delete", "-/+": "replace"}
_ROW, _COLUMN, _LETTER = 34, 60, 7.3


def plan_html(plan: Plan) -> str:
    """The page. The same plan gives the same bytes."""
    from markupsafe import Markup

    approval = None if plan.result == "error" else approval_of(plan)
    title = f"{'Refused plan' if plan.refused else 'Plan'}: {plan_title(plan)}"
    return rendered(
        "report.html.jinja",
        title=title if plan.shown else "Plan with errors",
        origin=origin_text(plan.origin),
        project=clean(plan.origin.project or ""),
        summary=[clean(line) for line in summary_lines(plan, PLAIN)],
        digest=approval.digest if approval else None,
        parts=list(_parts(plan)),
        hidden=Markup(approval.hidden() if approval else REFUSED),  # noqa: S704 (it holds none of HTML's characters)
        script=SCRIPT,
    )


def _parts(plan: Plan) -> Iterator[dict[str, Any]]:
    entries = entries_of(plan)
    gone = [entry for entry in entries if entry.change in {"delete", "replace"}]
    parts = report_parts(plan)
    for name in ("findings", "shares"):
        yield from lines_part(name, *parts[name])
    destroyed = [next(iter(group_lines(group, PLAIN, None))) for group in grouped(gone)]
    yield from lines_part("destroyed", f"Destroyed or replaced: {len(gone)}", destroyed, _change_style)
    yield from lines_part("unplaced", *parts["unplaced"])
    actions = [line for group in grouped(entries) for line in group_lines(group, PLAIN, None)]
    yield from lines_part("actions", f"Actions: {len(entries)}", actions, _change_style)
    if plan.actions:
        yield {"id": "graph", "title": "Order", "kind": "graph", **_graph(plan)}
    if plan.preview.nodes:
        yield {"id": "blocks", "title": "Blocks after apply", "kind": "blocks", **_blocks(plan)}
    if plan.reservations:
        yield {"id": "ranks-part", "title": "Ranks", "kind": "ranks", "head": HEAD, "rows": _ranks(plan)}
    for name, part in parts.items():
        if name not in {"findings", "shares", "unplaced"}:  # they stand above
            yield from lines_part(name, *part)


def _change_style(line: str) -> str:
    """The style of a line of actions, by its symbol."""
    return _STYLES.get(line[:4].strip(), "")


# ----------------------------------------------------------------------------------------- the block map


def _blocks(plan: Plan) -> dict[str, Any]:
    ops = ops_of(plan, "node")
    notes = notes_of_nodes(plan)
    touched = {r.node for r in plan.reservations if r.status.value != "kept"} | notes.keys() | ops.keys()
    nodes = sorted(plan.preview.nodes, key=lambda node: node.name not in touched)
    most = len(touched) + MOST_UNCHANGED
    colors: dict[str, int] = {}
    shown = []
    for node in nodes[:most]:
        row = node_row(node, ops.get(node.name, set()), notes.get(node.name, ""))
        shown.append(node_data(row, colors, warn=row.style == "red"))
    hidden = len(nodes) - most
    return {"nodes": shown, "hidden": f"{hidden} more nodes, unchanged" if hidden > 0 else ""}


# ----------------------------------------------------------------------------------------------- ranks


def _ranks(plan: Plan) -> list[tuple[str, ...]]:
    outcomes = outcome_of_ranks(plan)
    rows = []
    for place in plan.reservations:
        where = "/".join(
            text for text in (place.backend, place.region, place.zone, place.instance_type) if text
        )
        volumes = ", ".join(f"{path}={name}" for path, name in sorted(place.volumes.items()))
        blocks = f"{ranges(place.blocks)} of {place.total_blocks}"
        texts = (
            place.task,
            str(place.rank),
            place.node,
            place.fleet,
            where,
            blocks,
            volumes,
            share(place.price),
        )
        rows.append((*map(clean, texts), outcomes[rank_name(place.task, place.rank)]))
    return rows


# -------------------------------------------------------------------------------- the graph of the actions


_Key = tuple[str, str, str]
"""What all actions of a box share: op, kind, and the name without its number."""


def _graph(plan: Plan) -> dict[str, Any]:
    """Boxes of similar actions in columns. Each box is to the right of all that it waits for."""
    keys = {a.id: (a.op.value, a.address.kind, numberless(a.address.name)) for a in plan.actions}
    if len(set(keys.values())) > MOST_BOXES:
        keys = {a.id: (a.op.value, a.address.kind, "") for a in plan.actions}
    depth: dict[str, int] = {}
    members: dict[_Key, list[str]] = {}
    column: dict[_Key, int] = {}
    for action in plan.actions:
        key = keys[action.id]
        depth[action.id] = 1 + max((depth.get(need, 0) for need in action.needs), default=-1)
        members.setdefault(key, []).append(str(action.address))
        column[key] = max(column.get(key, 0), depth[action.id])
    order = {number: at for at, number in enumerate(sorted(set(column.values())))}
    texts = {}
    for key, names in members.items():
        listed = host_lists(map(clean, names))
        text = listed[0] if len(listed) == 1 else f"{names[0].partition('/')[0]}: {len(names)}"
        symbol = {"create": "+", "update": "~", "delete": "-"}[key[0]]
        texts[key] = f"{symbol} {text if len(text) <= 40 else text[:39] + '…'}"
    width = max(int(max(map(len, texts.values())) * _LETTER) + 16, 80)
    boxes, used = {}, dict.fromkeys(order.values(), 0)
    for key, names in members.items():
        at = order[column[key]]
        more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
        label = ", ".join(host_lists(map(clean, names[:MOST_LISTED]))) + more
        boxes[key] = {
            "style": key[0],
            "text": texts[key],
            "label": f"{key[0]} {label}",
            "x": at * (width + _COLUMN),
            "y": used[at] * _ROW + 2,
            "width": width,
        }
        used[at] += 1
    pairs = {(keys[need], keys[a.id]) for a in plan.actions for need in a.needs if need in keys}
    edges = {(before, after) for before, after in pairs if before != after}
    return {
        "boxes": list(boxes.values()),
        "lines": [_line(boxes[a], boxes[b]) for a, b in sorted(edges)],
        "width": len(order) * (width + _COLUMN) - _COLUMN + 2,
        "height": max(used.values()) * _ROW + 2,
        "label": "; ".join(str(box["text"]) for box in boxes.values()),
    }


def _line(source: Mapping[str, Any], target: Mapping[str, Any]) -> str:
    x1, y1, x2, y2 = source["x"] + source["width"], source["y"] + 13, target["x"], target["y"] + 13
    bend = max(20, abs(x2 - x1) // 2)
    return f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
