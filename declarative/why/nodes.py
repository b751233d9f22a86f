"""Why a node that is launched is of its offer, and what turned a node down for tasks that have no place.

Recounted from the finished plan, as in `why`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from declarative.placement.board import Option
from declarative.placement.filters import Mismatch
from declarative.placement.types import Ask, Kind, Node, Rejection, of_node, offer_name
from declarative.placement.wishes import Domain, Job
from declarative.why.alternatives import (
    MOST,
    NAMED,
    Alternative,
    Instead,
    Recount,
    Scene,
    Turned,
    Weighed,
    barred_reason,
)


def launched(scene: Scene, node: Node, seated: Sequence[tuple[Ask, int, Domain]]) -> Instead:
    """Why a node that is launched is of its offer: what else could be launched for all who sit on it."""
    bare = scene.without(set(node.held.values()))
    bare = replace(bare, nodes=tuple(n for n in bare.nodes if n.name != node.name))
    recount = Recount(bare, list({str(ask.want.spec.name): ask for ask, _, _ in seated}.values()))
    jobs = {str(job.task.name): job for job in recount.board.jobs}
    asked = [
        (job, recount.asks(job, rank, domain))
        for ask, rank, domain in seated
        if (job := jobs.get(str(ask.want.spec.name)))
    ]
    return _Launch(recount, node, asked).instead()


class _Launch:
    """The offers that could be launched instead of a node."""

    def __init__(self, recount: Recount, node: Node, asked: Sequence[tuple[Job, Weighed]]) -> None:
        self.recount, self.board, self.node, self.asked = recount, recount.board, node, asked

    def instead(self) -> Instead:
        """Those that would hold all who sit on it, cheapest first, and those that would not."""
        mine = Kind(*of_node(self.node))
        offers: list[Alternative] = []
        turned: dict[str, list[tuple[Rejection, bool]]] = {}
        for option in self.board.options:
            kind = self.board.kinds[option.kind]
            if kind == mine or (not self.asked and option.fleet != self.node.fleet):
                continue
            reason = self._reason(option)
            if reason is None:
                more = None if kind.price is None or mine.price is None else round(kind.price - mine.price, 6)
                blocks = sum(job.wish.fit[option.kind] for job, _ in self.asked)
                found = Alternative(
                    target=offer_name(kind), kind=kind, blocks=blocks, idle=kind.total, more=more
                )
                offers.append(found)
            else:
                item = (reason.of(offer_name(kind)), kind.cost < mine.cost)
                turned.setdefault(reason.code, []).append(item)
        for fleet, name, price, limit in self.recount.scene.barred:
            if fleet == self.node.fleet:
                reason = barred_reason(fleet, limit)
                less = price is not None and price < mine.cost
                turned.setdefault(reason.code, []).append((reason.of(name), less))
        return Instead(
            offers=tuple(offers[:MOST]),
            offers_count=len(offers),
            cheaper=sum(1 for o in offers if o.kind.cost < mine.cost),
            turned=tuple(
                Turned(
                    what="offer",
                    code=code,
                    count=len(found),
                    cheaper=sum(less for _, less in found),
                    examples=tuple(r for r, _ in found[:NAMED]),
                )
                for code, found in sorted(turned.items(), key=lambda p: (-len(p[1]), p[0]))
            ),
            alone=True,
            anyway=self.recount.ledger.owed[self.node.fleet] > 0,
        )

    def _reason(self, option: Option) -> Mismatch | None:
        for _, tally in self.asked:
            reason = tally.of_option(option)
            if reason:
                return reason
        total = self.board.kinds[option.kind].total
        needed = sum(job.wish.fit[option.kind] for job, _ in self.asked)
        if needed > total:
            text = f"its {total} blocks do not hold all {len(self.asked)} ranks, which need {needed}"
            return Mismatch("too-small", text, {"blocks": needed - total})
        if not self.asked and not self.recount.ledger.may_launch(option):
            if self.recount.ledger.left[option.quota] == 0:
                return Mismatch("limit", f"its limit of {option.offer.limit} is reached", {"nodes": 1})
            return Mismatch("region", "the fleet's other nodes lie elsewhere, and a cluster stays together")
        return None


def looked(scene: Scene, asks: Sequence[tuple[Ask, int]], node: str) -> list[tuple[str, Mismatch | None]]:
    """What turned one node down for each task that has no place; None: it would hold a rank of it."""
    recount = Recount(scene, [ask for ask, _ in asks])
    number = recount.board.index[node]
    ranks = {str(ask.want.spec.name): rank for ask, rank in asks}
    known: dict[object, Mismatch | None] = {}
    out: list[tuple[str, Mismatch | None]] = []
    for job in recount.board.jobs:
        name = str(job.task.name)
        key: object = (job.key, ranks[name]) if job.plain else job.index
        if key not in known:
            known[key] = recount.asks(job, ranks[name], recount.domain(job)).of_node(number)
        out.append((name, known[key]))
    return out
