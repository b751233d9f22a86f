"""The driver `gce` against a small GCE of the tests' own (tests/providers/gce/server.py)."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from libcloud.common import google

from declarative.model.spec.backend import Network, Reach
from declarative.model.state import TAGS, Address, Record, token
from declarative.model.status import NodeState
from declarative.provider import Ended, PermanentError, PermanentKind, TransientError, TransientKind, load
from declarative.retry import Policy, call
from providers.cloud import account, marks
from providers.cloud.gce import Gce
from providers.cloud.gce.account import service_account
from providers.ssh.key_pairs import make
from providers.testing import NODE, VOLUME, Conformance, Spoilt
from tests.providers.cloud.web import LOST, TooEarly, Web, losing
from tests.providers.gce import server as fake
from tests.support.model import of_attachment

PLACE = {"region": fake.REGION, "zone": fake.ZONE}


@pytest.fixture(scope="module")
def pem():
    return fake.private_key()


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """What takes a moment there takes none here."""
    monkeypatch.setattr(account, "FIRST_PAUSE", 0.01)


@pytest.fixture
def cloud():
    return fake.Gce()


@pytest.fixture
def web(cloud, pem, monkeypatch):
    with Web(cloud) as running:
        monkeypatch.setenv(fake.VARIABLE, fake.service_account(pem, running.url))
        yield running


class Bare(Gce):
    """Its nodes are ready when GCE says so: no host answers."""

    def readiness(self, nodes):
        return {name: seen.readiness for name, seen in self._nodes.readiness(nodes).items()}


class TestGce(Conformance):
    backend = "gcp"
    ranks = False  # nothing is behind the instances
    many = 2 * fake.PAGE + 1
    crowd = 20 * fake.PAGE
    node_inputs = MappingProxyType({**NODE, **PLACE, "backend": "gcp", "instance_type": "n1-standard-1"})
    volume_inputs = MappingProxyType({**VOLUME, **PLACE, "backend": "gcp"})
    larger = MappingProxyType({**volume_inputs, "size": "2GB", "tags": {"team": "a"}})

    @pytest.fixture(autouse=True)
    def server(self, web, cloud):
        self.url, self.cloud = web.url, cloud
        with Web(cloud) as self.bad:
            yield

    def make(self, folder, lineage):
        return Bare(fake.config(self.url, folder, lineage))

    def spoiled(self, folder, lineage, how):
        def answer(asked):
            if asked.path.endswith("/token"):
                return self.cloud(asked)
            if how is Spoilt.SENSELESS:
                return 200, "<html><body>Welcome!</body></html>"
            if how is Spoilt.DENIED:
                return fake.error(401, "authError")
            found = self.cloud(asked)
            return LOST if asked.method == "POST" and asked.path.endswith(("/instances", "/disks")) else found

        if how is Spoilt.NOBODY:
            return Bare(fake.config("http://127.0.0.1:1", folder, lineage))
        self.bad.answer = answer
        return Bare(fake.config(self.bad.url, folder, lineage))


del Conformance  # it is no test itself

NODES = MappingProxyType({**NODE, **PLACE, "backend": "gcp", "instance_type": "n1-standard-1"})
DISKS = MappingProxyType({**VOLUME, **PLACE, "backend": "gcp"})
PATIENT = Policy(first=0.01, longest=0.05)


@pytest.fixture
def gce(web, tmp_path):
    return Bare(fake.config(web.url, tmp_path))


def wanted(kind, name, inputs):
    return Record(address=Address(kind, name), backend="gcp", inputs=inputs)


def made(provider, record, *needs):
    key = token("lineage-1", record.address, record.generation, record.inputs.get("zone"))
    known = {need.address: need for need in needs}
    return replace(record, outputs=provider.create(record.address, key, record.inputs, known))


def attachment(volume, node):
    inputs = of_attachment("t-0", node.address.name, volume.address.name)
    return wanted("attachment", f"t-0.{volume.address.name}", inputs)


def changes(web):
    return [asked for asked in web.asked if asked.method != "GET" and asked.path != "/token"]


# ---------------------------------------------------------------------------------------- requests


def test_the_entry_point_leads_here(tmp_path):
    assert type(load("gce", fake.config("http://127.0.0.1:9", tmp_path))) is Gce


def test_a_node_is_one_request_with_all_its_marks(web, cloud, gce, tmp_path):
    inputs = {**NODES, "tags": {"team": "vision"}, "spot": True}
    node = made(gce, wanted("node", "gpu-0", inputs))
    (asked,) = changes(web)
    assert asked.line == f"POST {fake.ROOT}zones/{fake.ZONE}/instances"
    body = asked.body
    key = token("lineage-1", node.address, 1, fake.ZONE)
    assert body["name"] == f"gpu-0-{key[:24]}"
    assert body["machineType"] == f"zones/{fake.ZONE}/machineTypes/n1-standard-1"
    assert body["labels"] == {"team": "vision", "fleetform_owner": "lineage-1", "fleetform_token": key}
    items = {item["key"]: item["value"] for item in body["metadata"]["items"]}
    assert set(items) == {"fleetform", "user-data", "block-project-ssh-keys"}
    assert json.loads(items["fleetform"])[marks.ADDRESS] == "node/gpu-0"
    assert items["user-data"].startswith("#cloud-config\n")
    (disk,) = body["disks"]
    assert disk["initializeParams"]["sourceImage"] == (
        "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"
    )
    assert disk["autoDelete"] is True
    assert body["scheduling"] == {
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
    }
    assert body["networkInterfaces"] == [
        {
            "network": "global/networks/default",
            "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}],
        }
    ]
    assert node.outputs["id"] == f"{fake.PROJECT}/{fake.ZONE}/{body['name']}"
    # A try that begins anew asks for the same, to the byte.
    web.asked.clear()
    cloud.things["instances"].clear()
    made(Bare(fake.config(web.url, tmp_path)), wanted("node", "gpu-0", inputs))
    assert changes(web)[0].body == body


def test_where_a_node_is_and_what_it_has_besides(web, tmp_path):
    network = Network(subnets={fake.REGION: "nodes"}, security_groups=("ssh-in", "mpi"), reach=Reach.PRIVATE)
    options = {"ssh_config": "/dev/null", "disk_type": "hyperdisk-balanced", "disk_size": 100}
    gce = Bare(fake.config(web.url, tmp_path, network=network, options=options))
    gpus = {**NODES["resources"], "gpus": 2}
    inputs = {**NODES, "instance_type": "n1-standard-8+nvidia-tesla-t4:2", "resources": gpus}
    node = made(gce, wanted("node", "gpu-0", inputs))
    body = changes(web)[0].body
    assert body["networkInterfaces"] == [{"subnetwork": f"regions/{fake.REGION}/subnetworks/nodes"}]
    assert body["tags"] == {"items": ["ssh-in", "mpi"]}
    assert body["machineType"].endswith("/n1-standard-8")
    assert body["guestAccelerators"] == [
        {"acceleratorType": f"zones/{fake.ZONE}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 2}
    ]
    assert body["scheduling"] == {"automaticRestart": True, "onHostMaintenance": "TERMINATE"}
    made_from = body["disks"][0]["initializeParams"]
    assert (made_from["diskSizeGb"], made_from["diskType"]) == (
        "100",
        f"zones/{fake.ZONE}/diskTypes/hyperdisk-balanced",
    )
    assert "public_address" not in node.outputs
    assert gce.inventory()[0].actual == {}


def test_a_volume_comes_grows_is_attached_and_goes(web, gce):
    volume, node = made(gce, wanted("volume", "data-0", DISKS)), made(gce, wanted("node", "gpu-0", NODES))
    held = made(gce, attachment(volume, node), volume, node)
    name = volume.outputs["id"].rpartition("/")[2]
    assert held.outputs["device"] == f"/dev/disk/by-id/google-{name}"
    disk = gce._attachments.on_node(volume)
    assert (disk.links, disk.serials) == ((held.outputs["device"],), (name,))
    assert disk.node.outputs == node.outputs
    assert gce._attachments.on_node(held) == disk
    gce.delete(held)
    assert gce._attachments.on_node(volume) is None
    gce.update(volume, "x", {**DISKS, "size": "3GB"})
    gce.delete(volume)
    root = f"{fake.ROOT}zones/{fake.ZONE}"
    machine = node.outputs["id"].rpartition("/")[2]
    assert [a.line for a in changes(web)] == [
        f"POST {root}/disks",
        f"POST {root}/instances",
        f"POST {root}/disks/{name}/setLabels",  # the claim comes before the disk
        f"POST {root}/instances/{machine}/attachDisk",
        f"POST {root}/instances/{machine}/detachDisk",
        f"POST {root}/disks/{name}/setLabels",
        f"POST {root}/disks/{name}/resize",
        f"POST {root}/disks/{name}/setLabels",
        f"DELETE {root}/disks/{name}",
    ]
    bodies = [a.body for a in changes(web)]
    assert bodies[0]["sizeGb"] == "1"
    assert bodies[0]["type"] == f"zones/{fake.ZONE}/diskTypes/pd-balanced"
    assert bodies[3] == {
        "source": f"projects/{fake.PROJECT}/zones/{fake.ZONE}/disks/{name}",
        "deviceName": name,
        "autoDelete": False,
        "mode": "READ_WRITE",
    }
    assert bodies[6] == {"sizeGb": "3"}
    assert changes(web)[4].params == {"deviceName": name}


def test_offers_are_those_of_the_backends_places(web, tmp_path):
    """Other places are not asked about: there are very many."""
    here = Bare(fake.config(web.url, tmp_path)).offers()
    assert {(o.region, o.zone) for o in here} == {(fake.REGION, fake.ZONE)}
    assert [a.path.removeprefix(fake.ROOT) for a in web.asked if a.method == "GET"] == [
        "zones",
        "zones/us-central1-a/machineTypes",
        "zones/us-central1-b/machineTypes",
    ]
    small = next(o for o in here if o.instance_type == "n1-standard-1" and not o.spot)
    assert (small.shape.cpu, small.shape.memory_mib, small.priced_on) == (1, 3840, "2025-03-02")
    large = next(o for o in here if o.instance_type == "a2-highgpu-1g" and o.spot)
    assert (large.shape.gpus, large.shape.gpu_name, large.shape.gpu_memory_mib) == (1, "V100", 16384)
    assert all(o.price is None for o in here if o.spot)
    assert Bare(fake.config(web.url, tmp_path, zones=("us-central1-b",))).offers() == ()
    with pytest.raises(PermanentError, match="no region `us-cental1`") as caught:
        Bare(fake.config(web.url, tmp_path, regions=("us-cental1",))).offers()
    assert caught.value.hint == "did you mean `us-central1`?"


def test_what_gce_has_not_is_refused(gce):
    for inputs, about in (
        ({"tags": {"Team": "A"}}, "tags"),
        ({"zone": None}, "availability_zone"),
    ):
        with pytest.raises(PermanentError) as caught:
            made(gce, wanted("volume", "data-0", {**DISKS, **inputs}))
        assert (caught.value.kind, caught.value.about) == (PermanentKind.INVALID, about)


# ------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize("seed", [1, 2])
def test_lost_answers_make_nothing_twice(web, cloud, gce, seed):
    web.answer = losing(cloud, seed)

    def all_of(i):
        volume = call(lambda: made(gce, wanted("volume", f"data-{i}", DISKS)), policy=PATIENT)
        node = call(lambda: made(gce, wanted("node", f"gpu-{i}", NODES)), policy=PATIENT)
        call(lambda: made(gce, attachment(volume, node), volume, node), policy=PATIENT)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(all_of, range(4)))
    assert {kind: len(things) for kind, things in cloud.things.items()} == {"instances": 4, "disks": 4}
    assert len(gce.inventory()) == 12
    # Attachments first, in the order of their kinds' names.
    for thing in sorted(gce.inventory(), key=lambda t: t.address.kind):
        have = replace(wanted(thing.address.kind, thing.address.name, thing.inputs), outputs=thing.outputs)
        call(partial(gce.delete, have), policy=PATIENT)
    assert cloud.things == {"instances": {}, "disks": {}}


def test_an_operation_that_fails_says_why(cloud, gce):
    cloud.exhausted = {fake.ZONE}
    with pytest.raises(PermanentError) as caught:
        made(gce, wanted("node", "gpu-0", NODES))
    assert (caught.value.kind, caught.value.about) == (PermanentKind.NO_CAPACITY, fake.ZONE)
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in caught.value.summary
    assert gce.inventory() == ()


def test_one_who_comes_second_finds_what_the_first_made(gce, monkeypatch):
    """Between the look and the create another try has made it."""
    site = gce._account.at(gce._config.regions[0]).site
    first = [made(gce, wanted("volume", "data-0", DISKS)), made(gce, wanted("node", "gpu-0", NODES))]
    for look in ("_disk", "_machine"):
        monkeypatch.setattr(site, look, TooEarly(getattr(site, look)))
    assert [made(gce, record) for record in first] == first


def test_what_is_gone_is_made_by_the_same_token_and_what_just_goes_is_waited_for(cloud, gce):
    """As after a restore: the state does not know that all of this was made and deleted before."""
    disk, node = wanted("volume", "data-0", DISKS), wanted("node", "gpu-0", NODES)
    first = [made(gce, record).outputs["id"] for record in (disk, node)]
    going = {"disks": ("DELETING",), "instances": ("STOPPING", "DEPROVISIONING")}
    for record, (kind, states) in zip((disk, node), going.items(), strict=True):
        (thing,) = cloud.things[kind].values()
        for state in states:
            thing["status"] = state
            with pytest.raises(TransientError, match="is just being deleted") as caught:
                made(gce, record)
            assert caught.value.kind is TransientKind.BUSY
        cloud.things[kind].clear()
    assert [made(gce, record).outputs["id"] for record in (disk, node)] == first
    assert [len(cloud.things[kind]) for kind in going] == [1, 1]


def test_a_name_that_another_has_is_not_taken_for_ours(cloud, gce):
    node = made(gce, wanted("node", "gpu-0", NODES))
    (thing,) = cloud.things["instances"].values()
    thing["labels"] = {"fleetform_owner": "somebody"}
    with pytest.raises(PermanentError, match="does not carry this state's marks") as caught:
        made(gce, wanted("node", "gpu-0", NODES))
    assert caught.value.kind is PermanentKind.CONFLICT
    with pytest.raises(PermanentError, match="does not carry this state's tags"):
        gce.delete(node)
    assert cloud.things["instances"]


def test_a_key_that_the_other_nodes_do_not_let_in_is_said_at_once(web, cloud, gce, tmp_path):
    """It is no conflict with a node of that name."""
    made(gce, wanted("node", "gpu-0", NODES))
    make(tmp_path / "other")
    options = {"ssh_config": "/dev/null", "identity_file": str(tmp_path / "other")}
    with pytest.raises(PermanentError, match="let in another key") as caught:
        made(Bare(fake.config(web.url, tmp_path, options=options)), wanted("node", "gpu-1", NODES))
    assert caught.value.kind is PermanentKind.CONFLICT
    assert len(cloud.things["instances"]) == 1


@pytest.mark.parametrize("change", ["unreachable", "loop", "strange", "page"])
def test_a_listing_that_is_not_whole_is_a_fault(web, cloud, gce, change):
    made(gce, wanted("volume", "data-0", DISKS))

    def worse(asked):
        status, found = cloud(asked)
        if "aggregated" not in asked.path:
            return status, found
        if change == "unreachable":
            found["items"]["zones/x"] = {"warning": {"code": "UNREACHABLE"}}
        elif change == "loop":
            found["nextPageToken"] = "again"
        elif change == "strange":
            del found["items"], found["kind"]
        else:
            found = "<html>down</html>"
        return status, found

    cloud_listing = cloud._listed
    cloud._listed = lambda kind, asked: cloud_listing(
        kind, replace(asked, params={**asked.params, "pageToken": "0"})
    )
    web.answer = worse
    with pytest.raises(TransientError) as caught:
        gce.inventory()
    assert caught.value.kind is TransientKind.AMBIGUOUS


def test_what_another_wrote_meanwhile_is_not_written_over(cloud, gce):
    volume = made(gce, wanted("volume", "data-0", DISKS))
    (thing,) = cloud.things["disks"].values()
    look = gce._account.ask

    def ask(what, method, path, **more):
        found = look(what, method, path, **more)
        if method == "GET" and path.endswith(thing["name"]):
            thing["labelFingerprint"] = "newer"
            return json.loads(json.dumps({**found, "labelFingerprint": "older"}))
        return found

    gce._account.ask = ask
    with pytest.raises(TransientError) as caught:
        gce.update(volume, "x", {**DISKS, "tags": {"a": "b"}})
    assert caught.value.kind is TransientKind.BUSY


# ------------------------------------------------------------------------------------------- drift


def test_what_others_change_is_seen_and_mended(cloud, gce):
    node = made(gce, wanted("node", "gpu-0", {**NODES, "tags": {"team": "a"}}))
    volume = made(gce, wanted("volume", "data-0", DISKS))
    (instance,), (disk,) = cloud.things["instances"].values(), cloud.things["disks"].values()
    instance["machineType"] = "x/zones/z/machineTypes/n1-standard-2"
    disk["sizeGb"] = "7"
    known = {thing.address.kind: thing.actual for thing in gce.inventory()}
    assert known == {"node": {"instance_type": "n1-standard-2"}, "volume": {"size": "7GB"}}
    instance["labels"] = {"mine": "1"}
    disk["labels"] = {}
    assert gce.inventory() == ()
    found = gce.recall([node, volume])
    assert found[node.address].actual[TAGS] == {}
    assert found[volume.address].actual[TAGS] == {}
    gce.update(node, token("lineage-1", node.address, 1, fake.ZONE), node.inputs)
    gce.update(volume, token("lineage-1", volume.address, 1, fake.ZONE), {**DISKS, "size": "7GB"})
    assert instance["labels"]["mine"] == "1"
    assert {(t.address, t.outputs["id"]) for t in gce.inventory()} == {
        (node.address, node.outputs["id"]),
        (volume.address, volume.outputs["id"]),
    }
    assert gce.find(node.address, token("lineage-1", node.address, 1, fake.ZONE)) is not None
    other = made(gce, wanted("node", "gpu-1", NODES))
    gce.delete(node)
    said = Ended(reason=f"GCE has no {node.outputs['id']} any more")
    assert gce.recall([node, other])[node.address] == said
    gce.delete(other)
    assert gce.recall([node])[node.address] == said, "the id itself names the account"


def test_states_of_instances(cloud, gce):
    nodes = [made(gce, wanted("node", f"gpu-{i}", NODES)) for i in range(4)]
    for thing, state in zip(
        sorted(cloud.things["instances"].values(), key=lambda t: t["name"]),
        ("RUNNING", "TERMINATED", "STAGING", "SUSPENDED"),
        strict=True,
    ):
        thing["status"] = state
    assert [r.state for r in gce.readiness(nodes).values()] == [
        NodeState.READY,
        NodeState.NOT_READY,
        NodeState.PROVISIONING,
        NodeState.NOT_READY,
    ]


# ------------------------------------------------------------------------------------------- login


def test_one_login_serves_all_threads_and_is_signed(web, gce, pem):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: gce.inventory(), range(16)))
    (entry,) = [asked for asked in web.asked if asked.path == "/token"]
    head, claims, signature = entry.body["assertion"].split(".")
    public = load_pem_private_key(pem.encode(), None).public_key()
    assert isinstance(public, RSAPublicKey)
    public.verify(_decoded(signature), f"{head}.{claims}".encode(), PKCS1v15(), SHA256())
    said = json.loads(_decoded(claims))
    assert said["iss"] == fake.EMAIL
    assert said["aud"] == f"{web.url}/token"
    assert said["exp"] - said["iat"] == 3600
    assert json.loads(_decoded(head)) == {"alg": "RS256", "typ": "JWT", "kid": "k1"}


def _decoded(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_nobody_is_asked_to_log_in_and_nothing_is_kept(web, gce, tmp_path, monkeypatch):
    """The driver of libcloud's opens a port and prints a URL for such a key, and keeps tokens at home."""

    def never(*_args, **_more):
        raise AssertionError("a dialogue was opened")

    monkeypatch.setattr(google, "HTTPServer", never)
    monkeypatch.setattr(google.GoogleInstalledAppAuthConnection, "get_code", never)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    made(gce, wanted("node", "gpu-0", NODES))
    user = {"type": "authorized_user", "client_id": "x.apps.googleusercontent.com", "refresh_token": "r"}
    for key in (json.dumps(user), "GOOG1234567890", "/nowhere/at/all", "{}", "[]", "-----BEGIN X-----\nAA"):
        monkeypatch.setenv(fake.VARIABLE, key)
        with pytest.raises(PermanentError) as caught:
            Bare(fake.config(web.url, tmp_path)).inventory()
        assert caught.value.kind is PermanentKind.AUTH
        assert fake.VARIABLE in caught.value.summary
    assert list(home.iterdir()) == []


