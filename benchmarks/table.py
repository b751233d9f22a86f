"""Start, plan, apply, destroy and check, as the repository grows: what each uses, beside its goal.

    python -m benchmarks.table                       # all rows, up to 100,000 documents; half an hour
    python -m benchmarks.table --quick               # sizes up to 1,000
    python -m benchmarks.table --rows start,tasks --sizes 1000,5000

Rows: start (a command that needs the state, `--help`), volumes (apply and destroy, SQLite), postgres (apply
of 1,000, direct and over a line of 5 ms a round trip, with the wall time beside that of SQLite in the same
run), tasks (plan of tasks with a volume each), check (`state check`), documents (plan of volumes).

CPU seconds are user and system time of the whole process, the least of several runs where runs are short.
PostgreSQL's rows need a server's programs, and the test dependencies. Where `terraform` is on PATH, it plans
as many resources, each with one that needs it for `tasks`. Compare the figures of one run only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plan import FLEETFORM, Figure, best, write_documents, write_terraform
from benchmarks.slow import slow

ROUND_TRIP = 0.005
APPLY = [*FLEETFORM, "apply", "--auto-approve", "--parallelism", "16"]
DESTROY = [*FLEETFORM, "destroy", "--auto-approve", "--parallelism", "16"]
PLAN = [*FLEETFORM, "plan"]


@dataclass(frozen=True)
class Goal:
    """The most that a row may use; `wall` is a ratio to that of SQLite."""

    cpu: float | None = None
    memory: float | None = None
    wall: float | None = None


def line(name: str, size: int, figure: Figure, goal: Goal, wall: float | None = None) -> None:
    """Print a row; `wall`: what its wall time is compared with."""
    ratio = figure.wall / wall if wall else None
    held = {
        f"{goal.cpu} CPU s": goal.cpu is None or figure.cpu <= goal.cpu,
        f"{goal.memory} MB": goal.memory is None or figure.memory_mib <= goal.memory,
        f"{goal.wall} x wall": goal.wall is None or ratio is None or ratio <= goal.wall,
    }
    wanted = ", ".join(text for text in held if not text.startswith("None"))
    times = f"{ratio:.2f} x" if ratio else ""
    verdict = ("holds" if all(held.values()) else "MISSES") if wanted else ""
    print(
        f"{name:38} {size:>7} {figure.cpu:>8.2f} {figure.wall:>8.2f} {times:>7} {figure.memory_mib:>7.0f}"
        f"   {wanted:24} {verdict}",
        flush=True,
    )


@contextmanager
def project(write: Callable[[Path, int], None], size: int) -> Iterator[Path]:
    """A folder with `size` of what `write` declares."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), size)
        yield Path(name)


def write_tasks(folder: Path, size: int) -> None:
    """`size` tasks with a volume each, and a fleet on this machine that starts the nodes that they need."""
    (folder / "fleet.yaml").write_text(
        "type: fleet\nname: pool\nnodes: 0..20000\nresources:\n  cpu: 2\n  memory: 2GB\n"
    )
    (folder / "tasks.yaml").write_text(
        "".join(
            f"---\ntype: volume\nname: vol-{i}x\nsize: {i % 9 + 1}GB\n"
            f"---\ntype: task\nname: task-{i}x\ncommands: [echo {i}]\n"
            f"resources: {{cpu: 1.., memory: 512MB..}}\nvolumes: ['vol-{i}x:/data']\n"
            for i in range(size)
        )
    )


def write_terraform_tasks(folder: Path, size: int) -> None:
    """`size` resources, each with one that needs it."""
    (folder / "main.tf").write_text(
        "".join(
            f'resource "terraform_data" "vol_{i}" {{\n  input = "{i % 9 + 1}GB"\n}}\n'
            f'resource "terraform_data" "task_{i}" {{\n  input = terraform_data.vol_{i}.id\n}}\n'
            for i in range(size)
        )
    )


def terraform(name: str, write: Callable[[Path, int], None], size: int) -> None:
    """The row of Terraform's plan, where it can be had."""
    if size > 10_000 or not shutil.which("terraform"):
        return
    with project(write, size) as folder:
        best(["terraform", "init", "-input=false"], folder, 1)
        figure = best(["terraform", "plan", "-input=false"], folder)
    line(f"  terraform: {name}", size, figure, Goal())


