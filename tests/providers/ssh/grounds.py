"""The places where machines die: hosts, and EC2 with machines behind it; how they are lost, and what is left.

Everything is checked from outside: on the machines' disks and in EC2's own answers, not in the state.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import boto3  # type: ignore[import-untyped]

from tests.providers.ec2.proxy import Line as Wire
from tests.providers.ec2.run import REGION, ZONE
from tests.providers.ec2.scripted import answer, reservations
from tests.providers.ssh import journal
from tests.providers.ssh.losing import SPARES, Loss, Schedule
from tests.providers.ssh.machines import Machine, Machines
from tests.providers.ssh.rack import SSH, Rack
from tests.providers.ssh.test_instances import Account, Cloud, backend
from tests.support.cli import Project, fleet

REPLACED = 24
"""Instances that can be made in a schedule beside the first ones."""
RUNS = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep ^FLEETFORM_RUN= | sort -u || true"
ATTEMPTS = "disk/upper/var/lib/fleetform/node/*/ranks/*.*"


def still_running(machines: Machines) -> list[str]:
    """What still runs of ranks, on machines that are on: machine and attempt."""
    found = []
    for machine in machines:
        if machine.runs:
            found += [f"{machine.name}: {word}" for word in machine.sh(RUNS).split()]
    return found


class Ground:
    """The machines of one schedule, and the project on them."""

    machines: Machines
    project: Project

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._back: list[tuple[float, Machine, str]] = []

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        raise NotImplementedError

    def used(self) -> list[Machine]:
        """The machines that gangs may be on now."""
        raise NotImplementedError

    def at(self, phase: str, since: float) -> list[Machine]:
        """The machines that are in this phase."""
        raise NotImplementedError

    def documents(self, **limits: Any) -> list[dict[str, Any]]:
        """The backend and the fleet; `limits` are fields of the fleet."""
        raise NotImplementedError

    def mend(self) -> None:
        """Remove everything that would hinder `destroy`."""
        raise NotImplementedError

    def boot(self) -> None:
        """Those that are held back may come up."""

    def empty_listing(self) -> None:
        """The cloud lists nothing from now on."""

    def instances(self) -> dict[str, Mapping[str, Any]]:
        """What the cloud itself lists as living."""
        return {}

    def unknown(self) -> list[str]:
        """Of those what is no node's."""
        return []

    def costs(self) -> list[str]:
        """What is there and has to be paid."""
        return []

    @property
    def broken(self) -> list[str]:
        """What went wrong with the ground itself."""
        return []

    def lines(self, machine: Machine) -> list[journal.Line]:
        """What ranks wrote there."""
        try:
            return journal.read(machine.name, (machine.folder / f"disk/own{journal.FILE}").read_text())
        except FileNotFoundError:
            return []

    def every_line(self) -> list[journal.Line]:
        """What ranks wrote anywhere."""
        return [line for machine in self.machines for line in self.lines(machine)]

    def attempts(self, machine: Machine) -> set[str]:
        """What was begun there."""
        return {path.name for path in machine.folder.glob(ATTEMPTS)}

    def logins(self, machine: Machine) -> int:
        """How often somebody was let in since it was switched on."""
        with suppress(OSError):  # it goes just now
            return machine.inside("/run/sshd.log").read_text().count("Accepted publickey")
        return 0

    def left(self) -> list[str]:
        """What still runs of ranks, on machines that are on: machine and attempt."""
        return still_running(self.machines)

    def lose(self, machine: Machine, loss: Loss) -> None:
        """It is lost, and comes back as `loss` says once `bring_back` is called then."""
        how = loss.how
        if how == "reboot":
            if machine.runs:
                machine.reboot()
        elif how.startswith("cut"):
            machine.cut()
        else:
            machine.off()
        if how.endswith("-back"):
            self._back.append((time.monotonic() + loss.back, machine, how))

    def bring_back(self) -> None:
        """Those whose time has come."""
        due = [entry for entry in self._back if entry[0] <= time.monotonic()]
        self._back = [entry for entry in self._back if entry not in due]
        for _, machine, how in due:
            if how == "cut-back":
                machine.plug()
            elif not machine.runs:
                machine.on()


class Hosts(Ground):
    """Hosts, some more than are needed."""

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        super().__init__(schedule)
        self.machines = Machines(sum(schedule.gangs) + SPARES)
        self._folder = folder

    def __enter__(self) -> Self:
        self.machines.up()
        self.project = self.rack = Rack(self._folder, self.machines)
        return self

    def __exit__(self, *_: object) -> None:
        self.project.clean_up()
        self.machines.down()

    def used(self) -> list[Machine]:
        return [m for m in self.machines if self.attempts(m)]

    def documents(self, **limits: Any) -> list[dict[str, Any]]:
        hosts = [self.rack.host(i) for i in range(len(self.machines))]
        return [SSH, self.rack.rack(*hosts, **limits)]

    def at(self, phase: str, since: float) -> list[Machine]:
        if phase == "probing":
            return [m for m in self.machines if self.logins(m) and not self.attempts(m)]
        return [m for m in self.machines if _works(self, m, phase, since)]

    def mend(self) -> None:
        for machine in self.machines:
            machine.plug()
            if not machine.runs:
                machine.on()


