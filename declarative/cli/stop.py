"""`fleetform stop`."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING

import click

from declarative.cli import complete
from declarative.cli.failure import failed
from declarative.cli.logs import parse_target
from declarative.cli.session import Session, emit_text, lock_option, now, project_command, state_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from declarative.apply.drift import Orphan
    from declarative.state import Silence, State


@click.command("stop")
@click.argument("target", metavar="TASK", shell_complete=complete.tasks)
@lock_option
@project_command
@state_errors
def command(session: Session, target: str, lock_timeout: float | None) -> int:
    """Stop every rank of a task: TERM, then KILL after its `stop_duration`, and give its blocks back.

    It stays stopped until its declaration changes or `apply --replace task/NAME` asks for it. What runs of it
    and is not recorded is stopped as well. Exits 4 if a rank could not be stopped: one on a node that does
    not answer is stopped once it does, or is lost with the node after its fleet's `unreachable_duration`.
    """
    from declarative.apply.inventory import look
    from declarative.apply.orphans import delete_orphans
    from declarative.apply.settle import VanishedError, check_vanished, settle
    from declarative.apply.watch import ranks_of, state_of, stop_task
    from declarative.render.progress import Progress
    from declarative.state import Address, RankStatus

    loaded = session.load(required=False)
    session.warn()
    desired = loaded.desired if loaded else None
    task, rank = parse_target(target, None)
    if rank is not None:
        raise failed("usage", "a rank cannot be stopped alone", f"write `fleetform stop {task}`")
    store = session.state.open(desired, write=True)
    with (
        session.state.lock(store, "stop", lock_timeout) as writer,
        Progress(sys.stderr, "plain", 0) as progress,
    ):
        backends = session.backends(desired, writer.state())

        def note(name: str, status: RankStatus) -> None:
            progress.rank(f"rank/{name}", status.state.value, status.cause)

        before = writer.state()
        seen = look(before, backends, offers=False)
        with contextlib.suppress(VanishedError):  # what is there can be stopped; `apply` asks about the rest
            check_vanished(before, seen)
            settle(writer, backends, seen, now, note, ending=True)
        silent = seen.inventory.silent
        state = writer.state()
        strays = [o for o in seen.orphans if o.thing.address.kind == "rank" and _task(o) == task]
        if not ranks_of(state, task) and not strays:
            raise failed("not-run", f"task/{task} has not run", "`fleetform status` lists the tasks")
        writer.log("stop", Address("task", task))
        stop_task(writer, backends, task, now, note, silent=silent)
        results = delete_orphans(strays, state, backends, progress, threading.Event())
        state = writer.state()
    left = [n for n in ranks_of(state, task) if not ((s := state.ranks.get(n)) and s.state.ended)]
    for name in left:
        sys.stderr.write(f"{_left(state, task, name, silent)}\n")
    if ranks_of(state, task):
        emit_text(f"task/{task} is {state_of(state, task).value}.\n")
    return 4 if left or any(result.outcome != "done" for result in results) else 0


def _task(orphan: Orphan) -> str:
    """The task of a rank that runs and is not recorded."""
    return orphan.thing.address.name.rpartition("-")[0]


def _left(state: State, task: str, name: str, silent: Mapping[str, Silence]) -> str:
    """Why a rank could not be stopped, and what to type next."""
    from declarative.apply.polls import node_of_rank
    from declarative.plan.silence import silence_text
    from declarative.render.text import clean

    node = node_of_rank(state, name)
    if node is None:
        return f"rank/{name} could not be stopped: its node is not known (`fleetform status`)"
    silence = silent.get(node.address.name)
    if silence is None:
        seen = state.readiness.get(node.address.name)
        why = f" ({seen.reason})" if seen and seen.reason else ""
        return clean(
            f"rank/{name} could not be stopped: {node.address} cannot be asked{why}. Once it answers: "
            f"`fleetform stop {task}`"
        )
    said = (
        f"rank/{name} is not stopped yet, and may run: {node.address} {silence_text(silence, now())}. Once "
        f"it answers, the next `fleetform apply` or `fleetform stop {task}` stops it"
    )
    if silence.until is not None:
        return clean(f"{said}; once it is given up, they count it as lost")
    if node.node.host:
        lost = f"take its host out of the YAML, then `fleetform state rm {node.address}`"
    else:
        lost = "end it at its cloud"
    return clean(f"{said}; if it is lost for good, {lost}")
