"""How nodes are split and shared: docs/architecture.md, "Blocks", with cases that dstack gets wrong."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from declarative.model.blocks import Shape, cpus_of, divisors, fewest, gpus_of, misfits, share, split
from declarative.model.spec import Resources
from tests.support.examples import examples
from tests.support.model import spec


def shape(cpu, gpus=0, memory_mib=64 * 1024, **more):
    return Shape(cpu=cpu, gpus=gpus, memory_mib=memory_mib, **more)


def want(**words):
    return spec(Resources, words)


H100 = {"gpu_name": "H100", "gpu_memory_mib": 80 * 1024}


@pytest.mark.parametrize(
    ("cpu", "gpus", "blocks"),
    [
        (52, 8, 4),
        (10, 4, 2),
        (30, 4, 2),
        (90, 4, 2),
        (180, 8, 4),
        (6, 8, 2),
        (96, 8, 8),
        (7, 8, 1),
        (16, 0, 16),
    ],
)
def test_auto_is_the_largest_number_that_divides_both(cpu, gpus, blocks):
    """The gcd of CPUs and GPUs; the CPU count where there are no GPUs. dstack refuses the first six."""
    assert blocks == split(shape(cpu, gpus), None)
    assert blocks == divisors(shape(cpu, gpus))[-1]


@pytest.mark.parametrize(
    ("cpu", "gpus", "blocks", "fits"),
    [(8, 0, 3, False), (8, 0, 8, True), (8, 4, 8, False), (8, 4, 4, True), (6, 9, 3, True), (6, 9, 2, False)],
)
def test_a_number_has_to_divide_both(cpu, gpus, blocks, fits):
    """Else it is an error; `divisors` names those that do."""
    assert (blocks if fits else None) == split(shape(cpu, gpus), blocks)
    assert fits == (blocks in divisors(shape(cpu, gpus)))


def test_a_share_floors_before_it_multiplies():
    """31 GB in 8 blocks: three of them have 11904 MiB, and the rest is not used. The disk is whole."""
    whole = shape(96, 8, 31 * 1024, disk_mib=1000, **H100)
    assert share(whole, 8, 3) == shape(36, 3, 11904, disk_mib=1000, **H100)
    assert share(shape(4, 0, 1001), 4, 4).memory_mib == 1000


@pytest.mark.parametrize(
    ("words", "on", "total", "blocks"),
    [
        ({"gpu": "H100:3"}, shape(96, 8, **H100), 8, 3),
        ({"cpu": "33.."}, shape(96, 8, **H100), 8, 3),
        ({"gpu": 1}, shape(96, 8, **H100), 4, None),  # 2 GPUs a block: never exactly 1
        ({"gpu": "1.."}, shape(96, 8, **H100), 4, 1),
        ({"memory": "9GB.."}, shape(8, 0, 32 * 1024), 8, 3),
        ({"memory": "..4GB"}, shape(8, 0, 32 * 1024), 8, 1),
        ({"memory": "..3GB"}, shape(8, 0, 32 * 1024), 8, None),
        ({"cpu": "3..5"}, shape(8), 4, 2),
        ({"cpu": 3}, shape(8), 4, None),
        ({"cpu": "9.."}, shape(8), 4, None),
        ({"gpu": "A100:1"}, shape(96, 8, **H100), 8, None),
        ({"gpu": "h100:1"}, shape(96, 8, **H100), 8, 1),
        ({"gpu": "24GB..40GB:1"}, shape(96, 8, **H100), 8, None),
        ({"disk": "100GB.."}, shape(8, 0, disk_mib=100 * 1024), 8, 1),  # the disk is not divided
        ({}, shape(8), 8, 1),
    ],
)
def test_a_rank_gets_the_fewest_blocks_that_do(words, on, total, blocks):
    """Upper bounds included."""
    assert blocks == fewest(want(**words), on, total)


@pytest.mark.parametrize(
    ("words", "on", "short"),
    [
        ({"cpu": "9.."}, shape(8), {"cpu": 1}),
        ({"cpu": "..6"}, shape(8), {"cpu": -2}),
        ({"memory": "65GB.."}, shape(8), {"memory_mib": 1024}),
        ({"memory": "..32GB"}, shape(8), {"memory_mib": -32 * 1024}),
        ({"gpu": "H100:1"}, shape(8, 8, **H100), {"gpu": -7}),
        ({"gpu": "A100:8"}, shape(8, 8, **H100), {"gpu_model": 8}),
        ({"gpu": "24GB..40GB:8"}, shape(8, 8, **H100), {"gpu_memory_mib": -40 * 1024}),
        ({"gpu": "100GB..:8"}, shape(8, 8, **H100), {"gpu_memory_mib": 20 * 1024}),
        ({"disk": "2TB.."}, shape(8, disk_mib=1024 * 1024), {"disk_mib": 1024 * 1024}),
        ({"disk": "2TB.."}, shape(8), {}),  # an unknown disk is accepted
        ({"cpu": 8, "gpu": "H100:8"}, shape(8, 8, **H100), {}),
    ],
)
def test_misfits_say_by_how_much(words, on, short):
    """Above 0 what is missing, below 0 what is too much."""
    assert short == {m.dimension: m.short for m in misfits(want(**words), on)}


def test_blocks_stand_for_fixed_cpus_and_gpus():
    """Block i is the i-th equal stretch of the CPUs and GPUs."""
    node = shape(8, 4)
    assert cpus_of(node, 4, (1, 3)) == (2, 3, 6, 7)
    assert gpus_of(node, 4, (1, 3)) == (1, 3)


@given(st.integers(1, 200), st.integers(0, 16))
def test_blocks_cover_the_node_once(cpu, gpus):
    """Whatever number a node is split into: its blocks share out all CPUs and GPUs, none twice."""
    node = shape(cpu, gpus)
    for total in divisors(node):
        blocks = tuple(range(total))
        assert tuple(range(cpu)) == cpus_of(node, total, blocks)
        assert tuple(range(gpus)) == gpus_of(node, total, blocks)
        assert (cpu, gpus) == (share(node, total, total).cpu, share(node, total, total).gpus)


def ranges(most, unit=""):
    """Any range up to `most`, open above or not."""

    def text(low, more):
        return f"{low}{unit}.." if more is None else f"{low}{unit}..{low + more}{unit}"

    return st.builds(text, st.integers(0, most), st.none() | st.integers(0, most))


def requests():
    """Any request: bounds of both kinds in every dimension, models, vendors and a GPU's memory."""
    before = st.sampled_from(
        ("", "H100:", "A100:", "nvidia:", "amd:", "nvidia:H100:", "24GB..80GB:", "100GB..:")
    )
    fields = {
        "cpu": ranges(70),
        "memory": ranges(70, "GB"),
        "gpu": st.builds("{}{}".format, before, ranges(9)),
        "disk": ranges(2, "TB"),
    }
    return st.fixed_dictionaries({}, optional=fields)


