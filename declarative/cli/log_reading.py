"""Reading the logs of many ranks side by side, in bounded pieces, going on where a connection was lost."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from declarative.model.diagnostic import Diagnostic
from declarative.model.record import struct

if TYPE_CHECKING:
    from declarative.apply.backends import Backends
    from declarative.cli.logs import Printer
    from declarative.model.state import Record, State
    from declarative.provider import ProviderError

T = TypeVar("T")

PIECE = 256 * 1024
"""Bytes that are read at once, at first."""
LARGEST, TOGETHER = 16 * PIECE, 32 * PIECE
"""The same later, where a rank has much to read and its host answers quickly; and of all ranks together: each
read costs its host a process.
"""
QUICK = 1.0
"""Seconds within which a host answers quickly."""
AT_ONCE = 32
"""Ranks that are read side by side; so many pieces are in memory at most."""
FIRST, QUIET = 0.2, 1.0
"""Seconds between two looks at a rank that prints nothing: at first, and in the end."""
LONGEST_WAIT = 10.0
"""Seconds between two tries of a host that does not answer."""
GIVE_UP = 30.0
"""Seconds after which a host that does not answer is given up, where the rank is known to have ended."""


class Readers:
    """Threads that read. They do not keep the process alive: Ctrl-C does not wait for a silent host."""

    def __init__(self, count: int) -> None:
        self._work: queue.SimpleQueue[tuple[Any, Callable[[], Any]]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        for _ in range(min(AT_ONCE, count)):
            threading.Thread(target=self._run, name="logs", daemon=True).start()

    def submit(self, key: Any, function: Callable[[], Any]) -> None:
        """Let a thread call the function."""
        self._work.put((key, function))

    def result(self, timeout: float | None = None) -> tuple[Any, Any]:
        """A key, and what its function returned or raised; raises `queue.Empty` after the timeout."""
        return self._done.get(timeout=timeout)

    def _run(self) -> None:
        while True:
            key, function = self._work.get()
            try:
                result = function()
            except Exception as error:  # noqa: BLE001  # it is the main thread's to raise
                result = error
            self._done.put((key, result))


@struct(slots=True, eq=False)
class LogSource:
    """The output of one attempt of a rank, read on from where it was."""

    record: Record
    node: Record
    backends: Backends
    offset: int = 0
    final: bool = False
    """Whether it has ended, so that its output is complete."""
    piece: int = field(default_factory=lambda: PIECE)
    """Bytes to read next."""
    largest: int = field(default_factory=lambda: PIECE)
    """The most that `piece` may become."""

    @property
    def rank(self) -> int:
        """Its number."""
        return self.record.rank.rank

    @property
    def attempt(self) -> str:
        """The attempt's id on its host."""
        from declarative.model.state import attempt_id

        return attempt_id(self.record)

    def read(self) -> bytes:
        """The next piece; empty where there is no more yet."""
        provider, began = self.backends.get(self.node.backend), time.monotonic()
        data = provider.read_log(self.node, self.attempt, self.offset, self.piece)
        if len(data) == self.piece:
            quick = time.monotonic() - began < QUICK
            self.piece = min(2 * self.piece, self.largest) if quick else PIECE
        return data

    def patiently(self) -> bytes:
        """The next piece, tried again for a while."""
        return _patiently(self.read)

    def has_ended(self) -> bool:
        """Whether its host reports that it has ended."""
        status = self.backends.get(self.node.backend).poll(self.node, [self.attempt])[self.attempt]
        return status is None or status.state.ended

    def is_gone(self) -> bool:
        """Whether its node does not have the output, as after the node was made anew."""
        return not self.backends.get(self.node.backend).log_ends(self.node, [self.attempt])

    def step(self) -> bytes | None:
        """The next piece; None at the end of an attempt that has ended, and empty if more may come."""
        final = self.final  # by now: what is read after an attempt ended is all of it
        data = self.read()
        if data:
            return data
        if final:
            return None
        if self.has_ended():
            self.final = True
            return self.read() or None
        return b""


