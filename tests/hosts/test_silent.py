"""Hosts that do not answer: given up after `unreachable_duration`, their ranks run again elsewhere, once."""

from __future__ import annotations

import pytest

from tests.cli import ended, task, until
from tests.hosts.rack import SSH
from tests.hosts.test_fleet import project  # noqa: F401  # a fixture

pytestmark = pytest.mark.slow

GO = "/var/tmp/ran-go"
BEGAN = "/var/tmp/ran-began"
"""On a host's disk: a line for each attempt that began here."""
HOLD = f"echo x >> {BEGAN}; while [ ! -e {GO} ]; do sleep 0.1; done"
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
    """How many ranks run on a host."""
    return int(machine.sh("pgrep -fc '^bash.*/task$' || true"))


def test_a_host_that_is_cut_off_is_given_up_and_its_gang_runs_elsewhere(project, machines):  # noqa: F811
    """It comes back with the old attempt, which is stopped before anything else is put there."""
    project.declare(SSH, project.rack(unreachable_duration="6s"), gang())
    follower = project.start("apply", "--auto-approve", "--wait")
    until(lambda: [s for _, s, _ in states(project)] == ["running"] * 2)
    machines[1].cut()
    said = told(follower, "node/rack-1 does not answer")
    assert "it is given up in" in said
    told(follower, "rank/job-1: lost: node/rack-1 was given up: it has not answered for 6 s")
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
