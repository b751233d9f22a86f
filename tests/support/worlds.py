"""Any world for placement: fleets, nodes, offers, volumes and tasks, small enough that they get in each
other's way.

The same generator serves hypothesis (`choose` draws) and a seeded `random.Random` (`choose` is its
`choice`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from declarative.model.blocks import Shape, fewest, split
from declarative.model.resource import Offer, TaskWant
from declarative.model.schema import encode
from declarative.model.spec import Fleet, Task
from declarative.model.status import NodeState, Readiness
from declarative.placement.place import place
from declarative.placement.problem import Ask, FleetRule, Node, PlacementOutcome, VolumeAt
from tests.support.model import rank_mounts, spec

Choose = Callable[[Sequence[Any]], Any]

SHAPES = {
    "cpu": Shape(cpu=4, memory_mib=16384),
    "half": Shape(cpu=8, memory_mib=32768, gpus=4, gpu_name="H100"),
    "full": Shape(cpu=16, memory_mib=65536, gpus=8, gpu_name="H100"),
}
PRICES = {"cpu": (1.0, 1.5), "half": (4.0, 5.0, 4.5), "full": (7.0, 8.0, 10.0)}
PLACES = (("sky", "east", "za"), ("sky", "east", "zb"), ("sky", "west", None), ("lab", "here", None))
NAMES = ("aa", "bb", "cc")
VOLUMES = ("data-0", "data-1", "data-2", "own-0", "own-1", "own-2", "shared")
MOUNTS: tuple[Mapping[str, Any], ...] = (
    {"/d": "data-#"},
    {"/d": ["shared", "own-#"]},
    {"/d": ["data-#", "own-#"]},
    {"/d": ["data-#", "shared"], "/e": "own-#"},
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Case:
    """What `place` is asked."""

    asks: tuple[Ask, ...]
    nodes: tuple[Node, ...]
    fleets: Mapping[str, FleetRule]
    volumes: Mapping[str, VolumeAt]

    def place(self) -> PlacementOutcome:
        """Where all goes."""
        return place(self.asks, self.nodes, self.fleets, self.volumes)

    def __repr__(self) -> str:
        """Only what differs from one to the next: a failing example is to be read by people."""
        lines = ["Case:"]
        for n in self.nodes:
            where = f"{n.backend}/{n.region}/{n.zone}"
            lines.append(
                f"  node {n.name} {where} {n.instance_type} price={n.price} spot={n.spot} "
                f"total={n.total} held={sorted(n.held)} {n.readiness.state.value} closed={n.closed}"
            )
        for name, rule in self.fleets.items():
            fleet = rule.fleet
            lines.append(
                f"  fleet {name} {fleet.placement.value} nodes={fleet.nodes and fleet.nodes.plain()} "
                f"blocks={fleet.blocks.number} existing={rule.existing} baseline={rule.baseline}"
            )
            for o in rule.offers:
                where = f"{o.backend}/{o.region}/{o.zone}"
                lines.append(f"    {where} {o.instance_type} price={o.price} spot={o.spot} limit={o.limit}")
        mounted = {n for a in self.asks for r in a.want.mounts for m in r for n in m.names}
        for name in sorted(mounted & self.volumes.keys()):
            at = self.volumes[name]
            more = f"fresh={at.fresh} holder={at.holder}"
            lines.append(f"  volume {name} {at.backend}/{at.region}/{at.zone} {more}")
        for ask in self.asks:
            words = {k: v for k, v in encode(ask.want.spec).items() if k != "commands"}
            mounts = [{m.path: m.names for m in rank} for rank in ask.want.mounts]
            lines.append(f"  task {words} mounts={mounts} prior={dict(ask.prior)} reuse={ask.reuse}")
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """So that hypothesis shows the above."""
        printer.text(repr(self))


@dataclass(frozen=True, kw_only=True)
class Taste:
    """What is generated. `calm` leaves out what an exhaustive search does not judge (`support/brute.py`)."""

    calm: bool = False
    fresh: bool = False
    least_nodes: int = 0


def cases(taste: Taste = Taste()) -> st.SearchStrategy[Case]:
    """Cases for hypothesis."""

    @st.composite
    def drawn(draw: st.DrawFn) -> Case:
        return case(lambda options: draw(st.sampled_from(options)), taste)

    # Drawn choice by choice, which makes small failing examples; and from seeds, which are more varied.
    return drawn() | st.integers(0, 1 << 32).map(lambda seed: seeded(seed, taste))


def seeded(seed: int, taste: Taste = Taste()) -> Case:
    """The case of a seed."""
    return case(random.Random(seed).choice, taste)


def sizes_that_divide() -> st.SearchStrategy[Case]:
    """Tasks of one rank on nodes of one kind, each size dividing the next; nothing is launched."""

    @st.composite
    def drawn(draw: st.DrawFn) -> Case:
        declared = spec(Fleet, {"name": "aa", "nodes": "0..9", "blocks": 8})
        asks = [
            {"name": f"t{i}", "commands": ["true"], "resources": {"gpu": gpus}, "priority": priority}
            for i, (gpus, priority) in enumerate(
                draw(
                    st.lists(st.tuples(st.sampled_from((1, 2, 4, 8)), st.sampled_from((0, 0, 9))), max_size=9)
                )
            )
        ]
        busy = draw(st.lists(st.integers(0, 8), min_size=1, max_size=4))
        return Case(
            asks=tuple(Ask(want=TaskWant(spec=spec(Task, words))) for words in asks),
            nodes=tuple(_node(f"aa-{i}", "full", 8, held=range(held)) for i, held in enumerate(busy)),
            fleets={"aa": FleetRule(fleet=declared, offers=(), existing=len(busy), baseline=0)},
            volumes={},
        )

    return drawn()


def _node(name: str, kind: str, total: int, held: Sequence[int] = (), **more: Any) -> Node:
    words = {
        "backend": "sky",
        "region": "east",
        "zone": "za",
        "price": PRICES[kind][0],
        "spot": False,
        **more,
    }
    words.setdefault("readiness", Readiness(state=NodeState.READY))
    return Node(
        name=name,
        fleet=name.rpartition("-")[0],
        instance_type=kind,
        shape=SHAPES[kind],
        total=total,
        held=dict.fromkeys(held, "rank/busy-0"),
        **words,
    )


def case(choose: Choose, taste: Taste) -> Case:
    """One case."""
    offers = _market(choose, taste)
    fleets = {name: _fleet(choose, taste, name, offers) for name in NAMES[: choose((1, 2, 2, 3))]}
    nodes = _nodes(choose, taste, fleets)
    for name, rule in fleets.items():
        own = sum(n.fleet == name for n in nodes)
        most = rule.fleet.nodes.max if rule.fleet.nodes else None
        spare = rule.baseline if most is None else max(0, min(rule.baseline, most - own))
        fleets[name] = replace(rule, existing=own, baseline=spare)
    volumes = _volumes(choose, taste)
    count = choose((2, 3, 4, 4)) if taste.calm else choose(range(1, 6))
    asks = tuple(_ask(choose, taste, f"t{i}", list(fleets), nodes) for i in range(count))
    if not taste.calm:
        asks = _promised(choose, asks, nodes)
    return Case(asks=asks, nodes=tuple(nodes), fleets=fleets, volumes=volumes)


def _market(choose: Choose, taste: Taste) -> list[Offer]:
    """What can be had, with one price a zone and one limit for each kind of offer."""
    limits: dict[tuple[str, ...], int | None] = {}
    unlimited = taste.calm and choose((True, False))
    out: list[Offer] = []
    for _ in range(choose((1, 2, 3, 3) if taste.calm else (0, 1, 2, 3, 4, 5))):
        kind = choose(tuple(SHAPES))
        backend, region, zone = choose(PLACES)
        spot = choose((False, False, False, True))
        prices = PRICES[kind] if taste.calm else (*PRICES[kind], None)
        price = choose(prices)
        if spot and price is not None:
            price *= 0.4
        key = (backend, region, kind, str(spot))
        limit = limits.setdefault(key, None if unlimited else choose((None, None, 1, 2, 3)))
        if any(
            (o.backend, o.region, o.zone, o.instance_type, o.spot) == (backend, region, zone, kind, spot)
            for o in out
        ):
            continue
        shape = SHAPES[kind]
        out.append(
            Offer(
                backend=backend,
                region=region,
                zone=zone,
                instance_type=kind,
                shape=shape,
                price=price,
                spot=spot,
                limit=limit,
            )
        )
    return out


def by_price(offer: Offer) -> tuple[object, ...]:
    """The order in which a fleet's offers are given to placement: cheapest first, then by name."""
    price = float("inf") if offer.price is None else offer.price
    return (price, offer.spot, offer.backend, offer.region, offer.zone or "", offer.instance_type)


