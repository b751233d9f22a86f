"""The installed command on EC2 (moto's): nodes and volumes from plan to destroy, and after being killed."""

import os
import shutil
import signal
import subprocess
import threading

import pytest

from providers.ssh.key_pairs import make
from tests.providers.ec2 import run
from tests.providers.ec2.proxy import Line
from tests.providers.ec2.server import AMI
from tests.support.cli import Project, ended, fleet, task, volume

pytestmark = pytest.mark.slow

ENV = run.SECRETS
ZONE = "us-east-1b"


@pytest.fixture(scope="module")
def ec2():
    with run.RunningEc2() as running:
        yield running


def backend(port, *regions):
    return {
        "type": "backend",
        "name": "aws",
        "driver": "ec2",
        "regions": regions or ("us-east-1",),
        "endpoint": f"http://127.0.0.1:{port}",
        "credentials": run.CREDENTIALS,
        "image": AMI,
    }


def there(project, port, **more):
    """What EC2 has of this project: addresses and the ids of what they are."""
    lineage = project.run("state", "pull", env=ENV).json["lineage"]
    things = run.provider(port, project.path, lineage, **more).inventory()
    found = {str(thing.address): thing.outputs["id"] for thing in things}
    assert len(found) == len(things)
    return found


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in run.SECRETS.items():
        monkeypatch.setenv(name, value)


def test_from_plan_to_destroy(project, ec2):
    """Offers and prices of the catalog, nodes in two regions, a change in place, a region that is left."""
    gpu = fleet("gpu", backends=["aws"], nodes=2, resources={"gpu": "H100:8"}, tags={"team": "a"})
    small = fleet("small", backends=["aws"], nodes=1, regions=["us-west-2"], resources={"cpu": 2})
    data = volume("data", count=2, backend="aws", region="us-east-1", availability_zone=ZONE, size="10GB")
    both = backend(ec2.port, "us-east-1", "us-west-2")
    project.declare(both, gpu, small, data)
    plan = project.run("plan", "--json", "--detailed-exitcode", code=2, env=ENV).json
    after = {a["address"]: a["after"] for a in plan["actions"]}
    assert (after["node/gpu-0"]["instance_type"], after["node/gpu-0"]["price"]) == ("p5.48xlarge", 98.32)
    assert after["node/gpu-0"]["resources"]["gpu_name"] == "H100"
    assert after["node/small-0"]["zone"].startswith("us-west-2")
    project.apply(env=ENV)
    regions = {"regions": ("us-east-1", "us-west-2")}
    first = there(project, ec2.port, **regions)
    assert set(first) == {"node/gpu-0", "node/gpu-1", "node/small-0", "volume/data-0", "volume/data-1"}
    assert project.run("plan", "--json", env=ENV).json["result"] == "none"
    seen = {n["name"]: n["state"] for n in project.run("status", "--json", env=ENV).json["nodes"]}
    # Nothing answers at their addresses; tests/providers/ssh/test_instances.py has the rest.
    assert set(seen.values()) == {"provisioning"}

    # In place: the things stay what they are. A region that is given up is still looked at.
    project.declare(
        backend(ec2.port), {**gpu, "tags": {"team": "b"}}, {**data, "size": "20GB", "prevent_destroy": False}
    )
    ids = {a["id"] for a in project.run("plan", "--json", env=ENV).json["actions"]}
    assert "delete:node/small-0" in ids
    assert {"update:node/gpu-0", "update:volume/data-1"} <= ids
    assert not [i for i in ids if i.startswith("create")]
    project.apply(env=ENV)
    second = there(project, ec2.port, **regions)
    assert second == {a: i for a, i in first.items() if a != "node/small-0"}
    project.run("state", "check", env=ENV)
    state = (project.path / ".fleetform" / "state.db").read_bytes()
    assert not [s for s in run.SECRETS.values() if s.encode() in state]

    project.run("destroy", "--auto-approve", env=ENV)
    assert there(project, ec2.port, **regions) == {}
    lineage = project.run("state", "pull", env=ENV).json["lineage"]
    account = run.provider(ec2.port, project.path, lineage, **regions)._account
    for region in account.regions():
        assert lineage not in str(account.region(region).ask("DescribeKeyPairs"))


