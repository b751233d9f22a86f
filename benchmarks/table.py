"""Start, plan, apply, destroy and check, as the repository grows: what each uses, beside its goal.

    python -m benchmarks.table                       # all rows, up to 100,000 documents; half an hour
    python -m benchmarks.table --quick               # sizes up to 1,000
    python -m benchmarks.table --rows start,tasks --sizes 1000,5000

Rows: start (a command that needs the state, `--help`, an interpreter that does nothing), volumes (apply and
destroy, SQLite), postgres (apply of 1,000, direct and over a line of 5 ms a round trip, in turns with SQLite;
the medians of the wall time count), tasks (plan of tasks with a volume each), check (`state check`),
documents (validate and plan of volumes, a document each), fields (validate of documents that have a small
mapping each, and `fmt --check` of such in disorder with comments, whose goal is 1.8 times the CPU time of
their validate), count (plan of volumes declared by `count`), unchanged (plan after an apply).

CPU seconds are user and system time of the whole process, the least of several runs where runs are short.
"growth" is CPU time against the size before, for each thing: 1.0 is linear. PostgreSQL's rows need a server's
programs, and the test dependencies. Compare the figures of one run only: machines and their load differ.

Where `terraform` is on PATH, it plans as many resources, each with one that needs it for `tasks`. Its apply
takes a time that grows with the square of the size and is not what is compared: beyond `MOST_APPLIED`
resources its state is written instead, as Terraform itself wrote that of two. Whether it takes it for its own
is seen by `-detailed-exitcode`: each of its plans after an apply has to end with 0, "no changes", or the
benchmark ends.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.slow import slow

FLEETFORM = [sys.executable, "-m", "declarative"]
ROUND_TRIP = 0.005
TURNS = 5
"""Runs of each kind whose wall times are compared: the medians count."""
APPLY = [*FLEETFORM, "apply", "--auto-approve", "--parallelism", "16"]
DESTROY = [*FLEETFORM, "destroy", "--auto-approve", "--parallelism", "16"]
PLAN = [*FLEETFORM, "plan"]

MOST_APPLIED = 1_000
"""Up to so many resources Terraform's apply is run."""

ENOUGH = 20.0
"""CPU seconds after which a command is not run once more."""

MOST_IN_FILE = 10_000
"""Documents of one file."""


@dataclass(frozen=True)
class Figure:
    """One run of a command."""

    cpu: float
    memory_mib: float
    code: int
    wall: float


