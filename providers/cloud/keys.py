"""The private key of a state's nodes, and what a node gets for its first start, as cloud-init reads it: who
may log in, and its host key.

The private key comes from the environment, from a file that is named, or from one made here. It is in no
state, not even encrypted: a passphrase would have to reach every machine from the same place from which the
key itself can, and a database that many may read would hold what can be guessed at for ever. Its public half
is a key pair in each region, in clouds that have such pairs: the pair comes with the first node there and
goes with the last.

The host key is handed over, and not read back. To trust the first key that is offered is to trust whoever is
in between at that moment; what a node prints on its console comes minutes late, not from all images, and
somebody has to keep it. A key that goes with the node's create is known before the node is there. Its price:
what runs on the node can read it (as whoever becomes root on a host can), and so can who may read the user
data of the account. With it, they can pose as this one node, and as no other.

To mount a volume takes root, which the user who logs in need not be: ranks run as that user. So the node is
given one program that mounts volumes, and the user may have sudo run that, and nothing else.
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

from declarative.provider import PermanentError, PermanentKind, ProviderError
from providers.cloud.account import Account
from providers.cloud.bad_answers import Scrub
from providers.ssh import key_pairs
from providers.ssh.key_pairs import HostKey, Login

USER = "fleetform"
"""Made on the node where no other user is named: what an image calls its own differs."""
UID = 47600
"""Its number, on every node: a volume's files are its own on whatever image they were written."""
MOST = 16 * 1024
"""Bytes that EC2 takes."""
PROGRAM = "/usr/local/sbin/fleetform-disk"
"""What mounts volumes, where the user is not root."""


@cache
def program() -> str:
    """Its text, without the comments."""
    text = (Path(__file__).parent / "disk.sh").read_text(encoding="utf-8")
    return re.sub(r"^ *#(?!!).*\n", "", text, flags=re.MULTILINE)


