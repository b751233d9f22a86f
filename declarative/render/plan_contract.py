"""The JSON Schema of what `plan --json` prints; see `contract`."""

from __future__ import annotations

from declarative.placement.problem import Verdict
from declarative.planner.plan import FORMAT_VERSION, Op, Reason, ReservationStatus
from declarative.render.contract import (
    INPUTS,
    LINEAGE,
    PRICE,
    SERIAL,
    ZONE,
    Schema,
    address_of,
    described,
    diagnostic,
    drift,
    flag,
    health,
    list_of,
    map_of,
    moment,
    number,
    one_of,
    or_null,
    published,
    record,
    text,
    whole,
)

RESULTS = ("none", "unhealthy", "changes", "waiting", "unplaced", "error")
REFUSALS = ("never-fits", "no-capacity", "runs-already")


def _action() -> Schema:
    return record(
        "One step; a replacement is a delete and a create.",
        id=text("`<op>:<address>`."),
        op=one_of("What is done.", Op),
        address=address_of("The address that it changes."),
        reason=one_of("Why; for people.", Reason),
        because=list_of(
            "The changed fields, or the replaced addresses that this one needs; of a retry, the failure.",
            text(),
        ),
        before=or_null(described("The inputs as recorded, secrets left out.", INPUTS), "for a create"),
        after=or_null(described("The inputs as they will be, secrets left out.", INPUTS), "for a delete"),
        needs=list_of("Ids of the actions that have to be done before.", text()),
        forget=flag("Whether a delete only removes the record: the volume was adopted or is to be kept."),
        ends=flag(
            "Whether it ends work that goes on, though it replaces nothing: a `max_duration` or `retry` that "
            "is over already, or a `schedule` that was added or whose hours changed."
        ),
    )


def _difference() -> Schema:
    return record(
        "A declared value that a node gets when it is made anew. Nothing is made anew for it.",
        address=address_of("The node.", ("node",)),
        field=text("What differs: `image`, `network.subnet`, `resources.cpu`."),
        before=described("The value that it was made with; null for none.", {}),
        after=described(
            "The declared value; null if it is not to be had any more; a list for one of it.", {}
        ),
        replaced=flag("Whether this plan makes the node anew."),
    )


def _reservation() -> Schema:
    return record(
        "The blocks of one rank.",
        task=text("The task's name."),
        rank=whole("From 0."),
        node=text("The node's name."),
        fleet=text("The fleet's name."),
        new_node=flag("Whether this plan launches the node."),
        blocks=list_of("The numbers of its blocks.", whole()),
        total_blocks=whole("How many blocks the node has.", 1),
        volumes=map_of("The volume's name by the path where it is mounted.", text()),
        backend=text("The backend's name."),
        region=text("The region."),
        zone=ZONE,
        instance_type=text("The backend's name for the node's shape."),
        price=or_null(number(f"The rank's share, {PRICE}."), "if unknown"),
        status=one_of("`new`, `kept` as it was, or `released`.", ReservationStatus),
        restart=flag("Whether the rank runs, and is stopped and started again by this plan."),
    )


def _fallback() -> Schema:
    offer = record(
        "What may be launched instead.",
        backend=text("The backend's name."),
        region=text("The region."),
        zone=ZONE,
        instance_type=text("The backend's name for the node's shape."),
        spot=flag("Whether it is spot."),
        price=or_null(number(f"Of the whole node, {PRICE}."), "if unknown"),
    )
    return record(
        "Nodes, and what `apply` launches in their place if their own offers are sold out.",
        **{
            "for": list_of("Their addresses; existing idle nodes move with their cluster.", text("`node/…`."))
        },
        together=flag("Whether all of them go to the same place, since they are a cluster."),
        offers=list_of("In the order in which they are tried, as far as the cloud has them.", offer),
        hourly_at_most=or_null(number(f"The most that one of these nodes may cost, {PRICE}."), "if unknown"),
    )


def _refusal() -> Schema:
    rejection = record(
        "Why one node, fleet or offer was rejected.",
        target=text("`node/…`, `fleet/…` or `offer/…`."),
        code=text("Stable; docs/errors.md explains each."),
        detail=text("For people."),
        short=map_of("What was missing, by dimension; a negative number was too much.", number()),
    )
    rank = record(
        "One rank.",
        rank=whole("From 0."),
        verdict=one_of("Whether it is the cause, would have fitted, or was not tried.", Verdict),
        rejections=list_of("Only for the rank that is the cause.", rejection),
    )
    return record(
        "A task that cannot be placed.",
        task=text("The task's name."),
        code=one_of(
            "Whether waiting may help: `no-capacity`; or not: `never-fits`, and `runs-already`.", REFUSALS
        ),
        summary=text("For people."),
        proved=flag("Whether it was proved that it does not fit beside all tasks of at least its priority."),
        hint=or_null(text("What to do about it."), "if there is nothing"),
        starts=or_null(
            text("When the `schedule` of a fleet starts that it waits for: it holds up nothing else."),
            "if it waits for no schedule",
        ),
        changes=or_null(
            list_of("Changes, each of which is enough: `with …` or `without …`.", text("For people.")),
            "if not all possible ones were tried",
        ),
        ranks=list_of("Every rank of the task.", rank),
        before=or_null(described("The inputs of its rank 0 as recorded.", INPUTS), "if there is none"),
        after=or_null(described("The inputs that its rank 0 would have.", INPUTS), "if not known"),
    )


def _queued() -> Schema:
    return record(
        "A task that starts when others free its nodes.",
        task=text("The task's name."),
        behind=list_of("Who holds them.", text("In the cluster's words.")),
        behind_until=or_null(moment("When the last of them has to end, in UTC."), "if nobody knows"),
        expected_start=or_null(
            moment("When the cluster expects it to start, in UTC."),
            "if it does not report this",
        ),
    )