def start(_sizes: Sequence[int]) -> None:
    """What a command pays before it does anything."""
    with project(write_documents, 3) as folder:
        best(APPLY, folder, 1)
        line("status", 3, best([*FLEETFORM, "status"], folder, 5), Goal(cpu=0.3))
        line("plan", 3, best(PLAN, folder, 5), Goal(cpu=0.3))
        line("--help", 3, best([*FLEETFORM, "--help"], folder, 5), Goal(cpu=0.3))
    terraform("plan", lambda folder, size: write_terraform(folder, size, count=False), 3)


def volumes(sizes: Sequence[int]) -> None:
    """Apply and destroy, SQLite."""
    for size in sizes:
        if size <= 10_000:
            with project(write_documents, size) as folder:
                made = {1_000: Goal(2.0), 10_000: Goal(15.0, 150.0)}
                line("apply, SQLite", size, best(APPLY, folder, 1), made.get(size, Goal()))
                gone = {10_000: Goal(15.0)}
                line("destroy, SQLite", size, best(DESTROY, folder, 1), gone.get(size, Goal()))


def postgres(sizes: Sequence[int]) -> None:
    """Apply on PostgreSQL, near and far, beside SQLite."""
    try:
        from tests import postgres as servers
    except ImportError as error:
        print(f"PostgreSQL: left out ({error})")
        return
    missing = servers.missing()
    if missing:
        print(f"PostgreSQL: left out ({missing})")
        return
    size = min(1_000, max(sizes))
    with project(write_documents, size) as folder:
        beside = best(APPLY, folder, 1)
    line("apply, SQLite", size, beside, Goal())
    with servers.running() as server, slow(server.port, ROUND_TRIP) as far:
        for name, port, goal in (
            ("apply, PostgreSQL", server.port, Goal(3.0, wall=1.3)),
            ("apply, PostgreSQL at 5 ms", far, Goal(wall=2.0)),
        ):
            url = server.url(server.database()).replace(f":{server.port}/", f":{port}/")
            with project(write_documents, size) as folder, environment(server.environment):
                (folder / "project.yaml").write_text(f"type: project\nname: table\nstate: {url}\n")
                figure = best(APPLY, folder, 1)
            line(name, size, figure, goal, beside.wall)


@contextmanager
def environment(more: Mapping[str, str]) -> Iterator[None]:
    """More variables, while this lasts."""
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def tasks(sizes: Sequence[int]) -> None:
    """Plans of tasks with a volume each."""
    goals = {1_000: Goal(0.8), 5_000: Goal(2.0), 10_000: Goal(4.0)}
    for size in sizes:
        if size <= 10_000:
            with project(write_tasks, size) as folder:
                line("plan, tasks with a volume each", size, best(PLAN, folder), goals.get(size, Goal()))
            terraform("plan, tasks with a volume each", write_terraform_tasks, size)


def check(sizes: Sequence[int]) -> None:
    """`state check`."""
    size = min(10_000, max(sizes))
    with project(write_documents, size) as folder:
        best(APPLY, folder, 1)
        line("state check", size, best([*FLEETFORM, "state", "check"], folder), Goal(cpu=3.0))


def documents(sizes: Sequence[int]) -> None:
    """Plans of volumes, a document each."""
    goals = {30_000: Goal(4.0), 100_000: Goal(10.0, 400.0)}
    for size in sizes:
        with project(write_documents, size) as folder:
            line("plan, documents", size, best(PLAN, folder), goals.get(size, Goal()))
        terraform("plan, documents", lambda folder, n: write_terraform(folder, n, count=False), size)


ROWS = {row.__name__: row for row in (start, volumes, postgres, tasks, check, documents)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(ROWS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--sizes", default="1000,5000,10000,30000,100000", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="no sizes above 1,000")
    options = parser.parse_args()
    sizes = [1_000] if options.quick else [int(text) for text in options.sizes.split(",")]
    chosen = options.rows.split(",")
    unknown = sorted(set(chosen) - ROWS.keys())
    if unknown:
        sys.exit(f"no rows {', '.join(unknown)}: there are {', '.join(ROWS)}")
    print(f"{'':38} {'size':>7} {'CPU s':>8} {'wall s':>8} {'SQLite':>7} {'peak MB':>7}   goal")
    for name in chosen:
        ROWS[name](sizes)


if __name__ == "__main__":
    main()
