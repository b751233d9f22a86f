"""Servers and volumes of a project that are there, whoever made them: by the page, all that a page says."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from declarative.provider.optional import Existing
from providers.cloud.checks import existing
from providers.cloud.openstack import answers
from providers.cloud.openstack.region import Region


def servers(region: Region, ids: Collection[str] | None) -> Iterator[Existing]:
    """Those of one region that have not ended."""
    for found in region.servers():
        if not found.gone and (ids is None or found.id in ids):
            yield existing(
                found.tags,
                id=found.id,
                name=found.name,
                region=region.name,
                zone=found.zone or None,
                type=found.flavor,
                state=found.status,
            )


def volumes(region: Region, ids: Collection[str] | None) -> Iterator[Existing]:
    """Those of one region that have not ended. A server starts from one that can be started from."""
    what = "listing volumes"
    for item in region.pages(what, "volume", "/volumes/detail", "volumes"):
        found = answers.volume(what, item, region.name)
        if not found.gone and (ids is None or found.id in ids):
            yield existing(
                found.tags,
                id=found.id,
                name=str(item.get("name") or ""),
                region=region.name,
                zone=found.zone or None,
                type=found.type,
                state=found.state,
                size=found.size,
                on=tuple(held.server for held in found.held),
                boots=bool(found.held) and str(item.get("bootable")).lower() == "true",
            )
