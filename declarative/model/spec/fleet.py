"""The `fleet` document: nodes to launch with the same shape rules, or machines that exist: hosts
(`ssh_config`, in dstack's notation), instances of a cloud, or the nodes of a Slurm partition.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import Annotated, Any, ClassVar, Self

from declarative.model.record import struct
from declarative.model.schema import (
    MAX_SHOWN,
    BadValueError,
    Doc,
    InPlace,
    Is,
    Json,
    Word,
    closed_mapping,
    decode_part,
    describe,
    each_parsed,
    encode,
    object_schema,
    raise_all,
)
from declarative.model.spec.health import HealthPolicy
from declarative.model.spec.schedule import Schedule
from declarative.model.spec.values import (
    MAX_COUNT,
    PLACES,
    WORDS,
    Backfill,
    Blocks,
    Count,
    Env,
    FallbackPolicy,
    IdleDuration,
    Level,
    Name,
    Placement,
    Resources,
    SpotPolicy,
    Tags,
    Topology,
    unpadded,
)
from declarative.model.text import suggest


def own_only(address: str) -> str | None:
    """The kind of an address or network that means another machine on each host; None if others may reach
    it.
    """
    try:
        network = ipaddress.ip_network(address)
    except ValueError:
        return None  # a name
    for kind, is_one in (
        ("loopback", network.is_loopback),
        ("link-local", network.is_link_local),
        ("no host's", network.is_unspecified or network.is_multicast),
    ):
        if is_one:
            return kind
    return None


def _address(value: str | None, field: str) -> None:
    """The address if `value` is an IP address, else None."""
    if value is None:
        return
    try:
        ipaddress.ip_address(value)
    except ValueError:
        hint = "write an address, such as `10.0.0.4`"
        raise BadValueError(
            "bad-address", f"{describe(value)} is not an IP address", hint, (field,)
        ) from None
    if kind := own_only(value):
        hint = "write the address by which the other hosts reach it, such as `10.0.0.4`"
        raise BadValueError("bad-address", f"`{value}` is {kind}: no other host reaches it", hint, (field,))


def is_public(address: str) -> bool:
    """Whether an IPv4 address or network is public. IPv6 networks are never reported: many have only public
    addresses.
    """
    network = ipaddress.ip_network(address)
    # No private network has a prefix shorter than eight bits.
    return network.version == 4 and (network.prefixlen < 8 or network.network_address.is_global)


_ODD = frozenset("'\"`$;&<>|(){}")


def odd_login(hostname: str | None, user: str | None) -> str | None:
    """`hostname` or `user`, whichever is not a valid name; None if both are valid.

    ssh puts both into command lines on this machine (`ProxyCommand` and `Match exec` of its configuration,
    and our own for `proxy_jump`). A declaration must not be able to change what those run.
    """
    for name, value, more in (("hostname", hostname, " \\"), ("user", user, "")):
        odd = value and (value.startswith("-") or not value.isprintable() or not _ODD.isdisjoint(value))
        if odd or (value and not set(more).isdisjoint(value)):
            return name
    return None


def _login(hostname: str | None, user: str | None) -> None:
    field = odd_login(hostname, user)
    if field is not None:
        what = "the name or the address of a host" if field == "hostname" else "the name of a user"
        hint = "write it without blanks, quotes and other signs of shells, and without `-` at its beginning"
        value = describe(hostname if field == "hostname" else user)
        raise BadValueError("bad-value", f"{value} is not {what}", hint, (field,))


class HostKey(Word):
    """A host's public key, as `ssh-ed25519 AAAA…`; a comment after it is left out."""

    __slots__ = ()
    SCHEMA: ClassVar[Mapping[str, Any]] = {
        "type": "string",
        "pattern": "^\\s*(ssh-|ecdsa-sha2-|sk-)\\S+\\s+[A-Za-z0-9+/]+=*(\\s.*)?$",
    }
    HINT: ClassVar[str] = (
        "write it as in /etc/ssh/ssh_host_ed25519_key.pub on the host: `ssh-ed25519 AAAA…`; of a line of a "
        "known_hosts file, without the host's name"
    )
    _FORM: ClassVar[re.Pattern[str]] = re.compile(
        r"(ssh-[a-z0-9-]+|ecdsa-sha2-[a-z0-9-]+|sk-[a-z0-9@.-]+)[ \t]+([A-Za-z0-9+/]+=*)([ \t].*)?", re.ASCII
    )

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-host-key` if it is not a key. The part after the kind must be a whole key of that kind."""
        match = cls._FORM.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise BadValueError("bad-host-key", f"{describe(value)} is not a host's public key", cls.HINT)
        kind, text = match[1], match[2]
        if not _is_key(kind, text):
            summary = f"{describe(value)} is not a whole key of the kind `{kind}`"
            raise BadValueError("bad-host-key", summary, cls.HINT)
        return cls(f"{kind} {text}")


class GpuChoice(tuple[int | str, ...]):
    """Which GPUs of a host are used: each by its index, its UUID or its model."""

    __slots__ = ()
    HINT: ClassVar[str] = (
        "write a list of indexes, UUIDs or models as `nvidia-smi -L` shows them: "
        "`[1, 2]`, `[GPU-5d5ba0d6]`, `[A6000]`"
    )
    MOST: ClassVar[int] = 256
    _FORM: ClassVar[re.Pattern[str]] = re.compile(r"[A-Za-z0-9][\w .+/()-]{0,99}", re.ASCII)

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-gpu`."""
        items = value if isinstance(value, list | tuple) else [value]
        if not items:
            summary = "`gpus` names no GPU"
            raise BadValueError("bad-gpu", summary, "leave it out; for no GPU write `resources: {gpu: 0}`")
        if len(items) > cls.MOST:
            raise BadValueError("bad-gpu", f"`gpus` names more than {cls.MOST} GPUs", cls.HINT)
        out: list[int | str] = []
        for i, item in enumerate(items):
            one = int(item) if isinstance(item, str) and re.fullmatch(r"[0-9]{1,3}", item) else item
            index = isinstance(one, int) and not isinstance(one, bool) and 0 <= one < cls.MOST
            if not index and not (isinstance(one, str) and cls._FORM.fullmatch(one)):
                where = (i,) if items is value else ()
                summary = f"{describe(item)} is not the index, the UUID or the model of a GPU"
                raise BadValueError("bad-gpu", summary, cls.HINT, where)
            assert isinstance(one, int | str)
            out.append(one)
        return cls(dict.fromkeys(out))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        one = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}
        return {"anyOf": [*one["anyOf"], {"type": "array", "minItems": 1, "items": one}]}

    def plain(self) -> Json:
        return list(self)


def fingerprint(key: str) -> str:
    """`SHA256:… (ED25519)` of a public key, as `ssh-keygen -lf` shows it."""
    kind, text = key.split()[:2]
    digest = base64.b64encode(hashlib.sha256(base64.b64decode(text)).digest()).decode().rstrip("=")
    words = re.sub(r"@.*", "", kind).split("-")
    security = "-SK" if words[0] == "sk" else ""
    names = [word for word in words if word in ("rsa", "dss", "ecdsa", "ed25519", "ed448")]
    return f"SHA256:{digest} ({(names[0] if names else kind).upper()}{security})"


def _is_key(kind: str, text: str) -> bool:
    """Whether `text` is base64 of a whole key of that kind."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:  # binascii.Error is one
        return False
    parts: list[bytes] = []
    while data:
        size = int.from_bytes(data[:4], "big")
        if len(data) < 4 + size:
            return False
        parts.append(data[4 : 4 + size])
        data = data[4 + size :]
    return len(parts) > 1 and parts[0] == kind.encode()


