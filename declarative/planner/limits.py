"""The limits of a plan: the project's `limits`, and the work that planning may take.

A plan that exceeds a limit of the project gets an error at the line of the limit. The work is limited since a
stranger's few lines of YAML must not use up the machine.

Existing things may exceed a limit that was set later: a plan that does not add to them has no error. An
unknown price is never taken for 0.

The work is counted from the declaration, before anything is planned: a project has the same work on every
machine. A unit stands for about 1 KiB of a plan, and 40 microseconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from declarative.model.diagnostic import Diagnostic, Severity, in_order
from declarative.model.inputs import ReservationInputs
from declarative.model.resource import Desired, shaped
from declarative.model.spec.project import HOURS_A_MONTH
from declarative.model.state import State, natural
from declarative.model.text import and_more
from declarative.planner.fallbacks import affordable
from declarative.planner.hosts import declared_hosts
from declarative.planner.inventory import Inventory
from declarative.planner.offers import allowed_backends, fleet_offers
from declarative.planner.plan import (
    ROUNDING,
    Action,
    Op,
    Plan,
    finding,
    fleet_shares,
    largest_shares,
    total_price,
)

MOST_NAMED = 5


def with_limit_errors(plan: Plan, desired: Desired) -> Plan:
    """The plan, with an error for each limit that it breaks, and without fallbacks that would break one."""
    errors = [*_beyond_limits(plan, desired), *_guarded(plan, desired)]
    limits, spent = desired.project.limits, plan.preview.cost.spent
    hourly = [limits.hourly[1]] if limits.hourly is not None else []
    if limits.cost_per_month is not None and spent is not None and spent.hours < HOURS_A_MONTH:
        hourly.append((limits.cost_per_month - spent.dollars) / (HOURS_A_MONTH - spent.hours))
    if hourly and plan.preview.fallbacks:
        room = min(hourly) - _cost_after(plan)[0] + ROUNDING
        plan = replace(plan, preview=replace(plan.preview, fallbacks=affordable(plan, room)))
    return replace(plan, diagnostics=in_order((*plan.diagnostics, *errors))) if errors else plan


def over_limit(plan: Plan, desired: Desired) -> Diagnostic | None:
    """The error of the first limit of cost or nodes that the plan exceeds."""
    return next((d for d in _beyond_limits(plan, desired) if d.severity is Severity.ERROR), None)


def _beyond_limits(plan: Plan, desired: Desired) -> Iterator[Diagnostic]:
    yield from _cost(plan, desired)
    yield from _spent(plan, desired)
    yield from _nodes(plan, desired)


def _cost(plan: Plan, desired: Desired) -> Iterator[Diagnostic]:
    limit = desired.project.limits.hourly
    if limit is None:
        return
    name, most = limit
    after, unknown = _cost_after(plan)
    if after > most + ROUNDING:
        factor, unit = (HOURS_A_MONTH, "USD a month") if name == "cost_per_month" else (1, "USD/h")
        cost = f"{'at least ' if unknown else ''}{after * factor:,.2f} {unit}"
        summary = f"all nodes would cost {cost}; the limit is {most * factor:,.2f}"
        hint = f"declare less, or raise `limits.{name}`"
        most_of_it = largest_shares((n for n in plan.preview.nodes if n.stays), factor)
        # Nodes are made or held, and all of them cost more than before.
        before = plan.preview.cost.before
        grows = bool(adding_actions(plan)) and (before is None or after > before + ROUNDING)
        yield _beyond(desired, name, summary, hint, most_of_it, error=grows)
    elif unknown:  # nobody can tell whether the limit is kept
        named = and_more(sorted(unknown, key=natural), MOST_NAMED)
        summary = f"nobody knows the price of {named}, so the cost may be above `limits.{name}`"
        hint = "write the prices into the backend's catalog, or use offers whose prices are known"
        typed = ((a.address, a.typed) for a in adding_actions(plan))
        added = {f"node/{t.node}" if isinstance(t, ReservationInputs) else str(at) for at, t in typed}
        yield _beyond(desired, name, summary, hint, error=not added.isdisjoint(unknown))


def _cost_after(plan: Plan) -> tuple[float, list[str]]:
    """The cost of all nodes with a known price, USD an hour, and the names of the others (`node/gpu-0`)."""
    staying = [n for n in plan.preview.nodes if n.stays]
    known = (n.cost for n in staying if n.cost is not None)
    return total_price(known) or 0.0, [f"node/{n.name}" for n in staying if n.cost is None]


def adding_actions(plan: Plan) -> list[Action]:
    """The actions that make nodes, or hold more of a partition's nodes."""
    shared = {n.name for n in plan.preview.nodes if n.shared}
    reservations = plan.of(Op.CREATE, "reservation") if shared else ()
    return [
        *plan.of(Op.CREATE, "node"),
        *(a for a in reservations if isinstance(a.typed, ReservationInputs) and a.typed.node in shared),
    ]


