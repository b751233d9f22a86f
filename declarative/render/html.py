"""HTML: a plan as one file that loads nothing from the network, and the live page. Both are readable without
JavaScript. With JavaScript the live page replaces only the parts that changed, so that users of a keyboard or
a screen reader keep their place.

The templates escape all text from outside. A policy in each page forbids all scripts but its own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from declarative.model.diagnostic import Diagnostic
from declarative.model.record import struct
from declarative.model.state import rank_name
from declarative.model.text import clean, host_lists, numberless, ranges
from declarative.placement.problem import Refusal
from declarative.planner.approval import REFUSED, approval_of
from declarative.planner.plan import Plan
from declarative.render.actions import entries_of, group_lines, grouped
from declarative.render.diagnostics import diagnostics_text
from declarative.render.listings import event_cells
from declarative.render.output_json import iso
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
    unplaced_lines,
)
from declarative.render.status import STYLES, Row, health_lines, node_note, stretches
from declarative.render.status_view import StatusView, TaskView
from declarative.render.text import PLAIN, money, plural, sentence
from declarative.store.events import Event

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
PLAN_SCRIPT = """
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
        parts=list(_plan_parts(plan)),
        hidden=Markup(approval.hidden() if approval else REFUSED),  # noqa: S704 (it holds none of HTML's characters)
        script=PLAN_SCRIPT,
    )


def _plan_parts(plan: Plan) -> Iterator[dict[str, Any]]:
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


SECONDS = 15
"""Seconds between two reloads of the page."""
MOST_NODES, MOST_TASKS, MOST_RANKS = 1000, 300, 1000
"""Further ones are only counted."""
PAGE_SCRIPT = """
const auto = document.getElementById("auto");
auto.parentElement.hidden = false;
async function renew() {
  if (!auto.checked || document.hidden) return;
  try {
    const answer = await fetch(location.pathname, {cache: "no-store"});
    if (!answer.ok) throw new Error(answer.status);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.title = next.title;
    for (const name of ["summary", "parts"]) put(document.getElementById(name), next.getElementById(name));
    const main = document.getElementById("main");
    let before = null;
    for (const part of next.querySelectorAll("main > section")) {
      const here = document.getElementById(part.id);
      if (here) put(here, part);
      else main.insertBefore(part, before ? before.nextSibling : main.firstChild);
      before = document.getElementById(part.id);
    }
    for (const here of main.querySelectorAll(":scope > section"))
      if (!next.getElementById(here.id)) here.remove();
  } catch (error) {
    document.getElementById("summary").textContent = "This page cannot be renewed: " + error.message;
  }
}
function put(here, there) {
  if (here.innerHTML === there.innerHTML || here.contains(document.activeElement)) return;
  here.replaceWith(there);
}
setInterval(renew, SECONDS * 1000);
""".replace("SECONDS", str(SECONDS))
_COLORS = {"green": "good", "red": "bad", "yellow": "odd", None: ""}


@struct(frozen=True, slots=True, kw_only=True)
class Page:
    """The data of the page. `notes` are lines about the controller, each with its style."""

    title: str
    at: float
    view: StatusView
    notes: Sequence[tuple[str, str]] = ()
    events: Sequence[Event] = ()
    """Newest first."""
    refusals: Sequence[Refusal] = ()
    waiting: frozenset[str] = field(default_factory=frozenset)
    held: Sequence[str] = ()
    """Lines about what waits for a person's approval."""
    diagnostics: Sequence[Diagnostic] = ()


def page_html(page: Page, *, refresh: int | None = None) -> str:
    """The page. A browser without JavaScript loads it again after `refresh` seconds."""
    nodes, tasks = page.view.nodes, page.view.tasks
    known = [n.price for n in nodes if n.price is not None]
    price = f", {money(sum(known))} USD/h" if known else ""
    counts = (
        f"{plural(len(nodes), 'node')}{price}, {sum(n.busy for n in nodes)} of {sum(n.total for n in nodes)} "
        f"blocks busy; {plural(len(tasks), 'task')}, {sum(t.state == 'running' for t in tasks)} running"
    )
    return rendered(
        "live.html.jinja",
        title=clean(page.title),
        summary=[("", counts), *((style, clean(line)) for style, line in page.notes)],
        at=iso(page.at) or "",
        parts=list(_page_parts(page)),
        refresh=refresh,
        seconds=SECONDS,
        script=PAGE_SCRIPT,
    )


