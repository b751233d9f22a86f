"""One project, several environments: each has its own state, and refuses those of the others."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from declarative.converge.actor import is_changed
from declarative.converge.run import Run
from declarative.converge.state_access import StateAccess
from declarative.model.diagnostic import InvalidError, Span
from declarative.model.state import State
from declarative.planner.plan import Op
from tests.render.test_render import act
from tests.support.cli import Project, fleet, on_terminal
from tests.support.model import project as declared
from tests.support.planned import plan_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "environments"
PROJECT = {
    "type": "project",
    "name": "${{ var.team }}-infra",
    "state": "sqlite:///states/${{ var.env }}.db",
    "include": ["${{ var.env }}/*.yaml"],
    "variables": {"team": "blue", "env": {"type": "string"}},
}


@pytest.fixture
def two(project: Project) -> Project:
    """Staging and production, each with a fleet of its own name."""
    project.declare(PROJECT)
    for env in ("staging", "prod"):
        project.declare(fleet(env, nodes=1), file=f"{env}/fleet.yaml")
    return project


def test_each_environment_has_its_own_state(two: Project) -> None:
    """What is applied to one leaves the other one alone."""
    two.apply("--var", "env=staging")
    assert two.ids("--var", "env=prod") == ["create:node/prod-0"]
    two.apply("--var", "env=prod")
    assert sorted(path.name for path in (two.path / "states").glob("*.db")) == ["prod.db", "staging.db"]
    for env in ("staging", "prod"):
        assert two.run("state", "list", "--var", f"env={env}").out.split() == [f"node/{env}-0"]
        assert two.ids("--var", f"env={env}") == []
    assert two.ids("--offline", "--var", "env=prod") == []


@pytest.mark.parametrize("command", ["status", "state rm node/x", "stop x", "apply"])
def test_without_its_variable_no_state_is_guessed(two: Project, command: str) -> None:
    """Not even the default one, where there is one."""
    two.apply("--state", "sqlite:///.fleetform/state.db", "--var", "env=staging")
    done = two.run(*command.split(), code=1)
    assert (done.out, "error[missing-variable]" in done.err) == ("", True)


def test_of_a_wrong_project_no_state_is_guessed(two: Project) -> None:
    """Its state is not in the default place, though there is one."""
    two.apply("--state", "sqlite:///.fleetform/state.db", "--var", "env=staging")
    two.write("wrong.yaml", "type: task\nnaem: x\n")
    done = two.run("state", "rm", "node/staging-0", "--auto-approve", "--var", "env=prod", code=1)
    assert "error[unknown-field]" in done.err


# ------------------------------------------------------------------------------------ files that are gone


@pytest.mark.parametrize("gone", ["file", "folder", "suffix"])
def test_an_include_without_a_file_deletes_nothing(two: Project, gone: str) -> None:
    """A fleet whose files were renamed is no fleet that was deleted."""
    two.apply("--var", "env=prod")
    file = two.path / "prod" / "fleet.yaml"
    if gone == "folder":
        file.parent.rename(two.path / "production")
    else:
        file.rename(file.with_suffix(".yml" if gone == "file" else ".yaml.disabled"))
    for command in (["plan"], ["plan", "--offline"], ["apply", "--auto-approve"]):
        done = two.run(*command, "--var", "env=prod", code=1)
        assert "error[nothing-included]: `prod/*.yaml` matches no file, and node/prod-0 would be" in done.err
        assert "--> main.yaml:6:" in done.err
        assert done.out == ""
    assert two.plan("--var", "env=prod", code=1)["result"] == "error"

    two.declare({key: value for key, value in PROJECT.items() if key != "include"})
    assert two.ids("--var", "env=prod") == ["delete:node/prod-0"]


def test_an_include_that_never_matched_is_a_warning(two: Project) -> None:
    two.declare({**PROJECT, "include": ["prod/*.yaml", "tasks/*.yaml"]})
    assert "warning[nothing-included]" in two.apply("--var", "env=prod").err
    two.declare(fleet("prod", nodes=2), file="prod/fleet.yaml")
    assert two.ids("--var", "env=prod") == ["create:node/prod-1"]
    assert two.run("destroy", "--auto-approve", "--var", "env=prod").code == 0


# -------------------------------------------------------------------------------------- a state elsewhere


def test_a_state_that_moved_makes_nothing_twice(project: Project) -> None:
    """The project names a new state while its old one holds things; they are moved, or it is meant."""
    project.declare(fleet(nodes=1))
    project.apply()
    project.declare({"type": "project", "state": "sqlite:///new.db"}, fleet(nodes=1))
    for command in (["plan"], ["plan", "--offline"], ["apply", "--auto-approve"], ["explain", "node/gpu-0"]):
        assert "error[state-moved]" in project.run(*command, code=1).err
    assert not (project.path / "new.db").exists()
    assert project.ids("--state", "sqlite:///other.db") == ["create:node/gpu-0"]

    pulled = project.run("state", "pull", "--state", "sqlite:///.fleetform/state.db").out
    project.write("old.json", pulled)
    project.run("state", "push", "old.json")
    project.no_changes()


# -------------------------------------------------------------------------------------------- offline


SERVER = {"type": "project", "state": "postgresql://127.0.0.1:1/x"}
"""Nothing answers there."""


@pytest.mark.parametrize("command", ["plan --offline", "status --offline", "explain node/gpu-0 --offline"])
def test_offline_a_server_is_not_taken_for_an_empty_state(project: Project, command: str) -> None:
    """What is there would be shown as new; the error says how to plan all the same."""
    project.declare(SERVER, fleet(nodes=1))
    done = project.run(*command.split(), code=1)
    assert ("error[offline-state]" in done.err, done.out) == (True, "")
    assert "state pull > state.json" in done.err
    assert "--assume-empty" in done.err


def test_offline_a_pulled_state_is_read(project: Project) -> None:
    project.declare(fleet(nodes=1))
    project.apply()
    project.write("state.json", project.run("state", "pull").out)
    project.declare(SERVER, fleet(nodes=2))
    given = ("--state", "state.json")
    assert project.ids("--offline", *given) == ["create:node/gpu-1"]
    assert project.ids("--offline", "--assume-empty") == ["create:node/gpu-0", "create:node/gpu-1"]
    assert "gpu-0" in project.run("status", "--offline", *given).out
    assert project.run("state", "list", *given).out == "node/gpu-0\n"
    assert project.run("state", "check", *given).out == "The state is sound.\n"
    assert project.run("state", "pull", *given).out == (project.path / "state.json").read_text()
    assert "error[read-only]" in project.apply(*given, code=1).err


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "SQLite format 3\0"])
def test_what_is_no_pulled_state_is_refused(project: Project, text: str) -> None:
    project.declare(SERVER, fleet(nodes=1))
    project.write("state.json", text)
    done = project.run("plan", "--offline", "--state", "state.json", code=1)
    assert "error[bad-state]" in done.err


def test_assuming_an_empty_state_is_for_offline_alone(project: Project) -> None:
    project.declare(fleet(nodes=1))
    assert "add `--offline`" in project.run("plan", "--assume-empty", code=1).err


def test_offline_no_state_outside_of_the_project_is_read(project: Project) -> None:
    """A stranger's YAML names another project's."""
    project.declare({"type": "project", "state": "sqlite:///../other/state.db"}, fleet(nodes=1))
    assert "error[outside-project]" in project.run("plan", "--offline", code=1).err


# ----------------------------------------------------------------------- a folder for each, in one repository

SHARED = [
    fleet("gpu", nodes="${{ var.nodes }}"),
    {"type": "task", "name": "train", "commands": ["true"], "nodes": "${{ var.nodes }}"},
]


def environment(name: str, nodes: int, **more: object) -> dict[str, object]:
    return {
        "type": "project",
        "name": f"shop-{name}",
        "include": ["../shared/*.yaml"],
        "variables": {"nodes": nodes},
        **more,
    }


@pytest.fixture
def repository(project: Project) -> Project:
    """The example's shape; the project's folder is the repository's."""
    (project.path / ".git").mkdir()
    project.declare(*SHARED, file="shared/main.yaml")
    project.declare(environment("staging", 1), file="staging/project.yaml")
    project.declare(environment("prod", 2), file="prod/project.yaml")
    return project


