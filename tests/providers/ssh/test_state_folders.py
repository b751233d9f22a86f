"""Where the state of a host and the data of its volumes lie: on a disk of its own, and out of the way of
cleaners of old files. The installed command, real hosts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.providers.ssh.machines import Machine, Machines
from tests.providers.ssh.rack import OPTIONS, SSH, Rack, wipe
from tests.support.cli import hold, task, volume

pytestmark = pytest.mark.slow

NEW, OLD = "/var/lib/fleetform/node", "/var/tmp/fleetform-0"
HOME = "/home/worker/.local/state/fleetform"
EARLIER = {"type": "backend", "name": "ssh", "options": {**OPTIONS, "root": OLD}}
"""What earlier versions took for the usual folder."""
STOCK = "q /var/tmp 1777 root root aAmM:30d"
"""The rule of Fedora, RHEL and Debian 13, but that the change of a file's times by `aged` does not count."""
tmpfiles = pytest.mark.skipif(not shutil.which("systemd-tmpfiles"), reason="no systemd-tmpfiles here")


@pytest.fixture
def project(machines: Machines, tmp_path: Path) -> Iterator[Rack]:
    made = Rack(tmp_path, machines)
    yield made
    made.run("destroy", "--auto-approve", code=None)
    for machine in machines:
        machine.sh(f"rm -rf {HOME} /etc/tmpfiles.d/tmp.conf; mkdir -p /etc/tmpfiles.d")
    wipe(machines)


def disk(machine: Machine, **more: Any) -> dict[str, Any]:
    return volume("data", backend="ssh", size="1MB", host=machine.address, prevent_destroy=False, **more)


def keep(machine: Machine, rack: dict[str, Any], project: Rack, backend: Any = SSH, **more: Any) -> None:
    """A volume with something in it, on a host."""
    write = task("write", "echo kept >/data/file", volumes=["data:/data"])
    project.declare(backend, rack, disk(machine, **more), write)
    project.apply("--wait")


def clean(machine: Machine) -> None:
    """What the timer of systemd does once a day, 40 days later."""
    machine.sh(f"mkdir -p /etc/tmpfiles.d; echo '{STOCK}' >/etc/tmpfiles.d/tmp.conf")
    machine.sh("find /var/tmp /var/lib/fleetform -type f -exec touch -d '40 days ago' {} + 2>/dev/null || :")
    machine.sh("systemd-tmpfiles --clean --prefix=/var/tmp")


def warned(plan: Any) -> list[dict[str, Any]]:
    return [d for d in plan["diagnostics"] if d["code"] == "cleaned-folder"]


def worker(project: Rack, *indexes: int) -> dict[str, Any]:
    return project.rack(*(project.host(i, user="worker") for i in indexes))


# ------------------------------------------------------------------------------------- where it lies


@tmpfiles
def test_a_cleaner_of_var_tmp_takes_nothing(project, machines):
    keep(machines[0], project.rack(project.host(0)), project)
    assert machines[0].sh(f"cat {NEW}/volumes/*/data/file") == "kept\n"
    clean(machines[0])
    plan = project.plan()
    assert (plan["result"], warned(plan)) == ("none", [])
    assert machines[0].sh(f"cat {NEW}/volumes/*/data/file") == "kept\n"


def test_the_folder_of_another_user_is_in_his_home(project, machines):
    keep(machines[0], worker(project, 0), project)
    assert machines[0].sh(f"cat {HOME}/volumes/*/data/file; stat -c %U {HOME}") == "kept\nworker\n"
    assert warned(project.plan()) == []


def test_a_home_that_cannot_be_written_asks_for_a_folder(project, machines):
    machines[0].sh("mkdir -p /home/worker/.local && mount -t tmpfs -o ro x /home/worker/.local")
    try:
        project.declare(SSH, worker(project, 0))
        (left_out,) = project.plan()["diagnostics"]
        assert "cannot be written: declare `root`, a folder on a disk of the host" in left_out["summary"]
        machines[0].sh("mkdir -p /srv/fleet && chown worker /srv/fleet")
        options = {**OPTIONS, "root": "/srv/fleet/state"}
        project.declare({**SSH, "options": options}, worker(project, 0), task("hello", "echo hello"))
        project.apply("--wait")
        assert project.logs("hello") == "hello\n"
    finally:
        project.run("destroy", "--auto-approve", code=None)
        machines[0].sh("umount /home/worker/.local; rm -rf /srv/fleet")


