"""The law of fields: a change of a `backend` or a `fleet` with recorded nodes is done, or shown, or its field
stands in one short list.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, get_type_hints

import pytest

from declarative.model.blocks import Shape
from declarative.model.inputs import data_of
from declarative.model.resource import HOW_REACHED, Desired, Host
from declarative.model.spec import Backend, Fleet
from declarative.model.spec.backend import CatalogOffer, Network
from declarative.model.spec.fleet import HostFields, SshConfig
from declarative.model.state import Address, Record
from declarative.model.status import NodeState, Readiness
from declarative.planner.differences import OF_NO_NODE
from declarative.planner.hosts import declared_hosts, hosts_of, offer_of_host, shaping
from declarative.planner.inventory import PartitionNode
from declarative.planner.make import make_plan, make_refresh_plan
from declarative.planner.plan import Difference, Plan
from declarative.render.html import plan_html
from declarative.render.markdown import plan_markdown
from declarative.render.plan import plan_text
from declarative.render.plan_document import plan_json
from tests.support.model import World, project

PARTS = (CatalogOffer, Network, SshConfig, HostFields)
"""Records inside of the two documents whose fields count one by one."""
KEY = "ssh-ed25519 " + "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


def leaves(cls: type, path: str) -> Iterator[str]:
    """The paths of all fields of a document, with those of the records in it."""
    for field in dataclasses.fields(cls):
        found = repr(get_type_hints(cls, include_extras=False)[field.name])
        inner = next((p for p in PARTS if p.__name__ in found), None)
        if field.name == "hosts":
            inner = HostFields
        yield from leaves(inner, f"{path}.{field.name}") if inner else [f"{path}.{field.name}"]


FIELDS = sorted([*leaves(Backend, "backend"), *leaves(Fleet, "fleet")])

BIG = {"instance_type": "big", "cpu": 8, "memory": "16GB", "gpu": "H100:1", "disk": "100GB", "price": 1.0}
SPOT = {**BIG, "spot_price": 0.4}
SKY: dict[str, Any] = {
    "name": "sky",
    "driver": "ec2",
    "regions": ["east"],
    "image": "ami-a",
    "network": {"security_groups": ["sg-1"]},
    "catalog": [BIG],
}
ZONED: dict[str, Any] = {**SKY, "availability_zones": ["east-1a"]}
WEB = {"name": "web", "nodes": 2}
RACK: dict[str, Any] = {"name": "rack", "ssh_config": {"user": "me", "hosts": [{"hostname": "a"}]}}
POOL = {"name": "pool", "partition": "gpu"}
ONE = {"name": "web", "instance_ids": ["i-0001"], "backends": ["sky"]}


def with_offer(**words: Any) -> dict[str, Any]:
    return {**SKY, "catalog": [{**BIG, **words}]}


def network(**words: Any) -> dict[str, Any]:
    return {**SKY, "network": {**SKY["network"], **words}}


def config(**words: Any) -> dict[str, Any]:
    return {**RACK, "ssh_config": {**RACK["ssh_config"], **words}}


def host(**words: Any) -> dict[str, Any]:
    return config(hosts=[{"hostname": "a", **words}])


Words = Mapping[str, Any]
BACKENDS: dict[str, tuple[Words, Words]] = {
    "name": (SKY, {**SKY, "name": "sea"}),
    "driver": (SKY, {**SKY, "driver": "openstack"}),
    "regions": (SKY, {**SKY, "regions": ["west"]}),
    "availability_zones": (ZONED, {**SKY, "availability_zones": ["east-1b"]}),
    "catalog.instance_type": (SKY, with_offer(instance_type="huge")),
    "catalog.cpu": (SKY, with_offer(cpu=16)),
    "catalog.memory": (SKY, with_offer(memory="32GB")),
    "catalog.gpu": (SKY, with_offer(gpu="A100:1")),
    "catalog.disk": (SKY, with_offer(disk="200GB")),
    "catalog.price": (SKY, with_offer(price=2.0)),
    "catalog.spot_price": ({**SKY, "catalog": [SPOT]}, {**SKY, "catalog": [{**SPOT, "spot_price": 0.5}]}),
    "catalog.regions": (SKY, {**with_offer(regions=["west"]), "regions": ["east", "west"]}),
    "catalog.limit": (SKY, with_offer(limit=9)),
    "options": (SKY, {**SKY, "options": {"disk_size": 200}}),
    "credentials": (SKY, {**SKY, "credentials": {"key": "A_KEY", "secret": "A_SECRET"}}),
    "endpoint": (SKY, {**SKY, "endpoint": "https://cloud.example.org"}),
    "image": (SKY, {**SKY, "image": "ami-b"}),
    "ssh_user": (SKY, {**SKY, "ssh_user": "ubuntu"}),
    "network.subnets": (ZONED, {**ZONED, "network": {"subnets": {"east-1a": "subnet-1"}}}),
    "network.security_groups": (SKY, network(security_groups=["sg-2"])),
    "network.public_ip": (SKY, network(public_ip=False)),
    "network.reach": (SKY, network(reach="private")),
}
"""Field of a backend → the words before and after a change of it."""
FLEETS: dict[str, tuple[Words, Words]] = {
    "name": (WEB, {**WEB, "name": "net"}),
    "nodes": (WEB, {**WEB, "nodes": 3}),
    "placement": (WEB, {**WEB, "placement": "cluster"}),
    "same": ({**WEB, "placement": "cluster"}, {**WEB, "placement": "cluster", "same": "region"}),
    "blocks": (WEB, {**WEB, "blocks": 8, "resources": {"gpu": "0.."}}),
    "resources": (WEB, {**WEB, "resources": {"cpu": "16.."}}),
    "backends": ({**WEB, "backends": ["sky"]}, {**WEB, "backends": ["local"]}),
    "regions": (WEB, {**WEB, "regions": ["west"]}),
    "availability_zones": (WEB, {**WEB, "availability_zones": ["east-1b"]}),
    "instance_types": (WEB, {**WEB, "instance_types": ["huge"]}),
    "spot_policy": (WEB, {**WEB, "spot_policy": "spot"}),
    "max_price": (WEB, {**WEB, "max_price": 0.5}),
    "backfill": (WEB, {**WEB, "backfill": "any"}),
    "idle_duration": (WEB, {**WEB, "idle_duration": "1h"}),
    "unreachable_duration": (WEB, {**WEB, "unreachable_duration": "1h"}),
    "health": (WEB, {**WEB, "health": {"strict": True}}),
    "schedule": (WEB, {**WEB, "schedule": {"start": "0 8 * * *", "stop": "0 20 * * *"}}),
    "tags": (WEB, {**WEB, "tags": {"team": "a"}}),
    "env": (WEB, {**WEB, "env": {"A": "1"}}),
    "prevent_destroy": (WEB, {**WEB, "prevent_destroy": True}),
    "reservation": (WEB, {**WEB, "reservation": "cr-1"}),
    "identity": (WEB, {**WEB, "identity": "ml-nodes"}),
    "instance_ids": (ONE, {**ONE, "instance_ids": ["i-0002"]}),
    "ssh_config.hosts.hostname": (RACK, config(hosts=["b"])),
    "ssh_config.hosts.port": (RACK, host(port=2222)),
    "ssh_config.hosts.user": (RACK, host(user="you")),
    "ssh_config.hosts.identity_file": (RACK, host(identity_file="key")),
    "ssh_config.hosts.host_keys": (RACK, host(host_keys=[KEY])),
    "ssh_config.hosts.proxy_jump": (RACK, host(proxy_jump={"hostname": "door"})),
    "ssh_config.hosts.internal_ip": (RACK, host(internal_ip="10.0.0.4")),
    "ssh_config.hosts.blocks": (RACK, host(blocks=4)),
    "ssh_config.hosts.resources": (RACK, host(resources={"cpu": 2, "memory": "4GB"})),
    "ssh_config.hosts.gpus": (RACK, host(gpus=["A6000"])),
    "ssh_config.hosts.trust": (RACK, host(trust=True)),
    "ssh_config.hosts.topology": (RACK, host(topology={"rack": "r1"})),
    "ssh_config.hosts.env": (RACK, host(env={"NCCL_SOCKET_IFNAME": "eth1"})),
    "ssh_config.user": (RACK, config(user="you")),
    "ssh_config.port": (RACK, config(port=2222)),
    "ssh_config.identity_file": (RACK, config(identity_file="key")),
    "ssh_config.known_hosts": (RACK, config(known_hosts="keys")),
    "ssh_config.host_keys": (RACK, config(host_keys=[KEY])),
    "ssh_config.proxy_jump": (RACK, config(proxy_jump={"hostname": "door"})),
    "ssh_config.network": (RACK, config(network="10.0.0.0/24")),
    "partition": (POOL, {**POOL, "partition": "cpu"}),
    "constraint": (POOL, {**POOL, "constraint": "ib"}),
    "account": (POOL, {**POOL, "account": "lab"}),
    "qos": (POOL, {**POOL, "qos": "high"}),
}
"""Field of a fleet → the words before and after a change of it."""


def planned(world: World, desired: Desired, **options: Any) -> Plan:
    """The plan when all hosts and partitions were looked at."""
    shape = Shape(cpu=4, memory_mib=8192, disk_mib=1000)
    seen = world.inventory(desired)
    known = {r.address.name: shaping(r.node.host) for r in world.of("node")}
    hosts = [h for h in hosts_of(desired, world.state()) if not h.whole]
    due = [h for h in hosts if shaping(h.fields) != known.get(h.name)]
    offers = {h.backend: (offer_of_host(h, replace(shape, **h.declared)),) for h in due if h.backend == "ssh"}
    existing: dict[str, tuple[PartitionNode, ...]] = {}
    for fleet in desired.fleets.values():
        if fleet.partition:
            (whole,) = declared_hosts(fleet)
            node = Host(
                fleet=whole.fleet, name="pool-1", backend=whole.backend, key="n1", fields=whole.fields
            )
            ready = Readiness(state=NodeState.READY, observed_at=world.now)
            existing[whole.fleet] = (PartitionNode(host=node, shape=shape, readiness=ready),)
    seen = replace(seen, offers={**seen.offers, **offers}, existing=existing)
    return make_plan(desired, world.state(), seen, world.now, **options)


def made(desired: Desired) -> World:
    """The world in which it was applied."""
    world = World()
    if any(fleet.instance_ids for fleet in desired.fleets.values()):
        inputs = {
            "fleet": "web",
            "backend": "sky",
            "region": "east",
            "instance_type": "big",
            "blocks": 1,
            "resources": {"cpu": 8, "memory_mib": 16384},
            "host": {"instance_id": "i-0001"},
        }
        address = Address("node", "web-0")
        world.records[address] = Record(address=address, backend="sky", inputs=inputs)
        return world
    world.apply(planned(world, desired), random.Random(1))
    for record in world.of("node"):  # a partition's node without outputs is not recorded yet
        world.records[record.address] = replace(record, outputs={"id": record.address.name})
    again = planned(world, desired)
    assert (again.result, again.observed.differences) == ("none", ()), again.diagnostics
    return world


def changed(path: str) -> tuple[World, Desired]:
    """The world before a change of a field, and the project after it."""
    kind, _, name = path.partition(".")
    before, after = (BACKENDS if kind == "backend" else FLEETS)[name]
    backend = (before, after) if kind == "backend" else (SKY, SKY)
    fleet = (before, after) if kind == "fleet" else (WEB, WEB)
    if path == "backend.catalog.spot_price":
        fleet = ({**WEB, "spot_policy": "spot"},) * 2
    if path == "fleet.backends":
        backend = (SKY, SKY)
    first, then = (project(backends=[b], fleets=[f]) for b, f in zip(backend, fleet, strict=True))
    return made(first), then


def test_every_field_has_a_case():
    """A new field is done, or shown, or stands in the list: this fails until somebody has decided it."""
    cases = {*(f"backend.{n}" for n in BACKENDS), *(f"fleet.{n}" for n in FLEETS)}
    assert set(FIELDS) == cases | {p for p in FIELDS if p in OF_NO_NODE}
    assert set(OF_NO_NODE) <= set(FIELDS)


@pytest.mark.parametrize("path", [p for p in FIELDS if p not in OF_NO_NODE or p == "backend.options"])
def test_a_changed_field_is_done_or_shown(path):
    world, desired = changed(path)
    plan = planned(world, desired)
    node = [a for a in plan.actions if a.address.kind == "node"]
    told = [d for d in plan.diagnostics if d.severity.value == "error"]
    assert node or plan.observed.differences or told
    assert "Everything is as declared" not in plan_text(plan, color=False, width=None)


@pytest.mark.parametrize("option", sorted(HOW_REACHED))
def test_how_a_cloud_is_reached_shapes_no_node(option):
    world = made(project(backends=[SKY], fleets=[WEB]))
    plan = planned(world, project(backends=[{**SKY, "options": {option: "x"}}], fleets=[WEB]))
    assert (plan.result, plan.observed.differences) == ("none", ())


def test_a_difference_stands_in_all_four_formats():
    world, desired = changed("backend.image")
    plan = planned(world, desired)
    assert plan.result == "none"
    line = '"ami-a" → "ami-b"'
    text = plan_text(plan, color=False, width=None)
    assert "~ node/web-0, node/web-1  # when it is made anew (2 alike)\n      image: " + line in text
    assert text.endswith(
        "No changes now. 2 nodes differ from what is declared, until they are made anew: "
        "`fleetform apply --replace node/web-0`.\n"
    )
    assert line in plan_markdown(plan, 60_000)
    assert "no changes, 2 nodes differ until made anew" in plan_markdown(plan, 60_000)
    assert "image: &#34;ami-a&#34; → &#34;ami-b&#34;" in plan_html(plan)
    found = {"field": "image", "before": "ami-a", "after": "ami-b", "replaced": False}
    data = json.loads(json.dumps(plan_json(plan)))
    assert [{"address": f"node/web-{i}", **found} for i in range(2)] == data["differences"]


def test_a_requested_replacement_shows_old_and_new():
    world, desired = changed("backend.image")
    plan = planned(world, desired, requested=frozenset({"node/web-0"}))
    text = plan_text(plan, color=False, width=None)
    assert 'settings.image: "ami-a" → "ami-b"' in text
    assert [d.address for d in plan.observed.differences] == ["node/web-1"]


def with_image(world: World, made_from: str) -> World:
    """The world whose nodes started from an image with that id."""
    for address, record in world.records.items():
        world.records[address] = replace(record, outputs={**record.outputs, "image": made_from})
    return world


FILTER = {**SKY, "image": {"filter": {"name": "ubuntu-*"}}}


def test_a_filter_that_gives_a_newer_image_by_now():
    """The cloud's answer counts where there is one; without it what is declared is compared."""
    desired = project(backends=[FILTER], fleets=[WEB])
    world = with_image(made(desired), "ami-1")
    assert planned(world, desired).observed.differences == ()
    seen = replace(world.inventory(desired), images={("sky", "east"): "ami-2"})
    plan = make_plan(desired, world.state(), seen, world.now, requested=frozenset({"node/web-1"}))
    found = [(d.address, d.field, d.before, d.after, d.replaced) for d in plan.observed.differences]
    assert found == [
        ("node/web-0", "image", "ami-1", "ami-2", False),
        ("node/web-1", "image", "ami-1", "ami-2", True),
    ]
    assert "# by this plan" in plan_text(plan, color=False, width=None)


