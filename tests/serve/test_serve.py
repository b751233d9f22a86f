"""A fleet over HTTP: `fleetform serve`, `/metrics` and the live page."""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis.strategies import integers, ip_addresses

from declarative.model.blocks import Shape
from declarative.model.diagnostic import Diagnostic
from declarative.planner.inventory import Health
from declarative.planner.plan import Op
from declarative.reconcile.loop import Round, Wait
from declarative.render.html import SECONDS, Page, hash_of, page_html
from declarative.render.status_view import FleetView, NodeView, RankView, StatusView, TaskView, VolumeView
from declarative.serve import server as servers
from declarative.serve.latest_state import MISSED, LatestState, Recorded
from declarative.serve.metrics import Metrics
from declarative.serve.server import Server, Site
from declarative.store import StateError
from declarative.store.events import Event
from tests.render.test_render import act, node
from tests.render.test_reports import HOSTILE
from tests.render.test_reports import Seen as Tags
from tests.support.cli import fleet, task, until
from tests.support.planned import plan_of

TOKEN = "0123456789abcdef-secret"
BASIC = base64.b64encode(f"me:{TOKEN}".encode()).decode()
PROMTOOL = shutil.which("promtool")


def view(count=2, **more):
    """A fleet of nodes with two blocks; the first block of the first node is busy."""
    made = [
        NodeView(
            name=f"gpu-{i}",
            fleet="gpu",
            state="ready",
            backend="local",
            region="here",
            zone=None,
            instance_type="big",
            price=2.5,
            resources=Shape(cpu=2, memory_mib=1024),
            total=2,
            holders={0: "rank/train-0", 1: "rank/old-0"} if i == 0 else {},
        )
        for i in range(count)
    ]
    base = {
        "lineage": "3f1c",
        "serial": 4,
        "fleets": (FleetView(name="gpu", nodes=count, total=2 * count, busy=2),),
        "nodes": tuple(made),
        "tasks": (
            TaskView(name="train", state="running", ranks=(RankView(rank=0, node="gpu-0", state="running"),)),
        ),
        "volumes": (VolumeView(name="data", state="attached", node="gpu-0", size="1GB"),),
    }
    return StatusView(**{**base, **more})


class Clock:
    now = 1_000_000.0

    def __call__(self):
        return self.now


def entry(**more):
    return Event(**{"id": 1, "at": 1.0, "type": "node.created", "address": "node/gpu-0", **more})


def done(number=1, **more):
    return Round(**{"number": number, "at": 0.0, "duration": 1.5, "held": True, "epoch": 7, **more})


class At(NamedTuple):
    """Where something listens, and what it tells of."""

    port: int
    seen: Any = None
    metrics: Any = None


@pytest.fixture
def site():
    """Serves `recorded` with an optional token; asks it."""
    opened = []

    def make(recorded=None, *, token=None, interval=None, clock=None, host="127.0.0.1"):
        found = recorded or Recorded(view=view(), events=(entry(),))
        look = found if callable(found) else lambda: found
        seen = LatestState(lambda: "lab", look, clock or Clock(), interval and (lambda: interval))
        metrics = Metrics(seen, loop=interval is not None)
        server = Server(host, 0, Site(seen, metrics, token))
        server.start()
        opened.append(server)
        return At(server.port, seen, metrics)

    yield make
    for server in opened:
        server.close()


def get(server, path, method="GET", **headers):
    """Status, headers and text of the answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as line:
        line.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = line.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode()


def metrics_of(text):
    """Series → value."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


# ------------------------------------------------------------------------------------------ who may ask


