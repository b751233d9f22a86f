"""Nodes whose offers have no capacity take the next offers of the plan, the members of a cluster together.

`planner.fallbacks` says which offer is next. This module says what the walk does with a node's create once it
has ended. Only the walk's own thread calls it.

A cluster moves in this order: the results of all its creates are known, then the nodes in the old place are
deleted, then nodes are made in the new place. So a killed process leaves no cluster in two places. Nothing is
put on a node until all members have ended, so that nothing has to be taken off again. Nodes that existed
before move last, once it is certain that the others can be had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import cast

from declarative.model.inputs import NodeInputs, OfferInputs, ReservationInputs
from declarative.model.record import struct
from declarative.model.spec.values import Placement
from declarative.model.state import Address, State
from declarative.model.text import and_more
from declarative.planner.fallbacks import REFUSED, MovingNodes, may_go_on, moving_nodes, offer_key
from declarative.planner.plan import Action, Op, Plan, Reason
from declarative.provider import PermanentError

MOST_NAMED = 4
"""Offers that were tried and are named; more are counted."""
ERROR_LENGTH = 160
"""How many characters of each error are repeated."""

HINT = (
    "apply again later, let the fleet choose from more `regions`, zones or `instance_types`, "
    "or allow dearer ones: `max_price`, or `fallback: any`"
)


class ActionError(Exception):
    """An action cannot be done, for a reason that is no single fault of a backend."""

    def __init__(self, summary: str, hint: str | None = None) -> None:
        super().__init__(summary)
        self.summary = summary
        self.hint = hint


class NoOfferError(ActionError):
    """Neither the planned offer nor any spare one could be had."""


@struct(frozen=True, slots=True, kw_only=True)
class Move:
    """Nodes that move elsewhere. `refused` and `taken` are offers; `taken` is None if no offer is left."""

    nodes: tuple[str, ...]
    refused: str
    error: str
    taken: str | None


@struct(frozen=True, slots=True, kw_only=True)
class FailoverVerdict:
    """The verdict on an action that has ended."""

    error: BaseException | None = None
    """Its error, if it failed."""
    note: str | None = None
    """A remark about it, although it is done."""
    redo: tuple[str, ...] = ()
    """Actions to do again, itself or others."""
    more: tuple[Action, ...] = ()
    """Actions that are not in the plan."""
    undone: tuple[str, ...] = ()
    """Actions that count as skipped, although they may have been done: their things are deleted."""
    move: Move | None = None


@struct(slots=True)
class _Group:
    """The nodes of one fallback, or one of them if each goes its own way."""

    moving: MovingNodes
    planned: Mapping[str, Action]
    """Name → its create; for an existing node, the create in the place that it moves to."""
    open: set[str] = field(default_factory=set)
    """Members whose creates have no final result."""
    made: set[str] = field(default_factory=set)
    """Members that this apply has made where the group is now."""
    leaving: dict[str, Action] = field(default_factory=dict)
    """Node → the delete of it where the group was before."""
    later: set[str] = field(default_factory=set)
    """Members that existed before, and have not followed yet."""
    started_on: dict[str, int] = field(default_factory=dict)
    """Node → the way for which its create was started, while it is under way."""
    tried: list[tuple[str, str]] = field(default_factory=list)
    """The offers that could not be had, and their errors."""
    broken: bool = False
    """A member failed for another reason, so the group does not move any more."""
    over: bool = False

    def create(self, name: str) -> Action:
        """The create of a member where the group is now."""
        planned = self.planned[name]
        if not self.moving.way:
            return planned
        offer = self.moving.offer(name)
        changed = {f.name: getattr(offer, f.name) for f in fields(OfferInputs)}
        after = replace(cast("NodeInputs", planned.typed), **changed)
        return replace(planned, after=after, backend=offer.backend)

    def named_tries(self) -> str:
        """The first offers that were tried, each with its error, and how many more there are."""
        errors = dict(self.tried)
        return and_more((f"{offer} ({error})" for offer, error in errors.items()), MOST_NAMED, "; ")


class Failover:
    """The fallbacks of one plan while it is carried out."""

    def __init__(self, plan: Plan, state: State) -> None:
        self._groups: dict[str, _Group] = {}
        creates = {a.address.name: a for a in plan.actions if _is_node_create(a)}
        existing = {r.address.name: r.node for r in state.of("node")}
        planned = {name: cast("NodeInputs", a.typed) for name, a in creates.items()}
        self._keys = {name: offer_key(node) for name, node in (existing | planned).items()}
        self._clusters: dict[str, str] = {}
        """Node → the fleet whose cluster it is of."""
        self._unmade: dict[str | None, set[str]] = {}
        """Fleet of a cluster → nodes whose creates have no result yet."""
        for name, node in planned.items():
            if node.placement == Placement.CLUSTER:
                self._clusters[name] = node.fleet
                self._unmade.setdefault(node.fleet, set()).add(name)
        self._asked = frozenset(
            i.address.name for i in state.intents if i.op == "create" and i.address.kind == "node"
        )
        """Nodes whose creates have unknown results. The same create is asked for again in the same place,
        before the nodes move anywhere else.
        """
        for moving in moving_nodes(plan, planned, existing):
            creates_of = {name: creates[name] for name in moving.kinds.keys() - moving.followers}
            moves = {
                name: Action(
                    op=Op.CREATE,
                    address=Address("node", name),
                    reason=Reason.CASCADE,
                    after=existing[name],
                    backend=existing[name].backend,
                )
                for name in moving.followers
            }
            group = _Group(moving=moving, planned=creates_of | moves)
            group.open, group.later = {*creates_of}, {*moves}
            self._groups.update(dict.fromkeys(moving.kinds, group))

    # ------------------------------------------------------------------------ before an action starts

    def waits(self, action: Action) -> bool:
        """Whether an action must not begin yet: the cluster that it would use may still go elsewhere, or
        it is not known yet whether it can be had; or others of its own have not left the last place.
        """
        if _is_node_create(action):
            name = action.address.name
            group = self._groups.get(name)
            if (
                group is None
                or not group.moving.fallback.together
                or name in group.leaving
                or name in self._asked
            ):
                return False
            behind = any(way != group.moving.way for way in group.started_on.values())
            unknown = group.moving.way > 0 and not self._asked.isdisjoint(group.open)
            return behind or unknown or bool(group.leaving)
        if action.op is Op.CREATE and isinstance(action.typed, ReservationInputs):
            node = action.typed.node
            group = self._groups.get(node)
            may_move = group is not None and group.moving.fallback.together and bool(group.open)
            return may_move or bool(self._unmade.get(self._clusters.get(node)))
        return False

    def now(self, action: Action) -> Action:
        """An action as it is to be started now. A node that moves elsewhere first leaves its old place."""
        name = action.address.name
        group = self._groups.get(name) if _is_node_create(action) else None
        if group is None:
            return action
        if name in group.leaving:
            return group.leaving[name]
        asked, self._asked = name in self._asked, self._asked - {name}
        group.started_on[name] = 0 if asked else group.moving.way
        return group.create(name) if group.started_on[name] else action

    # ------------------------------------------------------------------------ after an action has ended

    def noted(self, action: Action, *, done: bool) -> None:
        """An action has its result."""
        if not _is_node_create(action):
            return
        name = action.address.name
        self._unmade.get(self._clusters.get(name), set()).discard(name)
        group = self._groups.get(name)
        if group is not None and not done:
            group.open.discard(name)

    def ended(self, action: Action, error: BaseException | None) -> FailoverVerdict | None:
        """The verdict on a create that has ended; None if its result stands."""
        name = action.address.name
        group = self._groups.get(name) if action.address.kind == "node" else None
        if group is None:
            return None
        if action.op is Op.DELETE:
            if name not in group.leaving:
                return None
            del group.leaving[name]
            if error is not None:
                return self._stay(group, name, error)
            redo = FailoverVerdict(redo=(f"create:node/{name}",))
            return self._undo(group, {name}) if group.over else redo
        if not _is_node_create(action):
            return None
        way = group.started_on.pop(name)
        if group.over:  # its cluster was given up meanwhile
            if error is None:
                group.made.add(name)
                return self._undo(group, {name})
            if isinstance(error, PermanentError) and may_go_on(error.kind, way):
                return FailoverVerdict(error=NoOfferError(error.summary, error.hint or HINT))
            return None
        if way != group.moving.way:
            # It was started where its cluster was before: it is done again where that is now.
            if error is not None and not isinstance(error, PermanentError):
                return self._stay(group, name, error)  # it may be there: the next look finds it
            if error is None:
                group.leaving[name] = gone(action)
            return FailoverVerdict(redo=(action.id,))
        if error is None:
            return self._made(group, name)
        if isinstance(error, PermanentError) and may_go_on(error.kind, way):
            return self._refused(group, name, error)
        group.broken = True
        return None

    def _stay(self, group: _Group, name: str, error: BaseException) -> FailoverVerdict:
        """A node may still be in the last place: no other is made elsewhere."""
        group.over = True
        waiting = group.open - group.started_on.keys() - group.leaving.keys() - {name}
        return replace(self._undo(group, waiting), error=error)

    def _made(self, group: _Group, name: str) -> FailoverVerdict:
        group.made.add(name)
        group.open.discard(name)
        note = None
        if group.moving.way:
            were = "were" if len(dict(group.tried)) > 1 else "was"
            offer_name = _offer_name(group.moving.offer(name))
            note = f"uses {offer_name} because {group.named_tries()} {were} unavailable"
        if group.open or not group.moving.way or group.broken:
            return FailoverVerdict(note=note)
        follow = [member for member in sorted(group.later) if group.moving.has_to_follow(member)]
        group.later.clear()
        group.open.update(follow)
        return FailoverVerdict(note=note, more=tuple(group.planned[n] for n in follow))

    def _refused(self, group: _Group, name: str, error: PermanentError) -> FailoverVerdict:
        """The offer of a member cannot be had: the group goes where the next one is, if there is one. A
        cluster that is of no use without all its members is given up if there is none.
        """
        refused = _offer_name(group.moving.offer(name))
        group.tried.append((refused, error.summary[:ERROR_LENGTH]))
        group.moving.sold_out.add(group.moving.offer(name), error.kind)
        nodes = tuple(sorted(group.moving.kinds)) if group.moving.fallback.together else (name,)
        move = Move(nodes=nodes, refused=refused, error=error.summary, taken=None)
        way = None if group.broken else group.moving.next_way(self._keys)
        if way is not None:
            redo = tuple(f"create:node/{member}" for member in sorted({name, *group.made}))
            group.leaving |= {member: gone(group.create(member)) for member in group.made}
            group.moving.way = way
            for member in group.moving.kinds.keys() - group.later:
                self._keys[member] = offer_key(group.moving.offer(member))
            group.open |= group.made
            group.made = set()
            return FailoverVerdict(redo=redo, move=replace(move, taken=_offer_name(group.moving.offer(name))))
        final: BaseException = error
        if len(group.tried) > 1:
            summary = f"none of the plan's offers could be had: {group.named_tries()}"
            final = NoOfferError(summary, error.hint or HINT)
        group.over = group.moving.needs_all and not group.broken
        waiting = group.open - group.started_on.keys() - {name}
        undo = self._undo(group, group.made | waiting) if group.over else FailoverVerdict()
        return replace(undo, error=final, move=move)

    def _undo(self, group: _Group, names: set[str]) -> FailoverVerdict:
        """Give up a cluster that cannot be completed: its made nodes are deleted."""
        made = sorted(names & group.made)
        group.open -= names
        group.made -= names
        return FailoverVerdict(
            undone=tuple(f"create:node/{n}" for n in sorted(names)),
            more=tuple(gone(group.create(n)) for n in made),
        )


def is_scarce(action: Action, error: BaseException) -> bool:
    """Whether an action failed for lack of capacity, at all offers of the plan."""
    if action.op is not Op.CREATE or action.address.kind not in ("node", "volume"):
        return False
    return isinstance(error, NoOfferError) or (isinstance(error, PermanentError) and error.kind in REFUSED)


def gone(create: Action) -> Action:
    """The deletion of what a create made, since its cluster does not come about there."""
    return Action(
        op=Op.DELETE,
        address=create.address,
        reason=Reason.INCOMPLETE,
        before=create.after,
        backend=create.backend,
    )


def _offer_name(offer: OfferInputs) -> str:
    """The name of an offer in messages: `p5.48xlarge in us-east-1a as spot`."""
    return f"{offer.instance_type} in {offer.zone or offer.region}{' as spot' if offer.spot else ''}"


def _is_node_create(action: Action) -> bool:
    return action.op is Op.CREATE and action.address.kind == "node"
