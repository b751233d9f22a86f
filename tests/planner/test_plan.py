"""What a change does, line by line, and the shape of a plan (docs/architecture.md).

Whole plans are in golden/plan: `FLEETFORM_ACCEPT=1` rewrites them.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from declarative.model.diagnostic import Severity
from declarative.model.schema import in_place
from declarative.model.spec import Fleet, Task, Volume
from declarative.model.spec.project import Removals
from declarative.model.state import DRAINED, Address, Intent
from declarative.model.status import NodeState, RankState, RankStatus, Silence
from declarative.placement.explain.refusal import RefusalReports
from declarative.placement.search import Search
from declarative.planner.inventory import Inventory, vanished
from declarative.planner.make import make_plan
from declarative.planner.plan import Op, Reason
from declarative.render.output_json import to_json
from declarative.render.plan import plan_text
from declarative.render.plan_document import plan_json
from tests.support.golden import check_golden
from tests.support.model import NOW, World, local_offer, project
from tests.support.planned import GPU, bring, look

GOLDEN = Path(__file__).parents[1] / "golden" / "plan"

FLEET = {"name": "pair", "nodes": 2, "blocks": 2, "resources": {"cpu": 2}, "placement": "cluster"}
DATA = {"name": "data", "count": 2}
TRAIN = {"name": "train", "nodes": 2, "mounts": {"/data": "data-#"}}
SMALL = {"name": "small", "resources": {"cpu": "1.."}}
FREE = {**DATA, "prevent_destroy": False}


def wanted(fleet=FLEET, volumes=(DATA,), tasks=(TRAIN,), **more):
    fleets = [fleet] if isinstance(fleet, dict) else list(fleet)
    return project(fleets=fleets, volumes=volumes, tasks=tasks, **more)


def brought(*args, **kwargs):
    """A world that is as the project wants it."""
    world = World()
    desired = wanted(*args, **kwargs)
    plan = world.plan(desired)
    assert plan.result == "changes", plan.diagnostics
    world.apply(plan)
    assert world.plan(desired).result == "none"
    return world


def end(world, state=RankState.SUCCEEDED, *names):
    for name in names or world.running():
        world.end(name, state)
    world.settle()


def ids(plan, *kinds):
    return [a.id for a in plan.actions if not kinds or a.address.kind in kinds]


def action(plan, key):
    return next(a for a in plan.actions if a.id == key)


def codes(plan):
    return {d.code for d in plan.diagnostics}


def gang(op, task="train", ranks=2):
    return [f"{op}:rank/{task}-{i}" for i in range(ranks)]


# ------------------------------------------------------------------------------------- fleets, in place


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ({"tags": {"team": "a"}}, ("tags",)),
        ({"prevent_destroy": True}, ("prevent_destroy",)),
        ({"tags": {"team": "a"}, "prevent_destroy": True}, ("prevent_destroy", "tags")),
    ],
)
def test_marks_of_a_fleet_change_in_place(words, fields):
    """Tags and protection are updates of the nodes, and of nothing else, while ranks run."""
    plan = brought().plan(wanted({**FLEET, **words}))
    assert ids(plan) == ["update:node/pair-0", "update:node/pair-1"]
    assert action(plan, "update:node/pair-0").because == fields
    assert plan.summary() == {"create": 0, "update": 2, "delete": 0, "replace": 0}


@pytest.mark.parametrize(
    "words",
    [
        {"idle_duration": "3d"},
        {"nodes": "0..9"},
        {"nodes": "2..9"},
        {"max_price": 9},
        {"regions": ["local"]},
        {"backends": ["local"]},
        {"instance_types": ["local"]},
        {"spot_policy": "auto"},
        {"resources": {"cpu": "1.."}},
    ],
)
def test_limits_that_nodes_keep_change_nothing(words):
    """Limits bind new nodes; those that keep them are let be."""
    assert ids(brought().plan(wanted({**FLEET, **words}))) == []


def test_a_fleet_that_grows_gets_nodes():
    """`nodes: 3` adds pair-2 and touches nothing else."""
    assert ids(brought().plan(wanted({**FLEET, "nodes": 3}))) == ["create:node/pair-2"]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"resources": {"cpu": "4.."}}, "resources"),
        ({"max_price": 0.5}, "max_price"),
        ({"regions": ["west"]}, "regions"),
        ({"spot_policy": "spot"}, "spot_policy"),
        ({"instance_types": ["big"]}, "instance_types"),
    ],
)
def test_nodes_that_keep_the_limits_no_more_are_replaced_once_idle(words, field):
    """While ranks run a node stays, is shown, and takes no new work; once idle it is replaced."""
    catalog = [
        {"instance_type": "small", "cpu": 2, "memory": "4GB", "price": 1.0, "spot_price": 0.4},
        {"instance_type": "big", "cpu": 4, "memory": "4GB", "price": 0.5 if field == "max_price" else 2.0},
    ]
    sky = {"name": "sky", "driver": "local", "regions": ["east", "west"], "catalog": catalog}
    before = {**FLEET, "resources": {}, "instance_types": ["small"]}
    after = {**before, **words}
    if field in ("resources", "max_price"):
        after["instance_types"] = ["small", "big"]
    world = brought(before, (), ({"name": "train", "nodes": 2},), backends=[sky])
    desired = wanted(after, (), ({"name": "train", "nodes": 2},), backends=[sky])
    plan = world.plan(desired)
    assert ids(plan) == []
    noted = [d for d in plan.diagnostics if d.code == "node-mismatch"]
    assert [d.address for d in noted] == ["node/pair-0", "node/pair-1"]
    assert all(f"`{field}`" in d.summary for d in noted)
    assert plan.result == "none"
    end(world)
    plan = world.plan(desired)
    assert ids(plan) == [f"{op}:node/pair-{i}" for op in ("delete", "create") for i in (0, 1)]
    replaced = action(plan, "delete:node/pair-0")
    assert (replaced.reason, replaced.because) == (Reason.MISMATCH, (field,))
    assert plan.summary()["replace"] == 2


def test_a_node_that_waits_for_its_replacement_takes_no_new_work():
    """Else it might never be idle."""
    world = brought({**FLEET, "nodes": "0..1"}, (), (SMALL,))
    desired = wanted(
        {**FLEET, "nodes": "0..1", "resources": {"cpu": "4.."}}, (), (SMALL, {**SMALL, "name": "more"})
    )
    plan = world.plan(desired)
    assert ids(plan) == []
    codes_ = {r.target: r.code for v in plan.unplaced.refusals[0].ranks for r in v.rejections}
    assert codes_["node/pair-0"] == "closed"


def test_a_task_that_restarts_leaves_a_node_that_is_to_be_replaced():
    """Between its two runs the node is idle: it is replaced by the same plan, and the next is empty."""
    world = brought()
    desired = wanted({**FLEET, "resources": {"cpu": "4.."}}, tasks=({**TRAIN, "commands": ["false"]},))
    plan = world.plan(desired)
    assert plan.summary()["replace"] == 8  # 2 nodes, reservations, attachments, ranks
    world.apply(plan)
    assert ids(world.plan(desired)) == []


def test_idle_nodes_are_split_in_place():
    """`blocks` is an update of the node when it is idle."""
    world = brought(tasks=())
    plan = world.plan(wanted({**FLEET, "blocks": 1}, tasks=()))
    assert ids(plan) == ["update:node/pair-0", "update:node/pair-1"]
    assert action(plan, "update:node/pair-0").because == ("blocks",)


def test_busy_nodes_are_split_once_idle():
    """Until then the plan says that they wait."""
    world = brought()
    desired = wanted({**FLEET, "blocks": 1})
    plan = world.plan(desired)
    assert ids(plan) == []
    assert codes(plan) == {"blocks-wait"}
    end(world)
    assert ids(world.plan(desired)) == ["update:node/pair-0", "update:node/pair-1"]


def test_a_number_of_blocks_that_does_not_divide_is_an_error():
    """It names those that do."""
    plan = brought(tasks=()).plan(wanted({**FLEET, "blocks": 3}, tasks=()))
    assert plan.result == "error"
    assert codes(plan) == {"blocks-do-not-divide"}
    assert all("`blocks: auto` or one of 1, 2" in str(d.hint) for d in plan.diagnostics)


def test_surplus_nodes_above_the_maximum_go_when_idle():
    """The highest numbers first; a node that holds ranks stays until they end."""
    world = brought({**FLEET, "nodes": 4}, tasks=({**TRAIN, "instances": ["pair-0", "pair-3"]},))
    smaller = wanted({**FLEET, "nodes": 1}, tasks=({**TRAIN, "instances": ["pair-0", "pair-3"]},))
    plan = world.plan(smaller)
    assert ids(plan) == ["delete:node/pair-1", "delete:node/pair-2"]
    assert {(a.reason, a.because) for a in plan.actions} == {(Reason.SURPLUS, ("nodes",))}
    world.apply(plan)
    plan = world.plan(smaller)
    said = "fleet/pair keeps 1 node above its maximum of 1 for now: node/pair-0, node/pair-3 are not idle"
    assert [(d.code, d.summary, ids(plan)) for d in plan.diagnostics] == [("node-mismatch", said, [])]
    assert "No changes. What differs waits until nodes are idle." in plan_text(plan, color=False, width=None)
    end(world)
    plan = world.plan(smaller)
    assert (ids(plan), plan.diagnostics) == (["delete:node/pair-3"], ())


def test_a_protected_node_above_the_maximum_is_not_said_to_go():
    world = brought({**FLEET, "nodes": 2})
    (found,) = world.plan(wanted({**FLEET, "nodes": 0, "prevent_destroy": True})).diagnostics
    assert "remove the protection" in str(found.hint)


CPUS = {"catalog": [{"instance_type": "c4", "cpu": 4, "memory": "16GB", "price": 1}]}
SPREAD_OUT = {"name": "gang", "nodes": 3, "placement": "any", "resources": {"cpu": 1}}


@pytest.mark.parametrize("beside", [[], [{"name": "small", "resources": {"cpu": 1}}]])
@pytest.mark.parametrize(
    ("fleet", "change"),
    [
        ({"nodes": "0..0"}, {"nodes": 2}),
        ({"nodes": "0..0"}, {"commands": ["other"]}),
        ({"blocks": 2}, {"commands": ["other"]}),
    ],
)
def test_a_changed_task_restarts_on_its_node_though_that_would_go_or_be_split(fleet, change, beside):
    """Else the plan after it would do that, as then something else holds the node."""
    shared = {"name": "aa", "nodes": "0..1", "blocks": 4}
    world = bring(World(), [shared], [SPREAD_OUT], **CPUS)
    found = look(world, [{**shared, **fleet}], [{**SPREAD_OUT, **change}, *beside], **CPUS)
    assert found["unplaced"] == []
    assert {r["node"] for r in found["reservations"]} == {"aa-0"}
    bring(world, [{**shared, **fleet}], [{**SPREAD_OUT, **change}, *beside], **CPUS)


def test_a_hint_beside_a_running_task_that_cannot_grow_is_true():
    """Once the fleet may be larger the gang takes the new node: what it lacks comes first."""
    gang, other = {"name": "gang", "placement": "any", "priority": 10}, {"name": "other"}
    world = bring(World(), [{"name": "aa", "nodes": "0..1"}], [gang], **CPUS)
    tasks = [{**gang, "nodes": 2, "env": {"A": "1"}}, other]  # more ranks alone would join the one that runs
    found = look(world, [{"name": "aa", "nodes": "0..1"}], tasks, **CPUS)
    changes = {r["task"]: r["changes"] for r in found["unplaced"]}
    assert changes == {"gang": ["with `nodes: 0..3` of fleet/aa"], "other": None}
    assert {r["task"]: r["hint"] for r in found["unplaced"]}["other"].startswith("make room for the changes")
    assert [(r["change"], r["tasks"]) for r in found["remedies"]] == [(changes["gang"][0], ["gang"])]
    assert look(world, [{"name": "aa", "nodes": "0..3"}], tasks, **CPUS)["unplaced"] == []


@pytest.mark.parametrize("beside", [True, False])
def test_no_change_of_a_running_task_takes_the_place_of_what_fits_beside_it(beside):
    """Once it goes, the large task fits in the stead of the small one, which has a place while it stays."""
    fleets = [{"name": name, "nodes": "0..1", "blocks": 4} for name in ("aa", "bb")]
    gang = {"name": "gang", "resources": {"cpu": 1}, "fleets": ["aa"]}
    base = {**gang, "name": "base"}
    world = bring(World(), fleets, [gang, base], **CPUS)
    tasks = [{**gang, "resources": {"cpu": 4}}, base]
    tasks += [{**gang, "name": f"t{cpu}", "resources": {"cpu": cpu}} for cpu in ((1, 3) if beside else (1,))]
    found = look(world, fleets, tasks, **CPUS)
    changes = {r["task"]: r["changes"] for r in found["unplaced"]}
    assert ("with `fleets: [aa, bb]`" in changes["gang"]) is not beside
    assert changes.keys() == ({"gang", "t3"} if beside else {"gang"})


def test_no_larger_maximum_is_named_while_nodes_go_that_would_stay_then():
    """The node in another zone than the volume would be in the way."""
    zones = {"availability_zones": ["za", "zb"], **CPUS}
    world = bring(World(), [{"name": "aa", "nodes": 1}], **zones)
    volumes = [{"name": "data", "availability_zone": "zb"}]
    task = {"name": "one", "mounts": {"/d": "data"}}
    for most, changes in ((0, []), (1, ["with `nodes: 0..2` of fleet/aa", "without `/d` in `volumes`"])):
        found = look(world, [{"name": "aa", "nodes": f"0..{most}"}], [task], volumes, **zones)
        assert [r["changes"] for r in found["unplaced"]] == [changes]


def test_a_pinned_node_that_the_plan_launches_is_there_later():
    """So the task may fit; the plan says when."""
    fleet = {"name": "aa", "nodes": "0..1", "blocks": 4}
    tasks = [{"name": "one", "resources": {"cpu": 1}}]
    pinned = {"name": "two", "resources": {"cpu": 1}, "instances": ["aa-0"]}
    (refusal,) = look(World(), [fleet], [*tasks, pinned], **CPUS)["unplaced"]
    assert (refusal["code"], refusal["proved"]) == ("no-capacity", False)
    assert refusal["hint"] == "this plan launches node/aa-0: apply it, then plan again"
    world = bring(World(), [fleet], tasks, **CPUS)
    assert look(world, [fleet], [*tasks, pinned], **CPUS)["unplaced"] == []


SINCE = "2026-01-31T12:00:00Z"
UNREADY = (NodeState.NOT_READY, NodeState.UNREACHABLE, NodeState.TERMINATING)


def drain(world, *names, reason="bad NIC"):
    for name in names:
        record = world.records[Address("node", name)]
        outputs = {**record.outputs, DRAINED: {"since": SINCE, "reason": reason}}
        world.records[record.address] = replace(record, outputs=outputs)


@pytest.mark.parametrize("state", UNREADY)
def test_a_fleet_that_shrinks_gives_up_a_node_that_is_not_ready_first(state):
    """Not the healthy one with the highest number."""
    world = brought({**FLEET, "nodes": 3}, tasks=())
    world.sick["pair-0"] = state
    plan = world.plan(wanted({**FLEET, "nodes": 2}, tasks=()))
    assert ids(plan) == ["delete:node/pair-0"]
    assert action(plan, "delete:node/pair-0").reason is Reason.SURPLUS


def test_the_order_in_which_a_fleet_gives_up_idle_nodes():
    """Drained, failed, not ready, booting, ready; of equals the highest number. Unknown ones never."""
    world = brought({**FLEET, "nodes": 7}, tasks=())
    drain(world, "pair-3")
    world.sick |= {"pair-1": NodeState.FAILED, "pair-2": NodeState.UNREACHABLE}
    world.sick |= {"pair-0": NodeState.PROVISIONING, "pair-6": NodeState.UNKNOWN}
    order = ["pair-3", "pair-1", "pair-2", "pair-0", "pair-5", "pair-4"]
    for count in range(1, 8):
        plan = world.plan(wanted({**FLEET, "nodes": 7 - count}, tasks=()))
        gone = {a.address.name for a in plan.actions if a.reason is Reason.SURPLUS}
        assert gone == set(order[:count])


@pytest.mark.parametrize("state", [*UNREADY, NodeState.FAILED])
def test_a_broken_node_with_ranks_is_not_given_up_for_an_idle_one(state):
    """What is busy is never deleted to shrink a fleet, whatever its node's state."""
    world = brought({**FLEET, "nodes": 3})
    world.sick["pair-0"] = state
    drain(world, "pair-1")
    assert ids(world.plan(wanted({**FLEET, "nodes": 2})), "node") == ["delete:node/pair-2"]


