"""People edit a project, again and again, and much goes wrong meanwhile: what is lost, runs twice or is left.

    python benchmarks/edits.py                         # 1,000 edits, in stories of 25
    python benchmarks/edits.py --seed 4711 --edits 25  # that story again

Tasks, volumes and fleets are added, changed, renamed, taken away and brought back; files hold typing errors.
Half of the applies are harmed: killed at a step of the journal or at a chance instant, asked to stop, or a
rank is killed by hand. Then it is applied once more, and what is there is read from outside: processes, what
ranks wrote down of themselves, folders and the data in them. Exit code 1 if there were faults.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import secrets
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: then its folder is first on the path instead of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from tests.providers.ssh import journal
from tests.support.cli import Project, fleet, kill_ranks, processes, task, until, volume
from tests.support.forked import warm_up
from tests.support.killing import Kill, fork

NAMES = ("aa", "bb", "cc", "dd")
VOLUMES = ("data", "logs", "more")
STORY = 25
TYPOS = (
    "type: fleet\nname: other\nnodes: -1\n",
    "type: task\nname: zz\nnodez: 2\ncommands: [x]\n",
    "type: [\n",
    "type: task\nname: zz\nfleets: [nowhere]\ncommands: ['true']\n",
)


class Story:
    """One project: what is declared, and what came of it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.project, self.chance = Project(folder), random.Random(f"edits {seed}")
        self.version = self.number = 0
        self.tasks: dict[str, dict[str, Any]] = {}
        self.volumes: dict[str, int] = {}
        self.fleet: dict[str, Any] = {"nodes": "0..8"}
        self.past: list[Any] = []
        self.marks: dict[str, str] = {}
        self.broken: set[tuple[str, int]] = set()
        self.faults: list[str] = []
        self.count: Counter[str] = Counter()

    def edit(self) -> None:
        """One of the edits, by chance."""
        self.past.append((dict(self.tasks), dict(self.volumes), dict(self.fleet)))
        edits: list[Callable[[], None]] = [self._task, self._task, self._scale, self._drop, self._rename]
        edits += [self._volume, self._grow, self._fleet, self._undo, self._typo]
        chosen = self.chance.choice(edits)
        self.count[chosen.__name__.strip("_")] += 1
        self.number += 1
        chosen()
        self._write()

    def _task(self) -> None:
        """A new task, or another command, with or without a volume."""
        name = self.chance.choice(NAMES)
        held = {t["volume"] for n, t in self.tasks.items() if n != name}
        free = [v for v in self.volumes if v not in held]
        self.version += 1
        self.tasks[name] = {
            "version": self.version,
            "nodes": self.tasks.get(name, {"nodes": 1})["nodes"],
            "on": self.chance.random() < 0.5,
            "volume": self.chance.choice([None, *free]),
        }
        if self.tasks[name]["volume"]:
            self.tasks[name]["nodes"] = 1

    def _some(self) -> list[str]:
        return self.chance.sample(sorted(self.tasks), min(1, len(self.tasks)))

    def _scale(self) -> None:
        for name in self._some():
            if not self.tasks[name]["volume"]:
                self.tasks[name] = self.tasks[name] | {"nodes": self.chance.choice((1, 2, 3))}

    def _drop(self) -> None:
        for name in self._some():
            del self.tasks[name]

    def _rename(self) -> None:
        for name in self._some():
            self.tasks[self.chance.choice(NAMES)] = self.tasks.pop(name)

    def _volume(self) -> None:
        name = self.chance.choice(VOLUMES)
        if name not in self.volumes:
            self.volumes[name] = 1
        elif all(t["volume"] != name for t in self.tasks.values()):
            del self.volumes[name]

    def _grow(self) -> None:
        self.volumes = {n: size + self.chance.choice((0, 1)) for n, size in self.volumes.items()}

    def _fleet(self) -> None:
        nodes, team = self.chance.choice(("0..8", "1..8", "3..9")), self.chance.choice("ab")
        self.fleet = {"nodes": nodes, "tags": {"team": team}}

    def _undo(self) -> None:
        """As it was some edits ago; what has grown does not shrink."""
        self.tasks, volumes, self.fleet = (dict(x) for x in self.chance.choice(self.past))
        self.volumes = {n: max(size, self.volumes.get(n, 0)) for n, size in volumes.items()}

    def _typo(self) -> None:
        """Nothing is done, and the file is mended."""
        bad = self.project.write("bad.yaml", self.chance.choice(TYPOS))
        self.must("apply", "--auto-approve", code=1)
        bad.unlink()

    def _write(self) -> None:
        tasks = [self._one(name, **words) for name, words in self.tasks.items()]
        volumes = [volume(n, size=f"{size}GB") for n, size in self.volumes.items()]
        documents = [fleet(**self.fleet), *volumes, *tasks]
        self.chance.shuffle(documents)
        self.project.declare(*documents)

    def _one(self, name: str, version: int, nodes: int, volume: str | None, *, on: bool) -> dict[str, Any]:
        noted = journal.script(100_000 if on else 1, master=False)
        noted = noted.replace(journal.FILE, str(self.project.path / "journal"))
        said = f"FLEETFORM_TASK_NAME=$FLEETFORM_TASK_NAME.v{version}"
        more = {"volumes": [f"{volume}:/data"]} if volume else {}
        return task(name, f"{said}\n{noted}", nodes=nodes, exclusive=False, resources={"cpu": 1}, **more)

    def harm(self) -> None:
        """In half of the cases, before the apply that has to succeed."""
        kind = self.chance.choice(("finish", "begin", "write", "time", "term", "rank", *[None] * 6))
        if kind is None:
            return
        self.count[f"harm: {kind}"] += 1
        if kind == "rank":
            alive = self._alive()
            for run in self.chance.sample(alive, min(1, len(alive))):
                with suppress(ProcessLookupError):
                    os.kill(run.pid, signal.SIGKILL)
                self.broken.add(_named(run))
            return
        step = self.chance.randrange(1, 12)
        seconds = self.chance.uniform(0.02, 1.5)
        signals = (signal.SIGTERM,) if kind == "term" else ()
        kill = Kill("finish" if kind == "term" else kind, step, seconds, signals)
        code = self.run("apply", "--auto-approve", kill=kill)
        if code not in (0, -signal.SIGKILL, 130):
            self._fault(f"an apply that was cut short ({kill}) gave {code}")

    def run(self, *args: str, kill: Kill | None = None) -> int:
        """A command; its exit code."""
        return fork(self.project.path, *args, kill=kill)

    def must(self, *args: str, code: int = 0) -> None:
        """A command that has to end like this."""
        if (found := self.run(*args)) != code:
            said = (self.project.path / "output").read_text()[-1500:]
            self._fault(f"{args} gave {found}: {said}")

    def _fault(self, text: str) -> None:
        self.faults.append(f"edit {self.number}: {text}")

    def _runs(self) -> list[journal.Run]:
        file = self.project.path / "journal"
        return journal.runs(journal.read("here", file.read_text() if file.exists() else ""))

    def _alive(self) -> list[journal.Run]:
        ours = processes(self.project.path)
        return [run for run in self._runs() if run.pid in ours and not run.ended]

    def _whole(self) -> bool:
        """Whether every rank that is declared has run, or runs, and nothing else runs."""
        wanted = {(f"{n}-{r}", t["version"]) for n, t in self.tasks.items() for r in range(t["nodes"])}
        on = {(f"{n}-{r}", t["version"]) for n, t in self.tasks.items() if t["on"] for r in range(t["nodes"])}
        gangs = {(name.rpartition("-")[0], version) for name, version in self.broken}
        fine = {(n, v) for n, v in wanted if (n.rpartition("-")[0], v) in gangs}
        alive = [_named(run) for run in self._alive()]
        ran = {_named(run) for run in self._runs()}
        return len({*alive}) == len(alive) and {*alive} | fine == on | fine and wanted <= ran | fine

    def check(self) -> None:
        """Apply once more, and hold what is there against what is declared."""
        self.must("apply", "--auto-approve")
        self.must("state", "check")
        with suppress(AssertionError):
            until(self._whole)
        if not self._whole():
            alive = [_named(run) for run in self._alive()]
            self._fault(f"alive {alive}, declared {self.tasks}")
        self.must("plan", "--detailed-exitcode")
        self.faults += journal.twice([replace(r, rank=_named(r)[0]) for r in self._runs()])
        there = {p.name for p in (self.project.local / "volumes").glob("[!.]*")}
        if there != {*self.volumes}:
            self._fault(f"volumes {there}, declared {sorted(self.volumes)}")
        self.marks = {name: mark for name, mark in self.marks.items() if name in self.volumes}
        for name in self.volumes:
            file = self.project.data(name) / "mark"
            if name in self.marks and (not file.exists() or file.read_text() != self.marks[name]):
                self._fault(f"volume/{name} has lost its data")
            self.marks[name] = secrets.token_hex(4)
            file.write_text(self.marks[name])

    def end(self) -> None:
        """Nothing is left after `destroy`."""
        self.must("destroy", "--auto-approve")
        with suppress(AssertionError):
            until(lambda: not processes(self.project.path))
        left = [*processes(self.project.path).items(), *self.project.local.glob("*/[!.]*")]
        if left:
            self._fault(f"left after destroy: {left}")


def _named(run: journal.Run) -> tuple[str, int]:
    """Rank and version."""
    found = re.fullmatch(r"(.*)\.v(\d+)(-\d+)", run.rank)
    assert found
    return found[1] + found[3], int(found[2])


def main() -> None:
    """Tell stories, and count."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--edits", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9), help="the first story's")
    given = parser.parse_args()
    warm_up()
    count, faulty = Counter[str](), 0
    for seed in range(given.seed, given.seed + -(-given.edits // STORY)):
        left = min(STORY, given.edits - STORY * (seed - given.seed))
        with tempfile.TemporaryDirectory() as name:
            story = Story(Path(name), seed)
            try:
                for _ in range(left):
                    story.edit()
                    story.harm()
                    story.check()
                story.end()
            finally:
                kill_ranks(Path(name))
        count += story.count
        faulty += bool(story.faults)
        print(f"{'FAULT' if story.faults else 'ok':7}{seed}", *story.faults, sep="\n    ", flush=True)
    print(f"{given.edits} edits, {dict(count)}; {faulty} stories with faults")
    raise SystemExit(1 if faulty else 0)


if __name__ == "__main__":
    main()
