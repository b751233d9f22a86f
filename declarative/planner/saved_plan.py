"""Saved plans: all that `apply` needs of a plan, and the facts that show whether it still holds.

Pure: text in, text out; `cli.plan_files` owns the file. A saved plan is self-contained. So it has what
`apply` needs of the project beside the actions: the declared backends (credentials by the names of their
variables), the names of the tasks, the state's place. `${{ env.X }}` stays as it is written: it is read when
a rank starts. No secret gets in, because none is in a plan.

The checksum guards against accidents and edits by hand. It is not a signature: anybody who may write the file
can make a new one, and `apply` runs the commands in it. Trust the file like the YAML, or sign it
(`cli.plan_files`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from declarative.model.codec import ALWAYS, PLAN_KIND, BadDataError, outline, reader, to_data
from declarative.model.diagnostic import Diagnostic, InvalidError, failed, is_version
from declarative.model.inputs import (
    WORD,
    AttachmentInputs,
    NodeInputs,
    OfferKey,
    RankInputs,
    ReservationInputs,
)
from declarative.model.record import struct
from declarative.model.resource import Manifest
from declarative.model.schema import Problem, decode, encode
from declarative.model.spec import Backend
from declarative.model.state import Address, State
from declarative.model.status import BOOTING, NodeState, Readiness
from declarative.placement.filters import lacks_hard, lacks_runtime
from declarative.planner.actions import is_used_up
from declarative.planner.inventory import LOSABLE, Inventory, observed_state, rank_holding
from declarative.planner.plan import Action, Fallback, Op, Plan

FILE_VERSION = 1
"""The format of the file and of its actions: raised when another version would do them otherwise."""


@struct(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """A plan with everything that `apply` needs of it."""

    plan: Plan
    facts: Facts
    backends: Mapping[str, Backend] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    """The names of the declared tasks: those that `--wait` follows."""
    files: Mapping[str, Manifest] = field(default_factory=dict)
    """Digest → the files of ranks that it starts: names and sums, without contents."""
    state: str
    """Where the state is, as it was given; it holds no password, those are refused."""
    directory: str
    """Where the project was: for messages, and to tell apart two states that are both empty."""
    made_by: str
    made_at: str
    project: str | None = None
    """The project's declared name, which is written on what it makes."""


@struct(frozen=True, slots=True, kw_only=True)
class _File:
    """The file's fields, in its order."""

    kind: str
    format_version: int
    layout: str
    checksum: str
    made_by: str
    made_at: str
    project: str | None = field(default=None, metadata=ALWAYS)
    directory: str
    state: str
    tasks: tuple[str, ...]
    backends: Mapping[str, Any]
    files: Mapping[str, Manifest]
    facts_digest: str
    facts: Facts
    plan: Plan


def layout() -> str:
    """A fingerprint of the fields in a file. A new field makes another format, also if nobody raised the
    version.
    """
    fields_by_class: dict[str, list[str]] = {}
    outline(_File, fields_by_class)
    return digest(fields_by_class).removeprefix("sha256:")[:12]


def dump(saved: SavedPlan) -> str:
    """The file's text: the same plan, the same bytes."""
    plan = saved.plan
    # Source lines may hold anything: only the findings and their places are kept.
    spans = {d: replace(d.span, text="") for d in plan.diagnostics if d.span}
    diagnostics = tuple(replace(d, span=spans[d]) if d in spans else d for d in plan.diagnostics)
    fields = {part.name: getattr(saved, part.name) for part in dataclasses.fields(SavedPlan)} | {
        "backends": {name: encode(backend) for name, backend in sorted(saved.backends.items())},
        "files": dict(sorted(saved.files.items())),
        "plan": replace(plan, diagnostics=diagnostics),
    }
    file = _File(
        kind=PLAN_KIND,
        format_version=FILE_VERSION,
        layout=layout(),
        checksum="",
        facts_digest=digest(to_data(saved.facts)),
        **fields,
    )
    data = to_data(file)
    data["checksum"] = _checksum(data)
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"


