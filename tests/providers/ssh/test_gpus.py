"""GPUs of hosts from end to end: the ones that ranks get and are watched by, and hosts whose GPUs change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.ssh.machines import Machines
from tests.providers.ssh.rack import Rack, wipe
from tests.support.cli import task
from tests.support.smi import MIXED, ONE_LOST

pytestmark = pytest.mark.slow

SHAPE = {"cpu": 2, "memory": "512MB"}


@pytest.fixture
def project(machines: Machines, tmp_path: Path) -> Iterator[Rack]:
    made = Rack(tmp_path, machines)
    yield made
    made.run("destroy", "--auto-approve", code=None)
    wipe(machines)


def refreshed(project: Rack) -> str:
    """The status of now, as one line."""
    return " ".join(project.run("status", "--refresh").out.split())


def test_ranks_get_the_declared_model_and_are_watched_by_it(project, machines):
    """A display adapter is the first card: no block has it, and that it is idle ends no rank."""
    machines[0].install("nvidia-smi", MIXED.script)
    rack = project.rack(project.host(0, resources={**SHAPE, "gpu": "A6000:48GB:2"}), placement="any")
    policy = {"utilization_policy": {"min_gpu_utilization": 10, "time_window": "5m"}}
    command = "/proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o '_unused [^ ]* 10 300 GPU-.'"
    show = f"echo cvd=$CUDA_VISIBLE_DEVICES order=$CUDA_DEVICE_ORDER; cat {command}"
    ask = {"nodes": 1, "resources": {"gpu": "A6000:1"}, **policy}
    project.bring(rack, task("left", show, **ask), task("right", show, **ask), args=("--wait",))
    logs = [project.logs(name) for name in ("left", "right")]
    assert sorted(log.splitlines()[0] for log in logs) == [f"cvd={i} order=PCI_BUS_ID" for i in (1, 2)]
    for log in logs:
        assert f"10 300 GPU-{'?bc'[int(log[4])]}" in log


def test_a_host_whose_gpus_are_gone_says_how_many(project, machines):
    machines[0].install("nvidia-smi", ONE_LOST.script)
    rack = project.rack(project.host(0, resources={**SHAPE, "gpu": "A6000:2"}), placement="any")
    project.bring(rack)
    shown = refreshed(project)
    assert "it has 1 of the 2 A6000 GPUs (GPUs that work: 1 A6000) that are declared of it" in shown
    assert "GPU1" in shown
    rack["ssh_config"]["hosts"][0]["trust"] = True
    project.bring(rack, task("both", "echo ran", nodes=1, resources={"gpu": "A6000:2"}), args=("--wait",))
    assert project.logs("both") == "ran\n"


def test_a_driver_that_comes_later_makes_the_node_anew(project, machines):
    rack = project.rack(project.host(0, resources=SHAPE, gpus=["A6000"], trust=True), placement="any")
    project.bring(rack)
    machines[0].install("nvidia-smi", MIXED.script)
    assert "it has 2 GPUs, and 0 are recorded of it" in refreshed(project)
    show = task("show", "echo $CUDA_VISIBLE_DEVICES", nodes=1, resources={"gpu": "A6000:2"})
    project.bring(rack, show, args=("--wait",))
    assert project.logs("show") == "1,2\n"
    project.no_changes()
