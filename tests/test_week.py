"""A project's day in fast motion, and a month whose money is spent: what a loop makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import fleet
from tests.places import HOUR, sky
from tests.rounds import Clock, Here
from tests.week import BEGIN, DAY, played

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [1, 240])
def test_hours_end_as_declared(tmp_path: Path, seed: int):
    """More of it: `python benchmarks/reconcile --only week`."""
    with played(tmp_path, sky, days=0.25, a_day=50, interval=600, seed=seed) as days:
        assert days.faults == []
        assert dict(days.errors) == {}


def test_nothing_is_launched_once_the_money_of_a_month_is_spent(tmp_path: Path):
    """Ten nodes for four days cost 960 USD. Then 800 are the limit, and it is said once, until April."""
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
