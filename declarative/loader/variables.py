"""The values of the project's variables: --var, then --var-file, FLEETFORM_VAR_x, and the default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from declarative.diagnostic import Severity, Span
from declarative.loader.files import read_variables
from declarative.loader.findings import Findings
from declarative.loader.project import ProjectFile
from declarative.schema import BadValueError, Json
from declarative.template import MAX_VALUE, UNUSABLE, Scope

PREFIX = "FLEETFORM_VAR_"


def settle(
    project: ProjectFile,
    findings: Findings,
    given: Mapping[str, str],
    files: Sequence[Path],
    environ: Mapping[str, str],
) -> Scope:
    """Every variable with its value, in its type."""
    declared = project.spec.variables
    from_files = _from_files(files, declared, findings, complete=project.readable)
    for name in given:
        if name not in declared and project.readable:
            hint = (
                findings.near(name, declared)
                or f"declare it in the `project` document: `variables: {{{name}: …}}`"
            )
            findings.add("undeclared-variable", f"--var {name}: no such variable is declared", hint)
    values: dict[str, Json] = {}
    unset: set[str] = set()
    for name, variable in declared.items():
        place = project.document.span(("variables", name), key=True) if project.document else None
        source, span, value = "", place, variable.default
        if name in given:
            source, span, value = f"--var {name}", None, given[name]
        elif name in from_files:
            source, (value, span) = f"`{name}`", from_files[name]
        elif PREFIX + name in environ:
            source, span, value = PREFIX + name, None, environ[PREFIX + name]
        if value is None:
            unset.add(name)
            hint = f"pass --var {name}=…, set {PREFIX}{name}, or give it a default"
            findings.add("missing-variable", f"the variable `{name}` has no value", hint, span=place)
            continue
        try:
            values[name] = _bounded(variable.accept(value))
        except BadValueError as bad:
            unset.add(name)
            summary = f"{source}: {bad.summary}" if source else bad.summary
            findings.add(bad.code, summary, bad.hint, span=span)
    return Scope(values, frozenset(unset), open=not project.readable)


def _bounded(value: Json) -> Json:
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
                    # A file may be shared by several projects, so this is no error.
                    summary = f"no variable `{name}` is declared"
                    hint = (
                        findings.near(name, declared) or "declare it in the `project` document, or remove it"
                    )
                    key = document.span((name,), key=True)
                    findings.add("undeclared-variable", summary, hint, span=key, severity=Severity.WARNING)
    return out
