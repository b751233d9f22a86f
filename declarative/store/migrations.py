"""Which format a state has, and how an older one becomes this tool's: with a backup, whole or not at all.

The tables themselves are in `schema`. What every format keeps: `meta.format_version` and `meta.tool`, or a
newer one could not be named; the columns of `writer_lock`, or its holder could not be asked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from declarative import __version__
from declarative.model.diagnostic import is_version
from declarative.store import backup, lock, schema, seal
from declarative.store.errors import FROM_BACKUP, StateError
from declarative.store.sql import Connection, Database

Notify = Callable[[str], None]
"""Gets a text about a migration that was done."""


def is_there(connection: Connection) -> bool:
    """Whether the table is there that every state has. Its columns show whether it is ours."""
    return bool(connection.database.columns(connection, "meta"))


def agree(database: Database, *, read_only: bool, notify: Notify | None = None) -> bool:
    """Check the format of a state, and bring an older one up to date; False if there is no state.

    A reader changes nothing, and reads an older format as it is, if that is possible.
    """
    name = database.name
    with database.reading() as connection:
        if not is_there(connection):
            return False
        version, tool = _format(connection)
    if version > schema.FORMAT_VERSION:
        raise StateError(
            "newer-format",
            f"the state {name} has format {version}, this fleetform knows up to {schema.FORMAT_VERSION}",
            f"install fleetform {tool} or newer" if tool else "install a newer fleetform",
        )
    if version == schema.FORMAT_VERSION:
        database.format = version
        return True
    with database.reading() as connection:
        if has_later_columns(connection, version):
            summary = f"the state {name} is not of format {version}, as it says"
            raise StateError("damaged", summary, FROM_BACKUP)
    if read_only and schema.readable(version):
        database.format = version
        return True
    if read_only:
        raise StateError(
            "older-format", f"the state {name} has the older format {version}", "`fleetform apply` renews it"
        )
    _renew(database, notify)
    database.format = schema.FORMAT_VERSION
    return True


def _renew(database: Database, notify: Notify | None) -> None:
    """Migrate in one transaction, which everyone else waits for; the backup is whole before it begins."""
    with database.writing() as connection:
        # The row of the lock is what all writers wait for; another process may have been first.
        connection.execute("SELECT fence FROM writer_lock" + database.for_update)
        version, _ = _format(connection)
        if version >= schema.FORMAT_VERSION:
            return
        connection.format = version
        holder = lock.holder(connection)
        if holder and not holder.lapsed(database.now(connection)):
            # An older tool at work, which knows nothing of the new format.
            raise StateError(
                "locked",
                f"the state is locked by {holder}, and has to be brought from format {version} "
                f"to {schema.FORMAT_VERSION} first",
                "run it again when that has ended",
                lock=holder,
            )
        kept = backup.keep(connection)
        migrate(connection, version)
    if notify:
        notify(
            f"the state was brought from format {version} to {schema.FORMAT_VERSION}; "
            f"as it was before, it is kept in {kept}"
        )


def _format(connection: Connection) -> tuple[int, str]:
    """The format, and the version that wrote it; an empty text where it does not say: a stranger's state may
    hold anything there, a command line too.
    """
    row = connection.execute("SELECT format_version, tool FROM meta").first()
    if row is None or type(row.format_version) is not int or row.format_version < 1:
        raise StateError("damaged", "the state has lost its own description", FROM_BACKUP)
    return row.format_version, row.tool if is_version(row.tool) else ""


# ------------------------------------------------------------------------------------ the formats

Migration = Callable[[Connection], None]


def _add(connection: Connection, number: int) -> None:
    """Add the columns and tables of a format, and fill them where a value is known."""
    for name in schema.ADDED[number]:
        table, _, column = name.partition(".")
        lines = schema.lines_of(table, number)
        if column:
            line = next(line for line in lines if line.split()[0] == column)
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {line}")
        else:
            connection.execute(f"CREATE TABLE {table} ({', '.join(lines)})")
    if number in FILLED:
        FILLED[number](connection)


def _count_nodes(connection: Connection) -> None:
    """Existing nodes count since their launch, if the journal goes back that far."""
    launched = dict(
        connection.execute(
            "SELECT address, max(begun_at) FROM operations WHERE op = 'create' AND ended_at IS NOT NULL"
            " AND result IN ('done', 'adopted') GROUP BY address"
        )
    )
    now = connection.database.now(connection)
    nodes = connection.execute("SELECT address, inputs FROM resources WHERE kind = 'node'").all()
    bought = (row for row in nodes if "partition" not in (row.inputs.get("host") or ()))
    prices = {row.address: row.inputs.get("price") for row in bought}
    rows = (
        {"address": address, "since": min(launched.get(address, now), now), "price": price}
        for address, price in prices.items()
        if price
    )
    connection.insert("paid_nodes", *rows)


FILLED: Mapping[int, Migration] = {
    8: lambda connection: connection.insert("leader", {"id": 1, "fence": 0}),
    10: _count_nodes,
}
"""Format → what fills the tables that it added."""

MIGRATIONS: Sequence[Migration] = tuple(
    functools.partial(_add, number=number) for number in range(2, schema.FORMAT_VERSION + 1)
)
"""MIGRATIONS[i] makes format i+2 of format i+1, on every database.

A new format needs its columns in `schema.TABLES` and `schema.ADDED`, its number in `schema.FORMAT_VERSION`,
and the format before it as a fixture in `tests/store/states`. One that changes more than that has a function
of its own here.
"""


def has_later_columns(connection: Connection, format: int) -> bool:
    """Whether there is a column that came later than `format`."""
    late = [name.split(".") for name in schema.later_than(format)]
    columns = {table: connection.database.columns(connection, table) for table, _ in late}
    return any(column in columns[table] for table, column in late)


def create(connection: Connection) -> None:
    """All tables, and the rows that are always there. Inside the caller's transaction."""
    made = [f"CREATE TABLE {table} ({', '.join(lines)})" for table, lines in schema.TABLES.items()]
    described = f"1, {schema.FORMAT_VERSION}, '{__version__}', 0"
    rows = (
        f"INSERT INTO meta (id, format_version, tool, serial) VALUES ({described})",
        "INSERT INTO writer_lock (id, fence) VALUES (1, 0)",
        "INSERT INTO leader (id, fence) VALUES (1, 0)",
    )
    connection.database.run(connection, (*made, *schema.INDEXES, *rows))


def migrate(connection: Connection, format: int) -> None:
    """Bring a state of `format` to this tool's, inside the caller's transaction: all or nothing."""
    connection.format = format
    was_whole = seal.is_whole(connection)
    for migration in MIGRATIONS[format - 1 :]:
        migration(connection)
    connection.update("meta", {"format_version": 1 + len(MIGRATIONS), "tool": __version__})
    connection.format = schema.FORMAT_VERSION
    if was_whole:  # else the seal stays as it is, and shows the damage
        seal.put(connection)
