"""`Cloud`: the port's methods over a driver's nodes, volumes and attachments. Ranks run as on hosts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from declarative.model.inputs import inputs_of
from declarative.model.resource import VOLUME_ID, Offer
from declarative.model.state import KINDS, Address, Record
from declarative.model.status import NodeState, RankStatus, Readiness
from declarative.provider import (
    Ended,
    Launch,
    PermanentError,
    PermanentKind,
    ProviderError,
    Thing,
    TransientError,
)
from declarative.provider.optional import Existing, LogEnd, Terminal, Terms
from providers.cloud import checks, marks
from providers.cloud.any.account import Account, At
from providers.cloud.any.attachments import Attachments
from providers.cloud.any.nodes import Nodes
from providers.cloud.any.site import Disk, Everyones, Machine, Size
from providers.cloud.any.volumes import Volumes
from providers.cloud.bad_answers import asked
from providers.cloud.checks import is_adopted
from providers.cloud.hosts import Disks, Hosts, Seen


def _once_only(seen: Seen) -> Seen:
    """A node that was ready before does not start a second time. If it did, someone who waits for its start
    would take a restarted node for one that never started.
    """
    if not seen.taken or seen.readiness.state is not NodeState.PROVISIONING:
        return seen
    return replace(seen, readiness=replace(seen.readiness, state=NodeState.NOT_READY))


def _may_answer(seen: Seen) -> bool:
    """Whether to ask the node itself: it is running by its cloud, or was ready before."""
    return seen.readiness.state is NodeState.READY or (
        seen.taken and seen.readiness.state is NodeState.NOT_READY
    )


ABILITIES = {"reservation": "capacity reservations", "identity": "identities for its nodes"}
"""The fields of a node that few drivers support, and what these have."""


def _together(cloud: Readiness, own: Readiness | None) -> Readiness:
    """Combines the cloud's report on a node and the node's own. A node that is down and does not answer
    counts as unreachable, like one that is up: those who wait rely on this.
    """
    if own is None or cloud.state is NodeState.READY:
        return own or cloud
    if own.state is not NodeState.UNREACHABLE:
        return cloud
    return replace(own, reason=f"{cloud.reason}, and it does not answer", down=True)


class Cloud:
    """The common part of all cloud drivers; each adds `offers`."""

    ADOPTS = False
    """Whether volumes that somebody else made can be adopted."""

    ADOPTS_INSTANCES = False
    """The same for instances."""

    CAN: frozenset[str] = frozenset()
    """The `ABILITIES` that the cloud has and the driver supports."""

    KIND = ("region", "zone", "instance_type", "reservation")
    """Inputs of a node on which the use of its reservation depends."""

    def __init__(self, account: Account, *, adopts: bool = False) -> None:
        """`adopts`: see `Site.adopts`."""
        self.ADOPTS = adopts or self.ADOPTS
        self._account = account
        self._config = config = account.config
        self._keys = keys = account.keys
        self.scrub = keys.scrub
        self._nodes = Nodes(account, adopts=self.ADOPTS_INSTANCES)
        self._volumes = Volumes(account)
        self._attachments = Attachments(account, self._volumes)
        self._hosts = Hosts(config, keys, self._public)
        self._mounts = Disks(self._hosts)
        self._silent: set[str] = set()

    @asked
    def offers(self) -> tuple[Offer, ...]:
        """The offers that the cloud reports for the backend's regions and zones."""
        config = self._account.config
        self._account.regions()
        out: list[Offer] = []
        for region in config.regions:
            site = self._account.at(region).site
            both = (False, True) if site.spots else (False,)
            for size in site.sizes():
                places = self._places(region, size)
                kinds = both if size.spot is None else (size.spot,)
                out += [self._offer(region, zone, size, spot) for spot in kinds for zone in places]
        return tuple(out)

    def _places(self, region: str, size: Size) -> list[str | None]:
        """The zones in use of a region that have a size. None stands for the region itself."""
        if size.regions is not None and region not in size.regions:
            return []
        zones, used = size.zones.get(region), self._account.config.zones
        return [zone for zone in zones if not used or zone in used] if zones else [None]

    def _offer(self, region: str, zone: str | None, size: Size, spot: bool) -> Offer:
        return Offer(
            backend=self._account.config.backend,
            region=region,
            zone=zone,
            instance_type=size.name,
            shape=size.shape,
            price=None if spot and size.spot is None else size.price,
            spot=spot,
        )

    # ------------------------------------------------------------------------------------- things

    @asked
    def inventory(self) -> tuple[Thing, ...]:
        machines, disks = self._nodes.listed(), self._volumes.listed()
        return (
            *map(self._nodes.thing, machines),
            *map(self._volumes.thing, disks),
            *self._attachments.things(disks, machines),
        )

    @asked
    def find(self, address: Address, token: str) -> Thing | None:
        match address.kind:
            case "node":
                return self._nodes.find(address, token)
            case "volume":
                return self._volumes.find(address, token)
            case "attachment":
                return self._attachments.find(address, token)
            case _:
                return None

    @asked
    def recall(self, records: Sequence[Record]) -> Mapping[Address, Thing | Ended | None]:
        kinds = {kind: [r for r in records if r.address.kind == kind] for kind in KINDS}
        return {
            **self._nodes.recall(kinds["node"]),
            **self._volumes.recall(kinds["volume"]),
            **self._attachments.recall(kinds["attachment"]),
        }

    @asked
    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        match address.kind:
            case "node":
                if fault := next(self._unable(address, inputs), None):
                    raise fault
                if is_adopted(inputs) and not self.ADOPTS_INSTANCES:
                    raise self._unadopted(address)
                return self._nodes.create(address, token, inputs)
            case "volume":
                if VOLUME_ID in inputs and not self.ADOPTS:
                    raise self._unadopted(address)
                return self._volumes.create(address, token, inputs)
            case "attachment":
                return self._attachments.create(address, token, inputs, needs)
            case _:
                raise PermanentError(PermanentKind.INVALID, f"{address} is no thing", about=str(address))

    def _unsupported(self, wanted: Mapping[Address, Mapping[str, Any]]) -> list[ProviderError]:
        """The faults of fields that this cloud does not support, once for each fleet."""
        of_nodes = ((a, i) for a, i in wanted.items() if a.kind == "node")
        first = {str(i.get("fleet")): (a, i) for a, i in reversed([*of_nodes])}
        faults: list[ProviderError] = [f for a, i in first.values() for f in self._unable(a, i)]
        adopts = {"volume": self.ADOPTS, "node": self.ADOPTS_INSTANCES}
        faults += [self._unadopted(a) for a, i in wanted.items() if is_adopted(i) and not adopts[a.kind]]
        if any(address.kind == "node" and not is_adopted(i) for address, i in wanted.items()):
            try:
                self._keys.check()
            except PermanentError as error:
                faults.append(error)
        return faults

    @asked
    def check(self, wanted: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        faults = self._unsupported(wanted)
        if self.ADOPTS:
            faults += checks.unfit_volumes(self._volumes.seen, wanted)
        if "reservation" in self.CAN:
            made = (inputs_of("node", inputs) for address, inputs in wanted.items() if address.kind == "node")
            nodes = [node for node in made if node.instance_id is None]
            kinds = {tuple(str(getattr(node, key)) for key in self.KIND): node for node in nodes}
            looks = [partial(self._nodes.reserved, kinds[key]) for key in sorted(kinds)]
            faults += checks.faults_of((), looks)
            for at in dict.fromkeys(self._account.at(node.region) for node in nodes):
                here = [node for node in nodes if self._account.at(node.region) is at]
                faults += at.site.groups.unfit(here) if at.site.groups else ()
        return faults

    def _unadopted(self, address: Address) -> PermanentError:
        what, about = ("volumes", VOLUME_ID) if address.kind == "volume" else ("instances", "instance_ids")
        summary = f"{address}: the driver `{self._config.driver}` cannot adopt {what}"
        hint = "remove `volume_id`, and write `size`: then one is made"
        if address.kind == "node":
            hint = "name the machines in a fleet's `ssh_config: {hosts: […]}`: it adopts hosts of any kind"
        return PermanentError(PermanentKind.INVALID, summary, about=about, hint=hint)

    @asked
    def existing(self, kind: str, ids: Collection[str] | None = None) -> Sequence[Existing]:
        what = "volumes" if kind == "volume" else "instances"
        summary = f"the driver `{self._config.driver}` does not list {what} that others made"
        raise PermanentError(PermanentKind.INVALID, summary, hint="docs/import.md names those that do")

    def _unable(self, address: Address, inputs: Mapping[str, Any]) -> Iterator[PermanentError]:
        """The faults of the fields of a node that need an ability that the driver lacks."""
        for name, what in ABILITIES.items():
            if inputs.get(name) and name not in self.CAN:
                summary = f"{address}: the driver `{self._config.driver}` has no {what}"
                hint = f"remove the fleet's `{name}`, or name a backend of EC2, GCE or Azure under `backends`"
                yield PermanentError(PermanentKind.INVALID, summary, about=name, hint=hint)

    @asked
    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        match have.address.kind:
            case "node":
                return self._nodes.update(have, token, inputs)
            case "volume":
                outputs = self._volumes.update(have, token, inputs)
                grown = inputs_of("volume", inputs).size != have.volume.size
                if grown and (disk := self._attachments.on_node(have)):
                    self._mounts.grow(have, disk)
                return outputs
            case _:
                summary = f"{have.address} cannot be changed"
                raise PermanentError(PermanentKind.INVALID, summary, about=str(have.address))

    @asked
    def delete(self, have: Record) -> None:
        match have.address.kind:
            case "node":
                if is_adopted(have.inputs):
                    self._leave(have)
                self._nodes.delete(have)
            case "volume":
                self._volumes.delete(have)
            case "attachment":
                self._detach(have)
            case _:
                return

    def _leave(self, have: Record) -> None:
        """Remove what ranks left on an adopted instance that is released, if it runs."""
        seen = self._nodes.readiness([have])[have.address.name]
        if seen.taken and seen.readiness.state is NodeState.READY:
            self._hosts.note_address(have, seen.public)
            self._hosts.ssh.delete(self._hosts.host(have))

    def _detach(self, have: Record) -> None:
        """Unmount it, then detach it.

        The call does not wait for a node that stays silent when asked again: the node may be the next to be
        deleted, and its end ends its attachments.
        """
        disk = self._attachments.on_node(have)
        if disk is None or not disk.taken:
            self._attachments.delete(have)
            return
        try:
            self._mounts.unmount(disk, str(have.address))
        except TransientError as error:
            key = f"{have.address} {have.outputs.get('id')}"
            if not error.away:
                raise
            if key not in self._silent:
                self._silent.add(key)
                raise
            self._attachments.delete(have, wait=False)
        else:
            self._attachments.delete(have)

    # -------------------------------------------------------------------------------------- nodes

    @asked
    def readiness(self, nodes: Sequence[Record]) -> Mapping[str, Readiness]:
        """A node is ready if it runs by its cloud, and answers as a usable host."""
        seen = {name: _once_only(found) for name, found in self._nodes.readiness(nodes).items()}
        for node in nodes:
            self._hosts.note_address(node, seen[node.address.name].public)
        asked = [n for n in nodes if _may_answer(seen[n.address.name])]
        there = self._hosts.readiness(asked, {n: s.taken for n, s in seen.items()}, self._nodes.taken)
        found = {name: _together(s.readiness, there.get(name)) for name, s in seen.items()}
        return {
            n: replace(r, reason=self.scrub.message(r.reason)) if r.reason else r for n, r in found.items()
        }

    def _public(self, node: Record) -> str | None:
        return self._nodes.readiness([node])[node.address.name].public

    def reaches(self, node: Record, address: str) -> str | None:
        return self._hosts.ssh.reaches(self._hosts.host(node), address)

    # -------------------------------------------------------------------------------------- ranks

    @asked
    def start(self, node: Record, launch: Launch) -> RankStatus:
        """Its volumes are mounted first; no rank starts without them."""
        folders = {path: self._mounted(node, launch, path) for path in sorted(launch.volumes)}
        return self._hosts.ssh.launch(self._hosts.host(node), launch, folders, must=True)

    def _mounted(self, node: Record, launch: Launch, path: str) -> str:
        """The folder on the node of a rank's volume."""
        volume = launch.volumes[path]
        disk = self._attachments.on_node(volume)
        if disk is None or disk.node.outputs.get("id") != node.outputs.get("id"):
            summary = f"{volume.address} is not on {node.address}, where {launch.attempt} is to use it"
            hint = "somebody detached it: `fleetform plan` says what is to be done"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about=str(volume.address), hint=hint)
        return self._mounts.mount(volume, replace(disk, node=node), None if launch.image else path)

    def release(
        self, node: Record, attempts: Sequence[str], peers: Sequence[str] = ()
    ) -> Mapping[str, RankStatus | None]:
        return self._hosts.ssh.release(self._hosts.host(node), attempts, peers)

    def peers(self, node: Record, attempts: Sequence[str]) -> Mapping[str, str]:
        return self._hosts.ssh.peers(self._hosts.host(node), attempts)

    def poll(self, node: Record, attempts: Sequence[str]) -> Mapping[str, RankStatus | None]:
        return self._hosts.ssh.poll(self._hosts.host(node), attempts)

    def attempts(self, node: Record) -> Mapping[str, RankStatus]:
        return self._hosts.ssh.attempts(self._hosts.host(node))

    def stop(self, node: Record, attempt: str, grace_seconds: int) -> RankStatus | None:
        return self._hosts.ssh.stop(self._hosts.host(node), attempt, grace_seconds)

    def change_limit(self, node: Record, attempt: str, seconds: int | None) -> None:
        self._hosts.ssh.change_limit(self._hosts.host(node), attempt, seconds)

    def adjust(self, node: Record, attempt: str, terms: Terms) -> None:
        self._hosts.ssh.adjust(self._hosts.host(node), attempt, terms)

    def read_log(self, node: Record, attempt: str, offset: int, limit: int = 65536) -> bytes:
        return self._hosts.ssh.read_log(self._hosts.host(node), attempt, offset, limit)

    def log_ends(self, node: Record, attempts: Sequence[str]) -> Mapping[str, LogEnd]:
        return self._hosts.ssh.log_ends(self._hosts.host(node), attempts)

    def terminal(
        self, node: Record, attempt: str | None, command: Sequence[str], *, tty: bool
    ) -> AbstractContextManager[Terminal]:
        return self._hosts.ssh.terminal(self._hosts.host(node), attempt, command, tty=tty)

    def tidy(self, node: Record, oldest: Mapping[str, int]) -> None:
        self._hosts.ssh.tidy(self._hosts.host(node), oldest)


