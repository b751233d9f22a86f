"""What nodes of EC2 are made from: images found by name, placement groups, reservations, spot, networks, and
their current address. On moto's EC2, and on answers that a test gives.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest

from declarative.model.inputs import inputs_of
from declarative.model.spec.backend import ImageFilter, Network
from declarative.model.state import Address, Record, token
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from declarative.retry import Policy, call
from providers.cloud import account, marks
from providers.cloud.catalog import catalog
from providers.cloud.ec2 import answers
from providers.ssh import gpus
from providers.ssh.key_pairs import make
from tests.providers.ec2.run import REGION, SECRETS, ZONE, RunningEc2, provider
from tests.providers.ec2.scripted import Scripted, answer, instance, refusal, reservations
from tests.providers.ec2.server import AMI
from tests.support.model import of_node

TOKEN = "1" * 32
NODE = Address("node", "gpu-0")
BIG = of_node(region=REGION, zone=ZONE, instance_type="m5.large", placement="cluster")


@pytest.fixture(scope="module")
def ec2():
    """One server for all tests: each works under a lineage of its own."""
    with RunningEc2() as running:
        yield running


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def there(ec2, tmp_path, request):
    """`there(…)`: a provider of a lineage of its own; what it made is gone afterwards."""
    lineage = f"of-{request.node.name}"

    def make_one(**settings):
        return provider(ec2.port, tmp_path, lineage, **settings)

    yield make_one
    clean = make_one()
    for thing in clean.inventory():
        clean.delete(Record(address=thing.address, backend="aws", inputs=thing.inputs, outputs=thing.outputs))


def create(there, i=0, **inputs):
    """The record of a node."""
    record = Record(address=Address("node", f"gpu-{i}"), backend="aws", inputs={**BIG, **inputs})
    made_of = token(there._account.owner, record.address, 1, str(record.inputs["zone"]))
    outputs = there.create(record.address, made_of, record.inputs, {})
    return Record(address=record.address, backend="aws", inputs=record.inputs, outputs=outputs)


def region_of(there, name=REGION):
    return there._account.region(name)


def group_of(there, record):
    """The placement group of a node; None if it is in none."""
    found = region_of(there).ask("DescribeInstances", InstanceId=[record.outputs["id"]])
    return found["reservationSet"][0]["instancesSet"][0]["placement"].get("groupName")


def disks_of(there, record):
    """Size and kind of the disks that a node started from."""
    asked = [{"Name": "attachment.instance-id", "Value": [record.outputs["id"]]}]
    found = region_of(there).ask("DescribeVolumes", Filter=asked)["volumeSet"] or []
    return [(item["size"], item["volumeType"]) for item in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "disk"),
    [
        ({}, ("100", "gp2")),
        ({"disk_size": 200}, ("200", "gp2")),
        ({"disk_size": 100, "disk_type": "gp3"}, ("100", "gp3")),
    ],
    ids=["default", "size", "both"],
)
def test_nodes_start_from_a_disk_as_large_as_asked_for(there, options, disk):
    """The image's own, and no second one beside it."""
    one = there(options=options)
    node = create(one)
    assert disks_of(one, node) == [disk]
    one.delete(node)
    assert disks_of(one, node) == []


# -------------------------------------------------------------------------------------------- images

NOBLE = ImageFilter(name="noble-*")


@pytest.mark.parametrize(
    ("settings", "image"),
    [
        ({"image": {"*": NOBLE}}, "ami-0000000b"),
        ({"image": {"*": AMI, REGION: NOBLE}}, "ami-0000000b"),
        ({"image": {"*": ImageFilter(name="noble-*", owner="999999999999")}}, "ami-0000000d"),
        ({"image": {"*": ImageFilter(name="noble-2025010?")}}, "ami-0000000a"),
        ({"image": {"*": NOBLE, REGION: AMI}}, AMI),
    ],
    ids=["own", "of a region", "another's", "by name", "an id"],
)
def test_the_newest_image_of_its_owner_is_taken(there, settings, image):
    """For the architecture of the backend: there is a newer one for arm64, and one of somebody else's."""
    assert create(there(**settings)).outputs["image"] == image


