"""`fleetform import --backend`, and the adoption of what it prints: only tags are ever changed."""

from __future__ import annotations

import signal
import uuid
from copy import deepcopy
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest

from declarative.language.loader import load
from tests.providers.ec2 import run as on_ec2
from tests.providers.ec2.proxy import Line
from tests.providers.ec2.server import AMI
from tests.providers.openstack import run as on_openstack
from tests.providers.openstack.server import REGION, SmallCloud
from tests.support import forked, killing
from tests.support.cli import volume

MANY = 60
"""More than a page of the small OpenStack."""
CHANGES = ("CreateTags", "DeleteTags")
"""What EC2 is asked for besides questions."""


class Ec2:
    """EC2 (moto's), behind a line that counts."""

    name, driver = "aws", "ec2"
    env = on_ec2.SECRETS

    def __init__(self) -> None:
        self.server = on_ec2.RunningEc2()
        self.server.__enter__()
        self.line = Line(self.server.port)
        self.line.__enter__()
        self.client = boto3.client(
            "ec2",
            region_name=on_ec2.REGION,
            endpoint_url=f"http://127.0.0.1:{self.server.port}",
            aws_access_key_id="somebody",
            aws_secret_access_key="else",
        )

    def close(self) -> None:
        self.client.close()
        self.line.__exit__()
        self.server.__exit__()

    def backend(self) -> dict[str, Any]:
        return {
            "type": "backend",
            "name": self.name,
            "driver": self.driver,
            "regions": [on_ec2.REGION],
            "endpoint": f"http://127.0.0.1:{self.line.port}",
            "credentials": on_ec2.CREDENTIALS,
        }

    def make(self, count: int) -> None:
        """Instances and volumes of a team; one volume is on an instance, and one instance is another's."""
        tags = [{"Key": "team", "Value": "ml"}]
        made = self.client.run_instances(
            ImageId=AMI,
            InstanceType="t3.medium",
            MinCount=count,
            MaxCount=count,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )["Instances"]
        for i in range(count):
            named = [*tags, {"Key": "Name", "Value": f"Data {i}"}]
            asked = {"AvailabilityZone": "us-east-1a", "Size": 2, "VolumeType": "gp3"}
            told = [{"ResourceType": "volume", "Tags": named}]
            disk = self.client.create_volume(**asked, TagSpecifications=told)["VolumeId"]
            if i == 0:
                on = made[0]["InstanceId"]
                self.client.attach_volume(VolumeId=disk, InstanceId=on, Device="/dev/sdf")
        self.client.run_instances(ImageId=AMI, InstanceType="t3.medium", MinCount=1, MaxCount=1)

    def all(self) -> dict[str, Any]:
        """Full descriptions, by id."""
        found: dict[str, Any] = {}
        for page in self.client.get_paginator("describe_instances").paginate():
            found |= {i["InstanceId"]: i for r in page["Reservations"] for i in r["Instances"]}
        for page in self.client.get_paginator("describe_volumes").paginate():
            found |= {v["VolumeId"]: v for v in page["Volumes"]}
        return found

    def instances(self) -> list[str]:
        return sorted(made for made in self.all() if made.startswith("i-"))

    @staticmethod
    def tags(thing: dict[str, Any]) -> dict[str, str]:
        return {tag["Key"]: tag["Value"] for tag in thing.get("Tags") or ()}

    @staticmethod
    def without_tags(thing: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in thing.items() if key != "Tags"}

    def asked(self) -> tuple[int, int, int]:
        """Questions, writes of tags, and other changes."""
        reads = sum(n for (a, _), n in self.line.seen.items() if a.startswith("Describe"))
        tagged = sum(self.line.count(action) for action in CHANGES)
        return reads, tagged, self.line.seen.total() - reads - tagged


