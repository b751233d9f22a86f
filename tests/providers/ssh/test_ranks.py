"""Ranks on hosts where everything goes wrong: cut cables, killed controllers, reboots, full disks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from declarative.model.status import NodeState, RankState
from declarative.planner.node_health import judged
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from declarative.retry import call
from providers.runner import RunnerError
from providers.ssh import scripts
from providers.ssh.host import Timing
from providers.ssh.transport import SshTransport
from providers.testing import launch
from tests.providers.ssh.machines import Machine, Machines, until
from tests.providers.ssh.nodes import QUICK, Nodes, transport
from tests.providers.ssh.rack import wipe

REPOSITORY = Path(__file__).resolve().parents[3]
ONCE = "echo x >> /var/tmp/ran; exec sleep 1000"
FILL = "dd if=/dev/zero of=/var/tmp/fill bs=64k || dd if=/dev/zero of=/var/tmp/fill2 bs=1 || true"


@pytest.fixture
def nodes(machines, tmp_path) -> Nodes:
    return Nodes(machines, tmp_path)


@pytest.fixture(autouse=True)
def cleared(machines) -> Iterator[None]:
    yield
    wipe(machines)


def starter(nodes: Nodes, index: int, attempt: str) -> subprocess.Popen[bytes]:
    """Another process that starts a rank."""
    told = json.dumps({"inputs": nodes.made[-1].inputs, "outputs": nodes.made[-1].outputs})
    code = f"""
