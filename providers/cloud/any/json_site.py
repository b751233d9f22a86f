"""JSON APIs behind libcloud's drivers: libcloud signs and sends requests, and we write and read their
content.

libcloud's own methods leave out fields that we need (tags of disks, the total of a listing), and read an
answer without the requested list as an empty list.
"""

from __future__ import annotations

import re
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from declarative.model.record import struct
from declarative.provider import (
    PermanentError,
    PermanentKind,
    ProviderError,
    TransientError,
    TransientKind,
)
from providers.cloud import rest, settings
from providers.cloud.account import if_there
from providers.cloud.any import labels
from providers.cloud.any.account import Account
from providers.cloud.any.site import Disk, Machine, Site, Size, Wanted, What, Written
from providers.cloud.bad_answers import Pages, value_at
from providers.cloud.connection import Connection, Limiter, limiter
from providers.cloud.faults import Answer, ErrorInfo, error_info

LOOKS = 5
"""How often a listing is restarted if it changed while its pages were read."""


class Rest:
    """Requests to one API. Safe to use from many threads."""

    def __init__(
        self,
        account: Account,
        make: Callable[[str], Any],
        total: Callable[[Mapping[str, Any]], object],
        *,
        rate: float | None = None,
        variable: str = "",
        secret: str | None = None,
        bearer: bool = True,
        pace: Limiter | None = None,
        read: Callable[[Answer], ErrorInfo | None] = error_info,
    ) -> None:
        """`make` makes a driver for a token. `endpoint` and the timeout are set afterwards, since not all
        constructors take them. `total`, `rate` and `variable`: see `JsonSite`.

        `secret` is sent as a bearer token, for a cloud without a driver of libcloud's, which would send the
        one of `credentials`; if not `bearer`, `make` knows what to do with it. `pace` replaces the usual
        limiter. `read` is for errors with codes.
        """
        self._total = total
        config, timeout = account.config, account.timeout
        if variable and not config.credentials:
            config = replace(config, credentials={"key": variable})
        key = settings.secrets(config, ("key",))["key"] if secret is None else secret
        account.scrub.learn([key])
        at = settings.host(config.endpoint) if config.endpoint else None
        self._name = account.CLOUD

        def driver() -> Any:
            found = make(key)
            link = found.connection
            link.timeout = timeout
            if at:
                link.host, link.port, link.secure = at.name, at.port, at.secure
            link.connect()
            return found

        pace = pace or limiter(config.driver, config.backend, config.endpoint, rate=rate)
        self._rest = rest.Rest(
            Connection(driver, pace, account.scrub, read, fence=config.fence, answered=config.answered),
            None if secret is None or not bearer else lambda: key,
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
        """The object in the answer; empty for 204."""
        return self._rest.ask(f"{method} {path}", method, path, about=about, params=params, body=body)

    def elements(self, path: str) -> list[Mapping[str, Any]]:
        """The objects in an answer that is a list."""
        found = self._rest.answer(f"GET {path}", "GET", path)
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise self.bad_answer(path, "is no list of objects")
        return found

    def one(self, found: Mapping[str, Any], name: str, path: str) -> Mapping[str, Any]:
        """An element of an answer. If it is missing, the result is unknown: a fault."""
        inner = found.get(name)
        if not isinstance(inner, dict):
            raise self.bad_answer(path, f"has no `{name}`")
        return inner

    def many(self, found: Mapping[str, Any], name: str, path: str) -> tuple[list[Mapping[str, Any]], int]:
        """A list in an answer, and the total on all pages."""
        items, total = found.get(name), self._total(found)
        if not isinstance(items, list) or not isinstance(total, int):
            raise self.bad_answer(path, f"has no list of `{name}`, or does not say how many there are")
        return items, total

    def all(
        self,
        path: str,
        name: str,
        following: Callable[[Mapping[str, Any]], dict[str, Any] | None],
        *,
        shifts: bool = False,
        **params: Any,
    ) -> list[Mapping[str, Any]]:
        """The items of all pages. `following` returns the parameters of the page after an answer.

        If an item disappears meanwhile, later ones move to a page that was read already. So the totals of all
        pages must match the number of items found; otherwise the listing is restarted. `shifts`: see
        `JsonSite`.
        """
        before: set[str] | None = None
        for _ in range(LOOKS):
            out: dict[str, Mapping[str, Any]] = {}
            more: dict[str, Any] | None = {}
            totals: set[int] = set()
            read, several = Pages(), False
            while more is not None:
                found = self.ask("GET", path, **{**params, **more})
                items, total = self.many(found, name, path)
                totals.add(total)
                out |= {str(_key(item)): item for item in items}
                after = following(found)
                if how := read.fault(str(after)) if after is not None else None:
                    raise self.bad_answer(path, how)
                more, several = after, several or after is not None
            same, before = before == set(out), set(out)
            if totals == {len(out)} and (same or not (shifts and several)):
                return list(out.values())
        raise self.bad_answer(path, f"has `{name}` that change while they are read")

    def bad_answer(self, path: str, what: str) -> TransientError:
        """The fault for an answer that does not fit the question."""
        return rest.bad_answer(f"{self._name}, {path}", what)

    def refused(self, summary: str, about: str) -> PermanentError:
        """The fault for something that this cloud cannot do."""
        return PermanentError(PermanentKind.INVALID, f"{self._name}: {summary}", about=about)


def _key(item: Mapping[str, Any]) -> object:
    return item.get("id", item.get("slug"))


class Ring:
    """The public key of a state's nodes, imported once into an account. Safe to use from many threads."""

    def __init__(
        self,
        rest: Rest,
        path: str,
        word: str,
        have: Callable[[], list[Mapping[str, Any]]],
        called: str = "id",
    ) -> None:
        """`have` lists the account's keys; `word` is the field with their public half, `called` the one by
        which a launch names a key.
        """
        self._rest, self._path, self._word, self._have, self._called = rest, path, word, have, called
        self._turn = threading.Lock()
        self._ids: dict[str, str] = {}

    def ensure(self, name: str, public: str) -> str:
        """Import the key if needed; returns what a launch calls it."""
        with self._turn:
            if public not in self._ids:
                self._ids[public] = self._find(public) or self._import(name, public)
            return self._ids[public]

    def _find(self, public: str) -> str | None:
        mine = public.split()[:2]
        found = (key for key in self._have() if str(key.get(self._word) or "").split()[:2] == mine)
        return next((str(key[self._called]) for key in found), None)

    def _import(self, name: str, public: str) -> str:
        try:
            self._rest.ask("POST", self._path, {"name": name, self._word: f"{public} {name}"})
        except PermanentError as error:
            made = None if error.kind is PermanentKind.AUTH else self._find(public)
            if made is None:
                raise
            return made  # another process was first
        made = self._find(public)
        if made is None:
            raise TransientError(TransientKind.BUSY, "the nodes' key is not listed yet", about=self._path)
        return made

    def drop(self, name: str) -> None:
        """Delete all keys of this name."""
        with self._turn:
            self._ids.clear()
            for key in self._have():
                if key.get("name") == name:
                    with suppress(PermanentError):
                        self._rest.ask("DELETE", f"{self._path}/{key['id']}")

    def stale(self, error: PermanentError) -> ProviderError:
        """The fault of a create; it can be retried if the key was deleted with the last node meanwhile."""
        if error.kind is not PermanentKind.INVALID or not re.search(
            r"\bkeys?\b", error.summary, re.IGNORECASE
        ):
            return error
        self.forget()
        return TransientError(TransientKind.BUSY, error.summary, about=error.about)

    def forget(self) -> None:
        """Look again before the next launch: the key may have been deleted."""
        with self._turn:
            self._ids.clear()


@struct(frozen=True, slots=True)
class Listing:
    """The place of one kind of things in an API: `droplets` at `/v2/droplets`, each of them `a droplet`."""

    name: str
    called: str
    at: str = ""
    """Another path of all things."""

    @property
    def path(self) -> str:
        """The path of all things."""
        return self.at or f"/v2/{self.name}"

    @property
    def one(self) -> str:
        """The key of a single thing in an answer."""
        return self.called.partition(" ")[2]


class JsonSite(Site):
    """A cloud with a JSON API that lists sizes, machines and disks."""

    SIZES: Listing
    MACHINES: Listing
    DISKS: Listing
    MACHINE_ID: re.Pattern[str]
    """The form of a machine's id."""

    rate: float | None = None
    """How many requests a second the API allows in the long run, if it is known."""
    shifts: bool = False
    """Whether a page begins after a number of things, whatever they are by then. If a thing goes and another
    comes while pages are read, the total stays and one thing is missed: a listing of several pages is then
    read until it is twice the same.
    """
    variable: str = ""
    """The environment variable with the key, for a backend that names none under `credentials`."""

    def __init__(self, account: Account, make: Callable[[str], Any], keys: str = "", word: str = "") -> None:
        """`make`: see `Rest`. `keys`: the path of the account's public keys, whose field is `word`; without
        it, `launch` gets the key itself.
        """
        self._keys = keys
        self._account = account
        read = self.read_error
        self._rest = Rest(account, make, self.total, rate=self.rate, variable=self.variable, read=read)
        self._ring = Ring(self._rest, keys, word, lambda: self._all(keys, "ssh_keys"))

    @staticmethod
    def read_error(answer: Answer) -> ErrorInfo | None:
        """What an answer that is an error means. A cloud with codes of its own looks at them."""
        return error_info(answer)

    @staticmethod
    def total(found: Mapping[str, Any]) -> object:
        """The total of a listing over all pages, from one of them."""
        return value_at(found, "meta", "total")

    @staticmethod
    @abstractmethod
    def following(found: Mapping[str, Any]) -> dict[str, Any] | None:
        """The parameters of the page after an answer; None if it was the last."""

    def _all(self, path: str, name: str, **params: Any) -> list[Mapping[str, Any]]:
        return self._rest.all(path, name, self.following, shifts=self.shifts, **params)

    def _listed(self, listing: Listing, **params: Any) -> list[Mapping[str, Any]]:
        return self._all(listing.path, listing.name, **params)

    def _unreadable(self, listing: Listing) -> TransientError:
        """The fault for a listing with an element of the wrong form."""
        return self._rest.bad_answer(listing.path, f"has {listing.called} that cannot be read")

    def sizes(self) -> Sequence[Size]:
        found = self._listed(self.SIZES)
        try:
            return [size for item in found if (size := self._size(item))]
        except (KeyError, TypeError, ValueError):
            raise self._unreadable(self.SIZES) from None

    @staticmethod
    @abstractmethod
    def _size(item: Mapping[str, Any]) -> Size | None:
        """A size from a listing; None if unusable. `KeyError` and similar if it cannot be read."""

    def machines(self) -> Sequence[Machine]:
        return [m for item in self._listed(self.MACHINES, **self._narrowed()) if (m := self._machine(item))]

    def _narrowed(self) -> dict[str, Any]:
        """Parameters that limit a listing of machines to the owner's."""
        return {}

    @abstractmethod
    def _machine(self, item: Mapping[str, Any]) -> Machine | None:
        """A machine from a listing; None if it is not the owner's."""

    def _launched(self, wanted: Wanted, body: Mapping[str, Any]) -> Machine:
        """Create a machine, and read the answer."""
        path = self.MACHINES.path
        try:
            found = self._rest.ask("POST", path, body, about=wanted.region)
        except PermanentError as error:
            raise self._ring.stale(error) from None
        machine = self._machine(self._rest.one(found, self.MACHINES.one, path))
        if machine is None:
            raise self._rest.bad_answer(path, f"has {self.MACHINES.called} without its tags")
        return machine

    def end(self, machine: Machine) -> None:
        self._rest.ask("DELETE", f"{self.MACHINES.path}/{machine.id}", about=machine.id)

    def disks(self) -> Sequence[Disk]:
        return [d for item in self._listed(self.DISKS) if (d := self._disk(item))]

    @abstractmethod
    def _disk(self, item: Mapping[str, Any]) -> Disk | None:
        """A disk from a listing; None if it is not the owner's."""

    def _made(self, wanted: Wanted, body: Mapping[str, Any], mark: str) -> Disk:
        """Create a disk with this mark, and read the answer."""
        path = self.DISKS.path
        found = self._rest.ask("POST", path, body, about=wanted.region)
        disk = self._disk(self._rest.one(found, self.DISKS.one, path))
        if disk is None:
            raise self._rest.bad_answer(path, f"has {self.DISKS.called} without its {mark}")
        return disk

    def remove(self, disk: Disk) -> None:
        self._rest.ask("DELETE", f"{self.DISKS.path}/{disk.id}", about=disk.id)

    def ended(self, kind: What, made: str) -> str | None:
        """If nothing here is the owner's, it may be the wrong account."""
        known = kind == "machine" and self.MACHINE_ID.fullmatch(made)
        if not known or self._account.owner not in self.owners(kind).values():
            return None
        found = if_there(self._rest.ask, "GET", f"{self.MACHINES.path}/{made}", about=made)
        return f"{self._account.CLOUD} has no {self.MACHINES.one} {made} any more" if found is None else None

    def add_key(self, name: str, public: str) -> str | None:
        return self._ring.ensure(name, public) if self._keys else public

    def delete_key(self, name: str, public: str) -> None:
        if self._keys:
            self._ring.drop(name)


_LOCKS = tuple(threading.Lock() for _ in range(64))


class LabelledSite(JsonSite):
    """A cloud that takes all labels of a machine at once (see `labels`), so each machine has one writer at a
    time.
    """

    LABELS: str
    """The field with the labels of a machine."""
    RELABEL: tuple[str, str] = "PATCH", ""
    """The method that writes them, and what follows the machine's path."""

    def write(self, thing: Machine | Disk, texts: dict[str, str | None]) -> None:
        def change(tags: list[str]) -> list[str]:
            have = labels.read(tags)
            for key, text in texts.items():
                tags = [tag for tag in tags if tag not in have.tags.get(key, ())]
                if text is not None:
                    tags += labels.pack(thing.written.token, key, text, 1)
            return tags

        self._change(thing.id, change)

    def retag(self, thing: Machine | Disk, before: dict[str, str], after: dict[str, str]) -> None:
        old, new = labels.of_users(before), labels.of_users(after)
        self._change(thing.id, lambda tags: [*(t for t in tags if t not in old or t in new), *new])

    def restore_mark(self, kind: What, made: str, mark: Written, tags: Mapping[str, str]) -> None:
        """On a machine."""
        new = [*labels.tags(mark), *labels.of_users(tags)]
        self._change(made, lambda have: [*(t for t in have if not t.startswith(f"{labels.OURS}:")), *new])

    def _change(self, made: str, change: Callable[[list[str]], list[str]]) -> None:
        path, (method, below) = f"{self.MACHINES.path}/{made}", self.RELABEL
        with _LOCKS[hash(made) % len(_LOCKS)]:
            item = self._rest.one(self._rest.ask("GET", path, about=made), self.MACHINES.one, path)
            if not isinstance(item.get(self.LABELS) or [], list):
                raise self._unreadable(self.MACHINES)
            have = [str(tag) for tag in item.get(self.LABELS) or []]
            tags = list(dict.fromkeys(change(have)))
            if tags != have:
                self._rest.ask(method, path + below, {self.LABELS: tags}, about=made)
