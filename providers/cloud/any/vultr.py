"""Vultr: instances with tags, and blocks (volumes) with only a label.

So a block's label says who owns it (`names`), and data about its attachment is on the instance. All tags of
an instance are written at once, so each has one writer at a time.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from declarative.model.blocks import Shape
from declarative.model.status import NodeState
from declarative.provider import Config, PermanentError
from providers.cloud.any import labels, names
from providers.cloud.any.account import Account
from providers.cloud.any.json_site import LabelledSite, Listing
from providers.cloud.any.site import GPU_MEMORY_GB, Disk, Machine, Size, Wanted, What, Written, gpu_model
from providers.cloud.provider import Cloud

HOURS = 672
"""Vultr's charged hours of a month, for plans without a price by the hour."""
NOWHERE = ("", "0.0.0.0")  # noqa: S104  # what stands there before there is an address
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def vultr(config: Config) -> Cloud:
    """The provider for `driver: vultr`."""
    return Cloud(Account(config, {}, lambda a, _: Vultr(a), cloud="Vultr"))


class Vultr(LabelledSite):
    """One account of Vultr's."""

    settle = 10.0
    keeps = frozenset(("machine",))
    grows = True

    SIZES = Listing("plans", "a plan")
    """The plans without bare metal, which takes no volumes."""
    MACHINES = Listing("instances", "an instance")
    LABELS = "tags"
    DISKS = Listing("blocks", "a block")
    MACHINE_ID = _UUID

    def __init__(self, account: Account) -> None:
        def make(key: str) -> Any:
            from libcloud.compute.providers import get_driver

            found: Any = get_driver("vultr")
            return found(key, api_version="2")

        super().__init__(account, make, "/v2/ssh-keys", "ssh_key")

    @staticmethod
    def following(found: Mapping[str, Any]) -> dict[str, Any] | None:
        links = (found.get("meta") or {}).get("links") or {}
        return {"cursor": links["next"]} if links.get("next") else None

    # ----------------------------------------------------------------------------------- machines

    @staticmethod
    def _size(item: Mapping[str, Any]) -> Size:
        return Size(
            name=str(item["id"]), shape=_shape(item), price=_price(item), regions=tuple(item["locations"])
        )

    def _machine(self, item: Mapping[str, Any]) -> Machine | None:
        try:
            made, tags = str(item["id"]), item.get("tags") or []
            public = "" if item["main_ip"] in NOWHERE else str(item["main_ip"])
            private = str(item.get("internal_ip") or "")
            state, reason = _state(item)
            region, made_at = item["region"], item["date_created"]
        except (KeyError, TypeError, AttributeError):
            raise self._unreadable(self.MACHINES) from None
        written = labels.written(self._account.owner, tags, made)
        if written is None:
            return None
        if state is NodeState.READY and not public:
            state, reason = NodeState.PROVISIONING, "it has no address yet"
        return Machine(
            id=made,
            region=region,
            state=state,
            reason=reason,
            address=private or public,
            public_address=public,
            written=written,
            made_at=made_at,
            raw=tuple(tags),
        )

    def launch(self, wanted: Wanted) -> Machine:
        network = self._account.config.network
        if len(network.security_groups) > 1 or network.subnets or network.public_ip is False:
            summary = "a node has a public address, one firewall group (`security_groups`), and no subnet"
            raise self._rest.refused(summary, "network")
        asked = {
            "label": wanted.written.address.name,
            "hostname": wanted.written.address.name,
            "region": wanted.region,
            "plan": wanted.size,
            **_image(wanted.image),
            "sshkey_id": [wanted.key] if wanted.key else [],
            "user_data": base64.b64encode(wanted.user_data.encode()).decode(),
            "tags": [*labels.tags(wanted.written), *labels.of_users(wanted.tags)],
            "activation_email": False,
            "enable_ipv6": False,
            **({"firewall_group_id": network.security_groups[0]} if network.security_groups else {}),
        }
        return self._launched(wanted, asked)

    # -------------------------------------------------------------------------------------- disks

    def _disk(self, item: Mapping[str, Any]) -> Disk | None:
        written = names.read("volume", item.get("label"), self._account.owner)
        if written is None:
            return None
        try:
            mount = item.get("mount_id")
            return Disk(
                id=str(item["id"]),
                region=item["region"],
                size=int(item["size_gb"]),
                on=(str(item["attached_to_instance"]),) if item["attached_to_instance"] else (),
                busy=item["status"] != "active",
                device=f"/dev/disk/by-id/virtio-{mount}" if mount else None,
                written=written,
                made_at=item["date_created"],
            )
        except (KeyError, TypeError, ValueError):
            raise self._unreadable(self.DISKS) from None

    def make(self, wanted: Wanted) -> Disk:
        if wanted.tags:
            raise self._rest.refused("a volume has no tags there: leave `tags` out", "tags")
        body = {"region": wanted.region, "size_gb": wanted.gib, "label": names.name(wanted.written)}
        if wanted.volume_type:
            body["block_type"] = wanted.volume_type
        return self._made(wanted, body, "label")

    def attach(self, disk: Disk, machine: Machine) -> None:
        """Live: the instance goes on running."""
        body = {"instance_id": machine.id, "live": True}
        self._rest.ask("POST", f"/v2/blocks/{disk.id}/attach", body, about=disk.id)

    def detach(self, disk: Disk, machine: Machine) -> None:
        try:
            self._rest.ask("POST", f"/v2/blocks/{disk.id}/detach", {"live": True}, about=disk.id)
        except PermanentError as error:
            if not re.search(r"not (currently )?attached", error.summary):
                raise

    def grow(self, disk: Disk, gib: int) -> None:
        self._rest.ask("PATCH", f"/v2/blocks/{disk.id}", {"size_gb": gib}, about=disk.id)

    # -------------------------------------------------------------------------------------- marks

    def owners(self, kind: What) -> Mapping[str, str | None]:
        if kind == "machine":
            found = self._listed(self.MACHINES)
            return {str(i.get("id")): labels.owner_of(i.get("tags") or ()) for i in found}
        found = self._listed(self.DISKS)
        return {str(i.get("id")): names.owner_of(i.get("label"), self._account.owner) for i in found}

    def restore_mark(self, kind: What, made: str, mark: Written, tags: Mapping[str, str]) -> None:
        if kind == "disk":
            self._rest.ask("PATCH", f"/v2/blocks/{made}", {"label": names.name(mark)}, about=made)
            return
        super().restore_mark(kind, made, mark, tags)


