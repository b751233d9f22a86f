"""Volumes that somebody else made, adopted by their ids on GCE, Azure and DigitalOcean; see
tests/providers/ec2/test_ec2.py for EC2's. Each cloud is a small server of the tests' own.
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest

from declarative.model.state import TAGS, Address, Record, token
from declarative.provider import Config, PermanentError, PermanentKind
from declarative.retry import Policy, call
from providers.cloud import account, cloud, marks
from providers.cloud.any import labels
from providers.cloud.any.digitalocean import DigitalOcean as Site
from tests.providers.azure import server as fake_azure
from tests.providers.cloud.web import Web, losing
from tests.providers.gce import server as fake_gce
from tests.providers.libcloud.digitalocean import DigitalOcean as FakeDigitalOcean
from tests.support.model import of_attachment, of_kind, of_volume

PATIENT = Policy(deadline=300.0, first=0.01, longest=0.05)
MADE = "7724db7c-e098-11e5-b522-000f53304e51"


class Gce:
    """GCE, with a disk of somebody's. `theirs` is what its owner calls it, `made` what is recorded of it."""

    place = MappingProxyType({"region": fake_gce.REGION, "zone": fake_gce.ZONE})
    size = "n1-standard-1"
    theirs, made = "theirs", f"{fake_gce.PROJECT}/{fake_gce.ZONE}/theirs"
    # Labels may be in any script; what the driver lets users write is less.
    before = MappingProxyType({"team": "old", "\u00e9quipe": "r\u00e9seau"})
    us = MappingProxyType({"by": "us"})
    wrong = (
        ({"volume_id": "others"}, "not-found", "no volume `others` in GCE", "the name of a disk"),
        ({"volume_id": "a/b"}, "not-found", "no volume `a/b`", "projects/P/zones/Z/disks/NAME"),
        ({"volume_id": "projects/p/zones/us-central1-a/disks/theirs"}, "not-found", "no volume", "project"),
        ({"zone": "us-central1-b"}, "not-found", "no volume `theirs`", "`availability_zone`"),
        (
            {
                "zone": "us-central1-b",
                "volume_id": f"https://www.googleapis.com/compute/v1/projects/{fake_gce.PROJECT}/zones/"
                "us-central1-a/disks/theirs",
            },
            "invalid",
            "`availability_zone` of theirs is us-central1-a, and not us-central1-b",
            "write `availability_zone: us-central1-a`",
        ),
        ({"tags": {"team": "new"}}, "invalid", "has a tag `team` of its own", "leave `team` out"),
        ({"size": "4GB"}, "invalid", "`size` of theirs is 3GB, and not 4GB", "write `size: 3GB`"),
        ({"volume_type": "pd-balanced"}, "invalid", "`volume_type` of theirs is pd-ssd", "pd-ssd"),
    )

    def __init__(self, folder: Any, monkeypatch: Any) -> None:
        self.cloud = fake_gce.Gce()
        self.web = Web(self.cloud)
        key = fake_gce.service_account(fake_gce.private_key(), self.web.url)
        monkeypatch.setenv(fake_gce.VARIABLE, key)
        self.config = partial(fake_gce.config, self.web.url, folder)
        self.disks = self.cloud.things["disks"]
        disk = {"name": "theirs", "sizeGb": "3", "type": "pd-ssd", "labels": dict(self.before)}
        self.cloud._insert(fake_gce.ZONE, "disks", {**disk, "labels": {}})
        self.disks[f"{fake_gce.ZONE}/theirs"]["labels"] = disk["labels"]

    def labels(self) -> Any:
        return self.disks[f"{fake_gce.ZONE}/theirs"]["labels"]

    def lose_marks(self) -> None:
        labels = self.labels()
        for key in [key for key in labels if key.startswith("fleetform_")]:
            del labels[key]

    def take(self) -> None:
        """Have a machine of its owner's."""
        desk = {"name": "desk", "labels": {}, "metadata": {}, "networkInterfaces": [{}], "scheduling": {}}
        self.cloud._insert(fake_gce.ZONE, "instances", {**desk, "machineType": "zones/z/machineTypes/n1"})
        desk = self.cloud.things["instances"][f"{fake_gce.ZONE}/desk"]
        self.disks[f"{fake_gce.ZONE}/theirs"]["users"] = [desk["selfLink"]]

    def spoil(self) -> None:
        self.web.answer = losing(self.cloud, 1)

    def heal(self) -> None:
        self.web.answer = self.cloud


