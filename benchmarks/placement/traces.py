"""Reading the public traces. Nothing is downloaded; what is missing is named, with where it can be had.

Of openb the default list of pods is needed. Its authors made the other lists out of that one, by drawing more
of some pods, or by adding the GPU models that pods insist on. Those lists are drawn anew here, where the
folder does not have them: by other draws than theirs, and by shares as they are written at `drawn`.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

OPENB = (
    "Alibaba's openb traces (GPU trace v2023): github.com/alibaba/clusterdata, cluster-trace-gpu-v2023/csv; "
    "for research or study, says its README"
)
PHILLY = (
    "Microsoft's Philly jobs, CC-BY 4.0 (msr-fiddle/philly-traces): as one csv in "
    "github.com/siasosp23/artifacts, sia-simulator/traces/philly.csv"
)
OPENB_NODES = "openb/openb_node_list_gpu_node.csv"
PHILLY_JOBS = "philly_sia/philly.csv"

LISTS = (
    "default",
    *(f"gpuspec{share}" for share in (10, 20, 25, 33)),
    *(f"multigpu{share}" for share in (20, 30, 40, 50)),
    *(f"gpushare{share}" for share in (40, 60, 80, 100)),
)
"""openb's lists that differ in the pods which ask for GPUs. The others differ in those that do not."""
QUICK_LISTS = ("default", "gpuspec33", "multigpu50", "gpushare100")

MODELS = {
    ("T4",): 33,
    ("V100M16", "V100M32"): 13,
    ("G2",): 10,
    ("P100",): 5,
    ("P100", "V100M16", "V100M32"): 3,
    ("G2", "P100", "T4", "V100M16", "V100M32"): 2,
    ("P100", "T4", "V100M16", "V100M32"): 2,
    ("G3",): 2,
}
"""The models that pods insist on, and how many do: those of the first 220 pods of `gpuspec33`."""


@dataclass(frozen=True)
class Missing:
    """A file that the data folder does not have, and where it can be had."""

    path: Path
    source: str

    def __str__(self) -> str:
        return f"{self.path} is not there\n  {self.source}"


def missing(folder: Path, *, openb: bool, philly: bool) -> list[Missing]:
    """What is wanted of the folder and is not in it."""
    wanted = [(OPENB_NODES, OPENB), (pod_file("default"), OPENB)] if openb else []
    wanted += [(PHILLY_JOBS, PHILLY)] if philly else []
    return [Missing(folder / name, source) for name, source in wanted if not (folder / name).is_file()]


def pod_file(trace: str) -> str:
    """Where the pods of a trace are in the data folder."""
    return f"openb/openb_pod_list_{trace}.csv"


@dataclass(frozen=True)
class Machine:
    """A node of the openb trace. CPUs in thousandths, memory in MiB."""

    name: str
    model: str
    cpu_milli: int
    memory_mib: int
    gpus: int


@dataclass(frozen=True)
class Pod:
    """What a pod asks for: `gpus` whole ones, or `gpu_milli` thousandths of one."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    models: tuple[str, ...]

    @property
    def worth(self) -> float:
        """The GPUs that it really wants."""
        return self.gpus * self.gpu_milli / 1000


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        yield from csv.DictReader(file)


def machines(folder: Path) -> list[Machine]:
    """The 1,213 openb nodes that have GPUs, in the order of the file."""
    return [
        Machine(r["sn"], r["model"], int(r["cpu_milli"]), int(r["memory_mib"]), int(r["gpu"]))
        for r in _rows(folder / OPENB_NODES)
    ]


def pods(folder: Path, trace: str, seed: int) -> list[Pod]:
    """The pods of a list that ask for GPUs; the others belong on nodes without."""
    if (folder / pod_file(trace)).is_file():
        return _read_pods(folder / pod_file(trace))
    return drawn(_read_pods(folder / pod_file("default")), trace, random.Random(f"{trace} {seed}"))


def _read_pods(path: Path) -> list[Pod]:
    found = []
    for row in _rows(path):
        gpus = int(row["num_gpu"])
        if gpus:
            models = tuple(m for m in (row.get("gpu_spec") or "").split("|") if m)  # not all lists have it
            found.append(
                Pod(int(row["cpu_milli"]), int(row["memory_mib"]), gpus, int(row["gpu_milli"]), models)
            )
    return found


def drawn(default: list[Pod], trace: str, chance: random.Random) -> list[Pod]:
    """One of the other lists, out of the default one.

    The number in its name is a share in per cent. `gpuspec`: of the pods, those that insist on models. Of the
    GPUs that are asked for, `multigpu`: by pods that ask for several; `gpushare`: for a part of one.
    """
    kind = trace.rstrip("0123456789")
    share = int(trace.removeprefix(kind)) / 100
    if kind == "gpuspec":
        named = chance.choices(list(MODELS), list(MODELS.values()), k=len(default))
        return [
            replace(pod, models=models) if chance.random() < share else pod
            for pod, models in zip(default, named, strict=True)
        ]
    those = [pod for pod in default if (pod.gpus > 1 if kind == "multigpu" else pod.worth < 1)]
    others = [pod for pod in default if pod not in set(those)]
    worth, other = (sum(pod.worth for pod in some) / len(some) for some in (those, others))
    often = share * other / (share * other + (1 - share) * worth)
    return [chance.choice(those if chance.random() < often else others) for _ in default]


def job_sizes(folder: Path) -> list[int]:
    """How many GPUs each of the 82,247 Philly jobs asked for."""
    counts = (int(float(row["num_gpus"] or 0)) for row in _rows(folder / PHILLY_JOBS))
    return [count for count in counts if count]
