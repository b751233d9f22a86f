"""The suite's laws of bad days: answers that are lost, that are none, that refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from declarative.provider import PermanentError, Provider, ProviderError, TransientError
from declarative.state import Address, Record
from providers.testing.place import Base, Place, Spoilt

SENSELESS = (Spoilt.NOBODY, Spoilt.SENSELESS, Spoilt.DENIED)


class Spoiled(Base):
    """What holds when the way to the place is bad. Skipped where `spoiled` gives nothing."""

    def _spoiled(self, place: Place, how: Spoilt) -> Provider:
        provider = self.spoiled(place.folder, place.lineage, how)
        if provider is None:
            pytest.skip("nothing of this provider is spoiled here")
        return provider

    @pytest.mark.parametrize("kind", ["node", "volume"])
    def test_a_crash_between_call_and_answer_is_found(self, place: Place, kind: str) -> None:
        """It was carried out, and nobody heard of it: it is found, and one however often it is tried."""
        if kind == "volume" and not self.volumes:
            pytest.skip("this provider has no volumes")
        inputs = self.node_inputs if kind == "node" else self.volume_inputs
        record = place.wanted(kind, "lost-0", inputs)
        with pytest.raises(TransientError):
            self._spoiled(place, Spoilt.LOST).create(record.address, place.token(record), inputs, {})
        found = place.provider.find(record.address, place.token(record))
        assert found is not None
        again = place.create(record)
        assert again.outputs["id"] == found.outputs["id"]
        assert [thing.address for thing in place.provider.inventory()] == [record.address]

    @pytest.mark.parametrize("how", SENSELESS)
    def test_what_cannot_be_asked_is_never_empty(self, place: Place, how: Spoilt) -> None:
        """No listing, no look and no creation: each is one of the port's faults, and no answer."""
        node = place.create(place.wanted("node", "gpu-0", self.node_inputs))
        spoiled = self._spoiled(place, how)
        other = Record(address=Address("node", "gpu-1"), backend=self.backend, inputs=self.node_inputs)
        calls: list[Callable[[], Any]] = [
            spoiled.inventory,
            lambda: spoiled.find(node.address, place.token(node)),
            lambda: spoiled.create(other.address, "1" * 32, other.inputs, {}),
            lambda: spoiled.delete(node),
        ]
        for call in calls:
            with pytest.raises(ProviderError) as caught:
                call()
            assert isinstance(caught.value, TransientError | PermanentError)  # never the base
            assert caught.value.summary
        assert [thing.address for thing in place.provider.inventory()] == [node.address]
