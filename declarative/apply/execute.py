"""Carrying out one action: the intent is committed, the backend called, its result committed.

The only code that calls a backend to change something on a plan's behalf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from declarative.apply.failover import ActionError
from declarative.apply.gate import GATE_SECONDS, check_peers, is_gang, release
from declarative.apply.graph_walk import InterruptedApplyError, Tools
from declarative.apply.launch import grace_of, launch_of, terms_of
from declarative.apply.unreachable import end
from declarative.language.template import MissingEnvError
from declarative.model.inputs import RankInputs, ReservationInputs, data_of, knows_siblings
from declarative.model.state import (
    ALONE,
    ENDED_ATTEMPT,
    Address,
    Intent,
    Record,
    State,
    attempt_id,
    machine_name,
    rank_name,
    started_rank,
)
from declarative.model.status import BOOTING, START_UP_LIMIT, NodeState, Readiness
from declarative.planner.plan import Action, Op, Reason
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from declarative.retry import call
from declarative.spans import span
from declarative.store.commit_queue import PendingCommit

T = TypeVar("T")

MOST_USED_UP = 100
"""Tokens of one address that may be used up: a state from a backup goes through those of its lost future."""

NEVER_UP = frozenset({NodeState.FAILED, *BOOTING})
"""The states of a node that is no longer waited for, and that nothing ever ran on."""

SAY_SECONDS = 15.0
"""Seconds between two messages about what an action waits for."""

LATE = (
    "it is deleted, and made anew by the next try; if SSH never gets there, look at the backend's `network`, "
    "and at what its image starts"
)
"""The hint for a node that did not come up in time."""


def execute(action: Action, tools: Tools) -> PendingCommit | None:
    """Do it, or raise `ProviderError`, `StateError`, `ActionError` or `InterruptedApplyError`. The result is
    its end, if that is still to be committed.
    """
    kind = action.address.kind
    with span(f"action.{action.op.value}", address=str(action.address)):
        if kind == "reservation":
            _reservation(action, tools)
        elif kind == "rank":
            _RANK[action.op](action, tools)
        else:
            return _THING[action.op](action, tools)
    return None


def begins_at_once(action: Action) -> bool:
    """Whether its intent comes at once, so that the end of another action may be committed with it."""
    return action.address.kind not in ("reservation", "rank") and action.reason is not Reason.UNFIT


def _retried(
    action: Action, tools: Tools, function: Callable[[], T], late: Callable[[], bool] = lambda: False
) -> T:
    """The result of a call of an action, tried again until it is `late`."""
    return call(
        function,
        policy=tools.policy,
        on_retry=lambda error, wait: tools.listener.retry(action.id, error.summary, wait),
        stopping=lambda: tools.stopping.is_set() or late(),
    )


def _make(action: Action, tools: Tools) -> PendingCommit:
    """Make a node, a volume or an attachment. A node that goes elsewhere first leaves where it is."""
    have = tools.writer.record(action.address) if action.address.kind == "node" else None
    if have is not None:
        leave = replace(action, op=Op.DELETE, before=have.typed, after=None, backend=have.backend)
        try:
            pending = _delete(leave, tools)
        except PermanentError as error:
            # No fault of a backend any more: no other place would change that.
            raise ActionError(f"it cannot leave where it is: {error.summary}", error.hint) from error
        if pending:
            pending.settle()
    records = tools.writer.part(action.holds).records if action.holds else {}
    needs = {a: records[a] for a in action.holds if a in records}
    client, inputs = tools.backends.get(action.backend), data_of(action.typed)
    tokens_left = MOST_USED_UP
    while True:
        tokens_left -= 1
        intent = tools.writer.begin("create", action.address, action.backend, inputs, frozenset(action.holds))
        make = partial(client.create, action.address, intent.token, inputs, needs)
        try:
            outputs = _until_up(action, tools, intent, make)
        except PermanentError as error:
            tools.writer.fail(intent, error.summary)
            # If a token is used up, the state was restored from a backup, and the thing that was made since
            # then is gone: the next generation's token is tried.
            if error.kind is not PermanentKind.USED_UP or not tokens_left or tools.stopping.is_set():
                raise
            continue
        idle_since = tools.now() if action.address.kind == "node" else None
        return tools.writer.finish_soon(intent, outputs, idle_since=idle_since)


def _update(action: Action, tools: Tools) -> PendingCommit:
    """Change it in place. A `PermanentError` says that nothing was changed; after anything else that is not
    known, and the intent stays open to be read back.
    """
    have = tools.writer.record(action.address)
    assert have is not None
    client, inputs = tools.backends.get(action.backend), data_of(action.typed)
    intent = tools.writer.begin("update", action.address, action.backend, inputs, have.needs)
    try:
        outputs = _retried(action, tools, lambda: client.update(have, intent.token, inputs))
    except PermanentError as error:
        tools.writer.fail(intent, error.summary)
        raise
    return tools.writer.finish_soon(intent, outputs)


def _delete(action: Action, tools: Tools) -> PendingCommit | None:
    """Delete it, or forget it; one that is not there any more is deleted."""
    have = tools.writer.record(action.address)
    if have is None:
        return None
    if action.forget:
        tools.writer.drop([action.address])
        return None
    if action.reason is Reason.UNFIT and any(
        have.address in r.needs for r in tools.writer.state().of("reservation")
    ):
        # A node that was given up while it is used ends before anything of it counts as lost.
        cause = f"{have.address} was given up: {', '.join(action.because)}"
        end(tools.writer, tools.backends, have, cause, tools.now)
    client, inputs = tools.backends.get(action.backend), data_of(action.typed)
    intent = tools.writer.begin("delete", action.address, action.backend, inputs, frozenset(action.holds))
    try:
        _retried(action, tools, lambda: client.delete(have))
    except PermanentError as error:
        if error.kind is not PermanentKind.NOT_FOUND:
            tools.writer.fail(intent, error.summary)
            raise
    return tools.writer.finish_soon(intent)


def _until_up(
    action: Action, tools: Tools, intent: Intent, make: Callable[[], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Make it. A node that its backend has, and that is still starting at the end of the start-up limit, is
    deleted: it would be billed for nothing. That is a want of capacity, so that the next offer is taken.
    """
    start = tools.now()

    def late() -> bool:
        return action.address.kind == "node" and tools.now() - start > START_UP_LIMIT

    while True:
        try:
            return _retried(action, tools, make, late)
        except TransientError as error:
            if error.kind is not TransientKind.BUSY or action.address.kind != "node":
                raise
            if tools.stopping.is_set():
                raise
            client = tools.backends.get(action.backend)
            thing = call(partial(client.find, action.address, intent.token), policy=tools.policy)
            if thing is None:
                raise
            if late():
                there = Record(
                    address=action.address,
                    backend=action.backend,
                    inputs=intent.inputs,
                    outputs=thing.outputs,
                )
                try:
                    _retried(action, tools, partial(client.delete, there))
                except PermanentError as fault:
                    if fault.kind is not PermanentKind.NOT_FOUND:
                        raise error from fault  # its intent stays open: it is taken up by the next command
                summary = f"not up within {START_UP_LIMIT / 60:.0f} minutes, and deleted: {error.summary}"
                raise PermanentError(
                    PermanentKind.NO_CAPACITY, summary, about=error.about, hint=error.hint
                ) from error


