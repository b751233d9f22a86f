"""Every mistake of users and its message: `FLEETFORM_ACCEPT=1` rewrites the messages.

A folder of `golden/error` is a project and its messages, as text and as JSON: `<code>`, or `<code>--<case>`
if a code has several forms.
"""

import os
from pathlib import Path

import pytest

from declarative.language.loader import load
from declarative.model.codes import CODES, Chapter
from declarative.model.diagnostic import Diagnostic, InvalidError
from declarative.model.state import State
from declarative.planner.inventory import Inventory
from declarative.planner.make import make
from declarative.render.data import to_json, validate_json
from declarative.render.diagnostics import diagnostics_text
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
    return make(desired, State(), Inventory(offers=offers_of(desired)), NOW).diagnostics


def golden(path: Path, text: str) -> None:
    if os.environ.get("FLEETFORM_ACCEPT"):
        path.write_text(text, encoding="utf-8")
    wanted = path.read_text(encoding="utf-8") if path.exists() else ""
    assert text == wanted, (
        "if it is meant: FLEETFORM_ACCEPT=1 ./dev test tests/project/test_error_messages.py"
    )


@pytest.mark.parametrize("case", CASES)
def test_message(case):
    found = findings(GOLDEN / case)
    golden(GOLDEN / case / "error.txt", diagnostics_text(found, color=False))
    golden(GOLDEN / case / "error.json", to_json(validate_json(False, found)))
    if case != "ten-at-once":
        code = case.partition("--")[0]
        assert {code} <= {d.code for d in found} <= {code, *ALSO.get(code, ())}
    for item in found:
        assert item.hint, f"{item.summary}: what should the user do?"
        assert item.span is not None
        assert item.code in CODES


def test_every_code_of_a_project_has_a_case():
    groups = {Chapter.YAML, Chapter.LANGUAGE, Chapter.TEMPLATES, Chapter.REFERENCES}
    codes = {name for name, code in CODES.items() if code.group in groups}
    assert codes - {case.partition("--")[0] for case in CASES} == set(ELSEWHERE)


SECRETS = ("hunter2", "AKIA")


@pytest.mark.parametrize("case", CASES)
def test_no_secret_is_shown(case):
    """Neither in what is found nor in the source line that would be shown under it."""
    source = "".join(path.read_bytes().decode(errors="replace") for path in GOLDEN.glob(f"{case}/*.yaml"))
    said = "".join((GOLDEN / case / name).read_text() for name in ("error.txt", "error.json"))
    assert not any(secret in said for secret in SECRETS)
    if case.startswith(("bad-credential", "bad-state-url")):
        assert any(secret in source for secret in SECRETS)
