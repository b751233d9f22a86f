"""GPUs that are declared of hosts, in every spelling, against what the tools of their vendors report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from declarative.model.blocks import misfits
from declarative.model.resource import Host
from declarative.model.spec.gpu_models import KNOWN, MODELS
from declarative.model.spec.values import Gpu, Resources
from declarative.planner.hosts import _numbers, declared_shape
from providers.ssh import gpus, probe
from providers.ssh.probe import Declared, Facts

REPORTED = {
    "P4": ["Tesla P4, 7611"],
    "M60": ["Tesla M60, 8129"],
    "M4000": ["Quadro M4000, 8126"],
    "P4000": ["Quadro P4000, 8119"],
    "RTX2060": ["NVIDIA GeForce RTX 2060, 6144"],
    "RTX2060SUPER": ["GeForce RTX 2060 SUPER, 7982"],
    "RTX2070": ["GeForce RTX 2070, 7982"],
    "RTX2070SUPER": ["NVIDIA GeForce RTX 2070 SUPER, 8192"],
    "RTX2080": ["GeForce RTX 2080, 7982"],
    "RTX2080SUPER": ["NVIDIA GeForce RTX 2080 SUPER, 8192"],
    "RTX2080Ti": ["NVIDIA GeForce RTX 2080 Ti, 11264", "GeForce RTX 2080 Ti, 11019"],
    "RTX3050": ["NVIDIA GeForce RTX 3050, 8192"],
    "RTX3060": ["NVIDIA GeForce RTX 3060, 12288"],
    "RTX3060Ti": ["NVIDIA GeForce RTX 3060 Ti, 8192"],
    "RTX3070": ["NVIDIA GeForce RTX 3070, 8192"],
    "RTX3070Ti": ["NVIDIA GeForce RTX 3070 Ti, 8192"],
    "RTX3080": ["NVIDIA GeForce RTX 3080, 10240"],
    "RTX3080Ti": ["NVIDIA GeForce RTX 3080 Ti, 12288"],
    "RTX4060": ["NVIDIA GeForce RTX 4060, 8188"],
    "RTX4060Ti": ["NVIDIA GeForce RTX 4060 Ti, 16380"],
    "RTX4070": ["NVIDIA GeForce RTX 4070, 12282"],
    "RTX4070SUPER": ["NVIDIA GeForce RTX 4070 SUPER, 12282"],
    "RTX4070Ti": ["NVIDIA GeForce RTX 4070 Ti, 12282"],
    "RTX5060": ["NVIDIA GeForce RTX 5060, 8151"],
    "RTX5060Ti": ["NVIDIA GeForce RTX 5060 Ti, 16311"],
    "RTX5070": ["NVIDIA GeForce RTX 5070, 12227"],
    "K80": ["Tesla K80, 11441"],
    "T4": ["Tesla T4, 15360", "NVIDIA T4, 15109"],
    "T4G": ["NVIDIA T4G, 15360"],
    "A2": ["NVIDIA A2, 15356"],
    "A16": ["NVIDIA A16, 15356"],
    "A4000": ["NVIDIA RTX A4000, 16376", "Quadro RTX A4000, 16117"],
    "RTX2000Ada": ["NVIDIA RTX 2000 Ada Generation, 16380"],
    "RTX4070TiSUPER": ["NVIDIA GeForce RTX 4070 Ti SUPER, 16376"],
    "RTX4080": ["NVIDIA GeForce RTX 4080, 16376"],
    "RTX4080SUPER": ["NVIDIA GeForce RTX 4080 SUPER, 16376"],
    "RTX5070Ti": ["NVIDIA GeForce RTX 5070 Ti, 16303"],
    "RTX5080": ["NVIDIA GeForce RTX 5080, 16303"],
    "P100": ["Tesla P100-PCIE-16GB, 16280", "Tesla P100-SXM2-16GB, 16276"],
    "V100": [
        "Tesla V100-SXM2-16GB, 16160",
        "Tesla V100-SXM2-32GB, 32510",
        "Tesla V100-SXM2-32GB-LS, 32510",
        "Tesla V100-DGXS-32GB, 32505",
        "Tesla V100-FHHL-16GB, 16160",
    ],
    "A4500": ["NVIDIA RTX A4500, 20470"],
    "RTX4000Ada": ["NVIDIA RTX 4000 Ada Generation, 20475", "NVIDIA RTX 4000 SFF Ada Generation, 20475"],
    "P40": ["Tesla P40, 22919"],
    "RTX6000": ["Quadro RTX 6000, 24220", "NVIDIA Quadro RTX 6000, 24576"],
    "A10": ["NVIDIA A10, 23028"],
    "A10G": ["NVIDIA A10G, 23028"],
    "A5000": ["NVIDIA RTX A5000, 24564"],
    "L4": ["NVIDIA L4, 23034"],
    "A30": ["NVIDIA A30, 24576"],
    "RTX3090": ["NVIDIA GeForce RTX 3090, 24576"],
    "RTX3090Ti": ["NVIDIA GeForce RTX 3090 Ti, 24564"],
    "RTX4090": ["NVIDIA GeForce RTX 4090, 24564"],
    "RTX5090": ["NVIDIA GeForce RTX 5090, 32607"],
    "RTX5000Ada": ["NVIDIA RTX 5000 Ada Generation, 32760"],
    "RTXPRO4500": ["NVIDIA RTX PRO 4500 Blackwell, 32623"],
    "A40": ["NVIDIA A40, 46068"],
    "A6000": ["NVIDIA RTX A6000, 49140"],
    "L20": ["NVIDIA L20, 46068"],
    "L40": ["NVIDIA L40, 46068"],
    "L40S": ["NVIDIA L40S, 46068"],
    "RTX6000Ada": ["NVIDIA RTX 6000 Ada Generation, 49140"],
    "RTXPRO5000": ["NVIDIA RTX PRO 5000 Blackwell, 48935"],
    "RTXPRO6000": [
        "NVIDIA RTX PRO 6000 Blackwell Server Edition, 97887",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition, 97887",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition, 97887",
    ],
    "A100": [
        "NVIDIA A100-SXM4-80GB, 81920",
        "NVIDIA A100-SXM4-40GB, 40960",
        "A100-SXM4-40GB, 40536",
        "NVIDIA A100-PCIE-40GB, 40960",
        "NVIDIA A100 80GB PCIe, 81920",
        "NVIDIA A100-SXM-64GB, 65536",
    ],
    "A800": ["NVIDIA A800-SXM4-80GB, 81920", "NVIDIA A800 40GB Active, 40960"],
    "H20": ["NVIDIA H20, 97871"],
    "H100": ["NVIDIA H100 80GB HBM3, 81559", "NVIDIA H100 PCIe, 81559"],
    "H100NVL": ["NVIDIA H100 NVL, 95830"],
    "H800": ["NVIDIA H800, 81559"],
    "GH200": ["NVIDIA GH200 480GB, 97871", "NVIDIA GH200 144G HBM3e, 147456"],
    "H200": ["NVIDIA H200, 143771"],
    "H200NVL": ["NVIDIA H200 NVL, 143771"],
    "B100": ["NVIDIA B100, 195000"],
    "B200": ["NVIDIA B200, 183359"],
    "GB200": ["NVIDIA GB200, 189471"],
    "B300": ["NVIDIA B300 SXM6 AC, 275040"],
    "GB300": ["NVIDIA GB300, 284208"],
}
"""Model → names of `nvidia-smi`, each with its memory.total in MiB."""

BOARDS = {name for name in REPORTED if name.endswith("NVL")}
"""Boards that are also their model: an `H100NVL` is an `H100`, but not the other way round."""


def reported(row: str) -> gpus.Gpu:
    """The only GPU of a host, with its vendor's words for it."""
    (gpu,) = gpus.nvidia([f"0, GPU-a, {row}, 0, [N/A]"], 0)
    return gpu


