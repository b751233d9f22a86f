"""A cloud in memory that runs out of offers, and applies on it with the real state, walk and planner.

`Market` is a provider; `Site` is one project on it. A site can be killed at each of its writes: from then on
nothing is written or called, as if the process had ended there.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from declarative.apply.backend_client import BackendClient
from declarative.apply.backend_look import look
from declarative.apply.backends import Backends
from declarative.apply.failover import Move
from declarative.apply.graph_walk import ActionResult, Tools
from declarative.apply.run import apply
from declarative.apply.settle import settle
from declarative.model.resource import Desired
from declarative.model.state import Address, Record
from declarative.model.status import NodeState, RankState, RankStatus, Readiness
from declarative.planner.make import make_plan
from declarative.planner.plan import Plan
from declarative.provider import (
    PermanentError,
    PermanentKind,
    ProviderError,
    Thing,
    TransientError,
    TransientKind,
)
from declarative.retry import Policy
from declarative.store import Store, Writer, open_store

Words = Mapping[str, Any]
Room = Callable[[Words], ProviderError | None]


class KilledError(BaseException):
    """The process has ended."""


@dataclass
class Market:
    """What is there, by address and token. `room` says why a node cannot be had now, or None."""

    room: Room = lambda _inputs: None
    stuck: Callable[[Words], bool] = lambda _inputs: False
    """Whether a node is made, and does not come to run."""
    things: dict[tuple[Address, str], Thing] = field(default_factory=dict)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Each create of a node: address, instance type, zone."""
    launched: list[tuple[str, Words]] = field(default_factory=list)
    """Each node that was made, and its inputs."""
    tokens: Counter[str] = field(default_factory=Counter)
    states: dict[str, Readiness] = field(default_factory=dict)
    ranks: dict[str, RankStatus] = field(default_factory=dict)
    made: int = 0
    alive: Callable[[], None] = lambda: None
    looked: Callable[[], None] = lambda: None
    """Called whenever somebody asks for readiness."""
    turn: Any = field(default_factory=threading.RLock)

    def nodes(self) -> dict[str, Words]:
        """The inputs of the nodes that are there."""
        found = [(t.address.name, t.inputs) for t in self.things.values() if t.address.kind == "node"]
        assert len({name for name, _ in found}) == len(found), found
        return dict(sorted(found))

    def where(self) -> dict[str, str]:
        """Node → zone."""
        return {name: str(inputs.get("zone")) for name, inputs in self.nodes().items()}

    # The port

    def offers(self) -> tuple[()]:
        return ()

    def inventory(self) -> tuple[Thing, ...]:
        self.alive()
        with self.turn:
            return tuple(self.things.values())

    def find(self, address: Address, token: str) -> Thing | None:
        self.alive()
        with self.turn:
            return self.things.get((address, token))

    def create(self, address: Address, token: str, inputs: Words, needs: Mapping[Address, Record]) -> Words:
        self.alive()
        with self.turn:
            if (address, token) in self.things:
                if address.kind == "node" and self.stuck(inputs):
                    raise TransientError(
                        TransientKind.BUSY, f"{address.name} is still starting", about="zone"
                    )
                return self.things[address, token].outputs
            if address.kind == "node":
                self.asked.append((address.name, str(inputs["instance_type"]), inputs.get("zone")))
                refusal = self.room(inputs)
                if refusal:
                    raise refusal
                self.launched.append((address.name, inputs))
            self.made += 1
            self.tokens[token] += 1
            outputs = {"id": f"m-{self.made}", "address": "10.0.0.1"}
            self.things[address, token] = Thing(address=address, token=token, inputs=inputs, outputs=outputs)
        return outputs if not self.stuck(inputs) else self.create(address, token, inputs, needs)

    def update(self, have: Record, token: str, inputs: Words) -> Words:
        self.alive()
        with self.turn:
            self.things[have.address, token] = replace(self.things[have.address, token], inputs=inputs)
            return have.outputs

    def delete(self, have: Record) -> None:
        self.alive()
        with self.turn:
            for key in [k for k, t in self.things.items() if t.outputs["id"] == have.outputs["id"]]:
                del self.things[key]

    def readiness(self, nodes: Sequence[Record]) -> Mapping[str, Readiness]:
        self.alive()
        self.looked()
        ready = Readiness(state=NodeState.READY, observed_at=1.0)
        return {n.address.name: self.states.get(n.address.name, ready) for n in nodes}

    def start(self, node: Record, launch: Any) -> RankStatus:
        self.alive()
        return self.ranks.setdefault(launch.attempt, RankStatus(state=RankState.RUNNING))

    def poll(self, node: Record, attempts: Sequence[str]) -> Mapping[str, RankStatus | None]:
        self.alive()
        if all(t.outputs["id"] != node.outputs["id"] for t in self.inventory()):
            raise PermanentError(PermanentKind.NOT_FOUND, f"{node.address} does not answer")
        return {a: self.ranks.get(a) for a in attempts}

    def stop(self, node: Record, attempt: str, grace_seconds: int) -> RankStatus | None:
        self.alive()
        if attempt in self.ranks and not self.ranks[attempt].state.ended:
            self.ranks[attempt] = RankStatus(state=RankState.STOPPED)
        return self.ranks.get(attempt)


