"""The project's `limits`: a plan that goes beyond one is an error, told at the line of the limit.

What is there already may be beyond a limit that was set later: a plan that does not add to it is no error.
A price that nobody knows is never taken for 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from declarative.model.diagnostic import Diagnostic, Severity, and_more, in_order
from declarative.model.inputs import NodeInputs
from declarative.model.resource import Desired
from declarative.model.spec.limits import HOURS_A_MONTH
from declarative.model.state import natural
from declarative.planner.preview import total_price
from declarative.planner.types import Action, Fallback, Op, Plan, Spare

MOST_NAMED = 5
ROUNDING = 1e-6
"""USD an hour."""


def limited(plan: Plan, desired: Desired) -> Plan:
    """The plan, with an error for each limit that it breaks, and without fallbacks that would break one."""
    limits = desired.project.limits
    known = {d.address for d in plan.diagnostics if d.code == "protected"}
    found = [*_cost(plan, desired), *_nodes(plan, desired), *_guarded(plan, desired, known)]
    if limits.hourly is not None and plan.preview.fallbacks:
        plan = replace(plan, preview=replace(plan.preview, fallbacks=_affordable(plan, limits.hourly[1])))
    return replace(plan, diagnostics=in_order((*plan.diagnostics, *found))) if found else plan


def _cost(plan: Plan, desired: Desired) -> Iterator[Diagnostic]:
    limit = desired.project.limits.hourly
    if limit is None:
        return
    name, most = limit
    staying = [n for n in plan.preview.nodes if n.status != "deleted"]
    unknown = [f"node/{n.name}" for n in staying if n.price is None]
    made = {str(a.address) for a in plan.actions if a.op is Op.CREATE}
    after = total_price(n.price for n in staying if n.price is not None) or 0.0
    before = plan.preview.cost.before
    grows = _made(plan, Op.CREATE) > 0 and (before is None or after > before + ROUNDING)
    factor, unit = (HOURS_A_MONTH, "USD a month") if name == "cost_per_month" else (1, "USD/h")
    if after > most + ROUNDING:
        least = "at least " if unknown else ""
        summary = (
            f"all nodes would cost {least}{after * factor:,.2f} {unit}; the limit is {most * factor:,.2f}"
        )
        yield _beyond(desired, name, summary, f"declare less, or raise `limits.{name}`", error=grows)
    elif unknown:
        named = and_more(sorted(unknown, key=natural), MOST_NAMED)
        summary = f"nobody knows the price of {named}, so the cost may be above `limits.{name}`"
        hint = "write the prices into the backend's catalog, or use offers whose prices are known"
        yield _beyond(desired, name, summary, hint, error=not made.isdisjoint(unknown))


def _nodes(plan: Plan, desired: Desired) -> Iterator[Diagnostic]:
    most = desired.project.limits.nodes
    after = sum(n.status != "deleted" for n in plan.preview.nodes)
    if most is None or after <= most:
        return
    before = after - _made(plan, Op.CREATE) + _made(plan, Op.DELETE)
    summary = f"there would be {after} nodes; the limit is {most}"
    yield _beyond(desired, "nodes", summary, "declare less, or raise `limits.nodes`", error=after > before)


def _made(plan: Plan, op: Op) -> int:
    """How many nodes are created, or deleted."""
    return sum(a.op is op and a.address.kind == "node" for a in plan.actions)


def _guarded(plan: Plan, desired: Desired, known: set[str | None]) -> Iterator[Diagnostic]:
    """What would be deleted or replaced although `limits.protected` names it."""
    again = {a.address for a in plan.actions if a.op is Op.CREATE}
    for action in plan.actions:
        pattern = desired.guard(*_names(action)) if action.op is Op.DELETE and not action.forgets else None
        if pattern is None or str(action.address) in known:
            continue
        what = "replaced" if action.address in again else "deleted"
        index = desired.project.limits.protected.index(pattern)
        yield Diagnostic(
            code="protected",
            summary=f"{action.address} would be {what}, and the project's `limits.protected` has `{pattern}`",
            hint="undo the change, or take the entry out of `limits.protected`",
            address=str(action.address),
            span=desired.places.get(f"limits.protected.{index}"),
        )


def _names(action: Action) -> tuple[str, ...]:
    """What patterns may call it."""
    found, address = action.typed, str(action.address)
    if isinstance(found, NodeInputs):
        return address, f"fleet/{found.fleet}"
    return address, address.rpartition("-")[0]


def _beyond(desired: Desired, name: str, summary: str, hint: str, *, error: bool) -> Diagnostic:
    return Diagnostic(
        code="over-limit",
        summary=summary if error else f"{summary}; this plan does not add to it",
        hint=hint,
        span=desired.places.get(f"limits.{name}"),
        severity=Severity.ERROR if error else Severity.WARNING,
    )


def _affordable(plan: Plan, most: float) -> tuple[Fallback, ...]:
    """The ways that keep the limit, whichever of them come to pass together."""
    prices = {a.address.name: a.typed.price for a in plan.actions if isinstance(a.typed, NodeInputs)}
    room = most - (plan.preview.cost.after or 0.0) + ROUNDING
    out: list[Fallback] = []
    for fallback in plan.preview.fallbacks:
        extras = [_extra(fallback.kinds, way, prices) for way in fallback.ways]
        fits = [extra is not None and extra <= room for extra in extras]
        ways = tuple(way for way, fit in zip(fallback.ways, fits, strict=True) if fit)
        if ways:
            room -= max(extra for extra, fit in zip(extras, fits, strict=True) if fit and extra is not None)
            out.append(replace(fallback, ways=ways))
    return tuple(out)


def _extra(
    kinds: tuple[tuple[str, ...], ...], way: tuple[Spare, ...], prices: Mapping[str, float | None]
) -> float | None:
    """What a way costs more than planned, USD an hour, at most; None if that is unknown."""
    total = 0.0
    for names, spare in zip(kinds, way, strict=True):
        for name in names:
            planned = prices.get(name)
            if spare.offer.price is None or planned is None:
                return None
            total += max(0.0, spare.offer.price - planned)
    return total
