"""Nodes: machines that are named after their token."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from declarative.inputs import NodeInputs, inputs_of
from declarative.provider import (
    Ended,
    PermanentError,
    PermanentKind,
    ProviderError,
    Thing,
    TransientError,
    TransientKind,
)
from declarative.state import Address, NodeState, Readiness, Record
from providers.cloud import cloud_init, marks
from providers.cloud.account import Account, look_up, pauses
from providers.cloud.exception_kinds import Kind
from providers.cloud.faults import fault
from providers.cloud.hosts import Seen
from providers.cloud.keys import SHARE, Keys
from providers.cloud.marks import Mark
from providers.cloud.named.api import Api, Machine, Phase, Reserved, Told, Wanted, name_of
from providers.cloud.named.groups import Groups
from providers.cloud.volume_checks import check_fixed, gone
from providers.ssh.pair import Login

FIXED = ("backend", "region", "zone", "instance_type", "spot", "reservation", "resources")
"""Inputs of a node that are those of its machine: it is made anew to change them."""

FINGERPRINT = f"{marks.OURS}fingerprint"
"""Mark of a machine: which key is let in."""

SURE = 4
"""Looks in a row that do not find a machine which was there: one alone may have asked too early."""
FEW = 2
"""Nodes that are looked at one by one, rather than in a listing."""


class Nodes:
    """The machines of one account."""

    def __init__(self, account: Account, keys: Keys, api: Api, kinds: Mapping[str, Kind]) -> None:
        """`kinds`: what the cloud's codes mean."""
        self._account = account
        self._keys = keys
        self._api = api
        self._kinds = kinds
        self.groups = Groups(account, api)
        self._turn = threading.Lock()
        self._compared = False

    def listed(self, *, name: str | None = None, states: bool = False) -> list[Machine]:
        """All that are ours and not about to end."""
        found = self._api.machines(name=name, states=states)
        return [m for m in found if self._ours(m) and m.phase is not Phase.ENDING]

    def _ours(self, machine: Machine) -> bool:
        return machine.tags.get(marks.OWNER) == self._account.owner

    def thing(self, machine: Machine) -> Thing:
        """A machine of ours as a thing."""
        return marks.thing(machine.tags, machine.id, outputs(machine), partial(self._actual, machine))

    def _actual(self, machine: Machine, made: Mapping[str, Any]) -> dict[str, Any]:
        """What others changed: the tags, and the type, which can be another one once it was stopped."""
        found = self._account.strange(machine.tags, made)
        wanted, plus, rest = str(made.get("instance_type") or machine.type).partition("+")
        if machine.type.lower() != wanted.lower():
            found["instance_type"] = f"{machine.type}{plus}{rest}"
        return found

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | Ended | None]:
        """See `provider.Recalls`. An id names its account: there is no such machine there, says the cloud."""
        out: dict[Address, Thing | Ended | None] = {}
        for record in records:
            made = str(record.outputs.get("id") or "")
            machine = self._api.machine(made) if made else None
            if machine is not None and machine.phase is not Phase.ENDING:
                out[record.address] = marks.again(record, machine.tags, self._actual(machine, record.inputs))
            elif machine is not None:
                out[record.address] = Ended(reason=machine.reason or f"it is {machine.state}")
            elif made:
                out[record.address] = Ended(reason=f"{self._account.CLOUD} has no {made} any more")
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port. One that never ran is none: the create that made it sees to it."""
        there = self.listed(name=name_of(address, token))
        things = [self.thing(m) for m in there if m.phase is not Phase.FAILED]
        return next((t for t in things if (t.address, t.token) == (address, token)), None)

    # ------------------------------------------------------------------------------------- create

    def create(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. It ends when the machine runs."""
        node = inputs_of("node", inputs)
        with self.groups.changing(node):
            return self._create(self._account.mark(address, token, inputs), node)

    def _create(self, mark: Mark, node: NodeInputs) -> Mapping[str, Any]:
        made = self._api.machine_id(name_of(mark.address, mark.token), node)
        machine = self._api.machine(made)
        if machine is None:
            try:
                machine = self._run(*self._asked(mark, made, node))
            except PermanentError:
                with suppress(ProviderError):  # what it is about was said
                    self._api.clean(made)
                raise
        elif machine.phase is Phase.ENDING or machine.state.lower() == "stopping":
            # The same create once made it, before this state was brought back from a backup.
            raise leaving(machine.name, mark.address)
        if not self._ours(machine) or machine.tags.get(marks.TOKEN) != mark.token:
            summary = f"{machine.id} is there, and does not carry this state's marks"
            hint = f"somebody removed them: look at it in {self._account.CLOUD}, and delete it"
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(mark.address), hint=hint)
        return outputs(self._running(machine))

    def _asked(self, mark: Mark, made: str, node: NodeInputs) -> tuple[Wanted[NodeInputs], Told]:
        """What the machine is made from. What it needs besides is there then."""
        login, key = self._login(), self._keys.host_key(mark.token)
        user = self._account.config.ssh_user or cloud_init.USER
        mine = tags_of(mark)
        tags = {**mine, marks.HOST_KEY: key.public, marks.USER: user, FINGERPRINT: login.fingerprint}
        told = Told(user_data=cloud_init.user_data(user, login.public, key), login=login.public)
        reserved = self.reserved(node)
        group = self.groups.of_node(node, reserved)
        return Wanted(
            id=made, address=mark.address, inputs=node, tags=tags, group=group, reserved=reserved
        ), told

    def _run(self, wanted: Wanted[NodeInputs], told: Told) -> Machine:
        """The machine, made now or by another try."""
        try:
            return self._api.run(wanted, told)
        except PermanentError as error:
            there = None
            if error.kind is PermanentKind.CONFLICT:
                there = look_up(partial(self._api.machine, wanted.id))
            elif not self.groups.went(error, wanted.group, wanted.inputs):
                raise
            if there is None:
                raise TransientError(TransientKind.BUSY, error.summary, about=error.about) from None
            return there

    def reserved(self, node: NodeInputs) -> Reserved | None:
        """What a node takes of its reservation; `PermanentError` if it cannot."""
        return self._api.reserved(node) if node.reservation else None

    def _login(self) -> Login:
        """The key; `PermanentError` if the nodes that there are let in another one."""
        with self._turn:
            login = self._keys.made()
            for machine in () if self._compared else self.listed():
                have = machine.tags.get(FINGERPRINT, login.fingerprint)
                if have != login.fingerprint:
                    summary = (
                        f"the nodes of this state let in another key than {self._keys.said}: that of "
                        f"{machine.name} is {have}, ours is {login.fingerprint}"
                    )
                    hint = f"take it from the machine that made the first; so that all have it, {SHARE}"
                    raise PermanentError(PermanentKind.CONFLICT, summary, about="identity_file", hint=hint)
            self._compared = True
            return login

    def _running(self, machine: Machine) -> Machine:
        """The machine once it runs. One that fails instead is taken away, and a fault says why it failed."""
        about = machine.zone or machine.name
        unseen = 0
        for _ in pauses(f"{machine.name} is still starting", about):
            seen = look_up(partial(self._api.machine, machine.id))
            unseen = unseen + 1 if seen is None else 0
            if 0 < unseen < SURE:
                continue
            if seen is None or seen.phase in (Phase.ENDING, Phase.FAILED):
                end = seen or machine
                code, text = end.code, f"{end.code}: {end.reason}".strip(": ") or end.state
                if seen is not None and seen.phase is Phase.FAILED:
                    self._api.end(seen)
                kind = self._kinds.get(code, PermanentKind.INVALID if code else PermanentKind.NO_CAPACITY)
                if isinstance(kind, TransientKind):
                    kind = PermanentKind.NO_CAPACITY  # it is gone for good: another one may do better
                raise fault(kind, f"{machine.name} ended while it started: {text}", about=about)
            if seen.phase is not Phase.STARTING:
                found = look_up(partial(self._api.with_addresses, seen))
                if found.address:
                    return found
        raise AssertionError("pauses end with a fault")

    # ----------------------------------------------------------------------------- update, delete

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. What changes in place is written down alone."""
        check_fixed(have.address, have.inputs, inputs, FIXED)
        machine = self._of(have, untagged=True)
        if machine is None:
            raise gone(have.address)
        if self._account.lost(machine.tags):
            # Somebody took everything away: it is written anew.
            after = tags_of(self._account.mark(have.address, token, inputs))
            after |= marks.of_node(have.outputs)
        else:
            made = marks.read(machine.tags, machine.id)
            after = tags_of(self._account.mark(made.address, made.token, inputs))
        self._api.tag_machine(machine, retagged(machine.tags, machine.id, after, have))
        return have.outputs

    def delete(self, have: Record) -> None:
        """See the port. It ends when nothing of the machine is left. With the last one of a cluster goes its
        placement group: also where the machine had ended before.
        """
        with self.groups.changing(have.node, ends=True):
            self._delete(have)

    def _delete(self, have: Record) -> None:
        made = str(have.outputs.get("id") or "")
        if made:
            machine = self._of(have)
            if machine is None:
                self._api.clean(made)
            there = [machine] if machine else []
        else:
            there = [m for m in self.listed() if m.tags.get(marks.ADDRESS) == str(have.address)]
        for machine in there:
            self._api.end(machine)

    def clear(self, address: Address, token: str, inputs: Mapping[str, Any]) -> None:
        """See `provider.Clears`."""
        node = inputs_of("node", inputs)
        made = self._api.machine_id(name_of(address, token), node)
        with self.groups.changing(node, ends=True):
            if self._api.machine(made) is None:
                self._api.clean(made)

    def _of(self, have: Record, *, untagged: bool = False) -> Machine | None:
        """The machine of a record, if it is there; one that is not ours is an error, and so is one that does
        not say whose it is, unless that is to be mended.
        """
        made = str(have.outputs.get("id") or "")
        machine = self._api.machine(made) if made else None
        if machine is None:
            return None
        if not (untagged and self._account.lost(machine.tags)):
            self._account.check_owner(machine.tags, have, machine.id)
        return machine

    # ---------------------------------------------------------------------------------- readiness

    def readiness(self, nodes: Sequence[Record]) -> dict[str, Seen]:
        """What the cloud says of nodes: one listing, and a look at each that is not in it."""
        listed = self._api.machines(states=True) if len(nodes) > FEW else []
        there = {machine.id: machine for machine in listed}
        out: dict[str, Seen] = {}
        for record in nodes:
            made = str(record.outputs.get("id") or "")
            machine = there.get(made) or (self._api.machine(made) if made else None)
            if machine is not None and not machine.address:
                machine = self._api.with_addresses(machine)
            state, reason = _state(machine)
            out[record.address.name] = Seen(
                readiness=Readiness(state=state, reason=reason, observed_at=time.time()),
                taken=bool(machine and machine.tags.get(marks.TAKEN)),
                public=machine.public_address if machine else None,
            )
        return out

    def taken(self, node: Record) -> None:
        """Note that a node was ready once: what it is not from now on is no part of its start."""
        machine = self._api.machine(str(node.outputs["id"]))
        if machine is not None and marks.TAKEN not in machine.tags:
            self._api.tag_machine(machine, {**machine.tags, marks.TAKEN: "yes"})


def outputs(machine: Machine) -> dict[str, Any]:
    """What is recorded of a machine, and stays as it is while that lives and runs."""
    found = {
        "id": machine.id,
        "address": machine.address,
        "zone": machine.zone,
        "public_address": machine.public_address,
        "user": machine.tags.get(marks.USER),
        "host_key": machine.tags.get(marks.HOST_KEY),
    }
    return {key: value for key, value in found.items() if value or key == "address"}


def tags_of(mark: Mark) -> dict[str, str]:
    """What is written on a thing: the user's tags, and the mark."""
    users = mark.tags
    for key in users:
        if key.lower().startswith(marks.OURS[:-1]):
            summary = f"{mark.address}: a tag cannot begin with `{marks.OURS[:-1]}`: {key}"
            raise PermanentError(PermanentKind.INVALID, summary, about="tags")
    return {**users, **marks.written(mark)}