def _image(image: str) -> dict[str, Any]:
    """`2136` is an operating system, a UUID a snapshot, anything else an application's image."""
    if image.isdecimal():
        return {"os_id": int(image)}
    return {"snapshot_id": image} if _UUID.fullmatch(image) else {"image_id": image}


def _state(item: Mapping[str, Any]) -> tuple[NodeState, str | None]:
    status, power = item["status"], item["power_status"]
    if status == "active" and power == "running":
        return NodeState.READY, None
    if status in ("pending", "resizing"):
        return NodeState.PROVISIONING, "it is starting"
    return NodeState.NOT_READY, f"it is {power if status == 'active' else status}"


def _shape(item: Mapping[str, Any]) -> Shape:
    return Shape(
        cpu=int(item["vcpu_count"]),
        memory_mib=int(item["ram"]),
        disk_mib=int(item["disk"]) * 1024 or None,
        **_gpus(item),
    )


def _gpus(item: Mapping[str, Any]) -> dict[str, Any]:
    """The GPUs of a plan, as fields of a shape. A share of a GPU counts as one."""
    name, vendor = gpu_model(str(item.get("gpu_type") or ""))
    vram = int(item.get("gpu_vram_gb") or 0)
    if not name or not vram:
        return {"gpus": 0}
    count = max(1, vram // (GPU_MEMORY_GB.get(name, vram) or 1))
    return {"gpus": count, "gpu_name": name, "gpu_memory_mib": vram * 1024 // count, "gpu_vendor": vendor}


def _price(item: Mapping[str, Any]) -> float | None:
    """USD an hour; None if it is unknown."""
    hourly, monthly = item.get("hourly_cost"), item.get("monthly_cost")
    price = float(hourly) if hourly else round(float(monthly or 0) / HOURS, 5)
    return price if price > 0 else None
