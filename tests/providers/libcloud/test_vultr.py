"""The driver `vultr` with answers that libcloud recorded, and the requests that it sends."""

import base64
from dataclasses import replace
from typing import Any

import pytest

from declarative.model.state import Address, Record
from declarative.model.status import NodeState
from declarative.provider import (
    Config,
    Ended,
    PermanentError,
    PermanentKind,
    Thing,
    TransientError,
    TransientKind,
)
from providers.cloud import cloud
from providers.cloud.any import names
from providers.cloud.any.site import Written
from providers.cloud.any.vultr import Vultr
from tests.providers.libcloud.scripted import Scripted, recorded
from tests.support.model import of_attachment, of_node, of_volume

TOKEN = "0123456789abcdef0123456789abcdef"
NODE = of_node(region="ams", instance_type="vc2-1c-1gb")
VOLUME = of_volume(region="ewr", size="15GB")
SECRET = "a-very-secret-key"


def listing(name, *items, following=""):
    return {name: list(items), "meta": {"total": len(items), "links": {"next": following, "prev": ""}}}


class Api:
    """Vultr's instances, blocks and keys; every new thing looks as libcloud recorded one."""

    def __init__(self):
        self.instances: list[Any] = []
        self.blocks: list[Any] = []
        self.keys: list[Any] = []
        self.answers = {
            "GET /v2/plans": recorded("vultr_v2", "list_sizes"),
            "GET /v2/instances": lambda *_: listing("instances", *self.instances),
            "POST /v2/instances": self.launch,
            "GET /v2/instances/123": lambda *_: {"instance": self.instances[0]},
            "PATCH /v2/instances/123": self.change,
            "DELETE /v2/instances/123": self.gone(self.instances),
            "GET /v2/blocks": lambda *_: listing("blocks", *self.blocks),
            "POST /v2/blocks": self.make,
            "DELETE /v2/blocks/ec6d": self.gone(self.blocks),
            "PATCH /v2/blocks/ec6d": self.grow,
            "POST /v2/blocks/ec6d/attach": self.attach,
            "POST /v2/blocks/ec6d/detach": self.detach,
            "GET /v2/ssh-keys": lambda *_: listing("ssh_keys", *self.keys),
            "POST /v2/ssh-keys": self.bring,
            "DELETE /v2/ssh-keys/k-1": self.gone(self.keys),
        }

    def gone(self, things):
        def end(*_):
            things.clear()
            return 204, None

        return end

    def launch(self, method, path, query, body):
        made = {
            **recorded("vultr_v2", "create_node")["instance"],
            "label": body["label"],
            "tags": body["tags"],
        }
        self.instances.append({**made, "status": "active", "main_ip": "203.0.113.5"})
        return 202, {"instance": made}

    def change(self, method, path, query, body):
        self.instances[0]["tags"] = body["tags"]
        return {"instance": self.instances[0]}

    def make(self, method, path, query, body):
        made = {**recorded("vultr_v2", "create_volume")["block"], "id": "ec6d", "label": body["label"]}
        self.blocks.append({**made, "status": "active"})
        return 202, {"block": made}

    def grow(self, method, path, query, body):
        self.blocks[0]["size_gb"] = body["size_gb"]
        return 204, None

    def attach(self, method, path, query, body):
        self.blocks[0]["attached_to_instance"] = body["instance_id"]
        return 204, None

    def detach(self, *_):
        if not self.blocks[0]["attached_to_instance"]:
            return 400, {"error": "Block storage volume is not currently attached to a server", "status": 400}
        self.blocks[0]["attached_to_instance"] = ""
        return 204, None

    def bring(self, method, path, query, body):
        self.keys.append(
            {**recorded("vultr_v2", "import_key_pair_from_string")["ssh_key"], **body, "id": "k-1"}
        )
        return 201, {"ssh_key": self.keys[-1]}


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def server(api):
    with Scripted(api.answers) as running:
        yield running


