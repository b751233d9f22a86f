"""`make`: the one function that answers what to do. No clock, no randomness, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from declarative.diagnostic import Diagnostic, Severity, in_order
from declarative.placement import Ask, Node, Outcome, VolumeAt, place
from declarative.plan import tasks as task_fates
from declarative.plan import volumes as volume_fates
from declarative.plan.actions import build
from declarative.plan.fleets import Fleets
from declarative.plan.observe import effective
from declarative.plan.preview import cost, node_previews, reservations
from declarative.plan.tasks import Fate, TaskFate
from declarative.plan.types import Inventory, Plan, Reason
from declarative.plan.volumes import VolumeFate
from declarative.resource import Desired
from declarative.state import Address, State, rank_name


def make(
    desired: Desired,
    recorded: State,
    inventory: Inventory,
    now: float,
    *,
    requested: frozenset[str] = frozenset(),
    destroy: bool = False,
) -> Plan:
    """What to do so that `desired` is there.

    `now` is seconds since the epoch, for idle times only. `requested` holds addresses of tasks that are
    to run again although nothing about them changed. With `destroy`, protected things are left alone.
    """
    state = effective(recorded, inventory)
    fleets = Fleets(desired, state, inventory, now)
    if destroy:
        _spare_protected(fleets)
    volumes, errors = volume_fates.judge_all(desired, state, destroy=destroy)
    fates = task_fates.judge_all(desired, state, requested)
    task_fates.cascade(fates, state, _replaced(fleets, volumes))
    outcome, fates = _place(state, fleets, volumes, fates)
    fleets.retire(_used(state, outcome, fates), _launched(outcome))
    errors += _node_errors(fleets, destroy=destroy)
    diagnostics = [*inventory.diagnostics, *errors, *fleets.diagnostics, *_short(desired, outcome)]
    actions = build(recorded, state, fleets, volumes, fates, outcome)
    return Plan(
        lineage=recorded.lineage,
        serial=recorded.serial,
        actions=actions,
        reservations=reservations(recorded, state, fleets, fates, outcome),
        unplaced=outcome.refusals,
        drift=inventory.drift,
        cost=cost(state, fleets, outcome),
        nodes=node_previews(state, fleets, fates, outcome),
        diagnostics=in_order(diagnostics),
        vanished=_vanished(recorded, inventory),
    )


def _replaced(fleets: Fleets, volumes: Mapping[str, VolumeFate]) -> frozenset[Address]:
    nodes = {f.record.address for f in fleets.fates.values() if f.goes}
    return frozenset(nodes | {Address("volume", v.name) for v in volumes.values() if v.replaced})


def _place(
    state: State, fleets: Fleets, volumes: Mapping[str, VolumeFate], fates: dict[str, TaskFate]
) -> tuple[Outcome, dict[str, TaskFate]]:
    """Place what has to run. A task that runs now and could not be placed anew goes on as it is."""
    while True:
        running = [f for f in fates.values() if f.fate is Fate.RUN]
        gone = {rank_name(f.name, r) for f in running for r in task_fates.records_of(state, f.name)}
        gone |= {
            r.address.name for f in running for r in state.of("reservation") if r.inputs["task"] == f.name
        }
        declared = set(fates)
        freed = {
            r.address.name
            for r in state.of("reservation")
            if r.inputs["task"] not in declared or r.address.name in gone
        }
        outcome = place(
            [Ask(want=f.want, prior=_prior(state, f)) for f in running],
            _nodes(fleets, freed),
            fleets.rules(),
            _volumes(state, volumes, freed),
        )
        refused = {r.task for r in outcome.refusals}
        stuck = [f for f in running if f.name in refused and task_fates.records_of(state, f.name)]
        stuck = [f for f in stuck if f.reason is not Reason.INCOMPLETE and _runs(state, f)]
        if not stuck:
            return outcome, fates
        for fate in stuck:
            fate.fate = Fate.KEPT
        kept = {f.name for f in stuck}
        again, fates = _place(state, fleets, volumes, fates)
        lost = tuple(r for r in outcome.refusals if r.task in kept)
        merged = tuple(sorted((*again.refusals, *lost), key=lambda r: r.task))
        return replace(again, refusals=merged), fates


def _runs(state: State, fate: TaskFate) -> bool:
    ranks = task_fates.records_of(state, fate.name).values()
    return any((s := state.ranks.get(r.address.name)) is None or not s.state.ended for r in ranks)


def _prior(state: State, fate: TaskFate) -> dict[int, tuple[str, tuple[int, ...]]]:
    """Where the task's ranks are now, or were promised to be."""
    out: dict[int, tuple[str, tuple[int, ...]]] = {}
    for rank in range(fate.want.spec.nodes):
        record = state.get("reservation", rank_name(fate.name, rank))
        if record:
            out[rank] = (str(record.inputs["node"]), tuple(record.inputs["blocks"]))
    return out


