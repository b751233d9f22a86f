"""The OpenStack of up.sh, and a provider that asks it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from declarative.provider import Config

ENDPOINT = "http://127.0.0.1:5000/v3"
REGION = "RegionOne"
ZONE = "nova"
IMAGE = "debian-12"
FLAVOR = "m1.tiny"
CREDENTIALS = {"username": "FLEETFORM_TEST_USER", "password": "FLEETFORM_TEST_PASSWORD"}
SECRETS = {"FLEETFORM_TEST_USER": "demo", "FLEETFORM_TEST_PASSWORD": "secret"}
OPTIONS: dict[str, Any] = {"project": "demo", "ssh_config": "/dev/null"}
ASKED_FOR = os.environ.get("FLEETFORM_OPENSTACK") == "1"
WHY_NOT = "FLEETFORM_OPENSTACK is not 1: see tests/openstack/README.md"


def config(folder: Path, lineage: str = "lineage-1", **more: Any) -> Config:
    """A backend of that cloud."""
    given: dict[str, Any] = {
        "driver": "openstack",
        "regions": (REGION,),
        "credentials": CREDENTIALS,
        "endpoint": ENDPOINT,
        "image": {"*": IMAGE},
        "options": OPTIONS,
    }
    return Config(backend="stack", project_dir=folder, lineage=lineage, **{**given, **more})