def words(model: str) -> str:
    """`RTX6000Ada` → `RTX 6000 Ada`; other names are one word."""
    for prefix in ("RTXPRO", "RTX"):
        if model.startswith(prefix):
            rest = model.removeprefix(prefix)
            number = "".join(c for c in rest if c.isdecimal())
            tail = rest.removeprefix(number).replace("TiSUPER", "Ti SUPER")
            return f"{'RTX PRO' if prefix == 'RTXPRO' else 'RTX'} {number} {tail}".strip()
    return f"{model.removesuffix('NVL')} NVL" if model.endswith("NVL") else model


def spellings(model: str, row: str) -> set[str]:
    """A model as people and other tools write it, with and without the memory that the GPU has."""
    gpu, name = reported(row), row.partition(",")[0]
    plain = {model, words(model), words(model).replace(" ", "-"), words(model).replace(" ", "_")}
    if model in {"A4000", "A4500", "A5000", "A6000"}:
        plain |= {f"RTX{model}", f"RTX {model}"}
    if model.startswith("RTXPRO"):
        plain |= {f"{words(model)} Blackwell", f"RTX {model.removeprefix('RTXPRO')} Blackwell"}
    if model.endswith("Ada"):
        plain |= {words(model).replace(" Ada", "-Ada"), f"{words(model)} Generation"}
    assert gpu.memory_mib
    sizes = {
        "",
        f"-{gpu.memory_mib // 1024}GB",
        f" {gpu.memory_mib // 1024}GB",
        f"-{gpu.memory_mib // 1024}G",
    }
    plain = {f"{maker}{one}" for maker in ("", "NVIDIA ", "nvidia-") for one in plain}
    if not model.startswith("RTX") and model not in BOARDS:
        plain |= {f"{model}{form}" for form in ("-SXM", "-SXM5", "-PCIe", " PCIe", "-SXM4")}
    return {case for one in plain for size in sizes for case in (one + size, (one + size).lower())} | {
        name,
        name.replace(" ", "-"),
    }


