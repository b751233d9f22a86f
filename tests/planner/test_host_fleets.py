"""Fleets of hosts, planned: names that stay, hosts that come and go, blocks of their own."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from declarative.model.blocks import Shape
from declarative.model.inputs import NodeInputs, RankInputs
from declarative.model.resource import Desired, LeftOut
from declarative.model.state import DRAINED, Address
from declarative.model.status import NodeState, RankState
from declarative.planner.hosts import (
    declared_shape,
    hosts_of,
    hosts_of_plan,
    offer_of_host,
    reached_by,
    shaping,
)
from declarative.planner.make import make_plan
from declarative.planner.plan import Plan
from declarative.render.plan_document import plan_json
from tests.support.model import World, project
from tests.support.planned import codes, refused

SHAPE = Shape(cpu=4, memory_mib=8192, disk_mib=1000)
HOLD = {"name": "hold", "resources": {"cpu": 4}}


def rack(*hosts: Any, name: str = "rack", **more: Any) -> dict[str, Any]:
    config = more.pop("config", {})
    ssh_config = {"user": "me", **config, "hosts": list(hosts)}
    return {"name": name, "placement": "cluster", "blocks": 4, "ssh_config": ssh_config, **more}


def declared(*fleets: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]] = ()) -> Desired:
    return project(fleets=fleets, tasks=tasks)


def plan(world: World, desired: Desired, *, off: Sequence[str] = (), **options: Any) -> Plan:
    """The plan, when all hosts but those that are `off` have been looked at."""
    hosts = hosts_of(desired, world.state())
    found = [h for h in hosts if h.key not in off]
    silent = [
        LeftOut(host=h, reason="unreachable: off", shape=declared_shape(h)) for h in hosts if h.key in off
    ]
    recorded = {r.address.name: shaping(r.inputs.get("host") or {}) for r in world.of("node")}
    due = [h for h in found if recorded.get(h.name) != shaping(h.fields)]
    offers = [offer_of_host(h, replace(SHAPE, **h.declared)) for h in due]
    seen = world.inventory(desired)
    seen = replace(seen, offers={**seen.offers, "ssh": tuple(offers)}, left_out=tuple(silent))
    return make_plan(desired, world.state(), seen, world.now, **options)


def bring(world: World, desired: Desired, **options: Any) -> Plan:
    found = plan(world, desired, **options)
    assert found.result in ("changes", "none"), found.diagnostics
    world.apply(found, random.Random(1))
    assert plan(world, desired, **options).actions == ()
    return found


def nodes(world: World) -> dict[str, str]:
    return {r.address.name: str(r.inputs["instance_type"]) for r in world.of("node")}


def ids(found: Plan) -> list[str]:
    return [a.id for a in found.actions]


def test_every_host_is_a_node_in_the_order_of_the_hosts_and_costs_nothing():
    world = World()
    found = bring(world, declared(rack("b", "a", "c")))
    assert nodes(world) == {"rack-0": "b", "rack-1": "a", "rack-2": "c"}
    assert (found.preview.cost.before, found.preview.cost.after) == (0.0, 0.0)
    node = world.of("node")[0].inputs
    assert (node["backend"], node["region"], node["host"]) == ("ssh", "ssh", {"hostname": "b", "user": "me"})
    assert node["resources"] == {"cpu": 4, "memory_mib": 8192, "gpus": 0, "disk_mib": 1000}


def test_nodes_keep_their_names_while_others_come_and_go():
    world = World()
    bring(world, declared(rack("a", "b", "c")))
    found = bring(world, declared(rack("d", "c", "b")))
    assert ids(found) == ["delete:node/rack-0", "create:node/rack-3"]
    assert nodes(world) == {"rack-1": "b", "rack-2": "c", "rack-3": "d"}
    bring(world, declared(rack("e", "d", "c", "b")))
    assert nodes(world) == {"rack-0": "e", "rack-1": "b", "rack-2": "c", "rack-3": "d"}


def test_a_host_that_is_added_takes_no_other_idle_host_s_place():
    """A fleet of hosts has all of them: `idle_duration` is about nodes that cost money."""
    world = World()
    bring(world, declared(rack("a", "b")))
    world.now += 10**9
    assert ids(bring(world, declared(rack("a", "b", "c")))) == ["create:node/rack-2"]


def test_a_host_that_is_off_gets_its_name_later():
    world = World()
    bring(world, declared(rack("a", "b", "c")), off=["b"])
    assert nodes(world) == {"rack-0": "a", "rack-2": "c"}
    bring(world, declared(rack("a", "b", "c")))
    assert nodes(world) == {"rack-0": "a", "rack-1": "b", "rack-2": "c"}


def test_a_removed_host_stays_while_a_rank_runs_on_it():
    world = World()
    tasks = [{**HOLD, "instances": ["rack-1"]}]
    bring(world, declared(rack("a", "b"), tasks=tasks))
    fewer = declared(rack("a"), tasks=[*tasks, {"name": "more", "resources": {"cpu": 4}}])
    found = bring(world, fewer)
    assert [d.code for d in found.diagnostics] == ["node-mismatch"]
    assert {r.task: r.node for r in found.reservations} == {"hold": "rack-1", "more": "rack-0"}
    world.end("hold-0", RankState.SUCCEEDED)
    world.settle()
    assert ids(bring(world, fewer)) == ["delete:node/rack-1"]


def disks(
    *volumes: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]] = (), fleet: Mapping[str, Any] = {}
) -> Desired:
    made = [{"backend": "ssh", "prevent_destroy": False, **v} for v in volumes]
    fleets = [fleet or rack("a", "b", "c")]
    return project(backends=[{"name": "ssh"}], fleets=fleets, volumes=made, tasks=tasks)


def zones(world: World) -> dict[str, tuple[str, Any]]:
    return {r.address.name: (r.inputs["zone"], r.inputs["host"]) for r in world.of("volume")}


def test_a_volume_on_a_host_binds_its_rank_to_it():
    world = World()
    tasks = [{"name": "train", "mounts": {"/d": "data"}}]
    found = bring(world, disks({"name": "data", "host": "b"}, tasks=tasks))
    assert zones(world) == {"data": ("b", {"hostname": "b", "user": "me"})}
    [place] = found.reservations
    assert (place.node, place.zone, place.volumes) == ("rack-1", "b", {"/d": "data"})


def test_the_volumes_of_ranks_go_where_these_go_and_stay_there():
    world = World()
    tasks = [{"name": "train", "nodes": 2, "mounts": {"/s": "scratch-#"}}]
    volume = {"name": "scratch", "count": 2}
    bring(world, disks(volume, tasks=tasks))
    where = {name: zone for name, (zone, _) in zones(world).items()}
    assert sorted(where.values()) == ["a", "b"]
    for rank in (0, 1):
        world.end(f"train-{rank}", RankState.SUCCEEDED)
    world.settle()
    again = [{**tasks[0], "commands": ["false"]}, {"name": "other", "resources": {"cpu": 4}, "priority": 9}]
    found = bring(world, disks(volume, tasks=again))
    assert {r.volumes["/s"]: r.zone for r in found.reservations if r.task == "train"} == where
    assert [r.node for r in found.reservations if r.task == "other"] == ["rack-2"]


def test_a_rank_is_refused_where_the_host_of_its_volume_is_no_node():
    """And the volume is neither lost nor made on another host."""
    world = World()
    tasks = [{"name": "train", "mounts": {"/d": "data"}}]
    bring(world, disks({"name": "data"}, tasks=tasks))
    assert zones(world)["data"][0] == "a"
    world.end("train-0", RankState.SUCCEEDED)
    world.settle()
    again = [{**tasks[0], "commands": ["false"]}]
    found = plan(world, disks({"name": "data"}, tasks=again, fleet=rack("b", "c")))
    [refused] = found.unplaced.refusals
    details = {r.detail for verdict in refused.ranks for r in verdict.rejections}
    assert any("volume/data is in ssh/a" in detail for detail in details), details
    assert ids(found) == ["delete:node/rack-0"]


def test_a_volume_that_nothing_places_waits():
    world = World()
    found = bring(world, disks({"name": "data"}))
    assert world.of("volume") == []
    assert [(d.code, d.address) for d in found.diagnostics] == [("volume-waits", "volume/data")]
    unfit = [{"name": "big", "resources": {"cpu": 64}, "mounts": {"/d": "data"}}]
    found = plan(world, disks({"name": "data"}, tasks=unfit))
    assert ([d.code for d in found.diagnostics], ids(found)) == ([], [])
    assert len(found.unplaced.refusals) == 1


def test_how_the_host_of_a_volume_is_reached_changes_in_place():
    """And stays as it is recorded when the host is not declared any more."""
    world = World()
    bring(world, disks({"name": "data", "host": "b"}))
    way = {"hostname": "b", "port": 2222, "user": "me"}
    moved = rack("a", {"hostname": "b", "port": 2222, "resources": {"cpu": 4}}, "c")
    found = bring(world, disks({"name": "data", "host": "b"}, fleet=moved))
    assert "update:volume/data" in ids(found)
    assert zones(world) == {"data": ("b", way)}
    found = bring(world, disks({"name": "data", "host": "b"}, fleet=rack("a", "c")))
    assert zones(world) == {"data": ("b", way)}
    assert "volume/data" not in str(ids(found))


def test_a_volume_moves_to_another_host_by_being_made_anew():
    world = World()
    bring(world, disks({"name": "data", "host": "b"}))
    found = bring(world, disks({"name": "data", "host": "c"}))
    assert ids(found) == ["delete:volume/data", "create:volume/data"]
    assert found.actions[0].because == ("zone",)
    kept = plan(world, disks({"name": "data", "host": "a", "prevent_destroy": True}))
    [error] = kept.diagnostics
    assert error.code == "protected"
    assert "be replaced (`host` changed)" in error.summary


def test_how_a_host_is_reached_changes_in_place():
    world = World()
    bring(world, declared(rack("a", "b"), tasks=[HOLD]))
    found = plan(
        world, declared(rack("a", {"hostname": "b", "port": 2222}, config={"user": "you"}), tasks=[HOLD])
    )
    assert ids(found) == ["update:node/rack-0", "update:node/rack-1"]
    assert [a.because for a in found.actions] == [("host",), ("host",)]
    node = found.actions[1].after
    assert isinstance(node, NodeInputs)
    assert node.host == {"hostname": "b", "port": 2222, "user": "you"}


def test_another_declared_shape_makes_an_idle_node_anew_under_its_name():
    world = World()
    bring(world, declared(rack("a", "b")))
    more = {"hostname": "a", "resources": {"cpu": 8}}
    found = bring(world, declared(rack(more, "b")))
    assert ids(found) == ["delete:node/rack-0", "create:node/rack-0"]
    assert world.of("node")[0].inputs["resources"]["cpu"] == 8
    # One that does not answer now stays as it is, and as it was declared.
    assert ids(plan(world, declared(rack("a", "b")), off=["a"])) == []


def test_another_choice_of_gpus_makes_an_idle_node_anew_and_trust_changes_in_place():
    world = World()
    bring(world, declared(rack("a", "b")))
    chosen = {"hostname": "a", "gpus": ["A6000"]}
    assert ids(bring(world, declared(rack(chosen, "b")))) == ["delete:node/rack-0", "create:node/rack-0"]
    assert world.of("node")[0].inputs["host"]["gpus"] == ["A6000"]
    assert ids(bring(world, declared(rack({**chosen, "trust": True}, "b")))) == ["update:node/rack-0"]
    assert world.of("node")[0].inputs["host"]["trust"] is True


@pytest.mark.parametrize(("had", "has", "made"), [(0, 2, True), (2, 4, True), (2, 2, True), (2, 1, False)])
def test_a_host_with_other_gpus_than_are_recorded_is_made_anew_once_it_is_idle(had, has, made):
    """As after its driver came, or a card was replaced. One with fewer stays, and takes no work."""

    def there(gpus: int, desired: Desired, **options: Any) -> Plan:
        [host] = hosts_of(desired, world.state())
        offer = offer_of_host(host, replace(SHAPE, gpus=gpus))
        seen = world.inventory(desired)
        state = NodeState.READY if has > had else NodeState.NOT_READY
        ready = {n: replace(r, reshaped=True, state=state) for n, r in seen.readiness.items()}
        seen = replace(seen, readiness=ready, offers={**seen.offers, "ssh": (offer,)})
        return make_plan(desired, world.state(), seen, world.now, **options)

    world = World()
    fleet = rack("a", blocks=1)
    world.apply(there(had, declared(fleet)), random.Random(1))
    anew = ["delete:node/rack-0", "create:node/rack-0"]
    found = there(has, declared(fleet))
    assert ids(found) == (anew if made else [])
    if made:
        assert isinstance(found.actions[1].after, NodeInputs)
        assert found.actions[1].after.resources.gpus == has
    world.apply(there(had, declared(fleet, tasks=[HOLD])), random.Random(1))
    busy = there(has, declared(fleet, tasks=[HOLD]))
    assert ids(busy) == []
    if made:
        [note] = [d for d in busy.diagnostics if d.code == "node-mismatch"]
        assert f"its host has {has} GPUs now, not the {had} that are recorded of it" in note.summary


PAIR = {"name": "pair", "nodes": 2, "resources": {"cpu": 4}}


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ("10.0.0.1", "10.0.0.2", None),
        ("10.99.7.2", "10.99.7.2", "node/rack-0 and node/rack-1 have the same address 10.99.7.2"),
        ("127.0.0.1", "127.0.0.1", "node/rack-0 has the address 127.0.0.1, which is loopback"),
    ],
)
@pytest.mark.parametrize("recorded", [False, True])
def test_a_gang_is_refused_on_hosts_that_cannot_meet(recorded, first, second, why):
    """Whether they were looked at or are nodes; tasks of one node run there, and with `placement: any`."""
    world = World()
    hosts = rack("a", "b")
    if recorded:
        bring(world, declared(hosts))
        for i, address in enumerate((first, second)):
            record = world.records[Address("node", f"rack-{i}")]
            world.records[record.address] = replace(record, outputs={**record.outputs, "address": address})

    def refused_for(task: Mapping[str, Any]) -> list[tuple[str | None, str]]:
        desired = declared(hosts, tasks=[task])
        seen = world.inventory(desired)
        if not recorded:
            at = dict(zip("ab", (first, second), strict=True))
            offers = [offer_of_host(h, SHAPE, address=at[h.key]) for h in hosts_of(desired, world.state())]
            seen = replace(seen, offers={**seen.offers, "ssh": tuple(offers)})
        found = make_plan(desired, world.state(), seen, world.now)
        return [(d.address, d.summary) for d in found.diagnostics if d.code == "gang-address"]

    assert refused_for({**PAIR, "placement": "any"}) == refused_for(HOLD) == []
    found = refused_for(PAIR)
    assert bool(found) is bool(why)
    assert all(address == "task/pair" and why and why in summary for address, summary in found)


def test_another_environment_makes_nodes_anew_from_what_is_recorded():
    world = World()
    bring(world, declared(rack("a", "b")))
    found = bring(world, declared(rack("a", "b", env={"A": "1"})))
    assert sorted(ids(found)) == [f"{op}:node/rack-{i}" for op in ("create", "delete") for i in (0, 1)]
    assert nodes(world) == {"rack-0": "a", "rack-1": "b"}


def test_hosts_have_blocks_of_their_own_and_change_them_when_idle():
    world = World()
    bring(world, declared(rack("a", {"hostname": "b", "blocks": 2})))
    assert [r.inputs["blocks"] for r in world.of("node")] == [4, 2]
    found = bring(world, declared(rack({"hostname": "a", "blocks": "auto"}, {"hostname": "b", "blocks": 1})))
    assert ids(found) == ["update:node/rack-1"]
    assert [r.inputs["blocks"] for r in world.of("node")] == [4, 1]


def test_blocks_that_do_not_divide_a_host_are_an_error():
    found = plan(World(), declared(rack("a", {"hostname": "b", "blocks": 3})))
    assert [(d.code, d.summary, d.hint) for d in found.diagnostics] == [
        (
            "blocks-do-not-divide",
            "host b cannot be split into 3 blocks",
            "write `blocks: auto` or one of 1, 2, 4",
        )
    ]


def test_a_pinned_name_is_that_of_its_host_and_no_other():
    world = World()
    tasks: list[dict[str, Any]] = [
        {**HOLD, "instances": ["rack-1"]},
        {"name": "else", "instances": ["rack-7"]},
    ]
    found = plan(world, declared(rack("a", "b", "c"), tasks=tasks))
    assert [(r.task, r.node) for r in found.reservations] == [("hold", "rack-1")]
    assert [r.task for r in found.unplaced.refusals] == ["else"]
    world.apply(found, random.Random(1))
    assert nodes(world) == {"rack-0": "a", "rack-1": "b", "rack-2": "c"}


@pytest.mark.parametrize("there", [False, True])
def test_a_pinned_address_is_that_of_its_host(there):
    """By its name or its internal address, before it is a node and after; none that no host has."""
    world = World()
    fleet = rack(*({"hostname": h, "internal_ip": f"10.0.0.{n}"} for n, h in enumerate("abc", 1)))
    if there:
        bring(world, declared(fleet))
    tasks: list[dict[str, Any]] = [
        {**HOLD, "instances": [{"hostname": "10.0.0.2"}]},
        {**HOLD, "name": "by-name", "instances": [{"hostname": "c"}, {"name": "rack-0"}]},
        {"name": "else", "instances": [{"hostname": "d"}]},
    ]
    found = plan(world, declared(fleet, tasks=tasks))
    placed = {r.task: r.node for r in found.reservations}
    assert placed["hold"] == "rack-1"
    assert placed["by-name"] in ("rack-0", "rack-2")
    assert [(r.task, r.code) for r in found.unplaced.refusals] == [("else", "never-fits")]
    assert "hostname:d is not" in str(found.unplaced.refusals[0].hint)
    started = next(a for a in found.actions if a.id == "create:rank/hold-0")
    assert isinstance(started.after, RankInputs)
    assert started.after.instances == ("hostname:10.0.0.2",)


def test_a_host_that_moves_to_another_fleet_is_given_back_first():
    world = World()
    bring(world, declared(rack("a", "b"), rack("c", name="other")))
    found = bring(world, declared(rack("a"), rack("c", "b", name="other")))
    assert ids(found) == ["delete:node/rack-1", "create:node/other-1"]
    assert found.actions[1].needs == ("delete:node/rack-1",)


def test_hosts_that_share_a_name_are_told_apart_by_their_ports():
    world = World()
    bring(world, declared(rack({"hostname": "gate", "port": 2201}, {"hostname": "gate", "port": 2202}, "a")))
    assert nodes(world) == {"rack-0": "gate:2201", "rack-1": "gate:2202", "rack-2": "a"}


def test_a_host_is_no_offer_for_a_fleet_that_launches_nodes():
    desired = declared(rack("a"), {"name": "cpu", "nodes": 1, "resources": {"cpu": 2}})
    found = plan(World(), desired)
    assert ids(found) == ["create:node/cpu-0", "create:node/rack-0"]
    assert found.actions[0].backend == "local"


def test_a_removed_host_that_is_silent_is_named_with_the_way_to_forget_it():
    world = World()
    bring(world, declared(rack("a", "b")))
    world.sick["rack-1"] = NodeState.UNREACHABLE
    found = plan(world, declared(rack("a")))
    hint = "it is deleted once it answers; if it is lost: `fleetform state rm node/rack-1`"
    assert ids(found) == []
    assert [(d.code, d.hint) for d in found.diagnostics] == [("host-not-ready", hint)]
    del world.sick["rack-1"]
    assert ids(plan(world, declared(rack("a")))) == ["delete:node/rack-1"]


def test_a_plan_names_the_hosts_that_it_needs():
    world = World()
    found = plan(world, declared(rack("a", "b")))
    assert [(h.name, h.key, h.fields) for h in hosts_of_plan(found)] == [
        (f"rack-{i}", key, {"hostname": key, "user": "me"}) for i, key in enumerate("ab")
    ]


def test_a_shape_is_known_from_its_declaration_when_cpus_and_memory_are():
    gpu = {"hostname": "a", "resources": {"cpu": "8..", "memory": "1GB", "gpu": "H100:80GB:2"}}
    first, second = hosts_of(declared(rack(gpu, {"hostname": "b", "resources": {"cpu": 8}})), World().state())
    assert declared_shape(first) == Shape(
        cpu=8, memory_mib=1024, gpus=2, gpu_name="H100", gpu_memory_mib=81920, disk_mib=None
    )
    assert declared_shape(second) is None


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMl5p3gT4e5FcVK0YJ0Zb6pOqXc0S3jQ3v2Rz1y7a8bC"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMl5p3gT4e5FcVK0YJ0Zb6pOqXc0S3jQ3v2Rz1y7a8bD"


@pytest.mark.parametrize(
    ("config", "own"),
    [
        ({"port": 2200}, {}),
        ({"user": "you"}, {}),
        ({"identity_file": "~/.ssh/new"}, {}),
        ({"known_hosts": "known"}, {}),
        ({"host_keys": [KEY]}, {}),
        ({"proxy_jump": {"hostname": "gate", "host_keys": [KEY]}}, {}),
        ({}, {"port": 2200}),
        ({}, {"host_keys": [KEY]}),
    ],
)
def test_another_way_to_a_host_is_a_change_in_place(config, own):
    """Also under a rank that runs there."""
    world = World()
    bring(world, declared(rack("a", "b"), tasks=[HOLD]))
    changed = declared(rack({"hostname": "a", **own}, "b", config=config), tasks=[HOLD])
    expected = ["update:node/rack-0", "update:node/rack-1"] if config else ["update:node/rack-0"]
    found = bring(world, changed)
    assert ids(found) == expected
    assert all(action.because == ("host",) for action in found.actions)


def test_keys_of_a_host_count_before_those_of_its_fleet():
    """And a comment behind a key is no part of it."""
    first = {"hostname": "a", "host_keys": [f"  {KEY}  root@a"]}
    found = hosts_of(declared(rack(first, "b", config={"host_keys": [OTHER]})), World().state())
    assert [h.fields["host_keys"] for h in found] == [[KEY], [OTHER]]


def test_a_host_is_reached_as_it_is_declared_now():
    """What was recorded of it stays otherwise."""
    was = {
        "hostname": "a",
        "port": 22,
        "identity_file": "old",
        "resources": {"cpu": 4},
        "internal_ip": "1.1.1.1",
    }
    now = {"hostname": "a", "port": 2200, "host_keys": [KEY], "resources": {"cpu": 8}}
    assert reached_by(was, now) == {
        "hostname": "a",
        "port": 2200,
        "host_keys": [KEY],
        "resources": {"cpu": 4},
        "internal_ip": "1.1.1.1",
    }


@pytest.mark.parametrize(
    "change", [{"env": {"A": "1"}}, {"hosts": [{"hostname": "a", "resources": {"cpu": 8}}]}]
)
def test_a_drained_host_is_not_made_anew(change):
    """As a new node it would take work, and it is the same machine: it stays until it is undrained."""
    world = World()
    bring(world, declared(rack("a")))
    record = world.records[Address("node", "rack-0")]
    drained = {DRAINED: {"since": "2026-01-31T12:00:00Z", "reason": "bad NIC"}}
    world.records[record.address] = replace(record, outputs={**record.outputs, **drained})
    hosts = change.get("hosts", ["a"])
    changed = declared(rack(*hosts, **({} if "hosts" in change else change)))
    found = plan(world, changed)
    assert ids(found) == []
    assert "once undrained" in str([d.hint for d in found.diagnostics if d.code == "node-mismatch"])
    world.records[record.address] = record
    assert ids(plan(world, changed)) == ["delete:node/rack-0", "create:node/rack-0"]
    world.records[record.address] = replace(record, outputs={**record.outputs, **drained})
    assert ids(plan(world, declared(rack("b")))) == ["delete:node/rack-0", "create:node/rack-1"]


# ------------------------------------------------------------------------------------------- refusals

BIG = {"hostname": "big", "resources": {"cpu": 8, "memory": "64GB", "gpu": "H100:8"}}
BIG2 = {**BIG, "hostname": "big2"}
TINY = {"hostname": "tiny", "resources": {"cpu": 8, "memory": "64GB", "gpu": "H100:1"}}
BARE = {"hostname": "bare"}
"""What it has is not known before somebody looked at it."""


def refusing(hosts: Sequence[Any], words: Mapping[str, Any], **options: Any) -> Plan:
    """The plan for a task that wants 8 GPUs a rank, before the first apply."""
    task = {"name": "train", "resources": {"gpu": 8}, **words}
    found = plan(World(), declared(rack(*hosts, blocks=1), tasks=[task]), **options)
    assert len(found.unplaced.refusals) == 1
    return found


@pytest.mark.parametrize(
    ("hosts", "off", "words", "code"),
    [
        # A host that is there is one machine, whatever else is.
        ([BIG, BIG2, TINY], (), {"nodes": 3}, "never-fits"),
        ([BIG, TINY], (), {"nodes": 2}, "never-fits"),
        # One that is off counts as what is declared of it.
        ([BIG, BIG2], ["big2"], {"nodes": 2}, "no-capacity"),
        ([BIG, BIG2], ["big", "big2"], {"nodes": 2}, "no-capacity"),
        ([BIG, BIG2], ["big", "big2"], {"nodes": 3}, "never-fits"),
        ([BIG, BIG2], ["big2"], {"nodes": 3}, "never-fits"),
        ([BIG, TINY], ["tiny"], {"nodes": 2}, "never-fits"),
        ([TINY], ["tiny"], {"nodes": 1}, "never-fits"),
        ([BIG], ["big"], {"regions": ["moon"]}, "never-fits"),
        ([BIG], ["big"], {"instances": ["rack-0"]}, "no-capacity"),
        ([BIG, TINY], ["big"], {"instances": ["rack-1"]}, "never-fits"),
        # One of which nothing is known may still fit anything; but it is one host.
        ([BARE], ["bare"], {"nodes": 1}, "no-capacity"),
        ([BIG, BARE], ["bare"], {"nodes": 2}, "no-capacity"),
        ([BIG, BARE], ["bare"], {"nodes": 3}, "never-fits"),
    ],
)
def test_hosts_that_are_no_nodes_yet_count_for_what_can_never_fit(hosts, off, words, code):
    """`never-fits` is said only of what does not fit with every declared host up and idle; before the first
    apply as after it.
    """
    assert refusing(hosts, words, off=off).unplaced.refusals[0].code == code


def test_a_refusal_names_the_hosts_that_are_off_and_waits_for_nothing_else():
    """No task runs: that one might end is no reason to wait."""
    answer = refusing([BIG, BIG2, TINY], {"nodes": 2}, off=["big2", "tiny"])
    found, hint = refused(plan_json(answer)), answer.unplaced.refusals[0].hint
    assert codes(found)["offer/ssh:big2:big2 (fleet/rack)"] == "not-ready"
    assert codes(found)["offer/ssh:tiny:tiny (fleet/rack)"] == "too-small"  # it would be no use if it were on
    assert "1 offer not ready" in found["summary"]
    assert "wait until what is not ready is ready" in (hint or "")
    assert "running tasks" not in (hint or "")


def test_a_node_that_is_too_small_is_no_better_for_being_silent():
    """What no waiting mends comes first, on a node as among the reasons of all nodes."""
    world = World()
    bring(world, declared(rack(BIG, TINY, blocks=1)))
    world.sick |= {"rack-0": NodeState.UNREACHABLE, "rack-1": NodeState.UNREACHABLE}
    task = {"name": "train", "resources": {"gpu": 8}}
    found = refused(plan_json(plan(world, declared(rack(BIG, TINY, blocks=1), tasks=[task]))))
    assert found["code"] == "no-capacity"
    assert codes(found) == {"node/rack-0": "not-ready", "node/rack-1": "too-small"}
