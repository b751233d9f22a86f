"""Any driver of libcloud's, by its abilities, and the drivers with their own code: `digitalocean`, `vultr`,
`hyperstack`, `lambda`, `nebius`.

`site.Site` defines what a cloud must be able to do. Each driver has a class for it; for all others it is
`libcloud_site.LibcloudSite`, with libcloud's own methods. This module has the calls for nodes (see
`cloud.nodes`), `volumes` those for volumes; the rest is the same as in other clouds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from declarative.model.inputs import NodeInputs, inputs_of
from declarative.model.resource import Offer
from declarative.model.state import Address, Record
from declarative.model.status import NodeState
from declarative.provider import (
    Ended,
    PermanentError,
    PermanentKind,
    ProviderError,
    TransientError,
    TransientKind,
)
from declarative.provider.optional import Existing
from providers.cloud import checks, marks
from providers.cloud.account import if_there, look_up, waits
from providers.cloud.any.account import (
    FINGERPRINT,
    Account,
    At,
    duplicates,
    first_of_each,
    let_go,
    of_mark,
    rewrite,
    same,
    take,
    written_of,
)
from providers.cloud.any.site import TAKEN, Disk, Everyones, Machine, Names, Reserves, Size, Tags, Wanted
from providers.cloud.any.volumes import SiteAttachments, SiteVolumes, Volumes
from providers.cloud.attachments import Attachments
from providers.cloud.bad_answers import asked
from providers.cloud.faults import fault
from providers.cloud.keys import USER, user_data
from providers.cloud.marks import Mark
from providers.cloud.nodes import Nodes, outputs
from providers.cloud.placement_groups import Reserved
from providers.cloud.provider import Cloud

SURE = 4
"""How many looks in a row must miss a machine that existed: a single one may be too early."""


class SiteNodes:
    """The nodes of a site."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._keys = account.keys
        self._failed: dict[str, ProviderError] = {}
        """Token → the fault of a create whose broken machine could not be ended yet."""

    def listed(self, *, address: str | None = None) -> list[Machine]:
        """All of ours that are alive, at all sites, without duplicates of one create."""
        narrow = {} if address is None else {"address": address}
        return self._account.each(lambda at: first_of_each(at, at.machines_with(**narrow)))

    def candidates(self, address: Address, token: str) -> list[Machine]:
        """A machine that never ran does not count: its create deletes it."""
        found = self._account.each(lambda at: at.machines_of(address, token))
        return [machine for machine in found if machine.state is not NodeState.FAILED]

    def recorded(self, records: Sequence[Record]) -> Iterator[tuple[Record, Machine | Ended | None]]:
        for at, found in self._account.by_site(records):
            ids = {record.address: _id(record) for record in found if _id(record)}
            there = at.machines_by_id(list(ids.values()))
            lost = [made for made in ids.values() if made not in there]
            missing = at.site.missing("machine", lost, sure=bool(there)) if lost else {}
            for record in found:
                made = ids.get(record.address, "")
                if made in there:
                    yield record, there[made]
                elif made in missing:
                    why = missing[made]
                    yield record, Ended(reason=why) if why else None

    def machine(self, have: Record, *, ending: bool) -> Machine | None:
        """The machine by its id, with its mark or without; one that is ending only if it is to be ended."""
        at, made = self._account.at(have.node.region), _id(have)
        found = at.machines_by_id([made]).get(made) if made else None
        if ending and made and found is None:
            at.site.check_gone("machine", made)
        return None if found is None or (found.gone and not (ending and at.site.lingers)) else found

    def type_of(self, machine: Machine, made: str) -> str:
        """Clouds vary in upper and lower case. The part after a `+` is not the cloud's."""
        wanted, plus, rest = made.partition("+")
        return (
            made
            if machine.type.lower() in (wanted.lower(), made.lower())
            else machine.type and f"{machine.type}{plus}{rest}"
        )

    # ----------------------------------------------------------------------------------- adoption

    def named(self, asked: NodeInputs) -> Machine | None:
        """By its id."""
        return self._account.at(asked.region).machine(str(asked.instance_id), checks.TOGETHER)

    def take(self, machine: Machine, mark: Mark) -> None:
        site = self._account.at(machine.region).site
        assert isinstance(site, Tags)
        take(self._account, site, machine, mark)

    def let_go(self, machine: Machine) -> None:
        site = self._account.at(machine.region).site
        assert isinstance(site, Tags)
        let_go(site, machine)

    # ------------------------------------------------------------------------------------- create

    def create(self, mark: Mark, node: NodeInputs) -> Machine:
        """Return when the machine runs."""
        at = self._account.at(node.region)
        with at.site.around(node, ends=False):
            if mark.token in self._failed:
                self._there(at, mark, node)
                raise self._failed.pop(mark.token)
            try:
                machine = self._account.create_once(
                    "machine",
                    at,
                    mark,
                    partial(self._wanted, at, mark, node),
                    partial(self._launch, at, node),
                    partial(self._there, at, mark, node),
                )
            except PermanentError as error:
                with suppress(ProviderError):  # an error about it was already reported
                    if isinstance(at.site, Names) and error.kind is not PermanentKind.CONFLICT:
                        at.site.clean(at.site.id_of("machine", mark.address, mark.token, node))
                    if at.lists and not at.machines():
                        self._drop_key(at)
                raise
            return self._running(at, machine, mark)

    def _there(self, at: At, mark: Mark, node: NodeInputs) -> list[Machine]:
        """What earlier tries of a create made. What never ran is ended."""
        found = at.machines_of(mark.address, mark.token, node)
        for machine in found:
            if machine.state is NodeState.FAILED and same(machine, mark):
                if_there(at.site.end, machine)
        return [machine for machine in found if machine.state is not NodeState.FAILED]

    def _wanted(self, at: At, mark: Mark, node: NodeInputs) -> Wanted:
        """The machine to request. All that it needs exists then."""
        site = at.site
        if node.spot and not site.spots:
            summary = f"{mark.address}: {self._account.CLOUD} has no spot machines"
            raise PermanentError(PermanentKind.INVALID, summary, about="spot_policy")
        ahead, reserved = site.ahead(node), self.reserved(node)
        login, key = self._account.login(at), self._keys.host_key(mark.token)
        user, image = self._account.config.ssh_user or USER, self._account.image(node.region)
        named = site.add_key(self._keys.name, login.public)
        tags = mark.tags
        if self._account.TAGGED:
            own = {marks.HOST_KEY: key.public, marks.USER: user}
            whose = {} if named else {FINGERPRINT: login.fingerprint}
            tags = {**self._account.tags(mark), **own, **whose}
        return Wanted(
            region=node.region,
            zone=node.zone,
            mark=mark,
            written=written_of(mark, {"user": user, "host_key": key.public}),
            tags=tags,
            size=node.instance_type,
            image=image,
            user_data=user_data(user, login.public, key),
            key=named,
            login=login.public,
            group=site.groups.of_node(node, reserved) if site.groups else None,
            reserved=reserved,
            ahead=ahead,
            spot=node.spot,
        )

    def _launch(self, at: At, node: NodeInputs, wanted: Wanted) -> Machine:
        try:
            return at.site.launch(wanted)
        except PermanentError as error:
            groups = at.site.groups
            if groups is None or not groups.was_deleted(error, wanted.group, node):
                raise
            raise TransientError(TransientKind.BUSY, error.summary, about=error.about) from None

    def reserved(self, node: NodeInputs) -> Reserved | None:
        """The part of its reservation that a node takes; `PermanentError` if it cannot."""
        at = self._account.at(node.region)
        return at.site.reserved(node) if node.reservation and isinstance(at.site, Reserves) else None

    def _running(self, at: At, machine: Machine, mark: Mark) -> Machine:
        """The machine once it runs. A machine that fails, and a duplicate, is deleted."""
        about, made = machine.zone or machine.region or machine.called, machine.id
        age = machine.age
        machine = self._account.completed(at.site, machine)
        unseen = 0
        for pause in waits(f"{machine.called} is still starting", about):
            # The cloud has confirmed it: if it is not listed yet, it will be.
            found = look_up(partial(self._look, at, machine, mark, pause))
            unseen = 0 if found else unseen + 1
            if at.site.client_token and unseen >= SURE:
                missed = f"{machine.called} is not listed"
                self._account.check_missed(mark.token, missed, about, age=age)
            elif not at.lists and unseen >= SURE:
                raise self._ended(machine, about)
            machine = found[0] if found else machine
            if found and made not in {one.id for one in found}:
                continue  # an earlier try's is listed first: the one made now would be left behind
            if machine.state is NodeState.FAILED:
                self._failed[mark.token] = self._ended(machine, about)
                at.site.end(machine)
                raise self._failed.pop(mark.token)
            if machine.gone:
                raise self._ended(machine, about)
            if found and machine.state is not NodeState.PROVISIONING and machine.address:
                if not at.lists:
                    self._account.check_answer(machine.tags, mark.token, machine.id)
                extras = found[1:] if at.lists else duplicates(at, "machine", mark)
                for extra in extras:
                    if_there(at.site.end, extra)
                if made in {extra.id for extra in extras}:
                    summary = f"{made} is a duplicate of {mark.address}, and is deleted"
                    raise TransientError(TransientKind.BUSY, summary, about=str(mark.address))
                return at.site.finish(machine)
        raise AssertionError("waits end with a fault")

    def _look(self, at: At, machine: Machine, mark: Mark, pause: float) -> list[Machine]:
        """What there is of a create, oldest first."""
        if not at.lists:
            seen = at.machine(machine.id, pause)
            return [] if seen is None else [seen]
        time.sleep(pause)
        return of_mark(at.machines(), mark)

    def _ended(self, machine: Machine, about: str) -> ProviderError:
        """The fault for a machine that ended while starting. Another one may succeed."""
        kind, why = machine.fault or (PermanentKind.NO_CAPACITY, machine.word or machine.reason)
        how = "failed" if machine.state is NodeState.FAILED else "ended"
        summary = f"{machine.called} {how} while it started: {why or 'the reason is unknown'}"
        passing = isinstance(kind, TransientKind)
        return fault(PermanentKind.NO_CAPACITY if passing else kind, summary, about=about)

    # ----------------------------------------------------------------------------- update, delete

    def retag(self, machine: Machine, mark: Mark, have: Record, more: Mapping[str, str]) -> Mapping[str, Any]:
        at = self._account.at(have.node.region)
        keeps = self._account.TAGGED or "machine" in at.site.keeps
        if not keeps and mark.tags != marks.tags_in(have.inputs):
            summary = f"{mark.address}: {self._account.CLOUD} writes no tags on a machine that is there"
            hint = f"`fleetform apply --replace {mark.address}` makes it anew with these `tags`"
            raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)
        rewrite(self._account, at, machine, mark, have, more)
        return outputs(machine) if machine.address else have.outputs

    def remove(self, have: Record, there: Callable[[], list[Machine]]) -> None:
        """Including duplicates of the same create. What machines share is deleted with the last of them, even
        if that had ended before.
        """
        at = self._account.at(have.node.region)
        found = there()
        with at.site.around(have.node, ends=True):
            for machine in found:
                outside = machine.public_address or str(have.outputs.get("public_address") or "")
                its_site = self._account.at(machine.region or have.node.region).site
                if_there(its_site.end, replace(machine, public_address=outside))
            if not found and (made := _id(have)):
                at.site.clean(made)
            if at.lists:
                ended = {machine.id for machine in found}
                tokens = {machine.tags.get(marks.TOKEN) for machine in found}
                every = at.machines()
                for extra in every:
                    if extra.id not in ended and extra.tags.get(marks.TOKEN) in tokens:
                        if_there(at.site.end, extra)
                        ended.add(extra.id)
                if all(machine.id in ended for machine in every):
                    self._drop_key(at)

    def clear(self, address: Address, token: str, inputs: Mapping[str, Any]) -> None:
        node = inputs_of("node", inputs)
        at = self._account.at(node.region)
        with at.site.around(node, ends=True):
            if isinstance(at.site, Names):
                made = at.site.id_of("machine", address, token, node)
                if made not in at.machines_by_id([made]):
                    at.site.clean(made)

    def _drop_key(self, at: At) -> None:
        """Delete the key of a site without machines. A create running at the same time adds it again."""
        if self._keys.file.exists():
            at.site.delete_key(self._keys.name, self._keys.login().public)

    # ---------------------------------------------------------------------------------- readiness

    def states(
        self, nodes: Sequence[Record]
    ) -> Iterator[tuple[Record, Machine | None, NodeState, str | None]]:
        for at, records in self._account.by_site(nodes):
            there = at.seen([made for record in records if (made := _id(record))])
            states = at.site.states(there.values())
            absent = NodeState.UNREACHABLE, "there is no such machine"
            for record in records:
                yield record, there.get(_id(record)), *states.get(_id(record), absent)

    def note_ready(self, node: Record) -> None:
        """Write it on the machine, or in a file of this project."""
        at, made = self._account.at(node.node.region), _id(node)
        if isinstance(at.site, Tags) or "machine" in at.site.keeps:
            bare = Machine(id=made, region=node.node.region, state=NodeState.READY)
            machine = bare if at.site.merges else at.seen([made]).get(made)
            if machine is None:
                return
            if not isinstance(at.site, Tags):
                at.site.write(machine, {TAKEN: "yes"})
            elif marks.TAKEN not in machine.tags:
                at.site.tag(machine, {marks.TAKEN: "yes"})
            return
        file = self._account.note(made)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch()


