"""One region of EC2: signed requests, complete listings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from declarative.model.text import suggest
from declarative.provider import Config, PermanentError, PermanentKind
from providers.cloud.any.site import Disk, Machine
from providers.cloud.bad_answers import Pages, Scrub
from providers.cloud.connection import Connection, limiter
from providers.cloud.ec2 import answers
from providers.cloud.ec2.answers import error_info
from providers.cloud.settings import Host

Login: TypeAlias = tuple[Callable[[], Mapping[str, str]], Scrub]
VERSION = "2016-11-15"
PAGE = 1000
"""The most instances per answer."""
FEW = 50
"""How many instances are requested by id at once, so that an error message can name all of them."""
LEAST_PAGE = 5
"""The smallest page that EC2 accepts."""
VALUES = 200
"""The most values of one filter."""
LAUNCH = "RunInstances"
LAUNCHES = 2.0
"""Launches a second that EC2 allows in the long run by default. It counts them separately: many launches must
not slow down the listings that report their results, and the listings must not speed them up.
"""
LIVE = {"instance-state-name": ("pending", "running", "stopping", "stopped")}
"""The filter for instances that exist. Others do not come back."""
_SPECIAL = re.compile(r"[^A-Za-z0-9_.~-]")


class Region:
    """Requests to one region."""

    def __init__(self, name: str, host: Host, login: Login, config: Config, timeout: int) -> None:
        """`login` returns the current key, secret and token, and keeps them out of messages."""
        self.name = name
        secrets, scrub = login
        held: Mapping[str, str] = {}

        def now() -> Mapping[str, str]:
            nonlocal held
            held = secrets()
            return held

        def make() -> Any:
            return _driver(name, host, held, timeout)  # as of when the need was found, or newer

        key = ("ec2", config.backend, host.name, host.port, name)
        self._connection = Connection(
            make, limiter(*key), scrub, error_info, now, fence=config.fence, answered=config.answered
        )
        self._launches = limiter(*key, LAUNCH, rate=LAUNCHES)

    def ask(self, action: str, about: str | None = None, /, **parameters: object) -> dict[str, Any]:
        """The content of the answer to one action. Lists and mappings in parameters are numbered from 1."""
        return self.dated(action, about, **parameters)[0]

    def dated(
        self, action: str, about: str | None = None, /, **parameters: object
    ) -> tuple[dict[str, Any], str]:
        """Like `ask`, with the answer's date by EC2's own clock; empty if missing."""
        pairs = [("Action", action), ("Version", VERSION), *_flat("", parameters)]
        response = self._connection.request(
            f"{action} in {self.name}",
            "/",
            about=about,
            limiter=self._launches if action == LAUNCH else None,
            method="POST",
            data="&".join(f"{quoted(k)}={quoted(v)}" for k, v in pairs),
            headers={"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"},
        )
        headers = {str(key).lower(): str(value) for key, value in response.headers.items()}
        return answers.content(action, response.body), headers.get("date", "")

    def pages(self, action: str, name: str, size: int, **parameters: object) -> Iterator[dict[str, Any]]:
        """The items of a list, over all pages."""
        read = Pages()
        more: dict[str, str] = {}
        while True:
            found = self.ask(action, None, MaxResults=size, **parameters, **more)
            yield from answers.listed(action, found, name)
            token = found.get("nextToken")
            if not token:
                return
            if how := read.fault(token):
                raise answers.bad_answer(f"{action} in {self.name}", how)
            more = {"NextToken": token}

    def instances(self, filters: Mapping[str, Iterable[str]]) -> list[Machine]:
        """All instances that match the filters, including ended ones."""
        action = "DescribeInstances"
        found = self.pages(action, "reservationSet", PAGE, Filter=_filters(filters))
        return [
            answers.instance(action, item, self.name)
            for reservation in found
            for item in answers.listed(action, reservation, "instancesSet")
        ]

    def has_instance(self, filters: Mapping[str, Iterable[str]]) -> bool:
        """Whether an instance matches the filters. It reads only as much of the listing as needed."""
        found = self.pages("DescribeInstances", "reservationSet", LEAST_PAGE, Filter=_filters(filters))
        return next(found, None) is not None

    def volumes(self, filters: Mapping[str, Iterable[str]]) -> list[Disk]:
        """All volumes that match the filters."""
        action = "DescribeVolumes"
        found = self.pages(action, "volumeSet", PAGE // 2, Filter=_filters(filters))
        return [answers.volume(action, item, self.name) for item in found]

    def instances_by_id(self, ids: Iterable[str]) -> dict[str, Machine]:
        """The existing ones. A filter ignores unknown ids."""
        every = sorted(set(ids))
        parts = [every[i : i + VALUES] for i in range(0, len(every), VALUES)]
        return {found.id: found for part in parts for found in self.instances({"instance-id": part})}

    def denied(self, action: str, name: str, ids: Sequence[str]) -> frozenset[str]:
        """The ids that EC2 itself says do not exist: a listing may be incomplete."""
        out: set[str] = set()
        for start in range(0, len(ids), FEW):
            part = ids[start : start + FEW]
            try:
                self.ask(action, **{name: part})
            except PermanentError as error:
                if error.kind is not PermanentKind.NOT_FOUND:
                    raise
                out.update(i for i in part if i in error.summary or len(part) == 1)
        return frozenset(out)

    def volumes_by_id(self, ids: Iterable[str]) -> dict[str, Disk]:
        """The existing ones."""
        every = sorted(set(ids))
        parts = [every[i : i + VALUES] for i in range(0, len(every), VALUES)]
        return {found.id: found for part in parts for found in self.volumes({"volume-id": part})}

    def volume(self, made: str) -> Disk | None:
        """One volume; None if the id does not exist."""
        return next(iter(self.volumes({"volume-id": [made]})), None)

    def tag(self, thing: str, tags: Mapping[str, str]) -> None:
        """Set tags of a thing, in one request."""
        self.ask("CreateTags", ResourceId=[thing], Tag=_tags(tags))

    def untag(self, thing: str, keys: Iterable[str]) -> None:
        """Remove tags from a thing."""
        found = [{"Key": key} for key in keys]
        if found:
            self.ask("DeleteTags", ResourceId=[thing], Tag=found)


def quoted(text: str) -> str:
    """The text as in a form. Python's own function handles each character, and user data has thousands."""
    return _SPECIAL.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), text)


