"""The names of GPUs: one table, in which every spelling in use leads to its model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.model.blocks import Shape, misfits
from declarative.model.spec.gpu_models import MODELS, known, spelling, vendor_of
from declarative.model.spec.values import Gpu, Resources

NAMES = [model.partition(":")[0] for models in MODELS.values() for model in models.split()]

SPELLINGS = {
    "NVIDIA H100 80GB HBM3": ("H100", 80),
    "NVIDIA-A100-SXM4-40GB": ("A100", 40),
    "A100-80GB-SXM": ("A100", 80),
    "A100-PCIE-40GB": ("A100", 40),
    "H100-NVL": ("H100", 94),
    "H100-MEGA": ("H100", None),
    "RTX6000-Ada": ("RTX6000Ada", None),
    "NVIDIA RTX 6000 Ada": ("RTX6000Ada", None),
    "RTXA6000": ("A6000", None),
    "NVIDIA-GeForce-RTX-4090": ("RTX4090", None),
    "NVIDIA RTX PRO 6000 Blackwell": ("RTXPRO6000", None),
    "Radeon Pro V520": ("V520", None),
    "Gaudi HL-205": ("GAUDI", None),
    "T4g": ("T4G", None),
    "V100-32GB": ("V100", 32),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_in_use_lead_to_their_model(name):
    assert known(name) == SPELLINGS[name]


@pytest.mark.parametrize("name", ["tpu-v4-16", "A100X", "NVIDIA", "H1000", "L4S", ""])
def test_an_unknown_name_stays_unknown(name):
    assert known(name) is None


def test_no_two_models_share_a_spelling():
    assert len({spelling(name) for name in NAMES}) == len(NAMES)


@given(
    st.sampled_from(NAMES), st.sampled_from(NAMES), st.sampled_from(["{}", "NVIDIA {}", "{}-SXM5", "{} PCIe"])
)
def test_a_model_fits_however_it_is_spelled_and_no_other_does(asked, offered, form):
    want = Gpu(names=(form.format(asked),))
    assert want.allows(offered) == (asked == offered)


def test_memory_in_a_name_is_not_forgotten():
    """`A100-80GB` is no A100 of 40 GB."""
    node = Shape(cpu=8, memory_mib=1 << 16, gpus=1, gpu_name="A100", gpu_memory_mib=40 * 1024)
    assert [s.dimension for s in misfits(Resources(gpu=Gpu(names=("A100-80GB",))), node)] == ["gpu_model"]


def test_every_model_has_its_vendor():
    for vendor, models in MODELS.items():
        assert {vendor_of(model.partition(":")[0]) for model in models.split()} == {vendor}
