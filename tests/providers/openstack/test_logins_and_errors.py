"""The driver `openstack`: logins, names, flavors, and the meaning of errors."""

import json
import re

import pytest

from declarative.model.spec.backend import Network
from declarative.model.state import Address, Record
from declarative.model.status import NodeState
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud.bad_answers import Scrub
from providers.cloud.faults import Answer, classify
from providers.cloud.openstack import OpenStack, shape
from providers.cloud.openstack.answers import error_info
from providers.ssh.key_pairs import make
from tests.providers.openstack.run import CREDENTIALS, OPTIONS, SECRETS, config
from tests.providers.openstack.server import IMAGE, NETWORK, PROJECT, REGION, SmallCloud, flavor
from tests.support.model import of_node, of_volume

NODE = of_node(region=REGION, zone="az-1", instance_type="m1.tiny")
ADDRESS = Address("node", "gpu-0")
TOKEN = "1" * 32


@pytest.fixture
def cloud():
    with SmallCloud() as running:
        yield running


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("providers.cloud.account.FIRST_PAUSE", 0.002)


@pytest.fixture
def stack(cloud, tmp_path):
    """`stack(…)`: a provider with these settings of the backend."""

    def made(**more):
        return OpenStack(config(cloud, tmp_path, **more))

    return made


def options(**more):
    return {"options": {**OPTIONS, **more}}


# ------------------------------------------------------------------------------------------- login


def test_an_endpoint_is_what_os_auth_url_has(cloud, stack):
    """With keystone's version or without; behind a path, as many clouds have it."""
    for end in ("", "/", "/v3", "/v3/"):
        assert stack(endpoint=cloud.endpoint + end).inventory() == ()
    assert cloud.count("POST", "/identity/v3/auth/tokens") == 4
    with pytest.raises(PermanentError, match="in version 3"):
        stack(endpoint=cloud.endpoint + "/v2.0").inventory()
    with pytest.raises(PermanentError, match="is not keystone"):
        stack(endpoint=cloud.endpoint.replace("identity", "image")).inventory()
    with pytest.raises(PermanentError, match="names no `endpoint`") as caught:
        stack(endpoint=None).inventory()
    assert "OS_AUTH_URL" in str(caught.value.hint)


@pytest.mark.parametrize("kind", ["volumev3", "block-storage", "block-store"])
def test_cinder_is_found_whatever_it_is_called(cloud, stack, kind):
    """Its name in the catalog is the cloud's own, and its type was changed twice."""
    cloud.volume_type = kind
    assert stack().inventory() == ()


def test_a_catalog_without_cinder_is_said(cloud, stack):
    cloud.volume_type = "object-store"
    with pytest.raises(PermanentError, match=f"no public endpoint of `volumev3` in {REGION}"):
        stack().inventory()


def test_one_logs_in_in_several_ways(cloud, stack, monkeypatch):
    """As a user in a project, by its name or id, or as an application credential, which is of one project."""
    assert stack(options={**OPTIONS, "project_id": PROJECT}).inventory() == ()
    with pytest.raises(PermanentError, match="names no project") as caught:
        stack(options={"settle": 0}).inventory()
    assert "OS_PROJECT_NAME" in str(caught.value.hint)
    monkeypatch.setenv("FLEETFORM_TEST_ID", "app")
    monkeypatch.setenv("FLEETFORM_TEST_SECRET", "app-secret")
    both = {"id": "FLEETFORM_TEST_ID", "secret": "FLEETFORM_TEST_SECRET"}
    assert stack(credentials=both, options={"settle": 0}).inventory() == ()
    with pytest.raises(PermanentError, match="names no `secret`"):
        stack(credentials={"id": "FLEETFORM_TEST_ID"}).inventory()


