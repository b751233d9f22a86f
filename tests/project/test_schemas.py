"""The committed schemas are the generated ones. They allow what the decoder accepts and what
commands print.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from declarative.cli.project_files import schemas
from declarative.language.source import read
from declarative.model.codes import CODES, REJECTIONS
from declarative.model.schema import Problem, decode, fields_of
from declarative.model.spec import DOCUMENTS
from declarative.model.spec.policy import OperatorPolicy
from declarative.model.spec.task import Mount
from declarative.model.state import KINDS
from tests.support.cli import Project

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
OUTPUTS = ("plan", "state", "status")
GOLDEN = sorted((ROOT / "tests" / "golden" / "render").glob("*.json"))


@pytest.mark.parametrize("name", sorted(schemas()))
def test_committed_schema_is_current(name):
    """`fleetform schema --write` was run after the last change of the language."""
    assert json.loads((ROOT / "schemas" / name).read_text()) == schemas()[name]


def test_nothing_else_is_committed():
    assert sorted(path.name for path in (ROOT / "schemas").iterdir()) == sorted(schemas())


@pytest.mark.parametrize("name", sorted(schemas()))
def test_schema_is_a_schema(name):
    """Each is valid by the dialect it names."""
    assert schemas()[name]["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schemas()[name])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: str(p.relative_to(ROOT)))
def test_examples_are_valid(path):
    """What an editor says of the examples: nothing, by their type's schema and by that of any document."""
    every = {name: Resource.from_contents(schema) for name, schema in schemas().items()}
    for document in read(path.read_text(), path.name):
        kind = document.data["type"]
        assert kind in DOCUMENTS
        for name in (kind, "document"):
            schema = schemas()[f"{name}.schema.json"]
            validator = Draft202012Validator(schema, registry=Registry().with_resources(every.items()))
            assert [e.message for e in validator.iter_errors(document.data)] == []


def test_the_policy_that_is_shown_is_valid():
    """That of docs/security.md, by its schema and by the decoder; the schema finds what no policy has."""
    (text,) = re.findall(
        r"```yaml\n(type: policy\n.*?)```", (ROOT / "docs" / "security.md").read_text(), re.DOTALL
    )
    (document,) = read(text, "policy.yaml")
    validator = Draft202012Validator(schemas()["policy.schema.json"])
    assert [e.message for e in validator.iter_errors(document.data)] == []
    assert {f.name for f in fields_of(OperatorPolicy)} == {*document.data} - {"type"}
    problems: list[Problem] = []
    decode(OperatorPolicy, {k: v for k, v in document.data.items() if k != "type"}, (), problems)
    assert problems == []
    assert not validator.is_valid({**document.data, "hosts": []})
    assert not validator.is_valid({"plan_keys": ["ssh-rsa AAAA"]})
    assert not validator.is_valid({"type": "fleet"})


def test_what_is_left_empty_in_a_mount_is_left_out():
    """`region:` with nothing behind it is taken, as it is in a volume's own document."""
    mount = {"name": "tmp", "path": "/t", "size": "1GB"}
    empty = dict.fromkeys(("backend", "region", "availability_zone"))
    assert Mount.parse({**mount, **empty}) == Mount.parse(mount)
    assert not list(Draft202012Validator(Mount.json_schema()).iter_errors({**mount, **empty}))


def test_a_template_may_stand_for_any_value():
    """As it stands in a file, before it is filled in; nothing else that is no value is taken."""
    fleet = Draft202012Validator(schemas()["fleet.schema.json"])
    template = "${{ var.x }}"
    good: list[dict[str, Any]] = [
        {"nodes": template},
        {"nodes": {"min": template, "max": 4}},
        {"nodes": 2, "max_price": template, "spot_policy": template, "blocks": template},
        {"nodes": 2, "regions": [template], "backends": template, "tags": {"a": template}},
        {"ssh_config": {"hosts": [{"hostname": "a", "port": template}]}},
        {"nodes": 2, "prevent_destroy": template, "resources": {"cpu": template, "gpu": template}},
    ]
    for fields in good:
        assert [e.message for e in fleet.iter_errors({"type": "fleet", "name": "gpu", **fields})] == []
    wrongs: list[dict[str, Any]] = [
        {"max_price": "dear"},
        {"spot_policy": "maybe"},
        {"prevent_destroy": "${ x }"},
    ]
    for wrong in wrongs:
        assert not fleet.is_valid({"type": "fleet", "name": "gpu", "nodes": 1, **wrong})
    assert not fleet.is_valid({"type": template, "name": "gpu", "nodes": 1})


