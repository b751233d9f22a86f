"""Looks up the ids of flavors, images, networks and zones by name. A name that is not unique is an error."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from declarative.model.spec.backend import ImageFilter
from declarative.model.text import suggest
from declarative.provider import PermanentError, PermanentKind
from providers.cloud.account import if_there
from providers.cloud.openstack import answers
from providers.cloud.openstack.region import Region

_ID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}")


def flavor(region: Region, name: str) -> str:
    """The id of a flavor."""

    def look() -> str:
        found = flavors(region)
        ids = [f["id"] for f in found if f.get("name") == name] or [f["id"] for f in found if f["id"] == name]
        if not ids:
            names = sorted(str(f.get("name")) for f in found)
            hint = suggest(name, names) or f"it has these: {', '.join(names)[:200] or 'none'}"
            summary = f"there is no flavor `{name}` in {region.name}"
            raise PermanentError(PermanentKind.INVALID, summary, about="instance_type", hint=hint)
        return str(ids[0])

    return _known(region, "flavor", name, look)


def flavors(region: Region) -> list[dict[str, Any]]:
    """All flavors of the project, with their extra specs."""
    return list(region.pages("listing flavors", "compute", "/flavors/detail", "flavors"))


def image(region: Region, name: str) -> str:
    """The id of an image, given its id or its name."""

    def look() -> str:
        what = f"image {name}"
        if _ID.fullmatch(name):
            found = if_there(region.ask, what, "image", "GET", f"/v2/images/{name}", about="image")
            if found is not None and not (isinstance(found, dict) and "id" in found):
                raise answers.bad_answer(what, "has no `id`")
            items = [] if found is None else [found]
        else:
            found = region.ask(what, "image", "GET", "/v2/images", query={"name": name, "limit": 100})
            items = [i for i in answers.listed(what, found, "images") if i.get("name") == name]
        live = [i for i in items if i.get("status") == "active"]
        if items and not live:
            summary = f"the image `{name}` in {region.name} is {items[0].get('status')}, not active"
            raise PermanentError(PermanentKind.INVALID, summary, about="image")
        return _one(live, f"image `{name}`", region, "image", "`image` takes an id, too")

    return _known(region, "image", name, look)


def newest(region: Region, asked: ImageFilter) -> str:
    """The id of the newest matching image: of the named owner, else of the own project.

    Glance has no patterns, so all possible images are listed.
    """
    what = "listing images"
    whose: dict[str, object] = {"owner": asked.owner} if asked.owner else {"visibility": "private"}
    fits = re.compile(fnmatch.translate(asked.name.replace("[", "[[]")))
    found = [
        image
        for image in region.images(what, {"status": "active", **whose})
        if fits.match(str(image.get("name") or "")) and not image.get("os_hidden")
    ]
    if found:
        return str(max(found, key=lambda image: (str(image.get("created_at") or ""), str(image["id"])))["id"])
    summary = f"{region.name} has no image that fits {asked}"
    hint = "`owner` is the id of the project whose image it is; check its name, and whether it is there"
    raise PermanentError(PermanentKind.NOT_FOUND, summary, about="image", hint=hint)


def network(region: Region, name: str | None) -> str:
    """The id of a network; without a name, that of the only one."""

    def look() -> str:
        about = "options.network"
        if name is not None:
            by = "id" if _ID.fullmatch(name) else "name"
            hint = "`options.network` takes an id, too"
            return _one(_networks(region, {by: name}), f"network `{name}`", region, about, hint)
        found = _networks(region, {"router:external": False})
        if len(found) > 1:
            known = ", ".join(sorted(str(n.get("name") or n.get("id")) for n in found))
            summary = f"there are several networks in {region.name}, and none is named: {known[:200]}"
            hint = "write `options: {network: NAME}`"
            raise PermanentError(PermanentKind.INVALID, summary, about=about, hint=hint)
        return _one(found, "network", region, about, "a node needs one: have one made")

    return _known(region, "network", name or "", look)


def outside(region: Region, name: str | None) -> str:
    """The id of the network with public addresses."""

    def look() -> str:
        found = _networks(region, {"router:external": True})
        if name is not None:
            found = [n for n in found if name in (n.get("name"), n.get("id"))]
        what = f"network `{name}` of public addresses" if name else "network of public addresses"
        hint = "write `options: {floating_network: NAME}`"
        return _one(found, what, region, "options.floating_network", hint)

    return _known(region, "outside", name or "", look)


def _networks(region: Region, query: Mapping[str, object]) -> list[dict[str, Any]]:
    what = "listing networks"
    return answers.listed(what, region.ask(what, "network", "GET", "/v2.0/networks", query=query), "networks")


def zones(region: Region, api: str = "compute") -> tuple[str, ...]:
    """The available zones of nova or (`volume`) of cinder."""

    def look() -> str:
        what = "listing zones"
        found = region.ask(what, api, "GET", "/os-availability-zone")
        items = answers.listed(what, found, "availabilityZoneInfo")
        return "\n".join(
            sorted(
                str(item.get("zoneName"))
                for item in items
                if (item.get("zoneState") or {}).get("available") and item.get("zoneName") != "internal"
            )
        )

    return tuple(_known(region, "zones", api, look).split("\n"))


def disk_zone(region: Region, zone: object) -> str | None:
    """A zone in cinder's terms. In many clouds cinder has one zone for all of nova's, and chooses it itself:
    None.
    """
    if not zone or zone in zones(region, "volume"):
        return str(zone) if zone else None
    known = zones(region)
    if zone not in known:
        summary = f"there is no zone `{zone}` in {region.name}"
        hint = suggest(str(zone), known) or f"it has these: {', '.join(known)[:200]}"
        raise PermanentError(PermanentKind.INVALID, summary, about="availability_zone", hint=hint)
    return None


def _known(region: Region, kind: str, name: str, look: Callable[[], str]) -> str:
    key = (kind, name)
    if key not in region.known:
        region.known[key] = look()
    return region.known[key]


def _one(found: Sequence[dict[str, Any]], what: str, region: Region, about: str, hint: str) -> str:
    if len(found) == 1:
        return str(found[0]["id"])
    summary = f"there is no {what} in {region.name}"
    if found:
        ids = ", ".join(str(item.get("id")) for item in found)
        summary = f"there is more than one {what} in {region.name}: {ids[:200]}"
    raise PermanentError(PermanentKind.INVALID, summary, about=about, hint=hint)