def test_who_is_not_let_in_is_told_what_to_look_at(cloud, stack, monkeypatch):
    """And what was wrong is not shown."""
    for settings in (options(project="nope"), options(user_domain="nope")):
        with pytest.raises(PermanentError, match="requires authentication") as caught:
            stack(**settings).inventory()
        assert caught.value.kind is PermanentKind.AUTH
        assert "options.project" in str(caught.value.hint)
    monkeypatch.setenv(CREDENTIALS["password"], "wr0ng-secret")
    with pytest.raises(PermanentError) as caught:
        stack().inventory()
    assert "wr0ng" not in f"{caught.value} {caught.value.hint}"
    monkeypatch.setenv(CREDENTIALS["password"], "secret")
    with pytest.raises(PermanentError, match="has no region `Region0ne`") as caught:
        stack(regions=("Region0ne",)).inventory()
    assert REGION in str(caught.value.hint)


def test_a_token_that_ends_before_its_time_is_got_anew(cloud, stack):
    """Once: one that is refused at once is a fault, and what was asked for is not done twice."""
    there = stack()
    there.create(Address("volume", "data-0"), TOKEN, of_volume(region=REGION), {})
    assert cloud.count("POST", "/identity/v3/auth/tokens") == 1
    cloud.tokens.clear()
    there.create(Address("volume", "data-1"), "2" * 32, of_volume(region=REGION), {})
    assert (cloud.count("POST", "/identity/v3/auth/tokens"), len(cloud.volumes)) == (2, 2)
    cloud.tokens.clear()
    cloud.forgetful = True
    with pytest.raises(PermanentError, match="requires authentication") as caught:
        there.inventory()
    assert caught.value.kind is PermanentKind.AUTH
    assert cloud.count("POST", "/identity/v3/auth/tokens") == 3


# ------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("settings", "inputs", "words", "about"),
    [
        ({"image": {"*": "debian-99"}}, {}, "no image `debian-99`", "image"),
        ({"image": {"*": IMAGE[:-1] + "0"}}, {}, "no image `ccfe47fd", "image"),
        ({"image": {"*": "twice"}}, {}, "more than one image `twice`", "image"),
        ({"image": {"*": "queued"}}, {}, "is queued, not active", "image"),
        ({"image": {"other": "x"}}, {}, f"no image for {REGION}", "image"),
        ({}, {"instance_type": "m1.tinny"}, "no flavor `m1.tinny`", "instance_type"),
        (options(network="nope"), {}, "no network `nope`", "options.network"),
        ({}, {"spot": True}, "no spot machines", "spot_policy"),
        ({}, {"region": ""}, "the region is not named", "region"),
    ],
)
def test_what_names_nothing_is_said(cloud, stack, settings, inputs, words, about):
    """Before anything is made."""
    cloud.images += [
        {"id": "1", "name": "twice", "status": "active"},
        {"id": "2", "name": "twice", "status": "active"},
        {"id": "3", "name": "queued", "status": "queued"},
    ]
    with pytest.raises(PermanentError, match=words) as caught:
        stack(**settings).create(ADDRESS, TOKEN, {**NODE, **inputs}, {})
    assert (caught.value.kind, caught.value.about) == (PermanentKind.INVALID, about)
    assert (cloud.servers, cloud.pairs) == ({}, {})


def test_what_a_plan_would_meet_is_said_with_it(cloud, stack):
    """Each fault once; with a failed login, nothing else."""
    wanted = {Address("node", f"gpu-{i}"): NODE for i in range(3)}
    wanted |= {Address("volume", "data"): of_volume(region=REGION, zone="az-7")}
    there = stack(image={"*": "debian-99"}, **options(network="nope"))
    words = [" ".join(fault.summary.split()[:4]) for fault in there.check(wanted)]
    assert words == ["there is no image", "there is no network", "there is no zone"]
    assert stack().check({Address("node", "gpu-0"): NODE}) == []
    with pytest.raises(PermanentError, match="requires authentication"):
        stack(**options(project="nope")).check(wanted)
    assert (cloud.servers, cloud.volumes, cloud.pairs) == ({}, {}, {})


