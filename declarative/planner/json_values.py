"""Values of a plan as JSON, in the form that `plan --json` prints and that its digest covers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType
from typing import Any

from declarative.model.inputs import OfferKey, data_of
from declarative.planner.plan import Action, Plan
from declarative.planner.serves import stand_ins


def plain(value: Any) -> Any:
    """Inputs as JSON. Mappings are sorted by key, since a database may return them in another order."""
    if isinstance(value, Mapping):
        return {str(key): plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, (bool, int, NoneType)) else str(value)


def number(value: float | None) -> float | None:
    """An amount of money without what only the way of computing it adds."""
    return None if value is None else round(float(value), 6)


def inputs_data(action: Action) -> dict[str, Any]:
    """The inputs of an action's thing, before and after."""
    return {
        "before": None if action.before is None else plain(data_of(action.before)),
        "after": None if action.after is None else plain(data_of(action.after)),
    }


def moved_data(plan: Plan) -> list[dict[str, Any]]:
    """The renames."""
    return [
        {"from": m.source, "to": m.target, "addresses": [{"from": a, "to": b} for a, b in m.addresses]}
        for m in plan.scope.moved
    ]


def fallbacks_data(plan: Plan) -> list[dict[str, Any]]:
    """What may be launched where planned offers are sold out."""
    return [
        {
            "for": [f"node/{name}" for name in item.names],
            "together": item.together,
            "offers": [
                {**OfferKey.of(offer)._asdict(), "price": number(offer.price)} for offer in item.offers
            ],
            "hourly_at_most": number(item.at_most),
        }
        for item in stand_ins(plan)
    ]
