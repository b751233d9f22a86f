"""What people type around running ranks, on real hosts: logs over a cut cable, shells, ways that change."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers.ssh.machines import Machine, Machines
from tests.providers.ssh.rack import SSH, Rack, wipe
from tests.support.cli import COMMAND, Project, clean_env, ended, task, until

pytestmark = pytest.mark.slow


@pytest.fixture
def project(machines: Machines, tmp_path: Path) -> Iterator[Rack]:
    made = Rack(tmp_path, machines)
    yield made
    made.clean_up()
    wipe(machines)


def printed(process: subprocess.Popen, file: Path, wanted: str) -> str:
    """What a command has written to a file, once `wanted` is in it."""

    def look() -> str:
        text = file.read_text()
        assert wanted in text or process.poll() is None, text
        return text if wanted in text else ""

    return until(look, wanted)


def follow(project: Project, *args: str) -> tuple[subprocess.Popen, Path, Path]:
    """`logs -f ARGS`, and the files that its stdout and stderr go to."""
    out, err = project.path / "followed.out", project.path / "followed.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [COMMAND, "logs", "-f", *args],
            cwd=project.path,
            env=clean_env(),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
    project.started.append(process)
    return process, out, err


def touch(machine: Machine, name: str) -> None:
    """Make a file in the folders of all ranks of a host, not over the network."""
    machine.sh(f"for d in /var/lib/fleetform/node/*/work/*; do touch $d/{name}; done")


def test_a_cable_that_is_cut_in_the_middle_of_a_run_loses_nothing(project, machines):
    """`status` says so, `logs -f` waits, and afterwards output and exit code are there, whole, and once."""

    def wait(name: str) -> str:
        return f"while [ ! -e {name} ]; do sleep 0.05; done"

    say = f'seq -f "line %g" 3; {wait("more")}; seq -f "line %g" 4 40; {wait("go")}; exit 3'
    project.bring(project.rack(project.host(0), project.host(1)), task("job", say, nodes=2))
    process, out, err = follow(project, "job")
    printed(process, out, "1 | line 3\n")
    machines[1].cut()
    try:
        for m in machines[:2]:
            touch(m, "more")
        until(lambda: "line 40" in machines[1].sh("cat /var/lib/fleetform/node/*/ranks/*/log"))
        printed(process, err, "it is tried again until its host answers")
        status = project.status()
        assert [n["state"] for n in status["nodes"]] == ["ready", "unreachable"]
        assert [r["state"] for r in status["tasks"][0]["ranks"]] == ["running", "running"]
        assert "1 | line 4\n" not in printed(process, out, "0 | line 40\n")
    finally:
        machines[1].plug()
    printed(process, out, "1 | line 40\n")
    assert "rank/job-1: its host answers again" in err.read_text()
    for m in machines[:2]:
        touch(m, "go")
    assert process.wait(120) == 0
    lines = out.read_text().splitlines()
    for rank in ("0", "1"):
        wanted = [f"{rank} | line {i}" for i in range(1, 41)]
        assert [line for line in lines if line.startswith(rank)] == wanted
    assert {r: (s["state"], s["exit_code"]) for r, s in project.ranks("job").items()} == {
        0: ("failed", 3),
        1: ("failed", 3),
    }


def test_a_command_runs_beside_a_rank_on_its_host(project, machines):
    project.bring(
        project.rack(project.host(0)),
        task(
            "job",
            "mkdir sub; cd sub; echo up; while :; do sleep 0.1; done",
            env=["GREETING=it's", "folder=x"],
        ),
    )
    until(lambda: project.logs("job"))
    show = 'echo "$GREETING $folder $FLEETFORM_NODE_RANK $(hostname) ${PWD##*/}"; cat; exit 255'
    process = project.start("exec", "job", "--", "sh", "-c", show, stdin=subprocess.PIPE)
    said, _ = process.communicate("typed\n", timeout=120)
    assert (process.returncode, said) == (255, "it's x 0 h0 sub\ntyped\n")
    assert project.run("exec", "job/0", "--", "printf", "%s|", "a b", "$HOME", "'").out == "a b|$HOME|'|"
    process = project.start("exec", "job", "--", "sh", "-c", "echo ready; sleep 1000")
    assert process.stdout.readline() == "ready\n"
    project.run("stop", "job")
    assert ended(process, None).code != 0  # it ends with the rank
    assert "rank/job-0 does not run: it is stopped" in project.run("exec", "job", "--", "true", code=1).err


def test_a_shell_on_a_node_is_the_systems_ssh_with_what_is_declared(project, machines, tmp_path):
    """Host keys, user, way and exit codes. Exit code 255 of the command differs from ssh's own."""
    jump = {
        "hostname": machines[1].address,
        "user": "worker",
        "identity_file": machines.login,
        "host_keys": [machines[1].public_key],
    }
    host = project.host(0, host_keys=[machines[0].public_key], proxy_jump=jump)
    rack = project.rack(host)
    del rack["ssh_config"]["known_hosts"]
    project.bring(rack)
    who = project.run("ssh", "rack-0", "--", "echo $SSH_CLIENT; hostname | tr h H")
    assert (who.out.split()[0], who.out.split()[-1]) == (machines[1].address, "H0")
    done = project.run("ssh", "node/rack-0", "--", "exit 255", code=255)
    assert done.err == ""
    assert project.run("ssh", "rack-0", "--", "exit 7", code=7).err == ""
    host["host_keys"] = [machines[1].public_key]
    project.declare(SSH, rack)
    done = project.run("ssh", "rack-0", "--", "true", code=125)
    assert "the connection to root@" in done.err
    assert "Host key verification failed" in done.err
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob("fleetform-ssh-*"))
    bare = project.start("ssh", "rack-0", env={"PATH": "/nowhere"})
    assert "there is no `ssh` on this machine" in ended(bare, 1).err


