"""The driver `openstack` against a small cloud (tests/providers/openstack/server.py), which can lose answers.
tests/providers/openstack/real runs the same suite against a real one.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import pytest

from declarative.model.state import Address, Record, token
from declarative.model.status import NodeState
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from declarative.retry import Policy, call
from providers.cloud import account
from providers.cloud.marks import OWNER
from providers.cloud.openstack import OpenStack
from providers.cloud.openstack.region import Region
from providers.testing import NODE, VOLUME, Conformance, Crowd, Spoilt
from tests.providers.ec2.proxy import LUCK
from tests.providers.openstack.run import SECRETS, config
from tests.providers.openstack.server import REGION, Refusal, SmallCloud
from tests.support.model import of_attachment, of_kind, of_node

PLACE = {"region": REGION, "zone": "az-1", "backend": "stack"}


@pytest.fixture(scope="module")
def shared():
    with SmallCloud() as running:
        yield running


@pytest.fixture
def cloud():
    with SmallCloud() as running:
        yield running


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(account, "FIRST_PAUSE", 0.002)  # what takes a while there takes a look


LOSSES = (("POST", "/servers"), ("POST", "/volumes"))


class Bare(OpenStack):
    """Its nodes are ready when nova says so: no host answers."""

    def readiness(self, nodes):
        return {name: seen.readiness for name, seen in self._nodes.readiness(nodes).items()}


class TestOpenStack(Conformance):
    backend = "stack"
    ranks = False  # nothing is behind the servers
    many = 7
    crowd = 0  # see TestOpenStackCrowd
    node_inputs = MappingProxyType({**NODE, **PLACE, "instance_type": "m1.tiny"})
    volume_inputs = MappingProxyType({**VOLUME, **PLACE})
    larger = MappingProxyType({**volume_inputs, "size": "2GB", "tags": {"team": "a"}})

    @pytest.fixture(autouse=True)
    def server(self, shared):
        self.cloud = shared

    def make(self, folder, lineage):
        return Bare(config(self.cloud, folder, lineage))

    @pytest.fixture(autouse=True)
    def line(self, server):
        """Another way to the same cloud."""
        with SmallCloud() as cloud:
            for name in ("servers", "volumes", "pairs", "tokens"):
                setattr(cloud, name, getattr(self.cloud, name))
            self.bad = cloud
            yield

    def spoiled(self, folder, lineage, how):
        rules = {
            Spoilt.LOST: lambda m, p: "lost" if (m, p[-8:]) in LOSSES else None,
            Spoilt.SENSELESS: lambda *_: "<html><body>Welcome!</body></html>",
            Spoilt.DENIED: lambda *_: "401=The request you have made requires authentication.",
        }
        if how is Spoilt.NOBODY:
            return Bare(config(self.bad, folder, lineage, endpoint="http://127.0.0.1:1"))
        self.bad.rules[:] = [rules[how]]
        return Bare(config(self.bad, folder, lineage))


class TestOpenStackCrowd(Crowd):
    """1,100 nodes, which are there without having been made one by one."""

    backend = "stack"
    node_inputs = TestOpenStack.node_inputs

    @pytest.fixture(autouse=True)
    def server(self, cloud):
        self.cloud = cloud
        cloud.page = 300

    def make(self, folder, lineage):
        return Bare(config(self.cloud, folder, lineage))

    def gather(self, place, wanted):
        """As `create` would have written it."""
        account = place.provider._account
        first = place.create(wanted[0])
        pattern = self.cloud.servers[first.outputs["id"]]
        made = [first]
        for i, record in enumerate(wanted[1:], 1):
            thing = f"00000000-0000-0000-0000-{i:012}"
            mark = account.mark(record.address, place.token(record), record.inputs)
            own = {"id": thing, "name": record.address.name, "metadata": account.tags(mark)}
            self.cloud.servers[thing] = {**pattern, **own}
            made.append(replace(record, outputs={"id": thing}))
        return made

    def disperse(self, place, made):
        """The server goes with the test."""
        pages = self.cloud.seen["GET", "/compute/v2.1/servers/detail", None]
        assert pages >= len(made) / self.cloud.page


del Conformance, Crowd  # they are no tests themselves


# ------------------------------------------------------------------------------------------- chaos

JOBS = 200 if os.environ.get("FLEETFORM_EXAMPLES") == "many" else 16
SEEDS = (1, 2, 3, 4) if JOBS == 200 else (1,)
WORKERS = 16 if JOBS == 200 else 8
ZONES = ("az-1", "az-2", "az-3")
FULL = ZONES[1]
QUICK = Policy(deadline=300.0, first=0.02, longest=0.3)
SMALL = {"instance_type": "m1.tiny", "fleet": "gpu"}


class Fleet:
    """One lineage that makes things as the tool would: every call is tried again."""

    def __init__(self, cloud, folder, lineage="lineage-1", **more):
        self.provider = Bare(config(cloud, folder, lineage, **more))
        self.lineage = lineage

    def create(self, kind, name, zone, *needs, generation=1, **inputs):
        """One thing: its record."""
        place = {"region": REGION, "zone": zone} if kind != "attachment" else {}
        record = Record(
            address=Address(kind, name), backend="stack", inputs=of_kind(kind, **{**place, **inputs})
        )
        made_of = token(self.lineage, record.address, generation, zone)
        held = {need.address: need for need in needs}
        outputs = call(
            lambda: self.provider.create(record.address, made_of, record.inputs, held), policy=QUICK
        )
        return replace(record, outputs=outputs)

    def node(self, **more):
        """The node that most tests are about."""
        return self.create("node", "gpu-0", "az-1", **{**SMALL, **more})

    def disk(self, **more):
        """Its volume."""
        return self.create("volume", "data-0", "az-1", **{"size": "1GB", **more})

    def held(self, node, disk):
        """The volume on the node."""
        inputs = of_attachment("t-0", node.address.name, disk.address.name)
        return self.create("attachment", f"t-0.{disk.address.name}", None, disk, node, **inputs)

    def pair(self, i):
        """A node in the first zone that has room, and a volume on it."""
        for zone in ZONES[i % 3 :] + ZONES[: i % 3]:
            try:
                node = self.create("node", f"gpu-{i}", zone, **SMALL)
                break
            except PermanentError as error:
                assert (error.kind, zone) == (PermanentKind.NO_CAPACITY, FULL)  # noqa: PT017
        volume = self.create("volume", f"data-{i}", node.inputs["zone"], size="1GB")
        inputs = of_attachment(f"t-{i}", f"gpu-{i}", f"data-{i}")
        held = self.create("attachment", f"t-{i}.data-{i}", None, volume, node, **inputs)
        return node, volume, held


@pytest.fixture
def fleet(cloud, tmp_path):
    return Fleet(cloud, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_each_is_made_once_whatever_is_lost(tmp_path, seed):
    """Every third request is lost, cut, refused for now, or done without an answer, and one zone is full: as
    many are made as were asked for, each with its metadata and its volume, though nova knows no tokens.
    """
    with SmallCloud(seed=seed) as cloud:
        cloud.full.add((FULL, "m1.tiny"))
        cloud.page = 100
        fleet = Fleet(cloud, tmp_path, f"chaos-{seed}")
        with ThreadPoolExecutor(WORKERS) as pool:
            made = list(pool.map(fleet.pair, range(JOBS)))
        things = call(fleet.provider.inventory, policy=QUICK)
        assert {t.address: dict(t.outputs) for t in things} == {
            r.address: dict(r.outputs) for records in made for r in records
        }
        assert (len(cloud.alive()), len(cloud.volumes)) == (JOBS, JOBS)
        assert all(v["status"] == "in-use" and len(v["attachments"]) == 1 for v in cloud.volumes.values())
        for node, volume, held in made[:5]:
            for record in (held, node, volume):
                call(partial(fleet.provider.delete, record), policy=QUICK)
        assert (len(cloud.alive()), len(cloud.volumes)) == (JOBS - 5, JOBS - 5)
        assert {fault for *_, fault in cloud.seen if fault} >= set(LUCK)


# -------------------------------------------------------------------------------------------- once


def ways(fault, path="/servers", times=1):
    """A rule that spoils the first requests that make something."""
    left = [fault] * times

    def rule(method, asked):
        return left.pop() if left and method == "POST" and asked.endswith(path) else None

    return rule


@pytest.mark.parametrize("fault", ["lost", "reset", "cut", "page", "lost-before"])
def test_a_create_without_an_answer_makes_one(cloud, fleet, fault):
    """Whether it was carried out or not."""
    cloud.rules += [ways(fault), ways(fault, "/volumes")]
    node, disk = fleet.node(), fleet.disk()
    assert list(cloud.servers) == [node.outputs["id"]]
    assert list(cloud.volumes) == [disk.outputs["id"]]
    again = 2 if fault in ("page", "lost-before") else 1
    assert sum(m == "POST" and p == "/compute/servers" for m, p, _ in cloud.asked) == again - (again > 1)


def test_a_server_that_is_not_shown_yet_is_waited_for(cloud, fleet, monkeypatch):
    """It may be there: another one in its place would be one too many."""
    looks, look = iter([None] * 6), Region.server
    monkeypatch.setattr(Region, "server", lambda self, made: next(looks, True) and look(self, made))
    node = fleet.node()
    assert list(cloud.servers) == [node.outputs["id"]]
    assert next(looks, "none is left") == "none is left"


def test_what_came_twice_all_the_same_is_taken_away(cloud, fleet):
    """A create that was held up somewhere for longer than anybody waits. The older one stays, for all."""
    node, disk = fleet.node(), fleet.disk()
    for things, made in ((cloud.servers, node.outputs["id"]), (cloud.volumes, disk.outputs["id"])):
        twin = {**things[made], "id": "00000000-0000-0000-0000-000000000000"}
        twin |= {"created": "2026-01-01T00:01:01Z", "created_at": "2026-01-01T00:01:01"}
        things[twin["id"]] = twin
    assert fleet.node().outputs == node.outputs
    assert fleet.disk().outputs == disk.outputs
    found = fleet.provider.inventory()
    assert {t.outputs["id"] for t in found if t.address.kind == "node"} == {node.outputs["id"]}
    assert {t.outputs["id"] for t in found if t.address.kind == "volume"} == {disk.outputs["id"]}


# ------------------------------------------------------------------------------ what comes to nothing


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ("No valid host was found. There are not enough hosts available.", "no-capacity"),
        (
            "Exceeded maximum number of retries. Exhausted all hosts available for retrying build",
            "no-capacity",
        ),
        ("Quota exceeded for instances: Requested 1, but already used 10 of 10 instances", "instances"),
        ("Build of instance 1 aborted: Failed to allocate the network(s), not rescheduling.", "invalid"),
    ],
)
def test_a_server_that_fails_after_it_was_accepted_leaves_nothing(cloud, fleet, says, kind):
    """Nova accepts what it cannot do, and says so later; the broken server would fill the quota."""
    cloud.full.add(("az-1", "m1.tiny"))
    cloud.fault = says
    with pytest.raises(PermanentError, match=says[:16]) as caught:
        fleet.node()
    assert (caught.value.kind, caught.value.about) == (PermanentKind(kind), "az-1")
    assert cloud.servers == {}
    assert cloud.pairs == {}
    assert fleet.provider.inventory() == ()


def test_what_a_killed_command_left_broken_is_made_anew(cloud, fleet):
    """It was found in ERROR: that is nothing that was made, and it goes away."""
    cloud.full.add(("az-1", "m1.tiny"))
    at = fleet.provider._account.at(REGION)
    address, inputs = Address("node", "gpu-0"), of_node(region=REGION, zone="az-1", **SMALL)
    mark = fleet.provider._account.mark(address, token("lineage-1", address, 1, "az-1"), inputs)
    calls = fleet.provider._nodes
    made = at.site.launch(calls._wanted(at, mark, mark.node)).id
    at.seen([made])
    assert at.seen([made])[made].state is NodeState.FAILED
    assert fleet.provider.find(address, mark.token) is None
    cloud.full.clear()
    node = fleet.node()
    assert list(cloud.servers) == [node.outputs["id"]] != [made]


def test_a_volume_that_cinder_cannot_make_leaves_nothing(cloud, fleet):
    def fail(method, path):
        for volume in cloud.volumes.values():
            if volume["status"] == "creating":
                volume["status"] = "error"

    cloud.rules.append(fail)
    with pytest.raises(PermanentError, match="failed while it was made: cinder says `error`") as caught:
        fleet.disk()
    assert caught.value.kind is PermanentKind.NO_CAPACITY
    assert fleet.provider.inventory() == ()


# ----------------------------------------------------------------------------------------- listings


@pytest.mark.parametrize("body", [{}, {"servers": None}, {"servers": [{"id": "1"}]}, []])
def test_an_answer_without_its_list_is_no_empty_one(cloud, fleet, body):
    cloud.list_servers = lambda query, _: (200, body)
    with pytest.raises(TransientError, match="listing servers") as caught:
        fleet.provider.inventory()
    assert caught.value.kind is TransientKind.AMBIGUOUS


def test_a_page_that_leads_back_is_a_fault(cloud, fleet):
    """And a marker that has gone meanwhile is a reason to begin anew."""
    link = {"servers_links": [{"rel": "next", "href": "…"}]}
    node = fleet.node()
    page = {"servers": [cloud.servers[node.outputs["id"]]], **link}
    cloud.list_servers = lambda query, _: (200, page)
    with pytest.raises(TransientError, match="leads back"):
        fleet.provider.inventory()
    answers = iter([(200, page), None])

    def gone(query, _):
        found = next(answers)
        if found is None:
            raise Refusal(400, f"marker [{query['marker']}] not found")
        return found

    cloud.list_servers = gone
    with pytest.raises(TransientError, match="marker") as caught:
        fleet.provider.inventory()
    assert caught.value.kind is TransientKind.BUSY


# ------------------------------------------------------------------------------------------ volumes


def test_a_volume_grows_also_while_a_server_has_it(cloud, fleet):
    """By the version of cinder's API that can; it never shrinks."""
    disk = fleet.disk()
    grow = fleet.provider._volumes.update  # what the node does then, hosts show
    for size, wanted in (("1025MB", 2), ("3GB", 3), ("3GB", 3)):
        assert grow(disk, "0" * 32, {**disk.inputs, "size": size}) == disk.outputs
        assert cloud.volumes[disk.outputs["id"]]["size"] == wanted
    fleet.held(fleet.node(), disk)
    assert cloud.versions == []
    grow(disk, "0" * 32, {**disk.inputs, "size": "4GB"})
    assert cloud.versions == ["volume 3.42"]
    with pytest.raises(PermanentError, match="cannot go down") as caught:
        grow(disk, "0" * 32, {**disk.inputs, "size": "1GB"})
    assert (caught.value.kind, caught.value.about) == (PermanentKind.INVALID, "size")
    cloud.act = lambda made, *_: (cloud.volumes[made].update(status="error_extending"), (202, None))[1]
    with pytest.raises(PermanentError, match="error_extending") as caught:
        grow(disk, "0" * 32, {**disk.inputs, "size": "5GB"})
    assert caught.value.kind is PermanentKind.CONFLICT


