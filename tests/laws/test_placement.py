"""Laws of `place` on any world (docs/architecture.md); an independent checker judges every outcome.

FLEETFORM_EXAMPLES=5000 pytest tests/laws/test_placement.py looks at that many examples of each law.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from benchmarks.placement.check import violations
from declarative.model.spec import CreationPolicy
from declarative.model.status import NodeState, Readiness
from declarative.placement.problem import Ask, Choice, PlacementOutcome, Verdict
from tests.support.brute import placed, score
from tests.support.examples import examples
from tests.support.varied import later, of_vendors, promised, running, without_claims
from tests.support.worlds import Case, Taste, cases, seeded, sizes_that_divide

LAW = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=examples(100),
)
SEEDS = st.integers(0, 1 << 16)
FRESH = Taste(fresh=True)
NODES = Taste(least_nodes=4)


def name_of(ask):
    return str(ask.want.spec.name)


def reuses(ask):
    return ask.reuse or ask.want.spec.creation_policy is CreationPolicy.REUSE


# ------------------------------------------------------------------------------------------------ validity


@LAW
@given(cases() | cases(NODES))
def test_the_checker_accepts_every_outcome(case):
    """No block twice, no filter passed over, no limit exceeded, no launch without need."""
    outcome = case.place()
    event(f"refusals: {len(outcome.refusals)}, launches: {min(3, len(outcome.launches))}")
    assert violations(case.asks, case.nodes, case.fleets, case.volumes, outcome) == []


@LAW
@given(cases() | cases(NODES), SEEDS)
def test_a_gang_mixes_vendors_only_if_told(case, seed):
    """Models of several vendors in its `gpu`, or pinned nodes of several, tell; unknown models have none.

    The refused are told so; and the order of input does not matter.
    """
    case = of_vendors(case, random.Random(seed).choice)
    outcome = case.place()
    assert violations(case.asks, case.nodes, case.fleets, case.volumes, outcome) == []
    apart = sum(
        x.code == "gpu-vendor" for refusal in outcome.refusals for r in refusal.ranks for x in r.rejections
    )
    event(f"refusals: {len(outcome.refusals)}, with a vendor: {min(3, apart)}")
    assert replace(case, asks=case.asks[::-1], nodes=case.nodes[::-1]).place() == outcome


@LAW
@given(cases(FRESH))
def test_the_checker_accepts_volumes_that_are_to_be_created(case):
    """Each is created in the zone of its rank's node; and no other volume is given a zone."""
    outcome = case.place()
    assert violations(case.asks, case.nodes, case.fleets, case.volumes, outcome) == []
    zones = {n.name: n.zone for n in (*case.nodes, *outcome.launches)}
    mounted = {v: zones[c.node] for c in outcome.choices for v in c.volumes.values()}
    open_ones = {name for name, at in case.volumes.items() if at.fresh and at.zone is None}
    assert outcome.zones == {v: zone for v, zone in mounted.items() if zone and v in open_ones}


def test_the_checker_finds_what_is_wrong():
    """Else the laws above would hold of nothing: outcomes that were tampered with are not accepted."""
    found = 0
    for seed in range(80):
        case = seeded(seed)
        outcome = case.place()
        if not outcome.choices:
            continue
        first = outcome.choices[0]
        for wrong in (
            replace(outcome, choices=outcome.choices[1:]),
            replace(outcome, choices=(*outcome.choices, first)),
            replace(outcome, choices=(replace(first, blocks=(*first.blocks, 99)), *outcome.choices[1:])),
            replace(outcome, choices=(replace(first, node="elsewhere-0"), *outcome.choices[1:])),
        ):
            assert violations(case.asks, case.nodes, case.fleets, case.volumes, wrong) != []
            found += 1
    assert found >= 100


@LAW
@given(cases())
def test_obtained_is_what_was_requested(case):
    """All ranks or none; a refusal has a verdict on each rank, and one of them is the cause."""
    outcome = case.place()
    ranks = {name_of(a): list(range(a.want.spec.nodes)) for a in case.asks}
    refusals = {r.task: r for r in outcome.refusals}
    assert sorted([*placed(outcome), *refusals]) == sorted(ranks)
    for name in placed(outcome):
        assert [c.rank for c in outcome.choices if c.task == name] == ranks[name]
    for name, refusal in refusals.items():
        assert [v.rank for v in refusal.ranks] == ranks[name]
        assert [v.verdict for v in refusal.ranks].count(Verdict.CAUSE) == 1
        assert all(not v.rejections for v in refusal.ranks if v.verdict is not Verdict.CAUSE)
        assert Verdict.FITS not in [v.verdict for v in refusal.ranks] or len(refusal.ranks) > 1
        assert refusal.code in {"never-fits", "no-capacity"}


