"""The catalogue of codes has exactly those that the source raises, and docs/errors.md is made from it."""

import ast
import os
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from declarative.apply.graph_walk import code_of
from declarative.language.template import MissingEnvError
from declarative.model.codes import BY_CHAPTER, CODES, REJECTIONS, Chapter, Code
from declarative.placement import filters
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from declarative.store import StateError

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "declarative"
PAGE = ROOT / "docs" / "errors.md"
INTERNAL = {"unset": "a variable without a value: reported once, where it is declared"}
"""Codes that never reach anybody."""
RECEIVERS = {"add": "findings", "failed": ""}
"""Names that others have as well, by what they are called on where they take a code."""


class Carriers(ast.NodeVisitor):
    """What takes a `code: str`: functions by the position of that parameter, classes by that of the field."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}
        self.classes: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        fields = [
            n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
        ]
        if "code" in fields:
            self.found[node.name] = fields.index("code")
        self.classes.append(node.name)
        self.generic_visit(node)
        self.classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        names = [a.arg for a in node.args.args if a.arg not in ("self", "cls")]
        for argument in (*node.args.args, *node.args.kwonlyargs):
            if argument.arg == "code" and ast.unparse(argument.annotation or ast.Constant("")) == "str":
                name = self.classes[-1] if node.name == "__init__" else node.name
                self.found[name] = names.index("code") if "code" in names else 99
        self.generic_visit(node)


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


@cache
def nodes(tree: ast.Module) -> dict[type[ast.AST], list[Any]]:
    """The nodes of a tree by their type."""
    out: dict[type[ast.AST], list[Any]] = defaultdict(list)
    for node in ast.walk(tree):
        out[type(node)].append(node)
    return out


def called(node: ast.Call) -> tuple[str, str]:
    """`findings` and `add` of `self.findings.add(…)`."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return last_name(function.value), function.attr
    return "", function.id if isinstance(function, ast.Name) else ""


def last_name(expression: ast.expr) -> str:
    """`c` of `a.b.c`; for another expression, its text behind the last dot."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ast.unparse(expression).rpartition(".")[2]


def given(node: ast.Call, position: int) -> ast.expr | None:
    """The argument for `code`."""
    for keyword in node.keywords:
        if keyword.arg == "code":
            return keyword.value
    return node.args[position] if position < len(node.args) else None


def literals(value: ast.expr) -> Iterator[str]:
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def assigned(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """What is assigned to `self.code`, or to a variable `code` that is passed on by name."""
    for node in nodes(tree)[ast.Assign]:
        names = [ast.unparse(target) for target in node.targets if last_name(target) == "code"]
        if "code" in names or "self.code" in names:
            yield from ((code, "code" in names) for code in literals(node.value))


def returned(tree: ast.Module) -> Iterator[str]:
    """The codes that functions called `code_of` return, of which a call is passed on."""
    for function in nodes(tree)[ast.FunctionDef]:
        for node in ast.walk(function) if function.name == "code_of" else ():
            if isinstance(node, ast.Return | ast.Dict):
                values = node.values if isinstance(node, ast.Dict) else filter(None, [node.value])
                yield from (code for value in values for code in literals(value))


def derived(tree: ast.Module) -> Iterator[tuple[str, str, ast.ClassDef]]:
    """Every class with one of its bases: the names of both, and the class."""
    for node in nodes(tree)[ast.ClassDef]:
        yield from ((node.name, ast.unparse(base), node) for base in node.bases)


def calls(tree: ast.Module, known: dict[str, int]) -> Iterator[tuple[str, ast.expr, int]]:
    """Every call that is given a code: what is called, the code's expression, the line."""
    for _, base, of in derived(tree):
        for node in ast.walk(of) if base in known else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "super().__init__":
                value = given(node, known[base])
                if value is not None:
                    yield base, value, node.lineno
    for node in nodes(tree)[ast.Call]:
        receiver, name = called(node)
        if name in known and RECEIVERS.get(name, receiver) == receiver:
            value = given(node, known[name])
            if value is not None:
                yield name, value, node.lineno


def _makes(of: ast.ClassDef) -> bool:
    """Whether a class has a constructor of its own, so that it takes other things than its base."""
    return any(isinstance(node, ast.FunctionDef) and node.name == "__init__" for node in of.body)


