"""Writes providers/cloud/catalogs/ec2.txt: what EC2's instance types have, where they are, what they cost.

    .venv/bin/python tools/ec2_catalog.py

The facts are those that moto (Apache-2.0) ships for its own rehearsal of EC2, the prices those of libcloud's
bundle (Apache-2.0). Both come with `pip install -e .[dev]`; nothing is downloaded. Left out are Macs, types
of which no region is known, and fractions of a GPU: asked for an L4, nobody means an eighth of one.
"""

from __future__ import annotations

import datetime as dt
import gzip
import importlib.metadata
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import libcloud
import moto

OUT = Path(__file__).parent.parent / "providers" / "cloud" / "catalogs" / "ec2.txt"
FACTS = Path(moto.__file__).parent / "ec2" / "resources"
PRICES = Path(libcloud.__file__).parent / "data" / "pricing.json"

NAMES = {"T4g": "T4G", "RTX PRO 4500": "RTXPRO4500", "RTX PRO Server 6000": "RTXPRO6000"}
"""Models that users write otherwise than EC2 does."""
NOMINAL_GB = {"A10G": 24, "L4": 24, "L40S": 48, "B200": 180, "B300": 288}
"""EC2 leaves out what error correction takes; users write what is on the box: `L4:24GB`."""

HEADER = """\
# Instance types of EC2. Written by tools/ec2_catalog.py: run it again rather than edit this.
# Facts: moto {moto} (Apache-2.0). Prices: apache-libcloud {libcloud} (Apache-2.0), as of {date}, USD an hour,
# Linux, on demand; a region without a price is one whose price is unknown.
# `prices DAY`; `region CODE NAME ZONES`; `apart TYPE…`, those that no placement group of the strategy
# `cluster` takes; `type NAME ARCHITECTURE CPUS MEMORY-MIB GPUS CODE[=PRICE]…`,
# where GPUS are `-` or MODEL:COUNT:MIB-OF-EACH.
"""


DIRECTIONS = {
    "north": "n",
    "east": "e",
    "south": "s",
    "west": "w",
    "central": "c",
    "northeast": "ne",
    "southeast": "se",
}


def code(region: str) -> str:
    """`apne1` for `ap-northeast-1`: there are 25,000 of them in the file."""
    land, direction, number = region.split("-")
    return f"{land}{DIRECTIONS[direction]}{number}"


def read(path: Path) -> Any:
    """A compressed file of moto's."""
    with gzip.open(path) as file:
        return json.load(file)


def regions() -> tuple[dict[str, str], dict[str, list[str]]]:
    """Region → the letters of its zones; instance type → its regions.

    Which zone has what differs between accounts, for each has letters of its own: that is not kept.
    """
    zones: dict[str, str] = {}
    types: dict[str, list[str]] = defaultdict(list)
    for file in sorted((FACTS / "instance_type_offerings" / "availability-zone").glob("*.json.gz")):
        region = file.name.removesuffix(".json.gz")
        offered = read(file)
        zones[region] = "".join(sorted({item["Location"].removeprefix(region) for item in offered}))
        for name in sorted({item["InstanceType"] for item in offered}):
            types[name].append(region)
    return zones, types


def gpus(facts: dict[str, Any]) -> str | None:
    """The GPUs as they are written down; None for fractions and mixtures."""
    found = facts.get("GpuInfo", {}).get("Gpus", [])
    if not found:
        return "-"
    (gpu,) = found
    if not gpu["Count"] or gpu["Manufacturer"] != "NVIDIA":
        return None
    name = NAMES.get(gpu["Name"], gpu["Name"])
    each = NOMINAL_GB[name] * 1024 if name in NOMINAL_GB else gpu["MemoryInfo"]["SizeInMiB"]
    return f"{name}:{gpu['Count']}:{each}"


def lines() -> list[str]:
    """The whole file."""
    zones, offered = regions()
    bundle = json.loads(PRICES.read_text())
    prices: dict[str, dict[str, float]] = bundle["compute"]["ec2_linux"]
    date = dt.datetime.fromtimestamp(bundle["updated"], dt.UTC).date().isoformat()
    versions = {
        n: importlib.metadata.version(p) for n, p in (("moto", "moto"), ("libcloud", "apache-libcloud"))
    }
    out = [HEADER.format(date=date, **versions).rstrip(), f"prices {date}"]
    out += [f"region {code(name)} {name} {letters}" for name, letters in zones.items()]
    types = sorted(read(FACTS / "instance_types.json.gz").items())
    apart = [
        name for name, facts in types if "cluster" not in facts["PlacementGroupInfo"]["SupportedStrategies"]
    ]
    out.append(
        " ".join(["apart", *(name for name in apart if name in offered and not name.startswith("mac"))])
    )
    for name, facts in types:
        kinds = facts["ProcessorInfo"]["SupportedArchitectures"]
        kind = "x86_64" if "x86_64" in kinds else kinds[0]
        with_gpus = gpus(facts)
        if kind not in ("x86_64", "arm64") or with_gpus is None or name not in offered:
            continue
        known = prices.get(name, {})
        places = [f"{code(r)}={known[r]:g}" if known.get(r, 0) > 0 else code(r) for r in offered[name]]
        cpus, memory = facts["VCpuInfo"]["DefaultVCpus"], facts["MemoryInfo"]["SizeInMiB"]
        out.append(" ".join([f"type {name} {kind} {cpus} {memory} {with_gpus}", *places]))
    return out


if __name__ == "__main__":
    OUT.write_text("\n".join(lines()) + "\n")
    sys.stdout.write(f"{OUT}: {OUT.stat().st_size} bytes\n")
