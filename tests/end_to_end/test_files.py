"""A task's `files` by the installed command: ranks run from them; a change of them runs the task again."""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.test_saved_plans import seal
from tests.support.cli import fleet, task


@pytest.mark.slow
def test_ranks_run_from_the_project(project):
    """Each in a folder of its own; what is edited there is the project's no more, and no other rank's."""
    project.write("src/train.py", "print('first')\n")
    project.write("src/notes.log", "not sent")
    project.write(".gitignore", "*.log\n")
    sent = ["src:lib", "src/train.py:lib/train.py"]
    job = task("train", "ls; python3 train.py; rm train.py", nodes=2, exclusive=False, files=sent)
    project.declare(fleet(nodes=1, blocks=2), {**job, "working_dir": "lib"})
    project.apply("--wait")
    assert project.logs("train", "--rank", "1") == "train.py\nfirst\n"
    (work,) = project.node("gpu-0").glob("work/train-0.1.*")
    assert (work / "lib").is_dir()

    project.write("src/train.py", "print('second')\n")
    project.write("src/notes.log", "still not sent")
    plan = project.plan()
    assert plan["summary"]["replace"] == 2
    changed = [a for a in plan["actions"] if a["id"] == "create:rank/train-0"]
    assert [(a["reason"], a["because"]) for a in changed] == [("changed", ["files"])]
    assert "`files` changed: lib/train.py changed" in project.apply("--wait").out
    assert project.logs("train", "--rank", "1").endswith("second\n")
    assert project.ids() == []


@pytest.mark.slow
def test_an_ended_task_stays_ended_whatever_comes_into_its_folders(project):
    """The plan names what came; asked for, or with another declaration, it runs again."""
    project.write("data/a.csv", "1")
    job = task("train", "ls data", nodes=2, exclusive=False, files=["data"])
    project.declare(fleet(nodes=1, blocks=2), job)
    project.apply("--wait")
    project.write("data/b/x.csv", "2")
    plan = project.plan()
    (said,) = plan["diagnostics"]
    assert (plan["result"], said["code"], said["severity"]) == (
        "none",
        "files-changed-later",
        "warning",
    )
    assert said["summary"].endswith("although its files changed: data/b/x.csv added")
    assert said["hint"] == "to run it with them: `fleetform apply --replace task/train`"
    assert project.plan("--replace", "task/train")["summary"]["replace"] == 2
    project.apply("--wait", "--replace", "task/train")
    assert project.logs("train", "--rank", "1") == "a.csv\nb\n"
    assert project.plan()["diagnostics"] == []


def test_the_plan_names_the_files_for_which_a_running_task_starts_again(project):
    """All ranks of it in one entry, whichever of them the sums are recorded of."""
    project.write("data/a.csv", "1")
    job = task("train", "exec sleep 1000", nodes=2, exclusive=False, files=["data"])
    project.declare(fleet(nodes=1, blocks=2), job)
    project.apply()
    project.write("data/x.csv", "2")
    said = project.run("plan").out
    line = "rank/train-0, rank/train-1  # `files` changed: data/x.csv added (forces replacement)"
    assert line in said
    assert "sums" not in said
    assert "digest" not in said


@pytest.mark.slow
def test_a_saved_plan_is_about_the_files_as_they_were(project):
    """One that would send anything else is refused before anything is made. Other files do not matter."""
    project.write("train.py", "print('planned')\n")
    project.write("conf/a", "1")
    project.declare(fleet(), task("train", "python3 train.py; ls conf", files=["."]))
    project.run("plan", "--out", "p.plan")
    saved = json.loads((project.path / "p.plan").read_text())
    assert "print" not in json.dumps(saved["files"])
    (manifest,) = saved["files"].values()
    manifest["entries"][0]["source"] = "../../etc/passwd"
    project.write("forged.plan", seal(saved))
    assert "is not a list of files" in project.run("apply", "forged.plan", code=1).err
    project.write("train.py", "print('edited!')\n")
    project.write("conf/a", "2")
    (event,) = project.run("apply", "p.plan", "--json", code=1).events
    (found,) = event["diagnostics"]
    assert found["code"] == "plan-files-changed"
    assert found["summary"].startswith("`conf/a`, `train.py` changed since the plan was made")
    assert not project.node("gpu-0").exists()
    project.write("train.py", "print('planned')\n")
    project.write("conf/a", "1")
    project.write("conf/b", "new")
    project.run("apply", "p.plan", "--wait")
    assert project.logs("train") == "planned\na\n"
