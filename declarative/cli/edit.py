"""`fleetform state rm|mv|push`: changing what is recorded, without touching anything real."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from declarative.cli import complete
from declarative.cli.failure import failed
from declarative.cli.session import (
    Session,
    approve_option,
    emit_text,
    lock_option,
    project_command,
    state_errors,
)
from declarative.diagnostic import and_more

if TYPE_CHECKING:
    from declarative.state import Address, State
    from declarative.store import Store

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


def _open(
    session: Session, *, write: bool, create: bool = False, typed: bool = False, anew: bool = False
) -> Store:
    loaded = session.load(required=False)
    return session.state.open(
        loaded.desired if loaded else None, write=write, create=create, typed=typed, anew=anew
    )


# ---------------------------------------------------------------------------------------------- rm


@click.command("rm")
@click.argument("addresses", metavar="ADDRESS...", nargs=-1, required=True, shell_complete=complete.recorded)
@click.option("--cascade", is_flag=True, help="Forget what needs them, too.")
@dry_run_option
@approve_option
@lock_option
@project_command
@state_errors
def rm(session: Session, addresses: tuple[str, ...], **options: Any) -> int:
    """Forget records; what they stand for stays as it is, and is nobody's any more.

    An ADDRESS is that of a record, or `volume/NAME` for all of a count, `fleet/NAME` for its nodes,
    `task/NAME` for all that it has. A backup of the state is written first.
    """
    store = _open(session, write=not options["dry_run"])
    if options["dry_run"]:
        found = _to_forget(store.read(), addresses, cascade=options["cascade"])
        emit_text(f"Would forget {_count(found)}:\n{_lines(found)}")
        return 0
    with session.state.lock(store, "state rm", options["lock_timeout"]) as writer:
        state = writer.state()
        found = _to_forget(state, addresses, cascade=options["cascade"])
        ask(f"Forget {_count(found)}?\n{_lines(found)}{STAYS}{_running(state, found)}", options)
        backup = _backup(session, store)
        writer.drop(found)
    emit_text(f"Forgotten:\n{_lines(found)}")
    sys.stderr.write(f"To have them back: `fleetform state push --force {backup}`\n")
    return 0


def _to_forget(state: State, texts: Iterable[str], *, cascade: bool) -> list[Address]:
    """Every record that is meant, in the order of `state list`; `Failed` if others need one of them."""
    from declarative.store.rename import members, parse, users
    from declarative.store.rows import by_address

    found = {address for text in texts for address in members(state, parse(text))}
    needing = users(state, found)
    if needing and not cascade:
        held = sorted((a for a in found if users(state, [a]) - found), key=by_address)
        users_of_them = sorted(needing, key=by_address)
        raise failed(
            "still-needed",
            f"{and_more(held, MOST_NAMED)} {'is' if len(held) == 1 else 'are'} still needed by "
            f"{and_more(users_of_them, MOST_NAMED)}",
            "`--cascade` forgets those too",
        )
    return sorted(found | needing, key=by_address)


def _running(state: State, found: Iterable[Address]) -> str:
    ranks = [a for a in found if a.kind == "rank" and not ((s := state.ranks.get(a.name)) and s.state.ended)]
    return (
        RUNS_ON.format(names=and_more(ranks, MOST_NAMED), it="it" if len(ranks) == 1 else "them")
        if ranks
        else ""
    )


def ask(question: str, options: Mapping[str, Any]) -> None:
    """Consent: by `--auto-approve`, or at the prompt of a terminal."""
    if options["auto_approve"]:
        return
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
        raise failed(
            "not-approved",
            "nobody can be asked: this is no terminal",
            "look with `--dry-run`, then add `--auto-approve`",
        )
    sys.stderr.write(f"{question}\nOnly `yes` is accepted: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        sys.stderr.write("\n")
    if answer.strip() != "yes":
        raise failed("declined", "it was declined: nothing was done")


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()


# ---------------------------------------------------------------------------------------------- mv


@click.command("mv")
@click.argument("source", metavar="FROM", shell_complete=complete.movable)
@click.argument("target", metavar="TO")
@dry_run_option
@lock_option
@project_command
@state_errors
def mv(session: Session, source: str, target: str, dry_run: bool, lock_timeout: float | None) -> int:
    """Rename what is recorded, as it was renamed in the YAML: nothing is made anew, and ranks run on.

    FROM and TO are `volume/NAME` (all of a count), `volume/NAME-0`, `fleet/NAME`, `node/NAME-0` or
    `task/NAME`. What refers to them is renamed along. Their backend keeps the name of their making, which
    nothing else can have there until they are gone.
    """
    from declarative.store.rename import parse, plan, renamed

    store = _open(session, write=not dry_run, typed=True)
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
    from declarative.store.rows import by_address

    return "".join(f"  {old} -> {moves[old]}\n" for old in sorted(moves, key=by_address))


# ---------------------------------------------------------------------------------------------- push


@click.command("push")
@click.argument("file", metavar="FILE|-", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--force", is_flag=True, help="Also over a state with a newer serial; its backup stays.")
@lock_option
@project_command
@state_errors
def push(session: Session, file: str, force: bool, lock_timeout: float | None) -> int:
    """Put a whole state, as `state pull` printed it, in the place of the one that is there.

    Refused are a state of another lineage, one that is not newer, and one that contradicts itself. Into an
    empty state it is taken over as it is. A backup of what was there is written first.
    """
    from declarative.store.export import check_types, dump, parse, read
    from declarative.store.manual_edits import may_push

    pushed, held = parse(read(_read(file), "what came on stdin" if file == "-" else file))
    check_types(pushed)
    store = _open(session, write=True, create=True, anew=True)
    with session.state.lock(store, "state push", lock_timeout) as writer:
        before = writer.state()
        if store.pull() == dump(pushed, held):
            emit_text("Nothing to push: it is the state that is there.\n")
            return 0
        may_push(before, pushed, held, force=force)
        backup = _backup(session, store) if before.lineage else None
        writer.push(pushed, held, force=force)
        after = writer.state()
    emit_text(f"Pushed: {_count(after.records)}, serial {after.serial}, lineage {after.lineage}.\n")
    if backup:
        sys.stderr.write(f"The state that was there is in {backup}\n")
    return 0


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise failed("unreadable", f"{file}: {error.strerror}") from None


# ---------------------------------------------------------------------------------------------- shared


def _backup(session: Session, store: Store) -> Path:
    from declarative.store.state_files import keep_pulled

    return keep_pulled(session.directory, store.pull())


def _count(found: Any) -> str:
    return f"{len(found)} record" + ("" if len(found) == 1 else "s")


def _lines(found: Iterable[Address]) -> str:
    return "".join(f"  {address}\n" for address in found)