def test_an_image_that_is_looked_for_a_cluster_and_what_is_reserved(project, ec2):
    """The newest image, nodes close together, nodes of a reservation, in one project. A newer image is none
    of their business, and nothing is left of them in the end.
    """
    image = {"filter": {"name": "noble-*"}}
    words = {"backends": ["aws"], "instance_types": ["m5.large"], "nodes": 2, "resources": {"cpu": 2}}
    near = fleet("near", **words, placement="cluster", availability_zones=["us-east-1a"])
    bought = fleet("bought", **words, placement="any", reservation="cr-0000000a")
    project.declare({**backend(ec2.port), "image": image}, near, bought)
    project.run("validate")
    project.apply(env=ENV)
    lineage = project.run("state", "pull", env=ENV).json["lineage"]
    region = run.provider(ec2.port, project.path, lineage)._account.region("us-east-1")
    found = region.instances({"tag:fleetform:owner": [lineage]})
    assert {i.image for i in found} == {"ami-0000000b"}
    group = f"fleetform-{lineage}-near-us-east-1a"
    near_ones = region.instances({"placement-group-name": [group]})
    assert {i.tags["fleetform:address"] for i in near_ones} == {"node/near-0", "node/near-1"}
    # What is reserved is in another zone than the one that comes first: it is found there.
    assert sorted(i.zone for i in found) == ["us-east-1a"] * 2 + ["us-east-1b"] * 2

    region.ask("CreateImage", InstanceId=found[0].id, Name="noble-20261231")
    assert project.run("plan", "--json", env=ENV).json["result"] == "none"
    project.declare({**backend(ec2.port), "image": image}, {**near, "nodes": 3}, bought)
    ids = [a["id"] for a in project.run("plan", "--json", env=ENV).json["actions"]]
    assert ids == ["create:node/near-2"]

    project.run("destroy", "--auto-approve", env=ENV)
    groups = region.ask("DescribePlacementGroups")["placementGroupSet"] or []
    pairs = region.ask("DescribeKeyPairs")["keySet"] or []
    assert lineage not in f"{groups}{pairs}"
    assert not [i for i in region.instances({"tag:fleetform:owner": [lineage]}) if not i.gone]

    project.declare({**backend(ec2.port), "image": {"filter": {"name": "plucky-*"}}}, near)
    done = project.apply(code=1, env=ENV)
    assert "us-east-1 has no image that fits `plucky-*` of your own" in done.out + done.err


def test_a_secret_that_is_not_set_is_named(project, ec2):
    """And nothing is done: the plan finds it out."""
    project.declare(backend(ec2.port), fleet("gpu", backends=["aws"], nodes=1, resources={"cpu": 2}))
    env = {k: v for k, v in ENV.items() if k != run.CREDENTIALS["secret"]}
    done = project.apply(code=1, env=env)
    assert f"the environment variable {run.CREDENTIALS['secret']} is not set" in done.out + done.err


MANY = os.environ.get("FLEETFORM_EXAMPLES") == "many"
COUNT = 200 if MANY else 8
NEVER = 10**6


@pytest.mark.parametrize("seed", (1, 2, 3, 4) if MANY else (None,))
def test_killed_again_and_again(project, seed):
    """Each time while requests are under way: in the end everything is there once. With a seed, every third
    request is lost or spoilt as well.
    """
    names = [f"node/gpu-{i}" for i in range(COUNT)] + [f"volume/data-{i}" for i in range(COUNT)]
    with run.RunningEc2() as ec2, Line(ec2.port, seed=seed) as line:
        doomed: list[subprocess.Popen] = []
        begun: set[str] = set()
        wanted = [NEVER]
        started = threading.Event()

        def kill(asked):
            """The result of a create with enough capacity: it is carried out, but the answer is lost."""
            if asked["Action"] not in ("RunInstances", "CreateVolume"):
                return None
            begun.add(asked["ClientToken"])
            if len(begun) < wanted[0]:
                return None
            wanted[0] = NEVER
            assert started.wait(60)
            os.kill(doomed[-1].pid, signal.SIGKILL)
            return "lost"

        project.declare(
            backend(line.port),
            fleet("gpu", backends=["aws"], nodes=COUNT, resources={"cpu": 2}),
            volume(
                "data", count=COUNT, backend="aws", region="us-east-1", availability_zone=ZONE, size="1GB"
            ),
        )
        line.rules.append(kill)
        # With two workers no more than three are made beyond the last: there is another one each time.
        argv = ["apply", "--auto-approve", "--parallelism", "16" if MANY else "2"]
        for nth in range(6):
            started.clear()
            wanted[0] = (nth + 1) * len(names) // 6 if nth < 5 else NEVER
            doomed.append(project.start(*argv, env=ENV))
            started.set()
            ended(doomed[-1], -signal.SIGKILL if nth < 5 else 0, patience=1200.0)
        print(f"seed {seed}: {sum(line.seen.values())} requests, {line.spoilt} spoilt, 5 kills")
        line.still()
        assert set(there(project, ec2.port)) == set(names)
        assert project.run("plan", "--json", env=ENV).json["result"] == "none"
        project.run("state", "check", env=ENV)
        # By EC2's own count: nothing was made that carries no tags, and so is in no inventory.
        region = run.provider(ec2.port, project.path)._account.region("us-east-1")
        assert len([i for i in region.instances({}) if not i.gone]) == COUNT
        assert len([v for v in region.volumes({}) if v.tags.get("Name", "").startswith("data-")]) == COUNT


