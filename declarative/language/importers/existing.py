"""Turns existing things into documents: instances and volumes of a cloud, and hosts.

Hosts also come from lists that people have: ssh configuration files, Ansible inventories, plain lists.
Nothing is run, and no other file is read. Values that an inventory would compute are left out, with a note.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Any

from declarative.language.importers.drafts import Draft, Noted, mapping_of, name_of, unused_name
from declarative.model.record import struct
from declarative.model.spec.values import NAME
from declarative.model.text import and_more
from declarative.provider.optional import Existing

MOST_NAMED = 20
"""How many left-out things a note names; it counts the rest."""


def chosen(
    things: Iterable[Existing], regions: Collection[str], tags: Mapping[str, str | None], names: Sequence[str]
) -> list[Existing]:
    """The things in the regions, with all of the tags (None: any value) and one of the names. An empty
    argument sets no limit.
    """

    def fits(each: Existing) -> bool:
        has = all(k in each.tags and v in (None, each.tags[k]) for k, v in tags.items())
        named = not names or any(fnmatchcase(text, glob) for glob in names for text in (each.name, each.id))
        return has and named and (not regions or each.region in regions)

    return sorted(filter(fits, things), key=lambda each: (each.region, each.name, each.id))


class FreeNames:
    """Gives each name for one kind of documents only once."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {*taken}

    def unused(self, text: str, default: str, notes: list[str]) -> str:
        """The text as a name, or the default; with a number if the name is taken."""
        plain = default if NAME.fullmatch(default) else "imported"
        base = name_of(text, plain, notes) or plain
        name = unused_name(base, self._taken)
        if name != base:
            notes.append(f"another has the name `{base}`")
        self._taken.add(name)
        return name


def fleets_of(
    instances: Iterable[Existing], backend: str, names: FreeNames, fleet: str | None
) -> tuple[list[Draft], list[str]]:
    """Fleets that adopt instances, one for each region and type or one for all; and notes about instances
    that are left out.
    """
    free, left_out = _free(instances, "instance")
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
            "instance_ids": [Noted(each.id, _facts(each)) for each in members],
        }
        draft.notes.append(
            "`apply` adopts these instances as they are: it restarts nothing, and writes tags. An "
            "instance removed from here is released, and stays."
        )
        drafts.append(draft)
    return drafts, left_out


def _facts(each: Existing) -> str:
    where = f"{each.type} in {each.zone or each.region}"
    facts = [each.name, where, each.state, *(["spot"] if each.spot else [])]
    return ", ".join(fact for fact in facts if fact)


def volumes_of(volumes: Iterable[Existing], backend: str, names: FreeNames) -> tuple[list[Draft], list[str]]:
    """A document for each volume, which adopts it; and notes about volumes that are left out."""
    free, left_out = _free(volumes, "volume")
    drafts: list[Draft] = []
    for each in free:
        draft = Draft("volume")
        default = each.id if NAME.fullmatch(each.id) else f"v-{each.id}"[:41]
        name = names.unused(each.name, default, draft.notes)
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
    return drafts, left_out


def _free(things: Iterable[Existing], word: str) -> tuple[list[Existing], list[str]]:
    """The things that can be adopted, and notes about the others."""
    free: list[Existing] = []
    owned: list[str] = []
    boots: list[str] = []
    for each in things:
        if each.lineage:
            whose = f"{each.address or 'a thing'} of the state with the lineage {each.lineage}"
            owned.append(f"{each.id} ({whose})")
        elif each.boots:
            boots.append(each.id)
        else:
            free.append(each)
    notes = []
    if owned:
        notes.append(f"left out, since a state has them: {and_more(owned, MOST_NAMED)}")
    if boots:
        notes.append(f"left out, since they go with their instances: {and_more(boots, MOST_NAMED)}")
    if not free:
        notes.append(f"there is no {word} to adopt{' besides' if owned or boots else ''}")
    return free, notes


def hosts_of(
    groups: Mapping[str, Sequence[Mapping[str, Any]]],
    common: Mapping[str, Any],
    names: FreeNames,
    about: Callable[[Mapping[str, Any]], str],
) -> list[Draft]:
    """A fleet of hosts for each group, with the group's name. `common` are fields of `ssh_config` for all;
    `about` returns what is known about a host.
    """
    drafts: list[Draft] = []
    for group, hosts in groups.items():
        draft = Draft("fleet")
        shared = {k: v for k, v in hosts[0].items() if k != "hostname" and all(h.get(k) == v for h in hosts)}
        entries = []
        for host in hosts:
            hostname = Noted(str(host["hostname"]), about(host))
            own = {key: value for key, value in host.items() if key not in shared}
            entries.append(hostname if set(own) == {"hostname"} else {**own, "hostname": hostname})
        draft.fields = {
            "name": names.unused(group, f"fleet-{len(drafts)}", draft.notes),
            "ssh_config": {**common, **shared, "hosts": entries},
        }
        drafts.append(draft)
    return drafts


FIELDS: Mapping[str, str] = {
    "ansible_host": "hostname",
    "ansible_port": "port",
    "ansible_user": "user",
    "ansible_ssh_private_key_file": "identity_file",
}
"""Ansible's variables, and the fields of a host with the same meaning."""
ALL = ("all", "ungrouped")
"""Names that mean all hosts, not a group."""
_LOGIN = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?P<hostname>\[[0-9a-fA-F:.]+\]|[^:@\s]+)(?::(?P<port>\d{1,5}))?"
)
_RANGE = re.compile(r"\[(\w+):(\w+)(?::(\d+))?\]")
_SECTION = re.compile(r"\[([\w.-]+)(?::(vars|children))?\]")
MOST_HOSTS = 10_000
"""The limit for the hosts of one range."""


