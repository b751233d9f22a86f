"""Actions from decisions: what each step needs, and an order in which the steps could run one by one."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping

from declarative.model.inputs import AttachmentInputs, Inputs, NodeInputs, ReservationInputs, VolumeInputs
from declarative.model.resource import INSTANCE_ID, VOLUME_ID
from declarative.model.state import KINDS, Address, Record, State, natural
from declarative.planner.types import Action, Op, Reason


class Steps:
    """Collects actions, then joins them by their needs."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.actions: dict[str, Action] = {}
        self._made: dict[Address, str] = {}
        """After which action each address is as it shall be: its creation, else its update."""
        self.extra: dict[str, set[str]] = defaultdict(set)
        """More needs than those that follow from `holds`: gang starts, blocks and volumes passed on."""

    def add(self, action: Action) -> None:
        """Add one action; one address has at most one of each op."""
        key = action.id
        self.actions[key] = action
        if action.op is Op.CREATE or (action.op is Op.UPDATE and action.address not in self._made):
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
            )
        )

    def delete(
        self, record: Record, reason: Reason, because: tuple[str, ...] = (), *, forget: bool = False
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
            )
        )

    def after(self, action: str, needed: Iterable[str]) -> None:
        """`action` waits for `needed`, as far as those exist."""
        self.extra[action].update(needed)

    def join(self) -> tuple[Action, ...]:
        """All actions with their direct needs, in order: deletions first, then by kind and name."""
        self._pass_on()
        needs = {key: self._needs(key, action) for key, action in self.actions.items()}
        for key, needed in needs.items():
            if needed:  # nobody else has the action yet, and a copy of each would take long
                object.__setattr__(self.actions[key], "needs", tuple(sorted(needed)))
        return tuple(self.actions[key] for key in self._ordered(needs))

    def _needs(self, key: str, action: Action) -> set[str]:
        needs = {n for n in self.extra.get(key, ()) if n in self.actions}
        if action.op is Op.DELETE:
            return needs
        needs.update(self._made[held] for held in action.holds if held in self._made)
        gone = f"delete:{action.address}"
        if action.op is Op.CREATE and gone in self.actions:
            needs.add(gone)
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
        """What a record needs goes after it, and a node is not split anew before its blocks are free."""
        for held in record.needs:
            self.extra[f"delete:{held}"].add(delete)
        if record.address.kind == "reservation":
            self.extra[f"update:node/{record.reservation.node}"].add(delete)

    def _ordered(self, needs: Mapping[str, set[str]]) -> list[str]:
        """Topological, always the first by (deletions first, kind, name) of those that could run."""
        keys = sorted(needs, key=self._place)
        places = {key: place for place, key in enumerate(keys)}
        waiting = {key: len(found) for key, found in needs.items()}
        follow: dict[str, list[str]] = defaultdict(list)
        for key, wanted in needs.items():
            for need in wanted:
                follow[need].append(key)
        ready = [place for place, key in enumerate(keys) if not waiting[key]]  # sorted, and so a heap
        out: list[str] = []
        while ready:
            key = keys[heapq.heappop(ready)]
            out.append(key)
            for later in follow[key]:
                waiting[later] -= 1
                if waiting[later] == 0:
                    heapq.heappush(ready, places[later])
        if len(out) != len(needs):
            raise AssertionError(f"a cycle among {sorted(set(needs) - set(out))}")
        return out

    def _place(self, key: str) -> tuple[object, ...]:
        action = self.actions[key]
        kind = KINDS.index(action.address.kind)
        deletion = action.op is Op.DELETE
        return (not deletion, -kind if deletion else kind, natural(action.address.name), key)


def _places(inputs: Inputs) -> list[object]:
    """What only one can hold at a time: blocks, volumes, and what was adopted."""
    if isinstance(inputs, ReservationInputs):
        return [(inputs.node, block) for block in inputs.blocks]
    if isinstance(inputs, VolumeInputs) and inputs.volume_id is not None:
        return [(VOLUME_ID, inputs.backend, inputs.volume_id)]
    if isinstance(inputs, NodeInputs) and inputs.instance_id is not None:
        return [(INSTANCE_ID, inputs.backend, inputs.instance_id)]
    return [inputs.volume] if isinstance(inputs, AttachmentInputs) else []
