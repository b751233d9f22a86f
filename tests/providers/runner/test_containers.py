"""Ranks with an `image`: containers of a real podman, and the message without a runtime."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from declarative.model.status import RankState, RankStatus
from declarative.provider import Launch
from providers import containers, runner
from providers.containers import Container, Mount
from providers.rank_scripts import beside, prepared
from providers.ranks import Ranks
from providers.runner import AttemptState, Runner
from providers.transport import LocalTransport
from tests.support.cli import ended, every_text, fleet, task, until, volume
from tests.support.podman import IMAGE, SHELLLESS, Podman, impediment, root_filesystem

# -------------------------------------------------------------------------------------------- on a host


class Node:
    """A folder as a node, with the commands of `path` before those of the machine."""

    def __init__(self, folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.runner = Runner(LocalTransport(), str(folder / "ranks"))
        self.ranks = Ranks(self.runner)
        monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")

    def start(self, attempt: str, *commands: str, volumes: dict[str, str] | None = None, **more: Any) -> None:
        plain: dict[str, Any] = {
            "attempt": attempt,
            "commands": commands,
            "env": {},
            "cpus": (),
            "gpus": (),
            "working_dir": None,
            "volumes": {},
            "max_seconds": None,
            "stop_seconds": 5,
            "image": IMAGE,
        }
        usable = tuple(sorted(os.sched_getaffinity(0)))
        self.ranks.start(prepared(str(self.folder), usable, Launch(**{**plain, **more}), volumes or {}))

    def poll(self, attempt: str) -> RankStatus:
        found = self.ranks.poll([attempt])[attempt]
        assert found
        return found

    def ended(self, attempt: str) -> RankStatus:
        until(lambda: self.poll(attempt).state.ended, self.log(attempt))
        return self.poll(attempt)

    def log(self, attempt: str) -> str:
        return self.ranks.read_log(attempt, 0, 1 << 20).decode()

    def logged(self, attempt: str, text: str) -> None:
        until(lambda: text in self.log(attempt))

    def file(self, attempt: str, name: str) -> Path:
        return self.folder / "ranks" / attempt / name

    def kill(self, attempt: str, *, supervisor: bool) -> None:
        """Kill what the host has of a running rank, container aside, and see it gone."""
        task = int(self.file(attempt, "pid").read_text().split()[0])
        watcher = int(self.file(attempt, "started").read_text().split()[4])
        mark = f"FLEETFORM_RUN={self.folder}/ranks/{attempt}".encode()
        clients = [
            int(p.name)
            for p in Path("/proc").glob("[0-9]*")
            if mark in _environment(p).split(b"\0") and int(p.name) != task
        ]
        for pid in (*([watcher] if supervisor else []), task, *clients):
            os.kill(pid, signal.SIGKILL)
        if supervisor:
            until(lambda: not any(_lives(pid) for pid in (watcher, task, *clients)))


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


@pytest.fixture(scope="module")
def shared() -> Iterator[Podman]:
    if reason := impediment():
        pytest.skip(reason)
    # pytest's own folders are kept for a while; and podman takes no runroot of more than 50 characters
    podman = Podman(Path(tempfile.mkdtemp(prefix="pod-")))
    try:
        podman.prepare()
    except AssertionError as error:
        podman.clear()
        pytest.skip(f"podman does not work here: {error}")
    yield podman
    podman.clear()


@pytest.fixture
def podman(shared) -> Iterator[Podman]:
    """Every test leaves nothing: that is a rule of its own."""
    yield shared
    assert shared.names() == []


@pytest.fixture
def node(podman, tmp_path, monkeypatch) -> Node:
    return Node(tmp_path / "node", podman.bin, monkeypatch)


@pytest.mark.slow
def test_a_rank_in_a_container(node, podman, tmp_path):
    """Its folder, volumes, host file, variables and CPUs; no secret where others could read it."""
    secret, data, cpu = "hunter2 'x'\n second", tmp_path / "a:b", max(os.sched_getaffinity(0))
    data.mkdir()
    node.start(
        "train-0.1",
        "pwd; cat; cat $FLEETFORM_MPI_HOSTFILE; echo $FLEETFORM_VOLUME_DATA; echo kept > /data/file",
        "grep Cpus_allowed_list /proc/self/status; echo [$PATH][$FLEETFORM_SCRIPT]; echo made > here",
        "printf '%s\\n' \"$SECRET\"",
        "echo up; while [ ! -e /data/go ]; do sleep 0.1; done; exit 7",
        env={"SECRET": secret, "FLEETFORM_VOLUME_DATA": "/data"},
        cpus=(cpu,),
        volumes={"/data": str(data)},
        working_dir="sub",
        hostfile="10.0.0.1 slots=1\n",
    )
    node.logged("train-0.1", "up\n")
    [name] = podman.names()
    assert node.file("train-0.1", "container").read_text() == f"podman {name}\n"
    assert name.startswith("fleetform-")
    assert name.endswith("-train-0.1")
    commands = b"".join(_read(p / "cmdline") for p in Path("/proc").glob("[0-9]*"))
    assert name.encode() in commands
    assert b"hunter2" not in commands
    assert "hunter2" not in podman("inspect", name)
    (data / "go").touch()
    ended = node.ended("train-0.1")
    assert (ended.state, ended.exit_code, ended.cause) == (RankState.FAILED, 7, "exit code 7")
    assert ended.mounted == ("/data",)
    folder = node.folder / "work" / "train-0.1" / "sub"
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert node.log("train-0.1").split("\n") == [
        *(str(folder), "10.0.0.1 slots=1", "/data", f"Cpus_allowed_list:\t{cpu}", f"[{path}][]"),
        *(*secret.split("\n"), "up", ""),
    ]
    assert (folder / "here").read_text() == "made\n"
    assert (data / "file").read_text() == "kept\n"


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
def test_term_reaches_all_in_the_container_and_leaves_time(node):
    """Not its first process alone, which is no program of the user's."""
    child = "sh -c \"trap 'sleep 0.5; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done\""
    node.start("train-0.1", child, "echo after")
    node.logged("train-0.1", "up\n")
    stopped = node.ranks.stop("train-0.1", 60)
    assert stopped.state is RankState.STOPPED
    assert "saved\n" in node.log("train-0.1")
    assert "after" not in node.log("train-0.1")


