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
from declarative.placement.types import Ask, Choice, FleetRule, Node, Outcome, Refusal, VolumeAt
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
    choices: list[Choice] = []
    refusals: list[Refusal] = []
    for ask in sorted(asks, key=_order):
        trial = best_trial(world, ask)
        if trial is None or trial.choices is None:
            never = best_trial(_ideal(world), ask) is None
            refusals.append(refusal(world, ask, never=never))
            continue
        placed = trial.choices
        if sorted(placed) != list(range(ask.want.spec.nodes)):
            raise AssertionError(
                f"{ask.want.spec.name}: placed {sorted(placed)} of {ask.want.spec.nodes} ranks"
            )
        trial.commit()
        choices += [placed[rank] for rank in sorted(placed)]
    short = _fill_baselines(world)
    return Outcome(
        choices=tuple(sorted(choices, key=lambda c: (natural(c.task), c.rank))),
        refusals=tuple(sorted(refusals, key=lambda r: natural(r.task))),
        launches=tuple(sorted((n for n in world.nodes if n.new), key=lambda n: natural(n.name))),
        short_fleets=tuple(short),
    )


def _order(ask: Ask) -> tuple[object, ...]:
    """Priority first; then those that already have a place, so that a re-plan moves nothing; then the
    hardest ones: whole nodes, many ranks, large requests."""
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
    for name in list(world.fleets):
        rule = world.fleets[name]
        while world.fleets[name].baseline > 0:
            offer = next((o for o in rule.offers if world.can_launch(rule, o)), None)
            if offer is None:
                short.append((name, world.fleets[name].baseline))
                break
            world.add(world.new_node(world.fleets[name], offer, world.free_name(world.fleets[name])))
    return short
