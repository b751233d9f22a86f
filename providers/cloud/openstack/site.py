"""OpenStack as a site: one region's servers and volumes, whose metadata are part of the create requests.

OpenStack has no client tokens, and names are not unique. So each create is preceded by a look for the same
metadata, and a duplicate that appears nevertheless is deleted.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

from declarative.model.inputs import NodeInputs
from declarative.model.status import NodeState
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import marks
from providers.cloud.account import if_there, pauses
from providers.cloud.any.site import Disk, Machine, Site, Wanted, What, by_ids
from providers.cloud.keys import Pairs
from providers.cloud.openstack import answers, names
from providers.cloud.openstack.account import Account, Floating
from providers.cloud.openstack.answers import BAD
from providers.cloud.openstack.region import Region
from providers.ssh.key_pairs import Login

ID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""The form of the ids of servers and volumes."""
GROWS_IN_USE = "volume 3.42"
"""The first version of cinder's API that grows a volume in use."""


class NovaKeys(Pairs[Region, str]):
    """A pair is recognized by its public key. Pairs belong to their user."""

    def _send(self, region: Region, login: Login) -> None:
        pair = {"name": self.name, "public_key": f"{login.public} {self.name}"}
        region.ask("the key pair", "compute", "POST", "/os-keypairs", {"keypair": pair})

    def _is_of(self, there: str, login: Login) -> bool:
        return there.split()[:2] == login.public.split()[:2]

    def _another(self, region: Region, login: Login, there: str) -> PermanentError:
        return self._others(region, f"nova's key pair {self.name} is another")

    def _find(self, region: Region) -> str | None:
        what = "the key pair"
        found = if_there(region.ask, what, "compute", "GET", f"/os-keypairs/{self.name}")
        return None if found is None else str(answers.inside(what, found, "keypair").get("public_key") or "")

    def _remove(self, region: Region) -> None:
        if_there(region.ask, "the key pair", "compute", "DELETE", f"/os-keypairs/{self.name}")