def _spent(plan: Plan, desired: Desired) -> Iterator[Diagnostic]:
    """An error if this month's spending, with the cost of all nodes for the rest of its 730 hours, exceeds
    the limit; then nothing is launched. It names no sum, so that a loop repeats the same message, shown once.
    """
    most, spent = desired.project.limits.cost_per_month, plan.preview.cost.spent
    if most is None or spent is None:
        return
    hourly, _ = _cost_after(plan)
    hours_left = max(0.0, HOURS_A_MONTH - spent.hours)
    if spent.dollars + hourly * hours_left <= most + ROUNDING * HOURS_A_MONTH:
        return
    summary = f"what was spent in {spent.month}, and what all nodes would cost in the rest of it, is above "
    summary += f"the limit of {most:,.2f} USD"
    hint = "wait for the next month, declare less, or raise `limits.cost_per_month`; `fleetform status` says "
    hint += "what was spent"
    error = bool(adding_actions(plan))
    most_of_it = largest_shares((n for n in plan.preview.nodes if n.stays), HOURS_A_MONTH)
    yield _beyond(desired, "cost_per_month", summary, hint, most_of_it, error=error)


def _nodes(plan: Plan, desired: Desired) -> Iterator[Diagnostic]:
    most = desired.project.limits.nodes
    after = sum(n.stays for n in plan.preview.nodes)
    if most is None or after <= most:
        return
    before = after - len(plan.of(Op.CREATE, "node")) + len(plan.of(Op.DELETE, "node"))
    summary = f"there would be {after} nodes; the limit is {most}"
    fleets = sorted(fleet_shares(n for n in plan.preview.nodes if n.stays), key=lambda s: (-s.nodes, s.fleet))
    most_of_them = and_more((f"fleet/{fleet.fleet} {fleet.nodes}" for fleet in fleets), MOST_NAMED)
    hint = "declare less, or raise `limits.nodes`"
    yield _beyond(desired, "nodes", summary, hint, most_of_them, error=after > before)


def _guarded(plan: Plan, desired: Desired) -> Iterator[Diagnostic]:
    """Errors for things that would be deleted or replaced although `limits.protected` names them."""
    known = {d.address for d in plan.diagnostics if d.code == "protected"}
    remade = {a.address for a in plan.actions if a.op is Op.CREATE}
    for action in plan.actions:
        address = str(action.address)
        if action.op is not Op.DELETE or action.forgets or address in known:
            continue
        pattern = desired.guard(address, action.typed)
        if pattern is None:
            continue
        what = "replaced" if action.address in remade else "deleted"
        place = f"limits.protected.{desired.project.limits.protected.index(pattern)}"
        summary = f"{address} would be {what}, and the project's `limits.protected` has `{pattern}`"
        hint = "undo the change; or take the entry out of `limits.protected`, apply, and plan again"
        yield finding(desired, address, "protected", summary, hint, place=place)


def _beyond(
    desired: Desired, name: str, summary: str, hint: str, most_of_it: str = "", *, error: bool
) -> Diagnostic:
    """The finding; `most_of_it` names what costs most."""
    beyond = summary if error else f"{summary}; this plan does not add to it"
    return Diagnostic(
        code="over-limit",
        summary=f"{beyond}: {most_of_it}" if most_of_it else beyond,
        hint=hint,
        span=desired.places.get(f"limits.{name}"),
        severity=Severity.ERROR if error else Severity.WARNING,
    )


MOST_PLACES = 200_000
"""The most ranks and nodes of a plan, together."""

MOST_ENTRIES = 5_000_000
MOST_TEXT = 1 << 27
"""The most entries and characters of environment, tags and commands, of all nodes and ranks together."""

MOST_OFFERED = 500_000
"""Offers that are compared with the limits of fleets: each fleet looks at each offer of its backends."""