def test_a_stranger_gets_401_and_whoever_has_the_token_is_answered(site):
    server = site(token=TOKEN)
    for path in ("/", "/metrics", "/nowhere"):
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": "Basic !!"},
            {"Authorization": f"Basic {BASIC[:8]}!{BASIC[8:]}"},
            {"Authorization": f"Digest {BASIC}"},
            {"Authorization": TOKEN},
            {"Authorization": "Bearer "},
        ):
            status, sent, text = get(server, path, **headers)
            assert (status, text) == (401, "the token is missing or wrong\n")
            assert sent["WWW-Authenticate"].startswith("Basic ")
    for header in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Basic {BASIC}"):
        status, _, text = get(server, "/", Authorization=header, Host="fleet.example.com")
        assert status == 200
        assert TOKEN not in text
    assert get(server, "/healthz")[0] == 200
    assert get(server, "/readyz")[2] == "ready\n"


def test_without_a_token_only_this_machines_names_are_answered(site):
    """A page of elsewhere whose name leads to 127.0.0.1 must not have a browser read ours."""
    server = site()
    for host in ("127.0.0.1:1", "localhost", "[::1]:80", "127.0.0.2"):
        assert get(server, "/metrics", Host=host)[0] == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[", ""):
        assert get(server, "/metrics", Host=host)[0] == 403


@pytest.mark.parametrize(
    ("address", "there"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.com", False),
        ("", False),
    ],
)
def test_only_this_machine_reaches_a_loopback_address(address, there):
    assert servers.is_loopback(address) == there


def test_nothing_is_changed_by_any_request(site):
    server = site()
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        status, _, text = get(server, "/", method=method)
        assert (status, text) == (405, "Method Not Allowed\n")
    status, sent, text = get(server, "/", method="HEAD")
    assert (status, text) == (200, "")
    assert int(sent["Content-Length"]) > 1000


@pytest.mark.parametrize("path", ["/nowhere", "//[", "/../etc/passwd", "/%2e%2e/etc", "/metrics/x"])
def test_there_is_nothing_else(site, path):
    assert get(site(), path)[::2] == (404, "there is nothing here\n")


def test_a_state_that_cannot_be_read_is_said_by_its_code_alone(site):
    def broken():
        raise StateError("damaged", "secret detail")

    server = site(broken)
    assert get(server, "/")[::2] == (503, "damaged\n")
    assert get(site(lambda: dict[str, Any]()["secret"]), "/")[::2] == (503, "KeyError\n")
    assert get(server, "/healthz")[0] == 200
    assert metrics_of(get(server, "/metrics")[2])["fleetform_state_readable"] == 0


@contextmanager
def silent_lines(server, count, address="127.0.0.1"):
    """Connections that send nothing, or only a part of a request."""
    found = []
    for number in range(count):
        line = socket.create_connection(("127.0.0.1", server.port), source_address=(address, 0), timeout=60)
        if number % 2:
            line.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        found.append(line)
    try:
        yield found
    finally:
        for line in found:
            line.close()


def test_strangers_that_say_nothing_are_cut_off(site, monkeypatch):
    monkeypatch.setattr(servers, "SOONEST", 0.2)
    server = site()
    with silent_lines(server, 3) as lines:
        for line in lines:
            assert line.recv(1) == b"", "it was closed"
    assert get(server, "/healthz")[0] == 200


@pytest.mark.parametrize(
    ("networks", "each"), [(1, servers.FROM_ONE_ADDRESS), (1, 100), (5, servers.FROM_ONE_ADDRESS), (150, 1)]
)
def test_connections_that_say_nothing_shut_out_nobody(site, monkeypatch, networks, each):
    """From one address, the one that is asked from as well, or from many."""
    monkeypatch.setattr(servers, "SOONEST", 600.0)
    monkeypatch.setattr(servers, "LONGEST", 600.0)
    server = site()
    with ExitStack() as stack:
        for number in range(networks):
            stack.enter_context(silent_lines(server, each, f"127.0.0.{number + 1}"))
        answers = [get(server, path)[0] for path in ("/healthz", "/readyz", "/metrics", "/") * 5]
    assert answers == [200] * 20


def test_the_oldest_that_says_nothing_goes_first(site, monkeypatch):
    monkeypatch.setattr(servers, "SOONEST", 600.0)
    monkeypatch.setattr(servers, "LONGEST", 600.0)
    server = site()
    with silent_lines(server, servers.FROM_ONE_ADDRESS) as lines:
        assert get(server, "/healthz")[0] == 200
        assert lines[0].recv(1) == b""
        lines[-1].sendall(b"alhost\r\n\r\n")
        assert lines[-1].recv(12) == b"HTTP/1.0 200"


BOTH = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6 on this machine")


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::", marks=BOTH)])
def test_a_client_of_ipv4_shuts_out_no_other_one(site, monkeypatch, host):
    """Where it listens on both protocols, all of them come as `::ffff:127.0.0.1` and the like."""
    monkeypatch.setattr(servers, "SOONEST", 600.0)
    monkeypatch.setattr(servers, "LONGEST", 600.0)
    server = site(host=host)
    with silent_lines(server, servers.FROM_ONE_ADDRESS, "127.0.0.2") as lines:
        assert get(server, "/healthz")[0] == 200
        lines[0].sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert lines[0].recv(12) == b"HTTP/1.0 200"


@given(one=ip_addresses(v=6), bits=integers(min_value=0, max_value=127))
def test_a_client_has_a_network_of_64_bits(one, bits):
    other = type(one)(int(one) ^ 1 << bits)
    if not (one.ipv4_mapped or other.ipv4_mapped):
        assert (servers._source(str(one)) == servers._source(str(other))) == (bits < 64)


@given(one=ip_addresses(v=4), other=ip_addresses(v=4))
def test_each_address_of_ipv4_is_a_client(one, other):
    for start in ("", "::ffff:"):
        sources = servers._source(f"{start}{one}"), servers._source(f"{start}{other}")
        assert (sources[0] == sources[1]) == (one == other)


class Line:
    """A connection of a client that is not there."""

    ended = False

    def shutdown(self, how: int) -> None:
        self.ended = True

    def close(self) -> None:
        assert self.ended


class Waiting:
    """A thread that does not come to answer."""

    def __init__(self, target: Any, args: Any, *, daemon: bool) -> None:
        assert daemon, "it must not keep the program from ending"

    def start(self) -> None:
        pass


class Door(NamedTuple):
    """A server that is told of connections, its clock, and what lets clients come."""

    server: Server
    clock: Clock
    comes: Any


@pytest.fixture
def door(monkeypatch):
    """It lets in four at most, and two of one address that say nothing."""
    monkeypatch.setattr(servers, "CONNECTIONS", 4)
    monkeypatch.setattr(servers, "FROM_ONE_ADDRESS", 2)
    clock = Clock()
    monkeypatch.setattr(servers, "time", SimpleNamespace(monotonic=clock))
    seen = LatestState(lambda: "lab", lambda: Recorded(view=view()), clock, None)
    server = Server("127.0.0.1", 0, Site(seen, Metrics(seen, loop=False), None))
    monkeypatch.setattr(servers, "threading", SimpleNamespace(Thread=Waiting))

    def comes(*addresses, asks=False):
        lines: list[Any] = [Line() for _ in addresses]
        for line, address in zip(lines, addresses, strict=True):
            clock.now += 1
            server.process_request(line, (address, 1))
            if asks:
                server.note_asked(line)
        return lines

    yield Door(server, clock, comes)
    server.server_close()


A, B, C, D, E = (f"192.0.2.{number}" for number in range(5))


@pytest.mark.parametrize(
    ("silent", "asked", "comes", "ends"),
    [
        ((), (), A, None),
        ((A,), (), A, None),
        ((A, A), (), A, 0),
        ((A, A), (), B, None),
        ((B, A, A), (), A, 1),
        ((B, A), (A,), A, None),
        ((B, A, A), (A,), A, 1),
        ((B, A, C), (A,), A, 0),
        ((B, A, C, D), (), E, 0),
        ((B,), (A, C, D), E, 0),
        ((B, C), (A,), D, None),
        ((), (A, B, C, D), E, "comes"),
        ((), (A, A, A), A, None),
        ((), (A, A, A, A), A, "comes"),
    ],
)
def test_who_goes_where_there_are_too_many(door, silent, asked, comes, ends):
    """The oldest one that has not asked, of the same address first; where all have asked, the last one."""
    quiet, busy = door.comes(*silent), door.comes(*asked, asks=True)
    (last,) = door.comes(comes)
    lines = [*quiet, *busy, last]
    expected = None if ends is None else last if ends == "comes" else quiet[ends]
    assert [line for line in lines if line.ended] == ([] if expected is None else [expected])
    assert [*door.server._open] == [line for line in lines if line is not expected]


def test_who_asks_has_longer_than_who_says_nothing(door):
    server, clock, comes = door
    ((silent,), (asked,)) = comes(A), comes(B, asks=True)
    (last,) = comes(C, asks=True)
    server._open.pop(last)
    server.note_asked(last)  # it has ended by now
    clock.now = server._open[silent].since + servers.SOONEST
    server.service_actions()
    assert not silent.ended
    clock.now += 0.5
    server.service_actions()
    assert (silent.ended, asked.ended) == (True, False)
    clock.now = server._open[asked].since + servers.LONGEST
    server.service_actions()
    assert not asked.ended
    clock.now += 0.5
    server.service_actions()
    assert asked.ended


def test_there_is_room_for_so_many_pages_and_for_each_probe(door):
    server = door.server
    with ExitStack() as stack:
        assert all(stack.enter_context(server.room("/")) for _ in range(servers.PAGES))
        for _ in range(2):
            with server.room("/metrics") as there_is:
                assert not there_is
            with server.room("/healthz?x") as there_is:
                assert there_is
    with server.room("/") as there_is:
        assert there_is


def test_probes_wait_for_no_page(site, monkeypatch):
    """A leader under load: its pages take long, and there are many of them."""
    monkeypatch.setattr(servers, "LONGEST", 600.0)
    go, asked = threading.Event(), threading.Semaphore(0)

    def look():
        asked.release()
        assert go.wait(60)
        return Recorded(view=view())

    server = site(look, interval=30)
    server.seen.observe(done())
    pages = []

    def ask():  # what asks below whether all pages are taken may take one itself for a moment
        pages.append(until(lambda: get(server, "/")[0] == 200))

    threads = [threading.Thread(target=ask) for _ in range(servers.PAGES)]
    try:
        for thread in threads:
            thread.start()
        assert asked.acquire(timeout=60)
        until(lambda: get(server, "/nowhere")[0] == 503, "all pages are taken")
        assert [get(server, path)[0] for path in ("/healthz", "/readyz") * 10] == [200] * 20
        assert get(server, "/metrics")[2] == "too many requests at once: try again\n"
    finally:
        go.set()
        for thread in threads:
            thread.join(60)
    assert pages == [True] * servers.PAGES


@pytest.mark.parametrize(
    "host",
    [
        "evil.com@localhost",
        "localhost@127.0.0.1",
        "localhost:80@evil.com",
        "localhost/",
        "localhost#",
        "localhost?x",
        "localhost:x",
        "localhost, evil.com",
        "[::1",
        "[localhost]",
        "local host",
        "localhost\\",
    ],
)
def test_a_host_is_a_name_and_a_port_and_nothing_else(site, host):
    assert get(site(), "/metrics", Host=host)[0] == 403


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize("second", ["localhost", "evil.com"])
def test_two_hosts_are_refused(site, token, second):
    server = site(token=token)
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=60)) as line:
        headers = ("Host: localhost", f"Host: {second}", f"Authorization: Bearer {token}")
        line.sendall("\r\n".join(("GET /metrics HTTP/1.1", *headers, "", "")).encode())
        assert line.recv(12) == b"HTTP/1.0 400"


