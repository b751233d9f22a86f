"""Looking: what is there, how nodes and ranks are doing, and what came of calls that were cut short.

Reads the backends and keeps nothing. An empty answer is no evidence: what a listing lacks is asked for
once more before it counts as gone (`drift`), and a backend that cannot be read leaves its nodes unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from declarative.apply.answers import PATIENT
from declarative.apply.backends import Backends
from declarative.apply.drift import Compared, Orphan, compare, each_once, orphan_drift, orphans
from declarative.apply.hosts import SILENT, host_of, host_offers, listed, notes_on, visited
from declarative.apply.offers import known_offers, own_gpus, standing, unreadable
from declarative.apply.polls import node_of_rank, poll
from declarative.apply.renames import RenamedBackend, as_recorded, kept, record_token, to_make
from declarative.apply.unreachable import judged
from declarative.model.diagnostic import Diagnostic, Severity, and_more
from declarative.model.resource import EXISTING, LOCAL, Host, LeftOut, Offer, Taken
from declarative.model.state import (
    ATTEMPT,
    MADE_AS,
    ORPHAN,
    STARTED,
    Address,
    Intent,
    NodeState,
    RankStatus,
    Readiness,
    Record,
    State,
    attempt_id,
    attempt_of,
    given_up,
    made_as,
    rank_of_attempt,
)
from declarative.planner.inventory import Inventory, Standing
from declarative.provider import Provider, ProviderError, Thing
from declarative.provider.optional import Visit
from declarative.retry import PATIENCE, Policy, call
from declarative.spans import named
from declarative.store.check import fault

MADE = ("node", "volume", "attachment")
"""Kinds that a backend lists."""

ANSWERING = (NodeState.READY, NodeState.NOT_READY, NodeState.DRAINING)
"""The states of nodes that can be asked what runs on them."""

ONCE = Policy(deadline=0.0)
"""The patience with a backend of which nothing is wanted."""

MOST_NAMED = 5
"""So many of what a command had begun are named; more are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What came of an intent whose result was not recorded. Those whose backend could not be asked have none:
    they stay open.
    """

    intent: Intent
    record: Record | None = None
    status: RankStatus | None = None
    gone: bool = False


@dataclass(slots=True)
class Seen:
    """What one look found: the inventory for the planner, and what recovery has to write."""

    inventory: Inventory
    resolutions: list[Resolution] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    past: dict[str, dict[str, RankStatus | None]] = field(default_factory=dict)
    """Node → attempt that was given up → what the node says of it now; None for one that it knows not of."""


@dataclass(slots=True)
class _Look:
    readiness: dict[str, Readiness] = field(default_factory=dict)
    ranks: dict[str, RankStatus] = field(default_factory=dict)
    compared: Compared = field(default_factory=Compared)
    recovered: dict[Address, Record] = field(default_factory=dict)
    resolutions: list[Resolution] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    strays: dict[str, dict[int, str]] = field(default_factory=dict)
    past: dict[str, dict[str, RankStatus | None]] = field(default_factory=dict)
    existing: dict[str, tuple[Standing, ...]] = field(default_factory=dict)
    taken: dict[str, tuple[Taken, ...]] = field(default_factory=dict)


def backends_of(state: State) -> set[str]:
    """The backends of which something is recorded, or was begun."""
    made = {r.backend or LOCAL for r in state.records.values() if r.address.kind in MADE}
    return made | {i.backend or LOCAL for i in state.intents}


@named("look")
def look(  # noqa: PLR0913 (keywords, each with a default)
    state: State,
    backends: Backends,
    *,
    hosts: Iterable[Host] = (),
    offline: bool = False,
    offers: bool = True,
    every: bool = False,
    gpus: bool = False,
    patience: float = PATIENT,
) -> Seen:
    """What is there now. Offline nothing is contacted: the last observations and the catalogs are used.

    With `every`, backends of which nothing is recorded are looked at, too; with `gpus`, this machine's GPUs.

    `hosts` are those that shall be nodes: the ones that are none yet are looked at with the offers.
    `patience` is for those that are slower than the others; see `answers`.
    """
    found, hosts = _Look(), tuple(hosts)
    if not offline:
        found.existing, notes = standing(hosts, state, backends)
        found.diagnostics += notes
        found.readiness |= {s.host.name: s.readiness for each in found.existing.values() for s in each}
        names = backends_of(state)
        if every and state.lineage:
            names |= {n for n in backends.names() if not _of_hosts(backends, n)}
        for name in sorted(names):
            _look_at(state, name, backends, found, patience)
        if offers and state.lineage:
            _look_for_more(state, backends, names, found)
    silent = judged(state, found.readiness, backends)
    _hold_given_up(state, found)
    found.compared.orphans = each_once(found.compared.orphans)
    found.diagnostics += _taken_up(found.resolutions)
    known: dict[str, tuple[Offer, ...]] = {}
    left_out: list[LeftOut] = []
    if offers:
        known, notes = known_offers(backends, backends.names(), offline=offline)
        found.diagnostics += notes
        more, left_out = host_offers(
            hosts,
            state,
            backends,
            gone={*found.compared.gone, *found.compared.altered},
            recovered=found.recovered.keys(),
            known=known,
            offline=offline,
            patience=patience,
        )
        known |= {name: (*known.get(name, ()), *found) for name, found in more.items()}
        found.diagnostics += notes_on(left_out, offline=offline)
    drift = (*found.compared.drift, *orphan_drift(found.compared.orphans, state))
    inventory = Inventory(
        readiness=found.readiness if not offline else state.readiness,
        ranks=found.ranks,
        gone=frozenset(found.compared.gone),
        unsure=frozenset(found.compared.unsure),
        ended=found.compared.ended,
        altered=found.compared.altered,
        drift=tuple(sorted(drift, key=lambda d: (d.address, d.change, d.detail))),
        recovered=found.recovered,
        strays=found.strays,
        silent=silent,
        offers=known,
        existing=found.existing,
        taken=found.taken,
        left_out=tuple(left_out),
        own_gpus=own_gpus(backends) if gpus and not offline else None,
        diagnostics=tuple(found.diagnostics),
    )
    return Seen(inventory, found.resolutions, found.compared.orphans, found.past)


def _hold_given_up(state: State, found: _Look) -> None:
    """The blocks of what was given up are nobody's, until its node said that it does not run."""
    for node in state.of("node"):
        said = found.past.get(node.address.name, {})
        for attempt in given_up(node):
            status = said.get(attempt)
            if attempt in said and (status is None or status.state.ended):
                continue
            rank, held = _on(node, attempt)
            blocks = dict.fromkeys(held, f"rank/{rank} (given up)")
            found.strays.setdefault(node.address.name, {}).update(blocks)


