"""`moved` in the project document: renames are reviewed, planned, shown and applied with everything else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.model.spec.project import Moved, Moves, Removals, Removed
from declarative.model.state import Address
from declarative.store import rename
from tests.support.cli import Project, fleet, hold, lines, task, until, volume
from tests.support.model import World
from tests.support.model import project as declared


def moved(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"type": "project", "moved": [{"from": a, "to": b} for a, b in pairs]}


def declare(
    project: Project, fleet_name: str, task_name: str, volume_name: str, *pairs: tuple[str, str]
) -> None:
    project.declare(
        fleet(fleet_name, nodes=2),
        volume(volume_name, count=2, size="1GB"),
        task(
            task_name,
            hold(project.path / "go"),
            nodes=2,
            fleets=[fleet_name],
            volumes=[f"{volume_name}-${{{{ node_rank }}}}:/data"],
        ),
        *([moved(*pairs)] if pairs else []),
    )


PAIRS = (("fleet/gpu", "fleet/big"), ("task/train", "task/learn"), ("volume/data", "volume/sets"))


@pytest.fixture
def running(project: Project) -> Project:
    declare(project, "gpu", "train", "data")
    project.apply()
    until(lambda: len(lines(project.path / "go")) == 2)
    declare(project, "big", "learn", "sets", *PAIRS)
    return project


def test_what_runs_goes_on_under_its_new_names(running):
    """Only the renames are done. After that the entries have no effect, and may stay."""
    before = (running.path / "go").read_text()
    plan = running.plan()
    assert plan["actions"] == []
    assert plan["result"] == "changes"
    assert [(m["from"], m["to"]) for m in plan["moved"]] == list(PAIRS)
    assert {"from": "node/gpu-1", "to": "node/big-1"} in plan["moved"][0]["addresses"]
    text = running.run("plan", "--detailed-exitcode", code=2).out
    assert "fleet/big" in text
    assert "# moved from fleet/gpu (2 records)" in text
    running.apply()
    running.no_changes()
    ranks = running.ranks("learn")
    assert {rank["state"] for rank in ranks.values()} == {"running"}
    assert (running.path / "go").read_text() == before


def test_nothing_is_renamed_before_it_is_approved(running):
    running.run("apply", code=1)
    assert "node/gpu-0" in running.run("state", "list").out
    report = running.path / "plan.md"
    running.run("plan", "--report", str(report))
    assert "moved from volume/data" in report.read_text()
    running.run("apply", "--expect", str(report))
    assert "node/big-0" in running.run("state", "list").out


def test_a_saved_plan_renames(running):
    running.run("plan", "--out", "next.plan")
    running.run("apply", "next.plan")
    running.no_changes()


def test_together_with_changes(running):
    """One rename and a larger fleet, in one apply."""
    running.declare(
        fleet("big", nodes=3),
        volume("data", count=2, size="1GB"),
        task(
            "train",
            hold(running.path / "go"),
            nodes=2,
            fleets=["big"],
            volumes=["data-${{ node_rank }}:/data"],
        ),
        moved(PAIRS[0]),
    )
    assert running.ids() == ["create:node/big-2"]
    running.apply()
    running.no_changes()


def test_renames_one_after_another(running):
    """`a` was renamed to `b`, and that to `c`: a state with `a` makes both steps at once."""
    declare(running, "huge", "learn", "sets", PAIRS[0], ("fleet/big", "fleet/huge"), *PAIRS[1:])
    plan = running.plan()
    assert (plan["actions"], plan["moved"][0]["to"]) == ([], "fleet/huge")


def test_both_names_are_recorded(running):
    running.declare(fleet("gpu", nodes=2), fleet("big", nodes=1))
    running.apply()
    running.declare(fleet("big", nodes=2), moved(PAIRS[0]))
    done = running.run("plan", code=1)
    assert "node/big-0 is recorded already" in done.err
    assert "main.yaml:" in done.err


def test_destroy_renames_first(running):
    running.run("destroy", "--auto-approve")
    assert running.run("state", "list").out == ""


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"from": "fleet/old", "to": "task/new"}], "is no fleet"),
        ([{"from": "fleet/old", "to": "fleet/old"}], "is the same address"),
        (
            [{"from": "fleet/old", "to": "fleet/new"}, {"from": "fleet/new", "to": "fleet/old"}],
            "get its own name again",
        ),
        (
            [{"from": "fleet/old", "to": "fleet/new"}, {"from": "fleet/other", "to": "fleet/new"}],
            "the `to` of another",
        ),
        (
            [{"from": "fleet/old", "to": "fleet/new"}, {"from": "fleet/old", "to": "fleet/other"}],
            "has another entry",
        ),
        ([{"from": "node/a-0", "to": "node/b-0"}], "write `fleet/NAME`"),
        ([{"from": "fleet/gpu", "to": "fleet/new"}], "but `fleet/gpu` is still declared"),
        ([{"from": "volume/data", "to": "volume/new"}], "but `volume/data` is still declared"),
    ],
)
def test_contradictions(project, entries, message):
    project.declare(fleet("gpu"), volume("data", count=2), {"type": "project", "moved": entries})
    done = project.run("plan", "--offline", code=1)
    assert message in done.err


@pytest.mark.parametrize("protected", [True, False])
@pytest.mark.parametrize("count", [{}, {"count": 2}])
def test_a_rename_to_what_is_not_declared(project, count, protected):
    words = {**count, "prevent_destroy": protected}
    project.declare(fleet("rack", prevent_destroy=protected), volume("data", **words))
    project.apply()
    wrong = moved(("fleet/rack", "fleet/stac"), ("volume/data", "volume/stor"))
    project.declare(fleet("stack", prevent_destroy=protected), volume("store", **words), wrong)
    found = project.run("plan", code=1 if protected else 0).err
    assert ("error[protected]" in found) is protected
    for kind, name in (("volume", "stor"), ("fleet", "stac")):
        meant = f"{kind}/{'store' if kind == 'volume' else 'stack'}"
        text = f"`moved` renames it to `{kind}/{name}`, which is not declared: did you mean `{meant}`?"
        assert found.count(text) >= 1 + protected
    assert "if it was renamed" not in found
    if protected:
        assert "If it is to go, write in the `project` document `removed: [{from: volume/stor" in found


def test_a_volume_gets_a_count(project):
    """`data` becomes `data-0`."""
    project.declare(volume("data"))
    project.apply()
    project.declare(volume("data", count=2), moved(("volume/data", "volume/data-0")))
    assert project.ids() == ["create:volume/data-1"]
    project.apply()
    project.no_changes()


NAMES = st.sampled_from(["a", "b", "c", "a-0", "a-1", "b-0", "b-x", "c-0-1"])


@given(st.dictionaries(NAMES, NAMES))
def test_a_chain_of_renames_ends_where_following_it_ends(pairs):
    """In a circle, or on the way into one, it ends nowhere."""

    def followed(name: str) -> str | None:
        way: list[str] = []
        while name in pairs:
            if name in way:
                return None
            way.append(name)
            name = pairs[name]
        return name

    moves = Moves(Moved(a, b) for a, b in pairs.items())
    assert moves.ends() == {name: followed(name) for name in pairs}


@given(st.lists(NAMES, unique=True), NAMES)
def test_a_removal_is_of_a_volume_or_of_all_with_numbers(names, volume):
    base, _, number = volume.rpartition("-")
    expected = volume if volume in names else base if number.isdecimal() and base in names else None
    entry = Removals(Removed(name, destroy=False) for name in names).of(volume)
    assert (entry.volume if entry else None) == expected


def test_many_renames_cost_as_much_as_one_each(monkeypatch):
    """What is looked at for each entry does not grow with the number of the others."""

    def looks(count: int) -> int:
        world = World()
        world.apply(world.plan(declared(volumes=[{"name": f"old{i}"} for i in range(count)])))
        calls = 0
        address = rename.RenameMap.address

        def counted(self: rename.RenameMap, old: Address) -> Address:
            nonlocal calls
            calls += 1
            return address(self, old)

        monkeypatch.setattr(rename.RenameMap, "address", counted)
        moves = Moves(Moved(f"volume/old{i}", f"volume/new{i}") for i in range(count))
        assert len(rename.as_declared(world.state(), moves, {}).moved) == count
        monkeypatch.undo()
        return calls

    assert looks(60) <= 2 * looks(30)


# ------------------------------------------------------------------------------- entries that name nothing


def unknown(project: Project, *documents: Any, code: int | None = None) -> list[tuple[str, str, int]]:
    """The warnings `unknown-address` of a plan: which entry, the hint, and the line."""
    project.declare(*documents)
    found = project.run("plan", "--json", code=code).json["diagnostics"]
    return [
        (d["summary"].partition(",")[0], d["hint"], d["line"])
        for d in found
        if d["code"] == "unknown-address"
    ]


def test_a_typo_in_moved_is_noticed(project):
    project.declare(volume("data"), fleet("rack"))
    project.apply()
    wrong = moved(("volume/dtaa", "volume/store"), ("fleet/other", "fleet/stack"))
    found = unknown(project, wrong, volume("store"), fleet("stack"))
    assert [(what, hint) for what, hint, _ in found] == [
        ("`moved` names `volume/dtaa`", "did you mean `volume/data`?"),
        ("`moved` names `fleet/other`", "recorded, and declared no more: fleet/rack"),
    ]
    assert all(line for _, _, line in found)
    right = moved(("volume/data", "volume/store"), ("fleet/rack", "fleet/stack"))
    assert unknown(project, right, volume("store"), fleet("stack")) == []
    project.apply()
    assert unknown(project, right, volume("store"), fleet("stack")) == []


def test_entries_that_were_carried_out_may_stay(project):
    """After a chain of renames, in a new state, and after what was renamed is gone."""
    chain = moved(("volume/data", "volume/store"), ("volume/store", "volume/sets"))
    for documents in (
        (chain, volume("sets")),
        (moved(("fleet/rack", "fleet/stack")), fleet("stack", nodes="0..2"), volume("sets")),
        ({"type": "project", "removed": [{"from": "volume/data", "destroy": True}]}, volume("sets")),
    ):
        assert unknown(project, *documents) == []
        project.apply()
        assert unknown(project, *documents) == []


def test_a_typo_in_removed_is_noticed(project):
    project.declare(volume("data", count=2), volume("rest"))
    project.apply()
    wrong = {"type": "project", "removed": [{"from": "volume/dta", "destroy": False}]}
    found = unknown(project, wrong, volume("rest"))
    assert [(what, hint) for what, hint, _ in found] == [
        ("`removed` names `volume/dta`", "did you mean `volume/data`?")
    ]
    right = {"type": "project", "removed": [{"from": "volume/data", "destroy": False}]}
    assert unknown(project, right, volume("rest")) == []


def test_no_entry_that_was_carried_out_is_taken_for_another_number(project):
    """The hint would delete the next volume."""
    project.declare(volume("data", count=3))
    project.apply()
    entry = {"type": "project", "removed": [{"from": "volume/data-2", "destroy": True}]}
    assert unknown(project, entry, volume("data", count=2)) == []
    project.apply()
    assert unknown(project, entry, volume("data", count=1)) == []


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("volume/dtaa", "did you mean `volume/data`?"),
        ("fleet/prod-*", "correct the entry, or remove it; `fleetform state list` shows what is recorded"),
        ("node/big-0", "did you mean `node/gpu-0`?"),
    ],
)
def test_a_pattern_of_protected_that_matches_nothing_is_noticed(project, pattern, hint):
    here = (volume("data", count=2), fleet("gpu"))
    matching = ["volume/data", "volume/data-1", "volume/*", "fleet/g*", "node/gpu-*", "node/gpu-7", "node/*"]
    matching += ["node/gpu-1*", "node/g*"]
    limits = {"type": "project", "limits": {"protected": [*matching, pattern]}}
    project.declare(*here)
    project.apply()
    ((what, found, line),) = unknown(project, limits, *here)
    assert (what, line > 0) == (f"`limits.protected` names `{pattern}`", True)
    assert found == hint or pattern.startswith("node/")
    project.declare(limits, volume("data", count=2))
    assert "unknown-address" in project.run("plan", code=1).err
