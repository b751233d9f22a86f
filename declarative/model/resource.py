"""The desired resources, expanded from the documents: single volumes, tasks with each rank's mounts and
files, offers. Pure.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import Any, cast

from declarative.model.blocks import Shape, gpu_order, split
from declarative.model.diagnostic import Span
from declarative.model.inputs import Inputs, NodeInputs, OfferInputs, RankInputs, VolumeInputs, known
from declarative.model.record import struct
from declarative.model.schema import encode
from declarative.model.spec.backend import ANYWHERE, FILTER, Backend, ImageFilter
from declarative.model.spec.fleet import USUAL_IDLE, Fleet
from declarative.model.spec.project import Project
from declarative.model.spec.task import Task
from declarative.model.spec.values import Blocks, Count, Duration, Gpu, Memory, Resources
from declarative.model.spec.volume import Volume
from declarative.model.status import HostRefusal
from declarative.model.text import and_more, show_mib, suggest

LOCAL = "local"
"""The backend that is there without a document, and the name of its region."""
SSH = "ssh"
"""The backend of hosts that exist, there without a document too, and the name of its region."""
SLURM = "slurm"
"""The backend of a Slurm cluster, there without a document too, and the name of its region."""
EXISTING = (SSH, SLURM)
"""Drivers that launch nothing: their nodes are there."""

VOLUME_ID = "volume_id"
"""The input of a volume that was adopted, and not made: deleting it releases it."""
INSTANCE_ID = "instance_id"
"""The recorded field of a host that is an adopted instance: deleting its node releases it."""

CATALOGUED = (LOCAL, "ec2")
"""Drivers whose offers are known without asking anybody: this machine, and catalogs that are shipped."""

SUMS = "file_sums"
"""The key in rank 0's inputs for `Manifest.sums` of its files."""


@struct(frozen=True, slots=True, kw_only=True)
class Host:
    """One host of a fleet's `ssh_config`, or one of its `instance_ids`: the node that it is or will be."""

    fleet: str
    name: str
    """The node's."""
    backend: str
    key: str
    """The key of a host within its backend: the node's instance type, or the instance's id."""
    fields: Mapping[str, Any] = field(hash=False)
    """How it is reached, and its declared fields: `host` of the node's inputs."""
    blocks: Blocks | None = None
    index: int = 0
    """Where it stands among the hosts of its fleet."""
    topology: tuple[tuple[str, str], ...] = ()
    """Level → where it stands there."""

    @property
    def whole(self) -> bool:
        """Whether it stands for all nodes of a partition: which they are, only its backend knows."""
        return not self.key

    @property
    def hostname(self) -> str:
        """Its name or address, as declared."""
        return str(self.fields["hostname"])

    @property
    def proxy_jump(self) -> Mapping[str, Any]:
        """The recorded fields of the host that it is reached through."""
        return cast("Mapping[str, Any]", self.fields.get("proxy_jump") or {})

    @property
    def declared(self) -> Mapping[str, Any]:
        """Its declared shape."""
        return cast("Mapping[str, Any]", self.fields.get("resources") or {})


@struct(frozen=True, slots=True, kw_only=True)
class OthersShare:
    """Something that others hold on a node, with its holder in words."""

    holder: str
    cpu: int = 0
    memory_mib: int = 0
    gpus: int = 0
    until: float | None = None
    """The latest time when it is given back, seconds since the epoch; None if unknown."""