def test_a_volume_is_in_cinders_zone_or_in_one_that_it_chooses(cloud, fleet):
    """Nova's zones need not be cinder's; one that neither has is refused."""
    assert fleet.disk().outputs["zone"] == "nova"
    cloud.disk_zones = ["az-1", "az-2"]
    other = Fleet(cloud, fleet.provider._account.config.project_dir)
    assert other.create("volume", "data-1", "az-2", size="1GB").inputs["zone"] == "az-2"
    asked = [
        b["volume"].get("availability_zone")
        for m, p, b in cloud.asked
        if m == "POST" and p == "/volume/volumes"
    ]
    assert asked == [None, "az-2"]
    with pytest.raises(PermanentError, match="no zone `az-9`"):
        other.create("volume", "data-2", "az-9", size="1GB")


def test_a_device_is_known_by_its_serial_number(cloud, fleet):
    """Nova's name for it is only what was asked for."""
    node, disk = fleet.node(), fleet.disk()
    held = fleet.held(node, disk)
    assert held.outputs["device"] == f"/dev/disk/by-id/virtio-{disk.outputs['id'][:20]}"
    old = replace(held, outputs={**held.outputs, "id": "another:later:one"})
    fleet.provider.delete(old)
    assert cloud.volumes[disk.outputs["id"]]["status"] == "in-use"
    fleet.provider.delete(held)
    assert cloud.volumes[disk.outputs["id"]]["status"] == "available"
    assert not [k for k in cloud.volumes[disk.outputs["id"]]["metadata"] if k.startswith("fleetform:on:")]