def load(text: str, name: str, version: str) -> SavedPlan:
    """The plan in a file's text; `InvalidError` with one finding if it cannot be used.

    `name` is the file's, `version` this tool's: for the messages.
    """
    data, checksum = _parse(text, name)
    _check_format(data, name, version)
    if data.get("checksum") != checksum:
        raise failed(
            "plan-edited",
            f"{name} is not as it was saved: its checksum does not match",
            f"a plan is changed in the YAML: edit that, and {AGAIN}",
        )
    try:
        file: _File = reader(_File)(data)
        backends = {key: _backend(key, value) for key, value in file.backends.items()}
        if file.project is not None and not WORD.fullmatch(file.project):
            raise BadDataError("a name").at("project")
        _sound(file.plan)
        _sound_files(file)
        if file.facts_digest != digest(to_data(file.facts)):
            raise BadDataError("the digest of the facts").at("facts_digest")
    except BadDataError as bad:
        raise _no_plan(name, str(bad)) from None
    same = {f.name: getattr(file, f.name) for f in dataclasses.fields(SavedPlan) if f.name != "backends"}
    return SavedPlan(**same, backends=backends)


def _checksum(data: Mapping[str, Any]) -> str:
    """The checksum of everything but itself, independent of the file's layout."""
    return digest({key: value for key, value in data.items() if key != "checksum"})


def _parse(text: str, name: str) -> tuple[dict[str, Any], str]:
    """The data and its checksum, which only data has that can be written again."""
    try:
        data = json.loads(text, parse_constant=_no_constant)
        checksum = _checksum(data) if isinstance(data, dict) else ""
    except RecursionError:
        raise _no_plan(name, "it is nested too deeply") from None
    except ValueError:
        raise _no_plan(name, "it is not JSON, or cut short") from None
    if not isinstance(data, dict) or data.get("kind") != PLAN_KIND:
        raise _no_plan(name, f'it does not begin with `"kind": "{PLAN_KIND}"`')
    return data, checksum


def _no_constant(text: str) -> Any:
    raise ValueError(text)


def _check_format(data: Mapping[str, Any], name: str, version: str) -> None:
    format_version, made_by = data.get("format_version"), data.get("made_by")
    same = type(format_version) is int and format_version == FILE_VERSION
    if same and data.get("layout") == layout():
        return
    by = made_by if is_version(made_by) else "of another version"
    number = (
        f"{format_version}" if type(format_version) is int and abs(format_version) < 1 << 31 else "unknown"
    )
    number += " of another build" if same else ""
    raise failed(
        "plan-format",
        f"{name} has format {number}, made by fleetform {by}; "
        f"this is fleetform {version}, which reads format {FILE_VERSION}",
        f"apply it with fleetform {by}, or {AGAIN}" if is_version(made_by) else AGAIN,
    )


def _no_plan(name: str, why: str) -> InvalidError:
    return failed("not-a-plan", f"{name} is no plan that can be used: {why}", AGAIN)


def _backend(name: str, data: Any) -> Backend:
    """A backend, decoded by the language's own rules."""
    problems: list[Problem] = []
    backend = decode(Backend, data, ("backends", name), problems)
    if backend is None or problems or backend.name != name:
        raise BadDataError("a backend").at(name).at("backends")
    return backend


# ------------------------------------------------------------------------------------------ soundness


def _sound(plan: Plan) -> None:
    """`BadDataError` unless every action can be looked at and carried out in order: nobody reads further
    than this before commands are run.
    """
    done: set[str] = set()
    for index, action in enumerate(plan.actions):
        try:
            _check(action, done)
        except BadDataError as bad:
            raise bad.at(index).at("actions").at("plan") from None
        done.add(action.id)
    for index, fallback in enumerate(plan.preview.fallbacks):
        try:
            _check_ways(fallback, done)
        except BadDataError as bad:
            raise bad.at(index).at("fallbacks").at("plan") from None


def _check_ways(fallback: Fallback, done: set[str]) -> None:
    """Each way is one for all kinds of nodes, and the nodes are those that the plan makes."""
    names = [name for kind in fallback.kinds for name in kind]
    created = {name for name in names if f"create:node/{name}" in done}
    if len(set(names)) != len(names) or set(names) - created != set(fallback.idle):
        raise BadDataError("made of nodes that are created, or idle").at("kinds")
    for number, way in enumerate(fallback.ways):
        if len(way) != len(fallback.kinds):
            raise BadDataError("one offer for each kind").at(number).at("ways")