@pytest.mark.parametrize(
    ("asked", "words", "hint"),
    [
        (ImageFilter(name="oracular-*"), "us-east-1 has no image that fits `oracular-", "owner: ACCOUNT"),
        (ImageFilter(name="noble-*", owner="5"), "no image that fits `noble-.*of 5 for x86_64", "`owner`"),
    ],
)
def test_an_image_that_is_not_there_is_said_and_nothing_is_made(there, asked, words, hint):
    with pytest.raises(PermanentError, match=words) as caught:
        create(there(image={"*": asked}))
    assert (caught.value.kind, caught.value.about) == (PermanentKind.NOT_FOUND, "image")
    assert hint in str(caught.value.hint)
    assert there().inventory() == ()
    assert region_of(there()).ask("DescribePlacementGroups")["placementGroupSet"] is None


def images(*found):
    """An answer with images: name, day, and the day when they are deprecated."""
    items = "".join(
        f"<item><imageId>{made}</imageId><creationDate>{day}</creationDate>"
        + (f"<deprecationTime>{until}</deprecationTime>" if until else "")
        + "</item>"
        for made, day, until in found
    )
    return f"<imagesSet>{items}</imagesSet>"


OLD, NEW, LATER = "2025-01-01T00:00:00.000Z", "2025-06-01T00:00:00.000Z", "2090-01-01T00:00:00.000Z"


def test_images_of_all_pages_count_and_deprecated_ones_do_not(tmp_path):
    """EC2 lists the account's own though they are deprecated. What is looked for is looked for once."""
    pages = [
        images(("ami-1", OLD, LATER), ("ami-2", NEW, OLD)) + "<nextToken>more</nextToken>",
        images(("ami-3", OLD.replace("01-01", "02-01"), "")),
    ]
    with Scripted(lambda asked: answer("DescribeImages", pages["NextToken" in asked])) as server:
        config = provider(server.port, tmp_path, image={"*": NOBLE})._account
        assert [config.image(REGION) for _ in range(3)] == ["ami-3"] * 3
        assert len(server.asked) == 2
        first = server.asked[0]
        assert first["Owner.1"] == "self"
        asked = {first[f"Filter.{i}.Name"]: first[f"Filter.{i}.Value.1"] for i in (1, 2, 3)}
        assert asked == {"name": "noble-*", "state": "available", "architecture": "x86_64"}


def test_only_deprecated_images_are_none(tmp_path):
    with (
        Scripted(lambda _: answer("DescribeImages", images(("ami-2", NEW, OLD)))) as server,
        pytest.raises(PermanentError, match=r"only deprecated images that fit .*ami-2") as caught,
    ):
        provider(server.port, tmp_path, image={"*": NOBLE})._account.image(REGION)
    assert caught.value.about == "image"


def test_a_newer_image_makes_no_second_node(there):
    """The answer to the first create is lost and a newer image comes: the node is the first one's."""
    first = create(there(image={"*": ImageFilter(name="noble-20250101")}))
    again = create(there(image={"*": NOBLE}))
    assert again.outputs == first.outputs
    assert len(there().inventory()) == 1


# ---------------------------------------------------------------------------------- placement groups


def groups(there):
    found = region_of(there).ask("DescribePlacementGroups")["placementGroupSet"] or []
    return sorted(group["groupName"] for group in found if there._account.owner in group["groupName"])


