"""The JSON Schemas of what `plan --json`, `status --json` and `state pull` print: the contract of scripts.

Written by hand beside `data`, which makes the data; a test holds real output against them, closed, so that
neither says more than the other. As published they are open: keys may be added within one `format_version`,
and a script must not fail of one that it does not know. Enumerations are the code's own.
"""

from __future__ import annotations

from declarative.model.diagnostic import Severity
from declarative.model.state import NodeState, RankState
from declarative.placement.types import Verdict
from declarative.planner.health import LEFT_OUT, SICK, UNREADABLE
from declarative.planner.types import FORMAT_VERSION, Op, Reason, ReservationStatus
from declarative.render.schema_parts import (
    Schema,
    address_of,
    described,
    flag,
    list_of,
    map_of,
    number,
    one_of,
    or_null,
    published,
    record,
    text,
    whole,
)

RESULTS = ("none", "unhealthy", "changes", "waiting", "unplaced", "error")
CHANGES = ("gone", "changed", "orphan", "ended")
REFUSALS = ("never-fits", "no-capacity", "runs-already")


_INPUTS = {"type": "object"}
_LINEAGE = or_null(text("The identity of the state."), "before the first apply")
_SERIAL = whole("Counts up with each change of what is recorded.")
_ZONE = or_null(text("The zone."), "where the backend has none")
_PRICE = "USD an hour"
_BLOCKS = record(
    "Blocks; busy and idle add up to the total.",
    total=whole(minimum=0),
    busy=whole(),
    idle=whole(),
)


def _diagnostic() -> Schema:
    nowhere = "where the finding is not about a file"
    return record(
        "One finding.",
        severity=one_of("An error stops the command, a warning does not.", Severity),
        code=text("Stable; docs/errors.md explains each."),
        summary=text("What is wrong."),
        hint=or_null(text("What to do."), "where nothing can be said"),
        address=or_null(text("What it is about."), "where it is about no single thing"),
        file=or_null(text("Relative to the project's directory."), nowhere),
        line=or_null(whole("From 1.", 1), nowhere),
        column=or_null(whole("From 1.", 1), nowhere),
        end_line=or_null(whole("From 1.", 1), nowhere),
        end_column=or_null(whole("From 1; exclusive.", 1), nowhere),
    )


def _action() -> Schema:
    return record(
        "One step; a replacement is a delete and a create.",
        id=text("`<op>:<address>`."),
        op=one_of("What is done.", Op),
        address=address_of("What it is done to."),
        reason=one_of("Why; for people.", Reason),
        because=list_of(
            "The changed fields, or the replaced addresses that this one needs; of a retry, the failure.",
            text(),
        ),
        before=or_null(described("The inputs as recorded, secrets left out.", _INPUTS), "for a create"),
        after=or_null(described("The inputs as they will be, secrets left out.", _INPUTS), "for a delete"),
        needs=list_of("Ids of the actions that have to be done before.", text()),
        forget=flag("Whether a delete only forgets: the volume was adopted or is to be kept, and stays."),
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
        zone=_ZONE,
        instance_type=text("The backend's name for the node's shape."),
        price=or_null(number(f"The rank's share, {_PRICE}."), "if unknown"),
        status=one_of("`new`, `kept` as it was, or `released`.", ReservationStatus),
        restart=flag("Whether the rank runs, and is stopped and started again by this plan."),
    )


def _refusal() -> Schema:
    rejection = record(
        "Why one node, fleet or offer was turned down.",
        target=text("`node/…`, `fleet/…` or `offer/…`."),
        code=text("Stable; docs/errors.md explains each."),
        detail=text("For people."),
        short=map_of("What was missing, by dimension; below zero what was too much.", number()),
    )
    rank = record(
        "One rank.",
        rank=whole("From 0."),
        verdict=one_of("Whether it is the cause, would have fitted, or was not tried.", Verdict),
        rejections=list_of("Of the rank that is the cause.", rejection),
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
        changes=or_null(
            list_of("Each is enough by itself: `with …` or `without …`.", text("For people.")),
            "if not all that may help were tried",
        ),
        ranks=list_of("Every rank of the task.", rank),
        before=or_null(described("The inputs of its rank 0 as recorded.", _INPUTS), "if there is none"),
        after=or_null(described("The inputs that its rank 0 would have.", _INPUTS), "if not known"),
    )


