"""The driver `azure` against a small Azure of the tests' own (tests/providers/azure/server.py)."""

import base64
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import pytest

from declarative.model.spec.backend import Network, Reach
from declarative.model.state import TAGS, Address, Record, token
from declarative.model.status import NodeState
from declarative.provider import Ended, PermanentError, PermanentKind, TransientError, TransientKind, load
from declarative.retry import Policy, call
from providers.cloud import account, marks
from providers.cloud.azure import Azure
from providers.testing import NODE, VOLUME, Conformance, Spoilt
from tests.providers.azure import server as fake
from tests.providers.cloud.web import LOST, TooEarly, Web, losing
from tests.support.model import of_attachment

PLACE = {"region": fake.REGION, "zone": fake.ZONE}


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """What takes a moment there takes none here."""
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


class Bare(Azure):
    """Its nodes are ready when Azure says so: no host answers."""

    def readiness(self, nodes):
        return {name: seen.readiness for name, seen in self._nodes.readiness(nodes).items()}


class TestAzure(Conformance):
    backend = "az"
    ranks = False  # nothing is behind the machines
    many = 2 * fake.PAGE + 1
    crowd = 20 * fake.PAGE
    node_inputs = MappingProxyType({**NODE, **PLACE, "backend": "az", "instance_type": "Standard_D2s_v3"})
    volume_inputs = MappingProxyType({**VOLUME, **PLACE, "backend": "az"})
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
                return fake.error(401, "InvalidAuthenticationToken")
            found = self.cloud(asked)
            # Of what a machine needs first nothing is found by its token: see below.
            return LOST if asked.method == "PUT" and "Compute" in asked.path else found

        if how is Spoilt.NOBODY:
            return Bare(fake.config("http://127.0.0.1:1", folder, lineage))
        self.bad.answer = answer
        return Bare(fake.config(self.bad.url, folder, lineage))


del Conformance  # it is no test itself

NODES = MappingProxyType({**NODE, **PLACE, "backend": "az", "instance_type": "Standard_D2s_v3"})
DISKS = MappingProxyType({**VOLUME, **PLACE, "backend": "az"})
PATIENT = Policy(first=0.01, longest=0.05)
KINDS = ("virtualmachines", "networkinterfaces", "publicipaddresses", "disks")


@pytest.fixture
def az(web, tmp_path):
    return Bare(fake.config(web.url, tmp_path))


def wanted(kind, name, inputs):
    return Record(address=Address(kind, name), backend="az", inputs=inputs)


def token_of(record):
    return token("lineage-1", record.address, record.generation, record.inputs.get("zone"))


def made(provider, record, *needs):
    known = {need.address: need for need in needs}
    return replace(record, outputs=provider.create(record.address, token_of(record), record.inputs, known))


def attachment(volume, node):
    inputs = of_attachment("t-0", node.address.name, volume.address.name)
    return wanted("attachment", f"t-0.{volume.address.name}", inputs)


def changes(web):
    return [asked for asked in web.asked if asked.method != "GET" and not asked.path.endswith("/token")]


def left(cloud):
    """How many of each kind there are."""
    return [sum(key.split("/")[1] == kind for key in cloud.things) for kind in KINDS]


# ---------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize("driver", ["azure", "azure_arm"])
def test_the_entry_points_lead_here(tmp_path, driver):
    assert type(load(driver, fake.config("http://127.0.0.1:9", tmp_path, driver=driver))) is Azure


