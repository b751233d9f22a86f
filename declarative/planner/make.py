"""Makes the plan: what to do, and all that a plan shows, such as every rank's blocks, the block map, the
cost, and how nodes differ from what is declared. No clock, no randomness, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from declarative.model.diagnostic import Diagnostic, Severity, in_order, located
from declarative.model.inputs import NodeInputs, RankInputs, knows_siblings
from declarative.model.resource import EXISTING, LOCAL, Desired, Offer, changes_text
from declarative.model.schema import encode
from declarative.model.spec import Backend
from declarative.model.state import Address, State, natural, orphan_hint, rank_name
from declarative.model.status import NodeState, RankState, Silence
from declarative.model.text import and_more
from declarative.placement.explain.free_a_node import suggest
from declarative.placement.problem import Node, Refusal, Suggestion
from declarative.planner.actions import attached_volumes, build_actions
from declarative.planner.decisions import Decisions, PlanRequest, decide
from declarative.planner.differences import node_differences
from declarative.planner.fallbacks import fallbacks
from declarative.planner.fleets import Fleets, NodeDecision, node_of
from declarative.planner.hosts import MEET_HINT, addresses_of, contact_notes, no_meeting
from declarative.planner.inventory import (
    NO_REASON,
    SICK,
    Drift,
    Inventory,
    host_health,
    node_health,
    node_hint,
    observed_state,
    shown_drift,
    silence_text,
    vanished,
)
from declarative.planner.limits import too_large
from declarative.planner.offers import (
    GpuNode,
    fleet_shortages,
    identities_on_this_machine,
    rehearsals,
    unknown_regions,
)
from declarative.planner.plan import (
    Action,
    Basis,
    Cost,
    NodePreview,
    Observed,
    Op,
    Plan,
    Preview,
    Reason,
    Reservation,
    ReservationStatus,
    Scope,
    Unplaced,
    block_holders,
    finding,
    held_by,
    held_price,
    total_price,
    warning,
)
from declarative.planner.probable_renames import looks_renamed, naming_nothing
from declarative.planner.tasks import Course, TaskDecision, decide_task, end_text, gang_state
from declarative.planner.volumes import VolumeDecision, losses, unmounted_volumes

BlockHolders = Mapping[str, Mapping[int, str]]
"""Node → block → who will hold it."""
MOST_NAMED = 20
"""Nodes that are named one by one; more are counted."""
SMALL_DISK = 100 * 1024
"""MiB of a node's disk: less is small where it has GPUs."""


def reservations(recorded: State, state: State, decisions: Decisions) -> tuple[Reservation, ...]:
    """Every rank that holds or will hold blocks, and those whose blocks are given back; by task and rank."""
    before = {r.address.name: node_of(r) for r in recorded.of("node")}
    after = before | decisions.nodes()
    out: dict[tuple[str, int], Reservation] = {}
    for choice in decisions.outcome.choices:
        name, node = rank_name(choice.task, choice.rank), after[choice.node]
        place = state.get("reservation", name)
        held = place and (place.reservation.node, place.reservation.blocks)
        same = held == (choice.node, choice.blocks) and not node.new
        out[choice.task, choice.rank] = held_by(
            node,
            choice.task,
            choice.rank,
            choice.blocks,
            volumes=dict(sorted(choice.volumes.items())),
            status=ReservationStatus.KEPT if same else ReservationStatus.NEW,
            restart=state.get("rank", name) is not None and not state.has_ended(name),
        )
    volumes = attached_volumes(recorded)
    for record in recorded.of("reservation"):
        reservation = record.reservation
        entry = (reservation.task, reservation.rank)
        if entry in out:
            continue
        decision = decisions.tasks.get(reservation.task)
        keeps = (
            decision is not None
            and decision.course is not Course.RUN
            and not decision.leaves(record.address.name)
            and record.address in state.records
        )
        out[entry] = held_by(
            before[reservation.node],
            *entry,
            reservation.blocks,
            volumes=dict(sorted(volumes.get(record.address.name, {}).items())),
            status=ReservationStatus.KEPT if keeps else ReservationStatus.RELEASED,
        )
    return tuple(out[entry] for entry in sorted(out, key=lambda entry: (natural(entry[0]), entry[1])))


