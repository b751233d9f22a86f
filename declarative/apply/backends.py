"""The configured backends of one run: each provider is made once, when it is first needed. The operator's
policy is checked before anything is contacted or read.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from declarative.apply.backend_client import BackendClient
from declarative.apply.launch import Bundles
from declarative.apply.outages import Outages
from declarative.model.inputs import AttachmentInputs, NodeInputs, ReservationInputs, VolumeInputs
from declarative.model.resource import EXISTING, LOCAL, SSH, Host, Manifest
from declarative.model.spec import Backend, Name
from declarative.model.spec.backend import Network
from declarative.model.spec.health import HealthPolicy
from declarative.model.spec.policy import OperatorPolicy
from declarative.model.state import Intent, Record, State, made_as
from declarative.planner.hosts import reached_by
from declarative.provider import Config, PermanentError, PermanentKind, Provider, UnknownProviderError, load
from declarative.retry import PATIENCE, Policy, call

if TYPE_CHECKING:
    from declarative.store import Writer

FILES = ("known_hosts", "ssh_config", "identity_file")
"""Options of backends, and fields of hosts, that name files of ssh's."""
POLICY_HINT = "a policy may allow it: docs/security.md"
_HARMLESS = frozenset(
    re.findall(
        r"\w+",
        "host match hostname port user identityfile identitiesonly userknownhostsfile "
        "globalknownhostsfile proxyjump serveraliveinterval serveralivecountmax connecttimeout "
        "connectionattempts hostkeyalias hostkeyalgorithms kexalgorithms ciphers macs compression "
        "addressfamily stricthostkeychecking tcpkeepalive preferredauthentications pubkeyauthentication "
        "passwordauthentication batchmode loglevel checkhostip hashknownhosts updatehostkeys "
        "casignaturealgorithms pubkeyacceptedalgorithms bindaddress requesttty canonicalizehostname ",
    )
)
"""What ssh's configuration may say without running a command, loading a library, reading other files as
configuration, sending variables, or lending the user's agent."""
_MOST_READ = 1 << 20
"""Bytes of an `ssh_config` that are read."""


def check_policy(
    config: Config, policy: OperatorPolicy, hosts: Iterable[Mapping[str, Any]], *, offline: bool = False
) -> None:
    """`PermanentError` for the first thing that a backend, or one of `hosts`, may not have.

    Offline any variables may be named: their values are neither read nor sent.
    """
    if why := policy.refused_driver(config.driver):
        raise _refused(why, "driver", POLICY_HINT)
    if config.endpoint and (why := policy.refused_endpoint(str(config.endpoint))):
        raise _refused(why, "endpoint", f"write `https://…`; or {POLICY_HINT} (`endpoints`)")
    for key, variable in () if offline else config.credentials.items():
        if why := policy.refused_variable(config.driver, variable):
            hint = f"if it is meant for that: `--allow-variable {variable}`; or {POLICY_HINT} (`credentials`)"
            raise _refused(f"backend {config.backend}: {why}", f"credentials.{key}", hint)
    folders = (config.project_dir, *(Path(p).expanduser() for p in ("~/.ssh", *policy.paths)))
    allowed = [os.path.realpath(folder) for folder in folders]
    for name, text in dict.fromkeys(_files(config.options, hosts)):  # hosts mostly name the same few
        path = Path(os.path.realpath(config.project_dir.absolute() / Path(text).expanduser()))
        if not any(path.is_relative_to(folder) for folder in allowed):
            # In the summary as well: for a host that is left out of a plan only the summary is shown.
            why = (
                f"`{name}` is neither in the project nor in ~/.ssh: {text} (`--allow-path {text}` allows it)"
            )
            raise _refused(why, name, f"if it is meant, allow it; or {POLICY_HINT} (`paths`)")
        if name == "ssh_config" and not policy.allow_commands:
            _check_config(path, config.project_dir)


def _refused(summary: str, about: str, hint: str) -> PermanentError:
    return PermanentError(PermanentKind.INVALID, summary, about=about, hint=hint)


