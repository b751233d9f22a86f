"""The suite that every provider has to pass, for third parties as for our own. Needs pytest.

Subclass it in a test file, with a method that makes your provider:

    class TestMine(Conformance):
        backend = "mine"

        def make(self, folder, lineage):
            return Mine(Config(backend="mine", project_dir=folder, lineage=lineage))

The suite calls `make` often. Each provider stands for one more process of the same project: it must find
what the others of its lineage made. `volumes`, `ranks` and `crowd` switch off what the provider does not
offer. Every test has a lineage of its own, and removes what it made.

The suite has laws for bad days, too. They need `spoiled`: the same provider behind a proxy that loses
answers, changes them or refuses. If a place is slow with 1,100 nodes, set `crowd = 0`, and run that law alone
against something light:

    class TestMineIsComplete(Crowd):
        def make(self, folder, lineage):
            return Mine(...)
"""

import pytest

# Before these are imported: a failed assertion then says what was compared.
pytest.register_assert_rewrite(
    "providers.testing.place",
    "providers.testing.ranks",
    "providers.testing.things",
)

from providers.testing.place import NODE, VOLUME, Packed, Place, Spoilt, launch, until  # noqa: E402
from providers.testing.ranks import Ranks  # noqa: E402
from providers.testing.things import Crowd, Spoiled, Things  # noqa: E402

__all__ = ["NODE", "VOLUME", "Conformance", "Crowd", "Packed", "Place", "Spoilt", "launch", "until"]


class Conformance(Things, Spoiled, Crowd, Ranks):
    """The rules for every provider. The module's docstring says how to use it."""
