"""A story of applies in which the state is restored from earlier times, in each possible way.

The test checks what exists: which tasks really ran, and which processes run.
"""

from __future__ import annotations

import json
import random
import shutil
from typing import Any

from tests.support.cli import Project, fleet, lines, processes, task, until, volume
from tests.support.postgres import USER, Server

WAYS = ("file", "push", "lost", "postgresql")
NAMES = ("aa", "bb", "cc")
SPIN = "while :; do sleep 0.1; done"


class Story:
    """One project, and its state as it was after each apply."""

    def __init__(self, project: Project, seed: int, way: str, server: Server | None = None) -> None:
        """`server` is for the way `postgresql` alone: there the state is in a database of it."""
        self.project, self.way, self.server = project, way, server
        self.chance = random.Random(seed)
        self.count = 0
        self.tasks: dict[str, tuple[int, bool]] = {}
        """Name → the version that is declared, and whether it runs on."""
        self.volumes: set[str] = set()
        self.backups: list[Any] = []
        self.orphaned = 0
        """How often something was left that the state did not know."""
        self.database = server.database() if server else ""
        self.env = server.environment if server else {}

    def run(self, *args: str, code: int | None = 0) -> Any:
        return self.project.run(*args, code=code, env=self.env)

    # ----------------------------------------------------------------------------------- the story

    def step(self) -> None:
        """Change something, apply it, and keep the state."""
        name = self.chance.choice(NAMES)
        if name in self.tasks and self.chance.random() < 0.2:
            del self.tasks[name]
        else:
            self.count += 1
            self.tasks[name] = (self.count, self.chance.random() < 0.4)
        if self.chance.random() < 0.4:
            self.volumes ^= {self.chance.choice(("vv", "ww"))}
        self.declare()
        self.run("apply", "--auto-approve")
        self.settled()
        self.backups.append(self.backup())

    def declare(self) -> None:
        """Write what is to be."""
        head: dict[str, Any] = {"type": "project", "name": "story"}
        if self.server:
            head["state"] = self.server.url(self.database)
        every = [
            task(
                name,
                f"echo $$ {name} {version} >> {self.project.path}/runs" + (f"\n{SPIN}" if runs_on else ""),
                resources={"cpu": 1},
            )
            for name, (version, runs_on) in sorted(self.tasks.items())
        ]
        gpu = fleet(resources={"cpu": 4, "memory": "1GB"})
        self.project.declare(head, gpu, *(volume(name) for name in sorted(self.volumes)), *every)

    def settled(self) -> None:
        """Wait until all has ended that ends by itself; tasks by their state."""
        short = {name for name, (_, runs_on) in self.tasks.items() if not runs_on}
        until(lambda: not any(self.states().get(name) in ("starting", "running") for name in short))

    def states(self) -> dict[str, str]:
        """Task → the state of its one rank."""
        found = self.run("status", "--json").json["tasks"]
        return {t["name"]: t["ranks"][0]["state"] for t in found if t["ranks"]}

    # ---------------------------------------------------------------------------------- restoring

    def backup(self) -> Any:
        """Save the present state, to be restored in this story's way."""
        here = self.project.path
        if self.way == "file":
            folder = here / "kept" / str(len(self.backups))
            folder.mkdir(parents=True)
            for file in (here / ".fleetform").glob("state.db*"):
                shutil.copy(file, folder)
            return folder
        if self.server:
            name = f"{self.database}_{len(self.backups)}"
            self.copy(self.database, name)
            return name
        return self.run("state", "pull").out

    def copy(self, source: str, target: str) -> None:
        """Make a database from another one, as `pg_restore` would of its dump."""
        assert self.server
        self.server.admin(f"DROP DATABASE IF EXISTS {target}")
        self.server.admin(f"CREATE DATABASE {target} TEMPLATE {source} OWNER {USER}")

    def restore(self) -> None:
        """Bring back a state of earlier; a lost one comes back thing by thing."""
        kept = self.chance.choice(self.backups)
        if self.server:
            self.copy(kept, self.database)
            return
        for old in (self.project.path / ".fleetform").glob("state.db*"):
            old.unlink()
        if self.way == "file":
            for file in kept.iterdir():
                shutil.copy(file, self.project.path / ".fleetform")
            return
        if self.way == "lost":
            empty: dict[str, Any] = {key: {} for key in ("generations", "nodes", "ranks")}
            empty |= {key: [] for key in ("intents", "records", "reserved_blocks")}
            kept = json.dumps(
                {**empty, "format_version": 2, "lineage": json.loads(kept)["lineage"], "serial": 1}
            )
        self.project.write("kept.json", kept)
        self.run("state", "push", "kept.json")
        if self.way == "lost":
            for address in self.orphans():
                if address.startswith(("node/", "volume/")):
                    self.run("state", "adopt", address)

    def orphans(self) -> list[str]:
        """The addresses of what the state does not know."""
        said = self.run("state", "adopt").out.splitlines()
        return [line.split()[0] for line in said if line.startswith("  ")]

    def check(self) -> None:
        """After a restore, change one task, apply twice, and look at what is there."""
        name = self.chance.choice(NAMES)
        self.count += 1
        self.tasks[name] = (self.count, False)
        self.declare()
        first = self.run("apply", "--auto-approve", code=None)
        left = self.orphans()
        self.known(left, first)
        if left:
            self.orphaned += 1
            self.run("destroy", "--orphans", "--auto-approve", code=None)
        second = self.run("apply", "--auto-approve", code=None)
        if "error[vanished]" in second.err:
            # Things of the old state were deleted after it, several at once: it asks whether they are gone.
            second = self.run("apply", "--auto-approve", "--accept-vanished")
        assert second.code == 0, second
        self.settled()
        plan = self.run("plan", "--json").json
        assert (plan["result"], plan["drift"]) == ("none", []), plan
        self.run("state", "check")
        self.known([])
        self.true()

    def true(self) -> None:
        """Check that what is reported as successful has run."""
        ran = {tuple(line.split()[1:]) for line in lines(self.project.path / "runs")}
        succeeded = {name for name, state in self.states().items() if state == "succeeded"}
        missing = {name for name in succeeded if (name, str(self.tasks[name][0])) not in ran}
        assert missing == set(), f"they did not run, and are said to have succeeded: {missing}"
        assert succeeded >= {name for name, (_, runs_on) in self.tasks.items() if not runs_on}

    def known(self, left: list[str], first: Any = None) -> None:
        """What runs is recorded or shown as an orphan, and runs once. After the `first` apply it need not be
        what is declared: that may have had no room.
        """
        ours = processes(self.project.path)  # pids come again
        alive = [
            (name, int(version))
            for pid, name, version in (line.split() for line in lines(self.project.path / "runs"))
            if int(pid) in ours
        ]
        running = {name for name, state in self.states().items() if state == "running"}
        strange = [
            (name, version)
            for name, version in alive
            if f"rank/{name}-0" not in left
            and (name not in running or (first is None and self.tasks[name][0] != version))
        ]
        assert strange == [], f"it runs, and nobody knows: {strange} of {alive}, {running}, {left}, {first}"
        assert len(set(alive)) == len(alive)


def tell(
    project: Project, seed: int, way: str, applies: int, restores: int, server: Server | None = None
) -> Story:
    """Tell a story with so many applies, and bring the state back at so many points of it."""
    story = Story(project, seed, way, server)
    points = [story.chance.randrange(2, applies) for _ in range(restores)]
    for index in range(applies):
        story.step()
        for _ in range(points.count(index)):
            story.restore()
            story.check()
    return story
