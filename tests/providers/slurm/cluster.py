"""A project whose fleet is a partition of the tests' Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.providers.slurm.daemons import Daemons
from tests.support.cli import Process, Project, task


class Cluster(Project):
    """A project with the partition `gpu` as the fleet `gpu`."""

    def __init__(self, path: Path, daemons: Daemons) -> None:
        super().__init__(path)
        self.daemons = daemons

    def start(self, *args: str, env: Mapping[str, str] | None = None, **options: Any) -> Process:
        """See `Project.start`. The command finds the cluster as its users do."""
        own = {"SLURM_CONF": str(self.daemons.conf), "PATH": self.daemons.env["PATH"]}
        return super().start(*args, env={**own, **(env or {})}, **options)

    def backend(self, **options: Any) -> dict[str, Any]:
        """The cluster; its shared filesystem is a folder of the project."""
        return {
            "type": "backend",
            "name": "hpc",
            "driver": "slurm",
            "options": {"root": str(self.path / "shared"), **options},
        }

    def fleet(self, **more: Any) -> dict[str, Any]:
        """All nodes of the partition."""
        return {
            "type": "fleet",
            "name": "gpu",
            "backends": ["hpc"],
            "partition": "gpu",
            "placement": "cluster",
            "blocks": "auto",
            **more,
        }

    def bring(self, *documents: Any, args: tuple[str, ...] = (), code: int = 0) -> Any:
        """Declare, beside the cluster and its fleet, and apply."""
        self.declare(self.backend(), self.fleet(), *documents)
        return self.apply(*args, code=code)

    def jobs(self, *states: str) -> list[str]:
        """The names of jobs in Slurm, without their tokens; of all states, or of these."""
        found = self.daemons.run("squeue", "-h", "-t", ",".join(states) or "all", "-o", "%j|%T")
        return sorted(line.partition("-ff-")[0] for line in found.splitlines())


def half(name: str, *commands: str, **more: Any) -> dict[str, Any]:
    """A task on two nodes, with half of the GPUs of each."""
    own = {"nodes": 2, "exclusive": False, "spread": "node", "resources": {"gpu": 4}}
    return task(name, *commands, **{**own, **more})
