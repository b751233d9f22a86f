"""`fleetform init`, `validate`, `fmt` and `schema`: a project's files, and what they may hold."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from declarative.cli.options import examples, json_option, project_command, work_option
from declarative.cli.output import emit, emit_text, say, write_whole
from declarative.converge.project import ProjectSession
from declarative.language.loader.documents import Findings
from declarative.model.diagnostic import Diagnostic, InvalidError, Severity, Span, failed, in_order

if TYPE_CHECKING:
    from declarative.language.formatter import Formatted
    from declarative.language.source import Reading


@click.command(
    "fmt",
    epilog=examples(
        "fleetform fmt", "fleetform fmt --check --diff     in CI", "fleetform fmt fleets/gpu.yaml"
    ),
)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option("--check", is_flag=True, help="Write nothing; list the files that would change, and exit 1.")
@click.option("--diff", is_flag=True, help="Write nothing; show what would change.")
@click.pass_context
def fmt_command(ctx: click.Context, files: tuple[str, ...], check: bool, diff: bool) -> int:
    """Put the project's files, or FILES, into their normal form, and print the names of those that changed.

    Keys come in one order, values in one notation. Comments, templates and the order of lists stay, and the
    files mean the same. A file that is not valid YAML is reported and left alone.
    """
    root = Path(ctx.obj["directory"])
    findings = Findings()
    targets: dict[Path, str] = {}
    known: dict[str, tuple[bytes, Formatted]] = {}
    listed = [(name, Path(name)) for name in files] if files else _project(root, findings, known)
    for name, path in listed:
        with _reporting(name, findings):
            targets.setdefault(target_of(path, root), name)
    changed = 0
    for target, name in targets.items():
        with _reporting(name, findings):
            changed += _one(name, target, findings, known.pop(name, None), check=check, diff=diff)
    diagnostics = in_order(findings.items)
    if any(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics):
        raise InvalidError(diagnostics)
    if diagnostics:
        say(diagnostics)
    return 1 if check and changed else 0


def _project(
    root: Path, findings: Findings, known: dict[str, tuple[bytes, Formatted]]
) -> list[tuple[str, Path]]:
    """The files that the loader reads, by its own rules: which may be opened, and what `include` names. Adds
    their content and its normal form to `known`.
    """
    from declarative.language.formatter import format_text
    from declarative.language.loader.documents import classify
    from declarative.language.loader.files import ProjectFiles
    from declarative.language.loader.project import begin, complete, excluded

    def work(name: str, content: bytes, reading: Reading) -> None:
        known[name] = content, format_text(content, name, reading)

    other = Findings()  # about documents: `validate` says it
    files = ProjectFiles(root, findings, work)
    documents = classify(files.own(excluded=excluded), other)
    project = complete(*begin(documents, other, {}, (), os.environ), other)
    if project.document is not None and project.spec.include:
        files.included(project.document, project.spec.include)
    refused = {
        diagnostic.span.file
        for diagnostic in findings.items
        if diagnostic.span and diagnostic.code == "not-a-file"
    }
    return [(name, root / name) for name in files.names() if name not in refused]


@contextlib.contextmanager
def _reporting(name: str, findings: Findings) -> Iterator[None]:
    """Turn errors of a file into findings."""
    try:
        yield
    except InvalidError as error:
        findings.extend(replace(d, span=Span(name, 1, 1, 1, 1)) for d in error.diagnostics)
    except OSError as error:
        findings.add("unreadable", f"`{name}`: {error.strerror}", span=Span(name, 1, 1, 1, 1))


def _one(
    name: str,
    path: Path,
    findings: Findings,
    known: tuple[bytes, Formatted] | None,
    *,
    check: bool,
    diff: bool,
) -> bool:
    """Format one file, or say what would change; whether anything does. `known` is its content a moment ago,
    and the normal form of that.
    """
    from declarative.language.formatter import format_text
    from declarative.model.text import clean

    content = bytes_of(path)
    formatted = known[1] if known and known[0] == content else format_text(content, name)
    findings.extend(formatted.diagnostics)
    if formatted.text is None or formatted.text.encode() == content:
        return False
    if diff:
        emit_text("".join(_diff(content.decode(), formatted.text, clean(name))))
        return True
    if not check:
        replace_file(path, formatted.text.encode())
    emit_text(f"{clean(name)}\n")
    return True


def target_of(path: Path, root: Path) -> Path:
    """The file itself: a link is followed as long as it stays in the project."""
    target = path.resolve()
    if path.is_symlink() and not target.is_relative_to(root.resolve()):
        summary = f"`{path}` is a link that leads outside of the project"
        raise failed("outside-project", summary, "name the file itself")
    return target


def bytes_of(path: Path) -> bytes:
    """The content of a regular file, up to a little more than a YAML file may have."""
    from declarative.language.source import MAX_BYTES

    if not stat.S_ISREG(path.stat().st_mode):
        raise failed("not-a-file", f"`{path.name}` is not a regular file", "rename or remove it")
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def replace_file(path: Path, content: bytes) -> None:
    """Put new content in the place of a file, whole or not at all, with the same mode and owner."""
    status = path.stat()
    if not status.st_mode & 0o222 or not os.access(path, os.W_OK):
        summary = f"`{path.name}` is read-only, and would change"
        raise failed("unwritable", summary, f"make it writable: `chmod u+w {path.name}`")
    write_whole(path, content, 0o600, status)


def _diff(old: str, new: str, name: str) -> Iterator[str]:
    """A unified diff; what cannot be seen, or turns what can, is shown as its escape."""
    from declarative.model.text import clean

    diff = difflib.unified_diff(_lines(old), _lines(new), f"a/{name}", f"b/{name}")
    for line in diff:
        shown = "\t".join(map(clean, line.removesuffix("\n").split("\t")))
        yield f"{shown}\n" if line.endswith("\n") else f"{shown}\n\\ No newline at end of file\n"


def _lines(text: str) -> Sequence[str]:
    *lines, last = text.replace("\r", "^M").split("\n")
    return [*(f"{line}\n" for line in lines), *([last] if last else [])]


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
    if present := sorted(p.name for p in directory.iterdir() if p.suffix in (".yaml", ".yml")):
        summary = f"there are YAML files already: {', '.join(present[:3])}"
        raise failed("not-empty", summary, "run `fleetform plan`, or use an empty directory")
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
def validate_command(session: ProjectSession, *, as_json: bool, max_work: int | None) -> int:
    """Check every document of the project. Contacts nothing, and needs no state."""
    from declarative.model.state import State
    from declarative.planner.inventory import Inventory
    from declarative.planner.limits import too_large
    from declarative.render.output_json import validate_json

    errors: tuple[Diagnostic, ...] = ()
    try:
        desired = session.load(look="names", published=True).desired
        # As much as a plan without offers and records takes.
        large = None if max_work is None else too_large(desired, State(), Inventory(), max_work)
        errors = (large,) if large else ()
    except InvalidError as error:
        errors = error.diagnostics
    if as_json:
        emit(validate_json(not errors, errors or session.warnings))
        return 1 if errors else 0
    if errors:
        raise InvalidError(errors)
    say(session.warnings)
    counts = [
        f"{len(items)} {noun if len(items) == 1 else noun + 's'}"
        for noun, items in (("fleet", desired.fleets), ("volume", desired.volumes), ("task", desired.tasks))
        if items
    ]
    emit_text(f"Valid: {', '.join(counts) or 'nothing is declared'}.\n")
    return 0


def schemas() -> dict[str, dict[str, Any]]:
    """File name → schema: of each document type, `document` for any of them, and of each JSON output."""
    from declarative.model.schema import DIALECT, document_schema, templated
    from declarative.model.spec import DOCUMENTS
    from declarative.model.spec.policy import OperatorPolicy
    from declarative.planner.plan import FORMAT_VERSION
    from declarative.render.output_json import published_schema
    from declarative.render.plan_document import PlanOutput
    from declarative.render.status_view import StatusView
    from declarative.store.schema import FORMAT_VERSION as RECORDED
    from declarative.store.snapshot import StateData

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
    out["plan"] = published_schema("plan", PlanOutput, FORMAT_VERSION)
    out["status"] = published_schema("status", StatusView, FORMAT_VERSION)
    out["state"] = published_schema("state", StateData, RECORDED)
    # Nothing else is in its file.
    out["policy"] = {**document_schema(OperatorPolicy, "policy"), "required": []}
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
    folder = Path(directory)
    every = {name: json.dumps(s, indent=2, ensure_ascii=False) + "\n" for name, s in schemas().items()}
    if write:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in every.items():
            (folder / name).write_text(text, encoding="utf-8")
        emit_text(f"Wrote {len(every)} schemas to {directory}/.\n")
        return 0
    if check:
        stale = [
            name
            for name, text in every.items()
            if not (folder / name).is_file() or (folder / name).read_text("utf-8") != text
        ]
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
