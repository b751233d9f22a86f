"""The offers of backends: declared ones, those that backends report, and the nodes of partitions.

A partition that cannot be read hides nothing: its records stay, and its nodes are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from declarative.apply.backend_client import BackendClient
from declarative.apply.backends import Backends, of_partition
from declarative.apply.outages import OFFERS
from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.resource import CATALOGUED, EXISTING, LOCAL, Host, Offer, catalog_offers, merge_offers
from declarative.model.spec import Backend
from declarative.model.state import State
from declarative.planner.hosts import partition_node_names
from declarative.planner.inventory import PartitionNode
from declarative.provider import PermanentError, ProviderError
from declarative.provider.optional import Member
from declarative.retry import PATIENCE, Policy, call

MOST_MESSAGE = 1_000
"""Characters of a provider's message."""

MOST_OFFERS = 500_000
"""The most offers of a project's backends together: a stranger's few lines must not eat the machine."""


Answers = dict[str, tuple[tuple[Offer, ...] | None, Diagnostic | None]]
"""Backend → its reported offers, and why it could not report them. None: nothing can be launched there."""


def ask_offers(name: str, backends: Backends, answers: Answers, *, offline: bool = False) -> None:
    """Ask a backend, unless `answers` has too many offers already; see `known_offers`."""
    driver = backends.driver(name)
    known = sum(len(offers or ()) for offers, _ in list(answers.values()))
    if driver in EXISTING or (offline and driver not in CATALOGUED) or known > MOST_OFFERS:
        return
    try:
        client = backends.catalogue(name) if offline else backends.get(name)
    except ProviderError as error:
        answers[name] = None, unreadable(name, error)  # declared offers cannot be launched either
        return
    try:
        if offline:
            answers[name] = call(client.offers, policy=PATIENCE), None
        else:

            def ask(client: BackendClient, patience: Policy) -> tuple[Offer, ...]:
                return call(client.offers, policy=patience)

            answers[name] = backends.read(name, ask, part=OFFERS), None
            if backends.hard and (can := backends.get(name).can()) is not None:
                backends.able[name] = can
    except ProviderError as error:
        answers[name] = (), unreadable(name, error)


def known_offers(
    backends: Backends, names: Iterable[str], answers: Answers
) -> tuple[dict[str, tuple[Offer, ...]], list[Diagnostic]]:
    """Declared and reported offers of each backend; which could not be read, and whether there are too many.

    Offline they are those that are known without asking anybody.
    """
    out: dict[str, tuple[Offer, ...]] = {}
    faults: list[Diagnostic] = []
    known = 0
    for name in names:
        if backends.driver(name) in EXISTING:
            continue  # it launches nothing
        backend = backends.declared.get(name)
        reported, fault = answers.get(name, ((), None))
        faults += [fault] if fault else []
        out[name] = merge_offers(catalog_offers(backend) if backend else (), reported or ())
        if (can := backends.able.get(name)) is not None:
            out[name] = tuple(replace(offer, can=can) for offer in out[name])
        if reported is None or backends.outages.is_down(name):
            out[name] = ()
        known += len(out[name])
        if known > MOST_OFFERS:
            summary = f"with those of backend {name}, the backends have more than {MOST_OFFERS} offers"
            hint = "name fewer `regions` or `availability_zones`, or declare fewer backends"
            faults.append(Diagnostic(code="too-large", summary=summary, hint=hint, address=f"backend/{name}"))
            break
    return out, faults


def own_gpus(backends: Backends) -> tuple[str, ...] | None:
    """The models of this machine's GPUs, which nodes of the driver `local` share; None if nobody can tell."""
    name = next((name for name in backends.names() if backends.driver(name) == LOCAL), None)
    try:
        return backends.get(name).gpus() if name else None
    except ProviderError:
        return None


def _short(text: str) -> str:
    """A shortened message of a provider, which may quote its whole input."""
    return text if len(text) <= MOST_MESSAGE else f"{text[:MOST_MESSAGE]}…"


def unreadable(backend: str, error: ProviderError) -> Diagnostic:
    """The warning about a backend that does not answer as it should."""
    return Diagnostic(
        code="backend-unreadable",
        summary=f"backend {backend} cannot be read: {_short(error.summary)}",
        hint=_short(error.hint or "") or "nodes of it that do not answer count as unknown: they take no work",
        address=f"backend/{backend}",
        severity=Severity.WARNING,
    )


CLUSTER_FIELDS = ("partition", "reservation")
"""Fields of a fleet that its cluster may say to be wrong."""


def partition_nodes(
    hosts: Iterable[Host], state: State, backends: Backends
) -> tuple[dict[str, tuple[PartitionNode, ...]], list[Diagnostic]]:
    """Fleet → the nodes of its partition, under the names that they have or get.

    If hosts are named, as by a saved plan, the result has only those.
    """
    asked: dict[tuple[str, str], list[Host]] = {}
    for host in filter(of_partition, hosts):
        asked.setdefault((host.fleet, host.backend), []).append(host)
    out: dict[str, tuple[PartitionNode, ...]] = {}
    notes: list[Diagnostic] = []
    for (fleet, backend), its_hosts in sorted(asked.items()):
        try:
            out[fleet] = _nodes_of(fleet, backend, its_hosts, state, backends)
        except PermanentError as error:
            if error.about in CLUSTER_FIELDS:  # a field of the fleet is wrong
                summary, address = f"fleet/{fleet} has no nodes: {error.summary}", f"fleet/{fleet}"
                notes.append(
                    Diagnostic(code="no-partition", summary=summary, hint=error.hint, address=address)
                )
            else:
                notes.append(unreadable(backend, error))
        except ProviderError as error:
            notes.append(unreadable(backend, error))
    return out, notes


def _nodes_of(
    fleet: str, backend: str, hosts: Sequence[Host], state: State, backends: Backends
) -> tuple[PartitionNode, ...]:
    """The nodes of a fleet's partition; `hosts` are hosts of it."""
    settings = {key: value for key, value in hosts[0].fields.items() if key != "slurm"}

    def ask(client: BackendClient, patience: Policy) -> tuple[Member, ...]:
        return call(lambda: client.members(settings), policy=patience)

    members = backends.read(backend, ask)
    names = {h.key: h.name for h in hosts if not h.whole}
    names = names or partition_node_names(fleet, backend, [member.key for member in members], state)
    declared = backends.declared.get(backend)
    return tuple(
        PartitionNode(
            host=replace(
                hosts[0],
                name=names[member.key],
                key=member.key,
                fields={**settings, "slurm": member.key},
                topology=member.topology,
            ),
            shape=member.shape,
            readiness=member.readiness,
            taken=member.taken,
            price=price_of(member, declared),
        )
        for member in members
        if member.key in names
    )


def price_of(member: Member, declared: Backend | None) -> float | None:
    """USD an hour for all of a node, by the backend's catalog: by its name, or by the model of its GPUs."""
    catalog = declared.catalog if declared else ()
    for entry in catalog:
        if entry.instance_type == member.key and entry.price is not None:
            return entry.price
    shape = member.shape
    for entry in catalog:
        gpu = entry.gpu
        if entry.price is None or gpu is None or not gpu.count.min or not shape.gpus:
            continue
        if gpu.names and gpu.allows(shape.gpu_name, shape.gpu_memory_mib):
            return entry.price / gpu.count.min * shape.gpus
    return None
