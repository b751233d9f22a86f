"""The driver `nebius` against the small Nebius."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from declarative.model.state import Address, Record, token
from declarative.model.status import NodeState
from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import account, cloud
from providers.testing import NODE, VOLUME, Conformance, Spoilt
from tests.providers.cloud.fleet import Fleet
from tests.providers.cloud.stand_in import Clock, Fault, Pace
from tests.providers.cloud.web import LOST, Answer, Asked
from tests.support.cli import Project

REASON = "the packages nebius and grpcio are not here"
grpc = pytest.importorskip("grpc", reason=REASON, exc_type=ImportError)
pytest.importorskip("tests.providers.nebius.server", reason=REASON, exc_type=ImportError)

from providers.cloud.rpc import Link  # noqa: E402
from tests.providers.nebius.messages import messages, plain  # noqa: E402
from tests.providers.nebius.server import (  # noqa: E402
    FABRIC,
    FAMILY,
    KEY_ID,
    PROJECT,
    REGION,
    SERVICE_ACCOUNT,
    SUBNET,
    Nebius,
)

PLACE = {"region": REGION, "backend": "neb"}
L40S = "gpu-l40s_1gpu-8vcpu-32gb"
KEY = "static-token"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Time passes with the requests, in the cloud and not here."""
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", KEY)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(account, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(account, "LONGEST_PAUSE", 0.002)


def provider(cloud_: Nebius, folder: Path, lineage: str = "lineage-1", **more: Any) -> Any:
    config = Config(
        backend="neb",
        project_dir=folder,
        lineage=lineage,
        driver="nebius",
        regions=(REGION,),
        endpoint=f"http://{cloud_.address}",
        image={"*": FAMILY},
        options={"project": PROJECT},
    )
    found: Any = cloud(replace(config, **more))
    # No host answers behind these machines.
    found.readiness = lambda nodes: {n: s.readiness for n, s in found._nodes.readiness(nodes).items()}
    return found


class Judged(Nebius):
    """Its answers keep to the constraints of their own messages."""

    def carried_out(self, asked: Asked) -> Answer:
        answer = super().carried_out(asked)
        if answer[0] == 200:
            assert messages().violations(answer[1]) == []
        return answer

    def addresses(self, number: int) -> tuple[str, str]:
        """Of this machine, where nobody listens: no host answers."""
        return f"127.10.{number // 256}.{number % 256}", f"127.20.{number // 256}.{number % 256}"

    def of(self, kind: str) -> list[Any]:
        """Those that are not going."""
        things = [one for one in self._all(kind) if plain(one.status).get("state") != "DELETING"]
        return [one for one in things if kind != "Disk" or not one.status.managed_by]

    def ids(self, kind: str) -> list[str]:
        return [one.metadata.id for one in self.of(kind)]

    def made(self, kind: str) -> int:
        """How many were ever made."""
        names = [one.request.type_url.rpartition(".")[2] for one in self.operations.values()]
        return names.count(f"Create{kind}Request")

    def empty(self) -> bool:
        self.clock.advance(600)
        return not self.things


class Way(Nebius):
    """Another way to a stand-in, on which things happen."""

    def __init__(self, to: Nebius, happens: Callable[[Asked], Answer | None]) -> None:
        super().__init__(to.clock)
        self._to, self._happens = to, happens

    def served(self, asked: Asked) -> Answer:
        with self.clock.turn:
            found = self._happens(asked)
            return self._to.served(asked) if found is None else found


def fleet_of(cloud_: Nebius, folder: Path, lineage: str = "lineage-1", **more: Any) -> Fleet:
    """That of one state."""
    found = provider(cloud_, folder, lineage, **more)
    return Fleet(found, lineage, {**NODE, **PLACE, "instance_type": L40S}, {**VOLUME, **PLACE})


@pytest.fixture
def neb() -> Iterator[Judged]:
    with Judged(Clock(tick=7.0)) as running:
        yield running


@pytest.fixture
def fleet(neb: Judged, tmp_path: Path) -> Fleet:
    return fleet_of(neb, tmp_path)


class TestNebius(Conformance):
    backend = "neb"
    ranks = False  # there is nothing behind these machines
    crowd = 0
    node_inputs = MappingProxyType({**NODE, **PLACE, "instance_type": "cpu-d3_4vcpu-16gb"})
    volume_inputs = MappingProxyType({**VOLUME, **PLACE})
    larger = MappingProxyType({**volume_inputs, "size": "2GB", "tags": {"team": "a"}})

    @pytest.fixture(autouse=True)
    def listening(self, quick: None) -> Iterator[None]:
        with Judged(Clock(tick=7.0)) as self.server:
            self.server.page = 5
            self.server.stock = self.server.quota = dict.fromkeys(self.server.stock, 10_000)
            self.ways: list[Way] = []
            yield
            for way in self.ways:
                way.__exit__()

    def make(self, folder: Path, lineage: str) -> Any:
        return provider(self.server, folder, lineage)

    def spoiled(self, folder: Path, lineage: str, how: Spoilt) -> Any:
        if how is Spoilt.NOBODY:
            return provider(self.server, folder, lineage, endpoint="http://127.0.0.1:9")

        def happens(asked: Asked) -> Answer | None:
            if how is Spoilt.DENIED:
                return self.server.refusal("UNAUTHENTICATED", "no", "Unauthenticated").answer
            if how is Spoilt.SENSELESS:
                return 200, Odd(b"<html>oops")
            if asked.line.endswith(("InstanceService/Create", "DiskService/Create")):
                self.server.served(asked)
                return LOST
            return None

        self.ways.append(Way(self.server, happens).__enter__())
        return provider(self.ways[-1], folder, lineage)


