"""Any sequence of events of a fleet: new declarations, plans, whole and partial applies, faults, drift, ended
ranks, time, destroy. After each step, the world in memory (`tests/support/model.py`) is consistent. After a
complete apply, nothing more is planned. Existing things are never forgotten.

FLEETFORM_EXAMPLES=1000 pytest tests/laws/test_any_sequence.py goes through that many sequences.
"""

import random

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from declarative.model.state import Address
from declarative.model.status import NodeState, RankState
from declarative.planner.plan import Op
from tests.support.examples import examples
from tests.support.model import NOW, World, must, project, set_limits
from tests.support.strategies import BACKENDS, ENDS, pairs, words

SEEDS = st.integers(0, 1 << 16)
SICK = (NodeState.NOT_READY, NodeState.UNKNOWN, NodeState.UNREACHABLE)
HELD = ("reservation", "attachment", "rank")


class Fleet(RuleBasedStateMachine):
    """The world, what is declared, and what has to be there."""

    def __init__(self):
        super().__init__()
        self.world = World()
        self.documents: dict[str, list[dict]] = {"fleets": [], "volumes": [], "tasks": []}
        self.made = {}
        """What was made and not taken away, with its generation, by our own book: not the world's."""

    @property
    def desired(self):
        return project(backends=BACKENDS, **self.documents)

    # ---------------------------------------------------------------------------- what the user does

    @initialize(documents=words())
    def begin(self, documents):
        self.documents = documents

    @rule(found=pairs())
    def declare(self, found):
        """Something else is declared, or a part of it is changed."""
        self.documents = found[1]

    @rule(seed=SEEDS)
    def apply(self, seed):
        """In any order that the needs allow, to its end: then nothing more is to be done."""
        plan = self._settled_plan()
        if plan.result == "error":
            return
        self._perform(plan, random.Random(seed), None)
        following = self.world.plan(self.desired)
        terms = {"prevent_destroy", "auto_cleanup_duration"}
        if any(a.address.kind == "volume" and not terms.isdisjoint(a.because) for a in plan.actions):
            # A plan that ends a protection, or changes when a volume is cleaned up, does not use that:
            # the next one does.
            self._perform(following, random.Random(seed), None)
            following = self.world.plan(self.desired)
        assert [a.id for a in following.actions] == []
        assert {r.task for r in following.unplaced.refusals} <= {r.task for r in plan.unplaced.refusals}

    @rule(seed=SEEDS, share=st.floats(0, 1))
    def crash(self, seed, share):
        """An apply that is cut off after some of its actions."""
        plan = self._settled_plan()
        if plan.result != "error":
            event(f"cut: {bool(plan.actions)}")
            self._perform(plan, random.Random(seed), int(share * len(plan.actions)))

    @rule()
    def plan(self):
        """Looking changes nothing, and looking again shows the same."""
        before = self.world.copy()
        first, second = (self.world.plan(self.desired) for _ in range(2))
        assert first == second
        assert before == self.world

    @rule(seed=SEEDS)
    def destroy(self, seed):
        """Only protected things are left."""
        nothing = project(backends=BACKENDS)
        self._settle()
        plan = self.world.plan(nothing, destroy=True)
        assert plan.result != "error"
        assert {a.op for a in plan.actions} <= {Op.DELETE}
        self._perform(plan, random.Random(seed), None)
        kept = self.world.records.values()
        assert all(r.address.kind == "volume" and r.inputs["prevent_destroy"] for r in kept)
        assert self.world.plan(nothing, destroy=True).actions == ()

    # -------------------------------------------------------------------------------- what happens

    @precondition(lambda self: self.world.running())
    @rule(data=st.data())
    def rank_ends(self, data):
        """In any way; its gang hears of it when somebody looks."""
        name = data.draw(st.sampled_from(sorted(self.world.running())))
        self.world.end(name, data.draw(st.sampled_from(ENDS)))

    @precondition(lambda self: self.world.of("node"))
    @rule(data=st.data())
    def node_falls_sick(self, data):
        """Not ready, not reachable, or unknown."""
        self.world.sick[self._one(data, "node").name] = data.draw(st.sampled_from(SICK))

    @precondition(lambda self: self.world.sick)
    @rule(data=st.data())
    def node_recovers(self, data):
        del self.world.sick[data.draw(st.sampled_from(sorted(self.world.sick)))]

    @precondition(lambda self: self.world.of("node"))
    @rule(data=st.data())
    def node_goes(self, data):
        """Drift: it is not there any more."""
        self.world.gone.add(self._one(data, "node"))

    @precondition(lambda self: self.world.of("volume"))
    @rule(data=st.data())
    def volume_goes(self, data):
        self.world.gone.add(self._one(data, "volume"))

    @rule(seconds=st.sampled_from((1, 3600, 10_000_000)))
    def time_passes(self, seconds):
        """Idle nodes grow old."""
        self.world.now += seconds

    # ------------------------------------------------------------------------------- how it is done

    def _one(self, data, kind) -> Address:
        found: Address = data.draw(st.sampled_from([r.address for r in self.world.of(kind)]))
        return found

    def _settle(self):
        gone = set(self.world.gone)
        before = {a: r for a, r in self.world.records.items() if a.kind not in HELD}
        self.world.settle()
        lost = set(before) - set(self.world.records)
        assert lost <= gone, "settling forgets what is gone, and nothing else"
        for address in [a for a in self.made if a not in self.world.records]:
            assert address in gone or address.kind in HELD
            del self.made[address]

    def _settled_plan(self):
        self._settle()
        set_limits(self.world, self.desired)
        return self.world.plan(self.desired)

    def _perform(self, plan, rng, most):
        """Apply, and keep our own book: each thing is made once before it is taken away again."""
        done = self.world.apply(plan, rng, stop_after=most)
        for key in done:
            op, _, text = key.partition(":")
            address = Address.parse(text)
            if op == "create":
                assert address not in self.made, f"{address} is made twice"
                self.made[address] = self.world.generations[address]
            elif op == "delete":
                assert address in self.made, f"{address} was taken away already"
                del self.made[address]

    # ---------------------------------------------------------------------------------- what holds

    @invariant()
    def world_holds_together(self):
        """Blocks have one holder, what is needed is there, limits are kept, gangs are whole."""
        ended = {n for n, s in self.world.ranks.items() if s.state.ended}
        if not ended & {r.address.name for r in self.world.of("reservation")}:
            self.world.check()  # between a rank's end and the next look, its gang is not whole
        self.world.busy()

    @invariant()
    def nothing_is_lost(self):
        """What was made and not taken away is recorded, as what it was made."""
        there = {a: r.generation for a, r in self.world.records.items()}
        assert there == self.made

    @invariant()
    def what_runs_has_its_place(self):
        """A rank that runs holds blocks of a node that is recorded."""
        for name in self.world.running():
            place = self.world.records.get(Address("reservation", name))
            must(place, f"rank/{name} runs and holds nothing")
            assert self.world.ranks[name].state is RankState.RUNNING
        assert self.world.now >= NOW


TestFleet = Fleet.TestCase
TestFleet.settings = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=examples(30),
    stateful_step_count=25,
)
