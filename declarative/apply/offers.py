"""What backends have to offer: what is declared, and what they themselves tell."""

from __future__ import annotations

from collections.abc import Iterable

from declarative.apply.backends import Backends
from declarative.apply.drift import PATIENCE
from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.resource import CATALOGUED, EXISTING, LOCAL, Offer, catalog_offers, merge_offers
from declarative.provider import ProviderError
from declarative.retry import call

MOST_SAID = 1_000
"""Characters of a provider's message."""

MOST_OFFERS = 500_000
"""What the backends of a project may offer together: a stranger's few lines must not eat the machine."""


def known_offers(
    backends: Backends, names: Iterable[str], *, offline: bool
) -> tuple[dict[str, tuple[Offer, ...]], list[Diagnostic]]:
    """Declared and reported offers of each backend; which could not be read, and whether there are too many.

    Offline they are those that are known without asking anybody.
    """
    out: dict[str, tuple[Offer, ...]] = {}
    faults: list[Diagnostic] = []
    known = 0
    for name in names:
        backend = backends.declared.get(name)
        declared = catalog_offers(backend) if backend else ()
        reported: tuple[Offer, ...] = ()
        if backend and backend.provider in EXISTING:
            continue  # it launches nothing
        if not offline or (backend.provider if backend else LOCAL) in CATALOGUED:
            try:
                provider = backends.catalogue(name) if offline else backends.get(name)
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
        known += len(out[name])
        if known > MOST_OFFERS:
            faults.append(_too_many(name))
            break
    return out, faults


def own_gpus(backends: Backends) -> tuple[str, ...] | None:
    """The models of this machine's GPUs, which nodes of the driver `local` share; None if nobody can tell."""
    drivers = {name: backends.declared.get(name) for name in backends.names()}
    name = next((n for n, b in drivers.items() if (b.provider if b else n) == LOCAL), None)
    try:
        return backends.get(name).gpus() if name else None
    except ProviderError:
        return None


def _too_many(backend: str) -> Diagnostic:
    return Diagnostic(
        code="too-large",
        summary=f"with those of backend {backend}, the backends have more than {MOST_OFFERS} offers",
        hint="name fewer `regions` or `availability_zones`, or declare fewer backends",
        address=f"backend/{backend}",
    )


def _short(text: str) -> str:
    """What a provider says, which may quote what it was given."""
    return text if len(text) <= MOST_SAID else f"{text[:MOST_SAID]}…"


def unreadable(backend: str, error: ProviderError) -> Diagnostic:
    """Why a backend does not answer as it should, and what comes of that."""
    return Diagnostic(
        code="backend-unreadable",
        summary=f"backend {backend} cannot be read: {_short(error.summary)}",
        hint=_short(error.hint or "") or "nodes of it that do not answer count as unknown: they take no work",
        address=f"backend/{backend}",
        severity=Severity.WARNING,
    )
