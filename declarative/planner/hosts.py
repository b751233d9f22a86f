"""Hosts that exist, and the nodes of partitions: which node each of them is or will be. Pure.

A host keeps its node's name while others come and go; a new host gets the lowest free number.
A partition's nodes exist without being made, and their cluster gives shares of them to others, too. A node
that is not recorded yet is planned as if it were: its record costs nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from declarative.model.blocks import Shape, as_declared, split
from declarative.model.diagnostic import Diagnostic, Severity, Span
from declarative.model.inputs import NodeInputs, data_of
from declarative.model.resource import INSTANCE_ID, SLURM, SSH, Desired, Host, Offer, TaskWant, node_inputs
from declarative.model.schema import encode
from declarative.model.spec import Fleet
from declarative.model.spec.fleet import HostFields, SshConfig, fingerprint, host_keys, own_only
from declarative.model.spec.values import NodeName, Resources
from declarative.model.state import Address, Record, State, natural
from declarative.model.status import HostRefusal
from declarative.model.text import and_more
from declarative.placement.problem import NodeType, Unseen, of_offer, offer_name
from declarative.planner.inventory import Inventory, blocks_of_others, refused_hint
from declarative.planner.plan import Op, Plan

ADDRESSES = ("hostname", "internal_ip", "address", "public_address")
"""The keys of addresses: in the record of a host, and in the outputs of a node."""
OF_JOBS = ("partition", "constraint", "account", "qos", "reservation")
"""The recorded fields of a partition's node: jobs are submitted with them."""
SHAPING = ("resources", "gpus")
"""The fields of a host that say which part of it its node is."""
LOOKED_AT = ("internal_ip", "network", "trust", *SHAPING)
"""The fields of a host that count only after a look at it."""
OF_NODES = (*LOOKED_AT, "env")
"""The fields of a host that do not say how it is reached."""