def test_a_cluster_is_in_a_placement_group_that_goes_with_its_last_node(there):
    """There is one for each fleet and zone, with its owner, and later commands find it again."""
    one, owner = there(), there()._account.owner
    nodes = [create(one, 0), create(there(), 1), create(one, 2, zone="us-east-1b")]
    names = [f"fleetform-{owner}-gpu-us-east-1{zone}" for zone in "ab"]
    assert [group_of(one, node) for node in nodes] == [names[0], names[0], names[1]]
    assert groups(one) == names
    one.delete(nodes[0])
    assert groups(one) == names
    there().delete(nodes[1])
    assert groups(one) == names[1:]
    one.delete(nodes[2])
    assert groups(one) == []
    # A command that still believes that it exists gets a fault, and tries again.
    assert call(lambda: create(one, 3), policy=Policy(first=0.01))
    assert groups(one) == names[:1]


@pytest.mark.parametrize(
    ("settings", "inputs"),
    [
        ({}, {"placement": "any"}),
        ({}, {"instance_type": "t3.micro"}),
        ({"options": {"timeout": 30, "placement_group": "off"}}, {}),
    ],
    ids=["no cluster", "no such type", "switched off"],
)
def test_who_has_no_placement_group(there, settings, inputs):
    one = there(**settings)
    assert group_of(one, create(one, **inputs)) is None
    assert groups(one) == []


def test_a_placement_group_of_ones_own_is_used_and_left(there):
    one = there(options={"timeout": 30, "placement_group": "mine"})
    region_of(one).ask("CreatePlacementGroup", GroupName="mine", Strategy="cluster")
    node = create(one)
    assert group_of(one, node) == "mine"
    one.delete(node)
    region_of(one).ask("DeletePlacementGroup", GroupName="mine")


def test_another_s_placement_group_is_not_used(there):
    one = there()
    name = f"fleetform-{one._account.owner}-gpu-{ZONE}"
    region_of(one).ask("CreatePlacementGroup", GroupName=name, Strategy="cluster")
    with pytest.raises(PermanentError, match="has another owner") as caught:
        create(one)
    assert caught.value.kind is PermanentKind.CONFLICT
    assert groups(one) == [name]
    region_of(one).ask("DeletePlacementGroup", GroupName=name)


def test_no_group_is_left_where_no_node_was_made(there):
    """EC2 does not take the zone: what was made for the node is gone again, the key pair as well."""
    one = there()
    with pytest.raises(PermanentError, match="us-east-1z"):
        create(one, zone="us-east-1z")
    assert groups(one) == []
    pairs = region_of(one).ask("DescribeKeyPairs")["keySet"] or []
    assert one._account.owner not in str(pairs)


def test_what_goes_with_the_last_node_goes_though_it_ended_by_itself(there):
    """Somebody terminated it, or EC2 took it back: its delete has nothing to end, and clears up."""
    one = there()
    node = create(one)
    region_of(one).ask("TerminateInstances", InstanceId=[node.outputs["id"]])
    one.delete(node)
    assert groups(one) == []
    pairs = region_of(one).ask("DescribeKeyPairs")["keySet"] or []
    assert one._account.owner not in str(pairs)


def test_what_a_create_that_was_cut_short_left_is_cleared(there):
    """The controller ended before it asked for the instance. What other nodes need stays."""
    one = there()
    one._account.at(REGION).site.groups.ensure(inputs_of("node", BIG))
    one._keys.ensure(region_of(one))
    one.clear(NODE, TOKEN, BIG)
    assert groups(one) == []
    pairs = region_of(one).ask("DescribeKeyPairs")["keySet"] or []
    assert one._account.owner not in str(pairs)
    create(one, 1)
    there().clear(NODE, TOKEN, BIG)
    assert len(groups(one)) == 1
    pairs = region_of(one).ask("DescribeKeyPairs")["keySet"] or []
    assert one._account.owner in str(pairs)


