"""Fields that change in place while a rank runs on a host: see `tests/end_to_end/test_in_place.py`."""

from __future__ import annotations

import pytest

from tests.providers.ssh.rack import SSH
from tests.providers.ssh.test_fleet import project  # noqa: F401  # a fixture
from tests.providers.ssh.test_silent_hosts import counted, runs
from tests.support.changing import resized_at_work, times_at_work
from tests.support.cli import task, until

pytestmark = pytest.mark.slow

COUNT = "while :; do echo x >> /tmp/count; sleep 0.1; done"


def test_the_new_times_of_a_rank_are_at_work(project, tmp_path):  # noqa: F811
    times_at_work(project, lambda job: project.declare(SSH, project.rack(), job), tmp_path / "up")


@pytest.mark.parametrize(
    ("before", "after", "because"),
    [
        ({"unreachable_duration": "1h"}, {"unreachable_duration": "4s"}, "unreachable_duration"),
        ({"unreachable_duration": "off"}, {"unreachable_duration": "4s"}, "unreachable_duration"),
        ({"retry": False}, {"retry": {"on_events": ["interruption"]}}, "retry"),
    ],
)
def test_a_rank_whose_host_is_cut_off_ends_by_the_new_time(project, machines, before, after, because):  # noqa: F811
    """It would run twice otherwise: others count it as lost by the new time."""
    retry = {"retry": {"on_events": ["interruption"]}, "unreachable_duration": "4s"}

    def declare(**fields):
        fields = {**retry, **fields}
        rack = project.rack(project.host(1), unreachable_duration=fields["unreachable_duration"])
        project.declare(SSH, rack, task("job", COUNT, retry=fields["retry"]))

    machines[1].sh("ip route replace default dev eth0")  # so that its link tells whether it is cut off
    declare(**before)
    project.apply()
    counted(machines[1], 5)
    declare(**after)
    plan = project.plan()
    assert [(a["id"], a["because"]) for a in plan["actions"]] == [("update:rank/job-0", [because])]
    project.apply()
    project.no_changes()
    counted(machines[1], 20)
    machines[1].cut()
    try:
        until(lambda: runs(machines[1]) == 0)
    finally:
        machines[1].plug()
    until(lambda: project.ranks("job")[0]["state"] == "lost")


def test_the_env_of_a_host_reaches_its_ranks_and_a_change_ends_none(project, machines):  # noqa: F811
    """Each rank gets its host's value. A rank that runs keeps it, and the next one gets the new one."""

    def declare(first, *jobs):
        hosts = (project.host(0, env={"CARD": first}), project.host(1, env={"CARD": "ib0", "OWN": "host"}))
        project.declare(SSH, project.rack(*hosts), *jobs)

    say = 'echo "card $CARD, own $OWN" | tee /tmp/env'
    pair = task("pair", say, COUNT, nodes=2, env={"OWN": "task"})
    declare("eth0", pair)
    project.apply()
    counted(machines[0], 5)
    counted(machines[1], 5)
    assert [machines[i].sh("cat /tmp/env").strip() for i in (0, 1)] == [
        "card eth0, own task",
        "card ib0, own task",
    ]
    declare("eth1", pair)
    assert [a["id"] for a in project.plan()["actions"]] == ["update:node/rack-0"]
    text = project.run("plan").out
    assert 'host.env.CARD: "eth0" → "eth1"' in text
    assert "running ranks keep the old `env`" in text
    project.apply()
    project.no_changes()
    counted(machines[0], 20)
    assert [r["state"] for r in project.ranks("pair").values()] == ["running", "running"]
    assert machines[0].sh("cat /tmp/env").strip() == "card eth0, own task"
    project.apply("--replace", "task/pair")
    until(lambda: machines[0].sh("cat /tmp/env").strip() == "card eth1, own task")


def test_ranks_come_and_go_and_the_others_run_on(project):  # noqa: F811
    resized_at_work(project, lambda job: project.declare(SSH, project.rack(), job))
