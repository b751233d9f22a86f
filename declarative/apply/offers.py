"""What new nodes can be made of: the offers of backends, declared and reported, the nodes of partitions,
hosts that exist, and instances that a fleet names by their ids.

A partition that cannot be read hides nothing: its records stay, and its nodes are unknown. A silent host
hides nothing of the others. Instances of one backend are looked at together, page by page, without asking
the machines themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from declarative.apply.backend_client import BackendClient
from declarative.apply.backends import Backends, of_partition
from declarative.apply.outages import ADOPTED, OFFERS
from declarative.apply.parallel import PATIENT, ask_backends, prompt_answers
from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.resource import (
    CATALOGUED,
    EXISTING,
    INSTANCE_ID,
    LOCAL,
    Host,
    LeftOut,
    Offer,
    catalog_offers,
    merge_offers,
)
from declarative.model.spec import Backend
from declarative.model.state import Address, State, natural
from declarative.model.status import NodeState, Readiness, Risk
from declarative.model.text import and_more
from declarative.planner.hosts import LOOKED_AT, declared_shape, in_short, offer_of_host, partition_node_names
from declarative.planner.inventory import HOST_HINT, PartitionNode
from declarative.planner.node_health import judged
from declarative.provider import PermanentError, ProviderError
from declarative.provider.optional import Look, Member
from declarative.retry import PATIENCE, call

MOST_MESSAGE = 1_000
"""Characters of a provider's message."""

MOST_OFFERS = 500_000
"""The most offers of a project's backends together: a stranger's few lines must not eat the machine."""


Answers = dict[str, tuple[tuple[Offer, ...] | None, Diagnostic | None]]
"""Backend → its reported offers, and why it could not report them. None: nothing can be launched there."""


def ask_offers(name: str, backends: Backends, answers: Answers, *, offline: bool = False) -> None:
    """Ask a backend, unless `answers` has too many offers already; see `known_offers`."""
    known = sum(len(offers or ()) for offers, _ in list(answers.values()))
    if backends.driver(name) in EXISTING or (offline and is_unasked(name, backends)) or known > MOST_OFFERS:
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
            answers[name] = backends.ask(name, BackendClient.offers, part=OFFERS), None
            if backends.hard and (can := backends.get(name).can()) is not None:
                backends.able[name] = can
    except ProviderError as error:
        answers[name] = (), unreadable(name, error)


def is_unasked(name: str, backends: Backends) -> bool:
    """Whether offline only the declared offers of a backend are known."""
    return backends.driver(name) not in (*EXISTING, *CATALOGUED)


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
    members = backends.ask(backend, lambda client: client.members(settings))
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


# ------------------------------------------------------------------------------------------ hosts that exist

NOT_YET = "it has not answered yet: it is much slower than the others"
MOST_NAMED = 20
"""Hosts that are not ready and are named one by one; more are counted."""
HostAnswer = Offer | LeftOut
"""The offer of a host, or why it cannot be a node."""
ASK = "name CPUs and memory in the host's `resources`, or plan without `--offline`"


def host_offers(
    hosts: Iterable[Host],
    state: State,
    backends: Backends,
    *,
    gone: Collection[Address],
    recovered: Collection[Address],
    reshaped: Collection[str] = (),
    known: Mapping[str, Sequence[Offer]],
    offline: bool,
    patience: float = PATIENT,
) -> tuple[dict[str, tuple[Offer, ...]], list[LeftOut], dict[str, Risk]]:
    """Backend → the hosts that are fit to become nodes, why the others are not, and what some would risk.
    `known` are the backends' offers: they give the shape of an instance's type. `reshaped`: see `Readiness`,
    by the nodes' names.
    """
    named = [h for h in hosts if not of_partition(h)]
    due = [h for h in named if h.name in reshaped or _due(h, state, gone=gone, recovered=recovered)]
    offers: dict[str, tuple[Offer, ...]] = {}
    left_out: list[LeftOut] = []
    risks: dict[str, Risk] = {}
    by_backend = _by_backend(due)

    def ask(name: str) -> list[HostAnswer]:
        of_cloud = list(filter(_is_instance, by_backend[name]))
        others = [h for h in by_backend[name] if not _is_instance(h)]
        answers = (
            list(map(_declared_offer, others))
            if offline
            else _looked_at(others, name, backends, patience, risks)
        )
        if of_cloud:
            answers += instances(of_cloud, name, backends, known.get(name, ()), offline=offline)
        return answers

    for name, answers in ask_backends(by_backend, ask).items():
        offers[name] = tuple(answer for answer in answers if isinstance(answer, Offer))
        left_out += [answer for answer in answers if isinstance(answer, LeftOut)]
    return offers, left_out, risks


