"""Looking ahead: what a plan would fail with, as far as its backends can tell before anything is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from declarative.apply.backends import Backends
from declarative.model.diagnostic import Diagnostic, Severity, Span, in_order, located
from declarative.model.inputs import data_of
from declarative.model.resource import LOCAL
from declarative.model.state import Address
from declarative.planner.types import Op, Plan
from declarative.provider import PermanentError, ProviderError
from declarative.retry import Policy, call

PATIENCE = Policy(deadline=5.0, longest=2.0)
"""Who does not answer now may do so when the plan is carried out, which is more patient."""


def foresee(plan: Plan, backends: Backends, places: Mapping[str, Span]) -> Plan:
    """The plan, with an error for each backend that would refuse what it asks for.

    `places` is where addresses are declared.
    """
    wanted: dict[str, dict[Address, Mapping[str, Any]]] = {}
    for action in plan.actions:
        if action.op is Op.CREATE and action.address.kind in ("node", "volume"):
            wanted.setdefault(action.backend or LOCAL, {})[action.address] = data_of(action.typed)
    asked = (item for name in sorted(wanted) for item in _ask(name, wanted[name], backends))
    found = located(asked, places)
    if not found:
        return plan
    refused = {d.address for d in found if d.severity is Severity.ERROR}
    # That it cannot be read is said once: the same fault as an error says more.
    known = [d for d in plan.diagnostics if d.code != "backend-unreadable" or d.address not in refused]
    said = {(d.code, d.address) for d in known}
    more = [d for d in found if (d.code, d.address) not in said or d.severity is Severity.ERROR]
    return replace(plan, diagnostics=in_order([*known, *more]))


def _ask(name: str, wanted: Mapping[Address, Mapping[str, Any]], backends: Backends) -> list[Diagnostic]:
    try:
        provider = backends.get(name)
        faults = call(lambda: provider.check(wanted), policy=PATIENCE)
    except ProviderError as error:
        faults = (error,)
    return [_said(name, error, wanted) for error in faults]


def _said(name: str, error: ProviderError, wanted: Mapping[Address, Mapping[str, Any]]) -> Diagnostic:
    address = f"backend/{name}"
    if isinstance(error, PermanentError):
        summary = f"backend {name} would refuse this plan: {error.summary}"
        # What is wrong with one thing is mended where that is declared: its summary begins with it.
        subject = next((a for a in wanted if error.summary.startswith(f"{a}: ")), None)
        if subject is not None:
            fleet = wanted[subject].get("fleet")
            address = f"fleet/{fleet}" if fleet else str(subject)
        return Diagnostic(code="backend-refuses", summary=summary, hint=error.hint, address=address)
    return Diagnostic(
        code="backend-unreadable",
        summary=f"backend {name} cannot be read: {error.summary}",
        hint=error.hint or "whether it would do what is planned could not be seen",
        address=address,
        severity=Severity.WARNING,
    )
