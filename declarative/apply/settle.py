"""Recording what happened by itself: calls that were cut short, ranks that ended, gangs that have to stop.

Every command that writes does this first. It needs no consent, since the user asked for none of these
changes. What is released here counts as released since it was observed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from declarative.apply.backend_look import Observation, look
from declarative.apply.backends import Backends
from declarative.apply.open_intents import Resolution, clear, makes_node
from declarative.apply.parallel import side_by_side
from declarative.apply.ranks import Note, stop_rank, stop_ranks, stops
from declarative.apply.unreachable import (
    GIVEN_UP_HOLDER,
    end_given_up,
    give_up_hosts,
    holder_of,
    let_go,
    note_silences,
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
from declarative.model.text import and_more
from declarative.planner.inventory import Inventory, observed_state, unstarted, vanished
from declarative.planner.plan import Action
from declarative.provider import PermanentError, PermanentKind, ProviderError
from declarative.retry import PATIENCE, call
from declarative.store import StateError, Writer, age

LONGEST_CALL = 3600.0
"""Seconds after which a create that was started, and is not there, will not come any more."""


MOST_NAMED = 5


def _ignore(rank: str, status: RankStatus) -> None:
    pass


class VanishedError(StateError):
    """Several things are gone at once: the user decides (docs/architecture.md, "Rules for backends")."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        shown = and_more(addresses, MOST_NAMED)
        summary = f"{len(addresses)} things are gone at once: {shown}"
        if len(addresses) == 1:
            why = "and so is everything else that would show that this is the right place to look"
            summary = f"{shown} is gone, {why}"
        hint = (
            "nothing was changed; are these the credentials, the endpoint and the regions that they were "
            "made with? If they really are gone: `fleetform apply --accept-vanished`"
        )
        super().__init__("vanished", summary, hint)


def check_vanished(state: State, inventory: Inventory, actions: Iterable[Action] = ()) -> None:
    """`VanishedError` if several things are gone, or any in doubt: see `vanished`."""
    forgotten = {action.address for action in actions if action.believes}
    if several := vanished(state, inventory, forgotten):
        raise VanishedError(several)


def settle(
    writer: Writer,
    backends: Backends,
    observation: Observation,
    now: Callable[[], float],
    note: Note = _ignore,
    *,
    ending: bool = False,
    noting: bool = True,
) -> State:
    """Write what was observed, stop gangs that have to stop, give back what ended; the new state.

    With `ending`, clouds end the nodes that are given up; else that is left to the plan. Without `noting`, it
    is left to `note_lost` to say which volumes are gone: those count as known from then on.
    """
    inventory = observation.inventory
    _delete_once_more(backends, writer.state(), observation)
    clear(backends, [r.intent for r in observation.resolutions if _is_over(r, now())])
    recover(writer, observation, now())
    before = writer.state()
    if inventory.readiness:
        writer.observe_nodes({n: r for n, r in inventory.readiness.items() if before.get("node", n)})
        note_silences(writer, inventory.readiness, inventory.silent)
    _stop_given_up(writer, backends, observation)
    give_up_hosts(writer, inventory.silent)
    if ending:
        for rank, ended in end_given_up(writer, backends, inventory.silent, now).items():
            note(rank, ended)
        before = writer.state()
    # A cloud's nodes that are to be ended by a plan may run until then.
    silent_hosts = {
        name: silence
        for name, silence in inventory.silent.items()
        if (node := before.get("node", name)) and node.node.host
    }
    ranks = observed_state(before, replace(inventory, silent=silent_hosts)).ranks
    changed = {name: status for name, status in ranks.items() if before.ranks.get(name) != status}
    _stop_lost(backends, before, changed, inventory.ranks)
    _observe(writer, before, changed, note)
    _bury(backends, before, inventory.gone)
    _forget(writer, observation, before, now)
    if noting:
        note_lost(writer, before, inventory.lost, now)
    state = writer.state()
    causes = {
        rank: status.cause
        for rank, status in stops(state, now()).items()
        # Ranks on silent nodes are stopped when the nodes answer again.
        if (node := state.node_of_rank(rank)) and node.address.name not in inventory.silent
    }
    stop_ranks(state, backends, causes, lambda rank, ended: _observe(writer, state, {rank: ended}, note))
    release_ended(writer, backends, now)
    _detach_returned(writer, backends, observation)
    after = writer.state()
    attached = {need for r in after.of("attachment") for need in r.needs}
    if any(
        r.address.name not in after.detached_since and r.address not in attached for r in after.of("volume")
    ):
        writer.note_detached()  # an older version did not note when a volume was detached
        after = writer.state()
    return replace(after, silent=inventory.silent)


def _delete_once_more(backends: Backends, state: State, observation: Observation) -> None:
    """Delete gone nodes once more if a killed command was deleting them: what is deleted with the last node,
    such as the key pair, may still be there.
    """

    def delete(node: Record) -> None:
        with suppress(ProviderError):  # the node itself is gone
            call(lambda: backends.get(node.backend).delete(node), policy=PATIENCE)

    gone = [r.intent.address for r in observation.resolutions if r.gone and r.intent.address.kind == "node"]
    side_by_side([record for address in gone if (record := state.records.get(address))], delete)