@struct(frozen=True, slots=True, kw_only=True)
class ProxyJump:
    """A host through which the connection goes."""

    hostname: Annotated[str, Doc("The name or address of the host.")]
    port: Annotated[int, Is(minimum=1, maximum=65535), Doc("Its SSH port.")] = 22
    user: Annotated[str | None, Doc("The user to log in as.")] = None
    identity_file: Annotated[str | None, Doc("The private key to log in with.")] = None
    host_keys: Annotated[
        tuple[HostKey, ...], Doc("Its public keys, as `ssh-ed25519 AAAA…`; no others count.")
    ] = ()

    def __post_init__(self) -> None:
        _login(self.hostname, self.user)


@struct(frozen=True, slots=True, kw_only=True)
class HostFields:
    """One host in its long form. The fleet's fields replace those left out."""

    NOUN: ClassVar[str] = "a host"

    hostname: Annotated[str, Doc("Its name or address.")]
    port: Annotated[int | None, Is(minimum=1, maximum=65535), Doc("Its SSH port.")] = None
    user: Annotated[str | None, Doc("The user to log in as.")] = None
    identity_file: Annotated[str | None, Doc("The private key to log in with.")] = None
    host_keys: Annotated[
        tuple[HostKey, ...], Doc("Its public keys, as `ssh-ed25519 AAAA…`; no others count.")
    ] = ()
    proxy_jump: Annotated[ProxyJump | None, Doc("A host to go through.")] = None
    internal_ip: Annotated[str | None, Doc("The address by which the other hosts reach it.")] = None
    blocks: Annotated[Blocks | None, Doc("The number of its blocks; default: the fleet's.")] = None
    resources: Annotated[Resources | None, Doc("Its resources, if they should not be read from it.")] = None
    gpus: Annotated[
        GpuChoice,
        Doc("Which of its GPUs are used, each by index, UUID or model: `[1, 2]`, `[A6000]`; default: all."),
    ] = GpuChoice()
    trust: Annotated[bool, Doc("Its `resources` count even where the host has less, or cannot tell.")] = False
    topology: Annotated[
        Topology, Doc("What it shares with other hosts: `{rack: r1}`, for `same` and `spread` of tasks.")
    ] = Topology()
    env: Annotated[
        Env,
        Doc(
            "Environment of the ranks on this host: `{NCCL_SOCKET_IFNAME: eth1}`; wins over the fleet's, and "
            "the task's over both; a change holds for ranks that start from then on."
        ),
    ] = Env()

    def __post_init__(self) -> None:
        _login(self.hostname, self.user)
        _address(self.internal_ip, "internal_ip")


