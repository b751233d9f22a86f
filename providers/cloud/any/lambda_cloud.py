"""Lambda Cloud: instances with tags that are written at their launch and never again.

So the tags hold what never changes: owner, token and address; inputs are those of the record. A launch is
answered with an id alone, and nothing has a time of its creation: an instance is found again by its tags. An
API key may send one request a second, and one launch in twelve seconds; both are kept by waiting.

Lambda's only disks are shared filesystems, which are mounted at a launch and never again, and have no size:
no volume of ours can be one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from declarative.model.blocks import Shape
from declarative.model.state import Address
from declarative.model.status import NodeState
from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import marks, rest, settings
from providers.cloud.account import if_there
from providers.cloud.any.account import Account
from providers.cloud.any.json_site import Rest, Ring
from providers.cloud.any.site import Disk, Machine, Site, Size, Wanted, What, Written, gpu_model
from providers.cloud.connection import limiter
from providers.cloud.faults import Answer, ErrorInfo, Kind, error_info
from providers.cloud.provider import Cloud

HOST = settings.Host(name="cloud.lambda.ai", port=443, secure=True)
ROOT = "/api/v1"
INSTANCES, KEYS = f"{ROOT}/instances", f"{ROOT}/ssh-keys"
LAUNCH = f"{ROOT}/instance-operations/launch"
TERMINATE = f"{ROOT}/instance-operations/terminate"
GAP = 1.05
LAUNCH_GAP = 12.2
"""Seconds between two requests, and between two launches: a little more than Lambda asks for."""
VARIABLE = "LAMBDA_API_KEY"
KEY_FILE = Path(".lambda_cloud", "lambda_keys")
"""Below the home folder: where SkyPilot keeps the key of Lambda's users, as `api_key = …`."""
_ID = re.compile(r"[0-9A-Za-z-]{1,64}")
_UUID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TAG = re.compile(r"[a-z][a-z0-9:-]{1,54}")
_GPU = re.compile(r"(?:Tesla |Quadro )?([^()]+?) \((\d+) GB\b")

STATES: Mapping[str, tuple[NodeState, str | None]] = {
    "booting": (NodeState.PROVISIONING, "it is starting"),
    "active": (NodeState.READY, None),
    "unhealthy": (NodeState.NOT_READY, "Lambda reports it as unhealthy"),
    "terminating": (NodeState.TERMINATING, "it was terminated"),
    "terminated": (NodeState.TERMINATING, "it was terminated"),
    "preempted": (NodeState.TERMINATING, "Lambda took it back"),
}
CODES: Mapping[str, Kind] = {
    "instance-operations/launch/insufficient-capacity": PermanentKind.NO_CAPACITY,
    "global/quota-exceeded": PermanentKind.QUOTA,
    "global/account-inactive": PermanentKind.AUTH,
    "global/invalid-address": PermanentKind.AUTH,
    "global/invalid-api-key": PermanentKind.AUTH,
    "global/forbidden": PermanentKind.AUTH,
    "global/invalid-parameters": PermanentKind.INVALID,
    "global/object-does-not-exist": PermanentKind.NOT_FOUND,
    "global/not-found": PermanentKind.NOT_FOUND,
    "global/duplicate": PermanentKind.CONFLICT,
    "global/conflict": TransientKind.BUSY,
}
"""Lambda's codes of refusals. Many share the status 400."""
HINTS: Mapping[str, str] = {
    "instance-operations/launch/insufficient-capacity": "Lambda has none free there now: name more `regions`"
    " or other types, or apply later",
    "global/quota-exceeded": "terminate instances that you do not need, or ask Lambda's support for a"
    " larger quota",
    "global/account-inactive": "verify the account's address and its payment in Lambda's console",
    "global/invalid-address": "correct the billing address in Lambda's console",
    "global/invalid-api-key": f"make a key in Lambda's console, and export it as {VARIABLE}",
}
THROTTLED = "one API key may send a request a second and a launch each 12 s; who else uses it counts, too"


