"""Hosts that do not answer: they are given up after `unreachable_duration`, and their ranks run once
elsewhere.
"""

from __future__ import annotations

import pytest

from declarative.model.status import RankState
from tests.providers.ssh.nodes import Nodes
from tests.providers.ssh.rack import SSH, wipe
from tests.providers.ssh.test_fleet import project  # noqa: F401  # a fixture
from tests.providers.ssh.test_instances import Account, backend
from tests.providers.ssh.test_lost_instances import cloud, instances, run  # noqa: F401  # a fixture
from tests.support.cli import ended, fleet, task, until

pytestmark = pytest.mark.slow

GO = "/tmp/go"
BEGAN = "/tmp/began"
"""On a host: a line for each attempt that began there."""
HOLD = f"echo x >> {BEGAN}; while [ ! -e {GO} ]; do sleep 0.1; done"
LEAVE = "pkill -f '[r]unner-.* _alone job-'"
"""On a host: its supervisor ends no rank although it is cut off."""
RETRY = {"retry": {"on_events": ["interruption"]}}


def gang(nodes: int = 2, **more):
    return {**task("job", HOLD, nodes=nodes, stop_duration=5), **RETRY, **more}


def told(process, what: str) -> str:
    """The line of a command's stderr that says `what`."""
    while True:
        line: str = process.stderr.readline()
        assert line, f"it ended and never said: {what}"
        if what in line:
            return line


def states(made):
    return [(r["node"], r["state"], r["attempt"]) for r in made.ranks("job").values()]


def runs(machine) -> int:
    """How many ranks run on a host. Each is a session; what its script forks looks like it until it execs."""
    found = machine.sh("ps -eww -o sid=,args= | sed -n 's|^ *\\([0-9]*\\) bash.*/task$|\\1|p'")
    return len(set(found.split()))


def test_a_host_that_is_cut_off_is_given_up_and_its_gang_runs_elsewhere(project, machines):  # noqa: F811
    """It comes back with the old attempt, which is stopped before anything else is put there: here its host
    did not end it itself.
    """
    project.declare(SSH, project.rack(unreachable_duration="1s"), gang())
    follower = project.start("apply", "--auto-approve", "--wait")
    until(lambda: [s for _, s, _ in states(project)] == ["running"] * 2)
    machines[1].sh(LEAVE)
    machines[1].cut()
    assert told(follower, "it is given up in").startswith("node/rack-1 ")
    told(follower, "rank/job-1: lost: node/rack-1 was given up: it has not answered for 1 s")
    until(lambda: states(project) == [("rack-0", "running", 2), ("rack-2", "running", 2)])
    assert runs(machines[1]) == 1
    (node,) = (n for n in project.status()["nodes"] if n["name"] == "rack-1")
    assert node["holders"]["0"] == "rank/job-1 (given up)"
    machines[1].plug()
    told(follower, "node/rack-1 answers again")
    until(lambda: project.busy()["rack-1"] == 0)
    assert runs(machines[1]) == 0
    for machine in machines:
        machine.sh(f"touch {GO}")
    assert ended(follower).out.endswith("task/job: succeeded\n")
    project.no_changes()


def test_a_task_is_stopped_where_it_can_be_and_elsewhere_when_that_answers(project, machines):  # noqa: F811
    """A rank that may still run is not reported as stopped."""
    project.bring(project.rack(), gang())
    machines[1].cut()
    done = project.run("stop", "job", code=4)
    assert "rank/job-1 is not stopped yet, and may run: node/rack-1 " in done.err
    assert "it is given up in" in done.err
    assert [s for _, s, _ in states(project)] == ["stopped", "running"]
    assert (runs(machines[0]), runs(machines[1])) == (0, 1)
    machines[1].plug()
    project.apply()
    assert [s for _, s, _ in states(project)] == ["stopped", "stopped"]
    assert runs(machines[1]) == 0
    project.no_changes()


def test_nothing_is_given_up_where_no_other_host_answers(project, machines):  # noqa: F811
    """It is as likely that our own line is down."""
    project.declare(SSH, project.rack(unreachable_duration=1), gang(3))
    follower = project.start("apply", "--auto-approve", "--wait")
    until(lambda: [s for _, s, _ in states(project)] == ["running"] * 3)
    for machine in machines:
        machine.sh(LEAVE)
        machine.cut()
    told(follower, "it is not given up: no other host of fleet/rack answers")
    for machine in machines:
        machine.plug()
        machine.sh(f"touch {GO}")
    assert ended(follower).out.endswith("task/job: succeeded\n")
    assert [a for _, _, a in states(project)] == [1, 1, 1]


# ---------------------------------------- machines that are dead while their cloud says that they run


