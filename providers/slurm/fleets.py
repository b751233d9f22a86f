"""The nodes of a partition as nodes of a fleet: what is free there, and whether they take work. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from declarative.model.resource import OthersShare
from declarative.model.state import Record, natural
from declarative.model.status import ANY_RUNTIME, NodeState, Readiness
from declarative.provider import PermanentError, PermanentKind
from declarative.provider.optional import Member
from providers.ownership import key_of
from providers.slurm.cluster import Cluster, Node, Partition, held_by
from providers.slurm.snapshot import Snapshot

WORKING = frozenset({"IDLE", "MIXED", "ALLOCATED", "DYNAMIC_NORM", "CLOUD", "PLANNED", "COMPLETING"})
"""States of nodes on which a job can start now if there is room."""
_MEANINGS: Mapping[str, str] = {
    "DRAIN": "drained",
    "DRAINED": "drained",
    "DRAINING": "drained, and its jobs still run",
    "DOWN": "down",
    "FAIL": "failed",
    "FAILING": "failing",
    "MAINT": "in maintenance",
    "MAINTENANCE": "in maintenance",
    "RESERVED": "reserved",
    "NOT_RESPONDING": "not responding to Slurm's controller",
    "POWERED_DOWN": "powered down",
    "POWERING_DOWN": "powering down",
    "POWERING_UP": "powering up",
    "REBOOT_ISSUED": "rebooting",
    "REBOOT_REQUESTED": "about to reboot",
    "BLOCKED": "blocked by a job that wants its whole block",
    "UNKNOWN": "not known to Slurm's controller, which has just started or never heard of it",
    "INVALID_REG": "registered with less than Slurm's configuration says",
    "INVAL": "registered with less than Slurm's configuration says",
}
_RESERVED = frozenset({"RESERVED", "MAINT", "MAINTENANCE"})
"""States of nodes that a reservation keeps for its own jobs."""


def members(snapshot: Snapshot, settings: Mapping[str, Any]) -> tuple[Member, ...]:
    """The nodes of a fleet's partition with its features, by name."""
    names = _partition(snapshot.cluster, str(settings["partition"])).nodes
    if settings.get("reservation") is not None:
        names &= _reserved(snapshot, str(settings["reservation"]))
    constraint = str(settings.get("constraint") or "")
    nodes = [snapshot.cluster.nodes[n] for n in sorted(names, key=natural) if n in snapshot.cluster.nodes]
    return tuple(
        Member(
            key=node.name,
            shape=node.shape,
            topology=snapshot.cluster.switches.get(node.name, ()),
            taken=taken(snapshot, node.name),
            readiness=_ready(snapshot, node, settings),
        )
        for node in nodes
        if has(constraint, node.features)
    )


def _partition(cluster: Cluster, name: str) -> Partition:
    partition = cluster.partitions.get(name)
    if partition is None:
        others = ", ".join(sorted(cluster.partitions)) or "none that this user may see"
        summary = f"Slurm has no partition `{name}`"
        raise PermanentError(PermanentKind.NOT_FOUND, summary, about="partition", hint=f"there are: {others}")
    return partition


def _reserved(snapshot: Snapshot, name: str) -> frozenset[str]:
    """The nodes of a reservation."""
    nodes = snapshot.reserved.get(name)
    if nodes is None:
        others = ", ".join(sorted(snapshot.reserved)) or "none"
        summary = f"Slurm has no active reservation `{name}`"
        raise PermanentError(
            PermanentKind.NOT_FOUND, summary, about="reservation", hint=f"there are: {others}"
        )
    return nodes


def has(constraint: str, features: frozenset[str]) -> bool:
    """Whether features satisfy a constraint of `&`, `|` and `!`. Slurm itself decides on any other."""
    if not constraint or re.search(r"[\[\]()*]", constraint):
        return True
    every = re.split(r"[&,]", constraint)
    return all(any(_feature(one.strip(), features) for one in part.split("|")) for part in every)


def _feature(word: str, features: frozenset[str]) -> bool:
    return word[1:] not in features if word.startswith("!") else word in features


