"""The options that `plan`, `apply` and `explain` share, and what their values have to be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from declarative.cli import complete
from declarative.cli.failure import failed

if TYPE_CHECKING:
    from declarative.resource import Desired
    from declarative.state import State

replace_option = click.option(
    "--replace",
    "requested",
    metavar="ADDRESS",
    multiple=True,
    shell_complete=complete.replaceable,
    help="Although nothing changed, run `task/NAME` again, or make `node/NAME` anew with all tasks on it, or "
    "`volume/NAME`, which is empty then.",
)
reuse_option = click.option(
    "--reuse",
    is_flag=True,
    help="Launch nothing for tasks, as if each had `creation_policy: reuse`.",
)

work_option = click.option(
    "--max-work",
    metavar="N",
    type=click.IntRange(min=1),
    help="Refuse a plan of more units of work, each about 1 KiB and 40 microseconds; `plan --offline` and "
    "`explain --offline` take 250000 unless told.",
)


def check_requested(requested: Iterable[str], desired: Desired, state: State | None = None) -> None:
    """`--replace` names declared tasks and volumes, and nodes that a declared fleet launched; what is to be
    made anew is in the `state`.
    """
    from declarative.diagnostic import suggest

    known = [f"task/{name}" for name in desired.tasks]
    nodes = [r for r in (state.of("node") if state else ()) if r.node.fleet in desired.fleets]
    known += [str(r.address) for r in nodes if not r.node.host]
    hosts = {str(r.address): r.address.name for r in nodes if r.node.host}
    known += [f"volume/{name}" for name in desired.volumes if state is None or state.get("volume", name)]
    for address in requested:
        node = address.startswith("node/")
        if address in known or (node and state is None):
            continue
        if address in hosts:
            name = hosts[address]
            hint = f"`fleetform drain {name}`, repair it, then `fleetform undrain {name}`"
            raise failed("usage", f"`{address}` is a host that exists: it cannot be made anew", hint)
        near = suggest(address, known)
        hint = near or "write `task/NAME` or `volume/NAME` as it is declared, or `node/NAME` of a node"
        kind = address.partition("/")[0]
        what = {"node": "launched node", "volume": "recorded volume"}.get(kind, "task")
        raise failed("unknown-address", f"`{address}` is not a {what} of this project", hint)


def allowed_work(asked: int | None, *, offline: bool) -> int | None:
    """The units that a plan may take. Offline it may be a stranger's."""
    from declarative.plan.work_limit import OFFLINE_WORK

    return OFFLINE_WORK if asked is None and offline else asked
