"""The cheapest launches for tasks that all find a place, and a bound that no plan is below.

Ranks that were placed before, that are pinned, that launch nothing, or that share volumes stay where the
search has seated them; all others go where HiGHS says.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from declarative.model.record import dataclass
from declarative.model.state import rank_name
from declarative.placement.counted import SKEW, Class, Counted, Seat
from declarative.placement.ledger import Ledger
from declarative.placement.program import SLACK, Solution, SolverLimits, pack, weigh
from declarative.placement.volumes import serves

if TYPE_CHECKING:
    from declarative.placement.gangs import Seating

SMALL = 30
"""A program that has so many times fewer columns than it might have is solved in one step."""

PROVED = 8
"""One that has so many times fewer is solved as a whole if its whole nodes do not prove the answer."""

LESS, HALF = 2, 2
"""What is solved roughly: a program that has so many times fewer columns then; and one for the most of many
tasks, that has more columns than that part of those that it may have.
"""

TURNS, GOOD = 2, 8
"""A rough program is solved so often at most, or until launches cost no more than so many gaps too much."""

NEARLY = 1e-4
"""A number that is so near a whole one is that."""

LONGER = 5
"""How many times as many nodes of the tree are looked at if there is no solution in a few."""

CLOSE = 0.2
"""The part of the gap within which a small program is solved: what it finds is where a large one starts."""

STARTS = 4
"""A solution is a start for a larger program if it misses the bound by no more than so many gaps."""

MANY = 6
"""Nothing is looked for near a solution of a program that has more columns than a part of what it might have:
what that finds is cheaper by a hundredth or two, and HiGHS takes seconds for it.
"""

NEAR, FAR = 4, 32
DISTANCES = (NEAR, FAR)
"""How far a whole-numbered column may be from the best of fractions; the next one if there is no answer."""


@dataclass(slots=True)
class Known:
    """Programs that were solved: plans that differ in one task or limit have many that are the same."""

    solutions: dict[object, Solution] = field(default_factory=dict)
    work: int = 0
    """What all of them took, in simplex iterations."""


def solve(counted: Counted, limits: SolverLimits, known: Known) -> tuple[float, Ledger | None]:
    """What launches cost at least, USD an hour, or minus the weight that is seated at most; -inf if that
    is not known. And the best ledger that was found.
    """
    if counted.large or not counted.possible:
        return -math.inf, None
    key = (limits, counted.worth, counted.rough, counted.program.key, *sorted(_whole(counted)))
    if key not in known.solutions:
        before = counted.program.work
        if len(counted.program.costs) * SMALL <= limits.columns:
            known.solutions[key] = counted.program.solve(limits)
        elif counted.rough:
            known.solutions[key] = _step(counted, _of_step(limits), whole=None)
        else:
            known.solutions[key] = _in_steps(counted, limits)
        known.work += counted.program.work - before
    found = known.solutions[key]
    return found.bound, ledger_of(counted, found.values) if found.values else None


def rough_of(counted: Counted) -> Counted | None:
    """The rough program for the same, if it is much smaller."""
    rough = counted.roughened() if counted.roughens else None
    smaller = rough and len(rough.program.costs) * LESS <= len(counted.program.costs)
    return rough if counted.large or smaller else None


def most(counted: Counted, limits: SolverLimits, known: Known, *, many: bool) -> tuple[float, Ledger | None]:
    """Minus the weight that is seated at most, and the best ledger that was found. What can be solved roughly
    is not solved exactly if there are `many` tasks, or if that cannot be better.
    """
    large = many and len(counted.program.costs) * HALF > limits.columns
    rough = counted.roughened() if large else rough_of(counted)
    least, best, weight = -math.inf, None, 0
    for program in filter(None, (rough, None if rough and many else counted)):
        program.worth = counted.worth
        lower, ledger = solve(program, limits, known)
        least = max(least, lower)
        if ledger and all(job.index in ledger.seats for job in counted.jobs):
            seated = sum(job.weight for job in counted.may if job.index in ledger.seats)
            best, weight = (ledger, seated) if best is None or seated > weight else (best, weight)
        if -least < max(counted.worth, weight * (1 - SKEW) + counted.step):
            break
    return least, best


def roughly(
    counted: Counted, limits: SolverLimits, known: Known, whole: Callable[[Ledger], Seating]
) -> tuple[float, list[Seating]]:
    """What launches cost at least, by a rough program; and what was found with the launches that it names, if
    tasks that found no place on them are seated by `whole`.
    """
    least = -math.inf
    found: list[Seating] = []
    for turn in range(TURNS):
        lower, ledger = solve(counted, limits, known)
        least = least if turn else lower
        if ledger is None:
            break
        tightened = _tighten(counted, ledger)
        seating = whole(ledger)
        if not seating.left:
            found.append(seating)
        if not tightened or (found and min(one.cost for one in found) <= least * (1 + GOOD * limits.gap)):
            break
    return least, found


def _tighten(counted: Counted, ledger: Ledger) -> bool:
    """Let launched nodes hold less that are cut roughly, and might have held a task that has no place: by the
    part of their blocks that stayed idle. Whether there are such nodes.
    """
    lost = [job for job in counted.jobs if job.index not in ledger.seats]
    first, tightened = len(counted.base.free), False
    for one in counted.classes:
        kinds = {counted.stocks[i].kind for i in one.stocks}
        if one.arcs or not any(job.request.fit.get(kind) for job in lost for kind in kinds):
            continue
        nodes = [node for node in range(first, len(ledger.free)) if ledger.kind_of[node] in kinds]
        total = sum(ledger.board.kinds[ledger.kind_of[node]].total for node in nodes)
        if idle := sum(ledger.free[node] for node in nodes):
            held = {at: at * (1 - idle / total) for at in one.ends}
            weigh(counted.program, one.sizes, one.ends, {size: size for size in one.sizes}, held)
            tightened = True
    return tightened


def _in_steps(counted: Counted, limits: SolverLimits) -> Solution:
    """First with fractions of all, then which nodes are whole, then whose ranks they hold: one step takes
    HiGHS many times as long. The first solution that is good enough is taken.
    """
    limits, nodes = replace(_of_step(limits), rins=not counted.worth), _whole(counted)
    program, start, found = counted.program, Solution(-math.inf, ()), Solution(-math.inf, ())

    def cost(one: Solution) -> float:
        return program.cost(one.values)

    for whole in ((), nodes):
        first = _step(counted, limits, whole=whole, start=start.values)
        if not first.values or (counted.worth and first.bound > -counted.worth):
            return Solution(first.bound, ())
        enough = _enough(counted, limits, first.bound)
        aim = replace(limits, enough=enough)
        found = min(found, _of_used(counted, aim, first), key=cost)
        if cost(found) <= enough:
            return Solution(first.bound, found.values)
        if cost(found) <= first.bound * (1 + limits.gap * STARTS):
            start = found
    if limits.quick and found.values:
        return Solution(first.bound, found.values)
    if limits.quick:
        return Solution(first.bound, min(found, _of_launched(counted, aim, first), key=cost).values)
    found = min(found, _closest(counted, aim, first, found), key=cost)
    open_still = not found.values or (counted.worth and cost(found) > enough)
    if open_still and len(program.costs) * PROVED <= limits.columns:
        return program.solve(limits, start=found.values)
    return Solution(first.bound, found.values)


def _step(
    counted: Counted, limits: SolverLimits, *, whole: Collection[int] | None, start: Sequence[float] = ()
) -> Solution:
    """A step's solution. Where limits are tight, what is left out for brevity may find the only one."""
    found = counted.program.solve(limits, whole=whole, start=start)
    if found.values or not math.isfinite(found.bound):
        return found
    longer = replace(limits, brief=False, nodes=LONGER * limits.nodes)
    return counted.program.solve(longer, whole=whole)


