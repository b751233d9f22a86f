"""`plan --out` and `apply FILE` by the installed command: exactly that plan, or the reason why not."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from declarative.apply.backends import Backends
from declarative.model.state import Address
from declarative.store import open_store
from tests.support.cli import fleet, hold, lines, release, task, until, volume

CANARY = "c4n4ry-v4lu3"


def save(project, *args: str, code: int = 0, env=None):
    """Save the plan of the project as `p.plan`."""
    project.run("plan", "--out", "p.plan", *args, code=code, env=env)
    return json.loads((project.path / "p.plan").read_text())


def apply(project, *args: str, code: int = 0, env=None):
    return project.run("apply", "p.plan", *args, code=code, env=env)


@pytest.mark.slow
def test_two_dollars_are_text_to_the_end(project):
    """Through the plan file, the state and `fmt`: the rank sees `${{`, and the next plan is empty."""
    text = "$${{ github.sha }} $${{ env.HOME }}"
    project.declare(fleet(), task("job", f"echo '{text}' \"$V\"", env={"V": text}))
    project.run("fmt")
    assert text in (project.path / "main.yaml").read_text()
    save(project)
    apply(project, "--wait")
    shown = text.replace("$$", "$")
    assert project.run("logs", "job").out.strip() == f"{shown} {shown}"
    assert project.plan()["result"] == "none"
    project.write("state.json", project.run("state", "pull").out)
    project.run("state", "push", "state.json")
    assert project.plan()["result"] == "none"


def refused(project, code: str, *args: str):
    """The only finding of an apply that did nothing."""
    before = project.run("state", "pull", code=None).out
    (event,) = project.run("apply", "p.plan", "--json", *args, code=1).events
    assert event["event"] == "error"
    (found,) = event["diagnostics"]
    assert found["code"] == code
    assert project.run("state", "pull", code=None).out == before
    return found


def seal(data) -> str:
    """A plan with the right checksum, as one might forge it."""
    rest = {k: v for k, v in data.items() if k != "checksum"}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return json.dumps({**data, "checksum": "sha256:" + hashlib.sha256(text.encode()).hexdigest()})


@pytest.mark.slow
def test_exactly_the_plan_that_was_saved(project):
    """The YAML may have changed or be gone by then, there is no prompt, and afterwards the plan
    is outdated.
    """
    project.declare(fleet(), volume(), task("job", "echo first", volumes=["data:/data"]))
    planned = project.run("plan").out
    done = project.run("plan", "--out", "p.plan")
    assert done.err == "saved: `fleetform apply p.plan` carries out exactly this plan\n"
    assert [line for line in planned.splitlines() if "Nodes:" not in line] == [
        line for line in done.out.splitlines() if "Nodes:" not in line
    ]
    assert not (project.path / ".fleetform").exists()
    project.write("main.yaml", "type: nonsense\n")
    applied = apply(project, "--wait")
    assert "Apply complete: 5 created." in applied.out
    assert applied.out.endswith("task/job: succeeded\n")
    assert "first" in project.logs("job")
    found = refused(project, "plan-outdated")
    assert "its serial was 0 and is" in found["summary"]


def test_show(project):
    """A saved plan reads as it did when it was made, as text and as JSON."""
    project.declare(fleet(), task("job", "true"))
    planned = project.run("plan", "--json", "--out", "p.plan").json
    shown = project.run("show", "p.plan")
    assert shown.out.startswith("Saved at 2")
    assert "Plan: 3 to create" in shown.out
    assert project.run("show", "p.plan", "--json").json == planned
    found = project.run("show", "main.yaml", "--json", code=1).json["diagnostics"]
    assert [d["code"] for d in found] == ["not-a-plan"]


@pytest.mark.slow
def test_no_secrets(project):
    """Names of variables, never their values: neither of a rank's environment nor of any other."""
    env = {"HF_TOKEN": CANARY, "AWS_SECRET_ACCESS_KEY": f"{CANARY}-2", "DEPLOY": f"{CANARY}-3"}
    out = project.path / "seen"
    project.declare(
        fleet(env={"DEPLOY": "${{ env.DEPLOY }}"}),
        task("job", f"echo $HF_TOKEN $DEPLOY > {out}", env=["HF_TOKEN"]),
    )
    data = save(project, env=env)
    text = (project.path / "p.plan").read_text()
    assert CANARY not in text
    assert "HF_TOKEN" in text
    starts = [a["after"]["env"] for a in data["plan"]["actions"] if a["address"] == "rank/job-0"]
    assert starts == [{"HF_TOKEN": "${{ env.HF_TOKEN }}"}]
    assert stat.S_IMODE((project.path / "p.plan").stat().st_mode) == 0o600
    missing = project.run("apply", "p.plan", code=1)
    assert "error[missing-env]" in missing.err
    apply(project, "--wait", env=env)
    assert lines(out) == [f"{CANARY} {CANARY}-3"]


