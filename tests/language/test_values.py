"""Values as people write them: empty text, missing values, numbers in quotes, durations, and `$${{`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from declarative.model.schema import Problem, decode, fields_of, validate
from declarative.model.spec import DOCUMENTS
from declarative.model.spec.backend import CatalogOffer, Network
from declarative.model.spec.fleet import HostFields, ProxyJump, SshConfig
from declarative.model.spec.values import Resources

LEAST: dict[type, dict[str, Any]] = {
    DOCUMENTS["project"]: {},
    DOCUMENTS["backend"]: {"name": "lab"},
    DOCUMENTS["fleet"]: {"name": "gpu", "nodes": 1},
    DOCUMENTS["volume"]: {"name": "data", "size": "1GB"},
    DOCUMENTS["task"]: {"name": "train", "commands": ["date"]},
    Resources: {},
    CatalogOffer: {"instance_type": "h100", "cpu": 1, "memory": "1GB"},
    Network: {},
    HostFields: {"hostname": "lab1"},
    ProxyJump: {"hostname": "lab1"},
    SshConfig: {"hosts": ["lab1"]},
}
"""The least that each mapping has to say."""
FIELDS = [(cls, field) for cls in LEAST for field in fields_of(cls)]
NAMES = [f"{cls.__name__}.{field.name}" for cls, field in FIELDS]
NEEDED = ("Fleet.nodes", "Volume.size", "Task.commands")
"""Fields that another one can stand in for, and that the least here needs."""
COMMANDS = "Task.commands"


def read(cls: type, **more: Any) -> tuple[Any, list[Problem]]:
    problems: list[Problem] = []
    return decode(cls, {**LEAST[cls], **more}, (), problems), problems


@pytest.mark.parametrize("empty", ["", "  ", [""], [" "]], ids=repr)
@pytest.mark.parametrize(("cls", "field"), FIELDS, ids=NAMES)
def test_empty_text_is_no_value(cls, field, empty):
    """Of no field, nor of an item of a list; a command may be an empty line."""
    found, problems = read(cls, **{field.name: empty})
    if f"{cls.__name__}.{field.name}" == COMMANDS and isinstance(empty, list):
        assert problems == []
        return
    assert found is None
    assert {p.path[0] for p in problems} == {field.name}
    assert not any("``" in p.summary or "` `" in p.summary for p in problems)


@pytest.mark.parametrize(("cls", "field"), FIELDS, ids=NAMES)
def test_a_field_with_nothing_behind_it_is_left_out(cls, field):
    """Of all fields that may be left out, and only of these; the published schema says the same."""
    if field.required or f"{cls.__name__}.{field.name}" in NEEDED:
        assert read(cls, **{field.name: None})[1]
        return
    assert read(cls, **{field.name: None}) == read(cls)
    for kind, document in DOCUMENTS.items():
        if document is cls:
            assert validate(cls, kind, {"type": kind, **LEAST[cls], field.name: None}) == []


@pytest.mark.parametrize("field", ["cpu", "memory", "disk", "gpu"])
@pytest.mark.parametrize("value", ["..", " .. ", {"min": None, "max": None}, {"min": "", "max": 4}, {}])
def test_a_range_has_an_end(field, value):
    assert read(Resources, **{field: value})[0] is None


@pytest.mark.parametrize("value", ["..", {}, {"min": None}, {"target": None, "max": None}, {"max": ""}])
def test_nodes_have_an_end(value):
    """None of these is `0..` without a limit, at the price of as many nodes as there are tasks."""
    assert read(DOCUMENTS["fleet"], nodes=value)[0] is None


@pytest.mark.parametrize(
    ("kind", "field", "value", "same"),
    [
        ("task", "nodes", "2", 2),
        ("task", "priority", "7", 7),
        ("task", "max_price", "2.5", 2.5),
        ("fleet", "nodes", "2", 2),
        ("fleet", "nodes", {"min": "0", "target": "2", "max": "4"}, {"min": 0, "target": 2, "max": 4}),
        ("fleet", "blocks", "4", 4),
        ("volume", "count", "3", 3),
        ("fleet", "idle_duration", True, "3d"),
        ("fleet", "idle_duration", -1, "off"),
        ("fleet", "idle_duration", "-1", "off"),
        ("fleet", "idle_duration", "2 h", "2h"),
        ("task", "max_duration", True, None),
        ("task", "stop_duration", True, "5m"),
        ("volume", "auto_cleanup_duration", -1, "off"),
        ("task", "retry", {"on_events": None, "duration": None}, True),
    ],
)
def test_it_means_the_same(kind, field, value, same):
    """As dstack reads it: a number may stand in quotes, and `true` is the default of a duration."""
    cls = DOCUMENTS[kind]
    found, problems = read(cls, **{field: value})
    assert problems == []
    assert found == read(cls, **{field: same})[0]
    assert validate(cls, kind, {"type": kind, **LEAST[cls], field: value}) == []


PADDED: dict[str, list[tuple[str, Any]]] = {
    "project": [
        ("reconcile", {"interval": "30s"}),
        ("reconcile", {"budgets": [{"nodes": 2, "per": "10m"}]}),
    ],
    "fleet": [
        ("nodes", "2"),
        ("nodes", "0..4"),
        ("nodes", {"min": "1", "max": "2"}),
        ("blocks", "4"),
        ("idle_duration", "2h"),
        ("unreachable_duration", "10m"),
        ("max_price", "2.5"),
        ("resources", {"cpu": "4.."}),
        ("resources", {"memory": "1GB..2GB"}),
        ("resources", {"disk": "10GB"}),
        ("resources", {"gpu": "H100:8"}),
        ("resources", {"memory": {"min": "1GB"}}),
        ("resources", {"gpu": {"name": "H100", "memory": "80GB"}}),
    ],
    "volume": [("count", "3"), ("size", "1GB"), ("auto_cleanup_duration", "1h")],
    "task": [
        ("nodes", "2"),
        ("priority", "7"),
        ("max_duration", "5m"),
        ("stop_duration", "5m"),
        ("retry", {"duration": "1h"}),
        ("utilization_policy", {"min_gpu_utilization": 10, "time_window": "1h"}),
        ("groups", [{"commands": ["true"], "nodes": "2"}]),
    ],
}


def _last(value, change):
    """The value with its last text changed."""
    if isinstance(value, dict):
        *_, key = value
        return {**value, key: _last(value[key], change)}
    return [*value[:-1], _last(value[-1], change)] if isinstance(value, list) else change(value)


@pytest.mark.parametrize(
    ("kind", "field", "value"), [(k, f, v) for k, padded in PADDED.items() for f, v in padded]
)
def test_blanks_round_a_number_or_an_amount_are_refused(kind, field, value):
    """They stand in quotes, so they are a slip; in the middle, `2 h` is dstack's notation."""
    cls = DOCUMENTS[kind]
    more = {"commands": None} if field == "groups" else {}
    assert read(cls, **{field: value, **more})[1] == []
    for change in (" {}".format, "{} ".format, "\t{}".format, "{}\n".format, (" " * 60 + "{}").format):
        (problem,) = read(cls, **{field: _last(value, change), **more})[1]
        assert problem.hint
        assert problem.path[0] == field


