"""The script that mounts volumes on a cloud's node (`disk.sh`): it never loses data; what it refuses."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from providers.cloud import keys
from tests.providers.ssh import disks
from tests.providers.ssh.disks import Disks
from tests.providers.ssh.machines import HOST_ENV, Machine, Machines, run, until

pytestmark = pytest.mark.slow

ONE, TWO = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
ALL = "/var/lib/fleetform/volumes"
SIZE = 64 << 20
SYS_RESOURCE = 1 << 24


class Ground:
    """One machine, with the program, a user who may run it, and disks."""

    def __init__(self, machine: Machine, found: Disks) -> None:
        self.machine, self.disks = machine, found
        machine.install("fleetform-disk", keys.program())
        self.count = 0
        self.told: dict[str, dict[str, Any]] = {}

    def disk(self, *, xen: bool = False, mib: int = 64) -> str:
        """A new one: its volume's id."""
        self.count += 1
        volume = f"vol-{self.count:08d}"
        self.disks.xen = xen
        told = {"instance": "i-1", "device": f"/dev/sd{chr(ord('e') + self.count)}", "size": mib / 1024}
        have = {v: t for v, t in self.told.items() if v in self.disks.plugged}
        self.told = {**have, volume: told}
        self.bring()
        return volume

    def bring(self) -> None:
        self.disks.bring(self.told, {"i-1": self.machine})

    def path(self, volume: str) -> str:
        return self.disks.plugged[volume].paths[0]

    def digest(self, volume: str) -> str:
        """Of all its bytes."""
        run("sync", "-f", str(self.disks.image(volume)))
        with self.disks.image(volume).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def inside(self, *argv: str) -> tuple[int, str]:
        assert self.machine._process is not None
        init = str(self.machine._init(self.machine._process))
        words = [*HOST_ENV, "nsenter", "-t", init, "-m", "-u", "-i", "-n", "-p", *argv]
        done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout + done.stderr

    def ask(self, *argv: str) -> tuple[int, str]:
        return self.inside("/usr/local/bin/fleetform-disk", *argv)

    def mount(
        self, volume: str, *, uuid: str = ONE, ours: str = "yes", target: str = "-", name: bool = False
    ) -> tuple[int, str]:
        known = f"name:{self.path(volume)}" if name else f"serial:{volume.replace('-', '')}"
        return self.ask("mount", volume, uuid, str(SIZE), ours, target, known)

    def mounted(self, volume: str, **options: Any) -> str:
        """Its folder."""
        code, said = self.mount(volume, **options)
        assert code == 0, said
        return f"{ALL}/{volume}"

    def unmounted(self, volume: str) -> None:
        code, said = self.ask("unmount", volume)
        assert code == 0, said


