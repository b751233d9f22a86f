"""`Named`: what the providers of such clouds have in common; each adds `offers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from declarative.provider import ProviderError, Thing
from declarative.state import Address
from providers.cloud import ahead
from providers.cloud.account import Account
from providers.cloud.classes import Kind
from providers.cloud.keys import Keys
from providers.cloud.named.api import Api
from providers.cloud.named.attachments import Attachments
from providers.cloud.named.nodes import Nodes
from providers.cloud.named.volumes import Volumes
from providers.cloud.provider import Cloud


class Named(Cloud):
    """One use of a cloud."""

    ADOPTS = True

    def __init__(self, account: Account, keys: Keys, api: Api, kinds: Mapping[str, Kind]) -> None:
        """`kinds`: what the cloud's codes mean."""
        self._machines = Nodes(account, keys, api, kinds)
        self._disks = Volumes(account, api)
        self._held = Attachments(account, self._disks, api)
        super().__init__(account.config, keys, self._machines, self._disks, self._held)

    def check(self, wanted: Mapping[Address, Mapping[str, Any]]) -> Sequence[ProviderError]:
        """See `provider.Checks`."""
        return [*super().check(wanted), *ahead.unfit(self._disks.seen, wanted)]

    def inventory(self) -> tuple[Thing, ...]:
        """See the port."""
        machines = self._machines.listed()
        disks = self._disks.listed()
        return (
            *map(self._machines.thing, machines),
            *map(self._disks.thing, disks),
            *self._held.things(disks, machines),
        )
