"""Why tasks cannot be placed: a verdict for each rank, the rejections with their numbers, the hint."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from declarative.model.diagnostic import and_more
from declarative.model.spec.values import show_mib
from declarative.placement.types import SUCH_AS, RankVerdict, Refusal, Rejection, Verdict
from declarative.render.text import Cell, Paint, clean, columns, host_lists, ranges, sentence

LISTED = 7
"""Up to so many rejections are shown one by one; more are grouped by code."""
NAMES = ("gpu_model", "gpu_vendor")
"""What is missing of these is no number."""
NAMED = 3
DETAILED = 20
"""So many refusals are shown in full; of more only the first line."""
WORDS = {Verdict.FITS: "fits", Verdict.NOT_TRIED: "not tried"}
WAITS = "`retry`: it stays pending, and every `fleetform apply` tries again"


def unplaced_lines(
    refusals: Sequence[Refusal],
    paint: Paint,
    *,
    waiting: Collection[str] = frozenset(),
    whole: bool = False,
) -> list[str]:
    """All refusals, those that are alike as one, with an empty line after each; empty when there are none.

    Of many, the later ones have their first line only, unless `whole`.
    """
    if not refusals:
        return []
    out = ["Cannot be placed:", ""]
    groups: list[list[Refusal]] = []
    for alike in together_alike(refusals):
        groups.append([r for r in alike if r.task not in waiting])
        groups.append([r for r in alike if r.task in waiting])
    groups = [group for group in groups if group]
    most = len(groups) if whole else DETAILED
    for alike in groups[:most]:
        out += [*_refusal(alike, paint, waits=alike[0].task in waiting), ""]
    if len(groups) > most:
        out += ["More, without their reasons (`fleetform plan --json` has them):", ""]
        out += [*(headline(alike, paint) for alike in groups[most:]), ""]
    return out


def together_alike(refusals: Sequence[Refusal]) -> list[list[Refusal]]:
    """Refusals that say the same of different tasks, by the first of each."""
    found: dict[tuple[object, ...], list[list[Refusal]]] = {}
    out: list[list[Refusal]] = []
    for refusal in refusals:
        key = (refusal.code, refusal.summary, refusal.hint, len(refusal.ranks))
        same = found.setdefault(key, [])
        group = next((g for g in same if g[0].ranks == refusal.ranks), None)
        if group is None:
            group = []
            same.append(group)
            out.append(group)
        group.append(refusal)
    return out


def headline(alike: Sequence[Refusal], paint: Paint) -> str:
    """`task/big[never-fits]: …`; of many that are alike `task/big-[0-199][never-fits]: 200 alike, each …`."""
    first = alike[0]
    name = paint("bold", _names([r.task for r in alike]))
    count = f"{len(alike)} tasks alike, each " if len(alike) > 1 else ""
    return f"  {name}{paint('red', f'[{clean(first.code)}]')}: {count}{sentence(first.summary)}"


def _names(tasks: list[str]) -> str:
    """The first few, those as one that differ in numbers alone."""
    return and_more((f"task/{names}" for names in host_lists(tasks)), NAMED)


def _refusal(alike: Sequence[Refusal], paint: Paint, *, waits: bool) -> Iterator[str]:
    refusal = alike[0]
    yield headline(alike, paint)
    for verdict in _together(refusal.ranks):
        if isinstance(verdict, RankVerdict):
            yield f"    rank {verdict.rank}: {paint('red', 'cause')}"
            yield from _rejections(verdict.rejections, paint)
        else:
            words, found = verdict
            yield f"    {'rank' if len(found) == 1 else 'ranks'} {ranges(found)}: {words}"
    if refusal.hint:
        yield f"    {paint('cyan', '=')} hint: {sentence(refusal.hint)}"
    if waits:
        yield f"    {paint('cyan', '=')} {WAITS}"


def _together(ranks: Sequence[RankVerdict]) -> Iterator[RankVerdict | tuple[str, list[int]]]:
    """Causes one by one, and neighbours of the other verdicts as one stretch."""
    words = ""
    found: list[int] = []
    for item in ranks:
        verdict = WORDS.get(item.verdict, "")
        if found and verdict != words:
            yield words, found
            found = []
        words = verdict
        if item.verdict is Verdict.CAUSE:
            yield item
        else:
            found.append(item.rank)
    if found:
        yield words, found


def _rejections(rejections: Sequence[Rejection], paint: Paint) -> Iterator[str]:
    if len(rejections) <= LISTED and all(r.count == 1 for r in rejections):
        rows = [
            [Cell(clean(r.target)), Cell(clean(r.code)), Cell(sentence(r.detail) + _missing([r]))]
            for r in rejections
        ]
        yield from columns(rows, paint, indent=" " * 6)
        return
    groups: dict[str, list[Rejection]] = {}
    for item in rejections:
        groups.setdefault(item.code, []).append(item)
    rows = [
        [Cell(str(sum(r.count for r in found)), right=True), Cell(clean(code)), Cell(_group(found))]
        for code, found in groups.items()
    ]
    yield from columns(rows, paint, indent=" " * 6)


def _group(found: Sequence[Rejection]) -> str:
    """Some of the targets, the detail of the nearest one, and the bounds of what they lack.

    Where some are only counted, the bounds of all are not known, but how far the nearest is off.
    """
    single = [r for r in found if r.count == 1]
    named = [clean(r.target) for r in single[:NAMED]]
    names, rest = ", ".join(named), sum(r.count for r in found) - len(named)
    if rest:
        names = f"{names} and {rest} more" if names else f"{rest} of them"
    nearest = min(found, key=lambda r: (_shortage(r), r.count == 1))
    bounds = found if len(single) == len(found) else [nearest]
    return f"{names}: {sentence(_detail(nearest, found))}{_missing(bounds)}"


def _detail(nearest: Rejection, found: Sequence[Rejection]) -> str:
    """The detail of the nearest target, marked as such where others differ."""
    detail = nearest.detail.partition(SUCH_AS)[2] if nearest.count > 1 else nearest.detail
    if all(r.detail == nearest.detail for r in found):
        return detail
    return f"{'the nearest: ' if nearest.short else 'e.g. '}{detail}"


def _shortage(item: Rejection) -> float:
    return sum(map(abs, item.short.values()))


def _missing(found: Sequence[Rejection]) -> str:
    """`; short by blocks 2-6`, `; over by memory 2GB`: the numbers of all of them."""
    bounds: dict[str, tuple[float, float]] = {}
    for item in found:
        for key, number in item.short.items():
            if key in NAMES:
                continue
            low, high = bounds.get(key, (number, number))
            bounds[key] = (min(low, number), max(high, number))
    texts = [_bound(key, *bounds[key]) for key in sorted(bounds)]
    return f"; {', '.join(texts)}" if texts else ""


def _bound(key: str, low: float, high: float) -> str:
    if key == "price":
        return f"over by {_span('', low, high)} USD/h"
    word = "over by" if high < 0 else "short by"
    low, high = sorted((abs(low), abs(high))) if high < 0 else (low, high)
    noun = clean(key).removesuffix("_mib").replace("_", " ")
    if (low, high) == (1, 1) and key in ("blocks", "nodes"):
        noun = noun.removesuffix("s")
    return f"{word} {_span(key, low, high)} {noun}"


def _span(key: str, low: float, high: float) -> str:
    ends = dict.fromkeys(show_mib(int(n)) if key.endswith("_mib") else f"{n:g}" for n in (low, high))
    return " to ".join(ends)
