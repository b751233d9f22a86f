"""`fleetform state list-backups|restore`: whole states that were kept, and bringing one of them back."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from declarative.cli.edit import ask
from declarative.cli.failure import failed
from declarative.cli.session import (
    Session,
    approve_option,
    emit,
    emit_text,
    json_option,
    lock_option,
    project_command,
    state_errors,
)

if TYPE_CHECKING:
    from declarative.resource import Desired
    from declarative.state import State
    from declarative.store.check import Held

NONE = "each `apply` that changes something keeps one in `.fleetform/backups`; or name a file"


@click.command("list-backups")
@json_option
@project_command
def list_backups(session: Session, as_json: bool) -> int:
    """List the states that were kept before changes, the newest first."""
    from declarative.store.state_files import kept

    found = [_described(session.directory, file) for file in kept(session.directory)]
    if as_json:
        emit({"format_version": 1, "backups": found})
        return 0
    for item in found:
        emit_text(
            f"{item['file']}  {item['kept_at']}  serial {item['serial']}, {item['records']} records, "
            f"lineage {item['lineage']}\n"
        )
    if not found:
        emit_text("There are no backups.\n")
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
@state_errors
def restore(session: Session, file: str | None, **options: Any) -> int:
    """Bring a state back from FILE, or from the newest backup.

    What is there is kept first: as a backup, or under another name where it cannot be read any more. What was
    made since then is found by the next `plan`.
    """
    from declarative.store.export import check_types, dump, parse, read
    from declarative.store.state_files import kept

    chosen = Path(file) if file else next((session.directory / f for f in kept(session.directory)), None)
    if chosen is None:
        raise failed("no-backup", "there is no backup of the state", NONE)
    try:
        pushed, held = parse(read(chosen.read_bytes(), str(chosen)))
    except OSError as error:
        raise failed("unreadable", f"{chosen}: {error.strerror}") from None
    check_types(pushed)
    loaded = session.load(required=False)
    desired = loaded.desired if loaded else None
    broken = _broken(session, desired)
    what = f"the state of serial {pushed.serial} with {len(pushed.records)} records, from {chosen}"
    there = (
        f" The state that is there is damaged ({broken}), and is kept under another name." if broken else ""
    )
    ask(f"Bring back {what}?{there}", options)
    if broken:
        sys.stderr.write(f"What was there is in {_put_aside(session, desired)}\n")
    return _push(session, desired, (pushed, held), options, dump(pushed, held))


def _push(
    session: Session,
    desired: Desired | None,
    found: tuple[State, Held],
    options: dict[str, Any],
    data: dict[str, Any],
) -> int:
    from declarative.store.manual_edits import may_push
    from declarative.store.state_files import keep_pulled

    store = session.state.open(desired, write=True, typed=False, anew=True)
    with session.state.lock(store, "state restore", options["lock_timeout"]) as writer:
        before = writer.state()
        if store.pull() == data:
            emit_text("Nothing to restore: it is the state that is there.\n")
            return 0
        may_push(before, *found, force=True)
        if before.lineage:
            kept_in = keep_pulled(session.directory, store.pull())
            sys.stderr.write(f"The state that was there is in {kept_in}\n")
        writer.push(*found, force=True)
        after = writer.state()
    emit_text(f"Restored: {len(after.records)} records, serial {after.serial}, lineage {after.lineage}.\n")
    sys.stderr.write("`fleetform plan` shows what was made since then, and what is gone\n")
    return 0


def _broken(session: Session, desired: Desired | None) -> str | None:
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


def _put_aside(session: Session, desired: Desired | None) -> Path:
    """Rename the file, with what SQLite keeps beside it."""
    from declarative.store import file_of

    path = file_of(session.state.url(desired), session.directory)
    assert path is not None
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    for suffix in ("-wal", "-shm", "-journal", ""):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    return aside
