"""What one plan is worth: its cost, who is left out, and which of its promises do not hold."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from benchmarks.worlds.check import Checked, checked
from benchmarks.worlds.exact import Best, Level, alike, fits, least_cost, seated
from benchmarks.worlds.hints import faults_of_hints
from benchmarks.worlds.realise import realised
from benchmarks.worlds.rules import UNPRICED, Facts, reuses, worth
from benchmarks.worlds.worker import Worker
from benchmarks.worlds.world import Words, World, shuffled

CENT = 1e-6
MOST_KINDS = 40
"""Kinds of refused tasks of one world that are looked at."""


@dataclass(frozen=True)
class Effort:
    """How much of a world is looked at."""

    seconds: float = 30.0
    """HiGHS's for each question."""
    most_seats: int = 100
    """Up to so many tasks, seats are compared priority by priority."""
    needless: int = 8
    """Kinds of refused tasks that are held against all tasks of at least their priority."""
    hints: bool = False


@dataclass
class Verdict:
    """What came of one world."""

    world: World
    case: Checked
    best: Best
    cpu: float = 0.0
    cpu_beside: float | None = None
    levels: list[Level] = field(default_factory=list)
    waits: float = -math.inf
    """The highest priority of a task that waits for others to end: tasks below may have to leave it room."""
    fitting: list[str] = field(default_factory=list)
    """Refused tasks that fit the finished plan, and do not have to leave room."""
    needless: dict[str, bool | None] = field(default_factory=dict)
    """Refused task → whether it fits beside all of at least its priority; None if that was not found out."""
    never: list[str] = field(default_factory=list)
    """Refused tasks that are said to fit never, or later, and it is not so."""
    claims: list[str] = field(default_factory=list)
    """Waiting tasks whose last blocks went to others of lower priority."""
    false_bound: str = ""
    differs: bool = False
    """Whether the same world in another order has another plan."""
    wrong: list[str] = field(default_factory=list)

    @property
    def gap(self) -> float | None:
        """How much dearer the plan is than the best that the model found; None if nothing is launched, or if
        tasks keep room for which the model does not account.

        A launch that nothing needs counts as 100 %, and a node of unknown price that could have a known one.
        """
        return self._above(self.case.cost if self.best.cost is None else self.best.cost)

    @property
    def most_gap(self) -> float | None:
        """How much dearer it is at most: as `gap` if the best is proved, else above its bound."""
        return self.gap if self.best.proved else self._above(self.best.bound)

    def _above(self, least: float) -> float | None:
        cost = self.case.cost
        if cost < CENT or (self.world.claims and self.waits > -math.inf):
            return None
        if least >= cost:
            return 0.0
        unpriced = sum(count for space, count in self.best.launches.items() if space.unpriced)
        if sum(here.space.unpriced for here in self.case.made) > unpriced:
            return 1.0
        cost, least = cost - unpriced * UNPRICED, least - unpriced * UNPRICED
        return max(0.0, cost / least - 1) if least > CENT else 1.0 if cost > CENT else 0.0

    @property
    def short(self) -> list[Level]:
        """Where fewer blocks are seated than can be, by at least the priority of whoever waits."""
        return [level for level in self.levels if level.blocks > level.ours and level.priority >= self.waits]

    @property
    def behind(self) -> list[Level]:
        """The same of lower priorities, where room may have to be left."""
        return [level for level in self.levels if level.blocks > level.ours and level.priority < self.waits]

    def failures(self, dearest: float) -> Iterable[str]:
        """All that should not be, in words."""
        if (self.most_gap or 0.0) > dearest:
            known = (
                f"{self.best.cost:.4f} is enough ({self.gap or 0:.1%} more)"
                if self.best.cost is not None
                else "nothing was found"
            )
            bound = "" if self.best.proved else f", and at least {self.best.bound:.4f} ({self.most_gap:.1%})"
            yield f"costs {self.case.cost:.4f}, {known}{bound}"
        for level in self.short:
            yield f"priority {level.priority}: {level.ours} blocks seated, {level.blocks} can be"
        if self.fitting:
            yield f"refused, and fit the finished plan: {', '.join(self.fitting)}"
        needless = sorted(name for name, verdict in self.needless.items() if verdict)
        if needless:
            yield f"refused without need: {', '.join(needless)}"
        yield from self.never
        yield from self.claims
        yield from (f"{rank} runs, and does not stay there" for rank in self.case.moved)
        if self.false_bound:
            yield self.false_bound
        if self.differs:
            yield "another order of the input has another plan"
        yield from self.wrong


def look(world: World, ours: Worker, beside: Worker | None, effort: Effort) -> Verdict:
    """Plan one world in turns, and judge the plan."""
    workers = [worker for worker in (ours, beside) if worker]
    if world.seed % 2:
        workers.reverse()  # the turns change
    answers = {id(worker): worker.plan(world.plain) for worker in workers}
    plan, cpu = answers[id(ours)]
    verdict = judged(world, plan, effort)
    verdict.cpu = cpu
    if beside:
        verdict.cpu_beside = answers[id(beside)][1]
    other, _ = ours.plan(shuffled(world, random.Random(world.seed)))
    verdict.differs = _bytes(plan) != _bytes(other)
    return verdict


