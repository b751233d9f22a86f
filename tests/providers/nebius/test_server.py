"""The stand-in for Nebius over gRPC, with the messages of the package `nebius`."""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

REASON = "the packages nebius and grpcio are not here"
grpc = pytest.importorskip("grpc", reason=REASON, exc_type=ImportError)
pytest.importorskip("tests.providers.nebius.server", reason=REASON, exc_type=ImportError)

from tests.providers.cloud.stand_in import Fault, Pace  # noqa: E402
from tests.providers.cloud.web import Answer, Asked  # noqa: E402
from tests.providers.nebius.messages import messages, plain  # noqa: E402
from tests.providers.nebius.server import (  # noqa: E402
    FABRIC,
    FAMILY,
    KEY_ID,
    PROJECT,
    SERVICE_ACCOUNT,
    SUBNET,
    TENANT,
    Nebius,
)

GIB = 2**30
DISK = {"size_gibibytes": 100, "type": "NETWORK_SSD"}
BOOT = {"size_gibibytes": 50, "type": "NETWORK_SSD", "source_image_family": {"image_family": FAMILY}}
INTERFACE = {"subnet_id": SUBNET, "name": "eth0", "ip_address": {}, "public_ip_address": {}}


class Judged(Nebius):
    """Its answers keep to the constraints of their own messages."""

    def carried_out(self, asked: Asked) -> Answer:
        answer = super().carried_out(asked)
        if answer[0] == 200:
            assert messages().violations(answer[1]) == []
        return answer


class Client:
    def __init__(self, cloud: Nebius, channel: Any) -> None:
        self.cloud, self._channel = cloud, channel
        self.token = "static-token"

    def call(self, path: str, request: Any, **headers: str) -> Any:
        """The answer of a method, `compute.v1.InstanceService/Get`."""
        service, _, name = path.partition("/")
        method = messages().pool.FindServiceByName(f"nebius.{service}").methods_by_name[name]
        metadata = [("authorization", f"Bearer {self.token}")]
        metadata += [(key.replace("_", "-"), text) for key, text in headers.items()]
        ask = self._channel.unary_unary(
            f"/nebius.{service}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=messages()[method.output_type.full_name].FromString,
        )
        return ask(request, timeout=10, metadata=metadata)

    def ask(self, path: str, headers: Any = None, /, **fields: Any) -> Any:
        service, _, name = path.partition("/")
        method = messages().pool.FindServiceByName(f"nebius.{service}").methods_by_name[name]
        request = messages()(method.input_type.full_name.removeprefix("nebius."), **fields)
        return self.call(path, request, **(headers or {}))

    def refused(self, path: str, headers: Any = None, /, **fields: Any) -> tuple[str, dict[str, Any]]:
        """The name of gRPC's code, and what `ServiceError` says."""
        with pytest.raises(grpc.RpcError) as caught:
            self.ask(path, headers, **fields)
        return self.details_of(caught.value)

    def details_of(self, error: Any) -> tuple[str, dict[str, Any]]:
        trailers = dict(error.trailing_metadata() or ())
        status = messages()["google.rpc.Status"].FromString(trailers["grpc-status-details-bin"])
        return error.code().name, service_error(status)

    def done(self, path: str, headers: Any = None, /, seconds: float = 60, **fields: Any) -> Any:
        """An operation after so many seconds."""
        operation = self.ask(path, headers, **fields)
        assert not operation.HasField("status")
        self.cloud.clock.advance(seconds)
        return self.ask("common.v1.OperationService/Get", id=operation.id)

    def free(self) -> int:
        """How many more L40S instances there are."""
        advice = self.ask("capacity.v1.ResourceAdviceService/List", parent_id=TENANT).items
        one = next(one for one in advice if one.spec.compute_instance.platform == "gpu-l40s")
        return int(one.status.on_demand.available)

    def make(self, kind: str, name: str, spec: dict[str, Any], **labels: str) -> Any:
        """A new disk, filesystem or instance."""
        metadata = {"parent_id": PROJECT, "name": name, "labels": labels}
        operation = self.done(f"compute.v1.{kind}Service/Create", metadata=metadata, spec=spec)
        assert operation.status.code == 0, operation
        return self.ask(f"compute.v1.{kind}Service/Get", id=operation.resource_id)


def service_error(status: Any) -> dict[str, Any]:
    error = messages()("common.v1.ServiceError")
    assert status.details[0].Unpack(error)
    return plain(error)


