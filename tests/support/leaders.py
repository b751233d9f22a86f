"""Several loops on one state in PostgreSQL: disturbs the leader, and counts what was done twice.

The loops are processes of this host. Before a disturbance, the leases' rows are changed to name another host,
so that nobody can see by a pid that the leader is gone: the rules between hosts apply.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import namedtuple_row

from tests.support.cli import Process, Project, fleet, free_port, lines, task, until
from tests.support.postgres import Server

KINDS = ("kill", "freeze", "cut", "part", "delay")
"""SIGKILL; SIGSTOP until another one leads and has done its work, then SIGCONT, which comes before that
work if the loop was stopped within a change of the backend; the server ends all connections of all
loops; nothing comes through between the loop and the server until another one leads, and what was sent
is then lost (`part`), or arrives late (`delay`).
"""


@dataclass(frozen=True, slots=True)
class Takeover:
    """One disturbance, by the server's clock."""

    kind: str
    seconds: float
    """From the disturbance until a loop led: another one, or after a cut perhaps the same."""
    early: float
    """How long before the end of the old lease another one led; not above 0."""


class Double(NamedTuple):
    """What was done more than once, and how often."""

    ranks: dict[str, int]
    things: dict[str, int]


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop, and its way to the server."""

    process: Process
    way: subprocess.Popen[bytes]
    port: int


class Replicas:
    """Loops on one state, and a task for each disturbance."""

    def __init__(self, project: Project, server: Server, count: int) -> None:
        self.project = project
        self.server = server
        self.database = server.database()
        self._url = server.url(self.database)
        self.env = {**server.environment, "FLEETFORM_STATE": self._url}
        self._count = count
        self._loops: list[Loop] = []
        self._log = (project.path.parent / f"{project.path.name}.log").open("w")
        self.tasks = 0
        self._declare()
        self._fill()
        until(self.leader)

    def close(self) -> None:
        """End the loops as a person would."""
        for loop in self._loops:
            with suppress(ProcessLookupError):
                loop.process.send_signal(signal.SIGTERM)
        for loop in self._loops:
            loop.process.wait(60)
            _end(loop.way)
        self._log.close()

    def run(self, *args: str) -> None:
        """A person's command."""
        self.project.run(*args, env=self.env)

    def disturb(self, kind: str, after: float = 0.0, beside: Sequence[str] = ()) -> Takeover:
        """Disturb the leader so many seconds after it got something to do, and wait until that is done.

        `beside` is a person's command that begins at the same time.
        """
        self._declare()
        options = {"stdout": self._log, "stderr": self._log}
        person = self.project.start(*beside, env=self.env, **options) if beside else None
        time.sleep(after)
        found = self._disturbed(kind)
        if person:
            person.wait(60)
        return found

    def _disturbed(self, kind: str) -> Takeover:
        old = until(self.leader)
        for table in ("leader", "writer_lock"):
            self._query(
                f"UPDATE {table} SET place = 'elsewhere' WHERE owner IS NOT NULL AND pid = %s", old.pid
            )
        (at,) = self._query("SELECT extract(epoch FROM clock_timestamp())::float8 AS now")
        loop = next(loop for loop in self._loops if loop.process.pid == old.pid)
        if kind == "cut":
            self.server.admin(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                f" WHERE datname = '{self.database}' AND pid <> pg_backend_pid()"
            )
            self._finish()
            new = until(self.leader)
            return Takeover(kind, max(0.0, new.since - at.now), 0.0)
        hit = loop.process if kind in ("kill", "freeze") else loop.way
        hit.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        (last,) = self._query("SELECT * FROM leader")  # it may have been renewed a moment before
        last = last if last.owner == old.owner else old
        new = until(lambda: self._another(old.owner))
        if kind == "kill":
            loop.process.wait(60)
            _end(loop.way)
            self._loops.remove(loop)
        elif kind == "freeze" and self._amid_change(old.pid):
            hit.send_signal(signal.SIGCONT)
        self._finish()
        if kind == "part":
            _end(loop.way)
            self._loops.remove(loop)
            self._loops.append(Loop(loop.process, self._way(loop.port), loop.port))
        elif kind != "kill":
            hit.send_signal(signal.SIGCONT)
        self._fill()
        return Takeover(kind, new.since - at.now, last.expires - new.since)

    def _amid_change(self, pid: int) -> bool:
        """Whether a loop was stopped within a change of the backend. Then it holds the lock of all that is
        there: nobody knows what it does once it wakes up, so that nobody else changes anything before.
        """
        epochs = {f":{file.stat().st_ino} " for file in self.project.local.glob(".epoch.*")}
        held = [line for line in lines(Path("/proc/locks")) if f" {pid} " in line]
        return any(epoch in line for line in held for epoch in epochs)

    def double(self) -> Double:
        """What the backend did more than once: ranks by what they wrote, and nodes by the journal."""
        ranks = Counter(lines(self.project.path / "runs"))
        made = self._query("SELECT op, address FROM operations WHERE op = 'create' AND result = 'done'")
        things = Counter(row.address for row in made if not row.address.startswith("rank/"))
        return Double({n: c for n, c in ranks.items() if c > 1}, {n: c for n, c in things.items() if c > 1})

    def missing(self) -> set[str]:
        """Tasks that never ran."""
        return {f"job{i}" for i in range(self.tasks)} - {*lines(self.project.path / "runs")}

    def told(self) -> str:
        """Who holds what, and what the server's sessions do: for a report of what went wrong."""
        rows = [row for table in ("leader", "writer_lock") for row in self._query(f"SELECT * FROM {table}")]
        rows += self._query(
            "SELECT pid, state, wait_event, xact_start, state_change, pg_blocking_pids(pid) AS waits_for,"
            f" query FROM pg_stat_activity WHERE datname = '{self.database}'"
        )
        loops = [f"{loop.process.pid} by way {loop.way.pid}" for loop in self._loops]
        return "\n".join([*map(str, rows), *loops])

    def history(self, name: str) -> str:
        """What the journal says of a task or a node, and the events about it."""
        about = f"%{name}%"
        rows = self._query(
            "SELECT id, op, address, token, begun_at, ended_at, result, error, doing, host FROM operations"
            " WHERE address LIKE %s ORDER BY id",
            about,
        )
        rows += self._query("SELECT * FROM events WHERE address LIKE %s ORDER BY id", about)
        return "\n".join(map(str, rows))

    def leader(self) -> Any:
        """The row of the lease while one of the loops holds it."""
        try:
            (row,) = self._query("SELECT * FROM leader")
        except psycopg.errors.UndefinedTable:  # no loop has made the state yet
            return None
        return (
            row
            if row.owner is not None and any(loop.process.pid == row.pid for loop in self._loops)
            else None
        )

    def _another(self, owner: str) -> Any:
        row = self.leader()
        return row if row and row.owner != owner else None

    def _declare(self) -> None:
        """One more task, which writes down that it ran; and one more node, which is made for it or idle."""
        self.tasks += 1
        runs = self.project.path / "runs"
        rules = {"interval": "1s"}
        text = [
            {"type": "project", "name": "lab", "reconcile": rules},
            fleet(nodes=2 + self.tasks // 10),
            *(task(f"job{i}", f"echo job{i} >> {runs}") for i in range(max(0, self.tasks - 5), self.tasks)),
        ]
        beside = self.project.write("main.new", "---\n".join(json.dumps(d) + "\n" for d in text))
        beside.replace(self.project.path / "main.yaml")  # loops read it at any time

    def _finish(self) -> None:
        """The last task ran."""
        until(lambda: f"job{self.tasks - 1}" in lines(self.project.path / "runs"))

    def _fill(self) -> None:
        while len(self._loops) < self._count:
            port = free_port()
            way = self._way(port)
            options = {"stdout": self._log, "stderr": self._log}
            env = {**self.env, "FLEETFORM_STATE": self._url.replace(f":{self.server.port}/", f":{port}/")}
            self._loops.append(Loop(self.project.start("reconcile", "--json", env=env, **options), way, port))

    def _way(self, port: int) -> subprocess.Popen[bytes]:
        argv = (sys.executable, str(Path(__file__).with_name("relay.py")), str(port), str(self.server.port))
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL)

    def _query(self, statement: str, *values: object) -> list[Any]:
        with psycopg.connect(
            host=str(self.server.folder),
            port=self.server.port,
            user="admin",
            dbname=self.database,
            autocommit=True,
            row_factory=namedtuple_row,
        ) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []


def _end(way: subprocess.Popen[bytes]) -> None:
    way.kill()
    way.wait()
