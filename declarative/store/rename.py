"""Renames of records, only in the state, as if they had been declared so from the start.

Pure. The real things keep the names, tags and tokens that they were made with. A record keeps those in
`state.MADE_AS`, and its backend is asked by them. A running rank goes on under its old attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, fields, replace
from typing import Any

from declarative.model.codec import to_data
from declarative.model.diagnostic import Diagnostic, Span
from declarative.model.inputs import (
    AttachmentInputs,
    Inputs,
    NodeInputs,
    RankInputs,
    VolumeInputs,
    data_of,
    differing,
    zone_asked,
)
from declarative.model.record import struct
from declarative.model.schema import BadValueError
from declarative.model.spec.project import Moves
from declarative.model.spec.values import check_name
from declarative.model.state import MADE_AS, Address, NamesWhenMade, Record, Renamed, State, token
from declarative.model.text import and_more, suggest
from declarative.store.consistency import HeldBlocks
from declarative.store.errors import StateError

PARTS = ("rank", "reservation", "attachment")
GROUPS = {"volume": ("volume",), "node": (), "fleet": ("node",), "task": PARTS}
"""The kinds of names that can be renamed, and the kinds of records that each may mean."""
KNOWN_TO_BACKENDS = ("node", "attachment")
"""Kinds whose backend knows names of other things: `MADE_AS` keeps these."""


@struct(frozen=True, slots=True)
class RenameMap:
    """Old → new, of each kind of name that is written anywhere."""

    volume: Mapping[str, str] = field(default_factory=dict)
    node: Mapping[str, str] = field(default_factory=dict)
    fleet: Mapping[str, str] = field(default_factory=dict)
    task: Mapping[str, str] = field(default_factory=dict)

    def rank(self, name: str) -> str:
        """The new name of a rank, and of its reservation."""
        task, _, number = name.rpartition("-")
        return f"{self.task[task]}-{number}" if task in self.task and number.isdecimal() else name

    def address(self, old: Address) -> Address:
        """The new address for a present or earlier one."""
        kind, name = old
        if kind == "volume":
            return Address(kind, self.volume.get(name, name))
        if kind == "node":
            return Address(kind, self.node.get(name, name))
        if kind in ("rank", "reservation"):
            return Address(kind, self.rank(name))
        rank, dot, volume = name.partition(".")
        return Address(kind, f"{self.rank(rank)}{dot}{self.volume.get(volume, volume)}")

    def inputs(self, record: Record) -> dict[str, Any]:
        """The inputs of a record that get new names, with these."""
        inputs = record.typed
        renamed = self._renamed(record.address.name, inputs)
        changed = differing(inputs, renamed)
        return {key: value for key, value in data_of(renamed).items() if key in changed}

    def _renamed(self, name: str, inputs: Inputs) -> Inputs:
        if isinstance(inputs, VolumeInputs):
            return inputs
        if isinstance(inputs, NodeInputs):
            fleet = self.fleet.get(inputs.fleet, inputs.fleet)
            if name in self.node:  # a node's name tells its fleet
                fleet = self.node[name].rpartition("-")[0]
            return replace(inputs, fleet=fleet)
        inputs = replace(inputs, task=self.task.get(inputs.task, inputs.task))
        if isinstance(inputs, RankInputs):
            return replace(
                inputs,
                fleets=tuple(self.fleet.get(f, f) for f in inputs.fleets),
                instances=tuple(self.node.get(n, n) if isinstance(n, str) else n for n in inputs.instances),
                volumes={
                    path: tuple(self.volume.get(v, v) for v in volumes)
                    for path, volumes in inputs.volumes.items()
                },
            )
        inputs = replace(inputs, node=self.node.get(inputs.node, inputs.node))
        if isinstance(inputs, AttachmentInputs):
            volume = self.volume.get(inputs.volume, inputs.volume)
            return replace(inputs, rank=self.rank(inputs.rank), volume=volume)
        return inputs


# ------------------------------------------------------------------------------------------ what is meant


def parse(text: str) -> Address:
    """An address that was typed."""
    try:
        return Address.parse(text)
    except ValueError:
        raise StateError(
            "usage", f"`{text}` is not an address", "write `volume/data-0`, `task/train`"
        ) from None


def members(state: State, address: Address) -> tuple[Address, ...]:
    """The records of an address: that record, or all of a volume's count, of a fleet, or of a task.

    `StateError` unknown-address if there are none.
    """
    if address in state.records:
        return (address,)
    kinds = GROUPS.get(address.kind, ())
    addresses = tuple(r.address for kind in kinds for r in state.of(kind) if _group_of(r) == address)
    if addresses:
        return addresses
    near = suggest(str(address), [str(a) for a in state.records])
    raise StateError(
        "unknown-address", f"`{address}` is not recorded", near or "`fleetform state list` shows what is"
    )


def users(state: State, addresses: Iterable[Address]) -> set[Address]:
    """Other records that need them, directly or not."""
    needed = set(addresses)
    reached, newer = set(needed), set(needed)
    while newer:
        newer = {a for a, record in state.records.items() if record.needs & newer} - reached
        reached |= newer
    return reached - needed


def rename_map(
    state: State, source: Address, target: Address, addresses: tuple[Address, ...] | None = None
) -> RenameMap:
    """Which names become which; `StateError` where they cannot. `addresses`: the source's `members`."""
    _check_kinds(source, target)
    kind = source.kind
    addresses = members(state, source) if addresses is None else addresses
    exact = addresses == (source,)
    _check_name(target, numbered=kind == "node", maybe_numbered=kind == "volume" and exact)
    if kind == "task":
        return RenameMap(task={source.name: target.name})
    old, new = source.name, target.name
    names = {a.name: new if exact else f"{new}{a.name.removeprefix(old)}" for a in addresses}
    if kind == "volume":
        return RenameMap(volume=names)
    return RenameMap(node=names, fleet={} if exact else {old: new})