def plan_cost(state: State, decisions: Decisions, holders: BlockHolders) -> Cost:
    """The cost of whole nodes, before and after. On a partition's nodes only this project's blocks count."""
    fleets, outcome = decisions.fleets, decisions.outcome
    held_blocks = state.held_blocks()
    before = total_price(_price(f, held_blocks.get(f.node.name, {})) for f in fleets.decisions.values())
    staying = [_price(f, holders.get(f.node.name, {})) for f in fleets.staying()]
    after = total_price([*staying, *(n.price for n in outcome.launches)])
    billed = any(_billed(fleets.desired, decision) for decision in decisions.volumes.values())
    staying_cost = total_price(staying)
    bound = (
        None
        if None in (staying_cost, after, outcome.bound)
        else (staying_cost or 0.0) + (outcome.bound or 0.0)
    )
    # The days of the prices that count, including those of existing nodes.
    counted = {_price_key(n) for n in (*(f.node for f in fleets.decisions.values()), *outcome.launches)}
    offers = [offer for fleet_offers in fleets.offers.values() for offer in fleet_offers]
    dated = {
        o.backend: o.priced_on
        for o in offers
        if o.priced_on and o.price is not None and _price_key(o) in counted
    }
    return Cost(
        before=before,
        after=after,
        priced_on=dict(sorted(dated.items())),
        excludes=("volumes",) if billed else (),
        bound=bound,
        unpriced=any(offer.price is None for offer in offers),
    )


def _price(decision: NodeDecision, holders: Mapping[int, str]) -> float | None:
    """The price of a node an hour. A partition's node exists anyway, and others use it, too."""
    price = decision.node.price
    return held_price(price, holders, decision.node.total) if decision.record.node.is_shared else price


def _billed(desired: Desired, decision: VolumeDecision) -> bool:
    """Whether there is, or will be, a volume that costs money."""
    inputs = decision.record.volume if decision.record else None if decision.waits else decision.after
    if inputs is None:
        return False
    name = inputs.backend
    backend = desired.backends.get(name)
    return (backend.provider if backend else name) not in (LOCAL, *EXISTING)


def _price_key(priced: Node | Offer) -> tuple[object, ...]:
    return (priced.backend, priced.region, priced.instance_type, priced.spot, priced.price)


def suggestions(decisions: Decisions, holders: BlockHolders) -> tuple[Suggestion, ...]:
    """Moves of running ranks that would let a node go."""
    wants = {name: f.want for name, f in decisions.tasks.items() if f.course is not Course.RUN}
    if not wants:
        return ()
    staying = [decision.planned for decision in decisions.fleets.staying()]
    nodes = [replace(n, held=holders.get(n.name, {})) for n in (*staying, *decisions.outcome.launches)]
    return suggest(nodes, decisions.fleets.desired.fleets, wants)


def node_previews(decisions: Decisions, holders: BlockHolders) -> tuple[NodePreview, ...]:
    """The block map: each node as it will be."""
    out: dict[str, NodePreview] = {}
    for name, decision in decisions.fleets.decisions.items():
        node = decision.node
        out[name] = NodePreview(
            name=name,
            fleet=node.fleet,
            total=node.total if decision.goes else decision.after.blocks,
            holders={} if decision.goes else holders.get(name, {}),
            status="new" if decision.fresh else "deleted" if decision.goes else "kept",
            state=node.readiness.state.value,
            price=node.price,
            spot=node.spot,
            shared=decision.record.node.is_shared,
        )
    for node in decisions.outcome.launches:
        if node.name not in out or out[node.name].status == "deleted":
            out[node.name] = NodePreview(
                name=node.name,
                fleet=node.fleet,
                total=node.total,
                holders=holders.get(node.name, {}),
                status="new",
                state="pending",
                price=node.price,
                spot=node.spot,
            )
    return tuple(out[name] for name in sorted(out, key=natural))


def make_plan(
    desired: Desired,
    recorded: State,
    inventory: Inventory,
    now: float,
    *,
    max_work: int | None = None,
    **options: Any,
) -> Plan:
    """The plan that makes `desired` true; `options` are the other fields of a `PlanRequest`. Work beyond
    `max_work` units is refused.
    """
    request = PlanRequest(desired=desired, recorded=recorded, inventory=inventory, now=now, **options)
    return plan_with_decisions(request, max_work)[0]


