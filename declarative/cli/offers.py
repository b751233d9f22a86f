"""`fleetform offers`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from declarative.cli import completion
from declarative.cli.options import examples, json_option, no_pager_option, offline_option, project_command
from declarative.cli.output import emit, out_style, say, show_paged
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import failed, has_errors

if TYPE_CHECKING:
    from declarative.model.resource import Desired
    from declarative.model.spec import Fleet

F = TypeVar("F", bound=Callable[..., Any])


class Amount(click.ParamType[Any]):
    """A value as a field of `resources` has it."""

    def __init__(self, field: str) -> None:
        self.field = field
        self.name = field

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from declarative.model.schema import BadValueError
        from declarative.model.spec.values import Cpu, Disk, Gpu, Memory

        kinds: dict[str, Any] = {"cpu": Cpu, "memory": Memory, "disk": Disk, "gpu": Gpu}
        try:
            return kinds[self.field].parse(str(value))
        except BadValueError as error:
            self.fail("; ".join(filter(None, (error.summary, error.hint))), param, ctx)


def _amount(field: str, metavar: str, text: str) -> Callable[[F], F]:
    return click.option(f"--{field}", metavar=metavar, type=Amount(field), help=text)


@click.command(
    "offers",
    epilog=examples(
        "fleetform offers --gpu H100:8",
        "fleetform offers fleet/gpu --max-price 10",
        "fleetform offers --cpu 8.. --region us-east-1 --on-demand --json",
    ),
)
@click.argument("fleet", metavar="[FLEET]", required=False, shell_complete=completion.fleets)
@_amount("gpu", "GPUS", "As in `resources`: `1`, `H100:8`, `A100:80GB:1..4`.")
@_amount("cpu", "RANGE", "CPUs: `8..` is 8 or more, `8` exactly 8.")
@_amount("memory", "RANGE", "`64GB..` is so much or more.")
@_amount("disk", "RANGE", "As memory: `100GB..`.")
@click.option(
    "--backend", "backends", metavar="NAME", multiple=True, help="Of this backend; may be repeated."
)
@click.option("--region", "regions", metavar="NAME", multiple=True, help="In this region; may be repeated.")
@click.option(
    "--instance-type", "types", metavar="NAME", multiple=True, help="Of this type; may be repeated."
)
@click.option("--spot/--on-demand", default=None, help="Spot alone, or on demand alone; default: both.")
@click.option(
    "--max-price", metavar="USD", type=click.FloatRange(min=0, min_open=True), help="At most so much an hour."
)
@click.option("--all", "everything", is_flag=True, help="Print all, not the cheapest 30.")
@offline_option
@no_pager_option("table")
@json_option
@project_command
def offers_command(
    session: ProjectSession,
    *,
    fleet: str | None,
    everything: bool,
    offline: bool,
    no_pager: bool,
    as_json: bool,
    backends: tuple[str, ...],
    regions: tuple[str, ...],
    types: tuple[str, ...],
    **asked: Any,
) -> int:
    """List what the project's backends could launch, cheapest first; of a FLEET, what it may launch.

    Makes and keeps nothing, and reads no state. An unknown price comes last, shown as `?`. Only a request for
    a node shows whether there is capacity. Exits 0, also if no offer matches, and 1 on errors.

    With --json: format_version, total (how many were looked at), offers (backend, region, zone,
    instance_type, resources, spot, price, priced_on, limit; one for each zone) and diagnostics.
    """
    from declarative.apply.offers import Answers, ask_offers, known_offers, own_gpus
    from declarative.apply.parallel import ask_backends
    from declarative.model.diagnostic import in_order
    from declarative.model.spec.values import Resources
    from declarative.model.state import State
    from declarative.planner.inventory import Inventory
    from declarative.planner.offers import OfferQuery, backends_of, is_local, matching_offers
    from declarative.render.listings import offers_json, offers_text

    desired = session.load().desired
    declared_fleet = _fleet(desired, fleet)
    _check_backends(desired, backends)
    spot, max_price = asked.pop("spot"), asked.pop("max_price")
    request = OfferQuery(
        resources=Resources(**asked),
        backends=backends,
        regions=regions,
        instance_types=types,
        spot=spot,
        max_price=max_price,
    )
    names = backends_of(desired, declared_fleet, request)
    if declared_fleet is not None and not names:
        uses = ", ".join(backends_of(desired, declared_fleet, OfferQuery()))
        raise failed("usage", f"fleet/{declared_fleet.name} does not use that backend", f"it uses {uses}")
    clients, answers = session.backends(desired, State()), Answers()
    ask_backends(names, lambda name: ask_offers(name, clients, answers, offline=offline))
    offers, faults = known_offers(clients, names, answers)
    here = not offline and any(is_local(desired, name) for name in names)
    inventory = Inventory(
        offers=offers, own_gpus=own_gpus(clients) if here else None, diagnostics=tuple(faults)
    )
    matching = matching_offers(desired, declared_fleet, request, inventory)
    diagnostics = in_order((*session.warnings, *faults, *matching.diagnostics))
    if as_json:
        emit(offers_json(matching, diagnostics))
    else:
        say(diagnostics)
        text = offers_text(matching, everything=everything, color=out_style()["color"])
        show_paged(text, paged=not no_pager)
    return 1 if has_errors(diagnostics) else 0


def _check_backends(desired: Desired, backends: Iterable[str]) -> None:
    """`InvalidError` unless each of them is declared, and launches something."""
    from declarative.model.resource import EXISTING, LOCAL
    from declarative.model.text import suggest

    for name in backends:
        declared = desired.backends.get(name)
        if declared is None and name != LOCAL:
            known = sorted({LOCAL, *desired.backends})
            hint = suggest(name, known) or f"there are {', '.join(known)}"
            raise failed("unknown-address", f"the project has no backend `{name}`", hint)
        if declared is not None and declared.provider in EXISTING:
            raise failed("usage", f"backend {name} launches nothing: its nodes are there", "leave it out")


def _fleet(desired: Desired, name: str | None) -> Fleet | None:
    """The fleet that is asked about: `gpu`, or `fleet/gpu`."""
    from declarative.model.text import suggest

    if name is None:
        return None
    fleet_name = name.removeprefix("fleet/")
    fleet = desired.fleets.get(fleet_name)
    if fleet is None:
        known = [f"fleet/{n}" for n in desired.fleets]
        hint = suggest(f"fleet/{fleet_name}", known) or "`fleetform offers` lists what all backends have"
        raise failed("unknown-address", f"the project has no fleet `{fleet_name}`", hint)
    if fleet.exists:
        hint = "`fleetform status --refresh` shows how they are"
        summary = f"fleet/{fleet_name} launches nothing: its nodes are machines that are there"
        raise failed("usage", summary, hint)
    return fleet
