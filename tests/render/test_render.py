"""Rendering: texts against golden files (`FLEETFORM_ACCEPT=1` rewrites them), JSON against the contract."""

import io
import json
import re
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.apply.failover import Move
from declarative.apply.graph_walk import ActionResult, Outcome
from declarative.model.blocks import Shape
from declarative.model.diagnostic import Diagnostic, Severity, Span
from declarative.model.inputs import KINDS, RankInputs, data_of, known
from declarative.model.state import Address, Record
from declarative.model.text import host_lists, ranges
from declarative.placement.problem import RankVerdict, Refusal, Rejection, Verdict
from declarative.planner.inventory import Drift, Health
from declarative.planner.plan import Action, Cost, NodePreview, Op, Reason, Reservation, ReservationStatus
from declarative.render.diagnostics import diagnostics_text
from declarative.render.html import plan_html
from declarative.render.listings import state_text
from declarative.render.markdown import plan_markdown
from declarative.render.output_json import diagnostics_json, to_json, to_line, validate_json
from declarative.render.plan import plan_text
from declarative.render.plan_document import plan_json
from declarative.render.progress import Progress, duration, notes_json, report_text, result_json
from declarative.render.status import Row, health_lines, map_lines, status_text
from declarative.render.status_view import (
    FleetView,
    NodeView,
    RankView,
    StatusView,
    TaskView,
    VolumeView,
    status_json,
)
from declarative.render.text import Paint, cells, use_color, width, wrapped
from tests.support.cli import events_of
from tests.support.golden import check_golden
from tests.support.planned import plan_of, with_parts

GOLDEN = Path(__file__).parents[1] / "golden" / "render"
ESC = "\x1b"
EVIL = f"{ESC}]0;owned\a{ESC}[2J\r\nPlan: 0 to create\x9b31m\u202egnp\u2028\x7f\ud800"


def golden(name, text):
    check_golden(GOLDEN / name, text)


LEAST: dict[str, dict[str, Any]] = {
    "volume": {"backend": "local", "region": "local"},
    "node": {
        "fleet": "f",
        "backend": "local",
        "region": "local",
        "instance_type": "local",
        "resources": {"cpu": 1, "memory_mib": 1},
        "blocks": 1,
    },
    "reservation": {"task": "t", "rank": 0, "node": "n", "blocks": [], "total_blocks": 1},
    "attachment": {"task": "t", "rank": "t-0", "node": "n", "volume": "v", "path": "/v", "variable": "V"},
    "rank": {"task": "t", "rank": 0},
}
"""What inputs of each kind have at least."""


def act(op, address, reason=Reason.NEW, **more):
    at = Address.parse(address)
    for key in {"before", "after"} & more.keys():
        more[key] = known(KINDS[at.kind], {**LEAST[at.kind], **more[key]})
    return Action(op=op, address=at, reason=reason, **more)


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
    return {
        **base,
        "resources": {"cpu": "2", "memory": "1GB.."},
        "volumes": {"/data": [f"data-{number}"]},
        **more,
    }


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
    places = [
        {"task": "train", "rank": i, "node": f"pair-{i}", "blocks": [0, 1], "total_blocks": 2}
        for i in numbers
    ]
    attached = [
        {"task": "train", "rank": f"train-{i}", "node": f"pair-{i}", "volume": f"data-{i}", "path": "/data"}
        for i in numbers
    ]
    return plan_of(
        lineage=None,
        serial=0,
        actions=(
            *(act(Op.CREATE, f"volume/data-{i}", after=volume()) for i in numbers),
            *(
                act(Op.CREATE, f"node/pair-{i}", after=node(), needs=(f"create:volume/data-{i}",))
                for i in numbers
            ),
            *(act(Op.CREATE, f"reservation/train-{i}", after=places[i]) for i in numbers),
            *(act(Op.CREATE, f"attachment/train-{i}.data-{i}", after=attached[i]) for i in numbers),
            *(act(Op.CREATE, f"rank/train-{i}", after=rank(i)) for i in numbers),
        ),
        reservations=tuple(reserved(i) for i in numbers),
        cost=Cost(before=0.0, after=1.23 * count, bound=1.2 * count),
        nodes=tuple(preview(i) for i in numbers),
    )


