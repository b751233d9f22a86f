"""Days in fast motion on machines (`tests.support.week`): on hosts, and on moto's EC2 with machines behind
its instances.

Ranks are real processes, started over SSH. They wait at a pipe for their exit code. The machines and this
process use the test's clock. Timeouts on a host itself use real time, so hosts are only switched off here,
not cut off, and no rank has a maximum duration.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import boto3  # type: ignore[import-untyped]

from providers.ssh.transport import background
from tests.providers.ec2.run import REGION, SECRETS
from tests.providers.ssh.grounds import ATTEMPTS, still_running
from tests.providers.ssh.machines import Machine, Machines, run, until
from tests.providers.ssh.rack import SSH, Rack
from tests.providers.ssh.test_instances import Account, Cloud, backend
from tests.support.cli import Project
from tests.support.places import Attempt, Node, launched
from tests.support.rounds import Clock

PIPE = "/var/tmp/end."
COMMAND = f"pipe={PIPE}${{FLEETFORM_RUN##*/}}; mkfifo $pipe; read code <$pipe; exit $code"
TYPE = {"instance_type": "m5.large", "cpu": 2, "memory": "8GB", "price": 1.0, "spot_price": 0.5}
AT_ONCE = 24
"""Instances: more than there may be, for a machine goes a moment after its instance."""
HOSTS = 6
FEWEST = 3
"""Hosts that are on at any time."""


class Machined:
    """Machines of either kind."""

    command, cpu = COMMAND, 2

    def __init__(self, machines: Machines, clock: Clock) -> None:
        self.machines, self.clock = machines, clock
        self.nodes: dict[str, Node] = {}
        self.attempts: list[Attempt] = []
        machines.set_clock(clock())

    def tick(self) -> None:
        """See `Place`."""
        self.machines.set_clock(self.clock())

    def machine_of(self, node: str) -> Machine | None:
        """The machine that a node is, if it is on."""
        raise NotImplementedError

    def look_at_ranks(self) -> None:
        """Account for what has begun and ended on machines that are on."""
        for attempt in self.attempts:
            if attempt.ended is None and not self._runs(attempt):
                attempt.ended = self.clock()
        known = {(attempt.node, attempt.name) for attempt in self.attempts}
        for node in self.nodes.values():
            machine = None if node.gone is not None else self.machine_of(node.key)
            for folder in _attempts(machine) if machine else ():
                if (node.key, folder.name) not in known and _begun(folder):
                    self.attempts.append(Attempt(node=node.key, name=folder.name, started=self.clock()))

    def _runs(self, attempt: Attempt) -> bool:
        machine = self.machine_of(attempt.node)
        if machine is None or self.nodes[attempt.node].gone is not None:
            return False
        folder = next((f for f in _attempts(machine) if f.name == attempt.name), None)
        return folder is not None and not (folder / "exit").exists()

    def end(self, attempt: Attempt, code: int) -> None:
        """See `Place`."""
        attempt.ended = self.clock()
        machine = self.machine_of(attempt.node)
        assert machine, f"{attempt} is where nothing is"
        (folder,) = (f for f in _attempts(machine) if f.name == attempt.name)
        until(lambda: _told(folder, code))
        until((folder / "exit").exists)

    def running(self) -> list[str]:
        """See `Place`: by what processes there are."""
        return still_running(self.machines)

    def lost(self, node: Node) -> None:
        """What ran there runs no more."""
        for attempt in self.attempts:
            if attempt.node == node.key and attempt.ended is None:
                attempt.ended = self.clock()


def _attempts(machine: Machine) -> Iterator[Path]:
    """The folders of attempts: of root's state on hosts, of the user's own on instances."""
    yield from machine.folder.glob(ATTEMPTS)
    yield from machine.folder.glob("disk/own/home/*/.local/state/fleetform/*/ranks/*.*")


def _pipe(folder: Path) -> Path:
    """That of the attempt of this folder."""
    disk = next(parent for parent in folder.parents if parent.name == "disk")
    return disk / f"own{PIPE}{folder.name}"


def _begun(folder: Path) -> bool:
    """Whether its commands have begun; one whose gate was opened does so in a moment."""
    if (folder / "gate").exists() or not (folder / "started").exists():
        return False
    until(lambda: _pipe(folder).exists() or (folder / "exit").exists())
    return _pipe(folder).exists()


def _told(folder: Path, code: int) -> bool:
    """Whether the rank, waiting at its pipe, was told to end."""
    try:
        pipe = os.open(_pipe(folder), os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return False
    os.write(pipe, f"{code}\n".encode())
    os.close(pipe)
    return True


class Instances(Machined):
    """Those of EC2. Some are spot, and they are terminated, wanted back, or die unnoticed."""

    launches, most_an_hour = True, 7.5

    def __init__(self, cloud: Reused, clock: Clock) -> None:
        super().__init__(cloud.machines, clock)
        self.cloud = cloud
        self.client = boto3.client(
            "ec2",
            region_name=REGION,
            endpoint_url=f"http://127.0.0.1:{cloud.port}",
            aws_access_key_id="theirs",
            aws_secret_access_key="theirs",
        )

    def documents(self) -> list[dict[str, Any]]:
        """See `Place`."""
        options = {"ssh_config": "/dev/null", "connect_timeout": 3}
        always, day, work = launched("aws", self.cpu, instance_types=["m5.large"])
        made = backend(self.cloud.port, options=options, catalog=[TYPE])
        return [made, always, day, {**work, "spot_policy": "spot"}]

    def machine_of(self, node: str) -> Machine | None:
        machine = self.cloud.of.get(node)
        return machine if machine and machine.runs else None

    def look(self) -> None:
        """See `Place`."""
        living = {"Name": "instance-state-name", "Values": ["pending", "running"]}
        pages = self.client.get_paginator("describe_instances").paginate(Filters=[living])
        there = {i["InstanceId"]: i for page in pages for r in page["Reservations"] for i in r["Instances"]}
        new = there.keys() - self.nodes.keys()
        for made, instance in there.items():
            if made not in self.nodes:
                self.nodes[made] = self._node(made, instance)
        until(lambda: there.keys() <= self.cloud.of.keys())
        # Else the clock goes on while they boot.
        until(lambda: all(self.cloud.of[made].answers() for made in new))
        for node in self.nodes.values():
            if node.key not in there and node.gone is None:
                node.gone = self.clock()
        unseen = self.cloud.before - self.nodes.keys()
        assert not unseen, f"made and ended at once: {unseen}"
        assert not self.cloud.faults
        with self.cloud.turn:
            self.look_at_ranks()

    def _node(self, made: str, instance: Mapping[str, Any]) -> Node:
        tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
        spot = instance.get("InstanceLifecycle") == "spot"
        return Node(
            key=made,
            name=tags["fleetform:address"].removeprefix("node/"),
            made=self.clock(),
            price=TYPE["spot_price" if spot else "price"],  # type: ignore[arg-type]
        )

    def losable(self) -> list[Node]:
        """See `Place`."""
        there = [n for n in self.nodes.values() if n.gone is None and n.lost is None]
        return [node for node in there if not node.name.startswith("always")] if len(there) > 1 else []

    def running(self) -> list[str]:
        """See `Place`."""
        with self.cloud.turn:
            return super().running()

    def lose(self, node: Node, chance: random.Random) -> bool:
        """See `Place`."""
        how = chance.choice(("terminate", "spot", "off"))
        machine = self.cloud.of[node.key]
        if how == "off":
            with self.cloud.turn:
                machine.off()
        else:
            if how == "spot":
                (self.cloud.folder / f"{node.key}.reason").write_text("Server.SpotInstanceTermination")
            self.client.terminate_instances(InstanceIds=[node.key])
            until(lambda: self.cloud.of.get(node.key) is None)
            node.gone = self.clock()
        self.lost(node)
        return True


class Reused(Cloud):
    """An address and its machine are another instance's once that one has ended."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(folder, count)
        self.before: set[str] = set()
        """Instances that have ended."""

    def ended(self, made: str) -> None:
        self.before.add(made)
        machine = self.of.pop(made)
        (self.folder / f"{made}.json").unlink()
        run("umount", "-l", str(machine.folder / "disk"))
        shutil.rmtree(machine.folder)
        (self.folder / f"{machine.address}.free").touch()


