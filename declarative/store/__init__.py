"""The state store: what was recorded and observed, in a database that refuses what must never be.

The only home of sqlite3 and psycopg. `open_store` gives a `Store` to read from; `Store.lock` the one
`Writer`.
"""

from declarative.store import project_copy
from declarative.store.faults import StateError, UnreachableError
from declarative.store.journal import Who, age
from declarative.store.lock import LockInfo
from declarative.store.store import Store, file_of, open_store
from declarative.store.tables import FORMAT_VERSION
from declarative.store.writer import Writer

__all__ = [
    "FORMAT_VERSION",
    "LockInfo",
    "StateError",
    "Store",
    "UnreachableError",
    "Who",
    "Writer",
    "age",
    "file_of",
    "open_store",
    "project_copy",
]
