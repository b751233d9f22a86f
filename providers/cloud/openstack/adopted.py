"""Volumes of cinder that somebody else made: see `providers.cloud.adopted`.

Their names stay theirs, so they are found by what is written on them.
"""

from __future__ import annotations

import re

from declarative.provider import PermanentError, PermanentKind
from declarative.resource import VOLUME_ID
from providers.cloud.adopted import absent, check, is_free, left
from providers.cloud.marks import Mark
from providers.cloud.openstack import names
from providers.cloud.openstack.account import ID, Account
from providers.cloud.openstack.answers import BAD, Volume
from providers.cloud.openstack.region import Region


def adopted(account: Account, region: Region, mark: Mark) -> Volume:
    """The volume that is named, with our metadata; `PermanentError` where it is not what is declared."""
    volume, free = seen(account, region, mark)
    if free:
        region.tag("volume", f"/volumes/{volume.id}", account.tags(mark))
    return volume


def seen(account: Account, region: Region, mark: Mark) -> tuple[Volume, bool]:
    """The volume that is named, and whether it is still to be taken; faults are those of `adopted`."""
    made = str(mark.volume.volume_id)
    volume = region.volume(made) if re.fullmatch(ID, made) else None
    if volume is None or volume.gone:
        hint = "it goes by its id, in the project and the `region` that are named: `openstack volume list`"
        raise absent(mark, region.name, hint)
    free = is_free(account, mark, volume.tags, made)
    zone = names.disk_zone(region, mark.volume.zone) or volume.zone
    check(mark, made, size=volume.size, kind=volume.type, availability_zone=(zone, volume.zone))
    if volume.status in BAD:
        summary = f"{mark.address}: {made} cannot be used: cinder says `{volume.status}`"
        hint = "an administrator can reset it: `openstack volume set --state available`"
        raise PermanentError(PermanentKind.INVALID, summary, about=VOLUME_ID, hint=hint)
    account.tags(mark)  # what cinder takes
    return volume, free


def let_go(region: Region, volume: Volume) -> None:
    """Take away what we wrote on it, all in one request: what is left of it halfway would be no mark."""
    path = f"/volumes/{volume.id}"
    region.write("volume", path, left(region.written("volume", path), volume.id))