def replace_plan():
    """An update, a removal, replacements for a field of its own and for what is needed."""
    grown = {
        "before": volume(tags={"owner": "a", "old": "x"}),
        "after": volume(size="2GB", tags={"owner": "b"}),
    }
    moved = {"before": node(env={"A": "1"}), "after": node(env={"A": "2", "T": "${{ env.T }}"})}
    place = {"task": "train", "rank": 0, "node": "pair-0", "blocks": [0, 1], "total_blocks": 2}
    old = rank(
        commands=["echo a", "echo b", "echo c"], env={"K": "${{ env.OLD }}", "L": "1"}, working_dir="/a"
    )
    new = rank(commands=["echo a", "echo B", "echo c"], env={"K": "${{ env.NEW }}", "L": "1"})
    why = ("commands", "env", "working_dir")
    both = {"reason": Reason.CASCADE, "because": ("node/pair-0",)}
    return plan_of(
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
            act(
                Op.UPDATE,
                "node/pair-1",
                Reason.CHANGED,
                because=("blocks",),
                before=node(),
                after=node(blocks=1),
            ),
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
        Rejection(
            target=f"node/gpu-{i}",
            code="busy",
            detail=f"wanted 8 blocks, {i} of 8 idle",
            short={"blocks": 8 - i},
        )
        for i in range(5)
    ]
    small = Rejection(
        target="offer/aws:us-east-1a:g4 (fleet/gpu)",
        code="too-small",
        detail="memory_mib: wanted 64GB.., has 16GB",
        short={"memory_mib": 49152, "gpu": 7},
    )
    price = Rejection(
        target="offer/aws:x", code="price", detail="50 USD/h; the task allows 40", short={"price": 10.0}
    )
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
    return plan_of(
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
    held = dict.fromkeys(range(3), "rank/train-0") | dict.fromkeys(range(5, 8), "rank/eval-0")
    return plan_of(
        lineage="3f1c",
        serial=7,
        refusals=refusals(),
        cost=Cost(before=2.0, after=2.0),
        nodes=(
            preview(0, name="gpu-0", total=8, holders=held, status="kept", state="ready"),
            preview(
                1,
                name="gpu-10",
                total=96,
                holders={i: f"rank/job-{i}" for i in range(90)},
                status="kept",
                state="ready",
            ),
            preview(2, name="small", total=1, holders={}, status="kept", state="ready"),
        ),
    )


PLANS = {
    "create": create_plan(),
    "many": create_plan(40),
    "replace": replace_plan(),
    "drift": drift_plan(),
    "unplaced": unplaced_plan(),
    "nothing": plan_of(lineage="3f1c", serial=7, nodes=(preview(status="kept", state="ready"),)),
    "ended": plan_of(
        lineage="3f1c",
        serial=7,
        ended=tuple((f"train-{i}", "lost" if i else "failed") for i in range(7)),
        diagnostics=(
            Diagnostic(
                code="backend-unreadable",
                summary="no answer",
                address="backend/aws",
                severity=Severity.WARNING,
            ),
        ),
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_plan_text(name):
    golden(f"plan-{name}.txt", plan_text(PLANS[name], color=False, width=100))


@pytest.mark.parametrize("name", PLANS)
def test_plan_text_is_the_same_without_its_colours(name):
    """Colour says nothing that the text does not say, and comes only when asked for."""
    colored = plan_text(PLANS[name], color=True, width=100)
    assert ESC in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plan_text(PLANS[name], color=False, width=100)


def test_plan_colours():
    colored = plan_text(replace_plan(), color=True, width=100)
    assert f"{ESC}[33m  ~{ESC}[0m" in colored
    assert f"{ESC}[31m  -{ESC}[0m" in colored
    assert f"{ESC}[32m  +{ESC}[0m" in colored


def test_summary_only():
    text = plan_text(unplaced_plan(), color=False, width=100, summary_only=True)
    assert text == (
        "  task/big[never-fits]: can never fit: 4 whole idle nodes wanted, 1 found\n"
        "  task/one[no-capacity]: does not fit now: 1 place wanted, 0 found\n"
        "No changes. 2 tasks cannot be placed.\n"
    )
    text = plan_text(create_plan(), color=False, width=100, summary_only=True)
    assert text.splitlines() == [
        "Cost: 0.00 → 2.46 USD/h (at most 2.5 % above the least possible)",
        "Plan: 10 to create, 0 to update, 0 to delete, 0 to replace.",
    ]


def test_a_plan_with_errors_says_that_it_cannot_be_applied():
    plan = replace(create_plan(), diagnostics=(Diagnostic(code="protected", summary="no"),))
    lines = plan_text(plan, color=False, width=100).splitlines()
    assert lines[-1] == "The plan cannot be applied: 1 error."
    assert lines[-2].startswith("Plan: 10 to create")


def test_what_nothing_happens_to_is_counted_not_listed():
    nodes = tuple(preview(i, status="kept", state="ready") for i in range(30))
    held = tuple(reserved(i, status=ReservationStatus.KEPT, new_node=False) for i in range(30))
    actions = (act(Op.CREATE, "node/pair-30", after=node()),)
    nodes, held = (*nodes, preview(30)), (*held, reserved(30))
    plan = plan_of(actions=actions, nodes=nodes, reservations=held)
    text = plan_text(plan, color=False, width=100)
    assert "  … 30 more nodes, unchanged, 60/60 busy\n" in text
    assert "  … 30 more ranks, unchanged\n" in text
    assert "node/pair-30" in text
    assert "node/pair-29" not in text


def test_no_value_from_the_environment_is_shown():
    """`${{ env.X }}` is only said to come from there. What it is mixed with is shown as it was written: that
    is in the YAML, and may be what sends the value away.
    """
    text = plan_text(create_plan(), color=False, width=100)
    assert "HF_TOKEN=(from $HF_TOKEN)" in text
    assert "AUTH=Bearer ${{ env.KEY }}" in text


def test_narrow_terminals_get_a_volume_a_line():
    text = plan_text(replace_plan(), color=False, width=60)
    assert "/data=data-0, /scratch" not in text
    assert re.search(r"^ +/scratch=scratch-0$", text, re.MULTILINE)


def test_commands_of_a_new_task_are_whole():
    """On a terminal they are wrapped, below where they begin: no part of them begins a line of its own."""
    script = "cat <<E\na\n\nb \nE"
    commands = [f"echo {i}" for i in range(30)] + [script, "echo " + "long " * 40 + "; Plan: 0 to create"]
    after = {"commands": commands, "env": {"A": "x" * 300, "B": "one\ntwo\n"}}
    plan = plan_of(actions=(act(Op.CREATE, "rank/a-0", after=after),))
    plain = plan_text(plan, color=False, width=None)
    for command in (*commands[:30], commands[-1]):
        assert f"        - {command}\n" in plain
    block = ["- |-", "  cat <<E", "  a", "", "  b\N{SYMBOL FOR SPACE}", "  E"]
    assert "".join(f"        {line}".rstrip() + "\n" for line in block) in plain
    assert f"        A={'x' * 300}\n        B=|\n          one\n          two\n" in plain
    narrow = plan_text(plan, color=False, width=60)
    assert max(cells(line) for line in narrow.splitlines()) <= 60
    assert re.sub(r"\s", "", commands[-1]) in re.sub(r"\s", "", narrow)
    assert not [line for line in narrow.splitlines() if line.strip().startswith("Plan:")][1:]


def change(before, after, *, width=None, color=False):
    """The lines that tell of a rank's change."""
    action = act(Op.UPDATE, "rank/a-0", Reason.CHANGED, before=before, after=after)
    text = plan_text(plan_of(actions=(action,)), color=color, width=width)
    return text.partition("  ~ rank/a-0")[2].rpartition("Cost:")[0].splitlines()[1:-1]


def test_a_change_in_a_script_is_a_diff_of_its_lines():
    old = "\n".join(f"step {i}" for i in range(20))
    found = change({"commands": ["a", old]}, {"commands": ["a", old.replace("step 9", "step 9; curl evil")]})
    assert found == [
        "      commands:",
        "          … 9 unchanged",
        "            step 7",
        "            step 8",
        "        -   step 9",
        "        +   step 9; curl evil",
        "            step 10",
        "            step 11",
        "          … 8 unchanged",
    ]


LOOKALIKES = [
    ("echo a", "echo a "),
    ("echo a", "echo a\n"),
    ("echo a\necho b", "echo a\necho b\n"),
    ("echo a\n", "echo a\n\n"),
    ("echo a b", "echo a\xa0b"),
    ("echo \u202ea", "echo \\u202ea"),
    ("echo a\tb", "echo a\u2409b"),
    ("x" * 300 + "a", "x" * 300 + "b"),
    ("echo a\n" * 400 + "x", "echo a\n" * 400 + "y"),
    ("a\n" + "b\n" * 900, "c\n" + "b\n" * 900 + "d"),
]


@pytest.mark.parametrize("field", ["commands", "env", "image"])
@pytest.mark.parametrize(("old", "new"), [("sleep 1", "sl\u0435ep 1"), ("\u0430b\nc", "ab\nc")])
def test_letters_of_another_script_are_told_apart(field, old, new):
    """Cyrillic ie is drawn as `e`; a change of one for the other says which it is."""
    values: Any = {"commands": [[old], [new]], "image": [old, new]}.get(field, [{"K": old}, {"K": new}])
    text = "\n".join(change({field: values[0]}, {field: values[1]}, width=None))
    assert ("\\u0435" in text) or ("\\u0430" in text)


@pytest.mark.parametrize("width", [None, 60])
@pytest.mark.parametrize(("old", "new"), LOOKALIKES)
@pytest.mark.parametrize("field", ["commands", "env", "tags", "image", "files", "retry", "resources"])
def test_no_two_values_look_alike(field, old, new, width):
    """Whatever the field, the lines that go and those that come differ."""
    values: Any = {
        "commands": [[old], [new]],
        "files": [{"paths": ["a"], "digest": old}, {"paths": ["a"], "digest": new}],
        "image": [old, new],
        "resources": [{"a": [{"b": old}]}, {"a": [{"b": new}]}],
    }.get(field, [{"K": old}, {"K": new}])
    lines = change({field: values[0]}, {field: values[1]}, width=width)
    arrows = [line.split(" → ") for line in lines if " → " in line]
    assert all(a.partition(": ")[2] != b for a, b in arrows)
    text = "\n".join(lines)
    gone = re.findall(r"^ {8}- (.*(?:\n {12}.*)*)", text, re.MULTILINE)
    come = re.findall(r"^ {8}\+ (.*(?:\n {12}.*)*)", text, re.MULTILINE)
    assert arrows or gone != come
    assert lines


def test_entries_that_look_alike_and_are_not_are_not_grouped():
    """Nor are names that would lose a digit."""
    one, other = rank(0, env={"A": "(from $B)"}), rank(1, env={"A": "${{ env.B }}"})
    actions = tuple(act(Op.CREATE, f"rank/a-{i}", after=a) for i, a in enumerate((one, one, one, other)))
    text = plan_text(plan_of(actions=actions), color=False, width=None)
    assert "rank/a-[0-2]" in text
    assert "rank/a-3" in text
    names = ("data-1", "data-01", "data-2")
    actions = tuple(act(Op.CREATE, f"volume/{name}", after=volume()) for name in names)
    text = plan_text(plan_of(actions=actions), color=False, width=None)
    assert all(f"volume/{name}" in text for name in names)


def test_what_an_environment_variable_is_mixed_with_is_shown():
    old, new = "https://${{ env.T }}@good.example", "https://${{ env.T }}@evil.example"
    assert change({"env": {"A": old}}, {"env": {"A": new}}) == [f'      env.A: "{old}" → "{new}"']
    assert change({"env": {"A": "x"}}, {"env": {"A": "${{ env.T }}"}}) == ['      env.A: "x" → (from $T)']


def test_off_a_terminal_nothing_is_cut():
    """Neither the map of a node with many blocks, nor the later ones of many refusals."""
    held = {i: f"rank/job-{i}" for i in range(96)}
    nodes = (preview(0, name="gpu-0", total=96, holders=held, status="kept", state="ready"),)
    late = Rejection(target="node/gpu-9", code="not-ready", detail="unknown: not observed")
    ranks = (RankVerdict(rank=0, verdict=Verdict.CAUSE, rejections=(late,)),)
    refused = tuple(
        Refusal(task=f"t{i}", code="no-capacity", summary=f"no {i}", hint=f"hint {i}", ranks=ranks)
        for i in range(30)
    )
    plan = plan_of(nodes=nodes, refusals=refused)
    text = plan_text(plan, color=False, width=None)
    assert "| 95 job-95]" in text
    assert "hint 29" in text


def test_ranks_that_restart_are_not_unchanged():
    """In the map, in the table, and in the summary."""
    kept = {"status": ReservationStatus.KEPT, "new_node": False}
    held = tuple(reserved(i, restart=i < 8, **kept) for i in range(44))
    why = {"reason": Reason.CHANGED, "because": ("commands",)}
    actions = (
        *(act(Op.DELETE, f"rank/train-{i}", before=rank(i), **why) for i in range(8)),
        *(act(Op.CREATE, f"rank/train-{i}", after=rank(i, commands=["x"]), **why) for i in range(8)),
        act(Op.UPDATE, "rank/train-9", before=rank(9), after=rank(9, priority=3), **why),
    )
    nodes = tuple(preview(i, status="kept", state="ready") for i in range(44))
    plan = plan_of(lineage="l", serial=1, actions=actions, reservations=held, nodes=nodes)
    text = plan_text(plan, color=False, width=None)
    assert re.search(r"^  node/pair-\[0-7\] .* kept, 1 rank restarts \(8 alike\)$", text, re.MULTILINE)
    assert re.search(r"^  train +\[0-7\] .* kept, restarts \(8 alike\)$", text, re.MULTILINE)
    assert re.search(r"^  train +9 .* kept, changes$", text, re.MULTILINE)
    assert "… 35 more ranks, unchanged\n" in text
    assert "… 35 more nodes, unchanged" in text
    assert "\n8 ranks restart: running now, stopped and started again.\n" in text
    data = plan_json(plan)
    assert data["summary"]["restarts"] == 8
    assert [r["restart"] for r in data["reservations"]] == [True] * 8 + [False] * 36
    assert {r["status"] for r in data["reservations"]} == {"kept"}


def test_a_long_plan_has_its_summary_at_both_ends():
    after = rank(commands=[f"echo {i}" for i in range(200)])
    actions = (act(Op.CREATE, "rank/a-0", after=after),)
    plan = plan_of(
        lineage=None,
        serial=0,
        actions=actions,
        refusals=refusals(),
        cost=Cost(before=0.0, after=2.0, excludes=("volumes",), bound=2.0),
    )
    summary = [
        "Cost: 0.00 → 2.00 USD/h (the least possible); volumes not included",
        "Plan: 1 to create, 0 to update, 0 to delete, 0 to replace.",
        "2 tasks cannot be placed.",
    ]
    lines = plan_text(plan, color=False, width=None).splitlines()
    assert lines[:4] == [*summary, ""]
    assert lines[-3:] == summary
    assert plan_json(plan)["cost"]["excludes"] == ["volumes"]
    short = replace(plan, actions=actions[:0])
    assert not plan_text(short, color=False, width=None).startswith(("Cost", "No changes"))


def test_an_adopted_volume_that_is_let_go_is_not_deleted():
    """Also where another one takes its name."""
    old, new = volume(volume_id="vol-1"), volume(volume_id="vol-2")
    actions = (
        act(Op.DELETE, "volume/a", Reason.REMOVED, before=old),
        act(Op.DELETE, "volume/b", Reason.CHANGED, because=("volume_id",), before=old),
        act(Op.DELETE, "volume/c", Reason.REMOVED, before=volume()),
        act(Op.CREATE, "volume/b", Reason.CHANGED, because=("volume_id",), after=new),
    )
    plan = plan_of(lineage="l", serial=1, actions=actions)
    text = plan_text(plan, color=False, width=None)
    assert "- volume/a  # not declared any more; vol-1 itself stays: it was adopted" in text
    assert "-/+ volume/b  # `volume_id` changed; vol-1 itself stays: it was adopted" in text
    assert [a["forget"] for a in plan_json(plan)["actions"]] == [True, True, False, False]


@pytest.mark.parametrize("reason", [Reason.REQUESTED, Reason.CHANGED])
def test_a_replaced_volume_loses_its_content(reason):
    """Every form of the plan says so. Programs see the reason alone."""
    asked = {"because": ("zone",) if reason is Reason.CHANGED else ()}
    actions = (
        act(Op.DELETE, "volume/a", reason, before=volume(), **asked),
        act(Op.CREATE, "volume/a", reason, after=volume(), **asked),
    )
    plan = plan_of(lineage="l", serial=1, actions=actions)
    for text in (plan_text(plan, color=False, width=None), plan_markdown(plan, 65_536), plan_html(plan)):
        assert "; its content is lost" in text
    assert [a["reason"] for a in plan_json(plan)["actions"]] == [reason.value] * 2


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("kind", ["volume", "node", "reservation", "attachment", "rank"])
def test_every_reason_has_words(kind, reason):
    for because in ((), ("node/pair-0",)):
        action = act(Op.DELETE, f"{kind}/x", reason, because=because, before={"fleet": "f", "task": "t"})
        text = plan_text(plan_of(actions=(action,)), color=False, width=100)
        assert re.search(rf"^  - {kind}/x  # \S", text, re.MULTILINE)


def test_names_in_host_list_notation():
    assert host_lists(["data-0"]) == ["data-0"]
    assert host_lists(["data-0", "logs", "data-1", "data-5"]) == ["data-[0-1,5]", "logs"]
    assert host_lists(["a1-0.b-7", "a1-1.b-7"]) == ["a1-[0-1].b-7"]
    assert host_lists(["n-08", "n-09", "n-10", "n-9"]) == ["n-[08-09]", "n-[9-10]"]
    assert host_lists(f"t-{a}-{b}" for a in (1, 2) for b in (0, 1)) == ["t-[1-2]-[0-1]"]
    # Not `t-[0-1]-[0-1]`, which would be four names.
    assert host_lists(["t-0-1", "t-1-0"]) == ["t-0-1", "t-1-0"]
    assert host_lists(["t-0.v-0", "t-1.v-1", "t-1.w-1"]) == ["t-[0-1].v-[same]", "t-1.w-1"]
    two = [f"t-{a}-{b}" for first in (0, 2) for a in (first, first + 1) for b in (first, first + 1)]
    assert host_lists(two) == ["t-[0-1]-[0-1]", "t-[2-3]-[2-3]"]


def _expanded(text):
    found = re.search(r"\[([0-9,-]+)\]", text)
    if not found:
        yield text
        return
    for part in found[1].split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            padded = f"{number:0{len(first) if first[0] == '0' and first != '0' else 0}}"
            rest = text[found.end() :].replace("[same]", padded, 1)
            yield from _expanded(text[: found.start()] + padded + rest)


@given(st.lists(st.from_regex(r"[a-b][0-2]{0,3}-[0-2]{1,2}(-x[0-3])?", fullmatch=True), max_size=40))
def test_host_lists_stand_for_exactly_the_names(names):
    found = [name for text in host_lists(names) for name in _expanded(text)]
    assert sorted(found) == sorted(set(names))


def test_map_of_many_blocks_stays_on_one_line():
    row = Row(node="gpu-0", total=96, holders={i: f"rank/job-{i}" for i in range(96)}, note="kept")
    [line] = map_lines([row], Paint(color=False), 80)
    assert cells(line) <= 80
    assert "more]" in line


# ------------------------------------------------------------------------------------------ plan JSON

PLAN_KEYS = (
    "format_version project environment state commit changed lineage serial result digest parts moved "
    "selection refresh_only actions reservations fallbacks unplaced remedies queued health drift "
    "differences losses cost summary diagnostics"
)
UNPLACED_KEYS = "task code summary proved hint starts changes ranks before after"
ACTION_KEYS = "id op address reason because before after needs forget ends"
RESERVATION_KEYS = (
    "task rank node fleet new_node blocks total_blocks volumes backend region zone instance_type price "
    "status restart"
)


def test_plan_json_has_the_keys_of_the_contract_in_their_order():
    data = plan_json(with_parts(create_plan(), refusals=refusals(), drift=drift_plan().observed.drift))
    assert list(data) == PLAN_KEYS.split()
    assert list(data["actions"][0]) == ACTION_KEYS.split()
    assert list(data["reservations"][0]) == RESERVATION_KEYS.split()
    assert list(data["unplaced"][0]) == UNPLACED_KEYS.split()
    assert list(data["unplaced"][0]["ranks"][0]) == ["rank", "verdict", "rejections"]
    assert list(data["unplaced"][0]["ranks"][1]["rejections"][0]) == ["target", "code", "detail", "short"]
    assert list(data["drift"][0]) == ["address", "change", "detail"]
    sums = ["hourly_before", "hourly_after", "hourly_at_most", "bound_hourly"]
    assert list(data["cost"]) == [*sums, "currency", "excludes", "fleets"]
    assert list(data["summary"]) == ["create", "update", "delete", "replace", "restarts", "stops"]


def test_plan_json_values():
    plan = with_parts(
        create_plan(), refusals=refusals(), reservations=(reserved(price=None), reserved(1, price=1 / 3))
    )
    data = plan_json(plan)
    assert data["result"] == "unplaced"
    assert data["lineage"] is None
    assert data["actions"][2] == {
        "id": "create:node/pair-0",
        "op": "create",
        "address": "node/pair-0",
        "reason": "new",
        "because": [],
        "before": None,
        "after": node(),
        "needs": ["create:volume/data-0"],
        "forget": False,
        "ends": False,
    }
    assert [r["price"] for r in data["reservations"]] == [None, 0.333333]
    assert data["reservations"][0]["volumes"] == {"/data": "data-0"}
    assert data["reservations"][0]["zone"] is None
    assert data["unplaced"][0]["ranks"][1]["rejections"][0]["short"] == {"gpu": 7, "memory_mib": 49152}
    assert [r["verdict"] for r in data["unplaced"][0]["ranks"]] == ["fits", "cause", "not-tried", "not-tried"]
    cost = {"hourly_before": 0.0, "hourly_after": 2.46, "hourly_at_most": 2.46, "bound_hourly": 2.4}
    fleets = [{"fleet": "pair", "nodes": 2, "hourly": 0.0, "tasks": [{"task": "train", "hourly": 0.0}]}]
    assert data["cost"] == {**cost, "currency": "USD", "excludes": [], "fleets": fleets}


@pytest.mark.parametrize("name", PLANS)
def test_plan_json_golden(name):
    if name != "many":
        golden(f"plan-{name}.json", to_json(plan_json(PLANS[name])))


def _turned(found):
    """The same inputs, the keys of their mappings the other way round."""
    if found is None:
        return None
    own = {f.name: getattr(found, f.name) for f in fields(found)}
    return replace(found, **{k: dict(reversed(v.items())) for k, v in own.items() if isinstance(v, dict)})


def test_plan_json_is_the_same_whatever_the_order_of_keys_in_the_database():
    """Inputs of a record may come back in another order than they were written in."""
    plan = replace_plan()
    turned = tuple(replace(a, before=_turned(a.before)) for a in plan.actions)
    assert any(a.before for a in turned)
    assert to_json(plan_json(plan)) == to_json(plan_json(replace(plan, actions=turned)))


def test_json_is_safe_to_print_and_loses_nothing():
    text = to_json({"a": EVIL, "ü": "日本"})
    assert json.loads(text) == {"a": EVIL, "ü": "日本"}
    assert text.endswith("}\n")
    assert "日本" in text
    assert not unsafe(text)
    assert "\n" not in to_line({"a": EVIL})
    assert not unsafe(to_line({"a": EVIL}))


# ---------------------------------------------------------------------------------------- diagnostics


def finding(text, column, end, *, line=4, hint="did you mean `nodes`?", **more):
    span = Span("fleet.yaml", line, column, line, end, text)
    return Diagnostic(
        code="unknown-field", summary="`node` is not a field of fleet", hint=hint, span=span, **more
    )


DIAGNOSTICS = {
    "plain": [
        finding("  node: 3", 3, 7),
        Diagnostic(
            code="protected", summary="volume/data-0 would be lost", hint="undo it", address="volume/data-0"
        ),
        Diagnostic(code="blocks-wait", summary="stays at 2 blocks", severity=Severity.WARNING),
        finding("node: 3", 1, 5, line=1234, hint=None, severity=Severity.WARNING),
    ],
    "hard": [
        finding("\tnode:\t3", 2, 6),
        finding("  名前: ノード: 3  # wide", 7, 10),
        finding(f"  {ESC}[31mnode{ESC}[0m: \x9b1m\u202e 3", 8, 12),
        finding("e\u0301te\u0301: 3", 6, 9),
        finding("  - " + "x" * 300 + " node " + "y" * 300, 306, 310),
        finding("  - node " + "y" * 300, 5, 9),
        finding("x" * 200 + " node", 202, 206),
        finding("x" * 300, 1, 301),
        finding("  nodes:", 20, 21),
        finding("", 1, 1),
        finding("  text: |", 9, 3, hint="two\nlines"),
    ],
}


@pytest.mark.parametrize("name", DIAGNOSTICS)
def test_diagnostics_text(name):
    golden(f"diagnostics-{name}.txt", diagnostics_text(DIAGNOSTICS[name], color=False))


def test_the_form_of_a_diagnostic():
    assert diagnostics_text([finding("  node: 3", 3, 7)], color=False) == (
        "error[unknown-field]: `node` is not a field of fleet\n"
        "  --> fleet.yaml:4:3\n"
        "   |\n"
        " 4 |   node: 3\n"
        "   |   ^^^^\n"
        "   |\n"
        "   = hint: did you mean `nodes`?\n"
        "\n"
        "1 error\n"
    )
    assert diagnostics_text([], color=False) == ""


def test_diagnostics_that_are_alike():
    """Those that differ only by the number of their address become one; other differences are kept apart."""
    odd = ("is full", "disk/a-1"), ("is full", "disk/b"), ("is gone", "disk/a-3"), ("is full", "disk/a-12")
    found = [Diagnostic(code="disk", summary=f"{address} {what}", address=address) for what, address in odd]
    heads = [line for line in diagnostics_text(found, color=False).splitlines() if line.startswith("error")]
    assert heads == [
        "error[disk]: disk/a-[1,12] is full (2 alike)",
        "error[disk]: disk/b is full",
        "error[disk]: disk/a-3 is gone",
    ]
    assert diagnostics_text(found, color=False).endswith("\n4 errors\n")


def test_diagnostics_colour():
    text = diagnostics_text(DIAGNOSTICS["plain"], color=True)
    assert text.startswith(f"{ESC}[31merror[unknown-field]{ESC}[0m")
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == diagnostics_text(DIAGNOSTICS["plain"], color=False)


@given(st.text(max_size=260), st.integers(1, 300), st.integers(1, 300))
def test_carets_stay_under_the_line(text, column, end):
    """However odd the line, one caret at least is shown, and no line is longer than the window."""
    lines = diagnostics_text([finding(text, column, max(column, end), hint=None)], color=False).splitlines()
    if text.strip():
        carets = next(line for line in lines if line.endswith("^"))
        assert cells(carets) <= 110 or column > len(text)


def test_validate_json():
    data = validate_json(valid=False, diagnostics=[finding("  node: 3", 3, 7), DIAGNOSTICS["plain"][1]])
    assert list(data) == ["valid", "diagnostics"]
    assert data["diagnostics"][0] == {
        "severity": "error",
        "code": "unknown-field",
        "summary": "`node` is not a field of fleet",
        "hint": "did you mean `nodes`?",
        "address": None,
        "file": "fleet.yaml",
        "line": 4,
        "column": 3,
        "end_line": 4,
        "end_column": 7,
    }
    assert list(data["diagnostics"][0]) == [
        "severity",
        "code",
        "summary",
        "hint",
        "address",
        "file",
        "line",
        "column",
        "end_line",
        "end_column",
    ]
    assert data["diagnostics"] == diagnostics_json([finding("  node: 3", 3, 7), DIAGNOSTICS["plain"][1]])
    assert data["diagnostics"][1]["line"] is None


# --------------------------------------------------------------------------------------------- status


def status_view(**more):
    resources = Shape(cpu=96, memory_mib=1024, gpus=8, gpu_name="H100")
    common: dict[str, Any] = {
        "fleet": "gpu",
        "backend": "aws",
        "region": "us-east-1",
        "instance_type": "p5",
        "resources": resources,
    }
    held = dict.fromkeys(range(3), "rank/train-0")
    base = {
        "lineage": "3f1c",
        "serial": 9,
        "fleets": (FleetView(name="gpu", nodes=2, total=16, busy=3),),
        "nodes": (
            NodeView(
                name="gpu-0",
                state="ready",
                zone="us-east-1a",
                price=1.23,
                observed_at=1767225600.7,
                total=8,
                holders=held,
                **common,
            ),
            NodeView(
                name="gpu-1", state="unknown", zone=None, price=None, total=8, reason="no answer", **common
            ),
        ),
        "volumes": (
            VolumeView(name="data-0", state="attached", node="gpu-0", size="500GB"),
            VolumeView(name="data-1", state="available", size="1TB"),
        ),
        "tasks": (
            TaskView(
                name="train",
                state="failed",
                ranks=(
                    RankView(rank=0, node="gpu-0", state="running"),
                    RankView(
                        rank=1, node=None, state="failed", exit_code=1, attempt=2, cause="rank 1 failed first"
                    ),
                ),
                cause="rank/train-1: exit code 1",
            ),
        ),
        "drift": (Drift(address="node/gpu-2", change="gone", detail="not there any more"),),
    }
    return StatusView(**{**base, **more})


def test_status_text():
    golden("status.txt", status_text(status_view(), color=False, width=100))
    colored = status_text(status_view(), color=True, width=100)
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == status_text(status_view(), color=False, width=100)


def test_of_ranks_on_a_node_that_does_not_answer_it_is_said_that_this_was_before():
    """And a cause that is the exit code is written once."""
    nodes = (replace(status_view().nodes[1], name="gpu-0", state="unreachable"),)
    running = RankView(rank=0, node="gpu-0", state="running")
    failed = RankView(rank=1, node="gpu-0", state="failed", exit_code=3, cause="exit code 3")
    tasks = (TaskView(name="train", state="failed", ranks=(running, failed)),)
    text = status_text(status_view(nodes=nodes, tasks=tasks), color=False, width=100)
    assert re.search(r"rank/train-0 +running +node/gpu-0 +as last seen: its node is unreachable\n", text)
    assert re.search(r"rank/train-1 +failed +node/gpu-0 +exit code 3\n", text)


def test_what_is_not_well_fits_a_terminal_and_is_whole_elsewhere():
    detail = "has not answered for {} min: it is given up in {} min, and its ranks run elsewhere"
    sick = [
        Health(address=f"node/gpu-{i}", state="unreachable", detail=detail.format(i, 9 - i), since=60.0 * i)
        for i in range(8)
    ]
    narrow = health_lines(sick, Paint(color=False), 60)
    assert max(map(len, narrow)) <= 60
    assert "and 3 more: unreachable, since 1970-01-01T00:00:00Z" in " ".join(map(str.strip, narrow))
    (_, _, names, _, _) = health_lines(sick, Paint(color=False), None)
    listed = ", ".join(f"node/gpu-{i}" for i in range(8))
    assert names == f"  {listed}: unreachable, since 1970-01-01T00:00:00Z"


def test_status_of_nothing():
    assert status_text(StatusView(lineage=None, serial=0), color=False, width=80).startswith(
        "Nothing is recorded yet"
    )


def test_status_json():
    assert status_json(status_view()) == {
        "format_version": 1,
        "lineage": "3f1c",
        "serial": 9,
        "fleets": [
            {"name": "gpu", "nodes": 2, "blocks": {"total": 16, "busy": 3, "idle": 13}, "hourly": 0.0}
        ],
        "nodes": [
            {
                "name": "gpu-0",
                "fleet": "gpu",
                "state": "ready",
                "backend": "aws",
                "region": "us-east-1",
                "zone": "us-east-1a",
                "instance_type": "p5",
                "price": 1.23,
                "observed_at": "2026-01-01T00:00:00Z",
                "silent_since": None,
                "given_up_at": None,
                "resources": {"cpu": 96, "memory_mib": 1024, "gpus": 8},
                "blocks": {"total": 8, "busy": 3, "idle": 5},
                "holders": {"0": "rank/train-0", "1": "rank/train-0", "2": "rank/train-0"},
                "rehearsal": False,
                "drained": None,
            },
            {
                "name": "gpu-1",
                "fleet": "gpu",
                "state": "unknown",
                "backend": "aws",
                "region": "us-east-1",
                "zone": None,
                "instance_type": "p5",
                "price": None,
                "observed_at": None,
                "silent_since": None,
                "given_up_at": None,
                "resources": {"cpu": 96, "memory_mib": 1024, "gpus": 8},
                "blocks": {"total": 8, "busy": 0, "idle": 8},
                "holders": {},
                "rehearsal": False,
                "drained": None,
            },
        ],
        "volumes": [
            {"name": "data-0", "state": "attached", "node": "gpu-0"},
            {"name": "data-1", "state": "available", "node": None},
        ],
        "tasks": [
            {
                "name": "train",
                "state": "failed",
                "ranks": [
                    {
                        "rank": 0,
                        "node": "gpu-0",
                        "state": "running",
                        "exit_code": None,
                        "attempt": 1,
                        "cause": None,
                        "started_at": None,
                        "ended_at": None,
                    },
                    {
                        "rank": 1,
                        "node": None,
                        "state": "failed",
                        "exit_code": 1,
                        "attempt": 2,
                        "cause": "rank 1 failed first",
                        "started_at": None,
                        "ended_at": None,
                    },
                ],
                "cause": "rank/train-1: exit code 1",
                "started_at": None,
                "ended_at": None,
                "seconds": None,
                "waiting_since": None,
                "stopped": False,
                "retry": None,
            }
        ],
        "health": [],
        "drift": [{"address": "node/gpu-2", "change": "gone", "detail": "not there any more"}],
        "left_alone": [],
        "limits": [],
        "spent": None,
    }
    golden("status.json", to_json(status_json(status_view())))


# ------------------------------------------------------------------------- report, records, progress


def result(id, outcome="done", **more):
    op, _, address = id.partition(":")
    return ActionResult(id=id, address=address, op=op, outcome=Outcome(outcome), **more)


RESULTS = (
    result("create:volume/data-0"),
    result("create:node/cpu-0", note="uses m in us-east-1b because m in us-east-1a (no) was unavailable"),
    result("create:node/cpu-1", note="uses m in us-east-1b because m in us-east-1a (no) was unavailable"),
    result(
        "create:node/gpu-0",
        "failed",
        code="backend-no-capacity",
        error="no capacity\nin us-east-1a",
        hint="allow another zone",
    ),
    *(result(f"create:rank/train-{i}", "skipped", error="create:node/gpu-0 failed") for i in range(12)),
    result("delete:volume/old", "failed"),
    result("create:rank/other-0", "skipped", error="interrupted"),
)


def test_report_text():
    golden("report.txt", report_text(RESULTS, color=False))
    assert report_text(RESULTS[:1], color=False) == "Apply complete: 1 created.\n"
    assert report_text([], color=False, title="Destroy") == "Destroy complete: 0 done.\n"
    broken = (RESULTS[0], result("create:volume/a", "failed", error="disk full"))
    summary = "finished with problems: 1 done, 1 failed, 0 skipped."
    for title in ("Apply", "Destroy"):
        then = f" The next `fleetform {title.lower()}` does the rest."
        assert report_text(broken, color=False, title=title).endswith(f"{title} {summary}{then}\n")
    hinted = (*broken[:1], replace(broken[1], hint="free some space, and apply again"))
    assert report_text(hinted, color=False).endswith(f"Apply {summary}\n")
    gone = [result(f"delete:node/gpu-{i}") for i in range(3)]
    done = (*gone, *(result(f"create:node/gpu-{i}") for i in range(1, 4)), result("update:volume/a"))
    text = report_text(done, color=False, forgotten={"delete:node/gpu-0"})
    assert text == "Apply complete: 1 created, 1 updated, 1 deleted (1 only forgotten), 2 replaced.\n"
    assert ESC in report_text(RESULTS, color=True)
    assert list(result_json(RESULTS[0])) == [
        "id",
        "address",
        "op",
        "outcome",
        "error",
        "hint",
        "note",
        "code",
    ]
    assert [n["addresses"] for n in notes_json(RESULTS)] == [["node/cpu-0", "node/cpu-1"]]


def records():
    return [
        Record(
            address=Address("rank", "train-10"),
            backend="local",
            inputs=rank(10, commands=["cat <<E\n  a\nE", "true"]),
            outputs={"attempt": 1, "pid": 12},
            needs=frozenset({Address("reservation", "train-10"), Address("attachment", "train-10.data-10")}),
            generation=2,
        ),
        Record(address=Address("rank", "train-9"), backend="local", inputs=rank(9)),
        Record(address=Address("volume", "data-0"), backend=None, inputs={}),
    ]


def test_state_text():
    assert state_text(records()) == "volume/data-0\nrank/train-9\nrank/train-10\n"
    assert state_text([]) == ""
    golden("state-show.txt", state_text(records()[:1], detail=True))


def play(progress):
    with progress:
        progress.note("refreshed\n3 things")
        progress.begin("create:volume/data-0")
        progress.retry("create:volume/data-0", "throttled", 2.345)
        progress.end(result("create:volume/data-0"))
        progress.begin("delete:rank/train-0")
        progress.end(result("delete:rank/train-0", "failed", error="no answer"))
        progress.end(result("update:node/gpu-0", "skipped", error="it was not needed"))
        progress.rank("rank/train-1", "failed", "exit code 1")


def ticking():
    times = iter(range(0, 1000, 65))
    return lambda: next(times)


def test_progress_as_plain_lines():
    stream = io.StringIO()
    play(Progress(stream, "plain", 3, clock=ticking()))
    assert stream.getvalue().splitlines() == [
        "refreshed 3 things",
        "volume/data-0: creating…",
        "volume/data-0: trying again in 2.3s: throttled",
        "volume/data-0: created (1m 5s)",
        "rank/train-0: stopping…",
        "rank/train-0: failed (1m 5s): no answer",
        "rank/train-1: failed: exit code 1",
    ]


def test_what_ends_nothing_is_not_said_to_stop_it():
    """Deletes of ranks that had ended, of volumes that were adopted, and of records of what is gone."""
    stream = io.StringIO()
    ids = ["delete:rank/a-0", "delete:rank/b-0", "delete:volume/x", "delete:volume/y", "delete:volume/z"]
    with Progress(stream, "plain", 0) as progress:
        progress.expect(5, [ids[0], ids[2], ids[4]], gone=[ids[4]])
        for one in ids:
            progress.begin(one)
            progress.end(result(one))
    assert stream.getvalue().splitlines() == [
        "rank/a-0: had ended, removing its record…",
        "rank/a-0: had ended, its record is removed",
        "rank/b-0: stopping…",
        "rank/b-0: stopped",
        "volume/x: releasing it…",
        "volume/x: released, it stays as it is",
        "volume/y: deleting…",
        "volume/y: deleted",
        "volume/z: it is gone, removing its record…",
        "volume/z: it is gone, its record is removed",
    ]


def test_progress_as_json_lines():
    stream = io.StringIO()
    play(Progress(stream, "json", 3))
    events = events_of(stream.getvalue())
    assert [e["event"] for e in events] == ["note", "begin", "retry", "end", "begin", "end", "end", "rank"]
    assert events[1] == {"event": "begin", "id": "create:volume/data-0"}
    assert events[2] == {"event": "retry", "id": "create:volume/data-0", "error": "throttled", "wait": 2.345}
    assert list(events[3]) == ["event", "id", "address", "op", "outcome", "error", "hint", "note", "code"]
    assert events[7] == {
        "event": "rank",
        "address": "rank/train-1",
        "state": "failed",
        "cause": "exit code 1",
    }


def test_what_happens_together_is_written_in_one_piece():
    """In its order, whichever thread it comes from; and alone again after that."""
    pieces = []

    class Stream(io.StringIO):
        def write(self, text):
            pieces.append(text)
            return len(text)

    progress = Progress(Stream(), "plain", 2)
    with progress.together():
        progress.begin("create:volume/a")
        waiting = threading.Thread(target=progress.wait, args=("create:volume/a", "node/b", "it starts"))
        waiting.start()
        waiting.join()
    progress.end(result("create:volume/a"))
    assert pieces == [
        "volume/a: creating…\nvolume/a: waiting for node/b: it starts\n",
        "volume/a: created\n",
    ]


MOVES = (
    Move(nodes=("gpu-0",), refused="m in us-east-1a", error="no\ncapacity", taken="m in us-east-1b"),
    Move(nodes=tuple(f"gpu-{i}" for i in range(9)), refused="m in us-east-1b", error="none", taken=None),
)


def test_nodes_that_take_another_offer_are_told():
    plain, lines = io.StringIO(), io.StringIO()
    for progress in (Progress(plain, "plain", 3), Progress(lines, "json", 3)):
        with progress:
            for move in MOVES:
                progress.move(move, 2)
            progress.end(result("create:node/gpu-0", note="as m in us-east-1b"))
        assert progress.total == 7
    several = "node/gpu-0, node/gpu-1, node/gpu-2, node/gpu-3 and 5 more"
    assert plain.getvalue().splitlines() == [
        "node/gpu-0: m in us-east-1a: no capacity: trying m in us-east-1b",
        f"{several}: m in us-east-1b: none: nothing else is left to try",
        "node/gpu-0: created as m in us-east-1b",
    ]
    assert events_of(lines.getvalue())[0] == {
        "event": "failover",
        "addresses": ["node/gpu-0"],
        "refused": "m in us-east-1a",
        "error": "no\ncapacity",
        "next": "m in us-east-1b",
    }


def test_what_is_waited_for_is_told(monkeypatch):
    """On a terminal in the action's own line, also if it has none yet."""
    plain, lines = io.StringIO(), io.StringIO()
    for progress in (Progress(plain, "plain", 1), Progress(lines, "json", 1)):
        progress.wait("create:reservation/train-0", "node/gpu-0", "it is starting:\nno answer")
    assert plain.getvalue() == "reservation/train-0: waiting for node/gpu-0: it is starting: no answer\n"
    assert events_of(lines.getvalue())[0] == {
        "event": "wait",
        "id": "create:reservation/train-0",
        "for": "node/gpu-0",
        "reason": "it is starting:\nno answer",
    }
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    with Progress(stream, "live", 30) as progress:
        ids = [f"create:reservation/train-{i}" for i in range(20)]
        for one in ids:
            progress.begin(one)
        for one in ids:
            progress.wait(one, "node/gpu-0", "it is starting")
        for one in ids:
            progress.end(result(one))
    assert "reservation/train-0: waiting for node/gpu-0: it is starting" in stream.getvalue()
    assert "reservation/train-19: waiting for node/gpu-0: it is starting" in stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_on_a_terminal(monkeypatch):
    """Lines that stay are the same as elsewhere; more actions than have room are shown one after another."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    play(Progress(stream, "live", 3))
    assert "volume/data-0: created" in stream.getvalue()
    assert "rank/train-1: failed: exit code 1" in stream.getvalue()
    stream = Terminal()
    with Progress(stream, "live", 30) as progress:
        for i in range(30):
            progress.begin(f"create:rank/train-[bold]{i}")
        for i in range(30):
            progress.end(result(f"create:rank/train-[bold]{i}"))
    assert "rank/train-[bold]29: started" in stream.getvalue()


def report_600_volumes(mode, failing=frozenset(), *, seconds=0.0, note=None):
    """The lines of 600 creates, of which each takes so many seconds; then two nodes, as different names."""
    stream, at = io.StringIO(), [0.0]
    ids = [f"create:volume/data-{i}" for i in range(600)]
    nodes = ["create:node/a", "create:node/b"]
    with Progress(stream, mode, 0, clock=lambda: at[0]) as progress:
        progress.expect(602, (), (*ids, *nodes))
        for one in (*ids, *nodes):
            progress.begin(one)
            progress.retry(one, f"throttled, request {one[-1]}", 1.0)
            progress.wait(one, "node/a", "it starts")
            at[0] += seconds
            failed = one in failing
            progress.end(
                result(one, "failed" if failed else "done", error="disk full" if failed else None, note=note)
            )
    return stream.getvalue().splitlines()


NODES = [
    f"node/{name}: {text}"
    for name in "ab"
    for text in (
        "creating…",
        f"trying again in 1.0s: throttled, request {name}",
        "waiting for node/a: it starts",
        "created",
    )
]


def test_alike_actions_share_lines():
    """Where there is no terminal. Few actions have lines of their own."""
    assert report_600_volumes("plain") == [
        "volume/data-[0-599]: creating 600…",
        "volume/data-0: trying again in 1.0s: throttled, request 0",
        "volume/data-0: waiting for node/a: it starts",
        "volume/data-[0-599]: 600 created",
        *NODES,
    ]
    assert len(report_600_volumes("json")) == 602 * 4


def test_each_failure_has_a_line_of_its_own():
    lines = report_600_volumes("plain", {"create:volume/data-7", "create:volume/data-599"})
    assert [line for line in lines if "failed" in line] == [
        "volume/data-7: failed: disk full",
        "volume/data-599: failed: disk full",
        "volume/data-[0-599]: 598 created, 2 failed",
    ]
    noted = report_600_volumes("plain", note="in us-east-1b")
    assert sum("created in us-east-1b" in line for line in noted) == 602


def test_alike_actions_that_take_long_have_a_line_now_and_then():
    lines = [line for line in report_600_volumes("plain", seconds=0.25) if line.startswith("volume/data-[")]
    assert lines == [
        "volume/data-[0-599]: creating 600…",
        "volume/data-[0-599]: 120 of 600 ended (30s)…",
        "volume/data-[0-599]: 240 of 600 ended (1m 0s)…",
        "volume/data-[0-599]: 360 of 600 ended (1m 30s)…",
        "volume/data-[0-599]: 480 of 600 ended (2m 0s)…",
        "volume/data-[0-599]: 600 created (2m 30s)",
    ]


def test_names_that_have_nothing_in_common_share_lines_if_they_are_many():
    """And of a plan of which nothing was begun, nothing is written: the report names what was skipped."""
    stream = io.StringIO()
    ids = [f"delete:volume/{'abcdefghijkl'[i] * 9}" for i in range(12)]
    with Progress(stream, "plain", 0) as progress:
        progress.expect(24, (), [*ids, *(f"delete:node/n-{i}" for i in range(12))])
        for one in ids:
            progress.begin(one)
            progress.end(result(one))
        for i in range(12):
            progress.end(result(f"delete:node/n-{i}", "skipped", error="a volume failed"))
    assert stream.getvalue().splitlines() == ["volumes: deleting 12…", "volumes: 12 deleted"]


def test_no_more_actions_end_than_there_are():
    """Whoever waits for capacity carries out one plan after another, and deletes what came of half a cluster:
    the bar showed 3/1.
    """
    progress = Progress(io.StringIO(), "plain", 0)
    seen = []
    for plan in (["create:node/gpu-0", "create:node/gpu-1"], ["create:node/gpu-1"]):
        progress.expect(len(plan))
        for action in (*plan, "delete:node/gpu-0"):  # the last is in no plan
            progress.begin(action)
            seen.append(progress.total)
            progress.end(result(action))
    assert seen == [2, 2, 3, 4, 5]


def test_progress_from_many_threads_never_mixes_lines():
    stream = io.StringIO()
    progress = Progress(stream, "plain", 800)

    def work(n):
        for i in range(100):
            progress.begin(f"create:rank/t{n}-{i}")
            progress.end(result(f"create:rank/t{n}-{i}"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1600
    assert all(re.fullmatch(r"rank/t\d-\d+: start(ing…|ed)", line) for line in lines)


def test_durations():
    assert [duration(s) for s in (4.9, 65, 3780)] == ["4s", "1m 5s", "1h 3m"]


# ------------------------------------------------------------------------------------------- terminal


def test_when_to_use_colour():
    tty, plain = Terminal(), io.StringIO()
    assert use_color(tty, {"TERM": "xterm"})
    assert use_color(tty, {"TERM": "xterm", "NO_COLOR": ""})
    assert not use_color(tty, {"TERM": "xterm", "NO_COLOR": "1"})
    assert not use_color(tty, {"TERM": "dumb"})
    assert not use_color(plain, {"TERM": "xterm"})
    plain.close()
    assert not use_color(plain, {"TERM": "xterm"})


def test_width_without_a_terminal_is_fixed(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert width(io.StringIO()) is None
    assert width(Terminal()) == 100


def test_columns_of_text():
    assert cells("日本e\u0301") == 5
    assert wrapped("  日本語", 6) == ["  日本", "   語"]
    assert wrapped("x" * 200, None) == ["x" * 200]
    assert ranges([3, 0, 1, 2, 9]) == "0-3,9"


# --------------------------------------------------------------------------------------------- safety


def unsafe(text):
    """Whatever could do something to a terminal but a line break."""
    return re.findall(
        "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]", text
    )


def everything(evil, *, color=False):
    """Every rendering, with `evil` wherever something from outside is shown."""
    inputs = RankInputs(
        task=evil,
        rank=0,
        commands=(evil,),
        env={evil: evil, "K": f"${{{{ env.{evil} }}}}"},
        tags={evil: evil},
    )
    bare = RankInputs(task=evil, rank=0)
    bad = Rejection(target=evil, code=evil, detail=evil, short={evil: 1.0})
    ranks = (RankVerdict(rank=0, verdict=Verdict.CAUSE, rejections=(bad,)), *refusals()[0].ranks)
    many = RankVerdict(rank=1, verdict=Verdict.CAUSE, rejections=(bad,) * 9)
    address = Address("rank", evil)
    plan = plan_of(
        lineage=evil,
        serial=1,
        actions=(
            Action(op=Op.CREATE, address=address, reason=Reason.NEW, after=inputs),
            Action(
                op=Op.UPDATE,
                address=address,
                reason=Reason.CHANGED,
                because=(evil,),
                before=bare,
                after=inputs,
            ),
            Action(
                op=Op.DELETE,
                address=Address(evil, evil),
                reason=Reason.CASCADE,
                because=(evil,),
                before=inputs,
            ),
        ),
        reservations=(reserved(task=evil, node=evil, volumes={evil: evil}),),
        refusals=(Refusal(task=evil, code=evil, summary=evil, hint=evil, ranks=(*ranks, many)),),
        drift=(Drift(address=evil, change=evil, detail=evil),),
        nodes=(preview(name=evil, holders={0: evil}, status="kept", state=evil),),
        vanished=(evil,),
    )
    found = [
        Diagnostic(code=evil, summary=evil, hint=evil, address=evil),
        Diagnostic(code="x", summary="x", span=Span(evil, 1, 3, 1, 9, evil)),
    ]
    nodes = (replace(status_view().nodes[0], name=evil, state=evil, reason=evil, holders={0: evil}),)
    volumes = (VolumeView(name=evil, state=evil, node=evil, size=evil, reason=evil),)
    ended = RankView(rank=0, node=evil, state=evil, cause=evil)
    tasks = (TaskView(name=evil, state=evil, ranks=(ended,), cause=evil),)
    view = status_view(
        fleets=(FleetView(name=evil, nodes=1, total=1, busy=0),), nodes=nodes, volumes=volumes, tasks=tasks
    )
    ends = [
        ActionResult(id=evil, address=evil, op=evil, outcome=o, error=evil, hint=evil)
        for o in (Outcome.FAILED, Outcome.SKIPPED)
    ]
    recorded = Record(
        address=address, backend=evil, inputs=data_of(inputs), outputs={evil: [evil, {evil: evil}]}
    )
    stream = io.StringIO()
    progress = Progress(stream, "plain", 1)
    progress.begin(evil)
    progress.retry(evil, evil, 1.0)
    progress.note(evil)
    progress.rank(evil, evil, evil)
    progress.end(ends[0])
    return [
        plan_text(plan, color=color, width=80),
        plan_text(plan, color=color, width=80, summary_only=True),
        diagnostics_text(found, color=color),
        status_text(view, color=color, width=80),
        report_text(ends, color=color),
        state_text([recorded]),
        state_text([recorded], detail=True),
        stream.getvalue(),
        to_json(
            [
                plan_json(plan),
                status_json(view),
                validate_json(valid=True, diagnostics=found),
                [result_json(end) for end in ends],
            ]
        ),
    ]


def test_nothing_from_outside_reaches_the_terminal_raw():
    for text in everything(EVIL):
        assert not unsafe(text)
    for text in everything(EVIL, color=True):
        assert not unsafe(re.sub(r"\x1b\[[0-9;]*m", "", text))


def test_nothing_from_outside_forges_a_line():
    """No line begins with what a stranger wrote after a line break, save deep in a block of `state show`."""
    for text in everything("a\nPlan: 0 to create"):
        assert not re.search(r"^ {0,5}Plan: 0 to create", text, re.MULTILINE)


@given(
    st.text(
        alphabet=st.characters(codec=None) | st.sampled_from("\x1b\x9b\r\n\t\0\u202e"),
        min_size=1,
        max_size=12,
    )
)
def test_safety_holds_for_any_text(evil):
    for text in everything(evil):
        assert not unsafe(text)
        text.encode()


def test_the_heading_of_a_report_says_what_waits_though_nothing_changes():
    gone = Diagnostic(code="volume-gone", summary="gone", address="volume/data", severity=Severity.WARNING)
    plan = replace(create_plan(), actions=(), diagnostics=(gone,))
    said = "nothing is changed, but 1 volume is gone"
    assert f": {said}\n" in plan_markdown(plan, 60_000)
    assert f"Plan: {said}" in plan_html(plan)
