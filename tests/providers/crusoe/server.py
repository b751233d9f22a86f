"""A stand-in for Crusoe Cloud: types, capacities, VMs, disks, InfiniBand partitions, and their operations.

Made on 30 November 2026 from the description that Crusoe publishes (Swagger 2.0, `v1`). Where that is
silent, it goes by Crusoe's own clients (the provider of Terraform, the CSI driver) and by those of others:

- A VM's state begins with `STATE_`, although the example is `RUNNING`. That of one in the making is a guess.
- A thing that does not exist is 404, of which the description does not speak. So is a new VM for a moment.
- Errors have a word as `code` (`words`); the description's examples have the status there.
- Names are not unique (`unique`): nobody says that they are.
- A quota that is used up is a 400 with nothing but a text. That is a guess; `out_of_stock` is none.
- A running VM can be deleted, and its disks attached and detached. They grow only while it is off.

It does not: stop and start VMs, run scripts, make images, snapshots, networks, firewalls, reservations or
NVLink domains, make VMs in bulk, or look at how old a request is. No machine is behind a VM.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import re
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import quote_plus

from tests.providers.cloud.stand_in import Clock, Pace, RefusedError, StandIn, checked, header, route
from tests.providers.cloud.web import Answer, Asked

Json = dict[str, Any]

BASE = "/v1"
PROJECT = "09ae8411-0fbb-411c-898c-2b8f19622ae1"
ORGANIZATION = "ab4a6b00-aa5f-408e-a9fb-ac6de5eb45ab"
SUBNET = "3cf2a9c5-2c5a-4a3b-8d8e-0c5a2f0e7b11"
NETWORK = "1ce839b7-3fab-46f9-8e54-7a6bb4ac1ffc"
FABRIC = "36c0b0d9-8b68-4869-addb-227b06b64ee0"
KEY_ID = "r_standin-key"
SECRET = "c3RhbmQtaW4tc2VjcmV0LWtleQ"  # base64 without padding, as Crusoe gives them
EAST, CENTRAL = "us-east1-a", "us-northcentral1-a"
OF_PROJECT = f"{BASE}/projects/{{project}}"
VMS = f"{OF_PROJECT}/compute/vms/instances"
DISKS = f"{OF_PROJECT}/storage/disks"
PARTITIONS = f"{OF_PROJECT}/networking/ib-partitions"

Fields = dict[str, type]
_VM: Fields = {
    **dict.fromkeys(("name", "type", "location", "image", "custom_image", "ssh_public_key"), str),
    **dict.fromkeys(("startup_script", "shutdown_script", "maintenance_policy"), str),
    **dict.fromkeys(("disks", "network_interfaces", "host_channel_adapters"), list),
    "install_crusoe_watch_agent": bool,
    "reservation_specification": dict,
}
_DISK: Fields = {"name": str, "location": str, "size": str, "type": str, "block_size": int}
_ATTACHMENT: Fields = dict.fromkeys(("disk_id", "mode", "attachment_type"), str)
_ADAPTER: Fields = dict.fromkeys(("transport_partition_id", "ib_partition_id"), str)
_RESERVATION: Fields = dict.fromkeys(("id", "selection_strategy"), str)
_TEXTS = ("id", "name", "network", "subnet", "interface_type", "mac_address", "external_dns_name")
_INTERFACE: Fields = {**dict.fromkeys(_TEXTS, str), "ips": list}
_ADDRESSES: Fields = {"private_ipv4": dict, "public_ipv4": dict}


def signature(method: str, path: str, params: Any, when: str, secret: str = SECRET) -> str:
    """What a request is signed with: its whole path, its sorted query, its method and its time."""
    query = "&".join(f"{quote_plus(name)}={quote_plus(text)}" for name, text in sorted(params.items()))
    key = base64.urlsafe_b64decode(secret + "=" * (-len(secret) % 4))
    message = f"{path}\n{query}\n{method}\n{when}\n".encode()
    return base64.urlsafe_b64encode(hmac.new(key, message, hashlib.sha256).digest()).decode().rstrip("=")


def vm_type(name: str, cpus: int, memory: int, gpu: str = "", gpus: int = 0) -> Json:
    """An item of the list of types."""
    return {
        "product_name": name,
        "description": f"{gpus}x {gpu}" if gpus else f"{cpus} vCPUs",
        "cpu_cores": cpus,
        "cpu_type": "amd",
        "memory_gb": memory,
        "memory_type": "RAM",
        "disk_gb": 960 if gpus else 0,
        "disk_type": "NVMe",
        "num_gpu": gpus,
        "gpu_type": gpu,
    }


class Crusoe(StandIn):
    """`answer` for a `Web`."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.types = [
            vm_type("c1a.2x", 2, 8),
            vm_type("l40s-48gb.1x", 8, 147, "L40S 48GB", 1),
            vm_type("h100-80gb-sxm-ib.8x", 176, 960, "H100 80GB SXM", 8),
        ]
        self.stock = {("c1a.2x", EAST): 50, ("c1a.2x", CENTRAL): 50, ("l40s-48gb.1x", EAST): 10}
        self.stock["h100-80gb-sxm-ib.8x", CENTRAL] = 4
        """VMs that there is hardware for, by type and location."""
        self.quota = {"c1a": 400, "l40s-48gb": 16, "h100-80gb-sxm-ib": 64, "persistent-ssd": 102_400}
        """CPUs, GPUs or GiB that the project may use."""
        self.images = {"ubuntu22.04": ["latest"], "ubuntu22.04-nvidia-sxm-docker": ["latest"]}
        self.custom_images = {"8a5c1d5e-31cb-4f3c-9a7d-6f0a8d3f5a10": "my-image"}
        self.vms: dict[str, Json] = {}
        self.bodies: dict[str, Json] = {}
        """What each VM was asked for with, `startup_script` and all."""
        self.disks: dict[str, Json] = {}
        self.partitions: dict[str, Json] = {}
        self.operations: dict[str, Json] = {}
        self.reservations: set[str] = set()
        """Their ids. That a VM is in one is kept, and changes nothing."""
        self.late, self.boot, self.work, self.retention = 2.0, 60.0, 3.0, 3600.0
        """Seconds until a new thing is listed, a VM runs, another change is done, and that is forgotten."""
        self.page = 100
        """VMs on a page, unless a request has another `limit`."""
        self.unique = False
        """Whether a name is taken by one VM, and by one disk, of the project."""
        self.words = True
        """Whether the `code` of an error is a word. If not, it is the status."""
        self.pace: Pace | None = None
        """The requests that are allowed. The description has no limit; Crusoe's own clients expect a 429."""
        self._hidden: set[str] = set()
        """The ids of things that are not listed yet, and of operations that are not listed any more."""
        self._count = 0

    # ------------------------------------------------------------------------- logins and refusals

    def refusal(self, status: int, word: str, message: str) -> RefusedError:
        return RefusedError(status, {"code": word if self.words else str(status), "message": message})

    def bad(self, message: str) -> RefusedError:
        return self.refusal(400, "bad_request", message)

    def missing(self, what: str) -> RefusedError:
        return self.refusal(404, "not_found", f"{what} not found")

    def unknown(self, asked: Asked) -> RefusedError:
        return self.missing(asked.line)

    def admit(self, asked: Asked) -> None:
        when = header(asked, "X-Crusoe-Timestamp")
        expected = f"Bearer 1.0:{KEY_ID}:{signature(asked.method, asked.path, asked.params, when)}"
        if not hmac.compare_digest(header(asked, "Authorization"), expected) or not _moment(when):
            raise self.refusal(401, "bad_credential", "the credential is invalid")
        if self.pace and not self.pace.allows():
            raise self.refusal(429, "too_many_requests", "rate limit exceeded")
        project = re.match(rf"{BASE}/projects/([^/]+)", asked.path)
        if project and project[1] != PROJECT:
            raise self.refusal(403, "unauthorized", "the project does not exist or is not yours")

    def _body(self, body: Any, fields: Fields, *needed: str) -> Json:
        wrong = checked(body, fields, needed)
        if wrong:
            raise self.bad(f"{wrong[0]} {wrong[1]}")
        return dict(body)

    # ---------------------------------------------------------------------------- what there is

    @route(f"GET {BASE}/organizations/projects")
    def list_projects(self, asked: Asked) -> Answer:
        counts = {"instances": len(self.vms), "disks": len(self.disks), "snapshots": 0, "images": 0}
        resources = {name: {"count": count} for name, count in {**counts, "vpc_networks": 1}.items()}
        about = {"organization_id": ORGANIZATION, "relation": "owner", "resources": resources}
        project = {"id": PROJECT, "name": "default", **about}
        return 200, {"items": [project] if _fits(asked, "project_name", "default") else []}

    @route(f"GET {BASE}/locations")
    def list_locations(self, asked: Asked) -> Answer:
        return 200, {"items": [EAST, CENTRAL]}

    @route(f"GET {BASE}/capacities")
    def list_capacities(self, asked: Asked) -> Answer:
        items = [
            {
                "type": name,
                "location": location,
                "quantity": count,
                "num_slices": 1,
                "quota_type": name.split(".")[0],
            }
            for (name, location), count in self.stock.items()
            if _fits(asked, "product_name", name) and _fits(asked, "location", location)
        ]
        return 200, {"items": items}

    @route(f"GET {OF_PROJECT}/compute/vms/types")
    def list_types(self, asked: Asked, project: str) -> Answer:
        return 200, {"items": self.types}

    @route(f"GET {OF_PROJECT}/quotas")
    def list_quotas(self, asked: Asked, project: str) -> Answer:
        quotas = [
            {
                "programmatic_name": name,
                "max": most,
                "used": self._used(name),
                "available": most - self._used(name),
                "category": "Storage" if name == "persistent-ssd" else "GPU Instance",
                "description": name,
                "type": f"PROJECT_QUOTA_TYPE_{name}",
            }
            for name, most in self.quota.items()
        ]
        return 200, {"quotas": quotas}

    @route(f"GET {BASE}/compute/images")
    def list_images(self, asked: Asked) -> Answer:
        return 200, {"items": [self._image(name, name, tags) for name, tags in self.images.items()]}

    @route(f"GET {OF_PROJECT}/compute/custom-images")
    def list_custom_images(self, asked: Asked, project: str) -> Answer:
        return 200, {"items": [self._image(made, name, []) for made, name in self.custom_images.items()]}

    def _image(self, made: str, name: str, tags: list[str]) -> Json:
        about = {"id": made, "name": name, "description": name, "tags": tags}
        return {**about, "created_at": "2026-06-01T00:00:00Z", "locations": [EAST, CENTRAL]}

    @route(f"GET {OF_PROJECT}/networking/vpc-subnets")
    def list_subnets(self, asked: Asked, project: str) -> Answer:
        subnet = {"id": SUBNET, "name": "default-subnet", "vpc_network_id": NETWORK, "cidr": "172.27.0.0/16"}
        return 200, {"items": [{**subnet, "location": EAST}]}

    # ------------------------------------------------------------------------------- InfiniBand

    @route(f"GET {OF_PROJECT}/networking/ib-networks")
    def list_fabrics(self, asked: Asked, project: str) -> Answer:
        capacities = [
            {"slice_type": name, "quantity": count}
            for (name, location), count in self.stock.items()
            if location == CENTRAL and "-ib." in name
        ]
        network = {"id": FABRIC, "name": "ib-network-1", "location": CENTRAL, "capacities": capacities}
        return 200, {"items": [network]}

    @route(f"GET {PARTITIONS}")
    def list_partitions(self, asked: Asked, project: str) -> Answer:
        return 200, {"items": list(self.partitions.values())}

    @route(f"POST {PARTITIONS}")
    def make_partition(self, asked: Asked, project: str) -> Answer:
        body = self._body(asked.body, {"name": str, "ib_network_id": str}, "name", "ib_network_id")
        if body["ib_network_id"] != FABRIC:
            raise self.bad("the InfiniBand network does not exist")
        made = str(uuid.uuid4())
        self.partitions[made] = {"id": made, **body}
        return 200, self.partitions[made]

    @route(f"DELETE {PARTITIONS}/{{partition}}")
    def drop_partition(self, asked: Asked, project: str, partition: str) -> Answer:
        self._thing(self.partitions, partition)
        adapters = [one for vm in self.vms.values() for one in vm["host_channel_adapters"]]
        if any(one["ib_partition_id"] == partition for one in adapters):
            raise self.bad("the InfiniBand partition has VMs")
        del self.partitions[partition]
        return 200, None

    # ------------------------------------------------------------------------------- operations

    def _begin(self, kind: str, verb: str, thing: str) -> Json:
        made = str(uuid.uuid4())
        self.operations[made] = {
            "operation_id": made,
            "state": "IN_PROGRESS",
            "started_at": self.clock.text(),
            "completed_at": "",
            "metadata": {"operation_name": verb, "id": thing, "type": kind},
        }
        return self.operations[made]

    def _end(self, operation: Json, outcome: Json, *, failed: bool = False) -> None:
        operation["state"] = "FAILED" if failed else "SUCCEEDED"
        operation["completed_at"] = self.clock.text()
        operation["result"] = copy.deepcopy(outcome)
        self.clock.later(self.retention, lambda: self.operations.pop(operation["operation_id"]))

    def _operate(
        self, kind: str, verb: str, thing: str, change: Callable[[], Json], wait: float = 0
    ) -> Answer:
        """Begin what `change` does after `wait` seconds; if it refuses, the operation fails."""
        operation = self._begin(kind, verb, thing)

        def done() -> None:
            try:
                self._end(operation, change())
            except RefusedError as refused:
                self._end(operation, refused.answer[1], failed=True)

        self.clock.later(wait or self.work, done)
        return 200, {"operation": dict(operation)}

    @route(f"GET {VMS}/operations")
    def list_vm_operations(self, asked: Asked, project: str) -> Answer:
        return self._list_operations(asked, "vm")

    @route(f"GET {DISKS}/operations")
    def list_disk_operations(self, asked: Asked, project: str) -> Answer:
        return self._list_operations(asked, "disk")

    def _list_operations(self, asked: Asked, kind: str) -> Answer:
        """Those that go on, and those that ended and nobody asked for."""
        items = [
            one
            for made, one in self.operations.items()
            if one["metadata"]["type"] == kind
            and made not in self._hidden
            and _fits(asked, "state", one["state"])
            and _fits(asked, "resource_id", one["metadata"]["id"])
        ]
        return 200, {"items": items}

    @route(f"GET {VMS}/operations/{{operation}}")
    def show_vm_operation(self, asked: Asked, project: str, operation: str) -> Answer:
        return self._show_operation("vm", operation)

    @route(f"GET {DISKS}/operations/{{operation}}")
    def show_disk_operation(self, asked: Asked, project: str, operation: str) -> Answer:
        return self._show_operation("disk", operation)

    def _show_operation(self, kind: str, made: str) -> Answer:
        operation = self.operations.get(made)
        if operation is None or operation["metadata"]["type"] != kind:
            raise self.refusal(403, "unauthorized", "the operation does not exist or has expired")
        if operation["state"] != "IN_PROGRESS":
            self._hidden.add(made)
        return 200, operation

    # -------------------------------------------------------------------------------------- VMs

    @route(f"GET {VMS}")
    def list_vms(self, asked: Asked, project: str) -> Answer:
        shown = [vm for made, vm in self.vms.items() if made not in self._hidden]
        for param, field in (("ids", "id"), ("names", "name"), ("types", "type"), ("states", "state")):
            shown = [vm for vm in shown if _fits(asked, param, vm[field])]
        shown = sorted((vm for vm in shown if _fits(asked, "locations", vm["location"])), key=_place)
        try:
            size = max(int(asked.params.get("limit") or self.page), 1)
            after = _unpacked(asked.params.get("next_token", ""))
        except ValueError as error:
            raise self.bad("the limit or the token is invalid") from error
        rest = [vm for vm in shown if _place(vm) > after]
        more = _packed(_place(rest[size - 1])) if len(rest) > size else ""
        return 200, {"items": rest[:size], "next_page_token": more}

    @route(f"GET {VMS}/{{vm}}")
    def show_vm(self, asked: Asked, project: str, vm: str) -> Answer:
        return 200, self._thing(self.vms, vm)

    def _thing(self, things: dict[str, Json], made: str) -> Json:
        if made not in things or made in self._hidden:
            raise self.missing(made)
        return things[made]

    @route(f"POST {VMS}")
    def make_vm(self, asked: Asked, project: str) -> Answer:
        body = self._body(asked.body, _VM, "name", "type", "location", "ssh_public_key")
        name, kind, location = body["name"], body["type"], body["location"]
        self._check_name(name, self.vms)
        self._check_image(body)
        self._interface_of(body)
        reservation = self._body(body.get("reservation_specification", {}), _RESERVATION).get("id", "")
        if reservation and reservation not in self.reservations:
            raise self.bad("the reservation does not exist")
        if (kind, location) not in self.stock:
            raise self.bad(f"there is no {kind} in {location}")
        if not re.match(r"(ssh|ecdsa)-\S+ \S+", body["ssh_public_key"]):
            raise self.bad("the SSH key is invalid")
        self._check_attachments(body.get("disks", []), location)
        partition = self._partition_of(body, kind)
        self._check_quota(kind.split(".")[0], self._weight(kind))

        made = str(uuid.uuid4())
        if not self.stock[kind, location]:
            sold_out = {"code": "out_of_stock", "message": f"there is no capacity for {kind} in {location}"}

            def failed() -> Json:
                raise RefusedError(200, sold_out)

            return self._operate("vm", "CREATE", made, failed)
        self.stock[kind, location] -= 1
        now = self.clock.text()
        vm: Json = {
            "id": made,
            "name": name,
            "type": kind,
            "location": location,
            "project_id": PROJECT,
            "state": "STATE_CREATING",
            "created_at": now,
            "updated_at": now,
            "billing_type": "On-demand",
            "disks": [],
            "network_interfaces": [],
            "pod_id": f"pod-{partition or made}",
            "reservation_id": reservation,
            "maintenance_policy": body.get("maintenance_policy", "unspecified"),
            "host_channel_adapters": [_adapter(partition)] if partition else [],
        }
        self.vms[made], self.bodies[made] = vm, body
        self._show_later(made)
        os_disk = self._new_disk(f"{name}-os", location, 128, "persistent-ssd", 512)
        attachments = [{"disk_id": os_disk["id"], "mode": "read-write", "attachment_type": "os"}]
        self._attach(vm, [*attachments, *body.get("disks", [])])
        return self._operate("vm", "CREATE", made, lambda: self._run(vm), self.boot)

    def _run(self, vm: Json) -> Json:
        if vm["state"] != "STATE_CREATING":
            raise self.bad("the VM was deleted")
        self._count += 1
        private, public = self.addresses(self._count)
        subnet, kind = self._interface_of(self.bodies[vm["id"]])
        ips = {
            "private_ipv4": {"address": private},
            "public_ipv4": {"address": public, "id": str(uuid.uuid4()), "type": kind},
        }
        interface = {
            "id": str(uuid.uuid4()),
            "name": "eth0",
            "network": NETWORK,
            "subnet": subnet,
            "interface_type": "ethernet",
            "mac_address": f"00:00:5e:00:53:{self._count % 256:02x}",
            "ips": [ips],
            "external_dns_name": f"{vm['name']}.example.test",
        }
        return _changed(
            vm, state="STATE_RUNNING", network_interfaces=[interface], updated_at=self.clock.text()
        )

    def addresses(self, number: int) -> tuple[str, str]:
        """The private and the public address of the VM that is the so many-th to run."""
        return f"172.27.{number // 256}.{number % 256}", f"198.18.{number // 256}.{number % 256}"

    @route(f"DELETE {VMS}/{{vm}}")
    def drop_vm(self, asked: Asked, project: str, vm: str) -> Answer:
        self._thing(self.vms, vm)["state"] = "STATE_DELETING"
        return self._operate("vm", "DELETE", vm, lambda: self._dropped(vm))

    def _dropped(self, made: str) -> Json:
        vm = self._thing(self.vms, made)
        self.stock[vm["type"], vm["location"]] += 1
        for one in vm["disks"]:
            self._free(one["id"], made)
            if one["attachment_type"] == "os":
                del self.disks[one["id"]]
        del self.vms[made]
        return {}

    def _check_image(self, body: Json) -> None:
        image, custom = body.get("image"), body.get("custom_image")
        if image and custom:
            raise self.bad("either image or custom_image, not both")
        name, _, tag = (image or "ubuntu22.04:latest").partition(":")
        if tag not in self.images.get(name, []) or (custom and custom not in self.custom_images):
            raise self.bad(f"the image {image or custom} does not exist")

    def _check_name(self, name: str, things: dict[str, Json]) -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name):
            raise self.bad("the name is invalid")
        if self.unique and any(one["name"] == name for one in things.values()):
            raise self.bad(f"the name {name} already exists")

    def _check_quota(self, name: str, more: int) -> None:
        if self._used(name) + more > self.quota[name]:
            raise self.bad(f"quota exceeded for {name}: {self._used(name)} of {self.quota[name]} used")

    def _used(self, name: str) -> int:
        if name == "persistent-ssd":
            return sum(_gib(disk["size"]) or 0 for disk in self.disks.values() if disk["type"] == name)
        return sum(self._weight(vm["type"]) for vm in self.vms.values() if vm["type"].startswith(f"{name}."))

    def _weight(self, kind: str) -> int:
        """The GPUs of a type, or its CPUs if it has none."""
        about = next(one for one in self.types if one["product_name"] == kind)
        return int(about["num_gpu"] or about["cpu_cores"])

    def _partition_of(self, body: Json, kind: str) -> str:
        adapters = [self._body(one, _ADAPTER) for one in body.get("host_channel_adapters", [])]
        texts = [one.get("transport_partition_id") or one.get("ib_partition_id") for one in adapters]
        partition = str(next(filter(None, texts), ""))
        if partition and (partition not in self.partitions or body["location"] != CENTRAL):
            raise self.bad("the partition does not exist in this location")
        if bool(partition) != ("-ib." in kind):
            raise self.bad("a partition is for types with InfiniBand, and these need one")
        return partition

    def _interface_of(self, body: Json) -> tuple[str, str]:
        """The subnet and the type of the public address that are asked for. The fields of an interface that a
        request need not have may be missing, or empty as Crusoe's own clients send them.
        """
        interface = self._body((body.get("network_interfaces") or [{}])[0], _INTERFACE)
        addresses = self._body((interface.get("ips") or [{}])[0], _ADDRESSES)
        public = self._body(addresses.get("public_ipv4", {}), dict.fromkeys(("address", "id", "type"), str))
        subnet, kind = interface.get("subnet") or SUBNET, public.get("type") or "dynamic"
        if subnet != SUBNET or kind not in ("dynamic", "static"):
            raise self.bad("the subnet or the type of the public address does not exist")
        return subnet, kind

    def _show_later(self, made: str) -> None:
        self._hidden.add(made)
        self.clock.later(self.late, lambda: self._hidden.discard(made))

    # ------------------------------------------------------------------------------------ disks

    @route(f"GET {DISKS}")
    def list_disks(self, asked: Asked, project: str) -> Answer:
        systems = {
            one["id"] for vm in self.vms.values() for one in vm["disks"] if one["attachment_type"] == "os"
        }
        items = [
            disk
            for made, disk in self.disks.items()
            if made not in self._hidden
            and not (asked.params.get("exclude_os") == "true" and made in systems)
            and _fits(asked, "disk_ids", made)
            and _fits(asked, "disk_names", disk["name"])
            and _fits(asked, "location", disk["location"])
        ]
        return 200, {"items": items}

    @route(f"GET {DISKS}/{{disk}}")
    def show_disk(self, asked: Asked, project: str, disk: str) -> Answer:
        return 200, self._thing(self.disks, disk)

    @route(f"POST {DISKS}")
    def make_disk(self, asked: Asked, project: str) -> Answer:
        body = self._body(asked.body, _DISK, "name", "location", "size")
        kind, block = body.get("type", "persistent-ssd"), body.get("block_size", 512)
        self._check_name(body["name"], self.disks)
        size = self._size(body["size"])
        if kind not in ("persistent-ssd", "shared-volume") or block not in (512, 4096):
            raise self.bad("the type or the block size is invalid")
        if body["location"] not in (EAST, CENTRAL):
            raise self.bad("the location does not exist")
        if kind == "persistent-ssd":
            self._check_quota(kind, size)
        disk = self._new_disk(body["name"], body["location"], size, kind, block)
        self._show_later(disk["id"])
        return self._operate("disk", "CREATE", disk["id"], lambda: disk)

    @route(f"PATCH {DISKS}/{{disk}}")
    def grow_disk(self, asked: Asked, project: str, disk: str) -> Answer:
        body = self._body(asked.body, {"size": str}, "size")
        thing, size = self._thing(self.disks, disk), self._size(body["size"])
        if size <= (_gib(thing["size"]) or 0):
            raise self.bad("a disk can only become larger")
        if any(self.vms[one["vm_id"]]["state"] == "STATE_RUNNING" for one in thing["attached_to"]):
            raise self.bad("the disk is attached to a VM that is not powered off")
        if thing["type"] == "persistent-ssd":
            self._check_quota(thing["type"], size - (_gib(thing["size"]) or 0))

        news = {"size": f"{size}GiB", "updated_at": self.clock.text()}
        return self._operate("disk", "RESIZE", disk, lambda: _changed(thing, **news))

    @route(f"DELETE {DISKS}/{{disk}}")
    def drop_disk(self, asked: Asked, project: str, disk: str) -> Answer:
        thing = self._thing(self.disks, disk)

        def dropped() -> Json:
            if thing["attached_to"]:
                raise self.bad("the disk is attached to a VM")
            return self.disks.pop(disk, {}) and {}

        return self._operate("disk", "DELETE", disk, dropped)

    @route(f"POST {VMS}/{{vm}}/attach-disks")
    def attach_disks(self, asked: Asked, project: str, vm: str) -> Answer:
        body = self._body(asked.body, {"attach_disks": list}, "attach_disks")
        thing = self._settled(vm)
        self._check_attachments(body["attach_disks"], thing["location"])
        if len(thing["disks"]) + len(body["attach_disks"]) > 16:
            raise self.bad("a VM has 16 disks at most")
        return self._operate("vm", "ATTACH", vm, lambda: self._attach(thing, body["attach_disks"]))

    @route(f"POST {VMS}/{{vm}}/detach-disks")
    def detach_disks(self, asked: Asked, project: str, vm: str) -> Answer:
        body = self._body(asked.body, {"detach_disks": list}, "detach_disks")
        thing = self._settled(vm)
        data = {one["id"] for one in thing["disks"] if one["attachment_type"] == "data"}
        if not data.issuperset(body["detach_disks"]):
            raise self.bad("the disk is not attached to this VM as a data disk")

        def detached() -> Json:
            for disk in body["detach_disks"]:
                self._free(disk, vm)
            thing["disks"] = [one for one in thing["disks"] if one["id"] not in body["detach_disks"]]
            return thing

        return self._operate("vm", "DETACH", vm, detached)

    def _settled(self, vm: str) -> Json:
        thing = self._thing(self.vms, vm)
        if thing["state"] != "STATE_RUNNING":
            raise self.bad(f"the VM is in {thing['state']}")
        return thing

    def _check_attachments(self, attachments: list[Any], location: str) -> None:
        ids = [self._body(one, _ATTACHMENT, *_ATTACHMENT)["disk_id"] for one in attachments]
        for made, one in zip(ids, attachments, strict=True):
            disk = self.disks.get(made)
            if disk is None or disk["location"] != location or ids.count(made) > 1:
                raise self.bad(f"the disk {made} does not exist in {location}, or is named twice")
            if one["mode"] not in ("read-only", "read-write") or one["attachment_type"] not in ("os", "data"):
                raise self.bad("the mode or the attachment type is invalid")
            writers = "read-write" in [one["mode"], *(holder["mode"] for holder in disk["attached_to"])]
            if disk["attached_to"] and writers and disk["type"] == "persistent-ssd":
                raise self.bad(f"the disk {made} is already attached")

    def _attach(self, vm: Json, attachments: list[Json]) -> Json:
        self._check_attachments(attachments, vm["location"])
        for one in attachments:
            disk, how = self.disks[one["disk_id"]], {name: one[name] for name in ("mode", "attachment_type")}
            disk["attached_to"].append({"vm_id": vm["id"], **how})
            shown = {
                name: thing for name, thing in disk.items() if name not in ("attached_to", "dns_name", "vips")
            }
            vm["disks"].append({**shown, **how})
        return vm

    def _free(self, disk: str, vm: str) -> None:
        thing = self.disks[disk]
        thing["attached_to"] = [one for one in thing["attached_to"] if one["vm_id"] != vm]

    def _new_disk(self, name: str, location: str, size: int, kind: str, block: int) -> Json:
        made, now = str(uuid.uuid4()), self.clock.text()
        shared = {"dns_name": "nfs.example.test", "vips": ["192.0.2.1", "192.0.2.8"]}
        self.disks[made] = {
            "id": made,
            "name": name,
            "type": kind,
            "size": f"{size}GiB",
            "location": location,
            "block_size": block,
            "created_at": now,
            "updated_at": now,
            "attached_to": [],
            "serial_number": made.replace("-", "")[:20].upper(),
            **(shared if kind == "shared-volume" else {}),
        }
        return self.disks[made]

    def _size(self, text: str) -> int:
        size = _gib(text)
        if size is None or not 1 <= size <= 10 * 1024:
            raise self.bad("the size is invalid")
        return size


def _changed(thing: Json, **news: Any) -> Json:
    thing.update(news)
    return thing


def _gib(text: str) -> int | None:
    match = re.fullmatch(r"(\d{1,9})(GiB|TiB)", text)
    return int(match[1]) * (1024 if match[2] == "TiB" else 1) if match else None


def _fits(asked: Asked, param: str, text: str) -> bool:
    """Whether a filter, a list with commas, lets something through."""
    chosen = asked.params.get(param)
    return not chosen or text in chosen.split(",")


def _place(vm: Json) -> str:
    return f"{vm['name']} {vm['id']}"


def _packed(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _unpacked(token: str) -> str:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


def _moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _adapter(partition: str) -> Json:
    ids = {"ib_network_id": FABRIC, "ib_partition_id": partition}
    return {
        "type": "infiniband",
        "guid": "946d:ae03:0021:69aa",
        **ids,
        "transport_network_id": FABRIC,
        "transport_partition_id": partition,
    }
