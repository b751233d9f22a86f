"""Recording what happened by itself: calls that were cut short, ranks that ended, gangs that have to stop.

Every command that writes does this first. It needs no consent, since the user asked for none of these
changes. What is released here counts as released since it was observed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from declarative.apply.backend_look import Observation, look
from declarative.apply.backends import Backends
from declarative.apply.open_intents import Resolution, clear, is_node
from declarative.apply.parallel import side_by_side
from declarative.apply.stops import Note, stop_rank, stop_ranks, stops
from declarative.apply.unreachable import (
    GIVEN_UP_HOLDER,
    end_given_up,
    give_up_hosts,
    holder_of,
    let_go,
    note_silences,
    of_host,
)
from declarative.model.inputs import AttachmentInputs
from declarative.model.state import (
    GIVEN_UP,
    GONE_SINCE,
    NOTICED,
    Address,
    Intent,
    Record,
    State,
    attempt_id,
    given_up,
)
from declarative.model.status import NodeState, RankState, RankStatus
from declarative.planner.inventory import Inventory, effective, unstarted, vanished
from declarative.planner.types import Action
from declarative.provider import PermanentError, PermanentKind, ProviderError
from declarative.retry import PATIENCE, call
from declarative.store import StateError, Writer, age

LONGEST_CALL = 3600.0
"""Seconds after which a create that was started, and is not there, will not come any more."""


def _ignore(rank: str, status: RankStatus) -> None:
    """Notify nobody."""


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


def check_vanished(state: State, inventory: Inventory, actions: Iterable[Action] = ()) -> None:
    """`VanishedError` if several things are gone, or any in doubt: see `vanished`."""
    several = vanished(state, inventory, actions)
    if several:
        raise VanishedError(several)


def settle(
    writer: Writer,
    backends: Backends,
    seen: Observation,
    now: Callable[[], float],
    note: Note = _ignore,
    *,
    ending: bool = False,
    noting: bool = True,
) -> State:
    """Write what `seen` found, stop gangs that have to stop, give back what ended; the new state.

    With `ending`, clouds end the nodes that are given up; else that is left to the plan. Without `noting`, it
    is left to `note_lost` to say which volumes are gone: those count as known from then on.
    """
    _end(backends, writer.state(), seen)
    clear(backends, [r.intent for r in seen.resolutions if _is_over(r, now())])
    recover(writer, seen, now())
    before = writer.state()
    inventory = seen.inventory
    if inventory.readiness:
        writer.observe_nodes({n: r for n, r in inventory.readiness.items() if before.get("node", n)})
        note_silences(writer, inventory.readiness, inventory.silent)
    _stop_given_up(writer, backends, seen)
    give_up_hosts(writer, inventory.silent)
    if ending:
        for rank, ended in end_given_up(writer, backends, inventory.silent, now).items():
            note(rank, ended)
        before = writer.state()
    statuses = _changed_ranks(before, inventory)
    _stop_lost(backends, before, statuses, seen.inventory.ranks)
    _observe(writer, before, statuses, note)
    _bury(backends, before, inventory.gone)
    _forget(writer, seen, before, now)
    if noting:
        note_lost(writer, before, seen.inventory.lost, now)
    _stop_gangs(writer, backends, seen, now, note)
    release_ended(writer, backends, now)
    _detach_returned(writer, backends, seen)
    state = writer.state()
    if _lacks_dates(state):
        writer.note_detached()
        state = writer.state()
    return replace(state, silent=seen.inventory.silent)


def _stop_given_up(writer: Writer, backends: Backends, seen: Observation) -> None:
    """Stop given-up ranks that still run on hosts that answer again. Then their blocks are free.

    They get no time to save anything: it would be older than what came after them.
    """
    state = writer.state()
    going = {attempt_id(r) for r in state.of("rank") if not state.has_ended(r.address.name)}

    def over(node: Record, attempt: str, status: RankStatus | None) -> bool:
        return attempt in going or _has_ended(node, attempt, status, backends)

    for name, statuses in sorted(seen.past.items()):
        node = state.get("node", name)
        if node is None:
            continue
        left = [a for a in given_up(node) if a not in statuses or not over(node, a, statuses[a])]
        if len(left) < len(given_up(node)):
            writer.note({node.address: {GIVEN_UP: left}})
            kept = _still_held(seen.inventory.strays.get(name, {}), left)
            seen.inventory = replace(seen.inventory, strays={**seen.inventory.strays, name: kept})


def _has_ended(node: Record, attempt: str, status: RankStatus | None, backends: Backends) -> bool:
    """Stop an attempt if it runs; whether it has ended."""
    if status is None or status.state.ended:
        return True
    provider = backends.get(node.backend)
    with suppress(ProviderError):
        found = call(lambda: provider.stop(node, attempt, 0), policy=PATIENCE)
        return found is None or found.state.ended
    return False


def _still_held(held: Mapping[int, str], left: Iterable[str]) -> dict[int, str]:
    """The held blocks of a node, once only the attempts `left` of the given-up ones hold any."""
    holders = set(map(holder_of, left))
    return {b: who for b, who in held.items() if not who.endswith(GIVEN_UP_HOLDER) or who in holders}


def _changed_ranks(state: State, inventory: Inventory) -> dict[str, RankStatus]:
    """The changed statuses of ranks. A cloud's nodes that are to be ended by a plan may run until then."""
    hosts = {n: s for n, s in inventory.silent.items() if of_host(state, n)}
    found = effective(state, replace(inventory, silent=hosts)).ranks
    return {name: status for name, status in found.items() if state.ranks.get(name) != status}


