"""The facts that a plan relies on: of a few records and actions each."""

from __future__ import annotations

from typing import Any

import pytest

from declarative.model.state import Address, Record, State
from declarative.model.status import NodeState, RankState, RankStatus, Readiness
from declarative.planner.assumptions import Facts, used
from declarative.planner.inventory import Inventory
from declarative.planner.types import Op
from tests.model import of_attachment, of_node, of_reservation, of_volume
from tests.planned import plan_of
from tests.test_render import act

CREATE, UPDATE, DELETE = Op.CREATE, Op.UPDATE, Op.DELETE


def at(text: str) -> Address:
    return Address.parse(text)


def inputs_of(address: str, node: str) -> dict[str, Any]:
    """What is recorded of something, or of a rank's place on this node."""
    kind, _, name = address.partition("/")
    if kind == "node":
        return of_node()
    if kind == "attachment":
        return of_attachment(name.removesuffix(".v"), node, "v")
    if kind == "volume":
        return of_volume()
    if kind == "reservation":
        return of_reservation(name, node, 0)
    task, _, number = name.rpartition("-")
    return {"task": task, "rank": int(number), "nodes": 2, "commands": ["true"]}


def recorded(**places: str) -> State:
    """Ranks that run, each on its node, with a volume: `t_0="n-0"`."""
    out: list[Record] = []
    for name, node in places.items():
        rank = name.replace("_", "-")
        for address in (f"reservation/{rank}", f"attachment/{rank}.v", f"rank/{rank}"):
            held = at(f"node/{node}") if address.startswith("res") else at(f"reservation/{rank}")
            out.append(
                Record(
                    address=at(address),
                    backend=None,
                    inputs=inputs_of(address, node),
                    needs=frozenset({held}),
                )
            )
        out.append(Record(address=at(f"node/{node}"), backend="local", inputs=of_node()))
    return State(records={record.address: record for record in out})


def does(op: Op, address: str, node: str = "n-9", **more: Any) -> Any:
    holds = tuple(map(at, more.pop("holds", ())))
    inputs = {**inputs_of(address, node), **more.pop("asks", {})}
    return act(op, address, holds=holds, **{"before" if op is DELETE else "after": inputs}, **more)


def facts(*actions: Any, state: State | None = None, ended: Any = (), can: Any = ()) -> Facts:
    """Those of a plan with these actions."""
    over = {name: RankStatus(state=RankState.SUCCEEDED) for name in ended}
    ready = {
        name: Readiness(state=NodeState.READY, can=frozenset(found)) for name, found in dict(can).items()
    }
    return used(plan_of(actions=actions), state or State(), Inventory(ranks=over, readiness=ready))


@pytest.mark.parametrize(
    ("actions", "nodes"),
    [
        ([does(CREATE, "reservation/a-0", "n-0")], ["n-0"]),
        ([does(CREATE, "attachment/a-0.v", "n-0")], ["n-0"]),
        ([does(DELETE, "reservation/a-0", "n-0"), does(UPDATE, "attachment/a-0.v", "n-1")], []),
        ([does(CREATE, "reservation/a-0", "n-0"), does(CREATE, "node/n-0")], []),
        ([does(CREATE, "rank/t-0", holds=["reservation/t-0"])], ["n-2"]),
        ([does(UPDATE, "rank/t-0", holds=["reservation/t-0"])], []),
        ([does(DELETE, "rank/t-0")], []),
        ([does(CREATE, "rank/a-0")], []),
        ([does(CREATE, "volume/v")], []),
        (
            [
                does(CREATE, "reservation/t-0", "n-0"),
                does(CREATE, "rank/t-0", needs=("create:reservation/t-0",)),
            ],
            ["n-0"],
        ),
    ],
)
def test_nodes_count_that_get_a_rank_or_start_one(actions, nodes):
    """Not those that the plan makes, and not the place that a rank leaves."""
    assert [*facts(*actions, state=recorded(t_0="n-2")).nodes] == nodes


HARD, IMAGE = {"isolation": "hard"}, {"image": "debian"}