def test_what_is_nowhere_to_be_had_is_said_and_leaves_nothing(project, ec2):
    """The zones of a backend are tried one after the other; a price cap keeps the larger ones out."""

    def none_left(asked):
        """Of each zone, but that the first still has one."""
        if asked["Action"] != "RunInstances":
            return None
        left[asked["Placement.AvailabilityZone"]] -= 1
        return None if left[asked["Placement.AvailabilityZone"]] >= 0 else "500=InsufficientInstanceCapacity"

    zones = [f"us-east-1{letter}" for letter in "abc"]
    left = {**dict.fromkeys(zones, 0), zones[0]: 1}
    gpu = fleet(
        "gpu",
        "0..2",
        backends=["aws"],
        availability_zones=zones,
        instance_types=["p5.48xlarge"],
        resources={"gpu": "H100:8"},
    )
    with Line(ec2.port) as line:
        line.rules.append(none_left)
        project.declare(backend(line.port), gpu, task("train", "true", nodes=2, resources={"gpu": "H100:8"}))
        done = project.apply("--wait", code=4, env=ENV)
        assert line.count("RunInstances") <= 2 * 3
        assert there(project, line.port) == {}
        project.run("state", "check", env=ENV)
    text = done.out.replace("\n", " ")
    assert "none of the plan's offers could be had" in text
    assert all(f"p5.48xlarge in {zone} (" in text for zone in zones)
    assert "InsufficientInstanceCapacity" in text
    assert "nothing else is left to try" in done.err
    assert done.out.endswith("task/train: pending: it did not start\n")


def test_who_waits_for_capacity_tries_as_long_as_it_said(project, ec2):
    """Not longer, and nothing is left of it between and after. Without `--wait`, it says what would wait."""
    retry = {"retry": {"on_events": ["no-capacity"], "duration": "1s"}}
    words = {"backends": ["aws"], "availability_zones": ["us-east-1a"], "instance_types": ["m5.large"]}
    first = [True]

    def one_left(asked):
        """Of two that are asked for each time."""
        if asked["Action"] != "RunInstances":
            return None
        first[0] = not first[0]
        return "500=InsufficientInstanceCapacity" if first[0] else None

    with Line(ec2.port) as line:
        line.rules.append(one_left)
        gpu = fleet("gpu", "0..2", resources={"cpu": 2}, **words)
        train = task("train", "true", nodes=2, fleets=["gpu"], **retry)
        project.declare(backend(line.port), gpu, train)
        done = project.apply("--parallelism", "1", code=4, env=ENV)
        text = (
            "task/train stays pending (no capacity now): `fleetform apply --wait` tries again until there is"
        )
        assert text in done.err
        assert there(project, line.port) == {}
        done = project.apply("--wait", "--json", "--parallelism", "1", code=3, env=ENV)
        assert there(project, line.port) == {}
        project.run("state", "check", env=ENV)
        assert line.count("RunInstances") == 2 * 3
        # What is not waited for has failed all the same.
        more = fleet("more", 1, **words, resources={"cpu": 2})
        project.declare(backend(line.port), gpu, more, train)
        line.rules[:] = [
            lambda asked: "500=InsufficientInstanceCapacity" if asked["Action"] == "RunInstances" else None
        ]
        assert "tried again in 1 s" in project.apply("--wait", code=4, env=ENV).err
    events = done.events
    assert {"event": "pending", "address": "task/train"} in events
    (note,) = [e["text"] for e in events if e["event"] == "note"]
    assert note == "task/train is tried again in 1 s: no capacity for node/gpu-1 and 1 more"
    cause = "no capacity for node/gpu-1 and 1 more"
    last = {"event": "task", "address": "task/train", "state": "pending", "cause": cause}
    assert events[-1] == last


