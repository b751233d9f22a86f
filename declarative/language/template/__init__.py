"""`${{ … }}` in string values: Jinja2 expressions, and nothing else of Jinja2.

Jinja2 never sees text outside of `${{` and `}}`, so `${#x}`, `{% %}`, `{{ }}` and `{# #}` are just text. The
text between must be an expression of names, constants, operators and a few filters. `expression` reads one,
and reports what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum, auto

from declarative.language.template.expression import (
    MAX_VALUE,
    NAME,
    NAMES,
    RANK_NAMES,
    Expression,
    TemplateError,
    expression,
    never_closed,
    shown,
)
from declarative.model.diagnostic import Near
from declarative.model.record import struct
from declarative.model.schema import Json

__all__ = [
    "MAX_VALUE",
    "UNUSABLE",
    "MissingEnvError",
    "Place",
    "TemplateError",
    "TemplateScope",
    "env_names",
    "for_ranks",
    "interpolate",
    "resolve_env",
]

MAX_EXPRESSIONS = 2_000
"""The limit for different expressions of one project: Jinja2 compiles each in about a millisecond."""
MAX_OUTPUT = 32 << 20
"""The limit for the characters that all expressions of a project produce."""

_ESCAPED = "$${{"
"""How to write `${{` as plain text."""
_SHELL_RANK = "${DSTACK_NODE_RANK}"
UNUSABLE = re.compile("[\0\ud800-\udfff]")
"""No program can take such text, and no database stores it."""
_OPENING = re.compile(r"(?<!\$)\$\{\{")
_BODY = re.compile(r"""(?>[^'"}]|\}(?!\})|'(?>[^'\\]|\\.)*+'|"(?>[^"\\]|\\.)*+")*+""", re.DOTALL)
_ENV = re.compile(r"(?<!\$)\$\{\{\s*env\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}|\$(\$\{\{)", re.ASCII)
"""A variable of the caller, or the plain text `${{`, written as `$${{`."""
_ENV_HINT = "write `env: [{0}]` in the task and `${0}` in its commands"
_RANK_HINT = "in commands and scripts the rank is `$FLEETFORM_NODE_RANK`"


class Place(Enum):
    """The place of a string, which decides which names it may use."""

    TEXT = auto()
    ENV = auto()
    """A value of `env`: `${{ env.X }}` is kept until the rank starts."""
    AMOUNT = auto()
    """A number, a size or a range: an empty expression must not be one of its ends."""
    VOLUME = auto()
    """A volume's name in a task, `name` or `name:/path`: expressions of the rank are kept."""


class MissingEnvError(LookupError):
    """A rank needs a variable of the environment that is not set."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the environment variable `{name}` is not set")
        self.name = name


@struct(slots=True)
class TemplateScope:
    """The values of the project's variables, and how much of each limit is used.

    `unset` are variables without a value; their declarations are reported. `open`: the declarations could not
    be read, so any `var.x` may exist. Both give `TemplateError` with the code `unset`.
    """

    variables: Mapping[str, Json] = field(default_factory=dict)
    unset: frozenset[str] = frozenset()
    open: bool = False
    output: int = 0
    compiled: set[str] = field(default_factory=set)
    near: Near = field(default_factory=Near)

    def expression(self, text: str) -> Expression:
        """Read one expression, within the limit for Jinja2."""
        if not NAME.fullmatch(text):
            self.compiled.add(text)
            if len(self.compiled) > MAX_EXPRESSIONS:
                summary = f"there are more than {MAX_EXPRESSIONS} different expressions"
                raise TemplateError("template-error", summary)
        read = expression(text)
        if isinstance(read, TemplateError):
            raise TemplateError(read.code, read.summary, read.hint)
        return read


def interpolate(text: str, scope: TemplateScope, place: Place, out: list[TemplateError]) -> Json:
    """The value of a string; its errors are appended to `out`."""
    try:
        parts = _split(text, scope, shell=place is Place.VOLUME)
    except TemplateError as bad:
        out.append(bad)
        return text
    values: list[Json] = []
    in_name = True
    for part in parts:
        if isinstance(part, str):
            if place is Place.VOLUME and _ESCAPED in part:
                hint = "write names and paths without it"
                out.append(TemplateError("template-error", f"`{_ESCAPED}` cannot stand in a mount", hint))
            # In `env`, `$${{` stays until the rank starts.
            values.append(part if place is Place.ENV else part.replace(_ESCAPED, "${{"))
            in_name = in_name and ":" not in part
            continue
        try:
            value = _part(part, scope, place, in_name=in_name)
            if part.env and values and _text(values[-1]).endswith("$"):
                summary = f"the value before `{part.text}` ends with `$`, which would change its meaning"
                out.append(TemplateError("template-error", summary, "put other text between the two"))
            values.append(value)
        except TemplateError as bad:
            out.append(bad)
    if place is Place.AMOUNT:
        _check_ends(parts, values, out)
    if len(parts) == 1 and len(values) == 1:
        return values[0]
    return "".join(_text(value) for value in values)


def _check_ends(parts: list[str | Expression], values: list[Json], out: list[TemplateError]) -> None:
    """Report an empty expression at the end of a range: the range would become open."""
    if len(values) < len(parts):
        return
    texts = [value.strip() if isinstance(value, str) else "?" for value in values]
    for i, part in enumerate(parts):
        if isinstance(part, str) or texts[i]:
            continue
        beside = texts[max(0, i - 1) : i] + texts[i + 1 : i + 2]
        if any(text.startswith("..") or text.endswith("..") for text in beside):
            summary = f"`{part.text}` is empty, and is an end of a range"
            hint = "give it a value; a range with an open end is written without an expression, as `4..`"
            out.append(TemplateError("template-error", summary, hint))


def for_ranks(text: str, scope: TemplateScope) -> Callable[[int], str] | None:
    """Names of a volume by rank, from the text that `interpolate` left; None if all ranks have the same."""
    parts = _split(text, scope, shell=False)
    if all(isinstance(part, str) for part in parts):
        return None

    def name(rank: int) -> str:
        return "".join(p if isinstance(p, str) else _text(_evaluate(p, scope, rank)) for p in parts)

    return name


def env_names(text: str) -> tuple[str, ...]:
    """The variables of the environment that `text` needs at the start of a rank, each once."""
    return tuple(dict.fromkeys(match[1] for match in _ENV.finditer(text) if match[1]))


def resolve_env(text: str, environ: Mapping[str, str]) -> str:
    """`text` with each `${{ env.X }}` replaced, and `$${{` as `${{`; `MissingEnvError` if one is not set."""

    def value(match: re.Match[str]) -> str:
        if match[2]:
            return match[2]
        if match[1] not in environ:
            raise MissingEnvError(match[1])
        return environ[match[1]]

    return _ENV.sub(value, text)


def _part(part: Expression, scope: TemplateScope, place: Place, *, in_name: bool) -> Json:
    """The value of one expression, or its text if it must be kept."""
    _check_names(part, scope)
    if part.env is not None:
        if place is not Place.ENV:
            summary = f"`env.{part.env}` cannot be used here: only in `env` values"
            raise TemplateError("env-here", summary, _ENV_HINT.format(part.env))
        return f"${{{{ env.{part.env} }}}}"
    if part.ranked:
        if place is not Place.VOLUME or not in_name:
            summary = "`node_rank` can be used only in the names of a task's volumes"
            raise TemplateError("node-rank-here", summary, _RANK_HINT)
        return f"${{{{ {part.text} }}}}"
    value = _evaluate(part, scope, None)
    if place is not Place.TEXT and isinstance(value, str) and "${{" in value:
        summary = f"`{part.text}` gives text with `${{{{`, which would be evaluated again"
        raise TemplateError("template-error", summary)
    return value


def _check_names(part: Expression, scope: TemplateScope) -> None:
    for name in part.variables:
        if name in scope.variables:
            continue
        if scope.open or name in scope.unset:
            raise TemplateError("unset", f"`var.{name}` has no value")
        near = scope.near(name, [*scope.variables, *scope.unset])
        near = near.replace(" `", " `var.") if near else None
        declare = f"declare it in the `project` document: `variables: {{{name}: …}}`"
        raise TemplateError("undefined-variable", f"no variable `{name}` is declared", near or declare)
    if part.unknown:
        name = part.unknown[0]
        known = [*RANK_NAMES, *(f"var.{v}" for v in (*scope.variables, *scope.unset))]
        if name.partition(".")[0] == "secrets":
            hint = "pass it in the environment: `env: [NAME=${{ env.NAME }}]`"
        elif f"var.{name}" in known:
            hint = f"did you mean `var.{name}`?"
        else:
            hint = scope.near(name, known) or f"known: {NAMES}"
        raise TemplateError("undefined-variable", f"`{name}` is not defined", hint)


def _evaluate(part: Expression, scope: TemplateScope, rank: int | None) -> Json:
    value = part.run(scope.variables, rank)
    if not isinstance(value, bool | int | float | str):
        raise TemplateError("template-error", f"`{part.text}` gives neither text nor a number")
    if isinstance(value, int | float) and not -(2**63) < value < 2**63:
        raise TemplateError("template-error", f"`{part.text}` gives a number that is too large")
    size = len(value) if isinstance(value, str) else 8
    scope.output += size
    if size > MAX_VALUE or scope.output > MAX_OUTPUT:
        raise TemplateError("template-error", f"`{part.text}` gives too much text")
    if isinstance(value, str) and UNUSABLE.search(value):
        raise TemplateError("template-error", f"`{part.text}` gives text with U+0000 or half a character")
    return value


def _text(value: Json) -> str:
    """A value within other text, in YAML's notation."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _split(text: str, scope: TemplateScope, *, shell: bool) -> list[str | Expression]:
    """Text and expressions in order; at least one text."""
    parts: list[str | Expression] = []
    at, braced = 0, False
    while True:
        opening = _OPENING.search(text, at)  # `$${{` is plain text
        start = opening.start() if opening else -1
        plain = text[at : start if start >= 0 else None]
        pieces = plain.split(_SHELL_RANK) if shell else [plain]
        parts.append(pieces[0])
        for piece in pieces[1:]:
            parts += [scope.expression("node_rank"), piece]
        if start < 0:
            return list(filter(None, parts)) or [""]
        body = _BODY.match(text, start + 3)
        end = body.end() if body else start
        if not text.startswith("}}", end):
            raise TemplateError("template-error", *never_closed(text[start:], end - start))
        parts.append(scope.expression(text[start + 3 : end].strip()))
        at = end + 2
        braced = braced or "{" in plain
        if text[at : at + 2].rstrip() == "}" and not braced:
            # `{a: ${{ var.x }}}` is valid text; without a `{` before it, the extra brace is a mistake.
            hint = "write two of them; where the brace is text: `${{ '}' }}`"
            summary = f"there is an extra `}}` after `{shown(text[start:at])}`"
            raise TemplateError("template-error", summary, hint)
