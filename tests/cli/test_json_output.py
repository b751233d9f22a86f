"""`--json`: the contracts key by key and in order, and only JSON on stdout."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.cli import fleet, hold, task, until, volume

PLAN = [
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
ACTION = ["id", "op", "address", "reason", "because", "before", "after", "needs", "forget", "ends"]
RESERVATION = [
    "task",
    "rank",
    "node",
    "fleet",
    "new_node",
    "blocks",
    "total_blocks",
    "volumes",
    "backend",
    "region",
    "zone",
    "instance_type",
    "price",
    "status",
    "restart",
]
TASK = [
    "name",
    "state",
    "ranks",
    "cause",
    "started_at",
    "ended_at",
    "seconds",
    "waiting_since",
    "stopped",
    "retry",
]
RANK = ["rank", "node", "state", "exit_code", "attempt", "cause", "started_at", "ended_at"]
UNPLACED = ["task", "code", "summary", "proved", "hint", "starts", "changes", "ranks", "before", "after"]
UNPLACED_RANK = ["rank", "verdict", "rejections"]
REJECTION = ["target", "code", "detail", "short"]
DIAGNOSTIC = [
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
STATUS = [
    "format_version",
    "lineage",
    "serial",
    "fleets",
    "nodes",
    "volumes",
    "tasks",
    "health",
    "drift",
    "left_alone",
    "limits",
    "spent",
]
NODE = [
    "name",
    "fleet",
    "state",
    "backend",
    "region",
    "zone",
    "instance_type",
    "price",
    "observed_at",
    "silent_since",
    "given_up_at",
    "resources",
    "blocks",
    "holders",
    "rehearsal",
    "drained",
]
BLOCKS = ["total", "busy", "idle"]


def keys(items):
    """The keys of the objects in a list, which have to be the same for all of them."""
    found = {tuple(item) for item in items}
    assert len(found) == 1, found
    return list(found.pop())


@pytest.mark.slow
def test_plan(project):
    """Before the first apply, after it, and with a task that cannot be placed."""
    project.declare(
        fleet(nodes=2),
        volume("data", count=2),
        task("job", "true", nodes=2, volumes=["data-${{ node_rank }}:/data"]),
        task("big", "true", resources={"cpu": "64.."}),
    )
    plan = project.plan(code=3)
    assert list(plan) == PLAN
    origin = ("project", None, "sqlite:///.fleetform/state.db", None, False)
    assert tuple(plan[k] for k in PLAN[:9]) == (1, *origin, None, 0, "unplaced")
    assert keys(plan["actions"]) == ACTION
    assert keys(plan["reservations"]) == RESERVATION
    assert keys(plan["unplaced"]) == UNPLACED
    assert keys(plan["unplaced"][0]["ranks"]) == UNPLACED_RANK
    assert keys(plan["unplaced"][0]["ranks"][0]["rejections"]) == REJECTION
    assert list(plan["cost"]) == [
        "hourly_before",
        "hourly_after",
        "hourly_at_most",
        "bound_hourly",
        "currency",
        "excludes",
        "fleets",
    ]
    assert list(plan["summary"]) == ["create", "update", "delete", "replace", "restarts", "stops"]
    assert plan["unplaced"][0]["code"] == "never-fits"
    assert plan["reservations"][1] == {
        "task": "job",
        "rank": 1,
        "node": "gpu-1",
        "fleet": "gpu",
        "new_node": True,
        "blocks": [0, 1],
        "total_blocks": 2,
        "volumes": {"/data": "data-1"},
        "backend": "local",
        "region": "local",
        "zone": None,
        "instance_type": "local",
        "price": 0.0,
        "status": "new",
        "restart": False,
    }
    first = plan["actions"][0]
    assert tuple(first.values())[:6] == ("create:volume/data-0", "create", "volume/data-0", "new", [], None)
    assert first["after"]["size"] == "1GB"
    assert [f"{k}/" for k in ("volume", "node", "reservation", "attachment", "rank")] == list(
        dict.fromkeys(a["address"].partition("/")[0] + "/" for a in plan["actions"])
    )
    ids = [a["id"] for a in plan["actions"]]
    assert all(ids.index(need) < i for i, a in enumerate(plan["actions"]) for need in a["needs"])

    project.apply("--allow-unplaced", "--wait")
    plan = project.plan(code=3)
    assert list(plan) == PLAN
    assert (plan["actions"], plan["reservations"]) == ([], [])
    assert len(plan["lineage"]) == 36
    assert plan["serial"] > 0


def test_status(project):
    """Of something that runs, and of something that has ended."""
    up = project.path / "up"
    project.declare(
        fleet(nodes=2),
        volume("data"),
        task("job", hold(up), volumes=["data:/data"], resources={"cpu": 1}),
        task("short", "exit 3"),
    )
    before = datetime.now(UTC) - timedelta(seconds=1)
    project.apply()
    until(up.exists)
    until(lambda: project.ranks("short")[0]["state"] == "failed")
    status = project.status()
    assert list(status) == STATUS
    assert [
        keys(status["fleets"]),
        list(status["fleets"][0]["blocks"]),
    ] == [["name", "nodes", "blocks", "hourly"], BLOCKS]
    assert keys(status["nodes"]) == NODE
    node = status["nodes"][0]
    assert list(node["resources"]) == ["cpu", "memory_mib", "gpus"]
    assert tuple(node["resources"].values()) == (2, 1024, 0)
    assert node["blocks"] == {"total": 2, "busy": 1, "idle": 1}
    assert node["holders"] == {"0": "rank/job-0"}
    observed = datetime.fromisoformat(node["observed_at"])
    assert before.replace(microsecond=0) <= observed <= datetime.now(UTC)
    assert status["volumes"] == [{"name": "data", "state": "attached", "node": "gpu-0"}]
    job, short = status["tasks"]
    assert TASK == list(job) == list(short)
    assert (job["name"], job["state"]) == ("job", "running")
    (rank,) = job["ranks"]
    started = datetime.fromisoformat(rank.pop("started_at"))
    assert before.replace(microsecond=0) <= started <= datetime.now(UTC)
    assert rank == {
        "rank": 0,
        "node": "gpu-0",
        "state": "running",
        "exit_code": None,
        "attempt": 1,
        "cause": None,
        "ended_at": None,
    }
    assert (job["ended_at"], job["stopped"], job["retry"]) == (None, False, None)
    assert short["ended_at"] == short["ranks"][0]["ended_at"]
    assert (short["state"], short["ranks"][0]["exit_code"]) == ("failed", 3)
    assert list(short["ranks"][0]) == RANK
    project.declare(fleet(nodes=2), volume("data"), task("later", "true", nodes=2))
    assert [r["state"] for r in project.ranks("later").values()] == ["pending"] * 2


def test_validate(project):
    """With every finding of the run, or with none."""
    project.declare(fleet(), task("job", "true"))
    assert project.run("validate", "--json").json == {"valid": True, "diagnostics": []}
    project.write("wrong.yaml", "type: task\nname: wrong\ncomands: [x]\nvolumes: ['nowhere:/x']\nnodes: -1\n")
    done = project.run("validate", "--json", code=1)
    assert list(done.json) == ["valid", "diagnostics"]
    assert keys(done.json["diagnostics"]) == DIAGNOSTIC
    assert done.err == ""
    assert {"unknown-field", "out-of-range"} <= {d["code"] for d in done.json["diagnostics"]}
    first = next(d for d in done.json["diagnostics"] if d["code"] == "unknown-field")
    assert tuple(first[k] for k in ("severity", "file", "line", "column", "end_line", "end_column")) == (
        "error",
        "wrong.yaml",
        3,
        1,
        3,
        8,
    )


@pytest.mark.slow
def test_apply(project):
    """A line for each event: the plan, what is begun and ended, ranks, the summary, the tasks."""
    project.declare(fleet(), task("job", "exit 3"))
    done = project.apply("--json", "--wait", code=4)
    assert done.err == ""
    kinds = list(dict.fromkeys(e["event"] for e in done.events))
    assert kinds == ["plan", "begin", "end", "summary", "rank", "task"]
    assert list(done.events[0]["plan"]) == PLAN
    summary = next(e for e in done.events if e["event"] == "summary")
    counts = {"done": 3, "failed": 0, "skipped": 0}
    assert summary == {"event": "summary", "result": "done", **counts, "health": []}
    assert done.events[-1] == {
        "event": "task",
        "address": "task/job",
        "state": "failed",
        "cause": "rank/job-0 failed: exit code 3",
    }
    again = project.apply("--json").events
    assert [e["event"] for e in again] == ["plan", "summary"]
    gone = project.run("destroy", "--json", "--auto-approve").events
    assert gone[-1] == {"event": "kept", "addresses": []}


BROKEN = "type: task\nnaem: x\n"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("plan", 1), ("plan --offline", 1), ("validate", 1), ("status", 0), ("apply --auto-approve", 1),
        ("destroy --auto-approve", 1), ("state show node/gpu-9", 1),
    ],
)  # fmt: skip
def test_errors_are_json_as_well(project, line, code):
    """A project that is wrong, and a state that cannot be read: stdout is JSON."""
    project.declare(fleet())
    project.apply()
    project.write("broken.yaml", BROKEN)
    for broken in ("project", "state"):
        if broken == "state":
            (project.path / ".fleetform" / "state.db").write_bytes(b"no database" * 100)
            (project.path / "broken.yaml").unlink()
            code = 0 if line == "validate" else 1
        done = project.run(*line.split(), "--json", code=code)
        if line.startswith(("apply", "destroy")):
            assert [e["event"] for e in done.events] == ["error"]
            assert keys(done.events[0]["diagnostics"]) == DIAGNOSTIC
        elif line.startswith("plan"):
            assert list(done.json) == PLAN
            assert done.json["result"] == "error"
            assert keys(done.json["diagnostics"]) == DIAGNOSTIC
        elif line.startswith("status") and broken == "project":
            assert list(done.json) == STATUS
        elif code:
            assert keys(done.json["diagnostics"]) == DIAGNOSTIC


def test_apply_that_does_nothing(project):
    """Not approved, unplaced: JSON lines say so."""
    project.declare(fleet(), task("job", "true"), task("big", "true", resources={"cpu": "64.."}))
    unplaced = project.apply("--json", code=3).events
    assert [e["event"] for e in unplaced] == ["plan"]
    refused = project.run("apply", "--json", "--allow-unplaced", code=1).events
    assert [e["event"] for e in refused] == ["plan", "error"]
    assert refused[1]["diagnostics"][0]["code"] == "not-approved"
    assert json.dumps(refused)