def test_two_checkouts_of_one_state_need_one_key(tmp_path, ec2):
    """A key that only one runner had would shut out all others: nothing is launched before it is named. The
    jobs for plans and drift need none: they go by what is recorded, and say so.
    """
    shared = {**ENV, "FLEETFORM_STATE": f"sqlite:///{tmp_path}/shared.db"}
    make(tmp_path / "key")
    secret = (tmp_path / "key").read_text()
    with_key = {**shared, "FLEETFORM_IDENTITY": secret}
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    one, two = map(Project, folders)
    for project in (one, two):
        project.declare(backend(ec2.port), fleet("gpu", backends=["aws"], nodes=2, resources={"cpu": 2}))
    done = one.apply(code=1, env=shared)
    assert "error[backend-refuses]" in done.out + done.err
    assert "FLEETFORM_IDENTITY" in done.err
    assert "options.identity_file" in done.err
    assert not list(one.path.rglob("keys"))
    unkeyed = one.plan(env=shared)
    assert [(d["code"], d["severity"]) for d in unkeyed["diagnostics"]] == [("no-node-key", "warning")]
    assert unkeyed["digest"] == one.plan(env=with_key)["digest"]

    one.apply(env=with_key)
    assert not list(one.path.rglob("keys"))
    for line in secret.splitlines()[1:-1]:
        assert line.encode() not in (tmp_path / "shared.db").read_bytes()
    assert two.plan("--detailed-exitcode", env=with_key)["result"] == "none"
    for command in (("plan", "--detailed-exitcode"), ("drift",)):
        done = two.run(*command, env=shared)
        assert "warning[no-node-key]: node/gpu-0, node/gpu-1: not looked at" in done.err
        assert "the private key of this state's nodes is not here" in done.err
        assert "FLEETFORM_IDENTITY" in done.err
    # What a pull request shows is what the merge does.
    gpu = fleet("gpu", backends=["aws"], nodes=2, resources={"cpu": 2})
    two.declare(backend(ec2.port), gpu, task("job", "true", resources={"cpu": 1}))
    assert two.plan(env=shared)["digest"] == two.plan(env=with_key)["digest"]
    two.declare(backend(ec2.port), gpu)
    # Who wants to act needs the key.
    done = two.apply(env=shared)
    assert "warning[node-not-ready]: node/gpu-0, node/gpu-1 take no work" in done.err
    assert "the private key of this state's nodes is not here" in done.err
    two.run("destroy", "--auto-approve", env=shared)


def differences(project):
    """Address → field, old and new value, of a plan with nothing to do."""
    plan = project.run("plan", "--json", "--detailed-exitcode", env=ENV).json
    assert (plan["result"], plan["actions"]) == ("none", [])
    return {d["address"]: (d["field"], d["before"], d["after"]) for d in plan["differences"]}


@pytest.fixture
def images():
    """An EC2 to which nobody else adds images."""
    with run.RunningEc2() as running:
        yield running


def test_another_image_is_shown_until_the_node_is_made_anew(project, images):
    """Another AMI, a filter, and one that does not exist: online, offline and by `drift`."""
    other, newest = "ami-0000000a", "ami-0000000b"
    node = fleet("web", backends=["aws"], nodes=1, resources={"cpu": 2})
    project.declare(backend(images.port), node)
    project.apply(env=ENV)
    assert differences(project) == {}
    for image, becomes in ((other, other), ({"filter": {"name": "noble-*"}}, newest)):
        project.declare({**backend(images.port), "image": image}, node)
        assert differences(project) == {"node/web-0": ("image", AMI, becomes)}
        for command in (("plan",), ("drift",)):
            done = project.run(*command, env=ENV)
            assert f'image: "{AMI}" → "{becomes}"' in done.out
            assert "Everything is as declared" not in done.out
            assert "made anew: `fleetform apply --replace node/web-0`." in done.out
    assert 'image: "ami-00000001" → {filter: {name: noble-*}}' in project.run("plan", "--offline").out

    project.declare({**backend(images.port), "image": "ami-ffffffff"}, node)
    done = project.run("plan", env=ENV)
    assert "warning[backend-refuses]" in done.out + done.err
    assert "us-east-1 has no image ami-ffffffff" in done.out + done.err
    assert f'image: "{AMI}" → "ami-ffffffff"' in done.out

    project.declare({**backend(images.port), "image": {"filter": {"name": "noble-*"}}}, node)
    asked = project.run("plan", "--replace", "node/web-0", env=ENV)
    assert 'settings.image: "ami-00000001" → {filter: {name: noble-*}}' in asked.out
    project.apply("--replace", "node/web-0", env=ENV)
    assert differences(project) == {}
    # A newer image with a name that fits: the same filter gives another one by now.
    lineage = project.run("state", "pull", env=ENV).json["lineage"]
    region = run.provider(images.port, project.path, lineage)._account.region("us-east-1")
    (made,) = region.instances({"tag:fleetform:owner": [lineage], "instance-state-name": ["running"]})
    region.ask("CreateImage", InstanceId=made.id, Name="noble-20270101")
    ((field, before, after),) = differences(project).values()
    assert (field, before) == ("image", newest)
    assert after not in (AMI, other, newest)
    replaced = project.run("plan", "--replace", "node/web-0", env=ENV).out
    assert f'image: "{newest}" → "{after}"' in replaced
    project.run("destroy", "--auto-approve", env=ENV)


