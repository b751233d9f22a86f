"""The installed command on an OpenStack (a small one): from plan to destroy, and after being killed."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading

import pytest

from declarative.store import open_store
from tests.providers.openstack import run
from tests.providers.openstack.server import IMAGE, REGION, SmallCloud
from tests.store.test_restored import by_file
from tests.support.cli import ended, fleet, task, volume

pytestmark = pytest.mark.slow

ENV = run.SECRETS
CATALOG = [{"instance_type": "declared", "cpu": 4, "memory": "8GB", "gpu": "A100:1"}]


@pytest.fixture
def cloud():
    with SmallCloud() as running:
        yield running


def backend(cloud, **more):
    return {
        "type": "backend",
        "name": "stack",
        "driver": "openstack",
        "regions": [REGION],
        "endpoint": f"{cloud.endpoint}/v3",
        "credentials": run.CREDENTIALS,
        "image": "debian-12",
        "options": {"project": "demo", "settle": 1},
        **more,
    }


def count(things):
    """What the cloud has, by what it says of itself."""
    return sorted(thing["metadata"]["fleetform:address"] for thing in things.values())


def test_from_plan_to_destroy(project, cloud):
    """Offers from flavors, their price unknown; a change in place; protected volumes stay."""
    gpu = fleet("gpu", backends=["stack"], nodes=2, resources={"gpu": "H100:2"}, tags={"team": "a"})
    data = volume("data", count=2, backend="stack", region=REGION, size="10GB", prevent_destroy=True)
    project.declare(backend(cloud), gpu, data)
    plan = project.run("plan", "--json", "--detailed-exitcode", code=2, env=ENV).json
    after = {a["address"]: a["after"] for a in plan["actions"]}
    assert (after["node/gpu-0"]["instance_type"], after["node/gpu-0"]["zone"]) == ("gpu.h100x2", "az-1")
    assert after["node/gpu-0"].get("price") is None
    project.apply(env=ENV)
    nodes = [f"node/gpu-{i}" for i in range(2)]
    disks = [f"volume/data-{i}" for i in range(2)]
    assert (count(cloud.servers), count(cloud.volumes)) == (nodes, disks)
    assert project.run("plan", "--json", env=ENV).json["result"] == "none"
    made = {s["id"] for s in cloud.servers.values()}

    project.declare(backend(cloud), {**gpu, "tags": {"team": "b"}}, {**data, "size": "20GB"})
    project.apply(env=ENV)
    assert {s["id"] for s in cloud.servers.values()} == made
    assert {s["metadata"]["team"] for s in cloud.servers.values()} == {"b"}
    assert {v["size"] for v in cloud.volumes.values()} == {20}
    state = (project.path / ".fleetform" / "state.db").read_bytes()
    assert b"secret" not in state
    assert not [token for token in cloud.tokens if token.encode() in state]

    project.run("destroy", "--auto-approve", env=ENV)
    assert (count(cloud.servers), count(cloud.volumes), cloud.pairs) == ([], disks, {})
    project.declare(backend(cloud), {**data, "prevent_destroy": False})
    project.apply(env=ENV)
    project.run("destroy", "--auto-approve", env=ENV)
    assert cloud.volumes == {}


def test_offline_nobody_is_asked(project, cloud):
    """Only what the catalog declares is known then."""
    project.declare(
        backend(cloud, catalog=CATALOG), fleet("gpu", backends=["stack"], nodes=1, resources={"gpu": 1})
    )
    plan = project.plan("--offline", env={})
    (node,) = [a["after"] for a in plan["actions"] if a["address"] == "node/gpu-0"]
    assert node["instance_type"] == "declared"
    assert not cloud.seen


def test_a_quota_and_a_wrong_password_are_said(project, cloud):
    """What could be made is there and recorded, and nothing else is."""
    cloud.quota = 2
    project.declare(backend(cloud), fleet("gpu", backends=["stack"], nodes=3, resources={"cpu": 1}))
    done = project.apply(code=None, env=ENV)
    assert done.code not in (0, -signal.SIGKILL)
    assert "Quota exceeded for instances" in done.out + done.err
    recorded = project.run("status", "--json", env=ENV).json["nodes"]
    assert len(count(cloud.servers)) == len([n for n in recorded if n["state"] != "pending"])
    wrong = {**ENV, run.CREDENTIALS["password"]: "wr0ng-secret"}
    done = project.apply(code=None, env=wrong)
    assert done.code != 0
    assert "requires authentication" in done.out + done.err
    assert "wr0ng" not in done.out + done.err
    project.run("destroy", "--auto-approve", env=ENV)
    assert cloud.servers == {}


PRICED = [
    {"instance_type": "m1.tiny", "cpu": 1, "memory": "512MB", "price": 0.01},
    {"instance_type": "m1.small", "cpu": 1, "memory": "2GB", "price": 0.02},
    {"instance_type": "gpu.h100x2", "cpu": 8, "memory": "64GB", "gpu": "H100:2", "price": 8.0},
]


def test_a_sold_out_flavor_is_not_replaced_by_what_the_plan_did_not_show(project, cloud):
    """A saved plan launched a node 800 times dearer for a task without GPUs. It takes the same flavor in
    another zone; a larger one only where `fallback: any` says so, and then the plan shows it.
    """
    nodes = fleet("gpu", backends=["stack"], nodes="0..1", blocks=1, resources={"cpu": "1.."})
    work = task("job", "true", resources={"cpu": "1.."})
    project.declare(backend(cloud, catalog=PRICED), nodes, work)
    plan = project.run("plan", "--json", "--out", "n.plan", env=ENV).json
    (fallback,) = plan["fallbacks"]
    offers = [(offer["instance_type"], offer["zone"], offer["price"]) for offer in fallback["offers"]]
    assert [("m1.tiny", zone, 0.01) for zone in ("az-2", "az-3")] == offers
    assert (fallback["hourly_at_most"], plan["cost"]["hourly_at_most"]) == (0.01, 0.01)
    shown = project.run("show", "n.plan", env=ENV).out
    assert "node/gpu-0  if sold out: az-2, az-3, at most 0.01" in shown
    cloud.full = {(zone, "m1.tiny") for zone in cloud.zones}
    done = project.run("apply", "n.plan", "--auto-approve", code=4, env=ENV)
    assert "m1.tiny in az-3" in done.out + done.err
    assert cloud.servers == {}
    assert {"m1.tiny"} == {flavor_of(cloud, body) for body in launches(cloud)}

    project.declare(backend(cloud, catalog=PRICED), {**nodes, "fallback": "any"}, work)
    plan = project.plan(env=ENV)
    types = {offer["instance_type"] for found in plan["fallbacks"] for offer in found["offers"]}
    assert {"m1.tiny", "m1.small", "gpu.h100x2"} == types
    assert plan["cost"]["hourly_at_most"] == 8.0
    assert "at most 8.00 if offers are sold out" in project.run("plan", env=ENV).out


def launches(cloud):
    """What was asked for, of each server."""
    return [
        body["server"]
        for _, _, body in cloud.asked
        if isinstance(body, dict) and "flavorRef" in body.get("server", {})
    ]


def flavor_of(cloud, asked):
    return next(f["name"] for f in cloud.flavors if f["id"] == asked["flavorRef"])


def test_a_quota_on_servers_is_not_answered_with_a_larger_flavor(project, cloud):
    """The cloud counts servers: it was asked for one, and no other flavor is tried."""
    cloud.quota = 0
    nodes = fleet("gpu", backends=["stack"], nodes=1, resources={"cpu": "1.."}, fallback="any")
    project.declare(backend(cloud, catalog=PRICED), nodes)
    done = project.apply(code=4, env=ENV)
    assert "Quota exceeded for instances" in done.out + done.err
    assert [flavor_of(cloud, body) for body in launches(cloud)] == ["m1.tiny"]


def test_killed_again_and_again(project, cloud):
    """Each time during a create that is carried out although its answer is lost: each thing exists once."""
    doomed: list[subprocess.Popen] = []
    left, started = [0], threading.Event()

    def kill(method, path):
        if method != "POST" or not path.endswith(("/servers", "/volumes")):
            return None
        left[0] -= 1
        if left[0] == 0:
            started.wait(60)
            os.kill(doomed[-1].pid, signal.SIGKILL)
            return "lost"
        return None

    cloud.rules.append(kill)
    nodes = fleet("gpu", backends=["stack"], nodes=6, resources={"cpu": 1})
    data = volume("data", count=6, backend="stack", region=REGION, size="1GB")
    project.declare(backend(cloud), nodes, data)
    codes = []
    for _ in range(3):
        left[0] = 2
        started.clear()
        doomed.append(project.start("apply", "--auto-approve", "--parallelism", "2", env=ENV))
        started.set()
        codes.append(ended(doomed[-1], None).code)
    assert codes == [-signal.SIGKILL] * 3
    left[0] = -1
    project.apply(env=ENV)
    assert count(cloud.servers) == [f"node/gpu-{i}" for i in range(6)]
    assert count(cloud.volumes) == [f"volume/data-{i}" for i in range(6)]
    assert project.run("plan", "--json", env=ENV).json["result"] == "none"
    project.run("state", "check", env=ENV)
    project.run("destroy", "--auto-approve", env=ENV)
    left_over = json.dumps([cloud.servers, cloud.volumes, cloud.pairs])
    assert left_over == "[{}, {}, {}]"


def test_a_volume_is_adopted_and_stays(project, cloud):
    """The plan reports what does not match. Killed during adoption and during release, it stays unchanged."""
    own = {"team": "theirs"}
    made = cloud.make_volume({}, {"volume": {"name": "results", "size": 3, "metadata": own}})[1]["volume"]
    made["status"] = "available"
    data = volume("data", backend="stack", region=REGION, volume_id=made["id"], size="2GB")
    project.declare(backend(cloud), data)
    plan = project.run("plan", code=1, env=ENV)
    assert "write `size: 3GB`" in plan.out + plan.err
    data = {**data, "size": "3GB", "tags": {"by": "us"}}
    doomed: list[subprocess.Popen] = []
    armed, started = [False], threading.Event()

    def kill(method, path):
        if not armed[0] or method not in ("POST", "PUT") or not path.endswith("/metadata"):
            return None
        armed[0] = False
        started.wait(60)
        os.kill(doomed[-1].pid, signal.SIGKILL)
        return "lost"

    def killed():
        started.clear()
        armed[0] = True
        doomed.append(project.start("apply", "--auto-approve", env=ENV))
        started.set()
        assert ended(doomed[-1], None).code == -signal.SIGKILL

    cloud.rules.append(kill)
    project.declare(backend(cloud), data)
    killed()
    project.apply(env=ENV)
    assert made["metadata"].items() >= {**own, "by": "us", "fleetform:address": "volume/data"}.items()
    assert project.run("plan", "--json", env=ENV).json["result"] == "none"
    project.declare(backend(cloud), {**data, "name": "renamed"})
    project.apply(env=ENV)
    assert made["metadata"]["fleetform:address"] == "volume/renamed"
    project.declare(backend(cloud))
    killed()
    project.apply(env=ENV)
    assert (cloud.volumes, made["metadata"], made["name"]) == ({made["id"]: made}, own, "results")
    project.run("state", "check", env=ENV)


def test_what_goes_with_the_last_node_goes_also_after_a_kill(project, cloud):
    """The node is gone by then, so nothing would be deleted again, but its key pair still exists."""
    project.declare(backend(cloud), fleet("gpu", backends=["stack"], nodes=2, resources={"cpu": 1}))
    project.apply(env=ENV)
    assert len(cloud.pairs) == 1
    doomed: list[subprocess.Popen] = []
    armed, started = [True], threading.Event()

    def kill(method, path):
        if not armed[0] or method != "DELETE" or "/os-keypairs/" not in path:
            return None
        armed[0] = False
        started.wait(60)
        os.kill(doomed[-1].pid, signal.SIGKILL)
        return "lost-before"

    cloud.rules.append(kill)
    doomed.append(project.start("destroy", "--auto-approve", env=ENV))
    started.set()
    assert ended(doomed[-1], None).code == -signal.SIGKILL
    assert (cloud.servers, len(cloud.pairs)) == ({}, 1)
    project.run("destroy", "--auto-approve", env=ENV)
    assert cloud.pairs == {}
    assert project.run("status", "--json", env=ENV).json["nodes"] == []


@pytest.mark.parametrize("nodes", [1, 2], ids=["no other change", "another one is made"])
def test_a_server_that_was_taken_up_while_it_started_has_to_come_up(project, cloud, nodes):
    """A killed apply left it in BUILD, and nova takes it back: then it is made anew, and is no success."""
    started, posts = threading.Event(), [0]

    def fate(method, path):
        if method == "POST" and path.endswith("/servers"):
            posts[0] += 1
            if posts[0] == 1:
                started.wait(60)
                os.kill(doomed.pid, signal.SIGKILL)
                return "lost"
        if posts[0] == 1 and method == "GET" and re.search("/servers/[^/]+$", path) and "detail" not in path:
            cloud.servers.clear()  # who asks for it waits for it
        return None

    cloud.rules.append(fate)
    project.declare(backend(cloud), fleet("gpu", backends=["stack"], nodes=nodes, resources={"cpu": 1}))
    doomed = project.start("apply", "--auto-approve", "--parallelism", "1", env=ENV)
    started.set()
    assert ended(doomed, None).code == -signal.SIGKILL
    assert count(cloud.servers) == ["node/gpu-0"]
    project.apply("--parallelism", "1", env=ENV)
    assert count(cloud.servers) == [f"node/gpu-{i}" for i in range(nodes)]
    assert {server["status"] for server in cloud.servers.values()} == {"ACTIVE"}
    assert project.run("plan", "--json", env=ENV).json["result"] == "none"


def test_a_restored_state_makes_anew_what_is_gone(project, cloud):
    """Nodes and volumes were made and deleted twice after the backup: nova and cinder know no tokens, so one
    apply makes one of each.
    """
    gpu = fleet("gpu", backends=["stack"], nodes=1, resources={"gpu": "H100:2"})
    data = volume("data", backend="stack", region=REGION)
    project.declare(backend(cloud), volume("base", backend="stack", region=REGION))
    project.apply(env=ENV)
    restore = by_file(project)
    for _ in range(2):
        for more in ((gpu, data), ()):
            project.declare(backend(cloud), volume("base", backend="stack", region=REGION), *more)
            project.apply(env=ENV)
    restore()
    project.declare(backend(cloud), volume("base", backend="stack", region=REGION), gpu, data)
    project.apply(env=ENV)
    assert count(cloud.servers) == ["node/gpu-0"]
    assert count(cloud.volumes) == ["volume/base", "volume/data"]
    assert project.run("plan", "--json", env=ENV).json["result"] == "none"


def test_an_image_that_is_made_anew_under_its_name(project, cloud):
    """Another one of that name is a difference; one that a server was rebuilt from by hand is drift."""
    node = fleet("web", backends=["stack"], nodes=1, resources={"cpu": 1})
    project.declare(backend(cloud), node)
    project.apply(env=ENV)
    assert "Everything is as declared" in project.run("plan", env=ENV).out
    newer = "0" * 8 + IMAGE[8:]
    cloud.images = [{"id": newer, "name": "debian-12", "status": "active"}]
    plan = project.run("plan", "--json", env=ENV).json
    (found,) = plan["differences"]
    assert (plan["result"], plan["drift"]) == ("none", [])
    assert found == {
        "address": "node/web-0",
        "field": "image",
        "before": IMAGE,
        "after": newer,
        "replaced": False,
    }
    (server,) = cloud.servers.values()
    server["image"] = {"id": newer}
    done = project.run("drift", "--json", code=2, env=ENV).json
    assert [d["detail"] for d in done["drift"]] == [f"`image` is {newer}, and was {IMAGE}"]
    assert done["differences"] == []
    assert project.run("plan", "--json", env=ENV).json["actions"] == []


def test_a_lost_state_makes_nothing_a_second_time(project, cloud):
    """Things of this project under another lineage stop the plan; those of another project do not."""
    lab = {"type": "project", "name": "lab"}
    node, disk = fleet("web", backends=["stack"], nodes=1, resources={"cpu": 1}), volume("data", size="1GB")
    disk |= {"backend": "stack", "region": REGION}
    project.declare(lab, backend(cloud), node, disk)
    project.run("plan", "--out", "first.plan", env=ENV)  # which knows the project's name as well
    project.run("apply", "first.plan", env=ENV)
    assert {s["metadata"]["fleetform:project"] for s in cloud.servers.values()} == {"lab"}
    shutil.rmtree(project.path / ".fleetform")
    for _ in range(2):
        done = project.run("apply", "--auto-approve", code=1, env=ENV)
        said = " ".join((done.out + done.err).split())
        assert "error[another-state]" in said
        assert all(made in said for made in (*cloud.servers, *cloud.volumes))
        assert (len(cloud.servers), len(cloud.volumes)) == (1, 1)
        url = f"sqlite:///{project.path}/.fleetform/state.db"
        with open_store(url) as store, store.lock("apply") as writer:
            writer.ensure_lineage()  # as an apply does that is killed before it has made anything
    shutil.rmtree(project.path / ".fleetform")
    project.declare({**lab, "name": "shop"}, backend(cloud), node, disk)
    project.apply(env=ENV)
    assert count(cloud.servers) == ["node/web-0"] * 2
    assert count(cloud.volumes) == ["volume/data"] * 2