import json, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from pathlib import Path
from declarative.provider import Config
from declarative.model.state import Address, Record
from providers.ssh import Ssh
from providers.testing import launch
told = json.loads(sys.argv[1])
options = {{"ssh_config": "/dev/null"}}
provider = Ssh(Config(backend="ssh", project_dir=Path("/"), lineage="ours", options=options))
node = Record(address=Address("node", "gpu-{index}"), backend="ssh", **told)
provider.readiness([node])
print("up", flush=True)
sys.stdin.readline()
provider.start(node, launch("{attempt}", {ONCE!r}))
"""
    return subprocess.Popen(
        [sys.executable, "-c", code, told], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )


def has(machine: Machine, path: str) -> bool:
    """Whether it is there; `path` may have wildcards."""
    return machine.sh(f"ls -d {path} 2>/dev/null || true") != ""


def go(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin
    process.stdin.write(b"\n")


def up(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout
    assert process.stdout.readline() == b"up\n"


def close(process: subprocess.Popen[bytes]) -> int:
    assert process.stdin
    assert process.stdout
    process.stdin.close()
    process.stdout.close()
    return process.wait()


def started(nodes: Nodes, node, attempt: str) -> None:
    """Started, however often that has to be asked."""

    def look() -> bool:
        try:
            return nodes.start(node, attempt, ONCE).state is RankState.RUNNING
        except TransientError:
            return False

    until(look, 60)


# -------------------------------------------------------------------------------------- exactly once


@pytest.mark.slow
def test_two_controllers_start_one_attempt_once(nodes):
    node = nodes.make()
    others = [starter(nodes, 0, "train-0.1") for _ in range(2)]
    for other in others:
        up(other)
    for other in others:
        go(other)
    assert [close(other) for other in others] == [0, 0]
    until(lambda: nodes.machine(node).sh("cat /var/tmp/ran || true"))
    assert nodes.machine(node).sh("cat /var/tmp/ran") == "x\n"


@pytest.mark.slow
def test_a_controller_killed_in_a_start_starts_nothing_twice(nodes):
    """Killed at many moments: when it got the order, and as soon as a certain file of the attempt exists."""
    node = nodes.make()
    stages = ("", "/", "/run", "/started", "/pid", "/log")
    for i, stage in enumerate(stages):
        other = starter(nodes, 0, f"train-{i}.1")
        up(other)
        go(other)
        file = f"/var/lib/fleetform/node/*/ranks/train-{i}.1{stage}"
        if stage:
            until(partial(has, nodes.machines[0], file))
        other.kill()
        close(other)
        started(nodes, node, f"train-{i}.1")
    until(lambda: nodes.machine(node).sh("cat /var/tmp/ran") == "x\n" * len(stages))


@pytest.mark.slow
def test_a_cable_cut_in_a_start_starts_nothing_twice(machines, tmp_path, monkeypatch):
    """Whether the host heard of it or not, asking again leads to one run."""
    quick(monkeypatch)
    nodes = Nodes(machines, tmp_path)
    node = nodes.make(1)
    machine = nodes.machine(node)
    for i in range(3):
        nodes.poll(node, "x-0.1")  # connected
        with ThreadPoolExecutor(1) as pool:
            trying = pool.submit(nodes.start, node, f"train-{i}.1", ONCE)
            if i:  # the first is cut as soon as can be, the others once the host has heard
                until(partial(has, machine, f"/var/lib/fleetform/node/*/ranks/train-{i}.1"))
            machine.cut()
            trying.exception(60)
        machine.plug()
        started(nodes, node, f"train-{i}.1")
    until(lambda: machine.sh("cat /var/tmp/ran") == "x\n" * 3)


def quick(monkeypatch) -> None:
    """A silent host is given up sooner."""

    def timing(connect: float = QUICK.connect) -> Timing:
        return replace(QUICK, connect=connect)

    monkeypatch.setattr("providers.ssh.host.Timing", timing)


# ------------------------------------------------------------------------------------ lost and found


@pytest.mark.slow
def test_a_rank_outlives_its_connection(machines, tmp_path, monkeypatch):
    """Cut off, it goes on; found again, its output is whole."""
    quick(monkeypatch)
    nodes = Nodes(machines, tmp_path)
    node = nodes.make(2)
    machine = nodes.machine(node)
    nodes.start(node, "train-0.1", "echo one; until [ -e /tmp/go ]; do sleep 0.05; done; echo two")
    until(lambda: nodes.log(node, "train-0.1") == "one\n")
    machine.cut()
    with pytest.raises(TransientError) as caught:
        nodes.poll(node, "train-0.1")
    assert caught.value.kind in {TransientKind.AMBIGUOUS, TransientKind.NOT_SENT}
    assert nodes.provider.readiness([node])["gpu-2"].state is NodeState.UNREACHABLE
    machine.sh("touch /tmp/go")
    machine.plug()
    assert nodes.ended(node, "train-0.1").state is RankState.SUCCEEDED
    assert nodes.log(node, "train-0.1") == "one\ntwo\n"
    machine.sh("rm /tmp/go")


def test_a_reboot_is_told(nodes):
    """What ran is lost and never runs again; what had ended keeps its exit code; a new attempt runs."""
    node = nodes.make(1)
    nodes.start(node, "done-0.1", "exit 5")
    assert nodes.ended(node, "done-0.1").exit_code == 5
    nodes.start(node, "train-0.1", ONCE)
    assert nodes.provider.readiness([node])["gpu-1"].reason is None
    nodes.machine(node).reboot()
    status = call(lambda: polled(nodes, node, "train-0.1"))
    assert (status.state, status.cause) == (RankState.LOST, "the machine restarted while it ran")
    assert polled(nodes, node, "done-0.1").exit_code == 5
    assert nodes.start(node, "train-0.1", ONCE).state is RankState.LOST
    assert nodes.start(node, "train-0.2", ONCE).state is RankState.RUNNING


def polled(nodes: Nodes, node, attempt: str):
    status = nodes.poll(node, attempt)
    assert status
    return status


def test_a_reboot_is_seen_at_the_next_look(nodes):
    """Once: it does not keep the host from work, for all else was looked at, too."""
    node = nodes.make(1)
    assert nodes.provider.readiness([node])["gpu-1"].reason is None
    nodes.machine(node).reboot()
    seen = []

    def look():  # first over a connection that is dead by now; a loaded machine is not up at once
        seen.append(nodes.provider.readiness([node])["gpu-1"])
        return seen[-1].state is not NodeState.UNREACHABLE

    until(look)
    assert (seen[-1].state, seen[-1].reason) == (NodeState.READY, "it was rebooted since the last look")
    assert nodes.provider.readiness([node])["gpu-1"].reason is None


@pytest.mark.slow
def test_a_host_that_is_off_is_unreachable(machines, tmp_path, monkeypatch):
    quick(monkeypatch)
    nodes = Nodes(machines, tmp_path)
    node = nodes.make(1)
    nodes.machine(node).off()
    try:
        seen = nodes.provider.readiness([node])["gpu-1"]
        assert seen.state is NodeState.UNREACHABLE
        assert seen.reason
        with pytest.raises(TransientError, match=nodes.machine(node).address):
            nodes.provider.inventory()
        with pytest.raises(TransientError):
            nodes.start(node, "train-0.1", "true")
    finally:
        nodes.machine(node).on()


def test_a_full_disk_refuses_starts_and_keeps_exit_codes(nodes):
    node = nodes.make(2)
    machine = nodes.machine(node)
    nodes.start(node, "train-0.1", "until [ -e /tmp/go ]; do sleep 0.05; done; echo lost; exit 6")
    machine.sh(f"{{ {FILL}; }} 2>/dev/null")
    with pytest.raises(PermanentError) as caught:
        nodes.start(node, "train-1.1", "true")
    assert caught.value.kind is PermanentKind.NO_CAPACITY
    assert nodes.poll(node, "train-1.1") is None
    seen = nodes.provider.readiness([node])["gpu-2"]
    assert (seen.state, "full" in (seen.reason or "")) == (NodeState.NOT_READY, True)
    machine.sh("touch /tmp/go")
    assert nodes.ended(node, "train-0.1").exit_code == 6
    machine.sh("rm -f /var/tmp/fill* /tmp/go")
    nodes.start(node, "train-1.1", "true")
    assert nodes.ended(node, "train-1.1").state is RankState.SUCCEEDED


def test_a_full_disk_takes_no_node(nodes):
    """And half of the runner is never left there."""
    nodes.machines[2].sh(f"{{ {FILL}; }} 2>/dev/null")
    with pytest.raises(PermanentError, match="is full"):
        nodes.make(2)
    host = transport(nodes.machines, 2)
    with pytest.raises(RunnerError) as caught:
        scripts.enter(host, "/var/tmp/fleetform-new")
    assert caught.value.code == "nospace"
    assert "runner" not in nodes.machines[2].sh("ls -A /var/tmp/fleetform-new/bin || true")
    nodes.machines[2].sh("rm /var/tmp/fill*")
    nodes.make(2)


def test_a_state_folder_that_was_wiped_is_found_out(nodes):
    """The call that meets it may be tried again, and then says that the node is gone."""
    node = nodes.make()
    nodes.machines[0].sh("rm -rf /var/lib/fleetform/node")
    with pytest.raises(TransientError):
        nodes.poll(node, "train-0.1")
    with pytest.raises(PermanentError) as caught:
        nodes.poll(node, "train-0.1")
    assert caught.value.kind is PermanentKind.NOT_FOUND
    seen = nodes.provider.readiness([node])["gpu-0"]
    assert seen.state is NodeState.NOT_READY
    assert "claim" in (seen.reason or "")


# -------------------------------------------------------------------------------------------- the rest


def test_many_ranks_are_polled_in_one_round_trip(nodes, monkeypatch):
    node = nodes.make()
    for i in range(5):
        nodes.start(node, f"train-{i}.1", f"exit {i}")
    for i in range(5):
        nodes.ended(node, f"train-{i}.1")
    asked = []
    run = SshTransport.run

    def counted(self, *args, **kwargs):
        asked.append(args)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(SshTransport, "run", counted)
    found = nodes.provider.poll(node, [f"train-{i}.1" for i in range(5)])
    assert [status.exit_code for status in found.values() if status] == [0, 1, 2, 3, 4]
    assert len(asked) == 1


def test_chatter_of_the_login_is_ignored(nodes):
    nodes.machines[0].sh("echo 'echo WELCOME; printf \"no newline\"; echo also >&2' >/root/.bashrc")
    node = nodes.make()
    nodes.start(node, "train-0.1", "echo hello")
    assert nodes.ended(node, "train-0.1").state is RankState.SUCCEEDED
    assert nodes.log(node, "train-0.1") == "hello\n"
    assert nodes.provider.readiness([node])["gpu-0"].state is NodeState.READY


@pytest.mark.slow
def test_clocks_may_differ(nodes):
    """By hours: it is mentioned, times are the host's, limits hold."""
    script = '#!/bin/sh\nexec /usr/bin/date -d "-3 hours" "$@"'
    nodes.machines[0].install("date", script)
    node = nodes.make()
    seen = judged(nodes.provider.readiness([node])["gpu-0"])
    assert seen.state is NodeState.READY
    assert re.match(r"degraded: its clock is 10\d\d\d s behind \(clock-off\)", seen.reason or "")
    nodes.start(node, "train-0.1", "sleep 60", max_seconds=1, stop_seconds=1)
    assert nodes.ended(node, "train-0.1").cause == "max_duration reached"


