"""Which loop of several acts: a lease beside the lock, by the same clock and the same rules.

Who writes holds the lock all the same, and each write is fenced by that. The lease only keeps the other loops
from looking and planning in turn, and it is held between rounds, when the lock is free for people.
"""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress

from declarative.store import lock
from declarative.store.database import Database
from declarative.store.faults import StateError
from declarative.store.lock import LEADER, LockInfo

LEASE_SECONDS = 10.0
"""Of the leader's lease, and of the lock in its rounds: others take over after that and one look."""
RENEWED_EVERY = LEASE_SECONDS / 3


class Leader:
    """One loop's part in who leads. Its threads may share it."""

    def __init__(self, database: Database, seconds: float = LEASE_SECONDS) -> None:
        self._database = database
        self._seconds = seconds
        self._owner = str(uuid.uuid4())
        self._turn = threading.Lock()
        self._lease: LockInfo | None = None

    def lead(self) -> bool:
        """Take the lease or renew it; whether this loop leads now. `StateError` if the state is away."""
        with self._turn:
            try:
                if self._lease is not None:
                    lock.renew(self._database, self._lease, self._seconds, LEADER)
                    return True
            except StateError as error:
                self._lease = None
                if error.code != "stale-lease":
                    raise
            with self._database.reading() as connection:  # hinders no writer by looking
                other = lock.holder(connection, table=LEADER)
                # Our own may be there yet, if the connection was lost and not the lease.
                ours = other is None or other.owner == self._owner
                free = ours or (other is not None and other.lapsed(self._database.now(connection)))
            if free:
                with self._database.writing() as connection:
                    self._lease = lock.take(connection, self._owner, lock.RECONCILING, self._seconds, LEADER)
            return self._lease is not None

    @property
    def leads(self) -> bool:
        """Whether it led when it last looked."""
        return self._lease is not None

    def holder(self) -> LockInfo | None:
        """Who leads, as far as the state says."""
        with self._database.reading() as connection:
            return lock.holder(connection, table=LEADER)

    def resign(self) -> None:
        """Let another one lead at once."""
        with self._turn, suppress(StateError):
            if self._lease is not None:
                lock.release(self._database, self._lease, LEADER)
            self._lease = None
