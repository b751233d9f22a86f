"""Any driver of libcloud's, through libcloud's own methods. All that every cloud keeps of a thing is its
name.

So the name says who owns a thing and which create made it (`names`), and there are no tags. Inputs are those
in the record. Arguments are always passed by keyword, since their order differs between drivers.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from declarative.model.blocks import Shape
from declarative.model.status import NodeState
from declarative.model.text import suggest
from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import settings
from providers.cloud.any import kinds, names
from providers.cloud.any.account import Account
from providers.cloud.any.kinds import Kind
from providers.cloud.any.site import Disk, Machine, Site, Size, Wanted, What, Written
from providers.cloud.connection import Connection, limiter
from providers.cloud.faults import error_info
from providers.cloud.provider import Cloud

OPTIONS: dict[str, type | tuple[type, ...]] = dict.fromkeys(("driver", "node", "volume"), dict)
"""Further arguments of the driver's constructor, of `create_node` and of `create_volume`."""

ENDED = "terminated"
"""The state of a machine that will not come back."""
STATES: Mapping[str, NodeState] = {
    **dict.fromkeys(
        ("pending", "starting", "rebooting", "migrating", "reconfiguring", "updating", "unknown"),
        NodeState.PROVISIONING,
    ),
    **dict.fromkeys(("running", "normal"), NodeState.READY),
    **dict.fromkeys(("stopping", "stopped", "suspended", "paused"), NodeState.NOT_READY),
    ENDED: NodeState.TERMINATING,
    "error": NodeState.FAILED,
}
CPUS = ("vcpus", "vcpu", "vcpu_count", "cpus", "cpu", "cores", "cpu_count", "cpu_number")
"""Keys of a size's `extra` that give the number of CPUs."""
HOURLY = ("linode",)
"""Drivers whose `price` is known to be the cloud's own price in USD an hour. For others this is unknown."""


def by_libcloud(config: Config) -> Cloud:
    """The provider for a driver without its own code; `PermanentError` if it cannot make nodes."""
    found = kinds.kind(config.driver)
    refused = kinds.refusal(found)
    if refused:
        raise refused
    return Cloud(
        Account(
            config,
            OPTIONS,
            lambda account, region: LibcloudSite(account, found, region),
            cloud=f"`{config.driver}`",
            regional=found.regional,
        )
    )


