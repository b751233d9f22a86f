"""Runs one fuzzed project through the real loader and the planner, to findings or a plan.

Shared by `test_fuzz.py` (hypothesis) and `fuzz_atheris.py`.
"""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from declarative.language.loader import load
from declarative.model.codes import CODES, REJECTIONS
from declarative.model.diagnostic import Diagnostic, InvalidError
from declarative.model.resource import Desired
from declarative.model.state import State
from declarative.planner.make import make_plan
from declarative.planner.plan import Plan
from declarative.render.diagnostics import diagnostics_text
from declarative.render.output_json import to_json, validate_json
from declarative.render.plan import plan_text
from declarative.render.plan_document import plan_json
from tests.support.model import NOW, World

BASE: tuple[dict[str, Any], ...] = (
    {
        "type": "project",
        "name": "demo",
        "variables": {"size": "1GB", "ranks": {"type": "number", "default": 2}},
    },
    {
        "type": "backend",
        "name": "lab",
        "driver": "local",
        "regions": ["here", "there"],
        "catalog": [
            {"instance_type": "gpu", "cpu": 8, "memory": "32GB", "gpu": "H100:4", "price": 4.0, "limit": 4},
            {"instance_type": "cpu", "cpu": 4, "memory": "8GB", "spot_price": 0.5, "regions": ["there"]},
        ],
    },
    {
        "type": "fleet",
        "name": "gpu",
        "nodes": "1..3",
        "placement": "cluster",
        "blocks": "auto",
        "resources": {"gpu": "H100:4", "cpu": "4..", "memory": "16GB..64GB"},
        "idle_duration": "30m",
        "max_price": 9,
        "tags": {"team": "a"},
        "env": ["NCCL_DEBUG=INFO"],
    },
    {"type": "fleet", "name": "pool", "nodes": {"min": 0, "target": 1, "max": 2}, "spot_policy": "auto"},
    {"type": "volume", "name": "data", "count": 2, "size": "${{ var.size }}", "region": "here"},
    {"type": "volume", "name": "home", "size": 100, "prevent_destroy": False},
    {
        "type": "task",
        "name": "train",
        "nodes": "${{ var.ranks }}",
        "commands": ["python train.py"],
        "env": {"TOKEN": "${{ env.TOKEN }}", "N": 3},
        "resources": {"gpu": "1.."},
        "volumes": [
            "data-${{ node_rank }}:/data",
            {"name": "tmp-${{ node_rank }}", "path": "/t", "size": "1GB"},
        ],
        "fleets": ["gpu"],
        "max_duration": "1h",
        "startup_order": "workers-first",
    },
    {
        "type": "task",
        "name": "small",
        "commands": ["true"],
        "volumes": [{"name": ["home", "data-0"], "path": "/home"}],
        "priority": 5,
        "resources": {"cpu": "1..2"},
    },
)
"""A project with a bit of everything, which loads and is placed."""


def as_yaml(value: object) -> str:
    """A document in YAML's JSON form: it holds whatever the value holds."""
    return json.dumps(value, ensure_ascii=False).replace("NaN", ".nan").replace("Infinity", ".inf")


def as_file(documents: Sequence[object]) -> bytes:
    """Documents as one file."""
    return "\n---\n".join(map(as_yaml, documents)).encode("utf-8", "surrogatepass")


def loaded(files: Mapping[str, bytes]) -> Desired | tuple[Diagnostic, ...]:
    """What the loader makes of a directory with these files."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return load(folder).desired
    except InvalidError as error:
        return error.diagnostics
    finally:
        shutil.rmtree(folder)


@functools.cache
def applied() -> World:
    """The world after `BASE` was applied."""
    world = World()
    desired = loaded({"a.yaml": as_file(BASE)})
    assert isinstance(desired, Desired), desired
    world.apply(world.plan(desired))
    return world


def try_project(files: Mapping[str, bytes], world: World) -> str:
    """Load and plan from nothing and from `world`: `refused`, or the result of the first plan.

    Whatever comes out has to be fit to be shown; anything else than findings or a plan is raised.
    """
    found = loaded(files)
    if not isinstance(found, Desired):
        assert found
        check(found)
        return "refused"
    first = make_plan(found, State(), world.inventory(found), NOW)
    for plan in (first, world.plan(found)):
        check_plan(plan)
    return first.result


def check(found: Sequence[Diagnostic]) -> None:
    """Findings can be shown, are bounded, and every one has a code, a text and a hint."""
    for item in found:
        # `schema` is the code for a difference between the published schema and the decoder.
        assert item.code in CODES, item
        assert item.code != "schema", item
        assert item.summary, item
        assert len(item.summary) < 400, item
        assert item.hint, item
    assert diagnostics_text(found, color=False)
    assert to_json(validate_json(False, found))


def check_plan(plan: Plan) -> None:
    """A plan can be shown, and its parts go together."""
    check(plan.diagnostics) if plan.diagnostics else None
    assert to_json(plan_json(plan))
    assert plan_text(plan, color=False, width=100)
    ids = [action.id for action in plan.actions]
    assert len(ids) == len(set(ids))
    assert all(set(action.needs) <= set(ids) for action in plan.actions)
    for refusal in plan.unplaced.refusals:
        assert {r.code for rank in refusal.ranks for r in rank.rejections} <= set(REJECTIONS)