@pytest.fixture
def vultr(server, tmp_path, monkeypatch):
    monkeypatch.setenv("VULTR_KEY", SECRET)
    monkeypatch.setattr(Vultr, "settle", 0.01)
    return cloud(
        Config(
            backend="vultr",
            project_dir=tmp_path,
            lineage="lineage-1",
            driver="vultr",
            regions=("ams", "ewr"),
            credentials={"key": "VULTR_KEY"},
            endpoint=f"http://127.0.0.1:{server.port}",
            image={"*": "2136"},
        )
    )


def node(vultr, **more):
    address, inputs = Address("node", "gpu-0"), {**NODE, **more}
    return Record(
        address=address, backend="vultr", inputs=inputs, outputs=vultr.create(address, TOKEN, inputs, {})
    )


def volume(vultr, **more):
    address, inputs = Address("volume", "data-0"), {**VOLUME, **more}
    return Record(
        address=address, backend="vultr", inputs=inputs, outputs=vultr.create(address, TOKEN, inputs, {})
    )


def test_offers_are_the_recorded_plans(vultr):
    """With what they cost an hour, where they are; nothing is free."""
    plans = recorded("vultr_v2", "list_sizes")["plans"]
    offers = vultr.offers()
    assert {o.instance_type for o in offers} == {
        p["id"] for p in plans if {"ams", "ewr"} & set(p["locations"])
    }
    first = next(o for o in offers if (o.instance_type, o.region) == ("vc2-1c-1gb", "ams"))
    assert (first.shape.cpu, first.shape.memory_mib, first.shape.disk_mib) == (1, 1024, 25 * 1024)
    assert first.price == pytest.approx(5 / 672, abs=1e-5)
    assert all(offer.price for offer in offers)


@pytest.mark.parametrize(
    ("gpu", "vram", "count", "name", "each"),
    [
        ("NVIDIA_A16", 2, 1, "A16", 2),
        ("NVIDIA_A16", 64, 4, "A16", 16),
        ("NVIDIA_A100", 160, 2, "A100", 80),
        ("AMD_MI300X", 192, 1, "MI300X", 192),
    ],
)
def test_gpus_are_told_by_their_memory(vultr, server, gpu, vram, count, name, each):
    """A part of one is one with less memory."""
    plan = {**recorded("vultr_v2", "list_sizes")["plans"][0], "gpu_type": gpu, "gpu_vram_gb": vram}
    server.answers["GET /v2/plans"] = listing("plans", plan)
    shape = vultr.offers()[0].shape
    assert (shape.gpus, shape.gpu_name, shape.gpu_memory_mib) == (count, name, each * 1024)


def test_an_instance_is_asked_for_with_all_that_it_needs(vultr, server, api):
    record = node(vultr, tags={"team": "a"})
    (asked,) = server.bodies("POST", "/v2/instances")
    tags, data = asked.pop("tags"), asked.pop("user_data")
    assert asked == {
        "label": "gpu-0",
        "hostname": "gpu-0",
        "region": "ams",
        "plan": "vc2-1c-1gb",
        "os_id": 2136,
        "sshkey_id": ["k-1"],
        "activation_email": False,
        "enable_ipv6": False,
    }
    assert base64.b64decode(data).startswith(b"#cloud-config\n")
    assert tags[0] == "fleetform:owner:lineage-1"
    assert tags[-1] == "team:a"
    assert {k: record.outputs[k] for k in ("id", "address", "public_address", "user")} == {
        "id": "123",
        "address": "10.7.96.6",
        "public_address": "203.0.113.5",
        "user": "fleetform",
    }
    assert record.outputs["host_key"].startswith("ssh-ed25519 ")
    assert server.headers[0]["Authorization"] == f"Bearer {SECRET}"
    assert vultr.find(record.address, TOKEN).inputs == record.inputs
    vultr.delete(record)
    assert not api.instances
    assert not api.keys