class OpenStack:
    """A small OpenStack."""

    name, driver = "stack", "openstack"
    env = on_openstack.SECRETS

    def __init__(self) -> None:
        self.cloud = SmallCloud()
        self.cloud.page = 50
        self.made: list[str] = []

    def close(self) -> None:
        self.cloud.__exit__()

    def backend(self) -> dict[str, Any]:
        return {
            "type": "backend",
            "name": self.name,
            "driver": self.driver,
            "regions": [REGION],
            "endpoint": f"{self.cloud.endpoint}/v3",
            "credentials": on_openstack.CREDENTIALS,
            "options": {"project": "demo", "settle": 1},
        }

    def make(self, count: int) -> None:
        """As `Ec2.make`."""
        for i in range(count + 1):
            made = str(uuid.UUID(int=i + 1))
            address = {"version": 4, "addr": f"127.20.0.{i + 1}", "OS-EXT-IPS:type": "fixed"}
            self.cloud.servers[made] = {
                "id": made,
                "name": f"worker-{i}",
                "status": "ACTIVE",
                "metadata": {"team": "ml"} if i < count else {},
                "flavor": {"original_name": "m1.tiny"},
                "created": "2026-01-01T00:00:00Z",
                "addresses": {"inside": [address]},
                "OS-EXT-AZ:availability_zone": "az-1",
                "OS-EXT-STS:task_state": None,
                "OS-SRV-USG:launched_at": "2026-01-01T00:00:00.000000",
            }
        for i in range(count):
            asked = {"name": f"Data {i}", "size": 2, "metadata": {"team": "ml"}}
            made = self.cloud.make_volume({}, {"volume": asked})[1]["volume"]
            made["status"] = "available"
        first = next(iter(self.cloud.volumes.values()))
        server = next(iter(self.cloud.servers))
        first["status"] = "in-use"
        first["attachments"] = [{"server_id": server, "device": "/dev/vdb", "volume_id": first["id"]}]
        self.cloud.seen.clear()

    def all(self) -> dict[str, Any]:
        return deepcopy({**self.cloud.servers, **self.cloud.volumes})

    def instances(self) -> list[str]:
        return sorted(self.cloud.servers)

    @staticmethod
    def tags(thing: dict[str, Any]) -> dict[str, str]:
        return dict(thing["metadata"])

    @staticmethod
    def without_tags(thing: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in thing.items() if key != "metadata"}

    def asked(self) -> tuple[int, int, int]:
        seen = [(m, p, n) for (m, p, _), n in self.cloud.seen.items() if not p.startswith("/identity")]
        reads = sum(n for m, _, n in seen if m == "GET")
        tagged = sum(n for m, p, n in seen if m != "GET" and "/metadata" in p)
        return reads, tagged, sum(n for _, _, n in seen) - reads - tagged


@pytest.fixture(params=[Ec2, OpenStack])
def cloud(request, monkeypatch):
    for name, value in request.param.env.items():
        monkeypatch.setenv(name, value)
    there = request.param()
    yield there
    there.close()


def imported(project, cloud, *args):
    """What `import` prints, in a file of the project."""
    text = project.run("import", "--backend", cloud.name, *args, env=cloud.env).out
    project.write("ml.yaml", text)
    return text


def ours(cloud, things):
    """The ids of what any state has, by the address that is written there."""
    tags = {made: cloud.tags(thing) for made, thing in things.items()}
    return {found["fleetform:address"]: made for made, found in tags.items() if "fleetform:owner" in found}


@pytest.mark.slow
def test_what_others_made_becomes_yaml_and_is_adopted_as_it_is(project, cloud):
    """Many instances and volumes: the next plan is empty, and nothing but tags was changed."""
    cloud.make(MANY)
    before = cloud.all()
    project.declare(cloud.backend(), file="backend.yaml")
    text = imported(project, cloud, "--tag", "team=ml")
    assert cloud.asked()[1:] == (0, 0)
    assert cloud.asked()[0] < 40
    assert text.count("volume_id:") == MANY
    assert "Data" not in text.replace("`data", "")
    assert "running" in text or "ACTIVE" in text
    assert load(project.path).diagnostics == ()
    project.run("fmt", "--check", "ml.yaml")

    plan = project.run("plan", env=cloud.env).out
    assert f"Adopted: {MANY} instances and {MANY} volumes, as they are." in plan
    assert plan.index("Adopted:") < plan.index("Actions")
    assert f"Plan: {2 * MANY} to create, 0 to update, 0 to delete, 0 to replace." in plan
    assert cloud.all() == before

    done = project.apply(env=cloud.env)
    assert "adopted, it stays as it is" in done.err
    reads, tagged, others = cloud.asked()
    assert (tagged, others) == (2 * MANY, 0)
    assert reads < 2 * MANY, "things are listed, and not read one by one"

    after = cloud.all()
    assert {m: cloud.without_tags(t) for m, t in after.items()} == {
        m: cloud.without_tags(t) for m, t in before.items()
    }
    assert len(ours(cloud, after)) == 2 * MANY
    for made, thing in after.items():
        assert cloud.tags(before[made]).items() <= cloud.tags(thing).items()

    again = project.run("plan", "--detailed-exitcode", env=cloud.env).out
    assert "No changes. Everything is as declared." in again
    assert project.run("drift", env=cloud.env).code == 0
    rest = project.run("import", "--backend", cloud.name, "--tag", "team=ml", env=cloud.env).out
    assert "type: " not in rest
    assert "left out, since a state has them" in rest

    destroyed = project.run("destroy", "--auto-approve", env=cloud.env)
    assert "released, it stays as it is" in destroyed.err
    assert cloud.all() == before