OURS = marks.written(marks.Mark(owner="ours", address=NODE, token=TOKEN, inputs=BIG))
GROUP = f"fleetform-ours-gpu-{ZONE}"
MINE = (
    f"<placementGroupSet><item><groupName>{GROUP}</groupName><tagSet><item><key>fleetform:owner</key>"
    "<value>ours</value></item></tagSet></item></placementGroupSet>"
)
SAID = {
    "DescribeKeyPairs": answer("DescribeKeyPairs", "<keySet/>"),
    "DescribePlacementGroups": answer("DescribePlacementGroups", MINE),
    "DescribeInstances": answer("DescribeInstances", reservations()),
}


def scripted(asked, left):
    """The next of the answers to an action; the last one for ever."""
    mine = left.get(asked["Action"])
    if mine is SAID["DescribeInstances"] and "InstanceId.1" in asked:
        return refusal("InvalidInstanceID.NotFound")
    if isinstance(mine, list):
        return mine.pop(0) if len(mine) > 1 else mine[0]
    return mine or answer(asked["Action"], "<return>true</return>")


def test_a_group_whose_nodes_are_on_their_way_out_is_waited_for(tmp_path):
    """The delete is tried again; it is done when the group is gone, by this one or by another."""
    left = {
        **SAID,
        "DeletePlacementGroup": [
            refusal("InvalidPlacementGroup.InUse"),
            refusal("InvalidPlacementGroup.Unknown"),
        ],
    }
    gone = Record(address=NODE, backend="aws", inputs=BIG, outputs={"id": "i-00000001"})
    with Scripted(lambda asked: scripted(asked, left)) as server:
        one = provider(server.port, tmp_path, "ours")
        with pytest.raises(TransientError, match="in use until its last nodes have ended") as caught:
            one.delete(gone)
        assert caught.value.kind is TransientKind.BUSY
        one.delete(gone)


def test_a_group_goes_with_the_last_of_many(tmp_path):
    """Not with each: that would be a look for every node. And a fleet's own group is looked at alone."""
    together = threading.Barrier(6)

    def end(_):
        together.wait(60)
        return answer("TerminateInstances", "<return>true</return>")

    nodes = [
        Record(
            address=Address("node", f"gpu-{i}"), backend="aws", inputs=BIG, outputs={"id": f"i-0000000{i}"}
        )
        for i in range(6)
    ]
    items = [instance(f"i-0000000{i}", OURS) for i in range(6)]

    def seen(asked):
        asked_for = [v for k, v in asked.items() if k.startswith("Filter.1.Value")]
        mine = [item for item in items if any(f"<instanceId>{made}<" in item for made in asked_for)]
        return answer("DescribeInstances", reservations(*mine))

    said = {**SAID, "TerminateInstances": end, "DescribeInstances": seen}

    def say(asked):
        found = scripted(asked, said)
        return found(asked) if callable(found) else found

    with Scripted(say) as server:
        one = provider(server.port, tmp_path, "ours")
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(one.delete, nodes))
        assert [a["Action"] for a in server.asked].count("DeletePlacementGroup") == 1
        looks = [a for a in server.asked if a.get("Filter.1.Name") == "placement-group-name"]
        assert [(a["Filter.1.Value.1"], a["MaxResults"]) for a in looks] == [(GROUP, "5")]


def test_who_is_the_last_to_go_while_another_looks_is_seen(tmp_path):
    """The first one finds the second one's node there, and the second one finds none: the group goes."""
    looking, ending, done = threading.Event(), threading.Event(), threading.Event()
    nodes = [
        Record(
            address=Address("node", f"gpu-{i}"), backend="aws", inputs=BIG, outputs={"id": f"i-0000000{i}"}
        )
        for i in range(2)
    ]
    items = [instance(f"i-0000000{i}", OURS) for i in range(2)]
    looks = []

    def say(asked):
        if asked["Action"] == "TerminateInstances" and asked["InstanceId.1"] == "i-00000001":
            ending.set()
            assert done.wait(60)
        if asked["Action"] != "DescribeInstances":
            return scripted(asked, SAID)
        if asked["Filter.1.Name"] == "instance-id":
            return answer("DescribeInstances", reservations(items[int(asked["Filter.1.Value.1"][-1])]))
        if asked["Filter.1.Name"] != "placement-group-name":
            return SAID["DescribeInstances"]
        looks.append(asked)
        if len(looks) > 1:
            return SAID["DescribeInstances"]
        looking.set()
        assert ending.wait(60)
        return answer("DescribeInstances", reservations(items[1]))

    with Scripted(say) as server, ThreadPoolExecutor(2) as pool:
        one = provider(server.port, tmp_path, "ours")
        first = pool.submit(one.delete, nodes[0])
        assert looking.wait(60)
        second = pool.submit(one.delete, nodes[1])
        first.result(60)
        done.set()
        second.result(60)
        assert [a["Action"] for a in server.asked].count("DeletePlacementGroup") == 1


