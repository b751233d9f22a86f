"""Placement groups: where the nodes of a fleet with `placement: cluster` are close to each other.

One for each fleet and zone: those of one group are in one zone. It is made before the first node and goes
after the last one; in between it says itself whose it is. Nothing is recorded of it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress

from declarative.model.inputs import NodeInputs
from declarative.model.spec.values import Placement
from declarative.provider import PermanentError, PermanentKind, ProviderError
from providers.cloud import marks
from providers.cloud.account import Account
from providers.cloud.keys import Last

OPTION = "placement_group"
OFF = "off"
FLEET = f"{marks.OURS}fleet"


class Groups(ABC):
    """The placement groups of one account. Safe to use from many threads."""

    CALLED = "placement group"
    """What the cloud calls one."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._turn = threading.Lock()
        self._there: set[str] = set()
        self._last: Last[str] = Last()

    @property
    def given(self) -> str | None:
        """What the user wants instead: the name of a group, or `off`."""
        found = self._account.options.get(OPTION)
        return str(found) if found else None

    def bring(self, inputs: NodeInputs) -> str | None:
        """The group of a node that is about to be made, and is there; None if it has none."""
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

    def forgotten(self, name: str) -> None:
        """Somebody says that a group is not there any more."""
        with self._turn:
            self._there.discard(name)

    def of(self, inputs: NodeInputs) -> str:
        """The name of the group that a node is in, unless another is named; empty if it can be in none."""
        clusters = inputs.placement == Placement.CLUSTER and self.takes(inputs)
        return self.name(inputs) if clusters else ""

    def _have(self, name: str, inputs: NodeInputs) -> None:
        tags = {"Name": name, marks.OWNER: self._account.owner, FLEET: inputs.fleet}
        try:
            self.make(name, inputs, tags)
        except PermanentError as error:
            if error.kind is PermanentKind.AUTH:
                off = f"write `options: {{{OPTION}: {OFF}}}` to do without"
                hint = f"{error.hint}, or {off}" if error.hint else off
                raise PermanentError(error.kind, error.summary, about=error.about, hint=hint) from None
            # Another worker or machine was first, or an answer was lost.
            have = self.tags(name, inputs)
            if have is None:
                raise
            if have.get(marks.OWNER) != self._account.owner:
                summary = f"the {self.CALLED} {name} in {inputs.region} is another's"
                hint = f"delete it, or name one that is to be used under `options.{OPTION}`"
                raise PermanentError(PermanentKind.CONFLICT, summary, about=name, hint=hint) from None

    @contextmanager
    def changing(self, inputs: NodeInputs, *, ends: bool = False) -> Iterator[None]:
        """While a node is made, or ended. The last one to leave takes the group away if it may be empty.

        `BUSY` for who `ends` one, while its machines are on their way out, which takes some of them minutes:
        until then a cloud does not let go of the group.
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
                with suppress(ProviderError):  # what it is about was said
                    self._leave(name, inputs)
            raise
        if self._last.leave(name):
            with nullcontext() if ends else suppress(ProviderError):
                self._leave(name, inputs)

    def _leave(self, name: str, inputs: NodeInputs) -> None:
        if not name or self.used(name, inputs):
            return
        have = self.tags(name, inputs)
        if have is not None and have.get(marks.OWNER) == self._account.owner:
            self.forgotten(name)
            self.remove(name, inputs)

    # ------------------------------------------------------------------------- what each cloud has

    @abstractmethod
    def takes(self, inputs: NodeInputs) -> bool:
        """Whether a machine of the node's type can be in a group."""

    @abstractmethod
    def name(self, inputs: NodeInputs) -> str:
        """What the group of a node is called: the same for all of its fleet in its zone."""

    @abstractmethod
    def make(self, name: str, inputs: NodeInputs, tags: Mapping[str, str]) -> None:
        """Make it, with these tags; `PermanentError` if there is one of that name."""

    @abstractmethod
    def tags(self, name: str, inputs: NodeInputs) -> Mapping[str, str] | None:
        """What it says of itself; None if there is none."""

    @abstractmethod
    def used(self, name: str, inputs: NodeInputs) -> bool:
        """Whether a machine is in it that does not end."""

    @abstractmethod
    def remove(self, name: str, inputs: NodeInputs) -> None:
        """Delete it; BUSY while a machine is in it, nothing to do if it is not there."""
