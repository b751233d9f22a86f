"""The folders that stand for nodes and volumes, and how they are made, read and removed without a gap.

    <root>/nodes/<name>/fleetform.json       whose it is, by what token it was made, with what inputs
                       /ranks/<attempt>/     the runner's
                       /work/<attempt>/      where an attempt begins to work
                       /hosts/<attempt>      its MPI host file
    <root>/volumes/<name>/fleetform.json
                         /attachment.json    who holds it: one file, so never two holders
                         /data/              the user's
    <root>/trash/                            on its way out

A thing is there from the moment its `fleetform.json` is, which comes last and whole, by a link that cannot
succeed twice. It is gone from the moment its folder was renamed into the trash. So a crash at any point
leaves no half thing: a folder without that file is completed by the next create, and what lies in the trash
is cleared by the next delete.
Things of other owners are neither listed nor touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from declarative.inputs import AttachmentInputs, inputs_of
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from declarative.state import Address, Record
from providers.ownership import as_json, key_of

META = "fleetform.json"
ATTACHMENT = "attachment.json"
DATA = "data"

_FORMAT = 1
_CHUNK = 1 << 12
_FOLDERS = {"node": "nodes", "volume": "volumes"}
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,199}", re.ASCII)
"""As wide as any declared name with a number; nothing that could lead out of the root."""


class DamagedError(PermanentError):
    """What is there cannot be taken for a thing, nor for none: nobody may go on as if it were gone."""

    def __init__(self, address: Address, path: Path | str, reason: str) -> None:
        hint = f"restore {path}, or move it away if nothing in it is needed"
        super().__init__(PermanentKind.INVALID, f"{address}: {path} {reason}", about=str(address), hint=hint)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What stands in a `fleetform.json` or an `attachment.json`."""

    owner: str
    address: Address
    token: str
    inputs: Mapping[str, Any]
    created: float
    bound: Mapping[str, str] = field(default_factory=dict)
    """Of an attachment: the id of its node. It ends with that node, not with the name."""

    @property
    def id(self) -> str:
        """Of this one thing: one that is made later at the same address has another."""
        return f"{self.address}.{key_of(self.token)}"

    @property
    def attachment(self) -> AttachmentInputs:
        """The inputs of an attachment; `BadDataError` where they are none."""
        return inputs_of("attachment", self.inputs)

    def text(self) -> bytes:
        """As it stands in the file."""
        body = {
            "format": _FORMAT,
            "owner": self.owner,
            "address": str(self.address),
            "token": self.token,
            "inputs": self.inputs,
            "created": self.created,
            **({"bound": self.bound} if self.bound else {}),
        }
        return f"{as_json(self.address, body, indent=1)}\n".encode()