def shaping(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What is declared of the shape of a host, in its recorded fields."""
    return {key: fields[key] for key in SHAPING if fields.get(key)}


def hosts_of(desired: Desired, state: State) -> tuple[Host, ...]:
    """Every declared host with its node's name, by fleet and in the order of the hosts. Each partition has
    one entry for all its nodes, which `named` names.
    """
    known, taken = _names(state)
    out: list[Host] = []
    for fleet in desired.fleets.values():
        free = _free_names(str(fleet.name), taken)
        for host in declared_hosts(fleet):
            if host.whole:
                out.append(host)
                continue
            name = known.get((host.fleet, host.backend, host.key)) or next(free)
            out.append(replace(host, name=name))
    return tuple(out)


def _names(state: State) -> tuple[dict[tuple[str, str, str], str], set[str]]:
    """Fleet, backend and key of each host that is a node → that node's name; and the names of all nodes."""
    pending = [(i.address.name, i.typed) for i in state.intents if i.address.kind == "node" and i.inputs]
    nodes = [*pending, *((record.address.name, record.node) for record in state.of("node"))]
    known = {
        (node.fleet, node.backend, node.host_key): name
        for name, node in nodes
        if isinstance(node, NodeInputs) and node.host
    }
    return known, {name for name, _ in nodes}


def with_node_names(want: TaskWant, desired: Desired, state: State) -> TaskWant:
    """The task with names of nodes for the addresses in its `instances`. An unknown address stays."""
    pins = want.spec.instances
    if all(pin.host is None for pin in pins):
        return want
    names: dict[str, list[str]] = {}
    pairs = [(h.name, h.fields.get(key)) for h in hosts_of(desired, state) for key in ADDRESSES]
    pairs += [(r.address.name, r.outputs.get(key)) for r in state.of("node") for key in ADDRESSES]
    for name, address in pairs:
        if address:
            names.setdefault(str(address), []).append(name)
    meant = (name for pin in pins for name in (names.get(pin.host, [pin]) if pin.host else [pin]))
    instances = tuple(NodeName(name) for name in dict.fromkeys(meant))
    return replace(want, spec=replace(want.spec, instances=instances))


def _free_names(fleet: str, taken: Collection[str]) -> Iterator[str]:
    number = 0
    while True:
        if f"{fleet}-{number}" not in taken:
            yield f"{fleet}-{number}"
        number += 1


def declared_hosts(fleet: Fleet) -> tuple[Host, ...]:
    """The hosts of a fleet, without node names; none if the fleet launches its nodes."""
    host = partial(Host, fleet=str(fleet.name), name="", backend=backend_of(fleet))
    if fleet.partition is not None:
        settings = {name: value for name in OF_JOBS if (value := getattr(fleet, name)) is not None}
        return (host(key="", fields=settings),)
    config = fleet.ssh_config
    if config is None:
        ids = enumerate(fleet.instance_ids)
        return tuple(host(key=instance, fields={INSTANCE_ID: instance}, index=i) for i, instance in ids)
    keyed = enumerate(zip(config.hosts, host_keys(config), strict=True))
    return tuple(
        host(key=key, fields=_fields(config, h), blocks=h.blocks, index=i, topology=tuple(h.topology))
        for i, (h, key) in keyed
    )


def host_connections(desired: Desired) -> dict[tuple[str, str], dict[str, Any]]:
    """How each declared host is reached, by backend and key. The volumes on it record that."""
    hosts = (h for fleet in desired.fleets.values() for h in declared_hosts(fleet) if not h.whole)
    return {(h.backend, h.key): {k: v for k, v in h.fields.items() if k not in OF_NODES} for h in hosts}


def has_hosts(desired: Desired, backend: str) -> bool:
    """Whether a backend is one of hosts that exist."""
    known = desired.backends.get(backend)
    return known.provider == SSH if known else backend == SSH


def backend_of(fleet: Fleet) -> str:
    """The backend of a fleet's hosts."""
    return str(next(iter(fleet.backends), SLURM if fleet.partition is not None else SSH))


def _fields(config: SshConfig, host: HostFields) -> dict[str, Any]:
    """The recorded fields of a host. The fleet supplies those that the host leaves out."""
    jump = host.proxy_jump or config.proxy_jump
    fields = {
        "hostname": host.hostname,
        "port": host.port or config.port,
        "user": host.user or config.user,
        "identity_file": host.identity_file or config.identity_file,
        "known_hosts": config.known_hosts,
        "host_keys": [str(key) for key in host.host_keys or config.host_keys],
        "proxy_jump": encode(jump) if jump else None,
        "internal_ip": host.internal_ip,
        "network": config.network,
        "resources": _numbers(host.resources),
        "gpus": list(host.gpus),
        "trust": host.trust,
        "env": dict(host.env),
    }
    return {key: value for key, value in fields.items() if value}


WAY = ("hostname", "port", "user", "identity_file", "known_hosts", "host_keys", "proxy_jump")
"""The recorded fields of a host that say how it is reached."""


def reached_by(recorded: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded fields of a host, reached as `fields` say: a corrected port counts at once."""
    return {
        **{key: value for key, value in recorded.items() if key not in WAY},
        **{key: value for key, value in fields.items() if key in WAY},
    }


def _numbers(declared: Resources | None) -> dict[str, Any]:
    """The declared resources as fields of `Shape`; see `as_declared`. A range gives its least value, which is
    certain.
    """
    if declared is None:
        return {}
    sizes = {"cpu": declared.cpu, "memory_mib": declared.memory, "disk_mib": declared.disk}
    numbers: dict[str, Any] = {key: size.min or None for key, size in sizes.items() if size}
    gpu = declared.gpu
    if gpu:
        numbers |= {
            "gpus": gpu.count.min,
            "gpu_name": ",".join(gpu.names) or None,
            "gpu_memory_mib": gpu.memory.min if gpu.memory else None,
            "gpu_vendor": gpu.vendor,
        }
    return {key: value for key, value in numbers.items() if value is not None}


def no_meeting(addresses: Mapping[str, str]) -> str | None:
    """Why nodes of hosts cannot be a gang with these addresses, by their names; None if they may be.

    Behind port forwards or on bridges of containers, each host sees an address that means itself, or
    another machine elsewhere. A gang would run, with all its processes on one host.
    """
    if len(addresses) < 2:
        return None
    for name, address in sorted(addresses.items(), key=lambda item: natural(item[0])):
        if kind := own_only(address):
            return f"node/{name} has the address {address}, which is {kind}: no other host reaches it there"
    by_address: dict[str, list[str]] = {}
    for name in sorted(addresses, key=natural):
        by_address.setdefault(addresses[name], []).append(f"node/{name}")
    for address, names in by_address.items():
        if len(names) > 1:
            return f"{' and '.join(names[:2])} have the same address {address}"
    return None


MEET_HINT = (
    "write the address by which the other hosts reach it as the host's `internal_ip`, or the network that "
    "they share as `network: 10.0.0.0/8` of `ssh_config`"
)


def addresses_of(
    names: Iterable[str], records: Mapping[Address, Record], offers: Iterable[Offer]
) -> dict[str, str]:
    """Node → address, of those nodes of hosts that are recorded or were looked at."""
    observed = {o.host.name: o.address for o in offers if o.host and o.address}
    out: dict[str, str] = {}
    for name in names:
        record = records.get(Address("node", name))
        recorded = record.node_address if record and record.node.is_ssh_host else None
        if address := observed.get(name) or recorded:
            out[name] = address
    return out


def declared_shape(host: Host) -> Shape | None:
    """The declared shape of a host; None if its CPUs or memory have to be read from it."""
    if {"cpu", "memory_mib"} <= set(host.declared):
        return as_declared(Shape(cpu=0, memory_mib=0), host.declared)
    return None


def offer_of_host(
    host: Host, shape: Shape, can: frozenset[str] | None = None, address: str | None = None
) -> Offer:
    """A host as an offer. It makes one node, and costs nothing.

    It is a zone of its own: a volume on its disk exists only there.
    """
    return Offer(
        backend=host.backend,
        region=SSH,
        zone=host.key,
        instance_type=host.key,
        shape=shape,
        price=0.0,
        limit=1,
        host=host,
        can=can,
        address=address,
    )


def unknown_offers(
    fleet: Fleet, backends: Iterable[str], occupied: Collection[tuple[str, str]], inventory: Inventory
) -> tuple[Unseen, ...]:
    """Offers that a fleet may get beside its nodes, once its hosts are ready or its backends can be read.
    `occupied` are the backends and keys of its nodes.
    """
    if not fleet.exists:
        names = [f"backend/{name}" for name in backends]
        return tuple(Unseen(target=n, detail="it could not be read") for n in names if n in inventory.unread)
    detail = why_unasked(fleet, inventory)
    if detail and not occupied:
        return tuple(Unseen(target=f"backend/{name}", detail=detail) for name in backends)
    out: list[Unseen] = []
    for left_out in inventory.left_out:
        host = left_out.host
        if host.fleet == fleet.name and (host.backend, host.key) not in occupied:
            offer = offer_of_host(host, left_out.shape or Shape(cpu=0, memory_mib=0))
            target = offer_name(NodeType(*of_offer(offer, fleet)))
            out.append(
                Unseen(target=target, detail=left_out.reason, offer=offer, known=left_out.shape is not None)
            )
    return tuple(out)


def why_unasked(fleet: Fleet, inventory: Inventory) -> str | None:
    """What is said of a fleet whose cluster did not tell the nodes of its partition, or was not asked."""
    unknown = fleet.partition and fleet.name not in inventory.existing
    return f"it has not told the nodes of the partition {fleet.partition}" if unknown else None


def host_of(node: NodeInputs, name: str) -> Host:
    """The host that a node of this name is."""
    return Host(fleet=node.fleet, name=name, backend=node.backend, key=node.host_key, fields=node.host)


def hosts_of_plan(plan: Plan) -> tuple[Host, ...]:
    """The hosts that a plan makes nodes."""
    return tuple(
        host_of(node, a.address.name)
        for a in plan.actions
        if a.op is Op.CREATE and isinstance(node := a.typed, NodeInputs) and node.host
    )


def observed_offer(inventory: Inventory, host: Host) -> Offer | None:
    """The observed offer of a declared host, with its node's name there."""
    for offer in inventory.offers.get(host.backend, ()):
        offered_host = offer.host
        if offered_host and (offered_host.fleet, offered_host.key) == (host.fleet, host.key):
            return replace(offer, host=replace(host, name=offered_host.name))
    return None


# ------------------------------------------------------------------------------------------- partitions


def partition_node_names(fleet: str, backend: str, keys: Sequence[str], state: State) -> dict[str, str]:
    """The node name of each of a partition's nodes: the recorded one, else by the number in its own name,
    else with the lowest free number.
    """
    known, taken = _names(state)
    out = {key: name for key in keys if (name := known.get((fleet, backend, key)))}
    for key in keys:
        number = re.search(r"[0-9]{1,9}$", key)
        own_name = f"{fleet}-{int(number[0])}" if number else None
        if key not in out and own_name and own_name not in taken:
            out[key] = own_name
            taken.add(own_name)
    free = _free_names(fleet, taken)
    for key in keys:
        if key not in out:
            out[key] = next(free)
    return out


def with_partition_nodes(state: State, desired: Desired, inventory: Inventory) -> State:
    """The state as if all nodes of the declared partitions were recorded that can be split as their fleets
    say.
    """
    records = dict(state.records)
    strays: dict[str, Mapping[int, str]] = dict(state.strays)
    for name, nodes in inventory.existing.items():
        fleet = desired.fleets.get(name)
        if fleet is None:
            continue
        for partition_node in nodes:
            host, shape = partition_node.host, partition_node.shape
            address = Address("node", host.name)
            if split(shape, fleet.blocks.number) is None or address in records:
                continue
            offer = Offer(
                backend=host.backend,
                region=SLURM,
                instance_type=host.key,
                shape=shape,
                price=partition_node.price,
                limit=1,
                host=host,
                can=partition_node.readiness.can,
            )
            inputs = node_inputs(fleet, offer, None)
            records[address] = Record(address=address, backend=host.backend, inputs=data_of(inputs))
            strays[host.name] = blocks_of_others(shape, inputs.blocks, partition_node.taken, ())
    return replace(state, records=records, strays=strays)


def hosts_in(fleet: Fleet, inventory: Inventory) -> tuple[Host, ...]:
    """The nodes of a fleet's partition, as they were observed."""
    return tuple(partition_node.host for partition_node in inventory.existing.get(str(fleet.name), ()))


# ------------------------------------------------------------------------------------ hosts that are not used

MOST_NAMED = 20
"""A message names at most so many hosts; more are counted."""
Refused = tuple[Host, HostRefusal]


def in_short(fields: Mapping[str, Any], refusal: HostRefusal) -> str:
    """Why a host is not used, in words that are the same for all hosts of one cause."""
    way = f" of {refusal.hostname}, on the way to it," if refusal.on_the_way else ""
    if refusal.key:
        verb = "has changed" if refusal.known else "is not known"
        return f"the key{way} {verb}" if way else f"its key {verb}"
    if refusal.on_the_way:
        jump = fields.get("proxy_jump") or {}
        fields = jump if jump.get("hostname") == refusal.hostname else {}
    identity = fields.get("identity_file")
    with_what = f"`{identity}`" if identity else "the keys of the agent and of `~/.ssh`"
    user = f" of {refusal.user}" if refusal.user else ""
    who = f"{refusal.hostname}, on the way to it," if way else "it"
    return f"{who} refuses the login{user} with {with_what}"


def contact_notes(desired: Desired, state: State, inventory: Inventory) -> list[Diagnostic]:
    """One warning for all hosts of a fleet that are not used for one cause, whether they are nodes or not."""
    refused = [(left_out.host, left_out.refusal) for left_out in inventory.left_out if left_out.refusal]
    for record in state.of("node"):
        observed = inventory.readiness.get(record.address.name)
        if record.node.is_ssh_host and observed and observed.refusal:
            refused.append((host_of(record.node, record.address.name), observed.refusal))
    fleets = {host.fleet for host, _ in refused} & desired.fleets.keys()
    declared = {(h.fleet, h.key): h for name in sorted(fleets) for h in declared_hosts(desired.fleets[name])}
    groups: dict[tuple[str, str], dict[str, Refused]] = {}
    for host, refusal in refused:
        present = declared.get((host.fleet, host.key), host)
        key = present.fleet, in_short(present.fields, refusal)
        groups.setdefault(key, {})[present.key] = present, refusal
    return [_note(why, list(group.values()), desired) for (_, why), group in groups.items()]


def _note(why: str, group: Sequence[Refused], desired: Desired) -> Diagnostic:
    host, refusal = group[0]
    address, is_one = f"fleet/{host.fleet}", not group[1:]
    named = and_more((h.key for h, _ in group), MOST_NAMED)
    if not is_one:
        why = why.replace("its key is", "their keys are").replace("its key has", "their keys have")
        why = why.replace("way to it,", "way to them,").replace("it refuses", "they refuse")
    hosts, are = ("host", "is") if is_one else ("hosts", "are")
    code = "host-key-changed" if refusal.known else "host-key-unknown"
    field = "hosts"
    if not refusal.key:
        code = "identity-refused"
        field = "proxy_jump.identity_file" if refusal.on_the_way else "identity_file"
    names = (f"{address}.hosts.{host.index}.{field}", f"{address}.{field}", address)
    return Diagnostic(
        code=code,
        summary=f"{hosts} {named} of {address} {are} not used: {why}",
        hint=_hint(host, refusal, group),
        # The line to change: of the private key that was refused, or of the hosts.
        span=next((place for name in names if (place := desired.places.get(name))), None),
        address=address,
        severity=Severity.WARNING,
        block=tuple(_block(group, desired)),
    )


def changed_key(refusal: HostRefusal, address: str, span: Span | None) -> Diagnostic:
    """The error about one host whose key is another one, for who was to trust it."""
    known = ", ".join(map(fingerprint, refusal.known))
    return Diagnostic(
        code="host-key-changed",
        summary=f"the key of {refusal.hostname} has changed: known is {known}, it offers "
        f"{fingerprint(refusal.key)}",
        hint=refused_hint(refusal),
        span=span,
        address=address,
    )


def _hint(host: Host, refusal: HostRefusal, group: Sequence[Refused]) -> str:
    hint = refused_hint(refusal)
    if refusal.key and refusal.on_the_way and host.proxy_jump.get("hostname") != refusal.hostname:
        return f"ssh's configuration names it: once its fingerprint is checked, write into {refusal.file}:"
    if refusal.key and not refusal.known:
        more = f" (of {MOST_NAMED}; more follow)" if len(group) > MOST_NAMED else ""
        return f"{hint}; by hand, once they are checked, write in `ssh_config`{more}:"
    return hint


def _block(group: Sequence[Refused], desired: Desired) -> Iterator[str]:
    for host, refusal in group[:MOST_NAMED]:
        if not refusal.key:
            return
        way = refusal.on_the_way
        prints = fingerprint(refusal.key)
        if refusal.known:
            known = ", ".join(map(fingerprint, refusal.known))
            yield f"{refusal.hostname}: known is {known}, it offers {prints}"
        elif way and host.proxy_jump.get("hostname") != refusal.hostname:
            yield f"{refusal.name} {refusal.key}  # {prints}"
        elif way:
            jump = {**host.proxy_jump, "host_keys": [refusal.key]}
            yield f"proxy_jump: {in_flow(jump)}  # {prints}"
        else:
            # The host's own fields in the YAML.
            fleet = desired.fleets.get(host.fleet)
            hosts = fleet.ssh_config.hosts if fleet and fleet.ssh_config else ()
            fields: dict[str, Any] = encode(hosts[host.index]) if host.index < len(hosts) else {}
            if fields.get("hostname") != host.hostname:
                fields = {"hostname": host.hostname}
            yield f"- {in_flow({**fields, 'host_keys': [refusal.key]})}  # {prints}"
        if way:
            return


_PLAIN = re.compile(r"[A-Za-z/~][A-Za-z0-9_./@~+=-]*(?: [A-Za-z0-9_./@~+=-]+)*", re.ASCII)
_WORDS = frozenset({"~", "true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def in_flow(value: Any) -> str:
    """Plain data as YAML in one line. Texts that might be read as something else are quoted."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {in_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(in_flow, value)) + "]"
    if isinstance(value, str) and value.lower() not in _WORDS:
        address = re.fullmatch(r"[0-9]+(\.[0-9]+){3}", value, re.ASCII)
        return value if address or _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)
