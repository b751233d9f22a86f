"""`fleetform state`: looking into what is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from declarative.cli import complete
from declarative.cli.session import (
    Session,
    emit,
    emit_text,
    failed,
    json_option,
    project_command,
    state_errors,
)

if TYPE_CHECKING:
    from declarative.store import Store


@click.group("state", short_help="look into what is recorded")
def command() -> None:
    """Look into what is recorded: nodes, volumes, reservations, attachments and ranks."""


def _store(session: Session, *, write: bool = False) -> Store:
    loaded = session.load(required=False)
    return session.store(loaded.desired if loaded else None, write=write)


@command.command("list")
@click.argument("kind", required=False)
@project_command
@state_errors
def list_(session: Session, kind: str | None) -> int:
    """List the addresses of everything that is recorded, or of one KIND."""
    from declarative.render import state_text
    from declarative.state import KINDS

    if kind and kind not in KINDS:
        raise failed("usage", f"no kind `{kind}`", f"known: {', '.join(KINDS)}")
    records = _store(session).read().records.values()
    emit_text(state_text(r for r in records if kind in (None, r.address.kind)))
    return 0


@command.command("show")
@click.argument("address", shell_complete=complete.addresses)
@json_option
@project_command
@state_errors
def show(session: Session, address: str, as_json: bool) -> int:
    """Show one record: its inputs, its outputs, what it needs."""
    from declarative.diagnostic import suggest
    from declarative.render import state_text

    store = _store(session)
    records = {str(r.address): r for r in store.read().records.values()}
    if address not in records:
        near = suggest(address, records)
        raise failed(
            "unknown-address", f"`{address}` is not recorded", near or "`fleetform state list` shows what is"
        )
    if as_json:
        emit(next(r for r in store.pull()["records"] if r["address"] == address))
    else:
        emit_text(state_text([records[address]], detail=True))
    return 0


@command.command("pull")
@project_command
@state_errors
def pull(session: Session) -> int:
    """Print the whole state as JSON. There are no secrets in it."""
    emit(_store(session).pull())
    return 0


@command.command("check")
@project_command
@state_errors
def check(session: Session) -> int:
    """Prove what is recorded: blocks, references, and against what the backends report."""
    from declarative.apply import look

    loaded = session.load(required=False)
    desired = loaded.desired if loaded else None
    session.warn()
    store = session.store(desired)
    found = list(store.check())
    if not found:
        state = store.read()
        seen = look(state, session.backends(desired, state), offers=False).inventory
        found = [f"{d.address}: {d.change}: {d.detail}" for d in seen.drift]
        # What could not be read is not proved.
        found += [d.summary for d in seen.diagnostics]
    for line in found:
        emit_text(f"{line}\n")
    if found:
        return 1
    emit_text("The state is sound.\n")
    return 0


@command.command("unlock")
@click.argument("owner", required=False)
@project_command
@state_errors
def unlock(session: Session, owner: str | None) -> int:
    """Take the lock away from a holder that cannot be reached. It writes nothing more from then on."""
    info = _store(session, write=True).unlock(owner)
    emit_text(f"Taken from {info}.\n" if info else "Nobody holds the lock.\n")
    return 0
