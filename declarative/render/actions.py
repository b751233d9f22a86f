"""The actions of a plan as text: symbol, address, reason in words, fields with their values and changes.
Similar actions share an entry. People approve pull requests by this text: nothing is cut, and no two
different values look the same.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from declarative.model.inputs import (
    AttachmentInputs,
    Inputs,
    NodeInputs,
    RankInputs,
    ReservationInputs,
    data_of,
)
from declarative.model.resource import SUMS, changes_text
from declarative.model.resource import changes as files_changed
from declarative.model.state import FAILED_ON, RETRIES, SCHEDULED, Address
from declarative.model.text import clean, host_lists, ranges, show_mib
from declarative.planner.plan import (
    Action,
    Loss,
    Op,
    Plan,
    Reason,
    ReservationStatus,
    adopted_id,
    differing_nodes,
)
from declarative.render.output_json import iso
from declarative.render.text import PLAIN_WIDTH, Paint, cells, plural, wrapped

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


SYMBOLS = {
    "create": ("+", "green"),
    "update": ("~", "yellow"),
    "delete": ("-", "red"),
    "replace": ("-/+", "red"),
}
PLACED = ("reservation", "attachment")
"""Kinds whose creation takes one line; three or more share one, since the table of ranks lists them all."""
FORCED = (Reason.CHANGED, Reason.CASCADE, Reason.MISMATCH, Reason.DRIFT)
WAITS_ANEW = "when it is made anew"
"""When a node gets a declared value that it was not made with."""
UNTIL_STARTED = "; running ranks keep the old `env`, ranks that start from now on get the new one"
"""What a change of a host's `env` does not reach."""
RESIZED = "; it is not started anew: its variables keep the number of ranks at its start"
"""What is said of a rank that stays when its task gets more or fewer `nodes`."""
INDENT = " " * 6
_NUMBER = re.compile(r"(?<!\d)(?:0|[1-9]\d*)(?!\d)")
"""A number that can be counted: `1` and `01` are different names."""


class ActionEntry(NamedTuple):
    """One action, or the two actions of a replacement, ready to be printed."""

    address: Address
    change: str
    reason: str
    made: Mapping[str, Any]
    """The fields of a new thing."""
    changed: tuple[tuple[str, Any, Any], ...]
    """The fields that change, with old and new values."""
    forcing: tuple[str, ...] = ()
    where: str = ""

    @property
    def likeness(self) -> tuple[object, ...]:
        """Equal for entries that may be shown as one. It compares values, not their text."""
        name = pattern(self.address.name)
        return (self.address.kind, name, self.change, self.reason, repr(self.made), repr(self.changed))

    def lines(self, width: int | None, paint: Paint) -> Iterator[str]:
        """The fields, one below another."""
        for line in fields(self.made):
            yield from wrapped(line, width)
        yield from changes(self.changed, forcing=self.forcing, width=width, paint=paint)


def actions_lines(plan: Plan, paint: Paint, width: int | None) -> list[str]:
    """All actions in the plan's order, under a line that explains the symbols."""
    entries = entries_of(plan)
    if not entries:
        return []
    used = [c for c in SYMBOLS if any(e.change == c for e in entries)]
    legend = ", ".join(f"{paint(SYMBOLS[c][1], SYMBOLS[c][0])} {c}" for c in used)
    out = [f"Actions ({legend}):", ""]
    for group in grouped(entries):
        out += group_lines(group, paint, width)
    return [*out, ""]


def difference_lines(plan: Plan, paint: Paint, width: int | None) -> list[str]:
    """The declared values that nodes were not made with, alike nodes together."""
    by_node: dict[tuple[str, bool], list[tuple[str, Any, Any]]] = {}
    for difference in plan.observed.differences:
        changed = (difference.field, difference.before, difference.after)
        by_node.setdefault((difference.address, difference.replaced), []).append(changed)
    entries = [
        ActionEntry(Address.parse(name), "update", "by this plan" if now else WAITS_ANEW, {}, tuple(changed))
        for (name, now), changed in by_node.items()
    ]
    return [line for group in grouped(entries) for line in group_lines(group, paint, width)]


