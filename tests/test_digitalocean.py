"""The driver `digitalocean` against a DigitalOcean of our own (tests/cloud_any/digitalocean.py): a cloud
without tokens, which loses a third of the requests or their answers.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import pytest

from declarative.provider import Config, PermanentError, PermanentKind, TransientError, token
from declarative.retry import Policy, call
from declarative.state import Address, Record
from providers.cloud import cloud
from providers.cloud.any import labels
from providers.cloud.any.digitalocean import DigitalOcean as Site
from providers.cloud.any.plain import Written
from providers.testing import NODE, VOLUME, Conformance
from tests.cloud_any.digitalocean import LUCK, DigitalOcean

PLACE = {"region": "nyc3", "backend": "do"}
SIZE = "s-1vcpu-1gb"


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    monkeypatch.setenv("FLEETFORM_TEST_KEY", "dop_v1_very-secret")
    monkeypatch.setattr(Site, "settle", 0.2)


@pytest.fixture
def server():
    with DigitalOcean() as running:
        yield running


def provider(port, folder, lineage="lineage-1", **more):
    config = Config(
        backend="do",
        project_dir=folder,
        lineage=lineage,
        driver="digitalocean",
        regions=("nyc3",),
        credentials={"key": "FLEETFORM_TEST_KEY"},
        endpoint=f"http://127.0.0.1:{port}",
        image={"*": "ubuntu-24-04-x64"},
        options={"timeout": 30},
    )
    found = cloud(replace(config, **more))
    found.readiness = lambda nodes: {n: s.readiness for n, s in found._nodes.readiness(nodes).items()}
    return found


class TestDigitalOcean(Conformance):
    backend = "do"
    ranks = False  # there is nothing behind these droplets
    node_inputs = MappingProxyType({**NODE, **PLACE, "instance_type": SIZE})
    volume_inputs = MappingProxyType({**VOLUME, **PLACE})
    larger = MappingProxyType({**volume_inputs, "size": "2GB", "tags": {"team": "a"}})

    @pytest.fixture(autouse=True)
    def listening(self, server):
        server.boot = 1
        self.server = server

    def make(self, folder, lineage):
        return provider(self.server.port, folder, lineage)


del Conformance  # it is no test itself
