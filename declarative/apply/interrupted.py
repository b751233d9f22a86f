"""Creates that were cut short.

If a create made nothing, what it may have left is cleared. Its intent stays open for a while
(`settle.recover`), since its request may still be under way. If it made a node, the create is taken up, and
ends like any other: once the node runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from declarative.apply.backends import Backends
from declarative.apply.drift import AT_ONCE
from declarative.apply.gate import Tools
from declarative.apply.graph_walk import ActionResult, Outcome, code_of
from declarative.apply.renames import record_token
from declarative.model.resource import LOCAL
from declarative.model.state import Address, Intent, Record, State, made_as
from declarative.planner.types import Op, Plan
from declarative.provider import ProviderError
from declarative.retry import PATIENCE, call

if TYPE_CHECKING:
    from declarative.apply.inventory import Seen


def unwanted(plan: Plan, state: State) -> list[Intent]:
    """Open creates of nodes that the plan does not make any more."""
    planned = {action.address for action in plan.actions if action.op is Op.CREATE}
    if plan.scope.part:
        planned |= {Address.parse(address) for address in plan.scope.part.left_out}
    return [
        intent
        for intent in state.intents
        if is_node(intent) and intent.address not in planned and intent.address not in state.records
    ]


def is_node(intent: Intent) -> bool:
    """Whether it is about making a node: other things are made by one request."""
    return intent.op == "create" and intent.address.kind == "node"


def clear(backends: Backends, intents: Sequence[Intent]) -> None:
    """Clear up after them, as far as their backends can be asked."""

    def one(intent: Intent) -> None:
        with contextlib.suppress(ProviderError):  # it is tried again by the next command
            found = backends.get(intent.backend or LOCAL)
            call(lambda: found.clear(intent.address, intent.token, intent.inputs), policy=PATIENCE)

    if intents:
        with ThreadPoolExecutor(min(AT_ONCE, len(intents)), thread_name_prefix="clear") as pool:
            list(pool.map(one, intents))


def taken_up(seen: Seen) -> dict[Address, str]:
    """The nodes that were found to be made, by the tokens of their creates."""
    return {r.intent.address: r.intent.token for r in seen.resolutions if r.record and is_node(r.intent)}


def complete(taken: Mapping[Address, str], tools: Tools) -> tuple[ActionResult, ...]:
    """Wait until nodes that were taken up run, by the tokens of their creates; those that never do.

    What was there when it was looked for may still be taken back: a create finds that out, and makes it anew.
    """
    state = tools.writer.state()

    def one(record: Record) -> ActionResult | None:
        provider = tools.backends.get(record.backend)
        try:
            outputs = call(
                lambda: provider.create(made_as(record), taken[record.address], record.inputs, {}),
                policy=tools.policy,
                stopping=tools.stopping.is_set,
            )
        except ProviderError as error:
            address, code = str(record.address), code_of(error)
            return ActionResult(
                id=f"create:{address}",
                address=address,
                op="create",
                outcome=Outcome.FAILED,
                error=error.summary,
                hint=error.hint,
                code=code,
            )
        if any(record.outputs.get(key) != value for key, value in outputs.items()):
            tools.writer.note({record.address: outputs})
        return None

    there = [record for address in sorted(taken) if (record := state.records.get(address))]
    wanted = [record for record in there if record_token(state, record) == taken[record.address]]
    if not wanted:
        return ()
    with ThreadPoolExecutor(min(AT_ONCE, len(wanted)), thread_name_prefix="complete") as pool:
        return tuple(result for result in pool.map(one, wanted) if result)