class Azure:
    """As above. The disk is in the second zone, and its id in another case than it was made in."""

    place = MappingProxyType({"region": fake_azure.REGION, "zone": "eastus-2"})
    size = "Standard_D2s_v3"
    theirs = (
        f"/subscriptions/{fake_azure.SUBSCRIPTION}/resourceGroups/FLEET-group/providers/"
        "Microsoft.Compute/disks/Theirs"
    )
    made = "fleet-group/theirs"
    before = MappingProxyType({"team": "old", "kubernetes.io/created-for": "x" * 300})
    us = MappingProxyType({"by": "us"})
    wrong = (
        ({"volume_id": "others"}, "not-found", "no volume `others` in Azure", "the name of a disk"),
        (
            {"volume_id": theirs.replace("FLEET-group", "another")},
            "not-found",
            "no volume `/subscriptions/.*/another/.*` in Azure",
            "of the backend's resource group",
        ),
        ({"region": "westus"}, "invalid", "`region` of theirs is eastus, and not westus", "`region: eastus`"),
        ({"zone": "eastus-1"}, "invalid", "is eastus-2, and not eastus-1", "`availability_zone: eastus-2`"),
        ({"zone": None}, "invalid", "its zone is not declared", "`availability_zone: eastus-2`"),
        ({"tags": {"team": "new"}}, "invalid", "has a tag `team` of its own", "leave `team` out"),
        ({"size": "4GB"}, "invalid", "`size` of theirs is 3GB, and not 4GB", "write `size: 3GB`"),
        ({"volume_type": "StandardSSD_LRS"}, "invalid", "is Premium_LRS", "`volume_type: Premium_LRS`"),
    )

    def __init__(self, folder: Any, monkeypatch: Any) -> None:
        for name, value in fake_azure.SECRETS.items():
            monkeypatch.setenv(name, value)
        self.cloud = fake_azure.Azure()
        self.web = Web(self.cloud)
        self.config = partial(fake_azure.config, self.web.url, folder)
        self.disk: Any = {
            "id": f"{fake_azure.ROOT}Microsoft.Compute/disks/Theirs",
            "name": "Theirs",
            "location": "eastus",
            "zones": ["2"],
            "sku": {"name": "Premium_LRS"},
            "tags": dict(self.before),
            "properties": {
                "provisioningState": "Succeeded",
                "diskSizeGB": 3,
                "creationData": {"createOption": "Empty"},
            },
        }
        self.cloud.things["microsoft.compute/disks/theirs"] = self.disk

    def labels(self) -> Any:
        return self.disk["tags"]

    def lose_marks(self) -> None:
        self.disk["tags"] = {k: v for k, v in self.disk["tags"].items() if not k.startswith(marks.OURS)}

    def take(self) -> None:
        self.disk["managedBy"] = self.disk["id"].replace("disks/Theirs", "virtualMachines/desk")

    spoil, heal = Gce.spoil, Gce.heal