def test_an_idle_node_that_can_do_no_work_goes_in_place_of_one_that_is_due():
    """One of three has to go after `idle_duration`: the one that is not ready, and no more than one."""
    fleet = {**FLEET, "nodes": "2..4", "idle_duration": "30m"}
    world = brought({**fleet, "nodes": 3}, tasks=())
    world.now += 1800
    world.idle_since["pair-0"] = world.now
    assert ids(world.plan(wanted(fleet, tasks=()))) == ["delete:node/pair-2"]
    for state in (*UNREADY, NodeState.FAILED):
        world.sick["pair-0"] = state
        plan = world.plan(wanted(fleet, tasks=()))
        assert ids(plan) == ["delete:node/pair-0"]
    world.sick = {}
    drain(world, "pair-0")
    assert ids(world.plan(wanted(fleet, tasks=()))) == ["delete:node/pair-0"]
    world.now -= 1
    assert ids(world.plan(wanted(fleet, tasks=()))) == []


@pytest.mark.parametrize(("least", "gone"), [(0, ["pair-2"]), (1, ["pair-0", "pair-1"]), (2, ["pair-1"])])
def test_no_node_is_due_once_those_that_are_idle_for_too_long_are_gone(least, gone):
    """Two of three can do no work, and only the third was idle for long enough: it stays if one of them goes
    in its place, else it goes alone.
    """
    fleet = {**FLEET, "nodes": f"{least}..4", "idle_duration": "30m"}
    world = brought({**fleet, "nodes": 3}, tasks=())
    world.now += 1800
    for name in ("pair-0", "pair-1"):
        world.idle_since[name], world.sick[name] = world.now, NodeState.NOT_READY
    plan = world.plan(wanted(fleet, tasks=()))
    assert sorted(ids(plan)) == [f"delete:node/{name}" for name in gone]
    world.apply(plan)
    assert ids(world.plan(wanted(fleet, tasks=()))) == []


