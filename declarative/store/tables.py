"""The tables of a state, and how an older format becomes this one.

What must never be is refused by the rows themselves: a block has one holder because (node, block) is a
key; what is needed cannot go because a foreign key restricts it; one thing of a backend has one address
because its id is unique. Only SQL that SQLite and PostgreSQL share is used here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    UniqueConstraint,
    insert,
    inspect,
    null,
    select,
    update,
)

from declarative import __version__

# Named constraints are what a later migration can alter, on PostgreSQL as well.
metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)

meta = Table(
    "meta",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="single"), primary_key=True, autoincrement=False),
    Column("format_version", Integer, nullable=False),
    Column("tool", Text, nullable=False),  # the version that wrote this format: the one to install
    Column("lineage", Text),
    Column("serial", Integer, CheckConstraint("serial >= 0", name="serial"), nullable=False),
    Column("seal", Text),  # see `seal`; NULL: something was written since
)

resources = Table(
    "resources",
    metadata,
    Column("address", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("backend", Text),
    Column("external_id", Text),  # outputs["id"]; several NULLs are no clash in either database
    Column("inputs", JSON, nullable=False),
    Column("outputs", JSON, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("detached_since", Double),  # of volumes alone; NULL: something has it attached, or not known
    CheckConstraint("address = kind || '/' || name", name="address"),
    # With the kind: some clouds number their nodes and volumes apart from one another.
    UniqueConstraint("backend", "kind", "external_id"),
)

needs = Table(
    "needs",
    metadata,
    Column("address", ForeignKey("resources.address", ondelete="CASCADE"), primary_key=True),
    Column("needed", ForeignKey("resources.address", ondelete="RESTRICT"), primary_key=True, index=True),
)

reserved_blocks = Table(
    "reserved_blocks",
    metadata,
    Column("node", ForeignKey("resources.address", ondelete="RESTRICT"), primary_key=True),
    Column(
        "block", Integer, CheckConstraint("block >= 0", name="block"), primary_key=True, autoincrement=False
    ),
    Column("reservation", ForeignKey("resources.address", ondelete="CASCADE"), nullable=False, index=True),
)

rank_status = Table(
    "rank_status",
    metadata,
    Column("name", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("exit_code", Integer),
    Column("cause", Text),
    Column("started_at", Double),
    Column("ended_at", Double),
    Column("mounted", JSON, nullable=False),
    Column("confinement", Text),
)

node_status = Table(
    "node_status",
    metadata,
    Column("name", Text, primary_key=True),
    Column("state", Text),  # NULL: never observed, only known to be idle
    Column("reason", Text),
    Column("observed_at", Double),
    Column("idle_since", Double),
    Column("can", JSON(none_as_null=True)),  # NULL: not known
)

# Never deleted from: a generation that was used once is not used again, or a token would come back.
generations = Table(
    "generations",
    metadata,
    Column("address", Text, primary_key=True),
    Column("generation", Integer, nullable=False),
)

# The journal. Rows without `ended_at` are the open intents; the others are history.
operations = Table(
    "operations",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("op", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("backend", Text),
    Column("generation", Integer, nullable=False),
    Column("token", Text, nullable=False),
    Column("inputs", JSON, nullable=False),
    Column("needs", JSON, nullable=False),
    Column("begun_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("result", Text),
    Column("error", Text),
    Column("host", Text),  # who began it last, from the lock; NULL: by a tool that did not say
    Column("doing", Text),
    Column("actor", Text),  # the person, or the CI's
    Column("revision", Text),  # the commit of the project
    Column("place", Text),  # `lock.place` of who began it last…
    Column("tick", Double),  # …and when, by the clock of that place that nobody can set (`lock.boottime`)
)
one_open = Index("uq_operations_open", operations.c.address, operations.c.op, unique=True)
"""One open intent of a kind for each address; `suit` confines it to open ones."""

# One row for ever: it keeps the fence, which counts up with each holder.
writer_lock = Table(
    "writer_lock",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="single"), primary_key=True, autoincrement=False),
    Column("fence", Integer, nullable=False),
    Column("owner", Text),
    Column("host", Text),
    Column("place", Text),
    Column("pid", Integer),
    Column("started", Text),
    Column("doing", Text),
    Column("since", Double),
    Column("expires", Double),
    Column("ends", Double),
    Column("epoch", BigInteger),
)

Migration = Callable[[Connection], None]


def _to_2(connection: Connection) -> None:
    """How ranks are confined, what hosts can do, and who did what."""
    connection.exec_driver_sql("ALTER TABLE rank_status ADD COLUMN confinement TEXT")
    connection.exec_driver_sql("ALTER TABLE node_status ADD COLUMN can JSON")
    connection.exec_driver_sql("ALTER TABLE operations ADD COLUMN host TEXT")
    connection.exec_driver_sql("ALTER TABLE operations ADD COLUMN doing TEXT")


def _to_3(connection: Connection) -> None:
    """Since when volumes are attached to nothing."""
    connection.exec_driver_sql("ALTER TABLE resources ADD COLUMN detached_since DOUBLE PRECISION")


def _to_4(connection: Connection) -> None:
    """Who asked for what was done, and at which commit of the project."""
    connection.exec_driver_sql("ALTER TABLE operations ADD COLUMN actor TEXT")
    connection.exec_driver_sql("ALTER TABLE operations ADD COLUMN revision TEXT")


def _to_5(connection: Connection) -> None:
    """Clocks that nobody can set, and the holder's number that backends are told."""
    connection.exec_driver_sql("ALTER TABLE operations ADD COLUMN place TEXT")
    connection.exec_driver_sql("ALTER TABLE operations ADD COLUMN tick DOUBLE PRECISION")
    connection.exec_driver_sql("ALTER TABLE writer_lock ADD COLUMN ends DOUBLE PRECISION")
    connection.exec_driver_sql("ALTER TABLE writer_lock ADD COLUMN epoch BIGINT")