@cache
def raised() -> dict[str, dict[str, str]]:
    """What takes codes → code → where it is written; fails for a code that cannot be read from the source."""
    everywhere: dict[str, int] = {}
    own: dict[Path, dict[str, int]] = {}
    for path, tree in trees().items():
        carriers = Carriers()
        carriers.visit(tree)
        own[path] = carriers.found
        everywhere |= {name: at for name, at in carriers.found.items() if name[0] != "_"}
    for tree in trees().values():
        inherited = {
            name: everywhere[base]
            for name, base, of in derived(tree)
            if base in everywhere and not _makes(of)
        }
        everywhere = inherited | everywhere
    out: dict[str, dict[str, str]] = {}
    for path, tree in trees().items():
        forwarders: set[str] = set()
        for name, value, line in calls(tree, {**everywhere, **own[path]}):
            place = f"{path.relative_to(ROOT)}:{line}"
            found = list(literals(value)) if isinstance(value, ast.Constant | ast.IfExp) else []
            forwarded = last_name(value) == "code" or ast.unparse(value).startswith("code_of(")
            assert found or forwarded, f"{place}: write the code as a literal, or call the variable `code`"
            if isinstance(value, ast.Name):
                forwarders.add(name)
            out.setdefault(name, {}).update(dict.fromkeys(found, place))
        for code, passed_on in assigned(tree):
            for name in forwarders if passed_on else ("assigned",):
                out.setdefault(name, {})[code] = str(path.relative_to(ROOT))
        for code in returned(tree):
            out.setdefault("code_of", {})[code] = str(path.relative_to(ROOT))
    return out


OF_PLACEMENT = ("Mismatch", "Rejection")


def used_rejections() -> dict[str, str]:
    """Code → where it is written, of those that placement raises."""
    return {code: place for name in OF_PLACEMENT for code, place in raised()[name].items()}


def used() -> dict[str, str]:
    """Code → where it is written, of all others that reach somebody."""
    others = [codes for name, codes in raised().items() if name not in OF_PLACEMENT]
    return {code: place for codes in others for code, place in codes.items() if code not in INTERNAL}


def test_the_scan_sees_the_constructors():
    """So that it does not pass for want of anything to look at."""
    named = {
        "BadValueError",
        "Problem",
        "Diagnostic",
        "StateError",
        "TemplateError",
        "Mismatch",
        "Rejection",
        "Refusal",
    }
    assert named | {"add", "failed"} <= set(raised())
    assert {"_say", "say", "_refuse", "_note"} <= set(raised())  # found by their `code` parameter


def test_every_code_is_in_the_catalogue():
    assert {c: p for c, p in used().items() if c not in CODES} == {}, "add them to declarative/model/codes.py"
    missing = {c: p for c, p in used_rejections().items() if c not in REJECTIONS}
    assert missing == {}, "add them to declarative/model/codes.py"


def test_every_entry_of_the_catalogue_is_raised():
    assert sorted(set(CODES) - set(used())) == []
    assert sorted(set(REJECTIONS) - set(used_rejections())) == []


def test_structural_codes_are_those_of_placement():
    assert set(BY_CHAPTER[Chapter.STRUCTURAL]) == set(filters.LASTING)
    assert set(filters.LASTING | filters.PASSING) == set(REJECTIONS)


@pytest.mark.parametrize("name", [*CODES, *REJECTIONS])
def test_an_entry_says_all_three_things(name):
    code = CODES.get(name) or REJECTIONS[name]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
    for text in (code.meaning, code.example, code.fix):
        assert text.strip()
        assert text == text.strip()
        assert not text.endswith(".")


HEAD = """\
# Errors, by code

<!-- Generated from declarative/model/codes.py: FLEETFORM_ACCEPT=1 ./dev test tests/project/test_codes.py -->

Every finding carries a code in brackets, the place, and what to type instead:

```
error[unknown-field]: `nods` is not a field of fleet
  --> fleet.yaml:4:1
   |
 4 | nods: 2
   | ^^^^
   |
   = hint: did you mean `nodes`?
```

With `--json` the same findings come as data. Codes are stable: scripts may key on them; the text around them
may change.
"""


def page() -> str:
    out = [HEAD, *(f"- [{group.value}](#{anchor(group.value)})" for group in Chapter), ""]
    for group in Chapter:
        out += [f"## {group.value}", "", textwrap.fill(group.about, 118), ""]
        for name, code in sorted(BY_CHAPTER[group].items()):
            out += entry(name, code)
    return "\n".join(out).rstrip() + "\n"


def anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def entry(name: str, code: Code) -> list[str]:
    """An example is YAML, or says in words what happened."""
    is_yaml = "`" not in code.example and (
        "\n" in code.example or ": " in code.example or code.example[0] == "-"
    )
    example = (
        ["For example:", "", "```yaml", code.example, "```"] if is_yaml else [f"For example: {code.example}."]
    )
    meaning = code.meaning[0].upper() + code.meaning[1:] if code.meaning[0].isalpha() else code.meaning
    what, fix = (textwrap.fill(text, 118) for text in (f"{meaning}.", f"What to do: {code.fix}."))
    return [f"### `{name}`", "", what, "", *example, "", fix, ""]


def test_the_page_is_current():
    if os.environ.get("FLEETFORM_ACCEPT"):
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: FLEETFORM_ACCEPT=1 ./dev test tests/project/test_codes.py"
    )


FAILURES = [
    *(PermanentError(kind, "no") for kind in PermanentKind),
    *(TransientError(kind, "not now") for kind in TransientKind),
    MissingEnvError("TOKEN"),
    OSError("full"),
    StateError("closed-intent", "gone"),
]


@pytest.mark.parametrize("error", FAILURES, ids=repr)
def test_a_failed_action_has_a_code(error):
    """The error's own, or one that tells who has to do something about it."""
    assert code_of(error) in CODES