def plan_with_decisions(request: PlanRequest, max_work: int | None = None) -> tuple[Plan, Decisions | None]:
    """The plan, and the decisions that it came from; there are none if the question is too large."""
    desired, recorded, inventory, now = request.desired, request.recorded, request.inventory, request.now
    large = too_large(desired, recorded, inventory, max_work)
    if large:
        return Plan(basis=basis_of(recorded), diagnostics=(large,)), None
    state, destroy = request.state, request.destroy
    decisions = decide(request)
    fleets, outcome = decisions.fleets, decisions.outcome
    actions = build_actions(recorded, state, decisions, destroy=destroy)
    staying = [decision.node for decision in fleets.staying()]
    gpu_nodes = (GpuNode(n.fleet, n.backend, n.shape) for n in (*staying, *outcome.launches))
    regions = {decision.node.region for decision in fleets.decisions.values()}
    lacking: dict[str | None, Diagnostic] = {}  # a fleet that is too small gets one finding
    faulty = {d.address for d in fleets.diagnostics if d.code in ("blocks-do-not-divide", "no-backend")}
    for shortage in fleet_shortages(desired, outcome, inventory):
        if shortage.address not in faulty:
            lacking[shortage.address] = shortage
    diagnostics = [
        *located(inventory.diagnostics, desired.places),
        *contact_notes(desired, state, inventory),
        *decisions.errors,
        *_node_errors(fleets, destroy=destroy),
        *_put_off(fleets),
        *_lost_files(desired, actions),
        *_left_alone(desired, recorded),
        *_orphans(inventory, actions),
        *fleets.diagnostics,
        *_unready(fleets, inventory.silent),
        *lacking.values(),
        *(d for d in unknown_regions(desired, inventory, regions) if d.address not in lacking),
        *rehearsals(desired, gpu_nodes, inventory.own_gpus),
        *(() if destroy else identities_on_this_machine(desired)),
        *unmounted_volumes(desired, decisions.volumes),
        *_small_disks(desired, outcome.launches),
        *_later_changes(desired, decisions),
        *_no_meetings(desired, decisions, state, inventory, actions),
        *(() if destroy else (*looks_renamed(desired, state), *naming_nothing(desired, recorded))),
    ]
    # Tasks that do not fit now, and whose `retry` says to wait or to run again. One that never fits does not.
    refused = (decisions.tasks[r.task] for r in outcome.refusals if r.code == "no-capacity")
    waiting = [f for f in refused if f.want.spec.retry.waits or f.reason is Reason.RETRY]
    once = tuple(decision.name for decision in waiting if _is_asked_once(request, decision))
    kept = (decision for decision in decisions.tasks.values() if decision.course is Course.KEPT)
    ends = ((decision.name, gang_state(decision.have.values(), state)) for decision in kept)
    ended = tuple((name, end.value) for name, end in ends if end.ended and end is not RankState.SUCCEEDED)
    there = [decision for decision in fleets.decisions.values() if not decision.ends]
    anew = {decision.node.name for decision in there if decision.remade}
    forgotten = {action.address for action in actions if action.believes}
    held = reservations(recorded, state, decisions)
    holders = block_holders(state, held)
    plan = Plan(
        basis=basis_of(state),
        actions=actions,
        reservations=held,
        unplaced=Unplaced(
            refusals=tuple(_with_hint_to_ask(r) if r.task in once else r for r in outcome.refusals),
            remedies=outcome.remedies,
            waiting=tuple(decision.name for decision in waiting),
            once=once,
            starts=tuple(_unstarted(decisions)),
            allowed=desired.project.allow_unplaced,
        ),
        observed=Observed(
            drift=shown_drift(inventory, desired),
            vanished=tuple(map(str, vanished(recorded, inventory, forgotten))),
            ended=ended,
            unfit=(
                *node_health(((node.name, node.readiness) for node in staying), inventory.silent, now),
                *host_health(inventory.left_out),
            ),
            differences=()
            if destroy
            else node_differences((d.record for d in there), desired, inventory, anew),
        ),
        preview=Preview(
            nodes=node_previews(decisions, holders),
            fallbacks=fallbacks(decisions, state),
            suggestions=() if destroy else suggestions(decisions, holders),
            queued=decisions.queued,
            backends=_connections(desired),
            cost=plan_cost(state, decisions, holders),
        ),
        diagnostics=in_order(diagnostics),
        contents=losses(desired, state, actions),
    )
    return plan, decisions


