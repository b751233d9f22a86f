"""The suite's law of large places."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from declarative.state import Address, Record
from providers.testing.place import Base, Place

AT_ONCE = 16


class Crowd(Base):
    """Listings of more nodes than any page holds."""

    def gather(self, place: Place, wanted: Sequence[Record]) -> list[Record]:
        """Make them all; a place that is of the test's own may have them otherwise."""
        provider = place.provider

        def make(record: Record) -> Record:
            outputs = provider.create(record.address, place.token(record), record.inputs, {})
            return replace(record, outputs=outputs)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(make, wanted))

    def disperse(self, place: Place, made: Sequence[Record]) -> None:
        """Take them all away; nothing has to be done for a place that goes with the test."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(place.provider.delete, made))

    def test_listings_are_complete_at_any_size(self, place: Place) -> None:
        """All of `crowd` nodes are listed, each once, with its token, and each is found by that."""
        if not self.crowd:
            pytest.skip("this provider makes no crowds here")
        wanted = [
            Record(address=Address("node", f"gpu-{i}"), backend=self.backend, inputs=self.node_inputs)
            for i in range(self.crowd)
        ]
        made = self.gather(place, wanted)
        try:
            ids = {str(record.outputs["id"]) for record in made}
            assert len(ids) == self.crowd
            listed = place.provider.inventory()
            assert len(listed) == self.crowd
            assert {t.address: t.token for t in listed} == {r.address: place.token(r) for r in wanted}
            assert {str(t.outputs["id"]) for t in listed} == ids
            last = place.provider.find(wanted[-1].address, place.token(wanted[-1]))
            assert last is not None
            assert last.outputs["id"] == made[-1].outputs["id"]
        finally:
            self.disperse(place, made)
