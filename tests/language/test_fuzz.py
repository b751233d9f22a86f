"""Any documents, any text, any bytes: findings or a plan, never a traceback.

In CI (`CI` is set, so hypothesis repeats the same examples) more than 10,000 documents; elsewhere a tenth.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path as File
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from declarative.model.spec import DOCUMENTS
from tests.support.fuzz import BASE, applied, as_file, try_project

ROOT = File(__file__).parents[2]
ATHERIS = File(__file__).parents[1] / "support" / "fuzz_atheris.py"
SHARE = 1 if os.environ.get("CI") else 10
QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)

TEXTS = (
    *("gpu", "data", "data-0", "lab", "pool", "train", "home", "local", "ssh", "aws", "here", "H100:8"),
    *(
        "",
        " ",
        "~",
        "null",
        "off",
        "auto",
        "a:/b",
        "A=1",
        "-1",
        "0..4",
        "4..0",
        "..",
        "1..",
        "2GB",
        "2GiB",
        "0GB",
    ),
    *(
        "1h",
        "1h30m",
        "cluster",
        "any",
        "spot",
        "reuse",
        "http://x:1/",
        "/",
        "/../x",
        "../x",
        "**",
        "x/y",
        "a,b",
    ),
    *(
        "${{ node_rank }}",
        "data-${{ node_rank }}:/d",
        "${{ var.size }}",
        "${{ var.x }}",
        "${{ env.A }}",
        "${{",
    ),
    *("${{ 1 // 0 }}", "${{ var.ranks * 10 ** 9 }}", "${{ ''.__class__ }}", "${DSTACK_NODE_RANK}", "{{ x }}"),
    *("\u2028", "\ud800", "\x1b[31m", "é" * 50, "9" * 400, "nan", "1e400", "0x10", "\n", "name\n"),
)
NUMBERS = (-1, 0, 1, 2, 3, 7, 101, 2**31, 2**63, 10**30, 0.5, -0.0, 1e300, math.inf, math.nan)
PLAIN = st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | st.text(max_size=6)
KEYS = sorted(
    {f for cls in DOCUMENTS.values() for f in cls.__dataclass_fields__}  # type: ignore[attr-defined]
    | {"min", "max", "target", "cpu", "memory", "gpu", "disk", "count", "path", "default", "allowed", "price"}
    | {
        "on_events",
        "duration",
        "hosts",
        "hostname",
        "internal_ip",
        "instance_path",
        "ports",
        "zzz",
        "type",
        "<<",
    }
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
Path = tuple[Any, ...]


def paths(value: Any, above: Path = ()) -> Iterator[Path]:
    """Every place in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*above, key)
        yield from paths(inner, (*above, key))


PLACES = tuple((i, path) for i, document in enumerate(BASE) for path in paths(document))
VALUE_OF = st.sampled_from(PLACES)


def at(document: Any, path: Path) -> Any:
    """What stands there, or None if it was changed away."""
    for step in path:
        if not isinstance(document, dict | list):
            return None
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return None
    return document


@st.composite
def mutated(draw: st.DrawFn) -> list[Any]:
    """The whole project with a few places changed: another value or key, none, or a value from elsewhere."""
    documents = copy.deepcopy(list(BASE))
    for index, path in draw(st.lists(VALUE_OF, min_size=1, max_size=4)):
        above: Any = at(documents[index], path[:-1])
        if at(documents[index], path) is None:
            continue
        kind = draw(st.sampled_from(("value", "value", "remove", "rename", "elsewhere", "add")))
        if kind == "remove":
            del above[path[-1]]
        elif kind == "elsewhere":
            other, there = draw(VALUE_OF)
            above[path[-1]] = copy.deepcopy(at(BASE[other], there))
        elif kind == "rename" and isinstance(above, dict):
            above[draw(st.sampled_from(KEYS))] = above.pop(path[-1])
        elif kind == "add" and isinstance(above, dict):
            above[draw(st.sampled_from(KEYS))] = draw(VALUES)
        else:
            above[path[-1]] = draw(VALUES)
    return documents


