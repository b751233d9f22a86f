"""The calls for nodes of clouds with unique names: see `cloud.nodes`. A machine is named after its token. For
placement groups see `cloud.placement_groups`.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from declarative.model.inputs import NodeInputs, inputs_of
from declarative.model.spec.values import Placement
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
from providers.cloud import marks, placement_groups
from providers.cloud.account import Account, look_up, pauses
from providers.cloud.faults import Kind
from providers.cloud.keys import SHARE, Keys
from providers.cloud.marks import Mark
from providers.cloud.named.api import Api, FirstStart, Machine, Phase, Reserved, Wanted, name_of
from providers.cloud.nodes import ended, first_start
from providers.cloud.placement_groups import OFF, OPTION
from providers.ssh.key_pairs import Login

FINGERPRINT = f"{marks.OURS}fingerprint"
"""A machine's tag: the fingerprint of the key that may log in."""

SURE = 4
"""How many looks in a row must miss a machine that existed: a single one may be too early."""
FEW = 2
"""Up to so many nodes are looked at one by one; more by a listing."""


class NamedNodes:
    """The calls of these clouds for nodes: see `nodes.Driver`."""

    def __init__(self, account: Account, keys: Keys, api: Api, kinds: Mapping[str, Kind]) -> None:
        """`kinds`: the meaning of the cloud's codes."""
        self._account = account
        self._keys = keys
        self._api = api
        self._kinds = kinds
        self.groups = Groups(account, api)
        self._turn = threading.Lock()
        self._compared = False

    def listed(self, *, address: str | None = None) -> list[Machine]:
        """All of ours that are not ending."""
        found = self._living()
        return [m for m in found if address is None or m.tags.get(marks.ADDRESS) == address]

    def _living(self, name: str | None = None) -> list[Machine]:
        return [m for m in self._api.machines(name=name) if self._ours(m) and not m.gone]

    def _ours(self, machine: Machine) -> bool:
        return machine.tags.get(marks.OWNER) == self._account.owner

    def candidates(self, address: Address, token: str) -> list[Machine]:
        """A machine that never ran does not count: its create deletes it."""
        return [m for m in self._living(name_of(address, token)) if m.phase is not Phase.FAILED]

    def recorded(self, records: Sequence[Record]) -> Iterator[tuple[Record, Machine | Ended | None]]:
        """An id includes its account, so the cloud's denial is reliable."""
        for record in records:
            if made := _id(record):
                yield (
                    record,
                    self._api.machine(made) or Ended(reason=f"{self._account.CLOUD} has no {made} any more"),
                )

    def machine(self, have: Record, *, ending: bool = False) -> Machine | None:
        """The machine of a record, even if it is ending."""
        made = _id(have)
        return self._api.machine(made) if made else None

    def type_of(self, machine: Machine, made: str) -> str:
        """Clouds vary in upper and lower case. The part after a `+` is not the cloud's."""
        wanted, plus, rest = made.partition("+")
        return made if machine.type.lower() == wanted.lower() else f"{machine.type}{plus}{rest}"

    # ------------------------------------------------------------------------------------- create

    def create(self, mark: Mark, node: NodeInputs) -> Machine:
        """Return when the machine runs."""
        with self.groups.changing(node):
            return self._create(mark, node)

    def _create(self, mark: Mark, node: NodeInputs) -> Machine:
        made = self._api.machine_id(name_of(mark.address, mark.token), node)
        machine = self._api.machine(made)
        if machine is None:
            try:
                machine = self._run(*self._asked(mark, made, node))
            except PermanentError:
                with suppress(ProviderError):  # an error about it was already reported
                    self._api.clean(made)
                raise
        elif machine.gone or machine.state.lower() == "stopping":
            # The same create made it earlier, before this state was restored from a backup.
            raise leaving(machine.name, mark.address)
        if not self._ours(machine) or machine.tags.get(marks.TOKEN) != mark.token:
            summary = f"{machine.id} exists, but does not carry this state's marks"
            hint = f"somebody removed them: look at it in {self._account.CLOUD}, and delete it"
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(mark.address), hint=hint)
        return self._running(machine)

    def _asked(self, mark: Mark, made: str, node: NodeInputs) -> tuple[Wanted[NodeInputs], FirstStart]:
        """The request for the machine. All that it needs exists then."""
        login = self._login()
        own, user_data = first_start(self._account, self._keys, login, mark.token)
        tags = {**tags_of(mark), **own, FINGERPRINT: login.fingerprint}
        start = FirstStart(user_data=user_data, login=login.public)
        reserved = self.reserved(node)
        group = self.groups.of_node(node, reserved)
        return Wanted(
            id=made, address=mark.address, inputs=node, tags=tags, group=group, reserved=reserved
        ), start

    def _run(self, wanted: Wanted[NodeInputs], start: FirstStart) -> Machine:
        """The machine, made now or by another try."""
        try:
            return self._api.run(wanted, start)
        except PermanentError as error:
            there = None
            if error.kind is PermanentKind.CONFLICT:
                there = look_up(partial(self._api.machine, wanted.id))
            elif not self.groups.was_deleted(error, wanted.group, wanted.inputs):
                raise
            if there is None:
                raise TransientError(TransientKind.BUSY, error.summary, about=error.about) from None
            return there

    def reserved(self, node: NodeInputs) -> Reserved | None:
        """The part of its reservation that a node takes; `PermanentError` if it cannot."""
        return self._api.reserved(node) if node.reservation else None

    def _login(self) -> Login:
        """The key; `PermanentError` if existing nodes have another one."""
        with self._turn:
            login = self._keys.made()
            for machine in () if self._compared else self._living():
                have = machine.tags.get(FINGERPRINT, login.fingerprint)
                if have != login.fingerprint:
                    summary = (
                        f"the nodes of this state let in another key than {self._keys.source}: that of "
                        f"{machine.name} is {have}, ours is {login.fingerprint}"
                    )
                    hint = f"take it from the machine that made the first; so that all have it, {SHARE}"
                    raise PermanentError(PermanentKind.CONFLICT, summary, about="identity_file", hint=hint)
            self._compared = True
            return login

    def _running(self, machine: Machine) -> Machine:
        """The machine once it runs. If it fails, it is removed, and a fault says why it failed."""
        about = machine.zone or machine.name
        unseen = 0
        for _ in pauses(f"{machine.name} is still starting", about):
            seen = look_up(partial(self._api.machine, machine.id))
            unseen = unseen + 1 if seen is None else 0
            if 0 < unseen < SURE:
                continue
            if seen is None:
                raise self._ended(machine, about)
            if seen.phase is Phase.FAILED:
                self._api.end(seen)
            if seen.phase in (Phase.ENDING, Phase.FAILED):
                raise self._ended(seen, about)
            if seen.phase is not Phase.STARTING:
                found = look_up(partial(self._api.with_addresses, seen))
                if found.address:
                    return found
        raise AssertionError("pauses end with a fault")

    def _ended(self, machine: Machine, about: str) -> ProviderError:
        """The fault for a machine that ended while starting, by the cloud's code if there is one."""
        text = f"{machine.code}: {machine.reason}".strip(": ") or machine.state
        usual = PermanentKind.INVALID if machine.code else PermanentKind.NO_CAPACITY
        kind = self._kinds.get(machine.code, usual)
        return ended(kind, f"{machine.name} ended while it started: {text}", about)

    # ----------------------------------------------------------------------------- update, delete

    def retag(self, machine: Machine, mark: Mark, have: Record, more: Mapping[str, str]) -> Mapping[str, Any]:
        """All at once."""
        after = {**tags_of(mark), **more}
        self._api.tag_machine(machine, retagged(machine.tags, machine.id, after, have))
        return have.outputs

    def remove(self, have: Record, there: Callable[[], list[Machine]]) -> None:
        """Return when nothing of the machine is left. With the last one of a cluster its placement group
        is deleted, even if the machine had ended before.
        """
        with self.groups.changing(have.node, ends=True):
            found = there()
            if not found and (made := _id(have)):
                self._api.clean(made)
            for machine in found:
                self._api.end(machine)

    def clear(self, address: Address, token: str, inputs: Mapping[str, Any]) -> None:
        node = inputs_of("node", inputs)
        made = self._api.machine_id(name_of(address, token), node)
        with self.groups.changing(node, ends=True):
            if self._api.machine(made) is None:
                self._api.clean(made)

    # ---------------------------------------------------------------------------------- readiness

    def states(
        self, nodes: Sequence[Record]
    ) -> Iterator[tuple[Record, Machine | None, NodeState, str | None]]:
        """The cloud's report on nodes: one listing, and a look at each node that is missing from it."""
        listed = self._api.machines(states=True) if len(nodes) > FEW else []
        there = {machine.id: machine for machine in listed}
        for record in nodes:
            machine = there.get(_id(record)) or self.machine(record)
            if machine is not None and not machine.address:
                machine = self._api.with_addresses(machine)
            yield record, machine, *_state(machine)

    def note_ready(self, node: Record) -> None:
        """All tags of a machine are written at once, so it is read first."""
        machine = self.machine(node)
        if machine is not None and marks.TAKEN not in machine.tags:
            self._api.tag_machine(machine, {**machine.tags, marks.TAKEN: "yes"})