def test_any_document_is_held_to_its_types_schema():
    every = {name: Resource.from_contents(schema) for name, schema in schemas().items()}
    validator = Draft202012Validator(
        schemas()["document.schema.json"], registry=Registry().with_resources(every.items())
    )
    assert not validator.is_valid({"type": "fleet", "name": "gpu", "nods": 2})
    assert not validator.is_valid({"type": "service", "name": "llm"})


# ----------------------------------------------------------------------------------------------- outputs


def closed(schema: Any) -> Any:
    """The schema, refusing every key that it does not name."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: closed(value) for key, value in schema.items()}
    return {**out, "additionalProperties": False} if "properties" in out else out


def faults(kind: str, data: Any) -> list[str]:
    """What in an output is not as its published schema says, or is not in it."""
    validator = Draft202012Validator(
        closed(schemas()[f"{kind}.schema.json"]), format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    return [f"{list(e.absolute_path)}: {e.message[:300]}" for e in validator.iter_errors(data)]


def parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a schema."""
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from parts(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from parts(value)


@pytest.mark.parametrize("kind", OUTPUTS)
def test_every_key_of_an_output_is_described_and_always_there(kind):
    for part in parts(schemas()[f"{kind}.schema.json"]):
        if "properties" in part:
            assert part["required"] == list(part["properties"])
            assert part["description"]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.name)
def test_golden_outputs_keep_the_contract(path):
    kind = path.name.partition("-")[0].removesuffix(".json")
    assert faults(kind, json.loads(path.read_text())) == []


FLEET = {"type": "fleet", "name": "pair", "nodes": 2, "placement": "cluster", "resources": {"cpu": 2}}
VOLUME = {"type": "volume", "name": "data", "count": 2, "size": "1GB", "tags": {"team": "a"}}
TASK = {
    "type": "task",
    "name": "hello",
    "nodes": 2,
    "creation_policy": "reuse",
    "commands": ["true"],
    "env": ["TOKEN"],
    "volumes": ["data-${{ node_rank }}:/data"],
}


def printed(folder: Path) -> dict[tuple[str, str], Any]:
    """What the commands print, from before the first apply to drift: (kind, moment) → output."""
    project = Project(folder)
    out: dict[tuple[str, str], Any] = {}

    def keep(moment: str, code: int = 0) -> None:
        out["plan", moment] = project.plan(code=code)
        out["status", moment] = project.status()
        out["state", moment] = project.run("state", "pull").json

    project.declare(FLEET, VOLUME, {**TASK, "commands": ["sleep 600"]})
    keep("before the first apply")
    project.apply(env={"TOKEN": "s3cret"})
    keep("running")
    project.declare(FLEET, {**VOLUME, "size": "2GB"}, TASK)
    keep("with changes")
    project.apply("--wait", env={"TOKEN": "s3cret"})
    keep("ended")
    project.declare(FLEET, {**VOLUME, "size": "2GB"}, {**TASK, "resources": {"cpu": 64}})
    keep("unplaced", code=3)
    project.declare(FLEET, {**VOLUME, "size": "1MB"}, TASK)
    keep("protected", code=1)
    project.write("main.yaml", "type: fleet\nname: g\nnods: 1\n")
    out["plan", "with wrong documents"] = project.plan(code=1)
    project.declare(FLEET, {**VOLUME, "size": "2GB"}, TASK)
    for file in sorted(project.node("pair-0").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
    project.node("pair-0").rmdir()
    keep("drift")
    return out


@pytest.mark.slow
def test_real_outputs_keep_the_contract(tmp_path):
    outputs = printed(tmp_path)
    assert [f"{key}: {fault}" for key, data in outputs.items() for fault in faults(key[0], data)] == []
    results = {moment: data["result"] for (kind, moment), data in outputs.items() if kind == "plan"}
    assert results == {
        "before the first apply": "changes",
        "running": "none",
        "with changes": "changes",
        "ended": "none",
        "unplaced": "unplaced",
        "protected": "error",
        "with wrong documents": "error",
        "drift": "changes",
    }
    plans = [data for (kind, _), data in outputs.items() if kind == "plan"]
    assert {a["op"] for plan in plans for a in plan["actions"]} == {"create", "update", "delete"}
    assert outputs["plan", "drift"]["drift"]
    state = outputs["state", "running"]
    assert {r["address"].partition("/")[0] for r in state["records"]} == set(KINDS)
    assert len(state["reserved_blocks"]) == 2
    assert outputs["state", "ended"]["ranks"]["hello-0"]["state"] == "succeeded"
    assert {d["code"] for plan in plans for d in plan["diagnostics"]} <= set(CODES)
    ranks = [rank for plan in plans for refusal in plan["unplaced"] for rank in refusal["ranks"]]
    assert {r["code"] for rank in ranks for r in rank["rejections"]} <= set(REJECTIONS)
    assert "s3cret" not in json.dumps(list(outputs.values()))
