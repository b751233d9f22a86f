"""The part of a plan that a loop does without a person, as causes, budgets and safety allow.

A group of actions is permitted or waits as a whole. What it needs is permitted with it if that only creates
or updates. A delete is never permitted because something needs it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field

from declarative.model.inputs import NodeInputs, RankInputs
from declarative.model.record import struct
from declarative.model.resource import Desired
from declarative.model.spec.project import Budget, Cause, Reconcile
from declarative.model.state import State, natural
from declarative.planner.limits import adding_actions, over_limit
from declarative.planner.part import closure, needs_of, without_groups
from declarative.planner.plan import Action, Op, Plan, Reason, group_of
from declarative.planner.probable_renames import MOST_NAMED, owner_of, renaming, successors
from declarative.planner.tasks import UNFIT

HARMLESS = frozenset({Cause.CREATE, Cause.UPDATE})
"""Goes with whatever needs it."""
DAY = 86400.0
"""Seconds."""
_CAUSES = frozenset(cause.value for cause in Cause)

CAUSES: Mapping[Reason, Cause] = {
    Reason.NEW: Cause.CREATE,
    Reason.ADOPTED: Cause.CREATE,
    Reason.CHANGED: Cause.REPLACE,
    Reason.REMOVED: Cause.DELETE,
    Reason.CASCADE: Cause.REPLACE,
    Reason.GONE: Cause.REPLACE_LOST,
    Reason.INCOMPLETE: Cause.RETRY,
    Reason.REQUESTED: Cause.REPLACE,
    Reason.RETRY: Cause.RETRY,
    Reason.SURPLUS: Cause.DELETE,
    Reason.IDLE: Cause.IDLE,
    Reason.UNUSED: Cause.IDLE,
    Reason.MISMATCH: Cause.REPLACE,
    Reason.DRIFT: Cause.DRIFT,
    Reason.UNFIT: Cause.REPLACE_LOST,
    Reason.DESTROY: Cause.DELETE,
}
_GRAVITY = (
    Cause.DELETE,
    Cause.REPLACE,
    Cause.DRIFT,
    Cause.SCHEDULE,
    Cause.REPLACE_LOST,
    Cause.RETRY,
    Cause.IDLE,
)
"""If a group has several causes, the first counts."""


@struct(frozen=True, slots=True, kw_only=True)
class WaitingGroup:
    """A group of actions that is not done now, and why. `until` is the latest time of the next try."""

    group: str
    cause: Cause
    why: str
    until: float | None = None
    approval: bool = False
    """Whether it waits for a person."""
    hint: str = ""
    """What to write or to run, if an approval is not enough."""


@struct(frozen=True, slots=True, kw_only=True)
class EarlierChange:
    """A change that was permitted earlier."""

    group: str
    cause: str
    at: float


@struct(frozen=True, slots=True, kw_only=True)
class PermitInputs:
    """The rules, approvals and earlier changes by which a plan is permitted."""

    rules: Reconcile
    now: float
    asleep: Collection[str] = ()
    """The fleets and tasks that are outside of their schedule: `task/train`."""
    approved: Collection[str] = ()
    """The groups that a person approved."""
    retry_after: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    """Group → when it is tried again, and why not now."""
    desired: Desired | None = None
    """The declared project with its limits; None if the limits do not count."""
    lost_groups: Collection[str] = ()
    """The vanished groups that were held so far. They have no records any more."""
    earlier_changes: Sequence[EarlierChange] = ()
    """What was permitted within the longest period of a budget, and within a day."""


@struct(frozen=True, slots=True, kw_only=True)
class PermittedPart:
    """The part of the plan that is done now, and what waits."""

    plan: Plan
    causes: Mapping[str, Cause]
    """The cause of each group of the whole plan."""
    waiting: tuple[WaitingGroup, ...] = ()


def causes_of(
    plan: Plan, state: State, asleep: Collection[str] = (), lost_groups: Collection[str] = ()
) -> dict[str, Cause]:
    """The cause of each group of actions. For `asleep` and `lost_groups` see `PermitInputs`."""
    groups: dict[str, list[Action]] = defaultdict(list)
    for action in plan.actions:
        groups[group_of(action)].append(action)
    causes = {group: _cause(group, actions, state, asleep) for group, actions in groups.items()}
    causes |= {group: Cause.REPLACE_LOST for group in lost_groups if causes.get(group) is Cause.CREATE}
    for group, actions in groups.items():  # a cascade has the cause of the replacement that it follows
        if any(a.reason is Reason.CASCADE for a in actions):
            because = {address for action in actions for address in action.because} - {group}
            causes[group] = _gravest({causes[b] for b in because if b in causes}, Cause.REPLACE)
    return causes


def _gravest(causes: Collection[Cause], otherwise: Cause) -> Cause:
    return next((cause for cause in _GRAVITY if cause in causes), otherwise)


def _cause(group: str, actions: Sequence[Action], state: State, asleep: Collection[str]) -> Cause:
    reasons, node = {a.reason for a in actions}, actions[0].typed
    if any(a.ends for a in actions):
        return Cause.DELETE  # it ends work that goes on, whatever field led to that
    fleet_asleep = isinstance(node, NodeInputs) and f"fleet/{node.fleet}" in asleep
    if Reason.SCHEDULE in reasons or group in asleep or (fleet_asleep and Reason.SURPLUS in reasons):
        return Cause.SCHEDULE
    ops = {a.op for a in actions if not a.forgets}
    if group.startswith("volume/") and Op.DELETE in ops:
        return Cause.DELETE  # its content is lost, whatever led to that
    if ops <= {Op.UPDATE}:
        return Cause.DRIFT if Reason.DRIFT in reasons else Cause.UPDATE
    gone = (a.address.name for a in actions if a.op is Op.DELETE and isinstance(a.typed, RankInputs))
    if not group.startswith("task/") or not all(map(state.has_ended, gone)):
        return _gravest({CAUSES[a.reason] for a in actions if a.op is not Op.UPDATE}, Cause.CREATE)
    if ops == {Op.DELETE}:
        return Cause.IDLE  # only the records of its ranks are left
    return Cause.RETRY if reasons & {Reason.RETRY, Reason.INCOMPLETE} else Cause.CREATE


def components(plan: Plan, groups: Collection[str]) -> list[frozenset[str]]:
    """The groups in sets that need each other, in their order."""
    edges: dict[str, set[str]] = {group: set() for group in groups}
    for group, needs in needs_of(plan).items():
        for need in needs & edges.keys():
            if group in edges:
                edges[group].add(need)
                edges[need].add(group)
    out: list[frozenset[str]] = []
    visited: set[str] = set()
    for group in sorted(edges):
        if group not in visited:
            members = closure((group,), edges)
            visited |= members
            out.append(frozenset(members))
    return out


def permitted_part(plan: Plan, state: State, inputs: PermitInputs) -> PermittedPart:
    """The part of the plan that is done now. `state` is the records with what was observed."""
    causes = causes_of(plan, state, inputs.asleep, inputs.lost_groups)
    needs = needs_of(plan)
    deleted = {group_of(a) for a in plan.actions if a.op is Op.DELETE}
    # What makes vanished things anew goes with whatever needs it, too.
    makes = {g for g, cause in causes.items() if cause is Cause.REPLACE_LOST} - deleted
    allowed = {g for g, cause in causes.items() if cause in inputs.rules.allow or g in inputs.approved}
    allowed |= {n for g in allowed for n in needs[g] if causes[n] in HARMLESS or n in makes}
    waiting = {g: _not_allowed(g, cause, inputs.rules) for g, cause in causes.items() if g not in allowed}
    for group, why, hint in (*_protected(plan, causes), *_maybe_busy(plan, state, causes)):
        waiting[group] = WaitingGroup(group=group, cause=causes[group], why=why, hint=hint)
    delayed = (_later(group, causes[group], inputs) for group in allowed - waiting.keys())
    waiting |= {one.group: one for one in delayed if one}
    waiting |= _in_place(plan, state, waiting, inputs)
    waiting |= _not_needed(plan, causes, needs, waiting, inputs.desired)
    part = without_groups(plan, state, waiting)
    for beyond in (_over_budget, _over_limit):
        waiting |= beyond(part, state, causes, inputs)
        part = without_groups(plan, state, waiting)
    # A fleet may be replaced by another as its budget permits. A task would run twice.
    waiting |= {g: h for g, h in _in_place(plan, state, waiting, inputs).items() if not g.startswith("node/")}
    part = without_groups(plan, state, waiting)
    waiting |= _held_up(part, causes, needs, waiting)
    return PermittedPart(plan=part, causes=causes, waiting=tuple(waiting[g] for g in sorted(waiting)))


def _in_place(
    plan: Plan, state: State, waiting: Mapping[str, WaitingGroup], inputs: PermitInputs
) -> dict[str, WaitingGroup]:
    """The creations in the place of something whose deletion is held, as after a rename without `moved`: an
    empty volume, a task that would run twice, a fleet that would be paid for twice.
    """
    created = {group_of(a): owner_of(a) for a in plan.actions if a.op is Op.CREATE}
    staying = _kept(plan, state, waiting, inputs.desired) if created and inputs.desired else {}
    created = {
        group: owner for group, owner in created.items() if group not in waiting and owner not in staying
    }
    replaced_by = (
        successors(inputs.desired, state, staying.keys()) if created and staying and inputs.desired else {}
    )
    out: dict[str, WaitingGroup] = {}
    for group, owner in created.items():
        olds = replaced_by.get(owner, ())
        if olds and not (group in inputs.approved and all(staying[old].approval for old in olds)):
            out[group] = _replacing(group, owner, olds, staying)
    return out


def _kept(
    plan: Plan, state: State, waiting: Mapping[str, WaitingGroup], desired: Desired
) -> dict[str, WaitingGroup]:
    """What is not deleted now, by `owner_of`, and why: its deletion is held; or it is declared no more, and
    in use, so that only a later plan deletes it.
    """
    out: dict[str, WaitingGroup] = {}
    goes: set[str] = set()
    for action in plan.actions:
        if action.op is Op.DELETE:
            one = None if action.forgets else waiting.get(group_of(action))
            goes.add(owner_of(action))
            if one:
                out.setdefault(owner_of(action), one)
    why = "stays as long as it is used"
    for record in (*state.of("volume"), *state.of("node")):
        if record.address.kind == "volume":
            owner, there = str(record.address), record.address.name in desired.volumes
        else:
            owner, there = f"fleet/{record.node.fleet}", record.node.fleet in desired.fleets
        if not there and owner not in goes:
            out.setdefault(owner, WaitingGroup(group=str(record.address), cause=Cause.DELETE, why=why))
    return out


def _replacing(
    group: str, owner: str, olds: Sequence[str], staying: Mapping[str, WaitingGroup]
) -> WaitingGroup:
    """The wait of a creation in the place of one of `olds`, which are `staying`."""
    # If one of them is refused, the creation is refused, too: no approval is enough.
    old = next((old for old in olds if not staying[old].approval), olds[0])
    one, named = staying[old], " or ".join(olds[:MOST_NAMED])
    who = "which" if one.group == named else f"and {one.group}"
    hint = f"if it was renamed, write {renaming(old, owner)} in the `project` document"
    if owner.startswith("volume/"):
        hint += f"; if not, `removed: [{{from: {old}, destroy: false}}]` keeps the content of {old}"
    return WaitingGroup(
        group=group,
        cause=Cause.CREATE,
        why=f"takes the place of {named}, {who} {one.why}",
        until=one.until,
        approval=one.approval,
        hint=hint,
    )


def _not_needed(
    plan: Plan,
    causes: Mapping[str, Cause],
    needs: Mapping[str, Collection[str]],
    waiting: Mapping[str, WaitingGroup],
    desired: Desired | None,
) -> dict[str, WaitingGroup]:
    """The new nodes that only held groups need, if their fleets have enough nodes without them.

    They would be idle until the groups are done. Groups that wait for a budget do not count: a budget may
    permit nodes that are launched for each other one after the other.
    """
    spare = Counter(node.fleet for node in plan.preview.nodes if node.stays)
    for name, fleet in desired.fleets.items() if desired else ():
        spare[name] -= fleet.nodes.target if fleet.nodes else 0
    going = {need for group in causes.keys() - waiting.keys() for need in needs[group]}
    users = {need: group for group in sorted(waiting, reverse=True) for need in needs[group]}
    out: dict[str, WaitingGroup] = {}
    creations = [a for a in plan.of(Op.CREATE, "node") if causes[group_of(a)] is Cause.CREATE]
    for action in sorted(creations, key=lambda a: natural(a.address.name), reverse=True):
        group, node = group_of(action), action.typed
        waits = group in users and group not in going and group not in waiting
        if waits and isinstance(node, NodeInputs) and spare[node.fleet] > 0:
            spare[node.fleet] -= 1
            user = waiting[users[group]]
            why = f"is for {user.group}, which {user.why}"
            out[group] = WaitingGroup(
                group=group, cause=Cause.CREATE, why=why, until=user.until, hint=user.hint
            )
    return out


def _held_up(
    part: Plan,
    causes: Mapping[str, Cause],
    needs: Mapping[str, Collection[str]],
    waiting: Mapping[str, WaitingGroup],
) -> dict[str, WaitingGroup]:
    """The groups that are left out because they need a held one."""
    out: dict[str, WaitingGroup] = {}
    going = {group_of(a) for a in part.actions}
    for group in causes.keys() - going - waiting.keys():
        needed = sorted(n for n in needs[group] if n in waiting)
        first = waiting[needed[0]]
        why = f"needs {first.group}, which {first.why}"
        approval = any(waiting[n].approval for n in needed)
        out[group] = WaitingGroup(
            group=group, cause=causes[group], why=why, approval=approval, hint=first.hint
        )
    return out


def _not_allowed(group: str, cause: Cause, rules: Reconcile) -> WaitingGroup:
    if rules.waits(cause):
        return WaitingGroup(group=group, cause=cause, why="waits for approval", approval=True)
    why = f"is left to people: `{cause.value}` is neither in `allow` nor in `approve`"
    return WaitingGroup(group=group, cause=cause, why=why, hint=by_hand(group))


def by_hand(group: str) -> str:
    """The command with which a person does it now."""
    return f"to do it now: `fleetform apply --target {group}`"


def _protected(plan: Plan, causes: Mapping[str, Cause]) -> Iterator[tuple[str, str, str]]:
    """The groups that are never touched, whatever is allowed; why, and what to do."""
    for diagnostic in plan.diagnostics:
        if diagnostic.code == "protected" and diagnostic.address is not None and diagnostic.address in causes:
            yield diagnostic.address, "is protected", diagnostic.hint or ""


def _maybe_busy(plan: Plan, state: State, causes: Mapping[str, Cause]) -> Iterator[tuple[str, str, str]]:
    """The nodes that are not touched because they may be busy; why, and what to do."""
    for action in plan.of(Op.DELETE, "node"):
        if action.forgets:
            continue
        group, name = group_of(action), action.address.name
        if state.strays.get(name):
            ranks = (who.removeprefix("rank/") for who in state.strays[name].values() if "rank/" in who)
            tasks = sorted({rank.rpartition("-")[0] for rank in ranks})
            ends = "to end them: " + " and ".join(f"`fleetform stop {task}`" for task in tasks)
            yield group, "has ranks that are not recorded", ends if tasks else ""
        readiness = state.readiness.get(name)
        if causes[group] is not Cause.REPLACE_LOST and (readiness is None or readiness.state in UNFIT):
            hint = f"it is deleted once it answers; {by_hand(group)}"
            yield group, "does not answer, so it may be busy", hint


def _later(group: str, cause: Cause, inputs: PermitInputs) -> WaitingGroup | None:
    """Why a group waits that was tried, or replaced, too often."""
    until, why = inputs.retry_after.get(group, (inputs.now, ""))
    if until > inputs.now:
        return WaitingGroup(group=group, cause=cause, why=why, until=until, hint=by_hand(group))
    if cause is Cause.REPLACE_LOST and group.startswith("node/"):
        times = sorted(d.at for d in inputs.earlier_changes if (d.group, d.cause) == (group, cause))
        times = [at for at in times if at > inputs.now - DAY]
        most = inputs.rules.replacements_per_day
        if len(times) >= most:
            next_try = times[-most] + DAY if most else None
            why = f"was replaced {most} times in a day"
            hint = f"raise `replacements_per_day`; {by_hand(group)}"
            return WaitingGroup(group=group, cause=cause, why=why, until=next_try, hint=hint)
    return None


@struct(slots=True)
class _Spending:
    """How many nodes of a budget are used."""

    budget: Budget
    used: int

    def has_room(self, weight: int) -> bool:
        """Whether a group has room. One that is larger than the whole budget goes alone: else it waits for
        ever.
        """
        alone = self.used == 0 and self.budget.nodes > 0
        return weight == 0 or alone or self.used + weight <= self.budget.nodes

    @property
    def why(self) -> str:
        """Why something waits for the budget."""
        budget = self.budget
        window = f" in {budget.per.plain()}" if budget.per is not None else " at once"
        return f"waits for a budget: {budget.nodes} node{'s' if budget.nodes != 1 else ''}{window}"


def _over_budget(
    part: Plan, state: State, causes: Mapping[str, Cause], inputs: PermitInputs
) -> dict[str, WaitingGroup]:
    """The groups for which a budget has no room, in the order of the plan."""
    changes = [c for c in inputs.earlier_changes if c.cause in _CAUSES and c.group.startswith("node/")]
    spendings: list[_Spending] = []
    for budget in inputs.rules.budgets:
        if budget.holds(inputs.now):
            recent = (c for c in changes if budget.window and c.at > inputs.now - budget.window)
            spendings.append(_Spending(budget, sum(budget.counts(Cause(c.cause)) for c in recent)))
    out: dict[str, WaitingGroup] = {}
    for group in dict.fromkeys(map(group_of, part.actions)):
        mine = [s for s in spendings if s.budget.counts(causes[group])]
        weight = _weight(group, part, state) if mine else 0
        full = [s for s in mine if not s.has_room(weight)]
        if full:
            out[group] = WaitingGroup(group=group, cause=causes[group], why=full[0].why, hint=by_hand(group))
        else:
            for spending in mine:
                spending.used += weight
    return out


def _over_limit(
    part: Plan, state: State, causes: Mapping[str, Cause], inputs: PermitInputs
) -> dict[str, WaitingGroup]:
    """The nodes that would exceed a limit of the project, and the tasks on a partition's nodes: the last ones
    by name. What needs each other is done together or not at all.
    """
    desired = inputs.desired
    over = over_limit(part, desired) if desired else None
    if desired is None or over is None:
        return {}
    adding = {group_of(a) for a in adding_actions(part)}
    launches = [members & adding for members in components(part, causes.keys()) if members & adding]

    def held(count: int) -> set[str]:
        return {group for members in launches[count:] for group in members}

    most = bisect_left(
        range(1, len(launches) + 1),
        True,
        key=lambda count: over_limit(without_groups(part, state, held(count)), desired) is not None,
    )
    why = f"would go beyond `limits`: {over.summary}"
    hint = over.hint or ""
    return {
        group: WaitingGroup(group=group, cause=causes[group], why=why, hint=hint)
        for group in sorted(held(most))
    }


def _weight(group: str, part: Plan, state: State) -> int:
    """The number of nodes of a group."""
    kind, _, name = group.partition("/")
    if kind == "node":
        return 1
    if kind == "volume":
        return 0
    nodes = {r.reservation.node for r in state.of("reservation") if r.reservation.task == name}
    ranks = [a for a in part.actions if isinstance(a.typed, RankInputs) and a.task == name]
    return len(nodes) if any(a.op is Op.DELETE for a in ranks) else 0