def _enough(counted: Counted, limits: SolverLimits, least: float) -> float:
    """What a solution may cost that is taken, if none costs less than `least`."""
    if counted.worth:  # so that no more weight can be seated; which of equals are, matters less
        return (least + counted.step) / (1 - SKEW)
    return least + max(limits.absolute, limits.gap * least)


def _of_used(counted: Counted, limits: SolverLimits, first: Solution) -> Solution:
    """A solution of whole numbers in which nodes are cut only in ways that another solution uses.

    It takes HiGHS a twentieth of the time that `_closest` takes, and more often than not it is good enough.
    """
    any_number = {column for _, _, column, _ in counted.placed} | _whole(counted)
    any_number.update(column for _, _, column in counted.runs)
    unused = (i for i, value in enumerate(first.values) if value < SLACK and i not in any_number)
    fixed = dict.fromkeys(unused, 0.0)
    limits = replace(limits, gap=CLOSE * limits.gap)
    return counted.program.solve(limits, around=first.values, distance=FAR, fixed=fixed)


def _of_launched(counted: Counted, limits: SolverLimits, first: Solution) -> Solution:
    """A solution of whole numbers with the very launches of another one, which is found or not at once."""
    fixed = {column: first.values[column] for column in _whole(counted)}
    return counted.program.solve(limits, around=first.values, distance=NEAR, fixed=fixed)


