"""The inputs of actions as text: fields with their values, and their changes.

People approve pull requests by this text. So nothing is cut, and no two different values look the same.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from declarative.model.inputs import AttachmentInputs, Inputs, RankInputs, ReservationInputs, data_of
from declarative.model.resource import SUMS
from declarative.model.state import FAILED_ON, RETRIES, SCHEDULED
from declarative.model.text import clean, ranges, show_mib
from declarative.planner.plan import Loss
from declarative.render.output_json import iso
from declarative.render.text import PLAIN_WIDTH, Paint, cells, wrapped

_FROM = re.compile(r"\$\{\{\s*env(?:\.(\w+)|\[\s*(['\"])(\w+)\2\s*\])\s*\}\}")
_AMBIGUOUS = re.compile(r"[,{}\[\]\"]|:\s|:$|^\s|\s$|^$|[\x00-\x1f]")
"""Text that could be mistaken for a part of the list or mapping around it."""
_CONSTANTS = {True: "true", False: "false", None: "null"}
MOST_COMPARED = 400
"""Up to so many lines are compared, since the time grows with the square. Of more, all are shown
as changed.
"""
CONTEXT = 2
"""How many unchanged lines are shown before and after changed ones."""
EMPTY: Mapping[str, Any] = {"commands": (), "env": {}}
"""Fields whose items are shown one by one, and their value if there were none."""
LEFT_OUT = {f.name: f.default for f in dataclasses.fields(RankInputs) if isinstance(f.default, int)}
"""The values of fields that are not recorded: `nodes: 1` is left out of the record and does not mean none."""
FORCES = "forces replacement"
SHOWN_ELSEWHERE = {
    "task": frozenset({"task", "rank", RETRIES, SCHEDULED, FAILED_ON, SUMS}),
    "rank": frozenset({"task", "rank", "volumes", RETRIES, SCHEDULED, FAILED_ON, SUMS}),
    "reservation": frozenset({"task", "rank", "total_blocks"}),
    "attachment": frozenset({"task", "rank", "variable"}),
}
"""Fields that the address or the table of ranks already shows."""


# ---------------------------------------------------------------------------------------- single values


def reference(text: str) -> str | None:
    """`(from $KEY)` for a text that is only a variable of the caller's environment, else None.

    Any other text is shown as written. It is not a secret itself, and text around a secret may be what sends
    the secret away.
    """
    match = _FROM.fullmatch(text.strip()) if "${{" in text else None
    return f"(from ${match[1] or match[3]})" if match else None


def visible(line: str) -> str:
    """One line without control characters. Spaces at its end are made visible."""
    stripped = line.rstrip(" ")
    return clean(stripped) + "\N{SYMBOL FOR SPACE}" * (len(line) - len(stripped))


def quoted(text: str, *, ascii: bool = False) -> str:
    """The text in quotes, as in JSON."""
    return clean(json.dumps(text, ensure_ascii=ascii))


def written(head: str, text: str) -> Iterator[str]:
    """A text after its head. Several lines go below it, with YAML's sign for line breaks at the end."""
    shown = reference(text)
    if shown or "\n" not in text:
        yield head + (shown or visible(text) or '""')
        return
    body = text.rstrip("\n")
    yield f"{head}|{('-', '')[len(text) - len(body)] if len(text) - len(body) < 2 else '+'}"
    indent = " " * (len(head) - len(head.lstrip()) + 2)
    yield from (indent + visible(line) for line in text.removesuffix("\n").split("\n"))


