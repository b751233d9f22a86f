"""How much dearer than the least possible plans are, on worlds that nobody has seen before.

    python -m benchmarks.worlds                          # 20 worlds of 30, 40 and 100 tasks each
    python -m benchmarks.worlds --sizes 300,1000 --worlds 5
    python -m benchmarks.worlds --sizes 40 --worlds 1 --seed 7 --show 1

Worlds are drawn anew in each run, from seeds that follow one which is printed: a planner cannot be tuned to
them. `--seed` repeats a run. Each plan is checked by code of its own, and held against HiGHS's answers to two
questions (`pip install highspy`):

cost      What do launches cost at least that hold the very tasks which the plan places? The gap is what the
          plan costs above that, in per cent, of worlds in which something is launched. Where that was not
          proved in time it is held against the bound, so that no gap is shown too small. What is bought
          although nothing has to be counts as 100 %.
refused   Does a refused task fit beside all tasks of equal or higher priority that were placed? Then the
          refusal was needless. Tasks that are alike are looked at once, and of each world 20 kinds.

CPU seconds are those of the plan alone, its input built already. What the model calls the best is made a plan
and checked as well. A plan that breaks a rule, that costs less than the least possible, or whose own bound is
above that, ends the run with exit code 1.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if not __package__:  # run as a folder, which then is first on the path instead of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.placement import solver
from benchmarks.worlds.check import Words, faults
from benchmarks.worlds.exact import Best, alike, fits, least_cost
from benchmarks.worlds.generate import world
from benchmarks.worlds.hints import faults_of_hints, hints
from benchmarks.worlds.realise import realised
from benchmarks.worlds.rules import NOW, Facts, World, facts_of
from declarative.planner.make import make
from declarative.render.data import plan_json

KINDS = 20
"""Kinds of refused tasks that are looked at in one world."""


@dataclass(frozen=True)
class Found:
    """What came of one world."""

    world: World
    plan: Words
    best: Best
    cost: float
    cpu: float
    wrong: list[str]
    hints: int = 0
    refused: dict[str, bool | None] = field(default_factory=dict)
    """Refused task → whether it fits; None if that is not known. Only of those that were looked at."""

    @property
    def gap(self) -> float | None:
        """How much dearer the plan is than the least possible; None if nothing is launched."""
        least = min(self.cost, self.best.cost or self.cost) if self.best.proved else self.best.bound
        if self.cost < CENT:
            return None
        return self.cost / least - 1 if least > CENT else 1.0


CENT = 1e-6


def look(case: World, seconds: float, *, with_hints: bool = False) -> Found:
    """Plan one world, check the plan, and hold it against the exact answers."""
    start = time.process_time()
    made = make(case.desired, case.state, case.inventory, NOW)
    cpu = time.process_time() - start
    plan = plan_json(made)
    wrong, facts = faults(case, plan), facts_of(case)
    refused = {refusal["task"] for refusal in plan["unplaced"]}
    placed = facts.wants.keys() - refused
    cost = plan["cost"]["hourly_after"] - plan["cost"]["hourly_before"]
    least = {name: site.least for name, site in facts.sites.items()}
    best = least_cost(facts, placed, seconds, least=least)
    if best.bound > cost * (1 + CENT) + CENT:
        wrong.append(f"the plan costs {cost:g}, and the model says that {best.bound:g} is the least")
    if best.cost is not None:
        said = (plan["cost"]["bound_hourly"] or 0.0) - plan["cost"]["hourly_before"]
        if said > best.cost * (1 + CENT) + CENT:
            wrong.append(f"the plan says that {said:g} is the least, and {best.cost:g} is enough")
        found = faults(case, realised(facts, best, plan))
        wrong += [f"the least possible: {fault}" for fault in found]
    if with_hints:
        wrong += faults_of_hints(case, plan)
    return Found(case, plan, best, cost, cpu, wrong, len(hints(plan)), _refusals(facts, plan, seconds))


def _refusals(facts: Facts, plan: Words, seconds: float) -> dict[str, bool | None]:
    """Whether refused tasks fit beside all of at least their priority."""
    refused = {refusal["task"] for refusal in plan["unplaced"]}
    out: dict[str, bool | None] = {}
    for names in alike(facts, refused)[:KINDS]:
        first = facts.wants[names[0]].spec
        above = {
            name
            for name, want in facts.wants.items()
            if name not in refused and want.spec.priority >= first.priority
        }
        out.update(dict.fromkeys(names, fits(facts, {*above, names[0]}, seconds)))
    return out


# ------------------------------------------------------------------------------------------------- the table

HEAD = (
    f"{'tasks':>6} {'worlds':>6} {'gap mean':>8} {'p90':>7} {'worst':>7} {'proved':>7} "
    f"{'refused':>8} {'looked':>7} {'needless':>8} {'unknown':>7} {'hints':>6} "
    f"{'CPU':>6} {'worst':>6} {'wrong':>6}"
)


def row(size: int, found: Sequence[Found]) -> str:
    """One line: gaps in per cent, CPU seconds of a plan."""
    gaps = sorted(gap for one in found if (gap := one.gap) is not None) or [0.0]
    verdicts = [verdict for one in found for verdict in one.refused.values()]
    cpus = [one.cpu for one in found]
    return (
        f"{size:>6} {len(found):>6} {100 * statistics.mean(gaps):>8.2f} "
        f"{100 * gaps[int(0.9 * (len(gaps) - 1) + 0.5)]:>7.2f} {100 * gaps[-1]:>7.2f} "
        f"{sum(one.best.proved for one in found) / len(found):>7.0%} "
        f"{sum(len(one.plan['unplaced']) for one in found):>8} {len(verdicts):>7} "
        f"{sum(verdict is True for verdict in verdicts):>8} {verdicts.count(None):>7} "
        f"{sum(one.hints for one in found):>6} "
        f"{statistics.median(cpus):>6.2f} {max(cpus):>6.2f} {sum(bool(one.wrong) for one in found):>6}"
    )


def show(one: Found) -> None:
    """What a plan launches, and what is launched at the least cost; which refusals are needless."""
    made: Counter[str] = Counter()
    for action in one.plan["actions"]:
        if action["address"].startswith("node/"):
            made[_named(**action["after"])] += 1
    best: Counter[str] = Counter()
    for space, count in one.best.launches.items():
        place = space.place._asdict()
        best[
            _named(**place, fleet=space.fleet, instance_type=space.kind, price=space.price, spot=space.spot)
        ] += count
    proved = "" if one.best.proved else " (not proved)"
    print(f"\n{one.world.name}: {one.cost:.3f}, at least {one.best.bound:.3f} USD/h{proved}")
    for title, mine, other in (("plan", made, best), ("least", best, made)):
        print(f"  only in the {title}: {', '.join(f'{n} x {k}' for k, n in sorted((mine - other).items()))}")
    needless = sorted(name for name, verdict in one.refused.items() if verdict)
    if needless:
        print(f"  refused without need: {', '.join(needless)}")


def _named(
    *,
    fleet: str,
    instance_type: str,
    region: str,
    price: float,
    zone: str | None = None,
    spot: bool = False,
    **_: Any,
) -> str:
    return f"{instance_type}{' spot' if spot else ''} {zone or region} {price} ({fleet})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="30,40,100", help="comma-separated (default: %(default)s)")
    parser.add_argument("--worlds", type=int, default=20, help="of each size (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of the first world; the others follow")
    parser.add_argument("--limit", type=float, default=60, help="HiGHS's seconds (default: %(default)g)")
    parser.add_argument("--hints", action="store_true", help="plan again with each change that is named")
    parser.add_argument("--show", type=int, default=0, help="of how many worlds to say what is dear")
    args = parser.parse_args()
    if not solver.available():
        raise SystemExit(solver.HINT)
    seed = secrets.randbelow(1 << 32) if args.seed is None else args.seed
    print(f"--seed {seed} repeats this run\n\n{HEAD}", flush=True)
    every: list[Found] = []
    for size in (int(text) for text in args.sizes.split(",")):
        worlds = (world(seed + i, size, broad=True) for i in range(args.worlds))
        found = [look(drawn, args.limit, with_hints=args.hints) for drawn in worlds]
        print(row(size, found), flush=True)
        every += found
    for one in sorted(every, key=lambda one: one.gap or 0.0, reverse=True)[: args.show]:
        show(one)
    wrong = [f"{one.world.name}: {fault}" for one in every for fault in one.wrong]
    if wrong:
        raise SystemExit("\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