class Odd:
    """The bytes of an answer, changed."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # noqa: N802  # protobuf's name
        return self._data


del Conformance  # it is no test itself


# ------------------------------------------------------------------------------------------ offers


def test_offers_have_prices_and_shapes(fleet: Fleet, neb: Judged) -> None:
    offers = {(offer.instance_type, offer.spot): offer for offer in fleet.provider.offers()}
    assert {key: offer.price for key, offer in offers.items()} == {
        ("cpu-d3_4vcpu-16gb", False): 0.1,
        ("cpu-d3_4vcpu-16gb", True): 0.05,
        (L40S, False): 1.55,
        (L40S, True): 0.775,
        ("gpu-h100-sxm_8gpu-128vcpu-1600gb", False): 23.6,
        ("gpu-h100-sxm_8gpu-128vcpu-1600gb", True): 11.8,
    }
    shape = offers["gpu-h100-sxm_8gpu-128vcpu-1600gb", False].shape
    assert (shape.gpus, shape.gpu_name, shape.gpu_memory_mib, shape.cpu) == (8, "H100", 80 * 1024, 128)
    assert (shape.memory_mib, shape.disk_mib) == (1600 * 1024, 100 * 1024)


@pytest.mark.parametrize("state", ["DATA_STATE_FRESH", "DATA_STATE_STALE", "DATA_STATE_UNKNOWN"])
@pytest.mark.parametrize("level", ["LOW", "LIMIT_REACHED"])
def test_what_has_none_free_is_not_offered(neb: Judged, tmp_path: Path, state: str, level: str) -> None:
    """A limit of the account's is told by the launch that it refuses."""

    def happens(asked: Asked) -> Answer | None:
        if not asked.line.endswith("ResourceAdviceService/List"):
            return None
        status, answer = neb.served(asked)
        for item in answer.items:
            if item.spec.compute_instance.platform == "gpu-l40s":
                free = item.status.on_demand
                about = {"data_state": state, "availability_level": f"AVAILABILITY_LEVEL_{level}"}
                free.CopyFrom(messages()("capacity.v1.ResourceAdviceStatus.Availability", **about))
        return status, answer

    with Way(neb, happens) as way:
        offered = [(one.instance_type, one.spot) for one in provider(way, tmp_path).offers()]
    assert (L40S, True) in offered
    assert ((L40S, False) in offered) is ((state, level) != ("DATA_STATE_FRESH", "LOW"))


@pytest.mark.parametrize("service", ["ResourceAdviceService", "CalculatorService", "ProjectService"])
def test_what_may_not_be_asked_is_unknown(fleet: Fleet, neb: Judged, service: str) -> None:
    denied = neb.refusal("PERMISSION_DENIED", "no", "PermissionDenied", permission_denied={}).answer
    neb.faults = [Fault(line=service, answer=denied, done=False, times=9)]
    offers = fleet.provider.offers()
    assert len(offers) == 6
    assert {offer.price is None for offer in offers} == {service == "CalculatorService"}


def test_a_project_is_in_one_region(neb: Judged, tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="is in eu-north1, not in eu-west1"):
        provider(neb, tmp_path, regions=("eu-west1",)).offers()
    with pytest.raises(PermanentError, match="no project in eu-north1 is named") as raised:
        provider(neb, tmp_path, options={"project": {"eu-west1": "project-x"}}).offers()
    assert raised.value.hint == "write `options: {project: {eu-north1: project-…}}`"
    assert provider(neb, tmp_path, options={"project": {REGION: PROJECT}}).offers()


# ------------------------------------------------------------------------------------------- a life


