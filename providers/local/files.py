"""Files on this machine's disk: records of things, the last writer's number, files of tasks.

Each file is written whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from declarative.model.inputs import AttachmentInputs, inputs_of
from declarative.model.state import Address
from declarative.provider import (
    Bundle,
    Fence,
    PermanentError,
    PermanentKind,
    Source,
    StaleError,
    TransientError,
    TransientKind,
)
from providers.ownership import FORMAT, NOT_OWNED, Owned, owned

META = "fleetform.json"

_CHUNK = 1 << 12
_PIECE = 1 << 20


# ------------------------------------------------------------------------------- what records a thing


class DamagedError(PermanentError):
    """A thing that cannot be read, and that must not count as gone."""

    def __init__(self, address: Address, path: Path | str, reason: str) -> None:
        hint = f"restore {path}, or move it away if nothing in it is needed"
        super().__init__(PermanentKind.INVALID, f"{address}: {path} {reason}", about=str(address), hint=hint)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta(Owned):
    """The content of a `fleetform.json` or an `attachment.json`."""

    created: float
    bound: Mapping[str, str] = field(default_factory=dict)
    """The id of an attachment's node. The attachment ends with that node, not with the node's name."""

    @property
    def attachment(self) -> AttachmentInputs:
        """The inputs of an attachment; `BadDataError` if they are of another kind."""
        return inputs_of("attachment", self.inputs)

    def text(self) -> bytes:
        """The text of the file."""
        bound = {"bound": self.bound} if self.bound else {}
        return f"{self.json(created=self.created, **bound)}\n".encode()


def load(address: Address, path: str) -> Meta | None:
    """The file's content; None if there is no file, `DamagedError` if it cannot be what was written."""
    try:
        text = _content(path)
    except FileNotFoundError:
        return None
    try:
        body = json.loads(text)
        bound = {str(k): str(v) for k, v in body.get("bound", {}).items()}
        meta = Meta(**owned(body), created=float(body["created"]), bound=bound)
        is_readable = body["format"] == FORMAT
    except NOT_OWNED as error:
        raise DamagedError(address, path, "cannot be read: it is damaged") from error
    if not is_readable:
        raise DamagedError(address, path, "was written by another version of the tool")
    if path.endswith(f"/{META}") and meta.address != address:
        raise DamagedError(address, path, f"says that it is {meta.address}: a copy by hand?")
    return meta


def _content(path: str) -> bytes:
    """All that is in a file, in as few calls as possible: a listing reads thousands of small ones."""
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


def put(path: str, meta: Meta, *, new: bool) -> bool:
    """Write a file whole or not at all; False if it should be new and there is one already."""
    text, folder = meta.text(), path.rpartition("/")[0]
    aside = f"{folder}/.fleetform.{os.urandom(8).hex()}"
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # only for its owner
    try:
        try:
            while text := text[os.write(handle, text) :]:
                pass
            os.fsync(handle)
        finally:
            os.close(handle)
        if new:
            os.link(aside, path)
        else:
            os.replace(aside, path)  # noqa: PTH105  # text, for thousands of them
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):
            os.unlink(aside)  # noqa: PTH108
    keep(folder)
    return True


def keep(folder: str) -> None:
    """Make a new file survive a power cut, if that is possible.

    The file is made in any case: a permanent fault would say that it is not.
    """
    try:
        sync(folder)
    except OSError as error:
        summary = f"made, but perhaps not for long: {folder}: {error.strerror}"
        raise TransientError(TransientKind.AMBIGUOUS, summary, about=str(folder)) from error


def sync(folder: str) -> None:
    """Let the names in a folder outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def erase(path: Path | str) -> None:
    """Remove a folder and all in it, but no link's target. Another caller may remove it at the same time."""

    def ignore_gone(_call: object, _path: str, info: Any) -> None:
        if not isinstance(info[1], FileNotFoundError):
            raise info[1]

    try:
        shutil.rmtree(path, onerror=ignore_gone)
    except PermissionError:
        # Tasks leave read-only folders behind (for example Go's module cache), which only need to be opened.
        for folder, _, _ in os.walk(path):
            for entry in Path(folder).iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    entry.chmod(0o700)
        shutil.rmtree(path, onerror=ignore_gone)


# ------------------------------------------------------------------------- the number of the last writer


