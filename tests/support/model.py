"""The planner's world in memory: projects from a few words, and a strict interpreter of plans.

`World` does actions one by one as the real store and backends would, and refuses what they would refuse
(`RefusedError`). A plan that it accepts in every order that the needs allow can be applied.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from declarative.apply.ranks import gang_stops
from declarative.model.blocks import Shape
from declarative.model.inputs import COUNTED, data_of
from declarative.model.resource import (
    LOCAL,
    Desired,
    Offer,
    RankMount,
    TaskWant,
    VolumeWant,
    catalog_offers,
    volume_inputs,
    volume_names,
)
from declarative.model.schema import decode
from declarative.model.spec import Backend, Fleet, Name, Project, Size, Task, Volume
from declarative.model.state import COUNTED_SINCE, NOTICED, Address, Record, State, rank_name
from declarative.model.status import BOOTING, NodeState, RankState, RankStatus, Readiness
from declarative.planner.inventory import Inventory, observed_state
from declarative.planner.make import make_plan
from declarative.planner.plan import Action, Op, Plan

NOW = 1_000_000.0
T = TypeVar("T")

# ------------------------------------------------------------------------------ projects from plain words


def spec(cls: type[T], words: Mapping[str, Any]) -> T:
    """A document from plain words, as YAML would give them."""
    problems: list[Any] = []
    out = decode(cls, words, (), problems)
    assert out is not None, problems
    return out


def rank_mounts(task: Task, mounts: Mapping[str, Any]) -> tuple[tuple[RankMount, ...], ...]:
    """`{path: name or names}`, in which `#` stands for the rank, as each rank's mounts."""
    if not mounts:
        return ()

    def one(path: str, names: Any, rank: int) -> RankMount:
        listed = [names] if isinstance(names, str) else names
        variable = listed[0].replace("-#", "").upper().replace("-", "_")
        return RankMount(path=path, names=tuple(n.replace("#", str(rank)) for n in listed), variable=variable)

    return tuple(
        tuple(one(path, names, rank) for path, names in mounts.items()) for rank in range(task.nodes)
    )


def of_node(fleet: str = "gpu", **more: Any) -> dict[str, Any]:
    """What is recorded of a node."""
    shape = {"cpu": 4, "memory_mib": 4096}
    base = {"fleet": fleet, "backend": "local", "region": "local", "instance_type": "t"}
    return {**base, "blocks": 1, "resources": shape, **more}


def of_volume(**more: Any) -> dict[str, Any]:
    """What is recorded of a volume; one that is adopted need not say its size."""
    size = {} if "volume_id" in more else {"size": "1GB"}
    return {"backend": "local", "region": "local", **size, **more}


def of_attachment(rank: str, node: str, volume: str) -> dict[str, Any]:
    """What is recorded of a volume on a node."""
    held = {"task": rank.rpartition("-")[0], "rank": rank, "node": node, "volume": volume}
    return {**held, "path": "/data", "variable": "DATA"}


def of_kind(kind: str, **more: Any) -> dict[str, Any]:
    """What is recorded of a node or a volume; of anything else, what is given."""
    return {"node": of_node, "volume": of_volume}.get(kind, dict)(**more)


def of_reservation(name: str, node: str, *blocks: int, total: int = 4) -> dict[str, Any]:
    """What is recorded of the blocks that a rank holds."""
    task, _, rank = name.rpartition("-")
    held = {"task": task, "rank": int(rank), "node": node}
    return {**held, "blocks": list(blocks), "total_blocks": total}