def basis_of(state: State) -> Basis:
    """The basis of a plan made from this state."""
    observed = (state.readiness.get(r.address.name) for r in state.of("node"))
    oldest = min((s.observed_at for s in observed if s and s.observed_at is not None), default=None)
    return Basis(lineage=state.lineage, serial=state.serial, observed_at=oldest)


def _no_meetings(
    desired: Desired, decisions: Decisions, state: State, inventory: Inventory, actions: Sequence[Action]
) -> Iterator[Diagnostic]:
    """An error for each gang to be started on hosts that would not reach each other by their addresses."""
    started = {a.typed.task for a in actions if a.op is Op.CREATE and isinstance(a.typed, RankInputs)}
    offers = [offer for offers in inventory.offers.values() for offer in offers]
    nodes: dict[str, set[str]] = {}
    for choice in decisions.outcome.choices:
        nodes.setdefault(choice.task, set()).add(choice.node)
    for task in sorted(started & nodes.keys()):
        if not knows_siblings(desired.tasks[task].spec):
            continue
        if why := no_meeting(addresses_of(nodes[task], state.records, offers)):
            address = f"task/{task}"
            yield finding(desired, address, "gang-address", f"{address} cannot run there: {why}", MEET_HINT)


def _later_changes(desired: Desired, decisions: Decisions) -> Iterator[Diagnostic]:
    """A warning for each task that stays ended although files in its folders changed, or it changed outside
    of its schedule.
    """
    for name, decision in sorted(decisions.tasks.items()):
        if decision.course is not Course.KEPT:
            continue
        address = f"task/{name}"
        if decision.files:
            summary = f"{address} has ended and is not run again, although its files changed"
            yield warning(
                desired,
                address,
                "files-changed-later",
                f"{summary}: {changes_text(decision.files)}",
                f"to run it with them: `fleetform apply --replace {address}`",
            )
        if decision.want.off and decision.because:
            changed = " and ".join(f"`{field}`" for field in decision.because)
            yield warning(
                desired,
                address,
                "outside-schedule",
                f"{address} has ended, and runs with the changed {changed} at "
                f"{decision.want.starts}: it is outside of its `schedule`",
                "change its `schedule` if it is to run earlier",
            )


def _small_disks(desired: Desired, launches: Iterable[Node]) -> Iterator[Diagnostic]:
    """A warning for each fleet that launches GPUs on a cloud with a disk that their images soon fill."""
    sizes: dict[str, int] = {}
    for node in launches:
        backend = desired.backends.get(node.backend)
        cloud = backend is not None and backend.provider not in (LOCAL, *EXISTING)
        if cloud and node.shape.gpus and node.shape.disk_mib is not None and node.fleet:
            sizes[node.fleet] = min(node.shape.disk_mib, sizes.get(node.fleet, SMALL_DISK))
    for fleet, size in sorted(sizes.items()):
        if size < SMALL_DISK:
            address = f"fleet/{fleet}"
            has = f"{address} launches GPUs with a disk of {size // 1024} GB"
            summary = f"{has}: images of GPU software soon fill it"
            hint = "give its backend more, such as `options: {disk_size: 100}`, or ask for `disk: 100GB..`"
            yield warning(desired, address, "small-disk", summary, hint)


