"""The GPUs of ranks: one vendor for a gang, and the smallest GPUs of places with the same price."""

from dataclasses import replace

import pytest

from declarative.model.blocks import Shape
from declarative.model.spec.gpu_models import vendor_of
from declarative.placement.explain.free_a_node import suggest
from declarative.placement.filters import one_vendor
from declarative.placement.problem import NodeType
from declarative.planner.fallbacks import _Guest, _Member
from tests.placement.test_placement import ask, causes, fleet, node, offer, places, refused, run


def gpus(model, count=1, *, memory=None, cpu=8, vendor=None, ram=32768):
    size = {"gpu_memory_mib": memory, "gpu_vendor": vendor}
    return Shape(cpu=cpu, memory_mib=ram, gpus=count, gpu_name=model, **size)


def host(name, model, count=1, **more):
    """An idle node that costs nothing, with a block for each GPU."""
    shape = {k: more.pop(k) for k in ("memory", "cpu", "vendor", "ram") if k in more}
    return node(name, total=count, shape=gpus(model, count, **shape), price=0.0, **more)


def gang(**more):
    return ask(**{"nodes": 2, "resources": {"gpu": "1.."}, **more})


CLUSTER, ANY = {"placement": "cluster"}, {"placement": "any"}
FREE = [fleet(nodes="0..0", placement="cluster")]

# ----------------------------------------------------------------------------------------------- vendors


@pytest.mark.parametrize(
    ("model", "vendor"),
    [("H100", "nvidia"), ("RTX 4090", "nvidia"), ("MI300X", "amd"), ("Gaudi3", "intel"), ("v5p", "google")],
)
def test_a_known_model_has_a_vendor(model, vendor):
    assert vendor_of(model) == vendor


@pytest.mark.parametrize("model", ["FOO", "mistral", "maxwell", "H999", "", None])
def test_an_unknown_model_has_none(model):
    assert vendor_of(model) is None


@pytest.mark.parametrize("placement", [CLUSTER, ANY])
@pytest.mark.parametrize("other", ["MI300X", "FOO", None])
def test_a_gang_reuses_nodes_of_one_vendor(placement, other):
    """Two idle nodes are not enough if one has another vendor, or an unknown one."""
    mixed = [host("gpu-0", "H100"), host("gpu-1", other)]
    refusal = refused(run(gang(**placement), mixed, FREE))
    assert refusal.code == "never-fits"
    assert "with another vendor's GPUs" in refusal.summary
    assert "gpu-vendor" in causes(refusal).values()
    (why,) = [r for v in refusal.ranks for r in v.rejections if r.code == "gpu-vendor"]
    assert why.detail.endswith("names models of both, or `instances` pins nodes of both")
    out = run(gang(**placement), [*mixed, host("gpu-2", "H100"), host("gpu-3", other)], FREE)
    assert {n for n, _ in places(out).values()} in ({"gpu-0", "gpu-2"}, {"gpu-1", "gpu-3"})


@pytest.mark.parametrize(
    ("told", "may"),
    [
        ({"resources": {"gpu": "H100,MI300X:1"}}, True),
        ({"instances": ["gpu-0", "gpu-1"]}, True),
        ({"resources": {}}, True),
        ({"resources": {"gpu": "H100,A100:1"}}, False),
        ({"resources": {"gpu": "amd:1"}}, False),
        ({"instances": ["gpu-0"]}, False),
    ],
)
def test_a_gang_mixes_vendors_if_it_is_told(told, may):
    """Models of both, or pinned nodes of both; one that asks for no GPUs does not care."""
    out = run(gang(**told), [host("gpu-0", "H100"), host("gpu-1", "MI300X")], FREE)
    assert (len(out.choices) == 2) is may


def test_a_declared_vendor_counts_more_than_the_models_name():
    known = host("gpu-1", "FOO", vendor="nvidia")
    assert len(run(gang(), [host("gpu-0", "H100"), known], FREE).choices) == 2
    assert run(gang(), [host("gpu-0", "FOO"), known], FREE).choices == ()


def test_gpus_of_which_nothing_is_known_are_alike():
    assert len(run(gang(), [host("gpu-0", None), host("gpu-1", None)], FREE).choices) == 2


@pytest.mark.parametrize("placement", [CLUSTER, ANY])
def test_a_gang_launches_nodes_of_one_vendor_though_others_are_cheaper(placement):
    """One AMD node at half the price does not come together with an NVIDIA one."""
    offers = [
        offer(1.0, instance_type="amd", shape=gpus("MI300X"), limit=1),
        offer(2.0, instance_type="nv", shape=gpus("H100")),
    ]
    out = run(gang(**placement), [], [fleet(offers=offers, **placement)])
    assert [n.instance_type for n in out.launches] == ["nv", "nv"]


