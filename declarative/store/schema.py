"""The tables of a state, its format, and how values are stored in them. `migrations` makes the tables.

The rows themselves refuse what must never be: a block has one holder because (node, block) is a key; a needed
record cannot be deleted because a foreign key restricts it; one thing of a backend has one address because
its id is unique. Only SQL that SQLite and PostgreSQL share is used here.

A row is read and written as a value of a class: a column is the field of its name. So a new column of a table
whose rows have a class is a line here, a field of that class, and a migration.
"""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

from declarative.model.codec import DataReader, Stored, reader, struct_reader

T = TypeVar("T")
Convert = Callable[[Any], Any]

JSON = frozenset({"inputs", "outputs", "needs", "mounted", "can", "steps", "detail"})
"""The columns, of any table, that hold JSON. NULL is None."""

THING = "REFERENCES resources (address)"
LEASE: Sequence[str] = (
    "fence INTEGER NOT NULL",
    "owner TEXT",
    "host TEXT",
    "place TEXT",
    "pid INTEGER",
    "started TEXT",
    "doing TEXT",
    "since DOUBLE PRECISION",
    "expires DOUBLE PRECISION",
    "ends DOUBLE PRECISION",
    "epoch BIGINT",
)
"""The columns of a lock's only row, see `lock`."""
TABLES: Mapping[str, Sequence[str]] = {
    "meta": (
        "id INTEGER NOT NULL CONSTRAINT ck_meta_single CHECK (id = 1)",
        "format_version INTEGER NOT NULL",
        "tool TEXT NOT NULL",  # the version that wrote this format: the one to install
        "lineage TEXT",
        "serial INTEGER NOT NULL CONSTRAINT ck_meta_serial CHECK (serial >= 0)",
        "seal TEXT",  # see `seal`; NULL: something was written since
        "project TEXT",  # the `name` of the project whose state this is; NULL: unknown
        "CONSTRAINT pk_meta PRIMARY KEY (id)",
    ),
    "resources": (
        "address TEXT NOT NULL",
        "kind TEXT NOT NULL",
        "name TEXT NOT NULL",
        "backend TEXT",
        "external_id TEXT",  # outputs["id"]; several NULLs are no clash in either database
        "inputs JSON NOT NULL",
        "outputs JSON NOT NULL",
        "generation INTEGER NOT NULL",
        "detached_since DOUBLE PRECISION",  # of volumes alone; NULL: something has it attached, or not known
        "CONSTRAINT pk_resources PRIMARY KEY (address)",
        "CONSTRAINT ck_resources_address CHECK (address = kind || '/' || name)",
        # With the kind: some clouds number their nodes and volumes apart from one another.
        "CONSTRAINT uq_resources_backend UNIQUE (backend, kind, external_id)",
    ),
    "needs": (
        "address TEXT NOT NULL",
        "needed TEXT NOT NULL",
        "CONSTRAINT pk_needs PRIMARY KEY (address, needed)",
        f"CONSTRAINT fk_needs_address FOREIGN KEY(address) {THING} ON DELETE CASCADE",
        f"CONSTRAINT fk_needs_needed FOREIGN KEY(needed) {THING} ON DELETE RESTRICT",
    ),
    "reserved_blocks": (
        "node TEXT NOT NULL",
        "block INTEGER NOT NULL CONSTRAINT ck_reserved_blocks_block CHECK (block >= 0)",
        "reservation TEXT NOT NULL",
        "CONSTRAINT pk_reserved_blocks PRIMARY KEY (node, block)",
        f"CONSTRAINT fk_reserved_blocks_node FOREIGN KEY(node) {THING} ON DELETE RESTRICT",
        f"CONSTRAINT fk_reserved_blocks_reservation FOREIGN KEY(reservation) {THING} ON DELETE CASCADE",
    ),
    "rank_status": (
        "name TEXT NOT NULL",
        "state TEXT NOT NULL",
        "exit_code INTEGER",
        "cause TEXT",
        "started_at DOUBLE PRECISION",
        "ended_at DOUBLE PRECISION",
        "mounted JSON NOT NULL",
        "confinement TEXT",
        "CONSTRAINT pk_rank_status PRIMARY KEY (name)",
    ),
    "node_status": (
        "name TEXT NOT NULL",
        "state TEXT",  # NULL: never observed, only known to be idle
        "reason TEXT",
        "observed_at DOUBLE PRECISION",
        "idle_since DOUBLE PRECISION",
        "can JSON",  # NULL: not known
        "CONSTRAINT pk_node_status PRIMARY KEY (name)",
    ),
    # Never deleted from: a generation that was used once is not used again, or a token would come back.
    "generations": (
        "address TEXT NOT NULL",
        "generation INTEGER NOT NULL",
        "CONSTRAINT pk_generations PRIMARY KEY (address)",
    ),
    # The journal. Rows without `ended_at` are the open intents; the others are history.
    "operations": (
        "id INTEGER NOT NULL",
        "op TEXT NOT NULL",
        "address TEXT NOT NULL",
        "backend TEXT",
        "generation INTEGER NOT NULL",
        "token TEXT NOT NULL",
        "inputs JSON NOT NULL",
        "needs JSON NOT NULL",
        "begun_at DOUBLE PRECISION NOT NULL",
        "ended_at DOUBLE PRECISION",
        "result TEXT",
        "error TEXT",
        "host TEXT",  # who began it last, from the lock; NULL: by a tool that did not say
        "doing TEXT",
        "actor TEXT",  # the person, or the CI's
        "revision TEXT",  # the commit of the project
        "place TEXT",  # `lease.place` of who began it last…
        "tick DOUBLE PRECISION",  # …and when, by `lease.boottime` of that place
        "CONSTRAINT pk_operations PRIMARY KEY (id)",
    ),
    # One row for ever: it keeps the fence, which counts up with each holder.
    "writer_lock": (
        "id INTEGER NOT NULL CONSTRAINT ck_writer_lock_single CHECK (id = 1)",
        *LEASE,
        "asked DOUBLE PRECISION",  # when somebody last asked a holder to give it back
        "CONSTRAINT pk_writer_lock PRIMARY KEY (id)",
    ),
    # Which loop of several acts: a lease as that of the lock.
    "leader": (
        "id INTEGER NOT NULL CONSTRAINT ck_leader_single CHECK (id = 1)",
        *LEASE,
        "CONSTRAINT pk_leader PRIMARY KEY (id)",
    ),
    # What the loop would do once somebody approves it.
    "approvals": (
        "digest TEXT NOT NULL",
        "since DOUBLE PRECISION NOT NULL",
        "steps JSON NOT NULL",  # no column to sort by, as the first two of a table are
        "approved_at DOUBLE PRECISION",
        "actor TEXT",
        "CONSTRAINT pk_approvals PRIMARY KEY (digest)",
    ),
    # What happened, see `events`.
    "events": (
        "id BIGINT NOT NULL",
        "at DOUBLE PRECISION NOT NULL",
        "type TEXT NOT NULL",
        "address TEXT NOT NULL",
        "detail JSON NOT NULL",
        "CONSTRAINT pk_events PRIMARY KEY (id)",
    ),
    # The last event that each webhook got, see `loop_state`.
    "hooks": (
        "name TEXT NOT NULL",
        "cursor BIGINT NOT NULL",
        "failures INTEGER NOT NULL",
        "next_at DOUBLE PRECISION",
        "busy_until DOUBLE PRECISION",
        "error TEXT",
        "CONSTRAINT pk_hooks PRIMARY KEY (name)",
    ),
    # What nodes cost, see `spending`: those that are there, and what those that were came to in each month.
    "paid_nodes": (
        "address TEXT NOT NULL",
        "since DOUBLE PRECISION NOT NULL",
        "price DOUBLE PRECISION NOT NULL",
        "CONSTRAINT pk_paid_nodes PRIMARY KEY (address)",
    ),
    "spent_months": (
        "month TEXT NOT NULL",
        "dollars DOUBLE PRECISION NOT NULL",
        "CONSTRAINT pk_spent_months PRIMARY KEY (month)",
    ),
    # The backends that a loop leaves alone, see `loop_state`.
    "left_alone": (
        "backend TEXT NOT NULL",
        "part TEXT NOT NULL",  # empty for all of it
        "since DOUBLE PRECISION NOT NULL",
        "until DOUBLE PRECISION NOT NULL",  # when it is asked again
        "why TEXT NOT NULL",
        "CONSTRAINT pk_left_alone PRIMARY KEY (backend, part)",
    ),
}
"""Table → its columns and constraints. These have names, by which a later migration can alter them."""

