"""The rehearsal cloud for tests: its process, its content, and the entry point of its provider."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

SITE = Path(__file__).with_name("site")
"""On PYTHONPATH, the provider `cumulus` is an installed one."""
PLUG = {"PYTHONPATH": str(SITE)}
"""The environment in which it is."""
REPOSITORY = Path(__file__).resolve().parents[3]


class RunningCloud:
    """A cloud's process; `file` outlives it."""

    def __init__(self, file: Path, *options: str) -> None:
        self.file = file
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.providers.cloud.server", file, *options],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        self.url = f"http://127.0.0.1:{self._process.stdout.readline().strip()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()

    def backend(self, **options: Any) -> dict[str, Any]:
        """The document that declares it."""
        return {
            "type": "backend",
            "name": "sky",
            "driver": "cumulus",
            "regions": ["sky-1"],
            "options": {"url": self.url, **options},
        }

    def control(self, **body: Any) -> dict[str, Any]:
        """Hold, release, latency, faults; what waits at the door."""
        request = urllib.request.Request(f"{self.url}/control", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What its own database says."""
        db = sqlite3.connect(f"file:{self.file}?mode=ro", uri=True)
        try:
            return db.execute(sql, values).fetchall()
        finally:
            db.close()

    def things(self) -> Counter[str]:
        """Address → how many of it there are."""
        rows = self.query("SELECT kind || '/' || name, count(*) FROM things WHERE gone IS NULL GROUP BY 1")
        return Counter(dict(rows))

    def made(self) -> Counter[str]:
        """Address → how many of it were ever made."""
        return Counter(dict(self.query("SELECT kind || '/' || name, count(*) FROM things GROUP BY 1")))

    def runs(self) -> Counter[str]:
        """Rank → how many attempts of it were ever begun."""
        return Counter(attempt.partition(".")[0] for (attempt,) in self.query("SELECT attempt FROM ranks"))
