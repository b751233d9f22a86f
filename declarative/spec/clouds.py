"""What a backend of a cloud declares of its own: `endpoint`, `image`, `ssh_user`, `network`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

from declarative.schema import BadValueError, Doc, Json, raise_all
from declarative.schema.decode import describe

ANYWHERE = "*"
"""The key of an image that is not one region's."""
_ID = re.compile(r"[!-~]{1,255}")


class Endpoint(str):
    """`https://ec2.example.org:8773`: where a cloud's API answers."""

    __slots__ = ()
    HINT: ClassVar[str] = "write a URL such as `https://cloud.example.org:8773`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-value` for what is no URL, and for one that names a user: the value is then not shown."""
        if not isinstance(value, str):
            raise BadValueError("wrong-type", f"expected a URL, found {describe(value)}", cls.HINT)
        try:
            parts = urlsplit(value)
            port = parts.port
        except ValueError:
            raise BadValueError("bad-value", f"{describe(value)} is not a URL", cls.HINT) from None
        if "@" in parts.netloc:
            hint = "leave it out, and name the variables that hold it under `credentials`"
            raise BadValueError("bad-credential", "`endpoint` names a user or a password", hint)
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not value.isascii():
            raise BadValueError("bad-value", f"{describe(value)} is not a URL of a server", cls.HINT)
        if parts.query or parts.fragment or re.search(r"\s", value):
            raise BadValueError("bad-value", f"{describe(value)} is more than a server's URL", cls.HINT)
        return cls(value)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A string that begins as URLs do."""
        return {"type": "string", "pattern": "^https?://"}

    def plain(self) -> Json:
        """As written."""
        return str(self)


class Images(dict[str, str]):
    """`ami-0abc`, or one id for each region: `{us-east-1: ami-0abc, eu-west-1: ami-0def}`."""

    __slots__ = ()
    HINT: ClassVar[str] = "write an id, or one for each region: `{us-east-1: ami-0abc, eu-west-1: ami-0def}`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`wrong-type`, or `bad-value` for what cannot be an id."""
        given = {ANYWHERE: value} if isinstance(value, str) else value
        if not isinstance(given, Mapping) or not given:
            raise BadValueError("wrong-type", f"expected an image, found {describe(value)}", cls.HINT)
        faults: list[BadValueError] = []
        for key, item in given.items():
            if not isinstance(item, str) or not _ID.fullmatch(item):
                below = () if isinstance(value, str) else (key,)
                faults.append(
                    BadValueError("bad-value", f"{describe(item)} is not an image's id", cls.HINT, below)
                )
        raise_all(faults)
        return cls({str(k): str(v) for k, v in given.items()})

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A string, or a mapping of strings."""
        text = {"type": "string", "minLength": 1}
        return {"anyOf": [text, {"type": "object", "minProperties": 1, "additionalProperties": text}]}

    def plain(self) -> Json:
        """An id alone, or a mapping, sorted by key."""
        return self[ANYWHERE] if set(self) == {ANYWHERE} else dict(sorted(self.items()))


class Login(str):
    """`ubuntu`: a user of a Unix."""

    __slots__ = ()
    HINT: ClassVar[str] = "write the name of a user, such as `ubuntu`"
    PATTERN: ClassVar[str] = r"[a-z_][a-z0-9_-]{0,31}"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`wrong-type`, or `bad-value` for what is no user's name."""
        if not isinstance(value, str):
            raise BadValueError("wrong-type", f"expected a user's name, found {describe(value)}", cls.HINT)
        if not re.fullmatch(cls.PATTERN, value):
            raise BadValueError("bad-value", f"{describe(value)} is not the name of a user", cls.HINT)
        return cls(value)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A string."""
        return {"type": "string", "pattern": f"^{cls.PATTERN}$"}

    def plain(self) -> Json:
        """As written."""
        return str(self)


class Reach(StrEnum):
    """By which of its addresses a node is reached from here."""

    PUBLIC = "public"
    PRIVATE = "private"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Where in a cloud's network nodes are, and how they are reached from here."""

    subnets: Annotated[
        Mapping[str, str], Doc("Zone → the subnet of its nodes: `{us-east-1a: subnet-0abc}`.")
    ] = field(default_factory=dict)
    security_groups: Annotated[
        tuple[str, ...], Doc("The ids of the nodes' security groups; they have to let ssh in.")
    ] = ()
    public_ip: Annotated[
        bool | None, Doc("Whether nodes get a public address; as the subnet says if left out.")
    ] = None
    reach: Annotated[
        Reach | None, Doc("The address by which nodes are reached; the public one, if they have one.")
    ] = None
