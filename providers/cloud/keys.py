"""The private key of a state's nodes, and the user data for a node's first start (cloud-init): who may log
in, and the node's host key.

The private key comes from the environment, from a named file, or is made here. It is never in the state, not
even encrypted: every machine would get the passphrase from the same place as the key itself, and a database
with many readers would hold a ciphertext that they can attack for ever. In clouds with key pairs, the public
half is a key pair in each region: it is made with the first node there and deleted with the last.

The host key is sent to the node, not read from it. Trusting the first key offered would trust anyone in
between; a node's console output comes minutes late, and not from all images. A key in the create request is
known before the node exists. The price: everything that runs on the node can read the key (as root can on any
host), and so can those who may read the account's user data. With it, they can pose as this one node only.

Mounting a volume needs root, and the login user, as whom ranks run, need not be root. So the node gets one
program that mounts volumes, and the user may run only that with sudo.
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from declarative.provider import NoKeyError, PermanentError, PermanentKind, ProviderError
from providers.cloud.account import Account
from providers.cloud.bad_answers import Scrub
from providers.ssh import key_pairs
from providers.ssh.key_pairs import HostKey, Login

USER = "fleetform"
"""Made on the node if no other user is named: each image has its own user name."""
UID = 47600
"""Its number on every node: a volume's files have the same owner whatever the image."""
MOST = 16 * 1024
"""The most bytes that EC2 accepts."""
PROGRAM = "/usr/local/sbin/fleetform-disk"
"""The program that mounts volumes if the user is not root."""


@cache
def program() -> str:
    """Its text, without the comments."""
    text = (Path(__file__).parent / "disk.sh").read_text(encoding="utf-8")
    return re.sub(r"^ *#(?!!).*\n", "", text, flags=re.MULTILINE)


def user_data(user: str, login: str, key: HostKey) -> str:
    """The same values give the same bytes (JSON is YAML). `login` is the public key that may log in."""
    own: dict[str, object] = {
        "name": user,
        "lock_passwd": True,
        "shell": "/bin/sh",
        "ssh_authorized_keys": [login],
    }
    config: dict[str, object] = {
        "ssh_deletekeys": True,  # the image's own host keys are the same for everybody
        "ssh_keys": {"ed25519_private": key.private, "ed25519_public": key.public},
        "users": ["default", own],
    }
    if user == "root":
        config["disable_root"] = False
    else:
        own["sudo"] = f"ALL=(root) NOPASSWD: {PROGRAM}"
        config["write_files"] = [
            {"path": PROGRAM, "owner": "root:root", "permissions": "0755", "content": program()}
        ]
    if user == USER:
        own["uid"] = UID
    return "#cloud-config\n" + json.dumps(config, sort_keys=True) + "\n"


FOLDER = Path(".fleetform") / "keys"
VARIABLE = "FLEETFORM_IDENTITY"
"""The environment variable with the key or the name of its file."""
SHARE = (
    f"let {VARIABLE} hold it (or name its file), or name its file in `options.identity_file` of the backend"
)
"""The hint for using one key from several machines."""


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
        """The filter that keeps the secrets of the state's account out of messages."""
        return self._account.scrub

    @property
    def name(self) -> str:
        """The name of its public half in the cloud."""
        return f"fleetform-{self._account.owner}"

    @property
    def file(self) -> Path:
        """The file of the private key: the user's own, which all share who work on the state, or one for this
        state.
        """
        project = self._account.config.project_dir.absolute()
        if given := os.environ.get(VARIABLE, "").strip():
            return _in_memory(given) if "PRIVATE KEY" in given else project / Path(given).expanduser()
        named = self._account.options.get("identity_file")
        return project / (Path(named).expanduser() if named else FOLDER / self._account.owner)

    @property
    def given(self) -> bool:
        """Whether the user names the key. If not, one is made for the state."""
        return bool(os.environ.get(VARIABLE, "").strip() or self._account.options.get("identity_file"))

    @property
    def source(self) -> str:
        """The key's name in messages. The value of the variable is never shown."""
        return VARIABLE if os.environ.get(VARIABLE, "").strip() else str(self.file)

    def check(self) -> None:
        """`PermanentError` if the named key cannot be used, or if a new key would differ from
        that of others.
        """
        if self.given:
            self.login()
        if self.given or self.file.exists() or not self._account.config.shared:
            return
        summary = (
            "the state is kept outside of this project's folder, and the key of its nodes would be inside: "
            "who works on the state from another checkout could not reach them"
        )
        hint = f"make a key (`ssh-keygen -t ed25519 -N '' -f FILE`) that all share: {SHARE}"
        raise NoKeyError(summary, hint=hint)

    def login(self) -> Login:
        """The key; `PermanentError` if it does not exist."""
        with self._turn:
            return self._read()

    def host_key(self, token: str) -> HostKey:
        """The host key of the node that a create with this token makes."""
        return self.login().host_key(f"{self._account.owner}\0{token}")

    def _read(self) -> Login:
        if self._login is None:
            if not os.path.isfile(self.file):  # noqa: PTH113 (of an odd name `Path` raises)
                raise self._missing()
            self._login = Login(self.file, self.source)
        return self._login

    def _missing(self, why: str = "") -> PermanentError:
        found = f"{VARIABLE} names no file" if self.source == VARIABLE else f"there is no {self.file}"
        summary = f"the private key of this state's nodes is not here: {found}{why}"
        hint = f"take it from the machine that made the first node; so that all have it, {SHARE}"
        if self.source == VARIABLE:
            return PermanentError(PermanentKind.AUTH, summary, about="identity_file", hint=hint)
        return NoKeyError(summary, hint=hint)

    def _delete_new_key(self) -> None:
        """Delete a key that was made just now: the nodes have another one, and this one would be mistaken for
        it.
        """
        self.file.unlink(missing_ok=True)
        self._login, self._fresh = None, False

    def made(self) -> Login:
        """The key. If the user names none, the state's own, which is made if missing."""
        with self._turn:
            return self._made()

    def _made(self) -> Login:
        if self._login is None and not self.given:
            self.check()
            self._fresh = key_pairs.make(self.file)
        return self._read()


