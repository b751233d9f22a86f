"""Crusoe Cloud: VMs and disks that keep only their names, which can never be changed.

So the mark is the name (`names`), and inputs are those of the record. A change is answered with an operation:
it ends in seconds, but for that of a new VM, which fails at once or runs until the VM does. Only an operation
tells that there is no capacity, and a change that failed looks like one that was never asked for: so a change
returns when its operation has ended, and a create when its VM can be found, which takes a moment.

VMs run no cloud-init, but a shell script (`start.sh`). Types with InfiniBand need a partition of such a
network: each state has one of its own in each network that it uses, made with the first VM there.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import shlex
import threading
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

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
from providers.cloud.account import if_there, look_up, pauses
from providers.cloud.any import names
from providers.cloud.any.account import Account
from providers.cloud.any.json_site import Rest
from providers.cloud.any.site import (
    GPU_MEMORY_GB,
    Disk,
    Machine,
    Site,
    Size,
    Wanted,
    What,
    Written,
    gpu_model,
)
from providers.cloud.bad_answers import reading
from providers.cloud.faults import Answer, ErrorInfo, Kind, error_info, fault
from providers.cloud.provider import Cloud
from providers.ownership import key_of

HOST = settings.Host(name="api.cloud.crusoe.ai", port=443, secure=True)
ROOT = "/v1"
CAPACITIES, PROJECTS = f"{ROOT}/capacities", f"{ROOT}/organizations/projects"
CONFIG = Path(".crusoe", "config")
"""Below the home folder: where Crusoe's own tools keep keys and project, as TOML."""
VARIABLES: Mapping[str, str] = {
    "access_key_id": "CRUSOE_ACCESS_KEY_ID",
    "secret_key": "CRUSOE_SECRET_KEY",
    "default_project": "CRUSOE_DEFAULT_PROJECT",
}
"""Name in that file → the variable of Crusoe's tools that comes first."""
DISK_TYPE = "persistent-ssd"
_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SERIAL = re.compile(r"[A-Za-z0-9-]{8,20}")
_SIGNATURE = re.compile(r"(?<![\w-])[\w-]{43}(?![\w-])")
_TAKEN = re.compile(r"\balready (exists|in use|taken)\b")

STATES: Mapping[str, tuple[NodeState, str | None]] = {
    "CREATING": (NodeState.PROVISIONING, "it is starting"),
    "STARTING": (NodeState.PROVISIONING, "it is starting"),
    "RUNNING": (NodeState.READY, None),
    "DELETING": (NodeState.TERMINATING, "it is being deleted"),
    "DELETED": (NodeState.TERMINATING, "it is deleted"),
}
CODES: Mapping[str, Kind] = {
    "out_of_stock": PermanentKind.NO_CAPACITY,
    "internal_error": TransientKind.AMBIGUOUS,
}
HINTS: Mapping[Kind, str] = {
    PermanentKind.NO_CAPACITY: "Crusoe has none free there now: name more `regions` or other types, or apply"
    " later",
    PermanentKind.QUOTA: "delete what you do not need, or ask Crusoe's support for a larger quota",
}


def crusoe(config: Config) -> Cloud:
    """The provider for `driver: crusoe`. Its own option is `project`, an id or a name."""
    return Cloud(Account(config, {"project": str}, lambda a, _: Crusoe(a), cloud="Crusoe"))


def login(config: Config) -> tuple[str, bytes, str]:
    """Key id, secret and project: of the backend, else of the variables or the file of Crusoe's tools."""
    settings.refuse()
    try:
        known = tomllib.loads((Path.home() / CONFIG).read_text(encoding="utf-8"))
    except (OSError, RuntimeError, ValueError):
        known = {}
    profile = known.get(os.environ.get("CRUSOE_PROFILE") or known.get("profile") or "default")
    have: dict[str, Any] = dict(profile) if isinstance(profile, dict) else {}
    have |= {key: text for key, name in VARIABLES.items() if (text := os.environ.get(name, "").strip())}
    if config.credentials:
        given = settings.secrets(config, ("key", "secret"))
        have |= {"access_key_id": given["key"], "secret_key": given["secret"]}
    have |= {"default_project": config.options.get("project") or have.get("default_project")}
    for key, name in VARIABLES.items():
        if isinstance(have.get(key), str) and have[key]:
            continue
        summary = f"Crusoe's `{key}` is not known: {name} is not set, and ~/{CONFIG} has none"
        if key == "default_project":
            hint = f"write `options: {{project: ID}}`, or export {name}"
            raise PermanentError(PermanentKind.INVALID, summary, about="options.project", hint=hint)
        hint = f"export {name}, or {settings.write(config, 'credentials')}"
        raise PermanentError(PermanentKind.AUTH, summary, about="credentials", hint=hint)
    try:
        secret = base64.b64decode(
            have["secret_key"] + "=" * (-len(have["secret_key"]) % 4), b"-_", validate=True
        )
    except ValueError:
        summary = "Crusoe's secret key is not base64, as all of them are"
        raise PermanentError(PermanentKind.AUTH, summary, about="credentials.secret") from None
    return have["access_key_id"], secret, have["default_project"]


