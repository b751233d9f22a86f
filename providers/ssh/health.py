"""What `health.sh` prints, as readings for the rules of `declarative.model.health`. Pure.

What is missing, cut, or not understood is no reading: it is unknown. The forms are those of nvidia-smi's
text from driver 418 to 580, of the kernel log, and of sysfs, as vendors and others show them. Nothing was
tried on hardware.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from declarative.model.health import HealthReading
from declarative.model.record import struct

CLOCK_SECONDS = 60.0
"""A clock that is off by less is none of our business: logins have their own limits."""
LONGEST = 80
"""Characters of a machine's own text in a reading."""
FAILING = {
    6: "a GPU could not be queried",
    8: "a GPU's power cables are not connected",
    9: "the driver is not loaded",
    10: "the kernel reports a fault with a GPU's interrupts",
    12: "its library was not found",
    15: "a GPU has fallen off the bus",
    255: "internal error",
}
"""Exit codes of nvidia-smi that are faults of the machine, by its manual page. 2, 3, 4 and 13 say that
something is not supported or not allowed; those above 128, but for 255, that the query itself was killed.
"""
INFOROM = 14
XID_RESET = frozenset((46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158))
"""Xids after which the GPU has to be reset, by NVIDIA's catalogue. Those that are missing here and below are
a program's own, or tell nothing by themselves (13, 31, 43, 45, 63, 94 …)."""
XID_REBOOT = 79
XID_MEMORY = 48
XID_POWER = 54
XID_NVLINK = 74
XID_FABRIC = range(144, 151)
"""Of links; only those that say `Fatal` count."""
XID_ACTION = 154
"""The driver says which recovery a GPU needs now; `None` takes the earlier Xids back."""
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d{1,4}), ?(.*)")
_FALLEN = re.compile(r"GPU (?:at )?(?:PCI:)?([0-9A-Fa-f:.]*).*has fallen off the bus")
_NAMED = re.compile(r"NVRM: The NVIDIA GPU ([0-9A-Fa-f:.]+)\s*$")
"""The first of the three lines in which a driver says that a GPU has fallen off the bus."""
_INIT = re.compile(r"NVRM: GPU ([0-9A-Fa-f:.]+): RmInitAdapter failed")
_ACTION = re.compile(r"changed from .* to \S+ \((.+?)\)")
_AMD = re.compile(r"amdgpu ([0-9a-f:.]+): .*")
_LINK = re.compile(r"\s+Link (\d+): (.+)")
_GPU = re.compile(r"GPU (\d{1,3}): (.*?) \(UUID: (GPU-[A-Za-z0-9-]{1,60})\)")
_RATE = re.compile(r"([0-9.]{1,8}) Gb/sec")
_PORT = re.compile(r".*/([^/]+)/ports/(\d+)/(state|phys_state|rate|link_layer|counters/link_downed):(.*)")
_TYPE = re.compile(r".*/([^/]+)/hca_type:(.*)")
_COUNT = re.compile(r"\d{1,18}")
UNKNOWN = frozenset(("n/a", "not supported", "not found", "requested functionality has been deprecated"))
FAILED = frozenset(("unknown error", "err!"))
LOST = "gpu is lost"
TO_BE_RESET = "gpu requires reset"
"""What nvidia-smi shows in the place of a value, with or without brackets."""
RESET_REQUIRED = "GPU Reset Status/Reset Required"


def readings(
    many: Mapping[str, Sequence[str]], *, cpus: int, disk: tuple[int, int], clock: float
) -> tuple[HealthReading, ...]:
    """The readings in the lines of `health.sh`, by name.

    `disk` is the size and the free space of the state folder's disk, in MiB. `clock` is how many seconds the
    machine's clock is ahead of ours.
    """
    gpus, out = _gpus(many.get("query", ()))
    for gpu in gpus:
        out += _of_gpu(gpu)
    out += _links(many.get("nvlink", ()))
    out += _kernel(many.get("kernel", ()), gpus)
    out += _ports(many.get("rdma", ()))
    out += _machine(next(iter(many.get("load", ())), ""), cpus, disk, clock)
    return tuple(out)


# ---------------------------------------------------------------------------------------- nvidia-smi -q


@struct(frozen=True, slots=True, kw_only=True)
class QueriedGpu:
    """One GPU in the answer of `nvidia-smi -q`."""

    index: int
    bus: str
    """`0000:9b:00`, as in the kernel log: domain of four digits, without function."""
    values: Mapping[str, str]
    """`Remapped Rows/Pending` → `No`; unknown ones are missing."""

    @property
    def part(self) -> str:
        """How a finding names it."""
        return f"GPU {self.index}"

    @property
    def uuid(self) -> str | None:
        """Its UUID."""
        return self.values.get("GPU UUID")

    def get(self, *paths: str) -> str | None:
        """The first of these values that it gives; drivers call some differently."""
        return next((self.values[path] for path in paths if path in self.values), None)

    def count(self, *beginnings: str, ends: str = "") -> int | None:
        """The sum of the counts below one of the headings; None if it gives none."""
        for beginning in beginnings:
            found = [
                int(value)
                for path, value in self.values.items()
                if path.startswith(beginning) and re.search(ends, path) and _COUNT.fullmatch(value)
            ]
            if found:
                return sum(found)
        return None


