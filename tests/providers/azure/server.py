"""A small Azure: machines, disks, interfaces, addresses and tags of a resource group, as far as the driver
needs them.

Written from Microsoft's reference of the API, not compared with it. It is strict in these points: a resource
exists as soon as it was put, and is complete one look later; a resource in use cannot be deleted;
`If-None-Match` works; pages are short, and one begins after the last thing of the one before, which Microsoft
does not say; ids come back in another case; a request without the login's token is
refused. Machines of a proximity placement group are in one zone. Machines of a capacity reservation group
have its type and zone, and no proximity placement group.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import libcloud

from declarative.model.spec.backend import Network
from declarative.provider import Config
from tests.providers.cloud.web import Answer, Asked

SUBSCRIPTION = "99999999-9999-9999-9999-999999999999"
TENANT = "77777777-7777-7777-7777-777777777777"
REGION = "eastus"
ZONE = "eastus-1"
GROUP = "Fleet-Group"
CREDENTIALS = {
    "tenant_id": "FLEETFORM_TEST_TENANT",
    "subscription_id": "FLEETFORM_TEST_SUBSCRIPTION",
    "key": "FLEETFORM_TEST_APPLICATION",
    "secret": "FLEETFORM_TEST_PASSWORD",
}
SECRETS = {
    "FLEETFORM_TEST_TENANT": TENANT,
    "FLEETFORM_TEST_SUBSCRIPTION": SUBSCRIPTION,
    "FLEETFORM_TEST_APPLICATION": "application-id",
    "FLEETFORM_TEST_PASSWORD": "very~secret.indeed",
}
BELOW = f"/subscriptions/{SUBSCRIPTION}"
ROOT = f"{BELOW}/resourceGroups/{GROUP.lower()}/providers/"
PAGE = 3


def config(url: str, folder: Path, lineage: str = "lineage-1", **more: Any) -> Config:
    """A backend that asks at `url`."""
    given: dict[str, Any] = {
        "driver": "azure",
        "regions": (REGION,),
        "credentials": CREDENTIALS,
        "endpoint": url,
        "image": {"*": "Canonical:ubuntu-24_04-lts:server:latest"},
        "network": Network(subnets={REGION: "net/nodes"}),
        "options": {
            "timeout": 30,
            "ssh_config": "/dev/null",
            "resource_group": GROUP,
            "login_endpoint": url,
        },
    }
    return Config(backend="az", project_dir=folder, lineage=lineage, **{**given, **more})


def recorded(name: str) -> Any:
    """One of the answers that libcloud's own tests come with."""
    folder = Path(libcloud.__file__).parent / "test" / "compute" / "fixtures" / "azure_arm"
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def error(status: int, code: str, message: str = "no") -> Answer:
    """A refusal, as Azure says it."""
    return status, {"error": {"code": code, "message": message}}


def sku(
    name: str, cpus: int, memory: float, zones: tuple[str, ...] = (), **capabilities: str
) -> dict[str, Any]:
    """An item of the list of SKUs."""
    can = {"vCPUs": str(cpus), "MemoryGB": str(memory), "LowPriorityCapable": "True", **capabilities}
    return {
        "resourceType": "virtualMachines",
        "name": name,
        "locations": ["eastus"],
        "locationInfo": [{"location": "eastus", "zones": list(zones)}],
        "capabilities": [{"name": k, "value": v} for k, v in can.items()],
        "restrictions": [],
    }


