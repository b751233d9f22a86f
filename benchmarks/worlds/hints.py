"""Whether hints are true: each is written into the documents as it says, and the world is planned again.

A hint is wrong if one of the tasks that it is for finds no place, if a task loses the place that it had
without the change, or if one less of the number that it names would do as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from ruamel.yaml import YAML

from benchmarks.worlds.world import NOW, Words, World, offers_of, read
from declarative.planner.make import make_plan


def hints(plan: Words) -> dict[str, set[str]]:
    """What is named, and the tasks that it is for together."""
    shared = {item["change"]: set(item["tasks"]) for item in plan["remedies"]}
    out = dict(shared)
    for item in plan["unplaced"]:
        for text in item["changes"] or ():
            change = re.sub(r" \(fits \d+ tasks\)$", "", text)
            if change not in shared:
                out[f"{item['task']}: {change}"] = {item["task"]}
            elif item["task"] not in shared[change]:
                raise ValueError(f"task/{item['task']} is told of {change}, which is not for it")
    return out


def faults_of_hints(case: World, plan: Words) -> Iterator[str]:
    """What is wrong with the hints of a plan."""
    before = case.desired.tasks.keys() - {item["task"] for item in plan["unplaced"]}
    for hint, tasks in hints(plan).items():
        task, change = _parted(hint)
        after = _placed(case, _changed(case.documents, task, change))
        if not tasks <= after:
            yield f"{hint}: {', '.join(sorted(tasks - after))} finds no place"
        if not before <= after:
            yield f"{hint}: {', '.join(sorted(before - after))} loses its place"
        less = _less(change)
        if less and tasks | before <= _placed(case, _changed(case.documents, task, less)):
            yield f"{hint}: {less} would do"


def _parted(hint: str) -> tuple[str, str]:
    """The task that a hint is for by itself, if there is one, and the change."""
    if hint.startswith(("with ", "without ")):
        return "", hint
    task, _, change = hint.partition(": ")
    return task, change


def _placed(case: World, documents: Sequence[Words]) -> set[str]:
    desired = read(documents)
    seen = replace(case.inventory, offers={**case.inventory.offers, **offers_of(desired)})
    found = make_plan(desired, case.state, seen, NOW)
    return set(desired.tasks) - {refusal.task for refusal in found.unplaced.refusals}


def _less(change: str) -> str | None:
    """The change with a number that is one less, or of a task's nodes one more."""
    found = re.fullmatch(r"(with `nodes: (?:\d+\.\.|\{.*max: ))(\d+)(.*)", change)
    found = found or re.fullmatch(r"(with `limit: )(\d+)(.*)", change)
    if found:
        return f"{found[1]}{int(found[2]) - 1}{found[3]}"
    found = re.fullmatch(r"(with `nodes: )(\d+)(` of the task)", change)
    return f"{found[1]}{int(found[2]) + 1}{found[3]}" if found else None


def _changed(documents: Sequence[Mapping[str, Any]], task: str, change: str) -> list[Words]:
    """The documents as they are once a change is written into them."""
    out = [deepcopy(dict(words)) for words in documents]  # each by itself: they share parts
    by_name = {(words["type"], words["name"]): words for words in out}
    mine = by_name.get(("task", task), {})
    if found := re.fullmatch(r"with `(\w+): (.+)` of fleet/(\S+)", change):
        by_name["fleet", found[3]][found[1]] = _value(found[2])
    elif found := re.fullmatch(r"with `limit: (\d+)` for (\S+)(?: \(spot\))? of (\S+)", change):
        for entry in by_name["backend", found[3]]["catalog"]:
            if entry["instance_type"] == found[2] and "limit" in entry:
                entry["limit"] = max(entry["limit"], int(found[1]))
    elif found := re.fullmatch(r"with `(\w+): (.+)` in `resources`(?: \(.*\))?", change):
        mine.setdefault("resources", {})[found[1]] = _value(found[2])
    elif found := re.fullmatch(r"without `(\S+)` in `resources`", change):
        mine["resources"].pop(found[1])
    elif found := re.fullmatch(r"without `(\S+)` in `volumes`", change):
        mine["volumes"] = [m for m in mine["volumes"] if m["path"] != found[1]]
    elif found := re.fullmatch(r"with `(\w+): (.+)`(?: of the task)?", change):
        mine[found[1]] = _value(found[2])
        if found[2] == "any":
            mine.pop("same", None)
    else:
        found = re.fullmatch(r"without `(\w+)`(?: \(.*\))?", change)
        assert found, change
        mine.pop(found[1])
    return out


def _value(text: str) -> Any:
    return YAML(typ="safe").load(text)
