"""Volumes that somebody else made: taken on by their ids, let go again, and never deleted.

What is ours of them are our tags and those that the user declares. Their name stays theirs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from declarative.provider import PermanentError, PermanentKind
from declarative.resource import VOLUME_ID
from declarative.state import Address
from providers.cloud import marks
from providers.cloud.account import gibibytes
from providers.cloud.ec2.account import Account
from providers.cloud.ec2.answers import Volume
from providers.cloud.ec2.region import Region
from providers.cloud.marks import Mark


def adopted(account: Account, region: Region, mark: Mark) -> Volume:
    """The volume that is named, with our tags; `PermanentError` where it is not what is declared."""
    made = str(mark.inputs[VOLUME_ID])
    volume = region.volume(made) if re.fullmatch(r"vol-[0-9a-f]{4,32}", made) else None
    if volume is None or volume.state in ("deleting", "deleted"):
        summary = f"{mark.address}: there is no volume `{made}` in {region.name}"
        hint = "volumes are of one region: write the `region` that it is in"
        raise PermanentError(PermanentKind.NOT_FOUND, summary, about=VOLUME_ID, hint=hint)
    owner, token = volume.tags.get(marks.OWNER), volume.tags.get(marks.TOKEN)
    if owner is not None and (owner, token) != (account.owner, mark.token):
        whose = "this state" if owner == account.owner else f"another state (lineage {owner})"
        summary = f"{mark.address}: {made} is {volume.tags.get(marks.ADDRESS)} of {whose}"
        hint = "take it out of that one first"
        raise PermanentError(PermanentKind.CONFLICT, summary, about=VOLUME_ID, hint=hint)
    _check(volume, mark)
    if owner is None:
        region.tag(made, account.tags(mark))
    return volume


def _check(volume: Volume, mark: Mark) -> None:
    """Whether it is where, as large and of the type that is declared."""
    size = mark.inputs.get("size")
    said = {
        "availability_zone": (mark.inputs.get("zone"), volume.zone),
        "size": (gibibytes(mark.address, size) if size else volume.size, volume.size),
        "volume_type": (mark.inputs.get("volume_type") or volume.type, volume.type),
    }
    for field, (wanted, has) in said.items():
        if wanted != has:
            unit = "GB" if field == "size" else ""
            summary = f"{mark.address}: the `{field}` of {volume.id} is {has}{unit}, and not {wanted}{unit}"
            if wanted is None:
                summary = f"{mark.address}: {volume.id} is in {has}, and its zone is not declared"
            hint = f"write `{field}: {has}{unit}`"
            raise PermanentError(PermanentKind.INVALID, summary, about=field, hint=hint)


def was_adopted(volume: Volume) -> bool:
    """Whether its own tags say so."""
    return VOLUME_ID in marks.read(volume.tags, volume.id).inputs


def let_go(region: Region, volume: Volume) -> None:
    """Take away what we wrote on it, our name last: until then it is found again."""
    mark = marks.read(volume.tags, volume.id)
    users = [key for key in mark.inputs.get("tags") or {} if key in volume.tags]
    region.untag(volume.id, users)
    region.untag(volume.id, [key for key in volume.tags if key.startswith(marks.OURS)])


def sized(address: Address, inputs: Mapping[str, Any], volume: Volume) -> int:
    """The size in GiB that inputs ask for; what an adopted one has, where they say nothing."""
    return gibibytes(address, inputs["size"]) if "size" in inputs else volume.size
