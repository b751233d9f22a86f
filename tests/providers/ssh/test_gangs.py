"""Gangs that do something together over the network of their hosts: iperf3, a rendezvous, torch."""

from __future__ import annotations

import os
import random
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from declarative.apply.ranks import START_LIMIT
from declarative.model.state import STARTED
from declarative.store import open_store
from providers.ssh.link import Link
from tests.providers.ssh.machines import Machines, run
from tests.providers.ssh.rack import SSH, Rack, wipe
from tests.support.cli import hold, task, until
from tests.support.forked import warm_up
from tests.support.killing import APPLY, Kill, die, fork

pytestmark = pytest.mark.slow

LIMIT = "tbf rate 200mbit burst 256k latency 50ms"
MEASURE = """
import json, os, subprocess, time
master, rounds = os.environ["FLEETFORM_MASTER_NODE_IP"], 3
if os.environ["FLEETFORM_NODE_RANK"] == "0":
    for _ in range(rounds):
        subprocess.run(["iperf3", "-s", "-1", "-B", master], check=True, stdout=subprocess.DEVNULL)
    raise SystemExit
for _ in range(rounds):
    while True:
        said = subprocess.run(["iperf3", "-c", master, "-t", "1", "-J"], stdout=subprocess.PIPE).stdout
        found = json.loads(said)
        if "error" not in found:  # refused as long as nobody listens; the exit code is 0 all the same
            break
        time.sleep(0.1)
    print(json.dumps(found["end"]["sum_received"]["bits_per_second"] / 1e6), flush=True)
"""
RENDEZVOUS = """
import os, socket, time
rank, ranks = int(os.environ["FLEETFORM_NODE_RANK"]), int(os.environ["FLEETFORM_NODES_NUM"])
place = (os.environ["FLEETFORM_MASTER_NODE_IP"], 29500)
expected = ranks * (ranks + 1) // 2
if rank == 0:
    with socket.create_server(place, backlog=ranks) as server:
        peers = [server.accept()[0].makefile("rw") for _ in range(ranks - 1)]
    total = 1 + sum(int(peer.readline()) for peer in peers)
    for peer in peers:
        print(total, file=peer, flush=True)
    agreed = [int(peer.readline()) for peer in peers]
    assert agreed == [total] * len(peers), agreed
    print(f"{ranks} ranks agree on {total}")
else:
    while True:
        try:
            peer = socket.create_connection(place, 5).makefile("rw")
            break
        except OSError:
            time.sleep(0.05)
    print(rank + 1, file=peer, flush=True)
    total = int(peer.readline())
    print(total, file=peer, flush=True)
assert total == expected, total
"""
GLOO = """
import os, torch, torch.distributed as distributed
distributed.init_process_group(
    "gloo",
    init_method=f"tcp://{os.environ['FLEETFORM_MASTER_NODE_IP']}:29500",
    rank=int(os.environ["FLEETFORM_NODE_RANK"]),
    world_size=int(os.environ["FLEETFORM_NODES_NUM"]),
)
x = torch.full((1 << 20,), float(distributed.get_rank() + 1))
distributed.all_reduce(x)
assert bool((x == x[0]).all())
print(f"{distributed.get_world_size()} ranks sum to {x[0].item():g}", flush=True)
distributed.destroy_process_group()
"""

SUM = """
import ctypes, os, socket
mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
def known(name):
    return ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_" + name))
world, int_, sum_ = known("comm_world"), known("int"), known("op_sum")
mpi.MPI_Init(None, None)
rank, total = ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mine = ctypes.c_int(rank.value + 1)
mpi.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1, int_, sum_, world)
here = os.environ["FLEETFORM_NODE_RANK"], os.path.basename(os.getcwd())[:5], os.environ["SECRET"]
print(socket.gethostname(), *here, total.value, flush=True)
mpi.MPI_Finalize()
"""


@pytest.fixture(scope="module")
def four(allowed) -> Iterator[Machines]:
    """Four hosts of these tests' own."""
    made = Machines(4)
    made.up()
    yield made
    made.down()


@pytest.fixture
def project(four: Machines, tmp_path: Path) -> Iterator[Rack]:
    made = Rack(tmp_path, four)
    yield made
    made.clean_up()
    wipe(four)


