"""The answers of `explain` are true in any world: alternatives work, and rejected places do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from declarative.model.spec.values import NodeName
from declarative.model.state import rank_name
from declarative.placement.catalog import ANYWHERE
from declarative.placement.explain.alternatives import Scene, instead, places
from declarative.placement.place import place
from declarative.placement.problem import Ask, FleetRule, Node, NodeType, PlacementOutcome, of_node, of_offer
from tests.support.examples import examples
from tests.support.worlds import Case, cases


def scene_of(case: Case, outcome: PlacementOutcome) -> Scene:
    """A case once its outcome was carried out."""
    held = {n.name: dict(n.held) for n in (*case.nodes, *outcome.launches)}
    volumes = dict(case.volumes)
    for choice in outcome.choices:
        rank = f"rank/{rank_name(choice.task, choice.rank)}"
        held[choice.node].update(dict.fromkeys(choice.blocks, rank))
        for name in choice.volumes.values():
            volumes[name] = replace(
                volumes[name], holder=rank, zone=outcome.zones.get(name, volumes[name].zone)
            )
    return Scene(
        nodes=tuple(replace(n, held=held[n.name]) for n in (*case.nodes, *outcome.launches)),
        fleets=case.fleets,
        volumes=volumes,
        loose=frozenset(outcome.zones),
    )


def goes(scene: Scene, one: Ask, node: str, rules: dict[str, FleetRule] | None = None) -> bool:
    """Whether the planner itself puts a task of one rank on a node of that name, if it is pinned there."""
    spec = replace(one.want.spec, instances=(NodeName(node),))
    pinned = Ask(want=replace(one.want, spec=spec), reuse=one.reuse)
    found = place(
        [pinned], [replace(n, new=False) for n in scene.nodes], rules or scene.rules(), scene.volumes
    )
    return [c.node for c in found.choices] == [node]


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=examples(100))
@given(cases())
def test_what_else_would_do_does_and_what_would_not_does_not(case):
    """Held against the planner: with the rank alone to place, and pinned to each node and each offer."""
    outcome = case.place()
    scene = scene_of(case, outcome)
    asks = {str(a.want.spec.name): a for a in case.asks}
    for choice in outcome.choices[:3]:
        one = asks[choice.task]
        if one.want.spec.nodes > 1 or one.want.spec.instances:
            continue
        seat = next(n for n in scene.nodes if n.name == choice.node)
        rest = scene.without({f"rank/{choice.task}-0"})
        found = instead(scene, one, 0, seat, ANYWHERE)
        held_to(rest, one, found, seat)


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=examples(100))
@given(cases())
def test_what_would_hold_a_refused_rank_is_nothing(case):
    """A task of one rank that is refused has no place: then nothing would hold a rank of it."""
    outcome = case.place()
    scene = scene_of(case, outcome)
    refused = {r.task for r in outcome.refusals}
    for one in case.asks:
        if str(one.want.spec.name) in refused and one.want.spec.nodes == 1:
            found = places(scene, one, 0)
            assert (found.nodes_count, found.offers_count) == (0, 0)


def held_to(rest: Scene, one: Ask, found: Any, seat: Node) -> None:
    """The planner agrees about every node and every offer."""
    would = {a.target.removeprefix("node/") for a in found.nodes}
    for node in rest.nodes:
        if node.name != seat.name:
            assert goes(rest, one, node.name) == (node.name in would), node
    rules = rest.rules()
    offers = {a.kind for a in found.offers}
    for name, rule in rules.items():
        for offer in rule.offers:
            kind = NodeType(*of_offer(offer, rule.fleet))
            # A pin launches nothing but what comes anyway, as does a node that is made anew.
            mine = replace(rule, offers=(offer,), free_names=(f"{name}-999",))
            only = {n: replace(r, offers=()) for n, r in rules.items()} | {name: mine}
            if not (seat.new and kind == NodeType(*of_node(seat))):
                assert goes(rest, one, f"{name}-999", only) == (kind in offers), offer
