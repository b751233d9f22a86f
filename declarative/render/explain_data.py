"""The data that `explain --json` prints, its keys in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from declarative.model.diagnostic import Diagnostic
from declarative.placement.explain.alternatives import Alternative, Instead, Rejected
from declarative.placement.problem import NodeType, Refusal, Rejection
from declarative.planner.explain import Answer, NodeAnswer, RankAnswer, TaskAnswer, Why
from declarative.planner.plan import FORMAT_VERSION, Reservation
from declarative.render.data import diagnostics_json, iso, place_data


def explain_json(answer: Answer, diagnostics: Sequence[Diagnostic]) -> dict[str, Any]:
    """The answer as data. `kind` tells its keys: `task`, `rank` or `node`."""
    body = _task(answer) if isinstance(answer, TaskAnswer) else _node(answer)
    return {
        "format_version": FORMAT_VERSION,
        "address": answer.address,
        "kind": answer.address.partition("/")[0],
        "status": answer.status,
        **body,
        "diagnostics": diagnostics_json(diagnostics),
    }


def _number(value: float | None) -> float | None:
    return None if value is None else round(float(value), 6)


def _why(why: Sequence[Why]) -> list[dict[str, str]]:
    return [{"key": w.key, "text": w.text} for w in why]


def _rounded(short: Mapping[str, float]) -> dict[str, float]:
    return {key: round(short[key], 6) for key in sorted(short)}


def _task(answer: TaskAnswer) -> dict[str, Any]:
    return {
        "task": answer.task,
        "reason": answer.reason,
        "because": list(answer.because),
        "ranks_count": answer.ranks_count,
        "ranks": [_rank(r) for r in answer.ranks],
        "refusal": _refusal(answer.refusal),
        "places": _instead(answer.places),
        "elsewhere": [
            {
                "fleet": e.fleet,
                "backend": e.backend,
                "region": e.region,
                "at": e.at or None,
                "ranks_found": e.found,
                "launches": e.launches,
                "hourly": _number(e.cost),
            }
            for e in answer.elsewhere
        ],
    }


def _rank(item: RankAnswer) -> dict[str, Any]:
    return {
        "rank": item.rank,
        "state": item.state,
        "place": _place(item.place, item.node_price),
        "why": _why(item.why),
        "instead": _instead(item.instead),
        "instead_of_rank": item.like,
    }


def _place(item: Reservation | None, node_price: float | None) -> dict[str, Any] | None:
    return None if item is None else {**place_data(item), "node_price": _number(node_price)}


def _refusal(item: Refusal | None) -> dict[str, Any] | None:
    if item is None:
        return None
    return {
        "code": item.code,
        "summary": item.summary,
        "proved": item.proved,
        "hint": item.hint,
        "changes": None if item.changes is None else list(item.changes),
        "ranks": [
            {
                "rank": v.rank,
                "verdict": v.verdict.value,
                "rejections": [_rejection(r) for r in v.rejections],
            }
            for v in item.ranks
        ],
    }


def _rejection(item: Rejection) -> dict[str, Any]:
    return {
        "target": item.target,
        "code": item.code,
        "detail": item.detail,
        "short": _rounded(item.short),
        "count": item.count,
    }


def _instead(found: Instead | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "nodes_count": found.nodes_count,
        "nodes": [_alternative(a) for a in found.nodes],
        "offers_count": found.offers_count,
        "offers_cheaper": found.cheaper,
        "offers": [_alternative(a) for a in found.offers],
        "turned_down": [_turned(t) for t in found.turned],
    }


def _alternative(item: Alternative) -> dict[str, Any]:
    kind = item.kind
    return {
        "target": item.target,
        **_kind(kind),
        "blocks": item.blocks,
        "idle_blocks": item.idle,
        "total_blocks": kind.total,
        "price": _number(item.share),
        "node_price": _number(kind.price),
        "plan_hourly_change": _number(item.more),
        "note": item.note,
    }


def _turned(item: Rejected) -> dict[str, Any]:
    return {
        "what": item.what,
        "code": item.code,
        "count": item.count,
        "cheaper": item.cheaper,
        "examples": [_rejection(r) for r in item.examples],
    }


def _node(answer: NodeAnswer) -> dict[str, Any]:
    kind, ready = answer.kind, answer.readiness
    busy = len(answer.holders)
    return {
        "state": ready.state.value,
        "state_reason": ready.reason,
        "observed_at": iso(ready.observed_at),
        "closed": answer.closed,
        **_shape(kind),
        "blocks": {"total": kind.total, "busy": busy, "idle": kind.total - busy},
        "holders": {str(block): answer.holders[block] for block in sorted(answer.holders)},
        "price": _number(kind.price),
        "idle_price": _number(answer.idle_price),
        "why": _why(answer.why),
        "changed": list(answer.changed),
        "instead": _instead(answer.instead),
        "looked": [
            {
                "code": item.code,
                "detail": item.detail,
                "short": _rounded(item.short),
                "count": item.count,
                "tasks": list(item.tasks),
            }
            for item in answer.looked
        ],
        "not_asked": answer.not_asked,
    }


def _shape(kind: NodeType) -> dict[str, Any]:
    shape = kind.shape
    return {
        **_kind(kind),
        "resources": {
            "cpu": shape.cpu,
            "memory_mib": shape.memory_mib,
            "gpus": shape.gpus,
            "gpu_name": shape.gpu_name,
        },
    }


def _kind(kind: NodeType) -> dict[str, Any]:
    return {
        "fleet": kind.fleet,
        "backend": kind.backend,
        "region": kind.region,
        "zone": kind.zone,
        "instance_type": kind.instance_type,
        "spot": kind.spot,
    }
