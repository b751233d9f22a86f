"""Placement of ranks that mount volumes, from a project to the plan's JSON.

The volumes of all ranks count, not only those of rank 0. The plan shows what dstack finds only after the user
has agreed: a volume in another region, or one disk for two ranks.
"""

from dataclasses import replace
from typing import Any

import pytest

from declarative.model.inputs import VolumeInputs
from declarative.model.resource import RankMount, VolumeWant
from declarative.placement.problem import GONE, VolumeAt
from declarative.placement.volumes import (
    MOST_OPTIONS,
    MOST_STEPS,
    Binding,
    Matching,
    bindings,
    free_volumes,
    mount_reason,
)
from declarative.planner.plan import Plan
from declarative.render.plan_document import plan_json
from tests.support.model import World
from tests.support.planned import (
    H100,
    bring,
    carry_out,
    codes,
    created,
    declared,
    look,
    places,
    refused,
    rejections,
    verdicts,
)

ANY = {"name": "gpu", "nodes": "0..4", "blocks": 8}
CLUSTER = {**ANY, "placement": "cluster"}
EAST = {"name": "data-0", "region": "east"}
WEST = {"name": "data-1", "region": "west"}
BOTH: dict[str, Any] = {"regions": ["east", "west"]}
ZONES: dict[str, Any] = {"availability_zones": ["za", "zb", "zc"]}
GANG = {"name": "train", "nodes": 2, "mounts": {"/data": "data-#"}}


def zoned(zone):
    """A fleet of one node in one zone, named after it."""
    return {"name": zone, "nodes": 1, "blocks": 8, "availability_zones": [zone]}


def fresh(found, volume):
    """The zone in which a plan creates a volume."""
    (action,) = [a for a in found["actions"] if a["id"] == f"create:volume/{volume}"]
    return action["after"].get("zone")


def place_of(found, rank):
    """The reservation of one rank."""
    (place,) = [r for r in found["reservations"] if f"{r['task']}-{r['rank']}" == rank]
    return place


# ------------------------------------------------------------------------------------- where volumes are

HERE = ("sky", "east", "za")
AT = {
    "free": VolumeAt(backend="sky", region="east", zone="za"),
    "held": VolumeAt(backend="sky", region="east", zone=None),
    "gone": VolumeAt(backend="sky", region="east", zone="za"),
    "west": VolumeAt(backend="sky", region="west", zone=None),
    "zb": VolumeAt(backend="sky", region="east", zone="zb"),
    "sea": VolumeAt(backend="sea", region="east", zone="za"),
}
HELD = {"held": "rank/other-0", "gone": GONE}


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["free"], None),
        (["held", "free"], None),
        (["free", "none"], None),
        (["held"], "volume-busy"),
        (["gone"], "volume-gone"),
        (["none"], "volume-missing"),
        (["west"], "volume-elsewhere"),
        (["zb"], "volume-elsewhere"),
        (["sea"], "volume-elsewhere"),
        (["west", "none"], "volume-missing"),
        (["none", "gone"], "volume-gone"),
        (["gone", "held"], "volume-busy"),
        ([], "volume-elsewhere"),
    ],
)
def test_why_a_mount_cannot_be_had(names, code):
    """One that is held may be let go, and one that is gone may come back: both are milder than never."""
    found = mount_reason([RankMount(path="/d", names=tuple(names), variable="D")], HERE, AT, HELD)
    assert (found.code if found else None) == code
    if found:
        assert found.detail.startswith("/d: ")
        assert found.detail.count(";") == max(0, len(names) - 1)


def test_a_mount_that_can_never_be_had_is_named_before_one_that_is_held():
    mounts = [
        RankMount(path=f"/{name}", names=(name,), variable="D") for name in ("held", "gone", "west", "none")
    ]
    for count, path, code in (
        (1, "/held", "volume-busy"),
        (2, "/held", "volume-busy"),
        (3, "/west", "volume-elsewhere"),
    ):
        found = mount_reason(mounts[:count], HERE, AT, HELD)
        assert found is not None
        assert (found.code, found.detail.partition(":")[0]) == (code, path)
    gone = mount_reason(mounts[1:2], HERE, AT, HELD)
    assert gone is not None
    assert gone.code == "volume-gone"
    assert mount_reason([], HERE, AT, HELD) is None


