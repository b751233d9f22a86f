"""A whole state as data: what `state pull` prints, and reading that back without losing or guessing anything.

`parse(dump(state, held))` is that state again. Pure; `consistency` finds contradictions.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from declarative.model.codec import BadDataError, reader
from declarative.model.outputs import OneOf, address_of
from declarative.model.record import struct
from declarative.model.schema import Doc, Is
from declarative.model.state import KINDS, Address, Intent, Record, State, by_address, natural
from declarative.model.status import NodeState, RankState, RankStatus, Readiness
from declarative.store.consistency import HeldBlocks, wrong_values
from declarative.store.errors import StateError
from declarative.store.schema import FORMAT_VERSION, columns, copied, plain

OPS = ("create", "update", "delete")
"""Operations that are started at a backend."""

K = TypeVar("K")
T = TypeVar("T")
LINEAGE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


# ------------------------------------------------------------------------------------------ to data


def dump(state: State, held: HeldBlocks) -> dict[str, Any]:
    """The whole state as JSON-able data: the same state, the same data in the same order."""
    data: dict[str, Any] = copied(uncopied(state, held))
    return data


def uncopied(state: State, held: HeldBlocks) -> dict[str, Any]:
    """Like `dump`, but with the state's own values instead of copies: to be written at once."""
    nodes = {name: columns("node_status", readiness) for name, readiness in state.readiness.items()}
    of_record, of_intent = names_of(RecordData), names_of(IntentData)
    unseen = {"state": None, "reason": None, "observed_at": None, "can": None}
    for name, since in state.idle_since.items():
        nodes.setdefault(name, dict(unseen))["idle_since"] = since
    return {
        "format_version": FORMAT_VERSION,
        "lineage": state.lineage,
        "serial": state.serial,
        "records": [plain(state.records[a], of_record) for a in sorted(state.records, key=by_address)],
        "reserved_blocks": [
            {"node": node, "block": block, "reservation": held[node, block]}
            for node, block in sorted(held, key=lambda place: (natural(place[0]), place[1]))
        ],
        "ranks": {name: columns("rank_status", status) for name, status in state.ranks.items()},
        "nodes": {name: {"idle_since": None, **columns_of_node} for name, columns_of_node in nodes.items()},
        "volumes": {name: {"detached_since": since} for name, since in state.detached_since.items()},
        "generations": {str(address): number for address, number in state.generations.items()},
        "intents": [plain(intent, of_intent) for intent in sorted(state.intents, key=lambda i: i.id)],
    }


@functools.cache
def names_of(printed: Any) -> tuple[str, ...]:
    """The fields of a class below, in the order in which they are printed."""
    return tuple(field.name for field in fields(printed))


# ------------------------------------------------------------------------------------------ from data


def read(text: bytes, where: str) -> object:
    """The data in a file that `state pull` printed; `StateError` bad-state if it is no JSON."""

    def no_number(text: str) -> NoReturn:
        raise ValueError(f"`{text}` is no number")

    problem = "is empty"
    if text.strip():
        try:
            return json.loads(text, parse_constant=no_number)
        except RecursionError:
            pass
        except ValueError as error:
            problem = f"is not JSON: {error}"
    hint = "`fleetform state pull` prints what can be read here"
    if text.startswith(b"SQLite format 3"):
        problem, hint = "is a database", "name it by its URL: `sqlite:///PATH`"
    raise StateError("bad-state", f"{where} {problem}", hint)