def _on(node: Record, attempt: str) -> tuple[str, Sequence[int]]:
    """The rank that an attempt was of, and the blocks of its node that it runs on."""
    rank, blocks = rank_of_attempt(attempt)
    every = range(node.node.blocks)
    return rank, blocks if blocks and blocks[-1] in every else every


def _look_for_more(state: State, backends: Backends, seen: Collection[str], found: _Look) -> None:
    """What this state made in backends of which nothing is recorded: it was forgotten, or its record lost.

    One that cannot be read is no matter as long as nothing is wanted of it: nobody waits until it can be.
    """
    for name in backends.names():
        if name not in seen and not _of_hosts(backends, name):
            with suppress(ProviderError):
                things = backends.read(name, RenamedBackend.inventory, patience=ONCE)
                _note_orphans(state, name, things, found)


def _of_hosts(backends: Backends, name: str) -> bool:
    """Whether it makes no machines: of hosts those are looked at that are recorded."""
    declared = backends.declared.get(name)
    return declared is not None and declared.provider in EXISTING


def _taken_up(resolutions: Iterable[Resolution]) -> list[Diagnostic]:
    """What commands that were cut short had begun, and what is known of it now; one line for each outcome."""
    outcomes: dict[str, list[str]] = {}
    for resolution in resolutions:
        intent = resolution.intent
        if resolution.record or resolution.gone:
            said = "had been done, and is taken up"
        elif intent.op == "create":
            said = "is not there; if it comes after all, it is found"
        else:
            said = "had not been done"
        outcomes.setdefault(said, []).append(f"{intent.op}:{intent.address}")
    return [
        Diagnostic(
            code="taken-up",
            summary=f"of a command that was cut short: {and_more(ids, MOST_NAMED)} {said}",
            hint="nothing has to be done; `fleetform state history` shows what was begun",
            severity=Severity.WARNING,
        )
        for said, ids in sorted(outcomes.items())
    ]


