"""The driver `hyperstack` against the small Hyperstack, judged by its description where that is there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from declarative.model.state import token
from declarative.model.status import NodeState
from declarative.provider import (
    Config,
    PermanentError,
    PermanentKind,
    TransientError,
    TransientKind,
)
from providers.cloud import account, cloud
from providers.cloud.any.hyperstack import Hyperstack as Site
from providers.testing import NODE, VOLUME, Conformance, Spoilt
from tests.providers.cloud.fleet import Fleet
from tests.providers.cloud.stand_in import Clock, Fault
from tests.providers.cloud.web import LOST, Answer, Asked, Web
from tests.providers.hyperstack.server import IMAGES, KEY, Hyperstack
from tests.providers.hyperstack.test_server import serving
from tests.support.cli import Project

MACHINES, VOLUMES = "/v1/core/virtual-machines", "/v1/core/volumes"
REGION = "NORWAY-1"
PLACE = {"region": REGION, "backend": "hyper"}
FLAVOR = "n3-L40x1"
MADE = r"POST /v1/core/(virtual-machines|volumes|environments|keypairs)"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes with the requests, in the cloud and not here."""
    monkeypatch.setenv("HYPERSTACK_API_KEY", KEY)
    monkeypatch.setattr(Site, "settle", 0.0)
    monkeypatch.setattr(account, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(account, "LONGEST_PAUSE", 0.002)


def provider(url: str, folder: Path, lineage: str = "lineage-1", **more: Any) -> Any:
    config = Config(
        backend="hyper",
        project_dir=folder,
        lineage=lineage,
        driver="hyperstack",
        regions=(REGION,),
        endpoint=url,
        image={"*": IMAGES[0]},
    )
    found: Any = cloud(replace(config, **more))
    # No host answers behind these machines.
    found.readiness = lambda nodes: {n: s.readiness for n, s in found._nodes.readiness(nodes).items()}
    return found


def fleet_of(url: str, folder: Path, lineage: str = "lineage-1", **more: Any) -> Fleet:
    """That of one state."""
    found = provider(url, folder, lineage, **more)
    return Fleet(found, lineage, {**NODE, **PLACE, "instance_type": FLAVOR}, {**VOLUME, **PLACE})


@pytest.fixture
def hyper() -> Hyperstack:
    return Hyperstack(Clock(tick=7.0))


@pytest.fixture
def web(hyper: Hyperstack) -> Iterator[Web]:
    with serving(hyper) as running:
        yield running


@pytest.fixture
def fleet(web: Web, tmp_path: Path) -> Fleet:
    return fleet_of(web.url, tmp_path)


def nothing_is_left(hyper: Hyperstack) -> bool:
    hyper.clock.advance(60)
    return not (hyper.machines or hyper.volumes or hyper.keypairs or hyper.environments)


class TestHyperstack(Conformance):
    backend = "hyper"
    ranks = False  # there is nothing behind these machines
    crowd = 0
    node_inputs = MappingProxyType({**NODE, **PLACE, "instance_type": FLAVOR})
    volume_inputs = MappingProxyType({**VOLUME, **PLACE})
    larger = MappingProxyType({**volume_inputs, "size": "2GB"})

    @pytest.fixture(autouse=True)
    def listening(self, quick: None) -> Iterator[None]:
        self.server = Hyperstack(Clock(tick=7.0), paced=False)
        self.server.capacity = dict.fromkeys(self.server.capacity, 10_000)
        self.faults: list[Callable[[Asked], Answer | None]] = []

        def behind(asked: Asked) -> Answer:
            return next((answer for fault in self.faults if (answer := fault(asked))), None) or self.server(
                asked
            )

        with serving(self.server) as self.web, Web(behind) as self.way:
            yield

    def make(self, folder: Path, lineage: str) -> Any:
        return provider(self.web.url, folder, lineage)

    def test_read_after_create_equals(self, place: Any) -> None:
        """A volume is found by its name alone: its inputs are those of the record."""
        node, volume = place.node(), place.volume()
        for record, inputs in ((node, dict(node.inputs)), (volume, {})):
            found = place.provider.find(record.address, place.token(record))
            assert dict(found.inputs) == inputs
            assert dict(found.outputs) == dict(record.outputs)
            assert found.known is bool(inputs)

    def test_an_update_is_seen_by_all(self, disks: Any) -> None:
        """A volume keeps its size and its description."""
        record = disks.volume()
        with pytest.raises(PermanentError, match="cannot make it larger"):
            disks.provider.update(record, disks.token(record), self.larger)

    def spoiled(self, folder: Path, lineage: str, how: Spoilt) -> Any:
        if how is Spoilt.NOBODY:
            return provider("http://127.0.0.1:9", folder, lineage)

        def fault(asked: Asked) -> Answer | None:
            if how is Spoilt.SENSELESS:
                return 200, "<html>oops"
            if how is Spoilt.DENIED:
                return 401, {"status": False, "message": "no", "error_reason": "unauthorized"}
            if asked.line in (f"POST {MACHINES}", f"POST {VOLUMES}"):
                self.server(asked)
                return LOST
            return None

        self.faults = [fault]
        return provider(self.way.url, folder, lineage)


del Conformance  # it is no test itself


# ------------------------------------------------------------------------------------------ offers


def test_offers_have_prices_and_are_in_stock(fleet: Fleet, hyper: Hyperstack) -> None:
    hyper.capacity["n3-L40x1", REGION] = 0
    offers = {offer.instance_type: offer for offer in fleet.provider.offers()}
    assert {name: (offer.price, offer.spot) for name, offer in offers.items()} == {
        "n1-cpu-small": (pytest.approx(4 * 0.0125 + 4 * 0.0017), False),
        "n3-H100x8": (pytest.approx(15.2), False),
        "n3-H100x8-spot": (pytest.approx(12.16), True),
    }
    shape = offers["n3-H100x8-spot"].shape
    assert (shape.gpus, shape.gpu_name, shape.gpu_memory_mib, shape.cpu) == (8, "H100", 80 * 1024, 252)


# ------------------------------------------------------------------------------------------- a life


def test_a_node_and_a_volume_live(fleet: Fleet, hyper: Hyperstack, web: Web) -> None:
    volume, node = fleet.volume(size="15GB"), fleet.node(tags={"team": "a"})
    (asked,) = (one.body for one in web.asked if one.line == f"POST {MACHINES}")
    assert asked["enable_port_randomization"] is False
    assert asked["assign_floating_ip"] is True
    assert asked["security_rules"][0]["port_range_max"] == 22
    assert len(asked["name"]) <= 50
    assert asked["user_data"].startswith("#cloud-config\n")
    assert "team:a" in asked["labels"]
    assert node.outputs["address"].startswith("10.")
    assert node.outputs["public_address"].startswith("203.")
    held = fleet.attach(node, volume)
    assert held.outputs["device"].startswith("/dev/disk/by-id/virtio-")
    things = {thing.address: thing for thing in fleet.provider.inventory()}
    assert {address: dict(thing.outputs) for address, thing in things.items()} == {
        record.address: dict(record.outputs) for record in (node, volume, held)
    }
    fleet.provider.update(node, "t", {**node.inputs, "tags": {"team": "b"}})
    assert "team:b" in next(iter(hyper.machines.values()))["labels"]
    with pytest.raises(PermanentError, match="cannot make it larger"):
        fleet.provider.update(volume, "t", {**volume.inputs, "size": "20GB"})
    for record in (held, volume, node):
        fleet.delete(record)
    assert nothing_is_left(hyper)


def test_the_last_node_takes_its_environment_along(fleet: Fleet, hyper: Hyperstack) -> None:
    first, second = fleet.node("gpu-0"), fleet.node("gpu-1")
    fleet.delete(first)
    assert len(hyper.environments) == len(hyper.keypairs) == 1
    fleet.delete(second)
    assert nothing_is_left(hyper)
    fleet.delete(fleet.node("gpu-2"))
    assert nothing_is_left(hyper)


def test_a_machine_that_is_being_created_is_deleted_after_that(fleet: Fleet, hyper: Hyperstack) -> None:
    node = fleet.node()
    (machine,) = hyper.machines.values()
    machine["status"] = "BUILD"
    with pytest.raises(TransientError, match="being created") as raised:
        fleet.provider.delete(node)
    assert raised.value.kind is TransientKind.BUSY
    machine["status"] = "ACTIVE"
    fleet.delete(node)
    assert nothing_is_left(hyper)


def test_states_share_nothing(fleet: Fleet, hyper: Hyperstack, web: Web, tmp_path: Path) -> None:
    other = fleet_of(web.url, tmp_path / "other", "lineage-2")
    mine, theirs = fleet.node(), other.node()
    assert len(hyper.environments) == 2
    assert [thing.outputs["id"] for thing in fleet.provider.inventory()] == [mine.outputs["id"]]
    fleet.delete(mine)
    assert [str(made) for made in hyper.machines if hyper.machines[made]["status"] != "DELETING"] == [
        theirs.outputs["id"]
    ]


def test_a_mark_that_somebody_removed_is_restored(fleet: Fleet, hyper: Hyperstack) -> None:
    node = fleet.node()
    (machine,) = hyper.machines.values()
    machine["labels"] = ["theirs"]
    with pytest.raises(PermanentError, match="does not carry this state's tags"):
        fleet.provider.delete(node)
    assert machine["status"] == "ACTIVE"
    fleet.provider.update(node, token("lineage-1", node.address, 1, None), node.inputs)
    assert "theirs" in machine["labels"]
    assert [thing.address for thing in fleet.provider.inventory()] == [node.address]


def test_volumes_have_no_tags(fleet: Fleet, hyper: Hyperstack) -> None:
    with pytest.raises(PermanentError, match="no tags there"):
        fleet.volume(tags={"team": "a"})
    assert not hyper.volumes


def test_states_of_a_machine(fleet: Fleet, hyper: Hyperstack) -> None:
    node = fleet.node()
    (machine,) = hyper.machines.values()
    for status, state in (
        ("SHUTOFF", NodeState.NOT_READY),
        ("HIBERNATED", NodeState.NOT_READY),
        ("BUILD", NodeState.PROVISIONING),
        ("ERROR", NodeState.FAILED),
    ):
        machine["status"] = status
        assert fleet.provider._nodes.readiness([node])["gpu-0"].readiness.state is state


# ------------------------------------------------------------------------------------- refusals


def test_refusals_are_told_apart(fleet: Fleet, hyper: Hyperstack) -> None:
    """All four are `bad_request`."""
    odd = (400, {"status": False, "message": "It is not possible.", "error_reason": "bad_request"})

    def refused() -> tuple[PermanentKind, str | None]:
        hyper.faults = [Fault(line=f"POST {MACHINES}", answer=odd, done=False)]
        with pytest.raises(PermanentError) as raised:
            fleet.node()
        return raised.value.kind, raised.value.hint

    fleet.node("gpu-1")
    assert refused()[0] is PermanentKind.INVALID
    hyper.capacity[FLAVOR, REGION] = 0
    assert refused()[0] is PermanentKind.NO_CAPACITY
    hyper.quota = 1
    kind, hint = refused()
    assert kind is PermanentKind.INSTANCES
    assert "support" in str(hint)
    hyper.faults, hyper.broke = [], True
    with pytest.raises(PermanentError) as raised:
        fleet.node()
    assert raised.value.kind is PermanentKind.QUOTA
    assert raised.value.hint == "add credit to the account"


def test_no_stock_although_listed_is_no_capacity(fleet: Fleet, hyper: Hyperstack) -> None:
    hyper.refusing.add((FLAVOR, REGION))
    with pytest.raises(PermanentError) as raised:
        fleet.node()
    assert raised.value.kind is PermanentKind.NO_CAPACITY


def test_a_machine_that_fails_is_deleted(fleet: Fleet, hyper: Hyperstack) -> None:
    hyper.becomes = "ERROR"
    with pytest.raises(PermanentError) as raised:
        fleet.node()
    assert raised.value.kind is PermanentKind.NO_CAPACITY
    hyper.clock.advance(60)
    assert not hyper.machines


def test_an_unknown_image_is_the_users_mistake(web: Web, tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="image_name none") as raised:
        fleet_of(web.url, tmp_path, image={"*": "none"}).node()
    assert raised.value.kind is PermanentKind.INVALID


def test_a_rate_limit_is_waited_for(fleet: Fleet, hyper: Hyperstack) -> None:
    hyper.faults = [Fault(line="GET", answer=(429, {"message": "Too Many Requests"}), done=False)]
    with pytest.raises(TransientError) as raised:
        fleet.provider.inventory()
    assert raised.value.kind is TransientKind.THROTTLED


def test_a_key_is_found_as_its_own_tools_find_it(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HYPERSTACK_API_KEY")
    with pytest.raises(PermanentError, match="HYPERSTACK_API_KEY is not set"):
        provider(web.url, tmp_path).offers()
    monkeypatch.setenv("MY_KEY", KEY)
    assert provider(web.url, tmp_path, credentials={"key": "MY_KEY"}).offers()


# ------------------------------------------------------------------------------------ nothing twice


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("line", ["environments", "keypairs", "virtual-machines", "volumes", "attach"])
def test_a_lost_request_makes_nothing_twice(fleet: Fleet, hyper: Hyperstack, line: str, done: bool) -> None:
    hyper.faults = [Fault(line=f"POST .*{line}", done=done)]
    volume, node = fleet.volume(), fleet.node()
    held = fleet.attach(node, volume)
    assert not hyper.faults
    assert [str(made) for made in hyper.machines] == [node.outputs["id"]]
    assert [str(made) for made in hyper.volumes] == [volume.outputs["id"]]
    assert len(hyper.environments) == len(hyper.keypairs) == 1
    for record in (held, volume, node):
        fleet.delete(record)
    assert nothing_is_left(hyper)


def test_what_is_listed_late_is_not_made_again(fleet: Fleet, hyper: Hyperstack) -> None:
    """Its name is taken."""
    hyper.late = 40.0
    hyper.faults = [Fault(line=f"POST {MACHINES}$")]
    node = fleet.node()
    assert [str(made) for made in hyper.machines] == [node.outputs["id"]]


def test_pages_shift_while_they_are_read(fleet: Fleet, hyper: Hyperstack) -> None:
    """One volume goes, another comes: the total stays."""
    hyper.page = 2
    made = [fleet.volume(f"data-{number}") for number in range(5)]
    shifted: list[int] = []

    def shift(asked: Asked) -> Answer:
        if asked.line == f"GET {VOLUMES}" and asked.params.get("page") == "2" and not shifted:
            first, *_ = hyper.volumes
            last = hyper._id()
            old = hyper.volumes.pop(first)
            hyper.volumes[last] = {**old, "id": last, "description": "of somebody else"}
            shifted.append(first)
        return hyper(asked)

    with Web(shift) as way:
        found = provider(way.url, fleet.provider._account.config.project_dir).inventory()
    assert shifted
    assert {thing.address for thing in found} == {record.address for record in made[1:]}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_nothing_is_lost_or_made_twice(tmp_path: Path, seed: int) -> None:
    """A command, a request or its answer is lost, where a seed says so; the next command goes on.
    In the end all is there once, and then nothing is.
    """
    luck, hyper = random.Random(seed), Hyperstack(Clock(tick=7.0), paced=False)
    state = {"on": True}

    class KilledError(BaseException):
        """The command's end."""

    def behind(asked: Asked) -> Answer:
        chance = luck.random() if state["on"] else 1.0
        if chance < 0.08:
            return LOST
        answer = hyper(asked)
        return LOST if chance < 0.2 else answer

    def until_done(step: Callable[[Fleet], Any]) -> Any:
        while True:
            fleet = fleet_of(server.url, tmp_path)
            if luck.random() < 0.3:
                dying = luck.randrange(1, 12)
                real = fleet.provider._account.config.fence
                left = iter(range(dying))

                def fence(real: Any = real, left: Iterator[int] = left) -> None:
                    real()
                    if next(left, None) is None:
                        raise KilledError

                fleet = fleet_of(server.url, tmp_path, fence=fence)
            try:
                return step(fleet)
            except KilledError:
                continue

    with Web(behind) as server:
        volume, node = until_done(lambda f: f.volume()), until_done(lambda f: f.node())
        held = until_done(lambda f: f.attach(node, volume))
        assert [str(made) for made in hyper.machines] == [node.outputs["id"]]
        assert [str(made) for made in hyper.volumes] == [volume.outputs["id"]]
        assert len(hyper.environments) == len(hyper.keypairs) == 1
        for record in luck.choice(((held, volume, node), (held, node, volume))):
            until_done(partial(Fleet.delete, record=record))
        assert nothing_is_left(hyper)
        state["on"] = False
        assert fleet_of(server.url, tmp_path).provider.inventory() == ()


@pytest.mark.slow
def test_the_command_takes_the_next_offer_and_destroys(hyper: Hyperstack, web: Web, tmp_path: Path) -> None:
    """The cheaper flavor is listed with stock, and refused for want of it."""
    project, env = Project(tmp_path), {"HYPERSTACK_API_KEY": KEY}
    hyper.refusing.add(("n3-H100x8-spot", REGION))
    project.declare(
        {
            "type": "backend",
            "name": "hyper",
            "driver": "hyperstack",
            "regions": [REGION],
            "endpoint": web.url,
            "image": IMAGES[0],
        },
        {
            "type": "fleet",
            "name": "gpu",
            "backends": ["hyper"],
            "nodes": 1,
            "spot_policy": "auto",
            "fallback": "any",
            "resources": {"gpu": "H100:8"},
            "prevent_destroy": False,
        },
        {
            "type": "volume",
            "name": "data",
            "backend": "hyper",
            "region": REGION,
            "size": "3GB",
            "prevent_destroy": False,
        },
    )
    project.apply(env=env)
    assert [machine["flavor"]["name"] for machine in hyper.machines.values()] == ["n3-H100x8"]
    assert [volume["size"] for volume in hyper.volumes.values()] == [3]
    assert project.plan(env=env)["actions"] == []
    project.run("destroy", "--auto-approve", env=env)
    assert nothing_is_left(hyper)
    assert KEY not in (tmp_path / ".fleetform" / "state.db").read_bytes().decode("latin-1")
