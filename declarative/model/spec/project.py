"""The `project` document: name, state, includes, excludes, variables, what was renamed or removed; the limits
of all plans, the webhooks that get events, and what `fleetform reconcile` may do without a person.

Webhooks name environment variables, and contain no secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

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
    each_parsed,
    encode,
    object_schema,
    raise_all,
    unquoted,
)
from declarative.model.spec.schedule import MINUTE, Cron, Zone
from declarative.model.spec.values import MAX_COUNT, Duration, Name
from declarative.model.status import NodeState, RankState
from declarative.model.text import suggest

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
            kind = value.partition(".")[0]
            if kind in _EVENT_WORDS:
                types = [f"`{kind}.{word}`" for word in sorted({*_EVENT_WORDS[kind].split()})]
                hint = f"the types of `{kind}` are {', '.join(types)}"
            else:
                groups = [f"{known}.*" for known in _EVENT_WORDS]
                near = suggest(value, EVENT_TYPES) or suggest(f"{kind}.*", groups)
                hint = near or f"write one of {', '.join(f'`{group}`' for group in groups)}"
            raise BadValueError("bad-value", f"no type of events is `{value}`", hint)
        return cls(value)


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


# ------------------------------------------------------------------------------ the document

_VOLUME = re.compile(r"volume/[a-z][a-z0-9-]{1,40}")
_MOVABLE = re.compile(r"(volume|fleet|task)/[a-z][a-z0-9-]{1,40}")


class VariableType(StrEnum):
    """The type of a variable's value."""

    STRING = "string"
    NUMBER = "number"
    BOOL = "bool"


@struct(frozen=True, slots=True, kw_only=True)
class Variable:
    """One variable: its default, its type, and the values allowed."""

    default: Annotated[Any, Doc("Its value if nothing else sets it; without a default it must be set.")] = (
        None
    )
    type: Annotated[
        VariableType | None, Doc("`string`, `number` or `bool`; default: that of the default.")
    ] = None
    description: Annotated[str | None, Is(blank=True), Doc("Its purpose.")] = None
    allowed: Annotated[tuple[Any, ...] | None, Doc("The allowed values.")] = None

    def kind(self) -> VariableType:
        """The declared type, else that of the default, else a string."""
        if self.type:
            return self.type
        if isinstance(self.default, bool):
            return VariableType.BOOL
        return VariableType.NUMBER if isinstance(self.default, int | float) else VariableType.STRING

    def accept(self, value: Json) -> Json:
        """`value`, given as text or typed, in the variable's type; `bad-variable` if it does not fit."""
        kind, as_written = self.kind(), value
        if isinstance(value, str) and kind is not VariableType.STRING:
            value = _typed(value, kind)
        is_bool = isinstance(value, bool)
        ok = {
            VariableType.STRING: isinstance(value, str),
            VariableType.NUMBER: isinstance(value, int | float) and not is_bool,
            VariableType.BOOL: is_bool,
        }[kind]
        if not ok:
            hint = f"write a {kind.value}" + (", `true` or `false`" if kind is VariableType.BOOL else "")
            raise BadValueError(
                "bad-variable", f"expected a {kind.value}, found {describe(as_written)}", hint
            )
        if self.allowed is not None and value not in self.allowed:
            listing = ", ".join(f"`{a}`" for a in self.allowed)
            summary = f"expected one of {listing}, found {describe(as_written)}"
            raise BadValueError("bad-variable", summary, "write one of these, or add it to `allowed`")
        return value


def _typed(text: str, kind: VariableType) -> Json:
    """The text as a number or as true or false; None if it is neither."""
    if kind is VariableType.BOOL:
        return {"true": True, "false": False}.get(text.lower())
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return None