def _gpus(lines: Sequence[str]) -> tuple[list[QueriedGpu], list[HealthReading]]:
    """The GPUs, in the order of their indexes, and what the exit code says of all of them."""
    gpus: list[QueriedGpu] = []
    out: list[HealthReading] = []
    values: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in lines:
        if line.startswith("GPU "):
            values, path = {}, []
            gpus.append(QueriedGpu(index=len(gpus), bus=_bus(line.removeprefix("GPU ")), values=values))
            continue
        if line.startswith("exit code "):
            code = line.removeprefix("exit code ")
            if code.isdecimal() and int(code) in FAILING:
                out.append(HealthReading(name="query.failed", value=FAILING[int(code)], gpu=""))
            if code == str(INFOROM):
                out.append(HealthReading(name="inforom.corrupt", value="yes", gpu=""))
            continue
        depth = len(line) - len(line.lstrip())
        label, colon, value = line.strip().partition(":")
        path = [*(one for one in path if one[0] < depth), (depth, label.strip())]
        if colon:
            _note(values, "/".join(name for _, name in path), value.strip()[:LONGEST])
    return gpus, out


def _note(values: dict[str, str], path: str, value: str) -> None:
    """Note a value, or the fault that stands in its place."""
    word = value.strip("[]").lower()
    if word == TO_BE_RESET:
        values[RESET_REQUIRED] = "Yes"
    elif word == LOST:
        values[LOST] = "yes"
    elif word in FAILED:
        if "Power Limit" not in path:  # some boards have none, and say so by an error
            values.setdefault("failed", path.rpartition("/")[2])
    elif word not in UNKNOWN:
        values[path] = value


def _bus(written: str) -> str:
    """`00000000:9B:00.0` and `PCI:0000:9b:00` → `0000:9b:00`."""
    parts = written.strip().lower().removeprefix("pci:").partition(".")[0].split(":")
    return ":".join((parts[0][-4:], *parts[1:])) if len(parts) == 3 else written.strip().lower()


def _of_gpu(gpu: QueriedGpu) -> Iterator[HealthReading]:
    """The readings of one GPU."""
    # Older drivers count by the bits of an error.
    volatile, aggregate = "ECC Errors/Volatile/Double Bit", "ECC Errors/Aggregate/Double Bit"
    plain = {
        "lost": gpu.get(LOST),
        "value.failed": gpu.get("failed"),
        "reset.required": gpu.get(RESET_REQUIRED),
        "recovery.action": gpu.get("GPU Recovery Action"),
        "ecc.threshold": gpu.get("ECC Errors/Aggregate/SRAM Threshold Exceeded"),
        "ecc.volatile": gpu.count("ECC Errors/Volatile/", ends="Uncorrectable")
        or gpu.count(volatile, ends="Total$"),
        "ecc.aggregate": gpu.count("ECC Errors/Aggregate/", ends="Uncorrectable")
        or gpu.count(aggregate, ends="Total$"),
        "remap.pending": gpu.get("Remapped Rows/Pending"),
        "remap.failed": gpu.get("Remapped Rows/Remapping Failure Occurred"),
        "pages.pending": gpu.get(
            "Retired Pages/Pending Page Blacklist", "Retired Pages/Pending Page Retirement"
        ),
        "pages.retired": gpu.count("Retired Pages/", ends="Bit ECC"),
        "persistence": gpu.get("Persistence Mode"),
        "ecc.pending": _pending(gpu, "ECC Mode", "Ecc Mode"),
        "mig.pending": _pending(gpu, "MIG Mode"),
        "pcie.width": _below(gpu, "Link Width"),
        "pcie.generation": _below(gpu, "PCIe Generation") if _works(gpu) else None,
        "power.capped": _capped(gpu),
        "fabric": _fabric(gpu),
        **_slowdowns(gpu),
    }
    for name, value in plain.items():
        if value is not None:
            yield HealthReading(name=name, value=value, part=gpu.part, gpu=gpu.uuid or "")


def _pending(gpu: QueriedGpu, *headings: str) -> str | None:
    """`on` or `off` if a mode changes with the next reset."""
    for heading in headings:
        now, then = gpu.get(f"{heading}/Current"), gpu.get(f"{heading}/Pending")
        if now and then and now != then:
            return {"Enabled": "on", "Disabled": "off"}.get(then)
    return None