def _reservation(action: Action, tools: Tools) -> None:
    """Blocks are only rows of the state. The node's readiness is observed again before they are used."""
    if action.op is Op.DELETE:
        tools.writer.release(action.address, tools.now())
        return
    place = action.typed
    assert isinstance(place, ReservationInputs)
    wait_ready(Address("node", place.node), tools, action.id)
    needs = frozenset(action.holds)
    record = Record(address=action.address, backend=None, inputs=data_of(place), needs=needs)
    tools.writer.reserve(record, place.node, place.blocks)


def wait_ready(address: Address, tools: Tools, id: str) -> Readiness:
    """Wait until a node is ready, up to the start-up limit; a node that ran before has to be ready now.

    The action `id` says what for, and again when that has changed.
    """
    start = tools.now()
    pause = 0.1
    reported, next_time = "", start
    while True:
        record = tools.writer.record(address)
        if record is None:
            raise ActionError(f"{address} is not recorded")
        readiness = observe(record, tools)
        tools.writer.observe_nodes({address.name: readiness})
        if readiness.state is NodeState.READY:
            return readiness
        now = tools.now()
        boots = readiness.state in BOOTING
        if not boots or now - start > START_UP_LIMIT:
            if readiness.state in NEVER_UP:
                tools.late.add(address)
            why = f": {readiness.reason}" if readiness.reason else ""
            if not boots:
                raise ActionError(f"{address} is {readiness.state.value}{why}")
            minutes = START_UP_LIMIT / 60
            raise ActionError(f"{address} was not ready within {minutes:.0f} minutes{why}", LATE)
        reason = readiness.reason or f"it is {readiness.state.value}"
        if now >= next_time and reported != reason:
            tools.listener.wait(id, str(address), reason)
            reported, next_time = reason, now + SAY_SECONDS
        if tools.stopping.wait(pause):
            raise InterruptedApplyError
        pause = min(5.0, pause * 2)


def observe(node: Record, tools: Tools) -> Readiness:
    """The readiness of a node, observed now."""
    client = tools.backends.get(node.backend)
    return call(lambda: client.readiness([node]), policy=tools.policy)[node.address.name]


def _gang_addresses(kind: str, inputs: RankInputs) -> list[Address]:
    return [Address(kind, rank_name(inputs.task, rank)) for rank in range(inputs.nodes)]


