"""A project's day in fast motion, and a month whose budget is spent: what a loop does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.providers.cloud.world import RefusedError
from tests.support.cli import fleet, task
from tests.support.places import HOUR, sky
from tests.support.rounds import Clock, Here
from tests.support.week import BEGIN, DAY, played

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [1, 240])
def test_hours_end_as_declared(tmp_path: Path, seed: int):
    """More of it: `python benchmarks/reconcile --only week`."""
    with played(tmp_path, sky, days=0.25, a_day=50, interval=600, seed=seed) as days:
        assert days.faults == []
        assert dict(days.errors) == {}


def test_nothing_is_launched_once_the_money_of_a_month_is_spent(tmp_path: Path):
    """Ten nodes for four days cost 960 USD. With a limit of 800, this is reported once, until April."""
    clock = Clock(BEGIN - 5 * DAY)

    def lab(limit: int, **nodes: int) -> None:
        fleets = (fleet(n, nodes=k, backends=["sky"], resources={"cpu": 8}) for n, k in nodes.items())
        rules = {"allow": ["create", "delete"]}
        project.declare(
            {"type": "project", "limits": {"cost_per_month": limit}, "reconcile": rules},
            place.backend,
            *fleets,
        )

    with sky(tmp_path, clock) as (place, project):
        lab(10_000, old=10)
        here = Here(project.path, clock)
        here.step()
        assert len(here.seen(4 * DAY).nodes) == 10
        lab(800, old=0, new=1)
        said = []
        for _ in range(3):
            found = here.step(6 * HOUR)
            assert found.status
            said.append([(wait.address, wait.why) for wait in found.waits])
            assert found.status.nodes == ()
        assert said[0] == said[1] == said[2]
        assert said[0][0][0] == "node/new-0"
        assert "what was spent in 2026-03" in said[0][0][1]
        assert project.run("status", "--json").json["spent"]["month"]
        clock.at = BEGIN + 4 * DAY
        assert [n.fleet for n in here.seen().nodes] == ["new"]
        here.close()
        project.clean_up()


def test_a_budget_counts_lost_nodes_that_were_held_before(tmp_path: Path):
    """A lost node is forgotten while it waits; neither the next round nor the next loop takes it for new."""
    clock = Clock(BEGIN)
    with sky(tmp_path, clock) as (place, project):
        budget = {"nodes": 1, "per": "1h", "reasons": ["replace-lost"]}
        rules = {"type": "project", "name": "lab", "reconcile": {"budgets": [budget]}}
        project.declare(rules, place.backend, fleet("gpu", nodes=3, backends=["sky"], resources={"cpu": 8}))
        for number in range(40):
            here = Here(project.path, clock)
            here.step(300)
            place.look()
            if number in (1, 2, 3):
                (node,) = (n for n in place.nodes.values() if n.name == f"gpu-{number - 1}")
                place.lose(node, random.Random(0))
            here.close()
        again = sorted(node.made for node in place.nodes.values())[3:]
        assert [round(made - again[0]) for made in again] == [0, 3600, 7200]
        project.clean_up()


@pytest.mark.parametrize("rules", [{"allow": ["create", "idle"]}, {"replacements_per_day": 0}])
def test_a_lost_node_that_may_not_be_replaced_is_not_made_as_a_new_one(tmp_path: Path, rules):
    """However long it waits. Once it is not declared any more, another node of its name is new."""
    clock = Clock(BEGIN)
    with sky(tmp_path, clock) as (place, project):

        def lab(nodes: int) -> None:
            lab = {"type": "project", "name": "lab", "reconcile": rules | {"interval": "1h"}}
            made = fleet("gpu", nodes=nodes, backends=["sky"], resources={"cpu": 8})
            project.declare(lab, place.backend, made)

        def alive() -> list[str]:
            place.look()
            return sorted(node.name for node in place.nodes.values() if node.gone is None)

        lab(2)
        here = Here(project.path, clock)
        here.step()
        assert alive() == ["gpu-0", "gpu-1"]
        place.lose(next(node for node in place.nodes.values() if node.name == "gpu-1"), random.Random(0))
        for _ in range(20):
            found = here.step(4 * HOUR)
            assert [(wait.address, wait.action) for wait in found.waits] == [("node/gpu-1", "replace-lost")]
            assert alive() == ["gpu-0"]
        lab(1)
        assert not here.step(60).waits
        lab(2)
        assert not here.step(60).waits
        assert alive() == ["gpu-0", "gpu-1"]
        here.close()
        project.clean_up()


def test_a_lost_node_that_could_not_be_replaced_is_not_taken_for_new(tmp_path: Path, monkeypatch):
    """Where lost nodes are replaced, and none is made otherwise, its cloud may refuse it at first."""
    clock = Clock(BEGIN)
    with sky(tmp_path, clock) as (place, project):

        def lab(*allow: str) -> None:
            rules = {"type": "project", "name": "lab", "reconcile": {"allow": [*allow]}}
            project.declare(
                rules, place.backend, fleet("gpu", nodes=1, backends=["sky"], resources={"cpu": 8})
            )

        lab("create")
        here = Here(project.path, clock)
        here.step()
        lab("replace-lost")
        place.look()
        (node,) = place.nodes.values()
        place.lose(node, random.Random(0))
        real, refusals = place.world.create, ["no room", "no room"]

        def create(owner: str, body: dict[str, Any]) -> dict[str, Any]:
            if refusals:
                raise RefusedError(400, refusals.pop())
            return real(owner, body)

        monkeypatch.setattr(place.world, "create", create)
        found = [{result.id: result.outcome.value for result in here.step(HOUR).results} for _ in range(3)]
        assert found == [{"create:node/gpu-0": outcome} for outcome in ("failed", "failed", "done")]
        here.close()
        project.clean_up()


def test_a_retry_launches_the_node_that_was_lost_with_it(tmp_path: Path):
    """Also where lost nodes are not replaced otherwise."""
    clock = Clock(BEGIN)
    with sky(tmp_path, clock) as (place, project):

        def lab(**rules: object) -> None:
            project.declare(
                {"type": "project", "name": "lab", "reconcile": rules},
                place.backend,
                fleet("gpu", nodes="0..1", backends=["sky"], resources={"cpu": 8}),
                task("train", "train", resources={"cpu": 8}, retry={"on_events": ["interruption"]}),
            )

        lab()
        here = Here(project.path, clock)
        here.step()
        place.look()
        (node,) = place.nodes.values()
        lab(allow=["retry"])
        place.lose(node, random.Random(0))
        for _ in range(3):
            here.step(HOUR)
        place.look()
        assert [a.generation for a in place.attempts if a.ended is None] == ["2"]
        here.close()
        project.clean_up()
