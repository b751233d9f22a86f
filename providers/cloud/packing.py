"""Texts in few characters, for tags that take neither all characters nor long values.

What is read may have been written by anybody who may write tags: a few of them hold a text that grows a
thousandfold, and it is not read to its end.
"""

from __future__ import annotations

import base64
import zlib

MOST_BYTES = 1 << 18
"""Of a text. All tags that one thing has hold less than this, packed or not."""


def packed(text: str) -> str:
    """The text in base 32, in lower case."""
    return base64.b32encode(zlib.compress(text.encode(), 9)).decode().lower().rstrip("=")


def unpacked(code: str) -> str:
    """What was packed; one that cannot be read is empty, which nothing of ours is."""
    try:
        data = base64.b32decode(code.upper() + "=" * (-len(code) % 8))
        reader = zlib.decompressobj()
        found = reader.decompress(data, MOST_BYTES)
        return found.decode() if reader.eof else ""
    except (ValueError, zlib.error):
        return ""
