"""The command line: exit codes to the letter, what goes to stdout and what to stderr, terminals and pipes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import click
import pytest

from tests.support.cli import COMMAND, clean_env, ended, fleet, hold, on_terminal, task, until, volume

ESCAPE = "\x1b"


@pytest.fixture
def small(project):
    """A fleet of one node, a volume, and a task that ends."""
    project.declare(fleet(), volume(), task("job", "echo done", volumes=["data:/data"]))
    return project


# ----------------------------------------------------------------------------------------- exit codes


def test_destroy_in_another_directory(project):
    """In the wrong directory, it says that things of another one remain and cost money."""
    done = project.run("destroy", "--auto-approve")
    assert done.out == "Nothing to destroy.\n"
    assert "`fleetform -C DIR destroy` names the project's directory" in done.err
    project.declare(fleet())
    assert project.run("destroy", "--auto-approve").err == ""


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("destroy --auto-approve", 0),
        ("destroy --orphans --auto-approve", 0),
        ("stop job", 1),
        ("apply --refresh-only --auto-approve", 0),
    ],
)
def test_what_only_ends_things_leaves_no_state_behind(project, small, new_state, command, code):
    """The folder, or the database, may be the wrong one."""
    before = sorted(project.path.rglob("*"))
    elsewhere = ("--state", new_state())
    env = {name: value for name, value in os.environ.items() if name.startswith("PG")}
    here = project.run(*command.split(), code=code)
    there = project.run(*command.split(), *elsewhere, code=code, env=env)
    assert (here.code, here.out.split("\n")[1:], here.err) == (
        there.code,
        there.out.split("\n")[1:],
        there.err,
    )
    assert sorted(project.path.rglob("*")) == before
    assert "no-state" in project.run("state", "check", *elsewhere, code=1, env=env).err


@pytest.mark.parametrize(
    "case",
    [
        ("plan --jsn", "no option `--jsn`", "did you mean `--json`?"),
        ("aply", "no command `aply`", "did you mean `apply`?"),
        ("xyzzy", "no command `xyzzy`"),
        ("ps", "no command `ps`", "write `fleetform status`"),
        ("taint task/job", "`task/NAME` runs a task again"),
        ("offer --gpu 1", "write `fleetform offers`"),
        ("apply -auto-approve", "no option `-auto-approve`", "write `--auto-approve`"),
        ("plan -out=next.plan", "no option `-out`", "write `--out`"),
        ("logs job -follow", "no option `-follow`", "write `--follow`"),
        ("apply -y", "no option `-y`", "write `--auto-approve`"),
        ("init -y", "no option `-y`"),
        ("apply --yes", "no option `--yes`", "write `--auto-approve`"),
        ("apply -f nowhere.yaml", "nowhere.yaml"),
        ("plan -target=task/job", "no option `-target`", "write `--target`"),
        ("plan -C .", "write it before the command: `fleetform -C DIR …`"),
        ("-C . plan --jsn", "no option `--jsn`", "did you mean `--json`?"),
        ("unlock", "no command `unlock`", "write `fleetform state unlock`"),
        ("describe task/job", "no command `describe`", "write `fleetform explain ADDRESS`"),
        ("launch", "no command `launch`", "write `fleetform apply`"),
        ("cancel job", "no command `cancel`", "write `fleetform stop TASK`"),
        ("replace node/gpu-0", "no command `replace`", "`fleetform apply --replace node/NAME`"),
        ("plan -y", "no option `-y`", "leave it out: `fleetform plan` asks nothing"),
        ("force-unlock abc", "no command `force-unlock`", "write `fleetform state unlock`"),
        (
            "rm task/job",
            "no command `rm`",
            "remove its document",
            "`fleetform state rm ADDRESS` only forgets",
        ),
        ("plan -lock=false", "no option `-lock`", "leave it out: one command writes at a time"),
        ("plan -parallelism=3", "no option `-parallelism`"),
        ("plan -detailed-exit", "no option `-detailed-exit`", "did you mean `--detailed-exitcode`?"),
        ("logs job -fy", "no option `-y`"),
        ("status -w", "no option `-w`", "`fleetform serve`"),
        ("apply -d", "no option `-d`", "`--wait` follows them"),
        ("status job", "unexpected extra argument", "`fleetform explain ADDRESS`"),
        ("completion", "missing argument `{bash|fish|zsh}`. Choose from: bash, fish, zsh\n"),
        (
            "plan next.plan",
            "unexpected extra argument",
            "`fleetform show FILE` shows a saved plan, `fleetform apply FILE`",
        ),
        ("apply --lokc-timeout 5m", "no option `--lokc-timeout`", "did you mean `--lock-timeout`?"),
        ("state ls", "no command `ls`", "write `fleetform state list`"),
        ("exec job -y -- sh -auto-approve", "no option `-y`"),
        ("apply --parallelism 0", "0 is not in the range 1<=x<=256"),
        ("apply --parallelism many", "`many` is not a valid integer"),
        ("apply --lock-timeout soon", "`soon` is not a duration; write seconds, or `30s`, `10m`"),
        ("logs", "missing argument `TASK[/RANK]`"),
        ("stop", "missing argument `TASK`"),
        ("stop job/0", "a rank cannot be stopped alone"),
        ("logs job/x", "`x` is not a rank"),
        ("plan extra", "unexpected extra argument"),
        ("plan --var port", "`--var port` has no value"),
        ("plan --var-file nowhere.yaml", "nowhere.yaml"),
        ("-C nowhere plan", "`-C` / `--chdir`: directory `nowhere` does not exist"),
        ("state", "Commands:"),
        ("state lst", "no command `lst`", "did you mean `list`?"),
        ("state list nodes", "no kind `nodes`"),
        ("state show node/gpu-9", "`node/gpu-9` is not recorded"),
        ("schema flet", "no document type `flet`"),
        ("logs job", "task/job has not run"),
        ("stop job", "task/job has not run"),
        ("plan --replace task/jop", "did you mean `task/job`?"),
        ("apply --replace job", "`job` is not a task of this project", "write `task/job`"),
        ("apply --replace rank/job-0", "write `task/job`: a task goes as a whole"),
        ("apply --replace fleet/gpu", "`fleet/gpu` is not replaced as a whole", "`node/NAME`"),
        ("plan --target job", "`job` names nothing in this project", "write `task/job`"),
        ("exec node/gpu-0 -- ls", "`node/gpu-0` is not a task", "`fleetform ssh gpu-0 -- COMMAND`"),
        ("plan --state mysql://host/db", "states cannot be kept in `mysql`"),
        ("plan --state sqlite:///x?mode=rw", "takes no options"),
    ],
)
def test_mistakes(small, case):
    """Exit code 1, a helpful message with a code on stderr, nothing on stdout."""
    line, *said = case
    done = small.run(*line.split(), code=1)
    assert [words for words in said if words not in done.err] == []
    assert line == "state" or re.match(r"error\[[a-z-]+\]: ", done.err)
    assert done.out == ""
    assert ESCAPE not in done.err


@pytest.mark.parametrize(
    "line", ["plan --jsn --json", "aply --json", "state list --json", "destroy x --json"]
)
def test_mistakes_as_json(project, line):
    """With `--json` a slip in the command line is JSON too, with the code `usage`."""
    done = project.run(*line.split(), code=1)
    (found,) = done.json["diagnostics"]
    assert (found["code"], done.err) == ("usage", "")
    assert found["hint"]


def test_exit_codes_of_plan(small):
    """0 and the plan; 2 only when asked for; 0 again when there is nothing to do; 1 for errors."""
    small.plan()
    assert small.plan("--detailed-exitcode", code=2)["result"] == "changes"
    small.apply("--wait")
    assert small.plan("--detailed-exitcode")["result"] == "none"
    small.declare(fleet(), volume(), task("job", "echo done", volums=["data:/data"]))
    done = small.run("plan", code=1)
    assert "did you mean `volumes`?" in done.err
    assert "main.yaml:" in done.err
    assert done.out == ""


def test_help():
    """`--help` and `--version` are results: they go to stdout."""
    for words in (["--help"], ["-h"], ["plan", "--help"], ["state", "--help"], ["state", "pull", "--help"]):
        done = ended(subprocess.Popen([COMMAND, *words], stdout=-1, stderr=-1, text=True, env=clean_env()))
        assert "Usage: fleetform" in done.out
        assert done.err == ""
    done = ended(subprocess.Popen([COMMAND, "--version"], stdout=-1, stderr=-1, text=True, env=clean_env()))
    assert re.fullmatch(r"fleetform \d+\.\d+\S*\n", done.out)


@pytest.mark.parametrize("group", ["state", "ci"])
def test_commands_of_a_group_are_said_in_whole_sentences(group):
    done = ended(subprocess.Popen([COMMAND, group, "-h"], stdout=-1, stderr=-1, text=True, env=clean_env()))
    commands = done.out.partition("Commands:")[2].partition("Examples:")[0]
    assert commands.count("\n  ") > 3
    assert "..." not in commands


def test_every_command_is_in_the_help():
    """And each says what it does."""
    from declarative.cli import COMMANDS

    done = ended(subprocess.Popen([COMMAND, "-h"], stdout=-1, stderr=-1, text=True, env=clean_env()))
    for name, text in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(text)}$", done.out, re.MULTILINE)


def test_every_command_that_a_message_or_page_names_is_there():
    from declarative.cli import COMMANDS
    from declarative.cli.ci import ci_command
    from declarative.cli.state import state_command

    root = Path(__file__).parents[2]
    below = {"state": state_command.commands, "ci": ci_command.commands}
    files = [*root.glob("docs/*.md"), root / "README.md"]
    files += [file for room in ("declarative", "providers") for file in (root / room).rglob("*.py")]
    for file in files:
        for first, second in re.findall(r"`fleetform ([a-z][\w-]*)(?: ([a-z][a-z-]*))?", file.read_text()):
            assert first in COMMANDS, file
            assert not second or first not in below or second in below[first], file


def test_every_option_that_a_message_names_is_there():
    from declarative.cli import cli

    def options(command: click.Command) -> set[str]:
        found = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
        if isinstance(command, click.Group):
            below = (command.get_command(ctx, name) for name in command.list_commands(ctx))
            found.update(*(options(each) for each in below if each))
        return found | {"--help"}

    ctx = click.Context(cli)
    known = options(cli)
    for file in (Path(__file__).parents[2] / "declarative").rglob("*.py"):
        found = re.findall(r"`(--[a-z][a-z-]+)[` =]", file.read_text())
        assert known.issuperset(found) or file.name == "errors.py", file


# ------------------------------------------------------------------------------------------- consent


def test_nobody_to_ask(small):
    """Without a terminal the plan is shown, nothing is done, and the way out is named."""
    done = small.run("apply", code=1)
    assert "Plan: 5 to create" in done.out
    asking = "this command cannot ask for approval"
    assert f"error[not-approved]: stdin is not a terminal, so {asking}\n" in done.err
    assert "add `--auto-approve`" in done.err
    assert {".fleetform", "main.yaml"} == {p.name for p in small.path.iterdir()}
    kept = {p.name for p in (small.path / ".fleetform").iterdir()}
    assert {name for name in kept if not name.startswith("state.db")} == {".place.json"}
    closed = subprocess.Popen(
        ["sh", "-c", f"{shlex.quote(COMMAND)} apply <&-"],
        cwd=small.path,
        env=clean_env(),
        stdout=-1,
        stderr=-1,
        text=True,
    )
    assert "error[not-approved]" in ended(closed, 1).err


@pytest.mark.slow
def test_terminal(small):
    """In colour, and only `yes` is consent; declined, nothing is done."""
    for answer in ("no\n", "y\n", "\n", b"\x04"):
        code, screen = on_terminal(small, "apply", answer=answer)
        assert (code, "apply was declined: nothing was done" in screen) == (1, True), screen
    assert ESCAPE + "[" in screen
    assert not small.local.exists()
    code, screen = on_terminal(small, "apply", answer=b"\x03")
    assert (code, "interrupted" in screen) == (130, True)
    code, screen = on_terminal(small, "apply", "--wait", answer="yes\n")
    assert code == 0
    assert "Apply complete: 5 created." in screen
    assert "task/job: succeeded" in screen
    code, screen = on_terminal(small, "destroy", answer="yes\n")
    assert "Destroy complete: " in screen
    assert code == 0


def test_a_long_plan_is_paged(small):
    """On a terminal the user's own pager shows what is longer than the screen; `--no-pager` does not."""
    pager = {"FLEETFORM_PAGER": "sed s/^/paged:/"}
    assert (
        "paged:  + node/gpu-0" in on_terminal(small, "plan", env={**pager, "NO_COLOR": "1", "LINES": "5"})[1]
    )
    assert "paged:" not in on_terminal(small, "plan", "--no-pager", env={**pager, "LINES": "5"})[1]
    assert "paged:" not in small.run("plan", env=pager).out