def _check_kinds(source: Address, target: Address) -> None:
    kind = source.kind
    if kind in PARTS:
        task = source.name.partition(".")[0].rpartition("-")[0]
        raise StateError(
            "usage",
            f"{source} cannot be renamed alone: its name is made of its task's",
            f"`fleetform state mv task/{task} task/NAME`",
        )
    if kind not in GROUPS:
        raise StateError("usage", f"no kind `{kind}`", f"known: {', '.join(f'{k}/NAME' for k in GROUPS)}")
    if target.kind != kind:
        raise StateError("usage", f"{source} cannot become a {target.kind}", f"write `{kind}/NAME`")
    if source == target:
        raise StateError("usage", f"{source} has that name already", "name another one")


def _check_name(target: Address, *, numbered: bool, maybe_numbered: bool) -> None:
    """Refuse names that cannot be declared: the next plan would delete the things."""
    base, dash, number = target.name.rpartition("-")
    is_numbered = bool(dash) and number.isdecimal() and str(int(number)) == number
    name = base if numbered or (maybe_numbered and is_numbered) else target.name
    try:
        check_name(name)
    except BadValueError as error:
        raise StateError("bad-name", f"{target}: {error.summary}", error.hint) from None
    if numbered and not is_numbered:
        raise StateError(
            "bad-name", f"{target} has no number: a node is its fleet's", f"write `node/{target.name}-0`"
        )


# ------------------------------------------------------------------------------------------ as declared