def test_what_could_not_be_cleared_away_is_tried_again(tmp_path):
    """The node has ended, and an answer about its key pair was lost: in the end it is gone."""
    pair = "<keySet><item><keyName>fleetform-ours</keyName><tagSet><item><key>fleetform:owner</key>"
    pair += "<value>ours</value></item></tagSet></item></keySet>"
    said = {**SAID, "DescribeKeyPairs": [(502, "upstream"), answer("DescribeKeyPairs", pair)]}
    gone = Record(address=NODE, backend="aws", inputs=BIG, outputs={"id": "i-00000001"})
    with Scripted(lambda asked: scripted(asked, said)) as server:
        one = provider(server.port, tmp_path, "ours")
        with pytest.raises(TransientError):
            one.delete(gone)
        one.delete(gone)
        assert "DeleteKeyPair" in {a["Action"] for a in server.asked}


def test_a_group_that_was_taken_away_meanwhile_is_made_again(tmp_path):
    """Whoever deleted the last node deleted it just now."""
    run = answer("RunInstances", f"<instancesSet>{instance('i-00000001', OURS)}</instancesSet>")
    left = {
        **SAID,
        "RunInstances": [refusal("InvalidPlacementGroup.Unknown"), run],
        "DescribeInstances": answer("DescribeInstances", reservations(instance("i-00000001", OURS))),
    }
    with Scripted(lambda asked: scripted(asked, left)) as server:
        one = provider(server.port, tmp_path, "ours")
        with pytest.raises(TransientError) as caught:
            one.create(NODE, TOKEN, BIG, {})
        assert caught.value.kind is TransientKind.BUSY
        assert one.create(NODE, TOKEN, BIG, {})["id"] == "i-00000001"
        made = [a for a in server.asked if a["Action"] == "CreatePlacementGroup"]
        assert [a["GroupName"] for a in made] == [GROUP] * 2
        runs = [a for a in server.asked if a["Action"] == "RunInstances"]
        assert runs[0] == runs[1]
        assert runs[0]["Placement.GroupName"] == GROUP


def test_a_group_whose_answer_was_lost_is_found(tmp_path):
    """It is there, and ours."""
    run = answer("RunInstances", f"<instancesSet>{instance('i-00000001', OURS)}</instancesSet>")
    left = {
        **SAID,
        "CreatePlacementGroup": refusal("InvalidPlacementGroup.Duplicate"),
        "RunInstances": run,
        "DescribeInstances": answer("DescribeInstances", reservations(instance("i-00000001", OURS))),
    }
    with Scripted(lambda asked: scripted(asked, left)) as server:
        assert provider(server.port, tmp_path, "ours").create(NODE, TOKEN, BIG, {})


