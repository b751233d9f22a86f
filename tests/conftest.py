"""Shared by all tests: hypothesis' profiles, and projects in which the installed command runs."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings

from declarative.model.spec.project import EVENT_TYPES
from declarative.store import events
from declarative.store.sql import Connection
from tests.support.cli import Project
from tests.support.examples import examples

# No deadline: how long an example takes says more about the machine than about the code. In CI, the same
# examples each time (./dev test --hypothesis-profile=NAME picks another one).
settings.register_profile("local", deadline=None, max_examples=examples(100))
settings.register_profile(
    "ci", settings.get_profile("local"), derandomize=True, database=None, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# The scripts of hosts run here, too, in folders below /tmp: no rule for them gets into this machine's /etc.
os.environ["FLEETFORM_TMPFILES_DIR"] = "/nonexistent"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has what it runs in the background ignore Ctrl-C, and so would all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Three processes a core: most of the time, slow tests wait for other processes."""
    return 3 * (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests are collected without looking for garbage, and what was made of them is never looked at again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def known_events() -> Iterator[None]:
    """Whoever tells of something, it is of a type that `notify.events` and `events --type` know."""
    real = events.write

    def write(connection: Connection, now: float, type: str, *more: Any) -> None:
        assert type in EVENT_TYPES
        real(connection, now, type, *more)

    with patch.object(events, "write", write):
        yield


@pytest.fixture
def project(tmp_path):
    """An empty project; what runs in it is killed at the end."""
    path = tmp_path / "project"
    path.mkdir()
    made = Project(path)
    yield made
    made.clean_up()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A PostgreSQL server, started when the first test asks for it."""
    from tests.support import postgres as servers

    why_not = servers.missing()
    if why_not:
        pytest.skip(why_not)
    with servers.running() as server:
        yield server


@pytest.fixture
def postgres_url(postgres, monkeypatch) -> Iterator[Callable[[], str]]:
    """Makes a database on it; the URL of a state there. User and password are in the environment."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    for name, value in postgres.environment.items():
        monkeypatch.setenv(name, value)
    databases: list[str] = []

    def url() -> str:
        databases.append(postgres.database())
        return str(postgres.url(databases[-1]))

    yield url
    postgres.give_back(*databases)


@pytest.fixture(params=["sqlite", "postgresql"])
def new_state(request, tmp_path: Path) -> Callable[[], str]:
    """Names a place for a state, another one each time, in each database."""
    if request.param == "postgresql":
        made: Callable[[], str] = request.getfixturevalue("postgres_url")
        return made
    numbers = iter(range(10_000))
    return lambda: f"sqlite:///{tmp_path}/states/{next(numbers)}/state.db"
