"""A small Hyperstack: flavors, prices, environments, keypairs, machines and volumes, as far as a driver needs
them.

Written from the OpenAPI description of Hyperstack's API that release 1.52.3-alpha of its Go client holds (17
June 2026), and from its reference pages of August 2026; not compared with the cloud. It is strict in these
points: fields that the description does not know are refused; names are taken until their thing is gone; a
machine cannot be deleted while it is being created; its public address comes after it is active; a volume is
attached and detached later than the answer, and keeps its old attachments as `DETACHED`; listings have pages
that shift; 500 requests are allowed in a minute. Prices are texts, as people report, though the description
has numbers.

It leaves out counts of the stock, firewalls as things of their own, snapshots, hibernation, contracts,
callbacks, Kubernetes, bootable volumes, and machines by the dozen: `count` is 1. There are no private
networks to make: the machines of an environment share one.

The description does not say, and so this is a guess: names of machines and of volumes are unique in the
account, those of keypairs in their environment; no capacity and a quota are both a `bad_request`, told apart
by `stock_available` and `vm-quota` alone; without `page`, ten things are listed; an unknown volume is a 400
(no 404 is described); a machine is deleted once (409 after that); what is in the body of a 429.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tests.providers.cloud.stand_in import Clock, Pace, RefusedError, StandIn, checked, header, route
from tests.providers.cloud.web import Answer, Asked

KEY = "2f1b0c9e-fleet-4d5e"
REGIONS = ("NORWAY-1", "CANADA-1")
FLAVORS: dict[str, tuple[str, int, int, float, int, int]] = {
    "n1-cpu-small": ("", 0, 4, 4, 100, 0),
    "n3-L40x1": ("L40", 1, 28, 58, 100, 725),
    "n3-H100x8": ("H100-80G-PCIe", 8, 252, 1440, 100, 6300),
    "n3-H100x8-spot": ("H100-80G-PCIe-spot", 8, 252, 1440, 100, 6300),
}
"""Flavor → GPU, number of GPUs, CPUs, GB of memory, GB of the disk that it boots from, GB of a local disk."""
PRICES = {
    "vCPU": "0E-9",
    "RAM": "0E-9",
    "vCPU (cpu-only-flavors)": "0.012500000",
    "RAM (cpu-only-flavors)": "0.001700000",
    "L40": "1.000000000",
    "H100-80G-PCIe": "1.900000000",
    "H100-80G-PCIe-spot": "1.520000000",
    "Cloud-SSD": "0.000096774",
    "Public IP": "0.006710000",
}
"""Dollars in an hour: of one GPU, one CPU, one GB, one address. With GPUs, CPUs and memory cost nothing."""
IMAGES = ("Ubuntu Server 24.04 LTS (Noble Numbat)", "Ubuntu Server 22.04 LTS R535 CUDA 12.2")
BUILD, BOOT, ADDRESS, END = 5.0, 60.0, 15.0, 20.0
"""Seconds until a machine is built, then active, then has its public address; until one is gone."""
DISK = 5.0
"""Seconds of each change of a volume."""
MOST = 10
"""Volumes of one machine."""
_FEATURES = {"network_optimised": False, "green_status": "GREEN"}
_RULE = {
    "direction": str,
    "ethertype": str,
    "protocol": str,
    "remote_ip_prefix": str,
    "port_range_min": int,
    "port_range_max": int,
}
_MACHINE = {
    "name": str,
    "environment_name": str,
    "flavor_name": str,
    "image_name": str,
    "key_name": str,
    "count": int,
    "user_data": str,
    "labels": list,
    "assign_floating_ip": bool,
    "enable_port_randomization": bool,
    "security_rules": list,
}
_VOLUME = {"name": str, "environment_name": str, "size": int, "volume_type": str, "description": str}


def no(status: int, reason: str, message: str) -> RefusedError:
    """A refusal, in Hyperstack's form."""
    return RefusedError(status, {"status": False, "message": message, "error_reason": reason})


def bad(message: str) -> RefusedError:
    """Most of what is refused: `bad_request`, whatever it was."""
    return no(400, "bad_request", message)


