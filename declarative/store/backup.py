"""Keeping a state as it is, before all of it is changed at once (an apply, a migration, a push), in a file.

Files of the project hold whole states, as `state pull` prints them. Those of an apply are named by its time
and the state's serial, and the last few of them stay; what was kept before a change by hand stays for ever.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from declarative.store import schema
from declarative.store.errors import StateError

if TYPE_CHECKING:
    from declarative.store.sql import Connection


def keep(connection: Connection) -> Path:
    """Write what this transaction sees to a backup, in its present format. An older backup is never
    overwritten.

    Call it in the transaction that makes the change, before the change: nobody else writes in between.
    """
    # These two columns are in every format.
    row = connection.execute("SELECT format_version, serial FROM meta").one()
    return connection.database.backup(connection, f"{row.format_version}-{row.serial}")


def put(folder: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """A file of that name that only its owner can read, filled aside and whole when it has its name.

    Where there is one already, this one's name gets a number: nothing is overwritten.
    """
    make_folder(folder)
    _sweep(folder)
    handle, text = tempfile.mkstemp(prefix=f".{name}.", suffix=ASIDE, dir=folder)
    aside = Path(text)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # as long as this process lives, it is somebody's
        os.fchmod(handle, 0o600)
        fill(aside)
        os.fsync(handle)
        for number in itertools.count(1):
            target = folder / (name if number == 1 else f"{name}.{number}")
            with suppress(FileExistsError):
                os.link(aside, target)
                sync_folder(folder)
                return target
        raise AssertionError
    except OSError as error:
        # Without a backup there is no change.
        raise StateError(
            "backup",
            f"the state cannot be kept as it is before it is changed: {error.strerror}",
            f"make room, and let {folder} be written; nothing was changed",
        ) from error
    finally:
        os.close(handle)
        aside.unlink(missing_ok=True)


ASIDE = ".aside"


def _sweep(folder: Path) -> None:
    """Remove unfinished backups of killed processes."""
    for file in folder.glob(f".*{ASIDE}"):
        with suppress(OSError), file.open("rb") as unfinished:
            fcntl.flock(unfinished, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()
    for file in folder.glob(".state.db.backup-*"):  # earlier versions held no lock on theirs
        with suppress(OSError):
            if not file.name.endswith(ASIDE) and time.time() - file.stat().st_mtime > LONGEST:
                file.unlink()


LONGEST = 3600.0
"""Seconds that filling a backup takes at most."""


def write_rows(connection: Connection, path: Path) -> None:
    """All rows of all tables as they are, as JSON: for databases that are no file of their own."""
    there = [table for table in schema.TABLES if connection.database.columns(connection, table)]
    tables = {
        table: [row._asdict() for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2")]
        for table in there
    }
    path.write_text(json.dumps(tables, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def make_folder(folder: Path) -> None:
    """A folder that only its owner can look into, with those above it that are missing."""
    for part in (*reversed(folder.parents), folder):
        if not part.exists():
            with suppress(FileExistsError):
                part.mkdir(mode=0o700)
                part.chmod(0o700)


def sync_folder(folder: Path) -> None:
    """See that the names in a folder have reached the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


FOLDER = Path(".fleetform/backups")
KEPT = 10
"""Backups of applies that stay, of each state."""
_BY_APPLY = re.compile(r"apply-([0-9a-f]{1,8})-([0-9]+)-([0-9TZ]{16})\.json(\.[0-9]+)?")


def keep_pulled(project: Path, data: Mapping[str, Any]) -> Path:
    """Write it, never over an older one; where it is, seen from the project."""
    return _keep(project, f"state-{str(data['lineage'])[:8]}-{data['serial']}.json", data)


def keep_before(project: Path, data: Mapping[str, Any], at: str) -> Path:
    """The same before an apply at the time `at` (`20260131T120000Z`); older ones go."""
    name = _keep(project, f"apply-{str(data['lineage'])[:8]}-{data['serial']}-{at}.json", data)
    there = ((f, _BY_APPLY.fullmatch(f.name)) for f in (project / FOLDER).iterdir())
    own = [f for f, match in there if match and name.name.startswith(f"apply-{match[1]}-")]
    for old in sorted(own, key=_age)[:-KEPT]:
        old.unlink(missing_ok=True)
    return name


def _keep(project: Path, name: str, data: Mapping[str, Any]) -> Path:
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"

    def fill(path: Path) -> None:
        path.write_text(text, encoding="utf-8")

    return FOLDER / put(project / FOLDER, name, fill).name


def kept(project: Path) -> list[Path]:
    """All that were kept, the newest first, seen from the project."""
    folder = project / FOLDER
    files = sorted(folder.glob("*.json*"), key=_age) if folder.is_dir() else []
    return [FOLDER / file.name for file in reversed(files) if not file.name.startswith("state-format-")]


def _age(file: Path) -> tuple[float, str]:
    return file.stat().st_mtime, file.name