def one_line(key: str, value: Any, *, quote: bool = False, inside: bool = False) -> str:
    """A value on one line. A `key` in `_mib` marks a size; `inside` means that the value is in a list or
    mapping.
    """
    if isinstance(value, bool) or value is None:
        return _CONSTANTS[value]
    if isinstance(value, int) and key.endswith("_mib"):
        return show_mib(value)
    if isinstance(value, str):
        if (variable := reference(value)) or quote:
            return variable or quoted(value)
        return _inside(value) if inside or not value or "\n" in value else visible(value)
    if isinstance(value, float):
        return str(value).removesuffix(".0")
    if isinstance(value, Mapping):
        pairs = (
            f"{_inside(str(k)).removesuffix('_mib')}: {one_line(str(k), v, inside=True)}"
            for k, v in value.items()
        )
        return "{" + ", ".join(pairs) + "}"
    if not isinstance(value, (list, tuple)):
        return clean(value)
    if key == "blocks" and all(isinstance(block, int) for block in value):
        return ranges(value)
    return "[" + ", ".join(one_line(key, item, inside=True) for item in value) + "]"


def _inside(text: str) -> str:
    """The text, in quotes if it is ambiguous."""
    return quoted(text) if _AMBIGUOUS.search(text) else clean(text)


def where(inputs: Inputs) -> str:
    """A reservation or an attachment in a few words; empty for other kinds."""
    if isinstance(inputs, ReservationInputs):
        return f"blocks {one_line('blocks', inputs.blocks)} of {clean(f'node/{inputs.node}')}"
    if isinstance(inputs, AttachmentInputs):
        return f"{clean(inputs.path)} on {clean(f'node/{inputs.node}')}"
    return ""


# -------------------------------------------------------------------------------------------- of actions


def loss_text(loss: Loss) -> str:
    """`its content (1GB, unused since 2026-03-01)`."""
    used = None if loss.unused_since is None else f"unused since {(iso(loss.unused_since) or '')[:10]}"
    words = [word for word in (loss.size, f"in use by {loss.task}" if loss.task else used) if word]
    return f"its content ({', '.join(words)})" if words else "its content"


def shown_fields(kind: str, inputs: Inputs) -> dict[str, Any]:
    """The fields of a new thing that no other part of the plan shows."""
    hidden = SHOWN_ELSEWHERE.get(kind, frozenset())
    return {key: value for key, value in data_of(inputs).items() if key not in hidden}


def fields(made: Mapping[str, Any]) -> Iterator[str]:
    """The fields of a new thing; commands and variables one by one."""
    for key, value in made.items():
        name = clean(key)
        if key == "commands" and isinstance(value, (list, tuple)):
            yield f"{name}:"
            for item in value:
                yield from written("  - ", str(item))
        elif key == "env" and isinstance(value, Mapping):
            yield f"{name}:"
            for variable, item in value.items():
                yield from written(f"  {clean(variable)}=", str(item))
        elif isinstance(value, str) and "\n" in value:
            yield from written(f"{name}: ", value)
        else:
            yield f"{name}: {one_line(key, value)}"


def differing(
    kind: str, before: Inputs, after: Inputs, forcing: Collection[str]
) -> list[tuple[str, Any, Any]]:
    """The fields that differ, each with old and new value."""
    was, now = data_of(before), data_of(after)
    hidden = SHOWN_ELSEWHERE.get(kind, frozenset()) - set(forcing)
    keys = [*now, *(key for key in sorted(was) if key not in now)]
    absent = {key: LEFT_OUT.get(key) for key in keys}
    pairs = ((key, was.get(key, absent[key]), now.get(key, absent[key])) for key in keys if key not in hidden)
    return [(str(key), old, new) for key, old, new in pairs if old != new]


def changes(
    pairs: Collection[tuple[str, Any, Any]], *, forcing: Collection[str], width: int | None, paint: Paint
) -> Iterator[str]:
    """The fields of `differing`, old → new. A note marks fields in `forcing`, which force the replacement.

    `width` is the room for a line in columns; None sets no limit.
    """
    for key, old, new in pairs:
        note = f"  # {FORCES}" if key in forcing else ""
        room = (PLAIN_WIDTH if width is None else width) - len(note)
        for i, (style, line) in enumerate(_change(key, old, new, room)):
            *pieces, last = wrapped(line, width and room)
            yield from (paint(style, piece) for piece in pieces)
            yield paint(style, last) + (paint("dim", note) if i == 0 else "")


