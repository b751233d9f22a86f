"""The decisions about nodes, volumes and tasks. They depend on one another, so they are made together.

A task that has to run anew frees what it holds, so its nodes count as idle. A node that is deleted makes the
tasks on it run anew. A running task without another place runs on, and keeps all that it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from declarative.model.diagnostic import Diagnostic
from declarative.model.record import set_field, struct
from declarative.model.resource import Desired, OthersShare
from declarative.model.state import ORPHAN, Address, State, natural, rank_name
from declarative.model.text import and_more
from declarative.placement.block_numbers import finish
from declarative.placement.catalog import Catalog
from declarative.placement.place import Placed
from declarative.placement.problem import (
    Ask,
    Choice,
    Node,
    PlacementOutcome,
    RankVerdict,
    Refusal,
    Verdict,
    VolumeAt,
)
from declarative.placement.search import Search
from declarative.planner import tasks as task_decisions
from declarative.planner import volumes as volume_decisions
from declarative.planner.fleets import Fleets
from declarative.planner.hosts import why_unasked, with_node_names, with_partition_nodes
from declarative.planner.inventory import ANSWERS, Inventory, blocks_of_others, observed_state
from declarative.planner.plan import Queued, Reason
from declarative.planner.tasks import Course, TaskDecision
from declarative.planner.volumes import VolumeDecision, with_cleanup

MOST_NAMED = 3
"""A hint names at most so many running tasks."""


@struct(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The input of a plan.

    `now` is seconds since the epoch, for idle times and retries. `requested` holds the addresses of tasks to
    run again and of nodes to make anew, although nothing about them changed. `destroy` leaves protected
    things alone. With `reuse`, tasks launch no nodes. `effort` multiplies the search for the cheapest
    launches. `explained_task` is the task
    that the plan explains: see `place`. `without_tasks` are tasks without records, which get no place now.
    """

    desired: Desired
    recorded: State
    inventory: Inventory
    now: float
    requested: frozenset[str] = frozenset()
    destroy: bool = False
    reuse: bool = False
    effort: int = 1
    explained_task: str | None = None
    without_tasks: frozenset[str] = frozenset()
    state: State = field(init=False, repr=False)
    """The records, with what was observed."""

    def __post_init__(self) -> None:
        observed = observed_state(self.recorded, self.inventory)
        set_field(self, "state", with_partition_nodes(observed, self.desired, self.inventory))


@struct(frozen=True, slots=True, kw_only=True)
class Decisions:
    """The decisions of all fleets, volumes and tasks, and the places of the tasks that run."""

    fleets: Fleets
    volumes: Mapping[str, VolumeDecision]
    tasks: Mapping[str, TaskDecision]
    outcome: PlacementOutcome
    errors: tuple[Diagnostic, ...]
    queued: tuple[Queued, ...] = ()

    def nodes(self) -> dict[str, Node]:
        """Every node as it will be. A launched node replaces the one of the same name."""
        nodes = {name: decision.planned for name, decision in self.fleets.decisions.items()}
        return nodes | {node.name: node for node in self.outcome.launches}


class DecisionRound(NamedTuple):
    """What was decided while some running tasks cannot be placed again."""

    placed: Placed
    outcome: PlacementOutcome
    stuck: Mapping[str, Refusal]
    """These tasks, each with its refusal."""


def decide(request: PlanRequest) -> Decisions:
    """Decide. If a running task cannot be placed anew, it runs on as it is, and all is decided again; but
    first with its nodes as they are, if they would go, or be split anew.
    """
    rounds: list[DecisionRound] = []
    kept_nodes: frozenset[str] = frozenset()
    while True:
        kept_running = frozenset().union(*(before.stuck for before in rounds))
        decisions, placed = _judge(request, kept_running, kept_nodes)
        refusals = {r.task: r for r in decisions.outcome.refusals if r.task not in kept_running}
        more = {n: r for n, r in refusals.items() if _goes_on(request.state, decisions.tasks[n])}
        idle = _given_up(request.state, decisions.fleets, more) - kept_nodes
        if idle:
            kept_nodes |= idle
        elif more:
            rounds.append(DecisionRound(placed, decisions.outcome, more))
        elif rounds:
            return replace(decisions, outcome=_with_stuck(request, decisions.outcome, rounds))
        else:
            return decisions


