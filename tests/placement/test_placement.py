"""Placement, case by case (docs/architecture.md, "Placement")."""

from dataclasses import replace

import pytest

from declarative.model.blocks import Shape, split
from declarative.model.resource import Offer, TaskWant
from declarative.model.spec import Fleet, Isolation, Task
from declarative.model.state import natural
from declarative.model.status import BOOTING, NodeState, Readiness
from declarative.placement.place import place
from declarative.placement.problem import Ask, FleetRule, Node, VolumeAt
from tests.support.model import rank_mounts, spec

SHAPE = Shape(cpu=8, memory_mib=32768)


def fleet(name="gpu", nodes="0..4", offers=(), existing=0, baseline=0, **words):
    declared = spec(Fleet, {"name": name, "nodes": nodes, **words})
    return FleetRule(fleet=declared, offers=tuple(offers), existing=existing, baseline=baseline)


def offer(price=1.0, region="r", backend="b", cpu=8, **more):
    base = {"instance_type": "x", "shape": Shape(cpu=cpu, memory_mib=32768), "price": price}
    return Offer(**{"backend": backend, "region": region, **base, **more})


def node(name, total=4, held=(), state=NodeState.READY, shape=SHAPE, **more):
    base = {"backend": "b", "region": "r", "zone": None, "instance_type": "x", "price": 1.0, "spot": False}
    return Node(
        name=name,
        fleet=name.rpartition("-")[0],
        shape=shape,
        total=total,
        readiness=Readiness(state=state),
        held=dict.fromkeys(held, "rank/other-0"),
        **{**base, **more},
    )


def ask(name="train", prior=None, mounts=None, **words):
    task = spec(Task, {"name": name, "commands": ["true"], **words})
    want = TaskWant(spec=task, mounts=rank_mounts(task, mounts or {}))
    return Ask(want=want, prior=prior or {})


def run(asks, nodes=(), fleets=None, volumes=None):
    rules = [fleet(placement="cluster")] if fleets is None else fleets
    asks = [asks] if isinstance(asks, Ask) else asks
    return place(asks, list(nodes), {str(r.fleet.name): r for r in rules}, volumes or {})


def places(outcome):
    return {f"{c.task}-{c.rank}": (c.node, c.blocks) for c in outcome.choices}


def refused(outcome):
    assert len(outcome.refusals) == 1
    return outcome.refusals[0]


def causes(refusal):
    """Target → code of what turned the cause down."""
    found = [v for v in refusal.ranks if v.verdict.value == "cause"]
    assert len(found) == 1
    return {r.target: r.code for r in found[0].rejections}


# Whole nodes and blocks


def test_a_gang_takes_whole_split_nodes():
    """Two ranks on two split idle nodes with `reuse`: each gets all blocks of one (dstack #2650)."""
    out = run(ask(nodes=2, creation_policy="reuse"), [node("gpu-0"), node("gpu-1")])
    assert places(out) == {"train-0": ("gpu-0", (0, 1, 2, 3)), "train-1": ("gpu-1", (0, 1, 2, 3))}
    assert out.launches == ()


def test_nodes_are_counted_not_blocks():
    """Four ranks on three idle nodes of four blocks each are refused, with the numbers (dstack counts 12)."""
    out = run(ask(nodes=4, creation_policy="reuse"), [node(f"gpu-{i}") for i in range(3)])
    refusal = refused(out)
    assert out.choices == ()
    assert "4 whole idle nodes in one cluster fleet wanted, 3 found" in refusal.summary
    assert [v.verdict.value for v in refusal.ranks] == ["fits", "fits", "fits", "cause"]
    assert refusal.code == "never-fits"


def test_a_node_with_one_busy_block_is_not_whole():
    """A gang's rank needs a node that is wholly idle; the refusal counts what was missing."""
    out = run(ask(nodes=2, creation_policy="reuse"), [node("gpu-0"), node("gpu-1", held=[2])])
    refusal = refused(out)
    assert refusal.code == "no-capacity"
    assert causes(refusal)["node/gpu-1"] == "not-idle"
    rejection = next(r for v in refusal.ranks for r in v.rejections if r.target == "node/gpu-1")
    assert rejection.short == {"blocks": 1}
    assert "1 of 4 blocks busy (rank/other-0)" in rejection.detail


