"""Volumes: create, grow in place, replace or delete, and never without leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from declarative.diagnostic import Diagnostic
from declarative.plan.types import Reason
from declarative.resource import Desired
from declarative.spec.values import Size
from declarative.state import Address, Record, State

IN_PLACE = ("size", "tags", "prevent_destroy")


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeFate:
    """What becomes of one volume, declared or recorded."""

    name: str
    record: Record | None
    after: Mapping[str, Any] | None
    replaced: bool = False
    reason: Reason = Reason.NEW
    because: tuple[str, ...] = ()
    kept_back: bool = False
    """It is protected: `destroy` leaves it and names it."""


def judge_all(
    desired: Desired, state: State, *, destroy: bool, pinned: frozenset[Address] = frozenset()
) -> tuple[dict[str, VolumeFate], list[Diagnostic]]:
    """The fates of all volumes, and an error for each that is protected and would be lost.

    `pinned` ones are held by ranks that have no other place: they stay as they are.
    """
    fates: dict[str, VolumeFate] = {}
    errors: list[Diagnostic] = []
    for name, want in sorted(desired.volumes.items()):
        record = state.get("volume", name)
        if record is None:
            fates[name] = VolumeFate(name=name, record=None, after=want.inputs)
            continue
        before, after = record.inputs, _settled(record.inputs, want.inputs)
        if before == after:  # nearly always; all things of one document share their inputs
            fates[name] = VolumeFate(name=name, record=record, after=after)
            continue
        changed = tuple(sorted(k for k in set(before) | set(after) if before.get(k) != after.get(k)))
        moved = tuple(k for k in changed if k not in IN_PLACE)
        shrunk = "size" in changed and Size.parse(after["size"]).mib < Size.parse(before["size"]).mib
        because = (*moved, *(("size",) if shrunk else ()))
        if because and after.get("prevent_destroy"):
            errors.append(_protected(desired, name, f"be replaced (`{because[0]}` changed)", declared=True))
        reason = Reason.CHANGED if changed else Reason.NEW
        fates[name] = VolumeFate(
            name=name,
            record=record,
            after=after,
            replaced=bool(because),
            reason=reason,
            because=because or changed,
        )
    for record in state.of("volume"):
        name = record.address.name
        if name in fates:
            continue
        protected = bool(record.inputs.get("prevent_destroy"))
        if protected and not destroy:
            errors.append(_protected(desired, name, "be deleted", declared=False))
        reason = Reason.DESTROY if destroy else Reason.REMOVED
        fates[name] = VolumeFate(
            name=name, record=record, after=None, reason=reason, kept_back=protected and destroy
        )
    for address in pinned & state.records.keys():
        fate = fates.get(address.name) if address.kind == "volume" else None
        if fate and fate.record and (fate.replaced or fate.after is None):
            fates[fate.name] = VolumeFate(name=fate.name, record=fate.record, after=fate.record.inputs)
    return fates, errors


def _settled(before: Mapping[str, Any], after: Mapping[str, Any]) -> Mapping[str, Any]:
    """A zone that is not declared was chosen with the first rank, and stays."""
    if "zone" in after or "zone" not in before:
        return after
    same = all(before.get(key) == after.get(key) for key in ("backend", "region"))
    return {**after, "zone": before["zone"]} if same else after


def _protected(desired: Desired, name: str, what: str, *, declared: bool) -> Diagnostic:
    address = f"volume/{name}"
    if declared:
        hint = "undo the change, or set `prevent_destroy: false` if its content may be lost"
    else:
        hint = "declare it again, or set `prevent_destroy: false`, apply, and remove it then"
    summary = f"{address} would {what}, but its `prevent_destroy` is true"
    return Diagnostic(
        code="protected", summary=summary, hint=hint, address=address, span=desired.places.get(address)
    )