def _given_up(state: State, fleets: Fleets, tasks: Container[str]) -> frozenset[str]:
    """The nodes of tasks that would be deleted as too many, or split anew, once these tasks are gone."""
    names = {r.reservation.node for r in state.of("reservation") if r.reservation.task in tasks}
    theirs = (fleets.decisions[name] for name in names if name in fleets.decisions)
    return frozenset(
        f.node.name
        for f in theirs
        if f.goes is Reason.SURPLUS or (not f.goes and f.after.blocks != f.record.node.blocks)
    )


def _with_stuck(
    request: PlanRequest, outcome: PlacementOutcome, rounds: Sequence[DecisionRound]
) -> PlacementOutcome:
    """The outcome with the refusals of running tasks, and the changes that help such: they take part once
    more as soon as something fits them.
    """
    stuck: dict[str, Refusal] = {}
    first, seated = rounds[0].outcome, {choice.task for choice in outcome.choices}
    for number, before in enumerate(rounds):
        stuck |= before.stuck
        if seated - {choice.task for choice in before.outcome.choices}:
            # Others are seated once the stuck tasks do not take part. No change may take their places.
            outcome_then = before.placed.outcome(request.explained_task, shared=not number, seated=seated)
            outcome_then = until_scheduled(outcome_then, request.desired, request.inventory, request.now)
            stuck |= {r.task: r for r in outcome_then.refusals if r.task in before.stuck}
            first = first if number else outcome_then
    named = and_more((f"task/{name}" for name in sorted(stuck, key=natural)), MOST_NAMED)
    hint = f"make room for the changes of {named} first: that would take what is free"
    refused = [
        replace(r, changes=None, hint=hint) if r.code == "no-capacity" and r.changes == () else r
        for r in outcome.refusals
    ]
    refusals = sorted((*refused, *stuck.values()), key=lambda r: natural(r.task))
    remedies = tuple(r for r in first.remedies if not stuck.keys().isdisjoint(r.tasks))
    return replace(outcome, refusals=tuple(refusals), remedies=remedies)


def _goes_on(state: State, decision: TaskDecision) -> bool:
    """Whether it runs with all of its ranks: an incomplete gang does not count."""
    runs = any(not state.has_ended(r.address.name) for r in decision.have.values())
    return runs and not decision.incomplete


