"""Decodes each document by itself: its type, its templates, its fields. And collects the findings of one
load.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, TypeAlias

from declarative.language.source import Document, Path
from declarative.language.source.places import SECRET_FIELDS, Spot
from declarative.language.template import Place, TemplateError, TemplateScope, interpolate
from declarative.model.codes import CODES
from declarative.model.diagnostic import Diagnostic, InvalidError, Severity, Span, in_order
from declarative.model.record import struct
from declarative.model.schema import Problem, decode, describe, fields_of, validate
from declarative.model.spec import DOCUMENTS
from declarative.model.spec.values import NAME
from declarative.model.text import Near

MAX_FINDINGS = 1_000
"""Nobody reads more at once, and showing one takes as long as reading a document."""
MAX_SUMMARY = 300


class Findings:
    """Collects errors and warnings.

    `lost`: some document could not be read at all, so a name that seems undeclared may be in it. `published`:
    documents are checked against the published schemas as well.
    """

    def __init__(self, *, published: bool = True) -> None:
        self.published = published
        self.items: list[Diagnostic] = []
        self.lost = False
        self.near = Near()

    def add(
        self,
        code: str,
        summary: str,
        hint: str | None = None,
        *,
        span: Span | None = None,
        address: str | None = None,
        severity: Severity = Severity.ERROR,
    ) -> None:
        """Add one finding. Long values in its text are cut."""
        if len(summary) > MAX_SUMMARY:
            summary = summary[:MAX_SUMMARY] + "…"
        self.extend(
            [Diagnostic(code=code, summary=summary, hint=hint, span=span, address=address, severity=severity)]
        )

    def extend(self, items: Iterable[Diagnostic]) -> None:
        """Add findings of the layers below. One without a hint gets its code's."""
        for diagnostic in items:
            if not self.full:
                known = CODES.get(diagnostic.code) if diagnostic.hint is None else None
                self.items.append(replace(diagnostic, hint=known.fix) if known else diagnostic)

    @property
    def full(self) -> bool:
        """Whether the limit for findings is reached."""
        return len(self.items) >= MAX_FINDINGS

    def finish(self) -> tuple[Diagnostic, ...]:
        """The warnings; `InvalidError` with all findings if one is an error."""
        items = in_order(self.items)
        if any(diagnostic.severity is Severity.ERROR for diagnostic in items):
            if self.full:
                summary = f"only the first {MAX_FINDINGS} findings are shown"
                items = (*items, Diagnostic(code="too-many-errors", summary=summary, hint="fix these first"))
            raise InvalidError(items)
        return items


_UNSUPPORTED = {
    "dev-environment": "for a machine to work on write a `task`, and then `fleetform ssh`",
    "service": "write a `task` with the commands to run; nothing scales it or routes to it",
    "gateway": "remove it; fleetform has no services",
}
"""dstack's types of documents without a counterpart here, and what to write instead."""
_FOREIGN = {
    "profile": "write its fields where they are used",
    "policy": "keep it outside of projects: in /etc/fleetform/policy.yaml, or where FLEETFORM_POLICY says",
}

_OTHERS = (
    ({"apiVersion", "kind"}, "this is a file of Kubernetes: {leave}, and write a `task` or a `fleet`"),
    ({"services"}, "this is a file of docker compose: {leave}, and write a `task` for each service"),
    ({"run"}, "this is a task of SkyPilot: `fleetform import skypilot FILE` prints what to write instead"),
    ({"jobs", "on"}, "this is a workflow of GitHub: {leave}"),
)
"""Top keys of other tools' files, and a hint; `{leave}` stands for how to leave the file out."""

Faults: TypeAlias = dict[Path, list[TemplateError]]
"""The errors of a document's templates, by the path of the value."""

MAX_FIELDS = 100
"""The type of a document with more fields is not guessed."""


