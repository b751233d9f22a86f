"""The offers of GCE, from its API and the prices that libcloud ships; its reservations, each for a zone and
a machine type; and its placement groups.

The API lists machine types with GPUs of their own (`a3-highgpu-8g`). It does not list types with added GPUs:
`n1-standard-8+nvidia-tesla-t4:2` may be declared in the backend's `catalog`.

Placement groups are compact placement policies of a region; the machines in one are in one zone. A policy has
no labels, so its description names its owner.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from declarative.model.blocks import Shape
from declarative.model.inputs import NodeInputs
from declarative.model.record import struct
from declarative.model.resource import Offer
from declarative.model.text import suggest
from declarative.provider import PermanentError, PermanentKind
from providers.cloud.account import if_there
from providers.cloud.any.site import Machine
from providers.cloud.catalog import day, prices
from providers.cloud.gce import answers
from providers.cloud.gce.account import Account
from providers.cloud.placement_groups import OPTION, Groups, Reserved
from providers.cloud.rest import bad_answer
from providers.cloud.settings import NODE_DISK

WHAT = "list of machine types"
_GPUS: Mapping[str, tuple[str, int]] = {
    "nvidia-b200": ("B200", 184320),
    "nvidia-h200-141gb": ("H200", 144384),
    "nvidia-h100-80gb": ("H100", 81920),
    "nvidia-h100-mega-80gb": ("H100", 81920),
    "nvidia-a100-80gb": ("A100", 81920),
    "nvidia-tesla-a100": ("A100", 40960),
    "nvidia-l4": ("L4", 24576),
    "nvidia-rtx-pro-6000": ("RTXPRO6000", 98304),
    "nvidia-tesla-v100": ("V100", 16384),
    "nvidia-tesla-t4": ("T4", 16384),
    "nvidia-tesla-p100": ("P100", 16384),
    "nvidia-tesla-p4": ("P4", 8192),
}
"""Model and MiB of each. A GPU that is not listed has no name, so it only fits `gpu: 1`."""
_PRICED = ("c2", "e2", "n1", "n2", "n2d")
"""Families that are priced by their CPUs and memory."""
_ODD = ("e2-micro", "e2-small", "e2-medium")


def offers(account: Account) -> tuple[Offer, ...]:
    """All offers in the backend's regions and zones, for its images' architecture."""
    account.regions()
    out: list[Offer] = []
    for region, zones in _zones(account).items():
        for zone in zones:
            out += [o for found in _types(account, zone) for o in _of(account, region, zone, found)]
    return tuple(sorted(out, key=lambda o: (o.region, o.zone or "", o.instance_type, o.spot)))


def _zones(account: Account) -> dict[str, list[str]]:
    """The backend's regions, and the zones of each that are in use."""
    there: dict[str, list[str]] = {}
    for found in _listed(account, "list of zones", "zones", "compute#zoneList"):
        there.setdefault(answers.tail(found.get("region")), []).append(str(found.get("name")))
    for region in account.config.regions:
        if region not in there:
            hint = suggest(region, sorted(there)) or f"known regions: {', '.join(sorted(there))}"
            summary = f"GCE has no region `{region}`, or nothing in it for this project"
            raise PermanentError(PermanentKind.INVALID, summary, about="regions", hint=hint)
    only = account.config.zones
    return {r: [z for z in sorted(there[r]) if not only or z in only] for r in account.config.regions}


def _types(account: Account, zone: str) -> list[Mapping[str, Any]]:
    return _listed(account, WHAT, f"zones/{zone}/machineTypes", "compute#machineTypeList")


def _listed(account: Account, what: str, path: str, kind: str) -> list[Mapping[str, Any]]:
    out: list[Mapping[str, Any]] = []
    for page in account.pages(what, f"{account.project}/{path}"):
        # An empty page has no `items`, but it has its kind.
        items = page.get("items", [] if page.get("kind") == kind else None)
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise bad_answer(what, "has no `items`")
        out += items
    return out


