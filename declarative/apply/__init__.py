"""Making it so: look, settle what happened, walk the plan, follow the tasks. All writes are below here."""

from declarative.apply.backends import Backends
from declarative.apply.inventory import Seen, look, node_of_rank
from declarative.apply.run import Listener, apply
from declarative.apply.settle import refresh, settle
from declarative.apply.walk import ActionResult, Outcome
from declarative.apply.watch import follow, ranks_of, state_of, stop_task

__all__ = [
    "ActionResult",
    "Backends",
    "Listener",
    "Outcome",
    "Seen",
    "apply",
    "follow",
    "look",
    "node_of_rank",
    "ranks_of",
    "refresh",
    "settle",
    "state_of",
    "stop_task",
]