def test_a_node_is_an_address_an_interface_and_a_machine_of_one_name(web, cloud, az, tmp_path):
    inputs = {**NODES, "tags": {"team": "vision"}, "spot": True, "max_price": 1.25}
    node = made(az, wanted("node", "gpu-0", inputs))
    name = f"gpu-0-{token_of(node)[:24]}"
    ip, card, machine = changes(web)
    network = f"{fake.ROOT}Microsoft.Network"
    assert ip.line == f"PUT {network}/publicIPAddresses/{name}"
    assert card.line == f"PUT {network}/networkInterfaces/{name}"
    assert machine.line == f"PUT {fake.ROOT}Microsoft.Compute/virtualMachines/{name}"
    assert machine.headers["If-None-Match"] == "*"
    (first,) = card.body["properties"]["ipConfigurations"]
    assert first["properties"]["subnet"]["id"].endswith("/virtualNetworks/net/subnets/nodes")
    assert first["properties"]["publicIPAddress"]["id"] == ip.path
    for beside in (ip, card):
        assert beside.body["tags"][f"{marks.OURS}machine-of"] == "lineage-1"
        assert beside.body["tags"][marks.ADDRESS] == "node/gpu-0"
    body, inner = machine.body, machine.body["properties"]
    assert (body["location"], body["zones"]) == ("eastus", ["1"])
    assert body["tags"][marks.TOKEN] == token_of(node)
    assert body["tags"]["team"] == "vision"
    assert inner["hardwareProfile"] == {"vmSize": "Standard_D2s_v3"}
    image = {"publisher": "Canonical", "offer": "ubuntu-24_04-lts", "sku": "server", "version": "latest"}
    assert inner["storageProfile"]["imageReference"] == image
    assert inner["storageProfile"]["osDisk"]["deleteOption"] == "Delete"
    assert (inner["priority"], inner["evictionPolicy"]) == ("Spot", "Delete")
    assert inner["billingProfile"] == {"maxPrice": 1.25}
    (nic,) = inner["networkProfile"]["networkInterfaces"]
    assert nic == {"id": card.path, "properties": {"primary": True, "deleteOption": "Delete"}}
    system = inner["osProfile"]
    assert base64.b64decode(system["customData"]).startswith(b"#cloud-config\n")
    keys = system["linuxConfiguration"]["ssh"]["publicKeys"]
    assert system["linuxConfiguration"]["disablePasswordAuthentication"] is True
    assert keys[0]["path"] == f"/home/{system['adminUsername']}/.ssh/authorized_keys"
    assert keys[0]["keyData"].startswith("ssh-ed25519 ")
    assert node.outputs["id"] == f"{fake.GROUP.lower()}/{name}"
    assert node.outputs["zone"] == fake.ZONE
    # A try that begins anew asks for the same, to the byte.
    web.asked.clear()
    cloud.things.clear()
    made(Bare(fake.config(web.url, tmp_path)), wanted("node", "gpu-0", inputs))
    assert [a.body for a in changes(web)] == [ip.body, card.body, body]
    assert {a.params["api-version"] for a in web.asked if "virtualMachines" in a.path} == {"2024-07-01"}


def test_a_node_without_a_public_address(web, tmp_path):
    network = Network(
        subnets={fake.ZONE: "/subscriptions/s/subnets/x"}, security_groups=("ssh-in",), reach=Reach.PRIVATE
    )
    node = made(Bare(fake.config(web.url, tmp_path, network=network)), wanted("node", "gpu-0", NODES))
    card, _ = changes(web)
    (first,) = card.body["properties"]["ipConfigurations"]
    assert first["properties"]["subnet"]["id"] == "/subscriptions/s/subnets/x"
    assert "publicIPAddress" not in first["properties"]
    assert card.body["properties"]["networkSecurityGroup"]["id"].endswith("/networkSecurityGroups/ssh-in")
    assert "public_address" not in node.outputs
    assert node.outputs["address"].startswith("10.1.0.")


def test_a_volume_comes_is_attached_grows_and_goes(web, az):
    volume, node = made(az, wanted("volume", "data-0", DISKS)), made(az, wanted("node", "gpu-0", NODES))
    web.asked.clear()
    held = made(az, attachment(volume, node), volume, node)
    assert held.outputs["device"] == "/dev/disk/azure/scsi1/lun0"
    disk = az._attachments.on_node(volume)
    assert disk.links == ("/dev/disk/azure/scsi1/lun0", "/dev/disk/azure/data/by-lun/0")
    assert disk.node.outputs == node.outputs
    assert az._attachments.on_node(held) == disk
    az.delete(held)
    assert az._attachments.on_node(volume) is None
    az.update(volume, "x", {**DISKS, "size": "3GB", "tags": {"team": "a"}})
    az.delete(volume)
    compute = f"{fake.ROOT}Microsoft.Compute"
    path = f"{compute}/disks/{volume.outputs['id'].rpartition('/')[2]}"
    machine = f"{compute}/virtualMachines/{node.outputs['id'].rpartition('/')[2]}"
    tags = f"PATCH {path}/providers/Microsoft.Resources/tags/default"
    assert [a.line for a in changes(web)] == [
        tags,  # the claim comes before the disk
        f"POST {machine}/attachDetachDataDisks",
        f"POST {machine}/attachDetachDataDisks",
        tags,
        f"PATCH {path}",
        tags,
        f"DELETE {path}",
    ]
    bodies = [a.body for a in changes(web)]
    assert bodies[0]["operation"] == "Merge"
    assert bodies[1] == {"dataDisksToAttach": [{"diskId": path, "caching": "None", "deleteOption": "Detach"}]}
    assert bodies[2] == {"dataDisksToDetach": [{"diskId": path}]}
    assert bodies[3]["operation"] == "Delete"
    assert bodies[4] == {"properties": {"diskSizeGB": 3}}


