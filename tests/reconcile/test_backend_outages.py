"""A loop with a backend that is down: it leaves the backend alone, hides nothing, and delays nothing else."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import pytest
from click.testing import CliRunner

from declarative.apply import outages, parallel
from declarative.apply.backend_client import BackendClient
from declarative.apply.backend_look import look
from declarative.apply.backends import Backends
from declarative.apply.outages import DELAYS, OFFERS, Outages
from declarative.cli import cli, options, output
from declarative.model.spec import Backend
from declarative.model.spec.values import Name
from declarative.model.state import State
from declarative.model.status import NodeState, Readiness
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from declarative.render.output_json import iso
from declarative.spans import on_span_end
from tests.providers.ec2.run import SECRETS, RunningEc2
from tests.providers.ec2.test_apply import backend
from tests.support.cli import fleet, until
from tests.support.rounds import Clock, Here


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


def impatient_with(monkeypatch, hangs) -> None:
    """Wait in vain only for what hangs: all others answer, however loaded the machine is."""
    monkeypatch.setattr(Outages, "patience", lambda _, key: 0.2 if hangs(key) else 60.0)


def test_it_is_asked_again_later_and_later_and_beside_the_rounds():
    clock, cluster = Clock(1000.0), Cluster()
    found = Outages(clock)
    with pytest.raises(TransientError):
        found.read("hpc", cluster.ask, cluster.ask)
    since = clock.at
    for number, delay in enumerate((*DELAYS, DELAYS[-1]), 1):
        (outage,) = found.list()
        assert (outage.since, outage.until, outage.why) == (since, clock.at + delay, "refused")
        cluster.error = TransientError(TransientKind.NOT_SENT, f"refused for the {number}th time")
        clock.at = outage.until - 1
        found.ask_again()
        with pytest.raises(PermanentError, match=r"^refused$"):
            found.check("hpc")
        assert cluster.calls == number
        clock.at += 1
        found.ask_again()
        until(lambda: found.list()[0].until > clock.at)
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
    found = Outages(Clock())
    for _ in range(2):
        with pytest.raises(PermanentError):
            found.read("hpc", cluster.ask, cluster.ask)
    assert (found.list(), cluster.calls) == ((), 2)


def test_one_that_hangs_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(outages, "AT_FIRST", 0.05)
    go, found = threading.Event(), Outages(Clock())
    with pytest.raises(PermanentError, match="has not answered"):
        found.read("hpc", go.wait, go.wait)
    found.ask_again()
    with pytest.raises(PermanentError, match="has not answered"):
        found.check("hpc")
    go.set()
    until(found.returned)
    assert found.list() == ()


def test_a_silent_host_is_as_it_was_when_it_was_asked_last():
    """Its backend is not away with it. Who does not look for it any more, forgets it."""
    clock = Clock(1000.0)
    found = Outages(clock)
    answer = Readiness(state=NodeState.UNREACHABLE, reason="timed out", observed_at=1000.0)
    asked: list[float] = []

    def read() -> Readiness:
        def ask() -> Readiness:
            asked.append(clock.at)
            return answer

        return found.read_host(("lab", "h1"), ask, lambda seen: seen, 20.0)

    assert read() == answer
    clock.at += 10
    assert read() == answer
    assert asked == [1000.0]
    assert not found.failed_twice("lab", "h1")
    found.check("lab")
    for at in (1015.0, 1035.0):  # never later than after 20 s
        clock.at = at
        found.ask_again()
        until(lambda: found.list()[0].until == clock.at + 20)
        assert asked[-1] == at
    assert found.failed_twice("lab", "h1")
    assert read().observed_at == 1035.0
    answer = Readiness(state=NodeState.READY, observed_at=1060.0)
    clock.at = 1060.0
    found.ask_again()
    until(found.returned)
    assert read() == answer
    answer = Readiness(state=NodeState.UNREACHABLE)
    read()
    found.forget_unused()
    assert len(found.list()) == 1
    found.forget_unused()
    assert found.list() == ()


def test_a_part_that_is_away_hides_nothing_of_its_backend():
    cluster = Cluster()
    found = Outages(Clock())
    with pytest.raises(TransientError):
        found.read("hpc", cluster.ask, cluster.ask, part=OFFERS)
    with pytest.raises(PermanentError, match=r"^refused$"):
        found.read("hpc", cluster.ask, cluster.ask, part=OFFERS)
    cluster.error = None
    assert found.read("hpc", cluster.ask, cluster.ask) == "all"
    assert cluster.calls == 2


def test_without_a_loop_all_are_asked_and_waited_for():
    cluster = Cluster()
    found = Outages()
    seen = Readiness(state=NodeState.UNREACHABLE)
    for _ in range(2):
        assert found.read_host(("lab", "h1"), lambda: cluster.calls, lambda _: seen, 1.0) == 0
    assert found.list() == ()


def test_backends_are_asked_side_by_side(tmp_path, monkeypatch):
    """Each answers once the others were asked, too; what they say comes in the order of their names."""
    names = [f"b{number}" for number in range(4)]
    together = threading.Barrier(len(names))

    def inventory(self):
        if self.backend in names:
            together.wait(20)
            raise PermanentError(PermanentKind.AUTH, f"{self.backend} does not know us")
        return ()

    monkeypatch.setattr(BackendClient, "inventory", inventory)
    declared = {name: Backend(name=Name(name), driver="local") for name in names}
    backends = Backends(declared, tmp_path, "lineage")
    seen = look(State(lineage="lineage"), backends, every=True, offers=False)
    said = [d.summary for d in seen.inventory.diagnostics]
    assert said == [f"backend {name} cannot be read: {name} does not know us" for name in names]


def test_a_user_is_told_which_backend_is_waited_for(project, monkeypatch):
    """On stderr: what is on stdout stays what scripts read."""
    told, say, offers = threading.Event(), output.say_late, BackendClient.offers

    def saying(names):
        say(names)
        told.set()

    def waiting(self):
        assert told.wait(20)
        return offers(self)

    monkeypatch.setattr(parallel, "LATE", 0.0)
    monkeypatch.setattr(options, "say_late", saying)
    monkeypatch.setattr(BackendClient, "offers", waiting)
    project.declare({"type": "backend", "name": "here", "driver": "local"}, fleet(nodes=1))
    done = CliRunner().invoke(cli, ["-C", str(project.path), "plan", "--json"])
    assert done.stderr.startswith("waiting for an answer of backend here")
    assert json.loads(done.stdout)["summary"]["create"] == 1


@pytest.mark.slow
def test_offers_that_do_not_come_are_not_waited_for(project, monkeypatch):
    """What their backend has is known all the same; they are asked for no more until they have come."""
    go, asked = threading.Event(), []
    offers = BackendClient.offers

    def hanging(self):
        if self.backend == "far":
            asked.append(self.backend)
            go.wait()
        return offers(self)

    rules = {"type": "project", "name": "lab", "reconcile": {"allow": ["create", "delete", "replace-lost"]}}
    far = {"type": "backend", "name": "far", "driver": "local"}
    documents = [rules, far, fleet("there", backends=["far"], nodes=1)]
    project.declare(*documents)
    here = Here(project.path, Clock())
    try:
        here.step()
        monkeypatch.setattr(BackendClient, "offers", hanging)
        impatient_with(monkeypatch, lambda key: key == ("far", OFFERS) and not go.is_set())
        for number in (1, 2):
            project.declare(*documents, fleet("gpu", backends=["local"], nodes=number))
            done = here.step(1)
            assert {r.id for r in done.results} == {f"create:node/gpu-{number - 1}"}
            assert [(w.address, w.action) for w in done.waits] == [("backend/far", "read")]
            assert done.status
            assert {n.name: n.state for n in done.status.nodes}["there-0"] == "ready"
        assert asked == ["far"]
        go.set()
        until(here.rounds.early)
        assert here.step(1).waits == ()
    finally:
        go.set()
        here.close()


@pytest.mark.slow
def test_a_cloud_that_takes_connections_and_says_nothing(project, monkeypatch):
    """Others are made as declared in the first round, and in each that follows."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    impatient_with(monkeypatch, lambda key: key[0] == "aws")
    sky = fleet("sky", backends=["aws"], nodes=1, resources={"cpu": 2})
    with socket.create_server(("127.0.0.1", 0)) as server:
        documents = [{"type": "project", "name": "lab"}, backend(server.getsockname()[1]), sky]
        here = Here(project.path, Clock())
        try:
            for number in (1, 2):
                project.declare(*documents, fleet("gpu", backends=["local"], nodes=number))
                done = here.step(1)
                assert {r.id for r in done.results} == {f"create:node/gpu-{number - 1}"}
                assert {w.address for w in done.waits} == {"fleet/sky", "backend/aws"}
            (outage,) = here.rounds.outages.list()

            def status(*args: str) -> Any:
                here.rounds.keep_lease()
                return project.run("status", "--offline", *args)

            (told,) = until(lambda: status("--json").json["left_alone"])
            assert told.pop("why") == outage.why
            times = {"since": iso(outage.since), "until": iso(outage.until)}
            assert told == {"backend": "aws", "part": None, **times}
            said = f"leaves backend/aws alone since {times['since']}, until {times['until']}: it has not"
            until(lambda: said in " ".join(status().out.split()))
        finally:
            here.close()
        assert project.run("status", "--offline", "--json").json["left_alone"] == [], "no loop leads"


