"""Ranks together and apart: zones, racks of hosts, `same` and `spread`."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import booleans, integers, lists, sampled_from, tuples

from declarative.model.resource import TaskWant
from declarative.model.schema import BadValueError, decode_part
from declarative.model.spec import Task
from declarative.model.spec.fleet import HostFields
from declarative.model.spec.values import Topology
from declarative.placement.assignment import Assignment
from declarative.placement.catalog import Catalog
from declarative.placement.place import place
from declarative.placement.problem import Ask, VolumeAt
from declarative.placement.program.model import PlacementModel
from declarative.placement.program.solve import cheapest
from declarative.placement.program.solver import SolverCache
from tests.laws.test_placement import LAW
from tests.placement.test_placement import SHAPE, fleet, node, offer
from tests.planner.test_host_fleets import bring, declared
from tests.planner.test_host_fleets import rack as rack_fleet
from tests.support.model import World, rank_mounts, spec


def ask(nodes=2, mounts=None, name="train", **words):
    task = spec(Task, {"name": name, "nodes": nodes, "commands": ["true"], **words})
    return Ask(want=TaskWant(spec=task, mounts=rank_mounts(task, mounts or {})))


def run(asks, nodes=(), fleets=(), volumes=None):
    asks = [asks] if isinstance(asks, Ask) else asks
    rules = {rule.fleet.name: rule for rule in fleets or [cluster()]}
    return place(asks, nodes, rules, volumes or {})


def cluster(name="gpu", nodes="0..8", offers=(), **words):
    return fleet(name, nodes, offers, placement="cluster", **words)


def where(out, attribute="zone"):
    """What the nodes of the ranks have for an attribute, rank by rank."""
    nodes = {n.name: n for n in out.launches}
    return [getattr(nodes[c.node], attribute) for c in out.choices]


ZONES = [
    offer(price, zone=zone, limit=limit, instance_type=zone)  # a limit is one of a type, whatever the zone
    for price, zone, limit in ((1.0, "za", 2), (2.0, "zb", 2), (3.0, "zc", 4))
]


def test_a_gang_lies_in_one_zone():
    """Though nodes in two zones would cost less."""
    out = run(ask(4), fleets=[cluster(offers=ZONES)])
    assert where(out) == ["zc"] * 4


def test_what_is_there_and_what_is_launched_are_one_zone():
    nodes = [node("gpu-0", zone="za"), node("gpu-1", zone="zb")]
    out = run(ask(2), nodes, [cluster(offers=ZONES[1:])])
    assert {c.node for c in out.choices} == {"gpu-1", "gpu-2"}
    assert [n.zone for n in out.launches] == ["zb"]


@pytest.mark.parametrize("who", ["fleet", "task"])
def test_a_gang_spans_zones_if_fleet_or_task_says_so(who):
    words = {"same": "region"}
    rule = cluster(offers=ZONES, **(words if who == "fleet" else {}))
    out = run(ask(4, **(words if who == "task" else {})), fleets=[rule])
    assert sorted(where(out)) == ["za", "za", "zb", "zb"]


def test_the_task_is_heard_before_the_fleet():
    out = run(ask(4, same="zone"), fleets=[cluster(offers=ZONES, same="region")])
    assert where(out) == ["zc"] * 4


def test_a_refusal_names_the_zone_and_what_helps():
    out = run(ask(4), fleets=[cluster(offers=ZONES[:2])])
    (refusal,) = out.refusals
    assert refusal.code == "never-fits"
    assert "with `same: region`" in refusal.changes
    cause = next(v for v in refusal.ranks if v.verdict.value == "cause")
    assert "zone" in {r.code for r in cause.rejections}


def test_volumes_in_two_zones_need_a_wider_cluster():
    volumes = {f"data-{i}": VolumeAt(backend="b", region="r", zone=z) for i, z in enumerate(("za", "zb"))}
    job = {"mounts": {"/data": "data-#"}}
    refused = run(ask(2, **job), fleets=[cluster(offers=ZONES)], volumes=volumes)
    assert refused.refusals[0].changes[:1] == ("with `placement: any`",) or refused.refusals[0].changes
    assert "with `same: region`" in refused.refusals[0].changes
    out = run(ask(2, **job, same="region"), fleets=[cluster(offers=ZONES)], volumes=volumes)
    assert where(out) == ["za", "zb"]


# Racks


def rack(name, at, **more):
    return node(name, zone=name, region="ssh", topology=(("rack", at),) if at else (), price=0.0, **more)


def test_a_gang_lies_in_one_rack():
    """Not in the two racks with the first names, each of which has one idle node."""
    nodes = [rack("gpu-0", "a"), rack("gpu-1", "b"), rack("gpu-2", "c"), rack("gpu-3", "c")]
    out = run(ask(2, same="rack"), nodes)
    assert {c.node for c in out.choices} == {"gpu-2", "gpu-3"}


def test_hosts_are_one_zone_to_the_network():
    """Each is a zone of its own to the volumes on its disk only."""
    out = run(ask(2), [rack("gpu-0", "a"), rack("gpu-1", "b")])
    assert {c.node for c in out.choices} == {"gpu-0", "gpu-1"}


def test_what_names_no_rack_is_turned_down():
    out = run(ask(2, same="rack"), [rack("gpu-0", "a"), rack("gpu-1", None)])
    (refusal,) = out.refusals
    cause = next(v for v in refusal.ranks if v.verdict.value == "cause")
    assert {r.target: r.code for r in cause.rejections}["node/gpu-1"] == "topology"
    assert refusal.code == "never-fits"


def test_many_gangs_by_racks_are_placed_as_well_as_can_be():
    """Two gangs of two and two of one, on three racks of two."""
    nodes = [rack(f"gpu-{i}", at) for i, at in enumerate("abcabc")]
    asks = [ask(2, name="aa", same="rack"), ask(2, name="bb", same="rack")]
    asks += [ask(1, name=name, resources={"cpu": 8}) for name in ("cc", "dd")]
    assert not run(asks, nodes).refusals


# Apart


def test_spread_over_zones():
    out = run(ask(3, placement="any", spread="zone"), fleets=[fleet(offers=ZONES)])
    assert sorted(where(out)) == ["za", "zb", "zc"]


def test_spread_over_nodes():
    """Though one node would hold all ranks."""
    nodes = [node(f"gpu-{i}") for i in range(3)]
    job = ask(3, placement="any", spread="node", resources={"cpu": "1.."})
    assert sorted(c.node for c in run(job, nodes, [fleet()]).choices) == ["gpu-0", "gpu-1", "gpu-2"]


def test_spread_over_racks():
    nodes = [rack(f"gpu-{i}", at) for i, at in enumerate("aab")]
    out = run(ask(2, placement="any", spread="rack"), nodes, [fleet()])
    assert {c.node for c in out.choices} == {"gpu-0", "gpu-2"}


def test_volumes_are_chosen_so_that_ranks_lie_apart():
    """Of a rank's alternatives the one that lies in another region: two zones of one region are not apart."""
    lies = [("east", "za"), ("east", "zb"), ("west", None)]
    nodes = [node(f"gpu-{i}", region=region, zone=zone) for i, (region, zone) in enumerate(lies)]
    homes = {"data-0": lies[0], "own-0": ("east", None), "data-1": ("east", None), "own-1": lies[2]}
    volumes = {name: VolumeAt(backend="b", region=r, zone=z) for name, (r, z) in homes.items()}
    job = ask(2, {"/d": ["data-#", "own-#"]}, placement="any", spread="region")
    found = {c.rank: (c.node, c.volumes) for c in run(job, nodes, [fleet()], volumes).choices}
    assert found[0][0] in ("gpu-0", "gpu-1")
    assert found[1] == ("gpu-2", {"/d": "own-1"})


