"""Placement groups: they keep the nodes of a fleet with `placement: cluster` close to each other.

There is one for each fleet and zone, since the nodes of a group are in one zone. It is made before the first
node and deleted after the last one. Meanwhile its own tags name its owner; nothing about it is recorded. A
capacity reservation may have a group of its own.
"""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from declarative.model.inputs import NodeInputs
from declarative.model.record import struct
from declarative.model.spec.values import Placement
from declarative.model.state import Address
from declarative.provider import PermanentError, PermanentKind, ProviderError
from providers.cloud import marks
from providers.cloud.account import Account
from providers.cloud.keys import LastOut

OPTION = "placement_group"
OFF = "off"
FLEET = f"{marks.OURS}fleet"


@struct(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The part of a reservation that a machine takes."""

    body: Mapping[str, Any]
    """The part for the request, for the site only."""
    group: str = ""
    """The id of the reservation's own placement group."""
    grouped: bool = False
    """Whether its machines can be in another placement group."""


class Groups(ABC):
    """The placement groups of one account. Safe to use from many threads. The last methods take a group's id,
    which is its name in some clouds.
    """

    CALLED = "placement group"
    """The cloud's word for one."""
    MOST: int | None = None
    """How many machines one can hold; None if unknown."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._turn = threading.Lock()
        self._there: set[str] = set()
        self._last: LastOut[str] = LastOut()

    @property
    def given(self) -> str | None:
        """The user's choice: the name of a group, or `off`."""
        found = self._account.options.get(OPTION)
        return str(found) if found else None

    def ensure(self, inputs: NodeInputs) -> str | None:
        """The existing or new group for a node to make; None if it has none."""
        if inputs.placement == Placement.CLUSTER and self.given:
            return None if self.given == OFF else self.given
        name = self.of(inputs)
        if not name:
            return None
        with self._turn:
            if name not in self._there:
                self._have(name, inputs)
                self._there.add(name)
        return name

    def of_node(self, inputs: NodeInputs, reserved: Reserved | None) -> str | None:
        """The id of the existing or new group for a node to make; None if it has none."""
        if reserved and (reserved.group or not reserved.grouped):
            return reserved.group or None
        name = self.ensure(inputs)
        return self.id_of(name, inputs) if name else None

    def was_deleted(self, error: PermanentError, made: str | None, inputs: NodeInputs) -> bool:
        """Whether a node was refused because its group was deleted meanwhile with its last node: it is made
        again.
        """
        name = self.of(inputs)
        refused = error.kind in (PermanentKind.NOT_FOUND, PermanentKind.INVALID)
        if not refused or not name or made != self.id_of(name, inputs) or self.tags(made, inputs) is not None:
            return False
        self.forgotten(name)
        return True

    def unfit(self, wanted: Iterable[NodeInputs]) -> Iterator[PermanentError]:
        """Why nodes cannot be in their groups, as far as this can be checked before they are made."""
        # A reservation has a group of its own, or none.
        cluster = [i for i in wanted if i.placement == Placement.CLUSTER and not i.reservation]
        if not self.given:
            crowds = Counter((i.fleet, name) for i in cluster if (name := self.of(i)))
            for (fleet, _), count in crowds.items():
                if self.MOST and count > self.MOST:
                    takes = f"a {self.CALLED} takes {self.MOST} nodes"
                    summary = f"fleet/{fleet}: {takes}, and there would be {count} in its zone"
                    hint = (
                        f"lower the fleet's `nodes`, or write `options: {{{OPTION}: {OFF}}}` in the backend"
                    )
                    yield PermanentError(PermanentKind.INVALID, summary, about=OPTION, hint=hint)
        elif self.given != OFF:
            places = {(self.id_of(self.given, i), i.region): i for i in cluster}
            for made, region in sorted(places):
                try:
                    there = self.tags(made, places[made, region]) is not None
                except PermanentError as error:
                    if error.kind is not PermanentKind.AUTH:
                        raise
                    continue  # the right to use it does not include the right to read it
                if not there:
                    summary = f"there is no {self.CALLED} `{self.given}` in {region}"
                    hint = f"check `options.{OPTION}`; without it, one is made for each fleet"
                    yield PermanentError(PermanentKind.NOT_FOUND, summary, about=OPTION, hint=hint)

    def forgotten(self, name: str) -> None:
        """Note that a group no longer exists."""
        with self._turn:
            self._there.discard(name)

    def of(self, inputs: NodeInputs) -> str:
        """The name of a node's group, unless the user names another; empty if it can be in none."""
        clusters = inputs.placement == Placement.CLUSTER and self.takes(inputs)
        return self.name(inputs) if clusters else ""

    def _have(self, name: str, inputs: NodeInputs) -> None:
        tags = {"Name": name, marks.OWNER: self._account.owner, FLEET: inputs.fleet}
        made = self.id_of(name, inputs)
        try:
            self.make(made, inputs, tags)
        except PermanentError as error:
            if error.kind is PermanentKind.AUTH:
                off = f"write `options: {{{OPTION}: {OFF}}}` to do without"
                hint = f"{error.hint}, or {off}" if error.hint else off
                raise PermanentError(error.kind, error.summary, about=error.about, hint=hint) from None
            # Another worker or machine was faster, or an answer was lost.
            have = self.tags(made, inputs)
            if have is None:
                raise
            if have.get(marks.OWNER) != self._account.owner:
                summary = f"the {self.CALLED} {name} in {inputs.region} has another owner"
                hint = f"delete it, or name another one in `options.{OPTION}`"
                raise PermanentError(PermanentKind.CONFLICT, summary, about=name, hint=hint) from None

    @contextmanager
    def changing(self, inputs: NodeInputs, *, ends: bool = False) -> Iterator[None]:
        """Surrounds making or ending a node. The last call to leave deletes the group if it may be empty.

        `BUSY` for a call that `ends` a node while machines of the group are still ending, which can take
        minutes: the cloud does not delete the group before.
        """
        name = self.of(inputs)
        self._last.enter(name)
        if ends:
            self._last.emptied(name)
        try:
            yield
        except ProviderError as error:
            if isinstance(error, PermanentError):
                self._last.emptied(name)
            if self._last.leave(name):
                with suppress(ProviderError):  # the call itself has succeeded or has its own error
                    self._leave(name, inputs)
            raise
        if self._last.leave(name):
            with nullcontext() if ends else suppress(ProviderError):
                self._leave(name, inputs)

    def _leave(self, name: str, inputs: NodeInputs) -> None:
        made = self.id_of(name, inputs) if name else ""
        if not name or self.used(made, inputs):
            return
        have = self.tags(made, inputs)
        if have is not None and have.get(marks.OWNER) == self._account.owner:
            self.forgotten(name)
            self.remove(made, inputs)

    # ------------------------------------------------------------------------- what each cloud has

    @abstractmethod
    def takes(self, inputs: NodeInputs) -> bool:
        """Whether a machine of the node's type can be in a group."""

    def name(self, inputs: NodeInputs) -> str:
        """The name of a node's group: the same for all nodes of its fleet in its zone. An owner is too long
        for a part of it.
        """
        fleet, where = inputs.fleet, inputs.zone or inputs.region
        whose = hashlib.sha256(f"{self._account.owner}\0{fleet}\0{where}".encode()).hexdigest()
        return marks.name_of(Address("fleet", f"fleetform-{fleet}"), whose)

    def id_of(self, name: str, inputs: NodeInputs) -> str:
        """The id of a group by its name or another name of it; `PermanentError` if there is none."""
        return name

    @abstractmethod
    def make(self, made: str, inputs: NodeInputs, tags: Mapping[str, str]) -> None:
        """Make the group with these tags; `PermanentError` if it exists."""

    @abstractmethod
    def tags(self, made: str, inputs: NodeInputs) -> Mapping[str, str] | None:
        """The tags of the group; None if it does not exist."""

    @abstractmethod
    def used(self, made: str, inputs: NodeInputs) -> bool:
        """Whether it has a machine that is not ending."""

    @abstractmethod
    def remove(self, made: str, inputs: NodeInputs) -> None:
        """Delete it. BUSY while it has a machine; does nothing if it does not exist."""