# ------------------------------------------------------------------------------------------- stale


@pytest.fixture
def lived(project):
    """A task that runs on the first of three nodes, and a saved plan that starts a second task."""
    run = hold(project.path / "up")
    base = [fleet(nodes=3), volume(), task("old", run, resources={"cpu": 2})]
    project.declare(*base)
    project.apply()
    until(lambda: lines(project.path / "up"))
    project.declare(*base, task("new", "echo new", resources={"cpu": 2}))
    data = save(project)
    (place,) = {r["node"] for r in data["plan"]["reservations"] if r["status"] == "new"}
    (other,) = {"gpu-0", "gpu-1", "gpu-2"} - {place} - {"gpu-0"}
    assert project.busy() == {"gpu-0": 2, "gpu-1": 0, "gpu-2": 0}
    return project, place, other


def spoil(project, node: str) -> None:
    """Make a node not ready: what says what it is cannot be read."""
    (project.node(node) / "fleetform.json").write_text("{")


def test_the_state_changed_since(lived):
    project, _, _ = lived
    project.declare(fleet(nodes=3, tags={"a": "b"}), volume())
    project.apply()
    found = refused(project, "plan-outdated")
    assert "the state has changed since the plan was made: its serial was " in found["summary"]
    assert found["hint"] == "plan again: `fleetform plan --out FILE`"


def test_a_node_that_is_to_take_work_became_not_ready(lived):
    project, place, _ = lived
    spoil(project, place)
    found = refused(project, "plan-node-state")
    assert found["address"] == f"node/{place}"
    assert found["summary"].startswith(f"node/{place} was ready when the plan was made, and is ")


def test_a_node_that_the_plan_does_not_use_may_be_not_ready(lived):
    project, _, other = lived
    spoil(project, other)
    assert {n["name"]: n["state"] for n in project.status()["nodes"]}[other] != "ready"
    apply(project)


def test_a_node_vanished(lived):
    """Whether the plan uses it or not: the record will be another one."""
    project, _, other = lived
    shutil.rmtree(project.node(other))
    found = refused(project, "plan-gone")
    assert found["address"] == f"node/{other}"
    assert found["summary"] == f"node/{other} is gone since the plan was made"


def test_another_format(lived):
    project, _, _ = lived
    data = json.loads((project.path / "p.plan").read_text())
    project.write("p.plan", seal({**data, "format_version": 2, "made_by": "9.9"}))
    found = refused(project, "plan-format")
    assert "`p.plan` has format 2, made by fleetform 9.9; this is fleetform " in found["summary"]


def test_the_file_was_edited(lived):
    project, _, _ = lived
    text = (project.path / "p.plan").read_text()
    project.write("p.plan", text.replace("echo new", "echo bad"))
    found = refused(project, "plan-edited")
    assert found["summary"] == "`p.plan` is not as it was saved: its checksum does not match"


@pytest.mark.slow
def test_a_rank_that_ends_does_not_make_it_stale(lived):
    """Nor does another command that records that it has ended: observing is not changing."""
    project, _, _ = lived
    project.run("stop", "old")
    assert project.ranks("old")[0]["state"] == "stopped"
    apply(project, "--wait")
    assert "new" in project.logs("new")


