"""A project's directory into `Desired`, or into everything that is wrong with it.

`files` finds and reads, `project` settles the values of `${{ var.x }}`, `documents` decodes each document,
`references` holds them against each other, `mounts` works out the volumes of each rank, `file_lists` the
files that ranks get. All of it is bounded: the directory may be a stranger's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from declarative.diagnostic import Diagnostic, Span
from declarative.loader.documents import classify, decode_all, skipped
from declarative.loader.files import Files
from declarative.loader.findings import Findings
from declarative.loader.project import (
    check_removed,
    complete,
    declared,
    excluded,
    find_project,
    settle,
    state_of,
)
from declarative.loader.references import assemble
from declarative.loader.task_files import with_files
from declarative.resource import Desired

Look: TypeAlias = Literal["none", "names", "contents"]
"""How far the files that ranks get are looked at."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What shall be there, the files that say so (relative to the directory), and warnings."""

    desired: Desired
    files: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...] = ()


def load(  # noqa: PLR0913 (keywords, each with a default)
    directory: Path,
    *,
    named: Sequence[Path] = (),
    variables: Mapping[str, str] | None = None,
    var_files: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
    state: str | None = None,
    look: Look = "none",
    published: bool = True,
) -> Loaded:
    """Read the project in `directory`; `InvalidError` with every error that there is.

    `variables` are those of `--var`; `environ` is looked into for `FLEETFORM_VAR_x` alone. `state` is where
    that is kept, if not where the project says. With `look`, what tasks' `files` name is found: by its names
    alone, or, to plan with it, also by what is in it. `named` are files below `directory` that are read
    besides its own. Without `published`, what can be read is not held against the published schemas as well:
    that takes as long as the rest.
    """
    findings = Findings(published=published)
    files = Files(directory, findings)
    documents = files.own(named, excluded)
    raw = classify(documents, findings)
    document = find_project(raw, findings)
    project = declared(document, findings)
    scope = settle(project, findings, variables or {}, var_files, environ or {})
    project = complete(project, scope, findings)
    unmatched: dict[str, Span] = {}
    if document is not None and project.spec.include:
        more = files.included(document, project.spec.include, unmatched)
        documents += more
        raw += classify(more, findings)
        find_project(raw, findings, known=document)
    entries = decode_all(raw, scope, findings)
    desired = assemble(entries, project, scope, findings)
    check_removed(project, desired, findings)
    left = skipped(documents, files.unread(), findings)
    desired = replace(desired, unmatched=unmatched, skipped=left)
    if look != "none":
        desired = with_files(
            desired,
            {entry.address: entry.document for entry in entries},
            findings,
            root=files.root,
            names=files.names(),
            state=state,
            read=look == "contents",
        )
    return Loaded(desired, files.names(), findings.finish())


def declared_state(
    directory: Path,
    *,
    named: Sequence[Path] = (),
    variables: Mapping[str, str] | None = None,
    var_files: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
) -> str | None:
    """Where the project says that its state is, though other things in it may be wrong; None if it does not.

    ValueError if it says so and it cannot be told where.
    """
    findings = Findings()
    raw = classify(Files(directory, findings).own(named, excluded), findings)
    project = declared(find_project(raw, findings), findings)
    return state_of(project, settle(project, findings, variables or {}, var_files, environ or {}))
