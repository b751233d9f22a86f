"""The driver `openstack`: changes by others, things known only by their ids, and the places of disks."""

import pytest

from declarative.model.spec.backend import ImageFilter
from declarative.model.state import ANOTHERS, TAGS, Address, Record
from declarative.provider import Ended, PermanentError, PermanentKind
from providers.cloud import account, marks
from providers.cloud.openstack import OpenStack
from tests.providers.openstack.run import SECRETS, config
from tests.providers.openstack.server import REGION, SmallCloud
from tests.support.model import of_attachment, of_node, of_volume

NODE = of_node(region=REGION, zone="az-1", instance_type="m1.tiny", tags={"team": "a"})
DISK = of_volume(region=REGION, tags={"team": "a"})


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(account, "FIRST_PAUSE", 0.002)


@pytest.fixture
def cloud():
    with SmallCloud() as running:
        yield running


@pytest.fixture
def stack(cloud, tmp_path):
    return OpenStack(config(cloud, tmp_path))


def record(stack, kind, name, inputs, needs=()):
    address = Address(kind, name)
    held = {need.address: need for need in needs}
    outputs = stack.create(address, f"{kind}-{name}", inputs, held)
    return Record(address=address, backend="stack", inputs=inputs, outputs=outputs)


@pytest.fixture
def three(stack):
    """A node, a volume, and that on this."""
    node, disk = record(stack, "node", "gpu-0", NODE), record(stack, "volume", "data-0", DISK)
    inputs = of_attachment("t-0", "gpu-0", "data-0")
    return node, disk, record(stack, "attachment", "t-0.data-0", inputs, (node, disk))


def metadata(cloud, thing):
    things = cloud.servers if thing.address.kind == "node" else cloud.volumes
    return things[thing.outputs["id"]]["metadata"]


def test_what_others_changed_is_seen(cloud, stack, three):
    """Tags, a resized server, a volume that grew or is of another type."""
    node, disk, _ = three
    assert not [t.actual for t in stack.inventory() if t.actual]
    del metadata(cloud, node)["team"]
    cloud.servers[node.outputs["id"]]["flavor"] = {"original_name": "gpu.h100x2"}
    cloud.volumes[disk.outputs["id"]]["size"] = 3
    seen = {t.address: t.actual for t in stack.inventory()}
    assert seen[node.address] == {TAGS: {}, "instance_type": "gpu.h100x2"}
    assert seen[disk.address] == {"size": "3GB"}


def test_a_thing_is_known_by_its_id_whatever_is_written_on_it(cloud, stack, three):
    """The mark may be missing, another's, or deleted; an update writes it again."""
    node, disk, held = three
    for thing in (node, disk):
        metadata(cloud, thing).clear()
    assert stack.inventory() == ()
    found = stack.recall(three)
    assert {a: t and t.actual for a, t in found.items()} == {
        node.address: {TAGS: {}},
        disk.address: {TAGS: {}},
        held.address: {},
    }
    for thing in (node, disk):
        with pytest.raises(PermanentError, match="does not carry this state's tags"):
            stack.delete(thing)
    assert stack._nodes.update(node, "node-gpu-0", NODE) == node.outputs
    stack._volumes.update(disk, "volume-data-0", DISK)
    assert {t.address for t in stack.inventory()} >= {node.address, disk.address}
    assert metadata(cloud, node)["fleetform:host-key"] == node.outputs["host_key"]
    metadata(cloud, node)[marks.OWNER] = "another"
    assert stack.recall([node])[node.address].actual == {ANOTHERS: "another"}


def test_what_ended_is_known_by_what_is_left(cloud, stack, three):
    """Nova forgets it. While the key pair exists, it is the right project; else this is not known."""
    node, disk, held = three
    cloud.servers.clear()
    cloud.volumes[disk.outputs["id"]].update(status="available", attachments=[])
    found = stack.recall(three)
    assert found[node.address] == Ended(reason="nova knows no such server any more")
    assert found[held.address] is None
    assert found[disk.address].address == disk.address
    cloud.pairs.clear()
    cloud.volumes.clear()
    assert stack.recall(three) == {}


def test_where_a_disk_is(cloud, stack, three):
    """It says the beginning of its id, or all of it; a node that is off has it nowhere."""
    node, disk, held = three
    for thing in (disk, held):
        on = stack._attachments.on_node(thing)
        assert (on.node.address, on.node.outputs["id"]) == (node.address, node.outputs["id"])
        assert on.serials == (disk.outputs["id"], disk.outputs["id"][:20])
        assert (on.size, on.ours, on.taken) == (1, True, False)
    stack._nodes.taken(node)
    assert stack._attachments.on_node(disk).taken
    cloud.servers[node.outputs["id"]]["status"] = "SHUTOFF"
    assert stack._attachments.on_node(disk) is None
    cloud.servers[node.outputs["id"]]["status"] = "ACTIVE"
    cloud.volumes[disk.outputs["id"]]["status"] = "detaching"
    assert stack._attachments.on_node(disk) is None


def test_a_silent_node_is_not_waited_for(cloud, stack, three):
    """It may be the next to end: that the disk was asked for is enough."""
    _, disk, held = three
    stack._attachments.delete(held)
    assert cloud.volumes[disk.outputs["id"]]["status"] == "available"
    node, disk, held = three
    again = record(stack, "attachment", "t-0.data-0", held.inputs, (node, disk))
    volume = cloud.volumes[disk.outputs["id"]]
    frozen = {"volume": {**volume, "status": "detaching"}}
    cloud.get_volume = lambda *_: (200, frozen)
    stack._attachments.delete(again, wait=False)
    assert volume["status"] == "in-use"


def test_an_image_is_looked_for_by_its_name_and_owner(cloud, tmp_path):
    """The newest that fits, of one's own where no owner is named."""
    cloud.images += [
        {"id": "old", "name": "noble 2025", "status": "active", "owner": "them", "created_at": "2025-01-01"},
        {"id": "new", "name": "noble 2026", "status": "active", "owner": "them", "created_at": "2026-01-01"},
        {"id": "hid", "name": "noble 2027", "status": "active", "owner": "them", "os_hidden": True},
        {"id": "own", "name": "noble [x]", "status": "active", "visibility": "private"},
    ]

    def found(**asked):
        there = OpenStack(config(cloud, tmp_path, image={"*": ImageFilter(**asked)}))
        return there._account.image(REGION)

    assert found(name="noble *", owner="them") == "new"
    assert found(name="noble ?025", owner="them") == "old"
    assert found(name="noble [x]") == "own"
    with pytest.raises(PermanentError, match="no image that fits `jammy") as caught:
        found(name="jammy*", owner="them")
    assert (caught.value.kind, caught.value.about) == (PermanentKind.NOT_FOUND, "image")


def test_the_pair_goes_with_the_last_of_many(cloud, stack):
    """Not looked for with each: a node that is made beside them finds it."""
    nodes = [record(stack, "node", f"gpu-{i}", NODE) for i in range(3)]
    for node in nodes[:2]:
        stack.delete(node)
        assert cloud.pairs
    stack.delete(nodes[2])
    assert cloud.pairs == {}
