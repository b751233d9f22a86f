"""Making it so: look, settle what happened, walk the plan, follow the tasks. All writes are below here."""

from declarative.apply.again import NOT_STARTED, Due, Lack, Retries, broken_starts, lacking, part_for
from declarative.apply.answers import HURRIED
from declarative.apply.backends import Backends
from declarative.apply.begun import clear, complete, taken_up, unwanted
from declarative.apply.bundles import changed_files, named
from declarative.apply.drift import Orphan
from declarative.apply.failover import Move
from declarative.apply.foresee import foresee
from declarative.apply.gate import Tools, release_all, waiting
from declarative.apply.hosts import survey
from declarative.apply.idle import Idle
from declarative.apply.inventory import Seen, look
from declarative.apply.launch import missing_env
from declarative.apply.offers import known_offers, own_gpus
from declarative.apply.orphans import as_rank, as_record, delete_orphans, matching, protected
from declarative.apply.polls import node_of_rank
from declarative.apply.run import apply
from declarative.apply.settle import VanishedError, check_vanished, refresh, settle
from declarative.apply.walk import ActionResult, Listener, Outcome
from declarative.apply.watch import FOLLOWING, cause_of, follow, is_over, ranks_of, state_of, stop_task

__all__ = [
    "FOLLOWING",
    "HURRIED",
    "NOT_STARTED",
    "ActionResult",
    "Backends",
    "Due",
    "Idle",
    "Lack",
    "Listener",
    "Move",
    "Orphan",
    "Outcome",
    "Retries",
    "Seen",
    "Tools",
    "VanishedError",
    "apply",
    "as_rank",
    "as_record",
    "broken_starts",
    "cause_of",
    "changed_files",
    "check_vanished",
    "clear",
    "complete",
    "delete_orphans",
    "follow",
    "foresee",
    "is_over",
    "known_offers",
    "lacking",
    "look",
    "matching",
    "missing_env",
    "named",
    "node_of_rank",
    "own_gpus",
    "part_for",
    "protected",
    "ranks_of",
    "refresh",
    "release_all",
    "settle",
    "state_of",
    "stop_task",
    "survey",
    "taken_up",
    "unwanted",
    "waiting",
]
