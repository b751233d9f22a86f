"""What a machine tells of its health, which of it is a fault, and probes that misbehave.

The samples have the forms that nvidia-smi, kernels and sysfs have by their documentation, and by records of
others (leptonai/gpud, NVIDIA/DCGM#138, NVIDIA/NVSentinel#1748). Nothing was tried on hardware.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.model.health import RULES, HealthState, judge
from declarative.model.schema import BadValueError
from declarative.model.spec.health import HealthPolicy, RuleName
from declarative.model.status import NodeState, Readiness
from declarative.planner.node_health import judged
from providers.ssh import health, probe, scripts
from providers.ssh.probe import Declared
from providers.transport import LocalTransport
from tests.support.smi import Kind

GPU = """\
Driver Version                            : 535.161.08
Attached GPUs                             : 1
GPU 00000000:9B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU UUID                              : GPU-b
    GPU Reset Status
        Reset Required                    : No
        Drain and Reset Recommended       : No
    PCI
        Bus Id                            : 00000000:9B:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
                Device Max                : 5
            Link Width
                Max                       : 16x
                Current                   : 16x
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Not Active
        SW Thermal Slowdown               : Not Active
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 3
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 12
            DRAM Uncorrectable            : 0
        Aggregate
            SRAM Uncorrectable Parity     : 0
            DRAM Uncorrectable            : 0
            SRAM Threshold Exceeded       : No
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : No
        Bank Remap Availability Histogram
            Max                           : 2560 bank(s)
    GPU Power Readings
        Current Power Limit               : 700.00 W
        Default Power Limit               : 700.00 W
    Fabric
        State                             : Completed
        Status                            : Success
    Processes
        GPU instance ID                   : N/A
            Process ID                    : 4242
            Name                          : python --token=Max : 5
"""
VOLTA = """\
GPU 00000000:3B:00.0
    Product Name                          : Tesla V100-SXM2-16GB
    GPU UUID                              : GPU-v
    Ecc Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            Single Bit
                Device Memory             : 7
                Total                     : 7
            Double Bit
                Device Memory             : 0
                Total                     : 0
    Retired Pages
        Single Bit ECC                    : 2
        Double Bit ECC                    : 1
        Pending Page Blacklist            : No
    FB Memory Usage
        Total                             : 16160 MiB
    Clocks Throttle Reasons
        Idle                              : Active
        HW Slowdown                       : Not Active