def _files(options: Mapping[str, Any], hosts: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """(field, file) of a backend's options, and of hosts and those on the way to them."""
    pending: list[Any] = [options, *hosts]
    while pending:
        fields = pending.pop()
        if isinstance(fields, Mapping):
            yield from ((n, fields[n]) for n in FILES if isinstance(fields.get(n), str) and fields[n])
            pending += (fields.get("proxy_jump"), fields.get("login"))


def _check_config(path: Path, project: Path) -> None:
    """`PermanentError` where ssh's configuration, as a part of the project, would do more than name hosts.

    Neither the line nor its words are shown: the file may be anything.
    """
    if not path.is_relative_to(os.path.realpath(project)):
        return  # it is the user's own, or the operator's
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_READ).decode(errors="replace")
    except OSError:
        return  # whoever needs it says so
    for number, line in enumerate(re.split(r"\r\n|[\n\r\f\v\x1c-\x1e\x85\u2028\u2029]", text), 1):
        if _does_more(line):
            summary = f"line {number} of the project's `ssh_config` does more than name hosts and keys "
            summary += "(`--allow-commands` allows it)"
            hint = "if its commands and files are meant, allow them, or put it into ~/.ssh"
            raise _refused(summary, "options.ssh_config", hint)


def _does_more(line: str) -> bool:
    """Whether a line of ssh's configuration may do more than name hosts and keys."""
    word, _, rest = line.strip().replace("=", " ", 1).partition(" ")
    keyword = word.strip("\"' \t").split("\t")[0].lower()
    if not keyword or keyword.startswith("#"):
        return False
    if keyword not in _HARMLESS or "${" in line or "`" in line:
        return True
    if keyword in ("identityfile", "userknownhostsfile", "globalknownhostsfile"):
        return bool(re.search(r"(^|[\s\"'=])(/|~(?!/\.ssh/))|\.\.|%", rest))
    return keyword == "match" and bool(re.search(r"exec", rest, re.IGNORECASE))


T = TypeVar("T")
BRIEF = Policy(deadline=5.0, longest=2.0)
"""The patience of a loop: it asks again later, beside its rounds."""
ONCE = Policy(deadline=0.0)
"""The patience with a backend that is not needed."""
HOST_REST = 60.0
LOOKS = 20
"""A node is asked at least 20 times before it is given up (`unreachable_duration`)."""
Hosts = Mapping[str, Mapping[str, Any]]
"""The `host` of nodes, by name."""


