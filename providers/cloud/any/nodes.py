"""Nodes of all clouds: made once, found, compared, adopted, updated, deleted.

A cloud is a `Site`: it asks once. What it takes to make a machine once, to wait until it runs, and to end all
that a create made is here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from declarative.model.inputs import NodeInputs, inputs_of
from declarative.model.state import Address, Record
from declarative.model.status import NodeState, Readiness
from declarative.provider import (
    Ended,
    PermanentError,
    PermanentKind,
    ProviderError,
    Thing,
    TransientError,
    TransientKind,
)
from providers.cloud import marks
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
from providers.cloud.any.site import TAKEN, Machine, Names, Reserves, Tags, Wanted
from providers.cloud.checks import check_fixed, check_tags, gone, is_adopted, is_free
from providers.cloud.faults import fault
from providers.cloud.hosts import Seen
from providers.cloud.keys import USER, user_data
from providers.cloud.marks import Mark
from providers.cloud.placement_groups import Reserved

FIXED = ("backend", "region", "zone", "instance_type", "spot", "reservation", "identity", "resources")
"""Inputs that are fixed when the machine is made: a change needs a new machine."""
DEFAULT = "default"
SURE = 4
"""How many looks in a row must miss a machine that existed, where a denial is sure: a single one may be too
early.
"""


class Nodes:
    """The machines of one account."""

    def __init__(self, account: Account, *, adopts: bool = False) -> None:
        """`adopts`: machines that others made can be adopted."""
        self._account = account
        self._keys = account.keys
        self._adopts = adopts
        self._failed: dict[str, ProviderError] = {}
        """Token → the fault of a create whose broken machine could not be ended yet."""

    def listed(self, *, address: str | None = None) -> list[Machine]:
        """All of ours that are alive, or those of an address, at all sites, without duplicates of one
        create.
        """
        narrow = {} if address is None else {"address": address}
        return self._account.each(lambda at: first_of_each(at, at.machines_with(**narrow)))

    def thing(self, machine: Machine) -> Thing:
        """A machine of ours as the port's thing."""
        return marks.thing(self._account.read(machine), outputs(machine), partial(self._actual, machine))

    def _actual(self, machine: Machine, made: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs that others changed: the tags, the identity, and the type of a stopped machine."""
        found = self._account.changed_tags(machine.tags, made)
        wanted = str(made.get("instance_type") or "")
        has = type_of(machine, wanted)
        if has and wanted and has != wanted:
            found["instance_type"] = has
        who = made.get("identity")
        if who and machine.identities is not None and not has_identity(machine.identities, str(who)):
            found["identity"] = ", ".join(machine.identities) or None
        return found

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | Ended | None]:
        out: dict[Address, Thing | Ended | None] = {}
        for at, recorded in self._account.by_site(records):
            ids = {record.address: made for record in recorded if (made := _id(record))}
            there = at.machines_by_id(list(ids.values()))
            lost = [made for made in ids.values() if made not in there]
            missing = at.site.missing("machine", lost, sure=bool(there)) if lost else {}
            for record in recorded:
                made = ids.get(record.address, "")
                found = there.get(made)
                if found is None and made in missing:
                    why = missing[made]
                    out[record.address] = Ended(reason=why) if why else None
                elif found is not None and found.gone:
                    out[record.address] = Ended(reason=found.why_gone)
                elif found is not None:
                    actual = self._actual(found, record.inputs)
                    out[record.address] = marks.again(record, found.tags, actual)
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        """A machine that never ran does not count: its create deletes it."""
        found = self._account.each(lambda at: at.machines_of(address, token))
        things = (self.thing(machine) for machine in found if machine.state is not NodeState.FAILED)
        return next((t for t in things if (t.address, t.token) == (address, token)), None)

    # ----------------------------------------------------------------------------------- adoption

    def seen(self, address: Address, token: str, inputs: Mapping[str, Any]) -> tuple[Machine, bool]:
        """The named instance, and whether it still has to be adopted; `PermanentError` if it has another
        owner or is not as planned. In a plan, there is no `token`.
        """
        mark = self._account.mark(address, token, inputs)
        asked = mark.node
        machine = self._account.at(asked.region).machine_to_adopt(str(asked.instance_id))
        if machine is None or machine.gone:
            summary = f"{address}: there is no instance `{asked.instance_id}` in {asked.region}"
            hint = "it has ended, or is in another region or account: take it out of `instance_ids`"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about="instance_ids", hint=hint)
        free = is_free(self._account, mark, machine.tags, machine.id)
        found = {"instance_type": type_of(machine, asked.instance_type), "zone": machine.zone}
        for field, has in found.items():
            wanted, word = getattr(asked, field), field.replace("_", " ")
            if has and wanted != has:
                summary = f"{address}: the {word} of {machine.id} is {has}, and not {wanted}"
                hint = "somebody changed it since it was planned: plan again"
                raise PermanentError(PermanentKind.INVALID, summary, about="instance_ids", hint=hint)
        return machine, free

    # ------------------------------------------------------------------------------------- create

    def create(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return when the machine runs and has an address. A named machine is adopted: nothing about it
        changes but its tags.
        """
        mark = self._account.mark(address, token, inputs)
        node = mark.node
        at = self._account.at(node.region)
        if node.instance_id is not None:
            machine, free = self.seen(address, token, inputs)
            if free:
                assert isinstance(at.site, Tags)
                take(self._account, at.site, machine, mark)
            return outputs(machine)
        with at.site.around(node, ends=False):
            if token in self._failed:
                self._earlier(at, mark, node)
                raise self._failed.pop(token)
            try:
                machine = self._account.create_once(
                    "machine",
                    at,
                    mark,
                    partial(self._wanted, at, mark, node),
                    partial(self._launch, at, node),
                    partial(self._earlier, at, mark, node),
                )
            except PermanentError as error:
                with suppress(ProviderError):  # an error about it was already reported
                    if isinstance(at.site, Names) and error.kind is not PermanentKind.CONFLICT:
                        at.site.clean(at.site.id_of("machine", address, token, node))
                    if at.lists and not at.machines():
                        self._drop_key(at)
                raise
            return outputs(self._running(at, machine, mark))

    def _earlier(self, at: At, mark: Mark, node: NodeInputs) -> list[Machine]:
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
            elif isinstance(at.site, Names) and unseen >= SURE:
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

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Only changes in place are written; if the owner's mark was removed, everything is
        written again.
        """
        check_fixed(have.address, have.inputs, inputs, FIXED)
        machine = self.of(have, untagged=True)
        if machine is None:
            raise gone(have.address)
        at = self._account.at(have.node.region)
        mark = self._account.mark(have.address, token, inputs)
        unmarked = self._account.has_no_owner(machine.tags)
        if not unmarked:
            made = self._account.read(machine)
            check_tags(have.address, inputs, made.inputs, machine.tags, machine.id)
            mark = self._account.mark(made.address, made.token, inputs)
        keeps = self._account.TAGGED or "machine" in at.site.keeps
        if not keeps and mark.tags != marks.tags_in(have.inputs):
            summary = f"{mark.address}: {self._account.CLOUD} writes no tags on a machine that is there"
            hint = f"`fleetform apply --replace {mark.address}` makes it anew with these `tags`"
            raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)
        rewrite(self._account, at, machine, mark, have, marks.of_node(have.outputs) if unmarked else {})
        return have.outputs if unmarked or not machine.address else outputs(machine)

    def delete(self, have: Record) -> None:
        """Return when all parts of the machine that must be waited for are gone, duplicates of its create
        among them. What machines share is deleted with the last of them, even if that had ended before. An
        adopted machine is released: its own tags decide, not the record.
        """
        if not have.outputs.get("id"):
            found = self.listed(address=str(have.address))
        else:
            machine = self.of(have, untagged=have.node.instance_id is not None, ending=True)
            found = [] if machine is None or self._account.has_no_owner(machine.tags) else [machine]
        theirs = [m for m in found if self._adopts and is_adopted(self._account.read(m).inputs)]
        for machine in theirs:
            site = self._account.at(machine.region or have.node.region).site
            assert isinstance(site, Tags)
            let_go(site, machine)
        if have.node.instance_id is not None:
            return
        found = [machine for machine in found if machine not in theirs]
        at = self._account.at(have.node.region)
        with at.site.around(have.node, ends=True):
            for machine in found:
                outside = machine.public_address or str(have.outputs.get("public_address") or "")
                site = self._account.at(machine.region or have.node.region).site
                if_there(site.end, replace(machine, public_address=outside))
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

    def of(self, have: Record, *, untagged: bool = False, ending: bool = False) -> Machine | None:
        """The machine of a record, if it exists; `PermanentError` if it is not ours.

        Args:
            have: The record.
            untagged: A machine that does not name its owner is returned, too.
            ending: A fault unless it is certain that a machine that is not found is gone. One that is ending
                is returned if it has to be waited for.
        """
        at, made = self._account.at(have.node.region), _id(have)
        machine = at.machines_by_id([made]).get(made) if made else None
        if ending and made and machine is None:
            at.site.check_gone("machine", made)
        if machine is None or (machine.gone and not (ending and at.site.lingers)):
            return None
        if not (untagged and self._account.has_no_owner(machine.tags)):
            self._account.check_owner(machine.tags, have, machine.id)
        return machine

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

    def readiness(self, nodes: Sequence[Record]) -> dict[str, Seen]:
        """The cloud's report on nodes."""
        out: dict[str, Seen] = {}
        for at, records in self._account.by_site(nodes):
            there = at.seen([made for record in records if (made := _id(record))])
            states = at.site.states(there.values())
            absent = NodeState.UNREACHABLE, "there is no such machine"
            for record in records:
                machine = there.get(_id(record))
                state, reason = states.get(_id(record), absent)
                out[record.address.name] = Seen(
                    readiness=Readiness(state=state, reason=reason, observed_at=time.time()),
                    taken=bool(machine and machine.tags.get(marks.TAKEN)),
                    public=machine.public_address if machine else None,
                )
        return out

    def taken(self, node: Record) -> None:
        """Note that a node was ready once, on the machine or in a file of this project: a later fault is not
        part of its start.
        """
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


def type_of(machine: Machine, made: str) -> str:
    """The type of a machine, in the notation of the type in `made`. Clouds vary in upper and lower case. The
    part after a `+` is not the cloud's.
    """
    wanted, plus, rest = made.partition("+")
    if machine.type.lower() in (wanted.lower(), made.lower()):
        return made
    return machine.type and f"{machine.type}{plus}{rest}"


def has_identity(identities: Sequence[str], given: str) -> bool:
    """Whether a machine is who its fleet says: by the whole id, or by the name at its end. `default`, which
    Google has for a project's own service account, is any.
    """
    name, known = given.lower(), [identity.lower() for identity in identities]
    is_name = not name.startswith(("/", "arn:"))
    return name in known or (is_name and any(one.endswith(f"/{name}") for one in known)) or given == DEFAULT


def outputs(machine: Machine) -> dict[str, Any]:
    """The outputs of a machine, which stay the same while it runs."""
    found = {
        "id": machine.id,
        "address": machine.address,
        "zone": machine.zone,
        "public_address": machine.public_address,
        "image": machine.image,
        "user": machine.tags.get(marks.USER),
        "host_key": machine.tags.get(marks.HOST_KEY),
    }
    return {key: value for key, value in found.items() if value or key == "address"}
