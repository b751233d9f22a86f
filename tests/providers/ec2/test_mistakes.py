"""Mistakes of users with EC2 (moto's): the plan reports them if it can, and nothing is made."""

import json
import re
import signal
import socket
import threading

import pytest

from tests.providers.ec2 import run
from tests.providers.ec2.proxy import Line
from tests.providers.ec2.scripted import answer
from tests.providers.ec2.server import AMI
from tests.support.cli import ended, fleet, task, volume
from tests.support.rounds import Clock, Here

ENV = run.SECRETS
ZONE = "us-east-1d"


@pytest.fixture(scope="module")
def ec2():
    with run.RunningEc2() as running:
        yield running


@pytest.fixture
def line(ec2):
    with Line(ec2.port) as found:
        yield found


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in run.SECRETS.items():
        monkeypatch.setenv(name, value)


def backend(port, **more):
    return {
        "type": "backend",
        "name": "aws",
        "driver": "ec2",
        "regions": [run.REGION],
        "endpoint": f"http://127.0.0.1:{port}",
        "credentials": run.CREDENTIALS,
        "image": AMI,
        **more,
    }


def small(nodes=1, **more):
    """A fleet for which there is one offer."""
    where = {"backends": ["aws"], "availability_zones": [ZONE], "instance_types": ["t3.micro"]}
    return fleet("gpu", nodes=nodes, resources={"cpu": 2}, **where, **more)


def says(done, *words):
    """What was printed has these words, and no secret."""
    text = done.out + done.err
    for word in words:
        assert word in text, text
    assert "Traceback" not in text
    assert not [s for s in ENV.values() if s in text]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("401=AuthFailure", ("AuthFailure", "check the values of the variables that `credentials` names")),
        ("403=SignatureDoesNotMatch", ("check the value of the variable that `credentials.secret` names",)),
        ("400=RequestExpired", ("RequestExpired", "check this machine's clock")),
        ("403=UnauthorizedOperation", ("UnauthorizedOperation", "give the key the right to do this, in IAM")),
    ],
)
def test_whom_ec2_does_not_let_in(project, line, fault, words):
    """The plan says so, and so does an apply before it makes anything."""
    project.declare(backend(line.port), small())
    line.rules.append(lambda _: fault)
    command = ("apply", "--auto-approve") if fault.startswith("401") else ("plan",)
    says(project.run(*command, code=1, env=ENV), "error[backend-refuses]", *words)
    assert line.count("RunInstances") == 0


@pytest.mark.slow
def test_a_cloud_that_cannot_be_read_is_no_success(project, line):
    """A nightly check whose credentials have expired is not green: by its exit code, nor by its JSON."""
    project.declare(backend(line.port), small())
    project.apply(env=ENV)
    line.rules.append(lambda _: "401=AuthFailure")
    done = project.run("plan", "--json", "--detailed-exitcode", code=2, env=ENV)
    assert done.json["result"] == "unhealthy"
    (found,) = done.json["health"]
    assert (found["address"], found["state"]) == ("backend/aws", "unreadable")
    assert "AuthFailure" in found["detail"]
    assert project.run("status", "--json", env=ENV).json["health"] == [found]
    says(project.run("plan", env=ENV), "Not well:", "Nothing is changed, but 1 backend could not be read.")
    says(project.apply(code=4, env=ENV), "backend/aws could not be read", "Fix that, and apply again")
    says(project.run("destroy", "--auto-approve", code=4, env=ENV), "Fix that, and destroy again")
    summary = json.loads(project.apply("--json", code=4, env=ENV).out.splitlines()[-1])
    assert (summary["result"], summary["health"]) == ("failed", [found])
    line.rules.clear()
    assert json.loads(project.apply("--json", env=ENV).out.splitlines()[-1])["result"] == "done"