class DigitalOcean:
    """As above. What is on a volume are tags without values, and what is left of a mark says nothing."""

    place = MappingProxyType({"region": "nyc3"})
    size = "s-1vcpu-1gb"
    theirs = made = MADE
    before = ("team:old",)
    us = MappingProxyType({"by": "us"})
    wrong = (
        ({"volume_id": "theirs"}, "not-found", "no volume `theirs` in DigitalOcean", "its id"),
        ({"volume_id": MADE.replace("7", "8")}, "not-found", "no volume `8", "its id"),
        ({"region": "ams3"}, "invalid", "`region` of .* is nyc3, and not ams3", "write `region: nyc3`"),
        ({"size": "4GB"}, "invalid", "`size` of .* is 3GB, and not 4GB", "write `size: 3GB`"),
        ({"tags": {"team": "old"}}, "invalid", "has a tag `team` of its own", "leave `team` out"),
        ({"volume_type": "ssd"}, "invalid", "has no `volume_type`", "leave `volume_type` out"),
    )

    def __init__(self, folder: Any, monkeypatch: Any) -> None:
        monkeypatch.setenv("FLEETFORM_TEST_KEY", "dop_v1_very-secret")
        monkeypatch.setattr(Site, "settle", 0.1)
        self.web = FakeDigitalOcean()
        body = {"name": "theirs", "region": "nyc3", "size_gigabytes": 3, "tags": list(self.before)}
        _, found = self.web.make_volume(body, {})
        self.disk = found["volume"]
        del self.web.volumes[self.disk["id"]]
        self.disk["id"] = MADE
        self.web.volumes[MADE] = self.disk
        self.config = partial(
            Config,
            backend="do",
            project_dir=folder,
            driver="digitalocean",
            regions=("nyc3", "ams3"),
            credentials={"key": "FLEETFORM_TEST_KEY"},
            endpoint=f"http://127.0.0.1:{self.web.port}",
            image={"*": "ubuntu-24-04-x64"},
        )

    def labels(self) -> Any:
        return tuple(self.disk["tags"])

    def lose_marks(self) -> None:
        self.disk["tags"] = [tag for tag in self.disk["tags"] if not tag.startswith("fleetform:")]

    def take(self) -> None:
        self.disk["droplet_ids"] = [7]

    def spoil(self) -> None:
        self.web.spoil(2)

    def heal(self) -> None:
        self.web.spoil(None)


@pytest.fixture(params=[Gce, Azure, DigitalOcean])
def there(request, tmp_path, monkeypatch):
    monkeypatch.setattr(account, "FIRST_PAUSE", 0.01)
    found = request.param(tmp_path, monkeypatch)
    with found.web:
        yield found


class Fleet:
    """What one state makes there."""

    def __init__(self, there: Any, lineage: str = "lineage-1") -> None:
        self.there, self.lineage = there, lineage
        config = there.config(lineage=lineage)
        self.provider: Any = cloud(config)
        self.backend = config.backend

    def wanted(self, kind: str, name: str, **inputs: Any) -> Record:
        place = self.there.place if kind != "attachment" else {}
        given = of_kind(kind, **{"backend": self.backend, **place, **inputs})
        return Record(address=Address(kind, name), backend=self.backend, inputs=given)

    def make(self, record: Record, *needs: Record) -> Record:
        key = token(self.lineage, record.address, 1, None)
        known = {need.address: need for need in needs}
        return replace(record, outputs=self.provider.create(record.address, key, record.inputs, known))

    def adopt(self, name: str = "data-0", **inputs: Any) -> Record:
        inputs = {"volume_id": self.there.theirs, "tags": dict(self.there.us), **inputs}
        return self.make(self.wanted("volume", name, **inputs))


@pytest.fixture
def fleet(there):
    return Fleet(there)


def test_a_volume_is_adopted_and_let_go_as_it_was(there, fleet):
    """It keeps its name and its tags, and no delete of ours deletes it, whatever is recorded."""
    disk = fleet.adopt()
    assert disk.outputs["id"] == there.made
    assert fleet.adopt() == disk
    (thing,) = fleet.provider.inventory()
    assert (thing.address, thing.inputs, thing.actual) == (disk.address, disk.inputs, {})
    assert thing.outputs == disk.outputs
    assert fleet.provider.find(disk.address, thing.token) == thing
    assert fleet.provider.recall([disk])[disk.address].actual == {}
    now = there.labels()
    assert set(there.before) < set(now)
    assert "by:us" in now or now["by"] == "us"
    stranger = replace(disk, inputs={k: v for k, v in disk.inputs.items() if k != "volume_id"})
    fleet.provider.delete(stranger)
    assert there.labels() == there.before
    assert fleet.provider.inventory() == ()
    fleet.provider.delete(disk)
    other = fleet.adopt("data-1")
    fleet.provider.delete(replace(other, inputs=of_volume(**there.place), outputs={}))
    assert there.labels() == there.before


