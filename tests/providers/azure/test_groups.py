"""Proximity placement groups and capacity reservation groups of Azure, on the tests' small Azure; some with
the installed command.
"""

import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType

import pytest

from declarative.model.state import Address, Record, token
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from declarative.retry import Policy, call
from providers.cloud import account
from providers.cloud.azure import Azure
from tests.providers.azure import server as fake
from tests.providers.cloud.web import LOST, Asked, Web, losing
from tests.support.cli import ended, fleet

ZONES = (f"{fake.REGION}-1", f"{fake.REGION}-2")
TYPE = "Standard_D2s_v3"
NODES = MappingProxyType(
    {
        "backend": "az",
        "region": fake.REGION,
        "zone": ZONES[0],
        "fleet": "gpu",
        "blocks": 1,
        "placement": "cluster",
        "instance_type": TYPE,
        "resources": {"cpu": 2, "memory_mib": 8192},
    }
)
PATIENT = Policy(first=0.01, longest=0.05)
NEAR = "proximityPlacementGroup"


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    monkeypatch.setattr(account, "FIRST_PAUSE", 0.01)


@pytest.fixture
def cloud():
    return fake.Azure()


@pytest.fixture
def web(cloud, monkeypatch):
    for name, value in fake.SECRETS.items():
        monkeypatch.setenv(name, value)
    with Web(cloud) as running:
        yield running


@pytest.fixture
def there(web, tmp_path):
    """A provider, each time another: with its options."""

    def make(**options):
        made = fake.config(web.url, tmp_path)
        return Azure(replace(made, options={**made.options, **options}))

    return make


def node(index=0, **more):
    return Record(address=Address("node", f"gpu-{index}"), backend="az", inputs={**NODES, **more})


def create(provider, record):
    key = token("lineage-1", record.address, record.generation, record.inputs["zone"])
    return replace(record, outputs=provider.create(record.address, key, record.inputs, {}))


def last(web):
    """The last machine that was asked for."""
    return [a.body for a in web.asked if a.method == "PUT" and "/virtualMachines/" in a.path][-1]


ELSEWHERE = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ManagedIdentity/userAssignedIdentities/ml"


@pytest.mark.parametrize("given", ["ml", ELSEWHERE])
def test_a_node_has_the_managed_identity_of_its_fleet(web, there, given):
    """By its name in the backend's resource group, or by its id."""
    one = there()
    create(one, node(identity=given))
    kind = "Microsoft.ManagedIdentity/userAssignedIdentities"
    full = f"{fake.BELOW}/resourceGroups/fleet-group/providers/{kind}/ml" if given == "ml" else given
    assert last(web)["identity"] == {"type": "UserAssigned", "userAssignedIdentities": {full: {}}}
    plain = create(one, node(1))
    assert "identity" not in last(web)
    key = token("lineage-1", plain.address, plain.generation, plain.inputs["zone"])
    with pytest.raises(PermanentError, match="`identity` cannot be changed in place"):
        one.update(plain, key, {**plain.inputs, "identity": given})


@pytest.mark.parametrize("given", ["ml", ELSEWHERE])
def test_an_identity_that_others_took_away_is_drift(there, cloud, given):
    """What else a machine was given, as policies of Azure do, is none."""
    one = there()
    have = create(one, node(identity=given))
    (machine,) = (t for key, t in cloud.things.items() if "virtualmachines/" in key)
    (full,) = machine["identity"]["userAssignedIdentities"]
    machine["identity"] = {"userAssignedIdentities": {full.upper(): {}, "/subscriptions/s/monitor": {}}}
    assert "identity" not in one.recall([have])[have.address].actual
    machine["identity"] = {"userAssignedIdentities": {"/subscriptions/s/monitor": {}}}
    assert one.recall([have])[have.address].actual["identity"] == "/subscriptions/s/monitor"
    del machine["identity"]
    assert one.recall([have])[have.address].actual["identity"] is None


def group(body):
    """The name of the group that a machine is made in; None if it is in none."""
    found = body["properties"].get(NEAR)
    return found["id"].rpartition("/")[2] if found else None


def groups(cloud):
    return sorted(key.split("/")[2] for key in cloud.things if key.split("/")[1] == NEAR.lower() + "s")