@st.composite
def wild(draw: st.DrawFn) -> list[Any]:
    """Documents of known types with any fields."""
    kinds = st.sampled_from((*DOCUMENTS, *DOCUMENTS, "service", None))
    body = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)
    names = st.sampled_from(("gpu", "data", "train", "lab", "x1"))
    return [{"type": draw(kinds), "name": draw(names), **draw(body)} for _ in range(5)]


def run(strategy: st.SearchStrategy[list[Any]], projects: int, documents: int, results: set[str]) -> None:
    """Try so many projects; they have to be so many documents, and to meet these results."""
    count = 0
    met: set[str] = set()

    @settings(QUIET, max_examples=projects)
    @given(strategy)
    def each(project: list[Any]) -> None:
        nonlocal count
        count += len(project)
        met.add(try_project({"a.yaml": as_file(project)}, applied()))

    each()
    assert count >= documents
    assert met >= results


@pytest.mark.slow
def test_mutated_projects_are_planned_or_refused():
    run(mutated(), 700 // SHARE, 5_600 // SHARE, {"refused", "changes"})


@pytest.mark.slow
def test_wild_documents_are_planned_or_refused():
    run(wild(), 500 // SHARE, 2_500 // SHARE, {"refused"})


FRAGMENTS = st.sampled_from(
    (
        *(
            "type: fleet\n",
            "name: gpu\n",
            "nodes: 2\n",
            "---\n",
            "- ",
            "  ",
            "\t",
            "&a ",
            "*a",
            "!!str ",
            "? ",
            ": ",
        ),
        *(
            "| \n",
            ">-\n",
            "'",
            '"',
            "\\",
            "{",
            "}",
            "[",
            "]",
            ",",
            "#",
            "%YAML 1.2\n",
            "<<: ",
            "\r\n",
            "\ufeff",
        ),
        *(
            "type: task\nname: t1\ncommands: [x]\n",
            "volumes: ['data:/d']\n",
            "${{ ",
            " }}",
            "\u0085",
            "\0",
            "é",
        ),
    )
)
TEXT = st.lists(FRAGMENTS | st.text(max_size=4), max_size=30).map("".join)
FILE = TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=60)


@pytest.mark.slow
def test_any_files_are_planned_or_refused():
    """Each file counts as one document, whatever is in it."""
    count = 0

    @settings(QUIET, max_examples=500 // SHARE)
    @given(st.lists(FILE, min_size=4, max_size=4))
    def each(contents: list[bytes]) -> None:
        nonlocal count
        count += len(contents)
        try_project({f"{i}.yaml": content for i, content in enumerate(contents)}, applied())
        try_project({"a.yaml": as_file(BASE), "b.yaml": b"\n".join(contents)}, applied())

    each()
    assert count >= 2_000 // SHARE


def test_files_that_nobody_packed_are_planned():
    """A plan of values alone has no digest of the task's files; found by atheris."""
    task = b"type: task\nname: train\ncommands: [sh run.sh]\nfiles: [build]\n"
    assert try_project({"a.yaml": task}, applied()) != "refused"


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed (134 MB, Linux): pip install --require-hashes -r locks/fuzz.txt",
)
def test_bytes_that_atheris_finds_are_planned_or_refused(tmp_path):
    """Guided by coverage, from the files of the golden tests; by its seed the same inputs each time.

    In CI 3,000 inputs, about 20 seconds of CPU. Memory does not grow with them (80 MB); the bound is for a
    single input that declares a hundred thousand ranks.
    """
    runs = 3_000 // SHARE
    command = [
        sys.executable,
        str(ATHERIS),
        f"-atheris_runs={runs}",
        "-seed=1",
        "-timeout=20",
        "-rss_limit_mb=2048",
        str(tmp_path),
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    assert f"Done {runs}" in done.stderr


def test_the_base_is_planned_from_both_sides():
    """So that the mutations begin at what works."""
    assert try_project({"a.yaml": as_file(BASE)}, applied()) == "changes"