def test_a_gang_does_not_fill_up_with_another_vendor():
    """One idle NVIDIA node is there: what is launched beside it is NVIDIA's, too."""
    offers = [
        offer(1.0, instance_type="amd", shape=gpus("MI300X")),
        offer(5.0, instance_type="nv", shape=gpus("H100")),
    ]
    out = run(gang(), [host("gpu-0", "H100")], [fleet(offers=offers, placement="cluster")])
    assert [n.instance_type for n in out.launches] in (["nv"], ["amd", "amd"])


def test_new_nodes_are_not_tidied_into_a_mixed_gang():
    """Room on a new AMD node is no reason to empty one of the gang's, though that would save its price."""
    amd = offer(8.0, instance_type="amd", shape=gpus("MI300X", 8), limit=1)
    nv = offer(3.0, instance_type="nv", shape=gpus("H100", 3, cpu=6))
    pair = gang(name="pair", placement="any", exclusive=False, resources={"gpu": 2})
    out = run([ask("big", resources={"gpu": "MI300X:5"}), pair], [], [fleet(offers=[amd, nv], blocks="auto")])
    of = {n.name: n.shape.gpu_name for n in out.launches}
    assert [of[c.node] for c in out.choices] == ["MI300X", "H100", "H100"]


def test_a_fallback_keeps_the_vendor_of_a_gang():
    """Where an offer cannot be had, the next one is of the same vendor; a single rank takes any."""
    launched = host("gpu-0", "H100")
    two, one = gang().want.spec, ask(resources={"gpu": 1}).want.spec
    other = NodeType("gpu", "b", "r", None, "y", gpus("MI300X"), 1, 1.0, False)
    assert (one_vendor(two), one_vendor(one)) == (True, False)
    assert not _Member(launched, (_Guest(two, 1),), frozenset()).suits(other)
    assert _Member(launched, (_Guest(one, 1),), frozenset()).suits(other)


def test_no_move_is_suggested_to_another_vendor():
    """A rank of a gang could move, and a node be freed: not to where its siblings' GPUs are not."""
    shape = {"price": 1.0}
    pair = gang(name="pair", placement="any", exclusive=False)
    one = ask("one", resources={"gpu": 1})

    def nodes(model):
        return [
            node("gpu-0", total=2, shape=gpus("H100", 2), **shape),
            node("gpu-1", total=2, shape=gpus(model, 2), **shape),
        ]

    def moves(model, want, holder):
        first, second = nodes(model)
        first = replace(first, held={0: holder})
        second = replace(second, held={0: "rank/fixed-0"})
        return suggest([first, second], {"gpu": fleet().fleet}, {str(want.want.spec.name): want.want})

    assert moves("H100", pair, "rank/pair-0")
    assert moves("MI300X", one, "rank/one-0")
    assert not moves("MI300X", pair, "rank/pair-0")


# ------------------------------------------------------------------------------------- the smallest that does


@pytest.mark.parametrize("price", [0.0, None, 1.5])
@pytest.mark.parametrize(
    ("large", "small"),
    [
        (gpus("H100"), gpus("T4")),
        (gpus("H100", memory=81920), gpus("A100", memory=40960)),
        (gpus("V100"), gpus("T4")),
        (gpus("FOO"), gpus("H100")),
        (gpus("T4", cpu=16), gpus("T4", cpu=8)),
        (gpus("T4", ram=65536), gpus("T4", ram=32768)),
        (gpus("T4", 2), gpus("T4", 1)),
    ],
)
def test_of_idle_nodes_at_one_price_the_smallest_is_taken(price, large, small):
    """By GPUs, CPUs, memory, the GPUs' memory and model; and only then by name."""
    nodes = [
        node("gpu-0", total=1, shape=large, price=price),
        node("gpu-1", total=1, shape=small, price=price),
    ]
    assert places(run(ask(resources={"gpu": "1.."}), nodes, FREE))["train-0"][0] == "gpu-1"
    assert places(run(ask(resources={"gpu": "1.."}, exclusive=True), nodes, FREE))["train-0"][0] == "gpu-1"


def test_a_cheaper_node_comes_before_a_smaller_one():
    nodes = [
        node("gpu-0", total=1, shape=gpus("H100"), price=1.0),
        node("gpu-1", total=1, shape=gpus("T4"), price=2.0),
    ]
    assert places(run(ask(resources={"gpu": 1}), nodes, FREE))["train-0"][0] == "gpu-0"


@pytest.mark.parametrize("spot", [False, True])
@pytest.mark.parametrize("price", [0.0, None, 1.5])
@pytest.mark.parametrize("where", ["one fleet", "two zones", "two fleets"])
def test_of_offers_at_one_price_the_smallest_is_launched(spot, price, where):
    """Whichever is first by name, in the same fleet and place or not, and whatever both would hold."""
    for first, second in (("aa", "bb"), ("bb", "aa")):
        big = offer(price, instance_type=first, shape=gpus("H100", 8, cpu=64), spot=spot)
        tiny = offer(price, instance_type=second, shape=gpus("T4"), spot=spot)
        if where == "two zones":
            big, tiny = replace(big, zone="z1"), replace(tiny, zone="z2")
        fleets = [fleet(offers=[big, tiny], blocks="auto")]
        if where == "two fleets":
            fleets = [fleet(first, offers=[big], blocks="auto"), fleet(second, offers=[tiny], blocks="auto")]
        out = run(ask(resources={"gpu": "1.."}), [], fleets)
        assert [n.shape.gpu_name for n in out.launches] == ["T4"]


