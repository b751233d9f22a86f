"""The progress and the result of an apply: bars on a terminal, plain lines elsewhere, JSON lines for
programs. Among plain lines, many alike actions share a few, so that the log of a CI job can be read.

`Progress` is the only part of `render` that writes: to the stream that it is given. It is safe to use from
several threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO

from rich.console import Console, Group
from rich.live import Live as Display
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from declarative.model.record import struct
from declarative.model.text import and_more, clean, host_lists, numberless
from declarative.render.output_json import output, to_event
from declarative.render.text import Paint, seal, sentence

if TYPE_CHECKING:
    from declarative.apply.failover import Move
    from declarative.apply.graph_walk import ActionResult

MOST_RUNNING = 8
"""At most so many running actions have their own line."""


class Live:
    """Draws on a terminal. Texts are already clean; rich's markup in them has no effect."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
        text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
        self._actions = Bars(SpinnerColumn(), text, TimeElapsedColumn(), console=self._console)
        self._bars = Bars(
            BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), console=self._console
        )
        self._all = self._bars.add_task("all actions", total=0)
        self._display = Display(
            Group(self._actions, self._bars),
            console=self._console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            refresh_per_second=8,
        )
        self._running: dict[str, TaskID] = {}
        self._waiting: dict[str, str] = {}

    def stop(self) -> None:
        """Take the bar away and keep the lines. The next action shows it again."""
        self._display.stop()

    def begin(self, id: str, text: str, total: int) -> None:
        """Show an action on its own line, if there is room."""
        self._bars.update(self._all, total=total)
        self._display.start()
        if len(self._running) < MOST_RUNNING:
            self._running[id] = self._actions.add_task(text, total=None)
        else:
            self._waiting[id] = text

    def change(self, id: str, text: str) -> None:
        """Change the text of a running action."""
        if id in self._running:
            self._actions.update(self._running[id], description=text)
        elif id in self._waiting:
            self._waiting[id] = text

    def end(self, id: str) -> None:
        """Remove the action's line, which gives room to the next action."""
        self._waiting.pop(id, None)
        task = self._running.pop(id, None)
        if task is not None:
            self._actions.remove_task(task)
            if self._waiting:
                follower = next(iter(self._waiting))
                self._running[follower] = self._actions.add_task(self._waiting.pop(follower), total=None)
        self._bars.advance(self._all)

    def line(self, text: str, style: str | None) -> None:
        """Write a line that stays."""
        self._console.print(Text(text, style=style or ""))


MOST_SKIPPED = 10
"""At most so many skipped actions with the same cause are named; the rest are counted."""


def report_text(
    results: Iterable[ActionResult],
    *,
    color: bool,
    title: str = "Apply",
    forgotten: Collection[str] = (),
    origin: str = "",
    cut_short: bool = False,
) -> str:
    """The failures with their hints, the skipped actions with their causes, and the summary line.

    `forgotten` are the ids of deletes that only forget. `origin` says which project it was. `cut_short`: what
    follows the actions was not done.
    """
    ended = tuple(results)
    paint = Paint(color=color)
    lines = []
    for note, items in _notes(ended).items():
        lines += [f"{paint('yellow', 'elsewhere')}: {sentence(note)}", *_listed(items), ""]
    causes: dict[str, list[ActionResult]] = {}
    for result in ended:
        if result.outcome == "failed":
            error = sentence(result.error or "no cause is known")
            head = paint("red", f"failed[{clean(result.code)}]" if result.code else "failed")
            lines.append(f"{head}: {clean(result.op)} {paint('bold', clean(result.address))}: {error}")
            if result.hint:
                lines.append(f"  {paint('cyan', '=')} hint: {sentence(result.hint)}")
            lines.append("")
        elif result.outcome == "skipped":
            causes.setdefault(sentence(result.error or "what it needs was not done"), []).append(result)
    for cause, items in causes.items():
        lines += [f"{paint('yellow', 'skipped')}: {cause}", *_listed(items), ""]
    summary = _summary(ended, paint, title, forgotten, whole=not cut_short)
    return seal([*lines, f"{summary} {origin}." if origin else summary], color=color)


def result_json(result: ActionResult) -> dict[str, Any]:
    """One result as data."""
    return output(type(result), result)


def notes_json(results: Iterable[ActionResult]) -> list[dict[str, Any]]:
    """The notes of finished actions."""
    return [
        {"addresses": [i.address for i in items], "note": note} for note, items in _notes(results).items()
    ]