def test_many_ask_at_once_and_the_state_is_read_once(site):
    reads = []

    def look():
        reads.append(1)
        return Recorded(view=view())

    server = site(look)
    found = []
    threads = [threading.Thread(target=lambda: found.append(get(server, "/metrics")[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 8
    assert len(reads) == 1


# ------------------------------------------------------------------------------------------- the loop


def test_ready_is_who_leads_or_follows_and_had_a_round_lately(site):
    clock = Clock()
    server = site(interval=30.0, clock=clock)
    assert get(server, "/readyz")[::2] == (503, "not ready: no round has ended yet\n")
    for held in (True, False):
        server.seen.observe(done(held=held))
        assert get(server, "/readyz")[::2] == (200, "ready\n")
    clock.now += MISSED * 30
    assert get(server, "/readyz")[0] == 200
    clock.now += 1
    assert get(server, "/readyz")[::2] == (503, "not ready: no round for 91 s\n")
    assert get(server, "/healthz")[0] == 200
    server.seen.alive()
    assert get(server, "/readyz")[0] == 200, "a round that takes long and goes on"


def test_rounds_are_counted(site):
    server = site(interval=30.0)
    plan = plan_of(lineage="3f1c", serial=1, actions=(act(Op.CREATE, "node/gpu-1", after=node()),))
    error = Diagnostic(code="backend-unreadable", summary="down")
    wait = Wait(address="volume/v", action="delete", why="needs approval", digest="abc")
    for found in (
        done(plan=plan, waits=(wait,), hourly=5.0),
        done(2, errors=(error,), plan=plan),
        done(3, held=False),
    ):
        server.seen.observe(found)
        server.metrics.observe(found)
    seen = metrics_of(get(server, "/metrics")[2])
    assert seen['fleetform_plan_actions{op="create"}'] == 1
    assert seen['fleetform_plan_actions{op="update"}'] == 0
    assert seen['fleetform_reconcile_errors_total{kind="backend-unreadable"}'] == 1
    assert seen["fleetform_reconcile_duration_seconds_count"] == 2
    assert seen["fleetform_reconcile_last_success_timestamp_seconds"] == 1.5
    assert seen["fleetform_lease_held"] == 0
    assert seen["fleetform_lease_epoch"] == 7
    server.metrics.observe(done(revision="bad", in_force="c0ffee"))
    seen = metrics_of(get(server, "/metrics")[2])
    commits = {name: value for name, value in seen.items() if "commit" in name}
    assert commits == {'fleetform_commit_info{commit="c0ffee"}': 1}
    assert seen["fleetform_cost_dollars_per_hour"] == 5
    assert 'fleetform_plan_waiting{action="delete"}' not in seen, "the second round had none"


def test_the_page_tells_of_the_round(site):
    server = site(interval=30.0)
    wait = Wait(address="volume/v", action="delete", why="`delete` needs approval", digest="abc123")
    error = Diagnostic(code="backend-unreadable", summary="aws does not answer")
    server.seen.observe(done(waits=(wait,), errors=(error,), revision="c0ffee" * 6))
    page = get(server, "/")[2]
    for text in (
        "leads (epoch 7)",
        "Commit c0ffeec0ffee",
        "delete volume/v: `delete` needs approval",
        "fleetform approve abc123",
        "aws does not answer",
    ):
        assert text in page


# --------------------------------------------------------------------------------------------- metrics


def test_metrics_say_what_is_recorded(site):
    found = Recorded(view=view(3, nodes=(*view(2).nodes, replace(view(3).nodes[2], state="unreachable"))))
    seen = metrics_of(get(site(found), "/metrics")[2])
    assert seen['fleetform_nodes{fleet="gpu",state="ready"}'] == 2
    assert seen['fleetform_nodes{fleet="gpu",state="unreachable"}'] == 1
    assert seen['fleetform_nodes{fleet="gpu",state="failed"}'] == 0
    assert {use: seen[f'fleetform_blocks{{fleet="gpu",state="{use}"}}'] for use in ("busy", "reserved")} == {
        "busy": 1,
        "reserved": 1,
    }
    assert seen['fleetform_blocks{fleet="gpu",state="idle"}'] == 2
    assert seen['fleetform_blocks{fleet="gpu",state="unavailable"}'] == 2
    assert seen['fleetform_tasks{state="running"}'] == 1
    assert seen['fleetform_node_price_dollars_per_hour{fleet="gpu",instance_type="big",node="gpu-0"}'] == 2.5
    assert seen["fleetform_state_readable"] == 1


@pytest.mark.skipif(not PROMTOOL, reason="promtool, of Debian's prometheus, is not installed")
def test_promtool_accepts_the_metrics_whatever_the_names_are(site):
    nodes = tuple(
        replace(view().nodes[1], name=f"n{i}", fleet=text, instance_type=text)
        for i, text in enumerate(HOSTILE)
    )
    fleets = tuple(FleetView(name=text, nodes=1, total=2, busy=0) for text in HOSTILE)
    server = site(Recorded(view=view(nodes=nodes, fleets=fleets)), interval=30.0)
    errors = tuple(Diagnostic(code=text, summary="x") for text in HOSTILE)
    server.metrics.observe(done(errors=errors, gpus={(text, 0, text): 37 for text in HOSTILE}))
    text = get(server, "/metrics")[2]
    command = [str(PROMTOOL), "check", "metrics"]
    checked = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


# ---------------------------------------------------------------------------------------------- the page


def hostile_page():
    """A page that says these texts wherever a stranger can say something."""
    base = view().nodes[0]
    nodes = [replace(base, name=t, fleet=t, state=t, reason=t, holders={0: f"rank/{t}"}) for t in HOSTILE]
    tasks = [
        TaskView(name=t, state=t, cause=t, ranks=(RankView(rank=0, node=t, state=t, cause=t),))
        for t in HOSTILE
    ]
    shown = view(
        nodes=tuple(nodes),
        tasks=tuple(tasks),
        fleets=tuple(FleetView(name=t, nodes=1, total=1, busy=0) for t in HOSTILE),
        volumes=tuple(VolumeView(name=t, state=t, node=t, size=t) for t in HOSTILE),
        health=tuple(Health(address=t, state=t, detail=t, hint=t) for t in HOSTILE),
    )
    return Page(
        title=HOSTILE[7],
        at=0.0,
        view=shown,
        notes=tuple(("bad", t) for t in HOSTILE),
        events=tuple(entry(type=t, address=t, detail={"cause": t, "error": t, "actor": t}) for t in HOSTILE),
        held=HOSTILE,
        diagnostics=tuple(Diagnostic(code="x", summary=t, hint=t, address=t) for t in HOSTILE),
    )


def test_nothing_hostile_becomes_a_part_of_the_page():
    tags, plain = Tags(), Tags()
    page = page_html(hostile_page())
    tags.feed(page)
    plain.feed(
        page_html(Page(title="x", at=0.0, view=view(), notes=(("bad", "x"),), events=(entry(),), held=("x",)))
    )
    assert set(tags.tags) <= set(plain.tags)
    assert tags.tags.count("script") == 1
    names = {name for name, _ in tags.attributes}
    assert not [name for name in names if name.startswith("on")]
    assert names == {name for name, _ in plain.attributes}
    assert all(value.startswith(("#", "?")) for name, value in tags.attributes if name == "href")
    assert "\u202e" not in page
    assert "\x1b" not in page


def test_the_page_reads_without_javascript_and_renews_itself_only_when_asked(site):
    server = site()
    page = get(server, "/")[2]
    assert 'http-equiv="refresh"' not in page
    assert f'<meta http-equiv="refresh" content="{SECONDS}">' in get(server, f"/?refresh={SECONDS}")[2]
    assert 'http-equiv="refresh"' not in get(server, '/?refresh=0"><script>')[2]
    _, sent, _ = get(server, "/")
    script = page.partition("<script>")[2].partition("</script>")[0]
    assert hash_of(script) in sent["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in sent["Content-Security-Policy"]


def test_a_page_of_300_nodes_is_small_and_soon_made(site):
    page = get(site(Recorded(view=view(300))), "/")[2]
    assert page.count('class="node"') == 300
    assert len(page) < 200_000


# ------------------------------------------------------------------------------------------ the command


def started(project, *args, command="serve", env=None):
    """`fleetform serve`, once it listens; the port."""
    process = project.start(command, "--listen", "0", *args, env=env)
    line = process.stderr.readline()
    found = re.fullmatch(r"(?:\S+Z )?listening at http://127\.0\.0\.1:(\d+)/\n", line)
    assert found, line
    return process, At(int(found[1]))


@pytest.mark.slow
def test_serve_beside_commands_that_write(project):
    """It may begin before there is a state; what an `apply` records is there with the next answer."""
    project.declare(fleet(nodes=1), task("hello", "true"))
    process, at = started(project)
    assert "0 nodes" in get(at, "/")[2]
    project.apply("--wait")
    for _ in range(100):
        seen = metrics_of(get(at, "/metrics")[2])
        if seen.get('fleetform_tasks{state="succeeded"}'):
            break
        threading.Event().wait(0.1)
    assert seen['fleetform_nodes{fleet="gpu",state="ready"}'] == 1
    assert seen['fleetform_nodes_declared{bound="min",fleet="gpu"}'] == 1
    assert "node.created" in get(at, "/")[2]
    process.terminate()
    assert process.wait() == 0


@pytest.mark.slow
def test_reconcile_is_seen_while_it_runs(project):
    project.declare({"type": "project", "name": "lab", "reconcile": {"interval": "1s"}}, fleet(nodes=1))
    process, at = started(project, command="reconcile")
    for _ in range(300):
        seen = metrics_of(get(at, "/metrics")[2])
        if seen.get('fleetform_nodes{fleet="gpu",state="ready"}') and seen["fleetform_lease_held"]:
            break
        threading.Event().wait(0.1)
    assert seen["fleetform_lease_held"] == 1
    calls = {name for name in seen if name.startswith("fleetform_provider_requests_total")}
    assert 'fleetform_provider_requests_total{backend="local",code="ok",op="create"}' in calls
    assert seen["fleetform_reconcile_last_success_timestamp_seconds"] > 0
    assert get(at, "/readyz")[2] == "ready\n"
    page = get(at, "/")[2]
    assert "<h1>lab</h1>" in page
    assert "This controller leads" in page
    process.terminate()
    assert process.wait() == 0


def test_other_machines_need_a_token(project):
    for host in ("0.0.0.0:0", "[::]:0", "example.com:0"):
        found = project.run("serve", "--listen", host, code=1)
        assert "there is no token" in found.err
        assert "FLEETFORM_LISTEN_TOKEN" in found.err
    short = project.run("serve", "--listen", "0.0.0.0:0", code=1, env={"FLEETFORM_LISTEN_TOKEN": "hunter2"})
    assert "fewer than 16" in short.err
    assert "hunter2" not in short.err
    assert "no `HOST:PORT`" in project.run("serve", "--listen", "x", code=1).err
    secret = project.write("token", f"{TOKEN}\n")
    process, at = started(project, "--token-file", str(secret))
    assert get(at, "/metrics")[0] == 401
    assert get(at, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = project.run("serve", "--listen", str(taken.getsockname()[1]), code=1)
        assert "cannot listen" in busy.err
    process.terminate()
    assert json.dumps(process.wait()) == "0"
