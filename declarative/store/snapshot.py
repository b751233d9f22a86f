"""A whole state as data: what `state pull` prints, and reading that back without losing or guessing anything.

`parse(dump(state, held))` is that state again. Pure; what contradicts itself is for `check` to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar

from declarative.model.state import KINDS, Address, Intent, Record, State, natural
from declarative.model.status import NodeState, RankState, RankStatus, Readiness
from declarative.store.consistency import HeldBlocks, faults
from declarative.store.errors import StateError
from declarative.store.records import by_address, seen_values
from declarative.store.schema import FORMAT_VERSION, plain

OPS = ("create", "update", "delete")
"""Operations that are started at a backend."""

E = TypeVar("E", bound=NodeState | RankState)
Types: TypeAlias = tuple[type | None, ...]

TEXT: Types = (str,)
WHOLE: Types = (int,)
NUMBER: Types = (int, float)
LIST: Types = (list,)
MAP: Types = (dict,)
LINEAGE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


# ------------------------------------------------------------------------------------------ to data


def dump(state: State, held: HeldBlocks) -> dict[str, Any]:
    """The whole state as JSON-able data: the same state, the same data in the same order."""
    copied: dict[str, Any] = plain(uncopied(state, held))
    return copied


def uncopied(state: State, held: HeldBlocks) -> dict[str, Any]:
    """Like `dump`, but with the state's own values instead of copies: to be written at once."""
    nodes = {name: seen_values(seen) for name, seen in state.readiness.items()}
    unseen = {"state": None, "reason": None, "observed_at": None, "can": None}
    for name, since in state.idle_since.items():
        nodes.setdefault(name, dict(unseen))["idle_since"] = since
    return {
        "format_version": FORMAT_VERSION,
        "lineage": state.lineage,
        "serial": state.serial,
        "records": [_record(state.records[a]) for a in sorted(state.records, key=by_address)],
        "reserved_blocks": [
            {"node": node, "block": block, "reservation": held[node, block]}
            for node, block in sorted(held, key=lambda place: (natural(place[0]), place[1]))
        ],
        "ranks": {name: status.recorded() for name, status in state.ranks.items()},
        "nodes": {name: {"idle_since": None, **seen} for name, seen in nodes.items()},
        "volumes": {name: {"detached_since": since} for name, since in state.detached_since.items()},
        "generations": {str(address): number for address, number in state.generations.items()},
        "intents": [_intent(intent) for intent in sorted(state.intents, key=lambda i: i.id)],
    }


def _record(record: Record) -> dict[str, Any]:
    return {
        "address": str(record.address),
        "backend": record.backend,
        "inputs": record.inputs,
        "outputs": record.outputs,
        "needs": sorted(map(str, record.needs)),
        "generation": record.generation,
    }


def _intent(intent: Intent) -> dict[str, Any]:
    return {
        "id": intent.id,
        "op": intent.op,
        "address": str(intent.address),
        "backend": intent.backend,
        "generation": intent.generation,
        "token": intent.token,
        "inputs": intent.inputs,
        "needs": sorted(map(str, intent.needs)),
    }


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
    wrong = next(faults(state), None)
    if wrong:
        raise _bad(wrong)


def parse(data: object) -> tuple[State, HeldBlocks]:
    """The state that `dump` made `data` of; `StateError` bad-state for what it cannot have made."""
    found = data if isinstance(data, dict) else {}
    _check_format(found.get("format_version"))
    top = _fields(
        _renewed(data),
        "the state",
        format_version=WHOLE,
        lineage=(str, None),
        serial=WHOLE,
        records=LIST,
        reserved_blocks=LIST,
        ranks=MAP,
        nodes=MAP,
        volumes=MAP,
        generations=MAP,
        intents=LIST,
    )
    lineage = top["lineage"]
    if lineage is not None and not LINEAGE.fullmatch(lineage):
        raise _bad("`lineage` is not one")
    _least(top["serial"], 0, "`serial`")
    records = _read_records(top["records"])
    readiness, idle = _read_nodes(top["nodes"])
    generations = {
        _address(text, "generations"): _least(number, 1, f"generations.{text}")
        for text, number in top["generations"].items()
    }
    state = State(
        lineage=lineage,
        serial=top["serial"],
        records=records,
        ranks={name: _read_rank(value, f"ranks.{name}") for name, value in top["ranks"].items()},
        readiness=readiness,
        idle_since=idle,
        detached_since={
            name: _read_volume(value, f"volumes.{name}") for name, value in top["volumes"].items()
        },
        generations=generations,
        intents=_read_intents(top["intents"]),
    )
    return state, _read_blocks(top["reserved_blocks"])


