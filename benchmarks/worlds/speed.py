"""Large worlds with one difficulty each: only the CPU seconds of their plans are measured."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from benchmarks.worlds.world import Draft, World


def _zoned(draft: Draft, limit: int, *, placement: str = "any") -> None:
    """A cloud with 12 zones and three types, and a fleet that takes all."""
    catalog = [
        {
            "instance_type": f"g{n}",
            "cpu": 8 * n,
            "memory": f"{32 * n}GB",
            "gpu": f"A10G:24GB:{n}",
            "price": price,
        }
        for n, price in ((1, 1.2), (4, 4.4), (8, 8.4))
    ]
    zones = [f"z{i}" for i in range(6)]
    draft.add(
        "backend",
        "sky",
        driver="local",
        regions=["east", "west"],
        availability_zones=zones,
        catalog=[{**entry, "limit": limit} for entry in catalog],
    )
    draft.add("fleet", "gpu", nodes="0..", blocks="auto", placement=placement)


def _matching(draft: Draft) -> None:
    """Ranks that each take one of five volumes of a pool, which lie in 12 zones."""
    _zoned(draft, draft.size)
    pool = []
    for i in range(draft.size + 10):
        name, region = f"data-{i}", draft.chance.choice(("east", "west"))
        zone = f"z{draft.chance.randrange(6)}"
        draft.add("volume", name, backend="sky", region=region, availability_zone=zone, size="100GB")
        pool.append(name)
    for i in range(draft.size):
        volumes = [{"name": draft.chance.sample(pool, 5), "path": "/data"}]
        draft.task(f"job-{i}", resources={"gpu": draft.chance.choice((1, 1, 2, 4))}, volumes=volumes)


def _priorities(draft: Draft) -> None:
    """Gangs of all priorities, for half of which there is room."""
    _zoned(draft, draft.size // 2, placement="cluster")
    for i in range(draft.size):
        words = {"nodes": draft.chance.choice((2, 2, 3, 4, 8)), "priority": draft.chance.randrange(101)}
        words["exclusive"] = draft.chance.random() < 0.7
        draft.task(f"gang-{i}", resources={"gpu": draft.chance.choice((1, 4, 8))}, **words)


def _plain(draft: Draft) -> None:
    """Tasks of one rank and a few sizes."""
    _zoned(draft, draft.size)
    for i in range(draft.size):
        draft.task(f"job-{i}", resources={"gpu": draft.chance.choice((1, 1, 1, 2, 4, 8))})


CASES: Mapping[str, tuple[int, Callable[[Draft], None]]] = {
    "volumes": (120, _matching),
    "priorities": (400, _priorities),
    "plain": (64_000, _plain),
}
"""Family → its tasks, and what draws it."""


def large(family: str, seed: int, size: int) -> World:
    """The world of a seed."""
    draft = Draft(random.Random(f"{family} {seed} {size}"), seed, size, family)
    CASES[family][1](draft)
    return draft.finished()
