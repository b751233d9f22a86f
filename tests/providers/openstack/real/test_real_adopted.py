"""Volumes that somebody else made, on a real OpenStack: adopted by their ids, and released unchanged."""

import zlib
from functools import partial

import pytest

from declarative.model.state import Address, Record
from declarative.provider import PermanentError, PermanentKind
from declarative.retry import Policy, call
from providers.cloud.openstack import OpenStack
from tests.providers.openstack.real import cloud
from tests.support.model import of_attachment, of_node, of_volume

pytestmark = pytest.mark.skipif(not cloud.ASKED_FOR, reason=cloud.WHY_NOT)

NODE = of_node(region=cloud.REGION, zone=cloud.ZONE, instance_type=cloud.FLAVOR)
OWN = {"team": "old", "note": 'it\'s {"theirs"}'}
QUICK = Policy(deadline=120.0, first=0.2, longest=2.0)


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in cloud.SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def stack(request, tmp_path):
    """A lineage of its own."""
    return OpenStack(cloud.config(tmp_path, f"adopted-{zlib.crc32(request.node.name.encode()):08x}"))


@pytest.fixture
def region(stack):
    return stack._nova.region(cloud.REGION)


@pytest.fixture
def theirs(stack, region):
    """The id of a volume that somebody made by hand; what there is of ours goes with it."""
    asked = {"name": "results 2025", "size": 1, "metadata": OWN}
    made = region.ask("making one", "volume", "POST", "/volumes", {"volume": asked})["volume"]["id"]
    yield made
    order = {"attachment": 0, "volume": 1, "node": 2}
    for thing in sorted(stack.inventory(), key=lambda thing: order[thing.address.kind]):
        have = Record(address=thing.address, backend="stack", inputs=thing.inputs, outputs=thing.outputs)
        call(partial(stack.delete, have), policy=QUICK)
    call(partial(region.ask, "deleting it", "volume", "DELETE", f"/volumes/{made}"), policy=QUICK)


def make(stack, kind, name, inputs, *needs):
    address = Address(kind, name)
    held = {need.address: need for need in needs}
    outputs = call(lambda: stack.create(address, f"{kind}-{name}", inputs, held), policy=QUICK)
    return Record(address=address, backend="stack", inputs=inputs, outputs=outputs)


def own(region, made):
    """Its name, and what is written on it."""
    found = region.ask("looking", "volume", "GET", f"/volumes/{made}")["volume"]
    return found["name"], region.written("volume", f"/volumes/{made}")


def test_a_volume_is_adopted_used_and_let_go_as_it_was(stack, region, theirs):
    """It is found by what is written on it, grows, is on a server, and is still there afterwards."""
    inputs = of_volume(region=cloud.REGION, volume_id=theirs, tags={"by": "us"})
    disk = make(stack, "volume", "data-0", inputs)
    assert make(stack, "volume", "data-0", inputs) == disk
    (thing,) = stack.inventory()
    assert (thing.address, thing.inputs, thing.actual) == (disk.address, inputs, {})
    assert stack.find(disk.address, "volume-data-0") == thing
    assert stack.find(disk.address, "another") is None
    assert own(region, theirs)[1].items() >= {**OWN, "by": "us"}.items()
    stack._volumes.update(disk, "volume-data-0", {**inputs, "size": "2GB"})
    assert region.volume(theirs).size == 2

    node = make(stack, "node", "gpu-0", NODE)
    place = of_attachment("t-0", "gpu-0", "data-0")
    held = make(stack, "attachment", "t-0.data-0", place, disk, node)
    assert stack._attachments.find(held.address, "attachment-t-0.data-0").outputs == held.outputs
    assert stack._attachments.on_node(disk).ours is False
    with pytest.raises(PermanentError, match="is on node/gpu-0"):
        stack.delete(disk)
    call(partial(stack._attachments.delete, held), policy=QUICK)
    call(partial(stack.delete, node), policy=QUICK)
    stack.delete(disk)
    stack.delete(disk)
    assert own(region, theirs) == ("results 2025", OWN)
    assert region.volume(theirs).word == "available"
    assert stack.inventory() == ()


def test_one_without_metadata_of_its_own_has_none_again(stack, region, theirs):
    """An empty mapping is taken for all of it."""
    region.write("volume", f"/volumes/{theirs}", {})
    disk = make(stack, "volume", "data-0", of_volume(region=cloud.REGION, volume_id=theirs))
    stack.delete(disk)
    assert own(region, theirs)[1] == {}


def test_one_of_another_state_is_refused(stack, region, theirs, tmp_path):
    """Until that one has let it go."""
    wanted = {"region": cloud.REGION, "volume_id": theirs}
    other = OpenStack(cloud.config(tmp_path, "another"))
    disk = make(other, "volume", "mine", wanted)
    (ahead,) = stack.check({Address("volume", "data-0"): wanted})
    with pytest.raises(PermanentError, match="volume/mine of another state") as caught:
        make(stack, "volume", "data-0", wanted)
    assert (caught.value.kind, caught.value.summary) == (PermanentKind.CONFLICT, ahead.summary)
    other.delete(disk)
    make(stack, "volume", "data-0", wanted)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"volume_id": "00000000-0000-0000-0000-000000000000"}, "there is no volume `0000"),
        ({"size": "2GB"}, "is 1GB, and not 2GB"),
        ({"volume_type": "ssd"}, "and not ssd"),
        ({"zone": "mars"}, "no zone `mars`"),
        ({"tags": {"team": "new"}}, "has a tag `team` of its own"),
    ],
)
def test_what_it_is_not_the_plan_says(stack, region, theirs, inputs, words):
    wanted = of_volume(region=cloud.REGION, volume_id=theirs, **inputs)
    (ahead,) = stack.check({Address("volume", "data-0"): wanted})
    with pytest.raises(PermanentError, match=words) as caught:
        make(stack, "volume", "data-0", wanted)
    assert caught.value.summary == ahead.summary
    assert own(region, theirs)[1] == OWN
