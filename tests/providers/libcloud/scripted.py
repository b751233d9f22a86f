"""A JSON API with the answers that a test gives: libcloud's recorded ones, or others."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Asked = tuple[str, str, dict[str, str], Any]
"""Method, path, query, and the body, decoded."""


class Scripted(ThreadingHTTPServer):
    """`with Scripted({"GET /v2/plans": {...}}) as api:`. A function is given what was asked."""

    daemon_threads = True

    def __init__(self, answers: Mapping[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _OneRequest)
        self.port = self.server_address[1]
        self.answers = dict(answers)
        self.asked: list[Asked] = []
        self.headers: list[Mapping[str, str]] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def bodies(self, method: str, path: str) -> list[Any]:
        """What was sent with such requests."""
        return [body for m, p, _, body in self.asked if (m, p) == (method, path)]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked has gone."""


class _OneRequest(BaseHTTPRequestHandler):
    server: Scripted
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""

    def do(self) -> None:
        given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        asked: Asked = (
            self.command,
            url.path,
            dict(parse_qsl(url.query)),
            json.loads(given) if given else None,
        )
        self.server.asked.append(asked)
        self.server.headers.append(dict(self.headers))
        found = self.server.answers.get(f"{self.command} {url.path}", (404, {"error": "Not found"}))
        if isinstance(found, Callable):  # type: ignore[arg-type]
            found = found(*asked)
        status, content = found if isinstance(found, tuple) else (200, found)
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if status != 204:
            self.wfile.write(data)

    do_GET = do_POST = do_DELETE = do_PATCH = do  # noqa: N815


def recorded(driver: str, name: str) -> Any:
    """What libcloud recorded of a cloud: `recorded("vultr_v2", "list_nodes")`."""
    folder = files("libcloud") / "test" / "compute" / "fixtures" / driver
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
