"""Instances and volumes of EC2 that are there, whoever made them: by the page, all that a page says."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from declarative.provider.optional import Existing
from providers.cloud import marks
from providers.cloud.checks import existing, users
from providers.cloud.ec2 import answers
from providers.cloud.ec2.region import PAGE, VALUES, Region

INSTANCE, VOLUME = r"i-[0-9a-f]{4,32}", r"vol-[0-9a-f]{4,32}"


def instances(region: Region, ids: Collection[str] | None) -> Iterator[Existing]:
    """Those of one region that have not ended."""
    action = "DescribeInstances"
    for asked in _asked("instance-id", INSTANCE, ids):
        for reservation in region.pages(action, "reservationSet", PAGE, Filter=asked):
            for item in answers.listed(action, reservation, "instancesSet"):
                found = answers.instance(action, item, region.name)
                if not found.gone:
                    yield existing(
                        found.tags,
                        id=found.id,
                        name=found.tags.get("Name", ""),
                        region=region.name,
                        zone=found.zone,
                        type=found.type,
                        state=found.state,
                        spot=item.get("instanceLifecycle") == "spot",
                    )


def volumes(region: Region, ids: Collection[str] | None) -> Iterator[Existing]:
    """Those of one region that have not ended."""
    action = "DescribeVolumes"
    for asked in _asked("volume-id", VOLUME, ids):
        for item in region.pages(action, "volumeSet", PAGE // 2, Filter=asked):
            found = answers.volume(action, item, region.name)
            if not found.gone:
                yield existing(
                    found.tags,
                    id=found.id,
                    name=found.tags.get("Name", ""),
                    region=region.name,
                    zone=found.zone,
                    type=found.type,
                    state=found.state,
                    size=found.size,
                    on=tuple(held.instance for held in found.held),
                    boots=any(_goes_along(held) for held in item.get("attachmentSet") or ()),
                )


def _goes_along(held: Mapping[str, Any]) -> bool:
    return str(held.get("deleteOnTermination")).lower() == "true"


def _asked(name: str, form: str, ids: Collection[str] | None) -> Iterator[list[dict[str, object]] | None]:
    """The filters of one listing each."""
    if ids is None:
        yield None
        return
    good = sorted(made for made in ids if re.fullmatch(form, made))
    for start in range(0, len(good), VALUES):
        yield [{"Name": name, "Value": good[start : start + VALUES]}]


def let_go(region: Region, made: str, tags: Mapping[str, str]) -> None:
    """Take what we wrote off an instance or a volume. Our name goes last: until then it is found again."""
    region.untag(made, users(tags, made))
    region.untag(made, [key for key in tags if key.startswith(marks.OURS)])