@pytest.mark.parametrize(
    ("idle", "wait", "deleted"),
    [
        ("30m", 1799, []),
        ("30m", 1800, ["node/pair-1", "node/pair-2"]),
        ("off", 10**9, []),
        ("0s", 0, ["node/pair-1", "node/pair-2"]),
    ],
)
def test_idle_nodes_above_the_target_go_after_idle_duration(idle, wait, deleted):
    """The time counts from when they became idle; `off` keeps them; the target is kept in any case."""
    world = brought({**FLEET, "nodes": 3, "idle_duration": idle}, tasks=())
    world.now += wait
    plan = world.plan(wanted({**FLEET, "nodes": "1..4", "idle_duration": idle}, tasks=()))
    assert [str(a.address) for a in plan.actions] == deleted
    assert {a.reason for a in plan.actions} <= {Reason.IDLE}


def test_a_node_is_idle_from_the_moment_that_its_last_rank_ended():
    """Not from when it was made."""
    fleet = {**FLEET, "nodes": "0..4", "idle_duration": "30m"}
    world = brought(fleet)
    world.now += 10_000
    end(world)
    assert ids(world.plan(wanted(fleet))) == []
    world.now += 1800
    assert ids(world.plan(wanted(fleet))) == ["delete:node/pair-0", "delete:node/pair-1"]


def test_an_unknown_node_is_not_empty():
    """What cannot be read is not deleted for being idle, unsuitable or too many."""
    world = brought({**FLEET, "nodes": 1}, tasks=())
    world.sick["pair-0"] = NodeState.UNKNOWN
    world.now += 10**9
    for words in ({"nodes": "0..4"}, {"nodes": 0}, {"resources": {"cpu": 4}}):
        assert ids(world.plan(wanted({**FLEET, "nodes": 1, **words}, tasks=())), "node") == []


def test_nobody_is_asked_to_mend_what_heals_by_itself():
    """A silent node takes work again once it answers; one that is not fit needs somebody."""
    world = brought({**FLEET, "nodes": 2}, tasks=())
    world.sick |= {"pair-0": NodeState.UNREACHABLE, "pair-1": NodeState.NOT_READY}
    plan = world.plan(wanted({**FLEET, "nodes": 2}, tasks=()))
    for hints in ({d.address: d.hint for d in plan.diagnostics}, {h.address: h.hint for h in plan.health}):
        assert str(hints["node/pair-0"]).startswith("once it answers, it takes work again by itself")
        assert str(hints["node/pair-1"]).startswith("fix that by hand")


def test_nodes_that_nobody_can_reach_are_not_left_unsaid():
    """No action mends them; but a plan that says "no changes" would be taken for all being well. Those that
    are alike are said in one line, and what goes anyway, or boots, needs nobody.
    """
    three = {**FLEET, "nodes": 3}
    world = brought(three, tasks=())
    world.sick |= {"pair-0": NodeState.PROVISIONING, "pair-1": NodeState.NOT_READY}
    world.sick["pair-2"] = NodeState.NOT_READY
    plan = world.plan(wanted(three, tasks=()))
    assert (plan.result, plan.actions) == ("unhealthy", ())
    assert [(h.address, h.state) for h in plan.health] == [
        ("node/pair-1", "not_ready"),
        ("node/pair-2", "not_ready"),
    ]
    (said,) = plan.diagnostics
    assert (said.code, said.severity, said.address) == ("node-not-ready", Severity.WARNING, "fleet/pair")
    assert said.summary.startswith("node/pair-1, node/pair-2 take no work: not ready: ")
    text = plan_text(plan, color=False, width=100)
    assert text == (
        "Not well:\n\n  node/pair-1, node/pair-2: not ready\n      no reason is known\n\n"
        "Nothing is changed, but 2 nodes take no work.\n"
    )
    world.sick["pair-1"] = NodeState.UNREACHABLE
    assert [d.address for d in world.plan(wanted(three, tasks=())).diagnostics] == [
        "node/pair-1",
        "node/pair-2",
    ]
    assert world.plan(wanted({**FLEET, "nodes": 0}, tasks=())).health == ()


# --------------------------------------------------------------------------------- fleets, replacement


@pytest.mark.parametrize("words", [{"env": {"A": "1"}}, {"placement": "cluster"}])
def test_env_and_placement_replace_the_nodes_and_their_gangs_only(words):
    """The nodes of the fleet and every rank of the gangs on them; no other task, no volume."""
    aa = {"name": "aa", "nodes": 2, "resources": {"cpu": 2}}
    bb = {**aa, "name": "bb", "nodes": 1}
    tasks = ({**TRAIN, "placement": "any", "exclusive": True, "fleets": ["aa"]}, {**SMALL, "fleets": ["bb"]})
    world = brought((aa, bb), tasks=tasks)
    plan = world.plan(wanted(({**aa, **words}, bb), tasks=tasks))
    field = next(iter(words))
    assert ids(plan, "node") == [f"{op}:node/aa-{i}" for op in ("delete", "create") for i in (0, 1)]
    assert action(plan, "delete:node/aa-0").because == (field,)
    assert ids(plan, "rank") == [*gang("delete"), *gang("create")]
    rank = action(plan, "delete:rank/train-0")
    assert (rank.reason, rank.because) == (Reason.CASCADE, ("node/aa-0", "node/aa-1"))
    assert ids(plan, "volume") == []
    assert plan.summary() == {"create": 0, "update": 0, "delete": 0, "replace": 8}


def test_one_replaced_node_restarts_the_whole_gang():
    """A gang over two fleets: its ranks know each other, so all of them start again."""
    aa = {"name": "aa", "nodes": 1, "resources": {"cpu": 2}}
    bb = {**aa, "name": "bb"}
    task = {"name": "wide", "nodes": 2, "placement": "any", "exclusive": True}
    world = brought((aa, bb), (), (task,))
    plan = world.plan(wanted(({**aa, "env": {"A": "1"}}, bb), (), (task,)))
    assert ids(plan, "node") == ["delete:node/aa-0", "create:node/aa-0"]
    assert ids(plan, "rank") == [*gang("delete", "wide"), *gang("create", "wide")]
    assert ids(plan, "reservation") == ["delete:reservation/wide-0", "create:reservation/wide-0"]


def test_a_fleet_that_is_removed_goes_with_its_nodes():
    """And the task on it moves to where it fits."""
    aa = {"name": "aa", "nodes": 1, "resources": {"cpu": 2}}
    world = brought((aa,), (), (SMALL,))
    plan = world.plan(wanted(({**aa, "name": "bb"},), (), (SMALL,)))
    assert ids(plan) == [
        "delete:rank/small-0",
        "delete:reservation/small-0",
        "delete:node/aa-0",
        "create:node/bb-0",
        "create:reservation/small-0",
        "create:rank/small-0",
    ]


@pytest.mark.parametrize("words", [None, {"env": {"A": "1"}}])
def test_a_task_that_has_no_other_place_goes_on_where_it_is(words):
    """Its node stays although its fleet is gone, or changed so that no offer is left: the plan says so and
    refuses the task; once it has ended the node goes.
    """
    aa = {"name": "aa", "nodes": 1, "resources": {"cpu": 2}}
    world = brought((aa,), (), (SMALL,))
    desired = wanted(({**aa, **words, "max_price": 0.001, "regions": ["x"]},) if words else (), (), (SMALL,))
    plan = world.plan(desired)
    assert ids(plan) == []
    assert [r.task for r in plan.unplaced.refusals] == ["small"]
    assert "node-mismatch" in codes(plan)
    end(world)
    assert ids(world.plan(desired), "node", "rank") == ["delete:node/aa-0"]


def test_a_protected_fleet_is_an_error_that_names_the_field():
    """Removing it, and what would replace its nodes; `destroy` leaves them."""
    world = brought({**FLEET, "prevent_destroy": True}, tasks=())
    for desired, hint in (
        (wanted((), tasks=()), "`moved: [{from: fleet/pair, to: fleet/NEW}]`"),
        (wanted({**FLEET, "prevent_destroy": True, "env": {"A": "1"}}, tasks=()), "undo the change"),
    ):
        plan = world.plan(desired)
        assert plan.result == "error"
        assert all("prevent_destroy" in d.summary for d in plan.diagnostics)
        assert {d.address for d in plan.diagnostics} == {"node/pair-0", "node/pair-1"}
        assert all(hint in str(d.hint) for d in plan.diagnostics)
    assert ids(world.plan(project(), destroy=True)) == []


# ----------------------------------------------------------------------------------------------- volumes


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"size": "2GB"}, "size"),
        ({"tags": {"a": "b"}}, "tags"),
        ({"prevent_destroy": False}, "prevent_destroy"),
    ],
)
def test_volumes_grow_in_place(words, field):
    """Size upward, tags and protection are updates, and no rank is touched."""
    plan = brought().plan(wanted(volumes=({**DATA, **words},)))
    assert ids(plan) == ["update:volume/data-0", "update:volume/data-1"]
    assert action(plan, "update:volume/data-0").because == (field,)


MOVES = [({"size": "1GB"}, "size"), ({"region": "far"}, "region"), ({"availability_zone": "z"}, "zone")]


@pytest.mark.parametrize(("words", "field"), MOVES)
def test_a_protected_volume_is_not_replaced(words, field):
    """Shrinking or moving it is an error that names both fields; nothing else is an error."""
    volume = {**DATA, "size": "2GB"}
    plan = brought(volumes=(volume,)).plan(wanted(volumes=({**volume, **words},)))
    assert plan.result == "error"
    assert {d.code for d in plan.diagnostics} == {"protected"}
    assert f"`{field}` changed" in plan.diagnostics[0].summary
    assert "`prevent_destroy` is true" in plan.diagnostics[0].summary


