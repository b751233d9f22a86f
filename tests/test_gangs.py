"""Gangs of which a part was started: for how long the others wait, and what is told of siblings."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from declarative.apply import Backends
from declarative.apply.launch import launch_of
from declarative.apply.reach import PeerError, check_peers
from declarative.apply.settle import START_LIMIT, half_started
from declarative.provider import TransientError, TransientKind
from declarative.state import STARTED, Address, Record, State
from declarative.store import open_store
from tests.cli import fleet, hold, lines, task, until


def test_a_gang_that_is_not_whole_in_time_is_stopped_and_starts_anew(project):
    """The rank that waits has waited long enough; the cause says for which one."""
    up = project.path / "up"
    project.declare(fleet(), task("job", hold(up), nodes=2, placement="any", resources={"cpu": 1}))
    project.apply()
    until(lambda: len(lines(up)) == 2)
    # Rank 1 is to be as if it never began: what runs and is not recorded would hold its block.
    (attempt,) = (project.path / ".fleetform/local/nodes/gpu-0/ranks").glob("job-1.*")
    os.kill(int((attempt / "pid").read_text().split()[0]), signal.SIGKILL)
    until(lambda: (attempt / "exit").exists() and (attempt / "exit").read_text().strip())
    with open_store("sqlite:///.fleetform/state.db", root=project.path) as store:
        begun = {r.address.name: r.outputs[STARTED] for r in store.read().of("rank")}
        with store.lock("test") as writer:
            writer.forget(Address("rank", "job-1"))
        state = store.read()
        assert half_started(state, begun["job-0"] + START_LIMIT) == {}
        assert list(half_started(state, begun["job-0"] + START_LIMIT + 1)) == ["job-0"]
        with store.lock("test") as writer:
            writer.note({Address("rank", "job-0"): {STARTED: begun["job-0"] - START_LIMIT - 1}})
    done = project.apply()
    assert "rank/job-0: stopped: rank/job-1 did not start within 10 minutes" in done.err
    assert [(r["state"], r["attempt"]) for r in project.ranks("job").values()] == [("running", 2)] * 2
    project.no_changes()


# ------------------------------------------------------------------------------- what ranks are told


def gang(*nodes, gpus=2, **inputs):
    """The state of a gang that has its places, one rank on each of the `nodes`, and its ranks; `gpus` is how
    many a rank has, or how many by node.
    """
    records: dict[Address, Record] = {}

    def add(kind, name, inputs, *needs, **outputs):
        address = Address(kind, name)
        records[address] = Record(
            address=address, backend="local", inputs=inputs, outputs=outputs, needs=frozenset(needs)
        )
        return address

    for i, name in enumerate(sorted(set(nodes))):
        each = gpus[name] if isinstance(gpus, dict) else gpus
        shape = {"cpu": 8, "memory_mib": 1024, "gpus": 2 * each}
        add("node", name, {"blocks": 2, "resources": shape}, address=f"10.0.0.{i}")
    ranks = []
    for rank, name in enumerate(nodes):
        blocks = [nodes[:rank].count(name)]
        place = add("reservation", f"job-{rank}", {"node": name, "blocks": blocks}, Address("node", name))
        told = {"task": "job", "rank": rank, "nodes": len(nodes), "commands": ["true"], **inputs}
        ranks.append(records[add("rank", f"job-{rank}", told, place)])
    return State(records=records), ranks


def test_the_host_file_names_each_node_once():
    """With a slot for each GPU of its ranks. Where they have none, it is the bare address: `slots=1` beside
    `slots=8` would let one process run on all the cores of a host.
    """
    state, ranks = gang("a-0", "a-1", "a-0")
    assert launch_of(state, ranks[1], {}).hostfile == "10.0.0.0 slots=4\n10.0.0.1 slots=2\n"
    state, ranks = gang("a-0", "a-1", "a-0", gpus=0)
    assert launch_of(state, ranks[1], {}).hostfile == "10.0.0.0\n10.0.0.1\n"


def test_the_host_file_of_a_mixed_gang_gives_slots_where_there_are_gpus():
    state, ranks = gang("a-0", "a-1", "a-0", gpus={"a-0": 2, "a-1": 0})
    assert launch_of(state, ranks[1], {}).hostfile == "10.0.0.0 slots=4\n10.0.0.1\n"


def test_placement_any_tells_no_rank_of_others():
    state, ranks = gang("a-0", "a-1", placement="any")
    for rank in ranks:
        launch = launch_of(state, rank, {})
        assert launch.hostfile is None
        assert not any("10.0.0." in value for value in launch.env.values())
        assert {n for n in launch.env if n.startswith("FLEETFORM_")} == {
            "FLEETFORM_NODE_RANK",
            "FLEETFORM_NODES_NUM",
            "FLEETFORM_TASK_NAME",
        }


# ---------------------------------------------------------------------------- whether they reach each other


class Asked(Backends):
    """A backend that says of each node why it does not reach others."""

    def __init__(self, answers):
        self.answers = answers
        self.asked: list[tuple[str, str]] = []

    def get(self, name) -> Any:
        """Itself: it is all backends."""
        return self

    def reaches(self, node, address):
        """What it was told to say."""
        self.asked.append((node.address.name, address))
        answer = self.answers.get(node.address.name)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_each_other_node_is_asked_once_for_rank_0s_address():
    state, ranks = gang("a-1", "a-0", "a-2", "a-0")
    backend, known = Asked({}), dict[tuple[str, str], str | None]()
    check_peers(ranks[2].inputs, state, backend, known)
    check_peers(ranks[0].inputs, state, backend, known)
    assert sorted(backend.asked) == [("a-0", "10.0.0.1"), ("a-2", "10.0.0.1")]


def test_who_does_not_reach_rank_0_is_named_and_who_cannot_be_asked_is_not():
    state, ranks = gang("a-0", "a-1", "a-2")
    silent = TransientError(TransientKind.NOT_SENT, "no answer")
    check_peers(ranks[0].inputs, state, Asked({"a-1": silent}), {})
    with pytest.raises(PeerError) as found:
        check_peers(ranks[0].inputs, state, Asked({"a-1": silent, "a-2": "no route"}), {})
    said = "node/a-2 (10.0.0.2) cannot reach node/a-0 at 10.0.0.0, where its ranks would look for rank 0: "
    assert found.value.summary == said + "no route"


@pytest.mark.parametrize(
    ("nodes", "inputs"), [(("a-0", "a-1"), {"placement": "any"}), (("a-0",), {}), (("a-0", "a-0"), {})]
)
def test_nobody_is_asked_where_nobody_looks_for_others(nodes, inputs):
    state, ranks = gang(*nodes, **inputs)
    backend = Asked({})
    check_peers(ranks[0].inputs, state, backend, {})
    assert backend.asked == []