def _unready(fleets: Fleets, silent: Mapping[str, Silence]) -> Iterator[Diagnostic]:
    """Nodes that stay and take no work, one line for all of a fleet with the same reason.

    For `silent` nodes the reason includes when they are given up.
    """
    noted = {d.address for d in fleets.diagnostics}
    by_reason: dict[tuple[str, NodeState, str], list[str]] = {}
    for decision in fleets.staying():
        name, readiness = decision.node.name, decision.node.readiness
        if readiness.state in SICK and decision.address not in noted:
            reason = silence_text(silent[name], fleets.now) if name in silent else readiness.reason
            by_reason.setdefault((decision.node.fleet, readiness.state, reason or NO_REASON), []).append(name)
    for (fleet, state, reason), names in by_reason.items():
        named = and_more((f"node/{n}" for n in sorted(names, key=natural)), MOST_NAMED)
        verb = "takes" if len(names) == 1 else "take"
        yield Diagnostic(
            code="node-not-ready",
            summary=f"{named} {verb} no work: {state.value.replace('_', ' ')}: {reason}",
            hint=node_hint(state),
            address=f"node/{names[0]}" if len(names) == 1 else f"fleet/{fleet}",
            severity=Severity.WARNING,
        )


def _is_asked_once(request: PlanRequest, decision: TaskDecision) -> bool:
    """Whether a waiting task would stay as it is if `--replace` did not ask for it."""
    if decision.reason is not Reason.REQUESTED:
        return False
    unasked = decide_task(decision.want, request.state, decision.have, frozenset(), request.now)
    return unasked.course is Course.KEPT


def _with_hint_to_ask(refusal: Refusal) -> Refusal:
    """The refusal of a task that no later `apply` starts by itself."""
    hint = (
        f"once there is room, `fleetform apply --replace task/{refusal.task}` again: no other apply runs it"
    )
    return replace(refusal, hint=f"{refusal.hint}; {hint}" if refusal.hint else hint)


def _connections(desired: Desired) -> dict[str, dict[str, Any]]:
    """How each backend is reached, as whom, and what its nodes start from, as far as it is declared."""
    out: dict[str, dict[str, Any]] = {}
    for name, backend in sorted(desired.backends.items()):
        values = encode(backend)
        declared = {key: values[key] for key in ("options", *Backend.CLOUD) if values.get(key)}
        if declared:
            out[name] = {"driver": backend.provider, **declared}
    return out


def _unstarted(decisions: Decisions) -> Iterator[Action]:
    """The actions of unplaced tasks, to be shown: a later plan or a retry may start them unattended."""
    for refusal in decisions.outcome.refusals:
        decision = decisions.tasks[refusal.task]
        old = decision.have.get(0)
        yield Action(
            op=Op.UPDATE if old else Op.CREATE,
            address=Address("rank", rank_name(decision.name, 0)),
            reason=decision.reason,
            because=decision.because,
            before=old.typed if old else None,
            after=decision.rank_inputs(0),
        )


def _left_alone(desired: Desired, recorded: State) -> list[Diagnostic]:
    """Warnings about records whose document was skipped: nobody asked to delete them."""
    have = {f"task/{r.rank.task}" for r in recorded.of("rank")}
    have |= {f"fleet/{r.node.fleet}" for r in recorded.of("node")}
    have |= {str(r.address) for r in recorded.of("volume")}
    have -= {f"task/{name}" for name in desired.tasks} | {f"fleet/{name}" for name in desired.fleets}
    have -= {f"volume/{name}" for name in desired.volumes}
    return [
        Diagnostic(
            code="skipped-recorded",
            summary=f"{address} is recorded, and would be deleted because its document was not used",
            hint="see the warning about the document; to have it deleted, remove the document",
            address=address,
            span=span,
        )
        for address, span in sorted(desired.skipped.items())
        if address in have
    ]


def _orphans(inventory: Inventory, actions: Iterable[Action]) -> Iterator[Diagnostic]:
    """Warnings about what would be made and is there, unrecorded: its backend refuses to make it again."""
    orphans = {d.address for d in inventory.drift if d.change == "orphan"}
    created = (str(a.address) for a in actions if a.op is Op.CREATE) if orphans else ()
    for address in sorted(orphans.intersection(created)):
        yield Diagnostic(
            code="orphan-there",
            summary=f"{address} is there, but not recorded: its backend refuses to make it again",
            hint=orphan_hint(Address.parse(address)),
            address=address,
            severity=Severity.WARNING,
        )


