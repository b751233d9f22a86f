"""Recording what happened by itself: calls that were cut short, ranks that ended, gangs that have to stop.

Every command that writes does this first. It needs nobody's consent: none of it is a change that the
user asked for, and what is released here counts as released since it was observed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from declarative.apply.backends import Backends
from declarative.apply.intents import Resolution
from declarative.apply.interrupted import clear, is_node
from declarative.apply.inventory import Seen, look
from declarative.apply.launch import seconds
from declarative.apply.polls import node_of_rank
from declarative.apply.unreachable import (
    end_given_up,
    give_up_hosts,
    let_go,
    note_silences,
    of_host,
    stop_given_up,
)
from declarative.model.attempts import attempt_id, first_failure
from declarative.model.spec import StopCriteria
from declarative.model.state import (
    NOTICED,
    STARTED,
    STOPPED,
    Address,
    Intent,
    RankState,
    RankStatus,
    Record,
    State,
    rank_name,
)
from declarative.planner.inventory import effective, vanished
from declarative.provider import PermanentError, PermanentKind, ProviderError
from declarative.retry import PATIENCE, call
from declarative.store import StateError, Writer, age

Note = Callable[[str, RankStatus], None]
"""Told of each rank whose state changed."""

DEFAULT_GRACE = 300
BY_USER = "stopped by the user"
MOST_STOPS = 64
"""Ranks that are stopped at the same time: each may take its whole `stop_duration`."""


START_LIMIT = 600.0
"""Seconds from the start of a gang's first rank in which the others have to start."""

LONGEST_CALL = 3600.0
"""Seconds after which a create that was begun, and is not there, will not come any more."""


