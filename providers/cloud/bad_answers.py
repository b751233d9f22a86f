"""Answers that are not what they should be, wherever that shows: faults, and not what Python stumbled over.

What is looked for in an answer is checked where it is read. What nobody thought of (a text where a mapping
was, a number beyond all bounds, lists within lists without an end) is caught at the port, and around creates:
one that was carried out may have been what answered so.
"""

from __future__ import annotations

import functools
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from declarative.model.inputs import BadDataError
from declarative.provider import ProviderError, TransientError, TransientKind
from providers.cloud.redact import Scrub
from providers.faults import from_data

P = ParamSpec("P")
T = TypeVar("T")


class Scrubbed(Protocol):
    """A provider, and what keeps its secrets out of messages."""

    @property
    def scrub(self) -> Scrub:
        """That."""


S = TypeVar("S", bound=Scrubbed)

STUMBLES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
MOST_PAGES = 1_000
"""Of one listing: half a million machines, where a page has as many as it may have."""
MOST_LISTED_BYTES = 256 << 20
"""Of all pages of a listing. A machine has a few thousand."""


class Taken(threading.local):
    """What a thread was answered so far."""

    size = 0


taken = Taken()


class Pages:
    """The pages of a listing that were read, by what leads to them: it has an end, and none comes twice.
    They are asked for in one thread.
    """

    def __init__(self) -> None:
        self._seen: set[object] = set()
        self._before = taken.size

    def fault(self, mark: object) -> str | None:
        """Why the page that `mark` leads to is not to be read; None if it is, and then it counts as read."""
        if mark in self._seen:
            return "leads back to a page that was read"
        if len(self._seen) >= MOST_PAGES:
            return f"has more than {MOST_PAGES} pages"
        if taken.size - self._before > MOST_LISTED_BYTES:
            return f"has more than {MOST_LISTED_BYTES >> 20} MiB on its pages"
        self._seen.add(mark)
        return None


def asked(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method of the port: its faults are the port's (`reading`), and such as may be shown."""

    @functools.wraps(method)
    def run(self: S, /, *args: P.args, **more: P.kwargs) -> T:
        try:
            with reading():
                return method(self, *args, **more)
        except ProviderError as error:
            scrub = self.scrub
            error.summary = scrub.told(error.summary)
            error.hint = scrub.told(error.hint) if error.hint else error.hint
            error.args = (error.summary,)
            raise

    return run


def value_at(found: Any, *keys: str) -> Any:
    """What an answer has at the end of a path of keys; None where there is nothing on the way.

    `AttributeError` for a value on the way that has no keys.
    """
    for key in keys:
        found = (found or {}).get(key)
    return found


def text_at(found: Any, *keys: str) -> str:
    """The same as a text, empty where there is nothing."""
    return str(value_at(found, *keys) or "")


@contextmanager
def reading() -> Iterator[None]:
    """`AMBIGUOUS` for what Python stumbles over within."""
    try:
        yield
    except BadDataError as error:
        raise from_data(error) from error
    except STUMBLES as error:
        # Its text may quote the answer, and whatever that quotes: where it was is enough to look into it.
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
        raise TransientError(TransientKind.AMBIGUOUS, f"an answer cannot be read ({where})") from None
