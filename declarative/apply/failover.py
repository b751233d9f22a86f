"""Nodes whose offers cannot be had take the next ones of the plan, the members of a cluster together.

Decides what the walk does with a node's create once it has ended; it is asked by the walk's own thread alone.
What was made where its cluster does not stay is deleted before any is made where that goes, and before that
it is known what came of the others: whenever the process is killed, there are none in two places. Until all
members of a cluster have ended nothing is put on any of them, so that nothing has to be taken off again. What
was there before goes last: not before it is certain that the others can be had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from declarative.model.inputs import NodeInputs, OfferInputs, ReservationInputs
from declarative.model.spec.values import Placement
from declarative.model.state import Intent, Record, State
from declarative.planner.types import Action, Fallback, Op, Plan, Reason, Spare
from declarative.provider import PermanentError, PermanentKind

REFUSED = (PermanentKind.NO_CAPACITY, PermanentKind.QUOTA)
"""Faults of a planned offer for which another one is taken. Of a spare one it is any lasting fault."""

MOST_NAMED = 4
"""Offers that were tried and are named; more are counted."""
ERROR_LENGTH = 160
"""How much is repeated of what was said of each."""

HINT = "apply again later, or let the fleet choose from more `regions`, zones or `instance_types`"

Key = tuple[str, str, str, bool]
"""What limits and quotas count: backend, region, instance type, spot."""


class NoOfferError(Exception):
    """Neither the planned offer nor any spare one could be had."""

    def __init__(self, summary: str, hint: str | None) -> None:
        super().__init__(summary)
        self.summary = summary
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """That nodes go elsewhere. `refused` and `taken` are offers, `taken` None where none is left."""

    nodes: tuple[str, ...]
    refused: str
    error: str
    taken: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverVerdict:
    """What becomes of an action that has ended."""

    error: BaseException | None = None
    """What it failed of, if it did."""
    note: str | None = None
    """What is to be said of it although it is done."""
    again: tuple[str, ...] = ()
    """Actions to do again, itself or others."""
    more: tuple[Action, ...] = ()
    """Actions that the plan has not."""
    undone: tuple[str, ...] = ()
    """Actions that count as skipped, although they may have been done: what they made is deleted."""
    move: Move | None = None


@dataclass(slots=True)
class _Group:
    """The nodes of one fallback, or one of them where each goes its own way."""

    members: Mapping[str, int]
    """Name → the number of its kind."""
    fallback: Fallback
    planned: Mapping[str, Action]
    """The create of each; of those that are there, where they follow the others."""
    nodes: Mapping[str, NodeInputs]
    """What they are by the plan."""
    way: int = 0
    """0 is as planned, then the fallback's own from 1."""
    open: set[str] = field(default_factory=set)
    """Those whose creates have not ended for good."""
    made: set[str] = field(default_factory=set)
    """Those that this apply has made where the group is now."""
    leaving: dict[str, Action] = field(default_factory=dict)
    """The deletes of those that it has made where the group was before."""
    later: set[str] = field(default_factory=set)
    """Those that were there before, and have not followed yet."""
    at: dict[str, int] = field(default_factory=dict)
    """The way for which creates that are under way were begun."""
    full: set[Key] = field(default_factory=set)
    tried: list[tuple[str, str]] = field(default_factory=list)
    broken: bool = False
    """One failed for other reasons: the group goes nowhere else any more."""
    over: bool = False

    def spare(self, name: str) -> Spare | None:
        """What a member takes where the group is now; None for what is planned."""
        return self.fallback.ways[self.way - 1][self.members[name]] if self.way else None

    def offer(self, name: str) -> OfferInputs:
        """The same, or what is planned."""
        spare = self.spare(name)
        return spare.offer if spare else self.nodes[name]

    def create(self, name: str) -> Action:
        """The create of a member where the group is now."""
        planned, spare = self.planned[name], self.spare(name)
        if spare is None:
            return planned
        offer = {f.name: getattr(spare.offer, f.name) for f in fields(OfferInputs)}
        return replace(planned, after=replace(self.nodes[name], **offer), backend=spare.offer.backend)