def instance(boot: str, **more: Any) -> dict[str, Any]:
    return {
        "resources": {"platform": "gpu-l40s", "preset": "1gpu-8vcpu-32gb"},
        "network_interfaces": [INTERFACE],
        "boot_disk": {"attach_mode": "READ_WRITE", "existing_disk": {"id": boot}},
        "cloud_init_user_data": "#cloud-config\n",
        **more,
    }


def managed(name: str) -> dict[str, Any]:
    return {"attach_mode": "READ_WRITE", "managed_disk": {"name": name, "spec": BOOT}}


def attached(disk: str, device: str = "") -> dict[str, Any]:
    return {"attach_mode": "READ_WRITE", "existing_disk": {"id": disk}, "device_id": device}


@pytest.fixture
def client() -> Iterator[Client]:
    with Judged() as cloud, grpc.insecure_channel(cloud.address) as channel:
        yield Client(cloud, channel)


def test_a_life_of_a_node_and_a_volume(client):
    project = client.ask("iam.v1.ProjectService/Get", id=PROJECT)
    assert (project.metadata.parent_id, project.status.region) == (TENANT, "eu-north1")
    platforms = client.ask("compute.v1.PlatformService/List", parent_id=PROJECT).items
    gpus = {one.metadata.name: one.spec.presets[0].resources.gpu_count for one in platforms}
    assert gpus == {"cpu-d3": 0, "gpu-h100-sxm": 8, "gpu-l40s": 1}
    advice = client.ask("capacity.v1.ResourceAdviceService/List", parent_id=TENANT).items
    free = {one.spec.compute_instance.platform: one.status.on_demand.available for one in advice}
    assert free == {"cpu-d3": 50, "gpu-h100-sxm": 4, "gpu-l40s": 10}
    assert client.ask("compute.v1.ImageService/GetLatestByFamily", image_family=FAMILY).metadata.id
    assert client.ask("vpc.v1.SubnetService/List", parent_id=PROJECT).items[0].metadata.id == SUBNET

    boot = client.make("Disk", "n-0-boot", BOOT).metadata.id
    disk = client.make("Disk", "data", DISK, owner="me").metadata.id
    made = client.make("Instance", "n-0", instance(boot), owner="me")
    assert plain(made.status)["state"] == "RUNNING"
    assert made.metadata.labels["owner"] == "me"
    address = made.status.network_interfaces[0]
    assert (address.ip_address.address, address.public_ip_address.address) == ("10.0.0.1/32", "198.18.0.1/32")
    assert [one.id for one in made.status.disk_attachments] == [boot]

    change = {"metadata": {"id": made.metadata.id, "parent_id": PROJECT}}
    attach = {**change, "spec": {"secondary_disks": [attached(disk, "data")]}}
    assert client.done("compute.v1.InstanceService/Update", **attach).status.code == 0
    assert client.ask("compute.v1.DiskService/Get", id=disk).status.read_write_attachment == made.metadata.id
    assert client.refused("compute.v1.DiskService/Delete", id=disk)[0] == "FAILED_PRECONDITION"

    assert client.done("compute.v1.InstanceService/Update", **change, spec={}).status.code == 0
    assert len(client.ask("compute.v1.InstanceService/Get", id=made.metadata.id).spec.secondary_disks) == 1
    mask = {"x_resetmask": "spec.secondary_disks"}
    assert client.done("compute.v1.InstanceService/Update", mask, **change, spec={}).status.code == 0
    assert client.ask("compute.v1.DiskService/Get", id=disk).status.read_write_attachment == ""

    bigger = {"metadata": {"id": disk, "parent_id": PROJECT}, "spec": {"size_gibibytes": 200}}
    assert client.done("compute.v1.DiskService/Update", **bigger).status.code == 0
    grown = client.ask("compute.v1.DiskService/Get", id=disk)
    assert (grown.status.size_bytes, grown.metadata.labels["owner"]) == (200 * GIB, "me")
    smaller = {"metadata": {"id": disk, "parent_id": PROJECT}, "spec": {"size_gibibytes": 10}}
    assert client.refused("compute.v1.DiskService/Update", **smaller)[0] == "INVALID_ARGUMENT"

    assert client.done("compute.v1.InstanceService/Delete", id=made.metadata.id).status.code == 0
    code, error = client.refused("compute.v1.InstanceService/Get", id=made.metadata.id)
    assert (code, error["code"]) == ("NOT_FOUND", "ResourceNotFound")
    for one in (boot, disk):
        assert client.done("compute.v1.DiskService/Delete", id=one).status.code == 0
    assert list(client.ask("compute.v1.DiskService/List", parent_id=PROJECT).items) == []