Line = tuple[str | None, str]
"""A line and its style."""


def _change(key: str, old: Any, new: Any, room: int) -> Iterator[Line]:
    if old is None and key in EMPTY:
        old = EMPTY[key]
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and key == "commands":
        yield None, f"{clean(key)}:"
        yield from _line_changes(list(map(str, old)), list(map(str, new)))
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*new, *sorted(old, key=str)]):
            was, now = old.get(name), new.get(name)
            if was == now:
                continue
            if key == "host" and name == "env":
                yield from _change(f"{key}.{name}", was or {}, now or {}, room)
            else:
                yield from _leaf(f"{key}.{name}", was, now, room)
    else:
        yield from _leaf(key, old, new, room)


def _leaf(key: str, old: Any, new: Any, room: int) -> Iterator[Line]:
    if isinstance(old, str) and isinstance(new, str) and "\n" in old + new:
        yield None, f"{clean(key)}:"
        yield from _line_changes([old], [new])
        return
    was, now = ("(none)" if value is None else one_line(key, value, quote=True) for value in (old, new))
    if _look_alike([was], [now]):
        was, now = (ascii(value) for value in (old, new))
    line = f"{clean(key)}: {was} → {now}"
    if cells(line) <= room:
        yield None, line
        return
    yield None, f"{clean(key)}:"
    yield "red", f"  - {was}"
    yield "green", f"  + {now}"


def _look_alike(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether a reader may mistake the lines for each other. They differ only in blanks, in forms of a
    letter, or in non-ASCII letters that may look like ASCII ones (Cyrillic ie for e).
    """
    pairs = (
        [" ".join(unicodedata.normalize("NFKC", text).split()) for text in lines] for lines in (some, others)
    )
    one, other = map("\n".join, pairs)
    return len(one) == len(other) and all(
        a == b or not (a + b).isascii() for a, b in zip(one, other, strict=True)
    )


def _line_changes(old: Sequence[str], new: Sequence[str]) -> Iterator[Line]:
    """Deleted and added lines, with some unchanged lines around them; the rest are counted."""
    was, now = _lines(old), _lines(new)
    if was == now:
        was, now = ([quoted(text, ascii=True) for text in texts] for texts in (old, new))
    for op, a, b, c, d in _opcodes(was, now):
        if op == "equal":
            first, last = (0 if a == 0 else CONTEXT), (0 if b == len(was) else CONTEXT)
            between = b - a - first - last
            if between <= 1:
                first, last, between = b - a, 0, 0
            yield from ((None, f"    {line}") for line in was[a : a + first])
            if between:
                yield None, f"    … {between} unchanged"
            yield from ((None, f"    {line}") for line in was[b - last : b])
        else:
            deleted, added = was[a:b], now[c:d]
            if _look_alike(deleted, added):
                deleted, added = list(map(ascii, deleted)), list(map(ascii, added))
            yield from (("red", f"  - {line}") for line in deleted)
            yield from (("green", f"  + {line}") for line in added)


def _lines(texts: Sequence[str]) -> list[str]:
    return [line for text in texts for line in written("", text)]


def _opcodes(was: Sequence[str], now: Sequence[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """The opcodes of `SequenceMatcher`. In long texts, everything but the equal ends counts as changed."""
    most = min(len(was), len(now))
    head = next((i for i in range(most) if was[i] != now[i]), most)
    tail = next((i for i in range(most - head) if was[-1 - i] != now[-1 - i]), most - head)
    a, b = len(was) - tail, len(now) - tail
    if head:
        yield "equal", 0, head, 0, head
    if a + b - 2 * head > MOST_COMPARED:
        yield "replace", head, a, head, b
    else:
        matcher = difflib.SequenceMatcher(None, was[head:a], now[head:b], autojunk=False)
        for op, i, j, k, m in matcher.get_opcodes():
            yield op, i + head, j + head, k + head, m + head
    if tail:
        yield "equal", a, len(was), b, len(now)