def test_a_loop_goes_on_without_what_a_cloud_refuses(project, line, capsys):
    """Other things are made in the same round. The refusal is reported once, and tried again at growing
    intervals.
    """
    line.rules.append(lambda _: "403=UnauthorizedOperation")
    desk = fleet("desk", backends=["local"], nodes=1)
    project.declare({"type": "project", "name": "lab"}, backend(line.port), small(), desk)
    here = Here(project.path, Clock())
    try:
        for seconds, made in ((0, {"create:node/desk-0"}), (5, set()), (30, set())):
            done = here.step(seconds)
            assert {result.id for result in done.results} == made
            assert ([error.code for error in done.errors], here.rounds.code) == (["backend-refuses"], 4)
            (wait,) = [w for w in done.waits if w.address == "node/gpu-0"]
            assert wait.why.startswith("is tried again later: backend aws would refuse this plan: ")
        assert capsys.readouterr().err.count("error[backend-refuses]") == 1
        line.rules.clear()
        done = here.step(600)
        assert {result.id for result in done.results} == {"create:node/gpu-0"}
        assert (done.errors, here.rounds.code) == ((), 0)
    finally:
        here.close()


def test_a_loop_goes_on_without_a_fleet_that_nothing_can_be_made_for(project, line):
    desk = fleet("desk", backends=["local"], nodes=1)
    nowhere = fleet("nowhere", backends=["aws"], regions=["us-est-1"])
    project.declare({"type": "project", "name": "lab"}, backend(line.port), nowhere, desk)
    here = Here(project.path, Clock())
    try:
        for made in ({"create:node/desk-0"}, set()):
            done = here.step(1)
            assert {result.id for result in done.results} == made
            assert ([error.code for error in done.errors], here.rounds.code) == (["no-offer"], 4)
            assert [wait.address for wait in done.waits] == ["fleet/nowhere"]
    finally:
        here.close()


def test_a_region_that_does_not_answer_is_named(project, line, tmp_path):
    """Even if the others answer: users need not find out which one it is."""
    shorter = "import declarative.retry as d; d.PATIENCE = d.Policy(deadline=0.0)\n"
    (tmp_path / "sitecustomize.py").write_text(shorter)
    env = {**ENV, "PYTHONPATH": str(tmp_path)}
    project.declare({**backend(line.port), "regions": ["us-east-1", "us-west-2", "eu-west-1"]}, small())
    project.apply(env=ENV)
    line.rules.append(lambda asked: "503=Unavailable" if asked["@region"] == "us-west-2" else None)
    done = project.run("plan", "--json", "--detailed-exitcode", code=2, env=env)
    (found,) = done.json["health"]
    assert (done.json["result"], found["address"], found["state"]) == (
        "unhealthy",
        "backend/aws",
        "unreadable",
    )
    assert "us-west-2" in found["detail"]
    assert "Unavailable" in found["detail"]
    assert "us-east-1" not in found["detail"]


def test_ctrl_c_ends_a_plan_whose_questions_nobody_answers(project):
    """At once: they are asked by threads that may wait for a long time."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        project.declare(backend(silent.getsockname()[1], options={"timeout": 3600}), small())
        plan = project.start("plan", env=ENV)
        silent.settimeout(120)
        asked, _ = silent.accept()
        plan.send_signal(signal.SIGINT)
        assert "interrupted" in ended(plan, 130).err
        asked.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"image": "ami-0123456789"}, ("us-east-1 has no image ami-0123456789", "images are of one region")),
        ({"image": "noble"}, ("us-east-1 has no image noble", "`image: {filter: {name: …, owner: …}}`")),
        ({"image": {"eu-west-1": AMI}}, ("names no image for us-east-1",)),
        ({"options": {"architecture": "arm64"}}, ("is for x86_64, and nodes are arm64",)),
        ({"network": {"subnets": {ZONE: "subnet-0a"}}}, ("us-east-1 has no subnet subnet-0a",)),
        ({"endpoint": "https://127.0.0.1:PORT"}, ("the server does not use TLS: write `http://",)),
        ({"endpoint": "http://127.0.0.1:1"}, ("backend-unreadable", "no server answers there")),
        ({"endpoint": None, "regions": ["us-esat-1"]}, ("EC2 has no region `us-esat-1`", "did you mean")),
        (
            {"credentials": {"key": "FLEETFORM_TEST_KEY", "secret": "AWS_UNSET"}},
            ("variable AWS_UNSET is not set",),
        ),
        ({"credentials": {"key": "FLEETFORM_TEST_KEY"}}, ("names no `secret` under `credentials`",)),
    ],
    ids=[
        "image",
        "image by name",
        "no image",
        "architecture",
        "subnet",
        "tls",
        "nobody",
        "region",
        "unset",
        "not named",
    ],
)
def test_what_a_backend_says_wrong(project, line, settings, words):
    """Each is found by the plan, in words, and nothing is asked to be made."""
    given = {
        k: v.replace("PORT", str(line.port)) if k == "endpoint" and v else v for k, v in settings.items()
    }
    declared = {k: v for k, v in backend(line.port, **given).items() if v is not None}
    nodes = small()
    if "architecture" in str(settings):
        nodes["instance_types"] = ["t4g.micro"]
    project.declare(declared, nodes)
    done = project.run("plan", code=None, env=ENV)
    says(done, *words)
    assert re.search(r"--> \S+\.ya?ml:\d+:\d+\n", done.err), done.err  # where the backend is declared
    assert done.code == (0 if "backend-unreadable" in words else 1)
    assert line.count("RunInstances") == 0


@pytest.mark.parametrize(
    ("disk", "words"),
    [
        (
            {"availability_zone": "us-east-1z"},
            ("us-east-1 has no zone `us-east-1z`", "did you mean"),
        ),
        ({"volume_type": "gp33"}, ("EC2 has no volumes of the type `gp33`", "did you mean `gp3`")),
        ({"volume_type": "st1"}, ("has 125 to 16384 GB, and not 1",)),
        ({"availability_zone": None}, ("is in one zone, and none is named",)),
    ],
    ids=["zone", "type", "size", "no zone"],
)
def test_what_a_volume_says_wrong(project, line, disk, words):
    """The plan finds each mistake, and shows it at the volume's declaration, where it has to be fixed."""
    declared = {**volume(backend="aws", region=run.REGION, availability_zone=ZONE), **disk}
    project.declare(backend(line.port), {k: v for k, v in declared.items() if v is not None})
    says(project.run("plan", code=1, env=ENV), "error[backend-refuses]", ' "name": "data"', *words)
    assert line.count("CreateVolume") == 0