def test_a_volume_that_may_have_been_renamed():
    """A user who renames one only in the YAML gets the command that keeps it."""
    plan = brought(volumes=(DATA,)).plan(wanted(volumes=({**DATA, "name": "store"},), tasks=()))
    (error, *_) = [d for d in plan.diagnostics if d.code == "protected"]
    assert error.address == "volume/data-0"
    assert "`moved: [{from: volume/data, to: volume/NEW}]`" in (error.hint or "")  # it moves all of a count


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (RankState.FAILED, "task/train failed"),
        (RankState.LOST, "task/train was lost"),
        (RankState.STOPPED, "task/train was stopped"),
    ],
)
def test_a_task_that_ended_without_success_is_named(how, words):
    """The plan changes nothing, but says how to run it again: this is not a sign that all is well."""
    three = {**FLEET, "nodes": 3}
    world, desired = brought(three, tasks=(TRAIN, SMALL)), wanted(three, tasks=(TRAIN, SMALL))
    end(world, RankState.SUCCEEDED, "small-0")
    end(world, how, "train-0", "train-1")
    plan = world.plan(desired)
    assert (plan.result, plan.observed.ended) == ("none", (("train", how.value),))
    text = plan_text(plan, color=False, width=100)
    assert f"{words}; `fleetform apply --replace task/train` runs it again" in text
    assert "No changes. Everything else is as declared." in text
    assert plan.health == ()
    assert world.plan(desired, requested=frozenset({"task/train"})).observed.ended == ()


def test_a_lower_count_of_protected_volumes():
    """The hint has to work as written: a volume that is no longer declared cannot be unprotected."""
    plan = brought(volumes=({**DATA, "count": 3},), tasks=()).plan(wanted(volumes=(FREE,), tasks=()))
    (error,) = [d for d in plan.diagnostics if d.code == "protected"]
    assert error.address == "volume/data-2"
    assert "`data` has `count: 2`: write `count: 3` again" in (error.hint or "")
    assert "state mv" not in (error.hint or "")


@pytest.mark.parametrize(("source", "gone"), [("data", [0, 1, 2]), ("data-1", [1])])
def test_volumes_that_were_removed_with_leave(source, gone):
    """`removed` speaks of one volume or of all of a name; those that it does not name stay protected."""
    world = brought(volumes=({**DATA, "count": 3},), tasks=())
    for destroy in (False, True):
        said = Removals.parse([{"from": f"volume/{source}", "destroy": destroy}])
        desired = wanted(volumes=(), tasks=())
        desired = replace(desired, project=replace(desired.project, removed=said))
        for everything in (False, True):
            plan = world.plan(desired, destroy=everything)
            let_go = [a for a in plan.actions if a.address.kind == "volume"]
            named = {d.address for d in plan.diagnostics if d.code == "protected"}
            spoken_of = [a for a in let_go if int(a.address.name[-1]) in gone]
            assert [int(a.address.name[-1]) for a in spoken_of] == gone
            assert {a.forgets for a in spoken_of} == {not destroy}
            staying = {f"volume/data-{i}" for i in range(3) if i not in gone}
            assert named == (set() if everything else staying)
            assert everything is False or let_go == spoken_of


def test_an_entry_of_its_own_counts_more_than_that_of_its_group():
    said = Removals.parse(
        [{"from": "volume/data", "destroy": True}, {"from": "volume/data-1", "destroy": False}]
    )
    found = {name: said.of(name) for name in ("data", "data-0", "data-1", "data-x", "data-1-0")}
    assert {n: f and f.destroy for n, f in found.items()} == {
        "data": True,
        "data-0": True,
        "data-1": False,
        "data-x": None,
        "data-1-0": False,
    }


def test_hints_of_a_lower_count_are_alike():
    """They can be shown as one, and what they say is enough for all."""
    plan = brought(volumes=({**DATA, "count": 4},), tasks=()).plan(wanted(volumes=(FREE,), tasks=()))
    found = [d for d in plan.diagnostics if d.code == "protected"]
    assert [d.address for d in found] == ["volume/data-2", "volume/data-3"]
    (hint,) = {d.hint for d in found}
    assert "write `count: 4` again" in (hint or "")
    assert "`removed: [{from: volume/data-2, destroy: false}]` (an entry for each)" in (hint or "")


def test_an_unprotected_volume_is_replaced_with_the_gang_that_holds_it():
    """Delete and create, the gang around it; because is the field, then the address."""
    volume = {**FREE, "size": "2GB"}
    plan = brought(volumes=(volume,)).plan(wanted(volumes=({**volume, "size": "1GB"},)))
    assert plan.result == "changes"
    assert action(plan, "delete:volume/data-0").because == ("size",)
    assert action(plan, "delete:attachment/train-0.data-0").because == ("volume/data-0",)
    assert action(plan, "delete:rank/train-0").because == ("volume/data-0", "volume/data-1")
    assert ids(plan, "reservation", "node") == []
    order = ids(plan)
    assert order.index("delete:rank/train-0") < order.index("delete:attachment/train-0.data-0")
    assert order.index("delete:attachment/train-0.data-0") < order.index("delete:volume/data-0")


def test_one_replaced_volume_leaves_others_alone():
    """Only the task that holds it runs again."""
    one, two = ({"name": n, "prevent_destroy": False, "size": "2GB"} for n in ("one", "two"))
    tasks = tuple({**SMALL, "name": n, "mounts": {"/d": n}} for n in ("one", "two"))
    plan = brought(volumes=(one, two), tasks=tasks).plan(
        wanted(volumes=({**one, "size": "1GB"}, two), tasks=tasks)
    )
    assert ids(plan, "rank") == ["delete:rank/one-0", "create:rank/one-0"]
    assert not [a for a in plan.actions if "two" in str(a.address)]


def test_removing_a_protected_volume_is_an_error():
    """It names the field and what to do; an unprotected one is deleted."""
    plan = brought(tasks=()).plan(wanted(volumes=(), tasks=()))
    assert plan.result == "error"
    assert plan.diagnostics[0].address == "volume/data-0"
    assert "`prevent_destroy`" in plan.diagnostics[0].summary
    plan = brought(volumes=(FREE,), tasks=()).plan(wanted(volumes=(), tasks=()))
    assert ids(plan) == ["delete:volume/data-0", "delete:volume/data-1"]
    assert {a.reason for a in plan.actions} == {Reason.REMOVED}


ADOPTED = {"name": "old", "volume_id": "vol-1", "size": "2GB"}


def test_a_volume_that_is_adopted_is_let_go_and_never_deleted():
    """The plan says so, and needs no leave: `prevent_destroy` is true."""
    world = World()
    plan = world.plan(wanted(volumes=(ADOPTED,), tasks=()))
    made = action(plan, "create:volume/old")
    assert (made.reason, made.after.volume_id) == (Reason.ADOPTED, "vol-1")
    assert "adopted: vol-1 exists" in plan_text(plan, color=False, width=100)
    world.apply(plan)
    assert world.plan(wanted(volumes=(ADOPTED,), tasks=())).result == "none"
    assert ids(world.plan(wanted(volumes=({**ADOPTED, "size": "3GB"},), tasks=()))) == ["update:volume/old"]
    for there, destroy in ((), False), ((ADOPTED,), True):
        plan = world.plan(wanted(volumes=there, tasks=()) if not destroy else project(), destroy=destroy)
        assert "delete:volume/old" in ids(plan)
        assert "vol-1 itself stays: it was adopted" in plan_text(plan, color=False, width=100)
    other = world.plan(wanted(volumes=({**ADOPTED, "volume_id": "vol-2"},), tasks=()))
    assert ids(other, "volume") == ["delete:volume/old", "create:volume/old"]
    assert other.result == "changes"


def test_what_was_adopted_is_let_go_before_it_is_adopted_by_another_name():
    """A document was renamed: one volume is one thing's at a time. Also where two change places."""
    world, new = World(), {**ADOPTED, "name": "new"}
    world.apply(world.plan(wanted(volumes=(ADOPTED,), tasks=())))
    plan = world.plan(wanted(volumes=(new,), tasks=()))
    assert action(plan, "create:volume/new").needs == ("delete:volume/old",)
    world.apply(plan)
    two = {**ADOPTED, "volume_id": "vol-2"}
    world.apply(world.plan(wanted(volumes=(new, two), tasks=())))
    swapped = {**new, "volume_id": "vol-2"}, {**two, "volume_id": "vol-1"}
    plan = world.plan(wanted(volumes=swapped, tasks=()))
    assert action(plan, "create:volume/old").needs == ("delete:volume/new", "delete:volume/old")
    world.apply(plan)


def test_a_volume_that_is_adopted_is_not_made_smaller():
    world = World()
    world.apply(world.plan(wanted(volumes=(ADOPTED,), tasks=())))
    free = {**ADOPTED, "size": "1GB", "prevent_destroy": False}
    plan = world.plan(wanted(volumes=(free,), tasks=()))
    assert plan.result == "error"
    assert "would be made smaller" in plan.diagnostics[0].summary


def test_what_was_made_is_protected_from_becoming_another():
    """Its content would be lost, whatever is adopted instead."""
    plan = brought(volumes=(DATA,), tasks=()).plan(
        wanted(
            volumes=({"name": "data-0", "volume_id": "vol-1", "size": "1GB"}, {"name": "data-1"}), tasks=()
        )
    )
    assert next(d.summary for d in plan.diagnostics if d.code == "protected").startswith(
        "volume/data-0 would be replaced (`volume_id` changed)"
    )


