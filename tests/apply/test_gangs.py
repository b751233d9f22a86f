"""Partly started gangs: how long the others wait, and the messages about siblings."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from declarative.apply import execute
from declarative.apply.backend_client import BackendClient
from declarative.apply.backends import Backends
from declarative.apply.failover import ActionError
from declarative.apply.gate import check_peers
from declarative.apply.launch import launch_of
from declarative.apply.ranks import START_LIMIT, half_started
from declarative.model.state import STARTED, Address, Record, State
from declarative.planner.hosts import no_meeting
from declarative.provider import TransientError, TransientKind
from declarative.store import open_store
from tests.support.cli import fleet, hold, lines, task, until
from tests.support.forked import warm_up
from tests.support.killing import Kill, die, fork
from tests.support.model import of_node, of_reservation


@pytest.mark.slow
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


# ------------------------------------------------------------------------------------------ the gate


class Cut(Kill):
    """A command that is killed at one call of its backend: before it, or after it was answered."""

    def arm(self):
        """Each call counts, whichever it is of the two."""
        done = 0

        def cut(real):
            def call(*args, **kwargs):
                nonlocal done
                done += 1
                mine = done == self.step
                if mine and self.when == "before":
                    die()
                found = real(*args, **kwargs)
                if mine:
                    die()
                return found

            return call

        for name in ("start", "release"):
            setattr(BackendClient, name, cut(getattr(BackendClient, name)))


def declare_three(project, **fields):
    """A gang on three nodes; each rank notes that it ran, and ends once it may."""
    noted = f"echo $FLEETFORM_NODE_RANK >> {project.path / 'runs'}"
    job = task("job", noted, hold(project.path / "up"), nodes=3, resources={"cpu": "1.."}, **fields)
    project.declare(fleet(nodes=3, placement="cluster"), job)


def cut_short(project, when, step):
    """An apply that is killed at a call, and what the ranks' nodes then report."""
    warm_up()
    args = ("apply", "--auto-approve", "--parallelism", "1")
    code = fork(project.path, *args, kill=Cut(when, step=step))
    assert code == -signal.SIGKILL, (project.path / "output").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", range(1, 6))
def test_a_gang_runs_once_and_whole_wherever_its_apply_is_killed(project, when, step):
    """Three ranks are prepared, then released, rank 0 first. The next apply completes the attempt."""
    declare_three(project, startup_order="master-first")
    cut_short(project, when, step)
    whole = step > 3 and (step, when) != (4, "before")
    until(lambda: "0" in lines(project.path / "runs") or not whole)
    ran = lines(project.path / "runs")
    assert whole or ran == []
    assert (step, when) != (4, "after") or ran == ["0"]
    project.apply()
    until(lambda: len(lines(project.path / "runs")) == 3)
    assert sorted(lines(project.path / "runs")) == ["0", "1", "2"]
    assert {r["attempt"] for r in project.ranks("job").values()} == {1}
    project.no_changes()


def test_rank_0_does_not_run_again_and_again_without_its_gang(project):
    """Its siblings are never reached: however often that is tried, nothing of it runs."""
    declare_three(project)
    for _ in range(3):
        cut_short(project, "before", 2)
        with (
            open_store("sqlite:///.fleetform/state.db", root=project.path) as store,
            store.lock("test") as writer,
        ):
            late = {
                r.address: {STARTED: r.outputs[STARTED] - START_LIMIT - 1} for r in store.read().of("rank")
            }
            writer.note(late)
    assert lines(project.path / "runs") == []
    project.apply()
    until(lambda: len(lines(project.path / "runs")) == 3)
    assert sorted(lines(project.path / "runs")) == ["0", "1", "2"]


@pytest.mark.slow
def test_a_gang_that_nobody_released_ends_and_starts_anew(project, monkeypatch):
    """By itself, and it is no failure of its own: the next apply prepares it again."""
    monkeypatch.setattr(execute, "GATE_SECONDS", 1)
    declare_three(project)
    cut_short(project, "before", 4)
    attempts = [*(project.path / ".fleetform/local/nodes").glob("*/ranks/job-*")]
    until(lambda: all((a / "exit").exists() and (a / "exit").read_text().strip() for a in attempts))
    project.apply()
    until(lambda: len(lines(project.path / "runs")) == 3)
    assert sorted(lines(project.path / "runs")) == ["0", "1", "2"]
    assert {r["attempt"] for r in project.ranks("job").values()} == {2}


