"""One task tried in each domain: all of its ranks find a place, or the task is left out as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from declarative.placement.board import Domain, Job
from declarative.placement.cover import Choice, Ground, choose
from declarative.placement.ledger import Ledger
from declarative.placement.special import Special
from declarative.placement.trial import Try, carry_out
from declarative.state import rank_name


def seat_alike(ledger: Ledger, jobs: Sequence[Job], wanted: Mapping[int, int]) -> int:
    """Seat tasks of one rank that are alike, all in one choice; how many were seated, the first by name."""
    first = jobs[0]
    best: Choice | None = None
    for domain in ledger.board.domains(first.wish):
        found = choose(ledger, first.wish, len(jobs), Ground(domain=domain, reuse=first.reuse), wanted)
        if best is None or (found.short, found.cost) < (best.short, best.cost):
            best = found
    if best is None:
        return 0
    seated = len(jobs) - best.short
    for job, node in zip(jobs[:seated], carry_out(ledger, best, seated), strict=True):
        ledger.seats[job.index] = [node]
    return seated


def seat(ledger: Ledger, job: Job, wanted: Mapping[int, int]) -> bool:
    """Seat one task where it costs least; whether it found a place."""
    domains = ledger.board.domains(job.wish)
    once = not job.plain and len(domains) == 1
    found = Special(ledger, job, domains[0]).run(keep=True) if once else best_try(ledger, job, wanted)
    if found is None or found.failed is not None:
        return False
    if job.plain:
        ground = Ground(domain=found.domain, reuse=job.reuse)
        nodes = carry_out(ledger, choose(ledger, job.wish, job.ranks, ground, wanted), job.ranks)
        found.nodes = dict(enumerate(sorted(nodes)))
    elif not once:
        found = Special(ledger, job, found.domain).run(keep=True)
    _note(ledger, job, found)
    return True


def seat_again(ledger: Ledger, job: Job) -> bool:
    """Seat a task where all of its ranks were, or not at all."""
    for domain in ledger.board.domains(job.wish):
        special = Special(ledger, job, domain)
        if len(special.stays()) == job.ranks and not (found := special.run()).moved and found.failed is None:
            _note(ledger, job, special.run(keep=True))
            return True
    return False


def _note(ledger: Ledger, job: Job, found: Try) -> None:
    """Write down who sits where, and who holds which volumes."""
    assert sorted(found.nodes) == list(range(job.ranks)), f"{job.task.name}: obtained is not requested"
    ledger.seats[job.index] = [found.nodes[r] for r in range(job.ranks)]
    for rank, volumes in found.volumes.items():
        ledger.volumes[job.index, rank] = volumes
        holder = f"rank/{rank_name(str(job.task.name), rank)}"
        ledger.claims.update(dict.fromkeys(volumes.values(), holder))


def best_try(ledger: Ledger, job: Job, wanted: Mapping[int, int]) -> Try | None:
    """The best domain, or the one that came furthest; None where no domain fits at all."""
    best: Try | None = None
    for domain in ledger.board.domains(job.wish):
        found = _try_plain(ledger, job, domain, wanted) if job.plain else Special(ledger, job, domain).run()
        if best is None or _better(found, best):
            best = found
    return best


def _better(new: Try, old: Try) -> bool:
    if new.failed is None and old.failed is None:
        return new.key < old.key
    if new.failed is not None and old.failed is not None:
        return len(new.nodes) > len(old.nodes)
    return new.failed is None


def _try_plain(ledger: Ledger, job: Job, domain: Domain, wanted: Mapping[int, int]) -> Try:
    choice = choose(ledger, job.wish, job.ranks, Ground(domain=domain, reuse=job.reuse), wanted)
    seated = job.ranks - choice.short
    return Try(
        domain=domain,
        nodes=dict.fromkeys(range(seated), -1),
        failed=seated if choice.short else None,
        cost=choice.cost,
        waste=choice.waste,
        launches=choice.launches,
    )


def seat_partly(ledger: Ledger, job: Job, found: Try) -> dict[int, dict[int, str]]:
    """Seat the ranks that found a place although the task did not: node → who sits there, for a refusal.

    The blocks are made-up numbers below 0: which ones they would be was never decided.
    """
    if not job.plain or not found.nodes:
        return {}
    ground = Ground(domain=found.domain, reuse=job.reuse)
    choice = choose(ledger, job.wish, job.ranks, ground)
    out: dict[int, dict[int, str]] = {}
    nodes = carry_out(ledger, choice, job.ranks - choice.short)
    for rank, node in enumerate(sorted(nodes)):
        held = out.setdefault(node, {})
        holder = f"rank/{rank_name(str(job.task.name), rank)}"
        for _ in range(job.wish.fit[ledger.kind_of[node]]):
            held[-len(held) - 1] = holder
    return out
