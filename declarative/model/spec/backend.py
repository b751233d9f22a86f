"""The `backend` document: a provider with its settings, and for clouds `endpoint`, `image`, `ssh_user` and
`network`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

from declarative.model.record import struct
from declarative.model.schema import (
    BadValueError,
    Doc,
    Is,
    Json,
    Word,
    closed_mapping,
    decode_part,
    describe,
    encode,
    raise_all,
)
from declarative.model.spec.values import MAX_COUNT, PLACES, WORDS, Gpu, Name, Size

ANYWHERE = "*"
"""The key for an image that is the same in all regions."""
FILTER = "filter"
"""The key for an image that is found by its name."""
_ID = re.compile(r"[!-~]([ -~]{0,253}[!-~])?")
"""An image's id or name. Hyperstack's have spaces."""
_TEXT = re.compile(r"[ -~]{1,255}")


class Endpoint(Word):
    """`https://ec2.example.org:8773`: where a cloud's API answers."""

    __slots__ = ()
    SCHEMA: ClassVar[Mapping[str, Any]] = {"type": "string", "pattern": "^https?://"}
    HINT: ClassVar[str] = "write a URL such as `https://cloud.example.org:8773`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-value` if it is not a URL; `bad-credential`, without showing the value, if it
        contains a user.
        """
        if not isinstance(value, str):
            raise BadValueError("wrong-type", f"expected a URL, found {describe(value)}", cls.HINT)
        try:
            parts = urlsplit(value)
            usable = parts.port != 0 and parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            raise BadValueError("bad-value", f"{describe(value)} is not a URL", cls.HINT) from None
        if "@" in parts.netloc:
            hint = "leave it out, and name the variables that hold it under `credentials`"
            raise BadValueError("bad-credential", "`endpoint` names a user or a password", hint)
        if not usable or not value.isascii():
            raise BadValueError("bad-value", f"{describe(value)} is not a URL of a server", cls.HINT)
        if parts.query + parts.fragment or re.search(r"\s", value):
            raise BadValueError("bad-value", f"{describe(value)} is more than a server's URL", cls.HINT)
        return cls(value)


@struct(frozen=True, slots=True, kw_only=True)
class ImageFilter:
    """The newest image whose name matches: `{name: "ubuntu-noble-*", owner: "099720109477"}`."""

    NOUN: ClassVar[str] = "an image's `filter`"

    name: Annotated[str, Doc("The image's name; `*` stands for any text, `?` for one character.")]
    owner: Annotated[
        str | None,
        Doc("The account that owns the image; your own if left out, since anybody may choose any name."),
    ] = None

    def __post_init__(self) -> None:
        for field_name, text in (("name", self.name), ("owner", self.owner)):
            if text is not None and not _TEXT.fullmatch(text):
                summary = f"{describe(text)} cannot be the {field_name} of an image"
                raise BadValueError("bad-value", summary, Images.HINT, (field_name,))

    def __str__(self) -> str:
        return f"`{self.name}` of {self.owner or 'your own'}"


Image = str | ImageFilter
"""An image by its id, or by another name that the driver knows, or the newest one that matches a filter."""


class Images(dict[str, Image]):
    """`ami-0abc`, or `{filter: {name: …, owner: …}}`, or a mapping of regions to either.

    The key `filter` at the top is never a region, unless it holds a mapping of its own: write a region's
    filter as `{us-east-1: {filter: …}}`.
    """

    __slots__ = ()
    HINT: ClassVar[str] = (
        "write an id, `{filter: {name: …, owner: …}}`, or one for each region: `{us-east-1: ami-0abc}`"
    )

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`wrong-type`, or `bad-value` for what cannot be an image."""
        if isinstance(value, str) or _is_filter(value):
            return cls({ANYWHERE: cls._one(value)})
        if not isinstance(value, Mapping) or not value:
            number = isinstance(value, int) and not isinstance(value, bool)
            hint = f'put an id that is a number in quotes: `"{value}"`' if number else cls.HINT
            raise BadValueError("wrong-type", f"expected an image, found {describe(value)}", hint)
        faults: list[BadValueError] = []
        images: dict[str, Image] = {}
        for key, item in value.items():
            try:
                images[str(key)] = cls._one(item, str(key))
            except BadValueError as error:
                faults += error.within(key)
        raise_all(faults)
        return cls(images)

    @classmethod
    def _one(cls, value: Json, region: str = ANYWHERE) -> Image:
        if isinstance(value, str) and _ID.fullmatch(value):
            return value
        if region == FILTER and isinstance(value, Mapping):
            hint = f"write `filter` under each region that it is for; under `{ANYWHERE}` it is for all others"
            raise BadValueError("bad-value", "`filter` stands beside regions", hint, at_key=True)
        if not _is_filter(value):
            raise BadValueError("bad-value", f"{describe(value)} is not an image", cls.HINT)
        assert isinstance(value, Mapping)
        fields = value[FILTER]
        if isinstance(fields, Mapping) and isinstance(fields.get("owner"), int):
            hint = "write it in quotes: a number loses the zeros at its start"
            raise BadValueError("wrong-type", "expected a string, found a number", hint, (FILTER, "owner"))
        try:
            return decode_part(ImageFilter, fields)
        except BadValueError as error:
            raise_all(error.within(FILTER))
            raise

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        text = {"type": "string", "minLength": 1}
        keys = {"name": text, "owner": {"type": ["string", "null"]}}
        by_name = closed_mapping({FILTER: closed_mapping(keys, ["name"])}, [FILTER])
        regions = {"type": "object", "minProperties": 1, "additionalProperties": {"anyOf": [text, by_name]}}
        return {"anyOf": [text, by_name, regions]}

    def plain(self) -> Json:
        out = {
            region: image if isinstance(image, str) else {FILTER: encode(image)}
            for region, image in sorted(self.items())
        }
        return out[ANYWHERE] if set(out) == {ANYWHERE} else out


