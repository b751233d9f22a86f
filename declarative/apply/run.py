"""One apply: walk the plan's actions, then take back gangs of which a part could not start."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from declarative.apply.execute import execute
from declarative.apply.failover import Failover
from declarative.apply.gate import Tools, is_held
from declarative.apply.graph_walk import UNDONE, ActionResult, Outcome, walk
from declarative.apply.interrupted import clear, is_node
from declarative.apply.log_cleanup import tidy
from declarative.apply.retry_schedule import Lack, lacking
from declarative.apply.settle import detach, gang_stops, release_ended, stop_ranks
from declarative.model.inputs import AttachmentInputs, NodeInputs, RankInputs, zone_asked
from declarative.model.spec.values import Placement
from declarative.model.state import Address, RankStatus
from declarative.planner.types import Action, Op, Plan, Reason

CLUSTER = Placement.CLUSTER.value


def apply(plan: Plan, tools: Tools, *, parallelism: int = 8) -> tuple[ActionResult, ...]:
    """Carry out every action of `plan`; the results in the plan's order."""
    tools.writer.ensure_lineage()
    _give_up_elsewhere(plan.actions, tools)
    results = walk(
        plan.actions,
        lambda action: execute(action, tools),
        parallelism=parallelism,
        stopping=tools.stopping,
        listener=tools.listener,
        failover=Failover(plan, tools.writer.state()),
    )
    if not tools.stopping.is_set():
        _take_back(plan.actions, results, tools)
        lacks = lacking(plan, results)
        give_back(lacks, tools)
        results = _leave(plan, results, lacks, tools, parallelism)
        results = (*results, *_delete(plan, _late(tools), tools, parallelism))
        started = {str(r.address) for r in results if r.outcome is Outcome.DONE}
        _tidy([a for a in plan.actions if a.op is Op.CREATE and str(a.address) in started], tools)
    return results


def _tidy(done: Sequence[Action], tools: Tools) -> None:
    """Where ranks were started, their old attempts go."""
    ranks = {a.address for a in done if a.address.kind == "rank"}
    if ranks:
        state = tools.writer.state()
        nodes = [str(r.outputs.get("node")) for a, r in state.records.items() if a in ranks]
        tidy(state, tools.backends, nodes)


def _give_up_elsewhere(actions: Sequence[Action], tools: Tools) -> None:
    """A create that was begun and is not there (`settle.recover`) is no longer waited for where it was begun,
    if the plan makes it in another place: no token leads from there to here.
    """
    planned = {a.address: a for a in actions if a.op is Op.CREATE}
    state = tools.writer.state()
    for intent in state.intents:
        action = planned.get(intent.address)
        if action is None or intent.op != "create":
            continue
        if intent.address.kind == "rank":
            moved = Address("reservation", intent.address.name) in planned
        else:
            wanted = (action.backend, zone_asked(action.typed))
            moved = wanted != (intent.backend, zone_asked(intent.typed))
        if moved:
            if is_node(intent) and intent.address not in state.records:
                clear(tools.backends, [intent])
            tools.writer.close_intent(intent, "not-done")


def give_back(tasks: Collection[str], tools: Tools) -> None:
    """Tasks that were not started for want of capacity hold nothing: while they wait, what was to be theirs
    is idle, may go with its cluster when that finds another place, and is of use to others.
    """
    if not tasks:
        return
    state = tools.writer.state()
    begun = {r.rank.task for r in state.of("rank")}
    # What may still be attached is found by a later look, and holds on to its place then.
    asked = (i.typed for i in state.intents if i.inputs)
    coming = {a.rank for a in asked if isinstance(a, AttachmentInputs)}
    for reservation in state.of("reservation"):
        task, name = reservation.reservation.task, reservation.address.name
        if tools.stopping.is_set():
            return
        if task not in tasks or task in begun or name in coming:
            continue
        held = [r for r in state.of("attachment") if r.attachment.rank == name]
        detached = [detach(tools.writer, tools.backends, r) for r in held]
        if all(detached):
            tools.writer.release(reservation.address, tools.now())


