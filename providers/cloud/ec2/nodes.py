"""Nodes: instances, made by one request each that carries their token and all of their tags.

Alike ones are not made together by one request. That has one user data and one set of tags for all of them:
the private host key of each would be known to all others, any of which could then pass for it. And from the
launch on until its tags are written, which a kill can prevent, an instance would not say which node it is:
`find` by a node's token would miss it. Launches are paced instead, as EC2 counts them (`region.LAUNCHES`).
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from declarative.inputs import NodeInputs, inputs_of
from declarative.provider import (
    Ended,
    PermanentError,
    PermanentKind,
    Thing,
    TransientError,
    TransientKind,
)
from declarative.state import Address, NodeState, Readiness, Record
from providers.cloud import cloud_init, marks
from providers.cloud.account import SURE, look_up, waits
from providers.cloud.ec2 import answers
from providers.cloud.ec2.account import LIVE, Account, made_id
from providers.cloud.ec2.answers import Instance
from providers.cloud.ec2.capacity import UNKNOWN, Capacity, Groups
from providers.cloud.ec2.codes import kind_of
from providers.cloud.ec2.keys import Ec2Keys
from providers.cloud.ec2.network import Networks
from providers.cloud.ec2.region import LAUNCH, Region, tagged
from providers.cloud.faults import fault
from providers.cloud.hosts import Seen
from providers.cloud.marks import Mark
from providers.cloud.volume_checks import check_fixed, gone

FIXED = ("backend", "region", "zone", "instance_type", "spot", "reservation", "resources")
"""Inputs of a node that are those of its instance: it is made anew to change them."""

MOST_STATUSES = 100
"""Instances whose status checks are asked for at once."""


class Nodes:
    """The instances of one account."""

    def __init__(self, account: Account, keys: Ec2Keys) -> None:
        self._account = account
        self._keys = keys
        self._groups = Groups(account)
        self._capacity = Capacity()
        self._networks = Networks(account.config)

    def listed(self) -> list[Instance]:
        """All that are ours and alive, in all regions."""
        filters = {**self._account.mine(), "instance-state-name": LIVE}
        return self._account.each(lambda region: region.instances(filters))

    def thing(self, instance: Instance) -> Thing:
        """An instance of ours as a thing."""
        return marks.thing(instance.tags, instance.id, outputs(instance), partial(self._actual, instance))

    def _actual(self, instance: Instance, made: Mapping[str, Any]) -> dict[str, Any]:
        """What others changed: the tags, and the type, which can be another one once it was stopped."""
        found = self._account.strange(instance.tags, made)
        if instance.type != made.get("instance_type", instance.type):
            found["instance_type"] = instance.type
        return found

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | Ended | None]:
        """See `provider.Recalls`. Of what EC2 has forgotten, the key pair tells whether it was there; then it
        is asked for by its id itself: a listing may leave something out, and does not deny that it exists.
        """
        out: dict[Address, Thing | Ended | None] = {}
        for region, found in self._account.by_region(records):
            ids = {r.address: made_id(r, "i") for r in found}
            there = region.instances_by_id(i for i in ids.values() if i)
            lost = [i for i in ids.values() if i and i not in there]
            right = bool(there) or self._keys.there(region)
            denied = region.denied(lost) if right and lost else frozenset()
            for record in found:
                made = ids[record.address]
                instance = there.get(made or "")
                if instance is not None and not instance.gone:
                    out[record.address] = marks.again(
                        record, instance.tags, self._actual(instance, record.inputs)
                    )
                elif instance is not None:
                    out[record.address] = Ended(reason=instance.reason or f"it is {instance.state}")
                elif made in denied:
                    out[record.address] = Ended(reason=f"EC2 knows no {made} any more")
                elif right:
                    out[record.address] = None
        return out

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port."""
        found = self._account.each(lambda region: self._of_token(region, token))
        things = (self.thing(instance) for instance in found)
        return next((t for t in things if t.address == address), None)

    def _of_token(self, region: Region, token: str) -> list[Instance]:
        filters = {**self._account.mine(token=token), "instance-state-name": LIVE}
        return [i for i in region.instances(filters) if i.tags.get(marks.TOKEN) == token]

    # ------------------------------------------------------------------------------------- create

    def create(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. It ends when the instance runs."""
        node, mark = inputs_of("node", inputs), self._account.mark(address, token, inputs)
        region = self._account.region(node.region)
        with self._changing(region, ending=False), self._groups.changing(node):
            try:
                instance = self._account.once(
                    token,
                    lambda: self._run(region, mark, node),
                    lambda: next(iter(self._of_token(region, token)), None),
                )
                self._account.check_answer(instance.tags, token, instance.id)
                return outputs(_running(self._account, region, instance, token))
            except PermanentError:
                self._keys.left(region)
                raise

    def _run(self, region: Region, mark: Mark, node: NodeInputs) -> Instance:
        zone = node.zone
        network, market, close = self.conditions(region, node)
        image = self._account.image(region.name)
        disk = self._account.own_disk(region, image)  # before anything is made: the image may be gone
        login, key = self._keys.bring(region), self._keys.host_key(mark.token)
        user = self._account.config.ssh_user or cloud_init.USER
        mine = self._account.tags(mark)
        tags = {**mine, marks.HOST_KEY: key.public, marks.USER: user}
        told = cloud_init.user_data(user, login.public, key)
        group = None if close else self._groups.bring(node)
        asked = dict(
            ClientToken=mark.token,
            MinCount=1,
            MaxCount=1,
            ImageId=image,
            InstanceType=node.instance_type,
            Placement={"AvailabilityZone": zone, "GroupName": group},
            **market,
            MetadataOptions={"HttpTokens": "required"},
            KeyName=self._account.options.get("key_name") or self._keys.name,
            UserData=base64.b64encode(told.encode()).decode(),
            **network,
            **disk,
            TagSpecification=[*tagged("instance", tags), *tagged("volume", _disk_tags(tags))],
        )
        action = LAUNCH
        try:
            found, date = region.dated(action, zone or region.name, **asked)
        except PermanentError as error:
            if not self._taken_away(region, error, group):
                raise
            raise TransientError(TransientKind.BUSY, error.summary, about=error.about) from None
        items = answers.listed(action, found, "instancesSet")
        if len(items) != 1:
            raise answers.strange(action, f"has {len(items)} instances instead of one")
        return answers.instance(action, items[0], region.name, date)

    def conditions(self, region: Region, node: NodeInputs) -> tuple[dict[str, Any], dict[str, Any], bool]:
        """Parameters of a node: its place in the network, of which capacity it is; whether that is close."""
        return self._networks.asked(region, node.zone), *self._capacity.asked(region, node)

    def _taken_away(self, region: Region, error: PermanentError, group: str | None) -> bool:
        """Whether what a node needs went meanwhile, by whoever deleted the last one: it is brought again."""
        if "InvalidKeyPair.NotFound" in error.summary and not self._account.options.get("key_name"):
            self._keys.forgotten(region)
            return True
        if UNKNOWN in error.summary and group and not self._groups.given:
            self._groups.forgotten(group)
            return True
        return False

    # ----------------------------------------------------------------------------- update, delete

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. What changes in place is written down alone."""
        check_fixed(have.address, have.inputs, inputs, FIXED)
        region, instance = self._of(have, untagged=True)
        if instance is None:
            raise gone(have.address)
        if self._account.lost(instance.tags):
            return self._mend(region, instance, have, self._account.mark(have.address, token, inputs))
        made = marks.read(instance.tags, instance.id)
        mark = self._account.mark(made.address, made.token, inputs)
        self._account.retag(region, instance.id, instance.tags, mark)
        return outputs(instance)

    def _mend(self, region: Region, instance: Instance, have: Record, mark: Mark) -> Mapping[str, Any]:
        """Write everything anew on an instance that says nothing of itself; whose it is comes last."""
        region.tag(instance.id, marks.of_node(have.outputs))
        self._account.retag(region, instance.id, instance.tags, mark)
        return have.outputs

    def delete(self, have: Record) -> None:
        """See the port. An instance that shuts down is gone: nothing brings it back.

        With the last one of a region goes the key pair there, with the last one of a cluster its placement
        group: also where the instance had ended before.
        """
        if have.outputs.get("id"):
            region, instance = self._of(have, ending=True)
            there = [(region, instance.id)] if instance else []
            places = [region]
        else:
            there = self._account.each(lambda region: self._of_address(region, have.address))
            places = [region for region, _ in there]
        with ExitStack() as stack:
            for region in {region.name: region for region in places}.values():
                stack.enter_context(self._changing(region, ending=True))
                self._keys.left(region)
            if places:
                stack.enter_context(self._groups.changing(have.node, ends=True))
            for region, made in there:
                self._end(region, made, have.address)

    def clear(self, inputs: Mapping[str, Any]) -> None:
        """See `provider.Clears`: the key pair and the placement group, if nothing else is there."""
        node = inputs_of("node", inputs)
        region = self._account.region(node.region)
        with self._changing(region, ending=True), self._groups.changing(node, ends=True):
            self._keys.left(region)

    def _end(self, region: Region, made: str, address: Address) -> None:
        try:
            region.ask("TerminateInstances", str(address), InstanceId=[made])
        except PermanentError as error:
            if error.kind is not PermanentKind.NOT_FOUND:
                raise

    def _changing(self, region: Region, *, ending: bool) -> AbstractContextManager[None]:
        ours = {**self._account.mine(), "instance-state-name": LIVE}
        return self._keys.changing(region, lambda: region.has_instance(ours), ending=ending)

    def _of(
        self, have: Record, *, untagged: bool = False, ending: bool = False
    ) -> tuple[Region, Instance | None]:
        """The instance of a record, if it is alive; one that is not ours is an error, and so is one that does
        not say whose it is, unless that is to be mended. Who is `ending` it forgets what is gone.
        """
        region = self._account.region(have.node.region)
        made = made_id(have, "i")
        instance = region.instances_by_id([made]).get(made) if made else None
        if ending and made and instance is None:
            region.check_gone("DescribeInstances", "InstanceId", made)
        if instance is None or instance.gone:
            return region, None
        if not (untagged and self._account.lost(instance.tags)):
            self._account.check_owner(instance.tags, have, instance.id)
        return region, instance

    def _of_address(self, region: Region, address: Address) -> list[tuple[Region, str]]:
        filters = {**self._account.mine(address=str(address)), "instance-state-name": LIVE}
        return [(region, instance.id) for instance in region.instances(filters)]

    # ---------------------------------------------------------------------------------- readiness

    def readiness(self, nodes: Sequence[Record]) -> dict[str, Seen]:
        """What EC2 says of nodes. Ready is what runs and has passed its own checks."""
        by_region: dict[str, list[Record]] = {}
        for record in nodes:
            by_region.setdefault(record.node.region, []).append(record)
        seen: dict[str, Seen] = {}
        for name, records in by_region.items():
            seen |= self._readiness(self._account.region(name), records)
        return seen

    def _readiness(self, region: Region, records: Sequence[Record]) -> dict[str, Seen]:
        ids = {record.address.name: made_id(record, "i") for record in records}
        there = region.instances_by_id(i for i in ids.values() if i)
        checks = _checks(region, [i.id for i in there.values() if i.state == "running"])
        out: dict[str, Seen] = {}
        for name, made in ids.items():
            instance = there.get(made or "")
            state, reason = _state(instance, checks)
            ready = Readiness(state=state, reason=reason, observed_at=time.time())
            taken = bool(instance and instance.tags.get(marks.TAKEN))
            public = instance.public_address if instance else None
            out[name] = Seen(readiness=ready, taken=taken, public=public)
        return out

    def taken(self, node: Record) -> None:
        """Note that a node was ready once: what it is not from now on is no part of its start."""
        region = self._account.region(node.node.region)
        region.tag(str(node.outputs["id"]), {marks.TAKEN: "yes"})


def outputs(instance: Instance) -> dict[str, Any]:
    """What is recorded of an instance, and stays as it is while that lives and runs."""
    found = {
        "id": instance.id,
        "address": instance.address,
        "zone": instance.zone,
        "public_address": instance.public_address,
        "image": instance.image,
        "user": instance.tags.get(marks.USER),
        "host_key": instance.tags.get(marks.HOST_KEY),
    }
    return {key: value for key, value in found.items() if value or key == "address"}


def _disk_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """What is written on an instance's own disks: whose they are. No token: they are no volumes of ours."""
    keep = ("Name", marks.ADDRESS)
    return {**{k: v for k, v in tags.items() if k in keep}, f"{marks.OURS}disk-of": tags[marks.OWNER]}


def _running(account: Account, region: Region, instance: Instance, token: str) -> Instance:
    """The instance once it runs. One that ended instead is a fault that says why; nothing is left of it."""
    age = instance.age
    for look, pause in enumerate(waits(f"{instance.id} is still starting", instance.zone)):
        found = look_up(partial(region.starting.next, instance.id, pause))
        # Not listed yet is no more than that: EC2 had answered that it is made. But not for ever.
        if found is None and look >= SURE:
            account.check_missed(token, f"{instance.id} is not listed", instance.zone, age=age)
        instance = found or instance
        if instance.gone:
            text = instance.reason or "EC2 does not say why"
            code = instance.reason.partition(":")[0].removeprefix("Server.").removeprefix("Client.")
            kind = kind_of(code) or PermanentKind.INVALID
            if isinstance(kind, TransientKind) or instance.reason.startswith("Server."):
                kind = PermanentKind.NO_CAPACITY  # it is gone for good: another one may do better
            raise fault(kind, f"{instance.id} ended while it started: {text}", about=instance.zone)
        if instance.state != "pending" and instance.address:
            return instance
    raise AssertionError("pauses end with a fault")


def _checks(region: Region, ids: Sequence[str]) -> dict[str, str]:
    """The worse of the two status checks of each instance that runs."""
    action = "DescribeInstanceStatus"
    out: dict[str, str] = {}
    for start in range(0, len(ids), MOST_STATUSES):
        part = ids[start : start + MOST_STATUSES]
        try:
            found = region.ask(action, InstanceId=part, IncludeAllInstances=True)
        except PermanentError as error:
            if error.kind is not PermanentKind.NOT_FOUND:
                raise
            # It ended since it was listed.
            raise TransientError(TransientKind.BUSY, error.summary) from None
        for item in answers.listed(action, found, "instanceStatusSet"):
            both = {(item.get(key) or {}).get("status") for key in ("systemStatus", "instanceStatus")}
            worst = next((s for s in ("impaired", "insufficient-data", "initializing") if s in both), None)
            out[str(item.get("instanceId"))] = worst or ("ok" if both == {"ok"} else "not known yet")
    return out


def _state(instance: Instance | None, checks: Mapping[str, str]) -> tuple[NodeState, str | None]:
    if instance is None:
        return NodeState.UNREACHABLE, "there is no such instance"
    if instance.state == "pending":
        return NodeState.PROVISIONING, "it is starting"
    if instance.state == "shutting-down":
        return NodeState.TERMINATING, instance.reason or "it shuts down"
    if instance.state == "terminated":
        return NodeState.FAILED, f"it was terminated: {instance.reason}" if instance.reason else "terminated"
    if instance.state != "running":
        return NodeState.NOT_READY, f"it is {instance.state}"
    check = checks.get(instance.id, "not known yet")
    if check == "ok":
        return NodeState.READY, None
    kind = NodeState.NOT_READY if check == "impaired" else NodeState.PROVISIONING
    return kind, f"its status checks are {check}"