INDEXES: Sequence[str] = (
    # One open intent of a kind for each address.
    "CREATE UNIQUE INDEX uq_operations_open ON operations (address, op) WHERE ended_at IS NULL",
    "CREATE INDEX ix_needs_needed ON needs (needed)",
    "CREATE INDEX ix_reserved_blocks_reservation ON reserved_blocks (reservation)",
)

COLUMNS: Mapping[str, Sequence[str]] = {
    table: tuple(line.split()[0] for line in lines if not line.startswith("CONSTRAINT"))
    for table, lines in TABLES.items()
}

FORMAT_VERSION = 11
"""The format of these tables; `migrations.MIGRATIONS` brings an older one to it."""

ADDED: Mapping[int, Collection[str]] = {
    # How ranks are confined, what hosts support, and which command did what.
    2: ("rank_status.confinement", "node_status.can", "operations.host", "operations.doing"),
    # When volumes were detached.
    3: ("resources.detached_since",),
    # The person or CI behind each entry, and the project's commit.
    4: ("operations.actor", "operations.revision"),
    # Clocks that nobody can set, and the holder's epoch for backends.
    5: ("operations.place", "operations.tick", "writer_lock.ends", "writer_lock.epoch"),
    # A seal by which damage is found.
    6: ("meta.seal",),
    # The project whose state this is.
    7: ("meta.project",),
    # The loop, and its waits for approval.
    8: ("writer_lock.asked", "leader", "approvals"),
    # Events, and the webhooks that got them.
    9: ("events", "hooks"),
    # The cost of nodes.
    10: ("paid_nodes", "spent_months"),
    # The backends that a loop leaves alone.
    11: ("left_alone",),
}
"""Format → the columns and tables that it added. Such a column is NULL where a value is not known, and nobody
reads such a table without need: a state of the format before can be read as it is. A format that changed more
has no entry.
"""


