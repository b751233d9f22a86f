"""EC2 for tests: moto in a process of its own, and a provider that asks it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Self

from declarative.provider import Config
from providers.cloud import cloud
from tests.providers.ec2.server import AMI
from tests.support.forked import Forked

REGION = "us-east-1"
ZONE = "us-east-1a"
CREDENTIALS = {"key": "FLEETFORM_TEST_KEY", "secret": "FLEETFORM_TEST_SECRET"}
SECRETS = {"FLEETFORM_TEST_KEY": "AKIDTESTINGKEY", "FLEETFORM_TEST_SECRET": "very+secret/indeed"}


class RunningEc2:
    """`with RunningEc2() as ec2:`; ended by its process id."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is for machines, see `server`."""
        self.words = [str(folder)] if folder else []

    def __enter__(self) -> Self:
        server = str(Path(__file__).with_name("server.py"))
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": 2}
        # Forked, for moto takes a CPU second to import.
        self.process = Forked(
            [server, *self.words], Path.cwd(), os.environ, program=server, text=True, **streams
        )
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line.strip().isdecimal():
            self.__exit__()
            raise AssertionError("moto's server did not start")
        self.port = int(line)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()


def config(port: int, folder: Path, lineage: str = "lineage-1", **more: Any) -> Config:
    """A backend whose endpoint is a port of this machine."""
    given: dict[str, Any] = {
        "driver": "ec2",
        "regions": (REGION,),
        "credentials": CREDENTIALS,
        "endpoint": f"http://127.0.0.1:{port}",
        "image": {"*": AMI},
        "options": {"timeout": 30, "ssh_config": "/dev/null"},
    }
    return Config(backend="aws", project_dir=folder, lineage=lineage, **{**given, **more})


def provider(port: int, folder: Path, lineage: str = "lineage-1", **more: Any) -> Any:
    """A new provider of that backend."""
    return cloud(config(port, folder, lineage, **more))
