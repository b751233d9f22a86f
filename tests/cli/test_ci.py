"""`fleetform ci`, and the jobs that `action.yml` runs, against a stand-in of GitHub's and GitLab's APIs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from declarative.planner.approval import read_approval
from tests.support.cli import COMMAND, clean_env, fleet, task, volume
from tests.support.forge import forge

ROOT = Path(__file__).parents[2]
PLAN = "<!-- fleetform plan -->\n"


@pytest.fixture
def hub():
    with forge() as found:
        yield found


@pytest.fixture
def declared(project):
    project.declare(fleet(resources={"cpu": 1}), volume(prevent_destroy=False))
    return project


def github(hub, project, token="job", **more):
    """The variables of a job of a pull request."""
    event = project.path / ".event.json"
    if not event.exists():
        event.write_text(json.dumps({"pull_request": {"number": 5}}))
    return {
        "GITHUB_REPOSITORY": "octo/infra",
        "GITHUB_API_URL": hub.url,
        "GITHUB_TOKEN": token,
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_WORKSPACE": str(project.path.parent),
        "GITHUB_OUTPUT": str(project.path / ".output"),
        "GITHUB_STEP_SUMMARY": str(project.path / ".summary"),
        **more,
    }


def job(project, env, command, *args, name="", code=0):
    """A job as `action.yml` runs it."""
    path = f"{Path(COMMAND).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [ROOT / "tools/ci-job", command, ".", name, *args],
        cwd=project.path,
        env={**clean_env(**env), "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, done.stderr
    return done


def bodies(hub):
    return [comment["body"] for comment in hub.comments]


def test_a_pull_request_has_one_comment_and_merging_applies_it(hub, declared):
    env = github(hub, declared)
    job(declared, env, "plan")
    [first] = bodies(hub)
    assert first.startswith(f"{PLAN}### fleetform, `project`: 2 to create\n")
    declared.declare(fleet(resources={"cpu": 1}), volume(prevent_destroy=False), volume("more"))
    job(declared, env, "plan")
    [second] = bodies(hub)
    assert "### fleetform, `project`: 3 to create" in second
    output = (declared.path / ".output").read_text()
    assert read_approval(second).digest in output
    assert (declared.path / ".summary").read_text() == first + second

    (declared.path / ".event.json").write_text("{}")  # a push
    hub.merged["abc"] = 5
    merged = github(hub, declared, GITHUB_SHA="abc")
    assert "Apply complete: 3 created." in job(declared, merged, "apply").stdout
    assert "No changes" in job(declared, merged, "apply").stdout  # run again


def test_a_refused_plan_has_no_digest_to_approve(hub, declared):
    """Neither in its report nor among the outputs of the step."""
    declared.apply()
    declared.declare(fleet(nodes=3, resources={"cpu": 1}), {"type": "project", "limits": {"nodes": 2}})
    job(declared, github(hub, declared), "plan", code=1)
    output = (declared.path / ".output").read_text()
    assert "result<<" in output
    assert "digest<<" not in output
    assert "sha256:" not in output + bodies(hub)[0]


class Team:
    """A repository whose pull requests are planned and merged. Apply jobs run, fail or are dropped."""

    def __init__(self, hub, project):
        self.hub, self.project, self.documents, self.number = hub, project, [fleet(resources={"cpu": 1})], 0
        self.git("init", "-q", "-b", "main")

    def git(self, *words):
        names = ("-c", "user.name=octo", "-c", "user.email=octo@example.com")
        command = ["git", *names, *words]
        return subprocess.run(
            command, cwd=self.project.path, env=clean_env(), capture_output=True, text=True, check=True
        ).stdout.strip()

    def merge(self, *documents):
        """A pull request with one more thing, planned and merged; its commit."""
        self.number += 1
        self.documents += documents
        self.project.declare(*self.documents)
        env = github(self.hub, self.project)
        (self.project.path / ".event.json").write_text(json.dumps({"pull_request": {"number": self.number}}))
        job(self.project, env, "plan")
        self.git("add", "main.yaml")
        self.git("commit", "-q", "-m", "Change the fleet")
        commit = self.git("rev-parse", "HEAD")
        self.hub.merged[commit] = self.number
        return commit

    def apply(self, commit, code=0):
        """The job of a merge."""
        self.git("checkout", "-q", commit)
        (self.project.path / ".event.json").write_text("{}")
        done = job(self.project, github(self.hub, self.project, GITHUB_SHA=commit), "apply", code=code)
        self.git("checkout", "-q", "main")
        return done


@pytest.mark.slow
def test_a_dropped_run_is_carried_out_by_the_next_one(hub, project):
    """A CI system keeps one waiting job: that of a third merge drops that of the second."""
    team = Team(hub, project)
    team.apply(team.merge(volume("one")))
    team.merge(volume("two"))  # its job is dropped
    third = team.merge(volume("three"))
    done = team.apply(third)
    assert "what may be left of earlier ones is carried out too: 1 (" in done.stderr
    assert "Apply complete: 2 created." in done.stdout
    project.no_changes()


@pytest.mark.slow
def test_a_half_done_run_is_finished_by_the_next_one_and_an_old_one_is_refused(hub, project):
    team = Team(hub, project)
    first = team.merge(volume("one"))
    blocked = project.path / ".fleetform/local/volumes/one"
    blocked.parent.mkdir(parents=True)
    blocked.touch()
    team.apply(first, code=4)
    blocked.unlink()
    second = team.merge(volume("two"))
    assert "Apply complete: 2 created." in team.apply(second).stdout
    refused = team.apply(first, code=1).stderr
    assert "error[not-approved]: a later commit than this job's is applied already" in refused
    project.no_changes()


def test_a_task_without_a_place_holds_up_no_job_if_the_project_says_so(hub, declared):
    big = task("big", "true", resources={"cpu": "64.."})
    rest = {"type": "project", "allow_unplaced": True}
    env = github(hub, declared)
    declared.declare(fleet(resources={"cpu": 1}), big)
    job(declared, env, "plan", code=3)
    declared.declare(fleet(resources={"cpu": 1}), big, rest)
    job(declared, env, "plan")
    (comment,) = bodies(hub)
    assert "### fleetform, `project`: 1 to create, 1 task cannot be placed\n" in comment
    assert "Apply complete: 1 created." in job(declared, env, "apply").stdout
    job(declared, env, "drift")


def test_what_changed_since_is_refused_by_name(hub, declared):
    job(declared, github(hub, declared), "plan")
    declared.declare(fleet(resources={"cpu": 1}), volume("other"))
    refused = job(declared, github(hub, declared), "apply", code=1)
    assert "not approved: create volume/other" in refused.stderr
    assert "approved, and not done now: create volume/data" in refused.stderr
    assert declared.run("state", "list").out == ""


def test_comments_of_others_are_neither_changed_nor_believed(hub, declared):
    for n in range(150):
        hub.comment(f"{PLAN}approve {n}", "mallory")
    hub.comment(f"{PLAN}other", "dependabot[bot]")
    env = github(hub, declared)
    refused = job(declared, env, "apply", code=1)
    assert "has no plan in its comments" in refused.stderr
    job(declared, env, "plan")
    job(declared, env, "plan")
    assert len(hub.comments) == 152
    assert all(body.startswith(f"{PLAN}approve") for body in bodies(hub)[:150])
    person = github(hub, declared, token="person")
    assert "has no plan in its comments" in job(declared, person, "apply", code=1).stderr


def test_a_name_has_a_comment_for_itself(hub, declared):
    env = github(hub, declared)
    job(declared, env, "plan", name="staging")
    job(declared, env, "plan", name="prod")
    job(declared, env, "plan", name="prod")
    assert [body.split("\n")[1] for body in bodies(hub)] == [
        "### fleetform, staging, `project`: 2 to create",
        "### fleetform, prod, `project`: 2 to create",
    ]
    declared.run("plan", "--report", "plan.md")
    refused = declared.run("ci", "comment", "plan.md", "--name", "a --> b", env=env, code=1)
    assert "is no name" in refused.err


def test_a_forks_pull_request_plans_offline_and_goes_on_without_a_comment(hub, declared):
    found = job(declared, github(hub, declared, token="fork"), "plan", "--offline", "--assume-empty")
    assert "not commented" in found.stderr
    assert "2 to create" in (declared.path / ".summary").read_text()
    assert hub.comments == []
    assert not (declared.path / ".fleetform").exists()


def test_findings_are_annotations_at_their_lines(hub, declared):
    (declared.path / "bad.yaml").write_text("type: fleet\nname: xx\nnodes: 'a,b:c%'\n")
    found = job(declared, github(hub, declared), "plan", code=1)
    [line] = [line for line in found.stdout.splitlines() if line.startswith("::")]
    folder = declared.path.name
    assert line.startswith(f"::error title=fleetform%3A bad-range,file={folder}/bad.yaml,line=3,col=")
    assert "%25" in line
    assert "### fleetform, `project`: the plan has errors" in bodies(hub)[0]


def test_a_finding_cannot_be_a_command(hub, declared):
    declared.write("evil.yaml", 'type: fleet\nname: xx\nnodes: "x\\n::add-mask::y\\r::stop-commands::z"\n')
    found = job(declared, github(hub, declared), "plan", code=1)
    lines = [line for line in found.stdout.splitlines() if line.lstrip().startswith("::")]
    assert len(lines) == 1
    assert lines[0].startswith("::error ")


def test_drift_keeps_one_issue(hub, declared):
    declared.apply()
    env = github(hub, declared)
    job(declared, env, "drift")
    assert hub.issues == []
    for _ in range(2):
        declared.declare(fleet(resources={"cpu": 1}), volume(prevent_destroy=False), volume("more"))
        job(declared, env, "drift", code=2)
    [issue] = hub.issues
    assert issue["state"] == "open"
    assert "1 to create" in issue["body"]
    declared.declare(fleet(resources={"cpu": 1}), volume(prevent_destroy=False))
    job(declared, env, "drift")
    assert [issue["state"] for issue in hub.issues] == ["closed"]


def test_gitlab(hub, declared):
    declared.run("plan", "--report", "plan.md")
    env = {
        "CI_API_V4_URL": hub.url,
        "CI_PROJECT_ID": "3",
        "CI_MERGE_REQUEST_IID": "5",
        "GITLAB_TOKEN": "person",
    }
    declared.run("ci", "comment", "plan.md", env=env)
    declared.run("ci", "comment", "plan.md", env=env)
    assert len(hub.comments) == 1
    declared.run("ci", "approved", "--out", "approved.md", env=env)
    assert (declared.path / "approved.md").read_text() == (declared.path / "plan.md").read_text()
    assert (
        "forge-denied"
        in declared.run("ci", "approved", "--out", "x.md", env={**env, "GITLAB_TOKEN": ""}, code=1).err
    )


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        ({"GITHUB_TOKEN": "wrong"}, 1, "forge-denied"),
        ({"GITHUB_TOKEN": ""}, 1, "there is no `GITHUB_TOKEN`"),
        ({"GITHUB_API_URL": "http://example.com"}, 1, "is not https"),
        ({"GITHUB_API_URL": "http://127.0.0.1:1"}, 1, "error[forge]"),
        ({"GITHUB_REPOSITORY": ""}, 1, "error[no-forge]"),
        ({"GITHUB_EVENT_PATH": ""}, 1, "no merged pull request brought this commit"),
    ],
)
def test_what_can_go_wrong(hub, declared, more, code, told):
    env = {**github(hub, declared), **more}
    found = declared.run("ci", "approved", "--out", "x.md", env=env, code=code)
    assert told in found.err


def test_a_broken_forge_is_told(hub, declared):
    declared.run("plan", "--report", "plan.md")
    hub.broken = True
    found = declared.run("ci", "comment", "plan.md", env=github(hub, declared), code=1)
    assert "500 broken" in found.err
    assert "error[forge]" in found.err
    declared.write("notes.md", "# notes\n")
    found = declared.run("ci", "comment", "notes.md", env=github(hub, declared), code=1)
    assert "error[not-a-report]" in found.err


def test_the_action_puts_no_input_into_a_script():
    action = YAML(typ="safe").load((ROOT / "action.yml").read_text())
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"]
    hooks = YAML(typ="safe").load((ROOT / ".pre-commit-hooks.yaml").read_text())
    for hook in hooks:
        command = hook["entry"].split()[1]
        assert subprocess.run([COMMAND, command, "--help"], capture_output=True, check=False).returncode == 0


def test_an_apply_keeps_no_state_in_a_jobs_folder(hub, declared):
    job(declared, github(hub, declared), "plan")
    env = github(hub, declared, GITHUB_ACTIONS="true", FLEETFORM_STATE="")
    refused = job(declared, env, "apply", code=1)
    assert "error[runner-state]" in refused.stderr
    assert not (declared.path / ".fleetform/state.db").exists()
    named = job(declared, env, "apply", "--state", "sqlite:///.fleetform/state.db")
    assert "Apply complete: 2 created." in named.stdout


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("github-actions", "action.yml"),
        ("github-workflows", "examples/ci/github.yml"),
        ("gitlab-ci", "examples/ci/gitlab.yml"),
    ],
)
def test_what_is_shipped_for_forges_has_their_form(schema, file):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