def of_file(file: Path, *, typed: bool) -> tuple[State, HeldBlocks]:
    """The state in a file that `state pull` printed; `typed` checks the values of its records, too."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise StateError("unreadable", f"{file}: {error.strerror}") from None
    state, held = parse(read(text, str(file)))
    if typed:
        check_types(state)
    return state, held


def check_types(state: State) -> None:
    """`StateError` bad-state unless each record holds what its kind needs."""
    wrong = next(wrong_values(state), None)
    if wrong:
        raise _bad(wrong)


# ------------------------------------------------------------------------------------------ its form


@struct(frozen=True, slots=True, kw_only=True)
class RecordData:
    """One thing that was made."""

    address: Annotated[Address, address_of(KINDS), Doc("What it is.")]
    backend: Annotated[str | None, Doc("The backend's name. Null if it concerns none.")]
    inputs: Annotated[Mapping[str, Any], Doc("The inputs as given, secrets left out.")]
    outputs: Annotated[Mapping[str, Any], Doc("What the backend returned, secrets left out.")]
    needs: Annotated[tuple[Annotated[Address, address_of(KINDS)], ...], Doc("Addresses that it needs.")]
    generation: Annotated[int, Is(minimum=1), Doc("Counts how often the address was made anew.")]


@struct(frozen=True, slots=True, kw_only=True)
class BlockData:
    """One block that is taken."""

    node: Annotated[str, Doc("The node's name.")]
    block: Annotated[int, Doc("Its number.")]
    reservation: Annotated[str, Doc("The reservation's name, which is the rank's.")]


@struct(frozen=True, slots=True, kw_only=True)
class RankData:
    """How a rank is doing."""

    state: Annotated[RankState, Doc("Its state.")]
    exit_code: Annotated[int | None, Is(), Doc("Null while it runs, and if it was not seen to end.")]
    cause: Annotated[str | None, Doc("The cause of its end. Null if there is nothing to say.")]
    started_at: Annotated[
        float | None, Doc("Seconds since the epoch, by the clock of the rank's host. Null before it starts.")
    ]
    ended_at: Annotated[
        float | None, Doc("Seconds since the epoch, by the clock of the rank's host. Null before it ends.")
    ]
    mounted: Annotated[tuple[str, ...], Doc("Paths at which its volumes are mounted.")]
    confinement: Annotated[
        str | None,
        Doc("How it is limited to its blocks: `hard`, `soft` or `none`, and by what. Null if not known."),
    ] = None  # format 1 lacks it


@struct(frozen=True, slots=True, kw_only=True)
class NodeData:
    """What was last observed of a node."""

    idle_since: Annotated[float | None, Doc("Seconds since the epoch. Null while it is in use.")]
    state: Annotated[NodeState | None, Doc("Its state. Null if it was never observed.")]
    reason: Annotated[str | None, Doc("Why it is not ready. Null if there is nothing to say.")]
    observed_at: Annotated[float | None, Doc("Seconds since the epoch. Null if it was never observed.")]
    can: Annotated[
        tuple[str, ...] | None,
        Doc("What its host can do: `hard` limits, `podman`, `docker`, `any-runtime`. Null if not known."),
    ] = None  # format 1 lacks it


@struct(frozen=True, slots=True, kw_only=True)
class VolumeData:
    """What is known of a volume that nothing has attached."""

    detached_since: Annotated[float, Doc("Since when, in seconds since the epoch.")]


@struct(frozen=True, slots=True, kw_only=True)
class IntentData:
    """A call to a backend that was started and whose result is not recorded."""

    id: Annotated[int, Doc("Its number.")]
    op: Annotated[str, OneOf(OPS), Doc("What was begun.")]
    address: Annotated[Address, address_of(KINDS), Doc("To what.")]
    backend: Annotated[str | None, Doc("The backend's name. Null if it concerns none.")]
    generation: Annotated[int, Is(minimum=1), Doc("Counts how often the address was made anew.")]
    token: Annotated[str, Doc("The token by which the call has its effect only once.")]
    inputs: Annotated[Mapping[str, Any], Doc("The inputs as given, secrets left out.")]
    needs: Annotated[tuple[Annotated[Address, address_of(KINDS)], ...], Doc("Addresses that it needs.")]


@struct(frozen=True, slots=True, kw_only=True)
class StateData:
    """What `fleetform state pull` prints: everything that is recorded.

    A key that is not named here would be lost: it is refused.
    """

    format_version: int
    lineage: Annotated[str | None, Doc("The identity of the state. Null before the first apply.")]
    serial: Annotated[int, Doc("Grows with each change of the records.")]
    records: Annotated[tuple[RecordData, ...], Doc("Everything that was made.")]
    reserved_blocks: Annotated[tuple[BlockData, ...], Doc("Blocks that are taken.")]
    ranks: Annotated[Mapping[str, RankData], Doc("Ranks by name.")]
    nodes: Annotated[Mapping[str, NodeData], Doc("Observations of nodes by name.")]
    volumes: Annotated[Mapping[str, VolumeData], Doc("Volumes that nothing has attached, by name.")] = field(
        default_factory=dict
    )  # formats 1 and 2 lack it
    generations: Annotated[
        Mapping[str, Annotated[int, Is(minimum=1)]],
        Doc("How often each address was made, also those that are gone."),
    ]
    intents: Annotated[tuple[IntentData, ...], Doc("What has to be read back before anything is planned.")]


def parse(data: object) -> tuple[State, HeldBlocks]:
    """The state that `dump` made `data` of; `StateError` bad-state for what it cannot have made."""
    _check_format(data.get("format_version") if isinstance(data, dict) else None)
    try:
        printed: StateData = reader(StateData)(data)
        generations = {_address(text): number for text, number in printed.generations.items()}
    except BadDataError as bad:
        raise _bad(f"{bad}{_whose(data, bad)}") from None
    if problem := next(_problems(printed), None):
        raise _bad(problem)
    nodes = printed.nodes.items()
    state = State(
        lineage=printed.lineage,
        serial=printed.serial,
        records={
            record.address: _made_of(Record, record, needs=frozenset(record.needs))
            for record in printed.records
        },
        ranks={name: _made_of(RankStatus, rank) for name, rank in printed.ranks.items()},
        readiness={
            name: _made_of(Readiness, node, can=None if node.can is None else frozenset(node.can))
            for name, node in nodes
            if node.state is not None
        },
        idle_since={name: node.idle_since for name, node in nodes if node.idle_since is not None},
        detached_since={name: volume.detached_since for name, volume in printed.volumes.items()},
        generations=generations,
        intents=tuple(_made_of(Intent, intent, needs=frozenset(intent.needs)) for intent in printed.intents),
    )
    return state, {(block.node, block.block): block.reservation for block in printed.reserved_blocks}


def _made_of(cls: type[T], printed: Any, **more: Any) -> T:
    """What was printed as the class of the state; `more` are fields that were printed in another form."""
    kind: Any = cls
    shared = set(names_of(kind)).intersection(names_of(printed.__class__))
    return cls(**{**{name: getattr(printed, name) for name in shared}, **more})


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError:
        raise BadDataError("an address").at(text).at("generations") from None


def _problems(printed: StateData) -> Iterator[str]:
    """What no state can be, as sentences."""
    if printed.lineage is not None and not LINEAGE.fullmatch(printed.lineage):
        yield "`lineage` is not one"
    if printed.serial < 0:
        yield "`serial` is not a number from 0 on"
    for address in _repeated(record.address for record in printed.records):
        yield f"{address} is recorded twice"
    for name, number in printed.generations.items():
        if number < 1:
            yield f"`generations.{name}` is not a number from 1 on"
    parts: tuple[RecordData | IntentData, ...] = (*printed.records, *printed.intents)
    for part in parts:
        where = part.address if isinstance(part, RecordData) else f"the intent {part.op}:{part.address}"
        if part.generation < 1:
            yield f"`generation` of {where} is not a number from 1 on"
        for address in _repeated(part.needs):
            yield f"`needs` of {where} names {address} twice"
    for block in (block for block in printed.reserved_blocks if block.block < 0):
        yield f"a block of node/{block.node} is not a number from 0 on"
    for key in _repeated((block.node, block.block) for block in printed.reserved_blocks):
        yield f"block {key[1]} of node/{key[0]} is held twice"
    for name, node in printed.nodes.items():
        if node.state is None and (node.reason, node.observed_at, node.can) != (None, None, None):
            yield f"`nodes.{name}` was observed, and has no `state`"
    yield from _intent_problems(printed.intents)


def _intent_problems(intents: Sequence[IntentData]) -> Iterator[str]:
    for intent in intents:
        if intent.op not in OPS:
            yield f"`op` of the intent {intent.id} is none of {', '.join(OPS)}"
        if intent.id < 1:
            yield f"the `id` {intent.id} of an intent is not a number from 1 on"
    for number in _repeated(intent.id for intent in intents):
        yield f"the intent {number} is there twice"
    for op, address in _repeated((intent.op, intent.address) for intent in intents):
        yield f"the intent {op}:{address} is there twice"


def _repeated(keys: Iterable[K]) -> Iterator[K]:
    return (key for key, count in Counter(keys).items() if count > 1)


def _whose(printed: Any, bad: BadDataError) -> str:
    """Which record bad data belongs to, where that can be read: a number tells a person little."""
    part, number = (*reversed(bad.path), "", "")[:2]
    if part != ".records" or not number.startswith("["):
        return ""
    record = printed["records"][int(number.strip("[]"))]
    address = record.get("address") if isinstance(record, dict) else None
    return f", of {address}" if isinstance(address, str) else ""


def _bad(what: str) -> StateError:
    return StateError(
        "bad-state", f"this is not what `state pull` prints: {what}", "pull it again, and push it as it is"
    )


def _check_format(version: object) -> None:
    if isinstance(version, int) and not isinstance(version, bool) and not 1 <= version <= FORMAT_VERSION:
        newer = version > FORMAT_VERSION
        raise StateError(
            "newer-format" if newer else "older-format",
            f"the state to push has format {version}, this fleetform has {FORMAT_VERSION}",
            "push it with the version of fleetform that pulled it"
            + ("" if newer else "; then let this one renew the state"),
        )
