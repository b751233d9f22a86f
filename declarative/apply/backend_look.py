"""Looking at one backend: its things, its nodes and ranks, and the results of calls that were cut short.

This module records nothing. An empty answer is no evidence: a thing that a listing lacks is looked up once
more before it counts as gone (`drift`), and the nodes of an unreadable backend are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial

from declarative.apply.backend_client import BackendClient, record_token
from declarative.apply.backends import ONCE, Backends, host_of
from declarative.apply.drift import Compared, Orphan, compare, each_once, orphan_drift, orphans
from declarative.apply.hosts import SILENT, host_offers, listed, notes_on, risk_notes, visited
from declarative.apply.offers import Answers, ask_offers, known_offers, own_gpus, partition_nodes, unreadable
from declarative.apply.open_intents import (
    Resolution,
    about,
    asked_as,
    host_of_intent,
    resolution_notes,
    resolved,
)
from declarative.apply.outages import AT_LEAST, NODES
from declarative.apply.parallel import PATIENT, ask_backends
from declarative.apply.polls import poll
from declarative.apply.unreachable import blocks_of, hold_given_up, overdue_nodes
from declarative.model.diagnostic import Diagnostic, Severity, and_more
from declarative.model.record import struct
from declarative.model.resource import EXISTING, LOCAL, Host, LeftOut, Offer, Taken
from declarative.model.state import IMAGE, ORPHAN, Address, Record, State, machine_name, made_as, natural
from declarative.model.status import BOOTING, NodeState, RankStatus, Readiness, Risk
from declarative.planner.inventory import Inventory, PartitionNode
from declarative.provider import (
    PermanentError,
    PermanentKind,
    Provider,
    ProviderError,
    Thing,
    TransientError,
)
from declarative.provider.optional import Visit
from declarative.retry import PATIENCE, Policy, call
from declarative.spans import named

MADE = ("node", "volume", "attachment")
"""Kinds that a backend lists."""

ANSWERING = (NodeState.READY, NodeState.NOT_READY, NodeState.DRAINING)
"""The states of nodes that can be asked what runs on them."""

MOST_NAMED = 20
"""Nodes that a message names."""

NODES_LEAST = 45.0
"""Seconds that a loop waits at least for what the nodes of a backend say. To find out that one is dead
takes a while and hides nothing of the others.
"""


@struct(slots=True)
class BackendLook:
    """The results of looks at one backend, or several."""

    readiness: dict[str, Readiness] = field(default_factory=dict)
    ranks: dict[str, RankStatus] = field(default_factory=dict)
    compared: Compared = field(default_factory=Compared)
    recovered: dict[Address, Record] = field(default_factory=dict)
    resolutions: list[Resolution] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    strays: dict[str, dict[int, str]] = field(default_factory=dict)
    past: dict[str, dict[str, RankStatus | None]] = field(default_factory=dict)
    existing: dict[str, tuple[PartitionNode, ...]] = field(default_factory=dict)
    taken: dict[str, tuple[Taken, ...]] = field(default_factory=dict)
    images: dict[tuple[str, str], str] = field(default_factory=dict)
    risks: dict[str, Risk] = field(default_factory=dict)

    def add(self, more: BackendLook) -> None:
        """Add the result of another look."""
        self.readiness |= more.readiness
        self.ranks |= more.ranks
        self.compared.add(more.compared)
        self.recovered |= more.recovered
        self.resolutions += more.resolutions
        self.diagnostics += more.diagnostics
        self.strays |= more.strays
        self.past |= more.past
        self.existing |= more.existing
        self.taken |= more.taken
        self.images |= more.images
        self.risks |= more.risks

    def note(self, visits: Mapping[str, Visit]) -> None:
        """Note the visits of hosts."""
        self.ready({node: visit.readiness for node, visit in visits.items()})

    def ready(self, readiness: Mapping[str, Readiness]) -> None:
        """Note the readiness of nodes, and what they risk."""
        self.readiness.update(readiness)
        self.risks.update({node: seen.risk for node, seen in readiness.items() if seen.risk})

    def there(self, nodes: Iterable[Record]) -> list[Record]:
        """The records that are not gone."""
        return [node for node in nodes if node.address not in self.compared.gone]

    def fresh(self, backend: str) -> list[Record]:
        """The nodes of a backend that were found to be made."""
        return [r for a, r in self.recovered.items() if a.kind == "node" and r.backend == backend]

    def answering(self, nodes: Iterable[Record], silent: Collection[NodeState]) -> list[Record]:
        """The records that were not seen in one of these states."""
        unseen = Readiness(state=NodeState.READY)
        return [n for n in nodes if self.readiness.get(n.address.name, unseen).state not in silent]


@struct(slots=True)
class Observation:
    """The result of one look: the inventory for the planner, and what recovery has to write."""

    inventory: Inventory
    resolutions: list[Resolution] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    past: dict[str, dict[str, RankStatus | None]] = field(default_factory=dict)
    """Node → attempt that was given up → what the node says of it now; None for one that it knows not of."""


@named("look")
def look(
    state: State,
    backends: Backends,
    *,
    hosts: Iterable[Host] = (),
    offline: bool = False,
    offers: bool = True,
    every: bool = False,
    gpus: bool = False,
    patience: float = PATIENT,
) -> Observation:
    """What is there now. Offline nothing is contacted: the last observations and the catalogs are used.

    With `every`, backends without records are looked at, too; with `gpus`, this machine's GPUs. `hosts` are
    the declared hosts: those that are not nodes yet are looked at together with the offers. `patience` is for
    backends that are slower than the others; see `prompt_answers`.
    """
    found, hosts, answers = BackendLook(), tuple(hosts), Answers()
    patience = min(patience, AT_LEAST) if backends.outages.remembers else patience
    if not offline:
        found = _asked(state, backends, hosts, answers, every=every, offers=offers, patience=patience)
    for name in backends.names() if offers and offline else ():
        ask_offers(name, backends, answers, offline=True)
    silent = overdue_nodes(state, found.readiness, backends)
    hold_given_up(state, found.past, found.strays)
    known, left_out = (
        _offered(state, backends, hosts, answers, found, patience=patience, offline=offline)
        if offers
        else ({}, [])
    )
    found.diagnostics += risk_notes(found.risks)
    drift = (*found.compared.drift, *orphan_drift(found.compared.orphans, state))
    inventory = Inventory(
        readiness=found.readiness if not offline else state.readiness,
        ranks=found.ranks,
        gone=frozenset(found.compared.gone),
        unsure=frozenset(found.compared.unsure),
        deleting=frozenset(intent.address for intent in state.intents if intent.op == "delete"),
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
        images=found.images,
        own_gpus=own_gpus(backends) if gpus and not offline else None,
        diagnostics=tuple(found.diagnostics),
    )
    return Observation(inventory, found.resolutions, found.compared.orphans, found.past)


def _asked(
    state: State,
    backends: Backends,
    hosts: Sequence[Host],
    answers: Answers,
    *,
    every: bool,
    offers: bool,
    patience: float,
) -> BackendLook:
    """Look at all backends that have to be looked at, and put their offers into `answers`."""
    names = {*(backends.names() if offers or every else ()), *(h.backend for h in hosts), *backends_of(state)}

    def ask(name: str) -> BackendLook:
        seen = look_at(state, name, backends, hosts, every=every, offers=offers, patience=patience)
        if offers and name in backends.names():
            ask_offers(name, backends, answers)
        return seen

    found = BackendLook()
    for seen in ask_backends(sorted(names), ask).values():
        found.add(seen)
    found.compared.orphans = each_once(found.compared.orphans)
    found.diagnostics += resolution_notes(found.resolutions)
    return found


def _offered(
    state: State,
    backends: Backends,
    hosts: Iterable[Host],
    answers: Answers,
    found: BackendLook,
    *,
    patience: float,
    offline: bool,
) -> tuple[dict[str, tuple[Offer, ...]], list[LeftOut]]:
    """Backend → what nodes can be made of there, and the hosts that cannot be any."""
    known, notes = known_offers(backends, backends.names(), answers)
    found.diagnostics += notes
    more, left_out, risks = host_offers(
        hosts,
        state,
        backends,
        gone={*found.compared.gone, *found.compared.altered},
        recovered=found.recovered.keys(),
        reshaped=[name for name, readiness in found.readiness.items() if readiness.reshaped],
        known=known,
        offline=offline,
        patience=patience,
    )
    found.diagnostics += notes_on(left_out, offline=offline)
    found.risks |= risks
    return known | {name: (*known.get(name, ()), *of_hosts) for name, of_hosts in more.items()}, left_out


def backends_of(state: State) -> set[str]:
    """The backends that have records or open intents."""
    made = {r.backend or LOCAL for r in state.records.values() if r.address.kind in MADE}
    return made | {i.backend or LOCAL for i in state.intents}


def look_at(
    state: State,
    name: str,
    backends: Backends,
    hosts: Iterable[Host],
    *,
    every: bool,
    offers: bool,
    patience: float,
) -> BackendLook:
    """Look at one backend: the nodes of its partitions, its listing, its nodes' readiness, its ranks, and its
    open intents. If nodes may be wanted, a backend without records is searched as well for things of this
    state: their records may have been forgotten or lost.
    """
    found = BackendLook()
    found.existing, found.diagnostics = partition_nodes(
        (h for h in hosts if h.backend == name), state, backends
    )
    found.readiness |= {s.host.name: s.readiness for each in found.existing.values() for s in each}
    more = _may_have_more(state, name, backends)
    if name in backends_of(state) or (every and more):
        _look_at_all(state, name, backends, found, patience)
        if offers and not found.diagnostics:
            _look_for_images(state, name, backends, found)
    elif offers and more:
        # One that cannot be read is no matter as long as nothing is wanted of it. Only a loop asks twice: it
        # would leave it alone.
        with suppress(ProviderError):
            things = backends.read(name, _things_alone)
            _note_orphans(state, name, things, found)
    return found


def _may_have_more(state: State, name: str, backends: Backends) -> bool:
    """Whether this state may have made something there that is not recorded."""
    declared = name in backends.names() and backends.driver(name) not in EXISTING
    return declared and state.lineage is not None


def _look_at_all(state: State, name: str, backends: Backends, found: BackendLook, patience: float) -> None:
    """Look at one backend that has records, or may have things."""
    nodes = [r for r in state.of("node") if (r.backend or LOCAL) == name]
    try:
        backends.get(name)
        if backends.hosts(name):
            _look_at_hosts(state, name, nodes, backends, found, patience)
        else:
            _look_at_machines(state, name, nodes, backends, found)
    except ProviderError as error:
        _note_unreadable(name, error, nodes, found)


def _look_for_images(state: State, name: str, backends: Backends, found: BackendLook) -> None:
    """Which image the nodes of a backend would start from if they were made anew. A cloud that does not
    answer this is asked again by the next look; one without the image gets a warning.
    """
    started: dict[str, set[str]] = {}
    for record in state.of("node"):
        if record.backend == name and record.node.instance_id is None and record.outputs.get(IMAGE):
            started.setdefault(record.node.region, set()).add(str(record.outputs[IMAGE]))

    def ask(provider: BackendClient, patience: Policy) -> dict[str, str | None]:
        return {
            region: call(partial(provider.starts_from, region, known), policy=patience)
            for region, known in sorted(started.items())
        }

    try:
        images = backends.read(name, ask, part=IMAGE) if started else {}
        found.images.update({(name, region): made for region, made in images.items() if made})
    except PermanentError as error:
        if error.kind in (PermanentKind.NOT_FOUND, PermanentKind.INVALID):
            summary = f"backend {name} would refuse to make its nodes anew: {error.summary}"
            found.diagnostics.append(
                Diagnostic(
                    code="backend-refuses",
                    summary=summary,
                    hint=error.hint,
                    address=f"backend/{name}",
                    severity=Severity.WARNING,
                )
            )
    except ProviderError:
        return


def _things_alone(provider: BackendClient, patience: Policy) -> Sequence[Thing]:
    return call(provider.inventory, policy=ONCE if patience is PATIENCE else patience)


def _note_unreadable(name: str, error: ProviderError, nodes: Iterable[Record], found: BackendLook) -> None:
    found.diagnostics.append(unreadable(name, error))
    unknown = Readiness(state=NodeState.UNKNOWN, reason=error.summary)
    found.readiness.update({n.address.name: unknown for n in nodes})


def _look_at_machines(
    state: State, name: str, nodes: Sequence[Record], backends: Backends, found: BackendLook
) -> None:
    """A backend that is asked as a whole. What its nodes say of themselves and of their ranks holds, whether
    they were listed or not.
    """

    def things(provider: BackendClient, patience: Policy) -> BackendLook:
        seen = BackendLook()
        listed = call(provider.inventory, policy=patience)
        _compare(state, name, listed, lambda _: provider, seen, recall=provider)
        _resolve(state, name, lambda _: provider, seen)
        return seen

    try:
        found.add(backends.read(name, things))
    except ProviderError as error:
        _note_unreadable(name, error, nodes, found)
        if backends.outages.is_down(name):
            return
    nodes = [*found.there(nodes), *found.fresh(name)]
    if not nodes:
        return
    ask = partial(_ask_nodes, state, name, backends, nodes, dict(found.readiness))
    try:
        found.add(backends.read(name, ask, part=NODES, least=NODES_LEAST))
    except ProviderError as error:
        _note_unreadable(name, error, nodes, found)


def _ask_nodes(
    state: State,
    name: str,
    backends: Backends,
    nodes: Sequence[Record],
    known: Mapping[str, Readiness],
    provider: BackendClient,
    patience: Policy,
) -> BackendLook:
    """The nodes' reports about themselves and their ranks. A loop leaves silent nodes alone."""
    found = BackendLook(readiness=dict(known))
    resting = {
        n.address.name: seen
        for n in nodes
        if (seen := backends.outages.last_readiness(name, machine_name(n)))
    }
    asked = [n for n in nodes if n.address.name not in resting]
    found.readiness |= resting
    try:
        found.ready(call(lambda: provider.readiness(asked), policy=patience) if asked else {})
        found.taken |= call(lambda: provider.taken(nodes), policy=patience)
    except ProviderError as error:
        if backends.outages.remembers and isinstance(error, TransientError):
            raise
        found.diagnostics.append(unreadable(name, error))
    if backends.only_plans:
        _go_by_the_record(state, name, found)
    _leave_alone(name, asked, found.readiness, provider, backends)
    there = found.answering(nodes, (NodeState.UNREACHABLE,))
    if backends.only_plans:
        there = [node for node in there if not found.readiness[node.address.name].no_key]
    _ask_ranks(state, name, provider, there, found, patience=patience)
    return found