def test_declared_keys_are_enough_and_others_are_refused(project, machines):
    """Of one host and of the fleet; a change of them is made in place."""
    rack = project.rack(project.host(0, host_keys=[machines[0].public_key]), project.host(1))
    hello = task("hello", "echo hi", nodes=2)
    config = rack["ssh_config"]
    config["host_keys"] = [f"{machines[1].public_key} root@h1"]
    del config["known_hosts"]
    project.bring(rack, hello, args=("--wait",))
    project.no_changes()
    config["host_keys"] = [machines[2].public_key]
    project.declare(SSH, rack, hello)
    out = project.run("status", "--refresh").out
    assert "not_ready: " in out
    assert "has changed" in out
    config["hosts"][1]["host_keys"] = [machines[2].public_key, machines[1].public_key]
    project.declare(SSH, rack, hello)
    assert project.ids() == ["update:node/rack-1"]
    project.apply()
    project.no_changes()


def test_a_way_that_is_mended_counts_before_the_next_apply(project, machines):
    """`status`, `logs`, `stop` and `plan` reach a host by what is declared now."""
    rack = project.rack(project.host(0))
    project.bring(rack, task("job", "echo up; while :; do sleep 0.1; done"))
    m = machines[0]
    m.sh("/usr/sbin/sshd -p 2200 -o PidFile=/run/second.pid; kill $(cat /run/sshd.pid)")
    until(lambda: not m.answers())
    try:
        assert project.nodes()["rack-0"][1] == "unreachable"
        rack["ssh_config"]["hosts"] = [project.host(0, port=2200)]
        project.keys(f"[{m.address}]:2200 {m.public_key}\n")
        project.declare(SSH, rack, task("job", "echo up; while :; do sleep 0.1; done"))
        assert project.nodes()["rack-0"][1] == "ready"
        until(lambda: project.logs("job") == "up\n")
        assert project.ids() == ["update:node/rack-0"]
        project.run("stop", "job")
        project.run("destroy", "--auto-approve")
    finally:
        machines[0].reboot()


def test_stopping_a_rank_on_a_silent_host_gives_up_soon_and_says_what_to_type(project, machines):
    project.bring(project.rack(project.host(0)), task("job", "echo up; while :; do sleep 0.1; done"))
    machines[0].off()
    try:
        done = project.run("stop", "job", code=4)
        assert "rank/job-0 is not stopped yet, and may run: node/rack-0 does not answer" in done.err
        assert "Once it answers, the next `fleetform apply` or `fleetform stop job` stops it" in done.err
    finally:
        machines[0].on()


def test_status_refresh_shows_hosts_that_are_no_nodes_yet(project, machines):
    project.bring(project.rack(project.host(0)))
    machines[2].off()
    try:
        project.declare(SSH, project.rack())
        out = project.run("status", "--refresh").out
        assert "ready, 0.00 USD/h, seen just now" in out
        rows = {
            row.split()[0]: row for row in out.splitlines() if "fleet/rack" in row and "blocks" not in row
        }
        assert "ready: `fleetform plan` shows" in rows[machines[1].address]
        assert "unreachable" in rows[machines[2].address]
        assert machines[1].address not in project.run("status").out
        done = project.run("status", "--refresh", "--json")
        assert [n["name"] for n in done.json["nodes"]] == ["rack-0"]
        assert f"host {machines[2].address} of fleet/rack is left out" in done.err
        assert project.status()["serial"] == done.json["serial"]
    finally:
        machines[2].on()
    done = project.run("status", "--refresh", "--offline", code=1)
    assert "contacts nothing" in done.err


def test_a_node_that_was_forgotten_is_taken_again(project, machines):
    """`state rm` leaves the claim on the host: it is of this state, and the next apply takes it up."""
    project.bring(project.rack(project.host(0)), task("job", "echo hi"), args=("--wait",))
    project.run("state", "rm", "--cascade", "--auto-approve", "fleet/rack")
    project.apply("--wait")
    assert project.nodes()["rack-0"][1] == "ready"
    project.no_changes()
    documents = project.rack(project.host(0)), task("more", "echo up; while :; do sleep 0.1; done")
    project.bring(*documents)
    backup = project.run("state", "rm", "--cascade", "--auto-approve", "fleet/rack").err.split()[-1]
    assert "and ranks of it still run: more-0.1" in project.apply(code=4).out
    project.run("state", "push", "--force", backup.strip("`"))
    project.run("stop", "more")


def test_a_request_to_end_reaches_the_command(project):
    """Ctrl-C is the command's to answer; a SIGTERM is passed on, and the end is waited for."""
    project.bring(project.rack(project.host(0)))
    process = project.start("ssh", "rack-0", "--", "echo ready; exec sleep 1000")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert ended(process, None).code == 128 + signal.SIGTERM