def differing_count(plan: Plan) -> str:
    """`2 nodes differ until made anew`; empty if none does."""
    waiting = len(differing_nodes(plan.observed.differences))
    return (
        f"{plural(waiting, 'node')} {'differs' if waiting == 1 else 'differ'} until made anew"
        if waiting
        else ""
    )


def differing_text(plan: Plan) -> str:
    """How many nodes wait to be made anew, and the command that does it for one; empty if none waits."""
    waiting = differing_nodes(plan.observed.differences)
    if not waiting:
        return ""
    one = len(waiting) == 1
    differ, are = ("differs", "it is") if one else ("differ", "they are")
    return (
        f"{plural(len(waiting), 'node')} {differ} from what is declared, until {are} made anew: "
        f"`fleetform apply --replace {clean(waiting[0])}`"
    )


def unstarted_lines(plan: Plan, paint: Paint, width: int | None) -> list[str]:
    """The actions that are not done now: those of tasks without a place, or of running tasks that
    must wait.
    """
    entries: list[ActionEntry] = []
    going = {place.task for place in plan.reservations if place.status == ReservationStatus.KEPT}
    for action in plan.unplaced.starts:
        after, before = action.typed, action.before
        made = shown_fields("task", after) if before is None else {}
        changed = () if before is None else tuple(differing("task", before, after, ()))
        change = "create" if before is None else "replace"
        address = Address("task", str(action.task))
        runs_on = before is not None and action.task in going
        why = "runs on as it is: no place to start it anew" if runs_on else "not started: no place"
        more_ranks = (
            isinstance(before, RankInputs)
            and isinstance(after, RankInputs)
            and action.because == ("nodes",)
            and before.placement == after.placement == "any"
        )
        if runs_on and more_ranks:
            change, why = "update", "runs on as it is: no place for its new ranks"
        entries.append(ActionEntry(address, change, why, made, changed))
    return [line for group in grouped(entries) for line in group_lines(group, paint, width)]


def entries_of(plan: Plan) -> list[ActionEntry]:
    """The actions in the plan's order. The two actions of a replacement are one entry."""
    deletes = {a.address: a for a in plan.actions if a.op is Op.DELETE}
    if not deletes:
        return list(map(_entry, plan.actions))
    lost = {loss.address: f"; {clean(loss_text(loss))} is lost" for loss in plan.losses}
    made = {a.address for a in plan.actions if a.op is Op.CREATE}
    sent = _sent(plan, deletes)
    out: list[ActionEntry] = []
    for action in plan.actions:
        if action.op is Op.DELETE and action.address in made:
            continue  # shown once, with the create
        old = deletes.get(action.address) if action.op is Op.CREATE else None
        anew = _restart_note(action, made, deletes) if old else ""
        entry = _replaced(action, old, sent, anew) if old else _entry(action)
        if note := lost.get(str(action.address)):
            entry = entry._replace(reason=entry.reason + note)
        out.append(entry)
    return out


def _entry(action: Action) -> ActionEntry:
    """The entry of a create, change or delete."""
    kind, before, after = action.address.kind, action.before, action.after
    made = shown_fields(kind, after) if after and before is None and kind not in PLACED else {}
    changed = differing(kind, before, after, ()) if before and after else []
    at = where(action.typed) if action.op is Op.CREATE else ""
    return ActionEntry(action.address, action.op.value, _words(action), made, tuple(changed), where=at)


def _replaced(action: Action, old: Action, sent: Mapping[str, str], restart: str) -> ActionEntry:
    """The entry of a delete and a create of the same thing."""
    forcing, reason = action.because, _words(action)
    changed = differing(action.address.kind, old.typed, action.typed, forcing)
    if "files" in forcing and (named := sent.get(str(action.task))):
        reason += f": {clean(named)}"
        changed = [pair for pair in changed if pair[0] != "files"]
    if action.reason in FORCED and not any(key in forcing for key, _, _ in changed):
        reason += f" ({FORCES})"
    return ActionEntry(action.address, "replace", reason + restart + _left(old), {}, tuple(changed), forcing)


