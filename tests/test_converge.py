"""The steps of one `apply`, in their order, and what ends it early."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from declarative.apply import settle
from declarative.cli.run import Run
from declarative.render import approval


@dataclass
class Planned:
    """What decides how a run goes on after its plan."""

    result: str = "changes"
    changes: bool = True
    origin: Any = None


class Steps(Run):
    """A run whose steps are noted, and do nothing."""

    def __init__(self, plan: Any, *, waited: bool = False, names: Any = None, **options: Any) -> None:
        self.done_so_far: list[str] = []
        self.session = SimpleNamespace(state=SimpleNamespace(waited=waited))  # type: ignore[assignment]
        self.options, self.origin, self._names = options, "here", names
        self._read_again = self.note_as("read")
        self._refresh_only = self.note_as("refresh", 7)
        self.make_plan = self.note_as("plan", plan)
        self._show = self.note_as("show")
        self._check_expected = self.note_as("expected")
        self._say_waiting = self.note_as("waiting")
        self.check_env = self.note_as("env")
        self.ask = self.note_as("ask")
        self._keep = self.note_as("keep")
        self._say_moved = self.note_as("moved")
        self._carry_out = self.note_as("do", 9)

    def note_as(self, name: str, answer: Any = None) -> Any:
        def step(*_: Any, **__: Any) -> Any:
            self.done_so_far.append(name)
            return answer

        return step

    @contextmanager
    def lock(self) -> Iterator[Any]:
        """See `Run`."""
        self.done_so_far.append("lock")
        yield SimpleNamespace(state=lambda: None, move=self.note_as("move", ()))


@pytest.mark.parametrize(
    ("plan", "options", "code", "steps"),
    [
        (Planned(), {}, 9, "lock plan show expected waiting env ask do"),
        (Planned(result="none", changes=False), {}, 9, "lock plan show expected waiting env do"),
        (Planned(), {"waited": True}, 9, "lock read plan show expected waiting env ask do"),
        (Planned(), {"refresh_only": True}, 7, "lock refresh"),
        (Planned(result="error"), {}, 1, "lock plan show"),
        (Planned(result="unplaced"), {}, 3, "lock plan show expected"),
        (Planned(), {"names": {"a": "b"}}, 9, "lock plan show expected waiting env ask keep move moved do"),
        (Planned(), {"expect": "x"}, 9, "lock plan approved show expected waiting env ask do"),
    ],
)
def test_the_steps_of_a_run(monkeypatch, capsys, plan, options, code, steps):
    """Nothing is done unless it was planned, shown, compared with what was approved, and asked for."""
    run = Steps(plan, **options)

    def as_approved(found: Any, expect: Any) -> Any:
        assert (found.origin, expect) == ("here", "x")
        run.done_so_far.append("approved")
        return found

    monkeypatch.setattr(approval, "as_approved", as_approved)
    assert run.converge(destroy=False) == code
    assert run.done_so_far == steps.split()
    assert ("nothing was done: a task cannot be placed" in capsys.readouterr().err) == (code == 3)


@pytest.mark.parametrize("doing", ["apply", "destroy"])
@pytest.mark.parametrize("accept", [True, False])
def test_what_vanished_is_checked_unless_the_user_accepts_it(monkeypatch, doing, accept):
    asked: list[bool] = []
    monkeypatch.setattr(settle, "check_vanished", lambda *_, destroy: asked.append(destroy))
    run: Any = object.__new__(Run)
    run.options, run.doing = {"accept_vanished": accept}, doing
    run.check_vanished(None, None)
    assert asked == ([] if accept else [doing == "destroy"])
