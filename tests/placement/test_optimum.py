"""The exact search: it launches nothing expensive without need, refuses nothing that fits, and its bounds are
true.
"""

import itertools
import math
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from hypothesis import event, given
from hypothesis.strategies import dictionaries, integers, lists

from benchmarks.placement.check import violations
from declarative.placement import admission, counted, optimum, passes, search, solved
from declarative.placement.assignment import Assignment
from declarative.placement.catalog import Catalog
from declarative.placement.cutting import arcs_of, cut_roughly, pack
from declarative.placement.demand import movable
from declarative.placement.gangs import Seating
from declarative.placement.problem import VolumeAt
from declarative.placement.program import NONE, Program, SolverLimits
from declarative.planner.plan import Cost
from declarative.render.plan import cost_line
from tests.laws.test_placement import LAW
from tests.placement.test_gpus import gpus
from tests.placement.test_placement import ask, fleet, node, offer, places, run
from tests.support.brute import cost, least_cost, placed
from tests.support.worlds import cases

ROOT = Path(__file__).parents[2]
EXACT = 2e-3
"""What a solution may be dearer by than the best: `passes.COST`."""


def gpu(name, model, count, price, **more):
    return offer(
        price, instance_type=name, shape=gpus(model, count, cpu=8 * count, ram=65536 * count), **more
    )


L4, T4, H100 = (
    gpu("l4x1", "L4", 1, 0.996, region="r1"),
    gpu("t4x2", "T4", 2, 1.209, region="r2"),
    gpu("h100x8", "H100", 8, 60.0, region="r1"),
)


def counted_alike(case):
    """Whether the brute force counts the same: not what fleets launch for themselves, nor unknown prices."""
    rules = case.fleets.values()
    return not any(rule.baseline or any(o.price is None for o in rule.offers) for rule in rules)


@LAW
@given(cases())
def test_the_bound_is_true(case):
    """No choice of launches that holds the same tasks is cheaper; all of them are tried."""
    outcome = case.place()
    if outcome.bound is not None and counted_alike(case):
        event("a bound")
        assert outcome.bound <= least_cost(case, placed(outcome)) + 1e-6
        assert outcome.bound <= cost(outcome) + 1e-6


@LAW
@given(cases())
def test_launches_cost_the_least_if_no_task_has_to_stay_where_it_is(case):
    free = all(not a.prior and not a.want.spec.instances and not any(a.want.mounts) for a in case.asks)
    outcome = case.place()
    if free and counted_alike(case) and outcome.bound is not None:
        event("free to go")
        assert cost(outcome) <= least_cost(case, placed(outcome)) * (1 + EXACT) + 1e-6


@LAW
@given(cases())
def test_a_program_that_is_solved_in_steps_finds_nearly_the_least(case):
    free = all(not a.prior and not a.want.spec.instances and not any(a.want.mounts) for a in case.asks)
    with patch.object(optimum, "SMALL", 10**6):
        outcome = case.place()
    if counted_alike(case) and outcome.bound is not None:
        least = least_cost(case, placed(outcome))
        assert outcome.bound <= least + 1e-6
        if free:
            event("free to go")
            assert cost(outcome) <= least * (1 + 4 * passes.COST.gap) + 1e-6


@LAW
@given(cases())
def test_the_columns_for_what_is_seated_hold_it(case):
    """So few columns have a solution, which costs no more."""
    real, asked = passes.Passes.counted, []

    def counted_beside(self, base, jobs, found, may=()):
        program = real(self, base, jobs, found, may)
        free = [*jobs, *may]
        if len(movable(free)) == len(free) and all(map(found.seats, jobs)) and program.size:
            asked.append((program, found))
        return program

    with patch.object(passes.Passes, "counted", counted_beside):
        case.place()
    for program, found in asked:
        every = range(len(program.program.costs))
        zero = set(every) - solved.columns_of(program, found.assignment)
        known = program.program.solve(passes.COST, zero=zero)
        seated = sum(job.weight for job in program.may if found.seats(job))
        most = -seated * (1 - counted.SKEW) if program.may else found.cost
        event("the most" if program.may else "launches")
        assert program.program.cost(known.values) <= most + passes.COST.gap * abs(most) + 1e-6


@LAW
@given(cases())
def test_what_is_solved_roughly_keeps_to_the_rules(case):
    """Though no node's cut is told. Its bound is true, and what it finds costs nearly the least."""
    free = all(not a.prior and not a.want.spec.instances and not any(a.want.mounts) for a in case.asks)
    with patch.object(counted, "ROUGH", 0), patch.object(optimum, "LESS", 0):
        outcome = case.place()
    assert violations(case.asks, case.nodes, case.fleets, case.volumes, outcome) == []
    if counted_alike(case) and outcome.bound is not None:
        least = least_cost(case, placed(outcome))
        assert outcome.bound <= least + 1e-6
        if free:
            event("free to go")
            assert cost(outcome) <= least * (1 + search.FAIR * passes.COST.gap) + 1e-6


@given(lists(lists(integers(1, 9), max_size=6), min_size=1, max_size=4), lists(integers(0, 5), min_size=4))
def test_the_rows_of_a_rough_program_hold_however_nodes_are_cut(nodes, idle):
    """Each node with what lies on it, and how many blocks are idle beside that."""
    program = Program()
    ends: dict[int, list[int]] = {}
    values = [1 for _ in nodes]
    for on_it, rest in zip(nodes, idle, strict=False):
        ends.setdefault(sum(on_it) + rest, []).append(program.column(0.0))
    sizes = {size: {program.column(0.0): 1.0} for size in range(1, 10)}
    values += [sum(on_it.count(size) for on_it in nodes) for size in sizes]
    cut_roughly(program, sizes, ends)
    rows = zip(program.low, program.high, itertools.pairwise(program.starts), strict=True)
    for low, high, (start, end) in rows:
        terms = zip(program.columns[start:end], program.factors[start:end], strict=True)
        assert low <= sum(factor * values[column] for column, factor in terms) <= high


def test_nodes_are_packed_tightly_if_ranks_find_no_place_otherwise():
    """The largest first, where it leaves the least idle: of the first, one of 2 blocks would be left over.
    Then the largest first with what fills its node; of the second, one of 2 blocks would be left over again.
    """
    assert pack([(10, 0), (10, 1)], {5: 1, 4: 2, 3: 1, 2: 2}) == {5: [0], 3: [0], 2: [0, 1], 4: [1, 1]}
    small = [(6, 0), (7, 2), (9, 1)]
    assert pack(small, {5: 2, 4: 1, 3: 2, 2: 1}) == {3: [0, 0], 5: [2, 1], 2: [2], 4: [1]}


def test_a_rough_program_counts_the_nodes_that_hold_a_large_rank():
    """Three of ten nodes hold a rank of 24 blocks, though all have room for more than four of them."""
    program = Program()
    ends: dict[int, list[int]] = {}
    for idle in (2, 4, 11, 16, 18, 20, 21, 31, 32, 32):
        ends.setdefault(idle, []).append(program.column(0.0, 1))
    ranks = program.column(-1.0, 4)
    cut_roughly(program, {24: {ranks: 1.0}, 3: {program.column(0.0, 9): 1.0}}, ends)
    assert program.solve(SolverLimits(nodes=9, columns=99)).values[ranks] == pytest.approx(3)