def risk_notes(risks: Mapping[str, Risk]) -> list[Diagnostic]:
    """The warnings about what nodes and hosts risk, by their names: one for all that risk the same."""
    alike: dict[Risk, list[str]] = {}
    for name in sorted(risks, key=natural):
        alike.setdefault(risks[name], []).append(name)
    return [
        Diagnostic(
            code="cleaned-folder",
            summary=f"{and_more((f'node/{name}' for name in names), MOST_NAMED)}: {risk.what}",
            hint=risk.remedy if names[1:] else risk.remedy.replace("NODE", names[0]),
            address=f"node/{names[0]}",
            severity=Severity.WARNING,
        )
        for risk, names in alike.items()
    ]


def _by_backend(hosts: Iterable[Host]) -> dict[str, list[Host]]:
    out: dict[str, list[Host]] = {}
    for host in hosts:
        out.setdefault(host.backend, []).append(host)
    return dict(sorted(out.items()))


def _is_instance(host: Host) -> bool:
    """Whether it is named by the id that a cloud gave it."""
    return INSTANCE_ID in host.fields


def notes_on(left_out: Iterable[LeftOut], *, offline: bool) -> list[Diagnostic]:
    """The warnings about hosts that are left out: one for all of a fleet with the same reason. About those
    that answer and are refused, `contact_notes` has more to say.
    """
    alike: dict[tuple[str, str], list[LeftOut]] = {}
    for unseen in left_out:
        if unseen.refusal is None:
            alike.setdefault((unseen.host.fleet, unseen.reason), []).append(unseen)
    notes: list[Diagnostic] = []
    for items in list(alike.values())[:MOST_NAMED]:
        fleet, adopts = items[0].host.fleet, _is_instance(items[0].host)
        word, hint = ("instance", "plan without `--offline`") if adopts else ("host", ASK)
        which, are = (f"{word}s", "are") if items[1:] else (word, "is")
        named = and_more((unseen.host.key for unseen in items), MOST_NAMED)
        notes.append(
            Diagnostic(
                code="host-not-ready",
                summary=f"{which} {named} of fleet/{fleet} {are} left out: {items[0].reason}",
                hint=hint if offline else HOST_HINT,
                address=f"fleet/{fleet}",
                severity=Severity.WARNING,
            )
        )
    more = sum(len(items) for items in list(alike.values())[MOST_NAMED:])
    if more:
        notes.append(
            Diagnostic(
                code="host-not-ready",
                summary=f"{more} more hosts are not ready",
                hint="`fleetform status --refresh` lists them",
                severity=Severity.WARNING,
            )
        )
    return notes


def survey(
    hosts: Iterable[Host],
    state: State,
    backends: Backends,
    *,
    gone: Collection[Address] = (),
    patience: float = PATIENT,
) -> list[tuple[Host, LeftOut | None]]:
    """Every declared host that is no node, looked at now, and why it cannot be one (None if it can)."""
    there = state.records.keys() - set(gone)
    named = (h for h in hosts if h.name and not _is_instance(h) and not of_partition(h))
    due = [h for h in named if Address("node", h.name) not in there]
    unfit: dict[Host, LeftOut] = {}
    by_backend = _by_backend(due)
    asked = ask_backends(by_backend, lambda name: _looked_at(by_backend[name], name, backends, patience, {}))
    for answers in asked.values():
        unfit |= {answer.host: answer for answer in answers if isinstance(answer, LeftOut)}
    return [(h, unfit.get(h)) for h in due]


def _due(host: Host, state: State, *, gone: Collection[Address], recovered: Collection[Address]) -> bool:
    """Whether a host has to be looked at: it is no node (any more), or something else of it was declared."""
    address = Address("node", host.name)
    record = state.records.get(address)
    if record is None or address in gone:
        return address not in recovered
    was = record.node.host
    return any((was.get(k) or None) != (host.fields.get(k) or None) for k in LOOKED_AT)


