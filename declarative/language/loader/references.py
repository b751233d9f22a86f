"""Compares the documents with each other: unique names, names that exist, volumes one by one, the volumes of
each rank, and the variables that documents name beside those that fleetform sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from declarative.language.loader.documents import Declaration, Findings, Places, shown_place, shown_span
from declarative.language.loader.project import ProjectFile
from declarative.language.source import Path
from declarative.language.source.places import Spot
from declarative.language.template import TemplateError, TemplateScope, for_ranks
from declarative.model.diagnostic import Severity, Span
from declarative.model.inputs import VOLUME_VARIABLE, always_set, knows_siblings
from declarative.model.record import struct
from declarative.model.resource import (
    LOCAL,
    SLURM,
    SSH,
    Desired,
    RankMount,
    TaskWant,
    VolumeWant,
    catalog_size,
    volume_inputs,
    volume_names,
)
from declarative.model.schema import BadValueError
from declarative.model.spec import Backend, Mount, Name, Task, Volume
from declarative.model.spec.fleet import host_keys, is_public
from declarative.model.spec.task import Inline
from declarative.model.spec.values import MAX_NAME, Env, check_name
from declarative.model.state import natural

BUILT_IN = (LOCAL, SSH, SLURM)
"""Providers without a document of their own."""
MAX_VOLUMES = 200_000
MAX_RANKS = 200_000
MAX_HOSTS = 10_000
"""Each host costs at least one request."""
MAX_OFFERS = 100_000
"""The limit for the offers in all catalogs, counting each region and zone."""
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


class Assembly:
    """The documents of one project, by kind and name."""

    def __init__(self, entries: Sequence[Declaration], findings: Findings) -> None:
        self.findings = findings
        self.volumes: dict[str, VolumeWant] = {}
        """All volumes by name, those of a `count` one by one."""
        self.spots: dict[str, Spot] = {}
        """Where each volume is declared."""
        self._hosts_of: dict[str, list[str]] = {}
        self.kinds: dict[str, dict[str, Declaration]] = {
            kind: {} for kind in ("backend", "fleet", "volume", "task")
        }
        for entry in entries:
            first = self.kinds[entry.kind].setdefault(entry.name, entry)
            if first is not entry:
                summary = f"there is another {entry.kind} `{entry.name}`, at {shown_place(first.span)}"
                self._say(entry, ("name",), "duplicate-name", summary, "give one of them another name")
        self.backends = {e.name: e.spec for e in self._good("backend")}

    def _say(self, entry: Declaration, path: Path, code: str, summary: str, hint: str | None = None) -> None:
        entry.add_finding(self.findings, path, code, summary, hint)

    def _good(self, kind: str) -> list[Declaration]:
        """The documents of a kind that could be decoded, by name."""
        decoded = (e for e in self.kinds[kind].values() if e.spec is not None)
        return sorted(decoded, key=lambda e: natural(e.name))

    def desired(self, project: ProjectFile, scope: TemplateScope) -> Desired:
        """Everything that the documents declare, sorted by name."""
        self._check_backends()
        fleets = self._good("fleet")
        for entry in fleets:
            self._check_backend_names(entry)
            self._check_fleet_backends(entry)
            self._warn_public(entry)
            self._check_reservation(entry)
        self._check_hosts()
        self._declare_volumes()
        tasks = self._tasks()
        for entry in tasks:
            self._check_backend_names(entry)
            self._check_fleet_names(entry)
            self._check_queue(entry)
        mounts = self._mounts(tasks, scope)
        wants = {e.name: TaskWant(spec=e.spec, mounts=mounts[e.name]) for e in tasks}
        warn_variables(fleets, tasks, mounts, self.findings)
        places: dict[str, Spot | Span] = {e.address: e.spot for e in (*self._good("backend"), *fleets)}
        for entry in fleets:
            places |= _places_in(entry)
        places |= {f"volume/{name}": self.spots[name] for name in self.volumes}
        places |= {e.address: e.spot for e in tasks}
        return Desired(
            project=project.spec,
            backends=self.backends,
            fleets={e.name: e.spec for e in fleets},
            volumes={name: self.volumes[name] for name in sorted(self.volumes, key=natural)},
            tasks=wants,
            places=Places(places),
        )

    def _check_backends(self) -> None:
        declared = 0
        for entry in self._good("backend"):
            declared += catalog_size(entry.spec)
            if declared > MAX_OFFERS:
                summary = f"the catalogs have more than {MAX_OFFERS} offers, counting each region and zone"
                fewer = "name fewer `regions` or `availability_zones`, or fewer entries"
                self._say(entry, ("catalog",), "too-large", summary, fewer)
            if declared > MAX_OFFERS or self.findings.full:
                break  # looking for similar names takes a while
            if entry.spec.provider not in BUILT_IN:
                from declarative.provider import unknown  # reads all installed packages

                if hint := unknown(entry.spec.provider):
                    path = ("driver",) if entry.spec.driver else ("name",)
                    self._say(entry, path, "bad-value", f"there is no driver `{entry.spec.provider}`", hint)
            self._refuse_cloud_fields(entry, (), entry.spec, Backend.CLOUD, entry.spec.provider)

    def _check_backend_names(self, entry: Declaration) -> None:
        for i, name in enumerate(entry.spec.backends):
            self._check_backend_name(entry, ("backends", i), name)

    def _check_backend_name(self, entry: Declaration, path: Path, name: str) -> None:
        if name not in self.kinds["backend"] and name not in BUILT_IN:
            self._dangling(entry, path, "backend", name, [*self.kinds["backend"], *BUILT_IN])

    def _check_fleet_backends(self, entry: Declaration) -> None:
        """Check a fleet's backends: hosts need an ssh backend, and other nodes must not have one."""
        names = tuple(map(str, entry.spec.backends))
        if entry.spec.partition is not None:
            clusters = [n for n in self.kinds["backend"] if self._driver(n) == SLURM]
            if not names and clusters and SLURM not in self.kinds["backend"]:
                summary = "a partition belongs to one cluster, and the fleet names no backend"
                self._say(entry, ("partition",), "missing-field", summary, f"add `backends: [{clusters[0]}]`")
            self._one_backend(entry, names, SLURM, "a partition is")
        elif entry.spec.ssh_config is not None:
            self._one_backend(entry, names, SSH, "hosts are nodes")
        else:
            for i, name in enumerate(names):  # new nodes and adopted instances need a cloud's backend
                driver = self._driver(name)
                if entry.spec.instance_ids and driver in BUILT_IN:
                    summary = f"`instance_ids` name instances of a cloud, and `{name}` is not a cloud"
                    hint = "name a cloud's backend"
                elif driver == SLURM:
                    summary = f"the backend `{name}` launches nothing: its nodes exist already"
                    hint = "write `partition: …` in place of `nodes`"
                elif driver == SSH:
                    summary = f"the backend `{name}` launches nothing: it is for hosts that exist"
                    hint = "declare them as `ssh_config: {hosts: […]}`, or name another backend"
                else:
                    continue
                self._say(entry, ("backends", i), "nodes-and-ssh", summary, hint)

    def _one_backend(self, entry: Declaration, names: Iterable[str], driver: str, whose: str) -> None:
        for i, name in enumerate(names):
            if i or self._driver(name) != driver:
                summary = f"{whose} of one backend with the driver `{driver}`, and `{name}` is another one"
                self._say(entry, ("backends", i), "nodes-and-ssh", summary, "remove it")

    def _check_reservation(self, entry: Declaration) -> None:
        """This machine has no reservations. For clouds, the drivers check it."""
        if not entry.spec.reservation or entry.spec.partition:
            return
        names = tuple(map(str, entry.spec.backends))
        local = [i for i, name in enumerate(names) if self._driver(name) == LOCAL]
        if local or not (names or any(b.provider not in BUILT_IN for b in self.backends.values())):
            path: Path = ("backends", local[0]) if local else ("reservation",)
            summary = f"`reservation` is for clouds: the driver `{LOCAL}` cannot use it"
            self._say(entry, path, "bad-value", summary, "name a cloud's backend, or remove `reservation`")

    def _driver(self, name: str) -> str:
        known = self.backends.get(name)
        return known.provider if known else name

    def _check_hosts(self) -> None:
        """Each host belongs to one fleet only."""
        owners: dict[tuple[str, str], str] = {}
        for entry in self._good("fleet"):
            config = entry.spec.ssh_config
            path: Path = ("ssh_config", "hosts") if config else ("instance_ids",)
            named = [host.hostname for host in config.hosts] if config else entry.spec.instance_ids
            word = "a host" if config else "an instance"
            if len(owners) + len(named) > MAX_HOSTS:
                summary, hint = f"more than {MAX_HOSTS} hosts and instances are declared", "declare fewer"
                self._say(entry, path, "too-large", summary, hint)
                break
            for i, name in enumerate(named):
                backend = str(next(iter(entry.spec.backends), SSH))
                first = owners.setdefault((backend, name), entry.address)
                if first != entry.address:
                    summary = f"`{name}` is {word} of {first} too"
                    self._say(entry, (*path, i), "duplicate-host", summary, "remove one")

    def _warn_public(self, entry: Declaration) -> None:
        """Warn if the ranks of hosts would reach each other over the internet."""
        config = entry.spec.ssh_config
        if config is None:
            return
        addresses: list[tuple[Path, str | None]] = [(("ssh_config", "network"), config.network)]
        for i, host in enumerate(config.hosts):
            addresses.append((("ssh_config", "hosts", i, "internal_ip"), host.internal_ip))
        for path, address in addresses:
            if address is not None and is_public(address):
                own = "the hosts' own network, such as `10.0.0.0/24`"
                if path[-1] != "network":
                    own = "an address of the hosts' own network, such as `10.0.0.4`"
                summary = f"ranks reach each other by `{path[-1]}`, and `{address}` is a public address"
                hint = f"write {own}, or remove it"
                entry.add_finding(
                    self.findings, path, "public-address", summary, hint, severity=Severity.WARNING
                )

    def _check_fleet_names(self, entry: Declaration) -> None:
        names = [(("fleets", i), name) for i, name in enumerate(entry.spec.fleets)]
        pins = enumerate(entry.spec.instances)
        names += [(("instances", i), pin.fleet) for i, pin in pins if pin.host is None]
        for path, name in names:
            if name not in self.kinds["fleet"]:
                self._dangling(entry, path, "fleet", name, list(self.kinds["fleet"]))

    def _check_queue(self, entry: Declaration) -> None:
        """Only a Slurm cluster has a queue."""
        if not entry.spec.queue or self.findings.lost or self.findings.full:
            return
        named = entry.spec.fleets or self.kinds["fleet"]
        fleets = [e.spec for e in self._good("fleet") if e.name in named]
        if fleets and not any(spec.partition for spec in fleets):
            summary = "`queue` is for Slurm clusters, and no fleet that the task may use has a `partition`"
            hint = "to wait for capacity elsewhere, write `retry: {on_events: [no-capacity], duration: 1d}`"
            self._say(entry, ("queue",), "bad-value", summary, hint)

    def _dangling(self, entry: Declaration, path: Path, kind: str, name: str, known: list[str]) -> None:
        if self.findings.lost:
            return  # a document that could not be read may declare it
        near = self.findings.near.other_than_number(name, known)
        hint = near or f"declare it: `type: {kind}` with `name: {name}`"
        self._say(entry, path, "dangling-reference", f"no {kind} is named `{name}`", hint)

    def _declare_volumes(self) -> None:
        """Add the declared volumes, each with its number."""
        total = 0
        for entry in self._good("volume"):
            spec: Volume = entry.spec
            self.check_volume_backend(entry, (), spec)
            total += spec.count or 1
            if total > MAX_VOLUMES:
                summary = f"more than {MAX_VOLUMES} volumes are declared"
                self._say(entry, ("count",), "too-large", summary, "declare fewer")
                break
            names = volume_names(spec)
            try:
                check_name(names[-1])
            except BadValueError as bad:
                summary = f"with its number, `{names[-1][-20:]}`, the name has {len(names[-1])} characters"
                hint = f"shorten it by {len(names[-1]) - MAX_NAME}"
                self._say(entry, ("name",), bad.code, summary, hint)
                continue
            inputs, spot = volume_inputs(spec, self.default_backend(spec.backend)), entry.spot
            for name in names:
                other = self.volumes.get(name)
                if other is not None:
                    first = shown_place(self.spots[name].span)
                    summary = f"`{name}` is declared by `{other.declared_by}` too, at {first}"
                    self._say(entry, ("name",), "duplicate-name", summary, "give one of them another name")
                    break
                want = VolumeWant(name=name, inputs=inputs, declared_by=entry.address, cleanup=spec.cleanup)
                self.volumes[name] = want
                self.spots[name] = spot

    def default_backend(self, name: str | None) -> Backend:
        """The backend of that name. Without a name: the only declared one, else the built-in `local`."""
        if name is None and len(self.kinds["backend"]) == 1 and self._driver(*self.kinds["backend"]) != SSH:
            name = next(iter(self.kinds["backend"]))
        return self.backends.get(name or LOCAL) or _undeclared(name or LOCAL)

    def _candidates(self) -> list[str]:
        """The backends between which a volume must choose. A local folder cannot replace a cloud's disk."""
        drivers = {name: self._driver(name) for name in self.kinds["backend"]}
        clouds = [name for name, driver in drivers.items() if driver not in BUILT_IN]
        return sorted(drivers) if clouds and len(drivers) > 1 and LOCAL not in drivers.values() else []

    def check_volume_backend(self, entry: Declaration, path: Path, volume: Volume | Inline) -> None:
        """Check a volume's backend, and its region or host."""
        if volume.backend is not None:
            self._check_backend_name(entry, (*path, "backend"), volume.backend)
        elif several := self._candidates():
            hint = "write " + " or ".join(f"`backend: {name}`" for name in several)
            summary = "several backends are declared, and the volume names none of them"
            self._say(entry, path, "missing-field", summary, hint)
        host = volume.host if isinstance(volume, Volume) else None
        backend = self.default_backend(volume.backend)
        on_hosts = self._driver(volume.backend or LOCAL) == SSH
        self._refuse_cloud_fields(entry, path, volume, ("volume_id", "volume_type"), backend.provider)
        for field in _given(volume, ("region", "availability_zone")) if on_hosts else ():
            hint = "remove it: the volume is on its `host`, or else on the host of its rank"
            summary = f"hosts have no region, so a volume on a host cannot have `{field}`"
            self._say(entry, (*path, field), "volume-host", summary, hint)
        if backend.provider == LOCAL:  # this machine has only the regions that its backend declares
            own = {*(backend.regions or (LOCAL,)), *(r for offer in backend.catalog for r in offer.regions)}
            region = volume.region
            if region is not None and region.lower() not in {str(name).lower() for name in own}:
                summary = f"backend {backend.name} has no region `{region}`"
                hint = "remove it, or write the cloud's backend: `backend: NAME`"
                self._say(entry, (*path, "region"), "bad-value", summary, hint)
        if host is not None and on_hosts:
            known = self._host_names(str(volume.backend))
            if host not in known and not self.findings.lost:  # a document that is lost may declare it
                hint = self.findings.near(host, known) or "name a host as in a fleet's `ssh_config.hosts`"
                summary = f"no fleet of the backend `{volume.backend}` has a host `{host}`"
                self._say(entry, (*path, "host"), "dangling-reference", summary, hint)
        elif host is not None:
            summary = f"`host` is for volumes on hosts, and the backend `{backend.name}` has no hosts"
            self._say(entry, (*path, "host"), "volume-host", summary, f"write `backend: {SSH}`")

    def _refuse_cloud_fields(
        self, entry: Declaration, path: Path, spec: object, fields: Iterable[str], driver: str
    ) -> None:
        for field in _given(spec, fields) if driver in BUILT_IN else ():
            summary = f"`{field}` is for clouds: the driver `{driver}` cannot use it"
            self._say(entry, (*path, field), "bad-value", summary, "remove it")

    def _host_names(self, backend: str) -> list[str]:
        """The hosts of a backend, under the names that nodes and volumes use."""
        if backend not in self._hosts_of:
            fleets = [e.spec for e in self._good("fleet") if e.spec.ssh_config]
            mine = [f for f in fleets if str(next(iter(f.backends), SSH)) == backend]
            self._hosts_of[backend] = [key for fleet in mine for key in host_keys(fleet.ssh_config)]
        return self._hosts_of[backend]

    def _tasks(self) -> list[Declaration]:
        """The tasks, within the limit for ranks."""
        out: list[Declaration] = []
        total = 0
        for entry in self._good("task"):
            total += entry.spec.nodes
            if total > MAX_RANKS:
                summary = f"more than {MAX_RANKS} ranks are declared"
                self._say(entry, ("nodes",), "too-large", summary, "declare fewer")
                break
            out.append(entry)
        return out

    def _mounts(self, tasks: Sequence[Declaration], scope: TemplateScope) -> dict[str, RankMounts]:
        """The mounts of every rank of every task. Inline volumes are added first."""
        mounts = [_Mounts(entry, self, scope) for entry in tasks]
        total = 0
        for one in mounts:
            total += one.task.nodes * sum(max(1, len(mount.names)) for mount in one.task.volumes)
            if total > MAX_MOUNTS:
                summary = f"all ranks together have more than {MAX_MOUNTS} mounts"
                one.say(("volumes",), "too-large", summary, "mount fewer")
                return {entry.name: () for entry in tasks}
            one.name()
            one.declare()
        return {one.entry.name: one.mounts() for one in mounts}


