"""`fleetform logs`: which ranks are printed, and how their lines come out side by side.

Each line of several ranks has its own prefix, in bounded memory however long it is. `log_reading` reads them.
"""

from __future__ import annotations

import codecs
import io
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

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
from declarative.cli.output import CommandEscaper
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import Diagnostic, InvalidError, failed

if TYPE_CHECKING:
    from declarative.cli.log_reading import LogSource
    from declarative.model.resource import Desired
    from declarative.model.state import Record, State
    from declarative.store import Store
    from declarative.store.journal import EarlierAttempt

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
    from declarative.cli.log_reading import Follower, LogSource, begin, dump, gone
    from declarative.render.data import iso_ms

    desired = declared(session, some=True)
    task, wanted = parse_target(target, rank)
    store = session.state.open(desired)
    state = store.read()
    state = observed(session, desired, state) if state.intents else state
    earlier = attempt is not None or previous
    if previous and attempt is not None:
        summary = "`--attempt` and `--previous` both say which attempt"
        raise failed("usage", summary, "write one of the two")
    records = _earlier(store, state, task, wanted, attempt) if earlier else find_ranks(state, task, wanted)
    if follow and not all(state.get("rank", r.address.name) == r for r in records):
        raise failed(
            "usage", "an earlier attempt has ended: there is nothing to follow", "leave out `--follow`"
        )
    backends = session.backends(desired, state)
    sources = [LogSource(record, _node(record, state), backends) for record in records]
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
            found = [r for r in ranks_of(state, task) if wanted in (None, r.rank.rank)]
            return [r for r in found if attempt in (None, r.generation)], state

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


def _node(record: Record, state: State) -> Record:
    """The node that has a rank's output."""
    node = node_of(record, state)
    if node is None:
        summary = f"the node of {record.address} is gone, and its output with it"
        raise failed("gone", summary, "write what has to outlive a node to a volume")
    return node


def _earlier(store: Store, state: State, task: str, wanted: int | None, attempt: int | None) -> list[Record]:
    """The ranks of a task as they were in an attempt, or each in the one before its last; `InvalidError` if
    there is none, or if its node is gone.
    """
    from declarative.model.state import machine_name, never_ran

    before = [one for one in store.earlier_attempts(task) if wanted in (None, one.record.rank.rank)]
    last = {
        r.rank.rank: r for r in ranks_of(state, task) if wanted in (None, r.rank.rank) and not never_ran(r)
    }
    chosen: dict[int, EarlierAttempt] = {}
    for one in before:
        rank, number = one.record.rank.rank, one.record.generation
        # A rank without a record is between two attempts.
        is_earlier = rank not in last or number < last[rank].generation
        if number == attempt or (attempt is None and is_earlier):
            chosen[rank] = one
    found = [record for record in last.values() if record.generation == attempt]
    if not chosen and not found:
        numbers = sorted({r.generation for r in (*last.values(), *(one.record for one in before))})
        which = f"attempt {attempt}" if attempt is not None else "earlier attempt"
        hint = f"its attempts are {', '.join(map(str, numbers))}" if numbers else "it has not run"
        raise failed("unknown-attempt", f"task/{task} has no {which} that is remembered", hint)
    machines = {machine_name(node) for node in state.of("node")}
    lost = [one.record for _, one in sorted(chosen.items()) if one.machine not in machines]
    if lost:
        raise InvalidError(tuple(map(_lost_with_node, lost)))
    return sorted((*found, *(one.record for one in chosen.values())), key=lambda r: r.rank.rank)


def _lost_with_node(record: Record) -> Diagnostic:
    summary = (
        f"the output of attempt {record.generation} of {record.address} is gone: it was on "
        f"node/{record.outputs['node']}, which was deleted or made anew since"
    )
    return Diagnostic(code="gone", summary=summary, hint="write what has to outlive a node to a volume")


def _say_retry(session: ProjectSession, desired: Desired | None, state: State, task: str) -> None:
    """Tell a user who waits for the task's end that the task is to run again."""
    from declarative.planner.tasks import due_retry

    want = desired.tasks.get(task) if desired else None
    if want is None or not want.spec.retry.on_events:
        return
    state = observed(session, desired, state)
    if due_retry(want, ranks_of(state, task), state, session.clock()):
        sys.stderr.write(f"task/{task} {AGAIN}\n")


# ------------------------------------------------------------------------------------------- the lines

LONGEST = 64 * 1024
"""Bytes of a line that are held back for its end; a longer one is printed in pieces."""
_MOVING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]+")
"""Characters that move a terminal's cursor, answer for its user, or hide text. Tabs and line ends do not."""


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
        self._as_it_is = not (terminal or prefixed)
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=terminal or prefixed)

    def __call__(self, data: bytes, *, final: bool = False) -> bytes:
        """The next piece."""
        if self._as_it_is:
            return data
        text = self._decoder.decode(data, final=final)
        if self._terminal and _MOVING.search(text):
            from declarative.model.text import clean

            text = _MOVING.sub(lambda found: clean(found.group()), text)
        return text.encode(self._encoding)


class Printer:
    """One output for all ranks. Without prefixes, text is passed on at once.

    `raw` passes on everything as it is. Else text is made safe for a terminal, if it goes to one, and cannot
    be a command to a CI agent. With a `stamp`, each line begins with
    the time that this gives, once its rank has caught up.
    """

    def __init__(
        self,
        out: Out,
        *,
        prefixed: bool,
        terminal: bool = False,
        raw: bool = False,
        stamp: Callable[[], str] | None = None,
    ) -> None:
        self._out = out if raw else _EscapedOut(out)
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

    def add(self, rank: int, data: bytes) -> None:
        """Print whole lines of a rank's output, and a last part if it is too long to be held."""
        self._add(rank, self._made_safe(rank, data))

    def caught_up(self, rank: int) -> None:
        """All that a rank had written when it was first read is printed: what comes now is new."""
        self._live.add(rank)

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
        prefix = f"{rank} | " if self._many else ""
        if self._stamp is not None:
            time = self._stamp() if rank in self._live else "-"
            prefix = f"{time:24} {prefix}"
        return prefix.encode()


class _EscapedOut:
    """An output whose bytes are no commands to a CI agent."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._escape = CommandEscaper()

    def write(self, data: bytes) -> object:
        return self._out.write(self._escape(data.decode("latin-1")).encode("latin-1"))

    def flush(self) -> object:
        return self._out.flush()
