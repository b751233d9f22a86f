"""Plans worlds with the code of the checkout where it runs: one JSON document a line in, one out.

    PYTHONPATH=CHECKOUT python -m benchmarks.worlds.worker

`CPU seconds` are those of the plan alone, its input built already.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.worlds.world import NOW, Words, build, without_claims
from declarative.planner.make import make_plan
from declarative.render.plan_document import plan_json


class Worker:
    """A process that plans worlds with the code of one checkout."""

    def __init__(self, checkout: Path) -> None:
        script = checkout / "benchmarks" / "worlds" / "worker.py"
        if not script.exists():
            raise SystemExit(f"{checkout} has no benchmarks/worlds/worker.py")
        self.knows_claims = "backfill" in (checkout / "schemas" / "fleet.schema.json").read_text("utf-8")
        self.process = subprocess.Popen(
            [sys.executable, script], cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def plan(self, plain: Words) -> tuple[Words, float]:
        """The plan of a world as JSON, and the CPU seconds that it took."""
        assert self.process.stdin
        assert self.process.stdout
        known = plain if self.knows_claims else without_claims(plain)
        print(json.dumps(known), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        return answer["plan"], answer["cpu"]

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def main(lines: Sequence[str]) -> None:
    """Answer each line."""
    for line in lines:
        world = build(json.loads(line))
        start = time.process_time()
        plan = make_plan(world.desired, world.state, world.inventory, NOW)
        cpu = time.process_time() - start
        print(json.dumps({"plan": plan_json(plan), "cpu": cpu}), flush=True)


if __name__ == "__main__":
    main(sys.stdin)  # type: ignore[arg-type]
