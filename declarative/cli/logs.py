"""`fleetform logs`: reads the output of many ranks side by side, in bounded pieces, and goes on where a
connection was lost. Each line of several ranks has its own prefix, in bounded memory however long it is.
"""

from __future__ import annotations

import codecs
import io
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from declarative.cli.options import (
    Seconds,
    declared,
    examples,
    find_ranks,
    node_of,
    observed,
    parse_target,
    project_command,
    rank_option,
    ranks_argument,
    ranks_of,
)
from declarative.cli.output import CommandEscaper, say_line
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import Diagnostic, InvalidError, failed
from declarative.model.record import struct
from declarative.model.text import clean

if TYPE_CHECKING:
    from declarative.apply.backends import Backends
    from declarative.model.resource import Desired
    from declarative.model.state import Record, State
    from declarative.provider import ProviderError
    from declarative.store import Store
    from declarative.store.journal import EarlierAttempt

T = TypeVar("T")
TO_A_VOLUME = "write what has to outlive a node to a volume"
AGAIN = "is to run again, as its `retry` says: `apply --wait` does that, or the next `fleetform apply`"


@click.command(
    "logs",
    epilog=examples(
        "fleetform logs train",
        "fleetform logs train/0 -f",
        "fleetform logs train -f --tail 10",
        "fleetform logs train --since 10m -n 3",
        "fleetform logs train/0 --previous",
    ),
)
@ranks_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the ranks have ended.")
@rank_option
@click.option(
    "-n", "--tail", metavar="LINES", type=click.IntRange(min=0), help="Of each rank, only the last lines."
)
@click.option(
    "--since",
    metavar="DURATION",
    type=Seconds(),
    help="Leave out ranks that have printed nothing for so long (`90`, `10m`).",
)
@click.option(
    "--attempt",
    metavar="N",
    type=click.IntRange(min=1),
    help="The output of an earlier attempt, by its number.",
)
@click.option("--previous", is_flag=True, help="The output of the attempt before the last one.")
@click.option(
    "--timestamps", is_flag=True, help="Begin each line with the time at which it was read; see below."
)
@click.option("--raw", is_flag=True, help="Print everything as it is: colours, and what moves the cursor.")
@partial(project_command, short_names=())  # `-f` follows
def logs_command(
    session: ProjectSession,
    target: str,
    rank: int | None,
    follow: bool,
    raw: bool,
    timestamps: bool,
    attempt: int | None,
    previous: bool,
    **options: Any,
) -> int:
    """Print the output of a task's ranks, one after the other; with --follow, as it comes. With several
    ranks, each line begins with its rank.

    On a terminal, control characters are shown and not obeyed; anywhere, what a CI agent would take for its
    commands (`##[`, `::` at the start of a line) is broken. --raw leaves both as they are.

    After a retry, --previous prints the output of the attempt before, and --attempt that of any other;
    `status` counts attempts. Where a rank starts, only the output of its last two attempts is kept.

    Hosts do not note when a line was written. So --timestamps gives a time (UTC) only to lines that come
    while --follow looks; lines that were there before begin with `-`. For the same reason --since leaves out
    ranks that have been quiet for so long, by their hosts' clocks, and prints the others from their
    beginning, or with --tail their last lines. With --follow, quiet ranks are shown from where they go on.

    --follow waits for a host that does not answer, and goes on where it was: nothing is left out, nothing
    comes twice. When a rank is started anew while others run, it goes on with that attempt; once all have
    ended it ends, and says if the task is to run again. Exits 1 if the output of a rank cannot be read.
    """
    from declarative.render.output_json import iso_ms

    desired = declared(session, some=True)
    task, only_rank = parse_target(target, rank)
    store = session.state.open(desired)
    state = store.read()
    state = observed(session, desired, state) if state.intents else state
    earlier = attempt is not None or previous
    if previous and attempt is not None:
        summary = "`--attempt` and `--previous` both say which attempt"
        raise failed("usage", summary, "write one of the two")
    if earlier:
        records = _earlier(store, state, task, only_rank, attempt)
    else:
        records = find_ranks(state, task, only_rank)
    if follow and not all(state.get("rank", r.address.name) == r for r in records):
        summary = "an earlier attempt has ended: there is nothing to follow"
        raise failed("usage", summary, "leave out `--follow`")
    backends = session.backends(desired, state)
    sources: list[LogSource] = []
    for record in records:
        node = node_of(record, state)
        if node is None:
            summary = f"the node of {record.address} is gone, and its output with it"
            raise failed("gone", summary, TO_A_VOLUME)
        sources.append(LogSource(record, node, backends))
    printer = Printer(
        sys.stdout.buffer,
        prefixed=len(records) > 1,
        terminal=sys.stdout.isatty(),
        raw=raw,
        stamp=(lambda: iso_ms(session.clock())) if timestamps else None,
    )
    sources, faults = begin(sources, **options, keep=follow)
    if follow:

        def look() -> tuple[list[Record], State]:
            state = store.read()
            records = [r for r in ranks_of(state, task) if only_rank in (None, r.rank.rank)]
            return [r for r in records if attempt in (None, r.generation)], state

        def source(record: Record, state: State) -> LogSource | None:
            node = node_of(record, state)
            return LogSource(record, node, session.backends(desired, state)) if node else None

        faults += Follower(look, source, printer).follow(sources)
        _say_retry(session, desired, store.read(), task)
    else:
        faults += dump(sources, printer)
    ended = (s for s in sources if earlier or state.has_ended(s.record.address.name))
    faults += gone([s for s in ended if not s.offset])
    sys.stdout.flush()
    if faults:
        raise InvalidError(tuple(faults))
    return 0


