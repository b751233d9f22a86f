"""The rehearsal cloud is faithful: its provider passes the suite of all providers, and is found like a third
party's.
"""

from types import MappingProxyType

import pytest

from declarative.model.state import Address
from declarative.provider import Config, TransientError, TransientKind
from providers.testing import NODE, VOLUME, Conformance
from tests.providers.cloud.run import PLUG, RunningCloud
from tests.providers.cloud.site.cumulus import Cumulus
from tests.support.cli import fleet, volume
from tests.support.killing import ON_SKY


class Suite(Conformance):
    backend = "sky"
    ranks = False  # the cloud only says that they run
    options: tuple[str, ...] = ()
    many = 7
    crowd = 0  # its pages are small
    node_inputs = MappingProxyType({**NODE, "region": "sky-1"})
    volume_inputs = MappingProxyType({**VOLUME, "region": "sky-1"})

    @pytest.fixture(autouse=True)
    def cloud(self, tmp_path_factory):
        """A process for each test, with small pages."""
        file = tmp_path_factory.mktemp("cloud") / "cloud.db"
        with RunningCloud(file, "--page", "3", *self.options) as cloud:
            self.url = cloud.url
            yield cloud

    def make(self, folder, lineage):
        options = {"url": self.url}
        return Cumulus(
            Config(backend="sky", project_dir=folder, lineage=lineage, regions=("sky-1",), options=options)
        )


class TestTokens(Suite):
    pass


class TestNames(Suite):
    options = ("--names",)


del Suite, Conformance  # they are no tests themselves


def installs(project, cloud, env):
    """Without its folder on PYTHONPATH there is no such provider; with it, a project is applied to it."""
    project.declare(cloud.backend(), fleet(nodes=2, **ON_SKY), volume("data", count=2, backend="sky"))
    refused = project.apply(code=None)
    assert refused.code != 0
    assert "cumulus" in refused.err
    project.apply(env=env)
    assert cloud.things() == dict.fromkeys(["node/gpu-0", "node/gpu-1", "volume/data-0", "volume/data-1"], 1)
    project.run("state", "check", env=env)
    project.run("destroy", "--auto-approve", env=env)
    assert cloud.things() == {}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [(), ("--names",)])
def test_plugged_in_by_being_installed(project, tmp_path, mode):
    """A third party's package needs nothing but to be installed."""
    with RunningCloud(tmp_path / "cloud.db", *mode) as cloud:
        installs(project, cloud, PLUG)


def test_faults_are_those_of_the_port(tmp_path):
    """Every request goes wrong, in each of the ways that there are: said in transient errors, and what is
    made with one token is made once.
    """
    with RunningCloud(tmp_path / "cloud.db", "--faults", "1", "--slow", "0.3") as cloud:
        options = {"url": cloud.url, "timeout": 0.1}
        provider = Cumulus(Config(backend="sky", project_dir=tmp_path, lineage="l", options=options))
        kinds = set()
        for _ in range(40):
            try:
                provider._call(
                    "POST",
                    "/things",
                    {"kind": "volume", "name": "a", "token": "t", "inputs": {}, "needs": {}},
                )
            except TransientError as error:
                kinds.add(error.kind)
        assert kinds == {TransientKind.THROTTLED, TransientKind.AMBIGUOUS}
        assert cloud.made() == {"volume/a": 1}
        cloud.control(faults=0)
        assert provider.find(Address("volume", "a"), "t") is not None
