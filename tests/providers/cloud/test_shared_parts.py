"""What all drivers of `providers.cloud` share: faults, the limiter, marks, the catalog, settings, imports."""

import base64
import gc
import heapq
import html
import importlib
import inspect
import json
import pkgutil
import random
import socket
import ssl
import subprocess
import sys
import urllib.parse
import weakref
import xml.sax.saxutils
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from declarative.apply.backend_look import look
from declarative.apply.backends import Backends, regions_of
from declarative.model.schema import BadValueError
from declarative.model.spec import Backend, Name
from declarative.model.spec.backend import Credentials, Endpoint, Images
from declarative.model.state import Address, Record, State
from declarative.provider import (
    Config,
    PermanentError,
    PermanentKind,
    TransientError,
    TransientKind,
    UnknownProviderError,
    load,
    unknown,
)
from declarative.store import StateError
from providers.cloud import checks, cloud, faults, marks, settings
from providers.cloud.azure import answers as azure_answers
from providers.cloud.bad_answers import MOST_SHOWN, Scrub
from providers.cloud.catalog import catalog
from providers.cloud.connection import Connection, Limiter, _ask_late, _stay, limiter
from providers.cloud.ec2 import answers as ec2_answers
from providers.cloud.ec2.region import Region, quoted
from providers.cloud.faults import BY_CLASS, Answer, by_class, classify
from providers.cloud.gce import answers as gce_answers
from providers.cloud.keys import user_data
from providers.cloud.openstack import answers as openstack_answers
from providers.cloud.settings import Host
from providers.ssh import key_pairs
from tests.providers.cloud.run import SITE
from tests.providers.ec2.run import CREDENTIALS, SECRETS, config
from tests.providers.ec2.scripted import Scripted, refusal
from tests.support.model import of_node, of_volume

# ------------------------------------------------------------------------------------------ faults


def exceptions_of_libcloud():
    """All that its modules for computing define, and those that these share with others; by full name."""
    import libcloud.common
    import libcloud.compute
    import libcloud.utils

    found = {}
    for package in (libcloud.common, libcloud.compute, libcloud.utils):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            # What one package takes from another is found there.
            for _, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
                if issubclass(kind, BaseException) and kind.__module__.startswith(package.__name__):
                    found[f"{kind.__module__}.{kind.__qualname__}"] = kind
    return found


def test_no_exception_of_libcloud_is_left_out():
    """Each has a line of its own: what a new one means has to be thought about."""
    named = exceptions_of_libcloud()
    assert len(named) > 50
    assert sorted(named.keys() - BY_CLASS.keys()) == []
    assert {name for name in BY_CLASS if name.startswith("libcloud.")} - named.keys() == set()


def test_a_class_stands_in_the_table_once():
    """The same class under two kinds would be of the one that is written last."""
    names = [name for text in faults._CLASSES.values() for name in text.split()]
    assert len(names) == len(set(names))
    assert set(faults._CLASSES) == {*TransientKind, *PermanentKind} - {
        PermanentKind.NO_CAPACITY,
        PermanentKind.INSTANCES,
        PermanentKind.USED_UP,  # no library has a class for it
    }


def test_what_libcloud_read_out_of_an_answer_counts():
    """GCE says 200, and that the operation failed. Other stumbling over a good answer says nothing."""
    from libcloud.common.google import GoogleBaseError, QuotaExceededError

    fine = Answer(status=200, text="{}")
    for error, kind in (
        (QuotaExceededError("too many GPUs", 200, "quotaExceeded"), PermanentKind.QUOTA),
        (GoogleBaseError("no", 200, "no"), TransientKind.AMBIGUOUS),
        (KeyError("id"), TransientKind.AMBIGUOUS),
        (requests.exceptions.ConnectTimeout("the second request"), TransientKind.AMBIGUOUS),
    ):
        assert getattr(classify(error, fine, what="Make", scrub=Scrub()), "kind", None) is kind


