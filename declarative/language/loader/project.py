"""Reads what comes before everything else: the operator's policy, which is outside of every project, and the
`project` document, which names the files to read and declares the variables.

A variable's value comes from --var, else --var-file, else FLEETFORM_VAR_x, else its default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from declarative.language.loader.documents import (
    Faults,
    Findings,
    classify,
    decoded,
    evaluated,
    kind_of,
    report,
    shown_place,
    shown_span,
)
from declarative.language.loader.files import ProjectFiles, read_variables
from declarative.language.source import Document
from declarative.language.template import MAX_VALUE, UNUSABLE, TemplateScope
from declarative.model.diagnostic import Severity, Span
from declarative.model.record import struct
from declarative.model.resource import Desired, VolumeWant
from declarative.model.schema import BadValueError, Json, Problem, decode
from declarative.model.spec import Project
from declarative.model.spec.policy import OperatorPolicy

VARIABLE = "FLEETFORM_POLICY"
MACHINES = Path("/etc/fleetform/policy.yaml")


def find_policy(environ: Mapping[str, str]) -> Path | None:
    """The path of the policy: the one in FLEETFORM_POLICY, else the machine's, else the user's."""
    if environ.get(VARIABLE):
        return Path(environ[VARIABLE])
    config = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or "/", ".config")  # noqa: PTH118
    return next(
        (f for f in (MACHINES, Path(config) / "fleetform" / "policy.yaml") if os.path.lexists(f)), None
    )


def read_policy(environ: Mapping[str, str]) -> OperatorPolicy:
    """The operator's policy; `InvalidError` with everything that is wrong with its file.

    A file that cannot be read is an error: fleetform does not guess what it allows.
    """
    path = find_policy(environ)
    if path is None:
        return OperatorPolicy()
    findings = Findings()
    documents = read_variables(path, findings, check=f"check the file, or {VARIABLE}")
    for document in documents[1:]:
        findings.add("duplicate-name", "a policy is one document", "join them", span=document.span(()))
    policy = None
    for document in documents[:1]:
        fields = dict(document.data)
        if fields.pop("type", "policy") != "policy":
            hint, span = "write that, or leave it out", document.span(("type",))
            findings.add("unknown-type", "the `type` of a policy is `policy`", hint, span=span)
        # In a project, a field without a value counts as left out. In a policy, that would allow everything.
        for name, value in document.data.items():
            if value is None:
                hint = "write `[]` for none, or leave the field out"
                findings.add("bad-value", f"`{name}` has no value", hint, span=document.span((name,)))
        problems: list[Problem] = []
        policy = decode(OperatorPolicy, fields, (), problems) if document.whole else None
        report(problems, document, None, findings)
    findings.finish()
    return policy or OperatorPolicy()


@struct(frozen=True, slots=True)
class ProjectFile:
    """The project document, decoded. `readable` is false if its variables are unknown."""

    spec: Project
    document: Document | None = None
    readable: bool = True


def find_project(
    documents: Sequence[Document], findings: Findings, first: Document | None = None
) -> Document | None:
    """The project document among `documents`, or the `first`, which was known before. Another is an error."""
    for document in documents:
        if kind_of(document) != "project" or document is first:
            continue
        if first is None:
            first = document
            continue
        summary = f"a project has one `project` document; the first is at {shown_place(first.span())}"
        findings.add("second-project", summary, "move its fields into the first one", span=document.span())
    return first


def excluded(documents: Sequence[Document]) -> Sequence[str]:
    """The patterns of `exclude`, which are needed first."""
    projects = (d for d in documents if d.data.get("type") == "project")
    project = _part(first.data, "exclude") if (first := next(projects, None)) else None
    return project.exclude if project else ()


def begin(
    documents: Sequence[Document],
    findings: Findings,
    variables: Mapping[str, str],
    var_files: Sequence[Path],
    environ: Mapping[str, str],
) -> tuple[ProjectFile, TemplateScope]:
    """The project with only its variables, since all other fields may depend on them; and their values."""
    document = find_project(documents, findings)
    if document is None:
        project = ProjectFile(Project(), readable=not findings.lost)
    else:
        with_variables = _part(document.data, "variables")
        readable = with_variables is not None and document.whole
        project = ProjectFile(with_variables or Project(), document, readable=readable)
    return project, _scope(project, findings, variables, var_files, environ)


def complete(project: ProjectFile, scope: TemplateScope, findings: Findings) -> ProjectFile:
    """The project with all its fields, their templates replaced by the variables' values."""
    document = project.document
    if document is None:
        return project
    data, faults = evaluated("project", document, scope, but="variables")
    spec = decoded("project", document, (data, faults), None, findings)
    if spec is not None:
        _check_state(spec.state, document, findings)
        return replace(project, spec=spec)
    # The part that is readable helps to find further errors.
    include = _part({key: value for key, value in data.items() if (key,) not in faults}, "include")
    findings.lost |= include is None or any(path[0] == "include" for path in faults)
    return replace(project, spec=replace(project.spec, include=include.include if include else ()))


