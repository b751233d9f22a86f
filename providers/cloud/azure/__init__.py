"""The driver `azure` (libcloud's `azure_arm`): virtual machines and managed disks in one resource group. It
makes the calls for machines, their interfaces and addresses, disks and tags.

A name is unique in a resource group, so a thing is named after its token. PUT both makes and changes things,
so a retried one is preceded by a look, and demands that the thing is new where Azure supports that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from declarative.model.inputs import NodeInputs, PlacedInputs, VolumeInputs
from declarative.model.resource import Offer
from declarative.model.state import Address
from declarative.model.status import NodeState
from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import marks
from providers.cloud.account import if_there, look_up, pauses
from providers.cloud.any.site import Disk, Machine, Site, Wanted, What, by_ids
from providers.cloud.azure import answers, offers
from providers.cloud.azure.account import COMPUTE, Account
from providers.cloud.azure.bodies import address_body, disk_body, interface_body, machine_body
from providers.cloud.azure.offers import Proximity, Reservations
from providers.cloud.bad_answers import asked
from providers.cloud.placement_groups import Reserved
from providers.cloud.provider import ABILITIES, TaggedCloud

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


class AzureSite(Site):
    """One resource group, and others that hold things of ours. Ids are `group/name`."""

    unique = frozenset(("machine", "disk"))
    spots = grows = adopts = True
    called = "write the name of a disk of the backend's resource group, or its whole id: `/subscriptions/…`"

    def __init__(self, account: Account) -> None:
        self._account = account
        self._reservations = Reservations(account)
        self.groups: Proximity = Proximity(account, self.machines)

    def reserved(self, node: NodeInputs) -> Reserved:
        return self._reservations.asked(node)

    def id_of(self, kind: What, address: Address, token: str, place: PlacedInputs) -> str:
        if not re.fullmatch(r"[a-z0-9]{1,40}", place.region):
            summary = f"backend {self._account.config.backend}: the region is not named"
            raise PermanentError(PermanentKind.INVALID, summary, about="region")
        return f"{self._account.group}/{marks.name_of(address, token)}"

    def disk_called(self, given: str, volume: VolumeInputs) -> str | None:
        """No listing has disks of other groups."""
        start = f"{self._account.root(self._account.group)}/providers/Microsoft.Compute/disks/".lower()
        made = f"{self._account.group}/{given.lower().removeprefix(start)}"
        return made if _ID.fullmatch(made) else None

    def around(self, node: NodeInputs, *, ends: bool) -> AbstractContextManager[None]:
        return self.groups.changing(node, ends=ends)

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

    def machines(self) -> list[Machine]:
        return self._machines()

    def _machines(self, *, states: bool = False) -> list[Machine]:
        """Interfaces give the addresses; states are listed for the whole subscription."""
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

    def machines_with(self, tags: Mapping[str, str]) -> list[Machine]:
        name = marks.name_in(tags)
        if name is None:
            return self.machines()
        found = self._machine(f"{self._account.group}/{name}")
        return [found] if found and found.tags.get(marks.OWNER) == self._account.owner else []

    def machines_by_id(self, ids: Collection[str]) -> Mapping[str, Machine]:
        return by_ids(ids, partial(self._machines, states=True), self._machine)

    def everyones(self, addresses: Collection[Address]) -> list[Machine | Disk]:
        """The machines and disks of ours in the resource group."""
        found: list[Machine | Disk] = []
        for kind, read in (("virtualMachines", answers.machine), ("disks", answers.disk)):
            items = (i for i in self._listed(kind) if marks.OWNER in (i.get("tags") or {}))
            found += [read(f"list of {kind}", item) for item in items]
        return found

    def ended(self, kind: What, made: str) -> str | None:
        """An id includes its account, so the cloud's denial is reliable."""
        return f"{self._account.CLOUD} has no {made} any more"

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

    def _machine(self, made: str) -> Machine | None:
        """One machine, with its addresses once it runs."""
        found = self._look("virtualMachines", made, **{"$expand": "instanceView"})
        machine = None if found is None else answers.machine("look at a machine", found)
        return self._with_addresses(machine) if machine and machine.state is NodeState.READY else machine

    def _with_addresses(self, machine: Machine) -> Machine:
        what = f"interface of {machine.name}"
        found = self._look("networkInterfaces", machine.id)
        if found is None:
            return machine
        address, ip = answers.addresses(what, found)
        there = self._look("publicIPAddresses", answers.place(ip)) if ip else None
        outside = str(((there or {}).get("properties") or {}).get("ipAddress") or "")
        return replace(machine, address=address, public_address=outside)

    def launch(self, wanted: Wanted) -> Machine:
        """Address and interface are made first, under the same name and tags."""
        address = wanted.mark.address
        _check_tags(wanted.tags, address)
        made = self.id_of("machine", address, wanted.mark.token, wanted.mark.node)
        name, where = made.rpartition("/")[2], wanted.zone or wanted.region
        # The tags of what is made beside it name the owner. They are not things of ours by themselves.
        tags = {key: wanted.tags[key] for key in (marks.ADDRESS, marks.TOKEN)}
        tags[MACHINE_OF] = wanted.mark.owner
        ip = None
        if self._account.public_ip:
            ip = self._path("publicIPAddresses", made)
            self._put("publicIPAddresses", made, address_body(wanted, tags))
        interface = interface_body(self._account, wanted, tags, ip)
        body = machine_body(self._account, wanted, name, self._path("networkInterfaces", made))
        self._put("networkInterfaces", made, interface)
        what = f"create of {name} in {where}"
        only = {"If-None-Match": "*"}
        self._ask(what, "PUT", "virtualMachines", made, about=where, body=body, headers=only)
        found = look_up(partial(self._machine, made))
        if found is None:
            raise TransientError(TransientKind.BUSY, f"{what}: it is not there yet", about=where)
        return found

    def _put(self, kind: str, made: str, body: Mapping[str, Any]) -> None:
        """Make what a machine needs, unless an earlier try did: so each try gets further than the last."""
        name = made.rpartition("/")[2]
        what = f"create of {kind} {name}"
        found = self._look(kind, made)
        if found is None or not self._left(kind, found):
            found = self._ask(what, "PUT", kind, made, about=name, body=body)
        self._settled(what, lambda: self._look(kind, made), found)

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

    def tag(self, thing: Machine | Disk, new: Mapping[str, str], old: Collection[str] = ()) -> None:
        """Writes one key at a time, so that tags of others are not overwritten. May be interrupted, and is
        tried again.

        The user's tags are removed first, because only the old mark says which they were. Leftovers of the
        old mark go last, when no other part refers to them any more.
        """
        have, disk = thing.tags, isinstance(thing, Disk)
        if disk:
            left = {key: value for key, value in have.items() if key not in old}
            _check_tags(
                {**left, **new}, new.get(marks.ADDRESS) or have.get(marks.ADDRESS, thing.called), have
            )
        path = self._path("disks" if disk else "virtualMachines", thing.id)
        users = {key: have[key] for key in old if not key.startswith(marks.OURS)}
        ours = {key: have[key] for key in old if key.startswith(marks.OURS)}
        changed = dict(new.items() - have.items())
        for operation, part in (("Delete", users), ("Merge", changed), ("Delete", ours)):
            if part:
                body = {"operation": operation, "properties": {"tags": part}}
                where = f"{path}/providers/Microsoft.Resources/tags/default"
                self._account.ask(f"tags of {thing.called}", "PATCH", where, TAGS, body=body)

    # -------------------------------------------------------------------------------------- disks

    def disks(self) -> list[Disk]:
        """A machine's own disk may carry the machine's mark."""
        found = [answers.disk("list of disks", item) for item in self._listed("disks") if self._ours(item)]
        return [disk for disk in found if disk.tags.get(marks.ADDRESS, "").startswith("volume/")]

    def disks_with(self, tags: Mapping[str, str]) -> list[Disk]:
        """An adopted one has another name."""
        name = marks.name_in(tags)
        one = self._disk(f"{self._account.group}/{name}") if name else None
        return [one] if one and one.tags.get(marks.OWNER) == self._account.owner else self.disks()

    def disks_by_id(self, ids: Collection[str]) -> Mapping[str, Disk]:
        return by_ids(ids, self.disks, self._disk)

    def _disk(self, made: str) -> Disk | None:
        found = self._look("disks", made)
        return None if found is None else answers.disk("look at a disk", found)

    def make(self, wanted: Wanted) -> Disk:
        """Simultaneous tries send the same request, and make one disk."""
        address = wanted.mark.address
        _check_tags(wanted.tags, address)
        disk = self.id_of("disk", address, wanted.mark.token, wanted.mark.volume)
        what = f"create of {disk.rpartition('/')[2]}"
        where = wanted.zone or wanted.region
        found = self._ask(what, "PUT", "disks", disk, about=where, body=disk_body(self._account, wanted))
        self._settled(what, lambda: self._look("disks", disk), found)
        made = look_up(partial(self._disk, disk))
        if made is None:
            raise TransientError(TransientKind.AMBIGUOUS, f"{what}: it is not there", about=where)
        return made

    def grow(self, disk: Disk, gib: int) -> None:
        what, body = f"growth of {disk.name}", {"properties": {"diskSizeGB": gib}}
        found = self._ask(what, "PATCH", "disks", disk.id, about="size", body=body)
        self._settled(what, lambda: self._look("disks", disk.id), found)

    def remove(self, disk: Disk) -> None:
        self._removed("disks", disk.id)

    # -------------------------------------------------------------------------------- attachments

    def attach(self, disk: Disk, machine: Machine) -> None:
        """Azure chooses the LUN."""
        one = {"diskId": self._path("disks", disk.id), "caching": "None", "deleteOption": "Detach"}
        self._change(f"attach of {disk.name}", machine.id, {"dataDisksToAttach": [one]})

    def detach(self, disk: Disk, machine: Machine) -> None:
        one = {"diskId": self._path("disks", disk.id)}
        self._change(f"detach of {disk.name}", machine.id, {"dataDisksToDetach": [one]})

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


class Azure(TaggedCloud):
    """One resource group of Azure. No secret is read before something has to be asked.

    Credentials: `tenant_id`, `subscription_id`, `key` (the application's id) and `secret`. Options:
    `resource_group`, which exists already; `disk_type` and `disk_size` (GB) of the machine's own disk;
    `placement_group`, a proximity placement group that is there, for all fleets with `placement: cluster`, or
    `off` for none; `admin_user`, a name that Azure wants; `architecture` of the image; `login_endpoint` and
    `login_resource` of another Azure than the public one, beside the backend's `endpoint`; and those of all
    clouds. Zones are written `eastus-1`, and `network.subnets` maps a zone or a region to `network/subnet`.
    """

    CAN = frozenset(ABILITIES)

    def __init__(self, config: Config) -> None:
        self._resources = Account(config, lambda account, _: AzureSite(account))
        super().__init__(self._resources)

    @asked
    def offers(self) -> tuple[Offer, ...]:
        return offers.offers(self._resources)
