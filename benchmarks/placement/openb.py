"""P2: how much of a real fleet does useful work when its nodes are split into equal blocks.

The nodes are openb's 1,213 with 6,212 GPUs, of 15 types. The pods of one trace are shuffled, and drawn again
with replacement, until the blocks that they ask for, at the best rounding, are all that the fleet has.
CPUs (thousandths) and memory count as well: a pod that asks for much of them takes more blocks than GPUs,
and how many depends on the type of the node. The figure is the GPUs that the placed pods ask for, in per cent
of the fleet's.

Blocks are whole GPUs, or halves: fleetform cuts no GPU in two, so half a GPU is counted as one "GPU" here,
and the halves of a whole one need not lie on the same card. What is measured is the packing: a pod that wants
0.46 GPUs asks for one, or for a half, and counts as that. Its task cannot say more.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.placement import solver
from benchmarks.placement.problem import READY, Problem
from benchmarks.placement.traces import Machine, Pod
from declarative.model.blocks import Shape
from declarative.model.resource import TaskWant
from declarative.model.spec import Fleet, Name, Task
from declarative.model.spec.fleet import NodeCount
from declarative.model.spec.values import Count, Cpu, Gpu, Memory, Resources
from declarative.placement.problem import Ask, FleetRule, Node, PlacementOutcome

FLEET = "openb"
Size = tuple[str, int, int, int]
"""A type of node: GPU model, CPUs in thousandths, memory in MiB, GPUs."""


def size_of(machine: Machine) -> Size:
    """The machine's type."""
    return (machine.model, machine.cpu_milli, machine.memory_mib, machine.gpus)


@dataclass(frozen=True)
class Workload:
    """Machines, the pods that ask for all of them, and into how many blocks a GPU is cut."""

    machines: Sequence[Machine]
    pods: Sequence[Pod]
    per_gpu: int

    def units(self, pod: Pod) -> int:
        """The blocks that its GPUs need."""
        return math.ceil(pod.gpus * pod.gpu_milli * self.per_gpu / 1000)

    def need(self, pod: Pod, size: Size) -> int | None:
        """The blocks that it takes on a node of that type; None if it does not go there."""
        model, cpu, memory, gpus = size
        blocks = gpus * self.per_gpu
        wanted = max(
            self.units(pod),
            math.ceil(pod.cpu_milli * blocks / cpu),
            math.ceil(pod.memory_mib * blocks / memory),
        )
        return wanted if wanted <= blocks and (not pod.models or model in pod.models) else None

    def needs(self, pod: Pod) -> dict[Size, int]:
        """The same for each type that it goes to."""
        sizes = dict.fromkeys(map(size_of, self.machines))
        return {size: need for size in sizes if (need := self.need(pod, size)) is not None}

    def worth(self, pod: Pod) -> float:
        """The GPUs that it asks for."""
        return self.units(pod) / self.per_gpu

    def useful(self, placed: Iterable[int]) -> float:
        """The GPUs that these pods ask for, in per cent of the fleet's."""
        return 100 * sum(self.worth(self.pods[i]) for i in placed) / sum(m.gpus for m in self.machines)


def workload(machines: Sequence[Machine], trace: Sequence[Pod], per_gpu: int, seed: int) -> Workload:
    """Pods until the next one would ask for more blocks than there are."""
    chance = random.Random(seed)
    empty = Workload(machines, (), per_gpu)
    least = {pod: min(empty.needs(pod).values(), default=0) for pod in set(trace)}
    room = sum(m.gpus for m in machines) * per_gpu
    found: list[Pod] = []
    queue = list(trace)
    chance.shuffle(queue)
    while room >= 0:
        pod = queue.pop() if queue else chance.choice(trace)
        room -= least[pod]
        found.append(pod)
    return Workload(machines, tuple(found[:-1]), per_gpu)


def problem(work: Workload) -> Problem:
    """The same in fleetform's values. Equal requests are one object, as after decoding one document."""
    nodes = [
        Node(
            name=f"{FLEET}-{i}",
            fleet=FLEET,
            backend="b",
            region="r",
            zone=None,
            instance_type="-".join(map(str, size_of(m))),
            shape=Shape(
                cpu=m.cpu_milli,
                memory_mib=m.memory_mib,
                gpus=m.gpus * work.per_gpu,
                gpu_name=m.model,
                gpu_vendor="nvidia",
            ),
            total=m.gpus * work.per_gpu,
            price=None,
            spot=False,
            readiness=READY,
        )
        for i, m in enumerate(work.machines)
    ]
    wants = {
        pod: Resources(
            cpu=Cpu(pod.cpu_milli), memory=Memory(pod.memory_mib), gpu=Gpu(Count(work.units(pod)), pod.models)
        )
        for pod in set(work.pods)
    }
    asks = [
        Ask(want=TaskWant(spec=Task(name=Name(f"pod-{i}"), commands=("true",), resources=wants[pod])))
        for i, pod in enumerate(work.pods)
    ]
    fleet = Fleet(name=Name(FLEET), nodes=NodeCount(len(nodes), len(nodes), len(nodes)))
    rule = FleetRule(fleet=fleet, offers=(), existing=len(nodes), baseline=0)
    return Problem(asks, nodes, {FLEET: rule}, {})


