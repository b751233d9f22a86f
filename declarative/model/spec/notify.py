"""`notify` of the `project` document: webhooks that are told of events. It names variables, and no values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Self

from declarative.model.schema import BadValueError, Doc, Is, Json
from declarative.model.spec.text import Name

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_PATTERN = re.compile(r"[a-z*?][a-z_*?]{0,39}(\.[a-z_*?]{1,40})?")


class SecretName(str):
    """The name of an environment variable that holds a secret."""

    __slots__ = ()
    HINT: ClassVar[str] = (
        "write the name of an environment variable, such as `NOTIFY_OPS_URL`; the value goes there"
    )

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-credential`. The value itself is not shown: it may be the secret."""
        if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
            summary = "this is not the name of an environment variable"
            raise BadValueError("bad-credential", summary, cls.HINT, at_key=True)
        return cls(value)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A pattern."""
        return {"type": "string", "pattern": f"^{_VARIABLE.pattern}$"}

    def plain(self) -> Json:
        """The name."""
        return str(self)


class EventPattern(str):
    """`rank.failed`, `node.*`, `*`."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-value`."""
        if not isinstance(value, str) or not _PATTERN.fullmatch(value):
            hint = "write `rank.failed`, `node.*` or `*`; `fleetform events` shows what there is"
            raise BadValueError("bad-value", "this is not a type of events", hint)
        return cls(value)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A pattern."""
        return {"type": "string", "pattern": f"^{_PATTERN.pattern}$"}

    def plain(self) -> Json:
        """As written."""
        return str(self)


class HookFormat(StrEnum):
    """What is sent."""

    JSON = "json"
    """The event, signed."""
    SLACK = "slack"
    """A message for an incoming webhook of Slack."""
    GITHUB = "github"
    """A `repository_dispatch`, which starts a workflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """One webhook. Its URL and its secret are in the environment of who delivers."""

    name: Annotated[Name, Doc("The webhook's name; how far it was told is kept under it.")]
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
            raise BadValueError("missing-field", "GitHub wants a token, and `secret` is missing", hint)
        if self.format is HookFormat.SLACK and self.secret is not None:
            hint = "remove it: the URL that Slack gave you is the secret"
            raise BadValueError("bad-value", "Slack takes no `secret`", hint, ("secret",))

    def wants(self, type: str) -> bool:
        """Whether it is told of events of that type."""
        return not self.events or any(fnmatchcase(type, pattern) for pattern in self.events)
