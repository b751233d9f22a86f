"""Finds out what a driver of libcloud's can do, from its methods. Nothing is sent or made.

libcloud does not say enough: which keyword takes the user data, or where it is recorded which node has a
volume. So there is a short list of keywords that drivers use, and a table of what is known about some of
them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from declarative.model.record import struct
from declarative.provider import PermanentError, PermanentKind, UnknownProviderError

USER_DATA = ("ex_userdata", "ex_user_data", "cloud_init")
"""Keywords of `create_node` for cloud-init's user data as text."""
KEYS = "ex_authorized_keys"
"""The keyword that takes public keys as they are."""

MORE = "**"
"""A keyword that means that others are accepted, too."""

HOLDERS: Mapping[str, str] = dict.fromkeys(("cloudstack", "ikoula", "aurora_compute"), "instance_id")
"""Driver → the key of a volume's `extra` for the id of its node, None if free. Others: unknown."""

SHORT: Mapping[str, str] = {"linode": "a volume's name has 32 characters, too few to say whose it is"}
"""Drivers whose volume names are too short to name an owner."""

USELESS: Mapping[str, str] = {
    "dummy": "it makes nothing: its nodes are those of this process alone",
    "equinixmetal": "Equinix Metal ended in June 2026",
    "eucalyptus": "libcloud has no `list_locations` for it",
    "exoscale": "it asks an API that Exoscale has deprecated",
    "nimbus": "its nodes keep no name, so what was made would not be found again",
    "outscale": "its methods return errors as if they were answers",
}
"""Drivers that have the methods but cannot be used."""


@struct(frozen=True, slots=True, kw_only=True)
class Kind:
    """The abilities of one driver. `lacks` are those missing for nodes, or for volumes."""

    driver: str
    lacks: tuple[str, ...]
    lacks_for_volumes: tuple[str, ...] = ()
    user_data: str = ""
    node: frozenset[str] = frozenset()
    """Keywords of `create_node`."""
    volume: frozenset[str] = frozenset()
    """Keywords of `create_volume`."""
    attach: frozenset[str] = frozenset()
    detach: frozenset[str] = frozenset()
    constructor: frozenset[str] = frozenset()
    holder: str = ""

    @property
    def nodes(self) -> bool:
        """Whether it can make nodes that ranks run on."""
        return not self.lacks

    @property
    def volumes(self) -> bool:
        """Whether it can make volumes, and attach them."""
        return not self.lacks and not self.lacks_for_volumes

    @property
    def regional(self) -> bool:
        """Whether an instance of the driver is for one region."""
        return "location" not in self.node and "region" in self.constructor


def names() -> tuple[str, ...]:
    """The names of all drivers of libcloud's."""
    from libcloud.compute.providers import DRIVERS

    return tuple(sorted(str(name) for name in DRIVERS))


def kind(driver: str) -> Kind:
    """The abilities of a driver; `UnknownProviderError` if there is none of that name."""
    known = names()
    if driver not in known:
        raise UnknownProviderError(driver, known)
    if driver in USELESS:
        return Kind(driver=driver, lacks=(USELESS[driver],))
    try:
        found = _class(driver)
    except Exception as error:  # noqa: BLE001  # a module of libcloud's may need what is not installed
        return Kind(driver=driver, lacks=(f"it cannot be loaded: {error}",))
    node, volume, attach, detach = (
        _keywords(found, name) for name in ("create_node", "create_volume", "attach_volume", "detach_volume")
    )
    user_data = next((word for word in USER_DATA if word in node), "")
    return Kind(
        driver=driver,
        lacks=_lacks(found, node, user_data),
        lacks_for_volumes=_lacks_for_volumes(found, driver),
        user_data=user_data,
        node=node,
        volume=volume,
        attach=attach,
        detach=detach,
        constructor=_constructor(found),
        holder=HOLDERS.get(driver, ""),
    )


NODE_METHODS = ("create_node", "list_nodes", "destroy_node", "list_sizes")
VOLUME_METHODS = ("create_volume", "list_volumes", "destroy_volume", "attach_volume", "detach_volume")


def _missing(found: Any, methods: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"libcloud has no `{method}` for it" for method in methods if not _own(found, method))


def _lacks(found: Any, node: frozenset[str], user_data: str) -> tuple[str, ...]:
    """The abilities that are missing for nodes."""
    if missing := _missing(found, NODE_METHODS):
        return missing
    words = [word for word in ("name", "size", "image") if word not in node]
    lacks = [f"its `create_node` takes no `{word}`" for word in words]
    if not user_data:
        lacks.append("its nodes take no user data, so their host keys would not be known")
    return tuple(lacks)


def _lacks_for_volumes(found: Any, driver: str) -> tuple[str, ...]:
    """The abilities that are missing for volumes."""
    if driver in SHORT:
        return (SHORT[driver],)
    if missing := _missing(found, VOLUME_METHODS):
        return missing
    return () if driver in HOLDERS else ("it is not known how it says which node has a volume",)


def refusal(found: Kind) -> PermanentError | None:
    """Why a driver cannot be used; None if it can."""
    if found.nodes:
        return None
    summary = f"the driver `{found.driver}` cannot be used: {'; '.join(found.lacks)}"
    hint = (
        "make the hosts by other means, and name them in a fleet's `ssh_config`; drivers that can be used: "
        "`ec2`, `openstack`, `gce`, `azure`, `digitalocean`, `vultr`, and some that docs/clouds.md names"
    )
    return PermanentError(PermanentKind.INVALID, summary, about="driver", hint=hint)


def _class(driver: str) -> Any:
    """The class of the drivers that a constructor makes. Some constructors only choose the newest version's
    class.
    """
    from libcloud.compute.providers import get_driver

    found: Any = get_driver(driver)
    if _own(found, "create_node"):
        return found
    versions = [c for c in _below(found) if c.__module__ == found.__module__ and _own(c, "create_node")]
    return max(versions, key=lambda c: str(c.__name__), default=found)


def _below(found: Any) -> list[Any]:
    return [c for below in found.__subclasses__() for c in (below, *_below(below))]


def _own(found: Any, method: str) -> bool:
    """Whether a driver implements a method itself, and not only the base that raises an error."""
    from libcloud.compute.base import NodeDriver

    mine = getattr(found, method, None)
    return callable(mine) and mine is not getattr(NodeDriver, method, None)


def _keywords(found: Any, method: str) -> frozenset[str]:
    if not _own(found, method):
        return frozenset()
    parameters = list(inspect.signature(getattr(found, method)).parameters.values())
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    more = {MORE} if any(p.kind is p.VAR_KEYWORD for p in parameters) else set()
    return frozenset(names - {"self"} | more)


def _constructor(found: Any) -> frozenset[str]:
    """The keywords of a constructor, including its bases' if it passes unknown ones on."""
    out: set[str] = set()
    for base in found.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        parameters = inspect.signature(base.__init__).parameters.values()
        out |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return frozenset(out - {"self"})