def short(declared: Any, row: str, **host: Any) -> str:
    """Why a host with one GPU has less than is declared of it; empty if it has not."""
    return "; ".join(probe._falls_short(facts(row), declares(declared, **host)))


def declares(gpu: Any, **host: Any) -> Declared:
    """What is declared of a host by a document."""
    return Declared(resources=_numbers(Resources(gpu=Gpu.parse(gpu))), **host)


def facts(row: str) -> Facts:
    """Of a host with one GPU."""
    return replace(probe.parse([], 0.0), gpus=(reported(row),))


ROWS = [(model, row) for model, rows in REPORTED.items() for row in rows]


def test_the_whole_table_of_nvidia_is_tried():
    assert {*REPORTED} == {name.partition(":")[0] for name in MODELS["nvidia"].split()}


@pytest.mark.parametrize(("model", "row"), ROWS, ids=lambda part: part.partition(",")[0])
def test_a_host_has_the_gpu_that_it_declares_however_it_is_spelled(model, row):
    """Also as what chooses it, and as what a task asks for of the node."""
    for name in sorted(spellings(model, row)):
        assert short({"name": name, "count": 1}, row) == "", name
        assert gpus.absent([reported(row)], [name]) == []
        shape = declares({"name": name, "count": 1}).shape_of(facts(row))
        for asked in (name, model):
            want = Resources(gpu=Gpu.parse({"name": asked, "count": 1}))
            assert not misfits(want, shape), (name, asked)


@pytest.mark.parametrize(("model", "row"), ROWS, ids=lambda part: part.partition(",")[0])
def test_no_host_has_the_gpu_of_another_model(model, row):
    others = {known.name for known in KNOWN.values()} - {model, model.removesuffix("NVL")}
    for other in sorted(others):
        for name in {other, words(other), f"NVIDIA {words(other)}"}:
            assert "0 of the 1" in short({"name": name, "count": 1}, row), name
            assert gpus.absent([reported(row)], [name]) == [name]


@pytest.mark.parametrize(
    "declared", ["A100-80GB:8", "NVIDIA-A100-SXM4-80GB:8", "A100:80GB:8", "A100-40GB:80GB:8"]
)
def test_a_size_in_the_name_is_memory(declared):
    reason = short(declared, "NVIDIA A100-SXM4-40GB, 40960")
    name = declared.split(":")[0]
    assert reason.startswith(
        f"it has 0 of the 8 {name} GPUs with 80GB of memory (GPUs that work: 1 A100 with 40GB) that are "
    )
    assert not gpus.absent([reported("A100-SXM4-40GB, 40960")], ["A100"])
    assert gpus.absent([reported("A100-SXM4-40GB, 40960")], ["A100-80GB"])


@pytest.mark.parametrize("declared", ["B200:192GB:1", "B200-192GB:1", "B200-180GB:1"])
def test_memory_is_declared_as_it_is_sold(declared):
    assert short(declared, "NVIDIA B200, 183359") == ""


def test_a_host_that_nobody_looked_at_has_what_its_name_says():
    resources = {
        "cpu": 8,
        "memory_mib": 1024,
        **_numbers(Resources(gpu=Gpu.parse("NVIDIA-A100-SXM4-80GB:2"))),
    }
    shape = declared_shape(
        Host(fleet="f", name="f-0", backend="ssh", key="h", fields={"resources": resources})
    )
    assert shape
    assert (shape.gpus, shape.gpu_name, shape.gpu_memory_mib) == (2, "A100", 80 * 1024)


