"""The operator policy: what all projects may do on a machine, in a file outside of all projects. Pure.

A project's YAML and state may come from a stranger. The defaults are as strict as usual work allows: only
`https`, only the credentials that a driver's own tools use, only files of the project and of `~/.ssh`, and no
commands in the project's `ssh_config`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

from declarative.model.record import struct
from declarative.model.schema import BadValueError, Doc, Json, Word

LOOPBACK = ("localhost", "127.0.0.1", "::1")
TOOLS: Mapping[str, tuple[str, ...]] = {
    "ec2": ("AWS_*", "EC2_*"),
    "openstack": ("OS_*",),
    "gce": ("GOOGLE_*", "GCE_*", "GCLOUD_*", "CLOUDSDK_*"),
    "azure": ("AZURE_*", "ARM_*"),
    "azure_arm": ("AZURE_*", "ARM_*"),
    "digitalocean": ("DIGITALOCEAN_*", "DO_*"),
    "vultr": ("VULTR_*",),
    "crusoe": ("CRUSOE_*",),
    "hyperstack": ("HYPERSTACK_*",),
    "lambda": ("LAMBDA_*",),
    "nebius": ("NEBIUS_*",),
}
"""The variables that each driver's own tools use. Any other driver has those that begin with its name."""


class PlanKey(Word):
    """A public key of someone who may sign plans, as `ssh-ed25519 AAAA…`; a comment after it is left out."""

    __slots__ = ()
    SCHEMA: ClassVar[Mapping[str, Any]] = {
        "type": "string",
        "pattern": "^\\s*ssh-ed25519\\s+[A-Za-z0-9+/]{68}(\\s.*)?$",
    }
    HINT: ClassVar[str] = "write it as in ~/.ssh/id_ed25519.pub: `ssh-ed25519 AAAA…`"
    _FORM: ClassVar[re.Pattern[str]] = re.compile(r"ssh-ed25519[ \t]+([A-Za-z0-9+/]{68})([ \t].*)?", re.ASCII)
    _HEAD: ClassVar[bytes] = b"\0\0\0\x0bssh-ed25519\0\0\0\x20"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """Messages do not show the value: it may be a private key."""
        match = cls._FORM.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None or not cls._decoded(match[1]).startswith(cls._HEAD):
            raise BadValueError("bad-value", "this is not a public Ed25519 key", cls.HINT)
        return cls(f"ssh-ed25519 {match[1]}")

    @classmethod
    def _decoded(cls, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            return b""

    @property
    def raw(self) -> bytes:
        """The key's 32 bytes."""
        return self._decoded(self.split()[1])[len(self._HEAD) :]


@struct(frozen=True, slots=True, kw_only=True)
class OperatorPolicy:
    """What the operator of a machine allows all projects. A field left out has its default."""

    NOUN: ClassVar[str] = "a policy"

    drivers: Annotated[
        tuple[str, ...] | None, Doc("Drivers that may be used: `ec2`, `ssh`, …; default: all.")
    ] = None
    endpoints: Annotated[
        tuple[str, ...] | None,
        Doc(
            "Endpoints that may be contacted, `*` for any text; default: `https://*`, and all on this"
            " machine."
        ),
    ] = None
    credentials: Annotated[
        Mapping[str, tuple[str, ...]] | None,
        Doc("Driver → variables that it may get, `*` for any text; default: those of its own tools."),
    ] = None
    state_hosts: Annotated[
        tuple[str, ...] | None,
        Doc("Servers that a project may name for its state; default: any, but without a password in clear."),
    ] = None
    identities: Annotated[
        tuple[str, ...] | None,
        Doc("Identities that fleets may give to their nodes, `*` for any text; default: any."),
    ] = None
    paths: Annotated[
        tuple[str, ...],
        Doc("Folders and files for ssh's files, besides the project and `~/.ssh`."),
    ] = ()
    allow_commands: Annotated[
        bool, Doc("A project's `ssh_config` may run commands and read the environment; default false.")
    ] = False

    plan_keys: Annotated[
        tuple[PlanKey, ...] | None,
        Doc(
            "Public keys, as `ssh-ed25519 AAAA…`: only saved plans signed by one of them are applied;"
            " default: no signature needed."
        ),
    ] = None
    more_variables: Annotated[tuple[str, ...], Doc("Further variables that any driver may get.")] = ()

    def refused_driver(self, driver: str) -> str | None:
        """Why a driver may not be used; None if allowed."""
        if self.drivers is None or driver in self.drivers:
            return None
        return f"the operator's policy does not allow the driver `{driver}`"

    def refused_endpoint(self, endpoint: str) -> str | None:
        """Why an endpoint may not be contacted; None if allowed."""
        if self.endpoints is not None:
            allowed = any(fnmatchcase(endpoint.rstrip("/"), p.rstrip("/")) for p in self.endpoints)
            return None if allowed else "the operator's policy does not allow this `endpoint`"
        parts = urlsplit(endpoint)
        if parts.scheme == "https" or parts.hostname in LOOPBACK:
            return None
        return "`endpoint` is not `https`: secrets would be sent in clear"

    def refused_variable(self, driver: str, variable: str) -> str | None:
        """Why a driver may not get the value of a variable; None if allowed."""
        own = TOOLS.get(driver, ("".join(c if c.isalnum() else "_" for c in driver.upper()) + "_*",))
        allowed = (*own, *self.more_variables)
        if self.credentials is not None:
            allowed = tuple(self.credentials.get(driver, ()))
        if any(fnmatchcase(variable, pattern) for pattern in allowed):
            return None
        by = "the operator's policy does not let it have" if self.credentials is not None else "is not given"
        return f"the driver `{driver}` {by} the variable `{variable}`"

    def refused_identity(self, identity: str) -> str | None:
        """Why nodes may not get an identity; None if allowed."""
        if self.identities is None or any(fnmatchcase(identity, pattern) for pattern in self.identities):
            return None
        return f"the operator's policy does not allow the identity `{identity}`"

    def refused_state(self, host: str) -> str | None:
        """Why a project's state may not be kept on a server; None if allowed."""
        if self.state_hosts is None or any(fnmatchcase(host, pattern) for pattern in self.state_hosts):
            return None
        return f"the operator's policy does not allow a state on `{host}`"