def machines(cloud):
    return [t for key, t in sorted(cloud.things.items()) if key.split("/")[1] == "virtualmachines"]


# --------------------------------------------------------------------------------------- the group


def test_a_cluster_is_in_a_group_that_goes_with_its_last_node(web, cloud, there):
    """There is one for each fleet and zone, and later commands find it again."""
    one = there()
    nodes = [create(one, node(0))]
    first = group(last(web))
    assert last(web)["properties"][NEAR]["id"] == (
        f"{fake.BELOW}/resourceGroups/fleet-group/providers/Microsoft.Compute/proximityPlacementGroups/{first}"
    )
    (asked,) = [a for a in web.asked if a.method == "PUT" and f"/{NEAR}s/" in a.path]
    assert asked.body["properties"] == {"proximityPlacementGroupType": "Standard"}
    assert (asked.body["location"], asked.body["tags"]["fleetform:owner"]) == (fake.REGION, "lineage-1")
    nodes.append(create(there(), node(1)))
    assert group(last(web)) == first
    nodes.append(create(one, node(2, zone=ZONES[1])))
    second = group(last(web))
    assert groups(cloud) == sorted((first, second))
    one.delete(nodes[0])
    assert groups(cloud) == sorted((first, second))
    there().delete(nodes[1])
    assert groups(cloud) == [second]
    one.delete(nodes[2])
    assert cloud.things == {}
    # A command that still believes that it exists gets a fault, and tries again.
    call(lambda: create(one, node(3)), policy=PATIENT)
    assert groups(cloud) == [first]


def test_a_region_without_zones_has_groups(web, cloud, there):
    one = there()
    made = create(one, node(zone=None))
    assert groups(cloud) == [group(last(web))]
    one.delete(made)
    assert cloud.things == {}


@pytest.mark.parametrize(
    ("options", "inputs"), [({}, {"placement": "any"}), ({"placement_group": "off"}, {})]
)
def test_who_is_in_no_group(web, cloud, there, options, inputs):
    one = there(**options)
    made = create(one, node(**inputs))
    assert group(last(web)) is None
    assert groups(cloud) == []
    one.delete(made)


WHOLE = f"{fake.BELOW}/resourceGroups/FLEET-group/providers/Microsoft.Compute/proximityPlacementGroups/Mine"


@pytest.mark.parametrize("given", ["Mine", WHOLE])
def test_a_group_of_ones_own_is_used_and_left(web, cloud, there, given):
    key = f"microsoft.compute/{NEAR.lower()}s/mine"
    cloud.things[key] = {"name": "mine", "tags": {}, "properties": {"provisioningState": "Succeeded"}}
    one = there(placement_group=given)
    assert one.check({node().address: dict(NODES)}) == []
    made = create(one, node())
    assert group(last(web)) == "mine"
    one.delete(made)
    assert groups(cloud) == ["mine"]
    assert not [a for a in web.asked if a.method != "GET" and f"/{NEAR}s/" in a.path]


def test_a_group_that_is_named_has_to_be_there(there):
    wanted = {node().address: dict(NODES)}
    (fault,) = there(placement_group="mine").check(wanted)
    assert str(fault) == "there is no proximity placement group `mine` in eastus"
    for given in ("a/b", "/subscriptions/x", WHOLE.replace("9999", "8888")):
        with pytest.raises(PermanentError, match="is no proximity placement group of Azure"):
            there(placement_group=given).check(wanted)


def test_anothers_group_is_neither_used_nor_deleted(web, cloud, there):
    """It has the name that ours would have."""
    one = there()
    made = create(one, node(0))
    name = group(last(web))
    cloud.things[f"microsoft.compute/{NEAR.lower()}s/{name}"]["tags"] = {"fleetform:owner": "somebody"}
    with pytest.raises(PermanentError, match="has another owner") as caught:
        create(there(), node(1))
    assert caught.value.kind is PermanentKind.CONFLICT
    one.delete(made)
    assert groups(cloud) == [name]


