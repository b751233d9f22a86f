"""The JSON Schemas of the output of `status --json` and `state pull`, and the parts that all schemas share.
Scripts rely on them. `plan_contract` has the schema of `plan --json`.

They are written by hand beside `data`, which makes the output. A test compares real output with closed
schemas, so that both have the same keys. The published schemas are open: a version may get new keys within
one `format_version`, and scripts must accept unknown keys. Enumerations come from the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, TypeAlias

from declarative.model.diagnostic import Severity
from declarative.model.schema import DIALECT
from declarative.model.state import KINDS
from declarative.model.status import NodeState, RankState
from declarative.planner.health import GONE, LEFT_OUT, SICK, UNREADABLE
from declarative.planner.plan import FORMAT_VERSION, Op

Schema: TypeAlias = dict[str, Any]


def text(about: str = "", **more: Any) -> Schema:
    """A string."""
    return described(about, {"type": "string", **more})


def moment(about: str) -> Schema:
    """A time in UTC."""
    return text(about, format="date-time")


def whole(about: str = "", minimum: int = 0) -> Schema:
    """A whole number of at least `minimum`."""
    return described(about, {"type": "integer", "minimum": minimum})


def number(about: str = "") -> Schema:
    """A number."""
    return described(about, {"type": "number"})


def flag(about: str) -> Schema:
    """True or false."""
    return described(about, {"type": "boolean"})


def one_of(about: str, values: type[Enum] | Iterable[str]) -> Schema:
    """One of some values, or of an enumeration."""
    return described(about, {"enum": [str(v.value) if isinstance(v, Enum) else v for v in values]})


def or_null(schema: Schema, when: str) -> Schema:
    """The schema, or null, with a sentence that says when it is null."""
    about = f"{schema.get('description', '')} Null {when}.".strip()
    rest = {k: v for k, v in schema.items() if k != "description"}
    if "enum" in rest:
        return {"description": about, "enum": [*rest["enum"], None]}
    return {"description": about, **rest, "type": [rest["type"], "null"]}


def list_of(about: str, items: Schema) -> Schema:
    """A list."""
    return described(about, {"type": "array", "items": items})


def map_of(about: str, values: Schema) -> Schema:
    """An object whose keys are data."""
    return described(about, {"type": "object", "additionalProperties": values})


def record(about: str, **fields: Schema) -> Schema:
    """An object that always has all its keys."""
    return described(about, {"type": "object", "properties": fields, "required": list(fields)})


def described(about: str, schema: Schema) -> Schema:
    """The schema with a description."""
    return {"description": about, **schema} if about else schema


def address_of(about: str, kinds: Iterable[str] = KINDS) -> Schema:
    """An address of one of these kinds."""
    return text(about, pattern=f"^({'|'.join(kinds)})/[^/]+$")


def published(title: str, about: str, version: int, **fields: Schema) -> Schema:
    """A published schema: an object with its version."""
    first = {"format_version": {"description": "The version of this contract.", "const": version}}
    return {"$schema": DIALECT, "title": title, **record(about, **first, **fields)}


INPUTS = {"type": "object"}
LINEAGE = or_null(text("The identity of the state."), "before the first apply")
SERIAL = whole("Grows with each change of the records.")
ZONE = or_null(text("The zone."), "if the backend has none")
PRICE = "USD an hour"
_BLOCKS = record(
    "Blocks; busy and idle add up to the total.",
    total=whole(minimum=0),
    busy=whole(),
    idle=whole(),
)


def diagnostic() -> Schema:
    """An error or a warning."""
    nowhere = "if the finding is not about a file"
    return record(
        "One finding.",
        severity=one_of("An error stops the command, a warning does not.", Severity),
        code=text("Stable; docs/errors.md explains each."),
        summary=text("What is wrong."),
        hint=or_null(text("What to do."), "if there is none"),
        address=or_null(text("The address that it is about."), "if it is not about a single thing"),
        file=or_null(text("Relative to the project's directory."), nowhere),
        line=or_null(whole("From 1.", 1), nowhere),
        column=or_null(whole("From 1.", 1), nowhere),
        end_line=or_null(whole("From 1.", 1), nowhere),
        end_column=or_null(whole("From 1; exclusive.", 1), nowhere),
    )


def health() -> Schema:
    """One thing that is not well."""
    return record(
        "A node that takes no work, a declared host that is not a node, a backend that could not be read, or "
        "a volume that is gone.",
        address=address_of(
            "The address; for a host, that of its fleet.", ("node", "fleet", "backend", "volume")
        ),
        host=or_null(text("The host that is left out."), "of all others"),
        state=one_of("A node's state, or the kind of the other things.", (*SICK, LEFT_OUT, UNREADABLE, GONE)),
        since=or_null(moment("Since when a node does not answer, in UTC."), "if that is not known"),
        given_up_at=or_null(moment("When it is given up unless it answers, in UTC."), "for never"),
        detail=text("For people."),
        hint=or_null(text("What to do."), "if there is nothing to say"),
    )


def drift(changes: Sequence[str]) -> Schema:
    """Of a difference; `changes` are those that may be."""
    meant = {
        "gone": "it is recorded, but gone",
        "orphan": "it exists, but is not recorded",
        "ended": "with `--refresh-only`, a rank failed",
    }
    return record(
        "A difference between the records and what exists.",
        address=text("What differs."),
        change=one_of("; ".join(f"`{c}`: {meant[c]}" for c in changes if c in meant) + ".", changes),
        detail=text("For people."),
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
        zone=ZONE,
        instance_type=text("The backend's name for its shape."),
        price=or_null(number(f"For the whole node, {PRICE}."), unknown),
        observed_at=or_null(moment("When its state was seen, in UTC."), "for never"),
        silent_since=or_null(moment("Since when it has not answered."), "if it does"),
        given_up_at=or_null(moment("When it is given up if it does not answer until then."), "for never"),
        resources=resources,
        blocks=_BLOCKS,
        holders=map_of("Block number → the `rank/…` that holds it.", address_of("", ("rank",))),
        rehearsal=or_null(
            {
                "type": "boolean",
                "description": "Whether this machine lacks the node's declared GPUs.",
            },
            "if it was not looked at",
        ),
        drained=or_null(
            record(
                "Set if it takes no new work.",
                since=moment("Since when, in UTC."),
                reason=or_null(text("Why."), "if none was given"),
            ),
            "unless somebody drained it",
        ),
    )


def _left_alone() -> Schema:
    return record(
        "One backend.",
        backend=text("Its name."),
        part=or_null(text("The part that cannot be read, such as `offers`."), "for all of it"),
        since=text("Since when, as an ISO time."),
        until=text("When it is asked again, as an ISO time."),
        why=text("Why it cannot be read."),
    )


def status_schema() -> Schema:
    """The schema of `status --json`."""
    fleet = record(
        "A fleet.",
        name=text("Its name."),
        nodes=whole("How many it has."),
        blocks=_BLOCKS,
        hourly=or_null(number("The cost of its nodes, USD an hour."), "if a price is unknown"),
    )
    limit = record(
        "One of the project's `limits`.",
        limit=text("Its name, such as `cost_per_hour`."),
        most=number("The limit: USD, or nodes."),
        now=or_null(number("What is there: in a month, what these nodes cost."), "if a price is unknown"),
    )
    volume = record(
        "A volume.",
        name=text("Its name."),
        state=text("`attached`, `available`, or `gone`."),
        node=or_null(text("The node that it is attached to."), "while it is attached to none"),
    )
    rank = record(
        "A rank.",
        rank=whole("From 0."),
        node=or_null(text("The node that it runs or ran on."), "if it holds none"),
        state=one_of("Its state.", RankState),
        exit_code=or_null({"type": "integer"}, "while it runs, and if it was not seen to end"),
        attempt=whole("Counts its runs; 0 before the first."),
        cause=or_null(text("Why it ended as it did, or what it waits for."), "if there is nothing to say"),
        started_at=or_null(moment("When this attempt started, by its host's clock."), "before that"),
        ended_at=or_null(moment("When it ended, by its host's clock."), "before that, and if nobody saw it"),
    )
    retry = record(
        "What `retry` does about it.",
        runs_again=flag("Whether it runs again."),
        attempt=whole("The number of the next attempt in its series, or of the last one.", 1),
        max_attempts=or_null(whole("How many there may be.", 1), "for any number"),
        after=or_null(
            moment("The loop and `apply --wait` start it from then on, any other `apply` at once."),
            "if it does not run again",
        ),
        until=or_null(moment("The last time at which it may start."), "for any time"),
        why=text("The failure, or why it does not run again."),
    )
    task = record(
        "A task.",
        name=text("Its name."),
        state=one_of("The state of all its ranks together.", RankState),
        ranks=list_of("Every rank.", rank),
        cause=or_null(text("Why it waits."), "if it does not, or that is not known"),
        started_at=or_null(moment("When the first rank of this attempt started."), "before that"),
        ended_at=or_null(moment("When its last rank ended."), "before that, and if nobody saw it"),
        seconds=or_null(number("How long it ran, or has run."), "if that is not known"),
        waiting_since=or_null(moment("Since when it waits for a place."), "if it does not"),
        stopped=flag("Whether a user stopped it, so that it does not start by itself."),
        retry=or_null(retry, "unless it has a `retry` and failed or was lost"),
    )
    spent = record(
        "The cost of the nodes in this month, by recorded prices.",
        month=text("The month in UTC: `2026-03`."),
        usd=number("USD."),
    )
    return published(
        "fleetform status",
        "What `fleetform status --json` prints.",
        FORMAT_VERSION,
        lineage=LINEAGE,
        serial=SERIAL,
        fleets=list_of("Declared fleets, and those that still have nodes.", fleet),
        nodes=list_of("Recorded nodes.", _status_node()),
        volumes=list_of("Recorded volumes.", volume),
        tasks=list_of("Declared and recorded tasks.", task),
        health=list_of("What is not well.", health()),
        drift=list_of("Differences from the records.", drift(("gone", "changed", "orphan"))),
        left_alone=list_of(
            "The unreadable backends that the leading loop leaves alone.",
            _left_alone(),
        ),
        limits=list_of("The project's `limits` of cost and nodes, beside what is there.", limit),
        spent=or_null(spent, "if nobody counts it"),
    )


def _intent() -> Schema:
    return record(
        "A call to a backend that was started and whose result is not recorded.",
        id=whole("Its number."),
        op=one_of("What was begun.", Op),
        address=address_of("To what."),
        backend=or_null(text("The backend's name."), "if it concerns none"),
        generation=whole("Counts how often the address was made anew.", 1),
        token=text("The token by which the call has its effect only once."),
        inputs=described("The inputs as given, secrets left out.", INPUTS),
        needs=list_of("Addresses that it needs.", address_of("")),
    )


def _record() -> Schema:
    return record(
        "One thing that was made.",
        address=address_of("What it is."),
        backend=or_null(text("The backend's name."), "if it concerns none"),
        inputs=described("The inputs as given, secrets left out.", INPUTS),
        outputs=described("What the backend returned, secrets left out.", INPUTS),
        needs=list_of("Addresses that it needs.", address_of("")),
        generation=whole("Counts how often the address was made anew.", 1),
    )


def _rank() -> Schema:
    time = number("Seconds since the epoch, by the clock of the rank's host.")
    return record(
        "How a rank is doing.",
        state=one_of("Its state.", RankState),
        exit_code=or_null({"type": "integer"}, "while it runs, and if it was not seen to end"),
        cause=or_null(text("The cause of its end."), "if there is nothing to say"),
        started_at=or_null(time, "before it starts"),
        ended_at=or_null(time, "before it ends"),
        mounted=list_of("Paths at which its volumes are mounted.", text()),
        confinement=or_null(
            text("How it is limited to its blocks: `hard`, `soft` or `none`, and by what."), "if not known"
        ),
    )


def state_schema() -> Schema:
    """The schema of `state pull`."""
    from declarative.store.schema import FORMAT_VERSION as RECORDED

    node = record(
        "What was last observed of a node.",
        idle_since=or_null(number("Seconds since the epoch."), "while it is in use"),
        state=or_null(one_of("Its state.", NodeState), "if it was never observed"),
        reason=or_null(text("Why it is not ready."), "if there is nothing to say"),
        observed_at=or_null(number("Seconds since the epoch."), "if it was never observed"),
        can={
            **list_of(
                "What its host can do: `hard` limits, `podman`, `docker`, `any-runtime`. Null if not known.",
                text(),
            ),
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
        lineage=LINEAGE,
        serial=SERIAL,
        records=list_of("Everything that was made.", _record()),
        reserved_blocks=list_of("Blocks that are taken.", reserved),
        ranks=map_of("Ranks by name.", _rank()),
        nodes=map_of("Observations of nodes by name.", node),
        volumes=map_of("Volumes that nothing has attached, by name.", volume),
        generations=map_of("How often each address was made, also those that are gone.", whole(minimum=1)),
        intents=list_of("What has to be read back before anything is planned.", _intent()),
    )