def _leave(
    plan: Plan,
    results: tuple[ActionResult, ...],
    lacks: Mapping[str, Lack],
    tools: Tools,
    parallelism: int,
) -> tuple[ActionResult, ...]:
    """Delete what was made of clusters that cannot be completed and had nowhere else to go, as `Failover`
    does of those that had, unless the fleet wants it for itself or another task is on it.
    """
    kept = {name for f in plan.preview.fallbacks if f.wanted for kind in f.kinds for name in kind}
    kept |= {a.name for a in tools.late}
    state = tools.writer.state()
    kept |= {r.reservation.node for r in state.of("reservation")}
    made = {key for lack in lacks.values() for key in lack.made}
    undone = {
        a.id: Action(
            op=Op.DELETE, address=a.address, reason=Reason.INCOMPLETE, before=a.after, backend=a.backend
        )
        for a in plan.actions
        if a.id in made
        and isinstance(node := a.typed, NodeInputs)
        and node.placement == CLUSTER
        and a.address.name not in kept
    }
    found = _delete(plan, list(undone.values()), tools, parallelism)
    not_kept = (
        replace(r, outcome=Outcome.SKIPPED, error=UNDONE, note=None, scarce=True) if r.id in undone else r
        for r in results
    )
    return (*not_kept, *found)


def _late(tools: Tools) -> list[Action]:
    """The deletion of nodes that were waited for in vain: they would be billed for nothing. A host is there
    whatever is deleted, and what is protected is shown by every plan.
    """
    state = tools.writer.state()
    held = {r.reservation.node for r in state.of("reservation")}
    found = (state.records[a] for a in sorted(tools.late) if a in state.records and a.name not in held)
    return [
        Action(op=Op.DELETE, address=r.address, reason=Reason.UNFIT, before=r.typed, backend=str(r.backend))
        for r in found
        if not r.node.host and not r.node.prevent_destroy
    ]


def _delete(
    plan: Plan, actions: Sequence[Action], tools: Tools, parallelism: int
) -> tuple[ActionResult, ...]:
    """Nodes that the plan does not delete are deleted after it."""
    if not actions:
        return ()
    return walk(
        actions,
        lambda action: execute(action, tools),
        parallelism=parallelism,
        stopping=tools.stopping,
        listener=tools.listener,
        failover=Failover(plan.only(()), tools.writer.state()),
    )


def _take_back(actions: Sequence[Action], results: Sequence[ActionResult], tools: Tools) -> None:
    """A gang of which one rank could not start is stopped: a task never runs with fewer ranks than declared.

    Not after an interruption: then the next apply starts the ranks that are missing.
    """

    def ended(rank: str, status: RankStatus) -> None:
        tools.writer.observe_rank(rank, status)
        tools.listener.rank(f"rank/{rank}", status.state.value, status.cause)

    outcome = {r.id: r for r in results}
    gangs: dict[str, list[Action]] = {}
    for action in actions:
        if action.op is Op.CREATE and isinstance(action.typed, RankInputs):
            gangs.setdefault(action.typed.task, []).append(action)
    state = tools.writer.state()
    for task, starts in gangs.items():
        broken = next((outcome[a.id] for a in starts if outcome[a.id].outcome is Outcome.FAILED), None)
        if broken is None:
            continue
        cause = f"{broken.address} did not start: {broken.error}"
        names = [r.address.name for r in state.of("rank") if r.rank.task == task]
        going = [n for n in names if not ((s := state.ranks.get(n)) and s.state.ended)]
        stop_ranks(state, tools.backends, dict.fromkeys(going, cause), ended)
    state = tools.writer.state()  # and those that wait for one that failed while it was prepared
    held = {n: s.cause for n, s in gang_stops(state).items() if is_held(state.ranks.get(n))}
    stop_ranks(state, tools.backends, held, ended)
    release_ended(tools.writer, tools.backends, tools.now)
