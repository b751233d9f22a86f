"""What could be launched, as text and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from declarative.model.blocks import Shape
from declarative.model.diagnostic import Diagnostic
from declarative.model.resource import Offer
from declarative.model.spec.values import show_mib
from declarative.planner.offers import Offered, grouped, priced_on
from declarative.planner.types import FORMAT_VERSION
from declarative.render.data import diagnostics_json
from declarative.render.plan import prices_line
from declarative.render.text import Cell, Paint, clean, columns, money, seal

MOST = 30
"""Rows that are shown unless all are asked for."""


def offers_text(found: Offered, *, everything: bool, color: bool) -> str:
    """A table, cheapest first: offers that differ in their zone alone share a row."""
    paint = Paint(color=color)
    rows = grouped(found.offers)
    shown = rows if everything else rows[:MOST]
    lines = columns(_table(shown), paint) if rows else []
    if lines:
        lines.append("")
    if len(rows) > len(shown):
        more = f"… {len(rows) - len(shown):,} more"
        lines.append(f"{more}: `--all` shows them; `--gpu H100:8` and the like narrow it (`--help`)")
    days = priced_on(found.offers)
    if days:
        lines.append(paint("dim", prices_line(days)))
    if any(offer.price is None for offer, _ in shown):
        lines.append(paint("dim", "`?` is a price that is not known; `catalog` takes prices of your own."))
    return seal(lines, color=color)


def _table(rows: Sequence[tuple[Offer, tuple[str, ...]]]) -> list[list[Cell]]:
    """With a head over each column that has something in it."""
    table = [_row(offer, zones) for offer, zones in rows]
    heads = ("USD/h", "type", "CPUs", "memory", "GPUs", "disk", "backend", "region", "zones", "", "limit")
    filled = [any(row[i].text for row in table) for i in range(len(heads))]
    return [
        [Cell(h if f else "", "dim", right=c.right) for h, f, c in zip(heads, filled, table[0], strict=True)],
        *table,
    ]


def _row(offer: Offer, zones: Sequence[str]) -> list[Cell]:
    shape = offer.shape
    return [
        Cell("?" if offer.price is None else money(offer.price), right=True),
        Cell(clean(offer.instance_type)),
        Cell(str(shape.cpu), right=True),
        Cell(show_mib(shape.memory_mib), right=True),
        Cell(clean(gpus(shape))),
        Cell("" if shape.disk_mib is None else show_mib(shape.disk_mib)),
        Cell(clean(offer.backend)),
        Cell(clean(offer.region)),
        Cell(clean(_zones(offer.region, zones))),
        Cell("spot" if offer.spot else ""),
        Cell("" if offer.limit is None else str(offer.limit)),
    ]


def gpus(shape: Shape) -> str:
    """As `resources` has it: `H100:80GB:8`."""
    if not shape.gpus:
        return ""
    memory = show_mib(shape.gpu_memory_mib) if shape.gpu_memory_mib else ""
    return ":".join(part for part in (shape.gpu_name or "", memory, str(shape.gpus)) if part)


def _zones(region: str, zones: Sequence[str]) -> str:
    """`a, b, f` of zones that are called as their region, with something at the end."""
    return ", ".join(z.removeprefix(region).lstrip("-") or z for z in zones)


def offers_json(found: Offered, diagnostics: Sequence[Diagnostic]) -> dict[str, Any]:
    """Every offer by itself, in the same order; `total` is how many were looked at."""
    return {
        "format_version": FORMAT_VERSION,
        "total": found.total,
        "offers": [_offer(offer) for offer in found.offers],
        "diagnostics": diagnostics_json(diagnostics),
    }


def _offer(offer: Offer) -> Mapping[str, Any]:
    shape = offer.shape
    return {
        "backend": offer.backend,
        "region": offer.region,
        "zone": offer.zone,
        "instance_type": offer.instance_type,
        "resources": {
            "cpu": shape.cpu,
            "memory_mib": shape.memory_mib,
            "disk_mib": shape.disk_mib,
            "gpus": shape.gpus,
            "gpu_name": shape.gpu_name,
            "gpu_memory_mib": shape.gpu_memory_mib,
        },
        "spot": offer.spot,
        "price": None if offer.price is None else round(float(offer.price), 6),
        "priced_on": offer.priced_on if offer.price is not None else None,
        "limit": offer.limit,
    }
