"""A JSON server with the answers that a test gives, or that a whole simulated cloud makes."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request."""

    method: str
    path: str
    params: Mapping[str, str]
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """`POST /a/b`."""
        return f"{self.method} {self.path}"


Answer = tuple[int, Any]
LOST = (0, None)
"""No answer: the line is cut once the request was carried out."""


def losing(answer: Callable[[Asked], Answer], seed: int) -> Callable[[Asked], Answer]:
    """As `answer`, but of each third change, logins aside, the line is cut once it was carried out."""
    luck = random.Random(seed)  # no secret

    def some(asked: Asked) -> Answer:
        found = answer(asked)
        counts = asked.method != "GET" and not asked.path.endswith("/token")
        return LOST if counts and luck.random() < 1 / 3 else found

    return some


class Web(ThreadingHTTPServer):
    """`with Web(answer) as web:`; `answer` is given each request, one at a time."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Callable[[Asked], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _OneRequest)
        self.port = self.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.answer = answer
        self.turn = threading.Lock()
        self.asked: list[Asked] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked has gone."""


class _OneRequest(BaseHTTPRequestHandler):
    server: Web
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""

    def _any(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        parts = urlsplit(self.path)
        kind = self.headers.get("Content-Type") or ""
        body = (json.loads(data) if "json" in kind else dict(parse_qsl(data))) if data else None
        asked = Asked(
            method=self.command,
            path=unquote(parts.path),
            params=dict(parse_qsl(parts.query, keep_blank_values=True)),
            body=body,
            headers=dict(self.headers),
        )
        with self.server.turn:
            # A copy: who answers may keep the body, and change it.
            self.server.asked.append(replace(asked, body=json.loads(json.dumps(body))))
            try:
                status, found = self.server.answer(asked)
            except Exception as error:  # noqa: BLE001  # whoever asks has to see it
                status, found = 599, f"the test's own server: {asked.line}: {error!r}"
        if not status:
            self.close_connection = True
            return
        out = (found if isinstance(found, str) else json.dumps(found)).encode() if found is not None else b""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _any  # noqa: N815  # the base class wants these names


class TooEarly:
    """A look that finds nothing the first time."""

    def __init__(self, look: Callable[[str], Any]) -> None:
        self.look = look
        self.looked = False

    def __call__(self, made: str) -> Any:
        early, self.looked = not self.looked, True
        return None if early else self.look(made)
