"""Loops that are disturbed, and loops that have nothing to do.

    python benchmarks/reconcile                          # all of it
    python benchmarks/reconcile --only leaders --disturbances 500 --replicas 2,3,4
    python benchmarks/reconcile --only calm --nodes 1000 --rounds 10000
    python benchmarks/reconcile --only week --days 7 --seed 3
    python benchmarks/reconcile --only week --where hosts,ec2 --days 1 --tasks 20 --interval 600   # as root

`leaders`: so many loops on one state in PostgreSQL, which is started here. The one that leads is killed,
frozen until another one leads, or cut off from the server, each time with a task to start, at any moment of
a round, and with a person's `apply` and `stop` beside it. Counted: ranks that wrote down more than once that
they ran, and nodes that were made more than once. Takeover: from the disturbance until a loop leads, by the
server's clock; 15 s is the bound. The rows of the leases name another place, so that a dead pid shortens
nothing.

`calm`: idle nodes of the `local` backend in a real loop, by CPU seconds a minute (the bound is 1); the memory
of a loop of one node over many rounds, by a clock that is set. Rounds in which nothing changed, 30 s apart
by such a clock: their mean CPU time beside that of `reconcile --once`, started cold (the bounds are a
fifth for 1,000 nodes and a tenth for 10,000), and the memory from the 20th round on.

`week`: days of a project in fast motion, by a clock that is set: tasks that come, fail and end, lost nodes,
schedules, budgets, a limit of money; on the rehearsal cloud and on the `local` backend. What was to come of
each task, how long nodes are idle, what they cost, and what is made for nothing is checked
(`tests/support/week.py`). `--where hosts` takes real sshd instead of the rehearsal cloud, `--where ec2`
moto's EC2 with such machines behind its instances: ranks are processes there. A week takes half an hour on
hosts, and an hour on EC2.

Exit code 1 if anything was done twice, never done, or above its bound.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

if not __package__:  # run as a folder, which then is first on the path instead of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.providers.ssh.days import hosts, instances
from tests.providers.ssh.machines import impediment
from tests.support import postgres
from tests.support.cli import COMMAND, Project, fleet
from tests.support.leaders import KINDS, Replicas, Takeover
from tests.support.places import sky
from tests.support.rounds import Clock, Here
from tests.support.week import played

BOUND = 15.0
CPU_A_MINUTE = 1.0
GROWTH_MB = 5.0
OF_A_COLD_ROUND = {1_000: 1 / 5, 10_000: 1 / 10}
PLACES = {"sky": sky, "ec2": instances, "hosts": hosts}


@contextmanager
def project(name: str) -> Iterator[Project]:
    """A project in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="fleetform-loops-") as folder:
        path = Path(folder) / name
        path.mkdir()
        made = Project(path)
        try:
            yield made
        finally:
            made.clean_up()


def disturbed(server: postgres.Server, count: int, disturbances: int, chance: random.Random) -> bool:
    """Disturb the leader again and again; whether all went well."""
    found: list[Takeover] = []
    with project(f"of{count}") as made:
        replicas = Replicas(made, server, count)
        try:
            found.extend(disturbed_once(replicas, chance) for _ in range(disturbances))
            double, missing = replicas.double(), replicas.missing()
            for name, times_done in {**double.ranks, **double.things}.items():
                print(f"{name}: {times_done} times\n{replicas.history(name.rpartition('/')[2])}")
        except BaseException:
            print(f"{count} loops, after {len(found)} disturbances:\n{replicas.told()}", flush=True)
            raise
        finally:
            replicas.close()
    for kind in KINDS:
        times = [t.seconds for t in found if t.kind == kind]
        if times:
            told = f"takeover median {statistics.median(times):.1f} s, longest {max(times):.1f} s"
            print(f"{count} loops, {kind}: {len(times)} times, {told}")
    early = sum(t.early > 0 for t in found)
    twice = len(double.ranks) + len(double.things)
    print(
        f"{count} loops: {twice} done twice, {len(missing)} never done, {early} leases taken early",
        flush=True,
    )
    return not (twice or missing or early or max(t.seconds for t in found) > BOUND)


def disturbed_once(replicas: Replicas, chance: random.Random) -> Takeover:
    """One disturbance, at any moment of a round or of a person's `apply`."""
    kind, after = chance.choice(KINDS), chance.uniform(0.0, 3.0)
    beside = ("apply", "--auto-approve", "--lock-timeout", "1m") if chance.random() < 0.3 else ()
    begun = time.monotonic()
    found = replicas.disturb(kind, after, beside)
    took = time.monotonic() - begun
    also = ", an apply beside it" if beside else ""
    print(
        f"{kind} after {after:.2f} s: takeover {found.seconds:.1f} s, done after {took:.1f} s{also}",
        flush=True,
    )
    if chance.random() < 0.3:
        print("  apply", flush=True)
        replicas.run("apply", "--auto-approve", "--lock-timeout", "1m")
    if chance.random() < 0.3:
        print(f"  stop job{replicas.tasks - 1}", flush=True)
        replicas.run("stop", f"job{replicas.tasks - 1}", "--lock-timeout", "1m")
    return found


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and of what it has waited for."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, parts[11:15])) / os.sysconf("SC_CLK_TCK")


