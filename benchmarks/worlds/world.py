"""What a world is: documents as a user writes them, the nodes that are there, and the ranks that run on them.

All that is offered stands in a backend's `catalog` or a fleet's `ssh_config`, so `fleetform plan --offline`
plans the same, except for the nodes that are there. `plain` is a world as JSON: another checkout builds the
same from it.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from declarative.language.loader import load
from declarative.model.inputs import data_of
from declarative.model.resource import SSH, Desired, Offer, catalog_offers, node_inputs
from declarative.model.spec.values import Backfill
from declarative.model.state import Address, Record, State
from declarative.model.status import NodeState, RankState, RankStatus, Readiness
from declarative.planner.hosts import declared_shape, hosts_of, offer_of_host
from declarative.planner.inventory import Inventory

Words = dict[str, Any]
"""What JSON holds."""

NOW = 1_000_000.0
"""When all worlds are planned, seconds since the epoch."""

OF_FILE = 10_000
"""So many documents stand in one file: the loader takes no larger ones."""


@dataclass(frozen=True, kw_only=True)
class World:
    """What one plan is made of."""

    family: str
    seed: int
    size: int
    documents: tuple[Mapping[str, Any], ...]
    nodes: tuple[Words, ...]
    """Each node that is there: its name, its fleet, and the offer that it was made of."""
    running: tuple[Words, ...]
    """Each rank that runs: task, rank, node, blocks, and how many blocks the node has."""
    desired: Desired
    state: State
    inventory: Inventory

    @property
    def name(self) -> str:
        """The arguments that repeat it."""
        return f"--families {self.family} --sizes {self.size} --worlds 1 --seed {self.seed}"

    @property
    def claims(self) -> bool:
        """Whether waiting tasks keep what they wait for."""
        return any(fleet.backfill is not Backfill.ANY for fleet in self.desired.fleets.values())

    @property
    def plain(self) -> Words:
        """The world as JSON, from which `build` makes it again."""
        return {
            "family": self.family,
            "seed": self.seed,
            "size": self.size,
            "documents": list(self.documents),
            "nodes": list(self.nodes),
            "running": list(self.running),
        }


def build(plain: Words) -> World:
    """The world of its plain form."""
    desired = read(plain["documents"])
    offers = offers_of(desired)
    return World(
        family=plain["family"],
        seed=plain["seed"],
        size=plain["size"],
        documents=tuple(plain["documents"]),
        nodes=tuple(plain["nodes"]),
        running=tuple(plain["running"]),
        desired=desired,
        state=_state_of(plain, desired, offers),
        inventory=Inventory(
            readiness={node["name"]: Readiness(state=NodeState.READY) for node in plain["nodes"]},
            offers=offers,
        ),
    )


def without_claims(plain: Words) -> Words:
    """A world as JSON without `backfill`, which older checkouts do not know."""
    documents = [
        {key: word for key, word in words.items() if key != "backfill"} for words in plain["documents"]
    ]
    return {**plain, "documents": documents}


def shuffled(world: World, chance: random.Random) -> Words:
    """The same world as JSON with its documents, nodes and ranks in another order."""
    plain = world.plain
    return {
        **plain,
        **{key: chance.sample(plain[key], len(plain[key])) for key in ("documents", "nodes", "running")},
    }


def read(documents: Sequence[Mapping[str, Any]]) -> Desired:
    """What the loader makes of the documents; `InvalidError` if a user could not have written them."""
    with tempfile.TemporaryDirectory() as folder:
        for first in range(0, len(documents), OF_FILE):
            text = "\n---\n".join(map(json.dumps, documents[first : first + OF_FILE]))
            Path(folder, f"world-{first:06}.yaml").write_text(text, encoding="utf-8")
        return load(Path(folder), published=False).desired


def offers_of(desired: Desired) -> dict[str, tuple[Offer, ...]]:
    """What can be had: of each backend its catalog, of each host itself."""
    out = {name: catalog_offers(backend) for name, backend in desired.backends.items()}
    shapes = ((host, declared_shape(host)) for host in hosts_of(desired, State()))
    return {**out, SSH: tuple(offer_of_host(host, shape) for host, shape in shapes if shape)}


def offer_words(offer: Offer) -> Words:
    """What identifies an offer."""
    keys = ("backend", "region", "zone", "instance_type", "spot")
    return {**{key: getattr(offer, key) for key in keys}, "host": offer.host.name if offer.host else None}


def _state_of(plain: Words, desired: Desired, offers: Mapping[str, Sequence[Offer]]) -> State:
    """The state in which those nodes are there and those ranks run."""
    by_words = {json.dumps(offer_words(o)): o for group in offers.values() for o in group}
    records: list[Record] = []
    backends = {}
    for node in plain["nodes"]:
        offer = by_words[json.dumps(node["offer"])]
        backends[node["name"]] = offer.backend
        inputs = node_inputs(desired.fleets[node["fleet"]], offer, desired.backends.get(offer.backend))
        address = Address("node", node["name"])
        records.append(Record(address=address, backend=offer.backend, inputs=data_of(inputs)))
    ranks = {}
    for run in plain["running"]:
        name = f"{run['task']}-{run['rank']}"
        node, place = Address("node", run["node"]), Address("reservation", name)
        held = {key: run[key] for key in ("task", "rank", "node", "blocks", "total_blocks")}
        backend = backends[run["node"]]
        asked = data_of(desired.tasks[run["task"]].rank_inputs(run["rank"]))
        records.append(Record(address=place, backend=backend, inputs=held, needs=frozenset({node})))
        rank = Address("rank", name)
        records.append(Record(address=rank, backend=backend, inputs=asked, needs=frozenset({place})))
        ranks[name] = RankStatus(state=RankState.RUNNING)
    occupied = {run["node"] for run in plain["running"]}
    return State(
        lineage="worlds",
        serial=1,
        records={record.address: record for record in records},
        ranks=ranks,
        idle_since={node["name"]: NOW for node in plain["nodes"] if node["name"] not in occupied},
    )


@dataclass
class Draft:
    """A world that is being drawn; each family has one of its own."""

    chance: random.Random
    seed: int
    size: int
    family: str = ""
    documents: list[Words] = field(default_factory=list)
    nodes: list[Words] = field(default_factory=list)
    running: list[Words] = field(default_factory=list)

    @property
    def claims(self) -> bool:
        """Whether waiting tasks keep what they wait for: in every second world."""
        return self.seed % 2 == 0

    def often(self, share: float) -> bool:
        """True in such a share of all cases."""
        return self.chance.random() < share

    def some(self, of: Sequence[str]) -> list[str]:
        """One or more of them, in their order."""
        number = self.chance.randint(1, len(of))
        return sorted(self.chance.sample(of, number))

    def add(self, kind: str, name: str, **words: Any) -> Words:
        """One more document."""
        document = {"type": kind, "name": name, **words}
        self.documents.append(document)
        return document

    def task(self, name: str, **words: Any) -> Words:
        """One more task."""
        return self.add("task", name, commands=["work"], **words)

    def run(self, task: str, rank: int, node: str, blocks: Sequence[int], total: int) -> None:
        """A rank runs on a node that is there."""
        words = {"task": task, "rank": rank, "node": node, "blocks": list(blocks), "total_blocks": total}
        self.running.append(words)

    def finished(self) -> World:
        """The world as it was drawn."""
        if not self.claims:
            for words in self.documents:
                if words["type"] == "fleet":
                    words["backfill"] = "any"
        return build(
            {
                "family": self.family,
                "seed": self.seed,
                "size": self.size,
                "documents": self.documents,
                "nodes": self.nodes,
                "running": self.running,
            }
        )
