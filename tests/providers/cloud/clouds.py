"""Every cloud that has a driver, as a stand-in: where it is asked, what there is on it, and how it complains.

Each of `CLOUDS` starts one. Time passes there, and for the driver, by `Clock`: nothing waits. Only the
servers of EC2 and OpenStack have no clock, and do at once what they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from declarative.provider import Config
from providers.cloud import account as shared
from providers.cloud import connection, rest
from providers.cloud.any import account, nodes, volumes
from providers.cloud.ec2 import region as ec2_region
from providers.testing import NODE, VOLUME
from tests.providers.azure import server as azure
from tests.providers.cloud.stand_in import Clock, Pace
from tests.providers.cloud.web import Answer, Asked, Web
from tests.providers.crusoe import server as crusoe
from tests.providers.ec2 import run as ec2
from tests.providers.ec2.proxy import Line
from tests.providers.gce import server as gce
from tests.providers.hyperstack import server as hyperstack
from tests.providers.lambda_cloud import server as lambda_cloud
from tests.providers.libcloud import vultr
from tests.providers.libcloud.digitalocean import DigitalOcean
from tests.providers.openstack import run as openstack
from tests.providers.openstack.server import REGION as OPENSTACK
from tests.providers.openstack.server import SmallCloud

Counts = dict[str, int]
PAGE = 2
"""The things of a page, where a stand-in or its driver can be told."""
LATER = 600.0
"""Seconds after which all that was begun is done."""


@dataclass(kw_only=True)
class Small:
    """A running stand-in. `place` is where things are on it."""

    config: Config
    place: Mapping[str, Any]
    count: Callable[[], Counts]
    """What there is: nodes, volumes and attachments, whoever has them."""
    clock: Clock = field(default_factory=Clock)
    several: Mapping[str, int] = field(default_factory=lambda: {"node": 3, "volume": 5})
    """How many fill more than a page."""
    volumes: bool = True
    grows: bool = True
    pace: Pace | None = None
    """The requests that it allows; None for any number."""
    refused: int = 0
    """How many were too many."""
    asked: int = 0

    @property
    def node(self) -> dict[str, Any]:
        """A node's inputs."""
        return {**NODE, **self.place, "backend": self.config.backend}

    @property
    def volume(self) -> dict[str, Any] | None:
        """A volume's inputs; None if there are none."""
        where = {key: self.place[key] for key in ("region", "zone") if key in self.place}
        return {**VOLUME, **where, "backend": self.config.backend} if self.volumes else None

    def admits(self) -> bool:
        """Count a request, and say whether it is not one too many."""
        self.asked += 1
        fine = self.pace is None or self.pace.allows()
        self.refused += not fine
        return fine


Open = Callable[[Path, pytest.MonkeyPatch], AbstractContextManager[Small]]


def _made(driver: str, url: str, folder: Path, region: str, **more: Any) -> Config:
    return Config(
        backend="there",
        project_dir=folder,
        lineage="lineage-1",
        driver=driver,
        regions=(region,),
        endpoint=url,
        **more,
    )