class Variables(dict[str, Variable]):
    """Variables by name: `{size: 4}` declares a default, `{size: {type: number}}` declares more."""

    __slots__ = ()
    HINT: ClassVar[str] = "write `name: default`, or `name: {type: string, default: …}`"

    @classmethod
    def parse(cls, value: Json) -> Variables:
        """`wrong-type`, `bad-variable`, and the errors of `Variable`'s own fields."""
        if not isinstance(value, Mapping):
            raise BadValueError("wrong-type", f"expected a mapping, found {describe(value)}", cls.HINT)
        out = cls()
        faults: list[BadValueError] = []
        for name, item in value.items():
            try:
                out[str(name)] = cls._variable(str(name), item)
            except BadValueError as bad:
                faults += bad.within(name)
        raise_all(faults)
        return out

    @classmethod
    def _variable(cls, name: str, item: Json) -> Variable:
        if not name.isidentifier():
            near = re.sub(r"\W", "_", name)
            fix = f"write `{near}`: " if near.isidentifier() and len(near) <= 40 else "use "
            summary = f"{describe(name)} cannot be a variable's name"
            raise BadValueError("bad-name", summary, f"{fix}letters, digits and `_`", at_key=True)
        variable = decode_part(Variable, item if isinstance(item, Mapping) else {"default": item})
        if variable.default is not None:
            try:
                cls._check(variable.accept(variable.default))
            except BadValueError as bad:
                path = ("default",) if isinstance(item, Mapping) else ()
                raise BadValueError(bad.code, f"its default: {bad.summary}", bad.hint, path) from None
        return variable

    @staticmethod
    def _check(default: Json) -> None:
        """Refuse a template: nothing would fill it in, and the shell of a rank would get it unchanged."""
        if isinstance(default, str) and "${{" in default:
            hint = "write a value, and join variables where they are used: `${{ var.a }}-${{ var.b }}`"
            raise BadValueError("bad-variable", "a variable cannot be made of other variables", hint)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        plain = {"type": ["string", "number", "boolean", "null"]}
        return {"type": "object", "additionalProperties": {"anyOf": [plain, object_schema(Variable)]}}

    def plain(self) -> Json:
        return {name: encode(variable) for name, variable in self.items()}


