"""A digest of what a plan does, for people to approve, and the differences from an approved plan.

The digest covers what is done and to what, not when the plan was made, or why. So the same plan has the same
digest in a pull request and after the merge, as long as files, state and world are the same.

What is left of an approved plan was approved with it. So a plan may do less than was approved, if the state
shows that the rest is done. Each of its actions has to be an approved one, with the same values. Only a lower
price may differ. Fallbacks that were not approved are not used (`as_approved`), so that none of them, whose
prices change every hour, makes another plan of it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import NoneType
from typing import Any

from declarative.model.inputs import OfferInputs, OfferKey, data_of
from declarative.model.record import struct
from declarative.model.state import RETRIES
from declarative.model.text import clean, host_lists, numberless
from declarative.planner.fallbacks import stand_ins
from declarative.planner.plan import Action, Op, Plan

MARK = "fleetform-approval:"
"""Marks the JSON of the approval in a report."""
REFUSED = "<!-- fleetform-refused -->"
"""Stands in place of the approval in the report of a plan that cannot be applied."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MARKED = re.compile(re.escape(MARK) + r" (\{.*\}) -->|" + re.escape(REFUSED))
"""The last one of a report counts: a text that the report shows may look like one."""
_MOST_BYTES = 64 << 20
"""The largest content of an approval, unpacked."""
_NO_STATE = str(None)
"""The digest of the part `state` if there is none. Another one would change the digests of plans."""
_MOST_CHARS = 80
"""The longest value that a difference shows."""


