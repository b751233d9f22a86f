"""Clouds with invalid answers: they become faults of the port, and nothing is sent on."""

from __future__ import annotations

import copy
import gc
import gzip
import itertools
import json
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import libcloud.http
import pytest

from declarative.model.state import Address, Record
from declarative.provider import Config, PermanentError, PermanentKind, ProviderError, TransientError
from providers.cloud import account, bad_answers, cloud, connection
from providers.cloud.any import lambda_cloud
from providers.cloud.any.crusoe import Crusoe
from providers.cloud.any.digitalocean import DigitalOcean as Site
from providers.cloud.any.hyperstack import Hyperstack
from providers.cloud.any.vultr import Vultr
from providers.cloud.bad_answers import Scrub, asked
from providers.testing import NODE, VOLUME
from tests.providers.azure import server as fake_azure
from tests.providers.cloud.stand_in import Clock
from tests.providers.cloud.web import Web
from tests.providers.crusoe import server as fake_crusoe
from tests.providers.ec2.run import SECRETS
from tests.providers.gce import server as fake_gce
from tests.providers.hyperstack import server as fake_hyperstack
from tests.providers.lambda_cloud import server as fake_lambda
from tests.providers.libcloud import vultr
from tests.providers.libcloud.digitalocean import DigitalOcean
from tests.providers.openstack import run as openstack
from tests.providers.openstack.server import REGION, SmallCloud
from tests.support.model import of_attachment

