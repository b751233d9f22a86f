"""`fleetform state rm|mv|push|history|check` run as commands: their output, refusals and effects."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import socket
import stat
from pathlib import Path

import pytest

from declarative.store import open_store
from tests.support.cli import Project, ended, fleet, hold, lines, on_terminal, processes, task, until, volume


def url(project: Project) -> str:
    return f"sqlite:///{project.path}/.fleetform/state.db"


@pytest.fixture
def family(project):
    """A fleet and two volumes."""
    project.declare(fleet(), volume(count=2))
    project.apply()
    return project


# ------------------------------------------------------------------------------------------ mv


@pytest.mark.slow
def test_a_renamed_family_of_volumes(family):
    """Nothing is made anew: after the same rename in the YAML the plan is empty, and the data exists."""
    (family.data("data-1") / "file").write_text("kept")
    before = family.run("state", "pull").out
    would = family.run("state", "mv", "volume/data", "volume/store", "--dry-run")
    moves = "  volume/data-0 -> volume/store-0\n  volume/data-1 -> volume/store-1\n"
    assert would.out == f"Would rename:\n{moves}"
    assert family.run("state", "pull").out == before
    assert family.run("state", "mv", "volume/data", "volume/store").out == f"Renamed:\n{moves}"
    job = task("job", "cat $FLEETFORM_VOLUME_STORE_1/file", nodes=1, volumes=["store-1:/data"])
    family.declare(fleet(), volume("store", count=2))
    family.no_changes()
    family.declare(fleet(), volume("store", count=2), job)
    family.apply("--wait")
    assert family.logs("job") == "kept\n"
    family.declare(fleet(), volume("store", count=2, size="2GB"), job)
    family.apply()
    family.no_changes()
    assert "made_as:" in family.run("state", "show", "volume/store-0").out
    family.declare(fleet(), volume("store", count=2, size="2GB"), volume("data", count=1))
    done = family.apply(code=4)
    assert "volume/data-0 cannot be made: volume/store-0 still has that name at its backend" in done.out
    family.run("destroy", "--auto-approve")
    assert [p for p in family.local.rglob("*") if p.is_file()] == []


@pytest.mark.slow
def test_a_task_and_its_fleet_are_renamed_while_it_runs(project):
    """It runs on as the same process, is followed, stopped and run again under its new name."""
    up, go = project.path / "up", project.path / "go"
    waits = hold(up).replace("while :", f"while [ ! -e {go} ]")
    declared = (volume(), task("job", waits, volumes=["data:/data"], fleets=["gpu"], instances=["gpu-0"]))
    project.declare(fleet(), *declared)
    project.apply()
    until(up.exists)
    running = processes(project.path)
    for source, target in (
        ("task/job", "task/work"),
        ("fleet/gpu", "fleet/train"),
        ("volume/data", "volume/set"),
    ):
        project.run("state", "mv", source, target)
    project.declare(
        fleet("train"),
        volume("set"),
        task("work", waits, volumes=["set:/data"], fleets=["train"], instances=["train-0"]),
    )
    project.no_changes()
    assert lines(up) == lines(up)[:1]
    supervisors = {pid for pid, name in running.items() if name != "sleep"}
    assert supervisors <= processes(project.path).keys()
    assert tuple(project.ranks("work")[0][k] for k in ("node", "state")) == ("train-0", "running")
    project.run("stop", "work")
    assert processes(project.path) == {}
    assert project.busy() == {"train-0": 0}
    go.touch()
    project.apply("--wait", "--replace", "task/work")
    assert (len(lines(up)), project.ranks("work")[0]["attempt"]) == (2, 2)
    project.no_changes()
    project.run("destroy", "--auto-approve")
    assert [p for p in project.local.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("mv rank/job-0 rank/work-0", "rank/job-0 cannot be renamed alone: its name is made of its task's"),
        ("mv volume/data-0 volume/data-1", "error[exists]: volume/data-1 is recorded already"),
        ("mv volume/date-0 volume/x", "did you mean `volume/data-0`?"),
        ("mv volume/data volume/Data", "error[bad-name]: volume/Data"),
        ("mv data store", "`data` is not an address"),
        ("mv volume/data", "missing argument `TO`"),
        ("rm", "missing argument `ADDRESS...`"),
        ("rm volume/x", "error[unknown-address]: `volume/x` is not recorded"),
        ("rm node/gpu-0", "error[not-approved]"),
        ("push nowhere.json", "nowhere.json"),
        ("push main.yaml", "error[bad-state]: main.yaml is not JSON"),
        ("push -", "what came on stdin is empty"),
        ("history gpu-0", "`gpu-0` is not an address"),
    ],
)
def test_mistakes(family, line, said):
    """Exit code 1, nothing on stdout, nothing changed."""
    before = family.run("state", "pull").out
    done = family.run("state", *line.split(), code=1)
    assert said in done.err
    assert done.out == ""
    assert family.run("state", "pull").out == before


def test_nothing_is_made_where_there_is_no_state(project):
    project.declare(fleet())
    for line in ("rm node/gpu-0 --auto-approve", "mv fleet/gpu fleet/x"):
        assert "error[no-state]" in project.run("state", *line.split(), code=1).err
    assert project.run("state", "history").out == "Nothing was done yet.\n"
    assert not (project.path / ".fleetform").exists()


# ------------------------------------------------------------------------------------------ rm


@pytest.mark.slow
def test_rm(project):
    """It names what needs it, forgets that with `--cascade`, and can be taken back."""
    up = project.path / "up"
    project.declare(fleet(), volume(), task("job", hold(up), volumes=["data:/data"]))
    project.apply()
    until(up.exists)
    before = project.run("state", "pull").json
    refused = project.run("state", "rm", "node/gpu-0", "--auto-approve", code=1)
    assert refused.err == (
        "error[still-needed]: node/gpu-0 is still needed by reservation/job-0, attachment/job-0.data, "
        "rank/job-0\n"
        "   = hint: `--cascade` forgets those too\n\n1 error\n"
    )
    named = "  node/gpu-0\n  reservation/job-0\n  attachment/job-0.data\n  rank/job-0\n"
    would = project.run("state", "rm", "--dry-run", "--cascade", "node/gpu-0")
    assert would.out == f"Would forget 4 records:\n{named}"
    assert project.run("state", "pull").json == before
    done = project.run("state", "rm", "--cascade", "node/gpu-0", "--auto-approve")
    assert done.out == f"Forgotten:\n{named}"
    assert project.run("state", "list").out == "volume/data\n"
    assert processes(project.path) != {}, "nothing real was touched"
    assert project.node("gpu-0").exists()
    orphan = "made by this state, but not recorded"
    assert project.run("state", "check", code=1).out == (
        f"attachment/job-0.data: orphan: {orphan}\nnode/gpu-0: orphan: {orphan}\n"
    )
    backup = f".fleetform/backups/state-{before['lineage'][:8]}-{before['serial']}.json"
    assert done.err == f"To have them back: `fleetform state push --force {backup}`\n"
    assert json.loads((project.path / backup).read_text()) == before
    assert stat.S_IMODE((project.path / backup).stat().st_mode) == 0o600
    assert "node/gpu-0 is there already" in project.apply(code=4).out
    project.run("state", "push", "--force", backup)
    project.no_changes()
    assert project.ranks("job")[0]["state"] == "running"


def test_rm_asks(family):
    """On a terminal, naming each and what becomes of it; anything but `yes` does nothing."""
    before = family.run("state", "list").out
    code, screen = on_terminal(family, "state", "rm", "volume/data", answer="y\n")
    assert (code, family.run("state", "list").out) == (1, before)
    assert "Forget 2 records?" in screen
    assert "  volume/data-0" in screen
    assert "What they stand for stays as it is." in screen
    assert "declined" in screen
    assert not (family.path / ".fleetform" / "backups").exists()
    code, screen = on_terminal(family, "state", "rm", "volume/data-1", answer="yes\n")
    assert (code, family.run("state", "list").out) == (0, "volume/data-0\nnode/gpu-0\n")


def test_rm_warns_of_what_runs(project):
    up = project.path / "up"
    project.declare(fleet(), task("job", hold(up)))
    project.apply()
    until(up.exists)
    _, screen = on_terminal(project, "state", "rm", "task/job", answer="no\n")
    assert "rank/job-0 may still run, and nothing watches or stops it any more" in screen


# ------------------------------------------------------------------------------------------ push


@pytest.mark.slow
def test_push(family):
    """Into an empty state as it is; over a newer one only by force, with a backup that is never lost."""
    pulled = family.run("state", "pull").out
    state = json.loads(pulled)
    family.write("state.json", pulled)
    assert (
        family.run("state", "push", "state.json").out == "Nothing to push: it is the state that is there.\n"
    )
    other = ("--state", "sqlite:///other.db")
    done = family.run("state", "push", "state.json", *other)
    assert done.out == f"Pushed: 3 records, serial {state['serial']}, lineage {state['lineage']}.\n"
    assert done.err == ""
    assert family.run("state", "pull", *other).out == pulled
    family.run("state", "mv", "volume/data", "volume/store")
    refused = family.run("state", "push", "state.json", code=1)
    assert f"serial {state['serial']}, the one that is there {state['serial'] + 1}" in refused.err
    newer = family.run("state", "pull").out
    assert not (family.path / ".fleetform" / "backups").exists()
    done = family.run("state", "push", "state.json", "--force")
    backup = f".fleetform/backups/state-{state['lineage'][:8]}-{state['serial'] + 1}.json"
    assert done.err == f"The state that was there is in {backup}\n"
    assert json.loads((family.path / backup).read_text()) == json.loads(newer)
    assert family.run("state", "pull").json["serial"] == state["serial"] + 2
    family.no_changes()
    family.run("state", "push", "state.json", "--force")
    assert json.loads((family.path / backup).read_text()) == json.loads(newer)


@pytest.mark.slow
def test_push_from_a_pipe_of_another_project(family):
    """A state of another lineage is not pushed over one that knows of things."""
    pulled = family.run("state", "pull").out
    elsewhere = Project(family.path / "elsewhere")
    elsewhere.path.mkdir()
    elsewhere.declare(fleet("cpu"))
    elsewhere.apply()
    file = elsewhere.write("in.json", pulled)
    for force in ((), ("--force",)):
        with file.open() as stdin:
            done = ended(elsewhere.start("state", "push", "-", *force, stdin=stdin), 1)
        assert "error[other-lineage]" in done.err
    elsewhere.run("destroy", "--auto-approve")
    with file.open() as stdin:
        done = ended(elsewhere.start("state", "push", "-", "--force", stdin=stdin), 0)
    assert elsewhere.run("state", "pull").out == pulled
    wrong = json.loads(pulled)
    wrong["records"] = wrong["records"][1:]
    wrong["serial"] += 1
    wrong["reserved_blocks"] = [{"node": "gpu-9", "block": 0, "reservation": "x-0"}]
    elsewhere.write("in.json", json.dumps(wrong))
    done = elsewhere.run("state", "push", "in.json", code=1)
    assert "error[contradiction]: the state to push contradicts itself: " in done.err
    assert "blocks of node/gpu-9 are reserved, which is not recorded" in done.err


@pytest.mark.slow
def test_push_between_sqlite_and_postgresql(family, postgres_url):
    """The state moves whole, and the project goes on in the other database."""
    pulled = family.run("state", "pull").out
    file = family.write("state.json", pulled)
    there = {"FLEETFORM_STATE": postgres_url(), **{k: v for k, v in os.environ.items() if k.startswith("PG")}}
    with file.open() as stdin:
        ended(family.start("state", "push", "-", stdin=stdin, env=there), 0)
    assert family.run("state", "pull", env=there).out == pulled
    family.run("state", "mv", "volume/data", "volume/store", env=there)
    family.declare(fleet(nodes=2), volume("store", count=2))
    assert "1 created" in family.apply(env=there).out
    family.write("state.json", family.run("state", "pull", env=there).out)
    family.run("state", "push", "state.json")
    family.no_changes()


# ------------------------------------------------------------------------------------------ the lock


@pytest.mark.parametrize(
    "line", ["rm volume/data --auto-approve", "mv volume/data volume/store", "push in.json"]
)
@pytest.mark.slow
def test_while_another_command_writes(family, line):
    """It is named, and nothing is changed; `--lock-timeout` waits for it."""
    newer = family.run("state", "pull").json
    newer["serial"] += 1
    family.write("in.json", json.dumps(newer))
    before = family.run("state", "pull").out
    with open_store(url(family)) as store:
        with store.lock("apply"):
            done = family.run("state", *line.split(), code=1)
            assert "error[locked]: the state is locked by `apply` on " in done.err
            assert family.run("state", "pull").out == before
            waiting = family.start("state", *line.split(), "--lock-timeout", "1m")
            until(lambda: "waiting for `apply`" in waiting.stderr.readline())
        ended(waiting, 0)
    assert family.run("state", "pull").out != before


def test_the_lock_names_what_is_done(family):
    """Somebody else sees who holds it, while rm asks."""
    seen = []

    def look():
        seen.append(family.apply(code=1).err)

    on_terminal(family, "state", "rm", "volume/data", answer="no\n", asked=look)
    assert "locked by `state rm` on " in seen[0]


# ----------------------------------------------------------------------------------- history and check


def test_history(family):
    """Newest first: when, what, to what, by whom, with what result."""
    family.run("state", "mv", "fleet/gpu", "fleet/big")
    out = family.run("state", "history").out
    when = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    text = re.sub(" +", " ", re.sub(when, "TIME", out))
    host, name = socket.gethostname(), pwd.getpwuid(os.getuid()).pw_name
    assert text.splitlines()[0] == f"TIME move node/big-0 (was node/gpu-0) state mv on {host} by {name} done"
    assert sorted(text.splitlines()[1:]) == [
        f"TIME create node/gpu-0 apply on {host} by {name} done",
        f"TIME create volume/data-0 apply on {host} by {name} done",
        f"TIME create volume/data-1 apply on {host} by {name} done",
    ]
    found = family.run("state", "history", "node/big-0", "--json").json
    assert list(found) == ["format_version", "operations"]
    assert [(o["op"], o["address"], o["was"]) for o in found["operations"]] == [
        ("move", "node/big-0", "node/gpu-0"),
        ("create", "node/gpu-0", None),
    ]
    assert list(found["operations"][0]) == [
        "id",
        "op",
        "address",
        "was",
        "backend",
        "generation",
        "begun_at",
        "ended_at",
        "result",
        "error",
        "reason",
        "host",
        "doing",
        "actor",
        "commit",
    ]
    assert (found["operations"][1]["host"], found["operations"][1]["doing"]) == (host, "apply")
    assert re.fullmatch(when, found["operations"][0]["begun_at"])
    assert len(family.run("state", "history", "--limit", "2").out.splitlines()) == 2
    assert family.run("state", "history", "node/x").out == "Nothing was done to it.\n"


def test_history_of_what_failed_and_what_is_open(project):
    """The error in the backend's words; an open call says what will happen to it."""
    project.declare(fleet(), volume())
    project.node("gpu-0").mkdir(parents=True)
    (project.node("gpu-0") / "file").touch()
    project.apply(code=4)
    with open_store(url(project)) as store, store.lock("test") as writer:
        writer.begin("delete", store.read().of("volume")[0].address, "local", {})
    done = project.run("state", "history", "node/gpu-0", "volume/data").out.splitlines()
    assert done[0].endswith("open: read back by the next apply")
    failed = next(line for line in done if "node/gpu-0" in line)
    assert re.search(r"failed: .*has content but no fleetform.json", failed)


