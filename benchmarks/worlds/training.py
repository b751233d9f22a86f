"""Worlds of a training shop: racks of GPU hosts in their own networks, gangs of whole nodes, reserved parts.

Gangs have 2 to 32 nodes, and many have to stay in one rack or row. A part of the hosts is reserved for some
teams, gangs run already, and what does not fit may go to a cloud, whose stock is small.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from benchmarks.worlds.world import Draft, Words, World

HOSTS = (("H100", 80, 192, 2000), ("A100", 80, 128, 1000), ("MI300X", 192, 192, 1500))
"""Model, GB of each GPU, CPUs, GB of memory of hosts with 8 GPUs."""
GANGS = (2, 2, 2, 2, 3, 4, 4, 4, 6, 8, 8, 12, 16, 16, 24, 32)
"""Nodes of a gang: most are small."""
MOST_HOSTS = 320


def training(seed: int, size: int) -> World:
    """The world of a seed with so many tasks that have no place yet."""
    draft = _Training(random.Random(f"training {seed} {size}"), seed, size, "training")
    draft.clouds()
    draft.networks()
    draft.gangs_that_run()
    for number in range(size):
        draft.ask(number)
    return draft.finished()


@dataclass
class _Training(Draft):
    """A world that is being drawn."""

    models: dict[str, str] = field(default_factory=dict)
    """Fleet → the model of its GPUs."""
    hosts: dict[str, list[str]] = field(default_factory=dict)
    """Fleet → its nodes that are there, rack by rack."""
    reserved: list[str] = field(default_factory=list)
    """The fleets that only some teams use."""
    clouds_of: list[str] = field(default_factory=list)

    def clouds(self) -> None:
        """0 to 2 clouds with zones, and a fleet of whole nodes on each."""
        for name in ("nube", "wolke")[: self.chance.choice((0, 1, 1, 2))]:
            zones = [f"{name}-{letter}" for letter in "abc"[: self.chance.randint(1, 3)]]
            regions = [f"{name}-{side}" for side in ("east", "west")[: self.chance.randint(1, 2)]]
            catalog = []
            for model, memory, cpu, ram in self.chance.sample(HOSTS[:2], self.chance.randint(1, 2)):
                price = round((60 if model == "H100" else 30) * self.chance.uniform(0.7, 1.3), 2)
                entry: Words = {
                    "instance_type": f"{model.lower()}x8",
                    "cpu": cpu,
                    "memory": f"{ram}GB",
                    "gpu": f"{model}:{memory}GB:8",
                    "price": price,
                    "limit": self.chance.randint(2, max(4, self.size // 2)),
                }
                if self.often(0.4):
                    entry["spot_price"] = round(price * self.chance.uniform(0.3, 0.7), 2)
                catalog.append(entry)
            places = {"regions": regions, "availability_zones": zones}
            self.add("backend", name, driver="local", **places, catalog=catalog)
            fleet = f"rent-{name}"
            words: Words = {"backends": [name], "placement": "cluster", "blocks": "auto"}
            words["nodes"] = self.chance.choice(("0..", f"0..{self.chance.randint(4, 40)}"))
            words["spot_policy"] = self.chance.choice(("on-demand", "auto"))
            if self.often(0.4):
                words["same"] = "region"
            self.add("fleet", fleet, **words)
            self.clouds_of.append(fleet)

    def networks(self) -> None:
        """1 to 3 networks of racks; one of them may be reserved for some teams."""
        number = self.chance.choice((1, 2, 2, 3))
        share = self.chance.uniform(0.4, 1.2) * 3.5 * self.size / number
        for i in range(number):
            name, (model, memory, cpu, ram) = f"net-{'abc'[i]}", self.chance.choice(HOSTS)
            count = max(4, min(round(share), MOST_HOSTS // number))
            rack_size = self.chance.choice((4, 8, 8, 12, 16))
            shape = {"cpu": cpu, "memory": f"{ram}GB", "gpu": f"{model}:{memory}GB:8"}
            hosts = []
            for k in range(count):
                rack = k // rack_size
                topology = {"rack": f"r{rack}", "row": f"w{rack // 3}"}
                address = f"10.{i}.{k // 200}.{k % 200 + 1}"
                hosts.append({"hostname": address, "resources": shape, "topology": topology})
            words: Words = {"placement": "cluster", "blocks": self.chance.choice(("auto", "auto", 8, 4))}
            if self.often(0.3):
                words["same"] = self.chance.choice(("rack", "row"))
            self.add("fleet", name, **words, ssh_config={"user": "ops", "hosts": hosts})
            self.models[name], self.hosts[name] = model, [f"{name}-{k}" for k in range(count)]
            for k, node in enumerate(self.hosts[name]):
                offer: Words = {"backend": "ssh", "region": "ssh", "zone": hosts[k]["hostname"]}
                offer |= {"instance_type": hosts[k]["hostname"], "spot": False, "host": node}
                self.nodes.append({"name": node, "fleet": name, "offer": offer})
            if i and self.often(0.5):
                self.reserved.append(name)

    def gangs_that_run(self) -> None:
        """Some gangs hold neighbouring nodes, and some single ranks a part of a node."""
        busy: set[str] = set()
        for fleet, nodes in self.hosts.items():
            blocks = next(d["blocks"] for d in self.documents if d["name"] == fleet)
            total = 8 if blocks == "auto" else int(blocks)
            load = self.chance.choice((0, 0.2, 0.5))
            while self.often(load):
                count = min(self.chance.choice(GANGS[:10]), len(nodes))
                first = self.chance.randrange(len(nodes) - count + 1)
                mine = [node for node in nodes[first : first + count] if node not in busy]
                if len(mine) < 2:
                    break
                busy.update(mine)
                task = self._old(nodes=len(mine), fleets=[fleet], same="region", resources={"gpu": 8})
                for rank, node in enumerate(mine):
                    self.run(task, rank, node, range(total), total)
            for node in nodes:
                if node not in busy and self.often(load / 4):
                    count = self.chance.randint(1, total - 1)
                    task = self._old(fleets=[fleet], resources={"gpu": 8 // total * count})
                    self.run(task, 0, node, range(count), total)

    def _old(self, **words: object) -> str:
        names = {run["task"] for run in self.running}
        return str(self.task(f"old-{len(names)}", **words)["name"])

    def ask(self, number: int) -> None:
        """A gang of whole nodes, a gang that shares nodes, or a rank with a few GPUs."""
        words: Words = {"resources": {"gpu": 8}}
        open_fleets = [name for name in (*self.hosts, *self.clouds_of) if name not in self.reserved]
        if self.often(0.55):
            words["nodes"] = self.chance.choice(GANGS)
            level = self.chance.choice((None, None, None, "rack", "row", "zone", "region"))
            if level:
                words["same"] = level
        elif self.often(0.25):
            words |= {"nodes": self.chance.randint(2, 6), "exclusive": False}
            words["resources"] = {"gpu": self.chance.choice((2, 4, "2.."))}
            if self.often(0.3):
                words["spread"] = "node"
                words["fleets"] = [self.chance.choice(list(self.hosts))]
        else:
            words["resources"] = {"gpu": self.chance.choice((1, 1, 2, 4, 8))}
        if self.often(0.25):
            model = self.chance.choice([*self.models.values(), "H100"])
            words["resources"] = {"gpu": f"{model}:{words['resources']['gpu']}"}
        if self.reserved and self.often(0.4):
            words.setdefault("fleets", [*self.some(self.reserved)])
        elif self.reserved:
            words.setdefault("fleets", open_fleets)
        elif self.often(0.1):
            words.setdefault("fleets", [self.chance.choice(open_fleets)])
        if "same" in words and words["same"] in ("rack", "row") and self.often(0.5):
            words.pop("fleets", None)
        if self.often(0.1):
            words["creation_policy"] = "reuse"
        if (priority := self.chance.choice((0, 0, 10, 10, 50, 100))) != 0:
            words["priority"] = priority
        self.task(f"train-{number}", **words)
