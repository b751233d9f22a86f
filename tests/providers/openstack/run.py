"""A provider of the driver `openstack` that asks the small cloud of `server`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from declarative.provider import Config
from tests.providers.openstack.server import REGION, SmallCloud

CREDENTIALS = {"username": "FLEETFORM_TEST_USER", "password": "FLEETFORM_TEST_PASSWORD"}
SECRETS = {"FLEETFORM_TEST_USER": "demo", "FLEETFORM_TEST_PASSWORD": "secret"}
OPTIONS: dict[str, Any] = {"project": "demo", "settle": 0, "timeout": 30, "ssh_config": "/dev/null"}


def config(cloud: SmallCloud, folder: Path, lineage: str = "lineage-1", **more: Any) -> Config:
    """A backend of that cloud."""
    given: dict[str, Any] = {
        "driver": "openstack",
        "regions": (REGION,),
        "credentials": CREDENTIALS,
        "endpoint": cloud.endpoint,
        "image": {"*": "debian-12"},
        "options": OPTIONS,
    }
    return Config(backend="stack", project_dir=folder, lineage=lineage, **{**given, **more})
