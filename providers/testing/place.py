"""The fixtures of the suite: each test has a lineage of its own, and clears it at the end."""

from __future__ import annotations

import hashlib
import io
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import pytest

from declarative.model.state import Address, Record, token
from declarative.model.status import NodeState, RankState, RankStatus
from declarative.provider import Archive, Launch, Provider, ProviderError

T = TypeVar("T")

NODE: Mapping[str, Any] = {
    "fleet": "gpu",
    "backend": "under-test",
    "region": "local",
    "instance_type": "local",
    "resources": {"cpu": 2, "memory_mib": 512, "gpus": 0},
    "blocks": 2,
    "placement": "any",
}
VOLUME: Mapping[str, Any] = {
    "backend": "under-test",
    "region": "local",
    "size": "1GB",
    "prevent_destroy": True,
}


def until(look: Callable[[], T], seconds: float) -> T:
    """The first true result of `look`; a test fails if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (answer := look()):
        assert time.monotonic() < deadline, "what the test waits for did not come"
        time.sleep(0.02)
    return answer


class Place:
    """One lineage at the provider under test: makes things as the tool does, and removes them at the end."""

    def __init__(self, suite: Base, folder: Path) -> None:
        self.suite = suite
        self.folder = folder
        self.lineage = str(uuid.uuid4())
        self.made: list[Record] = []
        self.started: list[tuple[Record, str]] = []

    @property
    def provider(self) -> Provider:
        """A new one each time: nothing may depend on what a process remembers."""
        return self.suite.make(self.folder, self.lineage)

    def token(self, record: Record) -> str:
        """The token of the create that made it."""
        return token(self.lineage, record.address, record.generation, record.inputs.get("zone"))

    def wanted(self, kind: str, name: str, inputs: Mapping[str, Any], generation: int = 1) -> Record:
        """The record of a thing to make, which is removed at the end, even if its create fails."""
        record = Record(
            address=Address(kind, name), backend=self.suite.backend, inputs=inputs, generation=generation
        )
        self.made.append(record)
        return record

    def create(self, record: Record, *needs: Record) -> Record:
        """Make it, and record its outputs."""
        things = {need.address: need for need in needs}
        outputs = self.provider.create(record.address, self.token(record), record.inputs, things)
        return replace(record, outputs=outputs)

    def node(self, name: str = "gpu-0") -> Record:
        """A node that is ready."""
        record = self.create(self.wanted("node", name, self.suite.node_inputs))
        until(lambda: self.state(record) is NodeState.READY, self.suite.ready_seconds)
        return record

    def volume(self, name: str = "data-0") -> Record:
        """A volume."""
        return self.create(self.wanted("volume", name, self.suite.volume_inputs))

    def beside(self, node: Record) -> Record:
        """A node on which the same volumes can be used at the same time."""
        assert node.address.name != "gpu-1"
        return self.node("gpu-1")

    def after(self, node: Record) -> Record:
        """Like `beside`, once `node` is gone."""
        return self.beside(node)

    def attachment(self, rank: str, volume: Record, node: Record) -> Record:
        """The record of an attachment to make."""
        inputs = {
            "task": rank.rpartition("-")[0],
            "rank": rank,
            "node": node.address.name,
            "volume": volume.address.name,
            "path": "/data",
            "variable": "DATA",
        }
        return self.wanted("attachment", f"{rank}.{volume.address.name}", inputs)

    def attach(self, rank: str, volume: Record, node: Record) -> Record:
        """A volume on a node, for a rank."""
        return self.create(self.attachment(rank, volume, node), volume, node)

    def state(self, node: Record) -> NodeState:
        """The node's state by its readiness."""
        return self.provider.readiness([node])[node.address.name].state

    def start(self, node: Record, attempt: str, *commands: str, **options: Any) -> RankStatus:
        """Start commands on a node; `options` are fields of `Launch`."""
        self.started.append((node, attempt))
        return self.provider.start(node, launch(attempt, *commands, **options))

    def poll(self, node: Record, attempt: str) -> RankStatus | None:
        """The status of one attempt."""
        return self.provider.poll(node, [attempt])[attempt]

    def ended(self, node: Record, attempt: str) -> RankStatus:
        """The status of one attempt after its end."""

        def look() -> RankStatus | None:
            status = self.poll(node, attempt)
            return status if status and status.state.ended else None

        return until(look, self.suite.rank_seconds) or RankStatus(state=RankState.PENDING)

    def run(self, node: Record, attempt: str, *commands: str, **options: Any) -> str:
        """Run an attempt to its end, and return its log."""
        self.start(node, attempt, *commands, **options)
        self.ended(node, attempt)
        return self.log(node, attempt)

    def log(self, node: Record, attempt: str) -> str:
        """All that an attempt has written."""
        return self.provider.read_log(node, attempt, 0).decode()

    def logged(self, node: Record, attempt: str, text: str) -> None:
        """Wait for a text in the log."""
        until(lambda: text in self.log(node, attempt), self.suite.rank_seconds)

    def clear(self) -> None:
        """End and delete everything, in the order of a `destroy`."""
        for node, attempt in self.started:
            with suppress(ProviderError):
                self.provider.stop(node, attempt, 0)
        order = ("attachment", "node", "volume")
        for record in sorted(self.made, key=lambda r: order.index(r.address.kind)):
            with suppress(ProviderError):
                # The record may lack outputs, which a provider may need to delete the thing.
                thing = self.provider.find(record.address, self.token(record))
                self.provider.delete(replace(record, outputs=thing.outputs) if thing else record)


