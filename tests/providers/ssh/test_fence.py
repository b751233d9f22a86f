"""A command on hosts that slept past its lease: it wakes up and changes nothing more.

The test looks at the hosts themselves: the data of volumes, and the running ranks.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apply.test_fence import lapse, sleeper
from tests.providers.ec2.run import SECRETS
from tests.providers.ssh.machines import Machine, Machines
from tests.providers.ssh.rack import SSH, Rack, wipe
from tests.providers.ssh.test_instances import Account, Cloud, backend, cloud
from tests.providers.ssh.test_volumes import disk
from tests.support.cli import ended, fleet, hold, task, until

__all__ = ["cloud"]

pytestmark = pytest.mark.slow

WHOLE = {"cpu": 2}


def heard(machine: Machine) -> int:
    """How often it was asked for what the sleeper was to do."""
    return int(machine.sh(f"grep -c -e '{REMOVE} ' -e '{START}aa-' /tmp/heard || :"))


BUSY = """\
#!/bin/sh
[ -e /tmp/go ] || ! tr '\\0' '\\n' </proc/$PPID/cmdline | grep -qx remove || exit 1
exec /usr/bin/flock "$@"
"""
"""Replaces `flock`: no volume can be removed until the file exists, and the call is retried."""
START, REMOVE = ".sh start ", "sh remove "


@pytest.fixture
def project(machines: Machines, tmp_path: Path) -> Iterator[Rack]:
    made = Rack(tmp_path, machines)
    yield made
    made.clean_up()
    wipe(machines)


def begun(machine: Machine, name: str) -> list[str]:
    """Of each time that a task began there, whether it still runs."""
    said = machine.sh(
        f"for p in $(cat /tmp/{name} 2>/dev/null); do [ -e /proc/$p ] && echo runs || echo ended; done"
    )
    return said.split()


KEPT = "cat /var/lib/fleetform/node/volumes/*/data/kept 2>/dev/null || :"
HEARD = """\
#!/bin/sh
printf '%s\\n' "$*" >>/tmp/heard
exec /usr/bin/env "$@"
"""
"""In place of `env`, by which commands come: notes what the host is asked."""


@pytest.mark.parametrize(
    ("places", "late"),
    [
        *((f"queued={REMOVE}", 0), (f"sent={REMOVE}", 1), ("retry", 0)),
        *((f"queued={START}", 0), (f"sent={START}", 1)),
    ],
)
def test_who_wakes_up_deletes_and_starts_nothing(project, machines, places, late):
    """The sleeper was to delete a volume and to start `aa`. Meanwhile another one keeps the volume, and
    starts `bb` on the same blocks. What the host is asked `late` all the same, it refuses itself.
    """
    host = machines[0]
    rack = project.rack(project.host(0))
    data = disk(host=host.address)
    project.bring(rack, data, task("old", hold(Path("/tmp/old")), resources=WHOLE))
    host.sh("for data in /var/lib/fleetform/node/volumes/*/data; do echo yes >$data/kept; done")
    project.declare(SSH, rack, task("aa", hold(Path("/tmp/aa")), resources=WHOLE))
    if places == "retry":
        host.install("flock", BUSY)
    host.install("env", HEARD)
    process = sleeper(project, 1, places)
    assert process.poll() is None, ended(process, None)
    was = host.sh(KEPT)
    host.sh("touch /tmp/go")
    lapse(project)
    project.bring(rack, data, task("bb", hold(Path("/tmp/bb")), resources=WHOLE))
    until(lambda: begun(host, "bb"))
    asked = heard(host)
    process.send_signal(signal.SIGCONT)
    done = ended(process, None)
    assert done.code in (1, 4), done.out + done.err
    assert "this command has lost the state's lock" in done.out + done.err
    assert heard(host) - asked == late
    project.apply()
    assert begun(host, "bb") == ["runs"]
    assert begun(host, "aa") == []
    assert host.sh(KEPT) == was
    project.no_changes()


@pytest.mark.parametrize("place", ["queued", "sent"])
def test_who_wakes_up_starts_nothing_on_a_machine_of_a_cloud(
    cloud: Cloud, tmp_path: Path, place: str
) -> None:
    """The sleeper was to start `aa`; meanwhile another one started `bb` on the same blocks."""
    folder = tmp_path / "project"
    folder.mkdir()
    project = Account(folder)
    nodes = backend(cloud.port), fleet(nodes=1, backends=["aws"], resources={"cpu": 2})
    project.declare(*nodes)
    project.apply()
    until(lambda: cloud.of)  # its instance boots beside the apply
    (machine,) = cloud.of.values()
    project.declare(*nodes, task("aa", hold(Path("/tmp/aa")), resources=WHOLE))
    process = sleeper(project, 1, f"{place}={START}aa-", env=SECRETS)
    assert process.poll() is None, ended(process, None)
    lapse(project)
    project.declare(*nodes, task("bb", hold(Path("/tmp/bb")), resources=WHOLE))
    project.apply()
    until(lambda: begun(machine, "bb"))
    process.send_signal(signal.SIGCONT)
    done = ended(process, None)
    assert done.code in (1, 4), done.out + done.err
    assert "this command has lost the state's lock" in done.out + done.err
    project.apply()
    assert begun(machine, "bb") == ["runs"]
    assert begun(machine, "aa") == []
    project.no_changes()
    project.clean_up()
