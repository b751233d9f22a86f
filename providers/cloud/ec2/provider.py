"""`Ec2`, the port's methods over nodes, volumes and attachments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from declarative.provider import Config, Launch, PermanentError, PermanentKind, Thing
from declarative.resource import Offer
from declarative.state import Address, RankStatus, Readiness, Record
from providers.cloud.ec2.account import Account
from providers.cloud.ec2.attachments import Attachments
from providers.cloud.ec2.nodes import Nodes
from providers.cloud.ec2.offers import offers
from providers.cloud.ec2.volumes import Volumes


class Ec2:
    """One use of EC2, or of what speaks its protocol. No secret is read before something has to be asked.

    Options: `timeout` (seconds of one request), `architecture` of the image (`x86_64`, `arm64`), `key_name`,
    `security_groups` (ids), `subnets` (zone → id).
    """

    def __init__(self, config: Config) -> None:
        self._account = Account(config)
        self._nodes = Nodes(self._account)
        self._volumes = Volumes(self._account)
        self._attachments = Attachments(self._account, self._volumes)

    # ------------------------------------------------------------------------------------- things

    def offers(self) -> tuple[Offer, ...]:
        """From the catalog, without asking anybody."""
        return offers(self._account)

    def inventory(self) -> tuple[Thing, ...]:
        """See the port."""
        instances = self._nodes.listed()
        volumes = self._volumes.listed()
        return (
            *map(self._nodes.thing, instances),
            *map(self._volumes.thing, volumes),
            *self._attachments.things(volumes, (i.id for i in instances)),
        )

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port."""
        match address.kind:
            case "node":
                return self._nodes.find(address, token)
            case "volume":
                return self._volumes.find(address, token)
            case "attachment":
                return self._attachments.find(address, token)
            case _:
                return None

    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """See the port."""
        match address.kind:
            case "node":
                return self._nodes.create(address, token, inputs)
            case "volume":
                return self._volumes.create(address, token, inputs)
            case "attachment":
                return self._attachments.create(address, token, inputs, needs)
            case _:
                raise PermanentError(PermanentKind.INVALID, f"{address} is no thing", about=str(address))

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port."""
        match have.address.kind:
            case "node":
                return self._nodes.update(have, token, inputs)
            case "volume":
                return self._volumes.update(have, token, inputs)
            case _:
                summary = f"{have.address} cannot be changed"
                raise PermanentError(PermanentKind.INVALID, summary, about=str(have.address))

    def delete(self, have: Record) -> None:
        """See the port."""
        match have.address.kind:
            case "node":
                self._nodes.delete(have)
            case "volume":
                self._volumes.delete(have)
            case "attachment":
                self._attachments.delete(have)
            case _:
                return

    # -------------------------------------------------------------------------------------- nodes

    def readiness(self, nodes: Sequence[Record]) -> Mapping[str, Readiness]:
        """See the port."""
        return self._nodes.readiness(nodes)

    # -------------------------------------------------------------------------------------- ranks

    def start(self, node: Record, launch: Launch) -> RankStatus:
        """Refused: see `_no_ranks`."""
        _no_ranks(node)

    def poll(self, node: Record, attempts: Sequence[str]) -> Mapping[str, RankStatus | None]:
        """Refused: see `_no_ranks`."""
        _no_ranks(node)

    def stop(self, node: Record, attempt: str, grace_seconds: int) -> RankStatus | None:
        """Refused: see `_no_ranks`."""
        _no_ranks(node)

    def change_limit(self, node: Record, attempt: str, seconds: int | None) -> None:
        """Refused: see `_no_ranks`."""
        _no_ranks(node)

    def read_log(self, node: Record, attempt: str, offset: int, limit: int = 65536) -> bytes:
        """Refused: see `_no_ranks`."""
        _no_ranks(node)


def _no_ranks(node: Record) -> NoReturn:
    """Nodes are made, and nothing can be run on them yet: the loader accepts no backend with this driver."""
    summary = f"ranks cannot run on {node.address} yet: it is a node of EC2"
    raise PermanentError(PermanentKind.INVALID, summary, about=str(node.address))
