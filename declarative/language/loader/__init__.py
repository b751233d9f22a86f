"""Reads a project's directory into `Desired`, or reports everything that is wrong with it.

`files` finds and reads the files, `project` settles the values of `${{ var.x }}`, `documents` decodes each
document, `references` compares them with each other, `mounts` works out the volumes of each rank,
`sent_files` the files that ranks get. Everything has limits: the directory may be a stranger's.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from declarative.language.loader.documents import classify, decode_all, shown_span, skipped
from declarative.language.loader.files import ProjectFiles
from declarative.language.loader.findings import Findings
from declarative.language.loader.project import (
    ProjectFile,
    check_moved,
    check_removed,
    complete,
    declared,
    excluded,
    find_project,
    limit_places,
    name_of,
    settle,
    state_of,
)
from declarative.language.loader.references import assemble
from declarative.language.loader.sent_files import CannotSendError, Sender
from declarative.language.source import Document
from declarative.language.template import TemplateScope
from declarative.model.diagnostic import Diagnostic, Severity, Span
from declarative.model.record import struct
from declarative.model.resource import LOCAL, Desired, TaskWant

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
    removed = check_removed(project, desired, findings)
    moved = check_moved(project, desired, findings)
    skipped_at = skipped(documents, files.hidden_documents(), findings)
    places = ChainMap(moved, removed, limit_places(project), cast("dict[str, Span]", desired.places))
    desired = replace(desired, unmatched=unmatched, skipped=skipped_at, places=places)
    if look != "none":
        where = {entry.address: entry.document for entry in entries}
        read = look == "contents"
        desired = _with_files(
            desired, where, findings, root=files.root, names=files.names(), state=state, read=read
        )
    return Loaded(desired, files.names(), findings.finish())


def declared_state(directory: Path, **arguments: Any) -> str | None:
    """The state's place as declared, even if other things in the project are wrong; None if not declared.

    `arguments` are the files and variables, as for `load`. ValueError if a declared place cannot be worked
    out.
    """
    return state_of(*_first(directory, **arguments))


def declared_name(directory: Path, **arguments: Any) -> str | None:
    """The project's name as declared, even if other things in the project are wrong; None if it has none, or
    one that cannot be worked out. `arguments` are the files and variables, as for `load`.
    """
    return name_of(*_first(directory, **arguments))


def _first(
    directory: Path,
    *,
    named: Sequence[Path] = (),
    variables: Mapping[str, str] | None = None,
    var_files: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
) -> tuple[ProjectFile, TemplateScope]:
    """The project document and the variables' values, which are read before anything else."""
    findings = Findings()
    raw = classify(ProjectFiles(directory, findings).own(named, excluded), findings)
    project = declared(find_project(raw, findings), findings)
    return project, settle(project, findings, variables or {}, var_files, environ or {})


_SQLITE = "sqlite:///"
_SQLITE_ENDS = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps beside a database."""


def _with_files(
    desired: Desired,
    documents: Mapping[str, Document],
    findings: Findings,
    *,
    root: Path,
    names: Collection[str],
    state: str | None,
    read: bool,
) -> Desired:
    """`desired` with the manifests of all tasks that have `files`.

    `names` are the project's own documents. If the project has errors already, no file is read.
    """
    read = read and all(item.severity is not Severity.ERROR for item in findings.items)
    sender = Sender(root, hidden=frozenset(_hidden(desired, root, state)), documents=names, read=read)
    tasks: dict[str, TaskWant] = {}
    for name, want in desired.tasks.items():
        tasks[name] = want
        if not want.spec.files:
            continue
        document, path = documents[f"task/{name}"], ("files",)
        if (want.spec.working_dir or "").startswith("/"):
            span = shown_span(document, ("working_dir",))
            summary = (
                f"the files are in the rank's own folder, and its commands start in `{want.spec.working_dir}`"
            )
            findings.add("files-elsewhere", summary, span=span, address=f"task/{name}")
            continue
        try:
            tasks[name] = replace(want, files=sender.manifest(want.spec.files))
        except CannotSendError as error:
            at = path if error.item is None else (*path, error.item)
            span = shown_span(document, at)
            findings.add(error.code, error.summary, error.hint, span=span, address=f"task/{name}")
            if error.code == "too-large":
                break  # all have the same limits
    return replace(desired, tasks={**desired.tasks, **tasks})


def _hidden(desired: Desired, root: Path, state: str | None) -> Iterator[str]:
    """The paths that ranks never get: the state, the folders of local backends, and private keys to hosts."""
    paths: list[str] = []
    for url in filter(None, (state, desired.project.state)):
        if url.startswith(_SQLITE):
            paths += [url.removeprefix(_SQLITE) + suffix for suffix in _SQLITE_ENDS]
    for backend in desired.backends.values():
        folder = backend.options.get("root") if backend.provider == LOCAL else None
        if isinstance(folder, str):
            paths.append(folder)
    for config in filter(None, (fleet.ssh_config for fleet in desired.fleets.values())):
        jumps = [jump for each in (config, *config.hosts) if (jump := each.proxy_jump)]
        keys = {each.identity_file for each in (config, *config.hosts, *jumps)}
        # `expanduser` never raises: without a home directory, `~` stays.
        paths += [os.path.expanduser(key) for key in sorted(filter(None, keys))]  # noqa: PTH111
    for written in paths:
        path = Path(os.path.realpath(root / written))  # `resolve` fails on a link to itself
        if path.is_relative_to(root) and path != root:
            yield path.relative_to(root).as_posix()