def test_old_attempts_are_tidied_away(nodes):
    """Of the ranks named those before the one to keep; what runs stays."""
    node = nodes.make()
    for attempt in ("old-0.1", "kept-0.1"):
        nodes.start(node, attempt, "touch file; chmod 500 .", hostfile="h\n")
        nodes.ended(node, attempt)
    nodes.start(node, "runs-0.1", ONCE)
    nodes.provider.tidy(node, {"old-0": 2, "kept-0": 1, "runs-0": 9})
    found = nodes.provider.poll(node, ["old-0.1", "kept-0.1", "runs-0.1"])
    assert {name for name, status in found.items() if status} == {"kept-0.1", "runs-0.1"}
    left = nodes.machines[0].sh("cd /var/lib/fleetform/node/*/ && ls work hosts").split()
    assert left == ["hosts:", "kept-0.1", "work:", "kept-0.1", "runs-0.1"]


def test_a_node_that_was_given_back_starts_nothing(nodes):
    """With a running rank it is not given back, and then all of it is gone."""
    node = nodes.make()
    nodes.start(node, "train-0.1", ONCE)
    with pytest.raises(PermanentError, match=r"train-0\.1") as caught:
        nodes.provider.delete(node)
    assert caught.value.kind is PermanentKind.CONFLICT
    nodes.provider.stop(node, "train-0.1", 0)
    nodes.provider.delete(node)
    with pytest.raises(PermanentError) as caught:
        nodes.start(node, "train-0.2", ONCE)
    assert caught.value.kind is PermanentKind.NOT_FOUND
    with pytest.raises(PermanentError):
        nodes.poll(node, "train-0.1")
    assert nodes.machines[0].sh("ls /var/lib/fleetform/node") == "bin\n"


