"""The key of a state: its private half is a file here, its public half a key pair in each region with nodes.

The pair in nova is not needed to log in (`begin.user_data` says who may). It tells the next machine that
makes nodes of this state whether its key is the one that the others have. Pairs are their user's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from declarative.provider import PermanentError, PermanentKind, ProviderError
from providers.cloud.keys import Keys
from providers.cloud.openstack import answers
from providers.cloud.openstack.account import Account
from providers.cloud.openstack.region import Region
from providers.ssh.pair import Login


class NovaKeys(Keys):
    """The key of one state, and its pairs in nova."""

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._there: set[str] = set()
        self._changes: Counter[str] = Counter()
        self._emptied: set[str] = set()
        """Regions where nodes went: it has to be seen whether any is left."""

    @property
    def name(self) -> str:
        """The key pair's name."""
        return f"fleetform-{self._account.owner}"

    def bring(self, region: Region) -> Login:
        """Have the key, and its pair in a region; `PermanentError` if there is another's pair."""
        with self._turn:
            login = self._made()
            if region.name not in self._there:
                self._import(region, login)
                self._there.add(region.name)
            return login

    def forgotten(self, region: Region) -> None:
        """Somebody says that the pair is not there any more."""
        with self._turn:
            self._there.discard(region.name)

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
                f"the nodes of this state in {region.name} have another key than {self.file}: nova's key "
                f"pair {self.name} is not that of the file"
            )
            hint = "bring the file from the machine that made it, or name it under `options.identity_file`"
            raise PermanentError(PermanentKind.CONFLICT, summary, about="identity_file", hint=hint)

    def there(self, region: Region) -> bool:
        """Whether a region has the pair."""
        return self._find(region) is not None

    @contextmanager
    def changing(self, region: Region, living: Callable[[], bool], *, ending: bool) -> Iterator[None]:
        """While nodes of a region come and go. Who is the last to do so sees whether any is `living`.

        Not each: that is a look for every node, and the pair would come and go beneath the others.
        """
        with self._turn:
            self._changes[region.name] += 1
        try:
            yield
        finally:
            with self._turn:
                self._changes[region.name] -= 1
                last = not self._changes[region.name] and region.name in self._emptied
            if last:
                # What this is about is done, or was said.
                with suppress(PermanentError if ending else ProviderError):
                    if not living():
                        self.remove(region)
                    self._emptied.discard(region.name)

    def left(self, region: Region) -> None:
        """A node of a region went, or was not made."""
        with self._turn:
            self._emptied.add(region.name)

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

    def remove(self, region: Region) -> None:
        """Take the pair out of a region that has no nodes of the state any more. The file stays."""
        with self._turn:
            self._there.discard(region.name)
            try:
                region.ask("the key pair", "compute", "DELETE", f"/os-keypairs/{self.name}")
            except PermanentError as error:
                if error.kind is not PermanentKind.NOT_FOUND:
                    raise