def test_small_tasks_share_a_node():
    """Two small tasks get different blocks of one node, and the other node stays whole."""
    asks = [ask("one", resources={"cpu": 2}), ask("two", resources={"cpu": "3.."})]
    out = run(asks, [node("gpu-0"), node("gpu-1")])
    assert places(out) == {"two-0": ("gpu-0", (0, 1)), "one-0": ("gpu-0", (2,))}


def test_the_fullest_node_is_filled_first():
    """Big holes stay whole for those that need them."""
    out = run(ask(resources={"cpu": 2}), [node("gpu-0"), node("gpu-1", held=[0, 1])])
    assert places(out) == {"train-0": ("gpu-1", (2,))}


def test_the_shortest_stretch_that_holds_it_is_taken():
    """Blocks that lie together are kept together."""
    whole = node("gpu-0", total=8, held=[1, 4])
    assert places(run(ask(resources={"cpu": 1}), [whole])) == {"train-0": ("gpu-0", (0,))}
    assert places(run(ask(resources={"cpu": 2}), [whole])) == {"train-0": ("gpu-0", (2, 3))}
    assert places(run(ask(resources={"cpu": 3}), [whole])) == {"train-0": ("gpu-0", (5, 6, 7))}
    assert places(run(ask(resources={"cpu": 4}), [whole])) == {"train-0": ("gpu-0", (0, 2, 3, 5))}


def test_upper_bounds_hold_for_the_whole_node_of_an_exclusive_rank():
    """`cpu: 4` of a node with 8 is too large for an exclusive rank; the refusal names both ways out."""
    nodes = [node("gpu-0"), node("gpu-1")]
    refusal = refused(run(ask(nodes=2, resources={"cpu": 4}), nodes))
    assert refusal.code == "never-fits"
    assert causes(refusal) == {"node/gpu-0": "too-large", "node/gpu-1": "too-large", "fleet/gpu": "no-offer"}
    assert refusal.hint is not None
    assert "widen the range" in refusal.hint
    assert "exclusive: false" in refusal.hint
    assert len(run(ask(nodes=2, resources={"cpu": 4}, exclusive=False), nodes).choices) == 2
    assert len(run(ask(nodes=2, resources={"cpu": "4..8"}), nodes).choices) == 2


def test_a_single_rank_may_ask_for_a_whole_node():
    """`exclusive: true` with one rank."""
    out = run(ask(exclusive=True), [node("gpu-0", held=[0]), node("gpu-1")])
    assert places(out) == {"train-0": ("gpu-1", (0, 1, 2, 3))}


# Fleets, backends, regions


def test_a_task_keeps_to_its_fleets():
    """`fleets` names those that may be used."""
    fleets = [fleet("aa"), fleet("bb")]
    out = run(ask(fleets=["bb"]), [node("aa-0"), node("bb-0")], fleets)
    assert places(out) == {"train-0": ("bb-0", (0,))}
    refusal = refused(run(ask(fleets=["bb"]), [node("aa-0")], fleets))
    assert causes(refusal) == {"node/aa-0": "fleet", "fleet/aa": "fleet", "fleet/bb": "no-offer"}


def test_a_cluster_needs_a_cluster_fleet():
    """The message says so, and the hint names both fields."""
    refusal = refused(run(ask(nodes=2), [node("gpu-0"), node("gpu-1")], [fleet()]))
    assert refusal.code == "never-fits"
    assert set(causes(refusal).values()) == {"not-cluster"}
    assert refusal.hint == "set `placement: cluster` on a fleet, or `placement: any` on the task"


def test_any_may_span_fleets_backends_and_regions():
    """The ranks of a task with `placement: any` need not lie together."""
    nodes = [node("aa-0"), node("bb-0", backend="c", region="s")]
    out = run(ask(nodes=2, placement="any", exclusive=True), nodes, [fleet("aa"), fleet("bb")])
    assert {c.node for c in out.choices} == {"aa-0", "bb-0"}


