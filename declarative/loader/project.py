"""The `project` document: found first, since it says which files to read and which variables there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from declarative.loader.documents import Raw, report, shown_place, shown_span
from declarative.loader.findings import Findings
from declarative.schema import Problem, decode, validate
from declarative.source import Document
from declarative.spec import Project


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """The project document and what it says; `readable` is false where its variables cannot be known."""

    spec: Project
    document: Document | None = None
    patterns: tuple[str, ...] = ()
    readable: bool = True


def read_project(raw: Sequence[Raw], findings: Findings, known: ProjectFile | None = None) -> ProjectFile:
    """The project document among `raw`; a second one is an error. `known` has been read before."""
    first = known.document if known else None
    for item in raw:
        if item.kind != "project" or item.document is first:
            continue
        if first is None:
            first = item.document
            continue
        summary = f"a project has one `project` document; the first is at {shown_place(first.span())}"
        findings.add(
            "second-project", summary, "move its fields into the first one", span=item.document.span()
        )
    if known:
        return known
    return _read(first, findings) if first else ProjectFile(Project(), readable=not findings.lost)


def _read(document: Document, findings: Findings) -> ProjectFile:
    body = {key: value for key, value in document.data.items() if key != "type"}
    problems: list[Problem] = []
    spec = decode(Project, body, (), problems) if document.whole else None
    if spec is not None:
        problems += validate(Project, "project", document.data)
        _check_state(spec.state, document, findings)
    report(problems, document, None, findings)
    if spec is not None:
        return ProjectFile(spec, document, spec.include)
    # What is readable still helps to find what else is wrong.
    variables = _part(document, "variables")
    include = _part(document, "include")
    findings.lost |= include is None
    readable = variables is not None and document.whole
    return ProjectFile(
        variables or Project(), document, include.include if include else (), readable=readable
    )


def _part(document: Document, field: str) -> Project | None:
    """A project with this field alone; None if the field cannot be read."""
    return decode(Project, {k: v for k, v in document.data.items() if k == field}, (), [])


def _check_state(url: str | None, document: Document, findings: Findings) -> None:
    """The URL is never shown, nor its line: it might hold a password."""
    span = shown_span(document, ("state",))
    hint = "write `state: sqlite:///path` or `state: postgresql://host/database`, or leave it out"
    scheme = (url or "").partition(":")[0].lower()
    if url is None:
        return
    if scheme.partition("+")[0] in {"postgresql", "postgres"}:
        if "@" in url:
            hint = "leave them out: they come from PGUSER, PGPASSWORD, ~/.pgpass or a service"
            findings.add("bad-state-url", "`state` names a user or a password", hint, span=span)
        return  # the rest is for the store to say, which knows what such a URL may hold
    path = url.removeprefix("sqlite:///")
    if path in {url, "", ":memory:", "/"} or any(c in path for c in "?#\0") or path.endswith("/"):
        findings.add("bad-state-url", "`state` is not a URL that can be used", hint, span=span)
