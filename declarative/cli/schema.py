"""`fleetform schema`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from declarative.cli.failure import failed
from declarative.cli.session import emit_text


def schemas() -> dict[str, dict[str, Any]]:
    """File name → schema: of each document type, `document` for any of them, and of each JSON output."""
    from declarative.render.contract import plan_schema, state_schema, status_schema
    from declarative.schema import DIALECT, document_schema
    from declarative.spec import DOCUMENTS
    from declarative.spec.policy import Policy

    out = {kind: document_schema(cls, kind) for kind, cls in DOCUMENTS.items()}
    branches = [
        {"if": {"properties": {"type": {"const": kind}}}, "then": {"$ref": f"{kind}.schema.json"}}
        for kind in DOCUMENTS
    ]
    out["document"] = {
        "$schema": DIALECT,
        "title": "fleetform document",
        "description": "Any one document of a fleetform project.",
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"enum": list(DOCUMENTS)}},
        "allOf": branches,
    }
    out |= {"plan": plan_schema(), "status": status_schema(), "state": state_schema()}
    out["policy"] = {**document_schema(Policy, "policy"), "required": []}  # nothing else is in its file
    return {f"{kind}.schema.json": schema for kind, schema in out.items()}


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


@click.command("schema")
@click.argument("kind", required=False)
@click.option("--write", is_flag=True, help="Write all schemas into the directory.")
@click.option("--check", is_flag=True, help="Exit 1 if the directory's schemas are not these.")
@click.option("--dir", "directory", default="schemas", show_default=True, help="The directory.")
def command(kind: str | None, write: bool, check: bool, directory: str) -> int:
    """Print the schema of document type KIND (`fleet`, `task`, …; default: of any document).

    `plan`, `status` and `state` are those of what `plan --json`, `status --json` and `state pull` print;
    `policy` is that of an operator's policy.
    With --write or --check it is about a directory of schemas, for editors and third parties.
    """
    every = {name: _text(schema) for name, schema in schemas().items()}
    folder = Path(directory)
    if write:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in every.items():
            (folder / name).write_text(text, encoding="utf-8")
        emit_text(f"Wrote {len(every)} schemas to {directory}/.\n")
        return 0
    if check:
        stale = [
            n
            for n, text in every.items()
            if not (folder / n).is_file() or (folder / n).read_text("utf-8") != text
        ]
        if stale:
            raise failed(
                "stale-schema", f"{', '.join(stale)} in {directory}/ differ", "run `fleetform schema --write`"
            )
        emit_text(f"The {len(every)} schemas in {directory}/ are current.\n")
        return 0
    name = f"{kind or 'document'}.schema.json"
    if name not in every:
        known = ", ".join(n.removesuffix(".schema.json") for n in every)
        raise failed("usage", f"no document type `{kind}`", f"known: {known}")
    emit_text(every[name])
    return 0
