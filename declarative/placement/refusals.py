"""Why a task cannot be placed, and what to do about it.

Worked out from the finished plan, not logged by the search.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from declarative.model.diagnostic import and_more
from declarative.model.resource import Offer
from declarative.model.spec import Task
from declarative.model.state import natural
from declarative.placement.assignment import Assignment
from declarative.placement.block_numbers import BlockAssignment
from declarative.placement.catalog import Catalog
from declarative.placement.cover import Try
from declarative.placement.demand import ANYWHERE, Job
from declarative.placement.filters import (
    Mismatch,
    beside_reason,
    blocks_wanted,
    fleet_reason,
    place_reason,
    shape_reason,
    topology_reason,
)
from declarative.placement.gangs import best_try, seat_partly
from declarative.placement.problem import (
    NEVER,
    NOT_NOW,
    NodeType,
    RankVerdict,
    Refusal,
    Unseen,
    Verdict,
    of_offer,
)
from declarative.placement.tally import NAMED, STRUCTURAL, Tally, not_pinned

MOST_ASKED = 1_000_000
"""Nodes and offers that are asked about for all refusals of a plan; beyond, a refusal lists none."""

MOST_SEARCHED = 50
"""Tasks that are searched a place for alone; beyond, none of that sort is said never to fit."""

BRIEF = "too many were refused to say why here: `fleetform explain task/NAME` does"

WORDS = {
    "fleet": "in another fleet",
    "not-cluster": "in no cluster fleet",
    "instance": "not among the pinned nodes",
    "backend": "in another backend",
    "region": "in another region",
    "zone": "in another zone",
    "topology": "elsewhere in the topology",
    "avoided": "avoided since the task failed there",
    "spread": "beside another rank",
    "gpu-vendor": "with another vendor's GPUs",
    "spot": "ruled out by the spot policy",
    "price": "over the price cap",
    "price-unknown": "without a known price",
    "isolation": "without hard limits",
    "no-runtime": "without podman or docker",
    "too-small": "too small",
    "too-large": "too large",
    "volume-missing": "without the volume",
    "volume-elsewhere": "away from the volume",
    "reuse-only": "not launched for it (reuse only)",
    "no-offer": "without an offer",
    "drained": "drained",
    "not-ready": "not ready",
    "closed": "about to be replaced or deleted",
    "not-idle": "not wholly idle",
    "busy": "without enough idle blocks",
    "volume-busy": "but the volume is in use",
    "volume-gone": "but the volume is gone",
    "offers-unknown": "whose offers could not be read",
    "fleet-max": "beyond the fleet's maximum",
    "limit": "beyond the offer's limit",
}

ABLE = {
    "isolation": "leave out `isolation`, or let the hosts' user be root there or delegate cgroups to him",
    "no-runtime": "install podman on a host, or leave out the task's `image`",
}
"""What helps where hosts cannot do what a task asks for."""

PINNED = {
    "drained": "`fleetform undrain` the pinned node, or pin another one",
    "not-ready": "wait until the pinned node is ready, or pin another one",
}
"""What helps a task that names its nodes."""


class Refusals:
    """The refusals of one finished plan. Tasks that are alike are refused for the same reasons."""

    def __init__(
        self,
        catalog: Catalog,
        assignment: Assignment,
        finished: BlockAssignment,
        search: Callable[[Assignment, Job], bool] = lambda _start, _job: False,
    ) -> None:
        """`search` says whether the search finds a task a place alone, from an assignment on, or may."""
        self.catalog, self.search = catalog, search
        self.assignment = assignment
        self.finished = finished
        self._launched = {n.name: assignment.kind_of[i] for i, n in finished.nodes.items() if n.new}
        self.start, self.ideal = Assignment.start(catalog), Assignment.start(catalog, ideal=True)
        self._by_place: dict[tuple[int, int], Mismatch | None] = {}
        self._by_shape: dict[tuple[int, int], Mismatch | None] = {}
        self._asked = self._searched = 0
        self._alike: dict[tuple[object, ...], Refusal] = {}
        self.alike = _alike_nodes(assignment, finished)
        offered = {option.fleet for option in catalog.options}
        # Hosts that are nodes, and what is not there now, are named themselves.
        self.without_offer = [
            name
            for name, rule in catalog.fleets.items()
            if name not in offered and not rule.unseen and not (rule.fleet.exists and rule.existing)
        ]

    def of(
        self, jobs: Sequence[Job], remedies: Callable[[Job], tuple[str, ...] | None], proved: Collection[int]
    ) -> list[Refusal]:
        """The refusal of each task. `proved`: tasks that were proved to have no place beside all others."""
        out: list[Refusal] = []
        for job in jobs:
            key = (job.likeness, remedies(job), job.index in proved)
            if key not in self._alike:
                self._alike[key] = self._refusal(job, key[1], proved=key[2])
            out.append(replace(self._alike[key], task=str(job.task.name)))
        return out

    def never(self, job: Job) -> bool:
        """Whether it fits not even with all nodes and hosts up and idle, and offers without limits."""
        pinned = (self._launched[name] for name in job.task.instances if name in self._launched)
        if any(kind in job.request.fit for kind in pinned):
            return False  # they are there once this plan was applied
        found = self._alone(job)
        if (found is not None and found.failed is None) or self._is_found(job):
            return False
        more = {
            name: sum(self._holds(job, name, unseen) for unseen in rule.unseen)
            for name, rule in self.catalog.fleets.items()
        }
        if not any(more.values()):
            return True
        if not job.unconstrained:
            return False  # how many ranks volumes and pins leave a place to is not counted
        most = max(more.values()) if job.request.one_area else sum(more.values())
        return (len(found.nodes) if found else 0) + most < job.ranks

    def _alone(self, job: Job) -> Try | None:
        """What becomes of it then with the cheapest launches; with the largest, if those are too small."""
        found = best_try(self.ideal, job, {})
        if found is None or found.failed is None:
            return found
        self.ideal.roomy = True
        larger = best_try(self.ideal, job, {}) or found
        self.ideal.roomy = False
        return min(found, larger, key=lambda tried: tried.rank)

    def _is_found(self, job: Job) -> bool:
        """Whether the search finds it places then that one try does not, or may do so.

        Where ranks differ, or several fleets have yet to choose where they lie, one try may choose wrongly.
        """
        if job.ranks == 1 or not job.request.fit or (job.alike and job.request.one_area):
            return False
        self._searched += 1
        return self._searched > MOST_SEARCHED or self.search(self.ideal, job)

    def _holds(self, job: Job, fleet: str, unseen: Unseen) -> int:
        """How many ranks of a task it may hold at most, once it is there."""
        if self.unseen(job, fleet, unseen).code in STRUCTURAL:
            return 0
        if unseen.offer is None:
            room = job.ranks if self.ideal.fleet_room[fleet] is None else self.ideal.fleet_room[fleet] or 0
            return 0 if job.reuse or not room else min(room, job.ranks) if job.request.whole else job.ranks
        if job.request.whole:
            return 1
        kind = NodeType(*of_offer(unseen.offer, self.catalog.fleets[fleet].fleet))
        return kind.total // blocks_wanted(job.task, kind) if unseen.known else job.ranks

    def unseen(self, job: Job, fleet: str, unseen: Unseen) -> Mismatch:
        """Why a task cannot have what is not there now: it may be of no use to it anyway."""
        of = self.catalog.fleets[fleet].fleet
        reason = fleet_reason(job.task, of)
        if unseen.offer is None:
            return reason or Mismatch("offers-unknown", unseen.detail)
        kind = NodeType(*of_offer(unseen.offer, of))
        reason = reason or _not_named(job.task, unseen.offer) or place_reason(job.task, kind)
        if reason is None and unseen.known:
            reason = shape_reason(job.task, kind)
        return reason or Mismatch("not-ready", unseen.detail)

    def _refusal(self, job: Job, changes: tuple[str, ...] | None, *, proved: bool) -> Refusal:
        never = self.never(job)
        proved = never or proved or self._counts_out(job)
        found = best_try(self.assignment, job, {}) or Try(domain=ANYWHERE, failed=0)
        failed = found.failed if found.failed is not None else 0
        self.assignment.log = []
        seated = seat_partly(self.assignment, job, found)
        self._asked += len(self.alike) + len(self.catalog.options)
        brief = self._asked > MOST_ASKED
        tally = Tally(self, job, found, failed, seated, brief=brief)
        self.assignment.undo()
        fits, other = Verdict.FITS, Verdict.NOT_TRIED
        verdicts = [
            RankVerdict(rank=job.ask.number(r), verdict=fits if r in found.nodes else other)
            for r in range(job.ranks)
        ]
        verdicts[failed] = replace(verdicts[failed], verdict=Verdict.CAUSE, rejections=tally.rejections)
        fleets = len(self.catalog.fleets)
        return Refusal(
            task=str(job.task.name),
            code="never-fits" if never else "no-capacity",
            summary=summary_of(
                job.task, len(found.nodes), tally.counts, never=never, fleets=fleets, proved=proved
            ),
            hint=BRIEF if brief else self._hint(job, tally, changes, never=never),
            ranks=tuple(verdicts),
            changes=changes,
            proved=proved,
            causes=tally.causes,
        )

    def _hint(self, job: Job, tally: Tally, changes: tuple[str, ...] | None, *, never: bool) -> str | None:
        busy = any(self.finished.held.get(n, node.held) for n, node in self.finished.nodes.items())
        codes = tally.counts or {code: 1 for _, code in tally.own}
        unknown = self._unknown_pins(job) if job.task.instances else None
        return unknown or hint_for(job.task, codes, never=never, changes=changes, busy=busy)

    def _counts_out(self, job: Job) -> bool:
        """Whether what is there has too few blocks even without this plan's tasks, and no launch may help.

        Nodes are counted then: nothing is chosen that could be chosen otherwise.
        """
        if not job.alike:
            return False
        start = self.start
        options = () if job.reuse else self.catalog.options_in(job.request, ANYWHERE)
        owed = any(start.baseline_left.values())
        if owed or any(start.may_launch(option) for option, _, _ in options):
            return False
        found = best_try(start, job, {})
        return found is None or found.failed is not None

    def _unknown_pins(self, job: Job) -> str | None:
        """What to say where `instances` names no node that is there or will be, whatever is placed."""
        known = {*self.catalog.index, *self.catalog.coming, *self._unseen_hosts()}
        pins = [p for p in job.task.instances if p not in known]
        if pins and self._launched.keys() >= set(pins):
            nodes = ", ".join(f"node/{pin}" for pin in pins[:NAMED])
            return f"this plan launches {nodes}: apply it, then plan again"
        if not pins:
            return None
        there = sorted(self.catalog.index, key=natural)
        fleets = {p.rpartition("-")[0] for p in pins}
        near = [n for n in there if n.rpartition("-")[0] in fleets] or there
        found = f"there are {and_more(near, NAMED)}" if near else "no node is there"
        return (
            f"`instances` names what is there, and launches nothing: {', '.join(pins[:NAMED])} "
            f"{'is' if len(pins) == 1 else 'are'} not; {found}"
        )

    def _unseen_hosts(self) -> set[str]:
        """The names of hosts that are not there now."""
        unseen = (item.offer for rule in self.catalog.fleets.values() for item in rule.unseen)
        return {offer.host.name for offer in unseen if offer and offer.host}

    def static(self, job: Job, kind: int) -> Mismatch | None:
        """What turns a whole kind down, whatever its nodes hold: by its place, else by its shape."""
        where = (job.request.limits, kind)
        if where not in self._by_place:
            found = self.catalog.kinds[kind]
            rule = self.catalog.fleets.get(found.fleet)
            if rule is None:
                reason: Mismatch | None = Mismatch("fleet", f"fleet/{found.fleet} is not declared any more")
            else:
                reason = fleet_reason(job.task, rule.fleet) or topology_reason(job.task, rule.fleet, found)
                reason = reason or place_reason(job.task, found)
                reason = reason or beside_reason(job.task, found, self.catalog.beside.get(job.task.name, ()))
            self._by_place[where] = reason
        reason = self._by_place[where]
        if reason:
            return reason
        what = (job.request.size, self.catalog.hardware_of[kind])
        if what not in self._by_shape:
            self._by_shape[what] = shape_reason(job.task, self.catalog.kinds[kind])
        return self._by_shape[what]


def _not_named(task: Task, offer: Offer) -> Mismatch | None:
    """Whether it is a host that the task does not name, and the task names some."""
    if not task.instances or offer.host is None or offer.host.name in task.instances:
        return None
    return not_pinned(task)


def _alike_nodes(assignment: Assignment, finished: BlockAssignment) -> dict[tuple[int, object], list[int]]:
    """Nodes that every task has the same to say about: by kind, readiness and busy blocks."""
    out: dict[tuple[int, object], list[int]] = {}
    for number, node in finished.nodes.items():
        ready = (node.closed, node.readiness.state, node.readiness.reason)
        busy = len(finished.held.get(number, node.held))
        out.setdefault((assignment.kind_of[number], (ready, busy, node.new)), []).append(number)
    return out


def summary_of(
    task: Task, found: int, counts: Mapping[str, int], *, never: bool, fleets: int, proved: bool = True
) -> str:
    """One sentence: how many places were wanted and found, and what most of the others lacked."""
    nouns = "whole idle nodes" if task.whole_nodes else "places"
    together = " in one cluster fleet" if task.cluster and task.nodes > 1 else ""
    noun = nouns if task.nodes > 1 else nouns[:-1]
    wanted = f"{task.nodes} {noun}{together} wanted, {found} found"
    ordered = sorted(counts.items(), key=lambda p: (p[0] not in STRUCTURAL, -p[1], p[0]))
    why = ", ".join(f"{n} {WORDS.get(code, code)}" for code, n in ordered[:4])
    if not fleets:
        why = "the project declares no fleet"
    tail = NEVER if never else NOT_NOW
    return f"{tail}: {wanted}" + (f" ({why})" if why else "") + ("" if proved else "; not proved")


def _own_advice(task: Task, codes: AbstractSet[str], *, never: bool, fits: bool) -> str | None:
    """What helps a task that asks for whole nodes, for what is gone, for what no host can do, or for nodes by
    name.
    """
    if "too-large" in codes and task.whole_nodes and never:
        return "widen the range in the task's `resources`, or set `exclusive: false`"
    if "volume-gone" in codes:
        return "bring the volume back, or have an empty one made: `fleetform apply --replace volume/NAME`"
    unable = sorted(ABLE.keys() & codes)
    if never and unable and not fits:
        return "; ".join(map(ABLE.__getitem__, unable))
    if task.instances:
        return next((PINNED[code] for code in PINNED if code in codes), None)
    return None


def hint_for(
    task: Task,
    counts: Mapping[str, int],
    *,
    never: bool,
    changes: Sequence[str] | None = None,
    busy: bool = True,
) -> str | None:
    """What to do about it. `changes` are those that are enough; None if not all were tried.

    `busy`: other tasks hold blocks.
    """
    codes = set(counts)
    if not codes:
        return "declare a fleet"
    fits = f"it fits {_either(changes)}" if changes else None
    if codes <= {"not-cluster", "fleet"} and "not-cluster" in codes:
        alone = changes is None or "with `placement: any`" in changes
        advice = "set `placement: cluster` on a fleet, or `placement: any` on the task"
        return advice if alone else fits or f"{advice}; that alone is not enough"
    if codes == {"no-offer"} and not fits:
        return "its fleets have no offers: change what they ask for, as is said of each"
    own = _own_advice(task, codes, never=never, fits=bool(fits))
    if own:
        return f"{own}; {fits}" if fits else own
    # Waiting mends only what does not fit now.
    wait = "" if never else _or_wait(codes, busy=busy)
    if fits:
        return f"{fits}{wait}"
    if changes is None:
        return f"`fleetform explain task/NAME` looks for what makes it fit{wait}"
    none = "no single change that was tried makes it fit (task, `nodes` of fleets, `limit` of offers)"
    return f"{none}; {wait.removeprefix(', or ')}" if wait else none


def _or_wait(codes: Collection[str], *, busy: bool) -> str:
    """What else helps where a task does not fit now."""
    undrain = ", or `fleetform undrain` a node" if "drained" in codes else ""
    parts = ["running tasks have ended"] if busy else []
    if "not-ready" in codes:
        parts.append("what is not ready is ready")
    if "offers-unknown" in codes:
        parts.append("the backend can be read")
    return f"{undrain}, or wait until {' or '.join(parts)}" if parts else undrain


def _either(changes: Sequence[str]) -> str:
    """`with a, with b, or without c`."""
    *most, last = changes
    return f"{', '.join(most)}, or {last}" if most else last