class Failover:
    """The fallbacks of one plan while it is carried out."""

    def __init__(self, plan: Plan, state: State) -> None:
        self._groups: dict[str, _Group] = {}
        creates = {a.address.name: a for a in plan.actions if _is_create(a)}
        made = {name: a.typed for name, a in creates.items() if isinstance(a.typed, NodeInputs)}
        self._nodes = {r.address.name: r.node for r in state.of("node")} | made
        self._keys = {name: _key(node) for name, node in self._nodes.items()}
        self._clusters = {n: node.fleet for n, node in made.items() if node.placement == Placement.CLUSTER}
        self._unmade: dict[str | None, set[str]] = {}
        """Of clusters by their fleets: nodes whose creates have no result yet."""
        for name, fleet in self._clusters.items():
            self._unmade.setdefault(fleet, set()).add(name)
        idle = {r.address.name: r for r in state.of("node")}
        # Of which it is not known what came of them: that is found out where they were asked for, by asking
        # there again, before they go anywhere else.
        self._asked = frozenset(i.address.name for i in state.intents if _is_node(i) and i.op == "create")
        for fallback in (f for f in plan.preview.fallbacks if f.ways):
            self._add(fallback, creates, idle)

    def _add(self, fallback: Fallback, creates: Mapping[str, Action], idle: Mapping[str, Record]) -> None:
        kinds = {name: i for i, kind in enumerate(fallback.kinds) for name in kind}
        new = [name for name in kinds if name in creates]
        there = [name for name in fallback.idle if name in idle and name not in creates]
        planned = {name: creates[name] for name in new} | {name: _follow(idle[name]) for name in there}
        for part in ([*new, *there],) if fallback.together else [[name] for name in new]:
            members = {name: kinds[name] for name in part}
            group = _Group(members=members, fallback=fallback, planned=planned, nodes=self._nodes)
            group.open, group.later = set(part) & set(new), set(part) & set(there)
            if group.open:
                self._groups.update(dict.fromkeys(part, group))

    def waits(self, action: Action) -> bool:
        """Whether an action must not begin yet: the cluster that it would use may still go elsewhere, or
        it is not known yet whether it can be had; or others of its own have not left the last place.
        """
        group = self._groups.get(action.address.name) if _is_create(action) else None
        if group is not None:
            name = action.address.name
            first = name in group.leaving or name in self._asked
            return group.fallback.together and not first and self._is_moving(group)
        if action.op is not Op.CREATE or not isinstance(action.typed, ReservationInputs):
            return False
        node = action.typed.node
        if self._unmade.get(self._clusters.get(node)):
            return True
        group = self._groups.get(node)
        return group is not None and group.fallback.together and bool(group.open)

    def _is_moving(self, group: _Group) -> bool:
        """Whether some of a cluster are, or may be, where it was before."""
        late = any(at != group.way for at in group.at.values())
        return late or bool(group.leaving) or (group.way > 0 and not self._asked.isdisjoint(group.open))

    def now(self, action: Action) -> Action:
        """An action as it is to be begun now. What is to be made elsewhere leaves where it is before."""
        group = self._groups.get(action.address.name) if _is_create(action) else None
        if group is None:
            return action
        name = action.address.name
        if name in group.leaving:
            return group.leaving[name]
        asked, self._asked = name in self._asked, self._asked - {name}
        group.at[name] = 0 if asked else group.way
        return group.create(name) if group.at[name] else action

    def noted(self, action: Action, *, done: bool) -> None:
        """An action has its result."""
        if not _is_create(action):
            return
        name = action.address.name
        self._unmade.get(self._clusters.get(name), set()).discard(name)
        group = self._groups.get(name)
        if group is not None and not done:
            group.open.discard(name)

    def ended(self, action: Action, error: BaseException | None) -> FailoverVerdict | None:
        """What becomes of a create that has ended; None where that is nothing special."""
        name = action.address.name
        group = self._groups.get(name) if _is_node(action) else None
        if group is not None and action.op is Op.DELETE and name in group.leaving:
            return self._left(group, name, error)
        if group is None or not _is_create(action):
            return None
        begun = group.at.pop(name)
        if group.over:
            group.made |= set() if error else {name}
            return self._late(error, begun) if error else self._undo(group, {name})
        if begun != group.way:
            if error is None or isinstance(error, PermanentError):
                group.leaving |= {} if error else {name: _gone(action)}
                return FailoverVerdict(again=(action.id,))
            return self._stay(group, name, error)  # it may be there, and is found by the next look
        if error is None:
            return self._made(group, name)
        if not _may_go_on(error, group.way):
            group.broken = True
            return None
        assert isinstance(error, PermanentError)
        return self._refused(group, action, error)

    def _left(self, group: _Group, name: str, error: BaseException | None) -> FailoverVerdict:
        """One has left the last place, or cannot: then no other is made elsewhere."""
        del group.leaving[name]
        if error is None:
            return (
                self._undo(group, {name}) if group.over else FailoverVerdict(again=(f"create:node/{name}",))
            )
        return self._stay(group, name, error)

    def _stay(self, group: _Group, name: str, error: BaseException) -> FailoverVerdict:
        """One may still be in the last place: no other is made elsewhere."""
        group.over = True
        waiting = group.open - group.at.keys() - group.leaving.keys() - {name}
        return replace(self._undo(group, waiting), error=error)

    def _late(self, error: BaseException, begun: int) -> FailoverVerdict | None:
        """Of one whose cluster was given up meanwhile: what is wrong with a spare offer counts as there."""
        if not _may_go_on(error, begun):
            return None
        assert isinstance(error, PermanentError)
        return FailoverVerdict(error=NoOfferError(error.summary, error.hint or HINT))

    def _made(self, group: _Group, name: str) -> FailoverVerdict:
        group.made.add(name)
        group.open.discard(name)
        note = _instead(group, name) if group.way else None
        if group.open or not group.way or group.broken:
            return FailoverVerdict(note=note)
        follow = sorted(n for n in group.later if not _is_at(group.nodes[n], group.offer(n)))
        group.later.clear()
        group.open.update(follow)
        return FailoverVerdict(note=note, more=tuple(group.planned[n] for n in follow))

    def _refused(self, group: _Group, action: Action, error: PermanentError) -> FailoverVerdict:
        name = action.address.name
        refused = _offer_name(group.offer(name))
        group.tried.append((refused, error.summary[:ERROR_LENGTH]))
        if error.kind is PermanentKind.QUOTA:
            group.full.add(_key(group.offer(name)))
        way = None if group.broken or group.over else self._next(group)
        told = tuple(sorted(group.members)) if group.fallback.together else (name,)
        if way is None:
            left = NoOfferError(_in_vain(group), error.hint or HINT) if len(group.tried) > 1 else error
            group.over = group.fallback.together and not group.fallback.wanted and not group.broken
            waiting = group.open - group.at.keys() - {name}
            undo = self._undo(group, group.made | waiting) if group.over else FailoverVerdict()
            move = Move(nodes=told, refused=refused, error=error.summary, taken=None)
            return replace(undo, error=left, move=move)
        group.leaving |= {member: _gone(group.create(member)) for member in group.made}
        group.way = way
        for member in group.members:
            if member not in group.later:
                self._keys[member] = _key(group.offer(member))
        taken = _offer_name(group.offer(name))
        again = {name, *group.made}
        group.open |= group.made
        group.made = set()
        move = Move(nodes=told, refused=refused, error=error.summary, taken=taken)
        return FailoverVerdict(again=tuple(f"create:node/{n}" for n in sorted(again)), move=move)

    def _next(self, group: _Group) -> int | None:
        """The next way that has room, as far as that is known without asking."""
        for number in range(group.way + 1, len(group.fallback.ways) + 1):
            way = group.fallback.ways[number - 1]
            if all(self._has_room(group, way, spare) for spare in way):
                return number
        return None

    def _has_room(self, group: _Group, way: Sequence[Spare], spare: Spare) -> bool:
        key = _key(spare.offer)
        if key in group.full:
            return False
        if spare.limit is None:
            return True
        others = sum(k == key for name, k in self._keys.items() if name not in group.members)
        mine = sum(_key(way[kind].offer) == key for kind in group.members.values())
        return others + mine <= spare.limit

    def _undo(self, group: _Group, names: set[str]) -> FailoverVerdict:
        """Give up those of a cluster that cannot be completed: what was made is deleted."""
        made = sorted(names & group.made)
        group.open -= names
        group.made -= names
        return FailoverVerdict(
            undone=tuple(f"create:node/{n}" for n in sorted(names)),
            more=tuple(_gone(group.create(n)) for n in made),
        )


