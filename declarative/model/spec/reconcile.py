"""`limits`, `notify` and `reconcile` of the `project` document: the limits of all plans, the webhooks that
get events, and what `fleetform reconcile` may do without a person, and how fast.

Webhooks name environment variables, and contain no secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Self

from declarative.model.diagnostic import suggest
from declarative.model.record import struct
from declarative.model.schema.marks import BadValueError, Doc, Is, Json, Word, describe, raise_all
from declarative.model.spec.amounts import MAX_COUNT, Duration
from declarative.model.spec.schedule import MINUTE, Cron, Zone
from declarative.model.spec.text import Name
from declarative.model.status import NodeState, RankState

HOURS_A_MONTH = 730
_AMOUNT = re.compile(r"(fleet|node|volume)/[a-z0-9*?-]{1,60}")


class Guarded(tuple[str, ...]):
    """Patterns of addresses that no plan deletes or replaces."""

    __slots__ = ()
    HINT: ClassVar[str] = "write a list such as `[fleet/prod-*, volume/data]`"

    @classmethod
    def parse(cls, value: Json) -> Guarded:
        """`wrong-type`, `bad-value`."""
        if not isinstance(value, list | tuple) or isinstance(value, Mapping):
            raise BadValueError("wrong-type", f"expected a list, found {describe(value)}", cls.HINT)
        faults = [
            BadValueError(
                "bad-value",
                f"expected the address of fleets, nodes or volumes, found {describe(item)}",
                "write `fleet/NAME`, `node/NAME` or `volume/NAME`; `*` is a wildcard",
                (index,),
            )
            for index, item in enumerate(value)
            if not _AMOUNT.fullmatch(str(item))
        ]
        raise_all(faults)
        return cls(map(str, value))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "string", "pattern": f"^{_AMOUNT.pattern}$"}}

    def plain(self) -> Json:
        return list(self)


@struct(frozen=True, slots=True, kw_only=True)
class Limits:
    """What no plan may exceed. Costs are of whole nodes, in USD."""

    cost_per_hour: Annotated[
        float | None, Is(minimum=0), Doc("The most that all nodes may cost, USD an hour.")
    ] = None
    cost_per_month: Annotated[
        float | None, Is(minimum=0), Doc(f"USD that all nodes may cost in {HOURS_A_MONTH} hours.")
    ] = None
    nodes: Annotated[int | None, Is(minimum=0), Doc("The most nodes.")] = None
    protected: Annotated[
        Guarded, Doc("Fleets, nodes and volumes that no plan deletes or replaces: `[fleet/prod-*]`.")
    ] = Guarded()

    @property
    def hourly(self) -> tuple[str, float] | None:
        """The stricter one of the two cost limits: its name, and its value in USD an hour."""
        limits = [("cost_per_hour", self.cost_per_hour)] if self.cost_per_hour is not None else []
        if self.cost_per_month is not None:
            limits.append(("cost_per_month", self.cost_per_month / HOURS_A_MONTH))
        return min(limits, key=lambda item: item[1], default=None)


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_EVENT_PATTERN = re.compile(r"[a-z*?][a-z_*?]{0,39}(\.[a-z_*?]{1,40})?")


class SecretName(Word):
    """The name of an environment variable with a secret."""

    __slots__ = ()
    SCHEMA: ClassVar[Mapping[str, Any]] = {"type": "string", "pattern": f"^{_VARIABLE.pattern}$"}
    HINT: ClassVar[str] = (
        "write the name of an environment variable, such as `NOTIFY_OPS_URL`; the value goes there"
    )

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-credential`. The message does not show the value: it may be the secret."""
        if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
            summary = "this is not the name of an environment variable"
            raise BadValueError("bad-credential", summary, cls.HINT, at_key=True)
        return cls(value)


_CALLED = "created updated deleted create_failed update_failed delete_failed"
"""What happens to all that backends make."""
_RECORDED = "adopted forgotten moved waiting"
_EVENT_WORDS = {
    "attachment": f"{_CALLED} {_RECORDED}",
    "backend": "waiting",
    "fleet": "moved waiting",
    "node": f"{' '.join(NodeState)} drained undrained ssh {_CALLED} {_RECORDED}",
    "rank": f"{' '.join(RankState)} exec {_CALLED} {_RECORDED}",
    "reconcile": "leads failed recovered",
    "reservation": _RECORDED,
    "state": "pushed",
    "task": f"{' '.join(s for s in RankState if s.ended)} stop_requested moved waiting",
    "volume": f"{_CALLED} {_RECORDED}",
}
EVENT_TYPES = frozenset(f"{kind}.{word}" for kind, words in _EVENT_WORDS.items() for word in words.split())
"""All types of events that are written."""


