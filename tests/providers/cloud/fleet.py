"""One state's nodes and volumes on a cloud, as `apply` makes them: every call is tried again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from declarative.model.state import Address, Record, token
from declarative.retry import Policy, call
from tests.support.model import of_attachment

QUICK = Policy(deadline=60.0, first=0.001, longest=0.01)


class Fleet:
    """What one state has. `node` and `volume` are the inputs of each, but for what a test says."""

    def __init__(
        self, provider: Any, lineage: str, node: Mapping[str, Any], volume: Mapping[str, Any]
    ) -> None:
        self.provider, self.lineage = provider, lineage
        self._node, self._volume = node, volume

    def create(self, kind: str, name: str, inputs: dict[str, Any], *needs: Record) -> Record:
        """One thing, and its record."""
        address = Address(kind, name)
        made_of = token(self.lineage, address, 1, None)
        held = {need.address: need for need in needs}
        outputs = call(lambda: self.provider.create(address, made_of, inputs, held), policy=QUICK)
        return Record(address=address, backend=self._node["backend"], inputs=inputs, outputs=outputs)

    def node(self, name: str = "gpu-0", **inputs: Any) -> Record:
        """A node."""
        return self.create("node", name, {**self._node, **inputs})

    def volume(self, name: str = "data-0", **inputs: Any) -> Record:
        """A volume."""
        return self.create("volume", name, {**self._volume, **inputs})

    def attach(self, node: Record, volume: Record) -> Record:
        """The volume on the node."""
        inputs = of_attachment("t-0", node.address.name, volume.address.name)
        return self.create("attachment", f"t-0.{volume.address.name}", inputs, volume, node)

    def delete(self, record: Record) -> None:
        """End it."""
        call(lambda: self.provider.delete(record), policy=QUICK)
