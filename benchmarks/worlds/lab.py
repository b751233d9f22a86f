"""Worlds of a lab: 60 hosts of its own of all ages, half of them busy, and a cloud for what does not fit.

Many tasks only reuse what is there, some are spread, some need a volume that lies on a host's disk, and some
take whichever of a few volumes is free.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.worlds.kinds import Kind
from benchmarks.worlds.world import Draft, Words, World

HOSTS = 60
OWN = (
    Kind("ws", 16, 64, "RTX3090", 1, 24, 0),
    Kind("duo", 32, 128, "RTX3090", 2, 24, 0),
    Kind("old", 40, 256, "V100", 4, 16, 0),
    Kind("mid", 64, 512, "A6000", 4, 48, 0),
    Kind("big", 128, 1024, "A100", 8, 80, 0),
    Kind("cpu", 32, 256, "", 0, 0, 0),
    Kind("fat", 64, 1024, "", 0, 0, 0),
)
CLOUD = (
    Kind("c8", 8, 32, "", 0, 0, 0.35),
    Kind("c32", 32, 128, "", 0, 0, 1.30),
    Kind("t4x1", 8, 32, "T4", 1, 16, 0.50),
    Kind("t4x2", 16, 64, "T4", 2, 16, 0.95),
    Kind("a10x4", 48, 192, "A10G", 4, 24, 4.80),
    Kind("a100x8", 96, 1100, "A100", 8, 80, 28.0),
)
BUILDINGS = ("north", "south", "annex")


def lab(seed: int, size: int) -> World:
    """The world of a seed with so many tasks that have no place yet."""
    draft = _Lab(random.Random(f"lab {seed} {size}"), seed, size, "lab")
    draft.cloud()
    draft.own()
    draft.disks()
    for number in range(size):
        draft.ask(number)
    return draft.finished()


@dataclass
class _Lab(Draft):
    """A world that is being drawn."""

    kinds: dict[str, list[Kind]] = field(default_factory=dict)
    """Fleet of hosts → what its hosts are, host by host."""
    addresses: dict[str, list[str]] = field(default_factory=dict)
    host_disks: list[str] = field(default_factory=list)
    cloud_disks: list[str] = field(default_factory=list)

    def cloud(self) -> None:
        """One region with zones, a fleet that may grow, and now and then one that keeps a node."""
        zones = ["za", "zb"][: self.chance.randint(1, 2)]
        catalog = []
        for kind in self.chance.sample(CLOUD, self.chance.randint(3, len(CLOUD))):
            entry: Words = {"instance_type": kind.name, "cpu": kind.cpu, "memory": f"{kind.memory}GB"}
            entry["price"] = round(kind.price * self.chance.uniform(0.8, 1.25), 3)
            if kind.gpus:
                entry["gpu"] = kind.gpu
            if self.often(0.5):
                entry["spot_price"] = round(entry["price"] * self.chance.uniform(0.3, 0.7), 3)
            if self.often(0.3):
                entry["limit"] = self.chance.randint(1, 12)
            catalog.append(entry)
        places = {"regions": ["eu"], "availability_zones": zones}
        self.add("backend", "sky", driver="local", **places, catalog=catalog)
        words: Words = {"blocks": "auto", "spot_policy": self.chance.choice(("auto", "on-demand"))}
        words["placement"] = self.chance.choice(("any", "any", "cluster"))
        most = self.chance.randint(2, max(3, self.size // 3))
        self.add("fleet", "burst", backends=["sky"], nodes=f"0..{most}", **words)
        if self.often(0.3):
            one = self.chance.choice(catalog)["instance_type"]
            first = self.chance.randint(0, 2)
            words = {"instance_types": [one], "nodes": f"{first}..{first + 3}", "blocks": "auto"}
            if not any("limit" in entry for entry in catalog if entry["instance_type"] == one):
                self.add("fleet", "keep", backends=["sky"], **words)

    def own(self) -> None:
        """The hosts in 1 to 4 fleets, and what runs on them."""
        number = self.chance.randint(1, 4)
        every = [self.chance.choice(OWN) for _ in range(HOSTS)]
        if self.often(0.5):  # each fleet its own kinds
            every.sort(key=lambda kind: kind.name)
        load = self.chance.choice((0.2, 0.5, 0.8))
        for i in range(number):
            name, kinds = f"own-{'abcd'[i]}", every[i * HOSTS // number : (i + 1) * HOSTS // number]
            blocks = self.chance.choice(("auto", "auto", 1))
            placement = self.chance.choice(("any", "any", "cluster"))
            self.kinds[name] = kinds
            self.addresses[name] = [f"10.9.{i}.{k + 1}" for k in range(len(kinds))]
            hosts = []
            for k, kind in enumerate(kinds):
                shape: Words = {"cpu": kind.cpu, "memory": f"{kind.memory}GB"}
                if kind.gpus:
                    shape["gpu"] = kind.gpu
                host: Words = {"hostname": self.addresses[name][k], "resources": shape}
                if self.often(0.9):
                    host["topology"] = {"building": self.chance.choice(BUILDINGS)}
                hosts.append(host)
            config = {"user": "lab", "hosts": hosts}
            self.add("fleet", name, blocks=blocks, placement=placement, ssh_config=config)
            new = self.chance.randint(0, 2)  # hosts that no apply has met yet
            for k, kind in enumerate(kinds[: len(kinds) - new]):
                self._host(name, k, kind, blocks, load)

    def _host(self, fleet: str, number: int, kind: Kind, blocks: object, load: float) -> None:
        node, address = f"{fleet}-{number}", self.addresses[fleet][number]
        offer = {"backend": "ssh", "region": "ssh", "zone": address, "instance_type": address}
        self.nodes.append({"name": node, "fleet": fleet, "offer": {**offer, "spot": False, "host": node}})
        total = 1 if blocks == 1 else (kind.gpus or kind.cpu)
        first = 0
        while self.often(load) and first < total:
            count = self.chance.randint(1, max(1, (total - first) // 2))
            gpus, cpus = kind.gpus // total * count, kind.cpu // total * count
            asked: Words = {"gpu": gpus} if gpus else {"cpu": f"{cpus}.."}
            task = self.task(f"old-{len(self.running)}", resources=asked, fleets=[fleet])["name"]
            self.run(task, 0, node, range(first, first + count), total)
            first += count

    def disks(self) -> None:
        """Volumes on hosts, and some in the cloud."""
        hosts = [address for addresses in self.addresses.values() for address in addresses]
        for i in range(self.chance.randint(2, max(3, self.size // 4))):
            name = f"disk-{i}"
            self.add("volume", name, backend="ssh", host=self.chance.choice(hosts), size="100GB")
            self.host_disks.append(name)
        for i in range(self.chance.randint(0, 3)):
            name = f"cloud-{i}"
            self.add("volume", name, backend="sky", region="eu", size="100GB")
            self.cloud_disks.append(name)

    def ask(self, number: int) -> None:
        """A task of one rank, or a few ranks that are spread or share nodes."""
        words: Words = {"resources": self._resources(self.chance.choice((*OWN, *CLOUD)))}
        if self.often(0.15):
            words |= {"nodes": self.chance.randint(2, 4), "placement": "any"}
            level = self.chance.choice(("node", "node", "building", None))
            if level:
                words |= {"spread": level, "fleets": self.some(sorted(self.kinds))}
        elif self.often(0.06):
            words |= {"nodes": self.chance.randint(2, 3)}
            if self.often(0.5):
                words["exclusive"] = False
        elif self.often(0.1):
            words["instances"] = self.chance.sample([node["name"] for node in self.nodes], 3)
        if self.often(0.35):
            words["creation_policy"] = "reuse"
        if self.often(0.12) and "nodes" not in words and "instances" not in words:
            words["volumes"] = [{"name": self._disks(self.host_disks), "path": "/data"}]
        elif self.often(0.05) and self.cloud_disks and "nodes" not in words:
            words["volumes"] = [{"name": self._disks(self.cloud_disks), "path": "/data"}]
        if self.often(0.1):
            words.setdefault("fleets", self.some(["burst", *self.kinds]))
        if (priority := self.chance.choice((0, 0, 0, 10, 10, 50))) != 0:
            words["priority"] = priority
        self.task(f"exp-{number}", **words)

    def _disks(self, names: Sequence[str]) -> object:
        few = self.chance.sample(names, min(len(names), self.chance.randint(1, 3)))
        return few if len(few) > 1 else few[0]

    def _resources(self, kind: Kind) -> Words:
        """About a part of such a machine."""
        out: Words = {}
        if kind.gpus:
            count = self.chance.choice([n for n in (1, 1, 1, 2, 4, 8) if n <= kind.gpus])
            part = count / kind.gpus
            named = f"{kind.model}:{count}"
            at_least = f"{kind.gpu_memory}GB..:{count}"
            out["gpu"] = self.chance.choice((count, count, f"{count}..", named, at_least))
        else:
            part = self.chance.choice((0.1, 0.25, 0.5, 1))
        if not kind.gpus or self.often(0.4):
            out["cpu"] = f"{max(1, round(kind.cpu * part * self.chance.choice((0.3, 0.6, 1))))}.."
        if self.often(0.4):
            out["memory"] = f"{max(1, round(kind.memory * part * self.chance.choice((0.3, 0.6, 1))))}GB.."
        return out
