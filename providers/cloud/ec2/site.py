"""EC2 as a site: one region's instances and volumes.

One request makes a thing with its token and all its tags. Similar instances are not made together by one
request. They would share user data and tags: each would know the private host keys of all others, and could
pose as any of them. And until its tags are written, which a kill can prevent, an instance would not say which
node it is: `find` by token would miss it. Instead, launches are paced as EC2 counts them (`region.LAUNCHES`).
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from declarative.model.inputs import NodeInputs, VolumeInputs
from declarative.model.state import Address
from declarative.model.status import NodeState
from declarative.model.text import suggest
from declarative.provider import PermanentError, PermanentKind, ProviderError, TransientError, TransientKind
from providers.cloud import marks
from providers.cloud.account import gibibytes
from providers.cloud.any.site import Disk, Machine, Site, Wanted, What
from providers.cloud.bad_answers import value_at
from providers.cloud.ec2 import answers
from providers.cloud.ec2.account import Account
from providers.cloud.ec2.capacity import Capacity, Ec2Keys, Groups, Networks, market
from providers.cloud.ec2.region import LAUNCH, LIVE, VALUES, Region, tagged
from providers.cloud.placement_groups import Reserved

IDS: Mapping[What, str] = {"machine": r"i-[0-9a-f]{4,32}", "disk": r"vol-[0-9a-f]{4,32}"}
"""The form of ids."""
NO_TAGS: Mapping[str, str] = {}
MOST_STATUSES = 100
"""How many instances' status checks are requested at once."""
SIZES = {
    **dict.fromkeys(("gp2", "gp3", "io1", "io2"), (1, 65536)),
    **dict.fromkeys(("st1", "sc1"), (125, 16384)),
    "standard": (1, 1024),
}
"""The least and greatest size of a type in GiB. EC2 itself may refuse further sizes."""
DEVICES = tuple([f"/dev/sd{c}" for c in "fghijklmnopqrstuvwxyz"] + [f"/dev/xvdb{c}" for c in "abcdefghijklm"])
"""Device names that EC2 accepts for disks, besides those of the image."""
TAKEN = "already in use"
"""EC2's message for a device that another attachment took meanwhile."""
_LOCKS = tuple(threading.Lock() for _ in range(64))
"""One attachment to an instance at a time: free devices are known only once the last attachment
has its own.
"""


def _profile(identity: str | None) -> dict[str, str] | None:
    """An instance profile by its ARN or its name."""
    return {"Arn" if identity.startswith("arn:") else "Name": identity} if identity else None


