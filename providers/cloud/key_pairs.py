"""The public half of a state's key in a cloud: a key pair in each region, which comes with the first node
there and goes with the last.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, Protocol, TypeVar

from declarative.provider import PermanentError, ProviderError
from providers.cloud.account import Account
from providers.cloud.keys import Keys
from providers.ssh.pair import Login

K = TypeVar("K", bound=Hashable)


class Last(Generic[K]):
    """Of those who are busy at a place: who is the last to leave it, and has to see whether it is empty.

    Not each has: that is a look for every node, and what the place has would come and go beneath the others.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._busy: Counter[K] = Counter()
        self._emptied: set[K] = set()
        """Places of which it has to be seen whether anything is left there."""

    def enter(self, place: K) -> None:
        """Somebody is busy there."""
        with self._turn:
            self._busy[place] += 1

    def emptied(self, place: K) -> None:
        """Something went from there, or was not made."""
        with self._turn:
            self._emptied.add(place)

    def leave(self, place: K) -> bool:
        """Whether it was the last one, and has to look."""
        with self._turn:
            self._busy[place] -= 1
            if self._busy[place] or place not in self._emptied:
                return False
            # Before the look, not after it: who ends a node meanwhile has it looked at again.
            self._emptied.discard(place)
            return True


class Place(Protocol):
    """A region."""

    name: str


R = TypeVar("R", bound=Place)


class Pairs(Keys, ABC, Generic[R]):
    """The key of one state, and its pairs."""

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._there: set[str] = set()
        self._last: Last[str] = Last()

    def bring(self, region: R) -> Login:
        """Have the key, and its pair in a region; `PermanentError` if there is another's pair."""
        with self._turn:
            self._before(region)
            login = self._made()
            if region.name not in self._there:
                self._import(region, login)
                self._there.add(region.name)
            return login

    def _before(self, region: R) -> None:
        """What is to be seen before a key is made."""

    @abstractmethod
    def _import(self, region: R, login: Login) -> None:
        """Have the pair in a region; `PermanentError` as above."""

    def forgotten(self, region: R) -> None:
        """Somebody says that the pair is not there any more."""
        with self._turn:
            self._there.discard(region.name)

    @abstractmethod
    def there(self, region: R) -> bool:
        """Whether a region has the pair."""

    @contextmanager
    def changing(self, region: R, living: Callable[[], bool], *, ending: bool) -> Iterator[None]:
        """While nodes of a region come and go. Who is the last to do so sees whether any is `living`, and
        takes the pair away if none is. Who is `ending` one is told if that should be tried again.
        """
        self._last.enter(region.name)
        try:
            yield
        finally:
            if self._last.leave(region.name):
                # What this is about is done, or was said.
                with suppress(PermanentError if ending else ProviderError):
                    self._leave(region, living)

    def _leave(self, region: R, living: Callable[[], bool]) -> None:
        try:
            if not living():
                self.remove(region)
        except ProviderError:
            self.left(region)
            raise

    def left(self, region: R) -> None:
        """A node of a region went, or was not made."""
        self._last.emptied(region.name)

    def remove(self, region: R) -> None:
        """Take the pair out of a region that has no nodes of the state any more. The file stays. Whoever
        makes a node just now brings it again.
        """
        with self._turn:
            self._there.discard(region.name)
            self._remove(region)

    @abstractmethod
    def _remove(self, region: R) -> None:
        """Delete it, if it is there and ours."""
