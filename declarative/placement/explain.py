"""Why a task cannot be placed: computed from the finished working copy, not logged by the search."""

from __future__ import annotations

from collections import Counter

from declarative.blocks import split
from declarative.placement.filters import fleet_rejection, of_offer, pick_volumes
from declarative.placement.trial import Domain, Trial, World
from declarative.placement.types import Ask, RankVerdict, Refusal, Rejection, Verdict
from declarative.state import rank_name

STRUCTURAL = (
    "fleet",
    "not-cluster",
    "instance",
    "backend",
    "region",
    "spot",
    "price",
    "price-unknown",
    "too-small",
    "too-large",
    "volume-missing",
    "volume-elsewhere",
    "reuse-only",
)
"""Codes that no waiting mends; they are named before those that are about capacity."""

WORDS = {
    "fleet": "in another fleet",
    "not-cluster": "in no cluster fleet",
    "instance": "not among the pinned nodes",
    "backend": "in another backend",
    "region": "in another region",
    "spot": "ruled out by the spot policy",
    "price": "over the price cap",
    "price-unknown": "without a known price",
    "too-small": "too small",
    "too-large": "too large",
    "volume-missing": "without the volume",
    "volume-elsewhere": "away from the volume",
    "reuse-only": "not launched (`creation_policy: reuse`)",
    "no-offer": "without an offer",
    "not-ready": "not ready",
    "closed": "about to be replaced or deleted",
    "not-idle": "not wholly idle",
    "busy": "without enough idle blocks",
    "volume-busy": "but the volume is in use",
    "fleet-max": "beyond the fleet's maximum",
    "limit": "beyond the offer's limit",
}


def refusal(world: World, ask: Ask, *, never: bool) -> Refusal:
    """The refusal of one task, with a verdict on each rank."""
    trial = _furthest(world, ask)
    failed = trial.failed if trial.failed is not None else 0
    rejections = _rejections(trial, failed)
    verdicts = tuple(
        RankVerdict(rank=r, verdict=Verdict.CAUSE, rejections=rejections)
        if r == failed
        else RankVerdict(rank=r, verdict=Verdict.FITS if r in trial.partial else Verdict.NOT_TRIED)
        for r in range(ask.want.spec.nodes)
    )
    code = "never-fits" if never else "no-capacity"
    return Refusal(
        task=str(ask.want.spec.name),
        code=code,
        summary=_summary(ask, trial, rejections, never=never),
        hint=_hint(ask, rejections, never=never),
        ranks=verdicts,
    )


def _furthest(world: World, ask: Ask) -> Trial:
    """The trial that placed the most ranks; the first by name among equals."""
    from declarative.placement.place import domains

    best: Trial | None = None
    for domain in domains(world, ask) or [Domain(None, None, None)]:
        trial = Trial(world, ask, domain)
        trial.run()
        if best is None or len(trial.partial) > len(best.partial):
            best = trial
    assert best is not None
    return best


def _rejections(trial: Trial, rank: int) -> tuple[Rejection, ...]:
    """Every node and offer, and why the rank could not have it once its siblings were placed."""
    out: list[Rejection] = []
    for node in trial.work.nodes:
        off = trial.rank_rejection(rank, node)
        if off is None and not trial.domain.holds(node.fleet, node.backend, node.region):
            where = f"fleet/{trial.domain.fleet} in {trial.domain.backend}/{trial.domain.region}"
            detail = f"the other ranks lie in {where}, and a cluster task stays together"
            off = Rejection(target=f"node/{node.name}", code="region", detail=detail)
        if off and not (node.new and off.code in ("not-idle", "busy")):
            out.append(off)
    for rule in trial.work.fleets.values():
        for offer in rule.offers:
            off = trial.offer_rejection(rule, offer)
            if off is None:
                spot = of_offer(offer, rule.fleet, split(offer.shape, rule.fleet.blocks.number) or 1)
                mounts = trial.ask.want.mounts[rank] if trial.ask.want.mounts else ()
                holder = f"rank/{rank_name(str(trial.task.name), rank)}"
                picked = pick_volumes(mounts, spot, trial.work.volumes, trial.work.claims, holder)
                off = picked if isinstance(picked, Rejection) else None
            if off:
                out.append(off)
        if not rule.offers:
            detail = "no backend offers a node that its limits allow"
            none = Rejection(target=f"fleet/{rule.fleet.name}", code="no-offer", detail=detail)
            out.append(fleet_rejection(trial.task, rule.fleet) or none)
    return tuple(sorted(out, key=lambda r: (r.code not in STRUCTURAL, r.target)))


def _summary(ask: Ask, trial: Trial, rejections: tuple[Rejection, ...], *, never: bool) -> str:
    task = ask.want.spec
    nouns = "whole idle nodes" if task.whole_nodes else "places"
    together = " in one cluster fleet" if task.cluster and task.nodes > 1 else ""
    wanted = (
        f"{task.nodes} {nouns if task.nodes > 1 else nouns[:-1]}{together} wanted, {len(trial.partial)} found"
    )
    counts = Counter(r.code for r in rejections)
    ordered = sorted(counts.items(), key=lambda p: (p[0] not in STRUCTURAL, -p[1], p[0]))
    why = ", ".join(f"{n} {WORDS.get(code, code)}" for code, n in ordered[:4])
    tail = "can never fit" if never else "does not fit now"
    if not trial.work.fleets:
        why = "the project declares no fleet"
    return f"{tail}: {wanted}" + (f" ({why})" if why else "")


def _hint(ask: Ask, rejections: tuple[Rejection, ...], *, never: bool) -> str | None:
    codes = {r.code for r in rejections}
    task = ask.want.spec
    if not rejections:
        return "declare a fleet"
    if codes <= {"not-cluster", "fleet"} and "not-cluster" in codes:
        return "set `placement: cluster` on a fleet, or `placement: any` on the task"
    if "too-large" in codes and task.whole_nodes and never:
        return "widen the range in the task's `resources`, or set `exclusive: false`"
    if "not-ready" in codes and task.instances:
        return "wait until the pinned node is ready, or pin another one"
    # Waiting mends only what does not fit now.
    wait = "" if never else ", or wait until running tasks have ended"
    if "fleet-max" in codes:
        return f"raise the fleet's `nodes`{wait}"
    if "reuse-only" in codes:
        return f"set `creation_policy: reuse-or-create`{wait}"
    return None if never else "wait until running tasks have ended, then run `fleetform apply` again"