def test_folders_share_files_of_their_repository(repository: Project) -> None:
    """Each has its own state, variables and tasks."""
    for env, count in (("staging", 1), ("prod", 2)):
        repository.run("-C", env, "plan", "--offline")
        repository.run("-C", env, "apply", "--auto-approve", "--wait")
        found = repository.run("-C", env, "state", "list", "node").out.split()
        assert found == [f"node/gpu-{i}" for i in range(count)]
        assert repository.run("-C", env, "plan", "--json").json["actions"] == []


def test_the_example_runs(project: Project) -> None:
    """As it is in the repository."""
    shutil.copytree(EXAMPLE, project.path, dirs_exist_ok=True)
    (project.path / ".git").mkdir()
    for env, count in (("staging", 1), ("prod", 2)):
        project.run("-C", env, "apply", "--auto-approve", "--wait")
        assert f"rank 0 of 1 in {env}" in project.run("-C", env, "logs", "train").out
        assert len(project.run("-C", env, "state", "list", "node").out.split()) == count
    done = project.run("-C", "prod", "destroy", "--auto-approve")
    assert "Kept" in done.out


@pytest.mark.parametrize(
    "pattern", ["../../*.yaml", "../shared/../../*.yaml", "/etc/*.yaml", "../.git/*.yaml"]
)
def test_an_include_stays_in_the_repository(repository: Project, pattern: str) -> None:
    """The tests' folder above has a file that must not be read."""
    secret = repository.path.parent / "secret.yaml"
    secret.write_text("type: fleet\nname: secret\nnodes: 1\n")
    repository.write(".git/config.yaml", "type: fleet\nname: secret\nnodes: 1\n")
    repository.declare(environment("staging", 1, include=[pattern]), file="staging/project.yaml")
    done = repository.run("-C", "staging", "plan", "--offline", code=1)
    assert "outside-project" in done.err
    assert "secret" not in done.out
    secret.unlink()