def test_a_cluster_does_not_span_fleets_or_regions():
    """Two nodes in two cluster fleets, or in two regions, are no place for two ranks."""
    fleets = [fleet("aa", placement="cluster"), fleet("bb", placement="cluster")]
    refused(run(ask(nodes=2), [node("aa-0"), node("bb-0")], fleets))
    refusal = refused(run(ask(nodes=2), [node("gpu-0"), node("gpu-1", region="s")]))
    assert "region" in causes(refusal).values()
    nodes = [node("gpu-0"), node("gpu-1", region="s"), node("gpu-2", region="s")]
    assert {c.node for c in run(ask(nodes=2), nodes).choices} == {"gpu-1", "gpu-2"}


def test_a_cluster_fleet_grows_where_it_is():
    """A new node of a cluster fleet comes where its others are, though it is cheaper elsewhere; and a fleet
    that begins does so where all of it can be had.
    """
    offers = [offer(1.0, "far"), offer(2.0, "r")]
    out = run([ask(exclusive=True)], [node("gpu-0", held=[0])], [fleet(placement="cluster", offers=offers)])
    assert [n.region for n in out.launches] == ["r"]
    offers = [offer(1.0, "far", limit=1), offer(2.0, "r")]
    out = run([], [], [fleet(placement="cluster", offers=offers, baseline=2)])
    assert [n.region for n in out.launches] == ["r", "r"]
    out = run([], [], [fleet(offers=offers, baseline=2)])
    assert [n.region for n in out.launches] == ["far", "r"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"backends": ["cc"]}, "backend"),
        ({"regions": ["s"]}, "region"),
        ({"spot_policy": "spot"}, "spot"),
        ({"max_price": 0.5}, "price"),
        ({"resources": {"cpu": "9.."}}, "too-small"),
        ({"resources": {"cpu": "..1"}}, "too-large"),
        ({"instances": ["cpu-7"]}, "instance"),
    ],
)
def test_filters_hold_for_nodes_and_offers_alike(words, code):
    """Each filter turns down the node that is there and the offer that could be launched."""
    refusal = refused(run(ask(**words), [node("gpu-0")], [fleet(nodes="0..1", offers=[offer()])]))
    assert refusal.code == "never-fits"
    found = causes(refusal)
    assert found.pop("node/gpu-0") == code
    assert set(found.values()) == {code}


def test_an_unknown_price_is_not_below_a_cap():
    """With `max_price` a node or offer whose price is unknown is turned down; without it is used last."""
    unknown = [offer(None)]
    refusal = refused(run(ask(max_price=5), [node("gpu-0", price=None)], [fleet(offers=unknown)]))
    assert set(causes(refusal).values()) == {"price-unknown"}
    out = run(ask(), [], [fleet(offers=[offer(None), offer(9.0, instance_type="dear")])])
    assert [n.instance_type for n in out.launches] == ["dear"]
    assert len(run(ask(), [], [fleet(offers=unknown)]).launches) == 1


@pytest.mark.parametrize(
    ("policy", "spots"), [("spot", [True]), ("on-demand", [False]), ("auto", [True]), (None, [True])]
)
def test_spot_policies(policy, spots):
    """The task's policy binds; without one the fleet's offers are all good and the cheapest is taken."""
    offers = [offer(0.4, spot=True), offer(1.0)]
    words = {"spot_policy": policy} if policy else {}
    assert spots == [n.spot for n in run(ask(**words), [], [fleet(offers=offers)]).launches]


def able(*words):
    return Readiness(state=NodeState.READY, can=frozenset(words))


ASKS = [({"isolation": "hard"}, "hard", "isolation"), ({"image": "i"}, "podman", "no-runtime")]


def asking(words):
    """The task, with fields that documents may not have yet."""
    made = ask()
    more = {k: Isolation(v) if k == "isolation" else v for k, v in words.items()}
    return replace(made, want=replace(made.want, spec=replace(made.want.spec, **more)))


