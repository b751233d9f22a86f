"""Nodes of Nebius as hosts: machines come up behind its stand-in, and ranks run in a GPU cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.providers.cloud.stand_in import Clock
from tests.providers.ssh.rented import H100S, Rented
from tests.providers.ssh.test_new_clouds import (
    SSH,
    Account,
    Deaths,
    h100s,
    meeting,
    no_secret_is_kept,
    ranks_have_met,
)

pytestmark = pytest.mark.slow
nebius = pytest.importorskip(
    "tests.providers.nebius.server",
    reason="the packages nebius and grpcio are not here",
    exc_type=ImportError,
)


class Nebius(nebius.Nebius):  # type: ignore[misc, name-defined]  # its packages may be missing
    """Machines behind its instances."""

    rented: Rented
    address_of_last = ""

    def _run(self, instance: Any, operation: Any) -> None:
        user_data = instance.spec.cloud_init_user_data
        self.address_of_last = self.rented.cloud_init(instance.metadata.id, user_data)
        super()._run(instance, operation)

    def addresses(self, number: int) -> tuple[str, str]:
        return self.address_of_last, self.address_of_last


def test_a_cluster_runs_on_the_infiniband_of_nebius(rented: Rented, tmp_path: Path) -> None:
    """One GPU cluster for both nodes, whenever a command dies; it goes with them."""
    rented.gpus = H100S
    project = Account(tmp_path)
    deaths = Deaths(project)
    cloud = Nebius(Clock(tick=30.0))
    cloud.rented = rented
    cloud.carried_out = deaths.after(cloud.carried_out)
    with cloud:
        backend = {"type": "backend", "name": "neb", "driver": "nebius", "regions": [nebius.REGION]}
        backend |= {"endpoint": f"http://{cloud.address}", "image": nebius.FAMILY}
        h100 = "gpu-h100-sxm_8gpu-128vcpu-1600gb"
        catalog = [{"instance_type": h100, "cpu": 2, "memory": "4GB", "gpu": "H100:80GB:8", "price": 23.6}]
        options = {**SSH, "project": nebius.PROJECT}
        project.declare({**backend, "catalog": catalog, "options": options}, h100s("neb"), meeting())
        create = "compute.v1.{}Service/Create$".format
        deaths.until_done("apply", "--auto-approve", "--wait", at=(create("GpuCluster"), create("Instance")))
        (cluster,) = cloud._all("GpuCluster")
        instances = cloud._all("Instance")
        assert [one.spec.gpu_cluster.id for one in instances] == [cluster.metadata.id] * 2
        assert len(rented.on) == 2
        ranks_have_met(project)
        assert project.plan()["actions"] == []
        delete = "compute.v1.{}Service/Delete$".format
        deaths.until_done("destroy", "--auto-approve", at=(delete("Instance"), delete("GpuCluster")))
        made = [one.request.type_url.rpartition(".")[2] for one in cloud.operations.values()]
    assert (made.count("CreateGpuClusterRequest"), made.count("CreateInstanceRequest")) == (1, 2)
    cloud.clock.advance(600)
    assert not cloud.things
    no_secret_is_kept(project)
