"""Names in the declaration that were probably changed: what is deleted under one name and made under another
would have been kept by a `moved` entry.

It only warns. A pair is named if nothing else looks like either of its sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.inputs import VolumeInputs
from declarative.model.resource import Desired, fleet_marks
from declarative.model.schema import in_place
from declarative.model.spec import Fleet
from declarative.model.state import State
from declarative.planner.launchable import allowed_backends, limits
from declarative.planner.nodes import offer_of
from declarative.planner.tasks import changed_fields
from declarative.planner.types import finding


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
                yield finding(
                    desired,
                    f"{target}-0" if f"{target}-0" in desired.places else target,
                    "looks-renamed",
                    summary=f"{source} is declared no more, and {target} is new and has the same fields",
                    hint=desired.wrongly_moved(source)
                    or f"if it was renamed, write `moved: [{{from: {source}, to: {target}}}]` in the "
                    "`project` document: then it is kept",
                    severity=Severity.WARNING,
                )


def _volumes(desired: Desired, state: State) -> list[tuple[str, str]]:
    """Volumes one by one, and all of a `count` or of a task's ranks together."""
    declared = {name: want.inputs for name, want in desired.volumes.items() if not state.get("volume", name)}
    recorded = {
        r.address.name: r.volume
        for r in state.of("volume")
        if r.address.name not in desired.volumes and desired.project.removed.of(r.address.name) is None
    }
    if not declared or not recorded:
        return []
    olds, news = _families(recorded), _families(declared)
    return [
        (old, new)
        for old, before in olds.items()
        for new, after in news.items()
        if before.keys() == after.keys() and all(_alike(before[n], after[n]) for n in before)
    ]


def _families(volumes: Mapping[str, VolumeInputs]) -> dict[str, dict[str, VolumeInputs]]:
    """The volumes by their names without numbers, and by their numbers."""
    out: dict[str, dict[str, VolumeInputs]] = {}
    for name, inputs in volumes.items():
        base, _, number = name.rpartition("-")
        family, number = (base, number) if base and number.isdecimal() else (name, "")
        out.setdefault(family, {})[number] = inputs
    return out


def _alike(before: VolumeInputs, after: VolumeInputs) -> bool:
    """Whether they are the same but for what is chosen later, and for protection."""
    chosen: dict[str, Any] = {"host": {}, "zone": after.zone or before.zone}
    chosen |= {"prevent_destroy": True, "auto_cleanup_duration": None}
    return replace(before, **chosen) == replace(after, **chosen)


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
            marks, fixed = fleet_marks(fleet), in_place(Fleet)
            same = all(getattr(record.node, key) == marks[key] for key in marks if key not in fixed)
            if same and limits(fleet, allowed_backends(desired, fleet), offer_of(record)) is None:
                out.append((old, new))
    return out