def signed(
    key: str, secret: bytes, method: str, path: str, params: Mapping[str, str], when: str
) -> dict[str, str]:
    """The headers of a request at a time (RFC 3339): the signature covers all but its body."""
    query = "&".join(f"{quote_plus(name)}={quote_plus(text)}" for name, text in sorted(params.items()))
    digest = hmac.new(secret, f"{path}\n{query}\n{method}\n{when}\n".encode(), hashlib.sha256).digest()
    signature = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    return {"X-Crusoe-Timestamp": when, "Authorization": f"Bearer 1.0:{key}:{signature}"}


def read_error(answer: Answer) -> ErrorInfo | None:
    """An error of Crusoe's. Its code is often no more than the status."""
    info = error_info(answer)
    if info is None:
        return None
    error = json.loads(answer.text)
    code = error.get("code") if isinstance(error, dict) else None
    kind = CODES.get(code, info.kind) if isinstance(code, str) else info.kind
    text = _SIGNATURE.sub("***", info.text)
    return ErrorInfo(kind=kind, text=text, hint=HINTS.get(kind, info.hint) if kind else info.hint)


def start_script(user_data: str) -> str:
    """What cloud-init would do with our user data, as a shell script."""
    given = json.loads(user_data.partition("\n")[2])
    _, user = given["users"]
    (file,) = given.get("write_files") or [{"path": "", "content": ""}]
    host_key = given["ssh_keys"]
    words = (
        *(user["name"], str(user.get("uid", "")), user["ssh_authorized_keys"][0]),
        *(host_key["ed25519_private"].rstrip("\n"), host_key["ed25519_public"]),
        *(user.get("sudo", ""), file["path"], file["content"]),
    )
    text = (Path(__file__).parent / "start.sh").read_text(encoding="utf-8")
    program = re.sub(r"^ *#(?!!).*\n", "", text, flags=re.MULTILINE)
    first, _, others = program.partition("\n")
    return f"{first}\nset -- {shlex.join(words)}\n{others}"


