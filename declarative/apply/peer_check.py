"""Whether the nodes of a gang reach rank 0's, before any of its ranks starts: they meet there."""

from __future__ import annotations

from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor

from declarative.apply.backends import Backends
from declarative.apply.launch import tells_others
from declarative.model.inputs import RankInputs
from declarative.model.state import Address, Record, State, rank_name
from declarative.provider import ProviderError

AT_ONCE = 32
HINT = (
    "write the address by which the other hosts reach it as the host's `internal_ip`, or the network that "
    "they share as `network: 10.0.0.0/8` of `ssh_config`; or let them through in the firewall"
)

Known = MutableMapping[tuple[str, str], str | None]
"""(node, address) → why the address cannot be reached from there; None if nothing is against it."""


class PeerError(Exception):
    """A node of a gang does not reach rank 0's."""

    def __init__(self, summary: str) -> None:
        super().__init__(summary)
        self.summary = summary
        self.hint = HINT


def check_peers(inputs: RankInputs, state: State, backends: Backends, known: Known) -> None:
    """`PeerError` if a node of the gang cannot reach rank 0's address, as far as anybody can tell.

    `inputs` are those of one of its ranks. What is `known` already is not asked again.
    """
    task, count = inputs.task, inputs.nodes
    if count == 1 or not tells_others(inputs):
        return
    gang = [_node(state, rank_name(task, rank)) for rank in range(count)]
    master = gang[0]
    address = str(master.outputs.get("address") or "") if master else ""
    others = {n.address: n for n in gang if n and master and n.address != master.address}
    if master is None or not address or not others:
        return

    def ask(node: Record) -> str | None:
        try:
            return backends.get(node.backend).reaches(node, address)
        except ProviderError:
            return None  # whoever starts a rank there hears of it

    new = [n for a, n in sorted(others.items()) if (a.name, address) not in known]
    if new:
        with ThreadPoolExecutor(min(AT_ONCE, len(new)), thread_name_prefix="reach") as pool:
            for node, why in zip(new, pool.map(ask, new), strict=True):
                known[node.address.name, address] = why
    for node in others.values():
        why = known[node.address.name, address]
        if why:
            own = node.outputs.get("address")
            raise PeerError(
                f"{node.address} ({own}) cannot reach {master.address} at {address}, where its ranks would "
                f"look for rank 0: {why}"
            )


def _node(state: State, rank: str) -> Record | None:
    place = state.get("reservation", rank)
    found = next((a for a in sorted(place.needs) if a.kind == "node"), None) if place else None
    return state.records.get(found) if isinstance(found, Address) else None
