"""Every mistake of users and its message: `FLEETFORM_ACCEPT=1` rewrites the messages.

A folder of `golden/error` is a project and its messages: `<code>`, or `<code>--<case>` if a code has several
forms. Its `error.txt` is the text that commands print, and behind each place what only their JSON says: where
the mistake ends, and the address. Both the text and the JSON are derived from it.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from declarative.language.loader import load
from declarative.model.codes import BY_CHAPTER, CODES, Chapter
from declarative.model.diagnostic import Diagnostic, InvalidError
from declarative.model.state import State
from declarative.planner.inventory import Inventory
from declarative.planner.make import make_plan
from declarative.render.diagnostics import diagnostics_text
from declarative.render.output_json import validate_json
from tests.support.model import NOW, offers_of

GOLDEN = Path(__file__).parents[1] / "golden" / "error"
CASES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
ELSEWHERE = {
    "no-documents": "names the directory: test_loader",
    "unreadable": "names the directory: test_loader",
    "not-a-file": "a pipe cannot be committed: test_loader",
    "too-large": "large files: test_source, test_loader",
    "too-many-errors": "large files: test_loader",
    "nothing-included": "a warning: test_loader",
    "skipped": "a warning: test_dstack",
    "ignored-field": "a warning: test_dstack",
    "public-address": "a warning: test_loader",
    "replaced-variable": "a warning: test_loader",
    "unset-variable": "a warning: test_loader",
    "undeclared-variable": "about --var: test_loader",
    "schema": "a fault of fleetform: test_loader",
}
"""Codes that a project in a folder cannot show."""

ALSO = {
    "duplicate-key": ["bad-value"],
    "bad-credential": ["unknown-field"],
}
"""Further messages that are correct."""


def findings(directory: Path) -> tuple[Diagnostic, ...]:
    """What the loader says, else what the planner says, with what the declared catalogs offer."""
    try:
        desired = load(directory, look="contents").desired
    except InvalidError as error:
        return error.diagnostics
    return make_plan(desired, State(), Inventory(offers=offers_of(desired)), NOW).diagnostics


HEAD = re.compile(r"(?P<severity>error|warning)\[(?P<code>[a-z0-9-]+)\]: (?P<summary>.*)")
PLACE = re.compile(r"(?P<shown> +--> (?P<file>.+?):(?P<line>\d+):(?P<column>\d+))(?P<rest>.*)")
REST = re.compile(r" to (?P<end_line>\d+):(?P<end_column>\d+)(?: of (?P<address>.+))?")
HINT = " = hint: "


def with_ends(text: str, records: list[dict[str, Any]]) -> str:
    """The golden form of a text: its places with what the JSON adds."""
    ends = (
        f" to {r['end_line']}:{r['end_column']}" + (f" of {_escaped(r['address'])}" if r["address"] else "")
        for r in records
    )
    lines = (f"{line}{next(ends)}" if PLACE.fullmatch(line) else line for line in text.split("\n"))
    return "\n".join(lines)


def _escaped(address: str) -> str:
    return json.dumps(address)[1:-1]


def text_of(golden: str) -> str:
    places = (PLACE.fullmatch(line) or line for line in golden.split("\n"))
    return "\n".join(place if isinstance(place, str) else place["shown"] for place in places)


def json_of(golden: str) -> dict[str, Any]:
    records: list[dict[str, Any]] = []
    for line in golden.split("\n"):
        if head := HEAD.fullmatch(line):
            records.append({**head.groupdict(), "hint": None, "address": None})
        elif place := PLACE.fullmatch(line):
            end = REST.fullmatch(place["rest"])
            assert end, line
            records[-1]["file"] = place["file"]
            numbers = {**place.groupdict(), **end.groupdict()}
            records[-1] |= {name: int(numbers[name]) for name in ("line", "column", "end_line", "end_column")}
            records[-1]["address"] = json.loads(f'"{end["address"]}"') if end["address"] else None
        elif HINT in line:
            records[-1]["hint"] = line.partition(HINT)[2]
    return {"valid": False, "diagnostics": records}


@pytest.mark.parametrize("case", CASES)
def test_message(case):
    found = findings(GOLDEN / case)
    text, data = diagnostics_text(found, color=False), validate_json(False, found)
    path = GOLDEN / case / "error.txt"
    if os.environ.get("FLEETFORM_ACCEPT"):
        path.write_text(with_ends(text, data["diagnostics"]), encoding="utf-8")
    golden = path.read_text(encoding="utf-8") if path.exists() else ""
    assert (text, data) == (text_of(golden), json_of(golden)), (
        "if it is meant: FLEETFORM_ACCEPT=1 ./dev test tests/project/test_error_messages.py"
    )
    if case != "ten-at-once":
        code = case.partition("--")[0]
        assert {code} <= {d.code for d in found} <= {code, *ALSO.get(code, ())}
    for item in found:
        assert item.hint, f"{item.summary}: what should the user do?"
        assert item.span is not None
        assert item.code in CODES


def test_every_code_of_a_project_has_a_case():
    groups = {Chapter.YAML, Chapter.LANGUAGE, Chapter.TEMPLATES, Chapter.REFERENCES}
    codes = {name for group in groups for name in BY_CHAPTER[group]}
    assert codes - {case.partition("--")[0] for case in CASES} == set(ELSEWHERE)


SECRETS = ("hunter2", "AKIA")


@pytest.mark.parametrize("case", CASES)
def test_no_secret_is_shown(case):
    """Neither in what is found nor in the source line that would be shown under it."""
    source = "".join(path.read_bytes().decode(errors="replace") for path in GOLDEN.glob(f"{case}/*.yaml"))
    messages = (GOLDEN / case / "error.txt").read_text()
    assert not any(secret in messages for secret in SECRETS)
    if case.startswith(("bad-credential", "bad-state-url")):
        assert any(secret in source for secret in SECRETS)
