"""Works out the volumes of each rank, and compares them with declared volumes and with each other.

It also compares the variables that documents name with the variables that fleetform sets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from declarative.language.loader.documents import Declaration, shown_place
from declarative.language.loader.findings import Findings
from declarative.language.source import Path
from declarative.language.source.places import Spot
from declarative.language.template import TemplateError, TemplateScope, for_ranks
from declarative.model.diagnostic import Severity
from declarative.model.inputs import VOLUME_VARIABLE, always_set, knows_siblings
from declarative.model.record import struct
from declarative.model.resource import RankMount, VolumeWant, volume_inputs
from declarative.model.schema import BadValueError
from declarative.model.spec import Backend, Mount, Name, Task, Volume
from declarative.model.spec.mounts import Inline
from declarative.model.spec.values import Env, check_name

MAX_MOUNTS = 250_000
"""The limit for the mounts of all ranks together. Alternatives count one by one."""
_NUMBERED = re.compile(r"(.+)-[0-9]+")
_TEMPLATE = re.compile(r"\$\{\{[^}]*\}\}|\$\{DSTACK_NODE_RANK\}")
_BASE = re.compile(r"[a-z][a-z0-9-]*")
_OWN = "${{ node_rank }}"
_USED = re.compile(rf"\b{VOLUME_VARIABLE}[A-Z0-9_]+(?![A-Za-z0-9_$*]|:?[-=?+])")
"""A variable of a volume in a command, unless the command sets it, has a default or builds the name."""
_SET = re.compile(rf"\b({VOLUME_VARIABLE}[A-Z0-9_]+):?=")

RankMounts = tuple[tuple[RankMount, ...], ...]


@struct(slots=True)
class Volumes:
    """All volumes: `wants` by name, and where each is declared.

    `documents` are the declared ones, also those that could not be decoded.
    """

    documents: Mapping[str, Declaration]
    backend: Callable[[str | None], Backend]
    check_backend: Callable[[Declaration, Path, Volume | Inline], None]
    wants: dict[str, VolumeWant] = field(default_factory=dict)
    places: dict[str, Spot] = field(default_factory=dict)

    def may_be_undecoded(self, name: str) -> bool:
        """Whether `name` may belong to a document that could not be decoded."""
        match = _NUMBERED.fullmatch(name)
        bases = (name, match[1]) if match else (name,)
        return any(b in self.documents and self.documents[b].spec is None for b in bases)


@struct(frozen=True, slots=True)
class _Names:
    """One mount of a task: each alternative's names by rank. A single name is the same for all ranks."""

    index: int
    mount: Mount
    alternatives: tuple[tuple[str, ...], ...]
    variable: str

    def of(self, rank: int) -> tuple[str, ...]:
        return tuple(names[rank] if len(names) > 1 else names[0] for names in self.alternatives)


def mounted(
    tasks: Sequence[Declaration], volumes: Volumes, scope: TemplateScope, findings: Findings
) -> dict[str, RankMounts]:
    """The mounts of every rank of every task. Inline volumes are added to `volumes` first."""
    passes = [_Task(entry, volumes, scope, findings) for entry in tasks]
    total = 0
    for one in passes:
        total += one.task.nodes * sum(max(1, len(mount.names)) for mount in one.task.volumes)
        if total > MAX_MOUNTS:
            summary = f"all ranks together have more than {MAX_MOUNTS} mounts"
            one.say(("volumes",), "too-large", summary, "mount fewer")
            return {entry.name: () for entry in tasks}
        one.name()
        one.declare()
    return {one.entry.name: one.mounts() for one in passes}


