"""A fleet of hosts from end to end: the installed command, real sshd, real ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from declarative.apply.backends import Backends
from declarative.model.spec import Backend, Name
from declarative.model.state import Address
from declarative.store import open_store
from tests.providers.ssh.machines import Machine, Machines
from tests.providers.ssh.rack import OPTIONS, SSH, Rack, wipe
from tests.support.cli import task, until

pytestmark = pytest.mark.slow


@pytest.fixture
def project(machines: Machines, tmp_path: Path) -> Iterator[Rack]:
    made = Rack(tmp_path, machines)
    yield made
    made.run("destroy", "--auto-approve", code=None)
    wipe(machines)


def codes(text: str) -> list[str]:
    """The codes of the diagnostics of a plan."""
    return [d["code"] for d in json.loads(text)["diagnostics"]]


def address(machines: Machines, index: int) -> str:
    """By which a host is reached."""
    machine: Machine = machines[index]
    return machine.address


def test_a_gang_runs_on_hosts_and_its_ranks_know_each_other(project, machines):
    say = 'echo "rank $FLEETFORM_NODE_RANK of $FLEETFORM_NODES_NUM on $(hostname)"'
    gang = task(
        "hello", say, 'echo "master $FLEETFORM_MASTER_NODE_IP"', 'echo "all: "$FLEETFORM_NODES_IPS', nodes=2
    )
    project.declare(SSH, project.rack(), gang)
    plan = project.plan()
    assert [a["id"] for a in plan["actions"] if "node/" in a["id"]] == [
        f"create:node/rack-{i}" for i in range(3)
    ]
    prices = ("hourly_before", "hourly_after", "hourly_at_most", "bound_hourly")
    assert [plan["cost"][price] for price in prices] == [0.0] * 4
    project.apply("--wait")
    a, b = address(machines, 0), address(machines, 1)
    said = project.logs("hello", "--rank", "1")
    assert "rank 1 of 2 on h1" in said
    assert f"master {a}" in said
    assert f"all: {a} {b}" in said
    status = project.status()
    assert [(n["name"], n["instance_type"], n["state"]) for n in status["nodes"]] == [
        (f"rack-{i}", address(machines, i), "ready") for i in range(3)
    ]
    assert [r["state"] for r in status["tasks"][0]["ranks"]] == ["succeeded", "succeeded"]
    assert project.busy() == {"rack-0": 0, "rack-1": 0, "rack-2": 0}
    project.no_changes()
    project.run("destroy", "--auto-approve")
    assert project.status()["nodes"] == []
    assert machines[0].sh("ls -d /var/lib/fleetform 2>/dev/null || :") == ""


def test_ranks_are_told_the_internal_addresses(project, machines):
    ips = [f"10.9.0.{i + 1}" for i in range(2)]
    for machine, ip in zip(machines, ips, strict=False):
        machine.sh(f"ip addr add {ip}/24 dev eth0")
    rack = project.rack(*(project.host(i, internal_ip=ip) for i, ip in enumerate(ips)))
    project.bring(rack, task("hello", 'echo "all: "$FLEETFORM_NODES_IPS', nodes=2), args=("--wait",))
    assert f"all: {ips[0]} {ips[1]}" in project.logs("hello", "--rank", "0")
    for machine, ip in zip(machines, ips, strict=False):
        machine.sh(f"ip addr del {ip}/24 dev eth0")


def test_small_tasks_share_a_host_on_disjoint_cpus_and_stop(project):
    show = "grep Cpus_allowed_list /proc/self/status; while :; do sleep 0.1; done"
    small = [task(f"small-{i}", show, resources={"cpu": 1}) for i in range(2)]
    project.bring(project.rack(project.host(0)), *small)
    assert project.busy() == {"rack-0": 2}
    until(lambda: all(project.logs(f"small-{i}") for i in range(2)))
    assert len({project.logs(f"small-{i}").split()[-1] for i in range(2)}) == 2
    project.run("stop", "small-0")
    assert project.ranks("small-0")[0]["state"] == "stopped"
    assert project.ranks("small-1")[0]["state"] == "running"
    assert project.busy() == {"rack-0": 1}


def test_a_host_may_have_blocks_of_its_own(project):
    project.bring(project.rack(project.host(0), project.host(1, blocks=1)))
    assert {n["name"]: n["blocks"]["total"] for n in project.status()["nodes"]} == {"rack-0": 2, "rack-1": 1}
    project.bring(project.rack(project.host(0, blocks="auto"), project.host(1, blocks=2)))
    assert {n["name"]: n["blocks"]["total"] for n in project.status()["nodes"]} == {"rack-0": 2, "rack-1": 2}
    project.no_changes()


def test_a_host_that_is_off_is_named_and_comes_later(project, machines):
    machines[1].off()
    try:
        project.declare(SSH, project.rack(), task("hello", "echo hi"))
        done = project.run("plan", "--json")
        assert codes(done.out) == ["host-not-ready"]
        assert f"host {address(machines, 1)} of fleet/rack is left out: unreachable" in done.out
        project.apply("--wait")
        assert sorted(project.nodes()) == ["rack-0", "rack-2"]
    finally:
        machines[1].on()
    assert project.ids() == ["create:node/rack-1"]
    project.apply()
    assert project.nodes()["rack-1"] == (address(machines, 1), "ready")
    project.no_changes()


def test_a_node_whose_host_is_off_stays_and_is_no_reason_to_forget_it(project, machines):
    project.bring(project.rack())
    machines[1].off()
    try:
        assert project.ids() == []
        assert {n: s for n, (_, s) in project.nodes().items()} == {
            "rack-0": "ready",
            "rack-1": "unreachable",
            "rack-2": "ready",
        }
        found = project.run("plan", "--json", "--detailed-exitcode", code=2).json
        assert [(h["address"], h["state"]) for h in found["health"]] == [("node/rack-1", "unreachable")]
        assert found["result"] == "unhealthy"
        (told,) = project.run("status", "--json").json["health"]
        assert (told["address"], told["state"]) == ("node/rack-1", "unreachable")
        project.bring(project.rack(), task("hello", "echo hi", nodes=2), args=("--wait",))
        assert {r["node"] for r in project.ranks("hello").values()} == {"rack-0", "rack-2"}
    finally:
        machines[1].on()


def test_an_unknown_key_keeps_one_host_out_and_no_other(project, machines):
    project.keys("".join(f"{m.address} {m.public_key}\n" for m in machines[:2]))
    project.declare(SSH, project.rack())
    done = project.run("plan", "--json")
    assert codes(done.out) == ["host-key-unknown"]
    assert f"host_keys: [{machines[2].public_key}]" in done.out
    assert project.ids() == ["create:node/rack-0", "create:node/rack-1"]


def test_a_host_of_another_state_or_without_the_network_is_seen_by_the_plan(project, machines, tmp_path):
    """And not found out by an apply, that then ends with failed actions."""
    (tmp_path / "other").mkdir()
    other = Rack(tmp_path / "other", machines)
    other.bring(other.rack(other.host(0)))
    inside = f"{machines.prefix}.0/24"
    project.declare(SSH, project.rack(project.host(0), project.host(1)), task("hello", "echo hi", nodes=2))
    done = project.run("plan", "--json", code=3)
    assert codes(done.out) == ["host-not-ready"]
    assert "is node/rack-0 of another state" in done.out
    assert [u["code"] for u in done.json["unplaced"]] == ["no-capacity"]
    project.bring(project.rack(project.host(0), project.host(1)))
    assert sorted(project.nodes()) == ["rack-1"]
    done = project.run("plan", "--detailed-exitcode", code=2)
    assert "No changes" not in done.out
    assert "is left out" in done.err
    other.run("destroy", "--auto-approve")
    project.bring(project.rack(project.host(0), project.host(1)))
    project.no_changes()

    elsewhere = project.rack()
    elsewhere["ssh_config"]["network"] = "192.0.2.0/24"
    project.declare(SSH, elsewhere)
    plan = project.plan()
    assert (plan["result"], plan["actions"]) == ("unhealthy", [])
    assert [h["state"] for h in plan["health"]] == ["left_out"] * 3
    assert {d["code"] for d in plan["diagnostics"]} == {"host-not-ready"}
    assert sum("has no address in 192.0.2.0/24" in d["summary"] for d in plan["diagnostics"]) == 3
    project.apply()
    elsewhere["ssh_config"]["network"] = inside
    project.bring(elsewhere)
    assert sorted(project.nodes()) == ["rack-0", "rack-1", "rack-2"]
    project.no_changes()


def test_hosts_come_and_go_and_the_others_keep_their_names(project, machines):
    hold = task("hold", "while :; do sleep 0.1; done", instances=["rack-2"])
    project.bring(project.rack(), hold)
    project.bring(project.rack(project.host(2), project.host(0)), hold)
    assert sorted(project.nodes()) == ["rack-0", "rack-2"]
    project.bring(project.rack(project.host(1), project.host(0)), hold)
    found = project.nodes()
    assert {n: h for n, (h, _) in found.items()} == {f"rack-{i}": address(machines, i) for i in range(3)}
    project.run("stop", "hold")
    project.bring(project.rack(project.host(1), project.host(0)))
    assert sorted(project.nodes()) == ["rack-0", "rack-1"]
    project.no_changes()


def test_a_saved_plan_makes_its_hosts_nodes(project, machines):
    project.declare(SSH, project.rack(project.host(0), project.host(1)))
    project.run("plan", "--out", "plan.json")
    project.apply("plan.json")
    assert sorted(project.nodes()) == ["rack-0", "rack-1"]
    project.declare(SSH, project.rack())
    project.run("plan", "--out", "more.json")
    machines[2].off()
    try:
        done = project.apply("more.json", code=1)
        assert "is not offered any more" in done.err
    finally:
        machines[2].on()


def test_offline_a_host_counts_as_it_is_declared(project, machines):
    machine: Machine = machines[1]
    project.declare(SSH, project.rack(project.host(0), machine.address))
    done = project.run("plan", "--offline", "--json")
    assert [a["id"] for a in done.json["actions"]] == ["create:node/rack-0"]
    assert codes(done.out) == ["host-not-ready"]


@pytest.mark.parametrize("made", [False, True])
def test_a_node_that_a_killed_apply_had_begun_is_taken_up_and_not_made_twice(project, machines, made):
    project.bring(project.rack(project.host(0)))
    project.declare(SSH, project.rack())
    wanted = next(a["after"] for a in project.plan()["actions"] if a["id"] == "create:node/rack-2")
    state = open_store("sqlite:///.fleetform/state.db", root=project.path)
    with state as store, store.lock("apply") as writer:
        intent = writer.begin("create", Address("node", "rack-2"), "ssh", wanted)
        options = {"ssh": Backend(name=Name("ssh"), options=OPTIONS)}
        backends = Backends(options, project.path, writer.ensure_lineage(), writer.state())
        if made:
            backends.get("ssh").create(intent.address, intent.token, wanted, {})
    machines[2].off()
    try:
        # Nobody knows what became of it; the others go on.
        assert project.ids() == ["create:node/rack-1"]
    finally:
        machines[2].on()
    done = project.apply()
    assert ("had been done, and is taken up" in done.err) == made
    assert {n: s for n, (_, s) in project.nodes().items()} == {f"rack-{i}": "ready" for i in range(3)}
    project.no_changes()