def _health() -> Schema:
    time = {"format": "date-time"}
    return record(
        "A node that takes no work, a declared host that is no node, or a backend that could not be read.",
        address=address_of("What it is; of a host, its fleet.", ("node", "fleet", "backend")),
        host=or_null(text("The host that is left out."), "of all others"),
        state=one_of("A node's state, or which of the others it is.", (*SICK, LEFT_OUT, UNREADABLE)),
        since=or_null(text("Since when a node does not answer, in UTC.", **time), "if that is not known"),
        given_up_at=or_null(text("When it is given up unless it answers, in UTC.", **time), "for never"),
        detail=text("For people."),
        hint=or_null(text("What to do."), "if there is nothing to say"),
    )


def _queued() -> Schema:
    time = {"format": "date-time"}
    return record(
        "A task that starts when others let go of its nodes.",
        task=text("The task's name."),
        behind=list_of("Who holds them.", text("In the cluster's words.")),
        behind_until=or_null(text("When the last of them has to end, in UTC.", **time), "if nobody knows"),
        expected_start=or_null(
            text("When the cluster expects it to start, in UTC.", **time),
            "if it does not say",
        ),
    )


def plan_schema() -> Schema:
    """Of `plan --json`."""
    drift = record(
        "A difference between what is recorded and what is there.",
        address=text("What differs."),
        change=one_of(
            "`orphan`: it is there, and not recorded. `ended`, with `--refresh-only`: a rank failed.",
            CHANGES,
        ),
        detail=text("For people."),
    )
    cost = record(
        "Whole nodes, an hour.",
        hourly_before=or_null(number("Now."), "if the price of a node is unknown"),
        hourly_after=or_null(number("After apply."), "if the price of a node is unknown"),
        bound_hourly=or_null(
            number("What `hourly_after` would be at least, with the same tasks placed."),
            "if it was not worked out: HiGHS is not installed, or there is too much to compare",
        ),
        currency={"const": "USD"},
        excludes=list_of(
            "What is billed and not in these sums; backends tell no price of it.", one_of("", ("volumes",))
        ),
    )
    counts = record(
        "Addresses by what happens to them; a replacement counts once, under `replace`.",
        **{name: whole() for name in ("create", "update", "delete", "replace")},
        restarts=whole("Ranks that run, and are stopped and started again."),
    )
    return published(
        "fleetform plan",
        "What `fleetform plan --json` prints.",
        FORMAT_VERSION,
        lineage=_LINEAGE,
        serial=_SERIAL,
        result=one_of(
            "`unplaced`: a task cannot be placed, whatever else there is to do; `waiting`: all of those wait "
            "for capacity, as their `retry` says. `unhealthy`: there is nothing to do, and not all is well.",
            RESULTS,
        ),
        digest=text("Of what the plan does: `apply --expect` takes it.", pattern="^sha256:[0-9a-f]{64}$"),
        parts=list_of(
            "What the digest is made of: with them `apply --expect FILE` names what differs.",
            record(
                "Alike actions.",
                step=text("What is done: `create node/gpu-[0-3]`."),
                digest=text("Of how it is done; empty where there is no more to it."),
            ),
        ),
        moved=list_of(
            "What is renamed before anything else, as the project's `moved` says.",
            record(
                "One entry that is not done yet.",
                **{"from": text("The old address: `fleet/gpu`."), "to": text("The new one.")},
                addresses=list_of(
                    "What is recorded under it.",
                    record("One record.", **{"from": text("`node/gpu-0`."), "to": text("`node/big-0`.")}),
                ),
            ),
        ),
        selection=or_null(
            record(
                "What `--target` and `--exclude` made of the plan.",
                targets=list_of("As given.", text("A pattern.")),
                excludes=list_of("As given.", text("A pattern.")),
                needed=list_of("Done since something that was asked for needs it.", text("`node/gpu-0`.")),
                left_out=list_of("What the whole plan would do beside this.", text("`task/train`.")),
                held_up=list_of("Of these, what was asked for, and is held up.", text("An address.")),
            ),
            "for the whole plan",
        ),
        refresh_only=flag("Whether nothing is done but to record what happened by itself."),
        actions=list_of("In an order in which they could be done one by one.", _action()),
        reservations=list_of("Every rank that holds, will hold, or gives back blocks.", _reservation()),
        unplaced=list_of("Tasks that cannot be placed.", _refusal()),
        remedies=list_of(
            "Changes that several tasks share, each as small as can be.",
            record(
                "With this change all of these tasks fit, and nothing that is placed loses its place.",
                change=text("As in `changes`."),
                tasks=list_of("Their names.", text("A task's name.")),
            ),
        ),
        queued=list_of("Tasks of this plan that wait in the queue of their cluster.", _queued()),
        health=list_of("What is not well and no action mends.", _health()),
        drift=list_of("What changed by itself.", drift),
        cost=cost,
        summary=counts,
        diagnostics=list_of("Errors and warnings.", _diagnostic()),
    )


