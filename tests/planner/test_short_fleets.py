"""The message for a fleet that cannot reach its size names the limit that is too low, and what to write."""

from dataclasses import replace

import pytest

from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.resource import catalog_offers
from declarative.planner.make import make_plan
from tests.support.model import World, local_offer, project

CATALOG = [
    {"instance_type": "hgx.big", "cpu": 96, "memory": "1TB", "gpu": "H100:8", "price": 20},
    {"instance_type": "l4.small", "cpu": 8, "memory": "32GB", "gpu": "L4:1", "price": 1},
]
BACKEND = {"name": "aws", "driver": "ec2", "regions": ["us-east-1"], "catalog": CATALOG}


def refused(fleet, backend=BACKEND, *, offers=None, said=()):
    """The one `no-offer` of a fleet on a backend that offers its catalog."""
    fleet = {"name": "gpu", "nodes": 2, "backends": ["aws"], **fleet}
    desired = project(backends=[backend], fleets=[fleet])
    world = World()
    found = {"aws": catalog_offers(desired.backends["aws"])} if offers is None else offers
    inventory = replace(world.inventory(desired), offers=found, diagnostics=tuple(said))
    (one,) = [
        d for d in make_plan(desired, world.state(), inventory, world.now).diagnostics if d.code == "no-offer"
    ]
    start = "no offer for 2 of the fleet's nodes"
    assert one.summary.startswith(start)
    return one.summary.removeprefix(start), one.hint


@pytest.mark.parametrize(
    ("fleet", "why", "hint"),
    [
        ({"regions": ["us-est-1"]}, ": none is in its `regions`", "did you mean `us-east-1`?"),
        (
            {"regions": ["us-west-2"]},
            ": none is in its `regions`",
            "backend aws is used in us-east-1: write one of these, or widen its `regions`",
        ),
        ({"instance_types": ["hgx.bog"]}, ": none is in its `instance_types`", "did you mean `hgx.big`?"),
        ({"instance_types": ["q"]}, ": none is in its `instance_types`", "there are hgx.big, l4.small"),
        ({"resources": {"gpu": "H10:8"}}, ": none has a GPU called H10", "did you mean `H100`?"),
        ({"resources": {"gpu": "H100:16"}}, "hgx.big, has gpu 8 where 16 is asked for", "widen"),
        ({"resources": {"cpu": "200.."}}, "hgx.big, has cpu 96 where 200.. is asked for", "widen"),
        ({"spot_policy": "spot"}, ": none of those that fit is spot", "`spot_policy`"),
        (
            {"resources": {"gpu": "H100:8"}, "max_price": 5},
            ": the cheapest that fits, hgx.big, costs 20 USD an hour, more than its `max_price`",
            "write `max_price: 20`",
        ),
    ],
)
def test_the_limit_that_leaves_nothing_is_named(fleet, why, hint):
    summary, said = refused(fleet)
    assert summary.endswith(why)
    assert said.startswith(hint) or hint in said


def test_what_costs_an_unknown_price_is_within_no_limit():
    unknown = {**BACKEND, "catalog": [{k: v for k, v in CATALOG[0].items() if k != "price"}]}
    summary, hint = refused({"max_price": 5}, unknown)
    assert "is not known" in summary
    assert "remove `max_price`" in hint


def test_a_backend_that_offers_nothing_is_named():
    summary, hint = refused({}, {k: v for k, v in BACKEND.items() if k != "regions"}, offers={})
    assert (summary, hint) == (
        ": backend aws offers nothing, and names no `regions`",
        "write `regions: […]` in backend aws",
    )
    summary, _ = refused({}, {**BACKEND, "regions": ["us-est-1"]}, offers={})
    assert summary == ": backend aws offers nothing in us-est-1"


