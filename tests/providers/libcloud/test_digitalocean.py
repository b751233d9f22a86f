"""The driver `digitalocean` against the tests' DigitalOcean (tests/providers/libcloud/digitalocean.py): a
cloud without client tokens that loses a third of the requests or their answers.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest

from declarative.model.state import Address, Record, token
from declarative.provider import Config, Ended, PermanentError, PermanentKind, Thing, TransientError
from declarative.retry import Policy, call
from providers.cloud import cloud
from providers.cloud.any import labels
from providers.cloud.any.digitalocean import DigitalOcean as Site
from providers.cloud.any.site import Written
from providers.cloud.marks import packed
from providers.testing import NODE, VOLUME, Conformance, Crowd, Spoilt
from tests.providers.libcloud.digitalocean import LUCK, DigitalOcean
from tests.support.cli import Project
from tests.support.model import of_attachment, of_kind

PLACE = {"region": "nyc3", "backend": "do"}
SIZE = "s-1vcpu-1gb"


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    monkeypatch.setenv("FLEETFORM_TEST_KEY", "dop_v1_very-secret")
    monkeypatch.setattr(Site, "settle", 0.2)  # ours lists at once what it made


@pytest.fixture
def server():
    with DigitalOcean() as running:
        yield running


@pytest.fixture(scope="module")
def shared():
    """For tests that work under a lineage of their own."""
    with DigitalOcean(boot=1) as running:
        yield running


def provider(port, folder, lineage="lineage-1", **more):
    config = Config(
        backend="do",
        project_dir=folder,
        lineage=lineage,
        driver="digitalocean",
        regions=("nyc3",),
        credentials={"key": "FLEETFORM_TEST_KEY"},
        endpoint=f"http://127.0.0.1:{port}",
        image={"*": "ubuntu-24-04-x64"},
        options={"timeout": 30},
    )
    found: Any = cloud(replace(config, **more))
    found.readiness = lambda nodes: {n: s.readiness for n, s in found._nodes.readiness(nodes).items()}
    return found


class TestDigitalOcean(Conformance):
    backend = "do"
    ranks = False  # there is nothing behind these droplets
    crowd = 0  # too slow here for so many; its pages are small
    node_inputs = MappingProxyType({**NODE, **PLACE, "instance_type": SIZE})
    volume_inputs = MappingProxyType({**VOLUME, **PLACE})
    larger = MappingProxyType({**volume_inputs, "size": "2GB", "tags": {"team": "a"}})

    @pytest.fixture(autouse=True)
    def listening(self, shared):
        self.server = shared

    def make(self, folder, lineage):
        return provider(self.server.port, folder, lineage)

    @pytest.fixture(autouse=True)
    def bad_way(self, shared):
        with DigitalOcean(behind=shared) as way:
            self.way = way
            yield

    def spoiled(self, folder, lineage, how):
        if how is Spoilt.NOBODY:
            return provider(9, folder, lineage)  # nothing listens there
        fault = {Spoilt.LOST: "lost", Spoilt.SENSELESS: "html", Spoilt.DENIED: "denied"}[how]
        made = ("/v2/droplets", "/v2/volumes")
        every = how is not Spoilt.LOST
        self.way.rules = [lambda m, p: fault if every or (m == "POST" and p in made) else None]
        return provider(self.way.port, folder, lineage)


class TestDigitalOceanCrowd(Crowd):
    """On pages of the size that there really are."""

    backend = "do"
    node_inputs = TestDigitalOcean.node_inputs

    @pytest.fixture(autouse=True)
    def listening(self):
        with DigitalOcean(page=200) as self.server:
            yield

    def make(self, folder, lineage):
        return provider(self.server.port, folder, lineage)

    def gather(self, place, wanted):
        """As if each had been asked for."""
        out = []
        for record in wanted:
            mark = Written(
                owner=place.lineage,
                token=place.token(record),
                address=record.address,
                inputs=dict(record.inputs),
            )
            body = {"name": "x", "region": "nyc3", "size": SIZE, "ssh_keys": [], "user_data": ""}
            _, made = self.server.make_droplet({**body, "tags": labels.tags(mark)}, {})
            out.append(replace(record, outputs={"id": str(made["droplet"]["id"])}))
        return out

    def disperse(self, place, made):
        """They go with the server."""


del Conformance, Crowd  # they are no tests themselves


# ------------------------------------------------------------------------------------------- chaos

JOBS = 15
QUICK = Policy(deadline=300.0, first=0.02, longest=0.3)


class Fleet:
    """One lineage that makes nodes with a volume each, as the tool would: every call is tried again."""

    def __init__(self, port, folder, lineage="lineage-1"):
        self.provider = provider(port, folder, lineage)
        self.lineage = lineage

    def wanted(self, kind, name, **inputs):
        place = PLACE if kind != "attachment" else {}
        return Record(address=Address(kind, name), backend="do", inputs=of_kind(kind, **{**place, **inputs}))

    def create(self, record, *needs):
        made_of = token(self.lineage, record.address, 1, None)
        held = {need.address: need for need in needs}
        outputs = call(
            lambda: self.provider.create(record.address, made_of, record.inputs, held), policy=QUICK
        )
        return replace(record, outputs=outputs)

    def node(self, name="gpu-0", **inputs):
        return self.create(self.wanted("node", name, instance_type=SIZE, fleet="gpu", **inputs))

    def volume(self, name="data-0", **inputs):
        return self.create(self.wanted("volume", name, **{"size": "1GB", **inputs}))

    def attach(self, node, volume):
        inputs = of_attachment("t-0", node.address.name, volume.address.name)
        return self.create(self.wanted("attachment", f"t-0.{volume.address.name}", **inputs), volume, node)

    def group(self, i):
        node, volume = self.node(f"gpu-{i}"), self.volume(f"data-{i}")
        return node, volume, self.attach(node, volume)


@pytest.fixture
def fleet(server, tmp_path):
    return Fleet(server.port, tmp_path)


@pytest.mark.slow
def test_each_is_made_once_whatever_is_lost(server, fleet):
    """Every third request is lost, cut, refused for now, or done without an answer: as many are there in the
    end as were asked for, each with its marks and its volume; then nothing, tags and keys included.
    """
    server.boot, server.page = 1, 100
    server.spoil(1)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(fleet.group, range(JOBS)))
    things = call(fleet.provider.inventory, policy=QUICK)
    assert {t.address: dict(t.outputs) for t in things} == {
        r.address: dict(r.outputs) for records in made for r in records
    }
    assert len(things) == 3 * JOBS
    assert len(server.droplets) == len(server.volumes) == JOBS
    assert all(len(volume["droplet_ids"]) == 1 for volume in server.volumes.values())
    assert {fault for fault in server.seen if fault} >= set(LUCK)
    assert sum(n for fault, n in server.seen.items() if fault) > 2 * JOBS
    for node, volume, held in made[:4]:
        for record in (held, node, volume):
            call(partial(fleet.provider.delete, record), policy=QUICK)
    server.spoil(None)
    for node, volume, held in made[4:]:
        for record in (held, node, volume):
            fleet.provider.delete(record)
    assert not server.droplets
    assert not server.volumes
    assert not server.keys
    assert len(fleet.provider.inventory()) == 0


def lose_once(method, path, fault="lost"):
    """A rule that spoils the first such request."""
    left = [fault]
    return lambda m, p: left.pop() if (m, p) == (method, path) and left else None


@pytest.mark.slow
def test_what_comes_to_light_late_is_deleted(server, fleet):
    """The answer was lost, and longer than is waited nothing is listed: the second droplet is made, the first
    one appears. One of the two stays, and it is the one that is recorded.
    """
    server.boot, server.late = 6, 4
    server.rules.append(lose_once("POST", "/v2/droplets"))
    record = fleet.node()
    assert server.made == 2
    assert [str(made) for made in server.droplets] == [record.outputs["id"]]
    assert [thing.outputs["id"] for thing in fleet.provider.inventory()] == [record.outputs["id"]]


def test_one_waits_before_something_is_made_again(server, fleet):
    """What was made without an answer is listed by then."""
    server.late = 0
    server.rules.append(lose_once("POST", "/v2/droplets"))
    fleet.node()
    assert server.made == 1


def test_a_volume_s_name_is_taken_once(server, fleet):
    """An answer was lost, and so was the look after it: the second create is refused by the cloud itself, and
    what has the name is adopted.
    """
    server.rules.append(lose_once("POST", "/v2/volumes"))
    record = fleet.volume()
    assert [volume["id"] for volume in server.volumes.values()] == [record.outputs["id"]]
    (volume,) = server.volumes.values()
    volume["tags"] = []  # somebody removed them: its owner is not known
    with pytest.raises(PermanentError) as raised:
        fleet.volume()
    assert raised.value.kind is PermanentKind.CONFLICT


@pytest.mark.parametrize("path", ["/v2/droplets", "/v2/volumes"])
def test_an_answer_without_its_list_is_no_empty_list(server, fleet, path):
    fleet.node()
    server.rules.append(lambda m, p: "empty" if (m, p) == ("GET", path) else None)
    with pytest.raises(TransientError, match="no list of"):
        fleet.provider.inventory()


def test_a_page_that_shifts_is_read_again(server, fleet):
    """Something goes while pages are read, and takes what is after it to a page that was read already."""
    for i in range(7):
        fleet.volume(f"data-{i}")
    listed = []

    def shift(method, path):
        if (method, path) == ("GET", "/v2/volumes"):
            listed.append(path)
            if len(listed) == 2:
                del server.volumes[next(iter(server.volumes))]

    server.rules.append(shift)
    assert len(fleet.provider.inventory()) == 6
    assert len(listed) == 6


# ---------------------------------------------------------------------------------- what it is told


def test_a_droplet_is_asked_for_with_all_that_it_needs(server, fleet):
    record = fleet.node(tags={"team": "a-b"})
    (asked,) = (body for method, path, body in server.asked if (method, path) == ("POST", "/v2/droplets"))
    (key,) = server.keys.values()
    assert {k: asked[k] for k in ("name", "region", "size", "image", "ssh_keys")} == {
        "name": "gpu-0",
        "region": "nyc3",
        "size": SIZE,
        "image": "ubuntu-24-04-x64",
        "ssh_keys": [key["id"]],
    }
    assert asked["user_data"].startswith("#cloud-config\n")
    assert "team:a-b" in asked["tags"]
    assert record.outputs["host_key"].startswith("ssh-ed25519 ")
    assert record.outputs["address"].startswith("10.")
    assert record.outputs["public_address"].startswith("203.")
    assert key["name"] == "fleetform-lineage-1"


def test_a_key_that_went_meanwhile_is_brought_again(server, fleet):
    """The command that deletes the last node also deletes the key."""
    first = fleet.node("gpu-0")
    server.keys.clear()
    fleet.node("gpu-1")
    assert len(server.keys) == 1
    fleet.provider.delete(first)
    assert len(server.keys) == 1
    fleet.provider.delete(fleet.wanted("node", "gpu-1"))
    assert not server.keys


def test_tags_of_users_change_in_place(server, fleet):
    record = fleet.volume(tags={"team": "a", "old": "x"})
    fleet.provider.update(record, "t", {**record.inputs, "tags": {"team": "b"}})
    (volume,) = server.volumes.values()
    assert [tag for tag in volume["tags"] if not tag.startswith("fleetform:")] == ["team:b"]
    (thing,) = fleet.provider.inventory()
    assert thing.inputs["tags"] == {"team": "b"}
    assert "old:x" in server.tags  # it may be on something else


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"tags": {"team": "a b"}}, "cannot be a tag"),
        ({"tags": {"fleetform": "a"}}, "cannot be a tag"),
        ({"spot": True}, "no spot"),
    ],
)
def test_what_it_has_not_is_refused(server, fleet, inputs, text):
    with pytest.raises(PermanentError, match=text):
        fleet.node(**inputs)
    assert not server.droplets


def test_a_refusal_is_of_its_kind(server, fleet):
    with pytest.raises(PermanentError) as raised:
        fleet.create(fleet.wanted("node", "gpu-0", instance_type="moon"))
    assert raised.value.kind is PermanentKind.NO_CAPACITY
    assert raised.value.about == "nyc3"


def test_offers_are_what_the_cloud_has(fleet):
    offers = {offer.instance_type: offer for offer in fleet.provider.offers()}
    assert set(offers) == {SIZE, "gpu-h100x8-640gb", "free-for-now"}
    big = offers["gpu-h100x8-640gb"]
    assert (big.shape.gpus, big.shape.gpu_name, big.shape.gpu_memory_mib) == (8, "H100", 80 * 1024)
    assert (big.price, offers["free-for-now"].price, big.region) == (23.92, None, "nyc3")


def test_the_secret_is_in_no_message(server, fleet, monkeypatch):
    server.rules.append(lambda m, p: "page")
    with pytest.raises(TransientError) as raised:
        fleet.provider.inventory()
    assert "very-secret" not in str(raised.value)
    assert "status 502" in str(raised.value)


@pytest.mark.parametrize("kind", ["node", "volume"])
def test_what_lost_its_tags_is_there_and_gets_them_back(server, fleet, kind):
    """It must not count as gone and be made again."""
    record = fleet.node(tags={"team": "a"}) if kind == "node" else fleet.volume(tags={"team": "a"})
    (thing,) = (server.droplets if kind == "node" else server.volumes).values()
    before, thing["tags"] = thing["tags"], []
    made_of = token(fleet.lineage, record.address, 1, None)
    assert fleet.provider.inventory() == ()
    found = fleet.provider.recall([record])[record.address]
    assert found is not None
    assert (dict(found.actual), dict(found.outputs)) == ({"tags": {}}, dict(record.outputs))
    with pytest.raises(PermanentError, match="does not carry this state's tags"):
        fleet.provider.delete(record)
    assert fleet.provider.update(record, made_of, record.inputs) == record.outputs
    assert sorted(thing["tags"]) == sorted(before)
    (listed,) = fleet.provider.inventory()
    assert (listed.token, dict(listed.inputs)) == (made_of, dict(record.inputs))
    thing["tags"] = [labels.owner_tag("somebody-else")]
    assert fleet.provider.recall([record])[record.address].actual == {"owner": "somebody-else"}
    with pytest.raises(PermanentError, match="does not carry this state's tags"):
        fleet.provider.update(record, made_of, record.inputs)
    (server.droplets if kind == "node" else server.volumes).clear()
    assert fleet.provider.recall([record]) == {}


def test_a_droplet_that_is_denied_has_ended(server, fleet):
    """While another one of ours shows that it is the right account."""
    lost, other = fleet.node("gpu-0"), fleet.node("gpu-1")
    made = lost.outputs["id"]
    del server.droplets[next(key for key in server.droplets if str(key) == made)]
    found = fleet.provider.recall([lost, other])
    assert found[lost.address] == Ended(reason=f"DigitalOcean has no droplet {made} any more")
    assert isinstance(found[other.address], Thing)
    server.droplets.clear()
    assert fleet.provider.recall([lost, other]) == {}


def test_a_volume_that_somebody_made_larger_is_seen(server, fleet):
    """Its size is shown as drift."""
    fleet.volume()
    next(iter(server.volumes.values()))["size_gigabytes"] = 9
    (found,) = fleet.provider.inventory()
    assert dict(found.actual) == {"size": "9GB"}


def test_a_volume_that_was_detached_is_seen(server, fleet):
    node, volume = fleet.node(), fleet.volume()
    held = fleet.attach(node, volume)
    assert fleet.provider.recall([held])[held.address] is not None
    (disk,) = server.volumes.values()
    disk["droplet_ids"] = []
    assert fleet.provider.recall([held]) == {held.address: None}


@pytest.mark.slow
def test_the_command_makes_mends_and_deletes(server, tmp_path):
    """Volumes: made by the first run, though both answers are lost; one whose tags went gets them back. One
    that was there is adopted, and stays.
    """
    project, env = Project(tmp_path), {"DO_TOKEN": "dop_v1_very-secret"}
    body = {"name": "theirs", "region": "nyc3", "size_gigabytes": 3, "tags": ["team:old"]}
    theirs = server.make_volume(body, {})[1]["volume"]
    volume = {"type": "volume", "name": "data", "count": 2, "backend": "do", "region": "nyc3", "size": "3GB"}
    project.declare(
        {
            "type": "backend",
            "name": "do",
            "driver": "digitalocean",
            "regions": ["nyc3"],
            "credentials": {"key": "DO_TOKEN"},
            "endpoint": f"http://127.0.0.1:{server.port}",
        },
        {**volume, "prevent_destroy": False},
        {"type": "volume", "name": "old", "backend": "do", "region": "nyc3", "volume_id": theirs["id"]},
    )
    server.rules += [lose_once("POST", "/v2/volumes"), lose_once("POST", "/v2/volumes")]
    project.apply(env=env)
    server.rules.clear()
    assert [v["size_gigabytes"] for v in server.volumes.values()] == [3, 3, 3]
    assert labels.owner_of(theirs["tags"])
    first = list(server.volumes.values())[1]
    first["tags"] = []
    plan = project.plan(env=env)
    assert [item["change"] for item in plan["drift"]] == ["changed"]
    assert [(a["op"], a["address"].partition("/")[0]) for a in plan["actions"]] == [("update", "volume")]
    project.apply(env=env)
    assert len(server.volumes) == 3
    assert labels.owner_of(first["tags"])
    assert project.plan(env=env)["actions"] == []
    project.run("destroy", "--auto-approve", env=env)
    assert list(server.volumes.values()) == [theirs]
    assert theirs["tags"] == ["team:old"]
    assert "very-secret" not in (tmp_path / ".fleetform" / "state.db").read_bytes().decode("latin-1")


# -------------------------------------------------------------------------------------------- tags


def test_tags_of_a_rewrite_that_was_cut_short_are_those_before_it():
    """Only a text that is whole counts, and of whole ones the last."""
    mark = Written(owner="o", token="0" * 32, address=Address("node", "gpu-0"), inputs={"env": "x" * 50})
    new = "".join(str(hash((i, "y"))) for i in range(50))
    first, second = labels.tags(mark), labels.pack(mark.token, "is", new, 2)
    assert len(second) > 1
    assert labels.read([*first, *second[1:]]).texts == {"is": mark.text()}
    assert labels.read([*first, *second]).texts == {"is": new}
    assert labels.read([*first[1:], *second[1:]]).versions == {"is": 2}
    assert all(len(tag) <= 255 for tag in (*first, *second))
    assert labels.written("o", [tag.upper() for tag in first], "x") == mark
    assert labels.written("other", first, "x") is None
    with pytest.raises(PermanentError, match="somebody changed them"):
        labels.written("o", first[:1], "x")


def test_tags_that_grow_or_count_beyond_all_bounds_are_none_of_ours():
    """Anybody may write tags: the listing that they are in is read all the same."""
    mark = Written(owner="o", token="0" * 32, address=Address("node", "gpu-0"), inputs={"env": "x"})
    first = labels.tags(mark)
    code = packed("0" * 4_000_000)
    assert labels.read([f"fleetform:{mark.token}:big:1:0:1:{code}"]).texts == {"big": ""}
    for number in ("9" * 5_000, "²", "-1", ""):
        for odd in (f"{number}:0:1", f"1:{number}:1", f"1:0:{number}"):
            assert labels.read([*first, f"fleetform:{mark.token}:is:{odd}:aa"]) == labels.read(first)
