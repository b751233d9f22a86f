"""Plays a schedule of losses while `apply --wait` runs, and reports what is wrong afterwards."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.providers.ec2.run import SECRETS
from tests.providers.ssh import journal
from tests.providers.ssh.grounds import Ec2, Ground, Hosts
from tests.providers.ssh.losing import Loss, Schedule
from tests.providers.ssh.machines import Machine
from tests.support.cli import PATIENCE, clean_env, task

LONGEST = 900.0
"""Seconds after which a command that still runs is stuck."""
IMPATIENT = """
import declarative.model.status
declarative.model.status.START_UP_LIMIT = {start_up}
from declarative.cli import main
main()
"""
START_UP = 15.0
"""Seconds in place of the ten minutes in which a node has to come up."""


@dataclass
class Played:
    """The result of a schedule."""

    schedule: Schedule
    faults: list[str] = field(default_factory=list)
    missed: int = 0
    """Losses whose moment did not come."""
    seconds: float = 0.0
    said: str = ""


def play(schedule: Schedule, folder: Path, limits: Mapping[str, Any]) -> Played:
    """Play it in an empty folder; `limits` are fields of the fleet."""
    began = time.monotonic()
    ground: Ground = Ec2(schedule, folder) if schedule.where == "ec2" else Hosts(schedule, folder)
    with ground:
        out = _Play(ground, schedule).all(limits)
        out.faults += [f"the ground itself: {fault}" for fault in ground.broken]
    out.seconds = time.monotonic() - began
    return out


class _Play:
    def __init__(self, ground: Ground, schedule: Schedule) -> None:
        self.ground, self.schedule = ground, schedule
        self.chance = random.Random(f"victims {schedule.seed}")
        self.out = Played(schedule)
        self.log = ground.project.path / "said"
        self.tasks = [f"gang-{i}" for i in range(len(schedule.gangs))]

    def all(self, limits: Mapping[str, Any]) -> Played:
        """From the first apply to after `destroy`."""
        self.ground.project.declare(*self.ground.documents(**limits), *self._gangs())
        code = self._apply(self.schedule.losses)
        if self.schedule.listing:
            self._was_stopped(code)
            self.ground.mend()
            code = self._apply(())
        if code != 0:
            self._fault(f"`apply --wait` gave {code if code is not None else 'nothing and did not end'}")
        self._ended_well()
        self.ground.mend()
        self._destroyed()
        self.out.said = self.log.read_text()
        return self.out

    def _fault(self, text: str) -> None:
        self.out.faults.append(text)

    def _gangs(self) -> list[dict[str, Any]]:
        gangs = []
        for i, ranks in enumerate(self.schedule.gangs):
            volumes = [f"data-{i}-${{{{ node_rank }}}}:/data"] if self.schedule.volumes else []
            text = journal.script(12, master=self.schedule.master)
            more = {"stop_criteria": "master-done"} if self.schedule.master else {}
            mounts = {"volumes": volumes} if volumes else {}
            gangs.append(
                task(f"gang-{i}", text, nodes=ranks, retry=True, **mounts, **more) | {"stop_duration": 5}
            )
        return gangs

    def _command(self, *args: str) -> subprocess.Popen[Any]:
        """As the installed command, only that a node may take seconds to come up and not minutes."""
        program = IMPATIENT.format(start_up=START_UP)
        with self.log.open("ab") as said:
            said.write(f"--- {' '.join(args)}\n".encode())
            said.flush()
            return subprocess.Popen(
                [sys.executable, "-c", program, *args],
                cwd=self.ground.project.path,
                env=clean_env(PYTHONPATH=os.pathsep.join(p for p in sys.path if p), **SECRETS),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def _apply(self, losses: Sequence[Loss]) -> int | None:
        process = self._command("apply", "--auto-approve", "--wait")
        self.ground.project.started.append(process)
        end = time.monotonic() + LONGEST
        left, since = list(losses), time.time()
        while process.poll() is None and time.monotonic() < end:
            self.ground.bring_back()
            if left and (there := self._come(left[0], since)):
                self._lose(left.pop(0), there)
                since = time.time()
            time.sleep(0.1)
        self.out.missed += len(left)
        if process.poll() is None:
            process.kill()
            process.wait()
            return None
        return process.returncode

    def _come(self, loss: Loss, since: float) -> list[Machine]:
        """Those that are in its phase, once there are some; all instances, where they boot."""
        there = self.ground.at(loss.phase, since)
        first = loss is self.schedule.losses[0]
        if loss.phase == "booting" and first and len(there) < sum(self.schedule.gangs):
            return []
        return there

    def _lose(self, loss: Loss, there: list[Machine]) -> None:
        if loss.how == "listing":
            self.made = set(self.ground.instances())
            self.ground.empty_listing()
            self.ground.lose(there[0], Loss(phase=loss.phase, how="reboot", share="one", back=0.0))
            return
        used = [m for m in self.ground.used() if m not in there]
        for some in (there, used):
            self.chance.shuffle(some)
        victims = [*there, *used][: loss.count(sum(self.schedule.gangs))]
        with self.log.open("a") as said:
            said.write(f"--- {time.strftime('%H:%M:%S')} {loss}: {', '.join(m.name for m in victims)}\n")
        for machine in victims:
            self.ground.lose(machine, loss)
        if loss.phase == "booting":
            self.ground.boot()

    def _was_stopped(self, code: int | None) -> None:
        if self.out.missed:
            return
        if code != 1 or "gone at once" not in self.log.read_text():
            self._fault(f"an empty listing did not stop the run: exit code {code}")
        if set(self.ground.instances()) != self.made:
            self._fault("instances were made or ended by an empty listing")

    def _ended_well(self) -> None:
        status = {t["name"]: t for t in self.ground.project.status()["tasks"]}
        lines = self.ground.every_line()
        found = journal.runs(lines)
        self.out.faults += journal.twice(found)
        for name, ranks in zip(self.tasks, self.schedule.gangs, strict=True):
            state = status.get(name, {}).get("state")
            if state != "succeeded":
                self._fault(f"task/{name} is {state}")
            for rank in range(1 if self.schedule.master else ranks):
                if not any(run.rank == f"{name}-{rank}" and run.ended for run in found):
                    self._fault(f"rank/{name}-{rank} never came to its end on a machine")
        if unknown := self.ground.unknown():
            self._fault(f"instances that no node is: {', '.join(unknown)}")

    def _destroyed(self) -> None:
        process = self._command("destroy", "--auto-approve")
        self.ground.project.started.append(process)
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = None
        if code != 0:
            self._fault(f"`destroy` gave {code}")
        if costs := self.ground.costs():
            self._fault(f"still paid for after `destroy`: {', '.join(costs)}")
        end = time.monotonic() + 10
        while (left := self.ground.left()) and time.monotonic() < end:
            time.sleep(0.2)
        if left:
            self._fault(f"still runs after `destroy`: {', '.join(left)}")
