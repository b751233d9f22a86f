"""The JSON Schemas of what `plan --json`, `status --json` and `state pull` print: the contract of scripts.

Written by hand beside `data`, which makes the data; a test holds real output against them, closed, so that
neither says more than the other. As published they are open: keys may be added within one `format_version`,
and a script must not fail of one that it does not know. Enumerations are the code's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, TypeAlias

from declarative.model.diagnostic import Severity
from declarative.model.schema import DIALECT
from declarative.model.state import KINDS, NodeState, RankState
from declarative.placement.types import Verdict
from declarative.planner.health import LEFT_OUT, SICK, UNREADABLE
from declarative.planner.types import FORMAT_VERSION, Op, Reason, ReservationStatus

Schema: TypeAlias = dict[str, Any]

RESULTS = ("none", "unhealthy", "changes", "waiting", "unplaced", "error")
CHANGES = ("gone", "changed", "orphan", "ended")
REFUSALS = ("never-fits", "no-capacity", "runs-already")


def _text(about: str = "", **more: Any) -> Schema:
    return _said(about, {"type": "string", **more})


def _whole(about: str = "", minimum: int = 0) -> Schema:
    return _said(about, {"type": "integer", "minimum": minimum})


def _number(about: str = "") -> Schema:
    return _said(about, {"type": "number"})


def _flag(about: str) -> Schema:
    return _said(about, {"type": "boolean"})


def _one_of(about: str, values: type[Enum] | Iterable[str]) -> Schema:
    return _said(about, {"enum": [str(v.value) if isinstance(v, Enum) else v for v in values]})


def _or_null(schema: Schema, when: str) -> Schema:
    """Null, and when it is."""
    about = f"{schema.get('description', '')} Null {when}.".strip()
    rest = {k: v for k, v in schema.items() if k != "description"}
    if "enum" in rest:
        return {"description": about, "enum": [*rest["enum"], None]}
    return {"description": about, **rest, "type": [rest["type"], "null"]}


def _list(about: str, items: Schema) -> Schema:
    return _said(about, {"type": "array", "items": items})


def _map(about: str, values: Schema) -> Schema:
    return _said(about, {"type": "object", "additionalProperties": values})


def _object(about: str, **fields: Schema) -> Schema:
    """All of its keys are always there."""
    return _said(about, {"type": "object", "properties": fields, "required": list(fields)})


def _said(about: str, schema: Schema) -> Schema:
    return {"description": about, **schema} if about else schema


def _address(about: str, kinds: Iterable[str] = KINDS) -> Schema:
    return _text(about, pattern=f"^({'|'.join(kinds)})/[^/]+$")


def _published(title: str, about: str, version: int, **fields: Schema) -> Schema:
    first = {"format_version": {"description": "The version of this contract.", "const": version}}
    return {"$schema": DIALECT, "title": title, **_object(about, **first, **fields)}


_INPUTS = {"type": "object"}
_LINEAGE = _or_null(_text("The identity of the state."), "before the first apply")
_SERIAL = _whole("Counts up with each change of what is recorded.")
_ZONE = _or_null(_text("The zone."), "where the backend has none")
_PRICE = "USD an hour"
_BLOCKS = _object(
    "Blocks; busy and idle add up to the total.",
    total=_whole(minimum=0),
    busy=_whole(),
    idle=_whole(),
)


def _diagnostic() -> Schema:
    nowhere = "where the finding is not about a file"
    return _object(
        "One finding.",
        severity=_one_of("An error stops the command, a warning does not.", Severity),
        code=_text("Stable; docs/errors.md explains each."),
        summary=_text("What is wrong."),
        hint=_or_null(_text("What to do."), "where nothing can be said"),
        address=_or_null(_text("What it is about."), "where it is about no single thing"),
        file=_or_null(_text("Relative to the project's directory."), nowhere),
        line=_or_null(_whole("From 1.", 1), nowhere),
        column=_or_null(_whole("From 1.", 1), nowhere),
        end_line=_or_null(_whole("From 1.", 1), nowhere),
        end_column=_or_null(_whole("From 1; exclusive.", 1), nowhere),
    )


def _action() -> Schema:
    return _object(
        "One step; a replacement is a delete and a create.",
        id=_text("`<op>:<address>`."),
        op=_one_of("What is done.", Op),
        address=_address("What it is done to."),
        reason=_one_of("Why; for people.", Reason),
        because=_list(
            "The changed fields, or the replaced addresses that this one needs; of a retry, the failure.",
            _text(),
        ),
        before=_or_null(_said("The inputs as recorded, secrets left out.", _INPUTS), "for a create"),
        after=_or_null(_said("The inputs as they will be, secrets left out.", _INPUTS), "for a delete"),
        needs=_list("Ids of the actions that have to be done before.", _text()),
        forget=_flag("Whether a delete only forgets: the volume was adopted or is to be kept, and stays."),
    )


def _reservation() -> Schema:
    return _object(
        "The blocks of one rank.",
        task=_text("The task's name."),
        rank=_whole("From 0."),
        node=_text("The node's name."),
        fleet=_text("The fleet's name."),
        new_node=_flag("Whether this plan launches the node."),
        blocks=_list("The numbers of its blocks.", _whole()),
        total_blocks=_whole("How many blocks the node has.", 1),
        volumes=_map("The volume's name by the path where it is mounted.", _text()),
        backend=_text("The backend's name."),
        region=_text("The region."),
        zone=_ZONE,
        instance_type=_text("The backend's name for the node's shape."),
        price=_or_null(_number(f"The rank's share, {_PRICE}."), "if unknown"),
        status=_one_of("`new`, `kept` as it was, or `released`.", ReservationStatus),
        restart=_flag("Whether the rank runs, and is stopped and started again by this plan."),
    )


def _refusal() -> Schema:
    rejection = _object(
        "Why one node, fleet or offer was turned down.",
        target=_text("`node/…`, `fleet/…` or `offer/…`."),
        code=_text("Stable; docs/errors.md explains each."),
        detail=_text("For people."),
        short=_map("What was missing, by dimension; below zero what was too much.", _number()),
    )
    rank = _object(
        "What is said of one rank.",
        rank=_whole("From 0."),
        verdict=_one_of("Whether it is the cause, would have fitted, or was not tried.", Verdict),
        rejections=_list("Of the rank that is the cause.", rejection),
    )
    return _object(
        "A task that cannot be placed.",
        task=_text("The task's name."),
        code=_one_of(
            "Whether waiting may help: `no-capacity`; or not: `never-fits`, and `runs-already`.", REFUSALS
        ),
        summary=_text("For people."),
        proved=_flag("Whether it was proved that it does not fit beside all tasks of at least its priority."),
        hint=_or_null(_text("What to do about it."), "if there is nothing"),
        changes=_or_null(
            _list("Each is enough by itself: `with …` or `without …`.", _text("For people.")),
            "if not all that may help were tried",
        ),
        ranks=_list("Every rank of the task.", rank),
        before=_or_null(_said("The inputs of its rank 0 as recorded.", _INPUTS), "if there is none"),
        after=_or_null(_said("The inputs that its rank 0 would have.", _INPUTS), "if not known"),
    )


def _health() -> Schema:
    time = {"format": "date-time"}
    return _object(
        "A node that takes no work, a declared host that is no node, or a backend that could not be read.",
        address=_address("What it is; of a host, its fleet.", ("node", "fleet", "backend")),
        host=_or_null(_text("The host that is left out."), "of all others"),
        state=_one_of("A node's state, or which of the others it is.", (*SICK, LEFT_OUT, UNREADABLE)),
        since=_or_null(_text("Since when a node does not answer, in UTC.", **time), "if that is not known"),
        given_up_at=_or_null(_text("When it is given up unless it answers, in UTC.", **time), "for never"),
        detail=_text("For people."),
        hint=_or_null(_text("What to do."), "if there is nothing to say"),
    )


def plan_schema() -> Schema:
    """Of `plan --json`."""
    drift = _object(
        "A difference between what is recorded and what is there.",
        address=_text("What differs."),
        change=_one_of(
            "`orphan`: it is there, and not recorded. `ended`, with `--refresh-only`: a rank failed.",
            CHANGES,
        ),
        detail=_text("For people."),
    )
    cost = _object(
        "Whole nodes, an hour.",
        hourly_before=_or_null(_number("Now."), "if the price of a node is unknown"),
        hourly_after=_or_null(_number("After apply."), "if the price of a node is unknown"),
        bound_hourly=_or_null(
            _number("What `hourly_after` would be at least, with the same tasks placed."),
            "if nobody worked that out: HiGHS is not installed, or there is too much to compare",
        ),
        currency={"const": "USD"},
        excludes=_list(
            "What is billed and not in these sums; backends tell no price of it.", _one_of("", ("volumes",))
        ),
    )
    counts = _object(
        "Addresses by what happens to them; a replacement counts once, under `replace`.",
        **{name: _whole() for name in ("create", "update", "delete", "replace")},
        restarts=_whole("Ranks that run, and are stopped and started again."),
    )
    return _published(
        "fleetform plan",
        "What `fleetform plan --json` prints.",
        FORMAT_VERSION,
        lineage=_LINEAGE,
        serial=_SERIAL,
        result=_one_of(
            "`unplaced`: a task cannot be placed, whatever else there is to do; `waiting`: all of those wait "
            "for capacity, as their `retry` says. `unhealthy`: there is nothing to do, and not all is well.",
            RESULTS,
        ),
        digest=_text("Of what the plan does: `apply --expect` takes it.", pattern="^sha256:[0-9a-f]{64}$"),
        parts=_list(
            "What the digest is made of: with them `apply --expect FILE` names what differs.",
            _object(
                "Alike actions.",
                step=_text("What is done: `create node/gpu-[0-3]`."),
                digest=_text("Of how it is done; empty where there is no more to it."),
            ),
        ),
        moved=_list(
            "What is renamed before anything else, as the project's `moved` says.",
            _object(
                "One entry that is not done yet.",
                **{"from": _text("The old address: `fleet/gpu`."), "to": _text("The new one.")},
                addresses=_list(
                    "What is recorded under it.",
                    _object("One record.", **{"from": _text("`node/gpu-0`."), "to": _text("`node/big-0`.")}),
                ),
            ),
        ),
        selection=_or_null(
            _object(
                "What `--target` and `--exclude` made of the plan.",
                targets=_list("As given.", _text("A pattern.")),
                excludes=_list("As given.", _text("A pattern.")),
                needed=_list("Done since something that was asked for needs it.", _text("`node/gpu-0`.")),
                left_out=_list("What the whole plan would do beside this.", _text("`task/train`.")),
                held_up=_list("Of these, what was asked for, and is held up.", _text("An address.")),
            ),
            "for the whole plan",
        ),
        refresh_only=_flag("Whether nothing is done but to record what happened by itself."),
        actions=_list("In an order in which they could be done one by one.", _action()),
        reservations=_list("Every rank that holds, will hold, or gives back blocks.", _reservation()),
        unplaced=_list("Tasks that cannot be placed.", _refusal()),
        remedies=_list(
            "Changes that several tasks share, each as small as can be.",
            _object(
                "With this change all of these tasks fit, and nothing that is placed loses its place.",
                change=_text("As in `changes`."),
                tasks=_list("Their names.", _text("A task's name.")),
            ),
        ),
        health=_list("What is not well and no action mends.", _health()),
        drift=_list("What changed by itself.", drift),
        cost=cost,
        summary=counts,
        diagnostics=_list("Errors and warnings.", _diagnostic()),
    )


def _status_node() -> Schema:
    unknown = "if unknown"
    resources = _object(
        "What the whole node has.",
        cpu=_or_null(_whole(), unknown),
        memory_mib=_or_null(_whole(), unknown),
        gpus=_or_null(_whole(), unknown),
    )
    return _object(
        "A node.",
        name=_text("Its name."),
        fleet=_text("Its fleet's name."),
        state=_one_of("Only `ready` takes work; `unknown` is neither empty nor ready.", NodeState),
        backend=_text("The backend's name."),
        region=_text("The region."),
        zone=_ZONE,
        instance_type=_text("The backend's name for its shape."),
        price=_or_null(_number(f"Of the whole node, {_PRICE}."), unknown),
        observed_at=_or_null(_text("When its state was seen, in UTC.", format="date-time"), "for never"),
        silent_since=_or_null(_text("Since when it does not answer.", format="date-time"), "if it does"),
        given_up_at=_or_null(
            _text("When it is given up if it does not answer until then.", format="date-time"), "for never"
        ),
        resources=resources,
        blocks=_BLOCKS,
        holders=_map("`rank/…` by the number of the block that it holds.", _address("", ("rank",))),
        rehearsal=_or_null(
            {
                "type": "boolean",
                "description": "Whether this machine lacks GPUs that the node is declared with.",
            },
            "if nobody looked",
        ),
        drained=_or_null(
            _object(
                "That it takes no new work.",
                since=_text("Since when, in UTC.", format="date-time"),
                reason=_or_null(_text("Why."), "if none was given"),
            ),
            "unless somebody drained it",
        ),
    )


def status_schema() -> Schema:
    """Of `status --json`."""
    fleet = _object("A fleet.", name=_text("Its name."), nodes=_whole("How many it has."), blocks=_BLOCKS)
    volume = _object(
        "A volume.",
        name=_text("Its name."),
        state=_text("`attached`, or `available`."),
        node=_or_null(_text("The node that it is attached to."), "while it is attached to none"),
    )
    rank = _object(
        "A rank.",
        rank=_whole("From 0."),
        node=_or_null(_text("The node that it runs or ran on."), "if it holds none"),
        state=_one_of("Its state.", RankState),
        exit_code=_or_null({"type": "integer"}, "while it runs, and if it was not seen to end"),
        attempt=_whole("Counts its runs; 0 before the first."),
    )
    task = _object(
        "A task.",
        name=_text("Its name."),
        state=_one_of("That of its ranks together.", RankState),
        ranks=_list("Every rank.", rank),
    )
    return _published(
        "fleetform status",
        "What `fleetform status --json` prints.",
        FORMAT_VERSION,
        lineage=_LINEAGE,
        serial=_SERIAL,
        fleets=_list("Declared fleets, and those that still have nodes.", fleet),
        nodes=_list("Recorded nodes.", _status_node()),
        volumes=_list("Recorded volumes.", volume),
        tasks=_list("Declared and recorded tasks.", task),
        health=_list("What is not well.", _health()),
    )


def _intent() -> Schema:
    return _object(
        "A call to a backend that was begun and whose result is not recorded.",
        id=_whole("Its number."),
        op=_one_of("What was begun.", Op),
        address=_address("To what."),
        backend=_or_null(_text("The backend's name."), "if it concerns none"),
        generation=_whole("Counts how often the address was made anew.", 1),
        token=_text("What makes the call happen once."),
        inputs=_said("As they were given, secrets left out.", _INPUTS),
        needs=_list("Addresses that it needs.", _address("")),
    )


def _record() -> Schema:
    return _object(
        "One thing that was made.",
        address=_address("What it is."),
        backend=_or_null(_text("The backend's name."), "if it concerns none"),
        inputs=_said("How it was asked for, secrets left out.", _INPUTS),
        outputs=_said("What came of it, secrets left out.", _INPUTS),
        needs=_list("Addresses that it holds on to.", _address("")),
        generation=_whole("Counts how often the address was made anew.", 1),
    )


def state_schema() -> Schema:
    """Of `state pull`."""
    from declarative.store.tables import FORMAT_VERSION as RECORDED

    time = _number("Seconds since the epoch, by the clock of the rank's host.")
    rank = _object(
        "How a rank is doing.",
        state=_one_of("Its state.", RankState),
        exit_code=_or_null({"type": "integer"}, "while it runs, and if it was not seen to end"),
        cause=_or_null(_text("Why it ended as it did."), "if there is nothing to say"),
        started_at=_or_null(time, "before it starts"),
        ended_at=_or_null(time, "before it ends"),
        mounted=_list("Paths at which its volumes are mounted.", _text()),
        confinement=_or_null(
            _text("How it is held to its blocks: `hard`, `soft` or `none`, and by what."), "if not known"
        ),
    )
    node = _object(
        "What was last observed of a node.",
        idle_since=_or_null(_number("Seconds since the epoch."), "while it is in use"),
        state=_or_null(_one_of("Its state.", NodeState), "if it was never observed"),
        reason=_or_null(_text("Why it is not ready."), "if there is nothing to say"),
        observed_at=_or_null(_number("Seconds since the epoch."), "if it was never observed"),
        can={
            **_list("What its host can do: `hard` limits, `podman`, `docker`. Null if not known.", _text()),
            "type": ["array", "null"],
        },
    )
    volume = _object(
        "What is known of a volume that nothing has attached.",
        detached_since=_number("Since when, in seconds since the epoch."),
    )
    reserved = _object(
        "One block that is taken.",
        node=_text("The node's name."),
        block=_whole("Its number."),
        reservation=_text("The reservation's name, which is the rank's."),
    )
    return _published(
        "fleetform state",
        "What `fleetform state pull` prints: everything that is recorded.",
        RECORDED,
        lineage=_LINEAGE,
        serial=_SERIAL,
        records=_list("Everything that was made.", _record()),
        reserved_blocks=_list("Blocks that are taken.", reserved),
        ranks=_map("Ranks by name.", rank),
        nodes=_map("Observations of nodes by name.", node),
        volumes=_map("Volumes that nothing has attached, by name.", volume),
        generations=_map("How often each address was made, also those that are gone.", _whole(minimum=1)),
        intents=_list("What has to be read back before anything is planned.", _intent()),
    )