def virtual(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """Have the driver, and its limits of requests, wait by a stand-in's clock."""
    time = SimpleNamespace(monotonic=clock.now, sleep=clock.advance, time=clock.now)
    for module in (shared, account, nodes, volumes, rest):
        monkeypatch.setattr(module, "time", time)
    for memory in ("_MADE", "_UNCERTAIN"):
        monkeypatch.setattr(account, memory, {})  # whose times are of this clock
    paced(monkeypatch, clock)


def paced(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """Have only the limits of requests wait by it."""
    real = connection.Limiter.__init__

    def made(limiter: Any, **known: Any) -> None:
        real(limiter, clock.now, clock.advance, **known)

    monkeypatch.setattr(connection.Limiter, "__init__", made)
    monkeypatch.setattr(connection, "_LIMITERS", {})


@contextmanager
def _web(stand_in: Any, small: Small, refusal: Answer) -> Iterator[str]:
    """Its address, with the limit of requests in front of it."""

    def answer(asked: Asked) -> Answer:
        if asked.path.endswith("/token") or small.admits():
            found: Answer = stand_in(asked)
            return found
        return refusal

    with Web(answer) as web:
        yield web.url


@contextmanager
def _ec2(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    for name, value in ec2.SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(shared, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(shared, "LONGEST_PAUSE", 0.002)
    monkeypatch.setattr(ec2_region, "PAGE", 5)
    with ec2.RunningEc2() as running, Line(running.port) as line:
        plain: Any = ec2.provider(running.port, folder / "count")
        region = plain._account.region(ec2.REGION)

        def count() -> Counts:
            disks = [disk for disk in region.volumes({}) if "fleetform:disk-of" not in disk.tags]
            return {
                "node": len([one for one in region.instances({}) if not one.gone]),
                "volume": len(disks),
                "attachment": sum(len(disk.holders or ()) for disk in disks),
            }

        place = {"region": ec2.REGION, "zone": ec2.ZONE, "instance_type": "t3.micro"}
        several = {"node": 6, "volume": 5}
        small = Small(config=ec2.config(line.port, folder), place=place, count=count, several=several)
        paced(monkeypatch, small.clock)
        line.rules.append(lambda _: None if small.admits() else "503=RequestLimitExceeded")
        yield small


@contextmanager
def _openstack(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    for name, value in openstack.SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(shared, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(shared, "LONGEST_PAUSE", 0.002)
    with SmallCloud() as cloud:
        cloud.page = PAGE

        def count() -> Counts:
            held = sum(len(volume["attachments"]) for volume in cloud.volumes.values())
            return {"node": len(cloud.alive()), "volume": len(cloud.volumes), "attachment": held}

        place = {"region": OPENSTACK, "zone": "az-1", "instance_type": "m1.tiny"}
        small = Small(config=openstack.config(cloud, folder), place=place, count=count)
        paced(monkeypatch, small.clock)
        cloud.rules.append(lambda _, path: None if "/tokens" in path or small.admits() else "429=slow down")
        yield small


@contextmanager
def _gce(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    cloud = gce.Gce()

    def count() -> Counts:
        held = [len(disk.get("users") or ()) for disk in cloud.things["disks"].values()]
        return {"node": len(cloud.things["instances"]), "volume": len(held), "attachment": sum(held)}

    place = {"region": gce.REGION, "zone": gce.ZONE, "instance_type": "n1-standard-1"}
    small = Small(config=gce.config("", folder), place=place, count=count)
    virtual(monkeypatch, small.clock)
    with _web(cloud, small, gce.error(429, "rateLimitExceeded")) as url:
        monkeypatch.setenv(gce.VARIABLE, gce.service_account(gce.private_key(), url))
        small.config = gce.config(url, folder)
        yield small


@contextmanager
def _azure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    for name, value in azure.SECRETS.items():
        monkeypatch.setenv(name, value)
    cloud = azure.Azure()

    def count() -> Counts:
        """What belongs to machines counts as they do: a part without its machine is one more."""
        kinds = [key.split("/")[1] for key in cloud.things]
        nodes = max(map(kinds.count, ("virtualmachines", "networkinterfaces", "publicipaddresses")))
        held = [thing for key, thing in cloud.things.items() if key.split("/")[1] == "disks"]
        own = [disk for disk in held if disk["properties"]["creationData"]["createOption"] == "FromImage"]
        attached = [disk for disk in held if disk.get("managedBy") and disk not in own]
        return {"node": nodes, "volume": len(held) - len(own), "attachment": len(attached)}

    place = {"region": azure.REGION, "zone": azure.ZONE, "instance_type": "Standard_D2s_v3"}
    small = Small(config=azure.config("", folder), place=place, count=count)
    virtual(monkeypatch, small.clock)
    with _web(cloud, small, azure.error(429, "TooManyRequests")) as url:
        small.config = azure.config(url, folder)
        yield small


@contextmanager
def _digitalocean(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    monkeypatch.setenv("FLEETFORM_TEST_KEY", "dop_v1_very-secret")
    with DigitalOcean(page=PAGE, boot=1) as cloud:

        def count() -> Counts:
            held = sum(len(volume["droplet_ids"]) for volume in cloud.volumes.values())
            return {"node": len(cloud.droplets), "volume": len(cloud.volumes), "attachment": held}

        config = _made(
            *("digitalocean", f"http://127.0.0.1:{cloud.port}", folder, "nyc3"),
            credentials={"key": "FLEETFORM_TEST_KEY"},
            image={"*": "ubuntu-24-04-x64"},
        )
        place = {"region": "nyc3", "instance_type": "s-1vcpu-1gb"}
        small = Small(config=config, place=place, count=count)
        virtual(monkeypatch, small.clock)
        cloud.rules.append(lambda *_: None if small.admits() else "too-many")
        yield small


@contextmanager
def _vultr(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    monkeypatch.setenv("VULTR_KEY", vultr.KEY)
    cloud = vultr.VultrApi(Clock(tick=0.1))
    cloud.page = PAGE

    def count() -> Counts:
        held = sum(bool(block["attached_to_instance"]) for block in cloud.blocks.values())
        return {"node": len(cloud.instances), "volume": len(cloud.blocks), "attachment": held}

    more = {"credentials": {"key": "VULTR_KEY"}, "image": {"*": "2136"}}
    place = {"region": vultr.REGION, "instance_type": "vc2-1c-1gb"}
    config = _made("vultr", "", folder, vultr.REGION, **more)
    small = Small(config=config, place=place, count=count, clock=cloud.clock)
    virtual(monkeypatch, small.clock)
    with _web(cloud, small, (429, {"error": "Too many requests", "status": 429})) as url:
        small.config = _made("vultr", url, folder, vultr.REGION, **more)
        yield small


@contextmanager
def _hyperstack(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    monkeypatch.setenv("HYPERSTACK_API_KEY", hyperstack.KEY)
    cloud = hyperstack.Hyperstack(Clock(tick=0.1))
    cloud.page = PAGE
    cloud.capacity = dict.fromkeys(cloud.capacity, 10_000)

    def count() -> Counts:
        cloud.clock.advance(LATER)
        attached = [one for disk in cloud.volumes.values() for one in disk["attachments"]]
        held = [one for one in attached if one["status"] != "DETACHED"]
        return {"node": len(cloud.machines), "volume": len(cloud.volumes), "attachment": len(held)}

    config = _made("hyperstack", "", folder, "NORWAY-1", image={"*": hyperstack.IMAGES[0]})
    place = {"region": "NORWAY-1", "instance_type": "n3-L40x1"}
    small = Small(config=config, place=place, count=count, clock=cloud.clock, grows=False)
    virtual(monkeypatch, small.clock)
    with _web(cloud, small, (429, {"status": False, "message": "Too many requests"})) as url:
        small.config = _made("hyperstack", url, folder, "NORWAY-1", image={"*": hyperstack.IMAGES[0]})
        yield small


@contextmanager
def _lambda(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    """With its own limits of requests, and of launches."""
    monkeypatch.setenv("LAMBDA_API_KEY", lambda_cloud.KEY)
    cloud = lambda_cloud.Lambda(Clock())
    cloud.capacity = dict.fromkeys(cloud.capacity, 10_000)

    def count() -> Counts:
        alive = ("booting", "active", "unhealthy")
        return {"node": len([one for one in cloud.instances.values() if one["status"] in alive])}

    place = {"region": "us-east-1", "instance_type": "gpu_1x_a10"}
    more = {"image": {"*": "lambda-stack-24-04"}, "credentials": {"key": "LAMBDA_API_KEY"}}
    config = _made("lambda", "", folder, "us-east-1", **more)
    small = Small(config=config, place=place, count=count, clock=cloud.clock, volumes=False)
    virtual(monkeypatch, small.clock)

    def counted(asked: Asked) -> Answer:
        found = cloud(asked)
        small.refused += found[0] == 429
        return found

    refusal = (429, {"error": {"code": "global/rate-limit", "message": "too many", "suggestion": ""}})
    with _web(counted, small, refusal) as url:
        small.config = _made("lambda", url, folder, "us-east-1", **more)
        yield small


@contextmanager
def _crusoe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    monkeypatch.setenv("CRUSOE_ACCESS_KEY_ID", crusoe.KEY_ID)
    monkeypatch.setenv("CRUSOE_SECRET_KEY", crusoe.SECRET)
    monkeypatch.setenv("HOME", str(folder / "home"))
    cloud = crusoe.Crusoe(Clock(tick=0.1))
    cloud.page = PAGE
    cloud.stock = dict.fromkeys(cloud.stock, 10_000)
    cloud.quota = dict.fromkeys(cloud.quota, 100_000)

    def count() -> Counts:
        cloud.clock.advance(LATER)
        attached = [one for vm in cloud.vms.values() for one in vm["disks"]]
        systems = [one for one in attached if one["attachment_type"] == "os"]
        held = len(attached) - len(systems)
        return {"node": len(cloud.vms), "volume": len(cloud.disks) - len(systems), "attachment": held}

    place = {"region": crusoe.EAST, "instance_type": "l40s-48gb.1x"}
    more = {"image": {"*": "ubuntu22.04:latest"}, "options": {"project": crusoe.PROJECT}}
    config = _made("crusoe", "", folder, crusoe.EAST, **more)
    small = Small(config=config, place=place, count=count, clock=cloud.clock)
    virtual(monkeypatch, small.clock)
    with _web(cloud, small, (429, {"code": "429", "message": "too many requests"})) as url:
        small.config = _made("crusoe", url, folder, crusoe.EAST, **more)
        yield small


@contextmanager
def _nebius(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    reason = "the packages nebius and grpcio are not here"
    pytest.importorskip("grpc", reason=reason, exc_type=ImportError)
    nebius = pytest.importorskip("tests.providers.nebius.server", reason=reason, exc_type=ImportError)
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "static-token")
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.setattr("providers.cloud.any.nebius_site.PAGE", PAGE)
    with nebius.Nebius(Clock(tick=0.1)) as cloud:
        cloud.stock = cloud.quota = dict.fromkeys(cloud.stock, 10_000)

        def count() -> Counts:
            cloud.clock.advance(LATER)
            disks = [disk for disk in cloud._all("Disk") if not disk.status.managed_by]
            held = sum(len(one.spec.secondary_disks) for one in cloud._all("Instance"))
            return {"node": len(cloud._all("Instance")), "volume": len(disks), "attachment": held}

        more = {"image": {"*": nebius.FAMILY}, "options": {"project": nebius.PROJECT}}
        config = _made("nebius", f"http://{cloud.address}", folder, nebius.REGION, **more)
        place = {"region": nebius.REGION, "instance_type": "cpu-d3_4vcpu-16gb"}
        small = Small(config=config, place=place, count=count, clock=cloud.clock)
        virtual(monkeypatch, small.clock)
        cloud.pace = SimpleNamespace(allows=small.admits)
        yield small


CLOUDS: Mapping[str, Open] = {
    "ec2": _ec2,
    "openstack": _openstack,
    "gce": _gce,
    "azure": _azure,
    "digitalocean": _digitalocean,
    "vultr": _vultr,
    "hyperstack": _hyperstack,
    "lambda": _lambda,
    "crusoe": _crusoe,
    "nebius": _nebius,
}