def _notes(results: Iterable[ActionResult]) -> dict[str, list[ActionResult]]:
    notes: dict[str, list[ActionResult]] = {}
    for result in results:
        if result.note and result.outcome == "done":
            notes.setdefault(result.note, []).append(result)
    return notes


def _listed(items: Sequence[ActionResult]) -> Iterator[str]:
    for result in items[:MOST_SKIPPED]:
        yield f"  {clean(result.op)} {clean(result.address)}"
    if len(items) > MOST_SKIPPED:
        yield f"  … {len(items) - MOST_SKIPPED} more"


def _summary(
    results: Sequence[ActionResult], paint: Paint, title: str, forgotten: Collection[str], *, whole: bool
) -> str:
    """What was done; if that was not all, also what comes next. A replacement counts once, as in the plan."""
    outcomes = [str(result.outcome) for result in results]
    done, failed, skipped = (outcomes.count(o) for o in ("done", "failed", "skipped"))
    if whole and not failed and not skipped:
        made, gone, changed = (
            {result.address for result in results if result.op == op} for op in ("create", "delete", "update")
        )
        forgot = sum(result.id in forgotten for result in results)
        counted = (
            (len(made - gone), "created"),
            (len(changed), "updated"),
            (len(gone - made), f"deleted ({forgot} only forgotten)" if forgot else "deleted"),
            (len(made & gone), "replaced"),
        )
        counts = ", ".join(f"{count} {what}" for count, what in counted if count) or "0 done"
        return paint("green", f"{title} complete: {counts}.")
    from declarative.apply.graph_walk import INTERRUPTED

    if any(result.error == INTERRUPTED for result in results):
        verdict, then = "was interrupted", " Run it again to go on."
    else:
        says_it = any(result.hint and "again" in result.hint for result in results)
        then = "" if says_it else f" The next `fleetform {title.lower()}` does the rest."
        verdict = "finished with problems"
    return paint("red", f"{title} {verdict}: {done} done, {failed} failed, {skipped} skipped.{then}")


Mode = Literal["live", "plain", "json"]
VERBS = {
    ("create", "reservation"): ("reserving", "reserved"),
    ("delete", "reservation"): ("releasing", "released"),
    ("create", "attachment"): ("attaching", "attached"),
    ("delete", "attachment"): ("detaching", "detached"),
    ("create", "rank"): ("starting", "started"),
    ("delete", "rank"): ("stopping", "stopped"),
}
PLAIN_VERBS = {
    "create": ("creating", "created"),
    "update": ("updating", "updated"),
    "delete": ("deleting", "deleted"),
}
GONE = "gone"
RECORD_VERBS = {
    "delete:rank": ("had ended, removing its record", "had ended, its record is removed"),
    **dict.fromkeys(("delete:volume", "delete:node"), ("releasing it", "released, it stays as it is")),
    **dict.fromkeys(("create:volume", "create:node"), ("adopting it", "adopted, it stays as it is")),
    GONE: ("it is gone, removing its record", "it is gone, its record is removed"),
}
"""Verbs for deletes that only remove a record, and for creates that only add one."""
MOST_NAMED = 4
"""At most so many nodes of a cluster are named when the cluster takes another offer."""
SAY_SECONDS = 1.0
"""Actions that took more seconds than this show their duration."""


def verbs(id: str, *, record: str | None = None) -> tuple[str, str, str]:
    """The address in an action's id (`create:volume/data-0`), and what is done to it, in the present and in
    the past.

    With `record`, a key of `RECORD_VERBS`, only its record is added or removed.
    """
    op, _, address = id.partition(":")
    kind = address.partition("/")[0]
    verbs = RECORD_VERBS.get(record) if record else None
    doing, did = verbs or VERBS.get((op, kind)) or PLAIN_VERBS.get(op) or (f"{op} begun", f"{op} done")
    return clean(address), clean(doing), clean(did)


SHARED = 10
"""So many alike actions, or more, share plain lines."""
NOW_AND_THEN = 30.0
"""Alike actions that go on have another line after so many seconds."""
LONGEST_NAME = 60


