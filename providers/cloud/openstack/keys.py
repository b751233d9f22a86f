"""The key of a state: its private half is a file here, its public half a key pair in each region with nodes.

The pair in nova is not needed to log in (`cloud_init.user_data` says who may). It tells the next machine that
makes nodes of this state whether its key is the one that the others have. Pairs are their user's own.
"""

from __future__ import annotations

from declarative.provider import PermanentError, PermanentKind
from providers.cloud.keys import SHARE, Pairs
from providers.cloud.openstack import answers
from providers.cloud.openstack.region import Region
from providers.ssh.key_pairs import Login


class NovaKeys(Pairs[Region]):
    """The key of one state, and its pairs in nova."""

    def _import(self, region: Region, login: Login) -> None:
        there = None if self._fresh else self._find(region)
        if there is None:
            pair = {"name": self.name, "public_key": f"{login.public} {self.name}"}
            try:
                region.ask("the key pair", "compute", "POST", "/os-keypairs", {"keypair": pair})
            except PermanentError:
                # Another machine was first, or an answer was lost.
                there = self._find(region)
                if there is None:
                    raise
            else:
                return
        if there.split()[:2] != login.public.split()[:2]:
            summary = (
                f"the nodes of this state in {region.name} have another key than {self.said}: nova's key "
                f"pair {self.name} is another"
            )
            hint = f"take it from the machine that made the first of them; so that all have it, {SHARE}"
            raise PermanentError(PermanentKind.CONFLICT, summary, about="identity_file", hint=hint)

    def there(self, region: Region) -> bool:
        """Whether a region has the pair."""
        return self._find(region) is not None

    def _find(self, region: Region) -> str | None:
        """The public key of the pair; None if there is none."""
        what = "the key pair"
        try:
            found = region.ask(what, "compute", "GET", f"/os-keypairs/{self.name}")
        except PermanentError as error:
            if error.kind is PermanentKind.NOT_FOUND:
                return None
            raise
        return str(answers.inside(what, found, "keypair").get("public_key") or "")

    def _remove(self, region: Region) -> None:
        try:
            region.ask("the key pair", "compute", "DELETE", f"/os-keypairs/{self.name}")
        except PermanentError as error:
            if error.kind is not PermanentKind.NOT_FOUND:
                raise
