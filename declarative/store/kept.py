"""A whole state in a file of the project, as `state pull` prints it: kept before what loses a part of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from declarative.store.backup import put

FOLDER = Path(".fleetform/backups")


def keep_pulled(project: Path, data: Mapping[str, Any]) -> Path:
    """Write it, never over an older one; where it is, seen from the project."""
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    name = f"state-{str(data['lineage'])[:8]}-{data['serial']}.json"

    def fill(path: Path) -> None:
        path.write_text(text, encoding="utf-8")

    return FOLDER / put(project / FOLDER, name, fill).name