@pytest.fixture(scope="module")
def ground(allowed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    reason = disks.impediment()
    if reason:
        pytest.skip(reason)
    machines = Machines(1)
    machines.up()
    found = Disks(tmp_path_factory.mktemp("disks"), machines.name)
    try:
        yield Ground(machines[0], found)
    finally:
        machines[0].kill()
        found.close()
        machines.down()


def test_what_is_empty_is_formatted_once(ground):
    volume = ground.disk()
    folder = ground.mounted(volume)
    assert ground.machine.sh(f"ls -A {folder}") == ""
    ground.machine.sh(f"echo kept >{folder}/file")
    ground.mounted(volume)
    ground.unmounted(volume)
    ground.unmounted(volume)
    ground.mounted(volume, uuid=TWO)  # the disk says which it is
    assert ground.machine.sh(f"cat {folder}/file") == "kept\n"
    said = ground.machine.sh(f"grep ' {folder} ' /proc/self/mountinfo")
    assert {"nosuid", "nodev"} <= set(said.split()[5].split(","))
    ground.unmounted(volume)


SPOILS = {
    "no filesystem": "dd if=/dev/urandom of=$1 bs=4k seek=100 count=1",
    "only its end": "dd if=/dev/urandom of=$1 bs=4k seek=16383 count=1",
    "one byte": "printf x | dd of=$1 bs=1 seek=16777215",
    "swap": "mkswap $1",
    "another filesystem": "printf 'hsqs' | dd of=$1 bs=1 && printf '\\4' | dd of=$1 bs=1 seek=28",
    "partitions": (
        "printf '\\200\\0\\2\\0\\203\\0\\0\\0\\0\\10\\0\\0\\0\\20' | dd of=$1 bs=1 seek=446 "
        "&& printf '\\125\\252' | dd of=$1 bs=1 seek=510"
    ),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_what_may_be_somebodys_is_left_to_the_byte(ground, spoil):
    volume = ground.disk()
    ground.machine.sh(f"set -- {ground.path(volume)}; ({SPOILS[spoil]}) >/dev/null 2>&1; sync")
    before = ground.digest(volume)
    for ours in ("yes", "no"):
        code, said = ground.mount(volume, ours=ours)
        assert code == 76, said
        assert said.split()[:2] in [["FLEETFORM-ERR", why] for why in ("data", "kind", "fault")]
    assert ground.digest(volume) == before


def test_a_name_proves_nothing(ground):
    """On Xen, where a disk says nothing of itself: the filesystem has to be that of the volume."""
    volume = ground.disk(xen=True)
    folder = ground.mounted(volume, name=True)
    ground.machine.sh(f"echo kept >{folder}/file")
    ground.unmounted(volume)
    before = ground.digest(volume)
    code, said = ground.mount(volume, name=True, uuid=TWO)
    assert (code, "FLEETFORM-ERR stranger" in said) == (76, True)
    assert ground.digest(volume) == before
    ground.mounted(volume, name=True, uuid=TWO, ours="no")  # adopted: as large as it has to be
    ground.unmounted(volume)
    wrong = ("mount", volume, TWO, str(2 * SIZE), "no", "-", f"name:{ground.path(volume)}")
    assert "FLEETFORM-ERR stranger" in ground.ask(*wrong)[1]
    other = ground.disk(xen=True)
    wrong = ("mount", other, TWO, str(2 * SIZE), "yes", "-", f"name:{ground.path(other)}")
    assert "FLEETFORM-ERR stranger" in ground.ask(*wrong)[1]
    assert ground.ask("mount", other, TWO, str(SIZE), "yes", "-", "serial:vol9999")[1].startswith(
        "FLEETFORM-ERR absent"
    )


def test_half_of_a_filesystem_is_made_whole(ground):
    """Its maker was killed in between: there is no data yet."""
    volume = ground.disk()
    ground.machine.sh(
        "mv /usr/sbin/mkfs.ext4 /usr/sbin/mkfs.ext4.real\n"
        "printf '#!/bin/sh\\nfor d; do :; done\\ndd if=/dev/urandom of=$d bs=4k seek=9 count=9\\nexit 9\\n' "
        ">/usr/sbin/mkfs.ext4; chmod 755 /usr/sbin/mkfs.ext4"
    )
    try:
        assert ground.mount(volume)[1].startswith("FLEETFORM-ERR fault mkfs.ext4")
    finally:
        ground.machine.sh("mv /usr/sbin/mkfs.ext4.real /usr/sbin/mkfs.ext4")
    ground.mounted(volume)
    ground.unmounted(volume)


def test_many_at_once_are_one(ground):
    volume = ground.disk()
    with ThreadPoolExecutor(6) as pool:
        assert {code for code, _ in pool.map(lambda _: ground.mount(volume), range(6))} == {0}
    assert ground.machine.sh(f"grep -c ' {ALL}/{volume} ' /proc/self/mountinfo") == "1\n"
    ground.unmounted(volume)


def test_what_is_in_use_is_not_taken_away(ground):
    """By a process that is in it, or that has it mounted in a namespace of its own."""
    volume = ground.disk()
    folder = ground.mounted(volume)
    ground.machine.sh(f"cd {folder} && setsid -f sleep 600 </dev/null >/dev/null 2>&1")
    assert ground.ask("unmount", volume)[1].startswith("FLEETFORM-ERR busy")
    ground.machine.sh("pkill -f '^sleep 600$'")
    until(lambda: ground.ask("unmount", volume)[0] == 0, 60)
    ground.mounted(volume)
    # One that only runs beside it does not hold it; one that has taken it for itself does.
    ground.machine.sh("setsid -f unshare --mount --propagation slave sleep 602 </dev/null >/dev/null 2>&1")
    until(lambda: ground.inside("pgrep", "-f", "^sleep 602$")[0] == 0, 60)
    ground.unmounted(volume)
    ground.mounted(volume)
    ground.machine.sh("setsid -f unshare --mount --propagation private sleep 601 </dev/null >/dev/null 2>&1")
    until(lambda: ground.inside("pgrep", "-f", "^sleep 601$")[0] == 0, 60)
    assert ground.ask("unmount", volume)[1].startswith("FLEETFORM-ERR busy something")
    ground.machine.sh("pkill -f '^sleep 601$'")
    until(lambda: ground.ask("unmount", volume)[0] == 0, 60)


def test_it_is_shown_where_nothing_is(ground):
    """To the whole node, for ranks that may mount nothing; else the folder is made, and no more."""
    volume, other = ground.disk(), ground.disk()
    ground.mounted(volume, target="/mine")
    assert ground.machine.sh("ls -A /mine; stat -c %U /mine") == "root\n"
    ground.machine.sh("mv /usr/bin/unshare /usr/bin/unshare.real && ln -s /bin/false /usr/bin/unshare")
    ground.machine.sh("mkdir -p /full && touch /full/file && ln -s /etc /link && mkdir -m 777 /open")
    folder = ground.mounted(volume, target="/data/here")
    assert ground.machine.sh(f"test /data/here -ef {folder} && echo same") == "same\n"
    for target in ("/data/here", "/full", "/link/new", "/open/new", "/etc/new", "/../etc/new", "relative"):
        ground.mounted(other, target=target)
        shown = ground.machine.sh(f"if [ {target} -ef {ALL}/{other} ]; then echo yes; else echo no; fi")
        assert shown == "no\n"
    assert ground.machine.sh(f"test /data/here -ef {folder} && echo same") == "same\n"
    assert ground.machine.sh("ls -d /etc/new /open/new 2>/dev/null || :") == ""
    ground.unmounted(volume)
    ground.unmounted(other)
    assert ground.machine.sh("ls /data/here") == ""
    ground.machine.sh("mv /usr/bin/unshare.real /usr/bin/unshare")


@pytest.mark.parametrize(
    "argv",
    [
        ("mount", "../../etc", ONE, "1", "yes", "-", "serial:vol00000001"),
        ("mount", "vol-1", "short", "1", "yes", "-", "serial:vol00000001"),
        ("mount", "vol-1", ONE, "1g", "yes", "-", "serial:vol00000001"),
        ("mount", "vol-1", ONE, "1", "maybe", "-", "serial:vol00000001"),
        ("mount", "vol-1", ONE, "1", "yes", "-", "link:/etc/passwd"),
        ("mount", "vol-1", ONE, "1", "yes", "-", "link:/dev/disk/../vda"),
        ("mount", "vol-1", ONE, "1", "yes", "-", "name:/dev/../etc/x"),
        ("mount", "vol-1", ONE, "1", "yes", "-", "serial:*"),
        ("mount", "vol-1", ONE, "1", "yes"),
        ("unmount", "a b"),
        ("unmount", "vol-1", "more"),
        ("erase", "vol-1"),
    ],
)
def test_what_it_does_not_understand_it_refuses(ground, argv):
    """Anybody who may run it may pass any arguments."""
    assert ground.ask(*argv)[1].startswith("FLEETFORM-ERR usage")


def test_a_filesystem_grows_with_its_disk(ground):
    volume = ground.disk()
    folder = ground.mounted(volume)
    ground.told = {**ground.told, volume: {**ground.told[volume], "size": ground.told[volume]["size"] * 2}}
    ground.bring()
    status = Path("/proc/self/status").read_text()
    may = int(status.split("CapEff:")[1].split()[0], 16) & SYS_RESOURCE
    code, said = ground.mount(volume)
    if not may:
        # Which the kernel wants for it, and this machine's root has not: so that is what it says.
        assert "the filesystem does not grow" in said
        ground.unmounted(volume)
        pytest.skip("ext4 grows for CAP_SYS_RESOURCE alone")
    assert code == 0, said
    assert int(ground.machine.sh(f"stat -f -c '%b * %S' {folder} | xargs expr")) > 3 * SIZE // 2
    ground.unmounted(volume)


def test_one_of_xfs_grows_too(ground):
    if not shutil.which("mkfs.xfs") or "xfs" not in Path("/proc/filesystems").read_text():
        pytest.skip("there is no xfs here (xfsprogs)")
    volume = ground.disk(mib=320)
    ground.machine.sh(f"mkfs.xfs -q {ground.path(volume)}")
    folder = ground.mounted(volume, ours="no")
    ground.told = {**ground.told, volume: {**ground.told[volume], "size": ground.told[volume]["size"] * 2}}
    ground.bring()
    ground.mounted(volume, ours="no")
    assert int(ground.machine.sh(f"stat -f -c '%b * %S' {folder} | xargs expr")) > 7 * SIZE
    ground.unmounted(volume)