def _look_at(state: State, name: str, backends: Backends, found: _Look, patience: float) -> None:
    """One backend: its listing, its nodes' readiness, its ranks, and its open intents."""
    nodes = [r for r in state.records.values() if (r.backend or LOCAL) == name and r.address.kind == "node"]
    provider = None
    try:
        provider = backends.get(name)
        if backends.hosts(name):
            _look_at_hosts(state, name, backends, found, patience)
            return
        things = backends.read(name, RenamedBackend.inventory)
        _compare(state, name, things, lambda _: provider, found, recall=provider)
        _resolve(state, name, lambda _: provider, found)
    except ProviderError as error:
        found.diagnostics.append(unreadable(name, error))
        unknown = Readiness(state=NodeState.UNKNOWN, reason=error.summary)
        found.readiness.update({n.address.name: unknown for n in nodes})
    if provider is not None and not backends.left_alone(name):
        _ask_nodes(state, name, provider, nodes, found)


def _ask_nodes(
    state: State, name: str, provider: RenamedBackend, nodes: Sequence[Record], found: _Look
) -> None:
    """What each node says of itself and of its ranks: these answers hold, whether they were listed or not."""
    nodes = [r for r in nodes if r.address not in found.compared.gone]
    nodes += [r for a, r in found.recovered.items() if a.kind == "node" and r.backend == name]
    if not nodes:
        return
    try:
        found.readiness.update(call(lambda: provider.readiness(nodes), policy=PATIENCE))
        found.taken.update(call(lambda: provider.taken(nodes), policy=PATIENCE))
    except ProviderError as error:
        found.diagnostics.append(unreadable(name, error))
    away = {n for n, seen in found.readiness.items() if seen.state is NodeState.UNREACHABLE}
    _ask_ranks(state, name, provider, [n for n in nodes if n.address.name not in away], found)


def _things_on_hosts(
    name: str, backends: Backends, recorded: Mapping[str, Visit], found: _Look, patience: float
) -> tuple[list[Thing], frozenset[str]]:
    """What is on the hosts of a backend, and the hosts that nobody could list.

    `recorded` are the visits of its nodes, by the names under which they were made.
    """
    silent = {n for n, visit in recorded.items() if visit.readiness.state in SILENT}
    known = {*silent, *(n for n, visit in recorded.items() if visit.things is not None)}
    things, faults, slow = listed(backends, name, known, patience)
    things += [t for n, visit in recorded.items() for t in visit.things or () if n not in silent]
    # Why a node cannot be listed, its readiness says; of what was only begun nothing else does.
    found.diagnostics += [unreadable(name, e) for n, e in sorted(faults.items()) if n not in recorded]
    return things, frozenset({*silent, *faults, *slow})