def test_several_networks_and_none_named_is_said_with_their_names(cloud, stack):
    """Nova would say 409, and not which. One that is named is taken, by its name or id."""
    cloud.networks.append({"id": "2" * 32, "name": "other", "router:external": False})
    with pytest.raises(PermanentError, match=r"several networks .*: inside, other") as caught:
        stack().create(ADDRESS, TOKEN, NODE, {})
    assert caught.value.about == "options.network"
    for i, name in enumerate(("other", NETWORK)):
        stack(**options(network=name)).create(Address("node", f"gpu-{i}"), str(i) * 32, NODE, {})
    asked = [b["server"]["networks"] for m, p, b in cloud.asked if m == "POST" and p == "/compute/servers"]
    assert asked == [[{"uuid": "2" * 32}], [{"uuid": NETWORK}]]
    with pytest.raises(PermanentError, match="has no meaning for OpenStack"):
        stack(network=Network(subnets={"az-1": "subnet-1"}))


def test_what_a_server_is_made_with(cloud, stack):
    """An image by its id, security groups, a key of the user's, a volume to start from."""
    cloud.pairs["mine"] = {"name": "mine"}
    there = stack(
        image={"*": IMAGE},
        network=Network(security_groups=("ssh", "mpi")),
        **options(key_name="mine", root_volume=50),
    )
    cloud.make_server, before = (lambda q, body: made(body)), cloud.make_server
    seen = []

    def made(body):
        seen.append(body["server"])
        return before({}, {"server": {**body["server"], "imageRef": IMAGE}})

    there.create(ADDRESS, TOKEN, NODE, {})
    (server,) = seen
    assert (server["name"], server["key_name"], server["availability_zone"]) == ("gpu-0", "mine", "az-1")
    assert server["security_groups"] == [{"name": "ssh"}, {"name": "mpi"}]
    assert "imageRef" not in server
    (disk,) = server["block_device_mapping_v2"]
    assert (disk["uuid"], disk["volume_size"], disk["delete_on_termination"]) == (IMAGE, 50, True)


# -------------------------------------------------------------------------------------------- keys


def test_the_key_pair_comes_with_the_first_node_and_goes_with_the_last(cloud, stack, tmp_path):
    there = stack()
    records = []
    for i in range(2):
        address = Address("node", f"gpu-{i}")
        outputs = there.create(address, str(i) * 32, NODE, {})
        records.append(Record(address=address, backend="stack", inputs=NODE, outputs=outputs))
    assert list(cloud.pairs) == ["fleetform-lineage-1"]
    assert outputs["host_key"].startswith("ssh-ed25519 ")
    there.delete(records[0])
    assert cloud.pairs
    there.delete(records[1])
    assert cloud.pairs == {}
    make(tmp_path / "other")
    there.create(ADDRESS, "3" * 32, NODE, {})
    with pytest.raises(PermanentError, match="have another key than") as caught:
        stack(**options(identity_file=str(tmp_path / "other"))).create(
            Address("node", "gpu-9"), "9" * 32, NODE, {}
        )
    assert caught.value.kind is PermanentKind.CONFLICT


def test_a_pair_that_another_machine_took_away_is_brought_again(cloud, stack):
    """It deleted the last node just now."""
    there = stack()
    there.create(ADDRESS, TOKEN, NODE, {})
    cloud.pairs.clear()
    with pytest.raises(TransientError, match="Invalid key_name") as caught:
        there.create(Address("node", "gpu-1"), "2" * 32, NODE, {})
    assert caught.value.kind is TransientKind.BUSY
    there.create(Address("node", "gpu-1"), "2" * 32, NODE, {})
    assert len(cloud.servers) == 2


# ------------------------------------------------------------------------------- public, readiness


def test_a_public_address_is_a_floating_one(cloud, stack):
    """Taken once, and given back with its node."""
    there = stack(network=Network(public_ip=True))
    outputs = there.create(ADDRESS, TOKEN, NODE, {})
    assert outputs["public_address"] == "203.0.113.1"
    assert there.create(ADDRESS, TOKEN, NODE, {}) == outputs
    assert len(cloud.floating) == 1
    # Also where none is wanted any more.
    stack().delete(Record(address=ADDRESS, backend="stack", inputs=NODE, outputs=outputs))
    assert cloud.floating == {}


