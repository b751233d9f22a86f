"""Which image an `image: {filter: …}` means, the newest that fits; and the disk that an image comes with.

Names of images are anybody's to choose, so that only those of one owner count: the account's own where none
is named. Where a later try finds a newer image than the one before, its create differs from that one's: EC2
says so, and what the first try made is found by its token (`account.once`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from declarative.provider import PermanentError, PermanentKind
from declarative.spec.clouds import ImageFilter
from providers.cloud.ec2 import answers
from providers.cloud.ec2.region import Region

PAGE = 1000
OWN = "self"
"""EC2's word for the account that asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The disk that nodes of an image start from: as what, and how many GiB it has at least."""

    device: str
    size: int = 0


def look(region: Region, image: str) -> dict[str, Any]:
    """What EC2 says of an image; `PermanentError` if there is none."""
    action = "DescribeImages"
    found = region.ask(action, "image", Filter=[{"Name": "image-id", "Value": [image]}])
    item = next(iter(answers.listed(action, found, "imagesSet")), None)
    if item is None:
        summary = f"{region.name} has no image {image}"
        hint = "images are of one region: write one for each, `image: {us-east-1: ami-…}`"
        if not image.startswith("ami-"):
            hint = "`image` is the id of one, `ami-…`; by its name: `image: {filter: {name: …, owner: …}}`"
        raise PermanentError(PermanentKind.NOT_FOUND, summary, about="image", hint=hint)
    return item


def own_disk(region: Region, image: str) -> Disk:
    """The disk of an image that is there."""
    return disk_of(look(region, image))


def disk_of(item: dict[str, Any]) -> Disk:
    """What `look` found, as a disk."""
    device = str(item.get("rootDeviceName") or "/dev/xvda")
    for mapped in item.get("blockDeviceMapping") or ():
        if mapped.get("deviceName") == device:
            size = str((mapped.get("ebs") or {}).get("volumeSize") or "")
            return Disk(device=device, size=int(size) if size.isdecimal() else 0)
    return Disk(device=device)


def newest(region: Region, asked: ImageFilter, architecture: str) -> str:
    """The id of the newest image that can be started and is not deprecated."""
    filters = {"name": asked.name, "state": "available", "architecture": architecture}
    found = list(
        region.pages(
            "DescribeImages",
            "imagesSet",
            PAGE,
            Owner=[asked.owner or OWN],
            Filter=[{"Name": name, "Value": [value]} for name, value in filters.items()],
        )
    )
    there = [image for image in found if image.get("imageId")]
    fresh = [image for image in there if not _deprecated(image)]
    if fresh:
        made = max(fresh, key=lambda image: (str(image.get("creationDate") or ""), str(image["imageId"])))
        return str(made["imageId"])
    if there:
        summary = f"{region.name} has only deprecated images that fit {asked} ({there[0]['imageId']})"
        hint = f"name a newer one, or one by its id: `image: {{{region.name}: {there[0]['imageId']}}}`"
    else:
        summary = f"{region.name} has no image that fits {asked} for {architecture}"
        hint = "check its name and `owner`, and whether it is in this region"
        if asked.owner is None:
            hint = "another's image is found with `owner: ACCOUNT`; check its name, and whether it is there"
    raise PermanentError(PermanentKind.NOT_FOUND, summary, about="image", hint=hint)


def _deprecated(image: dict[str, Any]) -> bool:
    """EC2 leaves out what is deprecated, but not the account's own."""
    try:
        when = datetime.fromisoformat(str(image.get("deprecationTime")))
    except ValueError:
        return False
    return (when if when.tzinfo else when.replace(tzinfo=UTC)) <= datetime.now(UTC)