def _of(account: Account, region: str, zone: str, found: Mapping[str, Any]) -> list[Offer]:
    """A machine type of a zone, on demand and as spot; nothing if this backend does not offer it."""
    try:
        shape, name = _shape(found), str(found["name"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise bad_answer(WHAT, "has a type that cannot be read") from None
    architecture = str(found.get("architecture") or "X86_64").lower()
    if shape is None or architecture != account.architecture or _obsolete(found):
        return []
    disk = int(account.options.get("disk_size", NODE_DISK)) * 1024
    price = _price(name, region, shape)
    return [
        Offer(
            backend=account.config.backend,
            region=region,
            zone=zone,
            instance_type=name,
            shape=replace(shape, disk_mib=disk),
            price=None if spot else price,
            spot=spot,
            priced_on=None if spot or price is None else day(),
        )
        for spot in (False, True)
    ]


def _obsolete(found: Mapping[str, Any]) -> bool:
    return (found.get("deprecated") or {}).get("state") in ("DEPRECATED", "OBSOLETE", "DELETED")


def _shape(found: Mapping[str, Any]) -> Shape | None:
    """The shape; None for a type with accelerators that are not GPUs."""
    cpu, memory = int(found["guestCpus"]), int(found["memoryMb"])
    if cpu < 1 or memory < 1:
        return None
    several = found.get("accelerators") or []
    if not several:
        return Shape(cpu=cpu, memory_mib=memory)
    kind, count = str(several[0]["guestAcceleratorType"]), int(several[0]["guestAcceleratorCount"])
    if not kind.startswith("nvidia-"):
        return None
    model, each = _GPUS.get(kind, (None, None))
    return Shape(
        cpu=cpu, memory_mib=memory, gpus=count, gpu_name=model, gpu_memory_mib=each, gpu_vendor="nvidia"
    )


def _price(name: str, region: str, shape: Shape) -> float | None:
    """USD an hour on demand; None if unknown, as for all GPUs."""
    family, _, rest = name.partition("-")
    if family not in _PRICED or name in _ODD or shape.gpus or rest.startswith(("custom", "node")):
        return None
    table = prices("gce_instances").get(family) or {}
    try:
        cpu, ram = (float(table[part]["on_demand"][region]["price"]) for part in ("cpu", "ram"))
    except (KeyError, TypeError, ValueError):
        return None
    if cpu <= 0 or ram <= 0:
        return None
    return round(cpu * shape.cpu + ram * shape.memory_mib / 1024, 6)


KEY = "compute.googleapis.com/reservation-name"
READY = ("READY", "UPDATING")
DENSE = "DENSE"
"""The value for a reservation whose machines are close together and end with it."""
_PART = "[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(
    rf"(?:(?:.*/)?projects/([a-z0-9.:-]{{1,100}})/(?:zones/[a-z0-9-]+/)?reservations/)?({_PART})"
    rf"(/reservationBlocks/{_PART}(?:/reservationSubBlocks/{_PART})?)?"
)


@struct(frozen=True, slots=True, kw_only=True)
class Found:
    """The limits that a reservation sets for where machines can be."""

    zone: str
    state: str
    instance_type: str
    """Empty if not reported."""
    dense: bool
    policies: tuple[str, ...]
    """The ids of the placement policies that its machines must be in."""


class Reservations:
    """The reservations that fleets name. Safe to use from many threads."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._turn = threading.Lock()
        self._seen: dict[tuple[str, str], dict[str, Found] | None] = {}

    def asked(self, inputs: NodeInputs, zone: str) -> Reserved:
        """The part that a machine in a zone takes of the reservation in its inputs."""
        given = str(inputs.reservation)
        parts = _NAME.fullmatch(given)
        if not parts:
            summary = f"`{given}` is no reservation of GCE"
            hint = "write its name, or `projects/P/reservations/NAME` for one that another project shares"
            raise PermanentError(PermanentKind.INVALID, summary, about="reservation", hint=hint)
        project, name, block = parts[1] or self._account.project, parts[2], parts[3] or ""
        here = project == self._account.project
        value = f"{name}{block}" if here and not block else f"projects/{project}/reservations/{name}{block}"
        body = {"consumeReservationType": "SPECIFIC_RESERVATION", "key": KEY, "values": [value]}
        places = self._look(project, name)
        if places is None:
            # Its owner may share it without the right to read it. GCE then checks whether it fits.
            return Reserved(body={"reservationAffinity": body})
        found = places.get(zone)
        if found is None:
            raise _elsewhere(given, zone, sorted(places))
        _check(found, given, inputs)
        scheduling = {"provisioningModel": "RESERVATION_BOUND", "instanceTerminationAction": "DELETE"}
        return Reserved(
            body={"reservationAffinity": body, **({"scheduling": scheduling} if found.dense else {})},
            group=next(iter(found.policies), ""),
            grouped=found.dense,
        )

    def _look(self, project: str, name: str) -> dict[str, Found] | None:
        """A reservation by its zones; None if another project's may not be read."""
        with self._turn:
            key = project, name
            # A reservation that was not ready may be ready now.
            if any(found.state not in READY for found in (self._seen.get(key) or {}).values()):
                del self._seen[key]
            if key not in self._seen:
                try:
                    self._seen[key] = self._read(project, name)
                except PermanentError as error:
                    if project == self._account.project or error.kind is not PermanentKind.AUTH:
                        raise
                    self._seen[key] = None
            return self._seen[key]

    def _read(self, project: str, name: str) -> dict[str, Found]:
        what = f"look for the reservation {name}"
        only = {"filter": f'name="{name}"', "returnPartialSuccess": "false"}
        out: dict[str, Found] = {}
        for page in self._account.pages(what, f"{project}/aggregated/reservations", "reservation", **only):
            for item in answers.scoped(what, page, "reservations"):
                if item.get("name") == name:
                    found = _found(item)
                    out[found.zone] = found
        if not out:
            summary = f"the project {project} has no reservation `{name}`"
            hint = "check its name; one that another project shares is `projects/P/reservations/NAME`"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about="reservation", hint=hint)
        return out