def judged(world: World, plan: Words, effort: Effort) -> Verdict:
    """Check a plan, and hold it against the exact answers."""
    case = checked(world, plan)
    facts = case.facts
    riders = _riders(case)
    least = {name: site.least for name, site in facts.sites.items()}
    best = least_cost(facts, case.ranks.keys() - riders, effort.seconds, least=least)
    verdict = Verdict(world, case, best, wrong=list(case.faults))
    _hold_against(verdict, riders, effort)
    _look_at_refusals(verdict, effort)
    if len(facts.wants) <= effort.most_seats:
        _compare_seats(verdict, bool(riders), effort)
    if effort.hints:
        verdict.wrong += faults_of_hints(world, plan)
    return verdict


def _bytes(plan: Words) -> str:
    """A plan as text, without the lines where documents stand: they are others in another order."""
    named = ({key: text for key, text in d.items() if "line" not in key} for d in plan["diagnostics"])
    return json.dumps({**plan, "diagnostics": sorted(json.dumps(d) for d in named)})


def _riders(case: Checked) -> set[str]:
    """The tasks that only reuse, with a rank on a node that the plan launches for others."""
    made = {here.name for here in case.made if not case.facts.sites[here.space.fleet].least}
    return {
        name
        for name, entries in case.ranks.items()
        if reuses(case.facts.wants[name].spec) and any(entry["node"] in made for entry in entries)
    }


def _hold_against(verdict: Verdict, riders: set[str], effort: Effort) -> None:
    """The cost and the bound of the plan against the least cost of the same tasks."""
    case, best = verdict.case, verdict.best
    facts, cost = case.facts, case.cost
    if best.possible is False:
        verdict.wrong.append("the model finds no place for the tasks that the plan places")
    elif best.cost is not None:
        verdict.wrong += [
            f"the least possible: {fault}" for fault in _faults_of(verdict.world, facts, best, case)
        ]
    bound, before = case.plan["cost"]["bound_hourly"], case.plan["cost"]["hourly_before"]
    if any(reuses(facts.wants[name].spec) for name in case.ranks):
        least = {name: site.least for name, site in facts.sites.items()}
        any_way = least_cost(facts, case.ranks.keys(), effort.seconds, least=least, rides=True)
    else:
        any_way = best
    if any_way.bound > cost * (1 + 1e-4) + CENT:
        verdict.wrong.append(
            f"the plan costs {cost:g}, and the model says that {any_way.bound:g} is the least"
        )
    if bound is not None and not riders and not any(here.space.unpriced for here in case.made):
        has_claims = verdict.world.claims and case.refused
        known = cost if best.cost is None or has_claims else min(cost, best.cost)
        if bound - before > known * (1 + 1e-4) + CENT:
            verdict.false_bound = (
                f"the plan says that {bound - before:g} is the least, and {known:g} is enough"
            )


def _faults_of(world: World, facts: Facts, best: Best, case: Checked) -> list[str]:
    return checked(world, realised(facts, best, case.plan)).faults


def _compare_seats(verdict: Verdict, rides: bool, effort: Effort) -> None:
    """The blocks of each priority against the most that can be seated."""
    facts = verdict.case.facts
    ours = Counter({want.spec.priority: 0 for want in facts.wants.values()})
    for name in verdict.case.ranks:
        ours[facts.wants[name].spec.priority] += worth(facts, facts.wants[name])
    verdict.levels, best = seated(facts, ours, effort.seconds)
    last = verdict.levels[-1] if verdict.levels else None
    if last and last.ours >= last.bound + 1 and not rides:
        text = (
            f"priority {last.priority}: {last.ours} blocks seated, and the model says {last.bound:g} at most"
        )
        verdict.wrong.append(text)
    if best and best.cost is not None:
        verdict.wrong += [f"the best: {f}" for f in _faults_of(verdict.world, facts, best, verdict.case)]


# -------------------------------------------------------------------------------------------- who is left out


def _without_idle_nodes(empty: Facts) -> Facts:
    """The same once idle nodes are deleted, of fleets that keep none: a cluster may begin elsewhere."""
    gone = {
        name
        for name, site in empty.sites.items()
        if site.fleet.nodes and not site.fleet.nodes.target and site.fleet.idle_duration.seconds is not None
    }
    there = Counter(here.space.fleet for here in empty.nodes)
    sites = {
        name: site._replace(room=site.room + there[name]) if name in gone and site.room is not None else site
        for name, site in empty.sites.items()
    }
    stay = tuple(here for here in empty.nodes if here.space.fleet not in gone)
    return replace(empty, nodes=stay, sites=sites)