def test_a_backend_that_could_not_be_read_is_no_fault_of_the_fleet():
    unread = Diagnostic(
        code="backend-unreadable", summary="no", hint="", address="backend/aws", severity=Severity.WARNING
    )
    summary, hint = refused({}, offers={}, said=[unread])
    assert summary == ": what backend aws offers could not be read"
    assert "backend/aws" in hint
    # Its catalog is in the regions that it names, and one of these may be what was mistyped.
    wrong = {**BACKEND, "regions": ["us-esat-1"]}
    assert refused({"regions": ["us-east-1"]}, wrong, said=[unread]) == (summary, hint)


RACK = {"name": "rack", "driver": "ssh"}
HERE = {"name": "here", "driver": "local"}


@pytest.mark.parametrize(
    ("fleet", "backends", "codes"),
    [
        ({"resources": {"gpu": "H100:8"}}, [], ["no-backend"]),
        ({"resources": {"gpu": 1}}, [RACK], ["no-backend"]),
        ({"resources": {"gpu": "0..8"}}, [], []),
        ({"resources": {"cpu": 2}}, [], []),
        ({"resources": {"gpu": 1}, "backends": ["local"]}, [], []),
        ({"resources": {"gpu": 1}}, [HERE], []),
        ({"resources": {"gpu": 1}}, [{**HERE, "name": "local"}], []),
    ],
)
def test_gpus_are_rehearsed_on_this_machine_only_where_that_is_asked_for(fleet, backends, codes):
    """Without a backend a fleet is on this machine, unless it asks for GPUs: then nothing is launched."""
    desired = project(backends=backends, fleets=[{"name": "gpu", "nodes": 2, **fleet}])
    world = World()
    offers = {name: (replace(local_offer(), backend=name),) for name in ("local", "here")}
    plan = make_plan(desired, world.state(), replace(world.inventory(desired), offers=offers), world.now)
    assert [d.code for d in plan.diagnostics if d.severity is Severity.ERROR] == codes
    assert len(plan.preview.nodes) == (0 if codes else 2)


REGIONS = {**BACKEND, "regions": ["us-east-1", "eu-west-1"]}


def remarks(fleet, *, task=None, backend=REGIONS):
    """The messages for a fleet of two nodes, and for a task, and whether the fleet gets its nodes."""
    tasks = [{"name": "train", "commands": ["date"], **task}] if task else []
    fleet = {"name": "gpu", "nodes": 2, "backends": ["aws"], **fleet}
    desired = project(backends=[backend], fleets=[fleet], tasks=tasks)
    world = World()
    inventory = replace(
        world.inventory(desired), offers={"aws": catalog_offers(desired.backends["aws"])}, diagnostics=()
    )
    return make_plan(desired, world.state(), inventory, world.now)


@pytest.mark.parametrize("region", ["US-EAST-1", "us-East-1"])
def test_regions_are_compared_without_case(region):
    """By fleets, by tasks and by the backend's own volumes; zones as well."""
    plan = remarks({"regions": [region]}, task={"regions": [region], "creation_policy": "reuse"})
    assert plan.diagnostics == ()
    assert plan.unplaced.refusals == ()
    assert len(plan.preview.nodes) == 2


def test_a_region_that_no_backend_has_is_named():
    """Beside existing ones it has no effect, which nobody would notice."""
    plan = remarks({"regions": ["us-east-1", "eu-wset-1"]}, task={"regions": ["us-east-1", "ap-south-1"]})
    said = [(d.code, d.severity, d.address, d.summary, d.hint) for d in plan.diagnostics]
    warning = ("unknown-region", Severity.WARNING)
    assert said == [
        (
            *warning,
            "fleet/gpu",
            "no backend of fleet/gpu has a region `eu-wset-1`",
            "did you mean `eu-west-1`?",
        ),
        (
            *warning,
            "task/train",
            "no backend of task/train has a region `ap-south-1`",
            "there are eu-west-1, us-east-1; name it in the `regions` of a backend, or remove it",
        ),
    ]


def test_a_backend_that_offers_nothing_has_any_region():
    """A backend that cannot be read is not an error."""
    plan = remarks({"regions": ["us-wset-9"], "nodes": "0.."}, backend={**REGIONS, "catalog": []})
    assert "unknown-region" not in {d.code for d in plan.diagnostics}