def test_a_key_may_be_a_file_or_pem(web, pem, tmp_path, monkeypatch):
    file = tmp_path / "key.json"
    file.write_text(fake.service_account(pem, web.url))
    monkeypatch.setenv(fake.VARIABLE, str(file))
    assert Bare(fake.config(web.url, tmp_path)).inventory() == ()
    monkeypatch.setenv(fake.VARIABLE, pem.replace("\n", "\\n"))
    monkeypatch.setenv("FLEETFORM_TEST_EMAIL", fake.EMAIL)
    credentials = {"key": fake.VARIABLE, "email": "FLEETFORM_TEST_EMAIL"}
    config = fake.config(web.url, tmp_path, credentials=credentials, options={"project": fake.PROJECT})
    assert service_account(config).email == fake.EMAIL
    monkeypatch.setenv(fake.VARIABLE, str(tmp_path))
    with pytest.raises(PermanentError, match="cannot be read"):
        Bare(fake.config(web.url, tmp_path)).inventory()


def test_a_login_that_is_refused_says_nothing_secret(web, cloud, gce, pem):
    def refuse(asked):
        if asked.path == "/token":
            return 400, {"error": "invalid_grant", "error_description": f"Invalid JWT {pem.splitlines()[3]}"}
        return cloud(asked)

    web.answer = refuse
    with pytest.raises(PermanentError) as caught:
        gce.inventory()
    assert caught.value.kind is PermanentKind.AUTH
    assert pem.splitlines()[3] not in caught.value.summary
    assert "invalid_grant" in caught.value.summary
