"""The tasks with the files that their ranks get, or with what is wrong about them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from declarative.diagnostic import Severity
from declarative.loader.documents import shown_span
from declarative.loader.file_lists import CannotSendError, Sender
from declarative.loader.findings import Findings
from declarative.resource import LOCAL, Desired, TaskWant
from declarative.source import Document
from declarative.spec.hosts import SshConfig

_BESIDE = ("", "-wal", "-shm", "-journal")
"""What SQLite keeps beside a database."""


def with_files(
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
    places: list[str] = []
    for url in (state, desired.project.state):
        found = (url or "").removeprefix("sqlite:///")
        if found != (url or ""):
            places += [found + suffix for suffix in _BESIDE]
    for backend in desired.backends.values():
        if backend.provider == LOCAL and isinstance(backend.options.get("root"), str):
            places.append(str(backend.options["root"]))
    for fleet in desired.fleets.values():
        places += _private_keys(fleet.ssh_config)
    for place in places:
        path = Path(os.path.realpath(root / place))  # `resolve` fails of a link to itself
        if path.is_relative_to(root) and path != root:
            yield path.relative_to(root).as_posix()


def _private_keys(config: SshConfig | None) -> list[str]:
    """The files with which hosts are logged in to. A `~` that nobody is at home in stays as it is."""
    if config is None:
        return []
    jumps = [jump for host in config.hosts if (jump := host.proxy_jump)]
    jumps += [config.proxy_jump] if config.proxy_jump else []
    found = {one.identity_file for one in (config, *config.hosts, *jumps)}
    return [os.path.expanduser(name) for name in sorted(filter(None, found))]  # noqa: PTH111  # never raises
