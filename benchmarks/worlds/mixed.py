"""Worlds as a company has them: a few backends and fleets, tasks of all kinds, from some templates."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.worlds import rules
from benchmarks.worlds.kinds import KINDS, LARGE, OWN, Kind
from benchmarks.worlds.world import Draft, Words, World, offer_words, offers_of, read
from declarative.model.resource import Desired, Offer


def world(seed: int, size: int, *, broad: bool = False) -> World:
    """The world of a seed with so many tasks that have no place yet. If it is `broad`, some nodes have up to
    192 blocks, and now and then no two tasks are alike.
    """
    draft = _Mixed(random.Random(f"{seed} {size}"), seed, size, "mixed", broad=broad)
    while not draft.documents:  # a backend that offers nothing is left out
        draft.market()
    draft.fleets()
    draft.look()
    for words in draft.documents:
        if words["type"] == "fleet" and not draft.sites[words["name"]]:
            words["blocks"] = "auto"  # a number that divides nothing on offer is an error
    draft.there(draft.look())
    draft.tasks()
    return draft.finished()


@dataclass
class _Mixed(Draft):
    """A world that is being drawn."""

    broad: bool = False
    sites: dict[str, list[Offer]] = field(default_factory=dict)
    """Fleet → what it may launch."""
    room: float = 1.0
    """How generous the maxima of fleets are."""

    def look(self) -> Desired:
        """What is declared so far, and what each fleet may launch."""
        desired = read(self.documents)
        every = [o for offers in offers_of(desired).values() for o in offers]
        self.sites = {
            name: [o for o in every if rules.may_launch(desired, fleet, o)]
            for name, fleet in desired.fleets.items()
        }
        return desired

    # What can be had

    def market(self) -> None:
        """1 to 3 backends with regions or zones, kinds at prices of their own, limits; 3 to 60 offers."""
        chance, count = self.chance, 0
        most = chance.randint(8, 60)
        for name in ("alto", "bora", "cirro")[: chance.choice((1, 1, 2, 2, 3))]:
            zones = [f"z{i}" for i in range(chance.randint(2, 3))] if self.often(0.5) else []
            regions = [f"{name}-r{i}" for i in range(1 if zones else chance.randint(1, 3))]
            catalog: list[Words] = []
            kinds = (*KINDS, *LARGE) if self.broad else KINDS
            for kind in chance.sample(kinds, chance.randint(4, len(kinds))):
                for region in regions:
                    entry = self._entry(kind, region)
                    more = max(1, len(zones)) * (2 if "spot_price" in entry else 1)
                    if count + more <= most and self.often(0.85):
                        catalog.append(entry)
                        count += more
            if catalog:
                words: Words = {"type": "backend", "name": name, "driver": "local", "regions": regions}
                zoned = {"availability_zones": zones} if zones else {}
                self.documents.append({**words, **zoned, "catalog": catalog})

    def _entry(self, kind: Kind, region: str) -> Words:
        chance = self.chance
        price = round(kind.price * chance.uniform(0.8, 1.3), 3)
        words: Words = {
            "instance_type": kind.name,
            "cpu": kind.cpu,
            "memory": f"{kind.memory}GB",
            "regions": [region],
            "price": price,
        }
        if kind.gpus:
            words["gpu"] = kind.gpu
        if self.often(0.5):
            words["spot_price"] = round(price * chance.uniform(0.25, 0.75), 3)
        if self.often(0.35):
            stock = max(2, round(self.size * chance.uniform(0.02, 0.3)))
            words["limit"] = 0 if self.often(0.2) else chance.randint(1, stock)
        return words

    # Who may have it

    def fleets(self) -> None:
        """2 to 6 fleets, more in large worlds; one at least takes all that there is."""
        backends = list(self.documents)
        number = self.chance.randint(2, 5 + int(math.log10(self.size)))
        self.room = self.chance.choice((1, 1, 2, 4, 8))
        for i in range(number):
            self.documents.append(self._fleet(f"fleet-{'abcdefghij'[i]}", backends, wide=i == 0))
        if self.often(0.35):
            self.documents.append(self._own())

    def _fleet(self, name: str, backends: Sequence[Words], *, wide: bool) -> Words:
        chance = self.chance
        most = chance.randint(1, max(2, math.ceil(self.size * self.room * chance.uniform(0.05, 0.5))))
        words: Words = {
            "type": "fleet",
            "name": name,
            "nodes": "0.." if self.often(0.6 if wide else 0.2) else f"0..{most}",
        }
        words["blocks"] = "auto" if wide else chance.choice(("auto", "auto", "auto", 1, 1, 2, 4))
        words["spot_policy"] = chance.choice(("on-demand", "on-demand", "auto", "auto", "spot"))
        if self.often(0.4):
            words["placement"] = "cluster"
        if wide:
            return {**words, "spot_policy": chance.choice(("on-demand", "auto"))}
        taste = chance.choice(("any", "cpu", "gpu", "gpu", "types"))
        if taste == "cpu":
            words["resources"] = {"gpu": 0}
        elif taste == "gpu":
            words["resources"] = {"gpu": chance.choice(("1..", "1..", "16GB..", "24GB..", "2.."))}
        elif taste == "types":
            names = sorted({entry["instance_type"] for b in backends for entry in b["catalog"]})
            words["instance_types"] = chance.sample(names, min(len(names), chance.randint(1, 4)))
        home = chance.choice(backends)
        if self.often(0.35):
            words["backends"] = [home["name"]]
            if self.often(0.5):
                words["regions"] = self.some(home["regions"])
            zones = home.get("availability_zones")
            if zones and self.often(0.3):
                words["availability_zones"] = self.some(zones)
        if self.often(0.12):
            words["max_price"] = chance.choice((1, 2, 5, 20, 40))
        return words

    def _own(self) -> Words:
        """Hosts of one's own, which cost nothing."""
        hosts = []
        for i in range(self.chance.randint(1, max(3, self.size // 30))):
            kind = self.chance.choice(OWN)
            has: Words = {"cpu": kind.cpu, "memory": f"{kind.memory}GB"}
            if kind.gpus:
                has["gpu"] = kind.gpu
            hosts.append({"hostname": f"10.0.{i // 250}.{i % 250 + 1}", "resources": has})
        words: Words = {"type": "fleet", "name": "own", "blocks": self.chance.choice(("auto", "auto", 1))}
        words["placement"] = self.chance.choice(("any", "cluster"))
        return {**words, "ssh_config": {"user": "ops", "hosts": hosts}}

    # What is there

    def there(self, desired: Desired) -> None:
        """Nodes that fleets have already, and tasks that run on them."""
        used: Counter[rules.Quota] = Counter()
        for name, fleet in desired.fleets.items():
            offers, home = self.sites[name], None
            most = fleet.nodes.max if fleet.nodes else len(offers)
            number = self.chance.randint(1, max(1, self.size // 8)) if self.often(0.5) else 0
            for i in range(min(number, self.size if most is None else most)):
                good = [
                    o for o in offers if home in (None, (o.backend, o.region)) and not self._sold(o, used)
                ]
                offer = offers[i] if fleet.ssh_config else self.chance.choice(good) if good else None
                if offer is None:
                    break
                used[_quota(offer)] += 1
                node = offer.host.name if offer.host else f"{name}-{i}"
                self.nodes.append({"name": node, "fleet": name, "offer": offer_words(offer)})
                if fleet.placement.value == "cluster":
                    home = (offer.backend, offer.region)
                self._occupy(node, rules.launched(fleet, offer).total, offer)

    @staticmethod
    def _sold(offer: Offer, used: Mapping[rules.Quota, int]) -> bool:
        return offer.limit is not None and used[_quota(offer)] >= offer.limit

    def _occupy(self, node: str, total: int, offer: Offer) -> None:
        """Tasks of one rank on some of its blocks."""
        idle = list(range(total))
        for _ in range(self.chance.choice((0, 1, 1, 2, 3))):
            count = self.chance.randint(1, max(1, total // 2))
            if count > len(idle):
                continue
            first = self.chance.choice((0, len(idle) - count))
            blocks = tuple(idle[first : first + count])
            del idle[first : first + count]
            task = f"old-{len(self.running)}"
            cpus, gpus = offer.shape.cpu // total * count, offer.shape.gpus // total * count
            asked: Words = {"gpu": gpus} if gpus else {"cpu": f"{cpus}.."}
            self.documents.append({"type": "task", "name": task, "commands": ["work"], "resources": asked})
            self.run(task, 0, node, blocks, total)

    # What is asked for

    def tasks(self) -> None:
        """Users have templates: of some there are many tasks, of most a few. In broad worlds they may not."""
        alike = self.chance.randint(6, 10 + 2 * math.isqrt(self.size))
        number = self.size if self.broad and self.often(0.2) else alike
        forms = [self._form() for _ in range(number)]
        weights = [1 / (1 + i) ** self.chance.uniform(0.3, 1.2) for i in range(number)]
        for i, (form, offer) in enumerate(self.chance.choices(forms, weights, k=self.size)):
            words = {"type": "task", "name": f"task-{i}", "commands": ["work"], **form}
            if (priority := self.chance.choice((0, 0, 0, 50, 50, 100))) != 0:
                words["priority"] = priority
            if self.often(0.08):
                self._mount(words, i, offer)
            self.documents.append(words)

    def _form(self) -> tuple[Words, Offer]:
        """A task that would fit on something that some fleet may have; now and then it asks for more."""
        chance = self.chance
        fleet = chance.choice([name for name, offers in self.sites.items() if offers])
        offer = chance.choice(self.sites[fleet])
        words: Words = {}
        if self.often(0.18):
            words["nodes"] = chance.randint(2, 4)
            words["placement"] = chance.choice(
                ("cluster", "cluster", "any") if self._clustered(fleet) else ("any",)
            )
            if words["placement"] == "cluster" and self.often(0.4):
                words["exclusive"] = False
            elif words["placement"] == "any" and offer.host is None and self.often(0.4):
                words |= {"spread": "zone", "fleets": [fleet]}
        elif self.often(0.03):
            words["exclusive"] = True
        whole = words.get("exclusive", words.get("placement") == "cluster")
        words["resources"] = self._ask(offer, whole=whole)
        limits: Words = {
            "spot_policy": "spot" if offer.spot else chance.choice(("on-demand", "auto")),
            "max_price": round((offer.price or 1) * chance.choice((1, 1.3, 2)), 3),
            "fleets": [fleet],
            "backends": [offer.backend],
            "regions": [offer.region],
        }
        shares = {"spot_policy": 0.15, "max_price": 0.1, "fleets": 0.1, "backends": 0.05, "regions": 0.05}
        for name, share in shares.items():
            if self.often(share) and (offer.host is None or name == "fleets"):
                words[name] = limits[name]
        return words, offer

    def _clustered(self, fleet: str) -> bool:
        return any(words.get("placement") == "cluster" for words in self.documents if words["name"] == fleet)

    def _ask(self, offer: Offer, *, whole: bool) -> Words:
        """A part of what is offered; those that take whole nodes ask for no more than so much."""
        chance, shape = self.chance, offer.shape
        out: Words = {}
        part = 1.0 if whole else chance.choice((0.1, 0.2, 0.3, 0.5, 0.7, 1.0))
        if shape.gpus:
            count = shape.gpus if whole else chance.choice([n for n in (1, 1, 1, 2, 4, 8) if n <= shape.gpus])
            part = count / shape.gpus
            out["gpu"] = self._gpu(offer, count)
        if not shape.gpus or self.often(0.5):
            cpu = max(1, math.floor(shape.cpu * part * chance.choice((0.25, 0.5, 0.5, 0.9, 1.0, 1.0, 1.4))))
            cpu = min(cpu, shape.cpu)
            out["cpu"] = f"{cpu}..{4 * cpu}" if self.often(0.1) else f"{cpu}.."
        if self.often(0.5):
            memory = shape.memory_mib / 1024 * part * chance.choice((0.2, 0.5, 0.8, 1.0, 1.3))
            out["memory"] = f"{max(1, min(math.floor(memory), shape.memory_mib // 1024))}GB.."
        return out

    def _gpu(self, offer: Offer, count: int) -> object:
        """One of the ways to ask for so many GPUs of this kind."""
        chance, shape = self.chance, offer.shape
        memory = (shape.gpu_memory_mib or 0) // 1024
        others = sorted({"T4", "L4", "A10"} - {str(shape.gpu_name)})
        forms = (count, count, f"{count}..", f"{shape.gpu_name}:{count}", f"{shape.gpu_name}:{count}..")
        rare = (f"{memory}GB..:{count}", f"{shape.gpu_name},{chance.choice(others)}:{count}")
        return chance.choice((*forms, *rare))

    def _mount(self, words: Words, number: int, home: Offer) -> None:
        """A volume for each rank, in a zone or anywhere in the region; one rank may choose of two."""
        ranks = int(words.get("nodes", 1))
        named = [o for name in words.get("fleets", self.sites) for o in self.sites[name] if o.host is None]
        if not named:
            return
        names = []
        for letter in "ab" if ranks == 1 and self.often(0.3) else "a":
            offer = home if self.often(0.7) and home.host is None else self.chance.choice(named)
            name = f"data-{number}{letter}"
            volume = {"type": "volume", "name": name, "backend": offer.backend, "region": offer.region}
            if offer.zone and self.often(0.7):
                volume["availability_zone"] = offer.zone
            self.documents.append({**volume, "size": "100GB", "count": ranks})
            names.append(f"{name}-${{{{ node_rank }}}}")
        words["volumes"] = [{"name": names if len(names) > 1 else names[0], "path": "/data"}]


def _quota(offer: Offer) -> rules.Quota:
    return (offer.backend, offer.region, offer.instance_type, offer.spot)