def python(text: str) -> str:
    """A command that runs it with the Python of the hosts' system."""
    return f"exec /usr/bin/python3 -c {shlex.quote(text)}"


def can(machines: Machines, *commands: str) -> None:
    """Skips where a host cannot run this."""
    for command in commands:
        said: str = machines[0].sh(f"{command} >/dev/null 2>&1 || echo no")
        if said:
            pytest.skip(f"`{command}` fails on hosts")


def test_two_whole_hosts_measure_their_bandwidth_and_are_shared_afterwards(project, four):
    """What dstack could not place: `blocks: auto` and `creation_policy: reuse` on a fleet of two hosts."""
    can(four, "iperf3 --version", "/usr/bin/python3 --version")
    rack = project.rack(project.host(0), project.host(1), blocks="auto")
    project.bring(rack)
    limit = f"dev eth0 root {LIMIT}".split()
    run("tc", "-n", four[1].space, "qdisc", "add", *limit)
    try:
        project.bring(
            rack, task("iperf", python(MEASURE), nodes=2, creation_policy="reuse"), args=("--wait",)
        )
    finally:
        run("tc", "-n", four[1].space, "qdisc", "del", "dev", "eth0", "root")
    status = project.status()
    assert [(r["node"], r["state"]) for r in status["tasks"][0]["ranks"]] == [
        ("rack-0", "succeeded"),
        ("rack-1", "succeeded"),
    ]
    assert [(n["blocks"]["total"], n["blocks"]["busy"]) for n in status["nodes"]] == [(2, 0), (2, 0)]
    measured = [float(line) for line in project.logs("iperf/1").split()]
    assert len(measured) == 3
    assert 150 <= max(measured) <= 210, measured
    shared(project, rack)


def shared(project: Rack, rack: dict[str, Any]) -> None:
    """Two single-node tasks at once on one host: on blocks and CPUs of their own."""
    meet = "cd /tmp; touch $FLEETFORM_TASK_NAME; until [ -e left -a -e right ]; do sleep 0.1; done"
    show = "grep Cpus_allowed_list /proc/self/status"
    small = [
        task(name, meet, show, resources={"cpu": 1}, creation_policy="reuse", instances=["rack-1"])
        for name in ("left", "right")
    ]
    project.bring(rack, *small, args=("--wait",))
    assert {project.logs(name).split()[-1] for name in ("left", "right")} == {"0", "1"}
    assert project.busy() == {"rack-0": 0, "rack-1": 0}
    project.run("state", "check")


def test_gangs_agree_on_a_sum(project, four):
    """Four ranks on whole hosts, then sixteen on parts of them."""
    can(four, "/usr/bin/python3 --version")
    shape = {"cpu": 4, "memory": "1GB"}
    rack = project.rack(*(project.host(i, resources=shape, trust=True) for i in range(4)), blocks=4)
    project.bring(rack, task("four", python(RENDEZVOUS), nodes=4), args=("--wait",))
    assert project.logs("four/0") == "4 ranks agree on 10\n"
    parts = task("sixteen", python(RENDEZVOUS), nodes=16, exclusive=False, resources={"cpu": 1})
    project.bring(rack, parts, args=("--wait",))
    assert project.logs("sixteen/0") == "16 ranks agree on 136\n"
    nodes = [r["node"] for r in project.ranks("sixteen").values()]
    assert {name: nodes.count(name) for name in nodes} == {f"rack-{i}": 4 for i in range(4)}


def test_torch_sums_over_hosts(project, four):
    """With the torch of the hosts' system, or one in `FLEETFORM_TEST_TORCH`, a folder that hosts see."""
    path = os.environ.get("FLEETFORM_TEST_TORCH", "")
    can(four, f"env PYTHONPATH={shlex.quote(path)} /usr/bin/python3 -c 'import torch.distributed'")
    rack = project.rack(*(project.host(i) for i in range(4)))
    env = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    project.bring(rack, task("gloo", python(GLOO), nodes=4, env=env), args=("--wait",))
    assert [project.logs(f"gloo/{i}").splitlines()[-1] for i in range(4)] == ["4 ranks sum to 10"] * 4