@pytest.mark.slow
def test_what_is_deaf_is_killed_after_the_grace(node):
    """Its limit, too, holds without anyone who watches."""
    node.start(
        "train-0.1", "trap '' TERM; echo up; while :; do sleep 0.1; done", max_seconds=3, stop_seconds=0
    )
    ended = node.ended("train-0.1")
    assert (ended.state, ended.cause) == (RankState.FAILED, "max_duration reached")


@pytest.mark.slow
def test_a_container_whose_supervisor_and_client_were_killed(node, podman):
    """It differs from one that is gone, gets its TERM, and ends with the stop."""
    node.start("train-0.1", "trap 'echo x > saved; exit' TERM; echo up; while :; do sleep 0.1; done")
    node.logged("train-0.1", "up\n")
    node.kill("train-0.1", supervisor=True)
    assert len(podman.names()) == 1
    assert node.poll("train-0.1").cause == "its supervisor died: how it ends will not be known"
    stopped = node.ranks.stop("train-0.1", 60)
    assert stopped.state is RankState.LOST
    assert (node.folder / "work" / "train-0.1" / "saved").exists()


@pytest.mark.slow
def test_a_container_whose_client_was_killed_ends(node):
    """The supervisor sees to it before it says that the rank has ended."""
    node.start("train-0.1", "echo up; sleep 1000")
    node.logged("train-0.1", "up\n")
    node.kill("train-0.1", supervisor=False)
    ended = node.ended("train-0.1")
    assert (ended.state, ended.exit_code) == (RankState.FAILED, 137)


@pytest.mark.slow
def test_what_is_left_after_a_reboot_is_removed(node, podman, monkeypatch):
    """By the look that finds out."""
    boot = node.folder.parent / "boot"
    boot.write_text("one\n")
    monkeypatch.setenv("FLEETFORM_BOOT_ID_FILE", str(boot))
    node.start("train-0.1", "echo up; sleep 1000")
    node.logged("train-0.1", "up\n")
    node.kill("train-0.1", supervisor=True)
    assert len(podman.names()) == 1
    boot.write_text("two\n")
    assert node.runner.poll(["train-0.1"])["train-0.1"].state is AttemptState.REBOOTED
    assert podman.names() == []


@pytest.mark.slow
def test_a_container_that_needs_too_much_memory(node):
    """It is killed. Not every podman can tell why, so that this is left open; see the next one."""
    held = Container(image=IMAGE, name="fleetform-test-memory", memory_mib=64)
    text = containers.script(held, [], [], "x=$(head -c 300000000 /dev/zero | tr '\\0' a); exit 9")
    node.runner.start(runner.Launch(attempt_id="m-0.1", script=text))
    ended = node.ended("m-0.1")
    assert (ended.state, ended.exit_code) == (RankState.FAILED, 137)
    assert "out of memory (limit 64 MiB)" in node.log("m-0.1")


