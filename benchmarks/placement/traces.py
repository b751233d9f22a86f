"""Reading the public traces. Nothing is downloaded; what is missing is named, with where it can be had."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
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
        """The GPUs that it really asks for."""
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


def pods(folder: Path, trace: str) -> list[Pod]:
    """The pods of a trace that ask for GPUs; the others belong on nodes without."""
    found = []
    for row in _rows(folder / pod_file(trace)):
        gpus = int(row["num_gpu"])
        if gpus:
            models = tuple(m for m in (row.get("gpu_spec") or "").split("|") if m)  # not all lists have it
            found.append(
                Pod(int(row["cpu_milli"]), int(row["memory_mib"]), gpus, int(row["gpu_milli"]), models)
            )
    return found


def job_sizes(folder: Path) -> list[int]:
    """How many GPUs each of the 82,247 Philly jobs asked for."""
    counts = (int(float(row["num_gpus"] or 0)) for row in _rows(folder / PHILLY_JOBS))
    return [count for count in counts if count]