def _fleet(choose: Choose, taste: Taste, name: str, offers: Sequence[Offer]) -> FleetRule:
    words = {
        "name": name,
        "nodes": choose(("0..1", "0..2", "0..3") if taste.calm else ("0..1", "0..2", "0..4", "0..")),
        "placement": choose(("any", "cluster")),
        "blocks": choose((1, 4, "auto", "auto") if taste.calm else (1, 2, 4, "auto")),
    }
    mine = [o for o in offers if choose((True, True, False))]
    free = all(o.limit is None for o in offers)
    baselines = (0, 0, 0, 1) if taste.calm and free else (0,) if taste.calm else (0, 0, 0, 1, 2)
    return FleetRule(
        fleet=spec(Fleet, words),
        offers=tuple(sorted(mine, key=by_price)),
        existing=0,
        baseline=choose(baselines),
    )


STATES = (*[NodeState.READY] * 8, NodeState.NOT_READY, NodeState.UNKNOWN)


def _nodes(choose: Choose, taste: Taste, fleets: Mapping[str, FleetRule]) -> list[Node]:
    out: list[Node] = []
    lies: dict[str, tuple[str, str]] = {}
    counts = (0, 0, 0, 1, 2, 3, 4, 5) if taste.calm else range(taste.least_nodes, 6)
    for _ in range(choose(counts)):
        name = choose(tuple(fleets) if taste.calm else (*fleets, *fleets, "old"))
        backend, region, zone = choose(PLACES)
        rule = fleets.get(name)
        if rule is None or rule.fleet.placement.value == "cluster":
            home = lies.setdefault(name, (backend, region))
            if home != (backend, region):
                continue
        kind = choose(tuple(SHAPES))
        total = split(SHAPES[kind], rule.fleet.blocks.number if rule else 1) or 1
        busy = min(total, choose((0, 0, 0, 1, 2, 5, 16)))
        closed = None if choose((True,) * 9 + (False,)) else "it is replaced once idle"
        out.append(
            _node(
                f"{name}-{sum(n.fleet == name for n in out)}",
                kind,
                total,
                held=choose((range(busy), range(total - busy, total))),
                backend=backend,
                region=region,
                zone=zone,
                price=choose(PRICES[kind] if taste.calm else (*PRICES[kind], None)),
                spot=choose((False, False, False, True)),
                readiness=Readiness(state=choose(STATES)),
                closed=closed if rule else "its fleet is not declared any more",
            )
        )
    return out