MOST_SIZES = 20_000_000
"""Sizes of tasks times the offers that fleets may launch."""


OFFLINE_WORK = 250_000
"""The work that a plan of strangers' YAML may take: 10 CPU seconds and 300 MB."""

NODE, RANK, VOLUME, MOUNT, RECORD = 7, 22, 5, 8, 10
"""Units for one of each. A rank's units include the node that it may launch."""
ALTERNATIVES, BLOCKS, ENTRIES, CHARACTERS = 2, 3, 4, 250
"""How many make one unit: volumes that a mount chooses from, blocks of a rank, entries and characters of
environment, tags and commands.
"""
PINNED = 35
"""How many make one unit: nodes that fleets launch anyway, each of which a pin may mean."""
OFFERED, TRIED = 2, 2
"""Units for each offer that a fleet looks at, and for each network that a task on several nodes tries."""


def too_large(
    desired: Desired, recorded: State, inventory: Inventory, most: int | None = None
) -> Diagnostic | None:
    """The refusal of a project that takes minutes to plan, or more than `most` units of work; else None."""
    refusal = (
        _too_many_places(desired, recorded) or _too_much_text(desired) or _too_many_offers(desired, inventory)
    )
    if refusal or most is None:
        return refusal
    units_by_address = planned_work(desired, recorded, inventory)
    total = units_by_address.total()
    if total <= most:
        return None
    # At the document that costs most of it.
    address, units = max(units_by_address.items(), key=lambda item: (item[1], item[0]))
    span = desired.places.get(address) or desired.places.get(f"{address}-0")
    return Diagnostic(
        code="too-large",
        summary=f"this is {total} units of work, and a plan may take {most}; "
        f"{address} costs most of them, {units}",
        hint=f"declare fewer nodes, ranks, volumes or offers, or allow it with `--max-work {total}`",
        address=address if span else None,
        span=span,
    )


def planned_work(desired: Desired, recorded: State, inventory: Inventory) -> Counter[str]:
    """The most work that a plan of this takes: units by the declared address."""
    out = _of_fleets(desired, inventory)
    for volume in desired.volumes.values():
        out[volume.declared_by] += math.ceil(VOLUME + _text_units((), volume.inputs.tags))
    most_blocks = 1  # of a node
    for fleet in desired.fleets.values():
        offers = (o for b in allowed_backends(desired, fleet) for o in inventory.offers.get(b, ()))
        cpus = (shaped(offer, fleet.resources).shape.cpu for offer in offers)
        most_blocks = max(most_blocks, fleet.blocks.number or max(cpus, default=1))
    # Places that may hold all ranks of one task: one fleet in one region.
    regions = {name: len({o.region for o in offers}) for name, offers in inventory.offers.items()}
    fleets = desired.fleets.values()
    networks = sum(regions.get(b, 0) for fleet in fleets for b in allowed_backends(desired, fleet))
    target = sum(fleet.nodes.target for fleet in desired.fleets.values() if fleet.nodes)
    for name, want in desired.tasks.items():
        task = want.spec
        held = most_blocks
        if not task.whole_nodes and not task.resources.memory:
            # Each block has at least a CPU, and a GPU if the node has any.
            cpu, gpu = task.resources.cpu, task.resources.gpu
            held = min(held, max(1, cpu.min if cpu else 0, gpu.count.min if gpu else 0))
        rank = RANK + _text_units(task.env, task.tags, task.commands) + held / BLOCKS
        mounts = sum(MOUNT + len(mount.names) / ALTERNATIVES for mount in task.volumes)
        tries = networks * TRIED if task.nodes > 1 else 0
        pinned = len(task.instances) * target / PINNED
        out[f"task/{name}"] += math.ceil(task.nodes * (rank + mounts) + tries + pinned)
    out["state"] += RECORD * len(recorded.records)
    return +out


def _of_fleets(desired: Desired, inventory: Inventory) -> Counter[str]:
    """The work of fleets: nodes, offers, and the variables and tags of nodes that tasks may launch."""
    out: Counter[str] = Counter()
    units = {name: _text_units(fleet.env, fleet.tags) for name, fleet in desired.fleets.items()}
    launchable = sum(want.spec.nodes for want in desired.tasks.values())
    for name in sorted(units, key=lambda name: (-units[name], name)):
        fleet, address = desired.fleets[name], f"fleet/{name}"
        hosts = len(declared_hosts(fleet))
        target = fleet.nodes.target if fleet.nodes else hosts
        most = launchable if fleet.nodes is None or fleet.nodes.max is None else fleet.nodes.max - target
        more = min(launchable, most) if fleet.nodes else 0
        launchable -= more
        offered = sum(len(inventory.offers.get(b, ())) for b in allowed_backends(desired, fleet))
        own = sum(_text_units(host.env, {}) for host in fleet.ssh_config.hosts) if fleet.ssh_config else 0
        out[address] += math.ceil(
            own + target * (NODE + units[name]) + more * units[name] + OFFERED * offered
        )
    return out


