"""Nodes of a cloud as hosts: from the moment when they run, everything about them is the driver `ssh`'s.

A recorded node becomes a record as that driver knows them, and its methods are given that. The host's claim
is taken when the node answers for the first time; by the machine's id, the same for every try.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from declarative.provider import Config, PermanentError, PermanentKind, ProviderError
from declarative.spec.clouds import Reach
from declarative.state import NodeState, Readiness, Record
from providers.faults import guarded
from providers.ownership import key_of
from providers.ssh import Ssh
from providers.ssh.probe import unanswered
from providers.ssh.provider import AT_ONCE

OPTIONS = ("ssh_config", "connect_timeout", "root")
"""Options of the driver `ssh` that a cloud's backend has, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a cloud says of a node. `taken`: it was ready once."""

    readiness: Readiness
    taken: bool
    public: str | None = None
    """The public address that it has now, an empty text if it has none; None if the cloud does not tell."""


class Hosts:
    """The nodes of one backend as hosts."""

    def __init__(
        self, config: Config, identity: Callable[[], Path], look: Callable[[Record], str | None]
    ) -> None:
        """`identity` is the file of the private key that they let in; `PermanentError` if it is not here.
        `look` asks the cloud for `Seen.public` of a node.
        """
        options = {key: value for key, value in config.options.items() if key in OPTIONS}
        self.ssh = Ssh(replace(config, driver="ssh", options=options, hosts={}))
        self._reach = config.network.reach
        self._identity = identity
        self._look = look
        self._public: dict[str, str] = {}

    @guarded
    def host(self, node: Record) -> Record:
        """The node as the driver `ssh` has it; `PermanentError` if it was not made to be reached."""
        made, key = str(node.outputs.get("id") or ""), node.outputs.get("host_key")
        if not made or not key:
            summary = f"{node.address} has no host key recorded: nobody can tell whether it is the one"
            hint = "delete it, and let it be made anew"
            raise PermanentError(PermanentKind.INVALID, summary, about=str(node.address), hint=hint)
        host = {
            "hostname": self._way(node),
            "user": node.outputs.get("user"),
            "identity_file": str(self._identity()),
            "host_keys": [key],
            "internal_ip": node.outputs.get("address"),
        }
        # What an instance type has by name is not all there to be used: of its memory the kernel keeps some.
        has = node.node.resources
        counted = {"cpu": has.cpu, "memory_mib": 0, "gpus": has.gpus}
        inputs: dict[str, Any] = {**node.inputs, "host": host, "resources": counted}
        return replace(node, inputs=inputs, outputs={**node.outputs, "id": f"{node.address}.{key_of(made)}"})

    def _way(self, node: Record) -> str:
        private = str(node.outputs.get("address") or "")
        if self._reach is Reach.PRIVATE:
            return private
        public = self._present(node)
        if self._reach is Reach.PUBLIC and not public:
            summary = f"{node.address} has no public address, and `network.reach` wants it"
            hint = "write `network: {reach: private}`, or `network: {public_ip: true}` and make the node anew"
            raise PermanentError(PermanentKind.INVALID, summary, about="network.reach", hint=hint)
        return public or private

    def met(self, node: Record, public: str | None) -> None:
        """Note which public address a node has now."""
        if public is not None:
            self._public[str(node.outputs.get("id"))] = public

    def _present(self, node: Record) -> str:
        """The public address of a node: that of the record is another's once the machine was off."""
        made, recorded = str(node.outputs.get("id")), str(node.outputs.get("public_address") or "")
        if made not in self._public and recorded:
            try:
                self.met(node, self._look(node))
            except ProviderError:
                return recorded  # whoever is there has to have the host key
        return self._public.get(made, recorded)

    def readiness(
        self, nodes: Sequence[Record], taken: Mapping[str, bool], take: Callable[[Record], None]
    ) -> dict[str, Readiness]:
        """Whether nodes that run may take work.

        Args:
            nodes: Those that their cloud says are up.
            taken: By name, whether the node was ready once. Until then it is starting, whatever it says.
            take: Has the cloud remember that it was.
        """

        def one(node: Record) -> Readiness:
            try:
                host = self.host(node)
            except PermanentError as error:
                return unanswered(error)
            if not taken[node.address.name]:
                try:
                    # Its own, not the caller's: how it was made is written elsewhere.
                    way = host.node.host
                    self.ssh.take(node.address, str(node.outputs["id"]), {"host": way}, way)
                except ProviderError as error:
                    return _starting(unanswered(error))
            found = self.ssh.readiness([host])[node.address.name]
            if taken[node.address.name]:
                return found
            if found.state is not NodeState.READY:
                return _starting(found)
            take(node)
            return found

        if not nodes:
            return {}
        with ThreadPoolExecutor(min(AT_ONCE, len(nodes)), thread_name_prefix="hosts") as pool:
            return dict(zip([n.address.name for n in nodes], pool.map(one, nodes), strict=True))


def _starting(seen: Readiness) -> Readiness:
    """A node that was never ready may become it: whoever waits has a limit of their own."""
    return replace(seen, state=NodeState.PROVISIONING, reason=f"it is starting: {seen.reason}")
