"""Whether a refused task can never fit, or only does not fit now. No other module decides that.

A task can never fit if it has no place in the empty world. There all running tasks have ended, every node is
ready, volumes are free, nodes that are due to go are gone, and each fleet may grow to its maximum. What is
declared holds there too: the `nodes` of fleets, the `limit` of offers, and all that the task asks for. A task
that launches nothing, or pins nodes, may use there what others get launched.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from declarative.model.spec import CreationPolicy
from declarative.model.state import rank_name
from declarative.model.status import NodeState, Readiness
from declarative.placement.assignment import Assignment
from declarative.placement.catalog import Catalog, Job
from declarative.placement.consolidation import keep_baselines
from declarative.placement.filters import LASTING, blocks_wanted, unseen_reason
from declarative.placement.greedy import best_try
from declarative.placement.problem import Ask, FleetRule, Node, NodeType, Unseen, of_offer

MOST_SEARCHED = 50
"""Unlike tasks that are searched a place for alone; beyond, none of that sort is said never to fit."""


MOST_BUILT = 200_000
"""Nodes and offers of worlds that are built for all tasks; beyond, no task is said never to fit by them."""

MOST_GROUPS = 4
"""Groups of nodes that may go, of which each may go or stay while the others do; of more one goes, or all."""


class EmptyWorld:
    """What would be there if all running tasks had ended, for the refused tasks of one plan."""

    def __init__(
        self, catalog: Catalog, jobs: Iterable[Job], may_fit_alone: Callable[[Catalog, Job], bool]
    ) -> None:
        """`may_fit_alone` says whether the search finds a task a place in a catalog, or may do so."""
        self.catalog, self._may_fit_alone = catalog, may_fit_alone
        self._built = 0
        self._searched: set[object] = set()
        self._of_fleet: dict[str, list[int]] = {}
        for number, node in enumerate(catalog.nodes):
            self._of_fleet.setdefault(node.fleet, []).append(number)
        self._shared_asks = {_likeness(job): job.ask for job in jobs if not job.ask.stay}
        self._most_of: dict[object, int] = {}
        """Likeness → how many ranks of such a task find a place."""

    def never_fits(self, job: Job) -> bool:
        """Whether a task has no place there. What could not be read now is taken to hold what it may."""
        seated = self._most_seated(job)
        if seated == job.ranks:
            return False
        more = {
            name: sum(self._holds(job, rule, unseen) for unseen in rule.unseen)
            for name, rule in self.catalog.fleets.items()
        }
        if not any(more.values()):
            return True
        if not job.unconstrained:
            return False  # how many ranks volumes and pins leave a place to is not counted
        most = max(more.values()) if job.request.one_area else sum(more.values())
        return seated + most < job.ranks

    def _holds(self, job: Job, rule: FleetRule, unseen: Unseen) -> int:
        """How many ranks of a task it may hold at most, once it is there."""
        if unseen_reason(job.task, rule.fleet, unseen).code in LASTING:
            return 0
        if unseen.offer is None:
            most = rule.fleet.nodes.max if rule.fleet.nodes else None
            room = job.ranks if most is None else max(0, most - rule.existing)
            return 0 if not room else min(room, job.ranks) if job.request.whole else job.ranks
        if job.request.whole:
            return 1
        node_type = NodeType(*of_offer(unseen.offer, rule.fleet))
        return node_type.total // blocks_wanted(job.task, node_type) if unseen.known else job.ranks

    def _most_seated(self, job: Job) -> int:
        """How many ranks of a task find a place there: all of them if the search may find places for them."""
        likeness = _likeness(job)
        if likeness not in self._most_of:
            self._most_of[likeness] = self._look(job)
        return self._most_of[likeness]

    def _look(self, job: Job) -> int:
        most = 0
        ask = job.ask if job.ask.stay else self._shared_asks[_likeness(job)]
        for world in self._worlds(job, ask):
            if world is None:
                return job.ranks
            same = next(other for other in world.catalog.jobs if other.task.name == ask.want.spec.name)
            most = max(most, self._seated(world, same))
            if most == job.ranks:
                break
        return most

    def _seated(self, world: Assignment, job: Job) -> int:
        best = best_try(world, job)
        if best is not None and best.failed is not None:
            world.roomy = True  # the cheapest launches may be too small
            best = min(best, best_try(world, job) or best, key=lambda tried: tried.rank)
            world.roomy = False
        if best is not None and best.failed is None:
            return job.ranks
        # Where ranks differ, or several fleets have yet to choose where they lie, one try may choose wrongly.
        if job.ranks > 1 and job.request.fit and not (job.alike and job.request.one_area):
            self._searched.add(_likeness(job))
            if len(self._searched) > MOST_SEARCHED or self._may_fit_alone(world.catalog, job):
                return job.ranks
        return len(best.nodes) if best else 0

    def _worlds(self, job: Job, ask: Ask) -> Iterator[Assignment | None]:
        """With all nodes that may stay; without those that may go and hold no rank of the task; and without
        some of the others that may go, since those to launch in their stead may suit it better. None is one
        that would take too much work.
        """
        yield self._world([ask]) if ask.stay else self._shared
        if not job.request.fit:
            return
        unfit, groups = self._may_go(job)
        # Where ranks have no volumes, pins or spread, new nodes in the stead of all are as good as of some.
        single = () if job.unconstrained else groups
        sets: Iterable[Collection[tuple[str, int]]] = [(), groups, *([group] for group in single)]
        if len(groups) <= MOST_GROUPS:
            sets = (some for n in range(len(groups) + 1) for some in itertools.combinations(groups, n))
        for some in sets:
            going = {name for group in some for name in groups[group]}
            if unfit or going:
                self._built += len(self.catalog.nodes) + len(self.catalog.options)
                yield self._world([ask], {*unfit, *going}) if self._built <= MOST_BUILT else None

    @cached_property
    def _shared(self) -> Assignment:
        return self._world(self._shared_asks.values())

    def _may_go(self, job: Job) -> tuple[set[str], dict[tuple[str, int], list[str]]]:
        """Nodes above the targets of their fleets: those that hold no rank of a task; the others by fleet and
        kind.
        """
        catalog, fit = self.catalog, job.request.fit
        unfit: set[str] = set()
        groups: dict[tuple[str, int], list[str]] = {}
        for fleet, numbers in self._of_fleet.items():
            rule = catalog.fleets.get(fleet)
            if rule is None or rule.fleet.nodes is None or not _lets_nodes_go(rule):
                continue
            stay = [n for n in numbers if not catalog.nodes[n].closed]
            most = rule.existing - (len(numbers) - len(stay)) - rule.fleet.nodes.target
            idle = [n for n in stay if catalog.nodes[n].name not in job.task.instances]
            for n in sorted(idle, key=lambda n: catalog.kind_of[n] in fit)[: max(0, most)]:
                kind, name = catalog.kind_of[n], catalog.nodes[n].name
                groups.setdefault((fleet, kind), []).append(name) if kind in fit else unfit.add(name)
        return unfit, groups

    def _world(self, asks: Iterable[Ask], gone: Collection[str] = ()) -> Assignment:
        """The empty world in which some tasks are asked for, without the nodes that are gone."""
        asks = list(asks)
        pins = {name for ask in asks for name in ask.want.spec.instances if name not in self.catalog.index}
        siblings = {
            f"rank/{rank_name(str(ask.want.spec.name), rank)}"
            for ask in asks
            for rank in range(ask.stay + len(ask.numbers))
            if rank not in ask.numbers
        }
        elastic = {name for name, rule in self.catalog.fleets.items() if rule.fleet.nodes is not None}
        nodes = [
            _idle(node, siblings)
            for node in self.catalog.nodes
            if node.name not in gone and not (node.closed and node.fleet in elastic)
        ]
        remaining = Counter(node.fleet for node in nodes)
        rules = {
            name: _grown(rule, rule.existing - len(self._of_fleet.get(name, ())) + remaining[name], pins)
            for name, rule in self.catalog.fleets.items()
        }
        volumes = {
            name: at if at.holder in siblings else replace(at, holder=None)
            for name, at in self.catalog.volumes.items()
        }
        world = Assignment.start(Catalog([_launching(ask) for ask in asks], nodes, rules, volumes))
        keep_baselines(world)
        return world


def _likeness(job: Job) -> object:
    """Equal for tasks of which each has a place in the empty world if another has one."""
    alone = job.task.instances or any(job.ask.want.mounts) or job.ask.stay
    return job.index if alone else (id(job.request), job.ranks, job.task.spread)


def _lets_nodes_go(rule: FleetRule) -> bool:
    """Whether a fleet deletes idle nodes above its target."""
    return not rule.fleet.prevent_destroy and rule.fleet.idle_duration.seconds is not None


def _idle(node: Node, siblings: Collection[str]) -> Node:
    """A node that is ready, and on which only some ranks of the task itself stay."""
    held = {block: holder for block, holder in node.held.items() if holder in siblings}
    ready = Readiness(state=NodeState.READY, can=node.readiness.can)
    return replace(node, held=held, readiness=ready, closed=None, avoided_by=frozenset())


def _grown(rule: FleetRule, existing: int, pins: Collection[str]) -> FleetRule:
    """The rule of a fleet with so many nodes, which may launch those that tasks pin if it may have them."""
    nodes = rule.fleet.nodes
    if nodes is None:
        return replace(rule, existing=existing)
    coming: list[str] = []
    for name in sorted(pins):
        fleet, _, number = name.rpartition("-")
        # A new node gets the lowest free number.
        if fleet == rule.fleet.name and number.isdecimal() and (nodes.max is None or int(number) < nodes.max):
            coming.append(name)
    baseline = max(rule.baseline, nodes.target - existing)
    return replace(rule, existing=existing, baseline=baseline, free_names=(*rule.free_names, *coming))


def _launching(ask: Ask) -> Ask:
    """What a task asks for, if others got launched what it would use."""
    spec = replace(ask.want.spec, creation_policy=CreationPolicy.REUSE_OR_CREATE)
    return Ask(want=replace(ask.want, spec=spec), numbers=ask.numbers, stay=ask.stay)