def test_another_way_to_name_the_same_image_is_no_difference():
    world = with_image(made(project(backends=[FILTER], fleets=[WEB])), "ami-1")
    desired = project(backends=[{**SKY, "image": "ami-1"}], fleets=[WEB])
    seen = replace(world.inventory(desired), images={("sky", "east"): "ami-1"})
    assert make_plan(desired, world.state(), seen, world.now).observed.differences == ()


def test_a_node_from_before_settings_were_recorded():
    """Only what the cloud says is compared: what was declared then is not known."""
    world = with_image(made(project(backends=[SKY], fleets=[WEB])), "ami-a")
    for address, record in world.records.items():
        inputs = data_of(replace(record.node, settings={}))
        world.records[address] = replace(record, inputs=inputs)
    desired = project(backends=[{**SKY, "image": "ami-b", "ssh_user": "me"}], fleets=[WEB])
    assert planned(world, desired).observed.differences == ()
    seen = replace(world.inventory(desired), images={("sky", "east"): "ami-b"})
    assert {"image"} == {d.field for d in make_plan(desired, world.state(), seen, 0.0).observed.differences}


def test_drift_shows_the_same():
    world, desired = changed("backend.image")
    plan = make_refresh_plan(desired, world.state(), world.inventory(desired), world.now)
    assert plan.result == "none"
    first = Difference(address="node/web-0", field="image", before="ami-a", after="ami-b")
    assert first == plan.observed.differences[0]
    assert plan_text(plan, color=False, width=None).endswith("`fleetform apply --replace node/web-0`.\n")


def test_the_image_of_another_node_is_not_what_a_change_by_hand_left():
    """An image that somebody changed is shown, and the node stays."""
    desired = project(backends=[SKY], fleets=[WEB])
    world = with_image(made(desired), "ami-a")
    seen = replace(
        world.inventory(desired),
        images={("sky", "east"): "ami-a"},
        altered={Address("node", "web-0"): {"image": "ami-x"}},
    )
    plan = make_plan(desired, world.state(), seen, world.now)
    assert plan.actions == ()
    assert [(d.address, d.before, d.after) for d in plan.observed.differences] == [
        ("node/web-0", "ami-x", "ami-a")
    ]
