"""What a loop tells of its own, as events: what waits, what goes wrong, who leads. It tells changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from declarative.reconcile.round import Round, Wait

Tell = Callable[[str, str, Mapping[str, Any]], None]


class Announcer:
    """Compares each round with the last one."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._leads = False
        self._waits: set[Wait] = set()
        self._errors: set[tuple[str, str]] = set()

    def observe(self, done: Round) -> None:
        """A round that ended. One that follows tells nothing: the leader does."""
        if not done.held:
            self._leads = False
            return
        if not self._leads:
            self._leads = True
            self._tell("reconcile.leads", "reconcile/loop", {"epoch": done.epoch})
        self._tell_errors(done)
        if done.plan is not None:
            self._tell_waits(done)

    def _tell_errors(self, done: Round) -> None:
        errors = {(error.code, error.summary) for error in done.errors}
        for code, summary in sorted(errors - self._errors):
            self._tell("reconcile.failed", "reconcile/loop", {"code": code, "summary": summary})
        if self._errors and not errors:
            self._tell("reconcile.recovered", "reconcile/loop", {})
        self._errors = errors

    def _tell_waits(self, done: Round) -> None:
        waits = {Wait(address=w.address, action=w.action, why=w.why, digest=w.digest) for w in done.waits}
        for wait in sorted(waits - self._waits, key=lambda w: (w.address, w.action, w.why)):
            kind = wait.address.partition("/")[0]
            detail = {"action": wait.action, "why": wait.why, "digest": wait.digest}
            self._tell(f"{kind}.waiting", wait.address, detail)
        self._waits = waits
