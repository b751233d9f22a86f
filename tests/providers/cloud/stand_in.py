"""What stand-ins of clouds share: a clock that the test holds, routes, faults, pacing, and refusals.

A stand-in is `answer` for a `Web`, which carries the requests and records them. The state of things changes
only by requests and by `Clock.advance`; nothing here waits.
"""

from __future__ import annotations

import copy
import heapq
import http.client
import itertools
import json
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import urlencode, urlsplit

from tests.providers.cloud.web import LOST, Answer, Asked

Method = Callable[..., Answer]


class RefusedError(Exception):
    """A request that the cloud does not carry out, with its answer."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status, body)
        self.answer: Answer = (status, body)


class Clock:
    """The time of a stand-in, in seconds since 1970. It stands still unless a test moves it."""

    def __init__(self, tick: float = 0.0) -> None:
        """`tick`: the seconds that pass with each request, for callers that only poll."""
        self.tick = tick
        self._now = datetime(2026, 11, 30, tzinfo=UTC).timestamp()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._count = itertools.count()
        self.turn = threading.RLock()
        """Held while anything changes: by requests too, since a test may move the clock meanwhile."""

    def now(self) -> float:
        return self._now

    def text(self) -> str:
        """As RFC 3339 writes it, in whole seconds."""
        return datetime.fromtimestamp(self._now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        """Do something once so many seconds have passed."""
        with self.turn:
            heapq.heappush(self._due, (self._now + seconds, next(self._count), act))

    def advance(self, seconds: float) -> None:
        """Let time pass. What becomes due is done in its order; also a `sleep` for whoever paces itself."""
        with self.turn:
            end = self._now + seconds
            while self._due and self._due[0][0] <= end:
                self._now, _, act = heapq.heappop(self._due)
                act()
            self._now = end


class Pace:
    """At most `most` requests in any `seconds`."""

    def __init__(self, clock: Clock, most: int, seconds: float) -> None:
        self._clock, self._most, self._seconds = clock, most, seconds
        self._times: deque[float] = deque()

    def allows(self) -> bool:
        """Count one more request, if it is not one too many."""
        now = self._clock.now()
        while self._times and self._times[0] <= now - self._seconds:
            self._times.popleft()
        if len(self._times) >= self._most:
            return False
        self._times.append(now)
        return True


@dataclass(slots=True, kw_only=True)
class Fault:
    """What goes wrong with requests whose line (`POST /a/b`) has a match of `line`."""

    line: str
    answer: Answer = LOST
    done: bool = True
    """Whether the request is carried out all the same."""
    times: int = 1


def route(line: str) -> Callable[[Method], Method]:
    """Mark the method that answers `GET /a/{id}`. It is given the request and the id."""

    def marked(method: Method) -> Method:
        method.line = line  # type: ignore[attr-defined]  # read by `StandIn` alone
        return method

    return marked


class StandIn:
    """A cloud with routes. A subclass says how it looks at logins and how it refuses."""

    _routes: ClassVar[list[tuple[re.Pattern[str], str]]]

    def __init_subclass__(cls) -> None:
        cls._routes = [
            (re.compile(re.sub(r"\{\w+\}", "([^/]+)", method.line)), name)
            for name, method in ((name, getattr(cls, name)) for name in dir(cls))
            if hasattr(method, "line")
        ]
        # A fixed word outranks an id in the same place.
        cls._routes.sort(key=lambda one: one[0].groups)

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.faults: list[Fault] = []
        """Those still to come; the first that fits is used."""

    def __call__(self, asked: Asked) -> Answer:
        with self.clock.turn:
            self.clock.advance(self.clock.tick)
            return self._answered(asked)

    def _answered(self, asked: Asked) -> Answer:
        fault = next((fault for fault in self.faults if re.search(fault.line, asked.line)), None)
        if fault:
            fault.times -= 1
            self.faults = [one for one in self.faults if one.times > 0]
            if not fault.done:
                return fault.answer
        # A copy: what is sent is what was true then.
        answer = copy.deepcopy(self.carried_out(asked))
        return fault.answer if fault else answer

    def carried_out(self, asked: Asked) -> Answer:
        """The answer without any fault."""
        try:
            self.admit(asked)
            for pattern, name in self._routes:
                if fits := pattern.fullmatch(asked.line):
                    found: Answer = getattr(self, name)(asked, *fits.groups())
                    return found
            raise self.unknown(asked)
        except RefusedError as refused:
            return refused.answer

    def admit(self, asked: Asked) -> None:
        """Refuse a request for its login or its rate."""
        raise NotImplementedError

    def unknown(self, asked: Asked) -> RefusedError:
        """The refusal of a request that fits no route."""
        raise NotImplementedError


def header(asked: Asked, name: str) -> str:
    """A header of a request, however its name is written; empty if it is not there."""
    return next((text for key, text in asked.headers.items() if key.lower() == name.lower()), "")


class Caller:
    """Asks a server over plain HTTP: `call("POST /a/b", {"name": "x"}, page="2")` gives status and body.

    A lost answer is `http.client.RemoteDisconnected`.
    """

    def __init__(self, url: str, **headers: str) -> None:
        self._host, self.headers = urlsplit(url).netloc, headers

    def __call__(self, line: str, body: Any = None, **params: str) -> Answer:
        method, path = line.split(" ", 1)
        connection = http.client.HTTPConnection(self._host, timeout=30)
        data = None if body is None else json.dumps(body)
        headers = {**self.headers, **({"Content-Type": "application/json"} if data else {})}
        try:
            connection.request(method, f"{path}?{urlencode(params)}" if params else path, data, headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        finally:
            connection.close()


def pages(things: list[Any], size: int, token: str) -> tuple[list[Any], str | None]:
    """One page of things and the token of the page after it. A token is the id of the last thing read, so
    a page stays where it is if an earlier thing goes.
    """
    ordered = sorted(things, key=lambda thing: str(thing["id"]))
    rest = [thing for thing in ordered if str(thing["id"]) > token]
    return rest[:size], str(rest[size - 1]["id"]) if len(rest) > size else None


def checked(
    body: Any, fields: Mapping[str, type | tuple[type, ...]], needed: tuple[str, ...]
) -> tuple[str, str] | None:
    """The first field of a body that is missing, unknown, or of another type: its name, and what is wrong."""
    if not isinstance(body, dict):
        return "body", "must be an object"
    for name in needed:
        if body.get(name) is None:
            return name, "is required"
    for name, thing in body.items():
        if name not in fields:
            return name, "is unknown"
        if not isinstance(thing, fields[name]) or (isinstance(thing, bool) and fields[name] is int):
            return name, "has the wrong type"
    return None
