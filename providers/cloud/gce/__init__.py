"""The driver `gce`: Google's Compute Engine. It makes the calls for instances and disks, follows their
operations, and builds the bodies of create requests.

A name is unique in a zone, so a thing is named after its token. A change is answered with an operation, whose
errors come later than the answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from declarative.model.inputs import NodeInputs, PlacedInputs, VolumeInputs
from declarative.model.resource import Offer
from declarative.model.state import Address
from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import marks
from providers.cloud.account import if_there, look_up, pauses
from providers.cloud.any.site import Disk, Machine, Site, Wanted, What, by_ids
from providers.cloud.bad_answers import asked
from providers.cloud.gce import answers, offers
from providers.cloud.gce.account import Account
from providers.cloud.gce.answers import (
    DISK_OF_LABEL,
    METADATA_ITEM,
    disk_labels,
    instance_labels,
    plain_label,
)
from providers.cloud.gce.offers import Policies, Reservations, path_of
from providers.cloud.placement_groups import Reserved
from providers.cloud.provider import ABILITIES, TaggedCloud
from providers.cloud.settings import NODE_DISK

_ID = re.compile(r"([a-z0-9.:-]{1,100})/([a-z0-9-]{1,63})/([a-z]([a-z0-9-]{0,61}[a-z0-9])?)")


class GceSite(Site):
    """One project. Ids are `project/zone/name`."""

    unique = frozenset(("machine", "disk"))
    spots = grows = adopts = True
    called = (
        "write the name of a disk of the backend's project, and its `availability_zone`; or "
        "`projects/P/zones/Z/disks/NAME`"
    )

    def __init__(self, account: Account) -> None:
        self._account = account
        self._reservations = Reservations(account)
        self.groups: Policies = Policies(account, self._do, self.machines)

    def reserved(self, node: NodeInputs) -> Reserved:
        return self._reservations.asked(node, self._account.zone(node))

    def id_of(self, kind: What, address: Address, token: str, place: PlacedInputs) -> str:
        return f"{self._account.project}/{self._account.zone(place)}/{marks.name_of(address, token)}"

    def disk_called(self, given: str, volume: VolumeInputs) -> str | None:
        """A machine can use only disks of its own project."""
        path = re.search(r"(?:^|/)projects/([^/]+)/zones/([^/]+)/disks/([^/]+)$", given)
        project = self._account.project
        made = "/".join(path.groups()) if path else f"{project}/{self._account.zone(volume)}/{given}"
        return made if _ID.fullmatch(made) and made.startswith(f"{project}/") else None

    def around(self, node: NodeInputs, *, ends: bool) -> AbstractContextManager[None]:
        return self.groups.changing(node, ends=ends)

    def _listed(
        self, kind: str, name: str | None = None, *, everyones: bool = False
    ) -> list[Mapping[str, Any]]:
        wanted = f'labels.{answers.OWNER_LABEL}="{answers.plain_label(self._account.owner)}"'
        wanted = f"labels.{answers.OWNER_LABEL}:*" if everyones else wanted
        if name is not None:
            wanted = f'({wanted}) (name="{name}")'
        what = f"list of {kind}"
        path = f"{self._account.project}/aggregated/{kind}"
        read = self._account.pages(what, path, filter=wanted, returnPartialSuccess="false")
        found = [item for page in read for item in answers.scoped(what, page, kind)]
        return [item for item in found if name is None or item.get("name") == name]

    def _is_ours(self, thing: Machine | Disk) -> bool:
        return thing.tags.get(marks.OWNER) == self._account.owner

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

    def machines(self) -> list[Machine]:
        return self._machines()

    def _machines(self, name: str | None = None) -> list[Machine]:
        found = [answers.instance("list of instances", item) for item in self._listed("instances", name)]
        return [machine for machine in found if self._is_ours(machine)]

    def machines_with(self, tags: Mapping[str, str]) -> list[Machine]:
        return self._machines(marks.name_in(tags))

    def machines_by_id(self, ids: Collection[str]) -> Mapping[str, Machine]:
        return by_ids(ids, self.machines, self._machine)

    def _machine(self, made: str) -> Machine | None:
        found = self._thing("instances", made)
        return None if found is None else answers.instance("instance", found)

    def everyones(self, addresses: Collection[Address]) -> list[Machine | Disk]:
        machines, disks = (self._listed(kind, everyones=True) for kind in ("instances", "disks"))
        return [
            *(answers.instance("list of instances", found) for found in machines),
            *(answers.disk("list of disks", found) for found in disks),
        ]

    def ended(self, kind: What, made: str) -> str | None:
        """An id includes its account, so the cloud's denial is reliable."""
        return f"{self._account.CLOUD} has no {made} any more"

    def launch(self, wanted: Wanted) -> Machine:
        """Waits for the operation, since only it reports what went wrong.

        It sends no `requestId`: a repeated one returns the earlier operation, even a failed one. The name
        prevents a second instance anyway.
        """
        made = self.id_of("machine", wanted.mark.address, wanted.mark.token, wanted.mark.node)
        project, zone, name = made.split("/")
        body = instance_body(self._account, wanted, zone, name)
        what = f"create of {name} in {zone}"
        try:
            self._do(what, "POST", f"{project}/zones/{zone}/instances", zone, body=body)
        except TransientError as error:
            if error.kind is not TransientKind.BUSY:
                raise
        found = look_up(partial(self._machine, made))
        if found is None:
            raise TransientError(TransientKind.BUSY, f"{what}: it is not there yet", about=zone)
        return found

    def end(self, machine: Machine) -> None:
        """Only its boot disk goes with it."""
        self._remove("instances", machine.id)

    def tag(self, thing: Machine | Disk, new: Mapping[str, str], old: Collection[str] = ()) -> None:
        """All at once. BUSY if somebody else wrote meanwhile: nothing is overwritten."""
        tags = {**{key: value for key, value in thing.tags.items() if key not in old}, **new}
        what, have = f"marks of {thing.called}", thing.raw.get("labels")
        if isinstance(thing, Disk):
            about = tags.get(marks.ADDRESS, thing.called)
            path, labels = _path("disks", thing.id), answers.disk_labels(tags, about, have)
        else:
            path = _path("instances", thing.id)
            labels, text = answers.instance_labels(tags, thing.called, have)
            metadata = thing.raw.get("metadata") or {}
            items = [i for i in metadata.get("items") or () if i.get("key") != METADATA_ITEM]
            items.append({"key": METADATA_ITEM, "value": text})
            body = {"fingerprint": metadata.get("fingerprint"), "items": items}
            self._do(what, "POST", f"{path}/setMetadata", body=body)
            if labels == have:
                return
        body = {"labelFingerprint": thing.raw.get("labelFingerprint"), "labels": labels}
        self._do(what, "POST", f"{path}/setLabels", body=body)

    # -------------------------------------------------------------------------------------- disks

    def disks(self) -> list[Disk]:
        return self._disks()

    def _disks(self, name: str | None = None) -> list[Disk]:
        found = [answers.disk("list of disks", item) for item in self._listed("disks", name)]
        ours = [disk for disk in found if self._is_ours(disk)]
        return [disk for disk in ours if disk.tags.get(marks.ADDRESS, "").startswith("volume/")]

    def disks_with(self, tags: Mapping[str, str]) -> list[Disk]:
        """An adopted one has another name."""
        return self._disks(marks.name_in(tags)) or self.disks()

    def disks_by_id(self, ids: Collection[str]) -> Mapping[str, Disk]:
        return by_ids(ids, self.disks, self._disk)

    def _disk(self, made: str) -> Disk | None:
        found = self._thing("disks", made)
        return None if found is None else answers.disk("disk", found)

    def make(self, wanted: Wanted) -> Disk:
        made = self.id_of("disk", wanted.mark.address, wanted.mark.token, wanted.mark.volume)
        project, zone, name = made.split("/")
        what = f"create of {name} in {zone}"
        body = {
            "name": name,
            "description": str(wanted.mark.address),
            "sizeGb": str(wanted.gib),
            "type": f"zones/{zone}/diskTypes/{wanted.volume_type or self._account.DISK_TYPE}",
            "labels": disk_labels(wanted.tags, str(wanted.mark.address)),
        }
        self._do(what, "POST", f"{project}/zones/{zone}/disks", zone, body=body)
        found = look_up(partial(self._disk, made))
        if found is None:
            raise TransientError(TransientKind.BUSY, f"{what}: it is not there yet", about=zone)
        return found

    def grow(self, disk: Disk, gib: int) -> None:
        path = f"{_path('disks', disk.id)}/resize"
        self._do(f"growth of {disk.name}", "POST", path, "size", body={"sizeGb": str(gib)})

    def remove(self, disk: Disk) -> None:
        self._remove("disks", disk.id)

    def _remove(self, kind: str, made: str) -> None:
        if_there(self._do, f"end of {_name(made)}", "DELETE", _path(kind, made))

    # -------------------------------------------------------------------------------- attachments

    def attach(self, disk: Disk, machine: Machine) -> None:
        body = {
            "source": f"projects/{_path('disks', disk.id)}",
            "deviceName": disk.name,
            "autoDelete": False,
            "mode": "READ_WRITE",
        }
        path = f"{_path('instances', machine.id)}/attachDisk"
        self._do(f"attach of {disk.name}", "POST", path, disk.name, body=body)

    def detach(self, disk: Disk, machine: Machine) -> None:
        device = (machine.devices or {}).get(disk.id)
        name = device.serials[0] if device else disk.name
        path = f"{_path('instances', machine.id)}/detachDisk"
        self._do(f"detach of {disk.name}", "POST", path, disk.name, params={"deviceName": name})


