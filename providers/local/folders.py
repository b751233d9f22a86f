"""The folders that stand for nodes and volumes, the attachments in them, and how they change without a gap.

    <root>/nodes/<name>/fleetform.json       whose it is, by what token it was made, with what inputs
                       /ranks/<attempt>/     the runner's
                       /work/<attempt>/      where an attempt begins to work
                       /hosts/<attempt>/     its MPI host files
    <root>/volumes/<name>/fleetform.json
                         /attachment.json    who holds it: one file, so never two holders
                         /data/              the user's
    <root>/trash/                            on its way out

A thing exists once its `fleetform.json` does. That file comes last and whole, by a link that cannot succeed
twice. A thing is gone once its folder is renamed into the trash. So a crash leaves no half thing: the next
create completes a folder without that file, and the next delete clears the trash. Things of other owners are
neither listed nor touched.

An attachment ends with its node: a node that was deleted, or made anew under the same name, holds no volume
any more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from declarative.model.inputs import BadDataError
from declarative.model.state import Address, Record, orphan_hint
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from providers.faults import raise_all
from providers.local.files import META, DamagedError, Meta, erase, keep, load, put, sync
from providers.ownership import key_of, lost

ATTACHMENT = "attachment.json"
DATA = "data"
FILLED = "filled"
"""Beside a volume's data: they held something when it was detached last."""

_FOLDERS = {"node": "nodes", "volume": "volumes"}
_LOOKED_AT = {"node": (META, "ranks"), "volume": (META, "attachment.json")}
"""Files in the folder of a thing that may change without a change of the folder itself."""
NANO = 1_000_000_000
SETTLED = 2.5
"""Seconds after a change in which another one may get the same time: some disks keep times in steps of two
seconds.
"""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,199}", re.ASCII)
"""Matches any declared name with a number. No such name leads out of the root."""


