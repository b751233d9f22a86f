"""How long start-up, validate, plan and no-op plan take, as the repository grows; beside Terraform's.

    python benchmarks/plan.py                     # 100, 1,000 and 10,000 volumes
    python benchmarks/plan.py --sizes 100,1000

Each size is declared twice: as separate documents, and by `count`. CPU seconds are user and system time of
the whole process, memory is its peak, "growth" is CPU time against the size before, per resource (1.0 is
linear). Where `terraform` is on PATH, the same number of `terraform_data` resources is planned in the same
run: compare the figures of one run only, machines and their load differ.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FLEETFORM = [sys.executable, "-m", "declarative"]


@dataclass(frozen=True)
class Figure:
    """One run of a command."""

    cpu: float
    memory_mib: float
    code: int


def run(argv: Sequence[str], cwd: Path) -> Figure:
    """Run it to its end; its own resources, children not counted in."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("FLEETFORM_")}
    process = subprocess.Popen(argv, cwd=cwd, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Figure(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, process.returncode)


def best(argv: Sequence[str], cwd: Path, times: int = 3) -> Figure:
    """The run with the least CPU time: what disturbs a run only adds."""
    figures = [run(argv, cwd) for _ in range(times)]
    bad = [f.code for f in figures if f.code]
    if bad:
        raise SystemExit(f"{' '.join(argv)} ended with exit code {bad[0]} in {cwd}")
    return min(figures, key=lambda f: f.cpu)


def write_documents(folder: Path, size: int) -> None:
    """`size` volumes, a document each."""
    text = "".join(
        f"---\ntype: volume\nname: vol-{i}x\nsize: {i % 9 + 1}GB\nprevent_destroy: false\n"
        for i in range(size)
    )
    (folder / "volumes.yaml").write_text(text)


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


def show(name: str, size: int, figure: Figure, before: dict[str, tuple[int, float]]) -> None:
    """One line of the table."""
    growth = ""
    if name in before:
        old_size, old_cpu = before[name]
        growth = f"{(figure.cpu / size) / (old_cpu / old_size):6.2f}"
    before[name] = (size, figure.cpu)
    print(f"{name:34} {size:>7} {figure.cpu:>9.2f} {figure.memory_mib:>9.0f}   {growth}", flush=True)


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
        print(f"{name:34} {'':>7} {figure.cpu:>9.3f} {figure.memory_mib:>9.0f}", flush=True)


def ours(sizes: Sequence[int]) -> None:
    """The table's part about fleetform."""
    before: dict[str, tuple[int, float]] = {}
    for form, write in (("documents", write_documents), ("count", write_count)):
        for size in sizes:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                write(folder, size)
                show(f"{form}: validate", size, best([*FLEETFORM, "validate"], folder), before)
                show(f"{form}: plan from nothing", size, best([*FLEETFORM, "plan"], folder), before)
                applied = run([*FLEETFORM, "apply", "--auto-approve", "--parallelism", "16"], folder)
                show(f"{form}: apply", size, applied, before)
                show(f"{form}: no-op plan", size, best([*FLEETFORM, "plan"], folder), before)


def terraforms(sizes: Sequence[int]) -> None:
    """The same with Terraform."""
    before: dict[str, tuple[int, float]] = {}
    for form in ("documents", "count"):
        for size in sizes:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                write_terraform(folder, size, count=form == "count")
                run(["terraform", "init", "-input=false"], folder)
                plan = ["terraform", "plan", "-input=false"]
                show(f"terraform, {form}: plan", size, best(plan, folder), before)
                apply = ["terraform", "apply", "-auto-approve", "-input=false"]
                show(f"terraform, {form}: apply", size, run(apply, folder), before)
                show(f"terraform, {form}: no-op plan", size, best(plan, folder), before)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="100,1000,10000", help="comma-separated (default: %(default)s)")
    sizes = [int(text) for text in parser.parse_args().sizes.split(",")]
    print(f"{'':34} {'size':>7} {'CPU s':>9} {'peak MiB':>9}   growth")
    with tempfile.TemporaryDirectory() as name:
        start_up(Path(name))
    ours(sizes)
    if shutil.which("terraform"):
        terraforms(sizes)
    else:
        print("terraform is not on PATH: nothing to compare with")


if __name__ == "__main__":
    main()
