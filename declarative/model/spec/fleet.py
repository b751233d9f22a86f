"""The `fleet` document: nodes with the same shape rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Self

from declarative.model.diagnostic import suggest
from declarative.model.record import struct
from declarative.model.schema import (
    MAX_SHOWN,
    BadValueError,
    Doc,
    InPlace,
    Is,
    Json,
    closed_mapping,
    describe,
)
from declarative.model.spec.hosts import SshConfig
from declarative.model.spec.schedule import Schedule
from declarative.model.spec.text import PLACES, WORDS, Env, Name, Tags
from declarative.model.spec.values import (
    MAX_COUNT,
    Backfill,
    Blocks,
    Count,
    FallbackPolicy,
    IdleDuration,
    Level,
    Placement,
    Resources,
    SpotPolicy,
    unpadded,
)

_SLURM_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,&|!*()\[\]:@+-]{0,254}", re.ASCII)
"""The form of the name of a partition, account, QoS or feature; it becomes part of a command line
unchanged.
"""
_NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)
"""A number in quotes, as a template or a shell leaves it."""


@struct(frozen=True, slots=True)
class NodeCount:
    """The number of nodes: `4`, `0..4`, or `{min, target, max}`. `max` None is unlimited."""

    min: int
    target: int
    max: int | None
    HINT: ClassVar[str] = "write `4`, `0..4`, `1..`, or `{min: 0, target: 2, max: 4}`"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-range` unless 0 <= min <= target <= max."""
        if isinstance(value, Mapping):
            return cls._parse_mapping(value)
        count = Count.parse(value)
        return cls._checked(count.min, count.min, count.max)

    @classmethod
    def _parse_mapping(cls, value: Mapping[str, Json]) -> Self:
        ends: dict[str, int] = {}
        for key, item in value.items():
            if key not in ("min", "target", "max"):
                hint = "write `target:`" if key in ("desired", "count", "size", "default") else None
                hint = hint or suggest(key[:MAX_SHOWN], ("min", "target", "max")) or cls.HINT
                raise BadValueError(
                    "unknown-field", f"`{key}` is not a field of nodes", hint, (key,), at_key=True
                )
            if item is not None:
                ends[key] = cls._number(key, item)
        if not ends:
            raise BadValueError("bad-range", "`nodes` has neither a lower nor an upper bound", cls.HINT)
        low = ends.get("min", 0)
        return cls._checked(low, ends.get("target", low), ends.get("max"))

    @classmethod
    def _number(cls, key: str, item: Json) -> int:
        if isinstance(item, str) and _NUMBER.fullmatch(unpadded(item, "bad-range", (key,))):
            return int(item)
        if isinstance(item, int) and not isinstance(item, bool):
            return item
        raise BadValueError(
            "wrong-type", f"expected a whole number, found {describe(item)}", cls.HINT, (key,)
        )

    @classmethod
    def _checked(cls, low: int, target: int, high: int | None) -> Self:
        if low < 0 or target < low or (high is not None and target > high):
            shown = f"min {low}, target {target}, max {'unlimited' if high is None else high}"
            summary = f"`nodes` needs 0 <= min <= target <= max, found {shown}"
            raise BadValueError("bad-range", summary, cls.HINT)
        if max(low, target, high or 0) > MAX_COUNT:
            raise BadValueError("out-of-range", f"at most {MAX_COUNT} nodes can be declared", cls.HINT)
        return cls(low, target, high)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        number = {"type": ["integer", "string", "null"], "minimum": 0}
        keys = {"min": number, "target": number, "max": number}
        return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}, closed_mapping(keys)]}

    def plain(self) -> Json:
        """`4`, `0..4`, or the mapping if the target is neither end."""
        if self.min == self.target == self.max:
            return self.min
        if self.min == self.target:
            return f"{self.min}..{'' if self.max is None else self.max}"
        return {"min": self.min, "target": self.target, "max": self.max}


USUAL_IDLE = IdleDuration(259200)


