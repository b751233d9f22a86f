"""One apply: walk the plan's actions, stop gangs that could not start as a whole, remove old attempts.

An attempt's logs and folders are removed once its rank has two newer attempts, or is forgotten. The running
attempt and the one before it stay: people look there to see why the rank was started anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from declarative.apply.backend_client import record_token
from declarative.apply.execute import begins_at_once, execute
from declarative.apply.failover import Failover, gone
from declarative.apply.gate import is_prepared
from declarative.apply.graph_walk import UNDONE, ActionResult, Outcome, Tools, walk
from declarative.apply.open_intents import clear, makes_node
from declarative.apply.parallel import NODES_AT_ONCE, side_by_side
from declarative.apply.ranks import Note, gang_stops, stop_ranks, watched
from declarative.apply.retry_schedule import Lack, lacking, resized, starts_of
from declarative.apply.settle import free, release_ended
from declarative.model.inputs import AttachmentInputs, NodeInputs, zone_asked
from declarative.model.spec.values import Placement
from declarative.model.state import Address, Record, State, made_as
from declarative.model.status import RankStatus
from declarative.planner.plan import Action, Op, Plan, Reason
from declarative.provider import ProviderError
from declarative.retry import call

CLUSTER = Placement.CLUSTER.value


def apply(plan: Plan, tools: Tools, *, parallelism: int = 8) -> tuple[ActionResult, ...]:
    """Carry out every action of `plan`; the results in the plan's order. If the state is lost after them, as
    with its lock, that is among `tools.faults`: what was done is still to be reported.
    """
    tools.writer.ensure_lineage()
    _give_up_elsewhere(plan.actions, tools)
    touched = {a.task for a in plan.actions if a.task}
    with watched(tools.writer, tools.backends, touched, _ended(tools)):
        results = _walk(plan.actions, plan, tools, parallelism)
    if tools.stopping.is_set():
        return results
    with tools.noting_faults():
        _take_back(plan.actions, results, tools)
        lacks = lacking(plan, results)
        give_back(lacks, tools)
        results = _leave(plan, results, lacks, tools, parallelism)
        results = (*results, *_walk(_late(tools), plan.only(()), tools, parallelism))
        started = {str(r.address) for r in results if r.outcome is Outcome.DONE}
        _tidy([a for a in plan.actions if a.op is Op.CREATE and str(a.address) in started], tools)
    return results


def _walk(actions: Sequence[Action], plan: Plan, tools: Tools, parallelism: int) -> tuple[ActionResult, ...]:
    """Carry out actions; those of nodes take the fallbacks of `plan`."""
    return walk(
        actions,
        lambda action: execute(action, tools),
        begins_at_once,
        parallelism=parallelism,
        stopping=tools.stopping,
        listener=tools.listener,
        failover=Failover(plan, tools.writer.state()),
    )


def _ended(tools: Tools) -> Note:
    """A function that records how a rank has ended, and reports it."""

    def ended(rank: str, status: RankStatus) -> None:
        tools.writer.observe_ranks({rank: status})
        tools.listener.rank(f"rank/{rank}", status.state.value, status.cause)

    return ended


def _give_up_elsewhere(actions: Sequence[Action], tools: Tools) -> None:
    """Stop waiting for creates that were started and are not there (`settle.recover`), if the plan makes them
    in another place: no token leads from there to here.
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
            place = (action.backend, zone_asked(action.typed))
            moved = place != (intent.backend, zone_asked(intent.typed))
        if moved:
            if makes_node(intent) and intent.address not in state.records:
                clear(tools.backends, [intent])
            tools.writer.close_intent(intent, "not-done")


def give_back(tasks: Collection[str], tools: Tools) -> None:
    """Release what the tasks hold that lack of capacity kept from starting. While they wait, their nodes are
    idle: these may move with their cluster, and other tasks may use them.
    """
    if not tasks:
        return
    state = tools.writer.state()
    unstarted = set(tasks) - state.gangs().keys()
    attaching = (i.typed for i in state.intents if i.inputs)
    # Something may still be attached for these: a later look finds it, and holds its place.
    may_attach = {inputs.rank for inputs in attaching if isinstance(inputs, AttachmentInputs)}
    for reservation in (r for r in state.of("reservation") if r.reservation.task in unstarted):
        if tools.stopping.is_set():
            return
        if reservation.address.name not in may_attach:
            free(tools.writer, tools.backends, state, reservation, tools.now)