def test_a_group_goes_with_an_instance_that_never_ran(tmp_path):
    """EC2 reported the lack of capacity after the group had been made."""
    ended = instance("i-00000001", OURS, "terminated", "Server.InsufficientInstanceCapacity")
    none = answer("DescribeInstances", reservations())
    said = {
        **SAID,
        "RunInstances": answer(
            "RunInstances", f"<instancesSet>{instance('i-00000001', OURS, 'pending')}</instancesSet>"
        ),
    }

    def say(asked):
        if asked["Action"] == "DescribeInstances":
            mine = asked["Filter.1.Name"] == "instance-id"
            return answer("DescribeInstances", reservations(ended)) if mine else none
        return scripted(asked, said)

    with Scripted(say) as server:
        with pytest.raises(PermanentError) as caught:
            provider(server.port, tmp_path, "ours").create(NODE, TOKEN, BIG, {})
        assert caught.value.kind is PermanentKind.NO_CAPACITY
        assert [a["GroupName"] for a in server.asked if a["Action"] == "DeletePlacementGroup"] == [GROUP]


def test_the_catalog_says_which_types_have_no_placement_group():
    types = catalog("ec2").types
    alone = {name.partition(".")[0] for name, kind in types.items() if not kind.clusters}
    assert {"t2", "t3", "t4g"} <= alone
    assert all(types[name].clusters for name in ("p5.48xlarge", "p4d.24xlarge", "g6.xlarge", "m5.large"))


# -------------------------------------------------------------------------------------- reservations


def test_a_node_takes_what_is_reserved(there):
    """The server refuses an instance in a reservation that it does not match."""
    one = there()
    node = create(one, zone="us-east-1b", reservation="cr-0000000a")
    assert group_of(one, node).endswith("us-east-1b")
    block = create(one, 1, instance_type="p5.48xlarge", reservation="cr-0000000b")
    # Capacity blocks are close together by themselves.
    assert group_of(one, block) is None


@pytest.mark.parametrize(
    ("inputs", "kind", "words"),
    [
        (
            {"reservation": "cr-0000000a"},
            "no-capacity",
            "for m5.large in us-east-1b, not for m5.large in us-east-1a",
        ),
        ({"reservation": "cr-0000000a", "instance_type": "m5.xlarge"}, "no-capacity", "not for m5.xlarge"),
        ({"reservation": "cr-0000000c"}, "no-capacity", "is expired"),
        ({"reservation": "cr-0000000f"}, "not-found", "us-east-1 has no capacity reservation cr-0000000f"),
        ({"reservation": "h100"}, "invalid", "`h100` is no capacity reservation of EC2"),
    ],
)
def test_a_reservation_that_is_not_for_the_node_is_said(there, inputs, kind, words):
    """Before anything is made. Another zone or type may be the one, as with any capacity."""
    one = there()
    with pytest.raises(PermanentError, match=words) as caught:
        create(one, **inputs)
    assert caught.value.kind is PermanentKind(kind)
    assert one.inventory() == ()
    assert groups(one) == []


def run_request(folder, inputs, **settings):
    """What EC2 is asked to make one node."""
    run = answer("RunInstances", f"<instancesSet>{instance('i-00000001', OURS)}</instancesSet>")
    left = {
        **SAID,
        "RunInstances": run,
        "DescribeInstances": answer("DescribeInstances", reservations(instance("i-00000001", OURS))),
    }
    with Scripted(lambda asked: scripted(asked, left)) as server:
        provider(server.port, folder, "ours", **settings).create(NODE, TOKEN, {**BIG, **inputs}, {})
        return next(a for a in server.asked if a["Action"] == "RunInstances")


def test_a_group_of_reservations_is_named_by_its_arn(tmp_path):
    arn = "arn:aws:resource-groups:us-east-1:123456789012:group/gpus"
    run = run_request(tmp_path, {"reservation": arn})
    target = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservation"
    assert {k: v for k, v in run.items() if k.startswith("Capacity")} == {f"{target}ResourceGroupArn": arn}
    assert "InstanceMarketOptions.MarketType" not in run


ARN = "arn:aws:iam::123456789012:instance-profile/ml-nodes"


