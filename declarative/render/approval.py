"""A digest of what a plan does, for people to approve, and the differences from an approved plan.

The digest covers what is done and to what, not when the plan was made, or why. So the same plan has the same
digest in a pull request and after the merge, as long as files, state and world are the same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from declarative.model.codec import to_data
from declarative.model.record import dataclass
from declarative.model.state import RETRIES
from declarative.planner.types import Action, Plan
from declarative.render.text import clean, host_lists, numberless

MARK = "fleetform-approval:"
"""Marks the JSON of the approval in a report."""
_HEX = 16
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MARKED = re.compile(re.escape(MARK) + r" (\{.*\}) -->")
_NOT_SHOWN = frozenset({"reason", "because"})


@dataclass(frozen=True, slots=True)
class PlanDigest:
    """What a person approves: `parts` maps each step (`create node/gpu-[0-3]`) to a digest of its details."""

    digest: str
    parts: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """The digest and its parts as JSON."""
        return {
            "digest": self.digest,
            "parts": [{"step": step, "digest": found} for step, found in self.parts.items()],
        }

    def hidden(self) -> str:
        """The digest as a comment of Markdown or HTML. Nothing in it ends the comment, or has a meaning for a
        forge.
        """
        text = json.dumps(self.to_json(), separators=(",", ":"))
        for char in "<>&@#`-":
            text = text.replace(char, f"\\u{ord(char):04x}")
        return f"<!-- {MARK} {text} -->"


def approval_of(plan: Plan) -> PlanDigest:
    """The digest to approve for this plan."""
    alike: dict[tuple[str, str, str], list[Action]] = {}
    for action in plan.actions:
        key = (action.op.value, action.address.kind, numberless(action.address.name))
        alike.setdefault(key, []).append(action)
    parts: dict[str, str] = {"state": str(plan.basis.lineage)}
    for (op, _, _), actions in alike.items():
        names = ", ".join(host_lists(clean(a.address) for a in actions))
        parts[f"{op} {names}"] = _digest([_done(action) for action in actions])[:_HEX]
    for move in plan.scope.moved:
        parts[f"rename {clean(move.source)} to {clean(move.target)}"] = _digest(list(move.addresses))[:_HEX]
    unplaced = sorted(refusal.task for refusal in plan.unplaced.refusals)
    if unplaced:
        parts["not placed: " + ", ".join(host_lists(f"task/{task}" for task in unplaced))] = ""
    return PlanDigest(f"sha256:{_digest(parts)}", parts)


def _digest(data: Any) -> str:
    """SHA-256 of the data as ASCII: texts from outside may contain what UTF-8 cannot encode."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _done(action: Action) -> Any:
    """What an action does. Of a retry its number counts, but not its time, which differs in each plan."""
    found = {key: value for key, value in to_data(action).items() if key not in _NOT_SHOWN}
    after = found.get("after")
    if isinstance(after, dict) and isinstance(after.get(RETRIES), dict):
        series = {key: value for key, value in after[RETRIES].items() if key not in ("since", "at")}
        found["after"] = {**after, RETRIES: series}
    return found


def differences(approved: PlanDigest, now: PlanDigest) -> Iterator[str]:
    """How the plan differs from the approved one, one line each."""
    if approved.digest == now.digest:
        return
    if not approved.parts:
        yield "only the digest of the approved plan is known: compare its report with this plan"
    for step, found in now.parts.items() if approved.parts else ():
        if step not in approved.parts:
            yield f"not approved: {step}"
        elif approved.parts[step] != found:
            yield f"not as approved: {step}"
    for step in approved.parts:
        if step not in now.parts:
            yield f"approved, and not done now: {clean(step)}"


def is_digest(text: str) -> bool:
    """Whether it is a digest and not a file's name."""
    return _DIGEST.fullmatch(text) is not None


def read_approval(text: str) -> PlanDigest:
    """The approval in `plan --json`, or in a report; ValueError if there is none."""
    marked = _MARKED.search(text)
    data = json.loads(marked[1] if marked else text)
    found = data.get("digest") if isinstance(data, dict) else None
    if not isinstance(found, str) or not is_digest(found):
        raise ValueError("no digest")
    try:
        parts = {str(part["step"]): str(part["digest"]) for part in data.get("parts") or ()}
    except (TypeError, KeyError):
        raise ValueError("no parts") from None
    return PlanDigest(found, parts)