def _go_by_the_record(state: State, name: str, found: BackendLook) -> None:
    """Nodes that this command has no key for are as they were last seen by one that had it. A node that was
    starting then counts as ready: its backend says that it runs.
    """
    unseen = {node: seen for node, seen in found.readiness.items() if seen.no_key}
    for node, seen in unseen.items():
        last = state.readiness.get(node)
        known = last is not None and last.state not in (*BOOTING, NodeState.UNKNOWN)
        found.readiness[node] = replace(
            seen,
            state=last.state if last and known else NodeState.READY,
            reason=last.reason if last and known else None,
        )
    if unseen:
        nodes = and_more((f"node/{node}" for node in sorted(unseen, key=natural)), MOST_NAMED)
        why = next(iter(unseen.values())).reason
        found.diagnostics.append(
            Diagnostic(
                code="no-node-key",
                summary=f"{nodes}: not looked at, and taken for what is recorded: {why}",
                hint="a plan needs no key; `apply` does, and looks at them",
                address=f"backend/{name}",
                severity=Severity.WARNING,
            )
        )


def _leave_alone(
    name: str,
    nodes: Iterable[Record],
    readiness: Mapping[str, Readiness],
    provider: BackendClient,
    backends: Backends,
) -> None:
    """Leave nodes that do not answer us alone for a while."""
    for node in nodes:
        seen = readiness.get(node.address.name)
        if seen and seen.state is NodeState.UNREACHABLE and not seen.down:
            ask = partial(_readiness_of, provider, node)
            rest = backends.host_rest(node.node.fleet)
            backends.outages.leave_alone((name, machine_name(node)), seen, ask, rest)


