"""A state: read by anyone at any time, written by one at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Engine

from declarative.state import Intent, Record, State
from declarative.store import rows
from declarative.store.check import Held
from declarative.store.check import check as contradictions
from declarative.store.database import StateError, damage, open_file, path_of, plain, reading, writing
from declarative.store.lock import LEASE_SECONDS, LockInfo, Renewal, acquire, holder, release, unlock
from declarative.store.tables import FORMAT_VERSION
from declarative.store.writer import Writer

KEPT_OPERATIONS = 5000
"""How much history the journal keeps."""


def open_store(
    url: str,
    *,
    create: bool = True,
    read_only: bool = False,
    root: Path | None = None,
    clock: Callable[[], float] = time.time,
    wait: Callable[[float], None] = time.sleep,
) -> Store:
    """Open the state at `url` (a relative path is one of `root`, else of the current folder).

    Read-only, a state that is not there is an empty one, and nothing is made.
    """
    path = path_of(url, root)
    return Store(
        url, open_file(path, create=create, read_only=read_only), read_only=read_only, clock=clock, wait=wait
    )


class Store:
    """One state. Its threads may share it; forked children may not."""

    def __init__(
        self,
        url: str,
        database: Engine | None,
        *,
        read_only: bool = False,
        clock: Callable[[], float] = time.time,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url
        self._database = database
        self._read_only = read_only
        self._clock = clock
        self._wait = wait

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up all connections."""
        if self._database:
            self._database.dispose()

    def read(self) -> State:
        """Everything that is known, as one consistent snapshot; never waits for a writer."""
        if self._database is None:
            return State()
        with reading(self._database) as connection:
            return rows.load(connection)

    def check(self) -> list[str]:
        """What contradicts itself in what is recorded, in sentences; empty when all is well."""
        if self._database is None:
            return []
        with reading(self._database) as connection:
            found = damage(connection)
            return found or contradictions(rows.load(connection), rows.blocks(connection))

    def pull(self) -> dict[str, Any]:
        """The whole state as JSON-able data."""
        if self._database is None:
            return _data(State(), {})
        with reading(self._database) as connection:
            return _data(rows.load(connection), rows.blocks(connection))

    def _writable(self) -> Engine:
        if self._database is None or self._read_only:
            raise StateError("read-only", "the state was opened for reading only")
        return self._database

    # ------------------------------------------------------------------------------------ the lock

    @contextmanager
    def lock(
        self,
        doing: str,
        timeout: float = 0.0,
        *,
        on_wait: Callable[[LockInfo], None] | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> Iterator[Writer]:
        """Be the one writer. Waits up to `timeout` seconds for another one; `on_wait` hears of each once."""
        database = self._writable()
        lease = acquire(
            database,
            doing,
            timeout,
            clock=self._clock,
            wait=self._wait,
            seconds=lease_seconds,
            on_wait=on_wait,
        )
        writer = Writer(database, lease, self._clock)
        try:
            with Renewal(lambda: writer.renew(lease_seconds), lease_seconds / 3):
                yield writer
        finally:
            # What was done is committed; a lock that cannot be given back lapses by itself.
            with suppress(StateError):
                release(database, lease)
            with suppress(StateError), writing(database) as connection:
                rows.prune(connection, KEPT_OPERATIONS)

    def lock_info(self) -> LockInfo | None:
        """Who holds the lock; None if nobody does, or its holder is gone."""
        if self._database is None:
            return None
        with reading(self._database) as connection:
            now = holder(connection)
        return None if now is None or now.lapsed(self._clock()) else now

    def unlock(self, owner: str | None = None) -> LockInfo | None:
        """Take the lock away, from `owner` alone if given; whose it was. That one writes nothing more."""
        return unlock(self._writable(), owner)


def _data(state: State, held: Held) -> dict[str, Any]:
    nodes = {name: asdict(seen) for name, seen in state.readiness.items()}
    for name, since in state.idle_since.items():
        nodes.setdefault(name, {"state": None, "reason": None, "observed_at": None})["idle_since"] = since
    data = {
        "format_version": FORMAT_VERSION,
        "lineage": state.lineage,
        "serial": state.serial,
        "records": [_record(record) for record in state.records.values()],
        "reserved_blocks": [{"node": n, "block": b, "reservation": who} for (n, b), who in held.items()],
        "ranks": {name: asdict(status) for name, status in state.ranks.items()},
        "nodes": {name: {"idle_since": None, **seen} for name, seen in nodes.items()},
        "generations": {str(address): number for address, number in state.generations.items()},
        "intents": [_intent(intent) for intent in state.intents],
    }
    copied: dict[str, Any] = plain(data)
    return copied


def _record(record: Record) -> dict[str, Any]:
    return {
        "address": str(record.address),
        "backend": record.backend,
        "inputs": record.inputs,
        "outputs": record.outputs,
        "needs": sorted(map(str, record.needs)),
        "generation": record.generation,
    }


def _intent(intent: Intent) -> dict[str, Any]:
    return {
        "id": intent.id,
        "op": intent.op,
        "address": str(intent.address),
        "backend": intent.backend,
        "generation": intent.generation,
        "token": intent.token,
        "inputs": intent.inputs,
        "needs": sorted(map(str, intent.needs)),
    }
