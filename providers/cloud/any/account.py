"""One account of a cloud: its sites, and how each thing is made only once.

There are four ways, best first. A cloud with client tokens answers a second create with the first thing
(`Site.client_token`). If the cloud accepts a name only once (`Site.unique`), the name is a function of the
token: a second create is refused, and the thing of that name is adopted if it carries the token. Otherwise
each create is preceded by a look; if the answer to an earlier create was lost, the look waits `Site.settle`
seconds, so that a thing it made is listed by then. A thing that appears even later is noticed while the
second one starts: the oldest is kept, and the others are deleted. What an earlier command made is kept only
after the same time: a later one, killed too, may have made another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from declarative.model.inputs import PlacedInputs
from declarative.model.state import ANOTHERS, TAGS, Address, Record
from declarative.model.status import NodeState
from declarative.provider import (
    Config,
    PermanentError,
    PermanentKind,
    TransientError,
    TransientKind,
)
from providers.cloud import account, marks
from providers.cloud.account import Tagged, look_up
from providers.cloud.any.site import (
    IS,
    TAKEN,
    UNWRITTEN,
    ById,
    Disk,
    Filters,
    ListsAll,
    Machine,
    Names,
    Site,
    Tags,
    Wanted,
    What,
    Written,
)
from providers.cloud.bad_answers import reading
from providers.cloud.checks import TOGETHER, tags_left
from providers.cloud.keys import USER, Keys
from providers.cloud.marks import Mark
from providers.cloud.shared_looks import Looks, Shared
from providers.ownership import key_of
from providers.ssh.key_pairs import Login

T = TypeVar("T", Machine, Disk)
U = TypeVar("U")

FINGERPRINT = f"{marks.OURS}fingerprint"
"""A machine's tag: the fingerprint of the key that may log in."""
RECENT = 5.0
"""Seconds for which a listing is used again by those who adopt one thing of it."""
SURE = (TransientKind.NOT_SENT, TransientKind.BUSY, TransientKind.THROTTLED)
"""Faults of a single request that was certainly not carried out."""
_LOCKS = tuple(threading.Lock() for _ in range(64))
"""One create at a time per token: a retry may start while the last try still runs."""
_UNCERTAIN: dict[tuple[str, str], float] = {}
"""Owner and token of creates that may have succeeded, and when: by the monotonic clock."""
_MADE: dict[tuple[str, str], float] = {}
"""The same of creates that did succeed, or when this process saw that another had made something."""