def test_only_what_is_there_and_free_is_given():
    mounts = [RankMount(path="/d", names=("none", "free", "held", "gone"), variable="D")]
    assert free_volumes(mounts, AT, HELD) == [[("free", AT["free"])]]
    binding = Binding(HERE, {"/d": "free"})
    assert (binding.gives("free", HERE), binding.gives("held", HERE)) == (True, False)
    assert not binding.gives("free", ("sky", "east", "zb"))


def test_a_volume_that_is_missing():
    """It is named, and waiting does not mend it."""
    refusal = refused(look(World(), [ANY], [{"name": "one", "mounts": {"/data": "lost"}}]))
    assert (refusal["code"], verdicts(refusal)) == ("never-fits", ["cause"])
    assert set(codes(refusal).values()) == {"volume-missing"}
    assert all("volume/lost" in r["detail"] for r in rejections(refusal).values())


def test_the_volume_of_any_rank_may_be_missing():
    """Rank 1's as well as rank 0's."""
    refusal = refused(look(World(), [CLUSTER], [GANG], [EAST], **BOTH))
    assert refusal["code"] == "never-fits"
    assert sorted(verdicts(refusal)) == ["cause", "fits"]
    missing = [r["detail"] for r in rejections(refusal).values() if r["code"] == "volume-missing"]
    assert missing
    assert all("volume/data-1" in detail for detail in missing)


def test_ranks_of_a_cluster_are_not_bound_to_two_regions():
    """With `placement: any` each goes where its volume is; the cluster is refused, and says why."""
    free = {**GANG, "placement": "any"}
    found = look(World(), [ANY], [free], [EAST, WEST], **BOTH)
    assert [r["region"] for r in found["reservations"]] == ["east", "west"]
    found = look(World(), [CLUSTER], [GANG], [EAST, WEST], **BOTH)
    refusal = refused(found)
    assert (refusal["code"], sorted(verdicts(refusal))) == ("never-fits", ["cause", "fits"])
    assert "volume-elsewhere" in codes(refusal).values()
    assert (found["reservations"], created(found)) == ([], [])


def test_one_volume_is_not_for_two_ranks():
    """It is attached to one node at a time: no waiting mends that, and the other rank is named."""
    found = look(World(), [CLUSTER], [{**GANG, "mounts": {"/data": "shared"}}], [{"name": "shared"}])
    refusal = refused(found)
    assert (refusal["code"], sorted(verdicts(refusal))) == ("never-fits", ["cause", "fits"])
    held = [r["detail"] for r in rejections(refusal).values() if r["code"] == "volume-busy"]
    assert held
    assert all("volume/shared" in detail and "rank/train-" in detail for detail in held)


def test_one_volume_is_for_one_of_two_tasks():
    """The other waits for it."""
    tasks = [{"name": name, "mounts": {"/data": "shared"}} for name in ("aa", "bb")]
    found = look(World(), [ANY], tasks, [{"name": "shared"}])
    refusal = refused(found)
    assert (list(places(found)), refusal["task"], refusal["code"]) == (["aa-0"], "bb", "no-capacity")
    assert "volume-busy" in codes(refusal).values()
    world = bring(World(), [ANY], tasks, [{"name": "shared"}])
    assert set(codes(refused(look(world, [ANY], tasks, [{"name": "shared"}]))).values()) == {"volume-busy"}


def test_a_zone_that_no_offer_serves():
    """A volume in a zone without an offer binds its rank to a place that does not exist."""
    volume = {"name": "data", "availability_zone": "zz"}
    refusal = refused(look(World(), [ANY], [{"name": "one", "mounts": {"/data": "data"}}], [volume], **ZONES))
    assert refusal["code"] == "never-fits"
    assert set(codes(refusal).values()) == {"volume-elsewhere"}
    assert all("zz" in r["detail"] for r in rejections(refusal).values())


