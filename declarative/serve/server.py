"""The HTTP server: `/healthz`, `/readyz`, `/metrics` and the page. It only reads.

The standard library's server is enough for a probe, a Prometheus and a few people. It has bounds: a few
pages at once, a time limit for each request, and few connections. If there are too many, the oldest one
that has not sent its request ends, one of the same address first. So silent connections shut out nobody, and
probes wait for no page.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import ipaddress
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from declarative.model.record import struct
from declarative.render.html import PAGE_SCRIPT, SECONDS, hash_of, page_html
from declarative.serve.latest_state import LatestState
from declarative.serve.metrics import CONTENT_TYPE, Metrics

PAGES = 16
"""Pages that are made and sent at once."""
CONNECTIONS = 128
FROM_ONE_ADDRESS = 32
"""Connections of one address that have not sent their request."""
LONGEST = 15.0
"""For how many seconds one connection may last."""
SOONEST = 3.0
"""Seconds in which a client has to send its request."""
PROBES = ("/healthz", "/readyz")
"""Pages whose answer is one word, and that need no token."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; form-action 'self'; "
        f"base-uri 'none'; frame-ancestors 'none'; script-src '{hash_of(PAGE_SCRIPT)}'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Answer(NamedTuple):
    """An answer to send."""

    status: HTTPStatus
    body: bytes
    kind: str = "text/plain; charset=utf-8"


class Site:
    """The pages by their paths."""

    def __init__(self, latest: LatestState, metrics: Metrics, token: str | None) -> None:
        self._latest = latest
        self._metrics = metrics
        self._token = token.encode() if token is not None else None
        self._pages: dict[str, Callable[[str], Answer]] = {
            "/": self._page,
            "/healthz": lambda _: _text(HTTPStatus.OK, "ok"),
            "/metrics": lambda _: Answer(HTTPStatus.OK, self._metrics.text(), CONTENT_TYPE),
            "/readyz": self._ready,
        }

    def answer(self, target: str, authorization: str | None, host: str | None) -> Answer:
        """The answer to a request."""
        split = urlsplit("/" + target.lstrip("/"))  # `//[` is not a valid address
        page = self._pages.get(split.path)
        if split.path not in PROBES:
            # The token, as `Bearer`, or as the password of `Basic` for browsers.
            token = _token_in(authorization or "")
            if self._token is not None and not hmac.compare_digest(token, self._token):
                return _text(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")
            if self._token is None and not _is_loopback_host(host):
                # Otherwise a foreign page whose name resolves to this host could make a browser read this
                # one.
                return _text(HTTPStatus.FORBIDDEN, "without a token it answers only as localhost")
        if page is None:
            return _text(HTTPStatus.NOT_FOUND, "there is nothing here")
        try:
            return page(split.query)
        except Exception as error:  # noqa: BLE001 (one request must not end the others; secrets stay here)
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, getattr(error, "code", None) or type(error).__name__)

    def _page(self, query: str) -> Answer:
        asked = parse_qs(query).get("refresh", [])
        refresh = SECONDS if asked == [str(SECONDS)] else None
        html = page_html(self._latest.page(), refresh=refresh)
        return Answer(HTTPStatus.OK, html.encode(errors="replace"), "text/html; charset=utf-8")

    def _ready(self, _: str) -> Answer:
        why = self._latest.not_ready()
        if why is None:
            return _text(HTTPStatus.OK, "ready")
        return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {why}")


def _text(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, f"{text}\n".encode(errors="replace"))


def _token_in(authorization: str) -> bytes:
    """The token in a header; empty if there is none."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip().encode(errors="replace")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
        except ValueError:  # binascii.Error is one
            return b""
    return b""


_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?", re.ASCII)
"""A `Host` header: a name or an address, and a port. Nothing else may stand there, such as a user's name."""


def _is_loopback_host(host: str | None) -> bool:
    read = _HOST.fullmatch(host or "")
    name = (read["v6"] or read["name"]).lower() if read else ""
    return name == "localhost" or is_loopback(name)


