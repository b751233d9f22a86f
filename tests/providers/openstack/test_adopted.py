"""The driver `openstack`: volumes that somebody else made, adopted by their ids and released again."""

from copy import deepcopy
from dataclasses import replace

import pytest

from declarative.model.state import Address, Record
from declarative.provider import PermanentError, PermanentKind, TransientError
from providers.cloud import account, marks
from providers.cloud.marks import ON
from providers.cloud.openstack import OpenStack
from tests.providers.openstack.run import SECRETS, config
from tests.providers.openstack.server import REGION, SmallCloud
from tests.support.model import of_attachment, of_node, of_volume

NODE = of_node(region=REGION, zone="az-1", instance_type="m1.tiny")
OWN = {"team": "old", "näme": "x"}


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(account, "FIRST_PAUSE", 0.002)
    monkeypatch.setattr("providers.cloud.any.account.RECENT", 0.0)


@pytest.fixture
def cloud():
    with SmallCloud() as running:
        yield running


@pytest.fixture
def stack(cloud, tmp_path):
    return OpenStack(config(cloud, tmp_path))


@pytest.fixture
def theirs(cloud):
    """A volume that somebody made by hand."""
    asked = {"name": "results 2025", "size": 3, "volume_type": "ssd", "metadata": OWN}
    made = cloud.make_volume({}, {"volume": asked})[1]["volume"]
    made["status"] = "available"
    return made


def adopt(stack, made, name="data-0", **more):
    inputs = of_volume(**{"region": REGION, "volume_id": made, **more})
    address = Address("volume", name)
    outputs = stack.create(address, f"volume-{name}", inputs, {})
    return Record(address=address, backend="stack", inputs=inputs, outputs=outputs)


def held(stack, node, disk):
    address = Address("attachment", f"t-0.{disk.address.name}")
    inputs = of_attachment("t-0", node.address.name, disk.address.name)
    needs = {node.address: node, disk.address: disk}
    outputs = stack.create(address, "attachment", inputs, needs)
    return Record(address=address, backend="stack", inputs=inputs, outputs=outputs)


def server(stack):
    address = Address("node", "gpu-0")
    return Record(
        address=address, backend="stack", inputs=NODE, outputs=stack.create(address, "node", NODE, {})
    )


def test_a_volume_is_adopted_and_let_go_as_it_was(cloud, stack, theirs):
    """It keeps its name and its metadata, and no delete of ours deletes it, whatever is recorded."""
    made, before = theirs["id"], deepcopy(theirs)
    disk = adopt(stack, made, tags={"by": "us"})
    assert disk.outputs == {"id": made, "zone": "nova"}
    assert adopt(stack, made, tags={"by": "us"}) == disk
    assert cloud.count("POST", "/volume/v3/*/volumes/*/metadata") == 1
    (thing,) = stack.inventory()
    assert (thing.address, thing.inputs, thing.actual) == (disk.address, disk.inputs, {})
    assert stack.find(disk.address, "volume-data-0") == thing
    assert stack.recall([disk])[disk.address].actual == {}
    assert theirs["metadata"].items() >= {**OWN, "by": "us"}.items()
    assert theirs["name"] == "results 2025"
    grown = {**disk.inputs, "size": "4GB", "tags": {"by": "them"}}
    stack._volumes.update(disk, "volume-data-0", grown)
    assert (theirs["size"], theirs["metadata"]["by"]) == (4, "them")
    with pytest.raises(PermanentError, match=r"cannot go down from 4GB to 2GB"):
        stack._volumes.update(replace(disk, inputs=grown), "volume-data-0", {**grown, "size": "2GB"})
    stranger = replace(disk, inputs={k: v for k, v in grown.items() if k != "volume_id"})
    stack.delete(stranger)
    assert theirs == {**before, "size": 4}
    assert stack.inventory() == ()
    stack.delete(disk)
    adopt(stack, made, "data-1")
    stack.delete(Record(address=Address("volume", "data-1"), backend="stack", inputs={}))
    assert theirs == {**before, "size": 4}
    assert cloud.count("DELETE", "/volume/v3/*/volumes/*") == 0


