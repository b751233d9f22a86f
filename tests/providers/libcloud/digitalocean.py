"""A DigitalOcean for tests: its API for droplets, volumes, tags and keys, and a bad connection.

It has what is special about that cloud: no client tokens, unique names of volumes in a region, pages, tags as
objects of their own, and actions that end later.
"""

from __future__ import annotations

import json
import random
import re
import socket
import struct
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LUCK = {"lost-before": 0.06, "lost": 0.11, "reset": 0.05, "cut": 0.05, "page": 0.03, "too-many": 0.01}
"""Shares of what goes wrong, a third in all: see `tests/providers/ec2/proxy.py`."""
SIZES = ("s-1vcpu-1gb", "gpu-h100x8-640gb")
TAG = re.compile(r"[A-Za-z0-9_:-]{1,255}")
Answer = tuple[int, Any]


class Refused(Exception):  # noqa: N818  # it is an answer
    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.answer: Answer = (status, {"id": "refused", "message": text})


class DigitalOcean(ThreadingHTTPServer):
    """`with DigitalOcean() as cloud:`, then ask `cloud.port`. Nothing goes wrong before `seed` is set."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, page: int = 5, boot: int = 0, behind: DigitalOcean | None = None) -> None:
        """`page`: the most of one answer; `boot`: how many looks a droplet, or an action, takes. `behind`: of
        which cloud this is no more than another way to it.
        """
        super().__init__(("127.0.0.1", 0), _OneRequest)
        self.port = self.server_address[1]
        self.page, self.boot, self.behind = page, boot, behind or self
        self.droplets: dict[str, dict[str, Any]] = {}
        self.volumes: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, dict[str, Any]] = {}
        self.made = 0
        self.tags: set[str] = set()
        self.later: list[tuple[int, Callable[[], None]]] = []
        self.late = 0
        """After how many looks a droplet is listed whose maker got no answer."""
        self.hidden: dict[str, int] = {}
        self.rules: list[Callable[[str, str], str | None]] = []
        """Given method and path, what goes wrong with a request, or None."""
        self.asked: list[tuple[str, str, Any]] = []
        self.seen: Counter[str | None] = Counter()
        self.turn = threading.RLock()
        self._chance: random.Random | None = None
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked has gone."""

    def spoil(self, seed: int | None) -> None:
        """Have chance spoil a third of all requests from now on; None: no more."""
        self._chance = random.Random(seed) if seed is not None else None

    def fate(self, method: str, path: str) -> str | None:
        with self.turn:
            found = next((fault for rule in self.rules if (fault := rule(method, path))), None)
            left = self._chance.random() if self._chance and not found else 1.0
            for name, share in LUCK.items():
                left -= share
                if left < 0 and not found:
                    found = name
            self.seen[found] += 1
            return found

    def answer(self, method: str, target: str, body: Any) -> Answer:
        """What the API answers, once it has done it."""
        url = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        with self.turn:
            self.asked.append((method, url.path, body))
            due, self.later = (
                [a for n, a in self.later if n <= 0],
                [(n - 1, a) for n, a in self.later if n > 0],
            )
            for act in due:
                act()
            for route, method_of in ROUTES.items():
                found = re.fullmatch(route, f"{method} {url.path}")
                if found:
                    try:
                        return method_of(self, body, query, *map(unquote, found.groups()))
                    except Refused as refused:
                        return refused.answer
            return 404, {"id": "not_found", "message": f"no such thing: {method} {url.path}"}

    # ------------------------------------------------------------------------------------- answers

    def listing(self, name: str, items: list[dict[str, Any]], query: Mapping[str, str]) -> Answer:
        size, page = min(self.page, int(query.get("per_page", 20))), int(query.get("page", 1))
        part = items[(page - 1) * size : page * size]
        more = {"next": f"http://x/v2/{name}?page={page + 1}"} if page * size < len(items) else {}
        return 200, {name: part, "links": {"pages": more} if more else {}, "meta": {"total": len(items)}}

    def tagged(self, tags: list[str]) -> list[str]:
        for tag in tags:
            if not TAG.fullmatch(tag):
                raise Refused(422, f"{tag} is no tag")
        self.tags |= set(tags)
        return list(dict.fromkeys(tags))

    def list_droplets(self, body: Any, query: Mapping[str, str]) -> Answer:
        wanted = query.get("tag_name")
        self.hidden = {made: left - 1 for made, left in self.hidden.items() if left > 0}
        there = [d for made, d in self.droplets.items() if made not in self.hidden]
        found = [d for d in there if wanted is None or wanted in d["tags"]]
        return self.listing("droplets", found, query)

    def make_droplet(self, body: Any, query: Mapping[str, str]) -> Answer:
        if body["size"] not in SIZES:
            raise Refused(422, "Size is not available in this region.")
        if any(str(key) not in self.keys for key in body["ssh_keys"]):
            raise Refused(422, f"{body['ssh_keys']} are invalid key identifiers for Droplet creation.")
        self.made += 1
        made = str(self.made + 1000000)
        droplet = {
            "id": int(made),
            "name": body["name"],
            "status": "active" if not self.boot else "new",
            "created_at": f"2026-01-01T00:00:00.{len(self.asked):08d}Z",
            "networks": {"v4": [], "v6": []},
            "region": {"slug": body["region"]},
            "size_slug": body["size"],
            "tags": self.tagged(body["tags"]),
            "user_data": body["user_data"],
        }

        def start() -> None:
            nets = [("public", "203.0.113"), ("private", "10.0.0")]
            droplet["status"] = "active"
            droplet["networks"]["v4"] = [
                {"ip_address": f"{net}.{int(made) % 250}", "type": t} for t, net in nets
            ]

        self.droplets[made] = droplet
        self.soon(start)
        return 202, {"droplet": droplet, "links": {}}

    def soon(self, act: Callable[[], None]) -> None:
        if self.boot:
            self.later.append((self.boot, act))
        else:
            act()

    def end_droplet(self, body: Any, query: Mapping[str, str], made: str) -> Answer:
        self.has(self.droplets, made)
        del self.droplets[made]
        for volume in self.volumes.values():
            volume["droplet_ids"] = [d for d in volume["droplet_ids"] if d != int(made)]
        return 204, None

    def has(self, things: Mapping[str, Any], made: str) -> Any:
        if made not in things:
            raise Refused(404, "The resource you were accessing could not be found.")
        return things[made]

    def list_volumes(self, body: Any, query: Mapping[str, str]) -> Answer:
        return self.listing("volumes", list(self.volumes.values()), query)

    def make_volume(self, body: Any, query: Mapping[str, str]) -> Answer:
        place = (body["name"], body["region"])
        if any((v["name"], v["region"]["slug"]) == place for v in self.volumes.values()):
            raise Refused(409, "a volume already exists with that name in this region")
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,63}", body["name"]):
            raise Refused(422, "invalid name")
        volume = {
            "id": str(uuid.uuid4()),
            "name": body["name"],
            "size_gigabytes": body["size_gigabytes"],
            "region": {"slug": body["region"]},
            "droplet_ids": [],
            "created_at": f"2026-01-01T00:00:00.{len(self.asked):08d}Z",
            "tags": self.tagged(body["tags"]),
        }
        self.volumes[volume["id"]] = volume
        return 201, {"volume": volume}

    def one_volume(self, body: Any, query: Mapping[str, str], made: str) -> Answer:
        return 200, {"volume": self.has(self.volumes, made)}

    def remove_volume(self, body: Any, query: Mapping[str, str], made: str) -> Answer:
        if self.has(self.volumes, made)["droplet_ids"]:
            raise Refused(409, "attached volume cannot be deleted")
        del self.volumes[made]
        return 204, None

    def act(self, body: Any, query: Mapping[str, str], made: str) -> Answer:
        volume, kind = self.has(self.volumes, made), body["type"]
        on = volume["droplet_ids"]
        if volume.get("busy"):
            raise Refused(422, "Droplet already has a pending event.")
        if kind == "attach":
            self.has(self.droplets, str(body["droplet_id"]))
            if on:
                raise Refused(422, "volume is already attached")
            after = [body["droplet_id"]]
        elif kind == "detach":
            if body["droplet_id"] not in on:
                raise Refused(422, "Attachment not found")
            after = []
        else:
            after = on
            volume["size_gigabytes"] = body["size_gigabytes"]
        volume["busy"] = True

        def done() -> None:
            volume["droplet_ids"] = [d for d in after if str(d) in self.droplets]
            del volume["busy"]

        self.soon(done)
        return 202, {"action": {"id": len(self.asked), "status": "in-progress", "type": kind}}

    def make_tag(self, body: Any, query: Mapping[str, str]) -> Answer:
        self.tagged([body["name"]])
        return 201, {"tag": {"name": body["name"]}}

    def end_tag(self, body: Any, query: Mapping[str, str], tag: str) -> Answer:
        self.has(dict.fromkeys(self.tags), tag)
        self.tags.discard(tag)
        for thing in (*self.droplets.values(), *self.volumes.values()):
            thing["tags"] = [t for t in thing["tags"] if t != tag]
        return 204, None

    def put_tag(self, body: Any, query: Mapping[str, str], tag: str) -> Answer:
        for thing in self.resources(body, tag):
            thing["tags"] = list(dict.fromkeys([*thing["tags"], tag]))
        return 204, None

    def take_tag(self, body: Any, query: Mapping[str, str], tag: str) -> Answer:
        for thing in self.resources(body, tag):
            thing["tags"] = [t for t in thing["tags"] if t != tag]
        return 204, None

    def resources(self, body: Any, tag: str) -> list[Any]:
        self.has(dict.fromkeys(self.tags), tag)
        kinds = {"droplet": self.droplets, "volume": self.volumes}
        return [self.has(kinds[r["resource_type"]], r["resource_id"]) for r in body["resources"]]

    def list_keys(self, body: Any, query: Mapping[str, str]) -> Answer:
        return self.listing("ssh_keys", list(self.keys.values()), query)

    def make_key(self, body: Any, query: Mapping[str, str]) -> Answer:
        if any(key["public_key"].split()[1] == body["public_key"].split()[1] for key in self.keys.values()):
            raise Refused(422, "SSH Key is already in use on your account")
        made = len(self.asked)
        self.keys[str(made)] = {"id": made, "name": body["name"], "public_key": body["public_key"]}
        return 201, {"ssh_key": self.keys[str(made)]}

    def end_key(self, body: Any, query: Mapping[str, str], made: str) -> Answer:
        self.has(self.keys, made)
        del self.keys[made]
        return 204, None

    def list_sizes(self, body: Any, query: Mapping[str, str]) -> Answer:
        gpu = {"count": 8, "model": "nvidia_h100", "vram": {"amount": 640, "unit": "gib"}}
        plain = {"vcpus": 1, "memory": 1024, "disk": 25, "regions": ["nyc3"], "available": True}
        sizes = [
            {**plain, "slug": SIZES[0], "price_hourly": 0.00744},
            {
                **plain,
                "slug": SIZES[1],
                "vcpus": 160,
                "memory": 1966080,
                "price_hourly": 23.92,
                "gpu_info": gpu,
            },
            {**plain, "slug": "free-for-now", "price_hourly": 0.0},
            {**plain, "slug": "sold-out", "available": False, "price_hourly": 1.0},
        ]
        return self.listing("sizes", sizes, query)


