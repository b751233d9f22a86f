"""What `plan --json` prints: its objects and their texts (see `model.outputs`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from declarative.model.outputs import Of, OneOf, Pattern, Usd
from declarative.model.record import struct
from declarative.model.schema import Doc, Is
from declarative.placement.problem import Remedy, Verdict
from declarative.planner.approval import approval_in, fallbacks_data, inputs_data, moved_data
from declarative.planner.fallbacks import hourly_at_most
from declarative.planner.inventory import Drift
from declarative.planner.plan import (
    FORMAT_VERSION,
    Action,
    Difference,
    FleetShare,
    Part,
    Plan,
    Queued,
    Reservation,
    fleet_shares,
)
from declarative.render.actions import loss_text
from declarative.render.output_json import DiagnosticOutput, diagnostics_json, output
from declarative.render.status_view import HealthOutput

RESULTS = ("none", "unhealthy", "changes", "waiting", "unplaced", "error")
REFUSALS = ("never-fits", "no-capacity", "runs-already")


@struct(frozen=True, slots=True, kw_only=True)
class PartOutput:
    """Alike actions."""

    step: Annotated[str, Doc("The step: `create node/gpu-[0-3]`.")]
    digest: Annotated[
        str, Doc("The digest of its details; empty if it has none, or if there is no state yet.")
    ]


@struct(frozen=True, slots=True, kw_only=True)
class RenameOutput:
    """One record."""

    from_: Annotated[str, Doc("`node/gpu-0`.")]
    to: Annotated[str, Doc("`node/big-0`.")]


@struct(frozen=True, slots=True, kw_only=True)
class MovedOutput:
    """One entry that was not applied yet."""

    from_: Annotated[str, Doc("The old address: `fleet/gpu`.")]
    to: Annotated[str, Doc("The new one.")]
    addresses: Annotated[tuple[RenameOutput, ...], Doc("The records under it.")]


@struct(frozen=True, slots=True, kw_only=True)
class FallbackOfferOutput:
    """What may be launched instead."""

    backend: Annotated[str, Doc("The backend's name.")]
    region: Annotated[str, Doc("The region.")]
    zone: Annotated[str | None, Doc("The zone. Null if the backend has none.")]
    instance_type: Annotated[str, Doc("The backend's name for the node's shape.")]
    spot: Annotated[bool, Doc("Whether it is spot.")]
    price: Annotated[Usd | None, Doc("Of the whole node, USD an hour. Null if unknown.")]


@struct(frozen=True, slots=True, kw_only=True)
class FallbackOutput:
    """Nodes, and what `apply` launches in their place if their own offers are sold out."""

    for_: Annotated[
        tuple[Annotated[str, Doc("`node/…`.")], ...],
        Doc("Their addresses; existing idle nodes move with their cluster."),
    ]
    together: Annotated[bool, Doc("Whether all of them go to the same place, since they are a cluster.")]
    offers: Annotated[
        tuple[FallbackOfferOutput, ...],
        Doc("In the order in which they are tried, as far as the cloud has them."),
    ]
    hourly_at_most: Annotated[
        Usd | None, Doc("The most that one of these nodes may cost, USD an hour. Null if unknown.")
    ]


@struct(frozen=True, slots=True, kw_only=True)
class RejectionOutput:
    """Why one node, fleet or offer was rejected."""

    target: Annotated[str, Doc("`node/…`, `fleet/…` or `offer/…`.")]
    code: Annotated[str, Doc("Stable; docs/errors.md explains each.")]
    detail: Annotated[str, Doc("For people.")]
    short: Annotated[
        Mapping[str, float], Doc("What was missing, by dimension; a negative number was too much.")
    ]


@struct(frozen=True, slots=True, kw_only=True)
class VerdictOutput:
    """One rank."""

    rank: Annotated[int, Doc("From 0.")]
    verdict: Annotated[Verdict, Doc("Whether it is the cause, would have fitted, or was not tried.")]
    rejections: Annotated[tuple[RejectionOutput, ...], Doc("Only for the rank that is the cause.")]


@struct(frozen=True, slots=True, kw_only=True)
class RefusalOutput:
    """A task that cannot be placed."""

    task: Annotated[str, Doc("The task's name.")]
    code: Annotated[
        str,
        OneOf(REFUSALS),
        Doc("Whether waiting may help: `no-capacity`; or not: `never-fits`, and `runs-already`."),
    ]
    summary: Annotated[str, Doc("For people.")]
    proved: Annotated[
        bool, Doc("Whether it was proved that it does not fit beside all tasks of at least its priority.")
    ]
    hint: Annotated[str | None, Doc("What to do about it. Null if there is nothing.")]
    starts: Annotated[
        str | None,
        Doc(
            "When the `schedule` of a fleet starts that it waits for: it holds up nothing else. "
            "Null if it waits for no schedule."
        ),
    ]
    changes: Annotated[
        tuple[Annotated[str, Doc("For people.")], ...] | None,
        Doc(
            "Changes, each of which is enough: `with …` or `without …`. "
            "Null if not all possible ones were tried."
        ),
    ]
    ranks: Annotated[tuple[VerdictOutput, ...], Doc("Every rank of the task.")]
    before: Annotated[
        Mapping[str, Any] | None, Doc("The inputs of its rank 0 as recorded. Null if there is none.")
    ]
    after: Annotated[
        Mapping[str, Any] | None, Doc("The inputs that its rank 0 would have. Null if not known.")
    ]


@struct(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """One volume."""

    address: Annotated[str, Doc("Its address.")]
    what: Annotated[str, Of(loss_text), Doc("For people: size, and since when it is unused.")]
    who: Annotated[str | None, Of("task"), Doc("The task that has it attached. Null if none has.")]
    file: Annotated[str | None, Doc("Where it is declared. Null if it is declared no more.")]
    line: Annotated[int | None, Is(minimum=1), Doc("From 1. Null if it is declared no more.")]


@struct(frozen=True, slots=True, kw_only=True)
class CostOutput:
    """Whole nodes, an hour."""

    hourly_before: Annotated[
        Usd | None, Of("preview.cost.before"), Doc("Now. Null if the price of a node is unknown.")
    ]
    hourly_after: Annotated[
        Usd | None, Of("preview.cost.after"), Doc("After apply. Null if the price of a node is unknown.")
    ]
    hourly_at_most: Annotated[
        Usd | None,
        Of(hourly_at_most),
        Doc(
            "The most that `hourly_after` becomes, whichever fallbacks are taken. "
            "Null if the price of a node or of a fallback is unknown."
        ),
    ]
    bound_hourly: Annotated[
        Usd | None,
        Of("preview.cost.bound"),
        Doc(
            "The least that `hourly_after` could be, with the same tasks placed. "
            "Null if it was not computed: HiGHS is not installed, or the plan is too large."
        ),
    ]
    currency: Annotated[Literal["USD"], Of(lambda _: "USD")]
    excludes: Annotated[
        tuple[Annotated[str, OneOf(("volumes",))], ...],
        Of("preview.cost.excludes"),
        Doc("What is billed but not in these sums, since backends report no price for it."),
    ]
    fleets: Annotated[
        tuple[FleetShare, ...],
        Of(lambda plan: fleet_shares(node for node in plan.preview.nodes if node.stays)),
        Doc("What `hourly_after` is for; what costs most comes first, and an unknown price before that."),
    ]


@struct(frozen=True, slots=True, kw_only=True)
class CountsOutput:
    """Addresses by what happens to them; a replacement counts once, under `replace`."""

    create: int
    update: int
    delete: int
    replace: int
    restarts: Annotated[int, Doc("Ranks that run, and are stopped and started again.")]
    stops: Annotated[int, Doc("Ranks that run, and are stopped by a changed `max_duration` or `schedule`.")]


@struct(frozen=True, slots=True, kw_only=True)
class PlanOutput:
    """What `fleetform plan --json` prints."""

    project: Annotated[
        str | None,
        Of("origin.project"),
        Doc("The project's name, else its folder's. Null in files of earlier builds."),
    ]
    environment: Annotated[
        str | None,
        Of("origin.environment"),
        Doc("The project's folder in its repository. Null at the top, or without one."),
    ]
    state: Annotated[
        str | None, Of("origin.state"), Doc("Where the state is. Null in files of earlier builds.")
    ]
    commit: Annotated[
        str | None, Of("origin.commit"), Doc("The commit that is checked out. Null if it is unknown.")
    ]
    changed: Annotated[
        bool,
        Of("origin.changed"),
        Doc("Whether documents of the project are not as in that commit, as far as that is known."),
    ]
    lineage: Annotated[
        str | None, Of("basis.lineage"), Doc("The identity of the state. Null before the first apply.")
    ]
    serial: Annotated[int, Of("basis.serial"), Doc("Grows with each change of the records.")]
    result: Annotated[
        str,
        OneOf(RESULTS),
        Doc(
            "`unplaced`: a task cannot be placed, whatever else there is to do; `waiting`: all of those wait "
            "for capacity, as their `retry` says. Neither counts tasks that wait for a `schedule`, nor any "
            "with `allow_unplaced`. `unhealthy`: there is nothing to do, and not all is well."
        ),
    ]
    digest: Annotated[
        str,
        Pattern("^sha256:[0-9a-f]{64}$"),
        Doc("What the plan does; for `apply --expect`. With the result `error` it approves nothing."),
    ]
    parts: Annotated[
        tuple[PartOutput, ...],
        Doc("The parts of the digest: with them, `apply --expect FILE` names the differences."),
    ]
    moved: Annotated[tuple[MovedOutput, ...], Doc("The renames by the project's `moved`, which come first.")]
    selection: Annotated[Part | None, Of("scope.part")]
    refresh_only: Annotated[
        bool, Of("scope.refresh_only"), Doc("Whether the plan only records what happened by itself.")
    ]
    actions: Annotated[
        tuple[Action, ...], Doc("The actions, in an order in which they could be done one by one.")
    ]
    reservations: Annotated[
        tuple[Reservation, ...], Doc("Every rank that holds, will hold, or gives back blocks.")
    ]
    fallbacks: Annotated[
        tuple[FallbackOutput, ...], Doc("What is launched where planned offers are sold out.")
    ]
    unplaced: Annotated[tuple[RefusalOutput, ...], Doc("Tasks that cannot be placed.")]
    remedies: Annotated[
        tuple[Remedy, ...],
        Of("unplaced.remedies"),
        Doc("Changes for several tasks together, each as small as possible."),
    ]
    queued: Annotated[
        tuple[Queued, ...],
        Of("preview.queued"),
        Doc("Tasks of this plan that wait in the queue of their cluster."),
    ]
    health: Annotated[tuple[HealthOutput, ...], Doc("What is not well and is not repaired by an action.")]
    drift: Annotated[tuple[Drift, ...], Of("observed.drift"), Doc("What changed outside of fleetform.")]
    differences: Annotated[
        tuple[Difference, ...],
        Of("observed.differences"),
        Doc("Declared values that nodes were not made with."),
    ]
    losses: Annotated[
        tuple[LossOutput, ...], Doc("The content that is lost with the volumes that are deleted or replaced.")
    ]
    cost: Annotated[CostOutput, Of(lambda plan: plan)]
    summary: CountsOutput
    diagnostics: Annotated[tuple[DiagnosticOutput, ...], Doc("Errors and warnings.")]


def plan_json(plan: Plan) -> dict[str, Any]:
    """What `plan --json` prints."""
    inputs = {str(action.task): inputs_data(action) for action in plan.unplaced.starts}
    unknown: dict[str, Any] = {"before": None, "after": None}
    covered: dict[str, Any] = {
        "lineage": plan.basis.lineage,
        "actions": [output(Action, action, **inputs_data(action)) for action in plan.actions],
        "moved": moved_data(plan),
        "unplaced": [output(RefusalOutput, r, **inputs.get(r.task, unknown)) for r in plan.unplaced.refusals],
        "fallbacks": fallbacks_data(plan),
    }
    printed = output(
        PlanOutput,
        plan,
        **covered,
        **approval_in(covered).to_json(),
        summary={**plan.summary(), "restarts": plan.restarts, "stops": plan.stops},
        diagnostics=diagnostics_json(plan.diagnostics),
    )
    return {"format_version": FORMAT_VERSION, **printed}