def test_a_node_and_a_volume_live(fleet: Fleet, neb: Judged) -> None:
    volume, node = fleet.volume(size="15GB"), fleet.node(tags={"team": "a"})
    (asked,) = (one.body for one in neb.asked if one.line.endswith("InstanceService/Create"))
    assert asked.spec.cloud_init_user_data.startswith("#cloud-config\n")
    assert asked.spec.boot_disk.managed_disk.spec.source_image_family.image_family == FAMILY
    assert len(asked.spec.boot_disk.managed_disk.name) <= 63
    assert asked.metadata.labels["team"] == "a"
    assert max(map(len, asked.metadata.labels.values())) <= 63
    assert node.outputs["address"].startswith("127.10.")
    assert node.outputs["public_address"].startswith("127.20.")
    held = fleet.attach(node, volume)
    (one,) = neb.things[node.outputs["id"]].spec.secondary_disks
    assert held.outputs["device"] == f"/dev/disk/by-id/virtio-{one.device_id}"
    assert len(one.device_id) <= 20
    things = {thing.address: thing for thing in fleet.provider.inventory()}
    assert {address: dict(thing.outputs) for address, thing in things.items()} == {
        record.address: dict(record.outputs) for record in (node, volume, held)
    }
    fleet.provider.update(node, "t", {**node.inputs, "tags": {"team": "b"}})
    assert neb.things[node.outputs["id"]].metadata.labels["team"] == "b"
    fleet.delete(held)
    fleet.provider.update(volume, "t", {**volume.inputs, "size": "20GB"})
    assert neb.things[volume.outputs["id"]].status.size_bytes == 20 * 2**30
    for record in (volume, node):
        fleet.delete(record)
    assert neb.empty()


def test_each_disk_keeps_its_device_when_another_goes(fleet: Fleet, neb: Judged) -> None:
    """Lists are merged by position: the second disk moves to the place of the first."""
    node, volumes = fleet.node(), [fleet.volume(f"data-{number}") for number in range(3)]
    held = [fleet.attach(node, volume) for volume in volumes]

    def devices() -> dict[str, str]:
        disks = neb.things[node.outputs["id"]].spec.secondary_disks
        return {one.existing_disk.id: one.device_id for one in disks}

    before = devices()
    assert len(set(before.values())) == 3
    fleet.delete(held[0])
    assert devices() == {made: name for made, name in before.items() if made != volumes[0].outputs["id"]}
    for one in held[1:]:
        fleet.delete(one)
    assert devices() == {}


def test_what_others_attached_stays_as_it_is(fleet: Fleet, neb: Judged) -> None:
    """It moves to the place of the disk that goes, and takes over nothing of it."""
    node, volume, theirs = fleet.node(), fleet.volume(), fleet_of(neb, Path(), "lineage-2").volume()
    held = fleet.attach(node, volume)
    disks = neb.things[node.outputs["id"]].spec.secondary_disks
    disks.add(attach_mode="READ_ONLY").existing_disk.id = theirs.outputs["id"]
    neb._relate()
    fleet.delete(held)
    (left,) = neb.things[node.outputs["id"]].spec.secondary_disks
    assert (left.existing_disk.id, left.attach_mode, left.device_id) == (theirs.outputs["id"], 1, "")


def test_states_share_nothing(fleet: Fleet, neb: Judged, tmp_path: Path) -> None:
    other = fleet_of(neb, tmp_path / "other", "lineage-2")
    mine, theirs = fleet.node(), other.node()
    assert [thing.outputs["id"] for thing in fleet.provider.inventory()] == [mine.outputs["id"]]
    fleet.delete(mine)
    assert neb.ids("Instance") == [theirs.outputs["id"]]


@pytest.mark.parametrize("kind", ["node", "volume"])
def test_a_mark_that_somebody_removed_is_restored(fleet: Fleet, neb: Judged, kind: str) -> None:
    record = getattr(fleet, kind)()
    thing = neb.things[record.outputs["id"]]
    thing.metadata.labels.clear()
    thing.metadata.labels["theirs"] = "x"
    fleet.provider.update(record, token("lineage-1", record.address, 1, None), record.inputs)
    assert neb.things[record.outputs["id"]].metadata.labels["theirs"] == "x"
    assert [thing.address for thing in fleet.provider.inventory()] == [record.address]


def test_states_of_a_machine(fleet: Fleet, neb: Judged) -> None:
    node = fleet.node()
    instance = neb.things[node.outputs["id"]]

    def state() -> NodeState:
        found: NodeState = fleet.provider._nodes.readiness([node])["gpu-0"].readiness.state
        return found

    for name, expected in (
        ("STOPPING", NodeState.NOT_READY),
        ("STARTING", NodeState.PROVISIONING),
        ("ERROR", NodeState.FAILED),
        ("STOPPED", NodeState.FAILED),  # it was never ready
    ):
        neb._state(instance, name)
        assert state() is expected, name
    instance.status.reconciling = True
    assert state() is NodeState.PROVISIONING
    instance.status.reconciling = False
    fleet.provider._nodes.taken(node)
    neb._state(neb.things[node.outputs["id"]], "STOPPED")
    assert state() is NodeState.NOT_READY
    neb.things[node.outputs["id"]].metadata.labels["fleetform_is_00"] = "damaged"
    with pytest.raises(PermanentError, match="cannot be read"):
        fleet.provider.inventory()


def test_what_was_taken_back_has_failed(fleet: Fleet, neb: Judged) -> None:
    node = fleet.node(spot=True)
    assert neb.things[node.outputs["id"]].spec.HasField("preemptible")
    fleet.provider._nodes.taken(node)
    neb.preempt(node.outputs["id"])
    seen = fleet.provider._nodes.readiness([node])["gpu-0"].readiness
    assert (seen.state, seen.reason) == (NodeState.FAILED, "Nebius took it back")
    fleet.delete(node)
    assert neb.empty()


