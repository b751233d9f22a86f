"""`Named`: what the providers of such clouds have in common; each adds `offers`."""

from __future__ import annotations

from collections.abc import Mapping

from declarative.provider import Thing
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

    def inventory(self) -> tuple[Thing, ...]:
        """See the port."""
        machines = self._machines.listed()
        disks = self._disks.listed()
        return (
            *map(self._machines.thing, machines),
            *map(self._disks.thing, disks),
            *self._held.things(disks, machines),
        )
