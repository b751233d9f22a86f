"""`fleetform state`: looking into the records; `state_edit` and `orphans` change them."""

from __future__ import annotations

import sys

import click

from declarative.cli import CommandGroup, completion, orphans, state_edit
from declarative.cli.options import declared, examples, json_option, lock_option, project_command
from declarative.cli.output import emit, emit_text, out_style
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import failed

NO_STATE = "correct the path if there should be one; the first `fleetform apply` makes one"


@click.group(
    "state",
    cls=CommandGroup,
    epilog=examples(
        "fleetform state list volume",
        "fleetform state mv volume/data volume/datasets",
        "fleetform state pull --state sqlite:///.fleetform/state.db | fleetform state push -",
    ),
)
def state_command() -> None:
    """Look into what is recorded (nodes, volumes, reservations, attachments, ranks); change it by hand."""


for _command in (
    state_edit.rm,
    state_edit.mv,
    state_edit.push,
    orphans.adopt,
    state_edit.list_backups,
    state_edit.restore,
):
    state_command.add_command(_command)


@state_command.command("list")
@click.argument("kind", required=False)
@project_command
def list_(session: ProjectSession, kind: str | None) -> int:
    """List the addresses of everything that is recorded, or of one KIND."""
    from declarative.model.state import KINDS
    from declarative.render.listings import state_text

    if kind and kind not in KINDS:
        raise failed("usage", f"no kind `{kind}`", f"known: {', '.join(KINDS)}")
    records = session.store().read().records.values()
    emit_text(state_text(r for r in records if kind in (None, r.address.kind)))
    return 0


@state_command.command("show")
@click.argument("address", shell_complete=completion.addresses)
@json_option
@project_command
def show(session: ProjectSession, address: str, as_json: bool) -> int:
    """Show one record: its inputs, its outputs, what it needs."""
    from declarative.model.diagnostic import suggest
    from declarative.render.listings import state_text

    store = session.store()
    records = {str(r.address): r for r in store.read().records.values()}
    if address not in records:
        hint = suggest(address, records) or "`fleetform state list` shows what is"
        raise failed("unknown-address", f"`{address}` is not recorded", hint)
    if as_json:
        emit(next(r for r in store.pull()["records"] if r["address"] == address))
    else:
        emit_text(state_text([records[address]], detail=True))
    return 0


@state_command.command("pull")
@project_command
def pull(session: ProjectSession) -> int:
    """Print the whole state as JSON. There are no secrets in it."""
    emit(session.store().pull())
    return 0


@state_command.command("check")
@json_option
@project_command
def check(session: ProjectSession, as_json: bool) -> int:
    """Prove what is recorded: blocks, references, and against what the backends report.

    Exits 1 if anything is wrong.
    """
    from declarative.apply.backend_look import look
    from declarative.model.text import clean
    from declarative.planner.inventory import shown_drift
    from declarative.store.consistency import wrong_values

    desired = declared(session, warn=not as_json)
    store = session.state.open(desired, typed=False)
    if not store.exists:
        raise failed("no-state", f"there is no state in {session.state.url(desired)}", NO_STATE)
    # If records do not hold what their kinds need, nothing else can be checked.
    state = store.read()
    findings = [_finding("state", line) for line in [*wrong_values(state)] or store.check()]
    compared = not findings
    if compared:
        inventory = look(state, session.backends(desired, state), offers=False).inventory
        drift = shown_drift(inventory, desired) if desired else inventory.drift
        notes = (d for d in inventory.diagnostics if d.code not in NO_CONTRADICTION)
        findings += [_finding("backend", d.detail, d.address, d.change) for d in drift]
        findings += [_finding("backend", d.summary) for d in notes]  # a backend that cannot be read is one
    if as_json:
        emit({"format_version": 1, "sound": not findings, "compared": compared, "findings": findings})
    else:
        for item in findings:
            parts = (item["address"], item["change"], item["detail"])
            emit_text(clean(": ".join(filter(None, parts))) + "\n")
        if not compared:
            sys.stderr.write("the backends were not asked: what is recorded contradicts itself\n")
        if not findings:
            emit_text("The state is sound.\n")
    return 1 if findings else 0


NO_CONTRADICTION = ("taken-up", "cleaned-folder")
"""What a look tells that speaks neither against the records nor against an answer."""


def _finding(
    source: str, detail: str, address: str | None = None, change: str | None = None
) -> dict[str, str | None]:
    return {"source": source, "address": address, "change": change, "detail": detail}


@state_command.command("history")
@click.argument("addresses", metavar="[ADDRESS]...", nargs=-1, shell_complete=completion.addresses)
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="How many entries at most."
)
@json_option
@project_command
def history(session: ProjectSession, addresses: tuple[str, ...], limit: int, as_json: bool) -> int:
    """What was done when, with what result, newest first; of some addresses only, also by earlier names."""
    from declarative.render.listings import history_json, history_text
    from declarative.store.rename import parse

    for address in addresses:
        parse(address)
    operations = session.store().history(addresses, limit)
    if as_json:
        emit(history_json(operations))
    elif operations:
        emit_text(history_text(operations, color=out_style()["color"]))
    else:
        emit_text("Nothing was done yet.\n" if not addresses else "Nothing was done to it.\n")
    return 0


@state_command.command("adopt-folder")
@project_command
def adopt_folder(session: ProjectSession) -> int:
    """Say that this folder is the state's place from now on, after it was copied or moved to another disk.

    The folder that it was in before asks from then on.
    """
    from declarative.store import project_copy

    folder = session.state.folder(session.state.url(session.declared()))
    if folder is None:
        hint = "nothing to do: a state on a server or outside of the project is no folder's"
        raise failed("usage", "there is no state that is kept within this folder", hint)
    before = project_copy.adopt(folder)
    emit_text(f"Its place is {folder.resolve()}" + (f", and was {before}" if before else "") + ".\n")
    return 0


@state_command.command("adopt-project")
@lock_option
@project_command
def adopt_project(session: ProjectSession, lock_timeout: float | None) -> int:
    """Say that this state is that of the project declared here, after the project was renamed.

    Be sure that it is: the next apply deletes what is recorded and not declared here.
    """
    desired = session.load().desired
    name = desired.project.name
    if name is None:
        raise failed("usage", "the project has no name", "write `name: …` in the `project` document")
    store = session.state.open(desired, write=True, typed=False, create=False)
    before = store.project()
    with session.state.lock(store, "state adopt-project", lock_timeout) as writer:
        writer.claim(name)
    emit_text(
        f"It is the state of project {name}" + (f", and was that of {before}" if before else "") + ".\n"
    )
    return 0


@state_command.command("unlock")
@click.argument("owner", required=False)
@project_command
def unlock(session: ProjectSession, owner: str | None) -> int:
    """Take the lock away from a holder that cannot be reached. It writes nothing more from then on."""
    info = session.store(write=True).unlock(owner)
    emit_text(f"Taken from {info}.\n" if info else "Nobody holds the lock.\n")
    return 0
