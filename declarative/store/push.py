"""Whether a pushed state may replace the one that is there, and writing a whole state."""

from __future__ import annotations

from dataclasses import replace

from declarative.model.diagnostic import and_more
from declarative.model.state import Address, Intent, State
from declarative.store import journal, record_changes, records, spending
from declarative.store.consistency import HeldBlocks, contradictions
from declarative.store.errors import StateError
from declarative.store.rows import columns
from declarative.store.sql import Connection

MOST_NAMED = 5


def may_push(present: State, pushed: State, held: HeldBlocks, *, force: bool) -> State:
    """The state to write in place of `present`, or `StateError`: nothing that is known is lost unasked."""
    if pushed.lineage is None:
        raise StateError(
            "bad-state",
            "the state to push has no lineage: nothing was ever applied to it",
            "push another one",
        )
    wrong = contradictions(pushed, held)
    if wrong:
        raise StateError(
            "contradiction",
            f"the state to push contradicts itself: {and_more(wrong, MOST_NAMED, '; ')}",
            "nothing was changed; `fleetform state check` where it comes from",
        )
    if present.lineage is None:
        return pushed
    if present.lineage != pushed.lineage:
        return _other_lineage(present, pushed, force=force)
    if pushed.serial > present.serial:
        return _with_generations(present, pushed)
    if not force:
        raise StateError(
            "older-state",
            f"the state to push has serial {pushed.serial}, the one that is there {present.serial}",
            "what was recorded since would be lost: compare with `fleetform state pull`; `--force` pushes it "
            "all the same",
        )
    # Its own serial was used for something else meanwhile: a plan that was saved then must not hold now.
    return replace(_with_generations(present, pushed), serial=present.serial + 1)


def _other_lineage(present: State, pushed: State, *, force: bool) -> State:
    if present.records or present.intents:
        raise StateError(
            "other-lineage",
            f"another state is there: its lineage is {present.lineage}, that of the one to push "
            f"{pushed.lineage}",
            "nothing of it would be found again: name an empty state with `--state`",
        )
    if not force:
        raise StateError(
            "other-lineage",
            f"another state is there, though an empty one: its lineage is {present.lineage}, that of the one "
            f"to push {pushed.lineage}",
            "`--force` puts it in its place",
        )
    return pushed


def _with_generations(present: State, pushed: State) -> State:
    """A generation that was used is not used again, whatever is pushed: its token would come back."""
    used = dict(pushed.generations)
    for address, number in present.generations.items():
        used[address] = max(number, used.get(address, 0))
    return replace(pushed, generations=used)


# ------------------------------------------------------------------------------------------ writing


def write(connection: Connection, state: State, held: HeldBlocks, now: float) -> None:
    """Replace the whole state, except the lock and the journal's ended entries."""
    for table in ("reserved_blocks", "needs", "resources", "rank_status", "node_status", "generations"):
        connection.execute(f"DELETE FROM {table}")
    connection.update("meta", {"lineage": state.lineage, "serial": state.serial})
    connection.lineage = connection.last_id = None
    connection.insert(
        "resources",
        *(
            {
                **record_changes.resource_row(record),
                "detached_since": state.detached_since.get(record.address.name)
                if record.address.kind == records.VOLUME
                else None,
            }
            for record in state.records.values()
        ),
    )
    needs = ((a, need) for a, record in state.records.items() for need in sorted(record.needs))
    connection.insert("needs", *({"address": str(a), "needed": str(need)} for a, need in needs))
    connection.insert(
        "reserved_blocks",
        *(
            {
                "node": str(Address(records.NODE, node)),
                "block": block,
                "reservation": str(Address(records.RESERVATION, name)),
            }
            for (node, block), name in held.items()
        ),
    )
    used = state.generations.items()
    connection.insert("generations", *({"address": str(a), "generation": number} for a, number in used))
    _observations(connection, state)
    spending.count_all(connection, state.of("node"), now)
    _open_ones(connection, state.intents, now)


def _observations(connection: Connection, state: State) -> None:
    for name, status in state.ranks.items():
        record_changes.put_rank(connection, name, status)
    for name, readiness in state.readiness.items():
        record_changes.put_node(connection, name, columns("node_status", readiness))
    for name, since in state.idle_since.items():
        record_changes.put_node(connection, name, {"idle_since": since})


def _open_ones(connection: Connection, intents: tuple[Intent, ...], now: float) -> None:
    """The open ones are those of the state, under their ids; what ended stays, but for ids that are taken."""
    kept = ("begun_at", "place", "tick", "host", "doing", "actor", "revision")
    known = {
        row.id: {name: getattr(row, name) for name in kept}
        for row in connection.execute(f"SELECT id, {', '.join(kept)} FROM operations WHERE ended_at IS NULL")
    }
    nowhere = {"host": None, "doing": None, "place": None, "tick": None}
    unknown = {"begun_at": now, **nowhere, **journal.signature(connection)}
    connection.execute("DELETE FROM operations WHERE ended_at IS NULL")
    for start in range(0, len(intents), records.MOST_BOUND):
        some = [intent.id for intent in intents[start : start + records.MOST_BOUND]]
        connection.execute("DELETE FROM operations WHERE id IN (:its_ids)", its_ids=some)
    connection.insert(
        "operations",
        *({**columns("operations", intent), **known.get(intent.id, unknown)} for intent in intents),
    )