def project(
    *,
    backends: Sequence[Mapping[str, Any]] = (),
    fleets: Sequence[Mapping[str, Any]] = (),
    volumes: Sequence[Mapping[str, Any]] = (),
    tasks: Sequence[Mapping[str, Any]] = (),
    **words: Any,
) -> Desired:
    """A declared project. A task's `mounts` are `{path: name}` with `#` for the rank. `words` are fields of
    the `project` document.
    """
    places = {str(b["name"]): spec(Backend, b) for b in backends}
    default = next(iter(places.values())) if len(places) == 1 else Backend(name=Name(LOCAL))
    wants: dict[str, VolumeWant] = {}
    for its in volumes:
        volume = spec(Volume, {"size": "1GB", **its})
        backend = places[str(volume.backend)] if volume.backend in places else default
        for name in volume_names(volume):
            wants[name] = VolumeWant(
                name=name,
                inputs=volume_inputs(volume, backend),
                declared_by=f"volume/{volume.name}",
                cleanup=volume.cleanup,
            )
    asked: dict[str, TaskWant] = {}
    for its in tasks:
        rest = {k: v for k, v in its.items() if k != "mounts"}
        task = spec(Task, {"commands": ["true"], **rest})
        asked[str(task.name)] = TaskWant(spec=task, mounts=rank_mounts(task, its.get("mounts", {})))
    return Desired(
        project=spec(Project, words),
        backends=places,
        fleets={str(f["name"]): spec(Fleet, f) for f in fleets},
        volumes=wants,
        tasks=asked,
    )


def local_offer(cpu: int = 8, memory_mib: int = 16384, gpus: int = 0) -> Offer:
    """What the local backend offers: any shape, for nothing."""
    return Offer(
        backend=LOCAL,
        region=LOCAL,
        instance_type="local",
        shape=Shape(cpu=cpu, memory_mib=memory_mib, gpus=gpus),
        price=0.0,
        shaped=True,
    )


def offers_of(desired: Desired) -> dict[str, tuple[Offer, ...]]:
    """The catalogs of the declared backends, and the local one."""
    out = {name: catalog_offers(backend) for name, backend in desired.backends.items()}
    return {LOCAL: (local_offer(),), **out}


# -------------------------------------------------------------------------------------- the interpreter


class RefusedError(Exception):
    """The store or a backend would not do that."""


def must(condition: object, why: str) -> None:
    """Refuse, unless `condition`."""
    if not condition:
        raise RefusedError(why)


