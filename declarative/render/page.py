"""The live page: what exists, what happens and why things wait. It works without JavaScript.

With JavaScript it replaces only the parts that changed, so that users of a keyboard or a screen reader keep
their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any

from declarative.model.diagnostic import Diagnostic
from declarative.model.record import struct
from declarative.model.text import clean
from declarative.placement.problem import Refusal
from declarative.render.diagnostics import diagnostics_text
from declarative.render.listings import event_cells
from declarative.render.output_json import iso
from declarative.render.plan_tables import unplaced_lines
from declarative.render.status import STYLES, Row, health_lines, node_note
from declarative.render.status_view import NodeView, StatusView, TaskView
from declarative.render.text import Paint, money, plural, sentence
from declarative.render.web import node_data, rendered
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
_PLAIN = Paint(color=False)
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
    return rendered(
        "live.html.jinja",
        title=clean(page.title),
        summary=[("", _counts(page.view)), *((style, clean(line)) for style, line in page.notes)],
        at=iso(page.at) or "",
        parts=list(_parts(page)),
        refresh=refresh,
        seconds=SECONDS,
        script=SCRIPT,
    )


def _counts(view: StatusView) -> str:
    busy, total = sum(n.busy for n in view.nodes), sum(n.total for n in view.nodes)
    known = [n.price for n in view.nodes if n.price is not None]
    price = f", {money(sum(known))} USD/h" if known else ""
    running = sum(task.state == "running" for task in view.tasks)
    return (
        f"{plural(len(view.nodes), 'node')}{price}, {busy} of {total} blocks busy; "
        f"{plural(len(view.tasks), 'task')}, {running} running"
    )


def _parts(page: Page) -> Iterator[dict[str, Any]]:
    view = page.view
    if page.diagnostics:
        found = diagnostics_text(tuple(page.diagnostics), color=False).split("\n")
        yield from _lines("findings", "Errors and warnings", found)
    yield from _lines("health", "Not well", health_lines(view.health, _PLAIN, None)[2:])
    yield from _lines("approval", "Waits for approval", page.held)
    refused = unplaced_lines(page.refusals, _PLAIN, waiting=page.waiting, whole=True)
    yield from _lines("waiting", "Waits for a place", refused[2:])
    if view.fleets:
        yield _table(
            "fleets", "Fleets", ("fleet", "nodes", "busy blocks", "idle blocks"), _fleets(view), {1, 2, 3}
        )
    if view.nodes:
        yield {"id": "blocks", "title": f"Blocks of {plural(len(view.nodes), 'node')}", **_blocks(view.nodes)}
    if view.tasks:
        head: tuple[str, ...] = ("task", "rank", "state", "node", "attempt", "cause")
        rows, hidden = _tasks(view.tasks)
        yield _table("tasks", f"Tasks: {len(view.tasks)}", head, rows, {1, 4}, hidden)
    if view.volumes:
        head = ("volume", "size", "state", "node")
        yield _table("volumes", f"Volumes: {len(view.volumes)}", head, _volumes(view), {1})
    if page.events:
        head = ("when", "what", "of what", "why")
        rows = [
            [(cell.text, _event_style(event, i)) for i, cell in enumerate(event_cells(event))]
            for event in page.events
        ]
        yield _table("events", "Events", head, rows, set())


def _event_style(event: Event, column: int) -> str:
    """The style of an event: failures are marked."""
    what = event.type.partition(".")[2]
    return _style(STYLES.get("failed" if what.endswith("_failed") else what)) if column == 1 else ""


def _style(color: str | None) -> str:
    return _COLORS.get(color, "")


def _lines(name: str, title: str, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    shown = [clean(line) for line in lines]
    while shown and not shown[-1]:
        shown.pop()
    if shown:
        yield {"id": name, "title": title, "kind": "lines", "lines": [("", line) for line in shown]}


def _table(
    name: str,
    title: str,
    head: tuple[str, ...],
    rows: list[list[tuple[str, str]]],
    numbers: set[int],
    hidden: str = "",
) -> dict[str, Any]:
    right = {head[i] for i in numbers}
    return {
        "id": name,
        "title": title,
        "kind": "table",
        "head": head,
        "rows": rows,
        "numbers": right,
        "hidden": hidden,
    }


def _blocks(nodes: Sequence[NodeView]) -> dict[str, Any]:
    colors: dict[str, int] = {}
    shown = [
        node_data(
            Row(node=n.name, total=n.total, holders=n.holders, note=node_note(n)),
            colors,
            warn=STYLES.get(n.state) == "red",
        )
        for n in nodes[:MOST_NODES]
    ]
    return {"kind": "blocks", "nodes": shown, "hidden": _more(len(nodes) - MOST_NODES, "node")}


def _more(count: int, noun: str) -> str:
    return f"{count} more {noun}{'' if count == 1 else 's'}" if count > 0 else ""


def _fleets(view: StatusView) -> list[list[tuple[str, str]]]:
    return [
        [
            (clean(fleet.name), ""),
            (str(fleet.nodes), ""),
            (str(fleet.busy), ""),
            (str(fleet.total - fleet.busy), ""),
        ]
        for fleet in view.fleets
    ]


def _tasks(tasks: Sequence[TaskView]) -> tuple[list[list[tuple[str, str]]], str]:
    """Rows of tasks, each followed by its ranks, and the numbers of those left out."""
    rows: list[list[tuple[str, str]]] = []
    order = {"failed": 0, "running": 1, "starting": 1, "pending": 2}
    found = sorted(tasks, key=lambda task: order.get(task.state, 3))
    for count, task in enumerate(found):
        if count >= MOST_TASKS or len(rows) >= MOST_RANKS:
            return rows, _more(len(found) - count, "task")
        state = (clean(task.state), _style(STYLES.get(task.state)))
        rows.append(
            [(clean(task.name), ""), ("", ""), state, ("", ""), ("", ""), (sentence(task.cause or ""), "")]
        )
        rows += [
            [
                ("", ""),
                (str(rank.rank), ""),
                (clean(rank.state), _style(STYLES.get(rank.state))),
                (clean(rank.node or ""), ""),
                (str(rank.attempt or ""), ""),
                (sentence(rank.cause or ""), ""),
            ]
            for rank in task.ranks
        ]
    return rows, ""


def _volumes(view: StatusView) -> list[list[tuple[str, str]]]:
    return [
        [
            (clean(volume.name), ""),
            (clean(volume.size or ""), ""),
            (clean(volume.state), _style(STYLES.get(volume.state))),
            (clean(volume.node or ""), ""),
        ]
        for volume in view.volumes
    ]
