"""The lists that commands print, as text and as data: offers, records, and what was done (`offers`, `state
list`, `state show`, `state history`, `events`, `approve`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from declarative.model.blocks import Shape
from declarative.model.diagnostic import Diagnostic
from declarative.model.outputs import Moment, Of, Usd
from declarative.model.record import struct
from declarative.model.state import KINDS, Record, natural
from declarative.model.text import clean, show_mib
from declarative.planner.approval import plain
from declarative.planner.offers import OfferListing, grouped_by_zone, priced_on
from declarative.planner.plan import FORMAT_VERSION
from declarative.render.actions import one_line, written
from declarative.render.output_json import diagnostics_json, iso, iso_ms, output
from declarative.render.plan import prices_line
from declarative.render.text import Cell, Paint, columns, money, seal, sentence
from declarative.store.events import Event
from declarative.store.journal import Operation
from declarative.store.loop_state import ENDS, Approval

HEADS = ("USD/h", "type", "CPUs", "memory", "GPUs", "disk", "backend", "region", "zones", "", "limit")
MOST = 30
"""How many rows are shown unless the user asks for all."""


def offers_text(listing: OfferListing, *, everything: bool, color: bool) -> str:
    """A table, cheapest first. Offers that differ only in their zone share a row."""
    paint = Paint(color=color)
    rows = grouped_by_zone(listing.offers)
    shown = rows if everything else rows[:MOST]
    lines: list[str] = []
    if rows:
        table = [
            [
                Cell("?" if offer.price is None else money(offer.price), right=True),
                Cell(clean(offer.instance_type)),
                Cell(str(offer.shape.cpu), right=True),
                Cell(show_mib(offer.shape.memory_mib), right=True),
                Cell(clean(gpus(offer.shape))),
                Cell("" if offer.shape.disk_mib is None else show_mib(offer.shape.disk_mib)),
                Cell(clean(offer.backend)),
                Cell(clean(offer.region)),
                # `a, b, f`: the ends of zone names that begin with their region's name.
                Cell(clean(", ".join(z.removeprefix(offer.region).lstrip("-") or z for z in zones))),
                Cell("spot" if offer.spot else ""),
                Cell("" if offer.limit is None else str(offer.limit)),
            ]
            for offer, zones in shown
        ]
        # Columns without a value have no head, and are left out.
        filled = [any(row[i].text for row in table) for i in range(len(HEADS))]
        heads = [
            Cell(h if f else "", "dim", right=c.right)
            for h, f, c in zip(HEADS, filled, table[0], strict=True)
        ]
        lines = columns([heads, *table], paint)
    if lines:
        lines.append("")
    if len(rows) > len(shown):
        more = f"… {len(rows) - len(shown):,} more"
        lines.append(f"{more}: `--all` shows them; `--gpu H100:8` and the like narrow it (`--help`)")
    days = priced_on(listing.offers)
    if days:
        lines.append(paint("dim", prices_line(days)))
    if any(offer.price is None for offer, _ in shown):
        lines.append(paint("dim", "`?` is an unknown price; declare prices of your own in `catalog`."))
    return seal(lines, color=color)


def gpus(shape: Shape) -> str:
    """The GPUs in the notation of `resources`: `H100:80GB:8`."""
    if not shape.gpus:
        return ""
    memory = show_mib(shape.gpu_memory_mib) if shape.gpu_memory_mib else ""
    return ":".join(part for part in (shape.gpu_name or "", memory, str(shape.gpus)) if part)


@struct(frozen=True, slots=True, kw_only=True)
class ShapeOutput:
    """What a node of the offer has."""

    cpu: int
    memory_mib: int
    disk_mib: int | None
    gpus: int
    gpu_name: str | None
    gpu_memory_mib: int | None


@struct(frozen=True, slots=True, kw_only=True)
class OfferOutput:
    """One offer of `offers --json`."""

    backend: str
    region: str
    zone: str | None
    instance_type: str
    resources: Annotated[ShapeOutput, Of("shape")]
    spot: bool
    price: Usd | None
    priced_on: Annotated[str | None, Of(lambda offer: None if offer.price is None else offer.priced_on)]
    limit: int | None


def offers_json(listing: OfferListing, diagnostics: Sequence[Diagnostic]) -> dict[str, Any]:
    """Every offer on its own, in the same order. `total` is the number of offers examined."""
    return {
        "format_version": FORMAT_VERSION,
        "total": listing.total,
        "offers": [output(OfferOutput, offer) for offer in listing.offers],
        "diagnostics": diagnostics_json(diagnostics),
    }


def state_text(records: Iterable[Record], *, detail: bool = False) -> str:
    """One address a line; with `detail`, everything recorded about each."""

    def order(record: Record) -> tuple[object, ...]:
        kind, name = record.address
        return (KINDS.index(kind) if kind in KINDS else len(KINDS), kind, natural(name))

    lines: list[str] = []
    for record in sorted(records, key=order):
        if detail and lines:
            lines.append("")
        lines.append(clean(record.address))
        if detail:
            lines.append(f"  backend: {clean(record.backend or '-')}")
            lines.append(f"  generation: {record.generation}")
            for title, values in (("inputs", record.inputs), ("outputs", record.outputs)):
                lines.append(f"  {title}:{'' if values else ' -'}")
                lines += _values(plain(values), "    ")
            lines.append(f"  needs:{'' if record.needs else ' -'}")
            lines += [f"    {clean(address)}" for address in sorted(map(str, record.needs))]
    return seal(lines, color=False)


def _values(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    """Nested values, one a line, complete: people read a record when something is wrong."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{clean(key)}:"
            yield from _values(value, indent + "  ")
        elif isinstance(value, list) and value:
            yield f"{indent}{clean(key)}:"
            for item in value:
                yield from _text(f"{indent}  -", item)
        else:
            yield from _text(f"{indent}{clean(key)}:", value)