def test_a_shared_link_does_not_lead_out(repository: Project) -> None:
    elsewhere = repository.path.parent / "elsewhere.yaml"
    elsewhere.write_text("type: fleet\nname: secret\nnodes: 1\n")
    (repository.path / "shared" / "link.yaml").symlink_to(elsewhere)
    done = repository.run("-C", "staging", "plan", "--offline", code=1)
    assert "error[outside-project]" in done.err
    elsewhere.unlink()


def test_without_a_repository_nothing_above_is_read(repository: Project) -> None:
    (repository.path / ".git").rmdir()
    done = repository.run("-C", "staging", "plan", "--offline", code=1)
    assert "`../shared/*.yaml` leads outside of the project" in done.err


@pytest.mark.parametrize("command", ["plan", "apply --auto-approve", "destroy --auto-approve", "stop train"])
def test_no_environment_acts_on_the_state_of_another(repository: Project, command: str) -> None:
    """Whichever way it came to it."""
    repository.run("-C", "prod", "apply", "--auto-approve", "--wait")
    prod = f"sqlite:///{repository.path}/prod/.fleetform/state.db"
    for env, options in (({"FLEETFORM_STATE": prod}, []), ({}, ["--state", prod])):
        done = repository.run("-C", "staging", *command.split(), *options, env=env, code=1)
        assert "error[other-project]: the state is that of project `shop-prod`" in done.err
        assert "this is project `shop-staging`" in done.err
    repository.declare(
        {k: v for k, v in environment("staging", 1).items() if k != "name"}, file="staging/project.yaml"
    )
    done = repository.run("-C", "staging", *command.split(), "--state", prod, code=1)
    assert "this project has no `name`" in done.err
    assert repository.run("-C", "prod", "plan", "--json").json["actions"] == []


@pytest.mark.parametrize("command", ["status", "status --offline", "events", "state list"])
def test_who_looks_at_the_state_of_another_is_warned(repository: Project, command: str) -> None:
    """Its nodes look as if they were gone."""
    repository.run("-C", "prod", "apply", "--auto-approve", "--wait")
    prod = ("--state", f"sqlite:///{repository.path}/prod/.fleetform/state.db")
    done = repository.run("-C", "staging", *command.split(), *prod)
    assert done.err.startswith(
        "warning: the state is that of project `shop-prod`, and this is project `shop-staging`;"
    )
    assert "warning" not in repository.run("-C", "prod", *command.split()).err
    (repository.path / "empty").mkdir()
    assert "warning" not in repository.run("-C", "empty", *command.split(), *prod).err


