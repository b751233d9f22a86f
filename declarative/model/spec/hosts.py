"""A fleet's `ssh_config`: existing hosts, in dstack's notation."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Self

from declarative.model.record import struct
from declarative.model.schema import (
    BadValueError,
    Doc,
    Is,
    Json,
    Word,
    decode_part,
    describe,
    each_parsed,
    encode,
    object_schema,
    raise_all,
)
from declarative.model.spec.text import Env
from declarative.model.spec.values import Blocks, Resources, Topology


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
    for field, value, more in (("hostname", hostname, " \\"), ("user", user, "")):
        odd = value and (value.startswith("-") or not value.isprintable() or not _ODD.isdisjoint(value))
        if odd or (value and not set(more).isdisjoint(value)):
            return field
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
