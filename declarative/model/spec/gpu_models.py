"""The names of GPUs: models by vendor, and the spellings in use for them. Pure.

Sources, read in November 2026: gpuhunt's list of accelerators (dstack's names), SkyPilot's catalog
`v7/common/accelerators.csv`, and the names that `nvidia-smi` and `rocm-smi` report.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

MODELS = {
    "nvidia": "P4:8 M60:8 M4000:8 P4000:8 RTX2060:6 RTX2060SUPER:8 RTX2070:8 RTX2070SUPER:8 RTX2080:8 "
    "RTX2080SUPER:8 RTX2080Ti:11 RTX3050:6 RTX3060:8 RTX3060Ti:8 RTX3070:8 RTX3070Ti:8 RTX3080:10 "
    "RTX3080Ti:12 RTX4060:8 RTX4060Ti:8 RTX4070:12 RTX4070SUPER:12 RTX4070Ti:12 RTX5060:8 RTX5060Ti:8 "
    "RTX5070:12 K80:12 T4:16 T4G:16 A2:16 A16:16 A4000:16 RTX2000Ada:16 RTX4070TiSUPER:16 RTX4080:16 "
    "RTX4080SUPER:16 RTX5070Ti:16 RTX5080:16 P100:16 V100:16 A4500:20 RTX4000Ada:20 P40:24 RTX6000:24 A10:24 "
    "A10G:24 A5000:24 L4:24 A30:24 RTX3090:24 RTX3090Ti:24 RTX4090:24 RTX5090:32 RTX5000Ada:32 RTXPRO4500:32 "
    "A40:48 A6000:48 L20:48 L40:48 L40S:48 RTX6000Ada:48 RTXPRO5000:48 RTXPRO6000:96 "
    "A100:40 A800:80 H20:96 H100:80 H100NVL:94 H800:80 GH200:96 H200:141 H200NVL:141 B100:192 B200:180 "
    "GB200:186 B300:288 GB300:288",
    "amd": "V520:8 MI25:16 MI50:16 V710:28 MI60:32 MI100:32 V620:32 MI210:64 MI250:128 MI250X:128 MI300A:128 "
    "MI308X:128 MI300X:192 MI325X:256 MI350X:288 MI355X:288",
    "intel": "GAUDI:32 GAUDI2:96 GAUDI3:128",
    "tenstorrent": "N150:12 N300:24 P100A:28 P150:32 P300:32",
}
"""Models by vendor, the least first, and the GB of memory that one has (of several sizes the least)."""


class Model(NamedTuple):
    """A model that is known; `rank` is its place among those of its vendor."""

    name: str
    vendor: str
    rank: int
    gb: int


KNOWN = {
    name.lower(): Model(name, vendor, rank, int(size))
    for vendor, models in MODELS.items()
    for rank, (name, size) in enumerate(model.split(":") for model in models.split())
}
MOST_GB = max(model.gb for model in KNOWN.values())
ALIASES = {
    "gaudihl205": "gaudi",
    "gaudihl225": "gaudi2",
}
"""Other names of a model, both without separators."""
_MAKERS = re.compile(r"(?:(?:nvidia|amd|intel|instinct|tesla|quadro|geforce|radeon)[ _-]+)+(?:pro[ _-]+)?")
_FORMS = re.compile(
    r"(?:[ _-]*(?:sxm\d?|pcie|hbm\d?e?|nvlink|oam|mega)"
    r"|[ _-]+(?:generation|gen|sff|server|workstation|edition|max-?q|dgxs|fhhl|ls|ac|active))(?![a-z])"
)
"""The board on which a model is sold, and other words: the GPU is the same."""
_BOARDS = re.compile(r"[ _-]*(sxm\d?|pcie|nvlink|oam|mega)(?![a-z])")
_PRO = re.compile(r"rtx(?:pro(\d+)(?:blackwell)?(?:ws)?|(\d+00)blackwell)")
"""`RTX PRO 6000`, which has no namesake of another generation, and `RTX 6000 Blackwell`, which has."""
_SIZE = re.compile(r"(?:[ _-]+|(?<=sxm)|(?<=pcie))\(?(\d{1,3}) ?gb?\)?(?![a-z0-9.])", re.IGNORECASE)
"""A size of memory; `3g.20gb` of a MIG instance does not match."""


@lru_cache(maxsize=4096)
def spelling(name: str) -> str:
    """The key that all spellings of a model have in common: `RTX 6000-Ada` and `rtx6000ada` are one.

    Without vendor, separators and the board's form. A size of memory in the name stays in the key, as does
    `NVL`: that board has other memory.
    """
    text = _FORMS.sub("", _MAKERS.sub("", name.lower(), count=1))
    key = re.sub(r"[ _-]", "", text)
    key = re.sub(r"^rtx(a\d)", r"\1", key)
    if pro := _PRO.fullmatch(key):
        return f"rtxpro{pro[1] or pro[2]}"
    return ALIASES.get(key, key)


@lru_cache(maxsize=4096)
def parts(name: str) -> tuple[str, int | None]:
    """The model, as the table has it if it is known, and the GB of memory that the name says:
    `NVIDIA A100-SXM4-80GB` is an `A100` of 80, `NVIDIA H100 NVL` an `H100NVL`.
    """
    size, rest = _SIZE.search(name), _SIZE.sub("", name, count=1)
    gb = int(size[1]) if size else None
    if gb and gb > MOST_GB:  # that of the CPU on the same board, as in `GH200 480GB`
        gb = None
    model = KNOWN.get(spelling(rest))
    return model.name if model else rest, gb


def board(name: str) -> str:
    """The board's form that the name says: `SXM`, `PCIE`, `WS`; empty if it says none."""
    if match := _BOARDS.search(name.lower()):
        return match[1].upper()
    return "WS" if re.sub(r"[ _-]", "", name.lower()).endswith("rtxpro6000ws") else ""