def _text(head: str, value: Any) -> Iterator[str]:
    """A value after its head; a text of several lines goes below it as a block."""
    if isinstance(value, str):
        yield from written(f"{head} ", value)
    else:
        yield f"{head} {one_line('', value)}"


# ------------------------------------------------------------------------------------------ history

HISTORY_VERSION = 1
SHORT = 10
"""How many characters of a commit's id are shown."""
_STYLES = {"failed": "red", None: "yellow"}


def history_text(operations: Iterable[Operation], *, color: bool) -> str:
    """One entry a line, in the order given: when, what, to what, by whom, with what result."""
    paint = Paint(color=color)
    return seal(columns([entry_cells(entry) for entry in operations], paint, indent=""), color=color)


def entry_cells(entry: Operation) -> tuple[Cell, ...]:
    """When, what, to what, by whom, with what result."""
    was = f" (was {clean(entry.was)})" if entry.was else ""
    outcome = clean(entry.result or "open: read back by the next apply")
    why = entry.error or entry.reason
    error = f": {sentence(why)}" if why else ""
    who = f"{clean(entry.doing)} on {clean(entry.host)}" if entry.doing and entry.host else ""
    who += f" by {clean(entry.actor)}" if entry.actor else ""
    who += f" at {clean(entry.revision[:SHORT])}" if entry.revision else ""
    return (
        Cell(iso(entry.begun_at) or ""),
        Cell(clean(entry.op)),
        Cell(clean(entry.address) + was),
        Cell(who),
        Cell(outcome + error, _STYLES.get(entry.result)),
    )


def history_json(operations: Iterable[Operation]) -> dict[str, Any]:
    """The history as data."""
    return {
        "format_version": HISTORY_VERSION,
        "operations": [output(Operation, entry) for entry in operations],
    }


# ------------------------------------------------------------------------------------------- events

_SHOWN = {
    "cause": "{}",
    "error": "{}",
    "reason": "{}",
    "summary": "{}",
    "exit_code": "exit code {}",
    "backend": "{}",
    "actor": "by {}",
}
"""The details of an event that people see, in this order, with their words."""


def event_cells(event: Event) -> tuple[Cell, ...]:
    """The cells of an event: when, what, of what, and why."""
    details = ((form, event.detail.get(name)) for name, form in _SHOWN.items())
    # Each text once: the cause of a failure is often its exit code.
    texts = dict.fromkeys(sentence(form.format(value)) for form, value in details if value is not None)
    why = ", ".join(texts)
    return (Cell(iso(event.at) or ""), Cell(clean(event.type)), Cell(clean(event.address)), Cell(why))


def events_text(events: Iterable[Event], *, color: bool) -> str:
    """One event a line."""
    return seal(columns(list(map(event_cells, events)), Paint(color=color), indent=""), color=color)


@struct(frozen=True, slots=True, kw_only=True)
class EventOutput:
    """One event, as streams and webhooks get it."""

    cursor: Annotated[str, Of("id")]
    time: Annotated[str, Of(lambda event: iso_ms(event.at))]
    type: str
    address: str
    detail: Mapping[str, Any]


def event_json(event: Event, lineage: str | None) -> dict[str, Any]:
    """One event as data. `id` is the same each time."""
    first = {"format_version": HISTORY_VERSION, "id": f"{lineage or 'none'}-{event.id}"}
    return {**first, **output(EventOutput, event)}


# ---------------------------------------------------------------------------------------- approvals


def approvals_text(approvals: Sequence[Approval]) -> str:
    """The actions that wait for a person, and those approved, under their digests."""
    lines = []
    for approval in approvals:
        by = f" by {approval.actor}" if approval.actor else ""
        state = f"approved{by}" if approval.approved_at else f"waits since {iso(approval.since)}"
        lines += [f"{approval.digest}  {state}", *(f"  {step}" for step in approval.steps)]
    return "\n".join(lines) + "\n" if lines else "Nothing waits for approval.\n"


@struct(frozen=True, slots=True, kw_only=True)
class ApprovalOutput:
    """One approval of `approve --json`."""

    digest: str
    actions: Annotated[tuple[str, ...], Of(lambda a: [step.removesuffix(ENDS) for step in a.steps])]
    ends: Annotated[
        tuple[str, ...], Of(lambda a: [step.removesuffix(ENDS) for step in a.steps if step.endswith(ENDS)])
    ]
    since: Moment
    approved_at: Moment | None
    approved_by: Annotated[str | None, Of("actor")]


def approvals_json(approvals: Sequence[Approval]) -> dict[str, Any]:
    """The data of `approve --json`."""
    return {"format_version": 1, "waiting": [output(ApprovalOutput, approval) for approval in approvals]}
