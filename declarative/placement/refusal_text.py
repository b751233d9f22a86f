"""What a refusal says in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from declarative.model.spec import Task

STRUCTURAL = (
    "fleet",
    "not-cluster",
    "instance",
    "backend",
    "region",
    "zone",
    "topology",
    "spread",
    "gpu-vendor",
    "spot",
    "price",
    "price-unknown",
    "isolation",
    "no-runtime",
    "too-small",
    "too-large",
    "volume-missing",
    "volume-elsewhere",
    "reuse-only",
    "no-offer",
)
"""Codes that no waiting mends; they are named before those that are about capacity."""

WORDS = {
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
    "reuse-only": "not launched for it (reuse only)",
    "no-offer": "without an offer",
    "drained": "drained",
    "not-ready": "not ready",
    "closed": "about to be replaced or deleted",
    "not-idle": "not wholly idle",
    "busy": "without enough idle blocks",
    "volume-busy": "but the volume is in use",
    "offers-unknown": "whose offers could not be read",
    "fleet-max": "beyond the fleet's maximum",
    "limit": "beyond the offer's limit",
}

NAMED = 3
"""Nodes that a hint names."""

ABLE = {
    "isolation": "let the hosts' user be root there or delegate cgroups to him, or leave out `isolation`",
    "no-runtime": "install podman on a host, or leave out the task's `image`",
}
"""What helps where hosts cannot do what a task asks for."""


def summary_of(
    task: Task, found: int, counts: Mapping[str, int], *, never: bool, fleets: int, proved: bool = True
) -> str:
    """One sentence: how many places were wanted and found, and what most of the others lacked."""
    nouns = "whole idle nodes" if task.whole_nodes else "places"
    together = " in one cluster fleet" if task.cluster and task.nodes > 1 else ""
    noun = nouns if task.nodes > 1 else nouns[:-1]
    wanted = f"{task.nodes} {noun}{together} wanted, {found} found"
    ordered = sorted(counts.items(), key=lambda p: (p[0] not in STRUCTURAL, -p[1], p[0]))
    why = ", ".join(f"{n} {WORDS.get(code, code)}" for code, n in ordered[:4])
    if not fleets:
        why = "the project declares no fleet"
    tail = "can never fit" if never else "does not fit now"
    return f"{tail}: {wanted}" + (f" ({why})" if why else "") + ("" if proved else "; not proved")


def _own_advice(task: Task, codes: Collection[str], *, never: bool, fits: bool) -> str | None:
    """What helps a task that asks for whole nodes, for what no host can do, or for nodes by name."""
    if "too-large" in codes and task.whole_nodes and never:
        return "widen the range in the task's `resources`, or set `exclusive: false`"
    unable = sorted({"isolation", "no-runtime"}.intersection(codes))
    if never and unable and not fits:
        return "; ".join(ABLE[code] for code in unable)
    if "drained" in codes and task.instances:
        return "`fleetform undrain` the pinned node, or pin another one"
    if "not-ready" in codes and task.instances:
        return "wait until the pinned node is ready, or pin another one"
    return None


def hint_for(
    task: Task,
    counts: Mapping[str, int],
    *,
    never: bool,
    changes: Sequence[str] | None = None,
    busy: bool = True,
) -> str | None:
    """What to do about it. `changes` are those that are enough; None if not all were tried.

    `busy`: other tasks hold blocks.
    """
    codes = set(counts)
    if not codes:
        return "declare a fleet"
    if codes <= {"not-cluster", "fleet"} and "not-cluster" in codes:
        return "set `placement: cluster` on a fleet, or `placement: any` on the task"
    fits = f"it fits {_either(changes)}" if changes else None
    own = _own_advice(task, codes, never=never, fits=bool(fits))
    if own:
        return f"{own}; {fits}" if fits else own
    # Waiting mends only what does not fit now.
    until = "" if never else _until(codes, busy=busy)
    undrain = ", or `fleetform undrain` a node" if "drained" in codes and not never else ""
    wait = f"{undrain}, or wait until {until}" if until else undrain
    if fits:
        return f"{fits}{wait}"
    if changes is None:
        return f"`fleetform explain task/NAME` looks for what makes it fit{wait}"
    return f"no single change that was tried makes it fit (task, `nodes` of fleets, `limit` of offers){wait}"


def _until(codes: Iterable[str], *, busy: bool) -> str:
    """What is waited for where a task does not fit now."""
    parts = ["running tasks have ended"] if busy else []
    if "not-ready" in codes:
        parts.append("what is not ready is ready")
    if "offers-unknown" in codes:
        parts.append("the backend can be read")
    return " or ".join(parts)


def _either(changes: Sequence[str]) -> str:
    """`with a, with b, or without c`."""
    *most, last = changes
    return f"{', '.join(most)}, or {last}" if most else last