def test_ranks_that_cannot_be_kept_apart_are_refused():
    nodes = [node("gpu-0"), node("gpu-1")]
    job = ask(3, placement="any", spread="node", resources={"cpu": "1.."})
    (refusal,) = run(job, nodes, [fleet()]).refusals
    cause = next(v for v in refusal.ranks if v.verdict.value == "cause")
    assert {r.target: r.code for r in cause.rejections}["node/gpu-0"] == "spread"
    assert "without `spread`" in refusal.changes


def test_the_cheapest_place_of_a_rank_is_left_where_another_one_needs_it():
    """In `za` the first fleet's node is the cheaper one, but in `zb` there is no other."""
    cheap = [offer(1.0, zone=zone, instance_type="small") for zone in ("za", "zb")]
    fleets = [fleet("aa", "0..1", cheap), fleet("bb", "0..1", [offer(2.0, zone="za", instance_type="big")])]
    out = run(ask(2, placement="any", spread="zone"), fleets=fleets)
    assert sorted((n.fleet, n.zone) for n in out.launches) == [("aa", "zb"), ("bb", "za")]
    assert out.bound == pytest.approx(3.0)


def test_ranks_apart_are_planned_together_with_what_is_beside_them():
    """The gang needs all nodes that are there, so the small task gets a new one; not the gang three."""
    nodes = [node(f"own-{i}", total=1, shape=replace(SHAPE, cpu=cpu)) for i, cpu in enumerate((16, 8, 8))]
    fleets = [cluster("own", "0..3", existing=3), cluster("gpu", "0..3", [offer(0.72)])]
    gang = ask(3, name="gang", exclusive=False, spread="node")
    small = ask(1, name="small", resources={"cpu": "3.."})
    out = run([gang, small], nodes, fleets)
    assert {c.node for c in out.choices if c.task == "gang"} == {"own-0", "own-1", "own-2"}
    assert [n.name for n in out.launches] == ["gpu-0"]


