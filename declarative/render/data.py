"""The data that `--json` prints, with the contract's keys in their order, and the one way to write it.

The contract: docs/architecture.md, "The plan".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from declarative.model.diagnostic import Diagnostic
from declarative.placement.problem import Refusal
from declarative.planner.approval import approval_in
from declarative.planner.health import Health
from declarative.planner.json_values import fallbacks_data, inputs_data, moved_data, number, plain
from declarative.planner.plan import FORMAT_VERSION, Action, Drift, Loss, Origin, Part, Plan, Reservation
from declarative.planner.serves import hourly_at_most
from declarative.planner.shares import fleet_shares
from declarative.render.views import FleetView, NodeView, StatusView, TaskView

_RAW = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]|#(?=#\\w*\\[)")
"""Characters that `json` does not escape, and that a terminal, an encoder or a CI agent (`##[…]`) may
misread.
"""


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"


def to_json(data: Any) -> str:
    """Indented JSON with a newline at its end. The same data gives the same bytes.

    Keys keep the order of the contract. Control characters are escaped, also those that JSON allows, so that
    the text is safe to print. `NaN` raises ValueError, since it is not JSON.
    """
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    return _RAW.sub(_escape, text) + "\n"


def to_line(data: Any) -> str:
    """As `to_json`, on one line and without a newline at its end: for streams of events."""
    return _RAW.sub(_escape, json.dumps(data, ensure_ascii=False, allow_nan=False))


def to_event(data: Mapping[str, Any]) -> str:
    """One event of a stream as a line, with its `time`: UTC, to the millisecond."""
    return to_line({**data, "time": iso_ms(datetime.now(tz=UTC).timestamp())})


def diagnostics_json(diagnostics: Iterable[Diagnostic]) -> list[dict[str, object]]:
    """The findings as data, in the order given."""
    return [item.to_json() for item in diagnostics]


def validate_json(valid: bool, diagnostics: Iterable[Diagnostic]) -> dict[str, Any]:
    """What `validate --json` prints."""
    return {"valid": valid, "diagnostics": diagnostics_json(diagnostics)}


def plan_json(plan: Plan) -> dict[str, Any]:
    """What `plan --json` prints."""
    wanted = {str(a.task): inputs_data(a) for a in plan.unplaced.starts}
    covered: dict[str, Any] = {
        "lineage": plan.basis.lineage,
        "actions": [_action(action) for action in plan.actions],
        "moved": moved_data(plan),
        "unplaced": [{**_refusal(r), **wanted.get(r.task, _NOTHING)} for r in plan.unplaced.refusals],
        "fallbacks": fallbacks_data(plan),
    }
    return {
        "format_version": FORMAT_VERSION,
        **origin_json(plan.origin),
        "lineage": covered["lineage"],
        "serial": plan.basis.serial,
        "result": plan.result,
        **approval_in(covered).to_json(),
        "moved": covered["moved"],
        "selection": _selection(plan.scope.part),
        "refresh_only": plan.scope.refresh_only,
        "actions": covered["actions"],
        "reservations": [_reservation(item) for item in plan.reservations],
        "fallbacks": covered["fallbacks"],
        "unplaced": covered["unplaced"],
        "remedies": [{"change": r.text, "tasks": list(r.tasks)} for r in plan.unplaced.remedies],
        "queued": [
            {
                "task": item.task,
                "behind": list(item.holders),
                "behind_until": iso(item.until),
                "expected_start": iso(item.expected),
            }
            for item in plan.preview.queued
        ],
        "health": health_json(plan.health),
        "drift": _drift(plan.observed.drift),
        "differences": [
            {
                "address": d.address,
                "field": d.field,
                "before": plain(d.before),
                "after": plain(d.after),
                "replaced": d.replaced,
            }
            for d in plan.observed.differences
        ],
        "losses": [
            {
                "address": loss.address,
                "what": loss_text(loss),
                "who": loss.task,
                "file": loss.file,
                "line": loss.line,
            }
            for loss in plan.losses
        ],
        "cost": {
            "hourly_before": number(plan.preview.cost.before),
            "hourly_after": number(plan.preview.cost.after),
            "hourly_at_most": number(hourly_at_most(plan)),
            "bound_hourly": number(plan.preview.cost.bound),
            "currency": "USD",
            "excludes": list(plan.preview.cost.excludes),
            "fleets": [
                {
                    "fleet": fleet.fleet,
                    "nodes": fleet.nodes,
                    "hourly": number(fleet.hourly),
                    "tasks": [{"task": t.task, "hourly": number(t.hourly)} for t in fleet.tasks],
                }
                for fleet in fleet_shares(node for node in plan.preview.nodes if node.stays)
            ],
        },
        "summary": {**plan.summary(), "restarts": plan.restarts, "stops": plan.stops},
        "diagnostics": diagnostics_json(plan.diagnostics),
    }


def origin_json(origin: Origin) -> dict[str, str | bool | None]:
    """Which project a plan or a run is of."""
    return {
        "project": origin.project,
        "environment": origin.environment,
        "state": origin.state,
        "commit": origin.commit,
        "changed": origin.changed,
    }


def loss_text(loss: Loss) -> str:
    """`its content (1GB, unused since 2026-03-01)`."""
    used = None if loss.unused_since is None else f"unused since {(iso(loss.unused_since) or '')[:10]}"
    words = [word for word in (loss.size, f"in use by {loss.task}" if loss.task else used) if word]
    return f"its content ({', '.join(words)})" if words else "its content"


def _selection(part: Part | None) -> dict[str, list[str]] | None:
    if part is None:
        return None
    return {
        "targets": list(part.targets),
        "excludes": list(part.excludes),
        "needed": list(part.needed),
        "left_out": list(part.left_out),
        "held_up": list(part.held_up),
    }


_NOTHING: dict[str, Any] = {"before": None, "after": None}


def _action(action: Action) -> dict[str, Any]:
    return {
        "id": action.id,
        "op": action.op.value,
        "address": str(action.address),
        "reason": action.reason.value,
        "because": list(action.because),
        **inputs_data(action),
        "needs": list(action.needs),
        "forget": action.forgets,
        "ends": action.ends,
    }


def _reservation(item: Reservation) -> dict[str, Any]:
    return {"task": item.task, "rank": item.rank, **place_data(item)}


def place_data(item: Reservation) -> dict[str, Any]:
    """Where a rank is, and its price there."""
    return {
        "node": item.node,
        "fleet": item.fleet,
        "new_node": item.new_node,
        "blocks": list(item.blocks),
        "total_blocks": item.total_blocks,
        "volumes": plain(item.volumes),
        "backend": item.backend,
        "region": item.region,
        "zone": item.zone,
        "instance_type": item.instance_type,
        "price": number(item.price),
        "status": item.status.value,
        "restart": item.restart,
    }


def _refusal(item: Refusal) -> dict[str, Any]:
    ranks = [
        {
            "rank": found.rank,
            "verdict": found.verdict.value,
            "rejections": [
                {
                    "target": r.target,
                    "code": r.code,
                    "detail": r.detail,
                    "short": {key: round(r.short[key], 6) for key in sorted(r.short)},
                }
                for r in found.rejections
            ],
        }
        for found in item.ranks
    ]
    return {
        "task": item.task,
        "code": item.code,
        "summary": item.summary,
        "proved": item.proved,
        "hint": item.hint,
        "starts": item.starts,
        "changes": None if item.changes is None else list(item.changes),
        "ranks": ranks,
    }


def iso(seconds: float | None) -> str | None:
    """`2026-01-31T12:00:00Z`; None for None and for times outside the calendar."""
    with suppress(ValueError, OverflowError, OSError):
        if seconds is not None:
            return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return None


def iso_ms(seconds: float) -> str:
    """`2026-01-31T12:00:00.250Z`."""
    at = datetime.fromtimestamp(seconds, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def health_json(items: Iterable[Health]) -> list[dict[str, Any]]:
    """The things that are not well, as data."""
    return [
        {
            "address": i.address,
            "host": i.host,
            "state": i.state,
            "since": iso(i.since),
            "given_up_at": iso(i.until),
            "detail": i.detail,
            "hint": i.hint,
        }
        for i in items
    ]


def _drift(found: Iterable[Drift]) -> list[dict[str, str]]:
    return [{"address": d.address, "change": d.change, "detail": d.detail} for d in found]


def status_json(view: StatusView) -> dict[str, Any]:
    """What `status --json` prints."""
    return {
        "format_version": FORMAT_VERSION,
        "lineage": view.lineage,
        "serial": view.serial,
        "fleets": [_fleet(fleet) for fleet in view.fleets],
        "nodes": [_node(node) for node in view.nodes],
        "volumes": [{"name": v.name, "state": v.state, "node": v.node} for v in view.volumes],
        "tasks": [_task(task) for task in view.tasks],
        "health": health_json(view.health),
        "drift": _drift(view.drift),
        "left_alone": [
            {
                "backend": a.backend,
                "part": a.part or None,
                "since": iso(a.since),
                "until": iso(a.until),
                "why": a.why,
            }
            for a in view.left_alone
        ],
        "limits": [{"limit": x.name, "most": number(x.most), "now": number(x.now)} for x in view.limits],
        "spent": view.spent and {"month": view.spent.month, "usd": round(view.spent.dollars, 2)},
    }


def _blocks(total: int, busy: int) -> dict[str, int]:
    return {"total": total, "busy": busy, "idle": total - busy}


def _fleet(fleet: FleetView) -> dict[str, Any]:
    return {
        "name": fleet.name,
        "nodes": fleet.nodes,
        "blocks": _blocks(fleet.total, fleet.busy),
        "hourly": number(fleet.hourly),
    }


def _node(node: NodeView) -> dict[str, Any]:
    return {
        "name": node.name,
        "fleet": node.fleet,
        "state": node.state,
        "backend": node.backend,
        "region": node.region,
        "zone": node.zone,
        "instance_type": node.instance_type,
        "price": number(node.price),
        "observed_at": iso(node.observed_at),
        "silent_since": iso(node.silence.since if node.silence else None),
        "given_up_at": iso(node.silence.until if node.silence else None),
        "resources": {key: getattr(node.resources, key) for key in ("cpu", "memory_mib", "gpus")},
        "blocks": _blocks(node.total, node.busy),
        "holders": {str(block): node.holders[block] for block in sorted(node.holders)},
        "rehearsal": node.rehearsal,
        "drained": node.drained and {"since": node.drained.since, "reason": node.drained.reason},
    }


def _task(task: TaskView) -> dict[str, Any]:
    ranks = [
        {
            "rank": r.rank,
            "node": r.node,
            "state": r.state,
            "exit_code": r.exit_code,
            "attempt": r.attempt,
            "cause": r.cause,
            "started_at": iso(r.started_at),
            "ended_at": iso(r.ended_at),
        }
        for r in task.ranks
    ]
    retry = task.retry
    return {
        "name": task.name,
        "state": task.state,
        "ranks": ranks,
        "cause": task.cause,
        "started_at": iso(task.started_at),
        "ended_at": iso(task.ended_at),
        "seconds": None if task.seconds is None else round(task.seconds, 3),
        "waiting_since": iso(task.waiting_since),
        "stopped": task.stopped,
        "retry": retry
        and {
            "runs_again": retry.runs_again,
            "attempt": retry.attempt,
            "max_attempts": retry.max_attempts,
            "after": iso(retry.after),
            "until": iso(retry.until),
            "why": retry.why,
        },
    }