@pytest.mark.parametrize(
    ("server", "state", "words"),
    [
        ({"status": "BUILD"}, "provisioning", "starting"),
        ({"status": "ACTIVE"}, "ready", ""),
        ({"status": "ACTIVE", "OS-EXT-STS:task_state": "deleting"}, "terminating", "deleted"),
        ({"status": "SHUTOFF"}, "not_ready", "SHUTOFF"),
        ({"status": "ERROR", "fault": {"message": "host died"}}, "failed", "host died"),
        (None, "unreachable", "no such machine"),
    ],
)
def test_what_nova_says_of_a_node(cloud, stack, server, state, words):
    """One by one, or all together."""
    there = stack()
    outputs = there.create(ADDRESS, TOKEN, NODE, {})
    if server is None:
        cloud.servers.clear()
    else:
        cloud.servers[outputs["id"]] |= server
    for more in (0, 3):
        if more and words == "deleted":
            return  # it went with the first look
        if server is not None:
            cloud.servers[outputs["id"]] |= server  # a look makes it go on
        node = Record(address=ADDRESS, backend="stack", inputs=NODE, outputs=outputs)
        others = [
            Record(address=Address("node", f"gpu-{i}"), backend="stack", inputs=NODE) for i in range(1, more)
        ]
        seen = there._nodes.readiness([node, *others])["gpu-0"].readiness
        assert seen.state is NodeState(state)
        assert words in (seen.reason or "")


# ------------------------------------------------------------------------------------------ offers


def test_flavors_are_offers_in_each_zone(cloud, stack):
    """What one costs is unknown. Zones that are not declared are left out, and so are disabled flavors."""
    cloud.flavors += [{**flavor("old", 1, 1), "OS-FLV-DISABLED:disabled": True}]
    cloud.flavors += [flavor(f"more-{i}", 1, 512) for i in range(8)]  # more than a page
    found = stack(zones=("az-1", "az-3")).offers()
    assert {(o.zone, o.price, o.spot) for o in found} == {("az-1", None, False), ("az-3", None, False)}
    names = {o.instance_type for o in found}
    assert names == {"m1.tiny", "gpu.h100x2", *(f"more-{i}" for i in range(8))}
    gpu = next(o.shape for o in found if o.instance_type == "gpu.h100x2")
    assert (gpu.cpu, gpu.memory_mib, gpu.gpus, gpu.gpu_name) == (8, 65536, 2, "H100")
    assert (gpu.disk_mib, gpu.gpu_memory_mib) == (20 * 1024, None)
    with pytest.raises(PermanentError, match="none of the zones") as caught:
        stack(zones=("az-9",)).offers()
    assert caught.value.hint == "it has these: az-1, az-2, az-3"


@pytest.mark.parametrize(
    ("name", "specs", "gpus", "model", "gib"),
    [
        ("m1", {}, 0, None, None),
        ("gpu.8xH100", {}, 0, None, None),  # it does not say that it has some
        ("g1.a100", {"resources:VGPU": "1"}, 1, "A100", None),
        ("x", {"resources:CUSTOM_GPU_H100": "8"}, 8, "H100", None),
        ("x", {"resources:CUSTOM_PGPU_NVIDIA_A100_80GB": "4"}, 4, "A100", 80),
        ("x", {"pci_passthrough:alias": "a100-40g:2,nic:1"}, 2, "A100", 40),
        ("x", {"pci_passthrough:alias": "nic:2"}, 0, None, None),
        ("l40s-32g.x4", {"pci_passthrough:alias": "gpu:4"}, 4, "L40S", None),  # of what it has 32 GB, is open
        ("x", {"resources:CUSTOM_GPU_H100": "2", "pci_passthrough:alias": "h100:2"}, 2, "H100", None),
        ("x", {"resources:CUSTOM_BAREMETAL_H": "1", "resources:VCPU": "0"}, 0, None, None),
        ("x", {"accel:device_profile": "mi300x"}, 1, "MI300X", None),
        ("x", {"resources1:VGPU": "1", "resources2:VGPU": "1"}, 2, None, None),
    ],
)
def test_gpus_are_those_that_extra_specs_tell_of(name, specs, gpus, model, gib):
    found = shape(flavor(name, 4, 1024, specs))
    assert (found.gpus, found.gpu_name) == (gpus, model)
    assert found.gpu_memory_mib == (gib * 1024 if gib else None)


