"""A small Lambda Cloud: types, images, keys, instances and filesystems, as far as a driver needs them.

Written from Lambda's OpenAPI description of its API, version 1.10.0, as it was on 28 November 2026; not
compared with the cloud. It is strict in these points: fields that the description does not know are refused;
one request is allowed in a second, and one launch in twelve; a type with capacity in a region may be refused
there; an instance has its addresses only once it is active; nothing has a time of its creation.

It leaves out firewall rulesets, which no driver needs (an instance is reachable over SSH without one); fabric
partitions, in which a launch cannot place an instance; restarts; keys that the cloud makes itself; billing.

The description does not say, and so this is a guess: names of keys and of filesystems are unique in the
account; an unknown type, region, key, image or filesystem of a launch is `global/object-does-not-exist`; a
terminated instance is in no list, and known by its id for an hour; what is in the body of a 429.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Callable
from typing import Any

from tests.providers.cloud.stand_in import Clock, Pace, RefusedError, StandIn, checked, header, route
from tests.providers.cloud.web import Answer, Asked

KEY = "secret_fleet_0123456789abcdef"
REGIONS = {
    "us-east-1": "Virginia, USA",
    "us-west-1": "California, USA",
    "us-south-2": "North Texas, USA",
}
TYPES: dict[str, tuple[str, int, int, int, int, int]] = {
    "gpu_1x_a10": ("A10 (24 GB PCIe)", 1, 30, 200, 1400, 75),
    "gpu_1x_gh200": ("GH200 (96 GB)", 1, 64, 432, 4096, 149),
    "gpu_8x_a100_80gb_sxm4": ("A100 (80 GB SXM4)", 8, 240, 1800, 19968, 1432),
    "gpu_8x_h100_sxm5": ("H100 (80 GB SXM5)", 8, 208, 1800, 22528, 2392),
    "cpu_4x_general": ("N/A", 0, 4, 16, 512, 20),
}
"""Type → GPU, number of GPUs, virtual CPUs, GiB of memory, GiB of storage, cents per hour."""
FAMILIES = {"lambda-stack-24-04": ("x86_64", "arm64"), "ubuntu-24-04": ("x86_64", "arm64")}
BOOT = 180.0
"""Seconds until an instance is active."""
END = 60.0
"""Seconds until an instance that is terminating is terminated."""
MEBI = 2**20
_NAME = re.compile(r"[a-zA-Z]+[0-9a-zA-Z-]*")
_HOST = re.compile(r"[a-z0-9][0-9a-z-]{0,62}")
_TAG = re.compile(r"[a-z][a-z0-9:-]+")
_MOUNT = re.compile(r"(/home|/lambda/nfs|/data)[/a-zA-Z0-9-]*")
_LAUNCH = {
    "region_name": str,
    "instance_type_name": str,
    "ssh_key_names": list,
    "file_system_names": list,
    "file_system_mounts": list,
    "hostname": str,
    "name": str,
    "image": dict,
    "user_data": str,
    "tags": list,
    "firewall_rulesets": list,
}


def no(status: int, code: str, message: str, suggestion: str = "Look at the request.") -> RefusedError:
    """A refusal, in Lambda's form."""
    return RefusedError(status, {"error": {"code": code, "message": message, "suggestion": suggestion}})


def invalid(message: str) -> RefusedError:
    """A field of a request is wrong."""
    return no(400, "global/invalid-parameters", message)


def missing(what: str) -> RefusedError:
    """A thing that a request names is not there."""
    return no(404, "global/object-does-not-exist", f"{what} does not exist.")


