"""Which image an `image: {filter: …}` means: the newest that fits.

Names of images are anybody's to choose, so that only those of one owner count: the account's own where none
is named. Where a later try finds a newer image than the one before, its create differs from that one's: EC2
says so, and what the first try made is found by its token (`account.once`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from declarative.provider import PermanentError, PermanentKind
from declarative.spec.clouds import ImageFilter
from providers.cloud.ec2.region import Region

PAGE = 1000
OWN = "self"
"""EC2's word for the account that asks."""


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