# ------------------------------------------------------------------------------------------- alternatives


def test_alternatives_are_shared_out_among_ranks():
    """Rank 0 may take the shared volume or its own, rank 1 the shared one alone: rank 0 takes its own."""
    volumes = [{"name": "shared"}, {"name": "own-0"}, {"name": "own-1", "region": "west"}]
    task = {**GANG, "placement": "any", "regions": ["east"], "mounts": {"/data": ["shared", "own-#"]}}
    found = look(World(), [ANY], [task], volumes, **BOTH)
    assert found["unplaced"] == []
    assert [r["volumes"] for r in found["reservations"]] == [{"/data": "own-0"}, {"/data": "shared"}]


def test_no_rank_takes_the_one_volume_with_which_another_launches_nothing():
    """Rank 0 may have any of both that lie where a node is, rank 1 only the first of these."""
    world = bring(World(), [{**ANY, "nodes": 1, "regions": ["west"]}], **BOTH)
    volumes = [{**WEST, "name": "data-0"}, WEST, {**EAST, "name": "shared"}]
    task = {**GANG, "placement": "any", "mounts": {"/data": ["data-1", "shared", "data-#"]}}
    found = look(world, [ANY], [task], volumes, **BOTH)
    assert created(found, "node") == []
    assert [r["volumes"] for r in found["reservations"]] == [{"/data": "data-0"}, {"/data": "data-1"}]


def test_ranks_meet_where_the_volumes_of_all_of_them_are():
    """One node in the west is enough, though the east, where one of the volumes is, comes first."""
    volumes = [EAST, {"name": "shared", "region": "west", "count": 2}]
    task = {
        "name": "train",
        "nodes": 2,
        "placement": "any",
        "mounts": {"/d": ["shared-0", "data-0", "shared-1"]},
    }
    small = {"instance_type": "c8", "cpu": 8, "memory": "32GB", "price": 0.85}
    large = {**small, "instance_type": "c16", "cpu": 16, "price": 1.32, "regions": ["west"]}
    fleet = {"name": "any", "nodes": "0..", "blocks": "auto"}
    found = look(World(), [fleet], [task], volumes, [{**small, "regions": ["east", "west"]}, large], **BOTH)
    assert created(found, "node") == ["node/any-0"]
    assert [r["volumes"] for r in found["reservations"]] == [{"/d": "shared-0"}, {"/d": "shared-1"}]


@pytest.mark.parametrize(("ranks", "volumes", "first"), [(40, 40, None), (17, 16, 16), (200, 100, 100)])
def test_alternatives_are_matched_without_trying_every_way(ranks, volumes, first):
    """Ranks that all want one of the same volumes: what is there is given out, and no step is taken twice."""
    place = ("sky", "east", None)
    ways = [Binding(place, {"/data": f"data-{i}"}) for i in range(volumes)]
    matching = Matching(dict.fromkeys(range(ranks), ways), lambda _: ranks)
    assert matching.match() == first
    assert len(matching.given) == min(ranks, volumes)
    assert matching.steps < MOST_STEPS


def test_a_rank_is_moved_to_make_room_for_another():
    """In a chain: each takes the next one's first choice."""
    place = ("sky", "east", None)
    names = [(f"data-{i}", f"data-{i + 1}") for i in range(30)] + [("data-0",)]
    options = {r: [Binding(place, {"/data": name}) for name in of] for r, of in enumerate(names)}
    matching = Matching(options, lambda _: 40)
    assert matching.match() is None
    assert matching.given[30].volumes == {"/data": "data-0"}


def test_alternatives_are_shared_out_among_the_mounts_of_a_rank():
    """`/a` may have either volume and `/b` only one of them."""
    task = {"name": "one", "mounts": {"/a": ["xx", "yy"], "/b": "xx"}}
    found = look(World(), [ANY], [task], [{"name": "xx"}, {"name": "yy"}])
    assert [r["volumes"] for r in found["reservations"]] == [{"/a": "yy", "/b": "xx"}]