@pytest.mark.parametrize(
    ("image", "asked"),
    [
        ("2136", {"os_id": 2136}),
        ("adff3e5e-a242-4302-980a-053714209e32", {"snapshot_id": "adff3e5e-a242-4302-980a-053714209e32"}),
        ("docker", {"image_id": "docker"}),
    ],
)
def test_an_image_is_a_system_a_snapshot_or_an_application(vultr, server, image, asked):
    vultr._account.config = replace(vultr._account.config, image={"*": image})
    node(vultr)
    (body,) = server.bodies("POST", "/v2/instances")
    assert {k: v for k, v in body.items() if k in ("os_id", "snapshot_id", "image_id")} == asked


def test_a_block_says_in_its_label_whose_it_is(vultr, server, api):
    """Its other data is only recorded, so `known` is false."""
    record = volume(vultr)
    (asked,) = server.bodies("POST", "/v2/blocks")
    mark = Written(owner="lineage-1", token=TOKEN, address=record.address)
    assert asked == {"region": "ewr", "size_gb": 15, "label": names.name(mark)}
    (thing,) = vultr.inventory()
    assert (thing.address, thing.token, thing.known) == (record.address, TOKEN, False)
    assert thing.outputs == record.outputs
    assert vultr.create(record.address, TOKEN, record.inputs, {}) == record.outputs
    assert len(api.blocks) == 1
    vultr.update(record, TOKEN, {**VOLUME, "size": "20GB"})
    assert server.bodies("PATCH", "/v2/blocks/ec6d") == [{"size_gb": 20}]
    vultr.delete(record)
    assert not api.blocks


@pytest.mark.slow
def test_a_block_is_attached_while_the_instance_runs(vultr, server, api):
    """Whose it is there stands on the instance, beside what stood there before."""
    there, disk = node(vultr), volume(vultr)
    inputs = of_attachment("t-0", "gpu-0", "data-0")
    address, before = Address("attachment", "t-0.data-0"), list(api.instances[0]["tags"])
    needs = {r.address: r for r in (there, disk)}
    outputs = vultr.create(address, TOKEN, inputs, needs)
    held = Record(address=address, backend="vultr", inputs=inputs, outputs=outputs)
    assert server.bodies("POST", "/v2/blocks/ec6d/attach") == [{"instance_id": "123", "live": True}]
    assert outputs["device"] == "/dev/disk/by-id/virtio-ewr-ec6d1eccaa704f"
    found = vultr.find(address, TOKEN)
    assert found is not None
    assert (found.inputs, found.outputs, found.known) == (inputs, outputs, True)
    assert vultr.find(address, "f" * 32) is None
    with pytest.raises(PermanentError) as raised:
        vultr.delete(disk)
    assert raised.value.kind is PermanentKind.CONFLICT
    vultr._attachments.delete(held)
    assert server.bodies("POST", "/v2/blocks/ec6d/detach") == [{"live": True}]
    assert api.instances[0]["tags"] == before
    vultr._attachments.delete(held)


def test_a_lost_instance_is_found_by_its_tags(vultr, server, api):
    """An answer that cannot be read says nothing; the next try finds what it was about."""
    launch = server.answers["POST /v2/instances"]
    server.answers["POST /v2/instances"] = lambda *asked: (launch(*asked)[0], b"<html>oops")
    with pytest.raises(TransientError) as raised:
        node(vultr)
    assert raised.value.kind is TransientKind.AMBIGUOUS
    assert node(vultr).outputs["id"] == "123"
    assert len(api.instances) == 1