@struct(frozen=True, slots=True)
class Removed:
    """`{from: volume/scratch, destroy: false}`: the fate of a volume, or of all volumes of a name, that is no
    longer declared.
    """

    volume: str
    destroy: bool
    HINT: ClassVar[str] = (
        "write `{from: volume/NAME, destroy: false}` to keep what it holds, or `destroy: true` to delete it"
    )

    @classmethod
    def parse(cls, value: Json) -> Removed:
        """`wrong-type`, `unknown-field`, `missing-field`, `bad-value`."""
        if not isinstance(value, Mapping):
            raise BadValueError("wrong-type", f"expected a mapping, found {describe(value)}", cls.HINT)
        faults = _wrong_keys(value, ("from", "destroy"), cls.HINT)
        if "from" in value and not _VOLUME.fullmatch(str(value["from"])):
            summary = f"expected the address of a volume, found {describe(value['from'])}"
            hint = "write `volume/NAME`; nodes and tasks go with their documents and need no entry here"
            faults.append(BadValueError("bad-value", summary, hint, ("from",)))
        if "destroy" in value and not isinstance(value["destroy"], bool):
            summary = f"expected `true` or `false`, found {describe(value['destroy'])}"
            hint = unquoted(value["destroy"], (bool,), cls.HINT)
            faults.append(BadValueError("wrong-type", summary, hint, ("destroy",)))
        raise_all(faults)
        return cls(str(value["from"]).removeprefix("volume/"), value["destroy"] is True)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Both fields are required: neither answer is a safe default."""
        keys = {"from": {"type": "string", "pattern": f"^{_VOLUME.pattern}$"}, "destroy": {"type": "boolean"}}
        return closed_mapping(keys, list(keys))

    def plain(self) -> Json:
        return {"from": f"volume/{self.volume}", "destroy": self.destroy}


class Removals(tuple[Removed, ...]):  # noqa: SLOT001  # it keeps its index
    """What was removed. Each address appears once."""

    @cached_property
    def _by_volume(self) -> Mapping[str, Removed]:
        return {entry.volume: entry for entry in self}

    @classmethod
    def parse(cls, value: Json) -> Removals:
        """The errors of an entry, and `duplicate-name`."""
        return cls(_entries(value, Removed))

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"type": "array", "items": Removed.json_schema()}

    def plain(self) -> Json:
        return [entry.plain() for entry in self]

    def of(self, volume: str) -> Removed | None:
        """The entry for that volume: its own, else the one of its group."""
        base, _, number = volume.rpartition("-")
        of_group = self._by_volume.get(base) if number.isdecimal() else None
        return self._by_volume.get(volume, of_group)

    def keeps(self, address: str) -> bool:
        """Whether it is a volume that is forgotten, and stays as it is."""
        kind, _, name = address.partition("/")
        removed = self.of(name) if kind == "volume" else None
        return removed is not None and not removed.destroy


@struct(frozen=True, slots=True)
class Moved:
    """`{from: fleet/a, to: fleet/b}`: the thing at the first address is now declared at the second."""

    source: str
    target: str
    HINT: ClassVar[str] = "write `{from: fleet/OLD, to: fleet/NEW}`; volumes and tasks can be renamed as well"

    @classmethod
    def parse(cls, value: Json) -> Moved:
        """`wrong-type`, `unknown-field`, `missing-field`, `bad-value`."""
        if not isinstance(value, Mapping):
            raise BadValueError("wrong-type", f"expected a mapping, found {describe(value)}", cls.HINT)
        faults = _wrong_keys(value, ("from", "to"), cls.HINT)
        for key in ("from", "to"):
            if key in value and not _MOVABLE.fullmatch(str(value[key])):
                summary = f"expected an address, found {describe(value[key])}"
                hint = "write `fleet/NAME`, `task/NAME` or `volume/NAME`"
                faults.append(BadValueError("bad-value", summary, hint, (key,)))
        raise_all(faults)
        source, target = str(value["from"]), str(value["to"])
        if source.partition("/")[0] != target.partition("/")[0] or source == target:
            what = "is the same address" if source == target else f"is no {source.partition('/')[0]}"
            raise BadValueError("bad-value", f"`{target}` {what}", cls.HINT, ("to",))
        return cls(source, target)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        address = {"type": "string", "pattern": f"^{_MOVABLE.pattern}$"}
        return closed_mapping({"from": address, "to": address}, ["from", "to"])

    def plain(self) -> Json:
        return {"from": self.source, "to": self.target}


class Moves(tuple[Moved, ...]):
    """What was renamed. Each address appears at most once on either side."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: Json) -> Moves:
        """The errors of an entry, `duplicate-name`, and `bad-value` for a circle."""
        moves = cls(_entries(value, Moved))
        ends = moves.ends()
        targets: dict[str, int] = {}
        faults: list[BadValueError] = []
        for i, move in enumerate(moves):
            if targets.setdefault(move.target, i) != i:
                summary = f"`{move.target}` is the `to` of another entry"
                faults.append(BadValueError("duplicate-name", summary, "remove one of them", (i, "to")))
            elif ends[move.source] is None:
                summary = f"`{move.source}` would get its own name again"
                hint = "remove the entries that were done long ago"
                faults.append(BadValueError("bad-value", summary, hint, (i,)))
        raise_all(faults)
        return moves

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"type": "array", "items": Moved.json_schema()}

    def plain(self) -> Json:
        return [entry.plain() for entry in self]

    def target(self, address: str) -> str | None:
        """The `to` of the entry that renames something to it, or to the `count` that it is of."""
        base, _, number = address.rpartition("-")
        targets = {move.target for move in self}
        of_group = base if number.isdecimal() and base in targets else None
        return address if address in targets else of_group

    def ends(self) -> dict[str, str | None]:
        """Each `from` and its address after all entries: `a` to `b` and `b` to `c` turn `a` into `c`. None if
        it leads into a circle.
        """
        follow = {move.source: move.target for move in self}
        out: dict[str, str | None] = {}
        for source in follow:
            way = [source]
            while way[-1] in follow and way[-1] not in out:
                out[way[-1]] = None  # coming here a second time is a circle
                way.append(follow[way[-1]])
            out.update(dict.fromkeys(way[:-1], out.get(way[-1], way[-1])))
        return out