def test_ranks_apart_share_no_node_though_others_fill_it():
    """Two ranks and six small tasks fill two nodes of four blocks: each node takes one of the ranks."""
    asks = [ask(2, name="gang", placement="any", spread="node", resources={"cpu": "1.."})]
    asks += [ask(1, name=f"t{i}", resources={"cpu": "1.."}) for i in range(6)]
    out = run(asks, fleets=[fleet(nodes="0..2", offers=[offer(cpu=4)], blocks=4)])
    assert len({c.node for c in out.choices if c.task == "gang"}) == 2
    assert (len(out.launches), out.refusals) == (2, ())


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("level", ["node", "zone"])
def test_ranks_lie_apart_whether_tasks_are_alike_or_not(level, alike):
    """The bound knows it, too."""
    sizes = ["1..", "1.." if alike else "2.."]
    asks = [
        ask(2, name=f"t{i}", placement="any", spread=level, resources={"cpu": size})
        for i, size in enumerate(sizes)
    ]
    offers = [offer(1.0, zone=zone, cpu=8) for zone in ("za", "zb")]
    out = run(asks, fleets=[fleet(nodes="0..", offers=offers, blocks=8)])
    zone_of = {n.name: n.zone for n in out.launches}
    apart = {(c.task, zone_of[c.node] if level == "zone" else c.node) for c in out.choices}
    assert (len(apart), len(out.launches), out.refusals) == (4, 2, ())
    assert out.bound == pytest.approx(2.0)


@pytest.mark.parametrize("level", ["node", "zone"])
@pytest.mark.parametrize("idle", [(1, 2, 3), (3, 2, 1), (2, 2, 2), (6, 3, 0), (0, 3, 6)])
def test_tasks_that_are_alike_are_told_apart(level, idle):
    """Three tasks of two ranks need all that there is: each takes where most is left."""
    nodes = [
        node(f"gpu-{number}", zone=f"z{number}", total=6, held=range(6 - blocks))
        for number, blocks in enumerate(idle)
    ]
    asks = [ask(2, name=f"t{i}", placement="any", spread=level, resources={"cpu": "1.."}) for i in range(3)]
    catalog = Catalog(asks, nodes, {"gpu": fleet(nodes="0..3", existing=3)}, {})
    program = PlacementModel(Assignment.start(catalog), catalog.jobs, baseline={})
    (gang,) = program.groups.values()
    assert len(gang.jobs) == 3
    decoded = cheapest(program, None, SolverCache()).decoded
    assert decoded is not None
    assignment = decoded.assignment
    assert [len({*assignment.seats[index]}) for index in range(3)] == [2, 2, 2]


@LAW
@given(
    lists(integers(0, 5), min_size=1, max_size=5),
    integers(1, 6),
    integers(2, 3),
    sampled_from(["node", "zone"]),
)
def test_as_many_tasks_that_are_alike_are_seated_apart_as_can_be(idle, tasks, ranks, level):
    """So many that all places together have a rank of each for every one of their ranks (Gale, Ryser)."""
    nodes = [
        node(f"gpu-{number}", zone=f"z{number % 3}", total=5, held=range(5 - blocks))
        for number, blocks in enumerate(idle)
    ]
    asks = [
        ask(ranks, name=f"t{i}", placement="any", spread=level, resources={"cpu": "1.."})
        for i in range(tasks)
    ]
    out = run(asks, nodes, [fleet(nodes=f"0..{len(nodes)}", existing=len(nodes))])
    rooms = idle if level == "node" else [sum(idle[zone::3]) for zone in range(3)]
    most = max(n for n in range(tasks + 1) if sum(min(room, n) for room in rooms) >= n * ranks)
    assert len({choice.task for choice in out.choices}) == most


def fit_apart(idle, sizes):
    """Whether gangs of so many ranks, of so many blocks each, fit nodes so that none has two on one."""
    if not sizes:
        return True
    (ranks, blocks), *rest = sizes
    some = combinations([i for i, free in enumerate(idle) if free >= blocks], ranks)
    return any(fit_apart([free - blocks * (i in at) for i, free in enumerate(idle)], rest) for at in some)