def _leave(
    plan: Plan, results: tuple[ActionResult, ...], lacks: Mapping[str, Lack], tools: Tools, parallelism: int
) -> tuple[ActionResult, ...]:
    """Delete the made nodes of clusters that cannot be completed and had no other offers, as `Failover` does
    if they had. Nodes that the fleet wants for itself, or that another task uses, stay.
    """
    made = {key for lack in lacks.values() for key in lack.made}
    baseline = {name for f in plan.preview.fallbacks if f.wanted for kind in f.kinds for name in kind}
    used = {r.reservation.node for r in tools.writer.state().of("reservation")}
    # Nodes that came too late are deleted in any case.
    staying = baseline | used | {address.name for address in tools.late}
    undone = {
        a.id: gone(a)
        for a in plan.actions
        if a.id in made and a.address.name not in staying
        if isinstance(a.typed, NodeInputs) and a.typed.placement == CLUSTER
    }
    deletions = _walk(list(undone.values()), plan.only(()), tools, parallelism)
    others = (
        replace(r, outcome=Outcome.SKIPPED, error=UNDONE, note=None, scarce=True) if r.id in undone else r
        for r in results
    )
    return (*others, *deletions)


def _late(tools: Tools) -> list[Action]:
    """The deletions of nodes that did not come up in time. Hosts, and protected nodes, stay."""
    state = tools.writer.state()
    used = {r.reservation.node for r in state.of("reservation")}
    nodes = (state.records[a] for a in sorted(tools.late) if a in state.records and a.name not in used)
    return [
        Action(op=Op.DELETE, address=r.address, reason=Reason.UNFIT, before=r.typed, backend=str(r.backend))
        for r in nodes
        if not r.node.host and not r.node.prevent_destroy
    ]


def _take_back(actions: Sequence[Action], results: Sequence[ActionResult], tools: Tools) -> None:
    """Stop gangs with a rank that could not start: a task never runs with fewer ranks than declared. One that
    only was to get more ranks goes on with those that it has.

    After an interruption they run on, and the next apply starts the missing ranks.
    """
    ended = _ended(tools)
    outcome = {r.id: r for r in results}
    state = tools.writer.state()
    gangs = state.gangs()
    joined = resized(actions)
    for task, starts in starts_of(actions).items():
        if task in joined:
            continue
        ends = (outcome[action.id] for action in starts)
        broken = next((end for end in ends if end.outcome is Outcome.FAILED), None)
        if broken is not None:
            cause = f"{broken.address} did not start: {broken.error}"
            names = [r.address.name for r in gangs.get(task, ())]
            going = [name for name in names if not state.has_ended(name)]
            stop_ranks(state, tools.backends, dict.fromkeys(going, cause), ended)
    # Ranks that wait for one that failed while it was prepared stop as well.
    state = tools.writer.state()
    prepared = {n: s.cause for n, s in gang_stops(state).items() if is_prepared(state.ranks.get(n))}
    stop_ranks(state, tools.backends, prepared, ended)
    release_ended(tools.writer, tools.backends, tools.now)


def complete(taken: Mapping[Address, str], tools: Tools) -> tuple[ActionResult, ...]:
    """Wait until nodes that were taken up run, by the tokens of their creates; those that never do.

    What was there when it was looked for may still be taken back: a create finds that out, and makes it anew.
    """
    state = tools.writer.state()

    def complete_one(record: Record) -> ActionResult | None:
        client = tools.backends.get(record.backend)
        try:
            outputs = call(
                lambda: client.create(made_as(record), taken[record.address], record.inputs, {}),
                policy=tools.policy,
                stopping=tools.stopping.is_set,
            )
        except ProviderError as error:
            return ActionResult.of(Op.CREATE, record.address, Outcome.FAILED, error)
        if any(record.outputs.get(key) != value for key, value in outputs.items()):
            tools.writer.note({record.address: outputs})
        return None

    recorded = [record for address in sorted(taken) if (record := state.records.get(address))]
    nodes = [record for record in recorded if record_token(state, record) == taken[record.address]]
    return tuple(result for result in side_by_side(nodes, complete_one) if result)


# ---------------------------------------------------------------------------------------- old attempts

KEPT = 2
"""Attempts of a rank that are kept, including the present one."""


def oldest_kept(state: State) -> dict[str, int]:
    """Rank, by the name of its attempts → the first attempt to keep, if there are older ones."""
    ranks = state.of("rank")
    out = {made_as(r).name: r.generation - KEPT + 1 for r in ranks if r.generation > KEPT}
    known = {made_as(r).name for r in ranks} | {i.address.name for i in state.intents}
    for address, generation in state.generations.items():
        if address.kind == "rank" and address not in state.records and address.name not in known:
            out[address.name] = generation + 1
    return out


def _tidy(done: Iterable[Action], tools: Tools) -> None:
    """Remove old attempts of ranks that were started. What cannot be removed now is tried again later."""
    ranks = {a.address for a in done if a.address.kind == "rank"}
    if not ranks:
        return
    state = tools.writer.state()
    oldest = oldest_kept(state)
    names = {r.node_name for a, r in state.records.items() if a in ranks and r.node_name}
    nodes = [node for name in sorted(names) if (node := state.get("node", name))]
    if not oldest or not nodes:
        return

    def tidy(node: Record) -> None:
        with suppress(ProviderError):
            tools.backends.get(node.backend).tidy(node, oldest)

    side_by_side(nodes, tidy, NODES_AT_ONCE)
