"""The driver `azure` against a small Azure of the tests' own (tests/cloud_named/azure.py)."""

from types import MappingProxyType

import pytest

from providers.cloud import account
from providers.cloud.azure import Azure
from providers.testing import NODE, VOLUME, Conformance
from tests.cloud_named import azure as fake
from tests.cloud_named.web import Web

PLACE = {"region": fake.REGION, "zone": fake.ZONE}


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """What takes a moment there takes none here."""
    monkeypatch.setattr(account, "FIRST_PAUSE", 0.01)


@pytest.fixture
def cloud():
    return fake.Azure()


@pytest.fixture
def web(cloud, monkeypatch):
    for name, value in fake.SECRETS.items():
        monkeypatch.setenv(name, value)
    with Web(cloud) as running:
        yield running


class Bare(Azure):
    """Its nodes are ready when Azure says so: no host answers."""

    def readiness(self, nodes):
        return {name: seen.readiness for name, seen in self._nodes.readiness(nodes).items()}


class TestAzure(Conformance):
    backend = "az"
    ranks = False  # nothing is behind the machines
    many = 2 * fake.PAGE + 1
    node_inputs = MappingProxyType({**NODE, **PLACE, "backend": "az", "instance_type": "Standard_D2s_v3"})
    volume_inputs = MappingProxyType({**VOLUME, **PLACE, "backend": "az"})
    larger = MappingProxyType({**volume_inputs, "size": "2GB", "tags": {"team": "a"}})

    @pytest.fixture(autouse=True)
    def server(self, web):
        self.url = web.url

    def make(self, folder, lineage):
        return Bare(fake.config(self.url, folder, lineage))


del Conformance  # it is no test itself
