"""GPUs of nodes on this machine that it may not have: what is done with them is a rehearsal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from declarative.model.blocks import Shape
from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.resource import LOCAL, Desired
from declarative.model.state import State
from declarative.planner.launchable import allowed_backends


class Rehearsed(NamedTuple):
    """A node, or what one may be launched from, with GPUs. `fleet` is None for an offer of no fleet."""

    fleet: str | None
    backend: str
    shape: Shape
    name: str | None = None

    @property
    def model(self) -> str:
        """The model of its GPUs, for comparisons."""
        return (self.shape.gpu_name or "").lower()


def is_local(desired: Desired, backend: str) -> bool:
    """Whether the nodes of a backend are on this machine."""
    declared = desired.backends.get(backend)
    return (declared.provider if declared else backend) == LOCAL


def may_rehearse(desired: Desired, state: State) -> bool:
    """Whether it matters which GPUs this machine has: nodes on it have some, or may get some."""
    there = (r.node for r in state.of("node"))
    if any(node.resources.gpus and is_local(desired, node.backend) for node in there):
        return True
    fleets = [f for f in desired.fleets.values() if not f.exists]
    local = {b for f in fleets for b in allowed_backends(desired, f) if is_local(desired, b)}
    asked = any(f.resources.gpu and f.resources.gpu.count.min for f in fleets)
    known = (desired.backends[b].catalog for b in local & desired.backends.keys())
    return bool(local) and (asked or any(entry.gpu for catalog in known for entry in catalog))


def judged(
    desired: Desired, nodes: Iterable[Rehearsed], own: tuple[str, ...] | None, *, together: bool = True
) -> list[tuple[Rehearsed, bool | None]]:
    """The nodes on this machine with GPUs, and whether it lacks some of these; None if nobody looked.

    `together`: the nodes are there at once, so that their GPUs add up.
    """
    here = [n for n in nodes if n.shape.gpus and is_local(desired, n.backend)]
    counts: dict[str, int] = {}
    for node in here:
        counts[node.model] = counts.get(node.model, 0) + node.shape.gpus
    out: list[tuple[Rehearsed, bool | None]] = []
    for node in here:
        wanted = counts[node.model] if together else node.shape.gpus
        has = sum(1 for name in own or () if not node.model or name.lower() == node.model)
        out.append((node, None if own is None else has < wanted))
    return out


def rehearsals(
    desired: Desired, nodes: Iterable[Rehearsed], own: tuple[str, ...] | None, *, together: bool = True
) -> list[Diagnostic]:
    """A warning for each fleet whose nodes have GPUs that this machine lacks, or of which nobody knows."""
    lacks: dict[str | None, list[Rehearsed]] = {}
    for node, lacking in judged(desired, nodes, own, together=together):
        if lacking is not False:
            lacks.setdefault(node.fleet, []).append(node)
    return [_warning(desired, fleet, found, own) for fleet, found in sorted(lacks.items(), key=str)]


def _warning(
    desired: Desired, fleet: str | None, nodes: list[Rehearsed], own: tuple[str, ...] | None
) -> Diagnostic:
    models = sorted({n.shape.gpu_name or "without a model" for n in nodes})
    address = f"fleet/{fleet}" if fleet else None
    what = f"the GPUs of {address or 'offers'} on this machine ({', '.join(models)})"
    if own is None:
        summary = f"it was not looked whether {what} are there: they may be a rehearsal"
    else:
        has = ", ".join(f"{own.count(model)} {model}" for model in sorted(set(own))) or "none"
        summary = f"{what} are a rehearsal: it has {has}"
    return Diagnostic(
        code="rehearsal",
        summary=summary,
        hint="commands run all the same, without such GPUs; for real ones name a cloud's backend, or hosts",
        address=address,
        span=desired.places.get(address) if address else None,
        severity=Severity.WARNING,
    )
