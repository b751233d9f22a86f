"""The suite of all providers against a real Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from declarative.model.state import Record
from declarative.model.status import NOT_RELEASED, RankState
from declarative.provider import Config, Provider
from declarative.provider.optional import Gang, Seat
from providers.slurm import Slurm
from providers.testing import NODE, VOLUME, Conformance, Place, Spoilt
from tests.providers.slurm.daemons import Daemons, free_ports

pytestmark = pytest.mark.slow


class TestSlurm(Conformance):
    """What holds for every provider."""

    node_inputs: Mapping[str, Any] = {
        **NODE,
        "instance_type": "gpu-0",
        "resources": {"cpu": 8, "memory_mib": 8000, "gpus": 8, "gpu_name": "h100"},
        "blocks": 8,
        "host": {"slurm": "gpu-0", "partition": "gpu"},
    }
    volume_inputs = VOLUME
    crowd = 0

    @pytest.fixture(autouse=True)
    def _cluster(self, slurm, tmp_path) -> None:
        self.options = {"root": str(tmp_path / "shared")}

    def make(self, folder: Path, lineage: str) -> Provider:
        return Slurm(Config(backend="under-test", project_dir=folder, lineage=lineage, options=self.options))

    def spoiled(self, folder: Path, lineage: str, how: Spoilt) -> Provider | None:
        if how is not Spoilt.NOBODY:
            return None
        options = {**self.options, "login": {"hostname": "127.0.0.1", "port": free_ports(1)[0]}}
        return Slurm(Config(backend="under-test", project_dir=folder, lineage=lineage, options=options))

    def test_a_rank_sees_its_gpus_and_no_others(self, place: Place, node) -> None:
        """As many as the plan says; which of them is Slurm's to say, and the status names them."""
        show = 'echo "[$CUDA_VISIBLE_DEVICES]"'
        env = {"CUDA_VISIBLE_DEVICES": "6,7"}
        assert place.run(node, "train-0.1", show, gpus=(2, 3), env=env) == "[0,1]\n"
        assert place.run(node, "train-1.1", show) == "[]\n"
        begun = place.start(node, "train-2.1", "sleep 60", gpus=(0,))
        assert begun.state in {RankState.STARTING, RankState.RUNNING}
        place.logged(node, "train-2.1", "")

    def test_a_gang_whose_job_is_cancelled_before_its_release_may_be_made_again(
        self, place: Place, node: Record, slurm: Daemons
    ) -> None:
        """It counts as a gang that was never released, and not as one that somebody stopped."""
        place.start(node, "train-0.1", "echo ran", gate_seconds=600)
        provider = place.provider
        assert isinstance(provider, Slurm)
        provider.reserve(Gang(task="train", seats=(Seat(node=node, attempt="train-0.1"),)))
        slurm.run("scancel", "-u", slurm.user)
        ended = place.ended(node, "train-0.1")
        assert (ended.state, ended.cause, ended.started_at) == (RankState.LOST, NOT_RELEASED, None)
