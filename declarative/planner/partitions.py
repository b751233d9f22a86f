"""The nodes of partitions: which they are, and what others hold there. Pure.

They are there without being made, and an engine of their own gives shares of them to others, too. What others
hold counts as busy. A node that is not recorded yet is planned with as if it were: its record costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from declarative.model.blocks import Shape, share, split
from declarative.model.inputs import NodeInputs, data_of
from declarative.model.resource import SLURM, Desired, Host, Offer, Taken, node_inputs
from declarative.model.spec import Fleet
from declarative.model.state import Address, Record, State
from declarative.planner.types import Inventory, Standing


def offer_of(found: Standing) -> Offer:
    """A node of a partition as what its record is made of."""
    host = found.host
    return Offer(
        backend=host.backend,
        region=SLURM,
        instance_type=host.key,
        shape=found.shape,
        price=found.price,
        limit=1,
        host=host,
        can=found.readiness.can,
    )


def named(fleet: str, backend: str, keys: Sequence[str], state: State) -> dict[str, str]:
    """The node's name of each of a partition's nodes: the recorded one, else by the number in its own name,
    else the lowest that is free.
    """
    begun = [(i.address.name, i.typed) for i in state.intents if i.address.kind == "node" and i.inputs]
    nodes = [*begun, *((r.address.name, r.node) for r in state.of("node"))]
    known = {
        node.instance_type: name
        for name, node in nodes
        if isinstance(node, NodeInputs) and node.host and (node.fleet, node.backend) == (fleet, backend)
    }
    out = {key: known[key] for key in keys if key in known}
    taken = {name for name, _ in nodes}
    for key in keys:
        number = re.search(r"[0-9]{1,9}$", key)
        wanted = f"{fleet}-{int(number[0])}" if number else ""
        if key not in out and wanted and wanted not in taken:
            out[key] = wanted
            taken.add(wanted)
    following = 0
    for key in keys:
        if key in out:
            continue
        while f"{fleet}-{following}" in taken:
            following += 1
        out[key] = f"{fleet}-{following}"
        taken.add(out[key])
    return out


def busy(shape: Shape, total: int, taken: Iterable[Taken], held: Collection[int]) -> dict[int, str]:
    """The blocks of a node that others hold, the last first, each with who does; `held` are ours.

    A share of any of CPUs, memory and GPUs makes a block busy: it cannot be given away whole.
    """
    per = share(shape, total, 1)
    free = [block for block in reversed(range(total)) if block not in held]
    out: dict[int, str] = {}
    cpus = memory = gpus = 0
    for one in taken:
        cpus, memory, gpus = cpus + one.cpu, memory + one.memory_mib, gpus + one.gpus
        sums = ((cpus, per.cpu), (memory, per.memory_mib), (gpus, per.gpus))
        wanted = max(-(-has // each) if each else total if has else 0 for has, each in sums)
        for block in free[len(out) : wanted]:
            out[block] = one.holder
    return out


def with_nodes(state: State, desired: Desired, inventory: Inventory) -> State:
    """The state, were all nodes of the declared partitions recorded."""
    records = dict(state.records)
    strays: dict[str, Mapping[int, str]] = dict(state.strays)
    for name, nodes in inventory.existing.items():
        fleet = desired.fleets.get(name)
        for found in nodes if fleet is not None else ():
            assert fleet is not None
            record = _new(found, fleet)
            if record is None or record.address in records:
                continue
            records[record.address] = record
            strays[record.address.name] = busy(found.shape, record.node.blocks, found.taken, ())
    return replace(state, records=records, strays=strays)


def _new(found: Standing, fleet: Fleet) -> Record | None:
    """The record that a node would have; None if it cannot be split as the fleet says."""
    if split(found.shape, fleet.blocks.number) is None:
        return None
    inputs = node_inputs(fleet, offer_of(found))
    return Record(
        address=Address("node", found.host.name), backend=found.host.backend, inputs=data_of(inputs)
    )


def hosts_in(fleet: Fleet, inventory: Inventory) -> tuple[Host, ...]:
    """The nodes of a fleet's partition, as they were seen."""
    return tuple(found.host for found in inventory.existing.get(str(fleet.name), ()))