def test_nodes_are_shared_out_among_ranks_that_volumes_bind():
    """Rank 0 may go to `za` or `zc`, ranks 1 and 2 to `za` or `zb`: only with rank 0 in `zc` do all fit."""
    fleets = [zoned(zone) for zone in ("za", "zb", "zc")]
    world = bring(World(), fleets, **ZONES)
    other = {0: "zc", 1: "zb", 2: "zb"}
    volumes = [{"name": f"aa-{rank}", "availability_zone": "za"} for rank in range(3)]
    volumes += [{"name": f"bb-{rank}", "availability_zone": zone} for rank, zone in other.items()]
    task = {"name": "train", "nodes": 3, "placement": "any", "exclusive": True}
    task["mounts"] = {"/data": ["aa-#", "bb-#"]}
    found = look(world, fleets, [task], volumes, **ZONES)
    assert found["unplaced"] == []
    assert place_of(found, "train-0")["node"] == "zc-0"
    assert {r["node"] for r in found["reservations"]} == {"za-0", "zb-0", "zc-0"}
    carry_out(world, declared(fleets, [task], volumes, **ZONES))


# ------------------------------------------------------------------------------------ volumes to be created


@pytest.mark.parametrize("zone", ["za", "zb", "zc"])
def test_a_new_volume_is_created_in_the_zone_of_its_rank(zone):
    """Where the document names no zone, the rank's node does; the next plan is empty."""
    fleets = [{**ANY, "availability_zones": [zone]}]
    task = {"name": "train", "nodes": 2, "placement": "any", "mounts": {"/data": "data-#"}}
    volumes = [{"name": "data", "count": 2}]
    found = look(World(), fleets, [task], volumes, **ZONES)
    assert [(r["zone"], r["volumes"]) for r in found["reservations"]] == [
        (zone, {"/data": "data-0"}),
        (zone, {"/data": "data-1"}),
    ]
    assert [fresh(found, f"data-{i}") for i in range(2)] == [zone, zone]
    bring(World(), fleets, [task], volumes, **ZONES)


def test_each_rank_has_its_volume_where_it_is():
    """Ranks in two zones: a volume in each; a recorded one binds its rank from then on, and is not moved."""
    fleets = [zoned("zc"), zoned("zb")]
    task = {"name": "train", "nodes": 2, "placement": "any", "exclusive": True, "mounts": {"/data": "data-#"}}
    volumes = [{"name": "data", "count": 2}]
    found = look(World(), fleets, [task], volumes, **ZONES)
    zones = {rank: place_of(found, f"train-{rank}")["zone"] for rank in range(2)}
    assert sorted(zones.values()) == ["zb", "zc"]
    assert {rank: fresh(found, f"data-{rank}") for rank in range(2)} == zones
    world = bring(World(), fleets, [task], volumes, **ZONES)
    bring(world, fleets, (), volumes, **ZONES)
    bring(world, [*fleets, zoned("za")], (), volumes, **ZONES)
    found = look(world, [*fleets, zoned("za")], [task], volumes, **ZONES)
    assert {rank: place_of(found, f"train-{rank}")["zone"] for rank in range(2)} == zones
    assert created(found, "volume") == []


def test_a_new_volume_follows_one_that_is_bound():
    """A rank with a volume in `zb` and a new one has both there."""
    volumes = [{"name": "old", "availability_zone": "zb"}, {"name": "new"}]
    task = {"name": "one", "mounts": {"/old": "old", "/new": "new"}}
    found = look(World(), [ANY], [task], volumes, **ZONES)
    assert (found["reservations"][0]["zone"], fresh(found, "old"), fresh(found, "new")) == ("zb", "zb", "zb")
    bring(World(), [ANY], [task], volumes, **ZONES)