@pytest.mark.slow
@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_terminal_without_colours(small, env):
    """`NO_COLOR` and a terminal that can do nothing are heeded, also by the live display."""
    _, screen = on_terminal(small, "plan", env=env)
    assert ESCAPE not in screen
    assert "+ node/gpu-0" in screen
    _, screen = on_terminal(small, "apply", "--auto-approve", "--wait", env=env)
    assert not re.search(r"\x1b\[[0-9;]*m", screen), "colours"
    assert "rank/job-0: succeeded" in screen
    if "TERM" in env:
        assert ESCAPE not in screen


@pytest.mark.slow
def test_pipes_get_no_escapes(small):
    """Neither on stdout nor on stderr, whatever TERM says."""
    env = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "CLICOLOR_FORCE": ""}
    for args in (
        ["plan"],
        ["apply", "--auto-approve", "--wait"],
        ["status"],
        ["logs", "job"],
        ["plan", "-x"],
    ):
        done = small.run(*args, code=None, env=env)
        assert ESCAPE not in done.out + done.err


def piped(project, line, reader):
    """`fleetform LINE | READER`: the command's own exit code, and its stderr."""
    shell = f"{shlex.quote(COMMAND)} {line} 2>err; echo $? >code"
    subprocess.run(f"{{ {shell}; }} | {reader}", shell=True, cwd=project.path, env=clean_env(), check=True)
    return int((project.path / "code").read_text()), (project.path / "err").read_text()


