"""The seal of a state: a digest of all records, set when the lock is given back.

It shows a later reader whether the state is still as it was written: a flipped bit turns a name or number
into another valid one. The first write removes the seal, so a killed command leaves a state without one. The
next command that writes seals it again.
"""

from __future__ import annotations

import hashlib

from declarative.model.state import State
from declarative.store import records, snapshot
from declarative.store.consistency import HeldBlocks
from declarative.store.errors import FROM_BACKUP, StateError
from declarative.store.schema import dumps
from declarative.store.sql import Connection

BROKEN = "what it holds is not what was last written to it: a disk or somebody else has changed it"
KEEP_IT = (
    "if it was changed on purpose: `fleetform state pull > state.json`, look at it, and "
    "`fleetform state push --force state.json`"
)


def load(connection: Connection) -> State:
    """The whole state. If it was opened `typed` and is damaged, it is a `StateError`.

    A file is read through once for each command.
    """
    if not connection.database.typed:
        return records.load(connection)
    seal = seal_of(connection)
    if connection.database.whole == (seal,):
        return records.load(connection, checked=True)
    wrong = connection.database.damage(connection)
    if wrong:
        raise StateError("damaged", f"the state's database is damaged: {wrong[0]}", FROM_BACKUP)
    state = records.load(connection)
    if seal is not None and seal != _digest(state, records.blocks(connection)):
        raise StateError("damaged", f"the state is damaged: {BROKEN}", f"{FROM_BACKUP}; {KEEP_IT}")
    connection.database.whole = (seal,)
    return state


def broken(connection: Connection, state: State, held: HeldBlocks) -> list[str]:
    """The fault of the seal of what was read, as a sentence; None if there is none."""
    seal = seal_of(connection)
    return [] if seal is None or seal == _digest(state, held) else [BROKEN]


def put(connection: Connection, state: State | None = None) -> None:
    """Seal the records; `state` is all of them, if they were read already."""
    digest = _digest(records.load(connection) if state is None else state, records.blocks(connection))
    connection.update("meta", {"seal": digest})
    connection.database.whole = (digest,)


def remove(connection: Connection) -> None:
    """Take the seal off: something is about to be written."""
    connection.update("meta", {"seal": None})


def seal_of(connection: Connection) -> str | None:
    """The digest of all records; None while somebody writes, and after a writer that was killed."""
    digest: str | None = connection.select("meta").one().seal
    return digest


def _digest(state: State, held: HeldBlocks) -> str:
    intents = [[i.id, i.begun_at, i.place, i.tick] for i in state.intents]
    return hashlib.sha256(
        dumps([snapshot.uncopied(state, held), intents]).encode(errors="replace")
    ).hexdigest()