class Lambda(StandIn):
    """`answer` for a `Web`."""

    def __init__(self, clock: Clock | None = None, *, paced: bool = True) -> None:
        """`paced`: whether too many requests are refused."""
        super().__init__(clock)
        self.capacity = {(name, region): 8 for name in TYPES for region in REGIONS}
        """How many more instances a region has room for."""
        self.refusing: set[tuple[str, str]] = set()
        """Types and regions that are listed with capacity, whose launches are refused for want of it."""
        self.quota: int | None = None
        """The most instances of the account."""
        self.inactive = False
        """Whether the account may do nothing."""
        self.late = 0.0
        """Seconds until an instance can be found after its launch."""
        self.becomes = "active"
        """The status of instances that are launched from now on, once they have booted; or `unhealthy`."""
        self.address: Callable[[str], str] = lambda made: f"198.51.100.{int(made[:4], 16) % 250 + 1}"
        """The public address of an instance that has booted."""
        self.ended: Callable[[str], None] = lambda made: None
        """Called when an instance is terminated."""
        self.instances: dict[str, dict[str, Any]] = {}
        self.user_data: dict[str, str] = {}
        """By the ids of instances. No answer has it."""
        self.keys: dict[str, dict[str, Any]] = {}
        self.filesystems: dict[str, dict[str, Any]] = {}
        self.images = {
            image["id"]: image
            for region in REGIONS
            for family, machines in FAMILIES.items()
            for machine in machines
            for image in [self._image(region, family, machine)]
        }
        self._hidden: set[str] = set()
        self._count = 0
        self._requests = Pace(self.clock, 1, 1.0) if paced else None
        self._launches = Pace(self.clock, 1, 12.0) if paced else None

    # -------------------------------------------------------------------------------- every request

    def admit(self, asked: Asked) -> None:
        kind, _, text = header(asked, "Authorization").partition(" ")
        if kind.lower() == "basic" and text != KEY:
            try:
                text = base64.b64decode(text, validate=True).decode().removesuffix(":")
            except ValueError:
                text = ""
        if kind.lower() not in ("bearer", "basic") or text != KEY:
            raise no(401, "global/invalid-api-key", "The key is not valid.")
        launch = asked.path.endswith("/launch")
        if (self._requests and not self._requests.allows()) or (
            launch and self._launches and not self._launches.allows()
        ):
            raise no(429, "global/too-many-requests", "Too many requests.")
        if self.inactive:
            raise no(403, "global/account-inactive", "The account is not active.")

    def unknown(self, asked: Asked) -> RefusedError:
        return no(404, "global/not-found", f"{asked.line} is not there.")

    def _id(self, kind: str) -> str:
        """An id that says nothing of the order in which things were made."""
        self._count += 1
        return hashlib.sha256(f"{kind}{self._count}".encode()).hexdigest()[:32]

    # -------------------------------------------------------------------------------- what there is

    @route("GET /api/v1/regions")
    def list_regions(self, asked: Asked) -> Answer:
        return 200, {"data": [_region(name) for name in REGIONS]}

    @route("GET /api/v1/instance-types")
    def list_types(self, asked: Asked) -> Answer:
        data = {
            name: {
                "instance_type": _type(name),
                "regions_with_capacity_available": [
                    _region(region) for region in REGIONS if self.capacity[name, region] > 0
                ],
            }
            for name in TYPES
        }
        return 200, {"data": data}

    def _image(self, region: str, family: str, machine: str) -> dict[str, Any]:
        return {
            "id": hashlib.sha256(f"{region}{family}{machine}".encode()).hexdigest()[:32],
            "created_time": "2026-10-01T00:00:00Z",
            "updated_time": "2026-10-01T00:00:00Z",
            "name": f"{family}-{machine}",
            "description": family,
            "family": family,
            "version": "24.4.1",
            "architecture": machine,
            "region": _region(region),
        }

    @route("GET /api/v1/images")
    def list_images(self, asked: Asked) -> Answer:
        return 200, {"data": list(self.images.values())}

    # ----------------------------------------------------------------------------------------- keys

    @route("GET /api/v1/ssh-keys")
    def list_keys(self, asked: Asked) -> Answer:
        return 200, {"data": list(self.keys.values())}

    @route("POST /api/v1/ssh-keys")
    def add_key(self, asked: Asked) -> Answer:
        body = _fields(asked.body, {"name": str, "public_key": str}, ("name", "public_key"))
        name, public = body["name"], body["public_key"]
        if not 1 <= len(name) <= 64 or not 1 <= len(public) <= 4096 or len(public.split()) < 2:
            raise invalid("The name or the public key is not valid.")
        if any(key["name"] == name for key in self.keys.values()):
            raise invalid(f"There is a key named {name}.")
        key = {"id": self._id("key"), "name": name, "public_key": public}
        self.keys[key["id"]] = key
        return 200, {"data": key}

    @route("DELETE /api/v1/ssh-keys/{id}")
    def delete_key(self, asked: Asked, made: str) -> Answer:
        if self.keys.pop(made, None) is None:
            raise no(404, "global/not-found", f"There is no key {made}.")
        return 200, {"data": {}}

    # ----------------------------------------------------------------------------------- filesystems

    @route("GET /api/v1/file-systems")
    def list_filesystems(self, asked: Asked) -> Answer:
        return 200, {"data": [self._filesystem(made) for made in self.filesystems]}

    @route("POST /api/v1/filesystems")
    def create_filesystem(self, asked: Asked) -> Answer:
        body = _fields(asked.body, {"name": str, "region": str}, ("name", "region"))
        if len(body["name"]) > 60 or not _NAME.fullmatch(body["name"]) or body["region"] not in REGIONS:
            raise invalid("The name or the region is not valid.")
        if any(one["name"] == body["name"] for one in self.filesystems.values()):
            raise no(400, "global/duplicate", f"There is a filesystem named {body['name']}.")
        made = self._id("filesystem")
        self.filesystems[made] = {
            "id": made,
            "name": body["name"],
            "mount_point": f"/lambda/nfs/{body['name']}",
            "created": self.clock.text(),
            "created_by": {"id": "3d" * 16, "email": "me@example.com", "status": "active"},
            "region": _region(body["region"]),
            "bytes_used": 0,
        }
        return 200, {"data": self._filesystem(made)}

    @route("DELETE /api/v1/filesystems/{id}")
    def delete_filesystem(self, asked: Asked, made: str) -> Answer:
        if made not in self.filesystems:
            raise missing(f"The filesystem {made}")
        if self._filesystem(made)["is_in_use"]:
            raise no(400, "filesystems/filesystem-in-use", f"{made} is mounted.")
        del self.filesystems[made]
        return 200, {"data": {"deleted_ids": [made]}}

    def _filesystem(self, made: str) -> dict[str, Any]:
        name = self.filesystems[made]["name"]
        used = any(name in one["file_system_names"] for one in self._running())
        return {**self.filesystems[made], "is_in_use": used}

    # ------------------------------------------------------------------------------------- instances

    def _running(self) -> list[dict[str, Any]]:
        return [one for one in self.instances.values() if one["status"] not in ("terminated", "preempted")]

    @route("GET /api/v1/instances")
    def list_instances(self, asked: Asked) -> Answer:
        return 200, {"data": [one for one in self._running() if one["id"] not in self._hidden]}

    @route("GET /api/v1/instances/{id}")
    def one_instance(self, asked: Asked, made: str) -> Answer:
        return 200, {"data": self._has(made)}

    def _has(self, made: str) -> dict[str, Any]:
        if made not in self.instances or made in self._hidden:
            raise missing(f"The instance {made}")
        return self.instances[made]

    @route("POST /api/v1/instances/{id}")
    def rename_instance(self, asked: Asked, made: str) -> Answer:
        body = _fields(asked.body, {"name": str}, ())
        if len(body.get("name", "")) > 64:
            raise invalid("The name is too long.")
        instance = self._has(made)
        instance |= body
        return 200, {"data": instance}

    @route("POST /api/v1/instance-operations/launch")
    def launch(self, asked: Asked) -> Answer:
        needed = ("region_name", "instance_type_name", "ssh_key_names")
        body = _fields(asked.body, _LAUNCH, needed)
        _check_texts(body)
        kind, region = body["instance_type_name"], body["region_name"]
        if kind not in TYPES or region not in REGIONS:
            raise missing(f"The type {kind} in {region}")
        if not any(key["name"] == body["ssh_key_names"][0] for key in self.keys.values()):
            raise missing(f"The key {body['ssh_key_names'][0]}")
        if body.get("firewall_rulesets"):
            raise missing("The firewall ruleset")
        if "image" in body:
            self._check_image(body["image"], kind, region)
        mounts = self._mounts(body, region)
        if self.quota is not None and len(self._running()) >= self.quota:
            raise no(400, "global/quota-exceeded", "The quota is used up.")
        if (kind, region) in self.refusing or self.capacity[kind, region] < 1:
            raise no(400, "instance-operations/launch/insufficient-capacity", "No capacity.")
        self.capacity[kind, region] -= 1
        made = self._launched(body, mounts)
        return 200, {"data": {"instance_ids": [made]}}

    def _check_image(self, image: dict[str, Any], kind: str, region: str) -> None:
        machine = "arm64" if "gh200" in kind else "x86_64"
        fits = [
            one
            for one in self.images.values()
            if one["region"]["name"] == region
            and one["architecture"] == machine
            and image in ({"id": one["id"]}, {"family": one["family"]})
        ]
        if not fits:
            raise missing(f"The image {image}")

    def _mounts(self, body: dict[str, Any], region: str) -> list[dict[str, str]]:
        """What is mounted where; a mount point of the request outranks a filesystem's own."""
        named = {one["name"]: one for one in self.filesystems.values()}
        asked = {one["file_system_id"]: one["mount_point"] for one in body.get("file_system_mounts", ())}
        for name in body.get("file_system_names", ()):
            if name not in named:
                raise missing(f"The filesystem {name}")
            asked.setdefault(named[name]["id"], named[name]["mount_point"])
        for made in asked:
            if made not in self.filesystems:
                raise missing(f"The filesystem {made}")
            if self.filesystems[made]["region"]["name"] != region:
                code = "instance-operations/launch/file-system-in-wrong-region"
                raise no(400, code, f"{made} is in another region.")
        return [{"mount_point": point, "file_system_id": made} for made, point in asked.items()]

    def _launched(self, body: dict[str, Any], mounts: list[dict[str, str]]) -> str:
        made = self._id("instance")
        instance: dict[str, Any] = {
            "id": made,
            "status": "booting",
            "ssh_key_names": body["ssh_key_names"],
            "file_system_names": [self.filesystems[one["file_system_id"]]["name"] for one in mounts],
            "region": _region(body["region_name"]),
            "instance_type": _type(body["instance_type_name"]),
            "actions": _actions("vm-has-not-launched"),
            "tags": body.get("tags", []),
        }
        instance |= {name: body[name] for name in ("name", "hostname") if name in body}
        instance |= {"file_system_mounts": mounts} if mounts else {}
        self.instances[made] = instance
        self.user_data[made] = body.get("user_data", "")
        if self.late:
            self._hidden.add(made)
            self.clock.later(self.late, lambda: self._hidden.discard(made))
        becomes = self.becomes
        self.clock.later(BOOT, lambda: self._booted(instance, becomes))
        return made

    def _booted(self, instance: dict[str, Any], becomes: str) -> None:
        if instance["status"] != "booting":
            return
        instance |= {"status": becomes, "actions": _actions(None)}
        if becomes == "active":
            instance["ip"] = self.address(instance["id"])
            instance["private_ip"] = f"10.19.{int(instance['id'][:2], 16)}.{int(instance['id'][2:4], 16)}"
            instance.setdefault("hostname", instance["ip"].replace(".", "-"))

    @route("POST /api/v1/instance-operations/terminate")
    def terminate(self, asked: Asked) -> Answer:
        body = _fields(asked.body, {"instance_ids": list}, ("instance_ids",))
        if not body["instance_ids"] or not all(isinstance(made, str) for made in body["instance_ids"]):
            raise invalid("`instance_ids` are not ids.")
        ending = [self._has(made) for made in body["instance_ids"]]
        for instance in ending:
            if instance["status"] in ("terminated", "preempted"):
                raise missing(f"The instance {instance['id']}")
        for instance in ending:
            if instance["status"] != "terminating":
                instance |= {"status": "terminating", "actions": _actions("vm-is-terminating")}
                self.clock.later(END, functools.partial(self.end, instance["id"], "terminated"))
        return 200, {"data": {"terminated_instances": ending}}

    def end(self, made: str, status: str) -> None:
        """An instance is gone: terminated, or `preempted` by the cloud itself."""
        instance = self.instances[made]
        if instance["status"] in ("terminated", "preempted"):
            return
        instance["status"] = status
        self.capacity[instance["instance_type"]["name"], instance["region"]["name"]] += 1
        self.clock.later(3600, lambda: self.instances.pop(made, None))
        self.ended(made)


