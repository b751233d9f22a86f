"""Hyperstack: machines with labels, and volumes with only a description, both in environments.

An environment is a network of one region. Each state has one of its own in each of its regions, made with its
first thing there, so listings are of this environment alone. What we write on a machine is in its labels. A
volume's description says who owns it (`names`); it is written once. Names are a function of the create, and
the cloud takes each only once: a repeated create is refused while its first thing exists.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from declarative.model.blocks import Shape
from declarative.model.status import NodeState
from declarative.provider import (
    Config,
    PermanentError,
    PermanentKind,
    ProviderError,
    TransientError,
    TransientKind,
)
from providers.cloud import rest, settings
from providers.cloud.account import pauses
from providers.cloud.any import labels, names
from providers.cloud.any.account import Account
from providers.cloud.any.json_site import LabelledSite, Listing
from providers.cloud.any.site import GPU_MEMORY_GB, Disk, Machine, Size, Wanted, What, Written, gpu_model
from providers.cloud.provider import Cloud
from providers.ownership import key_of

URL = "https://infrahub-api.nexgencloud.com"
NAME = 50
"""The most characters of a name."""
VOLUME_TYPE = "Cloud-SSD"
STATES: Mapping[str, tuple[NodeState, str | None]] = {
    "CREATING": (NodeState.PROVISIONING, "it is starting"),
    "BUILD": (NodeState.PROVISIONING, "it is starting"),
    "STARTING": (NodeState.PROVISIONING, "it is starting"),
    "ACTIVE": (NodeState.READY, None),
    "ERROR": (NodeState.FAILED, "Hyperstack reports an error"),
    "DELETING": (NodeState.TERMINATING, "it is being deleted"),
    "DELETED": (NodeState.TERMINATING, "it is deleted"),
}
_ENVIRONMENTS = Listing("environments", "an environment", "/v1/core/environments")
_KEYPAIRS = Listing("keypairs", "a keypair", "/v1/core/keypairs")
_SSH = {"protocol": "tcp", "remote_ip_prefix": "0.0.0.0/0", "port_range_min": 22, "port_range_max": 22}
_PRIVATE = {"protocol": "any", "remote_ip_prefix": "10.0.0.0/8"}
"""The other nodes of the environment."""
_BALANCE = re.compile(r"\b(balance|credits?|funds)\b", re.IGNORECASE)


def hyperstack(config: Config) -> Cloud:
    """The provider for `driver: hyperstack`."""
    return Cloud(Account(config, {}, Hyperstack, cloud="Hyperstack", regional=True))


class Hyperstack(LabelledSite):
    """One region of an account of Hyperstack's."""

    settle = 10.0
    keeps = frozenset(("machine",))
    spots = True
    shifts = True
    rate = 500 / 60
    variable = "HYPERSTACK_API_KEY"

    SIZES = Listing("data", "a flavor", "/v1/core/flavors")
    MACHINES = Listing("instances", "an instance", "/v1/core/virtual-machines")
    LABELS = "labels"
    RELABEL = "PUT", "/label"
    DISKS = Listing("volumes", "a volume", "/v1/core/volumes")
    MACHINE_ID = re.compile(r"[0-9]{1,18}")

    def __init__(self, account: Account, region: str) -> None:
        def make(key: str) -> Any:
            driver = rest.link(settings.host(URL), account.timeout)
            driver.connection.add_default_headers = lambda headers: {**headers, "api_key": key}
            return driver

        super().__init__(account, make)
        self._region = region
        self._environment = f"fleetform-{key_of(account.owner)[:8]}-{region}"[:NAME]
        self._turn = threading.Lock()
        self._prepared: set[str] = set()
        """Names of keypairs that are there; empty for none but the environment."""

    @staticmethod
    def total(found: Mapping[str, Any]) -> object:
        return found.get("count")

    @staticmethod
    def following(found: Mapping[str, Any]) -> dict[str, Any] | None:
        page, size, count = (found.get(name) for name in ("page", "page_size", "count"))
        if not (type(page) is type(size) is type(count) is int and size > 0):
            return None  # then the total does not match, if there are more pages
        return {"page": page + 1} if page * size < count else None

    def _listed(self, listing: Listing, **params: Any) -> list[Mapping[str, Any]]:
        first = {"page": 1, "pageSize": 100}
        return self._all(listing.path, listing.name, **{**first, **params})

    def _ours(self, listing: Listing, **params: Any) -> list[Mapping[str, Any]]:
        """What is in this state's environment, of any owner. The filter of volumes takes parts of names."""
        out = self._listed(listing, environment=self._environment, **params)
        try:
            return [item for item in out if item["environment"]["name"] == self._environment]
        except (KeyError, TypeError):
            raise self._unreadable(listing) from None

    # --------------------------------------------------------------------------------------- offers

    def sizes(self) -> Sequence[Size]:
        """The flavors of the region that are in stock. Spot flavors have names and GPUs of their own."""
        path = self.SIZES.path
        found = self._rest.ask("GET", path, region=self._region)
        groups = rest.listed(path, found, self.SIZES.name)
        priced = self._rest.elements("/v1/pricebook")
        try:
            prices = {str(item["name"]): float(item["value"]) for item in priced}
            flavors = [flavor for group in groups for flavor in group["flavors"]]
            return [
                replace(self._size(flavor), price=_price(flavor, prices))
                for flavor in flavors
                if flavor["region_name"] == self._region and flavor["stock_available"]
            ]
        except (KeyError, TypeError, ValueError, OverflowError):
            raise self._unreadable(self.SIZES) from None

    @staticmethod
    def _size(item: Mapping[str, Any]) -> Size:
        gpu = str(item.get("gpu") or "")
        count = int(item["gpu_count"]) if gpu else 0
        disk = int(item["disk"]) + int(item.get("ephemeral") or 0)
        shape = Shape(
            cpu=int(item["cpu"]),
            memory_mib=int(float(item["ram"]) * 1024),
            disk_mib=disk * 1024 or None,
            **_gpus(gpu, count),
        )
        return Size(
            name=str(item["name"]),
            shape=shape,
            regions=(str(item["region_name"]),),
            spot=gpu.lower().endswith("-spot"),
        )

    # ----------------------------------------------------------------------------------- machines

    def machines(self) -> Sequence[Machine]:
        return [m for item in self._instances() if (m := self._machine(item))]

    def _instances(self) -> list[Mapping[str, Any]]:
        return self._ours(self.MACHINES, exact_environment_match="true")

    def _machine(self, item: Mapping[str, Any]) -> Machine | None:
        try:
            made, tags = str(item["id"]), [str(label) for label in item.get("labels") or []]
            status = item["status"]
            state, reason = STATES.get(status, (NodeState.NOT_READY, f"it is {str(status).lower()}"))
            private, public = str(item.get("fixed_ip") or ""), str(item.get("floating_ip") or "")
            region, made_at = str(item["environment"]["region"]), str(item["created_at"])
        except (KeyError, TypeError, AttributeError):
            raise self._unreadable(self.MACHINES) from None
        written = labels.written(self._account.owner, tags, made)
        if written is None:
            return None
        if state is NodeState.READY and (not private or (item.get("requires_public_ip") and not public)):
            state, reason = NodeState.PROVISIONING, "it has no address yet"
        return Machine(
            id=made,
            region=region,
            state=state,
            reason=reason,
            address=private or public,
            public_address=public,
            written=written,
            made_at=made_at,
            raw=tuple(tags),
        )

    def launch(self, wanted: Wanted) -> Machine:
        network = self._account.config.network
        if network.security_groups or network.subnets:
            summary = "a node's network is that of its environment: leave subnets and groups out"
            raise self._rest.refused(summary, "network")
        both = {"direction": "ingress", "ethertype": "IPv4"}
        body = {
            "name": names.unique(wanted.written, NAME),
            "environment_name": self._environment,
            "flavor_name": wanted.size,
            "image_name": wanted.image,
            "key_name": wanted.key,
            "count": 1,
            "user_data": wanted.user_data,
            "labels": [*labels.tags(wanted.written), *labels.of_users(wanted.tags)],
            "assign_floating_ip": self._account.public_ip,
            "enable_port_randomization": False,  # else SSH is not at port 22
            "security_rules": [{**both, **_SSH}, {**both, **_PRIVATE}],
        }
        path = self.MACHINES.path
        try:
            found = self._rest.ask("POST", path, body, about=wanted.region)
        except PermanentError as error:
            raise self._why(error, wanted) from None
        made = rest.listed(path, found, self.MACHINES.name)
        machine = self._machine(made[0]) if len(made) == 1 else None
        if machine is None:
            raise self._rest.bad_answer(path, "has no instance with its labels")
        return machine

    def _why(self, error: PermanentError, wanted: Wanted) -> ProviderError:
        """The fault of a refused launch. Nearly all are `bad_request`, so the cloud is asked for quota and
        its stock, as far as it answers.
        """
        summary = error.summary
        if error.kind is PermanentKind.CONFLICT:
            return _taken(error)
        if error.kind not in (PermanentKind.INVALID, PermanentKind.NOT_FOUND):
            return error
        with suppress(ProviderError):
            environment = self._here(_ENVIRONMENTS)
            if error.kind is PermanentKind.NOT_FOUND:
                if environment and any(key.get("name") == wanted.key for key in self._keypairs()):
                    return PermanentError(PermanentKind.INVALID, summary, about=error.about)
                self._forget()
                return TransientError(TransientKind.BUSY, summary, about=error.about)
            if _BALANCE.search(summary):
                hint = "add credit to the account"
                return PermanentError(PermanentKind.QUOTA, summary, about=error.about, hint=hint)
            if environment:
                path = f"{_ENVIRONMENTS.path}/{environment[0]['id']}/vm-quota"
                if self._rest.ask("GET", path).get("available_vms") == 0:
                    hint = "ask Hyperstack's support for more machines in one environment, or delete some"
                    return PermanentError(PermanentKind.INSTANCES, summary, about=error.about, hint=hint)
            if wanted.size not in {size.name for size in self.sizes()}:
                return PermanentError(PermanentKind.NO_CAPACITY, summary, about=error.about)
        return error

    def end(self, machine: Machine) -> None:
        try:
            super().end(machine)
        except PermanentError as error:
            if error.kind is PermanentKind.CONFLICT:
                return  # it is being deleted
            if error.kind is PermanentKind.INVALID and machine.state is NodeState.PROVISIONING:
                summary = f"{machine.id} is being created, and can be deleted after that: {error.summary}"
                raise TransientError(TransientKind.BUSY, summary, about=machine.id, after=5.0) from None
            raise

    # -------------------------------------------------------------------------------------- disks

    def disks(self) -> Sequence[Disk]:
        return [d for item in self._ours(self.DISKS) if (d := self._disk(item))]

    def _disk(self, item: Mapping[str, Any]) -> Disk | None:
        written = names.read("volume", item.get("description"), self._account.owner)
        if written is None:
            return None
        try:
            status = str(item["status"]).lower()
            held = [one for one in item["attachments"] or () if one["status"] != "DETACHED"]
            if status.startswith("delet"):
                return None
            return Disk(
                id=str(item["id"]),
                region=str(item["environment"]["region"]),
                size=int(item["size"]),
                on=tuple(str(one["instance_id"]) for one in held),
                busy=status not in ("available", "in-use", "error"),
                broken="Hyperstack reports an error" if status == "error" else None,
                device=next((str(one["device"]) for one in held if one.get("device")), None),
                written=written,
                made_at=str(item["created_at"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            raise self._unreadable(self.DISKS) from None

    def make(self, wanted: Wanted) -> Disk:
        if wanted.tags:
            raise self._rest.refused("a volume has no tags there: leave `tags` out", "tags")
        self._prepare()
        body = {
            "name": names.unique(wanted.written, NAME),
            "environment_name": self._environment,
            "size": wanted.gib,
            "volume_type": wanted.volume_type or VOLUME_TYPE,
            "description": names.name(wanted.written),
        }
        try:
            return self._made(wanted, body, "description")
        except PermanentError as error:
            if error.kind is PermanentKind.CONFLICT:
                raise _taken(error) from None
            if error.kind is PermanentKind.NOT_FOUND:
                self._forget()
                raise TransientError(TransientKind.BUSY, error.summary, about=error.about) from None
            if error.kind is PermanentKind.INVALID and _BALANCE.search(error.summary):
                hint = "add credit to the account"
                raise PermanentError(
                    PermanentKind.QUOTA, error.summary, about=error.about, hint=hint
                ) from None
            raise

    def remove(self, disk: Disk) -> None:
        super().remove(disk)
        self._tidy()

    def attach(self, disk: Disk, machine: Machine) -> None:
        self._move("attach", disk, machine)

    def detach(self, disk: Disk, machine: Machine) -> None:
        try:
            self._move("detach", disk, machine)
        except PermanentError as error:
            if "not attached" not in error.summary:
                raise

    def _move(self, how: str, disk: Disk, machine: Machine) -> None:
        path = f"{self.MACHINES.path}/{machine.id}/{how}-volumes"
        self._rest.ask("POST", path, {"volume_ids": [int(disk.id)]}, about=disk.id)

    # -------------------------------------------------------------------------------------- marks

    def owners(self, kind: What) -> Mapping[str, str | None]:
        if kind == "machine":
            return {
                str(item.get("id")): labels.owner_of(map(str, item.get("labels") or ()))
                for item in self._listed(self.MACHINES)
                if STATES.get(str(item.get("status")), ("",))[0] is not NodeState.TERMINATING
            }
        return {
            str(item.get("id")): names.owner_of(item.get("description"), self._account.owner)
            for item in self._listed(self.DISKS)
            if not str(item.get("status")).lower().startswith("delet")
        }

    def restore_mark(self, kind: What, made: str, mark: Written, tags: Mapping[str, str]) -> None:
        if kind == "disk":
            raise self._rest.refused(f"the description of {made} cannot be changed", "volume")
        super().restore_mark(kind, made, mark, tags)

    # ----------------------------------------------------------------------- environments and keys

    def add_key(self, name: str, public: str) -> str:
        self._prepare(name[:NAME], public)
        return name[:NAME]

    def _prepare(self, name: str = "", public: str = "") -> None:
        """Make the environment, and in it the keypair, if they are missing."""
        with self._turn:
            if name in self._prepared:
                return
            if not self._here(_ENVIRONMENTS):
                self._add(_ENVIRONMENTS, {"name": self._environment, "region": self._region})
            if name:
                there = [key for key in self._keypairs() if key.get("name") == name]
                same = [key for key in there if _key(key.get("public_key")) == _key(public)]
                for other in there if not same else ():
                    self._rest.ask("DELETE", f"/v1/core/keypair/{other.get('id')}")
                if not same:
                    body = {"name": name, "environment_name": self._environment, "public_key": public}
                    self._add(_KEYPAIRS, body)
            self._prepared |= {"", name}

    def _add(self, listing: Listing, body: Mapping[str, Any]) -> None:
        """Make one. If there is one of the name, somebody else was first."""
        try:
            self._rest.ask("POST", listing.path, body, about=self._region)
        except PermanentError as error:
            if error.kind is PermanentKind.NOT_FOUND:  # the environment went meanwhile
                raise TransientError(TransientKind.BUSY, error.summary, about=error.about) from None
            if error.kind is not PermanentKind.CONFLICT:
                raise

    def _here(self, listing: Listing) -> list[Mapping[str, Any]]:
        """This state's environment, if it exists."""
        found = self._listed(listing, search=self._environment)
        return [item for item in found if item.get("name") == self._environment and "id" in item]

    def _keypairs(self) -> list[Mapping[str, Any]]:
        try:
            found = self._listed(_KEYPAIRS)
            return [item for item in found if item["environment"]["name"] == self._environment]
        except (KeyError, TypeError):
            raise self._unreadable(_KEYPAIRS) from None

    def _forget(self) -> None:
        with self._turn:
            self._prepared.clear()

    def delete_key(self, name: str, public: str) -> None:
        self._forget()
        for key in self._keypairs():
            if key.get("name") == name[:NAME]:
                with suppress(PermanentError):
                    self._rest.ask("DELETE", f"/v1/core/keypair/{key.get('id')}")
        self._tidy()

    def check_gone(self, kind: What, made: str) -> None:
        """After the last volume, an earlier try may have failed to delete the environment."""
        if kind == "disk":
            self._tidy()

    def _tidy(self) -> None:
        """Delete the environment if nothing is in it any more, or will soon be: it waits up to a minute for
        what is being deleted. One that stays behind costs nothing.
        """
        try:
            for _ in pauses("the environment is in use", self._region):
                here = self._here(_ENVIRONMENTS)
                if not here:
                    return
                things = [*self._instances(), *self._ours(self.DISKS)]
                living = [one for one in things if not str(one.get("status")).lower().startswith("delet")]
                if living or self._keypairs():
                    return
                if not things:
                    self._forget()
                    self._rest.ask("DELETE", f"{_ENVIRONMENTS.path}/{here[0]['id']}")
                    return
        except ProviderError as error:
            if isinstance(error, TransientError) and error.kind is not TransientKind.BUSY:
                raise  # whoever deletes tries again


def _taken(error: PermanentError) -> TransientError:
    """The fault of a name in use: it belongs to this create, whose thing is not listed yet or ends."""
    summary = f"what was made earlier is not listed yet, or is being deleted: {error.summary}"
    return TransientError(TransientKind.BUSY, summary, about=error.about)


def _key(public: object) -> list[str]:
    """A public key without its comment."""
    return str(public or "").split()[:2]


def _gpus(gpu: str, count: int) -> dict[str, Any]:
    """The GPUs of a flavor, as fields of a shape: `H100-80G-PCIe-spot` is an H100 with 80 GB."""
    if not count:
        return {"gpus": 0}
    memory = re.search(r"-(\d+)GB?\b", gpu)
    name, vendor = gpu_model(re.sub(r"-(\d+GB?|spot|PCIe|SXM\d*|NVLink)\b", "", gpu, flags=re.IGNORECASE))
    gigabytes = int(memory[1]) if memory else GPU_MEMORY_GB.get(name or "")
    return {
        "gpus": count,
        "gpu_name": name,
        "gpu_memory_mib": gigabytes * 1024 if gigabytes else None,
        "gpu_vendor": vendor or "nvidia",
    }


def _price(item: Mapping[str, Any], prices: Mapping[str, float]) -> float | None:
    """USD an hour, from the prices of parts; None if one is missing."""
    gpu = str(item.get("gpu") or "")
    kind = "" if gpu else " (cpu-only-flavors)"
    parts = [(f"vCPU{kind}", float(item["cpu"])), (f"RAM{kind}", float(item["ram"]))]
    if gpu:
        parts.append((gpu, float(item["gpu_count"])))
    if any(name not in prices for name, _ in parts):
        return None
    price = round(sum(prices[name] * number for name, number in parts), 6)
    return price if 0 < price < float("inf") else None