@pytest.mark.parametrize(
    ("asks", "can", "able"),
    [
        ([{}], {}, {}),
        ([HARD], {}, {"n-0": True}),
        ([HARD], {"n-0": ["hard"]}, {"n-0": True}),
        ([HARD], {"n-0": ["podman"]}, {"n-0": False}),
        ([IMAGE], {"n-0": ["podman"]}, {"n-0": True}),
        ([IMAGE], {"n-0": ["hard"]}, {"n-0": False}),
        ([{**HARD, **IMAGE}], {"n-0": ["hard", "podman"]}, {"n-0": True}),
        ([{**HARD, **IMAGE}], {"n-0": ["hard"]}, {"n-0": False}),
        ([HARD, IMAGE], {"n-0": ["hard"]}, {"n-0": False}),
        ([IMAGE, HARD], {"n-0": ["hard"]}, {"n-0": False}),
        ([{}, HARD], {"n-0": ["hard"]}, {"n-0": True}),
    ],
)
def test_a_node_has_to_do_what_all_its_ranks_ask_for(asks, can, able):
    for state in (None, recorded(**{f"a_{i}": "n-0" for i in range(len(asks))})):
        starts = [does(CREATE, f"rank/a-{i}", asks=ask) for i, ask in enumerate(asks)]
        places = [does(CREATE, f"reservation/a-{i}", "n-0") for i in range(len(asks))]
        assert facts(*starts, *([] if state else places), state=state, can=can).able == able
    assert facts(*starts, can=can).able == {}, "a rank without a place"


def test_the_new_place_of_a_rank_is_where_it_starts():
    moves = (does(CREATE, "reservation/t-0", "n-0"), does(CREATE, "rank/t-0", asks=HARD))
    assert [*facts(*moves, state=recorded(t_0="n-2")).able] == ["n-0"]


@pytest.mark.parametrize(
    ("actions", "ended", "ranks"),
    [
        # `t-0` has ended, and the plan gives what it held to `a-0`.
        ([does(CREATE, "reservation/a-0", "n-2", holds=["node/n-2"])], ["t-0"], {"t-0": True}),
        ([does(UPDATE, "node/n-2")], ["t-0"], {"t-0": True}),
        ([does(DELETE, "node/n-2")], ["t-0"], {"t-0": True}),
        ([does(CREATE, "reservation/a-0", "n-3", holds=["node/n-3"])], ["t-0"], {}),
        ([does(CREATE, "reservation/a-0", "n-2", holds=["node/n-2"])], [], {}),
        ([does(CREATE, "reservation/a-0", "n-3", holds=["node/n-3"])], ["u-0"], {"u-0": True}),
        # Beside `t-1`, which runs.
        ([does(CREATE, "rank/t-0")], ["t-0"], {"t-1": False}),
        ([does(CREATE, "rank/t-0"), does(DELETE, "rank/t-1")], ["t-0"], {}),
        ([does(CREATE, "rank/t-0"), does(CREATE, "rank/t-1")], ["t-0", "t-1"], {}),
        ([does(CREATE, "rank/u-1")], [], {"u-0": False}),
        ([does(CREATE, "rank/u-1")], ["u-0"], {}),
        ([does(UPDATE, "rank/t-0")], ["t-0"], {}),
        # In the place that it holds.
        ([does(CREATE, "rank/u-0", holds=["reservation/u-0"])], [], {"u-0": False}),
        ([does(CREATE, "rank/u-0", holds=["attachment/u-0.v"])], [], {"u-0": False}),
        ([does(UPDATE, "rank/u-0", holds=["reservation/u-0"])], [], {}),
        (
            [
                does(CREATE, "reservation/u-0", "n-3", holds=["node/n-3"]),
                does(CREATE, "rank/u-0", holds=["reservation/u-0"]),
            ],
            [],
            {},
        ),
        ([does(CREATE, "rank/a-0", holds=["node/n-2"])], [], {}),
    ],
)
def test_ranks_count_on_which_others_depend(actions, ended, ranks):
    """Whether each gives its place back by itself."""
    state = recorded(t_0="n-2", t_1="n-4", u_0="n-3")
    assert facts(*actions, state=state, ended=ended).ranks == ranks


def test_a_place_without_its_rank_is_kept():
    state = recorded(u_0="n-3")
    left = {address: record for address, record in state.records.items() if address.kind != "rank"}
    start = does(CREATE, "rank/u-0", holds=["reservation/u-0"])
    assert facts(start, state=State(records=left)).ranks == {}