def _readiness_of(provider: BackendClient, node: Record) -> Readiness:
    return provider.readiness([node])[node.address.name]


def _things_on_hosts(
    name: str, backends: Backends, recorded: Mapping[str, Visit], found: BackendLook, patience: float
) -> tuple[list[Thing], frozenset[str]]:
    """The things on the hosts of a backend, and the hosts that could not be listed.

    `recorded` are the visits of its nodes, by the names under which they were made.
    """
    silent = {n for n, visit in recorded.items() if visit.readiness.state in SILENT}
    reported = {n: visit.things for n, visit in recorded.items() if visit.things is not None}
    things, faults, slow = listed(backends, name, {*silent, *reported}, patience)
    things += [thing for node, found_there in reported.items() if node not in silent for thing in found_there]
    # A recorded node's readiness says why it cannot be listed. A node with only an intent has no readiness.
    found.diagnostics += [unreadable(name, e) for n, e in sorted(faults.items()) if n not in recorded]
    return things, frozenset({*silent, *faults, *slow})


def _look_at_hosts(
    state: State, name: str, nodes: Sequence[Record], backends: Backends, found: BackendLook, patience: float
) -> None:
    """A backend of hosts: each is asked for all at once; those that are silent hide nothing of the others."""
    provider = backends.get(name)
    recorded = state.readiness if patience < PATIENT else {}
    visits = visited(name, nodes, backends, patience, recorded)
    found.note(visits)
    seen = {made_as(r).name: visits[r.address.name] for r in nodes}
    things, unlisted = _things_on_hosts(name, backends, seen, found, patience)

    def at(record: Record) -> Provider:
        host = host_of(state, record)
        return backends.on(name, host) if host in backends.hosts(name) else provider

    _compare(state, name, things, at, found, unlisted=unlisted)
    _resolve(state, name, at, found, unlisted=unlisted)
    fresh = [r for r in found.fresh(name) if r.address.name not in visits]
    more = visited(name, fresh, backends, patience, {})
    found.note(more)
    reported = {n: v.attempts for n, v in (visits | more).items() if v.attempts is not None}
    asked = found.answering([*found.there(nodes), *fresh], SILENT)
    _ask_ranks(state, name, provider, asked, found, reported=reported)


