"""The health of a node: what is read of its machine, and the rules that judge it. Pure.

A reading that a machine does not give, or that cannot be read, is unknown and changes nothing. The rules are
one table, `RULES`. Their sources are pages of vendors and records of real machines; no rule was tried on
hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

from declarative.model.record import struct

REPAIRS = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt"
REASONS = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html"
XIDS = "https://docs.nvidia.com/deploy/xid-errors"
SMI = "https://docs.nvidia.com/deploy/nvidia-smi"
SYSFS = "https://docs.kernel.org/infiniband/sysfs.html"


class HealthState(StrEnum):
    """What a finding means for its node."""

    HEALTHY = "healthy"
    """It changes nothing, unless its fleet's `health` lists it in `fail`."""
    DEGRADED = "degraded"
    """The node takes work, unless its fleet's `health` is strict."""
    UNHEALTHY = "unhealthy"
    """The node takes no work."""


@struct(frozen=True, slots=True, kw_only=True)
class HealthReading:
    """One value that a machine gave."""

    name: str
    """What it is: `remap.pending`."""
    value: str | float
    part: str = ""
    """The part of the machine: `GPU 3`, `mlx5_0 port 1`; empty for all of it."""
    gpu: str | None = None
    """The UUID of the GPU that it is of; empty if that is not known; None if it is of no GPU."""


