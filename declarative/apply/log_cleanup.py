"""Old attempts: their logs and folders go once a rank has two newer ones, or is forgotten.

What a rank runs now and the attempt before it stay, for that is where people look why it was started anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from declarative.apply.backends import Backends
from declarative.model.state import Address, State, made_as
from declarative.provider import ProviderError

KEPT = 2
"""So many attempts of a rank are kept: the present one counts."""
AT_ONCE = 32


def oldest_kept(state: State) -> dict[str, int]:
    """Rank, by the name that its attempts have → the first attempt to keep, where there are older ones."""
    ranks = state.of("rank")
    out = {made_as(r).name: r.generation - KEPT + 1 for r in ranks if r.generation > KEPT}
    known = {made_as(r).name for r in ranks} | {i.address.name for i in state.intents}
    for address, generation in state.generations.items():
        if address.kind == "rank" and address not in state.records and address.name not in known:
            out[address.name] = generation + 1
    return out


def tidy(state: State, backends: Backends, nodes: Iterable[str]) -> None:
    """Remove what nobody asks for any more on these nodes, as far as it can be done: it is tried again."""
    oldest = oldest_kept(state)
    found = [r for name in sorted(set(nodes)) if (r := state.records.get(Address("node", name)))]
    if not oldest or not found:
        return

    def one(index: int) -> None:
        node = found[index]
        try:
            backends.get(node.backend).tidy(node, oldest)
        except ProviderError:
            return

    with ThreadPoolExecutor(min(AT_ONCE, len(found)), thread_name_prefix="tidying") as pool:
        list(pool.map(one, range(len(found))))
