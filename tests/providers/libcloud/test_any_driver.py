"""libcloud's drivers without code of their own: what each can do, and things that keep only a name."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libcloud.compute import providers as libclouds
from libcloud.compute.types import NodeState

from declarative.model.spec.backend import Network
from declarative.model.state import Address, Record
from declarative.provider import (
    Config,
    Ended,
    PermanentError,
    PermanentKind,
    TransientError,
    TransientKind,
    UnknownProviderError,
    installed,
    load,
)
from providers.cloud import WIRED
from providers.cloud import provider as clouds
from providers.cloud.any import kinds, names
from providers.cloud.any.libcloud_site import LibcloudSite
from providers.cloud.any.site import Written, gpu_model
from providers.cloud.shared_looks import Shared
from tests.providers.libcloud.plain import NAME, Cloud
from tests.providers.libcloud.scripted import Scripted, recorded
from tests.support.cli import Project
from tests.support.model import of_attachment, of_node, of_volume

TOKEN = "0123456789abcdef0123456789abcdef"


def config(tmp_path, driver, **more):
    given = {"regions": ("loc-1",), "credentials": {"key": "PLAIN_KEY"}, "image": {"*": "image-1"}}
    return Config(backend="b", project_dir=tmp_path, lineage="lineage-1", driver=driver, **{**given, **more})


# ------------------------------------------------------------------------------- every driver there is

CAN = {
    "aurora_compute": "nodes and volumes",
    "brightbox": "nodes",
    "cloudstack": "nodes and volumes",
    "ikoula": "nodes and volumes",
    "linode": "nodes",
    "rackspace": "nodes",
}
"""What can be made with drivers that are not wired; all others are refused. As docs/clouds.md has it."""


def test_the_drivers_that_can_be_used_are_known():
    """A new version of libcloud's may change this: then docs/clouds.md has to."""
    found = {n: kinds.kind(n) for n in kinds.names() if n not in WIRED}
    said = {n: "nodes and volumes" if k.volumes else "nodes" for n, k in found.items() if k.nodes}
    assert said == CAN


@pytest.mark.parametrize("name", [name for name in kinds.names() if name not in WIRED])
def test_every_driver_loads_or_is_refused(name, tmp_path):
    """With a reason, and never with a traceback; nothing is asked, and nothing is installed for it."""
    if name in CAN:
        assert isinstance(load(name, config(tmp_path, name)), clouds.Cloud)
        return
    with pytest.raises(PermanentError) as raised:
        load(name, config(tmp_path, name))
    assert raised.value.kind is PermanentKind.INVALID
    assert f"`{name}`" in raised.value.summary
    assert raised.value.hint


def test_a_name_that_is_no_driver_s_is_unknown(tmp_path):
    """What may be meant is one that is installed, or any of libcloud's."""
    hints = {}
    for name in ("linod", "digitalocaen", "locla", "nonsense"):
        with pytest.raises(UnknownProviderError) as raised:
            load(name, config(tmp_path, name))
        hints[name] = raised.value.hint
    assert "`linode`" in hints["linod"]
    assert "`digitalocean`" in hints["digitalocaen"]
    assert "`local`" in hints["locla"]
    assert hints["nonsense"] == f"installed: {', '.join(installed())}"
    assert "*" not in installed()


@pytest.mark.parametrize(("driver", "text"), [("dummy", "cannot be used"), ("libvirt", "no `create_node`")])
def test_a_plan_says_that_a_driver_cannot_be_used(tmp_path, driver, text):
    """And plans nothing there: what the catalog declares cannot be launched."""
    project = Project(tmp_path)
    offer = {"instance_type": "big", "cpu": 8, "memory": "64GB", "price": 1}
    project.declare(
        {"type": "backend", "name": "mine", "driver": driver, "regions": ["x"], "catalog": [offer]},
        {"type": "fleet", "name": "gpu", "backends": ["mine"], "nodes": 1},
    )
    plan = project.plan(code=1)
    assert plan["actions"] == []
    assert text in json.dumps(plan["diagnostics"])


# ---------------------------------------------------------------------------------------- its names


@given(
    st.text("abcdefghijklmnopqrstuvwxyz0123456789-", max_size=18),
    st.binary(min_size=16, max_size=16),
    st.text(),
)
def test_a_name_says_all_that_there_is_to_say(rest, token, owner):
    mark = Written(owner=owner, token=token.hex(), address=Address("node", f"a{rest}"))
    text = names.name(mark)
    assert len(text) <= names.LENGTH
    assert names.read("node", text, owner) == mark
    assert names.read("node", text, owner + "x") is None


@pytest.mark.parametrize("text", [None, "", "gpu-0", "f-aaaaaaaa-bbbb-gpu-0", 7])
def test_other_names_say_nothing(text):
    assert names.read("node", text, "o") is None


def test_an_address_that_is_too_long_is_refused():
    mark = Written(owner="o", token=TOKEN, address=Address("node", "a" * 40))
    with pytest.raises(PermanentError, match="may have 25 characters"):
        names.name(mark)