def test_a_group_whose_answer_was_lost_is_found(web, cloud, there):
    lost: list[Asked] = []

    def lose(asked):
        found = cloud(asked)
        if asked.method == "PUT" and f"/{NEAR}s/" in asked.path and not lost:
            lost.append(asked)
            return LOST
        return found

    web.answer = lose
    one = there()
    with pytest.raises(TransientError):
        create(one, node())
    create(one, node())
    assert groups(cloud) == [group(last(web))]
    assert len([a for a in web.asked if a.method == "PUT" and f"/{NEAR}s/" in a.path]) == 1


def test_lost_answers_make_one_group_and_leave_none(web, cloud, there):
    web.answer = losing(cloud, 1)
    one = there()
    with ThreadPoolExecutor(4) as pool:
        nodes = list(pool.map(lambda i: call(lambda: create(one, node(i)), policy=PATIENT), range(6)))
        assert {group(m) for m in machines(cloud)} == {*groups(cloud)}
        assert len(groups(cloud)) == 1
        list(pool.map(lambda record: call(lambda: one.delete(record), policy=PATIENT), nodes))
    assert cloud.things == {}


@pytest.mark.parametrize("how", ["", "later:"])
@pytest.mark.parametrize(
    "code", ["AllocationFailed", "OverconstrainedAllocationRequest", "OverconstrainedZonalAllocationRequest"]
)
def test_no_group_is_left_where_no_node_was_made(cloud, there, how, code):
    """Azure says at once, or later, that there is no room near the others."""
    cloud.sold_out = f"{how}{code}"
    with pytest.raises(PermanentError) as caught:
        create(there(), node())
    assert caught.value.kind is PermanentKind.NO_CAPACITY
    assert cloud.things == {}


def test_a_group_that_anothers_machine_is_in_is_waited_for(cloud, there):
    one = there()
    made = create(one, node())
    (mine,) = machines(cloud)
    other = {**mine, "name": "theirs", "tags": {}, "id": mine["id"].replace("gpu-0", "theirs")}
    cloud.things["microsoft.compute/virtualmachines/theirs"] = other
    with pytest.raises(TransientError) as caught:
        one.delete(made)
    assert caught.value.kind is TransientKind.BUSY
    del cloud.things["microsoft.compute/virtualmachines/theirs"]
    one.delete(made)
    assert cloud.things == {}


# ---------------------------------------------------------------------------------------- reserved

RESERVED = f"{fake.BELOW}/resourceGroups/{{}}/providers/Microsoft.Compute/capacityReservationGroups/H100"


@pytest.mark.parametrize(
    ("given", "group_of"),
    [
        ("H100", "fleet-group"),
        ("Fleet-Group/H100", "Fleet-Group"),
        (RESERVED.format("FLEET-GROUP"), "FLEET-GROUP"),
    ],
)
def test_a_node_takes_what_is_reserved(web, cloud, there, given, group_of):
    """In no placement group."""
    cloud.reserve("H100", TYPE)
    assert there().check({node().address: {**NODES, "reservation": given}}) == []
    one = there(placement_group="mine") if given == "H100" else there()
    made = create(one, node(reservation=given))
    inner = last(web)["properties"]
    assert inner["capacityReservation"] == {"capacityReservationGroup": {"id": RESERVED.format(group_of)}}
    assert NEAR not in inner
    one.delete(made)
    assert [key.split("/")[1] for key in cloud.things] == ["capacityreservationgroups"]


def test_what_one_may_not_look_at_is_left_to_azure(web, cloud, there):
    """Another subscription shares it, and not the right to look."""
    theirs = RESERVED.format("x").replace("9999", "8888")

    def answer(asked):
        return fake.error(403, "AuthorizationFailed") if "8888" in asked.path else cloud(asked)

    web.answer = answer
    create(there(), node(reservation=theirs))
    assert last(web)["properties"]["capacityReservation"]["capacityReservationGroup"]["id"] == theirs


