"""Random projects and worlds: small enough that names collide, wide enough that every rule is used."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from declarative.model.resource import Desired
from declarative.model.state import Address
from declarative.model.status import NodeState, RankState
from tests.support.model import NOW, World, project

CATALOG = [
    {"instance_type": "small", "cpu": 2, "memory": "4GB", "price": 1.0, "spot_price": 0.4},
    {"instance_type": "big", "cpu": 8, "memory": "32GB", "price": 4.0, "limit": 3},
    {"instance_type": "gpu", "cpu": 8, "memory": "32GB", "gpu": "H100:4", "price": 9.0, "limit": 2},
    {"instance_type": "odd", "cpu": 4, "memory": "8GB", "regions": ["west"]},
]
BACKENDS = [
    {"name": "sky", "driver": "local", "regions": ["east", "west"], "catalog": CATALOG},
    {"name": "lab", "driver": "local", "regions": ["here"], "catalog": CATALOG[:1]},
]

Words = dict[str, Any]


def some(most: int = 3, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Words]:
    """A mapping that has a few of the fields: with many of them nothing would ever fit."""

    def given(keys: list[str]) -> st.SearchStrategy[Words]:
        return st.fixed_dictionaries({key: fields[key] for key in keys})

    return st.lists(st.sampled_from(sorted(fields)), max_size=most, unique=True).flatmap(given)


def pick(*values: Any) -> st.SearchStrategy[Any]:
    """One of the values."""
    return st.sampled_from(values)


def fleets() -> st.SearchStrategy[list[Words]]:
    """Up to three fleets."""
    fields = some(
        placement=pick("any", "cluster"),
        blocks=pick(1, 2, "auto"),
        resources=pick({}, {"cpu": "4.."}, {"cpu": "..4"}, {"gpu": "1.."}),
        backends=pick(["sky"], ["lab"], ["sky", "lab"]),
        regions=pick(["east"], ["west"]),
        spot_policy=pick("auto", "spot"),
        max_price=pick(0.5, 2, 5),
        idle_duration=pick("0s", "30m", "off"),
        tags=pick({}, {"a": "1"}),
        env=pick({}, {"A": "1"}),
    )
    sizes = pick(1, 2, 3, "0..2", "0..4", "1..3", "0..", {"min": 0, "target": 1, "max": 2})
    one = st.builds(
        lambda name, nodes, rest: {"name": name, "nodes": nodes, **rest},
        pick("aa", "bb", "cc"),
        sizes,
        fields,
    )
    return st.lists(one, min_size=1, max_size=3, unique_by=lambda f: f["name"]) | st.just([])


def volumes() -> st.SearchStrategy[list[Words]]:
    """Volumes one by one and by number, protected or not."""
    fields = some(
        count=pick(2, 3),
        size=pick("1GB", "2GB", "3GB"),
        backend=pick("sky", "lab"),
        region=pick("east", "west"),
        tags=pick({}, {"t": "1"}),
    )
    protected = pick(False, False, False, False, True)
    cleanup = pick(None, None, None, "0s", "30m", "off")
    one = st.builds(
        lambda name, kept, after, rest: _placed(
            {"name": name, "prevent_destroy": kept, "auto_cleanup_duration": after, **rest}
        ),
        pick("data", "spare"),
        protected,
        cleanup,
        fields,
    )
    return st.lists(one, max_size=2, unique_by=lambda v: v["name"])


def _placed(volume: Words) -> Words:
    """In a region that its backend has."""
    if volume["auto_cleanup_duration"] not in (None, "off"):
        del volume["prevent_destroy"]
    backend = volume.setdefault("backend", "sky")
    if backend == "lab":
        volume.pop("region", None)
    return volume


def tasks() -> st.SearchStrategy[list[Words]]:
    """Up to four tasks; what they mount is set by `projects`, which knows the volumes."""
    fields = some(
        nodes=pick(1, 2, 2, 3),
        placement=pick("any", "cluster"),
        exclusive=st.booleans(),
        resources=pick(
            {"cpu": 1}, {"cpu": "1.."}, {"cpu": "3.."}, {"cpu": "..2"}, {"gpu": 1}, {"gpu": "1..4"}
        ),
        fleets=pick(["aa"], ["bb"], ["aa", "cc"]),
        instances=pick(["aa-0"], ["aa-0", "aa-1"], ["bb-0", "bb-1"]),
        creation_policy=pick("reuse", "reuse-or-create"),
        priority=pick(0, 5, 9),
        max_price=pick(0.5, 2, 5),
        backends=pick(["sky"], ["lab"]),
        spot_policy=pick("on-demand", "spot", "auto"),
        startup_order=pick("any", "master-first", "workers-first"),
        stop_criteria=pick("all-done", "master-done"),
        commands=pick(["true"], ["false"]),
        max_duration=pick("1h", "2h"),
        retry=pick(True, {"on_events": ["error"], "duration": "2h"}),
        tags=pick({}, {"x": "1"}),
    )
    one = st.builds(lambda name, rest: {"name": name, **rest}, pick("ta", "tb", "tc", "td"), fields)
    return st.lists(one, max_size=4, unique_by=lambda t: t["name"])


@st.composite
def words(draw: st.DrawFn) -> dict[str, list[Words]]:
    """The documents of a project."""
    found: dict[str, list[Words]] = {
        "fleets": draw(fleets()),
        "volumes": draw(volumes()),
        "tasks": draw(tasks()),
    }
    counts = {v["name"]: v.get("count") for v in found["volumes"]}
    for task in found["tasks"]:
        names = mountable(counts, task.get("nodes", 1))
        if names:
            task["mounts"] = draw(st.just({}) | st.sampled_from(names).map(lambda n: {"/data": n}))
    known = {f["name"] for f in found["fleets"]}
    for task in found["tasks"]:
        listed = [f for f in task.get("fleets", []) if f in known]
        if "fleets" in task and not listed:
            del task["fleets"]
        elif "fleets" in task:
            task["fleets"] = listed
    return found


def mountable(counts: dict[str, int | None], nodes: int) -> list[Any]:
    """What a task of so many ranks may mount, as the loader would let it pass."""
    singles = [n for n, count in counts.items() if count is None]
    numbered = [f"{n}-#" for n, count in counts.items() if count is not None and count >= nodes]
    out: list[Any] = list(numbered)
    if nodes == 1:
        out += singles + [[a, b] for a in singles for b in singles if a != b]
    out += [[a, b] for a in numbered for b in singles]
    return out


def projects() -> st.SearchStrategy[Desired]:
    """A declared project."""
    return words().map(lambda found: project(backends=BACKENDS, **found))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[dict[str, list[Words]], dict[str, list[Words]]]:
    """Two projects; the second is often the first with something changed."""
    first = draw(words())
    second = draw(words())
    if draw(st.integers(0, 3)) == 0:
        return first, second
    mixed = dict(first)
    for kind in draw(st.lists(pick("fleets", "tasks"), min_size=1, max_size=2, unique=True)):
        mixed[kind] = second[kind] if draw(st.booleans()) else _varied(draw, first[kind], second[kind])
    return first, _consistent(mixed)


def _varied(draw: st.DrawFn, first: list[Words], second: list[Words]) -> list[Words]:
    """The first with one document changed, added or left out."""
    out = {w["name"]: w for w in first}
    for other in second[:2]:
        have = out.get(other["name"], {})
        keys = draw(st.lists(st.sampled_from(sorted(other)), max_size=2))
        out[other["name"]] = {**have, **{k: other[k] for k in keys}} if have else other
    if out and draw(st.integers(0, 3)) == 0:
        del out[draw(st.sampled_from(sorted(out)))]
    return list(out.values())


def _consistent(found: dict[str, list[Words]]) -> dict[str, list[Words]]:
    """No task mounts or asks for what is not declared."""
    counts = {v["name"]: v.get("count") for v in found["volumes"]}
    fleets_known = {f["name"] for f in found["fleets"]}
    tasks_: list[Words] = []
    for words_ in found["tasks"]:
        task = dict(words_)
        names = mountable(counts, task.get("nodes", 1))
        mounts = task.get("mounts") or {}
        if any(m not in names for m in mounts.values()):
            task["mounts"] = {}
        listed = [f for f in task.get("fleets", []) if f in fleets_known]
        task.pop("fleets", None)
        if listed:
            task["fleets"] = listed
        tasks_.append(task)
    return {**found, "tasks": tasks_}


ENDS = (RankState.SUCCEEDED, RankState.FAILED, RankState.STOPPED, RankState.LOST)


def happen(world: World, rng: random.Random) -> None:
    """Time passes: ranks end in any way, nodes fall sick or vanish, volumes vanish; then it is settled."""
    for name in world.running():
        if rng.random() < 0.4:
            world.end(name, rng.choice(ENDS))
    for record in world.of("node"):
        if rng.random() < 0.15:
            sick = (NodeState.NOT_READY, NodeState.UNKNOWN, NodeState.UNREACHABLE)
            world.sick[record.address.name] = rng.choice(sick)
        elif rng.random() < 0.1:
            world.gone.add(record.address)
    for record in world.of("volume"):
        if rng.random() < 0.05:
            world.gone.add(Address("volume", record.address.name))
    world.now = NOW + rng.choice((1, 60, 3600, 10_000_000))
    world.settle()
