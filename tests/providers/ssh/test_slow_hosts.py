"""A slow host is reported and delays nobody. And hosts get few requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from asyncssh import SSHClientProcess

from declarative.model.status import NodeState, RankState
from providers.ssh.transport import SshTransport, background
from tests.providers.ssh.nodes import Nodes
from tests.providers.ssh.rack import Rack, wipe
from tests.support.cli import task


@pytest.fixture
def rack(machines, tmp_path) -> Iterator[Rack]:
    yield Rack(tmp_path, machines)
    for machine in machines:
        machine.sh("rm -f /etc/ssh/sshrc")
    wipe(machines)


def test_all_that_a_host_knows_comes_in_one_round_trip(machines, tmp_path, monkeypatch):
    """Also over a new connection, and what is asked next needs no second one."""
    nodes = Nodes(machines, tmp_path)
    node = nodes.make()
    nodes.start(node, "train-0.1", "exec sleep 1000")
    background.close()
    commands: list[object] = []
    run = SshTransport.run

    def counted(self, argv, *more):
        commands.append(argv)
        return run(self, argv, *more)

    pieces: list[int] = []
    take = SSHClientProcess.data_received

    def taken(self, data, datatype):
        pieces.append(len(data))
        take(self, data, datatype)

    monkeypatch.setattr(SshTransport, "run", counted)
    monkeypatch.setattr(SSHClientProcess, "data_received", taken)
    visit = nodes.provider.visit(node)
    assert len(commands) == 1
    assert len(pieces) <= 3  # not one for each line
    assert visit.readiness.state is NodeState.READY
    assert visit.readiness.can == nodes.provider.readiness([node])["gpu-0"].can
    assert visit.things == nodes.provider.inventory()
    assert visit.attempts is not None
    assert {name: status.state for name, status in visit.attempts.items()} == {"train-0.1": RankState.RUNNING}
    commands.clear()
    nodes.poll(node, "train-0.1")
    assert len(commands) == 1
    nodes.provider.stop(node, "train-0.1", 1)
    nodes.provider.delete(node)


@pytest.mark.slow
def test_one_slow_host_is_marked_and_nobody_waits_for_it(rack, machines):
    """It has not answered yet: that is not `unreachable`, and nothing of it is taken away."""
    rack.bring(rack.rack(), task("train", "exec sleep 1000", nodes=3))
    machines[1].sh("echo 'sleep 60' >/etc/ssh/sshrc")
    status = rack.status()
    seen = {n["instance_type"]: n for n in status["nodes"]}
    slow = seen.pop(machines[1].address)
    assert slow["state"] == "unknown"
    assert "unknown: it has not answered yet" in rack.run("status").out
    assert {n["state"] for n in seen.values()} == {"ready"}
    assert {r["state"] for r in rack.ranks("train").values()} == {"running"}
    machines[1].sh("rm /etc/ssh/sshrc")
    rack.run("stop", "train")
