"""What a change of the declaration does to existing things: docs/architecture.md, "What a change does"."""

from __future__ import annotations

import pytest

from tests.support.cli import fleet, hold, lines, processes, task, until, volume


def ops(project, *args):
    """The plan's actions by what they do: `{"update": [address, …], …}`, replacements apart."""
    actions = project.plan(*args)["actions"]
    found: dict[str, list[str]] = {}
    for action in actions:
        found.setdefault(action["op"], []).append(action["address"])
    return {op: sorted(addresses) for op, addresses in found.items()}


def test_volume_grows_in_place(project):
    """Upward in place, its content stays; downward is a replacement, which a protected volume refuses."""
    job = task("job", "echo x >> $FLEETFORM_VOLUME_DATA/runs", volumes=["data:/data"])
    project.declare(fleet(), volume(size="1GB"), job)
    project.apply("--wait")
    project.declare(fleet(), volume(size="2GB", prevent_destroy=True), job)
    assert ops(project) == {"update": ["volume/data"]}
    project.apply("--wait")
    assert lines(project.data("data") / "runs") == ["x"]
    assert "size: 2GB" in project.run("state", "show", "volume/data").out
    project.declare(fleet(), volume(size="1GB", prevent_destroy=True), job)
    refused = project.apply(code=1)
    assert "error[protected]: volume/data would be replaced (`size` changed)" in refused.err
    assert lines(project.data("data") / "runs") == ["x"]


def test_a_task_of_fewer_nodes_says_how_many(project):
    """`nodes: 1` is not recorded, and is not nothing."""
    project.declare(fleet(nodes=2), task("job", "true", nodes=2))
    project.apply("--wait")
    project.declare(fleet(nodes=2), task("job", "true", nodes=1))
    assert "      nodes: 2 → 1  # forces replacement\n" in project.run("plan").out


def test_a_change_in_place_of_an_ended_task_does_not_start_it(project):
    """It is not called running, and `--wait` does not fail for how it ended once."""
    project.declare(fleet(), task("job", "exit 3"))
    project.apply("--wait", code=4)
    for priority, args in enumerate([(), ("--wait",)]):
        project.declare(fleet(), task("job", "exit 3", priority=priority + 1))
        assert ops(project) == {"update": ["rank/job-0"]}
        assert "task/job" not in project.apply(*args).err


@pytest.mark.slow
def test_changed_commands(project):
    """A task that runs stops and starts again; one that had ended runs again."""
    first, second, runs = (project.path / n for n in ("first", "second", "runs"))
    project.declare(fleet(), task("job", hold(first)))
    project.apply()
    until(first.exists)
    project.declare(fleet(), task("job", hold(second)))
    plan = project.plan()
    assert [a["id"] for a in plan["actions"]] == ["delete:rank/job-0", "create:rank/job-0"]
    assert [a["reason"] for a in plan["actions"]] == ["changed"] * 2
    assert plan["actions"][0]["because"] == ["commands"]
    assert plan["summary"] == {"create": 0, "update": 0, "delete": 0, "replace": 1, "restarts": 1, "stops": 0}
    project.apply()
    until(second.exists)
    assert len(lines(first)) == 1
    assert tuple(project.ranks("job")[0][k] for k in ("state", "attempt")) == ("running", 2)

    project.declare(fleet(), task("job", f"echo a >> {runs}"))
    project.apply("--wait")
    project.no_changes()
    project.declare(fleet(), task("job", f"echo b >> {runs}"))
    project.apply("--wait")
    assert lines(runs) == ["a", "b"]
    project.no_changes()


def test_removed_task(project):
    """It is stopped, and its blocks are idle again."""
    up = project.path / "up"
    project.declare(fleet(), volume(), task("job", hold(up), volumes=["data:/data"]))
    project.apply()
    until(up.exists)
    project.declare(fleet(), volume())
    assert ops(project) == {"delete": ["attachment/job-0.data", "rank/job-0", "reservation/job-0"]}
    project.apply()
    assert processes(project.path) == {}
    assert project.busy() == {"gpu-0": 0}
    project.no_changes()


