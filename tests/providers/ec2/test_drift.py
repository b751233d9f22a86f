"""Changes by others to nodes and volumes of EC2 (moto's): seen, shown, undone, and nothing made twice."""

from dataclasses import replace

import pytest

from declarative.apply.backend_look import look
from declarative.apply.backends import Backends
from declarative.model.spec import Backend
from declarative.model.state import Address, Record, State, token
from declarative.model.status import RankState, RankStatus
from declarative.planner.inventory import vanished
from tests.providers.ec2 import run
from tests.providers.ec2.proxy import Line
from tests.providers.ec2.scripted import answer
from tests.providers.ec2.server import AMI
from tests.support.cli import fleet, volume
from tests.support.model import of_attachment, of_kind, spec

ENV = run.SECRETS
EMPTY = {
    "DescribeInstances": "reservationSet",
    "DescribeVolumes": "volumeSet",
    "DescribeKeyPairs": "keySet",
    "DescribeInstanceStatus": "instanceStatusSet",
}
"""What is empty in the answer to an action."""
ZONE = "us-east-1b"
DATA = volume("data", backend="aws", region=run.REGION, availability_zone=ZONE, size="10GB")


@pytest.fixture(scope="module")
def ec2():
    with run.RunningEc2() as running:
        yield running


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


def nodes(count, **more):
    return fleet(
        "gpu", backends=["aws"], nodes=count, resources={"cpu": 2}, availability_zones=[ZONE], **more
    )


class Account:
    """What a project has in EC2, and the hands of people in there."""

    def __init__(self, project, port):
        self.project = project
        self.lineage = project.run("state", "pull", env=ENV).json["lineage"]
        self.provider = run.provider(port, project.path, self.lineage)
        self.region = self.provider._account.region(run.REGION)

    @property
    def ids(self):
        """Address → id, by the records."""
        records = self.project.run("state", "pull", env=ENV).json["records"]
        return {r["address"]: r["outputs"]["id"] for r in records}

    @property
    def alive(self):
        """The ids of everything that belongs to this project, or has no owner."""
        instances = [i for i in self.region.instances({}) if not i.gone]
        return {
            x.id
            for x in (*instances, *self.region.volumes({}))
            if x.tags.get("fleetform:owner", self.lineage) == self.lineage
            and x.zone == ZONE
            and "fleetform:disk-of" not in x.tags
        }

    def untag(self, thing):
        """Remove every tag."""
        found = {**self.region.instances_by_id([thing]), **self.region.volumes_by_id([thing])}[thing].tags
        self.region.untag(thing, list(found))


def drift(plan):
    """Address → what changed, and how."""
    return {d["address"]: (d["change"], d["detail"]) for d in plan["drift"]}


@pytest.fixture
def account(project, ec2):
    """Two nodes and a volume."""
    project.declare(backend(ec2.port), nodes(2, tags={"team": "a"}), DATA)
    project.apply(env=ENV)
    return Account(project, ec2.port)


@pytest.mark.slow
def test_what_others_change_is_seen_and_mended(project, ec2, account):
    """A type, a size, tags: what can be put back in place is, a node of another type is made anew, and what
    lost its tags is neither forgotten nor made twice.
    """
    assert project.plan(env=ENV)["drift"] == []
    before = account.ids
    first, second, disk = (before[a] for a in ("node/gpu-0", "node/gpu-1", "volume/data"))
    account.region.ask("StopInstances", InstanceId=[first])
    account.region.ask("ModifyInstanceAttribute", InstanceId=first, InstanceType={"Value": "m5.large"})
    account.region.ask("StartInstances", InstanceId=[first])
    account.region.ask("ModifyVolume", VolumeId=disk, Size=20)
    account.untag(second)
    account.untag(disk)
    plan = project.plan(env=ENV)
    was = next(a for a in plan["actions"] if a["id"] == "delete:node/gpu-0")["before"]["instance_type"]
    assert drift(plan) == {
        "node/gpu-0": ("changed", f"`instance_type` is m5.large, and was {was}"),
        "node/gpu-1": ("changed", "its tag `team` was removed"),
        "volume/data": (
            "changed",
            "`size` is 20GB, and was 10GB; the tags that fleetform wrote on it were changed or removed",
        ),
    }
    todo = {a["id"]: (a["reason"], a["because"]) for a in plan["actions"]}
    assert todo == {
        "delete:node/gpu-0": ("drift", ["instance_type"]),
        "create:node/gpu-0": ("drift", ["instance_type"]),
        "update:node/gpu-1": ("drift", ["tags"]),
        "update:volume/data": ("drift", ["tags"]),
    }
    text = project.run("plan", env=ENV).out
    assert "Changed outside of fleetform:" in text
    assert "~ node/gpu-1  # `tags` changed outside of fleetform" in text

    project.apply(env=ENV)
    after = account.ids
    assert (after["node/gpu-1"], after["volume/data"]) == (second, disk)
    assert after["node/gpu-0"] != first
    assert account.alive == set(after.values())
    assert {t.outputs["id"] for t in account.provider.inventory()} == set(after.values())
    mended = account.region.instances_by_id([second])[second].tags
    assert (mended["team"], mended["Name"]) == ("a", "gpu-1")
    assert mended["fleetform:host-key"].startswith("ssh-ed25519 ")
    # A disk does not shrink. Who declares what is there ends the difference.
    plan = project.plan(env=ENV)
    assert (plan["actions"], drift(plan)) == (
        [],
        {"volume/data": ("changed", "`size` is 20GB, and was 10GB")},
    )
    project.declare(backend(ec2.port), nodes(2, tags={"team": "a"}), {**DATA, "size": "20GB"})
    project.apply(env=ENV)
    plan = project.plan(env=ENV)
    assert (plan["actions"], plan["drift"]) == ([], [])