class Folders:
    """Everything below one root, seen with the eyes of one owner."""

    def __init__(self, root: Path, owner: str) -> None:
        self.root = root
        self.owner = owner
        self._parents = {kind: str(root / name) for kind, name in _FOLDERS.items()}

    # -------------------------------------------------------------------------------------- reading

    def at(self, address: Address) -> str:
        """Where a node or a volume is, or would be; as text, since there may be very many of them."""
        kind, name = address
        if kind not in _FOLDERS or not _NAME.fullmatch(name):
            summary = f"no folder can stand for `{address}`"
            raise PermanentError(PermanentKind.INVALID, summary, about=str(address))
        return f"{self._parents[kind]}/{name}"

    def folder(self, address: Address) -> Path:
        """As `at`, as a path."""
        return Path(self.at(address))

    def read(self, address: Address) -> Meta | None:
        """What is there, whosever it is; None for nothing, or for what a crashed create left behind."""
        folder = self.folder(address)
        for path in (folder.parent, folder):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                return None
            if not stat.S_ISDIR(mode):  # a link, too: who deletes through it deletes somewhere else
                raise DamagedError(address, path, "is no folder")
        meta = load(address, f"{folder}/{META}")
        if meta or _unfinished(folder):
            return meta
        # It may have been finished, or removed, between the two looks.
        meta = load(address, f"{folder}/{META}")
        if meta is None and folder.exists():
            raise DamagedError(address, folder, f"has content but no {META}")
        return meta

    def own(self, address: Address, made: str | None = None) -> Meta:
        """What is there if it is ours and, with `made`, still the one of that id; else it is not found."""
        meta = self.read(address)
        if meta is None or meta.owner != self.owner or made not in {None, meta.id}:
            why = "is not there" if meta is None else "is not the one that was recorded"
            raise PermanentError(PermanentKind.NOT_FOUND, f"{address} {why}", about=str(address))
        return meta

    def of(self, record: Record) -> Meta:
        """The thing that a record is about; not found if there is none, or a later one."""
        made = record.outputs.get("id")
        return self.own(record.address, str(made) if made else None)

    def listed(self) -> list[Meta]:
        """All nodes and volumes of this owner, or a fault that names everything that cannot be read."""
        found: list[Meta] = []
        damaged: list[DamagedError] = []
        for kind, parent in self._parents.items():
            for name, real in _entries(Path(parent)):
                address = Address(kind, name)
                try:
                    # What is not as it nearly always is gets a second, closer look.
                    meta = (load(address, f"{parent}/{name}/{META}") if real else None) or self.read(address)
                except DamagedError as error:
                    damaged.append(error)
                else:
                    found += [meta] if meta and meta.owner == self.owner else []
        if damaged:
            first = damaged[0]
            text = "; ".join(error.summary for error in damaged)
            raise PermanentError(first.kind, text, about=first.about, hint=first.hint)
        return found

    # --------------------------------------------------------------------------------------- making

    def make(self, meta: Meta) -> Meta:
        """Make a node or a volume, or find what an earlier call with this token made."""
        have = self.read(meta.address)
        if have is None:
            folder = self.folder(meta.address)
            self._open(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
            if meta.address.kind == "volume":
                # The user's, and by the user's umask: at the path where it is mounted, this is what counts.
                (folder / DATA).mkdir(exist_ok=True)
            if put(folder / META, meta, new=True):
                keep(folder.parent)
                return meta
            have = self.read(meta.address)
            if have is None:
                summary = f"{meta.address} was made and removed by others meanwhile"
                raise TransientError(TransientKind.BUSY, summary, about=str(meta.address))
        self.check(have, meta.token)
        return have

    def check(self, have: Meta, token: str) -> None:
        """Refuse what is at an address if another owner or another create made it."""
        if have.owner != self.owner:
            summary = f"{have.address} is there, and belongs to another state (lineage {have.owner})"
            hint = "choose another name, or give this backend an `options.root` of its own"
        elif have.token != token:
            summary = f"{have.address} is there already, made by an earlier create ({have.id})"
            hint = "delete it first, if what it holds is not needed"
        else:
            return
        raise PermanentError(PermanentKind.CONFLICT, summary, about=str(have.address), hint=hint)

    def rewrite(self, meta: Meta) -> None:
        """Put new inputs in place of the old ones, at once."""
        put(self.folder(meta.address) / META, meta, new=False)

    def _open(self, parent: Path) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        parent.mkdir(mode=0o700, exist_ok=True)

    # ------------------------------------------------------------------------------------- removing

    def remove(self, meta: Meta) -> None:
        """Take a thing away: at once by its name, then its content, never through a link."""
        trash = self.root / "trash"
        self._open(trash)
        self.sweep(meta.address)  # for the name in the trash may be taken
        folder = self.folder(meta.address)
        folder.rename(trash / f"{self._mark(meta.address)}.{key_of(meta.token)}")
        sync(folder.parent)
        self.sweep(meta.address)

    def sweep(self, address: Address) -> None:
        """Remove what is left of a thing that was deleted, also by a call that did not come to its end.

        What is left of others of this owner goes too, as far as it can: nobody may ask for those again.
        """
        trash, mark = self.root / "trash", self._mark(address)
        names = _names(trash)
        for name in names:
            if name.startswith(f"{key_of(self.owner)}.") and not name.startswith(f"{mark}."):
                with contextlib.suppress(OSError):
                    erase(trash / name)
        for name in names:
            if name.startswith(f"{mark}."):
                erase(trash / name)

    def _mark(self, address: Address) -> str:
        return f"{key_of(self.owner)}.{address.kind}.{address.name}"

    @contextlib.contextmanager
    def locked(self, address: Address) -> Iterator[None]:
        """Hold a folder while what is in it is looked at and changed; others wait, for moments only."""
        handle = os.open(self.folder(address), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def load(address: Address, path: str) -> Meta | None:
    """The file's content; None if there is no file, `DamagedError` if it cannot be what was written."""
    try:
        text = _content(path)
    except FileNotFoundError:
        return None
    try:
        body = json.loads(text)
        meta = Meta(
            owner=_text(body["owner"]),
            address=Address.parse(_text(body["address"])),
            token=_text(body["token"]),
            inputs=dict(body["inputs"]),
            created=float(body["created"]),
            bound={str(k): str(v) for k, v in body.get("bound", {}).items()},
        )
        known = body["format"] == _FORMAT
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedError(address, path, "cannot be read: it is damaged") from error
    if not known:
        raise DamagedError(address, path, "was written by another version of the tool")
    if path.endswith(f"/{META}") and meta.address != address:
        raise DamagedError(address, path, f"says that it is {meta.address}: a copy by hand?")
    return meta


def _content(path: str) -> bytes:
    """All that is in a file. In as few calls as can be: a listing reads thousands of small ones."""
    handle = os.open(path, os.O_RDONLY)
    try:
        parts = [os.read(handle, _CHUNK)]
        while parts[-1]:
            parts.append(os.read(handle, _CHUNK))
    except OSError as error:
        error.filename = path
        raise
    finally:
        os.close(handle)
    return b"".join(parts)


def put(path: Path, meta: Meta, *, new: bool) -> bool:
    """Write a file whole or not at all; False if it was to be new and there is one already."""
    text = meta.text()
    handle, name = tempfile.mkstemp(prefix=".fleetform.", dir=path.parent)  # for its owner alone
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if new:
            os.link(name, path)
        else:
            Path(name).replace(path)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):
            Path(name).unlink(missing_ok=True)
    keep(path.parent)
    return True


def keep(folder: Path) -> None:
    """Let what was just made outlive a power cut.

    It is made, whether that succeeds or not: a permanent fault would say that it is not.
    """
    try:
        sync(folder)
    except OSError as error:
        summary = f"made, but perhaps not for long: {folder}: {error.strerror}"
        raise TransientError(TransientKind.AMBIGUOUS, summary, about=str(folder)) from error


def sync(folder: Path) -> None:
    """Let the names in a folder outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _entries(parent: Path) -> list[tuple[str, bool]]:
    """The names in a folder that may be things, and whether each is a folder and no link.

    Nothing, if there is no such folder: then nothing was made yet.
    """
    real = not parent.is_symlink()
    try:
        with os.scandir(parent) as entries:
            return sorted(
                (e.name, real and e.is_dir(follow_symlinks=False)) for e in entries if _NAME.fullmatch(e.name)
            )
    except FileNotFoundError:
        return []


def _names(folder: Path) -> list[str]:
    """The names in a folder; none if there is no folder."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return []


def _unfinished(folder: Path) -> bool:
    """Whether nothing is there but what a create makes before its last step."""
    try:
        found = [name for name in _names(folder) if not name.startswith(".fleetform.")]
        return not found or (found == [DATA] and not _names(folder / DATA))
    except NotADirectoryError:
        return False


def erase(path: Path) -> None:
    """Remove a folder and all in it, also what another caller is removing now, and no link's target."""

    def ignore_gone(_call: object, _path: str, info: Any) -> None:
        if not isinstance(info[1], FileNotFoundError):
            raise info[1]

    try:
        shutil.rmtree(path, onerror=ignore_gone)
    except PermissionError:
        # Tasks leave read-only folders behind (Go's module cache, for one), which only need to be opened.
        for folder, _, _ in os.walk(path):
            for entry in Path(folder).iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    entry.chmod(0o700)
        shutil.rmtree(path, onerror=ignore_gone)