def _text_units(
    env: Iterable[tuple[str, str]], tags: Mapping[str, str], commands: Iterable[str] = ()
) -> float:
    """The units for the variables, tags and commands of one node or rank."""
    entries, characters = _size(env, tags, commands)
    return entries / ENTRIES + characters / CHARACTERS


def _too_many_places(desired: Desired, recorded: State) -> Diagnostic | None:
    """The refusal of too many ranks and nodes."""
    ranks = sum(want.spec.nodes for want in desired.tasks.values())
    nodes = sum(fleet.nodes.target for fleet in desired.fleets.values() if fleet.nodes)
    nodes += sum(len(declared_hosts(fleet)) for fleet in desired.fleets.values())
    places = ranks + nodes + len(recorded.of("node"))
    if places <= MOST_PLACES:
        return None
    what = f"{len(desired.tasks)} tasks with {ranks} ranks, and {nodes} nodes, are"
    return _too_many(what, f"split the project: a plan places {MOST_PLACES} ranks and nodes at most")


def _too_many(what: str, hint: str) -> Diagnostic:
    return Diagnostic(code="too-large", summary=f"{what} too many for a plan", hint=hint)


def _too_much_text(desired: Desired) -> Diagnostic | None:
    """The refusal of too many variables, tags and commands: the plan repeats them for each node and rank."""
    texts = [(f.nodes.target, *_size(f.env, f.tags)) for f in desired.fleets.values() if f.nodes]
    configs = [f.ssh_config for f in desired.fleets.values() if f.ssh_config]
    texts += [(1, *_size(host.env, {})) for config in configs for host in config.hosts]
    tasks = (want.spec for want in desired.tasks.values())
    texts += [(task.nodes, *_size(task.env, task.tags, task.commands)) for task in tasks]
    entries, characters = (sum(item[0] * item[i] for item in texts) for i in (1, 2))
    if entries <= MOST_ENTRIES and characters <= MOST_TEXT:
        return None
    summary = (
        f"what nodes and ranks are told comes to {entries} entries with {characters} characters: too much"
    )
    hint = f"let `env`, `tags` and `commands` be shorter: {MOST_ENTRIES} entries, {MOST_TEXT} characters"
    return Diagnostic(code="too-large", summary=summary, hint=f"{hint} are the most of a plan")


def _size(
    env: Iterable[tuple[str, str]], tags: Mapping[str, str], commands: Iterable[str] = ()
) -> tuple[int, int]:
    """The number of entries, and of characters."""
    texts = [*(text for pair in (*env, *tags.items()) for text in pair), *commands]
    return len(texts), sum(map(len, texts))


def _too_many_offers(desired: Desired, inventory: Inventory) -> Diagnostic | None:
    """The refusal of too many offers: a catalog takes a few lines, and regions and fleets multiply it."""
    offers = {name: len(reported) for name, reported in inventory.offers.items()}
    fleets = desired.fleets.values()
    offered = sum(offers.get(b, 0) for fleet in fleets for b in allowed_backends(desired, fleet))
    if offered > MOST_OFFERED:
        hint = "name `backends` in each fleet, fewer regions, or fewer entries of a `catalog`: "
        hint += f"a plan looks at {MOST_OFFERED} at most"
        return _too_many(f"{len(desired.fleets)} fleets with {offered} offers to look at are", hint)
    sizes = len({(want.spec.resources, want.spec.whole_nodes) for want in desired.tasks.values()})
    if sizes * offered <= MOST_SIZES:
        return None
    within = sum(len(fleet_offers(desired, fleet, inventory)[0]) for fleet in fleets)
    if sizes * within <= MOST_SIZES:
        return None
    hint = "narrow the fleets (`instance_types`, `regions`), or let more tasks ask for the same"
    return _too_many(f"tasks of {sizes} sizes and {within} offers to launch are", hint)
