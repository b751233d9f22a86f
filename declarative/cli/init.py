"""`fleetform init`."""

from __future__ import annotations

from pathlib import Path

import click

from declarative.cli.failure import failed
from declarative.cli.session import emit_text

FLEET = """\
# Two nodes on this machine, each split into as many equal blocks as it has CPUs.
type: fleet
name: pair
nodes: 2
placement: cluster
blocks: auto
resources:
  cpu: 2..
  memory: 1GB..
"""

TASK = """\
# One volume for each rank; they outlive the nodes and are protected from being destroyed.
type: volume
name: data
count: 2
size: 1GB
---
# Two ranks, one on each node, each with the volume of its number.
type: task
name: hello
nodes: 2
volumes:
  - data-${{ node_rank }}:/data
creation_policy: reuse
commands:
  - echo "rank $FLEETFORM_NODE_RANK of $FLEETFORM_NODES_NUM, rank 0 is at $FLEETFORM_MASTER_NODE_IP"
  - date >> "$FLEETFORM_VOLUME_DATA/visits"
"""

FILES = {"fleet.yaml": FLEET, "task.yaml": TASK}
IGNORE = ".fleetform/"


@click.command("init")
@click.pass_context
def command(ctx: click.Context) -> int:
    """Write fleet.yaml and task.yaml for this machine, and keep .fleetform/ out of git.

    Does nothing where there are YAML files already.
    """
    directory = Path(ctx.obj["directory"])
    present = sorted(p.name for p in directory.iterdir() if p.suffix in (".yaml", ".yml"))
    if present:
        shown = ", ".join(present[:3])
        raise failed(
            "not-empty",
            f"there are YAML files already: {shown}",
            "run `fleetform plan`, or use an empty directory",
        )
    for name, text in FILES.items():
        (directory / name).write_text(text, encoding="utf-8")
    ignore = directory / ".gitignore"
    lines = ignore.read_text(encoding="utf-8").splitlines() if ignore.exists() else []
    if IGNORE not in lines:
        ignore.write_text("\n".join([*lines, IGNORE]) + "\n", encoding="utf-8")
    emit_text(f"Wrote {', '.join(FILES)} and .gitignore. Next: `fleetform plan`.\n")
    return 0
