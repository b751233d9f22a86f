"""APIs of JSON behind a driver of libcloud's: it signs and carries requests, what is in them is ours.

Its own methods leave out what is needed here (tags of disks, how many there are in all), and read an answer
without the list that was asked for as an empty list.
"""

from __future__ import annotations

import re
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from declarative.model.record import dataclass
from declarative.provider import (
    PermanentError,
    PermanentKind,
    ProviderError,
    TransientError,
    TransientKind,
)
from providers.cloud import rest, settings
from providers.cloud.account import if_there
from providers.cloud.any.account import Account
from providers.cloud.any.site import Disk, Machine, Site, Size, Wanted, What
from providers.cloud.bad_answers import Pages, value_at
from providers.cloud.connection import Connection, limiter
from providers.cloud.faults import error_info

LOOKS = 5
"""How often a listing that changed while its pages were read is started anew."""


class Rest:
    """Requests to one API. Safe to use from many threads."""

    def __init__(
        self, account: Account, make: Callable[[str], Any], total: Callable[[Mapping[str, Any]], object]
    ) -> None:
        """`make` gives a driver for a token. `endpoint` and the timeout are set afterwards: not all
        constructors take them. `total`: see `JsonSite`.
        """
        self._total = total
        config, timeout = account.config, account.timeout
        values = settings.secrets(config, ("key",))
        account.scrub.learn(values.values())
        at = settings.host(config.endpoint) if config.endpoint else None
        self._name = account.CLOUD

        def driver() -> Any:
            found = make(values["key"])
            link = found.connection
            link.timeout = timeout
            if at:
                link.host, link.port, link.secure = at.name, at.port, at.secure
            link.connect()
            return found

        key = (config.driver, config.backend, config.endpoint)
        self._rest = rest.Rest(
            Connection(driver, limiter(*key), account.scrub, error_info, fence=config.fence), None
        )

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        about: str | None = None,
        **params: Any,
    ) -> Mapping[str, Any]:
        """The object that is answered; an empty one where nothing is (204)."""
        return self._rest.ask(f"{method} {path}", method, path, about=about, params=params, body=body)

    def one(self, found: Mapping[str, Any], name: str, path: str) -> Mapping[str, Any]:
        """An element of an answer. One that is missing is a fault: nobody knows what was done."""
        inner = found.get(name)
        if not isinstance(inner, dict):
            raise self.strange(path, f"has no `{name}`")
        return inner

    def many(self, found: Mapping[str, Any], name: str, path: str) -> tuple[list[Mapping[str, Any]], int]:
        """A list of an answer, and how many there are on all pages."""
        items, total = found.get(name), self._total(found)
        if not isinstance(items, list) or not isinstance(total, int):
            raise self.strange(path, f"has no list of `{name}`, or does not say how many there are")
        return items, total

    def all(
        self,
        path: str,
        name: str,
        following: Callable[[Mapping[str, Any]], dict[str, Any] | None],
        **params: Any,
    ) -> list[Mapping[str, Any]]:
        """What is on all pages; `following` gives the parameters of the page after an answer.

        Something that goes while pages are read moves what is after it to a page that was read already. So
        all pages have to say that there are as many as were found, or it is started anew.
        """
        for _ in range(LOOKS):
            out: dict[str, Mapping[str, Any]] = {}
            more: dict[str, Any] | None = {}
            totals: set[int] = set()
            read = Pages()
            while more is not None:
                found = self.ask("GET", path, **{**params, **more})
                items, total = self.many(found, name, path)
                totals.add(total)
                out |= {str(_key(item)): item for item in items}
                after = following(found)
                if how := read.fault(str(after)) if after is not None else None:
                    raise self.strange(path, how)
                more = after
            if totals == {len(out)}:
                return list(out.values())
        raise self.strange(path, f"has `{name}` that change while they are read")

    def strange(self, path: str, what: str) -> TransientError:
        """The fault of an answer that does not answer."""
        return rest.strange(f"{self._name}, {path}", what)

    def refused(self, summary: str, about: str) -> PermanentError:
        """What cannot be asked of this cloud."""
        return PermanentError(PermanentKind.INVALID, f"{self._name}: {summary}", about=about)


def _key(item: Mapping[str, Any]) -> object:
    return item.get("id", item.get("slug"))


class Ring:
    """The public key of a state's nodes in an account, imported once. Safe to use from many threads."""

    def __init__(self, rest: Rest, path: str, word: str, have: Callable[[], list[Mapping[str, Any]]]) -> None:
        """`have` lists the account's keys, whose public half is under `word`."""
        self._rest, self._path, self._word, self._have = rest, path, word, have
        self._turn = threading.Lock()
        self._ids: dict[str, str] = {}

    def bring(self, name: str, public: str) -> str:
        """Its id in the account."""
        with self._turn:
            if public not in self._ids:
                self._ids[public] = self._find(public) or self._import(name, public)
            return self._ids[public]

    def _find(self, public: str) -> str | None:
        mine = public.split()[:2]
        found = (key for key in self._have() if str(key.get(self._word) or "").split()[:2] == mine)
        return next((str(key["id"]) for key in found), None)

    def _import(self, name: str, public: str) -> str:
        try:
            self._rest.ask("POST", self._path, {"name": name, self._word: f"{public} {name}"})
        except PermanentError as error:
            made = None if error.kind is PermanentKind.AUTH else self._find(public)
            if made is None:
                raise
            return made  # somebody else was first
        made = self._find(public)
        if made is None:
            raise TransientError(TransientKind.BUSY, "the nodes' key is not listed yet", about=self._path)
        return made

    def drop(self, name: str) -> None:
        """Take the keys of this name away."""
        with self._turn:
            self._ids.clear()
            for key in self._have():
                if key.get("name") == name:
                    with suppress(PermanentError):
                        self._rest.ask("DELETE", f"{self._path}/{key['id']}")

    def stale(self, error: PermanentError) -> ProviderError:
        """The fault of a create, which passes if the key went with the last node meanwhile."""
        if error.kind is not PermanentKind.INVALID or not re.search(
            r"\bkeys?\b", error.summary, re.IGNORECASE
        ):
            return error
        with self._turn:
            self._ids.clear()
        return TransientError(TransientKind.BUSY, error.summary, about=error.about)