def test_a_network_of_ones_own(neb: Judged, tmp_path: Path) -> None:
    network = replace(
        fleet_of(neb, tmp_path).provider._account.config.network,
        subnets={REGION: SUBNET},
        security_groups=("vpcsecuritygroup-1",),
        public_ip=False,
    )
    node = fleet_of(neb, tmp_path, network=network).node()
    (interface,) = neb.things[node.outputs["id"]].spec.network_interfaces
    assert [group.id for group in interface.security_groups] == ["vpcsecuritygroup-1"]
    assert not interface.HasField("public_ip_address")
    assert "public_address" not in node.outputs
    assert not [asked for asked in neb.asked if "SubnetService" in asked.line]


# ------------------------------------------------------------------------------------- clusters

H100 = "gpu-h100-sxm_8gpu-128vcpu-1600gb"


def clustered(neb: Judged) -> list[str]:
    """The GPU cluster of each instance that is not going."""
    return [one.spec.gpu_cluster.id for one in neb.of("Instance")]


@pytest.mark.parametrize("lost", [True, False])
def test_nodes_of_a_cluster_are_on_one_fabric(fleet: Fleet, neb: Judged, lost: bool) -> None:
    neb.faults = [Fault(line="GpuClusterService/Create")] if lost else []
    nodes = [fleet.node(name, instance_type=H100, placement="cluster") for name in ("gpu-0", "gpu-1")]
    (cluster,) = neb._all("GpuCluster")
    assert cluster.spec.infiniband_fabric == FABRIC
    assert clustered(neb) == [cluster.metadata.id] * 2
    fleet.delete(nodes[0])
    assert neb._all("GpuCluster")
    fleet.delete(nodes[1])
    assert neb.empty()


def test_a_type_without_a_fabric_is_in_no_cluster(fleet: Fleet, neb: Judged) -> None:
    fleet.delete(fleet.node(placement="cluster"))
    assert not [asked for asked in neb.asked if "GpuCluster" in asked.line]


def test_a_launch_without_capacity_leaves_no_cluster(fleet: Fleet, neb: Judged) -> None:
    neb.stock["gpu-h100-sxm"] = 0
    with pytest.raises(PermanentError) as raised:
        fleet.node(instance_type=H100, placement="cluster")
    assert raised.value.kind is PermanentKind.NO_CAPACITY
    fleet.node()  # whose create comes after the end of the other one
    assert len(neb.of("Instance")) == 1


def test_a_cluster_that_went_meanwhile_is_made_again(fleet: Fleet, neb: Judged) -> None:
    fleet.node(instance_type=H100, placement="cluster")
    for made in (*neb.ids("Instance"), *(one.metadata.id for one in neb._all("GpuCluster"))):
        del neb.things[made]
    neb._placed.clear()
    fleet.node("gpu-1", instance_type=H100, placement="cluster")
    (cluster,) = neb._all("GpuCluster")
    assert clustered(neb) == [cluster.metadata.id]


@pytest.mark.parametrize("given", ["mine", "id", "off"])
def test_a_cluster_of_ones_own(neb: Judged, tmp_path: Path, given: str) -> None:
    metadata = messages()("common.v1.ResourceMetadata", parent_id=PROJECT, name="mine")
    spec = messages()("compute.v1.GpuClusterSpec", infiniband_fabric=FABRIC)
    cluster = neb._new("GpuCluster", metadata, spec)
    neb.things[cluster.metadata.id] = cluster
    options = {"project": PROJECT, "placement_group": cluster.metadata.id if given == "id" else given}
    fleet = fleet_of(neb, tmp_path, options=options)
    node = fleet.node(instance_type=H100, placement="cluster")
    assert clustered(neb) == ["" if given == "off" else cluster.metadata.id]
    fleet.delete(node)
    assert [one.metadata.name for one in neb._all("GpuCluster")] == ["mine"]


def test_a_fabric_that_nobody_names_is_asked_for(neb: Judged, tmp_path: Path) -> None:
    denied = neb.refusal("PERMISSION_DENIED", "no", "PermissionDenied", permission_denied={}).answer
    neb.faults = [Fault(line="ResourceAdvice", answer=denied, done=False, times=9)]
    with pytest.raises(PermanentError, match="does not say which fabric") as raised:
        fleet_of(neb, tmp_path).node(instance_type=H100, placement="cluster")
    assert "`options: {fabric: fabric-…}`" in str(raised.value.hint)
    assert neb.empty()
    options = {"project": PROJECT, "fabric": FABRIC}
    fleet_of(neb, tmp_path, options=options).node(instance_type=H100, placement="cluster")
    assert len(neb._all("GpuCluster")) == 1


# ------------------------------------------------------------------------------------- refusals


