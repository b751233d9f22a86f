"""Placing: which rank goes to which blocks of which node, and which nodes are launched for it.

Tasks are placed one after the other, higher `priority` first, then the ones that are hardest to place
(whole nodes, many ranks). A task is placed wholly in a trial that is kept or thrown away as one, so that
no rank is ever placed without its siblings. Ties break by name, never by the order of input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from declarative.placement.explain import refusal
from declarative.placement.trial import Domain, Trial, World
from declarative.placement.types import Ask, Choice, FleetRule, Node, Outcome, VolumeAt
from declarative.resource import Offer
from declarative.spec.fleet import Placement
from declarative.state import NodeState, Readiness, natural


def place(
    asks: Sequence[Ask],
    nodes: Sequence[Node],
    fleets: Mapping[str, FleetRule],
    volumes: Mapping[str, VolumeAt],
) -> Outcome:
    """Place all tasks on one working copy of `nodes`, launching what the fleets' rules allow."""
    world = World(
        sorted(nodes, key=lambda n: natural(n.name)), dict(sorted(fleets.items())), volumes, dict[str, str]()
    )
    choices, left = _pass(world, sorted(asks, key=_order))
    short = _fill_baselines(world)
    if left and any(n.new for n in world.nodes):
        # What was launched since may hold those that launch nothing themselves.
        more, left = _pass(world, left)
        choices += more
    refusals = [refusal(world, ask, never=best_trial(_ideal(world), ask) is None) for ask in left]
    return Outcome(
        choices=tuple(sorted(choices, key=lambda c: (natural(c.task), c.rank))),
        refusals=tuple(sorted(refusals, key=lambda r: natural(r.task))),
        launches=tuple(sorted((n for n in world.nodes if n.new), key=lambda n: natural(n.name))),
        short_fleets=tuple(short),
    )


def _pass(world: World, asks: Sequence[Ask]) -> tuple[list[Choice], list[Ask]]:
    """Place what can be placed, one task after the other; the choices, and the tasks that are left."""
    choices: list[Choice] = []
    left: list[Ask] = []
    for ask in asks:
        trial = best_trial(world, ask)
        if trial is None or trial.choices is None:
            left.append(ask)
            continue
        placed = trial.choices
        if sorted(placed) != list(range(ask.want.spec.nodes)):
            raise AssertionError(
                f"{ask.want.spec.name}: placed {sorted(placed)} of {ask.want.spec.nodes} ranks"
            )
        trial.commit()
        choices += [placed[rank] for rank in sorted(placed)]
    return choices, left


def _order(ask: Ask) -> tuple[object, ...]:
    """Priority first; then those that have a place already; then the hardest ones.

    A re-plan so moves nothing; hard are whole nodes, many ranks, large requests.
    """
    task = ask.want.spec
    gpu = task.resources.gpu.count.min if task.resources.gpu else 0
    cpu = task.resources.cpu.min if task.resources.cpu else 0
    return (
        -task.priority,
        not ask.prior,
        not task.whole_nodes,
        -task.nodes,
        -gpu,
        -cpu,
        natural(str(task.name)),
    )


def best_trial(world: World, ask: Ask) -> Trial | None:
    """The cheapest complete trial over all domains, or None."""
    best: tuple[tuple[object, ...], Trial] | None = None
    for domain in domains(world, ask):
        trial = Trial(world, ask, domain)
        if trial.run():
            key = trial.cost_key()
            if best is None or key < best[0]:
                best = (key, trial)
    return best[1] if best else None


def domains(world: World, ask: Ask) -> list[Domain]:
    """Where all ranks have to lie together: fleet, backend and region for `cluster`; all of it for `any`."""
    if not ask.want.spec.cluster:
        return [Domain(None, None, None)]
    found = {(n.fleet, n.backend, n.region) for n in world.nodes}
    found |= {(name, o.backend, o.region) for name, rule in world.fleets.items() for o in rule.offers}
    return [Domain(*key) for key in sorted(found)]


def _ideal(world: World) -> World:
    """The same world with every node idle and ready, no volume held, and every offer without a limit."""
    ready = Readiness(state=NodeState.READY)
    nodes = [replace(n, held={}, readiness=ready, closed=None) for n in world.nodes]
    fleets = {
        name: replace(rule, offers=tuple(replace(o, limit=None) for o in rule.offers))
        for name, rule in world.fleets.items()
    }
    volumes = {name: replace(at, holder=None) for name, at in world.volumes.items()}
    return World(nodes, fleets, volumes, {})


def _fill_baselines(world: World) -> list[tuple[str, int]]:
    """Launch what the fleets want for themselves and no task has launched yet, at the lowest price."""
    short: list[tuple[str, int]] = []
    for name, rule in list(world.fleets.items()):
        tries: list[World] = []
        for start in [o for o in rule.offers if _may_launch(world, rule, o)]:
            tries.append(_filled(world, name, start))
            if not tries[-1].fleets[name].baseline or rule.fleet.placement is not Placement.CLUSTER:
                break  # only a cluster has to stay where its first node is
        best = min(tries, key=lambda w: w.fleets[name].baseline, default=world)
        if best is not world:
            world.become(best)
        if world.fleets[name].baseline:
            short.append((name, world.fleets[name].baseline))
    return short


def _filled(world: World, name: str, start: Offer) -> World:
    """A copy in which the fleet has as many of its nodes as can be had, the first one from `start`."""
    work = world.copy()
    while work.fleets[name].baseline > 0:
        rule = work.fleets[name]
        offers = (start, *rule.offers) if rule == world.fleets[name] else rule.offers
        offer = next((o for o in offers if _may_launch(work, rule, o)), None)
        if offer is None:
            break
        work.add(work.new_node(rule, offer, work.free_name(rule)))
    return work


def _may_launch(world: World, rule: FleetRule, offer: Offer) -> bool:
    return world.can_launch(offer) and not world.astray(rule, offer)