class Account(account.Account):
    """The sites of a backend. A region's site is opened when first used."""

    TAGGED = False
    """Whether its sites have `Tags`."""
    DISK_TYPE = ""
    """The usual type of disks; empty if types are not compared."""
    regional = False
    """Whether each region has a site of its own."""

    def __init__(
        self,
        config: Config,
        options: Mapping[str, type | tuple[type, ...]],
        open_site: Callable[[Any, str], Site],
        *,
        cloud: str = "",
        regional: bool = False,
    ) -> None:
        """`open_site` opens a region's API; if not `regional`, one API serves all regions. `cloud`: a name
        for a class without one.
        """
        super().__init__(config, options)
        if cloud:
            self.CLOUD = cloud
        self.keys = Keys(self)
        self._open = open_site
        self.regional = regional
        self._sites: dict[str, At] = {}
        self._opening = threading.Lock()

    def at(self, region: object) -> At:
        """The site of a region. The credentials are read with the first one."""
        name = account.region_name(self, region) if self.regional else str(region or "")
        key = name if self.regional else ""
        with self._opening:
            if key not in self._sites:
                self._sites[key] = At(self, self._open(self, name))
            return self._sites[key]

    def by_site(self, records: Iterable[Record]) -> list[tuple[At, list[Record]]]:
        """Records by their site. If sites are regional, records without a region are left out."""
        found: dict[At, list[Record]] = {}
        for record in records:
            name = record.outputs.get("region") or getattr(record.typed, "region", None)
            if name or not self.regional:
                found.setdefault(self.at(name), []).append(record)
        return list(found.items())

    def regions(self) -> tuple[str, ...]:
        """The regions where things of ours may be; `PermanentError` if none is named."""
        return tuple(account.region_names(self, f"write `regions:` with those of {self.CLOUD} that you use"))

    def each(self, look: Callable[[At], Sequence[U]]) -> list[U]:
        """The things that `look` finds at all sites, in parallel; a site that cannot be asked is an error."""
        places = self.regions() if self.regional or not self.TAGGED else ("",)
        return account.side_by_side(list(dict.fromkeys(map(self.at, places))), look)

    def login(self, at: At) -> Login:
        """The key of the nodes, before one is made at a site; `PermanentError` if there it is another."""
        return self.keys.made()

    # -------------------------------------------------------------------------------------- marks

    def tags(self, mark: Mark) -> dict[str, str]:
        """All tags for a thing, if sites have `Tags`: the user's, and the mark."""
        users = mark.tags
        for key in users:
            if key.lower().startswith(marks.OURS[:-1]):
                summary = f"{mark.address}: a tag cannot begin with `{marks.OURS[:-1]}`: {key}"
                raise PermanentError(PermanentKind.INVALID, summary, about="tags")
        return {**users, **marks.written(mark)}

    def read(self, thing: Tagged) -> Mark:
        """Some clouds keep only a name."""
        assert isinstance(thing, Machine | Disk)
        have = thing.written
        if have is UNWRITTEN:
            return super().read(thing)
        inputs, known = have.inputs or {}, have.inputs is not None
        return Mark(owner=have.owner, address=have.address, token=have.token, inputs=inputs, known=known)

    def changed_tags(self, tags: Mapping[str, str], made: Mapping[str, Any]) -> dict[str, Any]:
        """Without `Tags`, the user's are not compared."""
        if self.TAGGED:
            return super().changed_tags(tags, made)
        owner = tags.get(marks.OWNER)
        if owner is None:
            return {TAGS: {}}
        return {} if owner == self.owner else {ANOTHERS: owner}

    def completed(self, site: Site, machine: Machine) -> Machine:
        """The machine with what its cloud cannot keep: login user, host key, and whether it was
        ready once.
        """
        have = machine.written
        if have is UNWRITTEN:
            return machine
        texts = have.texts
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
        prepare: Callable[[], Wanted],
        make: Callable[[Wanted], T],
        look: Callable[[], Sequence[T]],
    ) -> T:
        """The thing of a create with a token, or of an earlier try; `look` finds those, oldest first.
        `prepare` says what to make, and makes all that it needs.
        """
        if at.site.client_token:
            made = self.once(mark.token, lambda: make(prepare()), lambda: next(iter(look()), None))
            self.check_answer(made.tags, mark.token, made.id)
            return made
        key = (mark.owner, mark.token)
        with _LOCKS[hash(key) % len(_LOCKS)]:
            lags = kind not in at.site.unique
            if lags:
                self._settle(at.site, key)
            found = look_up(look) if key in _UNCERTAIN else look()
            if not found:
                return self._made(at, mark, partial(make, prepare()), look)
            if lags and key not in _MADE | _UNCERTAIN:
                _MADE[key] = time.monotonic()
                self._settle(at.site, key)
            _UNCERTAIN.pop(key, None)
            return self._checked(found[0], mark)

    def _settle(self, site: Site, key: tuple[str, str]) -> None:
        """Wait until all that was made for a create is listed."""
        if times := [known[key] for known in (_UNCERTAIN, _MADE) if key in known]:
            time.sleep(max(0.0, max(times) + site.settle - time.monotonic()))

    def _made(self, at: At, mark: Mark, make: Callable[[], T], look: Callable[[], Sequence[T]]) -> T:
        """The thing that is made now. Its key stays in `_UNCERTAIN` as long as the outcome is unknown."""
        key = (mark.owner, mark.token)
        try:
            with reading():
                made = make()
        except TransientError as error:
            # Some sites that only list things ask for several in one create.
            sure = (TransientKind.NOT_SENT,) if at.lists else SURE
            if error.kind not in sure:
                _UNCERTAIN[key] = time.monotonic()
            raise
        except PermanentError as error:
            # An earlier try may have taken the name.
            taken = error.kind is PermanentKind.CONFLICT
            found = look_up(look) if taken or key in _UNCERTAIN else ()
            if found:
                return self._checked(found[0], mark)
            if taken and isinstance(at.site, Names):
                raise TransientError(TransientKind.BUSY, error.summary, about=error.about) from None
            raise
        if not same(made, mark):
            _UNCERTAIN[key] = time.monotonic()
            summary = f"{self.CLOUD} answered with {made.id}, which is not what was asked for"
            raise TransientError(TransientKind.AMBIGUOUS, summary, about=made.id)
        _MADE[key] = time.monotonic()
        _UNCERTAIN.pop(key, None)
        return made

    def _checked(self, found: T, mark: Mark) -> T:
        """What exists for a create; a fault if it is just going, or is not ours."""
        if found.gone or found.word.lower() == "stopping":
            # The same create made it earlier, before this state was restored from a backup.
            summary = (
                f"an earlier {found.called} is just being deleted: it can be made anew once that is over"
            )
            raise TransientError(TransientKind.BUSY, summary, about=str(mark.address))
        if not same(found, mark):
            summary = f"{found.id} exists, but does not carry this state's marks"
            hint = f"somebody removed them: look at it in {self.CLOUD}, and delete it"
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(mark.address), hint=hint)
        return found