def _below(gpu: QueriedGpu, heading: str) -> str | None:
    """`8 of 16` if a link has less than the most that this GPU and this host can have together."""
    now, most = (
        (gpu.get(f"PCI/GPU Link Info/{heading}/{end}") or "").removesuffix("x") for end in ("Current", "Max")
    )
    if not (_COUNT.fullmatch(now) and _COUNT.fullmatch(most)) or int(now) >= int(most):
        return None
    return f"{now} of {most}"


REASONS = ("Clocks Event Reasons", "Clocks Throttle Reasons")


def _works(gpu: QueriedGpu) -> bool:
    """Whether it is busy: an idle GPU lowers the generation of its link to save power."""
    idle = gpu.get(*(f"{heading}/Idle" for heading in REASONS))
    return idle == "Not Active" and gpu.get("Performance State") in {"P0", "P1", "P2"}


def _slowdowns(gpu: QueriedGpu) -> dict[str, str | None]:
    """Why its clocks are lower than they could be. A cause of the hardware is named alone, if it is known."""

    def reason(name: str) -> str | None:
        return gpu.get(*(f"{heading}/{name}" for heading in REASONS))

    hot, brake = (
        reason(f"HW Slowdown/HW {name} Slowdown") or reason(f"HW {name} Slowdown")
        for name in ("Thermal", "Power Brake")
    )
    known = "Active" in (hot, brake)
    return {
        "slowdown.hot": hot,
        "slowdown.brake": brake,
        "slowdown.hardware": None if known else reason("HW Slowdown"),
        "slowdown.warm": reason("SW Thermal Slowdown"),
    }


def _capped(gpu: QueriedGpu) -> str | None:
    """`300 of 700 W` if somebody lowered its limit."""
    watts = [
        re.match(r"(\d{1,5})\.\d+ W", value or "")
        for value in (
            gpu.get("GPU Power Readings/Current Power Limit", "Power Readings/Power Limit"),
            gpu.get("GPU Power Readings/Default Power Limit", "Power Readings/Default Power Limit"),
        )
    ]
    now, usual = watts
    return f"{now[1]} of {usual[1]} W" if now and usual and int(now[1]) < int(usual[1]) else None


def _fabric(gpu: QueriedGpu) -> str | None:
    """What keeps a GPU of an NVSwitch machine from its fabric; CUDA does not start there before."""
    state, status = gpu.get("Fabric/State"), gpu.get("Fabric/Status")
    if state is None or state == "Not Supported":
        return None
    if state != "Completed":
        return state
    return status if status not in (None, "Success") else None


# ---------------------------------------------------------------------------------------------- NVLink


def _links(lines: Sequence[str]) -> Iterator[HealthReading]:
    """GPUs with fewer links than their like, or without any on a board where each has all of them."""
    names: dict[str, tuple[int, str]] = {}
    up: Counter[str] = Counter()
    total: Counter[str] = Counter()
    uuid = ""
    for line in lines:
        if gpu := _GPU.match(line):
            uuid = gpu[3]
            names[uuid] = (int(gpu[1]), gpu[2])
        elif (link := _LINK.match(line)) and uuid:
            total[uuid] += 1
            up[uuid] += link[2].rstrip().endswith("GB/s")
    for uuid, (index, name) in names.items():
        most = max(up[other] for other, (_, its) in names.items() if its == name)
        # Bridges join some cards and not others; what is soldered to a board is there for each GPU.
        whole = re.search(r"SXM|HBM3|GB[23]00", name) is not None
        if up[uuid] < most and (up[uuid] or whole):
            yield HealthReading(
                name="nvlink.down", value=f"{up[uuid]} of {most}", part=f"GPU {index}", gpu=uuid
            )


# ------------------------------------------------------------------------------------- the kernel log


def _kernel(lines: Sequence[str], gpus: Sequence[QueriedGpu]) -> Iterator[HealthReading]:
    """The Xids and other faults since the boot, one of a kind for each GPU."""
    by_bus = {gpu.bus: gpu for gpu in gpus}
    for (name, bus), value in _kernel_faults(lines).items():
        gpu = by_bus.get(bus)
        was_reset = gpu and gpu.get("GPU Recovery Action") == "None"
        if was_reset and name in ("xid.reset", "recovery.action"):
            continue
        if gpu and name == "init.failed":  # a later start of the driver worked
            continue
        yield HealthReading(
            name=name,
            value=value,
            part=gpu.part if gpu else f"GPU {bus}".strip(),
            gpu=(gpu.uuid if gpu else None) or "",
        )