def _status_node() -> Schema:
    unknown = "if unknown"
    resources = record(
        "What the whole node has.",
        cpu=or_null(whole(), unknown),
        memory_mib=or_null(whole(), unknown),
        gpus=or_null(whole(), unknown),
    )
    return record(
        "A node.",
        name=text("Its name."),
        fleet=text("Its fleet's name."),
        state=one_of("Only `ready` takes work; `unknown` is neither empty nor ready.", NodeState),
        backend=text("The backend's name."),
        region=text("The region."),
        zone=_ZONE,
        instance_type=text("The backend's name for its shape."),
        price=or_null(number(f"Of the whole node, {_PRICE}."), unknown),
        observed_at=or_null(text("When its state was seen, in UTC.", format="date-time"), "for never"),
        silent_since=or_null(text("Since when it does not answer.", format="date-time"), "if it does"),
        given_up_at=or_null(
            text("When it is given up if it does not answer until then.", format="date-time"), "for never"
        ),
        resources=resources,
        blocks=_BLOCKS,
        holders=map_of("`rank/…` by the number of the block that it holds.", address_of("", ("rank",))),
        rehearsal=or_null(
            {
                "type": "boolean",
                "description": "Whether this machine lacks GPUs that the node is declared with.",
            },
            "if it was not looked at",
        ),
        drained=or_null(
            record(
                "That it takes no new work.",
                since=text("Since when, in UTC.", format="date-time"),
                reason=or_null(text("Why."), "if none was given"),
            ),
            "unless somebody drained it",
        ),
    )


def status_schema() -> Schema:
    """Of `status --json`."""
    fleet = record("A fleet.", name=text("Its name."), nodes=whole("How many it has."), blocks=_BLOCKS)
    volume = record(
        "A volume.",
        name=text("Its name."),
        state=text("`attached`, or `available`."),
        node=or_null(text("The node that it is attached to."), "while it is attached to none"),
    )
    rank = record(
        "A rank.",
        rank=whole("From 0."),
        node=or_null(text("The node that it runs or ran on."), "if it holds none"),
        state=one_of("Its state.", RankState),
        exit_code=or_null({"type": "integer"}, "while it runs, and if it was not seen to end"),
        attempt=whole("Counts its runs; 0 before the first."),
    )
    task = record(
        "A task.",
        name=text("Its name."),
        state=one_of("That of its ranks together.", RankState),
        ranks=list_of("Every rank.", rank),
    )
    return published(
        "fleetform status",
        "What `fleetform status --json` prints.",
        FORMAT_VERSION,
        lineage=_LINEAGE,
        serial=_SERIAL,
        fleets=list_of("Declared fleets, and those that still have nodes.", fleet),
        nodes=list_of("Recorded nodes.", _status_node()),
        volumes=list_of("Recorded volumes.", volume),
        tasks=list_of("Declared and recorded tasks.", task),
        health=list_of("What is not well.", _health()),
        spent=or_null(
            record(
                "What nodes cost in this month, by the prices that are recorded.",
                month=text("The month in UTC: `2026-03`."),
                usd=number("USD."),
            ),
            "where nobody counts it",
        ),
    )