class At:
    """A site, and its listings."""

    def __init__(self, account: Account, site: Site) -> None:
        self._account = account
        self.site = site
        self._machines: Shared[Machine] = Shared(site.machines)
        self._disks: Shared[Disk] = Shared(site.disks)
        if isinstance(site, ListsAll):
            self._all_machines: Shared[Machine] = Shared(site.all_machines)
            self._all_disks: Shared[Disk] = Shared(site.all_disks)
        self._shared_machines: Looks[Machine] = Looks(self.seen)
        self._shared_disks: Looks[Disk] = Looks(self.disks_by_id)

    @property
    def lists(self) -> bool:
        """Whether nothing is found by its id but by a listing of all of ours."""
        return not isinstance(self.site, ById)

    def machines(self) -> list[Machine]:
        """All machines of ours that are alive, oldest first."""
        found = sorted((m for m in self._machines.fresh() if not m.gone), key=_age)
        return [self._account.completed(self.site, machine) for machine in found]

    def disks(self) -> list[Disk]:
        """All disks of ours, oldest first."""
        found = self._disks.fresh() if self.site.volumes else ()
        return sorted((d for d in found if not d.gone), key=_age)

    def seen(self, ids: Collection[str]) -> Mapping[str, Machine]:
        """The machines of these ids; if the site only lists things, those of ours."""
        if isinstance(self.site, ById):
            return self.site.machines_by_id(ids) if ids else {}
        return {machine.id: machine for machine in self.machines() if machine.id in ids}

    def machine(self, made: str, pause: float) -> Machine | None:
        """One machine, after so many seconds. Looks at the same time are one request if the site can."""
        if self.site.batches:
            return self._shared_machines.next(made, pause)
        time.sleep(pause)
        return self.seen([made]).get(made)

    def disk(self, made: str, pause: float) -> Disk | None:
        """The same for a disk."""
        if self.site.batches:
            return self._shared_disks.next(made, pause)
        time.sleep(pause)
        return self.disks_by_id([made]).get(made)

    def machine_to_adopt(self, made: str) -> Machine | None:
        """One machine, which somebody else made."""
        if isinstance(self.site, ListsAll):
            return next((m for m in self._all_machines.fresh(RECENT) if m.id == made), None)
        return self.machine(made, TOGETHER)

    def disk_to_adopt(self, made: str) -> Disk | None:
        """The same for a disk."""
        if isinstance(self.site, ListsAll):
            return next((d for d in self._all_disks.fresh(RECENT) if d.id == made), None)
        return self.disk(made, TOGETHER)

    def machines_by_id(self, ids: Collection[str]) -> Mapping[str, Machine]:
        """The machines of these ids, with any marks or none. A site that only lists things knows no more
        than the owner of another's.
        """
        there = self.seen(ids)
        return {
            **there,
            **{
                made: Machine(id=made, region="", state=NodeState.NOT_READY, labels=labels)
                for made, labels in self._others("machine", [made for made in ids if made not in there])
            },
        }

    def disks_by_id(self, ids: Collection[str]) -> Mapping[str, Disk]:
        """The same for disks."""
        if isinstance(self.site, ById):
            return self.site.disks_by_id(ids) if ids else {}
        there = {disk.id: disk for disk in self.disks() if disk.id in ids}
        return {
            **there,
            **{
                made: Disk(id=made, region="", size=None, labels=labels)
                for made, labels in self._others("disk", [made for made in ids if made not in there])
            },
        }

    def _others(self, kind: What, ids: Collection[str]) -> list[tuple[str, dict[str, str]]]:
        """Those of these ids that exist, and the owner's tag of each."""
        if not ids or not self.lists:
            return []
        owners = self.site.owners(kind)
        tags = {made: {marks.OWNER: owner} if owner else {} for made, owner in owners.items()}
        return [(made, tags[made]) for made in ids if made in tags]

    def machines_of(self, address: Address, token: str, place: PlacedInputs | None = None) -> list[Machine]:
        """The machines of a create, oldest first. With its `place`, what has its unique name, whatever is
        written on it.
        """
        site = self.site
        if place is not None and isinstance(site, Names):
            return list(self.machines_by_id([site.id_of("machine", address, token, place)]).values())
        return self.machines_with(address=str(address), token=token)

    def disks_of(self, address: Address, token: str, place: PlacedInputs | None = None) -> list[Disk]:
        """The same for disks."""
        site = self.site
        if place is not None and isinstance(site, Names):
            return list(self.disks_by_id([site.id_of("disk", address, token, place)]).values())
        return self.disks_with(address=str(address), token=token)

    def machines_with(self, **marked: str) -> list[Machine]:
        """The machines of ours with an `address` or a `token`, oldest first."""
        wanted = {marks.OURS + key: value for key, value in marked.items()}
        if not wanted or not isinstance(self.site, Filters):
            found = self.machines()
        else:
            found = sorted(self.site.machines_with(wanted), key=_age)
        return [m for m in found if not m.gone and wanted.items() <= m.tags.items()]

    def disks_with(self, **marked: str) -> list[Disk]:
        """The same for disks."""
        wanted = {marks.OURS + key: value for key, value in marked.items()}
        if not wanted or not isinstance(self.site, Filters):
            found = self.disks()
        else:
            found = sorted(self.site.disks_with(wanted), key=_age)
        return [d for d in found if not d.gone and wanted.items() <= d.tags.items()]