# ------------------------------------------------------------------------------------------ what depends on


@pytest.mark.slow
@LAW
@given(cases(), SEEDS)
def test_the_order_of_input_does_not_matter(case, seed):
    """Reversed or shuffled tasks, nodes, fleets and volumes: the same outcome, to the last word.

    The offers of a fleet are not shuffled: they are given in a fixed order, cheapest first.
    """
    rng = random.Random(seed)
    outcome = case.place()

    def other(turn):
        return Case(
            asks=tuple(turn(case.asks)),
            nodes=tuple(turn(case.nodes)),
            fleets=dict(turn(case.fleets.items())),
            volumes=dict(turn(case.volumes.items())),
        )

    for turn in (lambda items: list(items)[::-1], lambda items: rng.sample(list(items), len(list(items)))):
        assert other(turn).place() == outcome


@LAW
@given(cases())
@example(seeded(133, NODES))
@example(seeded(176))
@example(seeded(505_992))
@example(seeded(704_080, FRESH))
@example(seeded(704_536, FRESH))
def test_a_task_that_is_not_placed_changes_nothing_for_the_others(case):
    """Without any one of the refused tasks, or all of them, the rest is planned as it was; but for what it
    claims. Hints aside: what several tasks share depends on who they are, and so does what can be proved.
    """
    case = without_claims(case)

    def plain(outcome):
        known = {"hint": None, "changes": None, "proved": True}
        refusals = (
            replace(r, summary=r.summary.removesuffix("; not proved"), **known) for r in outcome.refusals
        )
        return replace(outcome, refusals=tuple(refusals), remedies=())

    outcome = plain(case.place())
    names = [r.task for r in outcome.refusals]
    for out in [{name} for name in names] + [set(names)] if names else []:
        rest = plain(replace(case, asks=tuple(a for a in case.asks if name_of(a) not in out)).place())
        assert rest == replace(outcome, refusals=tuple(r for r in outcome.refusals if r.task not in out))


@LAW
@given(cases())
def test_lower_priority_takes_nothing_from_higher(case):
    """What is placed of the higher priorities is worth as much as if nothing else had been asked for but what
    has a place already.

    Worth, not the same tasks: of two tasks that are worth the same either may be placed. A task that launches
    nothing itself may use what the lower ones launch. On what is launched for others, of whatever priority,
    it has the room that they leave: a place there counts for nothing.
    """
    outcome = case.place()
    seats: dict[str, dict[int, str]] = {}
    for choice in outcome.choices:
        seats.setdefault(choice.task, {})[choice.rank] = choice.node
    had = {name_of(a): {rank: node for rank, (node, _) in a.prior.items()} for a in case.asks if a.prior}
    keep = {name for name, nodes in had.items() if seats.get(name) == nodes}
    for least in {a.want.spec.priority for a in case.asks}:
        upper = tuple(a for a in case.asks if a.want.spec.priority >= least or name_of(a) in keep)
        alone = replace(case, asks=upper)
        without = alone.place()
        riders = {name_of(a) for a in upper if reuses(a)}
        for_others = {n.name for n in without.launches if not case.fleets[n.fleet].baseline}
        riding = {c.task for c in without.choices if c.task in riders and c.node in for_others}
        worth = score(alone, placed(without) - riding)
        if riders:
            assert score(alone, placed(outcome)) >= worth
        else:
            assert score(alone, placed(outcome)) == worth


@LAW
@given(cases())
def test_reuse_is_as_the_creation_policy(case):
    """`Ask.reuse` launches nothing for a task that could have had a node."""
    outcome = replace(case, asks=tuple(replace(a, reuse=True) for a in case.asks)).place()
    policy = CreationPolicy.REUSE

    def declared(ask):
        return replace(ask, want=replace(ask.want, spec=replace(ask.want.spec, creation_policy=policy)))

    same = replace(case, asks=tuple(declared(a) for a in case.asks)).place()
    assert (outcome.choices, outcome.launches) == (same.choices, same.launches)
    assert [(r.task, r.code) for r in outcome.refusals] == [(r.task, r.code) for r in same.refusals]