def _closest(counted: Counted, limits: SolverLimits, first: Solution, found: Solution) -> Solution:
    """The best solution of whole numbers that is near to another one; far from it only if `found` is none."""
    program = counted.program
    best = _of_launched(counted, limits, first)
    homes = {column: first.values[column] for column in counted.homes}
    dear = not counted.worth and len(program.costs) * MANY > limits.columns
    for distance in DISTANCES:
        known = best.values or found.values
        if program.cost(best.values) <= limits.enough or ((distance == FAR or dear) and known):
            break
        near = program.solve(limits, around=first.values, distance=distance, fixed=homes)
        best = min(best, near, key=lambda one: program.cost(one.values))
        if near.values:
            break
    return best


def _of_step(limits: SolverLimits) -> SolverLimits:
    """Where a program is solved in steps, a solution may be dearer by four times as much."""
    return replace(limits, brief=True, gap=4 * limits.gap)


def bound(counted: Counted, limits: SolverLimits) -> float:
    """What launches cost at least, USD an hour; -inf if that is not known."""
    if counted.large or not counted.possible:
        return -math.inf
    return _relaxed(counted, _of_step(limits)).bound


def _relaxed(counted: Counted, limits: SolverLimits) -> Solution:
    """With whole nodes, and with fractions of ranks."""
    return counted.program.solve(limits, whole=_whole(counted))


def _whole(counted: Counted) -> set[int]:
    """The columns that count what is launched, and say where."""
    stocks = zip(counted.bought, counted.stocks, strict=True)
    return {*counted.homes, *(column for column, stock in stocks if stock.option)}


def ledger_of(counted: Counted, values: Sequence[float]) -> Ledger | None:
    """The ledger that a solution stands for; None if some of its numbers are not whole. Where the program is
    rough, tasks are left out of which a rank finds no place.
    """
    ledger = counted.base.copy()
    slots = [_slots(counted, one, values, ledger) for one in counted.classes]
    queues = {number: iter(piece.seats) for number, piece in enumerate(counted.pieces)}
    of_run = _of_runs(counted, values)
    seats: list[tuple[Seat, int]] = []
    lost: set[int] = set()
    for number, index, column, run in counted.placed:
        count = round(values[column])
        if abs(values[column] - count) > NEARLY:
            return None
        queue = queues[number] if run < 0 else of_run[run, number]
        for seat in itertools.islice(queue, count):
            if here := slots[index][counted.classes[index].takes[number]]:
                seats.append((seat, here.pop()))
            else:
                lost.add(seat[0].index)
    if any(next(queue, None) for queue in (*queues.values(), *of_run.values())) or (
        lost and not counted.rough
    ):
        return None
    for seat, node in seats:
        if seat[0].index not in lost:
            _sit(ledger, seat, node)
    return ledger


def _of_runs(counted: Counted, values: Sequence[float]) -> dict[tuple[int, int], Iterator[Seat]]:
    """Run and piece → the ranks of the tasks that go there."""
    out: dict[tuple[int, int], Iterator[Seat]] = {}
    taken: Counter[int] = Counter()
    for run, (gang, _, column) in enumerate(counted.runs):
        first, count = taken[id(gang)], round(values[column])
        taken[id(gang)] += count
        for number in gang.parts:
            of_jobs = gang.seats[number][first : first + count]
            out[run, number] = itertools.chain.from_iterable(of_jobs)
    return out