def test_a_renamed_project_takes_its_state_along(repository: Project) -> None:
    repository.run("-C", "prod", "apply", "--auto-approve", "--wait")
    repository.declare(environment("production", 2), file="prod/project.yaml")
    repository.run("-C", "prod", "plan", code=1)
    done = repository.run("-C", "prod", "state", "adopt-project")
    assert done.out == "It is the state of project shop-production, and was that of shop-prod.\n"
    assert repository.run("-C", "prod", "plan", "--json").json["actions"] == []
    repository.run("-C", "prod", "plan", "--out", str(repository.path / "x.plan"))
    repository.run("-C", "prod", "apply", str(repository.path / "x.plan"))


def test_a_state_from_before_gets_its_name(project: Project) -> None:
    """With the next apply, also where nothing is to be done."""
    project.declare(fleet())
    project.apply()
    project.declare({"type": "project", "name": "shop"}, fleet())
    project.apply()
    project.declare({"type": "project", "name": "other"}, fleet())
    assert "project `shop`" in project.run("plan", code=1).err


@pytest.mark.parametrize(
    ("name", "owner", "documents", "foreign"),
    [
        ("shop", None, True, False),
        ("shop", "shop", True, False),
        ("shop", "other", True, True),
        ("shop", "other", False, True),
        (None, None, True, False),
        (None, "other", True, True),
        (None, "other", False, False),
    ],
)
def test_a_state_is_that_of_the_project_that_named_it(tmp_path, capsys, name, owner, documents, foreign):
    """A state without a name is anybody's, and a folder without documents has no name to compare."""
    desired = declared(**({"name": name} if name else {}))
    if documents:
        desired = replace(desired, places={"fleet/a": Span("a", 1, 1, 1, 1)})
    access = StateAccess(tmp_path, None)
    store: Any = SimpleNamespace(project=lambda: owner)
    here = f"this is project `{name}`" if name else "this project has no `name`"
    summary = f"the state is that of project `{owner}`, and {here}"
    for refuse in (False, True):
        try:
            access._check_project(desired, store, refuse=refuse)
            said = capsys.readouterr().err
            assert (said != "") == foreign
            assert not foreign or (said.startswith(f"warning: {summary}; "), refuse) == (True, False)
        except InvalidError as failed:
            (found,) = failed.diagnostics
            assert (foreign, refuse, found.code, found.summary) == (True, True, "other-project", summary)
    access._check_project(None, store, refuse=True)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("sqlite:///.fleetform/state.db", None),
        ("sqlite:///a/b.db", None),
        ("sqlite:///../state.db", "outside-project"),
        ("sqlite:////etc/state.db", "outside-project"),
        ("postgresql://db/x", "offline-state"),
        ("postgres://db/x", "offline-state"),
        ("ftp://x", "bad-url"),
    ],
)
def test_offline_only_a_state_in_the_project_is_read_unless_the_user_named_it(tmp_path, url, code):
    found = None
    try:
        StateAccess(tmp_path, None)._check_within(url)
    except InvalidError as failed:
        found = failed.diagnostics[0].code
    assert found == code
    StateAccess(tmp_path, url)._check_within(url)


@pytest.mark.parametrize("doing", ["apply", "destroy"])
@pytest.mark.parametrize("name", ["shop", None])
@pytest.mark.parametrize("owner", ["other", None])
@pytest.mark.parametrize("actions", [True, False])
@pytest.mark.parametrize("lineage", ["3f1c", None])
def test_an_apply_names_a_state_that_has_no_name(doing, name, owner, actions, lineage):
    """A plan that changes nothing makes no state."""
    run, claims = Run.__new__(Run), list[str]()
    run.doing, run.desired = doing, declared(**({"name": name} if name else {}))
    writer: Any = SimpleNamespace(project=lambda: owner, claim=claims.append)
    plan = plan_of(actions=(act(Op.CREATE, "node/a-0", after={}),) if actions else ())
    run._claim(plan, writer, State(lineage=lineage))
    due = doing == "apply" and name and not owner and (actions or lineage)
    assert claims == (["shop"] if due else [])


# ---------------------------------------------------------------------------- which one it is, in each output


def committed(path: Path, commit: str) -> Path:
    """A folder of a repository at this commit."""
    (path / ".git").mkdir(parents=True)
    (path / ".git/HEAD").write_text(f"{commit}\n")
    (path / "prod").mkdir()
    return path / "prod"


