"""Placement policies and reservations of GCE, on the tests' small GCE; some with the installed command."""

import contextlib
import os
import signal
import sqlite3
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
from providers.cloud.gce import Gce
from providers.cloud.gce.offers import Policies
from tests.providers.cloud.web import LOST, Asked, Web, losing
from tests.providers.gce import server as fake
from tests.support.cli import ended, fleet

ZONES = (f"{fake.REGION}-a", f"{fake.REGION}-b")
TYPE = "a2-highgpu-1g"
NODES = MappingProxyType(
    {
        "backend": "gcp",
        "region": fake.REGION,
        "zone": fake.ZONE,
        "fleet": "gpu",
        "blocks": 1,
        "placement": "cluster",
        "instance_type": TYPE,
        "resources": {"cpu": 12, "memory_mib": 87040, "gpus": 1},
    }
)
PATIENT = Policy(first=0.01, longest=0.05)


@pytest.fixture(scope="module")
def pem():
    return fake.private_key()


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    monkeypatch.setattr(account, "FIRST_PAUSE", 0.01)


@pytest.fixture
def cloud():
    return fake.Gce()


@pytest.fixture
def web(cloud, pem, monkeypatch):
    with Web(cloud) as running:
        monkeypatch.setenv(fake.VARIABLE, fake.service_account(pem, running.url))
        yield running


@pytest.fixture
def there(web, tmp_path):
    """A provider, each time another: with its options."""

    def make(**options):
        given = {"timeout": 30, "ssh_config": "/dev/null", **options}
        return Gce(fake.config(web.url, tmp_path, options=given))

    return make


def node(index=0, **more):
    return Record(address=Address("node", f"gpu-{index}"), backend="gcp", inputs={**NODES, **more})


def create(provider, record):
    key = token("lineage-1", record.address, record.generation, record.inputs["zone"])
    return replace(record, outputs=provider.create(record.address, key, record.inputs, {}))


def last(web):
    """The last instance that was asked for."""
    return [a.body for a in web.asked if a.method == "POST" and a.path.endswith("/instances")][-1]


def test_a_node_has_the_service_account_of_its_fleet(web, there):
    one, email = there(), "ml@lab.iam.gserviceaccount.com"
    create(one, node(identity=email))
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    assert last(web)["serviceAccounts"] == [{"email": email, "scopes": scopes}]
    create(one, node(1))
    assert "serviceAccounts" not in last(web)


def test_a_service_account_that_others_took_away_is_drift(there, cloud):
    one, email = there(), "ml@lab.iam.gserviceaccount.com"
    have = create(one, node(identity=email))
    (machine,) = cloud.things["instances"].values()
    assert "identity" not in one.recall([have])[have.address].actual
    machine["serviceAccounts"] = [{"email": "admin@lab.iam.gserviceaccount.com"}]
    assert one.recall([have])[have.address].actual["identity"] == "admin@lab.iam.gserviceaccount.com"
    del machine["serviceAccounts"]
    assert one.recall([have])[have.address].actual["identity"] is None
    of_project = replace(have, inputs={**have.inputs, "identity": "default"})
    machine["serviceAccounts"] = [{"email": "123-compute@developer.gserviceaccount.com"}]
    assert "identity" not in one.recall([of_project])[have.address].actual


def policy(body):
    """The name of the policy that an instance is made in; None if it is in none."""
    urls = body.get("resourcePolicies")
    assert urls is None or len(urls) == 1
    return urls[0].rpartition("/")[2] if urls else None


def policies(cloud):
    return sorted(name.partition("/")[2] for name in cloud.placed.policies)


# -------------------------------------------------------------------------------------- the policy


def test_a_cluster_is_in_a_policy_that_goes_with_its_last_node(web, cloud, there):
    """There is one for each fleet and zone, and later commands find it again."""
    one = there()
    nodes = [create(one, node(0))]
    first = policy(last(web))
    assert last(web)["scheduling"] == {"automaticRestart": True, "onHostMaintenance": "TERMINATE"}
    nodes.append(
        create(there(), node(1, instance_type="n2-standard-8", resources={"cpu": 8, "memory_mib": 0}))
    )
    assert policy(last(web)) == first
    assert last(web)["scheduling"]["onHostMaintenance"] == "TERMINATE"
    nodes.append(create(one, node(2, zone=ZONES[1])))
    second = policy(last(web))
    assert policies(cloud) == sorted((first, second))
    assert cloud.placed.policies[f"{fake.REGION}/{first}"]["groupPlacementPolicy"] == {
        "collocation": "COLLOCATED"
    }
    assert "lineage-1" in cloud.placed.policies[f"{fake.REGION}/{first}"]["description"]
    one.delete(nodes[0])
    assert policies(cloud) == sorted((first, second))
    there().delete(nodes[1])
    assert policies(cloud) == [second]
    one.delete(nodes[2])
    assert policies(cloud) == []
    # A command that still believes that it exists gets a fault, and tries again.
    call(lambda: create(one, node(3)), policy=PATIENT)
    assert policies(cloud) == [first]