@struct(slots=True)
class AlikeActions:
    """Alike actions of a plan: they have a line at their beginning, one at their end, one at times."""

    name: str
    """`volume/data-[0-599]`, or `volumes`."""
    did: str
    size: int
    since: float | None = None
    written: float = 0.0
    outcomes: dict[str, str] = field(default_factory=dict)
    """The id of each action that ended → its outcome."""
    reasons: set[str] = field(default_factory=set)
    """The reasons to wait and to try again that have had their line."""

    def ended(self, now: float) -> str:
        """How they ended: `volume/data-[0-599]: 598 created, 2 failed (12s)`."""
        counts = {
            word: sum(outcome == which for outcome in self.outcomes.values())
            for which, word in (("done", self.did), ("failed", "failed"), ("skipped", "skipped"))
        }
        listed = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        return f"{self.name}: {listed}{self._took(now)}"

    def so_far(self, now: float) -> str:
        """How many have ended: `volume/data-[0-599]: 240 of 600 ended (1m 5s)…`."""
        return f"{self.name}: {len(self.outcomes)} of {self.size} ended{self._took(now)}…"

    def _took(self, now: float) -> str:
        seconds = 0.0 if self.since is None else now - self.since
        return f" ({duration(seconds)})" if seconds >= SAY_SECONDS else ""


def alike_actions(ids: Iterable[str], records: Mapping[str, str]) -> dict[str, AlikeActions]:
    """The id of each action that shares its lines → those that it shares them with.

    Names that differ in numbers alone are alike. Other names are so if they are many of one kind.
    """
    by_name: dict[tuple[str, str, str], list[str]] = {}
    for action in ids:
        op_and_kind, _, name = action.partition("/")
        did = verbs(action, record=records.get(action))[2]
        by_name.setdefault((op_and_kind, did, numberless(name)), []).append(action)
    groups: dict[tuple[str, str, str], list[str]] = {}
    for key, alike in by_name.items():
        groups.setdefault(key if len(alike) >= SHARED else (*key[:2], ""), []).extend(alike)
    out: dict[str, AlikeActions] = {}
    for (op_and_kind, did, _), alike in groups.items():
        if len(alike) >= SHARED:
            names = ", ".join(host_lists(clean(action.partition(":")[2]) for action in alike))
            kinds = f"{op_and_kind.partition(':')[2]}s"
            shared = AlikeActions(names if len(names) <= LONGEST_NAME else kinds, did, len(alike))
            out |= dict.fromkeys(alike, shared)
    return out