def _is_filter(value: Json) -> bool:
    return isinstance(value, Mapping) and set(value) == {FILTER} and isinstance(value[FILTER], Mapping)


class SshUser(Word):
    """`ubuntu`: the name of a Unix user."""

    __slots__ = ()
    HINT: ClassVar[str] = "write the name of a user, such as `ubuntu`"
    PATTERN: ClassVar[str] = r"[a-z_][a-z0-9_-]{0,31}"
    SCHEMA: ClassVar[Mapping[str, Any]] = {"type": "string", "pattern": f"^{PATTERN}$"}

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`wrong-type`, or `bad-value` if it is not a user's name."""
        if not isinstance(value, str):
            raise BadValueError("wrong-type", f"expected a user's name, found {describe(value)}", cls.HINT)
        if not re.fullmatch(cls.PATTERN, value):
            raise BadValueError("bad-value", f"{describe(value)} is not the name of a user", cls.HINT)
        return cls(value)


class Reach(StrEnum):
    """The address by which this machine reaches a node."""

    PUBLIC = "public"
    PRIVATE = "private"


@struct(frozen=True, slots=True, kw_only=True)
class Network:
    """The network that a cloud's nodes join, and how this machine reaches them."""

    subnets: Annotated[
        Mapping[str, str], Doc("Zone → the subnet of its nodes: `{us-east-1a: subnet-0abc}`.")
    ] = field(default_factory=dict)
    security_groups: Annotated[
        tuple[str, ...], WORDS, Doc("The ids of the nodes' security groups; they have to let ssh in.")
    ] = ()
    public_ip: Annotated[
        bool | None, Doc("Whether nodes get a public address; default: the subnet decides.")
    ] = None
    reach: Annotated[
        Reach | None, Doc("The address by which nodes are reached; the public one, if they have one.")
    ] = None


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Credentials(dict[str, str]):
    """Maps the driver's name of a credential to the environment variable that holds it; never to
    its value.
    """

    __slots__ = ()
    HINT: ClassVar[str] = (
        "write the name of an environment variable, such as `key: AWS_ACCESS_KEY_ID`; the secret goes there"
    )

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-credential` for anything but names of variables. The message does not show the value: it may
        be the secret.
        """
        if not isinstance(value, Mapping):
            raise BadValueError("wrong-type", "expected a mapping", cls.HINT)
        faults: list[BadValueError] = []
        for key, item in value.items():
            if not isinstance(item, str) or not _VARIABLE.fullmatch(item):
                summary = f"the value of `{key}` is not the name of an environment variable"
                faults.append(BadValueError("bad-credential", summary, cls.HINT, (key,), at_key=True))
        raise_all(faults)
        return cls({str(k): str(v) for k, v in value.items()})

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {
            "type": "object",
            "additionalProperties": {"type": "string", "pattern": f"^{_VARIABLE.pattern}$"},
        }

    def plain(self) -> Json:
        return dict(sorted(self.items()))


@struct(frozen=True, slots=True, kw_only=True)
class CatalogOffer:
    """One offer of the backend, declared by hand."""

    NOUN: ClassVar[str] = "an offer in a `catalog`"

    instance_type: Annotated[str, Is(longest=255), Doc("The backend's name for this shape.")]
    cpu: Annotated[int, Is(minimum=1, maximum=MAX_COUNT), Doc("CPUs of one instance.")]
    memory: Annotated[Size, Doc("Memory of one instance: `64GB`.")]
    gpu: Annotated[Gpu | None, Doc("GPUs of one instance: `H100:8`.")] = None
    disk: Annotated[Size | None, Doc("Disk of one instance.")] = None
    price: Annotated[float | None, Is(minimum=0), Doc("USD an hour, on demand; unknown if left out.")] = None
    spot_price: Annotated[
        float | None, Is(minimum=0), Doc("USD an hour as spot; no spot offer if left out.")
    ] = None
    regions: Annotated[tuple[str, ...], PLACES, Doc("The regions that have it; all if left out.")] = ()
    limit: Annotated[int | None, Is(minimum=0), Doc("How many of it may exist at the same time.")] = None


@struct(frozen=True, slots=True, kw_only=True)
class Backend:
    """A provider with its settings: driver, regions, names of the variables with its credentials, offers."""

    name: Annotated[Name, Doc("The backend's name.")]
    driver: Annotated[str | None, Doc("`local`, `ssh`, or a libcloud provider; default: the name.")] = None
    regions: Annotated[tuple[str, ...], PLACES, Doc("Regions that may be used.")] = ()
    availability_zones: Annotated[tuple[str, ...], PLACES, Doc("Zones that may be used.")] = ()
    catalog: Annotated[
        tuple[CatalogOffer, ...],
        Is(most_items=10_000),
        Doc("Offers that complete or replace what the driver reports."),
    ] = ()
    options: Annotated[Mapping[str, Any], Doc("The driver's own options.")] = field(default_factory=dict)
    credentials: Annotated[
        Credentials | None, Doc("Names of environment variables, never values: `{key: AWS_ACCESS_KEY_ID}`.")
    ] = None
    endpoint: Annotated[Endpoint | None, Doc("A URL, for private clouds and test servers.")] = None
    image: Annotated[
        Images | None, Doc("The image of nodes: its id, `{filter: {name: …}}`, or one for each region.")
    ] = None
    ssh_user: Annotated[
        SshUser | None,
        Doc("The user that logs in to a cloud's nodes; made there if needed; default `fleetform`."),
    ] = None
    network: Annotated[Network | None, Doc("Network settings of a cloud.")] = None

    FOREIGN: ClassVar[Mapping[str, str]] = {
        "creds": "use `credentials:` with the names of environment variables, never values",
    }

    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("provider", "kind"), "driver"),
        **dict.fromkeys(("zone", "zones", "availability_zone"), "availability_zones"),
        **dict.fromkeys(("url", "host"), "endpoint"),
        **dict.fromkeys(("access_key", "secret_key", "token"), "credentials"),
        "offers": "catalog",
    }

    CLOUD: ClassVar[tuple[str, ...]] = ("credentials", "endpoint", "image", "ssh_user", "network")
    """Fields that have no meaning for `local` and `ssh`."""

    @property
    def provider(self) -> str:
        """The driver's name."""
        return self.driver or self.name