class MuteError(Exception):
    """As UpCloud's: it cannot say what it is."""

    def __str__(self):
        raise TypeError("no text")


def test_an_exception_that_cannot_say_what_it_is():
    found = classify(MuteError(), None, what="Make", scrub=Scrub())
    assert found.summary == "Make: MuteError"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (requests.exceptions.ReadTimeout("x"), TransientKind.AMBIGUOUS),
        (requests.exceptions.ConnectTimeout("x"), TransientKind.NOT_SENT),
        (requests.exceptions.ChunkedEncodingError("x"), TransientKind.AMBIGUOUS),
        (requests.exceptions.SSLError("EOF occurred in violation of protocol"), TransientKind.AMBIGUOUS),
        (requests.exceptions.SSLError("[SSL: CERTIFICATE_VERIFY_FAILED]"), PermanentKind.AUTH),
        (ssl.SSLError("CERTIFICATE_VERIFY_FAILED"), PermanentKind.AUTH),
        (requests.exceptions.InvalidURL("x"), PermanentKind.INVALID),
        (socket.gaierror(-2, "x"), TransientKind.NOT_SENT),
        (ConnectionRefusedError(), TransientKind.NOT_SENT),
        (ConnectionResetError(), TransientKind.AMBIGUOUS),
        (TimeoutError(), TransientKind.AMBIGUOUS),
        (KeyError("id"), TransientKind.AMBIGUOUS),
        (AttributeError("x"), TransientKind.AMBIGUOUS),
    ],
)
def test_what_is_raised_without_an_answer(error, kind):
    """A request that may have been carried out is ambiguous, never reported as not done."""
    assert by_class(error) is kind
    found = classify(error, None, what="Make", scrub=Scrub())
    assert getattr(found, "kind", None) is kind


def test_every_status_has_a_kind():
    """From 500 on, the result is unknown. Below, the request was refused, except for transient statuses."""
    passing = {408, 423, 425, 429}
    for status in {*range(300, 600)} - {501}:
        transient = isinstance(faults.by_status(status), TransientKind)
        assert transient == (status >= 500 or status in passing), status


def retry_after(text):
    answer = Answer(status=429, headers={"retry-after": text})
    found = classify(ValueError(), answer, what="Make", scrub=Scrub())
    assert isinstance(found, TransientError)
    return found.after


def test_retry_after_is_seconds_or_a_date():
    """That is more than libcloud reads: it dies of the date, and of anything else."""
    assert retry_after("2.5") == 2.5
    assert retry_after("-1") == 0.0
    assert retry_after("1e9") == 86400.0
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    assert 50 < retry_after(soon) <= 100
    for text in ("soon", "", "nan", "1,2", "Mon, 99 Foo 2026"):
        assert retry_after(text) is None


def test_a_permanent_fault_is_not_waited_for():
    answer = Answer(status=404, headers={"retry-after": "5"}, text="gone")
    found = classify(ValueError(), answer, what="Make", scrub=Scrub())
    assert isinstance(found, PermanentError)
    assert found.kind is PermanentKind.NOT_FOUND


@given(st.text(min_size=4, max_size=20).map(str.strip).filter(lambda s: len(s) >= 4), st.text(), st.text())
def test_a_secret_is_taken_out_wherever_it_stands(secret, before, after):
    found = Scrub([secret])(before + secret + after)
    assert len(found) <= MOST_SHOWN
    assert "\n" not in found
    assert secret not in found or secret in "***" or "*" in secret


def test_the_longer_of_two_secrets_goes_first():
    assert Scrub(["abcd", "abcdefgh", "x"])("say abcdefgh, abcd, x") == "say ***, ***, x"


