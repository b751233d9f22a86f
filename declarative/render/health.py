"""What is not well, as text: of `plan`, `apply` and `status` alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from declarative.model.diagnostic import and_more
from declarative.planner.health import LEFT_OUT, UNREADABLE, Health
from declarative.render.data import iso
from declarative.render.text import Paint, clean, numberless, plural, sentence, wrapped

MOST = 5
"""Names of those with the same trouble that stand on a terminal; elsewhere all do."""


def health_lines(items: Sequence[Health], paint: Paint, width: int | None) -> list[str]:
    """Once for all that have the same trouble: which, since when and what."""
    groups: dict[tuple[str, str], list[Health]] = {}
    for item in items:
        groups.setdefault((item.state, numberless(item.detail)), []).append(item)
    lines: list[str] = []
    for (state, _), found in groups.items():
        names = [clean(f"host {i.host}" if i.host else i.address) for i in found]
        named = and_more(names, len(names) if width is None else MOST)
        since = min((i.since for i in found if i.since is not None), default=None)
        when = "" if since is None else f", since {iso(since)}"
        first = wrapped(f"  {named}: {clean(state.replace('_', ' '))}{when}", width)
        lines += [paint("yellow", line) for line in first]
        lines += wrapped(f"      {sentence(found[0].detail)}", width)
    return ["Not well:", "", *lines, ""] if lines else []


def unwell(items: Sequence[Health]) -> str:
    """`2 nodes take no work, 1 host is left out and 1 backend could not be read`."""
    counts = Counter(i.state if i.state in (LEFT_OUT, UNREADABLE) else "node" for i in items)
    words = []
    for state, what, one, many in (
        ("node", "node", "takes no work", "take no work"),
        (LEFT_OUT, "host", "is left out", "are left out"),
        (UNREADABLE, "backend", "could not be read", "could not be read"),
    ):
        if count := counts[state]:
            words.append(f"{plural(count, what)} {one if count == 1 else many}")
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