def rewrite(
    account: Account, at: At, thing: Machine | Disk, mark: Mark, have: Record, more: Mapping[str, str]
) -> None:
    """Write a new mark on a thing, if its cloud can keep one, in place of the old one or of one that was
    removed. Tags of others stay. `have`: its record; `more`: further tags of a machine without a mark.
    """
    site = at.site
    if isinstance(site, Tags):
        before = (
            account.read(thing).tags if not account.has_no_owner(thing.tags) else marks.tags_in(have.inputs)
        )
        new = {**account.tags(mark), **more}
        old = [
            key for key in thing.tags if (key in before or key.startswith(marks.INPUTS)) and key not in new
        ]
        site.tag(thing, new, old)
        return
    kind: What = "machine" if isinstance(thing, Machine) else "disk"
    written = thing.written
    if written is UNWRITTEN:
        known = {"user": more.get(marks.USER), "host_key": more.get(marks.HOST_KEY)}
        own = {key: value for key, value in known.items() if value}
        new_mark = written_of(mark, own)
        site.restore_mark(kind, thing.id, new_mark, mark.tags)
        return
    if kind not in site.keeps:
        return
    users = marks.tags_in(written.inputs or {})
    if users != mark.tags:
        site.retag(thing, users, mark.tags)  # first, because only the old mark says which ones they were
    site.write(thing, {IS: replace(written, inputs=dict(mark.inputs)).text()})


def take(account: Account, site: Tags, thing: Machine | Disk, mark: Mark) -> None:
    """Write a mark on a thing that somebody else made. Leftovers of an older mark are dropped."""
    new = account.tags(mark)
    site.tag(thing, new, [key for key in thing.tags if key.startswith(marks.OURS) and key not in new])


def let_go(site: Tags, thing: Machine | Disk) -> None:
    """Remove the mark and the user's tags from a thing that somebody else made."""
    left = tags_left(thing.tags, thing.id)
    site.tag(thing, {}, [key for key in thing.tags if key not in left])


def written_of(mark: Mark, own: Mapping[str, Any]) -> Written:
    """The mark of a thing without tags. `own`: see `Written`."""
    return Written(
        owner=mark.owner, token=mark.token, address=mark.address, inputs=dict(mark.inputs), own=own
    )


def same(thing: Machine | Disk, mark: Mark) -> bool:
    """Whether a thing belongs to the create with this mark."""
    return thing.tags.get(marks.OWNER) == mark.owner and _of_create(thing, mark.address, mark.token)


def _of_create(thing: Machine | Disk, address: Address, token: str) -> bool:
    have = thing.tags
    return (have.get(marks.ADDRESS), have.get(marks.TOKEN)) == (str(address), token)


def of_mark(things: Sequence[T], mark: Mark) -> list[T]:
    """The things of the create with this mark, in the order given."""
    return [thing for thing in things if same(thing, mark)]


def duplicates(at: At, kind: What, mark: Mark) -> list[Any]:
    """All but the oldest of one create's things at a site that finds them by their ids. Everyone who looks
    sees the same.
    """
    if at.site.client_token or kind in at.site.unique:
        return []
    look: Callable[[Address, str], list[Any]] = at.machines_of if kind == "machine" else at.disks_of
    found: list[Any] = look_up(lambda: look(mark.address, mark.token))
    return found[1:]


def first_of_each(at: At, things: list[T]) -> list[T]:
    """The oldest thing of each create. `things` are sorted by age. A cloud with client tokens makes no
    duplicates: if there are two nevertheless, both are shown.
    """
    if at.site.client_token:
        return things
    out: dict[tuple[str | None, str | None], T] = {}
    for thing in things:
        have = thing.tags.get(marks.ADDRESS), thing.tags.get(marks.TOKEN)
        out.setdefault(have if all(have) else (thing.id, None), thing)
    return list(out.values())


def _age(thing: Machine | Disk) -> tuple[str, str]:
    return thing.made_at, thing.id
