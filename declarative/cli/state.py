"""`fleetform state`: looking into what is recorded; what changes it is in `edit`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from declarative.cli import backups, complete, edit, orphans
from declarative.cli.failure import failed
from declarative.cli.session import (
    Session,
    emit,
    emit_text,
    json_option,
    out_style,
    project_command,
    state_errors,
)

if TYPE_CHECKING:
    from declarative.resource import Desired
    from declarative.store import Store


NO_STATE = "correct the path if there should be one; the first `fleetform apply` makes one"


class _Group(click.Group):
    """Names the command that was meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if args and name not in self.commands and not name.startswith("-"):
            from declarative.cli import usage_hints

            raise usage_hints.NoCommandError(name, ctx, self.commands, usage_hints.STATE)
        return super().resolve_command(ctx, args)


@click.group("state", cls=_Group)
def command() -> None:
    """Look into what is recorded (nodes, volumes, reservations, attachments, ranks); change it by hand."""


for _changes in (edit.rm, edit.mv, edit.push, orphans.adopt, backups.list_backups, backups.restore):
    command.add_command(_changes)


def _store(session: Session, *, write: bool = False) -> Store:
    loaded = session.load(required=False)
    return session.state.open(loaded.desired if loaded else None, write=write, typed=False)


@command.command("list")
@click.argument("kind", required=False)
@project_command
@state_errors
def list_(session: Session, kind: str | None) -> int:
    """List the addresses of everything that is recorded, or of one KIND."""
    from declarative.render.records import state_text
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
    from declarative.render.records import state_text

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
@json_option
@project_command
@state_errors
def check(session: Session, as_json: bool) -> int:
    """Prove what is recorded: blocks, references, and against what the backends report.

    Exits 1 if anything is wrong.
    """
    from declarative.render.text import clean
    from declarative.store.validate import faults

    loaded = session.load(required=False)
    desired = loaded.desired if loaded else None
    session.warn(quiet=as_json)
    store = session.state.open(desired, typed=False)
    if not store.exists:
        raise failed("no-state", f"there is no state in {session.state.url(desired)}", NO_STATE)
    # Of records that do not hold what their kinds need, nothing else can be told.
    found = [_finding("state", line) for line in [*faults(store.read())] or store.check()]
    compared = not found
    if compared:
        found = _compared(session, store, desired)
    if as_json:
        emit({"format_version": 1, "sound": not found, "compared": compared, "findings": found})
        return 1 if found else 0
    for item in found:
        parts = (item["address"], item["change"], item["detail"])
        emit_text(clean(": ".join(part for part in parts if part)) + "\n")
    if not compared:
        sys.stderr.write("the backends were not asked: what is recorded contradicts itself\n")
    if not found:
        emit_text("The state is sound.\n")
    return 1 if found else 0


def _compared(session: Session, store: Store, desired: Desired | None) -> list[dict[str, str | None]]:
    """What the backends report otherwise. What could not be read is not proved."""
    from declarative.apply.inventory import look

    state = store.read()
    seen = look(state, session.backends(desired, state), offers=False).inventory
    return [
        *(_finding("backend", d.detail, d.address, d.change) for d in seen.drift),
        *(_finding("backend", d.summary) for d in seen.diagnostics if d.code != "taken-up"),
    ]


def _finding(
    source: str, detail: str, address: str | None = None, change: str | None = None
) -> dict[str, str | None]:
    return {"source": source, "address": address, "change": change, "detail": detail}


@command.command("history")
@click.argument("addresses", metavar="[ADDRESS]...", nargs=-1, shell_complete=complete.addresses)
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="How many entries at most."
)
@json_option
@project_command
@state_errors
def history(session: Session, addresses: tuple[str, ...], limit: int, as_json: bool) -> int:
    """What was done when, with what result, newest first; of some addresses alone, also by earlier names."""
    from declarative.render.history import history_json, history_text
    from declarative.store.rename import parse

    for address in addresses:
        parse(address)
    found = _store(session).history(addresses, limit)
    if as_json:
        emit(history_json(found))
    elif found:
        emit_text(history_text(found, color=out_style()["color"]))
    else:
        emit_text("Nothing was done yet.\n" if not addresses else "Nothing was done to it.\n")
    return 0


@command.command("adopt-folder")
@project_command
@state_errors
def adopt_folder(session: Session) -> int:
    """Say that this folder is the state's place from now on, after it was copied or moved to another disk.

    The folder that it was in before asks from then on.
    """
    from declarative.store import project_copy

    loaded = session.load(required=False)
    url = session.state.url(loaded.desired if loaded else None)
    folder = session.state.folder(url)
    if folder is None:
        summary = "there is no state that is kept within this folder"
        raise failed(
            "usage", summary, "one on a server or outside of the project is no folder's: nothing is to do"
        )
    before = project_copy.adopt(folder)
    emit_text(f"Its place is {folder.resolve()}" + (f", and was {before}" if before else "") + ".\n")
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
