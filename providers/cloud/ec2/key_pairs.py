"""The key pairs of a state in EC2: one in each region with nodes."""

from __future__ import annotations

import base64

from declarative.provider import (
    PermanentError,
    PermanentKind,
    TransientError,
    TransientKind,
)
from providers.cloud import marks
from providers.cloud.ec2 import answers
from providers.cloud.ec2.account import Account
from providers.cloud.ec2.region import Region, tagged
from providers.cloud.keys import SHARE, Pairs
from providers.ssh.key_pairs import Login

FINGERPRINT = f"{marks.OURS}fingerprint"
DUPLICATE = "InvalidKeyPair.Duplicate"
"""There is one of this name, whether it is listed yet or not."""


class Ec2Keys(Pairs[Region]):
    """The key of one state: its private half is a file here, its public half a key pair in each region with
    nodes.

    The pair in EC2 is not needed to log in (`cloud_init.user_data` says who may). It tells the next
    machine that makes nodes of this state whether its key is the one that the others have.
    """

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._regions = account.regions

    def _before(self, region: Region) -> None:
        """Nodes in another region may have a key already, which is on another machine."""
        if self._login or self.given or self.file.exists():
            return
        for other in self._regions():
            if other.name != region.name and self._asked(other):
                raise self._missing(f", and nodes in {other.name} were made with one")

    def _asked(self, region: Region) -> bool:
        try:
            return self.there(region)
        except PermanentError:
            return False  # who may not look there has made nothing there

    def _import(self, region: Region, login: Login) -> None:
        tags = None if self._fresh else self._find(region)
        if tags is None:
            told = {"Name": self.name, marks.OWNER: self._account.owner, FINGERPRINT: login.fingerprint}
            try:
                region.ask(
                    "ImportKeyPair",
                    self.name,
                    KeyName=self.name,
                    PublicKeyMaterial=base64.b64encode(f"{login.public} {self.name}".encode()).decode(),
                    TagSpecification=tagged("key-pair", told),
                )
            except PermanentError as error:
                # Another machine was first, or an answer was lost.
                tags = self._find(region)
                if tags is None and DUPLICATE not in error.summary:
                    raise
                if tags is None:
                    raise TransientError(TransientKind.BUSY, error.summary, about=error.about) from None
            else:
                return
        if tags.get(FINGERPRINT) != login.fingerprint or tags.get(marks.OWNER) != self._account.owner:
            raise self._another(region, login, tags.get(FINGERPRINT) or "unknown")

    def _another(self, region: Region, login: Login, have: str) -> PermanentError:
        """The fault of a pair with another key than ours."""
        if self._fresh:
            self._unmade()
            return self._missing(f", and EC2's key pair {self.name} in {region.name} is {have}")
        summary = (
            f"the nodes of this state in {region.name} have another key than {self.said}: EC2's key pair "
            f"{self.name} is {have}, ours is {login.fingerprint}"
        )
        hint = f"take it from the machine that made the first of them; so that all have it, {SHARE}"
        return PermanentError(PermanentKind.CONFLICT, summary, about="identity_file", hint=hint)

    def there(self, region: Region) -> bool:
        """Whether the state has its pair in a region: nodes of it were made there, by this account."""
        tags = self._find(region)
        return tags is not None and tags.get(marks.OWNER) == self._account.owner

    def _find(self, region: Region) -> dict[str, str] | None:
        """The tags of the pair; None if there is none."""
        action = "DescribeKeyPairs"
        found = region.ask(action, self.name, Filter=[{"Name": "key-name", "Value": [self.name]}])
        for item in answers.listed(action, found, "keySet"):
            if item.get("keyName") == self.name:
                return answers.tags(item)
        return None

    def _remove(self, region: Region) -> None:
        if self.there(region):
            region.ask("DeleteKeyPair", self.name, KeyName=self.name)