def _cost() -> Schema:
    return record(
        "Whole nodes, an hour.",
        hourly_before=or_null(number("Now."), "if the price of a node is unknown"),
        hourly_after=or_null(number("After apply."), "if the price of a node is unknown"),
        hourly_at_most=or_null(
            number("The most that `hourly_after` becomes, whichever fallbacks are taken."),
            "if the price of a node or of a fallback is unknown",
        ),
        bound_hourly=or_null(
            number("The least that `hourly_after` could be, with the same tasks placed."),
            "if it was not computed: HiGHS is not installed, or the plan is too large",
        ),
        currency={"const": "USD"},
        excludes=list_of(
            "What is billed but not in these sums, since backends report no price for it.",
            one_of("", ("volumes",)),
        ),
        fleets=list_of(
            "What `hourly_after` is for; what costs most comes first, and an unknown price before that.",
            record(
                "The nodes of one fleet.",
                fleet=text("Its name."),
                nodes=whole("How many there would be."),
                hourly=or_null(number("All of them."), "if a price is unknown"),
                tasks=list_of(
                    "The tasks that hold blocks of them.",
                    record(
                        "One task.",
                        task=text("Its name."),
                        hourly=or_null(number("Its blocks."), "if a price is unknown"),
                    ),
                ),
            ),
        ),
    )


def _moved() -> Schema:
    return list_of(
        "The renames by the project's `moved`, which come first.",
        record(
            "One entry that was not applied yet.",
            **{"from": text("The old address: `fleet/gpu`."), "to": text("The new one.")},
            addresses=list_of(
                "The records under it.",
                record("One record.", **{"from": text("`node/gpu-0`."), "to": text("`node/big-0`.")}),
            ),
        ),
    )


def _selection() -> Schema:
    return or_null(
        record(
            "How `--target` and `--exclude` limit the plan.",
            targets=list_of("As given.", text("A pattern.")),
            excludes=list_of("As given.", text("A pattern.")),
            needed=list_of("Included because a target needs it.", text("`node/gpu-0`.")),
            left_out=list_of("What the whole plan would do besides.", text("`task/train`.")),
            held_up=list_of("Targets among these that cannot be done now.", text("An address.")),
        ),
        "for the whole plan",
    )


def _counts() -> Schema:
    return record(
        "Addresses by what happens to them; a replacement counts once, under `replace`.",
        **{name: whole() for name in ("create", "update", "delete", "replace")},
        restarts=whole("Ranks that run, and are stopped and started again."),
        stops=whole("Ranks that run, and are stopped by a changed `max_duration` or `schedule`."),
    )


def plan_schema() -> Schema:
    """The schema of `plan --json`."""
    return published(
        "fleetform plan",
        "What `fleetform plan --json` prints.",
        FORMAT_VERSION,
        project=or_null(text("The project's name, else its folder's."), "in files of earlier builds"),
        environment=or_null(text("The project's folder in its repository."), "at the top, or without one"),
        state=or_null(text("Where the state is."), "in files of earlier builds"),
        commit=or_null(text("The commit that is checked out."), "if it is unknown"),
        changed=flag("Whether documents of the project are not as in that commit, as far as that is known."),
        lineage=LINEAGE,
        serial=SERIAL,
        result=one_of(
            "`unplaced`: a task cannot be placed, whatever else there is to do; `waiting`: all of those wait "
            "for capacity, as their `retry` says. Neither counts tasks that wait for a `schedule`, nor any "
            "with `allow_unplaced`. `unhealthy`: there is nothing to do, and not all is well.",
            RESULTS,
        ),
        digest=text(
            "What the plan does; for `apply --expect`. With the result `error` it approves nothing.",
            pattern="^sha256:[0-9a-f]{64}$",
        ),
        parts=list_of(
            "The parts of the digest: with them, `apply --expect FILE` names the differences.",
            record(
                "Alike actions.",
                step=text("The step: `create node/gpu-[0-3]`."),
                digest=text("The digest of its details; empty if it has none, or if there is no state yet."),
            ),
        ),
        moved=_moved(),
        selection=_selection(),
        refresh_only=flag("Whether the plan only records what happened by itself."),
        actions=list_of("The actions, in an order in which they could be done one by one.", _action()),
        reservations=list_of("Every rank that holds, will hold, or gives back blocks.", _reservation()),
        fallbacks=list_of("What is launched where planned offers are sold out.", _fallback()),
        unplaced=list_of("Tasks that cannot be placed.", _refusal()),
        remedies=list_of(
            "Changes for several tasks together, each as small as possible.",
            record(
                "With this change all of these tasks fit, and no other task loses its place.",
                change=text("As in `changes`."),
                tasks=list_of("Their names.", text("A task's name.")),
            ),
        ),
        queued=list_of("Tasks of this plan that wait in the queue of their cluster.", _queued()),
        health=list_of("What is not well and is not repaired by an action.", health()),
        drift=list_of("What changed outside of fleetform.", drift(("gone", "changed", "orphan", "ended"))),
        differences=list_of("Declared values that nodes were not made with.", _difference()),
        losses=list_of(
            "The content that is lost with the volumes that are deleted or replaced.",
            record(
                "One volume.",
                address=text("Its address."),
                what=text("For people: size, and since when it is unused."),
                who=or_null(text("The task that has it attached."), "if none has"),
                file=or_null(text("Where it is declared."), "if it is declared no more"),
                line=or_null(whole("From 1.", 1), "if it is declared no more"),
            ),
        ),
        cost=_cost(),
        summary=_counts(),
        diagnostics=list_of("Errors and warnings.", diagnostic()),
    )
