"""Nodes that do not answer are asked once more before they are given up, and clouds end those that are.

Ranks that count as lost with a host are stopped when the host comes back (`settle`). `planner.inventory`
decides what is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from declarative.apply.backends import Backends
from declarative.apply.parallel import side_by_side
from declarative.model.resource import LOCAL
from declarative.model.state import (
    GIVEN_UP,
    SILENT,
    SILENT_LIMIT,
    Address,
    Intent,
    Record,
    State,
    attempt_id,
    attempt_of,
    given_up,
    machine_name,
    rank_of_attempt,
    silent_since,
)
from declarative.model.status import NodeState, RankState, RankStatus, Readiness, Silence
from declarative.planner.inventory import lost_with, silences
from declarative.provider import ProviderError
from declarative.retry import PATIENCE, call

if TYPE_CHECKING:
    from declarative.store import Writer


MOST_ASKED = 3
"""Hosts of a fleet that are asked whether they reach a host that does not answer us."""


def overdue_nodes(state: State, readiness: dict[str, Readiness], backends: Backends) -> dict[str, Silence]:
    """The silent nodes. A node is given up if its time is over and it stays silent when it is asked once
    more. That second answer replaces the first one in `readiness`.
    """

    def given_up_of(nodes: Iterable[Record], silent: Mapping[str, Silence]) -> list[Record]:
        return [r for r in nodes if (s := silent.get(r.address.name)) and s.given_up]

    silent = _silences(state, readiness, backends)
    # A host without ranks costs nothing, and may stay as it is.
    nodes = given_up_of(state.of("node"), silent)
    overdue = [r for r in nodes if not r.node.host or _live_ranks(state, r.address.name)]
    if not overdue:
        return silent

    def ask_again(node: Record) -> Readiness | None:
        if backends.outages.failed_twice(node.backend or LOCAL, machine_name(node)):
            return readiness[node.address.name]
        with suppress(ProviderError):
            client = backends.get(node.backend)
            return call(lambda: client.readiness([node]), policy=PATIENCE).get(node.address.name)
        return None

    for node, answer in zip(overdue, side_by_side(overdue, ask_again), strict=True):
        readiness[node.address.name] = answer or Readiness(state=NodeState.UNKNOWN)
    silent = _silences(state, readiness, backends)
    hosts = given_up_of((r for r in overdue if r.node.host), silent)
    reasons = side_by_side(hosts, lambda host: _why_kept(host, state, readiness, backends))
    for host, kept in zip(hosts, reasons, strict=True):
        if kept:
            silence = silent[host.address.name]
            silent[host.address.name] = replace(silence, given_up=False, kept=kept)
    return silent


def _silences(state: State, readiness: Mapping[str, Readiness], backends: Backends) -> dict[str, Silence]:
    times = (answer.observed_at for answer in readiness.values())
    now = max((time for time in times if time is not None), default=0.0)
    return silences(state, readiness, backends.limits, now)


def _why_kept(
    host: Record, state: State, readiness: Mapping[str, Readiness], backends: Backends
) -> str | None:
    """Why a host is not given up: another host of its fleet reaches it.

    A neighbour that reaches it keeps its ranks alive (see `runner.sh`), so they would run twice.
    """
    address, neighbours = host.node_address or "", []
    for node in state.of("node"):
        answer = readiness.get(node.address.name)
        if node.node.fleet == host.node.fleet and answer and answer.state is NodeState.READY:
            neighbours.append(node)
    for neighbour in neighbours[:MOST_ASKED]:
        with suppress(ProviderError):
            if backends.get(neighbour.backend).reaches(neighbour, address):
                continue
            return f"{neighbour.address} reaches it at {address}, so that its ranks may go on"
    return None


def _live_ranks(state: State, node: str) -> list[Record]:
    """The ranks on a node that have not ended."""
    places = (r for r in state.of("reservation") if r.reservation.node == node)
    ranks = (state.get("rank", place.address.name) for place in places)
    return [rank for rank in ranks if rank and not state.has_ended(rank.address.name)]


def _open_starts(state: State, node: str) -> list[Intent]:
    """Open starts of ranks on a node: it is not known whether they ran."""
    starts = (i for i in state.intents if i.op == "create" and i.address.kind == "rank")
    places = ((i, state.node_of_rank(i.address.name)) for i in starts)
    return [i for i, place in places if place and place.address.name == node]


# ------------------------------------------------------------------------------------------------- records


def note_silences(writer: Writer, readiness: Mapping[str, Readiness], silent: Mapping[str, Silence]) -> None:
    """Write down when nodes stopped answering. A node whose backend cannot be read keeps what is recorded."""
    state = writer.state()
    notes: dict[Address, Mapping[str, object]] = {}
    for record in state.of("node"):
        answer, silence = readiness.get(record.address.name), silent.get(record.address.name)
        since = silence.since if silence else None
        limit = {"seconds": silence.limit, "since": silence.counts_from} if silence else None
        known = answer is not None and answer.state is not NodeState.UNKNOWN
        if known and (silent_since(record), record.outputs.get(SILENT_LIMIT)) != (since, limit):
            of_cloud = since is None and not record.node.host and GIVEN_UP in record.outputs
            more = {GIVEN_UP: None} if of_cloud else {}
            notes[record.address] = {SILENT: since, SILENT_LIMIT: limit, **more}
    if notes:
        writer.note(notes)


def give_up_hosts(writer: Writer, silent: Mapping[str, Silence]) -> None:
    """Write down the ranks on given-up hosts, before they count as lost. `settle` stops them later."""
    state = writer.state()
    for name in sorted(n for n, s in silent.items() if s.given_up):
        record = state.get("node", name)
        if record is None or not record.node.host:
            continue
        starts = _open_starts(state, name)
        attempts = {*map(attempt_id, _live_ranks(state, name)), *map(attempt_of, starts)}
        if attempts - {*given_up(record)}:
            writer.note({record.address: {GIVEN_UP: sorted(attempts | {*given_up(record)})}})
        for intent in starts:
            writer.close_intent(intent, "not-done")


def end_given_up(
    writer: Writer, backends: Backends, silent: Mapping[str, Silence], now: Callable[[], float]
) -> dict[str, RankStatus]:
    """Let clouds end the nodes that are given up, and forget those nodes. Returns the ranks lost with them.

    A node that its cloud cannot end now stays as it is, with all that runs on it.
    """
    state = writer.state()
    lost: dict[str, RankStatus] = {}
    for name, silence in sorted(silent.items()):
        record = state.get("node", name)
        if record is None or not silence.given_up or record.node.host:
            continue
        with suppress(ProviderError):
            lost |= end(writer, backends, record, lost_with(name, silence), now)
            intent = writer.begin("delete", record.address, record.backend, record.inputs)
            writer.finish(intent)
    return lost


def end(
    writer: Writer, backends: Backends, node: Record, cause: str, now: Callable[[], float]
) -> dict[str, RankStatus]:
    """Let the cloud end a node, and release all that needs it. Returns the ranks that are lost with it."""
    writer.note({node.address: {GIVEN_UP: []}})  # if it is gone at the next look, that is why
    call(lambda: backends.get(node.backend).delete(node))
    state = writer.state()
    live = _live_ranks(state, node.address.name)
    lost = {r.address.name: RankStatus(state=RankState.LOST, cause=cause) for r in live}
    writer.observe_ranks(lost)
    for intent in _open_starts(state, node.address.name):
        writer.close_intent(intent, "not-done")
    let_go(writer, {node.address}, state, now)
    return lost


def let_go(writer: Writer, gone: Collection[Address], state: State, now: Callable[[], float]) -> None:
    """Release what needs a gone node: its attachments first, then its reservations."""

    def remove_needs_of(rank: str) -> None:
        if holder := state.get("rank", rank):
            writer.set_needs(holder.address, ())

    gone = {*gone}
    holding = {r.address for r in state.of("reservation") if r.needs & gone}
    for record in state.of("attachment"):
        if record.needs & (gone | holding):
            remove_needs_of(record.attachment.rank)
            writer.forget(record.address, observed=True)
    for record in state.of("reservation"):
        if record.address in holding:
            remove_needs_of(record.address.name)
            writer.release(record.address, now(), observed=True)


GIVEN_UP_HOLDER = " (given up)"


def holder_of(attempt: str) -> str:
    """The holder of an attempt's blocks after the attempt was given up."""
    return f"rank/{rank_of_attempt(attempt)[0]}{GIVEN_UP_HOLDER}"


def hold_given_up(
    state: State, past: Mapping[str, Mapping[str, RankStatus | None]], strays: dict[str, dict[int, str]]
) -> None:
    """Note in `strays` the blocks of given-up attempts, until their node reports (`past`) that they ended."""
    for node in state.of("node"):
        statuses = past.get(node.address.name, {})
        for attempt in given_up(node):
            status = statuses.get(attempt)
            if attempt not in statuses or (status is not None and not status.state.ended):
                _, blocks = blocks_of(node, attempt)
                strays.setdefault(node.address.name, {}).update(dict.fromkeys(blocks, holder_of(attempt)))


def blocks_of(node: Record, attempt: str) -> tuple[str, Sequence[int]]:
    """The rank of an attempt, and the blocks of its node that it runs on."""
    rank, blocks = rank_of_attempt(attempt)
    every = range(node.node.blocks)
    return rank, blocks if blocks and blocks[-1] in every else every
