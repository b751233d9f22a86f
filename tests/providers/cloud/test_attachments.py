"""Attachments with answers of clouds that no test server gives."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from declarative.model.state import Address, Record
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud.any.attachments import Attachments, Living, View
from providers.cloud.any.claims import Claim, of_tags, to_tags
from providers.cloud.hosts import Holder
from tests.support.model import of_attachment, of_node, of_volume

ADDRESS = Address.parse("attachment/train-0.data-0")
VOLUME = Record(address=Address("volume", "data-0"), backend="b", inputs=of_volume(), outputs={"id": "d"})
NODE = Record(address=Address("node", "gpu-0"), backend="b", inputs=of_node(), outputs={"id": "m"})
NEEDS = {VOLUME.address: VOLUME, NODE.address: NODE}
INPUTS = of_attachment("a-0", "gpu-0", "data-0")
FREE = View(
    id="d",
    region="r",
    state="",
    size=1,
    tags={"fleetform:owner": "us"},
    free=True,
    gone=False,
    adopted=lambda: False,
)


class Cloud(Attachments):
    """One volume with scripted looks; the last one repeats."""

    def __init__(self, looks: list[View], living: set[str], fault: Exception | None = None) -> None:
        account: Any = SimpleNamespace(owner="us", regional=True)
        volumes: Any = self
        super().__init__(account, volumes)
        self.looks, self.living, self.fault = looks, living, fault
        self.tags: dict[str, str] = {}
        self.attached: list[str] = []

    def listed(self, *, address: str = "") -> list[View]:
        return self.looks[:1]

    def of(self, have: Record) -> View:
        return self.looks.pop(0) if self.looks[1:] else self.looks[0]

    def disk(self, volume: Any, machines: object = None) -> View:
        found: View = replace(volume, tags={**volume.tags, **self.tags})
        return found

    def disks(self, region: str, ids: Collection[str]) -> Mapping[str, View]:
        return {made: self.disk(self.looks[0]) for made in ids}

    def machines(self, region: str, ids: Collection[str]) -> Mapping[str, Living]:
        return {
            m: Living(id=m, ours=True, runs=True, taken=True, node=lambda: NODE)
            for m in ids
            if m in self.living
        }

    def claim(self, disk: View, machine: str) -> Claim | None:
        return of_tags(disk.tags, disk.id, machine)

    def write(self, disk: View, machine: str, claim: Claim) -> None:
        self.tags = to_tags(claim, machine)

    def erase(self, disk: View, machine: str) -> None:
        self.tags = {}

    def attach(self, disk: View, machine: str, about: str) -> None:
        self.attached.append(machine)
        if self.fault:
            raise self.fault

    def detach(self, disk: View, machine: str) -> None:
        raise AssertionError(machine)


def on(machine: str) -> View:
    held = Holder(machine=machine, device="x", attached=True, leaving=False)
    return replace(FREE, free=False, holders=(held,))


def test_a_disk_that_an_ended_machine_still_has_is_waited_for() -> None:
    """It is neither ours already nor somebody's: the cloud has yet to take it off."""
    cloud = Cloud([on("ended"), FREE, on("m")], living={"m"})
    assert cloud.create(ADDRESS, "t", INPUTS, NEEDS)["instance"] == "m"
    assert cloud.attached == ["m"]


def test_a_disk_that_a_living_machine_has_is_refused() -> None:
    """And nothing is asked for."""
    cloud = Cloud([on("other")], living={"m", "other"})
    with pytest.raises(PermanentError, match="on other") as caught:
        cloud.create(ADDRESS, "t", INPUTS, NEEDS)
    assert (caught.value.kind, cloud.attached) == (PermanentKind.CONFLICT, [])


def test_a_refusal_for_what_an_earlier_try_asked_for_is_none() -> None:
    """The answer of the first try is lost, and the second one gets the refusal that the disk is in use."""
    lost = TransientError(TransientKind.AMBIGUOUS, "no answer")
    cloud = Cloud([FREE], living={"m"}, fault=lost)
    tried = cloud
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
        cloud.create(ADDRESS, "t", INPUTS, NEEDS)