def _bury(backends: Backends, state: State, gone: Collection[Address]) -> None:
    """Remove what gone nodes left on this machine."""
    for node in (r for r in state.of("node") if r.address in gone):
        with contextlib.suppress(ProviderError):
            backends.get(node.backend).bury(node)


def _stop_lost(
    backends: Backends, state: State, statuses: Mapping[str, RankStatus], seen: Mapping[str, RankStatus]
) -> None:
    """Stop ranks that still run although they are lost with their volumes: no rank may outlive its blocks."""
    for name, status in statuses.items():
        if status.state is RankState.LOST and not seen.get(name, status).state.ended:
            with contextlib.suppress(ProviderError):
                stop_rank(state, backends, name, status.cause)


def _stop_gangs(
    writer: Writer, backends: Backends, seen: Observation, now: Callable[[], float], note: Note
) -> None:
    """Stop the ranks of gangs that cannot go on, and those that the user has stopped."""
    state = writer.state()
    due = stops(state, now())
    # Ranks on silent nodes are stopped when the nodes answer again.
    there = (n for n in due if (w := state.node_of_rank(n)) and w.address.name not in seen.inventory.silent)
    causes = {rank: due[rank].cause for rank in there}
    stop_ranks(state, backends, causes, lambda rank, ended: _observe(writer, state, {rank: ended}, note))


def _lacks_dates(state: State) -> bool:
    """Whether an older version did not note when a volume was detached."""
    volumes = {r.address for r in state.of("volume") if r.address.name not in state.detached_since}
    return bool(volumes - {need for r in state.of("attachment") for need in r.needs} if volumes else ())


def _end(backends: Backends, state: State, seen: Observation) -> None:
    """Delete gone nodes once more if a killed command was deleting them: what is deleted with the last node,
    such as the key pair, may still be there.
    """

    def delete(node: Record) -> None:
        with contextlib.suppress(ProviderError):  # the node itself is gone
            call(lambda: backends.get(node.backend).delete(node), policy=PATIENCE)

    gone = [r.intent.address for r in seen.resolutions if r.gone and r.intent.address.kind == "node"]
    nodes = [record for address in gone if (record := state.records.get(address))]
    side_by_side(nodes, delete)


def recover(writer: Writer, seen: Observation, now: float) -> None:
    """End every open intent with what was read back."""
    for resolution in seen.resolutions:
        if resolution.record:
            made = resolution.intent.op == "create" and resolution.intent.address.kind == "node"
            # Since its first call: a command that takes it over waits no longer than the one that started it.
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
    """Whether the thing of a create may still come: its caller died, and its request may be under way.

    Its intent stays open. So it is asked for again with the same token, which makes no second thing; if it is
    not wanted any more, a later look finds it. No request is under way for longer than `LONGEST_CALL`.
    """
    intent = resolution.intent
    if _is_old(intent, now):
        return False
    if intent.op != "create" or intent.address.kind != "rank":
        return intent.op == "create"
    return bool(writer.part([Address("reservation", intent.address.name)]).records)


