"""The driver `ec2` against moto's EC2 (tests/providers/ec2/server.py), and through a connection that loses
every third request or its answer.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import pytest

from declarative.model.spec.backend import Network
from declarative.model.state import Address, Record
from declarative.provider import PermanentError, PermanentKind
from declarative.retry import call
from providers.cloud.ec2 import Ec2
from providers.cloud.marks import OWNER
from providers.testing import NODE, VOLUME, Conformance, Crowd, Spoilt
from tests.providers.ec2.fleet import FULL, QUICK, Fleet
from tests.providers.ec2.light import Light
from tests.providers.ec2.proxy import LUCK, Line
from tests.providers.ec2.run import REGION, SECRETS, ZONE, RunningEc2, config, provider
from tests.providers.ec2.scripted import Scripted
from tests.support.model import of_attachment, of_node, of_volume

PLACE = {"region": REGION, "zone": ZONE}


@pytest.fixture(scope="module")
def ec2():
    """One server for all tests: each works under a lineage of its own."""
    with RunningEc2() as running:
        yield running


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


class Bare(Ec2):
    """Its nodes are ready when EC2 says so: no host answers."""

    def readiness(self, nodes):
        return {name: seen.readiness for name, seen in self._nodes.readiness(nodes).items()}


class TestEc2(Conformance):
    backend = "aws"
    ranks = False  # nothing is behind moto's instances here: see tests/providers/ssh/test_instances.py
    many = 7
    crowd = 0  # moto takes seconds to list so many: see TestEc2Crowd
    node_inputs = MappingProxyType({**NODE, **PLACE, "backend": "aws", "instance_type": "t3.micro"})
    volume_inputs = MappingProxyType({**VOLUME, **PLACE, "backend": "aws"})
    larger = MappingProxyType({**volume_inputs, "size": "2GB", "tags": {"team": "a"}})

    @pytest.fixture(autouse=True)
    def server(self, ec2):
        self.port = ec2.port

    def make(self, folder, lineage):
        return Bare(config(self.port, folder, lineage))

    @pytest.fixture(autouse=True)
    def line(self, server):
        with Line(self.port) as line:
            self.bad = line
            yield

    def spoiled(self, folder, lineage, how):
        rules = {
            Spoilt.LOST: lambda a: "lost" if a["Action"] in ("RunInstances", "CreateVolume") else None,
            Spoilt.SENSELESS: lambda _: "<html><body>Welcome!</body></html>",
            Spoilt.DENIED: lambda _: "401=AuthFailure",
        }
        if how is Spoilt.NOBODY:
            return Bare(config(1, folder, lineage))
        self.bad.rules[:] = [rules[how]]
        return Bare(config(self.bad.port, folder, lineage))


class TestEc2Crowd(Crowd):
    """1,100 nodes, against a server that is light."""

    backend = "aws"
    node_inputs = TestEc2.node_inputs

    @pytest.fixture(autouse=True)
    def server(self):
        self.light = Light()
        with Scripted(self.light) as server:
            self.port = server.port
            yield

    def make(self, folder, lineage):
        return Bare(config(self.port, folder, lineage))

    def gather(self, place, wanted):
        """As `create` would have written it."""
        account = place.provider._account
        return [
            replace(r, outputs={"id": self.light.add(token, account.tags(mark))})
            for r, token in ((r, place.token(r)) for r in wanted)
            for mark in [account.mark(r.address, token, r.inputs)]
        ]

    def disperse(self, place, made):
        """The server goes with the test."""
        assert self.light.pages


del Conformance, Crowd  # they are no tests themselves


# ------------------------------------------------------------------------------------------- chaos


JOBS = 200 if os.environ.get("FLEETFORM_EXAMPLES") == "many" else 30
SEEDS = (1, 2, 3, 4) if JOBS == 200 else (1,)
WORKERS = 16 if JOBS == 200 else 8
KILLED = JOBS if JOBS == 200 else 8
NEVER = 10**6


def no_room(asked):
    """One zone has none."""
    return "500=InsufficientInstanceCapacity" if asked.get("Placement.AvailabilityZone") == FULL else None


def check_pairs(port, folder, lineage, pairs):
    """By EC2's own listing: `pairs` nodes with a volume each, no duplicates, nothing without an owner."""
    clean = provider(port, folder, lineage)
    region = clean._account.region(REGION)
    instances = [i for i in region.instances({}) if not i.gone]
    assert {i.tags.get(OWNER) for i in instances} == {lineage}
    assert sorted(i.tags["Name"] for i in instances) == sorted(f"gpu-{i}" for i in pairs)
    assert not [i for i in instances if i.zone == FULL]
    every = region.volumes({})
    disks = [v for v in every if v.tags.get(OWNER) == lineage]
    assert {v.tags.get("fleetform:disk-of") for v in every if v not in disks} <= {lineage}
    assert sorted(v.tags["Name"] for v in disks) == sorted(f"data-{i}" for i in pairs)
    names = {i.id: i.tags["Name"] for i in instances}
    on = {v.tags["Name"]: [(names[held.machine], held.attached) for held in v.holders] for v in disks}
    assert on == {f"data-{i}": [(f"gpu-{i}", True)] for i in pairs}
    things = clean.inventory()
    assert len(things) == len({t.address for t in things}) == 3 * len(pairs)
    return things


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_each_is_made_once_whatever_is_lost(tmp_path, seed):
    """Every third request is lost, cut, refused for now, or done without an answer, and one zone is full: as
    many are made as were asked for, each with its tags and its volume.
    """
    lineage = f"chaos-{seed}"
    # A server of its own: moto takes longer for each instance that it ever had.
    with RunningEc2() as ec2, Line(ec2.port, seed=seed) as line:
        line.rules.append(no_room)
        fleet = Fleet(line.port, tmp_path, lineage, QUICK)
        made = fleet.pairs(JOBS, WORKERS)
        spoilt = line.spoilt
        assert spoilt > JOBS
        assert {fault for _, fault in line.seen if fault} >= set(LUCK)
        things = call(fleet.provider.inventory, policy=QUICK)
        assert {t.address: dict(t.outputs) for t in things} == {
            r.address: dict(r.outputs) for records in made for r in records
        }
        check_pairs(ec2.port, tmp_path, lineage, range(JOBS))
        for node, volume, held in made[:5]:
            for record in (held, node, volume):
                call(partial(fleet.provider.delete, record), policy=QUICK)
        check_pairs(ec2.port, tmp_path, lineage, range(5, JOBS))
        print(f"seed {seed}: {sum(line.seen.values())} requests, {spoilt} spoilt")


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_each_is_made_once_whoever_is_killed(tmp_path, seed):
    """The same by a process that is killed five times: each time while a create of its is carried out."""
    lineage = f"killed-{seed}"
    with RunningEc2() as ec2, Line(ec2.port, seed=seed) as line:
        doomed: list[subprocess.Popen] = []
        begun = threading.Event()
        made: set[tuple[str, str]] = set()
        wanted = [0]

        def kill(asked):
            if asked["Action"] not in ("RunInstances", "CreateVolume", "AttachVolume"):
                return None
            made.add((asked["Action"], asked.get("ClientToken") or asked["VolumeId"]))
            if len(made) < wanted[0]:
                return None
            wanted[0] = NEVER
            assert begun.wait(60)
            doomed[-1].kill()
            return "lost"

        line.rules += [no_room, kill]
        argv = [
            sys.executable,
            "-m",
            "tests.providers.ec2.fleet",
            line.port,
            tmp_path,
            lineage,
            KILLED,
            WORKERS,
        ]
        for nth in range(6):
            begun.clear()
            wanted[0] = (nth + 1) * 3 * KILLED // 6 if nth < 5 else NEVER
            with subprocess.Popen(list(map(str, argv))) as process:
                doomed.append(process)
                begun.set()
                try:
                    assert process.wait(600) == (-signal.SIGKILL if nth < 5 else 0)
                finally:
                    process.kill()
        check_pairs(ec2.port, tmp_path, lineage, range(KILLED))
        print(f"seed {seed}: {sum(line.seen.values())} requests, {line.spoilt} spoilt, 5 kills")