@pytest.mark.slow
def test_images_that_do_not_work(node):
    """One that is not there, and one in which there is nothing to run a command with."""
    node.start("a-0.1", "true", image="localhost:1/missing:1")
    node.start("b-0.1", "true", image=SHELLLESS)
    missing, empty = node.ended("a-0.1"), node.ended("b-0.1")
    assert (missing.exit_code, missing.cause) == (125, "its image could not be pulled; the log says why")
    assert "the image localhost:1/missing:1 could not be pulled by podman" in node.log("a-0.1")
    assert (empty.exit_code, empty.cause) == (125, "its container did not come up; the log says why")
    assert "in which there has to be a shell" in node.log("b-0.1")


@pytest.mark.slow
def test_a_task_with_an_image(podman, project):
    """From its declaration to its logs, with a volume at the declared path."""
    env = {"PATH": f"{podman.bin}:{os.environ['PATH']}"}
    project.declare(
        fleet(nodes=2),
        volume(count=2),
        task(
            "job",
            'echo "$FLEETFORM_NODE_RANK of $FLEETFORM_NODES_NUM, $(nproc)" > "$FLEETFORM_VOLUME_DATA/said"',
            "echo $FLEETFORM_VOLUME_DATA",
            nodes=2,
            image=IMAGE,
            volumes=["data-${{ node_rank }}:/data"],
        ),
    )
    project.apply("--wait", env=env)
    assert project.logs("job").count("/data\n") == 2
    cpus = min(2, len(os.sched_getaffinity(0)))
    for rank in range(2):
        assert (project.data(f"data-{rank}") / "said").read_text() == f"{rank} of 2, {cpus}\n"
    project.no_changes()


@pytest.mark.slow
def test_a_command_beside_a_rank_in_a_container(podman, project):
    """It runs in there, with the variables of the rank, and ends with it; nothing tells them to others."""
    env = {"PATH": f"{podman.bin}:{os.environ['PATH']}", "TOKEN_OF_MINE": "hunter2"}
    own = ["GREETING=it's\nme", "p=x", "TOKEN=${{ env.TOKEN_OF_MINE }}"]
    limits = "grep Cpus_allowed_list /proc/self/status"
    busy = f"mkdir sub; cd sub; touch /only-here; {limits}; echo up; while :; do sleep 0.1; done"
    project.declare(fleet(nodes=1), volume(), task("job", busy, image=IMAGE, env=own, volumes=["data:/data"]))
    project.apply(env=env)
    until(lambda: "up" in project.logs("job"), project.logs("job"))
    show = 'echo "$GREETING $p $TOKEN ${PWD##*/}"; [ -e /only-here ] && [ -d /data ] && cat; exit 9'
    process = project.start("exec", "job", "--", "sh", "-c", show, stdin=subprocess.PIPE)
    said, _ = process.communicate("typed\n", timeout=120)
    assert (process.returncode, said) == (9, "it's\nme x hunter2 sub\ntyped\n")
    assert project.run("exec", "job", "--", "sh", "-c", f"{limits}; echo up").out == project.logs("job")
    process = project.start("exec", "job", stdin=subprocess.PIPE)
    assert process.communicate("echo $((6 * 7)) $FLEETFORM_NODE_RANK\n", timeout=120)[0] == "42 0\n"
    process = project.start("exec", "job", "--", "sh", "-c", "echo ready; sleep 1000")
    assert process.stdout.readline() == "ready\n"
    commands = b"".join(_read(p / "cmdline") for p in Path("/proc").glob("[0-9]*"))
    assert b"hunter2" not in commands
    assert [f for f, text in every_text(podman.folder / "run") if b"hunter2" in text] == []
    project.run("stop", "job")
    assert ended(process, None).code != 0


# ------------------------------------------------------------------------- runtimes that are not there

FAKE = """#!/bin/sh
echo "$*" >>{folder}/calls
case $1 in
info) {info} ;;
image) exit 1 ;;
pull) {pull} ;;
create) exit 0 ;;
start) cat >{folder}/given; exit {code} ;;
inspect) echo 'true 2026-01-01' ;;
ps) exit 0 ;;
esac
"""