class Hosts(tuple[HostFields, ...]):
    """Hosts: each is a name, or a mapping with more fields."""

    __slots__ = ()
    HINT: ClassVar[str] = "write a host's name or address, or `{hostname: …, blocks: …}`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """What `HostFields` may have wrong, and `duplicate-host`."""
        if not isinstance(value, list | tuple) or not value:
            raise BadValueError("wrong-type", f"expected a list of hosts, found {describe(value)}", cls.HINT)
        out: list[HostFields] = []
        faults: list[BadValueError] = []
        known: set[tuple[str, int | None]] = set()
        bodies = ({"hostname": item} if isinstance(item, str) else item for item in value)
        for i, host in each_parsed(enumerate(bodies), partial(decode_part, HostFields), faults):
            if (host.hostname, host.port) in known:
                summary = f"{describe(host.hostname)} is named twice"
                faults.append(BadValueError("duplicate-host", summary, "remove one", (i,)))
            known.add((host.hostname, host.port))
            out.append(host)
        raise_all(faults)
        has_address = [h.internal_ip is not None for h in out]
        if any(has_address) and not all(has_address):
            hint = "give every host one, or none"
            where = (has_address.index(False),)
            raise BadValueError("bad-address", "only some hosts have an `internal_ip`", hint, where)
        return cls(out)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {
            "type": "array",
            "minItems": 1,
            "items": {"anyOf": [{"type": "string"}, object_schema(HostFields)]},
        }

    def plain(self) -> Json:
        """A name if there are no other fields, else the mapping."""
        bodies = [encode(host) for host in self]
        return [body["hostname"] if set(body) == {"hostname"} else body for body in bodies]


def host_keys(config: SshConfig) -> tuple[str, ...]:
    """The keys that identify a fleet's hosts: their names, with the port if several share one name."""
    names = Counter(h.hostname for h in config.hosts)
    return tuple(
        h.hostname if names[h.hostname] == 1 else f"{h.hostname}:{h.port or config.port or 22}"
        for h in config.hosts
    )