def _judge(
    request: PlanRequest, kept_running: frozenset[str], kept_nodes: frozenset[str]
) -> tuple[Decisions, Placed]:
    """Decide. The tasks `kept_running` stay where they are, and `kept_nodes` stay as they are though idle."""
    desired, state = request.desired, request.state
    decisions = task_decisions.decide_tasks(desired, state, request.requested, request.now)
    for name in kept_running:
        decisions[name].course = Course.KEPT
    holders = (r for r in (*state.of("reservation"), *state.of("attachment")) if r.task in kept_running)
    pinned = frozenset(address for record in holders for address in record.needs)
    volumes, errors = volume_decisions.decide_volumes(
        desired, state, request.inventory, destroy=request.destroy, pinned=pinned, requested=request.requested
    )
    fleets, freed = _with_cascades(request, decisions, volumes, pinned, kept_nodes)
    twice = _twice(state, decisions)
    barred = {*twice, *request.without_tasks}
    # Tasks that ask for places: for all of their ranks, or for those that join the others.
    runs = [
        f
        for f in decisions.values()
        if f.course is Course.RUN or (f.course is Course.RESIZED and f.missing)
        if f.name not in barred
    ]
    attachments = (r.attachment for r in state.of("attachment"))
    users = {a.volume: f"rank/{a.rank}" for a in attachments if a.rank not in freed}
    volumes_at = {v.name: v.at(users.get(v.name)) for v in volumes.values() if v.after is not None}
    catalog, placed = _placed(request, runs, fleets, volumes_at)
    # A larger fleet may be what they wait for, and then they take what is shared.
    outcome = placed.outcome(request.explained_task, shared=not kept_running)
    # Refused tasks that may wait in a queue. A running task goes on instead.
    refused = (decisions[r.task] for r in outcome.refusals if r.code == "no-capacity")
    may_queue = (f for f in refused if f.want.spec.queue and not _goes_on(state, f))
    waiting = {f.name: _ask(request, f, ()) for f in may_queue}
    outcome, queued = _behind_others(waiting, catalog, outcome, request.inventory)
    outcome = until_scheduled(outcome, desired, request.inventory, request.now)
    outcome = replace(outcome, refusals=(*outcome.refusals, *twice.values()))
    volumes = volume_decisions.with_zones(desired, volumes, outcome.zones)
    volumes = with_cleanup(
        desired, state, volumes, outcome, freed=freed, now=request.now, waiting_tasks=request.without_tasks
    )
    return Decisions(
        fleets=fleets, volumes=volumes, tasks=decisions, outcome=outcome, errors=tuple(errors), queued=queued
    ), placed


def _with_cascades(
    request: PlanRequest,
    decisions: Mapping[str, TaskDecision],
    volumes: Mapping[str, VolumeDecision],
    pinned: frozenset[Address],
    kept_nodes: frozenset[str],
) -> tuple[Fleets, frozenset[str]]:
    """The fleets, and the ranks whose blocks are freed, once no replacement makes more tasks run anew."""
    going_volumes = {
        Address("volume", v.name)
        for v in volumes.values()
        if v.replaced or (v.after is None and not v.kept_back)
    }
    more = _freed(request.state, decisions)
    while True:
        freed = more
        fleets = Fleets(
            request.desired,
            request.state,
            request.inventory,
            request.now,
            freed=freed,
            pinned=pinned,
            spared=kept_nodes,
            requested=request.requested,
        )
        if request.destroy:  # it leaves protected nodes alone, and only forgets adopted ones
            for decision in fleets.decisions.values():
                record = decision.record
                is_adopted = record.node.instance_id is not None
                spares = not is_adopted and request.desired.protects(str(record.address), record.node)
                decision.goes, decision.put_off = None if spares else Reason.DESTROY, None
        nodes = {f.record.address for f in fleets.decisions.values() if f.goes}
        task_decisions.cascade(decisions, request.state, frozenset(nodes | going_volumes))
        more = _freed(request.state, decisions)
        if more == freed:
            return fleets, freed


def _placed(
    request: PlanRequest, runs: Sequence[TaskDecision], fleets: Fleets, volumes: Mapping[str, VolumeAt]
) -> tuple[Catalog, Placed]:
    """Places for all tasks that have to run. If deleted nodes make room in a fleet, they are placed again."""
    avoiding = {decision.name: decision.avoids for decision in runs if decision.avoids}
    while True:
        catalog, placed = _placed_once(request, runs, fleets, volumes, avoiding)
        launched = Counter(node.fleet for node in placed.finished.launches)
        retired = fleets.retire(placed.used, launched)
        if not fleets.makes_room(retired, launched, placed.refused):
            break
    for decision in runs:
        nodes = avoiding.get(decision.name, ())
        decision.despite = tuple(name for name in decision.avoids if name not in nodes)
        decision.avoids = nodes
        if nodes:
            decision.because = (*decision.because, avoids_text(nodes))
    return catalog, placed


def avoids_text(nodes: Sequence[str]) -> str:
    """`avoids node/gpu-0, where it failed before`."""
    return f"avoids {and_more((f'node/{name}' for name in nodes), MOST_NAMED)}, where it failed before"


