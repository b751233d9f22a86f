"""Volumes: create, grow in place, replace or delete, and never delete a protected one.

A volume with an `auto_cleanup_duration` is made for a task, and deleted when it was not attached for that
long. It is made again for the next task that mounts it, and not before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from declarative.model.diagnostic import Diagnostic
from declarative.model.inputs import VolumeInputs, differing
from declarative.model.record import struct
from declarative.model.resource import Desired, TaskWant
from declarative.model.schema import in_place
from declarative.model.spec import Volume
from declarative.model.spec.values import Size
from declarative.model.state import Address, Record, State, unused_since
from declarative.placement.problem import GONE, PlacementOutcome, VolumeAt
from declarative.planner.hosts import has_hosts, host_connections
from declarative.planner.inventory import Inventory
from declarative.planner.plan import Action, Loss, Op, Reason, finding, warning


@struct(frozen=True, slots=True, kw_only=True)
class VolumeDecision:
    """The decision about one volume, declared or recorded."""

    name: str
    record: Record | None
    after: VolumeInputs | None
    replaced: bool = False
    reason: Reason = Reason.NEW
    because: tuple[str, ...] = ()
    kept_back: bool = False
    """`destroy` keeps it and names it, because it is protected."""
    waits: bool = False
    """It is made once its first rank has a place."""
    forgotten: bool = False
    """Only its record is deleted: it is not declared any more, and stays as it is; or it is gone."""
    unused: bool = False
    """It is deleted, and made as declared for the next task that mounts it."""
    lost: bool = False
    """It is gone. Nothing is done to it until a person decides."""
    put_off: str = ""
    """Why it would be replaced, if this plan did not only end its protection. The next plan may."""

    @property
    def change(self) -> tuple[VolumeInputs, VolumeInputs]:
        """The recorded and the declared inputs of a changed volume."""
        assert self.record is not None
        assert self.after is not None
        return self.record.volume, self.after

    @property
    def makes(self) -> bool:
        """Whether this plan makes one, as soon as it need not wait."""
        return self.after is not None and not self.unused and (self.record is None or self.replaced)

    @property
    def deletes(self) -> bool:
        """Whether the recorded volume is deleted."""
        goes = self.after is None or self.unused or self.replaced
        return self.record is not None and goes and not self.kept_back

    @property
    def updates(self) -> bool:
        """Whether the recorded volume changes in place."""
        return bool(self.because) and not self.deletes and not self.makes

    def at(self, holder: str | None) -> VolumeAt:
        """Where it will be, and who holds it."""
        assert self.after is not None
        return VolumeAt(
            backend=self.after.backend,
            region=self.after.region,
            zone=self.after.zone,
            holder=GONE if self.lost else holder,
            fresh=self.record is None or self.replaced or self.unused,
        )


def decide_volumes(
    desired: Desired,
    state: State,
    inventory: Inventory,
    *,
    destroy: bool,
    pinned: frozenset[Address] = frozenset(),
    requested: Collection[str] = (),
) -> tuple[dict[str, VolumeDecision], list[Diagnostic]]:
    """The decisions of all volumes, and an error for each protected one that would be lost; a warning if this
    plan only ends its protection.

    `pinned` volumes are held by ranks without another place, and stay as they are. Tags that others changed
    are put back. `requested` volumes (`volume/data-0`) are made anew, empty.
    """
    hosts = host_connections(desired)
    decisions: dict[str, VolumeDecision] = {}
    for name, want in sorted(desired.volumes.items()):
        record = state.get("volume", name)
        before = record.volume if record else None
        after = _reached(_settled(before, want.inputs), before, hosts)
        guarded = after.volume_id is None and desired.is_guarded(f"volume/{name}", after)
        if guarded:  # an adopted one is released
            after = replace(after, protected=True)
        judged = _judge(name, record, after, inventory, requested)
        gone = record is not None and record.address in inventory.lost
        decisions[name] = _if_gone(judged) if gone else _protected_until_applied(judged)
    for record in state.of("volume"):
        if record.address.name not in decisions:
            decisions[record.address.name] = _removed(desired, record, destroy=destroy)
    errors = _lost(desired, decisions.values())
    for unprotected in (decision for decision in decisions.values() if decision.put_off):
        name, why = unprotected.name, unprotected.put_off
        done, does = ("replaced", "replaces") if name in desired.volumes else ("deleted", "deletes")
        summary = f"volume/{name} is not {done} by this plan ({why}): it is recorded as protected"
        hint = (
            f"this plan ends its protection: apply it, then plan again; that plan {does} the volume, and its "
            "content is lost; to keep it, undo the change"
        )
        errors.append(warning(desired, f"volume/{name}", "protection-ends", summary, hint))
    errors += [gone_volume(desired, decision.name) for decision in decisions.values() if decision.lost]
    for address in pinned & state.records.keys():
        decision = decisions.get(address.name) if address.kind == "volume" else None
        if decision is not None and (decision.replaced or decision.after is None):
            # Ranks hold it: it is neither replaced nor deleted.
            assert decision.record is not None
            decisions[decision.name] = VolumeDecision(
                name=decision.name, record=decision.record, after=decision.record.volume
            )
    return decisions, errors


def _unprotects(before: VolumeInputs, after: VolumeInputs) -> bool:
    """Whether only this plan takes away the recorded protection of a volume."""
    was, stays = (inputs.prevent_destroy or inputs.protected for inputs in (before, after))
    return was and not stays and before.volume_id is None


def _lost(desired: Desired, decisions: Collection[VolumeDecision]) -> list[Diagnostic]:
    """An error for each protected volume whose content would be lost."""
    errors = [error for d in decisions if d.replaced and (error := _irreplaceable(desired, d))]
    lost = [
        d.name
        for d in decisions
        if d.reason is Reason.REMOVED and d.record and d.record.volume.prevent_destroy
        if _is_protected(desired, d.record)  # the module `limits` handles `limits.protected`
    ]
    families: dict[str, list[int]] = {}
    for family, _, number in (name.rpartition("-") for name in lost):
        if number.isdecimal():
            families.setdefault(family, []).append(int(number))
    for numbers in families.values():
        numbers.sort()
    declared_counts = Counter(want.declared_by for want in desired.volumes.values())
    near = {name.rpartition("-")[0] for name in desired.volumes}
    for name in lost:
        family, _, number = name.rpartition("-")
        numbers = families[family] if number.isdecimal() else []
        wrong = desired.wrongly_moved(f"volume/{name}")
        count = declared_counts[f"volume/{family}"] if numbers else 0
        hint = _undeclared(name, numbers, count, near=family in near, renames=wrong is None)
        if wrong:
            hint = f"{wrong}{'' if wrong.endswith('?') else '.'} If it is to go, {hint}"
        errors.append(_kept_from(desired, f"volume/{name}", "be deleted", hint))
    return errors


def _judge(
    name: str, record: Record | None, after: VolumeInputs, inventory: Inventory, requested: Collection[str]
) -> VolumeDecision:
    """Decide about a declared volume."""
    if record is None:
        reason = Reason.NEW if after.volume_id is None else Reason.ADOPTED
        return VolumeDecision(name=name, record=None, after=after, reason=reason)
    if str(record.address) in requested:
        return VolumeDecision(name=name, record=record, after=after, replaced=True, reason=Reason.REQUESTED)
    if record.volume == after:  # nearly always
        mended = inventory.mendable(record.address)
        return VolumeDecision(name=name, record=record, after=after, reason=Reason.DRIFT, because=mended)
    because = _replacing(record.volume, after)
    return VolumeDecision(
        name=name,
        record=record,
        after=after,
        replaced=bool(because),
        reason=Reason.CHANGED,
        because=because or differing(record.volume, after),
    )


def _replacing(before: VolumeInputs, after: VolumeInputs) -> tuple[str, ...]:
    """The changed inputs that replace a volume."""
    # The input `host` says how its host is reached. The field `host` names the host; it is the input `zone`.
    moved = tuple(k for k in differing(before, after) if k not in {*in_place(Volume), "host", "protected"})
    if before.size is None or after.size is None:  # that of an adopted volume may not be declared
        return moved
    return (*moved, "size") if Size.parse(after.size).mib < Size.parse(before.size).mib else moved


def keeps_content(before: VolumeInputs, after: VolumeInputs) -> bool:
    """Whether a recorded volume keeps its content if it is declared like this."""
    return not _replacing(before, _settled(before, after))


def _protected_until_applied(decision: VolumeDecision) -> VolumeDecision:
    """The decision, unless it would replace a volume whose recorded protection only this plan takes away: an
    apply first records that, and nothing else.
    """
    if not decision.replaced or not _unprotects(*decision.change):
        return decision
    assert decision.record is not None
    assert decision.after is not None
    requested = decision.reason is Reason.REQUESTED
    why = "`--replace`" if requested else f"`{_field(decision)}` changed"
    return _only_unprotected(decision.record, why, auto_cleanup_duration=decision.after.auto_cleanup_duration)


def _only_unprotected(record: Record, why: str, **more: Any) -> VolumeDecision:
    """The decision to record that a volume is not protected any more, and no more than that."""
    unprotected = replace(record.volume, prevent_destroy=False, protected=False, **more)
    return VolumeDecision(
        name=record.address.name,
        record=record,
        after=unprotected,
        reason=Reason.CHANGED,
        because=differing(record.volume, unprotected),
        put_off=why,
    )


def _if_gone(decision: VolumeDecision) -> VolumeDecision:
    """The decision about a volume that is gone. A new one would be empty, so nothing is done by itself: it
    may come back, and else somebody asks for a new one. Then only its record is deleted: a listing may err.
    """
    assert decision.record is not None
    before, after = decision.change
    anew = decision.reason is Reason.REQUESTED and after.volume_id is None
    if anew or before.volume_id != after.volume_id:
        return replace(decision, forgotten=True)
    if decision.reason is Reason.REQUESTED:
        return decision
    return VolumeDecision(name=decision.name, record=decision.record, after=before, lost=True)


def gone_volume(desired: Desired, name: str) -> Diagnostic:
    """The warning about a recorded volume that is gone."""
    address = f"volume/{name}"
    summary = f"{address} is gone, and is not made anew by itself: a new one would be empty"
    hint = (
        "a task that runs on it is left alone, and nothing has to be done if it comes back; "
        f"`fleetform apply --replace {address}` makes an empty one; "
        f"to forget it, remove its document and write `removed: [{{from: {address}, destroy: false}}]`"
    )
    return warning(desired, address, "volume-gone", summary, hint)


def _field(decision: VolumeDecision) -> str:
    """The declared field whose change replaces a volume. Its host is recorded as its zone."""
    before, _ = decision.change
    return "host" if decision.because[0] == "zone" and before.host else decision.because[0]


def _irreplaceable(desired: Desired, decision: VolumeDecision) -> Diagnostic | None:
    """Why a changed or requested volume is not replaced: its content would be lost."""
    address, because = f"volume/{decision.name}", decision.because
    before, after = decision.change
    requested = decision.reason is Reason.REQUESTED
    if decision.forgotten:
        return None  # it is gone
    if requested and (before.volume_id is not None or after.volume_id is not None):
        what = f"{address} is one that was adopted: it cannot be made anew"
        hint = "write another `volume_id`, or none"
        return finding(desired, address, "protected", what, hint)
    if because == ("size",) and after.volume_id is not None:
        what = f"{address} would be made smaller, and it is one that was adopted"
        hint = "write the `size` that it has, or leave it out"
        return finding(desired, address, "protected", what, hint)
    if not after.prevent_destroy or before.volume_id is not None:
        return None
    if requested:
        hint = "set `prevent_destroy: false` if its content may be lost"
        return _kept_from(desired, address, "be made anew (`--replace`), empty", hint)
    hint = "undo the change, or set `prevent_destroy: false` if its content may be lost"
    return _kept_from(desired, address, f"be replaced (`{_field(decision)}` changed)", hint)


def _is_protected(desired: Desired, record: Record) -> bool:
    """Whether an undeclared volume is kept. An adopted volume is only forgotten."""
    if record.volume.volume_id is not None or desired.project.removed.of(record.address.name) is not None:
        return False
    return desired.protects(str(record.address), record.volume)


def _removed(desired: Desired, record: Record, *, destroy: bool) -> VolumeDecision:
    """Decide about a recorded volume that is not declared any more."""
    removal, before = desired.project.removed.of(record.address.name), record.volume
    forgotten = removal is not None and not removal.destroy and before.volume_id is None
    is_kept = _is_protected(desired, record)
    guarded = desired.is_guarded(str(record.address), before)  # then the module `limits` refuses the deletion
    if not (destroy or forgotten or is_kept or guarded) and before.protected:
        return _only_unprotected(record, "it is not declared any more")
    return VolumeDecision(
        name=record.address.name,
        record=record,
        after=None,
        reason=Reason.DESTROY if destroy else Reason.REMOVED,
        kept_back=destroy and is_kept,
        forgotten=forgotten,
    )


def _settled(before: VolumeInputs | None, after: VolumeInputs) -> VolumeInputs:
    """An undeclared zone was chosen with the first rank, and stays."""
    if before is None or after.zone is not None or before.zone is None:
        return after
    same = (before.backend, before.region) == (after.backend, after.region)
    return replace(after, zone=before.zone) if same else after


def _reached(
    inputs: VolumeInputs, before: VolumeInputs | None, hosts: Mapping[tuple[str, str], Mapping[str, Any]]
) -> VolumeInputs:
    """The volume with the way to its host, if it is on one: the recorded way if no fleet has the host now."""
    way = hosts.get((inputs.backend, str(inputs.zone)))
    if not way and before and (before.backend, before.zone) == (inputs.backend, inputs.zone):
        way = before.host
    return replace(inputs, host=way) if way else inputs


def with_zones(
    desired: Desired, decisions: Mapping[str, VolumeDecision], zones: Mapping[str, str]
) -> dict[str, VolumeDecision]:
    """The decisions once the places of ranks are known: a new volume goes to the zone that its rank needs.

    A volume on a host waits until it has a rank.
    """
    hosts = host_connections(desired)
    out: dict[str, VolumeDecision] = {}
    for name, decision in decisions.items():
        after = decision.after
        if after is not None and name in zones:
            after = _reached(replace(after, zone=zones[name]), None, hosts)
        waits = decision.makes and after and not after.zone and has_hosts(desired, after.backend)
        out[name] = replace(decision, after=after, waits=decision.waits or bool(waits))
    return out


def unmounted_volumes(desired: Desired, decisions: Mapping[str, VolumeDecision]) -> Iterator[Diagnostic]:
    """Findings about volumes that wait for a rank, and that no rank mounts."""
    mounted = _mounted(desired.tasks.values())
    for name in (d.name for d in decisions.values() if d.waits and d.name not in mounted):
        address = f"volume/{name}"
        if desired.volumes[name].cleanup is None:
            summary = f"{address} is not made yet: it has no `host`, and no rank mounts it"
            hint = "write `host:`, or mount it in a task: then it is made on the host of its rank"
        else:
            summary = f"{address} is not there: it has an `auto_cleanup_duration`, and no rank mounts it"
            hint = "mount it in a task, for which it is made then; or remove `auto_cleanup_duration`"
        yield warning(desired, address, "volume-waits", summary, hint)


def _mounted(tasks: Iterable[TaskWant]) -> set[str]:
    """The volumes that ranks of these tasks may get."""
    return {name for want in tasks for mounts in want.mounts for mount in mounts for name in mount.names}


def _undeclared(name: str, numbers: Sequence[int], declared_count: int, *, near: bool, renames: bool) -> str:
    """What to do about a protected volume whose declaration, where `prevent_destroy: false` would go, is not
    there. `numbers` are those of its name that are lost, in order. `near`: others of the name are declared;
    `renames`: it may have been renamed.

    Volumes of one count or one task get the same hint, so that they can be shown as one.
    """
    family, address, each, renamed = name.rpartition("-")[0], f"volume/{name}", "", "it was"
    if declared_count:
        address, each = f"volume/{family}-{numbers[0]}", " (an entry for each)" if numbers[1:] else ""
    elif numbers[1:] and not near:
        address, renamed = f"volume/{family}", "they were"
    first = f"`moved: [{{from: {address}, to: volume/NEW}}]` if {renamed} renamed, else "
    hint = (
        f"write in the `project` document {first if renames and not declared_count else ''}"
        f"`removed: [{{from: {address}, destroy: false}}]`{each} to keep what is in it, "
        "or `destroy: true` to delete it"
    )
    return (
        f"`{family}` has `count: {declared_count}`: write `count: {numbers[-1] + 1}` again; else {hint}"
        if declared_count
        else hint
    )


def _kept_from(desired: Desired, address: str, what: str, hint: str) -> Diagnostic:
    summary = f"{address} would {what}, but its `prevent_destroy` is true"
    return finding(desired, address, "protected", summary, hint)


def losses(desired: Desired, state: State, actions: Iterable[Action]) -> tuple[Loss, ...]:
    """What is lost with the volumes that these actions delete."""
    gone = [a for a in actions if a.op is Op.DELETE and a.address.kind == "volume" and not a.forgets]
    users = {r.attachment.volume: f"task/{r.attachment.task}" for r in state.of("attachment")} if gone else {}
    out: list[Loss] = []
    for action in gone:
        name, before, span = action.address.name, action.typed, desired.places.get(str(action.address))
        assert isinstance(before, VolumeInputs)
        loss = Loss(
            address=str(action.address),
            size=before.size,
            task=users.get(name),
            unused_since=state.detached_since.get(name),
            file=span.file if span else None,
            line=span.line if span else None,
        )
        out.append(loss)
    return tuple(out)


def with_cleanup(
    desired: Desired,
    state: State,
    decisions: Mapping[str, VolumeDecision],
    outcome: PlacementOutcome,
    *,
    freed: Collection[str],
    now: float,
    waiting_tasks: Collection[str],
) -> dict[str, VolumeDecision]:
    """The decisions of all volumes once their ranks are known; `freed` ranks give theirs back, and the
    `waiting_tasks` still want theirs.
    """
    used = {name for choice in outcome.choices for name in choice.volumes.values()}
    used |= {r.attachment.volume for r in state.of("attachment") if r.attachment.rank not in freed}
    mounted_later = _mounted(
        desired.tasks[name] for name in (*(r.task for r in outcome.refusals), *waiting_tasks)
    )
    out = dict(decisions)
    for name, want in desired.volumes.items():
        if want.cleanup is not None and name not in used:
            out[name] = _unused(decisions[name], want.cleanup, state, now, waits=name in mounted_later)
    return out


def _unused(
    decision: VolumeDecision, cleanup: int, state: State, now: float, *, waits: bool
) -> VolumeDecision:
    """Decide about a declared volume that is only for ranks and that no rank gets; `waits`: one still may. It
    is deleted after `cleanup` seconds since its last use and since an apply recorded that duration.
    """
    if decision.lost:
        return decision
    if decision.record is None:
        return replace(decision, waits=True)
    if decision.replaced:
        return replace(decision, unused=True)
    before, after = decision.change
    # A plan that changes the duration, or ends the protection, does not also delete.
    if waits or before.auto_cleanup_duration != after.auto_cleanup_duration or _unprotects(before, after):
        return decision
    # A volume that is attached until this plan is detached from now on.
    since = unused_since(decision.record, state.detached_since.get(decision.name, now))
    if now - since < cleanup:
        return decision
    return replace(decision, unused=True, reason=Reason.UNUSED, because=("auto_cleanup_duration",))
