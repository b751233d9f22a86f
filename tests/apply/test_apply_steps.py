"""The steps of one `apply`, in their order, and what ends it early."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from declarative.apply import settle
from declarative.cli.run import Run
from declarative.planner import approval


@dataclass
class Planned:
    """What decides how a run goes on after its plan."""

    result: str = "changes"
    changes: bool = True
    origin: Any = None


STEPS = {
    "_read_again": "read",
    "_refresh_only": "refresh",
    "make_plan": "plan",
    "_show": "show",
    "_check_expected": "expected",
    "_say_waiting": "waiting",
    "check_env": "env",
    "ask": "ask",
    "_keep": "keep",
    "_say_moved": "moved",
    "_carry_out": "do",
}


def noting(plan: Any, *, waited: bool = False, names: Any = None, **options: Any) -> tuple[Any, list[str]]:
    """A run whose steps are noted, and do nothing; and the notes."""
    run: Any = object.__new__(Run)
    notes: list[str] = []

    def note_as(name: str, answer: Any = None) -> Any:
        def step(*_: Any, **__: Any) -> Any:
            notes.append(name)
            return answer

        return step

    answers = {"refresh": 7, "plan": plan, "do": 9}
    for method, name in STEPS.items():
        setattr(run, method, note_as(name, answers.get(name)))
    writer = SimpleNamespace(state=lambda: None, move=note_as("move", ()))
    run.lock = lambda: nullcontext(writer)
    run.session = SimpleNamespace(state=SimpleNamespace(waited=waited))
    run.options, run.origin, run._names = options, "here", names
    return run, notes


@pytest.mark.parametrize(
    ("plan", "options", "code", "steps"),
    [
        (Planned(), {}, 9, "plan show expected waiting env ask do"),
        (Planned(result="none", changes=False), {}, 9, "plan show expected waiting env do"),
        (Planned(), {"waited": True}, 9, "read plan show expected waiting env ask do"),
        (Planned(), {"refresh_only": True}, 7, "refresh"),
        (Planned(result="error"), {}, 1, "plan show"),
        (Planned(result="unplaced"), {}, 3, "plan show expected"),
        (Planned(), {"names": {"a": "b"}}, 9, "plan show expected waiting env ask keep move moved do"),
        (Planned(), {"expect": "x"}, 9, "plan approved show expected waiting env ask do"),
    ],
)
def test_the_steps_of_a_run(monkeypatch, capsys, plan, options, code, steps):
    """Nothing is done unless it was planned, shown, compared with what was approved, and asked for."""
    run, notes = noting(plan, **options)

    def as_approved(found: Any, expect: Any) -> Any:
        assert (found.origin, expect) == ("here", "x")
        notes.append("approved")
        return found

    monkeypatch.setattr(approval, "as_approved", as_approved)
    assert run.converge(destroy=False) == code
    assert notes == steps.split()
    assert ("nothing was done: a task cannot be placed" in capsys.readouterr().err) == (code == 3)


@pytest.mark.parametrize("accept", [True, False])
def test_what_vanished_is_checked_unless_the_user_accepts_it(monkeypatch, accept):
    asked: list[str] = []
    monkeypatch.setattr(settle, "check_vanished", lambda *given: asked.extend(given))
    run: Any = object.__new__(Run)
    run.options = {"accept_vanished": accept}
    run.check_vanished("state", SimpleNamespace(inventory="inventory"))
    assert asked == ([] if accept else ["state", "inventory"])