@pytest.mark.parametrize(
    ("inputs", "kind", "words", "hint"),
    [
        ({"volume_id": "0" * 8 + "-0000-0000-0000-" + "0" * 12}, "not-found", "no volume `0000", "region"),
        ({"volume_id": "results 2025"}, "not-found", "there is no volume `results 2025`", "write its id"),
        ({"volume_id": "../servers"}, "not-found", "there is no volume", "write its id"),
        ({"size": "4GB"}, "invalid", "`size` of .* is 3GB, and not 4GB", "write `size: 3GB`"),
        ({"zone": "vault"}, "invalid", "`availability_zone` of .* is nova, and not vault", "zone: nova"),
        ({"zone": "az-9"}, "invalid", "no zone `az-9` in", "mean `az-1` or `az-2` or `az-3`"),
        ({"volume_type": "hdd"}, "invalid", "`volume_type` of .* is ssd, and not hdd", "volume_type: ssd"),
        ({"tags": {"team": "old"}}, "invalid", "has a tag `team` of its own", "leave `team` out"),
        ({"tags": {"a/b": "x"}}, "invalid", "does not take the tag `a/b`", "letters"),
    ],
    ids=["gone", "a name", "a path", "size", "zone", "no zone", "type", "own tag", "bad tag"],
)
def test_what_is_adopted_has_to_be_what_is_declared(cloud, stack, theirs, inputs, kind, words, hint):
    """The plan reports it; otherwise nothing is written on the volume."""
    cloud.disk_zones = ["nova", "vault"]
    wanted = of_volume(**{"region": REGION, "volume_id": theirs["id"], **inputs})
    (ahead,) = stack.check({Address("volume", "data-0"): wanted})
    with pytest.raises(PermanentError, match=words) as caught:
        adopt(stack, **{"made": theirs["id"], **inputs})
    assert caught.value.kind is PermanentKind(kind)
    assert hint in str(caught.value.hint)
    assert (ahead.summary, ahead.hint) == (caught.value.summary, caught.value.hint)
    assert not [path for _, path, _ in cloud.seen if path.endswith(("2025", "servers"))]
    assert theirs["metadata"] == OWN


def test_a_zone_that_only_nova_has_says_nothing_of_a_disk(cloud, stack, theirs):
    """As for a new one: cinder's zone is not one of the servers'."""
    wanted = of_volume(region=REGION, volume_id=theirs["id"], zone="az-2")
    assert stack.check({Address("volume", "data-0"): wanted}) == []
    assert adopt(stack, theirs["id"], zone="az-2").outputs["zone"] == "nova"


def test_one_that_is_broken_is_not_taken(cloud, stack, theirs):
    theirs["status"] = "error_restoring"
    with pytest.raises(PermanentError, match="cannot be used: cinder says `error_restoring`"):
        adopt(stack, theirs["id"])
    theirs["status"] = "deleting"
    with pytest.raises(PermanentError, match="there is no volume"):
        adopt(stack, theirs["id"])
    assert theirs["metadata"] == OWN


def test_a_volume_has_one_address(cloud, tmp_path, stack, theirs):
    """Neither another of this state nor another state takes it. With a plan only the second is sure."""
    disk = adopt(stack, theirs["id"])
    other = OpenStack(config(cloud, tmp_path, "another"))
    wanted = {Address("volume", "data-1"): of_volume(region=REGION, volume_id=theirs["id"])}
    for who, whose, seen in (stack, "this state", 0), (other, r"another state \(lineage lineage-1\)", 1):
        with pytest.raises(PermanentError, match=f"volume/data-0 of {whose}") as caught:
            adopt(who, theirs["id"], "data-1")
        assert caught.value.kind is PermanentKind.CONFLICT
        assert len(who.check(wanted)) == seen
    assert other.inventory() == ()
    stack.delete(disk)
    assert adopt(other, theirs["id"], "data-1").outputs["id"] == theirs["id"]


