"""What keeps secrets out of messages: clouds and gateways quote what they were sent, in many notations."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from itertools import product
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape

MOST_SHOWN = 300
"""Characters of a cloud's message: some quote the whole request."""
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


class Scrub:
    """Takes secrets out of texts, and cuts these to one line of `MOST_SHOWN` characters."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found = {form for secret in secrets if len(secret) >= _LEAST_SECRET for form in _forms(secret)}
        # The longest first: one may be part of another.
        every = "|".join(map(re.escape, sorted(found, key=lambda form: (-len(form), form))))
        self._secrets = re.compile(every) if every else None

    def hide(self, text: str) -> str:
        """The text without secrets, as long as it is."""
        if self._secrets:
            text = self._secrets.sub("***", text)
        return _BLOCKS.sub("***", text)

    def __call__(self, text: str) -> str:
        text = re.sub(r"[\x00-\x20\x7f-\x9f]+", " ", self.hide(text)).strip()
        return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 2] + " …"


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
