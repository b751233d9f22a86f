"""The fallbacks of a plan as text: what is launched where planned offers are sold out, and for how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from declarative.model.inputs import OfferInputs
from declarative.model.text import clean, host_lists
from declarative.planner.plan import Plan
from declarative.planner.serves import StandIn, hourly_at_most, stand_ins
from declarative.render.text import Paint, money, wrapped

SAME = 5e-5
"""USD an hour; less is not shown."""
MOST_APART = 3
"""So many neighbouring zones become `us-east-1b…d`."""


def fallback_lines(plan: Plan, paint: Paint, width: int | None) -> list[str]:
    """A line for all nodes with the same fallbacks; empty if there are none."""
    alike: dict[str, list[str]] = {}
    for item in stand_ins(plan):
        alike.setdefault(_text(item), []).extend(item.names)
    if not alike:
        return []
    lines = ["Fallbacks (USD/h):", ""]
    for text, names in alike.items():
        nodes = ", ".join(host_lists(clean(f"node/{name}") for name in names))
        each = " each" if len(names) > 1 else ""
        lines += wrapped(f"  {paint('bold', nodes)}  if sold out: {text}{each}", width)
    return [*lines, ""]


def at_most_text(plan: Plan) -> str:
    """What follows the cost if fallbacks may make it higher: `; at most 36.05 if offers are sold out`."""
    after, most = plan.preview.cost.after, hourly_at_most(plan)
    if after is None or (most is not None and most <= after + SAME):
        return ""
    amount = f"at most {money(most)}" if most is not None else "an unknown price"
    return f"; {amount} if offers are sold out"


def _text(item: StandIn) -> str:
    """`us-east-1b…f, at most 36.05`; together: a cluster goes to one of the places."""
    kinds: dict[tuple[str, str, bool], list[OfferInputs]] = {}
    for offer in item.offers:
        kinds.setdefault((offer.backend, offer.instance_type, offer.spot), []).append(offer)
    texts = [_offers_text(item.planned, offers) for offers in kinds.values()]
    price = "at an unknown price" if item.at_most is None else f"at most {money(item.at_most)}"
    return f"{'; '.join(texts)}, {price}"


def _offers_text(planned: OfferInputs | None, offers: Sequence[OfferInputs]) -> str:
    """The places of offers of one type, and whatever else differs from the planned offer."""
    first = offers[0]
    places = ", ".join(_places([clean(offer.zone or offer.region) for offer in offers]))
    type_ = "" if planned and planned.instance_type == first.instance_type else clean(first.instance_type)
    backend = "" if planned and planned.backend == first.backend else f"of {clean(first.backend)}"
    spot = "" if planned and planned.spot == first.spot else "as spot" if first.spot else "on demand"
    kind = " ".join(text for text in (type_, backend, spot) if text)
    return f"{kind} in {places}" if kind else places


def _places(names: Sequence[str]) -> Iterator[str]:
    """The places, neighbours in the alphabet together: `us-east-1b…f`."""
    runs: list[list[str]] = []
    for name in sorted(dict.fromkeys(names)):
        last = runs[-1][-1] if runs else ""
        follows = (
            last[:-1] == name[:-1] and last[-1:].isalpha() and ord(name[-1:] or "\0") == ord(last[-1]) + 1
        )
        if follows:
            runs[-1].append(name)
        else:
            runs.append([name])
    for run in runs:
        if len(run) >= MOST_APART:
            yield f"{run[0]}…{run[-1][-1]}"
        else:
            yield from run
