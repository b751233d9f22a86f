"""The state store: what was recorded and observed, in a database that refuses what must never be.

The only home of SQLAlchemy. `open_store` gives a `Store` to read from; `Store.lock` the one `Writer`.
"""

from declarative.store.database import StateError
from declarative.store.lock import LockInfo
from declarative.store.store import Store, open_store
from declarative.store.tables import FORMAT_VERSION
from declarative.store.writer import Writer

__all__ = ["FORMAT_VERSION", "LockInfo", "StateError", "Store", "Writer", "open_store"]
