"""`fleetform import`: documents for existing things, and from other tools' files."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from declarative.cli.options import declared, examples, project_command
from declarative.cli.output import emit_text, say
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import InvalidError, failed

if TYPE_CHECKING:
    from declarative.language.importers.drafts import Draft
    from declarative.language.importers.existing import HostList
    from declarative.language.source import Document
    from declarative.language.source import Path as Steps
    from declarative.model.diagnostic import Diagnostic, Span
    from declarative.model.resource import Desired
    from declarative.provider.optional import Look

SOURCES = ("dstack", "skypilot", "ssh")
KINDS = {"instances": "node", "volumes": "volume"}


@click.command(
    "import",
    epilog=examples(
        "fleetform import --backend aws --tag team=ml > fleets/ml.yaml",
        "fleetform import ssh --inventory hosts.ini --out rack.yaml",
        "fleetform import ssh ubuntu@10.0.0.11 ubuntu@10.0.0.12 --fleet rack",
        "fleetform import dstack .dstack.yml",
    ),
)
@click.argument("source", metavar="[dstack|skypilot|ssh]", required=False, type=click.Choice(SOURCES))
@click.argument("names", metavar="[FILE…|HOST…]", nargs=-1)
@click.option("--backend", metavar="NAME", help="Import what this backend of the project has.")
@click.option("--region", "regions", metavar="NAME", multiple=True, help="In this region; may be repeated.")
@click.option(
    "--tag", "tags", metavar="KEY[=VALUE]", multiple=True, help="With this tag; several: with all of them."
)
@click.option(
    "--name", "globs", metavar="GLOB", multiple=True, help="With such a name or id: `ml-*`; may be repeated."
)
@click.option("--only", type=click.Choice(tuple(KINDS)), help="Instances alone, or volumes alone.")
@click.option("--fleet", metavar="NAME", help="Put all instances or hosts into one fleet of this name.")
@click.option(
    "--inventory",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="ssh: the hosts of this file, an inventory of Ansible or one host a line.",
)
@click.option(
    "--ssh-config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="ssh: the hosts that this file names.",
)
@click.option("--user", metavar="NAME", help="ssh: who logs in.")
@click.option("--identity-file", metavar="FILE", help="ssh: the private key to log in with.")
@click.option("--no-probe", is_flag=True, help="ssh: contact no host.")
@click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path), help="Write a new file instead of stdout."
)
@project_command
def import_command(
    session: ProjectSession,
    *,
    source: str | None,
    names: tuple[str, ...],
    backend: str | None,
    out: Path | None,
    **asked: Any,
) -> int:
    """Print documents for what is there: of a backend, over SSH, or in files of another tool.

    With --backend: fleets that name the instances, and volumes, for `apply` to adopt as they are. `ssh` looks
    at hosts and prints a fleet of them. `dstack` and `skypilot` convert FILEs, and contact nothing.

    No file is changed; --out makes a new one. Read the comments, then `fleetform plan`.
    """
    if (source is None) == (backend is None):
        hint = "write `--backend NAME`, or one of dstack, skypilot and ssh"
        raise failed("usage", "what to import is not said, or said twice", hint)
    from declarative.language.formatter import format_text

    if backend is not None or source == "ssh":
        text = _of_backend(session, backend, **asked) if backend else _of_hosts(session, names, **asked)
        text = format_text(text, "imported.yaml").text or text
    else:
        text = _converted(session, str(source), names)
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


# ------------------------------------------------------------------------------------------- clouds


def _of_backend(
    session: ProjectSession,
    backend: str,
    *,
    regions: tuple[str, ...],
    tags: tuple[str, ...],
    globs: tuple[str, ...],
    only: str | None,
    fleet: str | None,
    **_: Any,
) -> str:
    from declarative.language.importers.drafts import text_of
    from declarative.language.importers.existing import FreeNames, chosen, fleets_of, volumes_of
    from declarative.model.diagnostic import Diagnostic, Severity
    from declarative.model.state import State
    from declarative.model.text import suggest
    from declarative.provider import ProviderError
    from declarative.retry import call

    desired = session.load().desired
    say(session.warnings)
    if backend not in desired.backends:
        known = sorted(desired.backends)
        hint = suggest(backend, known) or f"it has {', '.join(known) or 'none: write a `backend` document'}"
        raise failed("unknown-address", f"the project has no backend `{backend}`", hint)
    provider = session.backends(desired, State()).get(backend)
    declared_regions = desired.backends[backend].regions
    say(  # nothing is looked for in a region that the backend does not declare
        tuple(
            Diagnostic(
                code="unknown-region",
                summary=f"backend {backend} has no region `{region}`",
                hint=suggest(region, declared_regions) or f"its `regions` are {', '.join(declared_regions)}",
                severity=Severity.WARNING,
            )
            for region in (regions if declared_regions else ())
            if region not in declared_regions
        )
    )
    labels = {key: value if equals else None for key, equals, value in (t.partition("=") for t in tags)}
    kinds = KINDS.values() if only is None else [KINDS[only]]
    try:
        existing = {kind: call(partial(provider.existing, kind)) for kind in kinds}
    except ProviderError as error:
        raise failed("backend-unreadable", f"backend {backend}: {error.summary}", error.hint) from None
    things = {kind: chosen(each, regions, labels, globs) for kind, each in existing.items()}
    drafts: list[Draft] = []
    skipped: list[str] = []
    if "node" in things:
        drafts, skipped = fleets_of(things["node"], backend, FreeNames(map(str, desired.fleets)), fleet)
    if "volume" in things:
        more, others = volumes_of(things["volume"], backend, FreeNames(map(str, desired.volumes)))
        drafts, skipped = [*drafts, *more], [*skipped, *others]
    options = {"region": regions, "tag": tags, "name": globs}
    words = [f"--{option} {value}" for option, values in options.items() for value in values]
    heading = " ".join(["What is there in backend", backend, *words])
    return text_of(drafts, "\n".join([heading, *skipped]))


# -------------------------------------------------------------------------------------------- hosts


def _of_hosts(
    session: ProjectSession,
    names: tuple[str, ...],
    *,
    globs: tuple[str, ...],
    fleet: str | None,
    ssh_config: Path | None,
    no_probe: bool,
    **asked: Any,
) -> str:
    from declarative.language.importers.drafts import Draft, text_of
    from declarative.language.importers.existing import FreeNames, hosts_of
    from declarative.model.resource import SSH, Desired
    from declarative.model.schema import decode
    from declarative.model.spec import Backend
    from declarative.model.state import State
    from declarative.provider import ProviderError

    hosts = _listed(names, asked["inventory"], ssh_config)
    groups: dict[str, list[dict[str, Any]]] = {}
    """Fleet → the hosts that the patterns name."""
    for group, members in hosts.groups.items():
        chosen = [h for h in members if not globs or any(fnmatchcase(h["hostname"], glob) for glob in globs)]
        if chosen:
            groups.setdefault(fleet or group or "hosts", []).extend(chosen)
    if not groups:
        hint = "name hosts, or a file that does: `--inventory FILE`, `--ssh-config FILE`"
        raise failed("usage", "there are no hosts to import", hint)
    common = {key: asked[key] for key in ("user", "identity_file") if asked[key]}
    desired = declared(session) or Desired()
    every = [host for group in groups.values() for host in group]
    backends = []
    if ssh_config is not None and SSH not in desired.backends:
        options = {"ssh_config": str(ssh_config)}
        backends = [Draft("backend", {"name": SSH, "driver": SSH, "options": options})]
        if backend := decode(Backend, dict(backends[0].fields), (), []):
            desired = replace(desired, backends={**desired.backends, SSH: backend})
    asked_hosts = {str(id(host)): {**common, **host} for host in every}
    provider = session.backends(desired, State()).get(SSH)
    try:
        looks = {} if no_probe else provider.look(asked_hosts)
    except ProviderError as error:
        summary = f"the hosts cannot be looked at: {error.summary}"
        raise failed("backend-unreadable", summary, error.hint) from None
    for host in every:
        key = str(id(host))
        with suppress(ProviderError):  # where this machine's files cannot be read, a look says it
            if keys := provider.known_keys({key: asked_hosts[key]}).get(key):
                host["host_keys"] = list(keys)

    def about(host: Mapping[str, Any]) -> str:
        look = looks.get(str(id(host)))
        return _facts(look) if look else ""

    drafts = [*backends, *hosts_of(groups, common, FreeNames(map(str, desired.fleets)), about)]
    return text_of(drafts, "\n".join(["Hosts, as they were when this was written", *hosts.notes]))


def _listed(names: tuple[str, ...], inventory: Path | None, ssh_config: Path | None) -> HostList:
    """The hosts that are named, and those of files."""
    from declarative.language.importers import existing

    hosts = existing.HostList()
    for name in names:
        host = existing.login(name)
        if host is None:
            raise failed("usage", f"`{name}` is not a host", "write `HOST`, `USER@HOST` or `USER@HOST:PORT`")
        hosts.add("", host)
    if ssh_config is not None:
        existing.of_ssh(_text(ssh_config), hosts)
    if inventory is not None and inventory.suffix in (".yaml", ".yml"):
        for document in _documents(inventory):
            existing.of_tree(document.data, hosts)
    elif inventory is not None:
        existing.of_lines(_text(inventory), hosts)
    return hosts


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise failed("unreadable", f"`{file}` cannot be read: {why}") from None


def _facts(look: Look) -> str:
    """`64 CPUs, 512 GB, 8 A100`, or why a host is no node yet."""
    from declarative.model.status import NodeState
    from declarative.model.text import show_mib

    shape = look.shape
    facts = [f"{shape.cpu} CPUs", show_mib(shape.memory_mib)] if shape else []
    if shape and shape.gpus:
        facts.append(f"{shape.gpus} {shape.gpu_name or 'GPUs'}")
    if look.readiness.state is not NodeState.READY:
        word = look.readiness.state.value.replace("_", " ")
        facts.append(f"{word}: {look.readiness.reason or 'no reason is known'}")
    return ", ".join(facts)


# ----------------------------------------------------------------------------------- files of others


def _converted(session: ProjectSession, source: str, names: tuple[str, ...]) -> str:
    from declarative.language.importers.drafts import (
        backends_of,
        keep_apart,
        keep_off,
        name_doubles,
        text_of,
    )
    from declarative.language.importers.dstack import from_dstack
    from declarative.language.importers.skypilot import from_skypilot
    from declarative.language.loader.documents import file_name
    from declarative.language.source import read
    from declarative.model.resource import EXISTING, LOCAL

    if not names:
        raise failed("usage", "no FILE is named", f"write `fleetform import {source} FILE`")
    convert = from_dstack if source == "dstack" else from_skypilot
    drafts: list[Draft] = []
    files = [Path(name) for name in names]
    for file in files:
        name = file_name(file.name) or "imported"
        for number, document in enumerate(_documents(file, pyyaml=True)):
            drafts += convert(document, f"{name}-{number}" if number else name)
    desired, faults = _project(session, files)
    if faults:
        say(faults)
        sys.stderr.write("The project has errors: this command goes on without what it declares.\n")
    launching = [b for b in desired.backends.values() if b.provider not in (LOCAL, *EXISTING)]
    keep_off(drafts, bool(launching))
    keep_apart(drafts)
    name_doubles(drafts)
    runs = any(draft.kind == "task" for draft in drafts)
    drafts = [*(b for b in backends_of(drafts) if b.fields["name"] not in desired.backends), *drafts]
    heading = f"Converted from {source}: {', '.join(file.name for file in files)}"
    if runs:
        name = "SkyPilot" if source == "skypilot" else source
        heading += f'\n{name} has other defaults: see docs/import.md, "Defaults that differ"'
    text = text_of(drafts, heading)
    documents = read(text, "imported.yaml")
    known = {(fault.code, fault.summary, fault.span) for fault in faults}
    errors = _project(session, files, documents)[1]
    new = [fault for fault in errors if (fault.code, fault.summary, fault.span) not in known]
    say(_left_to_do(new, documents, drafts))
    return text


def _project(
    session: ProjectSession, without: Sequence[Path], more: Sequence[Document] = ()
) -> tuple[Desired, tuple[Diagnostic, ...]]:
    """The project without these files and with more documents, and its errors. It may not be written yet."""
    from declarative.model.diagnostic import Severity
    from declarative.model.resource import Desired

    try:
        return session.load(look="names", without=without, more=more).desired, ()
    except InvalidError as error:
        errors = (d for d in error.diagnostics if d.severity is Severity.ERROR and d.code != "no-documents")
        return Desired(), tuple(errors)


def _left_to_do(
    faults: Sequence[Diagnostic], documents: Sequence[Document], drafts: Sequence[Draft]
) -> tuple[Diagnostic, ...]:
    """Warnings about what `validate` will refuse in the documents, at the files that they came from."""
    from declarative.model.diagnostic import Diagnostic, Severity, in_order

    ours = {f"{d.data.get('type')}/{d.data.get('name')}": d for d in documents}
    origins = {f"{d.kind}/{d.fields.get('name')}": d.document for d in drafts if d.document is not None}
    paths: dict[str, dict[Span, Steps]] = {}
    out: list[Diagnostic] = []
    for fault in faults:
        address = fault.address or ""
        origin, span = origins.get(address), None
        if origin is not None:
            if address not in paths:
                paths[address] = _paths(ours[address]) if address in ours else {}
            span = origin.span(paths[address].get(fault.span, ()) if fault.span else ())
        out.append(replace(fault, severity=Severity.WARNING, span=span))
    refused: dict[tuple[int, Steps, str], list[Draft]] = {}
    for draft in drafts:
        if draft.refused and draft.document is not None:
            refused.setdefault((id(draft.document), draft.refused_at, draft.refused), []).append(draft)
    for (_, at, why), several in refused.items():
        kinds = " and a ".join(dict.fromkeys(draft.kind for draft in several))
        document = several[0].document
        out.append(
            Diagnostic(
                code="not-converted",
                summary=f"a {kinds} {'was' if len(several) == 1 else 'were'} not converted: {why}",
                hint="what it would be stands in a comment: mend it there",
                span=document.span(at) if document else None,
                severity=Severity.WARNING,
            )
        )
    return in_order(out)


def _paths(document: Document) -> dict[Span, Steps]:
    """Place → the path of the key or the value that stands there."""
    out: dict[Span, Steps] = {}

    def enter(data: Any, path: Steps) -> None:
        if not isinstance(data, Mapping | list):
            return
        for step, value in data.items() if isinstance(data, Mapping) else enumerate(data):
            below = (*path, step)
            for key in (False, True):
                out.setdefault(document.span(below, key=key), below)
            enter(value, below)

    enter(document.data, ())
    return out


def _documents(file: Path, *, pyyaml: bool = False) -> list[Document]:
    """The content of a file; `InvalidError` with all errors of its YAML. `pyyaml`: of a tool that uses
    PyYAML.
    """
    from declarative.language.source import MAX_BYTES, read

    try:
        with file.open("rb") as opened:
            return read(opened.read(MAX_BYTES + 1), file.name, pyyaml=pyyaml)
    except OSError as error:
        raise failed("unreadable", f"`{file}` cannot be read: {error.strerror}") from None