@pytest.mark.slow
def test_a_rank_that_ends_by_itself_does_not_make_it_stale(project):
    """Even one whose node the plan uses: what it held is given back first, as with every apply."""
    go = project.path / "go"
    base = [fleet(nodes=1), task("old", release(go), resources={"cpu": 1})]
    project.declare(*base)
    project.apply()
    project.declare(*base, task("new", "echo new", resources={"cpu": 1}))
    save(project)
    go.touch()
    until(lambda: project.ranks("old")[0]["state"] == "succeeded")
    apply(project, "--wait")
    assert "new" in project.logs("new")
    project.no_changes()


def test_another_state(lived, tmp_path):
    project, _, _ = lived
    project.write("other/main.yaml", "type: fleet\nname: aa\nnodes: 1\n")
    project.run("-C", "other", "apply", "--auto-approve")
    found = refused(project, "plan-other-state", "--state", "sqlite:///other/.fleetform/state.db")
    assert "the plan was made for another state: that one has lineage " in found["summary"]
    empty = tmp_path / "empty"
    empty.mkdir()
    wrong = project.run("-C", str(empty), "apply", "p.plan", code=1)
    assert f"fleetform -C {project.path} apply FILE" in wrong.err
    assert list(empty.iterdir()) == []


def test_a_new_state_is_made_where_it_was_planned(project, tmp_path):
    """Before the first apply nothing tells two states apart but their place."""
    project.declare(fleet())
    save(project)
    empty = tmp_path / "empty"
    empty.mkdir()
    wrong = project.run("-C", str(empty), "apply", "p.plan", code=1)
    assert "error[plan-other-state]" in wrong.err
    assert list(empty.iterdir()) == []
    apply(project)


def test_from_another_directory(project, tmp_path):
    """FILE is where the command is run, the state where the plan was made."""
    state = f"sqlite:///{tmp_path}/shared.db"
    project.declare(fleet(), {"type": "project", "state": state})
    project.run("-C", ".", "plan", "--out", str(tmp_path / "x.plan"))
    project.run("-C", str(project.path), "apply", str(tmp_path / "x.plan"))
    assert (tmp_path / "shared.db").exists()
    assert not (project.path / ".fleetform" / "state.db").exists()


# ----------------------------------------------------------------------------------- what is refused


def test_unplaced_as_with_every_apply(project):
    project.declare(fleet(), task("big", "true", resources={"cpu": 64}, fleets=["gpu"]))
    done = project.run("plan", "--out", "p.plan", code=3)
    assert "saved: `fleetform apply --allow-unplaced p.plan` carries out exactly this plan\n" in done.err
    assert "--allow-unplaced" in apply(project, code=3).err
    assert project.run("state", "list").out == ""
    project.run("apply", "--allow-unplaced", "p.plan")
    assert project.run("state", "list").out == "node/gpu-0\n"


def test_a_plan_with_errors_is_not_saved(project):
    project.declare(fleet(prevent_destroy=True))
    project.apply()
    save(project)
    before = (project.path / "p.plan").read_bytes()
    project.declare(fleet("other"))
    done = project.run("plan", "--out", "p.plan", code=1)
    assert done.err.endswith("no plan was saved: it has errors\n")
    assert (project.path / "p.plan").read_bytes() == before
    project.run("plan", "--out", "q.plan", code=1)
    assert not (project.path / "q.plan").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("plan --out -", "a plan is saved to a file"),
        ("plan --out p.yaml", "a saved plan is not called `*.yaml`"),
        ("plan --out nowhere/p.plan", "`nowhere` is not a directory"),
        ("plan --out notes.txt", "`notes.txt` exists, and is not a plan of fleetform: it is left alone"),
        ("plan --out .", "`.` exists, and is not a plan of fleetform: it is left alone"),
        ("plan --out link", "`link` exists, and is not a plan of fleetform: it is left alone"),
        ("plan --out x.plan --offline", "a plan that was made offline cannot be applied"),
        ("apply nowhere.plan", "`nowhere.plan`: No such file or directory"),
        ("apply .", "`.`: Is a directory"),
        ("apply pipe", "`pipe` is not a plan that fleetform saved"),
        ("apply /dev/zero", "`/dev/zero` is not a plan that fleetform saved"),
        ("apply main.yaml", "`main.yaml` is not a plan that fleetform saved"),
        ("apply p.plan --var a=b", "`--var` has no effect on a saved plan"),
        ("apply p.plan --replace task/a --reuse", "`--replace`, `--reuse` has no effect on a saved plan"),
        ("show nowhere.plan", "`nowhere.plan`: No such file or directory"),
    ],
)
def test_mistakes(project, line, said):
    """Exit code 1 with a message on stderr, and nothing is made or changed."""
    project.declare(fleet())
    save(project)
    project.write("notes.txt", "mine")
    (project.path / "link").symlink_to("p.plan")
    os.mkfifo(project.path / "pipe")
    before = {p: p.lstat().st_mtime_ns for p in project.path.rglob("*")}
    done = project.run(*line.split(), code=1)
    assert said in done.err
    assert {p: p.lstat().st_mtime_ns for p in project.path.rglob("*")} == before


