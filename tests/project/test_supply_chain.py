"""Exactly what was locked is installed, and exactly what was committed is built."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "locks"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINNED = re.compile(r"^([a-z0-9-]+)==([^ ]+)", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    return dict(PINNED.findall((LOCKS / f"{name}.txt").read_text()))


def wanted() -> Iterable[tuple[str, str]]:
    """(lock, requirement) of all that `pyproject.toml` asks for."""
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    yield from (("run", text) for text in project["dependencies"])
    yield from (("image", text) for text in project["optional-dependencies"]["postgresql"])
    for extra in ("dev", "aws", "postgresql"):
        yield from (
            ("dev", text) for text in (*project["dependencies"], *project["optional-dependencies"][extra])
        )
    for group, found in groups.items():
        yield from ((group, text) for text in found)


def test_the_locks_have_what_the_project_asks_for() -> None:
    """After a change of dependencies: `./dev lock`."""
    missed = []
    for lock, text in wanted():
        requirement = Requirement(text)
        version = pins(lock).get(canonicalize_name(requirement.name), "")
        if not version or not requirement.specifier.contains(version):
            missed.append(f"locks/{lock}.txt: {text}: {version or 'none'}")
    assert missed == []
    assert {p.stem for p in LOCKS.iterdir()} == {"run", "image", "dev", *PROJECT["dependency-groups"]}
    assert pins("run").items() <= pins("image").items() <= pins("dev").items()


@pytest.mark.parametrize("path", sorted(LOCKS.iterdir()), ids=lambda p: p.stem)
def test_a_lock_has_hashes_and_no_addresses(path: Path) -> None:
    """Where files come from is the user's to say; what they are is not."""
    text = path.read_text()
    assert not re.search(r"://|--index|--extra-index|--find-links|--trusted|@ ", text)
    for one in re.split(r"\n(?=[a-z])", text)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", one), one


def made(folder: Path, *, marker: str = "") -> str:
    """A wheel of nothing in a folder; its SHA-256."""
    path = folder / "nothing-1.0-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        archive.writestr("nothing.py", marker)
        info = "nothing-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: nothing\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
def test_nothing_is_installed_that_was_not_locked(tmp_path: Path) -> None:
    """Neither another file of the same version, nor what no lock names."""
    clone, index = tmp_path / "clone", tmp_path / "index"
    (clone / "locks").mkdir(parents=True)
    index.mkdir()
    shutil.copy(ROOT / "dev", clone)
    (clone / "pyproject.toml").write_text("")
    lock = clone / "locks" / "environment.txt"
    env = {
        **{n: v for n, v in os.environ.items() if not n.startswith("PIP_")},
        "PYTHON": sys.executable,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
    }

    def set_up(text: str) -> str:
        lock.write_text(text + "\n")
        done = subprocess.run(
            (str(clone / "dev"), "setup"), env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        return done.stderr

    locked = f"nothing==1.0 --hash=sha256:{made(index)}"
    assert "dev: pip could not install what locks/dev.txt names" in set_up(locked)  # it got so far
    subprocess.run(
        (clone / ".venv/bin/python", "-m", "pip", "uninstall", "-qqy", "nothing"),
        check=True,
        stdin=subprocess.DEVNULL,
    )
    made(index, marker="import os")
    said = set_up(locked)
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in said
    assert "dev: pip could not install what locks/environment.txt names with Python 3." in said
    assert "if hashes differ: the file is not the one that was locked" in said
    said = set_up("nothing==2.0 --hash=sha256:" + "0" * 64)
    assert "No matching distribution found for nothing==2.0" in said
    assert "PYTHON=python3.12 ./dev" in said
    assert "--require-hashes" in set_up("nothing==1.0")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `./dev wheel` builds, in a folder in which an older one lies."""
    folder = tmp_path_factory.mktemp("dist")
    (older := folder / "fleetform-0.0.1-py3-none-any.whl").write_bytes(b"older")
    env = {n: v for n, v in os.environ.items() if n != "SOURCE_DATE_EPOCH"}
    subprocess.run((str(ROOT / "dev"), "wheel", str(folder)), env=env, check=True, stdin=subprocess.DEVNULL)
    (found,) = {*folder.glob("*.whl")} - {older}
    assert {*folder.iterdir()} == {older, found, found.with_suffix(".cdx.json")}
    return found


@pytest.mark.slow
def test_the_same_commit_makes_the_same_wheel(tmp_path: Path, wheel: Path) -> None:
    """In any folder, by any user, at any time."""
    committed = ("git", "log", "-1", "--format=%ct")
    time = subprocess.run(committed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    for name in ("declarative", "providers", "schemas"):
        shutil.copytree(ROOT / name, tmp_path / "b" / name, copy_function=shutil.copyfile)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copyfile(ROOT / name, tmp_path / "b" / name)
    for path in (tmp_path / "b").rglob("*.py"):
        path.chmod(0o600)
    command = (sys.executable, "-m", "pip", "-qq", "wheel", "--no-deps", "--no-build-isolation", ".")
    subprocess.run(command, cwd=tmp_path / "b", env={**os.environ, "SOURCE_DATE_EPOCH": time}, check=True)
    (other,) = (tmp_path / "b").glob("*.whl")
    assert other.read_bytes() == wheel.read_bytes()
    assert {i.date_time[0] for i in ZipFile(wheel).infolist()} != {
        2020
    }  # hatchling's, where no time is given


@pytest.mark.slow
def test_a_wheels_sbom_says_what_comes_with_it(wheel: Path) -> None:
    """As CycloneDX: with the locked versions, their hashes, and who needs whom; without any path."""
    text = wheel.with_suffix(".cdx.json").read_text()
    found: dict[str, Any] = json.loads(text)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    this = found["metadata"]["component"]
    assert this["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    scopes = {c["name"]: c["scope"] for c in found["components"]}
    assert {n for n, scope in scopes.items() if scope == "required"} == set(pins("run"))
    assert {n for n, scope in scopes.items() if scope == "optional"} >= {
        "botocore",
        "psycopg",
        "psycopg-binary",
    }
    assert not {"pytest", "ruff", "moto"} & set(scopes)
    assert {c["name"]: c["version"] for c in found["components"]}.items() <= pins("dev").items()
    needs = {d["ref"]: d["dependsOn"] for d in found["dependencies"]}
    assert set(needs) == {this["bom-ref"], *(c["bom-ref"] for c in found["components"])}
    assert (
        f"pkg:pypi/urllib3@{pins('run')['urllib3']}" in needs[f"pkg:pypi/requests@{pins('run')['requests']}"]
    )
    for component in found["components"]:
        (source,) = component["externalReferences"]
        assert source["hashes"]
    assert str(ROOT) not in text
    assert str(wheel.parent) not in text