def readable(format: int) -> bool:
    """Whether a state of that format can be read without a migration."""
    return all(number in ADDED for number in range(format + 1, FORMAT_VERSION + 1))


@functools.cache
def later_than(format: int) -> frozenset[str]:
    """`table.column` of what came later than that format."""
    late = (name for number, names in ADDED.items() if number > format for name in names)
    return frozenset(name for name in late if "." in name)


def later_columns(table: str, format: int = 1) -> frozenset[str]:
    """The columns of a table that came later than that format."""
    names = (name.partition(".") for name in later_than(format))
    return frozenset(column for owner, _, column in names if owner == table)


def lines_of(table: str, format: int) -> list[str]:
    """The columns and constraints that a table had in that format."""
    late = later_columns(table, format)
    return [line for line in TABLES[table] if line.split()[0] not in late]


# ------------------------------------------------------------------------------------------------ JSON


@functools.lru_cache(maxsize=256)
def loads(text: str) -> Any:
    """A stored value, to be read only: the things of one document share their inputs."""
    value = json.loads(text)
    return Stored(value) if isinstance(value, dict) else value


def copied(value: Any) -> Any:
    """`value` as it will be read back: dicts, lists and scalars."""
    return json.loads(dumps(value))


def stored(value: Mapping[str, Any]) -> Stored:
    """Like `copied`, to be read only. It keeps its text, which is reused when it is written."""
    if isinstance(value, Stored):
        return value
    text = dumps(value)
    data: Stored = loads(text)
    data.text = text
    return data


