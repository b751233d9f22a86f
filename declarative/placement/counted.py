"""Placement as an integer program in which all that is alike is counted.

Nodes on which every rank takes the same number of blocks are one class; how they are cut is a flow along
their blocks, from 0 to as many as are idle, in which a rank is an arc as long as it takes blocks (arc-flow:
Valério de Carvalho 1999). Tasks that ask for the same are counted, too: the program grows with what differs.
"""

from __future__ import annotations

import copy
import functools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from declarative.placement.assignment import UNLIMITED, Assignment
from declarative.placement.catalog import LaunchOption
from declarative.placement.cutting import Class, GangGroup, Piece, Stock, columns_of, cut, cut_roughly
from declarative.placement.demand import (
    ANYWHERE,
    Area,
    Domain,
    Job,
    are_few_apart,
    is_spread,
)
from declarative.placement.problem import Place
from declarative.placement.program import Program
from declarative.placement.volumes import free_volumes, serves

Reach = frozenset[Place] | None
"""The places from which a rank reaches its volumes; None is any."""

MOST_PAIRS = 12
"""Kinds of nodes by things that are asked for, for each column that there may be; with more, no program is
built.
"""

MOST_ROUGH = 1.75
"""So many times as many columns may a rough program have."""

ROUGH = 24
"""In a rough program, nodes with more blocks than that are cut roughly."""

MOST_CHEAPER = 20
"""Offers of a fleet, the cheapest ones, that others are compared with."""

EXACT = 100
"""For up to so many tasks, launches may cost one gap too much, and all that is said is to be proved."""

SKEW = 1e-3
"""By how much at most tasks that come later are worth less: of equals, the first are seated."""

UNKNOWN = 4
"""What an unknown price counts as: so many times the highest that is known."""


