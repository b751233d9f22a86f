"""A stand-in for Nebius: platforms, advice, prices, instances, disks, filesystems and GPU clusters.

It is a gRPC server, as Nebius has nothing else: methods, metadata, deadlines and error details are gRPC's,
and a driver that was tried over JSON was not tried. Made on 30 November 2026 from the messages of
the package `nebius` (0.6.29), which it needs besides grpcio, and from the README of Nebius' API. Where
`protovalidate` is installed, requests are held against the constraints that the messages have. Open is:

- How a lack of capacity and a quota look. Here an operation fails for the one, a call is refused for the
  other, both with RESOURCE_EXHAUSTED and unlike details. An instance without capacity stays, STOPPED.
- What an `x-idempotency-key` does with another request (here: INVALID_ARGUMENT), and how long it is kept.
- Which of two operations on a thing wins (here: a delete ends what goes on; anything else is refused).

It does not: start and stop instances, make images, snapshots, networks or quotas, check labels, the rights of
a service account or the age of a JWT, or encrypt its line. No machine is behind an instance.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from concurrent import futures
from typing import Any, Self

import grpc
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from nebius.base.fieldmask import FieldKey, Mask

from tests.providers.cloud.stand_in import Clock, Pace, RefusedError, StandIn, header, route
from tests.providers.cloud.web import Answer, Asked
from tests.providers.nebius.messages import Json, messages, plain

TENANT, PROJECT, SUBNET = "tenant-e00fleet", "project-e00fleet", "vpcsubnet-e00fleet"
REGION, FABRIC, FAMILY = "eu-north1", "fabric-2", "ubuntu24.04-driverless"
SERVICE_ACCOUNT, KEY_ID = "serviceaccount-e00fleet", "publickey-e00fleet"
COMPUTE = "POST /nebius.compute.v1."
KINDS = {
    "InstanceService": "Instance",
    "DiskService": "Disk",
    "FilesystemService": "Filesystem",
    "GpuClusterService": "GpuCluster",
}
"""The services whose things are made, changed and deleted."""
_GIB = 2**30
_SERVED = 200


def platform(name: str, preset: str, gpus: int, cpus: int, memory: int, *, spot: bool = True) -> Json:
    """An item of the list of platforms, with one preset."""
    resources = {"vcpu_count": cpus, "memory_gibibytes": memory, "gpu_count": gpus}
    about = {"name": preset, "resources": resources, "allow_gpu_clustering": gpus == 8}
    quota = f"compute.instance.{'gpu' if gpus else 'non-gpu'}.{name.split('-')[1]}"
    return {
        "metadata": {"id": f"computeplatform-{name}", "parent_id": PROJECT, "name": name},
        "spec": {"presets": [about], "gpu_count_quota_type": quota, "human_readable_name": name.upper()},
        "status": {"allowed_for_preemptibles": spot},
    }


class Nebius(StandIn):
    """`with Nebius() as cloud:`, then ask `cloud.address` without TLS; requests are served one at a time."""

    def __init__(self, clock: Clock | None = None, public_key: rsa.RSAPublicKey | None = None) -> None:
        super().__init__(clock)
        self.make = messages()
        self.public_key = public_key
        """That of the service account. Without one, nobody can log in but with a token of `tokens`."""
        self.tokens = {"static-token": float("inf")}
        """When each ends."""
        self.platforms = [
            platform("cpu-d3", "4vcpu-16gb", 0, 4, 16),
            platform("gpu-l40s", "1gpu-8vcpu-32gb", 1, 8, 32),
            platform("gpu-h100-sxm", "8gpu-128vcpu-1600gb", 8, 128, 1600),
        ]
        self.stock = {"cpu-d3": 50, "gpu-l40s": 10, "gpu-h100-sxm": 4}
        """The instances that there is hardware for."""
        self.quota = {"cpu-d3": 200, "gpu-l40s": 16, "gpu-h100-sxm": 64}
        """The GPUs, or CPUs where there are none, that the project may use."""
        self.prices = {"cpu-d3": "0.1", "gpu-l40s": "1.55", "gpu-h100-sxm": "23.6"}
        """For an hour, in USD. A preemptible instance costs half."""
        self.things: dict[str, Any] = {}
        """Instances, disks, filesystems and GPU clusters by id."""
        self.operations: dict[str, Any] = {}
        self.boot, self.work = 60.0, 3.0
        """Seconds until an instance runs, and until another change is done."""
        self.page = 100
        self.pace: Pace | None = None
        """The requests that are allowed."""
        self.asked: list[Asked] = []
        """Every request, its message as `body` and its metadata as `headers`."""
        self._keys: dict[str, tuple[str, bytes, str]] = {}
        self._current: dict[str, str] = {}
        """The operation that goes on, by the thing that it changes."""
        self._placed: set[str] = set()
        """The ids of instances that have their place."""
        self._count = 0
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        self._server.add_generic_rpc_handlers(_handlers(self))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def served(self, asked: Asked) -> Answer:
        with self.clock.turn:
            self.asked.append(asked)
            return self(asked)

    # ------------------------------------------------------------------------- logins and refusals

    def refusal(
        self, status: str, message: str, code: str, retry: str = "NOTHING", **details: Any
    ) -> RefusedError:
        """`status` is that of gRPC, `code` that of Nebius; `details` is one field of `ServiceError`."""
        number = grpc.StatusCode[status].value[0]
        body = self.make["google.rpc.Status"](code=number, message=message)
        error = self.make("common.v1.ServiceError", service="compute", code=code, retry_type=retry, **details)
        body.details.add().Pack(error)
        return RefusedError(number, body)

    def bad(self, field: str, message: str) -> RefusedError:
        violations = {"violations": [{"field": field, "message": message}]}
        return self.refusal("INVALID_ARGUMENT", f"{field}: {message}", "BadRequest", bad_request=violations)

    def missing(self, thing: str) -> RefusedError:
        detail = {"resource_id": thing}
        return self.refusal("NOT_FOUND", f"{thing} not found", "ResourceNotFound", resource_not_found=detail)

    def misfit(self, thing: str, message: str) -> RefusedError:
        detail = {"resource_id": thing, "message": message}
        return self.refusal("FAILED_PRECONDITION", message, "BadResourceState", bad_resource_state=detail)

    def unknown(self, asked: Asked) -> RefusedError:
        return self.refusal("UNIMPLEMENTED", f"the stand-in has no {asked.path}", "Unimplemented")

    def admit(self, asked: Asked) -> None:
        if not asked.path.endswith("TokenExchangeService/Exchange"):
            token = header(asked, "authorization").removeprefix("Bearer ")
            if self.tokens.get(token, 0.0) <= self.clock.now():
                raise self.refusal("UNAUTHENTICATED", "the token is invalid or has ended", "Unauthenticated")
        if self.pace and not self.pace.allows():
            detail = {"violation": "requests"}
            text = "too many requests"
            raise self.refusal(
                "RESOURCE_EXHAUSTED", text, "TooManyRequests", "CALL", too_many_requests=detail
            )
        if not asked.path.endswith(
            "/Update"
        ):  # what it leaves out stays as it is: the outcome has to be whole
            self._check(asked.body)

    def _check(self, message: Message) -> None:
        for field, text in self.make.violations(message):
            raise self.bad(field, text)

    @route("POST /nebius.iam.v1.TokenExchangeService/Exchange")
    def exchange(self, asked: Asked) -> Answer:
        try:
            signed, _, signature = asked.body.subject_token.rpartition(".")
            about, claims = (json.loads(_unpacked(part)) for part in signed.split("."))
            assert self.public_key is not None
            self.public_key.verify(_unpacked(signature), signed.encode(), padding.PKCS1v15(), SHA256())
            assert (about["alg"], about.get("kid", claims.get("kid"))) == ("RS256", KEY_ID)
            assert claims["iss"] == claims["sub"] == SERVICE_ACCOUNT
            assert claims["exp"] > 0
        except (AssertionError, InvalidSignature, KeyError, ValueError) as error:
            raise self.refusal("UNAUTHENTICATED", "the JWT is invalid", "Unauthenticated") from error
        token, seconds = f"ne1{uuid.uuid4().hex}", 12 * 3600
        self.tokens[token] = self.clock.now() + seconds
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": seconds}
        return _SERVED, self.make("iam.v1.CreateTokenResponse", **answer)

    @route("POST /nebius.iam.v1.ProjectService/Get")
    def project(self, asked: Asked) -> Answer:
        if asked.body.id != PROJECT:
            raise self.missing(asked.body.id)
        metadata = {"id": PROJECT, "parent_id": TENANT, "name": "fleet"}
        return _SERVED, self.make("iam.v1.Container", metadata=metadata, spec={}, status={"region": REGION})

    # ---------------------------------------------------------------------------- what there is

    def _page(self, asked: Asked, name: str, things: list[Any], field: str = "items") -> Answer:
        """A page of a list. Its token is the place of the last thing, among all in the order of their ids."""
        ordered = sorted(things, key=lambda thing: str(getattr(thing, "id", "") or thing.metadata.id))
        ids = [str(getattr(thing, "id", "") or thing.metadata.id) for thing in ordered]
        size, token = asked.body.page_size or self.page, asked.body.page_token
        first = sum(one <= token for one in ids)
        answer = self.make[f"nebius.{name}"]()
        getattr(answer, field).extend(ordered[first : first + size])
        answer.next_page_token = ids[first + size - 1] if len(ids) > first + size else ""
        return _SERVED, answer

    @route(f"{COMPUTE}PlatformService/List")
    def list_platforms(self, asked: Asked) -> Answer:
        items = [self.make("compute.v1.Platform", **one) for one in self.platforms]
        return self._page(asked, "compute.v1.ListPlatformsResponse", items)

    @route(f"{COMPUTE}ImageService/GetLatestByFamily")
    def latest_image(self, asked: Asked) -> Answer:
        if asked.body.image_family != FAMILY:
            raise self.missing(asked.body.image_family)
        return _SERVED, self._image()

    @route(f"{COMPUTE}ImageService/Get")
    def show_image(self, asked: Asked) -> Answer:
        if asked.body.id != self._image().metadata.id:
            raise self.missing(asked.body.id)
        return _SERVED, self._image()

    def _image(self) -> Any:
        metadata = {"id": "computeimage-e00ubuntu", "parent_id": "project-e00public-images", "name": "ubuntu"}
        status = {"state": "READY", "min_disk_size_bytes": 10 * _GIB}
        source = {"bucket_name": "images", "object_name": "ubuntu"}
        spec = {"image_family": FAMILY, "cpu_architecture": "AMD64", "source_storage": source}
        return self.make("compute.v1.Image", metadata=metadata, spec=spec, status=status)

    @route("POST /nebius.vpc.v1.SubnetService/List")
    def list_subnets(self, asked: Asked) -> Answer:
        metadata = {"id": SUBNET, "parent_id": PROJECT, "name": "default-subnet"}
        spec = {"network_id": "vpcnetwork-e00fleet"}
        items = [self.make("vpc.v1.Subnet", metadata=metadata, spec=spec, status={"state": "READY"})]
        return self._page(asked, "vpc.v1.ListSubnetsResponse", items)

    @route("POST /nebius.capacity.v1.ResourceAdviceService/List")
    def list_advice(self, asked: Asked) -> Answer:
        if asked.body.parent_id != TENANT:
            raise self.missing(asked.body.parent_id)
        items = []
        for one in self.platforms:
            name, preset = one["metadata"]["name"], one["spec"]["presets"][0]
            weight = _weight(one)
            free = min(self._free(name), (self.quota[name] - self._used(name)) // weight)
            level = "HIGH" if free > 20 else "MEDIUM" if free > 5 else "LOW" if free else "LIMIT_REACHED"
            availability = {
                "data_state": "DATA_STATE_FRESH",
                "available": free,
                "limit": self.quota[name] // weight,
                "availability_level": f"AVAILABILITY_LEVEL_{level}",
                "effective_at": self.clock.text(),
            }
            details = {"platform": name, "preset": {"name": preset["name"], "resources": preset["resources"]}}
            spec = {"region": REGION, "compute_instance": details}
            spec |= {"fabric": FABRIC} if preset["allow_gpu_clustering"] else {}
            metadata = {"id": f"resourceadvice-{name}", "parent_id": TENANT}
            status = {"on_demand": availability, "preemptible": availability}
            items.append(self.make("capacity.v1.ResourceAdvice", metadata=metadata, spec=spec, status=status))
        return self._page(asked, "capacity.v1.ListResourceAdviceResponse", items)

    @route("POST /nebius.billing.v1.CalculatorService/EstimateBatch")
    def estimate(self, asked: Asked) -> Answer:
        hour = {"unit": "hour", "unit_type": "UNIT_TYPE_TIME_BASED"}
        costs = []
        for number, one in enumerate(asked.body.resource_specs):
            request = self.make[one.spec.type_url.rpartition("/")[2]]()
            if not one.spec.Unpack(request) or request.DESCRIPTOR.name != "CreateInstanceRequest":
                raise self.bad(f"resource_specs.{number}", "has no price here")
            price = float(self.prices[self._platform(request.spec)["metadata"]["name"]])
            cost = f"{price / 2 if request.spec.HasField('preemptible') else price:g}"
            costs.append(
                {"aggregation_unit": hour, "general": {"total": {"cost": cost, "cost_rounded": cost}}}
            )
        return _SERVED, self.make("billing.v1.EstimateBatchResponse", resource_costs=costs, currency="usd")

    # ------------------------------------------------------------------------------- operations

    def _begin(self, asked: Asked, thing: Any, verb: str) -> Any:
        made = f"computeoperation-e00{uuid.uuid4().hex[:20]}"
        operation = self.make["nebius.common.v1.Operation"](
            id=made, description=f"{verb} {thing.metadata.name}", created_by=SERVICE_ACCOUNT
        )
        operation.created_at.FromJsonString(self.clock.text())
        operation.resource_id = thing.metadata.id
        operation.request.Pack(asked.body)
        self.operations[made] = operation
        self._current[thing.metadata.id] = made
        thing.status.reconciling = True
        key = header(asked, "x-idempotency-key")
        if key:
            self._keys[key] = (asked.line, asked.body.SerializeToString(deterministic=True), made)
        return operation

    def _end(self, operation: Any, refused: RefusedError | None = None) -> None:
        """What an operation was refused is what it says at its end."""
        if refused:
            operation.status.CopyFrom(refused.answer[1])
        else:
            operation.status.SetInParent()
        operation.finished_at.FromJsonString(self.clock.text())
        thing = operation.resource_id
        if self._current.get(thing) == operation.id:
            del self._current[thing]
            if thing in self.things:
                self.things[thing].status.reconciling = False
        self._relate()

    def _later(self, operation: Any, seconds: float, change: Callable[[], object]) -> None:
        """Do something for an operation, unless another one has ended it meanwhile."""

        def act() -> None:
            if not operation.HasField("status"):
                try:
                    change()
                except RefusedError as refused:
                    self._end(operation, refused)

        self.clock.later(seconds, act)

    @route("POST /nebius.common.v1.OperationService/Get")
    def show_operation(self, asked: Asked) -> Answer:
        if asked.body.id not in self.operations:
            raise self.missing(asked.body.id)
        return _SERVED, self.operations[asked.body.id]

    @route("POST /nebius.common.v1.OperationService/List")
    def list_operations(self, asked: Asked) -> Answer:
        items = [one for one in self.operations.values() if one.resource_id == asked.body.resource_id]
        return self._page(asked, "common.v1.ListOperationsResponse", items, "operations")

    # ----------------------------------------------------------------------------------- things

    def _kind(self, asked: Asked, service: str) -> str:
        if service not in KINDS:
            raise self.unknown(asked)
        return KINDS[service]

    def _all(self, kind: str) -> list[Any]:
        return [thing for thing in self.things.values() if thing.DESCRIPTOR.name == kind]

    def _thing(self, kind: str, made: str) -> Any:
        if made not in self.things or self.things[made].DESCRIPTOR.name != kind:
            raise self.missing(made)
        return self.things[made]

    @route(f"{COMPUTE}{{service}}/Get")
    def show(self, asked: Asked, service: str) -> Answer:
        return _SERVED, self._thing(self._kind(asked, service), asked.body.id)

    @route(f"{COMPUTE}{{service}}/GetByName")
    def show_named(self, asked: Asked, service: str) -> Answer:
        for thing in self._all(self._kind(asked, service)):
            if (thing.metadata.parent_id, thing.metadata.name) == (asked.body.parent_id, asked.body.name):
                return _SERVED, thing
        raise self.missing(asked.body.name)

    @route(f"{COMPUTE}{{service}}/List")
    def list_things(self, asked: Asked, service: str) -> Answer:
        kind = self._kind(asked, service)
        things = [one for one in self._all(kind) if one.metadata.parent_id == asked.body.parent_id]
        return self._page(asked, f"compute.v1.List{kind}sResponse", things)

    def _repeated(self, asked: Asked) -> Any:
        """The operation that a request with the same key began."""
        line, body, made = self._keys.get(header(asked, "x-idempotency-key"), ("", b"", ""))
        if made and (line, body) != (asked.line, asked.body.SerializeToString(deterministic=True)):
            raise self.bad("x-idempotency-key", "was used for another request")
        return self.operations[made] if made else None

    @route(f"{COMPUTE}{{service}}/Create")
    def create(self, asked: Asked, service: str) -> Answer:
        operation = self._repeated(asked)
        if operation:
            return _SERVED, operation
        kind, metadata = self._kind(asked, service), asked.body.metadata
        if metadata.parent_id != PROJECT:
            raise self.refusal("PERMISSION_DENIED", f"no rights in {metadata.parent_id}", "PermissionDenied")
        for other in self._all(kind):
            if metadata.name and other.metadata.name == metadata.name:
                detail = {"resource_id": other.metadata.id}
                text = f"{metadata.name} already exists"
                raise self.refusal(
                    "ALREADY_EXISTS", text, "ResourceAlreadyExists", resource_already_exists=detail
                )
        thing = self._new(kind, metadata, asked.body.spec)
        managed = []
        if kind == "Instance":
            self._check_instance(thing)
            managed = self._managed(thing)
        elif kind != "GpuCluster":
            self._check_size(thing)
        elif thing.spec.infiniband_fabric != FABRIC:
            raise self.bad("spec.infiniband_fabric", "does not exist")
        self.things |= {one.metadata.id: one for one in (thing, *managed)}
        operation = self._begin(asked, thing, "Create")
        if kind == "Instance":
            self._launch(thing, operation)
        elif kind == "GpuCluster":
            self._end(operation)
        else:
            self._later(operation, self.work, lambda: self._ready(thing, operation))
        return _SERVED, operation

    def _new(self, kind: str, metadata: Any, spec: Any) -> Any:
        thing = self.make[f"nebius.compute.v1.{kind}"]()
        thing.metadata.CopyFrom(metadata)
        thing.spec.CopyFrom(spec)
        thing.metadata.id = f"compute{kind.lower()}-e00{uuid.uuid4().hex[:20]}"
        thing.metadata.resource_version = 1
        thing.metadata.created_at.FromJsonString(self.clock.text())
        if kind != "GpuCluster":
            self._state(thing, "CREATING")
        return thing

    def _state(self, thing: Any, name: str) -> None:
        states = thing.status.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_name
        thing.status.state = states[name].number

    def _ready(self, thing: Any, operation: Any) -> None:
        self._state(thing, "READY")
        thing.status.size_bytes = _size(thing.spec)
        self._end(operation)

    def _check_size(self, thing: Any, least: int = 1) -> None:
        if _size(thing.spec) < least:
            raise self.bad("spec.size", "cannot become smaller")
        if thing.DESCRIPTOR.name == "Disk" and thing.spec.HasField("source_image_family"):
            if thing.spec.source_image_family.image_family != FAMILY:
                raise self.missing(thing.spec.source_image_family.image_family)
            thing.status.source_image_id = self._image().metadata.id

    @route(f"{COMPUTE}{{service}}/Update")
    def update(self, asked: Asked, service: str) -> Answer:
        operation = self._repeated(asked)
        if operation:
            return _SERVED, operation
        kind = self._kind(asked, service)
        thing = self._thing(kind, asked.body.metadata.id)
        if thing.metadata.id in self._current:
            detail = {"conflicting_operation_id": self._current[thing.metadata.id]}
            text = "another operation goes on"
            raise self.refusal("ABORTED", text, "OperationConflict", "CALL", operation_conflict=detail)
        mask = Mask.unmarshal(header(asked, "x-resetmask"))
        news = self.make[thing.DESCRIPTOR.full_name]()
        news.CopyFrom(thing)
        for name in ("metadata", "spec"):
            part = getattr(news, name)
            below = mask.sub_mask(FieldKey(name))
            fields = self._merged(plain(part), plain(getattr(asked.body, name)), below, part.DESCRIPTOR)
            part.Clear()
            json_format.ParseDict(fields, part, descriptor_pool=self.make.pool)
        self._check(news)
        if kind == "Instance":
            self._check_disks(news)
        elif kind != "GpuCluster":
            self._check_size(news, _size(thing.spec))
        news.metadata.resource_version += 1
        operation = self._begin(asked, thing, "Update")

        def changed() -> None:
            if kind == "Instance":
                self._check_disks(news)
            thing.metadata.CopyFrom(news.metadata)
            thing.spec.CopyFrom(news.spec)
            if kind in ("Disk", "Filesystem"):
                thing.status.size_bytes = _size(thing.spec)
            self._end(operation)

        self._later(operation, self.work, changed)
        return _SERVED, operation

    def _merged(self, old: Json | None, new: Json, mask: Mask | None, kind: Descriptor) -> Json:
        """A message after an update: what the request has replaces what was there, and what it lacks stays
        unless the mask names it. Lists are merged by position: the README of the API says so.
        """
        out = dict(old or {})
        for field in kind.fields:
            below = mask.sub_mask(FieldKey(field.name)) if mask else None
            if field.name not in new:
                if below is not None:
                    out.pop(field.name, None)
            elif field.message_type and field.message_type.GetOptions().map_entry:
                out[field.name] = new[field.name]
            elif field.message_type and field.is_repeated:
                before, after = out.get(field.name, []), new[field.name]
                out[field.name] = [
                    self._merged(
                        before[number] if number < len(before) else None,
                        one,
                        below.sub_mask(FieldKey(str(number))) if below else None,
                        field.message_type,
                    )
                    for number, one in enumerate(after)
                ]
            else:
                for other in field.containing_oneof.fields if field.containing_oneof else ():
                    if other.name != field.name:
                        out.pop(other.name, None)
                inner = field.message_type if isinstance(new[field.name], dict) else None
                value = new[field.name]
                out[field.name] = self._merged(out.get(field.name), value, below, inner) if inner else value
            if old is not None and self.make.immutable(field) and out.get(field.name) != old.get(field.name):
                raise self.bad(field.name, "is immutable")
        return out

    @route(f"{COMPUTE}{{service}}/Delete")
    def delete(self, asked: Asked, service: str) -> Answer:
        operation = self._repeated(asked)
        if operation:
            return _SERVED, operation
        kind = self._kind(asked, service)
        thing = self._thing(kind, asked.body.id)
        holders = self._holders(thing)
        if holders:
            raise self.misfit(thing.metadata.id, f"is used by {holders[0]}")
        before = self._current.get(thing.metadata.id)
        operation = self._begin(asked, thing, "Delete")
        if before:
            detail = {"operation_id": before, "aborted_by_operation_id": operation.id}
            aborted = self.refusal("ABORTED", "deleted", "OperationAborted", operation_aborted=detail)
            self._end(self.operations[before], aborted)
        if kind != "GpuCluster":
            self._state(thing, "DELETING")
        self._later(operation, self.work, lambda: self._deleted(thing, operation))
        return _SERVED, operation

    def _deleted(self, thing: Any, operation: Any) -> None:
        for disk in [one for one in self._all("Disk") if one.status.managed_by == thing.metadata.id]:
            del self.things[disk.metadata.id]
        del self.things[thing.metadata.id]
        self._placed.discard(thing.metadata.id)
        self._end(operation)

    def _holders(self, thing: Any) -> list[str]:
        """The instances that use a disk, a filesystem or a GPU cluster."""
        status = thing.status
        if thing.DESCRIPTOR.name == "GpuCluster":
            clusters = {one.metadata.id: one.spec.gpu_cluster.id for one in self._all("Instance")}
            return [made for made, cluster in clusters.items() if cluster == thing.metadata.id]
        if thing.DESCRIPTOR.name == "Disk":
            return [*filter(None, [status.read_write_attachment]), *status.read_only_attachments]
        return [*status.read_write_attachments] if thing.DESCRIPTOR.name == "Filesystem" else []

    def _relate(self) -> None:
        """Have everything say which instances have it."""
        disks, systems = self._all("Disk"), self._all("Filesystem")
        for one in disks:
            one.status.read_write_attachment = ""
            one.status.read_only_attachments.clear()
        for one in systems:
            one.status.read_write_attachments.clear()
        for instance in self._all("Instance"):
            made = instance.metadata.id
            instance.status.disk_attachments.clear()
            for spec in (instance.spec.boot_disk, *instance.spec.secondary_disks):
                managed, name = spec.HasField("managed_disk"), spec.managed_disk.name
                disk = next(
                    d
                    for d in disks
                    if spec.existing_disk.id == d.metadata.id or (managed and name == d.metadata.name)
                )
                about = {"id": disk.metadata.id, "name": disk.metadata.name, "is_managed": managed}
                instance.status.disk_attachments.add(**about)
                if spec.attach_mode == spec.READ_WRITE:
                    disk.status.read_write_attachment = made
                else:
                    disk.status.read_only_attachments.append(made)
            for spec in instance.spec.filesystems:
                self.things[spec.existing_filesystem.id].status.read_write_attachments.append(made)
        for cluster in self._all("GpuCluster"):
            cluster.status.instances[:] = [made for made in self._holders(cluster) if made in self._placed]

    # -------------------------------------------------------------------------------- instances

    def _platform(self, spec: Any) -> Json:
        for one in self.platforms:
            presets = [preset["name"] for preset in one["spec"]["presets"]]
            if one["metadata"]["name"] == spec.resources.platform and spec.resources.preset in presets:
                return one
        raise self.bad("spec.resources", "there is no such platform and preset")

    def _check_instance(self, instance: Any) -> None:
        about, spec = self._platform(instance.spec), instance.spec
        name, weight = about["metadata"]["name"], _weight(about)
        for one in spec.network_interfaces:
            if one.subnet_id != SUBNET:
                raise self.missing(one.subnet_id)
        if spec.gpu_cluster.id:
            self._thing("GpuCluster", spec.gpu_cluster.id)
            if not about["spec"]["presets"][0]["allow_gpu_clustering"]:
                raise self.bad("spec.gpu_cluster", "this preset cannot be in a GPU cluster")
        if spec.HasField("preemptible") and not about["status"]["allowed_for_preemptibles"]:
            raise self.bad("spec.preemptible", "this platform has no preemptible instances")
        if self._used(name) + weight > self.quota[name]:
            kind = about["spec"]["gpu_count_quota_type"]
            violation = {"quota": kind, "limit": str(self.quota[name]), "requested": str(weight)}
            detail = {"violations": [{**violation, "message": "Quota limit exceeded"}]}
            text = f"Quota limit exceeded: {kind}"
            raise self.refusal("RESOURCE_EXHAUSTED", text, "QuotaFailure", quota_failure=detail)
        self._check_disks(instance)

    def _check_disks(self, instance: Any) -> None:
        for spec in (instance.spec.boot_disk, *instance.spec.secondary_disks):
            if spec.HasField("managed_disk"):
                makers = [
                    d.status.managed_by
                    for d in self._all("Disk")
                    if d.metadata.name == spec.managed_disk.name
                ]
                if makers != ([instance.metadata.id] if instance.metadata.id in self.things else []):
                    raise self.bad(
                        "managed_disk.name", "is taken; or new, which it is with its instance alone here"
                    )
                continue
            disk = self._thing("Disk", spec.existing_disk.id)
            writes = spec.attach_mode == spec.READ_WRITE
            holders = self._holders(disk) if writes else [disk.status.read_write_attachment]
            if set(holders) - {"", instance.metadata.id} or plain(disk.status).get("state") != "READY":
                raise self.misfit(disk.metadata.id, "the disk is not ready, or is attached")
            if spec is instance.spec.boot_disk and not disk.status.source_image_id:
                raise self.misfit(disk.metadata.id, "a boot disk has an image")
        for spec in instance.spec.filesystems:
            self._thing("Filesystem", spec.existing_filesystem.id)

    def _managed(self, instance: Any) -> list[Any]:
        """The disks that come and go with a new instance."""
        disks = []
        for spec in (instance.spec.boot_disk, *instance.spec.secondary_disks):
            if spec.HasField("managed_disk"):
                about = {"parent_id": PROJECT, "name": spec.managed_disk.name}
                disk = self._new(
                    "Disk", self.make("common.v1.ResourceMetadata", **about), spec.managed_disk.spec
                )
                self._check_size(disk)
                disk.status.managed_by = instance.metadata.id
                disk.status.size_bytes = _size(disk.spec)
                self._state(disk, "READY")
                disks.append(disk)
        return disks

    def _used(self, name: str) -> int:
        about = next(one for one in self.platforms if one["metadata"]["name"] == name)
        return _weight(about) * len(
            [one for one in self._all("Instance") if one.spec.resources.platform == name]
        )

    def _free(self, name: str) -> int:
        """How many more instances there is hardware for."""
        platforms = [self.things[one].spec.resources.platform for one in self._placed]
        return self.stock[name] - platforms.count(name)

    def _launch(self, instance: Any, operation: Any) -> None:
        name = instance.spec.resources.platform
        self._relate()
        if self._free(name) <= 0:
            violation = {"resource_type": name, "message": "Not enough resources", "requested": "1"}
            detail = {"violations": [violation]}
            text = f"not enough resources for {name}"
            refused = self.refusal(
                "RESOURCE_EXHAUSTED", text, "NotEnoughResources", "UNIT_OF_WORK", not_enough_resources=detail
            )

            def failed() -> None:
                self._state(instance, "STOPPED")
                self._end(operation, refused)

            self._later(operation, self.work, failed)
            return
        self._placed.add(instance.metadata.id)
        self._later(operation, self.work, lambda: self._state(instance, "STARTING"))
        self._later(operation, self.boot, lambda: self._run(instance, operation))

    def _run(self, instance: Any, operation: Any) -> None:
        self._count += 1
        private, public = self.addresses(self._count)
        for number, one in enumerate(instance.spec.network_interfaces):
            status = instance.status.network_interfaces.add(index=number, name=one.name)
            status.ip_address.address = f"{private}/32"
            if one.HasField("public_ip_address"):
                status.public_ip_address.address = f"{public}/32"
        if instance.spec.gpu_cluster.id:
            path = ("spine-1", f"leaf-{self._count // 2}", f"host-{self._count}")
            instance.status.infiniband_topology_path.path.extend(path)
        self._state(instance, "RUNNING")
        self._end(operation)

    def addresses(self, number: int) -> tuple[str, str]:
        """The private and the public address of the instance that is the so many-th to run."""
        return f"10.0.{number // 256}.{number % 256}", f"198.18.{number // 256}.{number % 256}"

    def preempt(self, made: str) -> None:
        """Stop a preemptible instance, as Nebius does when it needs the place."""
        self._state(self.things[made], "STOPPED")
        self._placed.discard(made)
        self._relate()


def _size(spec: Any) -> int:
    """In bytes."""
    units = {"size_bytes": 1, "size_kibibytes": 2**10, "size_mebibytes": 2**20, "size_gibibytes": _GIB}
    unit = spec.WhichOneof("size")
    return int(getattr(spec, unit)) * units[unit] if unit else 0


def _weight(about: Json) -> int:
    resources = about["spec"]["presets"][0]["resources"]
    return int(resources["gpu_count"] or resources["vcpu_count"])


def _unpacked(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _handlers(cloud: Nebius) -> list[Any]:
    """What carries the calls of all services to a stand-in, as requests with their method's path."""

    def handler(path: str, method: Any) -> Any:
        def call(request: Message, context: Any) -> Any:
            headers = {key: str(text) for key, text in context.invocation_metadata()}
            asked = Asked(method="POST", path=path, params={}, body=request, headers=headers)
            status, answer = cloud.served(asked)
            if status == _SERVED:
                return answer
            if not status:
                return context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            context.set_trailing_metadata((("grpc-status-details-bin", answer.SerializeToString()),))
            code = next(one for one in grpc.StatusCode if one.value[0] == status)
            return context.abort(code, answer.message)

        return grpc.unary_unary_rpc_method_handler(
            call,
            request_deserializer=messages()[method.input_type.full_name].FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    services = [
        service
        for name in messages().files
        for service in messages().pool.FindFileByName(name).services_by_name.values()
    ]
    return [
        grpc.method_handlers_generic_handler(
            service.full_name,
            {one.name: handler(f"/{service.full_name}/{one.name}", one) for one in service.methods},
        )
        for service in services
    ]
