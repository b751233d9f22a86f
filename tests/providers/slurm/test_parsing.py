"""Parsing Slurm's output: answers of several versions, host lists, shares, faults. Needs no Slurm."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.model.blocks import Shape
from declarative.model.resource import OthersShare
from declarative.model.status import RankState
from declarative.planner.inventory import blocks_of_others
from declarative.provider import PermanentError, PermanentKind, TransientError
from providers.slurm import cluster, jobs
from providers.slurm.cluster import Share
from providers.slurm.fleets import has, meanings
from providers.slurm.login import Place, fault
from providers.slurm.provider import Slurm
from providers.slurm.snapshot import Looks, read
from providers.transport import ConnectionLost

NODE_22 = (
    "NodeName=gpu-0 Arch=x86_64 CoresPerSocket=1  CPUAlloc=4 CPUEfctv=8 CPUTot=8 CPULoad=3.65 "
    "AvailableFeatures=h100,ib ActiveFeatures=h100,ib Gres=gpu:h100:8 GresDrain=N/A "
    "GresUsed=gpu:h100:4(IDX:0-3) NodeAddr=127.0.0.1 NodeHostName=localhost Port=26900 Version=22.05.8 "
    "OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=8000 AllocMem=4000 FreeMem=20701 Sockets=8 "
    "Boards=1 State=MIXED+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A "
    "Partitions=gpu,all  BootTime=2026-11-25T02:19:01 "
    "SlurmdStartTime=2026-11-25T02:46:40 LastBusyTime=2026-11-25T02:46:40 "
    "CfgTRES=cpu=8,mem=8000M,billing=8 AllocTRES=cpu=4,mem=4000M CapWatts=n/a CurrentWatts=0 AveWatts=0 "
    "ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s Reason=xid 79 [root@2026-11-25T03:00:00]"
)
NODE_17 = (
    "NodeName=cn01 Arch=x86_64 CoresPerSocket=16 CPUAlloc=0 CPUErr=0 CPUTot=32 CPULoad=0.01 "
    "AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:4 NodeAddr=cn01 NodeHostName=cn01 Version=17.11 "
    "OS=Linux 3.10.0 RealMemory=128000 AllocMem=0 FreeMem=120000 Sockets=2 Boards=1 CoreSpecCount=2 "
    "MemSpecLimit=8000 State=DOWN* ThreadsPerCore=1 TmpDisk=0 Weight=1 Partitions=all BootTime=None "
    "Reason=Not responding [slurm@2026-01-01T00:00:00]"
)
NODE_25 = (
    "NodeName=b200-03 Arch=x86_64 CoresPerSocket=56 CPUAlloc=224 CPUEfctv=220 CPUTot=224 CPULoad=1.00 "
    "AvailableFeatures=b200 ActiveFeatures=b200 Gres=gpu:b200:8(S:0-1),shard:b200:64(S:0-1) GresDrain=N/A "
    "GresUsed=gpu:b200:8(IDX:0-7),shard:b200:0(N/A) NodeAddr=b200-03 NodeHostName=b200-03 Version=25.11.1 "
    "OS=Linux 6.8.0 RealMemory=2000000 AllocMem=1900000 FreeMem=100 Sockets=2 Boards=1 MemSpecLimit=20000 "
    "CPUSpecList=0-3 State=IDLE+MAINTENANCE+RESERVED ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A "
    "MCS_label=N/A Partitions=batch BootTime=2026-01-01T00:00:00 SlurmdStartTime=2026-01-01T00:00:00 "
    "LastBusyTime=2026-01-02T00:00:00 ResumeAfterTime=None CfgTRES=cpu=220,mem=1980000M,gres/gpu=8 "
    "AllocTRES=cpu=224,mem=1900000M,gres/gpu=8 CurrentWatts=0 AveWatts=0 Topology=default:leaf7"
)
JOB_22 = (
    "JobId=17 JobName=train-ff-0123 UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A Priority=4294901759 "
    "Nice=0 Account=(null) QOS=(null) JobState=RUNNING Reason=None Dependency=(null) Requeue=0 Restarts=0 "
    "ExitCode=0:0 RunTime=00:00:00 TimeLimit=UNLIMITED StartTime=2026-11-25T02:46:40 EndTime=Unknown "
    "Partition=gpu ReqNodeList=gpu-[0-1] ExcNodeList=(null) NodeList=gpu-[0-1] BatchHost=gpu-0 NumNodes=2 "
    "JOB_GRES=gpu:h100:6   Nodes=gpu-0 CPU_IDs=0-3 Mem=4000 GRES=gpu:h100:4(IDX:0-3)   Nodes=gpu-1 "
    "CPU_IDs=2,4 Mem=2000 GRES=gpu:h100:2(IDX:5,7) MinCPUsNode=4 Features=(null) Command=/a b/c=d "
    "WorkDir=/tmp Power= TresPerNode=gres:gpu:h100:4"
)
JOB_24 = (
    "JobId=9 JobName=sh UserId=bob(2) JobState=RUNNING Reason=None StartTime=2025-03-19T16:31:01 "
    "EndTime=2025-03-19T18:31:01 Partition=i NodeList=node-001 "
    "ReqTRES=cpu=2,mem=1G,node=1,billing=2,gres/gpu=1 AllocTRES=cpu=2,mem=1G,node=1,billing=2,gres/gpu=1 "
    "JOB_GRES=gpu:rtx2080:1,gg:g0:1   Nodes=node-001 CPU_IDs=2-3 Mem=1024 "
    "GRES=gpu:rtx2080:1(IDX:1),gg:g0(CNT:1) MinCPUsNode=2 TresPerNode=gres/gpu:rtx2080:1"
)


def test_a_node_of_debians_version():
    node = cluster.nodes_in(NODE_22)["gpu-0"]
    assert node.shape == Shape(cpu=8, memory_mib=8000, gpus=8, gpu_name="h100")
    assert node.states == {"MIXED", "DRAIN"}
    assert node.reason == "xid 79 [root@2026-11-25T03:00:00]"
    assert (node.busy_cpus, node.busy_memory_mib, node.busy_gpus) == (4, 4000, 4)
    assert node.features == {"h100", "ib"}
    assert node.partitions == {"gpu", "all"}


def test_an_old_node_keeps_what_its_system_has_for_itself():
    """Cores and memory that jobs cannot have do not count, also where no `CPUEfctv` says so."""
    node = cluster.nodes_in(NODE_17)["cn01"]
    assert node.shape == Shape(cpu=30, memory_mib=120000, gpus=4)
    assert node.states == {"DOWN", "NOT_RESPONDING"}


def test_a_new_node():
    """Shards are no GPUs of their own."""
    node = cluster.nodes_in(NODE_25)["b200-03"]
    assert node.shape == Shape(cpu=220, memory_mib=1980000, gpus=8, gpu_name="b200")
    assert node.busy_gpus == 8
    assert node.states == {"IDLE", "MAINTENANCE", "RESERVED"}
    assert node.reason is None


ROW_22 = "17|RUNNING|alice|gpu-[0-1]|None|2026-11-25T02:46:40|N/A"
ROW_24 = "9|RUNNING|bob|node-001|None|2025-03-19T16:31:01|2025-03-19T18:31:01"


def test_a_job_and_its_share_of_each_node():
    job = cluster.jobs_in(ROW_22, JOB_22)[17]
    assert (job.user, job.state, job.nodes) == ("alice", "RUNNING", ("gpu-0", "gpu-1"))
    assert job.name == "train-ff-0123"
    assert job.shares == {
        "gpu-0": Share(cpus=4, memory_mib=4000, gpus=4, devices=(0, 1, 2, 3)),
        "gpu-1": Share(cpus=2, memory_mib=2000, gpus=2, devices=(5, 7)),
    }
    assert job.ended_at is None


def test_a_job_with_other_resources():
    job = cluster.jobs_in(ROW_24, JOB_24)[9]
    assert job.ended_at == 1742409061.0
    assert job.shares == {"node-001": Share(cpus=2, memory_mib=1024, gpus=1, devices=(1,))}


SHARES = "  Nodes=gpu-0 CPU_IDs=4-7 Mem=1 GRES=gpu:h100:4(IDX:4-7) "


@pytest.mark.parametrize(
    "text",
    [
        "x JobState=COMPLETED NodeList=(null)",
        f"x JobState=RUNNING {SHARES} MinCPUsNode=1",
        "x\nJobId=18 JobName=other JobState=RUNNING",
        f"x\nJobId=17 JobName=train-ff-0123 UserId=alice(1000) JobState=COMPLETED {SHARES} MinCPUsNode=4 ",
    ],
)
def test_a_text_of_a_user_that_looks_like_fields_is_not_believed(text):
    """What such a job holds is not known by it: it stands at the nodes, like what a hidden job holds."""
    for details in (JOB_22.replace("train-ff-0123", text), f"{JOB_22} Comment={text}"):
        found = cluster.jobs_in(ROW_22, details)
        assert list(found) == [17]
        assert (found[17].user, found[17].state) == ("alice", "RUNNING")
        assert found[17].shares in ({}, cluster.jobs_in(ROW_22, JOB_22)[17].shares)


def test_a_users_text_claims_no_devices():
    true = cluster.jobs_in(ROW_22, JOB_22)[17].shares
    assert cluster.jobs_in(ROW_22, JOB_22.replace("train-ff-0123", f"x{SHARES}"))[17].shares == true
    assert (
        cluster.jobs_in(ROW_22, f"{JOB_22} Network=x{SHARES}Command=y Comment=x{SHARES}")[17].shares == true
    )


def test_a_users_line_breaks_make_no_parts_of_an_answer():
    row = ROW_22.replace("17", "18")
    faked = f"x\nFLEETFORM-LOOK queue\n{row}\nFLEETFORM-LOOK jobs\nabc 18"
    parts = {"jobs": "abc 17", "queue": ROW_22, "node": NODE_22, "partition": "", "reservation": ""}
    parts |= {"topology": "", "things": "", "attempts": "", "now": "5", "job": f"{JOB_22} Comment={faked}"}
    answer = "".join(f"FLEETFORM-LOOK {kind}\n{text}\n" for kind, text in parts.items())
    seen = read(f"{answer}FLEETFORM-END\n".encode(), "login")
    assert list(seen.cluster.jobs) == [17]
    assert seen.jobs == {"abc": 17}


@pytest.mark.parametrize(
    ("state", "now", "found"),
    [
        ("RUNNING", 101, RankState.RUNNING),  # it was asked of before the end
        ("RUNNING", 200, RankState.STOPPED),  # the step alone was cancelled
        ("COMPLETING", 200, RankState.RUNNING),
        ("CANCELLED", 101, RankState.STOPPED),
        ("PREEMPTED", 101, RankState.LOST),
        ("TIMEOUT", 101, RankState.FAILED),
    ],
)
@pytest.mark.parametrize("stop", ["", "5"])
def test_an_end_that_slurm_caused_waits_for_its_cause(state, now, found, stop):
    """Else a rank of a preempted job would count as stopped, and `retry` would leave it so."""
    parts = {"jobs": "abc 17", "queue": ROW_22.replace("RUNNING", state), "node": NODE_22, "partition": ""}
    parts |= dict.fromkeys(("reservation", "topology", "things"), "") | {"now": str(now), "job": JOB_22}
    parts["attempts"] = f"gpu-0|a-0|90 60 x|gpu-0 1 100 - -|abc|95|17.0 gpu-0|95|143 stopped 100|||{stop}|"
    answer = "".join(f"FLEETFORM-LOOK {kind}\n{text}\n" for kind, text in parts.items())
    seen = read(f"{answer}FLEETFORM-END\n".encode(), "login")
    assert seen.status(seen.attempts["gpu-0", "a-0"]).state is (RankState.STOPPED if stop else found)


def test_nodes_share_a_look_however_long_it_takes(monkeypatch):
    """A slow cluster is not asked once for each node; what has changed since a look is looked at anew."""
    clock, asked = Clock(), []
    monkeypatch.setattr("providers.slurm.snapshot.time", clock)
    monkeypatch.setattr("providers.slurm.snapshot.read", lambda *_: object())

    def ask(verb: str) -> bytes:
        asked.append(verb)
        clock.now += 5
        return b""

    looks = Looks(cast("Place", SimpleNamespace(login=SimpleNamespace(host="login"), ask=ask)))
    first = looks.get()
    clock.now += 4
    assert looks.get() is first
    clock.now += 2
    assert looks.get() is not first
    looks.get(fresh=True)
    assert len(asked) == 3
    looks.changed()
    looks.get()
    assert len(asked) == 4


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_list_of_hosts_does_not_eat_the_machine():
    with pytest.raises(cluster.UnreadableError):
        cluster.hosts("a[0-99999]b[0-99999]")


def test_switches_are_levels():
    text = (
        "SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=gpu-[0-1]\n"
        "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=gpu-2\n"
        "SwitchName=spine Level=1 LinkSpeed=1 Nodes=gpu-[0-2] Switches=leaf[0-1]\n"
    )
    found = cluster.switches_in(text)
    assert found["gpu-1"] == (("leaf", "leaf0"), ("switch-1", "spine"))
    assert found["gpu-2"] == (("leaf", "leaf1"), ("switch-1", "spine"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("a,b", ("a", "b")),
        ("gpu-[0-2,8],login", ("gpu-0", "gpu-1", "gpu-2", "gpu-8", "login")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
    ],
)
def test_lists_of_hosts(text, names):
    assert cluster.hosts(text) == names


def test_a_list_of_too_many_hosts_is_refused():
    with pytest.raises(cluster.UnreadableError):
        cluster.hosts("n[0-999999999]")


@pytest.mark.parametrize(
    ("constraint", "found"),
    [
        *(("", True), ("h100", True), ("a100", False), ("h100&ib", True), ("a100|h100&ib", True)),
        *(("!ib", False), ("[a*2]", True)),
    ],
)
def test_constraints(constraint, found):
    """One that only Slurm understands turns down no node."""
    assert has(constraint, frozenset({"h100", "ib"})) is found


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ({"DOWN"}, ["down"]),
        ({"DOWN", "POWERED_DOWN"}, ["powered down"]),
        ({"DOWN", "DRAIN"}, ["down", "drained"]),
        ({"BLOCKED", "DOWN"}, ["blocked by a job that wants its whole block", "down"]),
        ({"DRAIN", "DRAINED"}, ["drained"]),
    ],
)
def test_down_is_said_once(states, words):
    assert meanings(frozenset(states)) == words


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9000), st.integers(0, 9)), max_size=6))
def test_what_others_hold_never_leaves_more_than_there_is(held):
    """The free blocks fit beside it in every dimension, and each busy one is somebody's."""
    shape = Shape(cpu=8, memory_mib=8000, gpus=8)
    taken = [OthersShare(holder=str(i), cpu=c, memory_mib=m, gpus=g) for i, (c, m, g) in enumerate(held)]
    found = blocks_of_others(shape, 8, taken, {0})
    assert 0 not in found
    free = 8 - len(found)
    sums = [sum(one[i] for one in held) for i in range(3)]
    for total, each in zip(sums, (1, 1000, 1), strict=True):
        assert free == 1 or free * each + total <= 8 * each
    assert list(found) == sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("said", "kind", "about"),
    [
        ("sbatch: error: invalid partition specified: gpuu", PermanentKind.INVALID, "partition"),
        ("Invalid account or account/partition combination specified", PermanentKind.AUTH, "account"),
        ("Invalid qos specification", PermanentKind.INVALID, "qos"),
        ("Job violates accounting/QOS policy (job submit limit, user's limits)", PermanentKind.QUOTA, "qos"),
        (
            "Requested time limit is invalid (missing or exceeds some limit)",
            PermanentKind.INVALID,
            "max_duration",
        ),
        ("Requested node configuration is not available", PermanentKind.NO_CAPACITY, "partition"),
        ("Requested reservation is invalid", PermanentKind.INVALID, "reservation"),
        ("scontrol: not found", PermanentKind.INVALID, "options.login"),
    ],
)
def test_refusals_say_which_field_is_wrong(said, kind, about):
    found = fault(said, "login")
    assert isinstance(found, PermanentError)
    assert (found.kind, found.about) == (kind, about)
    assert found.hint


