"""What is wrong with a plan, by the rules of docs/placement.md and with none of the planner's code.

It reads what `plan --json` prints, as any script does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.worlds.rules import (
    Facts,
    Here,
    Place,
    Space,
    apart,
    area,
    facts_of,
    mounts_of,
    need,
    one_maker,
    serves,
)
from benchmarks.worlds.world import Words, World

CENT = 1e-4


@dataclass
class Checked:
    """A plan beside the facts that it was made of."""

    facts: Facts
    plan: Words
    nodes: dict[str, Here] = field(default_factory=dict)
    """The nodes that are there, and those that the plan launches."""
    made: list[Here] = field(default_factory=list)
    ranks: dict[str, list[Words]] = field(default_factory=lambda: defaultdict(list))
    """Task without a place → where the plan puts its ranks."""
    faults: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    """The ranks that run, and that the plan does not leave where they are."""

    @property
    def cost(self) -> float:
        """What the launches cost; one of unknown price counts as `UNPRICED`."""
        return sum(here.space.price for here in self.made)

    @property
    def refused(self) -> set[str]:
        """The tasks that the plan leaves without a place."""
        return self.facts.wants.keys() - self.ranks.keys()


def checked(world: World, plan: Words) -> Checked:
    """What a plan does, and all that breaks a rule."""
    case = Checked(facts_of(world), plan)
    case.nodes = {here.name: here for here in case.facts.nodes}
    case.faults += _created(case)
    for entry in plan["reservations"]:
        if entry["task"] in case.facts.wants and entry["status"] != "released":
            case.ranks[entry["task"]].append(entry)
    for find in (_all_or_none, _seats, _blocks, _volumes, _limits):
        case.faults += find(case)
    case.moved += _moved(case, world)
    return case


def faults(world: World, plan: Words) -> list[str]:
    """All that breaks a rule."""
    case = checked(world, plan)
    return [*case.faults, *(f"{rank} runs, and does not stay there" for rank in case.moved)]


def _created(case: Checked) -> Iterator[str]:
    """What is made is what an offer gives, under a name of its own; nothing that is there goes."""
    for action in case.plan["actions"]:
        kind, _, name = action["address"].partition("/")
        if kind != "node":
            continue
        if action["op"] != "create":
            yield f"{action['id']}: nothing asked for that"
            continue
        if name in case.nodes:
            yield f"node/{name} is there already"
        node = action["after"]
        site = case.facts.sites[node["fleet"]]
        space = next((o.space for o in site.offers if _is_of(name, node, o.space)), None)
        if space is None:
            yield f"node/{name}: no offer of fleet/{node['fleet']} gives it"
            continue
        here = Here(name, space, frozenset())
        case.nodes[name] = here
        case.made.append(here)
    before, after = case.plan["cost"]["hourly_before"], case.plan["cost"]["hourly_after"]
    if before is None or any(here.space.unpriced for here in case.made):
        if after is not None:
            yield f"the cost is {after}, and the price of a node is unknown"
    elif after is None or abs(after - before - case.cost) > CENT:
        yield f"the cost goes from {before} to {after}, and what is made costs {case.cost:.4f}"


def _is_of(name: str, node: Words, space: Space) -> bool:
    """Whether a node that is made is one of these."""
    if space.host:
        return name == space.kind
    has = {"gpus": 0, **node["resources"]}
    shape = {key: value for key in has if (value := getattr(space.shape, key)) is not None}
    place = Place(node["backend"], node["region"], node.get("zone"))
    price = None if space.unpriced else space.price
    same_kind = (node["instance_type"], node.get("spot", False), node["blocks"]) == (
        space.kind,
        space.spot,
        space.total,
    )
    return same_kind and place == space.place and node.get("price") == price and has == shape


def _all_or_none(case: Checked) -> Iterator[str]:
    """A task has all its ranks, or none and one refusal."""
    refused = Counter(refusal["task"] for refusal in case.plan["unplaced"])
    for name, want in case.facts.wants.items():
        ranks = sorted(entry["rank"] for entry in case.ranks.get(name, ()))
        if refused[name] > 1 or (refused[name] and ranks):
            yield f"task/{name}: refused {refused[name]} times, and has ranks {ranks}"
        if not refused[name] and ranks != list(range(want.spec.nodes)):
            yield f"task/{name}: ranks {ranks} of {want.spec.nodes}, and no refusal"


def _seats(case: Checked) -> Iterator[str]:
    """Each rank may be where it is, and has the blocks that it needs there; siblings lie as they have to."""
    for name, entries in case.ranks.items():
        task = case.facts.wants[name].spec
        spaces: list[Space] = []
        for entry in entries:
            here = case.nodes.get(entry["node"])
            rank = f"rank/{name}-{entry['rank']} on node/{entry['node']}"
            if here is None:
                yield f"{rank}: there is no such node"
                continue
            spaces.append(here.space)
            wanted = need(task, case.facts.sites[here.space.fleet].fleet, here.space, here.name)
            if len(entry["blocks"]) != wanted:
                yield f"{rank}: has {len(entry['blocks'])} blocks, and {wanted or 'it may not go there'}"
            if task.whole_nodes and here.busy:
                yield f"{rank}: takes the whole node, which is not idle"
        fleets = {space.fleet: case.facts.sites[space.fleet].fleet for space in spaces}
        areas = {area(task, fleets[space.fleet], space) for space in spaces}
        if task.cluster and task.nodes > 1 and len(areas) > 1:
            yield f"task/{name}: a cluster in several places: {sorted(areas)}"
        nodes = [case.nodes[entry["node"]] for entry in entries if entry["node"] in case.nodes]
        if task.spread and len({apart(task, node.space, node.name) for node in nodes}) < len(nodes):
            yield f"task/{name}: two ranks share a {task.spread}"
        if one_maker(task) and len({space.maker for space in spaces} - {None}) > 1:
            yield f"task/{name}: GPUs of several makers"


def _blocks(case: Checked) -> Iterator[str]:
    """Blocks lie on their nodes, and nobody else holds them."""
    taken: dict[tuple[str, int], str] = {}
    for name, entries in case.ranks.items():
        for entry in entries:
            here = case.nodes.get(entry["node"])
            for block in entry["blocks"] if here else ():
                rank = f"rank/{name}-{entry['rank']}"
                if here and (not 0 <= block < here.space.total or block in here.busy):
                    yield f"{rank}: block {block} of node/{entry['node']} is not to be had"
                if (other := taken.setdefault((entry["node"], block), rank)) != rank:
                    yield f"{rank}: block {block} of node/{entry['node']} is {other}'s"
            if len(set(entry["blocks"])) != len(entry["blocks"]):
                yield f"rank/{name}-{entry['rank']}: has a block twice: {entry['blocks']}"


def _volumes(case: Checked) -> Iterator[str]:
    """Each mount has a volume of those that it names, near its node, for itself alone."""
    holders: dict[str, str] = {}
    for name, entries in case.ranks.items():
        for entry in entries:
            rank, here = f"rank/{name}-{entry['rank']}", case.nodes.get(entry["node"])
            mounts = mounts_of(case.facts.wants[name], entry["rank"])
            if sorted(entry["volumes"]) != sorted(mount.path for mount in mounts):
                yield f"{rank}: has mounts {sorted(entry['volumes'])}"
            for mount in mounts:
                volume = entry["volumes"].get(mount.path, "")
                at = case.facts.volumes.get(volume)
                if volume not in mount.names or at is None or not here or not serves(at, here.space.place):
                    yield f"{rank}: volume/{volume} at {mount.path} is not to be had on node/{entry['node']}"
                if (other := holders.setdefault(volume, f"{rank}:{mount.path}")) != f"{rank}:{mount.path}":
                    yield f"{rank}: volume/{volume} is {other}'s"


def _limits(case: Checked) -> Iterator[str]:
    """No more is made than offers and fleets allow, and a cluster fleet stays in one place."""
    for quota, count in Counter(here.space.quota for here in case.made).items():
        if count > case.facts.left[quota]:
            yield f"{count} more of {quota}, and {case.facts.left[quota]} are left"
    by_fleet: dict[str, list[Here]] = defaultdict(list)
    for here in case.made:
        by_fleet[here.space.fleet].append(here)
    for name, site in case.facts.sites.items():
        made = by_fleet[name]
        if site.room is not None and len(made) > site.room:
            yield f"fleet/{name}: {len(made)} more nodes, and its maximum allows {site.room}"
        if len(made) < site.least and site.offers:
            yield f"fleet/{name}: {len(made)} more nodes, and it wants {site.least} for itself"
        homes = {here.space.place[:2] for here in made}
        if site.fleet.placement.value == "cluster" and made and len(homes | case.facts.homes(name)) > 1:
            yield f"fleet/{name}: a cluster in several places"


def _moved(case: Checked, world: World) -> Iterator[str]:
    """What runs keeps its node and its blocks."""
    after = {(e["task"], e["rank"]): e for e in case.plan["reservations"]}
    for run in world.running:
        entry = after.get((run["task"], run["rank"]))
        kept = entry is not None and entry["status"] == "kept" and not entry["restart"]
        if not entry or not kept or (entry["node"], entry["blocks"]) != (run["node"], run["blocks"]):
            yield f"rank/{run['task']}-{run['rank']} on node/{run['node']}"