@struct(frozen=True, slots=True, kw_only=True)
class Declared:
    """The renames that `moved` makes in these records."""

    state: State
    """Under the new names; of the same serial."""
    names: RenameMap = RenameMap()
    moved: tuple[Renamed, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


def as_declared(state: State, moves: Moves, places: Mapping[str, Span]) -> Declared:
    """The renames of a project that are not done yet. What is not recorded under its old name was renamed
    before, or is new: nothing is done about it.

    `places` has where each entry stands, by `moved.0` and so on.
    """
    index, moved, ends = _Index(state), [], moves.ends()
    every: dict[str, dict[str, str]] = {part.name: {} for part in fields(RenameMap)}
    for number, move in enumerate(moves):
        source, target = Address.parse(move.source), Address.parse(str(ends[move.source]))
        base, _, suffix = target.name.rpartition("-")
        if source not in state.records and base == source.name and suffix.isdecimal():
            continue  # `data` became `data-0`: that is not of what is to be renamed
        if not (sources := index.members(source)):
            continue
        try:
            names = rename_map(state, source, target, sources)
            changes = index.changes(names)
            _check_free(state, changes)  # each alone tells where it cannot be
            _check_settled(state, names, changes)
        except StateError as error:
            return _refused(state, error, move.target, places.get(f"moved.{number}"))
        for part, renames in every.items():
            renames.update(getattr(names, part))
        addresses = tuple((str(a), str(new)) for a, new in sorted(changes.items()))
        moved.append(Renamed(source=move.source, target=str(target), addresses=addresses))
    if not moved:
        return Declared(state=state)
    names = RenameMap(**every)
    try:
        made, _, _ = renamed(state, {}, names)
    except StateError as error:
        return _refused(state, error, moved[-1].target, None)
    return Declared(state=replace(made, serial=state.serial), names=names, moved=tuple(moved))


class _Index:
    """The records by the names that they are known by, so that each of many renames looks only at its own."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._groups: dict[Address, list[Address]] = {}
        """A name of `GROUPS` → its records, as from `members`."""
        self._users: dict[tuple[str, str], list[Address]] = {}
        """Part of `RenameMap` and a name → the records whose addresses hold it."""
        for kinds in GROUPS.values():
            for record in (r for kind in kinds for r in state.of(kind)):
                if (group := _group_of(record)) is not None:
                    self._groups.setdefault(group, []).append(record.address)
        for kind, name in state.records:
            rank, _, volume = name.partition(".")
            if kind in ("volume", "node"):
                self._users.setdefault((kind, name), []).append(Address(kind, name))
                continue
            self._users.setdefault(("task", rank.rpartition("-")[0]), []).append(Address(kind, name))
            if volume:
                self._users.setdefault(("volume", volume), []).append(Address(kind, name))

    def members(self, address: Address) -> tuple[Address, ...]:
        """Like the function `members`; empty for an unknown address."""
        if address in self._state.records:
            return (address,)
        return tuple(self._groups.get(address, ()))

    def changes(self, names: RenameMap) -> dict[Address, Address]:
        """The addresses that these names change, each with its new one."""
        parts = ((part.name, old) for part in fields(names) for old in getattr(names, part.name))
        users = {address for key in parts for address in self._users.get(key, ())}
        return {a: new for a in users if (new := names.address(a)) != a}


def _group_of(record: Record) -> Address | None:
    """The fleet, the task or the counted volume that a record belongs to, if it belongs to one."""
    if record.address.kind == "node":
        return Address("fleet", record.node.fleet)
    if record.address.kind in PARTS:
        return Address("task", str(record.task))
    base, _, number = record.address.name.rpartition("-")
    return Address("volume", base) if number.isdecimal() else None


def _refused(state: State, error: StateError, address: str, place: Span | None) -> Declared:
    hint = error.hint
    if error.code == "exists":
        hint = "remove the entry, or first what is recorded under the new name: `fleetform state list`"
    wrong = Diagnostic(code=error.code, summary=error.summary, hint=hint, address=address, span=place)
    return Declared(state=state, diagnostics=(wrong,))


# ------------------------------------------------------------------------------------------ the rename


def renamed(
    state: State, held: HeldBlocks, names: RenameMap
) -> tuple[State, HeldBlocks, dict[Address, Address]]:
    """The state under the new names, the blocks, and which addresses became which."""
    moves = {a: new for a in state.records if (new := names.address(a)) != a}
    _check_free(state, moves)
    _check_settled(state, names, moves)
    records = [_renamed(state.lineage, record, names) for record in state.records.values()]
    used = dict(state.generations)  # under the old names as well as under the new ones
    for address, number in state.generations.items():
        new_address = names.address(address)
        used[new_address] = max(number, used.get(new_address, 0))
    made = replace(
        state,
        serial=state.serial + 1,
        records={record.address: record for record in records},
        ranks={names.rank(name): status for name, status in state.ranks.items()},
        readiness={names.node.get(name, name): node for name, node in state.readiness.items()},
        idle_since={names.node.get(name, name): since for name, since in state.idle_since.items()},
        detached_since={names.volume.get(name, name): at for name, at in state.detached_since.items()},
        generations=used,
    )
    blocks = {(names.node.get(node, node), block): names.rank(who) for (node, block), who in held.items()}
    return made, blocks, moves


def _check_free(state: State, moves: Mapping[Address, Address]) -> None:
    news = Counter(moves.values())
    taken = sorted(n for n, count in news.items() if count > 1 or (n in state.records and n not in moves))
    if taken:
        shown = and_more(taken, 5)
        verb = "is" if len(taken) == 1 else "are"
        raise StateError(
            "exists", f"{shown} {verb} recorded already", "choose another name, or move that one away first"
        )


def _check_settled(state: State, names: RenameMap, moves: Mapping[Address, Address]) -> None:
    """Refuse a rename while an intent is open: first its result has to be read back, by the old name."""
    targets = set(moves.values())
    for intent in state.intents:
        about = {intent.address, *intent.needs}
        if any(names.address(a) != a for a in about) or intent.address in targets:
            raise StateError(
                "open-intent",
                f"it is not known what came of {intent.op}:{intent.address}",
                "`fleetform apply` reads it back from its backend first",
            )


def _renamed(lineage: str | None, record: Record, names: RenameMap) -> Record:
    inputs, outputs = {**record.inputs, **names.inputs(record)}, dict(record.outputs)
    if record.address.kind == "rank" and (node := record.node_name):
        outputs["node"] = names.node.get(node, node)
    outputs.pop(MADE_AS, None)
    renamed = replace(
        record,
        address=names.address(record.address),
        inputs=inputs,
        outputs=outputs,
        needs=frozenset(map(names.address, record.needs)),
    )
    if record.address.kind != "reservation" and (made := _made_as(lineage or "", record, renamed)):
        outputs[MADE_AS] = made
    return renamed


def _made_as(lineage: str, record: Record, renamed: Record) -> dict[str, Any] | None:
    """The names by which the backend knows a record; None if these are its present names."""
    old = record.names_when_made or NamesWhenMade(
        address=record.address,
        token=token(lineage, record.address, record.generation, zone_asked(record.inputs)),
        inputs={},
    )
    known = record.inputs if record.address.kind in KNOWN_TO_BACKENDS else {}
    names = {**known, **old.inputs}
    changed = {key: name for key, name in names.items() if renamed.inputs.get(key) != name}
    if not changed and old.address == renamed.address:
        return None
    made: dict[str, Any] = to_data(replace(old, inputs=changed))
    return made
