"""What is lost, made twice or torn when an apply is killed, again and again; beside Terraform's.

    python benchmarks/crash                          # 240 kills on both backends, 20 of Terraform
    python benchmarks/crash --kills 40 --only local,cloud
    python benchmarks/crash --ways group --kills 80  # round steps that are committed together, and no others
    python benchmarks/crash --every-step             # a first apply, killed at each of its journal's steps
    python benchmarks/crash --state postgres         # the state in a PostgreSQL server, which is started here
    python benchmarks/crash --only hosts,ec2         # real sshd in namespaces (as root), and moto's EC2

fleetform: a project of 202 resources (150 volumes, 10 nodes, 14 ranks with a reservation and an attachment
each) is applied with `--parallelism 16` and killed with SIGKILL until it is whole; then the next one. `local`
makes folders and processes, `cloud` is the process of `tests/providers/cloud`, with latency, paging and
idempotency tokens. Of `late`, a tenth of the writes has its effect long after its caller was killed, and
often after the next apply; `names` knows no tokens, and takes a name once; `faulty` also throttles, fails and
resets. `hosts` are six with 12 ranks and 18 volumes on their disks, `ec2` is 20 nodes and 40 volumes of
moto's API. Five ways to be killed: before a result is committed (`finish`), after an intent is committed
(`begin`), before any write at all (`write`), at each of eight points round steps that are committed together
(`group`), and at chance instants (`time`).

After each kill the state is read as a whole: one that cannot be, or contradicts itself, is torn. At the end
`apply`, `plan --detailed-exitcode` and `state check` have to give 0: else somebody has to mend something by
hand. Then everything is counted: lost is what the backend has and the state has not, or the other way round,
and a rank that never ran; twice is what the backend has, or ever made, more than once, and ranks that began
twice. Then `destroy` is killed in the same ways; left is what is there or runs after it.

Terraform, where it is on PATH: as many `terraform_data`, each of which makes a file, so that what was made
can be counted; killed at a chance instant of its apply, then applied again. Lost is what was made and is not
in the state after the kill; twice are the files too many after the second apply; torn is a state file that
is empty or no JSON.

All chance is seeded; instants are instants, so that no two runs are the same to the last kill. Exit code 1 if
anything of fleetform's was lost, made twice or torn, or had to be mended.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

if not __package__:  # run as a folder, which then is first on the path instead of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.crash import places, terraform
from tests.providers.cloud.run import RunningCloud
from tests.support.forked import warm_up
from tests.support.killing import (
    DEFAULT,
    Chain,
    Count,
    Kill,
    Size,
    at_any_time,
    at_each_begin,
    at_each_finish,
    at_each_group,
    at_each_write,
    steps,
)

CLOUDS = {
    "late": ("--latency", "0.02", "--late", "0.1", "--slow", "1.5"),
    "cloud": ("--latency", "0.05"),
    "names": ("--latency", "0.05", "--names"),
    "faulty": ("--latency", "0.02", "--faults", "0.05"),
}
PLACES = {"hosts": places.on_hosts, "ec2": places.on_ec2}
BACKENDS = ("local", *CLOUDS, *PLACES)
MOST = 40
"""Kills of one project; then the next is begun."""
MOST_OF_DESTROY = 5
"""Kills of its `destroy`."""

How = Callable[[int], Kill]


def ways(chance: random.Random, where: str) -> dict[str, How]:
    """The ways, by name."""
    return {
        "finish": at_each_finish,
        "begin": at_each_begin,
        "write": at_each_write,
        "group": at_each_group,
        "time": at_any_time(chance, {"local": 0.8, **dict.fromkeys(PLACES, 4.0)}.get(where, 1.2)),
    }


class States:
    """Where states are kept: a file of the project, or a database each of one server."""

    def __init__(self, kind: str, stack: ExitStack) -> None:
        self._server = None
        if kind == "postgres":
            from tests.support import postgres

            if reason := postgres.missing():
                raise SystemExit(reason)
            self._server = stack.enter_context(postgres.running())
            os.environ.update(self._server.environment)  # this process reads states as well

    def new(self) -> str:
        """The URL of a state that is not there yet."""
        return self._server.url(self._server.database()) if self._server else DEFAULT

    @property
    def env(self) -> dict[str, str]:
        """What a command needs to get at it."""
        return self._server.environment if self._server else {}


@contextmanager
def chain(folder: Path, where: str, size: Size, states: States, seed: int) -> Iterator[Chain]:
    """One project, on a cloud or on machines of its own."""
    if where in PLACES:
        with PLACES[where](folder, states.new(), states.env) as made:
            yield made
        return
    options = CLOUDS.get(where)
    cloud = None
    if options is not None:
        cloud = RunningCloud(folder.with_suffix(".db"), "--seed", str(seed), *options)
    made = Chain(folder, size, cloud, states.new(), states.env)
    try:
        yield made
    finally:
        made.close()
        if cloud:
            cloud.close()


def row(tool: str, where: str, how: str, resources: int, count: Count) -> None:
    """One line of the table."""
    figures = (count.kills, count.applies, count.lost, count.duplicates, count.torn, count.manual, count.left)
    text = "".join(f"{n:>9}" for n in figures)
    print(f"{tool:10} {where:7} {how:7} {resources:>9}{text}", flush=True)
    for note in count.notes[:3]:
        print(f"    {note[:600]}", flush=True)


def measured(root: Path, where: str, given: argparse.Namespace, states: States, total: Count) -> None:
    """All kills of one backend: each way has its share."""
    size = Size(volumes=max(30, given.resources - 52))
    chance = random.Random(given.seed)
    chosen = {how: kill for how, kill in ways(chance, where).items() if how in given.ways.split(",")}
    for how, kill in chosen.items():
        count = Count()
        share = given.kills // len(chosen)
        while count.kills < share:
            folder = root / f"{where}-{how}-{count.applies}"
            with chain(folder, where, size, states, given.seed + count.applies) as project:
                steps(project, kill, min(MOST, share - count.kills))
                project.destroy(kill, MOST_OF_DESTROY)
                count.add(project.count)
                resources = project.size.resources
        row("fleetform", where, how, resources, count)
        total.add(count)


def every_step(root: Path, where: str, given: argparse.Namespace, states: States, total: Count) -> None:
    """A first apply is killed before its first write, its second one, and so on to its last."""
    size = Size(volumes=max(30, given.resources - 52))
    count = Count()
    for step in range(1, 100_000, given.stride):
        with chain(root / f"{where}-step-{step}", where, size, states, step) as project:
            if not project.kill(Kill("write", step)):
                break
            count.add(project.finish())
    row("fleetform", where, "step", size.resources, count)
    total.add(count)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=240, help="of each backend (default: %(default)s)")
    parser.add_argument("--ways", default="finish,begin,write,group,time", help="default: %(default)s")
    parser.add_argument("--resources", type=int, default=202, help="default: %(default)s")
    parser.add_argument("--only", default="local,cloud,late,names,terraform", help="default: %(default)s")
    parser.add_argument("--every-step", action="store_true", help="a new project for each journal step")
    parser.add_argument("--stride", type=int, default=1, help="with --every-step: leave some out")
    parser.add_argument("--terraform-kills", type=int, default=20)
    parser.add_argument("--state", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(argv)
    wrong = set(given.only.split(",")) - {*BACKENDS, "terraform"}
    if wrong:
        parser.error(f"there is no {', '.join(sorted(wrong))}")
    return given


def main() -> None:
    """Print the table."""
    given = arguments()
    warm_up()
    names = ("kills", "applies", "lost", "twice", "torn", "manual", "left")
    print(f"{'':10} {'backend':7} {'killed':7} {'resources':>9}" + "".join(f"{n:>9}" for n in names))
    total = Count()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        states = States(given.state, stack)
        for where in BACKENDS:
            if where in given.only.split(","):
                (every_step if given.every_step else measured)(Path(name), where, given, states, total)
        row("fleetform", "all", "", given.resources, total)
        if "terraform" in given.only.split(","):
            if terraform.missing():
                print("terraform is not on PATH: nothing to compare with")
            else:
                count = terraform.killed(Path(name), given.resources, given.terraform_kills, given.seed)
                row("terraform", "files", "time", given.resources, count)
    raise SystemExit(0 if total.clean else 1)


if __name__ == "__main__":
    main()