class Epoch:
    """The file that refuses a writer of the past, for one owner's things. Safe to use from many threads.

    It keeps the highest number that came, and is locked while something changes. So a writer that has raised
    the number knows that no earlier writer changes anything any more: see `provider.Fence`. What changes at
    the same time shares the lock: until it is given back, no other process raises the number.
    """

    def __init__(self, path: Path, fence: Fence, folders: Sequence[str]) -> None:
        """`folders` are those of the things: if they are empty, the file is not needed any more."""
        self._path = path
        self._text = str(path)
        self._folders = folders
        self._fence = fence
        self._lock = _turn(path)
        self._handle: int | None = None
        """The file, while it is locked."""
        self._newest = 0
        """The number in it then."""
        self._changes = 0
        """The number of changes that share the lock."""

    @contextlib.contextmanager
    def as_writer(self, *, make: bool = True) -> Iterator[None]:
        """Change something as the present writer: no later writer comes in between. Without `make`, no file
        is made where there is no folder yet, and none is left where no thing is left.
        """
        epoch = self._fence()
        if epoch is None:
            yield
            return
        with self._lock:
            is_locked = self._join(epoch, make=make)
        last = False
        try:
            if is_locked and self._newest > epoch:
                summary = f"a later command was here ({self._newest}, and this is {epoch})"
                raise StaleError(self._newest, summary, about=str(self._path))
            yield
        finally:
            if is_locked:
                with self._lock:
                    last = self._leave()
        if last and not make:
            self._remove_if_unused()

    def _join(self, epoch: int, *, make: bool) -> bool:
        """Lock the file, or share the lock; False where there is no file and none is made."""
        if self._handle is None or self._newest < epoch:
            handle = self._open(make=make)
            if handle is None:
                return False
            try:
                self._newest = self._raised(handle, epoch)  # refused while others share the lock
            except BaseException:
                os.close(handle)
                raise
            self._handle = handle
        self._changes += 1
        return True

    def _leave(self) -> bool:
        """Give the lock back, unless others share it; whether it was."""
        self._changes -= 1
        if self._changes or self._handle is None:
            return False
        os.close(self._handle)
        self._handle = None
        return True

    def _raised(self, handle: int, epoch: int) -> int:
        """The highest number that came, with `epoch`."""
        newest = self._read(handle, fcntl.LOCK_SH)
        if newest < epoch:
            newest = self._read(handle, fcntl.LOCK_EX)  # another process may have been faster
            if newest < epoch:
                os.truncate(handle, 0)
                os.pwrite(handle, f"{epoch}\n".encode(), 0)
            newest = self._read(handle, fcntl.LOCK_SH)
        return newest

    def _open(self, *, make: bool) -> int | None:
        """The file, made if it is missing, in few calls: each change begins with it. Without `make`, None if
        there is no folder.
        """
        how = os.O_RDWR | os.O_CREAT
        try:
            return os.open(self._text, how, 0o666)
        except FileNotFoundError:
            if not make:
                return None
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(self._text, how, 0o666)

    def _remove_if_unused(self) -> None:
        if any(map(_has_folders, self._folders)):
            return
        gone = contextlib.suppress(FileNotFoundError, BlockingIOError)
        with self._lock, gone, self._path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not any(map(_has_entries, self._folders)):
                self._path.unlink()

    def _read(self, handle: int, how: int) -> int:
        try:
            fcntl.flock(handle, how | fcntl.LOCK_NB)
        except BlockingIOError:
            # Perhaps of a process that was stopped in the middle: it goes on there once it wakes up.
            summary = f"another command is in the middle of a change: {self._path} is locked"
            raise TransientError(TransientKind.BUSY, summary, about=str(self._path)) from None
        if os.fstat(handle).st_nlink == 0:
            summary = f"{self._path} was removed meanwhile, with all that was there"
            raise TransientError(TransientKind.BUSY, summary, about=str(self._path))
        text = os.pread(handle, _CHUNK, 0).strip()
        return int(text) if text.isdigit() else 0


@functools.cache
def _turn(path: Path) -> threading.Lock:  # noqa: ARG001 (the key)
    """The lock of this process for a file: several backends may have their things in one folder."""
    return threading.Lock()


def never_ran(folder: str, epoch: int | None) -> bool:
    """Whether nothing was ever started in a runner's folder, and no earlier writer than `epoch` starts
    anything there from now on: as a poll by `runner.sh` does (`check_writer`), without a process per node.

    False for everything else, which the runner itself may judge: attempts, a later writer, a held lock.
    """
    try:
        if epoch is not None:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)  # noqa: PTH102  # text, for thousands of them
            if not _counted(f"{folder}/.epoch", epoch):
                return False
        if os.stat(folder).st_uid != os.geteuid():  # noqa: PTH116
            return False
        with os.scandir(folder) as entries:  # after that, so that a faster process can be seen
            return all(entry.name.startswith(".") for entry in entries)
    except FileNotFoundError:
        return epoch is None
    except OSError:
        return False


def _counted(path: str, epoch: int) -> bool:
    """Whether a runner's file says `epoch`, or does now."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        text = os.read(handle, _CHUNK).strip()
        newest = int(text) if text.isdigit() else 0
        if newest < epoch:
            os.pwrite(handle, b"%-63d\n" % epoch, 0)
        return newest <= epoch
    finally:
        os.close(handle)


def _has_folders(folder: str) -> bool:
    """Whether there certainly are folders in a folder: most file systems count them as its links. A look at
    its names would read many of them, each time that one of thousands goes.
    """
    try:
        return os.stat(folder).st_nlink > 2  # noqa: PTH116  # text, for thousands of them
    except FileNotFoundError:
        return False


def _has_entries(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(entries)
    except FileNotFoundError:
        return False


# ---------------------------------------------------------------------------------- the files of a task


def place(folder: Path, files: Bundle) -> None:
    """Make the folder of an attempt with its files, whole or not at all; nothing if it exists already."""
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=".new.", dir=folder.parent))
    try:
        inner = new / "files"  # a folder of the usual mode; the other one is only for its owner
        inner.mkdir()
        with files.open() as archive:
            _unpack(archive.source, inner)
        try:
            inner.rename(folder)
        except OSError as error:
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:  # else another caller was faster
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _unpack(source: Source, folder: Path) -> None:
    """Unpack our own archive: no name in it leads out of the folder."""
    with tarfile.open(fileobj=source, mode="r|") as archive:  # type: ignore[call-overload]
        for member in archive:
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            if member.issym():
                path.symlink_to(member.linkname)
                continue
            content = archive.extractfile(member)
            assert content is not None
            with content, path.open("xb") as file:
                shutil.copyfileobj(content, file, _PIECE)
            if member.mode & 0o100:
                path.chmod(path.stat().st_mode | 0o111)