def test_other_fleets_and_states_have_policies_of_their_own(web, cloud, there, tmp_path):
    names: set[str] = set()
    for provider, fleet_name in (
        (there(), "gpu"),
        (there(), "g" * 60),
        (Gce(fake.config(web.url, tmp_path, "lineage-2")), "gpu"),
    ):
        provider.create(
            Address("node", f"x-{len(names)}"), f"token{len(names)}", {**NODES, "fleet": fleet_name}, {}
        )
        names.add(str(policy(last(web))))
    assert len(names) == 3
    assert policies(cloud) == sorted(names)


@pytest.mark.parametrize(
    ("options", "inputs"),
    [({}, {"placement": "any"}), ({}, {"instance_type": "n1-standard-1"}), ({"placement_group": "off"}, {})],
    ids=["no cluster", "no such type", "switched off"],
)
def test_who_is_in_no_policy(web, cloud, there, options, inputs):
    one = there(**options)
    made = create(one, node(**inputs))
    assert policy(last(web)) is None
    assert policies(cloud) == []
    one.delete(made)


@pytest.mark.parametrize(
    "given", ["mine", f"projects/{fake.PROJECT}/regions/{fake.REGION}/resourcePolicies/mine"]
)
def test_a_policy_of_ones_own_is_used_and_left(web, cloud, there, given):
    theirs = {"name": "mine", "description": "ours, since 2024", "groupPlacementPolicy": {}}
    cloud.placed.policies[f"{fake.REGION}/mine"] = theirs
    one = there(placement_group=given)
    made = create(one, node())
    assert policy(last(web)) == "mine"
    one.delete(made)
    assert policies(cloud) == ["mine"]
    assert not [a for a in web.asked if a.method != "GET" and "/resourcePolicies" in a.path]


def test_a_policy_that_is_named_has_to_be_there(cloud, there):
    wanted = {node().address: dict(NODES)}
    (fault,) = there(placement_group="mine").check(wanted)
    assert str(fault) == f"there is no compact placement policy `mine` in {fake.REGION}"
    with pytest.raises(PermanentError, match="is no placement policy of project-name in us-central1"):
        there(placement_group="projects/p/regions/eu/resourcePolicies/mine").check(wanted)
    assert there(placement_group="off").check(wanted) == []
    cloud.placed.reserve("h100", fake.ZONE, TYPE)
    reserved = {node().address: {**NODES, "reservation": "h100"}}
    assert there(placement_group="mine").check(reserved) == []
    assert there().check(wanted) == []


def test_anothers_policy_is_neither_used_nor_deleted(web, cloud, there):
    """It has the name that ours would have."""
    one = there()
    made = create(one, node(0))
    name = policy(last(web))
    cloud.placed.policies[f"{fake.REGION}/{name}"]["description"] = '{"fleetform:owner": "somebody"}'
    with pytest.raises(PermanentError, match="has another owner") as caught:
        create(there(), node(1))
    assert caught.value.kind is PermanentKind.CONFLICT
    assert caught.value.hint
    assert "options.placement_group" in caught.value.hint
    one.delete(made)
    assert policies(cloud) == [name]


def test_a_fault_of_a_node_is_none_of_its_policy(cloud, there):
    """Which is there, whatever is written on it by now."""
    one = there()
    create(one, node(0))
    for found in cloud.placed.policies.values():
        found["description"] = ""
    cloud.placed.refused = lambda *_: ("invalid", "Invalid value for field 'resource.disks'", 400)
    with pytest.raises(PermanentError, match=r"resource\.disks"):
        create(one, node(1))


def test_who_may_make_no_policies_is_told_how_to_do_without(web, cloud, there):
    def answer(asked):
        mine = asked.path.endswith("/resourcePolicies") or "/resourcePolicies/" in asked.path
        return fake.error(403, "forbidden") if mine else cloud(asked)

    web.answer = answer
    with pytest.raises(PermanentError) as caught:
        create(there(), node())
    assert caught.value.kind is PermanentKind.AUTH
    assert "Compute Admin" in str(caught.value.hint)
    assert "placement_group: off" in str(caught.value.hint)
    # One that is named need not be looked at.
    assert there(placement_group="mine").check({node().address: dict(NODES)}) == []