# -------------------------------------------------------------------------- homes on a network's disk

STAT = """#!/bin/sh
case "$*" in "-f -c %t /home/worker"*) echo 6969 && exit ;; esac
exec /usr/bin/stat "$@"
"""
"""No disk of a network can be had here: as if the home were one."""


@pytest.fixture
def shared(machines: Machines) -> Iterator[None]:
    """Two hosts with one home."""
    for machine in machines.machines[:2]:
        machine.sh("cp -a /home/worker/.ssh /shared/ 2>/dev/null || :; chown 1500:1500 /shared")
        machine.sh("mount --bind /shared /home/worker")
        machine.install("stat", STAT)
    yield
    for machine in machines.machines[:2]:
        machine.sh("umount /home/worker; rm -rf /shared/.local /usr/local/bin/stat")


def named(machine: Machine, identity: str) -> None:
    """The machine's id."""
    machine.sh(f"printf %s '{identity}' >/etc/machine-id")


def test_two_hosts_with_one_home_share_no_folder(project, machines, shared):
    first, second = "a" * 32, "b" * 32
    named(machines[0], f"{first}\n")
    named(machines[1], f"{second}\n")
    own = {**disk(machines[0]), "count": 2, "name": "data"}
    del own["host"]
    say = "hostname >/data/host"
    project.declare(
        SSH, worker(project, 0, 1), own, task("say", say, nodes=2, volumes=["data-${{ node_rank }}:/data"])
    )
    project.apply("--wait")
    for name, identity in (("h0", first), ("h1", second)):
        assert machines[0].sh(f"cat {HOME}/{identity}/volumes/*/data/host") == f"{name}\n"
    project.no_changes()
    project.run("destroy", "--auto-approve")
    assert machines[0].sh(f"ls -A {HOME} 2>/dev/null || :") == ""


@pytest.mark.parametrize("identity", ["", "uninitialized\n"])
def test_a_host_without_an_id_asks_for_a_folder(project, machines, shared, identity):
    """An id that is set later is that of a host on which nothing is."""
    named(machines[0], identity)
    machines[0].sh("rm -f /var/lib/dbus/machine-id")
    project.declare(SSH, worker(project, 0))
    (left_out,) = project.plan()["diagnostics"]
    assert (
        "other hosts may share, and this host has no /etc/machine-id: declare `root`" in left_out["summary"]
    )


def test_two_hosts_with_one_home_and_one_id_are_told_apart(project, machines, shared):
    """As clones of one image are: one of them is refused, and has none of the other's volumes."""
    for machine in machines.machines[:2]:
        named(machine, "c" * 32 + "\n")
    keep(machines[0], worker(project, 0), project)
    project.declare(SSH, worker(project, 0, 1), disk(machines[0]))
    plan = project.plan(code=None)
    (left_out,) = [d for d in plan["diagnostics"] if d["code"] == "host-not-ready"]
    assert "is the folder of another host, h0" in left_out["summary"]
    assert plan["drift"] == []


# ------------------------------------------------------------------------------- folders of earlier versions


@tmpfiles
def test_an_earlier_folder_is_kept_and_excluded_and_can_be_moved(project, machines):
    rack, machine = project.rack(project.host(0)), machines[0]
    keep(machine, rack, project, EARLIER)
    machine.sh("rm /etc/tmpfiles.d/fleetform*")  # which earlier versions did not write
    read = task("read", hold(Path("/tmp/up")), volumes=["data:/data"])
    project.declare(SSH, rack, disk(machine), read)
    project.apply()
    assert machine.sh(f"ls {OLD}/volumes/*/data; ls -d {NEW} 2>/dev/null || :") == "file\n"
    clean(machine)
    assert machine.sh(f"cat {OLD}/volumes/*/data/file") == "kept\n"
    plan = project.plan()
    (warning,) = warned(plan)
    assert (plan["result"], plan["drift"]) == ("none", [])
    assert (
        warning["summary"] == f"node/rack-0: its state and volumes are in {OLD}, as earlier versions had it"
    )
    _, command, _, declared, _ = warning["hint"].split("`")
    assert declared == f"root: {OLD}"
    assert "FLEETFORM-ERR running read-0" in project.run(*command.split()[1:], code=None).out
    project.declare(SSH, rack, disk(machine))
    project.apply()
    assert project.run(*command.split()[1:]).out == f"moved from {OLD} to {NEW}\n"
    assert machine.sh("ls -A /var/tmp /etc/tmpfiles.d | grep fleetform || :") == ""
    again = task("again", 'cat /data/file "$FLEETFORM_VOLUME_DATA/file"', volumes=["data:/data"])
    project.declare(SSH, rack, disk(machine), again)
    project.apply("--wait")
    assert project.logs("again") == "kept\nkept\n"
    plan = project.plan()
    assert (plan["result"], warned(plan)) == ("none", [])