@pytest.mark.parametrize(
    "said",
    [
        "Unable to contact slurm controller (connect failure)",
        "Batch job submission failed: Socket timed out on send/recv operation",
        "Munge encode failed: Failed to access socket",
        "Invalid authentication credential",
    ],
)
def test_a_controller_that_is_away_is_asked_again(said):
    found = fault(said, "login")
    assert isinstance(found, TransientError)
    assert found.hint


def test_half_an_answer_is_none():
    """It is neither an empty cluster nor an empty shared folder."""
    with pytest.raises(ConnectionLost):
        read(b"FLEETFORM-LOOK node\n" + NODE_22.encode(), "login")
    with pytest.raises(PermanentError):
        read(b"FLEETFORM-LOOK node\n" + NODE_22.encode() + b"\nFLEETFORM-END\n", "login")


@pytest.mark.parametrize("queue", [True, False])
@pytest.mark.parametrize("answer", ["PENDING|Resources", "RUNNING|None"])
@pytest.mark.parametrize("ended", [(None, None), (None, 0), (0, None), (0, 0)])
def test_a_job_that_slurm_does_not_start_is_cancelled(monkeypatch, queue, answer, ended):
    """Unless its task is to wait in the queue. What has ended gets no job."""
    asked: list[tuple[str, ...]] = []

    def ask(what, *words, **_):
        asked.append((what, *words))
        return f"FLEETFORM-JOB 17|{answer}\n".encode()

    job = jobs.JobPlan(token="t", name="gang-ff-t", ranks=("n/a",), options=("--mem=1",), queue=queue)
    monkeypatch.setattr(jobs, "attempts_of", lambda _: [SimpleNamespace(ended=at) for at in ended])
    monkeypatch.setattr(jobs, "job_of", lambda *_: job)
    monkeypatch.setattr(jobs, "not_granted", lambda *_: PermanentError(PermanentKind.NO_CAPACITY, "no"))
    slurm = object.__new__(Slurm)
    slurm._place = cast("Place", SimpleNamespace(ask=ask, bundle=lambda: "bundle", start_seconds=9))
    changed = partial(asked.append, ("changed",))
    slurm._looks = cast("Looks", SimpleNamespace(changed=changed, get=partial(asked.append, ("look",))))
    goes, queued = None in ended, answer.startswith("PENDING")
    if goes and queued and not queue:
        with pytest.raises(PermanentError):
            slurm._reserve((), "gang")
    else:
        slurm._reserve((), "gang")
    submit = ("submit", "t", "gang-ff-t", "1" if queue else "9", "bundle", "n/a", "--", "--mem=1")
    cancel = [("cancel", "t", "gate"), ("changed",), ("look",)] if queued and not queue else []
    assert asked[1:] == ([submit, ("changed",), *cancel] if goes else [])
