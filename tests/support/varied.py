"""A world with something changed: emptied, grown, or carried out (tests/support/worlds.py)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from declarative.model.resource import Offer
from declarative.model.spec import CreationPolicy
from declarative.model.spec.values import Backfill, Count, Gpu, Resources
from declarative.model.status import NodeState, Readiness
from declarative.placement.problem import Ask, PlacementOutcome
from tests.support.worlds import Case, Choose, by_price


def empty_worlds(case: Case, task: Ask) -> Iterator[Case]:
    """The world once all running tasks have ended, without any of the nodes that their fleets may let go."""
    ready = Readiness(state=NodeState.READY)
    pins = {name for name in task.want.spec.instances if name not in {n.name for n in case.nodes}}
    spec = replace(task.want.spec, creation_policy=CreationPolicy.REUSE_OR_CREATE)
    asked = Ask(want=replace(task.want, spec=spec))
    closed = [n for n in case.nodes if n.closed and n.fleet in case.fleets]
    stay = [n for n in case.nodes if n not in closed]
    spare = [n for n in stay if n.fleet in case.fleets and n.name not in task.want.spec.instances]
    for count in range(len(spare) + 1):
        for gone in itertools.combinations(spare, count):
            fleets = {}
            for name, rule in case.fleets.items():
                left = rule.existing - sum(n.fleet == name for n in (*closed, *gone))
                nodes = rule.fleet.nodes
                assert nodes is not None
                if left < nodes.target and any(n.fleet == name for n in gone):
                    break
                numbers = range(9 if nodes.max is None else nodes.max)
                coming = tuple(sorted(pins & {f"{name}-{number}" for number in numbers}))
                fleets[name] = replace(rule, existing=left, free_names=coming)
            else:
                yield Case(
                    asks=(asked,),
                    nodes=tuple(replace(n, held={}, readiness=ready) for n in stay if n not in gone),
                    fleets=fleets,
                    volumes={name: replace(at, holder=None) for name, at in case.volumes.items()},
                )


def without_claims(case: Case) -> Case:
    """The same world, with fleets that let every task use what others wait for."""
    rules = case.fleets.items()
    fleets = {name: replace(rule, fleet=replace(rule.fleet, backfill=Backfill.ANY)) for name, rule in rules}
    return replace(case, fleets=fleets)


MODELS = ("H100", "H100", "MI300X", "FOO")
"""NVIDIA's, AMD's, and an unknown one."""


def of_vendors(where: Case, choose: Choose) -> Case:
    """The same world with GPUs of several vendors, and more gangs; a few name models of two."""

    def other(thing: Any) -> Any:
        if not thing.shape.gpus or (model := choose(MODELS)) == "H100":
            return thing
        shape = replace(thing.shape, gpu_name=model)
        return replace(thing, shape=shape, instance_type=f"{thing.instance_type}-{model.lower()}")

    def told(ask: Ask) -> Ask:
        task = ask.want.spec
        if not ask.prior and not ask.want.mounts and choose((True, False)):
            gpus = Resources(gpu=Gpu(Count(1, None)))
            task = replace(task, nodes=choose((2, 3)), resources=gpus)
            ask = replace(ask, want=replace(ask.want, spec=task))
        if task.resources.gpu is None or choose((True, True, True, False)):
            return ask
        resources = replace(task.resources, gpu=replace(task.resources.gpu, names=("H100", "MI300X")))
        return replace(ask, want=replace(ask.want, spec=replace(task, resources=resources)))

    return replace(
        where,
        asks=tuple(map(told, where.asks)),
        nodes=tuple(map(other, where.nodes)),
        fleets={
            name: replace(rule, offers=tuple(sorted(map(other, rule.offers), key=by_price)))
            for name, rule in where.fleets.items()
        },
    )


def grown(where: Case, choose: Choose) -> Case | None:
    """The same world with one more idle, ready node, like an existing one; None if there is none."""
    alike = [n for n in where.nodes if n.fleet in where.fleets and not n.closed]
    if not alike:
        return None
    old = choose(alike)
    ready = Readiness(state=NodeState.READY)
    new = replace(old, name=f"{old.fleet}-50", held={}, readiness=ready)
    kind = (old.backend, old.region, old.instance_type, old.spot)

    def raised(offer: Offer) -> Offer:
        if offer.limit is None or (offer.backend, offer.region, offer.instance_type, offer.spot) != kind:
            return offer
        return replace(offer, limit=offer.limit + 1)

    fleets = {
        name: replace(rule, offers=tuple(map(raised, rule.offers))) for name, rule in where.fleets.items()
    }
    return replace(where, nodes=(*where.nodes, new), fleets=fleets)


def later(case: Case, outcome: PlacementOutcome, asks: Sequence[Ask]) -> Case:
    """The world once `outcome` was carried out, but for its ranks; and other asks."""
    fleets = dict(case.fleets)
    for node in outcome.launches:
        rule = fleets[node.fleet]
        fleets[node.fleet] = replace(rule, existing=rule.existing + 1, baseline=max(0, rule.baseline - 1))
    nodes = (*case.nodes, *(replace(n, new=False, offer=None, held={}) for n in outcome.launches))
    volumes = {
        name: replace(at, zone=outcome.zones.get(name, at.zone), fresh=False)
        for name, at in case.volumes.items()
    }
    return Case(asks=tuple(asks), nodes=nodes, fleets=fleets, volumes=volumes)


def running(case: Case, outcome: PlacementOutcome) -> Case:
    """The same world in which the ranks that were placed hold their blocks and volumes."""
    held = {n.name: dict(n.held) for n in case.nodes}
    volumes = dict(case.volumes)
    for choice in outcome.choices:
        rank = f"rank/{choice.task}-{choice.rank}"
        held[choice.node].update(dict.fromkeys(choice.blocks, rank))
        for name in choice.volumes.values():
            volumes[name] = replace(volumes[name], holder=rank)
    return replace(case, nodes=tuple(replace(n, held=held[n.name]) for n in case.nodes), volumes=volumes)


def promised(case: Case, rng: random.Random) -> Case:
    """The same tasks, all of one priority; some were promised places, one after the other, somewhere."""
    rules = {name: replace(rule, offers=(), baseline=0) for name, rule in case.fleets.items()}
    world = replace(case, fleets=rules)
    asks: list[Ask] = []
    for ask in case.asks:
        plain = Ask(want=replace(ask.want, spec=replace(ask.want.spec, priority=0)))
        some = [n for n in world.nodes if rng.random() < 0.6]
        found = replace(world, asks=(plain,), nodes=tuple(some)).place()
        held = {c.rank: (c.node, c.blocks) for c in found.choices if rng.random() < 0.9}
        world = running(world, found)
        asks.append(replace(plain, prior=held))
    return replace(case, asks=tuple(asks))
