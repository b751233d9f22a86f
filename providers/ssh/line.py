"""A command as one line for whatever shell a user has on a host: sh, bash, zsh, fish, csh."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_BARE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)
_PLAIN = re.compile(r"[ -~]*", re.ASCII)
_MEANT = frozenset("'!\\")
_ODD = re.compile(rb"[^A-Za-z0-9_@%+=:,./ -]")


def command_line(argv: Sequence[str]) -> str:
    """`argv` as separate words, whatever they hold.

    Shells agree on bare words, and on what stands between single quotes as long as there is no quote, newline
    or `!` in it, nor a backslash before one of those. So anything else goes as octal numbers, for one more sh
    to read.
    """
    if all(_PLAIN.fullmatch(word) and not _MEANT & {*word} for word in argv):
        return " ".join(("exec", *(word if _BARE.fullmatch(word) else f"'{word}'" for word in argv)))
    words = "exec " + shlex.join(argv)
    safe = _ODD.sub(lambda odd: b"\\0%03o" % odd[0][0], words.encode(errors="surrogateescape"))
    return f"""exec sh -c 'eval "$(printf %b "$1")"' sh '{safe.decode()}'"""
