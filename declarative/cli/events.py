"""`fleetform events`: what happened, from a cursor on."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

import click

from declarative.cli.errors import failed
from declarative.cli.options import examples, json_option
from declarative.cli.output import emit_text, out_style
from declarative.cli.session import Session, project_command

if TYPE_CHECKING:
    from declarative.model.resource import Desired
    from declarative.store.events import Event

SHOWN = 50
"""The last ones, without a cursor."""
POLL = 1.0
MOST_DIGITS = 18


@click.command(
    "events",
    epilog=examples(
        "fleetform events",
        "fleetform events --type 'rank.*' --type node.unreachable -f",
        "fleetform events --since 1042 --json",
    ),
)
@click.option(
    "--since",
    metavar="CURSOR",
    help="Those after this one: the `cursor` of the last that you have; 0 for all that are kept.",
)
@click.option(
    "--type",
    "types",
    metavar="PATTERN",
    multiple=True,
    help="Only these: `rank.failed`, `node.*`; `*` is a wildcard.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with those that come, until interrupted.")
@click.option(
    "--deliver",
    is_flag=True,
    help="Print none: tell the webhooks of `notify` what they were not told of, once, as for cron.",
)
@json_option
@partial(project_command, short_names=())  # `-f` follows
def events_command(  # noqa: PLR0917 (each is an option)
    session: Session, since: str | None, types: tuple[str, ...], follow: bool, deliver: bool, as_json: bool
) -> int:
    """Print what happened, oldest first: things made and deleted, states of nodes, ranks and tasks, and what
    users did.

    With --json each event is a line of JSON. Its `cursor` is what --since takes to go on behind it; its `id`
    never changes. Without --since the last 50 are printed.

    --deliver does what `fleetform reconcile` does by itself, and exits 1 if a webhook could not be told. One
    that is told for the first time gets what happens from then on.
    """
    if deliver:
        from declarative.cli.notify import deliver_once

        with session.state.write_anew(session.load().desired) as store:
            return 0 if deliver_once(session, store) else 1
    desired = session.declared(warn=not as_json)
    cursor = _start(session, desired, since)
    while True:
        with session.state.read_anew(desired) as store:
            found, lineage = store.events(cursor), store.lineage()
        wanted = [e for e in found if not types or any(fnmatchcase(e.type, p) for p in types)]
        if wanted:
            _print(wanted, lineage, as_json=as_json)
        if found:
            cursor = found[-1].id
        elif not follow:
            return 0
        else:
            time.sleep(POLL)


def _start(session: Session, desired: Desired | None, since: str | None) -> int:
    """The cursor to begin behind. It is said if events after it are gone."""
    with session.state.read_anew(desired) as store:
        first, last = store.event_bounds()
    if since is None:
        return max(0, last - SHOWN)
    if not since.isascii() or not since.isdigit() or len(since) > MOST_DIGITS:
        raise failed("usage", f"`{since}` is not a cursor", "take the `cursor` of an event, or 0 for all")
    cursor = int(since)
    if cursor > last:
        hint = "the state was restored from a backup, or it is another one: begin with `--since 0`"
        raise failed("usage", f"the last event is {last}, and the cursor {cursor} lies behind it", hint)
    if cursor and cursor + 1 < first:
        sys.stderr.write(f"warning: the events {cursor + 1} to {first - 1} are not kept any more\n")
    return cursor


def _print(events: Sequence[Event], lineage: str | None, *, as_json: bool) -> None:
    from declarative.render.data import to_line
    from declarative.render.listings import event_json, events_text

    if as_json:
        emit_text("".join(f"{to_line(event_json(event, lineage))}\n" for event in events))
    else:
        emit_text(events_text(events, color=out_style()["color"]))