def test_what_is_adopted_grows_and_does_not_shrink(there, fleet):
    disk = fleet.adopt()
    grown = {**disk.inputs, "size": "4GB"}
    assert fleet.provider.update(disk, "0" * 32, grown) == disk.outputs
    (thing,) = fleet.provider.inventory()
    assert (thing.inputs, thing.actual) == (grown, {})
    assert fleet.provider.check({disk.address: grown}) == []
    for change, about in ({"size": "3GB"}, "size"), ({"volume_id": "x"}, "volume_id"):
        with pytest.raises(PermanentError) as caught:
            fleet.provider.update(replace(disk, inputs=grown), "0" * 32, {**grown, **change})
        assert (caught.value.kind, caught.value.about) == (PermanentKind.INVALID, about)
    fleet.provider.update(replace(disk, inputs=grown), "0" * 32, disk.inputs)  # says nothing of its size
    fleet.provider.delete(disk)
    assert there.labels() == there.before


def test_it_is_detached_before_it_is_let_go(there, fleet):
    """A node has it like any other volume, and knows that it was not made empty for us."""
    disk = fleet.adopt()
    node = fleet.make(fleet.wanted("node", "gpu-0", instance_type=there.size))
    names = of_attachment("t-0", "gpu-0", "data-0")
    held = fleet.make(fleet.wanted("attachment", "t-0.data-0", **names), disk, node)
    found = fleet.provider._attachments.on_node(disk)
    assert (found.ours, found.size, found.node.address) == (False, 3, node.address)
    with pytest.raises(PermanentError, match="is on") as caught:
        fleet.provider.delete(disk)
    assert caught.value.kind is PermanentKind.CONFLICT
    fleet.provider._attachments.delete(held)
    fleet.provider.delete(node)
    assert [thing.address for thing in fleet.provider.inventory()] == [disk.address]
    fleet.provider.delete(disk)
    assert there.labels() == there.before


def test_it_is_let_go_while_another_has_it(there, fleet):
    """Its owner's machine had it before, and has it now."""
    disk = fleet.adopt()
    there.take()
    fleet.provider.delete(disk)
    assert there.labels() == there.before


CASES = [(kind, *case) for kind in (Gce, Azure, DigitalOcean) for case in kind.wrong]


@pytest.mark.parametrize(
    ("there", "inputs", "kind", "words", "hint"),
    CASES,
    indirect=["there"],
    ids=[f"{case[0].__name__}-{'-'.join(case[1])}-{i}" for i, case in enumerate(CASES)],
)
def test_what_is_adopted_has_to_be_what_is_declared(there, fleet, inputs, kind, words, hint):
    """The plan reports it; otherwise nothing is written on the volume."""
    record = fleet.wanted("volume", "data-0", **{"volume_id": there.theirs, **inputs})
    (fault,) = fleet.provider.check({record.address: record.inputs})
    assert hint in str(fault.hint)
    with pytest.raises(PermanentError, match=words) as caught:
        fleet.adopt(**inputs)
    assert caught.value.kind is PermanentKind(kind)
    assert hint in str(caught.value.hint)
    assert there.labels() == there.before


def test_a_volume_has_one_address(there, fleet):
    """Neither another of this state nor another state takes it, or lets it go."""
    disk = fleet.adopt()
    for who, whose in (fleet, "this state"), (Fleet(there, "another-lineage"), "another state"):
        # With a plan, the present holder may have released it by then.
        new = who.wanted("volume", "data-1", volume_id=there.theirs)
        assert len(who.provider.check({new.address: new.inputs})) == (who is not fleet)
        with pytest.raises(PermanentError, match=f"volume/data-0 of {whose}") as caught:
            who.adopt("data-1")
        assert caught.value.kind is PermanentKind.CONFLICT
    before = there.labels()
    with suppress(PermanentError):
        Fleet(there, "another-lineage").provider.delete(disk)
    assert there.labels() == before