# ------------------------------------------------------------------------------------------ tokens


@pytest.fixture
def fleet(ec2, tmp_path, request):
    """A lineage of its own; what it made is gone afterwards."""
    found = Fleet(ec2.port, tmp_path, f"lineage-of-{request.node.name}")
    yield found
    for thing in sorted(found.provider.inventory(), key=lambda t: t.address.kind):
        record = Record(address=thing.address, backend="aws", inputs=thing.inputs, outputs=thing.outputs)
        found.provider.delete(record)


SMALL = {"instance_type": "t3.micro", "fleet": "gpu"}


def test_one_token_is_one_thing_even_asked_otherwise(fleet):
    """Asked for otherwise, what the token stands for is what it made: another one would be one too many."""
    node = fleet.create("node", "gpu-0", ZONE, **SMALL)
    again = fleet.create("node", "gpu-0", ZONE, **SMALL, price=0.01)
    assert again.outputs == node.outputs
    disk = fleet.create("volume", "data-0", ZONE, size="1GB")
    assert fleet.create("volume", "data-0", ZONE, size="2GB").outputs == disk.outputs
    found = {t.address: t.inputs.get("size") for t in fleet.provider.inventory()}
    assert found == {node.address: None, disk.address: "1GB"}


def test_a_token_whose_instance_ended_makes_no_other(fleet):
    """It says so: an apply goes on with the next generation then, and that is another token."""
    fleet.provider.delete(fleet.create("node", "gpu-0", ZONE, **SMALL))
    with pytest.raises(PermanentError, match="IdempotentInstanceTerminated") as caught:
        fleet.create("node", "gpu-0", ZONE, **SMALL)
    assert caught.value.kind is PermanentKind.USED_UP
    assert "apply once more" in str(caught.value.hint)
    assert fleet.provider.inventory() == ()