def test_nodes_are_cut_where_ranks_found_no_place():
    """Those of 96 blocks that hold ranks of 11, and no others; all rough programs know of them."""
    offers = [offer(9.6, cpu=96)]
    rules = {
        name: fleet(name, nodes="0..", blocks=blocks, offers=offers)
        for name, blocks in (("whole", 96), ("half", 48))
    }
    catalog = Catalog(
        [ask("t-0", resources={"cpu": "11.."}), ask("t-1", resources={"cpu": "7.."})], [], rules, {}
    )
    exact = counted.Counted(Assignment.start(catalog), catalog.jobs, {}, 1000)
    rough = exact.roughened()
    assert [one.rough for one in rough.classes] == [True, True]
    assert [one.rough for one in exact.finer().classes] == [True, True]
    rough.lossy.add(1)
    finer = exact.finer()
    assert [one.rough for one in finer.classes] == [True, False]
    assert rough.size < finer.size < exact.size
    rough.lossy.add(0)
    assert exact.finer().size == exact.size
    exact.columns = rough.size
    assert exact.finer().size == rough.size


def test_nodes_with_many_blocks_do_not_make_a_program_too_large(monkeypatch):
    """How each of them is cut takes thousands of columns."""
    monkeypatch.setattr(passes, "COST", replace(passes.COST, columns=400))
    asks = [ask(f"t{i}", resources={"cpu": f"{i}.."}) for i in range(20, 50)]
    rule = fleet(nodes="0..", blocks="auto", offers=[offer(9.6, cpu=96), offer(7.0, cpu=64)])
    out = run(asks, fleets=[rule])
    assert len(out.choices) == 30
    assert out.bound is not None
    assert cost(out) <= out.bound * 1.07


@pytest.mark.parametrize(("part", "large"), [(1.0, False), (1.7, False), (1.8, True)])
def test_a_rough_program_may_have_more_columns_than_others(part, large):
    """Without it there would be no bound, and launches as they come."""
    catalog = _program_of(30, offers=[offer(1.0, cpu=64)]).catalog
    rough = counted.Counted(Assignment.start(catalog), catalog.jobs, {}, 10_000).roughened()
    assert rough.size > 30
    program = counted.Counted(Assignment.start(catalog), catalog.jobs, {}, int(rough.size / part))
    assert program.large
    assert program.roughened().large is large


def beaten(*offers, free=False, **more):
    """The prices of what is left of a fleet's offers once those are left out that no plan needs. If launches
    are `free`, tasks may be left out.
    """
    tasks = [ask("one", resources={"gpu": "L4:1"}), ask("two", resources={"gpu": "2.."})]
    rule = fleet(nodes="0..9", blocks=2, offers=offers, **more)
    catalog = Catalog(tasks, [], {"gpu": rule}, {})
    jobs = ([], catalog.jobs) if free else (catalog.jobs, ())
    program = counted.Counted(Assignment.start(catalog), jobs[0], {}, 1000, jobs[1])
    return [catalog.kinds[stock.kind].price for stock in program.stocks]


def test_an_offer_that_no_plan_needs_is_left_out():
    """Another one of the fleet is cheaper, and holds as much. Not if it has a limit, or lies elsewhere."""
    cheap = gpu("a", "L4", 2, 1.0, region="r1")
    assert beaten(cheap, gpu("b", "L4", 2, 1.1, region="r1")) == [1.0]
    assert beaten(cheap, gpu("b", "L4", 4, 1.1, region="r1")) == [1.0, 1.1]  # both on one half of it
    assert beaten(cheap, gpu("b", "T4", 2, 1.1, region="r1")) == [1.0]  # not the one that wants an L4
    assert beaten(gpu("a", "T4", 2, 1.0, region="r1"), gpu("b", "L4", 2, 1.1, region="r1")) == [1.0, 1.1]
    assert beaten(cheap, gpu("b", "L4", 2, 1.1, region="r2")) == [1.0, 1.1]
    assert beaten(replace(cheap, limit=3), gpu("b", "L4", 2, 1.1, region="r1")) == [1.0, 1.1]
    assert beaten(cheap, gpu("b", "L4", 2, 1.0, region="r1")) == [1.0, 1.0]


def test_where_launches_are_free_an_offer_that_holds_less_is_left_out():
    """What it costs does not matter while it is looked for how many tasks can be seated."""
    dear, half = gpu("b", "L4", 2, 1.1, region="r1"), gpu("a", "T4", 2, 1.0, region="r1")
    assert beaten(half, dear) == [1.0, 1.1]
    assert beaten(half, dear, free=True) == [1.1]
    assert beaten(half, replace(dear, limit=3), free=True) == [1.1, 1.0]


def test_what_sits_where_no_offer_is_needed_has_columns_on_what_holds_as_much():
    """A task is seated on the cheapest offer, which the program for the most seats leaves out."""
    asks, rule = [ask("one", resources={"gpu": 1})], fleet(nodes="0..", blocks="auto", offers=[L4, T4])
    rule = replace(rule, offers=tuple(replace(o, region="r1") for o in rule.offers))
    catalog = Catalog(asks, [], {"gpu": rule}, {})
    found = passes.Passes(catalog).seat(catalog.jobs, "size", wanted={})
    program = counted.Counted(Assignment.start(catalog), [], {}, 1000, catalog.jobs)
    assert [o.offer.instance_type for o in program.beaten] == ["l4x1"]
    assert [new.option.offer.instance_type for new in found.assignment.launches] == ["l4x1"]
    every = range(len(program.program.costs))
    zero = set(every) - solved.columns_of(program, found.assignment)
    assert program.program.cost(program.program.solve(passes.SEATS, zero=zero).values) < 0


def test_the_columns_of_a_gang_are_found_where_it_sits(monkeypatch):
    """Not by trying all fleets for each gang: there may be a thousand of both."""
    asks = [ask(f"t{i}", nodes=2, placement="cluster", resources={"cpu": "5.."}) for i in range(10)]
    rules = {
        name: fleet(name, "0..2", [offer(1.0 + i, cpu=8, region=name)], blocks="auto", placement="cluster")
        for i, name in enumerate(f"f{i}" for i in range(12))
    }
    catalog = Catalog(asks, [], rules, {})
    found = passes.Passes(catalog).seat(catalog.jobs, "size", wanted={})
    program = counted.Counted(Assignment.start(catalog), catalog.jobs, {}, 1000)
    assert (found.left, len(program.runs) >= 12, bool(program.program)) == ([], True, True)
    tried, seat = [], solved._Taken.seat

    def trying(self, seats, run):
        tried.append(run)
        return seat(self, seats, run)

    monkeypatch.setattr(solved._Taken, "seat", trying)
    taken = solved.columns_of(program, found.assignment)
    assert len(tried) == len(asks)
    assert len(taken & {column for _, _, column in program.runs}) == len(asks)


@given(dictionaries(integers(1, 7), integers(1, 4), min_size=1), integers(1, 16))
def test_the_arcs_hold_each_cut_of_a_node(most, last):
    """Whatever fits on it, the larger ranks first, is one way along the arcs."""
    arcs = set(arcs_of(most, last))
    sizes = sorted(most, reverse=True)
    for counts in itertools.product(*(range(most[size] + 1) for size in sizes)):
        ranks = [size for size, count in zip(sizes, counts, strict=True) for _ in range(count)]
        if sum(ranks) <= last:
            starts = itertools.accumulate(ranks, initial=0)
            assert set(zip(starts, ranks, strict=False)) <= arcs
    assert all(start + size <= last for start, size in arcs)


def test_the_arcs_are_few_where_ranks_are_few():
    """One of 16 blocks begins at 0 alone, one of 5 behind it or behind nothing."""
    assert arcs_of({16: 1, 5: 1}, 32) == [(0, 16), (0, 5), (16, 5)]


def test_ranks_of_one_block_sit_where_nothing_else_does():
    """They have no arcs of their own, and need not fill the node."""
    asks = [ask("three", resources={"gpu": 3}), *(ask(f"t{i}", resources={"gpu": 1}) for i in range(6))]
    rule = fleet(nodes="0..", blocks="auto", offers=[H100])
    catalog = Catalog(asks, [], {"gpu": rule}, {})
    program = counted.Counted(Assignment.start(catalog), catalog.jobs, {}, 100)
    assert len(program.program.costs) == program.size
    assert [len(one.arcs) for one in program.classes] == [3]  # 0 to 3, and what is left before and behind 3
    out = run(asks, fleets=[rule])
    assert cost(out) == pytest.approx(2 * 60.0)
    assert len(out.choices) == 7


