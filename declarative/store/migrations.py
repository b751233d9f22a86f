"""Which format a state has, and how an older one becomes this tool's: with a backup, whole or not at all.

The formats themselves are in `tables`. What every format keeps: `meta.format_version` and `meta.tool`, or a
newer one could not be named; the columns of `writer_lock`, or its holder could not be asked.
"""

from __future__ import annotations

from collections.abc import Callable

from declarative.model.diagnostic import is_version
from declarative.store import backup, lock, tables
from declarative.store.database import Connection, Database
from declarative.store.faults import FROM_BACKUP, StateError

Notify = Callable[[str], None]
"""Gets a text about a migration that was done."""


def is_there(connection: Connection) -> bool:
    """Whether there is a table that every state has; whose it is, its columns say."""
    return bool(connection.database.columns(connection, "meta"))


def agree(database: Database, *, read_only: bool, notify: Notify | None = None) -> bool:
    """Check the format of a state, and bring an older one up to date; False if there is no state.

    A reader changes nothing, and reads an older format as it is, if that is possible.
    """
    name = database.name
    with database.reading() as connection:
        if not is_there(connection):
            return False
        found, tool = _format(connection)
    if found > tables.FORMAT_VERSION:
        raise StateError(
            "newer-format",
            f"the state {name} has format {found}, this fleetform knows up to {tables.FORMAT_VERSION}",
            f"install fleetform {tool} or newer" if tool else "install a newer fleetform",
        )
    if found == tables.FORMAT_VERSION:
        return True
    with database.reading() as connection:
        if tables.beyond(connection, found):
            raise StateError("damaged", f"the state {name} is not of format {found}, as it says", FROM_BACKUP)
    if read_only and tables.readable(found):
        database.format = found
        return True
    if read_only:
        raise StateError(
            "older-format", f"the state {name} has the older format {found}", "`fleetform apply` renews it"
        )
    _renew(database, notify or _silent)
    return True


def _renew(database: Database, notify: Notify) -> None:
    """Migrate in one transaction, which everyone else waits for; the backup is whole before it begins."""
    with database.writing() as connection:
        # The row of the lock is what all writers wait for; another process may have been first.
        connection.execute("SELECT fence FROM writer_lock" + database.for_update)
        found, _ = _format(connection)
        if found >= tables.FORMAT_VERSION:
            return
        connection.format = found
        holder = lock.holder(connection)
        if holder and not holder.lapsed(database.now(connection)):
            # An older tool at work, which knows nothing of the new format.
            raise StateError(
                "locked",
                f"the state is locked by {holder}, and has to be brought from format {found} "
                f"to {tables.FORMAT_VERSION} first",
                "run it again when that has ended",
                lock=holder,
            )
        kept = backup.keep(connection)
        tables.migrate(connection, found)
    notify(
        f"the state was brought from format {found} to {tables.FORMAT_VERSION}; "
        f"as it was before, it is kept in {kept}"
    )


def _silent(_text: str) -> None:
    pass


def _format(connection: Connection) -> tuple[int, str]:
    """The format, and the version that wrote it; an empty text where it does not say: a stranger's state may
    hold anything there, a command line too.
    """
    row = connection.execute("SELECT format_version, tool FROM meta").first()
    if row is None or type(row.format_version) is not int or row.format_version < 1:
        raise StateError("damaged", "the state has lost its own description", FROM_BACKUP)
    return row.format_version, row.tool if is_version(row.tool) else ""