# -------------------------------------------------------------------------------------------- tags


def test_long_inputs_are_written_over_several_tags(fleet):
    """They come back whole after each change, longer or shorter, and the user's own tags change with them."""
    node = fleet.create("node", "gpu-0", ZONE, **SMALL, tags={"team": "a", "old": "x"}, env={"A": "ü" * 400})
    for env, tags in (({"A": "b" * 2500}, {"team": "b"}), ({}, {"team": "c"}), ({"B": "&<>"}, {})):
        inputs = {**node.inputs, "env": env, "tags": tags}
        assert fleet.provider.update(node, "0" * 32, inputs) == node.outputs
        (thing,) = fleet.provider.inventory()
        assert thing.inputs == inputs
        region = fleet.provider._account.region(REGION)
        have = region.instances_by_id([node.outputs["id"]])[node.outputs["id"]].tags
        assert {k: v for k, v in have.items() if not k.startswith("fleetform:")} == {"Name": "gpu-0", **tags}
    assert sum(k.startswith("fleetform:inputs") for k in have) <= 2


def test_what_cannot_be_written_down_is_refused(fleet):
    """Before anything is made."""
    for inputs, about in (
        ({"env": {"A": "x" * 9000}}, "node/gpu-0"),
        ({"tags": {"fleetform:owner": "me"}}, "tags"),
        ({"tags": {"aws:x": "y"}}, "tags"),
    ):
        with pytest.raises(PermanentError) as caught:
            fleet.create("node", "gpu-0", ZONE, **SMALL, **inputs)
        assert (caught.value.kind, caught.value.about) == (PermanentKind.INVALID, about)
    assert fleet.provider.inventory() == ()


def test_what_cannot_change_in_place_is_refused(fleet):
    node = fleet.create("node", "gpu-0", ZONE, **SMALL)
    disk = fleet.create("volume", "data-0", ZONE, size="2GB")
    for record, change, about in (
        (node, {"instance_type": "t3.small"}, "instance_type"),
        (disk, {"zone": "us-east-1c"}, "zone"),
        (disk, {"size": "1GB"}, "size"),
    ):
        with pytest.raises(PermanentError) as caught:
            fleet.provider.update(record, "0" * 32, {**record.inputs, **change})
        assert (caught.value.kind, caught.value.about) == (PermanentKind.INVALID, about)


