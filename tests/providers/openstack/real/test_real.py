"""The driver `openstack` against a real one: see README.md."""

from types import MappingProxyType

import pytest

from providers.cloud.openstack import OpenStack
from providers.testing import NODE, VOLUME, Conformance
from tests.providers.openstack.real import cloud

pytestmark = pytest.mark.skipif(not cloud.ASKED_FOR, reason=cloud.WHY_NOT)

PLACE = {"region": cloud.REGION, "zone": cloud.ZONE, "backend": "stack"}


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in cloud.SECRETS.items():
        monkeypatch.setenv(name, value)


class Bare(OpenStack):
    """Its nodes are ready when nova says so: the hypervisor only pretends, and no host answers."""

    def readiness(self, nodes):
        return {name: seen.readiness for name, seen in self._nodes.readiness(nodes).items()}


class TestRealOpenStack(Conformance):
    backend = "stack"
    ranks = False
    crowd = 0  # it has no room for so many
    many = 7  # a page of this cloud's has 5
    node_inputs = MappingProxyType({**NODE, **PLACE, "instance_type": cloud.FLAVOR})
    volume_inputs = MappingProxyType({**VOLUME, **PLACE})
    larger = MappingProxyType({**volume_inputs, "size": "2GB", "tags": {"team": "a"}})

    def make(self, folder, lineage):
        return Bare(cloud.config(folder, lineage))


del Conformance  # it is no test itself
