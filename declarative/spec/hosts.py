"""A fleet's `ssh_config`: hosts that exist, as dstack writes them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from declarative.schema import BadValueError, Doc, Is, Json, decode_part, encode, object_schema, raise_all
from declarative.schema.decode import describe
from declarative.spec.split import Blocks
from declarative.spec.values import Resources


def _address(value: str | None, field: str) -> None:
    """An IP address, where there is one."""
    if value is None:
        return
    try:
        ipaddress.ip_address(value)
    except ValueError:
        hint = "write an address, such as `10.0.0.4`"
        raise BadValueError(
            "bad-address", f"{describe(value)} is not an IP address", hint, (field,)
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyJump:
    """A host to go through."""

    hostname: Annotated[str, Doc("Its name or address.")]
    port: Annotated[int, Is(minimum=1, maximum=65535), Doc("Its SSH port.")] = 22
    user: Annotated[str | None, Doc("Who logs in there.")] = None
    identity_file: Annotated[str | None, Doc("The private key to log in with.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFields:
    """One host in its long form; what is left out is the fleet's."""

    hostname: Annotated[str, Doc("Its name or address.")]
    port: Annotated[int | None, Is(minimum=1, maximum=65535), Doc("Its SSH port.")] = None
    user: Annotated[str | None, Doc("Who logs in.")] = None
    identity_file: Annotated[str | None, Doc("The private key to log in with.")] = None
    proxy_jump: Annotated[ProxyJump | None, Doc("A host to go through.")] = None
    internal_ip: Annotated[str | None, Doc("The address by which the other hosts reach it.")] = None
    blocks: Annotated[Blocks | None, Doc("Into how many blocks it is split; default: the fleet's.")] = None
    resources: Annotated[Resources | None, Doc("What it has, where that is not to be read from it.")] = None

    def __post_init__(self) -> None:
        if not self.hostname.strip():
            hint = "write the host's name or address"
            raise BadValueError("bad-value", "`hostname` is empty", hint, ("hostname",))
        _address(self.internal_ip, "internal_ip")


class Hosts(tuple[HostFields, ...]):
    """Hosts: each a name, or a mapping with more."""

    __slots__ = ()
    HINT: ClassVar[str] = "write a host's name or address, or `{hostname: …, blocks: …}`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """What `HostFields` may have wrong, and `duplicate-host`."""
        if not isinstance(value, list | tuple) or not value:
            raise BadValueError("wrong-type", f"expected a list of hosts, found {describe(value)}", cls.HINT)
        out: list[HostFields] = []
        faults: list[BadValueError] = []
        seen: set[tuple[str, int | None]] = set()
        for i, item in enumerate(value):
            try:
                host = decode_part(HostFields, {"hostname": item} if isinstance(item, str) else item)
            except BadValueError as bad:
                faults += bad.below(i)
                continue
            if (host.hostname, host.port) in seen:
                summary = f"{describe(host.hostname)} is named twice"
                faults.append(BadValueError("duplicate-host", summary, "remove one", (i,)))
            seen.add((host.hostname, host.port))
            out.append(host)
        raise_all(faults)
        given = [h.internal_ip is not None for h in out]
        if any(given) and not all(given):
            hint = "give every host one, or none"
            raise BadValueError(
                "bad-address", "only some hosts have an `internal_ip`", hint, (given.index(False),)
            )
        return cls(out)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A list of names or mappings."""
        return {
            "type": "array",
            "minItems": 1,
            "items": {"anyOf": [{"type": "string"}, object_schema(HostFields)]},
        }

    def plain(self) -> Json:
        """A name where that is all."""
        bodies = [encode(host) for host in self]
        return [body["hostname"] if set(body) == {"hostname"} else body for body in bodies]


@dataclass(frozen=True, slots=True, kw_only=True)
class SshConfig:
    """How hosts that exist are reached."""

    hosts: Annotated[Hosts, Doc("The hosts: names, or mappings with more.")]
    user: Annotated[str | None, Doc("Who logs in.")] = None
    port: Annotated[int | None, Is(minimum=1, maximum=65535), Doc("The SSH port.")] = None
    identity_file: Annotated[str | None, Doc("The private key to log in with.")] = None
    known_hosts: Annotated[str | None, Doc("A file with the hosts' keys; default: the user's own.")] = None
    proxy_jump: Annotated[ProxyJump | None, Doc("A host to go through.")] = None
    network: Annotated[str | None, Doc("The network by which the hosts reach each other: `10.0.0.0/24`.")] = (
        None
    )

    def __post_init__(self) -> None:
        if self.network is not None:
            try:
                ipaddress.ip_network(self.network)
            except ValueError:
                hint = "write it as `10.0.0.0/24`"
                raise BadValueError(
                    "bad-address", f"`{self.network}` is not a network", hint, ("network",)
                ) from None
            if any(h.internal_ip for h in self.hosts):
                hint = "keep one of them"
                raise BadValueError(
                    "bad-address", "`network` and `internal_ip` exclude each other", hint, ("network",)
                )
