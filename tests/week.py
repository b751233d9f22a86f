"""Days of a project in fast motion: tasks come and end, nodes are lost, a loop does its rounds.

The loop is the real one, on a real state; its clock is a value. Most nodes are of the rehearsal cloud, which
runs in this process by the same clock, and whose ranks end as the plan of the days says. A fleet of the
`local` backend runs real processes, which wait for a file. All that comes follows from a seed.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from declarative.reconcile.round import Round
from tests.cli import Project, fleet, task
from tests.cloud.run import SITE
from tests.cloud.server import Cloud
from tests.cloud.world import CloudWorld
from tests.rounds import Clock, Here

HOUR = 3600.0
DAY = 24 * HOUR
BERLIN = ZoneInfo("Europe/Berlin")
BEGIN = datetime(2026, 3, 29, tzinfo=UTC).timestamp()
"""A Sunday on which Berlin's clocks change; the month changes in the week after it."""
IDLE = 600.0
MOST_AN_HOUR = 12.0
"""USD: as many nodes."""
LOST_A_DAY = 4
REPLACED_AN_HOUR = 3


@dataclass
class Job:
    """A task: when it comes, how long an attempt of it takes, and how many of them fail."""

    name: str
    at: float
    seconds: float
    ranks: int = 1
    fails: int = 0
    retry: bool = False
    local: bool = False
    lost: bool = False
    """An attempt was lost with its node."""
    fate: dict[str, bool] = field(default_factory=dict)
    """Generation of its ranks → whether that attempt fails."""
    ended: float | None = None

    @property
    def expected(self) -> str:
        """How it has to end."""
        if self.retry:
            return "succeeded"
        return "lost" if self.lost else "failed" if self.fails else "succeeded"

    def document(self, folder: Path) -> dict[str, Any]:
        """As it is declared."""
        retry = {"on_events": ["no-capacity", "interruption", "error"], "duration": "24h"}
        more: dict[str, Any] = {"retry": retry if self.retry else {"on_events": ["no-capacity"]}}
        if self.local:
            command = f"while [ ! -e {folder}/{self.name} ]; do sleep 0.2; done"
            return task(self.name, command, fleets=["desk"], resources={"cpu": 1}, **more)
        want = {"cpu": 8} if self.ranks > 1 else {"cpu": 4}
        return task(self.name, "train", fleets=["work"], nodes=self.ranks, resources=want, **more)


def jobs(days: float, a_day: int, chance: random.Random) -> list[Job]:
    """What comes, in its order."""
    found = []
    for number in range(round(days * a_day)):
        local = chance.random() < 0.1
        job = Job(
            name=f"job{number}",
            at=BEGIN + chance.uniform(0.0, days * DAY),
            seconds=min(chance.lognormvariate(7.5, 1.0), 5 * HOUR),
            ranks=1 if local else chance.choice((1, 1, 1, 1, 2, 3)),
            local=local,
        )
        if not local and chance.random() < 0.2:
            job.fails = chance.choice((1, 1, 2))
        job.retry = chance.random() < (0.7 if job.fails else 0.9)
        found.append(job)
    return sorted(found, key=lambda job: job.at)