def test_an_older_plan_and_an_empty_file_are_overwritten(project):
    """`mktemp` makes an empty one. Nothing else is left beside it."""
    project.declare(fleet())
    project.write("p.plan", "")
    first = save(project)
    project.declare(fleet(nodes=2))
    second = save(project)
    assert len(second["plan"]["actions"]) == len(first["plan"]["actions"]) + 1
    assert sorted(p.name for p in project.path.iterdir()) == ["main.yaml", "p.plan"]


def hostile() -> dict[str, bytes]:
    head = b'{"kind":"fleetform plan",'
    return {
        "binary": head + bytes(range(256)) * 100,
        "deep": head + b'"x":' + b"[" * 1_000_000,
        "cut": head + b'"format_version":1',
        "nan": head + b'"x":NaN}',
        "number": head + b'"x":' + b"9" * 1_000_000 + b"}",
        "controls": head + b'"format_version":1,"made_by":"\\u001b[2J","checksum":"x"}',
        "version": head + b'"format_version":7,"made_by":"\\u001b[2J"}',
        "keys": head + b",".join(b'"k%d":0' % i for i in range(100_000)) + b"}",
    }


@pytest.mark.parametrize("name", hostile())
def test_hostile_files(project, name):
    """A clear error, no traceback, no control characters, and nothing done."""
    (project.path / "p.plan").write_bytes(hostile()[name])
    for command in (("apply", "p.plan"), ("show", "p.plan")):
        done = project.run(*command, code=1)
        assert done.err.startswith("error[")
        assert "\x1b" not in done.err
    assert sorted(p.name for p in project.path.iterdir()) == ["p.plan"]


def test_a_huge_file_is_not_read(project):
    path = Path(project.path / "p.plan")
    path.write_bytes(b'{"kind":"fleetform plan",')
    os.truncate(path, 300 << 20)
    assert "more than 256 MiB" in project.run("apply", "p.plan", code=1).err


def cut_short(project) -> None:
    """What a killed apply leaves: a volume, and an intent whose result is not recorded. The serial stays."""
    inputs = {"backend": "local", "region": "local", "size": "1GB", "prevent_destroy": False}
    address = Address("volume", "left")
    with (
        open_store("sqlite:///.fleetform/state.db", root=project.path) as store,
        store.lock("apply") as writer,
    ):
        intent = writer.begin("create", address, "local", inputs)
        backends = Backends({}, project.path, writer.ensure_lineage())
        backends.get("local").create(address, intent.token, inputs, {})


@pytest.mark.slow
def test_what_a_killed_apply_had_made_is_said(lived):
    """The plan does not know of it. One that is made then does, and is carried out: it is adopted first."""
    project, _, _ = lived
    cut_short(project)
    found = refused(project, "plan-recovered")
    assert found["address"] == "volume/left"
    assert found["summary"] == (
        "volume/left, of a command that was cut short, is found, and the plan does not know of it"
    )
    planned = save(project)
    assert "delete:volume/left" in project.ids()
    assert list(planned["facts"]["found"]) == ["volume/left"]
    apply(project)
    until(lambda: project.ranks("new")[0]["state"] == "succeeded")
    assert not project.data("left").exists()
    project.run("state", "check")
