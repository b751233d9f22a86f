"""A project's directory into `Desired`, or into everything that is wrong with it.

`files` finds and reads, `variables` settles the values of `${{ var.x }}`, `documents` decodes each document,
`references` holds them against each other, `mounts` works out the volumes of each rank. All of it is bounded:
the directory may be a stranger's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from declarative.diagnostic import Diagnostic
from declarative.loader.documents import classify, decode_all
from declarative.loader.files import Files
from declarative.loader.findings import Findings
from declarative.loader.project import read_project
from declarative.loader.references import assemble
from declarative.loader.variables import settle
from declarative.resource import Desired


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
) -> Loaded:
    """Read the project in `directory`; `InvalidError` with every error that there is.

    `variables` are those of `--var`; `environ` is looked into for `FLEETFORM_VAR_x` alone.
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
    return Loaded(desired, files.names(), findings.finish())
