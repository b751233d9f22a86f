"""How long start-up, validate, plan and no-op plan take, as the repository grows; beside Terraform's.

    python benchmarks/plan.py                     # 100, 1,000 and 10,000 volumes
    python benchmarks/plan.py --sizes 100,1000

Each size is declared twice: as separate documents, and by `count`. CPU seconds are user and system time of
the whole process, memory is its peak, "growth" is CPU time against the size before, per resource (1.0 is
linear). Where `terraform` is on PATH, the same number of `terraform_data` resources is planned in the same
run, and the ratios are printed at the end. Compare the figures of one run only: machines and their load
differ.

Our no-op plan always follows an apply of ours. Terraform's takes a time that grows with the square of the
size and is not what is compared here: beyond `MOST_APPLIED` resources its state is written instead, as
Terraform itself wrote that of two. Whether it takes it for its own is seen by `-detailed-exitcode`: each of
its no-op plans has to end with 0, "no changes", or the benchmark ends.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLEETFORM = [sys.executable, "-m", "declarative"]

MOST_APPLIED = 1_000
"""Up to so many resources Terraform's apply is run."""

ENOUGH = 20.0
"""CPU seconds after which a command is not run once more."""

MOST_IN_FILE = 10_000
"""Documents of one file."""

PLAN, NO_OP = "plan from nothing", "no-op plan"


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


def best(argv: Sequence[str], cwd: Path, times: int = 3) -> Figure:
    """The run with the least CPU time: what disturbs a run only adds. Of long ones there are fewer."""
    figures: list[Figure] = []
    while len(figures) < times and sum(f.cpu for f in figures) < ENOUGH:
        figures.append(run(argv, cwd))
    bad = [f.code for f in figures if f.code]
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


def write_state(folder: Path, model: Path, size: int, *, count: bool) -> None:
    """The state that an apply of `size` resources would leave, after that of `model` with two of them."""
    state = json.loads((model / "terraform.tfstate").read_text())
    resource = state["resources"][0]

    def instance(i: int, value: str) -> dict[str, Any]:
        made: dict[str, Any] = copy.deepcopy(resource["instances"][0])
        made["attributes"]["id"] = str(uuid.uuid4())
        for name in ("input", "output"):
            made["attributes"][name]["value"] = value
        return made | ({"index_key": i} if count else {})

    if count:
        state["resources"] = [resource | {"instances": [instance(i, "1GB") for i in range(size)]}]
    else:
        state["resources"] = [
            resource | {"name": f"vol_{i}", "instances": [instance(i, f"{i % 9 + 1}GB")]} for i in range(size)
        ]
    (folder / "terraform.tfstate").write_text(json.dumps(state, indent=2))


class Table:
    """Prints a line for each figure, and keeps it for the ratios."""

    def __init__(self) -> None:
        self.figures: dict[tuple[str, str, str, int], Figure] = {}
        """By tool, form, what was done, and size."""

    def add(self, tool: str, form: str, what: str, size: int, figure: Figure) -> None:
        """One line."""
        before = [f.cpu / n for (*row, n), f in self.figures.items() if row == [tool, form, what]]
        growth = f"{figure.cpu / size / before[-1]:6.2f}" if before else ""
        self.figures[tool, form, what, size] = figure
        name = f"{form}: {what}" if tool == "fleetform" else f"{tool}, {form}: {what}"
        print(f"{name:36} {size:>7} {figure.cpu:>9.2f} {figure.memory_mib:>9.0f}   {growth}", flush=True)

    def ratios(self) -> None:
        """How many times as much Terraform took."""
        print()
        for (tool, form, what, size), mine in self.figures.items():
            its = self.figures.get(("terraform", form, what, size))
            if tool == "fleetform" and its and what in (PLAN, NO_OP):
                cpu, memory = its.cpu / mine.cpu, its.memory_mib / mine.memory_mib
                name = f"{what}, {form}, {size}"
                print(f"{name:36} terraform/fleetform = {cpu:6.1f}x CPU, {memory:5.1f}x memory")


def start_up(folder: Path) -> None:
    """What every command pays, beside an interpreter that only imports click."""
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "python -c 'import click'": [sys.executable, "-c", "import click"],
        "fleetform --version": [*FLEETFORM, "--version"],
        "fleetform --help": [*FLEETFORM, "--help"],
        "fleetform plan --help": [*FLEETFORM, "plan", "--help"],
    }
    for name, argv in commands.items():
        figure = best(argv, folder, 5)
        print(f"{name:36} {'':>7} {figure.cpu:>9.3f} {figure.memory_mib:>9.0f}", flush=True)


def ours(sizes: Sequence[int], table: Table) -> None:
    """The table's part about fleetform."""
    for form, write in (("documents", write_documents), ("count", write_count)):
        for size in sizes:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                write(folder, size)

                def add(what: str, figure: Figure, form: str = form, size: int = size) -> None:
                    table.add("fleetform", form, what, size, figure)

                add("validate", best([*FLEETFORM, "validate"], folder))
                add(PLAN, best([*FLEETFORM, "plan"], folder))
                apply = [*FLEETFORM, "apply", "--auto-approve", "--parallelism", "16"]
                add("apply", best(apply, folder, 1))
                add(NO_OP, best([*FLEETFORM, "plan", "--detailed-exitcode"], folder))


def terraforms(sizes: Sequence[int], table: Table) -> None:
    """The same with Terraform."""
    apply = ["terraform", "apply", "-auto-approve", "-input=false"]
    plan = ["terraform", "plan", "-input=false"]

    def start(folder: Path, size: int, *, count: bool) -> None:
        folder.mkdir()
        write_terraform(folder, size, count=count)
        best(["terraform", "init", "-input=false"], folder, 1)

    for form in ("documents", "count"):
        count = form == "count"
        for size in sizes:
            with tempfile.TemporaryDirectory() as name:
                folder, model = Path(name, "whole"), Path(name, "model")
                start(folder, size, count=count)
                table.add("terraform", form, PLAN, size, best(plan, folder))
                if size <= MOST_APPLIED:
                    table.add("terraform", form, "apply", size, best(apply, folder, 1))
                else:
                    start(model, 2, count=count)
                    best(apply, model, 1)
                    write_state(folder, model, size, count=count)
                no_op = best([*plan, "-detailed-exitcode"], folder)
                table.add("terraform", form, NO_OP, size, no_op)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="100,1000,10000", help="comma-separated (default: %(default)s)")
    sizes = [int(text) for text in parser.parse_args().sizes.split(",")]
    print(f"{'':36} {'size':>7} {'CPU s':>9} {'peak MiB':>9}   growth")
    with tempfile.TemporaryDirectory() as name:
        start_up(Path(name))
    table = Table()
    ours(sizes, table)
    if shutil.which("terraform"):
        terraforms(sizes, table)
        table.ratios()
    else:
        print("terraform is not on PATH: nothing to compare with")


if __name__ == "__main__":
    main()