class Azure:
    """`answer` for a `Web`."""

    def __init__(self) -> None:
        self.things: dict[str, dict[str, Any]] = {}
        """By path in lower case."""
        self.count = 0
        self.sold_out = ""
        """The code with which a create of a machine fails: at once, or later if it begins with `later:`."""
        self.skus: list[dict[str, Any]] = [
            sku("Standard_D2s_v3", 2, 8, ("1", "2")),
            sku("Standard_NC24ads_A100_v4", 24, 220, ("2",), GPUs="1"),
        ]

    def __call__(self, asked: Asked) -> Answer:
        if asked.path == f"/{TENANT}/oauth2/token":
            if asked.body["client_secret"] != SECRETS["FLEETFORM_TEST_PASSWORD"]:
                return 401, {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid secret"}
            return 200, {"access_token": "eyJ0.t", "expires_in": "3599", "token_type": "Bearer"}
        if asked.headers.get("Authorization") != "Bearer eyJ0.t":
            return error(401, "AuthenticationFailed")
        return self._asked(asked)

    def reserve(self, name: str, kind: str, zones: tuple[str, ...] = ("1",), location: str = REGION) -> None:
        """Have a capacity reservation group, with something reserved in it."""
        self.things[f"microsoft.compute/capacityreservationgroups/{name.lower()}"] = {
            "name": name,
            "location": location,
            "properties": {"provisioningState": "Succeeded"},
            "reserved": [{"name": f"{name}-1", "sku": {"name": kind, "capacity": 1}, "zones": list(zones)}],
        }

    def _asked(self, asked: Asked) -> Answer:
        if asked.path == f"{BELOW}/providers/Microsoft.Compute/skus":
            return 200, {"value": self.skus}
        path, below = asked.path.lower(), ROOT.lower()
        if path == f"{BELOW}/providers/Microsoft.Compute/virtualMachines".lower():
            assert asked.params["statusOnly"] == "true"
            return self._listed("virtualmachines", asked)
        if not path.startswith(below):
            return error(404, "ResourceGroupNotFound", "Resource group could not be found.")
        words = path.removeprefix(below).split("/")
        if len(words) == 2:
            return self._listed(words[1], asked)
        return self._one("/".join(words[:3]), words[1], words[-1], asked)

    def _one(self, key: str, kind: str, last: str, asked: Asked) -> Answer:
        thing = self.things.get(key)
        if last == "default":
            return self._tags(thing, asked)
        if last == "capacityreservations" and thing is not None:
            return 200, {"value": thing["reserved"]}
        if asked.method == "PUT":
            return self._put(key, kind, asked)
        if thing is None:
            return (204, None) if asked.method == "DELETE" else error(404, "ResourceNotFound")
        if last == "attachdetachdatadisks":
            return self._change(thing, asked.body)
        if asked.method == "DELETE":
            return self._delete(key, kind, thing)
        if asked.method == "PATCH":
            thing["properties"] |= asked.body["properties"]
            return 202, thing
        if thing["properties"]["provisioningState"] == "Creating":
            thing["properties"]["provisioningState"] = "Failed" if thing.pop("fails", None) else "Succeeded"
        return 200, thing

    def _listed(self, kind: str, asked: Asked) -> Answer:
        after = asked.params.get("$skiptoken", "")
        rest = [key for key in sorted(self.things) if key.split("/")[1] == kind and key > after]
        page: dict[str, Any] = {"value": [self.things[key] for key in rest[:PAGE]]}
        if len(rest) > PAGE:
            again = "&".join(f"{k}={v}" for k, v in asked.params.items() if k != "$skiptoken")
            page["nextLink"] = f"https://elsewhere.example{asked.path}?{again}&$skiptoken={rest[PAGE - 1]}"
        return 200, page

    def _put(self, key: str, kind: str, asked: Asked) -> Answer:
        have, name = self.things.get(key), asked.path.rpartition("/")[2]
        if have is not None and asked.headers.get("If-None-Match") == "*":
            return error(412, "PreconditionFailed", "The resource exists.")
        if kind == "virtualmachines" and self.sold_out and not self.sold_out.startswith("later:"):
            return error(409, self.sold_out, "The requested size is not available in the location")
        wrong = self._misplaced(asked.body) if kind == "virtualmachines" else None
        if wrong:
            return wrong
        self.count += 1
        thing = {
            "id": asked.path.replace(GROUP.lower(), GROUP.upper()),
            "name": name,
            "location": asked.body["location"],
            "tags": asked.body["tags"],
            "properties": {**(have or {}).get("properties", {}), **asked.body["properties"]},
            **{name: asked.body[name] for name in ("zones", "identity") if asked.body.get(name)},
        }
        later = have is None and kind in ("virtualmachines", "disks")
        thing["properties"]["provisioningState"] = "Creating" if later else "Succeeded"
        self.things[key] = thing
        getattr(self, f"_made_{kind}", lambda *_: None)(thing, name)
        return 201 if have is None else 200, thing

    def _misplaced(self, body: dict[str, Any]) -> Answer | None:
        """Why a machine cannot be where it is asked for."""
        inner, zones = body["properties"], body.get("zones") or []
        near = (inner.get("proximityPlacementGroup") or {}).get("id")
        taken = ((inner.get("capacityReservation") or {}).get("capacityReservationGroup") or {}).get("id")
        if near and _key(near) not in self.things:
            return error(400, "InvalidResourceReference", f"Resource {near} was not found.")
        if near and any(m.get("zones", []) != zones for m in self.near(_key(near))):
            return error(409, "OverconstrainedZonalAllocationRequest", "Allocation failed.")
        if near and taken:
            return error(400, "BadRequest", "A capacity reservation has no proximity placement group.")
        if taken and taken.lower().startswith(BELOW.lower()):
            found = self.things.get(_key(taken))
            kind = inner["hardwareProfile"]["vmSize"]
            if not found or not any(
                (r["sku"]["name"], r["zones"]) == (kind, zones) for r in found["reserved"]
            ):
                return error(409, "BadRequest", f"There is no reservation of {kind} in {taken}.")
        return None

    def near(self, key: str) -> list[dict[str, Any]]:
        """The machines of a proximity placement group."""
        machines = [t for k, t in self.things.items() if k.split("/")[1] == "virtualmachines"]
        group = "proximityPlacementGroup"
        return [m for m in machines if _key((m["properties"].get(group) or {}).get("id")) == key]

    def _made_virtualmachines(self, thing: dict[str, Any], name: str) -> None:
        inner = thing["properties"]
        inner["storageProfile"]["dataDisks"] = []
        inner["instanceView"] = {"statuses": [{"code": "PowerState/running"}]}
        if self.sold_out:
            code = self.sold_out.partition(":")[2]
            thing["fails"] = True
            statuses = [{"code": f"ProvisioningState/failed/{code}", "message": "Allocation failed."}]
            inner["instanceView"] = {"statuses": statuses}
        interface = self._at(inner["networkProfile"]["networkInterfaces"][0]["id"])
        interface["properties"]["virtualMachine"] = {"id": thing["id"]}
        self.things[f"microsoft.compute/disks/{name}"] = {
            "id": thing["id"].replace("virtualMachines", "disks"),
            "name": name,
            "location": thing["location"],
            "tags": dict(thing["tags"]),
            "managedBy": thing["id"],
            "properties": {
                "provisioningState": "Succeeded",
                "diskSizeGB": 30,
                "creationData": {"createOption": "FromImage"},
            },
        }

    def _made_networkinterfaces(self, thing: dict[str, Any], name: str) -> None:
        thing["properties"]["ipConfigurations"][0]["properties"]["privateIPAddress"] = f"10.1.0.{self.count}"

    def _made_publicipaddresses(self, thing: dict[str, Any], name: str) -> None:
        thing["properties"]["ipAddress"] = f"198.51.100.{self.count}"

    def _at(self, resource: str) -> Any:
        return self.things[_key(resource)]

    def _delete(self, key: str, kind: str, thing: dict[str, Any]) -> Answer:
        inner = thing["properties"]
        if kind == "proximityplacementgroups" and self.near(key):
            return error(409, "OperationNotAllowed", "Proximity placement group has virtual machines.")
        if kind == "disks" and thing.get("managedBy"):
            return error(409, "OperationNotAllowed", "Disk is attached to VM.")
        if kind == "networkinterfaces" and inner.get("virtualMachine"):
            return error(400, "NicInUse", "is used by existing resource")
        if kind == "virtualmachines":
            for other in self.things.values():
                if str(other.get("managedBy")).lower() == thing["id"].lower():
                    del other["managedBy"]
                holder = other["properties"].get("virtualMachine", {}).get("id", "")
                if holder.lower() == thing["id"].lower():
                    del other["properties"]["virtualMachine"]
        del self.things[key]
        return 202, None

    def _tags(self, thing: dict[str, Any] | None, asked: Asked) -> Answer:
        if thing is None:
            return error(404, "ResourceNotFound")
        tags = asked.body["properties"]["tags"]
        assert not any(re.search(r"[<>%&\\?/]", key) or len(value) > 256 for key, value in tags.items())
        if asked.body["operation"] == "Merge":
            thing["tags"] = {**thing["tags"], **tags}
        else:
            thing["tags"] = {k: v for k, v in thing["tags"].items() if k not in tags}
        return 200, {}

    def _change(self, thing: dict[str, Any], body: dict[str, Any]) -> Answer:
        disks = thing["properties"]["storageProfile"]["dataDisks"]
        for one in body.get("dataDisksToAttach") or ():
            disk = self._at(one["diskId"])
            if disk.get("managedBy"):
                return error(409, "ConflictingUserInput", "Disk is already owned by VM")
            disk["managedBy"] = thing["id"]
            lun = next(n for n in range(64) if n not in [d["lun"] for d in disks])
            disks.append({"lun": lun, "name": disk["name"], "managedDisk": {"id": one["diskId"].upper()}})
        for one in body.get("dataDisksToDetach") or ():
            disk = self._at(one["diskId"])
            disk.pop("managedBy", None)
            disks[:] = [d for d in disks if d["managedDisk"]["id"].lower() != one["diskId"].lower()]
        return 202, None


def _key(resource: object) -> str:
    """Where a thing of this id is kept."""
    return re.sub(r".*/providers/", "", str(resource).lower())