@cache
def _undeclared(name: str) -> Backend:
    return Backend(name=Name(name))


def _given(spec: object, fields: Iterable[str]) -> list[str]:
    """The fields that are set."""
    return [field for field in fields if getattr(spec, field, None) is not None]


def _places_in(entry: Declaration) -> dict[str, Span]:
    """The places of fields that plans speak of: `fleet/gpu.blocks` and `fleet/gpu.identity_file` of a fleet,
    `fleet/gpu.hosts.0.blocks` of a host.
    """
    out: dict[str, Span] = {}
    if "blocks" in entry.data:
        out[f"{entry.address}.blocks"] = shown_span(entry.document, ("blocks",))
    config = entry.data.get("ssh_config")
    if not config:
        return out

    def note(fields: Mapping[str, Any], name: str, path: Path) -> None:
        for keys in (("blocks",), ("identity_file",), ("proxy_jump", "identity_file")):
            inner: Any = fields
            for key in keys:
                inner = inner.get(key) if isinstance(inner, Mapping) else None
            if inner:
                out[f"{name}.{'.'.join(keys)}"] = shown_span(entry.document, (*path, *keys))

    note(config, entry.address, ("ssh_config",))
    out[f"{entry.address}.hosts"] = shown_span(entry.document, ("ssh_config", "hosts"), key=True)
    for i, host in enumerate(config["hosts"]):
        if not isinstance(host, str):
            note(host, f"{entry.address}.hosts.{i}", ("ssh_config", "hosts", i))
    return out


