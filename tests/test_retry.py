"""`retry` of a task: what works is waiting for capacity; the rest is read, and refused."""

from __future__ import annotations

from typing import Any

import pytest

from declarative.schema import decode
from declarative.spec import Task

WAIT = {"on_events": ["no-capacity"]}


def read(retry):
    """The task, and the codes of what is wrong with it."""
    problems: list[Any] = []
    task = decode(Task, {"name": "train", "commands": ["true"], "retry": retry}, (), problems)
    return task, [(p.code, p.path) for p in problems]


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        (WAIT, {**WAIT, "duration": "1h"}),
        ({**WAIT, "duration": "2h"}, {**WAIT, "duration": "2h"}),
        ({**WAIT, "duration": 7200}, {**WAIT, "duration": "2h"}),
        ({**WAIT, "duration": "off"}, {**WAIT, "duration": "off"}),
        ({"on_events": ["no-capacity", "no-capacity"]}, {"on_events": ["no-capacity"] * 2, "duration": "1h"}),
    ],
)
def test_waiting_for_capacity_works(written, plain):
    """In dstack's long form, too."""
    task, problems = read(written)
    assert problems == []
    assert task.retry.waits
    assert task.retry.plain() == plain


def test_without_it_nothing_waits():
    task, problems = read(False)
    assert problems == []
    assert not task.retry.waits


@pytest.mark.parametrize(
    "written",
    [True, {"on_events": ["error"]}, {"on_events": ["no-capacity", "interruption"]}, {"duration": "1h"}, {}],
)
def test_other_events_are_not_supported_yet(written):
    """Also beside the one that works, and where they are meant by leaving `on_events` out."""
    assert read(written)[1] == [("not-supported-yet", ("retry",))]


def test_what_is_wrong_is_said_before_what_is_not_supported():
    assert [code for code, _ in read({"on_events": ["eror"]})[1]] == ["bad-value"]
