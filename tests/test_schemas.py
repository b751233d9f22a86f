"""The committed schemas are the generated ones, and what they allow is what the decoder allows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from declarative.cli.schema import schemas
from declarative.source import read
from declarative.spec import DOCUMENTS

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))


@pytest.mark.parametrize("name", sorted(schemas()))
def test_committed_schema_is_current(name):
    """`fleetform schema --write` was run after the last change of the language."""
    assert json.loads((ROOT / "schemas" / name).read_text()) == schemas()[name]


@pytest.mark.parametrize("name", sorted(schemas()))
def test_schema_is_a_schema(name):
    """Each is valid by the dialect it names."""
    Draft202012Validator.check_schema(schemas()[name])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: str(p.relative_to(ROOT)))
def test_examples_are_valid(path):
    """What an editor says of the examples: nothing."""
    for document in read(path.read_text(), path.name):
        kind = document.data["type"]
        assert kind in DOCUMENTS
        validator = Draft202012Validator(schemas()[f"{kind}.schema.json"])
        assert [e.message for e in validator.iter_errors(document.data)] == []
