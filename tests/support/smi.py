"""Stand-ins for `nvidia-smi` and `rocm-smi`, by what real ones print for a dozen kinds of hosts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

ASKED = "index,uuid,name,memory.total,memory.used,mig.mode.current"
NO_FIELD = 'Field "mig.mode.current" is not a valid field to query.'
LOST = "Unable to determine the device handle for GPU1: 0000:3B:00.0: Unknown Error"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of host. `rows` are the columns of `ASKED`; a row without commas is printed as it is."""

    rows: tuple[str, ...] = ()
    code: int = 0
    listing: str = ""
    """Of `nvidia-smi -L`."""
    fields: int = 6
    """So many of the columns are known to its driver."""
    amd: bool = False
    uses: tuple[int | str, ...] = ()
    """Use of each GPU in percent."""
    models: tuple[tuple[str, int | None], ...] = ()
    """Right: name and GiB of each GPU that can be used."""
    ids: tuple[str, ...] = ()
    fault: str = ""

    @property
    def tool(self) -> str:
        """The name of its command."""
        return "rocm-smi" if self.amd else "nvidia-smi"

    @property
    def script(self) -> str:
        """The command."""
        return _rocm(self) if self.amd else _nvidia(self)

    def install(self, folder: Path) -> None:
        """Put its command into a folder, in place of another's."""
        folder.mkdir(exist_ok=True)
        for tool in ("nvidia-smi", "rocm-smi"):
            (folder / tool).unlink(missing_ok=True)
        (folder / self.tool).write_text(self.script)
        (folder / self.tool).chmod(0o755)


def _nvidia(kind: Kind) -> str:
    cells = [[cell.strip() for cell in row.split(",")] for row in kind.rows]

    def table(*columns: int) -> str:
        rows = [
            ", ".join(row[i] for i in columns if i < len(row)) if len(row) > 1 else row[0] for row in cells
        ]
        return shlex.quote("".join(f"{row}\n" for row in rows))

    gpus = [row for row in cells if len(row) > 1]
    used = [f"{row[0]}, {row[1]}, {use}" for row, use in zip(gpus, kind.uses or [0] * len(gpus), strict=True)]
    newest = (
        f"printf '%s\\n' {shlex.quote(NO_FIELD)}; exit 2"
        if kind.fields < 6
        else f"printf %s {table(*range(6))}"
    )
    return f"""#!/bin/sh
case $* in
-L) printf %s {shlex.quote(kind.listing)} ;;
*=index,uuid,utilization.gpu\\ *) printf '%s\\n' {shlex.join(used)} ;;
*=index,uuid\\ *) printf %s {table(0, 1)} ;;
*={ASKED}\\ *) {newest} ;;
*=index,uuid,name,memory.total,memory.used\\ *) printf %s {table(*range(5))} ;;
*) echo "Option $* is not recognized" >&2; exit 2 ;;
esac
exit {kind.code}
"""


def _rocm(kind: Kind) -> str:
    head = "device,Unique ID,VRAM Total Memory (B),VRAM Total Used Memory (B),Card Series,Card Model"
    ids = [",".join(row.split(",")[:2]) for row in kind.rows]
    used = [
        f"{row.split(',')[0]},{use}"
        for row, use in zip(kind.rows, kind.uses or [0] * len(kind.rows), strict=True)
    ]
    return f"""#!/bin/sh
case $* in
'--showuniqueid --csv') printf '%s\\n' 'device,Unique ID' {shlex.join(ids)} ;;
'--showuse --csv') printf '%s\\n' 'device,GPU use (%)' {shlex.join(used)} ;;
*) printf '%s\\n' {shlex.quote(head)} {shlex.join(kind.rows)} ;;
esac
exit {kind.code}
"""


MIXED = Kind(
    rows=(
        "0, GPU-a, NVIDIA T400 4GB, 4096, 10, [N/A]",
        "1, GPU-b, NVIDIA RTX A6000, 49140, 10, [N/A]",
        "2, GPU-c, NVIDIA RTX A6000, 49140, 10, [N/A]",
    ),
    uses=(0, 97, 95),
    models=(("T400", 4), ("A6000", 48), ("A6000", 48)),
    ids=("GPU-a", "GPU-b", "GPU-c"),
)
MIG = Kind(
    rows=(
        "0, GPU-a, NVIDIA A100-SXM4-40GB, 40960, 0, Enabled",
        "1, GPU-b, NVIDIA A100-SXM4-40GB, 40960, 0, Disabled",
    ),
    listing="""\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.5gb+me   Device  1: (UUID: MIG-0cf1a2b3-0000-5000-8000-000000000001)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-b)
""",
    uses=("[N/A]", 50),
    models=(("A100-3g.20gb", 20), ("A100-1g.5gb+me", 5), ("A100", 40)),
    ids=(
        "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f",
        "MIG-0cf1a2b3-0000-5000-8000-000000000001",
        "GPU-b",
    ),
)
AMD = Kind(
    rows=(
        "card1,0xbbbb,206141652992,0,AMD Instinct MI300X OAM,0x74a1",
        "card0,0xaaaa,206141652992,0,AMD Instinct MI300X OAM,0x74a1",
    ),
    amd=True,
    uses=(5, 90),
    models=(("MI300X", 192), ("MI300X", 192)),
    ids=("0xaaaa", "0xbbbb"),
)
ONE_LOST = Kind(
    rows=("0, GPU-a, NVIDIA RTX A6000, 49140, 10, [N/A]", LOST),
    code=255,
    models=(("A6000", 48),),
    ids=("GPU-a",),
    fault="GPU1",
)
KINDS = {
    "eight alike": Kind(
        rows=tuple(f"{i}, GPU-{i}, NVIDIA H100 80GB HBM3, 81559, 0, Disabled" for i in range(8)),
        models=(("H100", 80),) * 8,
        ids=tuple(f"GPU-{i}" for i in range(8)),
    ),
    "a display before two": MIXED,
    "an old driver": Kind(
        rows=("0, GPU-a, Tesla K80, 11441, 0",) * 1 + ("1, GPU-b, Tesla K80, 11441, 0",),
        fields=5,
        models=(("K80", 12),) * 2,
        ids=("GPU-a", "GPU-b"),
    ),
    "instances of MIG": MIG,
    "in MIG mode without instances": Kind(
        rows=("0, GPU-a, NVIDIA H100 PCIe, 81559, 0, Enabled",),
        listing="GPU 0: NVIDIA H100 PCIe (UUID: GPU-a)\n",
    ),
    "memory of the host": Kind(
        rows=("0, GPU-a, NVIDIA GB10, [N/A], [N/A], [N/A]",), models=(("GB10", None),), ids=("GPU-a",)
    ),
    "one is lost": ONE_LOST,
    "one does not answer": Kind(
        rows=(
            "0, GPU-a, NVIDIA A40, [Unknown Error], 0, [N/A]",
            "1, GPU-b, NVIDIA A40, 46068, 0, [N/A]",
        ),
        models=(("A40", 48),),
        ids=("GPU-b",),
        fault="Unknown Error",
    ),
    "another driver than the kernel's": Kind(
        rows=("Failed to initialize NVML: Driver/library version mismatch",), code=18, fault="mismatch"
    ),
    "a driver without cards": Kind(rows=("No devices were found",)),
    "a virtual one": Kind(
        rows=("0, GPU-a, GRID A100D-40C, 40960, 0, [N/A]",), models=(("GRID", 40),), ids=("GPU-a",)
    ),
    "AMD's": AMD,
}