def test_a_tag_that_comes_later_is_none_of_its_own(cloud, stack, theirs):
    """It would be lost once the volume is released."""
    disk = adopt(stack, theirs["id"], tags={"by": "us"})
    with pytest.raises(PermanentError, match="has a tag `team` of its own") as caught:
        stack.update(disk, "volume-data-0", {**disk.inputs, "tags": {"by": "us", "team": "new"}})
    assert caught.value.about == "tags"
    assert theirs["metadata"].items() >= {**OWN, "by": "us"}.items()


def test_it_is_let_go_once_no_server_of_ours_has_it(cloud, stack, theirs):
    """It is not ours to be formatted. Cinder's note on a used volume is not part of its metadata."""
    disk, node = adopt(stack, theirs["id"]), server(stack)
    on = held(stack, node, disk)
    assert stack._attachments.on_node(disk).ours is False
    assert {t.address for t in stack.inventory()} == {disk.address, node.address, on.address}
    with pytest.raises(PermanentError, match="is on node/gpu-0") as caught:
        stack.delete(disk)
    assert (caught.value.kind, caught.value.hint) == (PermanentKind.CONFLICT, "detach it first")
    stack.delete(on)
    assert cloud.get_volume(theirs["id"], {}, None)[1]["volume"]["metadata"]["readonly"] == "False"
    stack.delete(disk)
    assert (theirs["metadata"], theirs["status"]) == (OWN, "available")
    assert theirs["id"] in cloud.volumes


def test_what_others_have_in_use_is_let_go_all_the_same(cloud, stack, theirs):
    """It may be adopted, not attached; the attachments of others are not ours to detach."""
    node = server(stack)
    theirs.update(status="in-use", attachments=[{"server_id": node.outputs["id"], "device": "/dev/vdb"}])
    disk = adopt(stack, theirs["id"])
    with pytest.raises(PermanentError, match="attached by somebody else"):
        held(stack, node, disk)
    stack.delete(disk)
    assert theirs["metadata"] == OWN
    assert len(theirs["attachments"]) == 1
    theirs.update(status="attaching", attachments=[])
    stack.delete(adopt(stack, theirs["id"]))
    assert theirs["metadata"] == OWN


def test_whose_marks_somebody_took_away_is_left_as_it_is(cloud, stack, theirs):
    """An update writes them again; without one, there is nothing to release."""
    disk = adopt(stack, theirs["id"])
    theirs["metadata"] = dict(OWN)
    stack.delete(disk)
    assert theirs["metadata"] == OWN
    stack._volumes.update(disk, "volume-data-0", disk.inputs)
    assert [t.address for t in stack.inventory()] == [disk.address]


@pytest.mark.parametrize("fault", ["lost", "lost-before", "cut", "page", "reset"])
def test_cut_short_anywhere_it_is_taken_and_let_go_once(cloud, stack, theirs, fault):
    """Our marks come and go in one request: there is no half of them to be found."""
    left: list[str] = []

    def rule(method, path):
        return left.pop() if left and method in ("POST", "PUT") and path.endswith("/metadata") else None

    def twice(step):
        left.append(fault)
        with pytest.raises(TransientError):
            step()
        assert sum(key.startswith(marks.OURS) for key in theirs["metadata"]) in (0, 4)
        return step()

    cloud.rules.append(rule)
    disk = twice(lambda: adopt(stack, theirs["id"], tags={"by": "us"}))
    assert [t.address for t in stack.inventory()] == [disk.address]
    twice(lambda: stack.delete(disk))
    assert theirs["metadata"] == OWN


def test_a_claim_that_is_left_goes_with_the_rest(cloud, stack, theirs):
    """A server ended with the disk on it."""
    disk, node = adopt(stack, theirs["id"]), server(stack)
    held(stack, node, disk)
    cloud.servers.clear()
    theirs.update(status="available", attachments=[])
    assert any(key.startswith(ON) for key in theirs["metadata"])
    stack.delete(disk)
    assert theirs["metadata"] == OWN
