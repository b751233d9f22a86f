"""Nodes: instances, each made by one request with its token and all its tags.

Similar instances are not made together by one request. They would share user data and tags: each would know
the private host keys of all others, and could pose as any of them. And until its tags are written, which a
kill can prevent, an instance would not say which node it is: `find` by token would miss it. Instead, launches
are paced as EC2 counts them (`region.LAUNCHES`).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from declarative.model.inputs import NodeInputs, inputs_of
from declarative.model.state import Address, Record
from declarative.model.status import NodeState
from declarative.provider import (
    Ended,
    PermanentError,
    PermanentKind,
    ProviderError,
    TransientError,
    TransientKind,
)
from providers.cloud import marks
from providers.cloud.account import SURE, if_there, look_up, waits
from providers.cloud.bad_answers import value_at
from providers.cloud.checks import TOGETHER
from providers.cloud.ec2 import answers
from providers.cloud.ec2.account import INSTANCE, LIVE, Account, let_go, made_id
from providers.cloud.ec2.answers import Instance, kind_of
from providers.cloud.ec2.capacity import UNKNOWN, Capacity, Ec2Keys, Groups, Networks
from providers.cloud.ec2.region import LAUNCH, Region, tagged
from providers.cloud.marks import Mark
from providers.cloud.nodes import ended, first_start, outputs

MOST_STATUSES = 100
"""How many instances' status checks are requested at once."""


