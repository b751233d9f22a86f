"""Compares the documents with each other: unique names, names that exist, volumes one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from declarative.language.loader.documents import Declaration, Places, shown_place, shown_span
from declarative.language.loader.findings import Findings
from declarative.language.loader.mounts import Volumes, mounted, warn_variables
from declarative.language.loader.project import ProjectFile
from declarative.language.source import Path
from declarative.language.source.places import Spot
from declarative.language.template import TemplateScope
from declarative.model.diagnostic import Severity, Span
from declarative.model.resource import (
    LOCAL,
    SLURM,
    SSH,
    Desired,
    TaskWant,
    VolumeWant,
    catalog_size,
    volume_inputs,
    volume_names,
)
from declarative.model.schema import BadValueError
from declarative.model.spec import Backend, Name, Volume
from declarative.model.spec.fleet import host_keys, is_public
from declarative.model.spec.mounts import Inline
from declarative.model.spec.values import MAX_NAME, check_name
from declarative.model.state import natural

BUILT_IN = (LOCAL, SSH, SLURM)
"""Providers without a document of their own."""
MAX_VOLUMES = 200_000
MAX_RANKS = 200_000
MAX_HOSTS = 10_000
"""Each host costs at least one request."""
MAX_OFFERS = 100_000
"""The limit for the offers in all catalogs, counting each region and zone."""


class Assembly:
    """The documents of one project, by kind and name."""

    def __init__(self, entries: Sequence[Declaration], findings: Findings) -> None:
        self.findings = findings
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
        volumes = self._volumes()
        tasks = self._tasks()
        for entry in tasks:
            self._check_backend_names(entry)
            self._check_fleet_names(entry)
            self._check_queue(entry)
        mounts = mounted(tasks, volumes, scope, self.findings)
        wants = {e.name: TaskWant(spec=e.spec, mounts=mounts[e.name]) for e in tasks}
        warn_variables(fleets, tasks, mounts, self.findings)
        places: dict[str, Spot | Span] = {e.address: e.spot for e in (*self._good("backend"), *fleets)}
        for entry in fleets:
            places |= _places_in(entry)
        places |= {f"volume/{name}": volumes.places[name] for name in volumes.wants}
        places |= {e.address: e.spot for e in tasks}
        return Desired(
            project=project.spec,
            backends=self.backends,
            fleets={e.name: e.spec for e in fleets},
            volumes={name: volumes.wants[name] for name in sorted(volumes.wants, key=natural)},
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
                from declarative.provider.installed import unknown  # reads all installed packages

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

    def _volumes(self) -> Volumes:
        """The declared volumes, each with its number."""
        volumes = Volumes(self.kinds["volume"], self._default_backend, self._check_volume_backend)
        total = 0
        for entry in self._good("volume"):
            spec: Volume = entry.spec
            self._check_volume_backend(entry, (), spec)
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
            inputs, spot = volume_inputs(spec, self._default_backend(spec.backend)), entry.spot
            for name in names:
                other = volumes.wants.get(name)
                if other is not None:
                    first = shown_place(volumes.places[name].span)
                    summary = f"`{name}` is declared by `{other.declared_by}` too, at {first}"
                    self._say(entry, ("name",), "duplicate-name", summary, "give one of them another name")
                    break
                want = VolumeWant(name=name, inputs=inputs, declared_by=entry.address, cleanup=spec.cleanup)
                volumes.wants[name] = want
                volumes.places[name] = spot
        return volumes

    def _default_backend(self, name: str | None) -> Backend:
        """The backend of that name. Without a name: the only declared one, else the built-in `local`."""
        if name is None and len(self.kinds["backend"]) == 1 and self._driver(*self.kinds["backend"]) != SSH:
            name = next(iter(self.kinds["backend"]))
        return self.backends.get(name or LOCAL) or _undeclared(name or LOCAL)

    def _candidates(self) -> list[str]:
        """The backends between which a volume must choose. A local folder cannot replace a cloud's disk."""
        drivers = {name: self._driver(name) for name in self.kinds["backend"]}
        clouds = [name for name, driver in drivers.items() if driver not in BUILT_IN]
        return sorted(drivers) if clouds and len(drivers) > 1 and LOCAL not in drivers.values() else []

    def _check_volume_backend(self, entry: Declaration, path: Path, volume: Volume | Inline) -> None:
        """Check a volume's backend, and its region or host."""
        if volume.backend is not None:
            self._check_backend_name(entry, (*path, "backend"), volume.backend)
        elif several := self._candidates():
            hint = "write " + " or ".join(f"`backend: {name}`" for name in several)
            summary = "several backends are declared, and the volume names none of them"
            self._say(entry, path, "missing-field", summary, hint)
        host = volume.host if isinstance(volume, Volume) else None
        backend = self._default_backend(volume.backend)
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