class Folders:
    """The nodes and volumes below one root, as one owner may use them."""

    def __init__(self, root: Path, owner: str) -> None:
        self.root = root
        self.owner = owner
        self.parents = {kind: str(root / name) for kind, name in _FOLDERS.items()}
        self._swept = False
        """Whether the trash of earlier commands was removed."""

    # -------------------------------------------------------------------------------------- reading

    def at(self, address: Address) -> str:
        """The folder of a node or a volume, made or not; as text, since there may be very many of them."""
        kind, name = address
        if kind not in _FOLDERS or not _NAME.fullmatch(name):
            summary = f"no folder can stand for `{address}`"
            raise PermanentError(PermanentKind.INVALID, summary, about=str(address))
        return f"{self.parents[kind]}/{name}"

    def folder(self, address: Address) -> Path:
        """Like `at`, as a path."""
        return Path(self.at(address))

    def read(self, address: Address) -> Meta | None:
        """The thing of any owner; None for nothing, or for what a crashed create left behind."""
        at = self.at(address)
        for path in (self.parents[address.kind], at):
            try:
                mode = os.lstat(path).st_mode  # text, for thousands of them
            except FileNotFoundError:
                return None
            if not stat.S_ISDIR(mode):  # nor a link: to delete through it would delete somewhere else
                raise DamagedError(address, path, "is not a folder")
        meta = load(address, f"{at}/{META}")
        if meta or _unfinished(folder := Path(at)):
            return meta
        # It may have been finished, or removed, between the two looks.
        meta = load(address, f"{at}/{META}")
        if meta is None and folder.exists():
            raise DamagedError(address, folder, f"has content but no {META}")
        return meta

    def ours(self, address: Address) -> Meta | None:
        """The thing, if it is there and of this owner."""
        meta = self.read(address)
        return meta if meta and meta.owner == self.owner else None

    def own(self, address: Address, id_made: str | None = None) -> Meta:
        """The thing of this owner, with `id_made` the one of that id; else `PermanentError`: not found."""
        meta = self.read(address)
        if meta is None or meta.owner != self.owner or id_made not in {None, meta.id}:
            why = "is not there" if meta is None else "is not the one that was recorded"
            raise PermanentError(PermanentKind.NOT_FOUND, f"{address} {why}", about=str(address))
        return meta

    def of(self, record: Record) -> Meta:
        """The thing of a record; `PermanentError` if there is none, or a later one."""
        id_made = record.outputs.get("id")
        return self.own(record.address, str(id_made) if id_made else None)

    def listed(self) -> list[Meta]:
        """All nodes and volumes of this owner, or a fault that names everything that cannot be read."""
        things: list[Meta] = []
        damaged: list[DamagedError] = []
        for address, plain in self._entries():
            try:
                # Anything unusual gets a second, closer look.
                meta = (load(address, f"{self.at(address)}/{META}") if plain else None) or self.read(address)
            except DamagedError as error:
                damaged.append(error)
            else:
                things += [meta] if meta and meta.owner == self.owner else []
        raise_all(damaged)
        return things

    def _entries(self) -> Iterator[tuple[Address, bool]]:
        """The names that may be things, and whether each is a folder and not a link."""
        for kind, parent in self.parents.items():
            plain = not Path(parent).is_symlink()
            try:
                with os.scandir(parent) as entries:
                    candidates = [entry for entry in entries if _NAME.fullmatch(entry.name)]
            except FileNotFoundError:
                continue  # nothing was made yet
            for entry in sorted(candidates, key=lambda entry: entry.name):
                yield Address(kind, entry.name), plain and entry.is_dir(follow_symlinks=False)

    def mark(self) -> tuple[object, Mapping[int, str]] | None:
        """A value that changes with everything that `listed` reads, and when something is started on a node,
        and a path on each disk; None right after a change.
        """
        names: list[str] = []
        states = array("q")
        latest = 0
        disks: dict[int, str] = {}
        for kind, parent in self.parents.items():
            try:
                with os.scandir(parent) as entries:
                    here = sorted([entry.name for entry in entries])
            except FileNotFoundError:
                here = []
            names += here
            paths = [parent, *(f"{parent}/{name}{more}" for name in here for more in _parts(kind))]
            for path in paths:
                try:
                    status = os.lstat(path)  # text, for thousands of them
                except FileNotFoundError:
                    states.append(-1)
                    continue
                disks.setdefault(status.st_dev, path)
                latest = max(latest, status.st_ctime_ns)
                states.extend((status.st_ino, status.st_ctime_ns, status.st_size, status.st_mode))
        return None if time.time_ns() - latest < SETTLED * NANO else ((names, states), disks)

    # --------------------------------------------------------------------------------------- making

    def make(self, meta: Meta) -> Meta:
        """Make a node or a volume, or find what an earlier call with this token made."""
        have = self.read(meta.address)
        if have is None:
            at, parent = self.at(meta.address), self.parents[meta.address.kind]
            try:
                _mkdir(at, 0o700)
            except FileNotFoundError:  # the first of its kind
                self._open(Path(parent))
                _mkdir(at, 0o700)
            if meta.address.kind == "volume":
                # The user's, with the user's umask: its mode counts at the path where it is mounted.
                _mkdir(f"{at}/{DATA}", 0o777)
            if put(f"{at}/{META}", meta, new=True):
                keep(parent)
                return meta
            have = self.read(meta.address)
            if have is None:
                summary = f"{meta.address} was made and removed by others meanwhile"
                raise TransientError(TransientKind.BUSY, summary, about=str(meta.address))
        self.check(have, meta.token)
        return have

    def check(self, have: Meta, token: str) -> None:
        """Refuse a thing that another owner or another create made."""
        if have.owner != self.owner:
            summary = f"{have.address} is there, and belongs to another state (lineage {have.owner})"
            hint = "choose another name, or give this backend an `options.root` of its own"
        elif have.token != token:
            summary = f"{have.address} is there already, made by an earlier create ({have.id})"
            hint = orphan_hint(have.address)
        else:
            return
        raise PermanentError(PermanentKind.CONFLICT, summary, about=str(have.address), hint=hint)

    def rewrite(self, meta: Meta) -> None:
        """Replace the inputs of a thing."""
        put(f"{self.at(meta.address)}/{META}", meta, new=False)

    def _open(self, parent: Path) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        parent.mkdir(mode=0o700, exist_ok=True)

    # ------------------------------------------------------------------------------------- removing

    def remove(self, meta: Meta) -> None:
        """Remove a thing: at once by its name, then its content, never through a link."""
        _mkdir(f"{self.root}/trash", 0o700)  # always: a sweep for a thing that was absent makes none
        if not self._swept:
            self.sweep(meta.address)
        at, gone = self.at(meta.address), f"{self.root}/trash/{self._mark(meta.address)}.{meta.key}"
        try:
            os.rename(at, gone)  # noqa: PTH104  # text, for thousands of them
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
            erase(gone)
            os.rename(at, gone)  # noqa: PTH104
        sync(self.parents[meta.address.kind])
        if not _erased(gone):
            erase(gone)

    def sweep(self, address: Address) -> None:
        """Remove the rest of an earlier delete of a thing that was cut short.

        The first time, the rest of this owner's trash is removed as well, if possible: nothing else may do
        it.
        """
        trash, mark = self.root / "trash", f"{self._mark(address)}."
        first, self._swept = not self._swept, True
        for name in _names(trash):
            if name.startswith(mark):
                erase(trash / name)
            elif first and name.startswith(f"{key_of(self.owner)}."):
                with contextlib.suppress(OSError):
                    erase(trash / name)

    def _mark(self, address: Address) -> str:
        return f"{key_of(self.owner)}.{address.kind}.{address.name}"

    @contextlib.contextmanager
    def locked(self, address: Address) -> Iterator[None]:
        """Lock a folder for a look and a change; other callers wait for moments only."""
        handle = os.open(self.at(address), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


class Attachments:
    """The attachments of all volumes of one owner: which rank holds a volume, on which node."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders

    def read(self, address: Address) -> Meta | None:
        """The attachment of that address, if it holds."""
        meta = self.on(_volume_of(address))
        return meta if meta and meta.address == address else None

    def on(self, volume: str) -> Meta | None:
        """The attachment that holds a volume of this owner, if one does."""
        return self._holding(volume) if self._folders.ours(Address("volume", volume)) else None

    def _holding(self, volume: str) -> Meta | None:
        meta = self._stored(volume)
        if meta is None:
            return None
        node = self._folders.read(Address("node", meta.attachment.node))
        return meta if node and node.id == meta.bound["node"] else None

    def check_free(self, volume: str, node: str | None = None) -> None:
        """Refuse a volume of this owner that a rank holds, on another node than the given one."""
        have = self._holding(volume)
        if have and have.attachment.node != node:
            raise _holder_fault(volume, have, "detach it first" if node is None else None)

    def listed(self, things: Iterable[Meta]) -> list[Meta]:
        """All that hold, given all nodes and volumes."""
        things = list(things)
        nodes = {meta.id for meta in things if meta.address.kind == "node"}
        stored = (self._stored(meta.address.name) for meta in things if meta.address.kind == "volume")
        return [meta for meta in stored if meta and meta.bound["node"] in nodes]

    def _stored(self, volume: str) -> Meta | None:
        address = Address("volume", volume)
        path = f"{self._folders.at(address)}/{ATTACHMENT}"
        meta = load(address, path)
        try:
            whole = meta is None or ("node" in meta.bound and meta.attachment.volume == volume)
        except BadDataError:
            whole = False
        if not whole:
            raise DamagedError(address, path, "cannot be read: it is damaged")
        return meta

    def make(self, meta: Meta) -> Meta:
        """Attach, or find what an earlier call with this token attached."""
        volume, node = (
            Address("volume", meta.attachment.volume),
            Address("node", meta.attachment.node),
        )
        if volume.name != _volume_of(meta.address):
            summary = f"{meta.address} cannot be about {volume}"
            raise PermanentError(PermanentKind.INVALID, summary, about="volume")
        meta = replace(meta, bound={"node": self._folders.own(node).id})
        self._folders.own(volume)
        with self._folders.locked(volume):
            self._folders.own(volume)  # the lock may be one on a folder that was deleted meanwhile
            have = self.on(volume.name)
            if have is None:
                at = self._folders.at(volume)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{at}/{FILLED}")  # noqa: PTH108  # it may do with its data as it likes
                put(f"{at}/{ATTACHMENT}", meta, new=False)
                return meta
        if have.address != meta.address:
            hint = "a volume has one holder at a time: wait for it to end, or stop it"
            raise _holder_fault(volume.name, have, hint)
        self._folders.check(have, meta.token)
        return have

    def remove(self, address: Address, id_made: object = None) -> None:
        """Detach; nothing happens if the attachment is absent, or has another id."""
        volume = Address("volume", _volume_of(address))
        if self._folders.ours(volume) is None:
            return
        with self._folders.locked(volume):
            folder = self._folders.at(volume)
            meta = self._stored(volume.name)
            if meta and meta.address == address and id_made in {None, meta.id}:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{folder}/{ATTACHMENT}")  # noqa: PTH108  # text, for thousands of them
                if _holds_any(f"{folder}/{DATA}"):
                    Path(folder, FILLED).touch()
                sync(folder)

    def vanished(self, volume: Meta) -> str | None:
        folder = self._folders.at(volume.address)
        data = f"{folder}/{DATA}"
        if not os.path.isdir(data):  # noqa: PTH112  # text, for thousands of them
            return lost("data", data, f"{folder}/")
        if not os.path.exists(f"{folder}/{FILLED}") or _holds_any(data):  # noqa: PTH110
            return None
        return None if self.on(volume.address.name) else lost("emptied", data, f"{folder}/")


def _holds_any(folder: str) -> bool:
    """Whether there is anything in a folder."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False


def _volume_of(address: Address) -> str:
    """`train-2.data-2` is about `data-2`."""
    rank, dot, volume = address.name.partition(".")
    if not rank or not dot:
        raise PermanentError(PermanentKind.INVALID, f"`{address}` is not an attachment", about=str(address))
    return volume


def _holder_fault(volume: str, by: Meta, hint: str | None) -> PermanentError:
    summary = f"volume/{volume} is held by {by.address}, on node/{by.attachment.node}"
    return PermanentError(PermanentKind.CONFLICT, summary, about=f"volume/{volume}", hint=hint)


def _erased(folder: str) -> bool:
    """Remove a thing that holds nothing, in few calls; False if it holds something, which is left."""
    try:
        os.unlink(f"{folder}/{META}")  # noqa: PTH108  # text, for thousands of them
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(f"{folder}/{DATA}")  # noqa: PTH106
        os.rmdir(folder)  # noqa: PTH106
    except OSError:
        return False
    return True


def _parts(kind: str) -> tuple[str, ...]:
    return ("", *(f"/{name}" for name in _LOOKED_AT[kind]))


def _mkdir(path: str, mode: int) -> None:
    """Make a folder, or leave the one that is there."""
    try:
        os.mkdir(path, mode)  # noqa: PTH102  # text, for thousands of them
    except FileExistsError:
        if not os.path.isdir(path):  # noqa: PTH112
            raise


def _names(folder: Path) -> list[str]:
    """The names in a folder; none if there is no folder."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return []


def _unfinished(folder: Path) -> bool:
    """Whether the folder only has what a create makes before its last step."""
    try:
        names = [name for name in _names(folder) if not name.startswith(".fleetform.")]
        return not names or (names == [DATA] and not _names(folder / DATA))
    except NotADirectoryError:
        return False
