"""Looking at all backends: their things, nodes and ranks, open intents, and offers for new nodes.

This module records nothing. It compares the records with what is there: gone, changed, orphaned. An empty
answer is no evidence: a thing that a listing lacks is looked up once more by its token and, if the backend
can do that, by its id, since somebody may have removed its tags, and not the thing. The nodes of an
unreadable backend are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, replace
from functools import partial
from typing import Any

from declarative.apply.backend_client import BackendClient, as_recorded, record_token
from declarative.apply.backends import HOST_REST, ONCE, Backends, host_of
from declarative.apply.offers import (
    NOT_YET,
    Answers,
    ask_offers,
    host_offers,
    is_unasked,
    known_offers,
    notes_on,
    own_gpus,
    partition_nodes,
    risk_notes,
    unreadable,
)
from declarative.apply.open_intents import (
    Resolution,
    host_of_intent,
    name_at_backend,
    read_back,
    resolution_notes,
    subject_of,
)
from declarative.apply.orphans import Orphan, each_once, orphan_drift
from declarative.apply.outages import AT_LEAST, HOST, NODES
from declarative.apply.parallel import PATIENT, ask_backends, prompt_answers, side_by_side
from declarative.apply.ranks import poll
from declarative.apply.unreachable import blocks_of, hold_given_up, overdue_nodes
from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.record import struct
from declarative.model.resource import EXISTING, LOCAL, Host, LeftOut, Offer, OthersShare
from declarative.model.state import (
    ANOTHERS,
    IMAGE,
    ORPHAN,
    TAGS,
    Address,
    Record,
    State,
    machine_name,
    made_as,
    natural,
)
from declarative.model.status import BOOTING, NodeState, RankStatus, Readiness, Risk
from declarative.model.text import and_more
from declarative.planner.hosts import in_short
from declarative.planner.inventory import Drift, Inventory, PartitionNode
from declarative.provider import (
    Ended,
    PermanentError,
    PermanentKind,
    Provider,
    ProviderError,
    StaleError,
    Thing,
    TransientError,
)
from declarative.provider.optional import Visit
from declarative.retry import PATIENCE, Policy, call
from declarative.spans import span

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
class BackendFindings:
    """The results of looks at one backend, or several."""

    gone: set[Address] = field(default_factory=set)
    unsure: set[Address] = field(default_factory=set)
    """Gone things that may have been looked for in the wrong place."""
    ended: dict[Address, str] = field(default_factory=dict)
    """Gone things that the backend itself has ended, with its reason."""
    altered: dict[Address, Mapping[str, Any]] = field(default_factory=dict)
    """Things that others changed, with their values now: see `Thing.actual`."""
    drift: list[Drift] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    readiness: dict[str, Readiness] = field(default_factory=dict)
    ranks: dict[str, RankStatus] = field(default_factory=dict)
    recovered: dict[Address, Record] = field(default_factory=dict)
    resolutions: list[Resolution] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    strays: dict[str, dict[int, str]] = field(default_factory=dict)
    past: dict[str, dict[str, RankStatus | None]] = field(default_factory=dict)
    existing: dict[str, tuple[PartitionNode, ...]] = field(default_factory=dict)
    taken: dict[str, tuple[OthersShare, ...]] = field(default_factory=dict)
    images: dict[tuple[str, str], str] = field(default_factory=dict)
    risks: dict[str, Risk] = field(default_factory=dict)

    def merge(self, more: BackendFindings) -> None:
        """Add the results of another look."""
        for part in fields(self):
            known, new = getattr(self, part.name), getattr(more, part.name)
            if isinstance(known, list):
                known.extend(new)
            else:
                known.update(new)

    def note_gone(self, record: Record, detail: str = "not there any more") -> None:
        self.gone.add(record.address)
        self.drift.append(Drift(address=str(record.address), change="gone", detail=detail))

    def note_there(self, record: Record, thing: Thing) -> None:
        """Note a thing that is there, as it was recorded or not."""
        if thing.lost:
            self.note_gone(record, thing.lost)
            return
        actual = dict(thing.actual)
        was, now = record.image, thing.outputs.get(IMAGE)
        if record.address.kind == "node" and was and now and was != now:
            actual[IMAGE] = now
        words = [_difference(record, key, actual[key]) for key in sorted(actual)]
        if actual:
            self.altered[record.address] = actual
        inputs = as_recorded(thing, record) if thing.known else dict(record.inputs)
        if inputs != dict(record.inputs):
            off = [k for k in sorted({*inputs, *record.inputs}) if inputs.get(k) != record.inputs.get(k)]
            words.append(f"differs in {', '.join(off)}")
        if words:
            self.drift.append(Drift(address=str(record.address), change="changed", detail="; ".join(words)))

    def note_readiness(self, readiness: Mapping[str, Readiness]) -> None:
        """Note the readiness of nodes, and what they risk."""
        self.readiness.update(readiness)
        self.risks.update({node: answer.risk for node, answer in readiness.items() if answer.risk})

    def there(self, nodes: Iterable[Record]) -> list[Record]:
        """The records that are not gone."""
        return [node for node in nodes if node.address not in self.gone]

    def fresh(self, backend: str) -> list[Record]:
        """The nodes of a backend that were found to be made."""
        return [r for a, r in self.recovered.items() if a.kind == "node" and r.backend == backend]

    def answering(self, nodes: Iterable[Record], silent: Collection[NodeState]) -> list[Record]:
        """The records that were not seen in one of these states."""
        unseen = Readiness(state=NodeState.READY)
        return [n for n in nodes if self.readiness.get(n.address.name, unseen).state not in silent]


@struct(slots=True)
class Observation:
    """The result of a look: the inventory for the planner, and what recovery has to write."""

    inventory: Inventory
    resolutions: list[Resolution] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    past: dict[str, dict[str, RankStatus | None]] = field(default_factory=dict)
    """Node → attempt that was given up → its status on the node now; None if the node does not know it."""


@span("look")
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
    findings, hosts, reported_offers = BackendFindings(), tuple(hosts), Answers()
    if backends.outages.remembers:
        patience = min(patience, AT_LEAST)
    if not offline:
        names = {*(h.backend for h in hosts), *backends_of(state)}
        names |= {*backends.names()} if offers or every else set()

        def ask(name: str) -> BackendFindings:
            one = _BackendLook(state, name, backends, patience).all(hosts, every=every, offers=offers)
            if offers and name in backends.names():
                ask_offers(name, backends, reported_offers)
            return one

        for one in ask_backends(sorted(names), ask).values():
            findings.merge(one)
        findings.orphans = each_once(findings.orphans)
        findings.diagnostics += resolution_notes(findings.resolutions)
    elif offers:
        for name in backends.names():
            ask_offers(name, backends, reported_offers, offline=True)
    silent = overdue_nodes(state, findings.readiness, backends)
    hold_given_up(state, findings.past, findings.strays)
    offers_by_backend, left_out = dict[str, tuple[Offer, ...]](), list[LeftOut]()
    if offers:
        offers_by_backend, notes = known_offers(backends, backends.names(), reported_offers)
        of_hosts, left_out, risks = host_offers(
            hosts,
            state,
            backends,
            gone={*findings.gone, *findings.altered},
            recovered=findings.recovered.keys(),
            reshaped=[name for name, readiness in findings.readiness.items() if readiness.reshaped],
            known=offers_by_backend,
            offline=offline,
            patience=patience,
        )
        for name, its_hosts in of_hosts.items():
            offers_by_backend[name] = (*offers_by_backend.get(name, ()), *its_hosts)
        findings.diagnostics += [*notes, *notes_on(left_out, offline=offline)]
        findings.risks |= risks
    findings.diagnostics += risk_notes(findings.risks)
    drift = (*findings.drift, *orphan_drift(findings.orphans, state))
    inventory = Inventory(
        readiness=findings.readiness if not offline else state.readiness,
        ranks=findings.ranks,
        gone=frozenset(findings.gone),
        unsure=frozenset(findings.unsure),
        deleting=frozenset(intent.address for intent in state.intents if intent.op == "delete"),
        ended=findings.ended,
        altered=findings.altered,
        drift=tuple(sorted(drift, key=lambda d: (d.address, d.change, d.detail))),
        recovered=findings.recovered,
        strays=findings.strays,
        silent=silent,
        offers=offers_by_backend,
        unasked=frozenset(n for n in backends.names() if offline and is_unasked(n, backends)),
        existing=findings.existing,
        taken=findings.taken,
        left_out=tuple(left_out),
        images=findings.images,
        own_gpus=own_gpus(backends) if gpus and not offline else None,
        diagnostics=tuple(findings.diagnostics),
    )
    return Observation(inventory, findings.resolutions, findings.orphans, findings.past)


def backends_of(state: State) -> set[str]:
    """The backends that have records or open intents."""
    made = {r.backend or LOCAL for r in state.records.values() if r.address.kind in MADE}
    return made | {i.backend or LOCAL for i in state.intents}


class _BackendLook:
    """A look at one backend."""

    def __init__(self, state: State, name: str, backends: Backends, patience: float) -> None:
        self._state = state
        self._name = name
        self._backends = backends
        self._patience = patience
        self._nodes = [r for r in state.of("node") if (r.backend or LOCAL) == name]

    def all(self, hosts: Iterable[Host], *, every: bool, offers: bool) -> BackendFindings:
        """The nodes of its partitions, its things, the readiness of its nodes, its ranks and its open
        intents.

        If nodes may be wanted, a backend without records is searched as well for things of this state: their
        records may have been forgotten or lost.
        """
        name, backends = self._name, self._backends
        findings = BackendFindings()
        findings.existing, findings.diagnostics = partition_nodes(
            (h for h in hosts if h.backend == name), self._state, backends
        )
        findings.readiness |= {n.host.name: n.readiness for ns in findings.existing.values() for n in ns}
        declared = name in backends.names() and backends.driver(name) not in EXISTING
        may_have_things = declared and self._state.lineage is not None
        if name in backends_of(self._state) or (every and may_have_things):
            try:
                backends.get(name)
                if backends.hosts(name):
                    self._look_at_hosts(findings)
                else:
                    self._look_at_machines(findings)
            except ProviderError as error:
                self._note_unreadable(error, self._nodes, findings)
            if offers and not findings.diagnostics:
                self._look_for_images(findings)
        elif offers and may_have_things:

            def things_alone(client: BackendClient, patience: Policy) -> Sequence[Thing]:
                # It need not be readable as long as nothing is wanted of it. Only a loop asks twice: it would
                # leave the backend alone.
                return call(client.inventory, policy=ONCE if patience is PATIENCE else patience)

            with suppress(ProviderError):
                self._note_orphans(backends.read(name, things_alone), findings)
        return findings

    def _look_for_images(self, findings: BackendFindings) -> None:
        """Find the images that nodes would start from if they were made anew. A cloud that does not answer
        this is asked again by the next look; one without the image gets a warning.
        """
        started: dict[str, set[str]] = {}
        for record in self._nodes:
            if record.backend and record.node.instance_id is None and record.image:
                started.setdefault(record.node.region, set()).add(record.image)
        if not started:
            return

        def ask(client: BackendClient, patience: Policy) -> dict[str, str | None]:
            return {
                region: call(partial(client.starts_from, region, known), policy=patience)
                for region, known in sorted(started.items())
            }

        try:
            images = self._backends.read(self._name, ask, part=IMAGE)
            findings.images.update({(self._name, region): image for region, image in images.items() if image})
        except PermanentError as error:
            if error.kind in (PermanentKind.NOT_FOUND, PermanentKind.INVALID):
                summary = f"backend {self._name} would refuse to make its nodes anew: {error.summary}"
                findings.diagnostics.append(
                    Diagnostic(
                        code="backend-refuses",
                        summary=summary,
                        hint=error.hint,
                        address=f"backend/{self._name}",
                        severity=Severity.WARNING,
                    )
                )
        except ProviderError:
            return

    def _note_unreadable(
        self, error: ProviderError, nodes: Iterable[Record], findings: BackendFindings
    ) -> None:
        findings.diagnostics.append(unreadable(self._name, error))
        unknown = Readiness(state=NodeState.UNKNOWN, reason=error.summary)
        findings.readiness.update({n.address.name: unknown for n in nodes})

    # ------------------------------------------------------------------------ clouds, and this machine

    def _look_at_machines(self, findings: BackendFindings) -> None:
        """Ask the backend as a whole for its things, then its nodes. What these report of themselves and of
        their ranks holds, whether they were listed or not.
        """

        def list_things(client: BackendClient, patience: Policy) -> BackendFindings:
            listing = BackendFindings()
            things = call(client.inventory, policy=patience)
            self._compare(things, lambda _: client, listing, recall=client)
            self._read_intents_back(lambda _: client, listing)
            return listing

        try:
            findings.merge(self._backends.read(self._name, list_things))
        except ProviderError as error:
            self._note_unreadable(error, self._nodes, findings)
            if self._backends.outages.is_down(self._name):
                return
        nodes = [*findings.there(self._nodes), *findings.fresh(self._name)]
        if not nodes:
            return
        ask = partial(self._ask_nodes, nodes, dict(findings.readiness))
        try:
            findings.merge(self._backends.read(self._name, ask, part=NODES, least=NODES_LEAST))
        except ProviderError as error:
            self._note_unreadable(error, nodes, findings)

    def _ask_nodes(
        self, nodes: Sequence[Record], known: Mapping[str, Readiness], client: BackendClient, patience: Policy
    ) -> BackendFindings:
        """The nodes' reports about themselves and their ranks. A loop leaves silent nodes alone."""
        name, outages = self._name, self._backends.outages
        findings = BackendFindings(readiness=dict(known))
        resting = {
            n.address.name: readiness
            for n in nodes
            if (readiness := outages.last_readiness(name, machine_name(n)))
        }
        asked = [n for n in nodes if n.address.name not in resting]
        findings.readiness |= resting
        try:
            findings.note_readiness(call(lambda: client.readiness(asked), policy=patience) if asked else {})
            findings.taken |= call(lambda: client.taken(nodes), policy=patience)
        except ProviderError as error:
            if outages.remembers and isinstance(error, TransientError):
                raise
            findings.diagnostics.append(unreadable(name, error))
        if self._backends.only_plans:
            _go_by_the_record(self._state, name, findings)
        for node in asked:
            readiness = findings.readiness.get(node.address.name)
            if readiness and readiness.state is NodeState.UNREACHABLE and not readiness.down:

                def ask(node: Record = node) -> Readiness:
                    return client.readiness([node])[node.address.name]

                rest = self._backends.host_rest(node.node.fleet)
                outages.leave_alone((name, machine_name(node)), readiness, ask, rest)
        answering = findings.answering(nodes, (NodeState.UNREACHABLE,))
        if self._backends.only_plans:
            answering = [node for node in answering if not findings.readiness[node.address.name].no_key]
        self._ask_ranks(client, answering, findings, patience=patience)
        return findings

    # ------------------------------------------------------------------------ existing hosts

    def _look_at_hosts(self, findings: BackendFindings) -> None:
        """Ask each host for all at once. A silent host hides nothing of the others."""
        state, name, backends = self._state, self._name, self._backends
        client = backends.get(name)
        recorded = state.readiness if self._patience < PATIENT else {}
        visits = visited(name, self._nodes, backends, self._patience, recorded)
        findings.note_readiness({node: visit.readiness for node, visit in visits.items()})
        by_host = {made_as(r).name: visits[r.address.name] for r in self._nodes}
        silent = {n for n, visit in by_host.items() if visit.readiness.state in SILENT}
        reported_things = {n: visit.things for n, visit in by_host.items() if visit.things is not None}
        things, faults, slow = listed(backends, name, {*silent, *reported_things}, self._patience)
        things += [t for n, its_things in reported_things.items() if n not in silent for t in its_things]
        # A recorded node's readiness says why it cannot be listed. A node with only an intent has none.
        findings.diagnostics += [unreadable(name, e) for n, e in sorted(faults.items()) if n not in by_host]
        unlisted = frozenset({*silent, *faults, *slow})

        def at(record: Record) -> Provider:
            host = host_of(state, record)
            return backends.on(name, host) if host in backends.hosts(name) else client

        self._compare(things, at, findings, unlisted=unlisted)
        self._read_intents_back(at, findings, unlisted=unlisted)
        fresh = [r for r in findings.fresh(name) if r.address.name not in visits]
        fresh_visits = visited(name, fresh, backends, self._patience, {})
        findings.note_readiness({node: visit.readiness for node, visit in fresh_visits.items()})
        every_visit = visits | fresh_visits
        reported = {n: v.attempts for n, v in every_visit.items() if v.attempts is not None}
        asked = findings.answering([*findings.there(self._nodes), *fresh], SILENT)
        self._ask_ranks(client, asked, findings, reported=reported)

    # ------------------------------------------------------------------------ records, intents, ranks

    def _compare(
        self,
        things: Sequence[Thing],
        at: Callable[[Record], Provider],
        findings: BackendFindings,
        *,
        unlisted: Collection[str] = (),
        recall: BackendClient | None = None,
    ) -> None:
        """Compare the records with the listing. Records on `unlisted` hosts are left as they are.

        `at` gives the provider to ask for a thing. For a thing on a host that is this host: others may be
        silent.
        """
        state, pending = self._state, {i.address for i in self._state.intents}
        records = [
            r
            for r in state.records.values()
            if (r.backend or LOCAL) == self._name and r.address.kind in MADE and r.address not in pending
            if not (unlisted and host_of(state, r) in unlisted)
        ]
        # By address and token: a cloud may take a name twice, and another backend may use the same name.
        there = {(t.address, t.token): t for t in things}
        missing: list[Record] = []
        for record in records:
            thing = there.get((made_as(record), record_token(state, record)))
            if thing is None:
                missing.append(record)
            else:
                findings.note_there(record, thing)
        if missing:
            self._look_for(missing, at, findings, recall=recall, nothing_listed=not there)
        self._note_orphans(things, findings)

    def _look_for(
        self,
        missing: Sequence[Record],
        at: Callable[[Record], Provider],
        findings: BackendFindings,
        *,
        recall: BackendClient | None,
        nothing_listed: bool,
    ) -> None:
        """Look once more for records that the listing lacks: by their tokens, and by their ids if the backend
        can do that. If nothing was listed, the listing does not show whose place was asked.
        """
        state = self._state
        attachments = [r for r in missing if r.address.kind == "attachment"]
        recalled = call(lambda: recall.recall(missing), policy=PATIENCE) if recall else None
        asked = [r for r in missing if r.address.kind != "attachment"]
        if recalled is not None:  # without ids, a missing attachment only means that its rank has ended
            asked += attachments

        def find(record: Record) -> Thing | None:
            provider, its_token = at(record), record_token(state, record)
            return call(lambda: provider.find(made_as(record), its_token), policy=PATIENCE)

        detached: list[Record] = []
        for record, by_token in zip(asked, side_by_side(asked, find), strict=True):
            by_id = (recalled or {}).get(record.address)
            thing = by_id if by_token is None and isinstance(by_id, Thing) else by_token
            if thing is not None:
                findings.note_there(record, thing)
            elif isinstance(by_id, Ended):
                findings.note_gone(record, by_id.reason)
                findings.ended[record.address] = by_id.reason
            elif record.address.kind == "attachment":
                detached.append(record)
            else:
                findings.note_gone(record)
                if nothing_listed and recalled is not None and record.address not in recalled:
                    findings.unsure.add(record.address)
        for record in detached:  # somebody took the volume off its node
            rank = record.attachment.rank
            if record.needs & findings.gone or state.has_ended(rank):
                continue
            what = f"detached: volume/{record.attachment.volume} is not on node/{record.attachment.node}"
            if state.get("rank", rank) is None:
                findings.note_gone(record, what)
                continue
            detail = f"{what}, and rank/{rank} runs on without it"  # and keeps its claim
            findings.drift.append(Drift(address=str(record.address), change="changed", detail=detail))

    def _note_orphans(self, things: Iterable[Thing], findings: BackendFindings) -> None:
        """Note listed things that have no record and no open intent.

        Things of another backend are left out: several backends may use one account and list the same things.
        """
        state = self._state
        made = [r for r in state.records.values() if r.address.kind in MADE]
        known = {(made_as(r), record_token(state, r)) for r in made}
        known |= {(name_at_backend(state, i)[0], i.token) for i in state.intents}
        ours = {(r.address.kind, r.external_id) for r in made if r.external_id}
        lost = (t for t in things if (t.address, t.token) not in known)
        in_order = sorted(lost, key=lambda t: (t.address, t.token))
        orphans = (Orphan(backend=self._name, thing=t) for t in in_order)
        findings.orphans += [o for o in orphans if (o.thing.address.kind, o.id) not in ours]

    def _read_intents_back(
        self, at: Callable[[Record], Provider], findings: BackendFindings, *, unlisted: Collection[str] = ()
    ) -> None:
        """Read back every open intent of this backend: made, changed, gone, or never happened.

        Those on hosts that are `unlisted` stay open.
        """
        state = self._state
        for intent in state.intents:
            if (intent.backend or LOCAL) != self._name or host_of_intent(state, intent) in unlisted:
                continue
            resolution = read_back(state, intent, at(subject_of(state, intent)))
            findings.resolutions.append(resolution)
            if resolution.record:
                findings.recovered[intent.address] = resolution.record
            if resolution.gone:
                findings.gone.add(intent.address)
            if resolution.status:
                findings.ranks[intent.address.name] = resolution.status

    def _ask_ranks(
        self,
        client: BackendClient,
        nodes: Sequence[Record],
        findings: BackendFindings,
        *,
        reported: Mapping[str, Mapping[str, RankStatus]] | None = None,
        patience: Policy = PATIENCE,
    ) -> None:
        """Ask for the ranks on nodes. A running rank without a record is an orphan, and holds its blocks."""
        holding = {r.reservation.node for r in self._state.of("reservation")}

        def stray(node: Record, attempt: str) -> None:
            rank, blocks = blocks_of(node, attempt)
            strays = findings.strays.setdefault(node.address.name, {})
            strays.update(dict.fromkeys(blocks, f"rank/{rank}{ORPHAN}"))
            thing = Thing(
                address=Address("rank", rank), token=attempt, inputs={}, outputs={"id": attempt}, known=False
            )
            findings.orphans.append(
                Orphan(backend=self._name, thing=thing, node=node.address.name, blocks=tuple(blocks))
            )

        def past(node: Record, attempt: str, status: RankStatus | None) -> None:
            findings.past.setdefault(node.address.name, {})[attempt] = status

        def answers(node: Record) -> bool:
            readiness = findings.readiness.get(node.address.name)
            return node.address.name in holding or (readiness is not None and readiness.state in ANSWERING)

        asked = [n for n in nodes if answers(n)]
        with suppress(ProviderError):  # then they are asked as the others are
            reported = {**{node: {} for node in client.unused(asked)}, **(reported or {})}
        findings.ranks.update(
            poll(self._state, client, asked, stray, past, reported=reported, patience=patience)
        )