def run(argv: Sequence[str], cwd: Path) -> Figure:
    """Run it to its end; what it used."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("FLEETFORM_")}
    env["CHECKPOINT_DISABLE"] = "1"  # Terraform does not ask for newer versions of itself
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed command has been compiled
    begin = time.monotonic()
    process = subprocess.Popen(argv, cwd=cwd, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Figure(
        usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, process.returncode, time.monotonic() - begin
    )


def best(argv: Sequence[str], cwd: Path, times: int = 3, code: int = 0) -> Figure:
    """The run with the least CPU time: what disturbs a run only adds. Of long ones there are fewer."""
    figures: list[Figure] = []
    while len(figures) < times and sum(f.cpu for f in figures) < ENOUGH:
        figures.append(run(argv, cwd))
    bad = [f.code for f in figures if f.code != code]
    if bad:
        raise SystemExit(f"{' '.join(argv)} ended with exit code {bad[0]} in {cwd}")
    return min(figures, key=lambda f: f.cpu)


def write_documents(folder: Path, size: int) -> None:
    """`size` volumes, a document each; a file takes up to 4 MB."""
    for begin in range(0, size, MOST_IN_FILE):
        text = "".join(
            f"---\ntype: volume\nname: vol-{i}x\nsize: {i % 9 + 1}GB\nprevent_destroy: false\n"
            for i in range(begin, min(begin + MOST_IN_FILE, size))
        )
        (folder / f"volumes-{begin}.yaml").write_text(text)


FORMS = {
    "tags": "type: volume\nname: vol-{i}x\nsize: 1GB\ntags: {{team: research}}\n",
    "env": "type: task\nname: task-{i}x\ncommands: [echo {i}]\nenv: {{STEP: s{i}}}\n",
    "disorder": "# task {i}\nname: task-{i}x   # its name\ntype: task\nresources:\n    memory: {{min: 1GB}}\n"
    'env:\n    STEP: "s{i}"\ncommands:\n- echo {i}\n- exit\n',
}
"""Documents with a small mapping each."""


def write_forms(folder: Path, size: int, form: str) -> None:
    """`size` documents of one of the forms."""
    for begin in range(0, size, MOST_IN_FILE):
        numbers = range(begin, min(begin + MOST_IN_FILE, size))
        text = "---\n".join(FORMS[form].format(i=i) for i in numbers)
        (folder / f"{form}-{begin}.yaml").write_text(text)


def write_count(folder: Path, size: int) -> None:
    """`size` volumes in one document."""
    (folder / "volumes.yaml").write_text(
        f"type: volume\nname: vol\nsize: 1GB\ncount: {size}\nprevent_destroy: false\n"
    )


def write_terraform(folder: Path, size: int, *, count: bool) -> None:
    """`size` resources that need no provider."""
    if count:
        text = f'resource "terraform_data" "vol" {{\n  count = {size}\n  input = "1GB"\n}}\n'
    else:
        text = "".join(
            f'resource "terraform_data" "vol_{i}" {{\n  input = "{i % 9 + 1}GB"\n}}\n' for i in range(size)
        )
    (folder / "main.tf").write_text(text)


def write_state(folder: Path, model: Path, size: int) -> None:
    """The state that an apply of `size` resources would leave, after that of `model` with two of them."""
    state = json.loads((model / "terraform.tfstate").read_text())
    resource = state["resources"][0]

    def instance(value: str) -> dict[str, Any]:
        made: dict[str, Any] = copy.deepcopy(resource["instances"][0])
        made["attributes"]["id"] = str(uuid.uuid4())
        for name in ("input", "output"):
            made["attributes"][name]["value"] = value
        return made

    state["resources"] = [
        resource | {"name": f"vol_{i}", "instances": [instance(f"{i % 9 + 1}GB")]} for i in range(size)
    ]
    (folder / "terraform.tfstate").write_text(json.dumps(state, indent=2))


@dataclass(frozen=True)
class Goal:
    """The most that a row may use; `wall` is a ratio to that of SQLite."""

    cpu: float | None = None
    memory: float | None = None
    wall: float | None = None


BEFORE: dict[str, tuple[int, Figure]] = {}
"""The last size of each kind of row, and what it took."""


def line(name: str, size: int, figure: Figure, goal: Goal, wall: float | None = None) -> None:
    """Print a row; `wall`: what its wall time is compared with."""
    ratio = figure.wall / wall if wall else None
    less, before = BEFORE.get(name, (size, figure))
    growth = f"{figure.cpu / size / (before.cpu / less):.2f}" if less < size else ""
    BEFORE[name] = (size, figure)
    held = {
        f"{goal.cpu} CPU s": goal.cpu is None or figure.cpu <= goal.cpu,
        f"{goal.memory} MB": goal.memory is None or figure.memory_mib <= goal.memory,
        f"{goal.wall} x wall": goal.wall is None or ratio is None or ratio <= goal.wall,
    }
    wanted = ", ".join(text for text in held if not text.startswith("None"))
    times = f"{ratio:.2f} x" if ratio else ""
    verdict = ("holds" if all(held.values()) else "MISSES") if wanted else ""
    print(
        f"{name:38} {size:>7} {figure.cpu:>8.2f} {figure.wall:>8.2f} {times:>7} {growth:>7}"
        f" {figure.memory_mib:>7.0f}   {wanted:24} {verdict}",
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
        line("  python -c pass", 3, best([sys.executable, "-c", "pass"], folder, 5), Goal())
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
        from tests.support import postgres as servers
    except ImportError as error:
        print(f"PostgreSQL: left out ({error})")
        return
    missing = servers.missing()
    if missing:
        print(f"PostgreSQL: left out ({missing})")
        return
    size = min(1_000, max(sizes))
    goals = {
        "apply, SQLite": Goal(),
        "apply, PostgreSQL": Goal(3.0, wall=1.3),
        "apply, PostgreSQL at 5 ms": Goal(wall=2.0),
    }
    figures: dict[str, list[Figure]] = {name: [] for name in goals}
    with servers.running() as server, slow(server.port, ROUND_TRIP) as far:
        # In turns: on a machine that is idle or shared, one run may take half as long again as the next.
        for name, port in list(zip(goals, (None, server.port, far), strict=True)) * TURNS:
            with project(write_documents, size) as folder, environment(server.environment):
                if port:
                    url = server.url(server.database()).replace(f":{server.port}/", f":{port}/")
                    (folder / "project.yaml").write_text(f"type: project\nname: table\nstate: {url}\n")
                figures[name].append(best(APPLY, folder, 1))
    medians = {name: sorted(some, key=lambda f: f.wall)[TURNS // 2] for name, some in figures.items()}
    beside = medians["apply, SQLite"]
    for name, figure in medians.items():
        line(name, size, figure, goals[name], None if figure is beside else beside.wall)


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
    """Validate and plan of volumes, a document each."""
    goals = {30_000: Goal(4.0), 100_000: Goal(10.0, 400.0)}
    for size in sizes:
        with project(write_documents, size) as folder:
            line("validate, documents", size, best([*FLEETFORM, "validate"], folder), Goal())
            line("plan, documents", size, best(PLAN, folder), goals.get(size, Goal()))
        terraform("plan, documents", lambda folder, n: write_terraform(folder, n, count=False), size)


def fields(sizes: Sequence[int]) -> None:
    """Validate and fmt of documents with a small mapping each."""
    goals = {100_000: Goal(memory=400.0)}
    for size, form in itertools.product(sizes, FORMS):
        with project(functools.partial(write_forms, form=form), size) as folder:
            figure = best([*FLEETFORM, "validate"], folder)
            line(f"validate, {form}", size, figure, goals.get(size, Goal()))
            if form == "disorder":
                formatted = best([*FLEETFORM, "fmt", "--check"], folder, code=1)
                line(f"fmt, {form}", size, formatted, Goal(cpu=round(1.8 * figure.cpu, 2)))


def count(sizes: Sequence[int]) -> None:
    """Plans of volumes in one document."""
    for size in sizes:
        if size <= 10_000:
            with project(write_count, size) as folder:
                line("plan, count", size, best(PLAN, folder), Goal())
            terraform("plan, count", lambda folder, n: write_terraform(folder, n, count=True), size)


def unchanged(sizes: Sequence[int]) -> None:
    """Plans after an apply, which find nothing to do."""
    for size in sizes:
        if size <= 10_000:
            with project(write_documents, size) as folder:
                best(APPLY, folder, 1)
                line("plan, unchanged", size, best([*PLAN, "--detailed-exitcode"], folder), Goal())
            if shutil.which("terraform"):
                terraform_unchanged(size)


def terraform_unchanged(size: int) -> None:
    """The same with Terraform."""
    apply = ["terraform", "apply", "-auto-approve", "-input=false"]

    def write(folder: Path, number: int) -> None:
        write_terraform(folder, number, count=False)
        best(["terraform", "init", "-input=false"], folder, 1)

    with project(write, size) as folder, project(write, 2) as model:
        if size <= MOST_APPLIED:
            best(apply, folder, 1)
        else:
            best(apply, model, 1)
            write_state(folder, model, size)
        figure = best(["terraform", "plan", "-input=false", "-detailed-exitcode"], folder)
    line("  terraform: plan, unchanged", size, figure, Goal())


ROWS = {
    row.__name__: row for row in (start, volumes, postgres, tasks, check, documents, fields, count, unchanged)
}


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
    print(f"{'':38} {'size':>7} {'CPU s':>8} {'wall s':>8} {'SQLite':>7} {'growth':>7} {'peak MB':>7}   goal")
    for name in chosen:
        ROWS[name](sizes)


if __name__ == "__main__":
    main()