def test_what_is_imported_can_be_narrowed(project, cloud):
    cloud.make(2)
    project.declare(cloud.backend(), file="backend.yaml")
    fleets = project.run("import", "--backend", cloud.name, "--only", "instances", env=cloud.env).out
    assert fleets.count("\n  - ") == 1 + 3
    assert "volume_id" not in fleets
    named = project.run("import", "--backend", cloud.name, "--name", "Data 1", env=cloud.env).out
    assert named.count("volume_id") == 1
    assert "type: fleet" not in named
    assert "there is no instance to adopt" in named
    one = cloud.instances()[0]
    whole = project.run("import", "--backend", cloud.name, "--name", one, "--fleet", "lab", env=cloud.env).out
    assert "name: lab\n" in whole
    none = project.run(
        "import", "--backend", cloud.name, "--region", "elsewhere", "--tag", "team", env=cloud.env
    )
    assert "type: " not in none.out
    assert f"warning[unknown-region]: backend {cloud.name} has no region `elsewhere`" in none.err
    unknown = project.run("import", "--backend", "nowhere", code=1, env=cloud.env)
    assert f"it has {cloud.name}" in unknown.err


def test_nothing_is_imported_where_it_is_not_said_from_where(project):
    assert "write `--backend NAME`" in project.run("import", code=1).err
    assert "said twice" in project.run("import", "dstack", "--backend", "aws", code=1).err
    assert "no FILE is named" in project.run("import", "dstack", code=1).err


def named(cloud, *ids, name="lab", **more):
    return {"type": "fleet", "name": name, "backends": [cloud.name], "instance_ids": list(ids), **more}


def test_what_is_taken_out_of_the_yaml_is_let_go(project, cloud):
    """And no other; the others keep their names. A fleet that is removed lets all go."""
    cloud.make(3)
    before = cloud.all()
    one, two, three = cloud.instances()[:3]
    project.declare(cloud.backend(), named(cloud, one, two, three, tags={"by": "us"}))
    project.apply(env=cloud.env)
    assert ours(cloud, cloud.all()) == {"node/lab-0": one, "node/lab-1": two, "node/lab-2": three}
    assert cloud.tags(cloud.all()[two])["by"] == "us"
    project.declare(cloud.backend(), named(cloud, one, three, tags={"by": "us"}))
    plan = project.run("plan", env=cloud.env).out
    assert f"- node/lab-1  # fleet/lab does not name it any more; {two} itself stays: it was adopted" in plan
    project.apply(env=cloud.env)
    assert ours(cloud, cloud.all()) == {"node/lab-0": one, "node/lab-2": three}
    assert cloud.all()[two] == before[two]
    assert "cannot be made anew" in project.run("plan", "--replace", "node/lab-0", code=1, env=cloud.env).err
    project.declare(cloud.backend())
    project.apply(env=cloud.env)
    assert cloud.all() == before


def test_an_instance_is_of_one_state_and_one_address(project, cloud, tmp_path):
    """What another state has is refused by name, and one id stands in one fleet."""
    cloud.make(2)
    one, two = cloud.instances()[:2]
    project.declare(cloud.backend(), named(cloud, one))
    project.apply(env=cloud.env)
    other = type(project)(tmp_path / "other")
    other.path.mkdir()
    other.declare(cloud.backend(), named(cloud, one, two))
    held = cloud.all()
    done = other.apply(env=cloud.env, code=None)
    assert f"instance {one} of fleet/lab is left out: it is node/lab-0 of another state (lineage" in done.err
    assert "take it out of that one first, or, if that is lost, remove fleetform's tags" in done.err
    assert ours(cloud, {one: cloud.all()[one]}) == {"node/lab-0": one}
    assert cloud.all()[one] == held[one]
    assert ours(cloud, {two: cloud.all()[two]}) == {"node/lab-1": two}
    twice = [named(cloud, one), named(cloud, one, name="more")]
    project.declare(cloud.backend(), *twice)
    assert f"`{one}` is an instance of fleet/lab too" in project.run("validate", code=1).err
    other.clean_up()


def test_instances_that_are_not_there_or_of_an_unknown_type_are_left_out(project, cloud):
    cloud.make(1)
    gone = "i-00000000000000bad" if cloud.name == "aws" else "00000000-0000-0000-0000-00000000dead"
    project.declare(cloud.backend(), named(cloud, gone))
    done = project.run("plan", env=cloud.env)
    assert f"instance {gone} of fleet/lab is left out: backend {cloud.name} has no such instance;" in done.err
    assert "it has ended, or is in another region or account: take it out of `instance_ids`" in done.err
    off = project.run("plan", "--offline", env=cloud.env)
    assert "plan without `--offline`" in off.err