def test_every_plan_question_and_summary_names_its_environment(tmp_path: Path) -> None:
    prod = Project(committed(tmp_path, "1a2b3c4d5e" * 4))
    prod.declare({"type": "project", "name": "lab-prod", "state": "sqlite:///x.db"}, fleet(nodes=1))
    line = "Project lab-prod, state sqlite:///x.db, commit 1a2b3c4d5e1a"
    assert prod.run("plan").out.split("\n")[0] == line
    data = prod.run("plan", "--json", "--report", "plan.md", "--report", "plan.html").json
    assert list(data)[1:5] == ["project", "environment", "state", "commit"]
    assert [data[key] for key in list(data)[1:5]] == ["lab-prod", "prod", "sqlite:///x.db", "1a2b3c4d5e" * 4]
    report = (prod.path / "plan.md").read_text().split("\n")
    assert (report[1], report[3]) == ("### fleetform, `lab-prod`: 1 to create", f"`{line}`")
    assert f"<p>{line}</p>" in (prod.path / "plan.html").read_text()
    prod.run("plan", "--out", "next.plan")
    assert line in prod.run("show", "next.plan").out
    _, screen = on_terminal(prod, "apply", answer="yes\n")
    assert "Apply this to lab-prod? Only `yes`" in screen
    assert f"Apply complete: 1 created. {line}." in screen.replace("\x1b[0m", "").replace("\r\n", "\n")
    _, screen = on_terminal(prod, "destroy", answer="no\n")
    assert "Destroy this in lab-prod? Only `yes`" in screen


def test_a_project_without_a_name_is_its_folder(project: Project) -> None:
    project.declare(fleet(nodes=1))
    data = project.plan()
    assert (data["project"], data["environment"], data["commit"]) == ("project", None, None)


def test_what_was_approved_elsewhere_is_approved_here(tmp_path: Path) -> None:
    """In another folder, at another commit, with other lines: a merge changes all of these."""
    documents = ({"type": "project", "name": "lab"}, fleet(nodes=1))
    approved = Project(committed(tmp_path / "request", "a" * 40))
    approved.declare(*documents)
    merged = Project(committed(tmp_path / "merge", "b" * 40))
    merged.declare(*reversed(documents), file="other.yaml")
    report = str(approved.path / "plan.md")
    approved.run("plan", "--report", report)
    assert approved.plan()["digest"] == merged.plan()["digest"]
    assert "Apply complete" in merged.run("apply", "--expect", report).out


@pytest.mark.parametrize("form", ["text", "json", "markdown", "html"])
def test_a_states_secrets_are_in_no_plan(project: Project, form: str) -> None:
    """Not even in the report of what is refused for them."""
    project.declare(fleet(nodes=1))
    url = "postgresql://me:hunter2@127.0.0.1:1/lab?password=hunter3"
    done = project.run("plan", "--state", url, "--format", form, code=1)
    assert "hunter" not in done.out + done.err
    assert form == "text" or "postgresql://127.0.0.1:1/lab" in done.out


# ------------------------------------------------------------------------------- whether files are changed


