"""Whether hosts reach each other is checked before the first rank of a gang starts."""

from __future__ import annotations

import pytest

from providers.ssh.probe import reaches, verdict
from tests.providers.ssh.nodes import transport
from tests.providers.ssh.test_fleet import project  # noqa: F401  # a fixture
from tests.support.cli import task

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], None),
        (["try=22 silent", "try=29500 yes"], None),
        (["try=22 no No route to host", "try=ping yes"], None),
        (["try=22 no No route to host", "try=29500 silent"], "No route to host"),
        (["try=22 silent", "try=29500 silent"], "no answer within 5 s at its ports 22, 29500, nor to ping"),
        (["try=22 silent", "try=29500 unknown"], None),
    ],
)
def test_what_the_tries_mean(lines, why):
    """Any answer proves that the host is there, even a refusal. A host that cannot be asked passes."""
    assert verdict(lines) == why


@pytest.mark.parametrize("tool", ["python3", "bash"])
def test_hosts_say_whether_they_reach_each_other(machines, tool):
    """By what they have. No job listens, and nothing but ssh: a port that is refused is as good."""
    if tool == "bash":
        machines[0].install("python3", "#!/bin/sh\nexit 1")
    try:
        here = transport(machines, 0)
        assert reaches(here, machines[1].address, None) is None
        assert reaches(here, machines[1].address, 29999) is None
        assert reaches(here, "10.77.0.1", None) == "Network is unreachable"
        assert reaches(here, f"{machines.prefix}.250", None) == "No route to host"
    finally:
        machines[0].sh("rm -f /usr/local/bin/python3")


def test_a_gang_whose_hosts_do_not_reach_each_other_is_not_started(project, machines):  # noqa: F811
    """The error names both nodes, the address and what to write; once that is right, it runs."""
    begun = "touch /var/tmp/begun"
    gang = task("hello", begun, nodes=2)
    a, b = machines[0].address, machines[1].address
    wrong = project.rack(project.host(0, internal_ip="10.77.0.1"), project.host(1, internal_ip=b))
    done = project.bring(wrong, gang, code=4)
    assert f"node/rack-1 ({b}) cannot reach node/rack-0 at 10.77.0.1" in done.out
    assert "Network is unreachable" in done.out
    assert "`internal_ip`" in done.out
    assert [r["state"] for r in project.ranks("hello").values()] == ["pending"] * 2
    for m in machines:
        m.sh("test ! -e /var/tmp/begun")
    right = project.rack(project.host(0, internal_ip=a), project.host(1, internal_ip=b))
    project.bring(right, gang, args=("--wait",))
    assert machines[1].sh("rm /var/tmp/begun && echo gone").strip() == "gone"
    machines[0].sh("rm -f /var/tmp/begun")
