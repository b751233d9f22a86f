"""Comparing records with what is there: gone, changed, orphaned.

A thing is not gone because one listing lacks it. It is looked up once more by its token and, if the backend
can do that, by its id: somebody may have removed its tags, and not the thing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse
from typing import Any

from declarative.apply.backend_client import BackendClient, as_recorded, record_token
from declarative.apply.parallel import side_by_side
from declarative.model.inputs import NodeInputs, VolumeInputs
from declarative.model.record import struct
from declarative.model.state import ANOTHERS, IMAGE, TAGS, Address, Record, State, made_as
from declarative.planner.inventory import Drift
from declarative.provider import Ended, Provider, Thing
from declarative.retry import PATIENCE, call


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


@dataclass(slots=True)
class Compared:
    """The result of the comparison for one backend or several."""

    gone: set[Address] = field(default_factory=set)
    unsure: set[Address] = field(default_factory=set)
    """Gone things for which it is not sure that the right backend was asked."""
    ended: dict[Address, str] = field(default_factory=dict)
    """Gone things that the backend itself has ended, with its reason."""
    altered: dict[Address, Mapping[str, Any]] = field(default_factory=dict)
    """Things that others changed, with their values now: see `Thing.actual`."""
    drift: list[Drift] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)

    def add(self, more: Compared) -> None:
        """Add the result for other backends."""
        self.gone |= more.gone
        self.unsure |= more.unsure
        self.ended |= more.ended
        self.altered |= more.altered
        self.drift += more.drift
        self.orphans += more.orphans

    def note_gone(self, record: Record, detail: str = "not there any more") -> None:
        self.gone.add(record.address)
        self.drift.append(Drift(address=str(record.address), change="gone", detail=detail))

    def note_there(self, record: Record, thing: Thing) -> None:
        """Note a thing that is there, as it was recorded or not."""
        if thing.lost:
            self.note_gone(record, thing.lost)
            return
        actual = dict(thing.actual)
        was, now = record.image, thing.outputs.get(IMAGE)
        if record.address.kind == "node" and was and now and was != now:
            actual[IMAGE] = now
        words = [_difference(record, key, actual[key]) for key in sorted(actual)]
        if actual:
            self.altered[record.address] = actual
        inputs = as_recorded(thing, record) if thing.known else dict(record.inputs)
        if inputs != dict(record.inputs):
            off = [k for k in sorted({*inputs, *record.inputs}) if inputs.get(k) != record.inputs.get(k)]
            words.append(f"differs in {', '.join(off)}")
        if words:
            self.drift.append(Drift(address=str(record.address), change="changed", detail="; ".join(words)))


def compare(
    state: State,
    records: Iterable[Record],
    things: Iterable[Thing],
    at: Callable[[Record], Provider],
    compared: Compared,
    *,
    recall: BackendClient | None = None,
) -> None:
    """Compare `records` of one backend with all that it lists.

    By address and token: a cloud may take a name twice, and another backend's thing of that name is another.
    `at` says whom to ask for a thing; `recall` is asked for ids, if it can be.
    """
    there = {(t.address, t.token): t for t in things}
    missing: list[Record] = []
    for record in records:
        thing = there.get((made_as(record), record_token(state, record)))
        if thing is None:
            missing.append(record)
        else:
            compared.note_there(record, thing)
    if missing:
        _look_for(state, missing, at, compared, recall=recall, nothing_listed=not there)


def orphans(name: str, things: Iterable[Thing], known: Collection[tuple[Address, str]]) -> list[Orphan]:
    """The listed things whose address and token are not recorded."""
    lost = (t for t in things if (t.address, t.token) not in known)
    return [Orphan(backend=name, thing=t) for t in sorted(lost, key=lambda t: (t.address, t.token))]


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


def _look_for(
    state: State,
    missing: Sequence[Record],
    at: Callable[[Record], Provider],
    compared: Compared,
    *,
    recall: BackendClient | None,
    nothing_listed: bool,
) -> None:
    """Look once more for records that the listing lacks: by their tokens, and by their ids if the backend can
    do that. If nothing was listed, the listing does not show whose place was asked.
    """

    def find(record: Record) -> Thing | None:
        provider, its_token = at(record), record_token(state, record)
        return call(lambda: provider.find(made_as(record), its_token), policy=PATIENCE)

    asked = sorted(missing, key=_is_attachment)
    recalled = call(lambda: recall.recall(missing), policy=PATIENCE) if recall else None
    if recalled is None:  # without ids, a missing attachment only means that its rank has ended
        asked = list(filterfalse(_is_attachment, asked))
    detached: list[Record] = []
    for record, by_token in zip(asked, side_by_side(asked, find), strict=True):
        by_id = (recalled or {}).get(record.address)
        thing = by_id if by_token is None and isinstance(by_id, Thing) else by_token
        if thing is not None:
            compared.note_there(record, thing)
        elif isinstance(by_id, Ended):
            compared.note_gone(record, by_id.reason)
            compared.ended[record.address] = by_id.reason
        elif _is_attachment(record):
            detached.append(record)
        else:
            compared.note_gone(record)
            if nothing_listed and recalled is not None and record.address not in recalled:
                compared.unsure.add(record.address)
    for record in detached:  # somebody took the volume off its node
        rank = record.attachment.rank
        if record.needs & compared.gone or state.has_ended(rank):
            continue
        what = f"detached: volume/{record.attachment.volume} is not on node/{record.attachment.node}"
        if state.get("rank", rank) is None:
            compared.note_gone(record, what)
            continue
        detail = f"{what}, and rank/{rank} runs on without it"  # and keeps its claim
        compared.drift.append(Drift(address=str(record.address), change="changed", detail=detail))


def _is_attachment(record: Record) -> bool:
    return record.address.kind == "attachment"


def _difference(record: Record, key: str, now: object) -> str:
    """One difference in words."""
    if key == ANOTHERS:
        return "its tags say that it is another's: it is left alone"
    was: Any = record.image if key == IMAGE else getattr(record.typed, key, None)
    if key == TAGS:
        tags, old = dict(now) if isinstance(now, Mapping) else {}, was or {}
        changed = [k for k in sorted(old) if tags.get(k, old[k]) != old[k]]
        words = [f"its tag `{k}` is `{tags[k]}`, and was `{old[k]}`" for k in changed]
        if removed := [f"`{k}`" for k in sorted(old) if k not in tags]:
            nouns, were = ("tags", "were") if removed[1:] else ("tag", "was")
            words.append(f"its {nouns} {', '.join(removed)} {were} removed")
        # If no declared tag differs, tags of fleetform itself do.
        return "; ".join(words) or "the tags that fleetform wrote on it were changed or removed"
    return f"`{key}` is {'not set' if now is None else now}, and was {'not set' if was is None else was}"