@pytest.mark.parametrize(("identity", "key"), [(None, None), ("ml-nodes", "Name"), (ARN, "Arn")])
def test_a_node_has_the_instance_profile_of_its_fleet(tmp_path, identity, key):
    run = run_request(tmp_path, {"identity": identity} if identity else {})
    asked = {k: v for k, v in run.items() if k.startswith("IamInstanceProfile")}
    assert asked == ({f"IamInstanceProfile.{key}": identity} if identity else {})


OTHER = "arn:aws:iam::123456789012:instance-profile/team/not-ml-nodes"


@pytest.mark.parametrize("identity", ["ml-nodes", ARN])
@pytest.mark.parametrize(("has", "now"), [(ARN, "as it was"), (OTHER, OTHER), (None, None)])
def test_an_instance_profile_that_others_changed_is_drift(there, monkeypatch, identity, has, now):
    one = there()
    have = create(one)
    have = replace(have, inputs={**have.inputs, "identity": identity})
    read = answers.instance

    def shown(action, found, *more):
        return read(action, {**found, "iamInstanceProfile": has and {"arn": has, "id": "AIPA1"}}, *more)

    monkeypatch.setattr(answers, "instance", shown)
    assert one.recall([have])[have.address].actual.get("identity", "as it was") == now


# ---------------------------------------------------------------------------------------------- spot


@pytest.mark.parametrize(("cap", "shown"), [(None, None), (2, "2"), (0.1, "0.1"), (0.00001, "0.00001")])
def test_a_spot_node_is_asked_for_once_and_up_to_a_price(tmp_path, cap, shown):
    """USD an hour of one instance. It ends when EC2 takes it back: nothing stops and starts again."""
    market = "InstanceMarketOptions."
    run = run_request(tmp_path, {"spot": True, **({} if cap is None else {"max_price": cap})})
    asked = {k.removeprefix(market): v for k, v in run.items() if k.startswith(market)}
    assert asked.pop("SpotOptions.MaxPrice", None) == shown
    assert asked == {
        "MarketType": "spot",
        "SpotOptions.SpotInstanceType": "one-time",
        "SpotOptions.InstanceInterruptionBehavior": "terminate",
    }
    plain = run_request(tmp_path, {})
    assert not [k for k in plain if k.startswith(market)]


# ------------------------------------------------------------------------------------------- network


def net(there, cidr="10.5.0.0/16"):
    """A VPC with a subnet in the zone, and a security group of its own."""
    region = region_of(there)
    vpc = region.ask("CreateVpc", CidrBlock=cidr)["vpc"]["vpcId"]
    block = cidr.replace("/16", "/24")
    subnet = region.ask("CreateSubnet", VpcId=vpc, CidrBlock=block, AvailabilityZone=ZONE)
    group = region.ask("CreateSecurityGroup", GroupName="g", GroupDescription="g", VpcId=vpc)
    return subnet["subnet"]["subnetId"], group["groupId"]


def test_nodes_are_where_the_network_says(there):
    """A subnet alone, a group alone, both; and nothing at all: the default network (all other tests)."""
    subnet, group = net(there())
    region = region_of(there())
    found = region.ask("DescribeSecurityGroups", Filter=[{"Name": "group-name", "Value": ["default"]}])
    subnets = region.ask("DescribeSubnets", Filter=[{"Name": "default-for-az", "Value": ["true"]}])
    vpc = subnets["subnetSet"][0]["vpcId"]
    default = next(g["groupId"] for g in found["securityGroupInfo"] if g["vpcId"] == vpc)
    for i, network in enumerate(
        (
            Network(subnets={ZONE: subnet}),
            Network(security_groups=(default,)),
            Network(subnets={ZONE: subnet}, security_groups=(group,)),
        )
    ):
        made = create(there(network=network), i).outputs["id"]
        (seen,) = region.ask("DescribeInstances", InstanceId=[made])["reservationSet"][0]["instancesSet"]
        assert (seen["subnetId"] == subnet) == bool(network.subnets)
        if network.security_groups:
            assert {g["groupId"] for g in seen["groupSet"]} == set(network.security_groups)