@pytest.mark.slow
def test_others_go_on_while_a_cloud_hangs(project, monkeypatch):
    """What it has is neither deleted nor made anew; when it is back, nothing has to be done."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    hangs = threading.Event()
    impatient_with(monkeypatch, lambda key: key[0] == "hangs" and hangs.is_set())
    rules = {"type": "project", "name": "lab", "reconcile": {"allow": ["create", "delete", "replace-lost"]}}
    sky = fleet("sky", backends=["hangs"], nodes=1, resources={"cpu": 2})
    asked: list[tuple[str, float]] = []
    quiet: list[tuple[float, float]] = []

    def note(op: str, about: Mapping[str, str], seconds: float, _: object) -> None:
        """A call that ends: it may have begun rounds ago. Calls of tests before this one may still be
        repeated: no other has a backend of that name.
        """
        if about.get("backend") == "hangs":
            asked.append((op, perf_counter() - seconds))

    with RunningEc2() as ec2:
        documents = [rules, backend(ec2.port) | {"name": "hangs"}, sky]
        project.declare(*documents, fleet("gpu", backends=["local"], nodes=1))
        here = Here(project.path, Clock())
        end = on_span_end(note)
        try:
            here.step()
            before = {n.name: n.state for n in here.seen(30).nodes}
            assert before.keys() == {"gpu-0", "sky-0"}
            ec2.process.send_signal(signal.SIGSTOP)
            hangs.set()
            for number in (2, 3, 4):
                project.declare(*documents, fleet("gpu", backends=["local"], nodes=number))
                begun = perf_counter()
                done = here.step(1)
                if number > 2:
                    quiet.append((begun, perf_counter()))
                assert {r.id for r in done.results} == {f"create:node/gpu-{number - 1}"}
                assert done.status
                states = {n.name: n.state for n in done.status.nodes}
                assert states.keys() == {"sky-0", *(f"gpu-{i}" for i in range(number))}
                assert states["sky-0"] == "unknown"
                (wait,) = done.waits
                assert (wait.address, wait.action) == ("backend/hangs", "read")
            short = fleet("more", backends=["hangs"], nodes=1, resources={"cpu": 2})
            project.declare(*documents, short, fleet("gpu", backends=["local"], nodes=5))
            done = here.step(1)
            assert {r.id for r in done.results} == {"create:node/gpu-4"}
            assert [w.address for w in done.waits] == ["fleet/more", "backend/hangs"]
            project.declare(*documents, fleet("gpu", backends=["local"], nodes=5))
            here.step(1)
            assert not here.rounds.early()
            ec2.process.send_signal(signal.SIGCONT)
            hangs.clear()
            until(lambda: here.rounds.early() and not here.rounds.outages.list())
            done = here.step()
            assert (done.results, done.waits) == ((), ())
            assert done.status
            assert {n.name: n.state for n in done.status.nodes}["sky-0"] == before["sky-0"]
            assert asked
            assert [op for op, at in asked if any(first <= at <= last for first, last in quiet)] == []
        finally:
            end()
            here.close()
