"""What it costs to ask before each call who may write, and to tell nodes: as a share of an apply's time.

    python benchmarks/fence.py [--rounds 10] [--volumes 100]

An apply of volumes and of nodes with ranks on `local`, as it is and with a fence that asks nobody and tells
nodes nothing, in turn and in another order each time. CPU seconds of the command and of all that it waited
for: they say less about what else the machine does than the time that passed. The ratio of the medians, and
of each pair the middle half.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from declarative import cli
from declarative.store import Writer
from tests.cli import Project, fleet, task, volume
from tests.killing import warm_up


def spent(project: Project, *, fenced: bool) -> float:
    """CPU seconds of one apply, in a fork of this process: the imports are done."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pid = os.fork()
    if pid == 0:
        os.chdir(project.path)
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        sys.argv = ["fleetform", "apply", "--auto-approve"]
        if not fenced:
            Writer.fence = lambda _: None  # type: ignore[assignment,method-assign,return-value]
        code: object = 1
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        finally:
            os._exit(int(bool(code)))
    if os.waitpid(pid, 0)[1] != 0:
        raise SystemExit("an apply failed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def one(count: int, *, fenced: bool) -> float:
    """An apply from nothing, in a project of its own."""
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.declare(fleet(nodes=2), volume(count=count), *(task(f"job{i}", "true") for i in range(4)))
        try:
            return spent(project, fenced=fenced)
        finally:
            project.clean_up()


def main() -> None:
    """Print the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--volumes", type=int, default=100)
    chosen = parser.parse_args()
    warm_up()
    found: dict[bool, list[float]] = {True: [], False: []}
    one(chosen.volumes, fenced=True)
    for turn in range(chosen.rounds):
        for fenced in (True, False) if turn % 2 else (False, True):
            found[fenced].append(one(chosen.volumes, fenced=fenced))
    ratios = [a / b for a, b in zip(found[True], found[False], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    whole = statistics.median(found[True]) / statistics.median(found[False])
    print(f"with {statistics.median(found[True]):.2f} s, without {statistics.median(found[False]):.2f} s CPU")
    print(f"ratio of the medians {whole:.3f}, pairs {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
