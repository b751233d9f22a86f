"""DigitalOcean: droplets and volumes, both with tags. A volume's name is unique in its region.

What we write is in tags (`labels`). Tags are objects of their own there: each of ours belongs to one droplet
or volume and is deleted with it. Attach, detach and resize are actions that take some time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from declarative.model.blocks import Shape
from declarative.model.status import NodeState
from declarative.provider import Config, PermanentError, PermanentKind, ProviderError
from providers.cloud.account import if_there
from providers.cloud.any import labels, names
from providers.cloud.any.account import Account
from providers.cloud.any.json_site import JsonSite, Listing
from providers.cloud.any.site import Disk, Found, Machine, Size, Wanted, What, Written, gpu_model
from providers.cloud.provider import Cloud

STATES: Mapping[str, tuple[NodeState, str | None]] = {
    "new": (NodeState.PROVISIONING, "it is starting"),
    "active": (NodeState.READY, None),
    "off": (NodeState.NOT_READY, "it is off"),
    "archive": (NodeState.TERMINATING, "it is archived"),
}
RESOURCES: Mapping[What, str] = {"machine": "droplet", "disk": "volume"}
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PAGE = 200
"""The largest page of a listing."""


def digital_ocean(config: Config) -> Cloud:
    """The provider for `driver: digitalocean`."""
    account = Account(config, {}, lambda a, _: DigitalOcean(a), cloud="DigitalOcean")
    return Cloud(account, adopts=DigitalOcean.adopts)


class DigitalOcean(JsonSite):
    """One account of DigitalOcean's."""

    unique = frozenset(("disk",))
    keeps = frozenset(("machine", "disk"))
    grows = True
    adopts = True
    shifts = True

    SIZES = Listing("sizes", "a size")
    MACHINES = Listing("droplets", "a droplet")
    DISKS = Listing("volumes", "a volume")
    MACHINE_ID = re.compile(r"[0-9]+")

    def __init__(self, account: Account) -> None:
        def make(key: str) -> Any:
            from libcloud.compute.providers import get_driver

            choose: Any = get_driver("digitalocean")
            found: Any = choose(key)
            found.ex_per_page = PAGE  # the constructor takes no keywords
            return found

        # Without a key, a droplet mails a root password to the account's owner.
        super().__init__(account, make, "/v2/account/keys", "public_key")

    @staticmethod
    def following(found: Mapping[str, Any]) -> dict[str, Any] | None:
        pages = (found.get("links") or {}).get("pages") or {}
        given = parse_qs(urlsplit(pages.get("next") or "").query).get("page")
        return {"page": given[0]} if given else None

    # ----------------------------------------------------------------------------------- machines

    @staticmethod
    def _size(item: Mapping[str, Any]) -> Size | None:
        if not item.get("available", True):
            return None
        price = item.get("price_hourly")
        shape = Shape(
            cpu=int(item["vcpus"]),
            memory_mib=int(item["memory"]),
            disk_mib=int(item["disk"]) * 1024,
            **_gpus(item.get("gpu_info") or {}),
        )
        return Size(
            name=str(item["slug"]),
            shape=shape,
            price=float(price) if price and price > 0 else None,
            regions=tuple(item["regions"]),
        )

    def _narrowed(self) -> dict[str, Any]:
        return {"tag_name": labels.owner_tag(self._account.owner)}

    def _machine(self, item: Mapping[str, Any]) -> Machine | None:
        try:
            made, tags = str(item["id"]), item.get("tags") or []
            state, reason = STATES.get(item["status"], (NodeState.NOT_READY, f"it is {item['status']}"))
            nets = (item.get("networks") or {}).get("v4") or []
            private, public = (
                next((n["ip_address"] for n in nets if n["type"] == kind), "")
                for kind in ("private", "public")
            )
            region, made_at = item["region"]["slug"], item["created_at"]
        except (KeyError, TypeError, AttributeError):
            raise self._unreadable(self.MACHINES) from None
        written = labels.written(self._account.owner, tags, made)
        if written is None:
            return None
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
        image = wanted.image
        network = self._account.config.network
        if network.security_groups or network.subnets or network.public_ip is False:
            summary = "a droplet has a public address, no subnet, and its firewalls go by its tags"
            raise self._rest.refused(summary, "network")
        asked = {
            "name": wanted.written.address.name,
            "region": wanted.region,
            "size": wanted.size,
            "image": int(image) if image.isdecimal() else image,
            "ssh_keys": [int(wanted.key)] if wanted.key else [],
            "user_data": wanted.user_data,
            "tags": [*labels.tags(wanted.written), *labels.of_users(wanted.tags)],
        }
        return self._launched(wanted, asked)

    def end(self, machine: Machine) -> None:
        """Its volumes are detached, and its tags deleted."""
        super().end(machine)
        mine = labels.own(machine.written.token, machine.raw)
        with suppress(ProviderError):
            # A duplicate droplet has the same tags as its twin.
            others = self._listed(self.MACHINES, tag_name=mine[0]) if mine else []
            if all(str(item.get("id")) == machine.id for item in others):
                self._forget(mine)

    # -------------------------------------------------------------------------------------- disks

    def _disk(self, item: Mapping[str, Any]) -> Disk | None:
        try:
            made, tags = str(item["id"]), item.get("tags") or []
            size, region, name = int(item["size_gigabytes"]), item["region"]["slug"], item["name"]
            on, made_at = tuple(str(d) for d in item["droplet_ids"] or ()), item["created_at"]
        except (KeyError, TypeError, ValueError):
            raise self._unreadable(self.DISKS) from None
        written = labels.written(self._account.owner, tags, made)
        if written is None:
            return None
        return Disk(
            id=made,
            region=region,
            size=size,
            on=on,
            device=f"/dev/disk/by-id/scsi-0DO_Volume_{name}",
            written=written,
            made_at=made_at,
            raw=tuple(tags),
        )

    def make(self, wanted: Wanted) -> Disk:
        """Its name belongs to this create only."""
        if wanted.volume_type:
            raise self._rest.refused("it has one type of volumes: leave `volume_type` out", "volume_type")
        asked = {
            "name": names.unique(wanted.written),
            "region": wanted.region,
            "size_gigabytes": wanted.gib,
            "description": str(wanted.written.address),
            "tags": [*labels.tags(wanted.written), *labels.of_users(wanted.tags)],
        }
        return self._made(wanted, asked, "tags")

    def remove(self, disk: Disk) -> None:
        super().remove(disk)
        self._forget(labels.own(disk.written.token, disk.raw))

    def attach(self, disk: Disk, machine: Machine) -> None:
        self._act(disk, {"type": "attach", "droplet_id": int(machine.id), "region": disk.region})

    def detach(self, disk: Disk, machine: Machine) -> None:
        try:
            self._act(disk, {"type": "detach", "droplet_id": int(machine.id), "region": disk.region})
        except PermanentError as error:
            if "attachment not found" not in error.summary.lower():
                raise

    def grow(self, disk: Disk, gib: int) -> None:
        self._act(disk, {"type": "resize", "size_gigabytes": gib, "region": disk.region})

    def _act(self, disk: Disk, action: Mapping[str, Any]) -> None:
        path = f"/v2/volumes/{disk.id}/actions"
        self._rest.one(self._rest.ask("POST", path, action, about=disk.id), "action", path)

    # ----------------------------------------------------------------------------------- adoption

    def found(self, made: str) -> Found | None:
        item = self._volume(made)
        if item is None:
            return None
        try:
            size, region = int(item["size_gigabytes"]), item["region"]["slug"]
        except (KeyError, TypeError, ValueError):
            raise self._rest.bad_answer(f"/v2/volumes/{made}", "has a volume that cannot be read") from None
        have = item.get("tags") or ()
        return Found(
            id=made, region=region, size=size, marks=labels.marks_of(have, made), tags=labels.users(have)
        )

    def _volume(self, made: str) -> Mapping[str, Any] | None:
        path = f"/v2/volumes/{made}"
        if not _UUID.fullmatch(made):
            return None
        found = if_there(self._rest.ask, "GET", path, about=made)
        return None if found is None else self._rest.one(found, "volume", path)

    def take(self, made: str, mark: Written, tags: Mapping[str, str]) -> None:
        """Our name comes last; the user's tags come after the mark."""
        parts, have = labels.tags(mark)[1:], (self._volume(made) or {}).get("tags") or ()
        self._forget(tag for tag in labels.ours(have) if tag not in parts)  # of a mark without an owner
        for tag in (*parts, *labels.of_users(tags), labels.owner_tag(mark.owner)):
            self._tag("disk", made, tag)

    def let_go(self, made: str, tags: Mapping[str, str]) -> None:
        """Our name is removed first: while a disk has it, the rest counts as complete."""
        have = (self._volume(made) or {}).get("tags") or ()
        if labels.owner_of(have) not in (None, self._account.owner):
            return
        for tag in (*labels.of_users(tags), labels.owner_tag(self._account.owner)) if have else ():
            self._on("DELETE", "disk", made, tag)
        for tag in labels.ours(have):
            if_there(self._rest.ask, "DELETE", f"/v2/tags/{quote(tag, safe='')}", about=made)

    # -------------------------------------------------------------------------------------- marks

    def write(self, thing: Machine | Disk, texts: dict[str, str | None]) -> None:
        """New tags are added before the old ones are deleted."""
        token, have = thing.written.token, labels.read(thing.raw)
        for key, text in texts.items():
            if text is not None and text == have.texts.get(key):
                continue
            new = labels.pack(token, key, text, have.versions.get(key, 0) + 1) if text is not None else []
            for tag in new:
                self._tag(_kind(thing), thing.id, tag)
            self._forget(tag for tag in have.tags.get(key, ()) if tag not in new)

    def retag(self, thing: Machine | Disk, before: dict[str, str], after: dict[str, str]) -> None:
        """Users' tags may be on other things too, so they are removed and not deleted."""
        old, new = labels.of_users(before), labels.of_users(after)
        for tag in (t for t in new if t not in thing.raw):
            self._tag(_kind(thing), thing.id, tag)
        for tag in (t for t in old if t not in new):
            self._on("DELETE", _kind(thing), thing.id, tag)

    def owners(self, kind: What) -> Mapping[str, str | None]:
        found = self._listed(self.MACHINES if kind == "machine" else self.DISKS)
        return {str(i.get("id")): labels.owner_of(i.get("tags") or ()) for i in found}

    def restore_mark(self, kind: What, made: str, mark: Written, tags: Mapping[str, str]) -> None:
        """The owner's tag comes last: while it is missing, the others count as incomplete."""
        for tag in (*labels.of_users(tags), *reversed(labels.tags(mark))):
            self._tag(kind, made, tag)

    def _tag(self, kind: What, made: str, tag: str) -> None:
        with suppress(PermanentError):  # it may exist already; if not, the next request fails
            self._rest.ask("POST", "/v2/tags", {"name": tag}, about=made)
        self._on("POST", kind, made, tag)

    def _on(self, method: str, kind: What, made: str, tag: str) -> None:
        body = {"resources": [{"resource_id": made, "resource_type": RESOURCES[kind]}]}
        try:
            self._rest.ask(method, f"/v2/tags/{quote(tag, safe='')}/resources", body, about=made)
        except PermanentError as error:
            if method == "POST" or error.kind is not PermanentKind.NOT_FOUND:
                raise

    def _forget(self, tags: Iterable[str]) -> None:
        """Delete tags that are on this thing only, which also removes them from it. A tag left behind has no
        effect.
        """
        for tag in tags:
            with suppress(ProviderError):
                self._rest.ask("DELETE", f"/v2/tags/{quote(tag, safe='')}")


def _kind(thing: Machine | Disk) -> What:
    return "machine" if isinstance(thing, Machine) else "disk"


def _gpus(info: Mapping[str, Any]) -> dict[str, Any]:
    """The GPUs of a size, as fields of a shape."""
    count = int(info.get("count") or 0)
    if not count:
        return {"gpus": 0}
    name, vendor = gpu_model(str(info.get("model") or ""))
    vram = (info.get("vram") or {}).get("amount")  # the total of all GPUs is reported
    memory = int(vram) * 1024 // count if vram else None
    return {"gpus": count, "gpu_name": name, "gpu_memory_mib": memory, "gpu_vendor": vendor}