def _wrong_keys(value: Mapping[str, Json], keys: tuple[str, ...], hint: str) -> list[BadValueError]:
    """Errors for unknown and for missing keys."""
    faults = [
        BadValueError("unknown-field", f"unknown field `{key}`", hint, (key,), at_key=True)
        for key in value
        if key not in keys
    ]
    missing = (key for key in keys if key not in value)
    return faults + [BadValueError("missing-field", f"`{key}` is missing", hint) for key in missing]


def _entries(value: Json, kind: type[Removed | Moved]) -> list[Any]:
    """The entries of a list; each `from` may appear once."""
    if not isinstance(value, list | tuple):
        hint = f"write a list: {kind.HINT.removeprefix('write ')}"
        raise BadValueError("wrong-type", f"expected a list, found {describe(value)}", hint)
    out: dict[str, Any] = {}
    faults: list[BadValueError] = []
    for i, entry in each_parsed(enumerate(value), kind.parse, faults):
        address = str(value[i]["from"])
        if out.setdefault(address, entry) is not entry:
            summary = f"`{address}` has another entry"
            faults.append(BadValueError("duplicate-name", summary, "remove one of them", (i, "from")))
    raise_all(faults)
    return list(out.values())


@struct(frozen=True, slots=True, kw_only=True)
class Project:
    """The settings of the whole project; at most one document of this type.

    Without it the project is the directory, and its state is `.fleetform/state.db`.
    """

    name: Annotated[Name | None, Doc("The project's name.")] = None
    state: Annotated[
        str | None, Doc("Where the state is kept: `sqlite:///path` or `postgresql://host/database`.")
    ] = None
    include: Annotated[
        tuple[str, ...],
        Doc(
            "More files: patterns below the project's directory, or `../shared/*.yaml` in its Git repository."
        ),
    ] = ()
    exclude: Annotated[
        tuple[str, ...],
        Is(most_items=100, longest=255),
        Doc("Files that do not belong to the project: patterns of their paths in it, such as `charts/*`."),
    ] = ()
    variables: Annotated[Variables, Doc("Values for `${{ var.x }}`.")] = field(default_factory=Variables)
    limits: Annotated[
        Limits, Doc("Limits for all plans: `{cost_per_hour: 400, nodes: 50, protected: [fleet/prod-*]}`.")
    ] = Limits()
    reconcile: Annotated[
        Reconcile,
        Doc(
            "What `fleetform reconcile` may do alone: `{interval: 30s, allow: [retry, idle], budgets: "
            "[{nodes: 2, per: 10m}]}`."
        ),
    ] = Reconcile()
    allow_unplaced: Annotated[
        bool,
        Doc(
            "Whether a task without a place holds up nothing else: `plan` exits 0 or 2, and `apply` does the "
            "rest. `--allow-unplaced` and `--no-allow-unplaced` say otherwise."
        ),
    ] = False
    notify: Annotated[
        tuple[Notify, ...],
        Is(most_items=50),
        Doc(
            "Webhooks that get events from `fleetform reconcile`: `{name: ops, url: NOTIFY_OPS_URL, "
            "secret: NOTIFY_OPS_SECRET, events: [task.failed]}`, with names of environment variables."
        ),
    ] = ()
    moved: Annotated[
        Moves,
        Doc(
            "Renames of fleets, tasks and volumes: `{from: fleet/OLD, to: fleet/NEW}`. Nothing is "
            "made anew or restarted; an entry that was applied has no further effect."
        ),
    ] = Moves()
    removed: Annotated[
        Removals,
        Doc(
            "Protected volumes that are no longer declared: `{from: volume/NAME, destroy: false}` "
            "forgets one (or all of a count) and keeps its data, `destroy: true` deletes it."
        ),
    ] = Removals()

    def __post_init__(self) -> None:
        names = [hook.name for hook in self.notify]
        for i, name in enumerate(names):
            if name in names[:i]:
                summary = f"`{name}` is the name of another webhook"
                raise BadValueError("duplicate-name", summary, "give it another one", ("notify", i, "name"))