def _start(action: Action, tools: Tools) -> None:
    inputs = action.typed
    assert isinstance(inputs, RankInputs)
    # A rank gets its siblings' addresses. If ranks do not know each other, it may join others that run.
    siblings = [] if knows_siblings(inputs) else _gang_addresses("rank", inputs)
    state = tools.writer.part((*action.holds, *_gang_addresses("reservation", inputs), *siblings))
    node = _node_for(action, inputs, state, tools)
    intent = tools.writer.begin("create", action.address, node.backend, data_of(inputs), action.holds)
    record = started_rank(intent, node)
    client = tools.backends.get(node.backend)
    # One that joins ranks that run, since its task got more `nodes`, waits for nobody.
    joins = any(r.rank.nodes != inputs.nodes for r in state.of("rank") if r.rank.task == inputs.task)
    try:
        gate = GATE_SECONDS if client.gates and is_gang(inputs) and not joins else None
        launch = launch_of(
            state,
            record,
            tools.environ,
            tools.backends.files,
            gate_seconds=gate,
            limits=tools.backends.limits,
        )
        status = _retried(action, tools, lambda: client.start(node, launch))
    except (PermanentError, MissingEnvError) as error:
        # Certain not to have started; after anything else the intent stays open, to be read back.
        tools.writer.fail(intent, getattr(error, "summary", str(error)))
        raise
    tools.writer.finish(intent, {**record.outputs, **_alone(node, launch.alone_seconds)})
    tools.writer.observe_ranks({action.address.name: status})
    if gate:
        release(record.rank.task, tools, action.id)


def _node_for(action: Action, inputs: RankInputs, state: State, tools: Tools) -> Record:
    """The node that a rank starts on: it is ready, and the gang can meet there."""
    missing = [str(a) for a in action.holds if a not in state.records]
    if missing:
        raise ActionError(f"{missing[0]} is not there")
    reservation = next(a for a in action.holds if a.kind == "reservation")
    node = state.needed(state.records[reservation], "node")
    if f"create:{reservation}" not in action.needs:
        # The place is from an earlier apply: its node was not looked at in this one.
        wait_ready(node.address, tools, action.id)
    if not any(need.startswith("create:rank/") for need in action.needs):
        check_peers(inputs, state, tools.backends, tools.reached)  # the gang's first: nothing runs yet
    return node


def _stop(action: Action, tools: Tools) -> None:
    """Stop it if it runs, and forget it."""
    state = tools.writer.part((action.address, Address("reservation", action.address.name)))
    record = state.records.get(action.address)
    if record is None:
        return
    # The journal alone remembers where the output of an earlier attempt is.
    name = record.node_name
    output_node = tools.writer.record(Address("node", name)) if name else None
    machine = {"machine": machine_name(output_node)} if output_node else {}
    inputs = {**record.inputs, ENDED_ATTEMPT: {"id": attempt_id(record), "node": name, **machine}}
    intent = tools.writer.begin("delete", action.address, record.backend, inputs)
    reservation = state.get("reservation", action.address.name)
    if reservation is not None and not state.has_ended(action.address.name):
        node = state.needed(reservation, "node")
        client = tools.backends.get(node.backend)
        _retried(action, tools, lambda: client.stop(node, attempt_id(record), grace_of(record.rank)))
    tools.writer.finish(intent)


def _change(action: Action, tools: Tools) -> None:
    """Change fields of a rank in place. Its host gets those of `HOST_TERMS`."""
    wanted_inputs = action.typed
    assert isinstance(wanted_inputs, RankInputs)
    state = tools.writer.part((action.address, *_gang_addresses("reservation", wanted_inputs)))
    record, inputs = state.records[action.address], data_of(wanted_inputs)
    intent = tools.writer.begin("update", action.address, record.backend, inputs, record.needs)
    status, outputs = state.ranks.get(action.address.name), record.outputs
    changed = HOST_TERMS.intersection(action.because)
    if changed and status and not status.state.ended:
        node = state.needed(state.records[Address("reservation", action.address.name)], "node")
        client, attempt = tools.backends.get(node.backend), attempt_id(record)
        terms = terms_of(state, replace(record, inputs=inputs), tools.backends.limits)
        _retried(action, tools, lambda: client.adjust(node, attempt, terms))
        outputs = {**outputs, **_alone(node, terms.alone_seconds)}
        if "max_duration" in changed:
            _retried(action, tools, lambda: client.change_limit(node, attempt, terms.max_seconds))
    tools.writer.finish(intent, outputs)


HOST_TERMS = frozenset({"max_duration", "stop_duration", "retry", "unreachable_duration"})
"""Fields of a task, and of its fleet, that shape how a host ends a running rank."""


def _alone(node: Record, seconds: int | None) -> dict[str, int]:
    """The output `ALONE` of a rank on that node, once its host has the limit."""
    return {ALONE: seconds or 0} if node.node.host else {}


_RANK: dict[Op, Callable[[Action, Tools], None]] = {Op.CREATE: _start, Op.DELETE: _stop, Op.UPDATE: _change}
_THING: dict[Op, Callable[[Action, Tools], PendingCommit | None]] = {
    Op.CREATE: _make,
    Op.UPDATE: _update,
    Op.DELETE: _delete,
}
