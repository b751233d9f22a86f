"""`fleetform drain`, `undrain` and `stop`: by the user's word a node takes no new work, or a task ends."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from declarative.cli import completion
from declarative.cli.errors import failed
from declarative.cli.options import examples, lock_option
from declarative.cli.output import emit_text
from declarative.cli.session import Session, now, project_command
from declarative.cli.targets import find_node, has_ended, parse_target
from declarative.model.diagnostic import and_more

if TYPE_CHECKING:
    from declarative.model.state import Address, Record, Silence, State

LONGEST = 200
"""Characters of a reason."""

nodes_argument = click.argument(
    "targets", metavar="NODE...", nargs=-1, required=True, shell_complete=completion.nodes
)


def _reason(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    text = " ".join(value.split()) if value else ""
    if len(text) > LONGEST or not text.isprintable():
        raise failed(
            "usage", "the reason is not plain text", f"write one line of {LONGEST} characters at most"
        )
    return text or None


reason_option = click.option(
    "--reason",
    metavar="TEXT",
    callback=_reason,
    help="Why; it is recorded and shown, so put no secret in it.",
)


@click.command("drain", epilog=examples('fleetform drain gpu-3 --reason "bad NIC"'))
@nodes_argument
@reason_option
@lock_option
@project_command
def drain_command(session: Session, targets: tuple[str, ...], **options: Any) -> int:
    """Give nodes no new work. What runs on them goes on; nothing is asked of their backend.

    It holds until `fleetform undrain`, or until the node is made anew (`apply --replace node/NAME`). A fleet
    that shrinks gives up its drained nodes first; until then they count among its nodes. To drain a node once
    more gives it another reason.
    """
    return _set_drained(session, targets, drained=True, **options)


@click.command("undrain", epilog=examples("fleetform undrain gpu-3"))
@nodes_argument
@reason_option
@lock_option
@project_command
def undrain_command(session: Session, targets: tuple[str, ...], **options: Any) -> int:
    """Give drained nodes work again, from the next apply on."""
    return _set_drained(session, targets, drained=False, **options)


def _set_drained(
    session: Session,
    targets: tuple[str, ...],
    *,
    drained: bool,
    reason: str | None,
    lock_timeout: float | None,
) -> int:
    from declarative.model.state import Drain, drain_of
    from declarative.render.data import iso

    store = session.state.open(session.declared(warn=True), write=True, create=False)
    with session.state.lock(store, "drain" if drained else "undrain", lock_timeout) as writer:
        state = writer.state()
        nodes = {r.address: r for r in (find_node(state, target) for target in targets)}
        for address, node in nodes.items():
            have = drain_of(node)
            if not drained and have is None:
                result = "is not drained"
            elif not drained:
                writer.drain(address, None, reason)
                result = f"takes work again; it was {have}"
            elif have and reason in (None, have.reason):
                result = f"is {have}"
            else:
                want = Drain(since=have.since if have else str(iso(now())), reason=reason)
                writer.drain(address, want, reason)
                result = f"takes no new work: {want}{_going(state, node)}"
            emit_text(f"{address} {result}\n")
    return 0


def _going(state: State, node: Record) -> str:
    """What runs on, as it was last seen."""
    from declarative.planner.fleets import held_blocks

    ranks = sorted(set(held_blocks(state).get(node.address.name, {}).values()))
    return f"; {and_more(ranks, 5)} {'goes' if len(ranks) == 1 else 'go'} on" if ranks else ""


@click.command("stop", epilog=examples("fleetform stop train"))
@click.argument("target", metavar="TASK", shell_complete=completion.tasks)
@lock_option
@project_command
def stop_command(session: Session, target: str, lock_timeout: float | None) -> int:
    """Stop every rank of a task: TERM, then KILL after its `stop_duration`, and give its blocks back.

    It stays stopped until its declaration changes or `apply --replace task/NAME` asks for it. What runs of it
    and is not recorded is stopped as well. Exits 4 if a rank could not be stopped: one on a node that does
    not answer is stopped once it does, or is lost with the node after its fleet's `unreachable_duration`.
    """
    from declarative.apply.inventory import look
    from declarative.apply.orphans import delete_orphans
    from declarative.apply.settle import VanishedError, check_vanished, settle
    from declarative.apply.watch import ranks_of, stop_task
    from declarative.model.state import Address, RankStatus
    from declarative.render.progress import Progress

    desired = session.declared(warn=True)
    task, rank = parse_target(target)
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
        strays = [o for o in seen.orphans if _is_rank_of(o.thing.address, task)]
        if not ranks_of(state, task) and not strays:
            raise failed("not-run", f"task/{task} has not run", "`fleetform status` lists the tasks")
        writer.log("stop", Address("task", task))
        stop_task(writer, backends, task, now, note, silent=silent)
        results = delete_orphans(strays, state, backends, progress, threading.Event())
        state = writer.state()
    left = _report_stop(state, task, silent)
    return 4 if left or any(result.outcome != "done" for result in results) else 0


def _report_stop(state: State, task: str, silent: Mapping[str, Silence]) -> list[str]:
    """Say what became of the task; the ranks that have not ended."""
    from declarative.apply.watch import ranks_of, state_of

    names = ranks_of(state, task)
    left = [name for name in names if not has_ended(state, name)]
    for name in left:
        sys.stderr.write(f"{_left(state, task, name, silent)}\n")
    if names:
        emit_text(f"task/{task} is {state_of(state, task).value}.\n")
    return left


def _is_rank_of(address: Address, task: str) -> bool:
    return address.kind == "rank" and address.name.rpartition("-")[0] == task


def _left(state: State, task: str, name: str, silent: Mapping[str, Silence]) -> str:
    """Why a rank could not be stopped, and what to type next."""
    from declarative.apply.polls import node_of_rank
    from declarative.planner.health import silence_text
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
    why = (
        f"rank/{name} is not stopped yet, and may run: {node.address} {silence_text(silence, now())}. Once "
        f"it answers, the next `fleetform apply` or `fleetform stop {task}` stops it"
    )
    if silence.until is not None:
        return clean(f"{why}; once it is given up, they count it as lost")
    if node.node.host:
        lost = f"take its host out of the YAML, then `fleetform state rm {node.address}`"
    else:
        lost = "end it at its cloud"
    return clean(f"{why}; if it is lost for good, {lost}")