ROUTES: Mapping[str, Callable[..., Answer]] = {
    "GET /v2/droplets": DigitalOcean.list_droplets,
    "POST /v2/droplets": DigitalOcean.make_droplet,
    "DELETE /v2/droplets/([^/]+)": DigitalOcean.end_droplet,
    "GET /v2/volumes": DigitalOcean.list_volumes,
    "POST /v2/volumes": DigitalOcean.make_volume,
    "GET /v2/volumes/([^/]+)": DigitalOcean.one_volume,
    "DELETE /v2/volumes/([^/]+)": DigitalOcean.remove_volume,
    "POST /v2/volumes/([^/]+)/actions": DigitalOcean.act,
    "POST /v2/tags": DigitalOcean.make_tag,
    "DELETE /v2/tags/([^/]+)": DigitalOcean.end_tag,
    "POST /v2/tags/([^/]+)/resources": DigitalOcean.put_tag,
    "DELETE /v2/tags/([^/]+)/resources": DigitalOcean.take_tag,
    "GET /v2/account/keys": DigitalOcean.list_keys,
    "POST /v2/account/keys": DigitalOcean.make_key,
    "DELETE /v2/account/keys/([^/]+)": DigitalOcean.end_key,
    "GET /v2/sizes": DigitalOcean.list_sizes,
}