def placed(outcome: PlacementOutcome) -> list[int]:
    """The numbers of the pods that run."""
    return [int(choice.task.removeprefix("pod-")) for choice in outcome.choices]


# --------------------------------------------------------------------------------------- to compare with


def first_fit(work: Workload) -> list[int]:
    """In the order of arrival, on the first node of the file with enough idle blocks."""
    sizes = [size_of(m) for m in work.machines]
    idle = [m.gpus * work.per_gpu for m in work.machines]
    needs = {pod: work.needs(pod) for pod in set(work.pods)}
    found = []
    for i, pod in enumerate(work.pods):
        by_node = [needs[pod].get(size, math.inf) for size in sizes]
        node = next((n for n, need in enumerate(by_node) if need <= idle[n]), None)
        if node is not None:
            idle[node] -= int(by_node[node])
            found.append(i)
    return found


def best_fit(work: Workload, *, decreasing: bool = False) -> list[int]:
    """In the order of arrival or the largest first: where it takes the fewest blocks, and leaves fewest."""
    idle = Counter((size_of(m), m.gpus * work.per_gpu) for m in work.machines)
    needs = {pod: work.needs(pod) for pod in set(work.pods)}
    order = list(range(len(work.pods)))
    if decreasing:
        order.sort(key=lambda i: (-min(needs[work.pods[i]].values(), default=0), -work.worth(work.pods[i])))
    found = []
    for i in order:
        need = needs[work.pods[i]]
        fits = [
            (need[s], left - need[s], s) for (s, left), n in idle.items() if n and need.get(s, 99) <= left
        ]
        if fits:
            taken, left, size = min(fits)
            idle[size, left + taken] -= 1
            idle[size, left] += 1
            found.append(i)
    return found


# ------------------------------------------------------------------------------------------------- bounds


def _counted(work: Workload) -> tuple[dict[Size, int], list[tuple[int, float, dict[Size, int]]]]:
    """Blocks by type of node; and how many pods are alike, what one is worth, what it takes on each type."""
    blocks: Counter[Size] = Counter()
    for machine in work.machines:
        blocks[size_of(machine)] += machine.gpus * work.per_gpu
    alike = Counter(work.pods)
    return dict(blocks), [
        (n, work.worth(pod), work.needs(pod)) for pod, n in alike.items() if work.needs(pod)
    ]


def priced_bound(work: Workload, rounds: int = 400) -> float:
    """An upper bound that needs no solver, in per cent of the fleet's GPUs.

    Let each block of type t cost p(t) >= 0. Whatever a plan does, its worth is at most the price of all
    blocks plus what each pod is worth beyond the cheapest place for it. That holds for any prices; better
    ones give a lower bound, so the price of what is asked for too much is raised, round by round.
    """
    blocks, pods = _counted(work)
    price = dict.fromkeys(blocks, 1 / work.per_gpu)
    best = math.inf
    for turn in range(rounds):
        used = dict.fromkeys(blocks, 0.0)
        bound = sum(price[t] * n for t, n in blocks.items())
        for count, worth, needs in pods:
            where = min(needs, key=lambda t, needs=needs: needs[t] * price[t])  # type: ignore[misc]
            gain = worth - needs[where] * price[where]
            if gain > 0:
                bound += count * gain
                used[where] += count * needs[where]
        best = min(best, bound)
        step = 0.5 / (1 + turn / 10)
        for size, there in blocks.items():
            price[size] *= math.exp(step * max(-1.0, min(1.0, used[size] / there - 1)))
    return 100 * best / sum(m.gpus for m in work.machines)


def solved_bound(work: Workload, seconds: float) -> float:
    """The lowest bound of that kind, by HiGHS: pods spread over the types of node in fractions."""
    blocks, pods = _counted(work)
    model = solver.Model()
    rows: Mapping[Size, dict[int, float]] = {size: {} for size in blocks}
    for count, worth, needs in pods:
        spread: dict[int, float] = {}
        for size, need in needs.items():
            column = model.column(-worth, count)
            spread[column] = 1
            rows[size][column] = need
        model.row(0, count, spread)
    for size, terms in rows.items():
        model.row(0, blocks[size], terms)
    return -100 * model.solve(whole=False, seconds=seconds).bound / sum(m.gpus for m in work.machines)