@dataclass(frozen=True, slots=True)
class Listing:
    """Where an API has things of one kind: `droplets` at `/v2/droplets`, each of them `a droplet`."""

    name: str
    called: str

    @property
    def path(self) -> str:
        """Of all of them."""
        return f"/v2/{self.name}"

    @property
    def one(self) -> str:
        """The key of one of them in an answer."""
        return self.called.partition(" ")[2]


class JsonSite(Site):
    """A cloud that is asked in this way, and lists sizes, machines and disks."""

    SIZES: Listing
    MACHINES: Listing
    DISKS: Listing
    MACHINE_ID: re.Pattern[str]
    """What the id of a machine looks like."""

    def __init__(self, account: Account, make: Callable[[str], Any], keys: str = "", word: str = "") -> None:
        """`make`: see `Rest`. `keys`: the path of the account's public keys, which are under `word`; without
        it, `launch` is given the key itself.
        """
        self._keys = keys
        self._account = account
        self._rest = Rest(account, make, self.total)
        self._ring = Ring(self._rest, keys, word, lambda: self._all(keys, "ssh_keys"))

    @staticmethod
    def total(found: Mapping[str, Any]) -> object:
        """How many things a listing has on all its pages, by one of them."""
        return value_at(found, "meta", "total")

    @staticmethod
    @abstractmethod
    def following(found: Mapping[str, Any]) -> dict[str, Any] | None:
        """The parameters of the page after an answer; None if it was the last."""

    def _all(self, path: str, name: str, **params: Any) -> list[Mapping[str, Any]]:
        return self._rest.all(path, name, self.following, **params)

    def _listed(self, listing: Listing, **params: Any) -> list[Mapping[str, Any]]:
        return self._all(listing.path, listing.name, **params)

    def _unreadable(self, listing: Listing) -> TransientError:
        """The fault of a listing with an element that is not as it should be."""
        return self._rest.strange(listing.path, f"has {listing.called} that cannot be read")

    def sizes(self) -> Sequence[Size]:
        """See `Site`."""
        found = self._listed(self.SIZES)
        try:
            return [size for item in found if (size := self._size(item))]
        except (KeyError, TypeError, ValueError):
            raise self._unreadable(self.SIZES) from None

    @staticmethod
    @abstractmethod
    def _size(item: Mapping[str, Any]) -> Size | None:
        """One of a listing, None if it cannot be used; `KeyError` and the like for what cannot be read."""

    def machines(self) -> Sequence[Machine]:
        """See `Site`."""
        return [m for item in self._listed(self.MACHINES, **self._narrowed()) if (m := self._machine(item))]

    def _narrowed(self) -> dict[str, Any]:
        """What narrows a listing of machines to the owner's."""
        return {}

    @abstractmethod
    def _machine(self, item: Mapping[str, Any]) -> Machine | None:
        """One of a listing; None if it is not the owner's."""

    def _launched(self, wanted: Wanted, body: Mapping[str, Any]) -> Machine:
        """Create a machine, and read the answer."""
        path = self.MACHINES.path
        try:
            found = self._rest.ask("POST", path, body, about=wanted.region)
        except PermanentError as error:
            raise self._ring.stale(error) from None
        machine = self._machine(self._rest.one(found, self.MACHINES.one, path))
        if machine is None:
            raise self._rest.strange(path, f"has {self.MACHINES.called} without its tags")
        return machine

    def end(self, machine: Machine) -> None:
        """See `Site`."""
        self._rest.ask("DELETE", f"{self.MACHINES.path}/{machine.id}", about=machine.id)

    def disks(self) -> Sequence[Disk]:
        """See `Site`."""
        return [d for item in self._listed(self.DISKS) if (d := self._disk(item))]

    @abstractmethod
    def _disk(self, item: Mapping[str, Any]) -> Disk | None:
        """One of a listing; None if it is not the owner's."""

    def _made(self, wanted: Wanted, body: Mapping[str, Any], mark: str) -> Disk:
        """Create a disk, and read the answer; `mark` is what it carries."""
        path = self.DISKS.path
        found = self._rest.ask("POST", path, body, about=wanted.region)
        disk = self._disk(self._rest.one(found, self.DISKS.one, path))
        if disk is None:
            raise self._rest.strange(path, f"has {self.DISKS.called} without its {mark}")
        return disk

    def remove(self, disk: Disk) -> None:
        """See `Site`."""
        self._rest.ask("DELETE", f"{self.DISKS.path}/{disk.id}", about=disk.id)

    def ended(self, kind: What, made: str) -> str | None:
        """See `Site`. Where nothing is the owner's, the account may be another one."""
        known = kind == "machine" and self.MACHINE_ID.fullmatch(made)
        if not known or self._account.owner not in self.owners(kind).values():
            return None
        found = if_there(self._rest.ask, "GET", f"{self.MACHINES.path}/{made}", about=made)
        return f"{self._account.CLOUD} has no {self.MACHINES.one} {made} any more" if found is None else None

    def bring_key(self, name: str, public: str) -> str | None:
        """See `Site`."""
        return self._ring.bring(name, public) if self._keys else public

    def drop_key(self, name: str, public: str) -> None:
        """See `Site`."""
        if self._keys:
            self._ring.drop(name)
