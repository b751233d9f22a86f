"""What all tests share: hypothesis' profiles, and projects that the installed command is run in."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests.cli import Project

# No deadline: how long an example takes says more about the machine than about the code. In CI, the same
# examples each time (./dev test --hypothesis-profile=NAME picks another one).
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture
def project(tmp_path):
    """An empty project; what runs in it is killed at the end."""
    path = tmp_path / "project"
    path.mkdir()
    made = Project(path)
    yield made
    made.clean_up()