def test_what_lost_our_tags_gets_them_back_or_is_let_go(there, fleet):
    disk = fleet.adopt()
    there.lose_marks()
    assert fleet.provider.recall([disk])[disk.address].actual.keys() == {TAGS}
    key = token("lineage-1", disk.address, 1, None)
    assert fleet.provider.update(disk, key, disk.inputs) == disk.outputs
    (thing,) = fleet.provider.inventory()
    assert (thing.inputs, thing.token) == (disk.inputs, key)
    there.lose_marks()
    fleet.provider.delete(disk)  # it has no owner any more: no fault
    assert set(there.before) <= set(there.labels())


@pytest.mark.slow
def test_lost_answers_leave_nothing_behind(there, fleet):
    """Each third change is carried out without an answer, or not at all: tried again it is whole."""
    there.spoil()
    for i in range(4):
        disk = call(partial(fleet.adopt, f"data-{i}"), policy=PATIENT)
        (thing,) = call(fleet.provider.inventory, policy=PATIENT)
        assert (thing.address, thing.inputs) == (disk.address, disk.inputs)
        call(partial(fleet.provider.delete, disk), policy=PATIENT)
        assert there.labels() == there.before
    there.heal()


# ------------------------------------------------------------------------------------ DigitalOcean


@pytest.mark.parametrize("there", [DigitalOcean], indirect=True)
def test_letting_go_that_was_cut_short_is_finished(there, fleet):
    """Without our name on it, the rest of the mark is ours as long as the volume has no other owner."""
    disk = fleet.adopt()
    there.disk["tags"].remove(labels.owner_tag("lineage-1"))
    assert fleet.provider.inventory() == ()
    fleet.provider.delete(disk)
    assert there.labels() == there.before
    assert [tag for tag in there.web.tags if tag.startswith("fleetform:") and "owner" not in tag] == []


@pytest.mark.parametrize("there", [DigitalOcean], indirect=True)
@pytest.mark.parametrize("requests", [2, 3, 4, 5, 6, 7])
def test_taking_on_that_was_cut_short_is_finished(there, fleet, requests):
    """Wherever it was: what a try wrote is not taken for its owner's by the next."""
    left = iter(range(requests))
    there.web.rules.append(lambda m, p: "denied" if m == "POST" and next(left, None) is None else None)
    with pytest.raises(PermanentError):
        fleet.adopt(tags={"by": "us", "on": "it"})
    there.web.rules.clear()
    disk = fleet.adopt(tags={"by": "us", "on": "it"})
    (thing,) = fleet.provider.inventory()
    assert (thing.inputs, thing.actual) == (disk.inputs, {})
    fleet.provider.delete(disk)
    assert there.labels() == there.before


@pytest.mark.parametrize("there", [Azure], indirect=True)
def test_tags_of_azure_are_the_same_in_any_case(there, fleet):
    with pytest.raises(PermanentError, match="Azure takes `Team` for the existing tag `team`"):
        fleet.adopt(tags={"Team": "new"})
    assert there.labels() == there.before


@pytest.mark.parametrize("there", [DigitalOcean], indirect=True)
def test_what_is_left_of_an_older_mark_is_not_read(there, fleet):
    disk = fleet.adopt("data-0", tags={"by": "us", "note": "n" * 200})
    there.disk["tags"].remove(labels.owner_tag("lineage-1"))
    new = Fleet(there, "another-lineage").adopt("data-9", tags={"as": "new"})
    (thing,) = Fleet(there, "another-lineage").provider.inventory()
    assert (thing.address, thing.inputs) == (new.address, new.inputs)
    with pytest.raises(PermanentError, match="does not carry this state's tags"):
        fleet.provider.delete(disk)  # it is another's now
    assert Fleet(there, "another-lineage").provider.inventory() == (thing,)
