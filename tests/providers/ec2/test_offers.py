"""EC2's offers in a plan: zones, prices and their date, an added `catalog`, spot."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from declarative.model.inputs import data_of
from declarative.model.resource import Offer, catalog_offers, merge_offers
from declarative.model.spec.backend import Network
from declarative.planner.make import make_plan
from declarative.planner.plan import Op
from declarative.provider import PermanentError
from declarative.render.plan import prices_line
from providers.cloud import cloud
from tests.providers.ec2.run import config
from tests.support.model import World, project

ZONES = tuple(f"us-east-1{letter}" for letter in "abcdef")
AWS = {"name": "aws", "driver": "ec2", "regions": ["us-east-1"]}
FLEET = {"name": "gpu", "nodes": 2, "backends": ["aws"], "resources": {"gpu": "H100:8"}}


def reported(**more):
    return cloud(config(9, Path(), endpoint=None, **more)).offers()


def planned(world, fleet, catalog=(), **more):
    """The plan of one fleet with the offers that there are of EC2."""
    desired = project(backends=[{**AWS, "catalog": list(catalog)}], fleets=[fleet], **more)
    offers = {"aws": merge_offers(catalog_offers(desired.backends["aws"]), reported())}
    return make_plan(desired, world.state(), replace(world.inventory(desired), offers=offers), world.now)


def made(plan):
    """The inputs of the nodes that a plan makes."""
    return [data_of(a.after) for a in plan.actions if a.op is Op.CREATE and a.address.kind == "node"]


def test_where_nodes_have_subnets_those_zones_are_offered():
    subnets = {"us-east-1b": "subnet-1", "us-west-2a": "subnet-2"}
    found = reported(regions=("us-east-1", "us-west-2", "eu-west-1"), network=Network(subnets=subnets))
    assert {o.zone for o in found} == set(subnets)
    with pytest.raises(PermanentError, match="names us-east-1, which is no zone") as caught:
        reported(network=Network(subnets={"us-east-1": "subnet-1"}))
    assert caught.value.about == "network.subnets"


def test_prices_have_the_day_that_they_are_of():
    """Those that are known. What spot costs is not."""
    found = [o for o in reported() if o.instance_type in ("p5.48xlarge", "p6-b200.48xlarge")]
    assert {(o.spot, o.price, o.priced_on) for o in found if o.instance_type == "p5.48xlarge"} == {
        (False, 98.32, "2025-03-02"),
        (True, None, None),
    }
    assert {(o.price, o.priced_on) for o in found if o.instance_type != "p5.48xlarge"} == {(None, None)}


def test_the_disk_of_nodes_is_what_requests_are_measured_by():
    """Unless it is set, nodes are given 100 GiB, whatever their image has."""
    assert {o.shape.disk_mib for o in reported()} == {100 * 1024}
    assert {o.shape.disk_mib for o in reported(options={"disk_size": 200})} == {200 * 1024}
    with pytest.raises(PermanentError, match="`disk_size` is in GiB, and cannot be 0"):
        reported(options={"disk_size": 0})


NEGOTIATED = {"instance_type": "p5.48xlarge", "cpu": 192, "memory": "2TB", "gpu": "H100:8", "price": 60.0}
COUNTED = {"instance_type": "dl9.test", "cpu": 64, "memory": "1TB", "gpu": "H100:8", "price": 50.0}


def test_a_negotiated_price_holds_in_all_zones_of_the_type():
    """And its day is not that of the catalog. What the driver does not know stands beside it, in no zone."""
    found = merge_offers(
        catalog_offers(project(backends=[{**AWS, "catalog": [NEGOTIATED, COUNTED]}]).backends["aws"]),
        reported(),
    )
    mine = [o for o in found if o.instance_type == "p5.48xlarge"]
    assert [(o.zone, o.price, o.spot, o.priced_on) for o in mine] == [(z, 60.0, False, None) for z in ZONES]
    (other,) = [o for o in found if o.instance_type == "dl9.test"]
    assert (other.zone, other.shape.gpus, other.shape.gpu_name) == (None, 8, "H100")
    assert [o.price for o in found if o.instance_type == "p4d.24xlarge" and not o.spot] == [36.0499] * 6


def test_a_declared_offer_is_in_no_zone_of_another_region():
    """Zones of a backend are those of all of its regions."""
    declared = {**AWS, "regions": ["us-east-1", "us-west-2"], "catalog": [{**NEGOTIATED, "spot_price": 20.0}]}
    backend = project(backends=[{**declared, "availability_zones": ["us-east-1a", "us-west-2b"]}]).backends[
        "aws"
    ]
    zones, regions = ("us-east-1a", "us-west-2b"), ("us-east-1", "us-west-2")
    found = merge_offers(catalog_offers(backend), reported(regions=regions, zones=zones))
    mine = [o for o in found if o.instance_type == "p5.48xlarge"]
    assert {(o.region, o.zone) for o in mine} == set(zip(regions, zones, strict=True))
    assert {(o.spot, o.price, o.bids) for o in mine} == {(False, 60.0, False), (True, 20.0, True)}


def test_what_is_declared_beside_offers_without_zones_stays_as_it_is():
    one = Offer(backend="b", region="r", instance_type="t", shape=reported()[0].shape, price=1.0)
    other = Offer(backend="b", region="r", instance_type="u", shape=one.shape)
    assert merge_offers((one,), (other,)) == (one, other)


def test_a_plan_says_of_which_day_its_prices_are(project):
    """Also of nodes that are there, and not of prices that were declared; scripts see what they did."""
    backend = {
        **AWS,
        "type": "backend",
        "image": "ami-1",
        "credentials": {"key": "AWS_NO_KEY", "secret": "AWS_NO_SECRET"},
    }
    fleet = {"type": "fleet", **FLEET}
    project.declare(backend, fleet)
    out = project.run("plan", "--offline").out
    assert "Cost: 0.00 → 196.64 USD/h (the least possible)\nPrices of aws as of 2025-03-02 (" in out
    plan = project.run("plan", "--offline", "--json").json
    assert list(plan["cost"]) == [
        "hourly_before",
        "hourly_after",
        "hourly_at_most",
        "bound_hourly",
        "currency",
        "excludes",
        "fleets",
    ]
    project.declare({**backend, "catalog": [NEGOTIATED]}, fleet)
    out = project.run("plan", "--offline").out
    assert "Cost: 0.00 → 120.00 USD/h" in out
    assert "as of" not in out


def test_prices_older_than_90_days_say_how_old_they_are():
    fresh = prices_line({"aws": "2025-03-02"}, date(2025, 5, 31))
    assert fresh.startswith("Prices of aws as of 2025-03-02; what is billed")
    old = prices_line({"aws": "2025-03-02", "gcp": "2025-05-31"}, date(2025, 6, 1))
    assert old.startswith(
        "Prices of aws as of 2025-03-02 (91 days ago), of gcp as of 2025-05-31; what is billed"
    )


def test_a_plan_warns_of_gpus_with_a_small_disk(project):
    """Not of what has none, nor where the default is left as it is."""
    backend = {
        **AWS,
        "type": "backend",
        "image": "ami-1",
        "credentials": {"key": "AWS_NO_KEY", "secret": "AWS_NO_SECRET"},
    }
    small, fleet = {**backend, "options": {"disk_size": 20}}, {"type": "fleet", **FLEET}
    project.declare(small, fleet)
    warned = project.run("plan", "--offline").err
    assert "warning[small-disk]: fleet/gpu launches GPUs with a disk of 20 GB" in warned
    project.declare(small, {**fleet, "resources": {"cpu": "4.."}, "instance_types": []})
    assert "small-disk" not in project.run("plan", "--offline").err
    project.declare(backend, fleet)
    assert "small-disk" not in project.run("plan", "--offline").err


# ---------------------------------------------------------------------------------------------- spot

SPOT = {**FLEET, "nodes": 1, "spot_policy": "spot"}


@pytest.mark.parametrize("resources", [{"gpu": "1.."}, {"cpu": 16, "memory": "64GB.."}, {"gpu": "H100:8"}])
def test_the_spot_node_is_that_which_is_cheapest_on_demand(resources):
    """What spot costs is not known; what is cheap on demand is so as spot, more often than what is small."""

    def chosen(policy):
        fleet = {**FLEET, "nodes": 1, "resources": resources, "spot_policy": policy}
        (node,) = made(planned(World(), fleet))
        return node["instance_type"], bool(node.get("spot"))

    kind, _ = chosen("on-demand")
    assert chosen("spot") == (kind, True)


def test_spot_keeps_a_price_cap_though_its_price_is_unknown():
    """EC2 gets the cap, and ends the node above it."""
    (capped,) = made(planned(World(), {**SPOT, "max_price": 30}))
    assert (capped["spot"], capped["max_price"], capped.get("price")) == (True, 30, None)
    (free,) = made(planned(World(), SPOT))
    assert "max_price" not in free
    (dear,) = made(planned(World(), {**FLEET, "nodes": 1, "max_price": 99}))
    assert "max_price" not in dear


def test_the_cap_of_a_task_is_kept_by_that_of_its_fleet():
    """Before the node is made, and once it is there."""
    fleet, world = {**SPOT, "nodes": "0..1", "max_price": 30}, World()
    task = {"name": "train", "resources": {"gpu": "H100:8"}, "spot_policy": "auto"}
    for cap, fits in ((30, True), (20, False)):
        plan = planned(world, fleet, tasks=[{**task, "max_price": cap}])
        assert (len(made(plan)), len(plan.unplaced.refusals)) == ((1, 0) if fits else (0, 1))
    (rank,) = plan.unplaced.refusals[0].ranks
    assert {r.code for r in rank.rejections} == {"price"}
    world.apply(planned(world, fleet, tasks=[{**task, "max_price": 30}]))
    assert planned(world, fleet, tasks=[{**task, "max_price": 30}]).actions == ()
    assert planned(world, fleet, tasks=[{**task, "max_price": 40, "name": "other"}]).unplaced.refusals == ()
    assert planned(world, fleet, tasks=[{**task, "max_price": 20, "name": "other"}]).unplaced.refusals


def test_a_cap_that_goes_below_what_a_node_was_asked_for_with_means_another_node():
    world = World()
    world.apply(planned(world, {**SPOT, "max_price": 30}))
    for cap in (30, 40, None):
        fleet = {**SPOT, "max_price": cap} if cap else SPOT
        assert planned(world, fleet).actions == ()
    again = planned(world, {**SPOT, "max_price": 20})
    assert [a.because for a in again.actions if a.op is Op.DELETE] == [("max_price",)]
    assert [inputs["max_price"] for inputs in made(again)] == [20]


def test_a_reservation_is_on_demand_and_of_its_nodes():
    """Another one means other nodes."""
    world = World()
    fleet = {**FLEET, "nodes": 1, "spot_policy": "auto", "reservation": "cr-1"}
    (inputs,) = made(planned(world, fleet))
    assert (inputs["reservation"], inputs.get("spot")) == ("cr-1", None)
    world.apply(planned(world, fleet))
    assert planned(world, fleet).actions == ()
    again = planned(world, {**fleet, "reservation": "cr-2"})
    assert [a.because for a in again.actions if a.op is Op.DELETE] == [("reservation",)]
