"""What `status` of all hosts costs, beside bare asyncssh that runs `hostname` on the same ones.

Each is a process of its own, its imports included. Then one host's login is made to take long.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from benchmarks.hosts.cost import Cost, cost_of, run
from benchmarks.hosts.tools import Command
from tests.providers.ssh.machines import Machine, Machines

LIMIT = 2.0
"""Times the CPU and wall seconds of asyncssh that `status` may take."""
SLOW_LOGIN = 40
SLOW_LIMIT = 5.0
"""Seconds of `status` with one host whose login takes that long."""
BARE = """
import asyncio, asyncssh, sys
login, known_hosts, *hosts = sys.argv[1:]

async def ask(host):
    way = asyncssh.connect(host, username="root", client_keys=[login], known_hosts=known_hosts, config=None)
    async with way as connection:
        await connection.run("hostname", check=True)

async def main():
    await asyncio.gather(*map(ask, hosts))

asyncio.run(main())
"""
SLOW = f"""
printf '#!/bin/sh\\nsleep {SLOW_LOGIN}\\n' >/usr/local/bin/slow-login
chmod 755 /usr/local/bin/slow-login
cat >>/etc/ssh/sshd_config <<'THE-END'
AuthorizedKeysFile none
AuthorizedKeysCommand /usr/local/bin/slow-login
AuthorizedKeysCommandUser root
THE-END
kill -HUP "$(cat /run/sshd.pid)"
"""


def looks(machines: Machines, folder: Path, rounds: int) -> bool:
    """Print both, and whether they are within the limits."""
    command = Command(machines, folder)
    command.begin()
    command.start(0)
    argv = [sys.executable, "-c", BARE, machines.login, str(folder / "known_hosts")]
    argv += [machine.address for machine in machines]
    run(argv, folder)
    command.poll(0)  # what is tried on a host now and then is not counted
    bare, status = [], []
    for _ in range(rounds):
        bare.append(cost_of(lambda: run(argv, folder)))
        status.append(command.poll(0))
    base, mine = _median(bare), _median(status)
    wall, cpu = mine.wall / base.wall, mine.cpu / base.cpu
    print(f"{'':20}{'wall':>8}{'CPU':>8}")
    print(f"hostname by asyncssh{base.wall:>8.2f}{base.cpu:>8.2f}")
    print(
        f"status              {mine.wall:>8.2f}{mine.cpu:>8.2f}{wall:>8.1f}x{cpu:>7.1f}x (limit {LIMIT:g}x)"
    )
    slow = _with_a_slow_one(machines[-1], command)
    print(f"status, a slow login{slow.wall:>8.2f}{slow.cpu:>8.2f} (limit {SLOW_LIMIT:g} s)", flush=True)
    return max(wall, cpu) <= LIMIT and slow.wall <= SLOW_LIMIT


def _with_a_slow_one(machine: Machine, command: Command) -> Cost:
    before = machine.sh("cat /etc/ssh/sshd_config")
    machine.sh(SLOW)
    states: list[tuple[str, str]] = []
    cost = cost_of(lambda: states.extend(command.project.nodes().values()))
    assert dict(states)[machine.address] == "unknown", states
    assert [state for _, state in states].count("ready") == len(states) - 1, states
    machine.sh(f"cat >/etc/ssh/sshd_config <<'THE-END'\n{before}THE-END\nkill -HUP \"$(cat /run/sshd.pid)\"")
    return cost


def _median(costs: list[Cost]) -> Cost:
    return Cost(median(c.wall for c in costs), median(c.cpu for c in costs))