def _earlier(
    store: Store, state: State, task: str, only_rank: int | None, attempt: int | None
) -> list[Record]:
    """The ranks of a task as they were in an attempt, or each in the one before its last; `InvalidError` if
    there is none, or if its node is gone.
    """
    from declarative.model.state import machine_name, never_ran

    earlier = store.journal.earlier_attempts(task)
    attempts = [one for one in earlier if only_rank in (None, one.record.rank.rank)]
    ran = {r.rank.rank: r for r in ranks_of(state, task) if not never_ran(r)}
    last = {rank: record for rank, record in ran.items() if only_rank in (None, rank)}
    chosen: dict[int, EarlierAttempt] = {}
    for one in attempts:
        rank, number = one.record.rank.rank, one.record.generation
        # A rank without a record is between two attempts.
        is_earlier = rank not in last or number < last[rank].generation
        if number == attempt or (attempt is None and is_earlier):
            chosen[rank] = one
    recorded = [record for record in last.values() if record.generation == attempt]
    if not chosen and not recorded:
        numbers = sorted({r.generation for r in (*last.values(), *(one.record for one in attempts))})
        which = f"attempt {attempt}" if attempt is not None else "earlier attempt"
        hint = f"its attempts are {', '.join(map(str, numbers))}" if numbers else "it has not run"
        raise failed("unknown-attempt", f"task/{task} has no {which} that is remembered", hint)
    machines = {machine_name(node) for node in state.of("node")}
    lost = [one.record for _, one in sorted(chosen.items()) if one.machine not in machines]
    if lost:
        raise InvalidError(
            Diagnostic(
                code="gone",
                summary=f"the output of attempt {record.generation} of {record.address} is gone: it was on "
                f"node/{record.node_name}, which was deleted or made anew since",
                hint=TO_A_VOLUME,
            )
            for record in lost
        )
    return sorted((*recorded, *(one.record for one in chosen.values())), key=lambda r: r.rank.rank)


def _say_retry(session: ProjectSession, desired: Desired | None, state: State, task: str) -> None:
    """Tell a user who waits for the task's end that the task is to run again."""
    from declarative.planner.tasks import due_retry

    want = desired.tasks.get(task) if desired else None
    if want is None or not want.spec.retry.on_events:
        return
    state = observed(session, desired, state)
    if due_retry(want, ranks_of(state, task), state, session.clock()):
        sys.stderr.write(f"task/{task} {AGAIN}\n")


# ----------------------------------------------------------------------------------------- reading

