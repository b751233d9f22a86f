"""`python -m benchmarks.slurm [--rounds N]`: what a reservation and a poll cost, beside Slurm's own.

- Reserving a gang of two nodes, beside `salloc` and `sbatch` of the same, on a Slurm that this starts. At
  most 0.5 s more than `salloc` is the goal. `salloc` is granted at once; jobs that outlive their caller, as
  ours do, start in the rounds of Slurm's scheduler, one a second.
- One poll of 1,000 jobs on 64 nodes: CPU seconds of this process and of the script on the login node. Slurm's
  own commands are answered from a file, since no machine of a developer runs so many jobs. At most 0.5 s is
  the goal.
"""

from __future__ import annotations

import argparse
import os
import resource
import stat
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from declarative.model.state import Address, Record
from declarative.provider import Config, Launch
from declarative.provider.optional import Gang, Seat
from providers.slurm import Slurm
from tests.providers.slurm.daemons import Daemons, impediment

NODES, JOBS = 64, 1000
SHAPE = {"cpu": 8, "memory_mib": 8000, "gpus": 8, "gpu_name": "h100"}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="ff-slurm-") as name:
        print(f"poll of {JOBS} jobs on {NODES} nodes: {polled(Path(name), rounds):.3f} CPU s (goal 0.5)")
    if reason := impediment():
        print(f"reserve: not measured, {reason}")
        return
    with tempfile.TemporaryDirectory(prefix="ff-slurm-") as name:
        daemons = Daemons(Path(name))
        daemons.up()
        try:
            bare, batch, ours = reserved(daemons, rounds)
        finally:
            daemons.down()
    print(f"two nodes: salloc {bare:.2f} s, sbatch {batch:.2f} s, a gang {ours:.2f} s")
    print(f"more than salloc by {ours - bare:.2f} s (goal 0.5), more than sbatch by {ours - batch:.2f} s")


def node(provider: Slurm, name: str) -> Record:
    """A recorded node."""
    address = Address("node", name)
    inputs = {
        "fleet": "gpu",
        "backend": "hpc",
        "region": "slurm",
        "instance_type": name,
        "resources": SHAPE,
        "blocks": 8,
        "host": {"slurm": name, "partition": "gpu"},
    }
    outputs = provider.create(address, f"token of {name}", inputs, {})
    return Record(address=address, backend="hpc", inputs=inputs, outputs=outputs)


def launch(attempt: str) -> Launch:
    """Half of a node."""
    return Launch(
        attempt=attempt,
        commands=("sleep 600",),
        env={},
        cpus=tuple(range(4)),
        gpus=tuple(range(4)),
        working_dir=None,
        volumes={},
        max_seconds=None,
        stop_seconds=1,
        gate_seconds=600,
    )


def reserved(daemons: Daemons, rounds: int) -> tuple[float, float, float]:
    """Median seconds of `salloc`, of `sbatch` until it runs, and of what reserves a prepared gang."""
    os.environ["SLURM_CONF"] = str(daemons.conf)
    options = {"root": str(daemons.folder / "shared")}
    provider = Slurm(Config(backend="hpc", project_dir=daemons.folder, lineage="bench", options=options))
    nodes = [node(provider, name) for name in daemons.names]
    bare: list[float] = []
    batch: list[float] = []
    ours: list[float] = []
    for number in range(rounds):
        shares = (
            "--gres=gpu:h100:4",
            "--cpus-per-task=4",
            "--mem=4000",
            "-N2",
            "-w",
            ",".join(daemons.names),
        )
        bare.append(timed(lambda s=shares: daemons.run("salloc", "--no-shell", *s)))  # type: ignore[misc]
        daemons.clear()
        batch.append(timed(lambda s=shares: submitted(daemons, s)))  # type: ignore[misc]
        daemons.clear()
        seats = []
        for rank, at in enumerate(nodes):
            attempt = f"bench-{rank}.{number}"
            provider.start(at, launch(attempt))
            seats.append(Seat(node=at, attempt=attempt))
        gang = Gang(task="bench", seats=tuple(seats))
        ours.append(timed(lambda g=gang: provider.reserve(g)))  # type: ignore[misc]
        for seat in seats:
            provider.stop(seat.node, seat.attempt, 1)
        daemons.clear()
    return statistics.median(bare), statistics.median(batch), statistics.median(ours)