def test_a_disk_that_is_smaller_than_its_image(project, line):
    declared = backend(line.port, options={"disk_size": 1})
    project.declare(declared, small())
    says(
        project.run("plan", code=1, env=ENV),
        "error[backend-refuses]",
        f"the image {AMI} needs a disk of",
        "`options: {disk_size:",
    )


def test_what_a_plan_asks_is_asked_side_by_side(project, line):
    """Who may ask, and for the image: neither waits for the other's answer."""
    both = threading.Barrier(2)

    def wait(asked):
        others = asked.get("Filter.1.Name") == "tag:fleetform:address"  # they are looked for before
        if asked["Action"] in ("DescribeInstances", "DescribeImages") and not others:
            both.wait(60)

    project.declare(backend(line.port), small())
    line.meet = wait
    assert project.run("plan", "--json", env=ENV).json["result"] == "changes"
    assert not both.broken


def test_gpus_that_no_instance_type_has(project, line):
    """By how much they fall short, and that no waiting mends it."""
    nodes = fleet(
        "gpu", backends=["aws"], nodes="0..2", resources={"gpu": "1.."}, instance_types=["g5.xlarge"]
    )
    project.declare(backend(line.port), nodes, task("big", "true", resources={"gpu": 8}))
    plan = project.plan(code=3, env=ENV)
    (refused,) = plan["unplaced"]
    assert refused["code"] == "never-fits"
    shorts = [r["short"] for rank in refused["ranks"] for r in rank["rejections"]]
    assert [s for s in shorts if s.get("gpu") == 7], refused
    says(project.apply(code=3, env=ENV), "never-fits")
    assert line.count("RunInstances") == 0


def test_a_quota_of_ten(project, line):
    """Ten are made, the others are reported; once there is room the rest comes, and nothing twice."""
    made: set[str] = set()
    most = 10

    def quota(asked):
        """EC2 counts what was asked for with another token each."""
        if asked["Action"] != "RunInstances":
            return None
        if asked["ClientToken"] not in made and len(made) == most:
            return "400=InstanceLimitExceeded"
        made.add(asked["ClientToken"])
        return None

    line.rules.append(quota)
    project.declare(backend(line.port), small(12))
    done = project.apply(code=4, env=ENV)
    says(done, "InstanceLimitExceeded", "ask AWS for a higher quota, or lower the fleet's `nodes`")
    assert "10 done, 2 failed" in done.out
    lineage = project.run("state", "pull", env=ENV).json["lineage"]
    there = run.provider(line.port, project.path, lineage)
    assert len(there.inventory()) == len(there._nodes.listed()) == 10
    assert len(project.run("state", "list", "node", env=ENV).out.split()) == 10
    most = 12
    project.apply(env=ENV)
    assert len(there.inventory()) == 12
    assert project.plan(env=ENV)["result"] == "none"