class Hyperstack(StandIn):
    """`answer` for a `Web`."""

    def __init__(self, clock: Clock | None = None, *, paced: bool = True) -> None:
        """`paced`: whether too many requests are refused."""
        super().__init__(clock)
        self.capacity = {(name, region): 4 for name in FLAVORS for region in REGIONS}
        """How many more machines a region has room for."""
        self.refusing: set[tuple[str, str]] = set()
        """Flavors and regions that are listed with stock, whose machines are refused for want of it."""
        self.quota = 250
        """The most machines of an environment."""
        self.broke = False
        """Whether the balance is used up."""
        self.becomes = "ACTIVE"
        """The status of machines that are made from now on, once they are built; or `ERROR`."""
        self.late = 0.0
        """Seconds until a machine can be found after its creation."""
        self.page = 100
        """The most things of one page."""
        self.address: Callable[[int], str] = lambda made: f"203.0.113.{made % 250 + 1}"
        """The public address of a machine that has booted."""
        self.ended: Callable[[int], None] = lambda made: None
        """Called when a machine is gone."""
        self.environments: dict[int, dict[str, Any]] = {}
        self.keypairs: dict[int, dict[str, Any]] = {}
        self.machines: dict[int, dict[str, Any]] = {}
        self.user_data: dict[int, str] = {}
        """By the ids of machines. No answer has it."""
        self.volumes: dict[int, dict[str, Any]] = {}
        self._hidden: set[int] = set()
        self._count = 1000
        self._requests = Pace(self.clock, 500, 60.0) if paced else None

    # -------------------------------------------------------------------------------- every request

    def admit(self, asked: Asked) -> None:
        if self._requests and not self._requests.allows():
            raise RefusedError(429, {"message": "Too Many Requests"})
        if header(asked, "api_key") != KEY:
            raise no(401, "unauthorized", "The API key is not valid.")

    def unknown(self, asked: Asked) -> RefusedError:
        return no(404, "not_found", f"{asked.line} is not there.")

    def _id(self) -> int:
        self._count += 1
        return self._count

    def _listed(self, name: str, things: list[dict[str, Any]], asked: Asked) -> Answer:
        """One page, the oldest things first. It begins after so many things, whatever they are by then."""
        things = [one for one in things if asked.params.get("search", "").lower() in one["name"].lower()]
        page, size = _number(asked.params, "page"), _number(asked.params, "pageSize")
        size = min(size, self.page) if size else None
        begin = ((page or 1) - 1) * (size or 10)
        body = {"status": True, "message": f"Getting {name} successful", "page": page, "page_size": size}
        return 200, {**body, "count": len(things), name: things[begin : begin + (size or 10)]}

    def _environment(self, name: Any) -> dict[str, Any]:
        for one in self.environments.values():
            if one["name"] == name:
                return one
        raise no(404, "not_found", f"Environment {name} does not exists.")

    def _in(self, name: str, kind: dict[int, dict[str, Any]], asked: Asked) -> Answer:
        """Those of an environment whose name has the given part, or is it."""
        part = asked.params.get("environment", "")
        whole = asked.params.get("exact_environment_match", "false").lower() == "true"
        found = [
            one
            for one in kind.values()
            if one["id"] not in self._hidden
            and (one["environment"]["name"] == part if whole else part in one["environment"]["name"])
        ]
        return self._listed(name, found, asked)

    # -------------------------------------------------------------------------------- what there is

    @route("GET /v1/core/flavors")
    def list_flavors(self, asked: Asked) -> Answer:
        regions = [asked.params["region"]] if asked.params.get("region") else list(REGIONS)
        if not set(regions) <= set(REGIONS):
            raise no(404, "not_found", f"Region {regions[0]} does not exists.")
        data = []
        for region in regions:
            for gpu in dict.fromkeys(one[0] for one in FLAVORS.values()):
                flavors = [
                    {
                        **_flavor(name),
                        "region_name": region,
                        "stock_available": self.capacity[name, region] > 0,
                    }
                    for name in FLAVORS
                    if FLAVORS[name][0] == gpu
                ]
                data.append({"gpu": gpu, "region_name": region, "flavors": flavors})
        return 200, {"status": True, "message": "Flavors", "data": data}

    @route("GET /v1/pricebook")
    def list_prices(self, asked: Asked) -> Answer:
        terms = {"discount_applied": False, "start_time": None, "end_time": None}
        prices = enumerate(PRICES.items(), 1)
        return 200, [{"id": n, "name": k, "value": v, "original_value": v, **terms} for n, (k, v) in prices]

    @route("GET /v1/core/images")
    def list_images(self, asked: Asked) -> Answer:
        groups = []
        for region in REGIONS:
            known = {"region_name": region, "type": "Ubuntu"}
            more = {"version": "1", "size": 2**32, "display_size": "4 GiB", "labels": [], "is_public": True}
            images = [{"id": IMAGES.index(name) + 1, "name": name, **known, **more} for name in IMAGES]
            if asked.params.get("region", region) == region:
                groups.append({**known, "logo": "", "images": images})
        return 200, {"status": True, "message": "Images", "images": groups}

    # ------------------------------------------------------------------------ environments and keys

    @route("GET /v1/core/environments")
    def list_environments(self, asked: Asked) -> Answer:
        return self._listed("environments", list(self.environments.values()), asked)

    @route("POST /v1/core/environments")
    def make_environment(self, asked: Asked) -> Answer:
        body = _fields(asked.body, {"name": str, "region": str}, ("name", "region"))
        if body["region"] not in REGIONS:
            raise no(404, "not_found", f"Region {body['region']} does not exists.")
        self._check_name(body["name"], self.environments.values())
        made = self._id()
        known = {"id": made, "name": body["name"], "region": body["region"], "features": _FEATURES}
        self.environments[made] = {**known, "created_at": self.clock.text()}
        message = "Environment has been created successfully"
        return 200, {"status": True, "message": message, "environment": self.environments[made]}

    @route("DELETE /v1/core/environments/{id}")
    def delete_environment(self, asked: Asked, made: str) -> Answer:
        environment = _has(self.environments, made, "Environment")
        things = [*self.machines.values(), *self.volumes.values(), *self.keypairs.values()]
        if any(one["environment"]["name"] == environment["name"] for one in things):
            raise bad("The environment is in use.")
        del self.environments[environment["id"]]
        return 200, {"status": True, "message": "Environment is being deleted."}

    @route("GET /v1/core/environments/{id}/vm-quota")
    def quota_of(self, asked: Asked, made: str) -> Answer:
        name = _has(self.environments, made, "Environment")["name"]
        used = sum(one["environment"]["name"] == name for one in self.machines.values())
        return 200, {
            "status": True,
            "message": "Quota",
            "cidr": "10.0.0.0/24",
            "current_vms": used,
            "max_vms": self.quota,
            "available_vms": max(self.quota - used, 0),
            "percentage_used": 100.0 * used / self.quota if self.quota else 100.0,
        }

    @route("GET /v1/core/keypairs")
    def list_keypairs(self, asked: Asked) -> Answer:
        return self._listed("keypairs", list(self.keypairs.values()), asked)

    @route("POST /v1/core/keypairs")
    def import_keypair(self, asked: Asked) -> Answer:
        fields = {"name": str, "environment_name": str, "public_key": str}
        body = _fields(asked.body, fields, tuple(fields))
        environment = self._environment(body["environment_name"])
        mine = (one for one in self.keypairs.values() if one["environment"]["name"] == environment["name"])
        self._check_name(body["name"], mine)
        if len(body["public_key"].split()) < 2:
            raise bad("The public key is not valid.")
        made = self._id()
        known = {"id": made, "name": body["name"], "public_key": body["public_key"], "fingerprint": "00:11"}
        self.keypairs[made] = {**known, "environment": environment, "created_at": self.clock.text()}
        return 200, {"status": True, "message": "Keypair added", "keypair": self.keypairs[made]}

    @route("DELETE /v1/core/keypair/{id}")
    def delete_keypair(self, asked: Asked, made: str) -> Answer:
        del self.keypairs[_has(self.keypairs, made, "Keypair")["id"]]
        return 200, {"status": True, "message": "Keypair deleted"}

    def _check_name(self, name: str, others: Any) -> None:
        if not 1 <= len(name) <= 50:
            raise bad("The name has more than 50 characters, or none.")
        if any(one["name"] == name for one in others):
            raise no(409, "already_exist", f"{name} already exists.")

    # -------------------------------------------------------------------------------------- machines

    @route("GET /v1/core/virtual-machines")
    def list_machines(self, asked: Asked) -> Answer:
        machines = {made: self._with_volumes(one) for made, one in self.machines.items()}
        return self._in("instances", machines, asked)

    @route("GET /v1/core/virtual-machines/{id}")
    def one_machine(self, asked: Asked, made: str) -> Answer:
        machine = self._machine(made)
        # Without a public address, this answer has an empty text where the listing has null.
        machine = {**self._with_volumes(machine), "floating_ip": machine["floating_ip"] or ""}
        return 200, {"status": True, "message": "Getting VM detail successful", "instance": machine}

    def _with_volumes(self, machine: dict[str, Any]) -> dict[str, Any]:
        out = []
        for volume in self.volumes.values():
            if (held := _holding(volume)) and held["instance_id"] == machine["id"]:
                names = ("id", "name", "description", "volume_type", "bootable", "size")
                attached = {name: held[name] for name in ("id", "status", "device", "protected")}
                out.append({**attached, "volume": {name: volume[name] for name in names}})
        return {**machine, "volume_attachments": out}

    def _machine(self, made: str) -> dict[str, Any]:
        machine = _has(self.machines, made, "VM")
        if machine["id"] in self._hidden:
            raise no(404, "not_found", f"VM {made} does not exists.")
        return machine

    @route("POST /v1/core/virtual-machines")
    def make_machine(self, asked: Asked) -> Answer:
        needed = ("name", "environment_name", "flavor_name", "image_name", "key_name", "count")
        body = _fields(asked.body, _MACHINE, needed)
        environment = self._environment(body["environment_name"])
        flavor, region = body["flavor_name"], environment["region"]
        mine = [one for one in self.keypairs.values() if one["environment"] == environment]
        for what, known in (
            ("flavor_name", FLAVORS),
            ("image_name", IMAGES),
            ("key_name", [one["name"] for one in mine]),
        ):
            if body[what] not in known:
                raise no(404, "not_found", f"{what} {body[what]} does not exists.")
        if body["count"] != 1 or not all(isinstance(label, str) for label in body.get("labels", ())):
            raise bad("The number of machines or a label is not valid.")
        for rule in body.get("security_rules", ()):
            _fields(rule, _RULE, ("direction", "ethertype", "protocol", "remote_ip_prefix"))
            if rule["protocol"] not in ("any", "tcp", "udp", "icmp"):
                raise bad(f"{rule['protocol']} is no protocol.")
        self._check_name(body["name"], self.machines.values())
        if self.broke:
            raise bad("Insufficient balance to create the resource")
        if sum(one["environment"]["id"] == environment["id"] for one in self.machines.values()) >= self.quota:
            raise bad("The limit of machines in the environment is reached.")
        if (flavor, region) in self.refusing or self.capacity[flavor, region] < 1:
            raise bad(f"There is not enough stock of {flavor}.")
        self.capacity[flavor, region] -= 1
        machine = self._made(body, environment)
        return 200, {
            "status": True,
            "message": "VM is scheduled for creation.",
            "instances": [self._with_volumes(machine)],
        }

    def _made(self, body: dict[str, Any], environment: dict[str, Any]) -> dict[str, Any]:
        made, public = self._id(), body.get("assign_floating_ip", False)
        place = {name: environment[name] for name in ("id", "name", "region", "features")}
        machine = {
            "id": made,
            "name": body["name"],
            "status": "CREATING",
            "environment": {**place, "org_id": 1},
            "image": {"name": body["image_name"]},
            "flavor": {k: v for k, v in _flavor(body["flavor_name"]).items() if k != "display_name"},
            "os": body["image_name"],
            "keypair": {"name": body["key_name"]},
            "power_state": None,
            "vm_state": None,
            "fixed_ip": None,
            "floating_ip": None,
            "floating_ip_status": "ATTACHING" if public else "NO FLOATING IP",
            "security_rules": [],
            "callback_url": None,
            "locked": False,
            "contract_id": None,
            "labels": body.get("labels", []),
            "created_at": self.clock.text(),
            "features": _FEATURES,
            "port_randomization": body.get("enable_port_randomization", True),
            "port_randomization_status": "NO_FLOATING_IP",
            "requires_public_ip": public,
        }
        self.machines[made] = machine
        self.user_data[made] = body.get("user_data", "")
        if self.late:
            self._hidden.add(made)
            self.clock.later(self.late, partial(self._hidden.discard, made))
        rules = [
            {"id": self._id(), "status": "SUCCESS", "created_at": self.clock.text(), **rule}
            for rule in body.get("security_rules", ())
        ]
        self.clock.later(BUILD, partial(machine.update, {"status": "BUILD", "vm_state": "building"}))
        self.clock.later(BUILD + BOOT, partial(self._booted, machine, self.becomes, rules))
        return machine

    def _booted(self, machine: dict[str, Any], becomes: str, rules: list[dict[str, Any]]) -> None:
        running = becomes == "ACTIVE"
        machine |= {"status": becomes, "vm_state": "active" if running else "error", "security_rules": rules}
        machine |= {"power_state": "RUNNING" if running else "NOSTATE"}
        if running:
            machine["fixed_ip"] = f"10.0.{machine['id'] >> 8 & 255}.{machine['id'] & 255}"
            if machine["requires_public_ip"]:
                self.clock.later(ADDRESS, partial(self._reachable, machine))

    def _reachable(self, machine: dict[str, Any]) -> None:
        machine |= {"floating_ip": self.address(machine["id"]), "floating_ip_status": "ATTACHED"}

    @route("PUT /v1/core/virtual-machines/{id}/label")
    def label_machine(self, asked: Asked, made: str) -> Answer:
        body = _fields(asked.body, {"labels": list}, ("labels",))
        if not all(isinstance(label, str) for label in body["labels"]):
            raise bad("A label is not valid.")
        self._machine(made)["labels"] = body["labels"]
        return 200, {"status": True, "message": "Labels updated"}

    @route("DELETE /v1/core/virtual-machines/{id}")
    def delete_machine(self, asked: Asked, made: str) -> Answer:
        machine = self._machine(made)
        if machine["status"] in ("CREATING", "BUILD"):
            raise bad(f"VM {machine['name']} is currently being created and cannot be deleted yet.")
        if machine["status"] == "DELETING":
            raise RefusedError(409, {"status": False, "message": f"VM {made} is being deleted."})
        machine["status"] = "DELETING"
        self.clock.later(END, partial(self._gone, machine))
        return 200, {"status": True, "message": "Instance is being deleted."}

    def _gone(self, machine: dict[str, Any]) -> None:
        del self.machines[machine["id"]]
        self.capacity[machine["flavor"]["name"], machine["environment"]["region"]] += 1
        for volume in self.volumes.values():
            if (held := _holding(volume)) and held["instance_id"] == machine["id"]:
                held["status"], volume["status"] = "DETACHED", "available"
        self.ended(machine["id"])

    # --------------------------------------------------------------------------------------- volumes

    @route("GET /v1/core/volumes")
    def list_volumes(self, asked: Asked) -> Answer:
        return self._in("volumes", self.volumes, asked)

    @route("GET /v1/core/volumes/{id}")
    def one_volume(self, asked: Asked, made: str) -> Answer:
        if made not in map(str, self.volumes):
            raise no(400, "not_found", f"Volume {made} does not exists.")
        volume = _has(self.volumes, made, "Volume")
        return 200, {"status": True, "message": "Getting volume successful", "volume": volume}

    @route("POST /v1/core/volumes")
    def make_volume(self, asked: Asked) -> Answer:
        needed = ("name", "environment_name", "size", "volume_type")
        body = _fields(asked.body, _VOLUME, needed)
        environment = self._environment(body["environment_name"])
        if body["volume_type"] != "Cloud-SSD" or not 1 <= body["size"] <= 102400:
            raise bad("The type or the size is not valid.")
        self._check_name(body["name"], self.volumes.values())
        if self.broke:
            raise bad("Insufficient balance to create the resource")
        made = self._id()
        self.volumes[made] = {
            "id": made,
            "name": body["name"],
            "environment": {name: environment[name] for name in ("name", "region", "features")},
            "description": body.get("description", ""),
            "volume_type": body["volume_type"],
            "size": body["size"],
            "status": "creating",
            "bootable": False,
            "image_id": None,
            "callback_url": None,
            "created_at": self.clock.text(),
            "updated_at": None,
            "attachments": [],
        }
        self.clock.later(DISK, partial(self.volumes[made].update, status="available"))
        return 200, {"status": True, "message": "Volume created successfully", "volume": self.volumes[made]}

    @route("DELETE /v1/core/volumes/{id}")
    def delete_volume(self, asked: Asked, made: str) -> Answer:
        volume = _has(self.volumes, made, "Volume")
        if held := _holding(volume):
            name = self.machines[held["instance_id"]]["name"]
            message = f'The Volume is currently attached to vm "{name}". Please detach it before deleting.'
            raise bad(message)
        if volume["status"] != "available":
            raise bad(f"The volume is {volume['status']}.")
        volume["status"] = "deleting"
        self.clock.later(DISK, partial(self.volumes.pop, volume["id"], None))
        return 200, {"status": True, "message": "Volume is being deleted."}

    @route("POST /v1/core/virtual-machines/{id}/attach-volumes")
    def attach(self, asked: Asked, made: str) -> Answer:
        machine, volumes = self._to_move(asked, made)
        if any(_holding(volume) for volume in volumes):
            raise bad("There are already attached Volumes")
        if any(volume["status"] != "available" for volume in volumes):
            raise bad("The volume is not available.")
        if any(volume["environment"]["name"] != machine["environment"]["name"] for volume in volumes):
            raise bad("The volume is in another environment.")
        held = [one for one in map(_holding, self.volumes.values()) if one]
        if sum(one["instance_id"] == machine["id"] for one in held) + len(volumes) > MOST:
            raise bad(f"A machine has {MOST} volumes at most.")
        out = []
        for volume in volumes:
            attached = {
                "id": self._id(),
                "instance_id": machine["id"],
                "device": f"/dev/disk/by-id/virtio-{volume['id']:020d}",
                "status": "ATTACHING",
                "protected": False,
            }
            volume["attachments"].append(attached)
            volume["status"] = "attaching"
            out.append({**attached, "volume_id": volume["id"], "created_at": self.clock.text()})
            self.clock.later(DISK, partial(self._moved, volume, attached, "ATTACHED", "in-use"))
        return 200, {"status": True, "message": "Volumes attaching now.", "volume_attachments": out}

    @route("POST /v1/core/virtual-machines/{id}/detach-volumes")
    def detach(self, asked: Asked, made: str) -> Answer:
        machine, volumes = self._to_move(asked, made)
        pairs = [(volume, _holding(volume)) for volume in volumes]
        out = []
        for _, held in pairs:
            if not held or held["instance_id"] != machine["id"] or held["status"] != "ATTACHED":
                raise bad("The volume is not attached to the machine.")
        for volume, held in pairs:
            assert held is not None
            held["status"], volume["status"] = "DETACHING", "detaching"
            out.append({**held, "volume_id": volume["id"], "created_at": self.clock.text()})
            self.clock.later(DISK, partial(self._moved, volume, held, "DETACHED", "available"))
        return 200, {"status": True, "message": "Volumes detaching now.", "volume_attachments": out}

    def _to_move(self, asked: Asked, made: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        body = _fields(asked.body, {"volume_ids": list}, ("volume_ids",))
        machine, ids = self._machine(made), body["volume_ids"]
        if machine["status"] not in ("ACTIVE", "SHUTOFF"):
            raise bad(f"VM {made} is {machine['status']}.")
        if not ids or not all(type(one) is int for one in ids):
            raise bad("`volume_ids` are not ids.")
        return machine, [_has(self.volumes, str(one), "Volume") for one in ids]

    def _moved(self, volume: dict[str, Any], held: dict[str, Any], status: str, then: str) -> None:
        if held["status"] != "DETACHED":  # its machine may be gone by now
            held["status"], volume["status"], volume["updated_at"] = status, then, self.clock.text()


def _flavor(name: str) -> dict[str, Any]:
    gpu, gpus, cpus, memory, disk, ephemeral = FLAVORS[name]
    size = {"cpu": cpus, "ram": memory, "disk": disk, "ephemeral": ephemeral, "gpu": gpu, "gpu_count": gpus}
    features = {"network_optimised": False, "no_hibernation": False}
    known = {"id": 1 + list(FLAVORS).index(name), "name": name, "display_name": name}
    return {**known, **size, "labels": [], "features": features}


def _holding(volume: dict[str, Any]) -> dict[str, Any] | None:
    """The attachment that counts; those before it are `DETACHED`."""
    return next((one for one in volume["attachments"] if one["status"] != "DETACHED"), None)


def _has(kind: dict[int, dict[str, Any]], made: str, what: str) -> dict[str, Any]:
    if not made.isdigit() or int(made) not in kind:
        raise no(404, "not_found", f"{what} {made} does not exists.")
    return kind[int(made)]


def _number(params: Mapping[str, str], name: str) -> int | None:
    text = params.get(name)
    if text is not None and (not text.isdigit() or int(text) < 1):
        raise bad(f"{name} is not valid.")
    return int(text) if text else None


def _fields(body: Any, fields: Mapping[str, Any], needed: tuple[str, ...]) -> dict[str, Any]:
    """The body, if it has the right form. The refusal has neither a status nor a reason, as the real one."""
    if wrong := checked(body, fields, needed):
        raise RefusedError(
            400, {"errors": {wrong[0]: wrong[1]}, "message": "Input payload validation failed"}
        )
    found: dict[str, Any] = body
    return found
