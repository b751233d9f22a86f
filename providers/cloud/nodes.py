"""Nodes of clouds with tags on machines: made once, found, compared, updated, deleted.

A cloud is a `Driver`: its calls, and its own checks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from declarative.model.inputs import NodeInputs
from declarative.model.state import Address, Record
from declarative.model.status import NodeState, Readiness
from declarative.provider import Ended, Thing
from providers.cloud import checks, marks
from providers.cloud.account import Account, Tagged
from providers.cloud.checks import check_fixed, check_tags, gone
from providers.cloud.hosts import Seen
from providers.cloud.marks import Mark

FIXED = ("backend", "region", "zone", "instance_type", "spot", "reservation", "resources")
"""Inputs that are fixed when the machine is made: a change needs a new machine."""


class Machine(Tagged, Protocol):
    """A machine as its cloud reports it. Texts are empty if unknown."""

    @property
    def address(self) -> str:
        """Its private address, which never changes."""

    @property
    def public_address(self) -> str | None:
        """Its current public address; None if the cloud does not report it."""

    @property
    def image(self) -> str:
        """The id of its image, if known."""

    @property
    def why_gone(self) -> str:
        """Why it has ended, if the cloud says so."""


M = TypeVar("M", bound=Machine)


class Driver(Protocol[M]):
    """A cloud's calls for machines. Faults are the port's."""

    def listed(self, *, address: str = ...) -> list[M]:
        """All of ours that are alive, or those of an address."""

    def candidates(self, address: Address, token: str) -> Iterable[M]:
        """The machines of a create with this token, oldest first. One that never ran does not count."""

    def recorded(self, records: Sequence[Record]) -> Iterable[tuple[Record, M | Ended | None]]:
        """The records about which the cloud knows something: the machine, its end, or that it is missing for
        an unknown reason.
        """

    def machine(self, have: Record, *, ending: bool) -> M | None:
        """The machine of a record. With `ending`, a fault unless it is certain that it is gone."""

    def type_of(self, machine: M, made: str) -> str:
        """The type of a machine, in the notation of the type in `made`."""

    def create(self, mark: Mark, node: NodeInputs) -> M:
        """The machine with this mark, made now or by an earlier try. It runs and has an address."""

    def retag(self, machine: M, mark: Mark, have: Record, more: Mapping[str, str]) -> Mapping[str, Any]:
        """Write the tags `more`, then a new mark over the old one, or in its place if it was removed. May be
        interrupted at any point, and tried again. Returns the machine's outputs to record.
        """

    def remove(self, have: Record, there: Callable[[], list[M]]) -> None:
        """Delete what exists (`there`) of a record, and what it leaves behind."""

    def states(self, nodes: Sequence[Record]) -> Iterable[tuple[Record, M | None, NodeState, str | None]]:
        """The cloud's report on nodes: their machines, states and reasons."""

    def note_ready(self, node: Record) -> None:
        """Write the tag `marks.TAKEN` on the machine of a node."""


class Nodes(Generic[M]):
    """The machines of one account."""

    def __init__(self, account: Account, driver: Driver[M], adopts: checks.Driver[M] | None = None) -> None:
        """`adopts` handles machines that others made; None if none can be adopted."""
        self._account = account
        self._driver = driver
        self._adopts = adopts

    def listed(self) -> list[M]:
        """All of ours that are alive."""
        return self._driver.listed()

    def thing(self, machine: M) -> Thing:
        """A machine of ours as the port's thing."""
        return marks.thing(self._account.read(machine), outputs(machine), partial(self._actual, machine))

    def _actual(self, machine: M, made: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs that others changed: the tags, and the type of a stopped machine."""
        found = self._account.changed_tags(machine.tags, made)
        wanted = str(made.get("instance_type") or "")
        has = self._driver.type_of(machine, wanted)
        if has and wanted and has != wanted:
            found["instance_type"] = has
        return found

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | Ended | None]:
        out: dict[Address, Thing | Ended | None] = {}
        for record, found in self._driver.recorded(records):
            if found is None or isinstance(found, Ended):
                out[record.address] = found
            elif found.gone:
                out[record.address] = Ended(reason=found.why_gone)
            else:
                out[record.address] = marks.again(record, found.tags, self._actual(found, record.inputs))
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        things = map(self.thing, self._driver.candidates(address, token))
        return next((t for t in things if (t.address, t.token) == (address, token)), None)

    def create(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return when the machine runs and has an address. A named machine is adopted."""
        mark = self._account.mark(address, token, inputs)
        if mark.node.instance_id is not None and self._adopts is not None:
            return outputs(checks.take(self._account, self._adopts, mark))
        return outputs(self._driver.create(mark, mark.node))

    def seen(self, address: Address, token: str, inputs: Mapping[str, Any]) -> tuple[M, bool]:
        """See `checks.seen`; in a plan there is no `token`."""
        assert self._adopts is not None
        return checks.seen(self._account, self._adopts, self._account.mark(address, token, inputs))

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Only changes in place are written; if the owner's mark was removed, everything is
        written again.
        """
        check_fixed(have.address, have.inputs, inputs, FIXED)
        machine = self.of(have, untagged=True)
        if machine is None:
            raise gone(have.address)
        if self._account.has_no_owner(machine.tags):
            mark = self._account.mark(have.address, token, inputs)
            self._driver.retag(machine, mark, have, marks.of_node(have.outputs))
            return have.outputs
        made = self._account.read(machine)
        check_tags(have.address, inputs, made.inputs, machine.tags, machine.id)
        return self._driver.retag(machine, self._account.mark(made.address, made.token, inputs), have, {})

    def delete(self, have: Record) -> None:
        """Return when all parts of the machine that must be waited for are gone. What nodes
        share is deleted with the last of them, even if that had ended before. An adopted machine is released.
        """
        if have.node.instance_id is not None:
            self._there(have)
            return
        self._driver.remove(have, partial(self._there, have))

    def _there(self, have: Record) -> list[M]:
        """The machines of a record to end. Adopted ones are released instead: their own tags decide, not the
        record.
        """
        if not have.outputs.get("id"):
            found = self._driver.listed(address=str(have.address))
        else:
            machine = self.of(have, untagged=have.node.instance_id is not None, ending=True)
            found = [] if machine is None or self._account.has_no_owner(machine.tags) else [machine]
        return [m for m in found if self._adopts is None or not checks.let_go(self._account, self._adopts, m)]

    def of(self, have: Record, *, untagged: bool = False, ending: bool = False) -> M | None:
        """The machine of a record, if it exists; `PermanentError` if it is not ours.

        Args:
            have: The record.
            untagged: A machine that does not name its owner is returned, too.
            ending: The driver makes sure that a machine that it does not find is gone.
        """
        machine = self._driver.machine(have, ending=ending)
        if machine is not None and not (untagged and self._account.has_no_owner(machine.tags)):
            self._account.check_owner(machine.tags, have, machine.id)
        return machine

    def readiness(self, nodes: Sequence[Record]) -> dict[str, Seen]:
        """The cloud's report on nodes."""
        return {
            record.address.name: Seen(
                readiness=Readiness(state=state, reason=reason, observed_at=time.time()),
                taken=bool(machine and machine.tags.get(marks.TAKEN)),
                public=machine.public_address if machine else None,
            )
            for record, machine, state, reason in self._driver.states(nodes)
        }

    def taken(self, node: Record) -> None:
        """Note that a node was ready once: a later fault is not part of its start."""
        self._driver.note_ready(node)


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
