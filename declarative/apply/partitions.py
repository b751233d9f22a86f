"""Looking at partitions: which nodes they have, and what others hold there.

A partition that cannot be read hides nothing: what is recorded of it stays, and its nodes are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from declarative.apply.backends import Backends
from declarative.apply.offers import unreadable
from declarative.model.diagnostic import Diagnostic
from declarative.model.resource import Host
from declarative.model.spec import Backend
from declarative.model.state import State
from declarative.planner.partitions import named
from declarative.planner.types import Standing
from declarative.provider import Member, PermanentError, ProviderError

SAID = ("partition", "reservation")
"""Fields of a fleet that its cluster may say to be wrong."""


def of_partition(host: Host) -> bool:
    """Whether a host is a node of a partition, or stands for all of them."""
    return "partition" in host.fields


def standing(
    hosts: Iterable[Host], state: State, backends: Backends
) -> tuple[dict[str, tuple[Standing, ...]], list[Diagnostic]]:
    """Fleet → the nodes of its partition, under the names that they have or get.

    Of hosts that are named, as by a saved plan, only those are told of.
    """
    asked: dict[tuple[str, str], list[Host]] = {}
    for host in hosts:
        if of_partition(host):
            asked.setdefault((host.fleet, host.backend), []).append(host)
    out: dict[str, tuple[Standing, ...]] = {}
    notes: list[Diagnostic] = []
    for (fleet, backend), wanted in sorted(asked.items()):
        settings = wanted[0].fields
        settings = {key: value for key, value in settings.items() if key != "slurm"}
        try:
            found = backends.read(backend, lambda provider: provider.members(settings))  # noqa: B023
        except ProviderError as error:
            notes.append(_fault(fleet, backend, error))
            continue
        given = {h.key: h.name for h in wanted if not h.whole}
        known = given or named(fleet, backend, [node.key for node in found], state)
        declared = backends.declared.get(backend)
        out[fleet] = tuple(
            _standing(node, replace(wanted[0], name=known[node.key], fields=settings), declared)
            for node in found
            if node.key in known
        )
    return out, notes


def _standing(node: Member, like: Host, declared: Backend | None) -> Standing:
    fields = {**like.fields, "slurm": node.key}
    host = replace(like, key=node.key, fields=fields, topology=node.topology)
    price = price_of(node, declared)
    return Standing(host=host, shape=node.shape, readiness=node.readiness, taken=node.taken, price=price)


def price_of(node: Member, declared: Backend | None) -> float | None:
    """USD an hour for all of a node, by the backend's catalog: by its name, or by the model of its GPUs."""
    for entry in declared.catalog if declared else ():
        if entry.instance_type == node.key and entry.price is not None:
            return entry.price
    for entry in declared.catalog if declared else ():
        gpu, model = entry.gpu, (node.shape.gpu_name or "").casefold()
        if entry.price is None or gpu is None or not gpu.count.min or not node.shape.gpus:
            continue
        if model in [str(name).casefold() for name in gpu.names]:
            return entry.price / gpu.count.min * node.shape.gpus
    return None


def _fault(fleet: str, backend: str, error: ProviderError) -> Diagnostic:
    """A field of the fleet that is wrong, or that the cluster cannot be read."""
    if not isinstance(error, PermanentError) or error.about not in SAID:
        return unreadable(backend, error)
    return Diagnostic(
        code="no-partition",
        summary=f"fleet/{fleet} has no nodes: {error.summary}",
        hint=error.hint,
        address=f"fleet/{fleet}",
    )