def test_what_has_become_anothers_is_left_alone(project, ec2, account):
    """It is neither changed nor deleted, nor made a second time; the way out is named."""
    thing = account.ids["node/gpu-1"]
    account.region.tag(thing, {"fleetform:owner": "another-state"})
    plan = project.plan(env=ENV)
    assert drift(plan) == {"node/gpu-1": ("changed", "its tags say that it is another's: it is left alone")}
    assert plan["actions"] == []
    project.declare(backend(ec2.port), nodes(1, tags={"team": "a"}), DATA)
    refused = project.apply(code=4, env=ENV)
    assert "does not carry this state's tags" in refused.out
    assert "`fleetform state rm` forgets it" in refused.out
    assert not account.region.instances_by_id([thing])[thing].gone
    account.region.tag(thing, {"fleetform:owner": account.lineage})


# ------------------------------------------------------------------------------------- one look


class Made:
    """What one lineage made, as it is recorded; `look` is what every command does first."""

    def __init__(self, port, folder, lineage):
        self.lineage = lineage
        self.folder = folder
        self.provider = run.provider(port, folder, lineage)
        self.region = self.provider._account.region(run.REGION)
        self.backend = spec(Backend, {k: v for k, v in backend(port).items() if k != "type"})
        self.records = {}
        self.ranks = {}

    def make(self, address, *needs, **inputs):
        """One thing, and its record."""
        address = Address.parse(address)
        where = {} if address.kind == "attachment" else {"region": run.REGION, "zone": ZONE}
        inputs = of_kind(address.kind, **{"backend": "aws", **where, **inputs})
        held = {need.address: need for need in needs}
        made_of = token(self.lineage, address, 1, inputs.get("zone"))
        outputs = self.provider.create(address, made_of, inputs, held)
        self.records[address] = Record(
            address=address, backend="aws", inputs=inputs, outputs=outputs, needs=frozenset(held)
        )
        return self.records[address]

    @property
    def state(self):
        return State(lineage=self.lineage, records=self.records, ranks=self.ranks)

    def look(self, **more):
        """The inventory; `more` changes the backend."""
        declared = {"aws": replace(self.backend, **more)}
        return look(self.state, Backends(declared, self.folder, self.lineage, self.state), offers=False)


@pytest.fixture
def made(ec2, tmp_path, request):
    return Made(ec2.port, tmp_path, f"lineage-of-{request.node.name}")


def test_a_volume_that_somebody_detached(made):
    """Before its rank starts, it is attached again; under a running rank, it is only reported."""
    node = made.make("node/gpu-0", instance_type="t3.micro", fleet="gpu")
    disk = made.make("volume/data-0", size="1GB")
    words = of_attachment("t-0", "gpu-0", "data-0")
    held = made.make("attachment/t-0.data-0", disk, node, **words)
    assert made.look().inventory.drift == ()
    made.region.ask("DetachVolume", VolumeId=disk.outputs["id"], InstanceId=node.outputs["id"])
    seen = made.look().inventory
    what = "detached: volume/data-0 is not on node/gpu-0"
    assert [(d.address, d.change, d.detail) for d in seen.drift] == [(str(held.address), "gone", what)]
    assert seen.gone == {held.address}
    assert vanished(made.state, seen) == ()

    rank = Address("rank", "t-0")
    made.records[rank] = Record(address=rank, backend="aws", inputs={"task": "t", "rank": 0, "commands": []})
    made.ranks["t-0"] = RankStatus(state=RankState.RUNNING)
    seen = made.look().inventory
    assert seen.gone == frozenset()
    assert [(d.change, d.detail) for d in seen.drift] == [
        ("changed", f"{what}, and rank/t-0 runs on without it")
    ]
    made.ranks["t-0"] = RankStatus(state=RankState.FAILED)
    assert made.look().inventory.drift == ()