def test_a_volume_grows_in_place(fleet):
    """By the word of EC2, which counts whole GiB; and nothing is asked for twice."""
    disk = fleet.create("volume", "data-0", ZONE, size="1GB")
    region = fleet.provider._account.region(REGION)
    for size, wanted in (("1025MB", 2), ("3GB", 3), ("3GB", 3)):
        assert fleet.provider.update(disk, "0" * 32, {**disk.inputs, "size": size}) == disk.outputs
        assert region.volume(disk.outputs["id"]).size == wanted


# -------------------------------------------------------------------------------------- adoption


@pytest.fixture
def theirs(fleet):
    """A volume that somebody made by hand, and the region."""
    region = fleet.provider._account.region(REGION)
    made = region.ask("CreateVolume", AvailabilityZone=ZONE, Size=3, VolumeType="gp2")["volumeId"]
    region.tag(made, {"Name": "theirs", "team": "old"})
    yield made, region
    region.ask("DeleteVolume", VolumeId=made)


def test_a_volume_is_adopted_and_let_go_as_it_was(fleet, theirs):
    """It keeps its name and its tags, and no delete of ours deletes it, whatever is recorded."""
    made, region = theirs
    disk = fleet.create("volume", "data-0", ZONE, volume_id=made, tags={"by": "us"})
    assert disk.outputs == {"id": made, "zone": ZONE}
    assert fleet.create("volume", "data-0", ZONE, volume_id=made, tags={"by": "us"}) == disk
    (thing,) = fleet.provider.inventory()
    assert (thing.address, thing.inputs, thing.actual) == (disk.address, disk.inputs, {})
    assert region.volume(made).tags.items() >= {"Name": "theirs", "team": "old", "by": "us"}.items()
    grown = {**disk.inputs, "size": "4GB"}
    fleet.provider.update(disk, "0" * 32, grown)
    assert region.volume(made).size == 4
    with pytest.raises(PermanentError, match="has a tag `team` of its own"):
        fleet.provider.update(disk, "0" * 32, {**grown, "tags": {"by": "us", "team": "new"}})
    stranger = replace(disk, inputs={k: v for k, v in grown.items() if k != "volume_id"})
    fleet.provider.delete(stranger)
    assert region.volume(made).tags == {"Name": "theirs", "team": "old"}
    assert fleet.provider.inventory() == ()
    fleet.provider.delete(disk)
    fleet.create("volume", "data-1", ZONE, volume_id=made)
    fleet.provider.delete(Record(address=Address("volume", "data-1"), backend="aws", inputs={}))
    assert region.volume(made).tags == {"Name": "theirs", "team": "old"}


@pytest.mark.parametrize(
    ("inputs", "kind", "words", "hint"),
    [
        ({"volume_id": "vol-0123456789abcdef0"}, "not-found", "there is no volume", "region"),
        ({"volume_id": "data"}, "not-found", "there is no volume `data`", "region"),
        ({"size": "4GB"}, "invalid", "`size` of .* is 3GB, and not 4GB", "write `size: 3GB`"),
        ({"zone": "us-east-1c"}, "invalid", "`availability_zone` of .* is us-east-1a", "us-east-1a"),
        ({"zone": None}, "invalid", "its zone is not declared", "availability_zone: us-east-1a"),
        ({"volume_type": "gp3"}, "invalid", "`volume_type` of .* is gp2", "write `volume_type: gp2`"),
        ({"tags": {"team": "new"}}, "invalid", "has a tag `team` of its own", "leave `team` out"),
    ],
    ids=["gone", "no id", "size", "zone", "no zone", "type", "own tag"],
)
def test_what_is_adopted_has_to_be_what_is_declared(fleet, theirs, inputs, kind, words, hint):
    """The plan reports it; otherwise nothing is written on the volume."""
    made, region = theirs
    zone = inputs.get("zone", ZONE)
    more = {key: value for key, value in inputs.items() if key != "zone"}
    place = {"zone": zone} if zone else {}
    wanted = of_volume(**{"region": REGION, "volume_id": made, **place, **more})
    found = fleet.provider.check({Address("volume", "data-0"): wanted})
    assert [hint in str(fault.hint) for fault in found if re.search(words, fault.summary)] == [True]
    with pytest.raises(PermanentError, match=words) as caught:
        fleet.create("volume", "data-0", zone, **{"volume_id": made, **more})
    assert caught.value.kind is PermanentKind(kind)
    assert hint in str(caught.value.hint)
    assert region.volume(made).tags == {"Name": "theirs", "team": "old"}


