"""What a partition's nodes cost: what the project's tasks hold of them, by the site's prices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.providers.slurm.cluster import Cluster, half
from tests.providers.slurm.daemons import Daemons
from tests.providers.slurm.test_kills import ran
from tests.support.cli import hold, until

pytestmark = pytest.mark.slow
PRICES = [{"instance_type": "h100", "cpu": 1, "memory": "1GB", "gpu": "H100:1", "price": 2.5}]


@pytest.fixture
def project(slurm: Daemons, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, slurm)
    yield made
    made.clean_up()


def test_limits_count_what_tasks_hold_of_a_partition(project: Cluster) -> None:
    """Its nodes are there anyway: they cost nothing, and the first task on them does."""

    def declare(limit: int, *tasks: dict[str, Any]) -> None:
        allow = {"allow": ["create"]}
        rules = {"type": "project", "name": "lab", "limits": {"cost_per_hour": limit}, "reconcile": allow}
        project.declare(rules, {**project.backend(), "catalog": PRICES}, project.fleet(), *tasks)

    gang = half("gang", hold(project.path / "gang"))
    declare(10)
    project.apply()
    declare(10, gang)
    for command in (["plan"], ["apply", "--auto-approve"]):
        done = project.run(*command, code=1)
        assert "error[over-limit]: all nodes would cost 20.00 USD/h; the limit is 10.00" in done.err
    left = project.run("reconcile", "--once", "--json", code=None).events
    assert [(e["event"], e["address"]) for e in left] == [("wait", "task/gang")]
    assert left[0]["why"].startswith("would go beyond `limits`: all nodes would cost 20.00 USD/h")
    assert project.jobs("RUNNING", "PENDING") == []
    declare(30, gang)
    part = project.run("plan", "--target", "task/gang", "--json").json["cost"]
    assert (part["hourly_before"], part["hourly_after"]) == (0.0, 20.0)
    project.apply()
    until(lambda: ran(project, "gang") == 2)
    assert project.run("explain", "node/gpu-0", "--json").json["idle_price"] is None
    declare(10, gang)
    assert "; the limit is 10.00; this plan does not add to it" in project.run("plan").err
    cost = project.run("plan", "--json").json["cost"]
    assert (cost["hourly_before"], cost["hourly_after"]) == (20.0, 20.0)
    project.run("stop", "gang")
    assert "over-limit" not in project.run("plan").err