@LAW
@given(
    lists(integers(0, 8), min_size=2, max_size=4),
    lists(tuples(integers(1, 3), integers(1, 4)), min_size=1, max_size=5),
)
def test_ranks_lie_apart_on_nodes_if_they_can(idle, sizes):
    """Each solution of the program is a plan, and there is one if they fit at all."""
    nodes = [node(f"gpu-{i}", total=8, held=range(8 - blocks)) for i, blocks in enumerate(idle)]
    asks = [
        ask(ranks, name=f"t{i}", placement="any", spread="node", resources={"cpu": f"{blocks}.."})
        for i, (ranks, blocks) in enumerate(sizes)
    ]
    catalog = Catalog(asks, nodes, {"gpu": fleet(nodes=f"0..{len(idle)}", existing=len(idle))}, {})
    program = PlacementModel(Assignment.start(catalog), catalog.jobs, baseline={})
    decoded = cheapest(program, None, SolverCache()).decoded
    seats = {index: len({*at}) for index, at in decoded.assignment.seats.items()} if decoded else {}
    assert seats == ({job.index: job.ranks for job in catalog.jobs} if fit_apart(idle, sizes) else {})


@LAW
@given(
    integers(2, 3),
    sampled_from([8, 12]),
    lists(tuples(integers(1, 3), integers(1, 6)), min_size=1, max_size=8),
    booleans(),
)
def test_what_fits_apart_on_the_nodes_that_are_there_needs_no_other(count, cpus, sizes, offered):
    """However tightly: nothing is launched, and nothing refused."""
    sizes = [(ranks, blocks) for ranks, blocks in sizes if ranks <= count]
    while not fit_apart([cpus] * count, sizes):
        sizes = sizes[1:]
    shape = replace(SHAPE, cpu=cpus)
    nodes = [node(f"own-{i}", total=cpus, shape=shape) for i in range(count)]
    asks = [
        ask(ranks, name=f"t{i}", placement="any", spread="node", resources={"cpu": f"{blocks}.."})
        for i, (ranks, blocks) in enumerate(sizes)
    ]
    fleets = [fleet("own", f"0..{count}", existing=count, blocks=cpus)]
    fleets += [fleet("aa", offers=[offer(2.0, cpu=cpus)], blocks=cpus)] if offered else []
    out = run(asks, nodes, fleets)
    assert (len(out.choices), out.launches, out.refusals) == (sum(ranks for ranks, _ in sizes), (), ())


def test_ranks_that_lie_apart_share_nodes_with_others_as_tightly_as_can_be():
    """All find a place on the three nodes; three more are launched if those are not told from each other."""
    tasks: list[tuple[str, int, int, dict[str, Any]]] = [
        ("t0", 2, 11, {"spread": "node"}),
        ("t1", 3, 29, {}),
        ("t2", 2, 23, {}),
        ("t3", 1, 1, {}),
        ("t4", 3, 17, {"spread": "node"}),
        ("t5", 1, 11, {}),
        ("t6", 3, 13, {"spread": "node"}),
    ]
    asks = [
        ask(ranks, name=name, placement="any", resources={"cpu": f"{cpu}.."}, **words)
        for name, ranks, cpu, words in tasks
    ]
    shape = replace(SHAPE, cpu=96, gpus=0, gpu_name=None)
    nodes = [node(f"own-{i}", total=96, shape=shape) for i in range(3)]
    fleets = [
        fleet("own", "0..3", existing=3, blocks=96),
        fleet("aa", offers=[offer(2.0, cpu=48)], blocks=48),
    ]
    out = run(asks, nodes, fleets)
    assert (len(out.choices), out.launches, out.refusals) == (15, (), ())


def test_ranks_of_tasks_that_are_alike_do_not_share_a_node_that_holds_them_all():
    """There are three places on one node for three tasks of two ranks, but two on the other."""
    nodes = [node("gpu-0", total=8), node("gpu-1", total=8, held=range(6))]
    asks = [ask(2, name=f"t{i}", placement="any", spread="node", resources={"cpu": "1.."}) for i in range(3)]
    out = run(asks, nodes, [fleet(nodes="0..2", existing=2)])
    assert len({choice.task for choice in out.choices}) == 2


@pytest.mark.parametrize(("offers", "code"), [(ZONES, "no-capacity"), (ZONES[:1], "never-fits")])
def test_it_is_said_that_ranks_never_lie_apart_only_if_that_is_proved(offers, code, monkeypatch):
    """Where the search does not find what there is, the task may fit all the same."""
    monkeypatch.setattr("declarative.placement.program.solve.decode", lambda *_, **__: None)
    every = "declarative.placement.bound_task.BoundTask._near"
    monkeypatch.setattr(every, lambda self, _: range(len(self.catalog.kinds)))
    (refusal,) = run(ask(2, placement="any", spread="zone"), fleets=[fleet(offers=offers)]).refusals
    assert (refusal.code, refusal.proved) == (code, code == "never-fits")