class _Task:
    """The mounts of one task: names, then inline volumes, then checks once all volumes are known."""

    def __init__(
        self, entry: Declaration, volumes: Volumes, scope: TemplateScope, findings: Findings
    ) -> None:
        self.entry, self.volumes, self.scope, self.findings = entry, volumes, scope, findings
        self.task: Task = entry.spec
        self.named: list[_Names] = []

    def say(self, path: Path, code: str, summary: str, hint: str | None = None) -> None:
        span = self.entry.document.span(path)
        self.findings.add(code, summary, hint, span=span, address=self.entry.address)

    def _path(self, index: int, alternative: int = 0) -> Path:
        """The path in the document of a mount's name."""
        written = self.entry.data["volumes"][index]
        if isinstance(written, str):
            return ("volumes", index)
        return ("volumes", index, "name", *([alternative] if isinstance(written["name"], list) else []))

    def name(self) -> None:
        """Work out the names of all mounts. Invalid ones are reported and left out."""
        named: list[tuple[int, Mount, tuple[tuple[str, ...], ...], str]] = []
        for index, mount in enumerate(self.task.volumes):
            if mount.instance_path is not None:
                continue  # a folder of the host does not bind a rank to a place
            alternatives: list[tuple[str, ...]] = []
            bases: list[str] = []
            for j, text in enumerate(mount.names):
                by_rank = self._by_rank(text, self._path(index, j))
                if by_rank is not None:
                    alternatives.append(by_rank[0])
                    bases.append(by_rank[1])
            if len(alternatives) == len(mount.names):
                named.append((index, mount, tuple(alternatives), bases[0].upper().replace("-", "_")))
        variables = _distinct([item[3] for item in named])
        self.named = [_Names(*item[:3], variable) for item, variable in zip(named, variables, strict=True)]

    def _by_rank(self, text: str, path: Path) -> tuple[tuple[str, ...], str] | None:
        """The names of one alternative by rank, and the name without the rank's number."""
        try:
            name = for_ranks(text, self.scope)
            if name is None:
                return (check_name(text),), text
            # Long ones are checked at once: a hundred thousand ranks may each have one.
            names = map(name, range(self.task.nodes))
            return _numbered([each if len(each) <= 100 else check_name(each) for each in names])
        except TemplateError as bad:
            if bad.code != "unset":
                self.say(path, bad.code, str(bad), bad.hint)
        except BadValueError as bad:
            hint = bad.hint
            if "${" in text:  # the nearest name that is different for each rank
                base = _TEMPLATE.sub("", text).strip("-") if len(text) <= 100 else ""
                hint = f"write `{base if _BASE.fullmatch(base) else 'name'}-{_OWN}`"
            self.say(path, bad.code, bad.summary, hint)
        return None

    def declare(self) -> None:
        """Add the inline volumes, one for each rank."""
        for item in tuple(self.named):
            inline = item.mount.inline
            if inline is None:
                continue
            path, names = self._path(item.index), item.alternatives[0]
            if len(names) < self.task.nodes:
                summary = f"`{names[0]}` would be created once for {self.task.nodes} ranks"
                self.say(path, "volume-of-two-ranks", summary, f"write `{names[0]}-{_OWN}`")
                self.named.remove(item)
                continue
            self.volumes.check_backend(self.entry, ("volumes", item.index), inline)
            spot = self.entry.document.spot(path)
            volume = Volume(
                name=Name(names[0]),
                backend=Name(inline.backend) if inline.backend is not None else None,
                region=inline.region,
                availability_zone=inline.availability_zone,
                size=inline.size,
                prevent_destroy=inline.prevent_destroy,
            )
            inputs = volume_inputs(volume, self.volumes.backend(inline.backend))
            for name in dict.fromkeys(names):
                if name in self.volumes.wants or name in self.volumes.documents:
                    first = self.volumes.places.get(name) or self.volumes.documents[name].spot
                    summary = f"there is another volume `{name}`, at {shown_place(first.span)}"
                    hint = "give one of them another name, or leave out `size` here"
                    self.say(path, "duplicate-name", summary, hint)
                    break
                want = VolumeWant(name=name, inputs=inputs, declared_by=self.entry.address)
                self.volumes.wants[name] = want
                self.volumes.places[name] = spot

    def mounts(self) -> RankMounts:
        """The mounts of each rank, checked."""
        for item in self.named:
            for j, names in enumerate(item.alternatives):
                self._exists(item, j, names)
        self._check_unique()
        if not self.named:
            return ((),) * self.task.nodes
        return tuple(
            tuple(RankMount(path=i.mount.path, names=i.of(rank), variable=i.variable) for i in self.named)
            for rank in range(self.task.nodes)
        )

    def _exists(self, item: _Names, alternative: int, names: Sequence[str]) -> None:
        for rank, name in enumerate(names):
            if name in self.volumes.wants or self.volumes.may_be_undecoded(name) or self.findings.lost:
                continue
            whose = f" (for rank {rank})" if len(names) > 1 else ""
            path, summary = self._path(item.index, alternative), f"no volume is named `{name}`{whose}"
            self.say(path, "dangling-reference", summary, self._hint(item, name))
            return

    def _hint(self, item: _Names, name: str) -> str:
        wants, documents = self.volumes.wants, self.volumes.documents
        if f"{name}-0" in wants:
            return f"write `{name}-{_OWN}` for each rank's own, or `{name}-0`"
        match = _NUMBERED.fullmatch(name)
        base = match[1] if match else name
        declared = documents.get(base) if match else None
        if declared is not None and declared.spec is not None:
            count = declared.spec.count
            has = f"`{base}` has `count: {count}`" if count else f"`{base}` has no `count`"
            ends = (each.rpartition("-")[2] for names in item.alternatives for each in names)
            return f"{has}; write `count: {max(int(end) for end in ends if end.isdecimal()) + 1}`"
        near = self.findings.near(name, [*documents, *wants] if len(wants) <= 1000 else list(documents))
        return near or f"declare it: `type: volume` with `name: {base}`, or add `size:` here"

    def _check_unique(self) -> None:
        """Report volumes that are used twice: a volume is attached to one node at a time, and mounted once
        there.
        """
        users: dict[str, tuple[int, str]] = {}  # volume → the rank that mounts it, and where
        for item in self.named:
            if len(item.alternatives) > 1:
                continue
            for rank in range(self.task.nodes):
                name = item.of(rank)[0]
                if name not in self.volumes.wants:
                    break  # reported already
                other = users.setdefault(name, (rank, item.mount.path))
                if other == (rank, item.mount.path):
                    continue
                if other[0] == rank:
                    summary = f"`{name}` is mounted twice by rank {rank}"
                    hint = "mount it once, and use folders of it"
                else:
                    why = "a volume is attached to one node at a time"
                    summary = f"`{name}` is mounted by ranks {other[0]} and {rank}; {why}"
                    match = _NUMBERED.fullmatch(name)
                    base = match[1] if match else name
                    hint = f"write `{base}-{_OWN}`, with `count: {self.task.nodes}` in the volume `{base}`"
                self.say(self._path(item.index), "volume-of-two-ranks", summary, hint)
                break