SECRET = "pass/w+rd: \"ü\" & 'so' <on> 100%=x"
NOTATIONS = {
    "a URL's path": urllib.parse.quote(SECRET),
    "a URL": urllib.parse.quote(SECRET, safe=""),
    "a URL in small letters": urllib.parse.quote(SECRET, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
    "a form": urllib.parse.urlencode({"p": SECRET}),
    "a URL in a URL": urllib.parse.quote(urllib.parse.quote(SECRET, safe=""), safe=""),
    "JSON": json.dumps({"p": SECRET}),
    "JSON as it is": json.dumps({"p": SECRET}, ensure_ascii=False),
    "JSON of PHP": json.dumps({"p": SECRET}).replace("/", "\\/"),
    "XML": xml.sax.saxutils.escape(SECRET),
    "an attribute": xml.sax.saxutils.quoteattr(SECRET),
    "HTML": html.escape(SECRET),
    "Python": repr({"p": SECRET}),
    "hex": SECRET.encode().hex(),
    **{f"base64, {n} before": base64.b64encode(b"x" * n + SECRET.encode() + b"y").decode() for n in range(3)},
    "base64 of URLs": base64.urlsafe_b64encode(b"user:" + SECRET.encode() * 2).decode(),
    "base64 in a URL": urllib.parse.quote(base64.b64encode(b"user:" + SECRET.encode()).decode(), safe=""),
}


@pytest.mark.parametrize("notation", NOTATIONS)
def test_a_secret_is_taken_out_however_it_is_written(notation):
    """Clouds and gateways quote requests as they came. Of base64 the ends are also its neighbours'."""
    found = Scrub([SECRET])(f"refused: {NOTATIONS[notation]} (was sent)")
    assert found.startswith("refused: ")
    assert found.endswith("(was sent)")
    assert "***" in found
    for text in (SECRET[:8], "w%2Brd", "w%252Brd", "w%2brd", "rd: ", "rd%3A", SECRET.encode().hex()[8:20]):
        assert text not in found
    left = base64.urlsafe_b64encode(SECRET.encode() * 2).decode()
    assert not [left[i : i + 12] for i in range(len(left) - 12) if left[i : i + 12] in found]


def test_keys_and_user_data_are_taken_out_unasked(tmp_path):
    """They contain a node's host key, and nobody reads them. Text for people stays."""
    key_pairs.make(tmp_path / "key")
    key = key_pairs.Login(tmp_path / "key").host_key("gpu-0")
    told = user_data("fleetform", "ssh-ed25519 AAAA", key)
    for text in (key.private, told, base64.b64encode(told.encode()).decode(), json.dumps({"u": told})):
        shown = Scrub()(f"Invalid input for user_data: {text} is too long")
        body = "".join(key.private.split()[4:-4])
        assert not [body[i : i + 20] for i in range(len(body) - 20) if body[i : i + 20] in shown]
        assert shown.startswith("Invalid input for user_data: ")
    told = (
        "http://127.0.0.1:8774/v2.1/servers/6f1a0f3e-3c1d-4a43-9a63-0d0a5b0b8c11/os-volume_attachments/x "
        "arn:aws:sts::123456789012:assumed-role/AWSReservedSSO_AdministratorAccess_0123456789abcdef/somebody"
    )
    assert Scrub()(told) == told


MARKER = "what-a-gateway-was-sent"
BODIES = (
    MARKER,
    f"<html><body>{MARKER}</body></html>",
    f"<Response><Errors><Error><Trace>{MARKER}</Trace></Error></Errors><{MARKER}/></Response>",
    f"<Response><Errors><Error><Code>Odd</Code><Trace>{MARKER}</Trace></Error></Errors></Response>",
    *map(
        json.dumps,
        (
            MARKER,
            [MARKER],
            {"trace": MARKER},
            {"error": {"code": "Odd", "message": "why", "debug": MARKER}, "request": MARKER},
            {"error": {"code": 400, "errors": [{"reason": "x", "message": "why", "debug": MARKER}]}},
            {"error": "odd", "error_description": "why", "request": MARKER},
            {"computeFault": {"message": "why", "details": MARKER}, "request": MARKER},
            {"request": {"body": MARKER, "headers": [MARKER]}},
        ),
    ),
)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    "read", [f.error_info for f in (faults, ec2_answers, gce_answers, azure_answers, openstack_answers)]
)
def test_of_an_answer_only_known_fields_are_shown(read, body):
    """The rest may be anything: reports and saved plans go to more people than the cloud's answers."""
    for status in (400, 403, 404, 409, 422, 500, 502, 599):
        found = classify(
            ValueError(), Answer(status=status, text=body), what="Make", scrub=Scrub(), read=read
        )
        assert MARKER not in f"{found} {found.summary} {found.hint} {found.about}"
        assert found.summary.startswith("Make: ")
        assert len(found.summary) > len("Make: ")


