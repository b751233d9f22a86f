"""Clouds whose regions are asked one by one: where something of ours may be, and who is asked about what."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from declarative.model.state import Record
from declarative.provider import Config, PermanentError, PermanentKind
from providers.cloud import account
from providers.cloud.settings import write
from providers.cloud.shared_looks import asking

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")


def side_by_side(places: Sequence[P], look: Callable[[P], Sequence[T]]) -> list[T]:
    """What is found at all places; one that cannot be asked is an error."""
    if len(places) == 1:
        return list(look(places[0]))
    with asking(min(16, len(places) or 1), "regions") as pool:
        return [found for part in pool.map(look, places) for found in part]


def named(account: account.Account, hint: str | None = None) -> list[str]:
    """The regions where something of ours may be; `PermanentError` if none is named. `hint` is for drivers of
    which `settings.NEEDED` knows nothing.
    """
    names = list(dict.fromkeys((*account.config.regions, *account.config.elsewhere)))
    if not names:
        summary = f"backend {account.config.backend} names no regions"
        hint = write(account.config, "regions") or hint
        raise PermanentError(PermanentKind.INVALID, summary, about="regions", hint=hint)
    return names


def known(account: account.Account, name: object) -> str:
    """The name of the region that something is about; `PermanentError` if nobody says it."""
    if not isinstance(name, str) or not name:
        summary = f"backend {account.config.backend}: it is not said in which region"
        raise PermanentError(PermanentKind.INVALID, summary, about="region")
    return name


class Account(account.Account, ABC, Generic[R]):
    """The regions of a backend, of type `R`. They come to life when they are first asked."""

    def __init__(self, config: Config, options: Mapping[str, type | tuple[type, ...]]) -> None:
        """See `account.Account`."""
        super().__init__(config, options)
        self._made: dict[str, R] = {}
        self._turn = threading.Lock()

    @abstractmethod
    def make(self, name: str) -> R:
        """A region. The credentials are looked up with the first one."""

    def region(self, name: object) -> R:
        """One region; `PermanentError` if nobody says which."""
        key = known(self, name)
        with self._turn:
            if key not in self._made:
                self._made[key] = self.make(key)
            return self._made[key]

    def regions(self) -> list[R]:
        """All regions where something of ours may be."""
        return [self.region(name) for name in named(self)]

    def each(self, look: Callable[[R], Sequence[T]]) -> list[T]:
        """What is found in all regions, side by side; one that cannot be asked is an error."""
        return side_by_side(self.regions(), look)

    def by_region(self, records: Iterable[Record]) -> list[tuple[R, list[Record]]]:
        """Records by the region where they are, for those that say so."""
        found: dict[str, list[Record]] = {}
        for record in records:
            name = record.outputs.get("region") or getattr(record.typed, "region", None)
            if name:
                found.setdefault(str(name), []).append(record)
        return [(self.region(name), found[name]) for name in sorted(found)]