def test_nothing_is_deleted_that_does_not_say_whose_it_is(cloud, fleet):
    """Somebody took our metadata away: it may be another's by now."""
    for record, things in ((fleet.node(), cloud.servers), (fleet.disk(), cloud.volumes)):
        owner = things[record.outputs["id"]]["metadata"].pop(OWNER)
        with pytest.raises(PermanentError, match="does not carry this state's tags"):
            fleet.provider.delete(record)
        things[record.outputs["id"]]["metadata"][OWNER] = owner


def test_long_inputs_are_written_over_several_items(cloud, fleet):
    """They come back whole after each change, and the user's own metadata change with them."""
    node = fleet.node(tags={"team": "a", "old": "x"}, env={"A": "ü" * 400})
    for env, tags in (({"A": "b" * 2500}, {"team": "b"}), ({}, {"team": "c"}), ({"B": "&<>"}, {})):
        inputs = {**node.inputs, "env": env, "tags": tags}
        assert fleet.provider.update(node, "0" * 32, inputs) == node.outputs
        (thing,) = fleet.provider.inventory()
        assert thing.inputs == inputs
        have = cloud.servers[node.outputs["id"]]["metadata"]
        assert {k: v for k, v in have.items() if not k.startswith("fleetform:")} == tags
        assert max(map(len, have.values())) <= 255
    for tags in ({"a/b": "x"}, {"a": "x" * 256}, {"fleetform:owner": "me"}):
        with pytest.raises(PermanentError, match="does not take the tag"):
            fleet.create("node", "gpu-1", "az-1", **SMALL, tags=tags)
