"""What is written about an attachment: by which create a disk is on a machine, and for what.

Disks and machines go by the last parts of their ids here: GCE and Azure have paths for ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from declarative.model.inputs import inputs_of
from declarative.model.state import Address, Record
from declarative.provider import PermanentError, PermanentKind, Thing
from providers.cloud import marks

Claim = Mapping[str, Any]
"""`address`, `token` and `inputs` of a create."""

ON = f"{marks.OURS}on:"
"""The key of a disk's tag for one machine, whose name or id follows: so that who loses the race for a disk
does not overwrite what the winner wrote.
"""


def text_of(claim: Claim) -> str:
    """A claim as it is written: the same text for the same values."""
    return json.dumps(claim, sort_keys=True, separators=(",", ":"))


def parse(written: str, disk: str) -> Claim:
    """A claim that was written about `disk` (its id); `PermanentError` if somebody damaged it."""
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
    """Of an id."""
    return made.rpartition("/")[2]


def to_tags(claim: Claim, machine: str) -> dict[str, str]:
    """A claim as tags of the disk."""
    return marks.pack(ON + last_part(machine), text_of(claim), Address.parse(claim["address"]))


def keys_of(found: Mapping[str, str], machine: str) -> list[str]:
    """The keys of a disk's tags that are of its attachment to a machine."""
    return [key for key in found if key.startswith(ON + last_part(machine))]


def of_tags(found: Mapping[str, str], disk: str, machine: str) -> Claim | None:
    """What a disk's tags say of its attachment to a machine; None if they say nothing."""
    key = ON + last_part(machine)
    if key not in found:
        return None
    try:
        written = marks.unpack(key, found)
    except (KeyError, ValueError):
        raise marks.damaged(disk) from None
    return parse(written, disk)


def id_of(claim: Claim, disk: str, machine: str) -> str:
    """What an attachment is recorded as: two of one disk to one machine differ by their tokens."""
    return f"{last_part(disk)}:{last_part(machine)}:{str(claim['token'])[:12]}"


def is_of(have: Record, claim: Claim, disk: str, machine: str) -> bool:
    """Whether a claim is that of the record, and not of a later attachment of the same disk there."""
    return have.outputs.get("id") in (None, id_of(claim, disk, machine))


def thing_of(claim: Claim, outputs: Mapping[str, Any], *, known: bool = True) -> Thing:
    """What the port calls the attachment; see `Thing.known`."""
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
    """The volume and the node that a create is about, and its claim; `PermanentError` if one is missing."""
    name, wanted = volume_of(address), inputs_of("attachment", inputs)
    if wanted.volume != name:
        summary = f"{address} cannot be about volume/{wanted.volume}"
        raise PermanentError(PermanentKind.INVALID, summary, about="volume")
    volume, node = needed(needs, "volume", name), needed(needs, "node", wanted.node)
    return volume, node, {"address": str(address), "token": token, "inputs": dict(inputs)}


def held(about: str | None, theirs: Claim | None, on: str) -> PermanentError:
    """The fault of a volume that another has: by the claim that is written of it, on a machine."""
    who = f"held by {theirs['address']}" if theirs else "attached by somebody else"
    hint = "a volume has one holder at a time: wait for it to end, or stop it"
    return PermanentError(PermanentKind.CONFLICT, f"{about} is {who}, on {on}", about=about, hint=hint)


def needed(needs: Mapping[Address, Record], kind: str, name: str) -> Record:
    """The volume or node that an attachment is made of; `PermanentError` if it is not there."""
    found = needs.get(Address(kind, name))
    if found is None or not found.outputs.get("id"):
        raise PermanentError(PermanentKind.INVALID, f"{kind}/{name} is not there", about=kind)
    return found


def volume_of(address: Address) -> str:
    """`train-2.data-2` is about `data-2`; `PermanentError` for the address of anything else."""
    rank, dot, volume = address.name.partition(".")
    if not rank or not dot:
        raise PermanentError(PermanentKind.INVALID, f"`{address}` is no attachment", about=str(address))
    return volume