def _look_at_hosts(state: State, name: str, backends: Backends, found: _Look, patience: float) -> None:
    """A backend of hosts: each is asked for all at once; those that are silent hide nothing of the others."""
    provider = backends.get(name)
    nodes = [r for r in state.of("node") if (r.backend or LOCAL) == name]
    visits = visited(nodes, provider, patience, state.readiness if patience < PATIENT else {})
    found.readiness.update({node: visit.readiness for node, visit in visits.items()})
    recorded = {made_as(r).name: visits[r.address.name] for r in nodes}
    things, unlisted = _things_on_hosts(name, backends, recorded, found, patience)

    def at(record: Record) -> Provider:
        host = host_of(state, record)
        return backends.on(name, host) if host in backends.hosts(name) else provider

    _compare(state, name, things, at, found, unlisted=unlisted)
    _resolve(state, name, at, found, unlisted=unlisted)
    fresh = [r for a, r in found.recovered.items() if a.kind == "node" and r.backend == name]
    fresh = [r for r in fresh if r.address.name not in visits]
    more = visited(fresh, provider, patience, {})
    found.readiness.update({node: visit.readiness for node, visit in more.items()})
    told = {n: v.attempts for n, v in (visits | more).items() if v.attempts is not None}
    there = [r for r in nodes if r.address not in found.compared.gone]
    asked = [r for r in (*there, *fresh) if found.readiness[r.address.name].state not in SILENT]
    _ask_ranks(state, name, provider, asked, found, told=told)


def _compare(
    state: State,
    name: str,
    things: Sequence[Thing],
    at: Callable[[Record], Provider],
    found: _Look,
    *,
    unlisted: Collection[str] = (),
    recall: RenamedBackend | None = None,
) -> None:
    """What is recorded against what is listed; what is on hosts that are `unlisted` is left as it is.

    `at` says whom to ask for a thing: of hosts the one that it is on, for others may be silent.
    """
    mine = [r for r in state.records.values() if (r.backend or LOCAL) == name and r.address.kind in MADE]
    pending = {i.address for i in state.intents}
    judged = [
        r for r in mine if r.address not in pending and not (unlisted and host_of(state, r) in unlisted)
    ]
    compare(state, judged, things, at, found.compared, recall=recall)
    _note_orphans(state, name, things, found)


def _note_orphans(state: State, name: str, things: Iterable[Thing], found: _Look) -> None:
    """What a backend lists and nothing recorded or begun is.

    Nor what another backend has: several may be of one account, with an image each, and list the same things.
    """
    made = [r for r in state.records.values() if r.address.kind in MADE]
    known = {(made_as(r), record_token(state, r)) for r in made}
    known |= {(_asked(state, i)[0], i.token) for i in state.intents}
    ours = {(r.address.kind, str(r.outputs.get("id"))) for r in made if r.outputs.get("id")}
    lost = orphans(name, things, known)
    found.compared.orphans += [o for o in lost if (o.thing.address.kind, o.id) not in ours]


def _asked(state: State, intent: Intent) -> tuple[Address, dict[str, Any] | None]:
    """The address that a backend knows what an intent is about by, and what it is newly made as."""
    have = state.records.get(intent.address)
    if have is not None and intent.op != "create":
        return made_as(have), None
    held = {a: state.records[a] for a in intent.needs if a in state.records}
    known = to_make(intent.address, intent.inputs, intent.token, held)
    return (Address.parse(known["address"]) if known else intent.address), known


def _resolve(
    state: State,
    name: str,
    at: Callable[[Record], Provider],
    found: _Look,
    *,
    unlisted: Collection[str] = (),
) -> None:
    """Read back every open intent of this backend: made, changed, gone, or never happened.

    Those on hosts that are `unlisted` stay open.
    """
    for intent in state.intents:
        if (intent.backend or LOCAL) != name or _host_of(state, intent) in unlisted:
            continue
        provider = at(_about(state, intent))
        if intent.address.kind == "rank":
            resolution = _resolve_rank(state, intent, provider)
        else:
            resolution = _resolve_thing(state, intent, provider)
        found.resolutions.append(resolution)
        if resolution.record:
            found.recovered[intent.address] = resolution.record
        if resolution.gone:
            found.compared.gone.add(intent.address)
        if resolution.status:
            found.ranks[intent.address.name] = resolution.status