def test_a_unique_name_is_that_of_one_create():
    mark = Written(owner="o", token=TOKEN, address=Address("node", "gpu-0"))
    end = hashlib.sha256(f"o\0{TOKEN}".encode()).hexdigest()[:16]
    assert names.unique(mark) == f"gpu-0-{end}"
    assert len(names.unique(replace(mark, address=Address("node", "a" * 80)))) <= names.LENGTH
    assert names.unique(replace(mark, owner="p")) != names.unique(mark)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nvidia_h100", ("H100", "nvidia")),
        ("NVIDIA_L40S", ("L40S", "nvidia")),
        ("amd_mi300x", ("MI300X", "amd")),
        ("nvidia_rtx6000_ada", ("RTX6000Ada", "nvidia")),
        ("", (None, None)),
    ],
)
def test_gpus_have_the_names_that_people_use(text, told):
    assert gpu_model(text) == told


def test_listings_are_shared_by_those_who_wait():
    """One that began before one asked is not good enough, and one for all who asked meanwhile is."""
    clock = iter(range(100))
    looks = iter(range(1, 100))
    shared = Shared(lambda: [next(looks)], now=lambda: next(clock))
    assert [shared.fresh(), shared.fresh()] == [(1,), (2,)]
    shared._started = 1000.0
    assert shared.fresh() == (2,)


# ------------------------------------------------------------------------------ a driver of that kind


@pytest.fixture
def plain(tmp_path, monkeypatch):
    """The provider for a driver that only libcloud knows."""
    monkeypatch.setitem(libclouds.DRIVERS, NAME, ("tests.providers.libcloud.plain", "PlainDriver"))
    monkeypatch.setattr(kinds, "HOLDERS", {NAME: "holder"})
    monkeypatch.setattr(LibcloudSite, "settle", 0.05)
    monkeypatch.setenv("PLAIN_KEY", "a-secret-of-mine")
    Cloud.clear()
    yield load(NAME, config(tmp_path, NAME))
    Cloud.clear()


def make(provider, kind, name, needs=(), **inputs):
    address = Address(kind, name)
    outputs = provider.create(address, token_of(address), inputs, {need.address: need for need in needs})
    return Record(address=address, backend="b", inputs=inputs, outputs=outputs)


def token_of(address):
    return hashlib.sha256(str(address).encode()).hexdigest()[:32]


NODE = of_node(region="loc-1", instance_type="small")
VOLUME = of_volume(region="loc-1", size="3GB")


def test_a_node_is_made_by_keywords_and_known_by_its_name(plain):
    record = make(plain, "node", "gpu-0", **NODE)
    (asked,) = Cloud.asked
    assert asked.pop("data").startswith("#cloud-config\n")
    assert asked == {"image": "image-1", "size": "small", "location": "loc-1"}
    assert make(plain, "node", "gpu-0", **NODE) == record
    (thing,) = plain.inventory()
    assert (thing.address, thing.token, thing.known) == (record.address, token_of(record.address), False)
    assert thing.outputs == record.outputs
    assert thing.outputs["host_key"].startswith("ssh-ed25519 ")
    assert plain.find(record.address, token_of(record.address)) == thing
    assert plain.find(record.address, TOKEN) is None
    plain.delete(record)
    assert not Cloud.nodes
    plain.delete(record)


def test_a_machine_that_is_listed_as_terminated_has_ended(plain):
    """It is not there any more, however long its cloud goes on listing it."""
    record = make(plain, "node", "gpu-0", **NODE)
    Cloud.nodes[0].state = NodeState.TERMINATED
    assert plain.inventory() == ()
    assert plain.recall([record]) == {record.address: Ended(reason="it is terminated")}
    Cloud.nodes.clear()
    assert plain.recall([record]) == {}


def test_a_lost_answer_makes_nothing_twice(plain):
    Cloud.lose += ["create_node", "create_volume"]
    for kind, name, inputs in (("node", "gpu-0", NODE), ("volume", "data-0", VOLUME)):
        with pytest.raises(TransientError) as raised:
            make(plain, kind, name, **inputs)
        assert raised.value.kind is TransientKind.AMBIGUOUS
        make(plain, kind, name, **inputs)
    assert (len(Cloud.nodes), len(Cloud.volumes)) == (1, 1)


def test_a_volume_is_attached_and_nothing_is_written(plain):
    node, volume = make(plain, "node", "gpu-0", **NODE), make(plain, "volume", "data-0", **VOLUME)
    inputs = of_attachment("t-0", "gpu-0", "data-0")
    held = make(plain, "attachment", "t-0.data-0", (node, volume), **inputs)
    assert Cloud.volumes[0].extra["holder"] == Cloud.nodes[0].id
    found = plain.find(held.address, token_of(held.address))
    assert found is not None
    assert (found.outputs, found.known) == (held.outputs, False)
    with pytest.raises(PermanentError, match="data-0 is on"):
        plain.delete(volume)
    plain._attachments.delete(held)
    assert Cloud.volumes[0].extra["holder"] is None
    assert plain.find(held.address, token_of(held.address)) is None
    with pytest.raises(PermanentError, match="larger in place"):
        plain.update(volume, token_of(volume.address), {**VOLUME, "size": "4GB"})
    plain.delete(volume)
    assert not Cloud.volumes


