"""A small OpenStack: the requests of keystone, nova, cinder, glance and neutron that the driver sends.

A thing goes on to its next state whenever somebody has looked at it. Servers have addresses of this machine,
where nothing answers. A share of the answers can be spoilt, as by `tests/providers/ec2/proxy.py`.
tests/providers/openstack/real runs the same suite against a real OpenStack, which shows that the answers
match.
"""

from __future__ import annotations

import ast
import json
import random
import re
import socket
import struct
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.providers.ec2.proxy import LUCK

PROJECT = "0123456789abcdef0123456789abcdef"
REGION = "RegionOne"
NETWORK = "1b851380-5847-40f9-b559-c42a3f30696e"
OUTSIDE = "ba024a49-e308-4b60-97ee-c5f1eedfe520"
IMAGE = "ccfe47fd-9747-4202-906a-7c06d6a24c2f"
Json = dict[str, Any]


class Refusal(Exception):  # noqa: N818  # it is an answer
    """An error, as nova and cinder say it."""

    def __init__(self, status: int, message: str, name: str = "badRequest") -> None:
        super().__init__(message)
        self.status = status
        self.body = {name: {"code": status, "message": message}}


class SmallCloud(ThreadingHTTPServer):
    """`with SmallCloud() as cloud:`, keystone is at `cloud.endpoint`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _OneRequest)
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}/identity"
        self.turn = threading.RLock()
        self.servers: dict[str, Json] = {}
        self.volumes: dict[str, Json] = {}
        self.pairs: dict[str, Json] = {}
        self.floating: dict[str, Json] = {}
        self.tokens: set[str] = set()
        self.flavors = [
            flavor("m1.tiny", 1, 512),
            flavor("gpu.h100x2", 8, 65536, {"resources:CUSTOM_GPU_H100": "2"}),
        ]
        self.images = [{"id": IMAGE, "name": "debian-12", "status": "active"}]
        self.networks = [
            {"id": NETWORK, "name": "inside", "router:external": False},
            {"id": OUTSIDE, "name": "public", "router:external": True},
        ]
        self.zones = ["az-1", "az-2", "az-3"]
        self.disk_zones = ["nova"]
        self.volume_type = "block-storage"
        """What the catalog calls cinder."""
        self.forgetful = False
        """Whether the tokens that are given hold for nothing."""
        self.page = 5
        self.quota = 1000
        self.fault = "No valid host was found. "
        """Why there are no more."""
        self.versions: list[str] = []
        """The versions of cinder's API that were asked for."""
        self.full: set[tuple[str, str]] = set()
        """(zone, flavor) pairs that are sold out."""
        self.rules: list[Callable[[str, str], str | None]] = []
        """Each gives, for a method and a path, what goes wrong with a request, or None."""
        self.seen: Counter[tuple[str, str, str | None]] = Counter()
        """How often each method was used on each path (ids left out), by what went wrong."""
        self.asked: list[tuple[str, str, Any]] = []
        """Every body that was taken."""
        self._chance = random.Random(seed) if seed is not None else None
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked has gone."""

    def alive(self) -> list[str]:
        """The ids of all servers that are not on their way out."""
        return [
            made for made, server in self.servers.items() if server["OS-EXT-STS:task_state"] != "deleting"
        ]

    def count(self, method: str, path: str) -> int:
        """How often a method was used on a path."""
        return sum(n for (m, p, _), n in self.seen.items() if (m, p) == (method, path))

    def fate(self, method: str, path: str) -> str | None:
        """What goes wrong with this one."""
        with self.turn:
            found = next((fault for rule in self.rules if (fault := rule(method, path))), None)
            if found is None and self._chance is not None:
                left = self._chance.random()
                found = next((name for name, share in LUCK.items() if (left := left - share) < 0), None)
            plain = re.sub(r"/[0-9a-f-]{32,36}|(?<=/metadata)/.*|(?<=/os-keypairs)/.*", "/*", path)
            self.seen[method, plain, found] += 1
            return found

    # ----------------------------------------------------------------------------------- keystone

    def login(self, body: Json) -> Json:
        """A token's content; 401 for anybody else."""
        auth = body["auth"]
        identity = auth["identity"]
        if "password" in identity:
            user = identity["password"]["user"]
            good = (user["name"], user["password"], user["domain"]["name"]) == ("demo", "secret", "Default")
            project = auth["scope"]["project"]
            good = good and (project.get("name") == "demo" or project.get("id") == PROJECT)
        else:
            told = identity["application_credential"]
            good = (told["id"], told["secret"]) == ("app", "app-secret")
        if not good:
            text = "The request you have made requires authentication."
            raise Refusal(401, text, "error")
        base = self.endpoint.removesuffix("/identity")
        types = (
            ("compute", "/compute/v2.1"),
            (self.volume_type, f"/volume/v3/{PROJECT}"),
            ("image", "/image"),
            ("network", "/network/v2.0"),
        )
        catalog = [
            {
                "type": kind,
                "name": f"our-{kind}",
                "endpoints": [{"interface": "public", "region_id": REGION, "url": base + path}],
            }
            for kind, path in types
        ]
        times = {"issued_at": "2026-01-01T00:00:00.000000Z", "expires_at": "2026-01-02T00:00:00.000000Z"}
        return {"token": {"catalog": catalog, **times}}

    # ------------------------------------------------------------------------------ what there is

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Json | None]:
        """Status and content of the answer to one request."""
        path = path.replace(f"/volume/v3/{PROJECT}", "/volume").replace("/compute/v2.1", "/compute")
        for verb, pattern, name in ROUTES:
            found = re.fullmatch(pattern, path)
            if verb == method and found:
                with self.turn:
                    self.asked.append((method, path, body))
                    result: tuple[int, Json | None] = getattr(self, name)(*found.groups(), query, body)
                    return result
        raise Refusal(404, f"no {method} {path}", "itemNotFound")

    def list_flavors(self, query: dict[str, str], _: Any) -> tuple[int, Json]:
        return 200, self._paged("flavors", self.flavors, query)

    def list_zones(self, api: str, _query: Any, _body: Any) -> tuple[int, Json]:
        known = self.zones if api == "compute" else self.disk_zones
        return 200, {
            "availabilityZoneInfo": [{"zoneName": z, "zoneState": {"available": True}} for z in known]
        }

    def list_images(self, query: dict[str, str], _: Any) -> tuple[int, Json]:
        asked = {k: v for k, v in query.items() if k != "limit"}
        return 200, {"images": [i for i in self.images if all(i.get(k) == v for k, v in asked.items())]}

    def get_image(self, made: str, _query: Any, _body: Any) -> tuple[int, Json]:
        found = next((i for i in self.images if i["id"] == made), None)
        if found is None:
            raise Refusal(404, f"No image found with ID {made}", "itemNotFound")
        return 200, found

    def list_networks(self, query: dict[str, str], _: Any) -> tuple[int, Json]:
        return 200, {
            "networks": [n for n in self.networks if all(str(n.get(k)) == v for k, v in query.items())]
        }

    def _paged(self, key: str, things: list[Json], query: dict[str, str]) -> Json:
        ids = [thing["id"] for thing in things]
        start = 0
        if marker := query.get("marker"):
            if marker not in ids:
                raise Refusal(400, f"marker [{marker}] not found")
            start = ids.index(marker) + 1
        page = things[start : start + min(self.page, int(query.get("limit", self.page)))]
        more = start + len(page) < len(things)
        return {key: page, **({f"{key}_links": [{"rel": "next", "href": "…"}]} if more else {})}

    # ------------------------------------------------------------------------------------ servers

    def make_server(self, _: Any, body: Json) -> tuple[int, Json]:
        asked = body["server"]
        if len(asked["user_data"]) > 65535:
            raise Refusal(400, f"Invalid input for field/attribute user_data. Value: {asked['user_data']}.")
        kind = next((f for f in self.flavors if f["id"] == asked["flavorRef"]), None)
        if kind is None or not any(i["id"] == asked["imageRef"] for i in self.images):
            raise Refusal(400, "Can not find requested image")
        if len(self.servers) >= self.quota:
            text = f"Quota exceeded for instances: Requested 1, but already used {self.quota} of {self.quota}"
            raise Refusal(403, f"{text} instances", "forbidden")
        if asked["key_name"] not in self.pairs:
            raise Refusal(400, "Invalid key_name provided.")
        zone = asked.get("availability_zone") or self.zones[0]
        if zone not in self.zones:
            raise Refusal(400, "The requested availability zone is not available")
        made, number = str(uuid.uuid4()), len(self.asked)
        self.servers[made] = {
            "id": made,
            "name": asked["name"],
            "status": "BUILD",
            "metadata": dict(asked["metadata"]),
            "flavor": {"original_name": kind["name"]},
            "image": {"id": asked["imageRef"]},
            "created": f"2026-01-01T00:00:{number % 60:02}Z",
            "addresses": {},
            "OS-EXT-AZ:availability_zone": "" if (zone, kind["name"]) in self.full else zone,
            "OS-EXT-STS:task_state": "scheduling",
            "OS-SRV-USG:launched_at": None,
            "_next": f"127.20.{number // 250}.{number % 250 + 1}",
            "_full": (zone, kind["name"]) in self.full,
        }
        return 202, {"server": {"id": made, "links": []}}

    def _grown(self, server: Json) -> None:
        """How a server changes by itself once it was looked at."""
        if server["OS-EXT-STS:task_state"] == "deleting":
            del self.servers[server["id"]]
            for volume in self.volumes.values():
                if any(h["server_id"] == server["id"] for h in volume["attachments"]):
                    volume.update(status="available", attachments=[])
        elif server["status"] == "BUILD" and server["_full"]:
            server["status"], server["OS-EXT-STS:task_state"] = "ERROR", None
            server["fault"] = {"code": 500, "message": self.fault}
        elif server["status"] == "BUILD":
            server["status"], server["OS-EXT-STS:task_state"] = "ACTIVE", None
            server["OS-SRV-USG:launched_at"] = "2026-01-01T00:00:00.000000"
            address = {"version": 4, "addr": server["_next"], "OS-EXT-IPS:type": "fixed"}
            server["addresses"] = {"inside": [address]}

    def list_servers(self, query: dict[str, str], _: Any) -> tuple[int, Json]:
        pattern = query.get("name", "")
        found = [s for s in self.servers.values() if re.search(pattern, s["name"])]
        return 200, json.loads(json.dumps(self._paged("servers", found, query)))

    def get_server(self, made: str, _query: Any, _body: Any) -> tuple[int, Json]:
        server = self._of(self.servers, made, "Instance")
        seen = json.loads(json.dumps({"server": server}))
        self._grown(server)
        return 200, seen

    def delete_server(self, made: str, _query: Any, _body: Any) -> tuple[int, None]:
        self._of(self.servers, made, "Instance")["OS-EXT-STS:task_state"] = "deleting"
        return 204, None

    # ------------------------------------------------------------------------------------ volumes

    def make_volume(self, _: Any, body: Json) -> tuple[int, Json]:
        asked = body["volume"]
        if asked.get("availability_zone") not in (None, *self.disk_zones):
            raise Refusal(400, f"Availability zone '{asked['availability_zone']}' is invalid.")
        if len(self.volumes) >= self.quota:
            raise Refusal(
                413, f"VolumeLimitExceeded: Maximum number of volumes allowed ({self.quota})", "overLimit"
            )
        made = str(uuid.uuid4())
        self.volumes[made] = {
            "id": made,
            "name": asked["name"],
            "status": "creating",
            "size": asked["size"],
            "volume_type": asked.get("volume_type", "lvm"),
            "availability_zone": asked.get("availability_zone", self.disk_zones[0]),
            "metadata": dict(asked["metadata"]),
            "created_at": f"2026-01-01T00:00:00.{len(self.asked):06}",
            "attachments": [],
        }
        return 202, {"volume": self.volumes[made]}

    def list_volumes(self, query: dict[str, str], _: Any) -> tuple[int, Json]:
        told = ast.literal_eval(query.get("metadata", "{}")).items()
        found = [self._shown(v) for v in self.volumes.values() if told <= v["metadata"].items()]
        return 200, json.loads(json.dumps(self._paged("volumes", found, query)))

    def _shown(self, volume: Json) -> Json:
        """With what cinder notes itself of one that a server had, as if it were the user's."""
        noted = {"readonly": "False"} if volume.get("_had") else {}
        return {**volume, "metadata": {**noted, **volume["metadata"]}}

    def get_volume(self, made: str, _query: Any, _body: Any) -> tuple[int, Json]:
        volume = self._of(self.volumes, made, "Volume")
        seen = json.loads(json.dumps({"volume": self._shown(volume)}))
        match volume["status"]:
            case "creating":
                volume["status"] = "available"
            case "reserved":
                held = {"server_id": volume.pop("_for"), "device": "/dev/vdb"}
                volume.update(status="in-use", attachments=[held], _had=True)
            case "detaching":
                volume.update(status="available", attachments=[])
            case "extending":
                volume.update(status="in-use" if volume["attachments"] else "available")
                volume["size"] = volume.pop("_size")
            case "deleting":
                del self.volumes[made]
            case _:
                pass
        return 200, seen

    def delete_volume(self, made: str, _query: Any, _body: Any) -> tuple[int, None]:
        volume = self._of(self.volumes, made, "Volume")
        if volume["status"] not in ("available", "error", "deleting"):
            raise Refusal(400, "Invalid volume: Volume status must be available or error")
        volume["status"] = "deleting"
        return 202, None

    def act(self, made: str, _: Any, body: Json) -> tuple[int, None]:
        volume, size = self._of(self.volumes, made, "Volume"), body["os-extend"]["new_size"]
        if size <= volume["size"]:
            raise Refusal(400, "Invalid input received: New size for extend must be greater")
        if volume["status"] not in ("available", "in-use"):
            raise Refusal(400, f"Invalid volume: Volume {made} status must be available to extend")
        volume.update(status="extending", _size=size)
        return 202, None

    def attach(self, made: str, _: Any, body: Json) -> tuple[int, Json]:
        server = self._of(self.servers, made, "Instance")
        volume = self._of(self.volumes, body["volumeAttachment"]["volumeId"], "Volume")
        if server["status"] != "ACTIVE":
            raise Refusal(409, "Cannot 'attach_volume' instance while it is building", "conflictingRequest")
        if volume["status"] != "available":
            raise Refusal(400, f"Invalid volume: volume {volume['id']} is already attached to instances")
        volume.update(status="reserved", _for=made)
        return 200, {"volumeAttachment": {"volumeId": volume["id"], "serverId": made, "device": "/dev/vdb"}}

    def detach(self, made: str, disk: str, _query: Any, _body: Any) -> tuple[int, None]:
        volume = self._of(self.volumes, disk, "Volume")
        if all(h["server_id"] != made for h in volume["attachments"]):
            raise Refusal(404, "Instance is not attached to the volume", "itemNotFound")
        volume["status"] = "detaching"
        return 202, None

    # ----------------------------------------------------------------------- metadata, keys, ports

    def set_metadata(self, api: str, made: str, _: Any, body: Json) -> tuple[int, Json]:
        things = self.servers if api == "compute/servers" else self.volumes
        self._of(things, made, "Thing")["metadata"].update(body["metadata"])
        return 200, body

    def get_metadata(self, api: str, made: str, _query: Any, _body: Any) -> tuple[int, Json]:
        things = self.servers if api == "compute/servers" else self.volumes
        return 200, {"metadata": dict(self._of(things, made, "Thing")["metadata"])}

    def replace_metadata(self, api: str, made: str, _: Any, body: Json) -> tuple[int, Json]:
        things = self.servers if api == "compute/servers" else self.volumes
        self._of(things, made, "Thing")["metadata"] = dict(body["metadata"])
        return 200, body

    def drop_metadata(self, api: str, made: str, key: str, _query: Any, _body: Any) -> tuple[int, None]:
        things = self.servers if api == "compute/servers" else self.volumes
        if self._of(things, made, "Thing")["metadata"].pop(unquote(key), None) is None:
            raise Refusal(404, "Metadata item was not found", "itemNotFound")
        return 204, None

    def make_pair(self, _: Any, body: Json) -> tuple[int, Json]:
        if body["keypair"]["name"] in self.pairs:
            raise Refusal(409, "Key pair already exists.", "conflictingRequest")
        self.pairs[body["keypair"]["name"]] = body["keypair"]
        return 201, body

    def get_pair(self, name: str, _query: Any, _body: Any) -> tuple[int, Json]:
        return 200, {"keypair": self._of(self.pairs, name, "Keypair")}

    def delete_pair(self, name: str, _query: Any, _body: Any) -> tuple[int, None]:
        self._of(self.pairs, name, "Keypair")
        del self.pairs[name]
        return 204, None

    def list_ports(self, query: dict[str, str], _: Any) -> tuple[int, Json]:
        server = self.servers[query["device_id"]]
        return 200, {"ports": [{"id": server["id"], "fixed_ips": [{"ip_address": server["_next"]}]}]}

    def list_floating(self, query: dict[str, str], _: Any) -> tuple[int, Json]:
        found = [f for f in self.floating.values() if all(f.get(k) == v for k, v in query.items())]
        return 200, {"floatingips": found}

    def make_floating(self, _: Any, body: Json) -> tuple[int, Json]:
        made = str(uuid.uuid4())
        address = f"203.0.113.{len(self.floating) + 1}"
        self.floating[made] = {"id": made, "floating_ip_address": address, **body["floatingip"]}
        return 201, {"floatingip": self.floating[made]}

    def delete_floating(self, made: str, _query: Any, _body: Any) -> tuple[int, None]:
        self._of(self.floating, made, "Floating IP")
        del self.floating[made]
        return 204, None

    def _of(self, things: dict[str, Json], made: str, what: str) -> Json:
        if made not in things:
            raise Refusal(404, f"{what} {made} could not be found.", "itemNotFound")
        return things[made]