class OpenStackSite(Site):
    """One region."""

    batches = merges = grows = adopts = True
    called = "write its id, of the named project and `region`: `openstack volume list`"

    def __init__(self, account: Account, region: Region, keys: NovaKeys) -> None:
        self._account = account
        self._region = region
        self._keys = keys
        self._floating = Floating(account)
        self.settle = account.settle

    # ------------------------------------------------------------------------------------- look-ups

    def _is_ours(self, thing: Machine | Disk) -> bool:
        return thing.tags.get(marks.OWNER) == self._account.owner

    def machines(self) -> list[Machine]:
        return self.machines_with({})

    def machines_with(self, tags: Mapping[str, str]) -> list[Machine]:
        """There is no filter for metadata, but one for names."""
        name = tags.get(marks.ADDRESS, "").partition("/")[2]
        query = {"name": f"^{re.escape(name)}$"} if name else {}
        return [server for server in self._region.servers(**query) if self._is_ours(server)]

    def machines_by_id(self, ids: Collection[str]) -> Mapping[str, Machine]:
        good = [made for made in ids if re.fullmatch(ID, made)]
        return by_ids(good, self._region.servers, self._region.server)

    def disks(self) -> list[Disk]:
        return self.disks_with({})

    def disks_with(self, tags: Mapping[str, str]) -> list[Disk]:
        """If a cinder ignores the filter for metadata, nothing is missed."""
        found = self._region.volumes(**({"metadata": str(dict(tags))} if tags else {}))
        return [volume for volume in found if self._is_ours(volume)]

    def disks_by_id(self, ids: Collection[str]) -> Mapping[str, Disk]:
        good = [made for made in ids if re.fullmatch(ID, made)]
        return by_ids(good, self._region.volumes, self._region.volume)

    def all_machines(self) -> list[Machine]:
        return self._region.servers()

    def all_disks(self) -> list[Disk]:
        return self._region.volumes()

    def missing(self, kind: What, ids: Collection[str], *, sure: bool) -> Mapping[str, str | None]:
        """Nova forgets ended servers; other things of ours show whether one existed."""
        if kind == "disk" or not (sure or self._keys.there(self._region)):
            return {}
        return {made: "nova knows no such server any more" for made in ids if re.fullmatch(ID, made)}

    def states(self, machines: Collection[Machine]) -> Mapping[str, tuple[NodeState, str | None]]:
        """A server that ran may be in ERROR, too."""
        error = NodeState.FAILED
        return {
            machine.id: (error, machine.reason)
            if machine.word == "ERROR"
            else (machine.state, machine.reason)
            for machine in machines
        }

    # ----------------------------------------------------------------------------------- machines

    def around(self, node: NodeInputs, *, ends: bool) -> AbstractContextManager[None]:
        """The last node of a region takes its key pair along."""
        living = lambda: any(not machine.gone for machine in self.machines())  # noqa: E731
        return self._keys.changing(self._region, living, ending=ends)

    def ahead(self, node: NodeInputs) -> Mapping[str, Any]:
        """The ids of image, network and flavor."""
        return {
            **self._disk(names.image(self._region, self._account.image(self._region.name))),
            "networks": [{"uuid": names.network(self._region, self._account.options.get("network"))}],
            "flavorRef": names.flavor(self._region, node.instance_type),
        }

    def _disk(self, image: str) -> dict[str, Any]:
        """Its boot source: the image, or a volume made from it that is deleted with the server."""
        size = self._account.options.get("root_volume")
        if not size:
            return {"imageRef": image}
        disk = {
            "boot_index": 0,
            "uuid": image,
            "source_type": "image",
            "destination_type": "volume",
            "volume_size": size,
            "delete_on_termination": True,
        }
        return {"block_device_mapping_v2": [disk]}

    def add_key(self, name: str, public: str) -> str:
        self._keys.ensure(self._region)
        return self._account.options.get("key_name") or name

    def launch(self, wanted: Wanted) -> Machine:
        """The answer has only the id."""
        address, region = wanted.mark.address, self._region
        asked: dict[str, Any] = {
            "name": address.name,
            "metadata": wanted.tags,
            "user_data": base64.b64encode(wanted.user_data.encode()).decode(),
            "key_name": wanted.key,
            **wanted.ahead,
        }
        if wanted.zone:
            asked["availability_zone"] = wanted.zone
        if groups := self._account.config.network.security_groups:
            asked["security_groups"] = [{"name": group} for group in groups]
        what, about = f"making {address}", wanted.zone or region.name
        try:
            found = region.ask(what, "compute", "POST", "/servers", {"server": asked}, about=about)
        except PermanentError as error:
            if error.kind in (PermanentKind.INVALID, PermanentKind.NOT_FOUND):
                region.known.clear()  # what was looked up may have changed
                # The key pair goes with the last node.
                if "Invalid key_name" in error.summary and not self._account.options.get("key_name"):
                    self._keys.forgotten(region)
                    raise TransientError(TransientKind.BUSY, error.summary, about=error.about) from None
            raise
        made = str(answers.inside("making a server", found, "server").get("id") or "")
        state = NodeState.PROVISIONING
        return Machine(id=made, region=region.name, zone=wanted.zone, state=state, labels=wanted.tags)

    def finish(self, machine: Machine) -> Machine:
        return self._floating.public(self._region, machine)

    def end(self, machine: Machine) -> None:
        """Return when the server is gone and its quota is free. If it fails meanwhile, the delete is
        repeated.

        One that is DELETED still uses quota; one that can be restored does for days.
        """
        if self._floating.wanted(machine):
            self._floating.release(self._region, machine)
        what, path = f"deleting server {machine.id}", f"/servers/{machine.id}"
        if_there(self._region.ask, what, "compute", "DELETE", path)
        for _ in pauses(f"{machine.id} is not gone yet", machine.id):
            server = self._region.server(machine.id)
            if server is None or server.raw["status"] == "SOFT_DELETED":
                return
            if not server.raw.get("OS-EXT-STS:task_state"):
                if_there(self._region.ask, what, "compute", "DELETE", path)

    def tag(self, thing: Machine | Disk, new: Mapping[str, str], old: Collection[str] = ()) -> None:
        region = self._region
        api, path = ("volume", "/volumes") if isinstance(thing, Disk) else ("compute", "/servers")
        path = f"{path}/{thing.id}"
        if marks.OWNER in old:
            # In one request: half of a mark would be unreadable.
            region.write(api, path, {k: v for k, v in region.written(api, path).items() if k not in old})
            return
        last = [key for key in old if key.startswith(marks.OURS) and not key.startswith(marks.ON)]
        region.untag(api, path, [key for key in old if key not in last])
        if new:
            region.tag(api, path, new)
        region.untag(api, path, last)

    # -------------------------------------------------------------------------------------- disks

    def make(self, wanted: Wanted) -> Disk:
        """The answer has only the id."""
        address, region = wanted.mark.address, self._region
        asked: dict[str, Any] = {"name": address.name, "size": wanted.gib, "metadata": wanted.tags}
        if zone := names.disk_zone(region, wanted.zone):
            asked["availability_zone"] = zone
        if wanted.volume_type:
            asked["volume_type"] = wanted.volume_type
        what, about = f"making {address}", wanted.zone or region.name
        found = region.ask(what, "volume", "POST", "/volumes", {"volume": asked}, about=about)
        made = str(answers.inside("making a volume", found, "volume").get("id") or "")
        return Disk(id=made, region=region.name, size=wanted.gib, busy=True, labels=wanted.tags)

    def disk_zone(self, asked: str | None, has: str | None) -> str | None:
        return names.disk_zone(self._region, asked) or has

    def grow(self, disk: Disk, gib: int) -> None:
        """Request it as soon as possible, also on a server if the cloud can, and wait until it is done."""
        region = self._region
        asked = False
        for _ in pauses(f"{disk.id} does not have {gib} GiB yet", disk.id):
            now = region.volume(disk.id)
            if now is None or now.word in BAD:
                state = "gone" if now is None else f"`{now.word}`"
                summary = f"{disk.id} could not grow: cinder says that it is {state}"
                hint = "its driver may not grow a volume that a server has; an administrator can reset it"
                raise PermanentError(PermanentKind.CONFLICT, summary, about="size", hint=hint)
            if (now.size or 0) >= gib and now.word in ("available", "in-use"):
                return
            if not asked and now.word in ("available", "in-use"):
                version = GROWS_IN_USE if now.word == "in-use" else None
                body = {"os-extend": {"new_size": gib}}
                path = f"/volumes/{disk.id}/action"
                region.ask("growing a volume", "volume", "POST", path, body, about="size", version=version)
                asked = True

    def remove(self, disk: Disk) -> None:
        """Return when the volume is gone."""
        made = disk.id
        if_there(self._region.ask, f"deleting volume {made}", "volume", "DELETE", f"/volumes/{made}")
        for _ in pauses(f"{made} is not gone yet", made):
            volume = self._region.volume(made)
            if volume is None or volume.word == "deleted":
                return
            if volume.word == "error_deleting":
                summary = f"cinder could not delete {made}"
                hint = "an administrator can reset it: `openstack volume set --state available`"
                raise PermanentError(PermanentKind.CONFLICT, summary, about=made, hint=hint)

    # -------------------------------------------------------------------------------- attachments

    def attach(self, disk: Disk, machine: Machine) -> None:
        """Nova chooses the device."""
        path, body = (
            f"/servers/{machine.id}/os-volume_attachments",
            {"volumeAttachment": {"volumeId": disk.id}},
        )
        about = disk.tags.get(marks.ADDRESS)
        self._region.ask(f"attaching {disk.id}", "compute", "POST", path, body, about=about)

    def detach(self, disk: Disk, machine: Machine) -> None:
        """Sends nothing while it is still being attached: nova would refuse."""
        if disk.word == "in-use":
            path = f"/servers/{machine.id}/os-volume_attachments/{disk.id}"
            self._region.ask(f"detaching {disk.id}", "compute", "DELETE", path)