def test_a_policy_whose_answer_was_lost_is_found(web, cloud, there):
    lost: list[Asked] = []

    def lose(asked):
        found = cloud(asked)
        if asked.method == "POST" and asked.path.endswith("/resourcePolicies") and not lost:
            lost.append(asked)
            return LOST
        return found

    web.answer = lose
    one = there()
    with pytest.raises(TransientError):
        create(one, node())
    create(one, node())
    assert policies(cloud) == [policy(last(web))]


@pytest.mark.parametrize("seed", [1, 2])
def test_lost_answers_make_one_policy_and_leave_none(web, cloud, there, seed):
    web.answer = losing(cloud, seed)
    one = there()
    with ThreadPoolExecutor(4) as pool:
        nodes = list(pool.map(lambda i: call(lambda: create(one, node(i)), policy=PATIENT), range(6)))
        assert len(policies(cloud)) == 1
        assert {policy(t) for t in cloud.things["instances"].values()} == {*policies(cloud)}
        list(pool.map(lambda record: call(lambda: one.delete(record), policy=PATIENT), nodes))
    assert (policies(cloud), cloud.things["instances"]) == ([], {})


def test_no_policy_is_left_where_no_node_was_made(cloud, there):
    cloud.exhausted = {fake.ZONE}
    with pytest.raises(PermanentError) as caught:
        create(there(), node())
    assert caught.value.kind is PermanentKind.NO_CAPACITY
    assert policies(cloud) == []


def test_it_goes_though_the_last_node_had_ended_before(cloud, there):
    one = there()
    made = create(one, node())
    cloud.things["instances"].clear()
    one.delete(made)
    assert policies(cloud) == []


def test_a_policy_goes_with_the_last_of_many(web, cloud, there):
    """Not with each: that would be a look for every node."""
    one = there()
    nodes = [create(one, node(i)) for i in range(6)]
    together = threading.Barrier(6)

    def delete(record):
        # All are under way before the first one ends.
        with one._account.at(fake.REGION).site.groups.changing(record.node):
            together.wait(60)
            one.delete(record)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(delete, nodes))
    assert policies(cloud) == []
    asked = [a for a in web.asked if a.method == "DELETE" and "/resourcePolicies/" in a.path]
    assert len(asked) == 1


def test_a_policy_that_anothers_machine_is_in_is_waited_for(web, cloud, there):
    """Until it goes: what is in use is not deleted."""
    one = there()
    made = create(one, node())
    (mine,) = cloud.things["instances"].values()
    other = {**mine, "name": "theirs", "labels": {}, "selfLink": mine["selfLink"].replace("gpu-0", "theirs")}
    cloud.things["instances"][f"{fake.ZONE}/theirs"] = other
    with pytest.raises(TransientError) as caught:
        one.delete(made)
    assert caught.value.kind is TransientKind.BUSY
    del cloud.things["instances"][f"{fake.ZONE}/theirs"]
    one.delete(made)
    assert policies(cloud) == []


def test_more_nodes_than_a_policy_takes_are_said_before(there, monkeypatch):
    one = there()
    monkeypatch.setattr(Policies, "MOST", 2)
    nodes = {node(i).address: {**NODES, "zone": ZONES[i % 2]} for i in range(5)}
    (fault,) = one.check(nodes)
    assert str(fault) == (
        "fleet/gpu: a compact placement policy takes 2 nodes, and there would be 3 in its zone"
    )
    assert fault.hint


# ---------------------------------------------------------------------------------------- reserved

WHOLE = f"projects/{fake.PROJECT}/reservations"
AFFINITY = {
    "consumeReservationType": "SPECIFIC_RESERVATION",
    "key": "compute.googleapis.com/reservation-name",
}


@pytest.mark.parametrize(
    ("project", "given", "value"),
    [
        (fake.PROJECT, "h100", "h100"),
        (fake.PROJECT, f"projects/{fake.PROJECT}/reservations/h100", "h100"),
        ("other", "projects/other/reservations/h100", "projects/other/reservations/h100"),
        (fake.PROJECT, "h100/reservationBlocks/b-1", f"{WHOLE}/h100/reservationBlocks/b-1"),
    ],
)
def test_a_node_takes_what_is_reserved(web, cloud, there, project, given, value):
    """In no policy: a reservation that has none takes no machine that is in one."""
    cloud.placed.reserve("h100", fake.ZONE, TYPE, project=project)
    one = there(placement_group="mine") if given == "h100" else there()
    made = create(one, node(reservation=given))
    assert last(web)["reservationAffinity"] == {**AFFINITY, "values": [value]}
    assert policy(last(web)) is None
    one.delete(made)
    assert policies(cloud) == []