@pytest.fixture
def account(cloud, tmp_path):  # noqa: F811
    """A gang of two on a fleet of two; the second machine has lost its power."""
    folder = tmp_path / "project"
    folder.mkdir()
    made = Account(folder)
    nodes = {"backends": ["aws"], "placement": "cluster", "resources": {"cpu": 2}}
    made.declare(backend(cloud.port), fleet("gpu", "0..2", unreachable_duration="1s", **nodes), gang())
    yield made
    made.clean_up()


def dead(cloud, made, tmp_path) -> str:  # noqa: F811
    """Cut the power of the machine of node/gpu-1; which instance that is."""
    until(lambda: len(instances(cloud, tmp_path)) == 2 and run(made, "job"))
    records = made.run("state", "pull").json["records"]
    (node,) = (r for r in records if r["address"] == "node/gpu-1")
    instance: str = node["outputs"]["id"]
    cloud.of[instance].off()
    return instance


def test_a_dead_machine_is_ended_by_its_cloud_and_the_gang_runs_again(cloud, account, tmp_path):  # noqa: F811
    follower = account.start("apply", "--auto-approve", "--wait")
    instance = dead(cloud, account, tmp_path)
    assert told(follower, "it is given up in").startswith("node/gpu-1 ")
    told(follower, "rank/job-1: lost: node/gpu-1 was given up: it has not answered for 1 s")
    until(lambda: {r["attempt"] for r in account.ranks("job").values()} == {2} and run(account, "job"))
    have = instances(cloud, tmp_path)
    assert (len(have), instance in have) == (2, False)
    for made in have:
        cloud.of[made].sh(f"touch {GO}")
    assert ended(follower).out.endswith("task/job: succeeded\n")
    account.no_changes()


def test_a_plan_shows_what_is_given_up_before_anything_is_ended(cloud, account, tmp_path):  # noqa: F811
    """Its end comes before all that is done for the gang elsewhere."""
    account.apply()
    instance = dead(cloud, account, tmp_path)
    account.run("plan")
    noticed = account.apply()  # it is noted since when, and its time has not come
    assert "node/gpu-1 takes no work: unreachable: " in noticed.err
    (node,) = (n for n in account.status()["nodes"] if n["name"] == "gpu-1")
    assert node["silent_since"] < node["given_up_at"]
    plan = account.plan()
    needs = {a["id"]: a["needs"] for a in plan["actions"]}
    assert "delete:node/gpu-1" in needs["delete:rank/job-1"]
    assert "delete:node/gpu-1" in needs["create:reservation/job-1"]
    assert instance in instances(cloud, tmp_path)
    done = account.apply()
    assert "-/+ node/gpu-1" in done.out
    until(lambda: {r["attempt"] for r in account.ranks("job").values()} == {2} and run(account, "job"))
    have = instances(cloud, tmp_path)
    assert (len(have), instance in have) == (2, False)


# ------------------------------------------------------------------------- what a host does when it is alone


@pytest.fixture
def nodes(machines, tmp_path):
    yield Nodes(machines, tmp_path)
    wipe(machines)


COUNT = "while :; do echo x >> /tmp/count; sleep 0.1; done"


def counted(machine, more: int) -> None:
    """Wait until a rank went on for some time."""
    have = int(machine.sh("cat /tmp/count 2>/dev/null | wc -l"))
    until(lambda: int(machine.sh("cat /tmp/count 2>/dev/null | wc -l")) >= have + more)


def test_a_rank_on_a_host_that_is_cut_off_ends_itself(nodes, machines):
    """Its host reached another one before, and no command came."""
    node, other = nodes.make(1), machines[2].address
    nodes.start(node, "train-0.1", COUNT, alone_seconds=2, near=(other,))
    counted(machines[1], 25)
    machines[1].cut()
    until(lambda: runs(machines[1]) == 0)
    machines[1].plug()
    status = nodes.ended(node, "train-0.1")
    assert status.state is RankState.LOST
    assert status.cause == "its host was cut off: no command reached it, and it reached no other"


def test_a_rank_outlives_a_controller_that_went_away(nodes, machines):
    """No command comes; but its host reaches its gateway, or its link is up where none ever answered."""
    gateway = machines[0].address.rpartition(".")[0] + ".1"
    machines[0].sh(f"ip route add default via {gateway}")
    for index, near in ((0, ()), (1, ("198.18.255.1",))):
        nodes.start(nodes.make(index), "train-0.1", COUNT, alone_seconds=1, near=near)
    for machine in machines[:2]:
        counted(machine, 60)
        assert runs(machine) == 1
    machines[0].cut()
    until(lambda: runs(machines[0]) == 0)
    machines[0].plug()


def test_where_none_ever_answered_the_link_tells(nodes, machines):
    machines[1].sh("ip route add default dev eth0")
    nodes.start(nodes.make(1), "train-0.1", COUNT, alone_seconds=1, near=("198.18.255.1",))
    counted(machines[1], 20)
    machines[1].cut()
    until(lambda: runs(machines[1]) == 0)
    machines[1].plug()
