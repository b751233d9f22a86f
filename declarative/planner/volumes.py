"""Volumes: create, grow in place, replace or delete, and never without leave.

One with an `auto_cleanup_duration` is made for a task, and deleted when nothing had it attached for so
long. It is made again for the next task that mounts it, and not for the sake of being there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.inputs import VolumeInputs, differing
from declarative.model.resource import Desired
from declarative.model.schema import in_place
from declarative.model.spec import Volume
from declarative.model.spec.values import Size
from declarative.model.state import ANOTHERS, TAGS, Address, Record, State
from declarative.placement.types import PlacementOutcome, VolumeAt
from declarative.planner.hosts import has_hosts, ways
from declarative.planner.types import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeDecision:
    """What becomes of one volume, declared or recorded."""

    name: str
    record: Record | None
    after: VolumeInputs | None
    replaced: bool = False
    reason: Reason = Reason.NEW
    because: tuple[str, ...] = ()
    kept_back: bool = False
    """It is protected: `destroy` leaves it and names it."""
    waits: bool = False
    """It is made for a rank, and has none yet: nothing is done about it."""
    forgotten: bool = False
    """It is not declared any more, and stays as it is: its record alone goes."""
    unused: bool = False
    """It is deleted, and made as it is declared for the next task that mounts it."""

    def at(self, holder: str | None) -> VolumeAt:
        """Where it will be, and who holds it."""
        assert self.after is not None
        return VolumeAt(
            backend=self.after.backend,
            region=self.after.region,
            zone=self.after.zone,
            holder=holder,
            fresh=self.record is None or self.replaced or self.unused,
        )


def judge_all(
    desired: Desired,
    state: State,
    *,
    destroy: bool,
    pinned: frozenset[Address] = frozenset(),
    altered: Mapping[Address, Mapping[str, Any]] = MappingProxyType({}),
    requested: Collection[str] = (),
) -> tuple[dict[str, VolumeDecision], list[Diagnostic]]:
    """The decisions of all volumes, and an error for each that is protected and would be lost.

    `pinned` ones are held by ranks that have no other place: they stay as they are. `altered` is what others
    changed: of that, tags are put back. Those that are `requested` (`volume/data-0`) are made anew, empty.
    """
    decisions: dict[str, VolumeDecision] = {}
    errors: list[Diagnostic] = []
    hosts = ways(desired)
    for name, want in sorted(desired.volumes.items()):
        record = state.get("volume", name)
        before = record.volume if record else None
        after = _reached(_settled(before, want.inputs) if before else want.inputs, before, hosts)
        if record is None or before is None:
            reason = Reason.NEW if after.volume_id is None else Reason.ADOPTED
            decisions[name] = VolumeDecision(name=name, record=None, after=after, reason=reason)
        elif str(record.address) in requested:
            errors += _irreplaceable(desired, name, before, after)
            decisions[name] = VolumeDecision(
                name=name, record=record, after=after, replaced=True, reason=Reason.REQUESTED
            )
        elif before == after:  # nearly always
            found = altered.get(record.address, {})
            mended = (TAGS,) if TAGS in found and ANOTHERS not in found else ()
            decisions[name] = VolumeDecision(
                name=name, record=record, after=after, reason=Reason.DRIFT, because=mended
            )
        else:
            changed = decisions[name] = _changed(name, record, after)
            errors += _lost(desired, name, before, after, changed.because) if changed.replaced else ()
    removed, more = _removed(desired, state, decisions, destroy=destroy)
    decisions |= removed
    errors += more
    for address in pinned & state.records.keys():
        if address.kind == "volume" and (decision := decisions.get(address.name)):
            decisions[decision.name] = _staying(decision)
    return decisions, errors


def _changed(name: str, record: Record, after: VolumeInputs) -> VolumeDecision:
    """It is declared otherwise than it was made: changed in place, or made anew."""
    changed = differing(record.volume, after)
    # The input `host` is how its host is reached; the field `host`, which one it is, is the input `zone`.
    moved = tuple(k for k in changed if k not in {*in_place(Volume), "host"})
    because = (*moved, *(("size",) if _shrunk(record.volume, after) else ()))
    return VolumeDecision(
        name=name,
        record=record,
        after=after,
        replaced=bool(because),
        reason=Reason.CHANGED,
        because=because or changed,
    )


def _lost(
    desired: Desired, name: str, before: VolumeInputs, after: VolumeInputs, because: tuple[str, ...]
) -> list[Diagnostic]:
    """Why a volume is not made anew although it is declared otherwise."""
    if because == ("size",) and after.volume_id is not None:
        return [_smaller(desired, name)]
    if after.prevent_destroy and before.volume_id is None:
        field = "host" if because[0] == "zone" and before.host else because[0]
        return [_protected(desired, name, f"be replaced (`{field}` changed)")]
    return []


def _irreplaceable(
    desired: Desired, name: str, before: VolumeInputs, after: VolumeInputs
) -> list[Diagnostic]:
    """Why a volume is not made anew although that is asked for: its content would be lost."""
    address = f"volume/{name}"
    if before.volume_id is not None or after.volume_id is not None:
        return [
            Diagnostic(
                code="protected",
                summary=f"{address} is one that was adopted: it cannot be made anew",
                hint="write another `volume_id`, or none",
                address=address,
                span=desired.places.get(address),
            )
        ]
    if after.prevent_destroy:
        return [_protected(desired, name, "be made anew (`--replace`), empty", undo="")]
    return []


def _removed(
    desired: Desired, state: State, staying: Mapping[str, VolumeDecision], *, destroy: bool
) -> tuple[dict[str, VolumeDecision], list[Diagnostic]]:
    """What becomes of recorded volumes that are not declared any more."""
    out: dict[str, VolumeDecision] = {}
    lost: list[str] = []
    for record in state.of("volume"):
        name = record.address.name
        if name in staying:
            continue
        # What was adopted is let go, and stays as it is.
        adopted = record.volume.volume_id is not None
        said = desired.project.removed.of(name)
        protected = not adopted and said is None and desired.protects(str(record.address), record.volume)
        out[name] = VolumeDecision(
            name=name,
            record=record,
            after=None,
            reason=Reason.DESTROY if destroy else Reason.REMOVED,
            kept_back=protected and destroy,
            forgotten=said is not None and not said.destroy and not adopted,
        )
        if protected and not destroy and record.volume.prevent_destroy:  # else it is for `limits` to say
            lost.append(name)
    return out, [_undeclared(desired, name, lost) for name in lost]


def _shrunk(before: VolumeInputs, after: VolumeInputs) -> bool:
    """Whether it would be smaller. One that was adopted may have a size that is nowhere declared."""
    if before.size is None or after.size is None:
        return False
    return Size.parse(after.size).mib < Size.parse(before.size).mib


def _staying(decision: VolumeDecision) -> VolumeDecision:
    """It is held: neither replaced nor deleted."""
    if decision.record is None or not (decision.replaced or decision.after is None):
        return decision
    return VolumeDecision(name=decision.name, record=decision.record, after=decision.record.volume)


def _settled(before: VolumeInputs, after: VolumeInputs) -> VolumeInputs:
    """A zone that is not declared was chosen with the first rank, and stays."""
    if after.zone is not None or before.zone is None:
        return after
    same = (before.backend, before.region) == (after.backend, after.region)
    return replace(after, zone=before.zone) if same else after


def _reached(
    inputs: VolumeInputs, before: VolumeInputs | None, hosts: Mapping[tuple[str, str], Mapping[str, Any]]
) -> VolumeInputs:
    """With the way to its host, if it is on one; as it was recorded, if no fleet has that host any more."""
    way = hosts.get((inputs.backend, str(inputs.zone)))
    if not way and before and (before.backend, before.zone) == (inputs.backend, inputs.zone):
        way = before.host
    return replace(inputs, host=way) if way else inputs


def in_zones(
    desired: Desired, decisions: Mapping[str, VolumeDecision], zones: Mapping[str, str]
) -> dict[str, VolumeDecision]:
    """The decisions, once it is known where ranks go: a new volume goes to the zone that its rank needs.

    One on a host that has no rank yet waits.
    """
    hosts = ways(desired)
    out: dict[str, VolumeDecision] = {}
    for name, decision in decisions.items():
        found = decision
        if decision.after is not None and name in zones:
            found = replace(decision, after=_reached(replace(decision.after, zone=zones[name]), None, hosts))
        making = found.after is not None and (found.record is None or found.replaced)
        if making and found.after and not found.after.zone:
            found = replace(found, waits=has_hosts(desired, found.after.backend))
        out[name] = found
    return out


def waiting(desired: Desired, decisions: Mapping[str, VolumeDecision]) -> list[Diagnostic]:
    """What to say of volumes that wait for a rank, and that no rank mounts."""
    names = [decision.name for decision in decisions.values() if decision.waits]
    if not names:
        return []
    ranks = [mounts for want in desired.tasks.values() for mounts in want.mounts]
    mounted = {name for mounts in ranks for mount in mounts for name in mount.names}
    return [_waits(desired, name) for name in names if name not in mounted]


def _waits(desired: Desired, name: str) -> Diagnostic:
    address = f"volume/{name}"
    if desired.volumes[name].cleanup is None:
        summary = f"{address} is not made yet: it has no `host`, and no rank mounts it"
        hint = "write `host:`, or mount it in a task: then it is made on the host of its rank"
    else:
        summary = f"{address} is not there: it has an `auto_cleanup_duration`, and no rank mounts it"
        hint = "mount it in a task, for which it is made then; or remove `auto_cleanup_duration`"
    return Diagnostic(
        code="volume-waits",
        summary=summary,
        hint=hint,
        address=address,
        span=desired.places.get(address),
        severity=Severity.WARNING,
    )


def _smaller(desired: Desired, name: str) -> Diagnostic:
    address = f"volume/{name}"
    return Diagnostic(
        code="protected",
        summary=f"{address} would be made smaller, and it is one that was adopted",
        hint="write the `size` that it has, or leave it out",
        address=address,
        span=desired.places.get(address),
    )


def _undeclared(desired: Desired, name: str, lost: Collection[str]) -> Diagnostic:
    """The error of one of the `lost`: `prevent_destroy: false` cannot be written any more where it was.

    Those of one count or one task get the same hint, so that they can be shown as one.
    """
    family, _, number = name.rpartition("-")
    bases = [n.rpartition("-") for n in lost]
    numbers = [int(n) for base, _, n in bases if base == family and n.isdecimal() and number.isdecimal()]
    left = [v for v in desired.volumes.values() if v.declared_by == f"volume/{family}"] if numbers else []
    address = f"volume/{name}"
    first, each = f"if it was renamed: `fleetform state mv {address} volume/NEW`", ""
    if left:
        first = f"`{family}` has `count: {len(left)}`: write `count: {max(numbers) + 1}` again"
        address, each = f"volume/{family}-{min(numbers)}", " (an entry for each)" if numbers[1:] else ""
    elif numbers[1:] and not any(n.rpartition("-")[0] == family for n in desired.volumes):
        address = f"volume/{family}"
        first = f"if they were renamed: `fleetform state mv {address} volume/NEW`"
    hint = (
        f"{first}; else write in the `project` document "
        f"`removed: [{{from: {address}, destroy: false}}]`{each} to keep what is in it, "
        "or `destroy: true` to delete it"
    )
    return _error(desired, f"volume/{name}", "be deleted", hint)


def _protected(desired: Desired, name: str, what: str, *, undo: str = "undo the change, or ") -> Diagnostic:
    hint = f"{undo}set `prevent_destroy: false` if its content may be lost"
    return _error(desired, f"volume/{name}", what, hint)


def _error(desired: Desired, address: str, what: str, hint: str) -> Diagnostic:
    summary = f"{address} would {what}, but its `prevent_destroy` is true"
    return Diagnostic(
        code="protected", summary=summary, hint=hint, address=address, span=desired.places.get(address)
    )


def cleaned(
    desired: Desired,
    state: State,
    decisions: Mapping[str, VolumeDecision],
    outcome: PlacementOutcome,
    *,
    freed: Collection[str],
    now: float,
) -> dict[str, VolumeDecision]:
    """The decisions of all volumes, once it is known which ranks get them; `freed` ranks give theirs back."""
    used = {name for choice in outcome.choices for name in choice.volumes.values()}
    used |= {r.attachment.volume for r in state.of("attachment") if r.attachment.rank not in freed}
    asked = [desired.tasks[refusal.task].mounts for refusal in outcome.refusals]
    wanted = {name for ranks in asked for mounts in ranks for mount in mounts for name in mount.names}
    out = dict(decisions)
    for name, want in desired.volumes.items():
        decision = decisions[name]
        if want.cleanup is None or name in used or decision.after is None:
            continue
        # One that is attached until this plan, or that this plan would make, is so from now on.
        since = state.detached_since.get(name, now)
        if decision.record is None:
            out[name] = replace(decision, waits=True)
        elif decision.replaced:
            out[name] = replace(decision, unused=True)
        elif name not in wanted and now - since >= want.cleanup:
            because = ("auto_cleanup_duration",)
            out[name] = replace(decision, unused=True, reason=Reason.UNUSED, because=because)
    return out