@pytest.mark.parametrize(("words", "wanted", "code"), ASKS)
def test_what_a_host_cannot_do_is_asked_of_another(words, wanted, code):
    """The same for nodes and for hosts that are to become nodes; unknown properties do not count against
    them.
    """
    lacks, has = replace(node("gpu-0"), readiness=able()), replace(node("gpu-1"), readiness=able(wanted))
    out = run(asking(words), [lacks, has])
    assert places(out)["train-0"][0] == "gpu-1"
    assert places(run(asking(words), [node("gpu-2"), lacks]))["train-0"][0] == "gpu-2"
    assert places(run(ask(), [lacks]))["train-0"][0] == "gpu-0"
    cannot = fleet(nodes="0..1", offers=[offer(can=frozenset({"none"}))])
    refusal = refused(run(asking(words), [lacks], [cannot]))
    assert refusal.code == "never-fits"
    assert set(causes(refusal).values()) == {code}
    assert "hosts" in refusal.hint or "host" in refusal.hint
    for known in (None, frozenset({wanted})):
        rule = fleet(nodes="0..2", offers=[offer(can=known)])
        assert len(run(asking(words), [lacks], [rule]).launches) == 1


def test_tasks_that_differ_in_nothing_else_are_told_apart():
    """Two tasks alike but for what they ask of a host are no one request."""
    lacks = replace(node("gpu-0"), readiness=able())
    out = run([ask("plain"), asking({"isolation": "hard"})], [lacks])
    assert set(places(out)) == {"plain-0"}
    assert [r.task for r in out.refusals] == ["train"]


# Readiness


@pytest.mark.parametrize("state", sorted({*NodeState} - BOOTING - {NodeState.READY}))
def test_only_ready_nodes_take_work(state):
    """Every other state turns a node down, `unknown` too; it does not fit now, but it could."""
    refusal = refused(run(ask(), [node("gpu-0", state=state)]))
    assert refusal.code == "no-capacity"
    code = "drained" if state is NodeState.DRAINING else "not-ready"
    assert causes(refusal)["node/gpu-0"] == code


@pytest.mark.parametrize("state", sorted(BOOTING))
def test_a_node_that_boots_is_waited_for(state):
    """Rather than to launch another; but one that is ready comes first, whatever they are called."""
    market = [fleet(offers=[offer()])]
    out = run(ask(), [node("gpu-0", state=state)], market)
    assert (places(out), out.launches) == ({"train-0": ("gpu-0", (0,))}, ())
    out = run(ask(), [node("gpu-0", state=state), node("gpu-1")], market)
    assert places(out) == {"train-0": ("gpu-1", (0,))}
    out = run(ask(instances=["gpu-0"]), [node("gpu-0", state=state), node("gpu-1")], market)
    assert places(out) == {"train-0": ("gpu-0", (0,))}


def test_a_pinned_node_that_is_not_ready_is_refused_by_name():
    """The task is not moved to another node, however idle."""
    nodes = [node("gpu-0", state=NodeState.UNREACHABLE), node("gpu-1")]
    refusal = refused(run(ask(instances=["gpu-0"]), nodes, [fleet(offers=[offer()])]))
    assert causes(refusal)["node/gpu-0"] == "not-ready"
    assert causes(refusal)["node/gpu-1"] == "instance"
    assert refusal.hint is not None
    assert "pinned" in refusal.hint
    assert places(run(ask(instances=["gpu-1"]), nodes)) == {"train-0": ("gpu-1", (0,))}


def test_a_node_that_is_to_go_takes_no_new_work():
    """Nodes that are closed say why."""
    rules = [fleet(offers=[offer()], nodes="0..1", existing=1)]
    refusal = refused(run(ask(), [node("gpu-0", closed="it is replaced once idle")], rules))
    assert causes(refusal)["node/gpu-0"] == "closed"
    assert refusal.code == "no-capacity"


# Launching


def test_idle_blocks_come_before_new_nodes():
    """Reuse first, whatever is on offer."""
    out = run(ask(), [node("gpu-0", price=9.0)], [fleet(offers=[offer(0.1)])])
    assert out.launches == ()