def test_a_volume_has_one_address(ec2, tmp_path, fleet, theirs):
    """Neither another of this state nor another state takes it."""
    made, _ = theirs
    disk = fleet.create("volume", "data-0", ZONE, volume_id=made)
    other = Fleet(ec2.port, tmp_path, "another lineage")
    wanted = {Address("volume", "data-1"): of_volume(region=REGION, zone=ZONE, volume_id=made)}
    # With a plan, the present holder may have released it by then.
    assert [len(who.provider.check(wanted)) for who in (fleet, other)] == [0, 1]
    for who, whose in (fleet, "this state"), (other, "another state"):
        with pytest.raises(PermanentError, match=f"volume/data-0 of {whose}") as caught:
            who.create("volume", "data-1", ZONE, volume_id=made)
        assert caught.value.kind is PermanentKind.CONFLICT
    fleet.provider.delete(disk)


def test_what_others_have_in_use_is_let_go_all_the_same(fleet, theirs):
    """The attachments of others are not ours to detach."""
    made, region = theirs
    node = fleet.create("node", "gpu-0", ZONE, **SMALL)
    region.ask("AttachVolume", VolumeId=made, InstanceId=node.outputs["id"], Device="/dev/sdf")
    disk = fleet.create("volume", "data-0", ZONE, volume_id=made)
    fleet.provider.delete(disk)
    assert region.volume(made).tags == {"Name": "theirs", "team": "old"}
    region.ask("DetachVolume", VolumeId=made, InstanceId=node.outputs["id"])


def test_sizes_that_a_type_has_not_are_refused(fleet):
    """Before anything is asked for."""
    with pytest.raises(PermanentError, match="type st1 has 125 to 16384 GB, and not 1") as caught:
        fleet.create("volume", "data-0", ZONE, size="1GB", volume_type="st1")
    assert caught.value.about == "size"
    disk = fleet.create("volume", "data-0", ZONE, size="125GB", volume_type="st1")
    region = fleet.provider._account.region(REGION)
    assert (region.volume(disk.outputs["id"]).type, fleet.provider.inventory()[0].actual) == ("st1", {})


def test_nothing_is_deleted_that_does_not_say_whose_it_is(fleet):
    """Somebody took our tags away: it may be another's by now."""
    node = fleet.create("node", "gpu-0", ZONE, **SMALL)
    disk = fleet.create("volume", "data-0", ZONE, size="1GB")
    region = fleet.provider._account.region(REGION)
    for record in (node, disk):
        region.untag(record.outputs["id"], [OWNER])
        with pytest.raises(PermanentError, match="does not carry this state's tags") as caught:
            fleet.provider.delete(record)
        assert caught.value.kind is PermanentKind.CONFLICT
        region.tag(record.outputs["id"], {OWNER: fleet.lineage})
    have = region.instances_by_id([node.outputs["id"]])[node.outputs["id"]].tags
    region.tag(node.outputs["id"], {"fleetform:inputs": "2|{"})
    with pytest.raises(PermanentError, match="somebody changed them"):
        fleet.provider.inventory()
    region.tag(node.outputs["id"], {"fleetform:inputs": have["fleetform:inputs"]})


# --------------------------------------------------------------------------- regions, zones, disks