def _volumes(choose: Choose, taste: Taste) -> dict[str, VolumeAt]:
    out: dict[str, VolumeAt] = {}
    for name in VOLUMES:
        if choose((True,) * 9 + (False,)):
            backend, region, zone = choose((PLACES[0], PLACES[0], *PLACES))
            more = {"fresh": True} if taste.fresh and choose((True, True, False)) else {}
            zone = choose((zone, None))
            holder = None if more else choose((None,) * 8 + ("rank/busy-0",))
            out[name] = VolumeAt(backend=backend, region=region, zone=zone, holder=holder, **more)
    return out


RESOURCES: tuple[Mapping[str, Any], ...] = (
    {},
    {"cpu": 1},
    {"cpu": "1.."},
    {"cpu": "3.."},
    {"cpu": "..4"},
    {"cpu": "4..8"},
    {"gpu": 1},
    {"gpu": "1.."},
    {"gpu": "2.."},
    {"gpu": "3.."},
    {"gpu": "1..4"},
    {"gpu": "H100:4.."},
    {"gpu": "8"},
    {"memory": "9GB.."},
)


def _ask(choose: Choose, taste: Taste, name: str, fleets: list[str], nodes: Sequence[Node]) -> Ask:
    words: dict[str, Any] = {"name": name, "commands": ["true"]}
    words["nodes"] = choose((1, 1, 1, 2, 2, 3))
    words["resources"] = choose(RESOURCES)
    words["priority"] = choose((0, 0, 0, 5, 9))
    pins = sorted({n.name for n in nodes})
    if not taste.calm:
        pins.append("aa-7")
    rare: dict[str, Sequence[Any]] = {
        "placement": ("any", "cluster", "any"),
        "exclusive": (True, False),
        "fleets": tuple([f] for f in fleets),
        "backends": (["sky"], ["lab"]),
        "regions": (["east"], ["west", "east"]),
        "spot_policy": ("on-demand", "spot", "auto"),
        "max_price": (2, 4.5, 7),
        "instances": tuple(pins[i:] for i in range(len(pins))),
    }
    if not taste.calm:
        rare["creation_policy"] = ("reuse",)
        rare["same"] = ("region", "zone")
        rare["spread"] = ("node", "zone", "region")
    for _ in range(choose((0, 0, 1) if taste.calm else (0, 1, 1, 2))):
        field = choose(tuple(k for k, options in rare.items() if options))
        words[field] = choose(rare[field])
    if words.get("placement") == "any" or "spread" in words:
        words.pop("same", None)
    if "spread" in words and words["spread"] != "node":
        words["placement"] = "any"
    task = spec(Task, words)
    mounts = (
        choose(MOUNTS) if choose((True, False, False, False, False) if not taste.fresh else (True,)) else {}
    )
    return Ask(want=TaskWant(spec=task, mounts=rank_mounts(task, mounts)))


def _promised(choose: Choose, asks: Sequence[Ask], nodes: Sequence[Node]) -> tuple[Ask, ...]:
    """Some tasks had places before: not those of others, but perhaps with too few blocks, or on a node that
    is gone.
    """
    idle = {n.name: [b for b in range(n.total) if b not in n.held] for n in nodes}
    idle["aa-9"] = [0, 1]
    out: list[Ask] = []
    for ask in asks:
        prior: dict[int, tuple[str, tuple[int, ...]]] = {}
        fits = {n.name: _fitting(ask.want.spec, n) for n in nodes}
        for rank in range(ask.want.spec.nodes if choose((True, False, False)) else 0):
            name = choose(tuple(idle))
            blocks = idle[name][: choose((1, *fits.get(name, ()) * 4))]
            if blocks:
                prior[rank] = (name, tuple(blocks))
                idle[name] = idle[name][len(blocks) :]
        out.append(replace(ask, prior=prior))
    return tuple(out)


def _fitting(task: Task, node: Node) -> tuple[int, ...]:
    """The number of blocks that a rank takes there, if it fits."""
    if task.whole_nodes:
        return (node.total,)
    found = fewest(task.resources, node.shape, node.total)
    return () if found is None else (found,)
