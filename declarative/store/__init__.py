"""The state store: what was recorded and observed, in a database that refuses what must never be.

The only home of sqlite3 and psycopg. `open_store` gives a `Store` to read from; `Store.lock` the one
`Writer`.
"""

from declarative.store import project_copy
from declarative.store.errors import StateError, UnreachableError
from declarative.store.journal import age
from declarative.store.lease import Actor, LockInfo
from declarative.store.reader import Store, file_of, open_store
from declarative.store.schema import FORMAT_VERSION
from declarative.store.writer import Writer

__all__ = [
    "FORMAT_VERSION",
    "Actor",
    "LockInfo",
    "StateError",
    "Store",
    "UnreachableError",
    "Writer",
    "age",
    "file_of",
    "open_store",
    "project_copy",
]