def _kernel_faults(lines: Sequence[str]) -> dict[tuple[str, str], str]:
    """Reading and bus → value."""
    faults: dict[tuple[str, str], str] = {}
    named = ""
    for line in lines:
        if one := _NAMED.search(line):
            named = _bus(one[1])
        elif xid := _XID.search(line):
            bus, number, text = _bus(xid[1]), int(xid[2]), xid[3]
            if number == XID_ACTION and (action := _ACTION.search(text)):
                faults = {key: value for key, value in faults.items() if key[1] != bus}
                if action[1] != "None":
                    faults["recovery.action", bus] = action[1][:LONGEST]
            elif name := _kind_of(number, text):
                faults[name, bus] = f"Xid {number}"
        elif fault := _other_fault(line, named):
            faults[fault] = "yes"
    return faults


def _other_fault(line: str, named: str) -> tuple[str, str] | None:
    """The reading that a line without an Xid is, and its bus; `named` is the GPU of a line before."""
    if fallen := _FALLEN.search(line):
        return "fallen.off", _bus(fallen[1])
    if named and "fallen off the bus" in line:
        return "fallen.off", named
    if init := _INIT.search(line):
        return "init.failed", _bus(init[1])
    amd = _AMD.search(line)
    if amd is None:
        return None
    if "Fatal error during GPU init" in line:
        return "init.failed", amd[1]
    if re.search(r"GPU reset.*(failed|fail\b)", line):
        return "amd.reset.failed", amd[1]
    if "uncorrectable hardware error" in line and not re.search(r"\b0 uncorrectable", line):
        return "amd.memory", amd[1]
    return None


def _kind_of(number: int, text: str) -> str | None:
    """The reading that an Xid is; None if it says nothing of the machine."""
    if number in XID_RESET:
        return "xid.reset"
    if number in XID_FABRIC:
        return "xid.nvlink" if " Fatal" in f" {text}" and "Nonfatal" not in text else None
    return {
        XID_REBOOT: "xid.reboot",
        XID_MEMORY: "xid.memory",
        XID_POWER: "xid.power",
        XID_NVLINK: "xid.nvlink",
    }.get(number)


# ----------------------------------------------------------------------------------------- RDMA ports


def _ports(lines: Iterable[str]) -> Iterator[HealthReading]:
    """The ports that are down, wait for their fabric, or are slower than those of like cards."""
    types: dict[str, str] = {}
    ports: dict[tuple[str, str], dict[str, str]] = {}
    for line in lines:
        if port := _PORT.fullmatch(line):
            ports.setdefault((port[1], port[2]), {})[port[3]] = port[4].strip()
        elif kind := _TYPE.fullmatch(line):
            types[kind[1]] = kind[2].strip()
    rates: dict[tuple[str | None, str | None], float] = {}
    for (card, _), values in ports.items():
        like = (types.get(card), values.get("link_layer"))
        if _state(values) == "ACTIVE" and (rate := _rate(values)):
            rates[like] = max(rate, rates.get(like, 0.0))
    for (card, number), values in ports.items():
        part, state, rate = f"{card[:LONGEST]} port {number}", _state(values), _rate(values)
        downs = values.get("counters/link_downed", "")
        if (
            state == "DOWN"
            and _COUNT.fullmatch(downs)
            and int(downs)
            and "Disabled" not in values.get("phys_state", "")
        ):
            yield HealthReading(name="rdma.down", value=downs, part=part)
        elif state in ("INIT", "ARMED"):
            yield HealthReading(name="rdma.waits", value=state, part=part)
        elif state == "ACTIVE" and rate and types.get(card):
            most = rates[types.get(card), values.get("link_layer")]
            if rate < most:
                yield HealthReading(name="rdma.slow", value=f"{rate:g} of {most:g}", part=part)


def _state(values: Mapping[str, str]) -> str:
    return values.get("state", "").rpartition(": ")[2]


def _rate(values: Mapping[str, str]) -> float | None:
    rate = _RATE.match(values.get("rate", ""))
    try:
        return float(rate[1]) if rate else None
    except ValueError:
        return None


# -------------------------------------------------------------------------------------------- the rest


def _machine(load: str, cpus: int, disk: tuple[int, int], clock: float) -> Iterator[HealthReading]:
    """Its clock; load for each CPU in the last five minutes; how full the disk is, in percent."""
    if abs(clock) > CLOCK_SECONDS:
        yield HealthReading(
            name="clock.off", value=f"{abs(clock):.0f} s {'ahead' if clock > 0 else 'behind'}"
        )
    words = load.split()
    if len(words) > 1 and cpus and re.fullmatch(r"\d{1,7}\.\d\d", words[1]):
        yield HealthReading(name="load", value=round(float(words[1]) / cpus, 1))
    total, free = disk
    if total:
        yield HealthReading(name="disk.used", value=round(100 * (1 - free / total), 1))
