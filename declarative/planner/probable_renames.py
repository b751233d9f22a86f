"""Names in the declaration that were probably changed: what is deleted under one name and made under another
would have been kept by a `moved` entry.

It also warns of entries that name nothing: a typo in `moved`, `removed` or `limits.protected`.

A plan warns of a pair if nothing else looks like either of its sides. Where the deletion is refused or waits,
a wider guess counts: what may take the place of the old thing is not made without a person.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.inputs import NodeInputs, VolumeInputs
from declarative.model.resource import Desired, offer_of
from declarative.model.state import State
from declarative.model.text import Near, and_more
from declarative.planner.fleets import fixed_changes
from declarative.planner.offers import allowed_backends, broken_limit
from declarative.planner.plan import Action, Op, Plan, group_of, names_of, warning
from declarative.planner.tasks import changed_fields
from declarative.planner.volumes import keeps_content

MOST_NAMED = 3
"""Recorded things that are named of those that are alike."""
MAX_MATCHED = 2_000_000
"""Names that are compared with patterns of `limits.protected`: about a second. After that, no pattern is."""
_GLOB = re.compile(r"[*?\[]")
"""Where the wildcards of a pattern begin."""


def looks_renamed(desired: Desired, state: State) -> Iterator[Diagnostic]:
    """A warning with the `moved` entry for each pair of a removed and a new thing that are alike."""
    for kind, pairs in (
        ("volume", _volumes(desired, state)),
        ("task", _tasks(desired, state)),
        ("fleet", _fleets(desired, state)),
    ):
        olds, news = Counter(old for old, _ in pairs), Counter(new for _, new in pairs)
        for old, new in pairs:
            if olds[old] == news[new] == 1:
                source, target = f"{kind}/{old}", f"{kind}/{new}"
                yield warning(
                    desired,
                    f"{target}-0" if f"{target}-0" in desired.places else target,
                    "looks-renamed",
                    f"{source} is declared no more, and {target} is new and has the same fields",
                    desired.wrongly_moved(source)
                    or f"if it was renamed, write `moved: [{{from: {source}, to: {target}}}]` in the "
                    "`project` document: then it is kept",
                )


def naming_nothing(desired: Desired, state: State) -> Iterator[Diagnostic]:
    """Warnings about entries of the `project` document that name nothing declared or recorded, and were
    probably mistyped. `state` is what is recorded, under the names that `moved` gives.

    People keep entries that were carried out. These get no warning, and neither does an entry if nothing
    shows that it was meant for something that is there.
    """
    project = desired.project
    if not (project.moved or project.removed or project.limits.protected):
        return
    declared = {f"fleet/{name}" for name in desired.fleets} | {f"task/{name}" for name in desired.tasks}
    for name, want in desired.volumes.items():
        declared |= {f"volume/{name}", want.declared_by}
    recorded = {name for record in state.records.values() for name in names_of(record)}
    removed = {f"volume/{entry.volume}" for entry in project.removed}
    kinds: dict[str, list[str]] = defaultdict(list)
    """What is recorded and declared no more, by its kind: entries may mean it."""
    for address in sorted(recorded - declared - removed):
        if address.rpartition("-")[0] not in removed:
            kinds[address.partition("/")[0]].append(address)
    known, near = recorded | declared, Near()
    yield from _moved_nothing(desired, recorded, declared, kinds, near)
    for index, entry in enumerate(project.removed):
        address = f"volume/{entry.volume}"
        if address not in known and (hint := near.other_than_number(address, kinds["volume"])):
            yield _names_nothing(desired, f"removed.{index}", address, hint)
    yield from _protected_nothing(desired, known, near)


def _moved_nothing(
    desired: Desired, recorded: set[str], declared: set[str], kinds: Mapping[str, Sequence[str]], near: Near
) -> Iterator[Diagnostic]:
    """The warnings about `moved`. `kinds` has what is recorded and declared no more."""
    sources: dict[str, list[str]] = defaultdict(list)
    for move in desired.project.moved:
        sources[move.target].append(move.source)
    carried_out: set[str] = set()
    """What is recorded, and the names that it had before, through all renames."""
    waiting = [*recorded]
    while waiting:
        address = waiting.pop()
        if address not in carried_out:
            carried_out.add(address)
            waiting += sources.get(address, ())
    named = {kind: and_more(addresses, MOST_NAMED) for kind, addresses in kinds.items()}
    for index, move in enumerate(desired.project.moved):
        if move.source in declared or move.source in carried_out:
            continue
        kind = move.source.partition("/")[0]
        # Fleets and tasks come and go: without nodes or ranks, nothing is recorded of them.
        meant = kinds.get(kind) or (recorded if kind == "volume" else ())
        hint = near.other_than_number(move.source, meant)
        if hint or kind in named:
            hint = hint or f"recorded, and declared no more: {named[kind]}"
            yield _names_nothing(desired, f"moved.{index}", move.source, hint)


def _protected_nothing(desired: Desired, known: set[str], near: Near) -> Iterator[Diagnostic]:
    """The warnings about patterns of `limits.protected`. Nodes that are yet to be launched count."""
    names = {name for name in known if not name.startswith("task/")}
    nodes = {f"node/{name}" for name in desired.fleets}
    matched = 0
    for index, pattern in enumerate(desired.project.limits.protected):
        begin = _GLOB.split(pattern, maxsplit=1)[0]
        base, _, number = pattern.rpartition("-")
        if pattern in names or (number.isdecimal() and base in nodes):
            continue
        if begin != pattern:
            matched += len(names)
            if matched > MAX_MATCHED:
                return
            may_be_node = any(f"{node}-".startswith(begin) or begin.startswith(f"{node}-") for node in nodes)
            if may_be_node or any(fnmatchcase(name, pattern) for name in names):
                continue
        hint = near.other_than_number(pattern, names)
        yield _names_nothing(desired, f"limits.protected.{index}", pattern, hint)


def _names_nothing(desired: Desired, place: str, address: str, hint: str | None) -> Diagnostic:
    """The warning about the entry at a place such as `moved.0`."""
    field = place.rpartition(".")[0]
    return Diagnostic(
        code="unknown-address",
        summary=f"`{field}` names `{address}`, and nothing of that name is recorded or declared",
        hint=hint or "correct the entry, or remove it; `fleetform state list` shows what is recorded",
        span=desired.places.get(place),
        severity=Severity.WARNING,
    )


def owner_of(action: Action) -> str:
    """The declared thing that an action belongs to: `fleet/gpu`, `task/train`, `volume/data-0`."""
    inputs = action.typed
    return f"fleet/{inputs.fleet}" if isinstance(inputs, NodeInputs) else group_of(action)


def successors(desired: Desired, state: State, olds: Collection[str]) -> dict[str, tuple[str, ...]]:
    """New thing → those of `olds` whose place it may take, as `owner_of` names them.

    `moved` would keep the old thing under the new name, or a task now mounts the new volume where it mounted
    the old one. Several may be alike: then any of them may have been renamed.
    """
    out: dict[str, list[str]] = defaultdict(list)
    for kind, pairs in (
        ("volume", _volumes_in_place(desired, state, olds)),
        ("task", _tasks(desired, state)),
        ("fleet", _fleets(desired, state)),
    ):
        for old, new in pairs:
            if f"{kind}/{old}" in olds:
                out[f"{kind}/{new}"].append(f"{kind}/{old}")
    return {new: tuple(dict.fromkeys(old_names)) for new, old_names in out.items()}


def renaming(old: str, new: str) -> str:
    """The `moved` entry that keeps one thing under another name; of a `count`, all of them."""
    numbers = [address.rpartition("-")[2] for address in (old, new)]
    if old.startswith("volume/") and numbers[0] == numbers[1] and numbers[0].isdecimal():
        old, new = (address.rpartition("-")[0] for address in (old, new))
    return f"`moved: [{{from: {old}, to: {new}}}]`"


def refused_with(part: Plan, whole: Plan, desired: Desired, state: State) -> list[Diagnostic]:
    """The errors `protected` of the whole plan that a part of it would get around: it leaves out the deletion
    that is refused, and makes what takes the place of that thing.
    """
    protected = (d for d in whole.diagnostics if d.code == "protected" and d not in part.diagnostics)
    errors = {str(d.address): d for d in protected}
    # A volume that is in use has its error without an action: only a later plan deletes it.
    barred = errors | {owner_of(a): errors[str(a.address)] for a in whole.actions if str(a.address) in errors}
    created = {owner_of(a) for a in part.actions if a.op is Op.CREATE} if barred else set[str]()
    replaced_by = successors(desired, state, barred.keys()) if created else {}
    return [
        barred[old]
        for old in dict.fromkeys(old for new in sorted(created) for old in replaced_by.get(new, ()))
    ]


def _unpaired(desired: Desired, state: State) -> tuple[dict[str, VolumeInputs], dict[str, VolumeInputs]]:
    """The volumes that are recorded and declared no more, and those that are declared and not recorded."""
    recorded = {
        r.address.name: r.volume
        for r in state.of("volume")
        if r.address.name not in desired.volumes and desired.project.removed.of(r.address.name) is None
    }
    declared = {name: want.inputs for name, want in desired.volumes.items() if not state.get("volume", name)}
    return recorded, declared


def _volumes_in_place(desired: Desired, state: State, olds: Collection[str]) -> Iterator[tuple[str, str]]:
    """New volumes that would be made empty in the place of `olds`, the likeliest first."""
    recorded, declared = _unpaired(desired, state)
    recorded = {name: inputs for name, inputs in recorded.items() if f"volume/{name}" in olds}
    declared = {name: inputs for name, inputs in declared.items() if inputs.volume_id is None}
    if not recorded or not declared:
        return
    for record in state.of("rank"):
        want = desired.tasks.get(record.rank.task)
        for mount in want.mounts[record.rank.rank] if want and record.rank.rank < len(want.mounts) else ():
            for old in recorded.keys() & {*record.rank.volumes.get(mount.path, ())}:
                yield from ((old, new) for new in mount.names if new in declared)
    after_kinds = _kinds(declared)
    for before in _kinds(recorded):  # volumes of a count are alike: each kind is compared once
        numbers = {name.rpartition("-")[2]: name for name in before}
        for after in after_kinds:
            if keeps_content(recorded[before[0]], declared[after[0]]):
                for new in after:
                    same = numbers.get(new.rpartition("-")[2])
                    yield from ((old, new) for old in ((same,) if same else before[:MOST_NAMED]))


def _kinds(volumes: Mapping[str, VolumeInputs]) -> list[list[str]]:
    """The names of volumes with the same inputs."""
    out: dict[str, list[str]] = defaultdict(list)
    for name, inputs in volumes.items():
        out[repr(inputs)].append(name)
    return [*out.values()]


def _volumes(desired: Desired, state: State) -> list[tuple[str, str]]:
    """Volumes one by one, and all of a `count` or of a task's ranks together."""
    recorded, declared = _unpaired(desired, state)
    if not declared or not recorded:
        return []
    olds, news = _families(recorded), _families(declared)

    def alike(before: VolumeInputs, after: VolumeInputs) -> bool:
        """Whether they are the same but for what is chosen later, and for protection."""
        chosen: dict[str, Any] = {"host": {}, "zone": after.zone or before.zone}
        chosen |= {"prevent_destroy": True, "auto_cleanup_duration": None}
        return replace(before, **chosen) == replace(after, **chosen)

    return [
        (old, new)
        for old, before in olds.items()
        for new, after in news.items()
        if before.keys() == after.keys() and all(alike(before[n], after[n]) for n in before)
    ]