@pytest.mark.slow
def test_sixteen_hosts_at_once(allowed, tmp_path):
    """Looked at, taken, started, polled and stopped side by side."""
    machines = Machines(16, "48m")
    try:
        machines.up()
        nodes = Nodes(machines, tmp_path, connect_timeout=60)
        looks = nodes.provider.look(nodes.hosts)
        assert [look.readiness.state for look in looks.values()] == [NodeState.READY] * 16
        with ThreadPoolExecutor(16) as pool:
            made = list(pool.map(nodes.make, range(16)))
            list(pool.map(lambda n: nodes.start(n, "train-0.1", ONCE), made))
            polls = list(pool.map(lambda n: nodes.poll(n, "train-0.1"), made))
            assert [status and status.state for status in polls] == [RankState.RUNNING] * 16
            until(lambda: all(m.sh("cat /var/tmp/ran || true") for m in machines))
            stops = list(pool.map(lambda n: nodes.provider.stop(n, "train-0.1", 5), made))
        assert [status and status.state for status in stops] == [RankState.STOPPED] * 16
        assert [m.sh("cat /var/tmp/ran") for m in machines] == ["x\n"] * 16
        assert len(nodes.provider.inventory()) == 16
    finally:
        machines.down()


def test_an_attempt_of_a_hostile_name_is_refused(nodes):
    node = nodes.make()
    for name in ("../x", "a b", "-x", "a\nb", "x" * 300):
        with pytest.raises(PermanentError):
            nodes.provider.start(node, launch(name, "true"))