def _sent(plan: Plan, deletes: Mapping[Address, Action]) -> dict[str, str]:
    """Which files changed, by task. Only rank 0 records them."""
    out: dict[str, str] = {}
    for action in plan.actions:
        old = deletes.get(action.address) if action.op is Op.CREATE else None
        before, after = old and old.before, action.after
        if not isinstance(before, RankInputs) or not isinstance(after, RankInputs):
            continue
        if before.file_sums is None or after.file_sums is None or not before.files or not after.files:
            continue
        if before.files.paths == after.files.paths:
            out[after.task] = changes_text(files_changed(before.file_sums, after.file_sums))
    return out


def grouped(entries: list[ActionEntry]) -> Iterator[list[ActionEntry]]:
    """Groups of similar neighbours; all other entries alone."""
    for _, alike in groupby(entries, key=lambda entry: entry.likeness):
        group = list(alike)
        if len(group) > (2 if group[0].where else 1):
            yield group
        else:
            yield from ([entry] for entry in group)


def group_lines(group: list[ActionEntry], paint: Paint, width: int | None) -> Iterator[str]:
    """A line with the names of similar entries and the reason, and their fields below it."""
    first = group[0]
    symbol, style = SYMBOLS[first.change]
    names = [clean(entry.address) for entry in group]
    name = ", ".join(host_lists(names) if len(names) > 2 else names)
    note, at = f"  # {first.reason}", f"  {first.where}" if first.where else ""
    if len(group) > 1:
        more = " of them, see below" if first.where else " alike" if first.made or first.changed else ""
        note, at = f"{note} ({len(group)}{more})", ""
    yield f"{paint(style, f'{symbol:>3}')} {paint('bold', name)}{at}{paint('dim', note)}"
    for line in first.lines(width and width - len(INDENT), paint):
        yield INDENT + line


def pattern(name: str) -> str:
    """The name with its numbers replaced, equal for names that differ only in numbers."""
    return _NUMBER.sub("#", name)


def _restart_note(action: Action, made: Collection[Address], deleted: Collection[Address]) -> str:
    """Whether a replaced rank runs now. An ended rank has no blocks, so it only gets new ones."""
    if action.address.kind != "rank":
        return ""
    blocks = Address("reservation", action.address.name)
    ended = blocks in made and blocks not in deleted
    return ": had ended, runs again" if ended else ": stops and starts again"


_PLAIN = {
    Reason.NEW: "new",
    Reason.GONE: "recorded, but gone",
    Reason.REQUESTED: "requested with `--replace`",
    Reason.IDLE: "idle for longer than its fleet's `idle_duration`",
    Reason.UNUSED: "attached to nothing for longer than its `auto_cleanup_duration`",
    Reason.DESTROY: "destroy",
}
"""Reasons with fixed words."""


def _words(action: Action) -> str:
    """The reason in words."""
    return (_PLAIN.get(action.reason) or _cause(action)) + _left(action) + _end(action)


def _end(action: Action) -> str:
    """What happens to work that goes on, if the action ends it without replacing anything, or if the change
    does not reach it.
    """
    if not action.ends:
        before, after = action.before, action.after
        if isinstance(before, NodeInputs) and isinstance(after, NodeInputs):
            return UNTIL_STARTED if before.variables != after.variables else ""
        resized = (
            isinstance(before, RankInputs) and isinstance(after, RankInputs) and before.nodes != after.nodes
        )
        return RESIZED if resized else ""
    if action.op is Op.DELETE:
        return "; it runs, and is stopped at once"
    return (
        "; has run for longer: is stopped at once" if action.stops else "; its time is over: is not run again"
    )


