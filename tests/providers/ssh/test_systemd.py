"""Ranks on a host booted by systemd, with its own logins and control groups.

It needs a virtual machine: see CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from declarative.model.state import Record
from declarative.model.status import RankState
from providers.ssh.transport import background
from tests.providers.ssh.machines import until
from tests.providers.ssh.nodes import Nodes
from tests.providers.ssh.vm import VirtualMachine, impediment

pytestmark = pytest.mark.slow

WIDENS = "taskset -c -p 0-63 $$ >/dev/null || true; sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status"
EATS = "head -c 400M /dev/zero | tail -n 1 >/dev/null"
SCOPES = "find /sys/fs/cgroup -type d -name 'fleetform*'"
DELEGATE = """
mkdir -p /run/systemd/system/user@.service.d
printf '[Service]\\nDelegate=cpuset cpu memory pids\\n' >/run/systemd/system/user@.service.d/delegate.conf
systemctl daemon-reload
systemctl restart user@1500.service
"""


@pytest.fixture(scope="module")
def vm(tmp_path_factory) -> Iterator[VirtualMachine]:
    if reason := impediment():
        pytest.skip(reason)
    machine = VirtualMachine(tmp_path_factory.mktemp("vm") / "console")
    machine.up()
    yield machine
    background.close()
    machine.down()


@pytest.fixture
def nodes(vm, tmp_path) -> Iterator[Nodes]:
    yield Nodes(vm, tmp_path, connect_timeout=60)
    until(lambda: not vm.sh(SCOPES))
    vm.sh("rm -rf /var/lib/fleetform/node/[!b]*")


@pytest.fixture(scope="module")
def delegated(vm) -> None:
    """An administrator has given users the CPUs, too; for good, so the tests of it come last."""
    vm.sh(DELEGATE)


def can(nodes: Nodes, node: Record) -> frozenset[str]:
    found = nodes.provider.readiness([node])["gpu-0"].can
    assert found is not None
    return found


def held(nodes: Nodes, node: Record, attempt: str, **options) -> str:
    """Which CPUs a rank was left that wanted all of them; it must have ended for want of memory."""
    begun = nodes.start(node, attempt, WIDENS, EATS, cpus=(1,), memory_mib=64, **options)
    assert begun.confinement is not None
    ended = nodes.ended(node, attempt)
    assert (ended.state, ended.exit_code) == (RankState.FAILED, 137)
    assert ended.cause == "killed: out of memory (limit 64MB)"
    return nodes.log(node, attempt).splitlines()[0]


@pytest.mark.parametrize("user", ["root", "worker"])
def test_ranks_outlive_the_login(user, vm, nodes):
    """Even if systemd ends what a login leaves behind. When stopped, all of it ends."""
    node = nodes.make(user=user)
    hides = "env -i setsid -f sleep 1000"
    nodes.start(node, "train-0.1", f"{hides}; echo up; sleep 1000", cpus=(1,), memory_mib=64)
    until(lambda: nodes.log(node, "train-0.1") == "up\n")
    background.close()
    until(
        lambda: (
            "closing" not in vm.sh("loginctl list-sessions --no-legend; loginctl show-user worker -p State")
        )
    )
    assert vm.sh("pgrep -cx sleep") == "2\n"
    polled = nodes.poll(node, "train-0.1")
    assert polled is not None
    assert polled.state is RankState.RUNNING
    stopped = nodes.provider.stop(node, "train-0.1", 0)
    assert stopped is not None
    assert stopped.state is RankState.STOPPED
    assert vm.sh("pgrep -cx sleep || :") == "0\n"


def test_users_have_memory_without_being_given_more(vm, nodes):
    """What systemd delegates to everybody has no CPUs in it."""
    node = nodes.make(user="worker")
    assert "hard" not in can(nodes, node)
    held(nodes, node, "train-0.1")
    assert nodes.poll(node, "train-0.1").confinement == "soft: systemd-run+affinity"


def test_who_does_not_linger_is_told(vm, nodes):
    """His own systemd ends with his last login, so his ranks are not put there."""
    node = nodes.make(user="visitor")
    found = nodes.provider.readiness([node])["gpu-0"]
    assert found.reason == "systemd ends its ranks with the last login (`loginctl enable-linger visitor`)"
    assert nodes.start(node, "train-0.1", "exit 7", cpus=(1,)).confinement == "soft: affinity"
    assert nodes.ended(node, "train-0.1").exit_code == 7
    assert nodes.provider.readiness([nodes.make(user="root")])["gpu-0"].reason is None


@pytest.mark.parametrize("user", ["root", "worker"])
def test_ranks_have_scopes_of_their_own(user, vm, delegated, nodes):
    """What they are held to is held, and nothing of it stays."""
    node = nodes.make(user=user)
    assert "hard" in can(nodes, node)
    assert held(nodes, node, "train-0.1", hard=True) == "1"
    begun = nodes.start(node, "train-1.1", "read -r line </proc/self/cgroup; echo $line; exit 7", cpus=(0,))
    assert begun.confinement == "hard: systemd-run"
    assert nodes.ended(node, "train-1.1").exit_code == 7
    where = "system.slice" if user == "root" else "user.slice/user-1500.slice/user@1500.service/app.slice"
    assert nodes.log(node, "train-1.1").startswith(f"0::/{where}/fleetform.train-1.1.")


@pytest.mark.parametrize("user", ["root", "worker"])
def test_limits_stay_whatever_systemd_does(user, vm, delegated, nodes):
    """It takes controllers away from groups that it does not know to need them."""
    node = nodes.make(user=user)
    begun = nodes.start(node, "train-0.1", "until [ -e /tmp/go ]; do sleep 0.1; done", WIDENS, cpus=(1,))
    assert begun.confinement == "hard: systemd-run"
    vm.sh(
        "systemctl daemon-reload; systemd-run --wait --quiet -p MemoryMax=64M true; systemctl daemon-reexec"
    )
    vm.sh("XDG_RUNTIME_DIR=/run/user/1500 systemctl --user daemon-reload", "worker")
    vm.sh("touch /tmp/go")
    assert nodes.ended(node, "train-0.1").exit_code == 0
    assert nodes.log(node, "train-0.1") == "1\n"
    vm.sh("rm /tmp/go")