def test_a_cluster_and_a_filesystem(client):
    fabric = {"metadata": {"parent_id": PROJECT, "name": "train"}, "spec": {"infiniband_fabric": FABRIC}}
    made = client.ask("compute.v1.GpuClusterService/Create", **fabric)
    assert made.HasField("status")
    cluster = made.resource_id
    shared = client.make("Filesystem", "shared", DISK).metadata.id
    mount = {"attach_mode": "READ_WRITE", "mount_tag": "shared", "existing_filesystem": {"id": shared}}
    big = {"platform": "gpu-h100-sxm", "preset": "8gpu-128vcpu-1600gb"}
    more = {"resources": big, "gpu_cluster": {"id": cluster}, "filesystems": [mount]}
    nodes = [
        client.make("Instance", name, {**instance(""), **more, "boot_disk": managed(f"{name}-boot")})
        for name in ("n-0", "n-1")
    ]
    assert [len(node.status.infiniband_topology_path.path) for node in nodes] == [3, 3]
    status = client.ask("compute.v1.GpuClusterService/Get", id=cluster).status
    assert list(status.instances) == [node.metadata.id for node in nodes]
    assert client.refused("compute.v1.GpuClusterService/Delete", id=cluster)[0] == "FAILED_PRECONDITION"
    holders = client.ask("compute.v1.FilesystemService/Get", id=shared).status.read_write_attachments
    assert list(holders) == [node.metadata.id for node in nodes]
    for node in nodes:
        client.done("compute.v1.InstanceService/Delete", id=node.metadata.id)
    client.done("compute.v1.GpuClusterService/Delete", id=cluster)
    client.done("compute.v1.FilesystemService/Delete", id=shared)
    assert client.cloud.things == {}

    alone = {**instance(""), "gpu_cluster": {"id": "no"}, "boot_disk": managed("boot")}
    metadata = {"parent_id": PROJECT, "name": "n-2"}
    assert (
        client.refused("compute.v1.InstanceService/Create", metadata=metadata, spec=alone)[0] == "NOT_FOUND"
    )


def test_names_are_unique_and_keys_repeat_an_operation(client):
    new = {"metadata": {"parent_id": PROJECT, "name": "data"}, "spec": DISK}
    key = {"x_idempotency_key": "7f95c54a-ee0e-4f8c-a64c-c9e0aac605a0"}
    client.cloud.faults = [Fault(line="DiskService/Create")]
    with pytest.raises(grpc.RpcError) as caught:
        client.ask("compute.v1.DiskService/Create", key, **new)
    assert caught.value.code().name == "UNAVAILABLE"
    repeated = client.ask("compute.v1.DiskService/Create", key, **new)
    name = {"parent_id": PROJECT, "name": "data"}
    assert client.ask("compute.v1.DiskService/GetByName", **name).metadata.id == repeated.resource_id
    assert len(client.cloud.things) == 1
    code, error = client.refused("compute.v1.DiskService/Create", **new)
    assert (code, error["resource_already_exists"]) == (
        "ALREADY_EXISTS",
        {"resource_id": repeated.resource_id},
    )
    other = {**new, "spec": {**DISK, "size_gibibytes": 7}}
    assert client.refused("compute.v1.DiskService/Create", key, **other)[0] == "INVALID_ARGUMENT"

    lost = client.cloud.refusal("UNAVAILABLE", "try again", "Unavailable", "CALL").answer
    client.cloud.faults = [Fault(line="DiskService/Delete", answer=lost, done=False)]
    assert client.refused("compute.v1.DiskService/Delete", id=repeated.resource_id)[1]["retry_type"] == "CALL"
    assert len(client.cloud.things) == 1


