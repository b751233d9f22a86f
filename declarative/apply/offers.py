"""What backends have to offer: what is declared, and what they themselves tell."""

from __future__ import annotations

from collections.abc import Iterable

from declarative.apply.backends import Backends
from declarative.apply.drift import PATIENCE
from declarative.diagnostic import Diagnostic, Severity
from declarative.provider import ProviderError
from declarative.resource import CATALOGUED, LOCAL, SSH, Offer, catalog_offers, merge_offers
from declarative.retry import call


def known_offers(
    backends: Backends, names: Iterable[str], *, offline: bool
) -> tuple[dict[str, tuple[Offer, ...]], list[Diagnostic]]:
    """Declared and reported offers of each backend, and which could not be read.

    Offline they are those that are known without asking anybody.
    """
    out: dict[str, tuple[Offer, ...]] = {}
    faults: list[Diagnostic] = []
    for name in names:
        backend = backends.declared.get(name)
        declared = catalog_offers(backend) if backend else ()
        reported: tuple[Offer, ...] = ()
        if backend and backend.provider == SSH:
            continue  # it launches nothing
        if not offline or (backend.provider if backend else LOCAL) in CATALOGUED:
            try:
                provider = backends.get(name)
            except ProviderError as error:
                # What is declared cannot be launched either.
                faults.append(unreadable(name, error))
                out[name] = ()
                continue
            try:
                reported = call(provider.offers, policy=PATIENCE)
            except ProviderError as error:
                faults.append(unreadable(name, error))
        out[name] = merge_offers(declared, reported)
    return out, faults


def unreadable(backend: str, error: ProviderError) -> Diagnostic:
    """Why a backend does not answer as it should, and what comes of that."""
    return Diagnostic(
        code="backend-unreadable",
        summary=f"backend {backend} cannot be read: {error.summary}",
        hint=error.hint or "nodes of it that do not answer count as unknown: they take no work",
        address=f"backend/{backend}",
        severity=Severity.WARNING,
    )