class LibcloudSite(Site):
    """One driver of libcloud's."""

    settle = 10.0

    def __init__(self, account: Account, kind: Kind, region: str) -> None:
        config = account.config
        self._account = account
        self._kind = kind
        self._region = region if kind.regional else ""
        self._turn = threading.Lock()
        self._sizes: dict[str, Any] | None = None
        self.volumes = kind.volumes
        takes = ", ".join(sorted(kind.constructor))
        values = settings.secrets(config, (), tuple(sorted(kind.constructor)))
        account.scrub.learn(values.values())
        given = {**account.options.get("driver", {}), **values}
        if kind.regional:
            given["region"] = region
        if config.endpoint:
            at = settings.host(config.endpoint)
            given |= {"host": at.name, "port": at.port, "secure": at.secure}
        for key in given:
            if key not in kind.constructor:
                summary = f"the driver `{kind.driver}` cannot be given `{key}`"
                hint = suggest(key, sorted(kind.constructor)) or f"it takes {takes}"
                raise PermanentError(PermanentKind.INVALID, summary, about=f"options.driver.{key}", hint=hint)

        def make() -> Any:
            from libcloud.compute.providers import get_driver

            try:
                return get_driver(kind.driver)(**given)
            except TypeError as error:
                summary = f"the driver `{kind.driver}` cannot be made: {error}"
                hint = f"name what is missing under `credentials` or `options.driver`: {takes}"
                raise PermanentError(PermanentKind.AUTH, summary, about="credentials", hint=hint) from None

        key = (kind.driver, config.backend, config.endpoint, self._region)
        self._connection = Connection(
            make,
            limiter(*key),
            account.scrub,
            error_info,
            fence=config.fence,
            answered=config.answered,
        )

    def _call(self, method: str, *args: Any, about: str | None = None, **more: Any) -> Any:
        return self._connection.call(
            f"{method} of {self._kind.driver}", lambda d: getattr(d, method)(*args, **more), about=about
        )

    def _listed(self, method: str) -> list[Any]:
        """A listing. A missing list is a fault, and so is an empty list that was read from an
        empty answer.
        """
        what = f"{method} of {self._kind.driver}"
        found, text = self._connection.call(what, lambda d: (getattr(d, method)(), _last(d)))
        if not isinstance(found, list) or (not found and _says_nothing(text)):
            raise TransientError(TransientKind.AMBIGUOUS, f"{what}: the answer has no list")
        return found

    # ----------------------------------------------------------------------------------- machines

    def sizes(self) -> Sequence[Size]:
        """A size without a known number of CPUs must be declared in the backend's `catalog`."""
        priced = self._kind.driver in HOURLY
        found = [_size(name, size, priced=priced) for name, size in self._known_sizes().items()]
        return [size for size in found if size is not None]

    def _known_sizes(self) -> dict[str, Any]:
        with self._turn:
            if self._sizes is None:
                self._sizes = {str(size.id): size for size in self._listed("list_sizes")}
            return self._sizes

    def machines(self) -> Sequence[Machine]:
        return [m for node in self._listed("list_nodes") if (m := self._machine(node))]

    def _machine(self, node: Any) -> Machine | None:
        mark = names.read("node", node.name, self._account.owner)
        if mark is None:
            return None
        state = STATES.get(str(node.state), NodeState.PROVISIONING)
        private, public = (
            [str(a) for a in found or () if a] for found in (node.private_ips, node.public_ips)
        )
        made = getattr(node, "created_at", None)
        return Machine(
            id=str(node.id),
            region=self._region or self._account.regions()[0],
            state=state,
            reason=None if state is NodeState.READY else f"it is {node.state}",
            address=next(iter((*private, *public)), ""),
            public_address=next(iter(public), ""),
            written=mark,
            made_at=made.isoformat() if made else "",
            raw=node,
        )

    def launch(self, wanted: Wanted) -> Machine:
        self._untagged(wanted)
        network = self._account.config.network
        if network.security_groups or network.subnets or network.public_ip is not None:
            summary = f"it is not known how to pass this to the driver `{self._kind.driver}`"
            way = "give its own arguments to `create_node` under `options.node`"
            raise PermanentError(PermanentKind.INVALID, summary, about="network", hint=way)
        from libcloud.compute.base import NodeImage

        sizes = self._known_sizes()
        if wanted.size not in sizes:
            hint = suggest(wanted.size, sorted(sizes))
            summary = f"`{self._kind.driver}` has no size `{wanted.size}`"
            raise PermanentError(PermanentKind.INVALID, summary, about="instance_types", hint=hint)
        more = self._arguments(wanted)
        node = self._connection.call(
            f"create_node of {self._kind.driver}",
            lambda d: d.create_node(
                name=names.name(wanted.written),
                size=sizes[wanted.size],
                image=NodeImage(id=wanted.image, name=wanted.image, driver=d),
                **more,
            ),
            about=wanted.zone or wanted.region,
        )
        made = self._machine(node) if hasattr(node, "name") else None
        if made is None:
            summary = f"create_node of {self._kind.driver} answered with something else"
            raise TransientError(TransientKind.AMBIGUOUS, summary, about=wanted.region)
        return made

    def _arguments(self, wanted: Wanted) -> dict[str, Any]:
        """The arguments of `create_node` besides name, size and image."""
        more = {**self._given("node", self._kind.node), self._kind.user_data: wanted.user_data}
        if "root_pass" in self._kind.node:
            more.setdefault("root_pass", secrets.token_urlsafe(32))  # nobody needs to know the password
        if kinds.KEYS in self._kind.node and wanted.key:
            more.setdefault(kinds.KEYS, [wanted.key])
        if "location" in self._kind.node:
            more["location"] = self._location(wanted.region)
        return more

    def _given(self, option: str, known: frozenset[str]) -> dict[str, Any]:
        """The driver's own arguments from the backend's options."""
        found: dict[str, Any] = dict(self._account.options.get(option, {}))
        for key in found:
            if key not in known and kinds.MORE not in known:
                summary = f"`create_{option}` of the driver `{self._kind.driver}` takes no `{key}`"
                hint = suggest(key, sorted(known)) or f"it takes {', '.join(sorted(known))}"
                raise PermanentError(
                    PermanentKind.INVALID, summary, about=f"options.{option}.{key}", hint=hint
                )
        return found

    def _untagged(self, wanted: Wanted) -> None:
        if wanted.tags:
            summary = f"{wanted.written.address}: the driver `{self._kind.driver}` writes no tags"
            raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint="leave `tags` out")

    def _location(self, region: str) -> Any:
        found = self._listed("list_locations")
        for place in found:
            if region in (str(place.id), str(place.name)):
                return place
        known = sorted(str(place.id) for place in found)
        hint = suggest(region, known) or f"it has these: {', '.join(known)}"
        summary = f"`{self._kind.driver}` has no region `{region}`"
        raise PermanentError(PermanentKind.INVALID, summary, about="regions", hint=hint)

    def add_key(self, name: str, public: str) -> str | None:
        """The key itself."""
        return public

    def end(self, machine: Machine) -> None:
        self._done("destroy_node", self._call("destroy_node", machine.raw), machine.id)

    def _done(self, method: str, answer: Any, about: str) -> None:
        if answer is False:
            summary = f"{method} of {self._kind.driver}: it did not say that it was done"
            raise TransientError(TransientKind.AMBIGUOUS, summary, about=about)

    # -------------------------------------------------------------------------------------- marks

    def owners(self, kind: What) -> Mapping[str, str | None]:
        if kind == "disk" and not self.volumes:
            return {}
        found = self._listed("list_nodes" if kind == "machine" else "list_volumes")
        living = (thing for thing in found if str(getattr(thing, "state", "")) != ENDED)
        return {str(thing.id): names.owner_of(thing.name, self._account.owner) for thing in living}

    def ended(self, kind: What, made: str) -> str | None:
        """An ended machine is listed for some time."""
        found = self._listed("list_nodes") if kind == "machine" else []
        gone = any(str(node.id) == made and str(node.state) == ENDED for node in found)
        return f"it is {ENDED}" if gone else None

    def restore_mark(self, kind: What, made: str, mark: Written, tags: Mapping[str, str]) -> None:
        summary = f"somebody renamed {made}, and the new name does not say that it is {mark.address}"
        hint = f"rename it to `{names.name(mark)}`"
        raise PermanentError(PermanentKind.CONFLICT, summary, about=str(mark.address), hint=hint)

    # -------------------------------------------------------------------------------------- disks

    def disks(self) -> Sequence[Disk]:
        return [d for volume in self._listed("list_volumes") if (d := self._disk(volume))]

    def _disk(self, volume: Any) -> Disk | None:
        mark = names.read("volume", volume.name, self._account.owner)
        if mark is None:
            return None
        if self._kind.holder not in volume.extra:
            summary = f"`{self._kind.driver}` does not say which node has {volume.id}"
            raise TransientError(TransientKind.AMBIGUOUS, summary, about=str(volume.id))
        holder, state = volume.extra[self._kind.holder], str(getattr(volume, "state", ""))
        return Disk(
            id=str(volume.id),
            label=str(volume.name),
            region=self._region or self._account.regions()[0],
            size=_number(volume.size),
            on=(str(holder),) if holder else (),
            busy=state in ("creating", "attaching", "deleting", "migrating"),
            broken="it is in an error" if state == "error" else None,
            written=mark,
            raw=volume,
        )

    def make(self, wanted: Wanted) -> Disk:
        if not self.volumes:
            why = "; ".join(self._kind.lacks_for_volumes)
            summary = f"the driver `{self._kind.driver}` cannot be used for volumes: {why}"
            raise PermanentError(PermanentKind.INVALID, summary, about="driver")
        self._untagged(wanted)
        more = self._given("volume", self._kind.volume)
        if "location" in self._kind.volume:
            more["location"] = self._location(wanted.region)
        if wanted.volume_type:
            if "ex_volume_type" not in self._kind.volume:
                summary = f"the driver `{self._kind.driver}` has no types of volumes"
                raise PermanentError(PermanentKind.INVALID, summary, about="volume_type")
            more["ex_volume_type"] = wanted.volume_type
        made = self._call(
            "create_volume", about=wanted.region, size=wanted.gib, name=names.name(wanted.written), **more
        )
        disk = self._disk(made) if hasattr(made, "extra") else None
        if disk is None:
            summary = f"create_volume of {self._kind.driver} answered with something else"
            raise TransientError(TransientKind.AMBIGUOUS, summary, about=wanted.region)
        return disk

    def remove(self, disk: Disk) -> None:
        self._done("destroy_volume", self._call("destroy_volume", disk.raw), disk.id)

    def attach(self, disk: Disk, machine: Machine) -> None:
        answer = self._call("attach_volume", about=disk.id, node=machine.raw, volume=disk.raw)
        self._done("attach_volume", answer, disk.id)

    def detach(self, disk: Disk, machine: Machine) -> None:
        more = {key: machine.raw for key in ("node", "ex_node") if key in self._kind.detach}
        answer = self._call("detach_volume", about=disk.id, volume=disk.raw, **more)
        self._done("detach_volume", answer, disk.id)


