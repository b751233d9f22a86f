"""A Slurm for the tests of this folder. Where it is not installed they are skipped, and say why."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.slurm.daemons import Daemons, impediment


@pytest.fixture(scope="session")
def daemons() -> Iterator[Daemons]:
    """Two nodes with 8 CPUs and 8 GPUs each, below one switch."""
    if reason := impediment():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="ff-slurm-") as name:  # short: sockets lie in it
        made = Daemons(Path(name))
        try:
            made.up()
            yield made
        finally:
            made.down()


@pytest.fixture
def slurm(daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemons]:
    """The cluster, idle at the beginning and at the end of each test."""
    monkeypatch.setenv("SLURM_CONF", str(daemons.conf))
    yield daemons
    daemons.clear()