@struct(slots=True)
class HostList:
    """Hosts by the first group that names them (empty for none), and notes about what was left out."""

    groups: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    addresses: set[tuple[object, object]] = field(default_factory=set)
    """Hostname and port of each host."""

    def add(self, group: str, host: dict[str, Any]) -> None:
        """Add a host, unless another group has it."""
        address = (host["hostname"], host.get("port"))
        if address not in self.addresses:
            self.addresses.add(address)
            self.groups.setdefault("" if group in ALL else group, []).append(host)

    def drop(self, what: str) -> None:
        """Note once that something was left out."""
        note = f"left out {what}"
        if note not in self.notes:
            self.notes.append(note)


def login(text: str) -> dict[str, Any] | None:
    """`user@host:port` as the fields of a host; None for any other text."""
    match = _LOGIN.fullmatch(text)
    if match is None:
        return None
    fields = {key: value for key, value in match.groupdict().items() if value}
    fields["hostname"] = fields["hostname"].strip("[]")
    port = fields.pop("port", None)
    return {**fields, **({"port": int(port)} if port else {})}


def of_ssh(text: str, hosts: HostList) -> None:
    """Add the aliases in an ssh configuration file. ssh itself resolves them."""
    for line in text.splitlines():
        words = line.replace("=", " ", 1).split()
        if not words or words[0].lower() != "host":
            if words and words[0].lower() in ("include", "match"):
                hosts.drop(f"`{words[0]}` of ssh's configuration: name its hosts on the command line")
            continue
        for alias in words[1:]:
            if not re.search(r"[*?!\"]", alias):
                hosts.add("", {"hostname": alias})


def of_lines(text: str, hosts: HostList) -> None:
    """Add the hosts of an Ansible inventory in lines, or of a plain list."""
    group, kind = "", ""
    common: dict[str, dict[str, str]] = {}
    listed: list[tuple[str, dict[str, Any]]] = []
    for raw in text.splitlines():
        line = re.sub(r"(^|\s)[#;].*", "", raw).strip()
        if not line:
            continue
        if section := _SECTION.fullmatch(line):
            group, kind = section[1], section[2] or ""
            continue
        if kind == "vars":
            key, _, value = line.partition("=")
            common.setdefault(group, {})[key.strip()] = value.strip().strip("\"'")
        elif kind:
            hosts.drop(f"`[{group}:{kind}]`: hosts are in the fleet of the first group that lists them")
        else:
            try:
                name, *words = shlex.split(line)
            except ValueError:  # a quote is not closed
                name, *words = line.split()
            variables = dict(word.split("=", 1) for word in words if "=" in word)
            listed += [(group, host) for host in _named(name, variables, hosts)]
    for name, host in listed:
        hosts.add(name, {**_fields({**common.get("all", {}), **common.get(name, {})}, hosts), **host})


def of_tree(data: Any, hosts: HostList, group: str = "all", above: Mapping[str, Any] | None = None) -> None:
    """Add the hosts of an Ansible inventory in YAML, as plain data: `{all: {hosts: …, vars: …, children:
    …}}`.
    """
    if not isinstance(data, Mapping):
        return
    if group == "all" and "hosts" not in data and "children" not in data:
        for name, inner in data.items():
            of_tree(inner, hosts, str(name), above)
        return
    common = {**(above or {}), **mapping_of(data.get("vars"))}
    for name, inner in mapping_of(data.get("children")).items():
        of_tree(inner, hosts, str(name), common)
    for name, variables in mapping_of(data.get("hosts")).items():
        for host in _named(str(name), {**common, **mapping_of(variables)}, hosts):
            hosts.add(group, host)


def _named(name: str, variables: Mapping[str, Any], hosts: HostList) -> Iterator[dict[str, Any]]:
    """The hosts that one name stands for, with their variables."""
    own = _fields(variables, hosts)
    for each in _each_of_range(name):
        address = login(each)
        if address is None:
            hosts.drop(f"`{each}`: it is not the name or the address of a host")
        else:
            yield {**address, **own}


def _fields(variables: Mapping[str, Any], hosts: HostList) -> dict[str, Any]:
    """The fields of a host that Ansible's variables give."""
    fields: dict[str, Any] = {}
    for key, value in variables.items():
        target = FIELDS.get(key)
        if target is None:
            continue
        if "{{" in str(value):
            hosts.drop(f"`{key}`: it is computed")
        elif target == "port":
            fields[target] = int(value) if str(value).isdecimal() else value
        else:
            fields[target] = str(value)
    return fields


def _each_of_range(name: str) -> Iterator[str]:
    """`node[01:16]` as sixteen names."""
    match = _RANGE.search(name)
    if match is None:
        yield name
        return
    first, last, step = match[1], match[2], int(match[3] or 1)
    if first.isdecimal() and last.isdecimal():
        numbers = range(int(first), int(last) + 1, max(1, step))
        parts = [str(n).zfill(len(first)) for n in numbers[:MOST_HOSTS]]
    elif len(first) == len(last) == 1:
        parts = [chr(n) for n in range(ord(first), ord(last) + 1, max(1, step))]
    else:
        parts = []
    for part in parts:
        yield from _each_of_range(f"{name[: match.start()]}{part}{name[match.end() :]}")
