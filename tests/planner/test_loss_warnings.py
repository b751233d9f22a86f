"""What is lost with a plan stands where it is lost, and what looks like a rename says how to keep it."""

from dataclasses import replace

import pytest

from declarative.model.diagnostic import Span
from declarative.model.status import RankState
from declarative.render.plan import plan_text
from declarative.render.plan_document import plan_json
from tests.support.cli import Project
from tests.support.model import NOW, World
from tests.support.model import project as declared

PAIR = {"name": "pair", "nodes": 2, "resources": {"cpu": 2}, "placement": "cluster"}
DATA = {"name": "data", "size": "2GB", "prevent_destroy": False}
TRAIN = {"name": "train", "resources": {"cpu": "1.."}, "mounts": {"/d": "data"}}


def wanted(volumes=(DATA,), tasks=(), fleets=(PAIR,)):
    return declared(fleets=fleets, volumes=volumes, tasks=tasks)


def brought(*args, **kwargs):
    world = World()
    world.apply(world.plan(wanted(*args, **kwargs)))
    return world


def text(plan):
    return plan_text(plan, color=False, width=200)


LOST = "its content (2GB, unused since 1970-01-12)"


@pytest.mark.parametrize(
    ("words", "requested"),
    [(None, ()), ({"region": "far"}, ()), ({"size": "1GB"}, ()), ({}, ("volume/data",))],
)
def test_every_deletion_and_replacement_of_a_volume_says_what_is_lost(words, requested):
    world = brought()
    assert NOW == 1_000_000
    world.now += 10**6
    after = wanted(() if words is None else ({**DATA, **words},))
    plan = world.plan(after, requested=frozenset(requested))
    assert f"; {LOST} is lost" in text(plan)
    assert plan_json(plan)["losses"] == [
        {"address": "volume/data", "what": LOST, "who": None, "file": None, "line": None}
    ]


def test_a_clean_up_says_it_too_and_an_attachment_who_uses_it():
    cache = {"name": "data", "size": "2GB", "auto_cleanup_duration": "1h"}
    world = brought((cache,), (TRAIN,))
    world.end("train-0", RankState.SUCCEEDED)
    world.settle()
    world.now += 3600
    assert LOST in text(world.plan(wanted((cache,), (TRAIN,))))
    (loss,) = plan_json(brought((DATA,), (TRAIN,)).plan(wanted(())))["losses"]
    assert (loss["what"], loss["who"]) == ("its content (2GB, in use by task/train)", "task/train")


def test_a_loss_is_where_its_volume_is_declared():
    world, after = brought(), wanted(({**DATA, "size": "1GB"},))
    after = replace(
        after, places={"volume/data": Span(file="x.yaml", line=3, column=1, end_line=3, end_column=2)}
    )
    (loss,) = world.plan(after).losses
    assert (loss.file, loss.line) == ("x.yaml", 3)


def test_what_is_kept_or_adopted_is_no_loss():
    world = brought(({"name": "data", "volume_id": "vol-1"},))
    plan = world.plan(wanted(()))
    assert (plan.losses, "is lost" in text(plan)) == ((), False)


def renamed(plan):
    return [(d.address, d.hint) for d in plan.diagnostics if d.code == "looks-renamed"]


def hint(old, new):
    entry = f"`moved: [{{from: {old}, to: {new}}}]`"
    return f"if it was renamed, write {entry} in the `project` document: then it is kept"


def test_a_volume_that_looks_renamed():
    assert renamed(brought().plan(wanted(({**DATA, "name": "store"},)))) == [
        ("volume/store", hint("volume/data", "volume/store"))
    ]
    several = {**DATA, "count": 3}
    (found,) = renamed(brought((several,)).plan(wanted(({**several, "name": "store"},))))
    assert found[1] == hint("volume/data", "volume/store")


@pytest.mark.parametrize("words", [{"size": "3GB"}, {"region": "far"}, {"tags": {"a": "b"}}, {"count": 2}])
def test_a_volume_with_other_fields_is_another(words):
    assert renamed(brought().plan(wanted(({**DATA, "name": "store", **words},)))) == []


def test_nothing_is_guessed_where_two_are_alike():
    two = ({**DATA, "name": "one"}, {**DATA, "name": "two"})
    assert renamed(brought().plan(wanted(two))) == []
    assert renamed(brought(two).plan(wanted())) == []


def test_a_task_and_a_fleet_that_look_renamed():
    train = {"name": "train", "nodes": 2, "resources": {"cpu": "1.."}}
    world = brought((), (train,))
    plan = world.plan(wanted((), ({**train, "name": "learn"},)))
    assert [found[1] for found in renamed(plan)] == [hint("task/train", "task/learn")]
    assert renamed(world.plan(wanted((), ({**train, "name": "learn", "commands": ["false"]},)))) == []
    plan = brought(()).plan(wanted((), fleets=({**PAIR, "name": "couple"},)))
    assert [found[1] for found in renamed(plan)] == [hint("fleet/pair", "fleet/couple")]
    other = {**PAIR, "name": "couple", "resources": {"cpu": 4}}
    assert renamed(brought(()).plan(wanted((), fleets=(other,)))) == []


@pytest.mark.slow
def test_a_volume_leaves_the_middle_of_a_count(tmp_path):
    """The hint of the entries that one would write first says exactly how, and that works."""
    project = Project(tmp_path)
    data = {"type": "volume", "name": "data", "size": "1GB"}
    entries = {
        "moved": [
            {"from": "volume/data-1", "to": "volume/bad"},
            {"from": "volume/data-2", "to": "volume/data-1"},
        ],
        "removed": [{"from": "volume/bad", "destroy": True}],
    }
    lab = {"type": "project", "name": "lab"}
    try:
        project.declare(lab, {**data, "count": 3})
        project.apply()
        for number in range(3):
            (project.data(f"data-{number}") / "number").write_text(str(number))
        project.declare({**lab, **entries}, {**data, "count": 2})
        refused = project.run("plan", code=1).err
        moves = ("volume/data-1 volume/data-old", "volume/data-2 volume/data-1")
        for move in moves:
            assert f"`fleetform state mv {move}`" in refused
            project.run("state", "mv", *move.split())
        gone = [{"from": "volume/data-old", "destroy": True}]
        project.declare({**lab, "removed": gone}, {**data, "count": 2})
        assert project.ids() == ["delete:volume/data-old"]
        project.apply()
        project.no_changes()
        kept = sorted(p.read_text() for p in (project.local / "volumes").glob("*/data/number"))
        assert kept == ["0", "2"]
    finally:
        project.clean_up()