def _sit(ledger: Ledger, seat: Seat, node: int) -> None:
    """Seat a rank on a node, with its volumes."""
    job, rank = seat
    ledger.seats.setdefault(job.index, [-1] * job.ranks)[rank] = node
    kind = ledger.kind_of[node]
    ledger.fill(node, job.request.fit[kind])
    mounts, volumes = job.ask.want.mounts, ledger.board.volumes
    if any(mounts) and mounts[rank]:
        place, claims = ledger.board.place_of[kind], ledger.claims
        found = {
            m.path: next(n for n in m.names if n in volumes and n not in claims and serves(volumes[n], place))
            for m in mounts[rank]
        }
        _hold(ledger, seat, found)


def _hold(ledger: Ledger, seat: Seat, volumes: Mapping[str, str]) -> None:
    job, rank = seat
    ledger.volumes[job.index, rank] = volumes
    ledger.claims.update(dict.fromkeys(volumes.values(), f"rank/{rank_name(str(job.task.name), rank)}"))


def _slots(counted: Counted, one: Class, values: Sequence[float], ledger: Ledger) -> Mapping[int, list[int]]:
    """Blocks of a rank → nodes with a place for it, one for each place; the last is to be taken first."""
    nodes = _nodes(counted, one, values, ledger)
    if not one.arcs:
        sizes = sorted(one.sizes, reverse=True)
        counts = {size: sum(round(values[column]) for column in one.sizes[size]) for size in sizes}
        return pack(sorted((idle, node) for idle, own in nodes.items() for node in own), counts)
    leaving: dict[int, list[tuple[int, int]]] = defaultdict(list)
    """Where an arc begins → where it ends and how often it is taken; the long ones are the last."""
    for column, (start, end) in sorted(one.arcs.items(), key=lambda arc: abs(arc[1][1])):
        if count := round(values[column]):
            leaving[start].append((end, count))
    out: dict[int, list[int]] = defaultdict(list)
    for _ in range(sum(map(len, nodes.values()))):
        at, sizes = 0, []
        while leaving[at]:
            end, count = leaving[at].pop()
            if count > 1:
                leaving[at].append((end, count - 1))
            sizes += [end - at] if end > 0 else [1] * (-end - at)
            at = abs(end)
        if not nodes.get(at):
            break
        node = nodes[at].pop()
        for size in sizes:
            out[size].append(node)
    for of_size in out.values():
        of_size.reverse()
    return out


def _nodes(counted: Counted, one: Class, values: Sequence[float], ledger: Ledger) -> dict[int, list[int]]:
    """Idle blocks → the nodes of a class, those that it launches included; the last is to be taken first."""
    out: dict[int, list[int]] = defaultdict(list)
    for i in one.stocks:
        stock, count = counted.stocks[i], round(values[counted.bought[i]])
        if stock.option:
            first = len(ledger.free)
            ledger.launch_idle(stock.option, count)
            out[stock.idle] += range(first, first + count)
        elif count:
            out[stock.idle] += [-n for n in reversed(counted.base.piles[stock.kind][stock.idle][-count:])]
    for found in out.values():
        found.reverse()
    return out


def base_for(start: Ledger, found: Ledger, stay: Collection[int]) -> Ledger:
    """A ledger in which of all tasks that `found` seats only those are seated, where they are there."""
    new: Ledger = start.copy()
    number: dict[int, int] = {}
    option_of = {launch.node: launch for launch in found.launches}
    for index, seats in sorted(found.seats.items()):
        if index not in stay:
            continue
        job = start.board.jobs[index]
        own = []
        for node in seats:
            if node in option_of and node not in number:
                number[node] = len(new.free)
                new.launch_idle(option_of[node].option, 1)
                if option_of[node].name:
                    new.name(len(new.launches) - 1, str(option_of[node].name))
            own.append(number.get(node, node))
            new.fill(own[-1], job.request.fit[new.kind_of[own[-1]]])
        new.seats[index] = own
        for rank in range(len(own)):
            if volumes := found.volumes.get((index, rank)):
                _hold(new, (job, rank), volumes)
    return new