def _placed_once(
    request: PlanRequest,
    runs: Sequence[TaskDecision],
    fleets: Fleets,
    volumes: Mapping[str, VolumeAt],
    avoiding: dict[str, tuple[str, ...]],
) -> tuple[Catalog, Placed]:
    """Places with the nodes that tasks are `avoiding`. A task that finds none that way avoids only the node
    where it failed last, and then none: `avoiding` loses these.
    """
    # The tasks that get more ranks beside one that stays on a node, if that matters.
    beside: dict[str, set[str]] = {}
    for decision in (decision for decision in runs if decision.course is Course.RESIZED):
        if decision.want.spec.spread or decision.want.spec.resources.gpu:
            for name, _ in prior_places(request.state, decision).values():
                beside.setdefault(name, set()).add(decision.name)
    while True:
        nodes = [avoided_by(decision.planned, avoiding) for decision in fleets.staying()]
        nodes = [replace(n, beside=frozenset(beside[n.name])) if n.name in beside else n for n in nodes]
        asks = [_ask(request, decision, avoiding.get(decision.name, ())) for decision in runs]
        catalog = Catalog(asks, nodes, fleets.rules(), volumes)
        placed = Placed(catalog, request.effort)
        refused = [str(job.task.name) for job in placed.seating.unseated if job.task.name in avoiding]
        if not refused:
            return catalog, placed
        for name in refused:
            nodes_before = avoiding.pop(name)
            if len(nodes_before) > 1:
                avoiding[name] = nodes_before[-1:]


def avoided_by(node: Node, avoiding: Mapping[str, Collection[str]]) -> Node:
    """The node, with the tasks that avoid it."""
    tasks = frozenset(task for task, names in avoiding.items() if node.name in names)
    return replace(node, avoided_by=tasks) if tasks else node


def _ask(request: PlanRequest, decision: TaskDecision, avoiding: Collection[str]) -> Ask:
    """What a task asks for. If it avoids more nodes than it has ranks, more likely the task itself is at
    fault: then nothing is launched to avoid nodes.
    """
    want = with_node_names(decision.want, request.desired, request.state)
    suspect = bool(avoiding) and len(decision.avoids) > want.spec.nodes
    prior, reuse = prior_places(request.state, decision), request.reuse or suspect
    if decision.course is not Course.RESIZED:
        return Ask(want=want, prior=prior, reuse=reuse)
    new = decision.missing
    mounts = tuple(want.mounts[rank] for rank in new) if want.mounts else ()
    return Ask(
        want=replace(want, spec=replace(want.spec, nodes=len(new)), mounts=mounts),
        prior={i: prior[rank] for i, rank in enumerate(new) if rank in prior},
        reuse=reuse,
        numbers=tuple(new),
        stay=want.spec.nodes - len(new),
    )


def _twice(state: State, decisions: Mapping[str, TaskDecision]) -> dict[str, Refusal]:
    """Tasks that might run twice at once if they were started. A rank of theirs runs without a record, as
    after a restore; or its start was cut short, and its node has not answered since. Then it keeps its place.
    """
    strays = {
        holder.removesuffix(ORPHAN).removeprefix("rank/"): node
        for node, holders in sorted(state.strays.items())
        for holder in holders.values()
        if holder.endswith(ORPHAN)
    }
    unknown = _unknown_starts(state)
    out: dict[str, Refusal] = {}
    for name, decision in decisions.items():
        ranks = {r: rank_name(name, r) for r in range(decision.want.spec.nodes)}
        nodes_of_ranks = {
            r: node for r, rank in ranks.items() if (node := strays.get(rank) or unknown.get(rank))
        }
        if not nodes_of_ranks or decision.course is Course.KEPT:
            continue
        if decision.course in (Course.COMPLETED, Course.RESIZED) or unknown.keys() & ranks.values():
            decision.course = Course.KEPT
        out[name] = _refused(name, ranks, nodes_of_ranks, strays, state)
    return out