@struct(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A declared host that cannot be a node now, and why. `shape` is its shape, if known."""

    host: Host
    reason: str
    shape: Shape | None = None
    refusal: HostRefusal | None = None


@struct(frozen=True, slots=True, kw_only=True)
class Offer:
    """Something a backend can launch. `price` is USD an hour, None if unknown; `limit` how many of it."""

    backend: str
    region: str
    instance_type: str
    shape: Shape
    zone: str | None = None
    price: float | None = None
    spot: bool = False
    limit: int | None = None
    shaped: bool = False
    """The node takes the shape that the fleet asks for; `shape` fills in what the fleet leaves out."""
    host: Host | None = None
    """The host, if the offer is one: only for its fleet, and only under its name."""
    can: frozenset[str] | None = None
    """What its host supports, as in `Readiness.can`."""
    bids: bool = False
    """Its node ends before it costs more than the fleet's `max_price`, so no price has to be known."""
    priced_on: str | None = None
    """The day that its price is of, `2025-03-02`, where that is known."""
    address: str | None = None
    """The observed address by which other hosts would reach a host."""
    on_demand: float | None = None
    """The price of the same on demand: spot offers without a price are ordered by it."""

    @property
    def name(self) -> str | None:
        """The name that its node has to get, if it has to be a certain one."""
        return self.host.name if self.host else None

    def blocks(self, fleet: Fleet) -> int | None:
        """The number of blocks that the fleet splits it into; None is `auto`."""
        return (self.host.blocks if self.host and self.host.blocks else fleet.blocks).number


# ------------------------------------------------------------------------------ the files of tasks
# A manifest says which files of the project go where for a rank, and with which content: only their SHA-256.
# `apply` needs no more to make what is sent, and to find out whether the files are still as planned.

_FORMAT = "fleetform files 1"
MOST_SUMS = 500
"""The most sums of files, or of folders, that a state records, so that a plan can name the changes."""


@struct(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file or symbolic link. Its mode counts only as far as it is executable, as in git."""

    path: str
    """Below the rank's folder."""
    source: str
    """Below the project's directory; both with `/` between their parts, and without `.` and `..`."""
    size: int = 0
    """Bytes; of a link, none."""
    sha256: str = ""
    """The sum of its content, in hex; empty for a link."""
    executable: bool = False
    link: str | None = None
    """Where a symbolic link leads; None for a file."""


@struct(frozen=True)
class Manifest:
    """All that one task's ranks get, sorted by path."""

    entries: tuple[Entry, ...] = field(default=())

    @functools.cached_property
    def digest(self) -> str:
        """64 hex digits that show a change, and that name the files on a host. The files' place in the
        project is not part of it: the rank gets the same.
        """
        summed = hashlib.sha256(_FORMAT.encode())
        for entry in self.entries:
            what = [entry.path, entry.link, entry.executable, entry.size, entry.sha256]
            summed.update(json.dumps(what).encode() + b"\n")
        return summed.hexdigest()

    @property
    def bytes(self) -> int:
        """All files together."""
        return sum(entry.size for entry in self.entries)

    def sums(self, alone: Collection[str] = ()) -> dict[str, str]:
        """Path → short sum of each file; of whole folders (`data/`) if there are more than `MOST_SUMS`. Files
        of `alone` always have their own sum.
        """
        deepest = max((entry.path.count("/") for entry in self.entries), default=0)
        for depth in range(deepest, -1, -1):
            hashes: dict[str, Any] = {}
            for entry in self.entries:
                parts = entry.path.split("/")
                whole = entry.path in alone or len(parts) <= depth + 1
                name = entry.path if whole else "/".join(parts[: depth + 1]) + "/"
                what = [entry.path, entry.link, entry.executable, entry.size, entry.sha256]
                hashes.setdefault(name, hashlib.sha256()).update(json.dumps(what).encode())
            if len(hashes) <= MOST_SUMS:
                break
        return {name: sum_.hexdigest()[:12] for name, sum_ in sorted(hashes.items())} if self.entries else {}


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """The change of each path between two `sums`: `added`, `removed` or `changed`."""
    out: dict[str, str] = {}
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            out[path] = "added" if path not in before else "removed" if path not in after else "changed"
    return out


def changes_text(path_changes: Mapping[str, str], most: int = 5) -> str:
    """The changes in one line: `data/x.csv added, train.py changed and 3 more`."""
    return and_more((f"{path} {what}" for path, what in path_changes.items()), most)


# ------------------------------------------------------------------------------ what is wanted


@struct(frozen=True, slots=True, kw_only=True)
class RankMount:
    """One mount of one rank: alternatives by name, and the name that its environment variable has."""

    path: str
    names: tuple[str, ...]
    variable: str


@struct(frozen=True, slots=True, kw_only=True)
class VolumeWant:
    """One volume that shall be there."""

    name: str
    inputs: VolumeInputs
    declared_by: str
    cleanup: int | None = None
    """Seconds after which it is deleted when it is not attached; None to keep it. A volume that is cleaned up
    exists only for tasks: it is made for one.
    """


@struct(frozen=True, slots=True, kw_only=True)
class TaskWant:
    """One task that shall be there: its declaration, the mounts of each of its ranks, and their files."""

    spec: Task
    mounts: tuple[tuple[RankMount, ...], ...] = ()
    files: Manifest | None = field(default=None, hash=False)
    off: bool = False
    """Its `schedule` keeps it from running now."""
    started: float | None = None
    """When its `schedule` was last to start it, seconds since the epoch."""
    stops: float = 0.0
    """When its `schedule` stops it next, seconds since the epoch; 0 for never."""
    starts: str | None = None
    """When its `schedule` starts it next, for people."""

    @property
    def own_files(self) -> frozenset[str]:
        """The paths of files that `files` names themselves, not as a part of a folder."""
        named = {f.local_path for f in self.spec.files or ()}
        return (
            frozenset(e.path for e in self.files.entries if e.source in named) if self.files else frozenset()
        )

    def rank_inputs(self, rank: int) -> RankInputs:
        """The inputs of a rank, to be recorded and compared with the recorded ones."""
        body = encode(self.spec, but=("name", "volumes"))
        paths = body.pop("files", None)
        if self.files is not None:
            body["files"] = {"paths": paths, "digest": self.files.digest}
            if rank == 0:  # once is enough to name what changed
                body[SUMS] = self.files.sums(self.own_files)
        mounts = {m.path: list(m.names) for m in self.mounts[rank]} if self.mounts else {}
        folders = {
            m.path: {"instance_path": m.instance_path, **({"optional": True} if m.optional else {})}
            for m in self.spec.volumes
            if m.instance_path is not None
        }
        own = {"task": str(self.spec.name), "rank": rank, "volumes": mounts, "instance_paths": folders}
        return known(RankInputs, {**body, **own})


@struct(frozen=True, slots=True, kw_only=True)
class Desired:
    """Everything that shall be there. `places` leads from an address to where it was declared."""

    project: Project = field(default_factory=Project)
    backends: Mapping[str, Backend] = field(default_factory=dict)
    fleets: Mapping[str, Fleet] = field(default_factory=dict)
    volumes: Mapping[str, VolumeWant] = field(default_factory=dict)
    tasks: Mapping[str, TaskWant] = field(default_factory=dict)
    places: Mapping[str, Span] = field(default_factory=dict)
    unmatched: Mapping[str, Span] = field(default_factory=dict)
    """Patterns of `include` that match no file, and where each is written."""
    protected: Mapping[str, bool] = field(default_factory=dict)
    """For `destroy`, which declares nothing: address of a fleet or volume → its present `prevent_destroy`."""
    asleep: frozenset[str] = frozenset()
    """The fleets and tasks that their `schedule` keeps from being there now: `task/train`."""
    skipped: Mapping[str, Span] = field(default_factory=dict)
    """Addresses in documents that were left alone: their records are not deleted because of that."""

    def guard(self, address: str, inputs: Inputs) -> str | None:
        """The entry of `limits.protected` that names a node or its fleet, or a volume or all of its count."""
        family = f"fleet/{inputs.fleet}" if isinstance(inputs, NodeInputs) else address.rpartition("-")[0]
        patterns = self.project.limits.protected
        if not any(_any_of(patterns).match(name) for name in (address, family)):
            return None
        return next((p for p in patterns if fnmatchcase(address, p) or fnmatchcase(family, p)), None)

    def wrongly_moved(self, address: str) -> str | None:
        """The hint if `moved` renames something to this undeclared address; None if it does not."""
        target = self.project.moved.target(address)
        if target is None:
            return None
        volumes = {want.declared_by for want in self.volumes.values()}
        known = {"fleet": {f"fleet/{n}" for n in self.fleets}, "task": {f"task/{n}" for n in self.tasks}}
        near = suggest(target, known.get(target.partition("/")[0], volumes))
        return f"`moved` renames it to `{target}`, which is not declared: {near or 'correct that `to`'}"

    def protects(self, address: str, inputs: NodeInputs | VolumeInputs) -> bool:
        """Whether `destroy` leaves a node or a volume: as declared, and if that says nothing as recorded."""
        owner = f"fleet/{inputs.fleet}" if isinstance(inputs, NodeInputs) else address
        return self.is_guarded(address, inputs) or self.protected.get(owner, inputs.prevent_destroy)

    def is_guarded(self, address: str, inputs: NodeInputs | VolumeInputs) -> bool:
        """Whether `limits.protected` names it, as `guard` says."""
        return self.guard(address, inputs) is not None


@lru_cache(maxsize=4)
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """One expression for all patterns, for it is asked for each node and volume. `(?!)` matches nothing."""
    return re.compile("|".join(map(translate, patterns)) or r"(?!)")


def volume_inputs(volume: Volume, backend: Backend) -> VolumeInputs:
    """The inputs of a volume. The host of a volume on a host's disk is recorded as its zone."""
    on_host = backend.provider == SSH
    usual = SLURM if backend.provider == SLURM else LOCAL
    region = SSH if on_host else volume.region or (backend.regions[0] if backend.regions else usual)
    same = (r for r in backend.regions if r.casefold() == region.casefold())
    region = next(same, region)  # as the backend spells it
    return VolumeInputs(
        backend=str(backend.name),
        region=region,
        zone=volume.host if on_host else volume.availability_zone,
        size=show_mib(volume.size.mib) if volume.size else None,
        volume_type=volume.volume_type,
        volume_id=volume.volume_id,
        tags=dict(sorted(volume.tags.items())),
        prevent_destroy=volume.protected,
        auto_cleanup_duration=None if volume.cleanup is None else str(Duration(volume.cleanup).plain()),
    )


def volume_names(volume: Volume) -> tuple[str, ...]:
    """`data`, or `data-0` … with a `count`."""
    numbers = [""] if volume.count is None else [f"-{i}" for i in range(volume.count)]
    return tuple(f"{volume.name}{number}" for number in numbers)


def shaped(offer: Offer, want: Resources) -> Offer:
    """The offer as this fleet gets it: lower bounds where the backend launches any shape."""
    if not offer.shaped:
        return offer
    base = offer.shape
    disk = want.disk.min if want.disk else None
    shape = replace(
        base,
        cpu=_least(want.cpu, base.cpu),
        memory_mib=_least(want.memory, base.memory_mib),
        disk_mib=disk or base.disk_mib,
    )
    return replace(offer, shape=_with_gpus(shape, want.gpu) if want.gpu else shape)


def _least(want: Count | Memory | None, value: int) -> int:
    """The lower bound of a range; where it has none, `value` within the range."""
    if want is None:
        return value
    return want.min or (value if want.max is None else min(value, want.max))


def _with_gpus(shape: Shape, gpu: Gpu) -> Shape:
    """The shape with these GPUs; fields that are not given stay."""
    return replace(
        shape,
        gpus=gpu.count.min,
        gpu_name=gpu.names[0] if gpu.names else shape.gpu_name,
        gpu_memory_mib=gpu.memory.min if gpu.memory else shape.gpu_memory_mib,
        gpu_vendor=gpu.vendor or shape.gpu_vendor,
    )


def catalog_size(backend: Backend) -> int:
    """How many offers `catalog_offers` gives."""
    zones, anywhere = len(backend.availability_zones) or 1, len(backend.regions) or 1
    kinds = ((len(e.regions) or anywhere, 1 if e.spot_price is None else 2) for e in backend.catalog)
    return zones * sum(regions * prices for regions, prices in kinds)


def catalog_offers(backend: Backend) -> tuple[Offer, ...]:
    """The offers that a backend's `catalog` declares: each region and zone, on demand and as spot."""
    out: list[Offer] = []
    for entry in backend.catalog:
        disk = entry.disk.mib if entry.disk else None
        shape = Shape(cpu=entry.cpu, memory_mib=entry.memory.mib, disk_mib=disk)
        on_demand = Offer(
            backend=str(backend.name),
            region="",
            zone=None,
            instance_type=entry.instance_type,
            shape=_with_gpus(shape, entry.gpu) if entry.gpu else shape,
            price=entry.price,
            spot=False,
            limit=entry.limit,
        )
        kinds = [on_demand]
        if entry.spot_price is not None:
            kinds.append(replace(on_demand, price=entry.spot_price, spot=True))
        regions, zones = entry.regions or backend.regions or (LOCAL,), backend.availability_zones or (None,)
        places = itertools.product(regions, zones, kinds)
        out += [replace(offer, region=region, zone=zone) for region, zone, offer in places]
    return tuple(out)


def merge_offers(declared: tuple[Offer, ...], reported: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """A declared offer replaces a reported one of its instance type, in the zones where that is.

    Any declared one replaces those that take whatever shape is asked for: the catalog says what there is. A
    declared offer bids as the reported one does.
    """
    types = {o.instance_type for o in declared}
    others = (o for o in reported if o.instance_type not in types and not (declared and o.shaped))
    zones: dict[tuple[str, str], dict[str | None, None]] = {}
    for offer in reported:
        if offer.zone is not None:
            zones.setdefault((offer.instance_type, offer.region), {})[offer.zone] = None
    bids = {(offer.instance_type, offer.spot) for offer in reported if offer.bids}
    out: list[Offer] = []
    for offer in declared:
        known = zones.get((offer.instance_type, offer.region), {offer.zone: None})
        bidding = offer.bids or (offer.instance_type, offer.spot) in bids
        offered_zones = known if offer.zone is None else {offer.zone}.intersection(known)
        out += [replace(offer, zone=zone, bids=bidding) for zone in offered_zones]
    return (*out, *others)


def size_order(offer: Offer) -> tuple[object, ...]:
    """The order of offers at one price: the smallest first, by GPUs, CPUs, memory, and kind of GPUs.

    Among unknown prices, offers that are cheap on demand come first, then those with the fewest GPUs.
    """
    shape = offer.shape
    if offer.price is not None:
        return (shape.gpus, shape.cpu, shape.memory_mib, *gpu_order(shape))
    guide = math.inf if offer.on_demand is None else offer.on_demand
    return (guide, shape.gpus, *gpu_order(shape), shape.cpu, shape.memory_mib)


HOW_REACHED = frozenset(
    (
        *("timeout", "connect_timeout", "identity_file", "ssh_config", "known_hosts"),
        *("profile", "interface", "settle", "volume_iops", "volume_throughput"),
    )
)
"""Options of clouds that do not shape a node: how the cloud and its nodes are reached, and options of
volumes. All others do, also those of drivers that are not known here.
"""


def settings_of(backend: Backend | None, region: str, zone: str | None) -> dict[str, Any]:
    """What a cloud's document declares for a node that is made in a place: its driver, image, user, network
    and options. Empty for other drivers, whose nodes have nothing of it.
    """
    if backend is None or backend.provider in (LOCAL, *EXISTING):
        return {}
    network = encode(backend.network) if backend.network else {}
    image = (backend.image.get(region) or backend.image.get(ANYWHERE)) if backend.image else None
    subnets = network.pop("subnets", {})
    network["subnet"] = subnets.get(zone) or subnets.get(region)
    settings = {
        "driver": backend.provider,
        "image": {FILTER: encode(image)} if isinstance(image, ImageFilter) else image,
        "ssh_user": backend.ssh_user and str(backend.ssh_user),
        "network": {key: value for key, value in sorted(network.items()) if value is not None},
        "options": {k: v for k, v in sorted(backend.options.items()) if k not in HOW_REACHED},
    }
    return {key: value for key, value in settings.items() if value}


def offer_inputs(fleet: Fleet, offer: Offer, backend: Backend | None) -> OfferInputs:
    """The inputs of the offer that a node of `fleet` takes. `backend` is the declared one of the offer."""
    adopted = offer.host is not None and INSTANCE_ID in offer.host.fields
    return OfferInputs(
        backend=offer.backend,
        region=offer.region,
        zone=offer.zone,
        instance_type=offer.instance_type,
        spot=offer.spot,
        price=offer.price,
        max_price=fleet.max_price if offer.spot and offer.bids else None,
        resources=offer.shape,
        settings={} if adopted else settings_of(backend, offer.region, offer.zone),
    )


def node_inputs(fleet: Fleet, offer: Offer, backend: Backend | None) -> NodeInputs:
    """The inputs of a node of `fleet` that takes `offer`, which can be split as the fleet says. `backend` is
    the declared one of the offer.
    """
    blocks = split(offer.shape, offer.blocks(fleet))
    assert blocks is not None
    of_offer = offer_inputs(fleet, offer, backend)
    return NodeInputs(
        fleet=str(fleet.name),
        blocks=blocks,
        host=dict(offer.host.fields) if offer.host else {},
        **{part.name: getattr(of_offer, part.name) for part in dataclasses.fields(OfferInputs)},
        **fleet_marks(fleet),
    )


def offer_of(node: NodeInputs) -> Offer:
    """A recorded node as the offer that it was."""
    return Offer(
        backend=node.backend,
        region=node.region,
        zone=node.effective_zone,
        instance_type=node.instance_type,
        shape=node.resources,
        price=node.price,
        spot=node.spot,
        bids=node.max_price is not None,
    )


def fleet_marks(fleet: Fleet) -> dict[str, Any]:
    """The `NodeInputs` that are fields of the fleet and do not depend on the offer."""
    usual = fleet.exists or fleet.idle_duration == USUAL_IDLE
    return {
        "placement": fleet.placement.value,
        "tags": dict(sorted(fleet.tags.items())),
        "env": dict(fleet.env),
        "prevent_destroy": fleet.prevent_destroy,
        "reservation": fleet.reservation,
        "identity": fleet.identity,
        "idle_duration": None if usual else str(fleet.idle_duration.plain()),
    }