def test_a_folder_is_moved_to_another_disk(project, machines):
    """All of it, or nothing: a move that was cut short is told, and nothing seems to be gone."""
    rack, machine = project.rack(project.host(0)), machines[0]
    keep(machine, rack, project, EARLIER)
    project.declare(SSH, rack, disk(machine))
    project.apply()
    (warning,) = warned(project.plan())
    machine.sh("mkdir -p /srv/small && mount -t tmpfs -o size=16k x /srv/small")
    move = warning["hint"].split("`")[1].split()[1:]
    try:
        assert "FLEETFORM-ERR nospace" in project.run(*move, "/srv/small/node", code=None).out
        assert machine.sh(f"cat {OLD}/volumes/*/data/file; ls -A /srv/small") == "kept\n"
        machine.sh(f"mv {OLD} {OLD}.moved")
        plan = project.plan(code=None)
        assert "was being moved, and that was cut short" in str(plan["diagnostics"])
        assert plan["drift"] == []
        machine.sh(f"mv {OLD}.moved {OLD}; mount -o remount,size=64m /srv/small")
        project.run(*move, "/srv/small/node")
        project.declare({**SSH, "options": {**OPTIONS, "root": "/srv/small/node"}}, rack, disk(machine))
        project.no_changes()
        assert (
            machine.sh(f"cat /srv/small/node/volumes/*/data/file; ls -d {OLD}* 2>/dev/null || :") == "kept\n"
        )
        project.run("destroy", "--auto-approve")
    finally:
        machine.sh("umount -l /srv/small")


def test_two_folders_of_one_user_are_no_choice(project, machines):
    """As after an older version worked beside a newer one: nothing counts as gone."""
    rack, machine = project.rack(project.host(0)), machines[0]
    keep(machine, rack, project)
    machine.sh(f"mkdir -p {OLD}/volumes")
    plan = project.plan(code=None)
    assert f"its state is in two folders, {NEW} and {OLD}" in str(plan["diagnostics"])
    assert (plan["actions"], plan["drift"]) == ([], [])
    machine.sh(f"rm -r {OLD}")
    assert project.plan()["result"] == "none"


# -------------------------------------------------------------------------------------------- cleaners


@pytest.mark.parametrize(
    ("root", "rules", "by"),
    [
        (
            "/var/tmp/x",
            "",
            "/var/tmp",
        ),  # whatever the rules of today say: those of the next release may differ
        ("/tmp/x/y", "", "/tmp"),
        ("/srv/x", "", ""),
        ("/var/tmp/x", "q /var/tmp 1777 root root 30d", "/var/tmp"),
        ("/var/tmp/x", "q /var/tmp 1777 root root -", ""),
        ("/var/tmp/x", "q /var/tmp 1777 root root 30d\\nx /var/tmp/x", ""),
        ("/var/tmp/x", "q /var/tmp 1777 root root 30d\\nx /var/tmp/x/data", "/var/tmp"),
        ("/var/tmp/x/y", "q /var/tmp 1777 root root 30d\\nd /var/tmp/x", ""),
        ("/srv/a/x", "e! /srv/* - - - aAmM:10d", "/srv/*"),
        ("/srv/x", "D /srv 755 root root -", "/srv"),
        ("/srv/x", "# d /srv 755 root root 1d\\nL /srv - - - 1d", ""),
        ("/srv/xy", "d /srv/x 755 root root 1d", ""),
    ],
)
def test_the_longest_rule_counts(machines, root, rules, by):
    from providers.ssh import scripts

    machine = machines[0]
    machine.sh(f"mkdir -p /etc/tmpfiles.d; printf '{rules}\\n' >/etc/tmpfiles.d/tmp.conf")
    try:
        said = machine.sh(f'{scripts.text("root.sh")}\nset +u; cleaned {root}; echo "=$by"')
        assert said == f"={by}\n"
    finally:
        machine.sh("rm /etc/tmpfiles.d/tmp.conf")