def _found(item: Mapping[str, Any]) -> Found:
    specific = (item.get("specificReservation") or {}).get("instanceProperties") or {}
    policies = item.get("resourcePolicies") or {}
    urls = policies.values() if isinstance(policies, dict) else policies
    return Found(
        zone=answers.tail(item.get("zone")),
        state=str(item.get("status") or ""),
        instance_type=answers.tail(specific.get("machineType")),
        dense=item.get("deploymentType") == DENSE,
        policies=tuple(filter(None, (answers.place(url, "regions") for url in urls))),
    )


def _elsewhere(given: str, zone: str, zones: list[str]) -> PermanentError:
    summary = f"the reservation {given} is not in {zone}, but in {', '.join(zones)}"
    hint = f"write `availability_zones: [{zones[0]}]`"
    return PermanentError(PermanentKind.NO_CAPACITY, summary, about=zone, hint=hint)


def _check(found: Found, given: str, inputs: NodeInputs) -> None:
    """Check that the reservation has capacity for the machine: its type."""
    kind = inputs.instance_type.partition("+")[0]
    if found.instance_type and found.instance_type != kind:
        summary = f"the reservation {given} is for {found.instance_type} in {found.zone}, not for {kind}"
        hint = f"write `instance_types: [{found.instance_type}]`"
        raise PermanentError(PermanentKind.NO_CAPACITY, summary, about=found.zone, hint=hint)
    if found.state not in READY:
        summary = f"the reservation {given} is {found.state or 'in no state'}, and not READY"
        raise PermanentError(PermanentKind.NO_CAPACITY, summary, about="reservation")


FAMILIES = frozenset(
    ("a2", "a3", "a4", "a4x", "c2", "c2d", "c3", "c3d", "c4", "c4d", "g2", "g4", "h3", "h4d", "n2", "n2d")
)
"""Families of types for which Google supports compact placement. Machines of other types get no group."""
_PATH = re.compile(r"(?:.*/)?projects/([^/]+)/regions/([^/]+)/resourcePolicies/([^/]+)")
_GROUP_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


class Policies(Groups):
    """Ids are `project/region/name`."""

    CALLED = "compact placement policy"
    MOST = 1500

    def __init__(
        self, account: Account, do: Callable[..., None], machines: Callable[[], Iterable[Machine]]
    ) -> None:
        """`do` makes a change and waits for its end; `machines` are all of the owner's."""
        super().__init__(account)
        self._project = account
        self._do = do
        self._machines = machines

    def takes(self, inputs: NodeInputs) -> bool:
        return inputs.instance_type.partition("-")[0] in FAMILIES

    def id_of(self, name: str, inputs: NodeInputs) -> str:
        """A policy of another project or region cannot be used."""
        project, region = self._project.project, inputs.region
        path = _PATH.fullmatch(name)
        where = path.groups() if path else (project, region, name)
        if not _GROUP_NAME.fullmatch(where[2]) or where[:2] != (project, region):
            summary = f"`{name}` is no placement policy of {project} in {region}"
            hint = "write its name, or `projects/P/regions/R/resourcePolicies/NAME`"
            raise PermanentError(PermanentKind.INVALID, summary, about=f"options.{OPTION}", hint=hint)
        return "/".join(where)

    def tags(self, made: str, inputs: NodeInputs) -> dict[str, str] | None:
        what = f"look at {made.rpartition('/')[2]}"
        found = if_there(self._project.ask, what, "GET", path_of(made))
        if found is None:
            return None
        try:
            tags = json.loads(str(found.get("description") or "{}"))
        except ValueError:
            tags = {}  # somebody else's, with a description of their own
        return {str(k): str(v) for k, v in tags.items()} if isinstance(tags, dict) else {}

    def make(self, made: str, inputs: NodeInputs, tags: Mapping[str, str]) -> None:
        project, region, name = made.split("/")
        body = {
            "name": name,
            "description": json.dumps(dict(tags), sort_keys=True),
            "groupPlacementPolicy": {"collocation": "COLLOCATED"},
        }
        path = f"{project}/regions/{region}/resourcePolicies"
        self._do(f"create of the {self.CALLED} {name}", "POST", path, OPTION, body=body)

    def used(self, made: str, inputs: NodeInputs) -> bool:
        return any(_is_in(machine, made) for machine in self._machines())

    def remove(self, made: str, inputs: NodeInputs) -> None:
        if_there(self._do, f"end of the {self.CALLED} {made.rpartition('/')[2]}", "DELETE", path_of(made))


def path_of(made: str) -> str:
    """A policy's path below `projects/`."""
    project, region, name = made.split("/")
    return f"{project}/regions/{region}/resourcePolicies/{name}"


def _is_in(machine: Machine, made: str) -> bool:
    urls = machine.raw.get("resourcePolicies") or ()
    return not machine.gone and any(answers.place(url, "regions") == made for url in urls)