def _id(have: Record) -> str:
    """The recorded id of a machine; empty if there is none."""
    return str(have.outputs.get("id") or "")


class AnyCloud(Cloud):
    """One account of a cloud. Secrets are read only when first needed."""

    KIND = ("region", "zone", "instance_type", "reservation")
    """Inputs of a node on which the use of its reservation depends."""

    def __init__(self, account: Account, *, adopts: bool = False) -> None:
        """`adopts`: see `Site.adopts`."""
        self.ADOPTS = adopts or self.ADOPTS
        self._account = account
        self._node_calls = SiteNodes(account)
        named = self._node_calls if self.ADOPTS_INSTANCES else None
        self._machines = Nodes(account, self._node_calls, named)
        self._disks = Volumes(account, SiteVolumes(account))
        self._held = Attachments(account, self._disks, SiteAttachments(account))
        super().__init__(account.config, account.keys, self._machines, self._disks, self._held)

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

    @asked
    def check(self, wanted: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        faults = [
            *super().check(wanted),
            *(checks.unfit_volumes(self._disks.seen, wanted) if self.ADOPTS else ()),
        ]
        if "reservation" in self.CAN:
            made = (inputs_of("node", inputs) for address, inputs in wanted.items() if address.kind == "node")
            nodes = [node for node in made if node.instance_id is None]
            kinds = {tuple(str(getattr(node, key)) for key in self.KIND): node for node in nodes}
            looks = [partial(self._node_calls.reserved, kinds[key]) for key in sorted(kinds)]
            faults += checks.faults_of((), looks)
            for at in dict.fromkeys(self._account.at(node.region) for node in nodes):
                here = [node for node in nodes if self._account.at(node.region) is at]
                faults += at.site.groups.unfit(here) if at.site.groups else ()
        return faults


class TaggedCloud(AnyCloud):
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
        self._node_calls.clear(address, token, inputs)


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
