"""Kills the command at each of its writes in turn, and runs it again: a program that tests of crashes start.

    crash.py DIR apply|destroy|cleanup write|begin

Children are forked from here, so that what takes long, the imports, is done once.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from declarative import cli
from declarative.store import Writer
from declarative.store.commit_queue import CommitQueue
from tests.support.cli import clean_env, fleet, lines, task, volume
from tests.support.forked import warm_up

GANG = """
touch {up}-$FLEETFORM_NODE_RANK
while [ ! -e {up}-0 ] || [ ! -e {up}-1 ]; do sleep 0.02; done
echo $FLEETFORM_NODE_RANK >> {runs}
"""
MOST = 60


def die_at(step: int, when: str) -> None:
    """Let this process kill itself: `write`: before its write number `step`; `begin`: after that intent.

    So a backend's call is cut off before it is made and after it was made, and everything in between.
    """
    if when == "write":
        numbers = itertools.count(1)
        Writer._write = _counted(Writer._write, step, numbers, before=True)  # type: ignore[method-assign]
        CommitQueue.leave = _counted(CommitQueue.leave, step, numbers, before=True)  # type: ignore[method-assign]
    else:
        Writer.begin = _counted(Writer.begin, step, itertools.count(1), before=False)  # type: ignore[method-assign]


def _counted(real: Any, step: int, numbers: Iterator[int], *, before: bool) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if next(numbers) != step:
            return real(*args, **kwargs)
        if not before:
            real(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    return call


def fleetform(project: Path, *args: str, step: int = 0, when: str = "") -> int:
    """Run a command in a child; its exit code, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        os.chdir(project)
        os.environ.clear()
        os.environ.update(clean_env())
        with (project / "output").open("a") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        sys.argv = ["fleetform", *args]
        if step:
            die_at(step, when)
        try:
            cli.main()
        except SystemExit as error:
            sys.stdout.flush()
            os._exit(error.code if isinstance(error.code, int) else 1)
        os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def declare(project: Path, **fields: Any) -> None:
    """A gang of two on one node, each with a volume, that ends once both run."""
    documents = [
        fleet(nodes=1),
        volume("data", count=2, **fields),
        task(
            "job",
            GANG.format(up=project / "up", runs=project / "runs"),
            nodes=2,
            placement="any",
            resources={"cpu": 1},
            volumes=["data-${{ node_rank }}:/data"],
        ),
    ]
    (project / "main.yaml").write_text("---\n".join(json.dumps(d) + "\n" for d in documents))


def crash_apply(project: Path, step: int, when: str) -> dict[str, Any] | None:
    """Killed there, then run again: everything is there once. None if it was not killed any more."""
    killed = fleetform(project, "apply", "--auto-approve", "--parallelism=1", step=step, when=when)
    if killed == 0:
        return None
    # Nothing of the started call is recorded: a look finds it all the same, and `logs` knows no earlier task.
    looked = [fleetform(project, "status"), fleetform(project, "logs", "job") in {0, 1}]
    again = fleetform(project, "apply", "--auto-approve", "--wait")
    return {
        "killed": killed,
        "looked": looked,
        "again": again,
        "plan": fleetform(project, "plan", "--detailed-exitcode"),
        "check": fleetform(project, "state", "check"),
        "runs": sorted(lines(project / "runs")),
    }


def crash_destroy(project: Path, step: int, when: str) -> dict[str, Any] | None:
    """The same for `destroy`: nothing is left."""
    assert fleetform(project, "apply", "--auto-approve", "--wait") == 0
    killed = fleetform(project, "destroy", "--auto-approve", "--parallelism=1", step=step, when=when)
    if killed == 0:
        return None
    return {
        "killed": killed,
        "again": fleetform(project, "destroy", "--auto-approve"),
        "check": fleetform(project, "state", "check"),
        "left": [str(p) for p in (project / ".fleetform" / "local").rglob("*") if p.is_file()],
    }


def crash_cleanup(project: Path, step: int, when: str) -> dict[str, Any] | None:
    """The same for volumes whose time has come: they are gone, and stay so."""
    declare(project, auto_cleanup_duration="0s")
    assert fleetform(project, "apply", "--auto-approve", "--wait") == 0
    killed = fleetform(project, "apply", "--auto-approve", "--parallelism=1", step=step, when=when)
    if killed == 0:
        return None
    return {
        "killed": killed,
        "again": fleetform(project, "apply", "--auto-approve"),
        "plan": fleetform(project, "plan", "--detailed-exitcode"),
        "check": fleetform(project, "state", "check"),
        "left": [str(p) for p in (project / ".fleetform" / "local" / "volumes").glob("data-*")],
    }


def main() -> None:
    """One line of JSON for each step, to the last one there is."""
    warm_up()
    root, command, when = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    crash = {"apply": crash_apply, "destroy": crash_destroy, "cleanup": crash_cleanup}[command]
    for step in range(1, MOST):
        project = root / f"{step}"
        project.mkdir()
        declare(project)
        found = crash(project, step, when)
        if found is None:
            return
        output = (project / "output").read_text()
        sys.stdout.write(json.dumps({"step": step, **found, "output": output}) + "\n")
        sys.stdout.flush()
        shutil.rmtree(project)
    raise SystemExit("it never ended")


if __name__ == "__main__":
    main()