def test_refusals_are_told_apart(fleet: Fleet, neb: Judged) -> None:
    """All are RESOURCE_EXHAUSTED, and one of them leaves an instance with a disk."""
    neb.stock["gpu-l40s"] = 0
    with pytest.raises(PermanentError, match="not enough resources") as raised:
        fleet.node()
    assert raised.value.kind is PermanentKind.NO_CAPACITY
    assert neb.empty()
    neb.quota["gpu-l40s"] = 0
    with pytest.raises(PermanentError, match=r"gpu\.l40s is limited to 0, 1 asked") as raised:
        fleet.node()
    assert raised.value.kind is PermanentKind.QUOTA
    violation = {"quota": "compute.instance.count", "limit": "5", "requested": "6"}
    detail = {"violations": [violation]}
    count = neb.refusal("RESOURCE_EXHAUSTED", "too many", "QuotaFailure", quota_failure=detail).answer
    neb.faults = [Fault(line="InstanceService/Create", answer=count, done=False)]
    with pytest.raises(PermanentError) as raised:
        fleet.node()
    assert raised.value.kind is PermanentKind.INSTANCES
    neb.pace = Pace(neb.clock, 0, 1)
    with pytest.raises(TransientError) as late:
        fleet.provider.inventory()
    assert late.value.kind is TransientKind.THROTTLED