def test_an_empty_answer_is_not_believed(made, ec2):
    """Another account, another region, an API with nothing to say: one thing that is missing is enough."""
    node = made.make("node/gpu-0", instance_type="t3.micro", fleet="gpu")
    nothing = {action: answer(action, f"<{name}/>") for action, name in EMPTY.items()}
    with Line(ec2.port) as line:
        line.rules.append(lambda asked: nothing.get(asked["Action"]))
        seen = made.look(endpoint=f"http://127.0.0.1:{line.port}").inventory
        assert (seen.gone, seen.unsure) == ({node.address}, {node.address})
        assert vanished(made.state, seen) == (node.address,)
        # Its key pair is there: then it is the right account, and the node has ended long ago.
        del nothing["DescribeKeyPairs"]
        seen = made.look(endpoint=f"http://127.0.0.1:{line.port}").inventory
        assert (seen.gone, seen.unsure) == ({node.address}, frozenset())
        assert vanished(made.state, seen) == ()
    # What EC2 itself says to have ended is gone, whatever else is there.
    made.region.ask("TerminateInstances", InstanceId=[node.outputs["id"]])
    seen = made.look().inventory
    assert (seen.gone, seen.unsure) == ({node.address}, frozenset())


def test_any_number_that_ec2_itself_says_to_have_ended_is_believed(made, ec2):
    """Terminated, or not known any more when it is asked for by its id: that is no listing that is empty."""
    nodes = [made.make(f"node/gpu-{i}", instance_type="t3.micro", fleet="gpu") for i in range(3)]
    ids = [node.outputs["id"] for node in nodes]
    every = {node.address for node in nodes}
    with Line(ec2.port) as line:
        nothing = answer("DescribeInstances", "<reservationSet/>")
        line.rules.append(lambda asked: nothing if asked["Action"] == "DescribeInstances" else None)
        seen = made.look(endpoint=f"http://127.0.0.1:{line.port}").inventory
        assert (seen.gone, set(vanished(made.state, seen))) == (every, every)
        # Of two it says that there are none of them. The third, of which it says nothing, is one alone.
        denied = f"400=InvalidInstanceID.NotFound=The instance IDs '{', '.join(ids[:2])}' do not exist"
        line.rules.insert(0, lambda asked: denied if "InstanceId.1" in asked else None)
        seen = made.look(endpoint=f"http://127.0.0.1:{line.port}").inventory
        assert (seen.gone, vanished(made.state, seen)) == (every, ())
        assert seen.ended == {n.address: f"EC2 knows no {n.outputs['id']} any more" for n in nodes[:2]}
    made.region.ask("TerminateInstances", InstanceId=ids[:2])
    seen = made.look().inventory
    assert (seen.gone, vanished(made.state, seen)) == (every - {nodes[2].address}, ())
    assert {*seen.ended.values()} == {"Client.UserInitiatedShutdown: User initiated shutdown"}
    assert {d.detail for d in seen.drift} == {*seen.ended.values()}


def test_what_a_listing_lacks_is_asked_for_by_its_id(made, ec2):
    """A listing and a look by the token without it, and it is there all the same."""
    node = made.make("node/gpu-0", instance_type="t3.micro", fleet="gpu")
    disk = made.make("volume/data-0", size="1GB")
    with Line(ec2.port) as line:

        def hidden(asked):
            """Filters by tags find nothing."""
            by_tag = any(k.startswith("Filter.") and v.startswith("tag:") for k, v in asked.items())
            action = asked["Action"]
            return answer(action, f"<{EMPTY[action]}/>") if by_tag else None

        line.rules.append(hidden)
        seen = made.look(endpoint=f"http://127.0.0.1:{line.port}").inventory
    assert (seen.gone, seen.drift) == (frozenset(), ())
    made.region.untag(disk.outputs["id"], ["fleetform:owner"])
    made.region.untag(node.outputs["id"], ["fleetform:owner"])
    seen = made.look().inventory
    assert (seen.gone, set(seen.altered)) == (frozenset(), {node.address, disk.address})
    assert not [d for d in seen.drift if d.change != "changed"]