@pytest.mark.parametrize(
    ("names", "code", "hint"),
    [
        (("Big One", "small"), "bad-name", "write `big-one`: "),
        (("-", "small"), "bad-name", "write 2 to 41 characters"),
        (("big", "big"), "duplicate-name", "change one of the names"),
    ],
)
def test_names_of_groups_are_checked_like_others(names, code, hint):
    groups = [{"name": name, "nodes": 1, "commands": ["true"]} for name in names]
    (problem,) = read(DOCUMENTS["task"], groups=groups, commands=None)[1]
    assert (problem.code, problem.path) == (code, ("groups", 0 if code == "bad-name" else 1, "name"))
    assert (problem.hint or "").startswith(hint)


@pytest.mark.parametrize(
    ("kind", "field", "value", "code"),
    [
        ("task", "max_duration", -1, "bad-duration"),
        ("task", "max_duration", "-1", "bad-duration"),
        ("task", "stop_duration", -1, "bad-duration"),
        ("task", "retry", {"duration": -1}, "bad-duration"),
        ("task", "retry", {"duration": True}, "wrong-type"),
        ("volume", "auto_cleanup_duration", True, "wrong-type"),
        ("task", "max_duration", 0, "out-of-range"),
        ("task", "max_duration", "0h", "out-of-range"),
        ("task", "max_duration", "1h30m", "bad-duration"),
        ("task", "max_duration", "1h 30m", "bad-duration"),
        ("task", "nodes", "0", "out-of-range"),
        ("task", "nodes", "2.0", "wrong-type"),
        ("task", "nodes", "two", "wrong-type"),
        ("task", "exclusive", "true", "wrong-type"),
    ],
)
def test_it_is_refused(kind, field, value, code):
    assert [p.code for p in read(DOCUMENTS[kind], **{field: value})[1]] == [code]