class Days:
    """One project, some days of it, and what was wrong with them."""

    def __init__(
        self,
        project: Project,
        clock: Clock,
        world: CloudWorld,
        backend: dict[str, Any],
        *,
        days: float,
        a_day: int,
        interval: float,
        seed: int,
    ) -> None:
        self.project, self.interval, self.days = project, interval, days
        self.clock, self.world, self.backend = clock, world, backend
        self.here = Here(project.path, clock)
        self.chance = random.Random(seed)
        self.jobs = jobs(days, a_day, self.chance)
        self.by_name = {job.name: job for job in self.jobs}
        self.declared: list[Job] = []
        self.faults: list[str] = []
        self.ran: dict[str, set[str]] = defaultdict(set)
        """Scheduled task → its attempts."""
        self.lost_nodes: set[int] = set()
        self.local_done: dict[str, float] = {}
        self.errors: Counter[str] = Counter()
        self.last: Round | None = None
        self.losses = sorted(
            BEGIN + self.chance.uniform(HOUR, days * DAY) for _ in range(round(days * LOST_A_DAY))
        )

    # ---------------------------------------------------------------------------- what is declared

    def declare(self) -> None:
        """Write the project's file anew."""
        rules = {
            "interval": f"{round(self.interval)}s",
            "budgets": [{"nodes": REPLACED_AN_HOUR, "per": "1h", "reasons": ["replace-lost"]}],
            "replacements_per_day": 100,
        }
        more = {"backends": ["sky"], "resources": {"cpu": 8}, "idle_duration": round(IDLE)}
        hours = {"start": "0 8 * * *", "stop": "0 20 * * *", "timezone": "Europe/Berlin"}
        night = {"start": "30 2 * * *", "timezone": "Europe/Berlin"}
        self.project.declare(
            {
                "type": "project",
                "name": "week",
                "limits": {"cost_per_hour": MOST_AN_HOUR, "cost_per_month": MOST_AN_HOUR * 730},
                "reconcile": rules,
            },
            self.backend,
            fleet("always", nodes=1, **more),
            fleet("day", nodes=2, schedule=hours, **more),
            {**fleet("work", nodes="0..10", **more), "blocks": 2},
            fleet("desk", nodes="0..2", backends=["local"], idle_duration=round(IDLE)),
            task("nightly", "train", fleets=["always"], resources={"cpu": 1}, schedule=night),
            *(job.document(self.project.path) for job in self.declared),
        )

    def _come_and_go(self) -> None:
        """Tasks come when it is time, and are taken out some hours after their end."""
        now = self.clock.at
        due = [job for job in self.jobs if job.at <= now and job not in self.declared and job.ended is None]
        old = [job for job in self.declared if job.ended is not None and now - job.ended > 6 * HOUR]
        if due or old:
            self.declared = [job for job in self.declared if job not in old] + due
            self.declare()

    # ---------------------------------------------------------------------------- what happens

    def _ranks_end(self) -> None:
        """Attempts of the cloud that took as long as they had to."""
        db, now = self.world._db, self.clock.at
        for row in db.execute("SELECT * FROM ranks WHERE ended IS NULL").fetchall():
            rank, generation = row["attempt"].split(".")[:2]
            name, _, number = rank.rpartition("-")
            if name == "nightly":
                self.ran[name].add(row["attempt"])
                seconds, fails = 40 * 60.0, False
            else:
                job = self.by_name[name]
                if generation not in job.fate:
                    job.fate[generation] = sum(job.fate.values()) < job.fails
                seconds, fails = job.seconds, job.fate[generation] and number == "0"
            if row["started"] + (seconds * 0.7 if fails else seconds) <= now:
                state, code = ("failed", 3) if fails else ("succeeded", 0)
                db.execute(
                    "UPDATE ranks SET state = ?, code = ?, ended = ? WHERE node = ? AND attempt = ?",
                    (state, code, now, row["node"], row["attempt"]),
                )

    def _node_lost(self) -> None:
        """One at most in each round: if several are gone at once, a loop asks a person."""
        if not self.losses or self.losses[0] > self.clock.at:
            return
        db = self.world._db
        there = db.execute("SELECT * FROM things WHERE kind = 'node' AND gone IS NULL").fetchall()
        spot = [row for row in there if not row["name"].startswith("always")]
        if len(there) < 2 or not spot:
            return
        self.losses.pop(0)
        row = self.chance.choice(sorted(spot, key=lambda row: row["seq"]))
        # What ended just now is lost as well: nobody has seen it end.
        running = "SELECT attempt FROM ranks WHERE node = ? AND coalesce(ended, ?) = ?"
        for (attempt,) in db.execute(running, (row["seq"], self.clock.at, self.clock.at)).fetchall():
            job = self.by_name.get(attempt.partition(".")[0].rpartition("-")[0])
            if job:
                job.lost = True
        self.lost_nodes.add(row["seq"])
        self.world.delete(row["owner"], f"i-{row['seq']}")

    def _local_ends(self) -> None:
        """Let the real processes end whose time it is."""
        status = self.last.status if self.last else None
        for found in status.tasks if status else ():
            job = self.by_name.get(found.name)
            if job and job.local and found.state == "running":
                begun = self.local_done.setdefault(job.name, self.clock.at)
                if self.clock.at - begun >= job.seconds:
                    (self.project.path / job.name).touch()

    # ---------------------------------------------------------------------------- what is checked

    def step(self) -> None:
        """One interval, and one round after it."""
        self.clock.at += self.interval
        self._ranks_end()
        self._node_lost()
        self._local_ends()
        self._come_and_go()
        found = self.last = self.here.step()
        for error in found.errors:
            self.errors[error.code] += 1
        for result in found.results:
            if result.outcome != "done":
                self.errors[f"{result.id.partition('/')[0]}: {result.error}"] += 1
        self._note_ends(found)
        self._check_nodes()

    def _note_ends(self, found: Round) -> None:
        for shown in found.status.tasks if found.status else ():
            job = self.by_name.get(shown.name)
            over = shown.state in ("succeeded", "failed", "lost", "stopped")
            if job is None or not over or (job.retry and shown.state != "succeeded"):
                continue
            if job.ended is None:
                job.ended = self.clock.at
                if shown.state != job.expected:
                    self._wrong(f"{job.name} is {shown.state}, not {job.expected}: {job}")

    def _check_nodes(self) -> None:
        """Money, and idle nodes."""
        db, now = self.world._db, self.clock.at
        nodes = db.execute("SELECT * FROM things WHERE kind = 'node' AND gone IS NULL").fetchall()
        if len(nodes) > MOST_AN_HOUR:
            self._wrong(f"{len(nodes)} nodes")
        for row in nodes:
            if not row["name"].startswith("work"):
                continue
            ranks = db.execute("SELECT ended FROM ranks WHERE node = ?", (row["seq"],)).fetchall()
            if any(rank["ended"] is None for rank in ranks):
                continue
            since = max([row["made"], *(rank["ended"] for rank in ranks)])
            if now - since > IDLE + self.interval:
                self._wrong(f"{row['name']} is idle for {now - since:.0f} s")

    def _wrong(self, what: str) -> None:
        when = datetime.fromtimestamp(self.clock.at, UTC).strftime("%a %H:%M:%S")
        self.faults.append(f"{when} {what}")

    def check(self) -> None:
        """What can only be said at the end."""
        for job in self.jobs:
            if job.ended is None:
                self._wrong(f"{job.name} has not ended: {job}")
            attempts, most = len(job.fate), 1 + (job.fails if job.retry else 0)
            if not job.local and not job.lost and attempts != most:
                self._wrong(f"{job.name} had {attempts} attempts, not {most}")
        nights = self._times(2, 30)
        if len(self.ran["nightly"]) != nights:
            self._wrong(f"nightly ran {len(self.ran['nightly'])} times, not {nights}")
        spent, slack = self._spent(), 0.02 + len(self.lost_nodes) * self.interval / HOUR
        if not -0.01 <= spent - self.node_hours <= slack:
            self._wrong(f"{spent:.2f} USD were counted, and {self.node_hours:.2f} had to be paid")
        self._check_made()

    def _check_made(self) -> None:
        """Nothing was made for nothing, and nothing more often than it had to be."""
        db = self.world._db
        for row in db.execute("SELECT * FROM things WHERE kind = 'node'").fetchall():
            ranks = db.execute("SELECT count(*) FROM ranks WHERE node = ?", (row["seq"],)).fetchone()[0]
            if row["name"].startswith("work") and not ranks and row["seq"] not in self.lost_nodes:
                self._wrong(f"{row['name']} (i-{row['seq']}) was made for nothing")
        made = Counter(row["name"] for row in db.execute("SELECT * FROM things WHERE kind = 'node'"))
        lost = Counter(
            row["name"] for row in db.execute("SELECT * FROM things") if row["seq"] in self.lost_nodes
        )
        mornings = self._times(8, 0)
        for name, times in made.items():
            most = {"always": 1, "day": mornings}.get(name.rpartition("-")[0])
            if most is not None and times - lost[name] > most:
                self._wrong(f"{name} was made {times} times, and lost {lost[name]} times")

    def _times(self, hour: int, minute: int) -> int:
        """How often it was that time of the day in Berlin."""
        days = (datetime.fromtimestamp(BEGIN + DAY * n, BERLIN) for n in range(round(self.days) + 3))
        times = (day.replace(hour=hour, minute=minute).timestamp() for day in days)
        return sum(BEGIN < at <= self.clock.at for at in times)

    def play(self) -> None:
        """All days, and until what has come has ended."""
        self.declare()
        while self.clock.at < BEGIN + self.days * DAY:
            self.step()
        end = self.clock.at + 30 * HOUR
        while self.clock.at < end and any(job.ended is None for job in self.jobs):
            self.step()
        for _ in range(round((IDLE + 2 * self.interval) / self.interval) + 1):
            self.step()
        self.check()

    def _spent(self) -> float:
        """USD, as they are counted in the state."""
        db = sqlite3.connect(f"file:{self.project.path}/.fleetform/state.db?mode=ro", uri=True)
        ended = db.execute("SELECT sum(dollars) FROM spent_months").fetchone()[0] or 0.0
        running = "SELECT sum(price * (? - since)) FROM paid_nodes"
        seconds = db.execute(running, (self.clock.at,)).fetchone()[0] or 0.0
        db.close()
        return float(ended) + float(seconds) / HOUR

    @property
    def node_hours(self) -> float:
        """What was paid for."""
        rows = self.world._db.execute("SELECT made, gone FROM things WHERE kind = 'node'").fetchall()
        return float(sum((row["gone"] or self.clock.at) - row["made"] for row in rows)) / HOUR