class VanishedError(StateError):
    """Several things are gone at once: the user decides (docs/architecture.md, "Rules for backends")."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        names = [str(a) for a in addresses]
        shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
        one = (
            f"{shown} is gone, and so is everything else that would show that this is the right place to look"
        )
        summary = f"{len(names)} things are gone at once: {shown}" if len(names) > 1 else one
        hint = (
            "nothing was changed; are these the credentials, the endpoint and the regions that they were "
            "made with? If they really are gone: `fleetform apply --accept-vanished`"
        )
        super().__init__("vanished", summary, hint)


def check_vanished(state: State, seen: Seen) -> None:
    """`VanishedError` if nodes and volumes that nobody was deleting are gone: several, or without a sign."""
    several = vanished(state, seen.inventory)
    if several:
        raise VanishedError(several)


def settle(
    writer: Writer,
    backends: Backends,
    seen: Seen,
    now: Callable[[], float],
    note: Note | None = None,
    *,
    ending: bool = False,
) -> State:
    """Write what `seen` found, stop gangs that have to stop, give back what ended; the new state.

    With `ending`, clouds end the nodes that are given up; else that is left to the plan.
    """
    _end(backends, writer.state(), seen)
    clear(backends, [r.intent for r in seen.resolutions if _is_over(r, now())])
    recover(writer, seen, now())
    before = writer.state()
    inventory = seen.inventory
    if inventory.readiness:
        writer.observe_nodes({n: r for n, r in inventory.readiness.items() if before.get("node", n)})
        note_silences(writer, inventory.readiness, inventory.silent)
    stop_given_up(writer, backends, seen)
    give_up_hosts(writer, inventory.silent)
    if ending:
        for rank, ended in end_given_up(writer, backends, inventory.silent, now).items():
            if note:
                note(rank, ended)
        before = writer.state()
    # A cloud's nodes that are to be ended by a plan may run as long as they are not.
    hosts = {n: s for n, s in inventory.silent.items() if of_host(before, n)}
    inventory = replace(inventory, silent=hosts)
    statuses = {n: s for n, s in effective(before, inventory).ranks.items() if before.ranks.get(n) != s}
    _stop_lost(backends, before, statuses, seen.inventory.ranks)
    _observe(writer, before, statuses, note)
    for node in (r for r in before.of("node") if r.address in seen.inventory.gone):
        with contextlib.suppress(ProviderError):
            backends.get(node.backend).bury(node)
    _forget(writer, seen, before, now)
    _stop_gangs(writer, backends, seen, now, note)
    release_ended(writer, backends, now)
    state = writer.state()
    if _undated(state):
        writer.note_detached()
        state = writer.state()
    return replace(state, silent=seen.inventory.silent)


def _stop_lost(
    backends: Backends, state: State, statuses: Mapping[str, RankStatus], seen: Mapping[str, RankStatus]
) -> None:
    """Stop ranks that are lost with their volumes and still run: none may outlive its blocks."""
    for name, status in statuses.items():
        if status.state is RankState.LOST and not seen.get(name, status).state.ended:
            with contextlib.suppress(ProviderError):
                stop_rank(state, backends, name, status.cause)


def _stop_gangs(
    writer: Writer, backends: Backends, seen: Seen, now: Callable[[], float], note: Note | None
) -> None:
    """Stop the ranks of gangs that cannot go on, and those that the user has stopped."""
    state = writer.state()
    stops = {**half_started(state, now()), **gang_stops(state), **_user_stops(state)}
    # Those on nodes that do not answer are stopped when they do.
    there = (
        n for n in stops if (w := node_of_rank(state, n)) and w.address.name not in seen.inventory.silent
    )
    causes = {rank: stops[rank].cause for rank in there}
    stop_ranks(state, backends, causes, lambda rank, ended: _observe(writer, state, {rank: ended}, note))


def _user_stops(state: State) -> dict[str, RankStatus]:
    """Ranks that the user has stopped, and could not be asked then."""
    stopped = RankStatus(state=RankState.STOPPED, cause=BY_USER)
    live = (r for r in state.of("rank") if not ((s := state.ranks.get(r.address.name)) and s.state.ended))
    return {r.address.name: stopped for r in live if r.outputs.get(STOPPED)}


def _undated(state: State) -> bool:
    """Whether an older version did not note of a volume since when nothing has it attached."""
    volumes = {r.address for r in state.of("volume") if r.address.name not in state.detached_since}
    return bool(volumes - {need for r in state.of("attachment") for need in r.needs} if volumes else ())


def _end(backends: Backends, state: State, seen: Seen) -> None:
    """Delete nodes that are gone once more, if a killed command was deleting them: what goes with the last
    one, as the key pair, may still be there.
    """

    def delete(node: Record) -> None:
        with contextlib.suppress(ProviderError):  # the node itself is gone
            call(lambda: backends.get(node.backend).delete(node), policy=PATIENCE)

    gone = [r.intent.address for r in seen.resolutions if r.gone and r.intent.address.kind == "node"]
    nodes = [record for address in gone if (record := state.records.get(address))]
    with ThreadPoolExecutor(MOST_STOPS, thread_name_prefix="end") as pool:
        list(pool.map(delete, nodes))


def recover(writer: Writer, seen: Seen, now: float) -> None:
    """End every open intent with what was read back."""
    for resolution in seen.resolutions:
        if resolution.record:
            made = resolution.intent.op == "create" and resolution.intent.address.kind == "node"
            # Since it was asked for: who takes it over waits no longer for it than who began it.
            since = now - (age(resolution.intent, now) or 0.0)
            writer.adopt(resolution.record, resolution.intent, idle_since=since if made else None)
            if resolution.status:
                writer.observe_rank(resolution.intent.address.name, resolution.status)
        elif resolution.gone:
            writer.finish(resolution.intent)
        elif not _may_come(writer, resolution, now):
            writer.close_intent(resolution.intent, "not-done")


def _is_over(resolution: Resolution, now: float) -> bool:
    """Whether a create of a node made nothing, and will make nothing any more."""
    intent = resolution.intent
    there = resolution.record or resolution.gone
    return is_node(intent) and not there and _is_old(intent, now)


def _is_old(intent: Intent, now: float) -> bool:
    passed = age(intent, now)
    return passed is not None and passed > LONGEST_CALL


def _may_come(writer: Writer, resolution: Resolution, now: float) -> bool:
    """Whether a create that is not there may still be: its caller died, its request may be under way.

    Its intent stays open. So it is asked again with the same token, which makes no second one, and is found
    by a later look when nobody wants it any more. No request is under way for `LONGEST_CALL`.
    """
    intent = resolution.intent
    if _is_old(intent, now):
        return False
    if intent.op != "create" or intent.address.kind != "rank":
        return intent.op == "create"
    return bool(writer.part([Address("reservation", intent.address.name)]).records)


def _observe(writer: Writer, before: State, statuses: dict[str, RankStatus], note: Note | None) -> None:
    if statuses:
        writer.observe_ranks(statuses)
    for name, status in statuses.items():
        old = before.ranks.get(name)
        if note and (old is None or old.state is not status.state):
            note(name, status)


def _forget(writer: Writer, seen: Seen, state: State, now: Callable[[], float]) -> None:
    """What is gone, and what held on to it: its attachments and reservations first."""
    gone = seen.inventory.gone
    let_go(writer, gone, state, now)
    for address in sorted(gone):
        if address in state.records:
            writer.forget(address)


def gang_stops(state: State) -> dict[str, RankStatus]:
    """Ranks that have to stop because of a sibling: one failed, or rank 0 is done and that is enough."""
    gangs: dict[str, list[Record]] = {}
    for record in state.of("rank"):
        gangs.setdefault(record.rank.task, []).append(record)
    out: dict[str, RankStatus] = {}
    for members in gangs.values():
        statuses = {r.address.name: state.ranks.get(r.address.name) for r in members}
        broken = first_failure(statuses)
        cause = None
        if broken:
            status = statuses[broken]
            cause = f"rank/{broken} {status.state.value}: {status.cause}" if status else None
        elif members[0].rank.stop_criteria == StopCriteria.MASTER_DONE.value:
            master = next((r for r in members if r.rank.rank == 0), None)
            status = statuses.get(master.address.name) if master else None
            if master and status and status.state is RankState.SUCCEEDED:
                cause = f"rank/{master.address.name} is done"
        if cause:
            for name, status in statuses.items():
                if status and not status.state.ended:
                    out[name] = RankStatus(state=RankState.STOPPED, cause=cause)
    return out


def half_started(state: State, now: float) -> dict[str, RankStatus]:
    """Ranks that have waited too long for siblings that were not started: an apply was cut short.

    Until then the next apply starts those that are missing; after it, all of them anew.
    """
    gangs: dict[str, list[Record]] = {}
    for record in state.of("rank"):
        gangs.setdefault(record.rank.task, []).append(record)
    out: dict[str, RankStatus] = {}
    for task, members in gangs.items():
        there = {r.rank.rank for r in members}
        missing = [i for i in range(members[0].rank.nodes) if i not in there]
        begun = [float(r.outputs[STARTED]) for r in members if STARTED in r.outputs]
        if not missing or not begun or now - min(begun) <= START_LIMIT:
            continue
        rank = Address("rank", rank_name(task, missing[0]))
        asked = any(i.address == rank and i.op == "create" for i in state.intents)
        why = "whether it did is not known" if asked else "the apply that began it was cut short"
        cause = f"{rank} did not start within {START_LIMIT / 60:.0f} minutes: {why}"
        for name in (r.address.name for r in members):
            status = state.ranks.get(name)
            if status is None or not status.state.ended:
                out[name] = RankStatus(state=RankState.STOPPED, cause=cause)
    return out


def stop_rank(state: State, backends: Backends, rank: str, cause: str | None) -> RankStatus | None:
    """Stop one rank as a whole; how it ended, or None if its backend could not be asked."""
    record, node = state.get("rank", rank), node_of_rank(state, rank)
    if record is None or node is None:
        return None
    grace = seconds(record.rank.stop_duration, None)
    try:
        provider = backends.get(node.backend)
        status = call(
            lambda: provider.stop(node, attempt_id(record), DEFAULT_GRACE if grace is None else grace)
        )
    except ProviderError:
        return None
    if status is None:
        return RankStatus(state=RankState.LOST, cause=f"{node.address} knows nothing of it")
    if status.state is RankState.STOPPED:
        return RankStatus(
            state=status.state,
            exit_code=status.exit_code,
            cause=cause or "stopped",
            started_at=status.started_at,
            ended_at=status.ended_at,
            mounted=status.mounted,
        )
    return status


def stop_ranks(state: State, backends: Backends, causes: Mapping[str, str | None], note: Note) -> None:
    """Stop ranks side by side; `note` hears of each once it has ended: a status that is told is true.

    Those whose backend could not be asked are left as they are.
    """

    def stop(rank: str) -> None:
        ended = stop_rank(state, backends, rank, causes[rank])
        if ended:
            note(rank, ended)

    if causes:
        with ThreadPoolExecutor(min(MOST_STOPS, len(causes)), thread_name_prefix="stop") as pool:
            list(pool.map(stop, causes))


def release_ended(writer: Writer, backends: Backends, now: Callable[[], float]) -> None:
    """Detach the volumes of ended ranks and give their blocks back; the serial stays."""
    state = writer.state()
    failed = [r for r in state.of("rank") if NOTICED not in r.outputs and _failed(state, r.address.name)]
    if failed:
        # Hosts' clocks differ: what waits for its time after a failure (`retry`) goes by this one.
        writer.note({r.address: {NOTICED: now()} for r in failed})
    for reservation in state.of("reservation"):
        name = reservation.address.name
        status = state.ranks.get(name)
        if not (status and status.state.ended and state.get("rank", name)):
            continue
        writer.set_needs(Address("rank", name), ())
        detached = [detach(writer, backends, r) for r in state.of("attachment") if r.attachment.rank == name]
        if all(detached):
            writer.release(reservation.address, now(), observed=True)


def _failed(state: State, rank: str) -> bool:
    status = state.ranks.get(rank)
    return status is not None and status.state in (RankState.FAILED, RankState.LOST)


def detach(writer: Writer, backends: Backends, record: Record) -> bool:
    """Detach one volume of an ended rank; False where the backend could not be reached now."""
    intent = writer.begin("delete", record.address, record.backend, record.inputs)
    try:
        call(lambda: backends.get(record.backend).delete(record))
    except PermanentError as error:
        if error.kind is not PermanentKind.NOT_FOUND:
            writer.fail(intent, error.summary)
            return False
    except ProviderError:
        return False
    writer.finish(intent, observed=True)
    return True


def refresh(
    writer: Writer,
    backends: Backends,
    now: Callable[[], float],
    note: Note | None = None,
    *,
    accept: bool = False,
) -> State:
    """Look at the backends, and settle what was found; `VanishedError` where that needs the user's word,
    unless it is given: `accept`.
    """
    state = writer.state()
    seen = look(state, backends, offers=False)
    if not accept:
        check_vanished(state, seen)
    return settle(writer, backends, seen, now, note, ending=True)
