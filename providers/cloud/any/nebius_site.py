"""Nebius AI Cloud over gRPC: instances and disks with labels, in one project of one region.

All that we write is in labels, packed, since their values have few characters. An update replaces them all at
once. Names are a function of the create, and a project takes each only once: a repeated create is refused.

An instance for which there is no capacity is made all the same, and stops: `machines` says so by the
operation that failed. Nodes boot from a disk that comes and goes with its instance.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from google.protobuf.message import DecodeError

from declarative.model.blocks import Shape
from declarative.model.inputs import NodeInputs
from declarative.model.status import NodeState
from declarative.provider import (
    PermanentError,
    PermanentKind,
    TransientError,
    TransientKind,
)
from providers.cloud import marks, rest, settings
from providers.cloud.account import if_there, pauses
from providers.cloud.any import names, site
from providers.cloud.any.account import Account
from providers.cloud.any.nebius_login import Login
from providers.cloud.any.nebius_messages import message, types, word
from providers.cloud.any.site import (
    GPU_MEMORY_GB,
    Disk,
    Machine,
    Site,
    Size,
    Wanted,
    What,
    Written,
    gpu_model,
)
from providers.cloud.bad_answers import Pages
from providers.cloud.faults import ErrorInfo, Kind, fault
from providers.cloud.marks import packed, unpacked
from providers.cloud.placement_groups import Groups
from providers.cloud.rpc import Rpc, kind_of
from providers.cloud.settings import Host

Status, ServiceError = message("google.rpc.Status"), message("nebius.common.v1.ServiceError")
CreateInstance = message("nebius.compute.v1.CreateInstanceRequest")
DISK_TYPES = tuple(message("nebius.compute.v1.DiskSpec").DiskType.keys())[1:]
DOMAIN = "api.nebius.cloud"
HOSTS: Mapping[str, str] = {
    "nebius.iam.v1.TokenExchangeService": "tokens.iam",
    "nebius.iam.v1.ProjectService": "cpl.iam",
    "nebius.vpc.v1.SubnetService": "vpc",
    "nebius.billing.v1.CalculatorService": "api.calculator.billing-data-plane",
    "nebius.capacity.v1.ResourceAdviceService": "capacity-advisor.billing-cpl",
}
"""Service → the beginning of its host's name. Others are at `compute`."""
PAGE = 100
GIB = 1 << 30
NAME = 63
"""The most characters of a name."""
MARK = "fleetform_"
OWNER, TOKEN = f"{MARK}owner", f"{MARK}token"
PART = re.compile(rf"{MARK}([a-z0-9-]{{1,40}})_([0-9]{{2}})")
"""The key of a label with a part of a text."""
LENGTH, MOST = 63, 64
"""The most characters of a label, and labels of a thing."""
_USERS = re.compile(r"(?!fleetform)[a-z][a-z0-9_./-]{0,62}"), re.compile(r"[a-zA-Z0-9_./-]{0,63}")
STARTING: tuple[NodeState, str | None] = (NodeState.PROVISIONING, "it is starting")
STATES: Mapping[str, tuple[NodeState, str | None]] = {
    "CREATING": STARTING,
    "STARTING": STARTING,
    "RUNNING": (NodeState.READY, None),
    "UPDATING": (NodeState.READY, None),
    "STOPPING": (NodeState.NOT_READY, "it is stopping"),
    "STOPPED": (NodeState.NOT_READY, "it is stopped"),
    "DELETING": (NodeState.TERMINATING, "it is being deleted"),
    "ERROR": (NodeState.FAILED, "Nebius reports an error"),
}
INSTANCES = "compute.instance.count"
"""The quota on the number of instances."""
_LOCKS = tuple(threading.Lock() for _ in range(64))


def read_error(code: int, text: str, details: bytes) -> ErrorInfo:
    """An error of Nebius'. Many share a code of gRPC's, and say more in a `ServiceError`."""
    try:
        status = Status.FromString(details)
    except DecodeError:
        status = Status()
    return _info(code, text, status)


