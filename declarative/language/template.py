"""`${{ … }}` in string values: Jinja2 expressions, and nothing else of Jinja2.

Jinja2 never sees text outside of `${{` and `}}`, so `${#x}`, `{% %}`, `{{ }}` and `{# #}` are just text. The
text between is an expression: a single name, or code of names, constants, operators and a few filters that
Jinja2 compiles in a sandbox. Its syntax tree is checked against a list before anything runs, because a
stranger's YAML must not loop, make calls or use up memory. Jinja2 is loaded only for an expression that is
more than a name.

Errors are explained in the user's words, since Jinja2 speaks of its own tokens, and reports only where it
gave up. So this module looks at the expression itself first, without quoted text: most mistakes come from
other languages (`&&`, `? :`, `{% if %}`, `$x`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any, TypeAlias

from declarative.model.record import struct
from declarative.model.schema import BadValueError, Json
from declarative.model.text import Near, suggest

MAX_EXPRESSION = 500
"""Characters of one expression."""
MAX_VALUE = 64 << 10
RANK_NAMES = ("node_rank", "dstack.node_rank", "dstack.job_num")
NAME = re.compile(r"(?:(var|env|dstack)\s*\.\s*)?([A-Za-z_]\w*)", re.ASCII)
_FILTERS = ("float", "int", "lower", "replace", "string", "trim", "upper")
"""Without `round`, which computes 10 to the power of its argument."""
NAMES = "`var.x` (declare x in `project.variables`), `env.X`, `node_rank`"
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


class TemplateError(BadValueError):
    """An error of one `${{ … }}`."""


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
            raise TemplateError("template-error", *_never_closed(text[start:], end - start))
        parts.append(scope.expression(text[start + 3 : end].strip()))
        at = end + 2
        braced = braced or "{" in plain
        if text[at : at + 2].rstrip() == "}" and not braced:
            # `{a: ${{ var.x }}}` is valid text; without a `{` before it, the extra brace is a mistake.
            hint = "write two of them; where the brace is text: `${{ '}' }}`"
            summary = f"there is an extra `}}` after `{_shown(text[start:at])}`"
            raise TemplateError("template-error", summary, hint)


# ------------------------------------------------------------------------------------------- one expression

_Values: TypeAlias = Mapping[str, Json]
_Run: TypeAlias = Callable[[_Values, int | None], Json]


@struct(frozen=True, slots=True)
class Expression:
    """The expression between `${{` and `}}`. `unknown` are names that never have a value."""

    text: str
    run: _Run
    variables: tuple[str, ...] = ()
    env: str | None = None
    ranked: bool = False
    unknown: tuple[str, ...] = ()


@functools.lru_cache(maxsize=4096)
def expression(text: str) -> Expression | TemplateError:
    """Read one expression. A single name needs no Jinja2. Errors are cached too: they cost as much."""
    match = NAME.fullmatch(text)
    if match is None or (match[1] is None and match[2] != "node_rank"):
        try:
            return _compiled(text)
        except TemplateError as bad:
            return bad
    root, name = match[1], match[2]
    if root == "env":
        return Expression(text, lambda _values, _rank: None, env=name)
    if root == "var":
        return Expression(text, lambda values, _rank: values[name], variables=(name,))
    if root == "dstack" and f"dstack.{name}" not in RANK_NAMES:
        return Expression(text, lambda _values, _rank: None, unknown=(f"dstack.{name}",))
    return Expression(text, lambda _values, rank: rank, ranked=True)


@functools.cache
def _environment() -> Any:
    """The sandbox: no globals, few filters, only our own names as attributes; `*` and `%` only
    for numbers.
    """
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            # `"x" * 10**9` and `"%999999999d" % 1` use up the memory without a loop.
            numbers = isinstance(left, int | float) and isinstance(right, int | float)
            if not numbers and not (operator == "+" and isinstance(left, str) and isinstance(right, str)):
                raise TypeError(f"`{operator}` is for numbers; `~` joins text")
            return super().call_binop(context, operator, left, right)

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ARG002
            return isinstance(obj, SimpleNamespace)

        def is_safe_callable(self, obj: Any) -> bool:  # noqa: ARG002
            return False

    environment = Sandbox(undefined=StrictUndefined, autoescape=False, optimized=False)
    environment.globals.clear()
    environment.tests.clear()
    filters = {**{name: environment.filters[name] for name in _FILTERS}, "replace": _replace}
    environment.filters.clear()
    environment.filters.update(filters)
    return environment


def _replace(value: object, old: object, new: object) -> str:
    """Jinja2's filter, within the limit for a value."""
    text, old, new = str(value), str(old), str(new)
    if len(text) + text.count(old) * len(new) > MAX_VALUE:
        raise ValueError("gives too much text")
    return text.replace(old, new)