# --------------------------------------------------------------------------------- the volumes of each rank


@struct(frozen=True, slots=True)
class _Names:
    """One mount of a task: each alternative's names by rank. A single name is the same for all ranks."""

    index: int
    mount: Mount
    alternatives: tuple[tuple[str, ...], ...]
    variable: str

    def of(self, rank: int) -> tuple[str, ...]:
        return tuple(names[rank] if len(names) > 1 else names[0] for names in self.alternatives)


class _Mounts:
    """The mounts of one task: names, then inline volumes, then checks once all volumes are known."""

    def __init__(self, entry: Declaration, assembly: Assembly, scope: TemplateScope) -> None:
        self.entry, self.assembly, self.scope = entry, assembly, scope
        self.findings = assembly.findings
        self.task: Task = entry.spec
        self.named: list[_Names] = []

    def say(self, path: Path, code: str, summary: str, hint: str | None = None) -> None:
        self.entry.add_finding(self.findings, path, code, summary, hint)

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
            self.assembly.check_volume_backend(self.entry, ("volumes", item.index), inline)
            spot = self.entry.document.spot(path)
            volume = Volume(
                name=Name(names[0]),
                backend=Name(inline.backend) if inline.backend is not None else None,
                region=inline.region,
                availability_zone=inline.availability_zone,
                size=inline.size,
                prevent_destroy=inline.prevent_destroy,
            )
            inputs = volume_inputs(volume, self.assembly.default_backend(inline.backend))
            for name in dict.fromkeys(names):
                if name in self.assembly.volumes or name in self.assembly.kinds["volume"]:
                    first = self.assembly.spots.get(name) or self.assembly.kinds["volume"][name].spot
                    summary = f"there is another volume `{name}`, at {shown_place(first.span)}"
                    hint = "give one of them another name, or leave out `size` here"
                    self.say(path, "duplicate-name", summary, hint)
                    break
                want = VolumeWant(name=name, inputs=inputs, declared_by=self.entry.address)
                self.assembly.volumes[name] = want
                self.assembly.spots[name] = spot

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
        documents = self.assembly.kinds["volume"]
        for rank, name in enumerate(names):
            match = _NUMBERED.fullmatch(name)
            bases = [documents[b] for b in ((name, match[1]) if match else (name,)) if b in documents]
            undecoded = any(document.spec is None for document in bases)
            if name in self.assembly.volumes or undecoded or self.findings.lost:
                continue
            whose = f" (for rank {rank})" if len(names) > 1 else ""
            path, summary = self._path(item.index, alternative), f"no volume is named `{name}`{whose}"
            self.say(path, "dangling-reference", summary, self._hint(item, name))
            return

    def _hint(self, item: _Names, name: str) -> str:
        wants, documents = self.assembly.volumes, self.assembly.kinds["volume"]
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
                if name not in self.assembly.volumes:
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


# ---------------------------------------------------------------------------- variables that documents name


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
