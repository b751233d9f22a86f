"""A database as the store uses it: snapshots to read, transactions to write, a clock, a backup.

What each database does in its own way stands in a module of its own, `sqlite` and `postgres`, which is loaded
when a state is kept there; `Traits` is what the rest needs to know of it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from sqlalchemy import Connection, Engine

from declarative.spec.policy import Policy
from declarative.store.faults import StateError, UnreachableError, translated

__all__ = ["Opening", "StateError", "Traits", "UnreachableError", "open_database", "translated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a database does in its own way."""

    name: str
    """What messages call the place; without secrets."""
    reading: Mapping[str, Any]
    """SQLAlchemy's options of a transaction that is one snapshot…"""
    writing: Mapping[str, Any]
    """…and of one that writes."""
    now: Callable[[Connection], float]
    """Seconds since the epoch, by the clock that all who share the state go by."""
    backup: Callable[[Connection, str], Path]
    """Keeps what the transaction sees under a name that says which it is; where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a state is opened."""

    root: Path
    """The project's directory: relative paths, and backups, are below it."""
    create: bool
    read_only: bool
    clock: Callable[[], float]
    """This host's."""
    tell: Callable[[str], None] | None = None
    """Hears what was done besides what was asked for."""
    policy: Policy | None = None
    """What a project may name; None where the user named the state."""


def traits(database: Engine) -> Traits:
    """What this one does in its own way."""
    return cast("Traits", database.get_execution_options()["traits"])


def open_database(url: str, opening: Opening) -> Engine | None:
    """The engine of the state at `url`; None when there is none and it must not be made.

    Messages do not repeat the URL: it may hold a secret.
    """
    try:
        parts = urlsplit(url)
        secret = parts.password is not None
    except ValueError:
        raise StateError("bad-url", "the state's URL cannot be read", FORMS) from None
    scheme = parts.scheme.partition("+")[0]
    if scheme in ("postgresql", "postgres"):
        from declarative.store.postgres import open_server, target_of, trusted

        return open_server(trusted(target_of(url), opening.policy), opening)
    if secret:
        raise StateError("bad-url", "the state's URL has a password in it", "leave it out")
    if parts.scheme == "sqlite":
        from declarative.store.sqlite import open_file, path_of

        return open_file(path_of(url, opening.root), opening)
    if parts.scheme:
        raise StateError("bad-url", f"states cannot be kept in `{scheme}`", FORMS)
    hint = f"{FORMS}, or name a file that `fleetform state pull` printed"
    raise StateError("bad-url", "the state's URL cannot be read, and there is no such file", hint)


FORMS = "write sqlite:///path/to/state.db or postgresql://host/database"


def file_of(url: str, root: Path) -> Path | None:
    """The file that a state is kept in; None if it is on a server. `StateError` bad-url if it is neither."""
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if scheme in ("postgresql", "postgres"):
        return None
    from declarative.store.sqlite import path_of

    return path_of(url, root)


def dumps(value: Any) -> str:
    """JSON as it is stored: the same value, the same text."""
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_mapping
    )


@functools.lru_cache(maxsize=256)
def loads(text: str) -> Any:
    """What is stored, as a value that is only looked at: the things of one document share their inputs."""
    return json.loads(text)


def plain(value: Any) -> Any:
    """`value` as it will be read back: dicts, lists and scalars."""
    return json.loads(dumps(value))


def _mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be stored")


def now(connection: Connection) -> float:
    """Seconds since the epoch, by the clock that all who share the state go by."""
    return traits(connection.engine).now(connection)


@contextmanager
def reading(database: Engine) -> Iterator[Connection]:
    """One consistent snapshot, which no writer blocks."""
    own = traits(database)
    with (
        translated(own.name),
        database.connect().execution_options(**own.reading) as connection,
        connection.begin(),
    ):
        yield connection


@contextmanager
def writing(database: Engine) -> Iterator[Connection]:
    """One transaction: all of it, or nothing."""
    own = traits(database)
    with (
        translated(own.name),
        database.connect().execution_options(**own.writing) as connection,
        connection.begin(),
    ):
        yield connection


def damage(connection: Connection) -> list[str]:
    """What the database finds wrong with itself."""
    if connection.dialect.name != "sqlite":
        return []
    found = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check") if row[0] != "ok"]
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    return found + [f"a row of {row[0]} refers to a row of {row[2]} that is not there" for row in broken]
