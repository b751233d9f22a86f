"""`fleetform init`, `validate` and `schema`: a project's files, and what they may hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from declarative.cli.errors import Failed, failed
from declarative.cli.options import examples, json_option, work_option
from declarative.cli.output import emit, emit_text
from declarative.cli.session import Session, project_command

if TYPE_CHECKING:
    from declarative.model.resource import Desired

FLEET = """\
# Two nodes on this machine, each split into as many equal blocks as it has CPUs.
type: fleet
name: pair
nodes: 2
placement: cluster
blocks: auto
resources:
  cpu: 2..
  memory: 1GB..
"""

TASK = """\
# One volume for each rank; they outlive the nodes and are protected from being destroyed.
type: volume
name: data
count: 2
size: 1GB
---
# Two ranks, one on each node, each with the volume of its number.
type: task
name: hello
nodes: 2
volumes:
  - data-${{ node_rank }}:/data
creation_policy: reuse
commands:
  - echo "rank $FLEETFORM_NODE_RANK of $FLEETFORM_NODES_NUM, rank 0 is at $FLEETFORM_MASTER_NODE_IP"
  - date >> "$FLEETFORM_VOLUME_DATA/visits"
"""

FILES = {"fleet.yaml": FLEET, "task.yaml": TASK}
IGNORE = ".fleetform/"


@click.command("init")
@click.pass_context
def init_command(ctx: click.Context) -> int:
    """Write fleet.yaml and task.yaml for this machine, and keep .fleetform/ out of git.

    Does nothing where there are YAML files already.
    """
    directory = Path(ctx.obj["directory"])
    present = sorted(p.name for p in directory.iterdir() if p.suffix in (".yaml", ".yml"))
    if present:
        shown = ", ".join(present[:3])
        raise failed(
            "not-empty",
            f"there are YAML files already: {shown}",
            "run `fleetform plan`, or use an empty directory",
        )
    for name, text in FILES.items():
        (directory / name).write_text(text, encoding="utf-8")
    ignore = directory / ".gitignore"
    lines = ignore.read_text(encoding="utf-8").splitlines() if ignore.exists() else []
    if IGNORE not in lines:
        ignore.write_text("\n".join([*lines, IGNORE]) + "\n", encoding="utf-8")
    emit_text(f"Wrote {', '.join(FILES)} and .gitignore. Next: `fleetform plan`.\n")
    return 0


@click.command(
    "validate",
    epilog=examples("fleetform validate --json", "fleetform -C infra/gpu validate --var size=8"),
)
@json_option
@work_option
@project_command
def validate_command(session: Session, *, as_json: bool, max_work: int | None) -> int:
    """Check every document of the project. Contacts nothing, and needs no state."""
    from declarative.render.data import validate_json

    try:
        desired = session.load(look="names", published=True).desired
        if max_work is not None:
            _check_work(desired, max_work)
    except Failed as error:
        if as_json:
            emit(validate_json(False, error.diagnostics))
            return 1
        raise
    if as_json:
        emit(validate_json(True, session.warnings))
        return 0
    session.say(session.warnings)
    counts = [
        f"{len(items)} {noun if len(items) == 1 else noun + 's'}"
        for noun, items in (("fleet", desired.fleets), ("volume", desired.volumes), ("task", desired.tasks))
        if items
    ]
    emit_text(f"Valid: {', '.join(counts) or 'nothing is declared'}.\n")
    return 0


def _check_work(desired: Desired, most: int) -> None:
    """`Failed` if a plan of what is declared takes more work, without offers and what is recorded."""
    from declarative.model.state import State
    from declarative.planner.limits import too_large
    from declarative.planner.types import Inventory

    large = too_large(desired, State(), Inventory(), most)
    if large:
        raise Failed((large,))


def schemas() -> dict[str, dict[str, Any]]:
    """File name → schema: of each document type, `document` for any of them, and of each JSON output."""
    from declarative.model.schema import DIALECT, document_schema, templated
    from declarative.model.spec import DOCUMENTS
    from declarative.model.spec.policy import OperatorPolicy
    from declarative.render.contract import plan_schema, state_schema, status_schema

    out = {kind: templated(document_schema(cls, kind)) for kind, cls in DOCUMENTS.items()}
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
    out["policy"] = {
        **document_schema(OperatorPolicy, "policy"),
        "required": [],
    }  # nothing else is in its file
    return {f"{kind}.schema.json": schema for kind, schema in out.items()}


@click.command("schema", epilog=examples("fleetform schema task", "fleetform schema --check --dir schemas"))
@click.argument("kind", required=False)
@click.option("--write", is_flag=True, help="Write all schemas into the directory.")
@click.option("--check", is_flag=True, help="Exit 1 if the directory's schemas are not these.")
@click.option("--dir", "directory", default="schemas", show_default=True, help="The directory.")
def schema_command(kind: str | None, write: bool, check: bool, directory: str) -> int:
    """Print the schema of document type KIND (`fleet`, `task`, …; default: of any document).

    `plan`, `status` and `state` are those of what `plan --json`, `status --json` and `state pull` print;
    `policy` is that of an operator's policy.
    With --write or --check it is about a directory of schemas, for editors and third parties.
    """
    every = {name: json.dumps(s, indent=2, ensure_ascii=False) + "\n" for name, s in schemas().items()}
    if write:
        _write_schemas(every, Path(directory))
        emit_text(f"Wrote {len(every)} schemas to {directory}/.\n")
        return 0
    if check:
        stale = [name for name, text in every.items() if _content(Path(directory) / name) != text]
        if stale:
            hint = "run `fleetform schema --write`"
            raise failed("stale-schema", f"{', '.join(stale)} in {directory}/ differ", hint)
        emit_text(f"The {len(every)} schemas in {directory}/ are current.\n")
        return 0
    name = f"{kind or 'document'}.schema.json"
    if name not in every:
        known = ", ".join(n.removesuffix(".schema.json") for n in every)
        raise failed("usage", f"no document type `{kind}`", f"known: {known}")
    emit_text(every[name])
    return 0


def _write_schemas(every: Mapping[str, str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in every.items():
        (folder / name).write_text(text, encoding="utf-8")


def _content(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None