def test_an_answer_of_no_cloud_is_told_by_its_status():
    found = classify(ValueError(), Answer(status=502, text="<p>"), what="Make", scrub=Scrub())
    assert found.summary == "Make: status 502 (Bad Gateway), with none of the cloud's errors"


def test_what_libcloud_quotes_of_an_answer_that_was_not_seen_is_not_shown():
    from libcloud.common.exceptions import BaseHTTPError

    found = classify(BaseHTTPError(500, MARKER), None, what="Make", scrub=Scrub())
    assert found.summary == "Make: BaseHTTPError"


# ----------------------------------------------------------------------------------------- limiter


class Clock:
    """Time that goes on by sleeping."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_nobody_waits_before_there_was_a_complaint():
    clock = Clock()
    limits = Limiter(clock, clock.sleep)
    for _ in range(1000):
        limits.wait()
        limits.fine()
    assert clock.now == 100.0


def refused_of(launches, workers, limits, clock):
    """How often an API refuses that grants five launches at once and two a second in the long run, and when
    all are done: simulated, with `workers` that try again.
    """
    chance, tokens, last, refused = random.Random(1), 5.0, clock.now, 0
    heap = [(clock.now, worker, 0, False) for worker in range(workers)]
    while launches:
        clock.now, worker, tries, sent = heapq.heappop(heap)
        if not sent:
            now = clock.now
            limits.wait()
            heapq.heappush(heap, (clock.now + 0.1, worker, tries, True))
            clock.now = now
            continue
        tokens, last = min(5.0, tokens + (clock.now - last) * 2), clock.now
        if tokens >= 1:
            tokens, launches, tries = tokens - 1, launches - 1, 0
            limits.fine()
            pause = 5.0  # it waits until the instance runs
        else:
            refused, tries = refused + 1, tries + 1
            limits.throttled()
            pause = chance.uniform(0, min(30, 0.5 * 2 ** (tries - 1)))
        heapq.heappush(heap, (clock.now + pause, worker, tries, False))
    return refused, clock.now - 100


def test_a_thousand_launches_are_spread_as_the_api_grants_them():
    """They take hardly longer than the API itself wants, and few are refused."""
    clock = Clock()
    refused, seconds = refused_of(1000, 32, Limiter(clock, clock.sleep, rate=2.0), clock)
    assert refused < 250
    assert seconds < 1.05 * (1000 - 5) / 2
    clock = Clock()
    assert refused_of(1000, 32, Limiter(clock, clock.sleep), clock)[0] > 2 * refused


def test_all_wait_as_long_as_the_api_asks():
    """And then go one after the other, until all is well again."""
    clock = Clock()
    limits = Limiter(clock, clock.sleep)
    for _ in range(8):
        limits.throttled(5.0)  # those that were under way
    limits.wait()
    assert clock.now == 105.0
    limits.wait()
    assert 105.0 < clock.now <= 105.1
    for _ in range(200):
        limits.wait()
        limits.fine()
    before = clock.now
    limits.wait()
    assert clock.now == before


def test_complaints_one_after_the_other_slow_down_and_have_an_end():
    clock = Clock()
    limits = Limiter(clock, clock.sleep)
    waits = []
    for _ in range(30):
        before = clock.now
        limits.wait()
        waits.append(clock.now - before)
        limits.throttled(None)
        clock.now += 5
    assert max(waits) <= 2.0
    limits.throttled(3600)
    before = clock.now
    limits.wait()
    assert clock.now - before <= 30.0


def test_an_api_has_one_limiter():
    assert limiter("a", 1) is limiter("a", 1)
    assert limiter("a", 1) is not limiter("a", 2)


# ------------------------------------------------------------------------------------------- marks

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=80),
    lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=20), v, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=20), VALUES, max_size=8))
def test_marks_are_read_as_they_were_written(inputs):
    """Whatever the inputs are; each tag is short enough, and printable ASCII."""
    mark = marks.Mark(owner="me", address=Address("node", "gpu-0"), token="t", inputs=inputs)
    tags = marks.written(mark)
    assert all(len(value) <= 255 and value.isascii() and value.isprintable() for value in tags.values())
    assert marks.read({**tags, "Name": "x", "fleetform:inputs.99": "left over"}, "i-1") == mark


def test_marks_that_were_damaged_are_a_fault():
    """Each of our tags is needed, and no half of a text is taken for the whole."""
    inputs = {"env": {"A": "x" * 600}}
    tags = marks.written(marks.Mark(owner="me", address=Address("node", "gpu-0"), token="t", inputs=inputs))
    assert len(tags) == 6
    spoilt = [{k: v for k, v in tags.items() if k != gone} for gone in tags]
    spoilt += [{**tags, marks.INPUTS: text} for text in ("", "x", "9|{}", "1|{", "1|[]")]
    spoilt.append({**tags, marks.ADDRESS: "gpu-0"})
    for have in spoilt:
        with pytest.raises(PermanentError, match="i-1 cannot be read"):
            marks.read(have, "i-1")


# ----------------------------------------------------------------------------------------- catalog


def test_the_catalog_says_what_types_have():
    """GPUs by the names and the memory that users write; prices of a day, None if unknown."""
    known = catalog("ec2")
    assert known.priced_on == "2025-03-02"
    assert known.zones["us-east-1"] == tuple(f"us-east-1{letter}" for letter in "abcdef")
    assert len(known.types) > 1000

    def gpus(name):
        shape = known.types[name].shape
        assert (shape.gpu_vendor is None) == (shape.gpus == 0)
        return shape.gpus, shape.gpu_name, (shape.gpu_memory_mib or 0) / 1024

    assert gpus("p5.48xlarge") == (8, "H100", 80)
    assert gpus("p5en.48xlarge") == (8, "H200", 141)
    assert gpus("p4d.24xlarge") == (8, "A100", 40)
    assert gpus("p4de.24xlarge") == (8, "A100", 80)
    assert gpus("g6.xlarge") == (1, "L4", 24)
    assert gpus("g6e.48xlarge") == (8, "L40S", 48)
    assert gpus("g5.xlarge") == (1, "A10G", 24)
    assert gpus("g4dn.xlarge") == (1, "T4", 16)
    assert gpus("p3dn.24xlarge") == (8, "V100", 32)
    assert gpus("p6-b200.48xlarge") == (8, "B200", 180)
    assert gpus("t3.micro") == (0, None, 0)
    assert not [name for name in known.types if name.startswith(("g6f", "mac"))]
    small = known.types["t3.micro"]
    assert (small.shape.cpu, small.shape.memory_mib, small.architecture) == (2, 1024, "x86_64")
    assert small.prices["us-east-1"] == 0.0104
    assert small.prices["eu-central-1"] is None
    assert all(p is None or p > 0 for t in known.types.values() for p in t.prices.values())
    assert {t.architecture for t in known.types.values()} == {"x86_64", "arm64"}


def offers(**more):
    return cloud(config(9, Path(), endpoint=None, **more)).offers()


def test_offers_are_those_of_the_backends_regions_and_zones():
    """On demand with a price, as spot without; for the architecture of its images."""
    found = offers(regions=("us-east-1", "eu-west-1"), zones=("us-east-1a", "us-east-1b", "eu-west-1c"))
    assert {o.zone for o in found} == {"us-east-1a", "us-east-1b", "eu-west-1c"}
    assert len({(o.zone, o.instance_type, o.spot) for o in found}) == len(found)
    mine = [o for o in found if o.instance_type == "p5.48xlarge" and o.zone == "us-east-1a"]
    assert {(o.spot, o.price) for o in mine} == {(False, 98.32), (True, None)}
    assert not [o for o in found if o.instance_type.startswith("t4g.")]
    arm = offers(options={"architecture": "arm64"})
    assert {o.zone for o in arm} == set(catalog("ec2").zones["us-east-1"])
    assert [o for o in arm if o.instance_type == "t4g.micro"]
    assert not [o for o in arm if o.instance_type == "t3.micro"]


def test_a_provider_is_known_from_when_it_is_installed_on(monkeypatch):
    """Not what was looked up before, by an earlier command of the same process."""
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(SITE)])
    assert "there are " in str(unknown("cumulus"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(SITE)])
    assert unknown("cumulus") is None


def test_offers_need_nobody_to_be_asked(tmp_path, monkeypatch):
    """A plan offline has them, without a secret and the network; others' drivers are not even made."""
    monkeypatch.setattr(socket, "socket", None)
    ours = Backend(
        name=Name("aws"), driver="ec2", regions=("us-east-1",), credentials=Credentials(CREDENTIALS)
    )
    others = Backend(name=Name("sky"), driver="cumulus")
    backends = Backends({"aws": ours, "sky": others}, tmp_path, "l")
    found = look(State(), backends, offline=True).inventory
    assert (found.diagnostics, found.offers["sky"]) == ((), ())
    prices = {o.price for o in found.offers["aws"] if o.instance_type == "p5.48xlarge" and not o.spot}
    assert prices == {98.32}