@struct(frozen=True, slots=True)
class PlanDigest:
    """What a person approves: `parts` maps each step (`create node/gpu-[0-3]`) to a digest of its details.
    `content` are these details in the form of `plan --json`; None if only the digest is known.
    """

    digest: str
    parts: Mapping[str, str]
    content: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The digest and its parts as JSON."""
        return {
            "digest": self.digest,
            "parts": [
                {"step": step, "digest": "" if part_digest == _NO_STATE else part_digest}
                for step, part_digest in self.parts.items()
            ],
        }

    def hidden(self, room: int | None = None) -> str:
        """The digest as a comment of Markdown or HTML, with its content if that fits into `room` characters.
        Nothing in it ends the comment, or has a meaning for a forge.
        """
        packed = base64.b64encode(zlib.compress(_bytes(self.content), 9)).decode()
        whole = _hidden({"digest": self.digest, "content": packed})
        return whole if room is None or len(whole) <= room else _hidden({"digest": self.digest})


def _hidden(data: Mapping[str, str]) -> str:
    text = json.dumps(data, separators=(",", ":"))
    for char in "<>&@#`-":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return f"<!-- {MARK} {text} -->"


def approval_of(plan: Plan) -> PlanDigest:
    """The digest to approve for this plan."""
    return approval_in(
        {
            "lineage": plan.basis.lineage,
            "actions": [
                {"id": action.id, **inputs_data(action), "forget": action.forgets, "ends": action.ends}
                for action in plan.actions
            ],
            "moved": moved_data(plan),
            "unplaced": [{"task": refusal.task} for refusal in plan.unplaced.refusals],
            "fallbacks": fallbacks_data(plan),
        }
    )


def approval_in(data: Mapping[str, Any]) -> PlanDigest:
    """The digest to approve for a plan in the form of `plan --json`; it reads only what it covers."""
    actions = [_done(action) for action in data["actions"]]
    alike: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for action in actions:
        op, _, address = action["id"].partition(":")
        kind, _, name = address.partition("/")
        alike.setdefault((op, kind, numberless(name)), []).append(action)
    parts: dict[str, str] = {"state": str(data["lineage"])}
    for (op, _, _), group in alike.items():
        names = ", ".join(host_lists(clean(action["id"].partition(":")[2]) for action in group))
        parts[f"{op} {names}"] = hashlib.sha256(_bytes(group)).hexdigest()
    for move in data["moved"]:
        parts[_rename(move)] = hashlib.sha256(_bytes(move["addresses"])).hexdigest()
    fallbacks = list(data.get("fallbacks") or ())  # a plan of an earlier version shows none
    for fallback in fallbacks:
        parts[f"fallbacks of {_names(fallback['for'])}"] = hashlib.sha256(_bytes(fallback)).hexdigest()
    unplaced = sorted({str(refusal["task"]) for refusal in data["unplaced"]})
    if unplaced:
        parts["not placed: " + _names(f"task/{task}" for task in unplaced)] = ""
    content = {
        "lineage": data["lineage"],
        "actions": actions,
        "moved": data["moved"],
        "unplaced": [{"task": task} for task in unplaced],
        "fallbacks": fallbacks,
    }
    return PlanDigest(f"sha256:{hashlib.sha256(_bytes(parts)).hexdigest()}", parts, content)


def _bytes(data: Any) -> bytes:
    """Data as ASCII: texts from outside may contain what UTF-8 cannot encode."""
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode()


def _done(action: Mapping[str, Any]) -> dict[str, Any]:
    """What an action does. The number of a retry counts, but not its time, which differs in each plan. An
    update that ends what runs does so by the time of the plan: a `max_duration` that is over by then.
    """
    after = action["after"]
    if after is not None and isinstance(after.get(RETRIES), Mapping):
        series = {key: value for key, value in after[RETRIES].items() if key not in ("since", "at")}
        after = {**after, RETRIES: series}
    ends = {"ends": True} if action.get("ends") and action["id"].startswith("update:") else {}
    return {
        "id": action["id"],
        "before": action["before"],
        "after": after,
        "forget": action["forget"],
        **ends,
    }


def _rename(move: Mapping[str, Any]) -> str:
    return f"rename {clean(move['from'])} to {clean(move['to'])}"


def _names(addresses: Iterable[str]) -> str:
    return ", ".join(host_lists(clean(address) for address in addresses))


def as_approved(plan: Plan, approved: PlanDigest) -> Plan:
    """The plan with only those fallbacks that were approved for the same nodes, at no higher price."""
    if approved.content is None:
        return plan
    prices = {
        (address, *(offer[key] for key in OfferKey._fields)): offer["price"]
        for fallback in approved.content["fallbacks"]
        for address in fallback["for"]
        for offer in fallback["offers"]
    }
    planned = {a.address.name: a.typed for a in plan.of(Op.CREATE, "node")}

    def approves(name: str, offer: OfferInputs) -> bool:
        place = OfferKey.of(offer)
        own = planned.get(name)
        if isinstance(own, OfferInputs) and place == OfferKey.of(own):
            return True
        most = prices.get((f"node/{name}", *place), -1.0)
        return most is None or (offer.price is not None and (number(offer.price) or 0.0) <= most)

    fallbacks = tuple(
        replace(
            fallback,
            ways=tuple(
                way
                for way in fallback.ways
                if all(
                    approves(name, spare.offer)
                    for names, spare in zip(fallback.kinds, way, strict=True)
                    for name in names
                )
            ),
        )
        for fallback in plan.preview.fallbacks
    )
    return replace(plan, preview=replace(plan.preview, fallbacks=fallbacks))


# --------------------------------------------------------------------------------------- what differs


def differences(
    approved: PlanDigest, now: PlanDigest, recorded: Collection[str] = (), earlier: Iterable[PlanDigest] = ()
) -> Iterator[str]:
    """Why the plan is neither the approved one nor what is left of it, one line for each change.

    `recorded` are the addresses in the state: they show what is done already. Of `earlier` approved plans,
    the oldest first, actions may be left as well.
    """
    if approved.digest == now.digest:
        return
    before, after = approved.content, now.content
    if before is None or after is None:
        yield "only the digest of the approved plan is known: compare its report with this plan"
        return
    if before["lineage"] not in (None, after["lineage"]):
        yield f"not as approved: it is another state: {after['lineage']}, approved: {before['lineage']}"
    older = [plan.content for plan in earlier if plan.content is not None]
    contents = [*(c for c in older if c["lineage"] in (None, after["lineage"])), before]
    known = {action["id"]: action for content in contents for action in content["actions"]}
    yield from _not_approved(known, after["actions"])
    moved = [move for content in contents for move in content["moved"]]
    yield from (f"not approved: {_rename(move)}" for move in after["moved"] if move not in moved)
    refused = [refusal for content in contents for refusal in content["unplaced"]]
    unplaced = [refusal["task"] for refusal in after["unplaced"] if refusal not in refused]
    if unplaced:
        yield f"not approved: not placed: {_names(f'task/{task}' for task in unplaced)}"
    planned = {action["id"] for action in after["actions"]}
    undone = [
        action
        for action in before["actions"]
        if action["id"] not in planned and not _is_done(action, known, planned, recorded)
    ]
    yield from (f"approved, and not done now: {step}" for step in _steps(undone))


def _not_approved(known: Mapping[str, Any], actions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The actions that were not approved, and those with other values."""
    changed: dict[tuple[str, str, tuple[str, ...]], dict[str, tuple[str, ...]]] = {}
    strange = []
    for action in actions:
        approved = known.get(action["id"])
        if approved is None:
            strange.append(action)
        elif approved != action and (changes := list(_changes(approved, action))):
            address = action["id"].partition(":")[2]
            kind, _, name = address.partition("/")
            fields = tuple(field for field, _ in changes)
            group = changed.setdefault((kind, numberless(name), fields), {})
            group[address] = tuple(values for _, values in changes)
    yield from (f"not approved: {step}" for step in _steps(strange))
    for (_, _, fields), group in changed.items():
        values = {*group.values()}
        texts = values.pop() if len(values) == 1 else ("",) * len(fields)
        for field, text in zip(fields, texts, strict=True):
            yield f"not as approved: {_names(group)} {field}{text}"


