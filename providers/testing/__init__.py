"""The suite that every provider has to pass, for third parties as for our own. Needs pytest.

Subclass it in a test file, and say how your provider is made:

    class TestMine(Conformance):
        backend = "mine"

        def make(self, folder, lineage):
            return Mine(Config(backend="mine", project_dir=folder, lineage=lineage))

`make` is called often, and each provider that it gives stands for one more process of the same project:
what one of them makes, all the others of that lineage have to find. What is not offered is switched off by
`volumes` and `ranks`. Every test works under a lineage of its own, and takes away what it made.
"""

import pytest

# Before these are imported: a failed assertion then says what was compared.
pytest.register_assert_rewrite(
    "providers.testing.place", "providers.testing.ranks", "providers.testing.things"
)

from providers.testing.place import NODE, VOLUME, Packed, Place, launch, until  # noqa: E402
from providers.testing.ranks import Ranks  # noqa: E402
from providers.testing.things import Things  # noqa: E402

__all__ = ["NODE", "VOLUME", "Conformance", "Packed", "Place", "launch", "until"]


class Conformance(Things, Ranks):
    """What holds for every provider. See the module's docstring for how to use it."""
