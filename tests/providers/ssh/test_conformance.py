"""The suite of all providers, on real hosts over real ssh."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declarative.model.state import Record
from declarative.model.status import NodeState
from declarative.provider import Config, Provider
from providers.ssh import Ssh
from providers.testing import NODE, VOLUME, Conformance, Place, until
from providers.testing.place import Base
from tests.providers.ssh.machines import Machines
from tests.providers.ssh.nodes import fields

NAMES = ("gpu-0", "gpu-1")


class Hosts(Place):
    """Each node is a host of its own."""

    def node(self, name: str = "gpu-0") -> Record:
        assert isinstance(self.suite, TestSsh)
        record = self.create(self.wanted("node", name, self.suite.inputs[name]))
        until(lambda: self.state(record) is NodeState.READY, self.suite.ready_seconds)
        return record

    def beside(self, node: Record) -> Record:
        """A volume stays on its host, and a host is one node at a time."""
        return node

    def after(self, node: Record) -> Record:
        record = replace(node, generation=node.generation + 1)
        self.made.append(record)
        return self.create(record)


@pytest.mark.slow
class TestSsh(Conformance):
    backend = "ssh"
    crowd = 0  # each node is a host

    @pytest.fixture(autouse=True)
    def hosts(self, machines: Machines) -> None:
        self.inputs: dict[str, dict[str, Any]] = {
            name: {**NODE, "host": fields(machines, i)} for i, name in enumerate(NAMES)
        }
        self.node_inputs = self.inputs["gpu-0"]
        where = {"region": "ssh", "zone": machines[0].address, "host": fields(machines, 0)}
        self.volume_inputs = {**VOLUME, **where, "size": "1MB"}
        self.larger = {**Base.larger, **where, "size": "2MB"}

    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Place]:
        place = Hosts(self, tmp_path)
        yield place
        place.clear()

    def make(self, folder: Path, lineage: str) -> Provider:
        hosts = {name: self.inputs[name]["host"] for name in NAMES}
        options = {"ssh_config": "/dev/null"}
        return Ssh(Config(backend="ssh", project_dir=folder, lineage=lineage, hosts=hosts, options=options))