def nodes():
    """Any node, of any model or none that is known; memory that does not divide."""
    return st.builds(
        Shape,
        cpu=st.integers(1, 64),
        memory_mib=st.integers(1, 64 * 1024),
        gpus=st.integers(0, 8),
        gpu_name=st.sampled_from((None, "H100", "h100", "MI300X")),
        gpu_memory_mib=st.sampled_from((None, 24 * 1024, 80 * 1024)),
        disk_mib=st.sampled_from((None, 0, 1024 * 1024)),
        gpu_vendor=st.sampled_from((None, "nvidia", "amd")),
    )


@settings(max_examples=examples(500))
@given(nodes(), requests(), st.integers(0, 100))
@example(Shape(cpu=8, memory_mib=7), {"memory": "0GB..1GB"}, 0)
@example(Shape(cpu=4, memory_mib=9000, gpus=4), {"gpu": "0..2"}, 0)
def test_fewest_is_the_least_that_fits(node, words, which):
    """`fewest` is worked out and not searched for; by its definition these blocks do, and no fewer do."""
    request = want(**words)
    total = divisors(node)[which % len(divisors(node))]
    good = [b for b in range(1, total + 1) if not misfits(request, share(node, total, b))]
    assert (min(good) if good else None) == fewest(request, node, total)