def test_what_one_may_not_look_at_is_left_to_gce(web, cloud, there):
    """Another project shares it, and not the right to list its reservations."""
    real = cloud._reserved
    cloud._reserved = lambda project, asked: (
        fake.error(403, "forbidden") if project == "other" else real(project, asked)
    )
    cloud.placed.reserve("h100", fake.ZONE, TYPE, project="other")
    create(there(), node(reservation="projects/other/reservations/h100"))
    assert last(web)["reservationAffinity"]["values"] == ["projects/other/reservations/h100"]
    with pytest.raises(PermanentError, match="do not exist") as caught:
        create(there(), node(1, reservation="projects/other/reservations/h200"))
    assert caught.value.kind is PermanentKind.NOT_FOUND


def test_the_policy_of_a_reservation_is_that_of_its_nodes(web, cloud, there):
    cloud.placed.policies[f"{fake.REGION}/theirs"] = {"name": "theirs"}
    cloud.placed.reserve(
        "h100", fake.ZONE, TYPE, resourcePolicies={"policy": cloud.placed.url(fake.REGION, "theirs")}
    )
    one = there()
    made = create(one, node(reservation="h100"))
    assert policy(last(web)) == "theirs"
    one.delete(made)
    assert policies(cloud) == ["theirs"]


def test_nodes_of_a_dense_reservation_end_with_it(web, cloud, there):
    cloud.placed.reserve("block", fake.ZONE, TYPE, deploymentType="DENSE")
    one = there()
    made = create(one, node(reservation="block"))
    assert last(web)["scheduling"] == {
        "automaticRestart": True,
        "onHostMaintenance": "TERMINATE",
        "provisioningModel": "RESERVATION_BOUND",
        "instanceTerminationAction": "DELETE",
    }
    assert policies(cloud) == [policy(last(web))]
    one.delete(made)
    assert policies(cloud) == []


@pytest.mark.parametrize(
    ("inputs", "kind", "words"),
    [
        ({"reservation": "h200"}, "not-found", "the project project-name has no reservation `h200`"),
        (
            {"reservation": "h100", "zone": ZONES[1]},
            "no-capacity",
            "is not in us-central1-b, but in us-central1-a",
        ),
        ({"reservation": "h100", "instance_type": "n1-standard-1"}, "no-capacity", "not for n1-standard-1"),
        ({"reservation": "new"}, "no-capacity", "is CREATING"),
        ({"reservation": "full"}, "no-capacity", "does not have available resources"),
        ({"reservation": "a/b"}, "invalid", "`a/b` is no reservation of GCE"),
    ],
)
def test_a_reservation_that_is_not_for_the_node_is_said(cloud, there, inputs, kind, words):
    cloud.placed.reserve("h100", fake.ZONE, TYPE)
    cloud.placed.reserve("new", fake.ZONE, TYPE, status="CREATING")
    cloud.placed.reserve("full", fake.ZONE, TYPE, 0)
    one = there()
    with pytest.raises(PermanentError, match=words) as caught:
        create(one, node(**inputs))
    assert caught.value.kind.value == kind
    assert policies(cloud) == []
    # A plan reports it before. It ignores what may change by itself.
    said = [str(fault) for fault in one.check({node().address: {**NODES, **inputs}})]
    assert len(said) == (0 if kind == "no-capacity" else 1)
    assert all(words in text for text in said)


def test_a_reservation_that_was_not_ready_is_looked_at_again(cloud, there):
    cloud.placed.reserve("new", fake.ZONE, TYPE, status="CREATING")
    one = there()
    with pytest.raises(PermanentError):
        create(one, node(reservation="new"))
    cloud.placed.reservations[fake.PROJECT][0]["status"] = "READY"
    create(one, node(reservation="new"))


# -------------------------------------------------------------------------------- the whole command


@pytest.fixture
def env(pem, web):
    return {fake.VARIABLE: fake.service_account(pem, web.url)}


def backend(web, **more):
    return {
        "type": "backend",
        "name": "gcp",
        "driver": "gce",
        "regions": [fake.REGION],
        "endpoint": web.url,
        "credentials": fake.CREDENTIALS,
        "image": "ubuntu-os-cloud/ubuntu-2404-lts-amd64",
        "options": {"ssh_config": "/dev/null", "connect_timeout": 1},
        **more,
    }