LAUNCH = """
[ "$FLEETFORM_NODE_RANK" = 0 ] || exec sleep 600
ls -d ~/.ssh/* >/tmp/before 2>/dev/null
stat -c %a "$(dirname "$(command -v fleetform-rsh)")"/key
COMMAND
status=$?
ls -d ~/.ssh/* 2>/dev/null | cmp - /tmp/before || exit 9
exit $status
"""


def launched(program: str) -> str:
    """A command: rank 0 starts a program on all ranks, and the others wait for its end."""
    return LAUNCH.replace("COMMAND", program)


SEEDS = range(*map(int, os.environ.get("FLEETFORM_SEEDS", "2,4").split(",")))
"""`FLEETFORM_SEEDS=FIRST,END` for others of the schedules of kills."""
KEYS = """find /var/lib/fleetform -name peers -o -name gangs 2>/dev/null || true
ps ax -o args= | grep '[p]eers/sshd_config' || true"""


@pytest.mark.parametrize(
    ("launcher", "each", "file", "user"),
    [("mpirun.openmpi", "--npernode 1", "--hostfile", "root"), ("mpirun.mpich", "-ppn 1", "-f", "worker")],
    ids=["openmpi", "mpich"],
)
def test_mpi_reaches_all_ranks_by_the_host_file_alone(project, four, launcher, each, file, user):
    """It needs no set-up, and leaves no key and no sshd."""
    can(four, launcher + " --version", "/usr/bin/python3 --version")
    rack = project.rack(*(project.host(i) for i in range(4)))
    rack["ssh_config"]["user"] = user
    program = shlex.join(["/usr/bin/python3", "-c", SUM])
    if "mpich" in launcher:
        # This one gives rank 0's variables to all.
        program = """sh -c 'n=$(hostname); echo $n ${n#h} $(basename $(pwd -P) | cut -d. -f1) $SECRET 10'"""
    run_it = launched(f'{launcher} {each} -np 4 {file} "$FLEETFORM_MPI_HOSTFILE" {program}')
    gang = task("mpi", run_it, nodes=4, stop_criteria="master-done", env={"SECRET": "s p'a\"c$e"})
    project.bring(rack, gang, args=("--wait",))
    said = project.logs("mpi/0").splitlines()
    assert said[0] == "600"
    heard = sorted(line for line in said if line.startswith("h"))
    assert heard == [f"h{i} {i} mpi-{i} s p'a\"c$e 10" for i in range(4)], said
    assert [m.sh(KEYS) for m in four] == [""] * 4


def test_a_gang_with_one_address_is_refused_and_runs_once_each_host_has_its_own(project, four):
    rack = project.rack(*(project.host(i, internal_ip="10.99.7.2") for i in range(2)))
    pair = task("pair", "echo $FLEETFORM_MASTER_NODE_IP", nodes=2)
    project.bring(rack)
    project.declare(SSH, rack, pair)
    said = project.run("apply", "--auto-approve", code=1).err
    assert "error[gang-address]" in said
    assert "node/rack-0 and node/rack-1 have the same address 10.99.7.2" in said
    assert "`internal_ip`" in said
    for host in rack["ssh_config"]["hosts"]:
        host["internal_ip"] = host["hostname"]
    project.bring(rack, pair, args=("--wait",))
    assert project.logs("pair/1") == f"{four[0].address}\n"


FILE = '"$FLEETFORM_MPI_HOSTFILE"'


