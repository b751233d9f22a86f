"""Hosts with real sshd, for the tests of this folder. Without root or sshd they are skipped, and say why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from providers.ssh.transport import background
from tests.providers.ssh.machines import Machines, impediment
from tests.providers.ssh.rented import Rented


@pytest.fixture(scope="session")
def allowed() -> None:
    """Skips where there can be no hosts."""
    if reason := impediment():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def machines(allowed) -> Iterator[Machines]:
    """Three hosts; every test finds them as they were at the beginning, or has to put that right."""
    made = Machines(3)
    made.up()
    yield made
    background.close()
    made.down()


@pytest.fixture
def rented(allowed: None) -> Iterator[Rented]:
    """Two machines that are off."""
    machines = Machines(2)
    machines.up(boot=False)
    made = Rented(machines)
    yield made
    for machine in machines:
        machine.kill()
    made.thread.shutdown()
    machines.down()
