"""`fleetform state`: looking into the records, and changing them by hand; nothing real is touched. Also
`destroy --orphans`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from declarative.cli import CommandGroup, completion
from declarative.cli.options import (
    approve_option,
    confirm,
    declared,
    examples,
    json_option,
    lock_option,
    project_command,
)
from declarative.cli.output import INTERRUPTED, emit, emit_event, emit_text, out_style, say, stopping
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import failed
from declarative.model.text import and_more
from declarative.render.text import plural

if TYPE_CHECKING:
    from declarative.apply.orphans import Orphan
    from declarative.cli.run_output import RunOutput
    from declarative.converge.ports import Consent
    from declarative.converge.run import Run
    from declarative.model.diagnostic import Diagnostic
    from declarative.model.resource import Desired
    from declarative.model.state import Address, Record, State
    from declarative.store import Store, Writer
    from declarative.store.consistency import HeldBlocks

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
    from declarative.model.text import suggest
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
        for finding in findings:
            parts = (finding["address"], finding["change"], finding["detail"])
            emit_text(clean(": ".join(filter(None, parts))) + "\n")
        if not compared:
            sys.stderr.write("the backends were not asked: what is recorded contradicts itself\n")
        if not findings:
            emit_text("The state is sound.\n")
    return 1 if findings else 0


NO_CONTRADICTION = ("taken-up", "cleaned-folder")
"""Findings of a look that contradict neither the records nor an answer."""


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
    operations = session.store().journal.operations(addresses, limit)
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
    was = f", and was that of {before}" if before else ""
    emit_text(f"It is the state of project {name}{was}.\n")
    return 0


@state_command.command("unlock")
@click.argument("owner", required=False)
@project_command
def unlock(session: ProjectSession, owner: str | None) -> int:
    """Take the lock away from a holder that cannot be reached. It writes nothing more from then on."""
    info = session.store(write=True).unlock(owner)
    emit_text(f"Taken from {info}.\n" if info else "Nobody holds the lock.\n")
    return 0


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


@state_command.command("rm")
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
        emit_text(f"Would forget {plural(len(forgotten), 'record')}:\n{_lines(forgotten)}")
        return 0
    with session.state.lock(store, "state rm", options["lock_timeout"]) as writer:
        state = writer.state()
        forgotten = _to_forget(state, addresses, cascade=options["cascade"])
        ranks = [a for a in forgotten if a.kind == "rank" and not state.has_ended(a.name)]
        them = "it" if len(ranks) == 1 else "them"
        running = RUNS_ON.format(names=and_more(ranks, MOST_NAMED), it=them) if ranks else ""
        confirm(
            f"Forget {plural(len(forgotten), 'record')}?\n{_lines(forgotten)}{STAYS}{running}\n",
            approved=options["auto_approve"],
            doing="it",
            look="look with `--dry-run`",
        )
        backup = _backup(session, store)
        writer.drop(forgotten)
    emit_text(f"Forgotten:\n{_lines(forgotten)}")
    sys.stderr.write(f"To have them back: `fleetform state push --force {backup}`\n")
    return 0


def _to_forget(state: State, texts: Iterable[str], *, cascade: bool) -> list[Address]:
    """Every record that is meant, in the order of `state list`; `InvalidError` if others need one of them."""
    from declarative.model.state import by_address
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


@state_command.command("mv")
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
    from declarative.store.rename import parse, rename_map, renamed

    store = session.store(write=not dry_run, typed=True)
    if dry_run:
        state = store.read()
        names = rename_map(state, parse(source), parse(target))
        emit_text(f"Would rename:\n{_moves(renamed(state, {}, names)[2])}")
        return 0
    with session.state.lock(store, "state mv", lock_timeout) as writer:
        moves = writer.move(rename_map(writer.state(), parse(source), parse(target)))
    emit_text(f"Renamed:\n{_moves(moves)}")
    return 0


def _moves(moves: Mapping[Address, Address]) -> str:
    from declarative.model.state import by_address

    return "".join(f"  {old} -> {moves[old]}\n" for old in sorted(moves, key=by_address))


# ---------------------------------------------------------------------------------------------- push


@state_command.command("push")
@click.argument("file", metavar="FILE|-", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--force", is_flag=True, help="Also over a state with a newer serial; its backup stays.")
@lock_option
@project_command
def push(session: ProjectSession, file: str, force: bool, lock_timeout: float | None) -> int:
    """Replace the whole state by one that `state pull` printed.

    It refuses a state of another lineage, one that is not newer, and one that contradicts itself. An empty
    state takes it over as it is. A backup of the old state is written first.
    """
    pushed = _parsed(file)
    store = session.store(write=True, create=True, anew=True)
    state = _replace(session, store, pushed, "state push", lock_timeout, force=force)
    if state is None:
        emit_text("Nothing to push: it is the state that is there.\n")
    else:
        records = plural(len(state.records), "record")
        emit_text(f"Pushed: {records}, serial {state.serial}, lineage {state.lineage}.\n")
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
    from declarative.store.record_changes import may_push
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


@state_command.command("list-backups")
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


@state_command.command("restore")
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
    there = ""
    if broken:
        there = f" The state that is there is damaged ({broken}), and is kept under another name."
    look = "look with `fleetform state list-backups`"
    confirm(f"Bring back {what}?{there}\n", approved=options["auto_approve"], doing="it", look=look)
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


# --------------------------------------------------- orphans: what this state made and does not record

ADOPT_FIRST = "`fleetform state adopt ADDRESS` records one again; then it can be unprotected and destroyed."
NONE = " of this state. What another state made is not looked for, nor what a lost state made.\n"


@state_command.command("adopt")
@click.argument("address", required=False)
@click.option("--id", "id_", metavar="ID", help="Which one, where several have that address.")
@lock_option
@project_command
def adopt(session: ProjectSession, address: str | None, id_: str | None, lock_timeout: float | None) -> int:
    """Record what this state made and does not record any more; nothing real is touched.

    ADDRESS is that of a node, a volume or a rank which `fleetform plan` calls an orphan; without it, all
    orphans are listed. If a recorded thing is not declared, the next apply deletes it. A rank is recorded as
    this state's history says that it was started. Without that history, as after a restore, it cannot be
    recorded.
    """
    from declarative.apply.orphans import matching
    from declarative.store.rename import parse

    desired = session.declared()
    store = session.state.open(desired, write=address is not None, create=False)
    if address is None:
        orphans, faults = _orphans(session, desired, store.read())
        say(faults)
        emit_text(_orphan_lines(orphans) or f"There are no orphans{NONE}")
        return 0
    target = parse(address)
    with session.state.lock(store, "state adopt", lock_timeout) as writer:
        state = writer.state()
        _check_free(state, target)
        orphans, faults = _orphans(session, desired, state)
        say(faults)
        matches = matching(orphans, target, id_)
        if len(matches) > 1:
            summary = f"{len(matches)} orphans have the address {address}"
            raise failed("usage", summary, f"say which: `--id` with {', '.join(o.id for o in matches)}")
        if not matches:
            names = ", ".join(sorted({str(o.thing.address) for o in orphans})[:5]) or "there are none"
            raise failed("unknown-address", f"`{address}` is not an orphan", f"orphans: {names}")
        if target.kind == "rank":
            _adopt_rank(store, writer, matches[0], orphans, state)
        else:
            writer.adopt(_whole_record(matches[0], state))
        if target.kind == "node":
            writer.set_idle(target.name, session.clock())
        writer.log("adopt", target)
    emit_text(f"Adopted: {_name(matches[0])}\n")
    return 0


def _whole_record(orphan: Orphan, state: State) -> Record:
    """The record of a node or a volume; `InvalidError` if its backend does not report all that it needs."""
    from declarative.apply.orphans import as_record
    from declarative.store.consistency import wrong_value

    why = "its backend keeps no more of it than its name"
    if orphan.thing.known:
        record = as_record(orphan, state)
        wrong = wrong_value(record)
        if not wrong:
            return record
        why = f"what is written on it was changed ({wrong})"
    summary = f"{orphan.thing.address} cannot be adopted: {why}"
    raise failed("usage", summary, "delete it: `fleetform destroy --orphans`, or by hand")


def _check_free(state: State, address: Address) -> None:
    from declarative.model.state import ADOPTED

    if address.kind not in ADOPTED:
        hint = "`fleetform destroy --orphans` deletes the others"
        raise failed("usage", f"{address} cannot be adopted: only nodes, volumes and ranks can", hint)
    have = state.records.get(address)
    if have is not None:
        if address.kind == "rank":
            hint = f"`fleetform state rm {address}` forgets that one; then adopt the other"
            raise failed("exists", f"another attempt of {address} is recorded already", hint)
        hint = f"give the recorded one another name (`fleetform state mv {address} …`), or delete the orphan"
        raise failed("exists", f"{address} is recorded already, as {have.external_id}", hint)
    if any(intent.address == address for intent in state.intents):
        hint = "run `fleetform apply`: it asks the backend first"
        raise failed("open-intent", f"the result of an earlier call for {address} is not known", hint)


def _adopt_rank(
    store: Store, writer: Writer, orphan: Orphan, orphans: Sequence[Orphan], state: State
) -> None:
    """Record a running rank with its blocks and attachments, as it was started."""
    from declarative.apply.orphans import as_rank

    rank, task = orphan.thing.address, orphan.thing.address.name.rpartition("-")[0]
    intent = store.journal.create_with(orphan.id)
    if intent is None:
        summary = f"{rank} cannot be adopted: this state's history does not tell what {orphan.id} runs"
        raise failed("usage", summary, f"stop it: `fleetform stop {task}`")
    records = as_rank(orphan, orphans, intent, state)
    missing = intent.needs - {r.address for r in records} - set(state.records)
    if missing:
        summary = f"{rank} cannot be adopted: it needs {min(missing)}, which is not recorded"
        raise failed("missing-need", summary, f"adopt that first, or stop it: `fleetform stop {task}`")
    for record in records:
        if record.address.kind == "reservation":
            writer.reserve(record, record.reservation.node, record.reservation.blocks)
        else:
            writer.adopt(record)


def destroy_orphans(run: Run, output: RunOutput, consent: Consent, lock_timeout: float | None) -> int:
    """Delete all orphans but those that are protected; the exit code."""
    from declarative.apply.orphans import delete_orphans, is_protected
    from declarative.render.output_json import diagnostics_json

    with run.session.state.lock(run.store, run.doing, lock_timeout) as writer:
        state = writer.state()
        orphans, faults = _orphans(run.session, run.desired, state)
        deleted = [o for o in orphans if not is_protected(o)]
        kept = [str(o.thing.address) for o in orphans if is_protected(o)]
        if output.as_json:
            data = [{"address": str(o.thing.address), "backend": o.backend, "id": o.id} for o in deleted]
            emit_event({"event": "orphans", "orphans": data, "diagnostics": diagnostics_json(faults)})
        else:
            say(faults)
            shown = f"Made by this state, but not recorded:\n\n{_orphan_lines(deleted)}\n"
            shown += f"Orphans: {len(deleted)} to delete.\n"
            output.out.write(shown if deleted else f"There are no orphans to delete{NONE}")
        if not deleted:
            output.say_protected(kept, ADOPT_FIRST)
            return 1 if faults else 0
        consent()
        with stopping("stopping: no new deletions") as stop:
            backends = run.session.backends(run.desired, state)
            progress = output.progress()
            progress.expect(len(deleted))
            results = delete_orphans(deleted, state, backends, progress, stop)
            interrupted = stop.is_set()
    code, result = 0, "done"
    if interrupted:
        code, result = INTERRUPTED, "interrupted"
    elif faults or any(r.outcome != "done" for r in results):
        code, result = 4, "failed"
    output.summary(results, result, run.origin)
    output.say_protected(kept, ADOPT_FIRST)
    return code


def _orphans(
    session: ProjectSession, desired: Desired | None, state: State
) -> tuple[list[Orphan], tuple[Diagnostic, ...]]:
    """All orphans, and which backends could not be asked."""
    from declarative.apply.backend_look import look
    from declarative.model.diagnostic import in_order, located

    backends = session.backends(desired, state)
    observation = look(state, backends, offers=False, every=True)
    faults = located(observation.inventory.diagnostics, desired.places if desired else {})
    return observation.orphans, tuple(d for d in in_order(faults) if d.code == "backend-unreadable")


def _name(orphan: Orphan) -> str:
    return f"{orphan.thing.address}  {orphan.id}" if orphan.id else str(orphan.thing.address)


def _orphan_lines(orphans: Sequence[Orphan]) -> str:
    return "".join(f"  {_name(o)}\n" for o in orphans)


# ---------------------------------------------------------------------------------------------- shared


def _backup(session: ProjectSession, store: Store) -> Path:
    from declarative.store.backup import keep_pulled

    return keep_pulled(session.directory, store.pull())


def _lines(addresses: Iterable[Address]) -> str:
    return "".join(f"  {address}\n" for address in addresses)
