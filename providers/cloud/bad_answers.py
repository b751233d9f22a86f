"""Turns unusable answers into faults wherever they show, instead of Python's own errors. Keeps secrets out of
messages: clouds and gateways quote what they were sent, in many notations.

Expected parts of an answer are checked where they are read. Anything unforeseen (a text in place of a
mapping, a huge number, endless nested lists) is caught at the port, and around creates: a create with such an
answer may have been carried out.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape

from declarative.model.inputs import BadDataError
from declarative.provider import ProviderError, TransientError, TransientKind
from providers.faults import from_data

MOST_SHOWN = 300
"""Characters shown of a cloud's message: some quote the whole request."""
MOST_MESSAGE = 1000
"""Characters of a message including our own text."""
_LEAST_SECRET = 4
"""Shorter texts are not treated as secrets: they would blank parts of every message."""
_LEAST_PART = 8
"""The fewest characters of a secret's base64 to search for, of those that do not depend on the text around
it.
"""

_BLOCKS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|[A-Za-z0-9+/=%]{65,}|[A-Za-z0-9_-]{100,}",
    re.DOTALL,
)
"""Private keys, and texts that nobody reads: user data with a node's host key, tokens."""

_UNSEEN = re.compile(r"[\x00-\x20\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]+")
"""Spaces, characters that control a terminal or reverse a line, and characters that cannot be encoded."""


class Scrub:
    """Removes secrets from texts, and cuts the texts to one line of `MOST_SHOWN` characters.

    Safe to use from many threads.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._forms: set[str] = set()
        self._turn = threading.Lock()
        self._secrets: re.Pattern[str] | None = None
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Remove these as well: a token is a secret while it is valid."""
        found = {form for secret in secrets if len(secret) >= _LEAST_SECRET for form in _forms(secret)}
        with self._turn:
            self._forms |= found
            # Longest first: one may be part of another.
            every = "|".join(map(re.escape, sorted(self._forms, key=lambda form: (-len(form), form))))
            self._secrets = re.compile(every) if every else None

    def hide(self, text: str) -> str:
        """The text without secrets, at full length."""
        secrets = self._secrets
        if secrets:
            text = secrets.sub("***", text)
        return _BLOCKS.sub("***", text)

    def __call__(self, text: str, most: int = MOST_SHOWN) -> str:
        text = _UNSEEN.sub(" ", self.hide(text)).strip()
        return text if len(text) <= most else text[: most - 2] + " …"

    def message(self, text: str) -> str:
        """A message for the user. A cloud's explanation of a failed machine comes in a successful answer, and
        may quote what the machine was made with.
        """
        return self(text, MOST_MESSAGE)


def _forms(secret: str) -> Iterator[str]:
    """A secret as it appears in URLs, JSON, XML, Python, hex and base64."""
    yield secret
    quoted = {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    for text in {*quoted, *(quote(text, safe="") for text in quoted)}:
        yield text
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), text)
    for ascii_only in (True, False):
        written = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield written
        yield written.replace("/", r"\/")
    yield repr(secret)[1:-1]
    for double, single in product(('"', "&quot;", "&#34;", "&#x22;"), ("'", "&apos;", "&#39;", "&#x27;")):
        yield escape(secret, {'"': double, "'": single})
    data = secret.encode(errors="surrogateescape")
    yield data.hex()
    yield data.hex().upper()
    for before in range(3):
        # Base64 works on groups of three bytes, so the text before decides how the secret is divided.
        text = base64.b64encode(bytes(before) + data).decode()
        part = text[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        if len(part) >= _LEAST_PART:
            yield part
            yield quote(part, safe="")
            yield part.replace("+", "-").replace("/", "_")


P = ParamSpec("P")
T = TypeVar("T")


class Scrubbed(Protocol):
    """A provider with an object that keeps its secrets out of messages."""

    @property
    def scrub(self) -> Scrub:
        """Removes the secrets of its account."""


S = TypeVar("S", bound=Scrubbed)

STUMBLES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
MOST_PAGES = 1_000
"""The limit for one listing: enough for half a million machines with full pages."""
MOST_LISTED_BYTES = 256 << 20
"""The limit for all pages of a listing. A machine takes a few thousand bytes."""


class Taken(threading.local):
    """The bytes that a thread has received so far."""

    size = 0


taken = Taken()


class Pages:
    """The pages read of a listing, by the marks that lead to them. Ensures that the listing ends and no page
    repeats. Used in one thread.
    """

    def __init__(self) -> None:
        self._seen: set[object] = set()
        self._before = taken.size

    def fault(self, mark: object) -> str | None:
        """Why the page at `mark` must not be read; None if it may, and then it counts as read."""
        if mark in self._seen:
            return "leads back to a page that was read"
        if len(self._seen) >= MOST_PAGES:
            return f"has more than {MOST_PAGES} pages"
        if taken.size - self._before > MOST_LISTED_BYTES:
            return f"has more than {MOST_LISTED_BYTES >> 20} MiB on its pages"
        self._seen.add(mark)
        return None


def asked(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A decorator for methods of the port: all faults are the port's (`reading`), and without secrets."""

    @functools.wraps(method)
    def run(self: S, /, *args: P.args, **more: P.kwargs) -> T:
        try:
            with reading():
                return method(self, *args, **more)
        except ProviderError as error:
            scrub = self.scrub
            error.summary = scrub.message(error.summary)
            error.hint = scrub.message(error.hint) if error.hint else error.hint
            error.args = (error.summary,)
            raise

    return run


def value_at(found: Any, *keys: str) -> Any:
    """The value at a path of keys in an answer; None if something on the way is missing.

    `AttributeError` if a value on the way has no keys.
    """
    for key in keys:
        found = (found or {}).get(key)
    return found


def text_at(found: Any, *keys: str) -> str:
    """The value as a text, empty if missing."""
    return str(value_at(found, *keys) or "")


@contextmanager
def reading() -> Iterator[None]:
    """Turns Python's errors within into `AMBIGUOUS` faults."""
    try:
        yield
    except BadDataError as error:
        raise from_data(error) from error
    except STUMBLES as error:
        # The error's text may quote the answer with secrets. The place in the code is enough to investigate.
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
        raise TransientError(TransientKind.AMBIGUOUS, f"an answer cannot be read ({where})") from None