def submitted(daemons: Daemons, shares: tuple[str, ...]) -> None:
    """Submit a batch job, and wait until it runs."""
    number = daemons.run("sbatch", "--parsable", "-o", "/dev/null", *shares, "--wrap", "sleep 600").strip()
    while daemons.run("squeue", "-h", "-j", number, "-o", "%T").strip() == "PENDING":
        time.sleep(0.02)


def timed(act: Callable[[], object]) -> float:
    """Seconds that it takes."""
    begun = time.monotonic()
    act()
    return time.monotonic() - begun


def polled(folder: Path, rounds: int) -> float:
    """Median CPU seconds of one poll of all attempts on all nodes, children included."""
    answers = folder / "answers"
    answers.mkdir()
    names = [f"gpu-{n}" for n in range(NODES)]
    (answers / "node").write_text("".join(f"{NODE.format(name=name)}\n" for name in names))
    (answers / "partition").write_text(f"PartitionName=gpu Nodes=gpu-[0-{NODES - 1}] State=UP\n")
    (answers / "reservation").write_text("No reservations in the system\n")
    (answers / "topology").write_text("")
    (answers / "job").write_text(
        "".join(f"{JOB.format(id=i + 1, name=names[i % NODES])}\n" for i in range(JOBS))
    )
    programs = folder / "bin"
    programs.mkdir()
    fake = programs / "scontrol"
    fake.write_text(f'#!/bin/sh\nfor word; do last=$word; done\nexec cat "{answers}/$last"\n')
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    rows = "".join(
        f"{i + 1}|RUNNING|alice|{names[i % NODES]}|None|2026-11-25T02:46:40|N/A\n" for i in range(JOBS)
    )
    (answers / "queue").write_text(rows)
    (programs / "squeue").write_text(f'#!/bin/sh\nexec cat "{answers}/queue"\n')
    (programs / "squeue").chmod(fake.stat().st_mode)
    os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
    options = {"root": str(folder / "shared")}
    provider = Slurm(Config(backend="hpc", project_dir=folder, lineage="bench", options=options))
    nodes = {name: node(provider, name) for name in names}
    attempts: dict[str, list[str]] = {name: [] for name in names}
    for i in range(JOBS):
        name = names[i % NODES]
        key = str(nodes[name].outputs["id"]).rpartition(".")[2]
        place = Path(str(nodes[name].outputs["path"])) / key / "ranks" / f"t{i}-0.1"
        place.mkdir(parents=True)
        for file, text in (
            ("prepared", "1 600 5"),
            ("needs", f"{name} 1 1000 h100:1 -"),
            ("job", f"{i:032x}"),
            ("opened", "2"),
            ("step", f"{i + 1}.0 {name} 0"),
            ("started", "boot 1 3 5 1 1"),
        ):
            (place / file).write_text(f"{text}\n")
        job = Path(str(nodes[name].outputs["path"])).parent / "jobs" / f"{i:032x}"
        job.mkdir(parents=True)
        (job / "id").write_text(f"{i + 1}\n")
        attempts[name].append(f"t{i}-0.1")
    taken: list[float] = []
    for _ in range(rounds):
        fresh = Slurm(Config(backend="hpc", project_dir=folder, lineage="bench", options=options))
        before = spent()
        found = [s for name in names for s in fresh.poll(nodes[name], attempts[name]).values()]
        taken.append(spent() - before)
        assert len(found) == JOBS
        assert all(s is not None and s.state.value == "running" for s in found)
    return statistics.median(taken)


def spent() -> float:
    """CPU seconds of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


NODE = (
    "NodeName={name} Arch=x86_64 CPUAlloc=8 CPUEfctv=64 CPUTot=64 ActiveFeatures=(null) Gres=gpu:h100:16 "
    "GresDrain=N/A GresUsed=gpu:h100:16(IDX:0-15) NodeAddr={name} NodeHostName={name} RealMemory=64000 "
    "AllocMem=16000 State=MIXED Partitions=gpu CfgTRES=cpu=64 AllocTRES=cpu=16"
)
JOB = (
    "JobId={id} JobName=theirs UserId=alice(1000) JobState=RUNNING Reason=None RunTime=00:00:00 "
    "TimeLimit=UNLIMITED StartTime=2026-11-25T02:46:40 EndTime=Unknown Partition=gpu ReqNodeList={name} "
    "NodeList={name} BatchHost={name} NumNodes=1 NumCPUs=1 JOB_GRES=gpu:h100:1   Nodes={name} CPU_IDs=0 "
    "Mem=1000 GRES=gpu:h100:1(IDX:0) MinCPUsNode=1 Features=(null) Command=(null) WorkDir=/ "
)

if __name__ == "__main__":
    main()
