"""The driver `azure` (libcloud's `azure_arm`): virtual machines and managed disks in one resource group. It
makes the calls for machines, their interfaces and addresses, disks and tags.

A name is unique in a resource group, so a thing is named after its token. PUT both makes and changes things,
so a retried one is preceded by a look, and demands that the thing is new where Azure supports that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from declarative.model.inputs import NodeInputs, PlacedInputs, VolumeInputs
from declarative.model.resource import Offer
from declarative.model.state import Address
from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import marks
from providers.cloud.account import if_there, look_up, pauses
from providers.cloud.azure import answers, offers
from providers.cloud.azure.account import COMPUTE, Account
from providers.cloud.azure.answers import CODES
from providers.cloud.azure.bodies import TYPE, address_body, disk_body, interface_body, machine_body
from providers.cloud.azure.offers import Proximity, Reservations
from providers.cloud.named import Named
from providers.cloud.named.api import Disk, FirstStart, Machine, Reserved, Wanted

DISKS = "2023-10-02"
NETWORK = "2023-11-01"
TAGS = "2021-04-01"
_KINDS: Mapping[str, tuple[str, str]] = {
    "virtualMachines": ("Compute", COMPUTE),
    "disks": ("Compute", DISKS),
    "networkInterfaces": ("Network", NETWORK),
    "publicIPAddresses": ("Network", NETWORK),
}
_ID = re.compile(r"([\w().-]{1,90})/([\w.-]{1,80})")
MACHINE_OF = f"{marks.OURS}machine-of"
"""The key on a machine's parts for the machine that they belong to."""
MOST = 50
"""The most tags on one resource."""


