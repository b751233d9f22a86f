"""Nodes that do not answer: since when, and which of them are given up. Pure.

Two limits are apart from one another: who does not answer takes no new work from the first moment on, and is
given up after its fleet's `unreachable_duration`. It is given up only where that is safe. A cloud's node is
ended by its cloud before anything of it counts as lost; a host is no more than out of reach, so that others
have to show that it is not our own line. Several nodes that fall silent at once are our own line as well, if
none is left that answers. That is believed for no longer than `SURE` times the limit, while their cloud
answers: its API is reached by another way than the machines, so that it proves nothing of the line; but
machines that are dead while their cloud says that they run would hold their gang and be paid for without end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from declarative.model.state import NodeState, Readiness, Record, Silence, State, silent_since

LIMIT = 600.0
"""Seconds after which a node is given up whose fleet is not declared."""
AT_ONCE = 60.0
"""Seconds within which nodes fall silent `at once`."""
SURE = 3
"""How many times its limit all nodes of a backend may be silent that fell silent at once."""
ANSWERS = (NodeState.READY, NodeState.NOT_READY)


def silences(
    state: State, readiness: Mapping[str, Readiness], limits: Mapping[str, float | None], now: float
) -> dict[str, Silence]:
    """Those of the recorded nodes that did not answer when `readiness` was observed.

    `limits` is fleet → seconds after which its nodes are given up, None for never.
    """
    nodes = {r.address.name: r for r in state.of("node") if r.address.name in readiness}
    found: dict[str, Silence] = {}
    for name, record in nodes.items():
        seen = readiness[name]
        if seen.state is NodeState.UNREACHABLE:
            limit = limits.get(record.node.fleet, LIMIT)
            known = silent_since(record)
            since = known if known is not None else min(now, seen.observed_at or now)
            until = None if limit is None else since + limit
            found[name] = Silence(since=since, until=until, why=seen.reason)
    out: dict[str, Silence] = {}
    for name, silence in found.items():
        due = silence.until is not None and now >= silence.until
        out[name] = _due(nodes[name], nodes.values(), readiness, found, now) if due else silence
    return out


def _due(
    node: Record,
    nodes: Collection[Record],
    readiness: Mapping[str, Readiness],
    found: Mapping[str, Silence],
    now: float,
) -> Silence:
    """What comes of a node whose time has come: it is given up, now or later, or it is kept."""
    silence = found[node.address.name]
    if kept := _kept(node, nodes, readiness):
        return replace(silence, until=None, kept=kept)
    line = _at_once(node, nodes, readiness, found)
    if line and silence.until is not None:
        silence = replace(silence, until=silence.since + SURE * (silence.until - silence.since))
        if now < (silence.until or 0.0):
            return replace(silence, kept=line)
    return replace(silence, given_up=True)


def _kept(
    node: Record,
    nodes: Collection[Record],
    readiness: Mapping[str, Readiness],
) -> str | None:
    """Why a node is not given up although it is time, however long that lasts."""
    if node.node.host:
        fleet = node.node.fleet
        others = [r for r in nodes if r.node.fleet == fleet]
        if any(readiness[r.address.name].state is NodeState.READY for r in others):
            return None
        return f"no other host of fleet/{fleet} answers, so that it may be the line from here"
    return "its fleet's `prevent_destroy` is true" if node.node.prevent_destroy else None


def _at_once(
    node: Record,
    nodes: Collection[Record],
    readiness: Mapping[str, Readiness],
    found: Mapping[str, Silence],
) -> str | None:
    """Why a cloud's node is not given up yet although it is time: it may be our own line."""
    if node.node.host or readiness[node.address.name].down:
        return None
    others = [r for r in nodes if r.backend == node.backend]
    if any(readiness[r.address.name].state in ANSWERS for r in others):
        return None
    silent = [found[r.address.name].since for r in others if r.address.name in found]
    if len(silent) > 1 and max(silent) - min(silent) <= AT_ONCE:
        return (
            f"all nodes of backend {node.backend} fell silent at once, so that it may be the line from here"
        )
    return None


def lost_with(name: str, silence: Silence) -> str:
    """The cause of a rank's loss on a node that was given up."""
    limit = 0 if silence.until is None else round(silence.until - silence.since)
    return f"node/{name} was given up: it has not answered for {lasting(limit)} (`unreachable_duration`)"


def lasting(seconds: float) -> str:
    """`90 s`, `10 min`, `3 h`: a time in its largest whole unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (seconds >= size and seconds % size == 0):
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def silence_text(silence: Silence, now: float) -> str:
    """`has not answered for 3 min (timed out): it is given up in 7 min`; to be said of a node."""
    past = now - silence.since
    said = f"has not answered for {lasting(past)}" if past >= 1 else "does not answer"
    why = f" ({silence.why})" if silence.why else ""
    if silence.given_up:
        then = "it is given up"
    elif silence.kept:
        then = f"it is not given up: {silence.kept}"
        if silence.until is not None:
            then += f"; if none answers, it is given up in {lasting(max(0.0, silence.until - now))}"
    elif silence.until is None:
        then = "it is never given up (`unreachable_duration: off`)"
    else:
        then = f"it is given up in {lasting(max(0.0, silence.until - now))}"
    return f"{said}{why}: {then}"
