"""Printing what several ranks say, each line under its own prefix, in bounded memory however long it is."""

from __future__ import annotations

import codecs
import io
import re
from typing import Protocol

from declarative.cli.output import Tame

LONGEST = 64 * 1024
"""Bytes of a line that are held back for its end; a longer one is printed in pieces."""
_MOVING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+")
"""What moves the cursor of a terminal, answers for its user, or hides; a tab and a line's end do not."""


class Out(Protocol):
    """Where bytes go."""

    def write(self, data: bytes, /) -> object:
        """All of them."""

    def flush(self) -> object:
        """Now."""


class Safe:
    """The output of one rank as what may be shown. It comes in pieces, cut anywhere.

    On a terminal nothing of it moves the cursor. Where lines have prefixes, a carriage return ends a line: it
    would go back to before the prefix.
    """

    def __init__(self, *, terminal: bool, prefixed: bool) -> None:
        self._terminal = terminal
        # Off a terminal bytes stay what they are, in whatever encoding.
        self._encoding = "utf-8" if terminal else "latin-1"
        decoder = codecs.getincrementaldecoder(self._encoding)("replace")
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=terminal or prefixed)

    def __call__(self, data: bytes, *, final: bool = False) -> bytes:
        """The next piece."""
        text = self._decoder.decode(data, final=final)
        if self._terminal and _MOVING.search(text):
            from declarative.render.text import clean

            text = _MOVING.sub(lambda found: clean(found.group()), text)
        return text.encode(self._encoding)


class Printer:
    """One output for all. Without prefixes, what comes is passed on at once.

    `raw` passes on everything as it is; else what comes is made safe for a terminal, if it goes to one, and
    is no command to a CI agent.
    """

    def __init__(self, out: Out, *, prefixed: bool, terminal: bool = False, raw: bool = False) -> None:
        self._out = out if raw else _Tamed(out)
        self._prefixed = prefixed
        self._terminal = terminal
        self._safe: dict[int, Safe] | None = None if raw else {}
        self._held: dict[int, bytes] = {}
        """By rank: what has come of a line whose end has not."""
        self._open: int | None = None
        """Whose line on the screen has no end yet."""

    def add(self, rank: int, data: bytes) -> None:
        """What came of a rank: whole lines are printed, and a last part if it is too long to be held."""
        self._add(rank, self._made_safe(rank, data))

    def _made_safe(self, rank: int, data: bytes, *, final: bool = False) -> bytes:
        if self._safe is None:
            return data
        if rank not in self._safe:
            self._safe[rank] = Safe(terminal=self._terminal, prefixed=self._prefixed)
        return self._safe[rank](data, final=final)

    def _add(self, rank: int, data: bytes) -> None:
        if not data:
            return
        if not self._prefixed:
            self._out.write(data)
            self._out.flush()
            self._open = None if data.endswith(b"\n") else rank
            return
        whole, newline, rest = (self._held.pop(rank, b"") + data).rpartition(b"\n")
        if newline:
            self._lines(rank, whole)
        if len(rest) > LONGEST:
            self._begin(rank)
            self._out.write(rest)
            self._open = rank
        elif rest:
            self._held[rank] = rest
        self._out.flush()

    def end(self, rank: int) -> None:
        """There is no more of it: a last line without an end is printed with one."""
        self._add(rank, self._made_safe(rank, b"", final=True))
        rest = self._held.pop(rank, b"")
        if not self._prefixed and self._open == rank:
            self._out.write(b"\n")
        elif rest or self._open == rank:
            self._lines(rank, rest)
        self._out.flush()

    def held(self) -> int:
        """Bytes that are held back."""
        return sum(map(len, self._held.values()))

    def _lines(self, rank: int, text: bytes) -> None:
        """`text` is lines, the last one without its newline."""
        self._begin(rank)
        self._open = None
        self._out.write(text.replace(b"\n", b"\n" + self._prefix(rank)) + b"\n")

    def _begin(self, rank: int) -> None:
        """Go on with this rank's line, if that is open, or begin one."""
        if self._open == rank:
            return
        if self._open is not None:
            self._out.write(b"\n")
        self._out.write(self._prefix(rank))

    def _prefix(self, rank: int) -> bytes:
        return f"{rank} | ".encode()


class _Tamed:
    """An output whose bytes are no commands to a CI agent."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._tame = Tame()

    def write(self, data: bytes) -> object:
        return self._out.write(self._tame(data.decode("latin-1")).encode("latin-1"))

    def flush(self) -> object:
        return self._out.flush()
