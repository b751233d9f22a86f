"""One account of a cloud: whose things are made there, and how each is made only once.

Each driver has a subclass with its regions and options.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

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
"""Options of every cloud driver."""
PATIENCE = 60.0
"""Seconds to wait for an expected state before the call ends with BUSY."""
LIST_LAG = 180.0
"""Seconds after which a made thing that is in no list has been removed. Lists lag by less than that."""
SURE = 3
"""How many more looks, after the first, until it counts as removed."""
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 3.0
"""The longest pause between two looks, in seconds."""


class Tagged(Protocol):
    """A machine or a disk, as its cloud describes it."""

    @property
    def id(self) -> str:
        """The id that the state records."""

    @property
    def zone(self) -> str | None:
        """None if it is not in a single zone."""

    @property
    def gone(self) -> bool:
        """Whether it has ended or is ending."""

    @property
    def tags(self) -> Mapping[str, str]:
        """All tags on it."""


class Account:
    """The facts about its backend that every driver needs."""

    CLOUD: str
    """The cloud's name in messages."""
    MISMATCH: str | None = None
    """Part of the fault of a create whose token was used before with other parameters."""

    ARCHITECTURES: Sequence[str] = ()
    """Architectures of images: values of the option `architecture`, the default first."""

    def __init__(self, config: Config, options: Mapping[str, type | tuple[type, ...]]) -> None:
        """`options` are the driver's own, besides `OPTIONS`; `PermanentError` for any other."""
        self.config = config
        self.scrub = Scrub()
        """Removes from messages all secrets read for this account, and the tokens it gets."""
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
        """The owner of the things."""
        return self.config.lineage

    @property
    def timeout(self) -> int:
        """The timeout of one request in seconds."""
        return int(max(1, self.options.get("timeout", settings.TIMEOUT)))

    @property
    def architecture(self) -> str:
        """The architecture of the backend's images."""
        return str(self.options.get("architecture", self.ARCHITECTURES[0]))

    @property
    def public_ip(self) -> bool:
        """Whether nodes get a public address; the default is yes."""
        network = self.config.network
        return network.reach is not Reach.PRIVATE if network.public_ip is None else network.public_ip

    def mark(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mark:
        """The mark to write on a thing of ours."""
        project = self.config.project
        return Mark(owner=self.owner, address=address, token=token, inputs=dict(inputs), project=project)

    def read(self, thing: Tagged) -> Mark:
        """The mark of a thing of ours; `PermanentError` if it is damaged."""
        return marks.read(thing.tags, thing.id)

    def changed_tags(self, tags: Mapping[str, str], made: Mapping[str, Any]) -> dict[str, Any]:
        """The tags that are missing on a thing or have another's value; see `Thing.actual`.

        `made` are the inputs that it was made with.
        """
        owner = tags.get(marks.OWNER)
        if owner not in (None, self.owner):
            return {ANOTHERS: owner}
        users = marks.tags_in(made)
        left = {k: tags[k] for k in users if k in tags}
        return {} if owner and left == users else {TAGS: left}

    def has_no_owner(self, tags: Mapping[str, str]) -> bool:
        """Whether the tags do not name any owner."""
        return marks.OWNER not in tags

    def check_owner(self, tags: Mapping[str, str], have: Record, thing: str) -> None:
        """`PermanentError` if a recorded thing does not name us as its owner: only the owner
        deletes a thing.
        """
        if tags.get(marks.OWNER) != self.owner:
            summary = f"{thing}, recorded as {have.address}, does not carry this state's tags"
            hint = (
                f"somebody removed them, or it has another owner: look at it in {self.CLOUD}. If it is "
                "yours, `fleetform apply` restores them while it is declared; else `fleetform state rm` "
                "forgets it"
            )
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(have.address), hint=hint)

    def check_answer(self, tags: Mapping[str, str], token: str, thing: str) -> None:
        """A fault if the answer to a create is about something else."""
        if tags.get(marks.OWNER) != self.owner or tags.get(marks.TOKEN) != token:
            summary = f"{self.CLOUD} answered with {thing}, which is not what was asked for"
            raise TransientError(TransientKind.AMBIGUOUS, summary, about=thing)

    def once(self, token: str, make: Callable[[], T], look: Callable[[], T | None]) -> T:
        """The thing that `make` makes, or that an earlier try with this token made, as `look` finds it.

        A fault says that nothing was made only if no earlier try can have made it. An earlier try may have,
        if its answer was lost, or if it had other parameters.
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
        """`PermanentError` if the thing of this token, made at least `age` seconds ago, should be in a list
        by now and is not. It was removed, and the token can make nothing more.
        """
        made = time.monotonic() - age
        with self._looking:
            made = self._missed[token] = min(made, self._missed.get(token, made))
        if time.monotonic() - made > LIST_LAG:
            hint = "apply once more, and it is made anew"
            raise PermanentError(
                PermanentKind.USED_UP, f"what was made is gone: {summary}", about=about, hint=hint
            )

    def names_image(self, region: str) -> bool:
        """Whether the backend names an image for a region."""
        return bool(self.config.image.get(region) or self.config.image.get(ANYWHERE))

    def image(self, region: str) -> str:
        """The id of the image from which nodes of a region start. It is looked up once, so that all nodes of
        a run start from the same image even if a newer one appears.
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
        """The id of a region's newest image that matches; `PermanentError` if there is none."""
        summary = f"the driver `{self.config.driver}` cannot look for {asked} in {region}"
        hint = f"write `image: {{{region}: ID}}`"
        raise PermanentError(PermanentKind.INVALID, summary, about="image", hint=hint)