def _numbered(names: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The names by rank, checked, and the part before the number at their end."""
    match = _NUMBERED.fullmatch(names[0])
    base = match[1] if match else ""
    if not base or not all(n.startswith(base + "-") and n[len(base) + 1 :].isdecimal() for n in names):
        raise BadValueError("rank-name", "the names of the ranks may differ only in a number at their end")
    return tuple(check_name(n) for n in names), base


def _distinct(variables: Sequence[str]) -> list[str]:
    """The names made distinct: the second mount with the same name gets `_2`, and so on."""
    out: list[str] = []
    taken: set[str] = set()
    for variable in variables:
        name, number = variable, 1
        while name in taken or (number > 1 and name in variables):
            number += 1
            name = f"{variable}_{number}"
        taken.add(name)
        out.append(name)
    return out


def warn_variables(
    fleets: Sequence[Declaration],
    tasks: Sequence[Declaration],
    mounts: Mapping[str, RankMounts],
    findings: Findings,
) -> None:
    """Warn about variables that a document declares and fleetform replaces, or uses and nothing sets."""
    set_by_fleets = frozenset(name for fleet in fleets for _, env in _envs(fleet) for name, _ in env)
    for entry in tasks:
        if entry.document.may_hold(VOLUME_VARIABLE):
            _warn_unset(entry, mounts[entry.name], set_by_fleets, findings)
    for entry in (*fleets, *tasks):
        declared = [(path, env) for path, env in _envs(entry) if env]
        if not declared:
            continue
        task = entry.kind == "task"
        own = always_set(siblings=task and knows_siblings(entry.spec))
        own |= _of_mounts(mounts[entry.name]) if task else frozenset()
        for path, env in declared:
            written: Any = entry.data
            for step in path:
                written = written[step]
            for i, name in enumerate(name for name, _ in env):
                if name not in own:
                    continue
                at = name if isinstance(written, Mapping) else i
                entry.add_finding(
                    findings,
                    (*path, at),
                    "replaced-variable",
                    f"`env` sets `{name}`, which fleetform sets for each rank: the rank gets "
                    "fleetform's value",
                    "give the variable another name, or remove it",
                    key=True,
                    severity=Severity.WARNING,
                )


def _envs(entry: Declaration) -> Iterator[tuple[Path, Env]]:
    """Each `env` of a fleet or task, with its path: a fleet's hosts may have their own."""
    yield ("env",), entry.spec.env
    config = entry.spec.ssh_config if entry.kind == "fleet" else None
    for i, host in enumerate(config.hosts if config else ()):
        yield ("ssh_config", "hosts", i, "env"), host.env


def _warn_unset(entry: Declaration, mounts: RankMounts, known: frozenset[str], findings: Findings) -> None:
    """Warn about variables of volumes that a task's commands use, and nothing sets."""
    declared = sum(mount.instance_path is None for mount in entry.spec.volumes)
    if not mounts or len(mounts[0]) < declared:
        return  # a mount is wrong, and reported
    own = _of_mounts(mounts)
    commands = list(_commands(entry.data))
    known |= own.union(name for name, _ in entry.spec.env)
    known = known.union(*(_SET.findall(text) for _, text in commands))
    for path, text in commands:
        for name in dict.fromkeys(_USED.findall(text)):
            if name not in known:
                known |= {name}
                hint = findings.near(name, own)
                if hint is None and own:
                    hint = f"the task's volumes set {', '.join(f'`{variable}`' for variable in sorted(own))}"
                elif hint is None:
                    volume = name.removeprefix(VOLUME_VARIABLE).lower().replace("_", "-")
                    hint = f"mount the volume: `volumes: ['{volume}:/{volume}']`"
                summary = f"`commands` use `{name}`, and no volume of the task sets it"
                entry.add_finding(findings, path, "unset-variable", summary, hint, severity=Severity.WARNING)


def _commands(data: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, str]]:
    """The commands of a task or of its groups, with their places."""
    written = data.get("commands", ())
    if isinstance(written, str):
        yield (*above, "commands"), written
    else:
        yield from (((*above, "commands", i), text) for i, text in enumerate(written))
    for i, group in enumerate(data.get("groups", ())):
        yield from _commands(group, ("groups", i))


def _of_mounts(mounts: RankMounts) -> frozenset[str]:
    """The variables of a task's volumes, the same for all ranks."""
    return frozenset(VOLUME_VARIABLE + mount.variable for rank in mounts[:1] for mount in rank)