def _to_6(connection: Connection) -> None:
    """A seal by which damage is found."""
    connection.exec_driver_sql("ALTER TABLE meta ADD COLUMN seal TEXT")


MIGRATIONS: Sequence[Migration] = (_to_2, _to_3, _to_4, _to_5, _to_6)
"""MIGRATIONS[i] makes format i+2 of format i+1, on every database; append, never edit.

With each: the format before it as a fixture in `tests/states`. What every format keeps: see `migrations`.
"""

FORMAT_VERSION = 1 + len(MIGRATIONS)

ADDED: Mapping[int, Collection[str]] = {
    2: ("rank_status.confinement", "node_status.can", "operations.host", "operations.doing"),
    3: ("resources.detached_since",),
    4: ("operations.actor", "operations.revision"),
    5: ("operations.place", "operations.tick", "writer_lock.ends", "writer_lock.epoch"),
    6: ("meta.seal",),
}
"""Format → all that it changed, if that was to add columns which are NULL where a value is not known: a state
of the format before it can be read as it is. A format that changed more has no entry.
"""


def readable(found: int) -> bool:
    """Whether a state of format `found` can be read without a migration."""
    return all(number in ADDED for number in range(found + 1, FORMAT_VERSION + 1))


def beyond(connection: Connection, found: int) -> bool:
    """Whether there is a column that came later than format `found`."""
    late = [name.split(".") for number, names in ADDED.items() if number > found for name in names]
    there = {table: {c["name"] for c in inspect(connection).get_columns(table)} for table, _ in late}
    return any(column in there[table] for table, column in late)


def every(table: Table, connection: Connection, *, but: Collection[str] = ()) -> Select[Any]:
    """All columns of a table `but` some, with NULL for those that an older format has not got yet."""
    found = connection.get_execution_options().get("format", FORMAT_VERSION)
    late = {name for number, names in ADDED.items() if number > found for name in names}
    wanted = (c for c in table.c if c.name not in but)
    return select(*(null().label(c.name) if f"{table.name}.{c.name}" in late else c for c in wanted))


def suit(dialect: str) -> None:
    """Say to a database's dialect what the tables need of its own words.

    Not where they are declared: SQLAlchemy would load the dialect of every database, for every command.
    """
    one_open.dialect_options[dialect]["where"] = operations.c.ended_at.is_(None)


def create(connection: Connection) -> None:
    """All tables, and the rows that are always there. Inside the caller's transaction."""
    suit(connection.dialect.name)
    metadata.create_all(connection, checkfirst=False)  # tables that are not ours are no tables of ours
    connection.execute(insert(meta).values(id=1, format_version=FORMAT_VERSION, tool=__version__, serial=0))
    connection.execute(insert(writer_lock).values(id=1, fence=0))


def migrate(connection: Connection, found: int, steps: Sequence[Migration] | None = None) -> None:
    """Bring a state of format `found` to this tool's, inside the caller's transaction: all or nothing."""
    steps = MIGRATIONS if steps is None else steps
    for step in steps[found - 1 :]:
        step(connection)
    connection.execute(update(meta).values(format_version=1 + len(steps), tool=__version__))