def _unknown_starts(state: State) -> dict[str, str]:
    """Ranks that may have been started on nodes that do not answer, with these nodes."""
    out = {}
    for intent in state.intents:
        rank = intent.address
        if rank.kind != "rank" or intent.op != "create" or rank in state.records:
            continue
        node = state.node_of_rank(rank.name)
        if node is None:
            continue
        name = node.address.name
        readiness, silence = state.readiness.get(name), state.silent.get(name)
        answers = readiness is not None and readiness.state in ANSWERS
        if not answers and not (silence is not None and silence.given_up):
            out[rank.name] = name
    return out


def _refused(
    task: str, ranks: Iterable[int], nodes_of_ranks: Mapping[int, str], strays: Container[str], state: State
) -> Refusal:
    """`nodes_of_ranks` is rank → the node on which it runs, or may run."""
    first, node = next(iter(nodes_of_ranks.items()))
    name = rank_name(task, first)
    rank = f"rank/{name}"
    if name in strays:
        code = "runs-already"
        what = f"{rank} runs on node/{node} and is not recorded"
        adopt = f"`fleetform state adopt {rank}` records it"
        if state.get("rank", name) is not None:  # an earlier attempt
            adopt = f"`fleetform state rm {rank}`, then `fleetform state adopt {rank}` records it"
        hint = f"{adopt}, `fleetform stop {task}` stops it"
    else:
        code = "no-capacity"
        what = f"{rank} may run on node/{node}, which does not answer"
        hint = "it is started once that node answers, or was given up after `unreachable_duration`"
    verdicts = {r: Verdict.CAUSE if r in nodes_of_ranks else Verdict.NOT_TRIED for r in ranks}
    return Refusal(
        task=task,
        code=code,
        summary=f"{what}: task/{task} might run twice at once",
        hint=hint,
        ranks=tuple(RankVerdict(rank=r, verdict=verdict) for r, verdict in verdicts.items()),
    )


def _freed(state: State, decisions: Mapping[str, TaskDecision]) -> frozenset[str]:
    """The ranks whose blocks and volumes are freed: those of tasks that start again, or are not declared, and
    those above the `nodes` of their task.
    """
    going_on = {f.name: f for f in decisions.values() if f.course is not Course.RUN}
    return frozenset(
        r.address.name
        for r in state.of("reservation")
        if r.reservation.task not in going_on or going_on[r.reservation.task].leaves(r.address.name)
    )


def prior_places(state: State, decision: TaskDecision) -> dict[int, tuple[str, tuple[int, ...]]]:
    """Where the task's ranks are now, or were promised to be."""
    out: dict[int, tuple[str, tuple[int, ...]]] = {}
    for rank in range(decision.want.spec.nodes):
        record = state.get("reservation", rank_name(decision.name, rank))
        if record:
            out[rank] = (record.reservation.node, record.reservation.blocks)
    return out


def until_scheduled(
    outcome: PlacementOutcome, desired: Desired, inventory: Inventory, now: float
) -> PlacementOutcome:
    """The outcome, with `no-capacity` for tasks that wait for a fleet outside of its schedule, or for one
    whose cluster was not asked for its nodes.

    Placement sees such a fleet as one of `nodes: 0`. To write more nodes would not help.
    """
    asleep = [name for name in desired.fleets if f"fleet/{name}" in desired.asleep]
    hints: dict[tuple[str, str], tuple[str, str | None]] = {}
    for name, fleet in desired.fleets.items():
        if name in asleep and fleet.schedule:
            starts = fleet.schedule.next_start(now)
            hint = f"fleet/{name} has no nodes outside of its `schedule`, which starts at {starts}"
            hints[str(name), "fleet-max"] = hint, starts
        if why_unasked(fleet, inventory):
            hint = f"the nodes of fleet/{name} are known once its cluster is asked"
            hints[str(name), "offers-unknown"] = hint, None
    refusals: list[Refusal] = []
    for refusal in outcome.refusals:
        later = next((later for cause, later in hints.items() if cause in refusal.causes), None)
        refusals.append(refusal if later is None else refusal.until(*later))
    remedies = (remedy for remedy in outcome.remedies if remedy.fleet not in asleep)
    return replace(outcome, refusals=tuple(refusals), remedies=tuple(remedies))


