"""Worlds of batch work: three clouds, 12 regions, 40 types, about 1,200 offers, and 60 to 5,000 tasks.

Tasks come from a few templates, name alternatives, and are content with many types. Some prices are unknown.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from benchmarks.worlds.kinds import Kind
from benchmarks.worlds.world import Draft, Words, World

CPUS = tuple(
    Kind(f"{letter}{cpu}", cpu, cpu * ratio, "", 0, 0, cpu * cost)
    for letter, ratio, cost in (("c", 2, 0.042), ("m", 4, 0.048), ("r", 8, 0.063))
    for cpu in (2, 4, 8, 16, 32, 48, 64, 96)
)
GPUS = tuple(
    Kind(f"{model.lower()}x{count}", cpu * count, ram * count, model, count, memory, price * count**power)
    for model, memory, cpu, ram, price, power, counts in (
        ("T4", 16, 8, 30, 0.55, 1.05, (1, 2, 4)),
        ("L4", 24, 8, 32, 0.80, 1.08, (1, 4, 8)),
        ("A10G", 24, 12, 48, 1.10, 1.05, (1, 4, 8)),
        ("A100", 80, 12, 128, 3.40, 1.05, (1, 2, 4, 8)),
        ("H100", 80, 24, 240, 7.60, 1.0, (1, 4, 8)),
    )
    for count in counts
)
MODELS = ("T4", "L4", "A10G", "A100", "H100")
KINDS = (*CPUS, *GPUS)
CLOUDS = ("aero", "boreal", "cumulus")


def batch(seed: int, size: int) -> World:
    """The world of a seed with so many tasks that have no place yet."""
    draft = _Batch(random.Random(f"batch {seed} {size}"), seed, size, "batch")
    draft.markets()
    draft.fleets()
    draft.tasks()
    return draft.finished()


@dataclass
class _Batch(Draft):
    """A world that is being drawn."""

    regions: dict[str, list[str]] = field(default_factory=dict)

    def markets(self) -> None:
        """Each type in most regions at a price of that region, on demand and mostly as spot."""
        for number, name in enumerate(CLOUDS):
            regions = self.regions[name] = [f"{name}-{i}" for i in range(4)]
            catalog = []
            for region in regions:
                dear = self.chance.uniform(0.9, 1.25)
                for kind in KINDS:
                    if self.often(0.1):
                        continue
                    entry: Words = {
                        "instance_type": kind.name,
                        "cpu": kind.cpu,
                        "memory": f"{kind.memory}GB",
                        "regions": [region],
                    }
                    if kind.gpus:
                        entry["gpu"] = kind.gpu
                    price = round(kind.price * dear * self.chance.uniform(0.85, 1.15), 4)
                    if not self.often(0.08):  # of the others, the price is unknown
                        entry["price"] = price
                        if self.often(0.8):
                            entry["spot_price"] = round(price * self.chance.uniform(0.25, 0.8), 4)
                    if self.often(0.25):
                        entry["limit"] = self.chance.randint(1, max(2, self.size // 10))
                    catalog.append(entry)
            zones = {"availability_zones": ["a", "b"]} if number == 0 else {}
            self.add("backend", name, driver="local", regions=regions, **zones, catalog=catalog)

    def fleets(self) -> None:
        """One that takes all, and some that take a part."""
        spot = self.chance.choice(("auto", "auto", "on-demand"))
        self.add("fleet", "all", nodes="0..", blocks="auto", spot_policy=spot)
        for i in range(self.chance.randint(1, 4)):
            cloud = self.chance.choice(CLOUDS)
            words: Words = {"nodes": f"0..{self.chance.randint(2, max(3, self.size // 4))}"}
            words |= {"blocks": self.chance.choice(("auto", "auto", 1)), "backends": [cloud]}
            words["spot_policy"] = self.chance.choice(("auto", "spot", "on-demand"))
            if self.often(0.5):
                words["regions"] = self.some(self.regions[cloud])
            if self.often(0.4):
                words["placement"] = "cluster"
            if self.often(0.3):
                words["resources"] = {"gpu": self.chance.choice((0, "1..", "24GB..:1.."))}
            self.add("fleet", f"part-{'abcd'[i]}", **words)

    def tasks(self) -> None:
        """Templates: of some there are many tasks, of most a few."""
        forms = [self._form() for _ in range(self.chance.randint(5, 12 + math.isqrt(self.size)))]
        weights = [1 / (1 + i) ** self.chance.uniform(0.3, 1.4) for i in range(len(forms))]
        for i, form in enumerate(self.chance.choices(forms, weights, k=self.size)):
            words = dict(form)
            if (priority := self.chance.choice((0, 0, 0, 0, 20, 80))) != 0:
                words["priority"] = priority
            if self.often(0.03):
                cloud = self.chance.choice(CLOUDS)
                region = self.chance.choice(self.regions[cloud])
                size = {"size": "100GB", "count": int(words.get("nodes", 1))}
                self.add("volume", f"data-{i}", backend=cloud, region=region, **size)
                words["volumes"] = [{"name": f"data-{i}-${{{{ node_rank }}}}", "path": "/data"}]
            self.task(f"job-{i}", **words)

    def _form(self) -> Words:
        """A template that many types would do for."""
        words: Words = {"resources": {}}
        asked: Words = words["resources"]
        if self.often(0.5):
            count = self.chance.choice((1, 1, 1, 2, 4, 8))
            models = ",".join(self.chance.sample(MODELS, self.chance.randint(1, 3)))
            asked["gpu"] = self.chance.choice((count, f"{count}..", f"24GB..:{count}", f"{models}:{count}"))
        if "gpu" not in asked or self.often(0.3):
            cpu = self.chance.choice((1, 1, 2, 3, 4, 6, 8, 12, 16, 24, 40))
            asked["cpu"] = f"{cpu}..{4 * cpu}" if self.often(0.1) else f"{cpu}.."
        if self.often(0.6):
            asked["memory"] = f"{self.chance.choice((1, 2, 4, 8, 16, 32, 64, 120))}GB.."
        if self.often(0.15):
            words |= {"nodes": self.chance.randint(2, 8), "placement": "any"}
            if self.often(0.3):
                words["placement"] = "cluster"
            elif self.often(0.3):
                words |= {"spread": "region", "nodes": self.chance.randint(2, 4)}
        if self.often(0.2):
            cloud = self.chance.choice(CLOUDS)
            words["regions"] = self.some(self.regions[cloud])
        if self.often(0.15):
            words["spot_policy"] = "on-demand"
        if self.often(0.1):
            words["max_price"] = self.chance.choice((0.5, 2, 5, 30))
        return words