def lambda_cloud(config: Config) -> Cloud:
    """The provider for `driver: lambda`."""
    return Cloud(Account(config, {}, lambda a, _: Lambda(a), cloud="Lambda"))


def api_key(config: Config) -> str:
    """The key in the variable that `credentials` names, else the one that Lambda's users have anyway."""
    settings.refuse()
    if config.credentials:
        return settings.secrets(config, ("key",))["key"]
    if key := os.environ.get(VARIABLE, "").strip():
        return key
    try:
        text = (Path.home() / KEY_FILE).read_text(encoding="utf-8")
    except (OSError, RuntimeError, ValueError):
        text = ""
    if found := re.search(r"^\s*api_key\s*=\s*([!-~]+)\s*$", text, re.MULTILINE):
        return found[1]
    summary = f"there is no API key of Lambda's: {VARIABLE} is not set, and ~/{KEY_FILE} has none"
    hint = f"export {VARIABLE}, or {settings.write(config, 'credentials')}"
    raise PermanentError(PermanentKind.AUTH, summary, about="credentials", hint=hint)


def read_error(answer: Answer) -> ErrorInfo | None:
    """An error of Lambda's, by its code: texts may change, says Lambda."""
    info = error_info(answer)
    if info is None:
        return None
    if answer.status == 429:
        return ErrorInfo(kind=TransientKind.THROTTLED, text=info.text, hint=THROTTLED)
    found = json.loads(answer.text)
    error = found.get("error") if isinstance(found, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if not isinstance(code, str) or code not in CODES or answer.status >= 500:
        return info
    return ErrorInfo(kind=CODES[code], text=f"{info.text} ({code})", hint=HINTS.get(code))


class Lambda(Site):
    """One account of Lambda's."""

    settle = 15.0
    volumes = False

    def __init__(self, account: Account) -> None:
        self._account = account
        secret = api_key(account.config)
        # All backends with this key share its rate.
        who = ("lambda", account.config.endpoint, hashlib.sha256(secret.encode()).hexdigest())
        self._launches = limiter(*who, "launch", least=LAUNCH_GAP)
        self._rest = Rest(
            account,
            lambda _: rest.link(HOST, account.timeout),
            _total,
            secret=secret,
            pace=limiter(*who, least=GAP),
            read=read_error,
        )
        self._ring = Ring(self._rest, KEYS, "public_key", lambda: self._listed(KEYS), "name")

    def _listed(self, path: str) -> list[Mapping[str, Any]]:
        """A listing. There are no pages."""
        return self._rest.all(path, "data", lambda _: None)

    # ----------------------------------------------------------------------------------- machines

    def sizes(self) -> Sequence[Size]:
        """The types, and where Lambda has capacity for them just now."""
        path = f"{ROOT}/instance-types"
        found = self._rest.one(self._rest.ask("GET", path), "data", path)
        try:
            return [_size(str(name), item) for name, item in found.items()]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise self._rest.bad_answer(path, "has a type that cannot be read") from None

    def machines(self) -> Sequence[Machine]:
        return [m for item in self._listed(INSTANCES) if (m := self._machine(item))]

    def _machine(self, item: Mapping[str, Any]) -> Machine | None:
        """An instance from a listing; None if it is not the owner's."""
        made, tags = self._id(item.get("id"), INSTANCES), self._tags(item)
        if tags.get(marks.OWNER) != self._account.owner:
            return None
        try:
            state, reason = STATES.get(item["status"]) or (NodeState.NOT_READY, "its status is unknown")
            region = str(item["region"]["name"])
            private, public = str(item.get("private_ip") or ""), str(item.get("ip") or "")
        except (KeyError, TypeError):
            raise self._rest.bad_answer(INSTANCES, "has an instance that cannot be read") from None
        try:
            address, token = Address.parse(tags[marks.ADDRESS]), tags[marks.TOKEN]
        except (KeyError, ValueError) as error:
            raise marks.damaged(made) from error
        if state is NodeState.READY and not public:
            state, reason = NodeState.PROVISIONING, "it has no address yet"
        elif state is NodeState.NOT_READY and not public:
            state = NodeState.FAILED  # it never ran
        return Machine(
            id=made,
            region=region,
            state=state,
            reason=reason,
            address=private or public,
            public_address=public,
            written=Written(owner=self._account.owner, token=token, address=address),
        )

    def _id(self, made: object, path: str) -> str:
        """An id, which becomes part of paths."""
        if not isinstance(made, str) or not _ID.fullmatch(made):
            raise self._rest.bad_answer(path, "has an id that cannot be read")
        return made

    def _tags(self, item: Mapping[str, Any]) -> dict[str, str]:
        try:
            return {str(tag["key"]): str(tag["value"]) for tag in item.get("tags") or ()}
        except (KeyError, TypeError):
            raise self._rest.bad_answer(INSTANCES, "has tags that cannot be read") from None

    def launch(self, wanted: Wanted) -> Machine:
        network = self._account.config.network
        if network.subnets or network.public_ip is False:
            raise self._rest.refused("a node has a public address, and no subnet", "network")
        if not wanted.key:
            raise self._rest.refused("a launch names the nodes' key", "identity_file")
        mark, image = wanted.written, wanted.image
        ours = {marks.OWNER: mark.owner, marks.TOKEN: mark.token, marks.ADDRESS: str(mark.address)}
        body = {
            "region_name": wanted.region,
            "instance_type_name": wanted.size,
            "ssh_key_names": [wanted.key],
            "name": mark.address.name,
            "hostname": mark.address.name,
            "image": {"id": image} if _UUID.fullmatch(image) else {"family": image},
            "user_data": wanted.user_data,
            "tags": [{"key": k, "value": v} for k, v in {**_of_users(wanted.tags), **ours}.items()],
        }
        if network.security_groups:
            body["firewall_rulesets"] = [{"id": group} for group in network.security_groups]
        self._launches.wait()
        try:
            found = self._rest.ask("POST", LAUNCH, body, about=wanted.region)
        except TransientError as error:
            if error.kind is TransientKind.THROTTLED:
                self._launches.throttled(error.after)
            raise
        except PermanentError as error:
            if error.kind is not PermanentKind.NOT_FOUND:
                raise
            raise self._named_nothing(error, wanted) from None
        ids = self._rest.one(found, "data", LAUNCH).get("instance_ids")
        if not isinstance(ids, list) or len(ids) != 1:
            raise self._rest.bad_answer(LAUNCH, "has no single id")
        made = self._id(ids[0], LAUNCH)
        return Machine(id=made, region=wanted.region, state=NodeState.PROVISIONING, written=mark)

    def _named_nothing(self, error: PermanentError, wanted: Wanted) -> PermanentError | TransientError:
        """The fault of a launch that names something which is not there. The command that deletes the last
        node also deletes the key: then another try imports it again.
        """
        if wanted.key not in [key.get("name") for key in self._listed(KEYS)]:
            self._ring.forget()
            return TransientError(TransientKind.BUSY, error.summary, about=error.about)
        hint = f"check the `image` ({wanted.image}), the region and `network.security_groups`"
        return PermanentError(PermanentKind.INVALID, error.summary, about=error.about, hint=hint)

    def end(self, machine: Machine) -> None:
        self._rest.ask("POST", TERMINATE, {"instance_ids": [machine.id]}, about=machine.id)

    def owners(self, kind: What) -> Mapping[str, str | None]:
        if kind == "disk":
            return {}
        return {
            self._id(item.get("id"), INSTANCES): self._tags(item).get(marks.OWNER)
            for item in self._listed(INSTANCES)
            if STATES.get(str(item.get("status")), (None,))[0] is not NodeState.TERMINATING
        }

    def ended(self, kind: What, made: str) -> str | None:
        """What Lambda itself says of an id. If it knows none, another node of ours shows that it is the right
        account.
        """
        if kind != "machine" or not _ID.fullmatch(made):
            return None
        path = f"{INSTANCES}/{made}"
        found = if_there(self._rest.ask, "GET", path, about=made)
        if found is not None:
            state, reason = STATES.get(str(self._rest.one(found, "data", path).get("status")), (None, None))
            return reason if state is NodeState.TERMINATING else None
        ours = self._account.owner in self.owners(kind).values()
        return f"Lambda has no instance {made} any more" if ours else None

    def restore_mark(self, kind: What, made: str, mark: Written, tags: Mapping[str, str]) -> None:
        summary = f"{made}: Lambda writes tags only at a launch, so its mark cannot be put back"
        hint = "terminate it in Lambda's console, and apply: it is made anew"
        raise PermanentError(PermanentKind.INVALID, summary, about=made, hint=hint)

    # ----------------------------------------------------------------------------------- no disks

    def disks(self) -> Sequence[Disk]:
        return ()

    def make(self, wanted: Wanted) -> Disk:
        self._no_disks()

    def remove(self, disk: Disk) -> None:
        self._no_disks()

    def attach(self, disk: Disk, machine: Machine) -> None:
        self._no_disks()

    def detach(self, disk: Disk, machine: Machine) -> None:
        self._no_disks()

    def _no_disks(self) -> NoReturn:
        raise self._rest.refused(
            "it has no volumes that can be attached; its filesystems are mounted only at a launch", "backend"
        )

    # --------------------------------------------------------------------------------------- keys

    def add_key(self, name: str, public: str) -> str:
        return self._ring.ensure(_key_name(name, public), public)

    def delete_key(self, name: str, public: str) -> None:
        self._ring.drop(_key_name(name, public))


def _key_name(name: str, public: str) -> str:
    """Names of keys are unique in an account, and a state's key may change."""
    digest = hashlib.sha256(" ".join(public.split()[:2]).encode()).hexdigest()[:8]
    return f"{name[:55]}-{digest}"


def _total(found: Mapping[str, Any]) -> object:
    listed = found.get("data")
    return len(listed) if isinstance(listed, list) and all(isinstance(one, dict) for one in listed) else None


def _size(name: str, item: Mapping[str, Any]) -> Size:
    kind, cents = item["instance_type"], item["instance_type"]["price_cents_per_hour"]
    specs, gpu = kind["specs"], _GPU.match(str(kind["gpu_description"]))
    gpus: dict[str, Any] = {"gpus": int(specs["gpus"])}
    if gpus["gpus"] and gpu:
        model, _ = gpu_model(gpu[1])
        gpus |= {"gpu_name": model, "gpu_memory_mib": int(gpu[2]) * 1024, "gpu_vendor": "nvidia"}
    shape = Shape(
        cpu=int(specs["vcpus"]),
        memory_mib=int(specs["memory_gib"]) * 1024,
        disk_mib=int(specs["storage_gib"]) * 1024 or None,
        **gpus,
    )
    regions = tuple(str(region["name"]) for region in item["regions_with_capacity_available"])
    return Size(name=name, shape=shape, price=float(cents) / 100 if cents > 0 else None, regions=regions)


def _of_users(tags: Mapping[str, str]) -> Mapping[str, str]:
    """A user's tags; `PermanentError` if one cannot be a tag of Lambda's."""
    for key, value in tags.items():
        if not _TAG.fullmatch(key) or len(value) > 128 or key.startswith(marks.OURS):
            summary = f"`{key}: {value}` cannot be a tag of Lambda's"
            hint = "a key has 2 to 55 small letters, digits, hyphens, colons; a value up to 128 characters"
            raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)
    return tags
