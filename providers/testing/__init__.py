"""The suite that every provider has to pass, for third parties as for our own. Needs pytest.

Subclass it in a test file, and say how your provider is made:

    class TestMine(Conformance):
        backend = "mine"

        def make(self, folder, lineage):
            return Mine(Config(backend="mine", project_dir=folder, lineage=lineage))

`make` is called often, and each provider that it gives stands for one more process of the same project:
what one of them makes, all the others of that lineage have to find. What is not offered is switched off by
`volumes`, `ranks` and `crowd`. Every test works under a lineage of its own, and takes away what it made.

What a place does on a bad day is a law as well: give `spoiled`, the same provider behind a proxy that loses
answers, answers nonsense or refuses, and the suite holds it to those. And a place that is slow at 1,100 nodes
sets `crowd = 0`, and runs that law alone against something light:

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
    """What holds for every provider. See the module's docstring for how to use it."""
