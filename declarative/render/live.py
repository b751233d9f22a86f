"""The live display: what is being done at the moment, a bar, and lines that stay above both."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console, Group
from rich.live import Live as Display
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

MOST_RUNNING = 8
"""Actions that have a line of their own while they run."""


class Live:
    """Draws on a terminal. Texts are clean already, and are never read as rich's markup."""

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
        """Take the bar away; the lines stay. The next action brings it back."""
        self._display.stop()

    def begin(self, id: str, text: str, total: int) -> None:
        """Give an action a line of its own, as long as there are not too many."""
        self._bars.update(self._all, total=total)
        self._display.start()
        if len(self._running) < MOST_RUNNING:
            self._running[id] = self._actions.add_task(text, total=None)
        else:
            self._waiting[id] = text

    def change(self, id: str, text: str) -> None:
        """Another text for an action that has started."""
        if id in self._running:
            self._actions.update(self._running[id], description=text)
        elif id in self._waiting:
            self._waiting[id] = text

    def end(self, id: str) -> None:
        """Take the action's line away, and let the next one have it."""
        self._waiting.pop(id, None)
        task = self._running.pop(id, None)
        if task is not None:
            self._actions.remove_task(task)
            if self._waiting:
                follower = next(iter(self._waiting))
                self._running[follower] = self._actions.add_task(self._waiting.pop(follower), total=None)
        self._bars.advance(self._all)

    def line(self, text: str, style: str | None) -> None:
        """A line that stays."""
        self._console.print(Text(text, style=style or ""))
