"""`fleetform ssh`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from declarative.cli import complete
from declarative.cli.failure import failed
from declarative.cli.session import Session, project_command, state_errors
from declarative.cli.terminal import at_node, running

if TYPE_CHECKING:
    from declarative.state import Record, State


@click.command("ssh")
@click.argument("target", metavar="NODE", shell_complete=complete.nodes)
@click.argument("words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@project_command
@state_errors
def command(session: Session, target: str, words: tuple[str, ...]) -> int:
    """Open a shell on a node, or run a command there: as ssh does, the words are put together for a shell.

    A host is reached by the system's `ssh`, with the port, user, identity file, way and host keys that are
    declared, and `~/.ssh/config` for the rest; keys that are not known are refused. A node of the backend
    `local` is its folder. The exit code is the command's; 125 if the node could not be reached, or the
    connection was lost.
    """
    loaded = session.load(required=False)
    session.warn()
    desired = loaded.desired if loaded else None
    state = session.state.open(desired).read()
    node = find_node(state, target)
    with at_node(session.backends(desired, state), node, None, words) as terminal:
        return running(terminal, node)


def find_node(state: State, target: str) -> Record:
    """The node that `gpu-0` or `node/gpu-0` names; `Failed` if there is none."""
    from declarative.diagnostic import suggest

    name = target.removeprefix("node/")
    node = state.get("node", name)
    if node is None:
        known = [r.address.name for r in state.of("node")]
        few = f"nodes: {', '.join(known[:8])}{' …' if len(known) > 8 else ''}"
        hint = suggest(name, known) or (few if known else "run `fleetform apply` first")
        raise failed("unknown-node", f"there is no node/{name}", hint)
    return node