class Crusoe(Site):
    """One project of Crusoe's."""

    settle = 10.0
    grows = True

    def __init__(self, account: Account) -> None:
        self._account = account
        key, secret, self._named = login(account.config)
        account.scrub.learn([key])

        def sign(method: str, path: str, params: Mapping[str, str]) -> dict[str, str]:
            when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            return signed(key, secret, method, path, params, when)

        plain = base64.urlsafe_b64encode(secret).decode().rstrip("=")
        self._rest = Rest(
            account,
            lambda _: rest.link(HOST, account.timeout, sign),
            lambda _: None,
            secret=plain,
            bearer=False,
            read=read_error,
        )
        self._partition_name = f"fleetform-{key_of(account.owner)[:8]}"
        self._turn = threading.Lock()

    @cached_property
    def _project(self) -> str:
        """The path of all that is in the project."""
        ids = [self._named]
        if not _ID.fullmatch(self._named):
            projects = self._items(PROJECTS, project_name=self._named)
            ids = [self._id(one.get("id"), PROJECTS) for one in projects if one.get("name") == self._named]
        if len(ids) != 1:
            summary = f"there are {len(ids)} projects `{self._named}`"
            hint = "write its id: `options: {project: ID}`"
            raise PermanentError(PermanentKind.INVALID, summary, about="options.project", hint=hint)
        return f"{ROOT}/projects/{ids[0]}"

    @property
    def _vms(self) -> str:
        return f"{self._project}/compute/vms/instances"

    @property
    def _disks(self) -> str:
        return f"{self._project}/storage/disks"

    @property
    def _partitions(self) -> str:
        return f"{self._project}/networking/ib-partitions"

    def _items(self, path: str, name: str = "items", **params: Any) -> list[dict[str, Any]]:
        """A listing. Only that of VMs has pages, which begin after a thing, whatever goes meanwhile."""
        out: list[dict[str, Any]] = []

        def page(token: str | None) -> Mapping[str, Any]:
            more: dict[str, Any] = {"next_token": token} if token else {}
            return self._rest.ask("GET", path, **params, **more)

        for answer in rest.pages(path, page, "next_page_token"):
            out += rest.listed(path, answer, name)
        return out

    def _id(self, made: object, path: str) -> str:
        """An id, which becomes part of paths."""
        if not isinstance(made, str) or not _ID.fullmatch(made):
            raise self._rest.bad_answer(path, "has an id that cannot be read")
        return made

    def _unreadable(self, path: str, called: str) -> TransientError:
        return self._rest.bad_answer(path, f"has {called} that cannot be read")

    # ----------------------------------------------------------------------------------- operations

    def _begun(self, answer: Mapping[str, Any], path: str, about: str) -> Mapping[str, Any]:
        """The operation in the answer to a change."""
        return self._checked(self._rest.one(answer, "operation", path), path, about)

    def _again(self, operation: Mapping[str, Any], path: str, about: str) -> Mapping[str, Any]:
        """The operation as it is by now. If that cannot be asked, its outcome is unknown."""
        at = f"{path}/operations/{self._id(operation.get('operation_id'), path)}"
        return self._checked(look_up(lambda: self._rest.ask("GET", at, about=about)), path, about)

    def _checked(self, operation: Mapping[str, Any], path: str, about: str) -> Mapping[str, Any]:
        """A fault if it has failed."""
        state = operation.get("state")
        if state == "FAILED":
            answer = Answer(status=400, text=json.dumps(operation.get("result")))
            info = read_error(answer) or ErrorInfo(kind=PermanentKind.INVALID, text="it failed")
            summary = self._account.scrub(f"Crusoe, {path}: {info.text}")
            raise fault(info.kind or PermanentKind.INVALID, summary, about=about, hint=info.hint)
        if state not in ("IN_PROGRESS", "SUCCEEDED"):
            raise self._unreadable(path, "an operation")
        return operation

    def _thing(self, operation: Mapping[str, Any], path: str) -> str:
        """The id of what an operation is about."""
        return self._id(self._rest.one(operation, "metadata", path).get("id"), path)

    def _done(self, answer: Mapping[str, Any], path: str, about: str) -> str:
        """Return when the operation in an answer has ended, with the id of what it changed."""
        operation = self._begun(answer, path, about)
        for _ in pauses(f"a change of {about} has not ended yet", about):
            if operation["state"] == "SUCCEEDED":
                break
            operation = self._again(operation, path, about)
        return self._thing(operation, path)

    # --------------------------------------------------------------------------------------- offers

    def sizes(self) -> Sequence[Size]:
        """The types, and the locations with hardware for them just now. The API has no prices."""
        path = f"{self._project}/compute/vms/types"
        types, free = self._items(path), self._items(CAPACITIES)
        try:
            places: dict[object, list[str]] = {}
            for one in free:
                if one["quantity"] > 0:
                    places.setdefault(one["type"], []).append(str(one["location"]))
            return [_size(item, places.get(item["product_name"], ())) for item in types]
        except (KeyError, TypeError, ValueError, OverflowError):
            raise self._unreadable(path, "a type or a capacity") from None

    # ------------------------------------------------------------------------------------- machines

    def machines(self) -> Sequence[Machine]:
        return [m for item in self._items(self._vms) if (m := self._machine(item))]

    def _machine(self, item: Mapping[str, Any]) -> Machine | None:
        """A VM from a listing; None if it is not the owner's."""
        made = self._id(item.get("id"), self._vms)
        written = names.read("node", item.get("name"), self._account.owner)
        if written is None:
            return None
        try:
            status = str(item["state"]).removeprefix("STATE_")
            state, reason = STATES.get(status, (NodeState.NOT_READY, f"it is {status.lower()}"))
            region, made_at = str(item["location"]), str(item["created_at"])
            ips = [ip for interface in item["network_interfaces"] or () for ip in interface["ips"] or ()]
            private, public = (
                next((str(ip[kind]["address"]) for ip in ips if (ip.get(kind) or {}).get("address")), "")
                for kind in ("private_ipv4", "public_ipv4")
            )
        except (KeyError, TypeError, AttributeError):
            raise self._unreadable(self._vms, "a VM") from None
        if state is NodeState.READY and not private:
            state, reason = NodeState.PROVISIONING, "it has no address yet"
        return Machine(
            id=made,
            region=region,
            state=state,
            reason=reason,
            address=private,
            public_address=public,
            written=written,
            made_at=made_at,
        )

    def launch(self, wanted: Wanted) -> Machine:
        self._untagged(wanted)
        network = self._account.config.network
        if network.security_groups or network.public_ip is False:
            summary = "a node has a public address, and the firewall rules of its network"
            raise self._rest.refused(summary, "network")
        body: dict[str, Any] = {
            "name": names.name(wanted.written),
            "type": wanted.size,
            "location": wanted.region,
            "custom_image" if _ID.fullmatch(wanted.image) else "image": wanted.image,
            "ssh_public_key": wanted.login,
            "startup_script": start_script(wanted.user_data),
            "install_crusoe_watch_agent": False,
        }
        if network.subnets:
            body["network_interfaces"] = [_interface(network.subnets, wanted.region)]
        partition = self._partition(wanted) if wanted.size.partition(".")[0].endswith("-ib") else None
        if partition:
            body["host_channel_adapters"] = [{"transport_partition_id": partition}]
        path = self._vms
        try:
            answer = self._rest.ask("POST", path, body, about=wanted.region)
        except PermanentError as error:
            raise self._why(error, wanted, partition) from None
        operation = self._begun(answer, path, wanted.region)
        made = self._thing(operation, path)
        for _ in pauses(f"{made} cannot be found yet", wanted.region):
            item = look_up(lambda: if_there(self._rest.ask, "GET", f"{path}/{made}", about=made))
            if item is not None:
                machine = self._machine(item)
                if machine is None:
                    raise self._rest.bad_answer(path, "has a VM of another name")
                return machine
            operation = self._again(operation, path, wanted.region)
        raise AssertionError("pauses end with a fault")

    def _why(self, error: PermanentError, wanted: Wanted, partition: str | None) -> ProviderError:
        """The fault of a refused create. If its text does not say that it is a quota, the quotas and the
        capacities do. The end of the last node may just have deleted the partition.
        """
        if error.kind is PermanentKind.CONFLICT or _TAKEN.search(error.summary):
            summary = f"what was made earlier is not listed yet, or is being deleted: {error.summary}"
            return TransientError(TransientKind.BUSY, summary, about=error.about)
        if error.kind is not PermanentKind.INVALID:
            return error
        kind: PermanentKind = error.kind
        with suppress(ProviderError), reading():
            if partition and partition not in [one["id"] for one in self._own_partitions()]:
                return TransientError(TransientKind.BUSY, error.summary, about=error.about)
            free = self._items(CAPACITIES, product_name=wanted.size, location=wanted.region)
            called = {wanted.size.rpartition(".")[0], *(str(one.get("quota_type")) for one in free)}
            quotas = self._items(f"{self._project}/quotas", "quotas")
            own = [one for one in quotas if called & {one.get("programmatic_name"), one.get("type")}]
            if any(one["available"] <= 0 for one in own):
                kind = PermanentKind.QUOTA
            elif not any(one["quantity"] > 0 for one in free):
                kind = PermanentKind.NO_CAPACITY
        return PermanentError(kind, error.summary, about=error.about, hint=HINTS.get(kind, error.hint))

    def end(self, machine: Machine) -> None:
        """Its own disk goes with it, and disks that are attached are free then."""
        self._rest.ask("DELETE", f"{self._vms}/{machine.id}", about=machine.id)

    def _untagged(self, wanted: Wanted) -> None:
        if wanted.tags:
            raise self._rest.refused("it keeps nothing but names: leave `tags` out", "tags")

    # ---------------------------------------------------------------------------------------- disks

    def disks(self) -> Sequence[Disk]:
        items = self._items(self._disks, exclude_os="true")
        return [d for item in items if (d := self._disk(item))]

    def _disk(self, item: Mapping[str, Any]) -> Disk | None:
        """A disk from a listing; None if it is not the owner's."""
        made = self._id(item.get("id"), self._disks)
        written = names.read("volume", item.get("name"), self._account.owner)
        if written is None:
            return None
        try:
            number, unit = re.fullmatch(r"(\d{1,9})(GiB|TiB)", item["size"]).groups()  # type: ignore[union-attr]
            serial = str(item["serial_number"])[:20]
            return Disk(
                id=made,
                region=str(item["location"]),
                size=int(number) * (1024 if unit == "TiB" else 1),
                on=tuple(str(one["vm_id"]) for one in item["attached_to"] or ()),
                device=f"/dev/disk/by-id/virtio-{serial}" if _SERIAL.fullmatch(serial) else None,
                written=written,
                made_at=str(item["created_at"]),
            )
        except (KeyError, TypeError, AttributeError):
            raise self._unreadable(self._disks, "a disk") from None

    def make(self, wanted: Wanted) -> Disk:
        self._untagged(wanted)
        if wanted.volume_type not in (None, DISK_TYPE):
            summary = f"a volume is a `{DISK_TYPE}`: shared volumes are no disks, and cannot be attached"
            raise self._rest.refused(summary, "volume_type")
        body = {
            "name": names.name(wanted.written),
            "location": wanted.region,
            "size": f"{wanted.gib}GiB",
            "type": DISK_TYPE,
        }
        try:
            answer = self._rest.ask("POST", self._disks, body, about=wanted.region)
        except PermanentError as error:
            if error.kind is PermanentKind.CONFLICT or _TAKEN.search(error.summary):
                raise TransientError(TransientKind.BUSY, error.summary, about=error.about) from None
            raise
        made = self._done(answer, self._disks, wanted.region)
        return Disk(id=made, region=wanted.region, size=wanted.gib, busy=True, written=wanted.written)

    def remove(self, disk: Disk) -> None:
        answer = self._rest.ask("DELETE", f"{self._disks}/{disk.id}", about=disk.id)
        self._done(answer, self._disks, disk.id)

    def grow(self, disk: Disk, gib: int) -> None:
        if disk.on:
            summary = f"{disk.id} is on a VM, and grows only while it is on none"
            hint = "stop the task that has it, and apply again"
            raise PermanentError(PermanentKind.CONFLICT, summary, about="size", hint=hint)
        answer = self._rest.ask("PATCH", f"{self._disks}/{disk.id}", {"size": f"{gib}GiB"}, about=disk.id)
        self._done(answer, self._disks, disk.id)

    def attach(self, disk: Disk, machine: Machine) -> None:
        one = {"disk_id": disk.id, "mode": "read-write", "attachment_type": "data"}
        self._move(disk, machine, "attach-disks", {"attach_disks": [one]}, on=True)

    def detach(self, disk: Disk, machine: Machine) -> None:
        self._move(disk, machine, "detach-disks", {"detach_disks": [disk.id]}, on=False)

    def _move(self, disk: Disk, machine: Machine, how: str, body: Mapping[str, Any], *, on: bool) -> None:
        try:
            answer = self._rest.ask("POST", f"{self._vms}/{machine.id}/{how}", body, about=disk.id)
            self._done(answer, self._vms, disk.id)
        except PermanentError:
            # A command that was killed may have asked for it.
            now = if_there(self._rest.ask, "GET", f"{self._disks}/{disk.id}", about=disk.id)
            have = self._disk(now) if now else None
            if have is None or (machine.id in have.on) is not on:
                raise

    # ---------------------------------------------------------------------------------------- marks

    def owners(self, kind: What) -> Mapping[str, str | None]:
        path = self._vms if kind == "machine" else self._disks
        more = {"exclude_os": "true"} if kind == "disk" else {}
        return {
            self._id(item.get("id"), path): names.owner_of(item.get("name"), self._account.owner)
            for item in self._items(path, **more)
            if STATES.get(str(item.get("state")).removeprefix("STATE_"), ("",))[0]
            is not NodeState.TERMINATING
        }

    def ended(self, kind: What, made: str) -> str | None:
        """If nothing there is the owner's, it may be the wrong project."""
        if kind == "disk" or not _ID.fullmatch(made) or self._account.owner not in self.owners(kind).values():
            return None
        vm = if_there(self._rest.ask, "GET", f"{self._vms}/{made}", about=made)
        return f"Crusoe has no VM {made} any more" if vm is None else None

    def restore_mark(self, kind: What, made: str, mark: Written, tags: Mapping[str, str]) -> None:
        raise self._rest.refused(f"{made} has another name than {mark.address}, and cannot be renamed", made)

    # ----------------------------------------------------------------------------------- partitions

    def _partition(self, wanted: Wanted) -> str:
        """The partition for a VM of this type: this state's own, in a network of its location with room for
        the type. VMs of two networks do not reach each other over InfiniBand.
        """
        path = f"{self._project}/networking/ib-networks"
        with self._turn:
            networks, ours = self._items(path), self._own_partitions()
            try:
                room = {
                    str(network["id"]): int(one["quantity"])
                    for network in networks
                    for one in network["capacities"]
                    if (network["location"], one["slice_type"]) == (wanted.region, wanted.size)
                }
                usable = sorted(
                    (-room[one["ib_network_id"]], one["id"]) for one in ours if one["ib_network_id"] in room
                )
            except (KeyError, TypeError, ValueError):
                raise self._unreadable(path, "a network") from None
            if not room:
                summary = f"no InfiniBand network in {wanted.region} has {wanted.size}"
                raise PermanentError(PermanentKind.NO_CAPACITY, summary, about=wanted.region)
            best = max(room, key=lambda network: room[network])
            if usable and (usable[0][0] < 0 or room[best] <= 0):
                return self._id(usable[0][1], self._partitions)
            body = {"name": self._partition_name, "ib_network_id": best}
            made = self._rest.ask("POST", self._partitions, body, about=wanted.region)
            return self._id(made.get("id"), self._partitions)

    def _own_partitions(self) -> list[dict[str, Any]]:
        return [one for one in self._items(self._partitions) if one.get("name") == self._partition_name]

    def delete_key(self, name: str, public: str) -> None:
        """Delete this state's partitions once their VMs are gone, if that takes no more than a minute. One
        that stays behind costs nothing.
        """
        try:
            for _ in pauses("the partition still has VMs", self._partition_name):
                ours, machines = self._own_partitions(), self.machines()
                if not ours or any(not machine.gone for machine in machines):
                    return
                if not machines:
                    for one in ours:
                        made = self._id(one.get("id"), self._partitions)
                        if_there(self._rest.ask, "DELETE", f"{self._partitions}/{made}", about=made)
                    return
        except ProviderError as error:
            if isinstance(error, TransientError) and error.kind is not TransientKind.BUSY:
                raise  # whoever deletes tries again