@pytest.mark.slow
@pytest.mark.parametrize("destroy", [False, True])
def test_removed_task_with_volumes_of_its_own(project, destroy):
    """Its volumes are protected, and the document is gone in which that could be changed: one error for all
    of them names what to write, and that works, whether their content is to stay or to go.
    """
    mount = {"name": "scratch-${{ node_rank }}", "path": "/scratch", "size": "1GB"}
    job = task("job", "echo x > $FLEETFORM_VOLUME_SCRATCH/kept", nodes=2, volumes=[mount])
    project.declare(fleet(nodes=2), job)
    project.apply("--wait")
    project.declare(fleet(nodes=2))
    refused = project.apply(code=1).err
    said = (
        "error[protected]: volume/scratch-[0-1] would be deleted, but its `prevent_destroy` is true (2 alike)"
    )
    assert said in refused
    assert refused.count("error[protected]") == 1
    assert "`removed: [{from: volume/scratch, destroy: false}]`" in refused

    project_document = {"type": "project", "removed": [{"from": "volume/scratch", "destroy": destroy}]}
    project.declare(project_document, fleet(nodes=2))
    found = [a for a in project.plan()["actions"] if a["address"].startswith("volume/")]
    assert [(a["id"], a["forget"]) for a in found] == [
        ("delete:volume/scratch-0", not destroy),
        ("delete:volume/scratch-1", not destroy),
    ]
    project.run("plan", "--out", "next.plan")
    project.run("apply", "next.plan", "--auto-approve")
    assert "volume/" not in project.run("state", "list").out
    for rank in range(2):
        assert (project.data(f"scratch-{rank}") / "kept").exists() is not destroy
    project.no_changes()  # the entry may stay
    assert "No drift: all is as recorded." in project.run("drift").out
    assert project.run("state", "check").out == "The state is sound.\n"
    assert project.status()["drift"] == []
    project.declare(project_document, fleet(nodes=2), job)
    assert "error[still-declared]" in project.run("validate", code=1).err


def test_size_of_a_fleet(project):
    """Up and down in place; nodes keep their names, and the numbers are filled up again."""
    project.declare(fleet(nodes=2))
    project.apply()
    made = (project.node("gpu-0") / "fleetform.json").read_text()
    project.declare(fleet(nodes=1))
    assert ops(project) == {"delete": ["node/gpu-1"]}
    project.apply()
    project.declare(fleet(nodes=3))
    assert ops(project) == {"create": ["node/gpu-1", "node/gpu-2"]}
    project.apply()
    assert made == (project.node("gpu-0") / "fleetform.json").read_text()
    project.no_changes()


def test_blocks(project):
    """In place when the node is idle; a busy one stays as it is, and the plan says so."""
    up = project.path / "up"
    project.declare(fleet(nodes=1, blocks=1))
    project.apply()
    project.declare(fleet(nodes=1, blocks=2))
    assert ops(project) == {"update": ["node/gpu-0"]}
    job = task("job", hold(up), resources={"cpu": 1})
    project.declare(fleet(nodes=1, blocks=2), job)
    project.apply()
    assert project.busy() == {"gpu-0": 1}
    until(up.exists)
    project.declare(fleet(nodes=1, blocks=1), job)
    plan = project.plan()
    assert (plan["result"], [d["code"] for d in plan["diagnostics"]]) == ("none", ["blocks-wait"])
    project.run("stop", "job")
    project.declare(fleet(nodes=1, blocks=1))
    project.apply()
    assert project.status()["nodes"][0]["blocks"] == {"total": 1, "busy": 0, "idle": 1}


@pytest.mark.slow
def test_running_rank_in_place(project):
    """`priority`, `tags` and the limits of a running rank change without a restart, and the limit holds."""
    up = project.path / "up"
    project.declare(fleet(), task("job", hold(up)))
    project.apply()
    until(up.exists)
    project.declare(fleet(), task("job", hold(up), priority=7, tags={"team": "a"}, max_duration="2h"))
    plan = project.plan()
    assert [a["id"] for a in plan["actions"]] == ["update:rank/job-0"]
    assert plan["actions"][0]["because"] == ["max_duration", "priority", "tags"]
    project.apply()
    assert tuple(project.ranks("job")[0][k] for k in ("state", "attempt")) == ("running", 1)
    project.no_changes()
    project.declare(fleet(), task("job", hold(up), priority=7, tags={"team": "a"}, max_duration=1))
    done = project.apply("--wait", code=4)
    assert "max_duration reached" in done.out
    assert len(lines(up)) == 1


