"""The whole command: thousands of task documents, planned from nothing with `fleetform plan --offline`."""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.placement.jobs import DOMAINS, PRICES, WHOLE, fleet_of
from benchmarks.table import Figure, run


def documents(count: int, pool: Sequence[int]) -> Iterator[str]:
    """Backends with a catalog, a fleet in each region, and `count` tasks of sizes from the trace."""
    chance = random.Random(0)
    catalog = "".join(
        f"- {{instance_type: {k.name}, cpu: {8 * k.gpus}, memory: {64 * k.gpus}GB, gpu: {k.gpus}, "
        f"price: {k.price}, spot_price: {k.price * 0.4:.3f}, limit: {count // 20}}}\n"
        for k in PRICES["linear"]
    )
    for backend in dict.fromkeys(backend for backend, _ in DOMAINS):
        regions = ", ".join(region for name, region in DOMAINS if name == backend)
        yield f"type: backend\nname: {backend}\ndriver: local\nregions: [{regions}]\ncatalog:\n{catalog}"
    for domain in DOMAINS:
        yield (
            f"type: fleet\nname: {fleet_of(domain)}\nbackends: [{domain[0]}]\nregions: [{domain[1]}]\n"
            "nodes: 0..\nplacement: cluster\nblocks: auto\nspot_policy: auto\nresources: {gpu: 1..}\n"
        )
    for i in range(count):
        gpus = min(chance.choice(pool), 8 * WHOLE)
        nodes = f"nodes: {gpus // WHOLE}\n" if gpus > WHOLE else ""
        spot = chance.choice(("auto", "on-demand"))
        yield (
            f"type: task\nname: job-{i}\n{nodes}spot_policy: {spot}\nresources: {{gpu: {min(gpus, WHOLE)}}}\n"
            'commands: ["python train.py"]\n'
        )


def measure(count: int, pool: Sequence[int]) -> Figure:
    """One run in an empty folder, of this repository's code."""
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    with tempfile.TemporaryDirectory() as name:
        text = "---\n".join(documents(count, pool))
        (Path(name) / "fleet.yaml").write_text(text, encoding="utf-8")
        return run([sys.executable, "-m", "declarative", "plan", "--offline"], Path(name))
