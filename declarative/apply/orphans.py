"""Orphans, things that carry this state's owner and are not recorded: shown, recorded, or deleted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from declarative.apply.backends import Backends
from declarative.apply.graph_walk import INTERRUPTED, ActionResult, Listener, Outcome
from declarative.apply.launch import GRACE_SECONDS
from declarative.model.inputs import AttachmentInputs, NodeInputs, RankInputs, VolumeInputs, zone_asked
from declarative.model.record import struct
from declarative.model.state import MADE_AS, Address, Intent, Record, State, started_rank, token
from declarative.planner.inventory import Drift
from declarative.planner.plan import Op
from declarative.provider import ProviderError, Thing
from declarative.retry import call


@struct(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A thing with this state's owner mark that is neither recorded nor about to be."""

    backend: str
    thing: Thing
    node: str = ""
    """The node that a rank runs on."""
    blocks: tuple[int, ...] = ()
    """The blocks that a rank holds there."""

    @property
    def id(self) -> str:
        """Its id at the backend."""
        return str(self.thing.outputs.get("id") or "")


ORDER = ("rank", "attachment", "node", "volume")
"""A volume is free once what it is on is gone, and a node once nothing runs on it."""
MOST_GENERATIONS = 100
"""Generations of an address that are tried for a token, beyond those that the state knows of."""


def each_once(orphans: Iterable[Orphan]) -> list[Orphan]:
    """Each orphan once: if several backends list it, the one of the backend that made it."""
    out: dict[object, Orphan] = {}
    for orphan in orphans:
        thing = orphan.thing
        key = (thing.address, thing.token, orphan.id)
        inputs = thing.typed
        maker = inputs.backend if isinstance(inputs, NodeInputs | VolumeInputs) else None
        if key not in out or maker == orphan.backend:
            out[key] = orphan
    return list(out.values())


def orphan_drift(orphans: Sequence[Orphan], state: State) -> list[Drift]:
    """How orphans are shown: with their ids if the address is ambiguous."""
    times = Counter([*(o.thing.address for o in orphans), *state.records])
    out: list[Drift] = []
    for orphan in orphans:
        address = orphan.thing.address
        which = f" ({orphan.id})" if times[address] > 1 else ""
        detail = f"made by this state, but not recorded{which}"
        if address.kind == "rank":
            detail = f"runs on node/{orphan.node}, but is not recorded ({orphan.id})"
        out.append(Drift(address=str(address), change="orphan", detail=detail))
    return out


def as_record(orphan: Orphan, state: State) -> Record:
    """The record of an orphan, with the generation of its token, or with the token itself."""
    thing, address = orphan.thing, orphan.thing.address
    used = state.generations.get(address, 0)
    outputs: Mapping[str, Any] = thing.outputs
    for generation in range(1, used + MOST_GENERATIONS):
        if token(state.lineage or "", address, generation, zone_asked(thing.inputs)) == thing.token:
            break
    else:  # it was renamed, or is from before the state was
        generation = used + 1
        outputs = {**outputs, MADE_AS: {"address": str(address), "token": thing.token, "inputs": {}}}
    return Record(
        address=address, backend=orphan.backend, inputs=thing.inputs, outputs=outputs, generation=generation
    )


def as_rank(orphan: Orphan, orphans: Sequence[Orphan], intent: Intent, state: State) -> list[Record]:
    """The missing records of a rank that runs, and of which `intent` is open. What it needs comes first."""
    rank, inputs = orphan.thing.address, intent.typed
    node = state.records[Address("node", orphan.node)]
    assert isinstance(inputs, RankInputs)
    place = Address("reservation", rank.name)
    reservation = Record(
        address=place,
        backend=None,
        inputs={
            "task": inputs.task,
            "rank": inputs.rank,
            "node": orphan.node,
            "blocks": list(orphan.blocks),
            "total_blocks": node.node.blocks,
        },
        needs=frozenset({node.address}),
    )
    attachments = [
        replace(as_record(o, state), needs=frozenset({volume, node.address, place}))
        for o in orphans
        if o.thing.address in intent.needs and o.thing.address.kind == "attachment"
        if isinstance(attached := o.thing.typed, AttachmentInputs)
        if (volume := Address("volume", attached.volume)) in state.records
    ]
    records = (reservation, *attachments, started_rank(intent, node))
    return [r for r in records if r.address not in state.records]


def is_protected(orphan: Orphan) -> bool:
    """Whether it was made to be kept. A disk counts as kept if that is not known."""
    kind, inputs = orphan.thing.address.kind, orphan.thing.typed
    if not orphan.thing.known:
        return kind == "volume"
    if inputs is None:  # somebody has changed its tags
        return kind in ("node", "volume")
    return isinstance(inputs, NodeInputs | VolumeInputs) and inputs.prevent_destroy


def delete_orphans(
    orphans: Sequence[Orphan], state: State, backends: Backends, listener: Listener, stopping: threading.Event
) -> tuple[ActionResult, ...]:
    """Delete orphans one by one, each by its id; running ranks are stopped. The result of each.

    Nothing is written down before: after a crash the rest are orphans as before.
    """
    results: list[ActionResult] = []
    for orphan in sorted(orphans, key=lambda o: (ORDER.index(o.thing.address.kind), o.thing.address, o.id)):
        outcome: Outcome = Outcome.DONE
        error: ProviderError | str | None = None
        if stopping.is_set():
            outcome, error = Outcome.SKIPPED, INTERRUPTED
        else:
            listener.begin(f"delete:{orphan.thing.address}")
            try:
                call(partial(_delete, orphan, state, backends), stopping=stopping.is_set)
            except ProviderError as fault:
                outcome, error = Outcome.FAILED, fault
        results.append(ActionResult.of(Op.DELETE, orphan.thing.address, outcome, error))
        listener.end(results[-1])
    return tuple(results)


def _delete(orphan: Orphan, state: State, backends: Backends) -> None:
    thing, provider = orphan.thing, backends.get(orphan.backend)
    if thing.address.kind == "rank":
        # Its task declared how long it may take to end; that is not known here.
        provider.stop(state.records[Address("node", orphan.node)], orphan.id, GRACE_SECONDS)
        return
    made = Record(address=thing.address, backend=orphan.backend, inputs=thing.inputs, outputs=thing.outputs)
    provider.delete(made)


def matching(orphans: Sequence[Orphan], address: Address, made: str | None) -> list[Orphan]:
    """The orphans of an address, or the one with an id."""
    return [o for o in orphans if o.thing.address == address and made in (None, o.id)]
