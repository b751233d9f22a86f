"""`retry` on hosts: a host restarts in the middle of a run, and a rank fails."""

from __future__ import annotations

import pytest

from tests.providers.ssh.rack import SSH
from tests.providers.ssh.test_fleet import project  # noqa: F401  # a fixture
from tests.support.cli import ended, task, until

pytestmark = pytest.mark.slow

RAN = "/var/tmp/ran-before"
"""On a host's disk, which outlives a restart: an attempt has begun here."""
HOLD = "while :; do sleep 0.1; done"


@pytest.fixture
def two(project, machines):  # noqa: F811
    """A fleet of two hosts, on which no attempt has begun."""
    yield project
    for m in machines:
        m.sh(f"rm -f {RAN}")


def rack(made):
    """Two hosts: both are needed again."""
    return made.rack(made.host(0), made.host(1))


def begun(machines):
    """Whether an attempt has begun on both."""
    return all(m.sh(f"test -e {RAN} && echo yes || echo no") == "yes\n" for m in machines[:2])


def states(made):
    """The state and the attempt of each rank."""
    return [(r["state"], r["attempt"]) for r in made.ranks("job").values()]


def test_a_host_that_restarts_loses_its_rank_and_the_gang_runs_again(two, machines):
    """The boot id shows it. The other rank is stopped, and both start anew, on both hosts."""
    job = task("job", f"[ ! -e {RAN} ] || exit 0; touch {RAN}; {HOLD}", nodes=2)
    two.declare(SSH, rack(two), {**job, "retry": {"on_events": ["interruption"]}})
    follower = two.start("apply", "--auto-approve", "--wait")
    until(lambda: begun(machines))
    until(lambda: states(two) == [("running", 1)] * 2)
    machines[1].reboot()
    done = ended(follower)
    assert "rank/job-1: lost: the machine restarted while it ran" in done.err
    assert "rank/job-0: stopped: rank/job-1 lost: the machine restarted while it ran" in done.err
    assert done.out.endswith("task/job: succeeded\n")
    assert states(two) == [("succeeded", 2)] * 2
    assert two.busy() == {"rack-0": 0, "rack-1": 0}
    two.no_changes()


def test_the_next_apply_runs_a_gang_again_of_which_a_rank_failed(two, machines):
    """As a whole: no rank of the old attempt goes on."""
    fails = f"[ ! -e {RAN} ] || exit 0; touch {RAN}; [ $FLEETFORM_NODE_RANK = 0 ] || exit 7; {HOLD}"
    two.bring(rack(two), {**task("job", fails, nodes=2), "retry": True})
    until(lambda: begun(machines))
    until(lambda: two.ranks("job")[1]["state"] == "failed")
    done = two.apply("--wait")
    assert "# retry 1 after rank/job-1 failed: exit code 7" in done.out
    assert states(two) == [("succeeded", 2)] * 2
    two.no_changes()


def test_a_failed_start_goes_to_another_host_and_its_output_is_read_on_the_first(two):
    """`max_attempts` ends the retries."""
    job = task("job", "echo on $HOSTNAME; exit 5")
    two.bring(rack(two), {**job, "retry": {"max_attempts": 3}})
    until(lambda: two.ranks("job")[0]["state"] == "failed")
    assert two.ranks("job")[0]["node"] == "rack-0"
    done = two.apply()
    assert "# retry 1 after rank/job-0 failed: exit code 5; avoids node/rack-0" in done.out
    until(lambda: two.ranks("job")[0]["state"] == "failed")
    assert two.ranks("job")[0]["node"] == "rack-1"
    assert (two.logs("job", "--previous"), two.logs("job")) == ("on h0\n", "on h1\n")
    two.apply()
    until(lambda: two.ranks("job")[0]["state"] == "failed")
    assert two.ranks("job")[0]["attempt"] == 3
    two.no_changes()
