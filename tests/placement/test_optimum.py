"""The exact search: it launches nothing expensive without need, refuses nothing that fits, and its bounds are
true.
"""

import itertools
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import event, given
from hypothesis.strategies import dictionaries, integers, lists, tuples

from benchmarks.placement.check import violations
from declarative.placement import search
from declarative.placement.assignment import Assignment
from declarative.placement.catalog import Catalog
from declarative.placement.problem import VolumeAt
from declarative.placement.program import model, solve
from declarative.placement.program.arc_flow import add_relaxation, arcs_of, pack
from declarative.placement.program.decode import columns_of
from declarative.placement.program.model import PlacementModel
from declarative.placement.program.solver import Program, SearchLimits, SolverCache, cost_of
from declarative.planner.plan import Cost
from declarative.render.plan import cost_line
from tests.laws.test_placement import LAW
from tests.placement.test_gpus import gpus
from tests.placement.test_placement import ask, fleet, node, offer, places, run
from tests.support.brute import cost, least_cost, placed
from tests.support.varied import without_claims
from tests.support.worlds import cases

ROOT = Path(__file__).parents[2]
EXACT = 2e-3
"""What a solution may be dearer by than the best: `solve.GAP`, rounded down."""


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
    case = without_claims(case)
    outcome = case.place()
    if outcome.bound is not None and counted_alike(case):
        event("a bound")
        assert outcome.bound <= least_cost(case, placed(outcome)) + 1e-6
        assert outcome.bound <= cost(outcome) + 1e-6


@LAW
@given(cases())
def test_launches_cost_the_least_if_no_task_has_to_stay_where_it_is(case):
    case = without_claims(case)
    free = all(not a.prior and not a.want.spec.instances and not any(a.want.mounts) for a in case.asks)
    outcome = case.place()
    if free and counted_alike(case) and outcome.bound is not None:
        event("free to go")
        assert cost(outcome) <= least_cost(case, placed(outcome)) * (1 + EXACT) + 1e-6


@LAW
@given(cases())
def test_a_program_that_is_solved_with_few_columns_keeps_to_the_rules(case):
    """Its bound is true, and it finds nearly the least."""
    case = without_claims(case)
    free = all(not a.prior and not a.want.spec.instances and not any(a.want.mounts) for a in case.asks)
    with patch.object(solve, "SMALL", 0):
        outcome = case.place()
    assert violations(case.asks, case.nodes, case.fleets, case.volumes, outcome) == []
    if counted_alike(case) and outcome.bound is not None:
        least = least_cost(case, placed(outcome))
        assert outcome.bound <= least + 1e-6
        if free:
            event("free to go")
            assert cost(outcome) <= least * (1 + 4 * solve.GAP) + 1e-6


@LAW
@given(cases())
def test_the_columns_for_what_is_seated_hold_it(case):
    """So few columns have a solution, which costs no more; unless a rank has to stay where it is."""
    real, asked = solve.cheapest, []

    def cheapest(program, incumbent, cache, **how):
        if incumbent and program.possible and not program.stays:
            asked.append((program, incumbent))
        return real(program, incumbent, cache, **how)

    with patch.object(search, "cheapest", cheapest):
        case.place()
    for program, seated in asked:
        costs = program.prices()
        zero = set(range(len(costs))) - columns_of(program, seated)
        known = program.program.search(costs, SearchLimits(rounds=99, nodes=99), SolverCache(), zero=zero)
        kinds = case_kinds(seated)
        event("launches")
        assert cost_of(known.values, costs) <= kinds * (1 + solve.GAP) + 1e-6


def case_kinds(assignment):
    """What the launches of an assignment cost."""
    kinds = assignment.catalog.kinds
    return sum(kinds[launch.option.kind].cost for launch in assignment.launches)


@LAW
@given(cases())
def test_a_relaxed_program_keeps_to_the_rules(case):
    """Though it is not said how nodes are cut. Its bound is true, and it finds nearly the least."""
    case = without_claims(case)
    free = all(not a.prior and not a.want.spec.instances and not any(a.want.mounts) for a in case.asks)
    with patch.object(model, "ROUGH", 0), patch.object(solve, "CUT_COLUMNS", 0):
        outcome = case.place()
    assert violations(case.asks, case.nodes, case.fleets, case.volumes, outcome) == []
    if counted_alike(case) and outcome.bound is not None:
        least = least_cost(case, placed(outcome))
        assert outcome.bound <= least + 1e-6
        if free:
            event("free to go")
            assert cost(outcome) <= least * (1 + 12 * solve.GAP) + 1e-6


@given(lists(lists(integers(1, 9), max_size=6), min_size=1, max_size=4), lists(integers(0, 5), min_size=4))
def test_the_rows_of_a_relaxed_program_hold_however_nodes_are_cut(nodes, idle):
    """Each node with what lies on it, and how many blocks are idle beside that."""
    program = Program()
    ends: dict[int, list[int]] = {}
    values = [1 for _ in nodes]
    for on_it, rest in zip(nodes, idle, strict=False):
        ends.setdefault(sum(on_it) + rest, []).append(program.column())
    sizes = {size: {program.column(): 1.0} for size in range(1, 10)}
    values += [sum(on_it.count(size) for on_it in nodes) for size in sizes]
    add_relaxation(program, sizes, ends)
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


def kept_offers(*offers, free=False, **more):
    """The prices of a fleet's offers that a program looks at. If launches are `free`, tasks may be left
    out.
    """
    tasks = [ask("one", resources={"gpu": "L4:1"}), ask("two", resources={"gpu": "2.."})]
    catalog = Catalog(tasks, [], {"gpu": fleet(nodes="0..9", blocks=2, offers=offers, **more)}, {})
    jobs = ([], catalog.jobs) if free else (catalog.jobs, ())
    program = PlacementModel(Assignment.start(catalog), *jobs, baseline={})
    return [catalog.kinds[supply.kind].price for supply in program.supplies]


