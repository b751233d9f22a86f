"""The claims that are written about attachments: which create put a disk on a machine, and for what.

A claim is valid only while the disk is there. It names disks and machines by the last part of their ids,
since ids of GCE and Azure are paths.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from declarative.model.inputs import inputs_of
from declarative.model.state import Address, Record
from declarative.provider import PermanentError, PermanentKind, Thing
from providers.cloud import marks
from providers.cloud.marks import ON

Claim = Mapping[str, Any]
"""`address`, `token` and `inputs` of a create."""


def text_of(claim: Claim) -> str:
    """A claim as text. The same values give the same text."""
    return json.dumps(claim, sort_keys=True, separators=(",", ":"))


def parse(written: str, disk: str) -> Claim:
    """The claim in a text about `disk` (its id); `PermanentError` if it is damaged."""
    try:
        found = json.loads(written)
        Address.parse(found["address"])
        whole = isinstance(found["token"], str) and isinstance(found["inputs"], dict)
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise marks.damaged(disk)
    claim: Claim = found
    return claim


def last_part(made: str) -> str:
    """The last part of an id."""
    return made.rpartition("/")[2]


def to_tags(claim: Claim, machine: str) -> dict[str, str]:
    """A claim as tags of the disk."""
    return marks.pack(ON + last_part(machine), text_of(claim), Address.parse(claim["address"]))


def keys_of(found: Mapping[str, str], machine: str) -> list[str]:
    """The keys of a disk's tags for its attachment to a machine."""
    return [key for key in found if key.startswith(ON + last_part(machine))]


def of_tags(found: Mapping[str, str], disk: str, machine: str) -> Claim | None:
    """The claim in a disk's tags for a machine; None if there is none."""
    key = ON + last_part(machine)
    if key not in found:
        return None
    try:
        written = marks.unpack(key, found)
    except (KeyError, ValueError):
        raise marks.damaged(disk) from None
    return parse(written, disk)


def id_of(claim: Claim, disk: str, machine: str) -> str:
    """The recorded id of an attachment. Two of one disk to one machine differ by their tokens."""
    return f"{last_part(disk)}:{last_part(machine)}:{str(claim['token'])[:12]}"


def is_of(have: Record, claim: Claim, disk: str, machine: str) -> bool:
    """Whether a claim belongs to the record, and not to a later attachment of the same disk there."""
    return have.outputs.get("id") in (None, id_of(claim, disk, machine))


def thing_of(claim: Claim, outputs: Mapping[str, Any], *, known: bool = True) -> Thing:
    """The attachment as the port's thing; see `Thing.known`."""
    return Thing(
        address=Address.parse(claim["address"]),
        token=claim["token"],
        inputs=claim["inputs"],
        outputs=outputs,
        known=known,
    )


def asked(
    address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
) -> tuple[Record, Record, Claim]:
    """The volume and the node of a create, and its claim; `PermanentError` if one is missing."""
    name, wanted = volume_of(address), inputs_of("attachment", inputs)
    if wanted.volume != name:
        summary = f"{address} cannot be about volume/{wanted.volume}"
        raise PermanentError(PermanentKind.INVALID, summary, about="volume")
    volume, node = needed(needs, "volume", name), needed(needs, "node", wanted.node)
    return volume, node, {"address": str(address), "token": token, "inputs": dict(inputs)}


def held(about: str | None, theirs: Claim | None, on: str) -> PermanentError:
    """The fault for a volume that somebody else holds, by the claim for the machine `on`."""
    who = f"held by {theirs['address']}" if theirs else "attached by somebody else"
    hint = "a volume has one holder at a time: wait for it to end, or stop it"
    return PermanentError(PermanentKind.CONFLICT, f"{about} is {who}, on {on}", about=about, hint=hint)


def needed(needs: Mapping[Address, Record], kind: str, name: str) -> Record:
    """The volume or node that an attachment needs; `PermanentError` if it does not exist."""
    found = needs.get(Address(kind, name))
    if found is None or not found.outputs.get("id"):
        raise PermanentError(PermanentKind.INVALID, f"{kind}/{name} is not there", about=kind)
    return found


def volume_of(address: Address) -> str:
    """The volume's name in an address: `train-2.data-2` is about `data-2`; `PermanentError` for any other."""
    rank, dot, volume = address.name.partition(".")
    if not rank or not dot:
        raise PermanentError(PermanentKind.INVALID, f"`{address}` is no attachment", about=str(address))
    return volume