class Backends:
    """Providers by the name of their backend. Safe to use from many threads."""

    def __init__(
        self,
        declared: Mapping[str, Backend],
        project_dir: Path,
        lineage: str,
        state: State | None = None,
        files: Mapping[str, Manifest] | None = None,
        *,
        ways: Hosts | None = None,
        project: str = "",
        shared: bool = False,
        writer: Callable[[], Writer | None] = lambda: None,
        limits: Mapping[str, float | None] | None = None,
        health: Mapping[str, HealthPolicy] | None = None,
        hard: bool = False,
        policy: OperatorPolicy | None = None,
        outages: Outages | None = None,
    ) -> None:
        """`state` names the hosts and regions where things are, or may be. `files` is digest → files of
        ranks.

        `ways` is node's present name → how its host is declared to be reached, which replaces the recorded
        way. `project` and `shared`: see `Config`. `writer` gives the writer of a command that holds the lock;
        a reader is never refused. `limits` is fleet → seconds after which silent nodes are given up, None for
        never. `health` is fleet → which findings of machines count.

        `hard`: some task has `isolation: hard`. `policy` is what the operator allows; without one all
        is allowed. `outages` are the backends and hosts that a loop leaves alone.
        """
        self.declared = declared
        self._policy = policy
        self.outages = outages or Outages()
        self._ways = ways or {}
        self._writer = writer
        self.limits = limits or {}
        self.health = health or {}
        self.only_plans = False
        """Whether this run shows a plan and does nothing: then it needs no key of the nodes."""
        self.hard = hard
        self.able: dict[str, frozenset[str]] = {}
        """Backend → what nodes that it launches can do, where that matters and is known."""
        self._regions = regions_of(state) if state else {}
        self._hosts = hosts_of(state, self._ways) if state else {}
        self.project_dir = project_dir
        self.lineage = lineage
        self._shared = shared
        self.project = project
        self.files = Bundles(project_dir, files or {})
        self._clients: dict[str, BackendClient] = {}
        self._lock = threading.Lock()

    def names(self) -> tuple[str, ...]:
        """The declared backends, and `local`."""
        return tuple(sorted({*self.declared, LOCAL}))

    def driver(self, name: str) -> str:
        """The driver of a backend; one that is not declared is named like it."""
        backend = self.declared.get(name)
        return backend.provider if backend else name

    def get(self, name: str | None) -> BackendClient:
        """The provider of a backend; `PermanentError` if there is none, or if it is left alone."""
        name = name or LOCAL
        self.outages.check(name)
        with self._lock:
            if name not in self._clients:
                self._clients[name] = self._make(name, self.hosts(name))
            return self._clients[name]

    def read(
        self, name: str, ask: Callable[[BackendClient, Policy], T], *, part: str = "", least: float = 0.0
    ) -> T:
        """The answer of a backend, or of a part of it; `ask` gets the patience to use. A loop leaves a
        backend alone that cannot be read: see `Outages.read`.
        """
        provider = self.get(name)
        if not self.outages.remembers:
            return ask(provider, PATIENCE)
        brief, once = partial(ask, provider, BRIEF), partial(ask, provider, ONCE)
        return self.outages.read(name, brief, once, part=part, least=least)

    def ask(
        self,
        name: str,
        question: Callable[[BackendClient], T],
        *,
        part: str = "",
        policy: Policy | None = None,
    ) -> T:
        """The answer of a backend to one question, asked as often as `read` or `policy` has patience."""
        return self.read(
            name,
            lambda client, patience: call(partial(question, client), policy=policy or patience),
            part=part,
        )

    def host_rest(self, fleet: str) -> float:
        """Seconds for which a loop leaves a silent host of a fleet alone, at most."""
        return min(HOST_REST, (self.limits.get(fleet) or HOST_REST * LOOKS) / LOOKS)

    def hosts(self, name: str) -> Hosts:
        """The hosts where a backend has nodes, or may have, by the names that it knows these by."""
        return self._hosts.get(name, {})

    def on(self, name: str, node: str) -> Provider:
        """A provider that looks for its things only on the host of one node."""
        return self._make(name, {node: self.hosts(name)[node]})

    def catalogue(self, name: str) -> Provider:
        """A provider that is asked only for what it knows without a login or a host."""
        return self._make(name, {}, offline=True)

    def config(self, name: str, hosts: Hosts, *, offline: bool = False) -> Config:
        """The arguments of a backend's provider; `PermanentError` if there may be none."""
        backend = self.declared.get(name, Backend(name=Name(name)))
        config = Config(
            backend=name,
            project_dir=self.project_dir,
            lineage=self.lineage,
            project=self.project,
            driver=backend.provider,
            regions=backend.regions,
            zones=backend.availability_zones,
            elsewhere=tuple(sorted(self._regions.get(name, set()) - set(backend.regions))),
            credentials=backend.credentials or {},
            endpoint=backend.endpoint,
            image=backend.image or {},
            ssh_user=backend.ssh_user,
            network=backend.network or Network(),
            options=backend.options,
            hosts=hosts,
            shared=self._shared,
            fence=lambda: writer.fence() if (writer := self._writer()) else None,
        )
        if name not in self.declared and name not in (LOCAL, *EXISTING):
            hint = f"declare `type: backend` with `name: {name}` again until nothing of it is left"
            raise PermanentError(PermanentKind.NOT_FOUND, f"backend {name} is not declared", hint=hint)
        if self._policy is not None:
            ways = (
                () if backend.provider == LOCAL else self._ways.values()
            )  # they are ssh's: `local` reads none
            check_policy(config, self._policy, (*hosts.values(), *ways), offline=offline)
        return config

    def _make(self, name: str, hosts: Hosts, *, offline: bool = False) -> BackendClient:
        config = self.config(name, hosts, offline=offline)
        try:
            provider = load(config.driver, config)
            return BackendClient(
                provider,
                self._ways,
                fence=lambda: writer.changing() if (writer := self._writer()) else None,
                learn=lambda newest: (writer := self._writer()) is not None and writer.learn(newest),
                backend=name,
                policy=self._policy,
                health=self.health,
            )
        except UnknownProviderError as error:
            raise PermanentError(PermanentKind.NOT_FOUND, str(error), hint=error.hint) from None