def test_a_fleet_grows_for_tasks_up_to_its_maximum():
    """`nodes: 0..4` launches four for a gang of four, and refuses a fifth rank, by the fleet's name."""
    fleets = [fleet(placement="cluster", offers=[offer()])]
    out = run(ask(nodes=4), [], fleets)
    assert [n.name for n in out.launches] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    refusal = refused(run(ask(nodes=5), [], fleets))
    assert refusal.code == "never-fits"
    assert "fleet-max" in causes(refusal).values()
    assert run(ask(nodes=5), [], fleets).launches == ()


def test_a_busy_fleet_at_its_maximum_does_not_fit_now():
    """With its nodes idle it would fit: another code than what can never fit."""
    nodes = [node("gpu-0", held=[0, 1, 2, 3])]
    refusal = refused(run(ask(), nodes, [fleet(nodes=1, offers=[offer()], existing=1)]))
    assert refusal.code == "no-capacity"
    assert {"busy", "fleet-max"} == set(causes(refusal).values())


def test_reuse_takes_nodes_that_the_fleet_launches_for_itself_and_no_more():
    """`creation_policy: reuse` looks at the nodes that the plan launches for the fleet, but makes it no
    larger.
    """
    fleets = [fleet(placement="cluster", offers=[offer()], baseline=2)]
    out = run(ask(nodes=2, creation_policy="reuse"), [], fleets)
    assert [n.name for n in out.launches] == ["gpu-0", "gpu-1"]
    assert len(out.choices) == 2
    refusal = refused(run(ask(nodes=3, creation_policy="reuse"), [], fleets))
    assert "reuse-only" in causes(refusal).values()
    assert len(run(ask(nodes=3, creation_policy="reuse"), [], fleets).launches) == 2  # its own, all the same


def test_reuse_takes_what_is_launched_for_others():
    """Whatever its name: a node that another task launches has idle blocks for it."""
    asks = [ask("aa", creation_policy="reuse"), ask("zz")]
    out = run(asks, [], [fleet(offers=[offer()], blocks=2)])
    assert places(out) == {"aa-0": ("gpu-0", (0,)), "zz-0": ("gpu-0", (1,))}


def test_a_task_that_buys_has_the_room_of_a_launched_node_before_one_that_reuses():
    """Also with the lower priority: else the reuse of that room would launch a node more."""
    buys = [ask("high", priority=5), ask("low")]
    reuses = ask("rides", priority=5, creation_policy="reuse")
    out = run([*buys, reuses], [], [fleet(offers=[offer()], blocks=2)])
    assert places(out) == {"high-0": ("gpu-0", (0,)), "low-0": ("gpu-0", (1,))}
    assert [r.task for r in out.refusals] == ["rides"]
    alone = run([buys[0], reuses], [], [fleet(offers=[offer()], blocks=2)])
    assert places(alone) == {"high-0": ("gpu-0", (0,)), "rides-0": ("gpu-0", (1,))}


def test_a_small_task_makes_a_split_fleet_grow():
    """A new node is split as its fleet says, and the task takes its share only (dstack #3475, #4188)."""
    out = run(
        ask(resources={"cpu": 1}), [], [fleet(offers=[offer()], blocks="auto", resources={"cpu": "4..8"})]
    )
    assert [(n.name, n.total) for n in out.launches] == [("gpu-0", 8)]
    assert places(out) == {"train-0": ("gpu-0", (0,))}


def test_the_cheapest_set_of_nodes_is_launched():
    """For one small task the small node; for eight of them the big one, which costs less than four small."""
    offers = [offer(1.0, cpu=2, instance_type="small"), offer(3.2, cpu=8, instance_type="big")]
    one = run(ask(resources={"cpu": 1}), [], [fleet(offers=offers, blocks="auto")])
    assert [n.instance_type for n in one.launches] == ["small"]
    eight = [ask(f"t{i}", resources={"cpu": 1}) for i in range(8)]
    assert [n.instance_type for n in run(eight, [], [fleet(offers=offers, blocks="auto")]).launches] == [
        "big"
    ]
    whole = run(ask(resources={"cpu": "1.."}), [], [fleet(offers=offers)])
    assert [n.instance_type for n in whole.launches] == ["small"]


