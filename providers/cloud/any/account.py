"""One use of a cloud without client tokens: its sites, and how something is made once there.

Three ways, the best that the cloud has. A name that it takes once (`Site.unique`) is a function of the token:
the second create is refused, and what has the name is adopted if it carries the token. Elsewhere one looks
before each create; after a create whose answer was lost not before `Site.settle` seconds have passed, so that
what it made is listed by then. If one comes later still, it is seen while the second one starts: the oldest
is kept, and the others are deleted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from declarative.model.state import Address
from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import account, regions
from providers.cloud.account import look_up
from providers.cloud.any.site import Disk, Machine, Site, Written
from providers.cloud.bad_answers import reading
from providers.cloud.shared_looks import Shared

T = TypeVar("T", Machine, Disk)
U = TypeVar("U")

_TURNS = tuple(threading.Lock() for _ in range(64))
"""One create at a time for a token: whoever tries again may do so while the last try is under way."""
_MAYBE: dict[tuple[str, str], float] = {}
"""Owner and token of creates that may have been carried out, and when: by the monotonic clock."""


class Account(account.Account):
    """The sites of a backend. Those of regions come to life when they are first asked."""

    def __init__(
        self,
        config: Config,
        options: dict[str, type | tuple[type, ...]],
        open_site: Callable[[Account, str], Site],
        *,
        cloud: str,
        regional: bool = False,
    ) -> None:
        """`open_site` opens the API of a region, which is the same one for all unless they are `regional`."""
        super().__init__(config, options)
        self.CLOUD = cloud
        self._open = open_site
        self._regional = regional
        self._sites: dict[str, At] = {}
        self._turn = threading.Lock()

    def at(self, region: object) -> At:
        """The site of a region. The credentials are looked up with the first one."""
        name = regions.known(self, region)
        key = name if self._regional else ""
        with self._turn:
            if key not in self._sites:
                self._sites[key] = At(self._open(self, name))
            return self._sites[key]

    def regions(self) -> tuple[str, ...]:
        """Where something of ours may be; `PermanentError` if none is named."""
        return tuple(regions.named(self, f"write `regions:` with those of {self.CLOUD} that you use"))

    def each(self, look: Callable[[At], Sequence[U]]) -> list[U]:
        """What is found at all sites, side by side; one that cannot be asked is an error."""
        return regions.side_by_side(list(dict.fromkeys(map(self.at, self.regions()))), look)

    # --------------------------------------------------------------------------------------- once

    def only(
        self,
        kind: Literal["machine", "disk"],
        at: At,
        mark: Written,
        make: Callable[[], T],
        look: Callable[[], Sequence[T]],
    ) -> T:
        """What a create with a token makes, or what an earlier try made; `look` finds those, oldest first."""
        key = (mark.owner, mark.token)
        with _TURNS[hash(key) % len(_TURNS)]:
            if kind not in at.site.unique:
                self._settle(at.site, key)
            found = look_up(look) if key in _MAYBE else look()
            if found:
                _MAYBE.pop(key, None)
                return found[0]
            try:
                with reading():
                    made = make()
            except TransientError as error:
                if error.kind is not TransientKind.NOT_SENT:
                    _MAYBE[key] = time.monotonic()
                raise
            except PermanentError as error:
                # A name that is taken may be taken by an earlier try.
                again = look_up(look) if error.kind is PermanentKind.CONFLICT or key in _MAYBE else ()
                if not again:
                    raise
                return again[0]
            if not same(made, mark):
                _MAYBE[key] = time.monotonic()
                summary = f"{self.CLOUD} answered with {made.id}, which is not what was asked for"
                raise TransientError(TransientKind.AMBIGUOUS, summary, about=made.id)
            _MAYBE.pop(key, None)
            return made

    def _settle(self, site: Site, key: tuple[str, str]) -> None:
        if key in _MAYBE:
            time.sleep(max(0.0, _MAYBE[key] + site.settle - time.monotonic()))


class At:
    """A site, and its listings."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._machines: Shared[Machine] = Shared(site.machines)
        self._disks: Shared[Disk] = Shared(site.disks)

    def machines(self) -> list[Machine]:
        """All that are ours and alive, the oldest first."""
        return sorted((m for m in self._machines.fresh() if not m.gone), key=_age)

    def disks(self) -> list[Disk]:
        """All that are ours, the oldest first."""
        return sorted(self._disks.fresh(), key=_age) if self.site.volumes else []


def same(thing: Machine | Disk, mark: Written) -> bool:
    """Whether a thing is what the create with this mark makes."""
    have = thing.written
    return (have.owner, have.token, have.address) == (mark.owner, mark.token, mark.address)


def first_of_each(things: Sequence[T]) -> list[T]:
    """Without those that were made twice, of which the oldest stays; `things` are sorted by age."""
    out: dict[tuple[Address, str], T] = {}
    for thing in things:
        out.setdefault((thing.written.address, thing.written.token), thing)
    return list(out.values())


def _age(thing: Machine | Disk) -> tuple[str, str]:
    return thing.made_at, thing.id