def if_there(ask: Callable[Q, T], *args: Q.args, **more: Q.kwargs) -> T | None:
    """An answer; None if its subject does not exist."""
    try:
        return ask(*args, **more)
    except PermanentError as error:
        if error.kind is not PermanentKind.NOT_FOUND:
            raise
        return None


def look_up(look: Callable[[], T]) -> T:
    """The result of a look at something that may exist; None if the look is refused."""
    try:
        return look()
    except PermanentError as error:
        summary = f"what was made cannot be looked at: {error.summary}"
        raise TransientError(TransientKind.AMBIGUOUS, summary, about=error.about, hint=error.hint) from None


def pauses(summary: str, about: str) -> Iterator[None]:
    """Wait between looks at something that is changing; BUSY with `summary` when it takes too long."""
    for pause in waits(summary, about):
        time.sleep(pause)
        yield


def waits(summary: str, about: str) -> Iterator[float]:
    """`pauses` for a caller that waits itself: the seconds before each look, 0 before the first."""
    deadline = time.monotonic() + PATIENCE
    yield 0.0
    pause = FIRST_PAUSE
    while time.monotonic() < deadline:
        yield pause
        pause = min(LONGEST_PAUSE, pause * 1.5)
    raise TransientError(TransientKind.BUSY, summary, about=about)


def gibibytes(address: Address, size: object) -> int:
    """A volume's size as clouds count it: GiB, rounded up."""
    if not isinstance(size, str):
        raise PermanentError(PermanentKind.INVALID, f"{address}: `size` is missing", about="size")
    try:
        return -(-Size.parse(size).mib // 1024)
    except BadValueError as error:
        raise PermanentError(PermanentKind.INVALID, error.summary, about="size", hint=error.hint) from error


P = TypeVar("P")


def side_by_side(places: Sequence[P], look: Callable[[P], Sequence[T]]) -> list[T]:
    """The things that `look` finds at all places; a place that cannot be asked is an error."""
    if len(places) == 1:
        return list(look(places[0]))
    with asking(min(16, len(places) or 1), "regions") as pool:
        return [found for part in pool.map(look, places) for found in part]


def region_names(account: Account, hint: str | None = None) -> list[str]:
    """The regions where things of ours may be; `PermanentError` if none is named. `hint` is for drivers that
    are not in `settings.NEEDED`.
    """
    names = list(dict.fromkeys((*account.config.regions, *account.config.elsewhere)))
    if not names:
        summary = f"backend {account.config.backend} names no regions"
        hint = write(account.config, "regions") or hint
        raise PermanentError(PermanentKind.INVALID, summary, about="regions", hint=hint)
    return names


def region_name(account: Account, name: object) -> str:
    """The name of the region of something; `PermanentError` if it is not known."""
    if not isinstance(name, str) or not name:
        summary = f"backend {account.config.backend}: the region is not named"
        raise PermanentError(PermanentKind.INVALID, summary, about="region")
    return name
