"""Answers that are not what they should be, wherever that shows: faults, and not what Python stumbled over.
And what keeps secrets out of messages: clouds and gateways quote what they were sent, in many notations.

What is looked for in an answer is checked where it is read. What nobody thought of (a text where a mapping
was, a number beyond all bounds, lists within lists without an end) is caught at the port, and around creates:
one that was carried out may have been what answered so.
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
"""Characters of a cloud's message: some quote the whole request."""
MOST_MESSAGE = 1000
"""Characters of a message with all that is ours in it."""
_LEAST_SECRET = 4
"""Characters: what is shorter is no secret, and would make holes in every message."""
_LEAST_PART = 8
"""Characters of a secret's base64 that are looked for, of those that its neighbours do not change."""

_BLOCKS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|[A-Za-z0-9+/=%]{65,}|[A-Za-z0-9_-]{100,}",
    re.DOTALL,
)
"""Private keys, and words that nobody reads: user data with a node's host key in it, tokens."""

_UNSEEN = re.compile(r"[\x00-\x20\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]+")
"""Spaces, what commands a terminal or turns a line round, and what no encoding has."""


class Scrub:
    """Takes secrets out of texts, and cuts these to one line of `MOST_SHOWN` characters.

    Safe to use from many threads.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._forms: set[str] = set()
        self._turn = threading.Lock()
        self._secrets: re.Pattern[str] | None = None
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Take these out as well: a token is a secret as long as it holds."""
        found = {form for secret in secrets if len(secret) >= _LEAST_SECRET for form in _forms(secret)}
        with self._turn:
            self._forms |= found
            # The longest first: one may be part of another.
            every = "|".join(map(re.escape, sorted(self._forms, key=lambda form: (-len(form), form))))
            self._secrets = re.compile(every) if every else None

    def hide(self, text: str) -> str:
        """The text without secrets, as long as it is."""
        secrets = self._secrets
        if secrets:
            text = secrets.sub("***", text)
        return _BLOCKS.sub("***", text)

    def __call__(self, text: str, most: int = MOST_SHOWN) -> str:
        text = _UNSEEN.sub(" ", self.hide(text)).strip()
        return text if len(text) <= most else text[: most - 2] + " …"

    def message(self, text: str) -> str:
        """A message as it leaves: what a cloud says of a machine that failed comes with an answer that went
        well, and quotes what that was made with.
        """
        return self(text, MOST_MESSAGE)


def _forms(secret: str) -> Iterator[str]:
    """A secret as URLs, JSON, XML, Python, hex and base64 write it."""
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
        # Base64 is of three bytes each: what stands before decides how the secret is cut.
        text = base64.b64encode(bytes(before) + data).decode()
        part = text[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        if len(part) >= _LEAST_PART:
            yield part
            yield quote(part, safe="")
            yield part.replace("+", "-").replace("/", "_")


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
            error.summary = scrub.message(error.summary)
            error.hint = scrub.message(error.hint) if error.hint else error.hint
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
