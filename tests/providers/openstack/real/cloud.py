"""The OpenStack of up.sh, and a provider that asks it."""

from __future__ import annotations

import json
import os
import urllib.request
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
OPTIONS: dict[str, Any] = {"project": "demo", "network": "shared", "ssh_config": "/dev/null"}
"""Machines have networks beside it, which come and go: see `machines`."""
ASKED_FOR = os.environ.get("FLEETFORM_OPENSTACK") == "1"
WHY_NOT = "FLEETFORM_OPENSTACK is not 1: see tests/providers/openstack/real/README.md"


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


class Admin:
    """The cloud's own view, past the driver: each request as the administrator."""

    def __init__(self) -> None:
        user = {"name": "admin", "password": "secret", "domain": {"name": "Default"}}
        scope = {"project": {"name": "admin", "domain": {"name": "Default"}}}
        identity = {"methods": ["password"], "password": {"user": user}}
        asked = urllib.request.Request(
            f"{ENDPOINT}/auth/tokens", json.dumps({"auth": {"identity": identity, "scope": scope}}).encode()
        )
        asked.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(asked) as answer:
            self.token = answer.headers["X-Subject-Token"]
            found = json.loads(answer.read())["token"]
        self.urls = {
            entry["type"]: end["url"]
            for entry in found["catalog"]
            for end in entry["endpoints"]
            if end["interface"] == "public"
        }

    def ask(self, api: str, method: str, path: str, body: Any = None, version: str | None = None) -> Any:
        """The content of the answer, all pages of a list."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.urls[api] + path, data, method=method)
        asked.add_header("Content-Type", "application/json")
        asked.add_header("X-Auth-Token", self.token)
        if version:
            asked.add_header("OpenStack-API-Version", version)
        with urllib.request.urlopen(asked) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def every(self, api: str, path: str, key: str, version: str | None = None) -> list[dict[str, Any]]:
        """All things of all projects."""
        out: list[dict[str, Any]] = []
        while True:
            marker = f"&marker={out[-1]['id']}" if out else ""
            found = self.ask(api, "GET", f"{path}?all_tenants=1{marker}", version=version)
            out += found[key]
            if not found.get(f"{key}_links"):
                return out

    def servers(self) -> list[dict[str, Any]]:
        """All servers, with their user data."""
        return self.every("compute", "/servers/detail", "servers", "compute 2.3")

    def volumes(self) -> list[dict[str, Any]]:
        """All volumes."""
        return self.every("volumev3", "/volumes/detail", "volumes")
