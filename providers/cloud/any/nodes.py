"""Nodes: machines of a site."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from declarative.model.inputs import NodeInputs, inputs_of
from declarative.model.state import ANOTHERS, TAGS, Address, NodeState, Readiness, Record
from declarative.provider import Ended, PermanentError, PermanentKind, ProviderError, Thing
from providers.cloud import cloud_init, marks
from providers.cloud.account import look_up, pauses
from providers.cloud.any.account import Account, At, first_of_each
from providers.cloud.any.site import IS, Machine, Wanted, What, Written
from providers.cloud.hosts import Seen
from providers.cloud.keys import Keys
from providers.cloud.volume_checks import check_fixed, gone
from providers.ownership import key_of

FIXED = ("backend", "region", "zone", "instance_type", "spot", "resources")
"""Inputs of a node that are those of its machine: it is made anew to change them."""
TAKEN = "taken"
"""The text of a machine that was ready to be a node once."""


class Nodes:
    """The machines of one account."""

    def __init__(self, account: Account, keys: Keys) -> None:
        self._account = account
        self._keys = keys

    def listed(self) -> list[Machine]:
        """All that are ours and alive, at all sites."""
        return first_of_each(self._account.each(At.machines))

    def thing(self, machine: Machine) -> Thing:
        """A machine of ours as a thing."""
        mark = machine.written
        inputs, outputs = mark.inputs or {}, self._outputs(machine)
        known = mark.inputs is not None
        return Thing(address=mark.address, token=mark.token, inputs=inputs, outputs=outputs, known=known)

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port."""
        found = (m for m in self.listed() if (m.written.address, m.written.token) == (address, token))
        return next(map(self.thing, found), None)

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | Ended | None]:
        """See `provider.Recalls`."""
        return recalled(self._account, "machine", records)

    # ------------------------------------------------------------------------------------- create

    def create(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. It ends when the machine runs."""
        node = inputs_of("node", inputs)
        at = self._account.at(node.region)
        mark = Written(owner=self._account.owner, token=token, address=address)
        try:
            machine = self._account.only(
                "machine",
                at,
                mark,
                lambda: at.site.launch(self._wanted(at, mark, node, inputs)),
                lambda: _of(at, mark),
            )
        except PermanentError:
            with suppress(ProviderError):  # what it is about was said
                self._leave(at)
            raise
        return self._outputs(self._running(at, machine))

    def _wanted(self, at: At, mark: Written, node: NodeInputs, inputs: Mapping[str, Any]) -> Wanted:
        if node.spot and not at.site.spots:
            summary = f"{mark.address}: {self._account.CLOUD} has no spot machines"
            raise PermanentError(PermanentKind.INVALID, summary, about="spot_policy")
        login, key = self._keys.made(), self._keys.host_key(mark.token)
        user = self._account.config.ssh_user or cloud_init.USER
        written = Written(
            owner=mark.owner,
            token=mark.token,
            address=mark.address,
            inputs=dict(inputs),
            own={"user": user, "host_key": key.public},
        )
        return Wanted(
            region=node.region,
            zone=node.zone,
            written=written,
            tags=marks.tags_in(inputs),
            size=node.instance_type,
            image=self._account.image(node.region),
            user_data=cloud_init.user_data(user, login.public, key),
            key=at.site.bring_key(self._keys.name, login.public),
            spot=node.spot,
        )

    def _running(self, at: At, machine: Machine) -> Machine:
        """The machine once it runs. One that fails instead is deleted; so is one that was made twice."""
        zone = machine.zone or machine.region
        for _ in pauses(f"{machine.id} is still starting", zone):
            # Not listed yet is no more than that: the cloud had answered that it is made.
            found = look_up(partial(_of, at, machine.written))
            machine = found[0] if found else machine
            if machine.state is NodeState.FAILED:
                at.site.end(machine)
                summary = f"{machine.id} failed while it started: {machine.reason or 'nobody says why'}"
                raise PermanentError(PermanentKind.NO_CAPACITY, summary, about=zone)
            if machine.state is not NodeState.PROVISIONING and machine.address:
                for extra in found[1:]:
                    at.site.end(extra)
                return machine
        raise AssertionError("pauses end with a fault")

    def _outputs(self, machine: Machine) -> dict[str, Any]:
        """What is recorded of a machine, and stays as it is while that lives and runs."""
        own = machine.written.own or self._derived(machine.written.token)
        found = {
            "id": machine.id,
            "address": machine.address,
            "zone": machine.zone,
            "public_address": machine.public_address,
            "user": own.get("user"),
            "host_key": own.get("host_key"),
        }
        return {key: value for key, value in found.items() if value or key == "address"}

    def _derived(self, token: str) -> dict[str, str]:
        """What is not written on a machine, computed again; without the key's file it stays unknown."""
        user = self._account.config.ssh_user or cloud_init.USER
        try:
            return {"user": user, "host_key": self._keys.host_key(token).public}
        except PermanentError:
            return {"user": user}

    # ----------------------------------------------------------------------------- update, delete

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. What changes in place is written down alone."""
        check_fixed(have.address, have.inputs, inputs, FIXED)
        at, found = self._there(have)
        if not found and mended(at, self._account.owner, "machine", have, token):
            at, found = self._there(have)
        if not found:
            raise gone(have.address)
        rewrite(at, found[0], inputs)
        return self._outputs(found[0])

    def delete(self, have: Record) -> None:
        """See the port. With the last machine of a site goes the key there."""
        at, found = self._there(have)
        for machine in found:
            try:
                at.site.end(machine)
            except PermanentError as error:
                if error.kind is not PermanentKind.NOT_FOUND:
                    raise
        if found:
            self._leave(at, {machine.id for machine in found})

    def _there(self, have: Record) -> tuple[At, list[Machine]]:
        """The machine of a record, if it is alive, and whatever was made of the same create."""
        at = self._account.at(have.node.region)
        made = have.outputs.get("id")
        every = at.machines()
        if not made:
            return at, [m for m in every if m.written.address == have.address]
        one = next((m for m in every if m.id == made), None)
        return at, [m for m in every if one and m.written.token == one.written.token]

    def _leave(self, at: At, ending: AbstractSet[str] = frozenset()) -> None:
        """Take the key away from a site without machines. Whoever makes one just now brings it again."""
        if {machine.id for machine in at.machines()} <= ending and self._keys.file.exists():
            at.site.drop_key(self._keys.name, self._keys.login().public)

    # ---------------------------------------------------------------------------------- readiness

    def readiness(self, nodes: Sequence[Record]) -> dict[str, Seen]:
        """What the cloud says of nodes."""
        ats = {record.address.name: self._account.at(record.node.region) for record in nodes}
        there = {at: {m.id: m for m in at.machines()} for at in dict.fromkeys(ats.values())}
        out: dict[str, Seen] = {}
        for record in nodes:
            name, made = record.address.name, str(record.outputs.get("id") or "")
            machine = there[ats[name]].get(made)
            state = machine.state if machine else NodeState.UNREACHABLE
            reason = machine.reason if machine else "there is no such machine"
            ready = Readiness(state=state, reason=reason, observed_at=time.time())
            out[name] = Seen(readiness=ready, taken=bool(machine and self.was_ready(ats[name], machine)))
        return out

    def taken(self, node: Record) -> None:
        """Note that a node was ready once: what it is not from now on is no part of its start."""
        at, found = self._there(node)
        if "machine" in at.site.keeps:
            for machine in found[:1]:
                at.site.write(machine, {TAKEN: "yes"})
            return
        file = self._note(str(node.outputs["id"]))
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch()

    def was_ready(self, at: At, machine: Machine) -> bool:
        """Whether that was noted."""
        if "machine" in at.site.keeps:
            return TAKEN in machine.written.texts
        return self._note(machine.id).exists()

    def _note(self, made: str) -> Path:
        """A file that says it, where the cloud can keep nothing. Another computer finds out for itself."""
        folder = self._account.config.project_dir / ".fleetform" / "taken"
        return folder / key_of(f"{self._account.owner}\0{made}")


def _of(at: At, mark: Written) -> list[Machine]:
    """The machines that the create with this mark made, the oldest first."""
    wanted = (mark.token, mark.address)
    return [m for m in at.machines() if (m.written.token, m.written.address) == wanted]


def mended(at: At, owner: str, kind: What, have: Record, token: str) -> bool:
    """Write the mark on a recorded thing that is there and says of nobody that it is theirs."""
    made = str(have.outputs.get("id") or "")
    owners = at.site.owners(kind)
    if made not in owners or owners[made] is not None:
        return False
    own = {key: have.outputs[key] for key in ("user", "host_key") if have.outputs.get(key)}
    mark = Written(owner=owner, token=token, address=have.address, inputs=dict(have.inputs), own=own)
    at.site.mend(kind, made, mark, marks.tags_in(have.inputs))
    return True


def recalled(account: Account, kind: What, records: Sequence[Record]) -> dict[Address, Thing | Ended | None]:
    """See `provider.Recalls`: those that are there by their ids, and do not say that they are ours."""
    out: dict[Address, Thing | Ended | None] = {}
    by_site: dict[At, list[Record]] = {}
    for record in records:
        by_site.setdefault(account.at(getattr(record.typed, "region", None)), []).append(record)
    for at, found in by_site.items():
        owners = at.site.owners(kind)
        for record in found:
            made = str(record.outputs.get("id") or "")
            if made not in owners:
                reason = at.site.ended(kind, made) if made else None
                if reason:
                    out[record.address] = Ended(reason=reason)
                continue
            owner = owners[made]
            actual: dict[str, Any] = {TAGS: {}} if owner is None else {}
            if owner not in (None, account.owner):
                actual = {ANOTHERS: owner}
            out[record.address] = marks.again(record, actual=actual)
    return out


def rewrite(at: At, thing: Any, inputs: Mapping[str, Any]) -> None:
    """Write new inputs on a thing, where its cloud keeps any."""
    kind = "machine" if isinstance(thing, Machine) else "disk"
    if kind not in at.site.keeps:
        return
    have: Written = thing.written
    before, after = marks.tags_in(have.inputs or {}), marks.tags_in(inputs)
    if before != after:
        at.site.retag(thing, before, after)  # first: which they were stands in the old mark
    new = Written(owner=have.owner, token=have.token, address=have.address, inputs=dict(inputs), own=have.own)
    at.site.write(thing, {IS: new.text()})