def declared_state(directory: Path, **arguments: Any) -> str | None:
    """The state's place as declared, even if other things in the project are wrong; None if not declared.

    `arguments` are the files and variables, as for `load`. ValueError if a declared place cannot be worked
    out.
    """
    document, data, faults = _early(directory, **arguments)
    if document is None:
        return None
    part, findings = _part(data, "state"), Findings()
    if part is not None:
        _check_state(part.state, document, findings)
    if part is None or findings.items or ("state",) in faults or not document.whole:
        raise ValueError
    return part.state


def declared_name(directory: Path, **arguments: Any) -> str | None:
    """The project's name as declared, even if other things in the project are wrong; None if it has none, or
    one that cannot be worked out. `arguments` are the files and variables, as for `load`.
    """
    _, data, faults = _early(directory, **arguments)
    part = None if ("name",) in faults else _part(data, "name")
    return part.name if part else None


def _early(
    directory: Path,
    *,
    named: Sequence[Path] = (),
    variables: Mapping[str, str],
    var_files: Sequence[Path] = (),
    environ: Mapping[str, str],
) -> tuple[Document | None, Mapping[str, Any], Faults]:
    """The project document, and its data with the variables' values, whatever else is wrong."""
    findings = Findings()
    documents = classify(ProjectFiles(directory, findings).own(named, excluded), findings)
    project, scope = begin(documents, findings, variables, var_files, environ)
    if project.document is None:
        return None, {}, {}
    return project.document, *evaluated("project", project.document, scope, but="variables")


def check_removed(project: ProjectFile, desired: Desired, findings: Findings) -> dict[str, Span]:
    """Report `removed` entries for things that are still declared. Returns the place of each entry."""
    places: dict[str, Span] = {}
    if project.document is None:
        return places
    declared: dict[str, VolumeWant] = {}
    for name, want in sorted(desired.volumes.items()):
        declared.setdefault(name, want)
        base, _, number = name.rpartition("-")
        if number.isdecimal() and want.declared_by != f"volume/{name}":
            declared.setdefault(base, want)
    for index, item in enumerate(project.spec.removed):
        span = places[f"removed.{index}"] = shown_span(project.document, ("removed", index, "from"))
        if item.volume in declared:
            want = declared[item.volume]
            findings.add(
                "still-declared",
                f"`removed` names `volume/{item.volume}`, and {want.declared_by} declares volume/{want.name}",
                f"remove this entry, or what declares it in {want.declared_by}",
                span=span,
                address=f"volume/{want.name}",
            )
    return places


def limit_places(project: ProjectFile) -> dict[str, Span]:
    """The place of each limit: `limits.nodes`, `limits.protected.0`."""
    document, limits = project.document, project.spec.limits
    if document is None:
        return {}
    paths = [("limits", name) for name in ("cost_per_hour", "cost_per_month", "nodes")]
    places = {".".join(path): shown_span(document, path) for path in paths}
    for index in range(len(limits.protected)):
        places[f"limits.protected.{index}"] = shown_span(document, ("limits", "protected", index))
    return places


GO_AWAY = "remove this entry, or rename what it names"


def check_moved(project: ProjectFile, desired: Desired, findings: Findings) -> dict[str, Span]:
    """Report renamed things that are still declared under the old name. Returns the place of each entry."""
    places: dict[str, Span] = {}
    if project.document is None:
        return places
    families: dict[str, set[str]] = {}
    for volume, want in desired.volumes.items():
        families.setdefault(want.declared_by, set()).add(volume)
    for index, move in enumerate(project.spec.moved):
        span = places[f"moved.{index}"] = shown_span(project.document, ("moved", index))
        kind, _, name = move.source.partition("/")
        known = desired.fleets if kind == "fleet" else desired.tasks
        if kind == "volume":
            family = families.get(move.source, set()) | ({name} & desired.volumes.keys())
            # With a `count`, `data` becomes `data-0`.
            is_declared = bool(family) and move.target.removeprefix("volume/") not in family
        else:
            is_declared = name in known
        if is_declared:
            findings.add(
                "still-declared",
                f"`moved` renames `{move.source}` to `{move.target}`, but `{move.source}` is still declared",
                _middle(name, desired) if kind == "volume" and name in desired.volumes else GO_AWAY,
                span=span,
                address=move.source,
            )
    return places


