"""`fleetform exec`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from declarative.cli import complete
from declarative.cli.failure import failed
from declarative.cli.logs import known_state, parse_target, ranks_of, told_ranks
from declarative.cli.session import Session, project_command, state_errors
from declarative.cli.terminal import at_node, running

if TYPE_CHECKING:
    from declarative.apply.backends import Backends
    from declarative.state import Record, State


@click.command("exec")
@click.argument("target", metavar="TASK[/RANK]", shell_complete=complete.ranks)
@click.argument("words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--rank", type=click.IntRange(min=0), help="The same as TASK/RANK.")
@project_command
@state_errors
def command(session: Session, target: str, rank: int | None, words: tuple[str, ...]) -> int:
    """Run a command on a rank's node as if the rank had started it: in its folder, with its environment, on
    its CPUs, among its volumes. Without a command, a shell. It ends when the rank ends.

    The words are run as they are; for pipes and the like: `-- sh -c '…'`. The environment is read from the
    rank's processes, secrets included. The exit code is the command's; 125 if it was not run there, or the
    connection was lost. On ssh hosts it is the system's `ssh` that connects.
    """
    loaded = session.load(required=False)
    session.warn()
    desired = loaded.desired if loaded else None
    task, wanted = parse_target(target, rank)
    state = known_state(session, desired, session.state.open(desired).read())
    record = _rank(state, task, wanted)
    backends = session.backends(desired, state)
    node = _node(state, record)
    attempt = _running(backends, node, record)
    session.state.note(desired, "exec", record.address)
    with at_node(backends, node, attempt, words) as terminal:
        return running(terminal, node)


def _rank(state: State, task: str, wanted: int | None) -> Record:
    """The rank that is meant: of a task with one rank, that one."""
    records = ranks_of(state, task)
    told_ranks(state, task, records, wanted)
    if wanted is None and len(records) > 1:
        hint = f"write `{task}/0`; its ranks are 0 to {len(records) - 1}"
        raise failed("usage", f"task/{task} has {len(records)} ranks", hint)
    return next(r for r in records if wanted in (None, r.rank.rank))


def _node(state: State, record: Record) -> Record:
    from declarative.apply.polls import node_of_rank

    node = node_of_rank(state, record.address.name)
    if node is None:
        name = record.outputs.get("node")
        node = state.get("node", str(name)) if name else None
        seen = state.ranks.get(record.address.name)
        if node is None or (seen and seen.state.ended):
            raise _ended(record, seen.state.value if seen else "ended")
    return node


def _running(backends: Backends, node: Record, record: Record) -> str:
    """The rank's attempt, which runs."""
    from declarative.provider import ProviderError
    from declarative.state import attempt_id

    attempt = attempt_id(record)
    try:
        status = backends.get(node.backend).poll(node, [attempt])[attempt]
    except ProviderError as error:
        raise failed("backend", error.summary, error.hint) from None
    if status is None or status.state.ended:
        raise _ended(record, status.state.value if status else "not started")
    return attempt


def _ended(record: Record, state: str) -> Exception:
    task, rank = record.rank.task, record.rank.rank
    hint = f"what it printed: `fleetform logs {task}/{rank}`; on its node: `fleetform ssh NODE`"
    return failed("not-running", f"{record.address} does not run: it is {state}", hint)