INSTEAD: Mapping[str | None, tuple[int, bytes]] = {
    "too-many": (429, b'{"id": "too_many_requests", "message": "slow down"}'),
    "page": (502, b"<html><body>upstream<br>unavailable</body></html>"),
    "html": (200, b"<html><body>welcome</body></html>"),
    "denied": (401, b'{"id": "unauthorized", "message": "Unable to authenticate you"}'),
    "empty": (200, b"{}"),
}
"""What is answered to a request that is not carried out."""


class _OneRequest(BaseHTTPRequestHandler):
    server: DigitalOcean
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""

    def do(self) -> None:
        given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.fate(self.command, urlsplit(self.path).path)
        if fault == "lost-before":
            self.hang_up()
        elif fault in INSTEAD:
            self.say(*INSTEAD[fault], {"Retry-After": "0.02"} if fault == "too-many" else {})
        else:
            body = json.loads(given) if given else None
            status, found = self.server.behind.answer(self.command, self.path, body)
            data = json.dumps(found).encode() if found is not None else b""
            if fault == "lost" and status == 202 and found and "droplet" in found:
                self.server.hidden[str(found["droplet"]["id"])] = self.server.late
            if fault == "reset":
                # A close with this option set sends RST and not FIN.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if fault in ("lost", "reset"):
                self.hang_up()
            elif fault == "cut":
                self.say(status, data, cut=True)
            else:
                self.say(status, data)

    do_GET = do_POST = do_DELETE = do_PATCH = do  # noqa: N815

    def say(self, status: int, data: bytes, headers: Mapping[str, str] = {}, *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data) + cut))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.hang_up()

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()