def test_one_of_several_models_is_enough():
    """The node has the one that is there; unseen, it is none of them for sure."""
    declared = "A100-80GB,H100:1"
    for row, model in (("NVIDIA H100 PCIe, 81559", "H100"), ("NVIDIA A100 80GB PCIe, 81920", "A100")):
        assert short(declared, row) == ""
        shape = declares(declared).shape_of(facts(row))
        assert (shape.gpu_name, shape.gpu_memory_mib) == (model, 80 * 1024)
    assert short(declared, "NVIDIA A100-SXM4-40GB, 40960").startswith(
        "it has 0 of the 1 A100-80GB or H100 GPUs (GPUs that work: 1 A100 with 40GB)"
    )
    trusted = declares(declared, trusted=True).shape_of(facts("Tesla T4, 15360"))
    assert (trusted.gpus, trusted.gpu_name) == (1, None)


def test_a_task_that_asks_for_a_size_gets_no_other():
    want = Resources(gpu=Gpu.parse("A100-80GB:1"))
    for row, fits in (("NVIDIA A100-SXM4-40GB, 40960", False), ("NVIDIA A100-SXM4-80GB, 81920", True)):
        assert (not misfits(want, declares("A100:1").shape_of(facts(row)))) is fits


@pytest.mark.parametrize(
    ("row", "name", "yes"),
    [
        ("AMD Instinct MI300X OAM", "MI300X", True),
        ("AMD Instinct MI300X OAM", "AMD Instinct MI300X OAM", True),
        ("AMD Instinct MI300X OAM", "MI300X-192GB", True),
        ("AMD Instinct MI300X OAM", "MI325X", False),
        ("AMD Radeon RX 7900 XTX", "RX7900XTX", True),
        ("AMD Radeon RX 7900 XTX", "RX 7900 XT", False),
        ("AMD Radeon RX 7900 XTX", "Radeon RX 7900 XTX", True),
    ],
)
def test_amds_names(row, name, yes):
    head = "device,Unique ID,VRAM Total Memory (B),VRAM Total Used Memory (B),Card Series,Card Model"
    (gpu,) = gpus.rocm([head, f"card0,0xaaaa,206141652992,0,{row},0x74a1"], 0)
    assert (gpus.absent([gpu], [name]) == []) is yes


@pytest.mark.parametrize(
    ("row", "name", "yes"),
    [
        ("NVIDIA T400 4GB, 4096", "T400", True),
        ("NVIDIA T400 4GB, 4096", "NVIDIA T400 4GB", True),
        ("NVIDIA RTX A2000 12GB, 12282", "RTX A2000", True),
        ("NVIDIA RTX A2000 12GB, 12282", "A2000-12GB", True),
        ("NVIDIA RTX A2000 12GB, 12282", "A2", False),
        ("NVIDIA RTX PRO 4000 Blackwell, 24467", "RTX PRO 4000", True),
        ("NVIDIA RTX PRO 4000 Blackwell, 24467", "RTX PRO 6000", False),
        ("NVIDIA TITAN RTX, 24576", "TITAN RTX", True),
        ("NVIDIA GeForce GTX 1080 Ti, 11264", "GTX1080Ti", True),
        ("NVIDIA GeForce GTX 1080 Ti, 11264", "GTX 1080", False),
        ("Tesla V100S-PCIE-32GB, 32510", "V100S", True),
        ("GRID A100D-40C, 40960", "GRID A100D-40C", True),
    ],
)
def test_models_that_the_table_does_not_have(row, name, yes):
    assert (short({"name": name, "count": 1}, row) == "") is yes


@pytest.mark.parametrize(("name", "row"), [(name, REPORTED[name][0]) for name in sorted(BOARDS)])
def test_a_task_that_asks_for_a_board_gets_a_host_with_it_and_no_other(name, row):
    """The shape names the model, and the memory tells the board: H100 NVL has 94 GB."""
    own = reported(row)
    assert Gpu.parse(f"{name}:1").allows(own.name, own.memory_mib)
    assert not Gpu.parse("H100NVL:1").allows("H100", 80 * 1024)
    assert not Gpu.parse("H100NVL:1").allows("H200", 141 * 1024)