def _patiently(function: Callable[[], T]) -> T:
    """Return what the function returns. A host that does not answer is asked again for a while."""
    from declarative.retry import Policy, call

    return call(function, policy=Policy(deadline=GIVE_UP, longest=5.0))


def unreadable(source: LogSource, error: ProviderError) -> Diagnostic:
    """Why the output of a rank is not there."""
    where = f"{source.record.address} on {source.node.address}"
    summary = f"the output of {where} cannot be read: {error.summary}"
    return Diagnostic(code="backend", summary=summary, hint=error.hint)


def begin(
    sources: Sequence[LogSource], *, tail: int | None, since: float | None, keep: bool
) -> tuple[list[LogSource], list[Diagnostic]]:
    """Put each source where its output is to begin; those that are to be read, and what was wrong.

    Those that are quiet for longer than `since` seconds are left out; with `keep` they begin at their ends.
    """
    if tail is None and since is None:
        return list(sources), []
    readers = Readers(len(sources))
    for source in sources:
        readers.submit(source, partial(_place, source, tail, since))
    wanted: set[LogSource] = set()
    faults: dict[int, Diagnostic] = {}
    for _ in sources:
        source, result = readers.result()
        found = _placed(source, result)
        if isinstance(found, Diagnostic):
            faults[source.rank] = found
        elif found or keep:
            wanted.add(source)
    return [s for s in sources if s in wanted], [faults[rank] for rank in sorted(faults)]


def _placed(source: LogSource, result: object) -> object:
    """The result of `_place`, or the message of the backend's fault."""
    from declarative.provider import ProviderError

    if isinstance(result, ProviderError):
        return unreadable(source, result)
    if isinstance(result, Exception):
        raise result
    return result


def _place(source: LogSource, tail: int | None, since: float | None) -> bool:
    """Whether it has printed something lately."""
    provider = source.backends.get(source.node.backend)

    end = _patiently(partial(provider.log_ends, source.node, [source.attempt])).get(source.attempt)
    if end is None:
        return since is None
    if since is not None and end.quiet > since:
        source.offset = end.size
        return False
    if tail is not None:
        source.offset = _from_end(source, end.size, tail)
    return True


def _from_end(source: LogSource, size: int, lines: int) -> int:
    """Where the last lines begin. Read backwards, a piece at a time, and only newlines are counted."""
    provider = source.backends.get(source.node.backend)
    left, at = lines, size
    while at > 0 and lines > 0:
        start = max(0, at - PIECE)
        read = partial(provider.read_log, source.node, source.attempt, start, at - start)
        data = _patiently(read)
        if not data:  # it was cleared away meanwhile
            return size
        here = len(data) - 1 if at == size and data.endswith(b"\n") else len(data)
        while (here := data.rfind(b"\n", 0, here)) >= 0:
            left -= 1
            if left == 0:
                return start + here + 1
        at = start
    return 0 if lines else size


