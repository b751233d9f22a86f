"""Faults of hosts, from end to end: the installed command, real sshd, real ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest

from declarative.model.status import RankState
from providers.runner import Attempt, Launch, Runner, script
from providers.ssh import scripts
from providers.ssh.host import Timing
from tests.providers.ssh.machines import Machines
from tests.providers.ssh.nodes import Nodes, transport
from tests.providers.ssh.rack import SSH, Rack, wipe
from tests.support.cli import on_terminal, task, until

pytestmark = pytest.mark.slow

ONCE = "echo x >> /var/tmp/ran; exec sleep 1000"
FILL = "dd if=/dev/zero of=/var/tmp/fill bs=64k || dd if=/dev/zero of=/var/tmp/fill2 bs=1 || true"
LAUNCH = Launch(attempt_id="train-0.1", script=script(["echo begun"], {}, ""))


@pytest.fixture
def project(machines: Machines, tmp_path: Path) -> Iterator[Rack]:
    made = Rack(tmp_path, machines)
    yield made
    made.clean_up()
    wipe(machines)


def begun(machines: Machines) -> list[str]:
    """What the ranks of each host have noted: an `x` for each start."""
    return ["".join(m.sh("cat /var/tmp/ran 2>/dev/null || true").split()) for m in machines]


def reasons(text: str) -> dict[str, str]:
    """Host → why it is left out of a plan."""
    return {h["host"]: h["detail"] for h in json.loads(text)["health"] if h["host"]}


# ----------------------------------------------------------------------------------------- the start


@pytest.mark.parametrize("how", ["saved", "asked"])
def test_a_host_that_goes_off_after_the_plan_keeps_all_ranks_from_starting(project, machines, how):
    """All or none, and the one that is off is named; once it is back, all start."""
    project.bring(project.rack())
    project.add(task("gang", ONCE, nodes=3))
    try:
        if how == "saved":
            project.run("plan", "--out", "plan.json")
            machines[2].off()
            done = project.apply("plan.json", code=None)
            code, said = done.code, done.out + done.err
        else:  # shut down and not cut off, so that the kept connection need not be waited for
            code, said = on_terminal(project, "apply", answer="yes\n", asked=machines[2].kill)
    finally:
        machines[2].on()
    assert (code, "unreachable" in said) == ((1, True) if how == "saved" else (4, True)), said
    assert "node/rack-2" in said
    assert begun(machines) == ["", "", ""]
    project.apply()
    until(lambda: begun(machines) == ["x", "x", "x"])


def test_a_command_killed_while_a_gang_starts_starts_nothing_twice(project, machines):
    """Killed when a host has heard of its rank, and when that rank runs: the next one takes all up."""
    project.bring(project.rack())

    def heard(name: str) -> bool:
        path = f"/var/lib/fleetform/node/*/ranks/{name}-*.1.*"
        return any(m.sh(f"ls -d {path} 2>/dev/null || true") for m in machines)

    def runs(name: str) -> bool:
        return heard(name) and any(len(marks) > int(name[-1]) for marks in begun(machines))

    def noted(times: int) -> bool:
        return all(len(marks) >= times for marks in begun(machines))

    moments: list[Callable[[str], bool]] = [heard, runs]
    for i, moment in enumerate(moments):
        name = f"gang-{i}"
        project.add(task(name, ONCE, nodes=3))
        process = project.start("apply", "--auto-approve", "--parallelism", "1")
        until(partial(moment, name))
        process.kill()
        process.wait()
        project.apply()
        until(partial(noted, i + 1))
        assert begun(machines) == ["x" * (i + 1)] * 3
        assert [
            m.sh(f"cd /var/lib/fleetform/node/*/ranks; ls -d {name}-* | cut -d. -f1,2") for m in machines
        ] == [f"{name}-{rank}.1\n" for rank in range(3)]


def test_thirty_starts_of_one_rank_at_once_are_one(machines, tmp_path):
    """Each over a connection of its own."""
    nodes = Nodes(machines, tmp_path)
    node = nodes.make()
    entered = scripts.enter(transport(machines), None)
    root = f"{node.outputs['path']}/ranks"
    ready = Barrier(30)

    def start(number: int) -> Attempt:
        own = transport(machines, timing=Timing(connect=60 + number))
        own.run(("true",))
        ready.wait(120)
        return Runner(own, root, entered.script).start(LAUNCH)

    with ThreadPoolExecutor(30) as pool:
        found = list(pool.map(start, range(30)))
    assert {a.attempt_id for a in found} == {"train-0.1"}
    ended = nodes.ended(node, "train-0.1")
    assert ended.state is RankState.SUCCEEDED
    assert nodes.log(node, "train-0.1") == "begun\n"
    wipe(machines)


# ------------------------------------------------------------------------------------- sick hosts


def test_sick_hosts_take_no_rank_and_say_why(project, machines):
    """A full disk, a folder that cannot be written, a changed key. Once repaired, all are nodes and work."""
    gang = task("gang", ONCE, nodes=3)
    full, locked, changed = (m.address for m in machines)
    project.declare(SSH, project.rack())
    machines[0].sh(f"{{ {FILL}; }} 2>/dev/null")
    machines[1].sh("mkdir -p /var/lib/fleetform/node; mount -t tmpfs -o ro x /var/lib/fleetform/node")
    machines[2].make_key()
    machines[2].reboot()
    project.add(gang)
    done = project.run("plan", "--json", code=None)
    why = reasons(done.out)
    assert "full" in why[full]
    assert "written" in why[locked]
    assert "its key has changed" in why[changed]
    assert machines[2].fingerprint in done.out
    project.apply(code=None)
    assert begun(machines) == ["", "", ""]
    machines[0].sh("rm /var/tmp/fill*")
    machines[1].sh("umount /var/lib/fleetform/node")
    project.keys(machines.known_hosts)
    project.apply()
    until(lambda: begun(machines) == ["x", "x", "x"])


def test_chatter_of_logins_and_clocks_that_differ_harm_no_gang(project, machines):
    for m in machines[:2]:
        m.sh("echo 'echo WELCOME; printf \"no newline\"; echo also >&2' >/root/.bashrc")
    for m, hours in ((machines[1], "-3"), (machines[2], "+3")):
        m.install("date", f'#!/bin/sh\nexec /usr/bin/date -d "{hours} hours" "$@"')
    say = 'date +%s; echo "rank $FLEETFORM_NODE_RANK"'
    project.bring(project.rack(), task("gang", say, nodes=3, max_duration="30m"), args=("--wait",))
    said = [project.logs(f"gang/{i}").splitlines() for i in range(3)]
    assert [lines[1:] for lines in said] == [[f"rank {i}"] for i in range(3)]
    clocks = [int(lines[0]) for lines in said]
    assert [round((c - clocks[0]) / 3600) for c in clocks] == [0, -3, 3]
