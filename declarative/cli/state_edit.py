"""`fleetform state rm|mv|push|list-backups|restore`: changing records; nothing real is touched."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from declarative.cli import completion
from declarative.cli.options import (
    approve_option,
    confirm,
    json_option,
    lock_option,
    project_command,
)
from declarative.cli.output import emit, emit_text
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import and_more, failed

if TYPE_CHECKING:
    from declarative.model.resource import Desired
    from declarative.model.state import Address, State
    from declarative.store import Store
    from declarative.store.consistency import HeldBlocks

dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be done.")

MOST_NAMED = 5

STAYS = """\
What they stand for stays as it is. `fleetform plan` and `fleetform state check` call it an `orphan`:
`fleetform state adopt ADDRESS` records it again, `fleetform destroy --orphans` deletes it, and no other
command touches it. An apply that declares it makes another one, or fails where its name is taken.
"""
RUNS_ON = (
    "{names} may still run, and nothing watches or stops {it} any more: `fleetform stop` comes before this.\n"
)


# ---------------------------------------------------------------------------------------------- rm


@click.command("rm")
@click.argument(
    "addresses", metavar="ADDRESS...", nargs=-1, required=True, shell_complete=completion.recorded
)
@click.option("--cascade", is_flag=True, help="Forget what needs them, too.")
@dry_run_option
@approve_option
@lock_option
@project_command
def rm(session: ProjectSession, addresses: tuple[str, ...], **options: Any) -> int:
    """Forget records; the real things stay as they are, and belong to no state any more.

    An ADDRESS is that of a record, or `volume/NAME` for all of a count, `fleet/NAME` for its nodes,
    `task/NAME` for all that it has. A backup of the state is written first.
    """
    store = session.store(write=not options["dry_run"])
    if options["dry_run"]:
        forgotten = _to_forget(store.read(), addresses, cascade=options["cascade"])
        emit_text(f"Would forget {_count(forgotten)}:\n{_lines(forgotten)}")
        return 0
    with session.state.lock(store, "state rm", options["lock_timeout"]) as writer:
        state = writer.state()
        forgotten = _to_forget(state, addresses, cascade=options["cascade"])
        ranks = [a for a in forgotten if a.kind == "rank" and not state.has_ended(a.name)]
        them = "it" if len(ranks) == 1 else "them"
        running = RUNS_ON.format(names=and_more(ranks, MOST_NAMED), it=them) if ranks else ""
        _confirm(f"Forget {_count(forgotten)}?\n{_lines(forgotten)}{STAYS}{running}\n", options)
        backup = _backup(session, store)
        writer.drop(forgotten)
    emit_text(f"Forgotten:\n{_lines(forgotten)}")
    sys.stderr.write(f"To have them back: `fleetform state push --force {backup}`\n")
    return 0


def _to_forget(state: State, texts: Iterable[str], *, cascade: bool) -> list[Address]:
    """Every record that is meant, in the order of `state list`; `InvalidError` if others need one of them."""
    from declarative.store.records import by_address
    from declarative.store.rename import members, parse, users

    addresses = {address for text in texts for address in members(state, parse(text))}
    needing = users(state, addresses)
    if needing and not cascade:
        held = sorted((a for a in addresses if users(state, [a]) - addresses), key=by_address)
        users_of_them = sorted(needing, key=by_address)
        raise failed(
            "still-needed",
            f"{and_more(held, MOST_NAMED)} {'is' if len(held) == 1 else 'are'} still needed by "
            f"{and_more(users_of_them, MOST_NAMED)}",
            "`--cascade` forgets those too",
        )
    return sorted(addresses | needing, key=by_address)


# ---------------------------------------------------------------------------------------------- mv


@click.command("mv")
@click.argument("source", metavar="FROM", shell_complete=completion.movable)
@click.argument("target", metavar="TO")
@dry_run_option
@lock_option
@project_command
def mv(session: ProjectSession, source: str, target: str, dry_run: bool, lock_timeout: float | None) -> int:
    """Rename records, as they were renamed in the YAML: nothing is made anew, and ranks run on.

    FROM and TO are `volume/NAME` (all of a count), `volume/NAME-0`, `fleet/NAME`, `node/NAME-0` or
    `task/NAME`. Records that refer to them are renamed along. Their backend keeps the name that they were
    made with: nothing else can have it there until they are gone.
    """
    from declarative.store.rename import parse, plan, renamed

    store = session.store(write=not dry_run, typed=True)
    if dry_run:
        state = store.read()
        names = plan(state, parse(source), parse(target))
        emit_text(f"Would rename:\n{_moves(renamed(state, {}, names)[2])}")
        return 0
    with session.state.lock(store, "state mv", lock_timeout) as writer:
        moves = writer.move(plan(writer.state(), parse(source), parse(target)))
    emit_text(f"Renamed:\n{_moves(moves)}")
    return 0


def _moves(moves: Mapping[Address, Address]) -> str:
    from declarative.store.records import by_address

    return "".join(f"  {old} -> {moves[old]}\n" for old in sorted(moves, key=by_address))


# ---------------------------------------------------------------------------------------------- push


@click.command("push")
@click.argument("file", metavar="FILE|-", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--force", is_flag=True, help="Also over a state with a newer serial; its backup stays.")
@lock_option
@project_command
def push(session: ProjectSession, file: str, force: bool, lock_timeout: float | None) -> int:
    """Replace the whole state by one that `state pull` printed.

    It refuses a state of another lineage, one that is not newer, and one that contradicts itself. An empty
    state takes it over as it is. A backup of the old state is written first.
    """
    pushed, held = _parsed(file)
    store = session.store(write=True, create=True, anew=True)
    state = _replace(session, store, (pushed, held), "state push", lock_timeout, force=force)
    if state is None:
        emit_text("Nothing to push: it is the state that is there.\n")
    else:
        emit_text(f"Pushed: {_count(state.records)}, serial {state.serial}, lineage {state.lineage}.\n")
    return 0


def _parsed(file: str) -> tuple[State, HeldBlocks]:
    """The state in a file that `state pull` printed, or on stdin (`-`)."""
    from declarative.store.snapshot import check_types, parse, read

    try:
        text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise failed("unreadable", f"{file}: {error.strerror}") from None
    state, held = parse(read(text, "what came on stdin" if file == "-" else file))
    check_types(state)
    return state, held


def _replace(
    session: ProjectSession,
    store: Store,
    pushed: tuple[State, HeldBlocks],
    doing: str,
    lock_timeout: float | None,
    *,
    force: bool,
) -> State | None:
    """Put a state in place of the one that is there, after a backup; the new state, or None if it is that one
    already.
    """
    from declarative.store.push import may_push
    from declarative.store.snapshot import dump

    with session.state.lock(store, doing, lock_timeout) as writer:
        before = writer.state()
        if store.pull() == dump(*pushed):
            return None
        may_push(before, *pushed, force=force)
        if before.lineage:
            sys.stderr.write(f"The state that was there is in {_backup(session, store)}\n")
        writer.push(*pushed, force=force)
        return writer.state()


# -------------------------------------------------------------------------------------------- backups

NO_BACKUP = "each `apply` that changes something keeps one in `.fleetform/backups`; or name a file"


@click.command("list-backups")
@json_option
@project_command
def list_backups(session: ProjectSession, as_json: bool) -> int:
    """List the states that were kept before changes, the newest first."""
    from declarative.store.backup import kept

    backups = [_described(session.directory, file) for file in kept(session.directory)]
    if as_json:
        emit({"format_version": 1, "backups": backups})
        return 0
    line = "{file}  {kept_at}  serial {serial}, {records} records, lineage {lineage}\n"
    emit_text("".join(line.format(**backup) for backup in backups) or "There are no backups.\n")
    return 0


def _described(project: Path, file: Path) -> dict[str, Any]:
    data: Any = {}
    with suppress(OSError, ValueError):
        data = json.loads((project / file).read_text(encoding="utf-8"))
    data = data if isinstance(data, dict) else {}
    records = data.get("records")
    return {
        "file": str(file),
        "kept_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime((project / file).stat().st_mtime)),
        "serial": data.get("serial"),
        "records": len(records) if isinstance(records, list) else None,
        "lineage": data.get("lineage"),
    }


@click.command("restore")
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@approve_option
@lock_option
@project_command
def restore(session: ProjectSession, file: str | None, **options: Any) -> int:
    """Bring a state back from FILE, or from the newest backup.

    What is there is kept first: as a backup, or under another name where it cannot be read any more. What was
    made since then is found by the next `plan`.
    """
    from declarative.store.backup import kept

    chosen = Path(file) if file else next((session.directory / f for f in kept(session.directory)), None)
    if chosen is None:
        raise failed("no-backup", "there is no backup of the state", NO_BACKUP)
    backup = _parsed(str(chosen))
    desired = session.declared()
    broken = _broken(session, desired)
    what = f"the state of serial {backup[0].serial} with {len(backup[0].records)} records, from {chosen}"
    there = (
        f" The state that is there is damaged ({broken}), and is kept under another name." if broken else ""
    )
    _confirm(f"Bring back {what}?{there}\n", options, look="look with `fleetform state list-backups`")
    if broken:
        sys.stderr.write(f"What was there is in {_put_aside(session, desired)}\n")
    store = session.state.open(desired, write=True, typed=False, anew=True)
    state = _replace(session, store, backup, "state restore", options["lock_timeout"], force=True)
    if state is None:
        emit_text("Nothing to restore: it is the state that is there.\n")
        return 0
    emit_text(f"Restored: {len(state.records)} records, serial {state.serial}, lineage {state.lineage}.\n")
    sys.stderr.write("`fleetform plan` shows what was made since then, and what is gone\n")
    return 0


def _broken(session: ProjectSession, desired: Desired | None) -> str | None:
    """Why a state's file cannot be written to any more; None if it can, or if it is on a server."""
    from declarative.store import StateError, file_of, open_store

    url = session.state.url(desired)
    path = file_of(url, session.directory)
    if path is None or not path.exists():
        return None
    try:
        with open_store(url, read_only=True, root=session.directory) as store:
            wrong = store.damage()
            store.pull()
    except StateError as error:
        if error.code in ("newer-format", "older-format", "busy", "read-only"):
            return None
        return error.summary
    return wrong[0] if wrong else None


def _put_aside(session: ProjectSession, desired: Desired | None) -> Path:
    """Rename the file, with what SQLite keeps beside it."""
    from declarative.store import file_of

    path = file_of(session.state.url(desired), session.directory)
    assert path is not None
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    for suffix in ("-wal", "-shm", "-journal", ""):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    return aside


# ---------------------------------------------------------------------------------------------- shared


def _confirm(question: str, options: Mapping[str, Any], look: str = "look with `--dry-run`") -> None:
    confirm(question, approved=options["auto_approve"], doing="it", look=look)


def _backup(session: ProjectSession, store: Store) -> Path:
    from declarative.store.backup import keep_pulled

    return keep_pulled(session.directory, store.pull())


def _count(records: Any) -> str:
    return f"{len(records)} record" + ("" if len(records) == 1 else "s")


def _lines(addresses: Iterable[Address]) -> str:
    return "".join(f"  {address}\n" for address in addresses)
