"""What is too large for a plan: a stranger's few lines must not eat the machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from declarative.diagnostic import Diagnostic
from declarative.plan.launchable import allowed_backends, fleet_offers
from declarative.plan.types import Inventory
from declarative.resource import Desired
from declarative.state import State

MOST_PLACES = 100_000
"""Ranks to place and nodes to place them on, together."""

MOST_ENTRIES = 5_000_000
MOST_TEXT = 1 << 27
"""Of environment, tags and commands, for all nodes and ranks together; text in characters."""

MOST_OFFERED = 500_000
"""Offers that are held against the limits of fleets: each fleet looks at each offer of its backends."""

MOST_SIZES = 20_000_000
"""Sizes of tasks times the offers that fleets may launch."""


def too_large(desired: Desired, recorded: State, inventory: Inventory) -> Diagnostic | None:
    """The refusal of what would take minutes to plan; None if it can be planned."""
    return (
        _too_many_places(desired, recorded) or _too_much_text(desired) or _too_many_offers(desired, inventory)
    )


def _too_many_places(desired: Desired, recorded: State) -> Diagnostic | None:
    """The refusal of too many ranks and nodes."""
    ranks = sum(want.spec.nodes for want in desired.tasks.values())
    nodes = sum(fleet.nodes.target for fleet in desired.fleets.values() if fleet.nodes)
    nodes += sum(len(fleet.ssh_config.hosts) for fleet in desired.fleets.values() if fleet.ssh_config)
    places = ranks + nodes + len(recorded.of("node"))
    if places <= MOST_PLACES:
        return None
    return Diagnostic(
        code="too-large",
        summary=f"{len(desired.tasks)} tasks with {ranks} ranks, and {nodes} nodes, are too many for a plan",
        hint=f"split the project: a plan places {MOST_PLACES} ranks and nodes at most",
    )


def _too_much_text(desired: Desired) -> Diagnostic | None:
    """The same for what each node and each rank is told: it is in the plan as often as there are of them."""
    texts = [(f.nodes.target, *_size(f.env, f.tags)) for f in desired.fleets.values() if f.nodes]
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
    """How many entries these are, and of how many characters."""
    texts = [*(text for pair in (*env, *tags.items()) for text in pair), *commands]
    return len(texts), sum(map(len, texts))


def _too_many_offers(desired: Desired, inventory: Inventory) -> Diagnostic | None:
    """The same for offers: a catalog is declared in a few lines, and multiplied by regions and fleets."""
    offers = {name: len(found) for name, found in inventory.offers.items()}
    fleets = desired.fleets.values()
    offered = sum(offers.get(b, 0) for fleet in fleets for b in allowed_backends(desired, fleet))
    if offered > MOST_OFFERED:
        return Diagnostic(
            code="too-large",
            summary=f"{len(desired.fleets)} fleets with {offered} offers to look at are too many for a plan",
            hint="name `backends` in each fleet, fewer regions, or fewer entries of a `catalog`: "
            f"a plan looks at {MOST_OFFERED} at most",
        )
    sizes = len({(want.spec.resources, want.spec.whole_nodes) for want in desired.tasks.values()})
    if sizes * offered <= MOST_SIZES:
        return None
    within = sum(len(fleet_offers(desired, fleet, inventory)[0]) for fleet in fleets)
    if sizes * within <= MOST_SIZES:
        return None
    return Diagnostic(
        code="too-large",
        summary=f"tasks of {sizes} sizes and {within} offers to launch are too many for a plan",
        hint="narrow the fleets (`instance_types`, `regions`), or let more tasks ask for the same",
    )
