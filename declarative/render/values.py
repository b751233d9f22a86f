"""Inputs of actions as text: fields with their values, and what becomes of them."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from declarative.render.text import Paint, cells, clean, clip, ranges
from declarative.spec.values import show_mib
from declarative.state import RETRIES

_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_FROM = re.compile(r"\benv(?:\.|\[\s*['\"])(\w+)")
MOST_LINES = 6
"""Commands or variables of one action that are shown; how many more there are is said."""
MOST_COMPARED = 400
"""Comparing takes the square of it; nobody reads more."""
SHORT_DIGEST = 12
FORCES = "forces replacement"
TOLD_ELSEWHERE = {
    "rank": frozenset({"task", "rank", "volumes", RETRIES}),
    "reservation": frozenset({"task", "rank", "total_blocks"}),
    "attachment": frozenset({"task", "rank", "variable"}),
}
"""Fields that an address or the table of ranks says."""


def is_from(value: object) -> bool:
    """Whether a variable of the caller's environment goes into it."""
    return bool(_names(str(value)))


def _names(text: str) -> list[str]:
    found = (name for expression in _EXPRESSION.findall(text) for name in _FROM.findall(expression))
    return list(dict.fromkeys(found))


def variable(value: object) -> str:
    """The value of an environment variable; where one of the caller goes in, only which one it is."""
    names = _names(str(value))
    if names:
        return f"(from {', '.join(f'${clean(n)}' for n in names)})"
    return one_line(str(value))


def one_line(text: str) -> str:
    """The first line of a text, and how many follow."""
    lines = text.strip("\n").split("\n")
    if len(lines) == 1:
        return clean(lines[0])
    first = next((line for line in lines if line.strip()), "")
    return f"{clean(first)} … (+{len(lines) - 1} lines)"


def short(key: str, value: Any, *, quote: bool = False) -> str:
    """A value on one line. `key` tells sizes in MiB from other numbers."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int) and key.endswith("_mib"):
        return show_mib(value)
    if isinstance(value, Mapping):
        pairs = (f"{clean(k).removesuffix('_mib')}: {short(str(k), v)}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)) and key == "blocks" and all(isinstance(b, int) for b in value):
        return ranges(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(short(key, item) for item in value) + "]"
    if isinstance(value, str):
        if key.removeprefix("files.") == "digest":
            value, quote = value[:SHORT_DIGEST], False
        return f'"{one_line(value)}"' if quote or not value else one_line(value)
    if isinstance(value, float):
        return str(value).removesuffix(".0")
    return clean(value)


def where(kind: str, inputs: Mapping[str, Any]) -> str:
    """What a reservation or an attachment is, in a few words; empty for the other kinds."""
    node = clean(f"node/{inputs.get('node')}")
    if kind == "reservation":
        return f"blocks {short('blocks', inputs.get('blocks'))} of {node}"
    return f"{clean(inputs.get('path'))} on {node}" if kind == "attachment" else ""


def fields(kind: str, after: Mapping[str, Any], width: int) -> Iterator[str]:
    """The fields of something that is made, one a line; commands and variables one a line each."""
    hidden = TOLD_ELSEWHERE.get(kind, frozenset())
    for key, value in after.items():
        name = clean(key)
        if key in hidden or value is None:
            continue
        if key == "commands" and isinstance(value, (list, tuple)):
            yield f"{name}:"
            yield from _most([clip(f"  - {one_line(str(item))}", width) for item in value])
        elif key == "env" and isinstance(value, Mapping):
            yield f"{name}:"
            yield from _most([clip(f"  {clean(k)}={variable(v)}", width) for k, v in value.items()])
        else:
            yield clip(f"{name}: {short(key, value)}", width)


def _most(lines: list[str]) -> Iterator[str]:
    cut = len(lines) if len(lines) <= MOST_LINES else MOST_LINES - 1
    yield from lines[:cut]
    if cut < len(lines):
        yield f"  … {len(lines) - cut} more"


def changes(
    kind: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    forcing: Collection[str],
    width: int,
    paint: Paint,
) -> Iterator[str]:
    """The fields that differ, old → new; those of `forcing` say that they force the replacement."""
    hidden = TOLD_ELSEWHERE.get(kind, frozenset()) - set(forcing)
    keys = [*after, *(key for key in sorted(before) if key not in after)]
    for key in keys:
        old, new = before.get(key), after.get(key)
        if old == new or key in hidden:
            continue
        note = paint("dim", f"  # {FORCES}") if key in forcing else ""
        for i, line in enumerate(
            _change(str(key), old, new, width - (len(FORCES) + 4 if note else 0), paint)
        ):
            yield line + (note if i == 0 else "")


def _change(key: str, old: Any, new: Any, width: int, paint: Paint) -> Iterator[str]:
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and key == "commands":
        yield f"{clean(key)}:"
        yield from _list_change(old, new, width, paint)
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*new, *sorted(old, key=str)]):
            if old.get(name) != new.get(name):
                yield from _leaf(f"{key}.{name}", old.get(name), new.get(name), width, paint)
    else:
        yield from _leaf(key, old, new, width, paint)


def _leaf(key: str, old: Any, new: Any, width: int, paint: Paint) -> Iterator[str]:
    was, now = (_value(key, value) for value in (old, new))
    if was == now:
        now += " (changed)"
    line = f"{clean(key)}: {was} → {now}"
    if cells(line) <= width:
        yield line
        return
    yield f"{clean(key)}:"
    yield paint("red", clip(f"  - {was}", width))
    yield paint("green", clip(f"  + {now}", width))


def _value(key: str, value: Any) -> str:
    if value is None:
        return "(none)"
    if key.startswith("env."):
        return variable(value) if is_from(value) else f'"{variable(value)}"'
    if key == "env" and isinstance(value, Mapping):
        return "{" + ", ".join(f"{clean(k)}={variable(v)}" for k, v in value.items()) + "}"
    return short(key, value, quote=True)


def _list_change(old: Sequence[Any], new: Sequence[Any], width: int, paint: Paint) -> Iterator[str]:
    """Lines that go and lines that come; of those that stay, how many."""
    was, now = [str(item) for item in old], [str(item) for item in new]
    if len(was) + len(now) > MOST_COMPARED:
        yield f"  {len(was)} → {len(now)} lines"
        return
    lines: list[str] = []
    for op, a, b, c, d in difflib.SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        if op == "equal":
            lines.append(f"    … {b - a} unchanged")
            continue
        lines += [paint("red", clip(f"  - {one_line(item)}", width)) for item in was[a:b]]
        lines += [paint("green", clip(f"  + {one_line(item)}", width)) for item in now[c:d]]
    yield from lines if len(lines) <= 4 * MOST_LINES else [*lines[: 4 * MOST_LINES], "  …"]
