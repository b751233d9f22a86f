"""What is there already, as documents: instances and volumes of a cloud, and hosts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from declarative.language.loader.foreign_formats import Draft, Noted, name_of
from declarative.model.diagnostic import and_more
from declarative.model.spec.text import NAME
from declarative.provider import Existing

MOST_NAMED = 20
"""Things that are left out and named; more are counted."""


def chosen(
    found: Iterable[Existing], regions: Collection[str], tags: Mapping[str, str | None], names: Sequence[str]
) -> list[Existing]:
    """Those in the regions, with all of the tags (None: with any value), and of one of the names; nothing
    asked for is no limit.
    """

    def fits(each: Existing) -> bool:
        has = all(k in each.tags and v in (None, each.tags[k]) for k, v in tags.items())
        named = not names or any(fnmatchcase(text, glob) for glob in names for text in (each.name, each.id))
        return has and named and (not regions or each.region in regions)

    return sorted(filter(fits, found), key=lambda each: (each.region, each.name, each.id))


class FreeNames:
    """Names of one kind of documents, each given once."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {*taken}

    def unused(self, text: str, default: str, notes: list[str]) -> str:
        """The text as a name, or the default; with a number where another has it."""
        plain = default if NAME.fullmatch(default) else "imported"
        base = name_of(text, plain, notes) or plain
        name, number = base, 2
        while name in self._taken:
            name, number = f"{base[:37].rstrip('-')}-{number}", number + 1
        if name != base:
            notes.append(f"another has the name `{base}`")
        self._taken.add(name)
        return name


def fleets_of(
    found: Iterable[Existing], backend: str, names: FreeNames, fleet: str | None
) -> tuple[list[Draft], list[str]]:
    """Fleets that adopt instances, one for each region and type or one in all; and what was left out."""
    free, left = _free(found, "instance")
    groups: dict[tuple[object, ...], list[Existing]] = {}
    for each in free:
        key = () if fleet else (each.region, each.type, each.spot)
        groups.setdefault(key, []).append(each)
    regions = {each.region for each in free}
    drafts: list[Draft] = []
    for members in groups.values():
        first = members[0]
        words = [first.type, *([first.region] if len(regions) > 1 else []), *(["spot"] if first.spot else [])]
        draft = Draft("fleet")
        own = names.unused(fleet or "-".join(words), f"fleet-{len(drafts)}", [])
        draft.fields = {
            "name": own,
            "backends": [backend],
            "instance_ids": [Noted(each.id, _about(each)) for each in members],
        }
        draft.notes.append(
            "`apply` adopts these instances as they are: it restarts nothing, and writes tags. What is "
            "removed from here is let go, and stays."
        )
        drafts.append(draft)
    return drafts, left


def _about(each: Existing) -> str:
    where = f"{each.type} in {each.zone or each.region}"
    facts = [each.name, where, each.state, *(["spot"] if each.spot else [])]
    return ", ".join(fact for fact in facts if fact)


def volumes_of(found: Iterable[Existing], backend: str, names: FreeNames) -> tuple[list[Draft], list[str]]:
    """A document for each volume, which adopts it; and what was left out."""
    free, left = _free(found, "volume")
    drafts: list[Draft] = []
    for each in free:
        draft = Draft("volume")
        name = names.unused(
            each.name, each.id if NAME.fullmatch(each.id) else f"v-{each.id}"[:41], draft.notes
        )
        draft.fields = {
            "name": name,
            "backend": backend,
            "region": each.region,
            "availability_zone": each.zone,
            "size": f"{each.size}GB" if each.size is not None else None,
            "volume_type": each.type or None,
            "volume_id": each.id,
        }
        draft.fields = {key: value for key, value in draft.fields.items() if value is not None}
        if each.on:
            draft.notes.append(f"it is on {', '.join(each.on)}: detach it before a task mounts it elsewhere")
        drafts.append(draft)
    return drafts, left


def _free(found: Iterable[Existing], word: str) -> tuple[list[Existing], list[str]]:
    """Those that can be adopted, and what to say of the others."""
    free: list[Existing] = []
    owned: list[str] = []
    boots: list[str] = []
    for each in found:
        if each.lineage:
            owned.append(
                f"{each.id} ({each.address or 'a thing'} of the state with the lineage {each.lineage})"
            )
        elif each.boots:
            boots.append(each.id)
        else:
            free.append(each)
    left = []
    if owned:
        left.append(f"left out, since a state has them: {and_more(owned, MOST_NAMED)}")
    if boots:
        left.append(f"left out, since they go with their instances: {and_more(boots, MOST_NAMED)}")
    if not free:
        left.append(f"there is no {word} to adopt{' besides' if owned or boots else ''}")
    return free, left


def hosts_of(
    groups: Mapping[str, Sequence[Mapping[str, Any]]],
    common: Mapping[str, Any],
    names: FreeNames,
    about: Callable[[Mapping[str, Any]], str],
) -> list[Draft]:
    """A fleet of hosts for each group, whose name it gets. `common` are fields of `ssh_config` for all;
    `about` says what is known of a host.
    """
    drafts: list[Draft] = []
    for group, hosts in groups.items():
        draft = Draft("fleet")
        shared = {k: v for k, v in hosts[0].items() if k != "hostname" and all(h.get(k) == v for h in hosts)}
        entries = [_host({k: v for k, v in host.items() if k not in shared}, about(host)) for host in hosts]
        draft.fields = {
            "name": names.unused(group, f"fleet-{len(drafts)}", draft.notes),
            "ssh_config": {**common, **shared, "hosts": entries},
        }
        drafts.append(draft)
    return drafts


def _host(fields: Mapping[str, Any], note: str) -> Any:
    if set(fields) == {"hostname"}:
        return Noted(str(fields["hostname"]), note)
    return {**fields, "hostname": Noted(str(fields["hostname"]), note)}