def test_what_azure_has_not_is_refused(az):
    with pytest.raises(PermanentError) as caught:
        made(az, wanted("volume", "data-0", {**DISKS, "tags": {"a/b": "c"}}))
    assert (caught.value.kind, caught.value.about) == (PermanentKind.INVALID, "tags")
    with pytest.raises(PermanentError) as caught:
        made(az, wanted("node", "gpu-0", {**NODES, "reservation": "r"}))
    assert caught.value.about == "reservation"


def test_the_next_page_is_asked_of_nobody_else(web, az):
    """What an answer says of where the next page is, is another's host: the token does not go there."""
    for i in range(fake.PAGE + 1):
        made(az, wanted("volume", f"data-{i}", DISKS))
    web.asked.clear()
    assert len(az.inventory()) == fake.PAGE + 1
    disks = [a for a in web.asked if a.path.endswith("/disks")]
    assert ["$skiptoken" in a.params for a in disks] == [False, True]
    assert disks[1].params["api-version"] == disks[0].params["api-version"]


# ------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize("seed", [1, 2])
def test_lost_answers_make_nothing_twice(web, cloud, az, seed):
    web.answer = losing(cloud, seed)

    def all_of(i):
        volume = call(lambda: made(az, wanted("volume", f"data-{i}", DISKS)), policy=PATIENT)
        node = call(lambda: made(az, wanted("node", f"gpu-{i}", NODES)), policy=PATIENT)
        call(lambda: made(az, attachment(volume, node), volume, node), policy=PATIENT)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(all_of, range(4)))
    assert left(cloud) == [4, 4, 4, 8]
    assert len(az.inventory()) == 12
    # Attachments first, in the order of their kinds' names.
    for thing in sorted(az.inventory(), key=lambda t: t.address.kind):
        have = replace(wanted(thing.address.kind, thing.address.name, thing.inputs), outputs=thing.outputs)
        call(partial(az.delete, have), policy=PATIENT)
    assert cloud.things == {}


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("SkuNotAvailable", PermanentKind.NO_CAPACITY),
        ("QuotaExceeded", PermanentKind.QUOTA),
        ("later:AllocationFailed", PermanentKind.NO_CAPACITY),
        ("later:OSProvisioningTimedOut", PermanentKind.INVALID),
    ],
)
def test_nothing_is_left_of_a_machine_that_could_not_be_made(cloud, az, how, kind):
    cloud.sold_out = how
    with pytest.raises(PermanentError) as caught:
        made(az, wanted("node", "gpu-0", NODES))
    assert (caught.value.kind, caught.value.about) == (kind, fake.ZONE)
    assert how.rpartition(":")[2] in caught.value.summary
    assert cloud.things == {}
    cloud.sold_out = ""
    made(az, wanted("node", "gpu-0", NODES))


def test_what_was_begun_goes_on_or_is_cleared_away(web, cloud, az):
    """The controller ended between the interface and the machine."""

    def cut(asked):
        if asked.method == "PUT" and "virtualMachines" in asked.path:
            return LOST
        return cloud(asked)

    web.answer = cut
    record = wanted("node", "gpu-0", NODES)
    with pytest.raises(TransientError):
        made(az, record)
    assert left(cloud) == [0, 1, 1, 0]
    assert az.inventory() == ()
    assert az.find(record.address, token_of(record)) is None
    web.answer = cloud
    node = made(az, record)
    assert left(cloud) == [1, 1, 1, 1]
    # …or after it: the machine is gone, what it had is not.
    del cloud.things[f"microsoft.compute/virtualmachines/{node.outputs['id'].rpartition('/')[2]}"]
    for thing in cloud.things.values():
        thing.pop("managedBy", None)
        thing["properties"].pop("virtualMachine", None)
    az.delete(node)
    assert cloud.things == {}


