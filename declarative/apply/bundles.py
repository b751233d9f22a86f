"""The files of tasks, packed to be sent: exactly those that were planned, or none."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tarfile
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from declarative.language.loader import sent_files
from declarative.model.inputs import RecordedFiles
from declarative.model.resource import Entry, Manifest
from declarative.model.text import and_more
from declarative.provider import Archive, PermanentError, PermanentKind

AGAIN = "plan again; or undo the change, and apply again"
MOST_NAMED = 5


class Bundles:
    """The bundles of one project by their digest, each packed once, when it is first needed.

    Safe to use from many threads.
    """

    def __init__(self, project_dir: Path, manifests: Mapping[str, Manifest]) -> None:
        self._root = project_dir
        self._manifests = manifests
        self._made: dict[str, Packed] = {}
        self._lock = threading.Lock()

    def of(self, files: RecordedFiles) -> Packed:
        """The bundle of a rank that gets these files."""
        digest = files.digest
        with self._lock:
            if digest not in self._made:
                self._made[digest] = Packed(self._root, digest, self._manifests.get(digest))
            return self._made[digest]


class Packed:
    """One bundle. Its archive is a temporary file without a name, which goes with the process."""

    def __init__(self, root: Path, digest: str, manifest: Manifest | None) -> None:
        self.digest = digest
        self._root = root
        self._manifest = manifest
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._size, self._sha256 = 0, ""

    @contextlib.contextmanager
    def open(self) -> Iterator[Archive]:
        """See `Bundle.open`."""
        with self._lock:
            if self._file is None:
                self._file = self._packed()
        yield Archive(source=_Reader(self._file.fileno()), size=self._size, sha256=self._sha256)

    def _packed(self) -> IO[bytes]:
        if self._manifest is None:
            # Only planned files were looked at. Recorded ones may not exist any more.
            summary = "the task's files as they were planned are not at hand"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about="files", hint=AGAIN)
        try:
            with contextlib.ExitStack() as undo:
                spool = undo.enter_context(tempfile.TemporaryFile())
                out = _Hashing(spool)
                # A stream is all that it needs, but not all that its type asks for.
                with tarfile.open(fileobj=cast("Any", out), mode="w|", format=tarfile.GNU_FORMAT) as archive:
                    for entry in self._manifest.entries:
                        _add(archive, self._root, entry)
                spool.flush()
                undo.pop_all()
        except OSError as error:
            summary = f"the task's files cannot be packed: {error.strerror or error}"
            hint = "they are packed into a temporary file: `TMPDIR` says where"
            raise PermanentError(PermanentKind.INVALID, summary, about="files", hint=hint) from error
        weakref.finalize(self, spool.close)
        self._size, self._sha256 = out.size, out.digest.hexdigest()
        return spool


class _Hashing:
    """The stream that a tar archive is written to."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size, self.digest = 0, hashlib.sha256()

    def write(self, piece: bytes) -> int:
        self.size += len(piece)
        self.digest.update(piece)
        return self._file.write(piece)


class _Reader:
    """One reader of a file that has several."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._offset = descriptor, 0

    def read(self, size: int, /) -> bytes:
        piece = os.pread(self._descriptor, size, self._offset)
        self._offset += len(piece)
        return piece


def _add(archive: tarfile.TarFile, root: Path, entry: Entry) -> None:
    """An entry as it was planned: its owner, times and the rest of its mode say nothing."""
    info = tarfile.TarInfo(entry.path)
    info.mode = 0o755 if entry.executable else 0o644
    if entry.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
        if _differs(root, entry):
            raise _changed([entry.source])
        archive.addfile(info)
        return
    info.size = entry.size
    *above, name = entry.source.split("/")
    with contextlib.ExitStack() as opened:
        try:
            parent = opened.enter_context(sent_files.open_folder(root, *above))
            file = opened.enter_context(sent_files.open_file(parent, name))
        except OSError:  # it is gone, or no file any more, or may not be read any more
            raise _changed([entry.source]) from None
        if not _is_planned(os.fstat(file.fileno()), entry):
            raise _changed([entry.source])
        reader = _Checked(file)
        archive.addfile(info, cast("Any", reader))
    if reader.digest.hexdigest() != entry.sha256:
        raise _changed([entry.source])


class _Checked:
    """A file that is read into an archive. One that is cut short meanwhile ends in zeros: its sum tells."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        piece = b""
        while len(piece) < size and (more := self._file.read(size - len(piece))):
            piece += more
        self.digest.update(piece)
        return piece + bytes(size - len(piece))


def _is_planned(status: os.stat_result, entry: Entry) -> bool:
    return status.st_size == entry.size and bool(status.st_mode & 0o100) == entry.executable


def changed_files(root: Path, manifest: Manifest) -> list[str]:
    """The files that differ from the plan, by their names in the project."""
    return [entry.source for entry in manifest.entries if _differs(root, entry)]


def _differs(root: Path, entry: Entry) -> bool:
    *above, name = entry.source.split("/")
    try:
        with sent_files.open_folder(root, *above) as parent:
            if entry.link is not None:
                return os.readlink(name, dir_fd=parent) != entry.link
            with sent_files.open_file(parent, name) as file:
                if not _is_planned(os.fstat(file.fileno()), entry):
                    return True
                return sent_files.summed(file)[1] != entry.sha256
    except OSError:
        return True


def named(files: list[str]) -> str:
    """The first few by name, and how many more there are."""
    return and_more((f"`{name}`" for name in files), MOST_NAMED)


def _changed(files: list[str]) -> PermanentError:
    summary = f"{named(files)} changed since it was planned"
    return PermanentError(PermanentKind.CONFLICT, summary, about="files", hint=AGAIN)