@pytest.mark.slow
def test_a_rank_that_was_released_alone_is_stopped_by_the_next_apply(project, monkeypatch):
    """Its siblings were never released, and waited for as long as they may. It did run, so that the task is
    lost, and runs again if that is asked for.
    """
    monkeypatch.setattr(execute, "GATE_SECONDS", 4)  # the first is released within that
    declare_three(project, startup_order="master-first")
    cut_short(project, "after", 4)
    nodes = project.path / ".fleetform/local/nodes"
    others = [*nodes.glob("*/ranks/job-1.*"), *nodes.glob("*/ranks/job-2.*")]
    assert len(others) == 2
    until(lambda: all((a / "exit").exists() and (a / "exit").read_text().strip() for a in others))
    assert lines(project.path / "runs") == ["0"]
    (alone,) = lines(project.path / "up")
    said = project.apply()
    assert "rank/job-0: stopped: rank/job-1 lost: its gang was never complete" in said.err
    assert not Path(f"/proc/{alone}").exists()
    assert lines(project.path / "runs") == ["0"]
    project.apply("--replace", "task/job")
    until(lambda: len(lines(project.path / "runs")) == 4)
    assert sorted(lines(project.path / "runs")) == ["0", "0", "1", "2"]


@pytest.mark.slow
def test_a_prepared_gang_that_is_stopped_never_ran(project):
    declare_three(project)
    cut_short(project, "before", 4)
    project.run("stop", "job")
    assert {r["state"] for r in project.ranks("job").values()} == {"stopped"}
    project.no_changes()
    project.run("destroy", "--auto-approve")
    assert lines(project.path / "runs") == []


# ------------------------------------------------------------------------------- what ranks are told


def gang(*nodes, gpus=2, prefix="10.0.0.", **inputs):
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
        add("node", name, of_node("a", blocks=2, resources=shape), address=f"{prefix}{i}")
    ranks = []
    for rank, name in enumerate(nodes):
        held = of_reservation(f"job-{rank}", name, nodes[:rank].count(name))
        place = add("reservation", f"job-{rank}", held, Address("node", name))
        told = {"task": "job", "rank": rank, "nodes": len(nodes), "commands": ["true"], **inputs}
        ranks.append(records[add("rank", f"job-{rank}", told, place)])
    return State(records=records), ranks


def files_of(*nodes, **options):
    state, ranks = gang(*nodes, **options)
    launch = launch_of(state, ranks[1], {})
    return {"plain": launch.hostfile, **launch.hostfiles}, launch.env


@pytest.mark.parametrize(
    ("addresses", "why"),
    [
        ({"r-0": "10.0.0.1", "r-1": "10.0.0.2"}, None),
        ({"r-0": "127.0.0.1"}, None),
        ({"r-0": "lab0", "r-1": "lab1"}, None),
        ({"r-2": "10.0.0.1", "r-10": "10.0.0.1"}, "node/r-2 and node/r-10 have the same address 10.0.0.1"),
        ({"r-0": "10.0.0.1", "r-1": "127.0.0.1"}, "node/r-1 has the address 127.0.0.1, which is loopback"),
        ({"r-0": "fe80::1", "r-1": "fd00::1"}, "node/r-0 has the address fe80::1, which is link-local"),
        ({"r-0": "::1", "r-1": "fd00::1"}, "which is loopback"),
        ({"r-0": "169.254.7.7", "r-1": "10.0.0.1"}, "which is link-local"),
    ],
)
def test_hosts_that_cannot_meet_by_their_addresses(addresses, why):
    found = no_meeting(addresses)
    assert found is None if why is None else found is not None and why in found


def test_each_launcher_has_a_host_file_of_its_form():
    """Each node has a slot for each GPU of its ranks. Open MPI and Hydra both count lines; Open MPI alone
    reads `slots=`, Hydra alone `:N`, and Intel MPI has its count from a variable.
    """
    files, env = files_of("a-0", "a-1", "a-0")
    assert files == {
        "plain": "10.0.0.0\n" * 4 + "10.0.0.1\n" * 2,
        "openmpi": "10.0.0.0 slots=4\n10.0.0.1 slots=2\n",
        "hydra": "10.0.0.0:4\n10.0.0.1:2\n",
        "intel": "10.0.0.0\n10.0.0.1\n",
    }
    assert not {"I_MPI_PERHOST", "OMPI_MCA_orte_set_default_slots"} & env.keys()
    assert files_of("a-0", "a-1")[1]["I_MPI_PERHOST"] == "2"