def hosts_of(state: State, ways: Hosts) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Backend → the hosts of its recorded nodes and volumes, and of those in open intents.

    Hosts that are only known by their volumes go by their own name (`host_name`).
    """
    out: dict[str, dict[str, Mapping[str, Any]]] = {}

    def add(backend: str | None, known_as: str, name: str, host: Mapping[str, Any]) -> None:
        way = reached_by(host, ways[name]) if name in ways else host
        out.setdefault(backend or SSH, {})[known_as] = way

    for intent in state.intents:
        inputs = intent.typed if intent.inputs else None
        if isinstance(inputs, NodeInputs) and _is_host(inputs):
            add(intent.backend, intent.address.name, intent.address.name, inputs.host)
    for record in state.of("node"):
        if _is_host(record.node):
            add(record.backend, made_as(record).name, record.address.name, record.node.host)
    for volume in volumes_on(state):
        name = host_name(state, volume)
        if name not in out.get(volume.backend, {}):
            add(volume.backend, name, name, volume.host)
    return out


def _is_host(node: NodeInputs) -> bool:
    """Whether its declaration says how it is reached. Other nodes are looked up at their cloud or cluster."""
    return node.is_ssh_host and node.instance_id is None


def of_partition(host: Host) -> bool:
    """Whether a host is a node of a partition, or stands for all of them."""
    return "partition" in host.fields


def volumes_on(state: State) -> list[VolumeInputs]:
    """The inputs of the volumes on hosts: first those of open intents, then recorded ones, the newest first.
    If there are two ways to a host, the newer one holds.
    """
    pending = [intent.typed for intent in state.intents if intent.inputs]
    to_make = [inputs for inputs in pending if isinstance(inputs, VolumeInputs)]
    made = [record.volume for record in reversed(state.of("volume"))]
    return [volume for volume in (*to_make, *made) if volume.host]


def host_name(state: State, volume: VolumeInputs) -> str:
    """The name of a volume's host: that of its node, or a name that no node has."""
    where = (volume.backend, volume.zone)
    for record in state.of("node"):
        if record.node.host and (record.backend, record.node.instance_type) == where:
            return made_as(record).name
    for intent in state.intents:
        node = intent.typed if intent.inputs else None
        if isinstance(node, NodeInputs) and (intent.backend, node.instance_type) == where:
            return intent.address.name
    return f"@{volume.zone}"


def host_of(state: State, record: Record) -> str:
    """The host that a thing or a rank is on, by the name that its backend knows; empty for none."""
    if record.address.kind == "volume":
        return host_name(state, record.volume)
    if record.address.kind == "node":
        return made_as(record).name
    holder = state.get("reservation", record.address.name) if record.address.kind == "rank" else record
    place = holder.typed if holder else None
    node = isinstance(place, ReservationInputs | AttachmentInputs) and state.get("node", place.node)
    return made_as(node).name if node else ""


def regions_of(state: State) -> dict[str, set[str]]:
    """Backend → the regions of what is recorded, and of open intents.

    A region that was removed from the backend's document is looked at as long as it has things.
    """
    out: dict[str, set[str]] = {}
    things: list[Intent | Record] = [*state.intents, *state.records.values()]
    for thing in things:
        inputs = thing.typed if thing.backend and thing.inputs else None
        if thing.backend and isinstance(inputs, NodeInputs | VolumeInputs):
            out.setdefault(thing.backend, set()).add(inputs.region)
    return out