def dump(sources: Sequence[LogSource], printer: Printer) -> list[Diagnostic]:
    """Print all that is there, by rank; what could not be read."""
    from declarative.provider import ProviderError

    readers = Readers(len(sources))
    asked = 0
    for source in sources:
        source.largest = max(PIECE, min(LARGEST, TOGETHER // len(sources)))
    came: dict[LogSource, Any] = {}
    faults: list[Diagnostic] = []
    for number, source in enumerate(sources):
        while asked < min(len(sources), number + AT_ONCE):
            readers.submit(sources[asked], sources[asked].patiently)
            asked += 1
        while True:
            while source not in came:
                other, result = readers.result()
                came[other] = result
            data = came.pop(source)
            if isinstance(data, ProviderError):
                faults.append(unreadable(source, data))
                break
            if isinstance(data, Exception):
                raise data
            if not data:
                break
            source.offset += len(data)
            readers.submit(source, source.patiently)  # while this is printed
            printer.add(source.rank, data)
        printer.end(source.rank)
    return faults


def gone(sources: Sequence[LogSource]) -> list[Diagnostic]:
    """The ranks whose output their nodes do not have. `sources` have ended, and nothing of them was read."""
    readers = Readers(len(sources))
    for source in sources:
        readers.submit(source, source.is_gone)
    results = dict(readers.result() for _ in sources)
    return [
        Diagnostic(
            code="gone",
            summary=f"the output of {source.record.address} is gone: {source.node.address} does not have it",
            hint="where a rank starts, only the output of its last two attempts is kept, and it goes with "
            "its node; write what has to outlive that to a volume",
        )
        for source in sources
        if results[source] is True
    ]


@struct(slots=True, eq=False)
class _Track:
    """One rank that is followed."""

    source: LogSource
    due: float = 0.0
    pause: float = FIRST
    busy: bool = False
    over: bool = False
    away: float | None = None
    """When its host stopped answering."""


@struct(slots=True)
class Follower:
    """Follows the ranks of a task until all have ended, into new attempts as well."""

    look: Callable[[], tuple[Sequence[Record], State]]
    """The records of the ranks that are followed now, and the state that they are of."""
    source: Callable[[Record, State], LogSource | None]
    printer: Printer
    tracks: dict[int, _Track] = field(default_factory=dict)
    faults: list[Diagnostic] = field(default_factory=list)

    def follow(self, sources: Iterable[LogSource]) -> list[Diagnostic]:
        """Print new output; at the end, the ranks that could not be read."""
        self.tracks = {source.rank: _Track(source) for source in sources}
        readers = Readers(AT_ONCE)
        next_look = 0.0
        while True:
            now = time.monotonic()
            if now >= next_look or all(track.over for track in self.tracks.values()):
                self._renew()
                next_look = now + max(FIRST, 5 * (time.monotonic() - now))  # a large state takes its time
            going = [track for track in self.tracks.values() if not track.over]
            if not going:
                return self.faults
            for track in going:
                if not track.busy and track.due <= now:
                    track.busy = True
                    readers.submit(track, track.source.step)
            with suppress(queue.Empty):
                self._take(*readers.result(FIRST))

    def _renew(self) -> None:
        """Ranks that were started anew, or for the first time; those that are recorded to have ended."""
        records, state = self.look()
        for record in records:
            rank = record.rank.rank
            track = self.tracks.get(rank)
            status = state.ranks.get(record.address.name)
            if track and track.source.record.generation == record.generation:
                track.source.final |= bool(status and status.state.ended)
            elif track is None or track.over:
                source = self.source(record, state)
                if source:
                    self.tracks[rank] = _Track(source)
                    _say(f"{record.address}: attempt {record.generation}")

    def _take(self, track: _Track, result: Any) -> None:
        """Print a piece, or note why there is none; then say when the rank is read again."""
        from declarative.provider import ProviderError

        track.busy = False
        now = time.monotonic()
        if isinstance(result, ProviderError):
            self._take_fault(track, result, now)
            return
        if isinstance(result, Exception):
            raise result
        if track.away is not None:
            _say(f"{track.source.record.address}: its host answers again")
            track.away = None
        if result is None:
            self._close(track)
        elif result:
            track.source.offset += len(result)
            self.printer.add(track.source.rank, result)
            if len(result) < PIECE:
                self.printer.caught_up(track.source.rank)
            track.pause, track.due = FIRST, now
        else:
            self.printer.caught_up(track.source.rank)
            track.due = now + track.pause
            track.pause = min(QUIET, track.pause * 1.5)

    def _take_fault(self, track: _Track, error: ProviderError, now: float) -> None:
        """Try again later; give up after a permanent error, or when the rank is known to have ended."""
        from declarative.provider import PermanentError

        first = track.away is None
        track.away = now if track.away is None else track.away
        gone = track.source.final and now - track.away >= GIVE_UP
        if isinstance(error, PermanentError) or gone:
            self.faults.append(unreadable(track.source, error))
            self._close(track)
            return
        if first:
            address = track.source.record.address
            _say(f"{address}: {error.summary}; it is tried again until its host answers")
            track.pause = FIRST
        track.pause = min(LONGEST_WAIT, track.pause * 2)
        track.due = now + track.pause

    def _close(self, track: _Track) -> None:
        track.over = True
        self.printer.end(track.source.rank)


def _say(text: str) -> None:
    from declarative.model.text import clean

    sys.stderr.write(f"{clean(text)}\n")
    sys.stderr.flush()
