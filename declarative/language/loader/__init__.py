"""Reads a project's directory into `Desired`, or reports everything that is wrong with it.

`files` finds and reads the files, `project` settles the values of `${{ var.x }}`, `documents` decodes each
document, `references` compares them with each other and works out the volumes of each rank, `sent_files`
finds the files that ranks get. Everything has limits: the directory may be a stranger's.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias, cast

from declarative.language.loader.documents import Findings, classify, decode_all, skipped
from declarative.language.loader.files import ProjectFiles
from declarative.language.loader.project import (
    begin,
    check_moved,
    check_removed,
    complete,
    declared_name,
    declared_state,
    excluded,
    find_project,
    limit_places,
)
from declarative.language.loader.references import Assembly
from declarative.language.loader.sent_files import with_files
from declarative.language.source import Document
from declarative.model.diagnostic import Diagnostic, Span
from declarative.model.record import struct
from declarative.model.resource import Desired

__all__ = ["Loaded", "Look", "declared_name", "declared_state", "load"]

Look: TypeAlias = Literal["none", "names", "contents"]
"""Whether the files that ranks get are only listed, or also read."""


@struct(frozen=True, slots=True)
class Loaded:
    """Everything declared, the files that were read (relative to the directory), and warnings."""

    desired: Desired
    files: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...] = ()


def load(
    directory: Path,
    *,
    named: Sequence[Path] = (),
    variables: Mapping[str, str] | None = None,
    var_files: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
    state: str | None = None,
    look: Look = "none",
    published: bool = True,
    without: Sequence[Path] = (),
    more: Sequence[Document] = (),
) -> Loaded:
    """Read the project in `directory`; `InvalidError` with all errors.

    `variables` are the values of `--var`. Of `environ` only `FLEETFORM_VAR_x` is read. `state` is the place
    of the state, if it is not the one in the project. `look` says whether the files in tasks' `files` are
    listed, or also read, as plans need it. `named` are files below `directory` that are read besides its own.
    With `published`, documents are also checked against the published schemas, which doubles the time. The
    files `without` are not read; the documents `more` belong to the project, too.
    """
    findings = Findings(published=published)
    files = ProjectFiles(directory, findings, without=without)
    documents = [*files.own(named, excluded), *more]
    known = classify(documents, findings)
    project, scope = begin(known, findings, variables or {}, var_files, environ or {})
    project = complete(project, scope, findings)
    unmatched: dict[str, Span] = {}
    if project.document is not None and project.spec.include:
        more = files.included(project.document, project.spec.include, unmatched)
        documents += more
        known += classify(more, findings)
        find_project(known, findings, project.document)
    entries = decode_all(known, scope, findings)
    desired = Assembly(entries, findings).desired(project, scope)
    removed = check_removed(project, desired, findings)
    moved = check_moved(project, desired, findings)
    skipped_at = skipped(documents, files.hidden_documents(), findings)
    places = ChainMap(moved, removed, limit_places(project), cast("dict[str, Span]", desired.places))
    desired = replace(desired, unmatched=unmatched, skipped=skipped_at, places=places)
    if look != "none":
        where = {entry.address: entry.document for entry in entries}
        names, read = files.names(), look == "contents"
        desired = with_files(desired, where, findings, root=files.root, names=names, state=state, read=read)
    return Loaded(desired, files.names(), findings.finish())