def test_offers_are_its_sizes_whose_cpus_it_tells(plain):
    """What its price means is not known, and no size of no CPUs is made up."""
    (offer,) = plain.offers()
    assert (offer.instance_type, offer.shape.cpu, offer.shape.memory_mib, offer.price) == (
        "small",
        2,
        1024,
        None,
    )


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"instance_type": "smal"}, "no size `smal`"),
        ({"region": "loc-3"}, "no region `loc-3`"),
        ({"tags": {"a": "b"}}, "writes no tags"),
        ({"spot": True}, "no spot"),
        ({"reservation": "cr-1"}, "no capacity reservations"),
        ({"identity": "ml-nodes"}, "no identities for its nodes"),
    ],
)
def test_what_it_lacks_is_refused(plain, inputs, text):
    with pytest.raises(PermanentError, match=text) as raised:
        make(plain, "node", "gpu-0", **{**NODE, **inputs})
    assert raised.value.kind is PermanentKind.INVALID
    assert not Cloud.nodes


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"options": {"node": {"ex_nonsense": 1}}}, "ex_nonsense"),
        ({"options": {"driver": {"projekt": "x"}}}, "cannot be given `projekt`"),
        ({"options": {"moon": 1}}, "`moon` is no option"),
        ({"credentials": {"kye": "PLAIN_KEY"}}, "`kye` is no credential"),
        ({"credentials": {}}, "cannot be made"),
        ({"network": Network(security_groups=("sg-1",))}, "not known how"),
    ],
)
def test_what_is_declared_wrong_is_said(plain, tmp_path, more, text):
    with pytest.raises(PermanentError, match=text) as raised:
        make(load(NAME, config(tmp_path, NAME, **more)), "node", "gpu-0", **NODE)
    assert "a-secret-of-mine" not in str(raised.value)
    assert not Cloud.nodes


# ----------------------------------------------------------------------- one of libcloud's own, over HTTP


@pytest.fixture
def linode(tmp_path, monkeypatch):
    """Linode as libcloud recorded it."""
    monkeypatch.setattr(LibcloudSite, "settle", 0.05)
    monkeypatch.setenv("PLAIN_KEY", "a-secret-of-mine")
    answers = {
        "GET /v4/linode/types": recorded("linode_v4", "list_types"),
        "GET /v4/regions": recorded("linode_v4", "list_locations"),
        "GET /v4/linode/instances": {"data": [], "page": 1, "pages": 1, "results": 0},
    }
    with Scripted(answers) as api:
        given = config(
            tmp_path,
            "linode",
            regions=("eu-west",),
            image={"*": "linode/debian9"},
            endpoint=f"http://127.0.0.1:{api.port}",
        )
        yield api, load("linode", given)


def test_sizes_of_linode_have_their_prices(linode):
    _, provider = linode
    offers = {offer.instance_type: offer for offer in provider.offers()}
    types = {t["id"]: t for t in recorded("linode_v4", "list_types")["data"]}
    assert set(offers) <= set(types)
    assert len(offers) > 3
    assert all(o.price == types[n]["price"]["hourly"] for n, o in offers.items())


def test_a_linode_is_asked_for_with_its_key(linode):
    api, provider = linode
    made = recorded("linode_v4", "create_node")

    def create(method, path, query, body):
        node = {**made, "label": body["label"], "status": "running"}
        api.answers["GET /v4/linode/instances"] = {"data": [node], "page": 1, "pages": 1, "results": 1}
        return node

    api.answers["POST /v4/linode/instances"] = create
    inputs = of_node(region="eu-west", instance_type=next(iter(types_of(provider))))
    record = make(provider, "node", "gpu-0", **inputs)
    (asked,) = api.bodies("POST", "/v4/linode/instances")
    assert asked["label"] == names.name(
        Written(owner="lineage-1", token=token_of(record.address), address=record.address)
    )
    assert asked["region"] == "eu-west"
    assert asked["image"] == "linode/debian9"
    assert asked["authorized_keys"][0].startswith("ssh-ed25519 ")
    assert len(asked["root_pass"]) > 30
    assert record.outputs["id"] == str(made["id"])


def types_of(provider):
    return sorted(offer.instance_type for offer in provider.offers())


def test_an_empty_answer_of_linode_s_is_no_empty_list(linode):
    """Libcloud reads a list out of it."""
    api, provider = linode
    api.answers["GET /v4/linode/instances"] = {}
    with pytest.raises(TransientError) as raised:
        provider.inventory()
    assert raised.value.kind is TransientKind.AMBIGUOUS


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, PermanentKind.AUTH), (429, TransientKind.THROTTLED), (503, TransientKind.AMBIGUOUS)],
)
def test_linode_s_errors_keep_their_status(linode, status, kind):
    """Libcloud's have none."""
    api, provider = linode
    api.answers["GET /v4/linode/instances"] = (status, {"errors": [{"reason": "because"}]})
    raised: Any
    with pytest.raises((PermanentError, TransientError)) as raised:
        provider.inventory()
    assert raised.value.kind is kind
    assert "because" in raised.value.summary
