"""What all our pages share: templates, the escaping of text, and the map of blocks.

The templates escape all text from outside. A policy in each page forbids all scripts but its own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from declarative.model.text import clean, ranges
from declarative.render.status import Row, stretches

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
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, loader=FunctionLoader(_text)
    )


def _text(name: str) -> str:
    return files("declarative.render").joinpath(name).read_text(encoding="utf-8")


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