@pytest.mark.parametrize(
    ("more", "about", "words"),
    [
        ({"regions": ("us-east-9",)}, "regions", "no region `us-east-9`"),
        ({"options": {"timeouts": 3}}, "options.timeouts", "timeout"),
        ({"options": {"timeout": "3"}}, "options.timeout", "cannot be '3'"),
        ({"options": {"timeout": True}}, "options.timeout", "cannot be True"),
        ({"options": {"architecture": "mips"}}, "options.architecture", "x86_64"),
    ],
)
def test_settings_that_are_wrong_are_named(more, about, words):
    with pytest.raises(PermanentError) as caught:
        offers(**more)
    assert caught.value.about == about
    assert words in f"{caught.value.summary} {caught.value.hint}"


def test_a_region_may_be_unknown_where_there_is_an_endpoint():
    """A cloud of one's own has regions of its own, and declares a catalog."""
    assert cloud(config(9, Path(), regions=("lab",))).offers() == ()


# ---------------------------------------------------------------------------------------- settings


@pytest.fixture
def environment(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(settings.RETRIES, raising=False)
    return monkeypatch


def refused(**more):
    with pytest.raises(PermanentError) as caught:
        cloud(config(9, Path(), **more)).inventory()
    return caught.value


def test_credentials_are_looked_up_when_they_are_needed(environment):
    """And what is missing is named: the variable, never a value."""
    environment.delenv("FLEETFORM_TEST_SECRET")
    error = refused()
    assert (error.kind, error.about) == (PermanentKind.AUTH, "credentials.secret")
    assert error.summary == "the environment variable FLEETFORM_TEST_SECRET is not set"
    environment.setenv("FLEETFORM_TEST_SECRET", "  ")
    assert refused().summary == error.summary
    assert cloud(config(9, Path())).offers()  # no secret is needed for that


def test_credentials_that_are_not_named_are_asked_for(environment):
    error = refused(credentials={"key": CREDENTIALS["key"]})
    assert error.summary == "backend aws names no `secret` under `credentials`"
    error = refused(credentials={**CREDENTIALS, "secrets": "X"})
    assert (error.about, error.hint) == ("credentials.secrets", "did you mean `secret`?")


@pytest.mark.parametrize("name", ["LIBCLOUD_RETRY_FAILED_HTTP_REQUESTS", "LIBCLOUD_DEBUG"])
def test_what_libcloud_does_by_variables_is_refused(environment, tmp_path, name):
    """Its own retries would make a second thing where an answer was lost; its log has all passwords in it."""
    environment.setenv(name, str(tmp_path / "log"))
    error = refused()
    assert (error.kind, error.about) == (PermanentKind.INVALID, name)


def test_a_backend_without_regions_is_refused(environment):
    assert "names no regions" in refused(regions=()).summary


# ------------------------------------------------------------------------------ core and provider


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Endpoint, "https://lab.example.org:8773/"),
        (Images, "ami-1"),
        (Images, {"us-east-1": "ami-1", "*": "ami-2"}),
    ],
)
def test_notations_are_read_as_they_are_written(kind, value):
    assert kind.parse(kind.parse(value).plain()) == kind.parse(value)


