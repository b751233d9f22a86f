"""The live page: what exists, what happens and why things wait. It works without JavaScript.

With JavaScript it replaces only the parts that changed, so that users of a keyboard or a screen reader keep
their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

from declarative.model.diagnostic import Diagnostic
from declarative.model.record import struct
from declarative.model.text import clean
from declarative.placement.problem import Refusal
from declarative.render.diagnostics import diagnostics_text
from declarative.render.html import lines_part, node_data, rendered
from declarative.render.listings import event_cells
from declarative.render.output_json import iso
from declarative.render.plan import unplaced_lines
from declarative.render.status import STYLES, Row, health_lines, node_note
from declarative.render.status_view import StatusView, TaskView
from declarative.render.text import PLAIN, money, plural, sentence
from declarative.store.events import Event

SECONDS = 15
"""Seconds between two reloads of the page."""
MOST_NODES, MOST_TASKS, MOST_RANKS = 1000, 300, 1000
"""Further ones are only counted."""
SCRIPT = """
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
        parts=list(_parts(page)),
        refresh=refresh,
        seconds=SECONDS,
        script=SCRIPT,
    )


def _parts(page: Page) -> Iterator[dict[str, Any]]:
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
