"""A bad connection: a proxy that spoils a share of the requests to a server, before or after they take
effect.
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

ERROR = (
    "<Response><Errors><Error><Code>{}</Code><Message>{}</Message></Error></Errors>"
    "<RequestID>t</RequestID></Response>"
)
LUCK = {
    "lost-before": 0.06,
    "lost": 0.11,
    "reset": 0.05,
    "cut": 0.05,
    "page": 0.03,
    "throttled": 0.02,
    "too-many": 0.01,
}
"""Shares of what goes wrong, a third in all. `lost-before` never arrives, of `lost` and `reset` the answer
does not; `cut` is half of an answer, `page` a gateway's, `throttled` EC2's 503, `too-many` a 429.
"""

Asked = dict[str, str]
"""The parameters of a request; `@region` is which region it is for."""


class Line(ThreadingHTTPServer):
    """`with Line(port, seed=1) as line:`, then ask `line.port`. Without a seed nothing is left to chance."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, target: int, seed: int | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _OneRequest)
        self.target = target
        self.port = self.server_address[1]
        self.rules: list[Callable[[Asked], str | None]] = []
        """Each gives what goes wrong with a request, or None. The first that gives something counts."""
        self.meet: Callable[[Asked], None] = lambda _: None
        """Called with each request before that, side by side: it may wait for others."""
        self.edit: Callable[[Asked, bytes], bytes] = lambda _, data: data
        """Edits an answer."""
        self.seen: Counter[tuple[str, str | None]] = Counter()
        """How often each action was asked for, by what went wrong."""
        self._chance = random.Random(seed) if seed is not None else None
        self._turn = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def count(self, action: str) -> int:
        """How often an action was asked for."""
        return sum(n for (asked, _), n in self.seen.items() if asked == action)

    def still(self) -> None:
        """Nothing goes wrong from now on."""
        with self._turn:
            self.rules.clear()
            self._chance = None

    @property
    def spoilt(self) -> int:
        """How many requests went wrong."""
        return sum(n for (_, fault), n in self.seen.items() if fault)

    def fate(self, asked: Asked) -> str | None:
        """What goes wrong with this one."""
        with self._turn:
            found = next((fault for rule in self.rules if (fault := rule(asked))), None)
            if found is None and self._chance is not None:
                left = self._chance.random()
                for name, share in LUCK.items():
                    left -= share
                    if left < 0:
                        found = name
                        break
            self.seen[asked.get("Action", ""), found] += 1
            return found

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked has gone: that is what this is about."""


class _OneRequest(BaseHTTPRequestHandler):
    server: Line
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = dict(parse_qsl(body.decode()))
        signed = re.search(r"/([a-z0-9-]+)/ec2/aws4_request", self.headers.get("Authorization", ""))
        asked["@region"] = signed[1] if signed else ""
        self.server.meet(asked)
        fault = self.server.fate(asked)
        if fault == "lost-before":
            self._hang_up()
        elif fault == "throttled":
            self._answer(503, ERROR.format("RequestLimitExceeded", "Request limit exceeded.").encode())
        elif fault == "too-many":
            self._answer(429, b"slow down", {"Retry-After": "0.02"})
        elif fault == "page":
            self._answer(502, b"<html><body>upstream<br>unavailable</body></html>")
        elif fault and fault.startswith("<"):  # another answer
            self._answer(200, fault.encode())
        elif fault and "=" in fault:  # `500=InsufficientInstanceCapacity`, or with a text after another `=`
            status, code, *text = fault.split("=", 2)
            self._answer(int(status), ERROR.format(code, *text or ["as the test wants it"]).encode())
        else:
            self._pass_on(body, fault, asked)

    def _pass_on(self, body: bytes, fault: str | None, asked: Asked) -> None:
        link = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=120)
        keep = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
        link.request("POST", self.path, body, keep)
        answer = link.getresponse()
        data = self.server.edit(asked, answer.read())
        link.close()
        if fault == "lost":
            self._hang_up()
        elif fault == "reset":
            # A close with this option set sends RST and not FIN.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._hang_up()
        elif fault == "cut":
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self._hang_up()
        else:
            self._answer(answer.status, data)

    def _answer(self, status: int, data: bytes, headers: Asked | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()
