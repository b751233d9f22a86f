"""What it costs to start, poll and stop a rank on each of 64 hosts; beside plain ssh and ansible-core.
And what `status` of them costs, beside asyncssh.

    python benchmarks/hosts                       # 64 hosts, needs root, as tests/providers/ssh does
    python benchmarks/hosts --hosts 16 --only provider,ssh
    python benchmarks/hosts --ansible DIR         # an environment that has ansible-core, instead of a new one

The hosts are those of `tests/providers/ssh`: real sshd, all on this machine, so that wall times are mostly
those of 64 hosts on a few CPUs. CPU seconds are the controller's own, user and system, with its children:
that is what a controller pays, wherever the hosts are. Each figure is the median of the rounds; ratios are
against `provider`.

provider: the ssh provider in one process that keeps its connections, 32 hosts at once. command: the installed
command, a process each: `apply` of a task of 64 ranks, `status`, `stop`. ssh: one `ssh` process a host and
step, 32 at once: a shell that goes to the background, a `kill -0` of its pid, a `kill` of its group. ansible:
one `ansible-playbook` a step with the same lines of shell: 32 forks, pipelining, its kept connections. Only
ours starts at most once, keeps exit codes and logs, and knows a host that was rebooted.

looks: `status` beside bare asyncssh that runs `hostname` on the same hosts, a process each, with its imports;
and with one host whose login takes 40 s.

Exit code 1 if polling all hosts costs `provider` 0.2 CPU seconds or more, if `status` takes more than twice
the wall or CPU seconds of asyncssh, or more than 5 s with the slow host.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

if not __package__:  # run as a folder, which then is first on the path instead of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.hosts.cost import Cost
from benchmarks.hosts.looks import looks
from benchmarks.hosts.tools import STEPS, Ansible, Command, Plain, Provided, Tool
from providers.ssh.transport import background
from tests.providers.ssh.machines import Machines, impediment

LIMIT = 0.2
"""CPU seconds that a poll of all hosts may cost."""
TOOLS: dict[str, Callable[[Machines, Path, argparse.Namespace], Tool]] = {
    "provider": lambda machines, folder, _: Provided(machines, folder),
    "command": lambda machines, folder, _: Command(machines, folder),
    "ssh": lambda machines, folder, _: Plain(machines, folder),
    "ansible": lambda machines, folder, given: Ansible(machines, folder, given.ansible),
}
LOOKS = "looks"


def measured(tool: Tool, rounds: int) -> dict[str, Cost]:
    """Step → its median cost; `once` is what comes before the first round."""
    found: dict[str, list[Cost]] = {step: [] for step in STEPS}
    once = tool.begin()
    for number in range(rounds):
        for step in STEPS:
            found[step].append(getattr(tool, step)(number))
    costs = {
        step: Cost(median(c.wall for c in each), median(c.cpu for c in each)) for step, each in found.items()
    }
    return {"once": once, **costs}


def row(name: str, costs: dict[str, Cost], base: dict[str, Cost] | None) -> None:
    """Two lines: figures, and how many times those of `provider` they are."""
    print(f"{name:10}" + "".join(f"{c.wall:>9.2f}{c.cpu:>8.2f}" for c in costs.values()), flush=True)
    if base and base is not costs:
        pairs = [(costs[step], base[step]) for step in STEPS]
        ratios = "".join(f"{c.wall / b.wall:>8.1f}x{c.cpu / b.cpu:>7.0f}x" for c, b in pairs)
        print(f"{'':27}{ratios}", flush=True)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--only", default=",".join((*TOOLS, LOOKS)), help="default: %(default)s")
    parser.add_argument("--ansible", type=Path, help="an environment with ansible-core")
    given = parser.parse_args(argv)
    given.only = given.only.split(",")
    wrong = {*given.only} - {*TOOLS, LOOKS}
    if wrong:
        parser.error(f"there is no {', '.join(sorted(wrong))}")
    return given


def main() -> None:
    """Print the table."""
    given = arguments()
    if reason := impediment():
        raise SystemExit(reason)
    machines = Machines(given.hosts)
    base: dict[str, Cost] | None = None
    within = True
    try:
        machines.up()
        print(f"{given.hosts} hosts; wall and CPU seconds, the median of {given.rounds} rounds")
        if {*given.only} - {LOOKS}:
            print(f"{'':10}" + "".join(f"{name:>17}" for name in ("once", *STEPS)))
        with tempfile.TemporaryDirectory() as name:
            for tool, make in TOOLS.items():
                if tool not in given.only:
                    continue
                folder = Path(name, tool)
                folder.mkdir()
                made = make(machines, folder, given)
                costs = measured(made, given.rounds)
                made.end()
                base = costs if tool == "provider" else base
                row(tool, costs, base)
            if LOOKS in given.only:
                Path(name, LOOKS).mkdir()
                within = looks(machines, Path(name, LOOKS), given.rounds)
    finally:
        background.close()
        machines.down()
    if base:
        cost = base["poll"].cpu
        print(f"polling {given.hosts} hosts costs {cost:.3f} CPU seconds; the limit is {LIMIT}")
        within = within and cost < LIMIT
    raise SystemExit(0 if within else 1)


if __name__ == "__main__":
    main()