def test_a_host_with_one_gpu_has_one_slot():
    """A line without a count would stand for all its cores."""
    files, env = files_of("a-0", "a-1", gpus=1)
    assert (files["plain"], files["openmpi"]) == (
        "10.0.0.0\n10.0.0.1\n",
        "10.0.0.0 slots=1\n10.0.0.1 slots=1\n",
    )
    for name in ("OMPI_MCA_orte_set_default_slots", "PRTE_MCA_prte_set_default_slots", "I_MPI_PERHOST"):
        assert env[name] == "1"
    state, ranks = gang("a-0", "a-1", gpus=1, env={"I_MPI_PERHOST": "7"})
    assert launch_of(state, ranks[0], {}).env["I_MPI_PERHOST"] == "7"


@pytest.mark.parametrize(("gpus", "first"), [(0, "10.0.0.0\n"), ({"a-0": 2, "a-1": 0}, "10.0.0.0 slots=4\n")])
def test_a_host_without_gpus_is_its_bare_address(gpus, first):
    """`slots=1` beside `slots=8` would let one process run on all the cores of a host."""
    files, env = files_of("a-0", "a-1", "a-0", gpus=gpus)
    assert files["openmpi"] == f"{first}10.0.0.1\n"
    assert files["hydra"].endswith("\n10.0.0.1\n")
    assert not any(name.endswith("set_default_slots") for name in env)


def test_an_address_of_ipv6_has_dashes_in_host_files():
    """No launcher takes its colons. A task on one node is its own host, and nobody is called there."""
    files, env = files_of("a-0", "a-1", prefix="fd00::a:")
    assert files["hydra"] == "fd00--a-0:2\nfd00--a-1:2\n"
    assert files["openmpi"] == "fd00--a-0 slots=2\nfd00--a-1 slots=2\n"
    assert files["plain"].split() == ["fd00--a-0", "fd00--a-0", "fd00--a-1", "fd00--a-1"]
    assert env["FLEETFORM_NODES_IPS"] == "fd00::a:0\nfd00::a:1"
    state, ranks = gang("a-0", prefix="fd00::a:")
    assert launch_of(state, ranks[0], {}).hostfile == "fd00::a:0\n" * 2


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
        """The scripted answer."""
        self.asked.append((node.address.name, address))
        answer = self.answers.get(node.address.name)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_each_other_node_is_asked_once_for_rank_0s_address():
    state, ranks = gang("a-1", "a-0", "a-2", "a-0")
    backend, known = Asked({}), dict[tuple[str, str], str | None]()
    check_peers(ranks[2].rank, state, backend, known)
    check_peers(ranks[0].rank, state, backend, known)
    assert sorted(backend.asked) == [("a-0", "10.0.0.1"), ("a-2", "10.0.0.1")]


def test_who_does_not_reach_rank_0_is_named_and_who_cannot_be_asked_is_not():
    state, ranks = gang("a-0", "a-1", "a-2")
    silent = TransientError(TransientKind.NOT_SENT, "no answer")
    check_peers(ranks[0].rank, state, Asked({"a-1": silent}), {})
    with pytest.raises(ActionError) as found:
        check_peers(ranks[0].rank, state, Asked({"a-1": silent, "a-2": "no route"}), {})
    said = "node/a-2 (10.0.0.2) cannot reach node/a-0 at 10.0.0.0, where its ranks would look for rank 0: "
    assert found.value.summary == said + "no route"


@pytest.mark.parametrize(
    ("nodes", "inputs"), [(("a-0", "a-1"), {"placement": "any"}), (("a-0",), {}), (("a-0", "a-0"), {})]
)
def test_nobody_is_asked_where_nobody_looks_for_others(nodes, inputs):
    state, ranks = gang(*nodes, **inputs)
    backend = Asked({})
    check_peers(ranks[0].rank, state, backend, {})
    assert backend.asked == []