def is_scarce(action: Action, error: BaseException) -> bool:
    """Whether an action failed since there was no more of what it makes, of no offer of the plan."""
    if action.op is not Op.CREATE or action.address.kind not in ("node", "volume"):
        return False
    return isinstance(error, NoOfferError) or (isinstance(error, PermanentError) and error.kind in REFUSED)


def _offer_name(offer: OfferInputs) -> str:
    """What an offer is called: `p5.48xlarge in us-east-1a as spot`."""
    return f"{offer.instance_type} in {offer.zone or offer.region}{' as spot' if offer.spot else ''}"


def _is_create(action: Action) -> bool:
    return action.op is Op.CREATE and _is_node(action)


def _is_node(what: Action | Intent) -> bool:
    return what.address.kind == "node"


def _key(offer: OfferInputs) -> Key:
    return (offer.backend, offer.region, offer.instance_type, offer.spot)


def _may_go_on(error: BaseException, way: int) -> bool:
    return isinstance(error, PermanentError) and (way > 0 or error.kind in REFUSED)


def _is_at(have: OfferInputs, wanted: OfferInputs) -> bool:
    return _key(have) == _key(wanted) and have.zone == wanted.zone


def _tried(group: _Group) -> str:
    first = dict(group.tried)
    named = "; ".join(f"{offer} ({error})" for offer, error in list(first.items())[:MOST_NAMED])
    return named + (f"; and {len(first) - MOST_NAMED} more" if len(first) > MOST_NAMED else "")


def _instead(group: _Group, name: str) -> str:
    return f"as {_offer_name(group.offer(name))}, for it was not to be had as {_tried(group)}"


def _in_vain(group: _Group) -> str:
    return f"none of the plan's offers could be had: {_tried(group)}"


def _follow(node: Record) -> Action:
    """A node that was there goes with its cluster."""
    return Action(
        op=Op.CREATE,
        address=node.address,
        reason=Reason.CASCADE,
        after=node.typed,
        backend=node.node.backend,
    )


def _gone(create: Action) -> Action:
    return Action(
        op=Op.DELETE,
        address=create.address,
        reason=Reason.INCOMPLETE,
        before=create.after,
        backend=create.backend,
    )