def test_a_lost_state_launches_nothing_a_second_time(project, ec2):
    """With a name or without one; the plan says what is there and which ways out there are. Another project
    with a fleet of the same name goes on, and so does who says that a new state is meant.
    """
    gpu = fleet("gpu", backends=["aws"], nodes=1, resources={"cpu": 2})
    disk = volume("data", backend="aws", region=run.REGION, availability_zone=ZONE, size="1GB")
    lab = {"type": "project", "name": "lab"}
    for head in ([lab], []):
        project.declare(*head, backend(ec2.port), gpu, disk)
        project.apply(env=ENV)
        kept = there(project, ec2.port)
        state = project.path / ".fleetform"
        state.rename(project.path / "lost")
        once = ["reconcile", "--once"]
        for command in (["plan"], ["apply", "--auto-approve"], ["plan", "--out", "p.plan"], once):
            done = project.run(*command, code=1, env=ENV)
            said = " ".join((done.out + done.err).split())
            assert "error[another-state]" in said
            for made in ("node/gpu-0", "volume/data"):
                assert f"{made} ({kept[made]}, lineage" in said
            for way in ("state restore", "state adopt", "apply --new-state"):
                assert f"`fleetform {way}`" in said
        assert project.plan(env=ENV, code=1)["result"] == "error"
        other = {"type": "project", "name": "other"}
        project.declare(other, backend(ec2.port), gpu, disk)
        assert project.run("plan", "--json", env=ENV).json["result"] == "changes"
        project.declare(*head, backend(ec2.port), gpu, disk)
        assert project.run("plan", "--json", "--new-state", env=ENV).json["diagnostics"] == []
        project.apply("--new-state", env=ENV)
        assert there(project, ec2.port).keys() == kept.keys()
        assert not {*there(project, ec2.port).values()} & {*kept.values()}
        assert project.run("plan", "--json", env=ENV).json["result"] == "none"
        project.run("destroy", "--auto-approve", env=ENV)
        shutil.rmtree(state)
        (project.path / "lost").rename(state)
        assert project.run("plan", "--json", env=ENV).json["result"] == "none"
        project.declare(*head, backend(ec2.port), gpu, {**disk, "prevent_destroy": False})
        project.apply(env=ENV)
        project.run("destroy", "--auto-approve", env=ENV)
        shutil.rmtree(state)


def test_things_of_a_project_that_is_not_known_are_only_named(project, ec2):
    """An older fleetform wrote no project on what it made: a warning, and the plan goes on."""
    project.declare(backend(ec2.port), fleet("gpu", backends=["aws"], nodes=1, resources={"cpu": 2}))
    project.apply(env=ENV)
    lineage = project.run("state", "pull", env=ENV).json["lineage"]
    region = run.provider(ec2.port, project.path, lineage)._account.region("us-east-1")
    (made,) = region.instances({"tag:fleetform:owner": [lineage]})
    assert made.tags["fleetform:project"].endswith("-project")
    region.untag(made.id, ["fleetform:project"])
    (project.path / ".fleetform").rename(project.path / "lost")
    plan = project.run("plan", "--json", env=ENV).json
    (found,) = plan["diagnostics"]
    assert (plan["result"], found["code"], found["severity"]) == ("changes", "another-state", "warning")
    assert made.id in found["summary"]