TOKEN = "dop_v1_very-secret"
DRIVERS = (
    *("ec2", "openstack", "gce", "azure", "digitalocean", "vultr", "hyperstack", "lambda", "crusoe"),
    "linode",
)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Some answers nest deeper than Python goes. A pool of connections of an earlier test that is collected
    down there cannot close itself, which pytest takes for a failure. What stays is not looked at again: after
    other tests, that takes a second each time.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def pem():
    return fake_gce.private_key()


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in {**SECRETS, **fake_azure.SECRETS}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FLEETFORM_TEST_TOKEN", TOKEN)
    monkeypatch.setenv("FLEETFORM_TEST_LAMBDA", fake_lambda.KEY)
    monkeypatch.setenv("FLEETFORM_TEST_CRUSOE", fake_crusoe.SECRET)
    monkeypatch.setattr(Site, "settle", 0.0)
    monkeypatch.setattr(Hyperstack, "settle", 0.0)
    monkeypatch.setattr(Crusoe, "settle", 0.0)
    monkeypatch.setattr(Vultr, "settle", 0.0)
    for name in ("GAP", "LAUNCH_GAP"):
        monkeypatch.setattr(lambda_cloud, name, 0.0)
    monkeypatch.setattr(lambda_cloud.Lambda, "settle", 0.0)
    monkeypatch.setattr(account, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(account, "time", SimpleNamespace(monotonic=_ticking(), sleep=lambda _: None))


def _ticking():
    """A clock that goes on by five seconds with each look at it: nothing waits."""
    seconds = itertools.count(0, 5)
    return lambda: float(next(seconds))


class Raw(ThreadingHTTPServer):
    """Answers all requests with the same status, headers and body; `asked` has what was sent."""

    daemon_threads = True

    def __init__(self, status: int = 200, headers: dict[str, str] | None = None, body: Any = b"{}") -> None:
        super().__init__(("127.0.0.1", 0), _OneRequest)
        self.status, self.headers, self.body = status, headers or {}, body
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked has gone."""


class _OneRequest(BaseHTTPRequestHandler):
    server: Raw
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""

    def _any(self) -> None:
        taken = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.path, dict(self.headers), taken))
        body = self.server.body
        data = body(len(self.server.asked)) if callable(body) else body
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value.replace("PATH", self.path))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _any  # noqa: N815


def provider(driver: str, url: str, folder: Any, pem: str, monkeypatch: Any) -> Any:
    """A provider that asks at `url`, and nowhere else."""
    if driver == "gce":
        monkeypatch.setenv(fake_gce.VARIABLE, fake_gce.service_account(pem, url))
        return cloud(fake_gce.config(url, folder))
    if driver == "azure":
        return cloud(fake_azure.config(url, folder))
    given: dict[str, Any] = {"credentials": {"key": "FLEETFORM_TEST_TOKEN"}, "regions": ("nyc3",)}
    if driver == "openstack":
        for name, value in openstack.SECRETS.items():
            monkeypatch.setenv(name, value)
        given = {
            "credentials": openstack.CREDENTIALS,
            "regions": (REGION,),
            "options": {"project": "demo", "settle": 0},
        }
    if driver == "hyperstack":
        monkeypatch.setenv("FLEETFORM_TEST_KEY", fake_hyperstack.KEY)
        given = {
            "credentials": {"key": "FLEETFORM_TEST_KEY"},
            "regions": fake_hyperstack.REGIONS[:1],
            "image": {"*": fake_hyperstack.IMAGES[0]},
        }
    if driver == "lambda":
        given = {"credentials": {"key": "FLEETFORM_TEST_LAMBDA"}, "regions": ("us-east-1",)}
    if driver == "crusoe":
        monkeypatch.setenv("FLEETFORM_TEST_ID", fake_crusoe.KEY_ID)
        given = {
            "credentials": {"key": "FLEETFORM_TEST_ID", "secret": "FLEETFORM_TEST_CRUSOE"},
            "regions": (fake_crusoe.EAST,),
            "image": {"*": "ubuntu22.04:latest"},
            "options": {"project": fake_crusoe.PROJECT},
        }
    if driver == "ec2":
        keys = dict(zip(("key", "secret"), SECRETS, strict=True))
        given = {"credentials": keys, "regions": ("us-east-1",)}
    return cloud(
        Config(
            backend="there",
            project_dir=folder,
            lineage="lineage-1",
            driver=driver,
            endpoint=url,
            **{"image": {"*": "image-1"}, **given},
        )
    )


# --------------------------------------------------------------------------------------- redirections


@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize("driver", DRIVERS)
def test_nothing_is_sent_on_to_another_host(tmp_path, monkeypatch, pem, driver, status):
    """Of a request that is sent on, its body and its tokens would be, too."""
    with (
        Raw() as other,
        Raw(status, {"Location": other.url.replace("127.0.0.1", "localhost") + "PATH"}) as web,
    ):
        there = provider(driver, web.url, tmp_path, pem, monkeypatch)
        with pytest.raises(PermanentError) as caught:
            there.inventory()
        assert web.asked
        assert other.asked == []
    assert caught.value.kind is PermanentKind.INVALID
    assert "endpoint" in (caught.value.hint or "")
    assert (
        "another server, http://localhost:" in caught.value.summary
        or "is not keystone" in caught.value.summary
    )


@pytest.mark.parametrize(
    "to", ["http://[::1/", "//elsewhere.example/", "http://127.0.0.1:99999/", "file:///etc"]
)
def test_what_leads_nowhere_is_not_followed(tmp_path, monkeypatch, pem, to):
    with Raw(307, {"Location": to}) as web:
        there = provider("digitalocean", web.url, tmp_path, pem, monkeypatch)
        with pytest.raises(PermanentError, match="leads to another server"):
            there.inventory()
        assert len(web.asked) == 1


@pytest.mark.slow
def test_a_redirection_of_the_same_server_is_followed(tmp_path, monkeypatch, pem):
    """As of an API that wants a `/` at the end."""
    with Raw(307, {"Location": "/elsewhere"}) as web:
        there = provider("digitalocean", web.url, tmp_path, pem, monkeypatch)
        with pytest.raises(ProviderError):
            there.inventory()
        assert {path for path, _, _ in web.asked[1:]} == {"/elsewhere"}


# ------------------------------------------------------------------------------------------- answers

DEEP = b"[" * 100_000
LOGIN = json.dumps({"access_token": "t", "expires_in": 3600})
WHOLE = {
    "lists": DEEP,
    "mappings": b'{"a":' * 100_000,
    "elements": b"<a>" * 100_000,
    "elements that end": b"<a>" * 20_000 + b"</a>" * 20_000,
    "null": b"null",
    "a text": b'"ok"',
    "a list": b"[1]",
    "lists in it": b'{"error": [[]], "errors": 1, "message": {"a": 1}, "data": null, "meta": []}',
    "numbers": b'{"access_token": "t", "expires_in": 1e999, "data": [Infinity], "meta": {"total": NaN}}',
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "nothing": b"",
    "controls": b'{"message": "\\u001b[2J\\u0000\\u202e", "error": "\\ud800"}',
}


@pytest.mark.parametrize("status", [200, 400, 503])
@pytest.mark.parametrize("driver", DRIVERS)
def test_any_answer_is_a_fault_of_the_port(tmp_path, monkeypatch, pem, driver, status):
    for name, body in WHOLE.items():
        with Raw(status, {"x-subject-token": "t", "Retry-After": "-1e9"}, body) as web:
            there = provider(driver, web.url, tmp_path, pem, monkeypatch)
            fault = None
            try:
                there.inventory()
            except ProviderError as error:
                fault = error
        if fault is None:
            assert driver == "linode"  # libcloud reads nothing out of what has no list, and does not say so
            continue
        said = f"{fault.summary} {fault.hint}"
        assert len(said) < 1_000, name
        assert "\x1b" not in said, name
        assert not isinstance(fault, TransientError) or (fault.after or 0.0) >= 0


def test_an_answer_without_an_end_is_not_read_to_it(tmp_path, monkeypatch, pem):
    monkeypatch.setattr(connection, "MOST_BYTES", 1 << 20)
    with Raw(200, {}, b"[" + b"1," * (2 << 20)) as web:
        there = provider("digitalocean", web.url, tmp_path, pem, monkeypatch)
        with pytest.raises(TransientError, match="more than 1 MiB"):
            there.inventory()


def test_a_listing_without_an_end_is_not_read_to_it(tmp_path, monkeypatch, pem):
    monkeypatch.setattr(bad_answers, "MOST_PAGES", 20)

    def page(number):
        pages = {"next": f"http://x/?page={number + 1}"}
        return json.dumps({"droplets": [], "meta": {"total": 1}, "links": {"pages": pages}}).encode()

    with Raw(200, {}, page) as web:
        there = provider("digitalocean", web.url, tmp_path, pem, monkeypatch)
        with pytest.raises(TransientError, match="more than 20 pages"):
            there.inventory()
        assert len(web.asked) == 21


def test_an_answer_that_grows_when_it_is_unpacked_is_not_unpacked_to_its_end(tmp_path, monkeypatch, pem):
    """Neither one of a few thousand bytes, nor one that was packed again and again."""
    monkeypatch.setattr(connection, "MOST_BYTES", 1 << 20)
    packed = gzip.compress(b"[" + b"1," * (20 << 20))
    many = gzip.compress(gzip.compress(packed))
    for body, how, said in (
        (packed, "gzip", "more than 1 MiB"),
        (many, "gzip, gzip, gzip", "compressed more than once"),
    ):
        with Raw(200, {"Content-Encoding": how}, body) as web:
            there = provider("digitalocean", web.url, tmp_path, pem, monkeypatch)
            with pytest.raises(TransientError, match=said):
                there.inventory()


def test_pages_that_are_long_are_not_read_to_the_last(tmp_path, monkeypatch, pem):
    monkeypatch.setattr(bad_answers, "MOST_LISTED_BYTES", 1 << 20)

    def page(number):
        pages = {"next": f"http://x/?page={number + 1}", "x": "x" * 300_000}
        return json.dumps({"droplets": [], "meta": {"total": 1}, "links": {"pages": pages}}).encode()

    with Raw(200, {}, page) as web:
        there = provider("digitalocean", web.url, tmp_path, pem, monkeypatch)
        with pytest.raises(TransientError, match="more than 1 MiB on its pages"):
            there.inventory()
        assert len(web.asked) == 4


def test_a_listing_that_libcloud_reads_has_an_end(tmp_path, monkeypatch, pem):
    monkeypatch.setattr(bad_answers, "MOST_PAGES", 20)

    def page(number):
        return json.dumps({"data": [], "page": number, "pages": 10**9, "results": 10**9}).encode()

    with Raw(200, {}, page) as web:
        there = provider("linode", web.url, tmp_path, pem, monkeypatch)
        with pytest.raises(TransientError, match="more than 20 pages"):
            there.inventory()
        assert len(web.asked) == 21


@pytest.mark.parametrize("driver", ["ec2", "openstack"])
def test_whose_listing_has_no_end_is_said(tmp_path, monkeypatch, pem, driver):
    monkeypatch.setattr(bad_answers, "MOST_PAGES", 3)
    with SmallCloud() as small:
        url = small.endpoint.removesuffix("/identity") if driver == "ec2" else small.endpoint
        region = provider(driver, url, tmp_path, pem, monkeypatch)._account.region(REGION)
        turns = itertools.count()
        links = {"servers_links": [{"rel": "next"}]}

        def ask(*_, **__):
            mark = str(next(turns))
            return {"reservationSet": [], "nextToken": mark, "servers": [{"id": mark}], **links}

        monkeypatch.setattr(region, "ask", ask)
        what = ("Ask", "reservationSet", 5) if driver == "ec2" else ("asking", "compute", "/", "servers")
        with pytest.raises(TransientError, match=f"in {region.name}: the answer has more than 3 pages"):
            list(region.pages(*what))


def test_images_in_circles_are_a_fault(tmp_path, monkeypatch, pem):
    with SmallCloud() as small:
        there = provider("openstack", small.endpoint, tmp_path, pem, monkeypatch)
        region = there._account.region(REGION)
        turns = itertools.cycle("ab")
        monkeypatch.setattr(region, "ask", lambda *_, **__: {"images": [{"id": next(turns)}], "next": "/x"})
        with pytest.raises(TransientError, match="a page that was read"):
            list(region.images("list of images", {}))


def test_what_a_cloud_says_can_be_shown():
    said = "it\ud800 is\u202e a\u2028b\x1b[2J\u2066\ufeff"
    assert Scrub().message(said) == "it is a b [2J"


# ------------------------------------------------------------------------- answers with one wrong thing

ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, float("inf"), float("nan"), 10**30, "", "x", "\x1b[31m\x00", "a" * 5000),
    *([], {}, [[]], [None], {"a": 1}, ["x"], {"x": None}, "../../x", "0", "-9"),
)
GONE = object()


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    for key, item in items:
        yield from _paths(item, (*path, key))


def _changed(value: Any, luck: random.Random) -> Any:
    """The same but for one thing somewhere in it."""
    path = luck.choice(list(_paths(value)))
    odd = luck.choice((*ODD, GONE) if path else ODD)
    if not path:
        return odd
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    if odd is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = odd
    return value


@pytest.fixture
def spoil(monkeypatch):
    """While `spoil.on`, a third of all answers have something wrong in them."""
    real = libcloud.http.LibcloudConnection.request
    state = SimpleNamespace(on=False, luck=random.Random(7))

    def request(self, *args, **more):
        real(self, *args, **more)
        if state.on and self.response.content and state.luck.random() < 0.35:
            found = json.loads(self.response.content)
            self.response._content = json.dumps(_changed(found, state.luck)).encode()

    monkeypatch.setattr(libcloud.http.LibcloudConnection, "request", request)
    return state


PLACES = {
    "gce": {"region": fake_gce.REGION, "zone": fake_gce.ZONE, "instance_type": "n1-standard-1"},
    "azure": {"region": fake_azure.REGION, "zone": fake_azure.ZONE, "instance_type": "Standard_D2s_v3"},
    "openstack": {"region": REGION, "instance_type": "m1.tiny"},
    "digitalocean": {"region": "nyc3", "instance_type": "s-1vcpu-1gb"},
    "vultr": {"region": vultr.REGION, "instance_type": "vc2-1c-1gb"},
    "hyperstack": {"region": fake_hyperstack.REGIONS[0], "instance_type": "n3-L40x1"},
    "lambda": {"region": "us-east-1", "instance_type": "gpu_1x_a10"},
    "crusoe": {"region": fake_crusoe.CENTRAL, "instance_type": "h100-80gb-sxm-ib.8x"},
}


def served(driver: str) -> tuple[Any, Any]:
    """A cloud, and where it is asked."""
    if driver == "openstack":
        small = SmallCloud()
        return small, small.endpoint
    if driver == "digitalocean":
        ocean = DigitalOcean()
        return ocean, f"http://127.0.0.1:{ocean.server_address[1]}"
    if driver == "hyperstack":
        web = Web(fake_hyperstack.Hyperstack(Clock(tick=7.0), paced=False))
    elif driver == "vultr":
        api = vultr.VultrApi(Clock(tick=7.0))
        api.key = TOKEN
        web = Web(api)
    elif driver == "crusoe":
        web = Web(fake_crusoe.Crusoe(Clock(tick=7.0)))
    elif driver == "lambda":
        lambdas = fake_lambda.Lambda(Clock(tick=60), paced=False)
        for image in lambdas.images.values():
            image["family"] = "image-1"
        web = Web(lambdas)
    else:
        web = Web(fake_gce.Gce() if driver == "gce" else fake_azure.Azure())
    return web, web.url


@pytest.mark.parametrize("driver", PLACES)
def test_whatever_is_wrong_in_an_answer_is_a_fault_of_the_port(tmp_path, monkeypatch, pem, spoil, driver):
    """Everything is done until it goes well; all that comes in between are faults of the port."""
    faults = []

    def tried(step):
        for spoil.on in (True, True, False):
            try:
                return step()
            except ProviderError as error:
                faults.append(error)
        return None

    for turn in range(5):
        running, url = served(driver)
        with running:
            story(provider(driver, url, tmp_path / str(turn), pem, monkeypatch), PLACES[driver], tried)
    assert len(faults) > 20
    assert all(len(f"{fault.summary} {fault.hint}") < 2_000 for fault in faults)


def story(there: Any, place: dict[str, str], tried: Any) -> None:
    """A node, a volume, and what joins them: made, looked at, changed, and removed."""
    inputs: dict[str, Any] = {**NODE, **place, "backend": "there"}
    where: dict[str, Any] = {key: inputs[key] for key in ("region", "zone", "backend") if key in inputs}
    disk: dict[str, Any] = {**VOLUME, **where}
    about = of_attachment("t-0", "gpu-0", "data-0")
    node, volume = Address("node", "gpu-0"), Address("volume", "data-0")
    held = Address("attachment", "t-0.data-0")
    tried(there.offers)
    made = tried(lambda: there.create(volume, "a" * 32, disk, {})) or {}
    ran = tried(lambda: there.create(node, "b" * 32, inputs, {})) or {}
    first = Record(address=volume, backend="there", inputs=disk, outputs=made)
    second = Record(address=node, backend="there", inputs=inputs, outputs=ran)
    tried(there.inventory)
    tried(lambda: (there.find(node, "b" * 32), there.find(volume, "a" * 32)))
    tried(lambda: there.check({node: inputs, volume: disk}))
    tried(lambda: there.recall([first, second]))
    tried(lambda: asked(lambda self: self._nodes.readiness([second]))(there))  # no host answers
    tried(lambda: there.update(second, "b" * 32, {**inputs, "tags": {"team": "a"}}))
    tried(lambda: there.update(first, "a" * 32, {**disk, "size": "2GB"}))
    needs = {volume: first, node: second}
    hung = tried(lambda: there.create(held, "c" * 32, about, needs)) or {}
    tried(there.inventory)
    tried(lambda: there.delete(Record(address=held, backend="there", inputs=about, outputs=hung)))
    tried(lambda: there.delete(first))
    tried(lambda: there.delete(second))


# ------------------------------------------------------------------------- secrets in what went well


def test_what_nova_says_of_a_server_shows_no_secret(tmp_path, monkeypatch, pem):
    """The fault of a server that never ran comes with an answer that went well, and quotes what it was."""
    hidden = openstack.SECRETS["FLEETFORM_TEST_PASSWORD"]
    with SmallCloud() as small:
        there = provider("openstack", small.endpoint, tmp_path, pem, monkeypatch)
        small.images[0]["name"] = "image-1"
        small.full = {(zone, "m1.tiny") for zone in (*small.zones, "")}
        small.fault = f"Timed out: {hidden} {pem} " + "x " * 50_000
        inputs = {**NODE, "region": REGION, "zone": "az-1", "instance_type": "m1.tiny"}
        with pytest.raises(PermanentError, match="failed while it started: Timed out") as caught:
            there.create(Address("node", "gpu-0"), "b" * 32, inputs, {})
        small.full = set()
        made = there.create(Address("node", "gpu-0"), "c" * 32, inputs, {})
        (server,) = small.servers.values()
        server |= {"status": "ERROR", "fault": {"message": small.fault}}
        node = Record(address=Address("node", "gpu-0"), backend="there", inputs=inputs, outputs=made)
        reason = there.readiness([node])["gpu-0"].reason or ""
    for said in (caught.value.summary, str(caught.value), reason):
        assert "Timed out: *** ***" in said
        assert hidden not in said
        assert pem.splitlines()[2] not in said
        assert len(said) <= 1000


def test_what_an_operation_of_gce_says_shows_no_secret(tmp_path, monkeypatch, pem):
    """A create goes well, and its operation quotes the user data, with the node's host key in it."""
    gce = fake_gce.Gce()
    quoted = []

    def answer(asked):
        if asked.method != "POST" or not asked.path.endswith("/instances"):
            return gce(asked)
        quoted.append(json.dumps(asked.body))
        return 200, {
            "kind": "compute#operation",
            "status": "DONE",
            "error": {
                "errors": [{"code": "INVALID_USAGE", "message": f"no: {pem.splitlines()[1]} {quoted[0]}"}]
            },
        }

    with Web(answer) as web:
        there = provider("gce", web.url, tmp_path, pem, monkeypatch)
        with pytest.raises(ProviderError, match="INVALID_USAGE: no: ") as caught:
            there.create(Address("node", "gpu-0"), "b" * 32, {**NODE, **PLACES["gce"]}, {})
    key = (tmp_path / ".fleetform" / "keys" / "lineage-1").read_text()
    for line in (*pem.splitlines()[1:3], *key.splitlines()[1:3]):
        assert line not in caught.value.summary
    assert "PRIVATE KEY" in quoted[0]
    assert (
        not set(caught.value.summary.split()) & set(quoted[0].replace("\\n", " ").split()) & set(pem.split())
    )


@pytest.mark.parametrize("driver", PLACES)
def test_what_was_sent_is_not_shown_however_it_comes_back(tmp_path, monkeypatch, pem, driver):
    """Clouds and gateways quote requests: bodies and headers, tokens in them that came with a login."""
    real = libcloud.http.LibcloudConnection.request
    luck = random.Random(3)
    state = SimpleNamespace(on=False, sent="", tokens=set())

    def request(self, method, url, body=None, headers=None, **more):
        real(self, method, url, body=body, headers=headers, **more)
        said = dict(headers or {})
        token = (
            said.get("X-Auth-Token")
            or said.get("api_key")
            or said.get("Authorization", "").removeprefix("Bearer ")
        )
        state.tokens.add(token or TOKEN)
        data = body.decode() if isinstance(body, bytes) else body
        state.sent = f"{method} {url} {said} {data} {state.sent}"[:20_000]
        if state.on and luck.random() < 0.5:
            self.response.status_code = luck.choice((200, 400, 403, 404, 409, 422, 500, 502))
            error = {"message": state.sent, "code": "x", "errors": [{"reason": "x", "message": state.sent}]}
            forms = (error, {"error": error}, {"error": "x", "error_description": state.sent}, {"x": error})
            page = f"<html><pre>{state.sent}</pre></html>"
            self.response._content = luck.choice((page, *map(json.dumps, forms))).encode()

    monkeypatch.setattr(libcloud.http.LibcloudConnection, "request", request)
    faults = []

    def tried(step):
        for state.on in (True, True, False):
            try:
                return step()
            except ProviderError as error:
                faults.append(f"{error.summary} {error.hint} {error.about} {error}")
        return None

    for turn in range(4):
        state.sent = ""
        running, url = served(driver)
        with running:
            story(provider(driver, url, tmp_path / str(turn), pem, monkeypatch), PLACES[driver], tried)
    keys = [file.read_text() for file in tmp_path.rglob(".fleetform/keys/*")]
    hidden = {
        TOKEN,
        fake_lambda.KEY,
        fake_crusoe.SECRET,
        "very~secret.indeed",
        *state.tokens,
        *(line for key in (pem, *keys) for line in key.split()),
    }
    hidden = {text for text in hidden if len(text) > 12}
    assert len(hidden) > 10
    assert len(faults) > 20
    assert [text for text in hidden for fault in faults if text in fault] == []