def fake(folder: Path, name: str, info: str = "exit 1", pull: str = "exit 0", code: int = 0) -> Path:
    """A command that only writes down what it is asked for: no docker can be had everywhere."""
    where = folder / "fakes"
    where.mkdir(exist_ok=True)
    (where / name).write_text(FAKE.format(folder=folder, info=info, pull=pull, code=code))
    (where / name).chmod(0o755)
    return where


def test_docker_is_taken_where_podman_cannot_be_used(tmp_path, monkeypatch):
    """What it is asked for, to the letter; the commands go another way. A fake: see `FAKE`."""
    fake(tmp_path, "podman", "echo broken; exit 1")
    where = fake(tmp_path, "docker", "echo 'cpuset memory'")
    node = Node(tmp_path / "node", where, monkeypatch)
    cpu = min(os.sched_getaffinity(0))
    node.start("a-0.1", "echo $X", image="python:3.12", env={"X": "hunter2"}, cpus=(cpu,))
    assert node.ended("a-0.1").state is RankState.SUCCEEDED
    calls = (tmp_path / "calls").read_text()
    own = f"{node.folder}/work/a-0.1"
    name = containers.name_of(str(node.folder), "a-0.1")
    assert "pull docker.io/library/python:3.12\n" in calls
    assert (
        f"create --name {name} --interactive --log-driver none --env NVIDIA_VISIBLE_DEVICES=void "
        f"--network host --ipc host --pids-limit -1 --security-opt label=disable --user 0:0 --entrypoint sh "
        f"--mount type=bind,source={own},target={own} --cpuset-cpus {cpu} --ulimit memlock=-1:-1 "
        f"docker.io/library/python:3.12 -c"
    ) in calls
    assert f"rm --force {name}\n" in calls
    assert "hunter2" not in calls
    assert "hunter2" in (tmp_path / "given").read_text()


def test_a_kill_for_want_of_memory_is_told_from_others(tmp_path, monkeypatch):
    """Where the runtime can tell. A fake: see `FAKE`."""
    node = Node(tmp_path / "node", fake(tmp_path, "podman", "echo '[memory]'", code=137), monkeypatch)
    held = Container(image=IMAGE, name="n", cpus=(0,), memory_mib=64)
    node.runner.start(runner.Launch(attempt_id="a-0.1", script=containers.script(held, [], [], "true")))
    ended = node.ended("a-0.1")
    assert (ended.state, ended.exit_code) == (RankState.FAILED, 137)
    assert ended.cause
    assert "out of memory" in ended.cause
    assert "--memory 64m" in (tmp_path / "calls").read_text()
    assert "--cpuset-cpus" not in (tmp_path / "calls").read_text()
    assert node.file("a-0.1", "confined").read_text().split() == [f"soft:podman:{64 << 20}"]


def test_a_host_without_a_runtime_says_so(tmp_path, monkeypatch):
    for name in ("podman", "docker"):
        where = fake(tmp_path, name, f"echo {name} is down; exit 1")
    node = Node(tmp_path / "node", where, monkeypatch)
    node.start("a-0.1", "true")
    ended = node.ended("a-0.1")
    assert (ended.state, ended.exit_code) == (RankState.FAILED, 125)
    assert ended.cause == "its host has neither podman nor docker that its user can use"
    assert "podman: podman is down; docker: docker is down" in node.log("a-0.1")


@pytest.mark.skipif(
    any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")), reason="it has GPUs"
)
def test_no_rank_that_asks_for_gpus_runs_without(tmp_path, monkeypatch):
    node = Node(tmp_path / "node", fake(tmp_path, "podman", "echo ok"), monkeypatch)
    node.start("a-0.1", "true", gpus=(0,))
    assert node.ended("a-0.1").cause == "its host has no GPUs to give to a container"
    assert not (tmp_path / "calls").exists()


def test_folders_that_the_host_may_have(tmp_path, monkeypatch):
    """One that it has is given; without one that may be missing it runs, and without another it does not."""
    node = Node(tmp_path / "node", fake(tmp_path, "podman", "echo ok"), monkeypatch)
    has = Mount(source=str(tmp_path), target="/has")
    may, must = (
        Mount(source="/no/may", target="/may", optional=True),
        Mount(source="/no/mu st", target="/must"),
    )
    for attempt, binds in (("a-0.1", (has, may)), ("b-0.1", (has, must))):
        box = Container(image=IMAGE, name="n", binds=binds)
        text = containers.script(box, [], ["/a b"], "true")
        node.runner.start(runner.Launch(attempt_id=attempt, script=text))
        node.ended(attempt)
    assert node.poll("a-0.1").state is RankState.SUCCEEDED
    assert node.poll("a-0.1").mounted == ("/a b", "/has")
    [created] = [line for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("create")]
    assert f"source={tmp_path},target=/has" in created
    assert "/may" not in created
    assert node.file("b-0.1", "why").read_text() == "absent\n"
    assert node.file("b-0.1", "mounts").read_text() == "/no/mu%20st\n"
    assert node.poll("b-0.1").exit_code == 125