def test_a_region_that_was_given_up_is_still_looked_at(ec2, tmp_path):
    """What was made there does not count as gone."""
    inputs = of_node(region="us-west-2", zone="us-west-2a", **SMALL)
    both = provider(ec2.port, tmp_path, "movers", regions=(REGION, "us-west-2"))
    address = Address("node", "gpu-0")
    outputs = both.create(address, "1" * 32, inputs, {})
    left = provider(ec2.port, tmp_path, "movers", elsewhere=("us-west-2",))
    assert [t.address for t in left.inventory()] == [address]
    assert left.find(address, "1" * 32).outputs == outputs
    assert {o.region for o in left.offers()} == {REGION}
    left.delete(Record(address=address, backend="aws", inputs=inputs, outputs=outputs))
    assert both.inventory() == ()


@pytest.mark.slow
def test_disks_of_one_node_have_devices_of_their_own(fleet):
    """Though they are attached side by side."""
    node = fleet.create("node", "gpu-0", ZONE, **SMALL)
    disks = [fleet.create("volume", f"data-{i}", ZONE, size="1GB") for i in range(5)]

    def attach(disk):
        name = disk.address.name
        inputs = {**of_attachment("t-0", "gpu-0", name), "path": f"/{name}"}
        return fleet.create("attachment", f"t-0.{name}", None, disk, node, **inputs)

    with ThreadPoolExecutor(5) as pool:
        held = list(pool.map(attach, disks))
    assert len({r.outputs["device"] for r in held}) == 5
    listed = {t.address: t.outputs for t in fleet.provider.inventory()}
    assert {r.address: r.outputs for r in held}.items() <= listed.items()


def test_a_later_attachment_of_the_same_disk_there_is_another_one(fleet):
    """The record of the first does not take the second away."""
    node, disk = (
        fleet.create("node", "gpu-0", ZONE, **SMALL),
        fleet.create("volume", "data-0", ZONE, size="1GB"),
    )
    address = Address("attachment", "t-0.data-0")
    inputs = of_attachment("t-0", "gpu-0", "data-0")
    needs = {node.address: node, disk.address: disk}
    first = fleet.provider.create(address, "1" * 32, inputs, needs)
    with pytest.raises(PermanentError, match=r"held by attachment/t-0\.data-0"):
        fleet.provider.create(address, "2" * 32, inputs, needs)
    old = Record(address=address, backend="aws", inputs=inputs, outputs=first)
    fleet.provider.delete(old)
    second = fleet.provider.create(address, "2" * 32, inputs, needs)
    assert second["id"] != first["id"]
    fleet.provider.delete(old)
    assert fleet.provider.find(address, "2" * 32).outputs == second


# ------------------------------------------------------------------------------------------ people


@pytest.mark.parametrize(
    ("settings", "inputs", "kind", "words", "about"),
    [
        ({"image": {"*": "ami-0gone"}}, {}, "not-found", "has no image ami-0gone", "image"),
        ({"image": {"eu-west-1": "ami-1"}}, {}, "invalid", "no image for us-east-1", "image"),
        ({}, {"instance_type": "t99.huge"}, "not-found", "t99.huge", ZONE),
        ({}, {"zone": "us-east-1z"}, "invalid", "us-east-1z", "us-east-1z"),
        ({}, {"region": ""}, "invalid", "the region is not named", "region"),
        (
            {"network": Network(subnets={"us-east-1c": "subnet-1"})},
            {},
            "invalid",
            "no subnet for us-east-1a",
            "network.subnets",
        ),
    ],
    ids=["image gone", "no image", "type", "zone", "no region", "no subnet"],
)
def test_what_people_get_wrong(ec2, tmp_path, settings, inputs, kind, words, about):
    """Each gets a clear message, and nothing is made."""
    there = provider(ec2.port, tmp_path, "people", **settings)
    asked = of_node(**{"region": REGION, "zone": ZONE, **SMALL, **inputs})
    with pytest.raises(PermanentError, match=words) as caught:
        there.create(Address("node", "gpu-0"), "1" * 32, asked, {})
    assert (caught.value.kind, caught.value.about) == (PermanentKind(kind), about)
    assert provider(ec2.port, tmp_path, "people").inventory() == ()