def test_destroy_leaves_protected_volumes():
    """Everything else goes, in the reverse of the order in which it was made."""
    plan = brought(volumes=(DATA, {"name": "spare", "prevent_destroy": False})).plan(project(), destroy=True)
    assert plan.result == "changes"
    assert ids(plan) == [
        *gang("delete"),
        "delete:attachment/train-0.data-0",
        "delete:attachment/train-1.data-1",
        "delete:reservation/train-0",
        "delete:reservation/train-1",
        "delete:node/pair-0",
        "delete:node/pair-1",
        "delete:volume/spare",
    ]
    assert {a.reason for a in plan.actions} == {Reason.DESTROY}


# ------------------------------------------------------------------------------------------------- tasks


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ({"priority": 9}, "priority"),
        ({"tags": {"a": "b"}}, "tags"),
        ({"max_duration": "1h"}, "max_duration"),
        ({"stop_duration": "1m"}, "stop_duration"),
        ({"retry": {"on_events": ["no-capacity"]}}, "retry"),
    ],
)
def test_fields_of_a_task_that_change_in_place(words, field):
    """The ranks run on."""
    plan = brought().plan(wanted(tasks=({**TRAIN, **words},)))
    assert ids(plan) == gang("update")
    assert action(plan, "update:rank/train-0").because == (field,)


CHANGES = [
    ({"commands": ["false"]}, "commands"),
    ({"env": {"A": "1"}}, "env"),
    ({"working_dir": "/x"}, "working_dir"),
    ({"resources": {"cpu": "1.."}}, "resources"),
    ({"startup_order": "workers-first"}, "startup_order"),
    ({"creation_policy": "reuse"}, "creation_policy"),
]


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize(("words", "field"), CHANGES)
def test_other_changes_of_a_task_run_it_again(words, field, ended):
    """Whether it runs or has ended; its places are kept where they still do."""
    world = brought()
    if ended:
        end(world)
    plan = world.plan(wanted(tasks=({**TRAIN, **words},)))
    assert sorted(ids(plan, "rank")) == sorted([*gang("delete"), *gang("create")])
    assert action(plan, "delete:rank/train-0").because == (field,)
    assert bool(ids(plan, "reservation", "attachment")) == ended
    assert ids(plan, "node", "volume") == []


@pytest.mark.parametrize("state", [RankState.SUCCEEDED, RankState.FAILED, RankState.STOPPED, RankState.LOST])
def test_a_task_that_ended_stays_ended(state):
    """Until it changes or is asked for by `--replace`; its blocks are idle, its nodes stay."""
    world = brought()
    end(world, state)
    plan = world.plan(wanted())
    assert ids(plan) == []
    assert [n.holders for n in plan.preview.nodes] == [{}, {}]
    plan = world.plan(wanted(), requested=frozenset({"task/train"}))
    assert ids(plan, "rank") == [*gang("delete"), *gang("create")]
    assert action(plan, "create:rank/train-0").reason is Reason.REQUESTED


def test_replace_asks_for_one_task_only():
    """`--replace task/x` touches no other task."""
    tasks = ({**SMALL, "name": "one"}, {**SMALL, "name": "two"})
    plan = brought(tasks=tasks).plan(wanted(tasks=tasks), requested=frozenset({"task/one"}))
    assert ids(plan) == ["delete:rank/one-0", "create:rank/one-0"]


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (3, 2)])
def test_another_number_of_ranks_runs_the_whole_gang_again(count, kept):
    """Ranks know how many they are; those that stay keep their places."""
    task = {"name": "train", "nodes": 2}
    world = brought({**FLEET, "nodes": 3}, (), (task,))
    plan = world.plan(wanted({**FLEET, "nodes": 3}, (), ({**task, "nodes": count, "exclusive": True},)))
    assert ids(plan, "rank") == [*gang("delete"), *gang("create", ranks=count)]
    if count == 1:
        assert ids(plan, "reservation") == ["delete:reservation/train-1"]
    else:
        assert ids(plan, "reservation") == ["create:reservation/train-2"]
    assert sum(r.status.value == "kept" for r in plan.reservations) == kept


def test_a_task_that_is_removed_gives_back_what_it_holds():
    """Ranks, attachments, reservations; the nodes and volumes stay."""
    plan = brought().plan(wanted(tasks=()))
    assert {a.op for a in plan.actions} == {Op.DELETE}
    assert {a.address.kind for a in plan.actions} == {"rank", "attachment", "reservation"}
    assert {r.status.value for r in plan.reservations} == {"released"}


def test_a_changed_task_without_a_place_goes_on_as_it_was():
    """It is refused, and nothing of it is touched, its volumes neither."""
    world = brought(volumes=({**FREE, "size": "2GB"},))
    desired = wanted(volumes=(FREE,), tasks=({**TRAIN, "resources": {"cpu": "9.."}},))
    plan = world.plan(desired)
    assert ids(plan) == []
    assert plan.result == "unplaced"
    assert plan.unplaced.refusals[0].code == "never-fits"


# ------------------------------------------------------------------------------------ what was observed


def test_a_lost_node_loses_its_ranks_and_is_made_again():
    """The rank is lost and stays ended, its siblings are stopped; the node comes back because it is gone."""
    world = brought()
    world.gone.add(Address("node", "pair-1"))
    plan = world.plan(wanted())
    assert ids(plan) == ["create:node/pair-1"]
    assert action(plan, "create:node/pair-1").reason is Reason.GONE
    world.settle()
    assert {n: s.state for n, s in world.ranks.items()} == {
        "train-0": RankState.STOPPED,
        "train-1": RankState.LOST,
    }
    assert ids(world.plan(wanted())) == ["create:node/pair-1"]
    assert "create:node/pair-1" in ids(world.plan(wanted(), requested=frozenset({"task/train"})))


def test_several_things_gone_at_once_are_named():
    """Two nodes of one backend are more likely a fault than the truth: apply asks."""
    world = brought()
    world.gone |= {Address("node", "pair-0"), Address("node", "pair-1")}
    assert world.plan(wanted()).observed.vanished == ("node/pair-0", "node/pair-1")
    world.gone = {Address("node", "pair-0")}
    assert world.plan(wanted()).observed.vanished == ()


def test_volumes_that_are_gone_do_not_count_among_several():
    """None of them is made anew by itself. A node would be; a place in doubt counts; so does a plan that
    forgets them, all or one, except if it forgets them whether they are gone or not.
    """
    asked = project(fleets=[FLEET], volumes=[FREE])
    world = World()
    world.apply(world.plan(asked))
    disks = {Address("volume", "data-0"), Address("volume", "data-1")}
    world.gone |= disks
    assert world.plan(asked).observed.vanished == ()
    forgetting = ("volume/data-0", "volume/data-1")
    assert world.plan(project(), destroy=True).observed.vanished == forgetting
    assert world.plan(project(fleets=[FLEET])).observed.vanished == forgetting
    assert world.plan(project(fleets=[FLEET], volumes=[{**FREE, "count": 1}])).observed.vanished == forgetting
    assert world.plan(asked, requested=frozenset({"volume/data-1"})).observed.vanished == forgetting
    for destroy, several in ((True, forgetting), (False, ())):
        given_up = replace(
            project(fleets=[FLEET]).project,
            removed=Removals.parse([{"from": "volume/data", "destroy": destroy}]),
        )
        assert world.plan(replace(project(fleets=[FLEET]), project=given_up)).observed.vanished == several
    world.gone.add(Address("node", "pair-0"))
    assert set(world.plan(asked).observed.vanished) == {"node/pair-0", "volume/data-0", "volume/data-1"}
    doubtful = replace(world.inventory(asked), gone=frozenset(disks), unsure=frozenset(disks))
    assert vanished(world.state(), doubtful) == tuple(sorted(disks))


def test_a_node_without_an_observation_is_unknown():
    """Neither ready nor empty: no work goes there."""
    world = brought(tasks=())
    seen = Inventory(offers={"local": (local_offer(),)})
    plan = make_plan(wanted({**FLEET, "nodes": 2}), world.state(), seen, world.now)
    assert plan.unplaced.refusals[0].code == "no-capacity"
    assert ids(plan) == []


def partial(*left_out):
    """A world in which a first apply stopped before some actions."""
    world = World()
    for one in world.plan(wanted()).actions:
        if not any(text in one.id for text in left_out):
            world.perform(one)
    return world


def test_a_gang_of_which_a_part_started_is_completed():
    """Ranks that have their places are started; those that run are let be."""
    world = partial("rank/train-1")
    assert ids(world.plan(wanted())) == ["create:rank/train-1"]


def test_a_rank_is_not_completed_without_its_volume():
    """If the volume of the rank that is missing vanished, the gang waits for it; with another one it starts
    anew as a whole.
    """
    world = partial("rank/train-1")
    world.gone.add(Address("volume", "data-1"))
    world.settle()
    assert ids(world.plan(wanted()), "rank") == ["delete:rank/train-0"]
    plan = world.plan(wanted(), requested=frozenset({"volume/data-1"}))
    assert ids(plan, "rank") == ["delete:rank/train-0", *gang("create")]
    assert "create:attachment/train-1.data-1" in ids(plan)
    world.apply(plan)
    assert ids(world.plan(wanted())) == []