def _families(volumes: Mapping[str, VolumeInputs]) -> dict[str, dict[str, VolumeInputs]]:
    """The volumes by their names without numbers, and by their numbers."""
    out: dict[str, dict[str, VolumeInputs]] = {}
    for name, inputs in volumes.items():
        base, _, number = name.rpartition("-")
        family, number = (base, number) if base and number.isdecimal() else (name, "")
        out.setdefault(family, {})[number] = inputs
    return out


def _tasks(desired: Desired, state: State) -> list[tuple[str, str]]:
    gangs = state.gangs()
    gone = {task: members for task, members in gangs.items() if task not in desired.tasks}
    gone = {task: members for task, members in gone.items() if f"task/{task}" not in desired.asleep}
    fresh = {name: want for name, want in desired.tasks.items() if name not in gangs} if gone else {}
    return [
        (task, name)
        for task, members in gone.items()
        for name, want in fresh.items()
        if want.spec.nodes == len(members)
        and all(
            not changed_fields(r.rank, replace(want.rank_inputs(r.rank.rank), task=task))[0] for r in members
        )
    ]


def _fleets(desired: Desired, state: State) -> list[tuple[str, str]]:
    nodes = state.of("node")
    used = {r.node.fleet for r in nodes}
    gone = {r.node.fleet: r for r in nodes if r.node.fleet not in desired.fleets and not r.node.host}
    fresh = {n: f for n, f in desired.fleets.items() if n not in used and not f.exists} if gone else {}
    out: list[tuple[str, str]] = []
    for old, record in gone.items():
        for new, fleet in fresh.items():
            if (
                not fixed_changes(record, fleet)
                and broken_limit(fleet, allowed_backends(desired, fleet), offer_of(record.node)) is None
            ):
                out.append((old, new))
    return out