"""


def query(*changes: tuple[str, str], text: str = GPU, code: int = 0) -> dict[str, list[str]]:
    """The answer with lines changed: label (the last word of its path, after a heading) → value."""
    for path, value in changes:
        heading, _, label = path.rpartition("/")
        start = text.index(f"{heading}\n") if heading else 0
        line = re.compile(rf"(^ *{re.escape(label)} +: ).*$", re.MULTILINE)
        begin = line.search(text, start)
        assert begin, path
        text = text[: begin.start()] + begin[1] + value + text[begin.end() :]
    return {"query": [*text.splitlines(), f"exit code {code}"]}


def codes(many: Mapping[str, list[str]], **more: Any) -> dict[str, HealthState]:
    """The rules that hold, but for those that change nothing."""
    words = {"cpus": 4, "disk": (1000, 500), "clock": 0.0, **more}
    findings = judge(health.readings(many, **words))
    return {f.rule: f.verdict for f in findings if f.verdict is not HealthState.HEALTHY}


def kernel(*lines: str) -> dict[str, list[str]]:
    return {"kernel": list(lines)}


def port(card: str = "mlx5_0", /, **values: str) -> list[str]:
    usual = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
    usual |= {"link_layer": "InfiniBand", "counters/link_downed": "0", **values}
    at = f"/sys/class/infiniband/{card}"
    return [f"{at}/hca_type:MT4129", *(f"{at}/ports/1/{name}:{value}" for name, value in usual.items())]


def links(*up: int, total: int = 18, name: str = "NVIDIA H100 80GB HBM3") -> dict[str, list[str]]:
    lines = []
    for i, count in enumerate(up):
        lines.append(f"GPU {i}: {name} (UUID: GPU-{i})")
        lines += [f"\t Link {n}: {'26.562 GB/s' if n < count else '<inactive>'}" for n in range(total)]
    return {"nvlink": lines}


DEGRADED, UNHEALTHY = HealthState.DEGRADED, HealthState.UNHEALTHY
XID = "[1.2] NVRM: Xid (PCI:0000:9b:00): "
FAULTS: dict[str, tuple[dict[str, list[str]], dict[str, HealthState]]] = {
    "reset required": (query(("Reset Required", "Yes")), {"gpu-reset-required": UNHEALTHY}),
    "reset required instead of a value": (
        query(("Remapped Rows/Pending", "[GPU requires reset]")),
        {"gpu-reset-required": UNHEALTHY},
    ),
    "lost": (query(("ECC Mode/Current", "[GPU is lost]")), {"gpu-lost": UNHEALTHY}),
    "an error instead of a value": (
        query(("Remapped Rows/Pending", "Unknown Error")),
        {"gpu-query": UNHEALTHY},
    ),
    "remap pending": (
        query(("Remapped Rows/Uncorrectable Error", "4"), ("Remapped Rows/Pending", "Yes")),
        {"remap-pending": DEGRADED},
    ),
    "remap failed": (query(("Remapping Failure Occurred", "Yes")), {"remap-failed": UNHEALTHY}),
    "volatile errors": (query(("Volatile/DRAM Uncorrectable", "2")), {"ecc-volatile": DEGRADED}),
    "volatile errors of SRAM": (
        query(("Volatile/SRAM Uncorrectable SEC-DED", "1")),
        {"ecc-volatile": DEGRADED},
    ),
    "too many in SRAM": (query(("SRAM Threshold Exceeded", "Yes")), {"ecc-threshold": UNHEALTHY}),
    "hot": (
        query(("HW Slowdown", "Active"), ("HW Thermal Slowdown", "Active")),
        {"hw-thermal": DEGRADED},
    ),
    "hot, in the form of other drivers": (
        query(
            ("HW Slowdown", "Active"),
            ("HW Thermal Slowdown", "Active"),
            text=GPU.replace("            HW ", "        HW "),
        ),
        {"hw-thermal": DEGRADED},
    ),
    "power brake": (query(("HW Power Brake Slowdown", "Active")), {"power-brake": DEGRADED}),
    "slowed down": (query(("HW Slowdown", "Active")), {"hw-slowdown": DEGRADED}),
    "warm": (query(("SW Thermal Slowdown", "Active")), {"sw-thermal": DEGRADED}),
    "half the lanes": (query(("Link Width/Current", "8x")), {"pcie-width": DEGRADED}),
    "an old generation at work": (query(("PCIe Generation/Current", "1")), {"pcie-generation": DEGRADED}),
    "MIG after a reset": (query(("MIG Mode/Pending", "Enabled")), {"mig-pending": DEGRADED}),
    "ECC after a reset": (query(("ECC Mode/Pending", "Disabled")), {"ecc-pending": DEGRADED}),
    "no fabric": (query(("Fabric/State", "In Progress")), {"fabric": UNHEALTHY}),
    "a fabric that failed": (query(("Fabric/Status", "Insufficient Resources")), {"fabric": UNHEALTHY}),
    "pages pending": (
        query(("Pending Page Blacklist", "Yes"), text=VOLTA),
        {"pages-pending": DEGRADED},
    ),
    "many pages": (query(("Retired Pages/Single Bit ECC", "63"), text=VOLTA), {"pages-many": DEGRADED}),
    "double bits": (query(("Double Bit/Total", "1"), text=VOLTA), {"ecc-volatile": DEGRADED}),
    "off the bus by its code": ({"query": ["exit code 15"]}, {"nvidia-query": UNHEALTHY}),
    "no driver": ({"query": ["exit code 9"]}, {"nvidia-query": UNHEALTHY}),
    "infoROM": (query(code=14), {"inforom-corrupt": DEGRADED}),
    "a link is down": (links(18, 17, 18), {"nvlink-down": DEGRADED}),
    "all links of a board's GPU are down": (links(18, 0, 18), {"nvlink-down": DEGRADED}),
    "Xid 79": (
        kernel(f"{XID}79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        {"xid-reboot": UNHEALTHY},
    ),
    "Xid 119": (
        kernel(
            f"{XID}119, pid=1, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU4 GSP!"
        ),
        {"xid-reset": UNHEALTHY},
    ),
    "Xid 149": (kernel(f"{XID}149, NETIR_LINK_EVT Fatal XC0 i0 Link 01 (0x1)"), {"xid-nvlink": DEGRADED}),
    "Xid 154": (
        kernel(f"{XID}154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"),
        {"gpu-recovery": UNHEALTHY},
    ),
    "Xid 48": (kernel(f"{XID}48, pid=9, An uncorrectable double bit error"), {"xid-memory": DEGRADED}),
    "off the bus without an Xid": (
        kernel("[9.1] NVRM: GPU 0000:29:00.0: GPU has fallen off the bus."),
        {"fallen-off": UNHEALTHY},
    ),
    "off the bus in three lines": (
        kernel(
            "[20.5] NVRM: The NVIDIA GPU 0000:b4:00.0",
            "       NVRM: (PCI ID: 10de:26b5) installed in this system has",
            "       NVRM: fallen off the bus and is not responding to commands.",
        ),
        {"fallen-off": UNHEALTHY},
    ),
    "a start that failed": (
        kernel("[9.3] NVRM: GPU 0000:99:00.0: RmInitAdapter failed! (0x62:0x65:1792)"),
        {"gpu-init": UNHEALTHY},
    ),
    "a start of AMD that failed": (
        kernel("[3.8] amdgpu 0000:76:00.0: amdgpu: Fatal error during GPU init"),
        {"gpu-init": UNHEALTHY},
    ),
    "a reset of AMD": (
        kernel("[5.0] amdgpu 0000:05:00.0: amdgpu: GPU reset(2) failed"),
        {"amd-reset-failed": UNHEALTHY},
    ),
    "memory of AMD": (
        kernel("[5.0] amdgpu 0000:05:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block"),
        {"amd-memory": DEGRADED},
    ),
    "a port went down": (
        {"rdma": port(state="1: DOWN", phys_state="2: Polling", **{"counters/link_downed": "3"})},
        {"rdma-down": DEGRADED},
    ),
    "no subnet manager": ({"rdma": port(state="2: INIT")}, {"rdma-waits": DEGRADED}),
    "a slow port": (
        {"rdma": [*port(), *port("mlx5_1", rate="200 Gb/sec (4X HDR)")]},
        {"rdma-slow": DEGRADED},
    ),
}
HARMLESS: dict[str, dict[str, list[str]]] = {
    "all as it should be": query(),
    "an older card": query(text=VOLTA),
    "idle, with a slow link": query(
        ("PCIe Generation/Current", "1"), ("Performance State", "P8"), ("Clocks Event Reasons/Idle", "Active")
    ),
    "at rest, and not called idle": query(
        ("PCIe Generation/Current", "1"),
        ("Performance State", "P8"),
        ("Clocks Event Reasons/Idle", "Not Active"),
    ),
    "what newer drivers do not tell": query(
        ("Reset Required", "Requested functionality has been deprecated"),
        text=GPU.replace(
            "    PCI\n", "    GPU Recovery Action : Requested functionality has been deprecated\n    PCI\n"
        ),
    ),
    "remapped and done": query(("Remapped Rows/Uncorrectable Error", "4")),
    "errors of before": query(("Aggregate/DRAM Uncorrectable", "4")),
    "no persistence": query(("Persistence Mode", "Disabled")),
    "a lower power limit": query(("Current Power Limit", "500.00 W")),
    "no fabric at all": query(("Fabric/State", "N/A"), ("Fabric/Status", "N/A")),
    "what it does not have": query(
        ("Remapped Rows/Pending", "N/A"), ("ECC Mode/Current", "N/A"), ("ECC Mode/Pending", "N/A")
    ),
    "a power limit that it does not have": query(("Current Power Limit", "[Unknown Error]")),
    "a link that is not known": query(("Link Width/Current", "Unknown"), ("PCIe Generation/Max", "N/A")),
    "an option that it does not know": {"query": ["exit code 2"]},
    "not allowed": {"query": ["exit code 4"]},
    "a query that hung": {"query": ["exit code 124"]},
    "a query that was killed": {"query": ["exit code 139"]},
    "an answer that is cut": {"query": GPU.splitlines()[:20]},
    "links of two of three cards": links(4, 4, 0, total=4, name="NVIDIA RTX A6000"),
    "no links": links(0, 0),
    "Xid 13": kernel(f"{XID}13, pid=7, Graphics Exception: ESR 0x404490=0x80000001"),
    "Xid 31": kernel(f"{XID}31, pid=7, name=python, Ch 00000008, MMU Fault: ENGINE GRAPHICS"),
    "Xid 43": kernel(f"{XID}43, pid=7, Ch 00000010"),
    "Xid 45 in bulk": kernel(*(f"{XID}45, pid=7, Ch 000000{n:02}" for n in range(40))),
    "Xid 63": kernel(f"{XID}63, Row Remapper: New row (0x1) marked for remapping"),
    "Xid 94": kernel(f"{XID}94, pid=7, name=python, Contained: SM. RST: No, D-RST: No"),
    "Xid 14": kernel("NVRM: Xid (0000:03:00): 14, Channel 00000001"),
    "a link's event": kernel(f"{XID}145, RLW_REMAP Nonfatal XC0 i0 Link 01"),
    "recovered": kernel(
        f"{XID}119, pid=1, Timeout",
        f"{XID}154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        f"{XID}154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    ),
    "other lines of the kernel": kernel(
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535", "eth0: link up"
    ),
    "a start that failed, and worked later": query()
    | kernel("[9.3] NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x62:0x65:1792)"),
    "none of AMD's errors": kernel(
        "amdgpu 0000:05:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:05:00.0: amdgpu: GPU reset(1) succeeded!",
    ),
    "a port without a cable": {"rdma": port(state="1: DOWN", phys_state="2: Polling")},
    "a port that is switched off": {
        "rdma": port(state="1: DOWN", phys_state="3: Disabled", **{"counters/link_downed": "1"})
    },
    "a slower network beside": {
        "rdma": [*port(), *port("mlx5_9", link_layer="Ethernet", rate="100 Gb/sec (4X EDR)")]
    },
    "a busy machine": {"load": ["90.00 80.00 70.00 9/1000 4242"]},
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_rule_alone(name):
    many, expected = FAULTS[name]
    assert codes(many) == expected


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_harmless_or_unknown_is_no_fault(name):
    assert codes(HARMLESS[name]) == {}


def test_each_rule_has_words_a_remedy_and_a_source_and_is_tried_here():
    """A rule that nobody saw at work may be one that never holds."""
    assert len({rule.name for rule in RULES}) == len(RULES)
    tried = {code for _, expected in FAULTS.values() for code in expected} | {"clock-off", "xid-power"}
    silent = {rule.name for rule in RULES if rule.verdict is HealthState.HEALTHY}
    assert {rule.name for rule in RULES} - tried == silent
    assert codes({}, clock=-90.0) == {"clock-off": DEGRADED}
    assert codes(kernel(f"{XID}54, Auxiliary power is not connected")) == {"xid-power": UNHEALTHY}
    for rule in RULES:
        assert all((rule.words, rule.remedy, rule.source))


def test_what_changes_nothing_by_itself_is_a_finding_all_the_same():
    """A fleet may let it count."""
    many = query(
        ("Persistence Mode", "Disabled"),
        ("Current Power Limit", "500.00 W"),
        ("Aggregate/DRAM Uncorrectable", "4"),
    )
    many["load"] = ["90.00 80.00 70.00 9/1000 4242"]
    found = judge(health.readings(many, cpus=4, disk=(1000, 10), clock=0.0))
    assert {f.rule for f in found} == {rule.name for rule in RULES if rule.verdict is HealthState.HEALTHY}


def test_an_xid_names_the_gpu_and_is_taken_back_where_the_driver_wants_no_recovery():
    many = query(text=GPU) | kernel(f"{XID}119, pid=1, Timeout")
    (finding,) = [f for f in judge(health.readings(many, cpus=4, disk=(9, 9), clock=0.0)) if f.gpu]
    assert (finding.text.startswith("GPU 0 had Xid 119"), finding.gpu) == (True, "GPU-b")
    newer = GPU.replace("    PCI\n", "    GPU Recovery Action                   : None\n    PCI\n")
    assert codes(query(text=newer) | kernel(f"{XID}119, pid=1, Timeout")) == {}
    worse = newer.replace(": None\n", ": Reboot\n")
    assert codes(query(text=worse)) == {"gpu-recovery": UNHEALTHY}


texts = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n"), max_size=60)
parts = st.sampled_from(
    [*GPU.splitlines(), *(line for many in FAULTS.values() for x in many[0].values() for line in x)]
)


@given(
    st.dictionaries(st.sampled_from(["query", "nvlink", "kernel", "rdma", "load"]), st.lists(texts | parts))
)
def test_any_answer_is_read(many):
    """A host may say anything."""
    judge(health.readings(many, cpus=1, disk=(0, 0), clock=0.0))


# ------------------------------------------------------------------------------------- what it means


def of_host(
    *findings: str, state: NodeState = NodeState.READY, reason: str | None = None, **policy: Any
) -> Readiness:
    found = tuple(
        finding
        for name in findings
        for finding in judge(
            health.readings(
                FAULTS[name][0] if name in FAULTS else HARMLESS[name], cpus=4, disk=(9, 9), clock=0.0
            )
        )
    )
    words: dict[str, Any] = {
        key: tuple(map(RuleName, value)) if key != "strict" else value for key, value in policy.items()
    }
    return judged(Readiness(state=state, reason=reason, findings=found), HealthPolicy(**words))


def test_an_unhealthy_node_takes_no_work_and_a_degraded_one_says_why():
    bad, worn = of_host("remap failed"), of_host("remap pending")
    assert (bad.state, worn.state) == (NodeState.NOT_READY, NodeState.READY)
    assert "unhealthy: GPU 0 could not remap broken memory (remap-failed): " in (bad.reason or "")
    assert "degraded: GPU 0 waits for a remap of its memory (remap-pending): reset" in (worn.reason or "")
    both = of_host("remap pending", "Xid 79", state=NodeState.NOT_READY, reason="its disk is full")
    assert (both.reason or "").startswith("its disk is full; unhealthy: ")
    assert of_host() == Readiness(state=NodeState.READY)
    assert of_host("Xid 79", state=NodeState.UNREACHABLE).state is NodeState.UNREACHABLE


def test_a_fleet_says_which_findings_count():
    worn = ("remap pending", "hot")
    assert of_host(*worn, ignore=["remap-pending", "hw-thermal"]) == Readiness(state=NodeState.READY)
    strict = of_host(*worn, strict=True)
    assert strict.state is NodeState.NOT_READY
    assert "write `health: {ignore: [remap-pending, hw-thermal]}` at its fleet" in (strict.reason or "")
    failing = of_host(*worn, fail=["hw-thermal"])
    assert failing.state is NodeState.NOT_READY
    assert (failing.reason or "").startswith("unhealthy: GPU 0 is slowed down, since it is hot")
    assert "`health: {ignore: [hw-thermal]}`" in (failing.reason or "")
    assert of_host("remap failed", ignore=["remap-failed"]).state is NodeState.READY
    assert of_host("no persistence", fail=["persistence-off"]).state is NodeState.NOT_READY
    assert of_host("no persistence", strict=True).state is NodeState.READY


def test_a_rule_that_there_is_not_is_an_error_with_the_nearest_one():
    with pytest.raises(BadValueError, match="`remap-pendin` is not a rule of health") as caught:
        RuleName.parse("remap-pendin")
    assert "remap-pending" in (caught.value.hint or "")
    for value in (7, "", None, "GPU"):
        with pytest.raises(BadValueError, match="is not a rule of health"):
            RuleName.parse(value)
    with pytest.raises(BadValueError, match="`clock-off` is ignored, and fails"):
        HealthPolicy(ignore=(RuleName("clock-off"),), fail=(RuleName("clock-off"),))


# ---------------------------------------------------------------------------------- the probe itself

CARD = "0, GPU-b, NVIDIA H100 80GB HBM3, 81559, 0, Disabled"
HOST = Kind(rows=(CARD,))


@pytest.fixture
def look(tmp_path, monkeypatch):
    """This machine as a host whose `nvidia-smi -q`, `dmesg` and so on do what a test writes."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    transport: Any = SimpleNamespace(host="h", run=LocalTransport().run)

    def one(*, dmesg: str = "exit 1", declared: Declared | None = None, **tool: str) -> probe.Look:
        HOST.install(tmp_path / "bin")
        smi = tmp_path / "bin/nvidia-smi"
        body = "".join(f"[ \"$*\" != '{args}' ] || {{ {do}\n}}\n" for args, do in tool.items())
        smi.write_text(f"#!/bin/sh\n{body}{HOST.script}")
        for name, do in (("dmesg", dmesg), ("journalctl", "exit 1")):
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{do}\n")
            (tmp_path / "bin" / name).chmod(0o755)
        return probe.look(transport, str(tmp_path / "state"), declared or Declared())

    return one