@LAW
@given(cases())
def test_a_program_that_is_solved_in_steps_seats_as_much(case):
    """Of each priority, whichever tasks those are."""
    catalog = Catalog(case.asks, case.nodes, case.fleets, case.volumes)
    least = search.Search(catalog).run().value[0]
    with patch.object(optimum, "SMALL", 10**6):
        assert search.Search(catalog).run().value[0] == least


def test_seats_are_enough_if_none_could_be_added():
    """Whichever of equals they are: HiGHS takes long to tell those apart, by a thousandth of their weight."""
    catalog = Catalog(
        [ask(f"t{i}", nodes=2, exclusive=False, resources={"gpu": 1}) for i in range(9)], [], {}, {}
    )
    program = counted.Counted(Assignment.start(catalog), [], {}, 100, catalog.jobs)
    for bound, weight in ((-17.9, 16), (-17.99, 18), (-18, 18), (-19.9, 18)):
        enough = optimum._enough(program, passes.SEATS, bound)
        assert -weight * (1 - counted.SKEW) <= enough < 2 - weight


def _program_of(number=5, *, may=False, **rule):
    """Unlike tasks, and the program for them, or for the most of them."""
    asks = [ask(f"t{i}", resources={"cpu": f"{i + 1}.."}) for i in range(number)]
    own = fleet(**{"nodes": "0..", "blocks": "auto", "offers": [L4, T4, H100], **rule})
    catalog = Catalog(asks, [], {"gpu": own}, {})
    jobs = catalog.jobs
    return counted.Counted(Assignment.start(catalog), [] if may else jobs, {}, 1000, jobs if may else ())


def test_a_solution_that_seats_the_most_tasks_launches_only_what_they_use():
    """Launches cost nothing in its program: it may name any number of them."""
    program = _program_of(5, may=True)
    values = list(program.program.solve(passes.SEATS).values)
    for column in program.bought:
        values[column] += 50
    assignment = solved.assignment_of(program, values)
    assert assignment is not None
    used = {node for nodes in assignment.seats.values() for node in nodes}
    assert len(assignment.seats) == 5
    assert {launch.node for launch in assignment.launches} == used


@pytest.mark.parametrize("small", [1, 10**6])
def test_few_columns_are_looked_at_first(monkeypatch, small):
    """They are enough here, so all are not."""
    monkeypatch.setattr(optimum, "SMALL", small)
    monkeypatch.setattr(optimum, "_in_steps", None)
    seen = []
    real = Program.solve

    def solve(self, limits, **how):
        seen.append((how.get("whole"), "zero" in how))
        return real(self, limits, **how)

    monkeypatch.setattr(Program, "solve", solve)
    known = optimum.Known()
    least, assignment = optimum.solve(
        _program_of(5, offers=[L4, replace(H100, price=9.0)]), passes.COST, known
    )
    assert seen[0] == ((), False)
    assert len(seen) > 1
    assert set(seen[1:]) == {(None, True)}
    assert assignment
    assert least <= Seating(assignment, []).cost <= least * (1 + 12 * passes.COST.gap)


@pytest.mark.parametrize("large", [False, True])
def test_what_few_columns_do_not_answer_is_looked_for_with_all(monkeypatch, large):
    """None may be used of which no fraction is, and the bound is not reached: all of them prove it. Those of
    a large program find something at least.
    """
    monkeypatch.setattr(optimum, "FEW_COST", (optimum.Few(0, False, 0),))
    if large:
        monkeypatch.setattr(optimum, "PROVED", 10**6)
        monkeypatch.setattr(optimum, "SMALL", 10**6)
        monkeypatch.setattr(optimum, "_with_few", lambda *_: NONE)
    program = _program_of(5, offers=[H100, replace(L4, price=3.0)])
    least, assignment = optimum.solve(program, passes.COST, optimum.Known())
    assert assignment
    assert least == pytest.approx(Seating(assignment, []).cost, rel=passes.COST.gap)


@pytest.mark.parametrize("seated", [False, True])
def test_columns_for_what_is_seated_are_always_looked_at(monkeypatch, seated):
    """A rank is on the offer that is cheaper, of which there is none: nothing is found with the other columns
    that are left.
    """
    monkeypatch.setattr(optimum, "SMALL", 10**6)
    monkeypatch.setattr(optimum, "PROVED", 10**6)
    monkeypatch.setattr(optimum, "FEW_COST", (optimum.Few(0, False, 1),))
    program = _program_of(1)
    real = Program.solve
    fractions = program.program.solve(passes.COST, whole=())
    if seated:
        program.incumbent = solved.assignment_of(program, program.program.solve(passes.COST).values)
    none = replace(fractions, values=[0.0] * len(fractions.values))
    monkeypatch.setattr(Program, "solve", lambda *args, **how: none if "whole" in how else real(*args, **how))
    _, assignment = optimum.solve(program, replace(passes.COST, quick=True), optimum.Known())
    assert bool(assignment) == seated


def test_a_fleet_begins_at_one_place_where_all_else_is_fractions():
    """Half at either would let it have both nodes."""
    asks = [ask(f"t{i}", resources={"cpu": 8}) for i in range(2)]
    offers = [offer(1.0, cpu=8, region=region, limit=1) for region in ("east", "west")]
    rule = fleet(nodes="0..", placement="cluster", offers=offers)
    catalog = Catalog(asks, [], {"gpu": rule}, {})
    program = counted.Counted(Assignment.start(catalog), [], {}, 1000, catalog.jobs)
    assert len(program.homes) == 2
    weight = catalog.jobs[0].weight
    fractions = program.program.solve(passes.SEATS, whole=())
    found = optimum._fractions(program, passes.SEATS)
    assert fractions.bound < -1.9 * weight < -1.1 * weight < found.bound
    assert {round(found.values[i], 6) for i in program.homes} == {0, 1}
    assert len(found.duals) == len(found.values)


def test_the_best_of_each_sort_stay():
    """By what one more of them adds to the cost; and all for ranks on nodes that are in use."""
    program = _program_of(5, offers=[offer(1.0 + n, cpu=n, limit=9) for n in range(4, 30)])
    fractions = program.program.solve(passes.COST, whole=())
    out = {
        many: set(optimum._left_out(program, fractions, optimum.Few(many, False, 1))) for many in (0, 1, 99)
    }
    assert out[0] == {i for i, value in enumerate(fractions.values) if value < 1e-6}
    assert out[99] == set() < out[1] < out[0]
    unused = [[i for piece, _, i, _ in program.placed if piece == n and i in out[0]] for n in range(5)]
    for own in filter(None, unused):
        assert [fractions.duals[i] for i in own if i not in out[1]] == [
            min(map(fractions.duals.__getitem__, own))
        ]
    used = optimum._left_out(program, fractions, optimum.Few(0, True, 1))
    in_use = {
        i
        for i, one in enumerate(program.classes)
        if any(fractions.values[program.bought[j]] > 0 for j in one.stocks)
    }
    assert {index for _, index, column, _ in program.placed if column in used} == (
        set(range(len(program.classes))) - in_use
    )


