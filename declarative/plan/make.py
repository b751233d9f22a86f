"""`make`: the one function that answers what to do. No clock, no randomness, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from declarative.diagnostic import Diagnostic, Severity, and_more, in_order, located
from declarative.inputs import NodeInputs, RankInputs
from declarative.manifest import told
from declarative.placement.types import Node
from declarative.plan.actions import build
from declarative.plan.decisions import Fates, Question, decide
from declarative.plan.fallbacks import fallbacks
from declarative.plan.fleets import Fleets, NodeFate
from declarative.plan.health import NODE_HINT, SICK, of_hosts, of_nodes
from declarative.plan.observe import effective, vanished
from declarative.plan.preview import cost, node_previews, reservations, suggestions
from declarative.plan.rehearsal import Rehearsed, rehearsals
from declarative.plan.retries import bad_end
from declarative.plan.shortfalls import short, unknown_regions
from declarative.plan.silence import silence_text
from declarative.plan.tasks import Fate
from declarative.plan.types import Action, Inventory, Op, Plan, Reason
from declarative.plan.volumes import waiting
from declarative.plan.work_limit import too_large
from declarative.resource import LOCAL, SSH, Desired
from declarative.schema import encode
from declarative.spec import Backend
from declarative.state import Address, NodeState, Readiness, State, natural, rank_name

MOST_NAMED = 20
"""Nodes that are named one by one; more are counted."""
SMALL_DISK = 100 * 1024
"""MiB of a node's disk: less is small where it has GPUs."""


def make(  # noqa: PLR0913 (keywords, each with a default)
    desired: Desired,
    recorded: State,
    inventory: Inventory,
    now: float,
    *,
    requested: frozenset[str] = frozenset(),
    destroy: bool = False,
    reuse: bool = False,
    max_work: int | None = None,
) -> Plan:
    """What to do so that `desired` is there.

    `now` is seconds since the epoch, for idle times and retries. `requested` holds addresses of tasks that
    are to run again, and of nodes that are to be made anew, although nothing about them changed. With
    `destroy`, protected things are left alone. With `reuse` nothing is launched for tasks. What is
    more than `max_work` units is refused (`size`).
    """
    large = too_large(desired, recorded, inventory, max_work)
    if large:
        return Plan(lineage=recorded.lineage, serial=recorded.serial, diagnostics=(large,))
    state = effective(recorded, inventory)
    asked = Question(
        desired=desired,
        state=state,
        inventory=inventory,
        now=now,
        requested=requested,
        destroy=destroy,
        reuse=reuse,
    )
    found = decide(asked)
    fleets, outcome = found.fleets, found.outcome
    actions = build(recorded, state, found, destroy=destroy)
    errors = (
        *found.errors,
        *_node_errors(fleets, destroy=destroy),
        *_lost_files(desired, actions),
        *_left_alone(desired, recorded),
    )
    diagnostics = [
        *located(inventory.diagnostics, desired.places),
        *errors,
        *_remarks(desired, found, inventory),
    ]
    return Plan(
        lineage=recorded.lineage,
        serial=recorded.serial,
        actions=actions,
        reservations=reservations(recorded, state, fleets, found.tasks, outcome),
        unplaced=outcome.refusals,
        drift=inventory.drift,
        cost=cost(fleets, outcome, found.volumes),
        nodes=node_previews(state, fleets, found.tasks, outcome),
        diagnostics=in_order(diagnostics),
        vanished=tuple(map(str, vanished(recorded, inventory))),
        suggestions=() if destroy else suggestions(state, fleets, found.tasks, outcome),
        unstarted=tuple(_unstarted(found)),
        waiting=_waiting(found),
        backends=_reached(desired),
        ended=_ended(found, state),
        observed_at=_observed_at(state),
        unfit=(*of_nodes(_staying(fleets), inventory.silent, now), *of_hosts(inventory.left_out)),
        fallbacks=fallbacks(found, state),
    )


