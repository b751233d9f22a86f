"""The steps of one `apply`, in their order, and what ends it early."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from declarative.cli import apply as cli_apply
from declarative.cli.run_output import RunOutput
from declarative.converge import run as converge_run
from declarative.converge.planning import RunOptions
from declarative.converge.run import Run
from declarative.model.resource import Desired
from declarative.planner.inventory import Inventory


@dataclass
class Planned:
    """What decides how a run goes on after its plan."""

    result: str = "changes"
    changes: bool = True
    origin: Any = None


class Notes(list[str]):
    """The steps that were taken."""

    def step(self, name: str, answer: Any = None) -> Any:
        def take(*_: Any, **__: Any) -> Any:
            self.append(name)
            return answer

        return take


def noting(notes: Notes, *, names: Any = None, **options: Any) -> Any:
    """A run whose steps are noted, and do nothing."""
    run: Any = object.__new__(Run)
    run.observer = SimpleNamespace(
        planned=notes.step("show"), pending=notes.step("waiting"), renamed=notes.step("moved")
    )
    run._check_approved = notes.step("expected")
    run._ask = notes.step("ask")
    run._keep = notes.step("keep")
    run.carry_out = notes.step("do", SimpleNamespace(exit_code=9))
    run.options, run.origin, run._names = RunOptions(**options), "here", names
    run.observation = None
    return run


@pytest.mark.parametrize(
    ("plan", "options", "code", "steps"),
    [
        (Planned(), {}, 9, "show expected waiting env ask do"),
        (Planned(result="none", changes=False), {}, 9, "show expected waiting env do"),
        (Planned(result="error"), {}, 1, "show"),
        (Planned(result="unplaced"), {}, 3, "show expected"),
        (Planned(), {"names": {"a": "b"}}, 9, "show expected waiting env ask keep move moved do"),
        (Planned(), {"approved": "x"}, 9, "approved show expected waiting env ask do"),
    ],
)
def test_the_steps_of_a_run(monkeypatch, plan, options, code, steps):
    """Nothing is done unless it was shown, compared with what was approved, and asked for."""
    notes = Notes()
    run = noting(notes, **options)

    def as_approved(planned: Any, approved: Any) -> Any:
        assert (planned.origin, approved) == ("here", "x")
        notes.append("approved")
        return planned

    monkeypatch.setattr(converge_run, "as_approved", as_approved)
    monkeypatch.setattr(converge_run, "check_env", notes.step("env"))
    writer: Any = SimpleNamespace(state=lambda: None, move=notes.step("move", ()))
    outcome = run.converge(plan, writer)
    assert outcome.exit_code == code
    assert notes == steps.split()


@pytest.mark.parametrize(
    ("given", "waited", "result", "steps"),
    [
        ({}, False, "done", "read plan converge finished"),
        ({}, True, "done", "read read still plan converge finished"),
        ({}, False, "unplaced", "read plan converge"),
        ({"refresh_only": True}, False, "done", "read refresh summary"),
        ({"refresh_only": True}, True, "done", "read read still refresh summary"),
    ],
)
def test_the_steps_of_an_apply(monkeypatch, capsys, given, waited, result, steps):
    """A command that waited for the lock reads its files once more. `--refresh-only` plans nothing."""
    notes, desired = Notes(), Desired()
    refused = result == "unplaced"
    outcome = SimpleNamespace(
        result=result, is_refused=refused, exit_code=3 if refused else 0, carried_out=not refused, plan=None
    )

    class Noted(Run):
        def __init__(self, session: Any, desired: Any, doing: str, options: Any, *_: Any, **__: Any) -> None:
            self.session, self.desired, self.doing, self.options = session, desired, doing, options
            self.store = self.origin = None  # type: ignore[assignment]
            self.tasks = ()
            self.make_plan = notes.step("plan")  # type: ignore[method-assign]
            self.converge = notes.step("converge", outcome)  # type: ignore[method-assign]
            self.refresh_only = notes.step("refresh", outcome)  # type: ignore[method-assign]

    monkeypatch.setattr(converge_run, "Run", Noted)
    monkeypatch.setattr(RunOutput, "finished", notes.step("finished"))
    monkeypatch.setattr(RunOutput, "summary", notes.step("summary"))
    session: Any = SimpleNamespace(
        load=notes.step("read", SimpleNamespace(desired=desired)),
        warnings=(),
        state=SimpleNamespace(waited=waited, lock=lambda *_: nullcontext(), check_still=notes.step("still")),
    )
    options = {
        **dict.fromkeys(("signed_by", "expect", "allow_unplaced", "lock_timeout")),
        **dict.fromkeys(("earlier", "requested", "targets", "excludes"), ()),
        **dict.fromkeys(("reuse", "wait", "refresh_only", "accept_vanished", "auto_approve"), False),
        "parallelism": 8,
    }
    output = RunOutput("apply", as_json=False)
    assert cli_apply._apply_declared(session, {**options, **given}, output) == outcome.exit_code
    assert notes == steps.split()
    assert ("nothing was done: a task cannot be placed" in capsys.readouterr().err) == refused


@pytest.mark.parametrize("accept", [True, False])
def test_what_vanished_is_checked_unless_the_user_accepts_it(monkeypatch, accept):
    asked: list[Any] = []
    monkeypatch.setattr(converge_run, "check_vanished", lambda *given: asked.extend(given))
    run: Any = object.__new__(Run)
    run.options = RunOptions(accept_vanished=accept)
    inventory = Inventory()
    run.check_vanished("state", inventory)
    assert asked == ([] if accept else ["state", inventory])
