"""`retry` of a task: the valid values, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from declarative.model.schema import BadValueError, decode
from declarative.model.spec import Task
from declarative.model.spec.project import Removed
from declarative.model.spec.task import Mount
from declarative.model.spec.values import Retry

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
        ({**WAIT, "max_attempts": 3}, {**WAIT, "duration": "off", "max_attempts": 3}),
        (
            {**WAIT, "duration": "2h", "max_attempts": 1},
            {**WAIT, "duration": "2h", "max_attempts": 1},
        ),
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


def test_an_event_that_nobody_knows_is_an_error():
    assert [code for code, _ in read({"on_events": ["eror"]})[1]] == ["bad-value"]


@pytest.mark.parametrize(
    ("most", "code"),
    [
        (0, "out-of-range"),
        (-1, "out-of-range"),
        (True, "wrong-type"),
        ("3", "wrong-type"),
        (2.5, "wrong-type"),
    ],
)
def test_a_number_of_attempts_is_from_one_on(most, code):
    assert read({"max_attempts": most})[1] == [(code, ("retry", "max_attempts"))]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Retry, "false", "false"),
        (Retry, {"max_attempts": "2"}, "2"),
        (Removed, {"from": "volume/data", "destroy": "false"}, "false"),
        (Mount, {"instance_path": "/a", "path": "/b", "optional": "true"}, "true"),
    ],
)
def test_a_value_in_quotes_is_to_be_written_without(kind, value, text):
    with pytest.raises(BadValueError) as bad:
        kind.parse(value)
    assert f"write it without quotes: `{text}`" == bad.value.hint
    other = "maybe" if value == text else {k: "maybe" if v == text else v for k, v in value.items()}
    with pytest.raises(BadValueError) as bad:
        kind.parse(other)
    assert "without quotes" not in str(bad.value.hint)


@pytest.mark.parametrize(
    "written", [True, False, {"max_attempts": 4}, {**WAIT, "max_attempts": 2, "duration": 5}]
)
def test_what_is_recorded_reads_as_what_was_written(written):
    retry = read(written)[0].retry
    assert type(retry).parse(retry.plain()) == retry
