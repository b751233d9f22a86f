"""What keeps secrets out of messages: clouds and gateways quote what they were sent, in many notations."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterable, Iterator
from itertools import product
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape

MOST_SHOWN = 300
"""Characters of a cloud's message: some quote the whole request."""
MOST_TOLD = 1000
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

    def told(self, text: str) -> str:
        """A message as it leaves: what a cloud says of a machine that failed comes with an answer that went
        well, and quotes what that was made with.
        """
        return self(text, MOST_TOLD)


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
