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
from declarative.store.schema import dumps, later_columns
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
    if seal is not None and seal != _digest(connection, state, records.blocks(connection)):
        raise StateError("damaged", f"the state is damaged: {BROKEN}", f"{FROM_BACKUP}; {KEEP_IT}")
    connection.database.whole = (seal,)
    return state


def broken(connection: Connection, state: State, held: HeldBlocks) -> list[str]:
    """The fault of the seal of what was read, as a sentence; None if there is none."""
    seal = seal_of(connection)
    return [] if seal is None or seal == _digest(connection, state, held) else [BROKEN]


def put(connection: Connection, state: State | None = None) -> None:
    """Seal the records; `state` is all of them, if they were read already."""
    everything = records.load(connection) if state is None else state
    digest = _digest(connection, everything, records.blocks(connection))
    connection.update("meta", {"seal": digest})
    connection.database.whole = (digest,)


def remove(connection: Connection) -> None:
    """Take the seal off: something is about to be written."""
    connection.update("meta", {"seal": None})


def seal_of(connection: Connection) -> str | None:
    """The digest of all records; None while somebody writes, and after a writer that was killed."""
    digest: str | None = connection.select("meta").one().seal
    return digest


def is_whole(connection: Connection) -> bool:
    """Whether there is a seal, and it is that of what the tables hold."""
    sealed = seal_of(connection)
    if sealed is None:
        return False
    return sealed == _digest(connection, records.load(connection), records.blocks(connection))


def _digest(connection: Connection, state: State, held: HeldBlocks) -> str:
    """The digest of a state as its own format has it, so that an older one is still what was sealed."""
    whole = snapshot.uncopied(state, held)
    whole["format_version"] = connection.format
    for table, rows in (
        ("resources", whole["records"]),
        ("rank_status", whole["ranks"].values()),
        ("node_status", whole["nodes"].values()),
    ):
        for row in rows if (late := later_columns(table, connection.format)) else ():
            for column in late:
                row.pop(column, None)
    intents = [[i.id, i.begun_at, i.place, i.tick] for i in state.intents]
    return hashlib.sha256(dumps([whole, intents]).encode(errors="replace")).hexdigest()
