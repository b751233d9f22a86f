"""Four small worlds that went wrong once, and variants of each: other names, another order, other prices.

| case | what went wrong | what is right |
|---|---|---|
| place-01 | `reuse` ranks took the only GPUs that others could use: 8 blocks seated | 11 blocks |
| place-02 | the ranks that fit anywhere took the best idle hosts: 2.85 USD/h | 1.11 USD/h |
| place-03 | nodes were launched for `reuse`: 3.30 USD/h | 1.11 USD/h; `reuse` rides or waits |
| place-05 | a task of priority 0 took the blocks that one of priority 100 waits for | they stay free |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from benchmarks.worlds.world import Draft, Words, World

WORKSTATIONS = (
    {"instance_type": "ws1", "cpu": 36, "memory": "64GB", "gpu": "RTX3090:1", "price": 0},
    {"instance_type": "ws3", "cpu": 36, "memory": "192GB", "gpu": "RTX3090:3", "price": 0},
    {"instance_type": "c32", "cpu": 32, "memory": "128GB", "price": 0.45},
    {"instance_type": "a10x4", "cpu": 48, "memory": "192GB", "gpu": "A10G:4", "price": 2.52},
    {"instance_type": "t4x2", "cpu": 16, "memory": "64GB", "gpu": "T4:2", "price": 0.33},
)


class _Case(Draft):
    """A case that is being written down; variants differ in names, order and prices."""

    @property
    def claims(self) -> bool:
        """In every world of the case that is about them, and in every second one of the others."""
        return self.family == "place-05" or super().claims

    def name(self, name: str) -> str:
        """The name in this variant: it sorts elsewhere."""
        if not self.seed:
            return name
        return f"{'abcdefghijklmnopqrstuvwxyz'[random.Random(f'{self.seed} {name}').randrange(26)]}-{name}"

    def price(self, price: float) -> float:
        """The price in this variant."""
        return round(price * self.chance.uniform(0.75, 1.33), 4) if self.seed else price

    def market(self, *entries: Mapping[str, object]) -> None:
        """The backend `sim`."""
        catalog = [{**entry, "price": self.price(float(str(entry["price"])))} for entry in entries]
        if self.seed:
            self.chance.shuffle(catalog)
        self.add("backend", "sim", driver="local", catalog=catalog)

    def node(self, fleet: str, instance_type: str) -> None:
        """A node that is there."""
        offer: Words = {"backend": "sim", "region": "local", "zone": None, "instance_type": instance_type}
        offer |= {"spot": False, "host": None}
        number = sum(node["fleet"] == fleet for node in self.nodes)
        self.nodes.append({"name": f"{fleet}-{number}", "fleet": fleet, "offer": offer})

    def fleet(self, name: str, **words: object) -> str:
        """One more fleet, and its name in this variant."""
        return str(self.add("fleet", self.name(name), backends=["sim"], **words)["name"])


def _place_01(case: _Case) -> None:
    shape = {"cpu": 64, "memory": "1024GB", "price": 1}
    eighty = {**shape, "instance_type": "n80", "gpu": "A100:80GB:8"}
    forty = {**shape, "instance_type": "n40", "cpu": 128, "gpu": "A100:40GB:8"}
    case.market(eighty, forty)
    case.fleet("f80", nodes=1, blocks="auto", resources={"gpu": "80GB:8"})
    case.fleet("f40", nodes=3, blocks="auto", resources={"gpu": "40GB:8"}, instance_types=["n40"])
    reuse = {"priority": 10, "creation_policy": "reuse"}
    case.task(case.name("spr"), resources={"gpu": 1}, nodes=3, placement="any", **reuse)
    for name, count in (("two4", 4), ("one4", 4), ("one1", 1)):
        case.task(case.name(name), resources={"gpu": f"79GB..:{count}"})


def _workstations(case: _Case, count: int) -> list[str]:
    case.market(*WORKSTATIONS)
    limits = {"nodes": count, "blocks": 1}
    first = case.fleet("ws-a", **limits, instance_types=["ws1"], resources={"gpu": 1})
    second = case.fleet("ws-b", **limits, instance_types=["ws3"], resources={"gpu": 3})
    case.fleet("burst", nodes="0..8", blocks="auto", instance_types=["c32", "a10x4", "t4x2"])
    case.task(case.name("t0a"), resources={"gpu": 1})
    reuse = {"creation_policy": "reuse"}
    case.task(case.name("t1a"), resources={"cpu": "16..", "memory": "60GB.."}, priority=10, **reuse)
    case.task(case.name("t2a"), resources={"gpu": 1})
    case.task(case.name("t3a"), resources={"cpu": "10..", "gpu": "1.."}, **reuse)
    case.task(case.name("t4a"), resources={"cpu": "8..", "gpu": "1.."}, priority=10)
    case.task(case.name("t7a"), resources={"cpu": "30..", "memory": "20GB.."})
    return [first, second]


def _place_02(case: _Case) -> None:
    for fleet, instance_type in zip(_workstations(case, 1), ("ws1", "ws3"), strict=True):
        case.node(fleet, instance_type)


def _place_03(case: _Case) -> None:
    _workstations(case, 0)


def _place_05(case: _Case) -> None:
    big = {"instance_type": "big8", "cpu": 64, "memory": "512GB", "gpu": "H100:8", "price": 20, "limit": 1}
    case.market(big)
    fleet = case.fleet("gpu", nodes="0..8", blocks="auto")
    low = str(case.task(case.name("low"), resources={"gpu": 2})["name"])
    case.task(case.name("high"), resources={"gpu": 8}, priority=100)
    case.task(case.name("later"), resources={"gpu": 2})
    case.node(fleet, "big8")
    first = 2 * case.chance.randrange(4) if case.seed else 0
    case.run(low, 0, f"{fleet}-0", range(first, first + 2), 8)


CASES: Mapping[str, Callable[[_Case], None]] = {
    "place-01": _place_01,
    "place-02": _place_02,
    "place-03": _place_03,
    "place-05": _place_05,
}
RIGHT: Mapping[str, tuple[int | None, float | None]] = {
    "place-01": (11, None),
    "place-02": (None, 1.11),
    "place-03": (None, 1.11),
    "place-05": (None, None),
}
"""Blocks and USD an hour that are right in the case itself; of a variant, the exact model says it."""


def case(family: str, seed: int) -> World:
    """A variant of a case; that of seed 0 is the case itself."""
    draft = _Case(random.Random(f"{family} {seed}"), seed, 0, family)
    CASES[family](draft)
    if seed:
        draft.chance.shuffle(draft.documents)
    return draft.finished()