def no_room(kind: PermanentKind = PermanentKind.NO_CAPACITY) -> PermanentError:
    """The refusal of a cloud that has none of it now."""
    return PermanentError(kind, "Insufficient: there is none of it", about="zone")


def stock(**zones: int) -> Room:
    """So many nodes can be had in each zone named, ever; any number in the others."""
    left = dict(zones)

    def room(inputs: Words) -> ProviderError | None:
        zone = str(inputs.get("zone"))
        if zone in left and left[zone] <= 0:
            return no_room()
        left[zone] = left.get(zone, 1_000) - 1
        return None

    return room


class _Markets(Backends):
    """All backends are one market."""

    market: Market

    def _make(self, name: str, hosts: Any, *, offline: bool = False) -> BackendClient:
        return BackendClient(self.market, {})  # type: ignore[arg-type]


@dataclass
class Heard:
    """The output of an apply."""

    moves: list[Move] = field(default_factory=list)
    more: int = 0
    """How many actions the moves added."""
    ends: list[ActionResult] = field(default_factory=list)
    waits: list[tuple[str, str, str]] = field(default_factory=list)

    def together(self) -> AbstractContextManager[object]:
        return nullcontext()

    def begin(self, id: str) -> None: ...
    def retry(self, id: str, error: str, wait: float) -> None: ...

    def wait(self, id: str, what: str, why: str) -> None:
        self.waits.append((id, what, why))

    def rank(self, address: str, state: str, cause: str | None) -> None: ...

    def move(self, move: Move, more: int) -> None:
        self.moves.append(move)
        self.more += more

    def end(self, result: ActionResult) -> None:
        self.ends.append(result)


MEMORY = "/dev/shm"
"""A place where a state is as safe as on a disk, and faster: there is no power loss here."""


class Site:
    """One project on a market."""

    def __init__(self, market: Market) -> None:
        self.market = market
        self._folder = tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
        self.url = f"sqlite:///{self._folder.name}/state.db"
        self.store: Store = open_store(self.url)
        self.time = 1_000_000.0
        self.heard = Heard()
        self.results: dict[str, ActionResult] = {}
        self.writes = 0

    def close(self) -> None:
        """Its database goes."""
        self.store.close()
        self._folder.cleanup()

    def now(self) -> float:
        """Its clock, which moves a second at a time."""
        self.time += 1
        return self.time

    def backends(self, desired: Desired) -> Backends:
        """Its one provider, whatever a backend is called."""
        made = _Markets(desired.backends, Path(), self.store.read().lineage or "", self.store.read())
        made.market = self.market
        return made

    def planned(self, writer: Writer, desired: Desired) -> Plan:
        """Look, settle and plan, as the command does."""
        state = writer.state()
        backends = self.backends(desired)
        seen = look(state, backends)
        settled = settle(writer, backends, seen, self.now)
        gone = {a: r for a, r in state.records.items() if a in seen.inventory.gone}
        recorded = replace(settled, records={**settled.records, **gone})
        inventory = replace(seen.inventory, ranks={}, recovered={})
        return make_plan(desired, recorded, inventory, self.now())

    def plan(self, desired: Desired) -> Plan:
        """What there is to do."""
        with self.store.lock("plan") as writer:
            return self.planned(writer, desired)

    def apply(
        self, desired: Desired, *, parallelism: int = 1, die_at: int = 0, plan: Plan | None = None
    ) -> bool:
        """Bring it about, and whether all was done. `die_at`: the write at which the process is killed, which
        does not happen any more.
        """
        with self.store.lock("apply") as writer:
            self._count(writer, die_at)
            try:
                plan = plan or self.planned(writer, desired)
                tools = Tools(
                    writer=writer,
                    backends=self.backends(desired),
                    environ={},
                    now=self.now,
                    stopping=threading.Event(),
                    listener=self.heard,
                    policy=Policy(deadline=0.01),
                )
                found = apply(plan, tools, parallelism=parallelism)
                self.market.alive()
            finally:
                self.market.alive = lambda: None
        self.results = {r.id: r for r in found}
        return all(r.outcome == "done" for r in found)

    def _count(self, writer: Writer, die_at: int) -> None:
        real, leave, lock = writer._write, writer._commits.leave, threading.Lock()
        self.writes = 0

        def alive() -> None:
            if die_at and self.writes >= die_at:
                raise KilledError

        def count() -> None:
            with lock:
                self.writes += 1
            alive()

        def write(step: Any) -> Any:
            count()
            return real(step)

        def leaves(step: Any) -> Any:
            count()
            return leave(step)

        def seal() -> None:
            """Written when the lock is given back, which a killed process does not do: its lock is taken."""
            writer._write = real  # type: ignore[method-assign]
            if not (die_at and self.writes >= die_at):
                put()

        put = writer.seal
        writer.seal = seal  # type: ignore[method-assign]
        writer._write = write  # type: ignore[assignment, method-assign]
        writer._commits.leave = leaves  # type: ignore[assignment, method-assign]
        self.market.alive = alive
