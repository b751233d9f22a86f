"""Claims: whose node a host is. A file on the host, so that everybody who asks gets the same answer.

A host is one node of one state at a time: two states that know nothing of each other would give its blocks
away twice. Who wants two on one host anyway, gives each a state folder of its own (`options.root`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from declarative.provider import PermanentError, PermanentKind, Thing
from declarative.state import Address
from providers.ownership import as_json, key_of
from providers.runner import ANSWER_SECONDS, RunnerError
from providers.ssh import scripts
from providers.ssh.transport import SshTransport
from providers.transport import ConnectionLost

_FORMAT = 1
ERASE_SECONDS = 600.0
"""A node's folder may hold much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What stands in a host's `claim`."""

    owner: str
    address: Address
    token: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]

    @property
    def key(self) -> str:
        """The node's id on its host: of this one create, and fit for a folder's name."""
        return key_of(self.token)

    @property
    def thing(self) -> Thing:
        """As the port has it."""
        return Thing(address=self.address, token=self.token, inputs=self.inputs, outputs=self.outputs)

    def text(self) -> bytes:
        """As it stands in the file."""
        body = {
            "format": _FORMAT,
            "owner": self.owner,
            "address": str(self.address),
            "token": self.token,
            "inputs": self.inputs,
            "outputs": self.outputs,
        }
        return f"{self.key}\n{as_json(self.address, body)}\n".encode()


class Claims:
    """The claim of one host."""

    def __init__(self, transport: SshTransport, root: str | None, owner: str) -> None:
        """`owner` is who asks."""
        self._transport = transport
        self._root = root
        self._owner = owner

    def read(self) -> Claim | None:
        """Whose it is; None for nobody's."""
        return self._ask("@show")

    def take(self, claim: Claim) -> Claim:
        """Take the host, if it is nobody's; whose it is then."""
        text = claim.text()
        found = self._ask("@claim", claim.key, str(len(text)), stdin=text)
        if found is None:
            raise ConnectionLost(f"{self._transport.host} was taken and given back meanwhile")
        return found

    def change(self, claim: Claim, key: str | None = None) -> None:
        """Put this claim in place of the one with that key; with its own if none is named."""
        text = claim.text()
        self._ask("@change", key or claim.key, str(len(text)), stdin=text)

    def release(self, key: str) -> None:
        """Give the host back, with all that is left of the node. Nothing happens to another's claim."""
        if scripts.LEFT in self._run("@release", key, seconds=ERASE_SECONDS):
            self._transport.forget()

    def tidy(self, key: str, attempts: Sequence[str]) -> None:
        """Remove these attempts with their folders, those that have ended."""
        self._run("@tidy", key, *attempts, seconds=ERASE_SECONDS)

    def _run(self, verb: str, *arguments: str, stdin: bytes = b"", seconds: float = ANSWER_SECONDS) -> bytes:
        entered = scripts.enter(self._transport, self._root)
        env = scripts.numbered(self._transport, self._owner)
        argv = ("env", *env, "sh", entered.script, verb, entered.root, *arguments)
        try:
            return scripts.ask(self._transport, argv, stdin, seconds)
        except RunnerError:
            if scripts.enter_if_there(self._transport, self._root):
                raise
            # It went with the last thing of another project, and the script with it.
            raise ConnectionLost(f"the state folder of {self._transport.host} was taken away") from None

    def _ask(self, verb: str, *arguments: str, stdin: bytes = b"") -> Claim | None:
        said = self._run(verb, *arguments, stdin=stdin)
        _, found, rest = said.partition(b"FLEETFORM-CLAIM ")
        count, _, body = rest.partition(b"\n")
        if not found or not count.isdigit() or len(body) < int(count):
            raise ConnectionLost(f"the claim of {self._transport.host} did not come whole")
        return self._parsed(body[: int(count)]) if int(count) else None

    def _parsed(self, text: bytes) -> Claim:
        claim = parsed(text)
        if claim is None:
            raise damaged(self._transport, self._root)
        return claim


def parsed(text: bytes) -> Claim | None:
    """What `Claim.text` wrote; None for anything else."""
    try:
        first, _, rest = text.decode().partition("\n")
        body = json.loads(rest)
        claim = Claim(
            owner=str(body["owner"]),
            address=Address.parse(body["address"]),
            token=str(body["token"]),
            inputs=dict(body["inputs"]),
            outputs=dict(body["outputs"]),
        )
        whole = body["format"] == _FORMAT and first == claim.key
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None
    return claim if whole else None


def damaged(transport: SshTransport, root: str | None, path: str = "claim") -> PermanentError:
    """A file of the state folder is not what was written."""
    folder = root or "its state folder (/var/tmp/fleetform-<uid>)"
    summary = f"the {path} of {transport.host} cannot be read: damaged, or of another version"
    hint = f"restore the file `{path}` in {folder} on it, or move it away if nothing there is needed"
    return PermanentError(PermanentKind.INVALID, summary, about=transport.host.hostname, hint=hint)
