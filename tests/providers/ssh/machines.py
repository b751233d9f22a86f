"""Hosts for tests on one machine: real sshd in namespaces, each with its own address, host key and disk.

A host can be powered off, rebooted and cut off, and its disk is small enough to be filled. No packet leaves
the machine: the addresses are of a block for tests (RFC 2544), and missing hosts are unreachable. Hosts share
kernel, CPUs and memory.

It needs root. A killed run leaves remains, which the next run with its number removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NETWORKS = range(1, 100)
"""`198.18.<network>.0/24`: as many fleets of hosts may be up at once."""
TOOLS = ("/usr/sbin/sshd", "ip", "ssh-keygen", "unshare", "nsenter", "setpriv", "pivot_root", "pkill")
SSHD = """\
HostKey /etc/ssh/host_key
PidFile /run/sshd.pid
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UseDNS no
PrintMotd no
MaxStartups 200
"""

HOST_ENV = ("env", "-u", "TMPDIR")
"""Before what runs inside a host, whose temporary directory is its own."""


def impediment() -> str | None:
    """Why there can be no hosts here; None if there can."""
    if os.geteuid() != 0:
        return "hosts need root"
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    if missing:
        return f"hosts need {', '.join(missing)} (openssh-server, iproute2, util-linux, procps)"
    trial = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "mount", "-t", "tmpfs", "x"]
    done = subprocess.run([*trial, "/mnt"], capture_output=True, text=True, check=False)
    return f"hosts need namespaces and mounts: {done.stderr.strip()}" if done.returncode else None


def run(*argv: str, given: str | None = None) -> str:
    """A command that has to succeed."""
    done = subprocess.run(argv, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
    return done.stdout


def until(look: Callable[[], object], seconds: float = 120) -> None:
    """Wait for something to be true; the time only ends a test that has failed."""
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "what the test waits for did not come"
        time.sleep(0.02)


class Machine:
    """One host."""

    def __init__(self, machines: Machines, index: int) -> None:
        self.name = f"h{index}"
        self.space = f"{machines.name}-{index}"
        self.wire = f"{machines.name}v{index}"
        self.address = f"{machines.prefix}.{index + 2}"
        self.folder = machines.folder / self.name
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def public_key(self) -> str:
        """`ssh-ed25519 AAAA…`."""
        return " ".join((self.folder / "key.pub").read_text().split()[:2])

    @property
    def fingerprint(self) -> str:
        """`SHA256:…`."""
        return run("ssh-keygen", "-lf", str(self.folder / "key.pub")).split()[1]

    def prepare(self, size: str, login: str, hosts: str) -> None:
        """A disk, a key, and what its init reads."""
        disk = self.folder / "disk"
        disk.mkdir(parents=True)
        run("mount", "-t", "tmpfs", "-o", f"size={size},mode=755", self.space, str(disk))
        self.make_key()
        for file, text in (("authorized_keys", login), ("hosts", hosts), ("sshd_config", SSHD)):
            (self.folder / file).write_text(text)

    def told(self, user_data: str) -> None:
        """As `prepare`, and does what cloud-init would do with this user data, all of which must be
        understood.
        """
        head, _, body = user_data.partition("\n")
        assert head == "#cloud-config"
        given = json.loads(body)
        default, user = given.pop("users")
        assert default == "default"
        assert given.pop("ssh_deletekeys") is True
        assert given.pop("disable_root", True) is (user["name"] != "root")
        self.prepare("64m", "", "127.0.0.1 localhost\n")
        keys = given.pop("ssh_keys")
        assert user.pop("uid", None) == (47600 if user["name"] == "fleetform" else None)
        if "sudo" in user:
            rule = f"{user['name']} {user.pop('sudo')}\n"
            self._file("/etc/sudoers.d/90-cloud-init-users", rule, 0o440)
        for file in given.pop("write_files", ()):
            assert file["owner"] == "root:root"
            self._file(file["path"], file["content"], int(file["permissions"], 8))
        assert not given, f"nobody here knows {', '.join(given)}"
        (self.folder / "key").write_text(keys["ed25519_private"])
        (self.folder / "key.pub").write_text(keys["ed25519_public"])
        (self.folder / "users").mkdir()
        (self.folder / "users" / user["name"]).write_text("\n".join(user["ssh_authorized_keys"]) + "\n")

    def _file(self, path: str, text: str, mode: int) -> None:
        """One that is there when it boots."""
        file = self.folder / "files" / path.removeprefix("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def make_key(self) -> None:
        """A new host key; it counts from the next boot on."""
        for file in ("key", "key.pub"):
            (self.folder / file).unlink(missing_ok=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(self.folder / "key"))

    @property
    def runs(self) -> bool:
        """Whether it is on."""
        return self._process is not None

    def boot(self) -> None:
        """Switch it on."""
        inside = ["unshare", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child"]
        with (self.folder / "console.log").open("ab") as console:
            self._process = subprocess.Popen(
                # It dies with the tests, also if they are killed.
                [
                    *(
                        "setpriv",
                        "--pdeathsig",
                        "KILL",
                        *HOST_ENV,
                        "nsenter",
                        f"--net=/run/netns/{self.space}",
                    ),
                    *(*inside, str(HERE / "init.sh"), str(self.folder), self.name),
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )

    def answers(self) -> bool:
        """Whether sshd says hello."""
        try:
            with socket.create_connection((self.address, 22), 1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def on(self) -> None:
        """Switch it on, plug it in, and wait for sshd."""
        self.boot()
        self.plug()
        try:
            until(self.answers)
        except AssertionError:
            raise AssertionError((self.folder / "console.log").read_text()) from None

    def off(self) -> None:
        """Cut its power: nothing is written or sent."""
        self.cut()  # first, for a dying kernel's sockets would send a farewell
        self.kill()

    def kill(self) -> None:
        """End all that runs on it."""
        process, self._process = self._process, None
        if process is None:
            return
        init = self._init(process)
        for pid in (init, process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        until(lambda: not _lives(init))

    def reboot(self) -> None:
        """Off and on again."""
        self.off()
        self.on()

    def cut(self) -> None:
        """Pull the cable; it goes on running."""
        run("ip", "-n", self.space, "link", "set", "eth0", "down")

    def plug(self) -> None:
        """Plug the cable in again."""
        run("ip", "-n", self.space, "link", "set", "eth0", "up")

    def sh(self, script: str) -> str:
        """Run something on it as root, not over the network."""
        assert self._process is not None
        init = str(self._init(self._process))
        return run(*HOST_ENV, "nsenter", "-t", init, "-m", "-u", "-i", "-n", "-p", "sh", "-ceu", script)

    def inside(self, path: str) -> Path:
        """One of its files, also of those that a reboot takes away; `OSError` where it is off."""
        if self._process is None:
            raise FileNotFoundError(path)
        return Path(f"/proc/{self._init(self._process)}/root{path}")

    def install(self, name: str, script: str) -> None:
        """A program on its PATH, before all others of that name."""
        path = f"/usr/local/bin/{name}"
        self.sh(f"cat >{path} <<'THE-END'\n{script}\nTHE-END\nchmod 755 {path}")

    def _init(self, process: subprocess.Popen[bytes]) -> int:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(lambda: children.read_text().split())
        return int(children.read_text().split()[0])


class Machines(Sequence[Machine]):
    """Some hosts on one network, which this machine is on, too."""

    def __init__(self, count: int, size: str = "64m") -> None:
        self._lock = self._number()
        self.machines = [Machine(self, index) for index in range(count)]
        self._size = size

    def _number(self) -> int:
        """The number of an unused network, held as long as the file is open."""
        for number in NETWORKS:
            handle = os.open(f"/run/fleetform-hosts.{number}", os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                continue
            self.name, self.prefix = f"fh{number}", f"198.18.{number}"
            self.folder = Path(f"/run/fleetform-hosts.{number}.d")
            return handle
        raise AssertionError("too many hosts are up")

    def __getitem__(self, index: Any) -> Any:
        return self.machines[index]

    def __len__(self) -> int:
        return len(self.machines)

    def __iter__(self) -> Iterator[Machine]:
        return iter(self.machines)

    @property
    def login(self) -> str:
        """The private key that all of them let in."""
        return str(self.folder / "login")

    @property
    def known_hosts(self) -> str:
        """The keys of all of them, for a file."""
        return "".join(f"{m.address} {m.public_key}\n" for m in self)

    def up(self, *, boot: bool = True, clock: float | None = None) -> None:
        """Make the network, switch all of them on, and wait for them; else there is only the network.

        For `clock` see `set_clock`.
        """
        self._clear()
        self.folder.mkdir(mode=0o755)
        (self.folder / "shared").mkdir()
        if clock is not None:
            self.set_clock(clock)
        # What is not there shall be unreachable, and not be looked for in the world.
        run("ip", "route", "add", "blackhole", f"{self.prefix}.0/24", "metric", "4294967295")
        run("ip", "link", "add", self.name, "type", "bridge")
        run("ip", "addr", "add", f"{self.prefix}.1/24", "dev", self.name)
        run("ip", "link", "set", self.name, "up")
        for m in self:
            run("ip", "netns", "add", m.space)
            run("ip", "link", "add", m.wire, "type", "veth", "peer", "name", "eth0", "netns", m.space)
            run("ip", "link", "set", m.wire, "master", self.name, "up")
            inside = ["link set lo up", f"addr add {m.address}/24 dev eth0", "link set eth0 up"]
            run("ip", "-n", m.space, "-batch", "-", given="\n".join(inside) + "\n")
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tests", "-f", self.login)
        login = Path(f"{self.login}.pub").read_text()
        hosts = "127.0.0.1 localhost\n" + "".join(f"{m.address} {m.name}\n" for m in self)
        for m in self if boot else ():
            m.prepare(self._size, login, hosts)
            m.boot()
        for m in self if boot else ():
            until(m.answers)

    def set_clock(self, at: float) -> None:
        """What time `date` says, on those that were switched on after the first call."""
        text = f"{at:021.9f}\n".encode()  # always as long, and at once: somebody reads it just now
        clock = os.open(self.folder / "clock", os.O_CREAT | os.O_WRONLY, 0o644)
        os.pwrite(clock, text, 0)
        os.close(clock)

    def down(self) -> None:
        """All of it goes."""
        for m in self:
            m.kill()
        self._clear()
        os.close(self._lock)

    def _clear(self) -> None:
        spaces = [
            line.split()[0]
            for line in run("ip", "netns", "list").splitlines()
            if line.startswith(f"{self.name}-")
        ]
        # The cables first: those of a namespace go with it, but not at once.
        for link in Path("/sys/class/net").iterdir():
            if link.name == self.name or link.name.startswith(f"{self.name}v"):
                run("ip", "link", "del", link.name)
        for space in spaces:
            run("ip", "netns", "del", space)
        for loop in Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(OSError):  # it goes just now
                if Path(loop.read_text()).name.startswith(f"{self.name}-"):
                    run("losetup", "-d", f"/dev/{loop.parent.parent.name}")
        if run("ip", "route", "show", "type", "blackhole", f"{self.prefix}.0/24"):
            run("ip", "route", "del", "blackhole", f"{self.prefix}.0/24", "metric", "4294967295")
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in reversed([m for m in mounts if m.startswith(f"{self.folder}/")]):
            run("umount", "-l", mount)
        shutil.rmtree(self.folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
