"""What a loop gets from its caller: who is told of its rounds."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Protocol

from declarative.converge.ports import Observer, RunOutcome
from declarative.model.diagnostic import Diagnostic
from declarative.reconcile.round import Wait


class RunObserver(Observer, Protocol):
    """Is told what one round finds and does."""

    def finished(self, outcome: RunOutcome) -> None:
        """The round has ended. The lock is still held."""


class LoopObserver(Protocol):
    """Is told what a loop finds. It is called in each round, also where nothing is new."""

    def round(self) -> AbstractContextManager[RunObserver]:
        """A round begins."""

    def waits(self, waits: Collection[Wait]) -> None:
        """This was not done in a round."""

    def returned(self, away: set[str]) -> None:
        """All backends but those that are `away` can be read."""

    def errors(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        """The round had these errors."""

    def locked(self, holder: str) -> None:
        """Another command has the lock."""

    def git(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        """The repository has these errors."""

    def wrong(self, diagnostics: tuple[Diagnostic, ...], *, held: bool) -> None:
        """The project's files have these errors; `held`: what they declared before holds."""