@pytest.mark.parametrize(
    ("kind", "value", "code"),
    [
        (Endpoint, 5, "wrong-type"),
        (Endpoint, "", "bad-value"),
        (Endpoint, "ftp://lab", "bad-value"),
        (Endpoint, "http://lab:99999", "bad-value"),
        (Endpoint, "http://lab:0", "bad-value"),
        (Endpoint, "http://[lab", "bad-value"),
        (Endpoint, "https://lab?x=1", "bad-value"),
        (Endpoint, "https://lab /", "bad-value"),
        (Endpoint, "https://me@lab", "bad-credential"),
        (Images, "", "bad-value"),
        (Images, [], "wrong-type"),
        (Images, {}, "wrong-type"),
        (Images, {"us-east-1": 5}, "bad-value"),
        (Images, {"us-east-1": "ami-1 "}, "bad-value"),
        (Images, {"us-east-1": "ami\t1"}, "bad-value"),
    ],
)
def test_notations_that_are_wrong(kind, value, code):
    with pytest.raises(BadValueError) as caught:
        kind.parse(value)
    assert caught.value.code == code


def test_the_entry_point_leads_to_the_factory(tmp_path):
    found = load("ec2", config(9, tmp_path))
    assert type(found).__module__ == "providers.cloud.ec2"
    with pytest.raises(UnknownProviderError, match="no provider `moon` is installed"):
        cloud(Config(backend="b", project_dir=tmp_path, lineage="l", driver="moon"))