def test_hard_limits_that_the_runtime_cannot_set(tmp_path, monkeypatch):
    node = Node(tmp_path / "node", fake(tmp_path, "podman", "echo '[cpu memory pids]'"), monkeypatch)
    held = Container(image=IMAGE, name="n", cpus=(0,), memory_mib=64, hard=True)
    node.runner.start(runner.Launch(attempt_id="a-0.1", script=containers.script(held, [], [], "true")))
    assert node.ended("a-0.1").cause == "its host's containers cannot be limited as `isolation: hard` asks"
    assert "no cpuset" in node.log("a-0.1")


def test_nobody_joins_a_container_that_is_not_there(tmp_path, monkeypatch):
    """Nor is the command run beside it, on the host."""
    pull = f"echo x >{tmp_path}/pulling; exec sleep 1000"
    node = Node(tmp_path / "node", fake(tmp_path, "podman", "echo ok", pull), monkeypatch)
    node.start("a-0.1", "true")
    until((tmp_path / "pulling").exists)
    argv = beside(str(node.folder), "a-0.1", ["touch", str(tmp_path / "ran")])
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (125, "")
    assert "the rank's container is not there yet" in done.stderr
    assert not (tmp_path / "ran").exists()
    node.ranks.stop("a-0.1", 0)


def test_a_stop_that_comes_while_the_container_starts_reaches_it(tmp_path, monkeypatch):
    """There was no client yet to recognize; its TERM still arrives."""
    where = fake(tmp_path, "podman", "echo ok")
    told = (
        (where / "podman")
        .read_text()
        .replace(
            "start) ",
            f"exec) touch {tmp_path}/termed ;;\n"
            f"start) cat >/dev/null; until [ -e {tmp_path}/termed ]; do sleep 0.05; done; exit 143; ",
        )
    )
    (where / "podman").write_text(told)
    node = Node(tmp_path / "node", where, monkeypatch)
    text = containers.script(Container(image=IMAGE, name="n"), [], [], "true")
    moment = "  client=$!\n"
    assert text.count(moment) == 1
    text = text.replace(moment, f"  kill -s TERM $$\n{moment}")
    node.runner.start(runner.Launch(attempt_id="a-0.1", script=text))
    assert node.ended("a-0.1").exit_code == 143


def test_a_pull_can_be_stopped(tmp_path, monkeypatch):
    """It may take long, and nobody waits for a cancelled task."""
    pull = f"echo x >{tmp_path}/pulling; exec sleep 1000"
    node = Node(tmp_path / "node", fake(tmp_path, "podman", "echo ok", pull), monkeypatch)
    node.start("a-0.1", "true")
    until((tmp_path / "pulling").exists)
    begun = time.monotonic()
    stopped = node.ranks.stop("a-0.1", 600)
    assert stopped
    assert stopped.state is RankState.STOPPED
    assert time.monotonic() - begun < 300
    assert "could not be pulled" not in node.log("a-0.1")


MADE = """#!/bin/sh
case $1-$2-$3 in
info-*) echo ok ;;
image-inspect---format) printf 'x2f62696e2f7368\\nx2d63\\nx\\n%s\\n' {word} ;;
image-*) exit 1 ;;
pull-*) echo "$*" >{folder}/pulled; case $2 in --authfile) cat "$3" >{folder}/auth ;; esac ;;
--config-*) echo "$*" >{folder}/pulled; cat "$2/config.json" >{folder}/auth ;;
create-*) for word; do printf '%s\\0' "$word"; done >{folder}/created ;;
start-*) cat >{folder}/given ;;
*) exit 0 ;;
esac
"""


def made_for(folder: Path, command: str, name: str = "podman") -> Path:
    """A runtime whose images are made for `sh -c '' COMMAND`. A fake: see `FAKE`."""
    where = folder / "fakes"
    where.mkdir(exist_ok=True)
    for other in {"podman", "docker"} - {name}:
        (where / other).write_text("#!/bin/sh\nexit 1\n")
        (where / other).chmod(0o755)
    (where / name).write_text(MADE.format(folder=folder, word="x" + command.encode().hex()))
    (where / name).chmod(0o755)
    return where


