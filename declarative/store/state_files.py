"""Whole states in files of the project, as `state pull` prints them: kept before they are changed.

Those of an apply are named by its time and the state's serial, and the last few of them stay; what was kept
before a change by hand stays for ever.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from declarative.store.backup import put

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
    own = [f for f, found in there if found and name.name.startswith(f"apply-{found[1]}-")]
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
    found = sorted(folder.glob("*.json*"), key=_age) if folder.is_dir() else []
    return [FOLDER / file.name for file in reversed(found) if not file.name.startswith("state-format-")]


def _age(file: Path) -> tuple[float, str]:
    return file.stat().st_mtime, file.name