class Api:
    """One resource group, and others that hold things of ours. Ids are `group/name`."""

    disk_type = TYPE
    called = "the name of a disk of the backend's resource group, or its whole id: `/subscriptions/…`"

    def __init__(self, account: Account) -> None:
        self._account = account
        self._reservations = Reservations(account)
        self.sites = Proximity(account, self.machines)

    def offers(self) -> tuple[Offer, ...]:
        return offers.offers(self._account)

    def reserved(self, inputs: NodeInputs) -> Reserved:
        return self._reservations.asked(inputs)

    def machine_id(self, name: str, inputs: PlacedInputs) -> str:
        region = inputs.region
        if not re.fullmatch(r"[a-z0-9]{1,40}", region):
            summary = f"backend {self._account.config.backend}: the region is not named"
            raise PermanentError(PermanentKind.INVALID, summary, about="region")
        return f"{self._account.group}/{name}"

    disk_id = machine_id

    def disk_called(self, given: str, inputs: VolumeInputs) -> str | None:
        """No listing has disks of other groups."""
        start = f"{self._account.root(self._account.group)}/providers/Microsoft.Compute/disks/".lower()
        made = f"{self._account.group}/{given.lower().removeprefix(start)}"
        return made if _ID.fullmatch(made) else None

    # ------------------------------------------------------------------------------ any resource

    def _path(self, kind: str, made: str) -> str:
        group, _, name = made.partition("/")
        return f"{self._account.root(group)}/providers/Microsoft.{_KINDS[kind][0]}/{kind}/{name}"

    def _ask(self, what: str, method: str, kind: str, made: str, /, **more: Any) -> dict[str, Any]:
        return self._account.ask(what, method, self._path(kind, made), _KINDS[kind][1], **more)

    def _look(self, kind: str, made: str, **params: str) -> dict[str, Any] | None:
        if not _ID.fullmatch(made):
            return None
        what = f"look at {made.rpartition('/')[2]}"
        return if_there(self._ask, what, "GET", kind, made, params=params)

    def _listed(self, kind: str, **params: str) -> list[dict[str, Any]]:
        """All of a kind in the resource group, with any owner."""
        path = f"{self._account.root(self._account.group)}/providers/Microsoft.{_KINDS[kind][0]}/{kind}"
        return self._account.all(f"list of {kind}", path, _KINDS[kind][1], params)

    def _removed(self, kind: str, made: str) -> None:
        """Remove a resource, and wait until it is gone."""
        what = f"end of {made.rpartition('/')[2]}"
        for _ in self._patiently(what, made):
            found = look_up(partial(self._look, kind, made))
            if found is None:
                return
            if answers.state(what, found) != "Deleting":
                if_there(self._ask, what, "DELETE", kind, made, about=made)

    @staticmethod
    def _patiently(what: str, about: str) -> Iterator[None]:
        yield from pauses(f"{what} takes its time", about)

    # ----------------------------------------------------------------------------------- machines

    def machines(self, *, name: str | None = None, states: bool = False) -> list[Machine]:
        """Interfaces give the addresses; states are listed for the whole subscription."""
        if name is not None:
            made = self.machine(f"{self._account.group}/{name}")
            return [self.with_addresses(made)] if made else []
        what = "list of virtualMachines"
        ours = [item for item in self._listed("virtualMachines") if self._ours(item)]
        if not ours:
            return []
        power = self._powers() if states else {}
        private, outside = self._interfaces()
        out: list[Machine] = []
        for item in ours:
            machine = answers.machine(what, item, power.get(answers.place(item.get("id"))))
            address, ip = private.get(machine.id, ("", ""))
            out.append(replace(machine, address=address, public_address=outside.get(ip, "")))
        return out

    def marked(self) -> list[Machine | Disk]:
        """The machines and disks of ours in the resource group."""
        found: list[Machine | Disk] = []
        for kind, read in (("virtualMachines", answers.machine), ("disks", answers.disk)):
            items = (i for i in self._listed(kind) if marks.OWNER in (i.get("tags") or {}))
            found += [read(f"list of {kind}", item) for item in items]
        return found

    def _ours(self, item: Mapping[str, Any]) -> bool:
        return (item.get("tags") or {}).get(marks.OWNER) == self._account.owner

    def _interfaces(self) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
        """Machine → its address and the place of its public address; and the public addresses by place."""
        private: dict[str, tuple[str, str]] = {}
        for item in self._listed("networkInterfaces"):
            holder = answers.place(((item.get("properties") or {}).get("virtualMachine") or {}).get("id"))
            if holder:
                address, ip = answers.addresses("list of networkInterfaces", item)
                private[holder] = address, answers.place(ip)
        if not any(ip for _, ip in private.values()):
            return private, {}
        found = self._listed("publicIPAddresses")
        return private, {
            answers.place(i.get("id")): str((i.get("properties") or {}).get("ipAddress") or "") for i in found
        }

    def _powers(self) -> dict[str, str]:
        """The current states of machines; empty if the login may see only the resource group."""
        what, path = "list of states", f"{self._account.root()}/providers/Microsoft.Compute/virtualMachines"
        try:
            found = self._account.all(what, path, COMPUTE, {"statusOnly": "true"})
        except PermanentError as error:
            if error.kind is not PermanentKind.AUTH:
                raise
            return {}
        return {answers.place(item.get("id")): answers.power(answers.states(what, item)) for item in found}

    def machine(self, made: str) -> Machine | None:
        found = self._look("virtualMachines", made, **{"$expand": "instanceView"})
        return None if found is None else answers.machine("look at a machine", found)

    def with_addresses(self, machine: Machine) -> Machine:
        what = f"interface of {machine.name}"
        found = self._look("networkInterfaces", machine.id)
        if found is None:
            return machine
        address, ip = answers.addresses(what, found)
        there = self._look("publicIPAddresses", answers.place(ip)) if ip else None
        outside = str(((there or {}).get("properties") or {}).get("ipAddress") or "")
        return replace(machine, address=address, public_address=outside)

    def run(self, wanted: Wanted[NodeInputs], start: FirstStart) -> Machine:
        """Address and interface are made first, under the same name and tags."""
        _check_tags(wanted.tags, wanted.address)
        body, tags = partial(machine_body, self._account, wanted, start), self._beside(wanted)
        where = wanted.inputs.zone or wanted.inputs.region
        ip = None
        if self._account.public_ip:
            ip = self._path("publicIPAddresses", wanted.id)
            self._put("publicIPAddresses", wanted, address_body(wanted, tags))
        interface = interface_body(self._account, wanted, tags, ip)
        machine = body(self._path("networkInterfaces", wanted.id))
        self._put("networkInterfaces", wanted, interface)
        what = f"create of {wanted.name} in {where}"
        only = {"If-None-Match": "*"}
        self._ask(what, "PUT", "virtualMachines", wanted.id, about=where, body=machine, headers=only)
        found = look_up(partial(self.machine, wanted.id))
        if found is None:
            raise TransientError(TransientKind.BUSY, f"{what}: it is not there yet", about=where)
        return found

    def _put(self, kind: str, wanted: Wanted[NodeInputs], body: Mapping[str, Any]) -> None:
        """Make what a machine needs, unless an earlier try did: so each try gets further than the last."""
        what = f"create of {kind} {wanted.name}"
        found = self._look(kind, wanted.id)
        if found is None or not self._left(kind, found):
            found = self._ask(what, "PUT", kind, wanted.id, about=wanted.name, body=body)
        self._settled(what, lambda: self._look(kind, wanted.id), found)

    def _settled(
        self, what: str, look: Callable[[], dict[str, Any] | None], found: dict[str, Any] | None
    ) -> dict[str, Any]:
        """A resource once no operation is running on it; a fault if the operation failed."""
        for _ in self._patiently(what, what):
            found = found or look_up(look)
            if found is None:
                raise TransientError(TransientKind.AMBIGUOUS, f"{what}: it is not there")
            doing = answers.state(what, found)
            if doing == "Succeeded":
                return found
            if doing in ("Failed", "Canceled"):
                code, text = answers.failure(found)
                raise PermanentError(PermanentKind.INVALID, f"{what}: {doing}: {code} {text}".strip(" :"))
            found = None
        raise AssertionError("pauses end with a fault")

    @staticmethod
    def _beside(wanted: Wanted[NodeInputs]) -> dict[str, str]:
        """The tags of a machine's interface and address: their owner. They are not things of ours by
        themselves.
        """
        keep = (marks.ADDRESS, marks.TOKEN)
        own = {key: wanted.tags[key] for key in keep}
        return {**own, MACHINE_OF: wanted.tags[marks.OWNER]}

    def end(self, machine: Machine) -> None:
        """The machine goes first: its parts cannot be removed before it."""
        self._removed("virtualMachines", machine.id)
        self.clean(machine.id)

    def clean(self, made: str) -> None:
        """A machine takes its parts along, unless it was never made, or only partly."""
        for kind in ("networkInterfaces", "publicIPAddresses", "disks"):
            found = self._look(kind, made)
            if found is not None and self._left(kind, found):
                self._removed(kind, made)

    def _left(self, kind: str, found: Mapping[str, Any]) -> bool:
        """Whether this was made for a machine of ours. A machine's disk has the machine's tags, or none."""
        tags = found.get("tags") or {}
        if kind != "disks":
            return bool(tags.get(MACHINE_OF) == self._account.owner)
        source = ((found.get("properties") or {}).get("creationData") or {}).get("createOption")
        return source == "FromImage" and tags.get(marks.OWNER) in (None, self._account.owner)

    def tag_machine(self, machine: Machine, tags: Mapping[str, str]) -> None:
        self._retag(self._path("virtualMachines", machine.id), machine.name, machine.tags, tags)

    def _retag(self, path: str, name: str, have: Mapping[str, str], tags: Mapping[str, str]) -> None:
        """Writes one key at a time, so that tags of others are not overwritten. May be interrupted, and is
        tried again.

        The user's tags are removed first, because only the old mark says which they were. Leftovers of the
        old mark go last, when no other part refers to them any more.
        """
        users: dict[str, str] = {}
        ours: dict[str, str] = {}
        for key in have.keys() - tags.keys():
            (ours if key.startswith(marks.OURS) else users)[key] = have[key]
        new = dict(tags.items() - have.items())
        for operation, part in (("Delete", users), ("Merge", new), ("Delete", ours)):
            if part:
                body = {"operation": operation, "properties": {"tags": part}}
                where = f"{path}/providers/Microsoft.Resources/tags/default"
                self._account.ask(f"tags of {name}", "PATCH", where, TAGS, body=body)

    # -------------------------------------------------------------------------------------- disks

    def disks(self, *, name: str | None = None) -> list[Disk]:
        if name is not None:
            made = self.disk(f"{self._account.group}/{name}")
            return [made] if made else []
        return [answers.disk("list of disks", item) for item in self._listed("disks") if self._ours(item)]

    def disk(self, made: str) -> Disk | None:
        found = self._look("disks", made)
        return None if found is None else answers.disk("look at a disk", found)

    def make_disk(self, wanted: Wanted[VolumeInputs], size: int) -> Disk:
        """Simultaneous tries send the same request, and make one disk."""
        _check_tags(wanted.tags, wanted.address)
        what = f"create of {wanted.name}"
        where = wanted.inputs.zone or wanted.inputs.region
        found = self._ask(what, "PUT", "disks", wanted.id, about=where, body=disk_body(wanted, size))
        self._settled(what, lambda: self._look("disks", wanted.id), found)
        made = look_up(partial(self.disk, wanted.id))
        if made is None:
            raise TransientError(TransientKind.AMBIGUOUS, f"{what}: it is not there", about=where)
        return made

    def grow(self, disk: Disk, size: int) -> None:
        what, body = f"growth of {disk.name}", {"properties": {"diskSizeGB": size}}
        found = self._ask(what, "PATCH", "disks", disk.id, about="size", body=body)
        self._settled(what, lambda: self._look("disks", disk.id), found)

    def remove(self, disk: Disk) -> None:
        self._removed("disks", disk.id)

    def tag_disk(self, disk: Disk, tags: Mapping[str, str]) -> None:
        _check_tags(tags, tags.get(marks.ADDRESS, disk.name), disk.tags)
        self._retag(self._path("disks", disk.id), disk.name, disk.tags, tags)

    # -------------------------------------------------------------------------------- attachments

    def attach(self, machine: str, disk: Disk) -> None:
        """Azure chooses the LUN."""
        one = {"diskId": self._path("disks", disk.id), "caching": "None", "deleteOption": "Detach"}
        self._change(f"attach of {disk.name}", machine, {"dataDisksToAttach": [one]})

    def detach(self, machine: str, disk: Disk, serials: Sequence[str]) -> None:
        one = {"diskId": self._path("disks", disk.id)}
        self._change(f"detach of {disk.name}", machine, {"dataDisksToDetach": [one]})

    def _change(self, what: str, machine: str, body: Mapping[str, Any]) -> None:
        path = f"{self._path('virtualMachines', machine)}/attachDetachDataDisks"
        self._account.ask(what, "POST", path, COMPUTE, about=machine.rpartition("/")[2], body=body)