def spread(project: Rack, fleet: dict[str, Any], each: int, *commands: str) -> list[list[str]]:
    """Which hosts run the processes of each `mpirun`, one for each GPU of two hosts."""
    printing = "; ".join(f"{command} -n {2 * each} hostname && echo end || exit" for command in commands)
    asked = {"nodes": 2, "resources": {"gpu": each}, "stop_criteria": "master-done"}
    project.bring(fleet, task("mpi", launched(f"({printing})"), **asked), args=("--wait",))
    # Open MPI warns of a race with its own child, on a busy machine: the child may have become ssh already.
    lines = [
        line for line in project.logs("mpi/0").splitlines()[1:] if "plm:rsh: Warning: setpgid" not in line
    ]
    return [sorted(part.split()) for part in "\n".join(lines).split("end") if part.strip()]


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize(("launcher", "named"), [("mpirun.openmpi", "--hostfile"), ("mpirun.mpich", "-f")])
def test_mpi_runs_a_process_for_each_gpu(project, four, launcher, named, each):
    """By the file that both launchers read, and by the one that each finds without being told."""
    can(four, launcher + " --version")
    shape = {"cpu": 2, "memory": "512MB", "gpu": f"A6000:{each}"}
    rack = project.rack(*(project.host(i, resources=shape, trust=True) for i in range(2)), blocks=1)
    hosts = sorted(["h0", "h1"] * each)
    assert spread(project, rack, each, launcher, f"{launcher} {named} {FILE}") == [hosts, hosts]


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("launcher", ["mpirun.openmpi", "mpirun.mpich"])
def test_mpi_runs_between_addresses_of_ipv6(project, four, launcher, each):
    can(four, launcher + " --version")
    ips = [f"fd00:5::a:{i + 1}" for i in range(2)]
    for machine, ip in zip(four, ips, strict=False):
        machine.sh(f"ip -6 addr add {ip}/64 dev eth0 nodad")
    try:
        shape = {"cpu": 2, "memory": "512MB", "gpu": f"A6000:{each}"}
        hosts = [project.host(i, resources=shape, trust=True, internal_ip=ip) for i, ip in enumerate(ips)]
        rack = project.rack(*hosts, blocks=1)
        assert spread(project, rack, each, launcher) == [sorted(["h0", "h1"] * each)]
    finally:
        for machine, ip in zip(four, ips, strict=False):
            machine.sh(f"ip -6 addr del {ip}/64 dev eth0")


# ------------------------------------------------------------------------------------------ the gate


class Cut(Kill):
    """A command that is killed at one of the calls to hosts that prepare or release a rank."""

    def arm(self) -> None:
        """`before` it is sent, or `after` it was answered."""
        done = 0
        real: Any = Link.run

        async def cut(link: Any, command: str, *args: Any) -> Any:
            nonlocal done
            counts = ".sh start " in command or ".sh release " in command
            done += counts
            mine = counts and done == self.step
            if mine and self.when == "before":
                die()
            found = await real(link, command, *args)
            if mine:
                die()
            return found

        setattr(Link, "run", cut)  # noqa: B010  # mypy would want its very type


def give_up(project: Rack) -> None:
    """Let the time be over that a gang has to be whole."""
    with (
        open_store("sqlite:///.fleetform/state.db", root=project.path) as store,
        store.lock("test") as writer,
    ):
        ranks = store.read().of("rank")
        writer.note({r.address: {STARTED: r.outputs[STARTED] - START_LIMIT - 1} for r in ranks})


def ran(machines: Machines) -> list[str]:
    """The ranks that ran, each as often as it did."""
    return [rank for m in machines for rank in m.sh("cat /tmp/ran 2>/dev/null || :").split()]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_gang_runs_once_however_often_its_apply_is_killed(project, four, seed):
    """At random calls to its hosts, each time so late that a gang that is not whole is given up: none of its
    ranks runs before all are prepared, and all of them run once in the end.
    """
    chance = random.Random(seed)
    rack = project.rack(*(project.host(i) for i in range(3)))
    noted = "echo $FLEETFORM_NODE_RANK >>/tmp/ran"
    order = chance.choice(["any", "master-first", "workers-first"])
    gang = task("job", noted, hold(Path("/tmp/up")), nodes=3, startup_order=order)
    project.bring(rack)
    project.declare(SSH, rack, gang)
    warm_up()
    for _ in range(5):
        cut = Cut(chance.choice(["before", "after"]), step=chance.randint(1, 6))
        code = fork(project.path, *APPLY, kill=cut)
        assert code in (0, -signal.SIGKILL), (project.path / "output").read_text()
        prepared = [
            m.sh("ls -d /var/lib/fleetform/node/*/ranks/job-*/gated 2>/dev/null || :") for m in four[:3]
        ]
        assert all(prepared) or not ran(four)
        give_up(project)
    project.apply()
    until(lambda: len(ran(four)) >= 3)
    assert sorted(ran(four)) == ["0", "1", "2"]
    assert {r["state"] for r in project.ranks("job").values()} == {"running"}
    project.no_changes()