def _changes(approved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The values that differ, each with a text of both; nothing if only the price is lower or less ends."""
    if now.get("ends") and not approved.get("ends"):
        yield "ends what is running", ""
    approved, now = ({k: v for k, v in action.items() if k != "ends"} for action in (approved, now))
    if isinstance(approved["after"], Mapping) and isinstance(now["after"], Mapping):
        was, new = approved["after"].get("price"), now["after"].get("price")
        if isinstance(was, (int, float)) and isinstance(new, (int, float)) and new < was:
            approved = {**approved, "after": {**approved["after"], "price": new}}
    if approved != now and not list(_values(approved, now, ())):
        yield "is written in another way", ""  # `null` and nothing, which mean the same today
    for key, suffix in (("after", ""), ("before", " as recorded"), ("forget", "")):
        for path, was, new in _values(approved[key], now[key], ()):
            if path == ("commands",) and isinstance(was, list) and isinstance(new, list):
                yield from _lines(was, new)
            else:
                yield f"{clean('.'.join(path) or key)}{suffix}", _both(was, new)


def _values(was: Any, now: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(was, Mapping) or isinstance(now, Mapping):
        was, now = was or {}, now or {}
        if not isinstance(was, Mapping) or not isinstance(now, Mapping):
            yield path, was, now
            return
        for key in sorted({*was, *now}):
            yield from _values(was.get(key), now.get(key), (*path, key))
    elif was != now:
        yield path, was, now


def _lines(was: list[Any], now: list[Any]) -> Iterator[tuple[str, str]]:
    """The lines of commands that differ, by their numbers in the plan as it is now."""
    from difflib import SequenceMatcher

    before, after = ("\n".join(map(str, commands)).split("\n") for commands in (was, now))
    if before == after:  # the same lines, cut into other commands
        yield "commands", _both(was, now)
    for kind, i, i_end, j, j_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            for at in range(max(i_end - i, j_end - j)):
                old = before[i + at] if i + at < i_end else None
                new = after[j + at] if j + at < j_end else None
                yield f"command line {(j if new is not None else i) + at + 1}", _both(old, new)


def _both(was: Any, now: Any) -> str:
    return f": {_text(now)}, approved: {_text(was)}"


def _text(value: Any) -> str:
    text = clean(value if isinstance(value, str) else "none" if value is None else json.dumps(value))
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}…"


def _steps(actions: Iterable[Mapping[str, Any]]) -> list[str]:
    """`create node/gpu-[0-3]`: the actions by what they do and to what kind."""
    alike: dict[tuple[str, str], list[str]] = {}
    for action in actions:
        op, _, address = action["id"].partition(":")
        alike.setdefault((op, address.partition("/")[0]), []).append(address)
    return [f"{op} {_names(addresses)}" for (op, _), addresses in alike.items()]


def _is_done(
    action: Mapping[str, Any], known: Collection[str], planned: Collection[str], recorded: Collection[str]
) -> bool:
    """Whether the state shows that an approved action is done, so that no plan has it any more."""
    op, _, address = action["id"].partition(":")
    if op == "delete":
        return address not in recorded or f"create:{address}" in known
    # A rank that ended has given back its blocks, and let go of its volumes.
    kind, _, name = address.partition("/")
    rank = {"reservation": name, "attachment": str((action["after"] or {}).get("rank"))}.get(kind)
    shown_by = (address,) if rank is None else (address, f"rank/{rank}")
    # What the plan deletes is the old one.
    return any(at in recorded and f"delete:{at}" not in planned for at in shown_by)


# -------------------------------------------------------------------------------------------- reading


class RefusedPlanError(ValueError):
    """The report is of a plan with errors: nobody could approve it."""


def is_digest(text: str) -> bool:
    """Whether it is a digest and not a file's name."""
    return _DIGEST.fullmatch(text) is not None


def read_approval(text: str) -> PlanDigest:
    """The approval in `plan --json`, or in a report; ValueError if there is none, `RefusedPlanError` if the
    plan could not be applied.

    The digest is what was approved. Content that it does not cover is not used.
    """
    marked = [] if text.startswith("{") else _MARKED.findall(text)
    data = {"result": "error"} if marked and not marked[-1] else json.loads(marked[-1] if marked else text)
    if isinstance(data, dict) and data.get("result") == "error":
        raise RefusedPlanError
    digest = data.get("digest") if isinstance(data, dict) else None
    if not isinstance(digest, str) or not is_digest(digest):
        raise ValueError("no digest")
    try:
        approval = approval_in(_unpacked(data["content"]) if marked else data)
    except (LookupError, TypeError, ValueError, AttributeError, zlib.error):
        return PlanDigest(digest, {})
    return approval if approval.digest == digest else PlanDigest(digest, {})


def _unpacked(text: str) -> Any:
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
    if not unpacker.eof:
        raise ValueError("too large, or cut short")
    return json.loads(content)


# --------------------------------------------------------------------------------------------- values as JSON


def plain(value: Any) -> Any:
    """Inputs as JSON. Mappings are sorted by key, since a database may return them in another order."""
    if isinstance(value, Mapping):
        return {str(key): plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, (bool, int, NoneType)) else str(value)


def number(value: float | None) -> float | None:
    """An amount of money without what only the way of computing it adds."""
    return None if value is None else round(float(value), 6)


def inputs_data(action: Action) -> dict[str, Any]:
    """The inputs of an action's thing, before and after."""
    return {
        "before": None if action.before is None else plain(data_of(action.before)),
        "after": None if action.after is None else plain(data_of(action.after)),
    }


def moved_data(plan: Plan) -> list[dict[str, Any]]:
    """The renames."""
    return [
        {"from": m.source, "to": m.target, "addresses": [{"from": a, "to": b} for a, b in m.addresses]}
        for m in plan.scope.moved
    ]


def fallbacks_data(plan: Plan) -> list[dict[str, Any]]:
    """What may be launched where planned offers are sold out."""
    return [
        {
            "for": [f"node/{name}" for name in stand_in.names],
            "together": stand_in.together,
            "offers": [
                {**OfferKey.of(offer)._asdict(), "price": number(offer.price)} for offer in stand_in.offers
            ],
            "hourly_at_most": number(stand_in.at_most),
        }
        for stand_in in stand_ins(plan)
    ]
