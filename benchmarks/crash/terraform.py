"""The same measure on Terraform: what it makes are files, each by a `local-exec` of a `terraform_data`."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

from tests.support.killing import Count

MAIN = """
resource "terraform_data" "made" {{
  count = {size}
  input = "1GB"
  provisioner "local-exec" {{
    command = "mktemp made/${{count.index}}.XXXXXXXX"
  }}
}}
"""
APPLY = ["terraform", "apply", "-auto-approve", "-input=false", "-parallelism=16"]
STATE = "terraform.tfstate"


def missing() -> bool:
    """Whether there is none here."""
    return shutil.which("terraform") is None


def _start(folder: Path, argv: list[str]) -> subprocess.Popen[bytes]:
    env = {**os.environ, "CHECKPOINT_DISABLE": "1"}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(argv, cwd=folder, env=env, stdin=quiet, stdout=quiet, stderr=quiet)


def _made(folder: Path) -> Counter[str]:
    return Counter(path.name.partition(".")[0] for path in (folder / "made").iterdir())


def _recorded(folder: Path) -> tuple[set[str], bool]:
    """What its state has, and whether the state file is torn."""
    file = folder / STATE
    if not file.exists():
        return set(), False
    try:
        state = json.loads(file.read_text())
    except ValueError:
        return set(), True
    return {str(i["index_key"]) for r in state["resources"] for i in r["instances"]}, False


def _project(folder: Path, size: int) -> Path:
    (folder / "made").mkdir(parents=True)
    (folder / "main.tf").write_text(MAIN.format(size=size))
    if _start(folder, ["terraform", "init", "-input=false"]).wait():
        raise SystemExit("`terraform init` failed")
    return folder


def killed(root: Path, size: int, kills: int, seed: int) -> Count:
    """Each of so many applies is killed once, while it makes things, and followed by another apply."""
    chance = random.Random(seed)
    whole = _project(root / "terraform-whole", size)
    process = _start(whole, APPLY)
    begun = _first(whole, process)
    process.wait()
    longest = time.monotonic() - begun
    count = Count()
    for number in range(kills):
        folder = _project(root / f"terraform-{number}", size)
        process = _start(folder, APPLY)
        _first(folder, process)
        time.sleep(chance.uniform(0, longest))  # an instant like any other
        process.send_signal(signal.SIGKILL)
        count.applies += 2
        count.kills += process.wait() == -signal.SIGKILL
        _settled(folder)
        recorded, torn = _recorded(folder)
        count.torn += torn
        count.lost += len(set(_made(folder)) - recorded)
        count.manual += _start(folder, APPLY).wait() != 0
        count.duplicates += sum(n - 1 for n in _made(folder).values())
        shutil.rmtree(folder)
    return count


def _first(folder: Path, process: subprocess.Popen[bytes]) -> float:
    """Wait until the first thing is made: before that there is nothing to lose."""
    while process.poll() is None and not _made(folder):
        time.sleep(0.01)
    return time.monotonic()


def _settled(folder: Path) -> None:
    """Commands that were under way have ended when nothing is added any more."""
    before = -1
    while before != len(_made(folder)):
        before = len(_made(folder))
        time.sleep(0.1)