class Progress:
    """Reports actions as they happen. Use it as a context manager: the live display ends with it.

    The display is on only while actions run, so that it does not cover prompts and reports. `total` may be
    set later, once it is known.
    """

    def __init__(
        self, stream: TextIO, mode: Mode, total: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream = stream
        self.mode = mode
        self.total = total
        self._clock = clock
        self._lock = threading.Lock()
        self._started: dict[str, float] = {}
        self._ended = 0
        self._live: Live | None = None
        self._records: Mapping[str, str] = {}
        self._alike: dict[str, AlikeActions] = {}
        """See `alike_actions`."""
        self._held: list[str] | None = None
        """Lines to write in one piece."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._live:
                self._live.stop()

    def expect(
        self,
        more: int,
        records: Iterable[str] = (),
        ids: Iterable[str] = (),
        gone: Iterable[str] = (),
    ) -> None:
        """Expect so many further actions. Of `ids`, if they are given, those that are alike share lines.

        `records` are the ids of actions on records alone: deletes of ended ranks or of adopted things, and
        creates that adopt. Those that are `gone` among them delete the record of a thing that is not there.
        """
        with self._lock:
            self.total = self._ended + more
            self._records = {one: one.partition("/")[0] for one in records} | dict.fromkeys(gone, GONE)
            self._alike = alike_actions(ids, self._records) if self.mode == "plain" else {}

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write all lines of the block in one piece. Must not be nested."""
        with self._lock:
            self._held = []
        try:
            yield
        finally:
            with self._lock:
                held, self._held = self._held, None
                if held:
                    self._put("".join(held))

    def begin(self, id: str) -> None:
        """Report that an action starts."""
        address, doing, _ = verbs(id, record=self._records.get(id))
        with self._lock:
            self._started[id] = self._clock()
            self.total = max(self.total, self._ended + len(self._started))  # some actions are in no plan
            if self.mode == "live":
                self._display().begin(id, f"{address}: {doing}…", self.total)
            elif (alike := self._alike.get(id)) is None:
                self._write({"event": "begin", "id": id}, f"{address}: {doing}…")
            elif alike.since is None:
                alike.since = alike.written = self._started[id]
                self._write({}, f"{alike.name}: {doing} {alike.size}…")

    def retry(self, id: str, error: str, wait: float) -> None:
        """Report that a call failed and is tried again after `wait` seconds."""
        address, _, _ = verbs(id)
        text = f"{address}: trying again in {wait:.1f}s: {sentence(error)}"
        with self._lock:
            if self._is_new(id, error):
                event = {"event": "retry", "id": id, "error": error, "wait": round(wait, 3)}
                self._write(event, text, "yellow")

    def wait(self, id: str, what: str, why: str) -> None:
        """Report that an action waits for something."""
        address, _, _ = verbs(id)
        text = f"{address}: waiting for {clean(what)}: {sentence(why)}"
        with self._lock:
            if self.mode == "live":
                self._display().change(id, text)
            elif self._is_new(id, f"{what} {why}"):
                self._write({"event": "wait", "id": id, "for": what, "reason": why}, text)

    def _is_new(self, id: str, why: str) -> bool:
        """Whether the reason is to be written. Of alike actions the first one with a reason has the line."""
        alike, reason = self._alike.get(id), numberless(why)
        if alike is None:
            return True
        new = reason not in alike.reasons
        alike.reasons.add(reason)
        return new

    def end(self, result: ActionResult) -> None:
        """Report the end of an action. A skipped one never started: the report at the end lists it."""
        address, _, did = verbs(result.id, record=self._records.get(result.id))
        with self._lock:
            started = self._started.pop(result.id, None)
            seconds = 0.0 if started is None else self._clock() - started
            took = f" ({duration(seconds)})" if seconds >= SAY_SECONDS else ""
            if result.outcome == "done":
                note = f" {sentence(result.note)}" if result.note else ""
                text, style = f"{address}: {did}{took}{note}", "green"
            else:
                why = f": {sentence(result.error)}" if result.error else ""
                text = f"{address}: {result.outcome}{took}{why}"
                style = "red" if result.outcome == "failed" else "yellow"
            self._ended += 1
            event = {"event": "end", **result_json(result)} if self.mode == "json" else {}
            alike = self._alike.get(result.id)
            shares = alike is not None and result.outcome == "done" and not result.note
            if self.mode == "json" or not (shares or result.outcome == "skipped"):
                self._write(event, text, style)
            if alike is not None:
                alike.outcomes[result.id] = result.outcome
                # Without a begin all were skipped: the report names them.
                if alike.since is not None and len(alike.outcomes) == alike.size:
                    self._write({}, alike.ended(self._clock()), "green")
                elif alike.since is not None and self._clock() - alike.written >= NOW_AND_THEN:
                    alike.written = self._clock()
                    self._write({}, alike.so_far(alike.written))
            if self._live:
                self._live.end(result.id)
                if not self._started and self._ended >= self.total:
                    self._live.stop()

    def move(self, move: Move, more: int) -> None:
        """Report that an offer is not available and nodes take another one, which adds `more` actions."""
        event = {
            "event": "failover",
            "addresses": [f"node/{name}" for name in move.nodes],
            "refused": move.refused,
            "error": move.error,
            "next": move.taken,
        }
        then = f"trying {clean(move.taken)}" if move.taken else "nothing else is left to try"
        nodes = and_more((f"node/{clean(name)}" for name in move.nodes), MOST_NAMED)
        text = f"{nodes}: {clean(move.refused)}: {sentence(move.error)}: {then}"
        with self._lock:
            self.total += more
            self._write(event, text, "yellow")

    def note(self, text: str) -> None:
        """Report something that belongs to no single action."""
        with self._lock:
            self._write({"event": "note", "text": text}, sentence(text))

    def rank(self, address: str, state: str, cause: str | None = None) -> None:
        """Report a rank's new state."""
        why = f": {sentence(cause)}" if cause else ""
        style = {"failed": "red", "lost": "red", "succeeded": "green"}.get(state)
        with self._lock:
            self._write(
                {"event": "rank", "address": address, "state": state, "cause": cause},
                f"{clean(address)}: {clean(state)}{why}",
                style,
            )

    def _display(self) -> Live:
        """The live display, made when first needed because rich is slow to load."""
        if self._live is None:
            self._live = Live(self.stream)
        return self._live

    def _write(self, event: dict[str, Any], text: str, style: str | None = None) -> None:
        """Write one event as one line. The caller holds the lock."""
        if self.mode == "live":
            self._display().line(text, style)
            return
        line = (to_event(event) if self.mode == "json" else text) + "\n"
        if self._held is None:
            self._put(line)
        else:
            self._held.append(line)

    def _put(self, lines: str) -> None:
        self.stream.write(lines)
        self.stream.flush()


def duration(seconds: float) -> str:
    """`4s`, `2m 5s`, `1h 3m`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    return f"{whole // 3600}h {whole % 3600 // 60}m"