def _remarks(desired: Desired, found: Fates, inventory: Inventory) -> list[Diagnostic]:
    """What is to be said of fleets and volumes. One that has its error is not called too small as well."""
    known = {d.address for d in found.fleets.diagnostics if d.code in ("blocks-do-not-divide", "no-backend")}
    lacking = [d for d in short(desired, found.outcome, inventory) if d.address not in known]
    noted = {d.address for d in found.fleets.diagnostics}
    unready = _unready(
        (f for f in found.fleets.fates.values() if str(f.record.address) not in noted),
        {name: silence_text(silence, found.fleets.now) for name, silence in inventory.silent.items()},
    )
    nodes = {fate.node.region for fate in found.fleets.fates.values()}
    short_of = {d.address for d in lacking}
    named = [d for d in unknown_regions(desired, inventory, nodes) if d.address not in short_of]
    staying = [f.node for f in found.fleets.fates.values() if not f.goes]
    there = (Rehearsed(n.fleet, n.backend, n.shape) for n in (*staying, *found.outcome.launches))
    rehearsed = rehearsals(desired, there, inventory.own_gpus)
    waits = waiting(desired, found.volumes)
    small = _small_disks(desired, found.outcome.launches)
    later = _later_files(desired, found)
    return [*found.fleets.diagnostics, *unready, *lacking, *named, *rehearsed, *waits, *small, *later]


def _later_files(desired: Desired, found: Fates) -> Iterator[Diagnostic]:
    """Of tasks that stay ended although what lies in their folders changed."""
    for name, fate in sorted(found.tasks.items()):
        if fate.fate is Fate.KEPT and fate.files:
            address = f"task/{name}"
            summary = f"{address} has ended and is not run again, although its files changed"
            yield Diagnostic(
                code="files-changed-later",
                summary=f"{summary}: {told(fate.files)}",
                hint=f"to run it with them: `--replace {address}`",
                address=address,
                span=desired.places.get(address),
                severity=Severity.WARNING,
            )


def _small_disks(desired: Desired, launches: Iterable[Node]) -> Iterator[Diagnostic]:
    """A warning for each fleet that launches GPUs on a cloud with a disk that their images soon fill."""
    sizes: dict[str, int] = {}
    for node in launches:
        backend = desired.backends.get(node.backend)
        cloud = backend is not None and backend.provider not in (LOCAL, SSH)
        if cloud and node.shape.gpus and node.shape.disk_mib is not None and node.fleet:
            sizes[node.fleet] = min(node.shape.disk_mib, sizes.get(node.fleet, SMALL_DISK))
    for fleet, size in sorted(sizes.items()):
        if size < SMALL_DISK:
            address = f"fleet/{fleet}"
            has = f"{address} launches GPUs with a disk of {size // 1024} GB"
            summary = f"{has}: images of GPU software soon fill it"
            hint = "give its backend more, such as `options: {disk_size: 100}`, or ask for `disk: 100GB..`"
            yield Diagnostic(
                code="small-disk",
                summary=summary,
                hint=hint,
                address=address,
                span=desired.places.get(address),
                severity=Severity.WARNING,
            )


def _staying(fleets: Fleets) -> list[tuple[str, Readiness]]:
    return [(f.node.name, f.node.readiness) for f in fleets.fates.values() if not f.goes]


def _unready(fates: Iterable[NodeFate], silent: Mapping[str, str]) -> list[Diagnostic]:
    """Nodes that stay and take no work, with the reason: one line for all of a fleet that have the same.

    Of those that are `silent` it is said what comes of that.
    """
    by_reason: dict[tuple[str, NodeState, str], list[str]] = {}
    for fate in fates:
        seen = fate.node.readiness
        if not fate.goes and seen.state in SICK:
            reason = silent.get(fate.node.name, seen.reason or "")
            by_reason.setdefault((fate.node.fleet, seen.state, reason), []).append(fate.node.name)
    out: list[Diagnostic] = []
    for (fleet, state, reason), names in by_reason.items():
        named = and_more((f"node/{n}" for n in sorted(names, key=natural)), MOST_NAMED)
        verb = "takes" if len(names) == 1 else "take"
        why = f"{state.value.replace('_', ' ')}: {reason or 'no reason is known'}"
        summary = f"{named} {verb} no work: {why}"
        address = f"node/{names[0]}" if len(names) == 1 else f"fleet/{fleet}"
        out.append(
            Diagnostic(
                code="node-not-ready",
                summary=summary,
                hint=NODE_HINT,
                address=address,
                severity=Severity.WARNING,
            )
        )
    return out


def _waiting(found: Fates) -> tuple[str, ...]:
    """Tasks that do not fit now, and whose `retry` says to wait, or to run again. What can never fit is not
    waited for.
    """
    refused = (found.tasks[r.task] for r in found.outcome.refusals if r.code == "no-capacity")
    return tuple(f.name for f in refused if f.want.spec.retry.waits or f.reason is Reason.RETRY)