def test_a_backends_document_reaches_its_provider(tmp_path):
    """With the regions where something is that the document does not name any more."""
    document = Backend(name=Name("aws"), driver="ec2", regions=("us-east-1",), credentials=None)
    here = Record(address=Address("node", "a"), backend="aws", inputs=of_node(region="us-east-1"))
    there = Record(address=Address("volume", "b"), backend="aws", inputs=of_volume(region="us-west-2"))
    rank = Record(address=Address("reservation", "c"), backend=None, inputs={})
    state = State(records={r.address: r for r in (here, there, rank)})
    assert regions_of(state) == {"aws": {"us-east-1", "us-west-2"}}
    provider = Backends({"aws": document}, tmp_path, "l", state).get("aws")
    made: Any = provider._provider
    given = made._account.config
    assert (given.driver, given.regions, given.elsewhere) == ("ec2", ("us-east-1",), ("us-west-2",))


OFFERS = """
from pathlib import Path
from declarative.provider import Config
from declarative.provider import load
config = Config(backend="b", project_dir=Path(), lineage="l", driver="ec2", regions=("us-east-1",))
assert load("ec2", config).offers()
"""


@pytest.mark.parametrize(
    "code",
    [
        "import declarative.cli",
        "from providers.local import Local",
        "from providers.ssh import Ssh",
        "import providers.cloud",
        OFFERS,
    ],
)
def test_libcloud_is_loaded_with_the_first_request(code):
    """Users without a cloud do not wait for it."""
    look = f"{code}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
    assert not {"libcloud", "requests"} & set(json.loads(out))