# ------------------------------------------------------------------------------------------ errors

# As nova 31, cinder 26, neutron 26, glance 30 and keystone 27 say it.
RECORDED = (
    (401, {"error": {"code": 401, "title": "Unauthorized", "message": "requires authentication."}}, "auth"),
    (403, {"forbidden": {"message": "Quota exceeded for cores: Requested 64, but already used 0"}}, "quota"),
    (
        403,
        {
            "forbidden": {
                "message": "Quota exceeded for cores, instances: Requested 8, 1, but already used 16, 9"
            }
        },
        "instances",
    ),
    (403, {"forbidden": {"message": "Policy doesn't allow os_compute_api:servers:create"}}, "auth"),
    (403, {"forbidden": {"message": "Only volume-backed servers are allowed for zero disk"}}, "invalid"),
    (413, {"overLimit": {"message": "VolumeLimitExceeded: Maximum number of volumes allowed (10)"}}, "quota"),
    (
        413,
        {"overLimit": {"message": "VolumeSizeExceedsAvailableQuota: Requested volume exceeds allowed"}},
        "quota",
    ),
    (413, {"overLimit": {"message": "This request was rate-limited.", "retryAfter": "2"}}, "throttled"),
    (400, {"badRequest": {"message": "Can not find requested image"}}, "invalid"),
    (400, {"badRequest": {"message": "Network 1 could not be found."}}, "invalid"),
    (
        400,
        {"badRequest": {"message": "Invalid volume: volume 1 is already attached to instances: 2"}},
        "busy",
    ),
    (400, {"badRequest": {"message": "Invalid volume: Volume status must be available or error"}}, "busy"),
    (400, {"badRequest": {"message": "marker [1] not found"}}, "busy"),
    (404, {"itemNotFound": {"message": "Instance 1 could not be found."}}, "not-found"),
    (404, {"message": "No image found with ID 1<br /><br />\n\n", "code": "404 Not Found"}, "not-found"),
    (406, {"computeFault": {"message": "Version 2.61 is not supported by the API."}}, "invalid"),
    (409, {"conflictingRequest": {"message": "Cannot 'attach_volume' while it is building"}}, "busy"),
    (
        409,
        {"conflictingRequest": {"message": "Multiple possible networks found, use a Network ID"}},
        "invalid",
    ),
    (409, {"conflictingRequest": {"message": "Key pair 'k' already exists."}}, "conflict"),
    (409, {"conflictingRequest": {"message": "Instance 1 is locked"}}, "conflict"),
    (
        409,
        {"NeutronError": {"type": "OverQuota", "message": "Quota exceeded for resources: ['port']."}},
        "quota",
    ),
    (409, {"NeutronError": {"message": "No more IP addresses available on network 1."}}, "quota"),
    (500, {"computeFault": {"message": "Unexpected API Error."}}, "ambiguous"),
    (503, "<html><body>503 Service Unavailable</body></html>", "ambiguous"),
    (429, {"overLimit": {"message": "slow down"}}, "throttled"),
)


@pytest.mark.parametrize(("status", "body", "kind"), RECORDED)
def test_what_an_error_means(status, body, kind):
    text = body if isinstance(body, str) else json.dumps(body)
    fault = classify(OSError(), Answer(status=status, text=text), what="x", scrub=Scrub(), read=error_info)
    assert isinstance(fault, PermanentError | TransientError)
    assert fault.kind == kind
    assert not re.search(r"[<>{}]", fault.summary)


def test_user_data_are_never_shown(cloud, stack, monkeypatch):
    """Nova quotes what it refuses, whole, and in there is the private half of the node's host key."""
    monkeypatch.setattr("providers.cloud.any.nodes.user_data", lambda *_: "PRIVATE" * 10_000)
    with pytest.raises(PermanentError, match="user_data") as caught:
        stack().create(ADDRESS, TOKEN, NODE, {})
    assert "UFJJVkFURV" not in caught.value.summary  # `PRIVATE`, as base64
    assert len(caught.value.summary) < 320
