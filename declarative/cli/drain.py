"""`fleetform drain` and `undrain`: which nodes take new work, by the user's word. No backend takes part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from declarative.cli import complete
from declarative.cli.failure import failed
from declarative.cli.session import Session, emit_text, lock_option, now, project_command, state_errors
from declarative.cli.ssh import find_node
from declarative.diagnostic import and_more

if TYPE_CHECKING:
    from declarative.state import Record, State

LONGEST = 200
"""Characters of a reason."""

nodes_argument = click.argument(
    "targets", metavar="NODE...", nargs=-1, required=True, shell_complete=complete.nodes
)


def _reason(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    text = " ".join(value.split()) if value else ""
    if len(text) > LONGEST or not text.isprintable():
        raise failed(
            "usage", "the reason is no plain text", f"write one line of {LONGEST} characters at most"
        )
    return text or None


reason_option = click.option(
    "--reason",
    metavar="TEXT",
    callback=_reason,
    help="Why; it is recorded and shown, so put no secret in it.",
)


@click.command("drain")
@nodes_argument
@reason_option
@lock_option
@project_command
@state_errors
def command(session: Session, targets: tuple[str, ...], **options: Any) -> int:
    """Give nodes no new work. What runs on them goes on; nothing is asked of their backend.

    It holds until `fleetform undrain`, or until the node is made anew (`apply --replace node/NAME`). A fleet
    that shrinks gives up its drained nodes first; until then they count among its nodes. To drain a node once
    more gives it another reason.
    """
    return _record(session, targets, drained=True, **options)


@click.command("undrain")
@nodes_argument
@reason_option
@lock_option
@project_command
@state_errors
def undrain(session: Session, targets: tuple[str, ...], **options: Any) -> int:
    """Give drained nodes work again, from the next apply on."""
    return _record(session, targets, drained=False, **options)


def _record(
    session: Session,
    targets: tuple[str, ...],
    *,
    drained: bool,
    reason: str | None,
    lock_timeout: float | None,
) -> int:
    from declarative.render.data import iso
    from declarative.state import Drain, drain_of

    loaded = session.load(required=False)
    session.warn()
    store = session.state.open(loaded.desired if loaded else None, write=True, create=False)
    with session.state.lock(store, "drain" if drained else "undrain", lock_timeout) as writer:
        state = writer.state()
        nodes = {r.address: r for r in (find_node(state, target) for target in targets)}
        for address, node in nodes.items():
            have = drain_of(node)
            if not drained:
                if have:
                    writer.drain(address, None, reason)
                result = f"takes work again; it was {have}" if have else "is not drained"
            elif have and reason in (None, have.reason):
                result = f"is {have}"
            else:
                drain = Drain(since=have.since if have else str(iso(now())), reason=reason)
                writer.drain(address, drain, reason)
                result = f"takes no new work: {drain}{_going(state, node)}"
            emit_text(f"{address} {result}\n")
    return 0


def _going(state: State, node: Record) -> str:
    """What runs on, as it was last seen."""
    from declarative.plan.fleets import held_blocks

    ranks = sorted(set(held_blocks(state).get(node.address.name, {}).values()))
    return f"; {and_more(ranks, 5)} {'goes' if len(ranks) == 1 else 'go'} on" if ranks else ""