def created(folder: Path) -> list[str]:
    return (folder / "created").read_bytes().decode().split("\0")[:-1]


def test_without_commands_the_image_runs_what_it_is_made_for(tmp_path, monkeypatch):
    """Its words to the letter, with the rank's environment, in the image's own folder."""
    word = 'it\'s "$X" $(exit 3) 100% \\\\n\n ü'
    node = Node(tmp_path / "node", made_for(tmp_path, word), monkeypatch)
    node.start("a-0.1", env={"X": "hunter2"})
    assert node.ended("a-0.1").state is RankState.SUCCEEDED, node.log("a-0.1")
    argv = created(tmp_path)
    at = argv.index("-c")
    assert argv[at + 2 :] == ["fleetform", "/bin/sh", "-c", "", word]
    assert b"hunter2" not in (tmp_path / "created").read_bytes()
    given = (tmp_path / "given").read_bytes()
    show = [*argv[at : at + 3], "sh", "-c", 'pwd; printf "%s|" "$X" "$@"', "sh", word]
    done = subprocess.run(["sh", *show], input=given, capture_output=True, check=True, cwd=tmp_path)
    assert done.stdout.decode() == f"{tmp_path}\nhunter2|{word}|"


@pytest.mark.slow
def test_without_commands_a_real_image_runs_its_own(node, podman, tmp_path):
    """Entrypoint and command of the image, with the rank's environment."""
    own, word = "localhost/fleetform-own:1", "it's $X"
    words = ["sh", "-c", 'echo "$X" "$FLEETFORM_NODE_RANK" "$@"', "own"]
    changes = [f"ENTRYPOINT {json.dumps(words)}", f"CMD {json.dumps([word])}"]
    options = [option for change in changes for option in ("--change", change)]
    podman("import", *options, "-", own, given=root_filesystem())
    node.start("a-0.1", image=own, env={"X": "hunter2", "FLEETFORM_NODE_RANK": "0"})
    assert node.ended("a-0.1").state is RankState.SUCCEEDED, node.log("a-0.1")
    assert node.log("a-0.1") == f"hunter2 0 {word}\n"


@pytest.mark.parametrize("runtime", ["podman", "docker"])
def test_the_login_to_a_registry_goes_by_a_file_that_is_removed(tmp_path, monkeypatch, runtime):
    node = Node(tmp_path / "node", made_for(tmp_path, "true", runtime), monkeypatch)
    monkeypatch.setenv("PATH", f"{tmp_path}/fakes:/usr/bin:/bin")
    node.start("a-0.1", "true", image="nvcr.io/a/b:1", login=("$oauthtoken", "hunter2"))
    assert node.ended("a-0.1").state is RankState.SUCCEEDED, node.log("a-0.1")
    known = base64.b64encode(b"$oauthtoken:hunter2").decode()
    assert json.loads((tmp_path / "auth").read_text()) == {"auths": {"nvcr.io": {"auth": known}}}
    kept = [f for f, text in every_text(tmp_path / "node") if known.encode() in text or b"hunter2" in text]
    assert kept == []
    assert "hunter2" not in (tmp_path / "pulled").read_text()
    assert "hunter2" not in repr(Launch.__dataclass_fields__["login"]) + node.log("a-0.1")


def test_a_privileged_container_is_asked_for_when_it_is_declared(tmp_path, monkeypatch):
    node = Node(tmp_path / "node", made_for(tmp_path, "true"), monkeypatch)
    asked: tuple[tuple[str, dict[str, Any]], ...] = (("a-0.1", {}), ("b-0.1", {"privileged": True}))
    for attempt, more in asked:
        node.start(attempt, "true", **more)
        assert node.ended(attempt).state is RankState.SUCCEEDED, node.log(attempt)
        assert ("--privileged" in created(tmp_path)) is bool(more)


def test_gpus_are_counted_anew_only_where_no_others_are_seen():
    """A privileged container may see all of its host's, whose numbers then hold."""
    assert "[ -e /dev/kfd ] || CUDA_VISIBLE_DEVICES=0,1 " in containers.recounted(2)
    assert "-gt 2 ] || CUDA_VISIBLE_DEVICES=0,1 " in containers.recounted(2, privileged=True)
