"""What the fence and the seal cost, as shares of an apply's time.

    python benchmarks/fence.py [--rounds 10] [--volumes 100]

The fence: each call asks first who may write, and nodes are told. The seal: a digest of all that is
recorded is noted and compared. An apply of volumes and of nodes with ranks on `local`, as it is, with a
fence that asks nobody and tells nodes nothing, and without a seal, each time in another order. CPU
seconds of the command and of all that it waited for: they say less about what else the machine does than
the time that passed. The ratio of the medians, and of each pair the middle half.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from declarative import cli
from declarative.store import Writer
from tests.support.cli import Project, fleet, task, volume
from tests.support.forked import warm_up


def no_fence() -> None:
    """Whoever asks may write, and has no number."""
    Writer.fence = lambda _: None  # type: ignore[assignment,method-assign,return-value]


def no_seal() -> None:
    """Nothing is sealed, so nothing is compared."""
    Writer.seal = lambda _: None  # type: ignore[assignment,method-assign]


WITHOUT: dict[str, Callable[[], None]] = {"": lambda: None, "fence": no_fence, "seal": no_seal}


def spent(project: Project, without: str) -> float:
    """CPU seconds of one apply, in a fork of this process: the imports are done."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    pid = os.fork()
    if pid == 0:
        os.chdir(project.path)
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        sys.argv = ["fleetform", "apply", "--auto-approve"]
        WITHOUT[without]()
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


def one(count: int, without: str) -> float:
    """An apply from nothing, in a project of its own."""
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.declare(fleet(nodes=2), volume(count=count), *(task(f"job{i}", "true") for i in range(4)))
        try:
            return spent(project, without)
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
    found: dict[str, list[float]] = {name: [] for name in WITHOUT}
    one(chosen.volumes, "")
    for turn in range(chosen.rounds):
        for name in sorted(WITHOUT, key=lambda name: random.Random(f"{turn} {name}").random()):
            found[name].append(one(chosen.volumes, name))
    whole = found.pop("")
    print(f"as it is: {statistics.median(whole):.2f} s CPU")
    for name, spent_so in found.items():
        low, _, high = statistics.quantiles([a / b for a, b in zip(whole, spent_so, strict=True)], n=4)
        ratio = statistics.median(whole) / statistics.median(spent_so)
        print(
            f"without the {name}: {statistics.median(spent_so):.2f} s; ratio of the medians {ratio:.3f}, ",
            end="",
        )
        print(f"pairs {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
