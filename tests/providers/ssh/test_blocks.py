"""Blocks on hosts: enforced as far as the host can, and reported where it cannot."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from declarative.model.status import RankState
from declarative.provider import PermanentError, PermanentKind
from tests.providers.ssh.machines import Machine, Machines
from tests.providers.ssh.nodes import Nodes
from tests.providers.ssh.rack import wipe

CPUS = "sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status"

MOUNT = """
mount -t tmpfs groups /sys/fs/cgroup
if mount -t cgroup2 groups /sys/fs/cgroup; then
  [ -e /sys/fs/cgroup/cgroup.controllers ]
  case $(cat /sys/fs/cgroup/cgroup.controllers) in *cpuset*memory*) exit 0 ;; esac
  umount /sys/fs/cgroup
fi
for part in cpuset memory; do
  mkdir /sys/fs/cgroup/$part
  mount -t cgroup -o $part groups /sys/fs/cgroup/$part
done
"""


@pytest.fixture
def nodes(machines: Machines, tmp_path) -> Iterator[Nodes]:
    yield Nodes(machines, tmp_path)
    wipe(machines)


@pytest.fixture
def grouped(machines: Machines) -> Iterator[Machine]:
    """A host that has control groups; those of the machine around it, which they go away from again."""
    machine = machines[0]
    try:
        machine.sh(f"({MOUNT}) >/dev/null 2>&1")
    except AssertionError:
        machine.sh("umount -R -l /sys/fs/cgroup 2>/dev/null || :")
        pytest.skip("no control groups can be mounted here")
    yield machine
    machine.sh("umount -R -l /sys/fs/cgroup")


def test_a_host_without_groups_says_so(nodes):
    """Ranks are bound to their CPUs all the same; those that ask for more are refused, and nothing ran."""
    node = nodes.make()
    can = nodes.provider.readiness([node])["gpu-0"].can
    assert can is not None
    assert "hard" not in can
    assert nodes.start(node, "train-0.1", CPUS, cpus=(0,)).confinement == "soft: affinity"
    assert nodes.ended(node, "train-0.1").state is RankState.SUCCEEDED
    with pytest.raises(PermanentError, match="isolation: hard") as caught:
        nodes.start(node, "train-1.1", "echo ran", hard=True)
    assert caught.value.kind is PermanentKind.INVALID
    assert nodes.poll(node, "train-1.1") is None
    assert nodes.log(node, "train-1.1") == ""


def test_the_kernel_holds_ranks_to_their_blocks(nodes, grouped):
    node = nodes.make()
    look = nodes.provider.look({"gpu-0": node.inputs["host"]})["gpu-0"]
    assert look.readiness.can is not None
    assert "hard" in look.readiness.can
    assert nodes.provider.readiness([node])["gpu-0"].can == look.readiness.can
    for cpu in (0, 1):
        begun = nodes.start(
            node,
            f"train-{cpu}.1",
            "taskset -c -p 0-63 $$ >/dev/null || true",
            CPUS,
            "head -c 400M /dev/zero | tail -n 1 >/dev/null",
            cpus=(cpu,),
            memory_mib=64,
            hard=True,
        )
        assert begun.confinement is not None
        assert begun.confinement.startswith("hard: cgroup-v")
    seen = []
    for cpu in (0, 1):
        ended = nodes.ended(node, f"train-{cpu}.1")
        assert (ended.state, ended.exit_code) == (RankState.FAILED, 137)
        assert ended.cause == "killed: out of memory (limit 64MB)"
        seen.append(nodes.log(node, f"train-{cpu}.1").splitlines()[0])
    assert all(text.isdecimal() for text in seen)
    assert len(set(seen)) == min(2, len(os.sched_getaffinity(0)))
