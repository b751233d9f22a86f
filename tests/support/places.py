"""The places for days in fast motion (`week`): what a place has to report, and the rehearsal cloud."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.providers.cloud.run import SITE
from tests.providers.cloud.server import Cloud
from tests.providers.cloud.world import CloudWorld
from tests.support.cli import Project, fleet
from tests.support.rounds import Clock

HOUR = 3600.0
IDLE = 600.0
"""Seconds after which a node is not kept any more."""


@dataclass
class Node:
    """A node, by the place's own account. Times are those of the clock."""

    key: str
    name: str
    made: float
    price: float = 0.0
    """USD an hour."""
    gone: float | None = None
    lost: float | None = None
    """When it was lost. It may be there all the same, and be paid for."""


@dataclass
class Attempt:
    """An attempt of a rank that has begun, likewise."""

    node: str
    name: str
    started: float
    ended: float | None = None

    @property
    def rank(self) -> str:
        """`train-0`."""
        return self.name.partition(".")[0]

    @property
    def generation(self) -> str:
        """The same for all ranks of a gang that were started together."""
        return self.name.split(".")[1]


class Place(Protocol):
    """Where most nodes are."""

    command: str
    """What a rank runs that ends when `end` says so."""
    cpu: int
    """Of each node; it is split into two blocks."""
    launches: bool
    """Whether nodes are made there and paid for, and not there already."""
    most_an_hour: float
    """USD."""
    nodes: dict[str, Node]
    """All that ever were."""
    attempts: list[Attempt]
    """All that ever were."""

    def documents(self) -> list[dict[str, Any]]:
        """The backend and the fleets; `work` is for most tasks."""

    def tick(self) -> None:
        """The clock was set."""

    def look(self) -> None:
        """Account for what is there by now."""

    def end(self, attempt: Attempt, code: int) -> None:
        """Let a rank end."""

    def running(self) -> list[str]:
        """The running attempts, whatever is reported of them."""

    def losable(self) -> list[Node]:
        """What may be lost now."""

    def lose(self, node: Node, chance: random.Random) -> bool:
        """Lose a node; also lose what has just ended there, if nobody has seen its end."""


def launched(backend: str, cpu: int, **more: Any) -> list[dict[str, Any]]:
    """Fleets of a cloud: one that is always there, one by day, one as it is needed; `more` is of all."""
    more = {"backends": [backend], "resources": {"cpu": cpu}, "idle_duration": round(IDLE), **more}
    hours = {"start": "0 8 * * *", "stop": "0 20 * * *", "timezone": "Europe/Berlin"}
    return [
        fleet("always", nodes=1, **more),
        fleet("day", nodes=2, schedule=hours, **more),
        {**fleet("work", nodes="0..10", **more), "blocks": 2},
    ]


class Sky:
    """Its nodes cost 1 USD an hour each; its ranks are rows."""

    cpu, launches, most_an_hour, command = 8, True, 12.0, "train"

    def __init__(self, world: CloudWorld, backend: dict[str, Any], clock: Clock) -> None:
        self.world, self.backend, self.clock = world, backend, clock
        self.nodes: dict[str, Node] = {}
        self.attempts: list[Attempt] = []

    def documents(self) -> list[dict[str, Any]]:
        """See `Place`."""
        return [self.backend, *launched("sky", self.cpu)]

    def tick(self) -> None:
        """The world asks the clock itself."""

    def look(self) -> None:
        """See `Place`."""
        db = self.world._db
        for row in db.execute("SELECT * FROM things WHERE kind = 'node'").fetchall():
            key = f"i-{row['seq']}"
            node = self.nodes.setdefault(key, Node(key=key, name=row["name"], made=row["made"], price=1.0))
            node.gone = row["gone"]
        rows = db.execute("SELECT * FROM ranks").fetchall()
        self.attempts = [
            Attempt(node=f"i-{r['node']}", name=r["attempt"], started=r["started"], ended=r["ended"])
            for r in rows
        ]

    def end(self, attempt: Attempt, code: int) -> None:
        """See `Place`."""
        attempt.ended = self.clock.at
        self.world._db.execute(
            "UPDATE ranks SET state = ?, code = ?, ended = ? WHERE node = ? AND attempt = ?",
            ("failed" if code else "succeeded", code, self.clock.at, attempt.node[2:], attempt.name),
        )

    def running(self) -> list[str]:
        """See `Place`."""
        return [attempt.name for attempt in self.attempts if attempt.ended is None]

    def losable(self) -> list[Node]:
        """See `Place`."""
        there = [node for node in self.nodes.values() if node.gone is None]
        return [node for node in there if not node.name.startswith("always")] if len(there) > 1 else []

    def lose(self, node: Node, _chance: random.Random) -> bool:
        """See `Place`."""
        query = "SELECT owner FROM things WHERE seq = ?"
        self.world.delete(self.world._db.execute(query, (node.key[2:],)).fetchone()["owner"], node.key)
        self.look()
        return True


@contextmanager
def sky(folder: Path, clock: Clock) -> Iterator[tuple[Sky, Project]]:
    """The rehearsal cloud by a clock, and a project in which its provider is known."""
    sys.path.insert(0, str(SITE))
    import cumulus  # type: ignore[import-not-found]

    cumulus.clock = clock
    world = CloudWorld(folder / "sky.db", clock=clock)
    cloud = Cloud(world, 0.0, 0.0, 0, 0.0)
    threading.Thread(target=cloud.serve_forever, args=(0.02,), daemon=True).start()
    host, port = cloud.server_address[:2]
    url = {"options": {"url": f"http://{host!s}:{port}"}}
    backend = {"type": "backend", "name": "sky", "driver": "cumulus", "regions": ["sky-1"], **url}
    (folder / "week").mkdir()
    try:
        yield Sky(world, backend, clock), Project(folder / "week")
    finally:
        cloud.shutdown()
        cloud.server_close()
        cumulus.clock = time.time
        sys.path.remove(str(SITE))