@pytest.mark.parametrize(
    ("what", "about", "words"),
    [
        ("no subnet", "network.subnets", "no subnet subnet-0bad.*for us-east-1a"),
        ("its zone", "network.subnets", "is in us-east-1a, and `network.subnets` names it for us-east-1b"),
        ("no zone", "network.subnets", "names no subnet for us-east-1a"),
        ("no group", "network.security_groups", "us-east-1 has no security group sg-0bad"),
        ("two nets", "network.security_groups", "is in the VPC vpc-.*, and subnet-.* in vpc-"),
    ],
)
def test_a_network_that_is_not_so_is_said(there, what, about, words):
    """And nothing is made."""
    subnet, _ = net(there())
    zone = ZONE
    network = Network(subnets={ZONE: subnet})
    if what == "no subnet":
        network = Network(subnets={ZONE: "subnet-0bad"})
    elif what == "its zone":
        network, zone = Network(subnets={"us-east-1b": subnet}), "us-east-1b"
    elif what == "no zone":
        network = Network(subnets={"us-east-1b": subnet})
    elif what == "no group":
        network = Network(security_groups=("sg-0bad",))
    else:
        network = Network(subnets={ZONE: subnet}, security_groups=(net(there(), "10.6.0.0/16")[1],))
    one = there(network=network)
    with pytest.raises(PermanentError, match=words) as caught:
        create(one, zone=zone)
    assert caught.value.about == about
    assert one.inventory() == ()
    assert groups(one) == []


def test_groups_of_two_regions_stand_side_by_side(there):
    """Each is one region's. A region that has none of them is refused."""
    _, group = net(there())
    regions = (REGION, "us-west-2")
    one = there(regions=regions, network=Network(security_groups=(group, "sg-0000beef")))
    assert create(one)
    with pytest.raises(PermanentError, match="us-west-2 has no security group"):
        create(one, 1, region="us-west-2", zone="us-west-2a")


# ----------------------------------------------------------------------------------------- addresses


def test_a_node_is_reached_at_the_public_address_that_it_has_now(tmp_path, monkeypatch):
    """Stopped and started it has another one: the recorded one is a stranger's by now."""
    monkeypatch.setattr(account, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: None))
    make(tmp_path / ".fleetform" / "keys" / "ours")
    now = ["192.0.2.7"]

    def say(asked):
        if asked["Action"] == "DescribeInstances":
            item = instance("i-00000001", OURS).replace(
                "<tagSet>", f"<ipAddress>{now[0]}</ipAddress><tagSet>"
            )
            return answer("DescribeInstances", reservations(item))
        if not now[0]:
            return refusal("UnauthorizedOperation", status=403)
        return answer(asked["Action"], "<instanceStatusSet/>")

    made = {"id": "i-00000001", "address": "10.0.0.9", "host_key": "ssh-ed25519 AAAA"}
    node = Record(address=NODE, backend="aws", inputs=BIG, outputs={**made, "public_address": "192.0.2.1"})
    with Scripted(say) as server:

        def way(there):
            return there._hosts.host(node).inputs["host"]["hostname"]

        one = provider(server.port, tmp_path, "ours")
        assert way(one) == "192.0.2.7"
        asked = len(server.asked)
        assert way(one) == "192.0.2.7"
        assert len(server.asked) == asked
        now[0] = "192.0.2.8"
        one.readiness([node])
        assert way(one) == "192.0.2.8"
    assert way(provider(server.port, tmp_path, "ours")) == "192.0.2.1"  # there is no way to ask


def test_gpus_of_the_catalog_have_the_memory_that_hosts_with_them_show():
    """A host's reading counts as the size that is sold; a type with another one would fit other requests."""
    sizes = {(kind.name, kind.shape.gpu_memory_mib) for kind in catalog("ec2").types.values()}
    assert [(name, mib) for name, mib in sizes if mib and gpus.memory(mib) != mib] == []