def _cause(action: Action) -> str:
    """A reason in words that name its cause: `retry 2 after rank/train-1 failed: exit code 1`."""
    inputs = action.before or action.typed
    # Addresses as they are, fields in backticks.
    because = ", ".join(clean(item) if "/" in item else f"`{clean(item)}`" for item in action.because)
    fleet = clean(f"fleet/{inputs.fleet}") if isinstance(inputs, NodeInputs) else "its fleet"
    task = clean(f"task/{action.task}")
    theirs = clean(adopted_id(inputs) or "")
    are = "are" if len(action.because) > 1 else "is"
    removed, retry = f"{task} is not declared any more", f"retry of {task}"
    if action.address.kind == "volume":
        removed = "not declared any more"
    elif action.address.kind == "node":  # an adopted one may only be no longer named
        verb = "does not name it" if theirs and action.because else "is not declared"
        removed = f"{fleet} {verb} any more"
    if action.because:
        series = action.after.retries if isinstance(action.after, RankInputs) else None
        number = f" {series.count}" if series else ""
        retry = f"retry{number} after {'; '.join(map(clean, action.because))}"
    causes = {
        Reason.ADOPTED: f"adopted: {theirs} exists",
        Reason.REMOVED: removed,
        Reason.INCOMPLETE: f"{task} was started only in part",
        Reason.RETRY: retry,
        Reason.SURPLUS: f"above the `nodes` of {fleet if action.task is None else task}",
        Reason.SCHEDULE: f"as the `schedule` of {fleet if action.address.kind == 'node' else task} says",
        Reason.MISMATCH: f"outside the {because or 'limits'} of {fleet}",
        Reason.DRIFT: f"{because or 'it'} changed outside of fleetform",
        Reason.UNFIT: next(map(clean, action.because), "unfit"),
        Reason.CASCADE: f"{because or 'something that it needs'} {are} replaced",
        Reason.CHANGED: f"{because} changed" if because else "placed anew",
    }
    return causes[action.reason]


def _left(action: Action) -> str:
    """The note that a thing stays when its record is deleted, because it was adopted or is to be kept."""
    if action.of_gone:
        return "; it is gone, and an empty one is made"
    if action.forget:
        return "; forgotten, and stays as it is (`removed`)"
    return f"; {clean(adopted_id(action.before))} itself stays: it was adopted" if action.forgets else ""


def adoption_text(plan: Plan) -> str:
    """What `apply` does to the instances and volumes that it adopts; empty if there are none."""
    adoptions = [a for a in plan.actions if a.op is Op.CREATE and adopted_id(a.typed)]
    if not adoptions:
        return ""
    nodes = sum(a.address.kind == "node" for a in adoptions)
    counted = ((nodes, "instance"), (len(adoptions) - nodes, "volume"))
    what = " and ".join(plural(count, noun) for count, noun in counted if count)
    return (
        f"Adopted: {what}, as they are. Nothing is restarted, formatted, moved or changed, except that tags "
        "are written: `fleetform:owner`, `…:address`, `…:token`, `…:inputs`, and those of `tags`."
    )


def counts(plan: Plan) -> str:
    """`5 to create, 0 to update, 2 to delete (1 only forgotten), 0 to replace`."""
    made = {action.address for action in plan.actions if action.op is Op.CREATE}
    forgotten = sum(action.forgets and action.address not in made for action in plan.actions)
    notes = {"delete": f" ({forgotten} only forgotten)" if forgotten else ""}
    return ", ".join(
        f"{count} to {change}{notes.get(change, '')}" for change, count in plan.summary().items()
    )


def unplaced_count(plan: Plan) -> str:
    """`2 tasks cannot be placed, 1 of them stays pending`."""
    refusals, pending = plan.unplaced.refusals, plan.unplaced.pending
    text = f"{plural(len(refusals), 'task')} cannot be placed"
    if pending:
        verb = "stays" if len(pending) == 1 else "stay"
        every = len(pending) == len(refusals)
        text += f" now and {verb} pending" if every else f", {len(pending)} of them {verb} pending"
    return f"{text}; the rest is done all the same" if plan.unplaced.allowed and plan.changes else text