def test_one_who_comes_second_finds_what_the_first_made(az, monkeypatch):
    """Between the look and the create another try has made it."""
    site = az._account.at(az._config.regions[0]).site
    first = [made(az, wanted("volume", "data-0", DISKS)), made(az, wanted("node", "gpu-0", NODES))]
    for look in ("_disk", "_machine"):
        monkeypatch.setattr(site, look, TooEarly(getattr(site, look)))
    assert [made(az, record) for record in first] == first


def test_what_is_gone_is_made_by_the_same_token_and_what_just_goes_is_waited_for(cloud, az):
    """As after a restore: the state does not know that all of this was made and deleted before."""
    disk, node = wanted("volume", "data-0", DISKS), wanted("node", "gpu-0", NODES)
    for record, kind in ((disk, "disks"), (node, "virtualmachines")):
        have = made(az, record)
        (key,) = (k for k in cloud.things if k.startswith(f"microsoft.compute/{kind}/"))
        properties = cloud.things[key]["properties"]
        properties["provisioningState"] = "Deleting"
        with pytest.raises(TransientError, match="is just being deleted") as caught:
            made(az, record)
        assert caught.value.kind is TransientKind.BUSY
        properties["provisioningState"] = "Succeeded"
        az.delete(have)
        assert made(az, record).outputs["id"] == have.outputs["id"]
        az.delete(have)


def test_a_machines_own_disk_is_no_volume(cloud, az):
    """It may have the machine's tags."""
    node = made(az, wanted("node", "gpu-0", NODES))
    assert left(cloud)[-1] == 1
    assert [thing.address for thing in az.inventory()] == [node.address]


def test_a_secret_that_is_wrong_is_not_shown(web, az, monkeypatch):
    monkeypatch.setenv("FLEETFORM_TEST_PASSWORD", "wrong~secret")
    with pytest.raises(PermanentError) as caught:
        az.inventory()
    assert caught.value.kind is PermanentKind.AUTH
    assert "invalid_client" in caught.value.summary
    assert "wrong~secret" not in f"{caught.value.summary}{caught.value.hint}"
    assert [asked.path for asked in web.asked] == [f"/{fake.TENANT}/oauth2/token"]


def test_a_group_that_is_not_there_is_no_empty_one(web, tmp_path):
    options = {"resource_group": "other", "login_endpoint": web.url}
    with pytest.raises(PermanentError, match="ResourceGroupNotFound") as caught:
        Bare(fake.config(web.url, tmp_path, options=options)).inventory()
    assert caught.value.kind is PermanentKind.INVALID
    with pytest.raises(PermanentError, match="the resource group is not named"):
        Bare(fake.config(web.url, tmp_path, options={}))


def test_a_listing_without_its_list_is_a_fault(web, cloud, az):
    web.answer = lambda asked: (200, {}) if asked.path.endswith("/disks") else cloud(asked)
    with pytest.raises(TransientError, match="has no list `value`"):
        az.inventory()


def test_one_login_serves_all_threads(web, az):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: az.inventory(), range(16)))
    (login,) = [asked for asked in web.asked if asked.path.endswith("/token")]
    assert login.body == {
        "grant_type": "client_credentials",
        "client_id": "application-id",
        "client_secret": "very~secret.indeed",
        "resource": f"{web.url}/",
    }


# ------------------------------------------------------------------------------------------- drift


