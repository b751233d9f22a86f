"""Why a task, a rank or a node is as a plan has it, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from declarative.model.diagnostic import Diagnostic
from declarative.model.outputs import Moment, Of
from declarative.model.record import struct
from declarative.model.status import BOOTING, NodeState
from declarative.model.text import clean, ranges, show_mib
from declarative.placement.explain.alternatives import Elsewhere, Instead, Rejected
from declarative.placement.problem import RankVerdict, Refusal, Rejection
from declarative.planner.explain import Answer, LookedAt, NodeAnswer, RankAnswer, TaskAnswer, Why
from declarative.planner.plan import FORMAT_VERSION, Reservation, ReservationStatus
from declarative.render.output_json import diagnostics_json, iso, output
from declarative.render.plan import VERDICT_WORDS, missing_text
from declarative.render.status import Row, map_lines
from declarative.render.status_view import BlockCount
from declarative.render.text import Cell, Paint, columns, money, plural, seal, sentence

FEW = 5
"""How many nodes and offers are shown for each of several ranks; for a single rank all are shown."""

STATUS = {
    "kept": "is there and stays",
    "placed": "is placed by this plan",
    "unplaced": "cannot be placed",
    "ended": "has ended",
    "asleep": "waits for the next start of its `schedule`",
    "removed": "is not declared any more: the plan ends it and gives back what it holds",
    "new": "is launched by this plan",
    "changed": "is changed in place",
    "replaced": "is replaced by this plan",
    "deleted": "is deleted by this plan",
    "gone": "is gone",
}
STYLES = {"unplaced": "red", "deleted": "red", "gone": "red", "new": "green", "placed": "green"}


def explain_text(answer: Answer, *, color: bool, width: int | None) -> str:
    """The whole answer."""
    paint = Paint(color=color)
    lines = _task(answer, paint) if isinstance(answer, TaskAnswer) else _node(answer, paint, width)
    shown = list(lines)
    while shown and not shown[-1]:
        shown.pop()
    return seal(shown, color=color)


def _headline(address: str, status: str, rest: str, paint: Paint) -> str:
    words = paint(STYLES.get(status), STATUS[status])
    return f"{paint('bold', clean(address))} {words}{rest}"


# --------------------------------------------------------------------------------------------- a task


def _task(answer: TaskAnswer, paint: Paint) -> Iterator[str]:
    why = ""
    if answer.reason and answer.status == "placed":  # anew
        because = ": " + ", ".join(map(clean, answer.because)) if answer.because else ""
        why = f" ({answer.reason}{because})"
    yield _headline(answer.address, answer.status, why, paint)
    yield ""
    if answer.refusal:
        yield from _refusal(answer.refusal, paint)
    placed = [(r, r.place) for r in answer.ranks if r.place]
    if placed:
        yield from _placed(answer, placed, paint)
    if answer.status in ("ended", "asleep", "removed", "kept"):
        for rank in answer.ranks:
            if not rank.place:
                yield f"  rank/{clean(rank.name)}: {clean(rank.state)}"
                yield from _why(rank.why)
    if answer.status == "ended":
        name = clean(answer.task)
        if not placed:
            yield ""
        yield f"Its output: `fleetform logs {name}`. Again: `fleetform apply --replace task/{name}`."
    if answer.places:
        nothing, head = "Nothing would hold even one rank of it.", "What would hold one rank of it:"
        yield from _would_do(answer.places, nothing, head, paint, few=False)
        # The refusal lists all others.
        never = [g for g in answer.places.turned_down if (g.what, g.code) == ("offer", "no-offer")]
        yield from _rejected("What the fleets never launch:", never, paint)
    yield from _elsewhere(answer.elsewhere, answer.ranks_count, paint)


def _placed(
    answer: TaskAnswer, placed: Sequence[tuple[RankAnswer, Reservation]], paint: Paint
) -> Iterator[str]:
    """The table of the ranks with a place, and why each is there: alike ranks share one explanation."""
    head = ("rank", "node", "blocks", "where", "type", "volumes", "share", "of USD/h", "state")
    if not any(place.volumes for _, place in placed):
        head = (*head[:5], "", *head[6:])
    rows = [[Cell(text, "dim", right=text in ("rank", "share", "of USD/h")) for text in head]]
    for rank, place in placed:
        volumes = ", ".join(f"{clean(p)}={clean(v)}" for p, v in sorted(place.volumes.items()))
        rows.append(
            [
                Cell(str(rank.rank), right=True),
                Cell(clean(f"node/{place.node}")),
                Cell(f"{ranges(place.blocks)} of {place.total_blocks}"),
                Cell(clean(f"{place.backend}/{place.zone or place.region}")),
                Cell(clean(place.instance_type)),
                Cell(volumes),
                Cell(money(place.price), right=True),
                Cell(money(rank.node_price), right=True),
                Cell("new" if place.status is ReservationStatus.NEW else rank.state),
            ]
        )
    yield from columns(rows, paint)
    shown = len(answer.ranks)
    more = answer.ranks_count - shown
    if more > 0 and shown > 1:
        yield f"  … {more} more: `fleetform explain rank/{clean(answer.task)}-{shown}`"
    yield ""
    alike: dict[object, list[RankAnswer]] = {}
    for rank, place in placed:
        alike.setdefault((rank.why, place.fleet), []).append(rank)
    for ranks in alike.values():
        first = ranks[0]
        yield f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(r.rank for r in ranks)}:"
        yield from _why(first.why)
        yield ""
        if first.instead:
            others = sum(r.like == first.rank for r, _ in placed if r is not first)
            who = f"rank {first.rank}, the others staying where they are"
            also = f" ({plural(others, 'other rank')} alike)" if others else ""
            yield from _instead(first.instead, f"would hold {who}{also}", paint, few=shown > 1)


def _why(why: Sequence[Why]) -> Iterator[str]:
    for reason in why:
        yield f"  - {sentence(reason.text)}"


def _refusal(refusal: Refusal, paint: Paint) -> Iterator[str]:
    """The refusal with all known details, one place a line."""
    yield f"{paint('red', f'[{clean(refusal.code)}]')} {sentence(refusal.summary)}"
    yield ""
    verdicts: dict[str, list[int]] = {}
    for verdict in refusal.ranks:
        verdicts.setdefault(VERDICT_WORDS[verdict.verdict], []).append(verdict.rank)
    for words, numbers in verdicts.items():
        yield f"  {'rank' if len(numbers) == 1 else 'ranks'} {ranges(numbers)}: {words}"
    cause = next((v for v in refusal.ranks if v.rejections), None)
    if cause:
        yield ""
        yield f"What turned rank {cause.rank} down:"
        yield ""
        rows = [[Cell(clean(r.target)), Cell(clean(r.code)), Cell(_detail(r))] for r in cause.rejections]
        yield from columns(rows, paint)
    yield ""
    if refusal.changes:
        yield "It would fit, each by itself:"
        yield ""
        yield from (f"  - {sentence(text)}" for text in refusal.changes)
        yield ""
    if refusal.hint:
        yield f"  {paint('cyan', '=')} hint: {sentence(refusal.hint)}"
        yield ""


def _elsewhere(areas: Sequence[Elsewhere], ranks: int, paint: Paint) -> Iterator[str]:
    if len(areas) < 2:
        return
    yield f"All {ranks} ranks together, wherever they may lie:"
    yield ""
    rows = []
    for area in areas:
        where = "/".join(filter(None, (area.backend, area.region, area.at)))
        launches = plural(area.launches, "launch", "launches")
        outcome = launches if area.launches else "nothing is launched"
        if area.ranks_found < ranks:
            outcome = f"{area.ranks_found} of {ranks} find a place"
        cost = f"+{money(area.hourly)} USD/h" if area.ranks_found == ranks and area.launches else ""
        rows.append(
            [Cell(clean(f"fleet/{area.fleet}")), Cell(clean(where)), Cell(outcome), Cell(cost, right=True)]
        )
    yield from columns(rows, paint)
    yield ""


# --------------------------------------------------------------------------------------------- a node


def _node(answer: NodeAnswer, paint: Paint, width: int | None) -> Iterator[str]:
    yield _headline(answer.address, answer.status, "", paint)
    yield ""
    yield from columns([[Cell(key, "dim"), Cell(text)] for key, text in _facts(answer)], paint)
    yield ""
    if answer.status not in ("deleted", "gone"):
        name = answer.address.removeprefix("node/")
        yield from map_lines(
            [Row(node=name, total=answer.kind.total, holders=answer.holders, note="")], paint, width
        )
        yield ""
    if answer.why or answer.changed:
        yield "Why:"
        yield from _why(answer.why)
        if answer.changed:
            yield f"  - these fields change in place: {', '.join(map(clean, answer.changed))}"
        yield ""
    if answer.instead:
        yield from _instead(answer.instead, "could be launched in its stead", paint, few=False)
    yield from _looked(answer.looked, answer.not_asked, paint)


def _facts(answer: NodeAnswer) -> Iterator[tuple[str, str]]:
    kind, ready = answer.kind, answer.readiness
    state = ready.state.value + (f": {sentence(ready.reason)}" if ready.reason else "")
    if ready.observed_at is not None:
        state += f" (seen {iso(ready.observed_at)})"
    yield "state", state
    if answer.closed:
        yield "work", f"takes no new work: {sentence(answer.closed)}"
    elif answer.status not in ("new", "replaced") and ready.state is not NodeState.READY:
        starts = "starts once it is ready"
        yield "work", starts if ready.state in BOOTING else "takes no new work: only `ready` nodes do"
    yield "fleet", clean(f"fleet/{kind.fleet}")
    yield "where", clean(f"{kind.backend}/{kind.region}" + (f", zone {kind.zone}" if kind.zone else ""))
    yield "type", clean(kind.instance_type) + (", spot" if kind.spot else "")
    shape = kind.shape
    parts = [plural(shape.cpu, "CPU"), show_mib(shape.memory_mib)]
    if shape.gpus:
        name = f" {clean(shape.gpu_name)}" if shape.gpu_name else ""
        parts.append(f"{shape.gpus}{name} {'GPU' if shape.gpus == 1 else 'GPUs'}")
    yield "has", ", ".join(parts) + f", in {plural(kind.total, 'block')}"
    price = "unknown" if kind.price is None else f"{money(kind.price)} USD/h"
    if answer.idle_price:
        price += f", of which {money(answer.idle_price)} for idle blocks"
    yield "price", price


def _looked(groups: Sequence[LookedAt], more: int, paint: Paint) -> Iterator[str]:
    if not groups:
        return
    yield "Tasks without a place that looked at it:"
    yield ""
    rows = []
    for group in groups:
        names = ", ".join(clean(f"task/{t}") for t in group.tasks)
        names += f" and {group.count - len(group.tasks)} more" if group.count > len(group.tasks) else ""
        detail = sentence(group.detail) + missing_text([group.short])
        rows.append([Cell(names), Cell(clean(group.code or "fits")), Cell(detail)])
    yield from columns(rows, paint)
    if more:
        yield f"  … and {plural(more, 'task')} that were not asked"
    yield ""


# --------------------------------------------------------------------------------- what else would do


def _instead(alternatives: Instead, what: str, paint: Paint, *, few: bool) -> Iterator[str]:
    yield from _would_do(alternatives, f"Nothing else {what}.", f"What else {what}:", paint, few=few)
    yield from _rejected("What does not:", alternatives.turned_down, paint)


def _rejected(title: str, groups: Iterable[Rejected], paint: Paint) -> Iterator[str]:
    if rows := [row for group in groups for row in _turned(group)]:
        yield from (title, "", *columns(rows, paint), "")


def _would_do(alternatives: Instead, nothing: str, title: str, paint: Paint, *, few: bool) -> Iterator[str]:
    """The table of nodes and offers that would do; of each at most `FEW` if `few`."""
    if alternatives.nodes_count + alternatives.offers_count == 0:
        yield from (nothing, "")
        return
    most = FEW if few else None
    yield from (title, "")
    head = [Cell(t, "dim", right="USD/h" in t) for t in ("", "blocks", "share, USD/h", "plan, USD/h", "")]
    shown = (alternatives.nodes[:most], alternatives.offers[:most])
    rows = [
        [
            Cell(clean(alternative.target)),
            Cell(f"{alternative.blocks} of {alternative.kind.total}, {alternative.idle} idle"),
            Cell(money(alternative.share), right=True),
            Cell("unknown" if alternative.more is None else _signed(alternative.more), right=True),
            Cell(sentence(alternative.note or "")),
        ]
        for alternative in (*shown[0], *shown[1])
    ]
    yield from columns([head, *rows], paint)
    counts = (alternatives.nodes_count, alternatives.offers_count)
    for noun, count, part in zip(("node", "offer"), counts, shown, strict=True):
        if more := max(0, count - len(part)):
            yield f"  … and {more:,} more {noun if more == 1 else noun + 's'}"
    yield ""


def _signed(price: float) -> str:
    return f"{'-' if price < 0 else '+'}{money(abs(price))}"


def _turned(group: Rejected) -> Iterator[list[Cell]]:
    """The rejected ones: by name if few, else their number, some names and the detail of the first."""
    cheap = f"; {group.cheaper:,} of them cost less" if group.cheaper and group.what == "offer" else ""
    if group.count <= min(2, len(group.examples)):
        for r in group.examples:
            less = "; costs less" if group.cheaper == group.count and cheap else ""
            yield [Cell(clean(r.target)), Cell(clean(r.code)), Cell(_detail(r) + less)]
        return
    first = group.examples[0]
    targets = ", ".join(clean(r.target) for r in group.examples[:2])
    more = group.count - min(2, len(group.examples))
    text = f"such as {targets}: {_detail(first)}{cheap}" if more else f"{targets}: {_detail(first)}{cheap}"
    yield [Cell(f"{group.count:,} {group.what}s"), Cell(clean(group.code)), Cell(text)]


def _detail(rejection: Rejection) -> str:
    return sentence(rejection.detail) + missing_text([rejection.short])


# ------------------------------------------------------------------------------------------------ as JSON


@struct(frozen=True, slots=True, kw_only=True)
class ExplainedRefusalOutput:
    """Why a task has no place."""

    code: str
    summary: str
    proved: bool
    hint: str | None
    changes: tuple[str, ...] | None
    ranks: tuple[RankVerdict, ...]


@struct(frozen=True, slots=True, kw_only=True)
class ResourcesOutput:
    """What a whole node has."""

    cpu: int
    memory_mib: int
    gpus: int
    gpu_name: str | None


@struct(frozen=True, slots=True, kw_only=True)
class NodeOutput:
    """What is printed of a node."""

    state: Annotated[str, Of("readiness.state.value")]
    state_reason: Annotated[str | None, Of("readiness.reason")]
    observed_at: Annotated[Moment | None, Of("readiness.observed_at")]
    closed: str | None
    fleet: Annotated[str, Of("kind.fleet")]
    backend: Annotated[str, Of("kind.backend")]
    region: Annotated[str, Of("kind.region")]
    zone: Annotated[str | None, Of("kind.zone")]
    instance_type: Annotated[str, Of("kind.instance_type")]
    spot: Annotated[bool, Of("kind.spot")]
    resources: Annotated[ResourcesOutput, Of("kind.shape")]
    blocks: Annotated[BlockCount, Of(lambda node: BlockCount(total=node.kind.total, busy=len(node.holders)))]
    holders: Mapping[int, str]
    price: Annotated[float | None, Of("kind.price")]
    idle_price: float | None
    why: tuple[Why, ...]
    changed: tuple[str, ...]
    instead: Instead | None
    looked: tuple[LookedAt, ...]
    not_asked: int


def explain_json(answer: Answer, diagnostics: Sequence[Diagnostic]) -> dict[str, Any]:
    """The answer as data. `kind` tells its keys: `task`, `rank` or `node`."""
    if isinstance(answer, TaskAnswer):
        ranks = []
        for rank in answer.ranks:
            place = rank.place and output(Reservation, rank.place)
            if place:
                del place["task"], place["rank"]  # the answer itself has them
                place["node_price"] = None if rank.node_price is None else round(rank.node_price, 6)
            ranks.append(output(RankAnswer, rank, place=place))
        refusal = answer.refusal and output(ExplainedRefusalOutput, answer.refusal)
        body = output(TaskAnswer, answer, ranks=ranks, refusal=refusal)
    else:
        body = output(NodeOutput, answer)
    return {
        "format_version": FORMAT_VERSION,
        "address": answer.address,
        "kind": answer.address.partition("/")[0],
        "status": answer.status,
        **body,
        "diagnostics": diagnostics_json(diagnostics),
    }