@dataclass
class World:
    """What is recorded and what is there: here the two agree, but for `gone` and what is `sick`."""

    records: dict[Address, Record] = field(default_factory=dict)
    ranks: dict[str, RankStatus] = field(default_factory=dict)
    idle_since: dict[str, float] = field(default_factory=dict)
    detached_since: dict[str, float] = field(default_factory=dict)
    sick: dict[str, NodeState] = field(default_factory=dict)
    gone: set[Address] = field(default_factory=set)
    limits: dict[tuple[Any, ...], int] = field(default_factory=dict)
    generations: dict[Address, int] = field(default_factory=dict)
    serial: int = 0
    now: float = NOW

    def copy(self) -> World:
        """Another world that is the same; its values are immutable."""
        return World(
            records=dict(self.records),
            ranks=dict(self.ranks),
            idle_since=dict(self.idle_since),
            detached_since=dict(self.detached_since),
            sick=dict(self.sick),
            gone=set(self.gone),
            limits=dict(self.limits),
            generations=dict(self.generations),
            serial=self.serial,
            now=self.now,
        )

    # What is seen of it

    def state(self) -> State:
        """What is recorded."""
        return State(
            lineage="l",
            serial=self.serial,
            records=dict(self.records),
            ranks=dict(self.ranks),
            idle_since=dict(self.idle_since),
            detached_since=dict(self.detached_since),
        )

    def of(self, kind: str) -> list[Record]:
        """The records of one kind."""
        return list(self.state().of(kind))

    def readiness(self, node: str) -> Readiness:
        """Ready, unless it is sick."""
        return Readiness(state=self.sick.get(node, NodeState.READY), observed_at=self.now)

    def inventory(self, desired: Desired) -> Inventory:
        """What a look at the backends gives."""
        nodes = [r.address.name for r in self.of("node") if r.address not in self.gone]
        return Inventory(
            readiness={n: self.readiness(n) for n in nodes},
            gone=frozenset(self.gone),
            offers=offers_of(desired),
        )

    def plan(self, desired: Desired, **options: Any) -> Plan:
        """The plan of this world."""
        return make_plan(desired, self.state(), self.inventory(desired), self.now, **options)

    # What happens by itself

    def settle(self) -> None:
        """Do what every command first records: vanished things, gangs that stop, ended ranks that give up
        their blocks.
        """
        seen = Inventory(gone=frozenset(self.gone))
        known = observed_state(self.state(), seen)
        held = self._nodes_held()
        self.ranks = dict(known.ranks)
        self.records = dict(known.records)
        self.gone = {*seen.lost}
        for name, status in gang_stops(self.state()).items():
            self.ranks[name] = status
        self.records = dict(observed_state(self.state(), Inventory()).records)
        for record in self.of("rank"):
            status = self.ranks[record.address.name]
            if status.state in (RankState.FAILED, RankState.LOST) and NOTICED not in record.outputs:
                outputs = {**record.outputs, NOTICED: self.now}
                self.records[record.address] = replace(record, outputs=outputs)
        for node in held - self._nodes_held():
            self.idle_since[node] = self.now
        self._note_detached()

    def end(self, rank: str, state: RankState) -> None:
        """A rank that runs ends."""
        self.ranks[rank] = RankStatus(state=state, exit_code=0 if state is RankState.SUCCEEDED else 1)

    def running(self) -> list[str]:
        """The ranks that run."""
        names = [r.address.name for r in self.of("rank")]
        return [n for n in names if self.ranks[n].state is RankState.RUNNING]

    # Invariants

    def _nodes_held(self) -> set[str]:
        return {str(r.inputs["node"]) for r in self.of("reservation")}

    def busy(self) -> dict[str, set[int]]:
        """Node → busy blocks; refuses one that is held twice, out of range, or of no node."""
        out: dict[str, set[int]] = {r.address.name: set() for r in self.of("node")}
        for record in self.of("reservation"):
            node = self.records.get(Address("node", str(record.inputs["node"])))
            must(node, f"{record.address} is on a node that is not there")
            assert node is not None
            for block in record.inputs["blocks"]:
                must(0 <= block < node.inputs["blocks"], f"{record.address}: no block {block}")
                must(block not in out[node.address.name], f"{node.address} block {block} is held twice")
                out[node.address.name].add(block)
        return out

    def check(self) -> None:
        """What holds at every moment."""
        for node, held in self.busy().items():
            total = self.records[Address("node", node)].inputs["blocks"]
            must(0 <= len(held) <= total, f"{node}: {len(held)} of {total} busy")
        for record in self.records.values():
            lost = [a for a in record.needs if a not in self.records]
            must(not lost, f"{record.address} needs {lost}, not there")
        attached = [r.inputs["volume"] for r in self.of("attachment")]
        must(len(attached) == len(set(attached)), "a volume is attached twice")
        for key, most in self.limits.items():
            there = sum(_offer_key(r.inputs) == key for r in self.of("node"))
            must(there <= most, f"{there} of {key}: its limit is {most}")
        for name in self.running():
            self._whole(self.records[Address("rank", name)])

    def _whole(self, rank: Record) -> None:
        """Siblings that run have their places too; those that are missing are being stopped."""
        for index in range(int(rank.inputs.get("nodes", 1))):
            sibling = Address("rank", rank_name(str(rank.inputs["task"]), index))
            if sibling in self.records and not self.ranks[sibling.name].state.ended:
                place = Address("reservation", sibling.name)
                must(place in self.records, f"{rank.address} runs, and {sibling} has no place")

    # Actions

    def apply(self, plan: Plan, rng: random.Random | None = None, stop_after: int | None = None) -> list[str]:
        """Carry out a plan, in its own order or in any that its needs allow; the ids of what was done."""
        done: list[str] = []
        for action in any_order(plan.actions, rng):
            if stop_after is not None and len(done) >= stop_after:
                break
            must(set(action.needs) <= set(done), f"{action.id} comes before its needs")
            self.perform(action)
            done.append(action.id)
        return done

    def perform(self, action: Action) -> None:
        """One action."""
        self.serial += 1
        try:
            {Op.CREATE: self._create, Op.UPDATE: self._update, Op.DELETE: self._delete}[action.op](action)
            self.check()
        except RefusedError as why:
            raise RefusedError(f"{action.id}: {why}") from None

    def _create(self, action: Action) -> None:
        address, inputs = action.address, data_of(action.typed)
        must(action.before is None, "a create has no `before`")
        must(address not in self.records, "it is there already")
        missing = [str(a) for a in action.holds if a not in self.records]
        must(not missing, f"{missing} is not there")
        check: dict[str, Callable[[Action, Mapping[str, Any]], None]] = {
            "reservation": self._can_reserve,
            "attachment": self._can_attach,
            "rank": self._can_start,
            "volume": lambda *_: must(action.backend == inputs["backend"], "another backend"),
            "node": lambda *_: must(action.backend == inputs["backend"], "another backend"),
        }
        check[address.kind](action, inputs)
        self.generations[address] = self.generations.get(address, 0) + 1
        self.records[address] = Record(
            address=address,
            backend=action.backend,
            inputs=inputs,
            outputs={"node": self._node_of(address)} if address.kind == "rank" else {},
            needs=frozenset(action.holds),
            generation=self.generations[address],
        )
        if address.kind == "node":
            self.sick.pop(address.name, None)
            self.idle_since[address.name] = self.now
        elif address.kind == "reservation":
            self.idle_since.pop(str(inputs["node"]), None)
        elif address.kind == "rank":
            self.ranks[address.name] = RankStatus(state=RankState.RUNNING)
        self._note_detached()

    def _node_of(self, rank: Address) -> str:
        return str(self.records[Address("reservation", rank.name)].inputs["node"])

    def _can_reserve(self, action: Action, inputs: Mapping[str, Any]) -> None:
        node = self.records.get(Address("node", inputs["node"]))
        must(node and action.holds == (node.address,), "it does not hold its node")
        assert node is not None
        if self.sick.get(inputs["node"]) in BOOTING:  # it is waited for, and comes up
            del self.sick[inputs["node"]]
        must(self.readiness(inputs["node"]).state is NodeState.READY, f"{node.address} is not ready")
        must(inputs["blocks"], "no block")
        must(inputs["total_blocks"] == node.inputs["blocks"], "another split")

    def _can_attach(self, action: Action, inputs: Mapping[str, Any]) -> None:
        place = self.records[Address("reservation", str(inputs["rank"]))]
        volume = self.records[Address("volume", str(inputs["volume"]))]
        node = self.records[Address("node", str(inputs["node"]))]
        must(set(action.holds) == {place.address, volume.address, node.address}, "it holds other things")
        must(place.inputs["node"] == inputs["node"], "the rank is on another node")
        must(volume.address not in self.gone, f"{volume.address} is gone")
        for key in ("backend", "region"):
            must(volume.inputs[key] == node.inputs[key], f"{volume.address} is in another {key}")

    def _can_start(self, action: Action, inputs: Mapping[str, Any]) -> None:
        name, task = action.address.name, str(inputs["task"])
        kinds = [a.kind for a in action.holds]
        must(kinds.count("reservation") == 1 and set(kinds) <= {"reservation", "attachment"}, "odd holds")
        for index in range(int(inputs.get("nodes", 1))):
            place = Address("reservation", rank_name(task, index))
            must(place in self.records or rank_name(task, index) in self.ranks, f"{place} is not held yet")
        node = self.records[Address("reservation", name)].inputs["node"]
        must(self.readiness(node).state is NodeState.READY, f"node/{node} is not ready")
        paths = [self.records[a].inputs["path"] for a in action.holds if a.kind == "attachment"]
        must(sorted(paths) == sorted(inputs.get("volumes", {})), f"it has {paths}")
        for a in action.holds:
            must(str(self.records[a].inputs["rank"]) in (name, str(inputs["rank"])), f"{a} is another's")

    def _update(self, action: Action) -> None:
        record = self.records.get(action.address)
        must(record, "it is not there")
        assert record is not None
        must(action.before == record.typed, "`before` is not what is recorded")
        must(action.after != record.typed, "nothing changes")
        kind, before, after = action.address.kind, record.inputs, data_of(action.typed)
        off = {k for k in {*before, *after} if before.get(k) != after.get(k)}
        free = {
            "node": {"tags", "prevent_destroy", "protected", "idle_duration", "blocks", "host"},
            "volume": {"size", "tags", "prevent_destroy", "protected", "auto_cleanup_duration", "host"},
            "rank": {"priority", "tags", "max_duration", "stop_duration", "retry"},
        }
        if kind == "rank" and before.get("placement") == "any":
            free["rank"].add("nodes")
        must(off <= free.get(kind, set()), f"{off} cannot be changed in place")
        must(set(action.because) == off, f"because says {action.because}, {off} differ")
        if kind == "volume":
            must(Size.parse(after["size"]).mib >= Size.parse(before["size"]).mib, "a volume cannot shrink")
        if "blocks" in off:
            must(action.address.name not in self._nodes_held(), "a busy node cannot be split anew")
        needs = record.needs if kind != "rank" else frozenset(action.holds)
        must(needs == record.needs, "an update changes what it holds")
        dated = {COUNTED_SINCE: self.now} if COUNTED.get(kind) in off else {}
        self.records[action.address] = replace(record, inputs=after, outputs={**record.outputs, **dated})

    def _delete(self, action: Action) -> None:
        record = self.records.get(action.address)
        must(record, "it is not there")
        assert record is not None
        must(action.after is None, "a delete has no `after`")
        must(action.before == record.typed, "`before` is not what is recorded")
        users = [str(r.address) for r in self.records.values() if action.address in r.needs]
        must(not users, f"it is still needed by {users}")
        del self.records[action.address]
        self.gone.discard(action.address)
        name = action.address.name
        if action.address.kind == "rank":
            self.ranks.pop(name, None)
        elif action.address.kind == "node":
            self.idle_since.pop(name, None)
            self.sick.pop(name, None)
        elif action.address.kind == "reservation" and record.inputs["node"] not in self._nodes_held():
            self.idle_since[str(record.inputs["node"])] = self.now
        self._note_detached()

    def _note_detached(self) -> None:
        attached = {str(r.inputs["volume"]) for r in self.of("attachment")}
        free = [r.address.name for r in self.of("volume") if r.address.name not in attached]
        self.detached_since = {name: self.detached_since.get(name, self.now) for name in free}


def _offer_key(inputs: Mapping[str, Any]) -> tuple[Any, ...]:
    return (inputs["backend"], inputs["region"], inputs["instance_type"], bool(inputs.get("spot")))


def set_limits(world: World, desired: Desired) -> None:
    """The backends' own quantity limits; what exists beyond a new one may stay."""
    world.limits = {}
    there = [_offer_key(r.inputs) for r in world.of("node")]
    for offer in (o for found in offers_of(desired).values() for o in found):
        if offer.limit is not None:
            key = (offer.backend, offer.region, offer.instance_type, offer.spot)
            world.limits[key] = max(offer.limit, there.count(key))


def any_order(actions: Sequence[Action], rng: random.Random | None) -> Iterable[Action]:
    """The actions as they come, or in a random order that respects their needs."""
    if rng is None:
        yield from actions
        return
    done: set[str] = set()
    waiting = list(actions)
    while waiting:
        ready = [a for a in waiting if set(a.needs) <= done]
        if not ready:
            raise RefusedError(f"a cycle or an unknown need: {[a.id for a in waiting]}")
        action = rng.choice(ready)
        yield action
        done.add(action.id)
        waiting.remove(action)
