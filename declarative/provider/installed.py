"""Which providers are installed, and how one is found by the name that YAML gives it."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from declarative.model.text import suggest
from declarative.provider import Config, Provider

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "fleetform.providers"
"""The entry point group under which an installed package offers a provider."""
OWN = {"local": "providers.local:Local", "ssh": "providers.ssh:Ssh", "slurm": "providers.slurm:Slurm"}
"""Entry points that are not looked up: to ask what is installed takes longer than what most commands do."""
ANY = "*"
"""The name of an entry point that is asked for every name that no other has. It gives `UnknownProviderError`
for those that it does not know either.
"""

OTHERS = {
    "aws": "ec2",
    "gcp": "gce",
    "amazon": "ec2",
    "google": "gce",
    "azurerm": "azure",
    "do": "digitalocean",
}
"""Names that others have for clouds. dstack's users may have named their backends by its own."""


class UnknownProviderError(Exception):
    """No installed package offers a provider of that name. `known` are names that may be meant instead."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(known)
        self.hint = suggest(name, known) or f"installed: {', '.join(installed())}"
        super().__init__(f"no provider `{name}` is installed")


@functools.cache
def _others(_path: tuple[str, ...]) -> frozenset[str]:
    """What entry points of the name `*` know. To load one takes a while."""
    points = [p for p in _points() if p.name == ANY]
    return frozenset(other for point in points for other in getattr(point.load(), "names", tuple)())


def unknown(name: str) -> str | None:
    """How to mend a name that no provider has; None for one that `load` finds something for.

    An entry point of the name `*` says by its own function `names()` which ones it knows.
    """
    if name in OWN or name in (here := installed()):
        return None
    more = _others(tuple(sys.path))
    if name in more:
        return None
    if name in OTHERS:
        return f"write `driver: {OTHERS[name]}`"
    known = sorted({*here, *more})
    return suggest(name, known) or f"there are {', '.join(here)}; of libcloud's others, see docs/clouds.md"


def _points() -> tuple[EntryPoint, ...]:
    """What is installed, where Python looks for packages now."""
    return _points_on(tuple(sys.path))


@functools.cache
def _points_on(_path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    # Kept: to look them up reads a file of each distribution.
    import importlib.metadata

    return tuple(importlib.metadata.entry_points(group=GROUP))


def installed() -> tuple[str, ...]:
    """The names of all providers that are installed."""
    return tuple(sorted({e.name for e in _points()} - {ANY}))


def load(name: str, config: Config) -> Provider:
    """The provider that an installed package offers as `name`; `UnknownProviderError` if none does."""
    if name in OWN:
        module, _, factory = OWN[name].partition(":")
        own: Provider = getattr(importlib.import_module(module), factory)(config)
        return own
    points = _points()
    known = set(installed())
    for point in [p for p in points if p.name == name][:1] + [p for p in points if p.name == ANY]:
        try:
            provider: Provider = point.load()(config)
        except UnknownProviderError as error:
            known |= set(error.known)
        else:
            return provider
    raise UnknownProviderError(name, sorted(known))
