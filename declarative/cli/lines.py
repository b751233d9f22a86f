"""Printing what several ranks say, each line under its own prefix, in bounded memory however long it is."""

from __future__ import annotations

from typing import Protocol

LONGEST = 64 * 1024
"""Bytes of a line that are held back for its end; a longer one is printed in pieces."""


class Out(Protocol):
    """Where bytes go."""

    def write(self, data: bytes, /) -> object:
        """All of them."""

    def flush(self) -> object:
        """Now."""


class Printer:
    """One output for all. Without prefixes, everything is passed on as it comes."""

    def __init__(self, out: Out, *, prefixed: bool) -> None:
        self._out = out
        self._prefixed = prefixed
        self._held: dict[int, bytes] = {}
        """By rank: what has come of a line whose end has not."""
        self._open: int | None = None
        """Whose line on the screen has no end yet."""

    def add(self, rank: int, data: bytes) -> None:
        """What came of a rank: whole lines are printed, and a last part if it is too long to be held."""
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
