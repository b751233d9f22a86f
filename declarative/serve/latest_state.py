"""The data to show: the state as it is recorded now, and the loop's last round.

The state is read again at most every few seconds, however many clients ask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import field, replace

from declarative.model.record import struct
from declarative.model.spec import Fleet
from declarative.reconcile.loop import Round
from declarative.render.html import Page
from declarative.render.output_json import iso
from declarative.render.status_view import StatusView
from declarative.store.events import Event

FRESH = 2.0
"""Seconds for which a state that was read is shown again."""
MISSED = 3
"""A loop is not ready after this number of intervals without a round."""


@struct(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The state and the project as they are now."""

    view: StatusView
    events: tuple[Event, ...] = ()
    declared: Mapping[str, Fleet] = field(default_factory=dict)


class LatestState:
    """The data for all pages. Safe to use from many threads."""

    def __init__(
        self,
        title: Callable[[], str],
        look: Callable[[], Recorded],
        clock: Callable[[], float],
        interval: Callable[[], float] | None = None,
    ) -> None:
        """`title` is the project's name. `look` reads the state. `interval` is the seconds between rounds;
        None without a loop.
        """
        self._title = title
        self._look = look
        self._clock = clock
        self._interval = interval
        self._lock = threading.Lock()
        self._recorded: tuple[float, Recorded] | None = None
        self._round: Round | None = None
        self._alive = clock()

    def observe(self, done: Round) -> None:
        """Keep a round that ended."""
        self._alive = self._clock()
        if done.plan is None and self._round is not None and done.held:
            # The round did not reach a plan: what waited before still waits.
            done = replace(done, plan=self._round.plan, waits=self._round.waits)
        self._round = done

    def alive(self) -> None:
        """Note that a long round is still alive."""
        self._alive = self._clock()

    def recorded(self) -> Recorded:
        """The state, read now or within the last `FRESH` seconds."""
        with self._lock:
            now = self._clock()
            if self._recorded is None or not 0 <= now - self._recorded[0] < FRESH:
                self._recorded = (now, self._look())
            return self._recorded[1]

    def not_ready(self) -> str | None:
        """Why the loop is not ready; None if it is."""
        if self._interval is None:
            self.recorded()  # an error of the state is the answer
            return None
        if self._round is None:
            return "no round has ended yet"
        silent = self._clock() - self._alive
        return f"no round for {silent:.0f} s" if silent > MISSED * self._interval() else None

    def page(self) -> Page:
        """The page as it is now."""
        recorded, last = self.recorded(), self._round
        plan = last.plan if last else None
        notes = _loop_notes(last, self.not_ready()) if self._interval is not None else []
        spent = recorded.view.spent
        if spent is not None and spent.dollars:
            notes.append(("", f"Spent in {spent.month}: {spent.dollars:,.2f} USD"))
        held: list[str] = []
        for wait in last.waits if last else ():
            until = "" if wait.until is None else f" (until {iso(wait.until)} at the latest)"
            held.append(f"{wait.action} {wait.address}: {wait.why}{until}")
            if wait.hint:
                held.append(f"    {wait.hint}")
            if wait.digest:
                held.append(f"    fleetform approve {wait.digest}")
        return Page(
            title=self._title(),
            at=self._clock(),
            view=recorded.view,
            notes=tuple(notes),
            events=recorded.events,
            refusals=plan.unplaced.refusals if plan else (),
            waiting=plan.unplaced.tried_again if plan else frozenset(),
            held=held,
            diagnostics=last.errors if last else (),
        )


def _loop_notes(last: Round | None, late: str | None) -> list[tuple[str, str]]:
    """Lines about the loop."""
    if last is None:
        return [("odd", "The controller has not ended a round yet")]
    role = "leads" if last.epoch is None else f"leads (epoch {last.epoch})"
    if not last.held:
        role = "follows: another controller leads"
    lines = [("", f"This controller {role}; round {last.number} took {last.duration:.1f} s")]
    if last.revision:
        lines.append(("", f"Commit {last.revision[:12]}"))
        if last.in_force and last.in_force != last.revision:
            lines.append(("bad", f"It has errors: commit {last.in_force[:12]} is in force"))
    if last.plan is not None:
        cost = "cost an unknown sum" if last.hourly is None else f"cost {last.hourly:.2f} USD/h"
        lines.append(("", f"All nodes {cost}"))
    if late:
        lines.append(("bad", f"Not well: {late}"))
    failed = [r.id for r in last.results if r.outcome == "failed"]
    if failed:
        lines.append(("bad", f"Failed in the last round: {', '.join(failed[:5])}"))
    return lines
