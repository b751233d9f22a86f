"""Nodes that do not answer: asked once more before they are given up, and ended where a cloud can do that.

Ranks that count as lost with a host are stopped when the host comes back. `planner.health` decides what is
given up.
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
from declarative.planner.health import lost_with, silences
from declarative.provider import ProviderError
from declarative.retry import PATIENCE, call

if TYPE_CHECKING:
    from declarative.store import Writer


MOST_ASKED = 3
"""Hosts of a fleet that are asked whether they reach a host that does not answer us."""


def overdue_nodes(state: State, readiness: dict[str, Readiness], backends: Backends) -> dict[str, Silence]:
    """The nodes that do not answer. Nodes whose time is over were asked twice, which updates `readiness`."""
    found = _silences(state, readiness, backends)
    due = [node for node in _due(state.of("node"), found) if _has_to_go(state, node)]
    if not due:
        return found

    def again(record: Record) -> Readiness | None:
        if backends.outages.failed_twice(record.backend or LOCAL, machine_name(record)):
            return readiness[record.address.name]
        with suppress(ProviderError):
            provider = backends.get(record.backend)
            return call(lambda: provider.readiness([record]), policy=PATIENCE).get(record.address.name)
        return None

    for record, seen in zip(due, side_by_side(due, again), strict=True):
        readiness[record.address.name] = seen or Readiness(state=NodeState.UNKNOWN)
    found = _silences(state, readiness, backends)
    hosts = _due([r for r in due if r.node.host], found)
    reached = side_by_side(hosts, lambda r: _reached(r, state, readiness, backends))
    for record, kept in zip(hosts, reached, strict=True):
        if kept:
            silence = found[record.address.name]
            found[record.address.name] = replace(silence, given_up=False, kept=kept)
    return found


def _due(nodes: Iterable[Record], silent: Mapping[str, Silence]) -> list[Record]:
    """The nodes whose time is over."""
    return [r for r in nodes if (s := silent.get(r.address.name)) and s.given_up]


def _has_to_go(state: State, node: Record) -> bool:
    """Whether a node has to be given up. A host without ranks costs nothing, and may stay as it is."""
    return not node.node.host or bool(_live(state, node.address.name))


def _silences(state: State, readiness: Mapping[str, Readiness], backends: Backends) -> dict[str, Silence]:
    times = (seen.observed_at for seen in readiness.values())
    now = max((time for time in times if time is not None), default=0.0)
    return silences(state, readiness, backends.limits, now)


def _reached(
    record: Record, state: State, readiness: Mapping[str, Readiness], backends: Backends
) -> str | None:
    """Why a host is not given up: another host of its fleet reaches it, or that cannot be told.

    A neighbour that reaches it keeps its ranks alive (see `runner.sh`), so they would run twice.
    """
    address, others = str(record.outputs.get("address") or ""), []
    for other in state.of("node"):
        seen = readiness.get(other.address.name)
        if other.node.fleet == record.node.fleet and seen and seen.state is NodeState.READY:
            others.append(other)
    for other in others[:MOST_ASKED]:
        with suppress(ProviderError):
            if backends.get(other.backend).reaches(other, address):
                continue
            return f"{other.address} reaches it at {address}, so that its ranks may go on"
    return None


def _live(state: State, node: str) -> list[Record]:
    """The ranks on a node that have not ended."""
    found = (state.get("rank", r.address.name) for r in state.of("reservation") if r.reservation.node == node)
    return [r for r in found if r and not state.has_ended(r.address.name)]


def _starts(state: State, node: str) -> list[Intent]:
    """Open starts of ranks on a node: it is not known whether they ran."""
    asked = (i for i in state.intents if i.op == "create" and i.address.kind == "rank")
    places = ((i, state.node_of_rank(i.address.name)) for i in asked)
    return [i for i, place in places if place and place.address.name == node]


# ------------------------------------------------------------------------------------------------- records


def note_silences(writer: Writer, readiness: Mapping[str, Readiness], silent: Mapping[str, Silence]) -> None:
    """When nodes stopped answering. A node whose backend cannot be read keeps what is recorded."""
    state = writer.state()
    notes: dict[Address, Mapping[str, object]] = {}
    for record in state.of("node"):
        seen, silence = readiness.get(record.address.name), silent.get(record.address.name)
        since = silence.since if silence else None
        limit = {"seconds": silence.limit, "since": silence.counts_from} if silence else None
        known = seen is not None and seen.state is not NodeState.UNKNOWN
        if known and (silent_since(record), record.outputs.get(SILENT_LIMIT)) != (since, limit):
            of_cloud = since is None and not record.node.host and GIVEN_UP in record.outputs
            more = {GIVEN_UP: None} if of_cloud else {}
            notes[record.address] = {SILENT: since, SILENT_LIMIT: limit, **more}
    if notes:
        writer.note(notes)


def give_up_hosts(writer: Writer, silent: Mapping[str, Silence]) -> None:
    """Write down the ranks on hosts that are given up, before they count as lost. They are stopped when the
    hosts answer again.
    """
    state = writer.state()
    for name in sorted(n for n, s in silent.items() if s.given_up):
        record = state.get("node", name)
        if record is None or not record.node.host:
            continue
        starts = _starts(state, name)
        attempts = {*map(attempt_id, _live(state, name)), *map(attempt_of, starts)}
        if attempts - {*given_up(record)}:
            writer.note({record.address: {GIVEN_UP: sorted(attempts | {*given_up(record)})}})
        for intent in starts:
            writer.close_intent(intent, "not-done")


def of_host(state: State, node: str) -> bool:
    """Whether a node is an existing host, and not a machine that a cloud can end."""
    record = state.get("node", node)
    return bool(record and record.node.host)


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
        if record is None or not silence.given_up or of_host(state, name):
            continue
        with suppress(ProviderError):
            lost |= end(writer, backends, record, lost_with(name, silence), now)
            intent = writer.begin("delete", record.address, record.backend, record.inputs)
            writer.finish(intent)
    return lost


def end(
    writer: Writer, backends: Backends, node: Record, cause: str, now: Callable[[], float]
) -> dict[str, RankStatus]:
    """Let the cloud end a node, and release all that needs it: nothing runs there any more. Returns the ranks
    that are lost with it.
    """
    writer.note({node.address: {GIVEN_UP: []}})  # if it is gone at the next look, that is why
    call(lambda: backends.get(node.backend).delete(node))
    state = writer.state()
    live = _live(state, node.address.name)
    lost = {r.address.name: RankStatus(state=RankState.LOST, cause=cause) for r in live}
    writer.observe_ranks(lost)
    for intent in _starts(state, node.address.name):
        writer.close_intent(intent, "not-done")
    let_go(writer, {node.address}, state, now)
    return lost


def let_go(writer: Writer, gone: Collection[Address], state: State, now: Callable[[], float]) -> None:
    """Release what needs a gone node: its attachments first, then its reservations."""
    gone = {*gone}
    holding = {r.address for r in state.of("reservation") if r.needs & gone}
    for record in state.of("attachment"):
        if record.needs & (gone | holding):
            _release(writer, record, state)
            writer.forget(record.address, observed=True)
    for record in state.of("reservation"):
        if record.address in holding:
            _release(writer, record, state)
            writer.release(record.address, now(), observed=True)


def _release(writer: Writer, record: Record, state: State) -> None:
    """Remove the needs of the rank that holds `record`."""
    rank = record.attachment.rank if record.address.kind == "attachment" else record.address.name
    holder = state.get("rank", rank)
    if holder:
        writer.set_needs(holder.address, ())


GIVEN_UP_HOLDER = " (given up)"


def holder_of(attempt: str) -> str:
    """The holder of an attempt's blocks after the attempt was given up."""
    return f"rank/{rank_of_attempt(attempt)[0]}{GIVEN_UP_HOLDER}"


def hold_given_up(
    state: State,
    past: Mapping[str, Mapping[str, RankStatus | None]],
    strays: dict[str, dict[int, str]],
) -> None:
    """Note in `strays` that the blocks of a given-up attempt stay held, until its node reports (`past`) that
    it does not run.
    """
    for node in state.of("node"):
        statuses = past.get(node.address.name, {})
        for attempt in given_up(node):
            status = statuses.get(attempt)
            if attempt not in statuses or (status is not None and not status.state.ended):
                _, held = blocks_of(node, attempt)
                blocks = dict.fromkeys(held, holder_of(attempt))
                strays.setdefault(node.address.name, {}).update(blocks)


def blocks_of(node: Record, attempt: str) -> tuple[str, Sequence[int]]:
    """The rank of an attempt, and the blocks of its node that it runs on."""
    rank, blocks = rank_of_attempt(attempt)
    every = range(node.node.blocks)
    return rank, blocks if blocks and blocks[-1] in every else every
