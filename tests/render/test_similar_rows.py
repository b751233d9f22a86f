"""Similar rows share one line, and no information is lost."""

from __future__ import annotations

from typing import Any

from declarative.model.blocks import Shape
from declarative.render.status import Row, map_lines, status_text
from declarative.render.status_view import NodeView, RankView, StatusView, TaskView, VolumeView
from declarative.render.text import MOST_ALIKE, Cell, Paint, folded


def texts(rows: list[list[str]]) -> list[list[str]]:
    return [[cell.text for cell in row] for row in folded([[Cell(text) for text in row] for row in rows])]


def test_many_that_count_together_are_one_row() -> None:
    rows = [[f"node/gpu-{n}", f"[0-7 train-{n + 3}]", "8/8 busy", "new"] for n in range(200)]
    assert texts(rows) == [["node/gpu-[0-199]", "[0-7 train-[3-202]]", "8/8 busy", "new (200 alike)"]]


def test_up_to_four_keep_their_lines() -> None:
    rows = [[f"node/gpu-{n}", "kept"] for n in range(MOST_ALIKE)]
    assert texts(rows) == rows
    assert len(texts([*rows, [f"node/gpu-{MOST_ALIKE}", "kept"]])) == 1


def test_a_gap_in_the_names_is_told() -> None:
    rows = [[f"gpu-{n}", f"rank-{n}"] for n in (0, 1, 2, 5, 6)]
    assert texts(rows) == [["gpu-[0-2,5-6]", "rank-[0-2,5-6] (5 alike)"]]


def test_what_does_not_count_along_is_not_folded() -> None:
    """Which rank is on which node would be lost."""
    mixed = [[f"gpu-{n}", f"rank-{n ^ 1}"] for n in range(6)]
    assert texts(mixed) == mixed
    faster = [[f"gpu-{n}", f"rank-{2 * n}"] for n in range(6)]
    assert texts(faster) == faster
    padded = [[f"gpu-0{n}", "kept"] for n in range(6)]
    assert texts(padded) == padded


def test_another_in_the_middle_keeps_its_line() -> None:
    rows = [[f"gpu-{n}", "busy" if n == 7 else "idle"] for n in range(20)]
    assert texts(rows) == [
        ["gpu-[0-6]", "idle (7 alike)"],
        ["gpu-7", "busy"],
        ["gpu-[8-19]", "idle (12 alike)"],
    ]


def test_one_that_fits_by_chance_does_not_break_up_those_after_it() -> None:
    rows = [["1", "a-8"], *[[f"{n}", "a-9"] for n in range(2, 8)]]
    assert texts(rows) == [["1", "a-8"], ["[2-7]", "a-9 (6 alike)"]]


def test_the_map_of_small_nodes_is_folded_whatever_their_cells_are_padded_to() -> None:
    rows = [Row(node=f"n-{n}", total=1, holders={0: f"rank/t-{n}"}, note="new") for n in range(12)]
    assert map_lines(rows, Paint(color=False), 80) == [
        "  node/n-[0-11]  [t-[0-11]]  1/1 busy  new (12 alike)"
    ]


def node(number: int, **more: Any) -> NodeView:
    given: dict[str, Any] = {
        "name": f"gpu-{number}",
        "fleet": "gpu",
        "state": "ready",
        "backend": "aws",
        "region": "r",
        "zone": "z",
        "instance_type": "t",
        "price": 1.0,
        "resources": Shape(cpu=1, memory_mib=1024),
        "total": 8,
    }
    return NodeView(**{**given, **more})


def test_a_status_of_many_is_short() -> None:
    """Reasons quote addresses without an order: the first one stands for all, and the text says so."""
    addresses = (7, 3, 4, 1, 9)
    starting = [
        node(n, state="provisioning", reason=f"no answer of 10.0.0.{a}") for n, a in enumerate(addresses)
    ]
    ranks = tuple(RankView(rank=n, node=f"gpu-{n + 5}", state="running") for n in range(30))
    view = StatusView(
        lineage="l",
        serial=1,
        nodes=(*starting, *(node(n) for n in range(5, 35))),
        volumes=tuple(
            VolumeView(name=f"d-{n}", state="attached", node=f"gpu-{n}", size="1GB") for n in range(30)
        ),
        tasks=(TaskView(name="t", state="running", ranks=ranks),),
    )
    said = [" ".join(line.split()) for line in status_text(view, color=False, width=100).splitlines()]
    assert (
        "node/gpu-[0-4] [0-7 idle] 0/8 busy provisioning: no answer of 10.0.0.7, 1.00 USD/h "
        "(5 alike but for numbers)" in said
    )
    assert "node/gpu-[5-34] [0-7 idle] 0/8 busy ready, 1.00 USD/h (30 alike)" in said
    assert "volume/d-[0-29] 1GB attached on node/gpu-[0-29] (30 alike)" in said
    assert "rank/t-[0-29] running node/gpu-[5-34] (30 alike)" in said


def test_other_states_and_prices_are_not_alike() -> None:
    view = StatusView(lineage="l", serial=1, nodes=tuple(node(n, price=n + 0.5) for n in range(6)))
    assert "alike" not in status_text(view, color=False, width=100)
