"""The driver `openstack`: clouds whose keystone is at `endpoint`.

They have no client tokens, and names are not unique. So each create is preceded by a look for the same
metadata, and a duplicate that appears nevertheless is deleted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from declarative.model.blocks import Shape
from declarative.model.inputs import inputs_of
from declarative.model.resource import Offer
from declarative.model.state import Address
from declarative.provider import Config, PermanentError, PermanentKind, ProviderError
from declarative.provider.optional import Existing
from providers.cloud import checks
from providers.cloud.any.site import Disk, Machine
from providers.cloud.bad_answers import asked
from providers.cloud.checks import is_adopted
from providers.cloud.openstack import answers, names
from providers.cloud.openstack.account import Account
from providers.cloud.openstack.region import Region
from providers.cloud.openstack.site import NovaKeys, OpenStackSite
from providers.cloud.provider import Cloud


class OpenStack(Cloud):
    """One account of an OpenStack. Secrets are read only when first needed.

    Credentials: `username` and `password`, or `id` and `secret` of an application credential.

    Options: `project` or `project_id`; `domain` of the user and the project, or `user_domain` and
    `project_domain`; `interface` (`public`, `internal`, `admin`); `network` (of the nodes: name or id; the
    only one, if left out); `floating_network` (of public addresses); `key_name` (a key pair of the user's,
    besides the state's own key); `root_volume` (GiB: nodes start from a volume, and not from their flavor's
    disk); `settle` (seconds after a create without an answer until it is tried again); `timeout` (seconds of
    one request); `identity_file` (the private key for the nodes, shared by all who work on the state; without
    it `keys` makes one for this project), and of those of the driver `ssh`: `ssh_config`, `connect_timeout`,
    `root`.
    """

    ADOPTS = ADOPTS_INSTANCES = True

    def __init__(self, config: Config) -> None:
        self._nova = account = Account(config, lambda region: OpenStackSite(account, region, keys))
        account.keys = keys = NovaKeys(account)
        super().__init__(account)

    @asked
    def offers(self) -> tuple[Offer, ...]:
        """The current flavors of nova."""
        return offers(self._nova)

    @asked
    def others(self, addresses: Collection[Address]) -> Sequence[Existing]:
        """OpenStack has no filter for metadata: all of the project are read."""
        found = [*self.existing("node"), *self.existing("volume")]
        return checks.others(found, self._nova.owner, addresses)

    @asked
    def starts_from(self, region: str, known: Collection[str]) -> str | None:
        if not self._nova.names_image(region):
            return None
        image = self._nova.image(region)
        return image if image in known else names.image(self._nova.region(region), image)

    @asked
    def existing(self, kind: str, ids: Collection[str] | None = None) -> Sequence[Existing]:
        """A server boots from a bootable volume."""

        def look(region: Region) -> list[Existing]:
            found = region.volumes() if kind == "volume" else region.servers()
            return [
                checks.existing(
                    thing.tags,
                    id=thing.id,
                    name=str(thing.raw.get("name") or ""),
                    region=region.name,
                    zone=thing.zone,
                    type=thing.type,
                    state=thing.word,
                    **_of_disk(thing),
                )
                for thing in found
                if not thing.gone and (ids is None or thing.id in ids)
            ]

        return self._nova.each_region(look)

    @asked
    def check(self, wanted: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        """A fault of the credentials or the connection is raised: nothing else can be checked then."""
        faults = self._unsupported(wanted)
        probes: list[checks.Look] = []
        looks: list[checks.Look] = []
        for name, here in checks.by_region(wanted):
            region = self._nova.region(name)
            probes.append(partial(names.zones, region))
            looks += self._looks(region, here)
        return faults + checks.faults_of(probes, looks, "Policy doesn't allow")

    def _looks(self, region: Region, wanted: Mapping[Address, Mapping[str, Any]]) -> Iterator[checks.Look]:
        """What has to be there in a region for things to be made or adopted."""
        zones: set[str] = set()
        makes = False
        for address, inputs in wanted.items():
            if address.kind == "node" and is_adopted(inputs):
                yield partial(self._nodes.seen, address, "", inputs)
            elif address.kind == "node":
                makes = True
            else:
                zones.add(inputs_of("volume", inputs).zone or "")
                if is_adopted(inputs):
                    yield partial(self._volumes.seen, address, "", inputs)
        if makes:
            yield lambda: names.image(region, self._nova.image(region.name))
            yield partial(names.network, region, self._nova.options.get("network"))
        for zone in sorted(zones - {""}):
            yield partial(names.disk_zone, region, zone)


def _of_disk(thing: Machine | Disk) -> dict[str, Any]:
    if isinstance(thing, Machine):
        return {}
    boots = bool(thing.on) and str(thing.raw.get("bootable")).lower() == "true"
    return {"size": thing.size, "on": thing.on, "boots": boots}


MODELS = (
    r"G[BH][23]00|B[123]00|H[128]00|H20|A[18]00|A[34]0|A16|A10G?|A2|L40S?|L20|L4|V100S?|P100|P40?|T4G?|K80|M[16]0"
    r"|RTX ?(?:PRO ?)?A?[2-6]0[0-9]0|MI355X|MI325X|MI300[AX]|MI2[15]0X?|MI[15]00?"
)
_MODEL = re.compile(
    rf"(?:(?<![A-Z0-9])|(?<=\dX))({MODELS})(?:[ -]?(?:SXM\d?|PCIE|NVL|\d+GB?))*(?:X\d\d?)?(?![A-Z0-9])"
)
_MEMORY = re.compile(r"(?<![A-Z0-9])(\d{1,3})GB?(?![A-Z0-9])")
_GPU = re.compile(r"(?<![A-Z])V?GPU(?![A-Z])")
_CLASS = re.compile(r"resources\d*:(VGPU|PGPU|CUSTOM_[A-Z0-9_]+)")


def offers(account: Account) -> tuple[Offer, ...]:
    """All offers in the backend's regions and zones."""
    return tuple(account.each_region(lambda region: list(_in(account, region))))


