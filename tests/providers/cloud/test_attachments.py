"""Attachments with answers of clouds that no test server gives."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Self

import pytest

from declarative.model.state import Address, Record
from declarative.model.status import NodeState
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import marks
from providers.cloud.any.attachments import Attachments
from providers.cloud.any.site import Disk, Machine
from providers.cloud.hosts import Holder
from tests.support.model import of_attachment, of_node, of_volume

ADDRESS = Address.parse("attachment/train-0.data-0")
VOLUME = Record(address=Address("volume", "data-0"), backend="b", inputs=of_volume(), outputs={"id": "d"})
NODE = Record(address=Address("node", "gpu-0"), backend="b", inputs=of_node(), outputs={"id": "m"})
NEEDS = {VOLUME.address: VOLUME, NODE.address: NODE}
INPUTS = of_attachment("a-0", "gpu-0", "data-0")
FREE = Disk(id="d", region="r", size=1, holders=(), labels={marks.OWNER: "us"})


@dataclass
class Cloud:
    """A site with one volume and scripted looks; the last one repeats. It is also its account's volumes."""

    looks: list[Disk]
    living: set[str]
    fault: Exception | None = None
    tags: dict[str, str] = field(default_factory=dict)
    attached: list[str] = field(default_factory=list)
    lists: bool = False

    @property
    def site(self) -> Self:
        return self

    def listed(self, **_: str) -> list[Disk]:
        return [self._tagged(self.looks[0])]

    def of(self, have: Record) -> Disk:
        return self._tagged(self.looks.pop(0) if self.looks[1:] else self.looks[0])

    def _tagged(self, disk: Disk) -> Disk:
        return replace(disk, labels={**disk.labels, **self.tags})

    def disks_by_id(self, ids: Collection[str]) -> Mapping[str, Disk]:
        return {made: self._tagged(self.looks[0]) for made in ids}

    def seen(self, ids: Collection[str]) -> Mapping[str, Machine]:
        return {m: Machine(id=m, region="r", state=NodeState.READY) for m in ids if m in self.living}

    def tag(self, thing: Disk, new: Mapping[str, str], old: Collection[str] = ()) -> None:
        self.tags = {key: text for key, text in self.tags.items() if key not in old} | dict(new)

    def attach(self, disk: Disk, machine: Machine) -> None:
        self.attached.append(machine.id)
        if self.fault:
            raise self.fault


def on(machine: str) -> Disk:
    return replace(FREE, holders=(Holder(machine=machine, device="x", attached=True, leaving=False),))


def attachments(cloud: Any) -> Attachments:
    account: Any = SimpleNamespace(owner="us", TAGGED=True, regional=True, at=lambda _: cloud)
    return Attachments(account, cloud)


def test_a_disk_that_an_ended_machine_still_has_is_waited_for() -> None:
    """It is neither ours already nor somebody's: the cloud has yet to take it off."""
    cloud = Cloud([on("ended"), FREE, on("m")], living={"m"})
    assert attachments(cloud).create(ADDRESS, "t", INPUTS, NEEDS)["instance"] == "m"
    assert cloud.attached == ["m"]


def test_a_disk_that_a_living_machine_has_is_refused() -> None:
    """And nothing is asked for."""
    cloud = Cloud([on("other")], living={"m", "other"})
    with pytest.raises(PermanentError, match="on other") as caught:
        attachments(cloud).create(ADDRESS, "t", INPUTS, NEEDS)
    assert (caught.value.kind, cloud.attached) == (PermanentKind.CONFLICT, [])


def test_a_refusal_for_what_an_earlier_try_asked_for_is_none() -> None:
    """The answer of the first try is lost, and the second one gets the refusal that the disk is in use."""
    lost = TransientError(TransientKind.AMBIGUOUS, "no answer")
    cloud = Cloud([FREE], living={"m"}, fault=lost)
    tried = attachments(cloud)
    with pytest.raises(TransientError):
        tried.create(ADDRESS, "t", INPUTS, NEEDS)
    cloud.looks = [FREE, on("m")]
    cloud.fault = PermanentError(PermanentKind.CONFLICT, "it is in use")
    assert tried.create(ADDRESS, "t", INPUTS, NEEDS)["instance"] == "m"


def test_a_first_refusal_is_passed_on() -> None:
    """Only its holder can have requested it."""
    refusal = PermanentError(PermanentKind.CONFLICT, "it is in use")
    cloud = Cloud([FREE], living={"m"}, fault=refusal)
    with pytest.raises(PermanentError, match="in use"):
        attachments(cloud).create(ADDRESS, "t", INPUTS, NEEDS)