def test_a_quota_that_an_operation_meets_is_no_lack_of_capacity(
    fleet: Fleet, neb: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = neb.refusal

    def refusal(status: str, message: str, code: str, retry: str = "NOTHING", **details: Any) -> Any:
        if code != "NotEnoughResources":
            return real(status, message, code, retry, **details)
        violation = {"quota": "compute.disk.count", "limit": "1", "requested": "2"}
        return real(status, "limit", "QuotaFailure", quota_failure={"violations": [violation]})

    monkeypatch.setattr(neb, "refusal", refusal)
    neb.stock["gpu-l40s"] = 0
    with pytest.raises(PermanentError, match=r"disk\.count is limited to 1") as raised:
        fleet.node()
    assert raised.value.kind is PermanentKind.QUOTA
    assert neb.empty()


def test_what_an_update_ends_with_is_told(fleet: Fleet, neb: Judged) -> None:
    """An operation that fails later is a fault of what began it."""
    volume = fleet.volume()
    violation = {"quota": "compute.disk.size.network-ssd", "limit": "1", "requested": "9"}
    detail = {"violations": [violation]}
    refused = neb.refusal("RESOURCE_EXHAUSTED", "limit", "QuotaFailure", quota_failure=detail)

    def fail(asked: Asked) -> Answer | None:
        if asked.line.endswith("DiskService/Update"):
            status, operation = neb.served(asked)
            neb._end(neb.operations[operation.id], refused)
            return status, operation
        return None

    with Way(neb, fail) as way, pytest.raises(PermanentError, match="network-ssd is limited") as raised:
        provider(way, Path()).update(volume, "t", {**volume.inputs, "size": "20GB"})
    assert raised.value.kind is PermanentKind.QUOTA


@pytest.mark.parametrize("image", ["none", "computeimage-none"])
def test_an_unknown_image_is_the_users_mistake(neb: Judged, tmp_path: Path, image: str) -> None:
    if image != "none":
        missing = neb.missing(image).answer
        neb.faults = [Fault(line="InstanceService/Create", answer=missing, done=False)]
    with pytest.raises(PermanentError, match="not found") as raised:
        fleet_of(neb, tmp_path, image={"*": image}).node()
    assert raised.value.kind is PermanentKind.INVALID
    assert image in str(raised.value.hint)


def test_odd_wishes_are_refused_before_they_are_sent(fleet: Fleet, neb: Judged) -> None:
    for make, words in (
        (lambda: fleet.node(instance_type="gpu-l40s"), "PLATFORM_PRESET"),
        (lambda: fleet.node(tags={"Ä": "b"}), "cannot be a label"),
        (lambda: fleet.node(tags={"fleetform_owner": "b"}), "cannot be a label"),
        (lambda: fleet.node(tags={f"key-{number}": "x" * 60 for number in range(64)}), "too much data"),
        (lambda: fleet.volume(volume_type="floppy"), "no type of disk"),
    ):
        with pytest.raises(PermanentError, match=words) as raised:
            make()
        assert raised.value.kind is PermanentKind.INVALID
    assert not [asked for asked in neb.asked if asked.line.endswith("/Create")]


# --------------------------------------------------------------------------------------------- logins


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def pem(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def written(key: rsa.RSAPrivateKey) -> str:
    about = {"type": "JWT", "alg": "RS256", "kid": KEY_ID, "iss": SERVICE_ACCOUNT, "sub": SERVICE_ACCOUNT}
    return json.dumps({"subject-credentials": {**about, "private-key": pem(key)}})


@pytest.mark.parametrize("how", ["text", "file", "profile", "profile's file", "sky"])
def test_a_service_account_logs_in(
    neb: Judged, tmp_path: Path, key: rsa.RSAPrivateKey, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """As Nebius' own tools do, or by a variable of the backend's."""
    monkeypatch.delenv("NEBIUS_IAM_TOKEN")
    neb.public_key, neb.tokens = key.public_key(), {}
    folder = tmp_path / "home" / ".nebius"
    more: dict[str, Any] = {}
    folder.mkdir(parents=True)
    (tmp_path / "key.json").write_text(written(key))
    (tmp_path / "key.pem").write_text(pem(key))
    account_ = f"auth-type: service account, service-account-id: {SERVICE_ACCOUNT}, public-key-id: {KEY_ID}"
    profile = ""
    if how in ("text", "file"):
        monkeypatch.setenv("MY_KEY", written(key) if how == "text" else str(tmp_path / "key.json"))
        more = {"credentials": {"key": "MY_KEY"}}
    elif how == "sky":
        (folder / "credentials.json").write_text(written(key))
    elif how == "profile":
        profile = f"{{{account_}, private-key-file-path: {tmp_path}/key.pem, parent-id: {PROJECT}}}"
        more = {"options": {}}
    else:
        path = f"service-account-credentials-file-path: {tmp_path}/key.json"
        profile = f"{{auth-type: service account, {path}}}"
        monkeypatch.setenv("NEBIUS_PROFILE", "mine")
    if profile:
        names = f"default: {'mine' if how == 'profile' else 'other'}\n"
        (folder / "config.yaml").write_text(f"{names}profiles:\n  mine: {profile}\n")
    found = provider(neb, tmp_path, **more)
    assert found.offers()
    assert len([asked for asked in neb.asked if asked.line.endswith("TokenExchangeService/Exchange")]) == 1
    (token_,) = neb.tokens
    assert token_ not in found._account.scrub(f"x {token_}")
    for line in pem(key).splitlines()[1:-1]:
        assert line not in found._account.scrub(f"x {line}")


def test_a_login_that_is_not_there_says_where_it_was_sought(
    neb: Judged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NEBIUS_IAM_TOKEN")
    folder = tmp_path / "home" / ".nebius"
    with pytest.raises(PermanentError, match="NEBIUS_IAM_TOKEN is not set") as raised:
        provider(neb, tmp_path).offers()
    assert "`credentials: {key: " in str(raised.value.hint)
    folder.mkdir(parents=True)
    for text, words in (
        ("profiles: {default: {auth-type: federation}}", "logs in with a browser"),
        ("profiles: {}", "has no profile"),
        ("[", "has no profile"),
        ("profiles: {default: {auth-type: service account}}", "cannot be read"),
    ):
        (folder / "config.yaml").write_text(text)
        with pytest.raises(PermanentError, match=words) as raised:
            provider(neb, tmp_path).offers()
        assert raised.value.kind is PermanentKind.AUTH


def test_a_token_is_not_shown(fleet: Fleet, neb: Judged) -> None:
    quoted = neb.refusal("INVALID_ARGUMENT", f"no, {KEY}", "BadRequest").answer
    neb.faults = [Fault(line="List", answer=quoted, done=False)]
    with pytest.raises(PermanentError) as raised:
        fleet.provider.inventory()
    assert KEY not in raised.value.summary
    assert "***" in raised.value.summary


# ------------------------------------------------------------------------------------ nothing twice


def once(neb: Judged, node: Record, volume: Record) -> None:
    assert neb.ids("Instance") == [node.outputs["id"]]
    assert neb.ids("Disk") == [volume.outputs["id"]]


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("line", ["Instance.*/Create", "Disk.*/Create", "Instance.*/Update", "Disk.*/Update"])
def test_a_lost_request_makes_nothing_twice(fleet: Fleet, neb: Judged, line: str, done: bool) -> None:
    neb.faults = [Fault(line=line, done=done)]
    volume, node = fleet.volume(), fleet.node()
    held = fleet.attach(node, volume)
    assert not neb.faults
    once(neb, node, volume)
    assert (neb.made("Instance"), neb.made("Disk")) == (1, 1)
    for record in (held, volume, node):
        fleet.delete(record)
    assert neb.empty()


@pytest.mark.parametrize("kind", ["Instance", "Disk"])
def test_what_is_listed_late_is_not_made_again(neb: Judged, tmp_path: Path, kind: str) -> None:
    """Its name is taken."""
    lists: list[Asked] = []

    def late(asked: Asked) -> Answer | None:
        if not asked.line.endswith(f"{kind}Service/List"):
            return None
        lists.append(asked)
        status, answer = neb.served(asked)
        if len(lists) < 6:
            answer.items.clear()
        return status, answer

    neb.faults = [Fault(line=f"{kind}Service/Create")]
    with Way(neb, late) as way:
        fleet = fleet_of(way, tmp_path)
        made = fleet.node() if kind == "Instance" else fleet.volume()
    assert neb.ids(kind) == [made.outputs["id"]]
    assert len([asked for asked in neb.asked if asked.line.endswith(f"{kind}Service/Create")]) > 1
    assert neb.made(kind) == 1


def test_pages_shift_while_they_are_read(fleet: Fleet, neb: Judged, tmp_path: Path) -> None:
    """One volume goes after it was read, another comes: none of those that stay is missed."""
    neb.page = 2
    made = [fleet.volume(f"data-{number}") for number in range(5)]
    ids = sorted(record.outputs["id"] for record in made)
    shifted: list[str] = []

    def shift(asked: Asked) -> Answer | None:
        if asked.line.endswith("DiskService/List"):
            asked.body.page_size = 2
        if asked.line.endswith("DiskService/List") and asked.body.page_token and not shifted:
            shifted.append(ids[0])
            neb.things["computedisk-new"] = neb.things.pop(ids[0])
            neb.things["computedisk-new"].metadata.id = "computedisk-zz"
            neb.things["computedisk-new"].metadata.labels.clear()
        return None

    with Way(neb, shift) as way:
        found = provider(way, tmp_path).inventory()
    assert shifted
    assert {thing.outputs["id"] for thing in found} >= set(ids[1:])


def test_pages_without_an_end_are_a_fault(fleet: Fleet, neb: Judged, tmp_path: Path) -> None:
    def turn(asked: Asked) -> Answer | None:
        if not asked.line.endswith("InstanceService/List"):
            return None
        return 200, messages()("compute.v1.ListInstancesResponse", next_page_token="again")

    with Way(neb, turn) as way, pytest.raises(TransientError, match="leads back"):
        provider(way, tmp_path).inventory()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_nothing_is_lost_or_made_twice(tmp_path: Path, seed: int) -> None:
    """A command, a request or its answer is lost, or a request is carried out twice, where a seed says so;
    the next command goes on. In the end all is there once, and then nothing is.
    """
    luck = random.Random(seed)
    state = {"on": True}

    class KilledError(BaseException):
        """The command's end."""

    def happens(asked: Asked) -> Answer | None:
        chance = luck.random() if state["on"] else 1.0
        if chance < 0.08:
            return LOST
        if chance < 0.2:
            neb.served(asked)
            return LOST
        if chance < 0.26:
            neb.served(asked)  # and once more
        return None

    def until_done(step: Callable[[Fleet], Any]) -> Any:
        while True:
            more: dict[str, Any] = {}
            if luck.random() < 0.3:
                left = iter(range(luck.randrange(1, 20)))

                def fence(left: Iterator[int] = left) -> None:
                    if next(left, None) is None:
                        raise KilledError

                more = {"fence": fence}
            try:
                return step(fleet_of(way, tmp_path, **more))
            except KilledError:
                continue

    big = {"instance_type": H100, "placement": "cluster"} if seed % 2 else {}
    with Judged(Clock(tick=7.0)) as neb, Way(neb, happens) as way:
        volume, node = until_done(lambda f: f.volume()), until_done(lambda f: f.node(**big))
        held = until_done(lambda f: f.attach(node, volume))
        once(neb, node, volume)
        assert len(neb._all("GpuCluster")) == seed % 2
        assert (neb.made("Instance"), neb.made("Disk")) == (1, 1)
        for record in (held, volume, node):
            until_done(partial(Fleet.delete, record=record))
        assert neb.empty()
        state["on"] = False
        assert fleet_of(way, tmp_path).provider.inventory() == ()


# ------------------------------------------------------------------------------------- the line


def test_the_fence_is_asked_last(fleet: Fleet, neb: Judged, tmp_path: Path, monkeypatch: Any) -> None:
    """Once the channel is connected: a command that lost its lock meanwhile sends nothing."""
    steps: list[str] = []
    real = Link._connect

    def connect(link: Link, timeout: int) -> None:
        real(link, timeout)
        steps.append("connected")

    def fence() -> None:
        steps.append("asked")
        if len(steps) == 3:
            raise PermanentError(PermanentKind.CONFLICT, "the lock is another's")

    monkeypatch.setattr(Link, "_connect", connect)
    count = len(neb.asked)
    with pytest.raises(PermanentError, match="the lock is another's"):
        provider(neb, tmp_path, fence=fence).inventory()
    assert steps == ["asked", "connected", "asked"]
    assert len(neb.asked) == count


def test_certificates_are_checked(
    tmp_path: Path, key: rsa.RSAPrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    start = datetime.now(UTC) - timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, start, start + timedelta(days=2))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate = builder.sign(key, SHA256()).public_bytes(Encoding.PEM)
    (tmp_path / "ca.pem").write_bytes(certificate)
    neb = Judged(Clock(tick=7.0))
    login = grpc.ssl_server_credentials([(pem(key).encode(), certificate)])
    port = neb._server.add_secure_port("localhost:0", login)
    with neb:
        endpoint = f"https://localhost:{port}"
        with pytest.raises(TransientError, match="certificate is not trusted"):
            provider(neb, tmp_path, endpoint=endpoint).inventory()
        assert not neb.asked
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        assert provider(neb, tmp_path, endpoint=endpoint).inventory() == ()


def test_a_server_that_comes_back_is_found(tmp_path: Path) -> None:
    """By itself, gRPC would wait longer from try to try."""
    with Judged(Clock(tick=7.0)) as neb:
        found, port = provider(neb, tmp_path), neb.address
        assert found.inventory() == ()
    with pytest.raises(TransientError):
        found.inventory()  # the channel may not have seen yet that its server went
    with pytest.raises(TransientError, match="no connection") as raised:
        found.inventory()
    assert raised.value.kind is TransientKind.NOT_SENT
    again = Judged(Clock(tick=7.0))
    again._server.add_insecure_port(port)
    with again:
        assert found.inventory() == ()


HOSTILE = int(os.environ.get("FLEETFORM_HOSTILE", "400"))
"""How many odd answers are tried."""


@pytest.mark.slow
def test_any_answer_is_read_or_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are changed, cut, repeated or put in another's place; errors have odd codes and details."""
    monkeypatch.setattr(account, "PATIENCE", 0.02)
    odd, count, luck = {"on": False}, Counter[str](), random.Random(7)
    older: list[bytes] = [b""]

    def changed(data: bytes) -> bytes:
        parts = bytearray(data)
        for _ in range(luck.randrange(1, 6)):
            at = luck.randrange(len(parts) + 1)
            match luck.randrange(5):
                case 0:
                    parts[at : at + 1] = bytes([luck.randrange(256)])
                case 1:
                    del parts[at : at + luck.randrange(1, 30)]
                case 2:
                    parts[at:at] = parts[max(0, at - luck.randrange(1, 60)) : at]
                case 3:
                    parts[at:at] = luck.randbytes(luck.randrange(1, 9))
                case _:
                    return luck.choice(older)
        return bytes(parts)

    def happens(asked: Asked) -> Answer | None:
        if not odd["on"] or luck.random() < 0.4:
            return None
        data = behind.served(asked)[1].SerializeToString()
        older.append(data)
        del older[:-50]
        count["answers"] += 1
        if luck.random() < 0.2:
            details = messages()["google.rpc.Status"](code=luck.randrange(1, 17), message="odd")
            details.details.add(type_url="x/nebius.common.v1.ServiceError", value=changed(data[:200]))
            return details.code, details
        return 200, Odd(changed(data))

    with Judged(Clock(tick=7.0)) as behind, Way(behind, happens) as way:
        fleet = fleet_of(way, tmp_path)
        volume, node = fleet.volume(), fleet.node(instance_type=H100, placement="cluster")
        held = fleet.attach(node, volume)
        odd["on"] = True
        number = 0
        while count["answers"] < HOSTILE:
            number += 1
            new = Record(address=Address("node", f"n-{number}"), backend="neb", inputs=node.inputs)
            found = provider(way, tmp_path)
            calls: list[Callable[[], Any]] = [
                found.inventory,
                found.offers,
                partial(found.find, node.address, token("lineage-1", node.address, 1, None)),
                partial(found.create, new.address, token("lineage-1", new.address, 1, None), new.inputs, {}),
                partial(found.update, volume, "t", {**volume.inputs, "tags": {"a": str(number)}}),
                partial(found.delete, new),
                partial(found.recall, [node, volume, held]),
                partial(type(found).readiness, found, [node]),
            ]
            try:
                luck.choice(calls)()
            except (TransientError, PermanentError) as error:
                count[str(error.kind)] += 1
            else:
                count["taken"] += 1
    assert count["taken"] > HOSTILE // 50
    assert count[str(TransientKind.AMBIGUOUS)] > HOSTILE // 50


# ------------------------------------------------------------------------------------- the command


@pytest.mark.slow
def test_the_command_takes_the_next_offer_and_destroys(neb: Judged, tmp_path: Path) -> None:
    """The cheaper type is offered, and there is no capacity for it."""
    project, env = Project(tmp_path), {"NEBIUS_IAM_TOKEN": KEY}
    neb.stock["gpu-l40s"] = 0
    project.declare(
        {
            "type": "backend",
            "name": "neb",
            "driver": "nebius",
            "regions": [REGION],
            "endpoint": f"http://{neb.address}",
            "image": FAMILY,
            "options": {"project": PROJECT},
        },
        {
            "type": "fleet",
            "name": "gpu",
            "backends": ["neb"],
            "nodes": 2,
            "placement": "cluster",
            "instance_types": [L40S, H100],
            "fallback": "any",
            "resources": {"gpu": "1.."},
            "prevent_destroy": False,
        },
        {
            "type": "volume",
            "name": "data",
            "backend": "neb",
            "region": REGION,
            "size": "3GB",
            "prevent_destroy": False,
        },
    )
    project.apply(env=env)
    creates = [asked.body for asked in neb.asked if asked.line.endswith("InstanceService/Create")]
    assert {one.spec.resources.platform for one in creates} == {"gpu-l40s", "gpu-h100-sxm"}
    (cluster,) = neb._all("GpuCluster")
    assert clustered(neb) == [cluster.metadata.id] * 2
    assert [disk.status.size_bytes for disk in neb.of("Disk")] == [3 * 2**30]
    assert project.plan(env=env)["actions"] == []
    project.run("destroy", "--auto-approve", env=env)
    assert neb.empty()
    assert KEY not in (tmp_path / ".fleetform" / "state.db").read_bytes().decode("latin-1")
