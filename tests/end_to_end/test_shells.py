"""Shells and commands on nodes of this machine: `ssh`, `exec`, by the installed command."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.cli import (
    COMMAND,
    PATIENCE,
    clean_env,
    ended,
    every_text,
    fleet,
    hold,
    task,
    until,
    volume,
)

SECRET = {"TOKEN_OF_MINE": "hunter2"}


@pytest.mark.slow
def test_a_command_runs_beside_a_rank(project):
    """In its folder, with its environment and secrets, on its CPUs, among its volumes; nothing is kept."""
    up = project.path / "up"
    env = ["GREETING=it's\nme", "folder=x", "found=y", "TOKEN=${{ env.TOKEN_OF_MINE }}"]
    same = 'if [ /data -ef "$FLEETFORM_VOLUME_DATA" ]; then echo mounted; fi'
    limits = "cat /proc/self/cgroup; grep Cpus_allowed_list /proc/self/status"
    # Its variables are read of a program that it runs; one that ends soon is missed on a busy machine.
    busy = "\n".join((f"echo $$ >> {up}; mkdir -p sub; cd sub", limits, same, "echo told", "sleep 1000"))
    project.declare(
        fleet(nodes=1), volume(), task("job", busy, env=env, resources={"cpu": 1}, volumes=["data:/data"])
    )
    project.apply(env=SECRET)
    until(up.exists)
    until(lambda: "told" in project.logs("job"))
    script = 'echo "$GREETING $folder $found $TOKEN $FLEETFORM_NODE_RANK ${PWD##*/}"; cat; exit 255'
    process = project.start("exec", "job", "--", "sh", "-c", script, stdin=subprocess.PIPE)
    said, _ = process.communicate("typed\n", timeout=120)
    assert (process.returncode, said) == (255, "it's\nme x y hunter2 0 sub\ntyped\n")
    look = f"{limits}; {same}; echo told"
    beside = project.run("exec", "job/0", "--", "sh", "-c", look)
    assert (beside.out, beside.err) == (project.logs("job"), "")
    assert project.run("exec", "rank/job-0", "--", "printf", "%s|", "a b", "$HOME", "'").out == "a b|$HOME|'|"
    assert project.run("exec", "job", "--", "no-such-program", code=127).out == ""
    kept = [f for f, text in every_text(project.path / ".fleetform") if b"hunter2" in text]
    assert kept == []
    project.run("stop", "job")
    assert "rank/job-0 does not run: it is stopped" in project.run("exec", "job", "--", "true", code=1).err


@pytest.mark.slow
def test_who_is_not_there_is_said(project):
    up = project.path / "up"
    project.declare(fleet(nodes=1), task("job", hold(up), nodes=2, exclusive=False, resources={"cpu": 1}))
    project.apply()
    assert "did you mean `job`?" in project.run("exec", "jop", "--", "true", code=1).err
    assert "its ranks are 0 to 1" in project.run("exec", "job/2", "--", "true", code=1).err
    assert "task/job has 2 ranks" in project.run("exec", "job", "--", "true", code=1).err
    assert "did you mean `gpu-0`?" in project.run("ssh", "gpu-1", code=1).err


def test_a_shell_on_a_node_is_in_its_folder(project):
    project.declare(fleet(nodes=1))
    project.apply()
    done = project.run("ssh", "node/gpu-0", "--", "pwd; ls | tr a-z A-Z >&2; exit 7", code=7)
    assert done.out == f"{project.node('gpu-0')}\n"
    assert "FLEETFORM.JSON" in done.err
    shell = project.start("ssh", "gpu-0", stdin=subprocess.PIPE, env={"SHELL": "/bin/sh"})
    assert shell.communicate("echo $((6 * 7)); exit 3\n", timeout=120)[0] == "42\n"
    assert shell.returncode == 3


def test_a_terminal_is_passed_on(project):
    """`exec` without a command, as people type it: a shell on their terminal, which Ctrl-C does not end."""
    up = project.path / "up"
    project.declare(fleet(nodes=1), task("job", hold(up)))
    project.apply()
    until(up.exists)
    master, slave = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", COMMAND, "exec", "job"],
        cwd=project.path,
        env=clean_env(TERM="xterm", SHELL="/bin/sh", PS1="ready> "),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    project.started.append(process)
    os.close(slave)
    screen = b""

    def wait_for(text: bytes) -> None:
        nonlocal screen
        while text not in screen:
            assert select.select([master], [], [], PATIENCE)[0], screen
            screen += os.read(master, 65536)

    os.write(master, b"test -t 0 && test -t 1 && echo term$((40 + 2)) $FLEETFORM_NODE_RANK $TERM\n")
    wait_for(b"term42 0 xterm")
    seconds = f"1000.{os.getpid()}"
    os.write(master, f"sleep {seconds}\n".encode())
    until(lambda: runs("sleep", seconds))  # before, the shell itself would get it, and go on to sleep
    os.write(master, b"\x03")
    os.write(master, b"echo on$((2 + 2)); exit 9\n")
    with suppress(OSError):
        wait_for(b"on4")
        while os.read(master, 65536):
            pass
    os.close(master)
    assert process.wait(120) == 9
    assert b"on4" in screen


def runs(*argv: str) -> bool:
    """Whether a process has exactly these arguments."""
    words = "".join(f"{word}\0" for word in argv).encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cmdline").read_bytes() == words:
                return True
    return False


@pytest.mark.slow
def test_ends_of_logs(project):
    """`--tail` and `--since`, of each rank."""
    project.declare(
        fleet(nodes=1),
        task("job", "seq 1 5", nodes=2, placement="any", exclusive=False, resources={"cpu": 1}),
    )
    ended(project.start("apply", "--auto-approve", "--wait"))
    assert project.logs("job", "--tail", "2") == "0 | 4\n0 | 5\n1 | 4\n1 | 5\n"
    assert project.logs("job/1", "-n", "1", "--since", "1d") == "5\n"
    assert project.logs("job", "-f", "-n", "0") == ""
    for log in project.local.glob("nodes/gpu-0/ranks/job-0.*/log"):
        os.utime(log, (0, 0))
    assert project.logs("job", "--since", "1h", "-n", "1") == "1 | 5\n"