def _observe(writer: Writer, before: State, statuses: dict[str, RankStatus], note: Note) -> None:
    if statuses:
        writer.observe_ranks(statuses)
    for name, status in statuses.items():
        old = before.ranks.get(name)
        if old is None or old.state is not status.state:
            note(name, status)


def _forget(writer: Writer, seen: Observation, state: State, now: Callable[[], float]) -> None:
    """Forget gone things, and first the attachments and reservations that need them. A lost volume stays
    recorded, with the attachments of ranks that were started.
    """
    gone = seen.inventory.gone - seen.inventory.lost
    for address in unstarted(state.records, state, seen.inventory):
        writer.forget(address, observed=True)
    let_go(writer, gone, state, now)
    for address in sorted(gone):
        if address in state.records:
            writer.forget(address)


def note_lost(writer: Writer, state: State, lost: Collection[Address], now: Callable[[], float]) -> None:
    """Write down since when these volumes are gone, and which came back."""
    notes: dict[Address, Mapping[str, object]] = {}
    for record in state.of("volume"):
        since = record.outputs.get(GONE_SINCE)
        if (since is None) is (record.address in lost):
            notes[record.address] = {GONE_SINCE: now() if since is None else None}
    if notes:
        writer.note(notes)


def release_ended(writer: Writer, backends: Backends, now: Callable[[], float]) -> None:
    """Detach the volumes of ended ranks and give their blocks back; the serial stays."""
    state = writer.state()
    failed = [r for r in state.of("rank") if NOTICED not in r.outputs and _failed(state, r.address.name)]
    if failed:
        # Hosts' clocks differ: the wait after a failure (`retry`) goes by this clock.
        writer.note({r.address: {NOTICED: now()} for r in failed})
    for reservation in state.of("reservation"):
        name = reservation.address.name
        if state.has_ended(name) and state.get("rank", name):
            writer.set_needs(Address("rank", name), ())
            free(writer, backends, state, reservation, now, observed=True)


def free(
    writer: Writer,
    backends: Backends,
    state: State,
    reservation: Record,
    now: Callable[[], float],
    *,
    observed: bool = False,
) -> None:
    """Detach the volumes of a reservation's rank, and give its blocks back once all are off. `observed`: it
    counts as seen, and not as a change.
    """
    name = reservation.address.name
    detached = [detach(writer, backends, r) for r in state.of("attachment") if r.attachment.rank == name]
    if all(detached):
        writer.release(reservation.address, now(), observed=observed)


def _detach_returned(writer: Writer, backends: Backends, seen: Observation) -> None:
    """Detach volumes that were gone when their ranks ended, and came back with the attachments of these
    ranks: no other rank could have them. Where a node does not answer, or a rank runs unrecorded, they stay.
    """
    attachments = [o for o in seen.orphans if isinstance(o.thing.typed, AttachmentInputs)]
    if not attachments:
        return
    state = writer.state()
    unrecorded = {o.thing.address.name for o in seen.orphans if o.thing.address.kind == "rank"}
    for orphan in attachments:
        thing, asked = orphan.thing, orphan.thing.typed
        assert isinstance(asked, AttachmentInputs)
        node = seen.inventory.readiness.get(asked.node)
        over = asked.rank not in unrecorded and state.has_ended(asked.rank)
        if over and state.get("rank", asked.rank) and node is not None and node.state is NodeState.READY:
            made = Record(
                address=thing.address, backend=orphan.backend, inputs=thing.inputs, outputs=thing.outputs
            )
            with contextlib.suppress(ProviderError):
                call(partial(backends.get(made.backend).delete, made))


def _failed(state: State, rank: str) -> bool:
    status = state.ranks.get(rank)
    return status is not None and status.state in (RankState.FAILED, RankState.LOST)


def detach(writer: Writer, backends: Backends, record: Record) -> bool:
    """Detach one volume of an ended rank; False if the backend could not be reached now."""
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
    note: Note = _ignore,
    *,
    accept: bool = False,
) -> State:
    """Look at the backends, and settle what was found; `VanishedError` if the user has to confirm that.
    `accept` confirms it.
    """
    state = writer.state()
    seen = look(state, backends, offers=False)
    if not accept:
        check_vanished(state, seen.inventory)
    return settle(writer, backends, seen, now, note, ending=True)