def _compiled(text: str) -> Expression:
    """Compile an expression, whose syntax tree may hold only what `_names` allows."""
    from jinja2 import TemplateError as JinjaError

    if not text:
        hint = "write a name in it, such as `${{ var.x }}`"
        raise TemplateError("template-error", "`${{ }}` is empty", hint)
    if len(text) > MAX_EXPRESSION:
        summary = f"an expression has at most {MAX_EXPRESSION} characters, found {len(text)}"
        raise TemplateError("template-error", summary, "close it with `}}`, or write it in several")
    environment = _environment()
    try:
        names = _names(environment.parse("{{" + text + "\n}}"))
        function = environment.compile_expression(text, undefined_to_none=False)
    except JinjaError as bad:
        raise TemplateError("template-error", *_no_expression(text, str(bad.message))) from None
    except TemplateError:
        raise
    except (RecursionError, SyntaxError, MemoryError, ValueError, TypeError):
        raise TemplateError("template-error", *_no_expression(text, "")) from None
    variables = tuple(n.partition(".")[2] for n in names if n.startswith("var."))
    unknown = tuple(n for n in names if not n.startswith("var.") and n not in RANK_NAMES)
    ranked = not set(RANK_NAMES).isdisjoint(names)

    def run(values: _Values, rank: int | None) -> Json:
        numbers = SimpleNamespace(node_rank=rank, job_num=rank)
        try:
            result: Json = function(var=SimpleNamespace(**values), dstack=numbers, node_rank=rank)
        except Exception as bad:  # noqa: BLE001 - whatever it is, it comes from the expression
            why, hint = _failure(str(bad))
            raise TemplateError("template-error", f"`{_shown(text)}` fails: {why}", hint) from None
        return result

    return Expression(text, run, variables=variables, ranked=ranked, unknown=unknown)


def _names(tree: Any) -> tuple[str, ...]:
    """The dotted names in a syntax tree; `TemplateError` for anything that is not allowed."""
    from jinja2 import nodes

    output = tree.body[0] if len(tree.body) == 1 else None
    if not isinstance(output, nodes.Output) or len(output.nodes) != 1:
        raise TemplateError("template-error", "not one expression")
    allowed = (
        *(nodes.Const, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Concat),
        *(nodes.Neg, nodes.Pos, nodes.And, nodes.Or, nodes.Not, nodes.Compare, nodes.Operand, nodes.CondExpr),
        *(nodes.Filter, nodes.Keyword),
    )
    names: set[str] = set()
    todo: list[Any] = list(output.nodes)
    while todo:
        node = todo.pop()
        if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
            names.add(f"{node.node.name}.{node.attr}")
            if node.node.name == "env":
                hint = "write `${{ env." + node.attr + " }}` alone; other text may stand around it"
                raise TemplateError("template-error", "an `env` name can be no part of an expression", hint)
            continue
        if isinstance(node, nodes.Name):
            names.add(node.name)
        elif not isinstance(node, allowed):
            raise TemplateError("template-error", *_not_allowed(type(node).__name__.lower()))
        todo.extend(node.iter_child_nodes())
    return tuple(sorted(names))


# ------------------------------------------------------------------------------------------ mistakes in one

Message = tuple[str, str]
"""The error, and what to write instead."""

_QUOTED = re.compile(r"""'(?>[^'\\]|\\.)*+'|"(?>[^"\\]|\\.)*+\"""", re.DOTALL)
_FOREIGN = (
    (r"&&", "`&&` is not an operator", "write `and`"),
    (r"\|\|", "`||` is not an operator", "write `or`"),
    (r"!==", "`!==` is not an operator", "write `!=`"),
    (r"===", "`===` is not an operator", "write `==`"),
    (r"\?", "`?` is not an operator", "write `a if b else c`"),
    (r"!(?!=)", "`!` is not an operator", "write `not`"),
    (r"(?<![=!<>])=(?!=)", "`=` is not an operator", "write `==` to compare"),
    (r"\$", "`$` has no meaning in it", "write the name alone, such as `var.x`"),
)
"""Notations of other languages: an expression for each, the error, and the hint."""
_STATEMENTS = "if|elif|else|endif|for|endfor|set|with|block|macro|raw|include"
_NODES = {
    "call": (
        "functions and methods cannot be called in an expression",
        f"use one of the filters: {', '.join(_FILTERS)}",
    ),
    "getattr": ("a name has two parts at most in an expression", f"known: {NAMES}"),
    "getitem": ("`[ ]` cannot be used in an expression", f"names are written with a dot; known: {NAMES}"),
    "test": (
        "`is` cannot be used in an expression",
        "compare with `==`, `!=`, `<` or `in`; every declared variable has a value",
    ),
    "pow": ("`**` cannot be used in an expression", "write the number itself, or use `*`"),
    "list": ("a list cannot be written in an expression", "an expression gives text or a number"),
    "tuple": ("`,` cannot be used in an expression", "write one `${{ … }}` for each value; `~` joins text"),
    "dict": ("a mapping cannot be written in an expression", "an expression gives text or a number"),
    "slice": ("`[ ]` cannot be used in an expression", f"names are written with a dot; known: {NAMES}"),
}


def _shown(text: str) -> str:
    """An expression as messages show it."""
    return text if len(text) <= 60 else text[:60] + "…"