def test_an_instance_that_is_denied_has_ended(vultr, server):
    """While another one of ours shows that it is the right account."""
    other = node(vultr)
    made = "00000000-0000-0000-0000-00000000000a"
    lost = Record(address=Address("node", "gpu-1"), backend="vultr", inputs=NODE, outputs={"id": made})
    server.answers[f"GET /v2/instances/{made}"] = lambda *_: (404, {"error": "Not found", "status": 404})
    found = vultr.recall([lost, other])
    assert found[lost.address] == Ended(reason=f"Vultr has no instance {made} any more")
    assert isinstance(found[other.address], Thing)
    vultr.delete(other)
    assert vultr.recall([lost]) == {}


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (401, "Invalid API token.", PermanentKind.AUTH),
        (
            400,
            "Server add failed: this plan is not available in the selected region",
            PermanentKind.NO_CAPACITY,
        ),
        (400, "You have reached the maximum monthly fee limit for this account", PermanentKind.QUOTA),
        (400, "Maximum number of instances reached", PermanentKind.INSTANCES),
        (422, "creating this/these droplet(s) will exceed your droplet limit", PermanentKind.INSTANCES),
        (400, "You have exceeded the limit of volumes for this instance type", PermanentKind.QUOTA),
        (400, "Invalid os_id", PermanentKind.INVALID),
        (400, "Rate limit reached", TransientKind.THROTTLED),
        (503, "You have reached the limit", TransientKind.AMBIGUOUS),
        (429, "slow down", TransientKind.THROTTLED),
        (500, "Internal error", TransientKind.AMBIGUOUS),
    ],
)
def test_refusals_are_of_their_kinds(vultr, server, status, text, kind):
    server.answers["POST /v2/instances"] = (status, {"error": text, "status": status})
    raised: Any
    with pytest.raises((PermanentError, TransientError)) as raised:
        node(vultr)
    assert raised.value.kind is kind
    assert text in raised.value.summary


@pytest.mark.parametrize("answer", [{}, {"instances": []}, {"meta": {"total": 0}}, [], {"instances": None}])
def test_an_answer_without_its_list_is_no_empty_list(vultr, server, answer):
    server.answers["GET /v2/instances"] = (200, answer)
    with pytest.raises(TransientError) as raised:
        vultr.inventory()
    assert raised.value.kind is TransientKind.AMBIGUOUS


def test_all_pages_are_read(vultr, server):
    """By the cursor of each, as libcloud recorded them for images."""
    old = recorded("vultr_v2", "list_nodes")["instances"]

    def page(method, path, query, body):
        at = int(query.get("cursor", 0))
        links = {"next": str(at + 1) if at + 1 < len(old) else "", "prev": ""}
        return {"instances": [old[at]], "meta": {"total": len(old), "links": links}}

    server.answers["GET /v2/instances"] = page
    assert vultr.inventory() == ()  # they are not ours
    assert [q.get("cursor") for _, p, q, _ in server.asked if p == "/v2/instances"] == [None, "1", "2"]
    server.answers["GET /v2/instances"] = lambda *a: {
        **page(*a),
        "meta": {"total": 3, "links": {"next": "1"}},
    }
    with pytest.raises(TransientError, match="leads back"):
        vultr.inventory()


def test_what_a_node_says_of_itself(vultr, server, api):
    record = node(vultr)

    def state(**more):
        api.instances[0] |= more
        return vultr._nodes.readiness([record])["gpu-0"].readiness.state

    assert state() is NodeState.READY
    assert state(power_status="stopped") is NodeState.NOT_READY
    assert state(status="pending") is NodeState.PROVISIONING
    assert state(status="active", power_status="running", main_ip="0.0.0.0") is NodeState.PROVISIONING
    assert state(status="suspended") is NodeState.NOT_READY
    api.instances.clear()
    assert vultr._nodes.readiness([record])["gpu-0"].readiness.state is NodeState.UNREACHABLE


def test_a_volume_with_tags_is_refused(vultr, api):
    with pytest.raises(PermanentError, match="no tags there"):
        volume(vultr, tags={"team": "a"})
    assert not api.blocks


def test_a_block_that_somebody_made_is_not_adopted(vultr, api, server):
    """All that can be written on it is its label, which is its name: that stays its owner's."""
    with pytest.raises(PermanentError, match="`vultr` cannot adopt volumes") as caught:
        volume(vultr, volume_id="ec6d")
    assert (caught.value.kind, caught.value.about) == (PermanentKind.INVALID, "volume_id")
    assert not server.asked