def git(where: Path, *words: str) -> None:
    names = ("-c", "user.name=octo", "-c", "user.email=octo@example.com", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *names, *words], cwd=where, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two projects, committed; the second commit is of the other one."""
    top = tmp_path / "repository"
    for name in ("lab", "prod"):
        (top / name / "fleets").mkdir(parents=True)
        (top / name / "main.yaml").write_text("{type: project, name: lab}\n")
        (top / name / "fleets/gpu.yaml").write_text("{type: fleet, name: gpu, nodes: 1}\n")
    git(top, "init", "-q")
    git(top, "add", ".")
    git(top, "commit", "-qm", "one")
    (top / "lab/fleets/gpu.yaml").write_text("{type: fleet, name: gpu, nodes: 2}\n")
    git(top, "commit", "-qam", "two")
    return top


def same_time(top: Path) -> None:
    """Another text of the same size, written at the time at which git wrote its index."""
    file = top / "prod/fleets/gpu.yaml"
    before = file.stat().st_mtime_ns
    file.write_text(file.read_text().replace("1", "7"))
    for path in (file, top / ".git/index"):
        os.utime(path, ns=(before, before))


def edited(top: Path) -> None:
    (top / "prod/fleets/gpu.yaml").write_text("{type: fleet, name: gpu, nodes: 9}\n")


def staged(top: Path) -> None:
    edited(top)
    git(top, "add", "prod")


def staged_and_new(top: Path) -> None:
    (top / "prod/fleets/more.yaml").write_text("{type: fleet, name: more, nodes: 9}\n")
    git(top, "add", "prod")


def deleted(top: Path) -> None:
    (top / "prod/fleets/gpu.yaml").unlink()


def staged_and_deleted(top: Path) -> None:
    git(top, "rm", "-q", "prod/fleets/gpu.yaml")


CHANGES = [edited, same_time, deleted, staged, staged_and_new, staged_and_deleted]


def committed_alone(top: Path) -> None:
    edited(top)
    git(top, "commit", "-qm", "three", "prod/fleets/gpu.yaml")


def branched(top: Path) -> None:
    git(top, "checkout", "-qb", "side", "HEAD~1")
    (top / "prod/main.yaml").write_text("{type: project, name: side}\n")
    git(top, "commit", "-qam", "three")


def merged(top: Path) -> None:
    branched(top)
    git(top, "merge", "-q", "--no-edit", "main")


def rebased(top: Path) -> None:
    branched(top)
    git(top, "rebase", "-q", "main")


def touched(top: Path) -> None:
    os.utime(top / "prod/main.yaml")


def other(top: Path) -> None:
    (top / "lab/main.yaml").write_text("{type: project, name: another}\n")
    git(top, "add", "lab")


def packed(top: Path) -> None:
    git(top, "checkout", "-q", "HEAD~1")
    git(top, "gc", "-q")


def undone(top: Path) -> None:
    staged(top)
    git(top, "reset", "-q", "--hard")


def described(top: Path) -> None:
    (top / "prod/README.md").write_text("x")


SAME = [committed_alone, merged, rebased, touched, other, packed, undone, described]


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_document_is_not_of_the_commit(checkout: Path, what: Callable[[Path], None]):
    """Also in a clone; the other project of the repository is as it was committed."""
    git(checkout, "clone", "-q", ".", "../clone")
    clone = checkout.parent / "clone"
    assert not is_changed(clone / "prod")
    what(clone)
    assert is_changed(clone / "prod")
    assert not is_changed(clone / "lab")


def test_each_file_that_is_read_counts(checkout: Path):
    """New documents, and those that `include` brings from elsewhere; also through a link."""
    prod, shared = checkout / "prod", checkout / "shared.yaml"
    shared.write_text("type: fleet\nname: rest\nnodes: 0..1\n")
    (prod / "link.yaml").symlink_to("../shared.yaml")
    read = ["main.yaml", "fleets/gpu.yaml", "../shared.yaml", "link.yaml"]
    assert [is_changed(prod, [name]) for name in read] == [False, False, True, True]
    git(checkout, "add", "shared.yaml", "prod/link.yaml")
    git(checkout, "commit", "-qm", "three")
    assert not is_changed(prod, [*read, "/elsewhere/vars.yaml"])
    shared.write_text("type: fleet\nname: rest\nnodes: 0..2\n")
    assert [is_changed(prod, [name]) for name in read] == [False, False, True, True]


@pytest.mark.parametrize("how", SAME)
def test_what_is_as_committed_is_not_changed(checkout: Path, how: Callable[[Path], None]):
    assert not is_changed(checkout / "prod")
    how(checkout)
    assert not is_changed(checkout / "prod")


def test_the_first_line_says_that_files_are_changed(checkout: Path):
    """And nothing is run to find that out: not even git, which runs what a repository configures."""
    prod = Project(checkout / "prod")
    git(checkout, "config", "core.fsmonitor", "touch ran")
    assert "+ changes" not in prod.run("plan", "--offline", env={"PATH": ""}).out
    assert prod.plan()["changed"] is False
    (checkout / "prod/new.yaml").write_text("{type: fleet, name: new, nodes: 0..1}\n")
    (line,) = [
        text for text in prod.run("plan", "--offline", env={"PATH": ""}).out.splitlines() if "commit" in text
    ]
    assert line.endswith(" + changes")
    assert prod.plan()["changed"] is True
    assert not list(checkout.rglob("ran"))


def test_an_index_of_another_form_says_nothing(checkout: Path):
    edited(checkout)
    index = checkout / ".git/index"
    whole = index.read_bytes()
    for text in (b"", whole[:40], b"DIRC\0\0\0\4" + whole[8:], b"x" * 100):
        index.write_bytes(text)
        assert not is_changed(checkout / "prod")
