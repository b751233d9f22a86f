"""`logs` of earlier attempts, and with times, by the installed command on the local backend."""

from __future__ import annotations

import re

import pytest

from tests.support.cli import Project, ended, fleet, lines, release, task, until

pytestmark = pytest.mark.slow
SAYS = "n=$(cat {0}/n 2>/dev/null || echo 0); echo $((n + 1)) > {0}/n; echo attempt $((n + 1))"


def failing(project: Project, good: int, **fields):
    """A task that prints its attempt, and fails before attempt `good`."""
    return task("job", SAYS.format(project.path), f"[ $n -ge {good - 1} ] || exit 3", **fields)


def test_the_output_of_a_failed_attempt_is_read_where_it_ran(project: Project):
    """The retry went to another node."""
    project.declare(fleet(nodes=3), failing(project, 3, retry=True))
    project.apply()
    for _ in range(2):
        until(lambda: project.ranks("job")[0]["state"] == "failed")
        project.apply()
    until(lambda: project.ranks("job")[0]["state"] == "succeeded")
    assert project.logs("job") == "attempt 3\n"
    assert project.logs("job", "--previous") == "attempt 2\n"
    assert project.logs("job/0", "--attempt", "1") == "attempt 1\n"
    assert project.logs("job", "--attempt", "3") == "attempt 3\n"
    assert {path.parts[-4] for path in project.local.glob("nodes/*/ranks/job-0.*/log")} == {
        "gpu-0",
        "gpu-1",
        "gpu-2",
    }
    unknown = project.run("logs", "job", "--attempt", "9", code=1).err
    assert unknown.startswith("error[unknown-attempt]: task/job has no attempt 9 that is remembered")
    assert "its attempts are 1, 2, 3" in unknown
    for earlier in (["--previous"], ["--attempt", "1"]):
        ended_attempt = project.run("logs", "job", *earlier, "-f", code=1).err
        assert ended_attempt.startswith(
            "error[usage]: an earlier attempt has ended: there is nothing to follow"
        )
    for more in ([], ["-f"]):
        both = project.run("logs", "job", "--attempt", "1", "--previous", *more, code=1).err
        assert both.startswith("error[usage]: `--attempt` and `--previous` both say which attempt")
        assert "write one of the two" in both
    assert project.logs("job", "--attempt", "3", "-f") == "attempt 3\n"
    project.run("destroy", "--auto-approve")
    gone = project.run("logs", "job", "--previous", code=1).err
    assert gone.startswith("error[gone]: the output of attempt 3 of rank/job-0 is gone: it was on node/gpu-")
    assert "which was deleted or made anew since" in gone


def test_of_a_gang_each_rank_has_its_own_attempts_and_old_output_goes(project: Project):
    """A host that starts a rank keeps the last two attempts of it."""
    one = {"resources": {"cpu": 1}, "placement": "any", "exclusive": False}
    project.declare(fleet(), task("job", "echo $FLEETFORM_NODE_RANK", nodes=2, **one))
    project.apply("--wait")
    assert (
        "task/job has no earlier attempt that is remembered"
        in project.run("logs", "job", "--previous", code=1).err
    )
    for _ in range(2):
        project.apply("--wait", "--replace", "task/job")
    assert project.logs("job", "--previous") == "0 | 0\n1 | 1\n"
    assert project.logs("job/1", "--previous") == "1\n"
    assert project.logs("job", "-n", "1", "--attempt", "2") == "0 | 0\n1 | 1\n"
    lost = project.run("logs", "job/0", "--attempt", "1", code=1).err
    assert "the output of rank/job-0 is gone: node/gpu-0 does not have it" in lost
    assert "only the output of its last two attempts is kept" in lost


def test_lines_that_come_while_somebody_follows_have_their_time(project: Project):
    go, up = project.path / "go", project.path / "up"
    project.declare(
        fleet(), task("job", "echo before", f"while [ ! -e {go} ]; do sleep 0.05; done", "echo after")
    )
    project.apply()
    until(lambda: project.logs("job") == "before\n")
    with up.open("wb") as out:
        follower = project.start("logs", "job", "-f", "--timestamps", stdout=out)
    until(lambda: lines(up))
    go.touch()
    ended(follower)
    before, after = lines(up)
    assert before == f"{'-':24} before"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z after", after)
    assert project.logs("job", "--timestamps") == f"{'-':24} before\n{'-':24} after\n"


def test_the_running_attempt_is_followed_by_its_number_and_no_later_one(project: Project):
    go, up = project.path / "go", project.path / "up"
    project.declare(fleet(), task("job", SAYS.format(project.path), release(go)))
    project.apply()
    with up.open("wb") as out:
        follower = project.start("logs", "job/0", "--attempt", "1", "-f", stdout=out)
    until(lambda: lines(up) == ["attempt 1"])
    project.apply("--replace", "task/job")
    assert ended(follower).code == 0
    assert "attempt 2" not in lines(up)
    until(lambda: project.logs("job") == "attempt 2\n")
    go.touch()
    assert project.logs("job", "--attempt", "2", "-f") == "attempt 2\n"