def _info(code: int, text: str, status: Any) -> ErrorInfo:
    """The error of a call or of an operation's end; `text` is without secrets."""
    error = ServiceError()
    with suppress(DecodeError):
        any(one.Unpack(error) for one in status.details)
    kind, hint = kind_of(code), None
    match str(error.WhichOneof("details")):
        case "too_many_requests":
            kind = TransientKind.THROTTLED
        case "not_enough_resources":
            kind, hint = PermanentKind.NO_CAPACITY, "name more `regions` or other types, or apply later"
        case "quota_failure":
            limits = error.quota_failure.violations
            text += "".join(f"; {o.quota} is limited to {o.limit}, {o.requested} asked for" for o in limits)
            count = any(one.quota == INSTANCES for one in limits)
            kind = PermanentKind.INSTANCES if count else PermanentKind.QUOTA
            hint = "ask for a larger quota in Nebius' console, or delete what you do not need"
        case "bad_resource_state" | "resource_conflict":
            kind = TransientKind.BUSY
        case "permission_denied":
            hint = "give the service account a role in the project, such as `editor`"
        case "bad_request":
            text += "".join(f"; {one.field}: {one.message}" for one in error.bad_request.violations)
        case _:
            pass
    return ErrorInfo(kind=kind, text=text, hint=hint)