def _sound_files(file: _File) -> None:
    """`BadDataError` unless all files that ranks get are known, and lie below the project."""
    for digest_, manifest in file.files.items():
        paths = (path for entry in manifest.entries for path in (entry.path, entry.source))
        inside = all("\0" not in path and {"", ".", ".."}.isdisjoint(path.split("/")) for path in paths)
        if manifest.digest != digest_ or not inside:
            raise BadDataError("a list of files").at(digest_).at("files")
    for action in file.plan.of(Op.CREATE, "rank"):
        rank = action.typed
        if isinstance(rank, RankInputs) and rank.files and rank.files.digest not in file.files:
            raise BadDataError("a task's files").at(str(action.address)).at("actions")


def _check(action: Action, done: set[str]) -> None:
    if action.id in done:
        raise BadDataError("given once").at("address")
    if not done.issuperset(action.needs):
        raise BadDataError("made of actions that come before").at("needs")
    if (action.after is None) is not (action.op is Op.DELETE):
        raise BadDataError("there for all but a delete").at("after")
    if action.op is Op.DELETE and action.before is None:
        raise BadDataError("there for a delete").at("before")
    kinds = [address.kind for address in action.holds]
    held_kinds = {"reservation": "node", "attachment": "reservation", "rank": "reservation"}
    base = held_kinds.get(action.address.kind) if action.op is Op.CREATE else None
    if base and kinds.count(base) != 1:
        raise BadDataError(f"with one {base}").at("holds")


# -------------------------------------------------------------------------------- the facts that it relies on

AGAIN = "plan again: `fleetform plan --out FILE`"


@struct(frozen=True, slots=True, kw_only=True)
class OfferFact:
    """The promises of an offer to a launch."""

    price: float | None = None
    room: int | None = None
    """How many there may be, counted up to what the plan needs; None if there is no limit."""
    shape: Mapping[str, Any] | None = None
    """None if the node takes the shape that is asked for."""