class Counted:
    """One catalog with the tasks that are to be seated on `base`, where all others have their places."""

    rough = False
    """Whether it is not told how nodes with many blocks are cut. There are far fewer columns then, and bounds
    hold; but of what a solution gives to these nodes, some ranks may find no place there.
    """
    values: Sequence[float] = ()
    """The last solution of which an assignment was made."""
    loose: Collection[int] = ()
    """Tasks that are counted and not seated, by their index: the program does not know all of their rules."""
    seated: Collection[int] = ()
    """The tasks that the last solution has a place for, by their index, the loose ones too."""
    incumbent: Assignment | None = None
    """Where the tasks sit that were seated one after the other."""

    def __init__(
        self,
        base: Assignment,
        jobs: Sequence[Job],
        least: Mapping[str, int],
        columns: int,
        may: Sequence[Job] = (),
        *,
        each: Collection[object] = (),
    ) -> None:
        """`least`: fleet → how many it launches at least. `columns`: how many the program may have. `may`:
        tasks that are left out if they do not fit; as many as can be are seated then, by weight, at any cost.
        `each`: stocks of which nodes are told from each other though they are alike, by their `source`.
        """
        self.jobs, self.may, self.columns = jobs, may, columns
        self.base, self.catalog, self.least = base, base.catalog, least
        self.uncut = Program()
        """The program without how nodes are cut."""
        self.lossy = set[int]()
        """The classes of the nodes where ranks found no place in rough solutions. Copies share it."""
        self.crowded = set[object]()
        """The sources of nodes that ranks would have shared in solutions which lie apart. Copies share it."""
        self.pieces: list[Piece] = []
        self.gangs: dict[object, GangGroup] = {}
        self._numbers: dict[object, int] = {}
        self.stocks = self._stocks()
        self.kinds = sorted({stock.kind for stock in self.stocks})
        self.classes: list[Class] = []
        self.by_area: dict[Area | None, list[int]] = defaultdict(list)
        """Area → the numbers of its classes."""
        self.placed: list[tuple[int, int, int, int]] = []
        """Piece, class, column, and the gang's run that it is of (-1 for none)."""
        self.runs: list[tuple[GangGroup, Domain, int]] = []
        self.homes: dict[int, Collection[int]] = {}
        """Columns that say where cluster fleets begin, with those of the nodes that they launch there."""
        self.beaten: dict[LaunchOption, LaunchOption] = {}
        """Offers that no plan needs, and what holds as much in their stead."""
        self.worth = 0.99 * min((job.weight for job in may), default=0)
        """Less weight than that is none of the tasks that may be left out; 0 if all have to be seated."""
        self.step = 0.99 * math.gcd(*(job.weight for job in may))
        """Two sums of their weights differ by more than that, or not at all."""
        self.bought: list[int] = []
        self.possible, self.is_demanded, self.weighed = True, False, 0
        every = (*jobs, *may)
        self.few_apart, self.few_tasks = are_few_apart(every), len(every) <= EXACT
        self.large = len({id(job.request) for job in every}) * len(self.kinds) > MOST_PAIRS * columns
        """Whether there is too much to tell apart. The model is not built then."""
        if not self.large:
            self._build(jobs, may, columns, each)

    @property
    def roughens(self) -> bool:
        """Whether the rough program is another one."""
        return self.large or any(max(one.ends) > ROUGH for one in self.classes)

    def roughened(self, cut: Collection[int] = ()) -> Counted:
        """The rough program for the same tasks, but for the classes of nodes that are `cut` all the same."""
        rough = copy.copy(self)
        for cached in ("program", "size"):
            rough.__dict__.pop(cached, None)
        rough.rough = True
        rough.classes = [
            replace(one, arcs={}, rough=max(one.ends) > ROUGH and index not in cut)
            for index, one in enumerate(self.classes)
        ]
        rough.large = not self.is_demanded or rough.size > MOST_ROUGH * self.columns
        return rough

    def finer(self) -> Counted:
        """The program that tells nodes from each other, if ranks were to lie apart and would have shared one;
        else the rough program that tells how nodes are cut where ranks found no place in a rough solution, as
        far as it does not become too large. The same one if it tells that anyway.
        """
        if told := self.told_apart():
            return told
        if not self.roughens:
            return self
        finer, cut = self.roughened(), list[int]()
        for index in sorted(self.lossy, key=lambda i: (max(self.classes[i].ends), i)):
            more = self.roughened((*cut, index))
            if more.size <= self.columns:
                finer, cut = more, [*cut, index]
        return finer

    def told_apart(self) -> Counted | None:
        """The program that tells nodes from each other that ranks would have shared which lie apart; None if
        there are no such ranks, or it is too large.
        """
        if not (self.crowded and self.few_tasks):
            return None
        told = Counted(self.base, self.jobs, self.least, self.columns, self.may, each=self.crowded)
        told.loose = self.loose
        return None if told.large else told

    @functools.cached_property
    def program(self) -> Program:
        """The whole program. It is made only if it is solved: most of its columns say how nodes are cut."""
        program = self.uncut.copy()
        for one in self.classes:
            if one.rough:
                cut_roughly(program, one.sizes, one.ends)
            else:
                one.arcs = cut(program, one.sizes, one.ends)
        return program

    @functools.cached_property
    def size(self) -> int:
        """How many columns the program has; if they are too many, no more than that is known of them."""
        found = len(self.uncut.costs)
        for one in self.classes:
            if found > MOST_ROUGH * self.columns:
                break
            if not one.rough:
                found += columns_of(self.uncut, one.sizes, one.ends)
        return found

    def _build(self, jobs: Sequence[Job], may: Sequence[Job], columns: int, each: Collection[object]) -> None:
        for job in jobs:
            self._add(job)
        for job in may:
            self._add(job, optional=True)
        self._leave_out_beaten(free=bool(may))
        self.stocks = [one for stock in self.stocks for one in stock.told_apart(each)]
        self.classes = self._classes()
        for i, one in enumerate(self.classes):
            for area in one.areas:
                self.by_area[area].append(i)
        self.most = sum(job.ranks for job in (*jobs, *may)) + sum(self.least.values())
        self._buy(self.most, free=bool(may))
        self.is_demanded = self._demand_all(MOST_ROUGH * columns)
        for one, i in ((each, i) for each in self.classes for i in each.stocks):
            one.ends[self.stocks[i].idle].append(self.bought[i])
        self._limits()
        self._launch_for_others()
        self.large = not self.is_demanded or self.size > columns

    def _buy(self, most: float, *, free: bool) -> None:
        """A column for the nodes of each stock; launches have a price if they are not `free`."""
        prices = [self.catalog.kinds[s.kind].cost for s in self.stocks if s.option]
        dear = UNKNOWN * max(filter(math.isfinite, prices), default=1.0)
        for stock in self.stocks:
            paid = stock.option and not free
            price = min(self.catalog.kinds[stock.kind].cost, dear) if paid else 0.0
            self.bought.append(self.uncut.column(price, min(stock.most, most)))

    def _demand_all(self, columns: float) -> bool:
        """Seat everyone; whether the columns were enough for that."""
        # Every one of them, though one cannot be seated: what follows is about all columns.
        seated = [self._demand(i, piece) for i, piece in enumerate(self.pieces) if piece.seats]
        for gang in self.gangs.values():
            seated.append(self._demand_gang(gang))
            if len(self.uncut.costs) > columns:
                return False
        self.possible = all(seated)
        return True

    # What there is

    def _stocks(self) -> list[Stock]:
        base = self.base
        out = [
            Stock(kind, idle, len(ids), None)
            for kind, pile in sorted(base.idle_by_size.items())
            for idle, ids in sorted(pile.items())
        ]
        for option in self.catalog.options:
            room, left = base.fleet_room[option.fleet], base.quota_left[option.quota]
            most = min(UNLIMITED if room is None else room, UNLIMITED if left is None else left)
            homes = base.cluster_homes.get(option.fleet)
            if most > 0 and not (homes and homes - {option.home}):
                out.append(Stock(option.kind, self.catalog.kinds[option.kind].total, most, option))
        return out

    # What is asked for

    def _add(self, job: Job, *, optional: bool = False) -> None:
        domains = self.catalog.domains(job.request)
        numbers = [self._piece(job, self._reach(job, rank)) for rank in range(job.ranks)]
        spread = job.task.spread if self.few_apart and is_spread(job.task) else None
        if domains == [ANYWHERE] and not optional and not spread:
            for rank, number in enumerate(numbers):
                self.pieces[number].seats.append((job, rank))
            return
        parts = Counter(numbers)
        value = float(job.weight) if optional else 0.0
        own = spread and len(parts) > 1 and job.index
        key = (tuple(domains), tuple(sorted(parts.items())), value, spread, own)
        gang = self.gangs.setdefault(key, GangGroup(job.request, dict(parts), value, spread))
        gang.jobs.append(job)
        for number in parts:
            gang.seats[number].append([(job, r) for r in range(job.ranks) if numbers[r] == number])

    def _reach(self, job: Job, rank: int) -> Reach:
        mounts = job.ask.want.mounts
        volumes = self.catalog.volumes
        if not any(mounts) or not mounts[rank]:
            return None
        free = free_volumes(mounts[rank], volumes, self.base.claims)
        places = dict.fromkeys(self.catalog.place_of[kind] for kind in self.kinds)
        return frozenset(p for p in places if all(any(serves(at, p) for _, at in own) for own in free))

    def _piece(self, job: Job, reach: Reach) -> int:
        key = (id(job.request), reach, job.reuse)
        if key not in self._numbers:
            place_of = self.catalog.place_of
            takes = {
                kind: need
                for kind in self.kinds
                if (need := job.request.fit.get(kind)) and (reach is None or place_of[kind] in reach)
            }
            same = (*takes.items(), job.reuse)
            if same not in self._numbers:
                self._numbers[same] = len(self.pieces)
                self.pieces.append(Piece(takes, job.reuse))
            self._numbers[key] = self._numbers[same]
        return self._numbers[key]

    def _leave_out_beaten(self, *, free: bool) -> None:
        """Leave out offers that no plan needs: one without a limit holds as much, cheaper or `free`."""
        kinds, takes, site = self.catalog.kinds, self._takes(), self._sites()
        if free:  # else they are in the order of their prices
            sizes = {kind: (-len(own), sum(own.values())) for kind, own in takes.items()}
            self.stocks.sort(key=lambda stock: (-stock.idle, sizes[stock.kind]))
        unlimited: dict[object, list[LaunchOption]] = defaultdict(list)
        left: list[Stock] = []
        for stock in self.stocks:
            kind, option = stock.kind, stock.option
            if option:
                own = unlimited[option.fleet, option.home, site[kind]]
                better = (
                    o for o in own if kinds[o.kind].beats(kinds[kind], takes[o.kind], takes[kind], free=free)
                )
                if other := next(better, None):
                    self.beaten[option] = other
                    continue
                if self.base.quota_left[option.quota] is None and len(own) < MOST_CHEAPER:
                    own.append(option)
            left.append(stock)
        self.stocks = left

    def _sites(self) -> dict[int, tuple[frozenset[Area | None], str | None]]:
        """Kind → where it lies, at each level at which gangs lie together, and who made its GPUs."""
        domains = [domain for gang in self.gangs.values() for domain in self.catalog.domains(gang.request)]
        apart = {gang.spread for gang in self.gangs.values()} - {None, "node"}
        levels = sorted({domain.area.level for domain in domains if domain.area}.union(filter(None, apart)))
        makers = any(gang.request.one_vendor for gang in self.gangs.values())
        areas = [self.catalog.areas(level) for level in levels]
        maker = self.catalog.maker_of if makers else [None] * len(self.catalog.kinds)
        return {kind: (frozenset(of[kind] for of in areas), maker[kind]) for kind in self.kinds}

    def _classes(self) -> list[Class]:
        takes, site = self._takes(), self._sites()
        # Ranks of one class may come to lie on one node: those that lie apart need to know how large it is.
        apart = self.few_tasks and any(gang.spread == "node" for gang in self.gangs.values())
        found: dict[object, Class] = {}
        for i, stock in enumerate(self.stocks):
            kind = stock.kind
            if not takes[kind]:
                continue
            areas, maker = site[kind]
            own = apart and (stock.idle, i if stock.single else None)
            key = (tuple(takes[kind].items()), areas, maker, own)
            found.setdefault(key, Class(takes[kind], areas, maker)).stocks.append(i)
        return list(found.values())

    def _takes(self) -> dict[int, dict[int, int]]:
        """Kind → the pieces that it holds, and the blocks that each takes."""
        takes: dict[int, dict[int, int]] = {kind: {} for kind in self.kinds}
        for number, piece in enumerate(self.pieces):
            for kind, need in piece.takes.items():
                takes[kind][number] = need
        return takes

    # Who sits where

    def _seats(self, number: int, most: int, domain: Domain, run: int) -> dict[int, float]:
        terms: dict[int, float] = {}
        for index in self._of_domain(domain):
            one = self.classes[index]
            if need := one.takes.get(number):
                column = self.uncut.column(0.0, most)
                terms[column] = one.sizes[need][column] = 1.0
                self.placed.append((number, index, column, run))
        return terms

    def _of_domain(self, domain: Domain) -> list[int]:
        """The numbers of the classes in a domain."""
        found = self.by_area[domain.area] if domain.area else range(len(self.classes))
        return [i for i in found if domain.maker is None or self.classes[i].maker in (None, domain.maker)]

    def _demand(self, number: int, piece: Piece) -> bool:
        count = len(piece.seats)
        terms = self._seats(number, count, ANYWHERE, -1)
        if terms:
            self.uncut.row(count, count, terms)
        return bool(terms)

    def _demand_gang(self, gang: GangGroup) -> bool:
        runs: dict[int, float] = {}
        value = gang.value * (1 - SKEW * self.weighed / len(self.gangs))
        self.weighed += 1
        for domain in self.catalog.domains(gang.request):
            here = [self.classes[i].takes for i in self._of_domain(domain)]
            if not all(any(number in takes for takes in here) for number in gang.parts):
                continue
            column = self.uncut.column(-value, len(gang.jobs))
            runs[column] = 1.0
            self.runs.append((gang, domain, column))
            first = len(self.placed)
            for number, ranks in gang.parts.items():
                terms = self._seats(number, len(gang.jobs) * ranks, domain, len(self.runs) - 1)
                self.uncut.row(0, 0, {column: -float(ranks), **terms})
            if gang.spread:
                self._keep_apart(gang, column, [placed[:3] for placed in self.placed[first:]])
        if runs:
            self.uncut.row(0 if gang.value else len(gang.jobs), len(gang.jobs), runs)
        return bool(runs or gang.value)

    def _keep_apart(self, gang: GangGroup, run: int, seats: Sequence[tuple[int, int, int]]) -> None:
        """Seat at most one rank of each task of a run at one place of a level. `run` is the column that
        counts the tasks; `seats` are pieces, classes, and the columns of ranks that sit there.

        Tasks of as many ranks each can be told apart then: a matrix of zeros and ones has such sums of rows
        and columns (Gale 1957, Ryser 1957).
        """
        at: dict[object, dict[int, float]] = defaultdict(dict)
        for _, index, column in seats:
            at[index if gang.spread == "node" else self.place_apart(gang, index)][column] = 1.0
        if gang.spread == "node":
            for index, number in {index: number for number, index, _ in seats}.items():
                self._keep_apart_on_nodes(self.classes[index], number, len(gang.jobs), run, at[index])
        else:
            for terms in at.values():
                self.uncut.row(-math.inf, 0, {**terms, run: -1.0})

    def _keep_apart_on_nodes(
        self, one: Class, number: int, tasks: int, run: int, ranks: Mapping[int, float]
    ) -> None:
        """No node takes more `ranks` of a piece than it has room for, nor than there are tasks in the run."""
        room = {i: min(self.stocks[i].idle // one.takes[number], tasks) for i in one.stocks}
        there = [i for i in one.stocks if not self.stocks[i].option]
        fewer = {0, *map(room.__getitem__, there)} if tasks > 1 else set()
        for most in sorted({tasks} | fewer):
            full = [i for i in there if room[i] > most]
            nodes = {self.bought[i]: -float(room[i]) for i in one.stocks if i not in full}
            many = sum(self.stocks[i].most for i in full)
            self.uncut.row(-math.inf, 0, {**ranks, **nodes, run: -float(many)})

    def place_apart(self, gang: GangGroup, index: int) -> object:
        """Where ranks that have to lie apart are, if they are in a class."""
        areas = self.classes[index].areas
        return next(area[1:] for area in areas if area and area.level == gang.spread)

    # What may be launched

    def _limits(self) -> None:
        quotas: dict[object, dict[int, float]] = defaultdict(dict)
        fleets: dict[str, dict[int, float]] = defaultdict(dict)
        homes: dict[str, dict[object, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for stock, column in zip(self.stocks, self.bought, strict=True):
            if stock.option:
                quotas[stock.option.quota][column] = 1.0
                fleets[stock.option.fleet][column] = 1.0
                homes[stock.option.fleet][stock.option.home][column] = 1.0
        base = self.base
        for quota, terms in quotas.items():
            left = base.quota_left[quota]  # type: ignore[index]
            if left is not None:
                self.uncut.row(0, left, terms)
        for fleet, terms in fleets.items():
            least, room = self.least.get(fleet, 0), _or_inf(base.fleet_room[fleet])
            if least or room < math.inf:
                self.uncut.row(least, room, terms)
            if not base.cluster_homes.get(fleet, True) and len(homes[fleet]) > 1:
                self._one_home(homes[fleet].values(), min(room, self.most))

    def _launch_for_others(self) -> None:
        """Launch no node in a class for ranks alone that launch nothing, but those that fleets launch."""
        if not any(piece.reuse for piece in self.pieces):
            return
        hosts: dict[int, dict[int, float]] = defaultdict(dict)
        for number, index, column, _ in self.placed:
            if not self.pieces[number].reuse:
                hosts[index][column] = -1.0
        for index, one in enumerate(self.classes):
            options = {self.bought[i]: option for i in one.stocks if (option := self.stocks[i].option)}
            owed = sum(self.least.get(fleet, 0) for fleet in {o.fleet for o in options.values()})
            if options:
                self.uncut.row(-math.inf, owed, dict.fromkeys(options, 1.0) | hosts[index])

    def _one_home(self, homes: Iterable[Mapping[int, float]], most: float) -> None:
        """Launch the nodes of a cluster fleet, of which there are none yet, in one of its homes."""
        chosen: dict[int, float] = {}
        for own in homes:
            here = self.uncut.column(0.0, 1.0)
            self.homes[here] = own.keys()
            chosen[here] = 1.0
            self.uncut.row(-math.inf, 0, {**own, here: -float(most)})
        self.uncut.row(0, 1, chosen)


def _or_inf(limit: int | None) -> float:
    return math.inf if limit is None else limit
