"""Actions from decisions: what each step needs, and an order in which the steps could run one by one."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence

from declarative.model.inputs import AttachmentInputs, Inputs, NodeInputs, ReservationInputs, VolumeInputs
from declarative.model.record import set_field
from declarative.model.resource import INSTANCE_ID, VOLUME_ID
from declarative.model.state import KINDS, Address, Record, State, natural
from declarative.planner.types import Action, Op, Reason

_RANKS = {kind: rank for rank, kind in enumerate(KINDS)}


class Steps:
    """Collects actions, then joins them by their needs."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.actions: dict[str, Action] = {}
        self._made: dict[Address, str] = {}
        """Address → the action after which it is as planned: its creation, else its update."""
        self._gone: dict[Address, str] = {}
        """Address → the action that deletes it."""
        self.extra: dict[str, set[str]] = defaultdict(set)
        """Needs beside those that follow from `holds`: gang starts, blocks and volumes that are passed on."""

    def add(self, action: Action) -> None:
        """Add one action; one address has at most one of each op."""
        key = action.id
        self.actions[key] = action
        if action.op is Op.DELETE:
            self._gone[action.address] = key
        elif action.op is Op.CREATE or action.address not in self._made:
            self._made[action.address] = key

    def create(
        self,
        address: Address,
        after: Inputs,
        reason: Reason,
        because: tuple[str, ...] = (),
        *,
        holds: tuple[Address, ...] = (),
        backend: str | None = None,
    ) -> None:
        """Add a creation."""
        self.add(
            Action(
                op=Op.CREATE,
                address=address,
                reason=reason,
                because=because,
                after=after,
                holds=holds,
                backend=backend,
            )
        )

    def update(
        self,
        record: Record,
        after: Inputs,
        reason: Reason,
        because: tuple[str, ...],
        *,
        holds: tuple[Address, ...] = (),
        ends: bool = False,
    ) -> None:
        """Add a change in place."""
        self.add(
            Action(
                op=Op.UPDATE,
                address=record.address,
                reason=reason,
                because=because,
                before=record.typed,
                after=after,
                holds=holds,
                backend=record.backend,
                ends=ends,
            )
        )

    def delete(
        self,
        record: Record,
        reason: Reason,
        because: tuple[str, ...] = (),
        *,
        forget: bool = False,
        ends: bool = False,
    ) -> None:
        """Add a deletion."""
        self.add(
            Action(
                op=Op.DELETE,
                address=record.address,
                reason=reason,
                because=because,
                before=record.typed,
                backend=record.backend,
                forget=forget,
                ends=ends,
            )
        )

    def after(self, action: str, needed: Iterable[str]) -> None:
        """`action` waits for those of `needed` that exist."""
        self.extra[action].update(needed)

    def join(self) -> tuple[Action, ...]:
        """All actions with their direct needs, in order: deletions first, then by kind and name."""
        self._pass_on()
        keys = sorted(self.actions, key=self._place)
        for key in keys:
            action = self.actions[key]
            needed = self._needs(key, action)
            if needed:  # nobody else has the action yet, and a copy of each would take long
                set_field(action, "needs", tuple(sorted(needed)))
        return _ordered([self.actions[key] for key in keys], keys)

    def _needs(self, key: str, action: Action) -> set[str]:
        needs = {other for other in self.extra.get(key, ()) if other in self.actions}
        if action.op is Op.DELETE:
            return needs
        needs.update([self._made[held] for held in action.holds if held in self._made])
        if action.op is Op.CREATE and action.address in self._gone:
            needs.add(self._gone[action.address])
        return needs

    def _pass_on(self) -> None:
        """A delete waits for everything recorded as needing it; a create waits for what it takes over."""
        freed: dict[object, list[str]] = defaultdict(list)
        for action in self.actions.values():
            record = self.state.records.get(action.address)
            if action.op is Op.DELETE and record is not None:
                self._wait_for_users(action.id, record)
                for key in _places(record.typed):
                    freed[key].append(action.id)
        created = (a for a in self.actions.values() if a.op is Op.CREATE) if freed else ()
        for action in created:
            for key in _places(action.typed):
                self.extra[action.id].update(freed.get(key, ()))

    def _wait_for_users(self, delete: str, record: Record) -> None:
        """A record is deleted before what it needs, and a node is split anew once its blocks are free."""
        for held in record.needs:
            self.extra[f"delete:{held}"].add(delete)
        if record.address.kind == "reservation":
            self.extra[f"update:node/{record.reservation.node}"].add(delete)

    def _place(self, key: str) -> tuple[object, ...]:
        """The order among actions that could run: deletions first, then by kind and name."""
        action = self.actions[key]
        kind, deletion = _RANKS[action.address.kind], action.op is Op.DELETE
        return (not deletion, -kind if deletion else kind, natural(action.address.name), key)


def _ordered(actions: Sequence[Action], keys: Sequence[str]) -> tuple[Action, ...]:
    """The actions in topological order, always the first that could run; `keys` are their ids."""
    places = {key: place for place, key in enumerate(keys)}
    waiting = [len(action.needs) for action in actions]
    follow: list[list[int]] = [[] for _ in actions]
    for place, action in enumerate(actions):
        for need in action.needs:
            follow[places[need]].append(place)
    ready = [place for place, count in enumerate(waiting) if not count]  # sorted, and so a heap
    out: list[Action] = []
    while ready:
        place = heapq.heappop(ready)
        out.append(actions[place])
        for later in follow[place]:
            waiting[later] -= 1
            if waiting[later] == 0:
                heapq.heappush(ready, later)
    if len(out) != len(actions):
        raise AssertionError(f"a cycle among {[keys[i] for i, count in enumerate(waiting) if count]}")
    return tuple(out)


def _places(inputs: Inputs) -> list[object]:
    """The things that only one address can hold at a time: blocks, volumes, and adopted things."""
    if isinstance(inputs, ReservationInputs):
        return [(inputs.node, block) for block in inputs.blocks]
    if isinstance(inputs, VolumeInputs) and inputs.volume_id is not None:
        return [(VOLUME_ID, inputs.backend, inputs.volume_id)]
    if isinstance(inputs, NodeInputs) and inputs.instance_id is not None:
        return [(INSTANCE_ID, inputs.backend, inputs.instance_id)]
    return [inputs.volume] if isinstance(inputs, AttachmentInputs) else []
