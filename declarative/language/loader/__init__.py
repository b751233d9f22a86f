"""A project's directory into `Desired`, or into everything that is wrong with it.

`files` finds and reads, `project` settles the values of `${{ var.x }}`, `documents` decodes each document,
`references` holds them against each other, `mounts` works out the volumes of each rank, `file_lists` the
files that ranks get. All of it is bounded: the directory may be a stranger's.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias, cast

from declarative.language.loader.documents import classify, decode_all, shown_span, skipped
from declarative.language.loader.file_lists import CannotSendError, Sender
from declarative.language.loader.files import ProjectFiles
from declarative.language.loader.findings import Findings
from declarative.language.loader.project import (
    check_moved,
    check_removed,
    complete,
    declared,
    excluded,
    find_project,
    limit_places,
    settle,
    state_of,
)
from declarative.language.loader.references import assemble
from declarative.language.source import Document
from declarative.model.diagnostic import Diagnostic, Severity, Span
from declarative.model.record import dataclass
from declarative.model.resource import LOCAL, Desired, TaskWant
from declarative.model.spec.hosts import SshConfig

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
    besides its own. Without `published`, what can be read is not checked against the published schemas as
    well: that takes as long as the rest.
    """
    findings = Findings(published=published)
    files = ProjectFiles(directory, findings)
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
    moved = check_moved(project, desired, findings)
    left = skipped(documents, files.hidden_documents(), findings)
    places = ChainMap(moved, limit_places(project), cast("dict[str, Span]", desired.places))
    desired = replace(desired, unmatched=unmatched, skipped=left, places=places)
    if look != "none":
        where = {entry.address: entry.document for entry in entries}
        read = look == "contents"
        desired = _with_files(
            desired, where, findings, root=files.root, names=files.names(), state=state, read=read
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
    raw = classify(ProjectFiles(directory, findings).own(named, excluded), findings)
    project = declared(find_project(raw, findings), findings)
    return state_of(project, settle(project, findings, variables or {}, var_files, environ or {}))


_SQLITE = "sqlite:///"
_BESIDE = ("", "-wal", "-shm", "-journal")
"""What SQLite keeps beside a database."""


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

    `names` are the project's own documents. Nothing is read for a project that has errors already.
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
                break  # the same limits hold for all
    return replace(desired, tasks={**desired.tasks, **tasks})


def _hidden(desired: Desired, root: Path, state: str | None) -> Iterator[str]:
    """What fleetform keeps in the project: its state, the folders of local backends, and keys to hosts."""
    for place in _kept_places(desired, state):
        path = Path(os.path.realpath(root / place))  # `resolve` fails of a link to itself
        if path.is_relative_to(root) and path != root:
            yield path.relative_to(root).as_posix()


def _kept_places(desired: Desired, state: str | None) -> Iterator[str]:
    """The same as they are written, in the project or not."""
    for url in filter(None, (state, desired.project.state)):
        if url.startswith(_SQLITE):
            yield from (url.removeprefix(_SQLITE) + suffix for suffix in _BESIDE)
    for backend in desired.backends.values():
        folder = backend.options.get("root") if backend.provider == LOCAL else None
        if isinstance(folder, str):
            yield folder
    for fleet in desired.fleets.values():
        yield from _private_keys(fleet.ssh_config)


def _private_keys(config: SshConfig | None) -> list[str]:
    """The private keys for logins to hosts. A `~` without a home directory stays as it is."""
    if config is None:
        return []
    jumps = [jump for host in config.hosts if (jump := host.proxy_jump)]
    jumps += [config.proxy_jump] if config.proxy_jump else []
    found = {one.identity_file for one in (config, *config.hosts, *jumps)}
    return [os.path.expanduser(name) for name in sorted(filter(None, found))]  # noqa: PTH111  # never raises