class TaggedCloud(Cloud):
    """The same for a cloud with tags, whose site lists those of all (`Everyones`)."""

    ADOPTS = True

    @asked
    def others(self, addresses: Collection[Address]) -> Sequence[Existing]:
        """A machine's own disk may carry the machine's mark."""
        found = [
            existing(thing)
            for thing in self._account.each(partial(_marked, addresses))
            if not thing.gone
            and thing.tags.get(marks.ADDRESS, "").startswith("volume/") is isinstance(thing, Disk)
        ]
        return checks.others(found, self._account.owner, addresses)

    @asked
    def clear(self, address: Address, token: str, inputs: Mapping[str, Any]) -> None:
        self._nodes.clear(address, token, inputs)


def _marked(addresses: Collection[Address], at: At) -> Sequence[Machine | Disk]:
    assert isinstance(at.site, Everyones)
    return at.site.everyones(addresses)


def existing(thing: Machine | Disk, **facts: Any) -> Existing:
    """A machine or a disk, whoever made it, as the port's existing thing; `facts` are its other fields."""
    known = {
        "id": thing.id,
        "name": thing.tags.get("Name") or ("" if thing.name == thing.id else thing.name),
        "region": thing.region,
        "zone": thing.zone,
        "type": thing.type,
        "state": thing.word,
    }
    return checks.existing(thing.tags, **{**known, **facts})
