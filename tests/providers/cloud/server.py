"""A process that simulates a cloud: `python -m tests.providers.cloud.server DATABASE` prints its port as its
first line.

Each answer takes time (`--latency`), half of it before the request has its effect and half after. A share of
all requests fails (`--faults`) in the ways of real clouds: throttled with a Retry-After, 5xx before or after
the effect, a connection reset before or after it, an answer that comes too late. With `--late`, a share of
all writes has its effect much later, even if the caller is dead by then. Chance is seeded.

`POST /control {"hold": "node/gpu-0"}` holds the next request that would make this thing. The answer to any
`/control` lists the held requests and those let in since. `{"release": true}` lets it in: the request of a
caller that died meanwhile still counts.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.providers.cloud.world import CloudWorld, RefusedError

Words = dict[str, Any]
FAULTS = ("throttle", "fail", "fail-late", "reset", "reset-late", "slow")


class Cloud(ThreadingHTTPServer):
    """The world, and how badly it is reached."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, world: CloudWorld, latency: float, faults: float, seed: int, slow: float) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.world = world
        self.latency = latency
        self.faults = faults
        self.slow = slow
        self.late = 0.0
        self.busy = 0
        self._chance = random.Random(seed)
        self._turn = threading.Lock()
        self.held: str | None = None
        self.waiting: list[str] = []
        self.served: list[str] = []
        self.gate = threading.Event()

    def luck(self, method: str) -> tuple[float, float, str | None]:
        """The waits before and after the effect, and the fault, if any."""
        with self._turn:
            share = self._chance.random
            fault = self._chance.choice(FAULTS) if share() < self.faults else None
            late = self.slow if method != "GET" and share() < self.late else 0.0
            return share() * self.latency + late, share() * self.latency, fault

    def count(self, more: int) -> None:
        """One request more, or less, is under way."""
        with self._turn:
            self.busy += more

    def control(self, body: Words) -> Words:
        """Hold and release; how badly it is reached from now on."""
        for name in ("latency", "faults"):
            if name in body:
                setattr(self, name, float(body[name]))
        if "hold" in body:
            self.gate.clear()
            self.held = body["hold"]
        if "release" in body:
            self.held = None
            self.gate.set()
        return {"waiting": self.waiting, "served": self.served, "busy": self.busy}

    def door(self, what: str) -> bool:
        """Wait here if that is held; whether it was."""
        if self.held == what:
            self.held = None
            self.waiting.append(what)
            self.gate.wait()
            return True
        return False


class Request(BaseHTTPRequestHandler):
    """One request, on one connection."""

    server: Cloud

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""

    def _answer(self, status: int, body: Words, **headers: str) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _reset(self) -> None:
        # A close with this option set sends RST and not FIN.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def _serve(self) -> None:
        try:
            self._serve_badly()
        except (BrokenPipeError, ConnectionResetError, ValueError):
            self.close_connection = True  # the caller is gone; what it asked for was done

    def _serve_badly(self) -> None:
        parts = urlsplit(self.path)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if parts.path == "/control":
            self._answer(200, self.server.control(body))
            return
        self.server.count(1)
        try:
            self._take_part(parts.path, dict(parse_qsl(parts.query)), body)
        finally:
            self.server.count(-1)

    def _take_part(self, path: str, query: Words, body: Words) -> None:
        before, after, fault = self.server.luck(self.command)
        time.sleep(before)
        if fault == "throttle":
            self._answer(429, {}, Retry_After="0.05")
        elif fault == "fail":
            self._answer(503, {})
        elif fault == "reset":
            self._reset()
        else:
            status, found = self._effect(path, query, body)
            time.sleep(self.server.slow if fault == "slow" else after)
            if fault == "reset-late":
                self._reset()
            elif fault == "fail-late":
                self._answer(502, {})
            else:
                self._answer(status, found)

    def _effect(self, path: str, query: Words, body: Words) -> tuple[int, Words]:
        steps = [unquote(step) for step in path.strip("/").split("/")]
        owner = str(query.pop("owner", ""))
        try:
            return 200, self._routed(owner, steps, query, body)
        except RefusedError as error:
            return error.status, {"error": str(error)}
        except (KeyError, TypeError, ValueError) as error:
            return 400, {"error": f"the request is wrong: {error!r}"}

    def _routed(self, owner: str, steps: list[str], query: Words, body: Words) -> Words:
        world = self.server.world
        match self.command, steps:
            case "GET", ["things"]:
                return world.listed(owner, query)
            case "POST", ["things"]:
                return self._behind_door(f"{body['kind']}/{body['name']}", lambda: world.create(owner, body))
            case "PATCH", ["things", key]:
                return world.update(owner, key, body)
            case "DELETE", ["things", key]:
                return world.delete(owner, key)
            case "GET", ["things", node, "ranks"]:
                return world.ranks(owner, node)
            case "PUT", ["things", node, "ranks", attempt]:
                made = ".".join(attempt.split(".")[:2])  # the rest of an id is random
                return self._behind_door(f"rank/{made}", lambda: world.start(owner, node, attempt))
            case "DELETE", ["things", node, "ranks", attempt]:
                return world.stop(owner, node, attempt)
            case _:
                raise RefusedError(404, "there is no such request")

    def _behind_door(self, what: str, effect: Callable[[], Words]) -> Words:
        held = self.server.door(what)
        try:
            return effect()
        finally:
            if held:
                self.server.served.append(what)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve  # noqa: N815


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("database", type=Path)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds at most, before and after")
    parser.add_argument("--faults", type=float, default=0.0, help="share of the requests that go wrong")
    parser.add_argument("--slow", type=float, default=2.0, help="seconds that a slow answer takes")
    parser.add_argument("--late", type=float, default=0.0, help="share of writes that wait so long at first")
    parser.add_argument("--boot", type=float, default=0.0, help="seconds until a new node is ready")
    parser.add_argument("--names", action="store_true", help="names are taken once, tokens mean nothing")
    parser.add_argument("--page", type=int, default=50, help="things on a page of a listing")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    world = CloudWorld(given.database, names=given.names, boot=given.boot, page=given.page)
    cloud = Cloud(world, given.latency, given.faults, given.seed, given.slow)
    cloud.late = given.late
    sys.stdout.write(f"{cloud.server_address[1]}\n")
    sys.stdout.flush()
    cloud.serve_forever()


if __name__ == "__main__":
    main()
