"""Looking ahead: errors of a plan that its backends can foresee before anything is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from declarative.apply.backend_client import BackendClient
from declarative.apply.backends import Backends
from declarative.apply.launch import seconds
from declarative.apply.outages import QUEUE
from declarative.apply.parallel import ask_backends
from declarative.model.blocks import share
from declarative.model.diagnostic import Diagnostic, Severity, Span, in_order, located
from declarative.model.inputs import Inputs, NodeInputs, RankInputs, data_of
from declarative.model.resource import LOCAL
from declarative.model.state import Address, Record, State
from declarative.model.text import and_more
from declarative.planner.plan import Op, Plan, Queued, adopted_id
from declarative.provider import NoKeyError, PermanentError, ProviderError
from declarative.provider.optional import Existing
from declarative.retry import Policy

MOST_NAMED = 5
"""Things of another state that are named; more are counted."""
WAYS_OUT = (
    "if the state was lost: `fleetform state restore`, or `--state URL` if it is elsewhere; without a "
    "backup, `fleetform state adopt` records them, as docs/state.md says (A lost state); to make new ones "
    "beside them: `fleetform apply --new-state`, once; a loop goes on after that"
)
"""What the user may do about things of another state."""
PATIENCE = Policy(deadline=5.0, longest=2.0)
"""A backend that does not answer now may do so when the plan is carried out, which is more patient."""


def foresee(
    plan: Plan, backends: Backends, places: Mapping[str, Span], state: State, *, new_state: bool = False
) -> Plan:
    """The plan, with an error for each backend that would refuse what it asks for, and with the times when
    clusters expect queued tasks to start. If the state is empty, things of the same project that another
    state made are an error too, unless the user said that a `new_state` is meant.

    `places` is where addresses are declared.
    """
    queued = tuple(_expected(task, plan, backends, state) for task in plan.preview.queued)
    plan = replace(plan, preview=replace(plan.preview, queued=queued))
    planned: dict[str, dict[Address, Inputs]] = {}
    for action in plan.actions:
        if action.op is Op.CREATE and action.address.kind in ("node", "volume"):
            planned.setdefault(action.backend or LOCAL, {})[action.address] = action.typed
    empty = not (new_state or state.records or state.intents or state.generations)

    def ask(name: str) -> list[Diagnostic]:
        others = _others(name, planned[name], backends) if empty else []
        faults = _faults(name, planned[name], backends)
        return [*others, *(_diagnostic(name, error, planned[name], backends) for error in faults)]

    answers = ask_backends(sorted(planned), ask)
    foreseen = list(located((diagnostic for items in answers.values() for diagnostic in items), places))
    # Each unreadable backend is reported once: as an error rather than as a warning.
    refused = {d.address for d in foreseen if d.severity is Severity.ERROR}
    known = [d for d in plan.diagnostics if d.code != "backend-unreadable" or d.address not in refused]
    reported = {(d.code, d.address) for d in known}
    more = [d for d in foreseen if (d.code, d.address) not in reported or d.severity is Severity.ERROR]
    return replace(plan, diagnostics=in_order([*known, *more]))


def _expected(queued: Queued, plan: Plan, backends: Backends, state: State) -> Queued:
    """A queued task, with the time at which its cluster expects it to start, if it says one."""
    new = {
        a.address.name: Record(address=a.address, backend=a.backend, inputs=data_of(a.typed))
        for a in plan.actions
        if a.op is Op.CREATE and a.address.kind == "node"
    }
    # The node of each rank, and the share of the node that it gets.
    ranks = [
        (node, share(node.node.resources, place.total_blocks, len(place.blocks)))
        for place in plan.reservations
        if place.task == queued.task and (node := new.get(place.node) or state.get("node", place.node))
    ]
    if not ranks:
        return queued
    inputs = (a.after for a in plan.actions if a.task == queued.task)
    limit = next((seconds(i.max_duration, None) for i in inputs if isinstance(i, RankInputs)), None)
    name = ranks[0][0].backend or LOCAL
    try:
        expected = backends.ask(
            name, lambda client: client.expected(queued.task, ranks, limit), part=QUEUE, policy=PATIENCE
        )
        return replace(queued, expected=expected)
    except ProviderError:
        return queued  # its submission reports the error


def _others(name: str, planned: Mapping[Address, Inputs], backends: Backends) -> list[Diagnostic]:
    """An error about things of this project that would be made a second time, since its state may have been
    lost; a warning about those that do not say of which project they are. Another project's are its own.
    """
    where = f"backend/{name}"
    new = [address for address, inputs in planned.items() if adopted_id(inputs) is None]
    try:
        others = backends.ask(name, lambda client: client.others(new), policy=PATIENCE)
    except ProviderError:
        return []  # what cannot be read is reported by what is asked next

    def named(things: Iterable[Existing]) -> str:
        return and_more((f"{t.address} ({t.id}, lineage {t.lineage})" for t in things), MOST_NAMED)

    mine = [thing for thing in others if thing.project and thing.project == backends.project]
    unknown = [thing for thing in others if thing.project is None]
    out: list[Diagnostic] = []
    if mine:
        summary = f"this state is empty, and another one of this project made {named(mine)} on {where}"
        out.append(Diagnostic(code="another-state", summary=summary, hint=WAYS_OUT, address=where))
    if unknown:
        out.append(
            Diagnostic(
                code="another-state",
                summary=f"another state, of a project that is not known, made {named(unknown)} on {where}",
                hint="if they are this project's, its state was lost: "
                "`fleetform state restore` brings it back",
                address=where,
                severity=Severity.WARNING,
            )
        )
    return out


def _faults(name: str, planned: Mapping[Address, Inputs], backends: Backends) -> Sequence[ProviderError]:
    def check(client: BackendClient) -> Sequence[ProviderError]:
        return client.check({a: data_of(typed) for a, typed in planned.items()}) if client.checks else ()

    try:
        return backends.ask(name, check, policy=PATIENCE)
    except ProviderError as error:
        return (error,)


def _diagnostic(
    name: str, error: ProviderError, planned: Mapping[Address, Inputs], backends: Backends
) -> Diagnostic:
    address = f"backend/{name}"
    if isinstance(error, NoKeyError) and backends.only_plans:
        summary = f"`apply` makes no node of backend {name} without a key: {error.summary}"
        level = Severity.WARNING
        return Diagnostic(
            code="no-node-key", summary=summary, hint=error.hint, address=address, severity=level
        )
    if isinstance(error, PermanentError):
        summary = f"backend {name} would refuse this plan: {error.summary}"
        # An error about one thing is fixed where the thing is declared: the summary begins with its address.
        subject = next((a for a in planned if error.summary.startswith(f"{a}: ")), None)
        if subject is not None:
            inputs = planned[subject]
            fleet = inputs.fleet if isinstance(inputs, NodeInputs) else None
            address = f"fleet/{fleet}" if fleet else str(subject)
        return Diagnostic(code="backend-refuses", summary=summary, hint=error.hint, address=address)
    return Diagnostic(
        code="backend-unreadable",
        summary=f"backend {name} cannot be read: {error.summary}",
        hint=error.hint or "whether it would do what is planned could not be seen",
        address=address,
        severity=Severity.WARNING,
    )
