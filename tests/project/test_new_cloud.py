"""`tools/new_cloud.py`: what it writes passes all tests at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project."""
    copy = tmp_path_factory.mktemp("tree")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


def run(*words: str, tree: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, check=False, cwd=tree, env=env, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_a_driver_is_begun(tree: Path) -> None:
    """Driver, stand-in and test, and all other places that name drivers."""
    files = run(sys.executable, "tools/new_cloud.py", "zephyr", "--variable", "ZEP_KEY", tree=tree).split()
    made = [name for name in files if "zephyr" in name]
    assert len(made) == 3
    code = [name for name in files if name.endswith(".py")]
    run(sys.executable, "-m", "ruff", "check", *code, tree=tree)
    run(sys.executable, "-m", "mypy", *made, tree=tree)
    run(sys.executable, "-m", "ruff", "format", "--check", *code, tree=tree)
    seeds = [f"--deselect={made[-1]}::test_nothing_is_lost_or_made_twice[{n}]" for n in range(3, 20)]
    run(*PYTEST, "tests/providers/zephyr", *seeds, tree=tree)
    named = ["tests/project/test_readme.py::test_each_cloud_is_shown"]
    run(*PYTEST, *named, "tests/providers/cloud/test_missing_settings.py", tree=tree)
    done = subprocess.run(
        [sys.executable, "tools/new_cloud.py", "zephyr"],
        check=False,
        cwd=tree,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 1
    assert "zephyr.py exists" in done.stderr