class Packed:
    """Files to start a rank with, by their paths; links lead to where their text says."""

    def __init__(self, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> None:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path, text in files.items():
                info = tarfile.TarInfo(path)
                info.size, info.mode = len(text.encode()), 0o755 if text.startswith("#!") else 0o644
                archive.addfile(info, io.BytesIO(text.encode()))
            for path, target in (links or {}).items():
                info = tarfile.TarInfo(path)
                info.type, info.linkname = tarfile.SYMTYPE, target
                archive.addfile(info)
        self.content = out.getvalue()
        self.digest = hashlib.sha256(self.content).hexdigest()
        self.opened = 0
        """How often the files were opened."""

    @contextmanager
    def open(self) -> Iterator[Archive]:
        self.opened += 1
        yield Archive(source=io.BytesIO(self.content), size=len(self.content), sha256=self.digest)


def launch(attempt: str, *commands: str, **options: Any) -> Launch:
    """An attempt without anything special."""
    plain: dict[str, Any] = {
        "env": {},
        "cpus": (0,),
        "gpus": (),
        "working_dir": None,
        "volumes": {},
        "max_seconds": None,
        "stop_seconds": 5,
    }
    return Launch(attempt=attempt, commands=commands, **{**plain, **options})


class Spoilt(StrEnum):
    """The faults of a bad connection to a place."""

    LOST = "lost"
    """Creates succeed, and their answers never arrive."""
    NOBODY = "nobody"
    """Nobody listens."""
    SENSELESS = "senseless"
    """Every answer is a success with a wrong body: the page of a gateway."""
    DENIED = "denied"
    """The credentials are refused."""


class Base:
    """The facts that a subclass of the suite states about its provider, and the fixtures of the tests."""

    backend = "under-test"
    """The name that `make` configures."""
    node_inputs: Mapping[str, Any] = NODE
    volume_inputs: Mapping[str, Any] = VOLUME
    larger: Mapping[str, Any] = {**VOLUME, "size": "2GB", "tags": {"team": "a"}}
    """The inputs that a volume may get in place."""
    volumes = True
    ranks = True
    many = 12
    """The number of things in a listing that must be complete: more than a page holds."""
    crowd = 1100
    """The same for nodes; 0 if the place cannot have so many. A class of its own may make light ones: see
    `Crowd`.
    """
    ready_seconds = 120.0
    rank_seconds = 30.0

    def make(self, folder: Path, lineage: str) -> Provider:
        """A provider of a project in `folder`, whose things belong to `lineage`."""
        raise NotImplementedError

    def spoiled(self, folder: Path, lineage: str, how: Spoilt) -> Provider | None:
        """The same provider with a bad connection to its place; None if there is no connection to spoil."""
        del folder, lineage, how
        return None

    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Place]:
        """An empty place, which is cleared after the test."""
        place = Place(self, tmp_path)
        yield place
        place.clear()

    @pytest.fixture
    def disks(self, place: Place) -> Place:
        """A place that has volumes."""
        if not self.volumes:
            pytest.skip("this provider has no volumes")
        return place

    @pytest.fixture
    def node(self, place: Place) -> Record:
        """A node on which ranks can be started."""
        if not self.ranks:
            pytest.skip("this provider starts no ranks")
        return place.node()
