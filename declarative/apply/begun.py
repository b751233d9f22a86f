"""Creates that were cut short before they made anything: what they may have left goes with them.

Their intents stay open for a while (`settle.recover`): a request of theirs may still be under way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from declarative.apply.backends import Backends
from declarative.apply.drift import AT_ONCE, PATIENCE
from declarative.plan import Op, Plan
from declarative.provider import ProviderError
from declarative.resource import LOCAL
from declarative.retry import call
from declarative.state import Intent, State


def unwanted(plan: Plan, state: State) -> list[Intent]:
    """Those of nodes that the plan does not make any more."""
    planned = {action.address for action in plan.actions if action.op is Op.CREATE}
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