def _about(state: State, intent: Intent) -> Record:
    """What an intent is about, as far as it is known."""
    record = state.records.get(intent.address)
    return record or Record(address=intent.address, backend=intent.backend, inputs=intent.inputs)


def _host_of(state: State, intent: Intent) -> str:
    """The host that an intent is about or on, by the name that its backend knows."""
    if intent.address.kind == "node":
        return _asked(state, intent)[0].name
    return host_of(state, _about(state, intent))


def _resolve_thing(state: State, intent: Intent, provider: Provider) -> Resolution:
    address, known = _asked(state, intent)
    thing = call(lambda: provider.find(address, intent.token), policy=PATIENCE)
    if intent.op == "delete":
        return Resolution(intent=intent, gone=thing is None)
    have = state.records.get(intent.address)
    same = have if intent.op != "create" else None  # else it is another life of the address
    inputs = as_recorded(thing, same) if thing and same else dict(thing.inputs) if thing else {}
    inputs |= {key: intent.inputs[key] for key in (known["inputs"] if known else ())}
    if thing and not thing.known and intent.op == "create":
        inputs = dict(intent.inputs)  # what carries its token was made of them
    if thing is None or (have and inputs != dict(intent.inputs)):
        return Resolution(intent=intent)
    record = Record(
        address=intent.address,
        backend=intent.backend,
        inputs=inputs,
        outputs={**kept(thing.outputs, same), **({MADE_AS: known} if known else {})},
        needs=intent.needs if intent.op == "create" or not have else have.needs,
        generation=intent.generation,
    )
    if fault(record):  # somebody has changed what is written on it: it is what its token was asked for with
        record = replace(record, inputs=intent.inputs)
    return Resolution(intent=intent, record=record)


def _resolve_rank(state: State, intent: Intent, provider: Provider) -> Resolution:
    node = node_of_rank(state, intent.address.name)
    if node is None or intent.op != "create":
        return Resolution(intent=intent)
    record = Record(
        address=intent.address,
        backend=intent.backend,
        inputs=intent.inputs,
        outputs={
            "node": node.address.name,
            ATTEMPT: attempt_of(intent),
            **({STARTED: intent.begun_at} if intent.begun_at else {}),
        },
        needs=intent.needs,
        generation=intent.generation,
    )
    attempt = attempt_id(record)
    status = call(lambda: provider.poll(node, [attempt]), policy=PATIENCE)[attempt]
    if status is None:
        return Resolution(intent=intent)
    return Resolution(intent=intent, record=record, status=status)


def _ask_ranks(
    state: State,
    name: str,
    provider: RenamedBackend,
    nodes: Sequence[Record],
    found: _Look,
    *,
    told: Mapping[str, Mapping[str, RankStatus]] | None = None,
) -> None:
    """How ranks are doing on nodes, and what runs there that is not recorded: that is an orphan, and holds
    its blocks. As long as a node does not answer, it gets no work either.
    """
    holding = {r.reservation.node for r in state.of("reservation")}

    def stray(node: Record, attempt: str) -> None:
        rank, held = _on(node, attempt)
        found.strays.setdefault(node.address.name, {}).update(dict.fromkeys(held, f"rank/{rank}{ORPHAN}"))
        thing = Thing(
            address=Address("rank", rank),
            token=attempt,
            inputs={},
            outputs={"id": attempt},
            known=False,
        )
        found.compared.orphans.append(
            Orphan(backend=name, thing=thing, node=node.address.name, blocks=tuple(held))
        )

    def past(node: Record, attempt: str, status: RankStatus | None) -> None:
        found.past.setdefault(node.address.name, {})[attempt] = status

    def answers(node: Record) -> bool:
        seen = found.readiness.get(node.address.name)
        return node.address.name in holding or (seen is not None and seen.state in ANSWERING)

    asked = [n for n in nodes if answers(n)]
    with suppress(ProviderError):  # then they are asked as the others are
        told = {**{node: {} for node in provider.unused(asked)}, **(told or {})}
    found.ranks.update(poll(state, provider, asked, stray, past, told=told))