def cat(tmp_path: Path, text: str) -> str:
    (tmp_path / "answer").write_text(text)
    return f"cat {tmp_path}/answer; exit 0"


def test_a_look_brings_the_health_of_the_machine_with_it(look, tmp_path):
    sick = "\n".join(query(("Remapped Rows/Pending", "Yes"))["query"][:-1])
    answer = look(dmesg=f'echo "{FAULTS["Xid 119"][0]["kernel"][0]}"', **{"-q": cat(tmp_path, sick)})
    found = {f.rule: f for f in answer.readiness.findings if f.verdict is not HealthState.HEALTHY}
    assert set(found) == {"remap-pending", "xid-reset"}
    assert all(f.gpu == "GPU-b" and f.text.startswith("GPU 0 ") for f in found.values())
    assert answer.readiness.state is NodeState.READY


def test_names_of_processes_stay_on_the_host(look, tmp_path):
    scripts_sent = scripts.text("health.sh") + "matters query"
    shown = LocalTransport().run(["sh", "-c", scripts_sent], GPU.encode()).stdout.decode()
    assert "Remapped Rows" in shown
    assert "token" not in shown
    assert codes({"query": shown.splitlines()}) == {}


def test_findings_of_gpus_that_are_not_the_nodes_do_not_count(look, tmp_path):
    sick = "\n".join(query(("Remapped Rows/Pending", "Yes"))["query"][:-1])
    none = Declared(resources={"gpus": 0})
    answer = look(declared=none, **{"-q": cat(tmp_path, sick)})
    assert [f for f in answer.readiness.findings if f.gpu] == []