@functools.cache
def _in_memory(text: str) -> Path:
    """A file with a key in memory, for this process and the programs that it runs.

    CI systems strip the last line break of stored texts, without which OpenSSH cannot read a key.
    """
    file = os.memfd_create("identity")
    os.fchmod(file, 0o600)
    os.write(file, ("\n".join(text.split("\r\n")) + "\n").encode())
    return Path(f"/proc/{os.getpid()}/fd/{file}")


K = TypeVar("K", bound=Hashable)


class LastOut(Generic[K]):
    """Finds the last one to leave a place, who must check whether the place is empty.

    If all checked, there would be a look for every node, and what the place has would be deleted and made
    again under the others.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._busy: Counter[K] = Counter()
        self._emptied: set[K] = set()
        """Places that must be checked."""

    def enter(self, place: K) -> None:
        """Start work at a place."""
        with self._turn:
            self._busy[place] += 1

    def emptied(self, place: K) -> None:
        """Note that something was removed from a place, or not made."""
        with self._turn:
            self._emptied.add(place)

    def leave(self, place: K) -> bool:
        """End work at a place; returns whether the caller is the last and must check."""
        with self._turn:
            self._busy[place] -= 1
            if self._busy[place] or place not in self._emptied:
                return False
            # Before the check, not after it: a node that ends meanwhile causes another check.
            self._emptied.discard(place)
            return True


class Place(Protocol):
    """A region."""

    name: str


R = TypeVar("R", bound=Place)


T = TypeVar("T")


class Pairs(Keys, ABC, Generic[R, T]):
    """The key of one state: its private half is a file here, its public half a key pair in each region with
    nodes. `T` is a cloud's description of a pair.

    Logging in needs no pair (`user_data` says who may). The pair tells the next machine that makes nodes of
    this state whether it has the same key.
    """

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._there: set[str] = set()
        self._last: LastOut[str] = LastOut()

    def ensure(self, region: R) -> Login:
        """Make the key and its pair in a region, if missing; `PermanentError` if there is a pair with another
        key.
        """
        with self._turn:
            self.before(region)
            login = self._made()
            if region.name not in self._there:
                self._have(region, login)
                self._there.add(region.name)
            return login

    def before(self, region: R) -> None:
        """A check before a key is made."""

    def _have(self, region: R, login: Login) -> None:
        """Make the pair in a region, if missing; `PermanentError` as above."""
        there = None if self._fresh else self._find(region)
        if there is None:
            try:
                self._send(region, login)
            except PermanentError as error:
                # Another machine was faster, or an answer was lost.
                there = self._find(region)
                if there is None:
                    raise self._refused_pair(error) from None
        if there is not None and not self._is_of(there, login):
            raise self._another(region, login, there)

    @abstractmethod
    def _find(self, region: R) -> T | None:
        """The pair of this name; None if there is none."""

    @abstractmethod
    def _send(self, region: R, login: Login) -> None:
        """Request the pair once."""

    def _refused_pair(self, error: PermanentError) -> ProviderError:
        """The fault for a pair that was refused and does not exist."""
        return error

    @abstractmethod
    def _is_of(self, there: T, login: Login) -> bool:
        """Whether a pair has this key and is ours."""

    @abstractmethod
    def _another(self, region: R, login: Login, there: T) -> PermanentError:
        """The fault of a pair with another key than ours."""

    def _others(self, region: R, what: str) -> PermanentError:
        """The text of that fault; `what` says which key the pair has."""
        summary = f"the nodes of this state in {region.name} have another key than {self.source}: {what}"
        hint = f"take it from the machine that made the first of them; so that all have it, {SHARE}"
        return PermanentError(PermanentKind.CONFLICT, summary, about="identity_file", hint=hint)

    def forgotten(self, region: R) -> None:
        """Note that the pair no longer exists."""
        with self._turn:
            self._there.discard(region.name)

    def there(self, region: R) -> bool:
        """Whether a region has the pair: then this account made nodes of the state there."""
        return self._find(region) is not None

    @contextmanager
    def changing(self, region: R, living: Callable[[], bool], *, ending: bool) -> Iterator[None]:
        """Surrounds making or ending nodes of a region. The last of these calls deletes the pair if no node
        is `living`. An `ending` call gets transient faults of that.
        """
        self._last.enter(region.name)
        if ending:
            self.left(region)
        try:
            yield
        except PermanentError:
            self.left(region)
            raise
        finally:
            if self._last.leave(region.name):
                # The call itself has succeeded or has its own error.
                with suppress(PermanentError if ending else ProviderError):
                    self._leave(region, living)

    def _leave(self, region: R, living: Callable[[], bool]) -> None:
        try:
            if not living():
                self.remove(region)
        except ProviderError:
            self.left(region)
            raise

    def left(self, region: R) -> None:
        """Note that a node of a region ended, or was not made."""
        self._last.emptied(region.name)

    def remove(self, region: R) -> None:
        """Delete the pair in a region without nodes of the state. The file stays. If a node is being made
        meanwhile, the pair is made again.
        """
        with self._turn:
            self._there.discard(region.name)
            self._remove(region)

    @abstractmethod
    def _remove(self, region: R) -> None:
        """Delete it, if it exists and is ours."""
