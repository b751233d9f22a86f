"""A project's directory into `Desired`, or into everything that is wrong with it.

`files` finds and reads, `variables` settles the values of `${{ var.x }}`, `documents` decodes each document,
`references` holds them against each other, `mounts` works out the volumes of each rank, `sending` the files
that ranks get. All of it is bounded: the directory may be a stranger's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from declarative.diagnostic import Diagnostic
from declarative.loader.documents import classify, decode_all
from declarative.loader.files import Files
from declarative.loader.findings import Findings
from declarative.loader.project import read_project
from declarative.loader.references import assemble
from declarative.loader.sent import with_files
from declarative.loader.variables import settle
from declarative.resource import Desired

Look: TypeAlias = Literal["none", "names", "contents"]
"""How far the files that ranks get are looked at."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What shall be there, the files that say so (relative to the directory), and warnings."""

    desired: Desired
    files: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...] = ()


def load(
    directory: Path,
    *,
    variables: Mapping[str, str] | None = None,
    var_files: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
    state: str | None = None,
    look: Look = "none",
) -> Loaded:
    """Read the project in `directory`; `InvalidError` with every error that there is.

    `variables` are those of `--var`; `environ` is looked into for `FLEETFORM_VAR_x` alone. `state` is where
    that is kept, if not where the project says. With `look`, what tasks' `files` name is found: by its names
    alone, or, to plan with it, also by what is in it.
    """
    findings = Findings()
    files = Files(directory, findings)
    raw = classify(files.own(), findings)
    project = read_project(raw, findings)
    if project.document is not None and project.patterns:
        raw += classify(files.included(project.document, project.patterns), findings)
        read_project(raw, findings, known=project)
    scope = settle(project, findings, variables or {}, var_files, environ or {})
    entries = decode_all(raw, scope, findings)
    desired = assemble(entries, project, scope, findings)
    if look != "none":
        documents = {entry.address: entry.document for entry in entries}
        desired = with_files(
            desired,
            documents,
            findings,
            root=files.root,
            names=files.names(),
            state=state,
            read=look == "contents",
        )
    return Loaded(desired, files.names(), findings.finish())