def test_a_rank_is_not_completed_on_a_sick_node():
    """Only ready nodes take work; a half gang without a place is given up, all or none."""
    world = partial("rank/train-1")
    world.sick["pair-1"] = NodeState.UNREACHABLE
    plan = world.plan(wanted())
    assert [r.task for r in plan.unplaced.refusals] == ["train"]
    assert {a.op for a in plan.actions} == {Op.DELETE}
    world.apply(plan)
    assert world.of("reservation") == []


@pytest.mark.parametrize("where", [NodeState.UNREACHABLE, NodeState.UNKNOWN])
def test_a_rank_whose_start_was_cut_short_is_not_started_elsewhere_as_well(where):
    """It may run there. It keeps its place until its node answers or is given up, and is waited for."""
    fleet, waits = {**FLEET, "nodes": 3}, {**SMALL, "retry": True}
    world, desired = World(), wanted(fleet, (), (waits,))
    for one in world.plan(desired).actions:
        if one.address.kind != "rank":
            world.perform(one)
    (place,) = world.of("reservation")
    node = place.inputs["node"]
    begun = Intent(
        id=1,
        op="create",
        address=Address("rank", "small-0"),
        backend="local",
        generation=1,
        token="t",
        inputs={},
    )
    recorded = replace(world.state(), intents=(begun,))
    world.sick[node] = where
    seen = world.inventory(desired)
    plan = make_plan(desired, recorded, seen, NOW)
    assert ids(plan) == []
    (refusal,) = plan.unplaced.refusals
    assert refusal.summary == (
        f"rank/small-0 may run on node/{node}, which does not answer: task/small might run twice at once"
    )
    assert (refusal.code, plan.unplaced.waiting) == ("no-capacity", ("small",))
    given_up = {node: Silence(since=0, until=1, given_up=True)}
    elsewhere = make_plan(desired, recorded, replace(seen, silent=given_up), NOW)
    assert elsewhere.unplaced.refusals == ()
    assert "create:rank/small-0" in ids(elsewhere)
    world.sick.clear()
    assert ids(make_plan(desired, recorded, world.inventory(desired), NOW)) == ["create:rank/small-0"]


def test_places_of_a_gang_that_never_started_are_given_back():
    """What was reserved for ranks that are not declared any more is not kept."""
    world = partial("rank/")
    desired = wanted(tasks=({"name": "train", "nodes": 1, "exclusive": True},))
    plan = world.plan(desired)
    assert "delete:reservation/train-1" in ids(plan)
    world.apply(plan)
    assert ids(world.plan(desired)) == []


# -------------------------------------------------------------------------------------- order and shape


def test_needs_join_single_objects():
    """A volume holds back its own rank's node alone; the first rank waits for all places, the others for it;
    only direct needs are stored.
    """
    plan = World().plan(wanted())
    needs = {a.id: set(a.needs) for a in plan.actions}
    assert needs == {
        "create:volume/data-0": set(),
        "create:volume/data-1": set(),
        "create:node/pair-0": {"create:volume/data-0"},
        "create:node/pair-1": {"create:volume/data-1"},
        "create:reservation/train-0": {"create:node/pair-0"},
        "create:reservation/train-1": {"create:node/pair-1"},
        "create:attachment/train-0.data-0": {
            "create:node/pair-0",
            "create:reservation/train-0",
            "create:volume/data-0",
        },
        "create:attachment/train-1.data-1": {
            "create:node/pair-1",
            "create:reservation/train-1",
            "create:volume/data-1",
        },
        "create:rank/train-0": {
            "create:attachment/train-0.data-0",
            "create:attachment/train-1.data-1",
            "create:reservation/train-0",
            "create:reservation/train-1",
        },
        "create:rank/train-1": {
            "create:attachment/train-1.data-1",
            "create:rank/train-0",
            "create:reservation/train-1",
        },
    }


@pytest.mark.parametrize(
    ("order", "needs"),
    [
        ("any", {"1": {"0"}, "2": {"0"}, "0": set()}),
        ("master-first", {"1": {"0"}, "2": {"0"}, "0": set()}),
        ("workers-first", {"1": set(), "2": {"1"}, "0": {"1", "2"}}),
    ],
)
def test_startup_order(order, needs):
    """Who starts after whom."""
    task = {"name": "train", "nodes": 3, "startup_order": order}
    plan = World().plan(wanted({**FLEET, "nodes": 3}, (), (task,)))
    for rank, wait in needs.items():
        found = action(plan, f"create:rank/train-{rank}").needs
        assert {n.rpartition("-")[2] for n in found if ":rank/" in n} == wait


def test_blocks_that_are_passed_on_are_waited_for():
    """A task that takes over another's blocks and volume starts after the other has released them."""
    old = {**SMALL, "name": "old", "exclusive": True, "mounts": {"/d": "data"}}
    world = brought({**FLEET, "nodes": 1}, ({"name": "data"},), (old,))
    plan = world.plan(wanted({**FLEET, "nodes": 1}, ({"name": "data"},), ({**old, "name": "new"},)))
    assert "delete:reservation/old-0" in action(plan, "create:reservation/new-0").needs
    assert "delete:attachment/old-0.data" in action(plan, "create:attachment/new-0.data").needs


def test_a_node_is_split_after_its_blocks_are_given_back():
    """A task that goes frees its node for another split: the update waits for it, in the same plan."""
    plan = brought().plan(wanted({**FLEET, "blocks": 1}, tasks=()))
    assert action(plan, "update:node/pair-0").needs == ("delete:reservation/train-0",)
    again = brought().plan(wanted({**FLEET, "blocks": 1}, tasks=({**TRAIN, "commands": ["false"]},)))
    assert "update:node/pair-0" in action(again, "create:reservation/train-0").needs
    assert action(again, "create:reservation/train-0").after.blocks == (0,)
    assert {(r.blocks, r.total_blocks) for r in again.reservations} == {((0,), 1)}


def test_a_node_that_was_idle_for_long_makes_room_for_another():
    """At its maximum a fleet gives up an idle node that does not do, and launches one that does."""
    catalog = [{"instance_type": n, "cpu": c, "memory": "4GB", "price": c} for n, c in (("s", 2), ("l", 4))]
    sky = {"name": "sky", "driver": "local", "regions": ["east"], "catalog": catalog}
    fleet = {"name": "aa", "nodes": "0..1", "idle_duration": "30m"}
    world = brought(fleet, (), (SMALL,), backends=[sky])
    end(world)
    desired = wanted(fleet, (), (SMALL, {"name": "large", "resources": {"cpu": "4.."}}), backends=[sky])
    assert [r.task for r in world.plan(desired).unplaced.refusals] == ["large"]
    world.now += 1800
    plan = world.plan(desired)
    assert plan.unplaced.refusals == ()
    assert ids(plan, "node") == ["delete:node/aa-0", "create:node/aa-1"]
    assert action(plan, "create:node/aa-1").needs == ("delete:node/aa-0",)


@pytest.mark.parametrize(("nodes", "searched"), [("0..9", 1), ("0..1", 2)])
def test_a_node_that_goes_has_tasks_looked_at_again_only_if_it_makes_room(nodes, searched, monkeypatch):
    """Below the fleet's maximum the refused task gains nothing by it; either way reasons are found once."""
    counts: Counter[str] = Counter()
    for of, name in ((Search, "run"), (RefusalReports, "of")):
        found = getattr(of, name)

        def counted(*args, _found=found, _name=name):
            counts[_name] += 1
            return _found(*args)

        monkeypatch.setattr(of, name, counted)
    catalog = [{"instance_type": "s", "cpu": 2, "memory": "4GB", "price": 2}]
    sky = {"name": "sky", "driver": "local", "regions": ["east"], "catalog": catalog}
    fleet = {"name": "aa", "nodes": nodes, "idle_duration": "30m"}
    world = brought(fleet, (), (SMALL,), backends=[sky])
    end(world)
    world.now += 1800
    counts.clear()
    large = {"name": "large", "resources": {"cpu": "4.."}}
    plan = world.plan(wanted(fleet, (), (SMALL, large), backends=[sky]))
    assert [r.task for r in plan.unplaced.refusals] == ["large"]
    assert ids(plan, "node") == ["delete:node/aa-0"]
    assert counts == {"run": searched, "of": 1}


def test_a_new_node_waits_for_room():
    """Where a fleet's maximum or an offer's limit is reached, the old node goes first."""
    catalog = [{"instance_type": "one", "cpu": 2, "memory": "4GB", "price": 1.0, "limit": 1}]
    sky = {"name": "sky", "driver": "local", "regions": ["east"], "catalog": catalog}
    aa, bb = ({"name": n, "nodes": 1} for n in ("aa", "bb"))
    world = brought((aa,), (), (), backends=[sky])
    plan = world.plan(wanted((bb,), (), (), backends=[sky]))
    assert action(plan, "create:node/bb-0").needs == ("delete:node/aa-0",)


def test_a_node_that_comes_back_elsewhere_is_of_its_new_backend():
    """A rank and its attachments go to the backend of the new node, not to that of the old one."""
    catalog = [{"instance_type": "one", "cpu": 2, "memory": "4GB", "price": 1.0}]
    sky, lab = (
        {"name": n, "driver": "local", "regions": ["east"], "catalog": catalog} for n in ("sky", "lab")
    )
    fleet = {"name": "aa", "nodes": 1, "backends": ["sky"]}
    world = brought(fleet, (), (SMALL,), backends=[sky, lab])
    moved = wanted({**fleet, "backends": ["lab"], "env": {"A": "1"}}, (), (SMALL,), backends=[sky, lab])
    plan = world.plan(moved)
    assert {a.backend for a in plan.actions if a.op is Op.CREATE and a.address.kind != "reservation"} == {
        "lab"
    }