def _read_records(values: Sequence[object]) -> dict[Address, Record]:
    records: dict[Address, Record] = {}
    for index, value in enumerate(values):
        known = value.get("address") if isinstance(value, dict) else None
        record = _read_record(value, f"records[{index}]" + (f" ({known})" if isinstance(known, str) else ""))
        if record.address in records:
            raise _bad(f"{record.address} is recorded twice")
        records[record.address] = record
    return records


def _bad(what: str) -> StateError:
    return StateError(
        "bad-state", f"this is not what `state pull` prints: {what}", "pull it again, and push it as it is"
    )


def _check_format(found: object) -> None:
    if isinstance(found, int) and not isinstance(found, bool) and not 1 <= found <= FORMAT_VERSION:
        newer = found > FORMAT_VERSION
        raise StateError(
            "newer-format" if newer else "older-format",
            f"the state to push has format {found}, this fleetform has {FORMAT_VERSION}",
            "push it with the version of fleetform that pulled it"
            + ("" if newer else "; then let this one renew the state"),
        )


def _renewed(data: object) -> object:
    """The data of an earlier format in this one: fields that it lacks are unknown."""
    if not isinstance(data, dict) or data.get("format_version") not in (1, 2):
        return data
    added = {"ranks": {"confinement": None}, "nodes": {"can": None}} if data["format_version"] == 1 else {}
    found = {key: _with(value, added[key]) if key in added else value for key, value in data.items()}
    return {**found, **({} if "volumes" in found else {"volumes": {}})}


def _with(things: object, more: Mapping[str, object]) -> object:
    """Each thing, with the fields that its older format lacks."""
    if not isinstance(things, dict):
        return things
    return {n: {**more, **thing} if isinstance(thing, dict) else thing for n, thing in things.items()}


def _fields(value: object, where: str, **types: Types) -> dict[str, Any]:
    """An object with exactly these keys, of these types: an unknown key would be lost."""
    if not isinstance(value, dict):
        raise _bad(f"{where} is no object")
    for key in sorted(types.keys() - value.keys()):
        raise _bad(f"{where} has no `{key}`")
    for key in sorted(value.keys() - types.keys()):
        raise _bad(f"{where} has a `{key}`")
    for key, allowed in types.items():
        item = value[key]
        if (None if item is None else type(item)) not in allowed:
            raise _bad(f"`{key}` of {where} is of another type")
    return value


