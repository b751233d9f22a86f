"""Looking at existing hosts: hosts that may become nodes, things on hosts that are nodes, and instances that
a fleet names by their ids.

A silent host hides nothing of the others. Its records stay as they are: it is unreachable, and not gone.
Instances of one backend are looked at together, page by page, without asking the machines themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from declarative.apply.backend_client import BackendClient
from declarative.apply.backends import HOST_REST, Backends, of_partition
from declarative.apply.outages import ADOPTED, HOST
from declarative.apply.parallel import PATIENT, ask_backends, prompt_answers
from declarative.model.diagnostic import Diagnostic, Severity, and_more
from declarative.model.resource import INSTANCE_ID, Host, LeftOut, Offer
from declarative.model.state import Address, Record, State, machine_name, natural
from declarative.model.status import NodeState, Readiness, Risk
from declarative.planner.hosts import LOOKED_AT, declared_shape, in_short, offer_of_host
from declarative.planner.inventory import HOST_HINT
from declarative.provider import ProviderError, StaleError, Thing
from declarative.provider.optional import Existing, Look, Visit
from declarative.retry import Policy, call


def instances(
    hosts: Sequence[Host], name: str, backends: Backends, known: Sequence[Offer], *, offline: bool
) -> tuple[list[Offer], list[LeftOut]]:
    """The offers of instances that can be adopted, and why the others cannot.

    `known` are the backend's offers: the shape and the price of a type.
    """
    if offline:
        return [], [LeftOut(host=host, reason="what it is is not known offline") for host in hosts]
    try:
        keys = [host.key for host in hosts]

        def ask(backend: BackendClient, patience: Policy) -> Sequence[Existing]:
            return call(lambda: backend.existing("node", keys), policy=patience)

        there = backends.read(name, ask, part=ADOPTED)
    except ProviderError as error:
        reason = f"{error.summary}; {error.hint}" if error.hint else error.summary
        return [], [LeftOut(host=host, reason=reason) for host in hosts]
    by_id = {instance.id: instance for instance in there}
    # The first offer of each type that is launched, by region, instance type and spot.
    types = {(o.region, o.instance_type, o.spot): o for o in reversed(known) if o.host is None}
    offers: list[Offer] = []
    left_out: list[LeftOut] = []
    for host in hosts:
        offer = _adopted(host, by_id.get(host.key), types, name, backends.lineage)
        if isinstance(offer, Offer):
            offers.append(offer)
        else:
            left_out.append(LeftOut(host=host, reason=offer))
    return offers, left_out


def _adopted(
    host: Host,
    instance: Existing | None,
    types: Mapping[tuple[str, str, bool], Offer],
    name: str,
    lineage: str,
) -> Offer | str:
    """The offer of an instance, or why the instance is left out."""
    if instance is None:
        why = "it has ended, or is in another region or account: take it out of `instance_ids`"
        return f"backend {name} has no such instance; {why}"
    if instance.lineage not in (None, lineage):
        whose = f"{instance.address} of another state (lineage {instance.lineage})"
        return f"it is {whose}: take it out of that one first, or, if that is lost, remove fleetform's tags"
    type_of = types.get((instance.region, instance.type, instance.spot))
    if type_of is None:
        return (
            f"backend {name} does not know its type `{instance.type}`: declare it in the backend's `catalog`"
        )
    shape = replace(type_of.shape, disk_mib=None)  # its disk is its own
    return replace(type_of, shape=shape, zone=instance.zone, limit=1, bids=False, host=host)


NOT_YET = "it has not answered yet: it is much slower than the others"
SILENT = frozenset({NodeState.UNREACHABLE, NodeState.UNKNOWN})
"""The states of nodes that did not answer, or not yet: nothing more is asked of them for now."""
UNANSWERED = Readiness(state=NodeState.UNKNOWN, reason=NOT_YET)
MOST_NAMED = 20
"""Hosts that are not ready and are named one by one; more are counted."""
ASK = "name CPUs and memory in the host's `resources`, or plan without `--offline`"


def visited(
    name: str, nodes: Sequence[Record], backends: Backends, patience: float, recorded: Mapping[str, Readiness]
) -> dict[str, Visit]:
    """Node of a backend → the answer of its host; `UNANSWERED` for hosts that were not waited for.

    That does not mean that they are away. But a host that was `recorded` as away still has not answered.
    """
    client = backends.get(name)

    def ask(node: Record) -> Visit:
        try:
            return client.visit(node)
        except StaleError:  # the error is reported when its things are listed
            return Visit(readiness=client.readiness([node])[node.address.name])

    def visit(node: Record) -> Visit:
        key, rest = (name, machine_name(node)), backends.host_rest(node.node.fleet)
        answer = backends.outages.read_host(key, partial(ask, node), lambda visit: visit.readiness, rest)
        return Visit(readiness=answer) if isinstance(answer, Readiness) else answer

    answers = prompt_answers({node.address.name: node for node in nodes}, visit, patience)
    visits: dict[str, Visit] = {}
    for node in nodes:
        answer = answers.get(node.address.name, Visit(readiness=UNANSWERED))
        if answer.readiness.refusal:
            reason = in_short(node.node.host, answer.readiness.refusal)
            answer = replace(answer, readiness=replace(answer.readiness, reason=reason))
        last = recorded.get(node.address.name)
        if answer.readiness.state is NodeState.UNKNOWN and last and last.state is NodeState.UNREACHABLE:
            answer = Visit(readiness=last)
        visits[node.address.name] = answer
    return visits


def listed(
    backends: Backends, name: str, known: Collection[str], patience: float
) -> tuple[list[Thing], dict[str, ProviderError], set[str]]:
    """The things on the hosts of a backend, the faults of hosts that could not be listed, and the hosts that
    were not waited for. `known` hosts are not asked.
    """
    faults: dict[str, ProviderError] = {}

    def ask(node: str) -> Sequence[Thing]:
        try:
            one = backends.on(name, node)
            return backends.outages.read(
                name, one.inventory, one.inventory, part=HOST + node, longest=HOST_REST
            )
        except ProviderError as error:
            faults[node] = error
            return ()

    nodes = [node for node in sorted(backends.hosts(name)) if node not in known]
    answers = prompt_answers(dict(zip(nodes, nodes, strict=True)), ask, patience)
    return [t for node in sorted(answers) for t in answers[node]], dict(faults), {*nodes} - answers.keys()


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

    def ask(name: str) -> tuple[list[Offer], list[LeftOut]]:
        named_hosts = [h for h in by_backend[name] if not _is_instance(h)]
        if offline:
            fit, unfit = _declared_offers(named_hosts)
        else:
            fit, unfit = _looked_at(named_hosts, name, backends, patience, risks)
        if of_cloud := list(filter(_is_instance, by_backend[name])):
            adopted, others = instances(of_cloud, name, backends, known.get(name, ()), offline=offline)
            fit, unfit = [*fit, *adopted], [*unfit, *others]
        return fit, unfit

    for name, (fit, unfit) in ask_backends(by_backend, ask).items():
        offers[name] = tuple(fit)
        left_out += unfit
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
    for item in left_out:
        if item.refusal is None:
            alike.setdefault((item.host.fleet, item.reason), []).append(item)
    notes: list[Diagnostic] = []
    for items in list(alike.values())[:MOST_NAMED]:
        fleet, adopts = items[0].host.fleet, _is_instance(items[0].host)
        word, hint = ("instance", "plan without `--offline`") if adopts else ("host", ASK)
        which, are = (f"{word}s", "are") if items[1:] else (word, "is")
        named = and_more((item.host.key for item in items), MOST_NAMED)
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
    for _, left_out in asked.values():
        unfit |= {item.host: item for item in left_out}
    return [(h, unfit.get(h)) for h in due]


def _due(host: Host, state: State, *, gone: Collection[Address], recovered: Collection[Address]) -> bool:
    """Whether a host has to be looked at: it is no node (any more), or something else of it was declared."""
    address = Address("node", host.name)
    record = state.records.get(address)
    if record is None or address in gone:
        return address not in recovered
    was = record.node.host
    return any((was.get(k) or None) != (host.fields.get(k) or None) for k in LOOKED_AT)


def _declared_offers(hosts: Sequence[Host]) -> tuple[list[Offer], list[LeftOut]]:
    """Offline: the hosts as they are declared."""
    offers: list[Offer] = []
    left_out: list[LeftOut] = []
    for host in hosts:
        if shape := declared_shape(host):
            offers.append(offer_of_host(host, shape, address=host.fields.get("internal_ip")))
        else:
            left_out.append(LeftOut(host=host, reason="what it has is not known offline"))
    return offers, left_out


def _looked_at(
    hosts: Sequence[Host], name: str, backends: Backends, patience: float, risks: dict[str, Risk]
) -> tuple[list[Offer], list[LeftOut]]:
    """The offers of hosts, and why the others are left out. What a host would risk is put into `risks`."""

    def ask(host: Host) -> Look:
        return backends.get(name).look({host.name: host.fields})[host.name]

    def look(host: Host) -> Look | Readiness:
        key, rest = (name, host.name), backends.host_rest(host.fleet)
        return backends.outages.read_host(key, partial(ask, host), lambda look: look.readiness, rest)

    try:
        looks = prompt_answers({host.name: host for host in hosts}, look, patience)
    except ProviderError as error:
        return [], [LeftOut(host=h, reason=error.summary, shape=declared_shape(h)) for h in hosts]
    offers: list[Offer] = []
    left_out: list[LeftOut] = []
    for host in hosts:
        answer = looks.get(host.name)
        if answer is None:
            left_out.append(LeftOut(host=host, reason=NOT_YET, shape=declared_shape(host)))
            continue
        readiness, shape = (
            (answer, None) if isinstance(answer, Readiness) else (answer.readiness, answer.shape)
        )
        if readiness.risk:
            risks[host.name] = readiness.risk
        if shape and readiness.state is NodeState.READY:
            offers.append(offer_of_host(host, shape, readiness.can, getattr(answer, "address", None)))
        else:
            left_out.append(
                LeftOut(
                    host=host,
                    reason=_in_words(readiness, host.fields),
                    shape=shape or declared_shape(host),
                    refusal=readiness.refusal,
                )
            )
    return offers, left_out


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