def user_data(user: str, login: str, key: HostKey) -> str:
    """The same bytes for the same values: JSON is YAML. `login` is the public key that may log in."""
    own: dict[str, object] = {
        "name": user,
        "lock_passwd": True,
        "shell": "/bin/sh",
        "ssh_authorized_keys": [login],
    }
    config: dict[str, object] = {
        "ssh_deletekeys": True,  # those of the image are everybody's
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
"""The environment variable with the key: its text, or the name of its file."""
SHARE = (
    f"let {VARIABLE} hold it (or name its file), or name its file in `options.identity_file` of the backend"
)
"""What whoever works on a state from several machines does with its key."""


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
        if given := os.environ.get(VARIABLE, "").strip():
            return _in_memory(given) if "PRIVATE KEY" in given else project / Path(given).expanduser()
        named = self._account.options.get("identity_file")
        return project / (Path(named).expanduser() if named else FOLDER / self._account.owner)

    @property
    def given(self) -> bool:
        """Whether the user says where the key is; else one is made for the state."""
        return bool(os.environ.get(VARIABLE, "").strip() or self._account.options.get("identity_file"))

    @property
    def source(self) -> str:
        """What the key is called in messages. What the variable holds is shown to nobody."""
        return VARIABLE if os.environ.get(VARIABLE, "").strip() else str(self.file)

    def check(self) -> None:
        """`PermanentError` if the key that is named cannot be used, or one would be made that others lack."""
        if self.given:
            self.login()
        if self.given or self.file.exists() or not self._account.config.shared:
            return
        summary = (
            "the state is kept outside of this project's folder, and the key of its nodes would be inside: "
            "who works on the state from another checkout could not reach them"
        )
        hint = f"make a key (`ssh-keygen -t ed25519 -N '' -f FILE`) that all share: {SHARE}"
        raise PermanentError(PermanentKind.AUTH, summary, about="identity_file", hint=hint)

    def login(self) -> Login:
        """The key; `PermanentError` if it is not here."""
        with self._turn:
            return self._read()

    def host_key(self, token: str) -> HostKey:
        """That of the node which a create with this token makes."""
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
        if self._login is None and not self.given:
            self.check()
            self._fresh = key_pairs.make(self.file)
        return self._read()


@functools.cache
def _in_memory(text: str) -> Path:
    """A file with a key that is on no disk and ends with this process; programs that it runs can read it.

    CI systems strip the last line break of what they store, without which OpenSSH reads no key.
    """
    file = os.memfd_create("identity")
    os.fchmod(file, 0o600)
    os.write(file, ("\n".join(text.split("\r\n")) + "\n").encode())
    return Path(f"/proc/{os.getpid()}/fd/{file}")


K = TypeVar("K", bound=Hashable)


class Last(Generic[K]):
    """Of those who are busy at a place: who is the last to leave it, and has to see whether it is empty.

    Not each has: that is a look for every node, and what the place has would come and go beneath the others.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._busy: Counter[K] = Counter()
        self._emptied: set[K] = set()
        """Places where somebody has to look whether anything is left."""

    def enter(self, place: K) -> None:
        """Somebody is busy there."""
        with self._turn:
            self._busy[place] += 1

    def emptied(self, place: K) -> None:
        """Something went from there, or was not made."""
        with self._turn:
            self._emptied.add(place)

    def leave(self, place: K) -> bool:
        """Whether it was the last one, and has to look."""
        with self._turn:
            self._busy[place] -= 1
            if self._busy[place] or place not in self._emptied:
                return False
            # Before the look, not after it: who ends a node meanwhile has it looked at again.
            self._emptied.discard(place)
            return True


class Place(Protocol):
    """A region."""

    name: str


R = TypeVar("R", bound=Place)


T = TypeVar("T")


class Pairs(Keys, ABC, Generic[R, T]):
    """The key of one state: its private half is a file here, its public half a key pair in each region with
    nodes. `T` is what a cloud tells of a pair.

    No pair is needed to log in (`user_data` says who may). It tells the next machine that makes nodes of this
    state whether its key is the one that the others have.
    """

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._there: set[str] = set()
        self._last: Last[str] = Last()

    def bring(self, region: R) -> Login:
        """Have the key, and its pair in a region; `PermanentError` if there is another's pair."""
        with self._turn:
            self._before(region)
            login = self._made()
            if region.name not in self._there:
                self._have(region, login)
                self._there.add(region.name)
            return login

    def _before(self, region: R) -> None:
        """What is to be seen before a key is made."""

    def _have(self, region: R, login: Login) -> None:
        """Have the pair in a region; `PermanentError` as above."""
        there = None if self._fresh else self._find(region)
        if there is None:
            try:
                self._send(region, login)
            except PermanentError as error:
                # Another machine was first, or an answer was lost.
                there = self._find(region)
                if there is None:
                    raise self._unsent(error) from None
        if there is not None and not self._is_of(there, login):
            raise self._another(region, login, there)

    @abstractmethod
    def _find(self, region: R) -> T | None:
        """The pair of this name; None if there is none."""

    @abstractmethod
    def _send(self, region: R, login: Login) -> None:
        """Ask once for the pair."""

    def _unsent(self, error: PermanentError) -> ProviderError:
        """The fault of a pair that was refused and is not there."""
        return error

    @abstractmethod
    def _is_of(self, there: T, login: Login) -> bool:
        """Whether a pair has this key, and is ours."""

    @abstractmethod
    def _another(self, region: R, login: Login, there: T) -> PermanentError:
        """The fault of a pair with another key than ours."""

    def _others(self, region: R, what: str) -> PermanentError:
        """The same, in words; `what` says of the pair what it has."""
        summary = f"the nodes of this state in {region.name} have another key than {self.source}: {what}"
        hint = f"take it from the machine that made the first of them; so that all have it, {SHARE}"
        return PermanentError(PermanentKind.CONFLICT, summary, about="identity_file", hint=hint)

    def forgotten(self, region: R) -> None:
        """Somebody says that the pair is not there any more."""
        with self._turn:
            self._there.discard(region.name)

    def there(self, region: R) -> bool:
        """Whether a region has the pair: nodes of the state were made there, by this account."""
        return self._find(region) is not None

    @contextmanager
    def changing(self, region: R, living: Callable[[], bool], *, ending: bool) -> Iterator[None]:
        """While nodes of a region come and go. The last of these calls takes the pair away if no node is
        `living`. A call that is `ending` one gets the fault if that should be tried again.
        """
        self._last.enter(region.name)
        try:
            yield
        finally:
            if self._last.leave(region.name):
                # What this is about is done, or was said.
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
        """A node of a region went, or was not made."""
        self._last.emptied(region.name)

    def remove(self, region: R) -> None:
        """Take the pair out of a region that has no nodes of the state any more. The file stays. Whoever
        makes a node just now brings it again.
        """
        with self._turn:
            self._there.discard(region.name)
            self._remove(region)

    @abstractmethod
    def _remove(self, region: R) -> None:
        """Delete it, if it is there and ours."""
