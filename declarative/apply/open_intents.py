"""Intents of commands that were cut short: whether their calls made, changed or deleted something.

This module asks the backends and records nothing (`settle.recover` does). If a create made nothing, what it
may have left is cleared. Its intent stays open for a while, since its request may still be under way. If it
made a node, `run.complete` takes the create up, and it ends like any other: once the node runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from declarative.apply.backend_client import as_recorded, names_at_backend, with_our_outputs
from declarative.apply.backends import Backends, host_of
from declarative.apply.parallel import side_by_side
from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.record import struct
from declarative.model.resource import LOCAL
from declarative.model.state import MADE_AS, Address, Intent, Record, State, attempt_id, made_as, started_rank
from declarative.model.status import RankStatus
from declarative.model.text import and_more
from declarative.planner.plan import Op, Plan
from declarative.provider import Provider, ProviderError
from declarative.retry import PATIENCE, call
from declarative.store.consistency import wrong_value

MOST_NAMED = 5
"""How many calls of a command that was cut short are named; more are counted."""

OUTCOMES = {
    "absent": (
        "is not there; if it comes after all, it is found",
        "are not there; those that come after all are found",
    ),
    "taken": ("had been done, and is taken up", "had been done, and are taken up"),
    "undone": ("had not been done", "had not been done"),
}
"""Outcome of a call → its words for one call, and for several."""


@struct(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The result of an intent that was cut short. Where its backend could not be asked, there is none."""

    intent: Intent
    record: Record | None = None
    status: RankStatus | None = None
    gone: bool = False


def resolution_notes(resolutions: Iterable[Resolution]) -> list[Diagnostic]:
    """The results of calls of commands that were cut short; one warning for each outcome."""
    outcomes: dict[str, list[str]] = {}
    for resolution in resolutions:
        intent = resolution.intent
        outcome = "absent" if intent.op == "create" else "undone"
        if resolution.record or resolution.gone:
            outcome = "taken"
        outcomes.setdefault(outcome, []).append(f"{intent.op}:{intent.address}")
    return [
        Diagnostic(
            code="taken-up",
            summary=f"of a command that was cut short: {and_more(ids, MOST_NAMED)} {words[len(ids) > 1]}",
            hint="nothing has to be done; `fleetform state history` shows what was begun",
            severity=Severity.WARNING,
        )
        for outcome, words in OUTCOMES.items()
        if (ids := outcomes.get(outcome))
    ]


def name_at_backend(state: State, intent: Intent) -> tuple[Address, dict[str, Any] | None]:
    """The address by which a backend knows the thing of an intent, and the names it is newly made with."""
    record = state.records.get(intent.address)
    if record is not None and intent.op != "create":
        return made_as(record), None
    needs = {a: state.records[a] for a in intent.needs if a in state.records}
    names = names_at_backend(intent.address, intent.inputs, intent.token, needs)
    return (Address.parse(names["address"]) if names else intent.address), names


def subject_of(state: State, intent: Intent) -> Record:
    """The subject of an intent, as far as it is known."""
    record = state.records.get(intent.address)
    return record or Record(address=intent.address, backend=intent.backend, inputs=intent.inputs)


def host_of_intent(state: State, intent: Intent) -> str:
    """The host that an intent is about or on, by the name that its backend knows."""
    if intent.address.kind == "node":
        return name_at_backend(state, intent)[0].name
    return host_of(state, subject_of(state, intent))


def read_back(state: State, intent: Intent, provider: Provider) -> Resolution:
    """The result of an intent, read from its backend now."""
    read = _read_rank_back if intent.address.kind == "rank" else _read_thing_back
    return read(state, intent, provider)


def _read_thing_back(state: State, intent: Intent, provider: Provider) -> Resolution:
    address, names = name_at_backend(state, intent)
    thing = call(lambda: provider.find(address, intent.token), policy=PATIENCE)
    if intent.op == "delete":
        return Resolution(intent=intent, gone=thing is None)
    if thing is None:
        return Resolution(intent=intent)
    have = state.records.get(intent.address)
    same = have if intent.op != "create" else None  # else it is another life of the address
    if not thing.known and intent.op == "create":
        inputs = dict(intent.inputs)  # what carries its token was made of them
    else:
        inputs = as_recorded(thing, same) if same else dict(thing.inputs)
        inputs |= {key: intent.inputs[key] for key in (names["inputs"] if names else ())}
    if have and inputs != dict(intent.inputs):
        return Resolution(intent=intent)
    record = Record(
        address=intent.address,
        backend=intent.backend,
        inputs=inputs,
        outputs={**with_our_outputs(thing.outputs, same), **({MADE_AS: names} if names else {})},
        needs=same.needs if same else intent.needs,
        generation=intent.generation,
    )
    if wrong_value(record):  # somebody changed what is written on it: it is what its token was asked for with
        record = replace(record, inputs=intent.inputs)
    return Resolution(intent=intent, record=record)


def _read_rank_back(state: State, intent: Intent, provider: Provider) -> Resolution:
    node = state.node_of_rank(intent.address.name)
    if node is None or intent.op != "create":
        return Resolution(intent=intent)
    record = started_rank(intent, node)
    attempt = attempt_id(record)
    status = call(lambda: provider.poll(node, [attempt]), policy=PATIENCE)[attempt]
    if status is None:
        return Resolution(intent=intent)
    return Resolution(intent=intent, record=record, status=status)


def unwanted(plan: Plan, state: State) -> list[Intent]:
    """Open creates of nodes that the plan does not make any more."""
    planned = {action.address for action in plan.actions if action.op is Op.CREATE}
    if plan.scope.part:
        planned |= {Address.parse(address) for address in plan.scope.part.left_out}
    return [
        intent
        for intent in state.intents
        if makes_node(intent) and intent.address not in planned and intent.address not in state.records
    ]


def makes_node(intent: Intent) -> bool:
    """Whether it is about making a node: other things are made by one request."""
    return intent.op == "create" and intent.address.kind == "node"


def clear(backends: Backends, intents: Sequence[Intent]) -> None:
    """Clear up after them, as far as their backends can be asked."""

    def clear_one(intent: Intent) -> None:
        with contextlib.suppress(ProviderError):  # it is tried again by the next command
            client = backends.get(intent.backend or LOCAL)
            call(lambda: client.clear(intent.address, intent.token, intent.inputs), policy=PATIENCE)

    side_by_side(intents, clear_one)


def taken_up(resolutions: Iterable[Resolution]) -> dict[Address, str]:
    """The nodes that were found to be made, by the tokens of their creates."""
    return {r.intent.address: r.intent.token for r in resolutions if r.record and makes_node(r.intent)}