def _compare(
    state: State,
    name: str,
    things: Sequence[Thing],
    at: Callable[[Record], Provider],
    found: BackendLook,
    *,
    unlisted: Collection[str] = (),
    recall: BackendClient | None = None,
) -> None:
    """Compare the records with the listing. Records on `unlisted` hosts are left as they are.

    `at` gives the provider to ask for a thing. For a thing on a host that is this host: others may be silent.
    """
    mine = [r for r in state.records.values() if (r.backend or LOCAL) == name and r.address.kind in MADE]
    pending = {i.address for i in state.intents}
    judged = [
        r for r in mine if r.address not in pending and not (unlisted and host_of(state, r) in unlisted)
    ]
    compare(state, judged, things, at, found.compared, recall=recall)
    _note_orphans(state, name, things, found)


def _note_orphans(state: State, name: str, things: Iterable[Thing], found: BackendLook) -> None:
    """Note listed things that have no record and no open intent.

    Things of another backend are left out: several backends may use one account and list the same things.
    """
    made = [r for r in state.records.values() if r.address.kind in MADE]
    known = {(made_as(r), record_token(state, r)) for r in made}
    known |= {(asked_as(state, i)[0], i.token) for i in state.intents}
    ours = {(r.address.kind, str(r.outputs.get("id"))) for r in made if r.outputs.get("id")}
    lost = orphans(name, things, known)
    found.compared.orphans += [o for o in lost if (o.thing.address.kind, o.id) not in ours]


