"""docs/promises.md: each guard and each test that it names exists, and `./dev mutate` breaks the guard."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "promises.md"
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| promise")
]


@cache
def functions(path: Path) -> frozenset[str]:
    """The functions and methods of a Python file, or the functions of a shell script."""
    text = path.read_text()
    if path.suffix == ".sh":
        return frozenset(re.findall(r"^([a-z_]+)\(\) [{(]", text, re.MULTILINE))
    found = ast.walk(ast.parse(text))
    return frozenset(node.name for node in found if isinstance(node, ast.FunctionDef))


def where(guard: str) -> Path:
    name = guard.partition(":")[0]
    return ROOT / (f"providers/{name}" if name.endswith(".sh") else f"{name.replace('.', '/')}.py")


def test_the_page_has_a_guard_and_a_test_for_each_promise() -> None:
    assert len(ROWS) > 30
    assert [row for row in ROWS if len(row) != 3] == []
    assert [row for row in ROWS if not re.fullmatch(r"`[\w./]+:\w+`", row[1])] == []
    assert [row for row in ROWS if not re.fullmatch(r"`tests/[\w/]+\.py::test_\w+`", row[2])] == []
    promises = [row[0] for row in ROWS]
    assert sorted(promises) == sorted(set(promises)), "each once"


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_what_a_promise_names_exists(row: tuple[str, str, str]) -> None:
    guard, test = (cell.strip("`") for cell in row[1:])
    assert guard.partition(":")[2] in functions(where(guard)), guard
    file, _, name = test.partition("::")
    assert name in functions(ROOT / file), test


def test_each_guard_is_one_that_mutate_breaks() -> None:
    """Scripts of hosts are left out: there are mutants of Python alone."""
    broken = set()
    for guard in tomllib.loads((ROOT / "tools" / "guards.toml").read_text()).values():
        for file, named in guard["functions"].items():
            broken |= {(ROOT / file, name) for name in named or functions(ROOT / file)}
    guards = [row[1].strip("`") for row in ROWS]
    named = {(where(guard), guard.partition(":")[2]) for guard in guards if ".sh:" not in guard}
    lacking = [f"{file.relative_to(ROOT)}: {name}" for file, name in sorted(named - broken)]
    assert lacking == [], "tools/guards.toml lacks them"


def test_what_mutate_is_told_of_exists() -> None:
    """Files, functions and tests of the guards, and the functions of the survivors that are explained."""
    guards = tomllib.loads((ROOT / "tools" / "guards.toml").read_text()).values()
    survivors = tomllib.loads((ROOT / "tools" / "survivors.toml").read_text())
    named = [(file, name) for guard in guards for file, names in guard["functions"].items() for name in names]
    named += [(survivor.split(":")[0], survivor.split(":")[1]) for survivor in survivors]
    gone = [f"{file}:{name}" for file, name in named if name.rpartition(".")[2] not in functions(ROOT / file)]
    tests = [test for guard in guards for test in guard["tests"] if test.startswith("tests/")]
    assert gone + [test for test in tests if not (ROOT / test).exists()] == []
