"""Rendering: texts against golden files (`FLEETFORM_ACCEPT=1` rewrites them), JSON against the contract."""

import io
import json
import os
import re
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.diagnostic import Diagnostic, Severity, Span
from declarative.placement import RankVerdict, Refusal, Rejection, Verdict
from declarative.plan import Action, Cost, Drift, NodePreview, Op, Plan, Reason, Reservation, ReservationStatus
from declarative.render import (
    FleetView,
    NodeView,
    Progress,
    RankView,
    StatusView,
    TaskView,
    VolumeView,
    diagnostics_json,
    diagnostics_text,
    plan_json,
    plan_text,
    report_json,
    report_text,
    state_text,
    status_json,
    status_text,
    to_json,
    to_line,
    use_color,
    validate_json,
    width,
)
from declarative.render.actions import together
from declarative.render.blocks import Row, map_lines
from declarative.render.progress import duration
from declarative.render.text import Paint, cells, clip, ranges
from declarative.state import Address, Record

GOLDEN = Path(__file__).parent / "golden" / "render"
ESC = "\x1b"
EVIL = f"{ESC}]0;owned\a{ESC}[2J\r\nPlan: 0 to create\x9b31m\u202egnp\u2028\x7f\ud800"


def golden(name, text):
    """Compare with the file, or write it when told so."""
    path = GOLDEN / name
    if os.environ.get("FLEETFORM_ACCEPT"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"if it is meant: FLEETFORM_ACCEPT=1 pytest {__file__}"


def act(op, address, reason=Reason.NEW, **more):
    return Action(op=op, address=Address.parse(address), reason=reason, **more)


def volume(**more):
    return {"backend": "local", "region": "local", "size": "1GB", "prevent_destroy": True, **more}


def node(**more):
    resources = {"cpu": 2, "memory_mib": 2048, "gpus": 0}
    base = {"fleet": "pair", "backend": "local", "region": "local", "instance_type": "local", "price": 1.23}
    return {**base, "resources": resources, "blocks": 2, "placement": "cluster", **more}


def rank(number=0, task="train", **more):
    env = {"NCCL_DEBUG": "INFO", "HF_TOKEN": "${{ env.HF_TOKEN }}", "AUTH": "Bearer ${{ env.KEY }}"}
    commands = ["pip install -r requirements.txt", "torchrun --nnodes $FLEETFORM_NODES_NUM " + "--flag " * 20]
    base = {"task": task, "rank": number, "commands": commands, "nodes": 2, "env": env}
    return {**base, "resources": {"cpu": "2", "memory": "1GB.."}, "volumes": {"/data": [f"data-{number}"]}, **more}


def reserved(number=0, task="train", **more):
    base = {"task": task, "rank": number, "node": f"pair-{number}", "fleet": "pair", "new_node": True}
    base |= {"blocks": (0, 1), "total_blocks": 2, "volumes": {"/data": f"data-{number}"}, "backend": "local"}
    base |= {"region": "local", "zone": None, "instance_type": "local", "price": 1.23}
    return Reservation(**{**base, "status": ReservationStatus.NEW, **more})


def preview(number=0, **more):
    base = {"name": f"pair-{number}", "fleet": "pair", "total": 2, "status": "new", "state": "pending"}
    return NodePreview(**{**base, "holders": dict.fromkeys((0, 1), f"rank/train-{number}"), **more})


def create_plan(count=2):
    """A first plan: volumes, nodes, reservations, attachments, ranks."""
    numbers = range(count)
    places = [{"task": "train", "rank": i, "node": f"pair-{i}", "blocks": [0, 1], "total_blocks": 2} for i in numbers]
    attached = [
        {"task": "train", "rank": f"train-{i}", "node": f"pair-{i}", "volume": f"data-{i}", "path": "/data"}
        for i in numbers
    ]
    return Plan(
        lineage=None,
        serial=0,
        actions=(
            *(act(Op.CREATE, f"volume/data-{i}", after=volume()) for i in numbers),
            *(act(Op.CREATE, f"node/pair-{i}", after=node(), needs=(f"create:volume/data-{i}",)) for i in numbers),
            *(act(Op.CREATE, f"reservation/train-{i}", after=places[i]) for i in numbers),
            *(act(Op.CREATE, f"attachment/train-{i}.data-{i}", after=attached[i]) for i in numbers),
            *(act(Op.CREATE, f"rank/train-{i}", after=rank(i)) for i in numbers),
        ),
        reservations=tuple(reserved(i) for i in numbers),
        cost=Cost(before=0.0, after=1.23 * count),
        nodes=tuple(preview(i) for i in numbers),
    )


def replace_plan():
    """An update, a removal, replacements for a field of its own and for what is needed."""
    grown = {"before": volume(tags={"owner": "a", "old": "x"}), "after": volume(size="2GB", tags={"owner": "b"})}
    moved = {"before": node(env={"A": "1"}), "after": node(env={"A": "2", "T": "${{ env.T }}"})}
    place = {"task": "train", "rank": 0, "node": "pair-0", "blocks": [0, 1], "total_blocks": 2}
    old = rank(commands=["echo a", "echo b", "echo c"], env={"K": "${{ env.OLD }}", "L": "1"}, working_dir="/a")
    new = rank(commands=["echo a", "echo B", "echo c"], env={"K": "${{ env.NEW }}", "L": "1"})
    why = ("commands", "env", "working_dir")
    both = {"reason": Reason.CASCADE, "because": ("node/pair-0",)}
    return Plan(
        lineage="3f1c",
        serial=7,
        actions=(
            act(Op.DELETE, "rank/gone-0", Reason.REMOVED, before=rank(task="gone")),
            act(Op.DELETE, "rank/train-0", Reason.CHANGED, because=why, before=old),
            act(Op.DELETE, "rank/wait-0", Reason.REQUESTED, before=old),
            act(Op.DELETE, "reservation/train-0", before=place, **both),
            act(Op.DELETE, "node/old-0", Reason.REMOVED, before=node(fleet="old")),
            act(Op.DELETE, "node/pair-0", Reason.CHANGED, because=("env",), before=moved["before"]),
            act(Op.DELETE, "node/pair-3", Reason.SURPLUS, because=("nodes",), before=node()),
            act(Op.DELETE, "node/pair-4", Reason.MISMATCH, because=("max_price",), before=node(price=40)),
            act(Op.DELETE, "volume/scratch", Reason.REMOVED, before=volume()),
            act(Op.UPDATE, "volume/data-0", Reason.CHANGED, because=("size", "tags"), **grown),
            act(Op.CREATE, "node/pair-0", Reason.CHANGED, because=("env",), after=moved["after"]),
            act(Op.UPDATE, "node/pair-1", Reason.CHANGED, because=("blocks",), before=node(), after=node(blocks=1)),
            act(Op.CREATE, "node/pair-4", Reason.MISMATCH, because=("max_price",), after=node(price=2)),
            act(Op.CREATE, "reservation/train-0", after=place, **both),
            act(Op.CREATE, "reservation/wait-0", Reason.REQUESTED, after=place | {"task": "wait"}),
            act(Op.CREATE, "rank/train-0", Reason.CHANGED, because=why, after=new),
            act(Op.CREATE, "rank/wait-0", Reason.REQUESTED, after=old),
        ),
        reservations=(
            reserved(0, "gone", status=ReservationStatus.RELEASED, price=None, new_node=False, volumes={}),
            reserved(0, blocks=(0,), volumes={"/data": "data-0", "/scratch": "scratch-0"}),
            reserved(1, new_node=False, status=ReservationStatus.KEPT),
        ),
        cost=Cost(before=4.92, after=None),
        nodes=(
            preview(0, name="old-0", status="deleted", holders={}),
            preview(0, holders={0: "rank/train-0"}),
            preview(1, status="kept", state="unreachable"),
            preview(3, status="deleted", holders={}),
            preview(4, holders={}),
        ),
    )


def refusals():
    busy = [
        Rejection(target=f"node/gpu-{i}", code="busy", detail=f"wanted 8 blocks, {i} of 8 idle", short={"blocks": 8 - i})
        for i in range(5)
    ]
    small = Rejection(
        target="offer/aws:us-east-1a:g4 (fleet/gpu)",
        code="too-small",
        detail="memory_mib: wanted 64GB.., has 16GB",
        short={"memory_mib": 49152, "gpu": 7},
    )
    price = Rejection(target="offer/aws:x", code="price", detail="50 USD/h; the task allows 40", short={"price": 10.0})
    late = Rejection(target="node/gpu-9", code="not-ready", detail="unknown: not observed")
    return (
        Refusal(
            task="big",
            code="never-fits",
            summary="can never fit: 4 whole idle nodes wanted, 1 found",
            hint="widen the range in the task's `resources`",
            ranks=(
                RankVerdict(rank=0, verdict=Verdict.FITS),
                RankVerdict(rank=1, verdict=Verdict.CAUSE, rejections=(small, price, late, *busy)),
                RankVerdict(rank=2, verdict=Verdict.NOT_TRIED),
                RankVerdict(rank=3, verdict=Verdict.NOT_TRIED),
            ),
        ),
        Refusal(
            task="one",
            code="no-capacity",
            summary="does not fit now: 1 place wanted, 0 found",
            hint=None,
            ranks=(RankVerdict(rank=0, verdict=Verdict.CAUSE, rejections=(late, small)),),
        ),
    )


def drift_plan():
    return Plan(
        lineage="3f1c",
        serial=7,
        drift=(
            Drift(address="volume/data-1", change="gone", detail="not listed by `local`"),
            Drift(address="rank/train-0", change="orphan", detail="made by a run that was cut off; adopted"),
        ),
        vanished=("volume/data-1", "volume/data-2"),
        actions=(act(Op.CREATE, "volume/data-1", Reason.GONE, after=volume()),),
    )


def unplaced_plan():
    held = {i: "rank/train-0" for i in range(3)} | {i: "rank/eval-0" for i in range(5, 8)}
    return Plan(
        lineage="3f1c",
        serial=7,
        unplaced=refusals(),
        cost=Cost(before=2.0, after=2.0),
        nodes=(
            preview(0, name="gpu-0", total=8, holders=held, status="kept", state="ready"),
            preview(1, name="gpu-10", total=96, holders={i: f"rank/job-{i}" for i in range(90)}, status="kept", state="ready"),
            preview(2, name="small", total=1, holders={}, status="kept", state="ready"),
        ),
    )


PLANS = {
    "create": create_plan(),
    "many": create_plan(40),
    "replace": replace_plan(),
    "drift": drift_plan(),
    "unplaced": unplaced_plan(),
    "nothing": Plan(lineage="3f1c", serial=7, nodes=(preview(status="kept", state="ready"),)),
}


@pytest.mark.parametrize("name", PLANS)
def test_plan_text(name):
    golden(f"plan-{name}.txt", plan_text(PLANS[name], color=False, width=100))
