"""Volumes of EC2 that somebody else made: see `providers.cloud.adopted`."""

from __future__ import annotations

import re

from providers.cloud import marks
from providers.cloud.adopted import absent, check, is_free, users
from providers.cloud.ec2.account import Account
from providers.cloud.ec2.answers import Volume
from providers.cloud.ec2.region import Region
from providers.cloud.marks import Mark


def adopted(account: Account, region: Region, mark: Mark) -> Volume:
    """The volume that is named, with our tags; `PermanentError` where it is not what is declared."""
    volume, free = seen(account, region, mark)
    if free:
        region.tag(volume.id, account.tags(mark))
    return volume


def seen(account: Account, region: Region, mark: Mark) -> tuple[Volume, bool]:
    """The volume that is named, and whether it is still to be taken; faults are those of `adopted`."""
    made = str(mark.volume.volume_id)
    volume = region.volume(made) if re.fullmatch(r"vol-[0-9a-f]{4,32}", made) else None
    if volume is None or volume.state in ("deleting", "deleted"):
        raise absent(mark, region.name, "volumes are of one region: write the `region` that it is in")
    free = is_free(account, mark, volume.tags, made)
    zone = (mark.volume.zone, volume.zone)
    check(mark, made, size=volume.size, kind=volume.type, availability_zone=zone)
    return volume, free


def let_go(region: Region, volume: Volume) -> None:
    """Take away what we wrote on it, our name last: until then it is found again."""
    region.untag(volume.id, users(volume.tags, volume.id))
    region.untag(volume.id, [key for key in volume.tags if key.startswith(marks.OURS)])
