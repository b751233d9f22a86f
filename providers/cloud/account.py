"""One use of a cloud: whose things are made there, and how something is made once.

Each driver has an account of its own, with its regions and its options.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from declarative.model.schema import BadValueError
from declarative.model.spec.backend import ANYWHERE, ImageFilter, Reach
from declarative.model.spec.values import Size
from declarative.model.state import ANOTHERS, TAGS, Address, Record
from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import marks, settings
from providers.cloud.bad_answers import Scrub, reading
from providers.cloud.marks import Mark
from providers.cloud.settings import write
from providers.cloud.shared_looks import asking

Q = ParamSpec("Q")
T = TypeVar("T")

OPTIONS: Mapping[str, type | tuple[type, ...]] = {
    "timeout": int,
    **dict.fromkeys(("identity_file", "ssh_config", "known_hosts", "root"), str),
    "connect_timeout": int,
}
"""Options that every driver of a cloud takes."""
PATIENCE = 60.0
"""Seconds to wait for a state that comes by itself, before the call ends with BUSY."""
UNLISTED = 180.0
"""Seconds after which what was made and is in no list has been removed. Lists lag by less than that."""
SURE = 3
"""Looks, after the first, before it counts as removed."""
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 3.0
"""Seconds between two looks at it."""


class Tagged(Protocol):
    """A machine or a disk, as its cloud tells of it."""

    @property
    def id(self) -> str:
        """What the state records."""

    @property
    def zone(self) -> str | None:
        """None if it is in no single zone."""

    @property
    def gone(self) -> bool:
        """Whether it has ended, or is about to."""

    @property
    def tags(self) -> Mapping[str, str]:
        """All that is written on it."""


class Account:
    """What every driver needs to know of its backend."""

    CLOUD: str
    """What people call it."""
    MISMATCH: str | None = None
    """What is in the fault of a create whose token an earlier one with other parameters had."""

    ARCHITECTURES: Sequence[str] = ()
    """What images may run on: values of the option `architecture`, the usual one first."""

    def __init__(self, config: Config, options: Mapping[str, type | tuple[type, ...]]) -> None:
        """`options` are those that the driver takes besides `OPTIONS`; `PermanentError` for any other."""
        self.config = config
        self.scrub = Scrub()
        """Knows all secrets that are read for this account, and the tokens that it is given."""
        own = {"architecture": str} if self.ARCHITECTURES else {}
        self.options: dict[str, Any] = settings.options(config, {**OPTIONS, **own, **options})
        if own and self.architecture not in self.ARCHITECTURES:
            summary = f"the option `architecture` is one of {', '.join(self.ARCHITECTURES)}"
            raise PermanentError(PermanentKind.INVALID, summary, about="options.architecture")
        self._maybe: set[str] = set()
        self._missed: dict[str, float] = {}
        self._images: dict[str, str] = {}
        self._looking = threading.Lock()

    @property
    def owner(self) -> str:
        """Whose things these are."""
        return self.config.lineage

    @property
    def timeout(self) -> int:
        """Seconds that one answer may take."""
        return int(max(1, self.options.get("timeout", settings.TIMEOUT)))

    @property
    def architecture(self) -> str:
        """What the backend's images run on."""
        return str(self.options.get("architecture", self.ARCHITECTURES[0]))

    @property
    def public_ip(self) -> bool:
        """Whether nodes get a public address; they do where nothing says that they do not."""
        network = self.config.network
        return network.reach is not Reach.PRIVATE if network.public_ip is None else network.public_ip

    def mark(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mark:
        """What is written on a thing of ours."""
        return Mark(owner=self.owner, address=address, token=token, inputs=dict(inputs))

    def read(self, thing: Tagged) -> Mark:
        """What a thing of ours says of itself; `PermanentError` if somebody damaged it."""
        return marks.read(thing.tags, thing.id)

    def strange(self, tags: Mapping[str, str], made: Mapping[str, Any]) -> dict[str, Any]:
        """What is not on a thing any more of what was written there, or is another's; see `Thing.actual`.

        `made` are the inputs that it was made with.
        """
        owner = tags.get(marks.OWNER)
        if owner not in (None, self.owner):
            return {ANOTHERS: owner}
        users = marks.tags_in(made)
        left = {k: tags[k] for k in users if k in tags}
        return {} if owner and left == users else {TAGS: left}

    def lost(self, tags: Mapping[str, str]) -> bool:
        """Whether nothing says whose a thing is."""
        return marks.OWNER not in tags

    def check_owner(self, tags: Mapping[str, str], have: Record, thing: str) -> None:
        """`PermanentError` if a recorded thing does not say that it is ours: nobody deletes what is not."""
        if tags.get(marks.OWNER) != self.owner:
            summary = f"{thing}, recorded as {have.address}, does not carry this state's tags"
            hint = (
                f"somebody removed them, or it is another's: look at it in {self.CLOUD}. If it is yours, "
                "`fleetform apply` puts them back while it is declared; else `fleetform state rm` forgets it"
            )
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(have.address), hint=hint)

    def check_answer(self, tags: Mapping[str, str], token: str, thing: str) -> None:
        """A fault if what was answered to a create is not what the create was about."""
        if tags.get(marks.OWNER) != self.owner or tags.get(marks.TOKEN) != token:
            summary = f"{self.CLOUD} answered with {thing}, which is not what was asked for"
            raise TransientError(TransientKind.AMBIGUOUS, summary, about=thing)

    def once(self, token: str, make: Callable[[], T], look: Callable[[], T | None]) -> T:
        """What `make` makes, or what an earlier try with this token made; `look` finds that.

        That nothing was made is said only where no earlier try can have made it: one whose answer was lost
        may have, and so has one with other parameters.
        """
        try:
            with reading():
                made = make()
        except TransientError as error:
            if error.kind is TransientKind.AMBIGUOUS:
                self._maybe.add(token)
            other = bool(self.MISMATCH and self.MISMATCH in error.summary)
            found = look_up(look) if other else None
            if found is None:
                if other:
                    self.check_missed(token, error.summary, error.about)
                raise
            return found
        except PermanentError:
            found = look_up(look) if token in self._maybe else None
            if found is None:
                raise
            return found
        self._maybe.add(token)
        return made

    def check_missed(self, token: str, summary: str, about: str | None, *, age: float = 0.0) -> None:
        """`PermanentError` if what this token made, `age` seconds ago or more, should be in a list by now and
        is not: it was removed, and the token makes nothing more.
        """
        made = time.monotonic() - age
        with self._looking:
            made = self._missed[token] = min(made, self._missed.get(token, made))
        if time.monotonic() - made > UNLISTED:
            hint = "apply once more, and it is made anew"
            raise PermanentError(
                PermanentKind.USED_UP, f"what was made is gone: {summary}", about=about, hint=hint
            )

    def image(self, region: str) -> str:
        """The id of the image that nodes of a region start from. One that is looked for is looked for once:
        what this run makes starts from one image, though a newer one may come meanwhile.
        """
        asked = self.config.image.get(region) or self.config.image.get(ANYWHERE)
        if not asked:
            summary = f"backend {self.config.backend} names no image for {region}"
            hint = None if self.config.image else write(self.config, "image")
            hint = hint or f"write `image: ID`, or `image: {{{region}: ID}}`"
            raise PermanentError(PermanentKind.INVALID, summary, about="image", hint=hint)
        if isinstance(asked, str):
            return asked
        with self._looking:
            if region not in self._images:
                self._images[region] = self.find_image(region, asked)
            return self._images[region]

    def find_image(self, region: str, asked: ImageFilter) -> str:
        """The id of the newest image of a region that fits; `PermanentError` if there is none."""
        summary = f"the driver `{self.config.driver}` cannot look for {asked} in {region}"
        hint = f"write `image: {{{region}: ID}}`"
        raise PermanentError(PermanentKind.INVALID, summary, about="image", hint=hint)