def _intent() -> Schema:
    return record(
        "A call to a backend that was begun and whose result is not recorded.",
        id=whole("Its number."),
        op=one_of("What was begun.", Op),
        address=address_of("To what."),
        backend=or_null(text("The backend's name."), "if it concerns none"),
        generation=whole("Counts how often the address was made anew.", 1),
        token=text("What makes the call happen once."),
        inputs=described("As they were given, secrets left out.", _INPUTS),
        needs=list_of("Addresses that it needs.", address_of("")),
    )


def _record() -> Schema:
    return record(
        "One thing that was made.",
        address=address_of("What it is."),
        backend=or_null(text("The backend's name."), "if it concerns none"),
        inputs=described("How it was asked for, secrets left out.", _INPUTS),
        outputs=described("What came of it, secrets left out.", _INPUTS),
        needs=list_of("Addresses that it holds on to.", address_of("")),
        generation=whole("Counts how often the address was made anew.", 1),
    )


def state_schema() -> Schema:
    """Of `state pull`."""
    from declarative.store.tables import FORMAT_VERSION as RECORDED

    time = number("Seconds since the epoch, by the clock of the rank's host.")
    rank = record(
        "How a rank is doing.",
        state=one_of("Its state.", RankState),
        exit_code=or_null({"type": "integer"}, "while it runs, and if it was not seen to end"),
        cause=or_null(text("Why it ended as it did."), "if there is nothing to say"),
        started_at=or_null(time, "before it starts"),
        ended_at=or_null(time, "before it ends"),
        mounted=list_of("Paths at which its volumes are mounted.", text()),
        confinement=or_null(
            text("How it is held to its blocks: `hard`, `soft` or `none`, and by what."), "if not known"
        ),
    )
    node = record(
        "What was last observed of a node.",
        idle_since=or_null(number("Seconds since the epoch."), "while it is in use"),
        state=or_null(one_of("Its state.", NodeState), "if it was never observed"),
        reason=or_null(text("Why it is not ready."), "if there is nothing to say"),
        observed_at=or_null(number("Seconds since the epoch."), "if it was never observed"),
        can={
            **list_of("What its host can do: `hard` limits, `podman`, `docker`. Null if not known.", text()),
            "type": ["array", "null"],
        },
    )
    volume = record(
        "What is known of a volume that nothing has attached.",
        detached_since=number("Since when, in seconds since the epoch."),
    )
    reserved = record(
        "One block that is taken.",
        node=text("The node's name."),
        block=whole("Its number."),
        reservation=text("The reservation's name, which is the rank's."),
    )
    return published(
        "fleetform state",
        "What `fleetform state pull` prints: everything that is recorded.",
        RECORDED,
        lineage=_LINEAGE,
        serial=_SERIAL,
        records=list_of("Everything that was made.", _record()),
        reserved_blocks=list_of("Blocks that are taken.", reserved),
        ranks=map_of("Ranks by name.", rank),
        nodes=map_of("Observations of nodes by name.", node),
        volumes=map_of("Volumes that nothing has attached, by name.", volume),
        generations=map_of("How often each address was made, also those that are gone.", whole(minimum=1)),
        intents=list_of("What has to be read back before anything is planned.", _intent()),
    )