PIECE = 256 * 1024
"""Bytes that are read at once, at first."""
LARGEST, TOGETHER = 16 * PIECE, 32 * PIECE
"""The same later, where a rank has much to read and its host answers quickly; and of all ranks together: each
read costs its host a process.
"""
QUICK = 1.0
"""Seconds within which a host answers quickly."""
AT_ONCE = 32
"""Ranks that are read side by side; each has one piece in memory at most."""
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
        self._work.put((key, function))

    def result(self, timeout: float | None = None) -> tuple[Any, Any]:
        """A key, and what its function returned or raised; raises `queue.Empty` after the timeout."""
        return self._done.get(timeout=timeout)

    def _run(self) -> None:
        while True:
            key, function = self._work.get()
            try:
                answer = function()
            except Exception as error:  # noqa: BLE001  # it is the main thread's to raise
                answer = error
            self._done.put((key, answer))


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
    """Put each source where its output begins. Returns the sources to read, and the faults.

    Those that are quiet for longer than `since` seconds are left out; with `keep` they begin at their ends.
    """
    from declarative.provider import ProviderError

    if tail is None and since is None:
        return list(sources), []
    readers = Readers(len(sources))
    for source in sources:
        readers.submit(source, partial(_place, source, tail, since))
    chosen: set[LogSource] = set()
    faults: dict[int, Diagnostic] = {}
    for _ in sources:
        source, answer = readers.result()
        if isinstance(answer, ProviderError):
            faults[source.rank] = unreadable(source, answer)
        elif isinstance(answer, Exception):
            raise answer
        elif answer or keep:
            chosen.add(source)
    return [s for s in sources if s in chosen], [faults[rank] for rank in sorted(faults)]


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
    """Where the last lines begin. It reads backwards, a piece at a time, and counts only newlines."""
    provider = source.backends.get(source.node.backend)
    more, at = lines, size
    while at > 0 and lines > 0:
        start = max(0, at - PIECE)
        data = _patiently(partial(provider.read_log, source.node, source.attempt, start, at - start))
        if not data:  # it was cleared away meanwhile
            return size
        here = len(data) - 1 if at == size and data.endswith(b"\n") else len(data)
        while (here := data.rfind(b"\n", 0, here)) >= 0:
            more -= 1
            if more == 0:
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
            readers.submit(sources[asked], partial(_patiently, sources[asked].read))
            asked += 1
        while True:
            while source not in came:
                other, answer = readers.result()
                came[other] = answer
            data = came.pop(source)
            if isinstance(data, ProviderError):
                faults.append(unreadable(source, data))
                break
            if isinstance(data, Exception):
                raise data
            if not data:
                break
            source.offset += len(data)
            readers.submit(source, partial(_patiently, source.read))  # while this is printed
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
                    say_line(clean(f"{record.address}: attempt {record.generation}"))

    def _take(self, track: _Track, answer: Any) -> None:
        """Print a piece, or note why there is none; then say when the rank is read again. A rank is given up
        after a permanent error, and when it is known to have ended and its host stays silent.
        """
        from declarative.provider import PermanentError, ProviderError

        track.busy = False
        now = time.monotonic()
        if isinstance(answer, PermanentError) or (
            isinstance(answer, ProviderError)
            and track.source.final
            and track.away is not None
            and now - track.away >= GIVE_UP
        ):
            self.faults.append(unreadable(track.source, answer))
            self._close(track)
            return
        if isinstance(answer, ProviderError):  # it is tried again later
            if track.away is None:
                address, track.away, track.pause = track.source.record.address, now, FIRST
                say_line(clean(f"{address}: {answer.summary}; it is tried again until its host answers"))
            track.pause = min(LONGEST_WAIT, track.pause * 2)
            track.due = now + track.pause
            return
        if isinstance(answer, Exception):
            raise answer
        if track.away is not None:
            say_line(clean(f"{track.source.record.address}: its host answers again"))
            track.away = None
        if answer is None:
            self._close(track)
        elif answer:
            track.source.offset += len(answer)
            self.printer.add(track.source.rank, answer)
            if len(answer) < PIECE:
                self.printer.caught_up(track.source.rank)
            track.pause, track.due = FIRST, now
        else:
            self.printer.caught_up(track.source.rank)
            track.due = now + track.pause
            track.pause = min(QUIET, track.pause * 1.5)

    def _close(self, track: _Track) -> None:
        track.over = True
        self.printer.end(track.source.rank)