def retagged(have: Mapping[str, str], thing: str, after: Mapping[str, str], record: Record) -> dict[str, str]:
    """All tags of a thing once its mark is another one: what others wrote on it stays.

    `record` says what it was made with where somebody removed its mark.
    """
    before = marks.read(have, thing).tags if marks.OWNER in have else marks.tags_in(record.inputs)
    old = set(before) | {key for key in have if key.startswith(marks.INPUTS)}
    return {**{key: value for key, value in have.items() if key not in old}, **after}


def _state(machine: Machine | None) -> tuple[NodeState, str | None]:
    if machine is None:
        return NodeState.UNREACHABLE, "there is no such machine"
    why = f": {machine.reason}" if machine.reason else ""
    match machine.phase:
        case Phase.RUNS:
            return NodeState.READY, None
        case Phase.STARTING:
            return NodeState.PROVISIONING, "it is starting"
        case Phase.STOPPED:
            return NodeState.NOT_READY, f"it is {machine.state}{why}"
        case Phase.ENDING:
            return NodeState.TERMINATING, f"it is {machine.state}{why}"
        case Phase.FAILED:
            return NodeState.FAILED, f"it never ran{why}"


def leaving(name: str, address: Address) -> TransientError:
    """The fault of a create where a thing of that name is on its way out: then the name is free again."""
    summary = f"an earlier {name} is just being deleted: it can be made anew once that is over"
    return TransientError(TransientKind.BUSY, summary, about=str(address))