def _declared_offer(host: Host) -> HostAnswer:
    """Offline: a host as it is declared."""
    if shape := declared_shape(host):
        return offer_of_host(host, shape, address=host.fields.get("internal_ip"))
    return LeftOut(host=host, reason="what it has is not known offline")


def _looked_at(
    hosts: Sequence[Host], name: str, backends: Backends, patience: float, risks: dict[str, Risk]
) -> list[HostAnswer]:
    """What looks at hosts showed, host by host. What a host would risk is put into `risks`."""

    def ask(host: Host) -> Look:
        return backends.get(name).look({host.name: host.fields})[host.name]

    def look(host: Host) -> Look | Readiness:
        key, rest = (name, host.name), backends.host_rest(host.fleet)
        return backends.outages.read_host(key, partial(ask, host), lambda look: look.readiness, rest)

    try:
        looks = prompt_answers({host.name: host for host in hosts}, look, patience)
    except ProviderError as error:
        return [LeftOut(host=h, reason=error.summary, shape=declared_shape(h)) for h in hosts]
    answers: list[HostAnswer] = []
    for host in hosts:
        answer = looks.get(host.name)
        if answer is None:
            answers.append(LeftOut(host=host, reason=NOT_YET, shape=declared_shape(host)))
            continue
        readiness, shape = (
            (answer, None)
            if isinstance(answer, Readiness)
            else (judged(answer.readiness, backends.health.get(host.fleet)), answer.shape)
        )
        if readiness.risk:
            risks[host.name] = readiness.risk
        if shape and readiness.state is NodeState.READY:
            answers.append(offer_of_host(host, shape, readiness.can, getattr(answer, "address", None)))
        else:
            answers.append(
                LeftOut(
                    host=host,
                    reason=_in_words(readiness, host.fields),
                    shape=shape or declared_shape(host),
                    refusal=readiness.refusal,
                )
            )
    return answers


def _in_words(readiness: Readiness, fields: Mapping[str, Any]) -> str:
    """Why a host is not ready, without its name at the beginning: it stands beside that."""
    refusal, reason = readiness.refusal, readiness.reason or "no reason is known"
    if refusal:
        reason = in_short(fields, refusal)
    else:
        user, port = (fields.get(key) for key in ("user", "port"))
        name = f"{f'{user}@' if user else ''}{fields.get('hostname')}{f':{port}' if port else ''}"
        reason = f"it {reason.removeprefix(f'{name} ')}" if reason.startswith(f"{name} ") else reason
    return f"{readiness.state.value.replace('_', ' ')}: {reason}"


def instances(
    hosts: Sequence[Host], name: str, backends: Backends, known: Sequence[Offer], *, offline: bool
) -> list[HostAnswer]:
    """The offers of instances that can be adopted, and why the others cannot, one by one.

    `known` are the backend's offers: the shape and the price of a type.
    """
    if offline:
        return [LeftOut(host=host, reason="what it is is not known offline") for host in hosts]
    try:
        keys = [host.key for host in hosts]
        there = backends.ask(name, lambda client: client.existing("node", keys), part=ADOPTED)
    except ProviderError as error:
        reason = f"{error.summary}; {error.hint}" if error.hint else error.summary
        return [LeftOut(host=host, reason=reason) for host in hosts]
    by_id = {instance.id: instance for instance in there}
    # The first offer of each type that is launched, by region, instance type and spot.
    types = {(o.region, o.instance_type, o.spot): o for o in reversed(known) if o.host is None}
    answers: list[HostAnswer] = []
    for host in hosts:
        instance = by_id.get(host.key)
        if instance is None:
            why = (
                f"backend {name} has no such instance; it has ended, or is in another region or account: "
                "take it out of `instance_ids`"
            )
        elif instance.lineage not in (None, backends.lineage):
            why = (
                f"it is {instance.address} of another state (lineage {instance.lineage}): "
                "take it out of that one first, or, if that is lost, remove fleetform's tags"
            )
        elif offer := types.get((instance.region, instance.type, instance.spot)):
            shape = replace(offer.shape, disk_mib=None)  # its disk is its own
            answers.append(replace(offer, shape=shape, zone=instance.zone, limit=1, bids=False, host=host))
            continue
        else:
            why = (
                f"backend {name} does not know its type `{instance.type}`: "
                "declare it in the backend's `catalog`"
            )
        answers.append(LeftOut(host=host, reason=why))
    return answers
