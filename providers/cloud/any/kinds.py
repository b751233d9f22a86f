"""What a driver of libcloud's can do, by looking at its methods; nothing is sent, and nothing is made.

libcloud says less than one needs: which keyword takes the user data, where it stands which node has a volume.
So there is a short list of words that drivers use, and a table of what is known of some.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from declarative.model.record import dataclass
from declarative.provider import PermanentError, PermanentKind
from declarative.provider.installed import UnknownProviderError

USER_DATA = ("ex_userdata", "ex_user_data", "cloud_init")
"""Keywords of `create_node` that take what cloud-init reads, as a text."""
KEYS = "ex_authorized_keys"
"""The keyword that takes public keys as they are."""

MORE = "**"
"""Among keywords: it takes others, too."""

HOLDERS: Mapping[str, str] = dict.fromkeys(
    ("cloudstack", "exoscale", "ikoula", "aurora_compute"), "instance_id"
)
"""Driver → what of a volume's `extra` has the id of its node, None without one. Of others it is not known."""

SHORT: Mapping[str, str] = {"linode": "a volume's name has 32 characters, too few to say whose it is"}
"""Drivers whose volumes cannot be told from others."""

USELESS: Mapping[str, str] = {
    "dummy": "it makes nothing: its nodes are those of this process alone",
    "outscale": "its methods give errors back as if they were answers",
}
"""Drivers that have the methods, and are of no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One driver. `lacks` is what it would need for nodes, or for volumes."""

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
        """Whether it is made for one region."""
        return "location" not in self.node and "region" in self.constructor


def names() -> tuple[str, ...]:
    """The names of all drivers of libcloud's."""
    from libcloud.compute.providers import DRIVERS

    return tuple(sorted(str(name) for name in DRIVERS))


def kind(driver: str) -> Kind:
    """What a driver can do; `UnknownProviderError` if there is none of that name."""
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
    """What a driver would need for nodes."""
    if missing := _missing(found, NODE_METHODS):
        return missing
    words = [word for word in ("name", "size", "image") if word not in node]
    lacks = [f"its `create_node` takes no `{word}`" for word in words]
    if not user_data:
        lacks.append("its nodes take no user data: nobody could log in on a host whose key is known")
    return tuple(lacks)


def _lacks_for_volumes(found: Any, driver: str) -> tuple[str, ...]:
    """What a driver would need for volumes."""
    if driver in SHORT:
        return (SHORT[driver],)
    if missing := _missing(found, VOLUME_METHODS):
        return missing
    return () if driver in HOLDERS else ("it is not known how it says which node has a volume",)


def refusal(found: Kind) -> PermanentError | None:
    """Why nothing can be made with a driver; None if something can."""
    if found.nodes:
        return None
    summary = f"the driver `{found.driver}` cannot be used: {'; '.join(found.lacks)}"
    hint = (
        "make the hosts by other means, and name them in a fleet's `ssh_config`; drivers that can be used: "
        "`ec2`, `openstack`, `gce`, `azure`, `digitalocean`, `vultr`, and some that docs/clouds.md names"
    )
    return PermanentError(PermanentKind.INVALID, summary, about="driver", hint=hint)


def _class(driver: str) -> Any:
    """The class that a driver's constructor gives: some only choose, and give that of the last version."""
    from libcloud.compute.providers import get_driver

    found: Any = get_driver(driver)
    if _own(found, "create_node"):
        return found
    versions = [c for c in _below(found) if c.__module__ == found.__module__ and _own(c, "create_node")]
    return max(versions, key=lambda c: str(c.__name__), default=found)


def _below(found: Any) -> list[Any]:
    return [c for below in found.__subclasses__() for c in (below, *_below(below))]


def _own(found: Any, method: str) -> bool:
    """Whether a driver has a method, and not only the one that says that there is none."""
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
    """What a constructor takes by name: its own, and its bases' where it hands on what it does not know."""
    out: set[str] = set()
    for base in found.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        parameters = inspect.signature(base.__init__).parameters.values()
        out |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return frozenset(out - {"self"})
