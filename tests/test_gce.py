"""The driver `gce` against a small GCE of the tests' own (tests/cloud_named/gce.py)."""

from types import MappingProxyType

import pytest

from providers.cloud import account
from providers.cloud.gce import Gce
from providers.testing import NODE, VOLUME, Conformance
from tests.cloud_named import gce as fake
from tests.cloud_named.web import Web

PLACE = {"region": fake.REGION, "zone": fake.ZONE}


@pytest.fixture(scope="module")
def pem():
    return fake.private_key()


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """What takes a moment there takes none here."""
    monkeypatch.setattr(account, "FIRST_PAUSE", 0.01)


@pytest.fixture
def cloud():
    return fake.Gce()


@pytest.fixture
def web(cloud, pem, monkeypatch):
    with Web(cloud) as running:
        monkeypatch.setenv(fake.VARIABLE, fake.service_account(pem, running.url))
        yield running


class Bare(Gce):
    """Its nodes are ready when GCE says so: no host answers."""

    def readiness(self, nodes):
        return {name: seen.readiness for name, seen in self._nodes.readiness(nodes).items()}


class TestGce(Conformance):
    backend = "gcp"
    ranks = False  # nothing is behind the instances
    many = 2 * fake.PAGE + 1
    node_inputs = MappingProxyType({**NODE, **PLACE, "backend": "gcp", "instance_type": "n1-standard-1"})
    volume_inputs = MappingProxyType({**VOLUME, **PLACE, "backend": "gcp"})
    larger = MappingProxyType({**volume_inputs, "size": "2GB", "tags": {"team": "a"}})

    @pytest.fixture(autouse=True)
    def server(self, web):
        self.url = web.url

    def make(self, folder, lineage):
        return Bare(fake.config(self.url, folder, lineage))


del Conformance  # it is no test itself