def if_there(ask: Callable[Q, T], *args: Q.args, **more: Q.kwargs) -> T | None:
    """An answer; None if what it is about is not there."""
    try:
        return ask(*args, **more)
    except PermanentError as error:
        if error.kind is not PermanentKind.NOT_FOUND:
            raise
        return None


def look_up(look: Callable[[], T]) -> T:
    """What `look` finds out about something that may be there: that it cannot be asked for says nothing."""
    try:
        return look()
    except PermanentError as error:
        summary = f"what was made cannot be looked at: {error.summary}"
        raise TransientError(TransientKind.AMBIGUOUS, summary, about=error.about, hint=error.hint) from None


def pauses(summary: str, about: str) -> Iterator[None]:
    """Wait between looks at something that changes by itself; BUSY with `summary` when it takes too long."""
    for pause in waits(summary, about):
        time.sleep(pause)
        yield


def waits(summary: str, about: str) -> Iterator[float]:
    """`pauses`, to be waited out by the caller: the seconds before each look, none before the first."""
    deadline = time.monotonic() + PATIENCE
    yield 0.0
    pause = FIRST_PAUSE
    while time.monotonic() < deadline:
        yield pause
        pause = min(LONGEST_PAUSE, pause * 1.5)
    raise TransientError(TransientKind.BUSY, summary, about=about)