def test_capacity_quota_and_rate_have_one_code_and_unlike_details(client):
    client.cloud.stock["gpu-l40s"] = 0
    new = {"metadata": {"parent_id": PROJECT, "name": "n-0"}, "spec": instance("", boot_disk=managed("boot"))}
    failed = client.done("compute.v1.InstanceService/Create", **new)
    error = service_error(failed.status)
    assert (failed.status.code, error["code"], error["retry_type"]) == (
        8,
        "NotEnoughResources",
        "UNIT_OF_WORK",
    )
    status = client.ask("compute.v1.InstanceService/Get", id=failed.resource_id).status
    assert (plain(status)["state"], status.reconciling) == ("STOPPED", False)
    history = client.ask("common.v1.OperationService/List", resource_id=failed.resource_id).operations
    assert [one.status.code for one in history] == [8]
    client.done("compute.v1.InstanceService/Delete", id=failed.resource_id)
    assert client.cloud.things == {}

    client.cloud.quota["gpu-l40s"] = 0
    code, error = client.refused("compute.v1.InstanceService/Create", **new)
    assert (code, error["code"]) == ("RESOURCE_EXHAUSTED", "QuotaFailure")
    assert error["quota_failure"]["violations"][0]["limit"] == "0"
    client.cloud.pace = Pace(client.cloud.clock, 0, 1)
    code, error = client.refused("compute.v1.InstanceService/Create", **new)
    assert (code, error["code"]) == ("RESOURCE_EXHAUSTED", "TooManyRequests")


def test_pages_are_short_and_stay_where_they_are(client):
    made = [client.make("Disk", f"d-{number}", DISK).metadata.id for number in range(5)]
    ids, token = [], ""
    while True:
        page = client.ask("compute.v1.DiskService/List", parent_id=PROJECT, page_size=2, page_token=token)
        ids += [one.metadata.id for one in page.items]
        if not token:
            client.done("compute.v1.DiskService/Delete", id=ids[0])
        token = page.next_page_token
        if not token:
            break
    assert ids == sorted(made)


def test_one_operation_at_a_time_and_a_delete_ends_the_one_that_goes_on(client):
    spec = instance("", boot_disk=managed("boot"))
    making = client.ask(
        "compute.v1.InstanceService/Create", metadata={"parent_id": PROJECT, "name": "n-0"}, spec=spec
    )
    client.cloud.clock.advance(5)
    state = client.ask("compute.v1.InstanceService/Get", id=making.resource_id).status
    assert (plain(state)["state"], state.reconciling) == ("STARTING", True)
    change = {"id": making.resource_id, "parent_id": PROJECT}
    code, error = client.refused("compute.v1.InstanceService/Update", metadata=change, spec={})
    assert (code, error["operation_conflict"]["conflicting_operation_id"]) == ("ABORTED", making.id)
    client.done("compute.v1.InstanceService/Delete", id=making.resource_id)
    ended = client.ask("common.v1.OperationService/Get", id=making.id)
    assert (ended.status.code, service_error(ended.status)["code"]) == (10, "OperationAborted")
    assert client.cloud.things == {}
    assert client.free() == 10


def test_an_update_merges_lists_by_position_and_keeps_what_is_immutable(client):
    boot, *disks = [client.make("Disk", f"d-{number}", BOOT).metadata.id for number in range(3)]
    secondary = [attached(disks[0], "first"), attached(disks[1], "second")]
    made = client.make("Instance", "n-0", instance(boot, secondary_disks=secondary)).metadata.id
    change = {"metadata": {"id": made, "parent_id": PROJECT}}
    kept = {"attach_mode": "READ_WRITE", "existing_disk": {"id": disks[1]}}
    client.done("compute.v1.InstanceService/Update", **change, spec={"secondary_disks": [kept]})
    disks_now = client.ask("compute.v1.InstanceService/Get", id=made).spec.secondary_disks
    assert [(one.existing_disk.id, one.device_id) for one in disks_now] == [(disks[1], "first")]
    other = {"spec": {"resources": {"platform": "cpu-d3"}}}
    assert client.refused("compute.v1.InstanceService/Update", **change, **other)[0] == "INVALID_ARGUMENT"


def test_what_a_preemptible_instance_costs_and_how_it_ends(client):
    spec = instance(
        "", boot_disk=managed("boot"), preemptible={"on_preemption": "STOP"}, recovery_policy="FAIL"
    )
    request = messages()("compute.v1.CreateInstanceRequest", metadata={"parent_id": PROJECT}, spec=spec)
    ask = messages()("billing.v1.EstimateBatchRequest")
    ask.resource_specs.add().spec.Pack(request)
    answer = client.call("billing.v1.CalculatorService/EstimateBatch", ask)
    costs = [(one.aggregation_unit.unit, one.general.total.cost) for one in answer.resource_costs]
    assert costs == [("hour", "0.775")]
    made = client.make("Instance", "n-0", spec).metadata.id
    client.cloud.preempt(made)
    assert plain(client.ask("compute.v1.InstanceService/Get", id=made).status)["state"] == "STOPPED"
    assert client.free() == 10


