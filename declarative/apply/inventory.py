"""Looking at all backends side by side: their things, and the offers for new nodes.

This module reads the backends and records nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

from declarative.apply.answers import PATIENT, side_by_side
from declarative.apply.away import AT_LEAST
from declarative.apply.backend_look import BackendLook, backends_of, look_at
from declarative.apply.backends import Backends
from declarative.apply.drift import Orphan, each_once, orphan_drift
from declarative.apply.hosts import host_offers, notes_on, risk_notes
from declarative.apply.intents import (
    Resolution,
    resolution_notes,
)
from declarative.apply.offers import Answers, ask_offers, known_offers, own_gpus
from declarative.apply.unreachable import hold_given_up, judged
from declarative.model.record import struct
from declarative.model.resource import Host, LeftOut, Offer
from declarative.model.state import State
from declarative.model.status import RankStatus
from declarative.planner.inventory import Inventory
from declarative.spans import named


@struct(slots=True)
class Seen:
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
) -> Seen:
    """What is there now. Offline nothing is contacted: the last observations and the catalogs are used.

    With `every`, backends without records are looked at, too; with `gpus`, this machine's GPUs. `hosts` are
    the declared hosts: those that are not nodes yet are looked at together with the offers. `patience` is for
    backends that are slower than the others; see `answers`.
    """
    found, hosts, answers = BackendLook(), tuple(hosts), Answers()
    patience = min(patience, AT_LEAST) if backends.away.remembers else patience
    if not offline:
        found = _asked(state, backends, hosts, answers, every=every, offers=offers, patience=patience)
    for name in backends.names() if offers and offline else ():
        ask_offers(name, backends, answers, offline=True)
    silent = judged(state, found.readiness, backends)
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
    return Seen(inventory, found.resolutions, found.compared.orphans, found.past)


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
    for seen in side_by_side(sorted(names), ask).values():
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