def test_what_others_change_is_seen_and_mended(cloud, az):
    node = made(az, wanted("node", "gpu-0", {**NODES, "tags": {"team": "a"}}))
    volume = made(az, wanted("volume", "data-0", DISKS))
    machine, disk = (
        cloud.things[f"microsoft.compute/{kind}/{r.outputs['id'].rpartition('/')[2]}"]
        for kind, r in (("virtualmachines", node), ("disks", volume))
    )
    machine["properties"]["hardwareProfile"]["vmSize"] = "Standard_D4s_v3"
    disk["properties"]["diskSizeGB"] = 7
    known = {thing.address.kind: thing.actual for thing in az.inventory()}
    assert known == {"node": {"instance_type": "Standard_D4s_v3"}, "volume": {"size": "7GB"}}
    machine["tags"], disk["tags"] = {"mine": "1"}, {}
    assert az.inventory() == ()
    found = az.recall([node, volume])
    assert found[node.address].actual[TAGS] == {}
    assert found[volume.address].actual[TAGS] == {}
    az.update(node, token_of(node), node.inputs)
    az.update(volume, token_of(volume), {**DISKS, "size": "7GB"})
    assert machine["tags"]["mine"] == "1"
    assert {(t.address, t.outputs["id"]) for t in az.inventory()} == {
        (node.address, node.outputs["id"]),
        (volume.address, volume.outputs["id"]),
    }
    other = made(az, wanted("node", "gpu-1", NODES))
    az.delete(node)
    said = Ended(reason=f"Azure has no {node.outputs['id']} any more")
    assert az.recall([node, other])[node.address] == said
    az.delete(other)
    assert az.recall([node])[node.address] == said, "the id itself names the account"


@pytest.mark.parametrize("may", [True, False])
def test_states_of_machines(web, cloud, az, may):
    """Who may not see the states of the whole subscription takes what was made for what runs."""
    nodes = [made(az, wanted("node", f"gpu-{i}", NODES)) for i in range(3)]
    machine = cloud.things[f"microsoft.compute/virtualmachines/{nodes[1].outputs['id'].rpartition('/')[2]}"]
    machine["properties"]["instanceView"] = {"statuses": [{"code": "PowerState/deallocated"}]}

    def answer(asked):
        if asked.params.get("statusOnly") and not may:
            return fake.error(403, "AuthorizationFailed")
        status, found = cloud(asked)
        if asked.path.endswith("/virtualMachines") and not asked.params.get("statusOnly"):
            # As Azure does: the listing of a group has no states.
            bare = [{**i, "properties": {**i["properties"], "instanceView": None}} for i in found["value"]]
            found = {**found, "value": bare}
        return status, found

    web.answer = answer
    states = [seen.state for seen in az.readiness(nodes).values()]
    off = NodeState.NOT_READY if may else NodeState.READY
    assert states == [NodeState.READY, off, NodeState.READY]


def test_offers_have_their_zones_and_gpus(cloud, web, tmp_path):
    cloud.skus += [
        fake.sku("Standard_ND96isr_H100_v5", 96, 1900, ("1",), GPUs="8"),
        fake.sku("Standard_NV6ads_A10_v5", 6, 55, ("1",), GPUs="1"),
        fake.sku("Standard_E2pds_v5", 2, 16, ("1",), CpuArchitectureType="Arm64"),
        fake.sku("Standard_A1", 1, 1.75),
        {**fake.sku("Standard_D8s_v3", 8, 32), "restrictions": [{"type": "Location"}]},
        {"resourceType": "disks", "name": "Premium_LRS"},
    ]
    half = {"type": "Zone", "restrictionInfo": {"zones": ["1"]}}
    cloud.skus[0]["restrictions"] = [half]
    offers = Bare(fake.config(web.url, tmp_path)).offers()
    assert {(o.instance_type, o.zone) for o in offers} == {
        ("Standard_A1", None),
        ("Standard_D2s_v3", "eastus-2"),
        ("Standard_NC24ads_A100_v4", "eastus-2"),
        ("Standard_ND96isr_H100_v5", "eastus-1"),
        ("Standard_NV6ads_A10_v5", "eastus-1"),
    }
    by = {o.instance_type: o for o in offers if not o.spot}
    large = by["Standard_ND96isr_H100_v5"].shape
    assert (large.gpus, large.gpu_name, large.gpu_memory_mib, large.memory_mib) == (8, "H100", 81920, 1945600)
    assert by["Standard_NV6ads_A10_v5"].shape.gpus == 0
    assert by["Standard_ND96isr_H100_v5"].price is None
    assert by["Standard_D2s_v3"].price == pytest.approx(0.096)
    assert by["Standard_D2s_v3"].priced_on == "2025-03-02"
    assert all(o.price is None and o.bids and o.priced_on is None for o in offers if o.spot)
    (web.asked.clear(), Bare(fake.config(web.url, tmp_path, zones=("eastus-1",))).offers())
    (asked,) = [a for a in web.asked if a.path.endswith("/skus")]
    assert asked.params["$filter"] == "location eq 'eastus'"