@struct(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that a plan relies on: what changes by itself, or by a command that was cut short before it
    could raise the serial. The serial stands for all records.

    Only facts that were used count: if a node that gets no work fails, or a running rank ends, the plan is
    not stale.
    """

    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    """Recorded nodes that are to take work."""
    gone: tuple[str, ...] = ()
    """Recorded nodes and volumes that are missing."""
    found: Mapping[str, str] = field(default_factory=dict)
    """A digest of what commands that were cut short had made."""
    able: Mapping[str, bool] = field(default_factory=dict)
    """Whether nodes are known to support what their ranks ask of a host: an image, hard limits."""
    ranks: Mapping[str, bool] = field(default_factory=dict)
    """Rank → whether it gives its blocks back by itself, for ranks on which other actions depend."""
    offers: Mapping[str, OfferFact | None] = field(default_factory=dict)
    """The offers that nodes are launched from; None for a missing one."""


def canonical(data: Any) -> str:
    """Data as one text: the same data, the same text. ValueError for what JSON does not have."""
    return json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def digest(data: Any) -> str:
    """A fingerprint of data; ValueError for what UTF-8 and JSON do not have."""
    return "sha256:" + hashlib.sha256(canonical(data).encode()).hexdigest()


def facts_of(plan: Plan, state: State, inventory: Inventory, before: Facts | None = None) -> Facts:
    """The facts that `plan`, made of this state and inventory, relies on; those that `before` names, as they
    are now.
    """
    known = observed_state(state, inventory)
    ranks: Iterable[str] = _ranks_used(plan, state, known) if before is None else before.ranks
    working = _working(plan, known) - {a.address.name for a in plan.of(Op.CREATE, "node")}
    unknown = Readiness(state=NodeState.UNKNOWN)
    return Facts(
        nodes={name: inventory.readiness.get(name, unknown).state for name in sorted(working)},
        gone=tuple(sorted(str(a) for a in inventory.gone if a in state.records and a.kind in LOSABLE)),
        found={
            str(address): digest([record.generation, to_data(record.inputs)])
            for address, record in sorted(inventory.recovered.items())
        },
        able=_able(plan, known, inventory),
        ranks={name: known.get("reservation", name) is None for name in sorted(ranks)},
        offers=_offers(plan, state, inventory),
    )


def _working(plan: Plan, known: State) -> set[str]:
    """Nodes that get a rank, or start one in a place that it holds already."""
    out: set[str] = set()
    for action in plan.actions:
        if action.op is not Op.CREATE:
            continue
        if isinstance(action.typed, ReservationInputs | AttachmentInputs):
            out.add(action.typed.node)
        elif action.address.kind == "rank":
            place = known.get("reservation", action.address.name)
            if place and f"create:{place.address}" not in action.needs:
                out.add(place.reservation.node)
    return out


def _able(plan: Plan, known: State, inventory: Inventory) -> dict[str, bool]:
    # Node → what its host supports: as it was looked at for an offer, or as a node.
    supported = {o.host.name: o.can for offers in inventory.offers.values() for o in offers if o.host}
    supported |= {name: readiness.can for name, readiness in inventory.readiness.items()}
    places = {r.address.name: r.reservation.node for r in known.of("reservation")}
    for action in plan.of(Op.CREATE, "reservation"):
        if isinstance(action.typed, ReservationInputs):
            places[action.address.name] = action.typed.node
    out: dict[str, bool] = {}
    for action in plan.of(Op.CREATE, "rank"):
        rank, node = action.typed, places.get(action.address.name)
        if node is not None and isinstance(rank, RankInputs) and (rank.isolation or rank.image):
            has = supported.get(node)
            fits = not lacks_hard(has, rank.isolation) and not lacks_runtime(has, rank.image)
            out[node] = out.get(node, True) and fits
    return dict(sorted(out.items()))


def _ranks_used(plan: Plan, state: State, known: State) -> set[str]:
    """The ranks of which the plan relies on whether they hold their places."""
    # Those that give back by themselves what the plan gives to others, changes or deletes.
    touched = {address for a in plan.actions for address in (a.address, *a.holds)}
    holders = (*state.of("reservation"), *state.of("attachment"))
    freed = {name for r in holders if r.address not in known.records and (name := rank_holding(r))}
    used = {name for r in holders if (name := rank_holding(r)) in freed and name and r.needs & touched}
    # Running ranks of tasks whose other ranks the plan starts: a gang runs with all ranks or not at all.
    starts = plan.of(Op.CREATE, "rank")
    tasks = {a.task for a in starts}
    changed = {a.address for a in (*starts, *plan.of(Op.DELETE, "rank"))}
    going_on = (r for r in known.of("rank") if r.rank.task in tasks and r.address not in changed)
    used |= {r.address.name for r in going_on if known.get("reservation", r.address.name)}
    # Those that run anew in the place that they hold. The place is given back when the old rank ends.
    created = [a for a in plan.actions if a.op is Op.CREATE]
    kept_addresses = {h for a in created for h in a.holds} - {a.address for a in created}
    names = {rank_holding(known.records[address]) for address in kept_addresses & known.records.keys()}
    return used | {name for name in names if name and Address("rank", name) in known.records}


def _key(node: NodeInputs) -> OfferKey:
    """The offer that a node took."""
    return OfferKey.of(node)._replace(zone=node.effective_zone)


def _offers(plan: Plan, state: State, inventory: Inventory) -> dict[str, OfferFact | None]:
    launches = Counter(_key(a.typed) for a in plan.of(Op.CREATE, "node") if isinstance(a.typed, NodeInputs))
    if not launches:
        return {}
    counts = launches + Counter(key for r in state.of("node") if (key := _key(r.node)) in launches)
    there = {
        OfferKey.of(o): o
        for name in sorted({key.backend for key in counts})
        for o in reversed(inventory.offers.get(name, ()))  # the first of two counts
    }
    out: dict[str, OfferFact | None] = {}
    for key in sorted(counts, key=_offer_name):
        offer, fact = there.get(key), None
        if offer is not None:
            shape = {k: v for k, v in dataclasses.asdict(offer.shape).items() if v is not None}
            room = None if offer.limit is None else min(offer.limit, counts[key])
            fact = OfferFact(price=offer.price, room=room, shape=None if offer.shaped else shape)
        out[_offer_name(key)] = fact
    return out


def _offer_name(key: OfferKey) -> str:
    spot = " as spot" if key.spot else ""
    return f"{key.instance_type} of backend {key.backend} in {key.zone or key.region}{spot}"


# --------------------------------------------------------------------------------------- what differs


def record_difference(plan: Plan, state: State) -> Diagnostic | None:
    """Whether the plan was made from another state, or from an earlier serial of this one."""
    if plan.basis.lineage is not None and plan.basis.lineage != state.lineage:
        mine = f"lineage {state.lineage}" if state.lineage else "nothing in it yet"
        return Diagnostic(
            code="plan-other-state",
            summary="the plan was made for another state: "
            f"that one has lineage {plan.basis.lineage}, this one {mine}",
            hint="run it where its state is: `fleetform -C DIR apply FILE`, or `--state URL`",
        )
    if plan.basis.serial != state.serial:
        was = f"its serial was {plan.basis.serial} and is {state.serial} now"
        return Diagnostic(
            code="plan-outdated", summary=f"the state has changed since the plan was made: {was}", hint=AGAIN
        )
    return None


def changed_facts(
    before: Facts, after: Facts, reasons: Mapping[str, Readiness] | None = None
) -> Iterator[Diagnostic]:
    """The facts that have changed since the plan; `reasons` may say why a node is not ready."""
    for address in sorted({*before.gone} ^ {*after.gone}):
        is_gone = address in after.gone
        what = (
            "is gone since the plan was made"
            if is_gone
            else "was gone when the plan was made, and is there again"
        )
        yield Diagnostic(code="plan-gone", summary=f"{address} {what}", hint=AGAIN, address=address)
    for address in sorted({*before.found} | {*after.found}):
        was, now = before.found.get(address), after.found.get(address)
        if was != now:
            what = "is found, and the plan does not know of it" if now else "is not there any more"
            summary = f"{address}, of a command that was cut short, {what}"
            hint = f"`fleetform apply` records it; or {AGAIN}"
            yield Diagnostic(code="plan-recovered", summary=summary, hint=hint, address=address)
    yield from _node_changes(before, after, reasons or {})
    for name, freed in before.ranks.items():
        if after.ranks.get(name) is freed:
            continue
        summary = (
            f"rank/{name} has ended: its place, in which or beside which the plan starts ranks, is given back"
        )
        if freed:
            summary = (
                f"rank/{name} had ended when the plan was made, and its blocks cannot be seen to be free now"
            )
        yield Diagnostic(code="plan-rank-state", summary=summary, hint=AGAIN, address=f"rank/{name}")
    for name, promised in before.offers.items():
        if difference := _offer_difference(promised, after.offers.get(name)):
            summary = f"what nodes would be launched from has changed: {name} {difference}"
            yield Diagnostic(code="plan-offer-changed", summary=summary, hint=AGAIN)


def stopped_by_now(plan: Plan, state: State, now: float, hint: str = AGAIN) -> Iterator[Diagnostic]:
    """Ranks that the plan lets run on, though their new `max_duration` is used up by now. `state` has what is
    known of ranks now.
    """
    for action in plan.of(Op.UPDATE, "rank"):
        if action.ends or "max_duration" not in action.because or not isinstance(action.typed, RankInputs):
            continue
        if is_used_up(state.ranks.get(action.address.name), action.typed, now):
            what = f"{action.address} was to run on when the plan was made, and would be stopped now"
            summary = f"{what}: it has run for longer than its new `max_duration`"
            yield Diagnostic(code="plan-rank-state", summary=summary, hint=hint, address=str(action.address))


def _node_changes(before: Facts, after: Facts, reasons: Mapping[str, Readiness]) -> Iterator[Diagnostic]:
    lost = {Address.parse(a).name for a in after.gone if a.startswith("node/")}
    for name, was in before.nodes.items():
        now = after.nodes.get(name, NodeState.UNKNOWN)
        came_up = was in BOOTING and now in (NodeState.READY, *BOOTING)
        if now is not was and not came_up and name not in lost:
            why = reasons[name].reason if name in reasons else None
            summary = f"node/{name} was {was.value} when the plan was made, and is {now.value} now"
            summary += f": {why}" if why else ""
            hint = f"the plan gives it work: wait until it is ready again, or {AGAIN}"
            yield Diagnostic(code="plan-node-state", summary=summary, hint=hint, address=f"node/{name}")
    for name, able in before.able.items():
        if able and not after.able.get(name, True):
            summary = f"node/{name} cannot do any more what a task that the plan gives it asks for"
            hint = f"the task has `isolation: hard` or an `image`: repair the node, or {AGAIN}"
            yield Diagnostic(code="plan-node-state", summary=summary, hint=hint, address=f"node/{name}")


def _offer_difference(was: OfferFact | None, now: OfferFact | None) -> str | None:
    if was == now:
        return None
    if now is None:
        return "is not offered any more"
    if was is None:
        return "is offered now, and was not"
    if was.price != now.price:
        return f"cost {_money(was.price)}, and costs {_money(now.price)}"
    if was.room != now.room:
        most = "any number" if now.room is None else f"at most {now.room}"
        return f"can be had in another number: {most}"
    return "has another shape"


def _money(price: float | None) -> str:
    return "an unknown price" if price is None else f"{price:.15g} USD/h"