def flavor(name: str, cpus: int, memory: int, specs: dict[str, str] | None = None) -> Json:
    """One flavor, in detail."""
    made = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    return {"id": made, "name": name, "vcpus": cpus, "ram": memory, "disk": 20, "extra_specs": specs or {}}


_ID = "([^/]+)"
_THING = "(compute/servers|volume/volumes)"
ROUTES = (
    ("GET", "/compute/flavors/detail", "list_flavors"),
    ("GET", "/(compute|volume)/os-availability-zone", "list_zones"),
    ("GET", "/image/v2/images", "list_images"),
    ("GET", f"/image/v2/images/{_ID}", "get_image"),
    ("GET", "/network/v2.0/networks", "list_networks"),
    ("GET", "/network/v2.0/ports", "list_ports"),
    ("GET", "/network/v2.0/floatingips", "list_floating"),
    ("POST", "/network/v2.0/floatingips", "make_floating"),
    ("DELETE", f"/network/v2.0/floatingips/{_ID}", "delete_floating"),
    ("POST", "/compute/servers", "make_server"),
    ("GET", "/compute/servers/detail", "list_servers"),
    ("GET", f"/compute/servers/{_ID}", "get_server"),
    ("DELETE", f"/compute/servers/{_ID}", "delete_server"),
    ("POST", f"/compute/servers/{_ID}/os-volume_attachments", "attach"),
    ("DELETE", f"/compute/servers/{_ID}/os-volume_attachments/{_ID}", "detach"),
    ("POST", "/volume/volumes", "make_volume"),
    ("GET", "/volume/volumes/detail", "list_volumes"),
    ("GET", f"/volume/volumes/{_ID}", "get_volume"),
    ("DELETE", f"/volume/volumes/{_ID}", "delete_volume"),
    ("POST", f"/volume/volumes/{_ID}/action", "act"),
    ("POST", f"/{_THING}/{_ID}/metadata", "set_metadata"),
    ("GET", f"/{_THING}/{_ID}/metadata", "get_metadata"),
    ("PUT", f"/{_THING}/{_ID}/metadata", "replace_metadata"),
    ("DELETE", f"/{_THING}/{_ID}/metadata/(.+)", "drop_metadata"),
    ("POST", "/compute/os-keypairs", "make_pair"),
    ("GET", f"/compute/os-keypairs/{_ID}", "get_pair"),
    ("DELETE", f"/compute/os-keypairs/{_ID}", "delete_pair"),
)


