"""Write the SBOM of a wheel beside it, as CycloneDX: `python tools/sbom.py dist/fleetform-….whl`.

What comes with the wheel is what `locks/dev.txt` names, as far as the wheel asks for it: the versions that
this commit was tested with. Components of an extra are optional, and left out if they are not in the lock.
Nothing in it is of the day or the machine: the same wheel, the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from collections.abc import Iterable
from email.parser import Parser
from pathlib import Path
from typing import Any
from zipfile import ZipFile

LOCK = Path(__file__).parents[1] / "locks" / "dev.txt"
_PACKAGE = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>[^ \\]+)(?: ; (?P<marker>.+?))? \\$")


def read_lock(text: str) -> dict[str, dict[str, Any]]:
    """Package → version, marker, hashes, and who asks for it."""
    found: dict[str, dict[str, Any]] = {}
    one: dict[str, Any] = {}
    for line in text.splitlines():
        if begun := _PACKAGE.match(line):
            one = {**begun.groupdict(), "hashes": [], "via": []}
            found[begun["name"]] = one
        elif line.startswith("    --hash=sha256:"):
            one["hashes"].append(line.partition("sha256:")[2].rstrip(" \\"))
        elif line.startswith("    # via ") or (line.startswith("    #   ") and one):
            one["via"].append(line.removeprefix("    # via ").strip(" #").split(" ")[0])
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def asked_for(metadata: Any) -> tuple[list[str], list[str]]:
    """What a wheel always asks for, and what the extras do that are for its users."""
    always, optional = [], []
    for text in metadata.get_all("Requires-Dist", []):
        name = re.split(r"[^A-Za-z0-9._-]", text)[0]
        extra = re.search(r"extra == ['\"]([^'\"]+)", text)
        if extra is None:
            always.append(_normal(name))
        elif extra[1] != "dev":
            optional.append(_normal(name))
    return always, optional


def _below(names: Iterable[str], needs: dict[str, list[str]]) -> set[str]:
    """`names`, and all that they need."""
    found: set[str] = set()
    left = list(names)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += needs[name]
    return found


def sbom(wheel: Path, lock: str) -> dict[str, Any]:
    """The SBOM of a wheel."""
    with ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    locked = read_lock(lock)
    needs = {n: sorted(m for m, other in locked.items() if n in other["via"]) for n in locked}
    always, optional = asked_for(metadata)
    optional = [n for n in optional if n in locked]
    required = _below(always, needs)
    packages = sorted(required | _below(optional, needs))
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    version = str(metadata["Version"])
    this = f"pkg:pypi/fleetform@{version}"
    refs = {n: f"pkg:pypi/{n}@{locked[n]['version']}" for n in packages}
    components = [_component(locked[n], refs[n], required=n in required) for n in packages]
    direct = sorted({*always, *optional})
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, sha256)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": this,
                "name": "fleetform",
                "version": version,
                "purl": this,
                "licenses": [{"license": {"id": str(metadata["License-Expression"])}}],
                "hashes": [{"alg": "SHA-256", "content": sha256}],
            }
        },
        "components": components,
        "dependencies": [
            {"ref": this, "dependsOn": [refs[n] for n in direct]},
            *({"ref": refs[n], "dependsOn": [refs[m] for m in needs[n]]} for n in packages),
        ],
    }


def _component(package: dict[str, Any], ref: str, *, required: bool) -> dict[str, Any]:
    files = {
        "type": "distribution",
        "url": f"https://pypi.org/project/{package['name']}/{package['version']}/",
        "comment": "the hashes of all its files, one of which is installed",
        "hashes": [{"alg": "SHA-256", "content": found} for found in package["hashes"]],
    }
    marker = [{"name": "fleetform:marker", "value": package["marker"]}] if package["marker"] else []
    return {
        "type": "library",
        "bom-ref": ref,
        "name": package["name"],
        "version": package["version"],
        "purl": ref,
        "scope": "required" if required else "optional",
        "externalReferences": [files],
        **({"properties": marker} if marker else {}),
    }


def main() -> None:
    """Write the SBOMs of the wheels that are named."""
    for wheel in map(Path, sys.argv[1:]):
        text = json.dumps(sbom(wheel, LOCK.read_text()), indent=2) + "\n"
        wheel.with_suffix(".cdx.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
