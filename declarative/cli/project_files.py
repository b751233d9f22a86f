"""`fleetform init`, `validate`, `import` and `schema`: a project's files, and what they may hold."""

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
    from declarative.language.source import Document
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
    from declarative.planner.types import Inventory
    from declarative.planner.work_limit import too_large

    large = too_large(desired, State(), Inventory(), most)
    if large:
        raise Failed((large,))


FORMATS = ("dstack", "skypilot")


@click.command(
    "import",
    epilog=examples(
        "fleetform import dstack .dstack.yml",
        "fleetform import skypilot train.yaml --out train.fleet.yaml",
    ),
)
@click.argument("source", metavar="|".join(FORMATS), type=click.Choice(FORMATS))
@click.argument(
    "files",
    metavar="FILE…",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path), help="Write a new file instead of stdout."
)
def import_command(source: str, files: tuple[Path, ...], out: Path | None) -> int:
    """Print documents of fleetform for those of another tool, with a comment on what was lost or changed.

    Nothing is contacted, and no file is changed; --out makes a new one. Read the comments, then
    `fleetform validate`.
    """
    from declarative.language.loader.conversion import from_dstack, from_skypilot
    from declarative.language.loader.documents import file_name
    from declarative.language.loader.foreign_formats import Draft, backends_of, text_of

    convert = from_dstack if source == "dstack" else from_skypilot
    drafts: list[Draft] = []
    for file in files:
        name = file_name(file.name) or "imported"
        for number, document in enumerate(_documents(file)):
            drafts += convert(document, f"{name}-{number}" if number else name)
    drafts = [*backends_of(drafts), *drafts]
    text = text_of(drafts, f"Converted from {source}: {', '.join(file.name for file in files)}")
    if out is None:
        emit_text(text)
        return 0
    try:
        with out.open("x", encoding="utf-8") as file_out:
            file_out.write(text)
    except FileExistsError:
        raise failed("not-overwritten", f"`{out}` exists: it is left alone", "name another file") from None
    except OSError as error:
        raise failed("unwritable", f"`{out}` cannot be written: {error.strerror}") from None
    emit_text(f"Wrote {out}. Next: read its comments, then `fleetform validate`.\n")
    return 0


def _documents(file: Path) -> list[Document]:
    """What stands in a file; `Failed` with all that is wrong with its YAML."""
    from declarative.language.source import MAX_BYTES, read
    from declarative.model.diagnostic import InvalidError

    try:
        with file.open("rb") as opened:
            return read(opened.read(MAX_BYTES + 1), file.name)
    except InvalidError as error:
        raise Failed(error.diagnostics) from None
    except OSError as error:
        raise failed("unreadable", f"`{file}` cannot be read: {error.strerror}") from None


def schemas() -> dict[str, dict[str, Any]]:
    """File name → schema: of each document type, `document` for any of them, and of each JSON output."""
    from declarative.model.schema import DIALECT, document_schema
    from declarative.model.spec import DOCUMENTS
    from declarative.model.spec.policy import OperatorPolicy
    from declarative.render.contract import plan_schema, state_schema, status_schema

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
