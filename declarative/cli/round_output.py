"""The messages of `fleetform reconcile` about its rounds. It prints only news: a log shows changes, not
rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from declarative.cli.output import say
from declarative.model.state import natural

if TYPE_CHECKING:
    from declarative.cli.run import Run
    from declarative.converge.project import ProjectSession
    from declarative.model.diagnostic import Diagnostic
    from declarative.planner.inventory import Inventory
    from declarative.reconcile.round import Wait


class RoundOutput:
    """Prints what is new, and remembers what was printed."""

    def __init__(self, session: ProjectSession) -> None:
        self._session = session
        self._last: dict[str, frozenset[object]] = {}
        self._was_away: set[str] = set()
        self._silent: dict[str, tuple[bool, bool]] = {}

    def new(self, what: str, items: Iterable[object]) -> frozenset[object]:
        """The items that were not among the last ones of that kind."""
        now = frozenset(items)
        before, self._last[what] = self._last.get(what, frozenset()), now
        return now - before

    def git(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        """Print errors of the repository."""
        if self.new("git", diagnostics):
            say(diagnostics)

    def locked(self, holder: str) -> None:
        """Print that another command has the lock."""
        if self.new("lock", (holder,)):
            _say(f"the state is locked by {holder}: this goes on after it")

    def wrong(self, diagnostics: tuple[Diagnostic, ...], *, held: bool) -> None:
        """Print errors of the project's files; `held`: the earlier declaration still holds."""
        had, new = self._last.get("files"), self.new("files", diagnostics)
        if new:
            say(tuple(d for d in diagnostics if d in new))
            if held:
                _say("the project's files have errors: what they declared before holds until they have none")
        elif had and not diagnostics:
            _say("the project's files have no errors any more: what they declare now holds")
        elif self.new("warnings", self._session.warnings):
            say(self._session.warnings)

    def errors(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        """Print errors of a round."""
        new = self.new("errors", diagnostics)
        say(tuple(d for d in diagnostics if d in new))

    def waits(self, run: Run, waits: Collection[Wait]) -> None:
        """Print what a round did not do, and why."""
        plain = {replace(wait, until=None): wait for wait in waits}
        new = self.new("waits", plain)
        for key, wait in sorted(plain.items(), key=lambda item: item[1].address):
            if key not in new:
                continue
            if run.as_json:
                data = {"event": "wait", "address": wait.address, "action": wait.action, "why": wait.why}
                more = {"digest": wait.digest, "hint": wait.hint}
                run.event({**data, **{key: value for key, value in more.items() if value}})
            elif not wait.address.startswith("backend/"):  # the plan has a warning about it
                steps = f"; {wait.steps}" if wait.steps else ""
                _say(f"{wait.address} ({wait.action}) {wait.why}{steps}")

    def silences(self, inventory: Inventory, now: float) -> None:
        """Print which nodes fell silent, are given up, and answer again: a line for each, and not one a round
        for as long as that lasts.
        """
        from declarative.planner.health import ANSWERS, silence_text

        here = {name: (s.given_up, bool(s.kept)) for name, s in inventory.silent.items()}
        for name in sorted(here, key=natural):
            if self._silent.get(name) != here[name]:
                _say(f"node/{name} {silence_text(inventory.silent[name], now)}")
        unsure: dict[str, tuple[bool, bool]] = {}
        for name in sorted(self._silent.keys() - here.keys(), key=natural):
            seen = inventory.readiness.get(name)
            if seen and seen.state in ANSWERS:
                _say(f"node/{name} answers again")
            elif seen:
                unsure[name] = self._silent[name]
        self._silent = {**unsure, **here}

    def returned(self, run: Run, away: set[str]) -> None:
        """Print which backends can be read again; `away` are those that cannot be read now."""
        for name in sorted(self._was_away - away):
            if run.as_json:
                run.event({"event": "returned", "address": f"backend/{name}"})
            else:
                _say(f"backend/{name} can be read again")
        self._was_away = away


def _say(text: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
