"""Stands in for the REST APIs of GitHub and GitLab, as far as `fleetform ci` uses them, on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

ACTIONS = {"login": "github-actions[bot]", "id": 41, "type": "Bot"}
USERS = {"job": None, "fork": None, "person": {"login": "octo", "id": 7, "type": "User"}}
"""Tokens: of a job, of a fork's pull request (it may only read), of a person."""
MOST = 65_536


class Forge(ThreadingHTTPServer):
    """What was written to it: comments, and issues."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.comments: list[dict[str, Any]] = []
        self.issues: list[dict[str, Any]] = []
        self.merged: dict[str, int] = {}
        """Commit → its merged pull request."""
        self.asked: list[str] = []
        self.broken = False

    def comment(self, body: str, login: str) -> None:
        """Somebody else comments."""
        self.comments.append({"id": len(self.comments) + 1, "body": body, "user": {"login": login}})


@contextmanager
def forge() -> Iterator[Forge]:
    """A server that answers until the end."""
    found = Forge()
    thread = threading.Thread(target=found.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield found
    finally:
        found.shutdown()
        thread.join()
        found.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Forge

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _do(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else {}
        url = urlsplit(self.path)
        self.server.asked.append(f"{self.command} {url.path}")
        page = int(parse_qs(url.query).get("page", ["1"])[0])
        code, answer = (
            (500, {"message": "broken"}) if self.server.broken else self._answer(url.path, body, page)
        )
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PATCH = do_PUT = _do  # noqa: N815 (the base class calls them so)

    def _answer(self, path: str, body: dict[str, Any], page: int) -> tuple[int, Any]:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        token = token or self.headers.get("PRIVATE-TOKEN") or ""
        if token not in USERS:
            return 401, {"message": "Bad credentials"}
        if path == "/user":
            return (
                (200, USERS[token]) if USERS[token] else (403, {"message": "not accessible by integration"})
            )
        writes = self.command != "GET"
        if writes and token == "fork":
            return 403, {"message": "Resource not accessible by integration"}
        if writes and len(body.get("body", "")) > MOST:
            return 422, {"message": "Body is too long (maximum is 65536 characters)"}
        return self._route(path, body, page, USERS[token] or ACTIONS)

    def _route(self, path: str, body: dict[str, Any], page: int, who: Any) -> tuple[int, Any]:
        parts = path.strip("/").split("/")
        match self.command, parts:
            case "GET", ["repos", _, _, "commits", sha, "pulls"]:
                number = self.server.merged.get(sha)
                return 200, [{"number": number, "merged_at": "2026-01-31T12:00:00Z"}] if number else []
            case "GET", ["repos", _, _, "issues", number, "comments"]:
                ours = [c for c in self.server.comments if c.get("request", number) == number]
                return 200, ours[(page - 1) * 100 : page * 100]
            case "POST", ["repos", _, _, "issues", number, "comments"]:
                return self._add(self.server.comments, body, {"user": who, "request": number})
            case "PATCH", ["repos", _, _, "issues", "comments", number]:
                return self._change(self.server.comments, number, body)
            case "GET", ["repos", _, _, "issues"]:
                return 200, [i for i in self.server.issues if i["state"] == "open"]
            case "POST", ["repos", _, _, "issues"]:
                return self._add(self.server.issues, body, {"user": who, "state": "open"})
            case "PATCH", ["repos", _, _, "issues", number]:
                return self._change(self.server.issues, number, body)
            case "GET", ["projects", _, "merge_requests", _, "notes"]:
                return 200, self.server.comments
            case "POST", ["projects", _, "merge_requests", _, "notes"]:
                return self._add(self.server.comments, body, {"author": who})
            case "PUT", ["projects", _, "merge_requests", _, "notes", number]:
                return self._change(self.server.comments, number, body)
            case _:
                return 404, {"message": "Not Found"}

    def _add(self, items: list[dict[str, Any]], body: dict[str, Any], more: Any) -> tuple[int, Any]:
        number = len(items) + 1
        items.append({"id": number, "number": number, "html_url": f"https://x/{number}", **body, **more})
        return 201, items[-1]

    def _change(self, items: list[dict[str, Any]], number: str, body: dict[str, Any]) -> tuple[int, Any]:
        items[int(number) - 1].update(body)
        return 200, items[int(number) - 1]
