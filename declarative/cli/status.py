"""`fleetform status`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from declarative.cli.errors import failed
from declarative.cli.options import examples, json_option
from declarative.cli.output import emit, emit_text, out_style
from declarative.cli.session import Session, now, project_command

if TYPE_CHECKING:
    from declarative.model.state import Readiness, State
    from declarative.render.views import StatusView


@click.command("status", epilog=examples("fleetform status --json", "fleetform status --refresh"))
@json_option
@click.option("--offline", is_flag=True, help="Contact nothing: show what was last observed.")
@click.option(
    "--refresh", is_flag=True, help="Look at all hosts, also at those that are no nodes yet, and say when."
)
@project_command
def status_command(session: Session, as_json: bool, offline: bool, refresh: bool) -> int:
    """Show the fleets with their block map, the volumes and the tasks. Reads the backends, keeps nothing.

    With --refresh, declared hosts that are no nodes yet are looked at as well, as `plan` does, and it is said
    why they are none. With --json those that are not fit are warnings on stderr.
    """
    from declarative.render.data import status_json
    from declarative.render.status import status_text

    if offline and refresh:
        raise failed("usage", "`--offline` contacts nothing, `--refresh` everything", "leave one of them out")
    view = gather(session, offline=offline, refresh=refresh)
    if as_json:
        session.say(view.diagnostics)  # in the text they have a table
        emit(status_json(view))
    else:
        emit_text(status_text(view, **out_style()))
    return 0


def gather(session: Session, *, offline: bool, refresh: bool = False) -> StatusView:
    """What is recorded and declared, with what is observed now."""
    from declarative.apply.answers import HURRIED
    from declarative.apply.hosts import survey
    from declarative.apply.inventory import look
    from declarative.model.diagnostic import in_order, located
    from declarative.model.resource import Desired, LeftOut
    from declarative.planner.health import of_backends, of_hosts, of_nodes
    from declarative.planner.hosts import hosts_of
    from declarative.planner.launchable import Rehearsed, judged, may_rehearse, rehearsals
    from declarative.planner.observe import effective
    from declarative.render.views import host_view, status_view

    desired = session.declared(warn=True) or Desired()
    state = session.state.open(desired, offline=offline).read()
    backends = session.backends(desired, state)
    gpus = may_rehearse(desired, state)
    inventory = look(state, backends, offline=offline, offers=False, gpus=gpus, patience=HURRIED).inventory
    current = effective(state, inventory)
    nodes = state.of("node")
    there = [Rehearsed(r.node.fleet, r.node.backend, r.node.resources, r.address.name) for r in nodes]
    rehearsed = rehearsals(desired, there, inventory.own_gpus)
    lacking = {str(node.name): lacks for node, lacks in judged(desired, there, inventory.own_gpus)}
    noted = in_order(located((*inventory.diagnostics, *rehearsed), desired.places))
    session.say(noted)
    hosts = hosts_of(desired, state) if refresh else ()
    others = survey(hosts, state, backends, gone=inventory.gone, patience=HURRIED)
    view = status_view(desired, current, now=now() if refresh or offline else None)
    return replace(
        view,
        nodes=tuple(replace(node, rehearsal=lacking.get(node.name, False)) for node in view.nodes),
        health=(
            *of_nodes(readiness_of_nodes(current), inventory.silent, now()),
            *of_hosts(
                [LeftOut(host=host, reason=host_view(host, note).reason) for host, note in others if note]
            ),
            *of_backends(noted),
        ),
        hosts=tuple(host_view(host, note) for host, note in others),
        diagnostics=tuple(note for _, note in others if note),
    )


def readiness_of_nodes(state: State) -> list[tuple[str, Readiness]]:
    """How each recorded node was seen."""
    from declarative.model.state import NodeState, Readiness, readiness_of

    unknown = Readiness(state=NodeState.UNKNOWN)
    nodes = {r.address.name: r for r in state.of("node")}
    return [(name, readiness_of(node, state.readiness.get(name, unknown))) for name, node in nodes.items()]