def _least(value: object, minimum: int, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise _bad(f"{where} is not a number from {minimum} on")
    return value


def _address(value: object, where: str) -> Address:
    try:
        return Address.parse(value if isinstance(value, str) else "")
    except ValueError:
        raise _bad(f"an address in {where} is none") from None


def _addresses(values: list[object], where: str) -> frozenset[Address]:
    found = frozenset(_address(value, where) for value in values)
    if len(found) != len(values):
        raise _bad(f"{where} names an address twice")
    return found


def _read_record(value: object, where: str) -> Record:
    item = _fields(
        value,
        where,
        address=TEXT,
        backend=(str, None),
        inputs=MAP,
        outputs=MAP,
        needs=LIST,
        generation=WHOLE,
    )
    address = _address(item["address"], where)
    if address.kind not in KINDS:
        raise _bad(f"{where} is of no kind that there is: `{address.kind}`")
    return Record(
        address=address,
        backend=item["backend"],
        inputs=item["inputs"],
        outputs=item["outputs"],
        needs=_addresses(item["needs"], f"`needs` of {where}"),
        generation=_least(item["generation"], 1, f"`generation` of {where}"),
    )


def _read_intents(values: list[object]) -> tuple[Intent, ...]:
    found: dict[int, Intent] = {}
    for index, value in enumerate(values):
        where = f"intents[{index}]"
        item = _fields(
            value,
            where,
            id=WHOLE,
            op=TEXT,
            address=TEXT,
            backend=(str, None),
            generation=WHOLE,
            token=TEXT,
            inputs=MAP,
            needs=LIST,
        )
        if item["op"] not in OPS:
            raise _bad(f"`op` of {where} is none of {', '.join(OPS)}")
        key = _least(item["id"], 1, f"`id` of {where}")
        address = _address(item["address"], where)
        if key in found or any((i.op, i.address) == (item["op"], address) for i in found.values()):
            raise _bad(f"{where} is there twice")
        found[key] = Intent(
            id=key,
            op=item["op"],
            address=address,
            backend=item["backend"],
            generation=_least(item["generation"], 1, f"`generation` of {where}"),
            token=item["token"],
            inputs=item["inputs"],
            needs=_addresses(item["needs"], f"`needs` of {where}"),
        )
    return tuple(found.values())


def _read_blocks(values: list[object]) -> HeldBlocks:
    held: dict[tuple[str, int], str] = {}
    for index, value in enumerate(values):
        item = _fields(value, f"reserved_blocks[{index}]", node=TEXT, block=WHOLE, reservation=TEXT)
        place = (item["node"], _least(item["block"], 0, "a block"))
        if place in held:
            raise _bad(f"block {place[1]} of node/{place[0]} is held twice")
        held[place] = item["reservation"]
    return held


def _read_rank(value: object, where: str) -> RankStatus:
    item = _fields(
        value,
        where,
        state=TEXT,
        exit_code=(int, None),
        cause=(str, None),
        started_at=(*NUMBER, None),
        ended_at=(*NUMBER, None),
        mounted=LIST,
        confinement=(str, None),
    )
    if not all(isinstance(path, str) for path in item["mounted"]):
        raise _bad(f"`mounted` of {where} is of another type")
    return RankStatus(
        **{**item, "state": _state(RankState, item["state"], where), "mounted": tuple(item["mounted"])}
    )


def _read_nodes(values: Mapping[str, object]) -> tuple[dict[str, Readiness], dict[str, float]]:
    readiness: dict[str, Readiness] = {}
    idle: dict[str, float] = {}
    for name, value in values.items():
        where = f"nodes.{name}"
        item = _fields(
            value,
            where,
            idle_since=(*NUMBER, None),
            state=(str, None),
            reason=(str, None),
            observed_at=(*NUMBER, None),
            can=(list, None),
        )
        if not all(isinstance(word, str) for word in item["can"] or ()):
            raise _bad(f"`can` of {where} is of another type")
        if item["idle_since"] is not None:
            idle[name] = item["idle_since"]
        if item["state"] is not None:
            readiness[name] = Readiness(
                state=_state(NodeState, item["state"], where),
                reason=item["reason"],
                observed_at=item["observed_at"],
                can=None if item["can"] is None else frozenset(item["can"]),
            )
        elif (item["reason"], item["observed_at"], item["can"]) != (None, None, None):
            raise _bad(f"{where} was observed, and has no `state`")
    return readiness, idle


def _read_volume(value: object, where: str) -> float:
    since: float = _fields(value, where, detached_since=NUMBER)["detached_since"]
    return since


def _state(kind: type[E], text: str, where: str) -> E:
    try:
        return kind(text)
    except ValueError:
        raise _bad(f"`state` of {where} is none that there is: `{text}`") from None