def _size(name: str, size: Any, *, priced: bool) -> Size | None:
    """A size of libcloud's; None if its data is incomplete. `priced`: its price is USD an hour."""
    extra = getattr(size, "extra", None) or {}
    cpus = next((number for key in CPUS if (number := _number(extra.get(key)))), None)
    memory, disk = _number(getattr(size, "ram", None)), _number(size.disk)
    if not cpus or not memory or _number(extra.get("gpus")):
        return None  # the number of GPUs is reported, but not the model
    shape = Shape(cpu=cpus, memory_mib=memory, gpus=0, disk_mib=disk * 1024 if disk else None)
    return Size(name=name, shape=shape, price=_hourly(size.price) if priced else None)


def _hourly(price: object) -> float | None:
    return float(price) if isinstance(price, int | float) and price > 0 else None


def _last(driver: Any) -> str | None:
    """The text of a driver's last answer; None if it has no HTTP connection."""
    link = getattr(getattr(driver, "connection", None), "connection", None)
    response = getattr(link, "response", None)
    return None if response is None else str(response.text or "")


def _says_nothing(text: str | None) -> bool:
    """Whether an answer is `{}` or similar, which drivers read as an empty list."""
    if text is None:
        return False
    try:
        return not json.loads(text) and text.strip() != "[]"
    except ValueError:
        return not text.strip()


def _number(value: object) -> int | None:
    """A whole number above 0; some drivers write it as text."""
    try:
        found = int(float(value)) if isinstance(value, int | float | str) else 0
    except ValueError:
        return None
    return found if found > 0 else None