def gibibytes(address: Address, size: object) -> int:
    """A volume's size as clouds count it, rounded up."""
    if not isinstance(size, str):
        raise PermanentError(PermanentKind.INVALID, f"{address}: `size` is missing", about="size")
    try:
        return -(-Size.parse(size).mib // 1024)
    except BadValueError as error:
        raise PermanentError(PermanentKind.INVALID, error.summary, about="size", hint=error.hint) from error


P = TypeVar("P")
R = TypeVar("R")


def side_by_side(places: Sequence[P], look: Callable[[P], Sequence[T]]) -> list[T]:
    """What is found at all places; one that cannot be asked is an error."""
    if len(places) == 1:
        return list(look(places[0]))
    with asking(min(16, len(places) or 1), "regions") as pool:
        return [found for part in pool.map(look, places) for found in part]


def region_names(account: Account, hint: str | None = None) -> list[str]:
    """The regions where something of ours may be; `PermanentError` if none is named. `hint` is for drivers of
    which `settings.NEEDED` knows nothing.
    """
    names = list(dict.fromkeys((*account.config.regions, *account.config.elsewhere)))
    if not names:
        summary = f"backend {account.config.backend} names no regions"
        hint = write(account.config, "regions") or hint
        raise PermanentError(PermanentKind.INVALID, summary, about="regions", hint=hint)
    return names


def region_name(account: Account, name: object) -> str:
    """The name of the region that something is about; `PermanentError` if nobody says it."""
    if not isinstance(name, str) or not name:
        summary = f"backend {account.config.backend}: it is not said in which region"
        raise PermanentError(PermanentKind.INVALID, summary, about="region")
    return name


class RegionalAccount(Account, ABC, Generic[R]):
    """The regions of a backend, of type `R`. They come to life when they are first asked."""

    def __init__(self, config: Config, options: Mapping[str, type | tuple[type, ...]]) -> None:
        """See `Account`."""
        super().__init__(config, options)
        self._made: dict[str, R] = {}
        self._turn = threading.Lock()

    @abstractmethod
    def make(self, name: str) -> R:
        """A region. The credentials are looked up with the first one."""

    def region(self, name: object) -> R:
        """One region; `PermanentError` if nobody says which."""
        key = region_name(self, name)
        with self._turn:
            if key not in self._made:
                self._made[key] = self.make(key)
            return self._made[key]

    def regions(self) -> list[R]:
        """All regions where something of ours may be."""
        return [self.region(name) for name in region_names(self)]

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
