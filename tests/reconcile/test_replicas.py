"""Several loops on one state in PostgreSQL: only one acts, whatever is killed, frozen, or done by people."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Process, Project, fleet, until
from tests.support.postgres import Server, missing, running

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=str(missing()))]
HOLDER = "SELECT pid, fence FROM leader WHERE owner IS NOT NULL"
TAKEOVER = 15.0
"""Seconds within which another loop acts."""


@pytest.fixture(scope="module")
def server():
    with running() as found:
        yield found


def rounds() -> int:
    """How many leaders are lost."""
    return int(os.environ.get("FLEETFORM_KILLS", "3"))


class Replicas:
    """Loops of one project, each a process."""

    def __init__(self, path: Path, server: Server, count: int) -> None:
        self.project = Project(path)
        self.database = server.database()
        self.env = {**server.environment, "FLEETFORM_STATE": server.url(self.database)}
        self.log = path.parent / f"{path.name}.log"
        self.loops: list[Process] = []
        self.declare(1)
        for _ in range(count):
            self.start()

    def declare(self, nodes: int) -> None:
        project = {"type": "project", "name": "lab", "reconcile": {"interval": "1s"}}
        self.project.declare(project, fleet(nodes=nodes))

    def start(self) -> None:
        with self.log.open("a") as out:
            self.loops.append(self.project.start("reconcile", "--json", env=self.env, stdout=out, stderr=out))

    def ended(self) -> set[int]:
        """The loops that do not go on."""
        return {loop.pid for loop in self.loops if loop.poll() is not None}

    def ends(self) -> Counter[str]:
        """How often each action was done, by all loops and people."""
        found: Counter[str] = Counter()
        for line in self.log.read_text().splitlines():
            if line.startswith("{"):
                event: dict[str, Any] = json.loads(line)
                if event["event"] == "end" and event["outcome"] == "done":
                    found[event["id"]] += 1
        return found

    def nodes(self) -> set[str]:
        return {p.name for p in (self.project.local / "nodes").glob("*") if p.is_dir()}


def lease(replicas: Replicas, server: Server) -> list[tuple[int, int]]:
    """Who leads, as the database says: its pid, and the number of the lease."""
    return [(pid, fence) for pid, fence in server.admin(HOLDER, replicas.database)]


@pytest.fixture
def replicas(tmp_path: Path, server: Server):
    made = Replicas(tmp_path, server, 3)
    yield made
    for loop in made.loops:
        if loop.poll() is None:
            os.kill(loop.pid, signal.SIGCONT)
    made.project.clean_up()


def test_a_leader_that_is_lost_is_followed_by_one_other(replicas: Replicas, server: Server):
    """Killed, or frozen past its lease and thawed, with `apply` in between: each node is made once."""
    chance = random.Random(7)
    until(lambda: replicas.nodes() == {"gpu-0"})
    waits = []
    killed: set[int] = set()
    for turn in range(rounds()):
        until(lambda: lease(replicas, server))
        pid, fence = lease(replicas, server)[0]
        frozen = chance.choice((True, False))
        os.kill(pid, signal.SIGSTOP if frozen else signal.SIGKILL)
        lost = time.monotonic()
        replicas.declare(turn + 2)
        until(lambda: lease(replicas, server) and lease(replicas, server)[0][1] > fence)  # noqa: B023
        waits.append(time.monotonic() - lost)
        if frozen:  # it goes on with what it was about to do, after its lease
            os.kill(pid, signal.SIGCONT)
        else:
            killed.add(pid)
            replicas.start()
        if turn % 3 == 2:
            replicas.project.run("apply", "--auto-approve", env=replicas.env)
        until(lambda: f"gpu-{turn + 1}" in replicas.nodes())  # noqa: B023
    wanted = {f"gpu-{n}" for n in range(rounds() + 1)}
    until(lambda: replicas.nodes() == wanted)
    assert [key for key, count in replicas.ends().items() if count > 1] == []
    assert max(waits) <= TAKEOVER, waits
    assert replicas.ended() <= killed
    assert "Traceback" not in replicas.log.read_text()
    replicas.project.run("state", "check", env=replicas.env)


def test_loops_outlive_a_database_that_is_away(replicas: Replicas, server: Server):
    until(lambda: replicas.nodes() == {"gpu-0"})
    server.stop()
    replicas.declare(2)
    until(lambda: "waiting up to" in replicas.log.read_text())
    server.start()
    until(lambda: replicas.nodes() == {"gpu-0", "gpu-1"})
    assert replicas.ended() == set()
    assert "Traceback" not in replicas.log.read_text()