@struct(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A named group of nodes with the same shape rules, each split into equal blocks."""

    name: Annotated[Name, Doc("The fleet's name; its nodes are `<name>-0`, `<name>-1`, ….")]
    nodes: Annotated[
        NodeCount | None, InPlace(), Doc("The number of nodes: `4`, `0..4`, `{min, target, max}`.")
    ] = None
    placement: Annotated[Placement, Doc("`cluster` puts all nodes into one network; default `any`.")] = (
        Placement.ANY
    )
    same: Annotated[
        Level | None,
        InPlace(),
        Doc(
            "With `placement: cluster`: what all ranks of a task share: `zone` (default), `region`, "
            "or a label of the hosts' `topology`."
        ),
    ] = None
    blocks: Annotated[
        Blocks, InPlace(), Doc("The number of equal blocks of a node: a number, or `auto`.")
    ] = Blocks(1)
    resources: Annotated[Resources, InPlace(), Doc("What each node must have.")] = Resources()
    backends: Annotated[tuple[Name, ...], InPlace(), Doc("Backends that may be used; default: all.")] = ()
    regions: Annotated[tuple[str, ...], PLACES, InPlace(), Doc("Regions that may be used.")] = ()
    availability_zones: Annotated[tuple[str, ...], PLACES, InPlace(), Doc("Zones that may be used.")] = ()
    instance_types: Annotated[tuple[str, ...], WORDS, InPlace(), Doc("Instance types that may be used.")] = ()
    spot_policy: Annotated[SpotPolicy, InPlace(), Doc("`on-demand` (default), `spot` or `auto`.")] = (
        SpotPolicy.ON_DEMAND
    )
    max_price: Annotated[
        float | None, InPlace(), Is(above=0), Doc("The most that a node may cost, USD an hour.")
    ] = None
    fallback: Annotated[
        FallbackPolicy | None,
        InPlace(),
        Doc(
            "What is launched if the planned offer is sold out: `same` (default) takes the same GPUs, for at "
            "most 20 % more or up to `max_price`; `any` takes whatever fits; `none` takes nothing else."
        ),
    ] = None
    backfill: Annotated[
        Backfill,
        InPlace(),
        Doc(
            "Which tasks may use idle blocks that a waiting task of higher priority has claimed: `short` "
            "(default) lets in those whose `max_duration` ends before it can start, `any` lets in all."
        ),
    ] = Backfill.SHORT
    idle_duration: Annotated[
        IdleDuration,
        InPlace(),
        Is(true_is_default=True),
        Doc("How long an idle node above the target is kept; `off` keeps it; default 3d."),
    ] = USUAL_IDLE
    unreachable_duration: Annotated[
        IdleDuration,
        InPlace(),
        Is(true_is_default=True),
        Doc(
            "How long a node may be silent before it is given up: replaced on clouds, its ranks lost;"
            " `off` means never; default 10m."
        ),
    ] = IdleDuration(600)
    schedule: Annotated[
        Schedule | None,
        InPlace(),
        Doc(
            '`{start: "0 8 * * 1-5", stop: "0 20 * * *", timezone: Europe/Berlin}`: at other times, '
            "only nodes with running ranks are kept."
        ),
    ] = None
    tags: Annotated[Tags, InPlace(), Doc("Tags on every node.")] = field(default_factory=Tags)
    env: Annotated[Env, Doc("Environment of every rank on these nodes.")] = Env()
    prevent_destroy: Annotated[bool, InPlace(), Doc("A plan that would delete a node is an error.")] = False
    reservation: Annotated[
        str | None,
        Doc(
            "A cloud's capacity reservation; its nodes are on demand: on EC2 `cr-…` or a group's ARN,"
            " on GCE a reservation's name, on Azure a group's; or a reservation of Slurm."
        ),
    ] = None
    ssh_config: Annotated[
        SshConfig | None,
        InPlace(),
        Doc("Hosts of your own, reached over SSH; each is a node."),
    ] = None
    instance_ids: Annotated[
        tuple[str, ...],
        WORDS,
        InPlace(),
        Doc("Existing instances of a cloud to adopt: each is a node, never restarted, never deleted."),
    ] = ()

    partition: Annotated[
        str | None,
        InPlace(),
        Doc("A partition of a Slurm cluster (`driver: slurm`): each of its nodes is a node of the fleet."),
    ] = None
    constraint: Annotated[
        str | None, InPlace(), Doc("Slurm's features that the nodes must have: `h100&ib`.")
    ] = None
    account: Annotated[str | None, InPlace(), Doc("The account that Slurm charges for jobs.")] = None
    qos: Annotated[str | None, InPlace(), Doc("Slurm's quality of service for jobs.")] = None

    DEFAULTED: ClassVar[tuple[str, ...]] = ("name",)
    OF_SLURM: ClassVar[tuple[str, ...]] = ("constraint", "account", "qos")
    """Fields that have no meaning without a `partition`."""
    FOREIGN: ClassVar[Mapping[str, str]] = {
        "retry": "a fleet has none: write `retry` in the task that is to run again",
        "backend_options": "use `options:` of the `backend` document",
        "profiles": "write the fields of the profile here",
    }
    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("count", "size", "replicas", "num_nodes", "node_count"), "nodes"),
        **dict.fromkeys(
            ("min", "max", "target", "min_nodes", "max_nodes", "min_size", "max_size", "desired_capacity"),
            "write `nodes: {min: 0, target: 2, max: 4}`",
        ),
        **dict.fromkeys(("zone", "zones", "availability_zone"), "availability_zones"),
        **dict.fromkeys(("instance_type", "machine_type"), "instance_types"),
        **dict.fromkeys(("provider", "driver"), "backends"),
        **dict.fromkeys(("labels", "metadata"), "tags"),
        **dict.fromkeys(("cpu", "memory", "gpu", "gpus", "disk"), "write it in `resources: {…}`"),
        **dict.fromkeys(("spot", "preemptible"), "spot_policy"),
        **dict.fromkeys(("hosts", "user", "identity_file"), "write it in `ssh_config: {…}`"),
        **dict.fromkeys(("queue", "partitions"), "partition"),
        **dict.fromkeys(("feature", "features", "constraints"), "constraint"),
        "environment": "env",
    }

    def __post_init__(self) -> None:
        if self.nodes is None and not self.exists:
            raise BadValueError(
                "missing-field", "`nodes` is missing", "add `nodes: 2`, or a range such as `nodes: 0..4`"
            )
        self._check_kind()
        if self.instance_ids:
            self._check_instances()
        if self.same is not None and self.placement is not Placement.CLUSTER:
            hint = "add `placement: cluster`, or remove it"
            summary = "`same` is for cluster tasks, and the fleet's `placement` is `any`"
            raise BadValueError("bad-value", summary, hint, ("same",), at_key=True)
        if self.reservation is not None:
            self._check_reservation()
        if self.schedule is not None:
            self._check_schedule(self.schedule)
        if self.exists:
            self._check_hosts()

    @property
    def exists(self) -> bool:
        """Whether it names existing nodes and launches none."""
        return self.ssh_config is not None or bool(self.instance_ids) or self.partition is not None

    def _check_instances(self) -> None:
        """`instances` need one backend: only that backend knows the form of its ids."""
        other = next((n for n in ("nodes", "ssh_config", "partition") if getattr(self, n) is not None), None)
        if other:
            summary = f"`{other}` and `instance_ids` exclude each other"
            hint = "keep `nodes` for machines to launch, or `instance_ids` for those that exist"
            raise BadValueError("nodes-and-ssh", summary, hint, ("instance_ids",), at_key=True)
        if len(self.backends) != 1:
            summary = "`instance_ids` belong to one backend, and `backends` does not name it"
            hint = "write their backend: `backends: [aws]`"
            raise BadValueError("bad-value", summary, hint, ("instance_ids",), at_key=True)
        for i, instance in enumerate(self.instance_ids):
            if not re.fullmatch(r"[!-~]{1,255}", instance):
                summary = f"{describe(instance)} is not the id of an instance"
                raise BadValueError("bad-value", summary, "write it as its cloud does", ("instance_ids", i))
            if instance in self.instance_ids[:i]:
                summary = f"`{instance}` is listed twice"
                raise BadValueError("duplicate-host", summary, "remove one", ("instance_ids", i))

    def _check_kind(self) -> None:
        """A fleet launches its nodes, or names hosts, or takes the nodes of a partition: only one
        of these.
        """
        kinds = [name for name in ("nodes", "ssh_config", "partition") if getattr(self, name) is not None]
        if len(kinds) > 1:
            hint = "keep `nodes` for machines to launch, or `ssh_config` for hosts that exist"
            if "partition" in kinds:
                hint = f"keep `partition` for the nodes of a Slurm cluster, or `{kinds[0]}`"
            summary = f"`{kinds[0]}` and `{kinds[1]}` exclude each other"
            raise BadValueError("nodes-and-ssh", summary, hint, (kinds[1],), at_key=True)
        for name in ("partition", *self.OF_SLURM):
            value = getattr(self, name)
            if value is not None and not _SLURM_WORD.fullmatch(value):
                summary = f"{describe(value)} is not a `{name}` of Slurm"
                raise BadValueError("bad-value", summary, "write it as `sinfo` and `sacctmgr` do", (name,))
            if value is not None and self.partition is None:
                hint = "add `partition: NAME`, or remove it"
                summary = f"`{name}` is for a Slurm cluster, and the fleet has no `partition`"
                raise BadValueError("bad-value", summary, hint, (name,), at_key=True)

    def _check_reservation(self) -> None:
        if not re.fullmatch(r"[!-~]{1,255}", self.reservation or ""):
            summary = f"{describe(self.reservation)} is not the id of a reservation"
            raise BadValueError("bad-value", summary, "write its id, such as `cr-0abc`", ("reservation",))
        if self.spot_policy is SpotPolicy.SPOT:
            summary = "reserved capacity is not spot"
            raise BadValueError("bad-value", summary, "remove it, or the `reservation`", ("spot_policy",))

    def _check_schedule(self, schedule: Schedule) -> None:
        if schedule.stop is None:
            summary = "the `schedule` of a fleet needs a `stop`"
            raise BadValueError("missing-field", summary, 'add `stop: "0 20 * * *"`', ("schedule",))
        if self.exists:
            hint = "remove it: the machines are there; give the tasks a `schedule`"
            summary = "`schedule` is for machines to launch, and these exist"
            raise BadValueError("nodes-and-ssh", summary, hint, ("schedule",), at_key=True)

    def _check_hosts(self) -> None:
        """Hosts exist already, so the fields that limit launches are errors."""
        own, named = ("instance_ids", "instances") if self.instance_ids else ("ssh_config", "hosts")
        own, named = ("partition", "nodes") if self.partition is not None else (own, named)
        none: dict[str, object] = {
            "regions": (),
            "availability_zones": (),
            "instance_types": (),
            "spot_policy": SpotPolicy.ON_DEMAND,
            "max_price": None,
            "fallback": None,
            **({} if self.partition is not None else {"reservation": None}),
            "resources": Resources(),
        }
        for name, default in none.items():
            if getattr(self, name) != default:
                hint = "remove it"
                if name == "resources" and self.partition is not None:
                    hint = "choose nodes by their features: `constraint: h100`"
                if name == "resources" and self.ssh_config is not None:
                    hint = "write what a host has at the host: `hosts: [{hostname: …, resources: {…}}]`"
                summary = f"`{name}` is for machines to launch, and `{own}` names {named} that exist"
                raise BadValueError("nodes-and-ssh", summary, hint, (name,), at_key=True)