class Nebius(Site):
    """One project of an account."""

    unique = frozenset(("machine", "disk"))
    keeps = frozenset(("machine", "disk"))
    spots = True
    grows = True

    def __init__(self, account: Account, region: str, who: Login) -> None:
        at = settings.host(account.config.endpoint) if account.config.endpoint else None

        def host(service: str) -> Host:
            return at or Host(name=f"{HOSTS.get(service, 'compute')}.{DOMAIN}", port=443, secure=True)

        def enter() -> Mapping[str, Any]:
            kind = "urn:ietf:params:oauth:token-type:"
            method = "nebius.iam.v1.TokenExchangeService/Exchange"
            asks, answers = types(method)
            request = asks(
                grant_type="urn:ietf:params:oauth:grant-type:token-exchange",
                requested_token_type=f"{kind}access_token",
                subject_token=who.assertion(),
                subject_token_type=f"{kind}jwt",
            )
            found = door.ask(method, request, answers, about="credentials")
            return {"access_token": found.access_token, "expires_in": found.expires_in}

        door = Rpc(account, host, read_error)
        token = (lambda: who.token) if who.token else rest.Tokens(enter, "Nebius", account.scrub)
        self._rpc = Rpc(account, host, read_error, token)
        self._account, self._region = account, region
        named = account.options.get("project") or who.project
        self._named = str(named.get(region) or "") if isinstance(named, dict) else str(named)
        self._turn = threading.Lock()
        self._known: tuple[str, str] | None = None
        self._subnets: dict[str, str] = {}
        self.groups: Clusters = Clusters(account, self)

    def ask(self, method: str, about: str | None = None, mask: str = "", /, **fields: Any) -> Any:
        """The answer of a method to a request with these fields."""
        path = f"nebius.{method}"
        asks, answers = types(path)
        more = {"x_resetmask": mask} if mask else {}
        return self._rpc.ask(path, asks(**fields), answers, about=about, **more)

    def _place(self) -> tuple[str, str]:
        """The ids of the project and its tenant; the latter is empty if it may not be known."""
        with self._turn:
            if self._known is None:
                if not self._named:
                    hint = f"write `options: {{project: {{{self._region}: project-…}}}}`"
                    summary = f"backend {self._account.config.backend}: no project in {self._region} is named"
                    raise PermanentError(PermanentKind.INVALID, summary, about="options.project", hint=hint)
                tenant = ""
                try:
                    found = self.ask("iam.v1.ProjectService/Get", "options.project", id=self._named)
                except PermanentError as error:
                    if error.kind is not PermanentKind.AUTH or "UNAUTHENTICATED" in error.summary:
                        raise
                else:
                    tenant, region = found.metadata.parent_id, found.status.region
                    if region and region != self._region:
                        summary = f"the project {self._named} is in {region}, not in {self._region}"
                        hint = "a project is in one region: name one for each under `options.project`"
                        raise PermanentError(
                            PermanentKind.INVALID, summary, about="options.project", hint=hint
                        )
                self._known = self._named, tenant
            return self._known

    @property
    def project(self) -> str:
        return self._place()[0]

    def listed(self, method: str, parent: str) -> list[Any]:
        """All pages of a list. A page begins after the last thing of the one before."""
        out: dict[str, Any] = {}
        page, read = "", Pages()
        while True:
            found = self.ask(method, parent_id=parent, page_size=PAGE, page_token=page)
            out |= {item.metadata.id: item for item in found.items}
            page = found.next_page_token
            how = read.fault(page) if page else "has a thing without an id" if "" in out else None
            if how:
                raise rest.bad_answer(f"Nebius, {method}", how)
            if not page:
                return list(out.values())

    def all(self, kind: str) -> list[Any]:
        """The instances or disks of the project, by any owner."""
        return self.listed(f"compute.v1.{kind}Service/List", self.project)

    # --------------------------------------------------------------------------------------- offers

    def sizes(self) -> Sequence[Size]:
        """The presets of all platforms, for a bare instance. What has surely none free is left out."""
        platforms = self.listed("compute.v1.PlatformService/List", self.project)
        empty = self._empty()
        found = [
            (platform, preset, spot)
            for platform in platforms
            for preset in platform.spec.presets
            for spot in ((False, True) if platform.status.allowed_for_preemptibles else (False,))
            if (platform.metadata.name, preset.name, spot) not in empty
        ]
        prices = self._prices([(one.metadata.name, preset.name, spot) for one, preset, spot in found])
        return [
            Size(
                name=_type(platform, preset),
                shape=self._shape(platform, preset),
                price=price,
                regions=(self._region,),
                spot=spot,
            )
            for (platform, preset, spot), price in zip(found, prices, strict=True)
        ]

    def _shape(self, platform: Any, preset: Any) -> Shape:
        has, gpus = preset.resources, {"gpus": preset.resources.gpu_count}
        if has.gpu_count:
            words = re.sub(r"^gpu-|-(sxm\d*|pcie|nvl|[a-z])$", "", platform.metadata.name)
            model, vendor = gpu_model(re.sub(r"-(sxm\d*|pcie|nvl|[a-z])$", "", words))
            memory = platform.spec.gpu_memory_gigabytes or GPU_MEMORY_GB.get(model or "")
            gpus |= {"gpu_name": model, "gpu_vendor": vendor or "nvidia"}
            gpus |= {"gpu_memory_mib": memory * 1024 if memory else None}
        disk = int(self._account.options.get("disk_size", settings.NODE_DISK)) * 1024
        return Shape(cpu=has.vcpu_count, memory_mib=has.memory_gibibytes * 1024, disk_mib=disk, **gpus)

    def _empty(self) -> set[tuple[str, str, bool]]:
        """The platforms and presets, spot or not, of which Nebius has none free on any fabric. One whose
        limit is reached is not among them: a launch says which limit that is.
        """
        known: dict[tuple[str, str, bool], bool] = {}
        for advice in self.advice():
            about = advice.spec.compute_instance
            for spot, free in ((False, advice.status.on_demand), (True, advice.status.preemptible)):
                none = word(free, "data_state") == "DATA_STATE_FRESH" and not free.available
                none = none and word(free, "availability_level") != "AVAILABILITY_LEVEL_LIMIT_REACHED"
                key = about.platform, about.preset.name, spot
                known[key] = known.get(key, True) and none
        return {key for key, none in known.items() if none}

    def advice(self) -> list[Any]:
        """What Nebius says is free in the region; empty if the account may not know it."""
        tenant, found = self._place()[1], []
        with suppress(PermanentError):
            found = self.listed("capacity.v1.ResourceAdviceService/List", tenant) if tenant else []
        return [one for one in found if one.spec.region == self._region]

    def _prices(self, wanted: Sequence[tuple[str, str, bool]]) -> list[float | None]:
        """USD an hour, as the account pays it; None for all if Nebius does not say."""
        unknown: list[float | None] = [None] * len(wanted)
        specs = []
        for number, what in enumerate(wanted):
            metadata = {"parent_id": self.project, "name": f"n-{number}"}
            request = CreateInstance(metadata=metadata, spec=_resources(*what))
            about = f"type.googleapis.com/{CreateInstance.DESCRIPTOR.full_name}"
            specs.append({"spec": {"type_url": about, "value": request.SerializeToString()}})
        hours = {"filter_aggregation_unit_values": ["FILTER_AGGREGATION_UNIT_HOUR"]}
        try:
            found = self.ask(
                "billing.v1.CalculatorService/EstimateBatch",
                resource_specs=specs,
                offer_types=["OFFER_TYPE_CONTRACT_PRICE"],
                filter_aggregation_unit=hours,
            )
        except PermanentError:
            return unknown
        costs = [one for one in found.resource_costs if one.aggregation_unit.unit == "hour"]
        if found.currency.lower() != "usd" or len(costs) != len(wanted):
            return unknown
        by_name = {one.metadata.name: one for one in costs}
        if all(f"n-{number}" in by_name for number in range(len(costs))):
            costs = [by_name[f"n-{number}"] for number in range(len(costs))]
        return [_price(one) for one in costs]

    # ------------------------------------------------------------------------------------ machines

    def machines(self) -> Sequence[Machine]:
        return [m for item in self.all("Instance") if (m := self._machine(item))]

    def _machine(self, item: Any) -> Machine | None:
        made, written = item.metadata.id, self._written(item.metadata)
        if written is None:
            return None
        cause: tuple[Kind, str] | None = None
        status, name = item.status, word(item.status, "state")
        state, reason = STATES.get(name, (NodeState.NOT_READY, "its state is unknown"))
        private, public = _addresses(status)
        if state is NodeState.READY:
            outside = any(one.HasField("public_ip_address") for one in item.spec.network_interfaces)
            if not private or (outside and not public):
                state, reason = NodeState.PROVISIONING, "it has no address yet"
        elif name == "STOPPED" and site.TAKEN in written.texts:
            if item.spec.HasField("preemptible"):
                state, reason = NodeState.FAILED, "Nebius took it back"
        elif name == "STOPPED" and status.reconciling:
            state, reason = STARTING
        elif name == "STOPPED":
            cause = self._why(made)
            state, reason = NodeState.FAILED, cause[1] if cause else "it stopped before it was ready"
        return Machine(
            id=made,
            region=self._region,
            state=state,
            reason=reason,
            fault=cause,
            address=private or public,
            public_address=public,
            written=written,
            made_at=_time(item.metadata),
        )

    def _why(self, made: str) -> tuple[Kind, str] | None:
        """Why the last operation on an instance that failed did."""
        found = self.ask("common.v1.OperationService/List", made, resource_id=made, page_size=PAGE)
        failed = [one for one in found.operations if one.status.code]
        return self._failure(max(failed, key=_time))[:2] if failed else None

    def _failure(self, operation: Any) -> tuple[Kind, str, str | None]:
        """The kind, text and hint of an operation that failed. Its outcome is known, whatever its code."""
        status = operation.status
        info = _info(status.code, self._account.scrub.hide(status.message), status)
        kind = info.kind if info.kind and info.kind is not TransientKind.AMBIGUOUS else TransientKind.BUSY
        return kind, self._account.scrub(info.text), info.hint

    def launch(self, wanted: Wanted) -> Machine:
        platform, _, preset = wanted.size.partition("_")
        if not preset:
            summary = f"`{wanted.size}` is no type of Nebius': they are written PLATFORM_PRESET"
            raise PermanentError(PermanentKind.INVALID, summary, about="instance_type")
        name, options = names.unique(wanted.written, NAME - len("-boot")), self._account.options
        image: dict[str, Any] = {"source_image_family": {"image_family": wanted.image}}
        if wanted.image.startswith("computeimage-"):
            image = {"source_image_id": wanted.image}
        disk = {
            "size_gibibytes": int(options.get("disk_size", settings.NODE_DISK)),
            "type": _disk_type(options.get("disk_type"), "options.disk_type"),
            **image,
        }
        interface = {
            "subnet_id": self._subnet(),
            "name": "eth0",
            "ip_address": {},
            "security_groups": [{"id": one} for one in self._account.config.network.security_groups],
            **({"public_ip_address": {}} if self._account.public_ip else {}),
        }
        spec = {
            **_resources(platform, preset, wanted.spot),
            **({"gpu_cluster": {"id": self.groups.get(wanted.group).metadata.id}} if wanted.group else {}),
            "boot_disk": {
                "attach_mode": "READ_WRITE",
                "managed_disk": {"name": f"{name}-boot", "spec": disk},
            },
            "network_interfaces": [interface],
            "cloud_init_user_data": wanted.user_data,
        }
        try:
            made = self._made("Instance", name, spec, wanted)
        except PermanentError as error:
            if error.kind is not PermanentKind.NOT_FOUND:
                raise
            if wanted.group and self.groups.tags(wanted.group) is None:
                raise  # it was deleted meanwhile, with its last node
            hint = f"check the `image` ({wanted.image}) and `network`"
            raise PermanentError(PermanentKind.INVALID, error.summary, about=error.about, hint=hint) from None
        return Machine(id=made, region=self._region, state=NodeState.PROVISIONING, written=wanted.written)

    def _labels(self, written: Written, tags: Mapping[str, str]) -> dict[str, str]:
        out = {**_of_users(tags), OWNER: written.owner, TOKEN: written.token}
        for key, text in {site.IS: written.text(), **written.texts}.items():
            out |= _parts(key, text)
        return _limited(out)

    def _made(self, kind: str, name: str, spec: Mapping[str, Any], wanted: Wanted) -> str:
        """The id of what an operation makes. If its name is taken, then by an earlier try."""
        method, labels = f"compute.v1.{kind}Service/Create", self._labels(wanted.written, wanted.tags)
        metadata = {"parent_id": self.project, "name": name, "labels": labels}
        try:
            operation = self.ask(method, wanted.region, metadata=metadata, spec=spec)
        except PermanentError as error:
            if error.kind is not PermanentKind.CONFLICT:
                raise
            summary = f"what was made earlier is not listed yet, or is being deleted: {error.summary}"
            raise TransientError(TransientKind.BUSY, summary, about=error.about) from None
        if not operation.resource_id:
            raise rest.bad_answer(f"Nebius, {method}", "has no id")
        return str(operation.resource_id)

    def _subnet(self) -> str:
        """The backend's subnet, else the project's first."""
        given = self._account.config.network.subnets.get(self._region)
        if given:
            return given
        with self._turn:
            known = self._subnets.get(self._region)
        if known is None:
            found = self.listed("vpc.v1.SubnetService/List", self.project)
            if not found:
                summary = f"the project {self.project} has no subnet"
                hint = f"make one, or write `network: {{subnets: {{{self._region}: vpcsubnet-…}}}}`"
                raise PermanentError(PermanentKind.INVALID, summary, about="network.subnets", hint=hint)
            known = str(min(found, key=lambda one: (_time(one.metadata), one.metadata.id)).metadata.id)
            with self._turn:
                self._subnets[self._region] = known
        return known

    def around(self, node: NodeInputs, *, ends: bool) -> AbstractContextManager[None]:
        return self.groups.changing(node, ends=ends)

    def end(self, machine: Machine) -> None:
        self.ask("compute.v1.InstanceService/Delete", machine.id, id=machine.id)

    # --------------------------------------------------------------------------------------- disks

    def disks(self) -> Sequence[Disk]:
        return [d for item in self.all("Disk") if (d := self._disk(item))]

    def _disk(self, item: Any) -> Disk | None:
        made, status, written = item.metadata.id, item.status, self._written(item.metadata)
        state = word(status, "state")
        if written is None or state == "DELETING":
            return None
        on = tuple(filter(None, (status.read_write_attachment, *status.read_only_attachments)))
        broken = state in ("ERROR", "BROKEN")
        return Disk(
            id=made,
            region=self._region,
            size=-(-status.size_bytes // GIB) or item.spec.size_gibibytes or None,
            on=on,
            busy=(state != "READY" or status.reconciling) and not broken,
            broken=status.state_description or "Nebius reports an error" if broken else None,
            device=f"/dev/disk/by-id/virtio-{_device(made)}" if on else None,
            written=written,
            made_at=_time(item.metadata),
        )

    def make(self, wanted: Wanted) -> Disk:
        spec = {"size_gibibytes": wanted.gib, "type": _disk_type(wanted.volume_type, "volume_type")}
        made = self._made("Disk", names.unique(wanted.written, NAME), spec, wanted)
        return Disk(id=made, region=self._region, size=wanted.gib, busy=True, written=wanted.written)

    def remove(self, disk: Disk) -> None:
        self.ask("compute.v1.DiskService/Delete", disk.id, id=disk.id)

    def grow(self, disk: Disk, gib: int) -> None:
        self._update("Disk", disk.id, metadata={"id": disk.id}, spec={"size_gibibytes": gib})

    def attach(self, disk: Disk, machine: Machine) -> None:
        new = {
            "attach_mode": "READ_WRITE",
            "existing_disk": {"id": disk.id},
            "device_id": _device(disk.id),
        }
        self._have_disks(
            machine, lambda have: have if any(_holds(one, disk) for one in have) else [*have, new]
        )

    def detach(self, disk: Disk, machine: Machine) -> None:
        self._have_disks(machine, lambda have: [one for one in have if not _holds(one, disk)])

    def _have_disks(self, machine: Machine, change: Callable[[list[Any]], list[Any]]) -> None:
        """A list is merged by position, field by field: so all fields of its items are reset."""
        with _LOCKS[hash(machine.id) % len(_LOCKS)]:
            item = self._get("Instance", machine.id)
            have = list(item.spec.secondary_disks)
            disks = change(have)
            if disks == have:
                return
            fields = "(attach_mode,device_id,existing_disk,managed_disk)"
            mask = f"spec.secondary_disks.*.{fields}" if disks else "spec.secondary_disks"
            metadata = {"id": machine.id, "resource_version": item.metadata.resource_version}
            self._update("Instance", machine.id, mask, metadata=metadata, spec={"secondary_disks": disks})

    def _get(self, kind: str, made: str) -> Any:
        return self.ask(f"compute.v1.{kind}Service/Get", made, id=made)

    def _update(self, kind: str, made: str, mask: str = "", /, **fields: Any) -> None:
        """Change something, and return when that is done: only then is it known whether it was possible."""
        self.done(self.ask(f"compute.v1.{kind}Service/Update", made, mask, **fields), made)

    def done(self, operation: Any, about: str) -> None:
        """Wait for the end of an operation; a fault if it failed."""
        for _ in pauses(f"{about} is still being changed", about):
            if operation.HasField("status"):
                break
            operation = self.ask("common.v1.OperationService/Get", about, id=operation.id)
        if operation.status.code:
            kind, text, hint = self._failure(operation)
            raise fault(kind, text, about=about, hint=hint)

    # --------------------------------------------------------------------------------------- marks

    def _written(self, metadata: Any) -> Written | None:
        """The mark in labels; None if it is not of a thing of this owner."""
        labels = dict(metadata.labels)
        if labels.get(OWNER) != self._account.owner:
            return None
        return site.read(self._account.owner, labels.get(TOKEN, ""), _texts(labels), metadata.id)

    def write(self, thing: Machine | Disk, texts: dict[str, str | None]) -> None:
        def change(labels: dict[str, str]) -> dict[str, str]:
            out = {k: v for k, v in labels.items() if not ((p := PART.fullmatch(k)) and p[1] in texts)}
            for key, text in texts.items():
                out |= _parts(key, text) if text is not None else {}
            return out

        self._relabel(_kind(thing), thing.id, change)

    def retag(self, thing: Machine | Disk, before: dict[str, str], after: dict[str, str]) -> None:
        new = _of_users(after)
        self._relabel(
            _kind(thing), thing.id, lambda have: {**{k: v for k, v in have.items() if k not in before}, **new}
        )

    def _relabel(self, kind: str, made: str, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """All labels are written at once, so each thing has one writer at a time."""
        with _LOCKS[hash(made) % len(_LOCKS)]:
            item = self._get(kind, made)
            have = dict(item.metadata.labels)
            labels = _limited(change(have))
            if labels != have:
                version = item.metadata.resource_version
                metadata = {"id": made, "resource_version": version, "labels": labels}
                self._update(kind, made, "" if labels else "metadata.labels", metadata=metadata)

    def owners(self, kind: What) -> Mapping[str, str | None]:
        return {
            item.metadata.id: dict(item.metadata.labels).get(OWNER)
            for item in self.all(_KINDS[kind])
            if word(item.status, "state") != "DELETING"
        }

    def ended(self, kind: What, made: str) -> str | None:
        """If nothing here is the owner's, it may be the wrong account."""
        if self._account.owner not in self.owners(kind).values():
            return None
        found = if_there(self._get, _KINDS[kind], made)
        if found is not None:
            return "it is being deleted" if word(found.status, "state") == "DELETING" else None
        return f"Nebius has no {_KINDS[kind].lower()} {made} any more"

    def restore_mark(self, kind: What, made: str, mark: Written, tags: Mapping[str, str]) -> None:
        new = self._labels(mark, tags)

        def change(have: dict[str, str]) -> dict[str, str]:
            return {**{k: v for k, v in have.items() if not k.startswith(MARK)}, **new}

        self._relabel(_KINDS[kind], made, change)


class Clusters(Groups):
    """The GPU clusters: machines of one are on the same InfiniBand fabric. Their ids here are their names."""

    CALLED = "GPU cluster"

    def __init__(self, account: Account, site: Nebius) -> None:
        super().__init__(account)
        self._site = site
        self._fit: frozenset[str] | None = None

    def takes(self, inputs: NodeInputs) -> bool:
        if self._fit is None:
            platforms = self._site.listed("compute.v1.PlatformService/List", self._site.project)
            self._fit = frozenset(
                _type(platform, preset)
                for platform in platforms
                for preset in platform.spec.presets
                if preset.allow_gpu_clustering
            )
        return inputs.instance_type in self._fit

    def name(self, inputs: NodeInputs) -> str:
        whose = hashlib.sha256(f"{self._account.owner}\0{inputs.fleet}".encode()).hexdigest()
        return f"fleetform-{inputs.fleet}"[:46].rstrip("-") + f"-{whose[:16]}"

    def make(self, made: str, inputs: NodeInputs, tags: Mapping[str, str]) -> None:
        labels = {OWNER: tags[marks.OWNER], f"{MARK}fleet": inputs.fleet}
        metadata = {"parent_id": self._site.project, "name": made, "labels": labels}
        spec = {"infiniband_fabric": self._fabric(inputs)}
        method = "compute.v1.GpuClusterService/Create"
        self._site.done(self._site.ask(method, made, metadata=metadata, spec=spec), made)

    def _fabric(self, inputs: NodeInputs) -> str:
        """The backend's fabric, else the one with the most free machines of this type."""
        if given := self._account.options.get("fabric"):
            return str(given)
        free: dict[str, int] = {}
        for advice in self._site.advice():
            about, status = advice.spec.compute_instance, advice.status
            if advice.spec.fabric and _named(about.platform, about.preset.name) == inputs.instance_type:
                number = (status.preemptible if inputs.spot else status.on_demand).available
                free[advice.spec.fabric] = max(number, free.get(advice.spec.fabric, 0))
        if not free:
            summary = f"Nebius does not say which fabric has {inputs.instance_type} in {inputs.region}"
            hint = "write `options: {fabric: fabric-…}`, or `options: {placement_group: off}`"
            raise PermanentError(PermanentKind.INVALID, summary, about="options.fabric", hint=hint)
        return max(sorted(free), key=lambda fabric: free[fabric])

    def get(self, made: str) -> Any:
        """A cluster by its name or id; `NOT_FOUND` if there is none."""
        service = "compute.v1.GpuClusterService"
        if made.startswith("computegpucluster-"):
            return self._site.ask(f"{service}/Get", made, id=made)
        return self._site.ask(f"{service}/GetByName", made, parent_id=self._site.project, name=made)

    def tags(self, made: str, inputs: NodeInputs | None = None) -> Mapping[str, str] | None:
        found = if_there(self.get, made)
        return None if found is None else {marks.OWNER: dict(found.metadata.labels).get(OWNER, "")}

    def used(self, made: str, inputs: NodeInputs) -> bool:
        found = if_there(self.get, made)
        return found is not None and any(
            one.spec.gpu_cluster.id == found.metadata.id and word(one.status, "state") != "DELETING"
            for one in self._site.all("Instance")
        )

    def remove(self, made: str, inputs: NodeInputs) -> None:
        found = if_there(self.get, made)
        if found is not None:
            if_there(self._site.ask, "compute.v1.GpuClusterService/Delete", made, id=found.metadata.id)


_KINDS: Mapping[What, str] = {"machine": "Instance", "disk": "Disk"}


def _kind(thing: Machine | Disk) -> str:
    return _KINDS["machine" if isinstance(thing, Machine) else "disk"]


def _type(platform: Any, preset: Any) -> str:
    return _named(platform.metadata.name, preset.name)


def _named(platform: str, preset: str) -> str:
    """The name of what can be launched."""
    return f"{platform}_{preset}"


def _resources(platform: str, preset: str, spot: bool) -> dict[str, Any]:
    """A bare instance. A spot instance that stops is not started again."""
    found: dict[str, Any] = {"resources": {"platform": platform, "preset": preset}}
    if spot:
        found |= {"preemptible": {"on_preemption": "STOP"}, "recovery_policy": "FAIL"}
    return found


def _price(cost: Any) -> float | None:
    try:
        price = float(cost.general.total.cost)
    except ValueError:
        return None
    return price if 0 < price < float("inf") else None


def _time(message: Any) -> str:
    """When a thing was made; sorts by time."""
    return str(message.created_at.ToJsonString()) if message.HasField("created_at") else ""


def _addresses(status: Any) -> tuple[str, str]:
    """The private and the public address of the first interface."""
    for one in status.network_interfaces:
        private, public = (part.address.partition("/")[0] for part in (one.ip_address, one.public_ip_address))
        return private, public
    return "", ""


def _disk_type(given: object, about: str) -> str:
    found = str(given or "NETWORK_SSD").upper().replace("-", "_")
    if found not in DISK_TYPES:
        summary = f"`{given}` is no type of disk of Nebius': they are {', '.join(DISK_TYPES).lower()}"
        raise PermanentError(PermanentKind.INVALID, summary, about=about)
    return found


def _device(disk: str) -> str:
    """The name by which a machine knows a disk: a serial has 20 characters."""
    return f"f{hashlib.sha256(disk.encode()).hexdigest()[:19]}"


def _holds(one: Any, disk: Disk) -> bool:
    return bool(one.existing_disk.id == disk.id)


def _parts(key: str, text: str) -> dict[str, str]:
    """A text as labels."""
    code = packed(text)
    return {f"{MARK}{key}_{i // LENGTH:02}": code[i : i + LENGTH] for i in range(0, len(code), LENGTH)}


def _texts(labels: Mapping[str, str]) -> dict[str, str]:
    parts: dict[str, list[str]] = {}
    for key in sorted(labels):
        if found := PART.fullmatch(key):
            parts.setdefault(found[1], []).append(labels[key])
    return {key: unpacked("".join(codes)) for key, codes in parts.items()}


def _limited(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > MOST:
        summary = f"there is too much data: it takes {len(labels)} labels, and {MOST} are the most"
        hint = "give it fewer `tags`"
        raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)
    return labels


def _of_users(tags: Mapping[str, str]) -> dict[str, str]:
    """A user's tags; `PermanentError` if one cannot be a label."""
    for key, value in tags.items():
        if not (_USERS[0].fullmatch(key) and _USERS[1].fullmatch(value)):
            summary = f"`{key}: {value}` cannot be a label of Nebius'"
            hint = "labels have up to 63 letters, digits, `_`, `.`, `/`, `-`; keys begin with a small letter"
            raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)
    return dict(tags)
