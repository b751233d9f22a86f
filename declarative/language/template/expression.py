"""One expression of a template, read and checked: a name, or what Jinja2 compiles in a sandbox.

The syntax tree is checked against a list before anything runs, because a stranger's YAML must not loop, call
or eat memory. Jinja2 itself is loaded for the first expression that is more than a name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

from declarative.language.template import words
from declarative.model.schema import Json

MAX_EXPRESSION = 500
MAX_VALUE = 64 << 10
RANK_NAMES = ("node_rank", "dstack.node_rank", "dstack.job_num")
_FILTERS = ("float", "int", "lower", "replace", "string", "trim", "upper")
"""Not `round`: it computes 10 to the power of its argument."""
NAME = re.compile(r"(?:(var|env|dstack)\s*\.\s*)?([A-Za-z_]\w*)", re.ASCII)


class TemplateError(ValueError):
    """What is wrong with one `${{ … }}`."""

    def __init__(self, code: str, summary: str, hint: str | None = None) -> None:
        super().__init__(summary)
        self.code, self.summary, self.hint = code, summary, hint


_Values: TypeAlias = Mapping[str, Json]
_Run: TypeAlias = Callable[[_Values, int | None], Json]


@dataclass(frozen=True, slots=True)
class Expression:
    """What stands between `${{` and `}}`. `unknown` are names that never have a value."""

    text: str
    run: _Run
    variables: tuple[str, ...] = ()
    env: str | None = None
    ranked: bool = False
    unknown: tuple[str, ...] = ()


@functools.lru_cache(maxsize=4096)
def expression(text: str) -> Expression | TemplateError:
    """One expression, read. A single name needs no Jinja2. Errors are remembered too: they cost as much."""
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
    """The sandbox: no globals, few filters, no attributes but of our own names; `*` and `%` for numbers."""
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            # `"x" * 10**9` and `"%999999999d" % 1` need no loop to eat the memory.
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
    """As Jinja2's filter, within the bound for a value."""
    text, old, new = str(value), str(old), str(new)
    if len(text) + text.count(old) * len(new) > MAX_VALUE:
        raise ValueError("gives too much text")
    return text.replace(old, new)


def _compiled(text: str) -> Expression:
    """An expression of Jinja2 whose syntax tree holds nothing but what `_names` allows."""
    names, function = _parsed(text)
    variables = tuple(n.partition(".")[2] for n in names if n.startswith("var."))
    unknown = tuple(n for n in names if not n.startswith("var.") and n not in RANK_NAMES)
    ranked = not set(RANK_NAMES).isdisjoint(names)

    def run(values: _Values, rank: int | None) -> Json:
        numbers = SimpleNamespace(node_rank=rank, job_num=rank)
        try:
            result: Json = function(var=SimpleNamespace(**values), dstack=numbers, node_rank=rank)
        except Exception as bad:  # noqa: BLE001 - whatever it is, it comes from the expression
            why, hint = words.failure(str(bad))
            raise TemplateError("template-error", f"`{words.shown(text)}` fails: {why}", hint) from None
        return result

    return Expression(text, run, variables=variables, ranked=ranked, unknown=unknown)


def _parsed(text: str) -> tuple[tuple[str, ...], Any]:
    """The names in an expression, and Jinja2's function for it."""
    from jinja2 import TemplateError as JinjaError

    if not text:
        raise TemplateError(
            "template-error", "`${{ }}` is empty", "write a name in it, such as `${{ var.x }}`"
        )
    if len(text) > MAX_EXPRESSION:
        summary = f"an expression has at most {MAX_EXPRESSION} characters, found {len(text)}"
        raise TemplateError("template-error", summary, "close it with `}}`, or write it in several")
    environment = _environment()
    try:
        tree = environment.parse("{{" + text + "\n}}")
        names = _names(tree)
        return names, environment.compile_expression(text, undefined_to_none=False)
    except JinjaError as bad:
        message = words.no_expression(text, str(bad.message), _FILTERS)
        raise TemplateError("template-error", *message) from None
    except TemplateError:
        raise
    except (RecursionError, SyntaxError, MemoryError, ValueError, TypeError):
        raise TemplateError("template-error", *words.no_expression(text, "", _FILTERS)) from None


def _names(tree: Any) -> tuple[str, ...]:
    """The names in a syntax tree, dotted; `TemplateError` for anything that is not allowed."""
    from jinja2 import nodes

    output = tree.body[0] if len(tree.body) == 1 else None
    if not isinstance(output, nodes.Output) or len(output.nodes) != 1:
        raise TemplateError("template-error", "not one expression")
    allowed = (
        *(nodes.Const, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Concat),
        *(nodes.Neg, nodes.Pos, nodes.And, nodes.Or, nodes.Not, nodes.Compare, nodes.Operand, nodes.CondExpr),
        *(nodes.Filter, nodes.Keyword),
    )
    found: dict[str, None] = {}
    todo: list[Any] = list(output.nodes)
    while todo:
        node = todo.pop()
        if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
            found[f"{node.node.name}.{node.attr}"] = None
            if node.node.name == "env":
                hint = "write `${{ env." + node.attr + " }}` alone; other text may stand around it"
                raise TemplateError("template-error", "an `env` name can be no part of an expression", hint)
            continue
        if isinstance(node, nodes.Name):
            found[node.name] = None
        elif not isinstance(node, allowed):
            message = words.not_allowed(type(node).__name__.lower(), _FILTERS)
            raise TemplateError("template-error", *message)
        todo.extend(node.iter_child_nodes())
    return tuple(sorted(found))
