"""Machines die while gangs run: random schedules on hosts and on EC2, and what is wrong afterwards.

    python benchmarks/machines                         # 200 schedules, new ones each time; as root
    python benchmarks/machines --seed 4711             # that one again
    python benchmarks/machines --where ec2 --how terminate,spot --phase booting --schedules 20

A project of one or two gangs with `retry` runs under `apply --wait`: on real sshd in network namespaces, or
on moto's EC2 with such machines behind the instances. One, two or half of the machines are lost at once: they
boot, are looked at for the first time, get their volumes, start their ranks, run or stop them. It is by a
termination, a spot interruption, a power-off of which the cloud knows nothing, a cut cable, a reboot, a cable
that is plugged in again later. Or EC2 lists nothing any more: that stops the run, and makes nothing anew.

What came of it is read on the machines' own disks and from EC2 itself: every gang ends as declared without a
further command, no rank runs twice at once, nothing is left after `destroy` that costs money or runs.

Several schedules run at once, each in a process and with machines of its own. Exit code 1 if there were
faults; their seeds and all that was said are in the folder that is printed first.
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

if not __package__:  # run as a folder, which then is first on the path instead of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.providers.ec2.run import SECRETS
from tests.providers.ssh import disks
from tests.providers.ssh.losing import CLOUD, HOSTS, PHASES, Schedule, draw
from tests.providers.ssh.machines import impediment

STUCK = 2400
"""Seconds after which a schedule is given up."""


def listed(text: str) -> tuple[str, ...]:
    """`a,b`."""
    return tuple(word for word in text.split(",") if word)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--seed", type=int, help="the first one's; the next one's is one more")
    parser.add_argument("--jobs", type=int, default=4, help="at once (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=0, help="begin none after that")
    parser.add_argument("--where", choices=("ec2", "hosts"))
    parser.add_argument("--how", type=listed, default=(), help=",".join(dict.fromkeys((*CLOUD, *HOSTS))))
    parser.add_argument("--phase", type=listed, default=(), help=",".join(PHASES))
    parser.add_argument("--unreachable", default="8s", help="`unreachable_duration` (default: %(default)s)")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.seed is not None and "--schedules" not in (sys.argv[1:] if argv is None else argv):
        given.schedules = 1
    return given


def one(given: argparse.Namespace) -> None:
    """Play one schedule, in this process."""
    import os

    from providers.ssh.transport import background
    from tests.providers.ssh.played import play

    os.environ.update(SECRETS)
    schedule = draw(given.seed, given.where, given.how, given.phase)
    limits = {"unreachable_duration": given.unreachable} if given.unreachable else {}
    played = play(schedule, given.one, limits)
    background.close()
    (given.one / "said").write_text(played.said)
    told = {"faults": played.faults, "missed": played.missed, "seconds": played.seconds}
    print(json.dumps(told))


def played(given: argparse.Namespace, seed: int, root: Path) -> dict[str, Any]:
    """Play one schedule, in a process of its own."""
    folder = root / str(seed)
    folder.mkdir()
    words = [sys.executable, str(Path(__file__).parent), "--one", str(folder), "--seed", str(seed)]
    words += ["--how", ",".join(given.how), "--phase", ",".join(given.phase)]
    words += ["--unreachable", given.unreachable, *(("--where", given.where) if given.where else ())]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=STUCK, check=False)
    except subprocess.TimeoutExpired:
        return {"faults": ["the schedule is stuck"], "missed": 0, "seconds": STUCK}
    if done.returncode:
        (folder / "broken").write_text(done.stdout + done.stderr)
        last = (done.stderr.strip().splitlines() or ["?"])[-1]
        return {"faults": [f"broken: {last}"], "missed": 0, "seconds": 0.0}
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def row(seed: int, schedule: Schedule, told: dict[str, Any]) -> None:
    """A line for a schedule, and one for each fault."""
    verdict = "FAULT" if told["faults"] else "missed" if told["missed"] else "ok"
    print(f"{verdict:7}{seed:>11} {told['seconds']:>5.0f} s  {schedule}", flush=True)
    for fault in told["faults"]:
        print(f"{'':26}{fault[:300]}", flush=True)


def main() -> None:
    """Play them, and count."""
    given = arguments()
    if given.one:
        one(given)
        return
    if reason := impediment() or disks.impediment():
        raise SystemExit(reason)
    first = given.seed if given.seed is not None else secrets.randbelow(10**9)
    root = Path(tempfile.mkdtemp(prefix="machines-"))
    print(f"{given.schedules} schedules, seeds from {first}, in {root}", flush=True)
    count: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    end = time.monotonic() + given.minutes * 60 if given.minutes else float("inf")

    def turn(seed: int) -> tuple[int, dict[str, Any] | None]:
        return seed, played(given, seed, root) if time.monotonic() < end else None

    with ThreadPoolExecutor(given.jobs) as pool:
        for task in as_completed([pool.submit(turn, first + i) for i in range(given.schedules)]):
            seed, told = task.result()
            if told is None:
                continue
            schedule = draw(seed, given.where, given.how, given.phase)
            row(seed, schedule, told)
            count["faulty" if told["faults"] else "missed" if told["missed"] else "ok"] += 1
            if told["faults"]:
                kinds.update(f"{schedule.where} {loss.how} {loss.phase}" for loss in schedule.losses)
    print(
        f"{count.total()} schedules: {count['ok']} as declared, {count['missed']} in which a moment did not"
    )
    print(f"come, {count['faulty']} with faults")
    for kind, n in kinds.most_common():
        print(f"{n:>5}  {kind}")
    raise SystemExit(1 if count["faulty"] else 0)


if __name__ == "__main__":
    main()