def _region(name: str) -> dict[str, str]:
    return {"name": name, "description": REGIONS[name]}


def _type(name: str) -> dict[str, Any]:
    gpu, gpus, cpus, memory, storage, cents = TYPES[name]
    return {
        "name": name,
        "description": f"{gpus}x {gpu}",
        "gpu_description": gpu,
        "price_cents_per_hour": cents,
        "specs": {"vcpus": cpus, "memory_gib": memory, "storage_gib": storage, "gpus": gpus},
    }


def _actions(blocked: str | None) -> dict[str, Any]:
    """What can be done with an instance. Termination alone is possible while it boots."""
    out: dict[str, Any] = {}
    for name in ("migrate", "rebuild", "restart", "cold_reboot", "terminate"):
        why = None if name == "terminate" and blocked != "vm-is-terminating" else blocked
        out[name] = {"available": False, "reason_code": why} if why else {"available": True}
    return out


def _fields(body: Any, fields: dict[str, Any], needed: tuple[str, ...]) -> dict[str, Any]:
    if wrong := checked(body, fields, needed):
        raise invalid(f"`{wrong[0]}` {wrong[1]}.")
    found: dict[str, Any] = body
    return found


def _check_texts(body: dict[str, Any]) -> None:
    """The forms of a launch's fields."""
    keys, names = body["ssh_key_names"], body.get("file_system_names", [])
    if len(keys) != 1 or not all(isinstance(one, str) for one in (*keys, *names)):
        raise invalid("Exactly one SSH key must be named.")
    if len(body.get("name", "")) > 64 or not _HOST.fullmatch(body.get("hostname", "x")):
        raise invalid("The name or the hostname is not valid.")
    if len(body.get("user_data", "").encode()) > MEBI:
        raise invalid("The user data is longer than 1 MB.")
    for tag in body.get("tags", ()):
        fields = _fields(tag, {"key": str, "value": str}, ("key", "value"))
        if len(fields["key"]) > 55 or not _TAG.fullmatch(fields["key"]) or len(fields["value"]) > 128:
            raise invalid(f"The tag {fields['key']} is not valid.")
    for mount in body.get("file_system_mounts", ()):
        fields = _fields(
            mount, {"mount_point": str, "file_system_id": str}, ("mount_point", "file_system_id")
        )
        if len(fields["mount_point"]) > 256 or not _MOUNT.fullmatch(fields["mount_point"]):
            raise invalid(f"{fields['mount_point']} is no mount point.")
    for ruleset in body.get("firewall_rulesets", ()):
        _fields(ruleset, {"id": str}, ("id",))
    if "image" in body:
        _fields(body["image"], {"id": str, "family": str}, ())