def _check_tags(
    tags: Mapping[str, str], about: Address | str, have: Mapping[str, str] = MappingProxyType({})
) -> None:
    """`PermanentError` for tags that Azure refuses. `have`: the tags already on the thing."""
    there = {key.lower(): key for key in have}
    for key, value in tags.items():
        if have.get(key) == value:
            continue
        if key not in have and key.lower() in there:
            summary = f"{about}: Azure takes `{key}` for the existing tag `{there[key.lower()]}`"
            hint = "give it another name"
            raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)
        if re.search(r"[<>%&\\?/]", key) or len(key) > 512 or len(value) > 256:
            summary = f"{about}: `{key}` cannot be a tag of Azure"
            hint = r"a tag's name has none of `<>%&\?/`, and its value 256 characters at most"
            raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)
    if len(tags) > MOST:
        summary = f"{about} has too much data: {len(tags)} tags, Azure has {MOST}"
        hint = "give it fewer `tags`"
        raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)


class Azure(Named):
    """One resource group of Azure. No secret is read before something has to be asked.

    Credentials: `tenant_id`, `subscription_id`, `key` (the application's id) and `secret`. Options:
    `resource_group`, which exists already; `disk_type` and `disk_size` (GB) of the machine's own disk;
    `placement_group`, a proximity placement group that is there, for all fleets with `placement: cluster`, or
    `off` for none; `admin_user`, a name that Azure wants; `architecture` of the image; `login_endpoint` and
    `login_resource` of another Azure than the public one, beside the backend's `endpoint`; and those of all
    clouds. Zones are written `eastus-1`, and `network.subnets` maps a zone or a region to `network/subnet`.
    """

    def __init__(self, config: Config) -> None:
        account = Account(config)
        super().__init__(account, Api(account), CODES)
