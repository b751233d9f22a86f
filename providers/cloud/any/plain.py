"""What clouds answer, as plain values: machines, disks, sizes, and what is written on the first two."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from declarative.blocks import Shape
from declarative.state import Address, NodeState
from providers.cloud import marks
from providers.ownership import key_of

IS = "is"
"""The text that says what a thing is: JSON with its address, its inputs, and what else is known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What is written on a thing of ours. `inputs` is None where its cloud can keep no more than a name.

    `own` are outputs that the cloud itself does not know (`user`, `host_key`). `texts` are the other texts
    that were put on it, by their key.
    """

    owner: str
    token: str
    address: Address
    inputs: Mapping[str, Any] | None = None
    own: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """The text under `IS`."""
        body = {
            "address": str(self.address),
            "inputs": self.inputs,
            **({"own": self.own} if self.own else {}),
        }
        return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def read(owner: str, token: str, texts: Mapping[str, str], thing: str) -> Written:
    """What the texts of `thing` (its id) say; `PermanentError` if somebody damaged them."""
    try:
        found = json.loads(texts[IS])
        inputs: dict[str, Any] = {**found["inputs"]}  # `TypeError` for what is no mapping
        return Written(
            owner=owner,
            token=token,
            address=Address.parse(found["address"]),
            inputs=inputs,
            own=dict(found.get("own") or {}),
            texts={key: text for key, text in texts.items() if key != IS},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise marks.damaged(thing) from error


def claim_key(other: str) -> str:
    """The key of the text that says of an attachment, by the id of the machine or disk that it is not on."""
    return f"on-{key_of(other)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine. `READY` is one that runs; whether it is fit to be a node is seen from within."""

    id: str
    region: str
    state: NodeState
    reason: str | None = None
    zone: str | None = None
    address: str = ""
    """The private one, or the public one where it has no other."""
    public_address: str = ""
    written: Written
    made_at: str = ""
    """Sorts as time does."""
    raw: Any = field(default=None, compare=False)
    """What the site itself wants to know of it."""

    @property
    def gone(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.state is NodeState.TERMINATING


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One disk; `size` is in GiB, None if its cloud does not say. `on`: the ids of machines that have it."""

    id: str
    region: str
    size: int | None
    zone: str | None = None
    on: tuple[str, ...] = ()
    busy: bool = False
    """It is on its way: being made, attached or detached."""
    broken: str | None = None
    """Why it will never be of use."""
    name: str = ""
    """What it is called there: the end of its link in `/dev/disk/by-id`, in some clouds."""
    device: str | None = None
    """Where a machine that has it sees it: a link below `/dev/disk` that names this disk, and stays. Without
    one it is looked for by its id and its name.
    """
    written: Written
    made_at: str = ""
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A disk that somebody made, of `size` GiB.

    `said`: whose it says that it is, by the keys of `marks`, and of which create where a mark is only begun.
    `tags`: those that are no mark's, as users write them.
    """

    id: str
    region: str
    size: int
    said: Mapping[str, str] = field(default_factory=dict)
    tags: AbstractSet[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Something that a cloud can launch. `price` is USD an hour, None if unknown."""

    name: str
    shape: Shape
    price: float | None = None
    regions: tuple[str, ...] | None = None
    """Where there is such a thing; None: everywhere."""
    zones: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Region → the zones that have it; a region without any has one offer for itself."""
    raw: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A machine or disk that is to be made."""

    region: str
    zone: str | None
    written: Written
    tags: Mapping[str, str] = field(default_factory=dict)
    """The user's."""
    size: str = ""
    """Of a machine: the name of its size."""
    image: str = ""
    user_data: str = ""
    key: str | None = None
    """What `Site.bring_key` gave."""
    spot: bool = False
    gib: int = 0
    """Of a disk: GiB."""
    volume_type: str | None = None


GPU_MEMORY_GB: Mapping[str, int] = {
    "A16": 16,
    "A40": 48,
    "A100": 80,
    "L4": 24,
    "L40S": 48,
    "GH200": 96,
    "H100": 80,
    "H200": 141,
    "B200": 180,
    "MI300X": 192,
    "MI325X": 256,
}
"""Model → GB of a whole one: where a machine has less, it has a share of one."""
_VENDORS = ("nvidia", "amd")


def gpu_model(text: str) -> tuple[str | None, str | None]:
    """The name and the vendor."""
    vendor, _, rest = re.sub(r"[ _-]+", " ", text.strip()).partition(" ")
    if vendor.lower() not in _VENDORS:
        vendor, rest = "", re.sub(r"[ _-]+", " ", text.strip())
    words = rest.split()
    if not words:
        return None, vendor.lower() or None
    return "".join([words[0].upper(), *(w.capitalize() for w in words[1:])]), vendor.lower() or None