@pytest.mark.parametrize("repaired", [False, True])
def test_a_rough_solution_that_lacks_a_task_is_repaired(repaired, monkeypatch):
    """One that has to be seated: without it, all that was found for the others would be lost."""
    offers = [offer(9.6, cpu=96)]
    asks = [ask("must", resources={"cpu": "9.."}), ask("may", resources={"cpu": "9.."})]
    catalog = Catalog(asks, [], {"gpu": fleet(nodes="0..", blocks="auto", offers=offers)}, {})
    may, must = catalog.jobs
    program = counted.Counted(Assignment.start(catalog), [must], {}, 1000, [may]).roughened()
    real = solved.assignment_of

    def lacking(counted, values, without=()):
        counted.loose = {*counted.loose, must.index}
        found = real(counted, values, without)
        counted.seated = {may.index}
        return found

    def whole(assignment):
        assert not assignment.seats  # neither the task that it lacks, nor the one that may be left out
        return passes.Passes(catalog).seat(catalog.jobs, "size", wanted={}, first=assignment).assignment

    monkeypatch.setattr(optimum, "assignment_of", lacking)
    monkeypatch.setattr(optimum, "rough_of", lambda _: program)
    more = {"whole": whole} if repaired else {}
    _, assignment = optimum.most(program, passes.SEATS, optimum.Known(), math.inf, many=True, **more)
    assert (set(assignment.seats) if assignment else None) == ({may.index, must.index} if repaired else None)


@pytest.mark.parametrize(
    ("few", "columns", "quick"), [(1, 0, (False, False)), (0, 0, (True, True)), (0, 99, (False, True))]
)
def test_seats_are_looked_for_longer_where_tasks_are_few(monkeypatch, few, columns, quick):
    """And by a program that is exact, however large it is; or where the program is small."""
    monkeypatch.setattr(passes.Passes, "few", few)
    monkeypatch.setattr(admission, "FEW_COLUMNS", columns)
    monkeypatch.setattr(optimum, "HALF", 10**6)
    seen = []

    def solve(counted, limits, _known):
        seen.append((limits.quick, counted.rough))
        return -math.inf, None

    monkeypatch.setattr(optimum, "solve", solve)
    catalog = Catalog([ask(resources={"gpu": 1})], [], {"gpu": fleet(nodes="0..1", offers=[L4])}, {})
    found = search.Search(catalog)
    (job,) = catalog.jobs
    found.admission._most(Seating(found.passes.start, [job]), [], [job], [job], gain=None, until=math.inf)
    assert seen == [quick]


def test_what_fits_beside_all_is_looked_for_whatever_was_drawn(monkeypatch):
    """The search in the stead of others may have taken all the work: a refusal would be needless."""
    left = []

    def most(its, *_args, until, **_how):
        left.append(until - its.known.drawn)
        its.known.drawn += 1000
        return None, False, False

    monkeypatch.setattr(admission.Admission, "_most", most)
    catalog = Catalog([ask(resources={"gpu": 1})], [], {"gpu": fleet(nodes="0..1", offers=[L4])}, {})
    found = search.Search(catalog)
    found.admission._more(
        Seating(found.passes.start, list(catalog.jobs)), catalog.jobs, catalog.levels[0], 7.0
    )
    assert left == pytest.approx([7.0, found.passes.least_seating])


@pytest.mark.parametrize("drawn", [False, True])
def test_a_program_gets_less_work_once_that_for_seats_is_drawn(monkeypatch, drawn):
    seen = []

    def most(_counted, limits, *_args, **_how):
        seen.append(limits.work)
        return -math.inf, None

    monkeypatch.setattr(admission, "most", most)
    catalog = Catalog([ask(resources={"gpu": 1})], [], {"gpu": fleet(nodes="0..1", offers=[L4])}, {})
    found = search.Search(catalog)
    found.known.drawn = found.passes.seats_drawn if drawn else 0.0
    (job,) = catalog.jobs
    found.admission._most(Seating(found.passes.start, [job]), [], [job], [job], gain=None, until=math.inf)
    assert seen == [found.passes.least_seating if drawn else found.passes.seats.work]
    assert found.passes.least_seating < found.passes.seats.work


@pytest.mark.parametrize(("drawn", "times"), [(0, 2), (10**6, 1)])
def test_those_with_places_are_seated_without_the_others_while_there_is_work(monkeypatch, drawn, times):
    """So that a task that is left out changes nothing for the others."""
    asked = []
    asks = [ask(resources={"gpu": 1}), ask("big", resources={"gpu": 9})]
    catalog = Catalog(asks, [], {"gpu": fleet(nodes="0..1", offers=[L4])}, {})
    found = search.Search(catalog)
    real = admission.Admission.fullest

    def fullest(its, jobs, *more):
        asked.append(len(jobs))
        out = real(its, jobs, *more)
        its.known.drawn += drawn
        return out

    monkeypatch.setattr(admission.Admission, "fullest", fullest)
    assert len(found.run().assignment.seats) == 1
    assert asked == [2, 1][:times]


@pytest.mark.parametrize(("columns", "roughly"), [(99, False), (0, True)])
def test_a_small_program_is_solved_exactly_at_once(monkeypatch, columns, roughly):
    """A rough one takes as long, and leaves ranks without a place."""
    monkeypatch.setattr(optimum, "FEW_COLUMNS", columns)
    monkeypatch.setattr(optimum, "LESS", 1)
    offers = [offer(9.6, cpu=96)]
    catalog = Catalog(
        [ask(resources={"cpu": "9.."}), ask("other", resources={"cpu": "13.."})],
        [],
        {"gpu": fleet(nodes="0..", blocks="auto", offers=offers)},
        {},
    )
    program = counted.Counted(Assignment.start(catalog), catalog.jobs, {}, 1000)
    assert program.roughens
    for one in (program, program.roughened()):
        assert len(one.program.costs) == one.size
    assert bool(optimum.rough_of(program)) == roughly


def test_a_program_is_solved_once(monkeypatch):
    """What makes a refused task fit is looked for in plans that have most of their programs in common."""
    rule = fleet(nodes="0..", blocks="auto", offers=[L4, T4])
    catalog = Catalog([ask("one", resources={"gpu": 1})], [], {"gpu": rule}, {})
    known = optimum.Known()
    assert search.Search(catalog, 1, known).run().cost == pytest.approx(0.996)
    assert known.solutions
    work = known.work
    assert known.drawn == work > 0
    monkeypatch.setattr(Program, "solve", None)
    assert search.Search(catalog, 1, known).run().cost == pytest.approx(0.996)
    assert known.work == work
    assert known.drawn == pytest.approx(2 * work)


