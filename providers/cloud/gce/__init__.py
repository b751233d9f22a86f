"""The driver `gce`: Google's Compute Engine. It makes the calls for instances and disks, follows their
operations, and builds the bodies of create requests.

A name is unique in a zone, so a thing is named after its token. A change is answered with an operation, whose
errors come later than the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from declarative.model.inputs import NodeInputs, PlacedInputs, VolumeInputs
from declarative.model.resource import Offer
from declarative.model.state import Address
from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import marks
from providers.cloud.account import if_there, look_up, pauses
from providers.cloud.gce import answers, offers
from providers.cloud.gce.account import Account
from providers.cloud.gce.answers import (
    CODES,
    DISK_OF_LABEL,
    METADATA_ITEM,
    disk_labels,
    instance_labels,
    plain_label,
)
from providers.cloud.gce.offers import Policies, Reservations, path_of
from providers.cloud.named import Named
from providers.cloud.named.api import Disk, FirstStart, Machine, Phase, Reserved, Wanted
from providers.cloud.rest import pages
from providers.cloud.settings import NODE_DISK

TYPE = "pd-balanced"
PAGE = 500
"""The most items per answer."""
_ID = re.compile(r"([a-z0-9.:-]{1,100})/([a-z0-9-]{1,63})/([a-z]([a-z0-9-]{0,61}[a-z0-9])?)")


class Api:
    """One project. Ids are `project/zone/name`."""

    disk_type = TYPE
    called = (
        "the name of a disk of the backend's project, and its `availability_zone`; or "
        "`projects/P/zones/Z/disks/NAME`"
    )

    def __init__(self, account: Account) -> None:
        self._account = account
        self._reservations = Reservations(account)
        self.sites = Policies(account, self._do, self.machines)

    def offers(self) -> tuple[Offer, ...]:
        return offers.offers(self._account)

    def reserved(self, inputs: NodeInputs) -> Reserved:
        return self._reservations.asked(inputs, self._account.zone(inputs))

    def machine_id(self, name: str, inputs: PlacedInputs) -> str:
        return f"{self._account.project}/{self._account.zone(inputs)}/{name}"

    disk_id = machine_id

    def disk_called(self, given: str, inputs: VolumeInputs) -> str | None:
        """A machine can use only disks of its own project."""
        path = re.search(r"(?:^|/)projects/([^/]+)/zones/([^/]+)/disks/([^/]+)$", given)
        made = "/".join(path.groups()) if path else self.disk_id(given, inputs)
        return made if _ID.fullmatch(made) and made.startswith(f"{self._account.project}/") else None

    def _listed(
        self, kind: str, name: str | None = None, *, everyones: bool = False
    ) -> list[Mapping[str, Any]]:
        wanted = f'labels.{answers.OWNER_LABEL}="{answers.plain_label(self._account.owner)}"'
        wanted = f"labels.{answers.OWNER_LABEL}:*" if everyones else wanted
        if name is not None:
            wanted = f'({wanted}) (name="{name}")'
        what = f"list of {kind}"

        def ask(more: str | None) -> Mapping[str, Any]:
            params = {"filter": wanted, "maxResults": str(PAGE), "returnPartialSuccess": "false"}
            if more:
                params["pageToken"] = more
            return self._account.ask(what, "GET", f"{self._account.project}/aggregated/{kind}", params=params)

        found = [
            item for page in pages(what, ask, "nextPageToken") for item in answers.scoped(what, page, kind)
        ]
        return [item for item in found if name is None or item.get("name") == name]

    def _thing(self, kind: str, made: str) -> dict[str, Any] | None:
        if not _ID.fullmatch(made):
            return None
        return if_there(self._account.ask, f"look at {_name(made)}", "GET", _path(kind, made))

    def _do(self, what: str, method: str, path: str, about: str | None = None, **more: Any) -> None:
        """Request a change below a zone or a region, and wait until it has ended."""
        found = self._account.ask(what, method, path, about=about, **more)
        if answers.done(what, found, about):
            return
        where = "/".join(path.split("/")[:3])
        look = partial(self._account.ask, what, "GET", f"{where}/operations/{found.get('name')}")
        for _ in pauses(f"{what} takes its time", about or path):
            if answers.done(what, look_up(look), about):
                return
        raise AssertionError("pauses end with a fault")

    # ----------------------------------------------------------------------------------- machines

    def machines(self, *, name: str | None = None, states: bool = False) -> list[Machine]:
        del states  # each listing includes them
        return [answers.instance("list of instances", found) for found in self._listed("instances", name)]

    def marked(self) -> list[Machine | Disk]:
        machines, disks = (self._listed(kind, everyones=True) for kind in ("instances", "disks"))
        return [
            *(answers.instance("list of instances", found) for found in machines),
            *(answers.disk("list of disks", found) for found in disks),
        ]

    def machine(self, made: str) -> Machine | None:
        found = self._thing("instances", made)
        return None if found is None else answers.instance("instance", found)

    def with_addresses(self, machine: Machine) -> Machine:
        return machine

    def run(self, wanted: Wanted[NodeInputs], start: FirstStart) -> Machine:
        """Waits for the operation, since only it reports what went wrong.

        It sends no `requestId`: a repeated one returns the earlier operation, even a failed one. The name
        prevents a second instance anyway.
        """
        project, zone, name = wanted.id.split("/")
        body = instance_body(self._account, wanted, start)
        what = f"create of {name} in {zone}"
        try:
            self._do(what, "POST", f"{project}/zones/{zone}/instances", zone, body=body)
        except TransientError as error:
            if error.kind is not TransientKind.BUSY:
                raise
        found = look_up(partial(self.machine, wanted.id))
        if found is None:
            raise TransientError(TransientKind.BUSY, f"{what}: it is not there yet", about=zone)
        return found

    def end(self, machine: Machine) -> None:
        """Only its boot disk goes with it."""
        self._remove("instances", machine.id)

    def clean(self, made: str) -> None:
        """An instance leaves nothing."""

    def tag_machine(self, machine: Machine, tags: Mapping[str, str]) -> None:
        """BUSY if somebody else wrote meanwhile: nothing is overwritten."""
        path = _path("instances", machine.id)
        mine, text = answers.instance_labels(tags, machine.name, machine.raw.get("labels"))
        metadata = machine.raw.get("metadata") or {}
        items = [i for i in metadata.get("items") or () if i.get("key") != answers.METADATA_ITEM]
        items.append({"key": answers.METADATA_ITEM, "value": text})
        body = {"fingerprint": metadata.get("fingerprint"), "items": items}
        what = f"marks of {machine.name}"
        self._do(what, "POST", f"{path}/setMetadata", body=body)
        if mine != machine.raw.get("labels"):
            body = {"labelFingerprint": machine.raw.get("labelFingerprint"), "labels": mine}
            self._do(what, "POST", f"{path}/setLabels", body=body)

    # -------------------------------------------------------------------------------------- disks

    def disks(self, *, name: str | None = None) -> list[Disk]:
        return [answers.disk("list of disks", found) for found in self._listed("disks", name)]

    def disk(self, made: str) -> Disk | None:
        found = self._thing("disks", made)
        return None if found is None else answers.disk("disk", found)

    def make_disk(self, wanted: Wanted[VolumeInputs], size: int) -> Disk:
        project, zone, name = wanted.id.split("/")
        what = f"create of {name} in {zone}"
        body = disk_body(wanted, size)
        self._do(what, "POST", f"{project}/zones/{zone}/disks", zone, body=body)
        for _ in pauses(f"{what}: it is not ready yet", str(wanted.address)):
            found = look_up(partial(self.disk, wanted.id))
            if found is not None and found.phase is Phase.FAILED:
                raise PermanentError(PermanentKind.INVALID, f"{what}: GCE says that it failed", about=zone)
            if found is not None and found.phase is Phase.RUNS:
                return found
        raise AssertionError("pauses end with a fault")

    def grow(self, disk: Disk, size: int) -> None:
        path = f"{_path('disks', disk.id)}/resize"
        self._do(f"growth of {disk.name}", "POST", path, "size", body={"sizeGb": str(size)})

    def remove(self, disk: Disk) -> None:
        self._remove("disks", disk.id)

    def _remove(self, kind: str, made: str) -> None:
        if_there(self._do, f"end of {_name(made)}", "DELETE", _path(kind, made))

    def tag_disk(self, disk: Disk, tags: Mapping[str, str]) -> None:
        """BUSY if somebody else wrote meanwhile: nothing is overwritten."""
        about = tags.get(marks.ADDRESS, disk.name)
        body = {
            "labelFingerprint": disk.raw.get("labelFingerprint"),
            "labels": answers.disk_labels(tags, about, disk.raw.get("labels")),
        }
        self._do(f"marks of {disk.name}", "POST", f"{_path('disks', disk.id)}/setLabels", body=body)

    # -------------------------------------------------------------------------------- attachments

    def attach(self, machine: str, disk: Disk) -> None:
        body = {
            "source": f"projects/{_path('disks', disk.id)}",
            "deviceName": disk.name,
            "autoDelete": False,
            "mode": "READ_WRITE",
        }
        path = f"{_path('instances', machine)}/attachDisk"
        self._do(f"attach of {disk.name}", "POST", path, disk.name, body=body)

    def detach(self, machine: str, disk: Disk, serials: Sequence[str]) -> None:
        device = serials[0] if serials else disk.name
        path = f"{_path('instances', machine)}/detachDisk"
        self._do(f"detach of {disk.name}", "POST", path, disk.name, params={"deviceName": device})


def _path(kind: str, made: str) -> str:
    project, zone, name = made.split("/")
    return f"{project}/zones/{zone}/{kind}/{name}"


def _name(made: str) -> str:
    return made.rpartition("/")[2]


def instance_body(account: Account, wanted: Wanted[NodeInputs], start: FirstStart) -> dict[str, Any]:
    """The body for an instance with its marks, in one request."""
    _, zone, name = wanted.id.split("/")
    inputs = wanted.inputs
    kind, accelerators = _kind(wanted.address, inputs.instance_type, zone)
    mine, text = instance_labels(wanted.tags, str(wanted.address))
    items = {METADATA_ITEM: text, "user-data": start.user_data, "block-project-ssh-keys": "TRUE"}
    groups = list(account.config.network.security_groups)
    reserved = dict(wanted.reserved.body) if wanted.reserved else {}
    scheduling = _scheduling(inputs, bool(accelerators), grouped=bool(wanted.group))
    scheduling |= reserved.pop("scheduling", {})
    return {
        "name": name,
        "description": str(wanted.address),
        "machineType": f"zones/{zone}/machineTypes/{kind}",
        "labels": mine,
        "metadata": {"items": [{"key": key, "value": value} for key, value in sorted(items.items())]},
        "disks": [_boot(account, zone, inputs, wanted.tags)],
        "networkInterfaces": [_network(account, zone, inputs)],
        **({"tags": {"items": groups}} if groups else {}),
        **({"guestAccelerators": accelerators} if accelerators else {}),
        "scheduling": scheduling,
        **({"resourcePolicies": [f"projects/{path_of(wanted.group)}"]} if wanted.group else {}),
        **reserved,
    }


def _kind(address: Address, given: str, zone: str) -> tuple[str, list[dict[str, Any]]]:
    """`n1-standard-8`, or a type with added GPUs: `n1-standard-8+nvidia-tesla-t4:2`."""
    kind, plus, rest = given.partition("+")
    if not plus:
        return kind, []
    model, _, count = rest.partition(":")
    if not model or not (count or "1").isdecimal():
        summary = f"{address}: `{given}` is no type of GCE with its accelerators"
        hint = "write `n1-standard-8+nvidia-tesla-t4:2`"
        raise PermanentError(PermanentKind.INVALID, summary, about="instance_type", hint=hint)
    accelerator = f"zones/{zone}/acceleratorTypes/{model}"
    return kind, [{"acceleratorType": accelerator, "acceleratorCount": int(count or "1")}]


def _boot(account: Account, zone: str, inputs: NodeInputs, tags: Mapping[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "sourceImage": _image(account.image(inputs.region)),
        "labels": {DISK_OF_LABEL: plain_label(tags[marks.OWNER])},
        "diskSizeGb": str(account.options.get("disk_size", NODE_DISK)),
    }
    if "disk_type" in account.options:
        made["diskType"] = f"zones/{zone}/diskTypes/{account.options['disk_type']}"
    return {"boot": True, "autoDelete": True, "mode": "READ_WRITE", "initializeParams": made}


def _image(given: str) -> str:
    """`projects/P/global/images/…`; `P/FAMILY` is a family's newest image."""
    if given.count("/") == 1:
        project, _, family = given.partition("/")
        return f"projects/{project}/global/images/family/{family}"
    return given