def test_spread_goes_with_volumes_in_zones():
    """Rank 1's volume is in the cheapest zone: rank 0 leaves it to that."""
    volumes = {"data-1": VolumeAt(backend="b", region="r", zone="za")}
    volumes |= {"data-0": VolumeAt(backend="b", region="r", zone=None)}
    job = ask(2, {"/data": "data-#"}, placement="any", spread="zone")
    assert where(run(job, fleets=[fleet(offers=ZONES)], volumes=volumes)) == ["zb", "za"]


def test_spread_over_nodes_goes_with_volumes_of_one_zone():
    """A zone has as many places as it has nodes."""
    volumes = {f"data-{i}": VolumeAt(backend="b", region="r", zone="za") for i in range(2)}
    nodes = [node(f"gpu-{i}", zone="za") for i in range(2)]
    job = ask(2, {"/data": "data-#"}, placement="any", spread="node", resources={"cpu": "1.."})
    assert sorted(c.node for c in run(job, nodes, [fleet()], volumes).choices) == ["gpu-0", "gpu-1"]
    refused = run(job, nodes[:1], [fleet()], volumes)
    assert refused.refusals


# What may be written


@pytest.mark.parametrize(
    ("words", "summary"),
    [
        ({"same": "zone", "placement": "any"}, "`same` keeps ranks together, and `placement: any` does not"),
        ({"same": "node"}, "`same: node` allows only one rank"),
        ({"spread": "zone"}, "`spread: zone` keeps ranks apart, and a cluster keeps them together"),
        ({"spread": "region"}, "`spread: region` keeps ranks apart, and a cluster keeps them together"),
        ({"same": "Rack"}, "`Rack` is not a level of topology"),
    ],
)
def test_what_contradicts_itself_is_refused(words, summary):
    with pytest.raises(BadValueError) as caught:
        decode_part(Task, {"name": "train", "nodes": 2, "commands": ["true"], **words})
    assert caught.value.summary == summary


def test_a_host_declares_where_it_stands():
    host = decode_part(HostFields, {"hostname": "h1", "topology": {"rack": 7, "row": "b"}})
    assert host.topology == (("rack", "7"), ("row", "b"))
    assert Topology(host.topology).plain() == {"rack": "7", "row": "b"}


@pytest.mark.parametrize(
    "topology", [{"node": "a"}, {"region": "a"}, {"Rack": "a"}, {"rack": ""}, {"rack": [1]}, "a"]
)
def test_a_bad_topology_is_refused(topology):
    with pytest.raises(BadValueError):
        decode_part(HostFields, {"hostname": "h1", "topology": topology})


def test_hosts_that_are_nodes_stand_where_they_are_declared_to():
    """New hosts and those that are nodes already; a change of `topology` changes nothing else."""
    world = World()
    one = {"name": "one", "nodes": 2, "same": "rack", "resources": {"cpu": 4}}
    hosts = [{"hostname": f"h{i}", "topology": {"rack": at}} for i, at in enumerate("abcb")]
    found = bring(world, declared(rack_fleet(*hosts), tasks=[one]))
    assert sorted(r.node for r in found.reservations) == ["rack-1", "rack-3"]
    hosts = [{"hostname": f"h{i}", "topology": {"rack": at}} for i, at in enumerate("abab")]
    two = {**one, "name": "two"}
    found = bring(world, declared(rack_fleet(*hosts), tasks=[one, two]))
    assert sorted(r.node for r in found.reservations if r.task == "two") == ["rack-0", "rack-2"]
    assert {a.address.kind for a in found.actions} == {"rank", "reservation"}


def test_ranks_that_are_spread_keep_their_places():
    """Asked for again, with their volumes: where they were is no reason to be elsewhere."""
    volumes = {f"data-{i}": VolumeAt(backend="b", region="r", zone=None) for i in range(2)}
    nodes = [node("gpu-0", zone="za"), node("gpu-1", zone="zb")]
    job = ask(2, {"/data": "data-#"}, placement="any", spread="zone")
    prior = {0: ("gpu-1", (0,)), 1: ("gpu-0", (0,))}
    out = run(replace(job, prior=prior), nodes, [fleet()], volumes)
    assert [c.node for c in out.choices] == ["gpu-1", "gpu-0"]
