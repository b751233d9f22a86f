"""The operator's policy: found outside of every project, read as strictly as YAML is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from declarative.language.loader.documents import report
from declarative.language.loader.files import read_variables
from declarative.language.loader.findings import Findings
from declarative.language.source import Document
from declarative.model.schema import Problem, decode
from declarative.model.spec.policy import OperatorPolicy

VARIABLE = "FLEETFORM_POLICY"
MACHINES = Path("/etc/fleetform/policy.yaml")


def find_policy(environ: Mapping[str, str]) -> Path | None:
    """The file that counts: the one that FLEETFORM_POLICY names, the machine's, else the user's."""
    if environ.get(VARIABLE):
        return Path(environ[VARIABLE])
    config = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or "/", ".config")  # noqa: PTH118
    return next(
        (f for f in (MACHINES, Path(config) / "fleetform" / "policy.yaml") if os.path.lexists(f)), None
    )


def read_policy(environ: Mapping[str, str]) -> OperatorPolicy:
    """What the operator allows; `InvalidError` with everything that is wrong with the file.

    A file that cannot be read is an error: fleetform does not guess what it allows.
    """
    path = find_policy(environ)
    if path is None:
        return OperatorPolicy()
    findings = Findings()
    documents = read_variables(path, findings, check=f"check the file, or {VARIABLE}")
    for document in documents[1:]:
        findings.add("duplicate-name", "a policy is one document", "join them", span=document.span(()))
    found = _decoded(documents[0], findings) if documents else None
    findings.finish()
    return found or OperatorPolicy()


def _decoded(document: Document, findings: Findings) -> OperatorPolicy | None:
    fields = dict(document.data)
    if fields.pop("type", "policy") != "policy":
        span = document.span(("type",))
        findings.add(
            "unknown-type", "a policy is of `type: policy`", "write that, or leave it out", span=span
        )
    # In a project, a field without a value counts as left out. Here that would allow all.
    for name, value in document.data.items():
        if value is None:
            hint = "write `[]` for none, or leave the field out"
            findings.add("bad-value", f"`{name}` has no value", hint, span=document.span((name,)))
    problems: list[Problem] = []
    found = decode(OperatorPolicy, fields, (), problems) if document.whole else None
    report(problems, document, None, findings)
    return found