def test_logins(client):
    key = rsa.generate_private_key(65537, 2048)
    client.cloud.public_key = key.public_key()
    client.token = "no"
    assert client.refused("compute.v1.DiskService/List", parent_id=PROJECT)[0] == "UNAUTHENTICATED"

    def exchange(claims: dict[str, Any]) -> dict[str, str]:
        head = {"alg": "RS256", "kid": KEY_ID}
        signed = b".".join(
            base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (head, claims)
        )
        sign = base64.urlsafe_b64encode(key.sign(signed, padding.PKCS1v15(), SHA256())).rstrip(b"=")
        return {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "subject_token": (signed + b"." + sign).decode(),
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        }

    claims = {"iss": SERVICE_ACCOUNT, "sub": SERVICE_ACCOUNT, "exp": 2_000_000_000}
    wrong = exchange({**claims, "sub": "somebody"})
    assert client.refused("iam.v1.TokenExchangeService/Exchange", **wrong)[0] == "UNAUTHENTICATED"
    answer = client.ask("iam.v1.TokenExchangeService/Exchange", **exchange(claims))
    client.token = answer.access_token
    assert list(client.ask("compute.v1.DiskService/List", parent_id=PROJECT).items) == []
    client.cloud.clock.advance(answer.expires_in)
    assert client.refused("compute.v1.DiskService/List", parent_id=PROJECT)[0] == "UNAUTHENTICATED"


def test_the_client_of_nebius_itself_is_served(client):
    compute = importlib.import_module("nebius.api.nebius.compute.v1")
    common = importlib.import_module("nebius.api.nebius.common.v1")
    sdk = importlib.import_module("nebius.sdk")
    resolver = importlib.import_module("nebius.base.resolver")
    insecure = importlib.import_module("nebius.base.options").INSECURE

    async def grow() -> tuple[bool, str]:
        kinds = compute.DiskSpec.DiskType
        async with sdk.SDK(
            credentials="static-token",
            resolver=resolver.Constant(client.cloud.address),
            options=[(insecure, True)],
            user_agent_prefix="fleetform",
        ) as channel:
            disks = compute.DiskServiceClient(channel)
            metadata = common.ResourceMetadata(parent_id=PROJECT, name="data", labels={"owner": "me"})
            spec = compute.DiskSpec(size_gibibytes=5, type=kinds.NETWORK_SSD)
            made = await disks.create(compute.CreateDiskRequest(metadata=metadata, spec=spec))
            client.cloud.clock.advance(5)
            await made.update()
            disk = await disks.get(compute.GetDiskRequest(id=made.resource_id))
            disk.spec.size_gibibytes = 9
            await disks.update(compute.UpdateDiskRequest(metadata=disk.metadata, spec=disk.spec))
            client.cloud.clock.advance(5)
            return made.successful(), made.resource_id

    successful, made = asyncio.run(grow())
    disk = client.ask("compute.v1.DiskService/Get", id=made)
    assert (successful, disk.status.size_bytes, dict(disk.metadata.labels)) == (
        True,
        9 * GIB,
        {"owner": "me"},
    )
    sent = [asked.headers for asked in client.cloud.asked if asked.line.endswith("DiskService/Update")]
    assert "spec." in sent[0]["x-resetmask"]
    assert len(sent[0]["x-idempotency-key"]) == 36


def without(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A request without each of its fields, at any depth."""
    for name, part in fields.items():
        yield {key: one for key, one in fields.items() if key != name}
        if isinstance(part, dict):
            yield from ({**fields, name: one} for one in without(part))
        elif isinstance(part, list):
            yield from ({**fields, name: [one]} for one in without(part[0]))


def test_what_the_constraints_of_the_messages_refuse_is_refused(client):
    pytest.importorskip("protovalidate", reason="nothing reads the constraints")
    big = "x" * 32769
    spec = instance("", boot_disk=managed("boot"))
    good = {"metadata": {"parent_id": PROJECT, "name": "n-0"}, "spec": spec}
    broken = [*without(good), {**good, "spec": {**spec, "cloud_init_user_data": big}}]
    broken += [{**good, "spec": {**spec, "hostname": "A_b"}}]
    broken += [{**good, "spec": {**spec, "network_interfaces": [INTERFACE] * 9}}]
    refused = 0
    for fields in broken:
        request = messages()("compute.v1.CreateInstanceRequest", **fields)
        if messages().violations(request):
            refused += 1
            code, error = client.refused("compute.v1.InstanceService/Create", **fields)
            assert (code, error["code"]) == ("INVALID_ARGUMENT", "BadRequest"), fields
    assert refused > 15
    assert client.cloud.things == {}
