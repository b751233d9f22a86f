"""The `backend` document: one configured use of a provider."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self

from declarative.model.schema.marks import BadValueError, Doc, Is, Json, raise_all
from declarative.model.spec.clouds import Endpoint, Images, Login, Network
from declarative.model.spec.text import PLACES, Name
from declarative.model.spec.values import MAX_COUNT, Gpu, Size

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Credentials(dict[str, str]):
    """What the driver calls a credential → the environment variable that holds it; never its value."""

    __slots__ = ()
    HINT: ClassVar[str] = (
        "write the name of an environment variable, such as `key: AWS_ACCESS_KEY_ID`; the secret goes there"
    )

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-credential` for anything but names of variables. The value itself is not shown: it may be
        the secret.
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
        """A mapping of names."""
        return {
            "type": "object",
            "additionalProperties": {"type": "string", "pattern": f"^{_VARIABLE.pattern}$"},
        }

    def plain(self) -> Json:
        """A mapping, sorted by key."""
        return dict(sorted(self.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogOffer:
    """One thing that the backend can launch, declared by hand."""

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
    regions: Annotated[tuple[str, ...], PLACES, Doc("Where it can be had; everywhere if left out.")] = ()
    limit: Annotated[int | None, Is(minimum=0), Doc("How many of it may exist at once.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One configured use of a provider: driver, regions, credentials by the names of variables, offers."""

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
        Login | None, Doc("Who logs in on the nodes of a cloud, made there if need be; default `fleetform`.")
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
    """Fields that mean nothing to `local` and `ssh`."""

    @property
    def provider(self) -> str:
        """The driver's name."""
        return self.driver or self.name