@struct(frozen=True, slots=True, kw_only=True)
class SshConfig:
    """How existing hosts are reached."""

    hosts: Annotated[Hosts, Doc("The hosts: names, or mappings with more.")]
    user: Annotated[str | None, Doc("The user to log in as.")] = None
    port: Annotated[int | None, Is(minimum=1, maximum=65535), Doc("The SSH port.")] = None
    identity_file: Annotated[str | None, Doc("The private key to log in with.")] = None
    known_hosts: Annotated[str | None, Doc("A file with the hosts' keys; default: the user's own.")] = None
    host_keys: Annotated[
        tuple[HostKey, ...],
        Doc("Public keys for all hosts without their own; `known_hosts` is not used then."),
    ] = ()
    proxy_jump: Annotated[ProxyJump | None, Doc("A host to go through.")] = None
    network: Annotated[str | None, Doc("The network by which the hosts reach each other: `10.0.0.0/24`.")] = (
        None
    )

    def __post_init__(self) -> None:
        _login(None, self.user)
        if self.network is not None:
            try:
                ipaddress.ip_network(self.network)
            except ValueError:
                hint = "write it as `10.0.0.0/24`"
                raise BadValueError(
                    "bad-address", f"`{self.network}` is not a network", hint, ("network",)
                ) from None
            if kind := own_only(self.network):
                hint = "write the network in which the hosts reach each other, as `10.0.0.0/24`"
                summary = f"`{self.network}` is {kind}: no host reaches another there"
                raise BadValueError("bad-address", summary, hint, ("network",))
            if any(h.internal_ip for h in self.hosts):
                hint = "keep one of them"
                raise BadValueError(
                    "bad-address", "`network` and `internal_ip` exclude each other", hint, ("network",)
                )


# ------------------------------------------------------------------------------ the document

_SLURM_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,&|!*()\[\]:@+-]{0,254}", re.ASCII)
"""The form of the name of a partition, account, QoS or feature; it becomes part of a command line
unchanged.
"""
_NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)
"""A number in quotes, as a template or a shell leaves it."""


@struct(frozen=True, slots=True)
class NodeCount:
    """The number of nodes: `4`, `0..4`, or `{min, target, max}`. `max` None is unlimited."""

    min: int
    target: int
    max: int | None
    HINT: ClassVar[str] = "write `4`, `0..4`, `1..`, or `{min: 0, target: 2, max: 4}`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-range` unless 0 <= min <= target <= max."""
        if isinstance(value, Mapping):
            return cls._parse_mapping(value)
        count = Count.parse(value)
        return cls._checked(count.min, count.min, count.max)

    @classmethod
    def _parse_mapping(cls, value: Mapping[str, Json]) -> Self:
        ends: dict[str, int] = {}
        for key, item in value.items():
            if key not in ("min", "target", "max"):
                hint = "write `target:`" if key in ("desired", "count", "size", "default") else None
                hint = hint or suggest(key[:MAX_SHOWN], ("min", "target", "max")) or cls.HINT
                raise BadValueError(
                    "unknown-field", f"`{key}` is not a field of nodes", hint, (key,), at_key=True
                )
            if isinstance(item, str) and _NUMBER.fullmatch(unpadded(item, "bad-range", (key,))):
                ends[key] = int(item)
            elif isinstance(item, int) and not isinstance(item, bool):
                ends[key] = item
            elif item is not None:
                summary = f"expected a whole number, found {describe(item)}"
                raise BadValueError("wrong-type", summary, cls.HINT, (key,))
        if not ends:
            raise BadValueError("bad-range", "`nodes` has neither a lower nor an upper bound", cls.HINT)
        low = ends.get("min", 0)
        return cls._checked(low, ends.get("target", low), ends.get("max"))

    @classmethod
    def _checked(cls, low: int, target: int, high: int | None) -> Self:
        if low < 0 or target < low or (high is not None and target > high):
            shown = f"min {low}, target {target}, max {'unlimited' if high is None else high}"
            summary = f"`nodes` needs 0 <= min <= target <= max, found {shown}"
            raise BadValueError("bad-range", summary, cls.HINT)
        if max(low, target, high or 0) > MAX_COUNT:
            raise BadValueError("out-of-range", f"at most {MAX_COUNT} nodes can be declared", cls.HINT)
        return cls(low, target, high)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        number = {"type": ["integer", "string", "null"], "minimum": 0}
        keys = {"min": number, "target": number, "max": number}
        return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}, closed_mapping(keys)]}

    def plain(self) -> Json:
        """`4`, `0..4`, or the mapping if the target is neither end."""
        if self.min == self.target == self.max:
            return self.min
        if self.min == self.target:
            return f"{self.min}..{'' if self.max is None else self.max}"
        return {"min": self.min, "target": self.target, "max": self.max}


