"""What a refusal counts: the places that a task wanted, those that it found, and how many it is short by."""

import re
from dataclasses import replace

from hypothesis import HealthCheck, event, given, settings

from declarative.placement.problem import Ask, Verdict
from tests.placement.test_placement import ask, fleet, node, offer, run
from tests.support.examples import examples
from tests.support.varied import later, running
from tests.support.worlds import Taste, cases

LAW = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=examples(100),
)
COUNTS = re.compile(r": (\d+) (?:place|whole idle node)s?(?: in one cluster fleet)? wanted, (\d+) found")


@LAW
@given(cases() | cases(Taste(least_nodes=4)) | cases(Taste(fresh=True)))
def test_a_refusal_counts_what_the_finished_plan_leaves(case):
    """Wanted is what was asked for, short by is the rest; the ranks that fit do so beside the plan."""
    outcome = case.place()
    for refusal in outcome.refusals:
        (task,) = [a for a in case.asks if a.want.spec.name == refusal.task]
        counts = COUNTS.search(refusal.summary)
        assert counts is not None
        wanted, had = map(int, counts.groups())
        fits = [v.rank for v in refusal.ranks if v.verdict is Verdict.FITS]
        assert (wanted, had) == (task.want.spec.nodes, len(fits))
        assert f", short by {wanted - had}" in refusal.summary or not had
        event(f"had: {had}")
        if fits:
            mounts = task.want.mounts and tuple(task.want.mounts[rank] for rank in fits)
            want = replace(task.want, spec=replace(task.want.spec, nodes=had), mounts=mounts)
            world = running(later(case, outcome, [Ask(want=want, reuse=task.reuse)]), outcome)
            assert len(world.place().choices) == had


def test_reasons_are_counted_apart_from_places():
    """Five places are missing; one offer and two nodes are why. Nobody takes one for the other."""
    nodes = [node("gpu-0", total=4, held=[0]), node("gpu-1", total=4, held=[0]), node("gpu-2")]
    rules = [fleet(offers=[offer()], nodes="0..3", existing=3, placement="cluster")]
    (refusal,) = run(ask("wide", nodes=6, exclusive=True), nodes, rules).refusals
    assert refusal.summary == (
        "can never fit: 6 whole idle nodes in one cluster fleet wanted, 1 found, short by 5 "
        "(2 nodes not wholly idle, 1 offer beyond the fleet's maximum)"
    )