def known(name: str) -> tuple[str, int | None] | None:
    """The model and the GB that the name says, as for `A100-SXM4-80GB`; None if no such model is known."""
    text, gb = parts(name)
    model = KNOWN.get(text.lower())
    if model is None or model.name != text:
        return None
    board = text.removesuffix("NVL")
    return board, (gb or model.gb) if board != text else gb  # offers name the model alone, and its memory


def fits(name: str, model: str, mib: int | None) -> bool:
    """Whether GPUs of a model with that much memory are those that a name asks for. A size in it is asked for
    as well: an `A100-80GB` is an `A100` with 80 GB, and an `A100` of any size is an `A100`.
    """
    if spelling(name) == spelling(model):
        return True
    has, own = parts(model)
    # Offers and hosts name an `H100NVL` as an `H100` with 94 GB: a board is known by its memory, too.
    for asked, size in filter(None, (parts(name), known(name))):
        if spelling(asked) == spelling(has):
            return size is None or size * 1024 == (mib or (own or 0) * 1024)
    return False


_FAMILIES = (
    ("nvidia", r"(nvidia|tesla|quadro|geforce|rtx|gtx|titan)\b|(rtx|gtx)a?\d"),
    ("amd", r"(amd|instinct|radeon)\b|mi\d"),
    ("intel", r"intel\b|gaudi|(max|flex) ?\d"),
    ("google", r"tpu|v[2-7](e|p|i|litepod)?(-\d+)?$"),
    ("tenstorrent", r"tenstorrent|wormhole|n[13][05]0"),
)
"""Which beginnings of a model's name tell its vendor, where the model itself is not known."""


def model_of(name: str) -> Model | None:
    """The known model that a name means; `H100 NVL` and `A100-SXM4` are known as `H100` and `A100`."""
    lower = name.lower()
    return KNOWN.get(lower) or KNOWN.get(spelling(lower)) or KNOWN.get(re.split(r"[\s_-]", lower)[0])


def vendor_of(model: str | None) -> str | None:
    """The vendor of a GPU model; None if there is no model, or an unknown one."""
    if not model:
        return None
    if known := model_of(model):
        return known.vendor
    name = model.lower()
    return next((vendor for vendor, start in _FAMILIES if re.match(start, name)), None)


def makers_named(names: tuple[str, ...]) -> frozenset[str]:
    """The vendors of models that are asked for by name; of an unknown model, its name."""
    return frozenset(vendor_of(name) or name.lower() for name in names)