class Ec2Site(Site):
    """One region."""

    client_token = batches = merges = spots = grows = adopts = True
    lingers = False
    called = "volumes are of one region: write the `region` that it is in"

    def __init__(
        self,
        account: Account,
        region: Region,
        keys: Ec2Keys,
        groups: Groups,
        capacity: Capacity,
        networks: Networks,
    ) -> None:
        self._account = account
        self._region = region
        self._keys = keys
        self.groups: Groups = groups
        self._capacity = capacity
        self._networks = networks

    # ------------------------------------------------------------------------------------- look-ups

    def _mine(self, tags: Mapping[str, str]) -> dict[str, list[str]]:
        """The filter for things of ours with these tags."""
        return {f"tag:{key}": [value] for key, value in {marks.OWNER: self._account.owner, **tags}.items()}

    def machines(self) -> list[Machine]:
        return self.machines_with(NO_TAGS)

    def disks(self) -> list[Disk]:
        return self.disks_with(NO_TAGS)

    def machines_with(self, tags: Mapping[str, str]) -> list[Machine]:
        return self._region.instances({**self._mine(tags), **LIVE})

    def disks_with(self, tags: Mapping[str, str]) -> list[Disk]:
        return self._region.volumes(self._mine(tags))

    def everyones(self, addresses: Collection[Address]) -> list[Machine | Disk]:
        wanted = sorted(map(str, addresses))
        parts = [{f"tag:{marks.ADDRESS}": wanted[i : i + VALUES]} for i in range(0, len(wanted), VALUES)]
        machines = [found for part in parts for found in self._region.instances(part)]
        return [*machines, *(found for part in parts for found in self._region.volumes(part))]

    def machines_by_id(self, ids: Collection[str]) -> Mapping[str, Machine]:
        return self._region.instances_by_id(i for i in ids if re.fullmatch(IDS["machine"], i))

    def disks_by_id(self, ids: Collection[str]) -> Mapping[str, Disk]:
        return self._region.volumes_by_id(i for i in ids if re.fullmatch(IDS["disk"], i))

    def missing(self, kind: What, ids: Collection[str], *, sure: bool) -> Mapping[str, str | None]:
        """If EC2 has forgotten an instance, the key pair shows whether it existed. A missing volume proves
        nothing: it may be another account.
        """
        if kind == "disk" or not (sure or self._keys.there(self._region)):
            return {}
        denied = self._denied(kind, ids)
        return {made: f"EC2 knows no {made} any more" if made in denied else None for made in ids}

    def check_gone(self, kind: What, made: str) -> None:
        if re.fullmatch(IDS[kind], made) and made not in self._denied(kind, [made]):
            summary = f"{self._region.name} does not list {made}, and does not say that there is none"
            raise TransientError(TransientKind.AMBIGUOUS, summary, about=made)

    def _denied(self, kind: What, ids: Collection[str]) -> Collection[str]:
        what = ("DescribeInstances", "InstanceId") if kind == "machine" else ("DescribeVolumes", "VolumeId")
        return self._region.denied(*what, [made for made in ids if re.fullmatch(IDS[kind], made)])

    def states(self, machines: Collection[Machine]) -> Mapping[str, tuple[NodeState, str | None]]:
        """Ready means: it runs and passed EC2's own checks."""
        running = [machine.id for machine in machines if machine.state is NodeState.READY]
        action, seen = "DescribeInstanceStatus", dict[str, str]()
        for start in range(0, len(running), MOST_STATUSES):
            part = running[start : start + MOST_STATUSES]
            try:
                found = self._region.ask(action, InstanceId=part, IncludeAllInstances=True)
            except PermanentError as error:
                if error.kind is not PermanentKind.NOT_FOUND:
                    raise
                # It ended after it was listed.
                raise TransientError(TransientKind.BUSY, error.summary) from None
            for item in answers.listed(action, found, "instanceStatusSet"):
                both = {value_at(item, key, "status") for key in ("systemStatus", "instanceStatus")}
                bad = (s for s in ("impaired", "insufficient-data", "initializing") if s in both)
                seen[str(item.get("instanceId"))] = "ok" if both == {"ok"} else next(bad, "not known yet")
        return {machine.id: _state(machine, seen.get(machine.id, "not known yet")) for machine in machines}

    # ----------------------------------------------------------------------------------- machines

    @contextmanager
    def around(self, node: NodeInputs, *, ends: bool) -> Iterator[None]:
        """The last node of a region takes its key pair along, the last one of a cluster its placement
        group.
        """
        region, ours = self._region, {**self._mine(NO_TAGS), **LIVE}
        with (
            self._keys.changing(region, lambda: region.has_instance(ours), ending=ends),
            self.groups.changing(node, ends=ends),
        ):
            yield

    def ahead(self, node: NodeInputs) -> Mapping[str, Any]:
        """The parameters for a node's network, market and disk: the subnet or the image may be gone, and the
        key may be on another machine.
        """
        name = self._region.name
        asked = {
            **self.network(node.zone),
            **({} if node.reservation else market(node)),
            **self._account.own_disk(name, self._account.image(name)),
        }
        self._keys.before(self._region)
        return asked

    def network(self, zone: str | None) -> Mapping[str, Any]:
        """The parameters for a node's network."""
        return self._networks.asked(self._region, zone)

    def reserved(self, node: NodeInputs) -> Reserved:
        return self._capacity.asked(self._region, node)

    def add_key(self, name: str, public: str) -> str:
        self._keys.ensure(self._region)
        return self._account.options.get("key_name") or name

    def launch(self, wanted: Wanted) -> Machine:
        tags = wanted.tags
        own = {key: tags[key] for key in ("Name", marks.ADDRESS) if key in tags}
        # Without a token, an instance's own disks are not volumes of ours.
        disk_tags = {**own, f"{marks.OURS}disk-of": self._account.owner}
        asked = dict(
            ClientToken=wanted.mark.token,
            MinCount=1,
            MaxCount=1,
            ImageId=wanted.image,
            InstanceType=wanted.size,
            Placement={"AvailabilityZone": wanted.zone, "GroupName": wanted.group},
            MetadataOptions={"HttpTokens": "required"},
            KeyName=wanted.key,
            IamInstanceProfile=_profile(wanted.mark.node.identity),
            UserData=base64.b64encode(wanted.user_data.encode()).decode(),
            **wanted.ahead,
            **(wanted.reserved.body if wanted.reserved else {}),
            TagSpecification=[*tagged("instance", tags), *tagged("volume", disk_tags)],
        )
        try:
            found, date = self._region.dated(LAUNCH, wanted.zone or self._region.name, **asked)
        except PermanentError as error:
            # The key pair was deleted meanwhile, together with the last node: it is made again.
            if wanted.key != self._keys.name or "InvalidKeyPair.NotFound" not in error.summary:
                raise
            self._keys.forgotten(self._region)
            raise TransientError(TransientKind.BUSY, error.summary, about=error.about) from None
        items = answers.listed(LAUNCH, found, "instancesSet")
        if len(items) != 1:
            raise answers.bad_answer(LAUNCH, f"has {len(items)} instances instead of one")
        return answers.instance(LAUNCH, items[0], self._region.name, date)

    def end(self, machine: Machine) -> None:
        """An instance that is shutting down counts as gone: nothing can stop that."""
        self._region.ask("TerminateInstances", machine.tags.get(marks.ADDRESS), InstanceId=[machine.id])

    def tag(self, thing: Machine | Disk, new: Mapping[str, str], old: Collection[str] = ()) -> None:
        last = [key for key in old if key.startswith(marks.OURS) and not key.startswith(marks.ON)]
        self._region.untag(thing.id, [key for key in old if key not in last])
        if new:
            self._region.tag(thing.id, new)
        self._region.untag(thing.id, last)

    # -------------------------------------------------------------------------------------- disks

    def make(self, wanted: Wanted) -> Disk:
        zone, kind, size = self.volume(wanted.mark.address, wanted.mark.volume)
        action, options = "CreateVolume", self._account.options
        found, date = self._region.dated(
            action,
            zone,
            ClientToken=wanted.mark.token,
            AvailabilityZone=zone,
            Size=size,
            VolumeType=kind,
            Iops=options.get("volume_iops"),
            Throughput=options.get("volume_throughput"),
            TagSpecification=tagged("volume", wanted.tags),
        )
        return answers.volume(action, found, self._region.name, date)

    def volume(self, address: Address, asked: VolumeInputs) -> tuple[str, str, int]:
        """Zone, type and GiB of a planned volume; `PermanentError` for an impossible one."""
        zones = [z for z in self._account.config.zones if z.startswith(self._region.name)]
        zone = asked.zone or next(iter(zones), None)
        if not zone:
            summary = f"{address}: a volume of EC2 is in one zone, and none is named"
            hint = f"write `availability_zone: {self._region.name}a`"
            raise PermanentError(PermanentKind.INVALID, summary, about="availability_zone", hint=hint)
        size, kind = gibibytes(address, asked.size), asked.volume_type or self._account.DISK_TYPE
        near = suggest(kind, list(SIZES)) if kind not in SIZES else None
        if near:  # another zone may be newer than this list
            summary = f"{address}: EC2 has no volumes of the type `{kind}`"
            raise PermanentError(PermanentKind.INVALID, summary, about="volume_type", hint=near)
        check_size(address, kind, size)
        return zone, kind, size

    def remove(self, disk: Disk) -> None:
        self._region.ask("DeleteVolume", disk.tags.get(marks.ADDRESS), VolumeId=disk.id)

    def grow(self, disk: Disk, gib: int) -> None:
        """EC2 allows it at most once in six hours."""
        check_size(disk.tags.get(marks.ADDRESS, disk.id), disk.type, gib)
        try:
            self._region.ask("ModifyVolume", "size", VolumeId=disk.id, Size=gib)
        except PermanentError as error:
            now = self._region.volume(disk.id)
            if error.kind is not PermanentKind.QUOTA or now is None or (now.size or 0) < gib:
                raise  # else an earlier try did it

    def attach(self, disk: Disk, machine: Machine) -> None:
        """Under the first free name of the instance."""
        made, about = machine.id, disk.tags.get(marks.ADDRESS)
        with _LOCKS[hash(made) % len(_LOCKS)]:
            others = self._region.volumes({"attachment.instance-id": [made]})
            used = {held.device for other in others for held in other.holders or () if held.machine == made}
            device = next((name for name in DEVICES if name not in used), None)
            if device is None:
                summary = f"{made} has {len(used)} disks, and takes no more"
                raise PermanentError(PermanentKind.QUOTA, summary, about=about)
            try:
                self._region.ask("AttachVolume", about, VolumeId=disk.id, InstanceId=made, Device=device)
            except ProviderError as error:
                if TAKEN not in error.summary:
                    raise
                raise TransientError(TransientKind.BUSY, error.summary, about=about) from None

    def detach(self, disk: Disk, machine: Machine) -> None:
        """Also if it is not attached yet."""
        self._region.ask("DetachVolume", VolumeId=disk.id, InstanceId=machine.id)


def _state(machine: Machine, check: str) -> tuple[NodeState, str | None]:
    """An instance's state by its own and by EC2's checks of it."""
    match machine.word:
        case "pending":
            return NodeState.PROVISIONING, "it is starting"
        case "shutting-down":
            return NodeState.TERMINATING, machine.reason or "it shuts down"
        case "terminated":
            return (
                NodeState.FAILED,
                f"it was terminated: {machine.reason}" if machine.reason else "terminated",
            )
        case "running" if check == "ok":
            return NodeState.READY, None
        case "running":
            kind = NodeState.NOT_READY if check == "impaired" else NodeState.PROVISIONING
            return kind, f"its status checks are {check}"
        case word:
            return NodeState.NOT_READY, f"it is {word}"


def check_size(address: object, kind: str, size: int) -> None:
    """`PermanentError` for a size that volumes of a type cannot have."""
    least, most = SIZES.get(kind, (1, size))
    if not least <= size <= most:
        summary = f"{address}: a volume of the type {kind} has {least} to {most} GB, and not {size}"
        raise PermanentError(PermanentKind.INVALID, summary, about="size", hint="see `volume_type`")