USUAL_IDLE = IdleDuration(259200)


@struct(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A named group of nodes with the same shape rules, each split into equal blocks."""

    name: Annotated[Name, Doc("The fleet's name; its nodes are `<name>-0`, `<name>-1`, ….")]
    nodes: Annotated[
        NodeCount | None, InPlace(), Doc("The number of nodes: `4`, `0..4`, `{min, target, max}`.")
    ] = None
    placement: Annotated[Placement, Doc("`cluster` puts all nodes into one network; default `any`.")] = (
        Placement.ANY
    )
    same: Annotated[
        Level | None,
        InPlace(),
        Doc(
            "With `placement: cluster`: what all ranks of a task share: `zone` (default), `region`, "
            "or a label of the hosts' `topology`."
        ),
    ] = None
    blocks: Annotated[
        Blocks, InPlace(), Doc("The number of equal blocks of a node: a number, or `auto`.")
    ] = Blocks(1)
    resources: Annotated[Resources, InPlace(), Doc("What each node must have.")] = Resources()
    backends: Annotated[tuple[Name, ...], InPlace(), Doc("Backends that may be used; default: all.")] = ()
    regions: Annotated[tuple[str, ...], PLACES, InPlace(), Doc("Regions that may be used.")] = ()
    availability_zones: Annotated[tuple[str, ...], PLACES, InPlace(), Doc("Zones that may be used.")] = ()
    instance_types: Annotated[tuple[str, ...], WORDS, InPlace(), Doc("Instance types that may be used.")] = ()
    spot_policy: Annotated[SpotPolicy, InPlace(), Doc("`on-demand` (default), `spot` or `auto`.")] = (
        SpotPolicy.ON_DEMAND
    )
    max_price: Annotated[
        float | None, InPlace(), Is(above=0), Doc("The most that a node may cost, USD an hour.")
    ] = None
    fallback: Annotated[
        FallbackPolicy | None,
        InPlace(),
        Doc(
            "What is launched if the planned offer is sold out: `same` (default) takes the same GPUs, for at "
            "most 20 % more or up to `max_price`; `any` takes whatever fits; `none` takes nothing else."
        ),
    ] = None
    backfill: Annotated[
        Backfill,
        InPlace(),
        Doc(
            "Which tasks may use idle blocks that a waiting task of higher priority has claimed: `short` "
            "(default) lets in those whose `max_duration` ends before it can start, `any` lets in all."
        ),
    ] = Backfill.SHORT
    idle_duration: Annotated[
        IdleDuration,
        InPlace(),
        Is(true_is_default=True),
        Doc("How long an idle node above the target is kept; `off` keeps it; default 3d."),
    ] = USUAL_IDLE
    unreachable_duration: Annotated[
        IdleDuration,
        InPlace(),
        Is(true_is_default=True),
        Doc(
            "How long a node may be silent before it is given up: replaced on clouds, its ranks lost;"
            " `off` means never; default 10m."
        ),
    ] = IdleDuration(600)
    health: Annotated[
        HealthPolicy,
        InPlace(),
        Doc(
            "Which findings of its machines count: `{ignore: [clock-off], fail: [persistence-off], "
            "strict: true}`; with `strict` a degraded node takes no work."
        ),
    ] = HealthPolicy()
    schedule: Annotated[
        Schedule | None,
        InPlace(),
        Doc(
            '`{start: "0 8 * * 1-5", stop: "0 20 * * *", timezone: Europe/Berlin}`: at other times, '
            "only nodes with running ranks are kept."
        ),
    ] = None
    tags: Annotated[Tags, InPlace(), Doc("Tags on every node.")] = field(default_factory=Tags)
    env: Annotated[Env, Doc("Environment of every rank on these nodes.")] = Env()
    prevent_destroy: Annotated[bool, InPlace(), Doc("A plan that would delete a node is an error.")] = False
    reservation: Annotated[
        str | None,
        Doc(
            "A cloud's capacity reservation; its nodes are on demand: on EC2 `cr-…` or a group's ARN,"
            " on GCE a reservation's name, on Azure a group's; or a reservation of Slurm."
        ),
    ] = None
    identity: Annotated[
        str | None,
        Doc(
            "Who a node is for its cloud, so that ranks need no keys: on EC2 an instance profile (name or"
            " ARN), on GCE a service account's e-mail, on Azure a managed identity (name or id)."
        ),
    ] = None
    ssh_config: Annotated[
        SshConfig | None,
        InPlace(),
        Doc("Hosts of your own, reached over SSH; each is a node."),
    ] = None
    instance_ids: Annotated[
        tuple[str, ...],
        WORDS,
        InPlace(),
        Doc("Existing instances of a cloud to adopt: each is a node, never restarted, never deleted."),
    ] = ()

    partition: Annotated[
        str | None,
        InPlace(),
        Doc("A partition of a Slurm cluster (`driver: slurm`): each of its nodes is a node of the fleet."),
    ] = None
    constraint: Annotated[
        str | None, InPlace(), Doc("Slurm's features that the nodes must have: `h100&ib`.")
    ] = None
    account: Annotated[str | None, InPlace(), Doc("The account that Slurm charges for jobs.")] = None
    qos: Annotated[str | None, InPlace(), Doc("Slurm's quality of service for jobs.")] = None

    DEFAULTED: ClassVar[tuple[str, ...]] = ("name",)
    OF_SLURM: ClassVar[tuple[str, ...]] = ("constraint", "account", "qos")
    """Fields that have no meaning without a `partition`."""
    FOREIGN: ClassVar[Mapping[str, str]] = {
        "retry": "a fleet has none: write `retry` in the task that is to run again",
        "backend_options": "use `options:` of the `backend` document",
        "profiles": "write the fields of the profile here",
    }
    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("count", "size", "replicas", "num_nodes", "node_count"), "nodes"),
        **dict.fromkeys(
            ("min", "max", "target", "min_nodes", "max_nodes", "min_size", "max_size", "desired_capacity"),
            "write `nodes: {min: 0, target: 2, max: 4}`",
        ),
        **dict.fromkeys(("zone", "zones", "availability_zone"), "availability_zones"),
        **dict.fromkeys(("instance_type", "machine_type"), "instance_types"),
        **dict.fromkeys(("provider", "driver"), "backends"),
        **dict.fromkeys(("labels", "metadata"), "tags"),
        **dict.fromkeys(("cpu", "memory", "gpu", "gpus", "disk"), "write it in `resources: {…}`"),
        **dict.fromkeys(("spot", "preemptible"), "spot_policy"),
        **dict.fromkeys(("hosts", "user", "identity_file"), "write it in `ssh_config: {…}`"),
        **dict.fromkeys(("queue", "partitions"), "partition"),
        **dict.fromkeys(("feature", "features", "constraints"), "constraint"),
        "environment": "env",
    }

    def __post_init__(self) -> None:
        if self.nodes is None and not self.exists:
            raise BadValueError(
                "missing-field", "`nodes` is missing", "add `nodes: 2`, or a range such as `nodes: 0..4`"
            )
        self._check_kind()
        if self.instance_ids:
            self._check_instances()
        if self.same is not None and self.placement is not Placement.CLUSTER:
            hint = "add `placement: cluster`, or remove it"
            summary = "`same` is for cluster tasks, and the fleet's `placement` is `any`"
            raise BadValueError("bad-value", summary, hint, ("same",), at_key=True)
        if self.reservation is not None and not re.fullmatch(r"[!-~]{1,255}", self.reservation):
            summary = f"{describe(self.reservation)} is not the id of a reservation"
            raise BadValueError("bad-value", summary, "write its id, such as `cr-0abc`", ("reservation",))
        if self.reservation is not None and self.spot_policy is SpotPolicy.SPOT:
            summary = "reserved capacity is not spot"
            raise BadValueError("bad-value", summary, "remove it, or the `reservation`", ("spot_policy",))
        if self.identity is not None and not re.fullmatch(r"[!-~]{1,512}", self.identity):
            hint = "write it as its cloud does: `ml-nodes`, `ml@project.iam.gserviceaccount.com`"
            raise BadValueError(
                "bad-value", f"{describe(self.identity)} is not the name of an identity", hint, ("identity",)
            )
        if self.schedule is not None and self.schedule.stop is None:
            summary = "the `schedule` of a fleet needs a `stop`"
            raise BadValueError("missing-field", summary, 'add `stop: "0 20 * * *"`', ("schedule",))
        if self.schedule is not None and self.exists:
            hint = "remove it: the machines are there; give the tasks a `schedule`"
            summary = "`schedule` is for machines to launch, and these exist"
            raise BadValueError("nodes-and-ssh", summary, hint, ("schedule",), at_key=True)
        if self.exists:
            self._check_hosts()

    @property
    def exists(self) -> bool:
        """Whether it names existing nodes and launches none."""
        return self.ssh_config is not None or bool(self.instance_ids) or self.partition is not None

    def _check_instances(self) -> None:
        """`instances` need one backend: only that backend knows the form of its ids."""
        other = next((n for n in ("nodes", "ssh_config", "partition") if getattr(self, n) is not None), None)
        if other:
            summary = f"`{other}` and `instance_ids` exclude each other"
            hint = "keep `nodes` for machines to launch, or `instance_ids` for those that exist"
            raise BadValueError("nodes-and-ssh", summary, hint, ("instance_ids",), at_key=True)
        if len(self.backends) != 1:
            summary = "`instance_ids` belong to one backend, and `backends` does not name it"
            hint = "write their backend: `backends: [aws]`"
            raise BadValueError("bad-value", summary, hint, ("instance_ids",), at_key=True)
        for i, instance in enumerate(self.instance_ids):
            if not re.fullmatch(r"[!-~]{1,255}", instance):
                summary = f"{describe(instance)} is not the id of an instance"
                raise BadValueError("bad-value", summary, "write it as its cloud does", ("instance_ids", i))
            if instance in self.instance_ids[:i]:
                summary = f"`{instance}` is listed twice"
                raise BadValueError("duplicate-host", summary, "remove one", ("instance_ids", i))

    def _check_kind(self) -> None:
        """A fleet launches its nodes, or names hosts, or takes the nodes of a partition: only one
        of these.
        """
        kinds = [name for name in ("nodes", "ssh_config", "partition") if getattr(self, name) is not None]
        if len(kinds) > 1:
            hint = "keep `nodes` for machines to launch, or `ssh_config` for hosts that exist"
            if "partition" in kinds:
                hint = f"keep `partition` for the nodes of a Slurm cluster, or `{kinds[0]}`"
            summary = f"`{kinds[0]}` and `{kinds[1]}` exclude each other"
            raise BadValueError("nodes-and-ssh", summary, hint, (kinds[1],), at_key=True)
        for name in ("partition", *self.OF_SLURM):
            value = getattr(self, name)
            if value is not None and not _SLURM_WORD.fullmatch(value):
                summary = f"{describe(value)} is not a `{name}` of Slurm"
                raise BadValueError("bad-value", summary, "write it as `sinfo` and `sacctmgr` do", (name,))
            if value is not None and self.partition is None:
                hint = "add `partition: NAME`, or remove it"
                summary = f"`{name}` is for a Slurm cluster, and the fleet has no `partition`"
                raise BadValueError("bad-value", summary, hint, (name,), at_key=True)

    def _check_hosts(self) -> None:
        """Hosts exist already, so the fields that limit launches are errors."""
        own, named = ("instance_ids", "instances") if self.instance_ids else ("ssh_config", "hosts")
        own, named = ("partition", "nodes") if self.partition is not None else (own, named)
        none: dict[str, object] = {
            "regions": (),
            "availability_zones": (),
            "instance_types": (),
            "spot_policy": SpotPolicy.ON_DEMAND,
            "max_price": None,
            "fallback": None,
            "identity": None,
            **({} if self.partition is not None else {"reservation": None}),
            "resources": Resources(),
        }
        for name, default in none.items():
            if getattr(self, name) != default:
                hint = "remove it"
                if name == "resources" and self.partition is not None:
                    hint = "choose nodes by their features: `constraint: h100`"
                if name == "resources" and self.ssh_config is not None:
                    hint = "write what a host has at the host: `hosts: [{hostname: …, resources: {…}}]`"
                summary = f"`{name}` is for machines to launch, and `{own}` names {named} that exist"
                raise BadValueError("nodes-and-ssh", summary, hint, (name,), at_key=True)