def _stop_given_up(writer: Writer, backends: Backends, observation: Observation) -> None:
    """Stop given-up ranks that still run on hosts that answer again. Then their blocks are free.

    They get no time to save anything: it would be older than what came after them.
    """
    state = writer.state()
    live = {attempt_id(r) for r in state.of("rank") if not state.has_ended(r.address.name)}

    def is_over(node: Record, attempt: str, status: RankStatus | None) -> bool:
        if attempt in live or status is None or status.state.ended:
            return True
        with suppress(ProviderError):
            client = backends.get(node.backend)
            ended = call(lambda: client.stop(node, attempt, 0), policy=PATIENCE)
            return ended is None or ended.state.ended
        return False

    for name, statuses in sorted(observation.past.items()):
        node = state.get("node", name)
        if node is None:
            continue
        remaining = [a for a in given_up(node) if a not in statuses or not is_over(node, a, statuses[a])]
        if len(remaining) < len(given_up(node)):
            writer.note({node.address: {GIVEN_UP: remaining}})
            inventory, holders = observation.inventory, set(map(holder_of, remaining))
            blocks = {
                block: holder
                for block, holder in inventory.strays.get(name, {}).items()
                if not holder.endswith(GIVEN_UP_HOLDER) or holder in holders
            }
            observation.inventory = replace(inventory, strays={**inventory.strays, name: blocks})


def _bury(backends: Backends, state: State, gone: Collection[Address]) -> None:
    """Remove what gone nodes left on this machine."""
    for node in (r for r in state.of("node") if r.address in gone):
        with suppress(ProviderError):
            backends.get(node.backend).bury(node)


def _stop_lost(
    backends: Backends, state: State, statuses: Mapping[str, RankStatus], reported: Mapping[str, RankStatus]
) -> None:
    """Stop ranks that still run although they are lost with their volumes: no rank may outlive its blocks."""
    for name, status in statuses.items():
        if status.state is RankState.LOST and not reported.get(name, status).state.ended:
            with suppress(ProviderError):
                stop_rank(state, backends, name, status.cause)


def recover(writer: Writer, observation: Observation, now: float) -> None:
    """End every open intent with what was read back."""
    for resolution in observation.resolutions:
        if resolution.record:
            made = resolution.intent.op == "create" and resolution.intent.address.kind == "node"
            # Since its first call: a command that takes it over waits no longer than the one that started it.
            since = now - (age(resolution.intent, now) or 0.0)
            writer.adopt(resolution.record, resolution.intent, idle_since=since if made else None)
            if resolution.status:
                writer.observe_ranks({resolution.intent.address.name: resolution.status})
        elif resolution.gone:
            writer.finish(resolution.intent)
        elif not _may_come(writer, resolution, now):
            writer.close_intent(resolution.intent, "not-done")


def _is_over(resolution: Resolution, now: float) -> bool:
    """Whether a create of a node made nothing, and will make nothing any more."""
    intent = resolution.intent
    there = resolution.record or resolution.gone
    return makes_node(intent) and not there and _is_old(intent, now)


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


def _forget(writer: Writer, observation: Observation, state: State, now: Callable[[], float]) -> None:
    """Forget gone things, and first the attachments and reservations that need them. A lost volume stays
    recorded, with the attachments of ranks that were started.
    """
    gone = observation.inventory.gone - observation.inventory.lost
    for address in unstarted(state.records, state, observation.inventory):
        writer.forget(address, observed=True)
    let_go(writer, gone, state, now)
    for address in sorted(gone):
        if address in state.records:
            writer.forget(address)


def note_lost(writer: Writer, state: State, lost: Collection[Address], now: Callable[[], float]) -> None:
    """Write down since when these volumes are gone, and which came back."""
    notes: dict[Address, Mapping[str, object]] = {}
    for record in state.of("volume"):
        since = record.gone_since
        if (since is None) is (record.address in lost):
            notes[record.address] = {GONE_SINCE: now() if since is None else None}
    if notes:
        writer.note(notes)


def release_ended(writer: Writer, backends: Backends, now: Callable[[], float]) -> None:
    """Detach the volumes of ended ranks and give their blocks back; the serial stays."""
    state = writer.state()
    failed = [
        r
        for r in state.of("rank")
        if NOTICED not in r.outputs
        if (status := state.ranks.get(r.address.name)) and status.state in (RankState.FAILED, RankState.LOST)
    ]
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
    """Detach a rank's volumes, then give its blocks back. `observed`: see `Writer.release`."""
    name = reservation.address.name
    detached = [detach(writer, backends, r) for r in state.of("attachment") if r.attachment.rank == name]
    if all(detached):
        writer.release(reservation.address, now(), observed=observed)


def _detach_returned(writer: Writer, backends: Backends, observation: Observation) -> None:
    """Detach volumes that were gone when their ranks ended, and came back with the attachments of these
    ranks: no other rank could have them. Where a node does not answer, or a rank runs unrecorded, they stay.
    """
    attachments = [o for o in observation.orphans if isinstance(o.thing.typed, AttachmentInputs)]
    if not attachments:
        return
    state = writer.state()
    unrecorded = {o.thing.address.name for o in observation.orphans if o.thing.address.kind == "rank"}
    for orphan in attachments:
        thing, asked = orphan.thing, orphan.thing.typed
        assert isinstance(asked, AttachmentInputs)
        node = observation.inventory.readiness.get(asked.node)
        over = asked.rank not in unrecorded and state.has_ended(asked.rank)
        if over and state.get("rank", asked.rank) and node is not None and node.state is NodeState.READY:
            made = Record(
                address=thing.address, backend=orphan.backend, inputs=thing.inputs, outputs=thing.outputs
            )
            with suppress(ProviderError):
                call(partial(backends.get(made.backend).delete, made))


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
    """Look, and settle what was found; `VanishedError` if the user has to `accept` it first."""
    state = writer.state()
    observation = look(state, backends, offers=False)
    if not accept:
        check_vanished(state, observation.inventory)
    return settle(writer, backends, observation, now, note, ending=True)