@pytest.mark.parametrize(
    ("inputs", "kind", "words"),
    [
        ({"reservation": "H200"}, "not-found", "there is no capacity reservation group `H200`"),
        ({"reservation": "other/H100"}, "invalid", "ResourceGroupNotFound"),
        (
            {"reservation": "H100", "zone": ZONES[1]},
            "no-capacity",
            "has standard_d2s_v3 in eastus-1, and no Standard_D2s_v3 in eastus-2",
        ),
        (
            {"reservation": "H100", "instance_type": "Standard_D4s_v3"},
            "no-capacity",
            "and no Standard_D4s_v3 in eastus-1",
        ),
        ({"reservation": "west"}, "no-capacity", "is in westus, not in eastus"),
        ({"reservation": "a/b/c"}, "invalid", "`a/b/c` is no capacity reservation group of Azure"),
    ],
)
def test_a_reservation_that_is_not_for_the_node_is_said(cloud, there, inputs, kind, words):
    cloud.reserve("H100", TYPE)
    cloud.reserve("west", TYPE, location="westus")
    before = dict(cloud.things)
    one = there()
    with pytest.raises(PermanentError, match=words) as caught:
        create(one, node(**inputs))
    assert caught.value.kind.value == kind
    assert cloud.things == before
    # A plan reports it before. It ignores what may change by itself.
    said = [str(fault) for fault in one.check({node().address: {**NODES, **inputs}})]
    assert len(said) == (0 if kind == "no-capacity" else 1)
    assert all(words in text for text in said)


# -------------------------------------------------------------------------------- the whole command


def backend(web):
    return {
        "type": "backend",
        "name": "az",
        "driver": "azure",
        "regions": [fake.REGION],
        "endpoint": web.url,
        "credentials": fake.CREDENTIALS,
        "image": "Canonical:ubuntu-24_04-lts:server:latest",
        "network": {"subnets": {fake.REGION: "net/nodes"}},
        "options": {
            "ssh_config": "/dev/null",
            "connect_timeout": 1,
            "resource_group": fake.GROUP,
            "login_endpoint": web.url,
        },
    }


def cluster(name="gpu", **more):
    words = {"backends": ["az"], "instance_types": [TYPE], "nodes": 2, "resources": {"cpu": 2}}
    return fleet(name, **{**words, "blocks": 1, **more})


@pytest.mark.slow
def test_a_cluster_from_plan_to_destroy(project, web, cloud):
    """It finds no room in the first zone when one of it is there: all of it goes to the second, where the
    reservation of another fleet is.
    """
    cloud.reserve("H100", TYPE, ("2",))
    room = cloud._misplaced

    def misplaced(body):
        near = body["properties"].get(NEAR)
        if near and body["zones"] == ["1"] and machines(cloud):
            return fake.error(409, "OverconstrainedZonalAllocationRequest", "Allocation failed.")
        return room(body)

    cloud._misplaced = misplaced
    project.declare(backend(web), cluster(), cluster("bought", reservation="H100"))
    project.apply(env=fake.SECRETS)
    (name,) = groups(cloud)
    assert {m["zones"][0] for m in machines(cloud)} == {"2"}
    assert sorted(str(group(m)) for m in machines(cloud)) == ["None", "None", name, name]
    assert project.plan(env=fake.SECRETS)["result"] == "none"
    project.run("destroy", "--auto-approve", env=fake.SECRETS)
    assert [key.split("/")[1] for key in cloud.things] == ["capacityreservationgroups"]


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [True, False])
def test_killed_between_group_and_node(project, web, cloud, goes_on):
    """The next apply continues with what exists. If the nodes are not wanted any more, it is deleted."""
    doomed: list[subprocess.Popen] = []
    started = threading.Event()

    def kill(asked):
        if asked.method == "PUT" and "/virtualMachines/" in asked.path:
            assert started.wait(60)
            os.kill(doomed[0].pid, signal.SIGKILL)
            return LOST
        return cloud(asked)

    project.declare(backend(web), cluster())
    web.answer = kill
    # One at a time: a request that was under way would be carried out after the end of who asked.
    argv = ("apply", "--auto-approve", "--parallelism", "1")
    doomed.append(project.start(*argv, env=fake.SECRETS))
    started.set()
    ended(doomed[0], -signal.SIGKILL)
    web.answer = cloud
    before = groups(cloud)
    assert len(before) == 1
    assert machines(cloud) == []
    if goes_on:
        project.apply(env=fake.SECRETS)
        assert groups(cloud) == before
        assert [group(m) for m in machines(cloud)] == before * 2
    project.run("destroy", "--auto-approve", env=fake.SECRETS)
    assert cloud.things == {}