@pytest.mark.parametrize("value", [100_001, 10**9, "..99999999999999"])
def test_a_number_above_the_limit(value):
    """However many digits it has."""
    (problem,) = read(DOCUMENTS["fleet"], nodes=value)[1]
    assert (problem.code, problem.summary) == ("out-of-range", f"`{value}` is more than 100000")
    assert problem.hint == "write a smaller number: at most 100000"


def test_a_size_above_the_limit():
    (problem,) = read(DOCUMENTS["volume"], size=f"{'9' * 26}TB")[1]
    assert problem.summary.endswith("is larger than any disk")
    assert problem.hint == "write a smaller size: `1TB`"


ODD: tuple[Any, ...] = (
    *("x", "", 1, 1.5, True, [], ["x"], [1], [None], [[]], [{}], {}, {"x": 1}, {"x": []}, {"": ""}),
    *({"min": []}, {"mni": 1}, {"conut": 1}, {"traget": 1}, {"name": []}, {"path": {}}, {"on_events": []}),
)


@pytest.mark.parametrize(("cls", "field"), FIELDS, ids=NAMES)
def test_what_was_expected_is_not_what_was_found(cls, field):
    """`expected a list, found a list` says nothing, and no message names a class of the program."""
    for value in ODD:
        for problem in read(cls, **{field.name: value})[1]:
            wanted, _, found = problem.summary.partition(", found ")
            assert not found or found not in wanted.removeprefix("expected "), problem.summary
            assert not {cls.__name__ for cls in LEAST if cls.__name__ in problem.summary.split()}
            assert not re.search(
                r"(catalogoffer|hostfields|sshconfig|proxyjump|memorys|None)", problem.summary
            )


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [
        ("volumes", ["path/to:/run"], "write `/path/to:/run` for a folder of the host"),
        ("volumes", ["./data:/run"], "write `/data:/run` for a folder of the host"),
        ("volumes", ["data:"], "write an absolute path"),
        ("resources", {"cpu": {"mni": 4}}, "did you mean `min`?"),
        ("resources", {"gpu": {"conut": 4}}, "did you mean `count`?"),
        ("retry", {"on_event": ["error"]}, "did you mean `on_events`?"),
        ("secrets", ["TOKEN"], "`env: [NAME]`"),
        ("workdir", "/src", "write `working_dir:`"),
        ("volumes", "", "write `name:/path`"),
        ("enviroment", ["A=1"], "write `env:`"),
        ("cpus", 4, "`resources: {…}`"),
        ("accelerators", "H100:8", "`resources: {…}`"),
        ("container", "ubuntu", "write `image:`"),
        ("docker_image", "ubuntu", "write `image:`"),
        ("python_version", "3.12", "write `python:`"),
        ("setup", "pip install torch", "write `commands:`"),
        ("file_mounts", ["/data"], "write `files:`"),
    ],
)
def test_a_hint_names_what_was_meant(field, value, hint):
    (problem,) = read(DOCUMENTS["task"], **{field: value})[1]
    assert hint in (problem.hint or "")


def test_empty_text_is_no_gpu():
    (problem,) = read(DOCUMENTS["task"], resources={"gpu": " "})[1]
    assert problem.summary == "expected GPUs, found empty text"