@struct(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that holds for a part of a node."""

    rule: str
    """The name of the rule: `remap-pending`."""
    verdict: HealthState
    text: str
    """`GPU 3 waits for a remap of its memory`."""
    remedy: str
    gpu: str | None = None
    """As in its reading."""

    def __str__(self) -> str:
        return f"{self.text} ({self.rule}): {self.remedy}"


@struct(frozen=True, slots=True, kw_only=True)
class HealthRule:
    """When a reading is a finding. `words` follow the part; `{}` in them is the value."""

    name: str
    reading: str
    holds: Callable[[str | float], bool]
    verdict: HealthState
    words: str
    remedy: str
    source: str


def _above(limit: float) -> Callable[[str | float], bool]:
    return lambda value: isinstance(value, int | float) and value > limit


def _is(*words: str) -> Callable[[str | float], bool]:
    return lambda value: value in words


def _is_not(*words: str) -> Callable[[str | float], bool]:
    return lambda value: value not in words


def _any(value: str | float) -> bool:
    return bool(value)


RESET = "reset the GPU while it is idle (`nvidia-smi -r -i …`), or reboot the host"
RETURN = "take it out of the host's `gpus`, and have the GPU replaced"
REBOOT = "reboot the host; if it comes back, have the GPU replaced"
COOL = "look at the host's fans, power supply and cables, and at the room's temperature"
SEAT = "reboot the host; if it stays, have the card reseated"
LINK = "look at the cable, the transceiver and the switch's port"
DEGRADED, UNHEALTHY, HEALTHY = HealthState.DEGRADED, HealthState.UNHEALTHY, HealthState.HEALTHY

_ROWS: tuple[tuple[str, str, Callable[[str | float], bool], HealthState, str, str, str], ...] = (
    ("gpu-reset-required", "reset.required", _is("Yes"), UNHEALTHY, "has to be reset", RESET, SMI),
    (
        "gpu-recovery",
        "recovery.action",
        _is_not("None"),
        UNHEALTHY,
        "needs recovery: its driver says `{}`",
        RESET,
        SMI,
    ),
    ("nvidia-query", "query.failed", _any, UNHEALTHY, "nvidia-smi fails: {}", REBOOT, SMI),
    ("gpu-query", "value.failed", _any, UNHEALTHY, "does not tell its {}", RESET, SMI),
    ("gpu-lost", "lost", _any, UNHEALTHY, "is lost", REBOOT, SMI),
    (
        "inforom-corrupt",
        "inforom.corrupt",
        _any,
        DEGRADED,
        "nvidia-smi warns that an infoROM is corrupted",
        RETURN,
        SMI,
    ),
    (
        "ecc-volatile",
        "ecc.volatile",
        _above(0),
        DEGRADED,
        "had {} uncorrectable memory errors since its driver was loaded",
        RESET,
        REPAIRS,
    ),
    (
        "ecc-aggregate",
        "ecc.aggregate",
        _above(0),
        HEALTHY,
        "had {} uncorrectable memory errors in its life",
        RETURN,
        REPAIRS,
    ),
    (
        "ecc-threshold",
        "ecc.threshold",
        _is("Yes"),
        UNHEALTHY,
        "had more errors in its SRAM than its maker allows",
        RETURN,
        REPAIRS,
    ),
    (
        "ecc-pending",
        "ecc.pending",
        _any,
        DEGRADED,
        "has error correction {} once it is reset",
        RESET,
        SMI,
    ),
    ("remap-failed", "remap.failed", _is("Yes"), UNHEALTHY, "could not remap broken memory", RETURN, REPAIRS),
    (
        "remap-pending",
        "remap.pending",
        _is("Yes"),
        DEGRADED,
        "waits for a remap of its memory",
        RESET,
        REPAIRS,
    ),
    (
        "pages-pending",
        "pages.pending",
        _is("Yes"),
        DEGRADED,
        "waits for a retirement of broken memory",
        RESET,
        "https://docs.nvidia.com/deploy/dynamic-page-retirement",
    ),
    (
        "pages-many",
        "pages.retired",
        _above(59),
        DEGRADED,
        "has {} retired pages of memory",
        RETURN,
        "https://docs.nvidia.com/deploy/dynamic-page-retirement",
    ),
    (
        "hw-slowdown",
        "slowdown.hardware",
        _is("Active"),
        DEGRADED,
        "is slowed down by its board",
        COOL,
        REASONS,
    ),
    ("hw-thermal", "slowdown.hot", _is("Active"), DEGRADED, "is slowed down, since it is hot", COOL, REASONS),
    (
        "power-brake",
        "slowdown.brake",
        _is("Active"),
        DEGRADED,
        "is slowed down by the host's power supply",
        COOL,
        REASONS,
    ),
    (
        "sw-thermal",
        "slowdown.warm",
        _is("Active"),
        DEGRADED,
        "is slowed down by its driver, since it is hot",
        COOL,
        REASONS,
    ),
    ("pcie-width", "pcie.width", _any, DEGRADED, "has {} lanes of PCIe", SEAT, SMI),
    ("pcie-generation", "pcie.generation", _any, DEGRADED, "runs PCIe generation {}", SEAT, SMI),
    (
        "mig-pending",
        "mig.pending",
        _any,
        DEGRADED,
        "has its MIG mode {} once it is reset",
        RESET,
        "https://docs.nvidia.com/datacenter/tesla/mig-user-guide",
    ),
    (
        "persistence-off",
        "persistence",
        _is("Disabled"),
        HEALTHY,
        "is not in persistence mode",
        "start `nvidia-persistenced`",
        SMI,
    ),
    (
        "power-capped",
        "power.capped",
        _any,
        HEALTHY,
        "may use {} of its power",
        "set its limit: `nvidia-smi -pl …`",
        SMI,
    ),
    (
        "fabric",
        "fabric",
        _any,
        UNHEALTHY,
        "has no place in the NVLink fabric: {}",
        "start `nvidia-fabricmanager` in the driver's version",
        "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide",
    ),
    ("nvlink-down", "nvlink.down", _any, DEGRADED, "has {} NVLinks", RESET, SMI),
    (
        "xid-reset",
        "xid.reset",
        _any,
        UNHEALTHY,
        "had {} since the boot, after which it has to be reset",
        RESET,
        XIDS,
    ),
    ("xid-reboot", "xid.reboot", _any, UNHEALTHY, "had {} since the boot", REBOOT, XIDS),
    ("xid-memory", "xid.memory", _any, DEGRADED, "had {} since the boot", RESET, XIDS),
    ("xid-nvlink", "xid.nvlink", _any, DEGRADED, "had {} since the boot", RESET, XIDS),
    (
        "xid-power",
        "xid.power",
        _any,
        UNHEALTHY,
        "had {} since the boot: its power cable is not connected",
        COOL,
        XIDS,
    ),
    ("fallen-off", "fallen.off", _any, UNHEALTHY, "has fallen off the bus", REBOOT, XIDS),
    ("gpu-init", "init.failed", _any, UNHEALTHY, "could not be started by its driver", REBOOT, XIDS),
    (
        "amd-reset-failed",
        "amd.reset.failed",
        _any,
        UNHEALTHY,
        "could not be reset by its driver",
        REBOOT,
        "https://docs.kernel.org/gpu/amdgpu",
    ),
    (
        "amd-memory",
        "amd.memory",
        _any,
        DEGRADED,
        "had uncorrectable errors since the boot",
        REBOOT,
        "https://docs.kernel.org/gpu/amdgpu/ras.html",
    ),
    ("rdma-down", "rdma.down", _any, DEGRADED, "is down, and was up before", LINK, SYSFS),
    (
        "rdma-waits",
        "rdma.waits",
        _any,
        DEGRADED,
        "has a link and is not active ({})",
        "start the fabric's subnet manager",
        SYSFS,
    ),
    ("rdma-slow", "rdma.slow", _any, DEGRADED, "has a rate of {} Gbit/s", LINK, SYSFS),
    ("clock-off", "clock.off", _any, DEGRADED, "its clock is {}", "let it follow a time server", "ntpd(8)"),
    (
        "load-high",
        "load",
        _above(2.0),
        HEALTHY,
        "it has {} runnable processes for each CPU",
        "see what else runs there",
        "proc_loadavg(5)",
    ),
    (
        "disk-low",
        "disk.used",
        _above(95.0),
        HEALTHY,
        "{} % of the disk of its state folder are used",
        "make room there",
        "stat(1)",
    ),
)
RULES = tuple(
    HealthRule(
        name=name, reading=reading, holds=holds, verdict=verdict, words=words, remedy=remedy, source=source
    )
    for name, reading, holds, verdict, words, remedy, source in _ROWS
)
"""All rules, each with its source: NVIDIA's GPUs, AMD's, RDMA ports, and the rest of the machine."""
NAMES = frozenset(rule.name for rule in RULES)


def judge(readings: Iterable[HealthReading]) -> tuple[Finding, ...]:
    """The findings in readings, in the order of these."""
    return tuple(
        Finding(
            rule=rule.name,
            verdict=rule.verdict,
            text=f"{reading.part} {rule.words}".strip().replace("{}", f"{reading.value}"),
            remedy=rule.remedy,
            gpu=reading.gpu,
        )
        for reading in readings
        for rule in RULES
        if rule.reading == reading.name and rule.holds(reading.value)
    )
