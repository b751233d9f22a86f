"""The prices that libcloud ships: some are of GPUs long gone, some are 0 where they are unknown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache(maxsize=1)
def _bundle() -> tuple[Mapping[str, Any], str | None]:
    from libcloud.pricing import get_pricing_file_path

    try:
        found = json.loads(Path(get_pricing_file_path()).read_text(encoding="utf-8"))
        return found["compute"], datetime.fromtimestamp(found["updated"], UTC).date().isoformat()
    except (OSError, KeyError, TypeError, ValueError):
        return {}, None  # what has no price is all the same


def prices(name: str) -> Mapping[str, Any]:
    """A table of it: what it has depends on the driver. Empty if there is none."""
    found = _bundle()[0].get(name)
    return found if isinstance(found, dict) else {}


def day() -> str | None:
    """The day that they are of: `2025-03-02`."""
    return _bundle()[1]