def test_names_are_given_from_the_lowest_free_number():
    """Nodes keep their names while others come and go; what is replaced keeps its own."""
    rule = fleet(offers=[offer()])
    out = run([ask("one", exclusive=True), ask("two", exclusive=True)], [node("gpu-1", held=[0])], [rule])
    assert [n.name for n in out.launches] == ["gpu-0", "gpu-2"]
    again = replace(rule, free_names=("gpu-3",))
    pinned = run(ask(instances=["gpu-3"]), [], [again])
    assert [n.name for n in pinned.launches] == ["gpu-3"]
    assert run(ask(instances=["gpu-3"]), [], [rule]).launches == ()  # none that is there or comes


def test_an_offer_is_taken_as_often_as_its_limit_allows():
    """Then the next one; then the refusal says so."""
    offers = [offer(1.0, limit=1), offer(2.0, instance_type="next", limit=1)]
    fleets = [fleet(placement="cluster", offers=offers)]
    out = run(ask(nodes=2), [], fleets)
    assert [n.instance_type for n in out.launches] == ["x", "next"]
    refusal = refused(run(ask(nodes=3), [], fleets))
    assert set(causes(refusal).values()) == {"limit"}
    assert refusal.code == "never-fits"


def test_a_fleet_that_cannot_be_filled_says_how_much_is_missing():
    """`short_fleets` counts the nodes that no offer gives."""
    assert run([], [], [fleet(baseline=3, offers=[offer(limit=1)])]).short_fleets == (("gpu", 2),)


# Volumes


def test_each_rank_goes_where_its_volume_is():
    """All ranks' volumes bind, not only those of rank 0."""
    nodes = [node("gpu-0", zone="z1"), node("gpu-1", zone="z2")]
    volumes = {
        "data-0": VolumeAt(backend="b", region="r", zone="z2"),
        "data-1": VolumeAt(backend="b", region="r", zone="z1"),
    }
    out = run(ask(nodes=2, same="region", mounts={"/d": "data-#"}), nodes, None, volumes)
    assert {(c.rank, c.node, c.volumes["/d"]) for c in out.choices} == {
        (0, "gpu-1", "data-0"),
        (1, "gpu-0", "data-1"),
    }


def test_a_rank_without_choice_goes_first():
    """Rank 0 may go anywhere, rank 1 only to gpu-0: neither is refused."""
    nodes = [node("gpu-0", zone="z1"), node("gpu-1", zone="z2")]
    volumes = {
        "data-0": VolumeAt(backend="b", region="r", zone=None),
        "data-1": VolumeAt(backend="b", region="r", zone="z1"),
    }
    out = run(ask(nodes=2, same="region", mounts={"/d": "data-#"}), nodes, None, volumes)
    assert {(c.rank, c.node) for c in out.choices} == {(0, "gpu-1"), (1, "gpu-0")}


def test_a_volume_elsewhere_is_a_structural_reason():
    """In another region it can never be attached."""
    volumes = {"data": VolumeAt(backend="b", region="s", zone=None)}
    refusal = refused(run(ask(mounts={"/d": "data"}), [node("gpu-0")], None, volumes))
    assert refusal.code == "never-fits"
    assert causes(refusal)["node/gpu-0"] == "volume-elsewhere"


def test_a_volume_is_for_one_task_at_a_time():
    """Of two tasks that want it the first by name gets it; the other waits, or takes its alternative."""
    volumes = {n: VolumeAt(backend="b", region="r", zone=None) for n in ("data", "spare")}
    asks = [ask("bb", mounts={"/d": "data"}), ask("aa", mounts={"/d": "data"})]
    out = run(asks, [node("gpu-0")], None, volumes)
    assert list(places(out)) == ["aa-0"]
    refusal = refused(out)
    assert refusal.code == "no-capacity"
    assert causes(refusal)["node/gpu-0"] == "volume-busy"
    asks[0] = ask("bb", mounts={"/d": ["data", "spare"]})
    out = run(asks, [node("gpu-0")], None, volumes)
    assert {c.task: c.volumes["/d"] for c in out.choices} == {"aa": "data", "bb": "spare"}


def test_a_volume_that_is_held_is_not_given_away():
    """Its holder is named."""
    volumes = {"data": VolumeAt(backend="b", region="r", zone=None, holder="rank/old-0")}
    refusal = refused(run(ask(mounts={"/d": "data"}), [node("gpu-0")], None, volumes))
    assert "held by rank/old-0" in next(
        r.detail for v in refusal.ranks for r in v.rejections if r.code == "volume-busy"
    )