def test_least_cost_comes_before_the_smallest():
    """Two tasks on one large node cost less than two small ones at the same price."""
    offers = [
        offer(1.0, instance_type="small", shape=gpus("T4", cpu=4)),
        offer(1.0, instance_type="large", shape=gpus("H100", 2, cpu=8)),
    ]
    asks = [ask("one", resources={"gpu": 1}), ask("two", resources={"gpu": "1..", "cpu": "3.."})]
    out = run(asks, [], [fleet(offers=offers, blocks="auto")])
    assert [n.instance_type for n in out.launches] == ["large"]


def test_a_fleets_own_node_is_the_smallest_at_its_price():
    offers = [
        offer(1.0, instance_type="a", shape=gpus("H100")),
        offer(1.0, instance_type="b", shape=gpus("T4")),
    ]
    out = run([], [], [fleet(offers=offers, nodes=1, baseline=1)])
    assert [n.instance_type for n in out.launches] == ["b"]


def test_of_hosts_that_become_nodes_a_task_takes_the_smallest():
    """All of them do, and none is billed."""
    hosts = [
        offer(0.0, zone=name, instance_type=name, shape=shape, limit=1)
        for name, shape in (("a", gpus("H100", 8, cpu=64)), ("b", gpus("T4")))
    ]
    out = run(ask(resources={"gpu": 1}), [], [fleet(offers=hosts, nodes=2, baseline=2, blocks="auto")])
    of = {n.name: n.instance_type for n in out.launches}
    assert (sorted(of.values()), of[out.choices[0].node]) == (["a", "b"], "b")


def test_many_unlike_tasks_leave_a_scarce_model_to_those_that_name_it():
    """Of each of 300 requests there are four. Each takes a block or two, by the memory of the node."""
    nodes = [host(f"gpu-{i}", "T4", 8, ram=96 * 1024) for i in range(50)]
    nodes += [host(f"gpu-{i}", "V100", 8, ram=64 * 1024) for i in range(50, 150)]
    memory = {f"t{i}": 300 + i % 300 * 50 for i in range(1_200)}
    asks = [
        ask(name, resources={"gpu": "T4:1.." if i % 5 < 2 else "1..", "memory": f"{mib}MB.."})
        for i, (name, mib) in enumerate(memory.items())
    ]
    out = run(asks, nodes)
    fewest = sum(-(-memory[choice.task] // (12 * 1024)) for choice in out.choices)
    assert fewest == 1_132, "blocks at their fewest; no plan seats more, by the linear program"


def test_a_task_whose_node_is_gone_makes_room_for_another():
    """It launches what holds both: it stays nowhere."""
    small = offer(1.0, instance_type="small", cpu=4)
    large = offer(7.0, instance_type="large", shape=gpus("T4", 4, cpu=8))
    asks = [
        ask("one", resources={"gpu": "1.."}),
        ask("two", resources={"cpu": "3.."}, prior={0: ("gpu-9", (0,))}),
    ]
    out = run(asks, fleets=[fleet(nodes="0..1", blocks=4, offers=[small, large])])
    assert places(out) == {"one-0": ("gpu-0", (2,)), "two-0": ("gpu-0", (0, 1))}


def test_a_task_that_launches_nothing_makes_nothing_dearer():
    """In the first pass it sits on a node that others need not have."""
    offers = [
        offer(price, backend=backend, region=backend, shape=shape, spot=spot, limit=limit, instance_type=name)
        for name, backend, shape, limit, prices in (
            ("h8", "alto", gpus("H100", 8, memory=81920, cpu=32, ram=131072), 1, (2.81, 12.48)),
            ("m8", "bora", gpus("MI300X", 8, memory=196608, cpu=32, ram=131072), None, (2.99, 7.09)),
            ("c4", "bora", Shape(cpu=4, memory_mib=16384), None, (0.14, 0.37)),
        )
        for price, spot in zip(prices, (True, False), strict=True)
    ]
    rules = [fleet("aa", "0..2", offers, blocks=4, placement="cluster", spot_policy="auto")]
    asks = [
        ask("t1", nodes=3, placement="any", priority=50),
        ask("t5", resources={"gpu": "H100,MI300X:4.."}, priority=50),
    ]
    rider = ask("t4", resources={"memory": "20GB.."}, creation_policy="reuse")
    alone, out = run(asks, fleets=rules), run([*asks, rider], fleets=rules)
    assert (alone.refusals, out.refusals) == ((), ())
    assert sum(n.price for n in alone.launches) == pytest.approx(3.13)
    assert sum(n.price for n in out.launches) == pytest.approx(3.13)
