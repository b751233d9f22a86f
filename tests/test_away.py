"""A loop with a backend that is down: it is left alone, hides nothing, and holds nothing else up."""

from __future__ import annotations

import signal
import threading

import pytest

from declarative.apply import away
from declarative.apply.away import DELAYS, Away
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from declarative.spans import hear
from tests.cli import fleet, until
from tests.cloud_ec2.run import SECRETS, RunningEc2
from tests.rounds import Clock, Here
from tests.test_ec2_apply import backend


class Cluster:
    """A backend that may be down."""

    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = TransientError(TransientKind.NOT_SENT, "refused")

    def ask(self) -> str:
        self.calls += 1
        if self.error:
            raise self.error
        return "all"


def test_it_is_asked_again_later_and_later_and_beside_the_rounds():
    clock, cluster = Clock(1000.0), Cluster()
    found = Away(clock)
    with pytest.raises(TransientError):
        found.read("hpc", cluster.ask, cluster.ask)
    since = clock.at
    for number, delay in enumerate((*DELAYS, DELAYS[-1]), 1):
        (absence,) = found.list()
        assert (absence.since, absence.again, absence.why) == (since, clock.at + delay, "refused")
        cluster.error = TransientError(TransientKind.NOT_SENT, f"refused for the {number}th time")
        clock.at = absence.again - 1
        found.ask_again()
        with pytest.raises(PermanentError, match=r"^refused$"):
            found.check("hpc")
        assert cluster.calls == number
        clock.at += 1
        found.ask_again()
        until(lambda: found.list()[0].again > clock.at)
    cluster.error = None
    clock.at += DELAYS[-1]
    assert not found.returned()
    found.ask_again()
    until(found.returned)
    assert not found.returned(), "it is told once"
    assert found.list() == ()
    found.check("hpc")
    assert found.read("hpc", cluster.ask, cluster.ask) == "all"


def test_what_it_refuses_at_once_is_asked_in_each_round():
    cluster = Cluster()
    cluster.error = PermanentError(PermanentKind.AUTH, "wrong key")
    found = Away(Clock())
    for _ in range(2):
        with pytest.raises(PermanentError):
            found.read("hpc", cluster.ask, cluster.ask)
    assert (found.list(), cluster.calls) == ((), 2)


def test_one_that_hangs_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(away, "AT_FIRST", 0.05)
    go, found = threading.Event(), Away(Clock())
    with pytest.raises(PermanentError, match="has not answered"):
        found.read("hpc", go.wait, go.wait)
    found.ask_again()
    with pytest.raises(PermanentError, match="has not answered"):
        found.check("hpc")
    go.set()
    until(found.returned)
    assert found.list() == ()


@pytest.mark.slow
def test_others_go_on_while_a_cloud_hangs(project, monkeypatch):
    """What it has is neither deleted nor made anew; when it is back, nothing has to be done."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(away, "AT_LEAST", 0.2)
    rules = {"type": "project", "name": "lab", "reconcile": {"allow": ["create", "delete", "replace-lost"]}}
    sky = fleet("sky", backends=["aws"], nodes=1, resources={"cpu": 2})
    asked: list[str] = []
    with RunningEc2() as ec2:
        documents = [rules, backend(ec2.port), sky]
        project.declare(*documents, fleet("gpu", backends=["local"], nodes=1))
        here = Here(project.path, Clock())
        end = hear(lambda op, about, *_: asked.append(op) if about.get("backend") == "aws" else None)
        try:
            here.step()
            before = {n.name: n.state for n in here.seen(30).nodes}
            assert before.keys() == {"gpu-0", "sky-0"}
            ec2.process.send_signal(signal.SIGSTOP)
            for number in (2, 3, 4):
                asked.clear()
                project.declare(*documents, fleet("gpu", backends=["local"], nodes=number))
                done = here.step(1)
                assert {r.id for r in done.results} == {f"create:node/gpu-{number - 1}"}
                assert done.status
                states = {n.name: n.state for n in done.status.nodes}
                assert states.keys() == {"sky-0", *(f"gpu-{i}" for i in range(number))}
                assert states["sky-0"] == "unknown"
                (wait,) = done.waits
                assert (wait.address, wait.action) == ("backend/aws", "read")
                assert asked == [] or number == 2
            short = fleet("more", backends=["aws"], nodes=1, resources={"cpu": 2})
            project.declare(*documents, short, fleet("gpu", backends=["local"], nodes=5))
            done = here.step(1)
            assert {r.id for r in done.results} == {"create:node/gpu-4"}
            assert [w.address for w in done.waits] == ["fleet/more", "backend/aws"]
            project.declare(*documents, fleet("gpu", backends=["local"], nodes=5))
            here.step(1)
            assert not here.rounds.early()
            ec2.process.send_signal(signal.SIGCONT)
            until(here.rounds.early)
            done = here.step()
            assert (done.results, done.waits) == ((), ())
            assert done.status
            assert {n.name: n.state for n in done.status.nodes}["sky-0"] == before["sky-0"]
        finally:
            end()
            here.close()
