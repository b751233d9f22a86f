"""Ways to start, poll and stop a rank on each host. Each step looks at what came of it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from benchmarks.hosts.cost import Cost, cost_of, run
from declarative.model.state import Record
from declarative.model.status import RankState
from tests.providers.ssh.machines import Machine, Machines
from tests.providers.ssh.nodes import Nodes
from tests.providers.ssh.rack import Rack
from tests.support.cli import Process, task

STEPS = ("start", "poll", "stop")
AT_ONCE = 32
RANK = "exec sleep 10000"


def start_script(number: int) -> str:
    """A shell in the background, and its pid in a file."""
    rank = shlex.quote(f"echo $$ >/var/tmp/pid.{number}; {RANK}")
    return f"setsid sh -c {rank} </dev/null >/var/tmp/log.{number} 2>&1 &"


def poll_script(number: int) -> str:
    """Whether it is there."""
    return f"kill -0 $(cat /var/tmp/pid.{number})"


def stop_script(number: int) -> str:
    """Its group is ended, and waited for."""
    return f"p=$(cat /var/tmp/pid.{number}); kill -- -$p; while kill -0 $p 2>/dev/null; do sleep 0.02; done"


CLEAR = "rm -f /var/tmp/pid.* /var/tmp/log.*"


class Tool(Protocol):
    """One way."""

    def begin(self) -> Cost:
        """What is needed once, before ranks can be started."""

    def start(self, number: int) -> Cost:
        """Start a rank on each host; `number` counts the rounds."""

    def poll(self, number: int) -> Cost:
        """Ask each host how its rank is."""

    def stop(self, number: int) -> Cost:
        """Stop all of them, and wait for their ends."""

    def end(self) -> None:
        """Leave the hosts to the next one."""


def at_once(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Side by side."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(work, items))


class Provided:
    """The provider, in this process."""

    def __init__(self, machines: Machines, folder: Path) -> None:
        self.nodes = Nodes(machines, folder, connect_timeout=60)
        self.made: list[Record] = []

    def begin(self) -> Cost:
        def work() -> None:
            self.made = at_once(self.nodes.make, range(len(self.nodes.machines)))

        return cost_of(work)

    def _each(self, ask: Callable[[Record], Any], wanted: RankState) -> Cost:
        found: list[Any] = []
        cost = cost_of(lambda: found.extend(at_once(ask, self.made)))
        assert {status.state for status in found} == {wanted}, found
        return cost

    def start(self, number: int) -> Cost:
        return self._each(lambda n: self.nodes.start(n, f"bench-0.{number}", RANK), RankState.RUNNING)

    def poll(self, number: int) -> Cost:
        return self._each(lambda n: self.nodes.poll(n, f"bench-0.{number}"), RankState.RUNNING)

    def stop(self, number: int) -> Cost:
        return self._each(lambda n: self.nodes.provider.stop(n, f"bench-0.{number}", 10), RankState.STOPPED)

    def end(self) -> None:
        at_once(self.nodes.provider.delete, self.made)


class Started(Rack):
    """Its commands start as users' do. Those of tests are forked, and no cost of such a process is ours."""

    def start(self, *args: str, env: Mapping[str, str] | None = None, **options: Any) -> Process:
        return super().start(*args, env={**(env or {}), "PYTHONHASHSEED": "0"}, **options)


class Command:
    """The installed command, a process for each step."""

    def __init__(self, machines: Machines, folder: Path) -> None:
        self.project = Started(folder, machines)
        self.hosts = [self.project.host(i) for i in range(len(machines))]

    def _declare(self, *documents: Any) -> None:
        ssh = {"type": "backend", "name": "ssh", "options": {"ssh_config": "/dev/null"}}
        self.project.declare(ssh, self.project.rack(*self.hosts), *documents)

    def begin(self) -> Cost:
        self._declare()
        return cost_of(self.project.apply)

    def start(self, number: int) -> Cost:
        self._declare(task(f"bench-{number}", RANK, nodes=len(self.hosts)))
        return cost_of(self.project.apply)

    def poll(self, number: int) -> Cost:
        states: set[str] = set()
        cost = cost_of(
            lambda: states.update(r["state"] for r in self.project.ranks(f"bench-{number}").values())
        )
        assert states == {"running"}
        return cost

    def stop(self, number: int) -> Cost:
        return cost_of(lambda: self.project.run("stop", f"bench-{number}"))

    def end(self) -> None:
        self.project.run("destroy", "--auto-approve")


class Plain:
    """One `ssh` for each host and step."""

    def __init__(self, machines: Machines, folder: Path) -> None:
        self.machines, self.folder = machines, folder
        (folder / "known_hosts").write_text(machines.known_hosts)

    def _each(self, script: str) -> Cost:
        options = [
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            f"UserKnownHostsFile={self.folder}/known_hosts",
        ]
        ssh = ["ssh", "-F", "/dev/null", "-i", self.machines.login]
        ssh += [word for option in options for word in ("-o", option)]

        def one(machine: Machine) -> None:
            run([*ssh, f"root@{machine.address}", script], self.folder)

        return cost_of(lambda: at_once(one, self.machines))

    def begin(self) -> Cost:
        return self._each("true")

    def start(self, number: int) -> Cost:
        return self._each(start_script(number))

    def poll(self, number: int) -> Cost:
        return self._each(poll_script(number))

    def stop(self, number: int) -> Cost:
        return self._each(stop_script(number))

    def end(self) -> None:
        self._each(CLEAR)


class Ansible:
    """One `ansible-playbook` for each step; ansible-core in an environment of its own."""

    def __init__(self, machines: Machines, folder: Path, environment: Path | None) -> None:
        self.machines, self.folder = machines, folder
        if environment is None:
            environment = folder / "venv"
            run([sys.executable, "-m", "venv", str(environment)], folder)
            run([str(environment / "bin" / "pip"), "install", "-q", "ansible-core"], folder)
        self.playbook = str(environment / "bin" / "ansible-playbook")
        (folder / "known_hosts").write_text(machines.known_hosts)
        common = (
            "ansible_user=root ansible_python_interpreter=/usr/bin/python3 "
            f"ansible_ssh_private_key_file={machines.login} "
            f"ansible_ssh_common_args='-F /dev/null -o UserKnownHostsFile={folder}/known_hosts'"
        )
        lines = [f"{m.name} ansible_host={m.address} {common}" for m in machines]
        (folder / "ansible.cfg").write_text("")
        (folder / "hosts.ini").write_text("[all]\n" + "\n".join(lines) + "\n")

    def _play(self, script: str) -> Cost:
        play = [{"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.shell": script}]}]
        file = self.folder / "play.yml"
        file.write_text(json.dumps(play))
        env = {
            "ANSIBLE_FORKS": str(AT_ONCE),
            "ANSIBLE_PIPELINING": "True",
            "ANSIBLE_HOME": str(self.folder / "home"),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.folder / "cp"),
            "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"),
            "LC_ALL": "C.UTF-8",
        }
        argv = [self.playbook, "-i", str(self.folder / "hosts.ini"), str(file)]
        return cost_of(lambda: run(argv, self.folder, env))

    def begin(self) -> Cost:
        return self._play("true")

    def start(self, number: int) -> Cost:
        return self._play(start_script(number))

    def poll(self, number: int) -> Cost:
        return self._play(poll_script(number))

    def stop(self, number: int) -> Cost:
        return self._play(stop_script(number))

    def end(self) -> None:
        self._play(CLEAR)