def _hard():
    """Three sums of thirty columns that are to be exact: HiGHS looks at thousands of nodes for that."""
    chance, program = random.Random(7), Program()
    columns = [program.column(chance.randint(90, 110), 1) for _ in range(30)]
    for _ in range(3):
        terms = {column: float(chance.randint(1, 99)) for column in columns}
        program.row(sum(terms.values()) // 2, math.inf, terms)
    return program


def test_a_search_for_whole_numbers_ends_when_its_work_is_done():
    """It is counted, and the same each time; what was found until then holds."""
    limits = SolverLimits(nodes=3_000, columns=100)
    full, first, second = _hard(), _hard(), _hard()
    best = full.solve(limits)
    first.most_work = second.most_work = 0.1 * full.work
    found = first.solve(limits)
    assert found == second.solve(limits)
    assert first.most_work < first.work == second.work < 0.7 * full.work
    assert found.bound < best.bound <= first.cost(found.values)
    assert first.solve(limits, whole=()) == NONE


def test_a_large_program_of_fractions_costs_the_same_by_an_interior_point_method():
    program = _program_of(5, offers=[L4, T4, H100]).program
    simplex, interior = (
        program.solve(replace(passes.COST, interior=fast), whole=()) for fast in (False, True)
    )
    assert interior.bound == pytest.approx(simplex.bound)
    assert len(interior.duals) == len(simplex.duals)


def _three():
    """A task of 5 GPUs and two of 4, on a node of 8: as many blocks as can be seated are the two's."""
    return [ask(name, resources={"gpu": count}) for name, count in (("t5", 5), ("t4", 4), ("u4", 4))]


def test_a_plan_does_without_programs_that_would_take_too_much(monkeypatch):
    """It says that it proved nothing then."""
    nodes = [node("gpu-0", shape=gpus("H100", 8, cpu=8), total=8)]
    (refusal,) = run(_three(), nodes).refusals
    assert (refusal.task, refusal.proved) == ("t5", True)
    monkeypatch.setattr(passes, "WORK", 0)
    proved = {refusal.task: refusal.proved for refusal in run(_three(), nodes).refusals}
    assert proved == {"t4": False, "u4": False}


def test_programs_for_each_priority_may_take_some_work(monkeypatch):
    """Even if those for the priorities above it took all: else dozens of its tasks would be refused."""
    nodes = [node("gpu-0", shape=gpus("H100", 8, cpu=8), total=8)]
    monkeypatch.setattr(passes, "SEATING", 0)
    (refusal,) = run(_three(), nodes).refusals
    assert (refusal.task, refusal.proved) == ("t5", True)
    monkeypatch.setattr(passes, "LEAST_SEATING", 0)
    assert len(run(_three(), nodes).refusals) == 2


@pytest.mark.parametrize(("work", "until"), [(passes.WORK, -1.0), (0, 1e9)])
def test_no_hint_comes_of_a_plan_that_would_do_without_programs(monkeypatch, work, until):
    """The plan that is made for a hint stops where another one might differ from it."""
    catalog = Catalog(_three(), [], {"gpu": fleet(nodes="0..1", blocks="auto", offers=[H100])}, {})
    assert set(search.Search(catalog, until=1e9).seated()) == {0, 2}
    monkeypatch.setattr(passes, "WORK", work)
    with pytest.raises(admission.TooMuchWorkError):
        search.Search(catalog, until=until).seated()


def test_a_program_that_took_all_its_work_leaves_some_for_few_columns():
    """Launches by fractions alone would be none."""
    program = _program_of(5, offers=[L4, replace(H100, price=9.0)])
    least, assignment = optimum.solve(program, replace(passes.COST, work=2), optimum.Known())
    assert assignment is not None
    assert least <= Seating(assignment, []).cost


def test_launches_are_looked_for_longer_if_no_program_had_an_answer(monkeypatch):
    """Else the plan would cost what its first order of tasks costs."""
    asks = [ask(name, resources={"gpu": 1, "cpu": "2.."}) for name in ("one", "two")]
    rules = [fleet(nodes="0..", blocks="auto", offers=[L4, T4, H100])]
    monkeypatch.setattr(passes, "WORK", 0)
    assert run(asks, [], rules).bound == pytest.approx(1.209)
    monkeypatch.setattr(passes, "COST", replace(passes.COST, work=0))
    assert run(asks, [], rules).bound is None


@pytest.mark.parametrize(
    ("above", "columns", "thoroughly"), [(1.02, 1_000, False), (1.05, 1_000, True), (1.05, 3, False)]
)
def test_a_rough_program_is_searched_thoroughly_where_launches_are_dear(
    monkeypatch, above, columns, thoroughly
):
    """But not if it is large."""
    monkeypatch.setattr(optimum, "MOST_THOROUGH", columns)
    asked = []

    def solve(_program, limits, **_how):
        asked.append(limits.brief)
        return NONE

    program = _program_of(5).roughened()
    found = program.program.solve(passes.COST)
    program.program.most_work = program.program.work
    monkeypatch.setattr(Program, "solve", solve)
    bound = program.program.cost(found.values) / above
    optimum._solve_roughly(program, passes.COST, replace(found, bound=bound), found)
    assert asked == [False] * thoroughly


def test_no_step_of_a_program_is_taken_twice(monkeypatch):
    """It counts as work again, so that there is no more for what comes after it. Programs that are the same
    share what they found, unless their work ended it.
    """
    runs = []
    real = Program._run

    def run(*how, **more):
        runs.append(more)
        return real(*how, **more)

    monkeypatch.setattr(Program, "_run", run)
    program = _program_of(5)
    rough, again = program.roughened(), program.roughened()
    found = optimum._solve(rough, passes.COST)
    work, times = rough.program.work, len(runs)
    assert times > 1
    assert optimum._solve(rough, passes.COST) == optimum._solve(again, passes.COST) == found
    assert rough.program.work == pytest.approx(2 * work)
    assert len(runs) == times
    again.program.solve(passes.COST, zero=[0])
    assert len(runs) == times + 1
    monkeypatch.setattr(Program, "_run", lambda *_, **__: False)
    again.program.solve(passes.COST, zero=[1])
    monkeypatch.setattr(Program, "_run", run)
    again.program.solve(passes.COST, zero=[1])
    assert len(runs) == times + 2


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize(
    ("far", "quick", "found", "again"),
    [(0.5, False, 1, [0.5]), (1.5, False, 1, []), (0.5, True, 1, []), (1.5, False, 0, [1.0])],
)
def test_launches_far_above_the_bound_are_looked_for_once_more(monkeypatch, far, quick, found, again, few):
    """Here they cost twice the bound, or no program had an outcome: then with all work, as for few tasks."""
    monkeypatch.setattr(counted, "EXACT", 100 if few else 0)
    work = []

    def by(_search, _program, _jobs, limits):
        work.append(limits.work)
        assert limits.quick is quick
        return 1.0, [Mock(cost=2.0)] * found

    monkeypatch.setattr(search.Search, "_by", by)
    monkeypatch.setattr(search, "FAR_ABOVE", far)
    program = _program_of(5)
    search.Search(program.catalog)._by_programs(program, program.jobs, quick=quick)
    assert work[0] < passes.COST.work
    assert work[1:] == [(1.0 if few else part) * passes.COST.work for part in again]


def test_the_second_look_tells_how_nodes_are_cut_that_lacked_places(monkeypatch):
    """By a new program."""
    asked = []

    def by(_search, program, _jobs, _most):
        asked.append(program)
        program.lossy.add(0)
        return 1.0, []

    monkeypatch.setattr(counted, "ROUGH", 0)
    monkeypatch.setattr(search.Search, "_by", by)
    monkeypatch.setattr(search, "rough_of", counted.Counted.roughened)
    monkeypatch.setattr(passes.Passes, "work_left", 0)
    program = _program_of(5)
    search.Search(program.catalog)._by_programs(program, program.jobs)
    first, second = (program for program in asked if program.rough)
    assert [one.rough for one in (*first.classes, *second.classes)] == [True, False]
    assert first is not second


@pytest.mark.parametrize(
    ("work", "cost", "exactly"), [(0, 1.05, True), (0, 1.02, False), (1, 1.05, True), (1e9, 1.05, False)]
)
def test_what_a_rough_program_found_may_be_enough(monkeypatch, work, cost, exactly):
    """The exact one is solved if that is more than 3 % above the bound, unless its fractions alone take all
    work that is left.
    """
    asked = []

    def by(_search, program, _jobs, _most):
        asked.append(program.rough)
        return 1.0, [Mock(cost=cost)]

    program = _program_of(5)
    monkeypatch.setattr(search.Search, "_by", by)
    monkeypatch.setattr(search, "rough_of", counted.Counted.roughened)
    monkeypatch.setattr(search, "least_work", lambda _: work)
    search.Search(program.catalog)._by_programs(program, program.jobs)
    assert asked == [True, False][: 1 + exactly]


@pytest.mark.parametrize(("work", "asked_for"), [(0, [False]), (1e9, [True])])
def test_a_rough_program_that_is_not_much_smaller_is_solved_if_the_exact_one_takes_too_much(
    monkeypatch, work, asked_for
):
    asked = []

    def by(_search, program, _jobs, _most):
        asked.append(program.rough)
        return 1.0, [Mock(cost=1.0)]

    program = _program_of(5)
    monkeypatch.setattr(counted, "ROUGH", 0)
    monkeypatch.setattr(search.Search, "_by", by)
    monkeypatch.setattr(search, "rough_of", lambda _: None)
    monkeypatch.setattr(search, "least_work", lambda _: work)
    search.Search(program.catalog)._by_programs(program, program.jobs)
    assert asked == asked_for


def test_the_bound_is_not_that_of_a_program_that_was_tightened(monkeypatch):
    """Rows by which nodes hold less than they may are no part of the one that is solved at last."""
    rows = []

    def by(_search, program, _jobs, _most):
        rows.append(len(program.program.low))
        if program.rough:
            program.program.row(0, 0, {0: 1.0})
            program.lossy = {0}
        return 1.0, []

    program = _program_of(5)
    monkeypatch.setattr(search.Search, "_by", by)
    monkeypatch.setattr(search, "rough_of", counted.Counted.roughened)
    search.Search(program.catalog)._by_programs(program, program.jobs)
    assert rows[-1] == rows[0]


@pytest.mark.parametrize(("few", "tried"), [(2, 1), (3, 2)])
def test_of_many_tasks_one_that_finds_no_place_is_enough_to_keep_what_was_found(monkeypatch, few, tried):
    """Those that had places are planned again without the others, to find the same whoever else asks."""
    seen = []
    monkeypatch.setattr(passes.Passes, "few", few)
    monkeypatch.setattr(admission.Admission, "_with", lambda _self, job, _keep: seen.append(job))
    catalog = _program_of(3).catalog
    found = search.Search(catalog)
    found.admission._admit(Seating(found.passes.start, catalog.jobs), catalog.jobs, catalog.jobs[:2])
    assert len(seen) == tried


def test_the_bound_of_what_stays_where_it_is_ends_when_its_work_is_done():
    """That program is solved beside those of the plan, and has its part of the work."""
    assert optimum.bound(_program_of(5), passes.COST) > 0
    assert optimum.bound(_program_of(5), replace(passes.COST, work=0)) == -math.inf


@pytest.mark.parametrize("spent", [False, True])
def test_no_program_for_the_most_tasks_is_begun_when_all_is_drawn(spent):
    program = _program_of(5, offers=[L4], may=True)
    known = optimum.Known(drawn=10.0)
    least, assignment = optimum.most(program, passes.SEATS, known, 10.0 if spent else 11.0, many=False)
    assert (assignment is None, least == -math.inf) == (spent, spent)


def test_a_solution_that_is_good_enough_is_taken():
    """Three columns that may stand for each other: without an end, or a start, the cheapest is found."""
    program = Program()
    program.row(3, 3, dict.fromkeys([program.column(price, 3) for price in (1.0, 1.5, 2.0)], 1.0))
    limits = SolverLimits(nodes=30, columns=100)
    assert program.cost(program.solve(limits).values) == 3
    assert program.cost(program.solve(limits, start=(0, 0, 3)).values) == 3
    assert program.cost(program.solve(replace(limits, nodes=0, enough=6), start=(0, 0, 3)).values) <= 6
    assert program.cost(()) == math.inf


def test_a_start_does_not_end_the_search():
    """HiGHS 1.16 takes this one, which buys without need, for so cheap that it looks for no other."""
    program = Program()
    bought = [program.column(cost, most) for cost, most in ((0.797, 2), (1.462, 5), (1.462, 5), (1.851, 2))]
    a, b, c, d, e, f, g, h, i = (
        program.column(0, most) for most in (3, 3, 1, 1, 3, math.inf, 1, math.inf, 4)
    )
    program.row(3, 3, {a: 1, b: 1})
    program.row(1, 1, {c: 1, d: 1})
    program.row(1, 1, {e: 1, f: 1, bought[1]: -1})
    program.row(-math.inf, 0, {e: -1, a: 1})
    program.row(0, 0, {g: 1, h: 1, bought[0]: -1})
    program.row(-math.inf, 0, {g: -1, c: 1})
    program.row(0, 0, {i: 1, bought[2]: -1})
    program.row(-math.inf, 0, {i: -1, b: 1, d: 1})
    limits = SolverLimits(nodes=30, columns=100, brief=True)
    start = (1, 2, 0, 1, 3, 0, 1, 0, 3, 0, 1, 0, 0)
    found = program.solve(limits, whole=bought, start=start)
    assert found.bound == pytest.approx(0.797 + 2 * 1.462)
    assert program.cost(found.values) == pytest.approx(0.797 + 2 * 1.462)


def test_an_added_offer_makes_nothing_dearer():
    """Two unlike tasks: one node of two T4s holds both, whatever else is offered."""
    asks = [
        ask("one", resources={"gpu": 1, "cpu": "2.."}),
        ask("two", resources={"gpu": 1, "memory": "9GB.."}),
    ]
    for offers in ([L4, T4], [L4, T4, H100]):
        out = run(asks, fleets=[fleet(nodes="0..", blocks="auto", offers=offers)])
        assert cost(out) == pytest.approx(1.209)
        assert out.bound == pytest.approx(1.209)


def test_a_short_fleet_launches_what_holds_most():
    """Four tasks on `nodes: 0..1`: the offer that is cheapest for one of them alone would hold one."""
    asks = [ask(name, resources={"gpu": 1}) for name in ("one", "two", "three", "four")]
    out = run(asks, fleets=[fleet(nodes="0..1", blocks="auto", offers=[L4, T4])])
    assert len(out.choices) == 2
    assert [launch.instance_type for launch in out.launches] == ["t4x2"]


def test_idle_blocks_go_to_whom_they_save_most():
    """Both fit on the idle node; only one of them can be had for little elsewhere."""
    idle = node("gpu-0", total=1, shape=gpus("A100", 1, cpu=8, ram=65536), price=3.0)
    asks = [ask("large", resources={"gpu": "A100,H100:1"}), ask("small", resources={"gpu": 1})]
    out = run(asks, [idle], [fleet(nodes="0..", blocks="auto", offers=[L4, H100], existing=1)])
    assert places(out)["large-0"] == ("gpu-0", (0,))
    assert cost(out) == pytest.approx(0.996)


def test_the_same_input_gives_the_same_plan():
    rng = random.Random(7)
    sizes = [{"cpu": f"{cpu}.."} for cpu in (1, 2, 3, 5)]
    asks = [ask(f"t-{i}", resources=sizes[i % 4]) for i in range(40)]
    offers = [offer(price, cpu=cpu, instance_type=f"c{cpu}") for cpu, price in ((8, 1.0), (16, 1.9), (32, 4))]
    first = run(asks, fleets=[fleet(nodes="0..", blocks=8, offers=offers)])
    for _ in range(3):
        rng.shuffle(asks)
        rng.shuffle(offers)
        assert run(asks, fleets=[fleet(nodes="0..", blocks=8, offers=offers)]) == first


def test_nothing_is_written_to_the_screen(capfd):
    """HiGHS has a banner."""
    test_an_added_offer_makes_nothing_dearer()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("why", ["absent", "too many pairs", "too many columns"])
def test_without_the_exact_search_the_other_one_answers(why, monkeypatch):
    """And the distance from the least possible is not known."""
    if why == "absent":
        monkeypatch.setitem(sys.modules, "highspy._core", None)
    elif why == "too many pairs":
        monkeypatch.setattr(counted, "MOST_PAIRS", 0)
    else:
        monkeypatch.setattr(passes, "COST", replace(passes.COST, columns=1))
    asks = [ask(name, resources={"gpu": 1}) for name in ("one", "two")]
    out = run(asks, fleets=[fleet(nodes="0..", blocks="auto", offers=[L4, T4])])
    assert len(out.choices) == 2
    assert out.bound is None


@pytest.mark.parametrize(
    ("after", "bound", "line"),
    [
        (203.8, 201.0, "Cost: 0.00 → 203.80 USD/h (at most 1.4 % above the least possible)"),
        (203.8, 203.79, "Cost: 0.00 → 203.80 USD/h (the least possible)"),
        (203.8, None, "Cost: 0.00 → 203.80 USD/h (not compared with the least possible)"),
        (0.0, 0.0, "Cost: 0.00 USD/h (unchanged)"),
    ],
)
def test_the_plan_says_how_far_it_is_above_the_least_possible(after, bound, line):
    assert cost_line(Cost(before=0.0, after=after, bound=bound)) == line


def test_the_solver_is_imported_only_when_it_is_needed():
    """It takes a tenth of a second, which a plan without launches does not have."""
    code = """
import sys
from tests.placement.test_placement import ask, fleet, node, offer, run
run(ask(resources={"cpu": 1}), [node("gpu-0")])
assert "numpy" not in sys.modules
run(ask(resources={"cpu": "1.."}), [node("gpu-0", held=[0, 1, 2, 3])], [fleet(offers=[offer()])])
assert "numpy" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("seed", range(12))
def test_of_alternatives_that_another_holds_the_other_one_is_taken(seed):
    """Among mixed tasks, which the exact search seats anew."""
    rng = random.Random(seed)
    near: Any = {"backend": "b", "region": "r1", "zone": None}
    volumes = {"held": VolumeAt(**near, holder="rank/old-0"), "idle": VolumeAt(**near)}
    asks = [ask("one", resources={"gpu": 1}, mounts={"/data": ("held", "idle")})]
    for i in range(7):
        more = rng.choice([{}, {"cpu": f"{rng.randint(1, 14)}.."}, {"memory": f"{rng.randint(9, 120)}GB.."}])
        asks.append(ask(f"more-{i}", resources={"gpu": rng.choice([1, 1, 2]), **more}))
    every = [L4, T4, H100, gpu("t4x4", "T4", 4, 2.2), gpu("l4x4", "L4", 4, 3.1)]
    offers = [replace(each, backend="b", region="r1") for each in rng.sample(every, 3)]
    out = run(asks, fleets=[fleet(nodes="0..", blocks="auto", offers=offers)], volumes=volumes)
    taken = [choice.volumes for choice in out.choices if choice.task == "one"]
    assert taken == [{"/data": "idle"}]


def _seated(catalog, *seats):
    """A assignment with nodes of the last offer, and the tasks that sit on each: their numbers."""
    assignment = Assignment.start(catalog)
    for place, numbers in enumerate(seats):
        assignment.launch_idle(catalog.options[-1], 1)
        for number in numbers:
            job = catalog.jobs[number]
            assignment.seats[number] = [place] * job.ranks
            for _ in range(job.ranks):
                assignment.fill(place, job.request.fit[catalog.options[-1].kind])
    return assignment


def test_a_node_stays_as_large_as_tasks_need_that_launch_nothing():
    """The one that launches it has room on a smaller one."""
    asks = [ask("base", resources={"cpu": 2}), ask("guest", resources={"cpu": 6}, creation_policy="reuse")]
    offers = [offer(1.0, cpu=4), offer(1.5, cpu=8)]
    catalog = Catalog(asks, [], {"gpu": fleet(nodes="0..", blocks="auto", offers=offers)}, {})
    found = passes.Passes(catalog).whole(_seated(catalog, [0], []), catalog.jobs)
    assert (found.left, found.cost) == ([], 1.5)
    assert found.assignment.seats == {0: [0], 1: [0]}


@pytest.mark.parametrize("beside", [True, False])
def test_who_launched_a_node_does_not_leave_alone_those_that_launch_nothing(beside):
    """Else nobody would be the cause of the node that they stay on, and it would be launched for nothing."""
    asks = [ask("base", resources={"cpu": 2}), ask("other", resources={"cpu": 2})]
    asks.append(ask("guest", resources={"cpu": 2}, creation_policy="reuse"))
    catalog = Catalog(asks, [], {"gpu": fleet(nodes="0..", blocks="auto", offers=[offer(1.0, cpu=8)])}, {})
    jobs = {str(job.task.name): job for job in catalog.jobs}
    base, other, guest = jobs["base"], jobs["other"], jobs["guest"]
    assignment = _seated(catalog, [base.index, *([guest.index] if beside else [])], [other.index])
    on = {0: [(base, 0), *([(guest, 0)] if beside else [])], 1: [(other, 0)]}
    assert solved._may_join(assignment, (base, 0), None, 1, on) is not beside


@pytest.mark.parametrize(
    ("base", "other", "guest", "may"), [(6, 2, 6, True), (2, 6, 6, False), (6, None, 6, False)]
)
def test_two_change_places_where_both_fit_and_who_launches_nothing_is_not_left_alone(base, other, guest, may):
    """The guest comes from a node where it is alone, to that of the base and, perhaps, of another one."""
    sizes = {"base": base, **({"other": other} if other else {})}
    asks = [ask(name, resources={"cpu": size}) for name, size in sizes.items()]
    asks.append(ask("guest", resources={"cpu": guest}, creation_policy="reuse"))
    catalog = Catalog(asks, [], {"gpu": fleet(nodes="0..", blocks="auto", offers=[offer(1.0, cpu=8)])}, {})
    jobs = {str(job.task.name): job for job in catalog.jobs}
    here, there = [jobs[name] for name in sizes], [jobs["guest"]]
    assignment = _seated(catalog, [job.index for job in here], [job.index for job in there])
    on = {0: [(job, 0) for job in here], 1: [(job, 0) for job in there]}
    assert solved._may_join(assignment, (jobs["base"], 0), (jobs["guest"], 0), 1, on) is may


def test_what_launches_nothing_sits_where_the_program_says_beside_another():
    """It may sit only where others do: one of them goes to its node, and nothing larger is launched."""
    asks = [
        ask("large", nodes=2, placement="any", resources={"cpu": 29}),
        ask("small", resources={"cpu": 1}),
        ask("base", resources={"cpu": 13}),
        ask("guest", nodes=3, placement="any", resources={"cpu": 11}, creation_policy="reuse"),
    ]
    offers = [offer(1.49, cpu=32), offer(77.56, cpu=192)]
    outcome = run(asks, fleets=[fleet(nodes="0..5", blocks="auto", offers=offers)])
    assert not outcome.refusals
    assert cost(outcome) == pytest.approx(4 * 1.49)


@pytest.mark.parametrize(("prior", "proved"), [({}, False), ({0: ("gpu-0", (0,))}, True)])
def test_it_is_not_proved_that_a_task_has_no_place_if_another_may_take_another_node(prior, proved):
    """Two nodes are pinned. The task fits the one alone that the other task has."""
    nodes = [node("gpu-0", shape=gpus("H100", 1, cpu=8), total=1), node("gpu-1", total=1)]
    asks = [
        ask("other", instances=["gpu-0", "gpu-1"], prior=prior),
        ask("task", creation_policy="reuse", resources={"gpu": 1}),
    ]
    found = search.Search(Catalog(asks, nodes, {"gpu": fleet(existing=2)}, {})).admission
    best = Seating(found.passes.start.copy(), [])
    other, task = found.catalog.jobs
    best.assignment.seats[other.index] = [0]
    best.assignment.fill(0, 1)
    assert found._loosely(best, task, [other]) == (None, proved)


@pytest.mark.parametrize("prior", [{}, {0: ("aa-0", (0,))}])
def test_a_task_that_had_a_place_is_said_never_to_fit_as_well(prior):
    """Its two ranks have to lie in one cluster fleet, each of which has at most one node."""
    near: dict[str, Any] = {"backend": "sky", "region": "east", "zone": "za"}
    asks = [ask(nodes=2, mounts={"/data": "data-#"}, prior=prior)]
    fleets = [
        fleet(name, nodes="0..1", offers=[offer(1.0, **near)], placement="cluster") for name in ("bb", "cc")
    ]
    volumes = {f"data-{rank}": VolumeAt(**near) for rank in range(2)}
    (refusal,) = run(
        asks, [node("aa-0", **near)], [fleet("aa", existing=1), *fleets], volumes=volumes
    ).refusals
    assert (refusal.code, refusal.proved) == ("never-fits", True)


@pytest.mark.parametrize(("size", "tries", "moved"), [(2, 9, True), (3, 9, False), (2, 0, False)])
def test_a_task_that_launches_nothing_is_left_out_where_no_other_can_go(monkeypatch, size, tries, moved):
    """The node is launched for it alone. One of two others comes, if it is small enough and looked at."""
    monkeypatch.setattr(solved, "MOST_TRIES", tries)
    asks = [
        *(ask(name, resources={"cpu": size}) for name in ("one", "two")),
        ask("guest", resources={"cpu": 6}, creation_policy="reuse"),
    ]
    catalog = Catalog(asks, [], {"gpu": fleet(nodes="0..", blocks="auto", offers=[offer(1.0, cpu=8)])}, {})
    guest, one, two = (job.index for job in catalog.jobs)
    assignment = _seated(catalog, [one, two], [guest])
    solved.accompany(assignment, Assignment.start(catalog), {guest})
    seats = {guest: [1], one: [1], two: [0]} if moved else {one: [0], two: [0]}
    assert assignment.seats == seats
    assert assignment.free == ([6, 0] if moved else [8 - 2 * size, 8])


def test_what_finds_no_place_beside_the_others_is_seated_first():
    """The others have all of one node, and one rank of the pair has to lie there."""
    asks = [
        *(ask(name, resources={"cpu": 2}) for name in ("one", "two")),
        ask("pair", nodes=2, placement="any", spread="node", resources={"cpu": 2}),
    ]
    catalog = Catalog(asks, [], {"gpu": fleet(nodes="0..2", blocks="auto", offers=[offer(1.0, cpu=4)])}, {})
    numbers = {str(job.task.name): job.index for job in catalog.jobs}
    found = passes.Passes(catalog).whole(_seated(catalog, [numbers["one"], numbers["two"]], []), catalog.jobs)
    assert found.left == []
    assert sorted(found.assignment.seats[numbers["pair"]]) == [0, 1]


def test_a_task_that_launches_nothing_changes_places_with_another():
    """Both nodes are full, and all that sits on one of them launches nothing."""
    asks = [ask(name, resources={"cpu": 4}) for name in ("one", "two")]
    asks.append(
        ask("guest", nodes=2, placement="any", resources={"cpu": 4}, creation_policy="reuse"),
    )
    catalog = Catalog(asks, [], {"gpu": fleet(nodes="0..", blocks="auto", offers=[offer(1.0, cpu=8)])}, {})
    guest, one, two = (job.index for job in catalog.jobs)
    assignment = _seated(catalog, [one, two], [guest])
    solved.accompany(assignment, Assignment.start(catalog), {guest})
    assert assignment.seats == {guest: [0, 1], one: [1], two: [0]}
    assert assignment.free == [0, 0]


def test_no_node_is_launched_for_tasks_alone_that_launch_nothing():
    """The program knows it: else its launches have no place for these, and the plan costs 73.4."""
    large: Any = {"cpu": "7..", "memory": "60GB.."}
    asks = [
        ask("t0", resources=large),
        ask("t1", nodes=3, placement="any", resources={"cpu": "3.."}, creation_policy="reuse"),
        ask("t2", resources={"cpu": "5.."}),
        ask("t3", nodes=3, placement="any", resources=large),
        ask("t4", resources={"cpu": "7.."}),
    ]
    shapes = {1.62: (32, 131072), 0.51: (8, 32768), 72.89: (192, 2048000)}
    offers = [
        offer(price, instance_type=f"c{cpu}", shape=replace(gpus("T4", 0, cpu=cpu), memory_mib=memory))
        for price, (cpu, memory) in shapes.items()
    ]
    fleets = [fleet(nodes="0..3", blocks="auto", offers=offers)]
    fleets += [fleet("bb", nodes="0..", blocks="auto", offers=offers, placement="cluster")]
    out = run(asks, fleets=fleets)
    assert not out.refusals
    assert cost(out) == pytest.approx(4.86)


@pytest.mark.parametrize(("turns", "cost"), [(0, 3.0), (1, 1.5)])
def test_launches_are_made_cheaper_node_by_node(monkeypatch, turns, cost):
    """Two of three tasks leave nodes of which they use half: for that of the third, and for a small one."""
    monkeypatch.setattr(passes, "TURNS", turns)
    monkeypatch.setattr(passes, "IMPROVED", 2)
    asks = [ask(f"t{i}", resources={"cpu": cpu}) for i, cpu in enumerate((4, 4, 4))]
    offers = [offer(0.5, cpu=4, limit=1, instance_type="small"), offer(1.0, cpu=8)]
    catalog = Catalog(asks, [], {"gpu": fleet(nodes="0..", blocks="auto", offers=offers)}, {})
    found = Seating(_seated(catalog, [0], [1], [2]), [])
    assert passes.Passes(catalog).improved(found, catalog.jobs, 0.0).cost == cost
    assert passes.Passes(catalog).improved(found, catalog.jobs, 3.0).cost == 3.0


def test_what_launches_nothing_is_not_left_alone_by_tasks_that_are_seated_anew():
    """So the one task beside it stays."""
    asks = [ask("one", resources={"cpu": 4}), ask("two", resources={"cpu": 4})]
    asks.append(ask("zero", resources={"cpu": 2}, creation_policy="reuse"))
    catalog = Catalog(asks, [], {"gpu": fleet(nodes="0..", blocks="auto", offers=[offer(1.0, cpu=8)])}, {})
    moving = passes.Passes(catalog)._moving(_seated(catalog, [0], [1, 2]), catalog.jobs)
    assert moving.keys() == {0}


@pytest.mark.parametrize(("sizes", "mended"), [((), False), ((0,), False), ((0, 9), True), ((9,), True)])
@pytest.mark.parametrize("moving", [True, False])
def test_what_finds_no_place_is_seated_anew_with_those_beside_it(monkeypatch, sizes, mended, moving):
    """Both nodes are full but for one CPU each. With more and more of what sits there, if that may move."""
    monkeypatch.setattr(passes, "MENDED", sizes)
    monkeypatch.setattr(passes.Passes, "_anew", lambda _, assignment, jobs, left: Seating(assignment, left))
    if not moving:
        monkeypatch.setattr(passes, "movable", lambda jobs: [job for job in jobs if job.index == 5])
    asks = [ask(f"t{i}", resources={"cpu": cpu}) for i, cpu in enumerate((5, 4, 3, 3, 3, 2))]
    catalog = Catalog(asks, [], {"gpu": fleet(nodes="0..2", blocks="auto", offers=[offer(1.0, cpu=10)])}, {})
    found = passes.Passes(catalog).whole(_seated(catalog, [0, 1], [2, 3, 4]), catalog.jobs)
    assert [job.index for job in found.left] == ([] if mended and moving else [5])
    assert len(found.assignment.launches) == 2


def test_what_finds_no_place_in_any_solution_stays_where_it_was(monkeypatch):
    """The others go where they cost least beside it."""
    program = _program_of(3)
    jobs, solve, whole, asked = program.jobs, optimum.solve, passes.Passes.whole, []

    def without(counted, limits, known):
        asked.append([job.index for job in counted.jobs])
        least, assignment = solve(counted, limits, known)
        if assignment and jobs[0] in counted.jobs:
            assignment.seats.pop(0)
        return least, assignment

    def lacking(self, assignment, every):
        found = whole(self, assignment, every)
        return found if 0 in assignment.seats else replace(found, left=[jobs[0]])

    monkeypatch.setattr(search, "solve", without)
    monkeypatch.setattr(passes.Passes, "whole", lacking)
    found = search.Search(program.catalog).run()
    assert asked == [[0, 1, 2]] * 2 + [[1, 2]]
    assert found.left == []
