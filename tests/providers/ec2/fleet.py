"""Makes nodes with a volume each, as the tool would: every call is retried, with tokens that never change.

`python -m tests.providers.ec2.fleet PORT FOLDER LINEAGE JOBS WORKERS` makes them in a process that can be
killed; starting it again continues.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from declarative.model.state import Address, Record, token
from declarative.provider import PermanentError, PermanentKind
from declarative.retry import Policy, call
from tests.providers.ec2.run import REGION, provider
from tests.support.model import of_attachment, of_kind

ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
FULL = ZONES[1]
"""The zone that has no room."""
QUICK = Policy(deadline=300.0, first=0.02, longest=0.3)
ONCE = Policy(deadline=0.0)
"""Without lost requests, a transient fault is a fault of the code, so nothing is retried."""


class Fleet:
    """The nodes, volumes and attachments of one lineage."""

    def __init__(self, port: int, folder: Path, lineage: str, policy: Policy = ONCE) -> None:
        self.policy = policy
        self.provider = provider(port, folder, lineage, regions=(REGION,))
        self.lineage = lineage

    def create(self, kind: str, name: str, zone: str | None, *needs: Record, **inputs: Any) -> Record:
        """One thing: its record."""
        place = {"region": REGION, "zone": zone} if kind != "attachment" else {}
        record = Record(
            address=Address(kind, name), backend="aws", inputs=of_kind(kind, **{**place, **inputs})
        )
        made_of = token(self.lineage, record.address, 1, zone)
        held = {need.address: need for need in needs}
        outputs = call(
            lambda: self.provider.create(record.address, made_of, record.inputs, held), policy=self.policy
        )
        return replace(record, outputs=outputs)

    def pair(self, i: int) -> tuple[Record, Record, Record]:
        """A node in the first zone that has room, and a volume on it."""
        for zone in (*ZONES[i % 3 :], *ZONES[: i % 3]):
            try:
                node = self.create("node", f"gpu-{i}", zone, instance_type="t3.micro", fleet="gpu")
                break
            except PermanentError as error:
                assert (error.kind, error.about, zone) == (PermanentKind.NO_CAPACITY, FULL, FULL)  # noqa: PT017
        volume = self.create("volume", f"data-{i}", node.inputs["zone"], size="1GB")
        inputs = of_attachment(f"t-{i}", f"gpu-{i}", f"data-{i}")
        held = self.create("attachment", f"t-{i}.data-{i}", None, volume, node, **inputs)
        return node, volume, held

    def pairs(self, jobs: int, workers: int) -> list[tuple[Record, Record, Record]]:
        """Many, side by side."""
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(self.pair, range(jobs)))


if __name__ == "__main__":
    port, folder, lineage, jobs, workers = sys.argv[1:]
    Fleet(int(port), Path(folder), lineage, QUICK).pairs(int(jobs), int(workers))