def test_the_shape_of_actions():
    """The keys of the contract, and their values: ids, before and after, because."""
    plan = brought().plan(wanted(volumes=({**DATA, "size": "2GB"},)))
    data = plan_json(plan)
    assert list(data) == [
        "format_version",
        "project",
        "environment",
        "state",
        "commit",
        "changed",
        "lineage",
        "serial",
        "result",
        "digest",
        "parts",
        "moved",
        "selection",
        "refresh_only",
        "actions",
        "reservations",
        "fallbacks",
        "unplaced",
        "remedies",
        "queued",
        "health",
        "drift",
        "differences",
        "losses",
        "cost",
        "summary",
        "diagnostics",
    ]
    first = data["actions"][0]
    keys = ["id", "op", "address", "reason", "because", "before", "after", "needs", "forget", "ends"]
    assert list(first) == keys
    inputs = {"backend": "local", "prevent_destroy": True, "region": "local", "size": "1GB"}
    assert first == {
        "id": "update:volume/data-0",
        "op": "update",
        "address": "volume/data-0",
        "reason": "changed",
        "because": ["size"],
        "before": inputs,
        "after": {**inputs, "size": "2GB"},
        "needs": [],
        "forget": False,
        "ends": False,
    }


def test_before_the_first_apply():
    """`lineage` is null and `serial` 0."""
    plan = make_plan(wanted(), World().state().__class__(), Inventory(offers={"local": (local_offer(),)}), 0)
    assert (plan.basis.lineage, plan.basis.serial, plan.result) == (None, 0, "changes")


# --------------------------------------------------------------------------------------- golden files


def golden_first():
    """The quickstart: a first plan."""
    return World().plan(wanted())


def golden_changes():
    """Every kind of change at once, in a world of several fleets."""
    gpu = {"name": "gpu", "nodes": "0..3", "resources": {"cpu": 4, "gpu": "H100:4"}, "blocks": "auto"}
    gpu["backends"] = ["local"]
    old = {"name": "old", "nodes": 1, "resources": {"cpu": 1}}
    tasks = (
        TRAIN,
        {"name": "probe", "resources": {"gpu": 1}},
        {"name": "gone", "fleets": ["old"]},
        {"name": "eval", "resources": {"gpu": "2.."}, "tags": {"team": "a"}},
    )
    offers = {"local": (local_offer(),)}
    world = World()
    before = wanted((FLEET, gpu, old), (DATA, {"name": "spare", "prevent_destroy": False}), tasks)
    world.apply(make_plan(before, world.state(), Inventory(offers=offers), world.now))
    world.end("probe-0", RankState.SUCCEEDED)
    world.settle()
    after = wanted(
        ({**FLEET, "env": {"NCCL_DEBUG": "INFO"}}, {**gpu, "tags": {"team": "b"}}),
        ({**DATA, "size": "2GB"},),
        (
            TRAIN,
            {"name": "probe", "resources": {"gpu": 1}, "commands": ["false"]},
            {"name": "eval", "resources": {"gpu": "2.."}, "tags": {"team": "b"}},
            {"name": "huge", "nodes": 4, "resources": {"gpu": "H100:4"}},
        ),
    )
    nodes = {r.address.name: world.readiness(r.address.name) for r in world.of("node")}
    return make_plan(after, world.state(), Inventory(readiness=nodes, offers=offers), world.now)


def golden_faults():
    """A node vanished, another cannot be read, a rank failed."""
    world = brought({**FLEET, "nodes": 4}, ({**DATA, "count": 3},), ({**TRAIN, "nodes": 3},))
    world.gone.add(Address("node", "pair-1"))
    world.sick["pair-3"] = NodeState.UNKNOWN
    world.ranks["train-0"] = RankStatus(state=RankState.FAILED, exit_code=1, cause="exit code 1")
    tasks = ({**TRAIN, "nodes": 3}, {"name": "next", "nodes": 2, "creation_policy": "reuse"})
    return world.plan(wanted({**FLEET, "nodes": 4}, ({**DATA, "count": 3},), tasks))


@pytest.mark.parametrize("case", [golden_first, golden_changes, golden_faults])
def test_golden(case):
    """Whole plans, as JSON and as text."""
    plan = case()
    folder = GOLDEN / case.__name__.removeprefix("golden_")
    for name, text in (
        ("plan.json", to_json(plan_json(plan))),
        ("plan.txt", plan_text(plan, color=False, width=100)),
    ):
        check_golden(folder / name, text)


@pytest.mark.parametrize(
    ("fleet", "tasks"),
    [
        ({**FLEET, "nodes": 100_000}, tuple({"name": f"job-{i}x", "nodes": 50_000} for i in range(3))),
        (FLEET, tuple({"name": f"job-{i}x", "nodes": 2_000} for i in range(101))),
    ],
    ids=["nodes", "ranks"],
)
def test_what_would_take_minutes_is_refused(fleet, tasks):
    """A stranger's few lines must not eat the machine: `plan --offline` runs on pull requests."""
    declared = wanted(fleet, ({**DATA, "count": 4},), tasks)
    plan = World().plan(declared)
    assert (plan.result, [d.code for d in plan.diagnostics], plan.actions) == ("error", ["too-large"], ())


@pytest.mark.parametrize(("fleets", "tasks"), [(26, 1), (2, 600)], ids=["fleets", "sizes"])
def test_a_catalog_times_regions_times_fleets_is_refused(fleets, tasks):
    """A few lines that would take minutes: each fleet looks at each offer, and each size of task as well."""
    catalog = [{"instance_type": f"t{i}", "cpu": i + 1, "memory": "1GB", "price": 1} for i in range(100)]
    regions = [f"r{i}" for i in range(200)]
    declared = project(
        backends=[{"name": "sky", "driver": "local", "regions": regions, "catalog": catalog}],
        fleets=[{"name": f"fleet-{i}x", "nodes": "0.."} for i in range(fleets)],
        tasks=[{"name": f"task-{i}x", "resources": {"memory": f"{i + 1}MB.."}} for i in range(tasks)],
    )
    plan = World().plan(declared)
    assert (plan.result, [d.code for d in plan.diagnostics], plan.actions) == ("error", ["too-large"], ())


def test_a_gang_in_the_places_that_it_has_waits_for_what_changes_of_its_nodes():
    """Its ranks get their addresses, which change with how a host is reached."""
    job = {"name": "job", "nodes": 2, "resources": {"gpu": 8}}
    world = bring(World(), tasks=[job])
    for name in ("job-0", "job-1"):
        del world.records[Address("rank", name)], world.ranks[name]
    found = look(world, fleets=[{**GPU, "tags": {"x": "1"}}], tasks=[job])
    start = next(a for a in found["actions"] if a["id"] == "create:rank/job-0")
    assert start["needs"] == ["update:node/gpu-0", "update:node/gpu-1"]


# ------------------------------------------------------------------------- drained, and made anew by word


def test_a_drained_node_takes_no_new_work_and_finishes_what_runs():
    """It is named in every plan, and in a refusal with the reason and since when."""
    world = brought({**FLEET, "nodes": 2}, (), (SMALL,))
    drain(world, "pair-0", "pair-1")
    more = wanted({**FLEET, "nodes": 2}, (), (SMALL, {**SMALL, "name": "more"}))
    plan = world.plan(more)
    assert ids(plan) == []
    told = {d.address: d.summary for d in plan.diagnostics if d.code == "drained"}
    assert set(told) == {"node/pair-0", "node/pair-1"}
    assert told["node/pair-0"].endswith(f"drained since {SINCE}: bad NIC")
    assert plan.unplaced.refusals[0].code == "no-capacity"
    off = {r.target: (r.code, r.detail) for v in plan.unplaced.refusals[0].ranks for r in v.rejections}
    assert off["node/pair-1"] == ("drained", f"drained since {SINCE}: bad NIC")
    assert "undrain" in str(plan.unplaced.refusals[0].hint)
    assert {n.name: n.state for n in plan.preview.nodes} == {"pair-0": "draining", "pair-1": "draining"}


def test_what_runs_anew_leaves_a_drained_node():
    """A gang that is tried again goes to the nodes that are not drained."""
    task = {"name": "train", "nodes": 2, "retry": True}
    world = brought({**FLEET, "nodes": 3}, (), (task,))
    drain(world, "pair-0")
    desired = wanted({**FLEET, "nodes": 3}, (), (task,))
    assert ids(world.plan(desired)) == []
    end(world, RankState.FAILED, "train-0")
    plan = world.plan(desired)
    assert {r.node for r in plan.reservations if r.status.value != "released"} == {"pair-1", "pair-2"}


def test_a_drained_node_that_cannot_be_reached_says_both():
    world = brought({**FLEET, "nodes": 1}, tasks=())
    drain(world, "pair-0")
    world.sick["pair-0"] = NodeState.UNREACHABLE
    plan = world.plan(wanted({**FLEET, "nodes": 1}, (), (SMALL,)))
    ranks = plan.unplaced.refusals[0].ranks
    (rejection,) = (r for v in ranks for r in v.rejections if r.target == "node/pair-0")
    assert (rejection.code, rejection.detail) == ("not-ready", f"unreachable: drained since {SINCE}: bad NIC")


