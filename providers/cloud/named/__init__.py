"""Clouds that take a name once: what is made is named after its token, so that a create that is tried again
meets what the first try made. What such clouds have in common stands here; each says in an `Api` how it is
asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from declarative.model.inputs import inputs_of
from declarative.model.state import Address
from declarative.provider import ProviderError
from providers.cloud import checks
from providers.cloud.account import Account
from providers.cloud.attachments import Attachments
from providers.cloud.bad_answers import asked
from providers.cloud.faults import Kind
from providers.cloud.keys import Keys
from providers.cloud.named.api import Api
from providers.cloud.named.nodes import NamedNodes
from providers.cloud.named.volumes import NamedAttachments, NamedVolumes
from providers.cloud.nodes import Nodes
from providers.cloud.provider import Cloud
from providers.cloud.volumes import Volumes

KIND = ("region", "zone", "instance_type", "reservation")
"""Inputs of a node that decide whether it can use its reservation."""


class Named(Cloud):
    """One use of a cloud."""

    ADOPTS = True
    RESERVES = True

    def __init__(self, account: Account, keys: Keys, api: Api, kinds: Mapping[str, Kind]) -> None:
        """`kinds`: what the cloud's codes mean."""
        self._node_calls = NamedNodes(account, keys, api, kinds)
        self._machines = Nodes(account, self._node_calls)
        self._disks = Volumes(account, NamedVolumes(account, api))
        self._held = Attachments(account, self._disks, NamedAttachments(account, api))
        super().__init__(account.config, keys, self._machines, self._disks, self._held)

    @asked
    def check(self, wanted: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        """See `provider.Checks`."""
        nodes = [inputs_of("node", inputs) for address, inputs in wanted.items() if address.kind == "node"]
        kinds = {tuple(str(getattr(node, key)) for key in KIND): node for node in nodes}
        looks = [partial(self._node_calls.reserved, kinds[key]) for key in sorted(kinds)]
        return [
            *super().check(wanted),
            *checks.unfit_volumes(self._disks.seen, wanted),
            *checks.faults_of((), looks),
            *self._node_calls.groups.unfit(nodes),
        ]

    @asked
    def clear(self, address: Address, token: str, inputs: Mapping[str, Any]) -> None:
        """See `provider.Clears`."""
        self._node_calls.clear(address, token, inputs)