# ------------------------------------------------------------------------------------------------ stability


@LAW
@given(cases() | cases(NODES))
@example(seeded(297, NODES))
def test_prior_places_that_are_allowed_are_kept(case):
    """Planned again, once its nodes are there, everything that was placed stays on its blocks, though tasks
    that were refused are asked for again, with a higher priority, too; and what is launched is for those.
    """
    outcome = case.place()
    prior: dict[str, dict[int, tuple[str, tuple[int, ...]]]] = {}
    for choice in outcome.choices:
        prior.setdefault(choice.task, {})[choice.rank] = (choice.node, choice.blocks)
    stay = [replace(a, prior=prior[name_of(a)]) for a in case.asks if name_of(a) in prior]
    left = [a.want for a in case.asks if name_of(a) not in prior]
    more = [Ask(want=replace(want, spec=replace(want.spec, priority=100))) for want in left]
    again = later(case, outcome, [*stay, *more]).place()
    event(f"kept: {min(4, len(stay))}")
    kept = {(c.task, c.rank): (c.node, c.blocks) for c in again.choices}
    before = {(c.task, c.rank): (c.node, c.blocks) for c in outcome.choices}
    assert before == {key: place for key, place in kept.items() if key in before}
    assert [n for n in again.launches if not any(c.node == n.name for c in again.choices)] == []


@LAW
@given(cases(NODES), SEEDS)
@example(seeded(117, NODES), 117)
@example(seeded(194, NODES), 194)
@example(seeded(434, NODES), 434)
def test_a_promise_that_can_be_kept_is_kept(case, seed):
    """Ranks that have places keep them, though others would fill them better, or lost theirs: if the checker
    finds nothing wrong with the places of all ranks of the task, and no higher priority is asked.
    """
    rng = random.Random(seed)
    case = promised(case, rng)
    sick = Readiness(state=NodeState.UNREACHABLE)
    case = replace(
        case, nodes=tuple(replace(n, readiness=sick) if rng.random() < 0.2 else n for n in case.nodes)
    )
    outcome = case.place()
    kept = 0
    for ask in case.asks:
        name, nodes = name_of(ask), ask.want.spec.nodes
        if len(ask.prior) < nodes or any(ask.want.mounts):
            continue
        choices = tuple(
            Choice(task=name, rank=rank, node=ask.prior[rank][0], blocks=ask.prior[rank][1], volumes={})
            for rank in range(nodes)
        )
        wrong = violations([ask], case.nodes, case.fleets, case.volumes, PlacementOutcome(choices=choices))
        if not any(fault.startswith(("rank/", "task/")) for fault in wrong):
            kept += 1
            assert tuple(c for c in outcome.choices if c.task == name) == choices
    event(f"kept: {kept}")


@LAW
@given(cases())
def test_what_is_refused_does_not_fit_beside_what_is_placed(case):
    """Once all that was placed runs, asking again for what was refused gives the same answer: the plan after
    an apply is empty.
    """
    outcome = case.place()
    refused = {r.task for r in outcome.refusals}
    left = [replace(a, prior={}) for a in case.asks if name_of(a) in refused]
    again = running(later(case, outcome, left), outcome).place()
    assert (again.choices, again.launches) == ((), ())
    assert {r.task for r in again.refusals} == refused


# ----------------------------------------------------------------------------------------- capacity, reasons


@LAW
@given(sizes_that_divide())
def test_a_new_idle_node_takes_no_place_away(case):
    """Tasks of one rank and of 1, 2, 4 or 8 blocks, on nodes of 8 blocks: all that were placed still are.

    Of gangs that cannot be asked (tests/placement/test_brute_force.py says why, and measures what can be).
    """
    before = placed(case.place())
    node = case.nodes[0]
    ready = replace(node, name="aa-50", held={}, readiness=replace(node.readiness, state=NodeState.READY))
    after = replace(case, nodes=(*case.nodes, ready)).place()
    event(f"placed before: {len(before)}, after: {len(placed(after))}")
    assert before <= placed(after)