def test_a_zone_that_is_sold_out(project, line):
    """The plan names the zones and types that `apply` takes instead, in the order in which it tries them."""
    types = ["t3.micro", "t3a.micro", "t3.small"]
    where = {"backends": ["aws"], "availability_zones": [f"us-east-1{z}" for z in "abcd"]}
    project.declare(
        backend(line.port), fleet("gpu", nodes=1, resources={"cpu": 2}, instance_types=types, **where)
    )
    plan = project.plan(env=ENV)
    (made,) = [a["after"] for a in plan["actions"] if a["address"] == "node/gpu-0"]
    (fallback,) = plan["fallbacks"]
    assert fallback["for"] == ["node/gpu-0"]
    prices = {offer["price"] for offer in fallback["offers"]}
    assert max(prices) <= made["price"] * 1.2
    assert "t3.small" not in {offer["instance_type"] for offer in fallback["offers"]}
    second = fallback["offers"][1]
    asked: list[tuple[str, str]] = []

    def room(request):
        if request["Action"] != "RunInstances":
            return None
        asked.append((request["InstanceType"], request["Placement.AvailabilityZone"]))
        there = asked[-1] == (second["instance_type"], second["zone"])
        return None if there else "500=InsufficientInstanceCapacity"

    line.rules.append(room)
    project.apply("--expect", plan["digest"], env=ENV)
    offers = [(o["instance_type"], o["zone"]) for o in (made, *fallback["offers"][:2])]
    assert offers == list(dict.fromkeys(asked))
    cost = project.plan(env=ENV)["cost"]
    assert cost["hourly_after"] <= plan["cost"]["hourly_at_most"]


def test_the_wrong_account(project, line):
    """It has nothing of this state: nothing is made a second time there, and nothing is forgotten."""
    project.declare(backend(line.port), small())
    project.apply(env=ENV)
    before = project.run("state", "pull", env=ENV).out
    empty = {
        "DescribeInstances": "reservationSet",
        "DescribeVolumes": "volumeSet",
        "DescribeKeyPairs": "keySet",
        "DescribeInstanceStatus": "instanceStatusSet",
    }
    seen = line.count("RunInstances")
    line.rules.append(
        lambda a: answer(a["Action"], f"<{empty[a['Action']]}/>") if a["Action"] in empty else None
    )
    says(project.run("plan", env=ENV), "node/gpu-0", "check it before")
    done = project.apply(code=1, env=ENV)
    says(done, "error[vanished]", "are these the credentials, the endpoint and the regions")
    assert line.count("RunInstances") == seen
    line.rules.clear()
    for command, code in (("status", 0), ("destroy", 1)):  # one message, with the place
        done = project.run(command, *(["--orphans"] if code else []), code=code)
        assert done.err.count("[backend-unreadable]") == done.err.count(' "name": "aws"') == 1, done.err
    assert project.run("state", "pull", env=ENV).out == before
    assert project.plan(env=ENV)["drift"] == []


def test_an_identity_that_the_policy_does_not_allow_is_refused(project, line, tmp_path):
    """By the plan, at the fleet; and by the apply of a plan that was made where it is allowed."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("type: policy\nidentities: [ml-*]\n")
    strict = {**ENV, "FLEETFORM_POLICY": str(policy)}
    project.declare(backend(line.port), small(identity="admin"))
    words = ("error[backend-refuses]", "does not allow the identity `admin`", "(`identities`)")
    says(project.run("plan", code=1, env=strict), *words)
    project.run("plan", "--out", "saved.plan", env=ENV)
    done = project.run("apply", "saved.plan", code=None, env=strict)
    assert done.code != 0
    says(done, "does not allow the identity `admin`")
    assert line.count("RunInstances") == 0
    project.declare(backend(line.port), small(identity="ml-nodes"))
    assert '"identity": "ml-nodes"' in project.run("plan", "--json", env=strict).out.replace('":"', '": "')
