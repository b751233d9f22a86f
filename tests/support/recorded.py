"""Any valid state, for tests of `state push` and `state mv`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from declarative.model.state import Address, Intent, Record, State, token
from declarative.model.status import NodeState, RankState, RankStatus, Readiness
from declarative.store.consistency import HeldBlocks
from tests.support.model import of_node, of_volume

LINEAGE = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
times = st.floats(min_value=0, max_value=1e10, allow_nan=False)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | times | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)


@dataclass
class Draft:
    """A state in the making."""

    records: dict[Address, Record] = field(default_factory=dict)
    held: dict[tuple[str, int], str] = field(default_factory=dict)
    ranks: dict[str, RankStatus] = field(default_factory=dict)

    def add(self, kind: str, name: str, inputs: dict[str, Any], *needs: Address, **more: Any) -> Address:
        """Record something; its address."""
        address = Address(kind, name)
        known: dict[str, Any] = {"outputs": {"id": f"id-{address}"}, "backend": "local", **more}
        self.records[address] = Record(address=address, inputs=inputs, needs=frozenset(needs), **known)
        return address

    def rank(self, task: str, rank: int, node: Address, volume: Address | None, status: RankStatus) -> None:
        """A rank with its block, and its volume; one that has ended holds nothing."""
        name = f"{task}-{rank}"
        inputs: dict[str, Any] = {"task": task, "rank": rank, "nodes": 9, "commands": ["true"]}
        inputs |= {"fleets": ["gpu"], "instances": [node.name]}
        needs = []
        if volume:
            inputs["volumes"] = {"/data": [volume.name]}
        if not status.state.ended:
            place = {"task": task, "rank": rank, "node": node.name, "blocks": [rank]}
            place["total_blocks"] = 4
            needs.append(self.add("reservation", name, place, node, backend=None, outputs={}))
            self.held[node.name, rank] = name
            if volume:
                told = {"task": task, "rank": name, "node": node.name, "volume": volume.name, "path": "/data"}
                told["variable"] = "DATA"
                needs.append(self.add("attachment", f"{name}.{volume.name}", told, volume, node, needs[0]))
        self.add("rank", name, inputs, *needs, outputs={"node": node.name})
        self.ranks[name] = status


@st.composite
def states(draw: st.DrawFn) -> tuple[State, HeldBlocks]:
    """A state that `check` finds nothing wrong with, and its blocks."""
    made = Draft()
    tags = st.dictionaries(texts, texts, max_size=2)
    nodes = [made.add("node", f"gpu-{i}", of_node(blocks=4, tags=draw(tags))) for i in range(2)]
    volumes = [
        made.add("volume", f"data-{i}", of_volume(zone=draw(st.sampled_from([None, "a"]))))
        for i in range(draw(st.integers(0, 3)))
    ]
    for rank in range(draw(st.integers(0, 3))):
        status = RankStatus(
            state=draw(st.sampled_from(RankState)),
            exit_code=draw(st.none() | st.integers(-9, 255)),
            cause=draw(st.none() | texts),
            started_at=draw(st.none() | times),
            mounted=tuple(draw(st.lists(texts, max_size=2))),
            confinement=draw(st.none() | texts),
        )
        volume = volumes[rank] if rank < len(volumes) else None
        made.rank("train", rank, nodes[draw(st.integers(0, 1))], volume, status)
    free = [n.name for n in nodes if n.name not in {node for node, _ in made.held}]
    attached = {r.inputs["volume"] for r in made.records.values() if r.address.kind == "attachment"}
    unattached = [v.name for v in volumes if v.name not in attached]
    generations = dict.fromkeys(made.records, 1) | {Address("volume", "old"): draw(st.integers(1, 9))}
    generations[Address("node", "gpu-7")] = 3
    intents = (
        Intent(
            id=draw(st.integers(1, 50)),
            op="create",
            address=Address("node", "gpu-7"),
            backend="local",
            generation=3,
            token=token(LINEAGE, Address("node", "gpu-7"), 3, None),
            inputs=of_node(blocks=draw(st.integers(1, 4))),
        ),
    )
    state = State(
        lineage=LINEAGE,
        serial=draw(st.integers(1, 99)),
        records=made.records,
        ranks=made.ranks,
        readiness={
            "gpu-0": Readiness(
                state=draw(st.sampled_from(NodeState)),
                reason=draw(st.none() | texts),
                can=draw(st.none() | st.frozensets(st.sampled_from(["hard", "podman"]))),
            )
        },
        idle_since={name: draw(times) for name in free},
        detached_since={name: draw(times) for name in unattached if draw(st.booleans())},
        generations=generations,
        intents=intents if draw(st.booleans()) else (),
    )
    return state, made.held