def _node_errors(fleets: Fleets, *, destroy: bool) -> Iterator[Diagnostic]:
    """Nodes that would be deleted although their fleet says `prevent_destroy`."""
    for decision in fleets.decisions.values():
        fleet = fleets.desired.fleets.get(decision.node.fleet)
        protected = fleet.prevent_destroy if fleet else decision.record.node.prevent_destroy
        if not decision.goes or not protected or destroy or decision.record.node.instance_id:
            continue
        address = str(decision.record.address)
        why = f"`{decision.because[0]}` changed" if decision.because else "its fleet is not declared any more"
        why = "`--replace`" if decision.goes is Reason.REQUESTED else why
        hint = "undo the change, or set `prevent_destroy: false`"
        if fleet is None:
            hint = (
                "if it was renamed, write in the `project` document "
                f"`moved: [{{from: fleet/{decision.node.fleet}, to: fleet/NEW}}]`; "
                "else declare it again with `prevent_destroy: false`, apply, and remove it then"
            )
            hint = fleets.desired.wrongly_moved(f"fleet/{decision.node.fleet}") or hint
        summary = f"{address} would be deleted ({why}), but its fleet's `prevent_destroy` is true"
        place = f"fleet/{decision.node.fleet}"
        yield finding(fleets.desired, address, "protected", summary, hint, place=place)


def _put_off(fleets: Fleets) -> Iterator[Diagnostic]:
    """A warning for each fleet whose nodes would go, if this plan did not only end their protection."""
    nodes: dict[str, list[str]] = {}
    for decision in fleets.decisions.values():
        if decision.put_off:
            nodes.setdefault(decision.node.fleet, []).append(decision.address)
    for fleet, addresses in nodes.items():
        named = and_more(sorted(addresses, key=natural), MOST_NAMED)
        yield warning(
            fleets.desired,
            f"fleet/{fleet}",
            "protection-ends",
            f"{named} {'stays' if len(addresses) == 1 else 'stay'} for now: recorded as protected",
            "this plan ends the protection: apply it, then plan again; that plan deletes what has to go",
        )


def _lost_files(desired: Desired, actions: Iterable[Action]) -> list[Diagnostic]:
    """Errors for patterns of `include` that match no file, if the plan deletes things that no file declares.
    Their declarations may have been deleted, or only moved to where they are not read.
    """
    if not desired.unmatched:
        return []
    lost: list[str] = []
    for action in actions:
        inputs, address = action.typed, action.address
        if isinstance(inputs, NodeInputs):
            declared = inputs.fleet in desired.fleets
        elif isinstance(inputs, RankInputs):
            declared = inputs.task in desired.tasks
        else:
            declared = address.kind != "volume" or address.name in desired.volumes
        if action.op is Op.DELETE and not declared:
            lost.append(str(address))
    if not lost:
        return []
    named = and_more(lost, 1)
    return [
        Diagnostic(
            code="nothing-included",
            summary=f"`{pattern}` matches no file, and {named} would be deleted: no file declares them",
            hint="correct the pattern or bring the files back; if they are to go, remove the pattern",
            span=span,
        )
        for pattern, span in desired.unmatched.items()
    ]


def make_refresh_plan(desired: Desired, recorded: State, inventory: Inventory, now: float) -> Plan:
    """A plan without actions. `apply` records what it shows; `now` is seconds since the epoch."""
    state = observed_state(recorded, inventory)
    observed = [(r.address.name, inventory.readiness.get(r.address.name)) for r in state.of("node")]
    # Ranks that failed or were lost since the last look. Success is not drift.
    ended_badly = [
        Drift(address=f"rank/{name}", change="ended", detail=end_text(status))
        for name, status in sorted(state.ranks.items(), key=lambda item: natural(item[0]))
        if status.state.ended and status.state is not RankState.SUCCEEDED
        if recorded.ranks.get(name) != status
    ]
    return Plan(
        basis=basis_of(state),
        observed=Observed(
            drift=(*shown_drift(inventory, desired), *ended_badly),
            vanished=tuple(map(str, vanished(recorded, inventory))),
            unfit=(
                *node_health(
                    [(n, readiness) for n, readiness in observed if readiness], inventory.silent, now
                ),
                *host_health(inventory.left_out),
            ),
            differences=node_differences(
                (r for r in state.of("node") if r.node.fleet in desired.fleets), desired, inventory
            ),
        ),
        scope=Scope(refresh_only=True),
        diagnostics=(
            *located(inventory.diagnostics, desired.places),
            *contact_notes(desired, state, inventory),
        ),
    )