class _OneRequest(BaseHTTPRequestHandler):
    server: SmallCloud
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""

    def handle_any(self) -> None:
        given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        fault = self.server.fate(self.command, parts.path)
        if fault == "lost-before":
            self._hang_up()
        elif fault == "throttled":
            self._answer(503, b"<html>busy</html>", {"Retry-After": "0"})
        elif fault == "too-many":
            body = json.dumps({"overLimit": {"code": 429, "message": "slow down"}}).encode()
            self._answer(429, body, {"Retry-After": "0.02"})
        elif fault == "page":
            self._answer(502, b"<html><body>upstream<br>unavailable</body></html>")
        elif fault and fault.startswith("<"):
            self._answer(200, fault.encode())
        elif fault and "=" in fault:  # `403=Quota exceeded`
            status, _, text = fault.partition("=")
            self._answer(int(status), json.dumps({"forbidden": {"message": text}}).encode())
        else:
            self._carry_out(parts.path, dict(parse_qsl(parts.query)), given, fault)

    do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815  # so it is called by its base

    def _carry_out(self, path: str, query: dict[str, str], given: bytes, fault: str | None) -> None:
        headers = {}
        status: int
        found: Json | None
        try:
            body: Any = json.loads(given) if given else None
            if path == "/identity/v3/auth/tokens":
                status, found = 201, self.server.login(body)
                token = uuid.uuid4().hex
                if not self.server.forgetful:
                    self.server.tokens.add(token)
                headers["X-Subject-Token"] = token
            else:
                self._let_in()
                status, found = self.server.answer(self.command, path, query, body)
        except Refusal as refusal:
            status, found = refusal.status, refusal.body
        data = b"" if found is None else json.dumps(found).encode()
        if fault == "lost":
            self._hang_up()
        elif fault == "reset":
            # A close with this option set sends RST and not FIN.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._hang_up()
        elif fault == "cut":
            self._answer(status, data[: len(data) // 2], headers, length=len(data))
            self._hang_up()
        else:
            self._answer(status, data, headers)

    def _let_in(self) -> None:
        if self.path.endswith("/v3/auth/tokens"):
            raise Refusal(404, "no login here", "itemNotFound")
        if self.headers.get("X-Auth-Token") not in self.server.tokens:
            raise Refusal(401, "The request you have made requires authentication.", "error")
        version = self.headers.get("OpenStack-API-Version", "")
        if version.startswith("volume"):
            self.server.versions.append(version)

    def _answer(
        self, status: int, data: bytes, headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        self.send_response(status)
        kind = "text/html" if data.startswith(b"<") else "application/json"
        for name, value in {"Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()