def _page_parts(page: Page) -> Iterator[dict[str, Any]]:
    view = page.view
    if page.diagnostics:
        findings = diagnostics_text(tuple(page.diagnostics), color=False).split("\n")
        yield from lines_part("findings", "Errors and warnings", findings)
    yield from lines_part("health", "Not well", health_lines(view.health, PLAIN, None)[2:])
    yield from lines_part("approval", "Waits for approval", page.held)
    refused = unplaced_lines(page.refusals, PLAIN, waiting=page.waiting, whole=True)
    yield from lines_part("waiting", "Waits for a place", refused)
    if view.fleets:
        head: tuple[str, ...] = ("fleet", "nodes", "busy blocks", "idle blocks")
        rows = [_row(fleet.name, fleet.nodes, fleet.busy, fleet.total - fleet.busy) for fleet in view.fleets]
        yield _table("fleets", "Fleets", head, rows, {1, 2, 3})
    if view.nodes:
        colors: dict[str, int] = {}
        nodes = [
            node_data(
                Row(node=n.name, total=n.total, holders=n.holders, note=node_note(n)),
                colors,
                warn=STYLES.get(n.state) == "red",
            )
            for n in view.nodes[:MOST_NODES]
        ]
        part = {"id": "blocks", "title": f"Blocks of {plural(len(view.nodes), 'node')}", "kind": "blocks"}
        yield {**part, "nodes": nodes, "hidden": _more(len(view.nodes) - MOST_NODES, "node")}
    if view.tasks:
        head = ("task", "rank", "state", "node", "attempt", "cause")
        rows, hidden = _tasks(view.tasks)
        yield _table("tasks", f"Tasks: {len(view.tasks)}", head, rows, {1, 4}, hidden)
    if view.volumes:
        head = ("volume", "size", "state", "node")
        rows = [_row(v.name, v.size, _state(v.state), v.node) for v in view.volumes]
        yield _table("volumes", f"Volumes: {len(view.volumes)}", head, rows, {1})
    if page.events:
        head = ("when", "what", "of what", "why")
        rows = []
        for event in page.events:
            when, what, *rest = (cell.text for cell in event_cells(event))
            ended = event.type.partition(".")[2]
            style = _COLORS[STYLES.get("failed" if ended.endswith("_failed") else ended)]
            rows.append(_row(when, (what, style), *rest))
        yield _table("events", "Events", head, rows, set())


def _row(*cells: str | int | tuple[str, str] | None) -> list[tuple[str, str]]:
    """Cells of a table. A text alone has no style."""
    return [cell if isinstance(cell, tuple) else ("" if cell is None else clean(cell), "") for cell in cells]


def _state(state: str) -> tuple[str, str]:
    return clean(state), _COLORS[STYLES.get(state)]


def _table(
    name: str,
    title: str,
    head: tuple[str, ...],
    rows: list[list[tuple[str, str]]],
    numbers: set[int],
    hidden: str = "",
) -> dict[str, Any]:
    right = {head[i] for i in numbers}
    part = {"id": name, "title": title, "kind": "table", "head": head, "rows": rows}
    return {**part, "numbers": right, "hidden": hidden}


def _more(count: int, noun: str) -> str:
    return f"{count} more {noun}{'' if count == 1 else 's'}" if count > 0 else ""


def _tasks(tasks: Sequence[TaskView]) -> tuple[list[list[tuple[str, str]]], str]:
    """Rows of tasks, each followed by its ranks, and the numbers of those left out."""
    rows: list[list[tuple[str, str]]] = []
    order = {"failed": 0, "running": 1, "starting": 1, "pending": 2}
    ordered = sorted(tasks, key=lambda task: order.get(task.state, 3))
    for count, task in enumerate(ordered):
        if count >= MOST_TASKS or len(rows) >= MOST_RANKS:
            return rows, _more(len(ordered) - count, "task")
        rows.append(_row(task.name, "", _state(task.state), "", "", sentence(task.cause or "")))
        for rank in task.ranks:
            cause = sentence(rank.cause or "")
            rows.append(_row("", rank.rank, _state(rank.state), rank.node, rank.attempt or "", cause))
    return rows, ""
