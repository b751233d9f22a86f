"""`Ec2`, the port's methods over nodes, volumes and attachments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from declarative.provider import Config, Launch, LogEnd, PermanentError, PermanentKind, Terminal, Thing
from declarative.resource import Offer
from declarative.state import Address, NodeState, RankStatus, Readiness, Record
from providers.cloud.ec2.account import Account
from providers.cloud.ec2.attachments import Attachments
from providers.cloud.ec2.keys import Keys
from providers.cloud.ec2.nodes import Nodes
from providers.cloud.ec2.offers import offers
from providers.cloud.ec2.volumes import Volumes
from providers.cloud.hosts import Hosts


class Ec2:
    """One use of EC2, or of what speaks its protocol. No secret is read before something has to be asked.

    Options: `timeout` (seconds of one request), `architecture` of the image (`x86_64`, `arm64`), `key_name`
    (a key pair of the account, besides the state's own key), `identity_file` (the private key for the nodes,
    shared by all who work on the state; without it `keys` makes one for this project), and of those of the
    driver `ssh`: `ssh_config`, `connect_timeout`, `root`.
    """

    def __init__(self, config: Config) -> None:
        self._account = Account(config)
        keys = Keys(self._account)
        self._nodes = Nodes(self._account, keys)
        self._hosts = Hosts(config, lambda: keys.login().path)
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
        """See the port. Ready is what runs, has passed EC2's checks, and answers as a host that is fit."""
        seen = self._nodes.readiness(nodes)
        runs = [n for n in nodes if seen[n.address.name].readiness.state is NodeState.READY]
        there = self._hosts.readiness(runs, {n: s.taken for n, s in seen.items()}, self._nodes.taken)
        return {**{name: s.readiness for name, s in seen.items()}, **there}

    def reaches(self, node: Record, address: str) -> str | None:
        """See `provider.Reaches`."""
        return self._hosts.ssh.reaches(self._hosts.host(node), address)

    # -------------------------------------------------------------------------------------- ranks

    def start(self, node: Record, launch: Launch) -> RankStatus:
        """See the port. Volumes are refused: nobody mounts them yet."""
        if launch.volumes:
            summary = f"{launch.attempt}: a volume of EC2 cannot be mounted for a rank yet"
            raise PermanentError(PermanentKind.INVALID, summary, about="volumes")
        return self._hosts.ssh.start(self._hosts.host(node), launch)

    def poll(self, node: Record, attempts: Sequence[str]) -> Mapping[str, RankStatus | None]:
        """See the port."""
        return self._hosts.ssh.poll(self._hosts.host(node), attempts)

    def stop(self, node: Record, attempt: str, grace_seconds: int) -> RankStatus | None:
        """See the port."""
        return self._hosts.ssh.stop(self._hosts.host(node), attempt, grace_seconds)

    def change_limit(self, node: Record, attempt: str, seconds: int | None) -> None:
        """See the port."""
        self._hosts.ssh.change_limit(self._hosts.host(node), attempt, seconds)

    def read_log(self, node: Record, attempt: str, offset: int, limit: int = 65536) -> bytes:
        """See the port."""
        return self._hosts.ssh.read_log(self._hosts.host(node), attempt, offset, limit)

    def log_ends(self, node: Record, attempts: Sequence[str]) -> Mapping[str, LogEnd]:
        """See `provider.LogEnds`."""
        return self._hosts.ssh.log_ends(self._hosts.host(node), attempts)

    def terminal(
        self, node: Record, attempt: str | None, command: Sequence[str], *, tty: bool
    ) -> AbstractContextManager[Terminal]:
        """See `provider.Terminals`."""
        return self._hosts.ssh.terminal(self._hosts.host(node), attempt, command, tty=tty)

    def tidy(self, node: Record, oldest: Mapping[str, int]) -> None:
        """See `provider.Tidies`."""
        self._hosts.ssh.tidy(self._hosts.host(node), oldest)