@pytest.mark.slow
def test_reader_goes_away(small):
    """`fleetform plan | head -1` is no fault, and cuts no apply short."""
    assert piped(small, "plan", "head -1 >/dev/null") == (0, "")
    assert piped(small, "plan --json", "true") == (0, "")
    assert piped(small, "--help", "true") == (0, "")
    code, err = piped(small, "apply --auto-approve --wait --json", "true")
    assert (code, err) == (0, "")
    small.no_changes()
    assert piped(small, "logs job", "true") == (0, "")
    assert piped(small, "status", "true") == (0, "")
    small.declare(fleet(), volume(), task("job", "exit 3", volumes=["data:/data"]))
    assert piped(small, "apply --auto-approve --wait", "head -1 >/dev/null")[0] == 4


@pytest.mark.slow
def test_streams_that_take_not_everything(small):
    """A terminal of another encoding, and streams that are closed, are no reason to end with a traceback."""
    env = {"LC_ALL": "en_US.ISO-8859-1", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    small.declare(fleet(), volume(), task("job", "echo " + "x" * 300 + "…"))
    done = small.run("plan", env=env)
    assert "Plan: 4 to create" in done.out
    assert done.out.isascii()
    assert "creating" in small.apply("--wait", env=env).err
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        line = f"{shlex.quote(COMMAND)} plan {closed}"
        process = subprocess.run(
            line, shell=True, cwd=small.path, env=clean_env(), capture_output=True, check=False
        )
        assert (process.returncode, process.stderr) == (0, b"")


# ---------------------------------------------------------------------------------------- the project


@pytest.mark.slow
def test_init(project):
    """A project that plans at once; nothing that is there is overwritten; .fleetform/ is kept out of git."""
    project.write(".gitignore", "*.pyc")
    project.run("init")
    assert (project.path / ".gitignore").read_text() == "*.pyc\n.fleetform/\n"
    assert project.plan()["result"] == "changes"
    assert "Valid: 1 fleet, 2 volumes, 1 task." in project.run("validate").out
    project.write("task.yaml", "# mine\n")
    done = project.run("init", code=1)
    assert "error[not-empty]: there are YAML files already: fleet.yaml, task.yaml" in done.err
    assert (project.path / "task.yaml").read_text() == "# mine\n"
    empty = project.path / "empty"
    empty.mkdir()
    project.run("-C", "empty", "init")
    project.run("-C", "empty", "apply", "--auto-approve", "--wait")
    assert (empty / ".fleetform" / "state.db").exists()
    assert not (project.path / ".fleetform").exists()


def test_no_project(project):
    """In an empty directory, it says what to do."""
    done = project.run("plan", code=1)
    assert "error[no-documents]" in done.err
    assert "fleetform init" in done.err
    assert done.err == project.run("status", code=1).err == project.run("logs", "job", code=1).err
    assert project.run("status", "--json", code=1).json["diagnostics"][0]["code"] == "no-documents"
    assert not (project.path / ".fleetform").exists()


def test_a_state_without_documents(project, small, new_state):
    """It can be looked at, also where it is named or was removed."""
    small.apply("--wait")
    small.apply("--wait", "--replace", "task/job")  # makes a backup first
    (project.path / "main.yaml").unlink()
    assert "node/gpu-0" in project.run("status").out
    assert project.run("logs", "job").out == "done\n"
    named = ("--state", new_state())
    env = {name: value for name, value in os.environ.items() if name.startswith("PG")}
    assert "Nothing is recorded yet" in project.run("status", *named, env=env).out
    (project.path / ".fleetform" / "state.db").unlink()
    assert "there was one" in project.run("status").err


def test_variables(project):
    """`--var` before `--var-file` before `FLEETFORM_VAR_x` before the default."""
    project.declare({"type": "project", "variables": {"size": 1}}, fleet(nodes="${{ var.size }}"))
    project.write("two.yml.txt", "size: 2\n")

    def nodes(*args, **env):
        return project.run("plan", "--json", *args, env=env).json["summary"]["create"]

    assert nodes() == 1
    assert nodes(FLEETFORM_VAR_size="4") == 4
    assert nodes("--var-file", "two.yml.txt", FLEETFORM_VAR_size="4") == 2
    assert nodes("--var-file", "two.yml.txt", "--var", "size=3", FLEETFORM_VAR_size="4") == 3
    assert "error[" in project.run("plan", "--var", "siez=3", code=1).err


def test_broken_project(small):
    """What runs can still be looked at and stopped; what is to be destroyed has to be known."""
    up = small.path / "up"
    small.declare(fleet(), task("job", hold(up)))
    small.apply()
    until(up.exists)
    small.write("broken.yaml", "type: task\nnaem: x\n")
    done = small.run("status", "--json")
    assert done.json["tasks"][0]["state"] == "running"
    assert "unknown-field" in done.err
    assert small.run("destroy", "--auto-approve", code=1).out == ""
    goes_on = (
        "\n1 error\nThe project has errors: this command goes on without its documents, from the state.\n"
    )
    for line in ("status", "logs job", "events", "drain gpu-0", "undrain gpu-0"):
        assert small.run(*line.split()).err.endswith(goes_on), line
    assert "goes on" not in small.run("plan", code=1).err
    stopped = small.run("stop", "job")
    assert stopped.out == "task/job is stopped.\n"
    assert goes_on in stopped.err


def test_stop_of_a_task_that_has_ended(small):
    small.apply("--wait")
    assert "its only rank is 0" in small.run("logs", "job/3", code=1).err
    assert small.run("stop", "job").out == "task/job has succeeded.\n"
    assert "`fleetform exec job/0` is for a rank" in small.run("ssh", "task/job", code=1).err
    assert "rank/job-0 does not run: it has succeeded" in small.run("exec", "job", "--", "ls", code=1).err


def test_broken_project_with_a_state_elsewhere(small):
    """If the state's place is not known, it does not say that nothing is recorded."""
    small.declare({"type": "project", "state": "sqlite:///elsewhere.db"}, fleet())
    small.apply()
    small.write("broken.yaml", "type: task\nnaem: x\n")
    for line in ("status", "state list", "stop job", "logs job"):
        assert "unknown-field" in small.run(*line.split(), code=1).err
    assert "gpu-0" in small.run("status", "--state", "sqlite:///elsewhere.db").out


# --------------------------------------------------------------------------------------------- offline


def test_plan_makes_nothing(small):
    """Neither a state nor a folder."""
    small.run("plan")
    small.run("plan", "--offline")
    small.run("plan", "--json")
    small.run("status")
    small.run("validate")
    small.run("state", "list")
    assert "error[no-state]" in small.run("state", "check", code=1).err
    assert [p.name for p in small.path.iterdir()] == ["main.yaml"]


@pytest.mark.slow
def test_plan_offline(small):
    """It looks at the files and the recorded inventory alone, in the state that the project names."""
    small.apply("--wait")
    shutil.rmtree(small.node("gpu-0"))
    assert (small.plan("--offline")["result"], small.plan("--offline")["drift"]) == ("none", [])
    assert small.plan()["result"] == "changes"
    assert small.run("status", "--json", "--offline").json["nodes"][0]["state"] == "ready"

    small.declare(
        {"type": "project", "state": "sqlite:///elsewhere.db"},
        fleet(),
        volume(),
        task("job", "echo done", volumes=["data:/data"]),
    )
    shutil.copy(small.path / ".fleetform" / "state.db", small.path / "copy.db")
    (small.path / ".fleetform" / "state.db").unlink()
    assert None is small.plan()["lineage"]
    assert None is small.plan("--offline")["lineage"]
    url = "sqlite:///copy.db"
    assert small.plan("--offline", "--state", url)["result"] == "none"
    assert small.run("plan", "--offline", "--json", env={"FLEETFORM_STATE": url}).json["result"] == "none"


# ------------------------------------------------------------------------------------- state and schema


def test_state(small):
    """What is recorded, listed, shown and proved."""
    small.apply("--wait")
    everything = "volume/data\nnode/gpu-0\nrank/job-0\n"
    assert everything == small.run("state", "list").out
    assert small.run("state", "list", "node").out == "node/gpu-0\n"
    shown = small.run("state", "show", "node/gpu-0").out
    assert shown.startswith("node/gpu-0\n  backend: local\n")
    assert small.run("state", "show", "node/gpu-0", "--json").json["address"] == "node/gpu-0"
    assert "did you mean `node/gpu-0`?" in small.run("state", "show", "node/gpu0", code=1).err
    assert small.run("state", "check").out == "The state is sound.\n"
    assert small.run("state", "unlock").out == "Nobody holds the lock.\n"
    pulled = small.run("state", "pull").json
    assert {"format_version", "lineage", "serial", "records"} < set(pulled)
    assert small.plan()["lineage"] == pulled["lineage"]


@pytest.mark.slow
def test_state_check_finds_damage(small):
    """Exit code 1, and a sentence for each thing that is wrong."""
    import sqlite3

    small.apply("--wait")
    database = small.path / ".fleetform" / "state.db"
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.execute("DELETE FROM resources WHERE address = 'volume/data'")
    connection.close()
    assert "error[damaged]" in small.run("plan", code=1).err
    assert "what it holds is not what was last written" in small.run("state", "check", code=1).out
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE meta SET seal = NULL")
    connection.close()
    done = small.run("state", "check", code=1)
    assert done.out == "volume/data: orphan: made by this state, but not recorded\n"
    database.write_bytes(b"no database" * 100)
    for line in ("state check", "status", "plan", "apply --auto-approve"):
        done = small.run(*line.split(), code=1)
        assert "error[" in done.err
        assert done.out == ""


def test_schema(project):
    """Written, checked, printed."""
    assert "Wrote" in project.run("schema", "--write").out
    project.run("schema", "--check")
    file = project.path / "schemas" / "task.schema.json"
    assert file.read_text() == project.run("schema", "task").out
    file.write_text("{}")
    done = project.run("schema", "--check", code=1)
    assert "error[stale-schema]: task.schema.json in schemas/ differ" in done.err
    project.run("schema", "--write")
    project.run("schema", "--check")


def test_interrupted_while_it_waits_for_the_lock(small):
    """Ctrl-C ends at once what has not begun."""
    up = small.path / "up"
    small.declare(fleet(), task("job", "trap '' TERM", hold(up), stop_duration="10m"))
    small.apply()
    until(up.exists)
    small.declare(fleet())
    first = small.start("apply", "--auto-approve", start_new_session=True)
    until(lambda: "stopping" in first.stderr.readline())
    second = small.start("apply", "--auto-approve", "--lock-timeout", "1h")
    until(lambda: "waiting for" in second.stderr.readline())
    second.send_signal(signal.SIGINT)
    assert "interrupted" in ended(second, 130).err
    os.killpg(first.pid, signal.SIGKILL)
    ended(first, -signal.SIGKILL)
