"""Why tasks cannot be placed: a verdict for each rank, the rejections with their numbers, the hint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from declarative.placement import RankVerdict, Refusal, Rejection, Verdict
from declarative.render.text import Cell, Paint, clean, columns, ranges, sentence
from declarative.spec.values import show_mib

LISTED = 5
"""Up to so many rejections are listed one by one; more are grouped by code."""
NAMED = 3
WORDS = {Verdict.FITS: "fits", Verdict.NOT_TRIED: "not tried"}


def unplaced_lines(refusals: Sequence[Refusal], paint: Paint) -> list[str]:
    """All refusals, with an empty line after each; empty when everything has its place."""
    if not refusals:
        return []
    out = ["Cannot be placed:", ""]
    for refusal in refusals:
        out += [*_refusal(refusal, paint), ""]
    return out


def headline(refusal: Refusal, paint: Paint) -> str:
    """`task/big[never-fits]: …`."""
    name = paint("bold", clean(f"task/{refusal.task}"))
    return f"  {name}{paint('red', f'[{clean(refusal.code)}]')}: {sentence(refusal.summary)}"


def _refusal(refusal: Refusal, paint: Paint) -> Iterator[str]:
    yield headline(refusal, paint)
    for verdict in _together(refusal.ranks):
        if isinstance(verdict, RankVerdict):
            yield f"    rank {verdict.rank}: {paint('red', 'cause')}"
            yield from _rejections(verdict.rejections, paint)
        else:
            words, found = verdict
            yield f"    {'rank' if len(found) == 1 else 'ranks'} {ranges(found)}: {words}"
    if refusal.hint:
        yield f"    {paint('cyan', '=')} hint: {sentence(refusal.hint)}"


def _together(ranks: Sequence[RankVerdict]) -> Iterator[RankVerdict | tuple[str, list[int]]]:
    """Causes one by one, and neighbours of the other verdicts as one stretch."""
    words = ""
    found: list[int] = []
    for item in ranks:
        said = WORDS.get(item.verdict, "")
        if found and said != words:
            yield words, found
            found = []
        words = said
        if item.verdict is Verdict.CAUSE:
            yield item
        else:
            found.append(item.rank)
    if found:
        yield words, found


def _rejections(rejections: Sequence[Rejection], paint: Paint) -> Iterator[str]:
    if len(rejections) <= LISTED:
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
        [Cell(str(len(found)), right=True), Cell(clean(code)), Cell(_group(found))]
        for code, found in groups.items()
    ]
    yield from columns(rows, paint, indent=" " * 6)


def _group(found: Sequence[Rejection]) -> str:
    """Some of the targets, what is said of them, and between which bounds they are short."""
    names = ", ".join(clean(r.target) for r in found[:NAMED])
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    details = list(dict.fromkeys(r.detail for r in found))
    example = "e.g. " if len(details) > 1 else ""
    return f"{names}{more}: {example}{sentence(details[0])}{_missing(found)}"


def _missing(found: Sequence[Rejection]) -> str:
    """`; short by blocks 2-6`, `; over by memory 2GB`: the numbers of all of them."""
    bounds: dict[str, tuple[float, float]] = {}
    for item in found:
        for key, number in item.short.items():
            low, high = bounds.get(key, (number, number))
            bounds[key] = (min(low, number), max(high, number))
    texts = [_bound(key, *bounds[key]) for key in sorted(bounds)]
    return f"; {', '.join(texts)}" if texts else ""


def _bound(key: str, low: float, high: float) -> str:
    if key == "price":
        return f"over by {_span('', low, high)} USD/h"
    word = "over by" if high < 0 else "short by"
    low, high = sorted((abs(low), abs(high))) if high < 0 else (low, high)
    return f"{word} {_span(key, low, high)} {clean(key).removesuffix('_mib').replace('_', ' ')}"


def _span(key: str, low: float, high: float) -> str:
    ends = dict.fromkeys(show_mib(int(n)) if key.endswith("_mib") else f"{n:g}" for n in (low, high))
    return " to ".join(ends)
