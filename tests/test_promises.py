"""docs/promises.md: each guard and each test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
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
    assert [row for row in ROWS if not re.fullmatch(r"`[\w/]+\.py::test_\w+`", row[2])] == []
    promises = [row[0] for row in ROWS]
    assert sorted(promises) == sorted(set(promises)), "each once"


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_what_a_promise_names_exists(row: tuple[str, str, str]) -> None:
    guard, test = (cell.strip("`") for cell in row[1:])
    assert guard.partition(":")[2] in functions(where(guard)), guard
    file, _, name = test.partition("::")
    assert name in functions(ROOT / "tests" / file), test
