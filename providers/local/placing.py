"""A task's files in the folder of one attempt."""

from __future__ import annotations

import errno
import shutil
import tarfile
import tempfile
from pathlib import Path

from declarative.provider import Bundle, Source

PIECE = 1 << 20


def place(folder: Path, files: Bundle) -> None:
    """Make the attempt's folder with its files, whole or not at all; nothing where it is there already."""
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=".new.", dir=folder.parent))
    try:
        inner = new / "files"  # a folder of the usual mode: the other one is for nobody else
        inner.mkdir()
        with files.open() as archive:
            _unpack(archive.source, inner)
        try:
            inner.rename(folder)
        except OSError as error:
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:  # else somebody was faster
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _unpack(source: Source, folder: Path) -> None:
    """Our own archive: it holds nothing that would have to be feared."""
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
                shutil.copyfileobj(content, file, PIECE)
            if member.mode & 0o100:
                path.chmod(path.stat().st_mode | 0o111)
