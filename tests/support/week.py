"""Days of a project in fast motion: tasks come and end, nodes are lost, a loop does its rounds.

The loop and its state are real; its clock is a value. Most nodes are in a `Place`: the rehearsal cloud of
`places`, which runs in this process by the same clock, or the machines of `hosts.days`. A fleet of the
`local` backend runs real processes, which wait for a file. All events follow from a seed.
"""

from __future__ import annotations

import math
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from declarative.reconcile.loop import Round
from tests.support.cli import Project, fleet, task
from tests.support.places import HOUR, IDLE, Place
from tests.support.rounds import Clock, Here

DAY = 24 * HOUR
BERLIN = ZoneInfo("Europe/Berlin")
BEGIN = datetime(2026, 3, 29, tzinfo=UTC).timestamp()
"""A Sunday on which Berlin's clocks change; the month changes in the week after it."""
UNREACHABLE = 600.0
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

    def document(self, folder: Path, cpu: int, command: str) -> dict[str, Any]:
        """As it is declared, where nodes have so many CPUs; `command` is that of a task that is not local."""
        retry = {"on_events": ["no-capacity", "interruption", "error"], "duration": "24h"}
        more: dict[str, Any] = {"retry": retry if self.retry else {"on_events": ["no-capacity"]}}
        if self.local:
            command = f"while [ ! -e {folder}/{self.name} ]; do sleep 0.2; done"
            return task(self.name, command, fleets=["desk"], resources={"cpu": 1}, **more)
        want = {"cpu": cpu if self.ranks > 1 else cpu // 2}
        return task(self.name, command, fleets=["work"], nodes=self.ranks, resources=want, **more)


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
        place: Place,
        *,
        days: float,
        a_day: int,
        interval: float,
        seed: int,
    ) -> None:
        self.project, self.interval, self.days = project, interval, days
        self.clock, self.place = clock, place
        self.here = Here(project.path, clock)
        self.chance = random.Random(seed)
        self.jobs = jobs(days, a_day, self.chance)
        self.by_name = {job.name: job for job in self.jobs}
        self.declared: list[Job] = []
        self.faults: list[str] = []
        self.ran: set[str] = set()
        """Attempts of the task that has a schedule."""
        self.failed: set[tuple[str, str]] = set()
        """Tasks and generations with a failed rank."""
        self.local_done: dict[str, float] = {}
        self.errors: Counter[str] = Counter()
        self.acted: Counter[str] = Counter()
        """What was done with nodes: `create:node/work-0`."""
        self.last: Round | None = None
        self.happened = 0
        """How often a node was lost."""
        any_time = [BEGIN + self.chance.uniform(HOUR, days * DAY) for _ in range(round(days * LOST_A_DAY))]
        at_once = [BEGIN + DAY * day + 9 * HOUR for day in range(math.ceil(days))]
        self.losses = sorted(
            [(at, "") for at in any_time] + [(at + interval * n, "day") for at in at_once for n in range(5)]
        )
        """When, and in which fleet: each morning more of `day` than may be replaced in an hour."""

    # ---------------------------------------------------------------------------- what is declared

    def declare(self) -> None:
        """Write the project's file anew."""
        most, place = self.place.most_an_hour, self.place
        rules = {
            "interval": f"{round(self.interval)}s",
            "budgets": [{"nodes": REPLACED_AN_HOUR, "per": "1h", "reasons": ["replace-lost"]}],
            "replacements_per_day": 100,
        }
        night = {
            "fleets": ["always" if place.launches else "work"],
            "resources": {"cpu": 1},
            "schedule": {"start": "30 2 * * *", "timezone": "Europe/Berlin"},
        }
        self.project.declare(
            {
                "type": "project",
                "name": "week",
                "limits": {"cost_per_hour": most, "cost_per_month": most * 730},
                "reconcile": rules,
            },
            *place.documents(),
            fleet("desk", nodes="0..2", backends=["local"], idle_duration=round(IDLE)),
            task("nightly", place.command, **night),
            *(job.document(self.project.path, place.cpu, place.command) for job in self.declared),
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
        """Attempts that took as long as they had to."""
        for attempt in self.place.attempts:
            if attempt.ended is not None:
                continue
            name, _, number = attempt.rank.rpartition("-")
            generation = attempt.generation
            if name == "nightly":
                self.ran.add(attempt.name)
                seconds, fails = 40 * 60.0, False
            else:
                job = self.by_name[name]
                if generation not in job.fate:
                    job.fate[generation] = sum(job.fate.values()) < job.fails
                seconds, fails = job.seconds, job.fate[generation] and number == "0"
            if attempt.started + (seconds * 0.7 if fails else seconds) <= self.clock.at:
                self.place.end(attempt, 3 if fails else 0)
                if fails:
                    self.failed.add((name, generation))

    def _node_lost(self) -> None:
        """One at most in each round: if several are gone at once, a loop asks a person."""
        if not self.losses or self.losses[0][0] > self.clock.at:
            return
        fleet = self.losses[0][1]
        there = [node for node in self.place.losable() if node.name.startswith(fleet)]
        if there or fleet:
            self.losses.pop(0)
        if not there:
            return
        node, now = self.chance.choice(there), self.clock.at
        on_it = [a for a in self.place.attempts if a.node == node.key and a.ended in (None, now)]
        running = [a for a in on_it if a.ended is None]
        node.lost = now
        self.happened += 1
        unseen = self.place.lose(node, self.chance)
        for attempt in on_it if unseen else running:
            job = self.by_name.get(attempt.rank.rpartition("-")[0])
            if job:
                job.lost = True

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
        self.place.tick()
        self._ranks_end()
        self._node_lost()
        self._local_ends()
        self._come_and_go()
        found = self.last = self.here.step()
        self.place.look()
        for error in found.errors:
            self.errors[error.code] += 1
        for result in found.results:
            if result.outcome != "done":
                self.errors[f"{result.id.partition('/')[0]}: {result.error}"] += 1
            elif ":node/" in result.id:
                self.acted[result.id] += 1
        self._note_ends(found)
        self._check_nodes(self._check_ranks())

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

    def _check_ranks(self) -> set[str]:
        """None runs twice at once, or on after a failure of its gang; the nodes that have some."""
        running = [attempt for attempt in self.place.attempts if attempt.ended is None]
        for rank, times in Counter(attempt.rank for attempt in running).items():
            if times > 1:
                self._wrong(f"{rank} runs {times} times at once")
        for attempt in running:
            if (attempt.rank.rpartition("-")[0], attempt.generation) in self.failed:
                self._wrong(f"{attempt.name} runs on after a failure of its gang")
        return {attempt.node for attempt in running}

    def _check_nodes(self, busy: set[str]) -> None:
        """Money, and idle nodes."""
        now = self.clock.at
        nodes = [node for node in self.place.nodes.values() if node.gone is None]
        if (cost := sum(node.price for node in nodes)) > self.place.most_an_hour:
            self._wrong(f"{len(nodes)} nodes cost {cost:g} USD an hour")
        for node in nodes if self.place.launches else ():
            if node.lost is not None:
                if now - node.lost > UNREACHABLE + 2 * self.interval:
                    self._wrong(f"{node.name} was lost {now - node.lost:.0f} s ago, and is there")
            elif node.name.startswith("work") and node.key not in busy:
                ends = [a.ended for a in self.place.attempts if a.node == node.key and a.ended is not None]
                since = max([node.made, *ends])
                if now - since > IDLE + self.interval:
                    self._wrong(f"{node.name} is idle for {now - since:.0f} s")

    def _wrong(self, what: str) -> None:
        when = datetime.fromtimestamp(self.clock.at, UTC).strftime("%a %H:%M:%S")
        self.faults.append(f"{when} {what}")

    def check(self) -> None:
        """The checks that are possible only at the end."""
        for job in self.jobs:
            if job.ended is None:
                self._wrong(f"{job.name} has not ended: {job}")
            attempts, most = len(job.fate), 1 + (job.fails if job.retry else 0)
            if not job.local and not job.lost and attempts != most:
                self._wrong(f"{job.name} had {attempts} attempts, not {most}")
        if left := [found for found in self.place.running() if "nightly-" not in found]:
            self._wrong(f"still running: {left}")
        nights = self._times(2, 30)
        if len(self.ran) != nights:
            self._wrong(f"nightly ran {len(self.ran)} times, not {nights}")
        spent, slack = self._spent(), 0.02 + self.happened * self.interval / HOUR
        if not -0.01 <= spent - self.cost <= slack:
            self._wrong(f"{spent:.2f} USD were counted, and {self.cost:.2f} had to be paid")
        self._check_made()
        self._check_budget()

    def _check_made(self) -> None:
        """Nothing was made for nothing, and nothing more often than it had to be."""
        nodes = self.place.nodes.values()
        if not self.place.launches:
            acted = {f"create:node/{node.name}": 1 for node in nodes}
            mine = {what: times for what, times in self.acted.items() if "/desk-" not in what}
            if mine != acted:
                self._wrong(f"done with hosts: {mine}")
            return
        used = {attempt.node for attempt in self.place.attempts}
        for node in nodes:
            if node.name.startswith("work") and node.key not in used and node.lost is None:
                self._wrong(f"{node.name} ({node.key}) was made for nothing after {_hours(node.made)} h")
        mornings = self._times(8, 0)
        lost = Counter(node.name for node in nodes if node.lost is not None)
        for name, times in Counter(node.name for node in nodes).items():
            most = {"always": 1, "day": mornings}.get(name.rpartition("-")[0])
            if most is not None and times - lost[name] > most:
                kept = [node for node in nodes if node.name == name and node.lost is None]
                shown = ", ".join(f"{node.key} {_hours(node.made)}-{_hours(node.gone)}" for node in kept)
                self._wrong(f"{name} was made {times} times, and lost {lost[name]} times; not lost: {shown}")

    def _check_budget(self) -> None:
        """Not too many are replaced in an hour. Those of `work` are made for tasks, and replace none."""
        nodes = sorted(self.place.nodes.values(), key=lambda node: node.made)
        again, lost = [], set()
        for node in nodes:
            if node.name in lost:
                again.append(node.made)
            lost.discard(node.name)
            if node.lost is not None and not node.name.startswith("work"):
                lost.add(node.name)
        for first, last in zip(again, again[REPLACED_AN_HOUR:], strict=False):
            if last - first < HOUR:
                self._wrong(f"more than {REPLACED_AN_HOUR} were replaced in {last - first:.0f} s")

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
    def cost(self) -> float:
        """USD that had to be paid."""
        nodes = self.place.nodes.values()
        return sum(n.price * ((n.gone or self.clock.at) - n.made) for n in nodes) / HOUR


def _hours(at: float | None) -> str:
    """Since the beginning."""
    return "" if at is None else f"{(at - BEGIN) / HOUR:.2f}"


@contextmanager
def played(
    folder: Path, where: Callable[[Path, Clock], AbstractContextManager[tuple[Place, Project]]], **given: Any
) -> Iterator[Days]:
    """Play so many days in a folder, in the place that `where` makes; returns the result."""
    clock = Clock(BEGIN)
    with where(folder, clock) as (place, project):
        days = Days(project, clock, place, **given)
        try:
            days.play()
            yield days
        finally:
            days.here.close()
            project.clean_up()
