"""Any driver of libcloud's, by its abilities, and the drivers with their own code: `digitalocean`, `vultr`,
`hyperstack`, `lambda`.

`site.Site` defines what a cloud must be able to do. Each driver has a class for it; for all others it is
`libcloud_site.LibcloudSite`, with libcloud's own methods. This module has the calls for nodes (see
`cloud.nodes`), `volumes` those for volumes; the rest is the same as in other clouds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any

from declarative.model.inputs import NodeInputs
from declarative.model.resource import Offer
from declarative.model.state import Address, Record
from declarative.model.status import NodeState
from declarative.provider import Ended, PermanentError, PermanentKind, ProviderError
from providers.cloud import checks, marks
from providers.cloud.account import if_there, look_up, pauses
from providers.cloud.any.account import Account, At, first_of_each, of_mark, recalled, rewrite, unmarked
from providers.cloud.any.site import TAKEN, Machine, Size, Wanted, Written
from providers.cloud.any.volumes import SiteAttachments, SiteVolumes, Volumes
from providers.cloud.attachments import Attachments
from providers.cloud.bad_answers import asked
from providers.cloud.keys import USER, user_data
from providers.cloud.marks import Mark
from providers.cloud.nodes import Nodes, outputs
from providers.cloud.provider import Cloud


class SiteNodes:
    """The nodes of a site. It lists only things of ours, so nothing is asked for by its id."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._keys = account.keys

    def listed(self, *, address: str | None = None) -> list[Machine]:
        """All of ours that are alive, at all sites, without duplicates of one create."""
        found = first_of_each(self._account.each(At.machines))
        return [m for m in found if address is None or str(m.written.address) == address]

    def candidates(self, address: Address, token: str) -> list[Machine]:
        return [m for m in self.listed() if (m.written.address, m.written.token) == (address, token)]

    def recorded(self, records: Sequence[Record]) -> Iterator[tuple[Record, Machine | Ended | None]]:
        """The machines that exist by their ids although their owner's mark is missing."""
        for record, found in recalled(self._account, "machine", records):
            yield record, found if isinstance(found, Ended) else _machine(record, found)

    def machine(self, have: Record, *, ending: bool) -> Machine | None:
        """The machine by its id. One without its mark counts too, unless `ending`."""
        at, made = self._account.at(have.node.region), str(have.outputs.get("id") or "")
        found = next((m for m in at.machines() if m.id == made), None)
        if found or ending or not made or not unmarked(at, "machine", made):
            return found
        return _machine(have, Written(owner="", token="", address=have.address))

    def type_of(self, machine: Machine, made: str) -> str:
        """The site does not report it."""
        return ""

    # ------------------------------------------------------------------------------------- create

    def create(self, mark: Mark, node: NodeInputs) -> Machine:
        """Return when the machine runs."""
        at = self._account.at(node.region)
        try:
            machine = self._account.create_once(
                "machine",
                at,
                mark,
                lambda: at.site.launch(self._wanted(at, mark, node)),
                lambda: of_mark(at.machines(), mark),
            )
        except PermanentError:
            with suppress(ProviderError):  # an error about it was already reported
                self._leave(at)
            raise
        return self._running(at, machine, mark)

    def _wanted(self, at: At, mark: Mark, node: NodeInputs) -> Wanted:
        if node.spot and not at.site.spots:
            summary = f"{mark.address}: {self._account.CLOUD} has no spot machines"
            raise PermanentError(PermanentKind.INVALID, summary, about="spot_policy")
        login, key = self._keys.made(), self._keys.host_key(mark.token)
        user = self._account.config.ssh_user or USER
        written = Written(
            owner=mark.owner,
            token=mark.token,
            address=mark.address,
            inputs=mark.inputs,
            own={"user": user, "host_key": key.public},
        )
        return Wanted(
            region=node.region,
            zone=node.zone,
            written=written,
            tags=mark.tags,
            size=node.instance_type,
            image=self._account.image(node.region),
            user_data=user_data(user, login.public, key),
            key=at.site.add_key(self._keys.name, login.public),
            spot=node.spot,
        )

    def _running(self, at: At, machine: Machine, mark: Mark) -> Machine:
        """The machine once it runs. A machine that fails, and a duplicate, is deleted."""
        zone, made = machine.zone or machine.region, machine.id
        machine = self._account.completed(at.site, machine)
        for _ in pauses(f"{machine.id} is still starting", zone):
            # The cloud has confirmed it: if it is not listed yet, it will be.
            found = look_up(lambda: of_mark(at.machines(), mark))
            machine = found[0] if found else machine
            if found and made not in {one.id for one in found}:
                continue  # an earlier try's is listed first: the one made now would be left behind
            if machine.state is NodeState.FAILED:
                at.site.end(machine)
                summary = f"{machine.id} failed while it started: {machine.reason or 'the reason is unknown'}"
                raise PermanentError(PermanentKind.NO_CAPACITY, summary, about=zone)
            if machine.state is not NodeState.PROVISIONING and machine.address:
                for extra in found[1:]:
                    at.site.end(extra)
                return machine
        raise AssertionError("pauses end with a fault")

    # ----------------------------------------------------------------------------- update, delete

    def retag(self, machine: Machine, mark: Mark, have: Record, more: Mapping[str, str]) -> Mapping[str, Any]:
        at = self._account.at(have.node.region)
        if "machine" not in at.site.keeps and mark.tags != marks.tags_in(have.inputs):
            summary = f"{mark.address}: {self._account.CLOUD} writes no tags on a machine that is there"
            hint = f"`fleetform apply --replace {mark.address}` makes it anew with these `tags`"
            raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)
        known = {"user": more.get(marks.USER), "host_key": more.get(marks.HOST_KEY)}
        own = {key: value for key, value in known.items() if value}
        rewrite(at, machine, mark, own)
        return outputs(machine) if machine.written.owner else have.outputs

    def remove(self, have: Record, there: Callable[[], list[Machine]]) -> None:
        """Including duplicates of the same create. A site's key is deleted with its last machine."""
        at = self._account.at(have.node.region)
        found = self._made_for(at, have)
        for machine in found:
            if_there(at.site.end, machine)
        if found:
            self._leave(at, {machine.id for machine in found})

    def _made_for(self, at: At, have: Record) -> list[Machine]:
        """The machine of a record, if alive, and all others of the same create."""
        made, every = have.outputs.get("id"), at.machines()
        if not made:
            return [m for m in every if m.written.address == have.address]
        tokens = {m.written.token for m in every if m.id == made}
        return [m for m in every if m.written.token in tokens]

    def _leave(self, at: At, ending: AbstractSet[str] = frozenset()) -> None:
        """Delete the key of a site without machines. A create running at the same time adds it again."""
        if {machine.id for machine in at.machines()} <= ending and self._keys.file.exists():
            at.site.delete_key(self._keys.name, self._keys.login().public)

    # ---------------------------------------------------------------------------------- readiness

    def states(
        self, nodes: Sequence[Record]
    ) -> Iterator[tuple[Record, Machine | None, NodeState, str | None]]:
        """One listing per site."""
        ats = {record.address: self._account.at(record.node.region) for record in nodes}
        there = {at: {m.id: m for m in at.machines()} for at in dict.fromkeys(ats.values())}
        for record in nodes:
            machine = there[ats[record.address]].get(str(record.outputs.get("id") or ""))
            if machine is None:
                yield record, None, NodeState.UNREACHABLE, "there is no such machine"
            else:
                yield record, machine, machine.state, machine.reason

    def note_ready(self, node: Record) -> None:
        """Write it on the machine, or in a file of this project."""
        at = self._account.at(node.node.region)
        if "machine" in at.site.keeps:
            for machine in self._made_for(at, node)[:1]:
                at.site.write(machine, {TAKEN: "yes"})
            return
        file = self._account.note(str(node.outputs["id"]))
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch()


def _machine(record: Record, written: Written) -> Machine:
    """A machine of which only the id and the mark are known."""
    made, region = str(record.outputs.get("id") or ""), record.node.region
    return Machine(id=made, region=region, state=NodeState.NOT_READY, written=written)


class AnyCloud(Cloud):
    """One account of a cloud without client tokens. Secrets are read only when first needed."""

    def __init__(self, account: Account, *, adopts: bool = False) -> None:
        """`adopts`: see `Site.adopts`."""
        self.ADOPTS = adopts
        self._account = account
        self._disks = Volumes(account, SiteVolumes(account))
        held = Attachments(account, self._disks, SiteAttachments(account))
        super().__init__(account.config, account.keys, Nodes(account, SiteNodes(account)), self._disks, held)

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
        missing = super().check(wanted)
        return [*missing, *(checks.unfit_volumes(self._disks.seen, wanted) if self.ADOPTS else ())]