@pytest.mark.parametrize(
    "declared",
    [Declared(resources={"gpus": 0}), Declared(resources={"gpus": 1}, trusted=True, devices=("GPU-b",))],
)
def test_who_needs_no_gpu_or_is_trusted_works_beside_a_broken_driver(look, declared):
    """As for the list of GPUs: `gpu: 0` and `trust` say that it does not matter."""
    broken = "echo 'NVIDIA-SMI has failed'; exit 9"
    log = "echo 'NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.'"
    asked = (
        "--query-gpu=index,uuid,name,memory.total,memory.used,mig.mode.current --format=csv,noheader,nounits"
    )
    answer = look(declared=declared, dmesg=log, **{"-q": broken, asked: broken})
    assert judged(answer.readiness).state is NodeState.READY
    assert judged(look(declared=Declared(), dmesg=log).readiness).state is NodeState.NOT_READY


@pytest.mark.slow
@pytest.mark.parametrize("call", ["-q", "nvlink -s", "dmesg"])
@pytest.mark.parametrize(
    "do",
    [
        "trap '' TERM; sleep 100",
        "head -c 100000000 /dev/zero | tr '\\0' x; exit 0",
        "while :; do echo 'GPU 00000000:9B:00.0'; done",
        "kill -SEGV $$",
        "printf '\\000\\377\\n=\\n'; exit 0",
    ],
    ids=["hangs", "prints 100 MB", "prints for ever", "dies", "prints bytes"],
)
def test_a_probe_that_misbehaves_harms_nothing(look, call, do):
    """Its own reading is unknown; all else of the look is there."""
    tool = {"dmesg": do} if call == "dmesg" else {call: do}
    answer = look(**tool)
    assert answer.facts
    assert [gpu.uuid for gpu in answer.facts.gpus] == ["GPU-b"]
    assert answer.readiness.state is NodeState.READY
    assert [f for f in answer.readiness.findings if f.verdict is not HealthState.HEALTHY] == []


def test_ports_are_read_from_sysfs(tmp_path):
    for line in FAULTS["a slow port"][0]["rdma"]:
        name, _, value = line.removeprefix("/sys/class/infiniband/").partition(":")
        (tmp_path / "ib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ib" / name).write_text(f"{value}\n")
    text = f"{scripts.text('health.sh')}rdma_health {tmp_path}/ib; rdma_health {tmp_path}/none"
    lines = LocalTransport().run(["sh", "-c", text]).stdout.decode().splitlines()
    assert codes({"rdma": [line.removeprefix("rdma=") for line in lines]}) == {"rdma-slow": DEGRADED}
    shutil.rmtree(tmp_path / "ib")