def _nodes(fleets: Fleets, freed: set[str]) -> list[Node]:
    """The nodes that stay, as they will be once the freed reservations are gone."""
    out: list[Node] = []
    for fate in fleets.fates.values():
        if fate.goes:
            continue
        held = {b: h for b, h in fate.node.held.items() if h.removeprefix("rank/") not in freed}
        out.append(replace(fate.node, held=held, total=int(fate.after["blocks"])))
    return out


def _volumes(state: State, volumes: Mapping[str, VolumeFate], freed: set[str]) -> dict[str, VolumeAt]:
    holders = {
        str(r.inputs["volume"]): f"rank/{r.inputs['rank']}"
        for r in state.of("attachment")
        if r.inputs["rank"] not in freed
    }
    return {
        v.name: VolumeAt(
            backend=str(v.after["backend"]),
            region=str(v.after["region"]),
            zone=v.after.get("zone"),
            holder=holders.get(v.name),
        )
        for v in volumes.values()
        if v.after is not None
    }


def _used(state: State, outcome: Outcome, fates: Mapping[str, TaskFate]) -> frozenset[str]:
    used = {c.node for c in outcome.choices}
    kept = {f.name for f in fates.values() if f.fate is not Fate.RUN}
    used |= {str(r.inputs["node"]) for r in state.of("reservation") if r.inputs["task"] in kept}
    return frozenset(used)


def _launched(outcome: Outcome) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in outcome.launches:
        counts[node.fleet] = counts.get(node.fleet, 0) + 1
    return counts


def _short(desired: Desired, outcome: Outcome) -> list[Diagnostic]:
    """Fleets that cannot be brought to their size."""
    out: list[Diagnostic] = []
    for name, missing in outcome.short_fleets:
        address = f"fleet/{name}"
        summary = f"no offer for {missing} of the fleet's nodes"
        hint = "widen the fleet's `resources`, `max_price`, `backends` or `regions`, or lower its `nodes`"
        span = desired.places.get(address)
        out.append(Diagnostic(code="no-offer", summary=summary, hint=hint, address=address, span=span))
    return out


def _spare_protected(fleets: Fleets) -> None:
    """`destroy` leaves protected nodes alone."""
    for fate in fleets.fates.values():
        fate.goes = None if fate.record.inputs.get("prevent_destroy") else Reason.DESTROY


def _node_errors(fleets: Fleets, *, destroy: bool) -> list[Diagnostic]:
    """Nodes that would be deleted although their fleet says `prevent_destroy`."""
    out: list[Diagnostic] = []
    for fate in fleets.fates.values():
        fleet = fleets.desired.fleets.get(fate.node.fleet)
        protected = fleet.prevent_destroy if fleet else bool(fate.record.inputs.get("prevent_destroy"))
        if not fate.goes or not protected or destroy:
            continue
        address = str(fate.record.address)
        why = f"`{fate.because[0]}` changed" if fate.because else "its fleet is not declared any more"
        out.append(
            Diagnostic(
                code="protected",
                summary=f"{address} would be deleted ({why}), but its fleet's `prevent_destroy` is true",
                hint="undo the change, or set `prevent_destroy: false`",
                address=address,
                span=fleets.desired.places.get(f"fleet/{fate.node.fleet}"),
                severity=Severity.ERROR,
            )
        )
    return out


def _vanished(recorded: State, inventory: Inventory) -> tuple[str, ...]:
    """Several things of one backend that are gone at once: more likely a fault than the truth (DESIGN §8)."""
    by_backend: dict[str, list[str]] = {}
    for address in inventory.gone:
        record = recorded.records.get(address)
        if record and address.kind in ("node", "volume"):
            by_backend.setdefault(str(record.backend), []).append(str(address))
    return tuple(sorted(a for found in by_backend.values() if len(found) > 1 for a in found))
