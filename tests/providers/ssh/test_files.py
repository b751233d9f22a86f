"""A task's files on hosts: sent once, whole or not at all, and cleared away."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from declarative.model.status import RankState
from declarative.provider import PermanentError, PermanentKind
from providers.testing import Packed
from tests.providers.ssh.machines import Machines
from tests.providers.ssh.nodes import Nodes
from tests.providers.ssh.rack import SSH, Rack, wipe
from tests.providers.ssh.test_ranks import FILL
from tests.support.cli import task

ARCHIVES = "ls -A /var/lib/fleetform/node/*/files | grep -v use || true"


@pytest.fixture
def nodes(machines, tmp_path) -> Iterator[Nodes]:
    yield Nodes(machines, tmp_path)
    wipe(machines)


@pytest.fixture
def project(machines: Machines, tmp_path) -> Iterator[Rack]:
    made = Rack(tmp_path, machines)
    yield made
    made.run("destroy", "--auto-approve", code=None)
    wipe(machines)


@pytest.mark.slow
def test_ranks_of_one_host_share_what_is_sent(nodes):
    node, files = nodes.make(), Packed({"train.py": "x" * 3_000_000})
    with ThreadPoolExecutor(4) as pool:
        names = [f"train-{i}.1" for i in range(4)]
        list(pool.map(lambda name: nodes.start(node, name, "wc -c <train.py", files=files), names))
    assert [nodes.ended(node, name).state for name in names] == [RankState.SUCCEEDED] * 4
    assert [nodes.log(node, name) for name in names] == ["3000000\n"] * 4
    assert files.opened == 1


@pytest.mark.slow
def test_what_nobody_uses_any_more_is_removed(nodes):
    """When others come, after all attempts with it have ended; and with the attempts."""
    node, machine = nodes.make(), nodes.machines[0]
    first, second, third = (Packed({"x": text}) for text in "123")
    nodes.start(node, "train-0.1", "exec sleep 1000", files=first)
    nodes.start(node, "train-1.1", "true", files=second)
    nodes.ended(node, "train-1.1")
    # It ended, but its next attempt may want them.
    nodes.start(node, "train-1.2", "cat x", files=second)
    nodes.ended(node, "train-1.2")
    assert second.opened == 1
    assert set(machine.sh(ARCHIVES).split()) == {f"{first.digest}.tar", f"{second.digest}.tar"}
    nodes.start(node, "train-2.1", "true", files=third)
    nodes.ended(node, "train-2.1")
    assert set(machine.sh(ARCHIVES).split()) == {f"{first.digest}.tar", f"{third.digest}.tar"}
    nodes.provider.stop(node, "train-0.1", 0)
    nodes.provider.tidy(node, {"train-0": 2, "train-1": 3})
    assert machine.sh(ARCHIVES).split() == [f"{third.digest}.tar"]
    nodes.provider.tidy(node, {"train-2": 2})
    assert machine.sh(ARCHIVES) == ""


def test_what_a_host_lost_is_sent_again(nodes):
    """Also what is no more what it was: it is not trusted by its name alone."""
    node, machine = nodes.make(), nodes.machines[0]
    files = Packed({"x": "a"})
    nodes.start(node, "train-0.1", "true", files=files)
    machine.sh("rm /var/lib/fleetform/node/*/files/*.tar")
    nodes.start(node, "train-0.2", "cat x", files=files)
    nodes.ended(node, "train-0.2")
    assert (nodes.log(node, "train-0.2"), files.opened) == ("a", 2)


def test_what_is_cleared_away_meanwhile_is_sent_again(nodes):
    """Others send theirs at the same time: this one's may go between the look and the link."""
    node, machine = nodes.make(), nodes.machines[0]
    files = Packed({"x": "a"})
    nodes.start(node, "train-0.1", "true", files=files)
    nodes.ended(node, "train-0.1")
    real = machine.sh("command -v ln").strip()
    clear = "[ -e /var/tmp/ran ] || { touch /var/tmp/ran; rm /var/lib/fleetform/node/*/files/*.tar; }"
    machine.install("ln", f'#!/bin/sh\n{clear}\nexec {real} "$@"')
    nodes.start(node, "train-1.1", "cat x", files=files)
    nodes.ended(node, "train-1.1")
    assert (nodes.log(node, "train-1.1"), files.opened) == ("a", 2)


def test_a_full_disk_is_said_and_nothing_half_stays(nodes):
    node, machine = nodes.make(), nodes.machines[0]
    small, large = Packed({"x": "a" * 1_000_000}), Packed({"x": "b" * 4_000_000})
    nodes.start(node, "train-0.1", "exec sleep 1000", files=small)
    before = machine.sh("find /var/lib/fleetform/node/*/files /var/lib/fleetform/node/*/work | sort")
    machine.sh("dd if=/dev/zero of=/var/tmp/spare bs=64k count=32 2>/dev/null")
    machine.sh(FILL)
    machine.sh("rm /var/tmp/spare")  # two of the three that are needed, first for the archive…
    with pytest.raises(PermanentError, match=r"the runner refused: .*/files") as info:
        nodes.start(node, "train-1.1", "true", files=large)
    assert info.value.kind is PermanentKind.NO_CAPACITY
    machine.sh("dd if=/dev/zero of=/var/tmp/fill3 bs=64k 2>/dev/null || true")
    with pytest.raises(PermanentError, match=r"the runner refused: .*/work") as info:  # …then for its content
        nodes.start(node, "train-1.1", "true", files=small)
    assert info.value.kind is PermanentKind.NO_CAPACITY
    machine.sh("rm /var/tmp/fill*")
    after = machine.sh("find /var/lib/fleetform/node/*/files /var/lib/fleetform/node/*/work | sort").split()
    assert [path for path in after if "use/train-1.1" not in path] == before.split()
    nodes.start(node, "train-1.1", "wc -c <x", files=large)
    nodes.ended(node, "train-1.1")
    assert nodes.log(node, "train-1.1") == "4000000\n"


def test_a_host_without_tar_says_so(nodes):
    node, machine = nodes.make(), nodes.machines[0]
    path = machine.sh("command -v tar").strip()
    machine.sh(f"mount --bind /dev/null {path}")
    try:
        with pytest.raises(PermanentError, match="tar is needed"):
            nodes.start(node, "train-0.1", "true", files=Packed({"x": "a"}))
    finally:
        machine.sh(f"umount {path}")


@pytest.mark.slow
def test_files_of_the_project_reach_every_host(project):
    """Two ranks on one host and one on another; a run that is asked for gets what is there by then."""
    project.write("code/train.py", "print('first')\n")
    project.write("code/big.log", "ignored")
    project.write(".gitignore", "*.log\n")
    job = task("train", "ls -R; cat lib/train.py", nodes=3, exclusive=False, files=["code:lib"])
    hosts = [project.host(i) for i in range(2)]
    project.declare(SSH, project.rack(*hosts), job)
    project.apply("--wait")
    wanted = ".:\nlib\n\n./lib:\ntrain.py\nprint('first')\n"
    assert [project.logs("train", "--rank", str(rank)) for rank in (0, 2)] == [wanted] * 2
    project.write("code/train.py", "print('second')\n")
    project.apply("--wait", "--replace", "task/train")
    assert "second" in project.logs("train", "--rank", "2")