@given(st.text())
def test_forms_are_read_as_they_were_written(text):
    assert quoted(text).isascii()
    assert urllib.parse.unquote_plus(quoted(text)) == text


def test_what_is_certain_is_said_whatever_else_could_not_be_seen():
    """Else a plan that cannot be carried out is shown with a warning that a cloud cannot be read."""

    def lacks(name):
        def look():
            raise PermanentError(PermanentKind.NOT_FOUND, f"there is no {name}")

        return look

    def busy():
        raise TransientError(TransientKind.BUSY, "later")

    certain = checks.faults_of([], [lacks("image"), busy, lacks("image")])
    assert [f.summary for f in certain] == ["there is no image"]
    with pytest.raises(TransientError, match="later"):
        checks.faults_of([], [busy, lambda: None])
    with pytest.raises(TransientError, match="later"):
        checks.faults_of([busy], [lacks("image")])


def test_nothing_is_sent_for_who_lost_the_lock():
    """It is asked last, for the limiter may hold a request back for longer than a lease lasts."""
    told: list[str] = []

    class Slow(Limiter):
        def wait(self) -> None:
            told.append("waits")

    def lost() -> None:
        told.append("is asked")
        raise StateError("stale-lease", "this command has lost the state's lock")

    connection = Connection(object, Slow(), Scrub(), lambda _: None, fence=lost)
    with pytest.raises(StateError):
        connection.call("DeleteVolume", lambda _: told.append("is sent"))
    assert told == ["waits", "is asked"]


def test_what_an_api_counts_alone_is_slowed_alone():
    """EC2 grants few launches a second, and many listings."""
    told: list[str] = []

    class Told(Limiter):
        def __init__(self, name: str) -> None:
            self.name = name

        def wait(self) -> None:
            told.append(f"{self.name} waits")

        def fine(self) -> None:
            told.append(f"{self.name} is fine")

        def throttled(self, after: float | None = None) -> None:
            told.append(f"{self.name} is throttled")

    def refused(_: object) -> None:
        raise TransientError(TransientKind.THROTTLED, "too many")

    connection = Connection(object, Told("all"), Scrub(), lambda _: None)
    with pytest.raises(TransientError):
        connection.call("RunInstances", refused, limiter=Told("launch"))
    connection.call("DescribeInstances", lambda _: None)
    assert told == ["launch waits", "launch is throttled", "all waits", "all is fine"]


def test_ec2_counts_launches_alone(monkeypatch, tmp_path):
    told: list[Limiter] = []
    monkeypatch.setattr(Limiter, "throttled", lambda self, _=None: told.append(self))
    with Scripted(lambda _: refusal("RequestLimitExceeded", status=503)) as server:
        made = config(server.port, tmp_path)
        login = (lambda: {"key": "a", "secret": "b"}, Scrub())
        region = Region("us-east-1", Host(name="127.0.0.1", port=server.port, secure=False), login, made, 30)
        for action in ("RunInstances", "DescribeInstances", "RunInstances", "CreateTags"):
            with pytest.raises(TransientError):
                region.ask(action)
    launch, other, *more = told
    assert launch is not other
    assert more == [launch, other]


def test_a_session_is_closed_as_soon_as_it_is_let_go():
    """No circle keeps it, with its sockets, until the garbage is collected."""
    gc.disable()
    try:
        session = requests.Session()
        _stay(session)
        _ask_late(session)
        left = weakref.ref(session), weakref.ref(session.adapters["https://"])
        del session
        assert [its() for its in left] == [None, None]
    finally:
        gc.enable()