def cluster(name="gpu", **more):
    words = {"backends": ["gcp"], "instance_types": [TYPE], "nodes": 2, "resources": {"gpu": 1}}
    return fleet(name, **{**words, "blocks": 1, **more})


@pytest.mark.slow
def test_a_cluster_from_plan_to_destroy(project, web, cloud, env):
    """It finds no room in the first zone when one of it is there: all of it goes to the other, and what was
    made in the first one is gone.
    """
    cloud.offering = set(ZONES)
    cloud.placed.reserve("few", ZONES[0], TYPE, 1)
    cloud.placed.reserve("few", ZONES[1], TYPE)
    project.declare(backend(web), cluster(), cluster(name="bought", reservation="few"))
    full = cloud.placed.refused

    def refused(zone, body, there):
        """The first zone takes one of a policy, and no more."""
        if zone == ZONES[0] and [t for t in there if t.get("resourcePolicies")] and policy(body):
            return "ZONE_RESOURCE_POOL_EXHAUSTED", f"The zone '{zone}' has none", 0
        return full(zone, body, there)

    cloud.placed.refused = refused
    project.apply(env=env)
    (name,) = policies(cloud)
    things = cloud.things["instances"]
    assert {key.partition("/")[0] for key in things} == {ZONES[1]}
    assert sorted(map(str, map(policy, things.values()))) == ["None", "None", name, name]
    assert project.plan(env=env)["result"] == "none"
    project.run("destroy", "--auto-approve", env=env)
    assert (policies(cloud), things) == ([], {})


@pytest.mark.slow
def test_an_unknown_reservation_is_said_by_the_plan(project, web, cloud, env):
    project.declare(backend(web), cluster(reservation="h200"))
    done = project.run("plan", env=env, code=1)
    assert "the project project-name has no reservation `h200`" in done.out + done.err
    assert policies(cloud) == []


def killed(project, web, cloud, env):
    """An apply that ended between the policy and its first node."""
    doomed: list[subprocess.Popen] = []
    started = threading.Event()

    def kill(asked):
        if asked.method == "POST" and asked.path.endswith("/instances"):
            assert started.wait(60)
            os.kill(doomed[0].pid, signal.SIGKILL)
            return LOST
        return cloud(asked)

    web.answer = kill
    # One at a time: a request that was under way would be carried out after the end of who asked.
    doomed.append(project.start("apply", "--auto-approve", "--parallelism", "1", env=env))
    started.set()
    ended(doomed[0], -signal.SIGKILL)
    web.answer = cloud
    assert len(policies(cloud)) == 1
    assert cloud.things["instances"] == {}


@pytest.mark.slow
def test_killed_between_policy_and_node(project, web, cloud, env):
    """The next apply goes on with the policy that is there."""
    project.declare(backend(web), cluster())
    killed(project, web, cloud, env)
    before = policies(cloud)
    project.apply(env=env)
    assert policies(cloud) == before
    assert [policy(t) for t in cloud.things["instances"].values()] == before * 2
    project.run("destroy", "--auto-approve", env=env)
    assert (policies(cloud), cloud.things["instances"]) == ([], {})


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True])
def test_killed_between_policy_and_node_and_given_up(project, web, cloud, env, later):
    """The nodes are not wanted any more: what was made for them is deleted, even if nothing is under way."""
    project.declare(backend(web), cluster())
    killed(project, web, cloud, env)
    if later:
        with contextlib.closing(sqlite3.connect(project.path / ".fleetform/state.db")) as state, state:
            older = "begun_at = begun_at - 4000, tick = tick - 4000"
            state.execute(f"UPDATE operations SET {older} WHERE ended_at IS NULL")
            state.execute("UPDATE meta SET seal = NULL")
    project.run("destroy", "--auto-approve", env=env)
    assert policies(cloud) == []


@pytest.mark.slow
def test_killed_between_policy_and_node_and_made_elsewhere(project, web, cloud, env):
    """The nodes are wanted in another zone by now."""
    cloud.offering = set(ZONES)
    project.declare(backend(web), cluster(availability_zones=[ZONES[0]]))
    killed(project, web, cloud, env)
    before = policies(cloud)
    project.declare(backend(web), cluster(availability_zones=[ZONES[1]]))
    project.apply(env=env)
    (name,) = policies(cloud)
    assert [name] != before
    assert [policy(t) for t in cloud.things["instances"].values()] == [name, name]
    project.run("destroy", "--auto-approve", env=env)
    assert (policies(cloud), cloud.things["instances"]) == ([], {})