def test_a_task_on_an_instance_without_a_login_says_what_to_write(project, cloud):
    cloud.make(1)
    one = cloud.instances()[0]
    job = {"type": "task", "name": "job", "commands": ["true"], "creation_policy": "reuse"}
    project.declare(cloud.backend(), named(cloud, one), file="lab.yaml")
    project.apply(env=cloud.env)
    project.declare(job, file="job.yaml")
    done = project.run("plan", code=3, env=cloud.env)
    said = " ".join((done.out + done.err).split())
    assert "its login user is not declared" in said
    assert "write in its backend `ssh_user: NAME`" in said


def test_an_apply_that_is_killed_is_taken_up_again(project, cloud):
    """Between an intent and its tags, between tags and their record: the same world each time."""
    cloud.make(3)
    before = cloud.all()
    project.declare(cloud.backend(), file="backend.yaml")
    imported(project, cloud, "--tag", "team=ml")
    forked.warm_up()
    apply = ("apply", "--auto-approve", "--parallelism=1")
    kills = [killing.Kill(when, step) for step in (1, 2, 5) for when in ("begin", "finish")]
    for kill in kills:
        killing.fork(project.path, *apply, kill=kill, env=cloud.env)
    output = (project.path / "output").read_text()
    assert killing.fork(project.path, *apply, env=cloud.env) == 0, output
    assert killing.fork(project.path, "plan", "--detailed-exitcode", env=cloud.env) == 0
    assert killing.fork(project.path, "state", "check", env=cloud.env) == 0
    assert len(ours(cloud, cloud.all())) == 6
    destroy = ("destroy", "--auto-approve", "--parallelism=1")
    for kill in kills:
        code = killing.fork(project.path, *destroy, kill=kill, env=cloud.env)
        assert code in (0, -signal.SIGKILL)
    assert killing.fork(project.path, *destroy, env=cloud.env) == 0
    assert cloud.all() == before


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nodes": 2}, "`nodes` and `instance_ids` exclude each other"),
        ({"backends": []}, "`backends` does not name it"),
        ({"backends": ["one", "two"]}, "`backends` does not name it"),
        ({"instance_ids": ["i-1", "i-1"]}, "`i-1` is listed twice"),
        ({"instance_ids": ["a b"]}, "is not the id of an instance"),
        (
            {"resources": {"cpu": 2}},
            "for machines to launch, and `instance_ids` names instances that exist",
        ),
        ({"backends": ["ssh"]}, "`instance_ids` name instances of a cloud, and `ssh` is not a cloud"),
        ({"backends": ["local"]}, "`instance_ids` name instances of a cloud, and `local` is not a cloud"),
    ],
)
def test_instances_exclude_what_is_for_launches(project, fields, said):
    backends = [
        {"type": "backend", "name": name, "driver": "ec2", "regions": ["us-east-1"]}
        for name in ("one", "two")
    ]
    asked = {"backends": ["one"], "instance_ids": ["i-1"], **fields}
    project.declare(*backends, {"type": "fleet", "name": "lab", **asked})
    assert said in " ".join(project.run("validate", code=1).err.split())


def test_drivers_that_cannot_adopt_instances_say_so(project):
    backend = {"type": "backend", "name": "do", "driver": "digitalocean", "regions": ["nyc3"]}
    key = {"credentials": {"key": "FLEETFORM_TEST_KEY"}}
    project.declare({**backend, **key}, volume("data", backend="do", region="nyc3", size="1GB"))
    done = project.run("import", "--backend", "do", code=1, env={"FLEETFORM_TEST_KEY": "x"})
    assert "the driver `digitalocean` does not list instances that others made" in done.err


def test_an_instance_that_is_stopped_stays_so_and_one_that_is_resized_is_adopted_again(project, monkeypatch):
    for name, value in Ec2.env.items():
        monkeypatch.setenv(name, value)
    cloud = Ec2()
    cloud.make(1)
    one = next(made for made, thing in cloud.all().items() if cloud.tags(thing).get("team"))
    cloud.client.stop_instances(InstanceIds=[one])
    project.declare(cloud.backend(), named(cloud, one))
    project.apply(env=cloud.env)
    plan = project.run("plan", env=cloud.env).out
    assert "it is stopped" in plan
    cloud.client.modify_instance_attribute(InstanceId=one, InstanceType={"Value": "t3.large"})
    plan = project.run("plan", env=cloud.env).out
    assert "`instance_type` changed outside of fleetform" in plan
    assert f"{one} itself stays: it was adopted" in plan
    project.apply(env=cloud.env)
    assert cloud.all()[one]["State"]["Name"] == "stopped"
    (node,) = project.run("status", "--json", env=cloud.env).json["nodes"]
    assert node["instance_type"] == "t3.large"
    assert project.run("plan", "--json", env=cloud.env).json["actions"] == []
    cloud.close()