class Ec2Nodes:
    """EC2's calls for nodes: see `nodes.Driver`."""

    def __init__(self, account: Account, keys: Ec2Keys) -> None:
        self._account = account
        self._keys = keys
        self._groups = Groups(account)
        self._capacity = Capacity()
        self._networks = Networks(account.config)

    def listed(self, **narrow: str) -> list[Instance]:
        """All of ours that are alive, in all regions."""
        filters = {**self._account.mine(**narrow), "instance-state-name": LIVE}
        return self._account.each(lambda region: region.instances(filters))

    def candidates(self, address: Address, token: str) -> list[Instance]:
        """The instances of a create with this token."""
        return self._account.each(lambda region: self._of_token(region, token))

    def _of_token(self, region: Region, token: str) -> list[Instance]:
        filters = {**self._account.mine(token=token), "instance-state-name": LIVE}
        return [i for i in region.instances(filters) if i.tags.get(marks.TOKEN) == token]

    def recorded(self, records: Sequence[Record]) -> Iterator[tuple[Record, Instance | Ended | None]]:
        """If EC2 has forgotten an instance, the key pair shows whether it existed. Then it is requested by
        its id: a listing may be incomplete and proves nothing.
        """
        for region, found in self._account.by_region(records):
            yield from self._recorded(
                region, {record.address: made_id(record, "i") for record in found}, found
            )

    def _recorded(
        self, region: Region, ids: Mapping[Address, str | None], records: Sequence[Record]
    ) -> Iterator[tuple[Record, Instance | Ended | None]]:
        made = list(filter(None, ids.values()))
        there = region.instances_by_id(made)
        lost = [one for one in made if one not in there]
        if not there and not self._keys.there(region):
            return
        denied = region.denied(lost) if lost else frozenset()
        for record in records:
            mine = ids[record.address] or ""
            if mine in denied:
                yield record, Ended(reason=f"EC2 knows no {mine} any more")
            else:
                yield record, there.get(mine)

    def machine(self, have: Record, *, ending: bool) -> Instance | None:
        """The instance of a record, if alive."""
        region, made = self._account.region(have.node.region), made_id(have, "i")
        instance = region.instances_by_id([made]).get(made) if made else None
        if ending and made and instance is None:
            region.check_gone("DescribeInstances", "InstanceId", made)
        return None if instance is None or instance.gone else instance

    def type_of(self, machine: Instance, made: str) -> str:
        """The type as EC2 reports it."""
        return machine.type

    # ----------------------------------------------------------------------------------- adoption

    def named(self, asked: NodeInputs) -> Instance | None:
        """By its id."""
        made = str(asked.instance_id)
        region = self._account.region(asked.region)
        return region.starting.next(made, TOGETHER) if re.fullmatch(INSTANCE, made) else None

    def take(self, machine: Instance, mark: Mark) -> None:
        self._account.region(machine.region).tag(machine.id, self._account.tags(mark))

    def let_go(self, machine: Instance) -> None:
        let_go(self._account.region(machine.region), machine.id, machine.tags)

    # ------------------------------------------------------------------------------------- create

    def create(self, mark: Mark, node: NodeInputs) -> Instance:
        """Return when the instance runs."""
        region, token = self._account.region(node.region), mark.token
        with self._changing(region, ending=False), self._groups.changing(node):
            try:
                instance = self._account.once(
                    token,
                    lambda: self._run(region, mark, node),
                    lambda: next(iter(self._of_token(region, token)), None),
                )
                self._account.check_answer(instance.tags, token, instance.id)
                return _running(self._account, region, instance, token)
            except PermanentError:
                self._keys.left(region)
                raise

    def _run(self, region: Region, mark: Mark, node: NodeInputs) -> Instance:
        zone = node.zone
        network, market, close = self.conditions(region, node)
        image = self._account.image(region.name)
        disk = self._account.own_disk(region, image)  # before anything is made: the image may be gone
        own, user_data = first_start(self._account, self._keys, self._keys.ensure(region), mark.token)
        tags = {**self._account.tags(mark), **own}
        group = None if close else self._groups.ensure(node)
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
            UserData=base64.b64encode(user_data.encode()).decode(),
            **network,
            **disk,
            TagSpecification=[*tagged("instance", tags), *tagged("volume", _disk_tags(tags))],
        )
        try:
            found, date = region.dated(LAUNCH, zone or region.name, **asked)
        except PermanentError as error:
            if not self._taken_away(region, error, group):
                raise
            raise TransientError(TransientKind.BUSY, error.summary, about=error.about) from None
        items = answers.listed(LAUNCH, found, "instancesSet")
        if len(items) != 1:
            raise answers.bad_answer(LAUNCH, f"has {len(items)} instances instead of one")
        return answers.instance(LAUNCH, items[0], region.name, date)

    def conditions(self, region: Region, node: NodeInputs) -> tuple[dict[str, Any], dict[str, Any], bool]:
        """The parameters for a node's network and capacity, and whether that capacity is in one place."""
        return self._networks.asked(region, node.zone), *self._capacity.asked(region, node)

    def _taken_away(self, region: Region, error: PermanentError, group: str | None) -> bool:
        """Whether something that a node needs was deleted meanwhile, together with the last node: it is made
        again.
        """
        if "InvalidKeyPair.NotFound" in error.summary and not self._account.options.get("key_name"):
            self._keys.forgotten(region)
            return True
        if UNKNOWN in error.summary and group and not self._groups.given:
            self._groups.forgotten(group)
            return True
        return False

    # ----------------------------------------------------------------------------- update, delete

    def retag(
        self, machine: Instance, mark: Mark, have: Record, more: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """The owner is written last."""
        region = self._account.region(machine.region)
        if more:
            region.tag(machine.id, more)
        self._account.retag(region, machine.id, machine.tags, mark)
        return outputs(machine)

    def remove(self, have: Record, there: Callable[[], list[Instance]]) -> None:
        """An instance that is shutting down counts as gone: nothing can stop that. With the last one of a
        region its key pair is deleted, with the last one of a cluster its placement group.
        """
        found = there()
        places = {have.node.region} if have.outputs.get("id") else {i.region for i in found}
        with ExitStack() as stack:
            for region in map(self._account.region, sorted(places)):
                stack.enter_context(self._changing(region, ending=True))
                self._keys.left(region)
            if places:
                stack.enter_context(self._groups.changing(have.node, ends=True))
            for instance in found:
                self._end(instance, have.address)

    def clear(self, inputs: Mapping[str, Any]) -> None:
        """Deletes the key pair and the placement group, if nothing else is left."""
        node = inputs_of("node", inputs)
        region = self._account.region(node.region)
        with self._changing(region, ending=True), self._groups.changing(node, ends=True):
            self._keys.left(region)

    def _end(self, instance: Instance, address: Address) -> None:
        region = self._account.region(instance.region)
        if_there(region.ask, "TerminateInstances", str(address), InstanceId=[instance.id])

    def _changing(self, region: Region, *, ending: bool) -> AbstractContextManager[None]:
        ours = {**self._account.mine(), "instance-state-name": LIVE}
        return self._keys.changing(region, lambda: region.has_instance(ours), ending=ending)

    # ---------------------------------------------------------------------------------- readiness

    def states(
        self, nodes: Sequence[Record]
    ) -> Iterator[tuple[Record, Instance | None, NodeState, str | None]]:
        """Ready means: it runs and passed EC2's own checks."""
        for region, records in self._account.by_region(nodes):
            ids = {record.address: made_id(record, "i") or "" for record in records}
            there = region.instances_by_id(i for i in ids.values() if i)
            checks = _checks(region, [i.id for i in there.values() if i.state == "running"])
            for record in records:
                instance = there.get(ids[record.address])
                yield record, instance, *_state(instance, checks)

    def note_ready(self, node: Record) -> None:
        """Tag the instance without looking at it first."""
        self._account.region(node.node.region).tag(str(node.outputs["id"]), {marks.TAKEN: "yes"})


def _disk_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags of an instance's own disks: only the owner. Without a token, they are not volumes of ours."""
    keep = ("Name", marks.ADDRESS)
    return {**{k: v for k, v in tags.items() if k in keep}, f"{marks.OURS}disk-of": tags[marks.OWNER]}


def _running(account: Account, region: Region, instance: Instance, token: str) -> Instance:
    """The instance once it runs. If it ended, a fault says why, and nothing is left of it."""
    age = instance.age
    for look, pause in enumerate(waits(f"{instance.id} is still starting", instance.zone)):
        found = look_up(partial(region.starting.next, instance.id, pause))
        # EC2 has confirmed it, so it is listed soon. The wait is still limited.
        if found is None and look >= SURE:
            account.check_missed(token, f"{instance.id} is not listed", instance.zone, age=age)
        instance = found or instance
        if instance.gone:
            raise _ended(instance)
        if instance.state != "pending" and instance.address:
            return instance
    raise AssertionError("pauses end with a fault")


def _ended(instance: Instance) -> ProviderError:
    """The fault for an instance that ended while starting. EC2 itself caused reasons that begin with
    `Server.`.
    """
    code = instance.reason.partition(":")[0].removeprefix("Server.").removeprefix("Client.")
    kind = kind_of(code) or PermanentKind.INVALID
    if instance.reason.startswith("Server."):
        kind = PermanentKind.NO_CAPACITY
    text = instance.reason or "EC2 does not say why"
    return ended(kind, f"{instance.id} ended while it started: {text}", instance.zone)


def _checks(region: Region, ids: Sequence[str]) -> dict[str, str]:
    """The worse of the two status checks of each running instance."""
    action = "DescribeInstanceStatus"
    out: dict[str, str] = {}
    for start in range(0, len(ids), MOST_STATUSES):
        part = ids[start : start + MOST_STATUSES]
        try:
            found = region.ask(action, InstanceId=part, IncludeAllInstances=True)
        except PermanentError as error:
            if error.kind is not PermanentKind.NOT_FOUND:
                raise
            # It ended after it was listed.
            raise TransientError(TransientKind.BUSY, error.summary) from None
        for item in answers.listed(action, found, "instanceStatusSet"):
            out[str(item.get("instanceId"))] = _worse(item)
    return out


def _worse(item: Mapping[str, Any]) -> str:
    both = {value_at(item, key, "status") for key in ("systemStatus", "instanceStatus")}
    if both == {"ok"}:
        return "ok"
    return next((s for s in ("impaired", "insufficient-data", "initializing") if s in both), "not known yet")


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