def test_a_declared_folder_in_tmp_is_excluded_or_warned_of(project, machines):
    """Root of a host with systemd-tmpfiles may exclude it, and does at the first apply; others are warned."""
    backend = {**SSH, "options": {**OPTIONS, "root": "/var/tmp/fleet"}}
    project.declare(backend, worker(project, 0))
    (warning,) = warned(project.plan())
    assert warning["summary"].endswith(
        "in /var/tmp/fleet, and old files in /var/tmp are deleted, as by systemd-tmpfiles"
    )
    if shutil.which("systemd-tmpfiles"):
        command = "echo 'x /var/tmp/fleet' >/etc/tmpfiles.d/fleetform-var-tmp-fleet.conf"
        assert f"`mkdir -p /etc/tmpfiles.d && {command}`" in warning["hint"]
    project.apply()
    assert warned(project.plan()) == [warning]
    project.run("destroy", "--auto-approve")
    if shutil.which("systemd-tmpfiles"):
        project.declare(backend, project.rack(project.host(0)))
        assert warned(project.plan()) == []
        project.apply()
        assert "x /var/tmp/fleet\n" in machines[0].sh("cat /etc/tmpfiles.d/fleetform-var-tmp-fleet.conf")
        assert warned(project.plan()) == []
        project.run("destroy", "--auto-approve")
        assert machines[0].sh("ls /etc/tmpfiles.d | grep fleetform || :") == ""


# ------------------------------------------------------------------------------ content that vanished


@tmpfiles
def test_content_that_a_cleaner_took_is_drift(project, machines):
    """Also where the folder itself is there still; it is used again once somebody says so."""
    rack, machine = worker(project, 0), machines[0]
    backend = {**SSH, "options": {**OPTIONS, "root": "/var/tmp/fleet"}}
    keep(machine, rack, project, backend)
    clean(machine)
    assert machine.sh("ls /var/tmp/fleet/volumes/*/data") == ""
    plan = project.plan(code=None)
    (drift,) = plan["drift"]
    assert (plan["result"], drift["address"], drift["change"]) == ("unhealthy", "volume/data", "gone")
    assert drift["detail"].startswith("a cleaner of old files, such as systemd-tmpfiles, deleted files of it")
    assert "volume-gone" in {d["code"] for d in plan["diagnostics"]}
    machine.sh(drift["detail"].split("`")[1])
    project.no_changes()


def test_a_volume_that_was_emptied_is_drift(project, machines):
    """Unless its own rank did it. A volume whose folder is gone is not there."""
    rack, machine = project.rack(project.host(0)), machines[0]
    keep(machine, rack, project)
    project.no_changes()
    machine.sh(f"rm {NEW}/volumes/*/data/*")
    (drift,) = project.plan(code=None)["drift"]
    assert drift["detail"].startswith("it held something when it was detached last, and is empty now")
    machine.sh(drift["detail"].split("`")[1])
    project.no_changes()
    empty = task("empty", "echo >/data/file", "rm /data/file", volumes=["data:/data"])
    project.declare(SSH, rack, disk(machine), empty)
    project.apply("--wait")
    project.no_changes()
    machine.sh(f"rmdir {NEW}/volumes/*/data")
    (drift,) = project.plan(code=None)["drift"]
    assert drift["detail"].startswith("its data are gone: ")
    assert project.run("status", "--json").json["drift"] == [drift]


@tmpfiles
def test_a_rank_runs_on_while_a_cleaner_takes_its_folder(project, machines):
    rack, machine = worker(project, 0), machines[0]
    backend = {**SSH, "options": {**OPTIONS, "root": "/var/tmp/fleet"}}
    project.declare(backend, rack, task("run", hold(Path("/tmp/up"))))
    project.apply()
    machine.sh("rm -r /var/tmp/fleet/*/ranks/run-0*")
    clean(machine)
    assert project.plan()["result"] == "none"
    assert [r["state"] for r in project.ranks("run").values()] == ["running"]
    project.run("stop", "run")
    assert machine.sh("wc -l </tmp/up") == "1\n"
