"""One account of a cloud without client tokens: its sites, and how each thing is made only once.

There are three ways, best first. If the cloud accepts a name only once (`Site.unique`), the name is a
function of the token: a second create is refused, and the thing of that name is adopted if it carries the
token. Otherwise each create is preceded by a look; if the answer to an earlier create was lost, the look
waits `Site.settle` seconds, so that a thing it made is listed by then. A thing that appears even later is
noticed while the second one starts: the oldest is kept, and the others are deleted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from declarative.model.state import ANOTHERS, TAGS, Address, Record
from declarative.provider import (
    Config,
    Ended,
    PermanentError,
    PermanentKind,
    TransientError,
    TransientKind,
)
from providers.cloud import account, marks
from providers.cloud.account import Tagged, look_up
from providers.cloud.any.site import IS, TAKEN, Disk, Machine, Site, What, Written
from providers.cloud.bad_answers import reading
from providers.cloud.keys import USER, Keys
from providers.cloud.marks import Mark
from providers.cloud.shared_looks import Shared
from providers.ownership import key_of

T = TypeVar("T", Machine, Disk)
U = TypeVar("U")

_LOCKS = tuple(threading.Lock() for _ in range(64))
"""One create at a time per token: a retry may start while the last try still runs."""
_UNCERTAIN: dict[tuple[str, str], float] = {}
"""Owner and token of creates that may have succeeded, and when: by the monotonic clock."""


class Account(account.Account):
    """The sites of a backend. A region's site is opened when first used."""

    def __init__(
        self,
        config: Config,
        options: dict[str, type | tuple[type, ...]],
        open_site: Callable[[Account, str], Site],
        *,
        cloud: str,
        regional: bool = False,
    ) -> None:
        """`open_site` opens a region's API; if not `regional`, one API serves all regions."""
        super().__init__(config, options)
        self.CLOUD = cloud
        self.keys = Keys(self)
        self._open = open_site
        self._regional = regional
        self._sites: dict[str, At] = {}
        self._turn = threading.Lock()

    def at(self, region: object) -> At:
        """The site of a region. The credentials are read with the first one."""
        name = account.region_name(self, region)
        key = name if self._regional else ""
        with self._turn:
            if key not in self._sites:
                self._sites[key] = At(self, self._open(self, name))
            return self._sites[key]

    def regions(self) -> tuple[str, ...]:
        """The regions where things of ours may be; `PermanentError` if none is named."""
        return tuple(account.region_names(self, f"write `regions:` with those of {self.CLOUD} that you use"))

    def each(self, look: Callable[[At], Sequence[U]]) -> list[U]:
        """The things that `look` finds at all sites, in parallel; a site that cannot be asked is an error."""
        return account.side_by_side(list(dict.fromkeys(map(self.at, self.regions()))), look)

    # -------------------------------------------------------------------------------------- marks

    def read(self, thing: Tagged) -> Mark:
        """Some clouds keep only a name."""
        assert isinstance(thing, Machine | Disk)
        have = thing.written
        inputs, known = have.inputs or {}, have.inputs is not None
        return Mark(owner=have.owner, address=have.address, token=have.token, inputs=inputs, known=known)

    def changed_tags(self, tags: Mapping[str, str], made: Mapping[str, Any]) -> dict[str, Any]:
        """The user's tags are not compared."""
        owner = tags.get(marks.OWNER)
        if owner is None:
            return {TAGS: {}}
        return {} if owner == self.owner else {ANOTHERS: owner}

    def completed(self, site: Site, machine: Machine) -> Machine:
        """The machine with what its cloud cannot keep: login user, host key, and whether it was
        ready once.
        """
        have, texts = machine.written, machine.written.texts
        if "machine" not in site.keeps and self.note(machine.id).exists():
            texts = {**texts, TAKEN: "yes"}
        return replace(machine, written=replace(have, own=have.own or self._access(have.token), texts=texts))

    def _access(self, token: str) -> dict[str, str]:
        """The login user of a machine, and its host key, computed anew; without our key it is unknown."""
        user = self.config.ssh_user or USER
        try:
            return {"user": user, "host_key": self.keys.host_key(token).public}
        except PermanentError:
            return {"user": user}

    def note(self, made: str) -> Path:
        """The file that notes a machine's first readiness, for a cloud that can keep nothing. Another
        computer finds out by itself.
        """
        return self.config.project_dir / ".fleetform" / "taken" / key_of(f"{self.owner}\0{made}")

    # --------------------------------------------------------------------------------------- once

    def create_once(
        self,
        kind: What,
        at: At,
        mark: Mark,
        make: Callable[[], T],
        look: Callable[[], Sequence[T]],
    ) -> T:
        """The thing of a create with a token, or of an earlier try; `look` finds those, oldest first."""
        key = (mark.owner, mark.token)
        with _LOCKS[hash(key) % len(_LOCKS)]:
            if kind not in at.site.unique:
                self._settle(at.site, key)
            found = look_up(look) if key in _UNCERTAIN else look()
            if found:
                _UNCERTAIN.pop(key, None)
                return found[0]
            return self._made(key, mark, make, look)

    def _made(
        self, key: tuple[str, str], mark: Mark, make: Callable[[], T], look: Callable[[], Sequence[T]]
    ) -> T:
        """The thing that is made now. `key` stays in `_UNCERTAIN` as long as the outcome is unknown."""
        try:
            with reading():
                made = make()
        except TransientError as error:
            if error.kind is not TransientKind.NOT_SENT:
                _UNCERTAIN[key] = time.monotonic()
            raise
        except PermanentError as error:
            # An earlier try may have taken the name.
            again = look_up(look) if error.kind is PermanentKind.CONFLICT or key in _UNCERTAIN else ()
            if not again:
                raise
            return again[0]
        if not same(made, mark):
            _UNCERTAIN[key] = time.monotonic()
            summary = f"{self.CLOUD} answered with {made.id}, which is not what was asked for"
            raise TransientError(TransientKind.AMBIGUOUS, summary, about=made.id)
        _UNCERTAIN.pop(key, None)
        return made

    def _settle(self, site: Site, key: tuple[str, str]) -> None:
        if key in _UNCERTAIN:
            time.sleep(max(0.0, _UNCERTAIN[key] + site.settle - time.monotonic()))