# ---------------------------------------------------------------- behind others, in a cluster's own queue

MOST_STEPS = 8
"""The planner tries at most so many moments, to see what is free then."""


def _behind_others(
    waiting: Mapping[str, Ask], catalog: Catalog, outcome: PlacementOutcome, inventory: Inventory
) -> tuple[PlacementOutcome, tuple[Queued, ...]]:
    """The outcome, with places for refused tasks of `waiting` (`queue: true`) that fit once others' jobs have
    ended. Such a task is planned as if the jobs that end first were over.

    A task waits for ranks of this project by its `retry`, not here. The cluster decides who comes first.
    """
    taken = {
        partition_node.host.name: partition_node.taken
        for nodes in inventory.existing.values()
        for partition_node in nodes
    }
    taken |= inventory.taken
    if not waiting or not any(taken.values()):
        return outcome, ()
    rules = {name: rule for name, rule in catalog.fleets.items() if rule.fleet.partition}
    nodes = [node for node in catalog.nodes if node.fleet in rules]
    choices = list(outcome.choices)
    queued: list[Queued] = []
    open_asks = dict(waiting)
    for moment in _moments(taken.values()):
        then = [_at(node, moment, taken, choices) for node in nodes]
        users = {name: f"rank/{rank_name(c.task, c.rank)}" for c in choices for name in c.volumes.values()}
        volumes = {
            name: replace(at, holder=users.get(name, at.holder)) for name, at in catalog.volumes.items()
        }
        trial = Catalog([*open_asks.values()], then, rules, volumes)
        placed = finish(Search(trial).run().assignment).choices
        on_nodes: dict[str, list[str]] = {}
        for choice in placed:
            on_nodes.setdefault(choice.task, []).append(choice.node)
            open_asks.pop(choice.task, None)
        choices += placed
        for task, names in on_nodes.items():
            shares = [one for name in sorted(set(names), key=natural) for one in taken.get(name, ())]
            ends = [one.until for one in shares if one.until is not None]
            until = max(ends, default=None) if len(ends) == len(shares) else None
            holders = tuple(dict.fromkeys(one.holder for one in shares))
            queued.append(Queued(task=task, holders=holders, until=until))
        if not open_asks:
            break
    queued.sort(key=lambda one: natural(one.task))
    queued_tasks = {one.task for one in queued}
    refusals = tuple(r for r in outcome.refusals if r.task not in queued_tasks)
    remedies = outcome.remedies if refusals else ()
    outcome = replace(outcome, choices=tuple(choices), refusals=refusals, remedies=remedies)
    return outcome, tuple(queued)


def _moments(taken: Collection[Sequence[OthersShare]]) -> list[float]:
    """The latest times at which something is given back, earliest first. Everything is by the last one."""
    ends = sorted({one.until for shares in taken for one in shares if one.until is not None})
    step = max(1, -(-len(ends) // (MOST_STEPS - 1)))
    return [*ends[step - 1 :: step], float("inf")]


def _at(
    node: Node, moment: float, taken: Mapping[str, Sequence[OthersShare]], choices: Sequence[Choice]
) -> Node:
    """A node as it will be at that moment, when all jobs have ended that have no more time by then."""
    holders = {block: holder for block, holder in node.held.items() if holder.startswith("rank/")}
    for choice in choices:
        if choice.node == node.name:
            holders |= dict.fromkeys(choice.blocks, f"rank/{rank_name(choice.task, choice.rank)}")
    still = [
        one for one in taken.get(node.name, ()) if moment < (float("inf") if one.until is None else one.until)
    ]
    return replace(node, held={**blocks_of_others(node.shape, node.total, still, holders), **holders})