def taken(snapshot: Snapshot, name: str) -> tuple[OthersShare, ...]:
    """The share of a node that others' jobs hold: each job by name, and the rest."""
    node = snapshot.cluster.nodes.get(name)
    if node is None:
        return ()
    ours = snapshot.ours()
    out: list[OthersShare] = []
    cpus, memory, gpus = node.busy_cpus, node.busy_memory_mib, node.busy_gpus
    for number, job in sorted(snapshot.cluster.jobs.items()):
        share = job.shares.get(name)
        if share is None or not job.holds:
            continue
        cpus, memory, gpus = cpus - share.cpus, memory - share.memory_mib, gpus - share.gpus
        if number not in ours:
            out.append(
                OthersShare(
                    holder=held_by(job, share),
                    cpu=share.cpus,
                    memory_mib=share.memory_mib,
                    gpus=share.gpus,
                    until=job.ended_at,
                )
            )
    if cpus > 0 or memory > 0 or gpus > 0:  # jobs that Slurm hides from this user (PrivateData)
        rest = OthersShare(
            holder="a slurm job that this user may not see",
            cpu=max(0, cpus),
            memory_mib=max(0, memory),
            gpus=max(0, gpus),
        )
        out.append(rest)
    return tuple(out)


def readiness(snapshot: Snapshot, record: Record) -> Readiness:
    """Whether a recorded node takes work."""
    host = record.node.host
    node = snapshot.cluster.nodes.get(str(host.get("slurm", "")))
    if node is None:
        why = f"Slurm has no node `{host.get('slurm')}` any more"
        return Readiness(state=NodeState.NOT_READY, reason=why, observed_at=snapshot.cluster.now)
    if record.outputs.get("id") is not None and not _is_made(snapshot, record):
        why = "its file on the shared filesystem is gone"
        return Readiness(state=NodeState.UNREACHABLE, reason=why, observed_at=snapshot.cluster.now)
    had, has_now = record.node.resources, node.shape
    if (has_now.cpu, has_now.memory_mib, has_now.gpus) < (had.cpu, had.memory_mib, had.gpus) and (
        has_now.cpu < had.cpu or has_now.memory_mib < had.memory_mib or has_now.gpus < had.gpus
    ):
        why = (
            f"Slurm says that it has {has_now.cpu} CPUs, {has_now.memory_mib} MiB and {has_now.gpus} GPUs now"
        )
        hint = f"{why}: fewer than recorded; once idle, `fleetform state rm {record.address}`"
        return Readiness(state=NodeState.NOT_READY, reason=hint, observed_at=snapshot.cluster.now)
    return _ready(snapshot, node, host)


def _is_made(snapshot: Snapshot, record: Record) -> bool:
    return any(thing.id == record.outputs["id"] for thing, _ in snapshot.things)


CAN = frozenset({ANY_RUNTIME})
"""The cluster's own configuration confines ranks: nobody can promise hard limits."""


def _ready(snapshot: Snapshot, node: Node, settings: Mapping[str, Any]) -> Readiness:
    reason = _not_ready(snapshot, node, settings)
    down = bool(node.states & {"DOWN", "FAIL", "NOT_RESPONDING"})
    state = NodeState.NOT_READY if reason else NodeState.READY
    return Readiness(state=state, reason=reason, observed_at=snapshot.cluster.now, down=down, can=CAN)


def _not_ready(snapshot: Snapshot, node: Node, settings: Mapping[str, Any]) -> str | None:
    """Why no job can start on a node now, apart from room."""
    partition = snapshot.cluster.partitions.get(str(settings.get("partition")))
    if partition is None:
        return f"Slurm has no partition `{settings.get('partition')}` any more"
    if partition.state != "UP":
        return f"the partition {partition.name} is {partition.state.lower()}"
    if node.name not in partition.nodes:
        return f"it is not in the partition {partition.name} any more"
    odd = node.states - WORKING
    if (only := settings.get("reservation")) is not None:
        if node.name not in snapshot.reserved.get(str(only), frozenset()):
            return f"it is not in the reservation {only}"
        odd -= _RESERVED
    return _state_text(snapshot, node, odd) if odd else None


def _state_text(snapshot: Snapshot, node: Node, odd: frozenset[str]) -> str:
    """The meaning of a node's states, its reservations, and the administrator's reason."""
    text = ", ".join(meanings(odd))
    names = sorted(name for name, nodes in snapshot.reserved.items() if node.name in nodes)
    if names and odd & _RESERVED:
        text += f" ({', '.join(names)})"
    return f"{text}: {node.reason}" if node.reason else text


def meanings(states: frozenset[str]) -> list[str]:
    """The meanings of a node's states. `down` is left out if another one says more."""
    words = list(dict.fromkeys(_MEANINGS.get(state, state.lower()) for state in sorted(states)))
    others = [word for word in words if word != "down"]
    return others if any("down" in word for word in others) else words


def key_at(node: Record) -> str:
    """The folder of a node's thing, from the id that its create returned."""
    key = str(node.outputs.get("id", "")).rpartition(".")[2]
    if len(key) != len(key_of("")) or not set(key) <= set("0123456789abcdef"):
        raise PermanentError(PermanentKind.NOT_FOUND, f"{node.address} was not made", about=str(node.address))
    return key
