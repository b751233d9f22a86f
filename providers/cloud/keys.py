"""The key of a state's nodes: its private half is a file here."""

from __future__ import annotations

import threading
from pathlib import Path

from declarative.provider import PermanentError, PermanentKind
from providers.cloud.account import Account
from providers.cloud.scrub import Scrub
from providers.ssh import pair
from providers.ssh.pair import HostKey, Login

FOLDER = Path(".fleetform") / "keys"


class Keys:
    """The key of one state. Safe to use from many threads."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._turn = threading.Lock()
        self._login: Login | None = None
        self._fresh = False
        """Whether the key was made just now: then no cloud can have it."""

    @property
    def scrub(self) -> Scrub:
        """What keeps the secrets of the state's account out of messages."""
        return self._account.scrub

    @property
    def name(self) -> str:
        """What its public half is called in the cloud."""
        return f"fleetform-{self._account.owner}"

    @property
    def file(self) -> Path:
        """The private key: the user's own, which all who work on the state share, or one for this state."""
        project = self._account.config.project_dir.absolute()
        given = self._account.options.get("identity_file")
        return project / (Path(given).expanduser() if given else FOLDER / self._account.owner)

    def login(self) -> Login:
        """The key; `PermanentError` if it is not here."""
        with self._turn:
            return self._read()

    def host_key(self, token: str) -> HostKey:
        """That of the node which a create with this token makes."""
        return self.login().host_key(f"{self._account.owner}\0{token}")

    def _read(self) -> Login:
        if self._login is None:
            if not self.file.exists():
                raise self._missing()
            self._login = Login(self.file)
        return self._login

    def _missing(self, why: str = "") -> PermanentError:
        summary = f"the private key of this state's nodes is not here: there is no {self.file}{why}"
        hint = (
            "bring it from the machine that made the first node; or name a file that all of a team "
            "have under `options.identity_file`"
        )
        return PermanentError(PermanentKind.AUTH, summary, about="identity_file", hint=hint)

    def _unmade(self) -> None:
        """Take back a key that was made just now: nodes have another one, and it would be taken for that."""
        self.file.unlink(missing_ok=True)
        self._login, self._fresh = None, False

    def made(self) -> Login:
        """The key; one for this state is made where the user names none and there is none yet."""
        with self._turn:
            return self._made()

    def _made(self) -> Login:
        if self._login is None and not self._account.options.get("identity_file"):
            self._fresh = pair.make(self.file)
        return self._read()
