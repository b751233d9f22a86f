"""Nodes, tasks and ranks: those that a command line names, looked up in the state, and how they are named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from declarative.cli.errors import failed
from declarative.model.diagnostic import and_more, suggest

if TYPE_CHECKING:
    from declarative.cli.session import Session
    from declarative.model.resource import Desired
    from declarative.model.state import Record, State


def find_node(state: State, target: str) -> Record:
    """The node that `gpu-0` or `node/gpu-0` names; `Failed` if there is none."""
    name = target.removeprefix("node/")
    node = state.get("node", name)
    if node is None:
        known = [r.address.name for r in state.of("node")]
        few = f"nodes: {', '.join(known[:8])}{' …' if len(known) > 8 else ''}"
        hint = suggest(name, known) or (few if known else "run `fleetform apply` first")
        raise failed("unknown-node", f"there is no node/{name}", hint)
    return node


def parse_target(text: str, rank: int | None = None) -> tuple[str, int | None]:
    """`train`, `train/0`, `task/train` or `rank/train-0` as a task and a rank."""
    if text.startswith("task/"):
        text = text.removeprefix("task/")
    elif text.startswith("rank/"):
        task, _, number = text.removeprefix("rank/").rpartition("-")
        text = f"{task}/{number}"
    task, slash, number = text.partition("/")
    if not slash:
        return task, rank
    if not number.isdecimal():
        raise failed("usage", f"`{number}` is not a rank", f"write `{task}/0`")
    return task, int(number)


def ranks_of(state: State, task: str) -> list[Record]:
    """The recorded ranks of a task, by rank."""
    found = [r for r in state.of("rank") if r.rank.task == task]
    return sorted(found, key=lambda r: r.rank.rank)


def find_ranks(state: State, task: str, rank: int | None) -> list[Record]:
    """The ranks of a task, or the one; `Failed` where the task has not run, or has no such rank."""
    records = ranks_of(state, task)
    if not records:
        known = sorted({r.rank.task for r in state.of("rank")})
        ran = f"tasks that have run: {', '.join(known)}" if known else "run `fleetform apply` first"
        raise failed("not-run", f"task/{task} has not run", suggest(task, known) or ran)
    found = [r for r in records if rank in (None, r.rank.rank)]
    if not found:
        hint = f"its ranks are 0 to {len(records) - 1}"
        raise failed("unknown-rank", f"task/{task} has no rank {rank}", hint)
    return found


def has_ended(state: State, rank: str) -> bool:
    """Whether a rank is recorded to have ended."""
    seen = state.ranks.get(rank)
    return seen is not None and seen.state.ended


def going_tasks(state: State) -> set[str]:
    """Tasks of which some rank has not ended."""
    return {r.rank.task for r in state.of("rank") if not has_ended(state, r.address.name)}


def name_tasks(tasks: Iterable[str]) -> str:
    """The first five by name, and how many more there are: there may be thousands."""
    return and_more((f"task/{task}" for task in tasks), 5)


def node_of(record: Record, state: State) -> Record | None:
    """The recorded node that a rank runs on, or ran on."""
    reservation = state.get("reservation", record.address.name)
    name = record.outputs.get("node") or (reservation.reservation.node if reservation else None)
    return state.get("node", str(name)) if name else None


def observed(session: Session, desired: Desired | None, state: State) -> State:
    """The state as the backends show it now. Nothing is recorded."""
    from declarative.apply.answers import HURRIED
    from declarative.apply.inventory import look
    from declarative.planner.observe import effective

    backends = session.backends(desired, state)
    return effective(state, look(state, backends, offers=False, patience=HURRIED).inventory)
