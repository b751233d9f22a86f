"""Texts that are compared with golden files: `FLEETFORM_ACCEPT=1` rewrites the files."""

from __future__ import annotations

import os
from pathlib import Path


def check_golden(path: Path, text: str) -> None:
    if os.environ.get("FLEETFORM_ACCEPT"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    wanted = path.read_text(encoding="utf-8") if path.exists() else ""
    assert text == wanted, "if it is meant: run this test again with FLEETFORM_ACCEPT=1"
