"""The bodies of create requests: the same create gives the same bytes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from declarative.model.spec.backend import ANYWHERE
from declarative.provider import PermanentError, PermanentKind
from providers.cloud.any.site import Wanted
from providers.cloud.azure.account import Account
from providers.cloud.azure.answers import number_of
from providers.cloud.azure.offers import path_of
from providers.cloud.settings import NODE_DISK

ADMIN = "azureuser"
"""Azure requires a user of its own, who may log in with the same key. `cloud_init.USER` is made as well."""
OS_TYPE = "StandardSSD_LRS"


def address_body(wanted: Wanted, tags: Mapping[str, str]) -> dict[str, Any]:
    """The body for a public address."""
    return {
        "location": wanted.region,
        "tags": dict(tags),
        "sku": {"name": "Standard"},
        **_zones(wanted),
        "properties": {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4"},
    }


def interface_body(
    account: Account, wanted: Wanted, tags: Mapping[str, str], address: str | None
) -> dict[str, Any]:
    """The body for a network interface; `address` is the id of its public address."""
    groups = account.config.network.security_groups
    if len(groups) > 1:
        summary = "a network interface of Azure has one security group at most"
        raise PermanentError(PermanentKind.INVALID, summary, about="network.security_groups")
    inner: dict[str, Any] = {
        "subnet": {"id": _subnet(account, wanted)},
        "privateIPAllocationMethod": "Dynamic",
    }
    if address:
        inner["publicIPAddress"] = {"id": address, "properties": {"deleteOption": "Delete"}}
    found: dict[str, Any] = {"ipConfigurations": [{"name": "primary", "properties": inner}]}
    if groups:
        found["networkSecurityGroup"] = {"id": _full(account, groups[0], "networkSecurityGroups")}
    return {"location": wanted.region, "tags": dict(tags), "properties": found}


def _subnet(account: Account, wanted: Wanted) -> str:
    subnets = account.config.network.subnets
    keys = (wanted.zone, wanted.region, ANYWHERE)
    found = next((subnets[str(key)] for key in keys if key and str(key) in subnets), None)
    if not found:
        summary = f"`network.subnets` names no subnet for {wanted.zone or wanted.region}"
        hint = "write `network: {subnets: {eastus: my-network/my-subnet}}`, or the subnet's whole id"
        raise PermanentError(PermanentKind.INVALID, summary, about="network.subnets", hint=hint)
    if found.startswith("/"):
        return found
    network, slash, subnet = found.partition("/")
    if not slash or not subnet or "/" in subnet:
        summary = f"`{found}` is no subnet of Azure"
        hint = "write `my-network/my-subnet`, or its whole id: `/subscriptions/…`"
        raise PermanentError(PermanentKind.INVALID, summary, about="network.subnets", hint=hint)
    return f"{_full(account, network, 'virtualNetworks')}/subnets/{subnet}"


def _full(account: Account, name: str, kind: str) -> str:
    """The full id of a network resource, from its name in the resource group."""
    return (
        name
        if name.startswith("/")
        else f"{account.root(account.group)}/providers/Microsoft.Network/{kind}/{name}"
    )


def machine_body(account: Account, wanted: Wanted, name: str, interface: str) -> dict[str, Any]:
    """The body for a machine with its tags; `interface` is the id of its network interface.

    Its own disk, interface and address are deleted with it, and no other disk.
    """
    user = str(account.options.get("admin_user") or ADMIN)
    keys = [{"path": f"/home/{user}/.ssh/authorized_keys", "keyData": wanted.login}]
    disk: dict[str, Any] = {
        "name": name,
        "createOption": "FromImage",
        "deleteOption": "Delete",
        "caching": "ReadWrite",
        "managedDisk": {"storageAccountType": account.options.get("disk_type") or OS_TYPE},
        "diskSizeGB": account.options.get("disk_size", NODE_DISK),
    }
    inner: dict[str, Any] = {
        "hardwareProfile": {"vmSize": wanted.size},
        "storageProfile": {
            "imageReference": _image(wanted.image),
            "osDisk": disk,
        },
        "osProfile": {
            "computerName": name,
            "adminUsername": user,
            "customData": base64.b64encode(wanted.user_data.encode()).decode(),
            "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": {"publicKeys": keys}},
        },
        "networkProfile": {
            "networkInterfaces": [
                {"id": interface, "properties": {"primary": True, "deleteOption": "Delete"}}
            ]
        },
    }
    if wanted.spot:
        # Without a cap, it costs at most the price on demand, and ends only for lack of room.
        cap = wanted.mark.node.max_price
        price = {"maxPrice": -1 if cap is None else round(float(cap), 5)}
        inner |= {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": price}
    if wanted.group:
        inner["proximityPlacementGroup"] = {"id": path_of(account, wanted.group)}
    if wanted.reserved:
        inner |= wanted.reserved.body
    who = {}
    if identity := wanted.mark.node.identity:
        if not identity.startswith("/"):
            kind = "Microsoft.ManagedIdentity/userAssignedIdentities"
            identity = f"{account.root(account.group)}/providers/{kind}/{identity}"
        who = {"identity": {"type": "UserAssigned", "userAssignedIdentities": {identity: {}}}}
    return {
        "location": wanted.region,
        "tags": dict(wanted.tags),
        **_zones(wanted),
        **who,
        "properties": inner,
    }


def _image(given: str) -> dict[str, str]:
    """`Publisher:Offer:Sku:Version`, or the id of an image or of one in a gallery."""
    if given.lower().startswith("/communitygalleries/"):
        return {"communityGalleryImageId": given}
    if given.startswith("/"):
        return {"id": given}
    parts = given.split(":")
    if len(parts) != 4 or not all(parts):
        summary = f"`{given}` is no image of Azure"
        hint = "write `Publisher:Offer:Sku:Version`, or its whole id: `/subscriptions/…`"
        raise PermanentError(PermanentKind.INVALID, summary, about="image", hint=hint)
    return dict(zip(("publisher", "offer", "sku", "version"), parts, strict=True))


def disk_body(account: Account, wanted: Wanted) -> dict[str, Any]:
    """The body for a disk with its tags, in one request."""
    return {
        "location": wanted.region,
        "tags": dict(wanted.tags),
        "sku": {"name": wanted.volume_type or account.DISK_TYPE},
        **_zones(wanted),
        "properties": {"creationData": {"createOption": "Empty"}, "diskSizeGB": wanted.gib},
    }


def _zones(wanted: Wanted) -> dict[str, Any]:
    numbers = number_of(wanted.zone)
    return {"zones": numbers} if numbers else {}