def test_form_is_no_change(project):
    """Files moved, renamed, split and written in another way: everything is as declared."""
    project.write(
        "all.yaml",
        "type: fleet\nname: gpu\nnodes: 1\nblocks: auto\nresources: {cpu: 2, memory: 1GB}\n---\n"
        "type: volume\nname: data\ncount: 2\nsize: 1GB\nprevent_destroy: false\n---\n"
        "type: task\nname: job\ncommands: [echo done]\nenv: {A: '1', B: '2'}\nmax_duration: 1h\n"
        "volumes: ['data-${{ node_rank }}:/data']\n",
    )
    project.apply("--wait")
    first = project.run("plan", "--json").out
    (project.path / "all.yaml").unlink()
    project.write("project.yaml", "type: project\nname: project\ninclude: ['parts/*.yaml']\n")
    project.write(
        "parts/task.yaml",
        "# reformatted\nvolumes:\n  - name: data-${DSTACK_NODE_RANK}\n    path: /data\n"
        "max_duration: 60m\nenv:\n  - B=2\n  - A=1\ncommands:\n- echo done\nname: job\ntype: task\n",
    )
    project.write(
        "parts/x.yaml", "size: 1024MB\nprevent_destroy: false\ncount: 2\nname: data\ntype: volume\n"
    )
    project.write(
        "z.yml", "resources:\n  memory: 1024MB\n  cpu: 2\nblocks: auto\nnodes: 1\nname: gpu\ntype: fleet\n"
    )
    assert first == project.run("plan", "--json", "--detailed-exitcode").out


@pytest.mark.slow
def test_replace(project):
    """`--replace task/x` runs an unchanged task again. An unknown name is an error."""
    runs = project.path / "runs"
    project.declare(fleet(), task("job", f"echo x >> {runs}"))
    project.apply("--wait")
    assert project.plan("--replace", "task/job")["actions"][0]["reason"] == "requested"
    project.apply("--wait", "--replace", "task/job")
    assert lines(runs) == ["x", "x"]
    assert project.ranks("job")[0]["attempt"] == 2
    project.no_changes()
    assert "did you mean `task/job`?" in project.apply("--replace", "task/jobs", code=1).err


@pytest.mark.slow
def test_unplaced(project):
    """Nothing is done without `--allow-unplaced`. With it, the rest is done, and that counts as success."""
    project.declare(fleet(nodes=1), task("job", "true"), task("big", "true", resources={"cpu": "64.."}))
    plan = project.plan(code=3)
    assert (plan["result"], [u["task"] for u in plan["unplaced"]]) == ("unplaced", ["big"])
    assert plan["actions"]
    done = project.apply(code=3)
    assert "big" in done.out
    assert "nothing was done" in done.err
    assert "--allow-unplaced" in done.err
    assert not project.local.exists()
    project.run("plan", "--detailed-exitcode", code=3)
    project.apply("--allow-unplaced", "--wait")
    assert project.ranks("job")[0]["state"] == "succeeded"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("declared", "given", "allowed"),
    [
        (True, (), True),
        (True, ("--no-allow-unplaced",), False),
        (False, (), False),
        (False, ("--allow-unplaced",), True),
    ],
)
def test_the_project_may_say_that_a_task_without_a_place_holds_up_nothing(project, declared, given, allowed):
    """The flag wins. The plan shows the task in any case, and a saved plan goes by what it was made with."""
    rest = {"type": "project", "allow_unplaced": declared}
    project.declare(fleet(nodes=1), task("big", "true", resources={"cpu": "64.."}), rest)
    shown = project.run("plan", "--json", "--out", "p.plan", *given, code=0 if allowed else 3).json
    assert shown["result"] == ("changes" if allowed else "unplaced")
    assert [u["task"] for u in shown["unplaced"]] == ["big"]
    text = project.run("plan", "--detailed-exitcode", *given, code=2 if allowed else 3).out
    assert "task/big[never-fits]" in text
    assert ("the rest is done all the same" in text) is allowed
    project.run("apply", "p.plan", "--no-allow-unplaced", code=3)
    project.run("apply", "p.plan", code=0 if allowed else 3)
    project.apply(*given, code=0 if allowed else 3)
    assert project.local.exists() is allowed
    if allowed:  # by now there is no rest
        assert "No changes. 1 task cannot be placed.\n" in project.run("plan", *given).out
    settled = project.run("plan", "--detailed-exitcode", *given, code=0 if allowed else 3)
    assert ("No changes. 1 task cannot be placed" in settled.out) is allowed