def is_loopback(address: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


class _Handler(BaseHTTPRequestHandler):
    """One connection, one request."""

    server: Server
    timeout = LONGEST

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """Like GET, without the body."""
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        self.server.note_asked(self.connection)
        hosts = self.headers.get_all("Host", [])
        with self.server.room(self.path) as there_is:
            if not there_is:
                answer = _text(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once: try again")
            elif len(hosts) > 1:  # a proxy before this may go by another one of them
                answer = _text(HTTPStatus.BAD_REQUEST, HTTPStatus.BAD_REQUEST.phrase)
            else:
                host = next(iter(hosts), None)
                answer = self.server.site.answer(self.path, self.headers["Authorization"], host)
            self._send(answer, body=body)

    def _send(self, answer: Answer, *, body: bool) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if answer.status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="fleetform", charset="UTF-8"')
        self.end_headers()
        if body:
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Send the error as text, with nothing of the request in it."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self.close_connection = True
        self._send(_text(status, status.phrase), body=self.command != "HEAD")

    def version_string(self) -> str:
        """No versions."""
        return "fleetform"

    def log_message(self, *_: Any) -> None:
        """Requests are not logged: the log would contain tokens."""


@struct(slots=True)
class _Connection:
    """An open connection: since when, from where, and whether it has sent its request."""

    since: float
    source: str
    asked: bool = False


def _source(address: str) -> str:
    """The client of an address. It has a whole network of IPv6, but of IPv4 the address alone, which is
    `::ffff:192.0.2.1` where this listens on both.
    """
    read = ipaddress.ip_address(address)
    if isinstance(read, ipaddress.IPv4Address) or read.ipv4_mapped:
        return address
    return str(ipaddress.ip_network((read, 64), strict=False))


class Server(HTTPServer):
    """Answers requests in threads of its own until it is closed."""

    request_queue_size = 64

    def __init__(self, host: str, port: int, site: Site) -> None:
        """`OSError` if it cannot listen there."""
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.site = site
        self._open: dict[socket.socket, _Connection] = {}
        self._turn = threading.Lock()
        self._pages = threading.BoundedSemaphore(PAGES)
        super().__init__((host, port), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.25,), name="serve", daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.socket.getsockname()[1])

    def start(self) -> None:
        """Start to answer in the background."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and end open connections."""
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()
        for connection in list(self._open):
            _end(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own. If there are too many connections, the oldest silent one ends; if
        none is silent, this one.
        """
        came = _Connection(time.monotonic(), _source(client_address[0]))
        with self._turn:
            silent = [(request, c) for request, c in self._open.items() if not c.asked]
            same = [(request, c) for request, c in silent if c.source == came.source]
            full = len(self._open) >= CONNECTIONS
            if len(same) >= FROM_ONE_ADDRESS or (full and silent):
                oldest = min(same if len(same) >= FROM_ONE_ADDRESS else silent, key=lambda one: one[1].since)
                self._open.pop(oldest[0])
                _end(oldest[0])
            elif full:
                self.shutdown_request(request)
                return
            self._open[request] = came
        threading.Thread(target=self._process, args=(request, client_address), daemon=True).start()

    def note_asked(self, request: socket.socket) -> None:
        """Note that a connection has sent its request."""
        with self._turn:
            if request in self._open:
                self._open[request].asked = True

    @contextlib.contextmanager
    def room(self, target: str) -> Iterator[bool]:
        """Whether a request can be answered now; probes always can."""
        if urlsplit("/" + target.lstrip("/")).path in PROBES:
            yield True
            return
        there_is = self._pages.acquire(blocking=False)
        try:
            yield there_is
        finally:
            if there_is:
                self._pages.release()

    def _process(self, request: Any, client_address: Any) -> None:
        try:
            with contextlib.suppress(OSError):  # the client went away
                self.finish_request(request, client_address)
        finally:
            with self._turn:
                self._open.pop(request, None)
            self.shutdown_request(request)

    def service_actions(self) -> None:
        """Called several times a second: end connections that last too long."""
        now = time.monotonic()
        with self._turn:
            late = [r for r, c in self._open.items() if c.since < now - (LONGEST if c.asked else SOONEST)]
        for request in late:
            _end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: requests must not fill the log."""


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