# Order


def test_higher_priority_is_placed_first():
    """Whatever the names and sizes."""
    asks = [ask("aa", exclusive=True), ask("zz", priority=9)]
    assert list(places(run(asks, [node("gpu-0")]))) == ["zz-0"]


def test_a_task_keeps_the_place_it_had():
    """Its node and its blocks, though others fit better; and those that have a place come first."""
    prior = {0: ("gpu-1", (2,))}
    out = run([ask(prior=prior), ask("aa")], [node("gpu-0", held=[0, 1, 2]), node("gpu-1")])
    assert places(out) == {"train-0": ("gpu-1", (2,)), "aa-0": ("gpu-0", (3,))}


def test_a_place_is_not_taken_by_a_task_that_has_none():
    """Those that have a place are placed before others of their priority, whatever the names and sizes."""
    nodes = [node("gpu-0"), node("gpu-1", held=[0, 1, 3])]
    out = run([ask(prior={0: ("gpu-1", (2,))}), ask("aa", resources={"cpu": "1.."})], nodes)
    assert places(out) == {"train-0": ("gpu-1", (2,)), "aa-0": ("gpu-0", (0,))}


def test_all_ranks_or_none():
    """What was found for a part of the ranks is given to the next task."""
    asks = [ask("aa", nodes=3, creation_policy="reuse"), ask("bb", nodes=2, creation_policy="reuse")]
    out = run(asks, [node("gpu-0"), node("gpu-1")])
    assert {c.task for c in out.choices} == {"bb"}
    assert refused(out).task == "aa"


def test_verdicts_name_the_cause_once():
    """One rank is the cause; those before it fit, those after it were not tried."""
    refusal = refused(run(ask(nodes=4, creation_policy="reuse"), [node("gpu-0")]))
    assert [v.verdict.value for v in refusal.ranks] == ["fits", "cause", "not-tried", "not-tried"]
    assert [bool(v.rejections) for v in refusal.ranks] == [False, True, False, False]


def test_structural_reasons_come_before_capacity():
    """In the list of what was turned down, and in the summary."""
    nodes = [node("gpu-0", held=[0, 1, 2, 3]), node("gpu-1", shape=Shape(cpu=4, memory_mib=1))]
    refusal = refused(run(ask(resources={"memory": "1GB.."}), nodes))
    codes = [r.code for v in refusal.ranks for r in v.rejections]
    assert codes.index("too-small") < codes.index("busy")
    assert refusal.summary.index("too small") < refusal.summary.index("without enough idle blocks")


def test_without_a_fleet_nothing_fits():
    """The refusal says what is missing."""
    refusal = refused(run(ask(), [], []))
    assert (refusal.code, refusal.hint) == ("never-fits", "declare a fleet")
    assert split(SHAPE, None) == 8


def test_waiting_is_no_hint_where_it_mends_nothing():
    """A task that can never fit gets no hint to wait."""
    refusal = refused(run(ask(nodes=4), fleets=[fleet(nodes=2, offers=[offer()], placement="cluster")]))
    assert refusal.code == "never-fits"
    assert refusal.hint == "it fits with `nodes: 2..4` of fleet/gpu, or with `nodes: 2` of the task"


def test_names_are_sorted_as_people_count():
    """Numbers by their value; what only looks like a digit is a letter."""
    assert sorted(["gpu-10", "gpu-2", "gpu-²"], key=natural) == ["gpu-2", "gpu-10", "gpu-²"]


def test_only_what_is_there_is_counted():
    """Nodes that this plan launches for others are no idle nodes that were found busy."""
    asks = [ask("aa", nodes=2, priority=9), ask("bb", nodes=2)]
    refusal = refused(run(asks, [], [fleet(nodes="0..2", offers=[offer()], placement="cluster")]))
    assert refusal.summary.endswith(
        "2 whole idle nodes in one cluster fleet wanted, 0 found (1 offer beyond the fleet's maximum)"
    )