def tagged(kind: str, tags: Mapping[str, str]) -> list[dict[str, object]]:
    """The parameter that gives a new thing its tags in the same request."""
    return [{"ResourceType": kind, "Tag": _tags(tags)}]


def _tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def _filters(filters: Mapping[str, Iterable[str]]) -> list[dict[str, object]]:
    return [{"Name": name, "Value": list(values)} for name, values in filters.items()]


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Parameters in EC2's form: `Tag.1.Key`."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value, 1):
            yield from _flat(f"{name}.{i}", item)
    elif value is not None:
        yield name, str(value).lower() if isinstance(value, bool) else str(value)


def _driver(region: str, host: Host, secrets: Mapping[str, str], timeout: int) -> Any:
    """A driver of libcloud's. It does not know all regions, so the name is set afterwards."""
    from libcloud.common.base import Response
    from libcloud.compute.providers import get_driver

    driver: Any = get_driver("ec2")(
        secrets["key"],
        secrets["secret"],
        token=secrets.get("token"),
        secure=host.secure,
        host=host.name,
        port=host.port,
        region="us-east-1",
        signature_version="4",
        timeout=timeout,
    )
    driver.region_name = region
    driver.connection.responseCls = Response  # a class that leaves the text alone: `answers` parses it
    return driver


def endpoint(region: str, known: Iterable[str]) -> str:
    """Amazon's host for a region; `PermanentError` if there is none."""
    known = list(known)
    if region not in known:
        hint = suggest(region, known) or f"known regions: {', '.join(known)}; another one needs an `endpoint`"
        summary = f"EC2 has no region `{region}`"
        raise PermanentError(PermanentKind.INVALID, summary, about="regions", hint=hint)
    return f"https://ec2.{region}.amazonaws.com"