def test_check_as_data(family):
    """Exit code 1 with findings, of the state itself or of what the backends report."""
    sound = {"format_version": 1, "sound": True, "compared": True, "findings": []}
    assert family.run("state", "check", "--json").json == sound
    family.run("state", "rm", "volume/data-1", "--auto-approve")
    found = family.run("state", "check", "--json", code=1).json
    detail = "made by this state, but not recorded"
    assert found == {
        "format_version": 1,
        "sound": False,
        "compared": True,
        "findings": [
            {"source": "backend", "address": "volume/data-1", "change": "orphan", "detail": detail},
        ],
    }
    with open_store(url(family)) as store, store.lock("test") as writer:
        writer.set_idle("gpu-0", 1.0)
        spoil = "UPDATE generations SET generation = 0 WHERE address = 'node/gpu-0'"
        writer._write(lambda connection: connection.execute(spoil))
    done = family.run("state", "check", "--json", code=1)
    assert (done.json["sound"], done.json["compared"]) == (False, False)
    detail = "node/gpu-0 is of generation 1, but only 0 are noted as used"
    assert done.json["findings"] == [{"source": "state", "address": None, "change": None, "detail": detail}]
    done = family.run("state", "check", code=1)
    assert done.out == f"{detail}\n"
    assert "the backends were not asked" in done.err


