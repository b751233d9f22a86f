"""Mistakes of users, with a real OpenStack: each gets a clear message, and nothing is left behind."""

import zlib
from functools import partial

import pytest

from declarative.model.state import Address, Record
from declarative.provider import PermanentError, PermanentKind, ProviderError
from declarative.retry import Policy, call
from providers.cloud.openstack import OpenStack
from tests.providers.openstack.real import cloud
from tests.support.model import of_node, of_volume

pytestmark = pytest.mark.skipif(not cloud.ASKED_FOR, reason=cloud.WHY_NOT)

NODE = of_node(region=cloud.REGION, zone=cloud.ZONE, instance_type=cloud.FLAVOR)
QUICK = Policy(deadline=120.0, first=0.2, longest=2.0)


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in cloud.SECRETS.items():
        monkeypatch.setenv(name, value)


def options(**more):
    return {"options": {**cloud.OPTIONS, **more}}


@pytest.fixture
def lineage(request, tmp_path):
    """One of its own; what was made is gone afterwards."""
    name = f"people-{zlib.crc32(request.node.name.encode()):08x}"
    yield name
    provider = OpenStack(cloud.config(tmp_path, name))
    for thing in provider.inventory():
        provider.delete(
            Record(address=thing.address, backend="stack", inputs=thing.inputs, outputs=thing.outputs)
        )


def make(provider, name="gpu-0", **more):
    """A node, or the fault."""
    return provider.create(Address("node", name), f"{name:0>32}", {**NODE, **more}, {})


@pytest.mark.parametrize(
    ("settings", "inputs", "kind", "words"),
    [
        (options(project="nope"), {}, "auth", "requires authentication"),
        (options(domain="nope"), {}, "auth", "requires authentication"),
        ({"regions": ("Nowhere",)}, {"region": "Nowhere"}, "invalid", "has no region `Nowhere`"),
        ({"endpoint": "http://127.0.0.1:9292"}, {}, "invalid", "is not keystone"),
        ({"image": {"*": "debian-99"}}, {}, "invalid", "no image `debian-99`"),
        ({"image": {"*": "twice"}}, {}, "invalid", "more than one image `twice`"),
        ({"image": {"*": "00000000-0000-0000-0000-000000000000"}}, {}, "invalid", "no image `0000"),
        ({}, {"instance_type": "m1.tony"}, "invalid", "no flavor `m1.tony`"),
        ({}, {"instance_type": "gpu.a100x2"}, "no-capacity", "No valid host"),
        (options(network="nope"), {}, "invalid", "no network `nope`"),
        (options(key_name="nope"), {}, "invalid", "Invalid key_name"),
        ({}, {"zone": "mars"}, "invalid", "availability zone is not available"),
        ({}, {"env": {"A": "x" * 6000}}, "invalid", "too much data"),
    ],
)
def test_each_is_said_in_words(tmp_path, lineage, settings, inputs, kind, words):
    provider = OpenStack(cloud.config(tmp_path, lineage, **settings))
    with pytest.raises(PermanentError, match=words) as caught:
        call(lambda: make(provider, **inputs), policy=QUICK)
    assert caught.value.kind is PermanentKind(kind)
    assert len(caught.value.summary) < 500
    clean = OpenStack(cloud.config(tmp_path, lineage))
    assert clean.inventory() == ()
    region = clean._nova.region(cloud.REGION)
    with pytest.raises(PermanentError, match="not found"):
        region.ask("the key pair", "compute", "GET", f"/os-keypairs/fleetform-{lineage}")


def test_a_wrong_password(tmp_path, monkeypatch):
    monkeypatch.setenv(cloud.CREDENTIALS["password"], "wr0ng-secret")
    with pytest.raises(PermanentError, match="requires authentication") as caught:
        OpenStack(cloud.config(tmp_path)).offers()
    assert caught.value.kind is PermanentKind.AUTH
    assert "wr0ng" not in f"{caught.value} {caught.value.hint}"


def test_nobody_listens(tmp_path):
    with pytest.raises(ProviderError, match="refused"):
        OpenStack(cloud.config(tmp_path, endpoint="http://127.0.0.1:9")).offers()


def test_user_data_are_never_shown(tmp_path, lineage, monkeypatch):
    """Nova quotes what it refuses, and in there is the private half of the node's host key."""
    monkeypatch.setattr("providers.cloud.any.nodes.user_data", lambda *_: "PRIVATE" * 10_000)
    with pytest.raises(PermanentError, match="user_data") as caught:
        make(OpenStack(cloud.config(tmp_path, lineage)))
    assert len(caught.value.summary) < 400
    assert "UFJJVkFURV" not in caught.value.summary  # `PRIVATE`, as base64


def test_a_quota_of_ten(tmp_path, monkeypatch):
    """The eleventh is refused, at once or after it was accepted; what there is stays, and can go away."""
    monkeypatch.setenv(cloud.CREDENTIALS["username"], "small")
    provider = OpenStack(cloud.config(tmp_path, "small", **options(project="small")))
    names = [f"gpu-{i}" for i in range(10)]
    made = {name: call(partial(make, provider, name), policy=QUICK) for name in names}
    with pytest.raises(PermanentError) as caught:
        call(lambda: make(provider, "gpu-10"), policy=QUICK)
    assert caught.value.kind is PermanentKind.QUOTA
    inputs = of_volume(region=cloud.REGION, size="1GB")
    addresses = [Address("volume", f"data-{i}") for i in range(10)]
    disks = {a: provider.create(a, f"{a.name:0>32}", inputs, {}) for a in addresses}
    with pytest.raises(PermanentError) as caught:
        provider.create(Address("volume", "data-10"), "9" * 32, inputs, {})
    assert caught.value.kind is PermanentKind.QUOTA
    assert len(provider.inventory()) == 20
    for name, outputs in made.items():
        provider.delete(Record(address=Address("node", name), backend="stack", inputs=NODE, outputs=outputs))
    for address, outputs in disks.items():
        provider.delete(Record(address=address, backend="stack", inputs=inputs, outputs=outputs))
    assert provider.inventory() == ()


def test_flavors_are_offers(tmp_path):
    """With the GPUs that the scheduler knows; their price is unknown."""
    found = {o.instance_type: o for o in OpenStack(cloud.config(tmp_path)).offers()}
    assert set(found) == {"m1.tiny", "m1.large", "m1.huge", "gpu.h100x2", "gpu.a100x2"}
    shape = found["gpu.h100x2"].shape
    assert (shape.cpu, shape.memory_mib, shape.gpus, shape.gpu_name) == (4, 4096, 2, "H100")
    assert found["m1.large"].shape.gpus == 0
    assert {(o.zone, o.price, o.spot) for o in found.values()} == {(cloud.ZONE, None, False)}


def test_a_node_has_a_public_address_if_it_is_asked_for(tmp_path):
    """A floating one, which goes with it."""
    from declarative.model.spec.backend import Network

    provider = OpenStack(cloud.config(tmp_path, "public", network=Network(public_ip=True)))
    outputs = call(lambda: make(provider), policy=QUICK)
    assert outputs["public_address"].startswith("203.0.113.")
    assert call(lambda: make(provider), policy=QUICK) == outputs
    region = provider._nova.region(cloud.REGION)
    taken = region.ask("addresses", "network", "GET", "/v2.0/floatingips")["floatingips"]
    assert [f["floating_ip_address"] for f in taken] == [outputs["public_address"]]
    provider.delete(Record(address=Address("node", "gpu-0"), backend="stack", inputs=NODE, outputs=outputs))
    assert region.ask("addresses", "network", "GET", "/v2.0/floatingips")["floatingips"] == []