def _size(item: Mapping[str, Any], places: Sequence[str]) -> Size:
    """A type. What its GPU is called differs between types: `H100-SXM-80GB`, `MI355X_288GB`, `A100`."""
    name, count = str(item["product_name"]), int(item["num_gpu"])
    gpus: dict[str, Any] = {"gpus": count}
    if count:
        words = (
            re.sub(r"[ _-]+", " ", f"{item['gpu_type'] or ''}") or name.replace("-", " ").partition(".")[0]
        )
        memory = re.search(r"\b(\d+) ?GB\b", f"{words} {name.replace('-', ' ')}", re.IGNORECASE)
        model, vendor = gpu_model(re.sub(r"\b(\d+ ?GB|PCIe|SXM\d*|NVL|IB)\b", "", words, flags=re.IGNORECASE))
        gigabytes = int(memory[1]) if memory else GPU_MEMORY_GB.get(model or "")
        gpus["gpu_name"] = model
        gpus["gpu_memory_mib"] = gigabytes * 1024 if gigabytes else None
        gpus["gpu_vendor"] = vendor or ("amd" if str(model).startswith("MI") else "nvidia")
    shape = Shape(cpu=int(item["cpu_cores"]), memory_mib=int(item["memory_gb"]) * 1024, **gpus)
    return Size(name=name, shape=shape, regions=tuple(places))


def _interface(subnets: Mapping[str, str], region: str) -> dict[str, Any]:
    """The interface of a VM in a subnet of one's own. The description asks for fields that only the cloud can
    know; Crusoe's own clients leave them empty.
    """
    if region not in subnets:
        summary = f"`network.subnets` names no subnet for {region}"
        raise PermanentError(PermanentKind.INVALID, summary, about="network.subnets")
    empty = ("id", "name", "network", "interface_type", "mac_address", "external_dns_name")
    ips = {"private_ipv4": {"address": ""}, "public_ipv4": {"address": "", "id": "", "type": "dynamic"}}
    return {**dict.fromkeys(empty, ""), "subnet": subnets[region], "ips": [ips]}