def _look_at_refusals(verdict: Verdict, effort: Effort) -> None:
    """Whether refused tasks fit after all: the finished plan, or beside all of at least their priority."""
    case = verdict.case
    facts = case.facts
    groups = alike(facts, case.refused)[:MOST_KINDS]
    codes = {refusal["task"]: refusal["code"] for refusal in case.plan["unplaced"]}
    empty = replace(facts, nodes=tuple(here._replace(busy=frozenset()) for here in facts.nodes))
    waiting: dict[str, int] = {}
    for names in groups:
        task = facts.wants[names[0]].spec
        ever = fits(empty, names[:1], effort.seconds, rides=True)
        if ever is False:
            ever = fits(_without_idle_nodes(empty), names[:1], effort.seconds, rides=True)
        if ever:
            waiting[names[0]] = task.priority
        if ever is not None and ever == (codes.get(names[0]) == "never-fits"):
            said = codes.get(names[0])
            fit = "fits" if ever else "does not fit"
            verdict.never.append(f"task/{names[0]}: {said}, and it {fit} once all has ended")
    verdict.waits = max(waiting.values(), default=-math.inf)
    after = _finished(case)
    later = _finished(case, ended=True)
    for names in groups:
        task = facts.wants[names[0]].spec
        refused = case.refused if verdict.world.claims else ()
        above = [name for name in refused if facts.wants[name].spec.priority > task.priority]
        if fits(after, names[:1], effort.seconds) and not _must_leave(after, names[0], above, effort):
            verdict.fitting.append(names[0])
    if verdict.world.claims:
        verdict.claims = [
            f"task/{name} waits, and lower priorities take the last blocks that it could use"
            for name in _robbed(case, waiting, later, effort)
        ]
    if not _riders(case):
        for names in [group for group in groups if facts.wants[group[0]].spec.priority >= verdict.waits][
            : effort.needless
        ]:
            priority = facts.wants[names[0]].spec.priority
            placed = {name for name in case.ranks if facts.wants[name].spec.priority >= priority}
            verdict.needless.update(dict.fromkeys(names, fits(facts, {*placed, names[0]}, effort.seconds)))


def _finished(case: Checked, *, ended: bool = False, above: float = -math.inf) -> Facts:
    """The world as the plan leaves it; once what runs has `ended`; without the new tasks below a priority and
    the nodes launched for them.
    """
    facts = case.facts
    busy: dict[str, set[int]] = {n: set() if ended else set(here.busy) for n, here in case.nodes.items()}
    taken: set[str] = set()
    below: set[str] = set()
    for name, entries in case.ranks.items():
        for entry in entries:
            if facts.wants[name].spec.priority < above:
                below.add(entry["node"])
            elif entry["node"] in busy:
                busy[entry["node"]].update(entry["blocks"])
                taken.update(entry["volumes"].values())
    gone = {here.name for here in case.made if here.name in below and not busy[here.name]}
    made = Counter(here.space.fleet for here in case.made if here.name not in gone)
    sites = {
        name: site._replace(room=None if site.room is None else max(0, site.room - made[name]), least=0)
        for name, site in facts.sites.items()
    }
    nodes = [here._replace(busy=frozenset(busy[n])) for n, here in case.nodes.items() if n not in gone]
    volumes = {name: at for name, at in facts.volumes.items() if name not in taken}
    return Facts(wants=facts.wants, nodes=tuple(nodes), sites=sites, volumes=volumes)


def _robbed(case: Checked, waiting: Mapping[str, int], later: Facts, effort: Effort) -> list[str]:
    """Waiting tasks that will find no place beside those that wait before them once what runs has ended,
    because of new tasks below them.
    """
    out: list[str] = []
    claims: list[str] = []
    for name, priority in sorted(waiting.items(), key=lambda item: -item[1]):
        if reuses(case.facts.wants[name].spec):
            continue  # it rides on what is launched for others, where these leave room
        if not fits(_finished(case, ended=True, above=priority), [*claims, name], effort.seconds):
            continue
        claims.append(name)
        if fits(later, claims, effort.seconds) is False:
            out.append(name)
            claims.remove(name)
    return out


def _must_leave(after: Facts, name: str, above: Collection[str], effort: Effort) -> bool:
    """Whether a task that would fit may have to leave its place to those that wait with a higher priority:
    such a task keeps as many nodes, or launches, as it has ranks, and no more.
    """
    kept = sum(after.wants[other].spec.nodes for other in above)
    want = after.wants[name]
    if not kept or want.spec.nodes > 1 or any(want.mounts):
        return kept > 0
    full = tuple(here._replace(busy=frozenset(range(here.space.total))) for here in after.nodes)
    if fits(replace(after, nodes=full), [name], effort.seconds):
        return any(after.wants[other].spec.nodes > 1 for other in above)
    launches_none = {fleet: site._replace(offers=()) for fleet, site in after.sites.items()}
    seats = Counter((here.space, len(here.busy)) for here in after.nodes)
    one_of = {(here.space, len(here.busy)): here for here in after.nodes}
    places = sum(
        count
        for key, count in seats.items()
        if fits(replace(after, nodes=(one_of[key],), sites=launches_none), [name], effort.seconds)
    )
    return places <= kept


def summary(plan: Words) -> Counter[str]:
    """What a plan launches, in words."""
    launches = (action["after"] for action in plan["actions"] if action["address"].startswith("node/"))
    return Counter(
        f"{n['instance_type']} {n.get('zone') or n['region']} {n['price']} ({n['fleet']})" for n in launches
    )