def idle(nodes: int, minutes: float) -> bool:
    """What a loop costs that has nothing to do."""
    with project("idle") as made:
        made.declare({"type": "project", "name": "lab"}, fleet(nodes=nodes, resources={"cpu": 1}))
        made.apply("--parallelism", "16")
        log = (made.path.parent / "log").open("w")
        loop = made.start("reconcile", "--json", stdout=log, stderr=log)
        time.sleep(40)  # its start, and its first round
        before, begun = cpu_of(loop.pid), time.monotonic()
        time.sleep(minutes * 60)
        used = (cpu_of(loop.pid) - before) / (time.monotonic() - begun) * 60
        loop.terminate()
        loop.wait(60)
        log.close()
    print(f"{nodes} idle nodes: {used:.2f} CPU seconds a minute", flush=True)
    return used <= CPU_A_MINUTE


def unchanged(nodes: int, part: float, rounds: int) -> bool:
    """What a round costs in which nothing has changed, beside a cold one."""
    with project("unchanged") as made:
        made.declare({"type": "project", "name": "lab"}, fleet(nodes=nodes, resources={"cpu": 1}))
        made.apply("--parallelism", "16")
        cold = statistics.median(cold_round(made.path) for _ in range(3))
        here = Here(made.path, Clock())
        try:
            for _ in range(20):
                here.step(30)
            before, begun = memory(), time.process_time()
            for _ in range(rounds - 20):
                here.step(30)
            after, used = memory(), (time.process_time() - begun) / (rounds - 20)
        finally:
            here.close()
    print(f"{nodes} idle nodes: cold round {cold:.3f} CPU s, unchanged {used:.4f} ({used / cold:.3f} of it)")
    print(f"  {before:.1f} MB after 20 rounds, {after:.1f} MB after {rounds}", flush=True)
    return used <= part * cold and after - before <= GROWTH_MB


def cold_round(folder: Path) -> float:
    """CPU seconds of `reconcile --once`, as a process of its own."""
    before = os.times()
    subprocess.run([COMMAND, "reconcile", "--once"], cwd=folder, check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def memory() -> float:
    """MB of this process that are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def growth(rounds: int) -> bool:
    """What a loop keeps of its rounds."""
    with project("long") as made:
        made.declare({"type": "project", "name": "lab"}, fleet(nodes=1))
        here = Here(made.path, Clock())
        try:
            first = min(1000, rounds // 2)
            with redirect_stdout(sys.stderr):  # the first round says what it does
                for _ in range(first):
                    here.step(30)
            before, begun = memory(), time.process_time()
            for _ in range(rounds - first):
                here.step(30)
            after, used = memory(), time.process_time() - begun
        finally:
            here.close()
    told = f"{before:.1f} MB after {first} rounds, {after:.1f} MB after {rounds}"
    print(f"{told}, {used / (rounds - first) * 1000:.1f} CPU ms each", flush=True)
    return after - before <= GROWTH_MB


def week(where: str, days: float, a_day: int, interval: float, seed: int) -> bool:
    """Days in fast motion; whether all came as declared."""
    memory = Path("/dev/shm")  # the state is as good there, and quicker
    with tempfile.TemporaryDirectory(
        prefix="fleetform-week-", dir=memory if memory.is_dir() else None
    ) as folder:
        begun, since = time.process_time(), time.monotonic()
        given = {"days": days, "a_day": a_day, "interval": interval, "seed": seed}
        with (
            (Path(folder) / "said").open("w") as said,
            redirect_stdout(said),
            redirect_stderr(said),
            played(Path(folder), PLACES[where], **given) as found,
        ):
            used, took = time.process_time() - begun, time.monotonic() - since
        if found.faults or found.errors:
            kept = Path(tempfile.mkdtemp(prefix="fleetform-week-")) / "said"
            print(f"what the loop said: {shutil.copy(Path(folder) / 'said', kept)}")
    attempts, nodes = len(found.place.attempts), len(found.place.nodes)
    print(
        f"{where}, seed {seed}: {days:g} days, {len(found.jobs)} tasks, {attempts} attempts, {nodes} nodes, "
        f"{found.happened} losses, {found.cost:.0f} USD, {used:.0f} CPU s in {took:.0f} s",
        flush=True,
    )
    for fault in (*found.faults, *(f"{count} times {error}" for error, count in found.errors.items())):
        print(f"  {fault}")
    return not found.faults and not found.errors


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("leaders", "calm", "unchanged", "week"))
    parser.add_argument("--disturbances", type=int, default=60, help="over all numbers of loops")
    parser.add_argument("--replicas", default="2,3,4", help="numbers of loops")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--unchanged", type=int, default=1_000, help="rounds without a change")
    parser.add_argument("--days", type=float, default=7)
    parser.add_argument("--where", default="sky", help=f"of a week: {','.join(PLACES)}")
    parser.add_argument("--tasks", type=int, default=50, help="of a week, each day (default: %(default)s)")
    parser.add_argument("--interval", type=float, default=300, help="seconds of a week's rounds")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    places = args.where.split(",")
    if args.only in (None, "week") and places != ["sky"] and (reason := impediment()):
        parser.error(reason)
    well = True
    if args.only in (None, "leaders"):
        counts = json.loads(f"[{args.replicas}]")
        with postgres.running() as server:
            print(f"seed {args.seed}", flush=True)
            for count in counts:
                each = max(1, args.disturbances // len(counts))
                well &= disturbed(server, count, each, random.Random(args.seed))
    if args.only in (None, "week"):
        for where in places:
            well &= week(where, args.days, args.tasks, args.interval, args.seed)
    if args.only in (None, "calm"):
        well &= growth(args.rounds)
        well &= idle(args.nodes, args.minutes)
    if args.only in (None, "calm", "unchanged"):
        for nodes, part in OF_A_COLD_ROUND.items():
            well &= unchanged(nodes, part, args.unchanged)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