def _network(account: Account, zone: str, inputs: NodeInputs) -> dict[str, Any]:
    """An instance's place in the network."""
    network, region = account.config.network, inputs.region or zone.rpartition("-")[0]
    found: dict[str, Any] = {}
    if network.subnets:
        subnet = network.subnets.get(zone) or network.subnets.get(region)
        if not subnet:
            summary = f"`network.subnets` names no subnet for {zone}"
            raise PermanentError(PermanentKind.INVALID, summary, about="network.subnets")
        found["subnetwork"] = subnet if "/" in subnet else f"regions/{region}/subnetworks/{subnet}"
    else:
        given = str(account.options.get("network") or "default")
        found["network"] = given if "/" in given else f"global/networks/{given}"
    if account.public_ip:
        found["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return found


def _scheduling(inputs: NodeInputs, accelerators: bool, *, grouped: bool) -> dict[str, Any]:
    """Instances with GPUs, or close to others, cannot be moved during maintenance of their host. A spot
    instance is deleted when it is taken back.
    """
    gpus = inputs.resources.gpus
    spot = inputs.spot
    found: dict[str, Any] = {"automaticRestart": not spot}
    if gpus or accelerators or spot or grouped:
        found["onHostMaintenance"] = "TERMINATE"
    if spot:
        found |= {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
    return found


def disk_body(wanted: Wanted[VolumeInputs], size: int) -> dict[str, Any]:
    """The body for a disk with its marks, in one request."""
    _, zone, name = wanted.id.split("/")
    return {
        "name": name,
        "description": str(wanted.address),
        "sizeGb": str(size),
        "type": f"zones/{zone}/diskTypes/{wanted.inputs.volume_type or TYPE}",
        "labels": disk_labels(wanted.tags, str(wanted.address)),
    }


class Gce(Named):
    """One project of GCE. No secret is read before something has to be asked.

    Credentials: see `login`. Options: `project` (else that of the key), `network` (its name, where no subnets
    are named), `disk_type` and `disk_size` (GB) of the boot disk, `architecture` of the image,
    `placement_group` (an existing placement policy, for all fleets with `placement: cluster`; `off` for
    none), and those of all clouds. `network.security_groups` are network tags here, which firewall rules go
    by.
    """

    def __init__(self, config: Config) -> None:
        account = Account(config)
        super().__init__(account, Api(account), CODES)