class EventPattern(Word):
    """`rank.failed`, `node.*`, `*`."""

    __slots__ = ()
    SCHEMA: ClassVar[Mapping[str, Any]] = {"type": "string", "pattern": f"^{_EVENT_PATTERN.pattern}$"}

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-value`, also for a pattern that no type matches: its reader would wait for ever."""
        if not isinstance(value, str) or not _EVENT_PATTERN.fullmatch(value):
            hint = "write `rank.failed`, `node.*` or `*`; docs/commands.md lists the types"
            raise BadValueError("bad-value", "this is not a type of events", hint)
        if not any(fnmatchcase(known, value) for known in EVENT_TYPES):
            raise BadValueError("bad-value", f"no type of events is `{value}`", cls._near(value))
        return cls(value)

    @staticmethod
    def _near(value: str) -> str:
        """The types of the same kind, or the kinds."""
        kind = value.partition(".")[0]
        if kind in _EVENT_WORDS:
            words = sorted({*_EVENT_WORDS[kind].split()})
            return f"the types of `{kind}` are {', '.join(f'`{kind}.{word}`' for word in words)}"
        groups = [f"{known}.*" for known in _EVENT_WORDS]
        near = suggest(value, EVENT_TYPES) or suggest(f"{kind}.*", groups)
        return near or f"write one of {', '.join(f'`{group}`' for group in groups)}"


class HookFormat(StrEnum):
    """The form of a webhook's message."""

    JSON = "json"
    """The event, signed."""
    SLACK = "slack"
    """A message for an incoming webhook of Slack."""
    GITHUB = "github"
    """A `repository_dispatch`, which starts a workflow."""


@struct(frozen=True, slots=True, kw_only=True)
class Notify:
    """One webhook. Its URL and secret are in the environment of the process that delivers."""

    name: Annotated[Name, Doc("The webhook's name; the state keeps its last event under this name.")]
    url: Annotated[SecretName, Doc("The variable that holds its URL: `NOTIFY_OPS_URL`.")]
    secret: Annotated[
        SecretName | None,
        Doc("The variable that holds the key of signatures or, for `github`, the token."),
    ] = None
    format: Annotated[HookFormat, Doc("`json` (default), `slack` or `github`.")] = HookFormat.JSON
    events: Annotated[
        tuple[EventPattern, ...],
        Is(most_items=100),
        Doc("Which events: `[task.failed, node.*]`; default: all."),
    ] = ()

    def __post_init__(self) -> None:
        if self.format is HookFormat.GITHUB and self.secret is None:
            hint = "add `secret: NOTIFY_GITHUB_TOKEN`: a token that may write the repository's contents"
            raise BadValueError("missing-field", "GitHub needs a token, and `secret` is missing", hint)
        if self.format is HookFormat.SLACK and self.secret is not None:
            hint = "remove it: the URL that Slack gave you is the secret"
            raise BadValueError("bad-value", "Slack takes no `secret`", hint, ("secret",))
        if self.secret is not None and f"{self.secret.rpartition('_')[0]}_URL" != self.url:
            summary = "the variables of `url` and `secret` are not named alike"
            hint = "a secret goes only to the URL that the operator paired it with: `NOTIFY_OPS_SECRET` goes "
            hint += "with `NOTIFY_OPS_URL`"
            raise BadValueError("bad-credential", summary, hint, ("secret",))

    def wants(self, type: str) -> bool:
        """Whether it gets events of that type."""
        return not self.events or any(fnmatchcase(type, pattern) for pattern in self.events)


class Cause(StrEnum):
    """Why an action is done. The loop's permissions, approvals and budgets are by cause."""

    CREATE = "create"
    """Makes what is declared and does not exist."""
    UPDATE = "update"
    """Changes in place what exists."""
    RETRY = "retry"
    """Runs a task again that failed or was cut short."""
    REPLACE_LOST = "replace-lost"
    """Makes anew what is gone, does not answer or is unfit."""
    IDLE = "idle"
    """Gives back what nothing uses any more."""
    DRIFT = "drift"
    """Undoes what somebody else changed."""
    SCHEDULE = "schedule"
    """Starts or stops a task or fleet as its `schedule` says."""
    DELETE = "delete"
    """Deletes what is no longer declared."""
    REPLACE = "replace"
    """Makes anew what is now declared differently, with the tasks on it."""


DISRUPTIVE = frozenset(
    {Cause.REPLACE_LOST, Cause.IDLE, Cause.DRIFT, Cause.SCHEDULE, Cause.DELETE, Cause.REPLACE}
)
"""The causes that a budget without `reasons` counts."""
ALONE = tuple(cause for cause in Cause if cause not in (Cause.DELETE, Cause.REPLACE))


@struct(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many nodes may be deleted, replaced or made at once, and within a time."""

    nodes: Annotated[int, Is(minimum=0, maximum=MAX_COUNT), Doc("The number of nodes; 0 means none.")]
    per: Annotated[Duration | None, Doc("The time in which it counts: `10m`; default: each round.")] = None
    reasons: Annotated[
        tuple[Cause, ...],
        Is(most_items=len(Cause)),
        Doc("Which actions count: `[idle, replace-lost]`; default: all that delete or replace a node."),
    ] = ()
    schedule: Annotated[
        Cron | None, Doc('When it applies, as a cron expression: `"* 8-17 * * 1-5"`; default: always.')
    ] = None
    duration: Annotated[
        Duration | None, Doc("For how long it applies from each time of `schedule` on; default: one minute.")
    ] = None
    timezone: Annotated[Zone, Doc("The time zone of `schedule`; default `UTC`.")] = Zone("UTC")

    def __post_init__(self) -> None:
        if self.duration is not None and self.schedule is None:
            hint = "add `schedule`, or remove it; `per` is the time in which nodes are counted"
            raise BadValueError(
                "bad-value", "`duration` needs a `schedule`, and there is none", hint, ("duration",)
            )

    def counts(self, cause: Cause) -> bool:
        """Whether an action of that cause counts against it."""
        return cause in self.reasons if self.reasons else cause in DISRUPTIVE

    def holds(self, now: float) -> bool:
        """Whether it applies at that time."""
        if self.schedule is None:
            return True
        last = self.schedule.last(now, self.timezone)
        length = MINUTE if self.duration is None else (self.duration.seconds or 0.0)
        return last is not None and now < last + length

    @property
    def window(self) -> float:
        """The seconds within which it counts; 0: within one round."""
        return 0.0 if self.per is None else float(self.per.seconds or 0.0)


@struct(frozen=True, slots=True, kw_only=True)
class Reconcile:
    """What the loop may do without a person. Anything else waits, as a plan that a person approves."""

    interval: Annotated[Duration, Doc("The time between two rounds; default 30s.")] = Duration(30)
    allow: Annotated[
        tuple[Cause, ...],
        Is(most_items=len(Cause)),
        Doc("What it does without a person; default: all but `delete` and `replace`."),
    ] = ALONE
    approve: Annotated[
        tuple[Cause, ...] | None,
        Is(most_items=len(Cause)),
        Doc("What it does only after `fleetform approve`; default: all that `allow` does not name."),
    ] = None
    budgets: Annotated[
        tuple[Budget, ...],
        Is(most_items=100),
        Doc(
            "How many nodes it may change: `{nodes: 2, per: 10m, reasons: [idle]}`; the strictest "
            "budget applies."
        ),
    ] = ()
    replacements_per_day: Annotated[
        int, Is(minimum=0, maximum=MAX_COUNT), Doc("How often one node may be replaced a day; default 3.")
    ] = 3

    SHORTEST: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.interval.seconds is None or self.interval.seconds < self.SHORTEST:
            raise BadValueError("out-of-range", "`interval` is too short", "write `30s`", ("interval",))
        both = sorted({*self.allow} & {*(self.approve or ())})
        if both:
            summary = f"`{both[0]}` is in `allow` and in `approve`"
            raise BadValueError("bad-value", summary, "remove it from one of them", ("approve",))

    def waits(self, cause: Cause) -> bool:
        """Whether an action of that cause waits for a person. If not, an action that is not allowed is only
        shown.
        """
        return cause not in self.allow if self.approve is None else cause in self.approve
