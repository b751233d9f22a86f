"""What turns a node or an offer down, in one order for every path: pins and reuse included.

Rule 1 of docs/architecture.md, "Placement".

Each filter looks at immutable facts and gives a reason with numbers, or None. No filter is skipped
for hand-picked nodes, and none reads the inventory again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from declarative.model.blocks import Shortfall, fewest, maker_of, misfits, share
from declarative.model.spec import Fleet, Isolation, SpotPolicy, Task
from declarative.model.spec.gpu_models import makers_named
from declarative.model.status import ANY_RUNTIME, BOOTING, HARD, RUNTIMES, NodeState
from declarative.model.text import and_more
from declarative.placement.problem import Node, NodeType, Rejection, Unseen, of_offer

NAMED = 20
"""How many names a reason lists."""


LASTING = {
    "fleet": "in another fleet",
    "not-cluster": "in no cluster fleet",
    "instance": "not among the pinned nodes",
    "backend": "in another backend",
    "region": "in another region",
    "zone": "in another zone",
    "topology": "elsewhere in the topology",
    "spread": "beside another rank",
    "gpu-vendor": "with another vendor's GPUs",
    "spot": "ruled out by the spot policy",
    "price": "over the price cap",
    "price-unknown": "without a known price",
    "isolation": "without hard limits",
    "no-runtime": "without podman or docker",
    "too-small": "too small",
    "too-large": "too large",
    "volume-missing": "without the volume",
    "volume-elsewhere": "away from the volume",
    "no-offer": "without an offer",
}
"""Codes of rejections that waiting does not help, with their words in a summary. They are named first."""

PASSING = {
    "avoided": "avoided since the task failed there",
    "reuse-only": "not launched for it (reuse only)",
    "drained": "drained",
    "not-ready": "not ready",
    "closed": "about to be replaced or deleted",
    "not-idle": "not wholly idle",
    "busy": "without enough idle blocks",
    "volume-busy": "with the volume in use",
    "volume-gone": "with the volume gone",
    "offers-unknown": "whose offers could not be read",
    "fleet-max": "beyond the fleet's maximum",
    "limit": "beyond the offer's limit",
}
"""The same of rejections that may pass."""


class Mismatch(NamedTuple):
    """Why a place was turned down. `short` maps a dimension to what was missing."""

    code: str
    detail: str
    short: Mapping[str, float] = {}

    def of(self, target: str) -> Rejection:
        """The same, of one target."""
        return Rejection(target=target, code=self.code, detail=self.detail, short=self.short)


def _few(names: Sequence[str]) -> str:
    """Names in a reason, of which there is one for each offer."""
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")


def fleet_reason(task: Task, fleet: Fleet) -> Mismatch | None:
    """Whether the task may use the fleet at all."""
    if task.fleets and fleet.name not in task.fleets:
        return Mismatch("fleet", f"the task asks for {_few(task.fleets)}")
    if task.cluster and fleet.placement.value != "cluster":
        return Mismatch(
            "not-cluster", "its placement is `any`; a cluster task needs a fleet with `placement: cluster`"
        )
    return None


def level_of(task: Task, fleet: Fleet) -> str:
    """What the ranks of a cluster task lie in together: one zone, unless task or fleet says otherwise."""
    return str(task.same or fleet.same or "zone")


def topology_reason(task: Task, fleet: Fleet, kind: NodeType) -> Mismatch | None:
    """Whether it is known where the kind stands, at the levels that ranks share or are spread over."""
    if task.nodes < 2:
        return None
    levels = [level_of(task, fleet)] if task.cluster else []
    levels += [task.spread] if task.spread not in (None, "node") else []
    for level in levels:
        if kind.at(level) is None:
            return Mismatch("topology", f"it names no `{level}` in its `topology`")
    return None


def beside_reason(task: Task, kind: NodeType, beside: Iterable[NodeType]) -> Mismatch | None:
    """Whether a rank may be there that joins ranks of its task, which stay on nodes of these kinds."""
    level = task.spread
    near = (other for other in beside if (other.backend, other.region) == (kind.backend, kind.region))
    if level == "node":
        if task.name in kind.beside:
            return kept_apart(level)
    elif level is not None:
        if kind.at(level) is None:
            return Mismatch("topology", f"it names no `{level}` in its `topology`")
        if any(other.at(level) == kind.at(level) for other in near):
            return kept_apart(level)
    if not _names_one_vendor(task) or task.instances:  # who pins nodes has seen what they are
        return None
    own, theirs = maker_of(kind.shape), {maker_of(other.shape) for other in beside} - {None}
    if own is None or not theirs or own in theirs:
        return None
    return Mismatch(
        "gpu-vendor", f"its GPUs are of {own}, those of the other ranks of {min(map(str, theirs))}"
    )


def kept_apart(level: str | None) -> Mismatch:
    """Why a rank cannot be where another one of its task is."""
    return Mismatch("spread", f"another rank of the task has this {level}, and `spread` keeps them apart")


def place_reason(task: Task, kind: NodeType) -> Mismatch | None:
    """Whether the task avoids it, backend, region, spot, price, and what the host can do."""
    if task.name in kind.avoided_by:
        return Mismatch("avoided", "the task failed there before, and avoids it while another place fits")
    if task.backends and kind.backend not in task.backends:
        return Mismatch("backend", f"backend {kind.backend}; the task asks for {_few(task.backends)}")
    if task.regions and kind.region not in task.regions:
        return Mismatch("region", f"region {kind.region}; the task asks for {_few(task.regions)}")
    if task.spot_policy is SpotPolicy.ON_DEMAND and kind.spot:
        return Mismatch("spot", "spot; the task asks for on-demand")
    if task.spot_policy is SpotPolicy.SPOT and not kind.spot:
        return Mismatch("spot", "on-demand; the task asks for spot")
    return price_reason(task.max_price, kind.bound, "the task") or able_reason(task, kind)


def able_reason(task: Task, kind: NodeType) -> Mismatch | None:
    """Whether the host can do what the task asks for; what is not known of it is not held against it."""
    if lacks_hard(kind.can, task.isolation):
        unsure = ANY_RUNTIME in (kind.can or ())
        who = f"backend {kind.backend} cannot promise to hold" if unsure else "its kernel cannot hold"
        return Mismatch("isolation", f"{who} a rank to its blocks; the task has `isolation: hard`")
    if lacks_runtime(kind.can, task.image):
        return Mismatch(
            "no-runtime", f"neither {' nor '.join(RUNTIMES)} can be used; the task has an `image`"
        )
    return None


def lacks_hard(can: frozenset[str] | None, isolation: str | None) -> bool:
    """Whether a host is known to be unable to do what `isolation` asks for."""
    return isolation == Isolation.HARD.value and can is not None and HARD not in can


def lacks_runtime(can: frozenset[str] | None, image: str | None) -> bool:
    """Whether a host is known to be unable to run an image."""
    return image is not None and can is not None and can.isdisjoint((*RUNTIMES, ANY_RUNTIME))


def price_reason(cap: float | None, price: float | None, whose: str) -> Mismatch | None:
    """A price cap; a price that is unknown cannot be shown to keep it."""
    if cap is None:
        return None
    if price is None:
        return Mismatch("price-unknown", f"its price is unknown; {whose} allows {cap:g} USD/h")
    if price > cap:
        return Mismatch("price", f"{price:g} USD/h; {whose} allows {cap:g}", {"price": round(price - cap, 6)})
    return None


def ready_reason(node: Node) -> Mismatch | None:
    """Only ready nodes take work; `unknown` is neither ready nor empty.

    One that boots is waited for, as one that this plan launches. Else an apply that was cut short while its
    nodes were booting would be followed by one that launches as many again.
    """
    if node.readiness.state is NodeState.DRAINING:
        return Mismatch("drained", node.readiness.reason or "it is drained")
    if node.closed:
        return Mismatch("closed", node.closed)
    if node.readiness.state is NodeState.READY or node.readiness.state in BOOTING:
        return None
    why = f": {node.readiness.reason}" if node.readiness.reason else ""
    return Mismatch("not-ready", f"{node.readiness.state.value}{why}")


def one_vendor(task: Task) -> bool:
    """Whether the GPUs of all ranks have to be of one vendor: unless `gpu` names models of several."""
    return task.nodes > 1 and _names_one_vendor(task)


def _names_one_vendor(task: Task) -> bool:
    gpu = task.resources.gpu
    return gpu is not None and gpu.count.max != 0 and len(makers_named(gpu.names)) < 2


def shape_reason(task: Task, kind: NodeType) -> Mismatch | None:
    """Whether some share of it, or the whole of it for exclusive ranks, satisfies the request."""
    off = misfits(task.resources, kind.shape)
    if not task.whole_nodes:
        if fewest(task.resources, kind.shape, kind.total) is not None:
            return None
        if kind.total > 1 and _only_large(off):
            return _no_share(task, kind)
    if not off:
        return None
    what = ", ".join(f"{_dimension(i)}: wanted {i.wanted}, has {i.had}" for i in off)
    if task.whole_nodes and _only_large(off):
        what += "; an exclusive rank takes the whole node: widen the range, or set `exclusive: false`"
    return _misfit(off, what)


def _only_large(off: Sequence[Shortfall]) -> bool:
    """Whether there is enough of everything, and too much of what is off."""
    return all(shortfall.short < 0 for shortfall in off)


def _misfit(off: Sequence[Shortfall], what: str) -> Mismatch:
    short = {shortfall.dimension: shortfall.short for shortfall in off}
    return Mismatch("too-large" if _only_large(off) else "too-small", what, short)


def _dimension(item: Shortfall) -> str:
    return item.dimension.removesuffix("_mib").replace("_", " ")


def _no_share(task: Task, kind: NodeType) -> Mismatch:
    """The whole node has enough, and no number of its blocks has just what is asked for."""
    shares = [misfits(task.resources, share(kind.shape, kind.total, n)) for n in range(1, kind.total + 1)]
    first = next((i for i, off in enumerate(shares) if _only_large(off)), len(shares) - 1)
    below = {shortfall.dimension: shortfall for shortfall in shares[first - 1]} if first else {}
    details: list[str] = []
    for shortfall in shares[first]:
        had = below.get(shortfall.dimension)
        less = f"{_blocks(first)} of it {_has(first)} {had.had}, " if had else ""
        more = f"{_blocks(first + 1)}{'' if less else ' of it'} {_has(first + 1)} {shortfall.had}"
        details.append(f"{_dimension(shortfall)}: wanted {shortfall.wanted}, {less}{more}")
    return _misfit(shares[first], "; ".join(details))


def _blocks(number: int) -> str:
    return "1 block" if number == 1 else f"{number} blocks"


def _has(number: int) -> str:
    return "has" if number == 1 else "have"


def blocks_wanted(task: Task, kind: NodeType) -> int:
    """How many blocks a rank takes there; 0 if it does not fit however idle the node is."""
    if task.whole_nodes:
        return 0 if misfits(task.resources, kind.shape) else kind.total
    return fewest(task.resources, kind.shape, kind.total) or 0


def asks_little(task: Task) -> bool:
    """Whether a task asks for so many CPUs and so much memory at least, and for nothing else."""
    want = task.resources
    if task.whole_nodes or want.gpu or want.disk:
        return False
    return all(size and size.min > 0 and size.max is None for size in (want.cpu, want.memory))


def blocks_of_makes(task: Task, makes: Iterable[tuple[int, int, int, int]]) -> dict[int, int]:
    """`blocks_wanted` of many makes for a task that asks for little, without a call for each of them.

    `makes`: number, the CPUs and the MiB of one block, and how many blocks there are.
    """
    cpu, memory = task.resources.cpu, task.resources.memory
    cpus, mib = -cpu.min if cpu else 0, -memory.min if memory else 0
    out: dict[int, int] = {}
    for make, of, size, total in makes:
        if of and size and (need := max(-(cpus // of), -(mib // size))) <= total:
            out[make] = need
    return out


def block_reason(task: Task, kind: NodeType, held: Mapping[int, str]) -> Mismatch | None:
    """Whether enough blocks are idle; `shape_reason` has said that it fits."""
    need, idle = blocks_wanted(task, kind), kind.total - len(held)
    if idle >= need:
        return None
    holders = and_more(sorted(set(held.values())), 3)
    if task.whole_nodes:
        detail = f"not whole: {len(held)} of {kind.total} blocks busy ({holders})"
        return Mismatch("not-idle", detail, {"blocks": need - idle})
    detail = f"wanted {_blocks(need)}, {idle} of {kind.total} idle ({holders})"
    return Mismatch("busy", detail, {"blocks": need - idle})


def unseen_reason(task: Task, fleet: Fleet, unseen: Unseen) -> Mismatch:
    """Why a task cannot have what is not there now: it may be of no use to it anyway."""
    reason = fleet_reason(task, fleet)
    if unseen.offer is None:
        return reason or Mismatch("offers-unknown", unseen.detail)
    node_type = NodeType(*of_offer(unseen.offer, fleet))
    host = unseen.offer.host
    if reason is None and host and task.instances and host.name not in task.instances:
        reason = not_pinned(task)
    reason = reason or place_reason(task, node_type)
    if reason is None and unseen.known:
        reason = shape_reason(task, node_type)
    return reason or Mismatch("not-ready", unseen.detail)


def not_pinned(task: Task) -> Mismatch:
    """Why a task that names its nodes cannot have another one."""
    return Mismatch("instance", f"the task asks for {', '.join(task.instances)}")