def test_an_offer_that_no_plan_needs_is_left_out():
    """Another one of the fleet is cheaper, and holds as much. Not if it has a limit, or a cluster would
    lie elsewhere.
    """
    cheap = gpu("a", "L4", 2, 1.0, region="r1")
    assert kept_offers(cheap, gpu("b", "L4", 2, 1.1, region="r1")) == [1.0]
    assert kept_offers(cheap, gpu("b", "L4", 4, 1.1, region="r1")) == [1.0, 1.1]  # both on one half of it
    assert kept_offers(cheap, gpu("b", "T4", 2, 1.1, region="r1")) == [1.0]  # not the one that wants an L4
    assert kept_offers(gpu("a", "T4", 2, 1.0, region="r1"), gpu("b", "L4", 2, 1.1, region="r1")) == [1.0, 1.1]
    elsewhere = gpu("b", "L4", 2, 1.1, region="r2")
    assert kept_offers(cheap, elsewhere) == [1.0]
    assert kept_offers(cheap, elsewhere, placement="cluster") == [1.0, 1.1]
    assert kept_offers(replace(cheap, limit=3), gpu("b", "L4", 2, 1.1, region="r1")) == [1.0, 1.1]
    assert kept_offers(cheap, gpu("b", "L4", 2, 1.0, region="r1")) == [1.0]


def test_where_launches_are_free_an_offer_that_holds_less_is_left_out():
    """What it costs does not matter while it is looked for how many tasks can be seated."""
    dear, half = gpu("b", "L4", 2, 1.1, region="r1"), gpu("a", "T4", 2, 1.0, region="r1")
    assert kept_offers(half, dear) == [1.0, 1.1]
    assert kept_offers(half, dear, free=True) == [1.1]
    assert kept_offers(half, replace(dear, limit=3), free=True) == [1.0, 1.1]


@given(
    dictionaries(integers(1, 7), integers(1, 4), min_size=1, max_size=4),
    integers(1, 12),
    lists(tuples(integers(1, 2), tuples(tuples(integers(1, 5), integers(1, 3)))), max_size=2),
)
def test_the_arcs_hold_each_cut_of_a_node(most, last, apart):
    """Whatever fits on it is one way along the arcs: ranks that lie apart first, then the large ones."""
    arcs = {(arc.start, arc.end, arc.size, arc.ranks) for arc in arcs_of(most, last, apart)}
    sizes = sorted(most, reverse=True)
    stages = [range(min(limit, count) + 1) for limit, ((_, count),) in apart]
    for counts in itertools.product(*stages, *(range(most[size] + 1) for size in sizes)):
        way, at = list[tuple[object, ...]](), 0
        for stage, (_, ((size, _),)) in enumerate(apart):
            ranks = counts[stage]
            way.append(((stage, at), (stage + 1, at + ranks * size), size if ranks else 0, ranks))
            at += ranks * size
        for size, count in zip(sizes, counts[len(apart) :], strict=True):
            for _ in range(count):
                way.append(((len(apart), at), (len(apart), at + size), size, 1))
                at += size
        if at <= last:
            assert set(way) <= arcs
    assert all(end[1] <= last for _, end, _, _ in arcs)


def test_the_arcs_are_few_where_ranks_are_few():
    """One of 16 blocks begins at 0 alone, one of 5 behind it or behind nothing."""
    arcs = arcs_of({16: 1, 5: 1}, 32)
    assert [(arc.start.blocks, arc.size) for arc in arcs] == [(0, 16), (0, 5), (16, 5)]


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


@pytest.mark.parametrize("why", ["absent", "too many columns"])
def test_without_the_program_the_greedy_pass_answers(why, monkeypatch):
    """And the distance from the least possible is not known."""
    if why == "absent":
        monkeypatch.setitem(sys.modules, "highspy._core", None)
    else:
        monkeypatch.setattr(solve, "CUT_COLUMNS", 1)
        monkeypatch.setattr(solve, "MOST_COLUMNS", 1)
    asks = [ask(name, resources={"gpu": 1}) for name in ("one", "two")]
    out = run(asks, fleets=[fleet(nodes="0..", blocks="auto", offers=[L4, T4])])
    assert len(out.choices) == 2
    assert out.bound is None


def test_nothing_is_written_to_the_screen(capfd):
    """HiGHS has a banner."""
    test_an_added_offer_makes_nothing_dearer()
    assert capfd.readouterr() == ("", "")


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


def test_what_launches_nothing_does_not_decide_what_is_launched():
    """On three nodes there is no place for all of its ranks. A fourth would be launched for it alone."""
    asks = [
        ask("large", nodes=2, placement="any", resources={"cpu": 29}),
        ask("small", resources={"cpu": 1}),
        ask("base", resources={"cpu": 13}),
        ask("guest", nodes=3, placement="any", resources={"cpu": 11}, creation_policy="reuse"),
    ]
    offers = [offer(1.49, cpu=32), offer(77.56, cpu=192)]
    outcome = run(asks, fleets=[fleet(nodes="0..5", blocks="auto", offers=offers)])
    assert [refusal.task for refusal in outcome.refusals] == ["guest"]
    assert cost(outcome) == pytest.approx(3 * 1.49)


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


def test_no_node_is_launched_for_tasks_alone_that_launch_nothing():
    """All others cost 4.26, and two of its ranks find no place beside them."""
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
    assert [refusal.task for refusal in out.refusals] == ["t1"]
    assert cost(out) == pytest.approx(4.26)