@contextmanager
def instances(folder: Path, clock: Clock) -> Iterator[tuple[Instances, Project]]:
    """EC2 by a clock."""
    for name in ("cloud", "week"):
        (folder / name).mkdir()
    cloud = Reused(folder / "cloud", AT_ONCE)
    with cloud, mock.patch("time.time", clock), mock.patch.dict(os.environ, SECRETS):
        try:
            yield Instances(cloud, clock), Account(folder / "week")
        finally:
            background.close()


class OnHosts(Machined):
    """Those that are there in any case. Some reboot, and some are off for some time."""

    launches, most_an_hour = False, 1.0

    def __init__(self, machines: Machines, rack: Rack, clock: Clock) -> None:
        super().__init__(machines, clock)
        self.rack = rack
        self._back: list[tuple[float, Machine]] = []
        for i, machine in enumerate(machines):
            self.nodes[machine.name] = Node(key=machine.name, name=f"work-{i}", made=clock())

    def documents(self) -> list[dict[str, Any]]:
        """See `Place`."""
        hosts = [self.rack.host(i) for i in range(len(self.machines))]
        return [SSH, self.rack.rack(*hosts, name="work")]

    def machine_of(self, node: str) -> Machine | None:
        machine: Machine = self.machines[int(node[1:])]
        return machine if machine.runs else None

    def tick(self) -> None:
        """See `Place`."""
        super().tick()
        due = [entry for entry in self._back if entry[0] <= self.clock()]
        self._back = [entry for entry in self._back if entry not in due]
        for _, machine in due:
            machine.on()

    def look(self) -> None:
        """See `Place`."""
        self.look_at_ranks()

    def losable(self) -> list[Node]:
        """See `Place`."""
        there = [node for node in self.nodes.values() if self.machine_of(node.key)]
        return there if len(there) > FEWEST else []

    def lose(self, node: Node, chance: random.Random) -> bool:
        """See `Place`. Who is off stays so for longer than it takes until its node is given up."""
        machine = self.machine_of(node.key)
        assert machine
        self.lost(node)
        if chance.random() < 0.5:
            machine.reboot()
            return False
        machine.off()
        self._back.append((self.clock() + chance.uniform(1800.0, 5400.0), machine))
        return True


@contextmanager
def hosts(folder: Path, clock: Clock) -> Iterator[tuple[OnHosts, Project]]:
    """Hosts by a clock."""
    (folder / "week").mkdir()
    machines = Machines(HOSTS)
    machines.up(clock=clock())
    try:
        rack = Rack(folder / "week", machines)
        with mock.patch("time.time", clock):
            yield OnHosts(machines, rack, clock), rack
    finally:
        background.close()
        machines.down()
