"""The health of hosts from end to end: what their nodes take, and what commands say of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.ssh.machines import Machines
from tests.providers.ssh.rack import Rack, wipe
from tests.support.cli import task
from tests.support.smi import Kind

pytestmark = pytest.mark.slow

CARD = Kind(rows=("0, GPU-a, NVIDIA H100 80GB HBM3, 81559, 0, Disabled",))


def sick(pending: str, failed: str) -> str:
    """A host whose only GPU has remaps that are pending, or failed."""
    answer = f"""GPU 00000000:9B:00.0
    GPU UUID                              : GPU-a
    Remapped Rows
        Pending                           : {pending}
        Remapping Failure Occurred        : {failed}
"""
    return f"#!/bin/sh\n[ \"$*\" != -q ] || {{\ncat <<'END'\n{answer}END\nexit 0\n}}\n{CARD.script}"


@pytest.fixture
def project(machines: Machines, tmp_path: Path) -> Iterator[Rack]:
    made = Rack(tmp_path, machines)
    yield made
    made.run("destroy", "--auto-approve", code=None)
    wipe(machines)


def words(text: str) -> str:
    """As one line."""
    return " ".join(text.split())


def test_a_node_goes_by_what_its_fleet_says_of_its_health_now(project, machines):
    """Degraded, it takes work and says why. Strict, it takes none, and the plan has the way out."""
    machines[0].install("nvidia-smi", sick("Yes", "No"))
    host = project.host(0)
    project.bring(
        project.rack(host, blocks=1, placement="any"), task("one", "echo ran", nodes=1), args=("--wait",)
    )
    assert project.logs("one") == "ran\n"
    assert "degraded: GPU 0 waits for a remap of its memory (remap-pending)" in words(
        project.run("status", "--refresh").out
    )
    two = task("two", "echo ran", nodes=1)
    project.declare(project.rack(host, blocks=1, placement="any", health={"strict": True}), two)
    planned = project.run("plan", code=None)
    said = words(planned.out + planned.err)
    assert "node/rack-0 takes no work" in said
    assert "write `health: {ignore: [remap-pending]}` at its fleet" in said
    assert "remap-pending" in words(project.run("explain", "node/rack-0", code=None).out)
    rack = project.rack(host, blocks=1, placement="any", health={"strict": True, "ignore": ["remap-pending"]})
    project.bring(rack, two, args=("--wait",))
    assert project.logs("two") == "ran\n"


def test_a_host_that_is_unhealthy_becomes_no_node(project, machines):
    machines[0].install("nvidia-smi", sick("No", "Yes"))
    project.declare(project.rack(project.host(0), blocks=1, placement="any"))
    planned = project.run("plan", code=None)
    assert "GPU 0 could not remap broken memory (remap-failed)" in words(planned.out + planned.err)