def _works(ground: Ground, machine: Machine, phase: str, since: float) -> bool:
    lines = ground.lines(machine)
    if phase == "starting":
        known = {line.attempt for line in lines}
        return machine.runs and bool(ground.attempts(machine) - known)
    wanted = {"running": "beat", "stopping": "term"}.get(phase)
    last = max((line for line in lines), key=lambda line: line.time, default=None)
    fresh = last is not None and last.time > max(since, time.time() - 1.0)
    return fresh and last is not None and last.what == wanted


class Ec2(Ground):
    """Instances, as many as are asked for."""

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        super().__init__(schedule)
        (folder / "cloud").mkdir()
        (folder / "project").mkdir()
        self.cloud = Cloud(folder / "cloud", sum(schedule.gangs) + REPLACED)
        self.cloud.disks.busy = True
        self.machines = self.cloud.machines
        self.project = Account(folder / "project")
        self._known: set[str] = set()

    def __enter__(self) -> Self:
        if self.schedule.losses[0].phase == "booting":
            self.cloud.power.clear()
        self.cloud.__enter__()
        self.wire = Wire(self.cloud.port).__enter__()
        self.client = boto3.client(
            "ec2",
            region_name=REGION,
            endpoint_url=f"http://127.0.0.1:{self.cloud.port}",
            aws_access_key_id="theirs",
            aws_secret_access_key="theirs",
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.project.clean_up()
        self.wire.__exit__()
        self.cloud.__exit__()

    def documents(self, **limits: Any) -> list[dict[str, Any]]:
        most = sum(self.schedule.gangs)
        nodes = {"backends": ["aws"], "resources": {"cpu": 2}, "spot_policy": "auto"}
        # Its neighbours are of other clusters: one fleet has room for all gangs.
        made = fleet("gpu", f"0..{most}", **nodes, **limits)
        documents = [backend(self.wire.port, options={"ssh_config": "/dev/null", "connect_timeout": 3}), made]
        if self.schedule.volumes:
            place = {"backend": "aws", "region": REGION, "availability_zone": ZONE, "size": "1GB"}
            documents += [
                {"type": "volume", "name": f"data-{i}", "count": n, "prevent_destroy": False, **place}
                for i, n in enumerate(self.schedule.gangs)
            ]
        return documents

    def instances(self) -> dict[str, Mapping[str, Any]]:
        pages = self.client.get_paginator("describe_instances").paginate()
        found = (i for page in pages for r in page["Reservations"] for i in r["Instances"])
        return {
            i["InstanceId"]: i for i in found if i["State"]["Name"] not in ("terminated", "shutting-down")
        }

    def _living(self) -> Iterator[tuple[str, Machine]]:
        by_address = {m.address: m for m in self.machines}
        for made, instance in self.instances().items():
            if machine := by_address.get(instance.get("PrivateIpAddress", "")):
                yield made, machine

    def used(self) -> list[Machine]:
        """Without asking EC2, which costs more than all else here."""
        by_address = {m.address: m for m in self.machines}
        told = {f.stem: json.loads(f.read_text())["address"] for f in self.cloud.folder.glob("i-*.json")}
        ended = {made for made, machine in list(self.cloud.of.items()) if not machine.runs}
        return [by_address[address] for made, address in told.items() if made not in ended]

    def at(self, phase: str, since: float) -> list[Machine]:
        living = self.used()
        if phase == "booting":
            return [m for m in living if not m.runs and m not in self.cloud.of.values()]
        if phase == "probing":
            return [m for m in living if m.runs and self.logins(m) and not self.attempts(m)]
        if phase == "mounting":
            plugged = [disk.machine for disk in list(self.cloud.disks.plugged.values())]
            return [m for m in living if m in plugged and not self.attempts(m)]
        return [m for m in living if _works(self, m, phase, since)]

    def lose(self, machine: Machine, loss: Loss) -> None:
        made = next((made for made, m in self._living() if m is machine), None)
        if made is None:
            return  # it has just ended by itself
        if loss.how in ("terminate", "spot"):
            if loss.how == "spot":
                said = "Server.SpotInstanceTermination"
                (self.cloud.folder / f"{made}.reason").write_text(said)
            self.client.terminate_instances(InstanceIds=[made])
            return
        with self.cloud.turn:
            if made not in self.cloud.of:
                if loss.how == "reboot":
                    return  # it boots in any case
                self.cloud.of[made] = machine  # it never comes up
            if loss.how == "cut-back" and not machine.runs:
                self.cloud.of.pop(made)  # it only comes up later
                return
            super().lose(machine, loss)

    def bring_back(self) -> None:
        with self.cloud.turn:
            super().bring_back()

    def boot(self) -> None:
        self.cloud.power.set()

    def empty_listing(self) -> None:
        none = answer("DescribeInstances", reservations())
        self.wire.rules.append(lambda asked: none if asked.get("Action") == "DescribeInstances" else None)

    def mend(self) -> None:
        self.wire.still()

    def unknown(self) -> list[str]:
        text = self.project.run("state", "pull").out
        return [made for made in self.instances() if not re.search(rf'"{made}"', text)]

    def costs(self) -> list[str]:
        volumes = self.client.describe_volumes()["Volumes"]
        ours = [v["VolumeId"] for v in volumes if v.get("Tags")]
        return [*self.instances(), *ours]

    @property
    def broken(self) -> list[str]:
        return [repr(fault) for fault in self.cloud.faults]