def _in(account: Account, region: Region) -> Iterator[Offer]:
    """The offers of a region, if it still exists."""
    config = account.config
    if region.name not in config.regions:
        return
    known = names.zones(region)
    zones = [zone for zone in known if not config.zones or zone in config.zones]
    if not zones:
        summary = f"{region.name} has none of the zones of backend {config.backend}"
        hint = f"it has these: {', '.join(known)[:200]}"
        raise PermanentError(PermanentKind.INVALID, summary, about="availability_zones", hint=hint)
    for flavor in names.flavors(region):
        if flavor.get("OS-FLV-DISABLED:disabled"):
            continue
        found = shape(flavor)
        for zone in zones:
            yield Offer(
                backend=config.backend,
                region=region.name,
                zone=zone,
                instance_type=str(flavor["name"]),
                shape=found,
                price=None,
                spot=False,
            )


def shape(flavor: Mapping[str, Any]) -> Shape:
    """The shape of a flavor. Its disk is the flavor's own; the size is unknown if it boots from a volume."""
    try:
        cpu, memory, disk = int(flavor["vcpus"]), int(flavor["ram"]), int(flavor.get("disk") or 0)
        str(flavor["name"])
    except (KeyError, TypeError, ValueError):
        raise answers.bad_answer("listing flavors", "has a flavor that cannot be read") from None
    specs = {str(k): str(v) for k, v in (flavor.get("extra_specs") or {}).items()}
    count, says = gpus(specs)
    model, each = _named(" ".join(says))
    if count and model is None:
        model, _ = _named(str(flavor["name"]))  # a size here may be that of anything
    return Shape(
        cpu=max(1, cpu),
        memory_mib=max(1, memory),
        gpus=count,
        gpu_name=model,
        gpu_memory_mib=each,
        disk_mib=disk * 1024 if disk else None,
    )


def gpus(specs: Mapping[str, str]) -> tuple[int, list[str]]:
    """The number of GPUs in extra specs, and their names. Two notations describe the same GPUs."""
    ways: dict[str, list[tuple[str, int]]] = {}
    for key, value in specs.items():
        for way, name, count in _devices(key, value):
            ways.setdefault(way, []).append((name, count))
    for named in ways.values():
        found = [(name, count) for name, count in named if count and _about_gpus(name)]
        if found:
            return sum(count for _, count in found), [name for name, _ in found]
    return 0, []


def _devices(key: str, value: str) -> Iterator[tuple[str, str, int]]:
    """The devices in one extra spec: its notation, their name and their number."""
    if found := _CLASS.fullmatch(key):
        yield "class", found[1], _number(value)
    elif key == "pci_passthrough:alias":
        for part in value.split(","):
            name, _, number = part.strip().partition(":")
            yield "alias", name, _number(number or "1")
    elif key == "accel:device_profile":
        yield "profile", value, 1


def _about_gpus(name: str) -> bool:
    """Each cloud names its devices freely: the name says that it is a GPU, or contains a model."""
    upper = name.upper().replace("_", " ")
    return bool(name == "PGPU" or _GPU.search(upper) or _MODEL.search(upper))


def _named(text: str) -> tuple[str | None, int | None]:
    """The GPU model in a text, and its memory in MiB; None for unknown."""
    upper = text.upper().replace("_", " ")
    model = _MODEL.search(upper)
    if model is None:
        return None, None
    memory = _MEMORY.search(upper, model.end(1))
    return model[1], int(memory[1]) * 1024 if memory else None


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"\d{1,4}", text.strip()) else 0