def _path(kind: str, made: str) -> str:
    project, zone, name = made.split("/")
    return f"{project}/zones/{zone}/{kind}/{name}"


def _name(made: str) -> str:
    return made.rpartition("/")[2]


SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""The scope of a node's service account: what it may do is up to its roles."""


def instance_body(account: Account, wanted: Wanted, zone: str, name: str) -> dict[str, Any]:
    """The body for an instance with its marks, in one request."""
    inputs, address = wanted.mark.node, wanted.mark.address
    kind, accelerators = _kind(address, inputs.instance_type, zone)
    mine, text = instance_labels(wanted.tags, str(address))
    items = {METADATA_ITEM: text, "user-data": wanted.user_data, "block-project-ssh-keys": "TRUE"}
    groups = list(account.config.network.security_groups)
    reserved = dict(wanted.reserved.body) if wanted.reserved else {}
    scheduling = _scheduling(inputs, bool(accelerators), grouped=bool(wanted.group))
    scheduling |= reserved.pop("scheduling", {})
    return {
        "name": name,
        "description": str(address),
        "machineType": f"zones/{zone}/machineTypes/{kind}",
        "labels": mine,
        "metadata": {"items": [{"key": key, "value": value} for key, value in sorted(items.items())]},
        "disks": [_boot(account, zone, wanted)],
        "networkInterfaces": [_network(account, zone, inputs)],
        **({"tags": {"items": groups}} if groups else {}),
        **({"guestAccelerators": accelerators} if accelerators else {}),
        "scheduling": scheduling,
        **({"serviceAccounts": [{"email": inputs.identity, "scopes": [SCOPE]}]} if inputs.identity else {}),
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


def _boot(account: Account, zone: str, wanted: Wanted) -> dict[str, Any]:
    made: dict[str, Any] = {
        "sourceImage": _image(wanted.image),
        "labels": {DISK_OF_LABEL: plain_label(wanted.mark.owner)},
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


class Gce(TaggedCloud):
    """One project of GCE. No secret is read before something has to be asked.

    Credentials: see `login`. Options: `project` (else that of the key), `network` (its name, where no subnets
    are named), `disk_type` and `disk_size` (GB) of the boot disk, `architecture` of the image,
    `placement_group` (an existing placement policy, for all fleets with `placement: cluster`; `off` for
    none), and those of all clouds. `network.security_groups` are network tags here, which firewall rules go
    by.
    """

    CAN = frozenset(ABILITIES)

    def __init__(self, config: Config) -> None:
        self._project = Account(config, lambda account, _: GceSite(account))
        super().__init__(self._project)

    @asked
    def offers(self) -> tuple[Offer, ...]:
        return offers.offers(self._project)
