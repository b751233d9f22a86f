"""A small GCE: instances, disks, labels, metadata and their operations, as far as the driver needs them.

Written from Google's reference of the API, not compared with it. It is strict in these points: names are
unique in a zone; labels and fingerprints are checked; pages are short, and one begins after the last thing of
the one before, which Google does not say; a change is an operation that ends later; a request without the
login's token is refused.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import libcloud
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from declarative.provider import Config
from tests.providers.cloud.web import Answer, Asked
from tests.providers.gce.placed import Placed, in_policy

PROJECT = "project_name".replace("_", "-")
REGION = "us-central1"
ZONE = "us-central1-a"
VARIABLE = "FLEETFORM_TEST_GOOGLE"
CREDENTIALS = {"key": VARIABLE}
EMAIL = "robot@project-name.iam.gserviceaccount.com"
ROOT = f"/compute/v1/projects/{PROJECT}/"
PAGE = 3
_KEY = re.compile(r"[^\W\d_][\w-]{0,62}")
_LABEL = re.compile(r"[\w-]{0,63}")


def private_key() -> str:
    """An RSA key as PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def service_account(pem: str, url: str, **more: Any) -> str:
    """The file of a service account that logs in at `url`."""
    found = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": "k1",
        "private_key": pem,
        "client_email": EMAIL,
        "token_uri": f"{url}/token",
    }
    return json.dumps({**found, **more})


def config(url: str, folder: Any, lineage: str = "lineage-1", **more: Any) -> Config:
    """A backend that asks at `url`."""
    given: dict[str, Any] = {
        "driver": "gce",
        "regions": (REGION,),
        "credentials": CREDENTIALS,
        "endpoint": url,
        "image": {"*": "ubuntu-os-cloud/ubuntu-2404-lts-amd64"},
        "options": {"timeout": 30, "ssh_config": "/dev/null"},
    }
    return Config(backend="gcp", project_dir=folder, lineage=lineage, **{**given, **more})


def recorded(name: str) -> Any:
    """One of the answers that libcloud's own tests come with."""
    folder = Path(libcloud.__file__).parent / "test" / "compute" / "fixtures" / "gce"
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def error(status: int, reason: str, message: str = "no") -> Answer:
    """A refusal, as GCE says it."""
    one = {"message": message, "domain": "global", "reason": reason}
    return status, {"error": {"code": status, "message": message, "errors": [one]}}


KEPT = ("resourcePolicies", "reservationAffinity", "serviceAccounts")
"""Fields of an instance that are shown as they were asked for."""


