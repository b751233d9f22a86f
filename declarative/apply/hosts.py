"""Looking at hosts that exist: those that may become nodes, and what is there on those that are.

One that is silent hides nothing of the others. What is recorded of it stays as it is: it is unreachable,
and not gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from declarative.apply.backends import Backends, host_name
from declarative.diagnostic import Diagnostic, Severity
from declarative.plan.health import HOST_HINT
from declarative.plan.hosts import OF_NODES, declared_shape, offer_of_host
from declarative.provider import ProviderError, Thing
from declarative.resource import Host, LeftOut, Offer
from declarative.state import Address, NodeState, Readiness, Record, State, made_as

AT_ONCE = 32
MOST_NAMED = 20
"""So many hosts that are not ready are named one by one; more are counted."""
ASK = "name CPUs and memory in the host's `resources`, or plan without `--offline`"


def listed(
    backends: Backends, name: str, silent: Collection[str]
) -> tuple[list[Thing], dict[str, ProviderError]]:
    """What is there on the hosts of a backend, one by one, and why some could not be listed.

    Those of the `silent` nodes are not asked: they have not answered just now.
    """
    faults: dict[str, ProviderError] = {}

    def ask(node: str) -> Sequence[Thing]:
        try:
            return backends.on(name, node).inventory()
        except ProviderError as error:
            faults[node] = error
            return ()

    nodes = [node for node in sorted(backends.hosts(name)) if node not in silent]
    if not nodes:
        return [], faults
    with ThreadPoolExecutor(min(AT_ONCE, len(nodes)), thread_name_prefix="listing") as pool:
        return [thing for things in pool.map(ask, nodes) for thing in things], faults


def host_of(state: State, record: Record) -> str:
    """The host that a thing or a rank is on, by the name that its backend knows; empty for none."""
    if record.address.kind == "volume":
        return host_name(state, record.inputs)
    if record.address.kind == "node":
        return made_as(record).name
    holder = state.get("reservation", record.address.name) if record.address.kind == "rank" else record
    node = state.get("node", str(holder.inputs["node"])) if holder else None
    return made_as(node).name if node else ""


def silent_nodes(readiness: Mapping[str, Readiness]) -> frozenset[str]:
    """The nodes that did not answer."""
    return frozenset(n for n, r in readiness.items() if r.state is NodeState.UNREACHABLE)


def host_offers(
    hosts: Iterable[Host],
    state: State,
    backends: Backends,
    *,
    gone: Collection[Address],
    recovered: Collection[Address],
    offline: bool,
) -> tuple[dict[str, tuple[Offer, ...]], list[LeftOut]]:
    """Backend → the hosts that are fit to become nodes, and why the others are not."""
    due = [h for h in hosts if _due(h, state, gone=gone, recovered=recovered)]
    offers: dict[str, tuple[Offer, ...]] = {}
    left_out: list[LeftOut] = []
    for name in sorted({h.backend for h in due}):
        mine = [h for h in due if h.backend == name]
        found, unfit = _declared(mine) if offline else _looked(mine, name, backends)
        offers[name] = tuple(found)
        left_out += unfit
    return offers, left_out


def notes_on(left_out: Sequence[LeftOut], *, offline: bool) -> list[Diagnostic]:
    """What to say of hosts that are left out."""
    notes = [_note(item, offline=offline) for item in left_out[:MOST_NAMED]]
    more = len(left_out) - MOST_NAMED
    if more > 0:
        notes.append(
            Diagnostic(
                code="host-not-ready",
                summary=f"{more} more hosts are not ready",
                hint="the next `apply` that finds them ready makes them nodes",
                severity=Severity.WARNING,
            )
        )
    return notes


def survey(
    hosts: Iterable[Host], state: State, backends: Backends, *, gone: Collection[Address] = ()
) -> list[tuple[Host, Diagnostic | None]]:
    """Every declared host that is no node, looked at now, and why it cannot be one (None if it can)."""
    due = [h for h in hosts if h.name and Address("node", h.name) not in state.records.keys() - set(gone)]
    notes: dict[Host, Diagnostic] = {}
    for name in sorted({h.backend for h in due}):
        _, unfit = _looked([h for h in due if h.backend == name], name, backends)
        notes |= {item.host: _note(item, offline=False) for item in unfit}
    return [(h, notes.get(h)) for h in due]


def _due(host: Host, state: State, *, gone: Collection[Address], recovered: Collection[Address]) -> bool:
    """Whether a host has to be looked at: it is no node (any more), or something else of it was declared."""
    address = Address("node", host.name)
    record = state.records.get(address)
    if record is None or address in gone:
        return address not in recovered
    was = record.inputs.get("host", {})
    return any((was.get(k) or None) != (host.fields.get(k) or None) for k in OF_NODES)


def _declared(hosts: Sequence[Host]) -> tuple[list[Offer], list[LeftOut]]:
    """Offline: what is declared of them."""
    found = [(host, declared_shape(host)) for host in hosts]
    offers = [offer_of_host(host, shape) for host, shape in found if shape]
    unknown = [host for host, shape in found if not shape]
    return offers, [LeftOut(host=host, reason="what it has is not known offline") for host in unknown]


def _looked(hosts: Sequence[Host], name: str, backends: Backends) -> tuple[list[Offer], list[LeftOut]]:
    try:
        looks = backends.get(name).look({host.name: host.fields for host in hosts})
    except ProviderError as error:
        return [], [LeftOut(host=h, reason=error.summary, shape=declared_shape(h)) for h in hosts]
    offers: list[Offer] = []
    left_out: list[LeftOut] = []
    for host in hosts:
        seen = looks[host.name]
        if seen.shape and seen.readiness.state is NodeState.READY:
            offers.append(offer_of_host(host, seen.shape, seen.readiness.can))
        else:
            word = seen.readiness.state.value.replace("_", " ")
            reason = f"{word}: {seen.readiness.reason or 'no reason is known'}"
            left_out.append(LeftOut(host=host, reason=reason, shape=seen.shape or declared_shape(host)))
    return offers, left_out


def _note(item: LeftOut, *, offline: bool) -> Diagnostic:
    host = item.host
    return Diagnostic(
        code="host-not-ready",
        summary=f"host {host.key} of fleet/{host.fleet} is left out: {item.reason}",
        hint=ASK if offline else HOST_HINT,
        address=f"fleet/{host.fleet}",
        severity=Severity.WARNING,
    )