def _id(have: Record) -> str:
    """The recorded id of a machine; empty if there is none."""
    return str(have.outputs.get("id") or "")


def tags_of(mark: Mark) -> dict[str, str]:
    """The tags of a thing: the user's, and the mark."""
    users = mark.tags
    for key in users:
        if key.lower().startswith(marks.OURS[:-1]):
            summary = f"{mark.address}: a tag cannot begin with `{marks.OURS[:-1]}`: {key}"
            raise PermanentError(PermanentKind.INVALID, summary, about="tags")
    return {**users, **marks.written(mark)}


def retagged(have: Mapping[str, str], thing: str, after: Mapping[str, str], record: Record) -> dict[str, str]:
    """All tags of a thing with its new mark. Tags of others stay.

    `record` has the inputs that it was made with, in case its mark was removed.
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
    """The fault for a create while a thing of that name is ending: the name will be free again."""
    summary = f"an earlier {name} is just being deleted: it can be made anew once that is over"
    return TransientError(TransientKind.BUSY, summary, about=str(address))


class Groups(placement_groups.Groups):
    """The placement groups of one account."""

    def __init__(self, account: Account, api: Api) -> None:
        super().__init__(account)
        self._sites = api.sites
        self.CALLED = api.sites.called

    def of_node(self, inputs: NodeInputs, reserved: placement_groups.Reserved | None) -> str:
        """The id of the existing group for a node to make; empty if it has none."""
        if reserved and (reserved.group or not reserved.grouped):
            return reserved.group
        name = self.ensure(inputs)
        return self._sites.id_of(name, inputs) if name else ""

    def was_deleted(self, error: PermanentError, made: str | None, inputs: NodeInputs) -> bool:
        """Whether a node was refused because its group was deleted meanwhile with its last node: it is made
        again.
        """
        name = self.of(inputs)
        refused = error.kind in (PermanentKind.NOT_FOUND, PermanentKind.INVALID)
        if not refused or not name or made != self._sites.id_of(name, inputs):
            return False
        if self._sites.tags(str(made)) is not None:
            return False
        self.forgotten(name)
        return True

    # -------------------------------------------------------------------------------------- ahead

    def unfit(self, wanted: Iterable[NodeInputs]) -> Iterator[PermanentError]:
        """Why nodes cannot be in their groups, as far as this can be checked before they are made."""
        # A reservation has a group of its own, or none.
        cluster = [i for i in wanted if i.placement == Placement.CLUSTER and not i.reservation]
        if self.given == OFF:
            return
        yield from self._absent(self.given, cluster) if self.given else self._crowded(cluster)

    def _crowded(self, cluster: Iterable[NodeInputs]) -> Iterator[PermanentError]:
        most = self._sites.most
        crowds = Counter((i.fleet, name) for i in cluster if (name := self.of(i)))
        for (fleet, _), count in crowds.items():
            if most and count > most:
                takes = f"a {self.CALLED} takes {most} nodes"
                summary = f"fleet/{fleet}: {takes}, and there would be {count} in its zone"
                hint = f"lower the fleet's `nodes`, or write `options: {{{OPTION}: {OFF}}}` in the backend"
                yield PermanentError(PermanentKind.INVALID, summary, about=OPTION, hint=hint)

    def _absent(self, given: str, cluster: Iterable[NodeInputs]) -> Iterator[PermanentError]:
        for made, region in sorted({(self._sites.id_of(given, i), i.region) for i in cluster}):
            try:
                there = self._sites.tags(made) is not None
            except PermanentError as error:
                if error.kind is not PermanentKind.AUTH:
                    raise
                continue  # the right to use it does not include the right to read it
            if not there:
                summary = f"there is no {self.CALLED} `{given}` in {region}"
                hint = f"check `options.{OPTION}`; without it, one is made for each fleet"
                yield PermanentError(PermanentKind.NOT_FOUND, summary, about=OPTION, hint=hint)

    # ------------------------------------------------------------------------- what each cloud has

    def takes(self, inputs: NodeInputs) -> bool:
        return self._sites.takes(inputs)

    def name(self, inputs: NodeInputs) -> str:
        """An owner is too long for a part of the name."""
        fleet, where = inputs.fleet, inputs.zone or inputs.region
        whose = hashlib.sha256(f"{self._account.owner}\0{fleet}\0{where}".encode()).hexdigest()
        return name_of(Address("fleet", f"fleetform-{fleet}"), whose)

    def make(self, name: str, inputs: NodeInputs, tags: Mapping[str, str]) -> None:
        self._sites.make(self._sites.id_of(name, inputs), inputs, tags)

    def tags(self, name: str, inputs: NodeInputs) -> Mapping[str, str] | None:
        return self._sites.tags(self._sites.id_of(name, inputs))

    def used(self, name: str, inputs: NodeInputs) -> bool:
        return self._sites.used(self._sites.id_of(name, inputs))

    def remove(self, name: str, inputs: NodeInputs) -> None:
        self._sites.remove(self._sites.id_of(name, inputs))
