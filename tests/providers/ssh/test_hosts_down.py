"""A loop with hosts that are down: it leaves them alone, asks again in the background, and waits for none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from declarative.spans import on_span_end
from providers.ssh.transport import background
from tests.providers.ssh.rack import SSH, Rack, wipe
from tests.support.cli import until
from tests.support.rounds import Clock, Here

pytestmark = pytest.mark.slow


@pytest.fixture
def rack(machines, tmp_path) -> Iterator[Rack]:
    yield Rack(tmp_path, machines)
    for machine in machines:
        machine.plug()
    wipe(machines)


def test_hosts_that_are_cut_off_are_asked_once_and_then_beside_the_rounds(rack, machines):
    """One is a node, the other not yet. Both come back by themselves."""
    rack.declare(SSH, rack.rack(rack.host(0), rack.host(1)))
    clock, asked = Clock(), list[str]()
    here = Here(rack.path, clock)
    end = on_span_end(
        lambda name, *_: asked.append(name) if name in ("backend.visit", "backend.look") else None
    )
    try:
        here.step()
        assert [n.state for n in here.seen(1).nodes] == ["ready"] * 2
        machines[1].cut()
        machines[2].cut()
        background.close()
        rack.declare(SSH, rack.rack())
        asked.clear()
        assert [n.state for n in here.seen(1).nodes] == ["ready", "unreachable"]
        assert sorted(asked) == ["backend.look", "backend.visit", "backend.visit"]
        asked.clear()
        done = here.step(1)
        assert done.status
        assert [n.state for n in done.status.nodes] == ["ready", "unreachable"]
        assert (asked, done.waits) == (["backend.visit"], ())
        machines[1].plug()
        machines[2].plug()
        until(machines[1].answers)
        until(machines[2].answers)
        assert not here.rounds.early()
        clock.at += 30
        until(lambda: here.rounds.early() and not here.rounds.outages.list())
        here.step()
        assert [n.state for n in here.seen().nodes] == ["ready"] * 3
    finally:
        end()
        here.close()