def _reached(desired: Desired) -> dict[str, dict[str, Any]]:
    """Of each backend that says something of it: how it is reached, as whom, what its nodes start from."""
    out: dict[str, dict[str, Any]] = {}
    for name, backend in sorted(desired.backends.items()):
        values = encode(backend)
        found = {key: values[key] for key in ("options", *Backend.CLOUD) if values.get(key)}
        if found:
            out[name] = {"driver": backend.provider, **found}
    return out


def _unstarted(found: Fates) -> Iterator[Action]:
    """What unplaced tasks would run: a later plan, or a retry, may start them with nobody looking."""
    for refusal in found.outcome.refusals:
        fate = found.tasks[refusal.task]
        old = fate.have.get(0)
        yield Action(
            op=Op.UPDATE if old else Op.CREATE,
            address=Address("rank", rank_name(fate.name, 0)),
            reason=fate.reason,
            because=fate.because,
            before=old.typed if old else None,
            after=fate.rank_inputs(0),
        )


def _ended(found: Fates, state: State) -> tuple[tuple[str, str], ...]:
    """Tasks that failed or were lost, and are not run again."""
    kept = (fate for fate in found.tasks.values() if fate.fate is Fate.KEPT)
    ends = ((fate.name, bad_end(fate.have.values(), state)) for fate in kept)
    return tuple((name, end.value) for name, end in ends if end is not None)


def _observed_at(state: State) -> float | None:
    """When the nodes were observed; of several times the one longest ago."""
    seen = (state.readiness.get(r.address.name) for r in state.of("node"))
    return min((s.observed_at for s in seen if s and s.observed_at is not None), default=None)


def _left_alone(desired: Desired, recorded: State) -> list[Diagnostic]:
    """What is recorded and stands in a document that was not used: nobody said that it shall go."""
    have = {f"task/{r.rank.task}" for r in recorded.of("rank")}
    have |= {f"fleet/{r.node.fleet}" for r in recorded.of("node")}
    have |= {str(r.address) for r in recorded.of("volume")}
    have -= {f"task/{name}" for name in desired.tasks} | {f"fleet/{name}" for name in desired.fleets}
    have -= {f"volume/{name}" for name in desired.volumes}
    return [
        Diagnostic(
            code="skipped-recorded",
            summary=f"{address} is recorded, and would be deleted because its document was not used",
            hint="see the warning about the document; to have it deleted, remove the document",
            address=address,
            span=span,
        )
        for address, span in sorted(desired.skipped.items())
        if address in have
    ]


def _node_errors(fleets: Fleets, *, destroy: bool) -> list[Diagnostic]:
    """Nodes that would be deleted although their fleet says `prevent_destroy`."""
    out: list[Diagnostic] = []
    for fate in fleets.fates.values():
        fleet = fleets.desired.fleets.get(fate.node.fleet)
        protected = fleet.prevent_destroy if fleet else fate.record.node.prevent_destroy
        if not fate.goes or not protected or destroy:
            continue
        address = str(fate.record.address)
        why = f"`{fate.because[0]}` changed" if fate.because else "its fleet is not declared any more"
        why = "`--replace`" if fate.goes is Reason.REQUESTED else why
        out.append(
            Diagnostic(
                code="protected",
                summary=f"{address} would be deleted ({why}), but its fleet's `prevent_destroy` is true",
                hint="undo the change, or set `prevent_destroy: false`",
                address=address,
                span=fleets.desired.places.get(f"fleet/{fate.node.fleet}"),
                severity=Severity.ERROR,
            )
        )
    return out


def _lost_files(desired: Desired, actions: Iterable[Action]) -> list[Diagnostic]:
    """Patterns of `include` without a file, while things go that no file declares any more: nobody can tell
    whether their declarations were deleted or only moved to where they are not read.
    """
    if not desired.unmatched:
        return []
    lost = [str(a.address) for a in actions if a.op is Op.DELETE and _undeclared(desired, a)]
    if not lost:
        return []
    named = and_more(lost, 1)
    return [
        Diagnostic(
            code="nothing-included",
            summary=f"`{pattern}` matches no file, and {named} would be deleted: no file declares them",
            hint="correct the pattern or bring the files back; if they are to go, remove the pattern",
            span=span,
        )
        for pattern, span in desired.unmatched.items()
    ]


def _undeclared(desired: Desired, action: Action) -> bool:
    if isinstance(action.typed, NodeInputs):
        return action.typed.fleet not in desired.fleets
    if isinstance(action.typed, RankInputs):
        return action.typed.task not in desired.tasks
    return action.address.kind == "volume" and action.address.name not in desired.volumes