# ------------------------------------------------------------------------------------------- the lines

LONGEST = 64 * 1024
"""Bytes of a line that are held back for its end; a longer one is printed in pieces."""
_MOVING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+")
"""Characters that move a terminal's cursor, answer for its user, or hide text. Tabs and line ends do not."""


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
        self._as_it_is = not (terminal or prefixed)
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=terminal or prefixed)

    def __call__(self, data: bytes, *, final: bool = False) -> bytes:
        if self._as_it_is:
            return data
        text = self._decoder.decode(data, final=final)
        if self._terminal and _MOVING.search(text):
            text = _MOVING.sub(lambda match: clean(match.group()), text)
        return text.encode(self._encoding)


class Printer:
    """One output for all ranks. Without prefixes, text is passed on at once.

    `raw` passes on everything as it is. Else text is made safe for a terminal, if it goes to one, and cannot
    be a command to a CI agent. With a `stamp`, each line begins with the time that this gives, once its rank
    has caught up.
    """

    def __init__(
        self,
        out: BinaryIO | io.RawIOBase,
        *,
        prefixed: bool,
        terminal: bool = False,
        raw: bool = False,
        stamp: Callable[[], str] | None = None,
    ) -> None:
        self._out = out
        self._escape = None if raw else CommandEscaper()
        self._many = prefixed
        self._prefixed = prefixed or stamp is not None
        self._stamp = stamp
        self._live: set[int] = set()
        self._terminal = terminal
        self._safe: dict[int, Safe] | None = None if raw else {}
        self._held: dict[int, bytes] = {}
        """Rank → the part of its last line that has come so far."""
        self._open: int | None = None
        """The rank whose line on the screen has no end yet."""

    def add(self, rank: int, data: bytes, *, final: bool = False) -> None:
        """Print whole lines of a rank's output, and a last part if it is too long to be held."""
        if self._safe is not None:
            if rank not in self._safe:
                self._safe[rank] = Safe(terminal=self._terminal, prefixed=self._prefixed)
            data = self._safe[rank](data, final=final)
        if not data:
            return
        if not self._prefixed:
            self._write(data)
            self._out.flush()
            self._open = None if data.endswith(b"\n") else rank
            return
        whole, newline, rest = (self._held.pop(rank, b"") + data).rpartition(b"\n")
        if newline:
            self._lines(rank, whole)
        if len(rest) > LONGEST:
            self._begin(rank)
            self._write(rest)
            self._open = rank
        elif rest:
            self._held[rank] = rest
        self._out.flush()

    def caught_up(self, rank: int) -> None:
        """All that a rank had written when it was first read is printed: what comes now is new."""
        self._live.add(rank)

    def end(self, rank: int) -> None:
        """A rank has no more output: its last line gets a line end if it has none."""
        self.add(rank, b"", final=True)
        rest = self._held.pop(rank, b"")
        if not self._prefixed and self._open == rank:
            self._write(b"\n")
        elif rest or self._open == rank:
            self._lines(rank, rest)
        self._out.flush()

    def held(self) -> int:
        return sum(map(len, self._held.values()))

    def _lines(self, rank: int, text: bytes) -> None:
        """`text` is lines, the last one without its newline."""
        self._begin(rank)
        self._open = None
        self._write(text.replace(b"\n", b"\n" + self._prefix(rank)) + b"\n")

    def _begin(self, rank: int) -> None:
        """Go on with this rank's line, if that is open, or begin one."""
        if self._open == rank:
            return
        if self._open is not None:
            self._write(b"\n")
        self._write(self._prefix(rank))

    def _prefix(self, rank: int) -> bytes:
        prefix = f"{rank} | " if self._many else ""
        if self._stamp is not None:
            time = self._stamp() if rank in self._live else "-"
            prefix = f"{time:24} {prefix}"
        return prefix.encode()

    def _write(self, data: bytes) -> None:
        """Write bytes that are no commands to a CI agent."""
        self._out.write(self._escape(data.decode("latin-1")).encode("latin-1") if self._escape else data)