def test_a_gang_that_was_half_started_is_not_completed_on_a_drained_node():
    """Its places there are given back, and all of it starts elsewhere."""
    world = World()
    desired = wanted({**FLEET, "nodes": 4}, (), ({"name": "train", "nodes": 2},))
    plan = world.plan(desired)
    world.apply(plan, stop_after=len(plan.actions) - 1)
    assert ids(world.plan(desired)) == ["create:rank/train-1"]
    drain(world, "pair-1")
    plan = world.plan(desired)
    placed = {r.node for r in plan.reservations if r.status.value != "released"}
    assert "pair-1" not in placed


@pytest.mark.parametrize("nodes", [2, "0..4"])
def test_a_node_that_is_to_be_replaced_is_made_anew(nodes):
    """It alone, under its name, whatever the fleet's target."""
    world = brought({**FLEET, "nodes": 2}, tasks=())
    drain(world, "pair-1")
    plan = world.plan(wanted({**FLEET, "nodes": nodes}, tasks=()), requested=frozenset({"node/pair-1"}))
    assert ids(plan) == ["delete:node/pair-1", "create:node/pair-1"]
    assert {a.reason for a in plan.actions} == {Reason.REQUESTED}
    world.apply(plan)
    assert codes(world.plan(wanted({**FLEET, "nodes": nodes}, tasks=()))) == set()


def test_the_gang_on_a_node_that_is_to_be_replaced_restarts_as_a_whole():
    """As Terraform replaces what needs a thing that is replaced; volumes stay as they are."""
    world = brought()
    plan = world.plan(wanted(), requested=frozenset({"node/pair-1"}))
    assert ids(plan, "node", "volume") == ["delete:node/pair-1", "create:node/pair-1"]
    assert ids(plan, "rank") == [*gang("delete"), *gang("create")]
    assert action(plan, "delete:rank/train-0").because == ("node/pair-1",)
    world.apply(plan)
    assert ids(world.plan(wanted())) == []


def test_a_node_is_not_replaced_under_ranks_that_have_no_other_place():
    """Nothing is done, and the plan says why."""
    world = brought({**FLEET, "nodes": 2}, (), (SMALL,))
    desired = wanted({**FLEET, "nodes": 2, "max_price": 0.001, "regions": ["x"]}, (), (SMALL,))
    drain(world, "pair-1")
    plan = world.plan(desired, requested=frozenset({"node/pair-0"}))
    assert "delete:node/pair-0" not in ids(plan)
    assert [r.task for r in plan.unplaced.refusals] == ["small"]
    assert "node/pair-0 is not replaced" in str([d.summary for d in plan.diagnostics])


def test_a_protected_fleet_s_node_is_not_replaced_by_word():
    fleet = {**FLEET, "prevent_destroy": True}
    plan = brought(fleet, tasks=()).plan(wanted(fleet, tasks=()), requested=frozenset({"node/pair-1"}))
    assert plan.result == "error"
    assert "(`--replace`)" in plan.diagnostics[0].summary


# ------------------------------------------------------------------------------------------------ pins


def pinned(*names, nodes=1, **more):
    return {**SMALL, "name": "pinned", "nodes": nodes, "instances": list(names), **more}


def test_a_pin_launches_no_node_of_its_name():
    """It names what is there: the fleet could have nine nodes, and gets one of that name only for others."""
    fleet = {**FLEET, "nodes": "0..9"}
    world = brought({**FLEET, "nodes": 2}, tasks=())
    for name, code in (("pair-7", "no-capacity"), ("pair-2", "no-capacity"), ("pair-9", "never-fits")):
        plan = world.plan(wanted(fleet, (DATA,), (pinned(name),)))
        assert ids(plan, "node") == []
        (refusal,) = plan.unplaced.refusals
        assert refusal.code == code
        assert refusal.hint == (
            f"`instances` names what is there, and launches nothing: {name} is not; there are pair-0, pair-1"
        )
    assert ids(World().plan(wanted(fleet, (), (pinned("pair-0"),))), "node") == []


def test_a_pin_may_name_what_the_fleet_launches_for_itself():
    """Those nodes come whatever is placed, under these names and no others."""
    plan = World().plan(wanted({**FLEET, "nodes": "2..9"}, (), (pinned("pair-1"), SMALL)))
    assert ids(plan, "node") == ["create:node/pair-0", "create:node/pair-1"]
    assert {r.task: r.node for r in plan.reservations}["pinned"] == "pair-1"
    plan = World().plan(wanted({**FLEET, "nodes": "2..9"}, (), (pinned("pair-2"),)))
    assert ids(plan, "node") == ["create:node/pair-0", "create:node/pair-1"]
    assert [r.task for r in plan.unplaced.refusals] == ["pinned"]


def test_a_pin_takes_no_name_of_a_node_that_is_launched_for_another_task():
    """Which names those get is no promise."""
    fleet = {**FLEET, "nodes": "0..9"}
    plan = World().plan(wanted(fleet, (), (pinned("pair-0"), {**SMALL, "name": "free"})))
    assert {r.task: r.node for r in plan.reservations} == {"free": "pair-0"}
    assert [r.task for r in plan.unplaced.refusals] == ["pinned"]


def test_pins_launch_no_more_than_their_fleet_owes_itself():
    """Of two tasks that want the whole of one node to come, one waits; no other node is launched for it."""
    whole = {"resources": {"cpu": 2}}
    tasks = (pinned("pair-1", **whole), pinned("pair-1", **whole) | {"name": "second"})
    plan = World().plan(wanted({**FLEET, "nodes": "2..9"}, (), tasks))
    assert ids(plan, "node") == ["create:node/pair-0", "create:node/pair-1"]
    assert [(r.task, r.code) for r in plan.unplaced.refusals] == [("second", "no-capacity")]


def test_a_pinned_task_goes_on_when_its_node_is_made_anew():
    """Its name is that of the same node, above the fleet's target as well."""
    fleet = {**FLEET, "nodes": "0..9"}
    world = brought({**FLEET, "nodes": 2}, (), (pinned("pair-1"),))
    plan = world.plan(wanted({**fleet, "env": {"A": "1"}}, (), (pinned("pair-1"),)))
    assert ids(plan, "node") == ["delete:node/pair-0", "delete:node/pair-1", "create:node/pair-1"]
    assert plan.unplaced.refusals == ()


# ---------------------------------------------------------------------------- what the marks of fields say

SPECS = {"fleet": Fleet, "volume": Volume, "task": Task}
MADE_OF = {"fleet": "node", "volume": "volume", "task": "rank"}
IN_PLACE: dict[str, dict[str, object]] = {
    "fleet": {
        "nodes": "2..9",
        "blocks": "auto",
        "resources": {"cpu": "1.."},
        "backends": ["local"],
        "regions": ["local"],
        "availability_zones": [],
        "instance_types": ["local"],
        "spot_policy": "auto",
        "max_price": 9,
        "idle_duration": "1h",
        "unreachable_duration": "1h",
        "same": "region",
        "fallback": "none",
        "backfill": "any",
        "health": {"strict": True},
        "schedule": {"start": "0 0 * * *", "stop": "59 23 * * *"},
        "tags": {"a": "b"},
        "prevent_destroy": True,
    },
    "volume": {
        "size": "2GB",
        "tags": {"a": "b"},
        "prevent_destroy": True,
        "auto_cleanup_duration": "1h",
    },
    "task": {
        "max_duration": "1h",
        "stop_duration": "1m",
        "priority": 9,
        "queue": True,
        "tags": {"a": "b"},
        "retry": True,
        "same": "region",
        "schedule": {"start": "0 0 * * *", "stop": "59 23 * * *"},
        "spread": "node",
        "fallback": "none",
    },
}
"""Of each kind another value for every field that is marked `InPlace`, but for `ssh_config`."""
MADE_ANEW: dict[str, dict[str, object]] = {
    "fleet": {"placement": "any", "env": {"A": "1"}, "reservation": "cr-1"},
    "volume": {"region": "far", "availability_zone": "z", "volume_type": "fast"},
    "task": {
        "placement": "any",
        "exclusive": True,
        "env": {"A": "1"},
        "working_dir": "/x",
        "resources": {"cpu": "1.."},
        "fleets": ["pair"],
        "creation_policy": "reuse",
        "backends": ["local"],
        "regions": ["local"],
        "spot_policy": "auto",
        "max_price": 9,
        "startup_order": "workers-first",
        "stop_criteria": "master-done",
        "commands": ["false"],
        "isolation": "hard",
    },
}


@pytest.mark.parametrize(
    ("kind", "field", "anew"),
    [(k, f, t is MADE_ANEW) for t in (IN_PLACE, MADE_ANEW) for k, fields in t.items() for f in fields],
)
def test_what_a_change_of_a_field_does(kind, field, anew):
    """It is applied to what is there, or binds only what is made later; or what is there is made anew."""
    words = {"fleets": [FLEET], "volumes": [FREE], "tasks": [TRAIN] if kind == "task" else []}
    world = World()
    world.apply(world.plan(project(**words)))
    assert world.plan(project(**words)).result == "none"
    words[f"{kind}s"] = [{**words[f"{kind}s"][0], field: (MADE_ANEW if anew else IN_PLACE)[kind][field]}]
    plan = world.plan(project(**words))
    assert (MADE_OF[kind] in {a.address.kind for a in plan.actions if a.op is Op.DELETE}) is anew


def test_every_mark_is_meant():
    others = {"ssh_config", "instance_ids", "partition", *Fleet.OF_SLURM}  # of fleets whose nodes are there
    marked = {kind: set(in_place(spec)) - others for kind, spec in SPECS.items()}
    assert marked == {kind: set(fields) for kind, fields in IN_PLACE.items()}