@contextmanager
def sky(folder: Path, clock: Clock) -> Iterator[tuple[CloudWorld, dict[str, Any]]]:
    """The rehearsal cloud in this process, by that clock; and the document that declares it."""
    sys.path.insert(0, str(SITE))
    import cumulus  # type: ignore[import-not-found]

    cumulus.clock = clock
    world = CloudWorld(folder / "sky.db", clock=clock)
    cloud = Cloud(world, 0.0, 0.0, 0, 0.0)
    threading.Thread(target=cloud.serve_forever, daemon=True).start()
    host, port = cloud.server_address[:2]
    url = {"options": {"url": f"http://{host!s}:{port}"}}
    try:
        yield world, {"type": "backend", "name": "sky", "driver": "cumulus", "regions": ["sky-1"], **url}
    finally:
        cloud.shutdown()
        cloud.server_close()
        cumulus.clock = time.time
        sys.path.remove(str(SITE))


@contextmanager
def played(folder: Path, **given: Any) -> Iterator[Days]:
    """Play so many days in a folder; what came of them."""
    clock = Clock(BEGIN)
    project = Project(folder / "week")
    project.path.mkdir()
    with sky(folder, clock) as (world, backend):
        days = Days(project, clock, world, backend, **given)
        try:
            days.play()
            yield days
        finally:
            days.here.close()
            project.clean_up()
