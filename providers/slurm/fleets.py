"""The nodes of a partition as nodes of a fleet: what is free there, and whether they take work. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from declarative.model.resource import Taken
from declarative.model.state import NodeState, Readiness, Record, natural
from declarative.provider import PermanentError, PermanentKind
from declarative.provider.optional import Member
from providers.ownership import key_of
from providers.slurm.cluster import Cluster, Node, Partition
from providers.slurm.snapshot import Snapshot, held_by

WORKING = frozenset({"IDLE", "MIXED", "ALLOCATED", "DYNAMIC_NORM", "CLOUD", "PLANNED", "COMPLETING"})
"""The states of nodes on which a job can start now, as far as there is room."""
_SAID: Mapping[str, str] = {
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


def members(seen: Snapshot, settings: Mapping[str, Any]) -> tuple[Member, ...]:
    """The nodes of a fleet's partition that have its features, by name."""
    partition = _partition(seen.cluster, str(settings["partition"]))
    wanted = str(settings.get("constraint") or "")
    only = settings.get("reservation")
    if only is not None and str(only) not in seen.reserved:
        there = ", ".join(sorted(seen.reserved)) or "none"
        summary = f"Slurm has no active reservation `{only}`"
        raise PermanentError(
            PermanentKind.NOT_FOUND, summary, about="reservation", hint=f"there are: {there}"
        )
    found = [seen.cluster.nodes[n] for n in sorted(partition.nodes, key=natural) if n in seen.cluster.nodes]
    return tuple(
        Member(
            key=node.name,
            shape=node.shape,
            topology=seen.cluster.switches.get(node.name, ()),
            taken=taken(seen, node.name),
            readiness=_ready(seen, node, settings),
        )
        for node in found
        if has(wanted, node.features) and (only is None or node.name in seen.reserved[str(only)])
    )


def _partition(cluster: Cluster, name: str) -> Partition:
    found = cluster.partitions.get(name)
    if found is None:
        there = ", ".join(sorted(cluster.partitions)) or "none that this user may see"
        summary = f"Slurm has no partition `{name}`"
        raise PermanentError(PermanentKind.NOT_FOUND, summary, about="partition", hint=f"there are: {there}")
    return found


def has(constraint: str, features: frozenset[str]) -> bool:
    """Whether features meet a constraint of `&`, `|` and `!`; one with more than that is left to Slurm."""
    if not constraint or re.search(r"[\[\]()*]", constraint):
        return True
    every = re.split(r"[&,]", constraint)
    return all(any(_feature(one.strip(), features) for one in part.split("|")) for part in every)


def _feature(word: str, features: frozenset[str]) -> bool:
    return word[1:] not in features if word.startswith("!") else word in features


def taken(seen: Snapshot, name: str) -> tuple[Taken, ...]:
    """What jobs hold on a node that are not this owner's: theirs by name, and what no job accounts for."""
    node = seen.cluster.nodes.get(name)
    if node is None:
        return ()
    ours = seen.ours()
    out: list[Taken] = []
    cpus, memory, gpus = node.busy_cpus, node.busy_memory_mib, node.busy_gpus
    for number, job in sorted(seen.cluster.jobs.items()):
        share = job.shares.get(name)
        if share is None or not job.holds:
            continue
        cpus, memory, gpus = cpus - share.cpus, memory - share.memory_mib, gpus - share.gpus
        if number not in ours:
            out.append(
                Taken(
                    holder=held_by(job, share),
                    cpu=share.cpus,
                    memory_mib=share.memory_mib,
                    gpus=share.gpus,
                    until=job.ended_at,
                )
            )
    if cpus > 0 or memory > 0 or gpus > 0:  # jobs that are hidden from this user (PrivateData)
        rest = Taken(
            holder="a slurm job that this user may not see",
            cpu=max(0, cpus),
            memory_mib=max(0, memory),
            gpus=max(0, gpus),
        )
        out.append(rest)
    return tuple(out)


def readiness(seen: Snapshot, record: Record) -> Readiness:
    """Whether a recorded node takes work."""
    host = record.node.host
    node = seen.cluster.nodes.get(str(host.get("slurm", "")))
    if node is None:
        why = f"Slurm has no node `{host.get('slurm')}` any more"
        return Readiness(state=NodeState.NOT_READY, reason=why, observed_at=seen.cluster.now)
    if record.outputs.get("id") is not None and not _made(seen, record):
        why = "what was written down of it on the shared filesystem is gone"
        return Readiness(state=NodeState.UNREACHABLE, reason=why, observed_at=seen.cluster.now)
    had, has_now = record.node.resources, node.shape
    if (has_now.cpu, has_now.memory_mib, has_now.gpus) < (had.cpu, had.memory_mib, had.gpus) and (
        has_now.cpu < had.cpu or has_now.memory_mib < had.memory_mib or has_now.gpus < had.gpus
    ):
        why = (
            f"Slurm says that it has {has_now.cpu} CPUs, {has_now.memory_mib} MiB and {has_now.gpus} GPUs now"
        )
        hint = f"{why}: fewer than recorded; once idle, `fleetform state rm {record.address}`"
        return Readiness(state=NodeState.NOT_READY, reason=hint, observed_at=seen.cluster.now)
    return _ready(seen, node, host)


def _made(seen: Snapshot, record: Record) -> bool:
    return any(found.id == record.outputs["id"] for found, _ in seen.things)


def _ready(seen: Snapshot, node: Node, settings: Mapping[str, Any]) -> Readiness:
    reason = _not_ready(seen, node, settings)
    down = bool(node.states & {"DOWN", "FAIL", "NOT_RESPONDING"})
    state = NodeState.NOT_READY if reason else NodeState.READY
    return Readiness(state=state, reason=reason, observed_at=seen.cluster.now, down=down)


def _not_ready(seen: Snapshot, node: Node, settings: Mapping[str, Any]) -> str | None:
    """Why a job cannot start on a node now, whatever room there is."""
    partition = seen.cluster.partitions.get(str(settings.get("partition")))
    if partition is None:
        return f"Slurm has no partition `{settings.get('partition')}` any more"
    if partition.state != "UP":
        return f"the partition {partition.name} is {partition.state.lower()}"
    if node.name not in partition.nodes:
        return f"it is not in the partition {partition.name} any more"
    only = settings.get("reservation")
    odd = node.states - WORKING
    if only is not None and node.name in seen.reserved.get(str(only), frozenset()):
        odd -= {"RESERVED", "MAINT", "MAINTENANCE"}
    elif only is not None:
        return f"it is not in the reservation {only}"
    if not odd:
        return None
    words = [_SAID.get(state, state.lower()) for state in sorted(odd)]
    said = ", ".join(
        dict.fromkeys(
            w for w in words if not (w == "down" and len(words) > 1 and "down" in "".join(words[1:]))
        )
    )
    if odd & {"RESERVED", "MAINT", "MAINTENANCE"}:
        names = sorted(name for name, nodes in seen.reserved.items() if node.name in nodes)
        said += f" ({', '.join(names)})" if names else ""
    return f"{said}: {node.reason}" if node.reason else said


def key_at(node: Record) -> str:
    """The folder of a node's thing, by the id that its create gave."""
    key = str(node.outputs.get("id", "")).rpartition(".")[2]
    if len(key) != len(key_of("")) or not set(key) <= set("0123456789abcdef"):
        raise PermanentError(PermanentKind.NOT_FOUND, f"{node.address} was not made", about=str(node.address))
    return key