def _never_closed(text: str, end: int) -> Message:
    """The error for a `${{` that is not closed. `end` is where reading stopped."""
    piece = text[:40]
    if (quote := text[end : end + 1]) in ("'", '"'):
        return f"a `{quote}` in `{piece}` is never closed", f"close it with another `{quote}` before `}}}}`"
    if re.match(r"\}(?:\s*\}|\s*$)", text[end - 1 : end + 20]) or "}" in text[3:end]:
        return f"`{piece}` is never closed", "end the expression with `}}`: two braces, no space between"
    return f"`{piece}` is never closed", "end the expression with `}}`"


def _not_allowed(node: str) -> Message:
    """The error for a part of Jinja2 that expressions may not use."""
    other = (
        f"`{node}` is not allowed in an expression",
        f"use names, constants, operators, `a if b else c`, and the filters {', '.join(_FILTERS)}",
    )
    return _NODES.get(node, other)


def _no_expression(text: str, error: str) -> Message:
    """The error for what Jinja2 cannot read; `error` is its own message."""
    bare = _QUOTED.sub("''", text)
    message = _foreign(bare) or _filter(error) or _unbalanced(bare) or _by_message(bare, error)
    summary, hint = message or ("", "write an expression of names, constants and operators: `${{ var.x }}`")
    begin = f"`{_shown(text)}` is not an expression"
    return (f"{begin}: {summary}" if summary else begin), hint


def _foreign(bare: str) -> Message | None:
    """The error for a notation of another language."""
    if re.search(rf"\{{%|%\}}|\A(?:{_STATEMENTS})\b(?!\Z)", bare, re.ASCII):
        return "there are no statements", "write `${{ a if b else c }}` to choose; there are no loops"
    if "{{" in bare:
        return "`{{` occurs in it again", "write names alone, without `{{ }}` of their own"
    if bare.startswith("{"):
        return "there is an extra `{`", "write `${{ … }}`, with two of them"
    for sign, summary, hint in _FOREIGN:
        if re.search(sign, bare):
            return summary, hint
    return None


def _filter(error: str) -> Message | None:
    match = re.match(r"No filter named '(\w{1,40})'", error)
    if match is None:
        return None
    if match[1] in ("default", "d"):
        return f"there is no filter `{match[1]}`", "give the variable a `default:` in `project.variables`"
    near = suggest(match[1], _FILTERS)
    return f"there is no filter `{match[1]}`", near or f"there are {', '.join(_FILTERS)}"


def _unbalanced(bare: str) -> Message | None:
    for one, other in (("(", ")"), ("[", "]"), ("{", "}")):
        if bare.count(one) > bare.count(other):
            return f"`{one}` is never closed", f"close it with `{other}`"
        if bare.count(one) < bare.count(other):
            return f"`{other}` closes nothing", "remove it"
    return None


def _by_message(bare: str, error: str) -> Message | None:
    """The error by Jinja2's message."""
    if "got 'end of print statement'" in error or error == "unexpected 'end of print statement'":
        last = re.search(r"[A-Za-z]+$|\S$", bare)
        behind = f" behind `{last[0]}`" if last else ""
        return f"something is missing{behind}", f"write a name or a constant{behind}, or remove it"
    if error == "expected name or number":
        return "a name is missing behind `.`", "write `var.x`"
    if match := re.match(r"unexpected (?:char )?'(\S{1,3})'", error):
        if bare.startswith(match[1]) and match[1][0] in "|%*/~<>=,.+":
            hint = "write a name or a constant before it; text in quotes"
            return f"nothing stands before `{match[1]}`", hint
        return f"`{match[1]}` has no meaning here", "put text in quotes: `'…'`"
    if error.startswith("expected token 'end of print statement'"):
        return _side_by_side(bare)
    return None


def _side_by_side(bare: str) -> Message:
    """The error for two values with nothing between them."""
    if match := re.fullmatch(r"(var|env)[\s:/]+([A-Za-z_]\w*)", bare):
        return "a `.` is missing", f"write `{match[1]}.{match[2]}`"
    if re.fullmatch(r"[\d.]+\s*[A-Za-z]+", bare):
        return "a number and a word stand side by side", "write it without `${{ }}`, or as text: `'…'`"
    if re.search(r"[\w')]\s+['\w(]", bare):
        hint = "write an operator between them: `~` joins text; put text in quotes: `'…'`"
        return "two values stand side by side", hint
    return "it contains a sign that has no meaning here", "put text in quotes: `'…'`"


def _failure(error: str) -> Message:
    """The error for an expression that fails when computed; `error` is Python's message."""
    error = re.sub(r"\b_?(?:do_)?(\w+)\(\)", r"`\1`", error[:200])
    if "not supported between" in error:
        return "text and numbers cannot be compared", "make a number of text: `var.x | int`"
    if "argument" in error:
        return error, "give a filter what it takes: `var.x | replace('a', 'b')`, `var.x | upper`"
    if "by zero" in error:
        return error, "make sure that what you divide by is not 0"
    return error, "text is joined with `~`; `| int` and `| float` make numbers of text"