class Gce:
    """`answer` for a `Web`."""

    def __init__(self) -> None:
        self.things: dict[str, dict[str, dict[str, Any]]] = {"instances": {}, "disks": {}}
        self.operations: dict[str, dict[str, Any]] = {}
        self.count = 0
        self.exhausted: set[str] = set()
        """Zones without capacity."""
        self.offering = {ZONE}
        """Zones with the types that were recorded for one."""
        self.placed = Placed(PROJECT)

    def __call__(self, asked: Asked) -> Answer:
        if asked.path == "/token":
            good = asked.body["grant_type"].endswith("jwt-bearer") and asked.body["assertion"].count(".") == 2
            return (
                (200, {"access_token": "ya29.t", "expires_in": 3599}) if good else (400, {"error": "invalid"})
            )
        if asked.headers.get("Authorization") != "Bearer ya29.t":
            return error(401, "authError")
        if asked.path.endswith("/aggregated/reservations"):
            return self._reserved(asked.path.split("/")[4], asked)
        return self._asked(asked) if asked.path.startswith(ROOT) else error(404, "notFound")

    def _asked(self, asked: Asked) -> Answer:
        words = asked.path.removeprefix(ROOT).split("/")
        if words[-1] in ("zones", "machineTypes"):
            return 200, self._offered(words)
        if words[0] == "aggregated":
            return self._listed(words[1], asked)
        scope, zone, kind, *rest = words
        if scope == "regions" or kind == "operations":
            done = kind == "operations"
            return self._operation(rest[0], f"{scope}/{zone}") if done else self._policy(zone, rest, asked)
        if not rest:
            return self._insert(zone, kind, asked.body)
        key = f"{zone}/{rest[0]}"
        thing = self.things[kind].get(key)
        if thing is None:
            return error(404, "notFound", f"The resource 'projects/{PROJECT}/{key}' was not found")
        if asked.method == "GET":
            return 200, thing
        if asked.method == "DELETE":
            return self._delete(kind, key, thing)
        found: Answer = getattr(self, f"_{rest[1]}")(zone, thing, asked)
        return found

    def _offered(self, words: list[str]) -> Any:
        """As it was recorded for one zone; most of the others have nothing."""
        if words == ["zones"]:
            return recorded("zones")
        types = recorded("zones_us-central1-a_machineTypes")
        return types if words[1] in self.offering else {"kind": types["kind"]}

    def _url(self, zone: str, kind: str, name: str) -> str:
        return f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{zone}/{kind}/{name}"

    def _listed(self, kind: str, asked: Asked) -> Answer:
        owner = re.search(r'labels\.fleetform_owner="([^"]*)"', asked.params["filter"])
        name = re.search(r'name="([^"]*)"', asked.params["filter"])
        found = [
            thing
            for _, thing in sorted(self.things[kind].items())
            if (owner is None or thing["labels"].get("fleetform_owner") == owner[1])
            and (name is None or thing["name"] == name[1])
        ]
        rest = [thing for thing in found if thing["selfLink"] > asked.params.get("pageToken", "")]
        part = rest[: min(PAGE, int(asked.params["maxResults"]))]
        nothing = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "none"}}
        items = {"zones/us-central1-a": {kind: part} if part else nothing, "zones/europe-west1-b": nothing}
        more = {"nextPageToken": part[-1]["selfLink"]} if len(part) < len(rest) else {}
        return 200, {"kind": f"compute#{kind}AggregatedList", "items": items, **more}

    def _reserved(self, project: str, asked: Asked) -> Answer:
        if project not in self.placed.reservations and project != PROJECT:
            return error(403, "forbidden", "Required 'compute.reservations.list' permission")
        mine = re.search(r'name="([^"]*)"', asked.params["filter"])
        items: dict[str, Any] = {"zones/europe-west1-b": {"warning": {"code": "NO_RESULTS_ON_PAGE"}}}
        for found in self.placed.reservations.get(project, ()):
            if mine and found["name"] == mine[1]:
                scope = found["zone"].partition("/zones/")[2]
                items.setdefault(f"zones/{scope}", {"reservations": []})["reservations"].append(found)
        return 200, {"kind": "compute#reservationAggregatedList", "items": items}

    def _policy(self, region: str, rest: list[str], asked: Asked) -> Answer:
        name = "".join(rest)
        found = self.placed.policies.get(f"{region}/{name}")
        if asked.method != "POST" and found is None:
            return error(404, "notFound", f"The resource '{self.placed.url(region, name)}' was not found")
        if asked.method == "GET":
            return 200, found
        used = in_policy(list(self.things["instances"].values()), name)
        code, refused = self.placed.change(asked.method, region, name, asked.body, used)
        return error(refused[0], code, refused[1]) if refused else self._done(f"regions/{region}")

    def _done(self, where: str, failed: tuple[str, str] | None = None, status: int = 200) -> Answer:
        """An operation, in a zone or in `regions/…`."""
        self.count += 1
        found: dict[str, Any] = {
            "kind": "compute#operation",
            "name": f"operation-{self.count}",
            "zone": where,
            "status": "PENDING",
        }
        ended = {**found, "status": "DONE"}
        if failed:
            ended["error"] = {"errors": [{"code": failed[0], "message": failed[1]}]}
        self.operations[found["name"]] = ended
        return status, found

    def _operation(self, name: str, where: str) -> Answer:
        found = self.operations[name]
        # It is known in its own place alone.
        mine = where in (found["zone"], f"zones/{found['zone']}")
        return (200, found) if mine else error(404, "notFound", f"operation {name}")

    def _insert(self, zone: str, kind: str, body: dict[str, Any]) -> Answer:
        key = f"{zone}/{body['name']}"
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", body["name"]):
            return error(400, "invalid", "Invalid value for field 'resource.name'")
        if not _good(body["labels"]):
            return error(400, "invalid", "Invalid value for field 'resource.labels'")
        if key in self.things[kind]:
            return error(409, "alreadyExists", f"The resource '{key}' already exists")
        if kind == "instances" and zone in self.exhausted:
            return self._done(zone, ("ZONE_RESOURCE_POOL_EXHAUSTED", f"The zone '{zone}' has none"))
        refused = kind == "instances" and self.placed.refused(zone, body, list(self.things[kind].values()))
        if refused:
            code, text, status = refused
            return error(status, code, text) if status else self._done(zone, (code, text))
        self.count += 1
        thing = {
            "kind": f"compute#{kind[:-1]}",
            "id": str(self.count),
            "selfLink": self._url(zone, kind, body["name"]),
            "name": body["name"],
            "zone": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{zone}",
            "labels": body["labels"],
            "labelFingerprint": str(self.count),
        }
        if kind == "disks":
            thing |= {"status": "READY", "sizeGb": body["sizeGb"], "type": body["type"]}
        else:
            network: dict[str, Any] = {"networkIP": f"10.0.0.{self.count}"}
            if body["networkInterfaces"][0].get("accessConfigs"):
                network["accessConfigs"] = [{"natIP": f"192.0.2.{self.count}"}]
            kept = {k: v for k, v in body.items() if k in KEPT}
            thing |= kept
            thing |= {
                "status": "RUNNING",
                "machineType": body["machineType"],
                "networkInterfaces": [network],
                "metadata": {**body["metadata"], "fingerprint": str(self.count)},
                "disks": [{"boot": True, "deviceName": "persistent-disk-0", "source": "x"}],
                "scheduling": body["scheduling"],
            }
        self.things[kind][key] = thing
        return self._done(zone)

    def _delete(self, kind: str, key: str, thing: dict[str, Any]) -> Answer:
        if thing.get("users"):
            return error(400, "resourceInUseByAnotherResource", "The disk is being used")
        for disk in thing.get("disks") or ():
            for other in self.things["disks"].values():
                if other["selfLink"].endswith(disk["source"]):
                    other["users"] = []
        del self.things[kind][key]
        return self._done(key.partition("/")[0])

    def _setLabels(self, zone: str, thing: dict[str, Any], asked: Asked) -> Answer:  # noqa: N802  # GCE's name
        if asked.body["labelFingerprint"] != thing["labelFingerprint"]:
            return error(
                412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed"
            )
        if not _good(asked.body["labels"]):
            return error(400, "invalid", "Invalid value for field 'labels'")
        thing["labels"], thing["labelFingerprint"] = asked.body["labels"], thing["labelFingerprint"] + "x"
        return self._done(zone)

    def _setMetadata(self, zone: str, thing: dict[str, Any], asked: Asked) -> Answer:  # noqa: N802  # as above
        if asked.body["fingerprint"] != thing["metadata"]["fingerprint"]:
            return error(412, "conditionNotMet", "Supplied fingerprint does not match current metadata")
        thing["metadata"] = {**asked.body, "fingerprint": asked.body["fingerprint"] + "x"}
        return self._done(zone)

    def _resize(self, zone: str, thing: dict[str, Any], asked: Asked) -> Answer:
        if int(asked.body["sizeGb"]) < int(thing["sizeGb"]):
            return error(400, "invalid", "Requested disk size cannot be smaller")
        thing["sizeGb"] = asked.body["sizeGb"]
        return self._done(zone)

    def _attachDisk(self, zone: str, thing: dict[str, Any], asked: Asked) -> Answer:  # noqa: N802  # as above
        name = asked.body["source"].rpartition("/")[2]
        disk = self.things["disks"][f"{zone}/{name}"]
        if disk.get("users"):
            return self._done(zone, ("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "The disk is already being used"))
        disk["users"] = [thing["selfLink"]]
        thing["disks"].append({"deviceName": asked.body["deviceName"], "source": asked.body["source"]})
        return self._done(zone)

    def _detachDisk(self, zone: str, thing: dict[str, Any], asked: Asked) -> Answer:  # noqa: N802  # as above
        name = asked.params["deviceName"]
        gone = [d for d in thing["disks"] if d["deviceName"] == name]
        if not gone:
            return error(400, "invalid", f"No attached disk found with device name '{name}'")
        thing["disks"] = [d for d in thing["disks"] if d["deviceName"] != name]
        self.things["disks"][f"{zone}/{gone[0]['source'].rpartition('/')[2]}"]["users"] = []
        return self._done(zone)


def _good(labels: dict[str, str]) -> bool:
    """Lower case letters of any script, as Google has it."""
    return len(labels) <= 64 and all(
        _KEY.fullmatch(k) and _LABEL.fullmatch(v) and k + v == (k + v).lower() for k, v in labels.items()
    )