def test_killed_while_it_pushes(family):
    """By the system, at any moment: the old state or the new one, and no lock that stays."""
    newer = family.run("state", "pull").json
    old = dict(newer)
    newer["serial"] += 1
    family.write("in.json", json.dumps(newer))
    process = family.start("state", "push", "in.json")
    until(lambda: (family.path / ".fleetform" / "backups").exists() or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert family.run("state", "pull").json in (old, newer)
    family.run("state", "push", "in.json")
    assert family.run("state", "pull").json == newer
    family.run("state", "check")


def test_a_lost_state_comes_back_as_docs_state_says(project):
    """An empty one of the same lineage finds what was made as orphans, to be adopted; another finds none."""
    project.declare(volume(prevent_destroy=False))
    project.apply()
    lineage = json.loads(project.run("state", "pull").out)["lineage"]
    for file in (project.path / ".fleetform").glob("state.db*"):
        file.unlink()
    done = project.run("destroy", "--orphans", "--auto-approve")
    assert "There are no orphans to delete of this state. What another state made is not" in done.out
    page = (Path(__file__).parents[2] / "docs" / "state.md").read_text()
    (empty,) = re.findall(r"^echo '(\{\"format_version\".*?)' \|", page, flags=re.MULTILINE | re.DOTALL)
    project.write("empty.json", empty.replace("…", lineage))
    project.run("state", "push", "empty.json")
    assert "volume/data" in project.run("state", "adopt").out
    project.run("state", "adopt", "volume/data")
    assert project.run("plan", "--detailed-exitcode").out.splitlines()[2].startswith("No changes.")
