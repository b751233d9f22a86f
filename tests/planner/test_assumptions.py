"""The facts that a plan relies on: of a few records and actions each, and of the place where it is."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from declarative.converge import run
from declarative.converge.state_access import DEFAULT_STATE, StateAccess
from declarative.model.diagnostic import InvalidError
from declarative.model.resource import Entry, Manifest
from declarative.model.state import Address, Record, State
from declarative.model.status import NodeState, RankState, RankStatus, Readiness
from declarative.planner.inventory import Inventory
from declarative.planner.plan import Op
from declarative.planner.saved_plan import Facts, facts_of
from declarative.store import open_store
from tests.render.test_render import act
from tests.support.model import of_attachment, of_node, of_reservation, of_volume, project
from tests.support.planned import plan_of

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
    return facts_of(plan_of(actions=actions), state or State(), Inventory(ranks=over, readiness=ready))


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
        ([does(CREATE, "volume/t-0"), does(CREATE, "node/t-0")], []),
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


# ---------------------------------------------------------------------------------- where it is applied


def session_in(directory: Path) -> Any:
    return SimpleNamespace(directory=directory, state=StateAccess(directory, None), policy=None)


def saved_in(directory: Path, *, lineage: str | None = None, serial: int = 0, **more: Any) -> Any:
    plan = plan_of(lineage=lineage, serial=serial)
    return SimpleNamespace(plan=plan, directory=str(directory), state=DEFAULT_STATE, files={}, **more)


def refusal(check: Any, *args: Any) -> Any:
    with pytest.raises(InvalidError) as failed:
        check(*args)
    (found,) = failed.value.diagnostics
    return found


def test_a_plan_for_a_new_state_is_applied_where_it_was_made(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    assert run._check_place(session_in(here), saved_in(here), project()) is None
    found = refusal(run._check_place, session_in(here), saved_in(there), project())
    assert found.code == "plan-other-state"
    assert found.summary == f"the plan makes a new state in {there}, and this is {here}"
    one = f"sqlite:///{tmp_path}/one.db"
    plan, desired = saved_in(there), project(state=one)
    plan.state = one
    assert run._check_place(session_in(here), plan, desired) is None
    plan.state = "sqlite:///another.db"
    assert run._check_place(session_in(here), plan, project()) is None
    assert list(here.iterdir()) == []


def test_a_plan_of_a_state_is_applied_to_it_wherever_it_is(tmp_path):
    session = session_in(tmp_path)
    with open_store(DEFAULT_STATE, root=tmp_path) as store:
        with store.lock("apply") as writer:
            writer.ensure_lineage()
        state = store.read()
        known: dict[str, Any] = {"lineage": state.lineage, "serial": state.serial}
        assert run._check_place(session, saved_in(tmp_path / "x", **known), project()) is None
        with store.lock("apply") as writer:
            writer.claim("shop")
        state = store.read()
    known = {"lineage": state.lineage, "serial": state.serial}
    assert run._check_place(session, saved_in(tmp_path / "x", **known), project(name="shop")) == "shop"
    other = {**known, "lineage": "other"}
    elsewhere = f"run it there: `fleetform -C {tmp_path}/x apply FILE`, or say where: `--state URL`"
    for directory, hint in (
        (tmp_path / "x", elsewhere),
        (tmp_path, "run it where its state is: `fleetform -C DIR apply FILE`, or `--state URL`"),
    ):
        found = refusal(run._check_record, session, saved_in(directory, **other), state)
        assert (found.code, found.hint) == ("plan-other-state", hint)
    later = {**known, "serial": state.serial + 1}
    found = refusal(run._check_record, session, saved_in(tmp_path / "x", **later), state)
    assert (found.code, found.hint) == ("plan-outdated", "plan again: `fleetform plan --out FILE`")


def test_files_of_ranks_have_to_be_as_they_were(tmp_path):
    (tmp_path / "a").write_text("x")
    plan = saved_in(tmp_path)
    entry = Entry(path="a", source="a", size=1, sha256=hashlib.sha256(b"x").hexdigest())
    plan.files = {"d": Manifest((entry,))}
    run._check_files(session_in(tmp_path), plan)
    (tmp_path / "a").write_text("y")
    found = refusal(run._check_files, session_in(tmp_path), plan)
    assert (found.code, "`a`" in found.summary) == ("plan-files-changed", True)
