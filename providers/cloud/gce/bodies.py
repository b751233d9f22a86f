"""The bodies of the requests that make something: the same bytes for the same create."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declarative.model.inputs import NodeInputs, VolumeInputs
from declarative.model.spec.clouds import Reach
from declarative.model.state import Address
from declarative.provider import PermanentError, PermanentKind
from providers.cloud import marks
from providers.cloud.gce.account import Account
from providers.cloud.gce.answers import (
    DISK_OF_LABEL,
    METADATA_ITEM,
    disk_labels,
    instance_labels,
    plain_label,
)
from providers.cloud.gce.offers import path_of
from providers.cloud.named import Told, Wanted
from providers.cloud.settings import NODE_DISK

TYPE = "pd-balanced"


def instance_body(account: Account, wanted: Wanted[NodeInputs], told: Told) -> dict[str, Any]:
    """What makes an instance with its marks, in one request."""
    _, zone, name = wanted.id.split("/")
    inputs = wanted.inputs
    kind, accelerators = _kind(wanted.address, inputs.instance_type, zone)
    mine, text = instance_labels(wanted.tags, str(wanted.address))
    items = {METADATA_ITEM: text, "user-data": told.user_data, "block-project-ssh-keys": "TRUE"}
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
    """`n1-standard-8`, or with GPUs that are no part of the type: `n1-standard-8+nvidia-tesla-t4:2`."""
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
    """`projects/P/global/images/…`; `P/FAMILY` is the newest of a family."""
    if given.count("/") == 1:
        project, _, family = given.partition("/")
        return f"projects/{project}/global/images/family/{family}"
    return given


def _network(account: Account, zone: str, inputs: NodeInputs) -> dict[str, Any]:
    """Where in the network an instance is. It gets a public address where nothing says that it has none."""
    network, region = account.config.network, inputs.region or zone.rpartition("-")[0]
    found: dict[str, Any] = {}
    if network.subnets:
        subnet = network.subnets.get(zone) or network.subnets.get(region)
        if not subnet:
            summary = f"`network.subnets` has none for {zone}"
            raise PermanentError(PermanentKind.INVALID, summary, about="network.subnets")
        found["subnetwork"] = subnet if "/" in subnet else f"regions/{region}/subnetworks/{subnet}"
    else:
        given = str(account.options.get("network") or "default")
        found["network"] = given if "/" in given else f"global/networks/{given}"
    wanted = network.public_ip
    if wanted or (wanted is None and network.reach is not Reach.PRIVATE):
        found["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return found


def _scheduling(inputs: NodeInputs, accelerators: bool, *, grouped: bool) -> dict[str, Any]:
    """With GPUs, and close to others, it cannot be moved while its host is mended. A spot instance that is
    taken away is gone.
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
    """What makes a disk with its marks, in one request."""
    _, zone, name = wanted.id.split("/")
    return {
        "name": name,
        "description": str(wanted.address),
        "sizeGb": str(size),
        "type": f"zones/{zone}/diskTypes/{wanted.inputs.volume_type or TYPE}",
        "labels": disk_labels(wanted.tags, str(wanted.address)),
    }