def text_of(value: Any) -> str | None:
    """A value as it is stored; None is NULL."""
    if value is None:
        return None
    return getattr(value, "text", None) or dumps(value)


def _mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be stored")


dumps = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_mapping
).encode
"""JSON as it is stored: the same value, the same text."""


# ------------------------------------------------------------------------------------------------ rows


def value_of(cls: type[T], row: Any, **more: Any) -> T:
    """A row as that class, by the columns that it has fields for; `more` are other fields."""
    kind: Any = cls
    for field, stored in zip(_from_columns(kind, row._fields), row, strict=True):
        if field is not None:
            name, convert = field
            more[name] = stored if convert is None else convert(stored)
    return cls(**more)


def columns(table: str, value: Any) -> dict[str, Any]:
    """The fields of a value that a table has columns for."""
    return plain(value, stored_fields(table, value.__class__))


def plain(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """These fields of a value as columns and JSON have them."""
    out: dict[str, Any] = {}
    for name, convert in _to_columns(value.__class__, names):
        field = getattr(value, name)
        out[name] = field if convert is None or field is None else convert(field)
    return out


@functools.cache
def stored_fields(table: str, cls: Any) -> tuple[str, ...]:
    """The names of the fields of a class that a table has columns for."""
    return tuple(field.name for field in fields(cls) if field.name in COLUMNS[table])


@functools.cache
def plain_reader(cls: Any, names: tuple[str, ...]) -> DataReader:
    """Reads what `plain` made."""
    hints = typing.get_type_hints(cls)
    return struct_reader({name: reader(hints[name]) for name in names}, names, cls)


@functools.lru_cache(maxsize=64)
def _from_columns(cls: Any, names: tuple[str, ...]) -> tuple[tuple[str, Convert | None] | None, ...]:
    """For each of these columns its field and the conversion to it; None for a column without a field."""
    hints = typing.get_type_hints(cls)
    return tuple((name, _from_column(hints[name])) if name in hints else None for name in names)


def _from_column(hint: Any) -> Convert | None:
    args = typing.get_args(hint)
    if types.NoneType in args:
        inner = _from_column(next(arg for arg in args if arg is not types.NoneType))
        return inner and (lambda value: None if value is None else inner(value))
    if args and hasattr(args[0], "parse"):
        return lambda texts: frozenset(map(args[0].parse, texts))
    if hasattr(hint, "parse"):  # an address: it is stored as its text
        return typing.cast("Convert", hint.parse)
    kind = typing.get_origin(hint) or hint
    is_made = kind in (tuple, frozenset) or (isinstance(kind, type) and issubclass(kind, Enum))
    return typing.cast("Convert", kind) if is_made else None


@functools.cache
def _to_columns(cls: Any, names: tuple[str, ...]) -> tuple[tuple[str, Convert | None], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((name, _to_column(hints[name])) for name in names)


def _to_column(hint: Any) -> Convert | None:
    args = typing.get_args(hint)
    if types.NoneType in args:
        return _to_column(next(arg for arg in args if arg is not types.NoneType))
    kind = typing.get_origin(hint) or hint
    if kind is frozenset and hasattr(args[0], "parse"):
        return lambda values: sorted(map(str, values))
    if kind is frozenset:  # a damaged state may hold anything there, which its check is to see as it is
        return lambda values: sorted(values, key=str)
    if kind is tuple:
        return list
    if hasattr(kind, "parse"):
        return str
    return (lambda member: member.value) if isinstance(kind, type) and issubclass(kind, Enum) else None