def _resolve(
    state: State,
    name: str,
    at: Callable[[Record], Provider],
    found: BackendLook,
    *,
    unlisted: Collection[str] = (),
) -> None:
    """Read back every open intent of this backend: made, changed, gone, or never happened.

    Those on hosts that are `unlisted` stay open.
    """
    for intent in state.intents:
        if (intent.backend or LOCAL) != name or host_of_intent(state, intent) in unlisted:
            continue
        resolution = resolved(state, intent, at(about(state, intent)))
        found.resolutions.append(resolution)
        if resolution.record:
            found.recovered[intent.address] = resolution.record
        if resolution.gone:
            found.compared.gone.add(intent.address)
        if resolution.status:
            found.ranks[intent.address.name] = resolution.status


def _ask_ranks(
    state: State,
    name: str,
    provider: BackendClient,
    nodes: Sequence[Record],
    found: BackendLook,
    *,
    reported: Mapping[str, Mapping[str, RankStatus]] | None = None,
    patience: Policy = PATIENCE,
) -> None:
    """Ask for the ranks on nodes. A running rank without a record is an orphan, and holds its blocks. A
    silent node gets no work.
    """
    holding = {r.reservation.node for r in state.of("reservation")}

    def stray(node: Record, attempt: str) -> None:
        rank, held = blocks_of(node, attempt)
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
        reported = {**{node: {} for node in provider.unused(asked)}, **(reported or {})}
    found.ranks.update(poll(state, provider, asked, stray, past, reported=reported, patience=patience))