class At:
    """A site, and its listings."""

    def __init__(self, account: Account, site: Site) -> None:
        self._account = account
        self.site = site
        self._machines: Shared[Machine] = Shared(site.machines)
        self._disks: Shared[Disk] = Shared(site.disks)

    def machines(self) -> list[Machine]:
        """All machines of ours that are alive, oldest first."""
        found = sorted((m for m in self._machines.fresh() if not m.gone), key=_age)
        return [self._account.completed(self.site, machine) for machine in found]

    def disks(self) -> list[Disk]:
        """All disks of ours, oldest first."""
        return sorted(self._disks.fresh(), key=_age) if self.site.volumes else []


def recalled(
    account: Account, kind: What, records: Sequence[Record]
) -> Iterator[tuple[Record, Written | Ended]]:
    """Recorded things as they are, asked by their ids; unknown ones are left out."""
    by_site: dict[At, list[Record]] = {}
    for record in records:
        by_site.setdefault(account.at(getattr(record.typed, "region", None)), []).append(record)
    for at, found in by_site.items():
        owners = at.site.owners(kind)
        for record in found:
            made = str(record.outputs.get("id") or "")
            if made in owners:
                yield record, Written(owner=owners[made] or "", token="", address=record.address)
            elif made and (reason := at.site.ended(kind, made)):
                yield record, Ended(reason=reason)


def unmarked(at: At, kind: What, made: str) -> bool:
    """Whether a thing exists and names no owner."""
    owners = at.site.owners(kind)
    return made in owners and owners[made] is None


def rewrite(at: At, thing: Machine | Disk, mark: Mark, own: Mapping[str, Any]) -> None:
    """Write a new mark on a thing, if its cloud can keep one. `own`: see `Written`, for a thing
    without it.
    """
    kind: What = "machine" if isinstance(thing, Machine) else "disk"
    have = thing.written
    if not have.owner:
        new = Written(
            owner=mark.owner, token=mark.token, address=mark.address, inputs=dict(mark.inputs), own=own
        )
        at.site.restore_mark(kind, thing.id, new, mark.tags)
        return
    if kind not in at.site.keeps:
        return
    before = marks.tags_in(have.inputs or {})
    if before != mark.tags:
        at.site.retag(thing, before, mark.tags)  # first, because only the old mark says which ones they were
    at.site.write(thing, {IS: replace(have, inputs=dict(mark.inputs)).text()})


def same(thing: Machine | Disk, mark: Mark) -> bool:
    """Whether a thing belongs to the create with this mark."""
    have = thing.written
    return (have.owner, have.token, have.address) == (mark.owner, mark.token, mark.address)


def of_mark(things: Sequence[T], mark: Mark) -> list[T]:
    """The things of the create with this mark, in the order given."""
    return [thing for thing in things if same(thing, mark)]


def first_of_each(things: Sequence[T]) -> list[T]:
    """The oldest thing of each create. `things` are sorted by age."""
    out: dict[tuple[Address, str], T] = {}
    for thing in things:
        out.setdefault((thing.written.address, thing.written.token), thing)
    return list(out.values())


def _age(thing: Machine | Disk) -> tuple[str, str]:
    return thing.made_at, thing.id