def test_a_new_volume_does_not_draw_its_rank_away_from_idle_blocks():
    """It has no place yet, so the idle node is reused, wherever that is."""
    fleets = [{**zoned("zb"), "nodes": "1..2", "availability_zones": ["za", "zb"]}]
    world = bring(World(), [{**fleets[0], "availability_zones": ["zb"]}], **ZONES)
    found = look(world, fleets, [{"name": "one", "mounts": {"/d": "data"}}], [{"name": "data"}], **ZONES)
    assert (created(found), fresh(found, "data")) == ([], "zb")


def inline(desired, *names):
    """The project, with volumes that a mount itself declares."""
    wants = {
        name: VolumeWant(
            name=name, inputs=VolumeInputs(backend="sky", region="east", size="1GB"), declared_by="task/train"
        )
        for name in names
    }
    return replace(desired, volumes={**desired.volumes, **wants})


def test_an_inline_volume_is_created_in_the_zone_of_its_rank():
    """As one that is declared by number."""
    fleets = [zoned("zc"), zoned("zb")]
    task = {"name": "train", "nodes": 2, "placement": "any", "exclusive": True, "mounts": {"/s": "scratch-#"}}
    desired = inline(declared(fleets, [task], **ZONES), "scratch-0", "scratch-1")
    plan: Plan = World().plan(desired)
    found = plan_json(plan)
    zones = {f"scratch-{r['rank']}": r["zone"] for r in found["reservations"]}
    assert sorted(zones.values()) == ["zb", "zc"]
    assert {name: fresh(found, name) for name in zones} == zones
    carry_out(World(), desired)


def test_a_new_volume_of_a_gang_in_one_zone():
    """The nodes of a cluster are in one region; where only one zone has room for all, all go there."""
    catalog = [{**H100, "limit": 2}]
    task = {**GANG, "nodes": 2}
    found = look(World(), [CLUSTER], [task], [{"name": "data", "count": 2}], catalog, **ZONES)
    assert [r["zone"] for r in found["reservations"]] == [fresh(found, f"data-{i}") for i in range(2)]
    bring(World(), [CLUSTER], [task], [{"name": "data", "count": 2}], catalog, **ZONES)


def test_alternatives_are_combined_however_many_lead_nowhere():
    """Of 64 and more combinations all that come first use a volume twice."""
    mounts = [RankMount(variable="", path="/a", names=("va", "vb"))]
    mounts += [
        RankMount(variable="", path=f"/{i}", names=tuple(f"v{i}-{k}" for k in range(8))) for i in range(2)
    ]
    mounts += [RankMount(variable="", path="/d", names=("va",))]
    place = ("b", "r", "z")
    volumes = {name: VolumeAt(backend="b", region="r", zone="z") for m in mounts for name in m.names}
    found = bindings(mounts, [place], volumes, {})
    assert len(found) == MOST_OPTIONS
    assert {(b.volumes["/a"], b.volumes["/d"]) for b in found} == {("vb", "va")}


def test_many_alternatives_that_lead_nowhere_are_given_up_soon():
    """The last mount wants a volume that all others may have, too: few of the combinations leave it."""
    names = [f"v{i}" for i in range(12)]
    mounts = [RankMount(variable="", path=f"/{i}", names=tuple(names[:11])) for i in range(11)]
    place = ("b", "r", "z")
    volumes = {name: VolumeAt(backend="b", region="r", zone="z") for name in names}
    last = RankMount(variable="", path="/last", names=("v0",))
    assert bindings([*mounts, last], [place], volumes, {}) == []  # 12 mounts, 11 volumes
    (first, *_) = bindings([*mounts[:10], last], [place], volumes, {})
    assert first.volumes["/last"] == "v0"
    assert len(set(first.volumes.values())) == 11


def test_a_task_with_a_thousand_mounts_is_no_error():
    """The stack of Python is not that deep."""
    place = ("b", "r", "z")
    mounts = [RankMount(variable="", path=f"/{i}", names=(f"v{i}",)) for i in range(1200)]
    volumes = {f"v{i}": VolumeAt(backend="b", region="r", zone="z") for i in range(1200)}
    (found,) = bindings(mounts, [place], volumes, {})
    assert list(found.volumes.values()) == list(volumes)