def _go_by_the_record(state: State, name: str, findings: BackendFindings) -> None:
    """Nodes that this command has no key for are as they were last seen by one that had it. A node that was
    starting then counts as ready: its backend says that it runs.
    """
    unseen = {node: readiness for node, readiness in findings.readiness.items() if readiness.no_key}
    for node, readiness in unseen.items():
        last = state.readiness.get(node)
        known = last is not None and last.state not in (*BOOTING, NodeState.UNKNOWN)
        findings.readiness[node] = replace(
            readiness,
            state=last.state if last and known else NodeState.READY,
            reason=last.reason if last and known else None,
        )
    if unseen:
        nodes = and_more((f"node/{node}" for node in sorted(unseen, key=natural)), MOST_NAMED)
        why = next(iter(unseen.values())).reason
        findings.diagnostics.append(
            Diagnostic(
                code="no-node-key",
                summary=f"{nodes}: not looked at, and taken for what is recorded: {why}",
                hint="a plan needs no key; `apply` does, and looks at them",
                address=f"backend/{name}",
                severity=Severity.WARNING,
            )
        )


def _difference(record: Record, key: str, now: object) -> str:
    """One difference in words."""
    if key == ANOTHERS:
        return "its tags say that it is another's: it is left alone"
    was: Any = record.image if key == IMAGE else getattr(record.typed, key, None)
    if key == TAGS:
        tags, old = dict(now) if isinstance(now, Mapping) else {}, was or {}
        changed = [k for k in sorted(old) if tags.get(k, old[k]) != old[k]]
        words = [f"its tag `{k}` is `{tags[k]}`, and was `{old[k]}`" for k in changed]
        if removed := [f"`{k}`" for k in sorted(old) if k not in tags]:
            nouns, were = ("tags", "were") if removed[1:] else ("tag", "was")
            words.append(f"its {nouns} {', '.join(removed)} {were} removed")
        # If no declared tag differs, tags of fleetform itself do.
        return "; ".join(words) or "the tags that fleetform wrote on it were changed or removed"
    return f"`{key}` is {'not set' if now is None else now}, and was {'not set' if was is None else was}"


# ------------------------------------------------------------------------------------------ hosts that exist

SILENT = frozenset({NodeState.UNREACHABLE, NodeState.UNKNOWN})
"""The states of nodes that did not answer, or not yet: nothing more is asked of them for now."""
UNANSWERED = Readiness(state=NodeState.UNKNOWN, reason=NOT_YET)


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
