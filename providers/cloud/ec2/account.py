"""One use of EC2: its regions, its options, and what every kind of thing needs of it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from declarative.spec.clouds import ANYWHERE
from declarative.state import Address, Record
from providers.cloud import marks, settings
from providers.cloud.catalog import Catalog, catalog
from providers.cloud.ec2.codes import MISMATCH
from providers.cloud.ec2.region import Region, endpoint
from providers.cloud.marks import Mark

T = TypeVar("T")

OPTIONS: Mapping[str, type | tuple[type, ...]] = {
    "timeout": int,
    "architecture": str,
    "key_name": str,
    **dict.fromkeys(("identity_file", "ssh_config", "root"), str),
    "connect_timeout": int,
}
ARCHITECTURES = ("x86_64", "arm64")
LIVE = ("pending", "running", "stopping", "stopped")
"""States of instances that are there. The others do not come back."""
PATIENCE = 60.0
"""Seconds to wait for a state that comes by itself, before whoever tries again is told that it has not."""


class Account:
    """The regions of a backend, and whose things are looked for there."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.options: dict[str, Any] = settings.options(config, OPTIONS)
        if self.architecture not in ARCHITECTURES:
            summary = f"the option `architecture` is one of {', '.join(ARCHITECTURES)}"
            raise PermanentError(PermanentKind.INVALID, summary, about="options.architecture")
        self._made: dict[str, Region] = {}
        self._maybe: set[str] = set()
        self._turn = threading.Lock()

    @property
    def owner(self) -> str:
        """Whose things these are."""
        return self.config.lineage

    @property
    def architecture(self) -> str:
        """What the backend's images run on."""
        return str(self.options.get("architecture", ARCHITECTURES[0]))

    @property
    def catalog(self) -> Catalog:
        """What EC2 has, as far as that is known without asking."""
        return catalog("ec2")

    # ------------------------------------------------------------------------------------ regions

    def region(self, name: object) -> Region:
        """One region. The credentials are looked up with the first one."""
        if not isinstance(name, str) or not name:
            summary = f"backend {self.config.backend}: it is not said in which region"
            raise PermanentError(PermanentKind.INVALID, summary, about="region")
        with self._turn:
            if name not in self._made:
                self._made[name] = self._make(name)
            return self._made[name]

    def _make(self, name: str) -> Region:
        given = self.config.endpoint or endpoint(name, self.catalog.zones)
        values = settings.secrets(self.config, ("key", "secret"), ("token",))
        timeout = max(1, self.options.get("timeout", settings.TIMEOUT))
        return Region(name, settings.host(given), values, self.config.backend, timeout)

    def regions(self) -> list[Region]:
        """All regions where something of ours may be."""
        names = list(dict.fromkeys((*self.config.regions, *self.config.elsewhere)))
        if not names:
            summary = f"backend {self.config.backend} names no regions"
            hint = "write `regions: [us-east-1]`, or those that you use"
            raise PermanentError(PermanentKind.INVALID, summary, about="regions", hint=hint)
        return [self.region(name) for name in names]

    def each(self, look: Callable[[Region], Sequence[T]]) -> list[T]:
        """What is found in all regions, side by side; one that cannot be asked is an error."""
        regions = self.regions()
        if len(regions) == 1:
            return list(look(regions[0]))
        with ThreadPoolExecutor(min(16, len(regions)), thread_name_prefix="regions") as pool:
            return [found for part in pool.map(look, regions) for found in part]

    # -------------------------------------------------------------------------------------- marks

    def mine(self, **more: str) -> dict[str, list[str]]:
        """The filter for what is ours; `address` and `token` narrow it."""
        return {
            f"tag:{marks.OWNER}": [self.owner],
            **{f"tag:{marks.OURS}{key}": [value] for key, value in more.items()},
        }

    def mark(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mark:
        """What is written on a thing of ours."""
        return Mark(owner=self.owner, address=address, token=token, inputs=dict(inputs))

    def tags(self, mark: Mark) -> dict[str, str]:
        """Everything that is written on a thing: its name, the user's tags, and ours."""
        users = {str(k): str(v) for k, v in (mark.inputs.get("tags") or {}).items()}
        for key in users:
            if key.startswith((marks.OURS, "aws:")):
                summary = f"{mark.address}: a tag cannot begin with `{marks.OURS}` or `aws:`: {key}"
                raise PermanentError(PermanentKind.INVALID, summary, about="tags")
        return {"Name": mark.address.name, **users, **marks.written(mark)}

    def retag(self, region: Region, thing: str, have: Mapping[str, str], mark: Mark) -> None:
        """Write a new mark over the one that `have` holds. May be cut short anywhere, and tried again."""
        before = marks.read(have, thing)
        after = self.tags(mark)
        users = [k for k in before.inputs.get("tags") or {} if k in have and k not in after]
        region.untag(thing, users)  # first: which they are stands in the old mark
        region.tag(thing, after)
        rest = re.compile(re.escape(marks.INPUTS) + r"\.\d+")
        region.untag(thing, [k for k in have if rest.fullmatch(k) and k not in after])

    def check_owner(self, tags: Mapping[str, str], have: Record, thing: str) -> None:
        """`PermanentError` if a recorded thing does not say that it is ours: nobody deletes what is not."""
        if tags.get(marks.OWNER) != self.owner:
            summary = f"{thing}, recorded as {have.address}, does not carry this state's tags"
            hint = (
                "somebody removed them, or it is another's: look at it in EC2, then `fleetform state rm` it"
            )
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(have.address), hint=hint)

    def check_answer(self, tags: Mapping[str, str], token: str, thing: str) -> None:
        """A fault if what was answered to a create is not what the create was about."""
        if tags.get(marks.OWNER) != self.owner or tags.get(marks.TOKEN) != token:
            summary = f"EC2 answered with {thing}, which is not what was asked for"
            raise TransientError(TransientKind.AMBIGUOUS, summary, about=thing)

    # ------------------------------------------------------------------------------------ creates

    def once(self, token: str, make: Callable[[], T], look: Callable[[], T | None]) -> T:
        """What `make` makes, or what an earlier try with this token made; `look` finds that.

        That nothing was made is said only where no earlier try can have made it: one whose answer was lost
        may have, and so has one with other parameters.
        """
        try:
            made = make()
        except TransientError as error:
            if error.kind is TransientKind.AMBIGUOUS:
                self._maybe.add(token)
            found = look_up(look) if MISMATCH in error.summary else None
            if found is None:
                raise
            return found
        except PermanentError:
            found = look_up(look) if token in self._maybe else None
            if found is None:
                raise
            return found
        self._maybe.add(token)
        return made

    def image(self, region: str) -> str:
        """The image that nodes of a region start from."""
        found = self.config.image.get(region) or self.config.image.get(ANYWHERE)
        if not found:
            summary = f"backend {self.config.backend} names no image for {region}"
            hint = f"write `image: ami-…`, or `image: {{{region}: ami-…}}`"
            raise PermanentError(PermanentKind.INVALID, summary, about="image", hint=hint)
        return found


def look_up(look: Callable[[], T]) -> T:
    """What `look` finds out about something that may be there: that it cannot be asked for says nothing."""
    try:
        return look()
    except PermanentError as error:
        summary = f"what was made cannot be looked at: {error.summary}"
        raise TransientError(TransientKind.AMBIGUOUS, summary, about=error.about, hint=error.hint) from None


def pauses(summary: str, about: str) -> Iterator[None]:
    """Wait between looks at something that changes by itself; BUSY with `summary` when it takes too long."""
    deadline = time.monotonic() + PATIENCE
    pause = 0.2
    while time.monotonic() < deadline:
        yield
        time.sleep(pause)
        pause = min(3.0, pause * 1.5)
    raise TransientError(TransientKind.BUSY, summary, about=about)


def made_id(have: Record, prefix: str) -> str | None:
    """The id that a record has of EC2; None if it has none that could be one."""
    found = str(have.outputs.get("id", ""))
    return found if re.fullmatch(rf"{prefix}-[0-9a-f]{{4,32}}", found) else None
