"""Projects on one backend with a catalog of H100 nodes, and their plans as the JSON that scripts read."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from declarative.model.resource import Desired
from declarative.planner.plan import Basis, Plan
from declarative.render.plan_document import plan_json
from tests.support.model import World, project, set_limits

GROUPS = {
    "basis": ("lineage", "serial", "observed_at", "offline"),
    "unplaced": ("refusals", "waiting", "starts"),
    "observed": ("drift", "vanished", "ended", "unfit"),
    "preview": ("nodes", "fallbacks", "suggestions", "backends", "cost"),
}
Words = Mapping[str, Any]
Found = dict[str, Any]

H100 = {"instance_type": "h100x8", "cpu": 96, "memory": "1TB", "gpu": "H100:8", "price": 80.0}
GPU = {"name": "gpu", "nodes": 2, "placement": "cluster", "blocks": 8}


def plan_of(**parts: Any) -> Plan:
    """A plan with some parts, each by its own name whichever group it is in."""
    return with_parts(Plan(basis=Basis(lineage=None, serial=0)), **parts)


def with_parts(plan: Plan, **parts: Any) -> Plan:
    """The plan with other parts, each by its own name."""
    for group, names in GROUPS.items():
        found = {name: parts.pop(name) for name in names if name in parts}
        plan = replace(plan, **{group: replace(getattr(plan, group), **found)})
    return replace(plan, **parts)


def declared(
    fleets: Sequence[Words] = (GPU,),
    tasks: Sequence[Words] = (),
    volumes: Sequence[Words] = (),
    catalog: Sequence[Words] = (H100,),
    **more: Any,
) -> Desired:
    """A project; `more` are `limits`, and fields of the backend, whose only region is `east` unless it says
    otherwise.
    """
    limits = more.pop("limits", {})
    sky = {"name": "sky", "driver": "local", "regions": ["east"], "catalog": list(catalog), **more}
    return project(backends=[sky], fleets=fleets, tasks=tasks, volumes=volumes, limits=limits)


def look(world: World, *args: Any, **kwargs: Any) -> Found:
    """The plan's JSON."""
    return plan_json(world.plan(declared(*args, **kwargs)))


def bring(world: World, *args: Any, **kwargs: Any) -> World:
    """Plan and apply, in any order that the needs allow; nothing is left to do then."""
    return carry_out(world, declared(*args, **kwargs))


def carry_out(world: World, desired: Desired) -> World:
    """As `bring`, of a project."""
    set_limits(world, desired)
    plan = world.plan(desired)
    assert plan.result != "error", plan.diagnostics
    world.apply(plan, random.Random(1))
    assert plan_json(world.plan(desired))["actions"] == []
    return world


def places(found: Found) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Rank → node and blocks, of those that hold or will hold them."""
    kept = [r for r in found["reservations"] if r["status"] != "released"]
    return {f"{r['task']}-{r['rank']}": (r["node"], tuple(r["blocks"])) for r in kept}


def created(found: Found, kind: str = "node") -> list[str]:
    """The addresses of one kind that the plan creates."""
    return [a["address"] for a in found["actions"] if a["op"] == "create" and a["address"].startswith(kind)]


def refused(found: Found) -> Found:
    """The one refusal."""
    assert len(found["unplaced"]) == 1, found["unplaced"]
    refusal: Found = found["unplaced"][0]
    return refusal


def rejections(refusal: Found) -> dict[str, Found]:
    """Target → rejection, of the rank that is the cause."""
    causes = [v for v in refusal["ranks"] if v["verdict"] == "cause"]
    assert len(causes) == 1
    return {r["target"]: r for r in causes[0]["rejections"]}


def codes(refusal: Found) -> dict[str, str]:
    """Target → code, of the rank that is the cause."""
    return {target: r["code"] for target, r in rejections(refusal).items()}


def verdicts(refusal: Found) -> list[str]:
    """The verdict on each rank."""
    return [v["verdict"] for v in refusal["ranks"]]


def small(count: int, gpus: int = 1, **words: Any) -> list[dict[str, Any]]:
    """So many tasks of so many GPUs each."""
    return [{"name": f"small-{i}", "resources": {"gpu": gpus}, **words} for i in range(count)]
