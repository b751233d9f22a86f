"""The tools of a command that carries out actions, for all that does so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING

from declarative.apply.backends import Backends
from declarative.apply.graph_walk import Listener
from declarative.model.record import struct
from declarative.model.state import Address
from declarative.retry import Policy
from declarative.store import StateError

if TYPE_CHECKING:
    from declarative.store import Writer

KnownPaths = MutableMapping[tuple[str, str], str | None]
"""(node, address) → why the address cannot be reached from there; None if nothing is against it."""


@struct(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools for carrying out actions."""

    writer: Writer
    backends: Backends
    environ: Mapping[str, str]
    now: Callable[[], float]
    stopping: threading.Event
    listener: Listener
    policy: Policy = Policy()
    reached: KnownPaths = field(default_factory=dict)
    """The paths between nodes that were tried."""
    late: set[Address] = field(default_factory=set)
    """Nodes that did not come up in time, or have failed: `run` deletes them."""
    faults: list[StateError] = field(default_factory=list)
    """What kept the command from ending its work after the plan's actions."""

    @contextmanager
    def noting_faults(self) -> Iterator[None]:
        """Note that the state is lost, as with its lock, and go on without the rest."""
        try:
            yield
        except StateError as error:
            self.faults.append(error)