def _middle(name: str, desired: Desired) -> str:
    """The hint for a volume that shall leave the middle of a `count`. It is renamed once, in the state: an
    entry of `moved` would rename the volume that has taken its number, in each plan.
    """
    family, _, number = name.rpartition("-")
    count = sum(want.declared_by == f"volume/{family}" for want in desired.volumes.values())
    if desired.volumes[name].declared_by != f"volume/{family}" or not number.isdecimal():
        return GO_AWAY
    moves = [f"volume/{name} volume/{family}-old", f"volume/{family}-{count} volume/{name}"]
    commands = " and ".join(f"`fleetform state mv {move}`" for move in moves)
    return (
        f"{GO_AWAY}; to take it out of the middle of a `count`, remove such entries, run {commands}, then "
        f"write `removed: [{{from: volume/{family}-old, destroy: true}}]` and `count: {count}`"
    )


def _part(data: Mapping[str, Any], field: str) -> Project | None:
    """A project with only this field; None if the field is invalid."""
    return decode(Project, {k: v for k, v in data.items() if k == field}, (), [])


def _check_state(url: str | None, document: Document, findings: Findings) -> None:
    """Check the state's URL. Neither it nor its line is shown: it may contain a password."""
    if url is None:
        return
    span = shown_span(document, ("state",))
    hint = "write `state: sqlite:///path` or `state: postgresql://host/database`, or leave it out"
    scheme = url.partition(":")[0].lower()
    if scheme.partition("+")[0] in {"postgresql", "postgres"}:
        if "@" in url:
            hint = "leave them out: they come from PGUSER, PGPASSWORD, ~/.pgpass or a service"
            findings.add("bad-state-url", "`state` names a user or a password", hint, span=span)
        return  # the store checks the rest, since it knows such URLs
    path = url.removeprefix("sqlite:///")
    if path in {url, "", ":memory:", "/"} or any(c in path for c in "?#\0") or path.endswith("/"):
        findings.add("bad-state-url", "`state` is not a URL that can be used", hint, span=span)


PREFIX = "FLEETFORM_VAR_"


def _scope(
    project: ProjectFile,
    findings: Findings,
    from_options: Mapping[str, str],
    files: Sequence[Path],
    environ: Mapping[str, str],
) -> TemplateScope:
    """Every variable with its value, in its type."""
    declared = project.spec.variables
    from_files = _from_files(files, declared, findings, complete=project.readable)
    for name in from_options if project.readable else ():
        if name not in declared:
            declare = f"declare it in the `project` document: `variables: {{{name}: …}}`"
            hint = findings.near(name, declared) or declare
            findings.add("undeclared-variable", f"--var {name}: no such variable is declared", hint)
    # Variable → the words before a finding, its place, and the value. A later source wins.
    sources: dict[str, tuple[str, Span | None, Json]] = {
        key.removeprefix(PREFIX): (f"{key}: ", None, value)
        for key, value in environ.items()
        if key.startswith(PREFIX)
    }
    sources |= {name: (f"`{name}`: ", span, value) for name, (value, span) in from_files.items()}
    sources |= {name: (f"--var {name}: ", None, value) for name, value in from_options.items()}
    values: dict[str, Json] = {}
    unset: set[str] = set()
    for name, variable in declared.items():
        place = project.document.span(("variables", name), key=True) if project.document else None
        source, span, value = sources.get(name) or ("", place, variable.default)
        try:
            values[name] = _usable(name, None if value is None else variable.accept(value))
        except BadValueError as bad:
            unset.add(name)
            at, before = (place, "") if value is None else (span, source)
            findings.add(bad.code, before + bad.summary, bad.hint, span=at)
    return TemplateScope(values, frozenset(unset), open=not project.readable)


def _usable(name: str, value: Json) -> Json:
    """A variable's value, if it has one that is not too long and that programs can take."""
    if value is None:
        hint = f"pass --var {name}=…, set {PREFIX}{name}, or give it a default"
        raise BadValueError("missing-variable", f"the variable `{name}` has no value", hint)
    if isinstance(value, str) and len(value) > MAX_VALUE:
        raise BadValueError("bad-variable", f"a value has at most {MAX_VALUE} characters, found {len(value)}")
    if isinstance(value, str) and UNUSABLE.search(value):
        raise BadValueError("bad-variable", "the value holds U+0000 or is not UTF-8")
    return value


def _from_files(
    files: Sequence[Path], declared: Mapping[str, object], findings: Findings, *, complete: bool
) -> dict[str, tuple[Json, Span]]:
    """The variables in the files; a later file overrides an earlier one."""
    out: dict[str, tuple[Json, Span]] = {}
    for path in files:
        for document in read_variables(path, findings):
            for name, value in document.data.items():
                span = document.span((name,))
                if name in declared:
                    out[name] = (value, span)
                elif complete:
                    # Several projects may share a file, so an undeclared variable is no error.
                    summary = f"no variable `{name}` is declared"
                    declare = "declare it in the `project` document, or remove it"
                    hint = findings.near(name, declared) or declare
                    key = document.span((name,), key=True)
                    findings.add("undeclared-variable", summary, hint, span=key, severity=Severity.WARNING)
    return out