@struct(frozen=True, slots=True)
class Declaration:
    """A document with a name. `spec` is None if something in it is wrong; `data` is what was decoded."""

    kind: str
    name: str
    document: Document
    data: Mapping[str, Any]
    spec: Any

    @property
    def address(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def span(self) -> Span:
        return self.spot.span

    @property
    def spot(self) -> Spot:
        return self.document.spot(("name",))

    def add_finding(
        self,
        findings: Findings,
        path: Path,
        code: str,
        summary: str,
        hint: str | None = None,
        *,
        key: bool = False,
        severity: Severity = Severity.ERROR,
    ) -> None:
        """Add a finding about the value at a path, or with `key` about its key."""
        span = shown_span(self.document, path, key=key)
        findings.add(code, summary, hint, span=span, address=self.address, severity=severity)


class Places(Mapping[str, Span]):
    """Where each address is declared."""

    def __init__(self, places: Mapping[str, Spot | Span]) -> None:
        self._places = places

    def __getitem__(self, address: str) -> Span:
        place = self._places[address]
        return place if isinstance(place, Span) else place.span

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def shown_span(document: Document, path: Path, *, key: bool = False) -> Span:
    """The span of a path, without its text if it may contain a secret. It relies on the fields that the
    reader knows; `source.places` sees only the text.
    """
    span = document.span(path, key=key)
    for field in SECRET_FIELDS:
        if field in document.data:
            first, last = document.span((field,), key=True), document.span((field,))
            if first.line <= span.line <= last.end_line:
                return replace(span, text="")
    return span


def shown_place(span: Span) -> str:
    """`fleet.yaml:4`."""
    return f"{span.file}:{span.line}"


def kind_of(document: Document) -> str:
    """The document's type; empty if it has none or it is not a text."""
    kind = document.data.get("type")
    return kind if isinstance(kind, str) else ""


def classify(documents: Sequence[Document], findings: Findings) -> list[Document]:
    """The documents of known types. The others are reported."""
    classified: list[Document] = []
    listing = ", ".join(f"`{kind}`" for kind in DOCUMENTS)
    for document in documents:
        kind = kind_of(document)
        if kind in DOCUMENTS:
            classified.append(document)
            continue
        if kind in _UNSUPPORTED:
            continue  # `skipped` warns of these
        findings.lost = True
        if "type" in document.data:
            near = findings.near(kind, DOCUMENTS) if kind else None
            hint = _FOREIGN.get(kind) or near or f"known types: {listing}"
            summary = f"{describe(document.data['type'])} is not a type of document"
            findings.add("unknown-type", summary, hint, span=shown_span(document, ("type",)))
        elif document.whole:
            leave = f"leave it out with `exclude: [{document.file}]` in the `project` document"
            unknown = (), f"add `type:` with one of {listing}; if the file is another tool's, {leave}"
            path, hint = _type_hint(document, findings, leave) or unknown
            span = shown_span(document, path, key=True)
            findings.add("missing-type", "the document has no `type`", hint, span=span)
    return classified


def skipped(documents: Sequence[Document], hidden: Sequence[Document], findings: Findings) -> dict[str, Span]:
    """Report the documents that are left out. Returns the addresses that they would declare, and where."""
    out: dict[str, Span] = {}

    def skip(document: Document, kind: object, summary: str, hint: str) -> None:
        span = shown_span(document, ("type",))
        findings.add("skipped", summary, hint, span=span, severity=Severity.WARNING)
        name = document.data.get("name") or file_name(document.file)
        out.setdefault(f"{kind if kind in DOCUMENTS else 'task'}/{name}", span)

    for document in documents:
        if (kind := kind_of(document)) in _UNSUPPORTED:
            skip(document, kind, f"the {kind} is skipped: fleetform has no such type", _UNSUPPORTED[kind])
    for document in hidden:
        hint = f"name it: `-f {document.file}`, or `include: [{document.file}]` in the `project` document"
        skip(document, document.data.get("type"), f"`{document.file}` is hidden, and was not read", hint)
    return out


def file_name(file: str) -> str | None:
    """The name for the only document of its kind in a file, if it has none of its own: `train` for
    `train.dstack.yml`; for `.dstack.yml` the folder's name.
    """
    path = PurePosixPath(file)
    stem = path.name.removesuffix(path.suffix).removesuffix("dstack").strip(".") or path.parent.name
    name = re.sub(r"[^a-z0-9]+", "-", (stem or "dstack").lower()).strip("-")
    return name if NAME.fullmatch(name) else None


def _type_hint(document: Document, findings: Findings, leave: str) -> tuple[Path, str] | None:
    """A hint: the mistyped key, or the only type with these fields."""
    keys = [key for key in document.data if len(key) <= MAX_FIELDS][:MAX_FIELDS]
    for having, hint in _OTHERS:
        if having <= set(keys):
            return (), hint.replace("{leave}", leave)
    if len(keys) == 1 and keys[0] in DOCUMENTS:
        return (keys[0],), f"write `type: {keys[0]}`, and its fields beside that, not below"
    for key in keys:
        if findings.near(key, ("type",)):
            return (key,), f"write `type:` for `{key}:`"
    fitting = [kind for kind, cls in DOCUMENTS.items() if {f.name for f in fields_of(cls)}.issuperset(keys)]
    return ((), f"add `type: {fitting[0]}`") if len(fitting) == 1 else None


def decode_all(documents: Sequence[Document], scope: TemplateScope, findings: Findings) -> list[Declaration]:
    """All documents but the project's, decoded. Those without a usable name are left out."""
    declarations: list[Declaration] = []
    nameless = Counter((kind_of(d), d.file) for d in documents if "name" not in d.data)
    for document in documents:
        kind = kind_of(document)
        if kind == "project":
            continue
        data, faults = evaluated(kind, document, scope)
        default = file_name(document.file) if nameless[kind, document.file] == 1 else None
        if default and "name" not in data and document.whole and kind != "backend":
            data = {"name": default, **data}
        name = data.get("name")
        usable = isinstance(name, str) and 0 < len(name) <= 100 and ("name",) not in faults
        spec = decoded(kind, document, (data, faults), f"{kind}/{name}" if usable else None, findings)
        if usable:
            declarations.append(Declaration(kind, str(name), document, data, spec))
        else:
            findings.lost = True
    return declarations


_ADDRESS = re.compile(r"\$\{\{\s*groups\[(\d{1,4})\]\.nodes\[(\d{1,6})\]\.IP_ADDRESS\s*\}\}", re.ASCII)


def _with_addresses(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The task with dstack's `${{ groups[i].nodes[j].IP_ADDRESS }}` replaced by shell variables in the
    commands of its groups. Expressions in single quotes stay, and become an error: a shell does not replace
    them.
    """
    groups = data.get("groups")
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        return data
    sizes = [n if isinstance(n := group.get("nodes", 1), int) else 1 for group in groups]

    def address(match: re.Match[str]) -> str:
        group, node = int(match[1]), int(match[2])
        quoted = match.string.count("'", 0, match.start()) % 2
        if quoted or group >= len(sizes) or node >= sizes[group]:
            return match[0]
        rank = sum(sizes[:group]) + node
        if rank == 0:
            return "${FLEETFORM_MASTER_NODE_IP}"
        return f'$(echo "$FLEETFORM_NODES_IPS" | sed -n {rank + 1}p)'

    def commands(group: dict[str, Any]) -> dict[str, Any]:
        lines = group.get("commands")
        if not isinstance(lines, list):
            return group
        return {**group, "commands": [_ADDRESS.sub(address, c) if isinstance(c, str) else c for c in lines]}

    return {**data, "groups": [commands(group) for group in groups]}


def evaluated(
    kind: str, document: Document, scope: TemplateScope, *, but: str | None = None
) -> tuple[Mapping[str, Any], Faults]:
    """A document's data with all templates replaced except in the field `but`, and the errors of those."""
    faults: Faults = {}
    if not document.may_hold("${"):
        return document.data, faults
    data = {
        key: value if key == but else _interpolated(value, kind, (key,), scope, faults)
        for key, value in (_with_addresses(document.data) if kind == "task" else document.data).items()
    }
    return data, faults


def decoded(
    kind: str,
    document: Document,
    evaluated_data: tuple[Mapping[str, Any], Faults],
    address: str | None,
    findings: Findings,
) -> Any:
    """The result of `evaluated` as a value of its kind. None if something is wrong, which is reported."""
    data, faults = evaluated_data
    _report_templates(kind, document, faults, address, findings)
    problems: list[Problem] = []
    spec = None
    if document.whole:
        body = {key: value for key, value in data.items() if key != "type"}
        cls: type[Any] = DOCUMENTS[kind]
        spec = decode(cls, body, (), problems)
        if faults:  # problems that only follow from a failed template are not reported
            above = {path[:i] for path in faults for i in range(1, len(path) + 1)}
            problems = [
                p
                for p in problems
                if p.path not in above and not any(p.path[:i] in faults for i in range(1, len(p.path) + 1))
            ]
            spec = None
        elif spec is not None and findings.published:
            problems += validate(DOCUMENTS[kind], kind, data)
    report(problems, document, address, findings)
    return spec if all(problem.warning for problem in problems) else None


def _report_templates(
    kind: str, document: Document, faults: Faults, address: str | None, findings: Findings
) -> None:
    """Report the errors of a document's templates, at their places."""
    for path, errors in faults.items():
        if findings.full:
            break
        span = shown_span(document, path)
        for error in errors:
            if error.code == "unset":
                continue  # reported where the variable is declared
            hint = error.hint
            if error.code == "node-rank-here" and kind == "volume":
                hint = (
                    "write `count: 4` for `<name>-0` to `<name>-3`; a task mounts `<name>-${{ node_rank }}`"
                )
            elif error.code == "node-rank-here" and path[0] == "volumes":
                hint = "write the same path for all ranks: each has its own volume there"
            findings.add(error.code, str(error), hint, span=span, address=address)


def report(problems: Sequence[Problem], document: Document, address: str | None, findings: Findings) -> None:
    """Report the errors of a document's data, at their places."""
    for problem in problems:
        if findings.full:
            break
        # A missing field has no place of its own: show the key of the mapping that lacks it.
        key = problem.at_key or problem.code == "missing-field"
        span = shown_span(document, problem.path, key=key)
        severity = Severity.WARNING if problem.warning else Severity.ERROR
        code, summary, hint = problem.code, problem.summary, problem.hint
        findings.add(code, summary, hint, span=span, address=address, severity=severity)


def _interpolated(value: Any, kind: str, path: Path, scope: TemplateScope, faults: Faults) -> Any:
    """`value` with its templates replaced. Keys are not changed."""
    if isinstance(value, dict):
        return {k: _interpolated(v, kind, (*path, k), scope, faults) for k, v in value.items()}
    if isinstance(value, list):
        return [_interpolated(v, kind, (*path, i), scope, faults) for i, v in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    errors: list[TemplateError] = []
    result = interpolate(value, scope, _place(kind, path), errors)
    if errors:
        faults[path] = errors
        return value
    return result


def _place(kind: str, path: Path) -> Place:
    # A text in place of a list or mapping is checked as an item. Another error reports that it is not a list.
    match kind, *path:
        case "task" | "fleet", "env", *rest if len(rest) <= 1:
            return Place.ENV
        case "fleet", "ssh_config", "hosts", int(), "env", *rest if len(rest) <= 1:
            return Place.ENV
        case "task", "registry_auth", *_:
            return Place.ENV
        case ("task", "volumes") | ("task", "volumes", _) | ("task", "volumes", _, "name", *_):
            return Place.VOLUME
        case _:
            amount = not {"nodes", "cpu", "memory", "disk", "gpu"}.isdisjoint(path)
            return Place.AMOUNT if amount else Place.TEXT
