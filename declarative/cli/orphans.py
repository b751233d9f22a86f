"""`fleetform state adopt` and `destroy --orphans`: about what this state made and does not record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from declarative.cli.options import lock_option, project_command
from declarative.cli.output import INTERRUPTED, emit_event, emit_text, say, stopping
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import failed

if TYPE_CHECKING:
    from declarative.apply.orphans import Orphan
    from declarative.cli.run_output import RunOutput
    from declarative.converge.ports import Consent
    from declarative.converge.run import Run
    from declarative.model.diagnostic import Diagnostic
    from declarative.model.resource import Desired
    from declarative.model.state import Address, Record, State
    from declarative.store import Store, Writer

CODES = {True: (0, "done"), False: (4, "failed")}
"""Whether all backends reported their orphans and all were deleted → the exit code, and its word."""

ADOPT_FIRST = "`fleetform state adopt ADDRESS` records one again; then it can be unprotected and destroyed."
NONE = " of this state. What another state made is not looked for, nor what a lost state made.\n"


@click.command("adopt")
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
        emit_text(_lines(orphans) or f"There are no orphans{NONE}")
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
        going = [o for o in orphans if not is_protected(o)]
        staying = [str(o.thing.address) for o in orphans if is_protected(o)]
        if output.as_json:
            data = [{"address": str(o.thing.address), "backend": o.backend, "id": o.id} for o in going]
            emit_event({"event": "orphans", "orphans": data, "diagnostics": diagnostics_json(faults)})
        else:
            say(faults)
            shown = f"Made by this state, but not recorded:\n\n{_lines(going)}\n"
            shown += f"Orphans: {len(going)} to delete.\n"
            output.out.write(shown if going else f"There are no orphans to delete{NONE}")
        if not going:
            output.say_protected(staying, ADOPT_FIRST)
            return 1 if faults else 0
        consent()
        with stopping("stopping: no new deletions") as stop:
            backends = run.session.backends(run.desired, state)
            progress = output.progress()
            progress.expect(len(going))
            results = delete_orphans(going, state, backends, progress, stop)
            interrupted = stop.is_set()
    whole = not faults and all(r.outcome == "done" for r in results)
    code, result = (INTERRUPTED, "interrupted") if interrupted else CODES[whole]
    output.summary(results, result, run.origin)
    output.say_protected(staying, ADOPT_FIRST)
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


def _lines(orphans: Sequence[Orphan]) -> str:
    return "".join(f"  {_name(o)}\n" for o in orphans)
